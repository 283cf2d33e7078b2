/* test_shape_fit.c - profiles at other shapes: fitted exactly, compared with a shape that was not fitted, or refused.
 *
 * A shape without a profile is compared with a trace at that shape: every number where it occurs, units, and a
 * simulation.
 */
#include <stdio.h>
#include <string.h>

#include "devices.h"
#include "shaped.h"

static const ms__shape grid[] = {{2, 64}, {4, 64}, {2, 96}, {4, 96}, {2, 45}, {4, 45}, {3, 70}};

enum { N_GRID = sizeof grid / sizeof *grid };

static ms_profile *fit_of(const ms__shape *shapes, int64_t n, oddity odd) {
    ms_profile *profile = NULL;
    CHECK_STATUS(try_fit(shapes, n, odd, &profile), MS_OK);
    return profile;
}

static ms_profile *at(const ms_profile *profile, int64_t batch, int64_t length) {
    ms_profile *found = NULL;
    CHECK_STATUS(ms_profile_reshape(profile, batch, length, &found), MS_OK);
    return found;
}

static void refuse_at(const ms_profile *profile, int64_t batch, int64_t length, ms_status status, const char *why) {
    ms_profile *found = NULL;
    CHECK_STATUS(ms_profile_reshape(profile, batch, length, &found), status);
    CHECK(found == NULL);
    CHECK(strstr(ms_error_message(), why) != NULL);
}

static void refuse_fit(const ms__shape *shapes, int64_t n, oddity odd, ms_status status, const char *why) {
    ms_profile *found = NULL;
    CHECK_STATUS(try_fit(shapes, n, odd, &found), status);
    CHECK(found == NULL);
    if (strstr(ms_error_message(), why) == NULL) test_fail(__FILE__, __LINE__, "%s: %s", why, ms_error_message());
}

/* ---- Comparing ---- */

static void check_event(const ms__step *a, const ms__step *b, uint32_t event) {
    const ms__step_event *x = &a->events[event], *y = &b->events[event];
    CHECK_EQ_INT(x->kind, y->kind);
    if (x->kind == MS__OPERATION) {
        const ms__step_cost *c = &a->costs[x->index], *d = &b->costs[y->index];
        CHECK_EQ_INT(a->numbers[c->flops], b->numbers[d->flops]);
        CHECK_EQ_INT(a->numbers[c->bytes], b->numbers[d->bytes]);
        CHECK(c->flags == d->flags && c->element_bytes == d->element_bytes);
    } else if (x->kind == MS__SCRATCH) {
        const ms__step_scratch *c = &a->scratches[x->index], *d = &b->scratches[y->index];
        CHECK_EQ_INT(c->rule, d->rule);
        for (int j = 0; j < MS__SCRATCH_NUMBERS; j++) CHECK_EQ_INT(a->numbers[c->n[j]], b->numbers[d->n[j]]);
    } else {
        CHECK_EQ_INT(x->index, y->index);
        CHECK_EQ_INT(a->numbers[a->keys[x->index].size], b->numbers[b->keys[y->index].size]);
        CHECK_EQ_INT(a->keys[x->index].category, b->keys[y->index].category);
    }
}

static ms_simulation_summary simulate(const ms_profile *profile, const int32_t actions[2]) {
    ms_rates rates = {.struct_bytes = sizeof rates, .capability = 80, .fp32_gflops = 10, .memory_mb_per_s = 1000};
    rates.launch_ns = rates.dispatch_ns = 7;
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = profile,
                                     .actions = actions,
                                     .n_actions = 2,
                                     .device = DEVICE_OF(&rates, 10),
                                     .flags = MS_SIMULATE_ALLOCATOR};
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    CHECK_STATUS(ms_simulation_get_summary(sim, &summary), MS_OK);
    ms_simulation_destroy(sim);
    return summary;
}

