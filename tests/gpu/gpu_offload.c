/* gpu_offload.c - the offload engine on a real GPU: what goes to the host comes back, while device memory is written
 * again as soon as the engine says that it is free.
 *
 * Steps as in training: groups of several sizes go out on a stream that goes on; their device memory is overwritten in
 * the order of that stream; they come back in the reverse order, some of them ahead of time. The checksum of each is
 * taken on the device.
 */
#include "gpu_tests.h"

#include "cu/gpu.h"

#define N_GROUPS 24
#define N_STEPS 20
#define LARGEST ((size_t)24 << 20)

typedef struct tensor {
    ms__cu_address memory;
    size_t n_bytes;
    uint64_t sum;
    ms_offload_group *group;
    bool is_out; /* its device memory is somebody else's */
} tensor;

typedef struct lab {
    ms_gpu *gpu;
    ms_offload *engine;
    ms__cu_stream stream;
    tensor tensors[N_GROUPS];
} lab;

static uint64_t stream_of(const lab *l) { return (uint64_t)(uintptr_t)l->stream; }

static uint64_t sum_of(const lab *l, const tensor *t) {
    uint64_t sum = 0;
    CHECK_STATUS(ms_gpu_checksum(l->gpu, 0, t->memory, t->n_bytes, stream_of(l), &sum), MS_OK);
    return sum;
}

/* Sizes are odd on purpose; the largest is many copies long. */
static void open_lab(lab *l) {
    ms_offload_options options = {.struct_bytes = sizeof options};
    *l = (lab){.gpu = open_gpu()};
    CHECK_STATUS(ms_offload_options_init(&options, l->gpu, 0, (int64_t)N_GROUPS * LARGEST), MS_OK);
    CHECK_STATUS(ms_offload_create(&options, &l->engine), MS_OK);
    CHECK_STATUS(ms__gpu_enter(l->gpu, 0), MS_OK);
    CHECK(l->gpu->cuda.cuStreamCreate(&l->stream, MS__CUDA_STREAM_NON_BLOCKING) == 0);
    for (int i = 0; i < N_GROUPS; i++) {
        l->tensors[i].n_bytes = LARGEST / (size_t)(i % 7 + 1) - (size_t)(i % 3);
        CHECK(l->gpu->cuda.cuMemAlloc_v2(&l->tensors[i].memory, LARGEST) == 0);
    }
    CHECK_STATUS(ms__gpu_leave(l->gpu, MS_OK), MS_OK);
}

static void close_lab(lab *l) {
    CHECK_STATUS(ms__gpu_enter(l->gpu, 0), MS_OK);
    CHECK(l->gpu->cuda.cuStreamSynchronize(l->stream) == 0);
    for (int i = 0; i < N_GROUPS; i++) CHECK(l->gpu->cuda.cuMemFree_v2(l->tensors[i].memory) == 0);
    CHECK(l->gpu->cuda.cuStreamDestroy_v2(l->stream) == 0);
    CHECK_STATUS(ms__gpu_leave(l->gpu, MS_OK), MS_OK);
    ms_offload_destroy(l->engine);
    ms_gpu_destroy(l->gpu);
}

static void overwrite(const lab *l, const tensor *t, unsigned char value) {
    CHECK_STATUS(ms__gpu_enter(l->gpu, 0), MS_OK);
    CHECK(l->gpu->cuda.cuMemsetD8Async(t->memory, value, t->n_bytes, l->stream) == 0);
    CHECK_STATUS(ms__gpu_leave(l->gpu, MS_OK), MS_OK);
}

static void release_some(const lab *l) {
    void *user = NULL;
    CHECK_STATUS(ms_offload_release(l->engine, stream_of(l), &user), MS_OK);
    while (user != NULL) {
        tensor *t = user;
        overwrite(l, t, 0xEE);
        t->is_out = true;
        CHECK_STATUS(ms_offload_release(l->engine, stream_of(l), &user), MS_OK);
    }
}

static void forward(lab *l, int step) {
    for (int i = 0; i < N_GROUPS; i++) {
        tensor *t = &l->tensors[i];
        overwrite(l, t, (unsigned char)(step * N_GROUPS + i));
        t->sum = sum_of(l, t);
        t->is_out = false;
        const ms_offload_piece pieces[] = {{t->memory, (int64_t)(t->n_bytes / 2)},
                                           {t->memory + t->n_bytes / 2, (int64_t)(t->n_bytes - t->n_bytes / 2)}};
        CHECK_STATUS(ms_offload_put(l->engine, i, pieces, 2, stream_of(l), t, &t->group), MS_OK);
        release_some(l);
    }
}

static void fetch(const lab *l, tensor *t) {
    const uint64_t addresses[] = {t->memory, t->memory + t->n_bytes / 2};
    overwrite(l, t, 0xDD);
    CHECK_STATUS(ms_offload_fetch(t->group, addresses, stream_of(l)), MS_OK);
    t->is_out = false;
}

static void backward(lab *l) {
    for (int i = N_GROUPS - 1; i >= 0; i--) {
        tensor *t = &l->tensors[i];
        if (t->is_out) fetch(l, t);
        CHECK_STATUS(ms_offload_use(t->group, stream_of(l)), MS_OK);
        for (int64_t ahead = 1; ahead <= 2; ahead++) {
            tensor *next = ms_offload_next(t->group, ahead);
            if (next != NULL) fetch(l, next);
        }
        CHECK_EQ_U64(sum_of(l, t), t->sum);
        ms_offload_free(t->group);
    }
}

TEST(what_is_offloaded_comes_back) {
    lab l;
    ms_offload_stats stats = {.struct_bytes = sizeof stats};
    open_lab(&l);
    int64_t grown = 0;
    for (int step = 0; step < N_STEPS; step++) {
        forward(&l, step);
        backward(&l);
        CHECK_STATUS(ms_offload_get_stats(l.engine, &stats), MS_OK);
        if (step == 1) grown = stats.n_grows;
    }
    CHECK(stats.n_groups == 0 && stats.n_pending == 0 && stats.used_bytes == 0);
    CHECK(stats.n_refused == 0 && stats.n_fetches > 0);
    CHECK_EQ_INT(stats.n_grows, grown); /* no host memory is taken after the second step */
    CHECK_EQ_INT(stats.pinned_bytes, stats.pool_bytes);
    close_lab(&l);
}

SUITE(gpu_offload, CASE(what_is_offloaded_comes_back));
