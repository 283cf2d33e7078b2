/* test_frontier.c - what a unit could keep of its forward, by hand and compared with simulations. */
#include <string.h>

#include "devices.h"
#include "shaped.h"

enum { ATTENTION_UNIT, PRODUCT_UNIT };

/* One operation takes a nanosecond; traffic takes none, a kernel 3 and the host 5. */
static ms_rates slow_rates(int64_t capability) {
    return (ms_rates){.struct_bytes = sizeof(ms_rates),
                      .capability = capability,
                      .fp32_gflops = 1,
                      .memory_mb_per_s = 1000000000,
                      .launch_ns = 3,
                      .dispatch_ns = 5};
}

static int64_t frontier_of(const ms_profile *profile, int64_t unit, int64_t capability,
                           ms_frontier_point points[MS_FRONTIER_MAX_POINTS]) {
    ms_rates rates = slow_rates(capability);
    int64_t n = -1;
    CHECK_STATUS(ms_profile_frontier(profile, unit, &rates, points, MS_FRONTIER_MAX_POINTS, &n), MS_OK);
    return n;
}

static void check_point(const ms_frontier_point *point, uint32_t keeps, int64_t held_bytes, int64_t recompute_ns,
                        int64_t spared_ns) {
    CHECK_EQ_INT(point->keeps, keeps);
    CHECK_EQ_INT(point->held_bytes, held_bytes);
    CHECK_EQ_INT(point->recompute_ns, recompute_ns);
    CHECK_EQ_INT(point->spared_ns, spared_ns);
    CHECK_EQ_INT(point->reserved, 0);
}

/* At 2 x 45: a product, attention, the mask and the scores are recomputed; the last product is not. */
TEST(attention_by_hand) {
    const int64_t b = 2, t = 45, width = SHAPED_WIDTH, hidden = 4 * b * t * width;
    const int64_t product = 2 * b * t * width * width, attention = 4 * b * t * width * t, call = 3 + 5, kernel = 3;
    const int64_t attended = hidden + 4 * b * padded(t), all = 4 * call + product + attention;
    ms_profile *profile = shaped_profile((ms__shape){b, t}, NOTHING_ODD);
    ms_frontier_point p[MS_FRONTIER_MAX_POINTS];
    CHECK_EQ_INT(frontier_of(profile, ATTENTION_UNIT, 0, p), 5);
    check_point(&p[0], 0, 0, all, 0);
    /* the product alone keeps fewer bytes than attention, and saves less */
    /* a result takes the host as long to find as a product to queue */
    check_point(&p[1], MS_KEEP_PRODUCTS, hidden, all - kernel - product + 5, kernel + product - 5);
    check_point(&p[2], MS_KEEP_ATTENTION, attended, all - kernel - attention + 5, kernel + attention - 5);
    check_point(&p[3], MS_KEEP_ATTENTION | MS_KEEP_PRODUCTS, hidden + attended, 4 * call - 2 * kernel + 2 * 5,
                2 * kernel + product + attention - 2 * 5);
    check_point(&p[4], MS_KEEP_ALL, hidden + attended + t * t + 4 * b * t * t, 0, all);
    ms_profile_destroy(profile);
}

/* On a GPU, the host queues while the device computes. */
TEST(host_and_device_at_once) {
    const int64_t b = 2, t = 45, width = SHAPED_WIDTH;
    const int64_t product = 2 * b * t * width * width, attention = 4 * b * t * width * t;
    ms_profile *profile = shaped_profile((ms__shape){b, t}, NOTHING_ODD);
    ms_frontier_point p[MS_FRONTIER_MAX_POINTS];
    CHECK_EQ_INT(frontier_of(profile, ATTENTION_UNIT, 80, p), 5);
    CHECK_EQ_INT(p[0].recompute_ns, 4 * 3 + product + attention);
    CHECK_EQ_INT(p[3].keeps, MS_KEEP_ATTENTION | MS_KEEP_PRODUCTS);
    CHECK_EQ_INT(p[3].recompute_ns, (4 + 2) * 5); /* there the host is slower: it finds what is kept */
    ms_profile_destroy(profile);
}

/* Keeping the product would take as much as keeping all, and save less. */
TEST(what_is_no_better_is_left_out) {
    const int64_t b = 3, t = 7, width = SHAPED_WIDTH;
    ms_profile *profile = shaped_profile((ms__shape){b, t}, NOTHING_ODD);
    ms_frontier_point p[MS_FRONTIER_MAX_POINTS];
    int64_t all = 2 * (3 + 5) + 2 * b * t * width * width;
    CHECK_EQ_INT(frontier_of(profile, PRODUCT_UNIT, 0, p), 2);
    check_point(&p[0], 0, 0, all, 0);
    check_point(&p[1], MS_KEEP_ALL, 4 * b * t * width, 0, all);
    ms_profile_destroy(profile);
}

static int64_t step_ns(const ms_profile *profile, const int32_t actions[2]) {
    ms_rates rates = slow_rates(0);
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = profile,
                                     .actions = actions,
                                     .n_actions = 2,
                                     .device = DEVICE_OF(&rates, 0)};
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    CHECK_STATUS(ms_simulation_get_summary(sim, &summary), MS_OK);
    ms_simulation_destroy(sim);
    return summary.step_ns;
}

