/* test_fetch_order.c - which group ms_offload_next foresees: the one put before by default, else what was learned. */
#include "groups.h"

#define N 4

static ms_offload *engine; /* of the test that runs */

/* With their copies done and their device memory given back. */
static void put_away(tensors *all, int64_t n, const int64_t *keys) {
    for (int64_t i = 0; i < n; i++) {
        all[i] = tensors_of_size((uint64_t)i, 100);
        CHECK_STATUS(tensors_put(&all[i], engine, keys == NULL ? i : keys[i], 0), MS_OK);
        CHECK_STATUS(ms_offload_settle(all[i].group, 0), MS_OK);
        tensors_drop(&all[i]);
    }
}

static void end_all(tensors *all, int64_t n) {
    for (int64_t i = 0; i < n; i++) tensors_end(&all[i]);
}

static void finish(void) {
    check_empty(engine);
    ms_offload_destroy(engine);
}

static const tensors *next(const tensors *t, int64_t n_ahead) { return ms_offload_next(t->group, n_ahead); }

/* A backward in this order, with each group freed after its use. */
static void run_backward(tensors *all, int64_t n, const int64_t *order) {
    for (int64_t i = 0; i < n; i++) {
        tensors_bring_back(&all[order[i]]);
        tensors_end(&all[order[i]]);
    }
}

TEST(first_in_reverse_order) {
    tensors all[N];
    engine = open_host(MIB, 2);
    put_away(all, N, NULL);
    for (int i = 0; i < N; i++)
        for (int n_ahead = 1; n_ahead <= N; n_ahead++)
            CHECK(next(&all[i], n_ahead) == (i - n_ahead < 0 ? NULL : &all[i - n_ahead]));
    CHECK(next(&all[3], 0) == NULL && next(&all[3], -1) == NULL && next(&all[3], INT64_MAX) == NULL);
    end_all(all, N);
    finish();
}

TEST(then_in_the_order_of_the_last_step) {
    static const int64_t order[] = {3, 1, 2, 0};
    tensors all[N];
    engine = open_host(MIB, 2);
    put_away(all, N, NULL);
    run_backward(all, N, order);
    put_away(all, N, NULL);
    for (int i = 0; i < N; i++)
        for (int n_ahead = 1; i + n_ahead < N; n_ahead++)
            CHECK(next(&all[order[i]], n_ahead) == &all[order[i + n_ahead]]);
    CHECK(next(&all[0], 1) == NULL); /* the last of the step */
    end_all(all, N);
    finish();
}

/* A graph that is kept: its groups are used once in each backward. */
TEST(groups_that_are_used_again) {
    static const int64_t order[] = {3, 2, 1, 0};
    tensors all[N];
    engine = open_host(MIB, 2);
    put_away(all, N, NULL);
    for (int backward = 0; backward < 3; backward++)
        for (int i = 0; i < N; i++) {
            tensors_bring_back(&all[order[i]]);
            tensors_drop(&all[order[i]]);
            for (int n_ahead = 1; n_ahead <= N; n_ahead++) {
                const tensors *wanted = i + n_ahead < N ? &all[order[i + n_ahead]] : NULL;
                CHECK(next(&all[order[i]], n_ahead) == wanted);
            }
        }
    end_all(all, N);
    finish();
}

/* The order of the last step counts, not that of the first. */
TEST(it_learns_anew) {
    static const int64_t orders[][N] = {{3, 1, 2, 0}, {3, 2, 1, 0}};
    tensors all[N];
    engine = open_host(MIB, 2);
    for (int i = 0; i < 2; i++) {
        put_away(all, N, NULL);
        run_backward(all, N, orders[i]);
    }
    put_away(all, N, NULL);
    for (int i = 1; i < N; i++) CHECK(next(&all[i], 1) == &all[i - 1]);
    end_all(all, N);
    finish();
}

