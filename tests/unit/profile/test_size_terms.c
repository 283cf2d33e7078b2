/* test_size_terms.c - numbers as sums of a few terms in the sizes of inputs. */
#include "profile/size_terms.h"

#include "runner.h"

enum { N = MS__FIT_SHAPES };

typedef struct fixture {
    ms__arena arena;
    ms__size_terms terms;
    int64_t sizes[N][MS__MAX_VARIABLES];
} fixture;

/* Variables that were seen as large as this; 0: there is none. */
static void open_terms(fixture *f, const int64_t largest[MS__MAX_VARIABLES]) {
    int n = 0;
    int64_t grain;
    *f = (fixture){0};
    while (n < MS__MAX_VARIABLES && largest[n] > 0) n++;
    for (int p = 0; p < N; p++)
        for (int v = 0; v < n; v++) f->sizes[p][v] = ms__size_value(largest[v], v, p, &grain);
    CHECK_STATUS(ms__size_terms_make(&f->arena, n, (const int64_t (*)[MS__MAX_VARIABLES])f->sizes, &f->terms), MS_OK);
}

static int64_t rounded(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/* Numbers as steps have them, of a batch b and two lengths s and t. */
static int64_t number_of(int which, int64_t b, int64_t s, int64_t t) {
    switch (which) {
    case 0:
        return 4096;
    case 1:
        return 4 * b * s * 512;
    case 2:
        return 4 * b * 8 * s * t;
    case 3:
        return 4 * b * 8 * t * t;
    case 4:
        return 4 * b * (t - 1) * 32000;
    case 5:
        return 4 * (b * s * 512 + 512 * 512);
    case 6:
        return 2 * (b * s * 64 + 2 * b * t * 64 + b * s * t);
    case 7:
        return 16 + 2 * b * s * 64 + 4 * b * t * 64 + b * s * t;
    case 8:
        return 4 * b * 8 * rounded(s, 32);
    case 9:
        return 2 * b * t * rounded(t, 16);
    case 10:
        return 4 * b * s * s * t * t;
    case 11:
        return b * s * t / 2;
    default:
        return -1;
    }
}

TEST(numbers_of_steps_are_found) {
    static const int64_t largest[][MS__MAX_VARIABLES] = {{4, 512, 512}, {2, 100, 77}, {64, 60, 1024}, {3, 300, 41}};
    static const int64_t others[][MS__MAX_VARIABLES] = {{7, 333, 90}, {1, 2048, 65}, {32, 64, 64}};
    for (size_t i = 0; i < sizeof largest / sizeof *largest; i++) {
        fixture f;
        open_terms(&f, largest[i]);
        for (int which = 0; number_of(which, 1, 1, 1) >= 0; which++) {
            int64_t values[N], value = -1;
            ms__size_sum sum;
            bool is_padded = which == 8 || which == 9;
            for (int p = 0; p < N; p++) values[p] = number_of(which, f.sizes[p][0], f.sizes[p][1], f.sizes[p][2]);
            CHECK(ms__size_terms_find(&f.terms, values, &sum));
            for (size_t o = 0; o < sizeof others / sizeof *others && !is_padded; o++) {
                CHECK(ms__size_sum_value(&f.terms, &sum, others[o], &value));
                CHECK_EQ_INT(value, number_of(which, others[o][0], others[o][1], others[o][2]));
            }
        }
        ms__arena_free(&f.arena);
    }
}

/* Lengths that are padded by different shares tell padding from growth. What all of them are multiples of is not seen:
 * here 16, which is why plans are made for lengths that are rounded up to it. */
TEST(padding_is_found) {
    fixture f;
    open_terms(&f, (const int64_t[MS__MAX_VARIABLES]){4, 128, 128});
    for (int which = 8; which <= 9; which++) {
        int64_t values[N], value = -1;
        ms__size_sum sum;
        for (int p = 0; p < N; p++) values[p] = number_of(which, f.sizes[p][0], f.sizes[p][1], f.sizes[p][2]);
        CHECK(ms__size_terms_find(&f.terms, values, &sum));
        CHECK(ms__size_sum_value(&f.terms, &sum, (const int64_t[MS__MAX_VARIABLES]){5, 336, 80}, &value));
        CHECK_EQ_INT(value, number_of(which, 5, 336, 80));
    }
    ms__arena_free(&f.arena);
}

TEST(what_is_no_sum_is_not_found) {
    fixture f;
    ms__size_sum sum;
    int64_t value = -1;
    open_terms(&f, (const int64_t[MS__MAX_VARIABLES]){512, 512});
    int64_t values[N], cubes[N];
    for (int p = 0; p < N; p++) {
        cubes[p] = f.sizes[p][0] * f.sizes[p][0] * f.sizes[p][0];
        values[p] = f.sizes[p][0] * f.sizes[p][1] + (p == N - 1 ? 4 : 0);
    }
    CHECK(!ms__size_terms_find(&f.terms, values, &sum) && !ms__size_terms_find(&f.terms, cubes, &sum));
    /* An estimate is nowhere below. */
    ms__size_terms_estimate(&f.terms, cubes, &sum);
    for (int p = 0; p < N; p++) CHECK(ms__size_sum_value(&f.terms, &sum, f.sizes[p], &value) && value >= cubes[p]);
    ms__size_terms_estimate(&f.terms, (const int64_t[N]){0, 1, 1, 0, 1}, &sum);
    CHECK(ms__size_sum_value(&f.terms, &sum, f.sizes[0], &value) && value == 1);
    ms__arena_free(&f.arena);
}

/* Negative or too large numbers are noticed, at the shapes of the fit and elsewhere. */
TEST(sizes_out_of_range) {
    fixture f;
    ms__size_sum sum;
    int64_t value = -1, shrinking[N];
    open_terms(&f, (const int64_t[MS__MAX_VARIABLES]){64});
    for (int p = 0; p < N; p++) shrinking[p] = 1000 - 10 * f.sizes[p][0];
    CHECK(ms__size_terms_find(&f.terms, shrinking, &sum));
    CHECK(ms__size_sum_value(&f.terms, &sum, (const int64_t[MS__MAX_VARIABLES]){100}, &value) && value == 0);
    CHECK(!ms__size_sum_value(&f.terms, &sum, (const int64_t[MS__MAX_VARIABLES]){101}, &value));
    CHECK(!ms__size_sum_value(&f.terms, &sum, (const int64_t[MS__MAX_VARIABLES]){INT64_MAX}, &value));
    ms__arena_free(&f.arena);
    static const int64_t huge[N][MS__MAX_VARIABLES] = {{1 << 30}, {1 << 29}, {1 << 28}, {3 << 28}, {5 << 27}};
    ms__size_terms terms;
    ms__arena arena = {0};
    CHECK_STATUS(ms__size_terms_make(&arena, 1, huge, &terms), MS_OK);
    static const int64_t larger[N][MS__MAX_VARIABLES] = {{INT64_C(1) << 40}, {1}, {2}, {3}, {4}};
    CHECK_STATUS(ms__size_terms_make(&arena, 1, larger, &terms), MS_E_LIMIT);
    ms__arena_free(&arena);
}

/* What is no sum grows with the product of all variables, however many there are. */
TEST(estimates_grow_with_all_variables) {
    static const int64_t values[N] = {1000003, 500009, 700001, 900007, 300007};
    for (int n = 1; n <= MS__MAX_VARIABLES; n++) {
        fixture f;
        ms__size_sum sum;
        int64_t largest[MS__MAX_VARIABLES] = {0}, larger[MS__MAX_VARIABLES] = {0}, grown = -1, factor = 1;
        for (int v = 0; v < n; v++) largest[v] = 64 << v;
        open_terms(&f, largest);
        CHECK(!ms__size_terms_find(&f.terms, values, &sum));
        ms__size_terms_estimate(&f.terms, values, &sum);
        for (int p = 0; p < N; p++) {
            CHECK(ms__size_sum_value(&f.terms, &sum, f.sizes[p], &grown));
            CHECK(grown >= values[p]);
        }
        for (int v = 0; v < n; v++, factor *= 4) larger[v] = 4 * f.sizes[0][v];
        CHECK(ms__size_sum_value(&f.terms, &sum, larger, &grown));
        CHECK(grown >= factor * values[0]);
        ms__arena_free(&f.arena);
    }
}

/* Four variables at most; none of them is a combination of others. */
TEST(four_variables) {
    fixture f;
    open_terms(&f, (const int64_t[MS__MAX_VARIABLES]){8, 700, 2000, 64});
    int64_t values[N], value = -1;
    ms__size_sum sum;
    for (int p = 0; p < N; p++) {
        const int64_t *x = f.sizes[p];
        values[p] = 128 * x[1] + 64 * x[2] + 4 * x[0] * x[3];
    }
    CHECK(ms__size_terms_find(&f.terms, values, &sum) && sum.n == 3);
    CHECK(ms__size_sum_value(&f.terms, &sum, (const int64_t[MS__MAX_VARIABLES]){3, 5, 7, 11}, &value));
    CHECK_EQ_INT(value, 128 * 5 + 64 * 7 + 4 * 3 * 11);
    ms__arena_free(&f.arena);
}

SUITE(size_terms, CASE(numbers_of_steps_are_found), CASE(padding_is_found), CASE(what_is_no_sum_is_not_found),
      CASE(sizes_out_of_range), CASE(estimates_grow_with_all_variables), CASE(four_variables));
