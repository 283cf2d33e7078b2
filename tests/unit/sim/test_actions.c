/* test_actions.c - the table of actions: names and needs of each, and its effect on a unit, by hand. */
#include "sim/actions.h"

#include <string.h>

#include "sim/roofline.h"
#include "steps.h"

/* ---- Rows ---- */

static ms_action_info info_of(int32_t action) {
    ms_action_info info = {.struct_bytes = sizeof info};
    CHECK_STATUS(ms_action_get_info(action, &info), MS_OK);
    return info;
}

TEST(names_of_actions) {
    static const struct {
        const char *name, *identifier, *letter;
    } wanted[MS_N_ACTIONS] = {{"keep", "keep", "k"},
                              {"recompute", "recompute", "r"},
                              {"recompute except attention and products", "recompute_except_both", "b"},
                              {"recompute except products", "recompute_except_products", "p"},
                              {"recompute except attention", "recompute_except_attention", "a"},
                              {"offload", "offload", "o"},
                              {"blocking offload", "offload_blocking", "O"},
                              {"recompute with offloaded inputs", "recompute_offload", "i"},
                              {"recompute with blocking offload of inputs", "recompute_offload_blocking", "I"},
                              {"tile", "tile", "t"},
                              {"recompute pointwise results", "recompute_pointwise", "w"},
                              {"offload except pointwise results", "offload_pointwise", "x"}};
    for (int32_t a = 0; a < MS_N_ACTIONS; a++) {
        ms_action_info info = info_of(a);
        CHECK_EQ_STR(info.name, wanted[a].name);
        CHECK_EQ_STR(info.identifier, wanted[a].identifier);
        CHECK_EQ_STR(info.letter, wanted[a].letter);
        CHECK(strncmp(info.sentence, "%s ", 3) == 0 && strchr(info.sentence + 2, '%') == NULL);
    }
}

/* Exactly the actions that offload copy, and these need a link. Plans use all that can be run. */
TEST(needs_of_actions) {
    for (int32_t a = 0; a < MS_N_ACTIONS; a++) {
        ms_action_info info = info_of(a);
        CHECK_EQ_INT(info.is_runnable, a != MS_ACTION_TILE);
        for (int kind = 0; kind < MS_N_DEVICE_KINDS; kind++)
            CHECK_EQ_INT(ms__actions[a].chosen_on >> kind & 1, a != MS_ACTION_TILE);
        CHECK_EQ_INT(info.waits, a == MS_ACTION_OFFLOAD_BLOCKING || a == MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING);
        CHECK_EQ_INT(info.needs_link, (info.techniques & MS_TECHNIQUE_OFFLOAD) != 0);
        CHECK_EQ_INT(info.needs_tiles, (info.techniques & MS_TECHNIQUE_TILE) != 0);
        CHECK_EQ_INT(info.techniques == 0, a == MS_ACTION_KEEP);
        CHECK_EQ_INT(info.techniques & ~(uint32_t)MS_TECHNIQUE_ALL, 0);
        CHECK_EQ_INT(ms__actions[a].is_played, a != MS_ACTION_TILE);
    }
    CHECK_EQ_INT(info_of(MS_ACTION_RECOMPUTE_EXCEPT_BOTH).keeps, MS_KEEP_ATTENTION | MS_KEEP_PRODUCTS);
    CHECK_EQ_INT(info_of(MS_ACTION_RECOMPUTE_OFFLOAD).techniques, MS_TECHNIQUE_RECOMPUTE | MS_TECHNIQUE_OFFLOAD);
    CHECK(info_of(MS_ACTION_RECOMPUTE_OFFLOAD).recomputes && !info_of(MS_ACTION_OFFLOAD).recomputes);
}

TEST(no_such_action) {
    static const int32_t unknown[] = {-1, MS_N_ACTIONS, INT32_MAX, INT32_MIN};
    ms_action_info info = {.struct_bytes = sizeof info};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        CHECK_STATUS(ms_action_get_info(unknown[i], &info), MS_E_INVALID);
    CHECK_STATUS(ms_action_get_info(0, NULL), MS_E_INVALID);
    info.struct_bytes = 0;
    CHECK_STATUS(ms_action_get_info(0, &info), MS_E_INVALID);
}

/* ---- Effects ---- */

/* Attention, products and the rest: queued and computed. */
static ms__recompute_cost cost_of(bool on_gpu) {
    return (ms__recompute_cost){.extra = {{10, 100}, {20, 200}, {30, 50}},
                                .host_ns = 70,
                                .freed_bytes = 1003,
                                .kept_bytes = {0, 300, 500, 800},
                                .moved_bytes = 900,
                                .rest_bytes = 400,
                                .dropped_bytes = 50,
                                .input_bytes = 64,
                                .pointwise_bytes = 100,
                                .on_gpu = on_gpu};
}

