/* test_copies.c - copies to the host and back: contents, and who waits for whom.
 *
 * Each wait between streams has a test that holds up the stream that is waited for: an engine that does not wait would
 * copy, check or overwrite while the gate is closed.
 */
#include "groups.h"

#include <string.h>

#include "fake_gpus.h"

#define MANY 1000 /* groups that may be pending: nobody has to wait */

/* An engine and two streams of the program. */
static lab l;
static ms__stream first, second;
static gate closed;

static void open_with(int64_t limit_bytes, int64_t max_pending) {
    const ms_offload_options options = lab_options(limit_bytes, max_pending);
    l = open_lab(&options, NULL);
    first = lab_stream(&l);
    second = lab_stream(&l);
}

static void close_all(void) {
    lab_sync(&l, first);
    lab_sync(&l, second);
    check_empty(l.engine);
    l.backend->stream_destroy(l.device, first);
    l.backend->stream_destroy(l.device, second);
    ms_offload_destroy(l.engine);
}

static void fill(void *argument) { tensors_fill(argument); }

static void poison(void *argument) { tensors_poison(argument); }

/* What a stream saw when it came to a check. */
typedef struct check {
    const tensors *t;
    int64_t n_wrong;
} check;

static void count_wrong(void *argument) {
    check *c = argument;
    c->n_wrong = tensors_count_wrong(c->t);
}

/* ---- Contents ---- */

TEST(bytes_come_back) {
    static const int64_t sizes[][MAX_PIECES] = {{1, -1},
                                                {0, -1},
                                                {511, 512, 513, -1},
                                                {0, 5, 0, 7, -1},
                                                {3 * MIB + 1, 1, 4095, -1},
                                                {100, 200, 300, 400, 500, 600}};
    tensors all[6];
    open_with(16 * MIB, 2);
    for (int i = 0; i < 6; i++) {
        all[i] = tensors_make((uint64_t)i, sizes[i]);
        CHECK_STATUS(tensors_put(&all[i], l.engine, i, 0), MS_OK);
        CHECK_STATUS(ms_offload_settle(all[i].group, 0), MS_OK);
        tensors_drop(&all[i]);
    }
    CHECK_EQ_INT(stats_of(l.engine).put_bytes, 1 + 1536 + 12 + 3 * MIB + 4097 + 2100);
    for (int i = 0; i < 6; i++) tensors_bring_back(&all[i]);
    for (int i = 0; i < 6; i++) tensors_end(&all[i]);
    close_all();
}

/* A pool of segments of 4096 bytes: every piece lies in several. */
TEST(pieces_lie_across_segments) {
    const int64_t sizes[] = {10000, 3000, 4096, 1, 9999, -1};
    open_with(64 * KIB, 2);
    for (int i = 0; i < 16; i++) {
        ms__host_memory host;
        CHECK_STATUS(l.backend->take_memory(l.device, 4096, true, &host), MS_OK);
        CHECK_STATUS(ms__pool_add(&l.engine->pool, &host), MS_OK);
    }
    for (uint64_t i = 0; i < 5; i++) { /* which begin at other places: one stays */
        tensors stays = tensors_of_size(100 + i, 700 * (int64_t)i + 1), t = tensors_make(i, sizes);
        CHECK_STATUS(tensors_put(&stays, l.engine, 0, 0), MS_OK);
        CHECK_STATUS(tensors_put(&t, l.engine, 0, 0), MS_OK);
        CHECK_STATUS(ms_offload_settle(t.group, 0), MS_OK);
        tensors_drop(&t);
        tensors_bring_back(&t);
        tensors_end(&t);
        tensors_end(&stays);
    }
    CHECK_EQ_INT(stats_of(l.engine).n_grows, 0);
    close_all();
}

TEST(some_pieces_are_enough) {
    const int64_t sizes[] = {1000, 2000, 3000, -1};
    tensors t = tensors_make(1, sizes);
    open_with(MIB, 2);
    CHECK_STATUS(tensors_put(&t, l.engine, 0, 0), MS_OK);
    CHECK_STATUS(ms_offload_settle(t.group, 0), MS_OK);
    tensors_drop(&t);
    tensors_take(&t);
    tensors_drop_piece(&t, 0);
    tensors_drop_piece(&t, 2);
    CHECK_STATUS(tensors_fetch(&t, 0), MS_OK);
    CHECK_STATUS(ms_offload_use(t.group, 0), MS_OK);
    CHECK_EQ_INT(tensors_count_wrong(&t), 0);
    CHECK_EQ_INT(stats_of(l.engine).fetched_bytes, 2000);
    tensors_end(&t);
    close_all();
}

