/* test_levers.c - the order of units, what actions do to one, the link, and what states do to a model: all by hand. */
#include "sim/actions.h"

#include <string.h>

#include "sim/roofline.h"
#include "steps.h"

#define MIB ((int64_t)1 << 20)
#define PPM 1000000

/* ---- Order ---- */

#define MAX_SEGMENTS 12

typedef struct walk {
    int32_t unit;
    uint32_t phase;
    int32_t prefix; /* wanted */
} walk;

static void check_order(const walk *walks, uint32_t n, uint32_t n_units, const int32_t *units, int32_t n_chain) {
    ms__arena arena = {0};
    ms__segment segments[MAX_SEGMENTS];
    ms__order order;
    CHECK(n <= MAX_SEGMENTS);
    for (uint32_t i = 0; i < n; i++) segments[i] = (ms__segment){.unit = walks[i].unit, .phase = walks[i].phase};
    ms__step step = {.segments = segments, .n_segments = n, .n_units = n_units};
    CHECK_STATUS(ms__order_make(&arena, &step, &order), MS_OK);
    CHECK_EQ_INT(order.n, n_chain);
    for (int32_t i = 0; i < n_chain; i++) {
        CHECK_EQ_INT(order.units[i], units[i]);
        CHECK_EQ_INT(order.position[units[i]], i);
    }
    int32_t n_positions = 0;
    for (uint32_t u = 0; u < n_units; u++) n_positions += order.position[u] != MS__NO_CHAIN;
    CHECK_EQ_INT(n_positions, n_chain);
    for (uint32_t i = 0; i < n; i++) CHECK_EQ_INT(order.prefix[i], walks[i].prefix);
    ms__arena_free(&arena);
}

enum { NONE = -1, STATE = MS_PHASE_SETUP, FORWARD = MS_PHASE_FORWARD, LOSS = MS_PHASE_LOSS };
enum { BACKWARD = MS_PHASE_BACKWARD, FIRST = MS_PHASE_OPTIMIZER_FIRST, STEP = MS_PHASE_OPTIMIZER };

TEST(units_one_after_the_other) {
    static const walk walks[] = {{NONE, STATE, 0},    {0, FORWARD, 0},  {NONE, FORWARD, 1},  {1, FORWARD, 1},
                                 {2, FORWARD, 2},     {NONE, LOSS, 3},  {NONE, BACKWARD, 3}, {2, BACKWARD, 2},
                                 {NONE, BACKWARD, 2}, {1, BACKWARD, 1}, {0, BACKWARD, 0},    {NONE, STEP, 0}};
    check_order(walks, 12, 3, (const int32_t[]){0, 1, 2}, 3);
}

/* The chain has the order in which units run, not that of their numbers; who does not run forward is not in it. */
TEST(units_in_another_order) {
    static const walk walks[] = {{3, FORWARD, 0},  {0, FORWARD, 1},  {2, LOSS, 2},     {2, BACKWARD, 2},
                                 {1, BACKWARD, 2}, {0, BACKWARD, 1}, {3, BACKWARD, 0}, {NONE, FIRST, 0}};
    check_order(walks, 8, 4, (const int32_t[]){3, 0, 2}, 3);
}

/* The second time forward it is behind all that ran; backward, nobody is sure to hold from its first one on. */
TEST(a_unit_that_is_called_twice) {
    static const walk walks[] = {{0, FORWARD, 0},     {1, FORWARD, 1},  {0, FORWARD, 2},  {NONE, LOSS, 2},
                                 {NONE, BACKWARD, 2}, {0, BACKWARD, 0}, {1, BACKWARD, 0}, {0, BACKWARD, 0}};
    check_order(walks, 8, 2, (const int32_t[]){0, 1}, 2);
}

TEST(no_units_and_no_step) {
    static const walk walks[] = {{NONE, FORWARD, 0}, {NONE, LOSS, 0}, {NONE, BACKWARD, 0}};
    check_order(walks, 3, 0, NULL, 0);
    check_order(walks, 0, 0, NULL, 0);
    check_order(walks, 3, 2, NULL, 0);
}

