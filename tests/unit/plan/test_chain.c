/* test_chain.c - chains of a few units: values by hand, grids, and levels of host memory. */
#include "chains.h"
#include "sim/roofline.h"

/* With ticks of 10 ns. */
static ms__value play(small_chain *s, uint8_t a, uint8_t b) {
    const ms__grid grid = grid_of(s, 10);
    return ms__chain_play(&s->chain, &grid, (const uint8_t[MAX_UNITS]){a, b});
}

static void check_value(ms__value value, int64_t peak, int64_t ticks, int64_t host_bytes) {
    CHECK_EQ_INT(value.peak_bytes, peak);
    CHECK_EQ_INT(value.ticks, ticks);
    CHECK_EQ_INT(value.host_bytes, host_bytes);
    CHECK(value.is_valid);
}

/* ---- Playing ---- */

TEST(units_kept_and_recomputed) {
    small_chain s = plain_chain();
    (void)open_chain(&s, 2);
    check_value(play(&s, KEEP, KEEP), 50 + 150, 0, 0);
    check_value(play(&s, RECOMPUTE, KEEP), 175, 3, 0); /* its own backward */
    check_value(play(&s, KEEP, RECOMPUTE), 50 + 165, 2, 0);
    check_value(play(&s, RECOMPUTE, RECOMPUTE), 10 + 165, 5, 0);
    s.between[0] = 1000;
    check_value(play(&s, KEEP, KEEP), 1000, 0, 0);
    s.between[0] = 0;
    s.between[1] = 300;
    check_value(play(&s, KEEP, KEEP), 50 + 300, 0, 0);
    s.between[2] = 300;
    check_value(play(&s, KEEP, KEEP), 90 + 300, 0, 0);
    check_value(play(&s, RECOMPUTE, RECOMPUTE), 15 + 300, 5, 0);
}

TEST(a_chain_of_nothing) {
    small_chain s = {.between = {77}};
    const ms__grid grid = {.tick_ns = 1};
    check_value(ms__chain_play(open_chain(&s, 0), &grid, NULL), 77, 0, 0);
}

/* The first unit may copy 40 bytes, in five slots; the second hides two of them. */
static small_chain linked_chain(void) {
    small_chain s = plain_chain();
    s.chain.link = (ms__link){.slot_ns = 10, .slot_bytes = 8, .max_slots = 12};
    ms__option away = {.forward_bytes = 160, .backward_bytes = 170, .copy_bytes = 40, .copy_slots = 5, .extra_ns = 10};
    add_option(&s, 0, away);
    away.waits = true;
    add_option(&s, 0, away);
    s.units[1].options[KEEP].hide_slots = 2;
    return s;
}

TEST(a_backlog_is_on_the_device) {
    small_chain s = linked_chain();
    (void)open_chain(&s, 2);
    check_value(play(&s, OFFLOAD, KEEP), 40 + 150, 1 + 6, 40); /* three slots are left: 60 ns at the end */
    check_value(play(&s, OFFLOAD_BLOCKING, KEEP), 170, 1 + 10, 40);
    s.units[1].options[KEEP].hide_slots = 12;
    check_value(play(&s, OFFLOAD, KEEP), 40 + 150, 1, 40);
    s.between[1] = 200; /* five slots are on the device here too */
    check_value(play(&s, OFFLOAD, KEEP), 40 + 200, 1, 40);
    check_value(play(&s, OFFLOAD_BLOCKING, KEEP), 200, 11, 40);
    s.between[2] = 300;
    s.units[1].options[KEEP].hide_slots = 1;
    check_value(play(&s, OFFLOAD, KEEP), 40 + 32 + 300, 1 + 8, 40);
}

TEST(backlogs_have_an_end) {
    small_chain s = {.chain = {.link = {.slot_ns = 10, .slot_bytes = 8, .max_slots = 12}}};
    const ms__option away = {.copy_bytes = 40, .copy_slots = 5};
    ms__option now = away;
    now.waits = true;
    for (int32_t i = 0; i < 3; i++) {
        add_option(&s, i, away);
        add_option(&s, i, now);
    }
    const ms__chain *chain = open_chain(&s, 3);
    const ms__grid grid = grid_of(&s, 10);
    CHECK(!ms__chain_play(chain, &grid, (const uint8_t[]){0, 0, 0}).is_valid); /* 15 slots */
    check_value(ms__chain_play(chain, &grid, (const uint8_t[]){0, 0, 1}), 80, 30, 120);
    check_value(ms__chain_play(chain, &grid, (const uint8_t[]){1, 0, 0}), 80, 10 + 20, 120);
    s.units[1].options[0].hide_slots = 3;
    check_value(ms__chain_play(chain, &grid, (const uint8_t[]){0, 0, 0}), 96, 24, 120); /* 5 - 3 + 5 + 5 are 12 */
}

TEST(waits_in_ticks) {
    small_chain s = linked_chain();
    const ms__grid grid = {.tick_ns = 7};
    static const int32_t wanted[] = {0, 3, 6, 9, 12}; /* 20 ns each, rounded up */
    for (int32_t slots = 0; slots < 5; slots++)
        CHECK_EQ_INT(ms__grid_wait_ticks(&grid, &s.chain.link, slots), wanted[slots]);
}

