/* test_trade.c - what plans are to people and over shapes: explanations, the trade of memory for time, guards. */
#include "plans.h"

#include <stdbool.h>
#include <string.h>

#include "shaped.h"

#define BASELINE 22016
#define MAX_POINTS 16

static const ms_rates rates = {.struct_bytes = sizeof(ms_rates),
                               .memory_bytes = 1 << 30,
                               .fp32_gflops = 10,
                               .memory_mb_per_s = 1000,
                               .to_device_mb_per_s = 512,
                               .from_device_mb_per_s = 512,
                               .launch_ns = 100,
                               .dispatch_ns = 1000};

static const ms_device device = {.struct_bytes = sizeof(ms_device), .rates = &rates, .kind = MS_DEVICE_HOST};

/* Everything may be done but copies. */
static ms_plan_request step_request(const ms_profile *profile, int64_t budget_bytes) {
    ms_plan_request request = request_of(profile, budget_bytes, MS_PLAN_FASTEST);
    request.device = &device;
    request.actions = 1U << MS_ACTION_RECOMPUTE | 1U << MS_ACTION_TILE;
    request.model_options = MS_MODEL_TILE_LOSS;
    return request;
}

/* ---- Explanations ---- */

static void check_text(const ms_plan *plan, const char *const *parts) {
    char *text = NULL;
    CHECK_STATUS(ms_plan_explain(plan, &text), MS_OK);
    for (; *parts != NULL; parts++)
        if (strstr(text, *parts) == NULL) test_fail(__FILE__, __LINE__, "\"%s\" is not in: %s", *parts, text);
    ms_free(text);
}

TEST(what_a_plan_says) {
    ms_profile *profile = two_unit_profile();
    ms_plan_request request = step_request(profile, 17919);
    ms_plan *plan = plan_of(&request);
    check_text(plan, (const char *const[]){"The peak is in backward of layers.1", "All 2 layers are kept",
                                           "The model: tile loss.", "+28.5 %", "layers.0", NULL});
    ms_plan_destroy(plan);
    request.model_options = 0;
    request.budget_bytes = 17920;
    plan = plan_of(&request);
    check_text(plan, (const char *const[]){"Of 2 layers, 1 are changed: 1 x recompute", "would not fit", NULL});
    ms_plan_destroy(plan);
    request.flags = 0;
    request.budget_bytes = 4 * BASELINE + 4;
    plan = plan_of(&request);
    check_text(plan, (const char *const[]){"under a quarter of the budget", "nothing is done", NULL});
    ms_plan_destroy(plan);
    ms_profile_destroy(profile);
}

TEST(plans_that_say_little) {
    ms_plan *none = plan_for(NULL, 0, 2000 * KB, MS_PLAN_FASTEST);
    check_text(none, (const char *const[]){"All 0 layers", NULL});
    ms_plan_destroy(none);
    ms_unit units[4];
    equal_units(units);
    units[1].flags = MS_UNIT_RUN;
    units[2].flags = MS_UNIT_ELIGIBLE;
    ms_plan *plan = plan_for(units, 4, 1400 * KB, MS_PLAN_FASTEST);
    check_text(plan, (const char *const[]){"may not be changed", "did not run", "layers.3", NULL});
    char *text = NULL;
    CHECK_STATUS(ms_plan_explain(NULL, &text), MS_E_INVALID);
    CHECK_STATUS(ms_plan_explain(plan, NULL), MS_E_INVALID);
    CHECK(text == NULL);
    ms_plan_destroy(plan);
}

/* The text is UTF-8 also where a name is too long for it. */
TEST(long_names_are_cut_between_characters) {
    char name[128] = "a";
    for (int i = 0; i < 60; i++) strcat(name, "\xC3\xA9");
    ms_unit unit = plain_unit(name, 100 * KB, 10 * KB);
    for (int first = 0; first < 2; first++) {
        unit.name = name + first; /* 121 bytes, and 120 */
        ms_plan *plan = plan_for(&unit, 1, 2000 * KB, MS_PLAN_FASTEST);
        char *text = NULL;
        CHECK_STATUS(ms_plan_explain(plan, &text), MS_OK);
        int64_t n = 0;
        for (const char *at = strchr(text, '\xC3'); at != NULL; at = strchr(at + 1, '\xC3'), n++)
            CHECK(at[1] == '\xA9');
        CHECK_EQ_INT(n, first == 0 ? 23 : 24); /* 47 or 48 bytes */
        ms_free(text);
        ms_plan_destroy(plan);
    }
}

