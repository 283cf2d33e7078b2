/* test_sim_actions.c - simulations under actions and model options of the small model of steps.h, by hand. Those that
 * are played are in test_changes.c.
 *
 * With every unit kept, its segments are (peak, and in brackets the bytes at the end):
 *   unit 0 12800, unit 1 18944, loss 19456, backward begins at 21504 (18944), unit 1 22016 (13824), unit 0 14848
 * (8704), optimizer 9728 (8704). Every operation takes 1100 ns, each segment has one. A unit keeps 4096 bytes, which
 * the link copies in 8000 ns, in four slots of 1024 bytes.
 */
#include "devices.h"
#include "steps.h"

#include <string.h>

enum { FORWARD_0 = 1, FORWARD_1, LOSS, BACKWARD, BACKWARD_1, BACKWARD_0, FIRST, OPTIMIZER, N_SEGMENTS };

#define OP_NS 1100
#define STEP_NS (7 * OP_NS)
#define CHUNK ((int64_t)64 << 20)

static const int64_t plain_peaks[N_SEGMENTS] = {0, 12800, 18944, 19456, 21504, 22016, 14848, 0, 9728};
/* {keep, recompute}: what unit 1 saves is released after its forward, and recomputed */
static const int64_t second_recomputed_peaks[N_SEGMENTS] = {0, 12800, 18944, 15360, 17408, 22016, 14848, 0, 9728};

static ms_rates link_rates(void) { return (ms_rates)SMALL_RATES(0); }

typedef struct result {
    ms_simulation_summary summary;
    ms_simulation_segment segments[N_SEGMENTS];
} result;

/* Under every plan, parts and times add up, and the peak is the highest of the segments. */
static void check_sums(const result *r) {
    int64_t highest = 0, step_ns = 0;
    for (int i = 0; i < N_SEGMENTS; i++) {
        const ms_simulation_segment *p = &r->segments[i];
        int64_t sum = 0;
        for (int c = 0; c < MS_N_CATEGORIES; c++) sum += p->parts[c];
        CHECK_EQ_INT(sum, p->peak_bytes);
        CHECK(p->end_bytes <= p->peak_bytes && p->duration_ns >= 0);
        if (p->peak_bytes > highest) highest = p->peak_bytes;
        step_ns += p->duration_ns;
    }
    const ms_simulation_summary *s = &r->summary;
    int64_t sum = s->unused_bytes;
    for (int c = 0; c < MS_N_CATEGORIES; c++) sum += s->parts[c];
    CHECK_EQ_INT(s->steady_peak_bytes, highest);
    CHECK_EQ_INT(sum, highest);
    CHECK_EQ_INT(s->step_ns, step_ns);
    CHECK_EQ_INT(s->forward_ns + s->backward_ns + s->optimizer_ns, step_ns);
}

static result play_profile(const ms_profile *profile, const ms_rates *rates, int32_t first, int32_t second,
                           uint32_t options) {
    const int32_t actions[] = {first, second};
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = profile,
                                     .actions = actions,
                                     .n_actions = 2,
                                     .device = DEVICE_OF(rates, 0),
                                     .model_options = options};
    result r = {.summary = {.struct_bytes = sizeof r.summary}};
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    CHECK_STATUS(ms_simulation_get_summary(sim, &r.summary), MS_OK);
    CHECK(ms_simulation_count_segments(sim) <= N_SEGMENTS);
    for (int64_t i = 0; i < ms_simulation_count_segments(sim); i++) {
        r.segments[i].struct_bytes = sizeof *r.segments;
        CHECK_STATUS(ms_simulation_get_segment(sim, i, &r.segments[i]), MS_OK);
    }
    ms_simulation_destroy(sim);
    check_sums(&r);
    return r;
}

/* The small model. */
static result play(int32_t first, int32_t second, uint32_t options) {
    ms_profile *profile = two_unit_profile();
    ms_rates rates = link_rates();
    result r = play_profile(profile, &rates, first, second, options);
    CHECK_EQ_INT(r.segments[FIRST].peak_bytes, 0);
    ms_profile_destroy(profile);
    return r;
}

/* The segments have these peaks, plus a change each. */
static void check_peaks(const result *r, const int64_t peaks[N_SEGMENTS], const int64_t change[N_SEGMENTS]) {
    for (int i = 0; i < N_SEGMENTS; i++) CHECK_EQ_INT(r->segments[i].peak_bytes, peaks[i] + change[i]);
}

static void check_peak_at(const result *r, int segment) {
    CHECK_EQ_INT(r->summary.steady_peak_bytes, r->segments[segment].peak_bytes);
    CHECK_EQ_INT(r->summary.peak_unit, r->segments[segment].unit);
    CHECK_EQ_INT(r->summary.peak_phase, r->segments[segment].phase);
}

