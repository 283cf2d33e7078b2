/* link.c - ms_gpu_measure_link: how fast copies between pinned host memory and a device are, and the pinning itself.
 *
 * Everything it allocates is in one structure that is freed on every path. Copies run on their own streams, which do
 * not wait for others, and are timed by events on the device. The result is the median of several, so one disturbance
 * does not count. The bytes that were copied to the device and back are compared by checksum.
 */
#include <stdlib.h>
#include <string.h>

#include "../common/structs.h"
#include "../prim/prim.h"
#include "device.h"

#define N_COPIES 7 /* odd: the median is one of them */
#define LEAST_BYTES 4096

typedef struct bench {
    ms_gpu *gpu;
    size_t n_bytes;
    void *sent, *back;          /* pinned */
    ms__cu_address near, other; /* on the device: what was sent, and a second one for copies both ways */
    ms__cu_stream streams[2];
    ms__cu_event start, ends[2];
    int64_t pinning_ns; /* the time that allocating pinned memory took */
} bench;

/* Call the driver and yield its status. */
#define CALL(b, name, function, ...) report(b, name, (b)->gpu->cuda.function(__VA_ARGS__))

static ms_status report(const bench *b, const char *call, int code) {
    return code == 0 ? MS_OK : ms__cuda_fail(&b->gpu->cuda, call, code);
}

static ms_status take_pinned(bench *b, void **out) {
    int64_t start = ms__prim_now_ns();
    int code = b->gpu->cuda.cuMemHostAlloc(out, b->n_bytes, 0);
    b->pinning_ns += ms__prim_now_ns() - start;
    if (code == MS__CUDA_OUT_OF_MEMORY) return ms__fail_memory(b->n_bytes);
    return report(b, "cuMemHostAlloc", code);
}

static ms_status take_all(bench *b) {
    ms_status status = take_pinned(b, &b->sent);
    if (status == MS_OK) status = take_pinned(b, &b->back);
    if (status == MS_OK) status = CALL(b, "cuMemAlloc", cuMemAlloc_v2, &b->near, b->n_bytes);
    if (status == MS_OK) status = CALL(b, "cuMemAlloc", cuMemAlloc_v2, &b->other, b->n_bytes);
    if (status == MS_OK) status = CALL(b, "cuEventCreate", cuEventCreate, &b->start, 0);
    for (int i = 0; i < 2 && status == MS_OK; i++) {
        status = CALL(b, "cuStreamCreate", cuStreamCreate, &b->streams[i], MS__CUDA_STREAM_NON_BLOCKING);
        if (status == MS_OK) status = CALL(b, "cuEventCreate", cuEventCreate, &b->ends[i], 0);
    }
    return status;
}

/* Copies that are still running must end before their memory is freed. */
static void give_back_all(bench *b) {
    const ms__cuda *cuda = &b->gpu->cuda;
    for (int i = 0; i < 2; i++) {
        if (b->streams[i] != NULL) (void)cuda->cuStreamSynchronize(b->streams[i]);
        if (b->streams[i] != NULL) (void)cuda->cuStreamDestroy_v2(b->streams[i]);
        if (b->ends[i] != NULL) (void)cuda->cuEventDestroy_v2(b->ends[i]);
    }
    if (b->start != NULL) (void)cuda->cuEventDestroy_v2(b->start);
    if (b->other != 0) (void)cuda->cuMemFree_v2(b->other);
    if (b->near != 0) (void)cuda->cuMemFree_v2(b->near);
    if (b->back != NULL) (void)cuda->cuMemFreeHost(b->back);
    if (b->sent != NULL) (void)cuda->cuMemFreeHost(b->sent);
}

enum { THERE = 1, BACK = 2 };

