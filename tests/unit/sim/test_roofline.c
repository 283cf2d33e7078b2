/* test_roofline.c - what the host does for operations, by kind and caller, and what that makes of a slowdown. */
#include <stddef.h>
#include <string.h>

#include "devices.h"
#include "steps.h"

/* A nanosecond for each in another digit, so that the host's time is a list of counts. Nothing takes the device. */
static const ms_rates digits = {.struct_bytes = sizeof(ms_rates),
                                .capability = 90,
                                .memory_bytes = 1 << 30,
                                .fp32_gflops = 1000000000,
                                .memory_mb_per_s = 1000000000,
                                .dispatch_ns = 1,
                                .product_ns = 10,
                                .view_ns = 100,
                                .backward_ns = 1000,
                                .backward_product_ns = 10000,
                                .backward_view_ns = 100000,
                                .list_tensor_ns = 1000000,
                                .parameter_ns = 10000000,
                                .saved_tensor_ns = 100000000,
                                .recomputation_ns = 1000000000};

static ms_simulation_summary simulated_as(const ms_profile *profile, const ms_rates *rates, const int32_t *actions,
                                          int64_t flags) {
    ms_device device = DEVICE_WITH(rates, 132);
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = profile,
                                     .device = &device,
                                     .actions = actions,
                                     .n_actions = actions == NULL ? 0 : 2,
                                     .flags = (uint32_t)flags};
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    CHECK_STATUS(ms_simulation_get_summary(sim, &summary), MS_OK);
    ms_simulation_destroy(sim);
    return summary;
}

static ms_simulation_summary simulated(const ms_profile *profile, const ms_rates *rates, const int32_t *actions) {
    return simulated_as(profile, rates, actions, 0);
}

static void operation(script *s, const char *name, int n_inputs) {
    compute(s, name);
    for (int i = 0; i < n_inputs; i++) input(s, 4, 4);
    output(s, 4, 4);
}

/* Each kind in each phase: 1 pointwise operation, 2 products and 3 views in forward; 4, 5 and 6 in backward; then an
 * operation on lists of 7 tensors for the one parameter that has a gradient. */
static ms_profile *kinds(void) {
    static const char *const names[] = {"aten.relu.default", "aten.mm.default", "aten.view.default"};
    script s = {0};
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 512);
    int n = 1;
    for (int64_t phase = MS_PHASE_FORWARD; phase <= MS_PHASE_BACKWARD; phase += 2) {
        in_phase(&s, phase);
        for (int kind = 0; kind < 3; kind++, n++)
            for (int i = 0; i < n; i++) operation(&s, names[kind], 2);
    }
    (void)take_as(&s, MS_CATEGORY_GRADIENT, 512);
    in_phase(&s, MS_PHASE_OPTIMIZER_FIRST);
    in_phase(&s, MS_PHASE_OPTIMIZER);
    operation(&s, "aten._foreach_add_.List", 7);
    in_phase(&s, MS_PHASE_END);
    return profile_of_scripts(&s, NULL);
}

TEST(each_kind_has_its_cost) {
    ms_profile *profile = kinds();
    ms_simulation_summary summary = simulated(profile, &digits, NULL);
    CHECK_EQ_INT(summary.host_ns, INT64_C(17655321)); /* the operation on lists is one of a caller in C++ */
    CHECK_EQ_INT(summary.n_ops, 22);
    ms_profile_destroy(profile);
}

/* One parameter of 512 bytes, its gradient and two moments; the optimizer's operations as traces have them. */
static ms_profile *updated(int n_ops) {
    script s = {0};
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 512);
    in_phase(&s, MS_PHASE_FORWARD);
    operation(&s, "aten.relu.default", 1);
    in_phase(&s, MS_PHASE_BACKWARD);
    operation(&s, "aten.relu.default", 1);
    (void)take_as(&s, MS_CATEGORY_GRADIENT, 512);
    in_phase(&s, MS_PHASE_OPTIMIZER_FIRST);
    (void)take_as(&s, MS_CATEGORY_OPTIMIZER, 512);
    (void)take_as(&s, MS_CATEGORY_OPTIMIZER, 512);
    in_phase(&s, MS_PHASE_OPTIMIZER);
    for (int i = 0; i < n_ops; i++) operation(&s, "aten.mul_.Tensor", 2);
    in_phase(&s, MS_PHASE_END);
    return profile_of_scripts(&s, NULL);
}

