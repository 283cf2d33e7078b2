/* offload_stress.c - several threads share one offload engine on the host, with streams that are late at random.
 *
 *   memscale_offload_stress       MEMSCALE_OFFLOAD_N calls of the engine (100000), from MEMSCALE_OFFLOAD_SEED (1)
 *
 * Each thread has a stream of its own, one of them stream 0. Filling, checking and overwriting device memory are work
 * of these streams, in their order, as kernels are. Groups are in a table; any thread may take the next step with any
 * of them while it has the lock of its record. Device memory is overwritten right before it is freed, so a copy or a
 * check at the wrong time finds other bytes.
 *
 * Two parts: with late streams and a pool of many small segments; and several engines one after the other, with calls
 * that fail at random and pools that grow. In both the limit refuses some puts.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math.h"
#include "offload/host_backend.h"
#include "offload/offload.h"

#define N_THREADS 4
#define N_RECORDS 24
#define N_KEYS 12
#define MAX_PIECES 3
#define WORD ((int64_t)sizeof(uint64_t))
#define MAX_WORDS 700 /* of a usual piece */
#define MAX_LARGE_WORDS 40000
#define LARGE_PARTS 6 /* one piece in so many is large, where the pool grows */
#define SEGMENT_BYTES 16384
#define LIMIT_BYTES (10 * SEGMENT_BYTES)
#define GROWING_LIMIT_BYTES ((2 << 20) + 4 * SEGMENT_BYTES) /* one step of growth, and a part */
#define MAX_DELAY_NS 20000
#define FAIL_PARTS 200
#define N_ROUNDS 20     /* of the second part: threads begin at once, and the pool grows */
#define FEW_CALLS 10000 /* of a part: with fewer, maybe no put is refused */

/* ---- Device memory ---- */

/* The tensors of one group, on the device. */
typedef struct block {
    int64_t n_pieces;
    int64_t n_words[MAX_PIECES];
    uint64_t *at[MAX_PIECES];
    uint64_t seed;
} block;

static _Atomic(int64_t) n_checks, n_wrong;

static _Noreturn void give_up(const char *why) {
    (void)fprintf(stderr, "offload_stress: %s; %s\n", why, ms_error_message());
    exit(EXIT_FAILURE);
}

static void *allocate(size_t n_bytes) {
    void *memory = malloc(n_bytes);
    if (memory == NULL) give_up("out of memory");
    return memory;
}

static uint64_t word_at(const block *b, int64_t piece, int64_t i) {
    return (b->seed + (uint64_t)piece) * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)i * UINT64_C(0xD1B54A32D192ED03);
}

/* Work of streams. */

static void fill(void *argument) {
    block *b = argument;
    for (int64_t p = 0; p < b->n_pieces; p++)
        for (int64_t i = 0; i < b->n_words[p]; i++) b->at[p][i] = word_at(b, p, i);
}

static void check(void *argument) {
    const block *b = argument;
    int64_t n = 0;
    for (int64_t p = 0; p < b->n_pieces; p++)
        for (int64_t i = 0; i < b->n_words[p]; i++) n += b->at[p][i] != word_at(b, p, i);
    (void)atomic_fetch_add(&n_checks, 1);
    (void)atomic_fetch_add(&n_wrong, n * WORD);
}

static void poison(void *argument) {
    const block *b = argument;
    for (int64_t p = 0; p < b->n_pieces; p++) memset(b->at[p], 0xEE, (size_t)(b->n_words[p] * WORD));
}

static void drop(void *argument) {
    block *b = argument;
    poison(b);
    for (int64_t p = 0; p < b->n_pieces; p++) free(b->at[p]);
    free(b);
}

/* ---- What the threads share ---- */

typedef enum state {
    EMPTY,  /* no group */
    HELD,   /* its tensors are on the device until they are released */
    AWAY,   /* they are not */
    FETCHED /* they come back to new memory */
} state;

typedef struct record {
    ms__mutex lock;    /* of all that follows */
    uint64_t n_groups; /* so far: part of the `user`, which tells a group from earlier ones of the record */
    state state;
    ms_offload_group *group;
    block *block; /* on the device, where it is */
    block shape;
} record;

