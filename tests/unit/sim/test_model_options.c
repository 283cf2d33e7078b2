/* test_model_options.c - the table of model options, and what sets of them do to the small model, by hand. */
#include "sim/model_options.h"

#include <string.h>

#include "sim/roofline.h"
#include "steps.h"

#define MIB ((int64_t)1 << 20)
#define PPM 1000000

enum { FORWARD = MS_PHASE_FORWARD, BACKWARD = MS_PHASE_BACKWARD };
enum { FIRST = MS_PHASE_OPTIMIZER_FIRST, STEP = MS_PHASE_OPTIMIZER };

/* ---- Rows ---- */

TEST(names_of_options) {
    static const struct {
        const char *identifier, *sentence;
        uint32_t technique;
    } wanted[] = {{"half", "The model is computed in 16 bits.", MS_TECHNIQUE_HALF},
                  {"8bit", "Optimizer state is kept in 8 bits.", MS_TECHNIQUE_8BIT},
                  {"offload", "Optimizer state is kept in host memory.", MS_TECHNIQUE_OFFLOAD},
                  {"offload_gradients", "Gradients are kept in host memory.", MS_TECHNIQUE_OFFLOAD},
                  {"tile_loss", "The loss is computed in tiles.", MS_TECHNIQUE_TILE}};
    for (uint32_t i = 0; i < MS__N_MODEL_OPTIONS; i++) {
        ms_model_option_info info = {.struct_bytes = sizeof info};
        CHECK_STATUS(ms_model_option_get_info(1U << i, &info), MS_OK);
        CHECK_EQ_STR(info.identifier, wanted[i].identifier);
        CHECK_EQ_STR(info.sentence, wanted[i].sentence);
        CHECK_EQ_INT(info.techniques, wanted[i].technique);
        CHECK_EQ_INT(info.needs_link, wanted[i].technique == MS_TECHNIQUE_OFFLOAD);
        CHECK_EQ_INT(info.is_runnable, 0);
    }
    CHECK_EQ_INT((1 << MS__N_MODEL_OPTIONS) - 1, MS_MODEL_ALL);
    CHECK_EQ_INT(ms__model_options_with_link(MS_MODEL_ALL), MS_MODEL_OFFLOAD | MS_MODEL_OFFLOAD_GRADIENTS);
    CHECK_EQ_INT(ms__model_options_with_link(MS_MODEL_HALF), 0);
}

TEST(no_such_option) {
    static const uint32_t unknown[] = {0, MS_MODEL_ALL, MS_MODEL_ALL + 1, UINT32_MAX};
    ms_model_option_info info = {.struct_bytes = sizeof info};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        CHECK_STATUS(ms_model_option_get_info(unknown[i], &info), MS_E_INVALID);
    CHECK_STATUS(ms_model_option_get_info(MS_MODEL_HALF, NULL), MS_E_INVALID);
}

/* ---- Effects ---- */

static ms_rates link_rates(int64_t to_device, int64_t from_device, int64_t both) {
    return (ms_rates){.struct_bytes = sizeof(ms_rates),
                      .fp32_gflops = 10,
                      .memory_mb_per_s = 1000,
                      .to_device_mb_per_s = to_device,
                      .from_device_mb_per_s = from_device,
                      .both_mb_per_s = both,
                      .launch_ns = 100,
                      .dispatch_ns = 1000};
}

/* The small model: 2048 bytes of parameters and of gradients (the largest 1024), 4096 of optimizer state. */
static ms__model_effect effect_with(uint32_t flags, const ms_rates *rates, int64_t backward_ns) {
    ms_profile *profile = two_unit_profile();
    ms__model_effect effect = ms__model_effect_make(profile->step, rates, flags, backward_ns);
    ms_profile_destroy(profile);
    CHECK_EQ_INT(effect.options, flags);
    return effect;
}

/* Moments of 8 bits have 1/4 of the bytes, and 1/256 for scales: 1039 of 4096. Memory moves 1000 bytes in a
 * microsecond: moments, lower halves and parameters twice, gradients once. The link moves 512. */
