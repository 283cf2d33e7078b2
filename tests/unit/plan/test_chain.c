/* test_chain.c - chains of a few units: playing them by hand, ticks and levels, and searches against every choice. */
#include "plan/chain.h"

#include <string.h>

#include "runner.h"
#include "sim/roofline.h"

#define MAX_UNITS 4
#define KB 1024

typedef struct small {
    ms__chain chain;
    ms__chain_unit units[MAX_UNITS];
    int64_t between[MAX_UNITS + 1];
} small;

static void add(small *s, int32_t unit, ms__option option) {
    ms__chain_unit *u = &s->units[unit];
    u->unit = unit;
    u->options[u->n_options++] = option;
}

static ms__chain *open_chain(small *s, int32_t n) {
    s->chain.units = s->units;
    s->chain.gap_bytes = s->between;
    s->chain.n = n;
    return &s->chain;
}

static ms__value play(const ms__chain *chain, uint8_t a, uint8_t b) {
    return ms__chain_play(chain, (const uint8_t[MAX_UNITS]){a, b});
}

static void check_value(ms__value value, int64_t peak, int64_t ticks, int64_t host_bytes) {
    CHECK_EQ_INT(value.peak_bytes, peak);
    CHECK_EQ_INT(value.ticks, ticks);
    CHECK_EQ_INT(value.host_bytes, host_bytes);
    CHECK(value.is_valid);
}

enum { KEEP, RECOMPUTE, OFFLOAD, OFFLOAD_NOW };

/* Two units, each kept or recomputed. */
static small plain_chain(void) {
    small s = {.between = {100, 120, 90}};
    add(&s, 0, (ms__option){.held_bytes = 50, .forward_bytes = 160, .backward_bytes = 170});
    add(&s, 0, (ms__option){.held_bytes = 10, .forward_bytes = 160, .backward_bytes = 175, .extra_ns = 30, .ticks = 3});
    add(&s, 1, (ms__option){.held_bytes = 40, .forward_bytes = 150, .backward_bytes = 140});
    add(&s, 1, (ms__option){.held_bytes = 5, .forward_bytes = 150, .backward_bytes = 165, .extra_ns = 20, .ticks = 2});
    s.chain.tick_ns = 10;
    return s;
}

/* ---- Playing ---- */

TEST(units_kept_and_recomputed) {
    small s = plain_chain();
    const ms__chain *chain = open_chain(&s, 2);
    check_value(play(chain, KEEP, KEEP), 50 + 150, 0, 0);
    check_value(play(chain, RECOMPUTE, KEEP), 175, 3, 0); /* its own backward */
    check_value(play(chain, KEEP, RECOMPUTE), 50 + 165, 2, 0);
    check_value(play(chain, RECOMPUTE, RECOMPUTE), 10 + 165, 5, 0);
    s.between[0] = 1000;
    check_value(play(chain, KEEP, KEEP), 1000, 0, 0);
    s.between[0] = 0;
    s.between[1] = 300;
    check_value(play(chain, KEEP, KEEP), 50 + 300, 0, 0);
    s.between[2] = 300;
    check_value(play(chain, KEEP, KEEP), 90 + 300, 0, 0);
    check_value(play(chain, RECOMPUTE, RECOMPUTE), 15 + 300, 5, 0);
}

TEST(a_chain_of_nothing) {
    small s = {.between = {77}, .chain = {.tick_ns = 1}};
    check_value(ms__chain_play(open_chain(&s, 0), NULL), 77, 0, 0);
}

/* The first unit may copy 40 bytes, in five ticks; the second hides two of them. */
static small linked_chain(void) {
    small s = plain_chain();
    s.chain.link = (ms__link){.slot_ns = 10, .slot_bytes = 8, .max_slots = 12};
    ms__option away = {
        .forward_bytes = 160, .backward_bytes = 170, .copy_bytes = 40, .copy_slots = 5, .extra_ns = 10, .ticks = 1};
    add(&s, 0, away);
    away.waits = true;
    add(&s, 0, away);
    s.units[1].options[KEEP].hide_slots = 2;
    return s;
}

