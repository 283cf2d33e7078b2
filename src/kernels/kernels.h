/* kernels.h - the table of kernels: every launch takes its kernel from here, and tests go through all of it.
 *
 * A kernel is a file of device code (cuda/NAME.cu) with one entry point ms_NAME_kernel that takes one structure by
 * value, a header of arithmetic that both sides read (NAME_math.h) and a reference in plain C (ref/ref_NAME.c). A new
 * one is one line in the list below and one in CMakeLists.txt.
 */
#ifndef MS_KERNELS_H
#define MS_KERNELS_H

#include <stddef.h>

#include "checksum_math.h"

/* X(constant, name): MS__KERNEL_constant is its index, ms__name_args its structure. */
#define MS__KERNEL_LIST(X) X(CHECKSUM, checksum)

enum {
#define MS__KERNEL_ENUM(constant, name) MS__KERNEL_##constant,
    MS__KERNEL_LIST(MS__KERNEL_ENUM)
#undef MS__KERNEL_ENUM
        MS__N_KERNELS
};

typedef struct ms__kernel {
    const char *name;
    const char *entry;
    const char *source; /* CUDA C++ without includes */
    const char *ptx;    /* "" where the library was built without nvcc */
    size_t args_bytes;
    void (*reference)(const void *args); /* the same on the host: addresses in `args` are the host's */
} ms__kernel;

extern const ms__kernel ms__kernels[MS__N_KERNELS];

#endif
