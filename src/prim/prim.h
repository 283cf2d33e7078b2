/* prim.h - every call to the operating system stands behind this header.
 *
 * Linux. Functions that read files take a root that is put before the path, so that a recorded tree can stand in for a
 * machine (memscale.h, ms_hw_detect).
 */
#ifndef MS_PRIM_H
#define MS_PRIM_H

#include <stdbool.h>
#include <stdint.h>

#include "../common/status.h"

#define MS__PRIM_PATH_BYTES 4096

/* root + path into `out` (MS__PRIM_PATH_BYTES); MS_E_LIMIT if it is too long. `out` may be `path`. */
ms_status ms__prim_join(char *out, const char *root, const char *path);

/* Read a small text file whole, at most max_bytes; `*out_text` is owned, ms_free, NUL-terminated.
 * Errors: MS_E_IO (absent or unreadable), MS_E_LIMIT (larger), MS_E_NO_MEMORY. */
ms_status ms__prim_read_text(const char *root, const char *path, size_t max_bytes, char **out_text);

/* Does the path exist? */
bool ms__prim_exists(const char *root, const char *path);

int64_t ms__prim_page_bytes(void);
int64_t ms__prim_cores_online(void);
int64_t ms__prim_cores_affine(void); /* cores this process may run on; 0 if unknown */

#endif