TEST(a_backlog_is_on_the_device) {
    small s = linked_chain();
    const ms__chain *chain = open_chain(&s, 2);
    check_value(play(chain, OFFLOAD, KEEP), 40 + 150, 1 + 6, 40); /* three ticks are left: 60 ns at the end */
    check_value(play(chain, OFFLOAD_NOW, KEEP), 170, 1 + 10, 40);
    s.units[1].options[KEEP].hide_slots = 12;
    check_value(play(chain, OFFLOAD, KEEP), 40 + 150, 1, 40);
    s.between[1] = 200; /* five ticks stand there, too */
    check_value(play(chain, OFFLOAD, KEEP), 40 + 200, 1, 40);
    check_value(play(chain, OFFLOAD_NOW, KEEP), 200, 11, 40);
    s.between[2] = 300;
    s.units[1].options[KEEP].hide_slots = 1;
    check_value(play(chain, OFFLOAD, KEEP), 40 + 32 + 300, 1 + 8, 40);
}

TEST(backlogs_have_an_end) {
    small s = {.chain = {.tick_ns = 10, .link = {.slot_ns = 10, .slot_bytes = 8, .max_slots = 12}}};
    const ms__option away = {.copy_bytes = 40, .copy_slots = 5};
    ms__option now = away;
    now.waits = true;
    for (int32_t i = 0; i < 3; i++) {
        add(&s, i, away);
        add(&s, i, now);
    }
    const ms__chain *chain = open_chain(&s, 3);
    CHECK(!ms__chain_play(chain, (const uint8_t[]){0, 0, 0}).is_valid); /* 15 ticks */
    check_value(ms__chain_play(chain, (const uint8_t[]){0, 0, 1}), 80, 30, 120);
    check_value(ms__chain_play(chain, (const uint8_t[]){1, 0, 0}), 80, 10 + 20, 120);
    s.units[1].options[0].hide_slots = 3;
    check_value(ms__chain_play(chain, (const uint8_t[]){0, 0, 0}), 96, 24, 120); /* 5 - 3 + 5 + 5 are 12 */
}

TEST(waits_in_ticks) {
    small s = linked_chain();
    ms__chain *chain = open_chain(&s, 2);
    chain->tick_ns = 7;
    static const int32_t wanted[] = {0, 3, 6, 9, 12}; /* 20 ns each, rounded up */
    for (int32_t backlog = 0; backlog < 5; backlog++)
        CHECK_EQ_INT(ms__chain_wait_ticks(chain, backlog), wanted[backlog]);
}

TEST(host_memory_in_levels) {
    small s = linked_chain();
    ms__chain *chain = open_chain(&s, 2);
    add(&s, 1, (ms__option){.copy_bytes = 55, .copy_slots = 7});
    CHECK_EQ_INT(ms__chain_copy_levels(chain, 1 << 30), 0); /* there is room for all */
    CHECK_EQ_INT(ms__chain_host_levels(chain), 1);
    chain->host_limit_bytes = 100;
    chain->host_level_bytes = 10;
    static const int64_t levels[][2] = {{0, 0}, {1, 1}, {10, 1}, {11, 2}, {40, 4}, {55, 6}};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        CHECK_EQ_INT(ms__chain_copy_levels(chain, levels[i][0]), levels[i][1]);
    CHECK_EQ_INT(ms__chain_host_levels(chain), 11);
    CHECK(play(chain, OFFLOAD, 2).is_valid); /* 4 and 6 */
    chain->host_limit_bytes = 99;
    CHECK(!play(chain, OFFLOAD, 2).is_valid);
    CHECK(play(chain, OFFLOAD, KEEP).is_valid && play(chain, KEEP, 2).is_valid);
    chain->host_limit_bytes = 0;
    CHECK(!play(chain, OFFLOAD, KEEP).is_valid && play(chain, KEEP, KEEP).is_valid);
    chain->host_limit_bytes = 1 << 20;
    CHECK_EQ_INT(ms__chain_host_levels(chain), 17);
}

/* ---- Ticks ---- */

