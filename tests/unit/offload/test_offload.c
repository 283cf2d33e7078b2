/* test_offload.c - the engine: its limits, its host memory, its counts, who owns it, and what it refuses. */
#define _DEFAULT_SOURCE
#include "groups.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Done with its copies; not on the device. */
static void put_away(tensors *t, ms_offload *engine, int64_t key) {
    CHECK_STATUS(tensors_put(t, engine, key, 0), MS_OK);
    CHECK_STATUS(ms_offload_settle(t->group, 0), MS_OK);
    tensors_drop(t);
}

TEST(a_whole_life) {
    for (int64_t max_pending = 0; max_pending <= 2; max_pending++) {
        ms_offload *engine = open_host(16 * MIB, max_pending);
        CHECK_EQ_INT(live_through(engine), 0);
        ms_offload_destroy(engine);
    }
}

TEST(streams_that_are_late) {
    for (uint64_t seed = 0; seed < 8; seed++) {
        ms_offload_options options = lab_options(16 * MIB, 1);
        ms_offload *engine = NULL;
        options.delay_ns = 200000;
        options.seed = seed;
        CHECK_STATUS(ms_offload_create(&options, &engine), MS_OK);
        CHECK_EQ_INT(live_through(engine), 0);
        ms_offload_destroy(engine);
    }
}

/* ---- Host memory ---- */

TEST(the_limit_refuses) {
    ms_offload *engine = open_host(2 * MIB + 4095, 2); /* whole pages count */
    tensors a = tensors_of_size(1, MIB), b = tensors_of_size(2, MIB), c = tensors_of_size(3, 1);
    put_away(&a, engine, 0);
    put_away(&b, engine, 0);
    CHECK_STATUS(tensors_put(&c, engine, 0, 0), MS_E_NO_MEMORY);
    CHECK(strstr(ms_error_message(), "limit") != NULL && c.group == NULL);
    CHECK_EQ_INT(stats_of(engine).n_refused, 1);
    CHECK_EQ_INT(stats_of(engine).n_puts, 2);
    CHECK_EQ_INT(stats_of(engine).used_bytes, 2 * MIB);
    tensors_bring_back(&a);
    tensors_end(&a);
    CHECK_STATUS(tensors_put(&c, engine, 0, 0), MS_OK); /* there is room again */
    tensors_bring_back(&b);
    tensors_end(&b);
    tensors_end(&c);
    CHECK_EQ_INT(stats_of(engine).n_refused, 1);
    CHECK_EQ_INT(stats_of(engine).peak_used_bytes, 2 * MIB);
    check_empty(engine);
    ms_offload_destroy(engine);
}

TEST(no_memory_at_all) {
    ms_offload *engine = open_host(4095, 2);
    tensors t = tensors_of_size(1, 1);
    CHECK_STATUS(tensors_put(&t, engine, 0, 0), MS_E_NO_MEMORY);
    CHECK_STATUS(ms_offload_reserve(engine, 1), MS_E_NO_MEMORY);
    CHECK_STATUS(ms_offload_reserve(engine, 0), MS_OK);
    CHECK_EQ_INT(stats_of(engine).pool_bytes, 0);
    tensors_drop(&t);
    ms_offload_destroy(engine);
}

/* The pool grows by 2 MiB at least, and to the limit where that is nearer. */
TEST(reserve) {
    ms_offload *engine = open_host(5 * MIB, 2);
    CHECK_STATUS(ms_offload_reserve(engine, 1), MS_OK);
    CHECK_EQ_INT(stats_of(engine).pool_bytes, 2 * MIB);
    CHECK_STATUS(ms_offload_reserve(engine, 2 * MIB), MS_OK);
    CHECK_EQ_INT(stats_of(engine).n_grows, 1);
    CHECK_STATUS(ms_offload_reserve(engine, 5 * MIB + 1), MS_E_NO_MEMORY);
    CHECK_STATUS(ms_offload_reserve(engine, 4 * MIB + 1), MS_OK);
    CHECK_EQ_INT(stats_of(engine).pool_bytes, 5 * MIB);
    CHECK_EQ_INT(stats_of(engine).n_grows, 2);
    tensors t = tensors_of_size(1, 5 * MIB); /* across both segments, and nothing is taken */
    put_away(&t, engine, 0);
    tensors_bring_back(&t);
    tensors_end(&t);
    CHECK_EQ_INT(stats_of(engine).n_grows, 2);
    ms_offload_destroy(engine);
}

/* More than any system has is an ordinary failure, also at the largest limit. */
TEST(what_the_system_does_not_have) {
    ms_offload *engine = open_host(INT64_MAX, 2);
    int64_t sizes[] = {INT64_MAX, INT64_MAX / 4096 * 4096, INT64_C(1) << 60};
    for (int i = 0; i < 3; i++) CHECK_STATUS(ms_offload_reserve(engine, sizes[i]), MS_E_NO_MEMORY);
    CHECK_EQ_INT(live_through(engine), 0);
    ms_offload_destroy(engine);
}

