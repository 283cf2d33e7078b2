/* test_decide.c - plans for the small model of steps.h: decisions from a step, compared with simulations of every plan.
 *
 * With every unit kept, the peak is 22016 and the step takes 7700 ns, 1100 for each operation (test_sim_actions.c has
 * the rest). The peak is in backward of unit 1, so what unit 0 keeps matters.
 */
#include "devices.h"
#include "layered.h"
#include "plans.h"

#include <string.h>

#include "error_info.h"
#include "steps.h"

#define BASELINE 22016
#define STEP_NS 7700
#define OP_NS 1100
#define ALL_ACTIONS ((1U << MS_N_ACTIONS) - 1)
#define HOST_BYTES (1 << 20)

static const ms_rates rates = SMALL_RATES(0);

static const ms_device device = {.struct_bytes = sizeof(ms_device), .rates = &rates, .kind = MS_DEVICE_HOST};

static ms_plan_request step_request(const ms_profile *profile, int64_t budget_bytes, uint32_t actions,
                                    uint32_t model_options) {
    ms_plan_request request = request_of(profile, budget_bytes, MS_PLAN_FASTEST);
    request.device = &device;
    request.actions = actions;
    request.model_options = model_options;
    request.host_limit_bytes = HOST_BYTES;
    return request;
}

static ms_simulation_summary simulate(const ms_profile *profile, const int32_t actions[2], uint32_t model_options) {
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = profile,
                                     .actions = actions,
                                     .n_actions = 2,
                                     .device = &device,
                                     .model_options = model_options};
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    CHECK_STATUS(ms_simulation_get_summary(sim, &summary), MS_OK);
    ms_simulation_destroy(sim);
    return summary;
}

static ms_simulation_summary simulate_plan(const ms_profile *profile, const ms_plan *plan) {
    return simulate(profile, (const int32_t[]){entry_of(plan, 0).action, entry_of(plan, 1).action},
                    summary_of(plan).model_options);
}

static int64_t smallest_of(const ms_plan_request *request) {
    ms_plan_request small = *request;
    ms_plan *plan = NULL;
    small.budget_bytes = 1;
    CHECK_STATUS(ms_plan_create(&small, &plan), MS_E_BUDGET);
    return error_info().needed_bytes;
}

static void check_plan(const ms_profile *profile, int64_t budget_bytes, uint32_t model_options,
                       const ms_plan_summary *wanted, int32_t first, int32_t second) {
    ms_plan_request request = step_request(profile, budget_bytes, ALL_ACTIONS, model_options);
    ms_plan *plan = plan_of(&request);
    ms_plan_summary s = summary_of(plan);
    CHECK_EQ_INT(s.predicted_peak_bytes, wanted->predicted_peak_bytes);
    CHECK_EQ_INT(s.model_options, wanted->model_options);
    CHECK_EQ_INT(entry_of(plan, 0).action, first);
    CHECK_EQ_INT(entry_of(plan, 1).action, second);
    CHECK_EQ_INT(s.n_changed, (first != 0) + (second != 0));
    ms_simulation_summary played = simulate_plan(profile, plan);
    CHECK_EQ_INT(s.predicted_peak_bytes, played.steady_peak_bytes);
    CHECK_EQ_INT(played.step_ns, wanted->step_ns);
    CHECK(s.step_ns >= played.step_ns && s.step_ns <= played.step_ns + 2 * 60); /* each unit's ticks, rounded up */
    CHECK(memcmp(s.parts, played.parts, sizeof s.parts) == 0);
    CHECK_EQ_INT(s.peak_unit, played.peak_unit);
    CHECK_EQ_INT(s.peak_phase, played.peak_phase);
    CHECK_EQ_INT(s.host_bytes, played.host_bytes);
    ms_plan_destroy(plan);
}