/* Before it was used, to the same memory and to other memory, and after. */
TEST(a_group_is_fetched_several_times) {
    tensors t = tensors_of_size(1, 5000);
    open_with(MIB, 2);
    CHECK_STATUS(tensors_put(&t, l.engine, 0, 0), MS_OK);
    CHECK_STATUS(ms_offload_settle(t.group, 0), MS_OK);
    tensors_drop(&t);
    tensors_take(&t);
    tensors again = t;
    tensors_take(&again);
    CHECK_STATUS(tensors_fetch(&t, 0), MS_OK);
    CHECK_STATUS(tensors_fetch(&t, first), MS_OK);
    CHECK_STATUS(tensors_fetch(&again, second), MS_OK);
    CHECK_STATUS(ms_offload_use(t.group, 0), MS_OK);
    CHECK_EQ_INT(tensors_count_wrong(&t), 0);
    CHECK_EQ_INT(tensors_count_wrong(&again), 0);
    tensors_drop(&again);
    tensors_drop(&t);
    tensors_bring_back(&t);
    CHECK_EQ_INT(stats_of(l.engine).n_fetches, 4);
    tensors_end(&t);
    close_all();
}

/* ---- Who waits for whom ---- */

TEST(a_put_waits_for_the_stream_that_writes) {
    tensors t = tensors_of_size(1, 5000);
    void *user = &l;
    open_with(MIB, MANY);
    tensors_poison(&t);
    gate_close(&l, first, &closed);
    lab_call(&l, first, fill, &t);
    CHECK_STATUS(tensors_put(&t, l.engine, 0, first), MS_OK);
    let_others_run();
    CHECK_STATUS(ms_offload_release(l.engine, first, &user), MS_OK);
    CHECK(user == NULL); /* not done, and nobody has to wait */
    gate_open(&closed);
    CHECK_STATUS(ms_offload_settle(t.group, 0), MS_OK);
    tensors_drop(&t);
    tensors_bring_back(&t);
    tensors_end(&t);
    close_all();
}

TEST(a_release_lets_the_stream_wait) {
    tensors t = tensors_of_size(1, 5000);
    void *user = NULL;
    open_with(MIB, 0);
    gate_close(&l, first, &closed);
    CHECK_STATUS(tensors_put(&t, l.engine, 0, first), MS_OK);
    CHECK_STATUS(ms_offload_release(l.engine, second, &user), MS_OK);
    CHECK(user == &t);
    CHECK_EQ_INT(stats_of(l.engine).n_waits, 1);
    CHECK_EQ_INT(stats_of(l.engine).n_pending, 0);
    lab_call(&l, second, poison, &t);
    let_others_run();
    gate_open(&closed);
    lab_sync(&l, second);
    tensors_drop(&t);
    tensors_bring_back(&t);
    tensors_end(&t);
    close_all();
}

/* What is still on the device may be overwritten after its use, but not before its copy. */
static void check_use_of_what_is_there(bool is_released) {
    tensors t = tensors_of_size(1, 5000);
    check c = {.t = &t, .n_wrong = -1};
    void *user = &t;
    open_with(MIB, is_released ? 0 : MANY);
    gate_close(&l, first, &closed);
    CHECK_STATUS(tensors_put(&t, l.engine, 0, first), MS_OK);
    if (is_released) CHECK_STATUS(ms_offload_release(l.engine, first, &user), MS_OK);
    CHECK(user == &t);
    CHECK_STATUS(ms_offload_use(t.group, second), MS_OK);
    lab_call(&l, second, count_wrong, &c);
    lab_call(&l, second, poison, &t);
    let_others_run();
    gate_open(&closed);
    lab_sync(&l, second);
    CHECK_EQ_INT(c.n_wrong, 0);
    tensors_drop(&t);
    tensors_bring_back(&t);
    tensors_end(&t);
    close_all();
}

TEST(a_use_waits_for_copies_out) { check_use_of_what_is_there(false); }

/* Another stream has waited, on behalf of a thread that did not free the tensors yet. */
TEST(a_use_after_a_release_waits_too) { check_use_of_what_is_there(true); }

TEST(a_fetch_waits_for_copies_out) {
    tensors t = tensors_of_size(1, 5000);
    open_with(MIB, MANY);
    gate_close(&l, first, &closed);
    CHECK_STATUS(tensors_put(&t, l.engine, 0, first), MS_OK);
    tensors back = t;
    tensors_take(&back);
    CHECK_STATUS(tensors_fetch(&back, second), MS_OK);
    let_others_run();
    gate_open(&closed);
    CHECK_STATUS(ms_offload_use(t.group, 0), MS_OK);
    CHECK_EQ_INT(tensors_count_wrong(&back), 0);
    tensors_drop(&back);
    tensors_end(&t);
    close_all();
}