/* However many operations a fused step replaces, it takes the host one, and the device what it reads and writes: three
 * times the gradient (with the parameter, which is as large) and twice the moments. */
TEST(a_fused_step_is_one_operation) {
    ms_rates rates = digits;
    memset(&rates.product_ns, 0, sizeof rates - offsetof(ms_rates, product_ns)); /* the device is the limit */
    rates.memory_mb_per_s = 1;
    rates.launch_ns = 1;
    int64_t device_ns[2], flags = MS_SIMULATE_FUSED;
    for (int n = 0; n < 2; n++) {
        ms_profile *profile = updated(1 + 20 * n);
        CHECK_EQ_INT(simulated_as(profile, &digits, NULL, flags).host_ns, 10002001);
        CHECK_EQ_INT(simulated(profile, &digits, NULL).host_ns, 10001001 + 1000 * (1 + 20 * n));
        device_ns[n] = simulated_as(profile, &rates, NULL, flags).optimizer_ns;
        ms_profile_destroy(profile);
    }
    CHECK_EQ_INT(device_ns[0], device_ns[1]);
    CHECK_EQ_INT(device_ns[0], 1000 * (3 * 512 + 2 * 1024) + 1);
}

/* 0 means what libraries did before: one cost for everything. */
TEST(costs_that_are_not_known) {
    ms_profile *profile = kinds();
    ms_rates rates = digits;
    memset(&rates.product_ns, 0, sizeof rates - offsetof(ms_rates, product_ns));
    CHECK_EQ_INT(simulated(profile, &rates, NULL).host_ns, 22);
    ms_profile_destroy(profile);
}

/* Each of the two units repeats one operation and saves one tensor. */
TEST(a_recomputation_repeats_forward) {
    static const int32_t kept[] = {0, 0}, first[] = {1, 0}, both[] = {1, 1};
    ms_profile *profile = two_unit_profile();
    int64_t plain = simulated(profile, &digits, kept).host_ns;
    CHECK_EQ_INT(plain % 10, 3);
    CHECK_EQ_INT(simulated(profile, &digits, first).host_ns - plain, INT64_C(1100000001));
    CHECK_EQ_INT(simulated(profile, &digits, both).host_ns - plain, INT64_C(2200000002));
    ms_profile_destroy(profile);
}

/* Recomputing a unit costs what two simulations differ by, which is what the search adds up. */
TEST(frontiers_have_the_same_costs) {
    ms_profile *profile = two_unit_profile();
    ms_frontier_point points[MS_FRONTIER_MAX_POINTS];
    for (int64_t unit = 0; unit < 2; unit++) {
        int64_t n = 0;
        CHECK_STATUS(ms_profile_frontier(profile, unit, &digits, points, MS_FRONTIER_MAX_POINTS, &n), MS_OK);
        CHECK_EQ_INT(points[0].recompute_ns, INT64_C(1100000001));
    }
    ms_profile_destroy(profile);
}

/* Parts per million that a step takes longer with both units recomputed. */
static int64_t slowdown(const ms_profile *profile, const ms_rates *rates) {
    static const int32_t kept[] = {0, 0}, both[] = {1, 1};
    int64_t plain = simulated(profile, rates, kept).step_ns;
    return (simulated(profile, rates, both).step_ns - plain) * 1000000 / plain;
}

/* Where the host is the limit, a slowdown follows what forward costs the host; where the device is, it does not. */
TEST(slowdowns_follow_the_limit) {
    ms_profile *profile = two_unit_profile();
    ms_rates host = digits, device = digits;
    host.backward_ns = 10;
    host.list_tensor_ns = host.parameter_ns = host.saved_tensor_ns = host.recomputation_ns = 0;
    device.launch_ns = 100000;
    device.backward_ns = device.parameter_ns = device.saved_tensor_ns = device.recomputation_ns = 1;
    int64_t before = 0, on_device = slowdown(profile, &device);
    for (int64_t ns = 10; ns <= 10000; ns *= 10) {
        host.dispatch_ns = device.dispatch_ns = ns;
        CHECK(slowdown(profile, &host) > before);
        before = slowdown(profile, &host);
        int64_t change = slowdown(profile, &device) - on_device;
        CHECK(change > -30000 && change < 30000);
    }
    host.saved_tensor_ns = 100;
    CHECK(slowdown(profile, &host) > before);
    ms_profile_destroy(profile);
}