TEST(some_memory_is_not_pinned) {
    ms_offload_options options = lab_options(8 * MIB, 2);
    ms_offload *engine = NULL;
    options.pinned_limit_bytes = 3 * MIB;
    CHECK_STATUS(ms_offload_create(&options, &engine), MS_OK);
    CHECK_STATUS(ms_offload_reserve(engine, 2 * MIB), MS_OK);
    CHECK_EQ_INT(stats_of(engine).pinned_bytes, 2 * MIB);
    CHECK_STATUS(ms_offload_reserve(engine, 4 * MIB), MS_OK);
    CHECK_EQ_INT(stats_of(engine).pinned_bytes, 2 * MIB);
    CHECK_EQ_INT(stats_of(engine).pool_bytes, 4 * MIB);
    CHECK_EQ_INT(live_through(engine), 0);
    ms_offload_destroy(engine);
}

/* ---- Growing while others do ---- */

static lab l;
static ms__backend nosy; /* the host's, but for one function */
static ms_status wanted; /* of another thread's reserve while this one takes memory from the system */
static bool is_inside;

/* No lock is held here, so this thread can be that other one. */
static ms_status take_memory(void *self, int64_t n_bytes, bool is_pinned, ms__host_memory *out) {
    if (!is_inside) {
        is_inside = true;
        CHECK_STATUS(ms_offload_reserve(l.engine, 1), wanted);
    }
    return l.backend->take_memory(self, n_bytes, is_pinned, out);
}

static void open_nosy(const ms_offload_options *options) {
    CHECK_STATUS(ms__host_backend_create(NULL, &l.backend, &l.device), MS_OK);
    nosy = *l.backend;
    nosy.take_memory = take_memory;
    CHECK_STATUS(ms__offload_start(options, &nosy, l.device, &l.engine), MS_OK);
}

TEST(memory_on_its_way_counts) {
    const ms_offload_options options = lab_options(4 * MIB, 2);
    open_nosy(&options);
    wanted = MS_E_NO_MEMORY; /* all that is allowed is being taken */
    CHECK_STATUS(ms_offload_reserve(l.engine, 3 * MIB), MS_OK);
    CHECK(is_inside);
    CHECK_EQ_INT(stats_of(l.engine).pool_bytes, 4 * MIB);
    check_empty(l.engine);
    ms_offload_destroy(l.engine);
}

TEST(pinned_memory_on_its_way_counts) {
    ms_offload_options options = lab_options(8 * MIB, 2);
    options.pinned_limit_bytes = 2 * MIB;
    open_nosy(&options);
    CHECK_STATUS(ms_offload_reserve(l.engine, 2 * MIB), MS_OK);
    CHECK_EQ_INT(stats_of(l.engine).pool_bytes, 4 * MIB);
    CHECK_EQ_INT(stats_of(l.engine).pinned_bytes, 2 * MIB);
    check_empty(l.engine);
    ms_offload_destroy(l.engine);
}

/* Untouched pages cost nothing. */
static void *grow_often(void *argument) {
    for (int64_t i = 1; i <= 400; i++) {
        CHECK_STATUS(ms_offload_reserve(argument, i * 2 * MIB), MS_OK);
        ms__thread_sleep(10000);
    }
    return NULL;
}

/* For ThreadSanitizer: the list of segments moves while others look at it. */
TEST(the_pool_grows_while_others_copy) {
    ms_offload *engine = open_host(800 * MIB, 2);
    ms__thread other;
    CHECK_STATUS(ms__thread_start(&other, grow_often, engine), MS_OK);
    while (stats_of(engine).pool_bytes < 800 * MIB) {
        tensors t = tensors_of_size(1, 3000);
        put_away(&t, engine, 0);
        tensors_bring_back(&t);
        tensors_end(&t);
    }
    ms__thread_join(&other);
    check_empty(engine);
    ms_offload_destroy(engine);
}

/* ---- Steps ---- */

/* One step: groups of several sizes out and back, in the reverse order. */
static void run_step(ms_offload *engine) {
    static const int64_t sizes[] = {MIB, 700000, 5, 3 * MIB, 1000, 700000};
    tensors all[6];
    for (int i = 0; i < 6; i++) {
        all[i] = tensors_of_size((uint64_t)i, sizes[i]);
        put_away(&all[i], engine, i);
    }
    for (int i = 5; i >= 0; i--) {
        tensors_bring_back(&all[i]);
        tensors_end(&all[i]);
    }
}

