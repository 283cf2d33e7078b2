/* device.h - a device for simulations and plans of tests and benchmarks, from its rates. */
#ifndef MS_TEST_DEVICE_H
#define MS_TEST_DEVICE_H

#include <memscale/memscale.h>

#define DEVICE_WITH(r, n)                                                                                              \
    {.struct_bytes = sizeof(ms_device),                                                                                \
     .rates = (r),                                                                                                     \
     .n_multiprocessors = (n),                                                                                         \
     .kind = (r)->capability > 0 ? MS_DEVICE_GPU : MS_DEVICE_HOST}

/* The address of one that lives as long as the block it is written in. */
#define DEVICE_OF(r, n) (&(const ms_device)DEVICE_WITH(r, n))

#endif
