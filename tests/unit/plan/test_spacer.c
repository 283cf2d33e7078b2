/* test_spacer.c - a model whose logits lie in the way of their gradients, and the spacer that moves them.
 *
 * Its first unit leaves a hole as large as two results of the second, L. The result goes there, and the other half of
 * the hole is lost: casts and gradients need twice as much, 2 L. With a spacer of 2 L the hole stays whole.
 */
#include "devices.h"
#include "plan/decide.h"
#include "plans.h"
#include "steps.h"

#include <string.h>

#define MIB (INT64_C(1) << 20)
#define L (256 * MIB)
#define OUTPUT (64 * MIB)
#define SAVED (512 * MIB)
#define GROWING (MS_SIMULATE_ALLOCATOR | MS_SIMULATE_GROWING)

static const ms_rates gpu_rates = SMALL_RATES(90), host_rates = SMALL_RATES(0);
static const ms_device gpu = {
    .struct_bytes = sizeof(ms_device), .rates = &gpu_rates, .n_multiprocessors = 132, .kind = MS_DEVICE_GPU};
static const ms_device host = {.struct_bytes = sizeof(ms_device), .rates = &host_rates, .kind = MS_DEVICE_HOST};
static const uint8_t only_first[] = {1, 0};

/* ---- The model ---- */

/* The forward of the first unit: something large, its output, what it saves. */
static int64_t run_body(script *s, int64_t *saved) {
    compute(s, "aten.relu.default");
    int64_t large = take(s, 2 * L), result = take(s, OUTPUT);
    *saved = take(s, SAVED);
    give(s, large);
    return result;
}

/* The loss of logits: a copy of twice the size, its softmax, and gradients. Returns that of the logits. */
static int64_t run_loss(script *s, int64_t logits) {
    in_unit(s, -1);
    in_phase(s, MS_PHASE_LOSS);
    compute(s, "aten._to_copy.default");
    int64_t copy = take(s, 2 * L);
    compute(s, "aten._log_softmax.default");
    int64_t softmax = take(s, 2 * L);
    give(s, copy);
    in_phase(s, MS_PHASE_BACKWARD);
    compute(s, "aten.nll_loss_backward.default");
    int64_t first = take(s, 2 * L);
    compute(s, "aten._log_softmax_backward_data.default");
    int64_t second = take(s, 2 * L);
    give(s, first);
    give(s, softmax);
    compute(s, "aten._to_copy.default");
    int64_t gradient = take(s, L);
    give(s, second);
    give(s, logits);
    return gradient;
}

static void write_step(script *s, bool recomputed) {
    int64_t saved = 0;
    *s = (script){0};
    for (int i = 0; i < 2; i++) (void)take_as(s, MS_CATEGORY_PARAMETER, 1024);
    in_phase(s, MS_PHASE_FORWARD);
    in_unit(s, 0);
    int64_t result = run_body(s, &saved);
    if (recomputed) give(s, saved);
    in_unit(s, 1);
    compute(s, "aten.relu.default");
    int64_t gradient = run_loss(s, take(s, L));
    in_unit(s, 1);
    compute(s, "aten.threshold_backward.default");
    (void)take_as(s, MS_CATEGORY_GRADIENT, 1024);
    int64_t next = take(s, OUTPUT);
    give(s, gradient);
    in_unit(s, 0);
    if (recomputed) {
        repeating(s, 0);
        give(s, run_body(s, &saved));
        repeating(s, -1);
    }
    compute(s, "aten.threshold_backward.default");
    (void)take_as(s, MS_CATEGORY_GRADIENT, 1024);
    give(s, saved);
    give(s, result);
    give(s, next);
    in_unit(s, -1);
    in_phase(s, MS_PHASE_OPTIMIZER_FIRST);
    compute(s, "aten.zeros_like.default");
    for (int i = 0; i < 2; i++) (void)take_as(s, MS_CATEGORY_OPTIMIZER, 2048);
    in_phase(s, MS_PHASE_OPTIMIZER);
    compute(s, "aten.addcdiv_.default");
    in_phase(s, MS_PHASE_END);
}