/* A host that is the device draws one number after the other, and clears the pages of large blocks. */
TEST(a_host_as_device) {
    const int64_t large = INT64_C(32) << 20;
    script s = {0};
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 512);
    in_phase(&s, MS_PHASE_FORWARD);
    compute(&s, "aten.bernoulli_.float");
    input(&s, 1000, 1000);
    give(&s, take(&s, large));
    give(&s, take(&s, large - 512));
    ms_profile *profile = profile_of_scripts(&s, NULL);
    ms_rates rates = {.struct_bytes = sizeof rates, .fp32_gflops = 1, .memory_mb_per_s = 1000};
    CHECK_EQ_INT(simulated(profile, &rates, NULL).step_ns, 4000000);
    rates.random_mb_per_s = 100;
    CHECK_EQ_INT(simulated(profile, &rates, NULL).step_ns, 40000000);
    rates.fresh_mb_per_s = 1000;
    CHECK_EQ_INT(simulated(profile, &rates, NULL).step_ns, 40000000 + large);
    rates.capability = 90; /* on a GPU, torch's allocator keeps blocks */
    rates.random_mb_per_s = 0;
    CHECK_EQ_INT(simulated(profile, &rates, NULL).step_ns, 4000000);
    ms_profile_destroy(profile);
}

/* A step that is one product, of elements of so many bytes. */
static int64_t product_ns(int64_t element_bytes, int64_t columns, int64_t capability) {
    script s = {0};
    (void)take_as(&s, MS_CATEGORY_PARAMETER, 512);
    in_phase(&s, MS_PHASE_FORWARD);
    compute(&s, "aten.mm.default");
    input(&s, 1024, 1024);
    input(&s, 1024, columns);
    output(&s, 1024, columns);
    for (int i = 0; i < 3; i++) s.operands[s.n_operands - 1 - i].element_bytes = element_bytes;
    in_phase(&s, MS_PHASE_END);
    ms_profile *profile = profile_of_scripts(&s, NULL);
    ms_rates rates = {.struct_bytes = sizeof rates,
                      .capability = capability,
                      .memory_bytes = 1 << 30,
                      .fp32_gflops = 1000,
                      .bf16_gflops = 1000,
                      .memory_mb_per_s = 1000000000};
    int64_t ns = simulated(profile, &rates, NULL).step_ns;
    ms_profile_destroy(profile);
    return ns;
}

/* Rows of 16-bit elements that do not begin at multiples of 16 bytes need slower kernels. */
TEST(products_with_odd_rows) {
    int64_t even = product_ns(2, 512, 90);
    CHECK_EQ_INT(even, INT64_C(2) * 1024 * 1024 * 512 / 1000);
    CHECK(product_ns(2, 513, 90) > 5 * even);
    CHECK(product_ns(2, 514, 90) > 2 * even && product_ns(2, 514, 90) < 4 * even);
    CHECK(product_ns(2, 513, 80) > 2 * even && product_ns(2, 513, 80) < product_ns(2, 513, 90));
    CHECK(product_ns(2, 514, 80) > even && product_ns(2, 514, 80) < product_ns(2, 513, 80));
    CHECK(product_ns(4, 513, 90) < 2 * even);
    CHECK(product_ns(2, 513, 0) < 2 * even);
}

TEST(costs_out_of_range) {
    ms_profile *profile = kinds();
    for (size_t at = offsetof(ms_rates, product_ns); at < sizeof(ms_rates); at += sizeof(int64_t)) {
        static const int64_t wrong[] = {-1, 1000000001};
        for (int i = 0; i < 2; i++) {
            ms_rates rates = digits;
            memcpy((char *)&rates + at, &wrong[i], sizeof wrong[i]);
            ms_device device = DEVICE_WITH(&rates, 132);
            ms_simulation_request request = {
                .struct_bytes = sizeof request, .profile = profile, .device = &device, .flags = 0};
            ms_simulation *sim = NULL;
            CHECK_STATUS(ms_simulation_create(&request, &sim), MS_E_INVALID);
        }
    }
    ms_profile_destroy(profile);
}

SUITE(roofline, CASE(each_kind_has_its_cost), CASE(a_fused_step_is_one_operation), CASE(costs_that_are_not_known),
      CASE(a_recomputation_repeats_forward), CASE(frontiers_have_the_same_costs), CASE(slowdowns_follow_the_limit),
      CASE(a_host_as_device), CASE(products_with_odd_rows), CASE(costs_out_of_range));
