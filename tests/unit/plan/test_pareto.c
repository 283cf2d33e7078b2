/* test_pareto.c - the trade between memory and time of the small model, all of whose plans are known. */
#include "devices.h"
#include "plans.h"
#include "steps.h"

#define BASELINE 22016
#define MAX_POINTS 16

static const ms_rates rates = SMALL_RATES(0);

static const ms_device device = {.struct_bytes = sizeof(ms_device), .rates = &rates, .kind = MS_DEVICE_HOST};

/* Everything is allowed except copies. */
static ms_plan_request step_request(const ms_profile *profile, int64_t budget_bytes) {
    ms_plan_request request = request_of(profile, budget_bytes, MS_PLAN_FASTEST);
    request.device = &device;
    request.actions = 1U << MS_ACTION_RECOMPUTE | 1U << MS_ACTION_TILE;
    request.model_options = MS_MODEL_TILE_LOSS;
    return request;
}

static int64_t pareto_of(const ms_plan_request *request, ms_pareto_point points[MAX_POINTS], int64_t capacity) {
    int64_t n = -1;
    CHECK_STATUS(ms_plan_pareto(request, points, capacity, &n), MS_OK);
    CHECK(n >= 1 && n <= capacity);
    for (int64_t i = 1; i < n; i++)
        CHECK(points[i].peak_bytes < points[i - 1].peak_bytes && points[i].step_ns > points[i - 1].step_ns);
    return n;
}

/* The plans of test_decide.c: all kept, one recomputed, the loss tiled, and the loss and a unit tiled. */
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

/* With the peak of a point as budget, there is a plan that is not slower, apart from the rounding of ticks. */
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

SUITE(pareto, CASE(the_trade_of_the_small_model), CASE(points_are_plans), CASE(trades_that_are_refused));
