/* program.c - loading and launching of programs: program.h.
 *
 * A device's programs are a list that only grows. An entry is finished before one compare-and-swap makes it the head,
 * and entries never change, so readers need no lock. A thread that wants to add a program and finds it there was not
 * the first: it unloads its own.
 */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "cache.h"

struct ms__loaded {
    ms__loaded *next;
    char name[MS__PROGRAM_NAME_BYTES];
    ms__cu_module module;
    ms__cu_function function; /* NULL: the program cannot be loaded */
    char reason[800];
};

/* Errors that mean "not this image": another one may work. All others concern the device or the context. */
static bool image_is_to_blame(int code) {
    static const int codes[] = {200 /* INVALID_IMAGE */,
                                209 /* NO_BINARY_FOR_GPU */,
                                218 /* INVALID_PTX */,
                                221 /* JIT_COMPILER_NOT_FOUND */,
                                222 /* UNSUPPORTED_PTX_VERSION */,
                                223 /* JIT_COMPILATION_DISABLED */,
                                300 /* INVALID_SOURCE */,
                                500 /* NOT_FOUND */,
                                801 /* NOT_SUPPORTED */};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i] == code) return true;
    return false;
}

/* Load an image and find its entry. Errors: MS_E_UNAVAILABLE (the image cannot be used), MS_E_CUDA. */
static ms_status load(const ms_gpu *gpu, const ms__program *program, const void *image, ms__loaded *out) {
    ms__cu_module module = NULL;
    const char *call = "cuModuleLoadData";
    int code = gpu->cuda.cuModuleLoadData(&module, image);
    if (code == 0) {
        call = "cuModuleGetFunction";
        code = gpu->cuda.cuModuleGetFunction(&out->function, module, program->entry);
        if (code == 0) {
            out->module = module;
            return MS_OK;
        }
        out->function = NULL;
        (void)gpu->cuda.cuModuleUnload(module);
    }
    ms_status status = ms__cuda_fail(&gpu->cuda, call, code);
    return image_is_to_blame(code) ? MS_E_UNAVAILABLE : status;
}

/* Compile the program or take it from the cache, and load it. A cached image that the driver refuses is compiled
 * again. */
static ms_status load_compiled(ms_gpu *gpu, const ms__program *program, int64_t capability, ms__loaded *out) {
    char option[MS__OPTION_BYTES];
    bool to_ptx = false;
    ms_status status = ms__program_target(gpu, capability, option, &to_ptx);
    if (status != MS_OK) return status;
    ms__cache_key key = ms__cache_key_of(program, option, gpu->nvrtc_component.version, capability);
    ms__image image = {0};
    if (ms__cache_get(gpu, program->name, key, &image)) {
        status = load(gpu, program, image.bytes, out);
        ms_free(image.bytes);
        if (status != MS_E_UNAVAILABLE) return status;
    }
    status = ms__program_compile(gpu, program, option, to_ptx, &image);
    if (status != MS_OK) return status;
    status = load(gpu, program, image.bytes, out);
    if (status == MS_OK) ms__cache_put(gpu, program->name, key, &image);
    ms_free(image.bytes);
    return status;
}

/* With NVRTC, else from PTX. The error names both failures. */
static ms_status load_any(ms_gpu *gpu, int64_t device, const ms__program *program, ms__loaded *out) {
    int64_t capability = 0;
    ms_status status = ms__gpu_capability(gpu, device, &capability);
    if (status == MS_OK) status = load_compiled(gpu, program, capability, out);
    if (status != MS_E_UNAVAILABLE) return status;
    char first[sizeof out->reason / 2];
    (void)snprintf(first, sizeof first, "%s", ms_error_message());
    if (program->ptx == NULL) return ms__fail(MS_E_UNAVAILABLE, "%s; this library was built without PTX", first);
    status = load(gpu, program, program->ptx, out);
    if (status == MS_OK)
        ms__log(MS_LOG_DEBUG, "%s is loaded from the built-in PTX, because NVRTC failed: %s", program->name, first);
    if (status != MS_E_UNAVAILABLE) return status;
    char second[sizeof out->reason / 2];
    (void)snprintf(second, sizeof second, "%s", ms_error_message());
    return ms__fail(MS_E_UNAVAILABLE, "%s; the built-in PTX failed too: %s", first, second);
}