static void check_same(const ms_profile *a, const ms_profile *b) {
    CHECK_EQ_INT(a->step->n_events, b->step->n_events);
    CHECK(a->step->batch == b->step->batch && a->step->length == b->step->length);
    for (uint32_t e = 0; e < a->step->n_events; e++) check_event(a->step, b->step, e);
    CHECK(a->n_units == b->n_units && a->resident_bytes == b->resident_bytes && a->outside_bytes == b->outside_bytes);
    for (int64_t i = 0; i < a->n_units; i++) {
        CHECK_EQ_STR(a->units[i].name, b->units[i].name);
        CHECK_EQ_INT(a->units[i].saved_bytes, b->units[i].saved_bytes);
        CHECK_EQ_INT(a->units[i].input_bytes, b->units[i].input_bytes);
        CHECK_EQ_INT(a->units[i].param_bytes, b->units[i].param_bytes);
        CHECK_EQ_INT(a->units[i].n_rows, b->units[i].n_rows);
        CHECK_EQ_INT(a->units[i].flags, b->units[i].flags);
    }
    for (int32_t plan = 0; plan < 4; plan++) {
        ms_simulation_summary x = simulate(a, (int32_t[]){plan & 1, plan >> 1});
        ms_simulation_summary y = simulate(b, (int32_t[]){plan & 1, plan >> 1});
        CHECK(memcmp(&x, &y, sizeof x) == 0);
    }
}

static void check_exact_with(const ms_profile *fitted, ms__shape shape, oddity odd) {
    ms_profile *known = at(fitted, shape.batch, shape.length), *traced = shaped_profile(shape, odd);
    check_same(known, traced);
    ms_profile_destroy(known);
    ms_profile_destroy(traced);
}

static void check_exact(const ms_profile *fitted, ms__shape shape) { check_exact_with(fitted, shape, NOTHING_ODD); }

static void check_all_exact(const ms__shape *shapes, int64_t n, oddity odd) {
    static const ms__shape others[] = {{1, 1}, {5, 33}, {7, 512}, {3, 31}, {1000, 1000}, {2, 64}};
    ms_profile *fitted = fit_of(shapes, n, odd);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) check_exact_with(fitted, others[i], odd);
    ms_profile_destroy(fitted);
}

/* ---- What fits ---- */

TEST(every_number_is_exact) {
    static const ms__shape scattered[] = {{5, 1009}, {13, 757}, {2, 11}, {7, 331}, {3, 127}, {17, 64}, {9, 500}};
    static const ms__shape many[] = {{2, 64}, {4, 64},  {2, 96}, {4, 96}, {2, 45},
                                     {4, 45}, {6, 131}, {8, 17}, {2, 64}, {3, 70}}; /* one of them twice */
    check_all_exact(grid, N_GRID, NOTHING_ODD);
    check_all_exact(scattered, sizeof scattered / sizeof *scattered, NOTHING_ODD);
    check_all_exact(many, sizeof many / sizeof *many, NOTHING_ODD);
}

TEST(masks_that_are_padded) {
    static const int64_t lengths[] = {64, 100, 128, 197, 512, 1000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        ms_shape found[MS_FIT_MAX_SHAPES];
        ms__shape shapes[MS_FIT_MAX_SHAPES];
        int64_t n = 0;
        CHECK_STATUS(ms_profile_get_fit_shapes((ms_shape){.batch = 2, .length = lengths[i]}, found, &n), MS_OK);
        for (int64_t k = 0; k < n; k++) shapes[k] = (ms__shape){found[k].batch, found[k].length};
        check_all_exact(shapes, n, PADDED_MASK);
    }
}

TEST(it_stands_at_the_first_shape) {
    ms_profile *fitted = fit_of(grid, N_GRID, NOTHING_ODD), *first = shaped_profile(grid[0], NOTHING_ODD);
    check_same(fitted, first);
    CHECK(fitted->step->coefficients != NULL && first->step->coefficients == NULL);
    CHECK_EQ_INT(fitted->step->denominator, 1);
    ms_profile_destroy(fitted);
    ms_profile_destroy(first);
}

/* At 8 x 8 many sizes are the same number: the batch, the length and the width are. */
TEST(numbers_that_are_equal_by_chance) {
    static const ms__shape shapes[] = {{8, 8}, {4, 8}, {8, 64}, {4, 64}, {8, 40}, {4, 40}, {3, 70}};
    ms_profile *fitted = fit_of(shapes, N_GRID, NOTHING_ODD), *first = shaped_profile(shapes[0], NOTHING_ODD);
    CHECK(fitted->step->n_numbers > first->step->n_numbers);
    for (uint32_t i = 0; i < fitted->step->n_numbers; i++)
        for (uint32_t j = 0; j < i; j++)
            CHECK(memcmp(&fitted->step->coefficients[(size_t)i * MS__N_TERMS],
                         &fitted->step->coefficients[(size_t)j * MS__N_TERMS],
                         MS__N_TERMS * sizeof *fitted->step->coefficients) != 0);
    check_exact(fitted, (ms__shape){9, 77});
    ms_profile_destroy(fitted);
    ms_profile_destroy(first);
}