TEST(ticks_are_rounded_up) {
    small s = plain_chain();
    ms__chain *chain = open_chain(&s, 2);
    ms__chain_set_ticks(chain, true);
    CHECK_EQ_INT(chain->tick_ns, 1);
    CHECK_EQ_INT(s.units[0].options[RECOMPUTE].ticks, 30);
    CHECK_EQ_INT(s.units[1].options[RECOMPUTE].ticks, 20);
    CHECK(chain->max_ticks >= 50);
    s.units[0].options[RECOMPUTE].extra_ns = 1000000;
    s.units[1].options[RECOMPUTE].extra_ns = 2000000;
    ms__chain_set_ticks(chain, true);
    CHECK_EQ_INT(chain->tick_ns, 3000000 / 8192 + 1);
    CHECK_EQ_INT(s.units[0].options[RECOMPUTE].ticks, 2725); /* 2724.8 */
    CHECK_EQ_INT(s.units[1].options[RECOMPUTE].ticks, 5450); /* 5449.6 */
    CHECK_EQ_INT(s.units[0].options[KEEP].ticks, 0);
    CHECK(chain->max_ticks >= 2725 + 5450 && chain->max_ticks <= 8192 + 2);
}

/* Ticks without waits are finer; either way those that count have room. */
TEST(ticks_with_and_without_waits) {
    small s = linked_chain();
    ms__chain *chain = open_chain(&s, 2);
    chain->link.slot_ns = 100000;
    CHECK(ms__chain_has_waits(chain));
    ms__chain_set_ticks(chain, false); /* 2 x 12 x 100000 for what is left at the end, and 30 + 20 */
    CHECK_EQ_INT(chain->tick_ns, 2400050 / 1024 + 1);
    CHECK(play(chain, OFFLOAD, KEEP).ticks <= chain->max_ticks);
    ms__chain_set_ticks(chain, true); /* the first unit's wait may be for twice as much */
    CHECK_EQ_INT(chain->tick_ns, (2400000 + 4800010 + 20) / 1024 + 1);
    CHECK(play(chain, OFFLOAD_NOW, RECOMPUTE).ticks <= chain->max_ticks);
    s.units[0].n_options = 3;
    CHECK(!ms__chain_has_waits(chain));
}

TEST(ticks_of_endless_times) {
    small s = plain_chain();
    ms__chain *chain = open_chain(&s, 2);
    s.units[0].options[RECOMPUTE].extra_ns = s.units[1].options[RECOMPUTE].extra_ns = MS__MAX_NS;
    ms__chain_set_ticks(chain, true);
    CHECK(chain->tick_ns > 0 && chain->max_ticks > 0);
    CHECK(play(chain, RECOMPUTE, RECOMPUTE).ticks <= chain->max_ticks);
}

/* ---- Searching ---- */

/* The chain of four that is searched. */
typedef struct searched {
    small s;
    ms__arena arena;
    ms__search *search;
} searched;

static uint32_t next_random(uint32_t *state) { return (*state = *state * 1664525U + 1013904223U) >> 8; }

static int64_t some_bytes(uint32_t *state, uint32_t n) { return (int64_t)(next_random(state) % (n * KB)); }

/* Each unit may be kept, recomputed, offloaded, and offloaded with a wait. */
static void random_unit(small *s, int32_t unit, uint32_t *random) {
    const int64_t saved = KB + some_bytes(random, 20), whole = saved + KB * 40 + some_bytes(random, 8);
    const int32_t hide = (int32_t)(next_random(random) % 6), ticks = 1 + (int32_t)(next_random(random) % 20);
    ms__option option = {.held_bytes = saved, .forward_bytes = whole, .backward_bytes = whole, .hide_slots = hide};
    add(s, unit, option);
    option.held_bytes = saved / 8;
    option.extra_ns = ticks;
    option.action = MS_ACTION_RECOMPUTE;
    add(s, unit, option);
    option.held_bytes = some_bytes(random, 2);
    option.copy_bytes = saved - option.held_bytes;
    option.copy_slots = (int32_t)(option.copy_bytes / (4 * KB)) + 1;
    option.extra_ns = 1;
    option.action = MS_ACTION_OFFLOAD;
    add(s, unit, option);
    option.action = MS_ACTION_OFFLOAD_BLOCKING;
    option.waits = true;
    add(s, unit, option);
}

