/* test_needs.c - how a step runs, and what it needs: the same figures for predictions and plans. */
#include "sim/needs.h"

#include "devices.h"
#include "plans.h"
#include "sim/allocator.h"
#include "steps.h"

#define FLAGS (MS_SIMULATE_ALLOCATOR | MS_SIMULATE_ENGINE_THREAD | MS_SIMULATE_GROWING)

static const ms_rates gpu_rates = SMALL_RATES(90), host_rates = SMALL_RATES(0);
static const ms_device gpu = {.struct_bytes = sizeof(ms_device),
                              .rates = &gpu_rates,
                              .n_multiprocessors = 132,
                              .usable_bytes = 1 << 30,
                              .kind = MS_DEVICE_GPU};
static const ms_device host = {
    .struct_bytes = sizeof(ms_device), .rates = &host_rates, .usable_bytes = 1 << 30, .kind = MS_DEVICE_HOST};

static ms_simulation_request request_with(const ms_profile *profile, const ms_device *device, const int32_t *actions) {
    return (ms_simulation_request){.struct_bytes = sizeof(ms_simulation_request),
                                   .profile = profile,
                                   .device = device,
                                   .actions = actions,
                                   .n_actions = actions == NULL ? 0 : 2,
                                   .flags = FLAGS};
}

TEST(how_steps_run) {
    CHECK_EQ_INT(ms__device_flags(&host), 0);
    CHECK_EQ_INT(ms__device_flags(&gpu), FLAGS & ~MS_SIMULATE_GROWING);
    CHECK_EQ_INT(ms__step_flags(FLAGS, true), FLAGS & ~MS_SIMULATE_ENGINE_THREAD);
    CHECK_EQ_INT(ms__step_flags(FLAGS | MS_SIMULATE_FUSED, false), FLAGS | MS_SIMULATE_FUSED);
    CHECK(ms__has_blocks(&gpu, FLAGS) && ms__has_blocks(&gpu, FLAGS & ~MS_SIMULATE_GROWING));
    CHECK(!ms__has_blocks(&gpu, 0) && !ms__has_blocks(&host, MS_SIMULATE_ALLOCATOR));
}

TEST(what_counts_as_a_change) {
    static const int32_t kept[] = {MS_ACTION_KEEP, MS_ACTION_KEEP}, one[] = {MS_ACTION_KEEP, MS_ACTION_RECOMPUTE};
    ms_simulation_request request = request_with(NULL, &gpu, NULL);
    CHECK(!ms__is_changed(&request));
    request.model_options = MS_MODEL_8BIT;
    CHECK(ms__is_changed(&request));
    request = request_with(NULL, &gpu, kept);
    CHECK(!ms__is_changed(&request));
    request = request_with(NULL, &gpu, one);
    CHECK(ms__is_changed(&request));
}

/* It is the least limit that the step runs under, and a granule. */
TEST(it_is_enough_and_no_more) {
    ms_profile *profile = two_unit_profile();
    ms_simulation_request request = request_with(profile, &gpu, NULL);
    ms_simulation *sim = NULL;
    ms__needs needs;
    CHECK_STATUS(ms__find_needs(&request, NULL, INT64_MAX, &needs), MS_OK);
    CHECK(needs.needed_bytes > needs.peak_bytes);
    CHECK_EQ_STR(ms_error_message(), "");
    request.limit_bytes = needs.needed_bytes - MS__LARGE_GRANULE_BYTES;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    ms_simulation_destroy(sim);
    request.limit_bytes--;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_E_BUDGET);
    CHECK_STATUS(ms__find_needs(&request, NULL, needs.peak_bytes - 1, &needs), MS_OK);
    CHECK_EQ_INT(needs.needed_bytes, needs.peak_bytes); /* above what is asked for: it need not be exact */
    ms_profile_destroy(profile);
}

