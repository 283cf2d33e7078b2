/* sim_link.h - the link between device and host while a step runs: how copies queue up, are hidden and are waited for.
 *
 * What a unit offloads is copied out while later units run forward, and comes back while they run backward, so late
 * that it arrives just in time. So both ways look alike: after each unit a backlog of copies is left, in slots, which
 * later units work off; what is in the backlog is still, or already, on the device.
 *
 * The model was not measured yet, but for the share of a copy that is not hidden.
 */
#ifndef MS_SIM_LINK_H
#define MS_SIM_LINK_H

#include <stdbool.h>

#include <memscale/memscale.h>

typedef struct ms__link {
    int64_t slot_ns;    /* 0: there is no link */
    int64_t slot_bytes; /* that go one way in a slot */
    int64_t mb_per_s;   /* one way */
    int32_t max_slots;  /* of a backlog */
} ms__link;

/* Can this device copy both ways? */
bool ms__has_link(const ms_rates *rates);

/* What the link moves one way while the other may be busy. */
int64_t ms__link_mb_per_s(const ms_rates *rates);

/* For copies of at most `max_copy_bytes`. */
ms__link ms__link_make(const ms_rates *rates, int64_t max_copy_bytes);

/* A unit's copy in slots, rounded up, and the time that hides copies, rounded down. */
int32_t ms__link_copy_slots(const ms__link *link, int64_t n_bytes);
int32_t ms__link_hide_slots(const ms__link *link, int64_t ns);

/* What copies take from the units that hide them, since both use the same memory. */
int64_t ms__link_drag_ns(const ms__link *link, int64_t n_bytes);

/* How long it takes to wait for a number of slots, both ways. */
int64_t ms__link_wait_ns(const ms__link *link, int32_t slots);

/* What becomes of the backlog when a unit has run. */
typedef struct ms__link_step {
    int32_t backlog; /* that is left to later units */
    int32_t waited;  /* slots that the unit waited for, before the next one ran */
    bool is_over;    /* it had to wait although it was not asked to: the backlog was longer than the link allows. A
                      * simulation waits, and the search rules such a plan out, since another action waits openly */
} ms__link_step;

/* `hide` slots of the backlog are worked off, `copy` are added; with `waits` all of it is waited for. */
static inline ms__link_step ms__link_advance(const ms__link *link, int32_t backlog, int32_t hide, int32_t copy,
                                             bool waits) {
    int32_t left = (backlog > hide ? backlog - hide : 0) + copy;
    bool is_over = !waits && left > link->max_slots;
    bool must_wait = waits || is_over;
    return (ms__link_step){.backlog = must_wait ? 0 : left, .waited = must_wait ? left : 0, .is_over = is_over};
}

#endif
