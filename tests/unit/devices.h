/* devices.h - a device for simulations and plans of tests and benchmarks, from its rates. */
#ifndef MS_TEST_DEVICES_H
#define MS_TEST_DEVICES_H

#include <memscale/memscale.h>

#define DEVICE_WITH(r, n)                                                                                              \
    {.struct_bytes = sizeof(ms_device),                                                                                \
     .rates = (r),                                                                                                     \
     .n_multiprocessors = (n),                                                                                         \
     .kind = (r)->capability > 0 ? MS_DEVICE_GPU : MS_DEVICE_HOST}

/* The rates of the small model's figures (steps.h): every operation takes 1100 ns on the host's processor, and the link
 * moves 512 bytes in a microsecond each way. */
#define SMALL_RATES(capability_)                                                                                       \
    {.struct_bytes = sizeof(ms_rates),                                                                                 \
     .capability = (capability_),                                                                                      \
     .memory_bytes = 1 << 30,                                                                                          \
     .fp32_gflops = 10,                                                                                                \
     .memory_mb_per_s = 1000,                                                                                          \
     .to_device_mb_per_s = 512,                                                                                        \
     .from_device_mb_per_s = 512,                                                                                      \
     .launch_ns = 100,                                                                                                 \
     .dispatch_ns = 1000}

/* The address of one that lives as long as the block it is written in. */
#define DEVICE_OF(r, n) (&(const ms_device)DEVICE_WITH(r, n))

#endif
