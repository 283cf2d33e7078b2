/* fuzz_profile.c - any bytes as a profile. A profile that can be read is written and reads back equal, and can be
 * planned: its sizes are never out of a plan's range. Its step can be simulated on any device and with any flags, with
 * the same results after a round trip; it has costs, frontiers, and perhaps other shapes.
 */
#include "devices.h"
#include "error_info.h"
#include "fuzz.h"

#include <stdbool.h>
#include <string.h>

#include <memscale/memscale.h>

#define BUDGET_BYTES (INT64_MAX / 8)
#define MAX_ACTIONS 256
#define MAX_FRONTIERS 8 /* each walks the step */
#define MAX_SEARCHED 3  /* units of the models that are planned with every action */

const char *const fuzz_dictionary[] = {"\"memscale_profile\": 1",
                                       "\"memscale_profile\": 4",
                                       "\"resident_bytes\": ",
                                       "\"outside_bytes\": ",
                                       "\"units\": [",
                                       "\"name\": \"a\"",
                                       "\"param_bytes\": ",
                                       "\"saved_bytes\": ",
                                       "\"input_bytes\": ",
                                       "\"n_rows\": ",
                                       "\"eligible\": ",
                                       "\"run\": ",
                                       "true",
                                       "false",
                                       "1152921504606846975",
                                       "576460752303423487",
                                       "-1",
                                       "0",
                                       "\"step\": {",
                                       "\"batch\": 1",
                                       "\"length\": 1",
                                       "\"recomputed\": ",
                                       "\"numbers\": [",
                                       "\"denominator\": 1",
                                       "\"coefficients\": [",
                                       "\"costs\": [0,0,4,0,",
                                       "\"scratches\": [1,0,0,0,0,",
                                       "\"keys\": [0,0,",
                                       "\"rest\": [",
                                       "\"classes\": [[",
                                       "\"units\": [0,",
                                       "\"order\": [-1,",
                                       "[1,[",
                                       "[3,[",
                                       "]],",
                                       "],[",
                                       "[16,",
                                       "0,0,",
                                       "1,0,",
                                       "1,-1,",
                                       "2,0,",
                                       "3,0,",
                                       "4,1,",
                                       "5,0,1,0,",
                                       "5,-1,1,0,",
                                       "5,1,1,0,",
                                       "5,1,4,0,",
                                       "6,0,",
                                       NULL};

static ms_profile_view view_of(const ms_profile *profile) {
    ms_profile_view view = {.struct_bytes = sizeof view};
    REQUIRE(ms_profile_get_view(profile, &view) == MS_OK);
    return view;
}

/* ---- Simulations ---- */

static void check_summary(const ms_simulation_summary *s) {
    int64_t sum = s->unused_bytes;
    for (int i = 0; i < MS_N_CATEGORIES; i++) {
        REQUIRE(s->parts[i] >= 0);
        sum += s->parts[i];
    }
    REQUIRE(sum == s->steady_peak_bytes && s->unused_bytes >= 0);
    REQUIRE(s->start_bytes >= 0 && s->idle_bytes >= 0 && s->idle_bytes <= s->steady_peak_bytes);
    REQUIRE(s->reserved_bytes >= s->steady_peak_bytes && s->first_reserved_bytes >= s->first_peak_bytes);
    REQUIRE(s->forward_ns >= 0 && s->backward_ns >= 0 && s->optimizer_ns >= 0);
    REQUIRE(s->step_ns == (s->host_ns > s->device_ns ? s->host_ns : s->device_ns));
}

/* A hash of the results of one simulation; 0 if there are none. */
static uint64_t simulate(const ms_profile *profile, int64_t capability, uint32_t flags, int64_t limit,
                         bool recomputed) {
    static int32_t actions[MAX_ACTIONS];
    const ms_rates rates = {.struct_bytes = sizeof rates,
                            .capability = capability,
                            .fp32_gflops = 1,
                            .bf16_gflops = 2,
                            .memory_mb_per_s = 1,
                            .launch_ns = 1000000000,
                            .dispatch_ns = 1000};
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = profile,
                                     .actions = actions,
                                     .n_actions = view_of(profile).n_units,
                                     .device = DEVICE_OF(&rates, 132),
                                     .limit_bytes = limit,
                                     .flags = flags};
    if (request.n_actions > MAX_ACTIONS) return 0;
    for (int i = 0; i < MAX_ACTIONS; i++) actions[i] = recomputed ? MS_ACTION_RECOMPUTE : MS_ACTION_KEEP;
    ms_simulation *sim = NULL;
    ms_status status = ms_simulation_create(&request, &sim);
    if (status != MS_OK) { /* no recomputed trace; too large for the allocator, or for the limit */
        bool model = capability > 0 && flags & MS_SIMULATE_ALLOCATOR;
        REQUIRE(status == MS_E_INVALID || (status == MS_E_LIMIT && model) || (status == MS_E_BUDGET && limit > 0));
        return 0;
    }
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    REQUIRE(ms_simulation_get_summary(sim, &summary) == MS_OK);
    check_summary(&summary);
    uint64_t hash = ms_hash64(&summary, sizeof summary, 0);
    for (int64_t i = 0; i < ms_simulation_count_segments(sim); i++) {
        ms_simulation_segment point = {.struct_bytes = sizeof point};
        REQUIRE(ms_simulation_get_segment(sim, i, &point) == MS_OK);
        REQUIRE(point.peak_bytes <= summary.steady_peak_bytes && point.end_bytes <= point.peak_bytes);
        hash = ms_hash64(&point, sizeof point, hash);
    }
    ms_simulation_destroy(sim);
    return hash;
}

