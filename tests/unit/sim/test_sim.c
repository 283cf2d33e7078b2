/* test_sim.c - simulations of the small model of steps.h, every figure by hand.
 *
 * Before a step it holds 2560 bytes, and 4096 more once the optimizer has its state. Backward of the second unit is
 * where the peak is.
 */
#include "devices.h"
#include "error_info.h"
#include "steps.h"

#include <string.h>

#define STATE_BYTES 2560
#define OPTIMIZER_BYTES 4096
#define MIB ((int64_t)1 << 20)
#define N_FLAGS 6

static const int32_t keep[] = {MS_ACTION_KEEP, MS_ACTION_KEEP},
                     recompute[] = {MS_ACTION_RECOMPUTE, MS_ACTION_RECOMPUTE};

static ms_rates rates_with(int64_t capability) {
    return (ms_rates){.struct_bytes = sizeof(ms_rates),
                      .capability = capability,
                      .memory_bytes = 1 << 30,
                      .fp32_gflops = 10,
                      .bf16_gflops = 40,
                      .memory_mb_per_s = 1000,
                      .launch_ns = 100,
                      .dispatch_ns = 1000};
}

static ms_simulation_request request_with(const ms_profile *profile, const ms_rates *rates, uint32_t flags) {
    static ms_device device; /* of the last request */
    device = (ms_device)DEVICE_WITH(rates, 132);
    return (ms_simulation_request){
        .struct_bytes = sizeof(ms_simulation_request), .profile = profile, .device = &device, .flags = flags};
}

static ms_simulation *simulation_of(const ms_simulation_request *request) {
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(request, &sim), MS_OK);
    return sim;
}

static ms_simulation_summary summary_of(const ms_simulation *sim) {
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    CHECK_STATUS(ms_simulation_get_summary(sim, &summary), MS_OK);
    return summary;
}

static ms_simulation_segment point_of(const ms_simulation *sim, int64_t index) {
    ms_simulation_segment point = {.struct_bytes = sizeof point};
    CHECK_STATUS(ms_simulation_get_segment(sim, index, &point), MS_OK);
    return point;
}

static ms_simulation_summary simulate(const ms_profile *profile, const int32_t *actions, int64_t capability,
                                      uint32_t flags) {
    ms_rates rates = rates_with(capability);
    ms_simulation_request request = request_with(profile, &rates, flags);
    request.actions = actions;
    request.n_actions = 2;
    ms_simulation *sim = simulation_of(&request);
    ms_simulation_summary summary = summary_of(sim);
    ms_simulation_destroy(sim);
    return summary;
}

static int64_t sum_of(const int64_t parts[MS_N_CATEGORIES]) {
    int64_t sum = 0;
    for (int i = 0; i < MS_N_CATEGORIES; i++) sum += parts[i];
    return sum;
}

/* ---- Memory ---- */

TEST(peaks_of_plans) {
    static const struct {
        int32_t actions[2];
        int64_t first_peak;
    } plans[] = {{{MS_ACTION_KEEP, MS_ACTION_KEEP}, 17920},
                 {{MS_ACTION_RECOMPUTE, MS_ACTION_RECOMPUTE}, 13824},
                 {{MS_ACTION_KEEP, MS_ACTION_RECOMPUTE}, 17920}, /* recomputed while unit 0 still holds its bytes */
                 {{MS_ACTION_RECOMPUTE, MS_ACTION_KEEP}, 13824}};
    static const int64_t capabilities[] = {0, 80, 90};
    static const uint32_t flags[] = {0, MS_SIMULATE_ALLOCATOR, MS_SIMULATE_ENGINE_THREAD};
    ms_profile *profile = two_unit_profile();
    for (int i = 0; i < 4 * 3 * 3; i++) { /* everywhere alike: blocks of 512, no products */
        ms_simulation_summary s = simulate(profile, plans[i % 4].actions, capabilities[i / 4 % 3], flags[i / 12]);
        CHECK_EQ_INT(s.start_bytes, STATE_BYTES);
        CHECK_EQ_INT(s.first_peak_bytes, plans[i % 4].first_peak);
        CHECK_EQ_INT(s.steady_peak_bytes, plans[i % 4].first_peak + OPTIMIZER_BYTES);
        CHECK_EQ_INT(s.idle_bytes, STATE_BYTES + OPTIMIZER_BYTES);
        CHECK_EQ_INT(s.peak_unit, 1);
        CHECK_EQ_INT(s.peak_phase, MS_PHASE_BACKWARD);
        CHECK_EQ_INT(s.unused_bytes, 0);
        CHECK_EQ_INT(sum_of(s.parts), s.steady_peak_bytes);
    }
    ms_profile_destroy(profile);
}