static void open_search(searched *x, uint32_t seed, int64_t host_limit_bytes) {
    *x = (searched){0};
    for (int32_t i = 0; i < MAX_UNITS; i++) random_unit(&x->s, i, &seed);
    for (int32_t i = 0; i <= MAX_UNITS; i++) x->s.between[i] = KB * 38 + some_bytes(&seed, 12);
    ms__chain *chain = open_chain(&x->s, MAX_UNITS);
    chain->link = (ms__link){.slot_ns = 3, .slot_bytes = 4 * KB, .mb_per_s = 1, .max_slots = 12};
    chain->host_limit_bytes = host_limit_bytes;
    chain->host_level_bytes = host_limit_bytes == 0 ? 0 : 5 * KB;
    ms__chain_set_ticks(chain, true);
    CHECK_EQ_INT(chain->tick_ns, 1);
    CHECK_STATUS(ms__search_new(&x->arena, chain, chain->max_ticks, &x->search), MS_OK);
    CHECK_EQ_INT(ms__search_slack(x->search), 0);
}

static void choices_of(int number, uint8_t choices[MAX_UNITS]) {
    for (int i = 0; i < MAX_UNITS; i++, number /= 4) choices[i] = (uint8_t)(number % 4);
}

/* By trying all 256 of them: the least ticks within a limit, and the least peak within a time. */
static int64_t least_ticks(const ms__chain *chain, int64_t limit_bytes, int64_t max_ticks) {
    int64_t least = MS__NO_TICKS;
    for (int number = 0; number < 256; number++) {
        uint8_t choices[MAX_UNITS];
        choices_of(number, choices);
        ms__value v = ms__chain_play(chain, choices);
        if (v.is_valid && v.peak_bytes <= limit_bytes && v.ticks <= max_ticks && v.ticks < least) least = v.ticks;
    }
    return least;
}

static int64_t least_peak(const ms__chain *chain, int64_t max_ticks) {
    int64_t least = INT64_MAX;
    for (int number = 0; number < 256; number++) {
        uint8_t choices[MAX_UNITS];
        choices_of(number, choices);
        ms__value v = ms__chain_play(chain, choices);
        if (v.is_valid && v.ticks <= max_ticks && v.peak_bytes < least) least = v.peak_bytes;
    }
    return least;
}

