/* chain_prop.c - compares the search with all possible plans, on random chains.
 *
 *   memscale_chain_prop           MEMSCALE_PROP_N chains (500) of 5 units with ten options, and of 8 with three
 *   memscale_chain_prop --write   20 chains of 24 units with what was found, as lines of JSON, for an integer program
 *                                 (tests/python/test_plan_milp.py)
 */
#include <stdio.h>
#include <string.h>

#include "plan/chain.h"
#include "random.h"

#define MAX_UNITS 400
#define WRITTEN_UNITS 24
#define MAX_TICKS 1024
#define N_WRITTEN 20
#define N_LIMITS 4
#define NONE INT64_MAX

typedef struct problem {
    ms__chain chain;
    ms__chain_unit units[MAX_UNITS];
    int64_t between[MAX_UNITS + 1];
    int32_t ticks[MAX_UNITS][MS_N_ACTIONS];
    ms__grid grid;
    int64_t step; /* sizes are multiples of it */
} problem;

static int64_t n_chains(void) { return setting("MEMSCALE_PROP_N", 500); }

/* ---- Random chains ---- */

static int64_t some_bytes(const problem *p, int64_t most) { return up_to(most) * p->step; }

static ms__option random_option(const problem *p, bool first, int32_t *out_ticks) {
    ms__option o = {.held_bytes = one_in(10) ? -some_bytes(p, 3) : some_bytes(p, 40)};
    o.forward_bytes = some_bytes(p, 60);
    o.backward_bytes = some_bytes(p, 60);
    o.hide_slots = (int32_t)up_to(4);
    if (first) return o;
    *out_ticks = (int32_t)up_to(12);
    if (!one_in(3) || p->chain.link.slot_ns == 0) return o;
    o.copy_bytes = some_bytes(p, 40);
    o.copy_slots = (int32_t)up_to(6);
    if (o.copy_bytes == 0) o.copy_slots = 0; /* copying nothing takes no time */
    o.waits = one_in(2);
    return o;
}

static void random_chain(problem *p, int32_t n, int32_t n_options) {
    memset(p, 0, sizeof *p);
    p->step = one_in(3) ? 1 : one_in(2) ? 512 : (int64_t)1 << 30;
    p->chain = (ms__chain){.units = p->units, .n = n, .gap_bytes = p->between};
    p->grid = (ms__grid){.tick_ns = 1 + up_to(20), .ticks = p->ticks};
    if (!one_in(4)) {
        p->chain.link = (ms__link){.slot_ns = 1 + up_to(30)};
        p->chain.link.slot_bytes = some_bytes(p, 8);
        p->chain.link.max_slots = (int32_t)(3 + up_to(9));
    }
    p->chain.host_limit_bytes = some_bytes(p, 40 * n);
    if (one_in(2)) p->chain.host_level_bytes = p->step * (1 + up_to(30));
    for (int32_t i = 0; i < n; i++) {
        p->units[i].unit = i;
        p->units[i].n_options = n_options;
        for (int32_t o = 0; o < n_options; o++) p->units[i].options[o] = random_option(p, o == 0, &p->ticks[i][o]);
    }
    for (int32_t i = 0; i <= n; i++) p->between[i] = some_bytes(p, 30);
    p->grid.max_ticks = (int32_t)(one_in(4) ? up_to(40) : 500);
}

/* ---- All plans ---- */

/* `least[n]` gets the least peak of all plans that take at most n ticks, NONE if there are none. */
static void try_all(const problem *p, int64_t least[MAX_TICKS]) {
    const ms__chain *chain = &p->chain;
    uint8_t choices[MAX_UNITS] = {0};
    for (int64_t t = 0; t < MAX_TICKS; t++) least[t] = NONE;
    int32_t i;
    do {
        ms__value value = ms__chain_play(chain, &p->grid, choices);
        bool counts = value.is_valid && value.ticks < MAX_TICKS;
        if (counts && value.peak_bytes < least[value.ticks]) least[value.ticks] = value.peak_bytes;
        for (i = 0; i < chain->n && ++choices[i] == chain->units[i].n_options; i++) choices[i] = 0;
    } while (i < chain->n);
    for (int64_t t = 1; t < MAX_TICKS; t++)
        if (least[t - 1] < least[t]) least[t] = least[t - 1];
}

static void check_found(const problem *p, const uint8_t *choices, int64_t ticks, int64_t peak) {
    ms__value value = ms__chain_play(&p->chain, &p->grid, choices);
    LAW(value.is_valid && value.ticks == ticks && value.peak_bytes == peak);
}

static void check_limit(const problem *p, ms__search *search, const int64_t *least, int64_t limit, int64_t max_ticks) {
    uint8_t choices[MAX_UNITS];
    int64_t ticks = ms__search_fastest(search, limit, max_ticks, choices), wanted = 0;
    if (max_ticks > p->grid.max_ticks) max_ticks = p->grid.max_ticks;
    while (wanted <= max_ticks && least[wanted] > limit) wanted++;
    LAW(ticks == (wanted > max_ticks ? MS__NO_TICKS : wanted));
    if (ticks != MS__NO_TICKS) check_found(p, choices, ticks, least[ticks]);
}