TEST(no_actions_keep_everything) {
    ms_profile *profile = two_unit_profile();
    ms_simulation_summary a = simulate(profile, NULL, 0, 0), b = simulate(profile, keep, 0, 0);
    CHECK(memcmp(&a, &b, sizeof a) == 0);
    ms_profile_destroy(profile);
}

TEST(parts_of_the_peak) {
    static const int64_t plain_parts[MS_N_CATEGORIES] = {[MS_CATEGORY_ACTIVATION] = 4096 + 2048 + 4096,
                                                         [MS_CATEGORY_PARAMETER] = 2048,
                                                         [MS_CATEGORY_INPUT] = 512,
                                                         [MS_CATEGORY_GRADIENT] = 1024,
                                                         [MS_CATEGORY_OPTIMIZER] = 4096,
                                                         [MS_CATEGORY_TEMPORARY] = 4096};
    static const int64_t recomputed_parts[MS_N_CATEGORIES] = {
        [MS_CATEGORY_ACTIVATION] = 2048, [MS_CATEGORY_PARAMETER] = 2048, [MS_CATEGORY_INPUT] = 512,
        [MS_CATEGORY_GRADIENT] = 1024,   [MS_CATEGORY_OPTIMIZER] = 4096, [MS_CATEGORY_TEMPORARY] = 4096 + 4096};
    ms_profile *profile = two_unit_profile();
    ms_simulation_summary s = simulate(profile, keep, 0, 0);
    for (int i = 0; i < MS_N_CATEGORIES; i++) CHECK_EQ_INT(s.parts[i], plain_parts[i]);
    s = simulate(profile, recompute, 0, 0);
    for (int i = 0; i < MS_N_CATEGORIES; i++) CHECK_EQ_INT(s.parts[i], recomputed_parts[i]);
    ms_profile_destroy(profile);
}

/* The optimizer's state exists from the start, so the first step is like the later ones. */
TEST(resumed) {
    ms_profile *profile = two_unit_profile();
    ms_simulation_summary s = simulate(profile, keep, 0, MS_SIMULATE_RESUMED);
    CHECK_EQ_INT(s.start_bytes, STATE_BYTES);
    CHECK_EQ_INT(s.first_peak_bytes, 17920 + OPTIMIZER_BYTES);
    CHECK_EQ_INT(s.steady_peak_bytes, 17920 + OPTIMIZER_BYTES);
    CHECK_EQ_INT(s.idle_bytes, STATE_BYTES + OPTIMIZER_BYTES);
    ms_profile_destroy(profile);
}

/* Gradients stay, 2048 in all. A new one exists besides, from the operation that makes it until it has been added. */
TEST(gradients_that_are_kept) {
    ms_profile *profile = two_unit_profile();
    ms_simulation_summary s = simulate(profile, keep, 0, MS_SIMULATE_KEEP_GRADIENTS);
    CHECK_EQ_INT(s.first_peak_bytes, 17920);
    CHECK_EQ_INT(s.idle_bytes, STATE_BYTES + OPTIMIZER_BYTES + 2048);
    CHECK_EQ_INT(s.steady_peak_bytes, 17920 + OPTIMIZER_BYTES + 2048);
    CHECK_EQ_INT(s.peak_unit, 1);
    CHECK_EQ_INT(s.peak_phase, MS_PHASE_BACKWARD);
    CHECK_EQ_INT(s.parts[MS_CATEGORY_GRADIENT], 2048);
    ms_profile_destroy(profile);
}

/* A weight that both units use. The gradient of the second unit waits for that of the first, and both of them are then
 * one, which is added to the gradient that is kept. `tells`: the trace says when that is. */
static ms_profile *tied_units(bool tells) {
    script s = {0};
    in_phase(&s, MS_PHASE_SETUP);
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 1024);
    in_phase(&s, MS_PHASE_BACKWARD);
    in_unit(&s, 1);
    compute(&s, "aten.mm.default");
    int64_t gradient = take(&s, 1024);
    compute(&s, "aten.mm.default"); /* of the same node, whose gradients are added when it is done */
    int64_t between = take(&s, 2048);
    in_unit(&s, 0);
    compute(&s, "aten.mm.default");
    int64_t second = take(&s, 1024);
    give(&s, between);
    compute(&s, "aten.add_.Tensor");
    give(&s, second);
    if (tells) say(&s, MS_TRACE_GRADIENT, gradient, 0);
    compute(&s, "aten.mm.default");
    give(&s, take(&s, 4096));
    in_phase(&s, MS_PHASE_END);
    return profile_of_scripts(&s, NULL);
}