static record table[N_RECORDS];
static ms_offload *engine;
static const ms__backend *backend;
static void *device;
static _Atomic(int64_t) n_calls;

typedef struct worker {
    ms__thread thread;
    ms__stream stream;
    uint64_t random;
    int64_t until; /* so many calls of the engine */
    bool has_large;
} worker;

static int64_t up_to(worker *w, int64_t most) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (int64_t)((w->random >> 11) % ((uint64_t)most + 1));
}

static void on_stream(const worker *w, void (*call)(void *argument), void *argument) {
    if (ms__host_call(device, w->stream, call, argument) != MS_OK) give_up("cannot queue a call");
}

/* An engine call that may fail, in the second part; only in ways that are documented. */
static bool did(ms_status status) {
    (void)atomic_fetch_add(&n_calls, 1);
    if (status != MS_OK && status != MS_E_CUDA && status != MS_E_NO_MEMORY) give_up("an unexpected status");
    return status == MS_OK;
}

/* A number and not a pointer: the record may have another group by the time it is looked at. Never NULL. */
static void *user_of(const record *r) {
    return (void *)(uintptr_t)((uint64_t)(r - table) + N_RECORDS * r->n_groups + N_RECORDS);
}

/* The record of a user, locked; NULL: the group is gone. */
static record *lock_user(void *user) {
    record *r = &table[(uint64_t)(uintptr_t)user % N_RECORDS];
    ms__lock(&r->lock);
    if (r->state != EMPTY && user_of(r) == user) return r;
    ms__unlock(&r->lock);
    return NULL;
}

/* ---- One step with a record that is locked ---- */

static block *take_block(const block *shape) {
    block *b = allocate(sizeof *b);
    *b = *shape;
    for (int64_t p = 0; p < b->n_pieces; p++) b->at[p] = allocate((size_t)(b->n_words[p] * WORD + 1));
    return b;
}

static void drop_block(const worker *w, record *r) {
    if (r->block != NULL) on_stream(w, drop, r->block);
    r->block = NULL;
}

static void choose_shape(worker *w, block *shape) {
    *shape = (block){.n_pieces = 1 + up_to(w, MAX_PIECES - 1), .seed = w->random};
    for (int64_t p = 0; p < shape->n_pieces; p++)
        shape->n_words[p] = up_to(w, w->has_large && up_to(w, LARGE_PARTS - 1) == 0 ? MAX_LARGE_WORDS : MAX_WORDS);
}

static void do_put(worker *w, record *r) {
    ms_offload_piece pieces[MAX_PIECES];
    choose_shape(w, &r->shape);
    r->block = take_block(&r->shape);
    on_stream(w, fill, r->block);
    for (int64_t p = 0; p < r->shape.n_pieces; p++)
        pieces[p] =
            (ms_offload_piece){.address = (uint64_t)(uintptr_t)r->block->at[p], .n_bytes = r->shape.n_words[p] * WORD};
    r->n_groups++;
    if (did(ms_offload_put(engine, (r - table) % N_KEYS, pieces, r->shape.n_pieces, w->stream, user_of(r), &r->group)))
        r->state = HELD;
    else
        drop_block(w, r); /* no copy of it is in flight */
}

/* Without a use, or after it. */
static void do_free(worker *w, record *r) {
    if (r->block != NULL && !did(ms_offload_settle(r->group, w->stream))) return;
    drop_block(w, r);
    ms_offload_free(r->group);
    (void)atomic_fetch_add(&n_calls, 1);
    r->state = EMPTY;
}

static void do_fetch(worker *w, record *r) {
    uint64_t addresses[MAX_PIECES];
    block *b = r->state == FETCHED ? r->block : take_block(&r->shape);
    if (b != r->block) on_stream(w, poison, b); /* its memory is free after this */
    for (int64_t p = 0; p < b->n_pieces; p++) addresses[p] = (uint64_t)(uintptr_t)b->at[p];
    bool is_done = did(ms_offload_fetch(r->group, addresses, w->stream));
    if (is_done) {
        r->block = b;
        r->state = FETCHED;
    } else if (b != r->block) {
        on_stream(w, drop, b);
    }
}

