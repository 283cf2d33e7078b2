/* test_search.c - searches of small chains compared with every choice, by hand, and in blocks. */
#include <string.h>

#include "chains.h"

#define KB 1024

/* The chain of four that is searched. */
typedef struct searched {
    small_chain s;
    ms__grid grid;
    ms__arena arena;
    ms__search *search;
} searched;

static uint32_t next_random(uint32_t *state) { return (*state = *state * 1664525U + 1013904223U) >> 8; }

static int64_t some_bytes(uint32_t *state, uint32_t n) { return (int64_t)(next_random(state) % (n * KB)); }

/* Each unit may be kept, recomputed, offloaded, and offloaded with a wait. */
static void random_unit(small_chain *s, int32_t unit, uint32_t *random) {
    const int64_t saved = KB + some_bytes(random, 20), whole = saved + KB * 40 + some_bytes(random, 8);
    const int32_t hide = (int32_t)(next_random(random) % 6), ticks = 1 + (int32_t)(next_random(random) % 20);
    ms__option option = {.held_bytes = saved, .forward_bytes = whole, .backward_bytes = whole, .hide_slots = hide};
    add_option(s, unit, option);
    option.held_bytes = saved / 8;
    option.extra_ns = ticks;
    option.action = MS_ACTION_RECOMPUTE;
    add_option(s, unit, option);
    option.held_bytes = some_bytes(random, 2);
    option.copy_bytes = saved - option.held_bytes;
    option.copy_slots = (int32_t)(option.copy_bytes / (4 * KB)) + 1;
    option.extra_ns = 1;
    option.action = MS_ACTION_OFFLOAD;
    add_option(s, unit, option);
    option.action = MS_ACTION_OFFLOAD_BLOCKING;
    option.waits = true;
    add_option(s, unit, option);
}

static void open_search(searched *x, uint32_t seed, int64_t host_limit_bytes) {
    *x = (searched){0};
    for (int32_t i = 0; i < MAX_UNITS; i++) random_unit(&x->s, i, &seed);
    for (int32_t i = 0; i <= MAX_UNITS; i++) x->s.between[i] = KB * 38 + some_bytes(&seed, 12);
    ms__chain *chain = open_chain(&x->s, MAX_UNITS);
    chain->link = (ms__link){.slot_ns = 3, .slot_bytes = 4 * KB, .mb_per_s = 1, .max_slots = 12};
    chain->host_limit_bytes = host_limit_bytes;
    chain->host_level_bytes = host_limit_bytes == 0 ? 0 : 5 * KB;
    CHECK_STATUS(ms__grid_make(&x->arena, chain, MS__GRID_WAITS, &x->grid), MS_OK);
    CHECK_EQ_INT(x->grid.tick_ns, 1);
    CHECK_STATUS(ms__search_new(&x->arena, chain, &x->grid, x->grid.max_ticks, &x->search), MS_OK);
    CHECK_EQ_INT(ms__search_slack(x->search), 0);
}

static void choices_of(int number, uint8_t choices[MAX_UNITS]) {
    for (int i = 0; i < MAX_UNITS; i++, number /= 4) choices[i] = (uint8_t)(number % 4);
}

/* By trying all 256 of them: the least ticks within a limit, and the least peak within a time. */
static int64_t least_ticks(const searched *x, int64_t limit_bytes, int64_t max_ticks) {
    int64_t least = MS__NO_TICKS;
    for (int number = 0; number < 256; number++) {
        uint8_t choices[MAX_UNITS];
        choices_of(number, choices);
        ms__value v = ms__chain_play(&x->s.chain, &x->grid, choices);
        if (v.is_valid && v.peak_bytes <= limit_bytes && v.ticks <= max_ticks && v.ticks < least) least = v.ticks;
    }
    return least;
}

static int64_t least_peak(const searched *x, int64_t max_ticks) {
    int64_t least = INT64_MAX;
    for (int number = 0; number < 256; number++) {
        uint8_t choices[MAX_UNITS];
        choices_of(number, choices);
        ms__value v = ms__chain_play(&x->s.chain, &x->grid, choices);
        if (v.is_valid && v.ticks <= max_ticks && v.peak_bytes < least) least = v.peak_bytes;
    }
    return least;
}