/* What is known to come next is gone: then the one that was put before. */
TEST(a_group_that_does_not_come) {
    static const int64_t order[] = {3, 1, 2, 0};
    tensors all[N];
    engine = open_host(MIB, 2);
    put_away(all, N, NULL);
    run_backward(all, N, order);
    put_away(all, N, NULL);
    tensors_end(&all[1]);
    CHECK(next(&all[3], 1) == &all[2]);
    CHECK(next(&all[3], 2) == &all[0]);
    tensors_end(&all[3]);
    tensors_end(&all[2]);
    tensors_end(&all[0]);
    finish();
}

/* Two forwards before their backwards: the newest group of a layer first. */
TEST(several_groups_of_a_layer) {
    static const int64_t keys[] = {0, 1, 0, 1}, order[] = {3, 2, 1, 0};
    tensors all[N];
    engine = open_host(MIB, 2);
    for (int step = 0; step < 2; step++) {
        put_away(all, N, keys);
        for (int i = N - 1; i > 0; i--) CHECK(next(&all[i], 1) == &all[i - 1]);
        CHECK(next(&all[3], 3) == &all[0]);
        run_backward(all, N, order);
    }
    finish();
}

/* A group that was put later, if there is no older one. */
TEST(backward_in_the_order_of_forward) {
    static const int64_t order[] = {0, 1, 2, 3};
    tensors all[N];
    engine = open_host(MIB, 2);
    put_away(all, N, NULL);
    run_backward(all, N, order);
    put_away(all, N, NULL);
    for (int i = 0; i + 1 < N; i++) CHECK(next(&all[i], 1) == &all[i + 1]);
    end_all(all, N);
    finish();
}

/* What is still on the device, or on its way there, need not be fetched. */
TEST(groups_that_need_no_fetch) {
    tensors all[3];
    engine = open_host(MIB, 1000);
    for (int64_t i = 0; i < 3; i++) {
        all[i] = tensors_of_size((uint64_t)i, 100);
        CHECK_STATUS(tensors_put(&all[i], engine, i, 0), MS_OK);
    }
    CHECK(next(&all[2], 1) == NULL && next(&all[2], 2) == NULL); /* pending */
    for (int i = 0; i < 3; i++) CHECK_STATUS(ms_offload_settle(all[i].group, 0), MS_OK);
    CHECK(next(&all[2], 1) == &all[1]);
    CHECK_STATUS(tensors_fetch(&all[1], 0), MS_OK);
    CHECK(next(&all[2], 1) == NULL);    /* fetched */
    CHECK(next(&all[2], 2) == &all[0]); /* which does not hide what comes after it */
    CHECK_STATUS(ms_offload_use(all[1].group, 0), MS_OK);
    CHECK(next(&all[2], 1) == NULL); /* used in this backward */
    end_all(all, 3);
    finish();
}

/* A fetch that nobody foresaw is late when the group is used. */
TEST(late_groups_are_counted) {
    tensors all[3];
    engine = open_host(MIB, 2);
    put_away(all, 3, NULL);
    tensors_bring_back(&all[2]);
    CHECK_EQ_INT(stats_of(engine).n_late, 1);
    CHECK(next(&all[2], 1) == &all[1]);
    tensors_bring_back(&all[1]);
    CHECK_EQ_INT(stats_of(engine).n_late, 1);
    tensors_drop(&all[1]);
    tensors_bring_back(&all[1]); /* foreseen once, needed twice */
    CHECK_EQ_INT(stats_of(engine).n_late, 2);
    CHECK_STATUS(ms_offload_use(all[0].group, 0), MS_OK); /* without a fetch */
    CHECK_EQ_INT(stats_of(engine).n_late, 2);
    tensors_drop(&all[2]);
    end_all(all, 3);
    finish();
}

SUITE(fetch_order, CASE(first_in_reverse_order), CASE(then_in_the_order_of_the_last_step),
      CASE(groups_that_are_used_again), CASE(it_learns_anew), CASE(a_group_that_does_not_come),
      CASE(several_groups_of_a_layer), CASE(backward_in_the_order_of_forward), CASE(groups_that_need_no_fetch),
      CASE(late_groups_are_counted));