/* ---- Units ---- */

/* Attention, products and the rest: queued, computed, bytes of outputs. */
static ms__ledger ledger_of(bool on_gpu) {
    return (ms__ledger){
        .again = {{10, 100, 300}, {20, 200, 500}, {30, 50, 200}}, .host_ns = 70, .saved_bytes = 1003, .on_gpu = on_gpu};
}

static const ms_unit unit = {.name = "unit", .input_bytes = 64};

static void check_effect(const ms__effect *e, int64_t held, int64_t forward, int64_t backward, int64_t copy,
                         int64_t extra_ns) {
    CHECK_EQ_INT(e->held_bytes, held);
    CHECK_EQ_INT(e->forward_bytes, forward);
    CHECK_EQ_INT(e->backward_bytes, backward);
    CHECK_EQ_INT(e->copy_bytes, copy);
    CHECK_EQ_INT(e->extra_ns, extra_ns);
}

TEST(effects_of_actions) {
    static const struct {
        int64_t held, forward, backward, copy, extra_ns;
        int variant;
        bool waits;
    } wanted[MS_N_ACTIONS] = {
        [MS_ACTION_KEEP] = {0, 0, 0, 0, 0, MS__PLAIN, false},
        [MS_ACTION_RECOMPUTE] = {0, 0, 0, 0, 0, MS__RECOMPUTED, false},
        [MS_ACTION_RECOMPUTE_EXCEPT_BOTH] = {800, 800, 0, 0, -330, MS__RECOMPUTED, false},
        [MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS] = {500, 500, 0, 0, -220, MS__RECOMPUTED, false},
        [MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION] = {300, 300, 0, 0, -110, MS__RECOMPUTED, false},
        [MS_ACTION_OFFLOAD] = {-1003, 0, 0, 1003, 0, MS__PLAIN, false},
        [MS_ACTION_OFFLOAD_BLOCKING] = {-1003, 0, 0, 1003, 0, MS__PLAIN, true},
        [MS_ACTION_RECOMPUTE_OFFLOAD] = {-64, 0, 0, 64, 0, MS__RECOMPUTED, false},
        [MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING] = {-64, 0, 0, 64, 0, MS__RECOMPUTED, true},
        [MS_ACTION_TILE] = {0, 0, -750, 0, 210, MS__RECOMPUTED, false}}; /* three of four tiles are not there */
    ms__ledger ledger = ledger_of(false);
    for (int32_t a = 0; a < MS_N_ACTIONS; a++) {
        ms__effect e = ms__effect_of(&ledger, &unit, a);
        check_effect(&e, wanted[a].held, wanted[a].forward, wanted[a].backward, wanted[a].copy, wanted[a].extra_ns);
        CHECK_EQ_INT(e.variant, wanted[a].variant);
        CHECK_EQ_INT(e.waits, wanted[a].waits);
        CHECK(e.is_possible);
        CHECK_EQ_INT(ms__action_variant(a), e.variant);
    }
}

/* What is saved is the longer of queueing and computing: 350, and 60 or 50 without the rest. */
TEST(effects_on_a_gpu) {
    ms__ledger ledger = ledger_of(true);
    CHECK_EQ_INT(ms__effect_of(&ledger, &unit, MS_ACTION_RECOMPUTE_EXCEPT_BOTH).extra_ns, 50 - 350);
    CHECK_EQ_INT(ms__effect_of(&ledger, &unit, MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS).extra_ns, 150 - 350);
    CHECK_EQ_INT(ms__effect_of(&ledger, &unit, MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION).extra_ns, 250 - 350);
    ledger.again[MS__GROUP_REST].host_ns = 400; /* the host is behind all the time */
    CHECK_EQ_INT(ms__effect_of(&ledger, &unit, MS_ACTION_RECOMPUTE_EXCEPT_BOTH).extra_ns, 400 - 430);
}