TEST(steps_after_the_first_take_no_memory) {
    ms_offload *engine = open_host(64 * MIB, 2);
    run_step(engine);
    ms_offload_stats once = stats_of(engine);
    size_t n_events = engine->events.n;
    for (int i = 0; i < 5; i++) run_step(engine);
    ms_offload_stats often = stats_of(engine);
    CHECK_EQ_INT(often.n_grows, once.n_grows);
    CHECK_EQ_INT(often.pool_bytes, once.pool_bytes);
    CHECK_EQ_INT(often.peak_used_bytes, once.peak_used_bytes);
    CHECK_EQ_INT(engine->events.n, n_events);
    CHECK_EQ_INT(engine->pool.free.n, 1);
    CHECK_EQ_INT(often.n_puts, 36);
    CHECK_EQ_INT(often.n_fetches, 36);
    CHECK_EQ_INT(often.put_bytes, 6 * once.put_bytes);
    CHECK_EQ_INT(often.fetched_bytes, often.put_bytes);
    check_empty(engine);
    ms_offload_destroy(engine);
}

/* ---- Owners ---- */

TEST(an_engine_goes_with_its_last_group) {
    ms_offload *engine = open_host(4 * MIB, 2);
    tensors a = tensors_of_size(1, 5000), b = tensors_of_size(2, 5000);
    put_away(&a, engine, 0);
    CHECK_STATUS(tensors_put(&b, engine, 1, 0), MS_OK);
    ms_offload_destroy(engine);
    tensors_bring_back(&a); /* it still works */
    tensors_end(&a);
    tensors_end(&b);
}

TEST(destroy_waits_for_copies) {
    tensors t = tensors_of_size(1, 8 * MIB);
    ms_offload *engine = open_host(8 * MIB, 2);
    CHECK_STATUS(tensors_put(&t, engine, 0, 0), MS_OK);
    ms_offload_free(t.group);
    ms_offload_destroy(engine);
    tensors_drop(&t);
}

/* ---- Forked children ---- */

static void check_child(ms_offload *engine, tensors *t) {
    ms_offload_stats stats = {.struct_bytes = sizeof stats};
    ms_offload_group *group = t->group;
    void *user = engine;
    CHECK_STATUS(tensors_put(t, engine, 0, 0), MS_E_UNAVAILABLE);
    CHECK(strstr(ms_error_message(), "fork") != NULL && t->group == group);
    CHECK_STATUS(ms_offload_reserve(engine, 1), MS_E_UNAVAILABLE);
    CHECK_STATUS(ms_offload_release(engine, 0, &user), MS_E_UNAVAILABLE);
    CHECK(user == engine);
    CHECK_STATUS(tensors_fetch(t, 0), MS_E_UNAVAILABLE);
    CHECK_STATUS(ms_offload_use(group, 0), MS_E_UNAVAILABLE);
    CHECK_STATUS(ms_offload_settle(group, 0), MS_E_UNAVAILABLE);
    CHECK_STATUS(ms_offload_get_stats(engine, &stats), MS_E_UNAVAILABLE);
    CHECK(ms_offload_next(group, 1) == NULL);
    ms_offload_destroy(engine);
    ms_offload_free(group);
}

/* Another thread may have the lock at that moment: the child must not wait for it. */
TEST(a_forked_child_keeps_its_hands_off) {
    int state = 0;
    ms_offload *engine = open_host(4 * MIB, 2);
    tensors older = tensors_of_size(1, 5000), t = tensors_of_size(2, 5000);
    put_away(&older, engine, 0);
    CHECK_STATUS(tensors_put(&t, engine, 1, 0), MS_OK);
    ms__lock(&engine->lock);
    pid_t child = fork();
    if (child == 0) {
        (void)alarm(30);
        check_child(engine, &t);
        _Exit(0);
    }
    ms__unlock(&engine->lock);
    CHECK(child > 0 && waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 0);
    tensors_bring_back(&older); /* the parent still works */
    tensors_end(&older);
    tensors_end(&t);
    check_empty(engine);
    ms_offload_destroy(engine);
}

/* ---- What is refused ---- */