TEST(gradients_of_tied_weights_wait) {
    for (int tells = 0; tells < 2; tells++) {
        ms_profile *profile = tied_units(tells != 0), *read = NULL;
        char *text = NULL;
        CHECK_STATUS(ms_profile_to_json(profile, &text), MS_OK);
        CHECK_STATUS(ms_profile_from_json(text, strlen(text), &read), MS_OK);
        ms_rates rates = rates_with(0);
        ms_simulation_request request = request_with(read, &rates, MS_SIMULATE_KEEP_GRADIENTS);
        ms_simulation *sim = simulation_of(&request);
        int64_t waits = tells ? 1024 : 0;
        ms_simulation_segment one = point_of(sim, 1), other = point_of(sim, 2);
        CHECK_EQ_INT(one.end_bytes, 2048 + 2048 + waits);
        CHECK_EQ_INT(one.peak_bytes, 2048 + 2048 + waits);
        CHECK_EQ_INT(other.peak_bytes, 2048 + 4096); /* all was added by then */
        CHECK_EQ_INT(other.end_bytes, 2048);
        ms_simulation_destroy(sim);
        ms_free(text);
        ms_profile_destroy(read);
        ms_profile_destroy(profile);
    }
}

static void check_point(const ms_simulation *sim, int64_t index, int32_t unit, int32_t phase, int64_t peak,
                        int64_t end) {
    ms_simulation_segment p = point_of(sim, index);
    CHECK_EQ_INT(p.struct_bytes, sizeof p);
    CHECK_EQ_INT(p.unit, unit);
    CHECK_EQ_INT(p.phase, phase);
    CHECK_EQ_INT(p.peak_bytes, peak);
    CHECK_EQ_INT(p.end_bytes, end);
    CHECK_EQ_INT(sum_of(p.parts), peak);
}

TEST(the_timeline) {
    ms_profile *profile = two_unit_profile();
    ms_rates rates = rates_with(0);
    ms_simulation_request request = request_with(profile, &rates, 0);
    ms_simulation *sim = simulation_of(&request);
    CHECK_EQ_INT(ms_simulation_count_segments(sim), 9);
    check_point(sim, 0, -1, MS_PHASE_SETUP, 0, 0); /* not part of a steady step */
    check_point(sim, 1, 0, MS_PHASE_FORWARD, 12800, 12800);
    check_point(sim, 2, 1, MS_PHASE_FORWARD, 18944, 18944);
    check_point(sim, 3, -1, MS_PHASE_LOSS, 19456, 19456);
    check_point(sim, 4, -1, MS_PHASE_BACKWARD, 21504, 18944);
    check_point(sim, 5, 1, MS_PHASE_BACKWARD, 22016, 13824);
    check_point(sim, 6, 0, MS_PHASE_BACKWARD, 14848, 8704);
    check_point(sim, 7, -1, MS_PHASE_OPTIMIZER_FIRST, 0, 0); /* nor is this */
    check_point(sim, 8, -1, MS_PHASE_OPTIMIZER, 9728, 8704);
    ms_simulation_destroy(sim);
    request.flags = MS_SIMULATE_FUSED; /* no temporaries of the optimizer */
    sim = simulation_of(&request);
    check_point(sim, 6, 0, MS_PHASE_BACKWARD, 14848, 8704);
    check_point(sim, 8, -1, MS_PHASE_OPTIMIZER, 8704, 8704);
    ms_simulation_destroy(sim);
    request.flags = MS_SIMULATE_RESUMED;
    sim = simulation_of(&request);
    check_point(sim, 7, -1, MS_PHASE_OPTIMIZER_FIRST, 0, 0);
    check_point(sim, 8, -1, MS_PHASE_OPTIMIZER, 9728, 8704);
    ms_simulation_destroy(sim);
    ms_profile_destroy(profile);
}

/* A forward and a backward that multiply, and may add a row. */
static ms_profile *products(bool biased) {
    script s = {0};
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 512);
    for (int phase = MS_PHASE_FORWARD; phase <= MS_PHASE_BACKWARD; phase += 2) {
        in_phase(&s, phase);
        in_unit(&s, 0);
        for (int i = 0; i < 2; i++) {
            compute(&s, biased ? "aten.addmm.default" : "aten.mm.default");
            if (biased) input(&s, 1, 10);
            if (biased) s.operands[s.n_operands - 1].n_dims = 1;
            input(&s, 10, 10);
            input(&s, 10, 10);
            output(&s, 10, 10);
        }
    }
    return profile_of_scripts(&s, &s);
}

static void check_workspace(const ms_profile *profile, int64_t capability, uint32_t flags, int64_t wanted) {
    ms_simulation_summary s = simulate(profile, NULL, capability, flags);
    CHECK_EQ_INT(s.parts[MS_CATEGORY_LIBRARY], wanted);
    CHECK_EQ_INT(s.steady_peak_bytes, 512 + wanted);
    CHECK_EQ_INT(s.first_peak_bytes, 512 + wanted);
    CHECK_EQ_INT(s.idle_bytes, 512 + wanted); /* they stay */
}