static uint64_t simulate_all(const ms_profile *profile) {
    static const int64_t capabilities[] = {0, 80, 90};
    static const uint32_t flags[] = {0, MS_SIMULATE_ALLOCATOR, MS_SIMULATE_ENGINE_THREAD | MS_SIMULATE_FUSED,
                                     MS_SIMULATE_ALLOCATOR | MS_SIMULATE_RESUMED | MS_SIMULATE_KEEP_GRADIENTS};
    uint64_t hash = 0;
    for (int i = 0; i < 3 * 4 * 2; i++) {
        uint64_t more = simulate(profile, capabilities[i % 3], flags[i / 3 % 4], 0, i / 12 == 1);
        hash = ms_hash64(&more, sizeof more, hash);
    }
    uint64_t tight = simulate(profile, 90, MS_SIMULATE_ALLOCATOR, (int64_t)1 << 26, false);
    return ms_hash64(&tight, sizeof tight, hash);
}

/* Another shape is a profile like any other, or out of range. */
static void check_shapes(const ms_profile *profile) {
    static const int64_t shapes[][2] = {{4, 128}, {8, 128}, {4, 129}, {1, 1}, {3, INT64_MAX}, {1 << 20, 1 << 20}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        ms_profile *other = NULL;
        ms_status status = ms_profile_reshape(profile, shapes[i][0], shapes[i][1], &other);
        REQUIRE(status == MS_OK || status == MS_E_INVALID || status == MS_E_LIMIT);
        REQUIRE((status == MS_OK) == (other != NULL));
        if (other == NULL) continue;
        (void)simulate(other, 90, MS_SIMULATE_ALLOCATOR, 0, false);
        (void)simulate(other, 0, 0, 0, true);
        ms_profile_destroy(other);
    }
}

static void check_frontiers(const ms_profile *profile) {
    const ms_rates rates = {.struct_bytes = sizeof rates, .capability = 90, .fp32_gflops = 1, .memory_mb_per_s = 1};
    for (int64_t unit = 0; unit < view_of(profile).n_units && unit < MAX_FRONTIERS; unit++) {
        ms_frontier_point points[MS_FRONTIER_MAX_POINTS];
        int64_t n = 0;
        ms_status status = ms_profile_frontier(profile, unit, &rates, points, MS_FRONTIER_MAX_POINTS, &n);
        REQUIRE(status == MS_OK || status == MS_E_INVALID);
        for (int64_t i = 1; i < n; i++)
            REQUIRE(points[i].held_bytes >= points[i - 1].held_bytes &&
                    points[i].recompute_ns < points[i - 1].recompute_ns);
    }
}

static void check_costs(const ms_profile *profile) {
    for (int64_t unit = -1; unit < view_of(profile).n_units && unit < MAX_ACTIONS; unit++) {
        for (int32_t phase = 0; phase < MS_N_PHASES; phase++) {
            ms_unit_costs costs = {.struct_bytes = sizeof costs};
            ms_status status = ms_profile_get_costs(profile, unit, phase, &costs);
            REQUIRE(status == MS_OK || status == MS_E_INVALID);
            REQUIRE(costs.flops >= 0 && costs.bytes >= 0 && costs.working_bytes >= 0);
        }
    }
}

/* ---- Files ---- */

static void check_round_trip(const ms_profile *profile) {
    char *text = NULL, *again = NULL;
    ms_profile *back = NULL;
    REQUIRE(ms_profile_to_json(profile, &text) == MS_OK);
    REQUIRE(ms_profile_from_json(text, strlen(text), &back) == MS_OK);
    REQUIRE(ms_profile_to_json(back, &again) == MS_OK);
    REQUIRE(strcmp(text, again) == 0);
    REQUIRE(view_of(back).n_units == view_of(profile).n_units);
    REQUIRE(simulate_all(profile) == simulate_all(back));
    ms_free(text);
    ms_free(again);
    ms_profile_destroy(back);
}

