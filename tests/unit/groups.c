/* groups.c - groups.h. */
#include "groups.h"

#include <stdlib.h>
#include <string.h>

#include "common/math.h"
#include "fake_gpus.h"

#define POISON 0xEE
#define WORD INT64_C(8)

static int device_now = -1;

void tensors_use_device(int device) { device_now = device; }

/* ---- Tensors ---- */

static unsigned char *take_memory(int64_t n_bytes) {
    size_t n = (size_t)ms__max(n_bytes, 1);
    unsigned char *memory = device_now < 0 ? malloc(n) : fake_alloc(device_now, n);
    CHECK(memory != NULL);
    memset(memory, POISON, n);
    return memory;
}

tensors tensors_make(uint64_t seed, const int64_t *sizes) {
    tensors t = {.seed = seed};
    for (; t.n_pieces < MAX_PIECES && sizes[t.n_pieces] >= 0; t.n_pieces++) t.sizes[t.n_pieces] = sizes[t.n_pieces];
    tensors_take(&t);
    tensors_fill(&t);
    return t;
}

tensors tensors_of_size(uint64_t seed, int64_t n_bytes) {
    const int64_t sizes[] = {n_bytes, -1};
    return tensors_make(seed, sizes);
}

void tensors_take(tensors *t) {
    for (int64_t i = 0; i < t->n_pieces; i++) t->at[i] = take_memory(t->sizes[i]);
}

/* Eight bytes at a time: pieces are large, and sanitizers are slow. */
static uint64_t word_at(const tensors *t, int64_t piece, int64_t at) {
    return (t->seed + (uint64_t)piece + 1) * UINT64_C(0x9E3779B97F4A7C15) ^ (uint64_t)at * UINT64_C(0xD1B54A32D192ED03);
}

void tensors_fill(tensors *t) {
    for (int64_t i = 0; i < t->n_pieces; i++) {
        for (int64_t at = 0; at < t->sizes[i]; at += WORD) {
            uint64_t word = word_at(t, i, at);
            memcpy(t->at[i] + at, &word, (size_t)ms__min(WORD, t->sizes[i] - at));
        }
    }
}

void tensors_poison(tensors *t) {
    for (int64_t i = 0; i < t->n_pieces; i++)
        if (t->at[i] != NULL) memset(t->at[i], POISON, (size_t)t->sizes[i]);
}

void tensors_drop_piece(tensors *t, int64_t piece) {
    if (t->at[piece] == NULL) return;
    memset(t->at[piece], POISON, (size_t)t->sizes[piece]);
    if (device_now < 0)
        free(t->at[piece]);
    else
        fake_free(t->at[piece]);
    t->at[piece] = NULL;
}

void tensors_drop(tensors *t) {
    for (int64_t i = 0; i < t->n_pieces; i++) tensors_drop_piece(t, i);
}

int64_t tensors_count_wrong(const tensors *t) {
    int64_t n_wrong = 0;
    for (int64_t i = 0; i < t->n_pieces; i++) {
        for (int64_t at = 0; t->at[i] != NULL && at < t->sizes[i]; at += WORD) {
            uint64_t wanted = word_at(t, i, at), found = wanted;
            memcpy(&found, t->at[i] + at, (size_t)ms__min(WORD, t->sizes[i] - at));
            for (uint64_t other = wanted ^ found; other != 0; other >>= 8) n_wrong += (other & 255) != 0;
        }
    }
    return n_wrong;
}

/* ---- Calls ---- */

ms_status tensors_put(tensors *t, ms_offload *engine, int64_t key, ms__stream stream) {
    ms_offload_piece pieces[MAX_PIECES];
    for (int64_t i = 0; i < t->n_pieces; i++)
        pieces[i] = (ms_offload_piece){.address = (uint64_t)(uintptr_t)t->at[i], .n_bytes = t->sizes[i]};
    return ms_offload_put(engine, key, pieces, t->n_pieces, stream, t, &t->group);
}

ms_status tensors_fetch(tensors *t, ms__stream stream) {
    uint64_t addresses[MAX_PIECES];
    for (int64_t i = 0; i < t->n_pieces; i++) addresses[i] = (uint64_t)(uintptr_t)t->at[i];
    return ms_offload_fetch(t->group, addresses, stream);
}

void tensors_bring_back(tensors *t) {
    tensors_take(t);
    CHECK_STATUS(tensors_fetch(t, 0), MS_OK);
    CHECK_STATUS(ms_offload_use(t->group, 0), MS_OK);
    CHECK_EQ_INT(tensors_count_wrong(t), 0);
}

void tensors_end(tensors *t) {
    CHECK_STATUS(ms_offload_settle(t->group, 0), MS_OK);
    tensors_drop(t);
    ms_offload_free(t->group);
    t->group = NULL;
}

/* ---- Engines ---- */