static ms_profile *logits_profile(void) {
    script kept, recomputed;
    write_step(&kept, false);
    write_step(&recomputed, true);
    return profile_of_scripts(&kept, &recomputed);
}

static ms_plan_request logits_request(const ms_profile *profile, const ms_device *device, int64_t budget_bytes) {
    ms_plan_request request = request_of(profile, budget_bytes, MS_PLAN_FASTEST);
    request.device = device;
    request.simulation = device->kind == MS_DEVICE_HOST ? 0 : GROWING;
    request.may_change = only_first;
    return request;
}

static ms__spacer spacer_of(const ms_plan_request *request) {
    ms__decision decision = {.request = request};
    CHECK_STATUS(ms__decision_open(&decision), MS_OK);
    CHECK_STATUS(ms__find_spacer(&decision), MS_OK);
    ms__spacer spacer = decision.spacer;
    ms__decision_close(&decision);
    return spacer;
}

/* What the step needs with the first unit recomputed. */
static int64_t need_of(const ms_profile *profile, ms__spacer spacer, int64_t *out_peak) {
    static const int32_t actions[] = {MS_ACTION_RECOMPUTE, MS_ACTION_KEEP};
    const ms_simulation_request request = {.struct_bytes = sizeof request,
                                           .profile = profile,
                                           .device = &gpu,
                                           .actions = actions,
                                           .n_actions = 2,
                                           .flags = GROWING,
                                           .spacer_bytes = spacer.n_bytes,
                                           .spacer_unit = spacer.unit};
    ms__needs needs;
    CHECK_STATUS(ms__find_needs(&request, NULL, INT64_MAX, &needs), MS_OK);
    *out_peak = needs.peak_bytes;
    return needs.needed_bytes;
}

/* ---- Tests ---- */

TEST(it_joins_two_holes) {
    ms_profile *profile = logits_profile();
    const ms_plan_request request = logits_request(profile, &gpu, 1);
    ms__spacer spacer = spacer_of(&request);
    int64_t peak = 0, peak_without = 0;
    CHECK_EQ_INT(spacer.unit, 1);
    CHECK_EQ_INT(spacer.n_bytes, 2 * L);
    int64_t needed = need_of(profile, spacer, &peak), without = need_of(profile, (ms__spacer){0}, &peak_without);
    CHECK_EQ_INT(peak, peak_without);
    CHECK(without - needed >= L - 20 * MIB && without - needed <= L);
    ms_profile_destroy(profile);
}

/* It is the allocator's business, it needs exact simulations, and plans that recompute. */
TEST(where_there_is_none) {
    ms_profile *profile = logits_profile(), *small = two_unit_profile();
    ms_plan_request request = logits_request(profile, &host, 1);
    CHECK_EQ_INT(spacer_of(&request).n_bytes, 0);
    request = logits_request(profile, &gpu, 1);
    request.simulation = MS_SIMULATE_ALLOCATOR;
    CHECK_EQ_INT(spacer_of(&request).n_bytes, 0);
    request.simulation = MS_SIMULATE_GROWING;
    CHECK_EQ_INT(spacer_of(&request).n_bytes, 0);
    request.simulation = GROWING;
    request.actions |= 1U << MS_ACTION_TILE;
    CHECK_EQ_INT(spacer_of(&request).n_bytes, 0);
    request.actions = 1U << MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS;
    CHECK_EQ_INT(spacer_of(&request).n_bytes, 0);
    request = logits_request(small, &gpu, 1); /* it is all in one granule */
    CHECK_EQ_INT(spacer_of(&request).n_bytes, 0);
    ms_profile_destroy(profile);
    ms_profile_destroy(small);
}