TEST(options_of_the_small_model) {
    static const struct {
        uint32_t flags;
        int64_t parameter_bytes, optimizer_ppm, host_bytes, optimizer_ns;
    } table[] = {
        {MS_MODEL_8BIT, 0, 253906, 0, 8000},                          /* 2 x (1039 + 2048) + 2048 */
        {MS_MODEL_HALF, 2048, PPM, 0, 18000},                         /* 2 x (4096 + 2 x 2048) + 2048 */
        {MS_MODEL_HALF | MS_MODEL_8BIT, 2048, 253906, 0, 12000},      /* 2 x (1039 + 2 x 2048) + 2048 */
        {MS_MODEL_OFFLOAD, 0, 0, 4096, 14000},                        /* 2 x (4096 + 2048) + 2048 */
        {MS_MODEL_OFFLOAD | MS_MODEL_8BIT, 0, 0, 1039, 8000},         /* the link takes 2000 */
        {MS_MODEL_OFFLOAD | MS_MODEL_HALF, 0, 0, 4096 + 2048, 18000}, /* lower halves are offloaded too */
        {MS_MODEL_OFFLOAD | MS_MODEL_HALF | MS_MODEL_8BIT, 0, 0, 1039 + 2048, 12000} /* the link takes 6000 */
    };
    ms_rates rates = link_rates(512, 512, 0);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ms__model_effect s = effect_with(table[i].flags, &rates, 0);
        CHECK_EQ_INT(s.parameter_bytes, table[i].parameter_bytes);
        CHECK_EQ_INT(s.optimizer_ppm, table[i].optimizer_ppm);
        CHECK_EQ_INT(s.host_bytes, table[i].host_bytes);
        CHECK_EQ_INT(s.optimizer_ns, table[i].optimizer_ns);
        CHECK_EQ_INT(s.backward_ns, 0);
        CHECK(s.is_streamed && !s.drops_gradients);
    }
    ms__model_effect plain = effect_with(0, &rates, 0), tiled = effect_with(MS_MODEL_TILE_LOSS, &rates, 0);
    CHECK(!plain.is_streamed && plain.optimizer_ppm == PPM && plain.host_bytes == 0);
    CHECK(!tiled.is_streamed && tiled.optimizer_ppm == PPM && tiled.host_bytes == 0 && tiled.parameter_bytes == 0);
    CHECK_EQ_INT(tiled.largest_gradient_bytes, 1024);
}

/* Nothing moves over the link, so none is needed. */
TEST(options_without_a_link) {
    ms_rates rates = link_rates(0, 0, 0);
    CHECK_EQ_INT(effect_with(MS_MODEL_8BIT, &rates, 0).optimizer_ns, 8000);
    CHECK_EQ_INT(effect_with(MS_MODEL_HALF, &rates, 0).optimizer_ns, 18000);
    CHECK_EQ_INT(effect_with(MS_MODEL_OFFLOAD, &rates, 0).optimizer_ns, MS__MAX_NS);
}

/* If memory is fast, the link takes the time: 8000 ns for 4096 bytes of moments, 4000 for 2048 of gradients. */
TEST(options_that_wait_for_the_link) {
    ms_rates rates = link_rates(512, 512, 0);
    rates.memory_mb_per_s = 1000000;
    CHECK_EQ_INT(effect_with(MS_MODEL_OFFLOAD, &rates, 0).optimizer_ns, 8000);
    CHECK_EQ_INT(effect_with(MS_MODEL_OFFLOAD | MS_MODEL_HALF, &rates, 0).optimizer_ns, 12000);
    CHECK_EQ_INT(effect_with(MS_MODEL_8BIT, &rates, 0).optimizer_ns, 0);
    ms__model_effect s = effect_with(MS_MODEL_OFFLOAD_GRADIENTS, &rates, 1000);
    CHECK(s.drops_gradients && s.is_streamed);
    CHECK_EQ_INT(s.optimizer_ns, 4000);
    CHECK_EQ_INT(s.backward_ns, 3000); /* 1000 of 4000 are hidden */
    CHECK_EQ_INT(s.host_bytes, 2048);
    CHECK_EQ_INT(s.optimizer_ppm, PPM);
    CHECK_EQ_INT(effect_with(MS_MODEL_OFFLOAD_GRADIENTS, &rates, 4000).backward_ns, 0);
    s = effect_with(MS_MODEL_OFFLOAD_GRADIENTS | MS_MODEL_OFFLOAD, &rates, 0);
    CHECK_EQ_INT(s.optimizer_ns, 12000);
    CHECK_EQ_INT(s.host_bytes, 2048 + 4096);
}

static ms_simulation_segment segment_with(int32_t phase) {
    return (ms_simulation_segment){.phase = phase,
                                   .peak_bytes = 500 * MIB,
                                   .end_bytes = 400 * MIB,
                                   .parts = {[MS_CATEGORY_ACTIVATION] = 7,
                                             [MS_CATEGORY_PARAMETER] = 100 * MIB,
                                             [MS_CATEGORY_GRADIENT] = 90 * MIB,
                                             [MS_CATEGORY_OPTIMIZER] = 200 * MIB,
                                             [MS_CATEGORY_TEMPORARY] = 80 * MIB}};
}

static void check_change(const ms__model_effect *effect, int32_t phase, int64_t parameters, int64_t gradients,
                         int64_t moments, int64_t temporaries) {
    const ms_simulation_segment before = segment_with(phase);
    ms_simulation_segment after = before;
    ms__model_effect_apply(effect, false, 0, &after);
    const int64_t change[MS_N_CATEGORIES] = {[MS_CATEGORY_PARAMETER] = parameters,
                                             [MS_CATEGORY_GRADIENT] = gradients,
                                             [MS_CATEGORY_OPTIMIZER] = moments,
                                             [MS_CATEGORY_TEMPORARY] = temporaries};
    int64_t sum = parameters + gradients + moments + temporaries;
    for (int c = 0; c < MS_N_CATEGORIES; c++) CHECK_EQ_INT(after.parts[c], before.parts[c] + change[c]);
    CHECK_EQ_INT(after.peak_bytes, before.peak_bytes + sum);
    CHECK_EQ_INT(after.end_bytes, before.end_bytes + sum);
}

