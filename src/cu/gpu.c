/* gpu.c - creating and destroying a ms_gpu, and contexts: gpu.h.
 *
 * MemScale never creates a context. It retains the primary one, which torch and the CUDA runtime use too, and makes it
 * current for the calling thread only while a call runs.
 */
#include "gpu.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/structs.h"
#include "cache.h"
#include "program.h"

ms_status ms_gpu_options_init(ms_gpu_options *options) {
    const ms_gpu_options usual = {0};
    return ms__struct_write(MS__STRUCT(ms_gpu_options), &usual, options);
}

static ms_status check_paths(const ms_gpu_options *options) {
    const char *const paths[] = {options->driver_path, options->nvml_path, options->cache_path};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (paths[i] != NULL && strlen(paths[i]) >= MS__PRIM_PATH_BYTES)
            return ms__fail(MS_E_LIMIT, "path too long: %.80s...", paths[i]);
    for (const char *const *path = options->nvrtc_paths; path != NULL && *path != NULL; path++)
        if (strlen(*path) >= MS__PRIM_PATH_BYTES) return ms__fail(MS_E_LIMIT, "path too long: %.80s...", *path);
    return MS_OK;
}

/* The driver's devices. One that does not answer here means that the driver does not work. */
static ms_status list_devices(ms_gpu *gpu) {
    int n = 0, code = gpu->cuda.cuDeviceGetCount(&n);
    char buffer[MS__CUDA_NAME_BYTES];
    if (code != 0 || n <= 0) {
        if (code == 0)
            ms__component_fails(&gpu->driver_component, "the driver has no device");
        else
            ms__component_fails(&gpu->driver_component, "cuDeviceGetCount failed: %s",
                                ms__cuda_error_name(&gpu->cuda, code, buffer));
        return MS_OK;
    }
    gpu->devices = calloc((size_t)n, sizeof *gpu->devices);
    if (gpu->devices == NULL) return ms__fail_memory((size_t)n * sizeof *gpu->devices);
    for (int i = 0; i < n; i++) {
        code = gpu->cuda.cuDeviceGet(&gpu->devices[i].handle, i);
        if (code == 0) continue;
        ms__component_fails(&gpu->driver_component, "cuDeviceGet failed: %s",
                            ms__cuda_error_name(&gpu->cuda, code, buffer));
        return MS_OK;
    }
    gpu->n_devices = n;
    return MS_OK;
}

static ms_status start(ms_gpu *gpu, const ms_gpu_options *options) {
    ms__cache_init(gpu, options->cache_path);
    ms__driver_open(&gpu->cuda, &gpu->driver_component, options->driver_path);
    ms_status status = gpu->driver_component.works ? list_devices(gpu) : MS_OK;
    if (status != MS_OK) return status;
    ms__nvrtc_open(&gpu->nvrtc, &gpu->nvrtc_component, options->nvrtc_paths, gpu->driver_component.version);
    ms__nvml_open(&gpu->nvml, &gpu->nvml_component, options->nvml_path);
    ms__log(MS_LOG_DEBUG, "driver: %s; %" PRId64 " devices", gpu->driver_component.text, gpu->n_devices);
    return MS_OK;
}

ms_status ms_gpu_create(const ms_gpu_options *options, ms_gpu **out_gpu) {
    ms_gpu_options ours = {0};
    ms_status status = MS_OK;
    if (out_gpu == NULL) return ms__fail(MS_E_INVALID, "ms_gpu_create: out_gpu is NULL");
    if (options != NULL) status = ms__struct_read(MS__STRUCT(ms_gpu_options), options, &ours);
    if (status == MS_OK) status = check_paths(&ours);
    if (status != MS_OK) return status;
    ms_gpu *gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL) return ms__fail_memory(sizeof *gpu);
    gpu->pid = ms__prim_pid();
    atomic_flag_clear(&gpu->logged_fallback);
    status = start(gpu, &ours);
    if (status == MS_OK)
        *out_gpu = gpu;
    else
        ms_gpu_destroy(gpu);
    return status;
}

static bool in_child(const ms_gpu *gpu) { return ms__prim_pid() != gpu->pid; }

/* Memory and programs are freed in their context, then the context is released. Nobody could handle a failure. */
static void give_back(ms_gpu *gpu, ms__device *device) {
    ms__cu_context context = atomic_load_explicit(&device->context, memory_order_acquire), popped = NULL;
    if (context == NULL) return;
    if (gpu->cuda.cuCtxPushCurrent_v2(context) == 0) {
        ms__cu_address spare = atomic_exchange(&device->spare, 0);
        if (spare != 0) (void)gpu->cuda.cuMemFree_v2(spare);
        ms__programs_unload(gpu, device);
        (void)gpu->cuda.cuCtxPopCurrent_v2(&popped);
    }
    (void)gpu->cuda.cuDevicePrimaryCtxRelease_v2(device->handle);
}