TEST(workspaces) {
    const int64_t hopper = 33554432, older = 8519680, row = 1048576;
    ms_profile *profile = products(false), *biased = products(true);
    check_workspace(profile, 90, 0, hopper);
    check_workspace(profile, 90, MS_SIMULATE_ENGINE_THREAD, 2 * hopper);
    check_workspace(profile, 100, MS_SIMULATE_ENGINE_THREAD, 2 * hopper);
    check_workspace(profile, 80, 0, older);
    check_workspace(profile, 80, MS_SIMULATE_ENGINE_THREAD, 2 * older);
    check_workspace(profile, 0, 0, 0);
    check_workspace(profile, 0, MS_SIMULATE_ENGINE_THREAD, 0);
    check_workspace(biased, 90, 0, hopper + row);
    check_workspace(biased, 80, MS_SIMULATE_ENGINE_THREAD, 2 * (older + row));
    check_workspace(biased, 0, 0, 0);
    ms_profile_destroy(profile);
    ms_profile_destroy(biased);
}

TEST(memory_inside_kernels) {
    script s = {0};
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 512);
    in_phase(&s, MS_PHASE_FORWARD);
    compute(&s, "aten.sum.dim_IntList");
    input(&s, 2048, 1024);
    output(&s, 1, 1024);
    int64_t result = take(&s, 4096);
    in_phase(&s, MS_PHASE_BACKWARD);
    compute(&s, "aten.relu.default");
    give(&s, result);
    ms_profile *profile = profile_of_scripts(&s, NULL);
    ms_simulation_summary sum = simulate(profile, NULL, 90, 0);
    CHECK_EQ_INT(sum.steady_peak_bytes, 512 + 4096 + 16777216);
    CHECK_EQ_INT(sum.parts[MS_CATEGORY_TEMPORARY], 16777216);
    CHECK_EQ_INT(sum.idle_bytes, 512);
    sum = simulate(profile, NULL, 0, 0);
    CHECK_EQ_INT(sum.steady_peak_bytes, 512 + 4096);
    ms_profile_destroy(profile);
}

/* Sizes are rounded to 512 on a GPU, and not on a CPU. */
TEST(rounding) {
    script s = {0};
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 1);
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 513);
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 0);
    ms_profile *profile = profile_of_scripts(&s, NULL);
    CHECK_EQ_INT(simulate(profile, NULL, 0, 0).start_bytes, 514);
    CHECK_EQ_INT(simulate(profile, NULL, 80, 0).start_bytes, 1536);
    CHECK_EQ_INT(simulate(profile, NULL, 80, MS_SIMULATE_ALLOCATOR).start_bytes, 1536);
    CHECK_EQ_INT(simulate(profile, NULL, 0, 0).steady_peak_bytes, 514); /* also where a step does nothing */
    CHECK_EQ_INT(simulate(profile, NULL, 0, 0).peak_phase, MS_PHASE_SETUP);
    ms_profile_destroy(profile);
}

TEST(the_allocator) {
    script s = {0};
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 1000);
    in_phase(&s, MS_PHASE_FORWARD);
    compute(&s, "aten.relu.default");
    int64_t large = take(&s, 19 * MIB + MIB / 2); /* a segment of 20 MiB, whose rest is too small to be split off */
    in_phase(&s, MS_PHASE_BACKWARD);
    compute(&s, "aten.relu.default");
    give(&s, large);
    ms_profile *profile = profile_of_scripts(&s, NULL);
    ms_simulation_summary sum = simulate(profile, NULL, 90, MS_SIMULATE_ALLOCATOR);
    CHECK_EQ_INT(sum.steady_peak_bytes, 1024 + 20 * MIB);
    CHECK_EQ_INT(sum.unused_bytes, MIB / 2);
    CHECK_EQ_INT(sum_of(sum.parts) + sum.unused_bytes, sum.steady_peak_bytes);
    CHECK_EQ_INT(sum.reserved_bytes, 22 * MIB);
    CHECK_EQ_INT(sum.first_reserved_bytes, 22 * MIB);
    CHECK_EQ_INT(sum.idle_bytes, 1024);
    sum = simulate(profile, NULL, 90, 0); /* sizes alone */
    CHECK_EQ_INT(sum.steady_peak_bytes, 1024 + 19 * MIB + MIB / 2);
    CHECK_EQ_INT(sum.reserved_bytes, sum.steady_peak_bytes);
    CHECK_EQ_INT(simulate(profile, NULL, 0, MS_SIMULATE_ALLOCATOR).steady_peak_bytes, 1000 + 19 * MIB + MIB / 2);
    ms_profile_destroy(profile);
}

TEST(a_limit) {
    ms_profile *profile = two_unit_profile();
    ms_rates rates = rates_with(90);
    ms_simulation_request request = request_with(profile, &rates, MS_SIMULATE_ALLOCATOR);
    ms_simulation *sim = NULL;
    request.limit_bytes = 2 * MIB - 1;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_E_BUDGET);
    CHECK_EQ_INT(error_info().needed_bytes, 2 * MIB);
    CHECK(sim == NULL);
    request.limit_bytes = 2 * MIB; /* one segment for small blocks has room for all */
    sim = simulation_of(&request);
    CHECK_EQ_INT(summary_of(sim).reserved_bytes, 2 * MIB);
    ms_simulation_destroy(sim);
    ms_profile_destroy(profile);
}

