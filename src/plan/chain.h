/* chain.h - a training step as the search sees it: a chain of units, each with a few options.
 *
 * A unit adds what it holds to the device between its forward and its backward. When unit i runs, forward or backward,
 * what the units before it hold and the link's backlog are on the device too; `forward_bytes` and `backward_bytes` are
 * what is allocated in addition. Between units that is `gap_bytes`. All of these are total sizes: they include
 * parameters, gradients and everything else that is allocated at that moment.
 *
 * Bytes are exact. Times are searched in ticks, rounded up; the length of a tick depends on the units, not on the
 * budget. A chain and its grids are immutable.
 */
#ifndef MS_PLAN_CHAIN_H
#define MS_PLAN_CHAIN_H

#include "../common/arena.h"
#include "../sim/sim_link.h"

typedef struct ms__option {
    int64_t held_bytes;
    int64_t forward_bytes, backward_bytes;
    int64_t copy_bytes; /* to host memory, and back */
    int64_t extra_ns;   /* beyond what keeping the unit takes */
    int32_t copy_slots, hide_slots;
    int32_t action;
    bool waits;
} ms__option;

typedef struct ms__chain_unit {
    ms__option options[MS_N_ACTIONS]; /* the first one keeps the unit */
    int32_t n_options;
    int32_t unit; /* of the profile */
} ms__chain_unit;

/* The times of a chain's options in ticks. */
typedef struct ms__grid {
    int64_t tick_ns;
    int32_t max_ticks;              /* no useful plan takes more */
    int32_t (*ticks)[MS_N_ACTIONS]; /* by position and option */
} ms__grid;

typedef enum ms__grid_kind {
    MS__GRID_FINE,  /* ticks are as short as plans that do not wait for the link allow */
    MS__GRID_WAITS, /* all options fit */
    MS__N_GRIDS
} ms__grid_kind;

typedef struct ms__chain {
    ms__chain_unit *units;
    int32_t n;
    int64_t *gap_bytes; /* [n + 1]: between units, while the first n units hold */
    int64_t base_ns;    /* of the step with every unit kept */
    ms__link link;
    int64_t host_limit_bytes;    /* for copies */
    int64_t most_copied_bytes;   /* if each unit copies as much as it can */
    int64_t host_level_bytes;    /* copies are counted in levels of it; 0: there is room for all of them */
    ms__grid grids[MS__N_GRIDS]; /* the second only where an option waits */
} ms__chain;

/* What a choice of options costs. */
typedef struct ms__value {
    int64_t peak_bytes;
    int64_t ticks;
    int64_t host_bytes;
    bool is_valid; /* copies fit in host memory, and no backlog is longer than the link allows */
} ms__value;

/* Play the chain: `choices` has an index into the options of each unit. */
ms__value ms__chain_play(const ms__chain *chain, const ms__grid *grid, const uint8_t *choices);

/* A lower bound of all peaks: every unit by itself does what takes the fewest bytes. */
int64_t ms__chain_least_peak(const ms__chain *chain);

/* How many levels of host memory a copy takes, and how many there are. */
int32_t ms__chain_copy_levels(const ms__chain *chain, int64_t copy_bytes);
int32_t ms__chain_host_levels(const ms__chain *chain);

/* Does any option copy, or wait for the link? */
bool ms__chain_has_copies(const ms__chain *chain);
bool ms__chain_has_waits(const ms__chain *chain);

/* A grid for a chain that has all its options. Its arrays belong to the arena. Errors: MS_E_NO_MEMORY. */
ms_status ms__grid_make(ms__arena *arena, const ms__chain *chain, ms__grid_kind kind, ms__grid *out);

/* How many ticks it takes to wait for a number of slots of the link. */
int32_t ms__grid_wait_ticks(const ms__grid *grid, const ms__link *link, int32_t slots);

/* The time of a step that takes `ticks` more than with every unit kept. */
int64_t ms__grid_step_ns(const ms__grid *grid, const ms__chain *chain, int64_t ticks);

/* ---- The search (search.c) ---- */

typedef struct ms__search ms__search; /* the least peaks of one chain, by time; belongs to an arena */

/* For plans of at most `max_ticks`. The chain and the grid are borrowed. Errors: MS_E_NO_MEMORY. */
ms_status ms__search_new(ms__arena *arena, const ms__chain *chain, const ms__grid *grid, int64_t max_ticks,
                         ms__search **out);

#define MS__NO_TICKS INT64_MAX

/* The least ticks of a plan whose peak is at most `limit_bytes` and that takes at most `max_ticks`; MS__NO_TICKS if
 * there is none, else the choices of the one with the least peak. The same ticks always have the same choices. */
int64_t ms__search_fastest(ms__search *search, int64_t limit_bytes, int64_t max_ticks, uint8_t *out_choices);

/* The ticks of the plan with the least peak that takes at most `max_ticks`, and of those the fastest; otherwise as
 * above. */
int64_t ms__search_leanest(ms__search *search, int64_t max_ticks, uint8_t *out_choices);

/* The least peak of plans that take at most `ticks`, with sizes rounded up to the cells of the search: at most
 * ms__search_slack() above the exact peak. */
int64_t ms__search_peak(const ms__search *search, int64_t ticks);
int64_t ms__search_slack(const ms__search *search);

#endif