/* On the device, or on its way there. Afterwards its memory is free again, and the group may go or stay. */
static void do_use(worker *w, record *r) {
    if (!did(ms_offload_use(r->group, w->stream))) return;
    on_stream(w, check, r->block);
    drop_block(w, r);
    r->state = AWAY;
    if (up_to(w, 2) > 0) do_free(w, r);
}

/* ---- Steps with others ---- */

/* As a layer does in forward: what was copied is freed on this thread's stream, whoever put it. */
static void release(worker *w) {
    void *user = w;
    while (user != NULL) {
        user = NULL;
        if (!did(ms_offload_release(engine, w->stream, &user)) || user == NULL) return;
        record *r = lock_user(user);
        if (r == NULL) continue; /* used and freed by another thread, before we came */
        if (r->state == HELD) {
            drop_block(w, r);
            r->state = AWAY;
        }
        ms__unlock(&r->lock);
    }
}

static void prefetch(worker *w, void *user) {
    record *r = user == NULL ? NULL : lock_user(user);
    if (r == NULL) return;
    if (r->state == AWAY) do_fetch(w, r);
    ms__unlock(&r->lock);
}

static void step(worker *w) {
    record *r = &table[up_to(w, N_RECORDS - 1)];
    int64_t chance = up_to(w, 99);
    void *next = NULL;
    ms__lock(&r->lock);
    state before = r->state;
    if (before == EMPTY) {
        do_put(w, r);
    } else if (chance < 8) {
        do_free(w, r);
    } else if (before == AWAY || (before == FETCHED && chance < 16)) {
        do_fetch(w, r);
        if (r->state == FETCHED && chance < 60) next = ms_offload_next(r->group, 1 + chance % 2);
    } else if (before == FETCHED || chance < 30) {
        next = ms_offload_next(r->group, 1 + chance % 3);
        do_use(w, r);
    }
    ms__unlock(&r->lock);
    if (before == EMPTY || before == HELD) release(w);
    prefetch(w, next);
}

static void *work(void *argument) {
    worker *w = argument;
    while (atomic_load(&n_calls) < w->until) step(w);
    return NULL;
}

/* ---- The two parts ---- */

/* Many small segments, so that most groups lie across some; the engine itself would grow by more at once. */
static void add_segments(void) {
    for (int64_t i = 0; i < LIMIT_BYTES / SEGMENT_BYTES; i++) {
        ms__host_memory host = {0};
        if (backend->take_memory(device, SEGMENT_BYTES, true, &host) != MS_OK ||
            ms__pool_add(&engine->pool, &host) != MS_OK)
            give_up("cannot add a segment");
    }
}

static void open_engine(const ms__host_faults *faults, int64_t limit_bytes) {
    ms_offload_options options = {.struct_bytes = sizeof options};
    if (ms_offload_options_init(&options, NULL, 0, limit_bytes) != MS_OK) give_up("no options");
    do { /* the second part's calls may fail */
        if (ms__host_backend_create(faults, &backend, &device) != MS_OK) give_up("no backend");
    } while (ms__offload_start(&options, backend, device, &engine) != MS_OK);
}

static bool is_equal(const char *what, int64_t found, int64_t wanted) {
    if (found != wanted) (void)fprintf(stderr, "%s: %" PRId64 ", not %" PRId64 "\n", what, found, wanted);
    return found == wanted;
}

/* Of all engines of a part. */
static ms_offload_stats totals;

static void add_up(const ms_offload_stats *stats) {
    totals.n_puts += stats->n_puts;
    totals.n_refused += stats->n_refused;
    totals.n_fetches += stats->n_fetches;
    totals.n_late += stats->n_late;
    totals.n_waits += stats->n_waits;
    totals.n_grows += stats->n_grows;
}