static ms__loaded *find(ms__loaded *head, const char *name) {
    while (head != NULL && strcmp(head->name, name) != 0) head = head->next;
    return head;
}

/* Put `mine` at the head of the device's list, unless the program is already in it. Returns the entry that is in the
 * list. */
static ms__loaded *publish(ms__device *device, ms__loaded *mine) {
    ms__loaded *head = atomic_load_explicit(&device->loaded, memory_order_acquire);
    do {
        ms__loaded *theirs = find(head, mine->name);
        if (theirs != NULL) return theirs;
        mine->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&device->loaded, &head, mine, memory_order_acq_rel,
                                                    memory_order_acquire)); /* partner: the acquire in get */
    return mine;
}

/* The program on this device, loaded if need be. */
static ms_status get(ms_gpu *gpu, int64_t index, const ms__program *program, const ms__loaded **out) {
    ms__device *device = &gpu->devices[index];
    ms__loaded *found = find(atomic_load_explicit(&device->loaded, memory_order_acquire), program->name);
    if (found == NULL) {
        ms__loaded *mine = calloc(1, sizeof *mine);
        if (mine == NULL) return ms__fail_memory(sizeof *mine);
        (void)snprintf(mine->name, sizeof mine->name, "%s", program->name);
        ms_status status = load_any(gpu, index, program, mine);
        if (status == MS_E_UNAVAILABLE) {
            (void)snprintf(mine->reason, sizeof mine->reason, "%s", ms_error_message());
        } else if (status != MS_OK) {
            free(mine);
            return status;
        }
        found = publish(device, mine);
        if (found != mine) {
            if (mine->module != NULL) (void)gpu->cuda.cuModuleUnload(mine->module);
            free(mine);
        }
    }
    if (found->function == NULL) return ms__fail(MS_E_UNAVAILABLE, "%s", found->reason);
    *out = found;
    return MS_OK;
}

bool ms__program_is_loaded(const ms_gpu *gpu, int64_t device, const char *name) {
    return find(atomic_load_explicit(&gpu->devices[device].loaded, memory_order_acquire), name) != NULL;
}

ms_status ms__program_launch(ms_gpu *gpu, int64_t device, const ms__program *program, const ms__launch *launch) {
    const ms__loaded *loaded = NULL;
    ms_status status = get(gpu, device, program, &loaded);
    if (status != MS_OK || loaded == NULL) return status;
    size_t args_bytes = launch->args_bytes;
    void *buffer_key = (void *)1, *size_key = (void *)2; /* CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE */
    void *extra[] = {buffer_key, (void *)(uintptr_t)launch->args, size_key, &args_bytes, NULL};
    int code = gpu->cuda.cuLaunchKernel(loaded->function, launch->n_blocks, 1, 1, launch->n_threads, 1, 1, 0,
                                        (ms__cu_stream)(uintptr_t)launch->stream, NULL, extra);
    return code == 0 ? MS_OK : ms__cuda_fail(&gpu->cuda, "cuLaunchKernel", code);
}

void ms__programs_unload(ms_gpu *gpu, ms__device *device) {
    for (ms__loaded *at = atomic_load_explicit(&device->loaded, memory_order_acquire); at != NULL; at = at->next)
        if (at->module != NULL) (void)gpu->cuda.cuModuleUnload(at->module);
}

void ms__programs_free(ms__device *device) {
    ms__loaded *at = atomic_exchange_explicit(&device->loaded, NULL, memory_order_acq_rel);
    while (at != NULL) {
        ms__loaded *next = at->next;
        free(at);
        at = next;
    }
}