static bool is_possible(const ms__ledger *ledger, const ms_unit *u, int32_t action) {
    return ms__effect_of(ledger, u, action).is_possible;
}

TEST(effects_that_are_none) {
    ms__ledger nothing = {.on_gpu = false}, ledger = ledger_of(false);
    ms_unit first = {.name = "first"}; /* nobody else keeps its inputs */
    for (int32_t a = 0; a < MS_N_ACTIONS; a++) CHECK_EQ_INT(is_possible(&nothing, &unit, a), a == MS_ACTION_KEEP);
    CHECK(!is_possible(&ledger, &first, MS_ACTION_RECOMPUTE_OFFLOAD));
    CHECK(!is_possible(&ledger, &first, MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING));
    CHECK(is_possible(&ledger, &first, MS_ACTION_OFFLOAD));
    ledger.saved_bytes = 800; /* as much as both keep */
    CHECK(!is_possible(&ledger, &unit, MS_ACTION_RECOMPUTE_EXCEPT_BOTH));
    CHECK(is_possible(&ledger, &unit, MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS));
    ledger.again[MS__GROUP_ATTENTION] = (ms__sums){.output_bytes = 300}; /* takes no time */
    CHECK(!is_possible(&ledger, &unit, MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION));
    ledger.again[MS__GROUP_PRODUCT].output_bytes = 0;
    CHECK(!is_possible(&ledger, &unit, MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS));
    ledger.saved_bytes = 3; /* less than a byte for each tile */
    CHECK(!is_possible(&ledger, &unit, MS_ACTION_TILE));
    ledger.saved_bytes = 4;
    CHECK(is_possible(&ledger, &unit, MS_ACTION_TILE));
    CHECK_EQ_INT(ms__effect_of(&ledger, &unit, MS_ACTION_TILE).backward_bytes, -3);
    ledger.host_ns = MS__MAX_NS;
    CHECK(ms__effect_of(&ledger, &unit, MS_ACTION_TILE).extra_ns <= MS__MAX_NS);
}

/* ---- The link ---- */

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

static void check_link(const ms_rates *rates, int64_t max_copy, int64_t tick_ns, int64_t slot_bytes) {
    ms__link link = ms__link_make(rates, max_copy);
    CHECK_EQ_INT(link.slot_ns, tick_ns);
    CHECK_EQ_INT(link.slot_bytes, slot_bytes);
    CHECK_EQ_INT(link.max_slots, tick_ns > 0 ? 12 : 0);
}

/* The slower way, or half of both at once: 700 bytes in a microsecond; 42000 bytes take 60, in six ticks of 11. */
TEST(ticks_of_a_link) {
    ms_rates rates = link_rates(1000, 800, 1400), apart = link_rates(900, 1000, 0), wide = link_rates(10, 1000, 2000);
    check_link(&rates, 42000, 11000, 7700);
    check_link(&rates, 1, 1000, 700);
    check_link(&apart, 5400, 2000, 1800);
    check_link(&wide, 600, 11000, 110);
    ms_rates none[] = {link_rates(0, 0, 0), link_rates(0, 1000, 1000), link_rates(1000, 0, 0), link_rates(9, 9, 1)};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) check_link(&none[i], 42000, 0, 0);
    check_link(&rates, 0, 0, 0);
}

TEST(copies_in_ticks) {
    ms_rates rates = link_rates(1000, 800, 1400);
    ms__link link = ms__link_make(&rates, 42000), none = {0};
    static const int64_t bytes[][2] = {{0, 0}, {1, 1}, {7700, 1}, {7701, 2}, {42000, 6}};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        CHECK_EQ_INT(ms__link_copy_slots(&link, bytes[i][0]), bytes[i][1]);
    static const int64_t times[][2] = {{0, 0}, {10999, 0}, {11000, 1}, {131999, 11}, {132000, 12}, {MS__MAX_NS, 12}};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        CHECK_EQ_INT(ms__link_hide_slots(&link, times[i][0]), times[i][1]);
    CHECK_EQ_INT(ms__link_drag_ns(&link, 42000), 60000 / 8);
    CHECK_EQ_INT(ms__link_drag_ns(&link, 0), 0);
    CHECK_EQ_INT(ms__link_copy_slots(&none, 42000), 0);
    CHECK_EQ_INT(ms__link_hide_slots(&none, 42000), 0);
    CHECK_EQ_INT(ms__link_drag_ns(&none, 42000), 0);
}

