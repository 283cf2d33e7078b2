/* test_varying_sizes.c - which sizes of inputs vary together, and how much an input grows. */
#include "plan/varying_sizes.h"

#include "plan/peak_bound.h"
#include "runner.h"

enum { N_SIZES = 6 }; /* tokens and their mask, or a matrix of another kind: [a, b], [c, d] */

TEST(equal_sizes_are_one_variable) {
    static const int64_t base[N_SIZES] = {2, 4, 64, 2, 4, 64}, longer[N_SIZES] = {2, 4, 80, 2, 4, 80};
    static const int64_t split[N_SIZES] = {2, 4, 80, 2, 4, 72}, more[N_SIZES] = {2, 8, 80, 2, 8, 72};
    ms__varying v, other;
    int64_t values[MS__MAX_VARIABLES], sizes[N_SIZES];
    CHECK(!ms__varying_find((const int64_t *const[]){base, base}, 2, N_SIZES, &v)); /* nothing varies */
    CHECK(ms__varying_find((const int64_t *const[]){base, longer}, 2, N_SIZES, &v));
    CHECK(v.n == 1 && v.of[2] == 1 && v.of[5] == 1 && v.of[1] == 0 && !v.is_first[0] && v.largest[0] == 80);
    CHECK(ms__varying_values(&v, base, longer, N_SIZES, values) && values[0] == 80);
    CHECK(!ms__varying_values(&v, base, split, N_SIZES, values)); /* two lengths that were one */
    CHECK(!ms__varying_values(&v, base, base, N_SIZES - 1, values));
    CHECK(ms__varying_find((const int64_t *const[]){base, longer, split, more}, 4, N_SIZES, &other));
    CHECK(other.n == 3 && other.is_first[0] && !other.is_first[1] && !ms__varying_equal(&v, &other));
    CHECK(ms__varying_equal(&other, &other));
    CHECK(ms__varying_values(&other, base, more, N_SIZES, values));
    CHECK(values[0] == 8 && values[1] == 80 && values[2] == 72);
    values[1] = 81;
    ms__varying_round_up(&other, values);
    CHECK(values[0] == 8 && values[1] == 88 && values[2] == 72); /* the first dimension is not rounded */
    ms__varying_fill(&other, base, values, sizes);
    CHECK(sizes[0] == 2 && sizes[1] == 8 && sizes[2] == 88 && sizes[4] == 8 && sizes[5] == 72);
}

TEST(too_many_variables) {
    static const int64_t base[] = {5, 1, 2, 3, 4, 5}, other[] = {5, 2, 4, 6, 8, 10};
    ms__varying v;
    CHECK(!ms__varying_find((const int64_t *const[]){base, other}, 2, N_SIZES, &v));
    static int64_t long_one[MS__MAX_SIZES + 1];
    CHECK(!ms__varying_find((const int64_t *const[]){long_one, long_one}, 2, MS__MAX_SIZES + 1, &v));
}

/* The sizes at which a step is profiled: no larger than what was seen, unless that is little. */
TEST(shapes_of_a_fit) {
    static const int64_t base[] = {2, 2, 500}, other[] = {2, 3, 1000};
    ms__varying v;
    CHECK(ms__varying_find((const int64_t *const[]){base, other}, 2, 3, &v));
    for (int shape = 0; shape < MS__FIT_SHAPES; shape++) {
        int64_t values[MS__MAX_VARIABLES];
        ms__varying_fit_values(&v, shape, values);
        CHECK(values[0] >= 3 && values[0] <= 8 && values[1] % 32 == 0 && values[1] >= 256 && values[1] <= 1000);
        CHECK(values[2] == 0 && values[3] == 0);
    }
}

TEST(growth_of_inputs) {
    static const int64_t base[N_SIZES] = {2, 4, 64, 2, 4, 10}, longer[N_SIZES] = {2, 4, 96, 2, 4, 12};
    static const int64_t both[N_SIZES] = {2, 8, 64, 2, 8, 20}, mixed[N_SIZES] = {2, 2, 128, 2, 2, 9};
    static const int64_t none[N_SIZES] = {2, 0, 64, 2, 4, 10}, far[N_SIZES] = {2, 4, INT64_MAX, 2, 4, 10};
    CHECK_EQ_INT(ms__growth_of(base, base, N_SIZES), MS__GROWTH_ONE);
    CHECK_EQ_INT(ms__growth_of(base, longer, N_SIZES), MS__GROWTH_ONE * 9 / 4);
    CHECK_EQ_INT(ms__growth_of(base, both, N_SIZES), MS__GROWTH_ONE * 16); /* of the second tensor */
    CHECK_EQ_INT(ms__growth_of(base, mixed, N_SIZES), MS__GROWTH_ONE * 4); /* what shrinks does not make up for it */
    CHECK_EQ_INT(ms__growth_of(none, base, N_SIZES), INT64_MAX);
    CHECK_EQ_INT(ms__growth_of(base, far, N_SIZES), INT64_MAX);
    ms__peak_bound empty = {.least_bytes = 7};
    CHECK_EQ_INT(ms__peak_bound_at(&empty, MS__GROWTH_ONE), 7);
    CHECK_EQ_INT(ms__peak_bound_at(&empty, INT64_MAX), INT64_MAX);
}

SUITE(varying_sizes, CASE(equal_sizes_are_one_variable), CASE(too_many_variables), CASE(shapes_of_a_fit),
      CASE(growth_of_inputs));