TEST(batches_alone) {
    static const ms__shape shapes[] = {{2, 45}, {6, 45}, {3, 45}};
    ms_profile *fitted = fit_of(shapes, 3, NOTHING_ODD);
    check_exact(fitted, (ms__shape){1000, 45});
    refuse_at(fitted, 2, 46, MS_E_INVALID, "valid for length 45 only");
    for (uint32_t i = 0; i < fitted->step->n_numbers * MS__N_TERMS; i++)
        if (i % MS__N_TERMS > MS__TERM_B) CHECK_EQ_INT(fitted->step->coefficients[i], 0);
    ms_profile_destroy(fitted);
}

TEST(lengths_alone) {
    static const ms__shape shapes[] = {{2, 45}, {2, 64}, {2, 96}, {2, 11}, {2, 70}};
    ms_profile *fitted = fit_of(shapes, 5, NOTHING_ODD);
    check_exact(fitted, (ms__shape){2, 1000});
    refuse_at(fitted, 3, 45, MS_E_INVALID, "valid for batch 2 only");
    ms_profile_destroy(fitted);
}

/* Images have no length. */
TEST(an_unknown_length) {
    static const ms__shape shapes[] = {{2, 0}, {6, 0}, {3, 0}};
    ms_profile *fitted = fit_of(shapes, 3, NOTHING_ODD), *more = at(fitted, 9, 0);
    CHECK_EQ_INT(more->step->batch, 9);
    refuse_at(fitted, 9, 1, MS_E_INVALID, "this profile has no length");
    ms_profile_destroy(more);
    ms_profile_destroy(fitted);
}

/* If all lengths are multiples of the padding, it cannot be seen and counts as growth. */
TEST(padding_that_is_not_seen) {
    static const ms__shape shapes[] = {{2, 64}, {4, 64}, {2, 96}, {4, 96}, {2, 32}, {4, 32}, {3, 128}};
    ms_profile *fitted = fit_of(shapes, N_GRID, NOTHING_ODD);
    check_exact(fitted, (ms__shape){5, 320});
    ms_profile *known = at(fitted, 2, 40), *traced = shaped_profile((ms__shape){2, 40}, NOTHING_ODD);
    CHECK_EQ_INT(traced->units[0].saved_bytes - known->units[0].saved_bytes, 2 * 4 * (64 - 40));
    ms_profile_destroy(known);
    ms_profile_destroy(traced);
    ms_profile_destroy(fitted);
}

/* Half of batch times length: a whole number at all fitted shapes, rounded up elsewhere. */
TEST(fractions_are_rounded_up) {
    static const ms__shape shapes[] = {{2, 64}, {4, 64}, {2, 96}, {4, 96}, {2, 45}, {4, 45}, {6, 70}};
    ms_profile *fitted = fit_of(shapes, N_GRID, HALF);
    CHECK_EQ_INT(fitted->step->denominator, 2);
    ms_profile *even = at(fitted, 4, 31), *odd = at(fitted, 3, 31);
    int64_t others = 4 * 31 * SHAPED_WIDTH * 3; /* the products, attention and the output */
    int64_t mask = 31 * 31, sums = 4 * padded(31);
    CHECK_EQ_INT(even->units[0].saved_bytes, 4 * others + mask + 4 * sums + 4 * 31 / 2);
    CHECK_EQ_INT(odd->units[0].saved_bytes, 3 * others + mask + 3 * sums + 47);
    ms_profile_destroy(even);
    ms_profile_destroy(odd);
    ms_profile_destroy(fitted);
}

TEST(a_profile_at_a_shape_knows_the_others) {
    ms_profile *fitted = fit_of(grid, N_GRID, NOTHING_ODD), *once = at(fitted, 9, 99), *twice = at(once, 2, 64);
    check_same(fitted, twice);
    check_same_step(fitted->step, twice->step);
    ms_profile_destroy(fitted);
    check_exact(once, (ms__shape){5, 33}); /* each is valid by itself */
    ms_profile_destroy(once);
    ms_profile_destroy(twice);
}

