/* test_compare.c - steps that ran next to the simulation of the small model of steps.h.
 *
 * Between steps it holds 6656 bytes. Its units are 0 and 1; the loss is between backward and forward, outside of both.
 */
#include "devices.h"
#include "steps.h"

#include <string.h>

#define N 7
#define N_COMPARED 5 /* not the ends of the forwards */

static const ms_rates rates = {.struct_bytes = sizeof(ms_rates),
                               .memory_bytes = 1 << 30,
                               .fp32_gflops = 10,
                               .memory_mb_per_s = 1000,
                               .launch_ns = 100,
                               .dispatch_ns = 1000};

static ms_simulation *simulation_of(ms_profile *profile, const int32_t *actions) {
    const ms_device device = DEVICE_WITH(&rates, 132);
    const ms_simulation_request request = {.struct_bytes = sizeof request,
                                           .profile = profile,
                                           .device = &device,
                                           .actions = actions,
                                           .n_actions = actions == NULL ? 0 : 2};
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    return sim;
}

/* A step that was exactly as predicted, everything kept: see the_timeline in test_sim.c. */
static void fill(ms_reading *readings) {
    const ms_reading exact[N] = {
        {.unit = 0, .boundary = MS_BOUNDARY_FORWARD_BEGINS, .measured_bytes = 0},
        {.unit = 0, .boundary = MS_BOUNDARY_FORWARD_ENDS, .measured_bytes = 12800 - 6656},
        {.unit = 1, .boundary = MS_BOUNDARY_FORWARD_BEGINS, .measured_bytes = 12800 - 6656},
        {.unit = 1, .boundary = MS_BOUNDARY_FORWARD_ENDS, .measured_bytes = 18944 - 6656},
        {.unit = 1, .boundary = MS_BOUNDARY_BACKWARD_BEGINS, .measured_bytes = 18944 - 6656},
        {.unit = 0, .boundary = MS_BOUNDARY_BACKWARD_BEGINS, .measured_bytes = 13824 - 6656},
        {.unit = -1, .boundary = MS_BOUNDARY_PEAK, .measured_bytes = 22016 - 6656},
    };
    memcpy(readings, exact, sizeof exact);
}

static ms_comparison compare(const ms_simulation *sim, ms_reading *readings, int64_t n, int64_t margin_bytes) {
    ms_comparison found = {.struct_bytes = sizeof found};
    CHECK_STATUS(ms_simulation_compare(sim, readings, n, margin_bytes, &found), MS_OK);
    return found;
}

static void check(ms_comparison found, int64_t n_compared, int64_t worst, int64_t difference, int64_t first) {
    CHECK_EQ_INT(found.n_compared, n_compared);
    CHECK_EQ_INT(found.worst, worst);
    CHECK_EQ_INT(found.difference_bytes, difference);
    CHECK_EQ_INT(found.first, first);
}

TEST(a_step_as_predicted) {
    ms_profile *profile = two_unit_profile();
    ms_simulation *sim = simulation_of(profile, NULL);
    ms_reading readings[N];
    fill(readings);
    check(compare(sim, readings, N, 0), N_COMPARED, 0, 0, -1);
    int64_t ns = 0;
    for (int64_t i = 0; i < N - 1; i++) {
        CHECK_EQ_INT(readings[i].predicted_bytes, readings[i].measured_bytes);
        CHECK(readings[i].predicted_ns >= ns);
        ns = readings[i].predicted_ns;
    }
    ms_simulation_segment loss = {.struct_bytes = sizeof loss}, first = {.struct_bytes = sizeof first};
    CHECK_STATUS(ms_simulation_get_segment(sim, 1, &first), MS_OK);
    CHECK_STATUS(ms_simulation_get_segment(sim, 3, &loss), MS_OK);
    CHECK_EQ_INT(readings[0].predicted_ns, 0);
    CHECK_EQ_INT(readings[1].predicted_ns, first.duration_ns);
    CHECK(readings[4].predicted_ns >= readings[3].predicted_ns + loss.duration_ns);
    ms_simulation_destroy(sim);
    ms_profile_destroy(profile);
}

