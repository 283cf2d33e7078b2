/* test_chain_build.c - times of a chain against simulations, where the host falls behind the device. */
#include "devices.h"
#include "layered.h"
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

/* A link that is fast, and a host that handles each tensor that is offloaded for longer than it queues an operation. */
static ms_rates handling_rates(int64_t launch_ns) {
    return (ms_rates){.struct_bytes = sizeof(ms_rates),
                      .capability = 90,
                      .memory_bytes = 1 << 30,
                      .fp32_gflops = 1000000,
                      .memory_mb_per_s = 10000000,
                      .to_device_mb_per_s = 100000000,
                      .from_device_mb_per_s = 100000000,
                      .launch_ns = launch_ns,
                      .dispatch_ns = 20000,
                      .saved_tensor_ns = 15000,
                      .recomputation_ns = 200000};
}

/* What an action of all layers adds to the time of a step: by the chain, and as it is simulated. */
typedef struct added {
    int64_t chain_ns, simulated_ns, slack_ns; /* ticks are rounded up, and copies may drag on what hides them */
} added;

static added added_by(int32_t action, int64_t launch_ns) {
    enum { N_LAYERS = 4 };
    const ms_rates rates = handling_rates(launch_ns);
    const ms_device gpu = DEVICE_WITH(&rates, 132);
    ms_profile *profile = layered_profile(N_LAYERS, NOTHING);
    ms_plan_request request = request_of(profile, 1 << 30, MS_PLAN_FASTEST);
    request.device = &gpu;
    request.actions = 1U << action;
    request.host_limit_bytes = 1 << 30;
    request.simulation = 0;
    ms__decision decision = {.request = &request};
    CHECK_STATUS(ms__decision_open(&decision), MS_OK);
    const ms__model_choice *model = ms__decision_model(&decision, 0);
    const ms__grid *grid = &model->chain.grids[MS__GRID_FINE];
    uint8_t kept[N_LAYERS] = {0}, all[N_LAYERS];
    for (int i = 0; i < N_LAYERS; i++) all[i] = (uint8_t)(model->chain.units[i].n_options - 1);
    const ms__choices_step steps[] = {{.model = model, .choices = kept}, {.model = model, .choices = all}};
    ms__needs needs[2];
    for (int i = 0; i < 2; i++) CHECK_STATUS(ms__choices_needs(&decision, &steps[i], INT64_MAX, &needs[i]), MS_OK);
    const added found = {.chain_ns = ms__chain_play(&model->chain, grid, all).ticks * grid->tick_ns,
                         .simulated_ns = needs[1].played.step_ns - needs[0].played.step_ns,
                         .slack_ns = 8 * grid->tick_ns + 3000};
    CHECK_EQ_INT(model->chain.units[N_LAYERS - 1].options[1].action, action);
    ms__decision_close(&decision);
    ms_profile_destroy(profile);
    return found;
}

/* A search that did not count it would take any number of copies for next to nothing. */
TEST(what_copies_take_the_host) {
    static const int32_t actions[] = {MS_ACTION_OFFLOAD, MS_ACTION_RECOMPUTE_OFFLOAD};
    for (int i = 0; i < 2; i++) {
        const added bound = added_by(actions[i], 1000), /* the host is the limit: nothing is hidden */
            hidden = added_by(actions[i], 5000000);     /* the device is */
        CHECK(bound.simulated_ns > 3 * 200000);
        CHECK(bound.chain_ns >= bound.simulated_ns && bound.chain_ns <= bound.simulated_ns + bound.slack_ns);
        CHECK(hidden.chain_ns >= hidden.simulated_ns && hidden.chain_ns <= hidden.simulated_ns + hidden.slack_ns);
    }
    CHECK(added_by(MS_ACTION_OFFLOAD, 5000000).chain_ns < 4 * 200000);
}

SUITE(chain_build, CASE(a_host_that_is_late_after_units), CASE(what_copies_take_the_host));