TEST(backlogs) {
    static const struct {
        int32_t before, hide, copy;
        bool waits;
        int32_t behind;
        int64_t wait_ticks;
    } table[] = {{0, 0, 0, false, 0, 0},   {0, 0, 0, true, 0, 0},    {5, 3, 4, false, 6, 0},   {2, 3, 4, false, 4, 0},
                 {12, 0, 0, false, 12, 0}, {12, 0, 1, false, 0, 13}, {12, 12, 6, false, 6, 0}, {5, 3, 4, true, 0, 6},
                 {5, 5, 0, true, 0, 0},    {6, 0, 6, false, 12, 0}};
    const ms__link link = {.slot_ns = 11000, .slot_bytes = 7700, .max_slots = 12};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int64_t wait_ns = -1;
        CHECK_EQ_INT(ms__link_step(&link, table[i].before, table[i].hide, table[i].copy, table[i].waits, &wait_ns),
                     table[i].behind);
        CHECK_EQ_INT(wait_ns, 2 * table[i].wait_ticks * 11000); /* out, and back */
    }
}

/* The largest copy over the slowest link: times end, they do not overflow. */
TEST(copies_that_take_forever) {
    ms_rates rates = link_rates(1, 1, 0);
    ms__link link = ms__link_make(&rates, MS__MAX_NS);
    int64_t wait_ns = -1;
    int32_t copy = ms__link_copy_slots(&link, MS__MAX_NS);
    CHECK(copy > 0 && link.slot_ns > 0 && link.slot_ns <= MS__MAX_NS / 64);
    CHECK_EQ_INT(ms__link_step(&link, 12, 0, copy, true, &wait_ns), 0);
    CHECK(wait_ns > 0 && wait_ns <= MS__MAX_NS);
    CHECK(ms__link_drag_ns(&link, MS__MAX_NS) >= 0);
}

/* ---- The model's state ---- */

/* The small model: 2048 bytes of parameters and of gradients (the largest 1024), 4096 of optimizer state. */
static ms__model_effect state_with(uint32_t flags, const ms_rates *rates, int64_t backward_ns) {
    ms_profile *profile = two_unit_profile();
    ms__model_effect state = ms__model_effect_make(profile->step, rates, flags, backward_ns);
    ms_profile_destroy(profile);
    CHECK_EQ_INT(state.flags, flags);
    return state;
}

/* Moments of 8 bits are 1/4 of those of 32, and a 256th of them for scales: 1039 of 4096. Memory moves 1000 bytes in a
 * microsecond, moments, lower halves and parameters twice and gradients once; the link 512. */