/* If nothing overlaps, recomputing a unit makes the step longer by the time of the first point. */
TEST(times_are_those_of_simulations) {
    static const ms__shape shapes[] = {{1, 1}, {2, 45}, {7, 130}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        ms_profile *profile = shaped_profile(shapes[i], NOTHING_ODD);
        for (int32_t unit = 0; unit < 2; unit++) {
            ms_frontier_point p[MS_FRONTIER_MAX_POINTS];
            int64_t n = frontier_of(profile, unit, 0, p), kept = step_ns(profile, (int32_t[]){0, 0});
            CHECK_EQ_INT(step_ns(profile, (int32_t[]){unit == 0, unit == 1}) - kept, p[0].recompute_ns);
            CHECK(p[0].held_bytes == 0 && p[n - 1].recompute_ns == 0);
            for (int64_t j = 1; j < n; j++) {
                CHECK(p[j].held_bytes > p[j - 1].held_bytes);
                CHECK(p[j].recompute_ns < p[j - 1].recompute_ns);
                CHECK_EQ_INT(p[j].recompute_ns + p[j].spared_ns, p[0].recompute_ns);
            }
        }
        ms_profile_destroy(profile);
    }
}

/* A unit that is the same in both variants recomputes nothing: there is nothing to choose. */
TEST(nothing_to_recompute) {
    script s;
    ms_frontier_point p[MS_FRONTIER_MAX_POINTS];
    two_units(&s, false);
    ms_profile *profile = profile_of_scripts(&s, &s);
    CHECK_EQ_INT(frontier_of(profile, 0, 80, p), 1);
    check_point(&p[0], 0, 0, 0, 0);
    ms_profile_destroy(profile);
}

/* Sums of times saturate; they do not overflow. */
TEST(times_that_do_not_fit) {
    static script kept, recomputed;
    ms_rates rates = slow_rates(0);
    ms_frontier_point p[MS_FRONTIER_MAX_POINTS];
    int64_t n = 0;
    two_units(&kept, false);
    two_units(&recomputed, true);
    for (int64_t i = 0; i < recomputed.n_ops; i++) {
        recomputed.ops[i].first = recomputed.n_operands;
        recomputed.ops[i].n_inputs = 1;
        recomputed.operands[recomputed.n_operands++] =
            (ms_trace_operand){.element_bytes = 1, .n_dims = 1, .dims = {INT64_C(1) << 55, 1, 1, 1, 1, 1}};
    }
    rates.memory_mb_per_s = 1;
    ms_profile *profile = profile_of_scripts(&kept, &recomputed);
    CHECK_STATUS(ms_profile_frontier(profile, 0, &rates, p, MS_FRONTIER_MAX_POINTS, &n), MS_OK);
    CHECK_EQ_INT(n, 2);
    CHECK(p[0].recompute_ns <= INT64_MAX / 8 && p[0].recompute_ns > INT64_MAX / 8 - 100);
    ms_profile_destroy(profile);
}

TEST(arguments_are_checked) {
    ms_profile *profile = shaped_profile((ms__shape){2, 45}, NOTHING_ODD);
    ms_profile *kept = shaped_profile((ms__shape){2, 45}, NO_RECOMPUTED);
    ms_rates rates = slow_rates(0), wrong = slow_rates(0);
    ms_frontier_point p[MS_FRONTIER_MAX_POINTS];
    int64_t n = -1;
    CHECK_STATUS(ms_profile_frontier(NULL, 0, &rates, p, 5, &n), MS_E_INVALID);
    CHECK_STATUS(ms_profile_frontier(profile, 0, NULL, p, 5, &n), MS_E_INVALID);
    CHECK_STATUS(ms_profile_frontier(profile, 0, &rates, NULL, 5, &n), MS_E_INVALID);
    CHECK_STATUS(ms_profile_frontier(profile, 0, &rates, p, 5, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_profile_frontier(profile, -1, &rates, p, 5, &n), MS_E_INVALID);
    CHECK_STATUS(ms_profile_frontier(profile, 2, &rates, p, 5, &n), MS_E_INVALID);
    CHECK_STATUS(ms_profile_frontier(kept, 0, &rates, p, 5, &n), MS_E_INVALID);
    wrong.struct_bytes = 8;
    CHECK_STATUS(ms_profile_frontier(profile, 0, &wrong, p, 5, &n), MS_E_INVALID);
    wrong = slow_rates(0);
    wrong.memory_mb_per_s = 0;
    CHECK_STATUS(ms_profile_frontier(profile, 0, &wrong, p, 5, &n), MS_E_INVALID);
    CHECK_STATUS(ms_profile_frontier(profile, 0, &rates, p, 4, &n), MS_E_LIMIT);
    CHECK_STATUS(ms_profile_frontier(profile, 0, &rates, p, -1, &n), MS_E_LIMIT);
    CHECK_EQ_INT(n, -1);
    ms_profile_destroy(profile);
    ms_profile_destroy(kept);
}

SUITE(frontier, CASE(attention_by_hand), CASE(host_and_device_at_once), CASE(what_is_no_better_is_left_out),
      CASE(times_are_those_of_simulations), CASE(nothing_to_recompute), CASE(times_that_do_not_fit),
      CASE(arguments_are_checked));