TEST(a_step_of_nothing) {
    script s = {0};
    ms_profile *profile = profile_of_scripts(&s, &s);
    ms_simulation_summary sum = simulate(profile, recompute, 90, MS_SIMULATE_ALLOCATOR);
    CHECK_EQ_INT(sum.steady_peak_bytes, 0);
    CHECK_EQ_INT(sum.step_ns, 0);
    CHECK_EQ_INT(sum.peak_unit, -1);
    ms_profile_destroy(profile);
}

/* ---- Split keys ---- */

/* Different segments release a tensor of unit 0: in one variant unit 1, in the other a segment between units. The last
 * of those that hold it counts, whatever the plan. */
TEST(split_keys_under_mixed_plans) {
    script scripts[2];
    memset(scripts, 0, sizeof scripts);
    for (int v = 0; v < 2; v++) {
        script *s = &scripts[v];
        in_phase(s, MS_PHASE_FORWARD);
        in_unit(s, 0);
        compute(s, "aten.relu.default");
        int64_t made = take(s, 1024);
        in_unit(s, 1);
        compute(s, "aten.relu.default");
        in_phase(s, MS_PHASE_BACKWARD);
        compute(s, "aten.relu.default");
        if (v == 0) give(s, made); /* kept: between units, before unit 1's backward */
        in_unit(s, 1);
        compute(s, "aten.relu.default");
        if (v == 1) give(s, made); /* recomputed: unit 1 needs it until then */
        in_unit(s, 0);
        compute(s, "aten.relu.default");
        (void)take(s, 512);
    }
    ms_profile *profile = profile_of_scripts(&scripts[0], &scripts[1]);
    CHECK_EQ_INT(profile->step->n_split_keys, 1);
    ms_rates rates = rates_with(0);
    for (int plan = 0; plan < 4; plan++) {
        const int32_t actions[] = {plan & 1, plan >> 1};
        ms_simulation_request request = request_with(profile, &rates, 0);
        request.actions = actions;
        request.n_actions = 2;
        ms_simulation *sim = simulation_of(&request);
        CHECK_EQ_INT(point_of(sim, 2).end_bytes, plan >> 1 ? 1024 : 0); /* between units */
        CHECK_EQ_INT(point_of(sim, 3).end_bytes, 0);                    /* unit 1 */
        ms_simulation_destroy(sim);
    }
    ms_profile_destroy(profile);
}

/* ---- Time ---- */

/* n operations of 1200 bytes and 2000 flops: 1200 ns of traffic and 200 of arithmetic, and 100 of launch. */
static ms_profile *operations(int n, const char *name) {
    script s = {0};
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 512);
    in_phase(&s, MS_PHASE_FORWARD);
    for (int i = 0; i < n; i++) {
        compute(&s, name);
        input(&s, 10, 10);
        input(&s, 10, 10);
        output(&s, 10, 10);
    }
    return profile_of_scripts(&s, NULL);
}

static ms_simulation_summary timed(const ms_profile *profile, const ms_rates *rates) {
    ms_simulation_request request = request_with(profile, rates, 0);
    ms_simulation *sim = simulation_of(&request);
    ms_simulation_summary s = summary_of(sim);
    CHECK_EQ_INT(s.step_ns, s.host_ns > s.device_ns ? s.host_ns : s.device_ns);
    CHECK_EQ_INT(s.step_ns, s.forward_ns + s.backward_ns + s.optimizer_ns);
    ms_simulation_destroy(sim);
    return s;
}

TEST(time_of_a_gpu) {
    ms_profile *profile = operations(5, "aten.mm.default");
    ms_rates rates = rates_with(90);
    ms_simulation_summary s = timed(profile, &rates); /* the device is the slower one */
    CHECK_EQ_INT(s.n_ops, 5);
    CHECK_EQ_INT(s.host_ns, 5 * 1000);
    CHECK_EQ_INT(s.device_ns, 1000 + 5 * 1300);
    CHECK_EQ_INT(s.forward_ns, s.device_ns);
    rates.dispatch_ns = 5000; /* the host is slower */
    s = timed(profile, &rates);
    CHECK_EQ_INT(s.host_ns, 5 * 5000);
    CHECK_EQ_INT(s.device_ns, 5 * 5000 + 1300);
    rates.dispatch_ns = 0;
    rates.fp32_gflops = 1; /* arithmetic takes longer than traffic */
    s = timed(profile, &rates);
    CHECK_EQ_INT(s.host_ns, 0);
    CHECK_EQ_INT(s.device_ns, 5 * 2100);
    ms_profile_destroy(profile);
}