ms_offload *open_host(int64_t limit_bytes, int64_t max_pending) {
    ms_offload_options options = lab_options(limit_bytes, max_pending);
    ms_offload *engine = NULL;
    CHECK_STATUS(ms_offload_create(&options, &engine), MS_OK);
    return engine;
}

ms_offload_stats stats_of(ms_offload *engine) {
    ms_offload_stats stats = {.struct_bytes = sizeof stats};
    CHECK_STATUS(ms_offload_get_stats(engine, &stats), MS_OK);
    return stats;
}

void check_empty(ms_offload *engine) {
    ms_offload_stats stats = stats_of(engine);
    CHECK_EQ_INT(stats.n_groups, 0);
    CHECK_EQ_INT(stats.n_pending, 0);
    CHECK_EQ_INT(stats.used_bytes, 0);
    CHECK(engine->oldest == NULL && engine->newest == NULL);
    CHECK_EQ_INT(engine->n_taken_events, 0);
    CHECK_EQ_INT(engine->growing_bytes, 0);
    CHECK_EQ_INT(engine->growing_pinned_bytes, 0);
}

ms_offload_options lab_options(int64_t limit_bytes, int64_t max_pending) {
    ms_offload_options options = {.struct_bytes = sizeof options};
    CHECK_STATUS(ms_offload_options_init(&options, NULL, 0, limit_bytes), MS_OK);
    options.max_pending = max_pending;
    return options;
}

lab open_lab(const ms_offload_options *options, const ms__host_faults *faults) {
    lab l = {0};
    CHECK_STATUS(ms__host_backend_create(faults, &l.backend, &l.device), MS_OK);
    CHECK_STATUS(ms__offload_start(options, l.backend, l.device, &l.engine), MS_OK);
    return l;
}

ms__stream lab_stream(const lab *l) {
    ms__stream stream = 0;
    CHECK_STATUS(l->backend->stream_create(l->device, &stream), MS_OK);
    return stream;
}

void lab_sync(const lab *l, ms__stream stream) { CHECK_STATUS(l->backend->synchronize(l->device, stream), MS_OK); }

void lab_call(const lab *l, ms__stream stream, void (*call)(void *argument), void *argument) {
    CHECK_STATUS(ms__host_call(l->device, stream, call, argument), MS_OK);
}

static void wait_for_gate(void *argument) {
    gate *g = argument;
    while (!atomic_load(g)) ms__thread_sleep(100000);
}

void gate_close(const lab *l, ms__stream stream, gate *g) {
    atomic_store(g, false);
    lab_call(l, stream, wait_for_gate, g);
}

void gate_open(gate *g) { atomic_store(g, true); }

void let_others_run(void) { ms__thread_sleep(20000000); }

/* ---- A life ---- */

/* A failure is reported as one, and changes nothing: the same call succeeds afterwards. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        ms_status status = (call);                                                                                     \
        if (status == MS_OK) break;                                                                                    \
        CHECK(status == MS_E_CUDA || status == MS_E_NO_MEMORY);                                                        \
        CHECK(ms_error_message()[0] != '\0');                                                                          \
        n_failed++;                                                                                                    \
        CHECK_STATUS((call), MS_OK);                                                                                   \
    } while (0)

/* What is released is the oldest; NULL where nothing has to be. */
static int64_t release_all(ms_offload *engine) {
    int64_t n_failed = 0;
    void *user = engine;
    while (user != NULL) {
        user = NULL;
        TRY(ms_offload_release(engine, 0, &user));
        if (user != NULL) tensors_drop(user);
    }
    return n_failed;
}

static int64_t come_back(tensors *t) {
    int64_t n_failed = 0;
    if (t->at[0] == NULL) {
        tensors_take(t);
        TRY(tensors_fetch(t, 0));
    }
    TRY(ms_offload_use(t->group, 0));
    CHECK_EQ_INT(tensors_count_wrong(t), 0);
    tensors *next = ms_offload_next(t->group, 1);
    if (next != NULL && next->at[0] == NULL) {
        tensors_take(next);
        TRY(tensors_fetch(next, 0));
    }
    TRY(ms_offload_settle(t->group, 0));
    tensors_drop(t);
    ms_offload_free(t->group);
    return n_failed;
}

int64_t live_through(ms_offload *engine) {
    static const int64_t sizes[N_SCENES][4] = {{3000, 0, 1, -1}, {2 * MIB - 7, 512, -1}, {1, -1}};
    int64_t n_failed = 0;
    TRY(ms_offload_reserve(engine, 4096));
    for (uint64_t step = 0; step < 2; step++) {
        tensors all[N_SCENES];
        for (int64_t i = 0; i < N_SCENES; i++) {
            all[i] = tensors_make(10 * step + (uint64_t)i, sizes[i]);
            TRY(tensors_put(&all[i], engine, i, 0));
            n_failed += release_all(engine);
        }
        for (int64_t i = N_SCENES - 1; i >= 0; i--) n_failed += come_back(&all[i]);
    }
    check_empty(engine);
    return n_failed;
}
