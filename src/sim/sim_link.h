/* sim_link.h - the link between device and host while a step runs: how copies queue up, are hidden and are waited for.
 *
 * What a unit offloads is copied out while later units run forward, and is copied back, just in time, while they run
 * backward. So both directions look the same: after each unit a backlog of copies is left, in slots, which later units
 * work off. In forward the backlog is still on the device, in backward it is there already.
 *
 * Only the share of a copy that is not hidden was measured; the rest of the model was not yet.
 */
#ifndef MS_SIM_LINK_H
#define MS_SIM_LINK_H

#include <stdbool.h>

#include <memscale/memscale.h>

/* One part in 24 of a copy is not hidden: on an H200, 1.6 GB out and back add 2.4 ms to a step of 290. */
#define MS__LINK_DRAG 24

typedef struct ms__link {
    int64_t slot_ns;    /* 0: there is no link */
    int64_t slot_bytes; /* copied in one direction in a slot */
    int64_t mb_per_s;   /* one way */
    int32_t max_slots;  /* of a backlog */
} ms__link;

/* Can this device copy both ways? */
bool ms__has_link(const ms_rates *rates);

/* The rate of the link in one direction while the other one may be busy. */
int64_t ms__link_mb_per_s(const ms_rates *rates);

/* For copies of at most `max_copy_bytes`. */
ms__link ms__link_make(const ms_rates *rates, int64_t max_copy_bytes);

/* A unit's copy in slots, rounded up, and the time that hides copies, rounded down. */
int32_t ms__link_copy_slots(const ms__link *link, int64_t n_bytes);
int32_t ms__link_hide_slots(const ms__link *link, int64_t ns);

/* The time that copies cost the units that hide them, since both use the same memory. */
int64_t ms__link_drag_ns(const ms__link *link, int64_t n_bytes);

/* How long it takes to wait for a number of slots, both ways. */
int64_t ms__link_wait_ns(const ms__link *link, int32_t slots);

/* The backlog after a unit has run. */
typedef struct ms__link_step {
    int32_t backlog; /* left to later units */
    int32_t waited;  /* slots that the unit waited for, before the next one ran */
    bool is_over;    /* the backlog was longer than the link allows, so the unit waited although its action does
                      * not. A simulation waits; the search rules such a plan out in favour of a blocking action */
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