/* On the host and out: what the next tests begin with. */
static tensors put_away(uint64_t seed, int64_t n_bytes) {
    tensors t = tensors_of_size(seed, n_bytes);
    CHECK_STATUS(tensors_put(&t, l.engine, 0, 0), MS_OK);
    CHECK_STATUS(ms_offload_settle(t.group, 0), MS_OK);
    tensors_drop(&t);
    return t;
}

TEST(a_fetch_waits_for_device_memory) {
    open_with(MIB, MANY);
    tensors t = put_away(1, 5000);
    tensors_take(&t);
    gate_close(&l, first, &closed);
    lab_call(&l, first, poison, &t); /* its last user */
    CHECK_STATUS(tensors_fetch(&t, first), MS_OK);
    let_others_run();
    gate_open(&closed);
    lab_sync(&l, first);
    CHECK_STATUS(ms_offload_use(t.group, 0), MS_OK);
    CHECK_EQ_INT(tensors_count_wrong(&t), 0);
    tensors_end(&t);
    close_all();
}

static void check_wait_for_copies_back(bool is_used) {
    open_with(MIB, MANY);
    tensors t = put_away(1, 5000);
    check c = {.t = &t, .n_wrong = -1};
    tensors_take(&t);
    gate_close(&l, first, &closed);
    CHECK_STATUS(tensors_fetch(&t, first), MS_OK);
    CHECK_STATUS(is_used ? ms_offload_use(t.group, second) : ms_offload_settle(t.group, second), MS_OK);
    lab_call(&l, second, count_wrong, &c);
    let_others_run();
    gate_open(&closed);
    lab_sync(&l, second);
    CHECK_EQ_INT(c.n_wrong, 0);
    tensors_end(&t);
    close_all();
}

TEST(a_use_waits_for_copies_back) { check_wait_for_copies_back(true); }

TEST(a_settle_waits_for_copies_back) { check_wait_for_copies_back(false); }

/* Host memory is filled again only after the copy that reads it; that of a group that was settled, too. */
TEST(a_put_waits_for_copies_back_from_its_memory) {
    open_with(8 * KIB, MANY);
    tensors t = put_away(1, 8 * KIB), other = tensors_of_size(2, 8 * KIB);
    tensors_take(&t);
    gate_close(&l, first, &closed);
    CHECK_STATUS(tensors_fetch(&t, first), MS_OK);
    CHECK_STATUS(ms_offload_settle(t.group, second), MS_OK);
    ms_offload_free(t.group);
    CHECK_STATUS(tensors_put(&other, l.engine, 0, 0), MS_OK);
    let_others_run();
    gate_open(&closed);
    lab_sync(&l, second);
    CHECK_EQ_INT(tensors_count_wrong(&t), 0);
    tensors_drop(&t);
    CHECK_STATUS(ms_offload_settle(other.group, 0), MS_OK);
    tensors_drop(&other);
    tensors_bring_back(&other);
    tensors_end(&other);
    close_all();
}

/* The same for a range that is joined of two: the last of all copies counts. */
TEST(a_put_waits_for_the_last_of_several_readers) {
    open_with(8 * KIB, MANY);
    tensors a = put_away(1, 4 * KIB), b = put_away(2, 4 * KIB), other = tensors_of_size(3, 8 * KIB);
    tensors_bring_back(&a); /* the first copy is done, the second is not */
    tensors_take(&b);
    gate_close(&l, first, &closed);
    CHECK_STATUS(tensors_fetch(&b, first), MS_OK);
    CHECK_STATUS(ms_offload_settle(b.group, second), MS_OK);
    ms_offload_free(b.group);
    tensors_end(&a);
    CHECK_STATUS(tensors_put(&other, l.engine, 0, 0), MS_OK);
    let_others_run();
    gate_open(&closed);
    lab_sync(&l, second);
    CHECK_EQ_INT(tensors_count_wrong(&b), 0);
    tensors_drop(&b);
    tensors_end(&other);
    close_all();
}

/* ---- Release ---- */

/* How many groups are released while nothing can be done. */
static int64_t count_released(int64_t max_pending, int64_t n_groups) {
    tensors all[4];
    int64_t n = 0;
    void *user = &l;
    open_with(MIB, max_pending);
    gate_close(&l, first, &closed);
    for (int64_t i = 0; i < n_groups; i++) {
        all[i] = tensors_of_size((uint64_t)i, 100);
        CHECK_STATUS(tensors_put(&all[i], l.engine, i, first), MS_OK);
    }
    for (; user != NULL; n += user != NULL) {
        CHECK_STATUS(ms_offload_release(l.engine, second, &user), MS_OK);
        CHECK(user == NULL || user == &all[n]); /* the oldest first */
    }
    CHECK_EQ_INT(stats_of(l.engine).n_waits, n);
    CHECK_EQ_INT(stats_of(l.engine).n_pending, n_groups - n);
    gate_open(&closed);
    for (int64_t i = 0; i < n_groups; i++) tensors_end(&all[i]);
    close_all();
    return n;
}