TEST(states_of_the_small_model) {
    static const struct {
        uint32_t flags;
        int64_t parameter_bytes, optimizer_ppm, host_bytes, optimizer_ns;
    } table[] = {
        {MS_MODEL_8BIT, 0, 253906, 0, 8000},                                         /* 2 x (1039 + 2048) + 2048 */
        {MS_MODEL_HALF, 2048, PPM, 0, 18000},                                        /* 2 x (4096 + 2 x 2048) + 2048 */
        {MS_MODEL_HALF | MS_MODEL_8BIT, 2048, 253906, 0, 12000},                     /* 2 x (1039 + 2 x 2048) + 2048 */
        {MS_MODEL_OFFLOAD, 0, 0, 4096, 14000},                                       /* 2 x (4096 + 2048) + 2048 */
        {MS_MODEL_OFFLOAD | MS_MODEL_8BIT, 0, 0, 1039, 8000},                        /* the link takes 2000 */
        {MS_MODEL_OFFLOAD | MS_MODEL_HALF, 0, 0, 4096 + 2048, 18000},                /* lower halves go, too */
        {MS_MODEL_OFFLOAD | MS_MODEL_HALF | MS_MODEL_8BIT, 0, 0, 1039 + 2048, 12000} /* the link takes 6000 */
    };
    ms_rates rates = link_rates(512, 512, 0);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ms__model_effect s = state_with(table[i].flags, &rates, 0);
        CHECK_EQ_INT(s.parameter_bytes, table[i].parameter_bytes);
        CHECK_EQ_INT(s.optimizer_ppm, table[i].optimizer_ppm);
        CHECK_EQ_INT(s.host_bytes, table[i].host_bytes);
        CHECK_EQ_INT(s.optimizer_ns, table[i].optimizer_ns);
        CHECK_EQ_INT(s.backward_ns, 0);
        CHECK(s.is_streamed && !s.drops_gradients);
    }
    ms__model_effect plain = state_with(0, &rates, 0), tiled = state_with(MS_MODEL_TILE_LOSS, &rates, 0);
    CHECK(!plain.is_streamed && plain.optimizer_ppm == PPM && plain.host_bytes == 0);
    CHECK(!tiled.is_streamed && tiled.optimizer_ppm == PPM && tiled.host_bytes == 0 && tiled.parameter_bytes == 0);
    CHECK_EQ_INT(tiled.loss_spared_bytes, 1024);
}

/* Nothing moves over the link, so none is needed. */
TEST(states_without_a_link) {
    ms_rates rates = link_rates(0, 0, 0);
    CHECK_EQ_INT(state_with(MS_MODEL_8BIT, &rates, 0).optimizer_ns, 8000);
    CHECK_EQ_INT(state_with(MS_MODEL_HALF, &rates, 0).optimizer_ns, 18000);
    CHECK_EQ_INT(state_with(MS_MODEL_OFFLOAD, &rates, 0).optimizer_ns, MS__MAX_NS);
}

/* Where memory is fast the link is what takes time: 4096 bytes of moments, 8000 ns; 2048 of gradients, 4000. */
TEST(states_that_wait_for_the_link) {
    ms_rates rates = link_rates(512, 512, 0);
    rates.memory_mb_per_s = 1000000;
    CHECK_EQ_INT(state_with(MS_MODEL_OFFLOAD, &rates, 0).optimizer_ns, 8000);
    CHECK_EQ_INT(state_with(MS_MODEL_OFFLOAD | MS_MODEL_HALF, &rates, 0).optimizer_ns, 12000);
    CHECK_EQ_INT(state_with(MS_MODEL_8BIT, &rates, 0).optimizer_ns, 0);
    ms__model_effect s = state_with(MS_MODEL_OFFLOAD_GRADIENTS, &rates, 1000);
    CHECK(s.drops_gradients && s.is_streamed);
    CHECK_EQ_INT(s.optimizer_ns, 4000);
    CHECK_EQ_INT(s.backward_ns, 3000); /* 1000 of 4000 are hidden */
    CHECK_EQ_INT(s.host_bytes, 2048);
    CHECK_EQ_INT(s.optimizer_ppm, PPM);
    CHECK_EQ_INT(state_with(MS_MODEL_OFFLOAD_GRADIENTS, &rates, 4000).backward_ns, 0);
    s = state_with(MS_MODEL_OFFLOAD_GRADIENTS | MS_MODEL_OFFLOAD, &rates, 0);
    CHECK_EQ_INT(s.optimizer_ns, 12000);
    CHECK_EQ_INT(s.host_bytes, 2048 + 4096);
}

static ms_simulation_segment point_with(int32_t phase) {
    return (ms_simulation_segment){.phase = phase,
                                   .parts = {[MS_CATEGORY_ACTIVATION] = 7,
                                             [MS_CATEGORY_PARAMETER] = 100 * MIB,
                                             [MS_CATEGORY_GRADIENT] = 90 * MIB,
                                             [MS_CATEGORY_OPTIMIZER] = 200 * MIB,
                                             [MS_CATEGORY_TEMPORARY] = 80 * MIB}};
}