TEST(time_of_a_cpu) {
    ms_profile *profile = operations(5, "aten.mm.default");
    ms_rates rates = rates_with(0);
    ms_simulation_summary s = timed(profile, &rates);
    CHECK_EQ_INT(s.host_ns, 5 * (1000 + 1300));
    CHECK_EQ_INT(s.device_ns, 0);
    ms_profile_destroy(profile);
}

TEST(views_take_the_host_only) {
    ms_profile *profile = operations(5, "aten.view.default");
    ms_rates rates = rates_with(90);
    ms_simulation_summary s = timed(profile, &rates);
    CHECK_EQ_INT(s.host_ns, 5000);
    CHECK_EQ_INT(s.device_ns, 0);
    CHECK_EQ_INT(s.step_ns, 5000);
    ms_profile_destroy(profile);
}

TEST(narrow_types_are_faster) {
    script s = {0};
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 512);
    in_phase(&s, MS_PHASE_FORWARD);
    compute(&s, "aten.mm.default");
    input(&s, 1000, 1000);
    input(&s, 1000, 1000); /* 2e9 flops */
    for (int i = 0; i < 2; i++) s.operands[i].element_bytes = 2;
    ms_profile *profile = profile_of_scripts(&s, NULL);
    ms_rates rates = rates_with(90);
    rates.dispatch_ns = rates.launch_ns = 0;
    CHECK_EQ_INT(timed(profile, &rates).step_ns, 50000000);
    rates.bf16_gflops = 0;
    rates.fp16_gflops = 20;
    CHECK_EQ_INT(timed(profile, &rates).step_ns, 100000000);
    rates.fp16_gflops = 0;
    CHECK_EQ_INT(timed(profile, &rates).step_ns, 200000000);
    ms_profile_destroy(profile);
}

TEST(times_of_the_phases) {
    ms_profile *profile = two_unit_profile();
    ms_rates rates = rates_with(0); /* each operation: 1000 + 100 */
    ms_simulation_request request = request_with(profile, &rates, 0);
    ms_simulation *sim = simulation_of(&request);
    ms_simulation_summary s = summary_of(sim);
    CHECK_EQ_INT(s.n_ops, 7);
    CHECK_EQ_INT(s.forward_ns, 3 * 1100);
    CHECK_EQ_INT(s.backward_ns, 3 * 1100);
    CHECK_EQ_INT(s.optimizer_ns, 1100);
    CHECK_EQ_INT(point_of(sim, 5).duration_ns, 1100);
    CHECK_EQ_INT(point_of(sim, 7).duration_ns, 0); /* the optimizer's first step */
    ms_simulation_destroy(sim);
    request.actions = recompute;
    request.n_actions = 2;
    sim = simulation_of(&request);
    CHECK_EQ_INT(summary_of(sim).backward_ns, 5 * 1100); /* two units once more */
    CHECK_EQ_INT(summary_of(sim).n_ops, 9);
    CHECK_EQ_INT(point_of(sim, 5).duration_ns, 2200);
    ms_simulation_destroy(sim);
    ms_profile_destroy(profile);
}

/* The longest possible step does not overflow. */
TEST(times_that_do_not_fit) {
    script s = {0};
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 512);
    in_phase(&s, MS_PHASE_FORWARD);
    for (int i = 0; i < 4; i++) {
        compute(&s, "aten.relu.default");
        input(&s, INT64_C(1) << 28, INT64_C(1) << 27); /* 2^57 bytes */
    }
    ms_profile *profile = profile_of_scripts(&s, NULL);
    for (int64_t capability = 0; capability <= 90; capability += 90) {
        ms_rates rates = rates_with(capability);
        rates.memory_mb_per_s = 1;
        CHECK_EQ_INT(timed(profile, &rates).step_ns, INT64_MAX / 8);
        rates.memory_mb_per_s = 1000000000;
        rates.launch_ns = rates.dispatch_ns = 0;
        CHECK_EQ_INT(timed(profile, &rates).step_ns, 4 * ((INT64_C(1) << 57) / 1000000000 * 1000));
    }
    ms_profile_destroy(profile);
}

/* ---- The rest ---- */

TEST(the_same_request_gives_the_same_result) {
    ms_profile *profile = two_unit_profile();
    for (uint32_t flags = 0; flags < 1U << N_FLAGS; flags++) {
        ms_rates rates = rates_with(90);
        ms_simulation_request request = request_with(profile, &rates, flags);
        ms_simulation *a = simulation_of(&request), *b = simulation_of(&request);
        ms_simulation_summary x = summary_of(a), y = summary_of(b);
        CHECK(memcmp(&x, &y, sizeof x) == 0);
        CHECK_EQ_INT(sum_of(x.parts) + x.unused_bytes, x.steady_peak_bytes);
        for (int64_t i = 0; i < ms_simulation_count_segments(a); i++) {
            ms_simulation_segment p = point_of(a, i), q = point_of(b, i);
            CHECK(memcmp(&p, &q, sizeof p) == 0);
        }
        ms_simulation_destroy(a);
        ms_simulation_destroy(b);
    }
    ms_profile_destroy(profile);
}