TEST(host_memory_in_levels) {
    small_chain s = linked_chain();
    ms__chain *chain = open_chain(&s, 2);
    add_option(&s, 1, (ms__option){.copy_bytes = 55, .copy_slots = 7});
    CHECK_EQ_INT(ms__chain_copy_levels(chain, 1 << 30), 0); /* there is room for all */
    CHECK_EQ_INT(ms__chain_host_levels(chain), 1);
    chain->host_limit_bytes = 100;
    chain->host_level_bytes = 10;
    static const int64_t levels[][2] = {{0, 0}, {1, 1}, {10, 1}, {11, 2}, {40, 4}, {55, 6}};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        CHECK_EQ_INT(ms__chain_copy_levels(chain, levels[i][0]), levels[i][1]);
    CHECK_EQ_INT(ms__chain_host_levels(chain), 11);
    CHECK(play(&s, OFFLOAD, 2).is_valid); /* 4 and 6 */
    chain->host_limit_bytes = 99;
    CHECK(!play(&s, OFFLOAD, 2).is_valid);
    CHECK(play(&s, OFFLOAD, KEEP).is_valid && play(&s, KEEP, 2).is_valid);
    chain->host_limit_bytes = 0;
    CHECK(!play(&s, OFFLOAD, KEEP).is_valid && play(&s, KEEP, KEEP).is_valid);
    chain->host_limit_bytes = 1 << 20;
    CHECK_EQ_INT(ms__chain_host_levels(chain), 17);
}

/* ---- Grids ---- */

static ms__grid make_grid(ms__arena *arena, const ms__chain *chain, ms__grid_kind kind) {
    ms__grid grid;
    CHECK_STATUS(ms__grid_make(arena, chain, kind, &grid), MS_OK);
    return grid;
}

TEST(ticks_are_rounded_up) {
    small_chain s = plain_chain();
    const ms__chain *chain = open_chain(&s, 2);
    ms__arena arena = {0};
    ms__grid grid = make_grid(&arena, chain, MS__GRID_WAITS);
    CHECK_EQ_INT(grid.tick_ns, 1);
    CHECK_EQ_INT(grid.ticks[0][RECOMPUTE], 30);
    CHECK_EQ_INT(grid.ticks[1][RECOMPUTE], 20);
    CHECK(grid.max_ticks >= 50);
    s.units[0].options[RECOMPUTE].extra_ns = 1000000;
    s.units[1].options[RECOMPUTE].extra_ns = 2000000;
    grid = make_grid(&arena, chain, MS__GRID_WAITS);
    CHECK_EQ_INT(grid.tick_ns, 3000000 / 8192 + 1);
    CHECK_EQ_INT(grid.ticks[0][RECOMPUTE], 2725); /* 2724.8 */
    CHECK_EQ_INT(grid.ticks[1][RECOMPUTE], 5450); /* 5449.6 */
    CHECK_EQ_INT(grid.ticks[0][KEEP], 0);
    CHECK(grid.max_ticks >= 2725 + 5450 && grid.max_ticks <= 8192 + 2);
    ms__arena_free(&arena);
}

/* The fine grid has shorter ticks; both grids have room for the options that they are for. */
TEST(grids_with_and_without_waits) {
    small_chain s = linked_chain();
    ms__chain *chain = open_chain(&s, 2);
    ms__arena arena = {0};
    chain->link.slot_ns = 100000;
    CHECK(ms__chain_has_waits(chain));
    ms__grid fine =
        make_grid(&arena, chain, MS__GRID_FINE); /* 2 x 12 x 100000 for what is left at the end, and 30 + 20 */
    CHECK_EQ_INT(fine.tick_ns, 2400050 / 1024 + 1);
    CHECK(ms__chain_play(chain, &fine, (const uint8_t[]){OFFLOAD, KEEP}).ticks <= fine.max_ticks);
    ms__grid waits = make_grid(&arena, chain, MS__GRID_WAITS); /* the first unit's wait may be for twice as much */
    CHECK_EQ_INT(waits.tick_ns, (2400000 + 4800010 + 20) / 1024 + 1);
    CHECK(ms__chain_play(chain, &waits, (const uint8_t[]){OFFLOAD_BLOCKING, RECOMPUTE}).ticks <= waits.max_ticks);
    s.units[0].n_options = 3;
    CHECK(!ms__chain_has_waits(chain));
    ms__arena_free(&arena);
}

TEST(ticks_of_endless_times) {
    small_chain s = plain_chain();
    const ms__chain *chain = open_chain(&s, 2);
    ms__arena arena = {0};
    s.units[0].options[RECOMPUTE].extra_ns = s.units[1].options[RECOMPUTE].extra_ns = MS__MAX_NS;
    ms__grid grid = make_grid(&arena, chain, MS__GRID_WAITS);
    CHECK(grid.tick_ns > 0 && grid.max_ticks > 0);
    CHECK(ms__chain_play(chain, &grid, (const uint8_t[]){RECOMPUTE, RECOMPUTE}).ticks <= grid.max_ticks);
    CHECK(ms__grid_step_ns(&grid, chain, INT64_MAX / 2) >= INT64_MAX / 4); /* it does not overflow */
    ms__arena_free(&arena);
}

SUITE(chain, CASE(units_kept_and_recomputed), CASE(a_chain_of_nothing), CASE(a_backlog_is_on_the_device),
      CASE(backlogs_have_an_end), CASE(waits_in_ticks), CASE(host_memory_in_levels), CASE(ticks_are_rounded_up),
      CASE(grids_with_and_without_waits), CASE(ticks_of_endless_times));