static void check_chain(const problem *p) {
    static int64_t least[MAX_TICKS];
    uint8_t choices[MAX_UNITS];
    ms__arena arena = {0};
    ms__search *search = NULL;
    try_all(p, least);
    CHECK_STATUS(ms__search_new(&arena, &p->chain, &p->grid, p->grid.max_ticks, &search), MS_OK);
    LAW(ms__search_slack(search) == 0);
    for (int64_t max = 0; max <= p->grid.max_ticks + 1; max++) {
        int64_t ticks = ms__search_leanest(search, max, choices), wanted = max;
        if (wanted > p->grid.max_ticks) wanted = p->grid.max_ticks;
        while (wanted > 0 && least[wanted - 1] == least[wanted]) wanted--;
        LAW(ticks == (least[wanted] == NONE ? MS__NO_TICKS : wanted));
        if (ticks == MS__NO_TICKS) continue;
        check_found(p, choices, ticks, least[ticks]);
        LAW(ms__search_peak(search, ticks) == least[ticks]);
        for (int64_t d = -1; d <= 1; d++) check_limit(p, search, least, least[ticks] + d, up_to(600));
    }
    for (int i = 0; i < 8; i++) check_limit(p, search, least, some_bytes(p, 400), up_to(600));
    ms__arena_free(&arena);
}

TEST(five_units_with_every_option) {
    static problem p;
    for (int64_t i = 0; i < n_chains(); i++) {
        start_case(i);
        random_chain(&p, 5, MS_N_ACTIONS);
        check_chain(&p);
    }
}

TEST(eight_units_with_three_options) {
    static problem p;
    for (int64_t i = 0; i < n_chains(); i++) {
        start_case(i);
        random_chain(&p, 8, 3);
        check_chain(&p);
    }
}

TEST(few_units) {
    static problem p;
    for (int64_t i = 0; i < n_chains(); i++) {
        start_case(i);
        random_chain(&p, (int32_t)up_to(3), 1 + (int32_t)up_to(MS_N_ACTIONS - 1));
        check_chain(&p);
    }
}

/* Sizes that are no multiples of cells are rounded up, by no more than ms__search_slack(). */
TEST(off_the_grid) {
    static problem p;
    static int64_t least[MAX_TICKS];
    for (int64_t i = 0; i < n_chains(); i++) {
        start_case(i);
        random_chain(&p, 5, 4);
        int64_t step = (int64_t)1 << (20 + up_to(15));
        for (int32_t u = 0; u < p.chain.n; u++) {
            p.between[u] = up_to(30 * step);
            for (int32_t o = 0; o < p.units[u].n_options; o++) {
                p.units[u].options[o].held_bytes = up_to(40 * step);
                p.units[u].options[o].backward_bytes = up_to(60 * step);
            }
        }
        ms__arena arena = {0};
        ms__search *search = NULL;
        try_all(&p, least);
        CHECK_STATUS(ms__search_new(&arena, &p.chain, &p.grid, p.grid.max_ticks, &search), MS_OK);
        for (int64_t t = 0; t <= p.grid.max_ticks; t++) {
            if (least[t] == NONE) continue;
            int64_t over = ms__search_peak(search, t) - least[t];
            LAW(over >= 0 && over <= ms__search_slack(search) && over <= least[t] / 1000 + 8);
        }
        ms__arena_free(&arena);
    }
}

/* With this many lanes, options are stored for some units at a time: choices must have the ticks and peak that were
 * found. */
TEST(many_units) {
    static problem p;
    uint8_t choices[MAX_UNITS];
    for (int64_t i = 0; i < n_chains() / 500; i++) {
        start_case(i);
        random_chain(&p, MAX_UNITS, MS_N_ACTIONS);
        p.chain.link = (ms__link){.slot_ns = 1, .slot_bytes = p.step, .max_slots = 12};
        p.chain.host_limit_bytes = 300 * p.step;
        p.chain.host_level_bytes = 10 * p.step;
        p.grid.max_ticks = 1000;
        for (int32_t u = 0; u < p.chain.n; u++) {
            p.units[u].options[9] = (ms__option){.copy_bytes = p.step, .copy_slots = 1, .waits = u % 2 == 0};
            p.ticks[u][9] = 0;
        }
        ms__arena arena = {0};
        ms__search *search = NULL;
        CHECK_STATUS(ms__search_new(&arena, &p.chain, &p.grid, p.grid.max_ticks, &search), MS_OK);
        for (int64_t max = p.grid.max_ticks; max >= 0; max -= 200 + up_to(200)) {
            int64_t ticks = ms__search_leanest(search, max, choices);
            if (ticks == MS__NO_TICKS) break;
            ms__value value = ms__chain_play(&p.chain, &p.grid, choices);
            LAW(value.is_valid && value.ticks == ticks);
            int64_t over = ms__search_peak(search, ticks) - value.peak_bytes;
            LAW(over >= 0 && over <= ms__search_slack(search));
        }
        ms__arena_free(&arena);
    }
}

/* ---- For an integer program ---- */

