/* cuda_backend.c - a GPU's driver as a backend of the offload engine: streams, events and copies are the driver's own.
 *
 * Host memory is pages that are mapped, pinned afterwards (cuMemHostRegister) and kept from forked children; where the
 * driver cannot pin pages, memory that it allocates itself.
 */
#include <stdlib.h>

#include "../cu/gpu.h"
#include "backend.h"

typedef struct cuda_backend {
    ms_gpu *gpu; /* borrowed */
    int64_t device;
    int64_t numa_node;
} cuda_backend;

/* Call the driver and yield its status. */
#define CALL(self, name, function, ...) report(self, name, (self)->gpu->cuda.function(__VA_ARGS__))

static ms_status report(const cuda_backend *self, const char *call, int code) {
    return code == 0 ? MS_OK : ms__cuda_fail(&self->gpu->cuda, call, code);
}

static ms__cu_stream stream_of(ms__stream stream) { return (ms__cu_stream)(uintptr_t)stream; }

/* ---- Contexts ---- */

static ms_status cuda_enter(void *object) {
    const cuda_backend *self = object;
    return ms__gpu_enter(self->gpu, self->device);
}

static ms_status cuda_leave(void *object, ms_status status) {
    const cuda_backend *self = object;
    return ms__gpu_leave(self->gpu, status);
}

/* ---- Streams and events ---- */

static ms_status cuda_stream_create(void *object, ms__stream *out) {
    const cuda_backend *self = object;
    ms__cu_stream stream = NULL;
    ms_status status = CALL(self, "cuStreamCreate", cuStreamCreate, &stream, MS__CUDA_STREAM_NON_BLOCKING);
    if (status == MS_OK) *out = (ms__stream)(uintptr_t)stream;
    return status;
}

static void cuda_stream_destroy(void *object, ms__stream stream) {
    const cuda_backend *self = object;
    (void)self->gpu->cuda.cuStreamSynchronize(stream_of(stream));
    (void)self->gpu->cuda.cuStreamDestroy_v2(stream_of(stream));
}

static ms_status cuda_event_create(void *object, ms__event *out) {
    const cuda_backend *self = object;
    ms__cu_event event = NULL;
    ms_status status = CALL(self, "cuEventCreate", cuEventCreate, &event, MS__CUDA_EVENT_NO_TIMING);
    if (status == MS_OK) *out = event;
    return status;
}

static void cuda_event_destroy(void *object, ms__event event) {
    const cuda_backend *self = object;
    (void)self->gpu->cuda.cuEventDestroy_v2(event);
}

static ms_status cuda_record(void *object, ms__event event, ms__stream stream) {
    const cuda_backend *self = object;
    return CALL(self, "cuEventRecord", cuEventRecord, event, stream_of(stream));
}

static ms_status cuda_wait(void *object, ms__stream stream, ms__event event) {
    const cuda_backend *self = object;
    return CALL(self, "cuStreamWaitEvent", cuStreamWaitEvent, stream_of(stream), event, 0);
}

static ms_status cuda_is_done(void *object, ms__event event, bool *out) {
    const cuda_backend *self = object;
    int code = self->gpu->cuda.cuEventQuery(event);
    if (code != 0 && code != MS__CUDA_NOT_READY) return report(self, "cuEventQuery", code);
    *out = code == 0;
    return MS_OK;
}

static ms_status cuda_synchronize(void *object, ms__stream stream) {
    const cuda_backend *self = object;
    return CALL(self, "cuStreamSynchronize", cuStreamSynchronize, stream_of(stream));
}

static ms_status cuda_copy(void *object, const ms__copy *copy, ms__stream stream) {
    const cuda_backend *self = object;
    size_t n = (size_t)copy->n_bytes;
    if (copy->to_device)
        return CALL(self, "cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2, copy->device, copy->host, n, stream_of(stream));
    return CALL(self, "cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2, copy->host, copy->device, n, stream_of(stream));
}

/* ---- Host memory ---- */

static ms_status take_pinned(const cuda_backend *self, ms__host_memory *host) {
    int code = self->gpu->cuda.cuMemHostAlloc(&host->memory, (size_t)host->n_bytes, MS__CUDA_HOST_PORTABLE);
    host->kind = MS__HOST_PINNED;
    return report(self, "cuMemHostAlloc", code);
}

static ms_status cuda_take_memory(void *object, int64_t n_bytes, bool is_pinned, ms__host_memory *out) {
    const cuda_backend *self = object;
    ms__host_memory host = {.n_bytes = n_bytes, .kind = is_pinned ? MS__HOST_REGISTERED : MS__HOST_PAGEABLE};
    ms_status status = ms__prim_map(n_bytes, self->numa_node, &host.memory);
    if (status == MS_OK && is_pinned &&
        self->gpu->cuda.cuMemHostRegister_v2(host.memory, (size_t)n_bytes, MS__CUDA_HOST_PORTABLE) != 0) {
        ms__prim_unmap(host.memory, n_bytes);
        status = take_pinned(self, &host);
    }
    if (status == MS_OK) *out = host;
    return status;
}

static void cuda_give_memory(void *object, const ms__host_memory *host) {
    const cuda_backend *self = object;
    if (host->kind == MS__HOST_PINNED) {
        (void)self->gpu->cuda.cuMemFreeHost(host->memory);
        return;
    }
    if (host->kind == MS__HOST_REGISTERED) (void)self->gpu->cuda.cuMemHostUnregister(host->memory);
    ms__prim_unmap(host->memory, host->n_bytes);
}

/* ---- The backend ---- */

static const ms__backend cuda_table = {.enter = cuda_enter,
                                       .leave = cuda_leave,
                                       .stream_create = cuda_stream_create,
                                       .stream_destroy = cuda_stream_destroy,
                                       .event_create = cuda_event_create,
                                       .event_destroy = cuda_event_destroy,
                                       .record = cuda_record,
                                       .wait = cuda_wait,
                                       .is_done = cuda_is_done,
                                       .synchronize = cuda_synchronize,
                                       .copy = cuda_copy,
                                       .take_memory = cuda_take_memory,
                                       .give_memory = cuda_give_memory,
                                       .destroy = free,
                                       .abandon = free};

static int64_t numa_node(const ms_gpu *gpu, int64_t device) {
    char id[32] = "";
    if (gpu->cuda.cuDeviceGetPCIBusId(id, sizeof id, gpu->devices[device].handle) != 0) return -1;
    for (char *at = id; *at != '\0'; at++) /* folders of sysfs have small letters */
        if (*at >= 'A' && *at <= 'F') *at = (char)(*at - 'A' + 'a');
    return ms__prim_numa_node(NULL, id);
}

ms_status ms__cuda_backend_create(ms_gpu *gpu, int64_t device, const ms__backend **out, void **out_self) {
    ms_status status = ms__gpu_check(gpu, device);
    if (status != MS_OK) return status;
    cuda_backend *self = calloc(1, sizeof *self);
    if (self == NULL) return ms__fail_memory(sizeof *self);
    *self = (cuda_backend){.gpu = gpu, .device = device, .numa_node = numa_node(gpu, device)};
    *out = &cuda_table;
    *out_self = self;
    return MS_OK;
}