/* From the largest budget to the smallest. */
TEST(budgets_and_their_plans) {
    static const ms_plan_summary kept = {.predicted_peak_bytes = BASELINE, .step_ns = STEP_NS};
    static const ms_plan_summary first = {.predicted_peak_bytes = 17920, .step_ns = STEP_NS + OP_NS};
    static const ms_plan_summary tile = {.predicted_peak_bytes = 15872, .step_ns = STEP_NS + 2 * OP_NS + 6000};
    static const ms_plan_summary tiles = {.predicted_peak_bytes = 14848, .step_ns = STEP_NS + 2 * OP_NS + 12000};
    ms_profile *profile = two_unit_profile();
    check_plan(profile, 1 << 20, 0, &kept, MS_ACTION_KEEP, MS_ACTION_KEEP);
    check_plan(profile, BASELINE, 0, &kept, MS_ACTION_KEEP, MS_ACTION_KEEP);
    check_plan(profile, BASELINE - 1, 0, &first, MS_ACTION_RECOMPUTE, MS_ACTION_KEEP);
    check_plan(profile, 17920, 0, &first, MS_ACTION_RECOMPUTE, MS_ACTION_KEEP);
    check_plan(profile, 17919, 0, &tile, MS_ACTION_RECOMPUTE, MS_ACTION_TILE);
    check_plan(profile, 15872, 0, &tile, MS_ACTION_RECOMPUTE, MS_ACTION_TILE);
    check_plan(profile, 15871, 0, &tiles, MS_ACTION_TILE, MS_ACTION_TILE);
    check_plan(profile, 14848, 0, &tiles, MS_ACTION_TILE, MS_ACTION_TILE);
    ms_plan_request request = step_request(profile, 1, ALL_ACTIONS, 0);
    CHECK_EQ_INT(smallest_of(&request), 14848);
    ms_profile_destroy(profile);
}

/* Tiling the loss is slower than recomputing one unit, and needs less memory. */
TEST(model_options_and_their_plans) {
    static const ms_plan_summary first = {.predicted_peak_bytes = 17920, .step_ns = STEP_NS + OP_NS};
    static const ms_plan_summary loss = {
        .predicted_peak_bytes = 15744, .step_ns = STEP_NS + 2 * OP_NS, .model_options = MS_MODEL_TILE_LOSS};
    static const ms_plan_summary both = {
        .predicted_peak_bytes = 12800, .step_ns = STEP_NS + 3 * OP_NS + 6000, .model_options = MS_MODEL_TILE_LOSS};
    ms_profile *profile = two_unit_profile();
    static const uint32_t sets[] = {MS_MODEL_TILE_LOSS, MS_MODEL_ALL}; /* the others need a chunk of 64 MiB */
    for (int i = 0; i < 2; i++) {
        check_plan(profile, 17920, sets[i], &first, MS_ACTION_RECOMPUTE, MS_ACTION_KEEP);
        check_plan(profile, 17919, sets[i], &loss, MS_ACTION_KEEP, MS_ACTION_KEEP);
        check_plan(profile, 15743, sets[i], &both, MS_ACTION_TILE, MS_ACTION_KEEP);
    }
    ms_profile_destroy(profile);
}

/* No combination of actions has a lower peak than the smallest reachable one; none that fits is faster. */
TEST(against_every_plan) {
    static const uint32_t sets[] = {1U << MS_ACTION_RECOMPUTE, 1U << MS_ACTION_OFFLOAD_BLOCKING,
                                    1U << MS_ACTION_OFFLOAD | 1U << MS_ACTION_RECOMPUTE, 1U << MS_ACTION_TILE,
                                    ALL_ACTIONS};
    ms_profile *profile = two_unit_profile();
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        ms_plan_request request = step_request(profile, 1, sets[i], 0);
        int64_t smallest = BASELINE;
        for (int32_t n = 0; n < MS_N_ACTIONS * MS_N_ACTIONS; n++) {
            const int32_t actions[] = {n / MS_N_ACTIONS, n % MS_N_ACTIONS};
            uint32_t used = 1U << actions[0] | 1U << actions[1];
            if ((used & ~(sets[i] | 1U)) != 0) continue;
            ms_simulation_summary s = simulate(profile, actions, 0);
            if (s.steady_peak_bytes < smallest) smallest = s.steady_peak_bytes;
            request.budget_bytes = s.steady_peak_bytes;
            ms_plan *plan = plan_of(&request);
            CHECK(simulate_plan(profile, plan).step_ns <= s.step_ns + 2 * 60);
            ms_plan_destroy(plan);
        }
        CHECK_EQ_INT(smallest_of(&request), smallest);
    }
    ms_profile_destroy(profile);
}