TEST(files_know_the_other_shapes) {
    ms_profile *fitted = fit_of(grid, N_GRID, NOTHING_ODD), *read = NULL;
    char *text = NULL;
    CHECK_STATUS(ms_profile_to_json(fitted, &text), MS_OK);
    CHECK_STATUS(ms_profile_from_json(text, strlen(text), &read), MS_OK);
    check_same_step(fitted->step, read->step);
    check_exact(read, (ms__shape){5, 33});
    ms_free(text);
    ms_profile_destroy(read);
    ms_profile_destroy(fitted);
}

/* ---- What does not ---- */

TEST(steps_that_differ) {
    static const struct {
        oddity odd;
        const char *where;
    } cases[] = {
        {EXTRA_OP, "layer \"product\", forward, allocation 2: the events differ"},
        {OTHER_OP, "layer \"product\", forward, operation 1: the operations differ"},
        {OTHER_TYPE, "layer \"product\", forward, operation 1: the operations differ"},
        {EARLY_RELEASE, "layer \"product\", forward, release 0: the tensors differ"},
        {OTHER_UNIT, "layer \"product\", forward: the numbers of events differ"},
        {OTHER_CATEGORY, "layer \"product\", forward, allocation 2: the categories differ"},
        {OTHER_RULE, "backward, memory of a kernel 0: the kernels differ"},
        {OTHER_NAME, "product: a layer differs"},
        {OTHER_SIZE, "product: a layer differs"},
        {ONE_UNIT, "layers: their number differs"},
        {NO_RECOMPUTED, "layers: only one has a recomputed trace"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse_fit(grid, N_GRID, cases[i].odd, MS_E_MISMATCH, cases[i].where);
    CHECK(strstr(ms_error_message(), "at 2 x 64 and 3 x 70 the step differs") != NULL);
}

TEST(numbers_that_do_not_fit) {
    refuse_fit(grid, N_GRID, ODD_BYTES, MS_E_MISMATCH,
               "layer \"product\", forward, allocation 1: its size in bytes at 3 x 70 is 6724; the other shapes "
               "predict 6720");
    refuse_fit(grid, N_GRID, ODD_FLOPS, MS_E_MISMATCH,
               "layer \"product\", forward, operation 0: the number of its multiplications at 3 x 70 is 30240; "
               "the other shapes predict 26880");
    refuse_fit(grid, N_GRID, ODD_MEMORY, MS_E_MISMATCH,
               "layer \"product\", backward, operation 1: the number of bytes it");
    refuse_fit(grid, N_GRID, CUBE, MS_E_MISMATCH, "layer \"attention\", forward, allocation 3: its size in bytes");
}

/* The third length shows that a square is not a line. */
TEST(too_few_lengths) {
    static const ms__shape shapes[] = {{2, 64}, {4, 64}, {2, 96}, {4, 96}, {3, 128}};
    refuse_fit(shapes, 5, NOTHING_ODD, MS_E_MISMATCH, "layer \"attention\", forward");
}

TEST(a_shape_that_tells_nothing) {
    static const ms__shape same[] = {{2, 64}, {2, 64}}, seen[] = {{2, 64}, {4, 64}, {4, 64}},
                           batch_seen[] = {{2, 64}, {4, 64}, {2, 96}, {4, 128}},
                           length_seen[] = {{2, 64}, {4, 64}, {2, 96}, {3, 96}};
    refuse_fit(same, 2, NOTHING_ODD, MS_E_INVALID, "that no other profile has");
    refuse_fit(seen, 3, NOTHING_ODD, MS_E_INVALID, "that no other profile has");
    refuse_fit(batch_seen, 4, NOTHING_ODD, MS_E_INVALID, "that no other profile has");
    refuse_fit(length_seen, 4, NOTHING_ODD, MS_E_INVALID, "that no other profile has");
}

TEST(unknown_shapes) {
    static const ms__shape batch[] = {{2, 64}, {0, 64}, {3, 64}}, length[] = {{2, 64}, {4, 64}, {3, 0}};
    refuse_fit(batch, 3, NOTHING_ODD, MS_E_INVALID, "profile 1 has no shape");
    refuse_fit(length, 3, NOTHING_ODD, MS_E_INVALID, "profile 2 has no shape");
}

TEST(arguments_are_checked) {
    ms_profile *one = shaped_profile(grid[0], NOTHING_ODD), *found = NULL;
    const ms_profile *profiles[MS__MAX_SHAPES + 1] = {one, NULL};
    CHECK_STATUS(ms_profile_fit(profiles, 1, &found), MS_E_INVALID);
    CHECK_STATUS(ms_profile_fit(profiles, 0, &found), MS_E_INVALID);
    CHECK_STATUS(ms_profile_fit(profiles, -1, &found), MS_E_INVALID);
    CHECK_STATUS(ms_profile_fit(NULL, 2, &found), MS_E_INVALID);
    CHECK_STATUS(ms_profile_fit(profiles, 2, &found), MS_E_INVALID);
    CHECK_STATUS(ms_profile_fit(profiles, 2, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_profile_fit(profiles, MS__MAX_SHAPES + 1, &found), MS_E_LIMIT);
    CHECK_STATUS(ms_profile_reshape(NULL, 2, 64, &found), MS_E_INVALID);
    CHECK_STATUS(ms_profile_reshape(one, 2, 64, NULL), MS_E_INVALID);
    CHECK(found == NULL);
    ms_profile_destroy(one);
}

TEST(one_shape_is_known_as_it_is) {
    ms_profile *one = shaped_profile(grid[0], NOTHING_ODD), *again = at(one, 2, 64);
    check_same(one, again);
    check_same_step(one->step, again->step);
    refuse_at(one, 4, 64, MS_E_INVALID, "valid for batch 2 only");
    refuse_at(one, 2, 65, MS_E_INVALID, "valid for length 64 only");
    ms_profile_destroy(one);
    ms_profile_destroy(again);
}

/* ---- Limits ---- */

TEST(shapes_that_are_too_large) {
    ms_profile *fitted = fit_of(grid, N_GRID, NOTHING_ODD);
    ms_profile_destroy(at(fitted, 1 << 20, 1 << 16)); /* 2^54 bytes of scores */
    refuse_at(fitted, 1 << 20, 1 << 20, MS_E_LIMIT, "too large");
    refuse_at(fitted, 1 << 20, (1 << 19) + 7, MS_E_LIMIT, "a number of the step is negative or too large");
    refuse_at(fitted, 1 << 17, 400000, MS_E_LIMIT, "in sum");
    refuse_at(fitted, INT64_MAX, INT64_MAX, MS_E_LIMIT, "too large");
    refuse_at(fitted, 0, 64, MS_E_INVALID, "at least 1");
    refuse_at(fitted, 2, 0, MS_E_INVALID, "at least 1");
    refuse_at(fitted, -1, 64, MS_E_INVALID, "at least 1");
    refuse_at(fitted, 2, INT64_MIN, MS_E_INVALID, "at least 1");
    ms_profile_destroy(fitted);
}

TEST(sizes_that_become_negative) {
    ms_profile *fitted = fit_of(grid, N_GRID, SHRINKING), *least = at(fitted, 2, 400);
    refuse_at(fitted, 2, 401, MS_E_LIMIT, "negative");
    ms_profile_destroy(fitted);
    ms_profile_destroy(least);
}

/* ---- Terms ---- */

TEST(terms_of_a_shape) {
    static const int64_t wanted[MS__N_TERMS] = {1, 3, 70, 210, 4900, 14700, 288, 16800};
    int64_t terms[MS__N_TERMS];
    CHECK(ms__terms_of((ms__shape){3, 70}, terms));
    for (int k = 0; k < MS__N_TERMS; k++) CHECK_EQ_INT(terms[k], wanted[k]);
    CHECK(ms__terms_of((ms__shape){0, 0}, terms));
    CHECK_EQ_INT(terms[MS__TERM_BP], 0);
    CHECK(ms__terms_of((ms__shape){1, 1 << 30}, terms));
    CHECK(!ms__terms_of((ms__shape){2, 1 << 30}, terms));
    CHECK(!ms__terms_of((ms__shape){1, (1 << 30) + 1}, terms));
    CHECK(!ms__terms_of((ms__shape){(1 << 30) + 1, 0}, terms));
    CHECK(!ms__terms_of((ms__shape){-1, 1}, terms));
    CHECK(!ms__terms_of((ms__shape){1, -1}, terms));
}

/* The terms that a solver for these shapes uses, as text. */
static const char *told(const ms__shape *shapes, int64_t n, uint32_t left_out) {
    static char text[64];
    static const char *const names[MS__N_TERMS] = {"1", "b", "t", "bt", "tt", "btt", "bp", "btq"};
    static ms__solver solver;
    CHECK_STATUS(ms__solver_prepare(shapes, n, left_out, &solver), MS_OK);
    size_t length = 0;
    text[0] = '\0';
    for (int k = 0; k < MS__N_TERMS; k++)
        if (ms__solver_tells(&solver, k))
            length += (size_t)snprintf(text + length, sizeof text - length, "%s%s", length > 0 ? " " : "", names[k]);
    return text;
}

TEST(terms_that_shapes_tell) {
    static const ms__shape diagonal[] = {{2, 64}, {4, 128}, {8, 256}}, cross[] = {{2, 64}, {4, 64}, {2, 96}},
                           seven[] = {{2, 64}, {4, 64}, {2, 96}, {4, 96}, {2, 45}, {4, 45}, {3, 70}};
    CHECK_EQ_STR(told(grid, 1, 0), "1");
    CHECK_EQ_STR(told(grid, 2, 0), "1 b");
    CHECK_EQ_STR(told(cross, 3, 0), "1 b t");
    CHECK_EQ_STR(told(grid, 4, 0), "1 b t bt");
    CHECK_EQ_STR(told(grid, 5, 0), "1 b t bt tt");
    CHECK_EQ_STR(told(grid, 6, 0), "1 b t bt tt btt");
    CHECK_EQ_STR(told(grid, 6, 1U << MS__TERM_B), "1 t bt tt btt bp");
    CHECK_EQ_STR(told(grid, 6, 1U << MS__TERM_TT),
                 "1 b t bt btt"); /* for three lengths, padding looks like a square and a line */
    CHECK_EQ_STR(told(seven, 7, 0), "1 b t bt tt btt bp");
    CHECK_EQ_STR(told(diagonal, 3, 0), "1 b bt");
    CHECK_EQ_STR(told((ms__shape[]){{2, 0}, {4, 0}, {9, 0}}, 3, 0), "1 b");
    CHECK_EQ_STR(told((ms__shape[]){{0, 3}, {0, 4}, {0, 9}}, 3, 0), "1 t tt");
    CHECK_EQ_STR(told((ms__shape[]){{0, 0}}, 1, 0), "1");
}

/* Odd shapes of ordinary size can be fitted exactly; very large ones are refused. */
TEST(arithmetic_that_does_not_fit) {
    static const ms__shape odd[] = {{61, 4093}, {31, 2039}, {13, 1021}, {7, 509}, {5, 251}, {3, 127}, {2, 61}};
    static const ms__shape large[] = {{1048573, 1000003}, {524287, 500009}, {262139, 300007}, {131071, 200003},
                                      {65521, 150001},    {32749, 120011},  {16381, 110017}};
    static ms__solver solver;
    CHECK_STATUS(ms__solver_prepare(odd, 7, 0, &solver), MS_OK);
    CHECK_STATUS(ms__solver_prepare(large, 7, 0, &solver), MS_E_LIMIT);
    CHECK_STATUS(ms__solver_prepare((ms__shape[]){{1 << 20, 1 << 21}}, 1, 0, &solver), MS_E_LIMIT);
}

SUITE(shapes, CASE(every_number_is_exact), CASE(masks_that_are_padded), CASE(it_stands_at_the_first_shape),
      CASE(numbers_that_are_equal_by_chance), CASE(batches_alone), CASE(lengths_alone), CASE(an_unknown_length),
      CASE(padding_that_is_not_seen), CASE(fractions_are_rounded_up), CASE(a_profile_at_a_shape_knows_the_others),
      CASE(files_know_the_other_shapes), CASE(steps_that_differ), CASE(numbers_that_do_not_fit), CASE(too_few_lengths),
      CASE(a_shape_that_tells_nothing), CASE(unknown_shapes), CASE(arguments_are_checked),
      CASE(one_shape_is_known_as_it_is), CASE(shapes_that_are_too_large), CASE(sizes_that_become_negative),
      CASE(terms_of_a_shape), CASE(terms_that_shapes_tell), CASE(arithmetic_that_does_not_fit));