/* Queue copies, one direction or both at once, each on its stream after a common start. */
static ms_status queue_copies(const bench *b, int directions) {
    ms__cu_address to = directions == (THERE | BACK) ? b->other : b->near;
    ms_status status = CALL(b, "cuEventRecord", cuEventRecord, b->start, b->streams[0]);
    if (status == MS_OK) status = CALL(b, "cuStreamWaitEvent", cuStreamWaitEvent, b->streams[1], b->start, 0);
    if (status == MS_OK && (directions & THERE) != 0)
        status = CALL(b, "cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2, to, b->sent, b->n_bytes, b->streams[0]);
    if (status == MS_OK && (directions & BACK) != 0)
        status = CALL(b, "cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2, b->back, b->near, b->n_bytes, b->streams[1]);
    for (int i = 0; i < 2 && status == MS_OK; i++)
        status = CALL(b, "cuEventRecord", cuEventRecord, b->ends[i], b->streams[i]);
    return status;
}

/* One timed round, in milliseconds: until the later of the two streams is done. */
static ms_status time_copies(const bench *b, int directions, float *out_ms) {
    float longest = 0;
    ms_status status = queue_copies(b, directions);
    for (int i = 0; i < 2 && status == MS_OK; i++) {
        float ms = 0;
        status = CALL(b, "cuStreamSynchronize", cuStreamSynchronize, b->streams[i]);
        if (status == MS_OK) status = CALL(b, "cuEventElapsedTime", cuEventElapsedTime, &ms, b->start, b->ends[i]);
        if (ms > longest) longest = ms;
    }
    *out_ms = longest;
    return status;
}

static int by_time(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Bytes per second. */
static int64_t rate_of(double n_bytes, double ms) {
    double rate = n_bytes * 1000 / (ms > 1e-6 ? ms : 1e-6);
    return rate < (double)(INT64_MAX / 2) ? (int64_t)rate : INT64_MAX / 2;
}

/* Bytes per second: the median of several rounds after one that warms up. */
static ms_status measure(const bench *b, int directions, int64_t *out_rate) {
    float times[N_COPIES];
    ms_status status = time_copies(b, directions, &times[0]);
    for (int i = 0; i < N_COPIES && status == MS_OK; i++) status = time_copies(b, directions, &times[i]);
    if (status != MS_OK) return status;
    qsort(times, N_COPIES, sizeof *times, by_time);
    *out_rate = rate_of((double)b->n_bytes * (directions == (THERE | BACK) ? 2 : 1), times[N_COPIES / 2]);
    return MS_OK;
}

static void fill(void *memory, size_t n_bytes) {
    unsigned char *bytes = memory;
    for (size_t at = 0; at < n_bytes; at += 8) {
        ms__u64 word = ms__checksum_mix(at, n_bytes);
        memcpy(bytes + at, &word, n_bytes - at < 8 ? n_bytes - at : 8);
    }
}

/* Did the bytes of `from` come back as they were sent? */
static ms_status check_back(const bench *b, ms__cu_address from, int64_t *intact) {
    memset(b->back, 0, b->n_bytes);
    ms_status status = CALL(b, "cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2, b->back, from, b->n_bytes, b->streams[0]);
    if (status == MS_OK) status = CALL(b, "cuStreamSynchronize", cuStreamSynchronize, b->streams[0]);
    if (status == MS_OK && ms_checksum(b->back, b->n_bytes) != ms_checksum(b->sent, b->n_bytes)) *intact = 0;
    return status;
}

static ms_status run(bench *b, ms_gpu_link *out) {
    ms_status status = take_all(b);
    if (status != MS_OK) return status;
    out->pinning_rate = rate_of(2 * (double)b->n_bytes, (double)b->pinning_ns * 1e-6);
    fill(b->sent, b->n_bytes);
    status = measure(b, THERE, &out->to_device_rate);
    if (status == MS_OK) status = measure(b, BACK, &out->from_device_rate);
    if (status == MS_OK) status = measure(b, THERE | BACK, &out->both_rate);
    if (status == MS_OK) status = check_back(b, b->near, &out->intact);
    if (status == MS_OK) status = check_back(b, b->other, &out->intact);
    return status;
}

ms_status ms_gpu_measure_link(ms_gpu *gpu, int64_t device, int64_t n_bytes, ms_gpu_link *out) {
    ms_status status = ms__struct_check(MS__STRUCT(ms_gpu_link), out);
    if (status != MS_OK) return status;
    if (n_bytes < LEAST_BYTES)
        return ms__fail(MS_E_INVALID, "ms_gpu_measure_link: n_bytes must be at least %d", LEAST_BYTES);
    status = ms__gpu_enter(gpu, device);
    if (status != MS_OK) return status;
    bench b = {.gpu = gpu, .n_bytes = (size_t)n_bytes};
    ms_gpu_link found = {.n_bytes = n_bytes, .intact = 1};
    status = run(&b, &found);
    give_back_all(&b);
    status = ms__gpu_leave(gpu, status);
    return status == MS_OK ? ms__struct_write(MS__STRUCT(ms_gpu_link), &found, out) : status;
}