static const ms_unit unit = {.name = "unit"};

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
        [MS_ACTION_RECOMPUTE_EXCEPT_BOTH] = {800, 800, 0, 0, -300, MS__RECOMPUTED, false},
        [MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS] = {500, 500, 0, 0, -200, MS__RECOMPUTED, false},
        [MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION] = {300, 300, 0, 0, -100, MS__RECOMPUTED, false},
        [MS_ACTION_OFFLOAD] = {-950, 0, 0, 900, 0, MS__PLAIN, false},
        [MS_ACTION_OFFLOAD_BLOCKING] = {-950, 0, 0, 900, 0, MS__PLAIN, true},
        [MS_ACTION_RECOMPUTE_OFFLOAD] = {-64, 0, 0, 64, 0, MS__RECOMPUTED, false},
        [MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING] = {-64, 0, 0, 64, 0, MS__RECOMPUTED, true},
        [MS_ACTION_TILE] = {0, 0, -750, 0, 210, MS__RECOMPUTED, false}, /* three of four tiles are not allocated */
        [MS_ACTION_RECOMPUTE_POINTWISE] = {0, 0, 0, 0, 0, MS__POINTWISE, false},
        [MS_ACTION_OFFLOAD_POINTWISE] = {-450, 0, 0, 400, 0, MS__POINTWISE, false}};
    ms__recompute_cost cost = cost_of(false);
    for (int32_t a = 0; a < MS_N_ACTIONS; a++) {
        ms__effect e = ms__effect_of(a, &cost, &unit);
        check_effect(&e, wanted[a].held, wanted[a].forward, wanted[a].backward, wanted[a].copy, wanted[a].extra_ns);
        CHECK_EQ_INT(ms__actions[a].variant, wanted[a].variant);
        CHECK_EQ_INT(ms__actions[a].waits, wanted[a].waits);
        CHECK(e.is_possible);
    }
}

/* A recomputation takes the longer of queueing (60) and computing; what is kept has to be found, too. */
TEST(effects_on_a_gpu) {
    ms__recompute_cost cost = cost_of(true);
    CHECK_EQ_INT(ms__effect_of(MS_ACTION_RECOMPUTE_EXCEPT_BOTH, &cost, &unit).extra_ns, 60 - 350);
    CHECK_EQ_INT(ms__effect_of(MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS, &cost, &unit).extra_ns, 150 - 350);
    CHECK_EQ_INT(ms__effect_of(MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION, &cost, &unit).extra_ns, 250 - 350);
    cost.extra[MS__GROUP_REST].host_ns = 400; /* the host is always the slower one */
    CHECK_EQ_INT(ms__effect_of(MS_ACTION_RECOMPUTE_EXCEPT_BOTH, &cost, &unit).extra_ns, 0);
    CHECK(!ms__effect_of(MS_ACTION_RECOMPUTE_EXCEPT_BOTH, &cost, &unit).is_possible);
}

static bool is_possible(const ms__recompute_cost *cost, const ms_unit *u, int32_t action) {
    return ms__effect_of(action, cost, u).is_possible;
}

TEST(effects_that_are_none) {
    ms__recompute_cost nothing = {.on_gpu = false}, cost = cost_of(false);
    for (int32_t a = 0; a < MS_N_ACTIONS; a++) CHECK_EQ_INT(is_possible(&nothing, &unit, a), a == MS_ACTION_KEEP);
    cost.input_bytes = 0; /* others hold its inputs, too */
    CHECK(!is_possible(&cost, &unit, MS_ACTION_RECOMPUTE_OFFLOAD));
    CHECK(!is_possible(&cost, &unit, MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING));
    CHECK(is_possible(&cost, &unit, MS_ACTION_OFFLOAD));
    CHECK(is_possible(&cost, &unit, MS_ACTION_OFFLOAD_POINTWISE));
    cost.pointwise_bytes = 0; /* that is plain offloading */
    CHECK(!is_possible(&cost, &unit, MS_ACTION_OFFLOAD_POINTWISE));
    cost.freed_bytes = 800; /* as much as both keep */
    CHECK(!is_possible(&cost, &unit, MS_ACTION_RECOMPUTE_EXCEPT_BOTH));
    CHECK(is_possible(&cost, &unit, MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS));
    cost.extra[MS__GROUP_ATTENTION] = (ms__sums){0}; /* takes no time */
    CHECK(!is_possible(&cost, &unit, MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION));
    cost.kept_bytes[MS_KEEP_PRODUCTS] = 0;
    CHECK(!is_possible(&cost, &unit, MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS));
    cost.moved_bytes = 0;
    CHECK(!is_possible(&cost, &unit, MS_ACTION_OFFLOAD) && !is_possible(&cost, &unit, MS_ACTION_OFFLOAD_BLOCKING));
    cost.freed_bytes = 3; /* less than a byte for each tile */
    CHECK(!is_possible(&cost, &unit, MS_ACTION_TILE));
    cost.freed_bytes = 4;
    CHECK(is_possible(&cost, &unit, MS_ACTION_TILE));
    CHECK_EQ_INT(ms__effect_of(MS_ACTION_TILE, &cost, &unit).backward_bytes, -3);
    cost.host_ns = MS__MAX_NS;
    CHECK(ms__effect_of(MS_ACTION_TILE, &cost, &unit).extra_ns <= MS__MAX_NS);
}

SUITE(actions, CASE(names_of_actions), CASE(needs_of_actions), CASE(no_such_action), CASE(effects_of_actions),
      CASE(effects_on_a_gpu), CASE(effects_that_are_none));