TEST(more_and_less) {
    ms_profile *profile = two_unit_profile();
    ms_simulation *sim = simulation_of(profile, NULL);
    ms_reading readings[N];
    fill(readings);
    readings[1].measured_bytes += 1 << 20; /* the unit's caller holds something */
    readings[2].measured_bytes += 200;
    readings[4].measured_bytes += 300;
    readings[5].measured_bytes -= 700;
    check(compare(sim, readings, N, 1000), N_COMPARED, 5, -700, -1); /* within the margin: what differs most */
    check(compare(sim, readings, N, 300), N_COMPARED, 5, -700, 5);
    check(compare(sim, readings, N, 299), N_COMPARED, 4, 300, 4); /* more than was predicted counts first */
    check(compare(sim, readings, N, 100), N_COMPARED, 4, 300, 2);
    readings[6].measured_bytes += 4096; /* a peak between two boundaries */
    check(compare(sim, readings, N, 512), N_COMPARED, 6, 4096, 6);
    ms_simulation_destroy(sim);
    ms_profile_destroy(profile);
}

TEST(a_plan_is_compared_with_its_own_simulation) {
    const int32_t recompute[] = {MS_ACTION_RECOMPUTE, MS_ACTION_RECOMPUTE};
    ms_profile *profile = two_unit_profile();
    ms_simulation *sim = simulation_of(profile, recompute);
    ms_reading readings[N];
    fill(readings);
    ms_comparison found = compare(sim, readings, N, 64);
    CHECK_EQ_INT(found.worst, 4); /* each unit holds 4096 more than predicted */
    CHECK_EQ_INT(found.difference_bytes, 2 * 4096);
    CHECK_EQ_INT(found.first, 2);
    ms_simulation_destroy(sim);
    ms_profile_destroy(profile);
}

/* A unit that ran twice is not in this step twice: nothing is known of its forward. */
TEST(what_cannot_be_matched_is_left_out) {
    ms_profile *profile = two_unit_profile();
    ms_simulation *sim = simulation_of(profile, NULL);
    ms_reading readings[N];
    fill(readings);
    readings[2] = readings[0];
    readings[2].measured_bytes = 1 << 20;
    check(compare(sim, readings, N, 64), N_COMPARED - 2, 4, 0, -1);
    CHECK_EQ_INT(readings[0].is_compared, 0);
    CHECK_EQ_INT(readings[2].is_compared, 0);
    CHECK_EQ_INT(readings[2].predicted_bytes + readings[2].predicted_ns, 0);
    check(compare(sim, readings, 0, 64), 0, -1, 0, -1);
    check(compare(sim, NULL, 0, 64), 0, -1, 0, -1);
    ms_simulation_destroy(sim);
    ms_profile_destroy(profile);
}

TEST(what_is_refused) {
    ms_profile *profile = two_unit_profile();
    ms_simulation *sim = simulation_of(profile, NULL);
    ms_comparison found = {.struct_bytes = sizeof found};
    const ms_reading wrong[] = {{.unit = 2},
                                {.unit = -1},
                                {.boundary = -1},
                                {.boundary = MS_N_BOUNDARIES},
                                {.boundary = MS_BOUNDARY_PEAK},
                                {.measured_bytes = INT64_MIN},
                                {.measured_bytes = INT64_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ms_reading reading = wrong[i];
        CHECK_STATUS(ms_simulation_compare(sim, &reading, 1, 0, &found), MS_E_INVALID);
    }
    ms_reading reading = {0};
    CHECK_STATUS(ms_simulation_compare(NULL, &reading, 1, 0, &found), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_compare(sim, NULL, 1, 0, &found), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_compare(sim, &reading, -1, 0, &found), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_compare(sim, &reading, 1, -1, &found), MS_E_INVALID);
    CHECK_STATUS(ms_simulation_compare(sim, &reading, 1, 0, NULL), MS_E_INVALID);
    found.struct_bytes = 8;
    CHECK_STATUS(ms_simulation_compare(sim, &reading, 1, 0, &found), MS_E_INVALID);
    ms_simulation_destroy(sim);
    ms_profile_destroy(profile);
}

SUITE(compare, CASE(a_step_as_predicted), CASE(more_and_less), CASE(a_plan_is_compared_with_its_own_simulation),
      CASE(what_cannot_be_matched_is_left_out), CASE(what_is_refused));