TEST(options_that_are_refused) {
    ms_offload *engine = NULL;
    ms_offload_options usual = lab_options(MIB, 2), wrong[4] = {usual, usual, usual, usual};
    wrong[0].limit_bytes = -1;
    wrong[1].pinned_limit_bytes = -1;
    wrong[2].max_pending = -1;
    wrong[3].delay_ns = -1;
    for (int i = 0; i < 4; i++) CHECK_STATUS(ms_offload_create(&wrong[i], &engine), MS_E_INVALID);
    CHECK_STATUS(ms_offload_create(NULL, &engine), MS_E_INVALID);
    CHECK_STATUS(ms_offload_create(&usual, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_offload_options_init(NULL, NULL, 0, MIB), MS_E_INVALID);
    usual.struct_bytes = 0;
    CHECK_STATUS(ms_offload_create(&usual, &engine), MS_E_INVALID);
    CHECK_STATUS(ms_offload_options_init(&usual, NULL, 0, MIB), MS_E_INVALID);
    CHECK(engine == NULL);
}

static void refuse(ms_offload *engine, int64_t key, ms_offload_piece piece, int64_t n_pieces) {
    ms_offload_group *group = NULL;
    CHECK_STATUS(ms_offload_put(engine, key, &piece, n_pieces, 0, engine, &group), MS_E_INVALID);
    CHECK(group == NULL);
}

TEST(puts_that_are_refused) {
    ms_offload *engine = open_host(MIB, 2);
    ms_offload_group *group = NULL;
    const ms_offload_piece good = {.address = 4096, .n_bytes = 1};
    ms_offload_piece large[2] = {{4096, INT64_C(1) << 60}, {4096, 1}};
    refuse(NULL, 0, good, 1);
    refuse(engine, -1, good, 1);
    refuse(engine, MS__MAX_KEYS, good, 1);
    refuse(engine, 0, good, 0);
    refuse(engine, 0, good, -1);
    refuse(engine, 0, good, INT64_MAX);
    refuse(engine, 0, (ms_offload_piece){.address = 4096, .n_bytes = -1}, 1);
    refuse(engine, 0, (ms_offload_piece){.address = 0, .n_bytes = 1}, 1);
    refuse(engine, 0, (ms_offload_piece){.address = 4096, .n_bytes = INT64_MAX}, 1);
    CHECK_STATUS(ms_offload_put(engine, 0, large, 2, 0, &group, &group), MS_E_INVALID);
    CHECK_STATUS(ms_offload_put(engine, 0, NULL, 1, 0, &group, &group), MS_E_INVALID);
    CHECK_STATUS(ms_offload_put(engine, 0, &good, 1, 0, NULL, NULL), MS_E_INVALID);
    tensors t = tensors_of_size(1, 10);
    CHECK_STATUS(tensors_put(&t, engine, MS__MAX_KEYS - 1, 0), MS_OK); /* the last one */
    tensors_end(&t);
    check_empty(engine);
    CHECK_EQ_INT(stats_of(engine).n_refused, 0);
    ms_offload_destroy(engine);
}

TEST(calls_that_are_refused) {
    ms_offload *engine = open_host(MIB, 2);
    tensors t = tensors_of_size(1, 10);
    ms_offload_stats stats = {.struct_bytes = sizeof stats};
    uint64_t address = 4096;
    void *user = NULL;
    CHECK_STATUS(ms_offload_reserve(NULL, 1), MS_E_INVALID);
    CHECK_STATUS(ms_offload_reserve(engine, -1), MS_E_INVALID);
    CHECK_STATUS(ms_offload_release(NULL, 0, &user), MS_E_INVALID);
    CHECK_STATUS(ms_offload_release(engine, 0, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_offload_fetch(NULL, &address, 0), MS_E_INVALID);
    CHECK_STATUS(tensors_put(&t, engine, 0, 0), MS_OK);
    CHECK_STATUS(ms_offload_fetch(t.group, NULL, 0), MS_E_INVALID);
    CHECK_STATUS(ms_offload_use(NULL, 0), MS_E_INVALID);
    CHECK_STATUS(ms_offload_settle(NULL, 0), MS_E_INVALID);
    CHECK_STATUS(ms_offload_get_stats(NULL, &stats), MS_E_INVALID);
    CHECK_STATUS(ms_offload_get_stats(engine, NULL), MS_E_INVALID);
    stats.struct_bytes = 1;
    CHECK_STATUS(ms_offload_get_stats(engine, &stats), MS_E_INVALID);
    CHECK(ms_offload_next(NULL, 1) == NULL);
    tensors_end(&t);
    ms_offload_free(NULL);
    ms_offload_destroy(NULL);
    ms_offload_destroy(engine);
}

SUITE(offload, CASE(a_whole_life), CASE(streams_that_are_late), CASE(the_limit_refuses), CASE(no_memory_at_all),
      CASE(reserve), CASE(what_the_system_does_not_have), CASE(some_memory_is_not_pinned),
      CASE(memory_on_its_way_counts), CASE(pinned_memory_on_its_way_counts), CASE(the_pool_grows_while_others_copy),
      CASE(steps_after_the_first_take_no_memory), CASE(an_engine_goes_with_its_last_group),
      CASE(destroy_waits_for_copies), CASE(a_forked_child_keeps_its_hands_off), CASE(options_that_are_refused),
      CASE(puts_that_are_refused), CASE(calls_that_are_refused));