/* A larger budget never gives a slower plan, a smaller one never a higher peak; with and without a slowdown. */
TEST(budgets_in_order) {
    static const int64_t slowdowns[] = {-1, 0, 150000, 300000};
    ms_profile *profile = two_unit_profile();
    for (int i = 0; i < 8; i++) {
        ms_plan_request request = step_request(profile, 1, ALL_ACTIONS, MS_MODEL_ALL);
        request.flags = i < 4 ? MS_PLAN_FORCE : MS_PLAN_FASTEST;
        request.slowdown_ppm = slowdowns[i % 4];
        int64_t smallest = smallest_of(&request), slowest = INT64_MAX, lowest = 0;
        for (request.budget_bytes = smallest; request.budget_bytes < BASELINE + 1000; request.budget_bytes += 64) {
            ms_plan *plan = plan_of(&request);
            ms_plan_summary s = summary_of(plan);
            CHECK(s.predicted_peak_bytes <= request.budget_bytes && s.predicted_peak_bytes >= lowest);
            CHECK(s.step_ns <= slowest);
            slowest = s.step_ns;
            lowest = s.predicted_peak_bytes;
            ms_plan_destroy(plan);
        }
    }
    ms_profile_destroy(profile);
}

TEST(the_aim_is_a_slowdown) {
    static const struct {
        int64_t slowdown_ppm, peak;
    } table[] = {{0, BASELINE}, {140000, BASELINE}, {151000, 17920}, {285714, 17920}, {285715, 15744}, {-1, 12800}};
    ms_profile *profile = two_unit_profile();
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ms_plan_request request = step_request(profile, 2 * BASELINE, ALL_ACTIONS, MS_MODEL_TILE_LOSS);
        request.flags = 0;
        request.slowdown_ppm = table[i].slowdown_ppm;
        ms_plan *plan = plan_of(&request);
        CHECK_EQ_INT(summary_of(plan).predicted_peak_bytes, table[i].peak);
        ms_plan_destroy(plan);
    }
    ms_profile_destroy(profile);
}

TEST(a_margin_stays_free) {
    ms_profile *profile = two_unit_profile();
    ms_plan_request request = step_request(profile, BASELINE + 1000, ALL_ACTIONS, 0);
    request.margin_bytes = 1000;
    ms_plan *plan = plan_of(&request);
    CHECK_EQ_INT(summary_of(plan).n_changed, 0);
    CHECK_EQ_INT(summary_of(plan).margin_bytes, 1000);
    ms_plan_destroy(plan);
    request.margin_bytes = 1001;
    plan = plan_of(&request);
    CHECK_EQ_INT(summary_of(plan).n_changed, 1);
    ms_plan_destroy(plan);
    request.margin_bytes = BASELINE + 1001; /* more than there is */
    CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_BUDGET);
    CHECK(strstr(ms_error_message(), "less the margin of ") != NULL);
    ms_profile_destroy(profile);
}

