/* chains.h - chains of a few units, written by hand, for the tests of chains and of the search. */
#ifndef TESTS_CHAINS_H
#define TESTS_CHAINS_H

#include "plan/chain.h"
#include "runner.h"

#define MAX_UNITS 4

typedef struct small_chain {
    ms__chain chain;
    ms__chain_unit units[MAX_UNITS];
    int64_t between[MAX_UNITS + 1];
    int32_t ticks[MAX_UNITS][MS_N_ACTIONS];
} small_chain;

static inline void add_option(small_chain *s, int32_t unit, ms__option option) {
    ms__chain_unit *u = &s->units[unit];
    u->unit = unit;
    u->options[u->n_options++] = option;
}

static inline ms__chain *open_chain(small_chain *s, int32_t n) {
    s->chain.units = s->units;
    s->chain.gap_bytes = s->between;
    s->chain.n = n;
    return &s->chain;
}

/* A grid with ticks of a given length. */
static inline ms__grid grid_of(small_chain *s, int64_t tick_ns) {
    for (int32_t i = 0; i < MAX_UNITS; i++)
        for (int32_t o = 0; o < s->units[i].n_options; o++)
            s->ticks[i][o] = (int32_t)((s->units[i].options[o].extra_ns + tick_ns - 1) / tick_ns);
    return (ms__grid){.tick_ns = tick_ns, .max_ticks = 1000, .ticks = s->ticks};
}

enum { KEEP, RECOMPUTE, OFFLOAD, OFFLOAD_BLOCKING };

/* Two units, each kept or recomputed. */
static inline small_chain plain_chain(void) {
    small_chain s = {.between = {100, 120, 90}};
    add_option(&s, 0, (ms__option){.held_bytes = 50, .forward_bytes = 160, .backward_bytes = 170});
    add_option(&s, 0, (ms__option){.held_bytes = 10, .forward_bytes = 160, .backward_bytes = 175, .extra_ns = 30});
    add_option(&s, 1, (ms__option){.held_bytes = 40, .forward_bytes = 150, .backward_bytes = 140});
    add_option(&s, 1, (ms__option){.held_bytes = 5, .forward_bytes = 150, .backward_bytes = 165, .extra_ns = 20});
    return s;
}

#endif