void ms_gpu_destroy(ms_gpu *gpu) {
    if (gpu == NULL) return;
    bool child = in_child(gpu); /* the driver's state belongs to the parent: call nothing */
    for (int64_t i = 0; i < gpu->n_devices; i++) {
        if (!child) give_back(gpu, &gpu->devices[i]);
        ms__programs_free(&gpu->devices[i]);
    }
    if (!child && gpu->nvml_component.works) (void)gpu->nvml.nvmlShutdown();
    free(gpu->devices);
    free(gpu);
}

int64_t ms_gpu_count_devices(const ms_gpu *gpu) { return gpu == NULL || in_child(gpu) ? 0 : gpu->n_devices; }

ms_status ms__gpu_check(const ms_gpu *gpu, int64_t device) {
    if (gpu == NULL) return ms__fail(MS_E_INVALID, "the ms_gpu is NULL");
    if (in_child(gpu)) return ms__fail(MS_E_UNAVAILABLE, "a forked process cannot use the GPUs of its parent");
    if (!gpu->driver_component.works) return ms__fail(MS_E_UNAVAILABLE, "no GPU: %s", gpu->driver_component.text);
    if (device < 0 || device >= gpu->n_devices)
        return ms__fail(MS_E_INVALID, "there is no device %" PRId64 "; the number of devices is %" PRId64, device,
                        gpu->n_devices);
    return MS_OK;
}

/* The device's context, retained on first use. */
static ms_status get_context(ms_gpu *gpu, ms__device *device, ms__cu_context *out) {
    ms__cu_context context = atomic_load_explicit(&device->context, memory_order_acquire), expected = NULL;
    if (context == NULL) {
        int code = gpu->cuda.cuDevicePrimaryCtxRetain(&context, device->handle);
        if (code != 0) return ms__cuda_fail(&gpu->cuda, "cuDevicePrimaryCtxRetain", code);
        if (!atomic_compare_exchange_strong_explicit(&device->context, &expected, context, memory_order_acq_rel,
                                                     memory_order_acquire)) { /* partner: the acquire above */
            (void)gpu->cuda.cuDevicePrimaryCtxRelease_v2(device->handle);     /* another thread was first */
            context = expected;
        }
    }
    *out = context;
    return MS_OK;
}

ms_status ms__gpu_enter(ms_gpu *gpu, int64_t device) {
    ms__cu_context context = NULL;
    ms_status status = ms__gpu_check(gpu, device);
    if (status == MS_OK) status = get_context(gpu, &gpu->devices[device], &context);
    if (status != MS_OK) return status;
    int code = gpu->cuda.cuCtxPushCurrent_v2(context);
    return code == 0 ? MS_OK : ms__cuda_fail(&gpu->cuda, "cuCtxPushCurrent", code);
}

ms_status ms__gpu_leave(ms_gpu *gpu, ms_status status) {
    ms__cu_context popped = NULL;
    int code = gpu->cuda.cuCtxPopCurrent_v2(&popped);
    return code == 0 || status != MS_OK ? status : ms__cuda_fail(&gpu->cuda, "cuCtxPopCurrent", code);
}

ms_status ms__gpu_take_spare(ms_gpu *gpu, int64_t device, ms__cu_address *out) {
    ms__cu_address spare = atomic_exchange(&gpu->devices[device].spare, 0);
    int code = spare != 0 ? 0 : gpu->cuda.cuMemAlloc_v2(&spare, MS__SPARE_BYTES);
    if (code != 0) return ms__cuda_fail(&gpu->cuda, "cuMemAlloc", code);
    *out = spare;
    return MS_OK;
}

void ms__gpu_give_spare(ms_gpu *gpu, int64_t device, ms__cu_address spare, bool is_idle) {
    if (is_idle) spare = atomic_exchange(&gpu->devices[device].spare, spare); /* another thread's, if any */
    if (spare != 0) (void)gpu->cuda.cuMemFree_v2(spare);
}

ms_status ms__gpu_capability(const ms_gpu *gpu, int64_t device, int64_t *out) {
    int major = 0, minor = 0, handle = gpu->devices[device].handle;
    int code = gpu->cuda.cuDeviceGetAttribute(&major, MS__CUDA_ATTRIBUTE_CAPABILITY_MAJOR, handle);
    if (code == 0) code = gpu->cuda.cuDeviceGetAttribute(&minor, MS__CUDA_ATTRIBUTE_CAPABILITY_MINOR, handle);
    if (code != 0) return ms__cuda_fail(&gpu->cuda, "cuDeviceGetAttribute", code);
    *out = 10 * major + minor;
    return MS_OK;
}