TEST(host_memory_is_limited) {
    ms_profile *profile = layered_profile(2, NOTHING);
    ms_plan_request request = step_request(profile, 0, 1U << MS_ACTION_OFFLOAD_BLOCKING, 0);
    request.host_limit_bytes = 2 * SAVED;
    request.budget_bytes = smallest_of(&request);
    ms_plan *plan = plan_of(&request);
    CHECK_EQ_INT(entry_of(plan, 0).action, MS_ACTION_OFFLOAD_BLOCKING);
    CHECK_EQ_INT(entry_of(plan, 0).host_bytes, SAVED);
    CHECK_EQ_INT(entry_of(plan, 0).held_bytes, entry_of(plan, 0).plain_bytes - SAVED);
    int64_t host_bytes = summary_of(plan).host_bytes;
    ms_plan_destroy(plan);
    request.host_limit_bytes = host_bytes - 1;
    CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_BUDGET);
    request.host_limit_bytes = 0;
    CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_BUDGET);
    ms_profile_destroy(profile);
    profile = two_unit_profile();
    request = step_request(profile, BASELINE - 1, 1U << MS_ACTION_OFFLOAD_BLOCKING, MS_MODEL_OFFLOAD);
    request.host_limit_bytes = 4095; /* the optimizer's state takes 4096 */
    CHECK_EQ_INT(smallest_of(&request), BASELINE);
    ms_profile_destroy(profile);
}

/* Without a link nothing leaves the device, whatever is allowed. */
TEST(no_link) {
    ms_profile *profile = two_unit_profile();
    ms_rates slow = rates;
    slow.to_device_mb_per_s = 0;
    ms_plan_request request = step_request(
        profile, BASELINE - 1, 1U << MS_ACTION_OFFLOAD_BLOCKING | 1U << MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING,
        MS_MODEL_OFFLOAD | MS_MODEL_OFFLOAD_GRADIENTS);
    request.device = DEVICE_OF(&slow, 0);
    CHECK_EQ_INT(smallest_of(&request), BASELINE);
    ms_profile_destroy(profile);
}

TEST(units_that_have_to_be_kept) {
    static const uint8_t second[] = {0, 1}, none[] = {0, 0};
    ms_profile *profile = two_unit_profile();
    ms_plan_request request = step_request(profile, 2 * BASELINE, ALL_ACTIONS, 0);
    request.flags = MS_PLAN_FORCE;
    request.may_change = second;
    ms_plan *plan = plan_of(&request);
    CHECK_EQ_INT(entry_of(plan, 0).action, MS_ACTION_KEEP);
    CHECK_EQ_INT(entry_of(plan, 0).reason, MS_REASON_NOT_ELIGIBLE);
    CHECK_EQ_INT(entry_of(plan, 1).action, MS_ACTION_TILE);
    CHECK_EQ_INT(summary_of(plan).predicted_peak_bytes, 18944);
    ms_plan_destroy(plan);
    request.may_change = none;
    CHECK_EQ_INT(smallest_of(&request), BASELINE);
    ms_profile_destroy(profile);
}

/* Without a recomputed trace, the cost of recomputing is unknown: units are kept, but model options are possible. */
TEST(a_step_that_was_only_seen_kept) {
    script kept;
    two_units(&kept, false);
    ms_profile *profile = profile_of_scripts(&kept, NULL);
    ms_plan_request request = step_request(profile, BASELINE - 1, ALL_ACTIONS, MS_MODEL_TILE_LOSS);
    ms_plan *plan = plan_of(&request);
    CHECK_EQ_INT(summary_of(plan).model_options, MS_MODEL_TILE_LOSS);
    CHECK_EQ_INT(summary_of(plan).n_changed, 0);
    CHECK_EQ_INT(entry_of(plan, 0).reason, MS_REASON_NOT_ELIGIBLE);
    ms_plan_destroy(plan);
    request.model_options = 0;
    CHECK_EQ_INT(smallest_of(&request), BASELINE);
    ms_profile_destroy(profile);
}

