/* libcuda.c - the fake driver: every function of the driver's table, on top of fake.h. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/cu/driver.h"
#include "fake.h"

MS__CUDA_SYMBOLS(FAKE_DECLARE)

enum { INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, BAD_DEVICE = 101, BAD_IMAGE = 200, NO_CONTEXT = 201 };
enum { NO_BINARY = 209, BAD_PTX = 218, BAD_HANDLE = 400, NOT_FOUND = 500 };

/* Most calls: count, maybe fail, do the work with the state locked. */
#define BEGIN(name)                                                                                                    \
    do {                                                                                                               \
        int injected = fake_begin(#name);                                                                              \
        if (injected != 0) return fake_end(injected);                                                                  \
    } while (0)

/* The same for calls that need a current context. */
#define BEGIN_IN_CONTEXT(name)                                                                                         \
    BEGIN(name);                                                                                                       \
    if (fake_device_now() < 0) return fake_end(NO_CONTEXT)

static bool is_device(int device) { return device >= 0 && device < fake_settings_now()->n_devices; }

int cuInit(unsigned flags) {
    BEGIN(cuInit);
    return fake_end(flags != 0 ? INVALID : fake_n_visible() == 0 ? NO_DEVICE : 0);
}

int cuDriverGetVersion(int *version) {
    BEGIN(cuDriverGetVersion);
    *version = fake_settings_now()->driver_version;
    return fake_end(0);
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {{INVALID, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
              {NO_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
              {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
              {BAD_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
              {NO_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
              {NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available"},
              {999, "CUDA_ERROR_UNKNOWN", "unknown error"}};

int cuGetErrorName(int code, const char **text) {
    BEGIN(cuGetErrorName);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].code != code) continue;
        *text = errors[i].name;
        return fake_end(0);
    }
    return fake_end(INVALID);
}

int cuGetErrorString(int code, const char **text) {
    BEGIN(cuGetErrorString);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].code != code) continue;
        *text = errors[i].text;
        return fake_end(0);
    }
    return fake_end(INVALID);
}

int cuDeviceGetCount(int *n) {
    BEGIN(cuDeviceGetCount);
    *n = fake_n_visible();
    return fake_end(0);
}

int cuDeviceGet(int *device, int index) {
    BEGIN(cuDeviceGet);
    int found = fake_visible(index);
    if (found >= 0) *device = found;
    return fake_end(found >= 0 ? 0 : BAD_DEVICE);
}

int cuDeviceGetName(char *name, int n_bytes, int device) {
    BEGIN(cuDeviceGetName);
    if (!is_device(device)) return fake_end(BAD_DEVICE);
    (void)snprintf(name, (size_t)n_bytes, "%s %d%s", fake_settings_now()->name, device,
                   fake_settings_now()->is_mig ? " MIG 3g.20gb" : "");
    return fake_end(0);
}

int cuDeviceGetUuid_v2(ms__cu_uuid *uuid, int device) {
    BEGIN(cuDeviceGetUuid_v2);
    if (!is_device(device)) return fake_end(BAD_DEVICE);
    for (int i = 0; i < 16; i++) uuid->bytes[i] = (unsigned char)(16 * i + device);
    return fake_end(0);
}

int cuDeviceGetPCIBusId(char *id, int n_bytes, int device) {
    BEGIN(cuDeviceGetPCIBusId);
    if (!is_device(device)) return fake_end(BAD_DEVICE);
    (void)snprintf(id, (size_t)n_bytes, "0000:%02X:00.0", 0x40 + device);
    return fake_end(0);
}

int cuDeviceTotalMem_v2(size_t *n_bytes, int device) {
    BEGIN(cuDeviceTotalMem_v2);
    if (!is_device(device)) return fake_end(BAD_DEVICE);
    *n_bytes = fake_settings_now()->total_bytes;
    return fake_end(0);
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    BEGIN(cuDeviceGetAttribute);
    if (!is_device(device)) return fake_end(BAD_DEVICE);
    int capability = fake_settings_now()->capability[device];
    switch (attribute) {
    case MS__CUDA_ATTRIBUTE_MULTIPROCESSORS:
        *value = 100 + device;
        return fake_end(0);
    case MS__CUDA_ATTRIBUTE_INTEGRATED:
        *value = 0;
        return fake_end(0);
    case MS__CUDA_ATTRIBUTE_CAPABILITY_MAJOR:
        *value = capability / 10;
        return fake_end(0);
    case MS__CUDA_ATTRIBUTE_CAPABILITY_MINOR:
        *value = capability % 10;
        return fake_end(0);
    default:
        return fake_end(INVALID);
    }
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    BEGIN(cuDevicePrimaryCtxGetState);
    if (!is_device(device)) return fake_end(BAD_DEVICE);
    *flags = 0;
    *active = fake_context_active(device);
    return fake_end(0);
}

int cuDevicePrimaryCtxRetain(ms__cu_context *context, int device) {
    BEGIN(cuDevicePrimaryCtxRetain);
    int code = fake_retain(device, 1);
    if (code == 0) *context = fake_context(device);
    return fake_end(code);
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    int injected = fake_begin("cuDevicePrimaryCtxRelease_v2"), code = fake_retain(device, -1);
    return fake_end(injected != 0 ? injected : code);
}

int cuCtxPushCurrent_v2(ms__cu_context context) {
    BEGIN(cuCtxPushCurrent_v2);
    return fake_end(fake_push_locked(context));
}

int cuCtxPopCurrent_v2(ms__cu_context *context) {
    void *popped = NULL;
    int injected = fake_begin("cuCtxPopCurrent_v2"), code = fake_pop_locked(&popped);
    if (code == 0) *context = popped;
    return fake_end(injected != 0 ? injected : code);
}

static uint64_t free_bytes_now(int device) {
    uint64_t used = fake_used(device) + fake_settings_now()->others_bytes, total = fake_settings_now()->total_bytes;
    return used < total ? total - used : 0;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    BEGIN_IN_CONTEXT(cuMemGetInfo_v2);
    *free_bytes = free_bytes_now(fake_device_now());
    *total_bytes = fake_settings_now()->total_bytes;
    return fake_end(0);
}

int cuMemAlloc_v2(ms__cu_address *address, size_t n_bytes) {
    BEGIN_IN_CONTEXT(cuMemAlloc_v2);
    if (n_bytes == 0) return fake_end(INVALID);
    if (n_bytes > free_bytes_now(fake_device_now())) return fake_end(NO_MEMORY);
    fake_object *made = fake_make(FAKE_MEMORY, fake_device_now(), n_bytes);
    if (made != NULL) *address = (ms__cu_address)(uintptr_t)made->memory;
    return fake_end(made == NULL ? NO_MEMORY : 0);
}

/* Calls that release something do so in any case. */
static int drop(const char *call, enum fake_kind kind, const void *handle) {
    int injected = fake_begin(call);
    if (fake_device_now() < 0) return fake_end(NO_CONTEXT);
    int code = fake_drop(kind, handle);
    return fake_end(injected != 0 ? injected : code);
}

int cuMemFree_v2(ms__cu_address address) { return drop("cuMemFree_v2", FAKE_MEMORY, (void *)(uintptr_t)address); }

int cuMemHostAlloc(void **memory, size_t n_bytes, unsigned flags) {
    BEGIN_IN_CONTEXT(cuMemHostAlloc);
    if (n_bytes == 0 || flags > 7) return fake_end(INVALID);
    fake_object *made = fake_make(FAKE_PINNED, fake_device_now(), n_bytes);
    if (made != NULL) *memory = made->memory;
    return fake_end(made == NULL ? NO_MEMORY : 0);
}

int cuMemFreeHost(void *memory) { return drop("cuMemFreeHost", FAKE_PINNED, memory); }

/* The pages stay the caller's: what is registered is an object at their address. */
int cuMemHostRegister_v2(void *memory, size_t n_bytes, unsigned flags) {
    BEGIN_IN_CONTEXT(cuMemHostRegister_v2);
    if (memory == NULL || n_bytes == 0 || flags > 15) return fake_end(INVALID);
    fake_object *made = fake_make(FAKE_REGISTERED, fake_device_now(), 0);
    if (made != NULL) made->pages = memory;
    return fake_end(made == NULL ? NO_MEMORY : 0);
}

int cuMemHostUnregister(void *memory) { return drop("cuMemHostUnregister", FAKE_REGISTERED, memory); }

static bool is_stream(ms__cu_stream stream) { return stream == NULL || fake_find(FAKE_STREAM, stream) != NULL; }

/* Is this a range of the current device, on a stream of ours? */
static int check_copy(uint64_t address, size_t n, ms__cu_stream stream) {
    if (!is_stream(stream)) return BAD_HANDLE;
    return fake_in_range(fake_device_now(), address, n) ? 0 : INVALID;
}

int cuMemsetD8Async(ms__cu_address to, unsigned char value, size_t n, ms__cu_stream stream) {
    BEGIN_IN_CONTEXT(cuMemsetD8Async);
    int code = check_copy(to, n, stream);
    if (code == 0) memset((void *)(uintptr_t)to, value, n);
    return fake_end(code);
}

int cuMemcpyHtoDAsync_v2(ms__cu_address to, const void *from, size_t n, ms__cu_stream stream) {
    BEGIN_IN_CONTEXT(cuMemcpyHtoDAsync_v2);
    int code = check_copy(to, n, stream);
    if (code == 0) memcpy((void *)(uintptr_t)to, from, n);
    return fake_end(code);
}

int cuMemcpyDtoHAsync_v2(void *to, ms__cu_address from, size_t n, ms__cu_stream stream) {
    BEGIN_IN_CONTEXT(cuMemcpyDtoHAsync_v2);
    int code = check_copy(from, n, stream);
    if (code == 0) memcpy(to, (const void *)(uintptr_t)from, n);
    return fake_end(code);
}

int cuStreamCreate(ms__cu_stream *stream, unsigned flags) {
    BEGIN_IN_CONTEXT(cuStreamCreate);
    fake_object *made = flags > 1 ? NULL : fake_make(FAKE_STREAM, fake_device_now(), 0);
    if (made != NULL) *stream = (ms__cu_stream)(void *)made;
    return fake_end(flags > 1 ? INVALID : made == NULL ? NO_MEMORY : 0);
}

int cuStreamDestroy_v2(ms__cu_stream stream) { return drop("cuStreamDestroy_v2", FAKE_STREAM, stream); }

int cuStreamSynchronize(ms__cu_stream stream) {
    BEGIN_IN_CONTEXT(cuStreamSynchronize);
    return fake_end(is_stream(stream) ? 0 : BAD_HANDLE);
}

int cuStreamWaitEvent(ms__cu_stream stream, ms__cu_event event, unsigned flags) {
    BEGIN_IN_CONTEXT(cuStreamWaitEvent);
    if (flags != 0) return fake_end(INVALID);
    return fake_end(is_stream(stream) && fake_find(FAKE_EVENT, event) != NULL ? 0 : BAD_HANDLE);
}

int cuEventCreate(ms__cu_event *event, unsigned flags) {
    BEGIN_IN_CONTEXT(cuEventCreate);
    if (flags != 0 && flags != MS__CUDA_EVENT_NO_TIMING) return fake_end(INVALID);
    fake_object *made = fake_make(FAKE_EVENT, fake_device_now(), 0);
    if (made != NULL) *event = (ms__cu_event)(void *)made;
    return fake_end(made == NULL ? NO_MEMORY : 0);
}

int cuEventDestroy_v2(ms__cu_event event) { return drop("cuEventDestroy_v2", FAKE_EVENT, event); }

int cuEventQuery(ms__cu_event event) {
    BEGIN_IN_CONTEXT(cuEventQuery);
    return fake_end(fake_find(FAKE_EVENT, event) != NULL ? 0 : BAD_HANDLE);
}

int cuEventRecord(ms__cu_event event, ms__cu_stream stream) {
    BEGIN_IN_CONTEXT(cuEventRecord);
    fake_object *found = fake_find(FAKE_EVENT, event);
    if (found == NULL || !is_stream(stream)) return fake_end(BAD_HANDLE);
    found->time_ns = fake_now_ns();
    return fake_end(0);
}

int cuEventElapsedTime(float *milliseconds, ms__cu_event start, ms__cu_event end) {
    BEGIN_IN_CONTEXT(cuEventElapsedTime);
    const fake_object *from = fake_find(FAKE_EVENT, start), *to = fake_find(FAKE_EVENT, end);
    if (from == NULL || to == NULL || from->time_ns == 0 || to->time_ns == 0) return fake_end(BAD_HANDLE);
    *milliseconds = (float)(to->time_ns - from->time_ns) * 1e-6F;
    return fake_end(0);
}

/* The number after a word of the image; -1 if the word is missing. */
static int number_behind(const char *image, const char *word) {
    const char *at = strstr(image, word);
    return at == NULL ? -1 : (int)strtol(at + strlen(word), NULL, 10);
}

/* The entry point after a word of the image; -1 if there is none. */
static int kernel_behind(const char *image, const char *word) {
    char entry[128];
    const char *at = strstr(image, word);
    if (at == NULL || sscanf(at + strlen(word), "%127[A-Za-z0-9_]", entry) != 1) return -1;
    return fake_kernel_find(entry);
}

/* Both kinds of image end in a NUL. */
static int read_image(const char *image, int capability, int *kernel) {
    if (strncmp(image, "FAKECUBIN\n", 10) == 0) {
        *kernel = kernel_behind(image, "\nentry=");
        return number_behind(image, "\narch=") == capability ? 0 : NO_BINARY;
    }
    int target = number_behind(image, "\n.target sm_");
    if (strstr(image, ".version") == NULL || target < 0) return BAD_IMAGE;
    *kernel = kernel_behind(image, ".entry ");
    return target <= capability ? 0 : NO_BINARY;
}

int cuModuleLoadData(ms__cu_module *module, const void *image) {
    BEGIN_IN_CONTEXT(cuModuleLoadData);
    int kernel = -1, device = fake_device_now();
    int code = read_image(image, fake_settings_now()->capability[device], &kernel);
    if (code != 0) return fake_end(code);
    fake_object *made = fake_make(FAKE_MODULE, device, 0);
    if (made == NULL) return fake_end(NO_MEMORY);
    made->kernel = kernel;
    *module = (ms__cu_module)(void *)made;
    return fake_end(0);
}

int cuModuleUnload(ms__cu_module module) { return drop("cuModuleUnload", FAKE_MODULE, module); }

/* The function of a module is the module: there is one kernel in each. */
int cuModuleGetFunction(ms__cu_function *function, ms__cu_module module, const char *name) {
    BEGIN_IN_CONTEXT(cuModuleGetFunction);
    const fake_object *found = fake_find(FAKE_MODULE, module);
    if (found == NULL) return fake_end(BAD_HANDLE);
    if (found->kernel < 0 || found->kernel != fake_kernel_find(name)) return fake_end(NOT_FOUND);
    *function = (ms__cu_function)(void *)module;
    return fake_end(0);
}

/* Arguments come as one buffer with its size, the way MemScale passes them. */
static int check_launch(const fake_object *module, void **arguments, void **extra) {
    if (module == NULL || module->device != fake_device_now()) return BAD_HANDLE;
    if (arguments != NULL || extra == NULL || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != NULL)
        return INVALID;
    return *(const size_t *)extra[3] == fake_kernel_args_bytes(module->kernel) ? 0 : INVALID;
}

int cuLaunchKernel(ms__cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, ms__cu_stream stream, void **arguments,
                   void **extra) {
    BEGIN_IN_CONTEXT(cuLaunchKernel);
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x % 32 != 0 || block_x > 1024 ||
        block_y != 1 || block_z != 1 || shared_bytes != 0 || !is_stream(stream))
        return fake_end(INVALID);
    const fake_object *module = fake_find(FAKE_MODULE, function);
    int code = check_launch(module, arguments, extra), kernel = module == NULL ? -1 : module->kernel;
    (void)fake_end(0);
    if (code == 0)
        fake_kernel_run(kernel, grid_x, block_x, extra[1]); /* without the lock, so that threads run in parallel */
    return code;
}