static void check_refused(const ms_simulation_request *request, ms_status wanted) {
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(request, &sim), wanted);
    CHECK(sim == NULL && ms_error_message()[0] != '\0');
}

TEST(requests_are_initialised) {
    ms_profile *profile = two_unit_profile();
    ms_rates gpu_rates = rates_with(90), host_rates = rates_with(0);
    const ms_device gpu = DEVICE_WITH(&gpu_rates, 132), host = DEVICE_WITH(&host_rates, 8);
    ms_simulation_request request, small = {.struct_bytes = 8};
    memset(&request, 0xA5, sizeof request);
    request.struct_bytes = sizeof request;
    CHECK_STATUS(ms_simulation_request_init(NULL, profile, &gpu), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_request_init(&small, profile, &gpu), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_request_init(&request, profile, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_request_init(&request, profile, &gpu), MS_OK);
    ms_simulation_request wanted = {.struct_bytes = sizeof wanted,
                                    .profile = profile,
                                    .device = &gpu,
                                    .flags = MS_SIMULATE_ALLOCATOR | MS_SIMULATE_ENGINE_THREAD};
    CHECK(memcmp(&request, &wanted, sizeof request) == 0);
    ms_simulation_destroy(simulation_of(&request));
    wanted.device = &host;
    wanted.flags = 0;
    CHECK_STATUS(ms_simulation_request_init(&request, profile, &host), MS_OK);
    CHECK(memcmp(&request, &wanted, sizeof request) == 0);
    ms_profile_destroy(profile);
}

TEST(requests_that_are_refused) {
    static const int32_t unknown[] = {MS_ACTION_KEEP, MS_N_ACTIONS};
    ms_profile *profile = two_unit_profile();
    ms_rates rates = rates_with(90);
    const ms_simulation_request good = request_with(profile, &rates, 0);
    ms_simulation_request bad = good;
    CHECK_STATUS(ms_simulation_create(&good, NULL), MS_E_INVALID);
    check_refused(NULL, MS_E_INVALID);
    bad.struct_bytes = 8;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.profile = NULL;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.device = NULL;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.flags = 1U << N_FLAGS;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.model_options = MS_MODEL_ALL + 1;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.limit_bytes = -1;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.device = DEVICE_OF(good.device->rates, -1);
    check_refused(&bad, MS_E_INVALID);
    bad.device = DEVICE_OF(good.device->rates, INT64_MAX);
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.actions = keep;
    bad.n_actions = 3;
    check_refused(&bad, MS_E_MISMATCH);
    bad.n_actions = -1;
    check_refused(&bad, MS_E_MISMATCH);
    bad.n_actions = 2;
    bad.actions = unknown;
    check_refused(&bad, MS_E_INVALID);
    ms_profile_destroy(profile);
}

TEST(rates_that_are_refused) {
    static const size_t fields[] = {offsetof(ms_rates, capability),           offsetof(ms_rates, fp32_gflops),
                                    offsetof(ms_rates, fp16_gflops),          offsetof(ms_rates, bf16_gflops),
                                    offsetof(ms_rates, memory_mb_per_s),      offsetof(ms_rates, launch_ns),
                                    offsetof(ms_rates, dispatch_ns),          offsetof(ms_rates, to_device_mb_per_s),
                                    offsetof(ms_rates, from_device_mb_per_s), offsetof(ms_rates, both_mb_per_s)};
    ms_profile *profile = two_unit_profile();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        ms_rates rates = rates_with(90);
        ms_simulation_request request = request_with(profile, &rates, 0);
        *(int64_t *)((char *)&rates + fields[i]) = -1;
        check_refused(&request, MS_E_INVALID);
        *(int64_t *)((char *)&rates + fields[i]) = INT64_MAX;
        if (i > 0) check_refused(&request, MS_E_INVALID);
    }
    ms_rates rates = rates_with(90);
    ms_simulation_request request = request_with(profile, &rates, 0);
    rates.struct_bytes = 0;
    check_refused(&request, MS_E_INVALID);
    ms_profile_destroy(profile);
}

TEST(a_step_that_was_only_seen_kept) {
    script s;
    two_units(&s, false);
    ms_profile *kept = profile_of_scripts(&s, NULL);
    ms_rates rates = rates_with(0);
    ms_simulation_request request = request_with(kept, &rates, 0);
    request.actions = recompute;
    request.n_actions = 2;
    check_refused(&request, MS_E_INVALID); /* its effect is unknown */
    request.actions = keep;
    ms_simulation *sim = simulation_of(&request);
    CHECK_EQ_INT(summary_of(sim).steady_peak_bytes, 17920 + OPTIMIZER_BYTES);
    ms_simulation_destroy(sim);
    ms_profile_destroy(kept);
}