static void check_times(const result *r, int64_t step_ns, int64_t wait_ns, int64_t host_bytes) {
    CHECK_EQ_INT(r->summary.step_ns, step_ns);
    CHECK_EQ_INT(r->summary.wait_ns, wait_ns);
    CHECK_EQ_INT(r->summary.host_bytes, host_bytes);
}

/* ---- Actions ---- */

TEST(plain_and_recomputed_are_left_alone) {
    static const int64_t none[N_SEGMENTS] = {0};
    result r = play(MS_ACTION_KEEP, MS_ACTION_KEEP, 0);
    check_peaks(&r, plain_peaks, none);
    check_times(&r, STEP_NS, 0, 0);
    r = play(MS_ACTION_KEEP, MS_ACTION_RECOMPUTE, 0);
    check_peaks(&r, second_recomputed_peaks, none);
    check_times(&r, STEP_NS + OP_NS, 0, 0);
}

/* While the unit runs in tiles, three of four tiles are not allocated; its two operations are queued three more
 * times. */
TEST(tiles) {
    result r = play(MS_ACTION_KEEP, MS_ACTION_TILE, 0);
    static const int64_t change[N_SEGMENTS] = {[BACKWARD_1] = -3072};
    check_peaks(&r, second_recomputed_peaks, change);
    check_peak_at(&r, FORWARD_1); /* the first of two that are equal */
    CHECK_EQ_INT(r.segments[BACKWARD_1].peak_bytes, r.segments[FORWARD_1].peak_bytes);
    check_times(&r, STEP_NS + OP_NS + 3 * 2000, 0, 0);
    CHECK_EQ_INT(r.segments[BACKWARD_1].duration_ns, 2 * OP_NS + 6000);
}

/* ---- Model options ---- */

/* The same change everywhere, except in the optimizer step. */
static void check_everywhere(const result *r, int64_t change, int64_t in_step) {
    int64_t changes[N_SEGMENTS] = {0};
    for (int i = FORWARD_0; i <= BACKWARD_0; i++) changes[i] = change;
    changes[OPTIMIZER] = in_step;
    check_peaks(r, plain_peaks, changes);
}

/* The optimizer step uses chunks of 64 MiB in place of 1024 bytes of temporaries, which is the peak here. */
TEST(moments_of_8_bits) {
    result r = play(MS_ACTION_KEEP, MS_ACTION_KEEP, MS_MODEL_8BIT);
    check_everywhere(&r, 1039 - 4096, 1039 - 4096 + CHUNK - 1024);
    check_peak_at(&r, OPTIMIZER);
    CHECK_EQ_INT(r.summary.parts[MS_CATEGORY_OPTIMIZER], 1039);
    CHECK_EQ_INT(r.summary.parts[MS_CATEGORY_TEMPORARY], CHUNK);
    check_times(&r, 6 * OP_NS + 8000, 0, 0);
    CHECK_EQ_INT(r.summary.optimizer_ns, 8000);
}

TEST(weights_in_two_halves) {
    result r = play(MS_ACTION_KEEP, MS_ACTION_KEEP, MS_MODEL_HALF);
    check_everywhere(&r, 2048, 2048 + CHUNK - 1024);
    CHECK_EQ_INT(r.summary.parts[MS_CATEGORY_PARAMETER], 4096);
    check_times(&r, 6 * OP_NS + 18000, 0, 0);
}

TEST(moments_in_host_memory) {
    result r = play(MS_ACTION_KEEP, MS_ACTION_KEEP, MS_MODEL_OFFLOAD);
    check_everywhere(&r, -4096, -4096 + CHUNK - 1024);
    CHECK_EQ_INT(r.summary.parts[MS_CATEGORY_OPTIMIZER], 0);
    check_times(&r, 6 * OP_NS + 14000, 0, 4096);
    r = play(MS_ACTION_KEEP, MS_ACTION_KEEP, MS_MODEL_OFFLOAD | MS_MODEL_HALF | MS_MODEL_8BIT);
    check_everywhere(&r, -4096, -4096 + CHUNK - 1024); /* lower halves are in host memory too */
    check_times(&r, 6 * OP_NS + 12000, 0, 1039 + 2048);
}

/* 2048 bytes of gradients need 4000 ns to leave, of which backward hides 3300. They are less than a chunk. */
TEST(gradients_in_host_memory) {
    result r = play(MS_ACTION_KEEP, MS_ACTION_KEEP, MS_MODEL_OFFLOAD_GRADIENTS);
    check_everywhere(&r, 0, CHUNK - 1024);
    check_times(&r, 6 * OP_NS + 700 + 14000, 0, 2048);
    CHECK_EQ_INT(r.summary.backward_ns, 4000);
    CHECK_EQ_INT(r.segments[BACKWARD].duration_ns, OP_NS + 700);
}

/* In addition to the 6144 bytes that unit 0 left, there are 6144, 6656, 8704 and 8192 of activations and temporaries.
 * Of each, 1024 stay (the largest gradient) and an eighth of the rest. Logits and loss are computed twice. */
