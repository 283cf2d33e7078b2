/* kernels.c - the table of kernels.h. The texts are made from cuda/ when the library is built (embed.cmake). */
#include "kernels.h"

#include "ref/ref.h"

#define DECLARE_TEXTS(constant, name)                                                                                  \
    extern const char ms__##name##_source[];                                                                           \
    extern const char ms__##name##_ptx[];
MS__KERNEL_LIST(DECLARE_TEXTS)

#define ENTRY(constant, name)                                                                                          \
    {#name,                                                                                                            \
     "ms_" #name "_kernel",                                                                                            \
     ms__##name##_source,                                                                                              \
     ms__##name##_ptx,                                                                                                 \
     sizeof(ms__##name##_args),                                                                                        \
     ms__##name##_reference},

const ms__kernel ms__kernels[MS__N_KERNELS] = {MS__KERNEL_LIST(ENTRY)};