static void check_searches(searched *x) {
    const ms__chain *chain = &x->s.chain;
    uint8_t choices[MAX_UNITS] = {0};
    int64_t highest = ms__chain_play(chain, &x->grid, choices).peak_bytes, longest = x->grid.max_ticks;
    for (int64_t limit = KB * 30; limit <= highest + KB; limit += 777) {
        for (int64_t max_ticks = longest; max_ticks >= 4; max_ticks /= 4) {
            int64_t wanted = least_ticks(x, limit, max_ticks);
            CHECK_EQ_INT(ms__search_fastest(x->search, limit, max_ticks, choices), wanted);
            if (wanted == MS__NO_TICKS) continue;
            ms__value v = ms__chain_play(chain, &x->grid, choices);
            CHECK(v.is_valid && v.peak_bytes <= limit && v.ticks == wanted);
        }
    }
    for (int64_t max_ticks = 0; max_ticks <= longest; max_ticks += 1 + max_ticks / 4) {
        int64_t ticks = ms__search_leanest(x->search, max_ticks, choices);
        ms__value v = ms__chain_play(chain, &x->grid, choices);
        CHECK(v.is_valid && v.ticks == ticks && ticks <= max_ticks);
        CHECK_EQ_INT(v.peak_bytes, least_peak(x, max_ticks));
        CHECK_EQ_INT(v.peak_bytes, ms__search_peak(x->search, ticks));
        CHECK_EQ_INT(v.peak_bytes, ms__search_peak(x->search, max_ticks));
        CHECK_EQ_INT(v.ticks, least_ticks(x, v.peak_bytes, max_ticks));
    }
}

TEST(searches_against_every_choice) {
    for (uint32_t seed = 1; seed <= 12; seed++) {
        searched x;
        open_search(&x, seed, 0);
        check_searches(&x);
        ms__arena_free(&x.arena);
    }
}

TEST(searches_within_host_memory) {
    static const int64_t limits[] = {1, 5 * KB, 12 * KB, 30 * KB};
    for (uint32_t seed = 1; seed <= 12; seed++) {
        searched x;
        open_search(&x, seed + 100, limits[seed % 4]);
        check_searches(&x);
        ms__arena_free(&x.arena);
    }
}

static void check_choices(ms__search *search, int64_t limit, int64_t ticks, uint8_t a, uint8_t b) {
    uint8_t choices[2] = {9, 9};
    CHECK_EQ_INT(ms__search_fastest(search, limit, 1000, choices), ticks);
    CHECK_EQ_INT(choices[0], a);
    CHECK_EQ_INT(choices[1], b);
}

/* Limits are exact to the byte; 200 bytes are needed to keep both. */
TEST(the_fastest_by_hand) {
    small_chain s = plain_chain();
    ms__chain *chain = open_chain(&s, 2);
    ms__arena arena = {0};
    ms__search *search = NULL;
    ms__grid grid;
    uint8_t choices[2] = {0};
    CHECK_STATUS(ms__grid_make(&arena, chain, MS__GRID_WAITS, &grid), MS_OK);
    CHECK_STATUS(ms__search_new(&arena, chain, &grid, 1000, &search), MS_OK);
    check_choices(search, 200, 0, KEEP, KEEP);
    check_choices(search, INT64_MAX / 8, 0, KEEP, KEEP);
    check_choices(search, 199, 30, RECOMPUTE, KEEP); /* the backward of the second would be even higher */
    check_choices(search, 175, 30, RECOMPUTE, KEEP);
    CHECK_EQ_INT(ms__search_fastest(search, 174, 1000, choices), MS__NO_TICKS);
    CHECK_EQ_INT(ms__search_fastest(search, 199, 29, choices), MS__NO_TICKS);
    CHECK_EQ_INT(ms__search_fastest(search, 200, -1, choices), MS__NO_TICKS);
    CHECK_EQ_INT(ms__search_fastest(search, 99, 1000, choices), MS__NO_TICKS); /* not even before the first unit */
    CHECK_EQ_INT(ms__search_fastest(search, 0, 1000, choices), MS__NO_TICKS);
    CHECK_EQ_INT(ms__search_fastest(search, -1, 1000, choices), MS__NO_TICKS);
    CHECK_EQ_INT(ms__search_leanest(search, 29, choices), 0);
    CHECK_EQ_INT(ms__search_leanest(search, 30, choices), 30);
    CHECK_EQ_INT(ms__search_leanest(search, -1, choices), MS__NO_TICKS);
    CHECK_STATUS(ms__search_new(&arena, chain, &grid, 29, &search), MS_OK); /* the search has no more ticks */
    CHECK_EQ_INT(ms__search_fastest(search, 199, 1000, choices), MS__NO_TICKS);
    CHECK_EQ_INT(ms__search_leanest(search, 1000, choices), 0);
    ms__arena_free(&arena);
}

TEST(nothing_to_search) {
    small_chain s = {.between = {77 * KB}};
    ms__chain *chain = open_chain(&s, 0);
    ms__arena arena = {0};
    ms__search *search = NULL;
    ms__grid grid;
    uint8_t none = 0;
    CHECK_STATUS(ms__grid_make(&arena, chain, MS__GRID_WAITS, &grid), MS_OK);
    CHECK_STATUS(ms__search_new(&arena, chain, &grid, 0, &search), MS_OK);
    CHECK_EQ_INT(ms__search_fastest(search, 77 * KB, 0, &none), 0);
    CHECK_EQ_INT(ms__search_fastest(search, 77 * KB - 1, 0, &none), MS__NO_TICKS);
    CHECK_EQ_INT(ms__search_leanest(search, 0, &none), 0);
    ms__arena_free(&arena);
}

