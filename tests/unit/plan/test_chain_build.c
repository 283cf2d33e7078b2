/* test_chain_build.c - times of a chain against simulations, where the host falls behind the device. */
#include "devices.h"
#include "plan/decide.h"
#include "plans.h"
#include "steps.h"

/* The device takes a microsecond for each operation, which hides what the host does in a plain step: 100 ns for each,
 * and 2000 for each parameter. Recomputations are hidden, too, but then the host is late for the optimizer's step. */
static const ms_rates late_rates = {.struct_bytes = sizeof(ms_rates),
                                    .capability = 90,
                                    .memory_bytes = 1 << 30,
                                    .fp32_gflops = 1,
                                    .memory_mb_per_s = 1000,
                                    .launch_ns = 1000,
                                    .dispatch_ns = 100,
                                    .parameter_ns = 2000,
                                    .recomputation_ns = 2500};

TEST(a_host_that_is_late_after_units) {
    static const uint8_t kept[] = {0, 0}, both[] = {1, 1}, one[] = {1, 0};
    const ms_device gpu = DEVICE_WITH(&late_rates, 132);
    ms_profile *profile = two_unit_profile();
    ms_plan_request request = request_of(profile, 1 << 30, MS_PLAN_FASTEST);
    request.device = &gpu;
    request.simulation = 0;
    ms__decision decision = {.request = &request};
    CHECK_STATUS(ms__decision_open(&decision), MS_OK);
    const ms__model_choice *model = ms__decision_model(&decision, 0);
    ms__plan_list list = {model, &model->chain.grids[MS__GRID_FINE], 0};
    int64_t two_ticks = 2 * list.grid->tick_ns;
    ms__needs plain, recomputed;
    ms__candidate all, some;
    const ms__choices_step steps[] = {{.model = model, .choices = kept}, {.model = model, .choices = both}};
    CHECK_STATUS(ms__choices_needs(&decision, &steps[0], INT64_MAX, &plain), MS_OK);
    CHECK_STATUS(ms__choices_needs(&decision, &steps[1], INT64_MAX, &recomputed), MS_OK);
    CHECK(recomputed.played.optimizer_ns > plain.played.optimizer_ns); /* the optimizer waits for the host */
    CHECK_STATUS(ms__appraise(&decision, &list, both, INT64_MAX, &all), MS_OK);
    CHECK_STATUS(ms__appraise(&decision, &list, one, INT64_MAX, &some), MS_OK);
    CHECK(all.step_ns >= recomputed.played.step_ns && all.step_ns <= recomputed.played.step_ns + two_ticks);
    CHECK(some.step_ns > plain.played.step_ns && some.step_ns < all.step_ns);
    ms__decision_close(&decision);
    ms_profile_destroy(profile);
}

SUITE(chain_build, CASE(a_host_that_is_late_after_units));