static void check_searches(searched *x) {
    const ms__chain *chain = &x->s.chain;
    uint8_t choices[MAX_UNITS] = {0};
    int64_t highest = ms__chain_play(chain, choices).peak_bytes, longest = chain->max_ticks;
    for (int64_t limit = KB * 30; limit <= highest + KB; limit += 777) {
        for (int64_t max_ticks = longest; max_ticks >= 4; max_ticks /= 4) {
            int64_t wanted = least_ticks(chain, limit, max_ticks);
            CHECK_EQ_INT(ms__search_fastest(x->search, limit, max_ticks, choices), wanted);
            if (wanted == MS__NO_TICKS) continue;
            ms__value v = ms__chain_play(chain, choices);
            CHECK(v.is_valid && v.peak_bytes <= limit && v.ticks == wanted);
        }
    }
    for (int64_t max_ticks = 0; max_ticks <= longest; max_ticks += 1 + max_ticks / 4) {
        int64_t ticks = ms__search_leanest(x->search, max_ticks, choices);
        ms__value v = ms__chain_play(chain, choices);
        CHECK(v.is_valid && v.ticks == ticks && ticks <= max_ticks);
        CHECK_EQ_INT(v.peak_bytes, least_peak(chain, max_ticks));
        CHECK_EQ_INT(v.peak_bytes, ms__search_peak(x->search, ticks));
        CHECK_EQ_INT(v.peak_bytes, ms__search_peak(x->search, max_ticks));
        CHECK_EQ_INT(v.ticks, least_ticks(chain, v.peak_bytes, max_ticks));
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
    small s = plain_chain();
    ms__chain *chain = open_chain(&s, 2);
    ms__arena arena = {0};
    ms__search *search = NULL;
    uint8_t choices[2] = {0};
    ms__chain_set_ticks(chain, true);
    CHECK_STATUS(ms__search_new(&arena, chain, 1000, &search), MS_OK);
    check_choices(search, 200, 0, KEEP, KEEP);
    check_choices(search, INT64_MAX / 8, 0, KEEP, KEEP);
    check_choices(search, 199, 30, RECOMPUTE, KEEP); /* the second one's backward would be higher still */
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
    ms__arena_free(&arena);
    CHECK_STATUS(ms__search_new(&arena, chain, 29, &search), MS_OK); /* not made for more */
    CHECK_EQ_INT(ms__search_fastest(search, 199, 1000, choices), MS__NO_TICKS);
    CHECK_EQ_INT(ms__search_leanest(search, 1000, choices), 0);
    ms__arena_free(&arena);
}

TEST(nothing_to_search) {
    small s = {.between = {77 * KB}};
    ms__chain *chain = open_chain(&s, 0);
    ms__arena arena = {0};
    ms__search *search = NULL;
    uint8_t none = 0;
    ms__chain_set_ticks(chain, true);
    CHECK_STATUS(ms__search_new(&arena, chain, 0, &search), MS_OK);
    CHECK_EQ_INT(ms__search_fastest(search, 77 * KB, 0, &none), 0);
    CHECK_EQ_INT(ms__search_fastest(search, 77 * KB - 1, 0, &none), MS__NO_TICKS);
    CHECK_EQ_INT(ms__search_leanest(search, 0, &none), 0);
    ms__arena_free(&arena);
}

/* Sizes are counted in cells of which a plan has less than 2^25: a byte here, and 4096 of them for 80 GiB. */
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
        small s = {.between = {table[i].resident, table[i].resident}};
        int64_t peak = table[i].resident + table[i].saved;
        uint8_t choice = 9;
        add(&s, 0, (ms__option){.held_bytes = table[i].saved, .forward_bytes = peak, .backward_bytes = peak});
        ms__chain *chain = open_chain(&s, 1);
        ms__arena arena = {0};
        ms__search *search = NULL;
        ms__chain_set_ticks(chain, true);
        CHECK_STATUS(ms__search_new(&arena, chain, 0, &search), MS_OK);
        CHECK_EQ_INT(ms__search_slack(search), table[i].slack);
        CHECK_EQ_INT(ms__search_fastest(search, peak + table[i].slack, 0, &choice), 0);
        CHECK_EQ_INT(choice, 0);
        CHECK_EQ_INT(ms__search_fastest(search, peak - 1, 0, &choice), MS__NO_TICKS);
        int64_t counted = ms__search_peak(search, 0);
        CHECK(counted >= peak && counted <= peak + table[i].slack && counted % table[i].cell == 0);
        ms__arena_free(&arena);
    }
}

/* So many units with so many states that options are remembered for some of them at a time. */
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
    ms__chain_set_ticks(&chain, true);
    ms__arena arena = {0};
    ms__search *search = NULL;
    uint8_t first[N], again[N];
    CHECK_STATUS(ms__search_new(&arena, &chain, chain.max_ticks, &search), MS_OK);
    int64_t leanest = ms__search_leanest(search, chain.max_ticks, first);
    ms__value v = ms__chain_play(&chain, first);
    CHECK(v.is_valid && v.ticks == leanest && v.peak_bytes == ms__search_peak(search, leanest));
    for (int64_t ticks = 0; ticks <= leanest; ticks++) { /* back and forth through the blocks */
        int64_t peak = ms__search_peak(search, ticks), found = ms__search_fastest(search, peak, ticks, first);
        v = ms__chain_play(&chain, first);
        CHECK(found <= ticks && v.is_valid && v.ticks <= found && v.peak_bytes <= peak);
        CHECK_EQ_INT(ms__search_fastest(search, peak, chain.max_ticks, again), found);
        CHECK(memcmp(first, again, sizeof first) == 0);
    }
    ms__arena_free(&arena);
}

SUITE(chain, CASE(units_kept_and_recomputed), CASE(a_chain_of_nothing), CASE(a_backlog_is_on_the_device),
      CASE(backlogs_have_an_end), CASE(waits_in_ticks), CASE(host_memory_in_levels), CASE(ticks_are_rounded_up),
      CASE(ticks_with_and_without_waits), CASE(ticks_of_endless_times), CASE(searches_against_every_choice),
      CASE(searches_within_host_memory), CASE(the_fastest_by_hand), CASE(nothing_to_search),
      CASE(cells_of_large_chains), CASE(searches_in_blocks));