static void check_change(const ms__model_effect *state, int32_t phase, int64_t parameters, int64_t gradients,
                         int64_t moments, int64_t working) {
    ms_simulation_segment point = point_with(phase);
    int64_t change[MS_N_CATEGORIES];
    memset(change, 0x55, sizeof change);
    CHECK_EQ_INT(ms__model_effect_at(state, &point, change), parameters + gradients + moments + working);
    CHECK_EQ_INT(change[MS_CATEGORY_ACTIVATION], 0);
    CHECK_EQ_INT(change[MS_CATEGORY_PARAMETER], parameters);
    CHECK_EQ_INT(change[MS_CATEGORY_BUFFER], 0);
    CHECK_EQ_INT(change[MS_CATEGORY_INPUT], 0);
    CHECK_EQ_INT(change[MS_CATEGORY_GRADIENT], gradients);
    CHECK_EQ_INT(change[MS_CATEGORY_OPTIMIZER], moments);
    CHECK_EQ_INT(change[MS_CATEGORY_TEMPORARY], working);
    CHECK_EQ_INT(change[MS_CATEGORY_LIBRARY], 0);
}

TEST(changes_of_states) {
    const ms__model_effect none = {.optimizer_ppm = PPM};
    const ms__model_effect quarter = {.flags = MS_MODEL_8BIT, .optimizer_ppm = PPM / 4, .is_streamed = true};
    const ms__model_effect half = {
        .flags = MS_MODEL_HALF, .parameter_bytes = 100 * MIB, .optimizer_ppm = 2 * PPM, .is_streamed = true};
    const ms__model_effect away = {.flags = MS_MODEL_OFFLOAD, .is_streamed = true};
    const ms__model_effect tiled = {.flags = MS_MODEL_TILE_LOSS, .optimizer_ppm = PPM};
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
    ms__model_effect s = {.flags = MS_MODEL_OFFLOAD_GRADIENTS,
                          .optimizer_ppm = PPM,
                          .drops_gradients = true,
                          .is_streamed = true,
                          .loss_spared_bytes = MIB};
    check_change(&s, BACKWARD, 0, -26 * MIB, 0, 0);
    s.loss_spared_bytes = 70 * MIB;
    check_change(&s, BACKWARD, 0, -20 * MIB, 0, 0);
    s.loss_spared_bytes = 91 * MIB;
    check_change(&s, BACKWARD, 0, 0, 0, 0);
}

TEST(tiles_of_the_loss) {
    static const int64_t bytes[][2] = {{0, 0},       {1023, 1023}, {1024, 1024}, {1025, 1025}, {1032, 1025},
                                       {1033, 1026}, {9216, 2048}, {9217, 2049}, {-5, -5}};
    const ms__model_effect tiled = {.flags = MS_MODEL_TILE_LOSS, .loss_spared_bytes = 1024};
    const ms__model_effect plain = {.flags = MS_MODEL_8BIT, .loss_spared_bytes = 1024};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        CHECK_EQ_INT(ms__model_tiled_loss(&tiled, bytes[i][0]), bytes[i][1]);
        CHECK_EQ_INT(ms__model_tiled_loss(&plain, bytes[i][0]), bytes[i][0]);
    }
}

SUITE(levers, CASE(units_one_after_the_other), CASE(units_in_another_order), CASE(a_unit_that_is_called_twice),
      CASE(no_units_and_no_step), CASE(effects_of_actions), CASE(effects_on_a_gpu), CASE(effects_that_are_none),
      CASE(ticks_of_a_link), CASE(copies_in_ticks), CASE(backlogs), CASE(copies_that_take_forever),
      CASE(states_of_the_small_model), CASE(states_without_a_link), CASE(states_that_wait_for_the_link),
      CASE(changes_of_states), CASE(gradients_that_leave), CASE(tiles_of_the_loss));
