/* chain.h - a training step as the search sees it: a chain of units, each with a few options.
 *
 * A unit adds what it holds to the device between its forward and its backward. When unit i runs, forward or backward,
 * the units before it hold and the link's backlog behind them is on the device too; `forward_bytes` and
 * `backward_bytes` are what there is beside. Between units it is `gap_bytes`. All of these are whole sizes:
 * parameters, gradients and whatever else is there at that moment included.
 *
 * Bytes are exact. Times are ticks, rounded up, of a length that the units give and no budget changes.
 */
#ifndef MS_PLAN_CHAIN_H
#define MS_PLAN_CHAIN_H

#include "../sim/actions.h"

typedef struct ms__option {
    int64_t held_bytes;
    int64_t forward_bytes, backward_bytes;
    int64_t copy_bytes; /* to host memory, and back */
    int64_t extra_ns;   /* beyond what keeping the unit takes */
    int32_t ticks;      /* the same in ticks */
    int32_t copy_slots, hide_slots;
    int32_t action;
    bool waits;
} ms__option;

typedef struct ms__chain_unit {
    ms__option options[MS_N_ACTIONS]; /* the first keeps */
    int32_t n_options;
    int32_t unit; /* of the profile */
} ms__chain_unit;

typedef struct ms__chain {
    ms__chain_unit *units;
    int32_t n;
    int64_t *gap_bytes; /* [n + 1]: between units, while the first so many hold */
    int64_t base_ns;    /* of the step with every unit kept */
    int64_t tick_ns;
    ms__link link;
    int64_t host_limit_bytes; /* for copies */
    int64_t host_level_bytes; /* copies are counted in levels of it; 0: there is room for all of them */
    int32_t max_ticks;        /* no plan that is of use takes more */
} ms__chain;

/* What choices of options come to. */
typedef struct ms__value {
    int64_t peak_bytes;
    int64_t ticks;
    int64_t host_bytes;
    bool is_valid; /* it is within the host's memory, and its backlogs within the link's */
} ms__value;

/* Play the chain: `choices` has an index into the options of each unit. */
ms__value ms__chain_play(const ms__chain *chain, const uint8_t *choices);

/* What no plan is below: every unit does what is least, each for itself. */
int64_t ms__chain_least_peak(const ms__chain *chain);

/* Ticks that waiting for a backlog takes. */
int32_t ms__chain_wait_ticks(const ms__chain *chain, int32_t backlog);

/* Levels of host memory that a copy takes, and that there are. */
int32_t ms__chain_copy_levels(const ms__chain *chain, int64_t copy_bytes);
int32_t ms__chain_host_levels(const ms__chain *chain);

/* Does any option copy, or wait for the link? */
bool ms__chain_has_copies(const ms__chain *chain);
bool ms__chain_has_waits(const ms__chain *chain);

/* Choose the length of a tick, and count options in ticks: so that all options fit, or, with `waits` false, those that
 * do not wait. */
void ms__chain_set_ticks(ms__chain *chain, bool waits);

/* ---- The search (search.c) ---- */

typedef struct ms__search ms__search; /* the least peaks of one chain, by time; belongs to an arena */

/* For plans of at most `max_ticks`. The chain is borrowed, ticks are set. Errors: MS_E_NO_MEMORY. */
ms_status ms__search_new(ms__arena *arena, const ms__chain *chain, int64_t max_ticks, ms__search **out);

#define MS__NO_TICKS INT64_MAX

/* The least ticks of a plan whose peak is at most `limit_bytes` and that takes at most `max_ticks`; MS__NO_TICKS if
 * there is none, else the choices of the one with the least peak. The same ticks always have the same choices. */
int64_t ms__search_fastest(ms__search *search, int64_t limit_bytes, int64_t max_ticks, uint8_t *out_choices);

/* The ticks of the plan with the least peak that takes at most `max_ticks`, and of those the fastest; likewise. */
int64_t ms__search_leanest(ms__search *search, int64_t max_ticks, uint8_t *out_choices);

/* The least peak of plans that take at most so many ticks, with sizes rounded up to cells: at most ms__search_slack()
 * more than it is. */
int64_t ms__search_peak(const ms__search *search, int64_t ticks);
int64_t ms__search_slack(const ms__search *search);

#endif
