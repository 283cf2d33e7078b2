/* device.c - launches kernels of the table, and reports which components of a ms_gpu work. */
#include "device.h"

#include <string.h>

#include "../common/structs.h"
#include "../cu/cache.h"

ms_status ms__kernel_launch(ms_gpu *gpu, int64_t device, int kernel, const ms__launch *launch) {
    const ms__kernel *k = &ms__kernels[kernel];
    if (launch->args_bytes != k->args_bytes)
        return ms__fail(MS_E_INVALID, "%s takes arguments of %zu bytes, not %zu", k->name, k->args_bytes,
                        launch->args_bytes);
    const ms__program program = {
        .name = k->name, .entry = k->entry, .source = k->source, .ptx = k->ptx[0] == '\0' ? NULL : k->ptx};
    return ms__program_launch(gpu, device, &program, launch);
}

static void describe_ptx(ms__component *out) {
    int n = 0;
    for (int i = 0; i < MS__N_KERNELS; i++) n += ms__kernels[i].ptx[0] != '\0';
    if (n == MS__N_KERNELS)
        ms__component_works(out, 0, "built in for all kernels");
    else
        ms__component_fails(out, "the library was built without nvcc");
}

const char *ms_gpu_component_name(int32_t component) {
    static const char *const names[] = {"driver", "nvml", "nvrtc", "ptx", "cache"};
    return component >= 0 && component < (int32_t)(sizeof names / sizeof *names) ? names[component] : "?";
}

ms_status ms_gpu_get_component(ms_gpu *gpu, int32_t component, ms_gpu_component_info *out) {
    if (gpu == NULL) return ms__fail(MS_E_INVALID, "ms_gpu_get_component: the ms_gpu is NULL");
    ms_status status = ms__struct_check(MS__STRUCT(ms_gpu_component_info), out);
    if (status != MS_OK) return status;
    ms__component state = {0};
    switch (component) {
    case MS_GPU_DRIVER:
        state = gpu->driver_component;
        break;
    case MS_GPU_NVML:
        state = gpu->nvml_component;
        break;
    case MS_GPU_NVRTC:
        state = gpu->nvrtc_component;
        break;
    case MS_GPU_PTX:
        describe_ptx(&state);
        break;
    case MS_GPU_CACHE:
        ms__cache_describe(gpu, &state);
        break;
    default:
        return ms__fail(MS_E_INVALID, "ms_gpu_get_component: component %d is unknown", (int)component);
    }
    ms_gpu_component_info found = {.works = state.works, .version = state.version};
    memcpy(found.text, state.text, sizeof found.text);
    return ms__struct_write(MS__STRUCT(ms_gpu_component_info), &found, out);
}