TEST(reasons_of_a_step) {
    ms_profile *profile = two_unit_profile();
    ms_plan_request request = step_request(profile, BASELINE - 1, 1U << MS_ACTION_RECOMPUTE, 0);
    ms_plan *plan = plan_of(&request);
    ms_plan_entry first = entry_of(plan, 0), second = entry_of(plan, 1);
    CHECK_EQ_INT(first.reason, MS_REASON_SAVES);
    CHECK_EQ_INT(first.plain_bytes, 4096 + 2048);
    CHECK_EQ_INT(first.held_bytes, 2048);
    CHECK_EQ_INT(first.extra_ns, OP_NS); /* in ticks of a nanosecond */
    CHECK_EQ_INT(first.other, MS_ACTION_KEEP);
    CHECK_EQ_INT(first.other_reason, MS_REASON_OVER_BUDGET);
    CHECK_EQ_INT(first.other_bytes, 4096);
    CHECK_EQ_INT(first.other_ns, -OP_NS);
    CHECK_EQ_INT(second.reason, MS_REASON_NOT_NEEDED);
    CHECK_EQ_INT(second.other, MS_ACTION_RECOMPUTE);
    CHECK_EQ_INT(second.other_reason, MS_REASON_NO_GAIN); /* the peak is in its own backward */
    CHECK_EQ_INT(second.other_bytes, 0);
    CHECK_EQ_INT(second.other_ns, OP_NS);
    ms_plan_summary s = summary_of(plan);
    CHECK_EQ_INT(s.baseline_ns, STEP_NS);
    CHECK_EQ_INT(s.step_ns, STEP_NS + OP_NS);
    CHECK_EQ_INT(s.slowdown_ppm, OP_NS * INT64_C(1000000) / STEP_NS);
    CHECK_EQ_INT(s.batch, 4);
    CHECK_EQ_INT(s.length, 128);
    ms_plan_destroy(plan);
    ms_profile_destroy(profile);
}

static void check_refused(const ms_plan_request *request, ms_status wanted) {
    ms_plan *plan = NULL;
    ms_error_clear();
    CHECK_STATUS(ms_plan_create(request, &plan), wanted);
    CHECK(plan == NULL && ms_error_message()[0] != '\0');
}

TEST(requests_that_are_refused) {
    ms_profile *profile = two_unit_profile(), *units = equal_profile();
    const ms_plan_request good = step_request(profile, BASELINE, ALL_ACTIONS, MS_MODEL_ALL);
    ms_plan_request bad = good;
    ms_rates wrong = rates;
    bad.device = NULL;
    check_refused(&bad, MS_E_INVALID);
    wrong.to_device_mb_per_s = -1;
    bad.device = DEVICE_OF(&wrong, 0);
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.half_profile = units; /* of another model */
    check_refused(&bad, MS_E_MISMATCH);
    bad.profile = units;
    bad.half_profile = profile;
    check_refused(&bad, MS_E_MISMATCH);
    bad = good;
    bad.simulation = 1U << 6;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.device = DEVICE_OF(&rates, -1);
    check_refused(&bad, MS_E_INVALID);
    wrong = rates;
    wrong.capability = 80; /* a GPU by its rates, the host by its kind */
    bad.device = &(const ms_device){.struct_bytes = sizeof(ms_device), .rates = &wrong, .kind = MS_DEVICE_HOST};
    check_refused(&bad, MS_E_INVALID);
    ms_profile_destroy(profile);
    ms_profile_destroy(units);
}

SUITE(decide, CASE(budgets_and_their_plans), CASE(model_options_and_their_plans), CASE(against_every_plan),
      CASE(budgets_in_order), CASE(the_aim_is_a_slowdown), CASE(a_margin_stays_free), CASE(host_memory_is_limited),
      CASE(no_link), CASE(units_that_have_to_be_kept), CASE(a_step_that_was_only_seen_kept), CASE(reasons_of_a_step),
      CASE(requests_that_are_refused));
