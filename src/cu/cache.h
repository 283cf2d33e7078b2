/* cache.h - compiled programs on disk.
 *
 * One file a program, named by a key of all that its code depends on, put in place whole by a rename. A failure of the
 * cache is never an error: a program that cannot be read is compiled, one that cannot be written is not cached, and the
 * reason is remembered for ms_gpu_get_component.
 */
#ifndef MS_CU_CACHE_H
#define MS_CU_CACHE_H

#include "program.h"

typedef struct ms__cache_key {
    uint64_t words[2];
} ms__cache_key;

/* A hash of the program's text, the compiler's option and version, and the device's capability. */
ms__cache_key ms__cache_key_of(const ms__program *program, const char *option, int64_t nvrtc_version,
                               int64_t capability);

/* Find the folder: `path`, or where it is NULL what the environment says; "" for none. */
void ms__cache_init(ms_gpu *gpu, const char *path);

/* The code that is cached under this key; false if there is none, or if it is damaged. */
bool ms__cache_get(ms_gpu *gpu, const char *name, ms__cache_key key, ms__image *out);

/* Cache it, if possible. */
void ms__cache_put(ms_gpu *gpu, const char *name, ms__cache_key key, const ms__image *image);

/* Does it work? Any thread. */
void ms__cache_describe(ms_gpu *gpu, ms__component *out);

/* The code inside a file's bytes, borrowed from them; false unless the file is whole, intact and of this key. */
bool ms__cache_parse(const void *bytes, size_t n_bytes, ms__cache_key key, const void **out_code, size_t *out_n_bytes);

#endif
