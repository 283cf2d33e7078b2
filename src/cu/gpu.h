/* gpu.h - what a ms_gpu consists of: the three libraries, the devices with their contexts, the programs loaded on them.
 *
 * The tables and components are written by ms_gpu_create and never again. What is made later, on first use, is a
 * device's context, its list of programs and the state of the cache; each is complete before one atomic write publishes
 * it. So there is no lock, no driver call under one, and nothing that a fork could leave locked. Two threads that
 * create the same thing at once both succeed: the second frees its own.
 */
#ifndef MS_CU_GPU_H
#define MS_CU_GPU_H

#include <stdatomic.h>

#include "../prim/prim.h"
#include "driver.h"

typedef struct ms__loaded ms__loaded; /* program.h */

typedef struct ms__device {
    int handle;                      /* the driver's */
    _Atomic(ms__cu_context) context; /* NULL until it is needed; retained once */
    _Atomic(ms__loaded *) loaded;    /* newest first; entries never change */
    _Atomic(ms__cu_address) spare;   /* MS__SPARE_BYTES on the device that are not in use; 0: none */
} ms__device;

struct ms_gpu {
    int64_t pid; /* of the process that made it */
    ms__cuda cuda;
    ms__nvml nvml;
    ms__nvrtc nvrtc;
    ms__component driver_component, nvml_component, nvrtc_component;
    int64_t n_devices;
    ms__device *devices;
    char cache_path[MS__PRIM_PATH_BYTES]; /* "": nothing is kept on disk */
    char cache_reason[128];               /* why there is no path */
    atomic_int cache_state;               /* cache.c: says when cache_component may be read */
    ms__component cache_component;
    atomic_flag logged_fallback; /* the log says that the host does the work of kernels */
};

/* Can this process use `device`? Errors: MS_E_INVALID, MS_E_UNAVAILABLE (no driver, a forked child). */
ms_status ms__gpu_check(const ms_gpu *gpu, int64_t device);

/* Make the device's primary context the calling thread's current one, until ms__gpu_leave restores the previous one.
 * Errors: those of ms__gpu_check, MS_E_CUDA. */
ms_status ms__gpu_enter(ms_gpu *gpu, int64_t device);

/* Undo ms__gpu_enter. Returns `status`, or MS_E_CUDA where that was MS_OK and leaving failed. */
ms_status ms__gpu_leave(ms_gpu *gpu, ms_status status);

/* A little device memory for a kernel's result. It is reused, not freed, because freeing would wait for the whole
 * device. The context must be current. `is_idle`: no queued work uses it any more. Errors: MS_E_CUDA. */
#define MS__SPARE_BYTES 256
ms_status ms__gpu_take_spare(ms_gpu *gpu, int64_t device, ms__cu_address *out);
void ms__gpu_give_spare(ms_gpu *gpu, int64_t device, ms__cu_address spare, bool is_idle);

/* 10 * major + minor. Errors: MS_E_CUDA. */
ms_status ms__gpu_capability(const ms_gpu *gpu, int64_t device, int64_t *out);

#endif
