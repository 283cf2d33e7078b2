/* bench_offload.c - how fast the offload engine copies, on the first GPU or (without one) on the host:
 *
 *     build/c/tests/bench_offload [ROUNDS]
 *
 * For pieces of 1 to 64 MiB: 1 GiB to the host, 1 GiB back, and both at once, in groups of one piece; the median of
 * the rounds in GB/s, as JSON. Pinned memory is taken before. Both ways together is what is moved in both, over the
 * time until the later one is done.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cu/gpu.h"
#include "prim/prim.h"

#define TOTAL ((int64_t)1 << 30)
#define MAX_GROUPS 1024
#define MAX_ROUNDS 101

typedef struct bench {
    ms_gpu *gpu; /* NULL: on the host */
    ms_offload *engine;
    ms__cu_stream stream;
    uint64_t from, to; /* device memory of TOTAL each */
    int64_t piece_bytes, n_groups;
    ms_offload_group *out[MAX_GROUPS], *in[MAX_GROUPS];
} bench;

static void check(ms_status status) {
    if (status == MS_OK) return;
    (void)fprintf(stderr, "%s\n", ms_error_message());
    exit(1);
}

static void check_cuda(int code) {
    if (code == 0) return;
    (void)fprintf(stderr, "the driver returned %d\n", code);
    exit(1);
}

static uint64_t stream_of(const bench *b) { return (uint64_t)(uintptr_t)b->stream; }

static uint64_t take_memory(const bench *b) {
    ms__cu_address address = 0;
    if (b->gpu != NULL)
        check_cuda(b->gpu->cuda.cuMemAlloc_v2(&address, (size_t)TOTAL));
    else
        address = (ms__cu_address)(uintptr_t)calloc(1, (size_t)TOTAL);
    if (address == 0) check(MS_E_NO_MEMORY);
    return address;
}

static void open_bench(bench *b) {
    ms_offload_options options = {.struct_bytes = sizeof options};
    check(ms_gpu_create(NULL, &b->gpu));
    if (ms_gpu_count_devices(b->gpu) == 0) {
        ms_gpu_destroy(b->gpu);
        b->gpu = NULL;
    } else {
        check(ms__gpu_enter(b->gpu, 0)); /* for good */
        check_cuda(b->gpu->cuda.cuStreamCreate(&b->stream, MS__CUDA_STREAM_NON_BLOCKING));
    }
    b->from = take_memory(b);
    b->to = take_memory(b);
    check(ms_offload_options_init(&options, b->gpu, 0, 2 * TOTAL));
    check(ms_offload_create(&options, &b->engine));
    check(ms_offload_reserve(b->engine, 2 * TOTAL));
}

static void put_all(bench *b, ms_offload_group **groups) {
    for (int64_t i = 0; i < b->n_groups; i++) {
        const ms_offload_piece piece = {b->from + (uint64_t)(i * b->piece_bytes), b->piece_bytes};
        check(ms_offload_put(b->engine, i, &piece, 1, stream_of(b), groups, &groups[i]));
    }
}

static void fetch_all(bench *b) {
    for (int64_t i = 0; i < b->n_groups; i++) {
        const uint64_t address = b->to + (uint64_t)(i * b->piece_bytes);
        check(ms_offload_fetch(b->in[i], &address, stream_of(b)));
    }
}

/* Until all copies of these groups are done. */
static void finish(bench *b, ms_offload_group **groups) {
    for (int64_t i = 0; i < b->n_groups; i++) check(ms_offload_settle(groups[i], stream_of(b)));
    if (b->gpu != NULL) check_cuda(b->gpu->cuda.cuStreamSynchronize(b->stream));
}

static void free_all(bench *b, ms_offload_group **groups) {
    for (int64_t i = 0; i < b->n_groups; i++) ms_offload_free(groups[i]);
}

enum { OUT, BACK, BOTH, N_WAYS };

/* GB/s of one round. */
static double time_round(bench *b, int way) {
    put_all(b, b->in);
    finish(b, b->in);
    int64_t start = ms__prim_now_ns(), n_bytes = (way == BOTH ? 2 : 1) * b->n_groups * b->piece_bytes;
    if (way != OUT) fetch_all(b);
    if (way != BACK) put_all(b, b->out);
    if (way != BACK) finish(b, b->out);
    finish(b, b->in);
    int64_t ns = ms__prim_now_ns() - start;
    if (way != BACK) free_all(b, b->out);
    free_all(b, b->in);
    return (double)n_bytes / (double)ns;
}

static int by_rate(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(bench *b, int way, int n_rounds) {
    double rates[MAX_ROUNDS];
    (void)time_round(b, way);
    for (int i = 0; i < n_rounds; i++) rates[i] = time_round(b, way);
    qsort(rates, (size_t)n_rounds, sizeof *rates, by_rate);
    return rates[n_rounds / 2];
}

int main(int argc, char **argv) {
    static bench b;
    ms_offload_stats stats = {.struct_bytes = sizeof stats};
    int n_rounds = argc > 1 ? atoi(argv[1]) : 9;
    if (n_rounds < 1 || n_rounds > MAX_ROUNDS) n_rounds = 9;
    open_bench(&b);
    (void)printf("{\"device\": \"%s\", \"rounds\": %d, \"rows\": [", b.gpu == NULL ? "host" : "cuda", n_rounds);
    for (b.piece_bytes = 1 << 20; b.piece_bytes <= 64 << 20; b.piece_bytes *= 4) {
        b.n_groups = TOTAL / b.piece_bytes;
        (void)printf("%s\n  {\"piece_bytes\": %lld, \"out\": %.1f, \"back\": %.1f, \"both\": %.1f}",
                     b.piece_bytes == 1 << 20 ? "" : ",", (long long)b.piece_bytes, median_of(&b, OUT, n_rounds),
                     median_of(&b, BACK, n_rounds), median_of(&b, BOTH, n_rounds));
    }
    check(ms_offload_get_stats(b.engine, &stats));
    (void)printf("], \"pinned_bytes\": %lld, \"n_grows\": %lld}\n", (long long)stats.pinned_bytes,
                 (long long)stats.n_grows);
    ms_offload_destroy(b.engine);
    return 0;
}