/* ---- The trade ---- */

static int64_t pareto_of(const ms_plan_request *request, ms_pareto_point points[MAX_POINTS], int64_t capacity) {
    int64_t n = -1;
    CHECK_STATUS(ms_plan_pareto(request, points, capacity, &n), MS_OK);
    CHECK(n >= 1 && n <= capacity);
    for (int64_t i = 1; i < n; i++)
        CHECK(points[i].peak_bytes < points[i - 1].peak_bytes && points[i].step_ns > points[i - 1].step_ns);
    return n;
}

/* The plans of test_decide.c: kept, one recomputed, the loss by tiles, and that with a unit in tiles. */
TEST(the_trade_of_the_small_model) {
    static const int64_t peaks[] = {BASELINE, 17920, 15744, 12800};
    ms_profile *profile = two_unit_profile();
    ms_plan_request request = step_request(profile, 1); /* which does not matter */
    ms_pareto_point points[MAX_POINTS];
    int64_t n = pareto_of(&request, points, MAX_POINTS);
    CHECK_EQ_INT(n, 4);
    for (int64_t i = 0; i < n; i++) CHECK_EQ_INT(points[i].peak_bytes, peaks[i]);
    CHECK_EQ_INT(points[0].step_ns, 7700);
    CHECK_EQ_INT(points[0].n_changed + points[0].model_options, 0);
    CHECK_EQ_INT(points[1].n_changed, 1);
    CHECK_EQ_INT(points[2].model_options, MS_MODEL_TILE_LOSS);
    CHECK_EQ_INT(points[3].n_changed, 1);
    CHECK_EQ_INT(points[3].model_options, MS_MODEL_TILE_LOSS);
    n = pareto_of(&request, points, 2); /* the ends */
    CHECK_EQ_INT(n, 2);
    CHECK_EQ_INT(points[0].peak_bytes, BASELINE);
    CHECK_EQ_INT(points[1].peak_bytes, 12800);
    ms_profile_destroy(profile);
}

/* A budget that is a point's peak has a plan that is no slower, but for what ticks round. */
TEST(points_are_plans) {
    ms_profile *profile = two_unit_profile();
    ms_plan_request request = step_request(profile, 1);
    request.actions = (1U << MS_N_ACTIONS) - 1;
    request.model_options = MS_MODEL_ALL;
    request.host_limit_bytes = 1 << 20;
    ms_pareto_point points[MAX_POINTS];
    int64_t n = pareto_of(&request, points, MAX_POINTS);
    for (int64_t i = 0; i < n; i++) {
        request.budget_bytes = points[i].peak_bytes;
        ms_plan *plan = plan_of(&request);
        CHECK(summary_of(plan).step_ns <= points[i].step_ns + 2 * 60);
        ms_plan_destroy(plan);
    }
    ms_profile_destroy(profile);
}

