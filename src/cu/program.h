/* program.h - device code, from source text to launch.
 *
 * A program is source text with one entry point. NVRTC compiles it to machine code for the device, through a cache on
 * disk; or the driver compiles PTX that was made when the library was built. A loaded program stays until the ms_gpu is
 * destroyed. Failures are remembered too, so that no compilation fails twice.
 */
#ifndef MS_CU_PROGRAM_H
#define MS_CU_PROGRAM_H

#include "gpu.h"

#define MS__PROGRAM_NAME_BYTES 48

typedef struct ms__program {
    const char *name;   /* one word, unique: for messages, the cache's files, and to find it again */
    const char *entry;  /* the extern "C" function */
    const char *source; /* CUDA C++ without includes */
    const char *ptx;    /* NULL: none was built */
} ms__program;

typedef struct ms__launch {
    unsigned n_blocks, n_threads; /* of the grid, of a block */
    const void *args;             /* one structure, passed by value */
    size_t args_bytes;
    uint64_t stream; /* a CUstream */
} ms__launch;

typedef struct ms__image {
    void *bytes; /* owned, ms_free; a NUL byte that does not count follows the last, as PTX needs */
    size_t n_bytes;
} ms__image;

/* Queue one launch. The device's context must be current (ms__gpu_enter). Errors: MS_E_UNAVAILABLE (neither NVRTC nor
 * PTX gave a program that the device can load; the message says why), MS_E_CUDA, MS_E_NO_MEMORY. */
ms_status ms__program_launch(ms_gpu *gpu, int64_t device, const ms__program *program, const ms__launch *launch);

/* Has it been loaded, or has that failed? Then a launch does not read the source. */
bool ms__program_is_loaded(const ms_gpu *gpu, int64_t device, const char *name);

/* Compile for a capability with NVRTC. Errors: MS_E_UNAVAILABLE (also: it does not compile, with the beginning of the
 * compiler's log), MS_E_NO_MEMORY. */
ms_status ms__program_compile(const ms_gpu *gpu, const ms__program *program, const char *option, bool to_ptx,
                              ms__image *out);

/* The compiler option for a capability, and whether the result is PTX: if NVRTC does not know the device yet, it is PTX
 * of the latest architecture below it. Errors: MS_E_UNAVAILABLE. */
#define MS__OPTION_BYTES 48
ms_status ms__program_target(const ms_gpu *gpu, int64_t capability, char *option, bool *out_to_ptx);

/* For ms_gpu_destroy: unload in the current context; free the records. */
void ms__programs_unload(ms_gpu *gpu, ms__device *device);
void ms__programs_free(ms__device *device);

#endif
