/* device_checksum.c - ms_gpu_checksum: the checksum of device memory, by the kernel or, where none loads, on the
 * host. */
#include <stdlib.h>

#include "../common/log.h"
#include "../kernels/ref/ref.h"
#include "device.h"

#define N_THREADS 256
#define MAX_BLOCKS 2048               /* enough for the largest device; threads take further words in turn */
#define PIECE_BYTES ((size_t)4 << 20) /* that the host copies at once; a multiple of 8 */

_Static_assert(sizeof(ms__u64) <= MS__SPARE_BYTES, "the sum fits into the spare memory");

/* Queue the kernel and wait; `args.sum` is on the device. */
static ms_status sum_there(ms_gpu *gpu, int64_t device, ms__checksum_args args, uint64_t stream, uint64_t *out) {
    const ms__cuda *cuda = &gpu->cuda;
    ms__cu_stream queue = (ms__cu_stream)(uintptr_t)stream;
    uint64_t n_words = (args.n_bytes + 7) / 8, n_blocks = (n_words + N_THREADS - 1) / N_THREADS;
    ms__launch launch = {.n_blocks = n_blocks < MAX_BLOCKS ? (unsigned)n_blocks : MAX_BLOCKS,
                         .n_threads = N_THREADS,
                         .args = &args,
                         .args_bytes = sizeof args,
                         .stream = stream};
    const char *call = "cuMemsetD8Async";
    int code = cuda->cuMemsetD8Async(args.sum, 0, sizeof *out, queue);
    if (code == 0) {
        ms_status status = ms__kernel_launch(gpu, device, MS__KERNEL_CHECKSUM, &launch);
        if (status != MS_OK) return status;
        call = "cuMemcpyDtoHAsync";
        code = cuda->cuMemcpyDtoHAsync_v2(out, args.sum, sizeof *out, queue);
    }
    if (code == 0) {
        call = "cuStreamSynchronize";
        code = cuda->cuStreamSynchronize(queue);
    }
    return code == 0 ? MS_OK : ms__cuda_fail(cuda, call, code);
}

static ms_status sum_by_kernel(ms_gpu *gpu, int64_t device, ms__checksum_args args, uint64_t stream, uint64_t *out) {
    uint64_t sum = 0;
    ms_status status = ms__gpu_take_spare(gpu, device, &args.sum);
    if (status != MS_OK) return status;
    status = sum_there(gpu, device, args, stream, &sum);
    ms__gpu_give_spare(gpu, device, args.sum, status == MS_OK);
    if (status == MS_OK) *out = sum;
    return status;
}

/* Copy piece by piece and sum on the host. */
static ms_status sum_on_host(ms_gpu *gpu, ms__checksum_args args, uint64_t stream, uint64_t *out) {
    ms__cu_stream queue = (ms__cu_stream)(uintptr_t)stream;
    size_t piece_bytes = args.n_bytes < PIECE_BYTES ? (size_t)args.n_bytes : PIECE_BYTES;
    void *piece = malloc(piece_bytes);
    if (piece == NULL) return ms__fail_memory(piece_bytes);
    uint64_t sum = 0;
    ms_status status = MS_OK;
    for (uint64_t at = 0; at < args.n_bytes && status == MS_OK; at += piece_bytes) {
        size_t n = args.n_bytes - at < piece_bytes ? (size_t)(args.n_bytes - at) : piece_bytes;
        int code = gpu->cuda.cuMemcpyDtoHAsync_v2(piece, args.data + at, n, queue);
        if (code != 0) {
            status = ms__cuda_fail(&gpu->cuda, "cuMemcpyDtoHAsync", code);
        } else if ((code = gpu->cuda.cuStreamSynchronize(queue)) != 0) {
            status = ms__cuda_fail(&gpu->cuda, "cuStreamSynchronize", code);
        } else {
            sum += ms__checksum_sum(piece, n, at / 8);
        }
    }
    free(piece);
    if (status == MS_OK) *out = sum;
    return status;
}

ms_status ms_gpu_checksum(ms_gpu *gpu, int64_t device, uint64_t address, uint64_t n_bytes, uint64_t stream,
                          uint64_t *out) {
    if (out == NULL) return ms__fail(MS_E_INVALID, "ms_gpu_checksum: out is NULL");
    ms_status status = ms__gpu_check(gpu, device);
    if (status != MS_OK) return status;
    if (n_bytes > 0 && (address == 0 || address + n_bytes < address || n_bytes > SIZE_MAX / 2))
        return ms__fail(MS_E_INVALID, "ms_gpu_checksum: the range of device memory is invalid");
    uint64_t sum = 0;
    ms__checksum_args args = {.data = address, .n_bytes = n_bytes};
    if (n_bytes > 0) {
        status = ms__gpu_enter(gpu, device);
        if (status != MS_OK) return status;
        status = sum_by_kernel(gpu, device, args, stream, &sum);
        if (status == MS_E_UNAVAILABLE) {
            if (!atomic_flag_test_and_set(&gpu->logged_fallback))
                ms__log(MS_LOG_INFO, "checksums are computed on the host: %s", ms_error_message());
            status = sum_on_host(gpu, args, stream, &sum);
        }
        status = ms__gpu_leave(gpu, status);
    }
    if (status == MS_OK) *out = ms__checksum_finish(sum, n_bytes);
    return status;
}