/* Sizes are counted in cells, of which a plan has fewer than 2^25: a cell is a byte here, and 4096 bytes for 80 GiB. */
TEST(cells_of_large_chains) {
    static const struct {
        int64_t resident, saved, cell, slack;
    } table[] = {{1000, 1, 1, 0},
                 {(1 << 25) - 100, 7, 1, 0},
                 {1 << 25, 8, 2, 0},
                 {1 << 25, 7, 2, 2 * 2}, /* a unit, and the end */
                 {INT64_C(80) << 30, 1 << 20, 4096, 0},
                 {INT64_C(80) << 30, (1 << 20) + 1, 4096, 2 * 4096}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        small_chain s = {.between = {table[i].resident, table[i].resident}};
        int64_t peak = table[i].resident + table[i].saved;
        uint8_t choice = 9;
        add_option(&s, 0, (ms__option){.held_bytes = table[i].saved, .forward_bytes = peak, .backward_bytes = peak});
        ms__chain *chain = open_chain(&s, 1);
        ms__arena arena = {0};
        ms__search *search = NULL;
        ms__grid grid;
        CHECK_STATUS(ms__grid_make(&arena, chain, MS__GRID_WAITS, &grid), MS_OK);
        CHECK_STATUS(ms__search_new(&arena, chain, &grid, 0, &search), MS_OK);
        CHECK_EQ_INT(ms__search_slack(search), table[i].slack);
        CHECK_EQ_INT(ms__search_fastest(search, peak + table[i].slack, 0, &choice), 0);
        CHECK_EQ_INT(choice, 0);
        CHECK_EQ_INT(ms__search_fastest(search, peak - 1, 0, &choice), MS__NO_TICKS);
        int64_t counted = ms__search_peak(search, 0);
        CHECK(counted >= peak && counted <= peak + table[i].slack && counted % table[i].cell == 0);
        ms__arena_free(&arena);
    }
}

/* With this many units and lanes, options are stored for some of the units at a time. */
TEST(searches_in_blocks) {
    enum { N = 100 };
    static ms__chain_unit units[N];
    static int64_t between[N + 1];
    ms__chain chain = {.units = units, .gap_bytes = between, .n = N};
    memset(units, 0, sizeof units);
    for (int32_t i = 0; i < N; i++) {
        ms__option keep = {.held_bytes = 100 + i, .forward_bytes = 200, .backward_bytes = 200, .hide_slots = 1};
        ms__option away = keep;
        away.held_bytes = 10;
        away.copy_bytes = 90 + i;
        away.copy_slots = 2;
        away.extra_ns = 1;
        away.action = MS_ACTION_OFFLOAD;
        units[i] = (ms__chain_unit){.options = {keep, away}, .n_options = 2, .unit = i};
    }
    chain.link = (ms__link){.slot_ns = 10, .slot_bytes = 64, .mb_per_s = 1, .max_slots = 12};
    chain.host_limit_bytes = 8000;
    chain.host_level_bytes = 500;
    ms__arena arena = {0};
    ms__search *search = NULL;
    ms__grid grid;
    uint8_t first[N], again[N];
    CHECK_STATUS(ms__grid_make(&arena, &chain, MS__GRID_WAITS, &grid), MS_OK);
    CHECK_STATUS(ms__search_new(&arena, &chain, &grid, grid.max_ticks, &search), MS_OK);
    int64_t leanest = ms__search_leanest(search, grid.max_ticks, first);
    ms__value v = ms__chain_play(&chain, &grid, first);
    CHECK(v.is_valid && v.ticks == leanest && v.peak_bytes == ms__search_peak(search, leanest));
    for (int64_t ticks = 0; ticks <= leanest; ticks++) { /* back and forth through the blocks */
        int64_t peak = ms__search_peak(search, ticks), found = ms__search_fastest(search, peak, ticks, first);
        v = ms__chain_play(&chain, &grid, first);
        CHECK(found <= ticks && v.is_valid && v.ticks <= found && v.peak_bytes <= peak);
        CHECK_EQ_INT(ms__search_fastest(search, peak, grid.max_ticks, again), found);
        CHECK(memcmp(first, again, sizeof first) == 0);
    }
    ms__arena_free(&arena);
}

SUITE(search, CASE(searches_against_every_choice), CASE(searches_within_host_memory), CASE(the_fastest_by_hand),
      CASE(nothing_to_search), CASE(cells_of_large_chains), CASE(searches_in_blocks));