TEST(loss_by_tiles) {
    result r = play(MS_ACTION_KEEP, MS_ACTION_KEEP, MS_MODEL_TILE_LOSS);
    static const int64_t change[N_SEGMENTS] = {[FORWARD_1] = 1024 + 640 - 6144,
                                               [LOSS] = 1024 + 704 - 6656,
                                               [BACKWARD] = 1024 + 960 - 8704,
                                               [BACKWARD_1] = 1024 + 896 - 8192};
    check_peaks(&r, plain_peaks, change);
    check_peak_at(&r, BACKWARD_1);
    CHECK_EQ_INT(r.summary.parts[MS_CATEGORY_TEMPORARY], 0); /* temporaries first */
    CHECK_EQ_INT(r.summary.parts[MS_CATEGORY_ACTIVATION], 10240 - (6272 - 4096));
    check_times(&r, STEP_NS + 2 * OP_NS, 0, 0);
    CHECK_EQ_INT(r.segments[BACKWARD].duration_ns, 3 * OP_NS);
}

TEST(a_state_without_actions) {
    ms_profile *profile = two_unit_profile();
    ms_rates rates = link_rates();
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = profile,
                                     .device = DEVICE_OF(&rates, 0),
                                     .model_options = MS_MODEL_TILE_LOSS};
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    CHECK_STATUS(ms_simulation_get_summary(sim, &summary), MS_OK);
    result r = play(MS_ACTION_KEEP, MS_ACTION_KEEP, MS_MODEL_TILE_LOSS);
    CHECK(memcmp(&summary, &r.summary, sizeof summary) == 0);
    ms_simulation_destroy(sim);
    ms_profile_destroy(profile);
}

/* Several segments of an optimizer step are one step. */
TEST(an_optimizer_step_in_pieces) {
    script s;
    two_units(&s, false);
    s.n_events -= 2; /* the end */
    in_unit(&s, 0);
    compute(&s, "aten.addcdiv_.default");
    give(&s, take_as(&s, MS_CATEGORY_OPTIMIZER, 512));
    in_phase(&s, MS_PHASE_END);
    ms_profile *profile = profile_of_scripts(&s, NULL);
    ms_rates rates = link_rates();
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = profile,
                                     .device = DEVICE_OF(&rates, 0),
                                     .model_options = MS_MODEL_8BIT};
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    CHECK_EQ_INT(ms_simulation_count_segments(sim), N_SEGMENTS + 1);
    CHECK_STATUS(ms_simulation_get_summary(sim, &summary), MS_OK);
    CHECK_EQ_INT(summary.optimizer_ns, 8000);
    ms_simulation_destroy(sim);
    ms_profile_destroy(profile);
}

/* Every set of model options with every action, on every kind of device, also with the allocator's model: all sums stay
 * correct. */
TEST(everything_adds_up) {
    ms_profile *profile = two_unit_profile();
    for (uint32_t options = 0; options <= MS_MODEL_ALL; options++) {
        for (int32_t i = 0; i < MS_N_ACTIONS * MS_N_ACTIONS; i++) {
            const int32_t actions[] = {i / MS_N_ACTIONS, i % MS_N_ACTIONS};
            ms_rates rates = link_rates();
            rates.capability = i % 2 == 0 ? 0 : 90;
            ms_simulation_request request = {.struct_bytes = sizeof request,
                                             .profile = profile,
                                             .actions = actions,
                                             .n_actions = 2,
                                             .device = DEVICE_OF(&rates, 0),
                                             .flags = i % 3 == 0 ? MS_SIMULATE_ALLOCATOR : 0,
                                             .model_options = options};
            ms_simulation_summary s = {.struct_bytes = sizeof s};
            ms_simulation *sim = NULL;
            CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
            CHECK_STATUS(ms_simulation_get_summary(sim, &s), MS_OK);
            int64_t sum = s.unused_bytes;
            for (int c = 0; c < MS_N_CATEGORIES; c++) {
                CHECK(s.parts[c] >= 0);
                sum += s.parts[c];
            }
            CHECK_EQ_INT(sum, s.steady_peak_bytes);
            CHECK(s.reserved_bytes >= s.steady_peak_bytes && s.host_bytes >= 0 && s.wait_ns >= 0);
            CHECK(s.step_ns >= s.wait_ns);
            ms_simulation_destroy(sim);
        }
    }
    ms_profile_destroy(profile);
}

SUITE(sim_actions, CASE(plain_and_recomputed_are_left_alone), CASE(tiles), CASE(moments_of_8_bits),
      CASE(weights_in_two_halves), CASE(moments_in_host_memory), CASE(gradients_in_host_memory), CASE(loss_by_tiles),
      CASE(a_state_without_actions), CASE(an_optimizer_step_in_pieces), CASE(everything_adds_up));