TEST(trades_that_are_refused) {
    ms_profile *profile = two_unit_profile();
    ms_plan_request request = step_request(profile, BASELINE);
    ms_pareto_point points[MAX_POINTS];
    int64_t n = -1;
    CHECK_STATUS(ms_plan_pareto(NULL, points, MAX_POINTS, &n), MS_E_INVALID);
    CHECK_STATUS(ms_plan_pareto(&request, NULL, MAX_POINTS, &n), MS_E_INVALID);
    CHECK_STATUS(ms_plan_pareto(&request, points, MAX_POINTS, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_plan_pareto(&request, points, 1, &n), MS_E_INVALID);
    CHECK_STATUS(ms_plan_pareto(&request, points, 1025, &n), MS_E_INVALID);
    CHECK_EQ_INT(n, -1);
    ms_profile_destroy(profile);
}

/* ---- Guards ---- */

static ms_profile *fitted_profile(void) {
    static const ms__shape shapes[] = {{2, 64}, {4, 64}, {2, 96}, {4, 96}, {2, 45}, {4, 45}, {3, 70}};
    ms_profile *profile = NULL;
    CHECK_STATUS(try_fit(shapes, 7, NOTHING_ODD, &profile), MS_OK);
    return profile;
}

static int64_t kept_peak_at(const ms_profile *profile, int64_t batch, int64_t length) {
    ms_profile *other = NULL;
    CHECK_STATUS(ms_profile_reshape(profile, batch, length, &other), MS_OK);
    ms_plan_request request = step_request(other, INT64_MAX / 8);
    ms_plan *plan = plan_of(&request);
    int64_t peak = summary_of(plan).baseline_peak_bytes;
    ms_plan_destroy(plan);
    ms_profile_destroy(other);
    return peak;
}

static const ms_plan *plan_at(ms_shape_plans *guard, int64_t batch, int64_t length) {
    const ms_plan *plan = NULL;
    CHECK_STATUS(ms_shape_plans_find(guard, batch, length, &plan), MS_OK);
    return plan;
}

/* All kept fits up to 4 x 64; beyond, units are changed. */
TEST(a_guard_over_shapes) {
    ms_profile *profile = fitted_profile();
    ms_plan_request request = step_request(profile, kept_peak_at(profile, 4, 64));
    request.model_options = 0;
    ms_plan *base = plan_of(&request);
    ms_shape_plans *guard = NULL;
    const ms_plan *none = NULL;
    CHECK_EQ_INT(summary_of(base).n_changed, 0);
    CHECK_STATUS(ms_shape_plans_create(&request, base, &guard), MS_OK);
    CHECK(plan_at(guard, 2, 64) == base && plan_at(guard, 1, 3) == base && plan_at(guard, 4, 64) == base);
    const ms_plan *larger = plan_at(guard, 4, 72);
    CHECK(larger != base && summary_of(larger).n_changed > 0);
    CHECK(summary_of(larger).predicted_peak_bytes <= request.budget_bytes);
    CHECK_EQ_INT(summary_of(larger).batch, 4);
    CHECK(plan_at(guard, 4, 72) == larger);
    CHECK(plan_at(guard, 4, 71) == larger); /* of the same bucket */
    CHECK_STATUS(ms_shape_plans_find(guard, 4000, 512, &none), MS_E_BUDGET);
    CHECK(none == NULL && plan_at(guard, 2, 64) == base);
    ms_shape_plans_destroy(guard);
    ms_plan_destroy(base);
    ms_profile_destroy(profile);
}

TEST(guards_that_are_refused) {
    ms_profile *profile = fitted_profile(), *units = equal_profile(), *one = two_unit_profile();
    ms_plan_request request = step_request(profile, INT64_MAX / 8), plain = request_of(units, 4000 * KB, 0);
    ms_plan_request single = step_request(one, INT64_MAX / 8);
    ms_plan *plan = plan_of(&request), *other = plan_of(&plain);
    ms_shape_plans *guard = NULL;
    const ms_plan *none = NULL;
    CHECK_STATUS(ms_shape_plans_create(NULL, plan, &guard), MS_E_INVALID);
    CHECK_STATUS(ms_shape_plans_create(&request, NULL, &guard), MS_E_INVALID);
    CHECK_STATUS(ms_shape_plans_create(&request, plan, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_shape_plans_create(&plain, other, &guard), MS_E_INVALID); /* it knows no shapes */
    CHECK_STATUS(ms_shape_plans_create(&request, other, &guard), MS_E_MISMATCH);
    CHECK(guard == NULL);
    CHECK_STATUS(ms_shape_plans_create(&single, plan, &guard), MS_OK);
    CHECK_STATUS(ms_shape_plans_find(guard, 5, 128, &none), MS_E_INVALID); /* it knows one shape */
    CHECK_STATUS(ms_shape_plans_find(guard, 4, 128, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_shape_plans_find(NULL, 4, 128, &none), MS_E_INVALID);
    CHECK(none == NULL);
    ms_shape_plans_destroy(guard);
    ms_shape_plans_destroy(NULL);
    ms_plan_destroy(plan);
    ms_plan_destroy(other);
    ms_profile_destroy(profile);
    ms_profile_destroy(units);
    ms_profile_destroy(one);
}

SUITE(trade, CASE(what_a_plan_says), CASE(plans_that_say_little), CASE(long_names_are_cut_between_characters),
      CASE(the_trade_of_the_small_model), CASE(points_are_plans), CASE(trades_that_are_refused),
      CASE(a_guard_over_shapes), CASE(guards_that_are_refused));