/* A chain as in real profiles. Each copy is waited for at once, so that its time is known. */
static void written_chain(ms__arena *arena, problem *p, bool copies) {
    memset(p, 0, sizeof *p);
    p->step = 4096;
    p->chain = (ms__chain){.units = p->units, .n = WRITTEN_UNITS, .gap_bytes = p->between};
    if (copies) p->chain.link = (ms__link){.slot_ns = 20000, .slot_bytes = 200 * p->step, .max_slots = 12};
    p->chain.host_limit_bytes = INT64_MAX / 4;
    for (int32_t i = 0; i < WRITTEN_UNITS; i++) {
        ms__chain_unit *unit = &p->units[i];
        int64_t forward_ns = 50000 + up_to(400000), held = some_bytes(p, 1200), others = some_bytes(p, 500);
        p->chain.base_ns += 3 * forward_ns;
        unit->n_options = 3 + (int32_t)up_to(copies ? 6 : 4);
        for (int32_t o = 0; o < unit->n_options; o++) {
            ms__option *option = &unit->options[o];
            int64_t ppm = o == 0 ? 1000000 : up_to(1000000); /* of it stays */
            option->held_bytes = held * ppm / 1000000 / p->step * p->step;
            option->forward_bytes = held + others;
            option->backward_bytes = held + others + some_bytes(p, 300);
            option->extra_ns = o == 0 ? 0 : forward_ns * (1100000 - ppm) / 1000000 + up_to(20000);
            if (!copies || o < 4) continue;
            option->copy_bytes = held - option->held_bytes;
            option->copy_slots = (int32_t)(option->copy_bytes / p->chain.link.slot_bytes + 1);
            option->extra_ns /= 8;
            option->waits = true;
        }
    }
    for (int32_t i = 0; i <= WRITTEN_UNITS; i++) p->between[i] = some_bytes(p, 800);
    CHECK_STATUS(ms__grid_make(arena, &p->chain, MS__GRID_WAITS, &p->grid), MS_OK);
}

/* The time with the wait for its own copy. */
static int64_t whole_ns(const ms__chain *chain, const ms__option *o) {
    return o->extra_ns + 2 * o->copy_slots * chain->link.slot_ns;
}

static void write_found(const problem *p, ms__search *search, int64_t limit, const char *before) {
    uint8_t choices[MAX_UNITS];
    int64_t ns = 0, ticks = ms__search_fastest(search, limit, p->grid.max_ticks, choices);
    CHECK(ticks != MS__NO_TICKS);
    for (int32_t i = 0; i < p->chain.n; i++) ns += whole_ns(&p->chain, &p->units[i].options[choices[i]]);
    printf("%s{\"limit\": %lld, \"ns\": %lld, \"counted_ns\": %lld}", before, (long long)limit, (long long)ns,
           (long long)(ticks * p->grid.tick_ns));
}

static void write_chain(const problem *p) {
    uint8_t choices[MAX_UNITS] = {0};
    ms__arena arena = {0};
    ms__search *search = NULL;
    CHECK_STATUS(ms__search_new(&arena, &p->chain, &p->grid, p->grid.max_ticks, &search), MS_OK);
    int64_t high = ms__chain_play(&p->chain, &p->grid, choices).peak_bytes;
    int64_t low = ms__search_peak(search, ms__search_leanest(search, p->grid.max_ticks, choices));
    printf("{\"base_ns\": %lld, \"between\": [", (long long)p->chain.base_ns);
    for (int32_t i = 0; i <= p->chain.n; i++) printf("%s%lld", i == 0 ? "" : ", ", (long long)p->between[i]);
    printf("], \"units\": [");
    for (int32_t i = 0; i < p->chain.n; i++) {
        printf("%s[", i == 0 ? "" : ", ");
        for (int32_t o = 0; o < p->units[i].n_options; o++) {
            const ms__option *option = &p->units[i].options[o];
            int64_t peak =
                option->forward_bytes > option->backward_bytes ? option->forward_bytes : option->backward_bytes;
            printf("%s[%lld, %lld, %lld]", o == 0 ? "" : ", ", (long long)option->held_bytes, (long long)peak,
                   (long long)whole_ns(&p->chain, option));
        }
        printf("]");
    }
    printf("], \"found\": [");
    for (int64_t k = 0; k < N_LIMITS; k++)
        write_found(p, search, low + (high - low) * k / N_LIMITS, k == 0 ? "" : ", ");
    printf("]}\n");
    ms__arena_free(&arena);
}

SUITE(chain_prop, CASE(five_units_with_every_option), CASE(eight_units_with_three_options), CASE(few_units),
      CASE(off_the_grid), CASE(many_units));

int main(int argc, char **argv) {
    static const test_suite *const suites[] = {&chain_prop_suite};
    static problem p;
    if (argc == 2 && strcmp(argv[1], "--write") == 0) {
        for (int64_t i = 0; i < N_WRITTEN; i++) {
            start_case(i);
            ms__arena arena = {0};
            written_chain(&arena, &p, i % 2 == 1);
            write_chain(&p);
            ms__arena_free(&arena);
        }
        return 0;
    }
    return test_main(suites, 1, 0, argc, argv);
}