TEST(changes_of_options) {
    const ms__model_effect none = {.optimizer_ppm = PPM};
    const ms__model_effect quarter = {.options = MS_MODEL_8BIT, .optimizer_ppm = PPM / 4, .is_streamed = true};
    const ms__model_effect half = {
        .options = MS_MODEL_HALF, .parameter_bytes = 100 * MIB, .optimizer_ppm = 2 * PPM, .is_streamed = true};
    const ms__model_effect away = {.options = MS_MODEL_OFFLOAD, .is_streamed = true};
    const ms__model_effect tiled = {.options = MS_MODEL_TILE_LOSS, .optimizer_ppm = PPM};
    check_change(&none, BACKWARD, 0, 0, 0, 0);
    check_change(&none, STEP, 0, 0, 0, 0);
    check_change(&quarter, BACKWARD, 0, 0, -150 * MIB, 0);
    check_change(&quarter, STEP, 0, 0, -150 * MIB, -16 * MIB); /* temporaries are one chunk of 64 MiB */
    check_change(&quarter, FIRST, 0, 0, -150 * MIB, -16 * MIB);
    check_change(&half, FORWARD, 100 * MIB, 0, 200 * MIB, 0);
    check_change(&away, BACKWARD, 0, 0, -200 * MIB, 0);
    check_change(&away, STEP, 0, 0, -200 * MIB, -16 * MIB);
    check_change(&tiled, STEP, 0, 0, 0, 0);
}

/* A chunk of gradients stays, or the largest of them. */
TEST(gradients_that_leave) {
    ms__model_effect s = {.options = MS_MODEL_OFFLOAD_GRADIENTS,
                          .optimizer_ppm = PPM,
                          .drops_gradients = true,
                          .is_streamed = true,
                          .largest_gradient_bytes = MIB};
    check_change(&s, BACKWARD, 0, -26 * MIB, 0, 0);
    s.largest_gradient_bytes = 70 * MIB;
    check_change(&s, BACKWARD, 0, -20 * MIB, 0, 0);
    s.largest_gradient_bytes = 91 * MIB;
    check_change(&s, BACKWARD, 0, 0, 0, 0);
}

TEST(tiles_of_the_loss) {
    static const int64_t bytes[][2] = {{0, 0},       {1023, 1023}, {1024, 1024}, {1025, 1025}, {1032, 1025},
                                       {1033, 1026}, {9216, 2048}, {9217, 2049}, {-5, -5}};
    const ms__model_effect tiled = {.options = MS_MODEL_TILE_LOSS, .largest_gradient_bytes = 1024};
    const ms__model_effect plain = {.options = MS_MODEL_8BIT, .largest_gradient_bytes = 1024};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        CHECK_EQ_INT(ms__model_tiled_loss(&tiled, bytes[i][0]), bytes[i][1]);
        CHECK_EQ_INT(ms__model_tiled_loss(&plain, bytes[i][0]), bytes[i][0]);
    }
}

/* In the tail, the bytes above those at its beginning are tiled: temporaries first. */
TEST(segments_of_the_tail) {
    const ms__model_effect tiled = {
        .options = MS_MODEL_TILE_LOSS, .optimizer_ppm = PPM, .largest_gradient_bytes = 16 * MIB};
    const ms_simulation_segment before = segment_with(BACKWARD);
    ms_simulation_segment outside = before, inside = before, begun = before;
    ms__model_effect_apply(&tiled, false, 0, &outside);
    CHECK_EQ_INT(outside.peak_bytes, before.peak_bytes);
    ms__model_effect_apply(&tiled, true, 7, &inside); /* 80 MiB: 16 of them stay, and an eighth of the others */
    CHECK_EQ_INT(inside.parts[MS_CATEGORY_TEMPORARY], 24 * MIB);
    CHECK_EQ_INT(inside.parts[MS_CATEGORY_ACTIVATION], 7);
    CHECK_EQ_INT(inside.peak_bytes, before.peak_bytes - 56 * MIB);
    ms__model_effect_apply(&tiled, true, 80 * MIB, &begun);
    CHECK_EQ_INT(begun.peak_bytes, before.peak_bytes);
}

SUITE(model_options, CASE(names_of_options), CASE(no_such_option), CASE(options_of_the_small_model),
      CASE(options_without_a_link), CASE(options_that_wait_for_the_link), CASE(changes_of_options),
      CASE(gradients_that_leave), CASE(tiles_of_the_loss), CASE(segments_of_the_tail));