/* Everything is freed; streams are empty; nothing is left. */
static bool close_engine(worker *workers, int64_t limit_bytes) {
    worker last = {.stream = 0};
    ms_offload_stats stats = {.struct_bytes = sizeof stats};
    ms__host_stop_failing(device);
    for (int i = 0; i < N_RECORDS; i++)
        if (table[i].state != EMPTY) do_free(&last, &table[i]);
    for (int i = 1; i < N_THREADS; i++) backend->stream_destroy(device, workers[i].stream);
    if (ms_offload_get_stats(engine, &stats) != MS_OK) give_up("no counts");
    ms_offload_destroy(engine);
    add_up(&stats);
    bool is_fine = is_equal("bytes of the pool in use", stats.used_bytes, 0);
    is_fine = is_equal("groups", stats.n_groups, 0) && is_fine;
    is_fine = is_equal("groups on their way", stats.n_pending, 0) && is_fine;
    is_fine = is_equal("pool over its limit", ms__max(stats.pool_bytes - limit_bytes, 0), 0) && is_fine;
    return is_equal("wrong bytes", atomic_exchange(&n_wrong, 0), 0) && is_fine;
}

/* One engine, for n calls. */
static bool run_round(int64_t n, uint64_t seed, bool fails) {
    const ms__host_faults faults = {.seed = seed, .max_delay_ns = MAX_DELAY_NS, .fail_parts = fails ? FAIL_PARTS : 0};
    int64_t limit_bytes = fails ? GROWING_LIMIT_BYTES : LIMIT_BYTES;
    static worker workers[N_THREADS];
    atomic_store(&n_calls, 0);
    open_engine(&faults, limit_bytes);
    if (!fails) add_segments();
    for (int i = 0; i < N_THREADS; i++) {
        workers[i] = (worker){.random = ms_hash64(&i, sizeof i, seed) | 1, .until = n, .has_large = fails};
        while (i > 0 && backend->stream_create(device, &workers[i].stream) != MS_OK) continue; /* 0: the first */
    }
    for (int i = 0; i < N_THREADS; i++)
        if (ms__thread_start(&workers[i].thread, work, &workers[i]) != MS_OK) give_up("no thread");
    for (int i = 0; i < N_THREADS; i++) ms__thread_join(&workers[i].thread);
    return close_engine(workers, limit_bytes);
}

/* So many engines, one after the other, with n calls in all. */
static bool run_part(const char *name, int64_t n, uint64_t seed, int64_t n_rounds) {
    bool is_fine = true;
    atomic_store(&n_checks, 0);
    totals = (ms_offload_stats){0};
    for (int64_t i = 0; i < n_rounds; i++)
        is_fine = run_round(n / n_rounds, seed + (uint64_t)i, n_rounds > 1) && is_fine;
    (void)printf("%s: %" PRId64 " puts, %" PRId64 " refused, %" PRId64 " fetches, %" PRId64 " late, %" PRId64
                 " waits, pools grew %" PRId64 " times, %" PRId64 " checks\n",
                 name, totals.n_puts, totals.n_refused, totals.n_fetches, totals.n_late, totals.n_waits, totals.n_grows,
                 atomic_load(&n_checks));
    bool is_full = totals.n_refused > 0 && totals.n_waits > 0 && atomic_load(&n_checks) >= n / 20;
    if (!is_full && n >= FEW_CALLS) (void)fprintf(stderr, "too few checks, waits or refused puts\n");
    return is_fine && (is_full || n < FEW_CALLS);
}

static int64_t setting(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoll(text, NULL, 10);
}

int main(void) {
    int64_t n = setting("MEMSCALE_OFFLOAD_N", 100000);
    uint64_t seed = (uint64_t)setting("MEMSCALE_OFFLOAD_SEED", 1);
    for (int i = 0; i < N_RECORDS; i++) table[i].lock = MS__MUTEX_INIT;
    bool is_fine = run_part("late streams", n / 2, seed, 1);
    is_fine = run_part("failures", n / 2, seed, N_ROUNDS) && is_fine;
    if (!is_fine) (void)fprintf(stderr, "FAILED with MEMSCALE_OFFLOAD_SEED=%" PRIu64 "\n", seed);
    return is_fine ? EXIT_SUCCESS : EXIT_FAILURE;
}