/* The rest of such a step is not played. */
TEST(a_step_that_needs_more_than_is_asked_for) {
    ms_profile *profile = two_unit_profile();
    ms_simulation_request request = request_with(profile, &gpu, NULL);
    ms_simulation *whole = NULL, *part = NULL;
    for (int i = 0; i < 2; i++, request.flags &= ~(uint32_t)MS_SIMULATE_ALLOCATOR) {
        CHECK_STATUS(ms__simulate(&request, NULL, INT64_MAX, &whole), MS_OK);
        const ms_simulation_summary *s = &whole->summary;
        CHECK_STATUS(ms__simulate(&request, NULL, s->needed_bytes, &part), MS_OK);
        CHECK_EQ_INT(part->summary.steady_peak_bytes, s->steady_peak_bytes);
        ms_simulation_destroy(part);
        CHECK_STATUS(ms__simulate(&request, NULL, 4096, &part), MS_OK);
        CHECK(part->summary.needed_bytes > 4096 && part->summary.n_ops < s->n_ops);
        ms_simulation_destroy(part);
        ms_simulation_destroy(whole);
    }
    ms_profile_destroy(profile);
}

/* The same with a little more room where memory has to be returned again and again. */
TEST(the_least_that_a_step_runs_with) {
    ms_profile *profile = two_unit_profile();
    ms_simulation_request request = request_with(profile, &gpu, NULL);
    ms__needs needs;
    int64_t least = 0;
    CHECK_STATUS(ms__find_needs(&request, NULL, INT64_MAX, &needs), MS_OK);
    CHECK_STATUS(ms__find_least_need(&request, NULL, &least), MS_OK);
    int64_t limit = needs.needed_bytes - MS__LARGE_GRANULE_BYTES; /* there is nothing to return in this step */
    CHECK_EQ_INT(least, limit + limit / 32 + MS__LARGE_GRANULE_BYTES);
    CHECK_EQ_STR(ms_error_message(), "");
    ms_profile_destroy(profile);
}

/* Under the same settings, a plan and a prediction of the same step have the same peak and agree on whether it fits. */
static void check_agreement(const ms_profile *profile, const ms_device *device, int64_t budget_bytes) {
    ms_settings settings = {.struct_bytes = sizeof settings};
    ms_plan_request request = {.struct_bytes = sizeof request};
    CHECK_STATUS(ms_settings_init(&settings, MS_MODE_BALANCED), MS_OK);
    settings.budget_bytes = budget_bytes;
    CHECK_STATUS(ms_plan_request_init(&request, &settings, device, NULL), MS_OK);
    request.profile = profile;
    ms_plan *plan = plan_of(&request);
    int32_t actions[] = {entry_of(plan, 0).action, entry_of(plan, 1).action};
    ms_simulation_request step = request_with(profile, device, actions);
    step.flags = request.simulation;
    ms_prediction p = {.struct_bytes = sizeof p};
    CHECK_STATUS(ms_predict(&step, budget_bytes, 0, &p), MS_OK);
    CHECK_EQ_INT(p.peak_bytes, summary_of(plan).predicted_peak_bytes);
    CHECK_EQ_INT(p.fits, 1);
    actions[0] = actions[1] = MS_ACTION_KEEP;
    CHECK_STATUS(ms_predict(&step, budget_bytes, 0, &p), MS_OK);
    CHECK_EQ_INT(p.peak_bytes, summary_of(plan).baseline_peak_bytes);
    if (budget_bytes > 0) CHECK_EQ_INT(p.fits, summary_of(plan).n_changed == 0);
    ms_plan_destroy(plan);
}

TEST(plans_and_predictions_agree) {
    ms_profile *profile = two_unit_profile();
    check_agreement(profile, &gpu, 0);
    check_agreement(profile, &host, 0);
    for (int64_t budget = 18300; budget < 23000; budget += 100) check_agreement(profile, &host, budget);
    for (int64_t budget = 68000000; budget < 74000000; budget += 100000) check_agreement(profile, &gpu, budget);
    ms_profile_destroy(profile);
}

SUITE(needs, CASE(how_steps_run), CASE(what_counts_as_a_change), CASE(it_is_enough_and_no_more),
      CASE(a_step_that_needs_more_than_is_asked_for), CASE(the_least_that_a_step_runs_with),
      CASE(plans_and_predictions_agree));