static void check_plan_file(const ms_plan *plan) {
    char *text = NULL, *again = NULL;
    ms_plan *back = NULL;
    REQUIRE(ms_plan_to_json(plan, &text) == MS_OK);
    REQUIRE(ms_plan_from_json(text, strlen(text), &back) == MS_OK);
    REQUIRE(ms_plan_to_json(back, &again) == MS_OK);
    REQUIRE(strcmp(text, again) == 0);
    ms_free(text);
    ms_free(again);
    ms_plan_destroy(back);
}

/* With every action allowed, the plan is within the budget, or there is none. */
static void check_search(const ms_profile *profile, int64_t baseline_bytes, uint32_t simulation) {
    const ms_rates rates = {.struct_bytes = sizeof rates,
                            .capability = simulation & MS_SIMULATE_FUSED ? 90 : 0,
                            .fp32_gflops = 1,
                            .memory_mb_per_s = 1,
                            .to_device_mb_per_s = 1,
                            .from_device_mb_per_s = 1,
                            .dispatch_ns = 1000};
    ms_plan_request request = {.struct_bytes = sizeof request,
                               .profile = profile,
                               .half_profile = profile,
                               .device = DEVICE_OF(&rates, 0),
                               .budget_bytes = baseline_bytes / 4 * 3 + 1,
                               .host_limit_bytes = baseline_bytes / 2,
                               .actions = (1U << MS_N_ACTIONS) - 1,
                               .model_options = MS_MODEL_HALF | MS_MODEL_OFFLOAD | MS_MODEL_TILE_LOSS,
                               .simulation = simulation,
                               .flags = MS_PLAN_FASTEST};
    ms_plan_summary summary = {.struct_bytes = sizeof summary};
    ms_plan *plan = NULL;
    ms_status status = ms_plan_create(&request, &plan);
    REQUIRE(status == MS_OK || status == MS_E_BUDGET || status == MS_E_LIMIT || status == MS_E_INVALID);
    if (status == MS_E_BUDGET) REQUIRE(error_info().needed_bytes > request.budget_bytes);
    if (status != MS_OK) return;
    REQUIRE(ms_plan_get_summary(plan, &summary) == MS_OK);
    REQUIRE(summary.predicted_peak_bytes <= request.budget_bytes);
    REQUIRE(summary.step_ns >= 0 && summary.host_bytes >= 0 && summary.host_bytes <= request.host_limit_bytes);
    check_plan_file(plan);
    ms_plan_destroy(plan);
}

/* With the largest budget there is a plan, unless memory inside kernels is more than that. */
static void check_plan(const ms_profile *profile, const ms_profile_view *view) {
    const ms_rates rates = {.struct_bytes = sizeof rates, .capability = 90, .fp32_gflops = 1, .memory_mb_per_s = 1};
    ms_plan_request request = {.struct_bytes = sizeof request,
                               .profile = profile,
                               .device = DEVICE_OF(&rates, 0),
                               .budget_bytes = BUDGET_BYTES,
                               .actions = 1U << MS_ACTION_RECOMPUTE};
    ms_plan_summary summary = {.struct_bytes = sizeof summary};
    ms_plan *plan = NULL;
    ms_status status = ms_plan_create(&request, &plan);
    if (status == MS_E_BUDGET) {
        REQUIRE(error_info().needed_bytes > BUDGET_BYTES);
        return;
    }
    REQUIRE(status == MS_OK);
    REQUIRE(ms_plan_get_summary(plan, &summary) == MS_OK);
    REQUIRE(summary.n_units == view->n_units);
    REQUIRE(summary.baseline_peak_bytes >= 0 && summary.predicted_peak_bytes >= 0);
    REQUIRE(ms_plan_check_units(plan, view->units, view->n_units) == MS_OK);
    check_plan_file(plan);
    ms_plan_destroy(plan);
    if (view->n_units > MAX_SEARCHED) return;
    check_search(profile, summary.baseline_peak_bytes, 0);
    check_search(profile, summary.baseline_peak_bytes, MS_SIMULATE_FUSED | MS_SIMULATE_ALLOCATOR);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ms_profile *profile = NULL;
    ms_status status = ms_profile_from_json((const char *)data, n_bytes, &profile);
    if (status != MS_OK) {
        REQUIRE(status == MS_E_PARSE || status == MS_E_VERSION || status == MS_E_INVALID || status == MS_E_LIMIT);
        REQUIRE(profile == NULL);
        return 0;
    }
    ms_profile_view view = view_of(profile);
    check_round_trip(profile);
    check_plan(profile, &view);
    check_costs(profile);
    check_shapes(profile);
    check_frontiers(profile);
    ms_profile_destroy(profile);
    return 0;
}