TEST(groups_over_max_pending_are_waited_for) {
    CHECK_EQ_INT(count_released(0, 4), 4);
    CHECK_EQ_INT(count_released(2, 4), 2);
    CHECK_EQ_INT(count_released(2, 2), 0);
    CHECK_EQ_INT(count_released(MANY, 4), 0);
}

TEST(what_is_done_is_released_without_a_wait) {
    tensors all[3];
    void *user = NULL;
    open_with(MIB, MANY);
    for (int i = 0; i < 3; i++) {
        all[i] = tensors_of_size((uint64_t)i, 100);
        CHECK_STATUS(tensors_put(&all[i], l.engine, i, 0), MS_OK);
    }
    lab_sync(&l, l.engine->out);
    CHECK_STATUS(ms_offload_use(all[1].group, 0), MS_OK); /* no fetch is needed, and it counts as released */
    CHECK_EQ_INT(stats_of(l.engine).n_pending, 2);
    CHECK_STATUS(ms_offload_release(l.engine, 0, &user), MS_OK);
    CHECK(user == &all[0]);
    CHECK_STATUS(ms_offload_release(l.engine, 0, &user), MS_OK);
    CHECK(user == &all[2]);
    CHECK_STATUS(ms_offload_release(l.engine, 0, &user), MS_OK);
    CHECK(user == NULL);
    CHECK_EQ_INT(stats_of(l.engine).n_waits, 0);
    for (int i = 0; i < 3; i++) tensors_end(&all[i]);
    close_all();
}

/* ---- Free ---- */

/* The group is gone before its copies are done; the streams keep their order. */
TEST(free_while_copies_are_in_flight) {
    tensors t = tensors_of_size(1, 5000);
    void *user = &l;
    open_with(8 * KIB, MANY);
    gate_close(&l, first, &closed);
    CHECK_STATUS(tensors_put(&t, l.engine, 0, first), MS_OK);
    CHECK_STATUS(ms_offload_settle(t.group, second), MS_OK);
    CHECK_EQ_INT(stats_of(l.engine).n_pending, 0);
    ms_offload_free(t.group);
    CHECK_STATUS(ms_offload_release(l.engine, 0, &user), MS_OK);
    CHECK(user == NULL);
    check_empty(l.engine);
    tensors other = tensors_of_size(2, 8 * KIB); /* into the same host memory, after the copy that still fills it */
    CHECK_STATUS(tensors_put(&other, l.engine, 0, 0), MS_OK);
    gate_open(&closed);
    lab_sync(&l, second);
    tensors_drop(&t);
    CHECK_STATUS(ms_offload_settle(other.group, 0), MS_OK);
    tensors_drop(&other);
    tensors_bring_back(&other);
    tensors_end(&other);
    close_all();
}

TEST(free_while_it_is_pending) {
    tensors t = tensors_of_size(1, 5000);
    void *user = &l;
    open_with(MIB, 0);
    CHECK_STATUS(tensors_put(&t, l.engine, 0, 0), MS_OK);
    ms_offload_free(t.group);
    CHECK_STATUS(ms_offload_release(l.engine, 0, &user), MS_OK);
    CHECK(user == NULL);
    lab_sync(&l, l.engine->out);
    tensors_drop(&t);
    close_all();
}

SUITE(copies, CASE(bytes_come_back), CASE(pieces_lie_across_segments), CASE(some_pieces_are_enough),
      CASE(a_group_is_fetched_several_times), CASE(a_put_waits_for_the_stream_that_writes),
      CASE(a_release_lets_the_stream_wait), CASE(a_use_waits_for_copies_out), CASE(a_use_after_a_release_waits_too),
      CASE(a_fetch_waits_for_copies_out), CASE(a_fetch_waits_for_device_memory), CASE(a_use_waits_for_copies_back),
      CASE(a_settle_waits_for_copies_back), CASE(a_put_waits_for_copies_back_from_its_memory),
      CASE(a_put_waits_for_the_last_of_several_readers), CASE(groups_over_max_pending_are_waited_for),
      CASE(what_is_done_is_released_without_a_wait), CASE(free_while_copies_are_in_flight),
      CASE(free_while_it_is_pending));