/* The least budget with a plan is that of the step with its spacer, and a step that fits as it is has none. */
TEST(plans_with_it) {
    ms_profile *profile = logits_profile();
    ms_plan_request request = logits_request(profile, &gpu, 1);
    int64_t peak = 0, needed = need_of(profile, spacer_of(&request), &peak);
    int64_t without = need_of(profile, (ms__spacer){0}, &peak);
    request.budget_bytes = needed;
    ms_plan *plan = plan_of(&request);
    ms_plan_summary s = summary_of(plan);
    CHECK_EQ_INT(s.needed_bytes, needed);
    CHECK_EQ_INT(s.spacer_unit, 1);
    CHECK_EQ_INT(s.spacer_bytes, 2 * L);
    CHECK_EQ_INT(s.spacer_saved_bytes, without - needed);
    CHECK_EQ_INT(s.predicted_peak_bytes, peak);
    char *text = NULL;
    CHECK_STATUS(ms_plan_explain(plan, &text), MS_OK);
    CHECK(strstr(text, "While layers.1 runs forward, a spacer of 537 MB is allocated, so that torch's allocator needs "
                       "2") != NULL);
    ms_free(text);
    CHECK(s.grows && !s.is_cramped);
    ms_plan_destroy(plan);
    request.budget_bytes = INT64_C(1) << 40;
    plan = plan_of(&request);
    s = summary_of(plan);
    CHECK(s.spacer_bytes == 0 && s.spacer_unit == 0 && s.spacer_saved_bytes == 0 && s.n_changed == 0);
    ms_plan_destroy(plan);
    request.flags |= MS_PLAN_LEAN; /* for steps that nothing is known of */
    plan = plan_of(&request);
    s = summary_of(plan);
    CHECK(s.spacer_bytes == 0 && s.n_changed == 1);
    ms_plan_destroy(plan);
    ms_profile_destroy(profile);
}

/* It changes what runs. */
TEST(it_is_part_of_the_fingerprint) {
    ms_profile *profile = logits_profile();
    ms_plan_request request = logits_request(profile, &gpu, 2000 * MIB);
    ms_plan *plan = plan_of(&request), *other = NULL;
    char *text = NULL;
    CHECK_STATUS(ms_plan_to_json(plan, &text), MS_OK);
    char *bytes = strstr(text, "\"spacer_bytes\"");
    CHECK(bytes != NULL);
    while (*bytes < '1' || *bytes > '9') bytes++;
    *bytes = *bytes == '1' ? '2' : '1';
    CHECK_STATUS(ms_plan_from_json(text, strlen(text), &other), MS_OK);
    CHECK(summary_of(plan).fingerprint != summary_of(other).fingerprint);
    ms_free(text);
    ms_plan_destroy(plan);
    ms_plan_destroy(other);
    ms_profile_destroy(profile);
}

/* More memory is never slower, less never needs more. */
TEST(budgets_around_it) {
    ms_profile *profile = logits_profile();
    ms_plan_request request = logits_request(profile, &gpu, 1);
    ms_plan_summary before = {0};
    int n_with = 0;
    for (int64_t budget = 1700 * MIB; budget <= 2900 * MIB; budget += 10 * MIB) {
        ms_plan *plan = NULL;
        request.budget_bytes = budget;
        if (ms_plan_create(&request, &plan) != MS_OK) {
            CHECK(before.struct_bytes == 0);
            continue;
        }
        ms_plan_summary s = summary_of(plan);
        if (before.struct_bytes != 0)
            CHECK(s.step_ns <= before.step_ns && s.needed_bytes >= before.needed_bytes && s.needed_bytes <= budget);
        n_with += s.spacer_bytes > 0;
        before = s;
        ms_plan_destroy(plan);
    }
    CHECK(before.struct_bytes != 0 && before.n_changed == 0 && n_with > 0);
    ms_profile_destroy(profile);
}

SUITE(spacer, CASE(it_joins_two_holes), CASE(where_there_is_none), CASE(plans_with_it),
      CASE(it_is_part_of_the_fingerprint), CASE(budgets_around_it));