/* It is there during one segment, and nowhere else. */
TEST(a_spacer) {
    const int64_t large = 100000;
    ms_profile *profile = two_unit_profile();
    ms_rates rates = rates_with(0);
    ms_simulation_request request = request_with(profile, &rates, 0);
    ms_simulation *without = simulation_of(&request);
    request.spacer_unit = 1;
    ms_simulation *none = simulation_of(&request);
    request.spacer_bytes = large;
    ms_simulation *with = simulation_of(&request);
    int n_higher = 0;
    for (int64_t i = 0; i < ms_simulation_count_segments(without); i++) {
        ms_simulation_segment before = point_of(without, i), after = point_of(with, i);
        bool is_its = before.unit == 1 && before.phase == MS_PHASE_FORWARD;
        CHECK_EQ_INT(after.peak_bytes, before.peak_bytes + (is_its ? large : 0));
        CHECK_EQ_INT(after.parts[MS_CATEGORY_TEMPORARY], before.parts[MS_CATEGORY_TEMPORARY] + (is_its ? large : 0));
        CHECK_EQ_INT(after.end_bytes, before.end_bytes);
        CHECK_EQ_INT(after.duration_ns, before.duration_ns);
        n_higher += is_its;
    }
    CHECK_EQ_INT(n_higher, 1);
    CHECK_EQ_INT(summary_of(none).steady_peak_bytes, summary_of(without).steady_peak_bytes);
    CHECK(summary_of(with).steady_peak_bytes > large);
    CHECK_EQ_INT(summary_of(with).peak_unit, 1);
    CHECK_EQ_INT(summary_of(with).peak_phase, MS_PHASE_FORWARD);
    ms_simulation_destroy(without);
    ms_simulation_destroy(none);
    ms_simulation_destroy(with);
    ms_profile_destroy(profile);
}

TEST(spacers_that_are_refused) {
    ms_profile *profile = two_unit_profile();
    ms_rates rates = rates_with(0);
    ms_simulation_request request = request_with(profile, &rates, 0);
    ms_simulation *sim = NULL;
    request.spacer_bytes = -1;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_E_INVALID);
    request.spacer_bytes = INT64_MAX;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_E_INVALID);
    request.spacer_bytes = 512;
    for (request.spacer_unit = -1; request.spacer_unit <= 2; request.spacer_unit += 3)
        CHECK_STATUS(ms_simulation_create(&request, &sim), MS_E_INVALID);
    ms_profile_destroy(profile);
}

TEST(arguments_of_results) {
    ms_profile *profile = two_unit_profile();
    ms_rates rates = rates_with(0);
    ms_simulation_request request = request_with(profile, &rates, 0);
    ms_simulation *sim = simulation_of(&request);
    ms_simulation_summary summary = {.struct_bytes = 8};
    ms_simulation_segment point = {.struct_bytes = sizeof point};
    CHECK_STATUS(ms_simulation_get_summary(NULL, &summary), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_get_summary(sim, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_get_summary(sim, &summary), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_get_segment(sim, -1, &point), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_get_segment(sim, 9, &point), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_get_segment(NULL, 0, &point), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_get_segment(sim, 0, NULL), MS_E_INVALID);
    point.struct_bytes = 0;
    CHECK_STATUS(ms_simulation_get_segment(sim, 0, &point), MS_E_INVALID);
    CHECK_EQ_INT(ms_simulation_count_segments(NULL), 0);
    ms_profile_destroy(profile); /* the result has copies */
    CHECK_EQ_INT(summary_of(sim).start_bytes, STATE_BYTES);
    ms_simulation_destroy(sim);
    ms_simulation_destroy(NULL);
}

SUITE(sim, CASE(peaks_of_plans), CASE(no_actions_keep_everything), CASE(parts_of_the_peak), CASE(resumed),
      CASE(gradients_that_are_kept), CASE(gradients_of_tied_weights_wait), CASE(the_timeline), CASE(workspaces),
      CASE(memory_inside_kernels), CASE(rounding), CASE(the_allocator), CASE(a_limit), CASE(a_step_of_nothing),
      CASE(split_keys_under_mixed_plans), CASE(time_of_a_gpu), CASE(time_of_a_cpu), CASE(views_take_the_host_only),
      CASE(narrow_types_are_faster), CASE(times_of_the_phases), CASE(times_that_do_not_fit),
      CASE(the_same_request_gives_the_same_result), CASE(requests_are_initialised), CASE(requests_that_are_refused),
      CASE(rates_that_are_refused), CASE(a_step_that_was_only_seen_kept), CASE(a_spacer),
      CASE(spacers_that_are_refused), CASE(arguments_of_results));
