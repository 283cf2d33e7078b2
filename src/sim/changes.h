/* changes.h - what actions change in the events of a step: results that are kept, and tensors that leave the device.
 *
 * A step has two variants of each unit. Other actions run one of them with changes, and these follow from the events:
 *
 *   Kept results (of the recomputed variant). The n-th operation of a unit's recomputation is the n-th of its forward.
 *   Where both are part of a function whose result may be kept (MS__OP_IN_...), the second need not run; what it would
 *   allocate is there already, held since forward.
 *
 *   Offloading (of the plain and of the pointwise variant). What a visit to a unit saves for backward, and nobody else
 * holds, leaves the device when some more units have run, and comes back some units before backward needs it
 * (schedule.h). Casts of parameters, which the variants hold until autocast ends, are dropped there, and made again
 * when they are needed.
 *
 *   Offloaded inputs (of the recomputed variant). The same for the inputs that one visit alone holds (MS__HOLD), where
 *   the plan releases them in its backward.
 *
 * So a simulation of these actions plays the same requests as the executor makes (play_changes.c).
 */
#ifndef MS_SIM_CHANGES_H
#define MS_SIM_CHANGES_H

#include "../common/arena.h"
#include "../profile/step.h"

#define MS__NOBODY (-1)
#define MS__HOST_ALIGN 512 /* of tensors in host memory */

/* What one unit could change. */
typedef struct ms__unit_changes {
    int64_t kept_bytes[MS_KEEP_ALL + 1]; /* by enum ms_keep: held from forward on */
    int64_t n_kept[MS_KEEP_ALL + 1];     /* results, by the same */
    int64_t n_runs;                      /* recomputations */
    int64_t n_saved;                     /* tensors that autograd saves of one of them */
    int64_t moved_bytes;                 /* to the host and back: what it saves */
    int64_t rest_bytes;                  /* the same of its pointwise variant */
    int64_t input_bytes;                 /* the same of its inputs */
    int64_t dropped_bytes;               /* casts that backward makes again */
    int64_t largest_pointwise;           /* the largest tensor that its pointwise variant alone does not hold */
} ms__unit_changes;

/* Keys that leave and come back together. */
typedef struct ms__copied {
    uint32_t first, n; /* in `moved` of its variant */
    int64_t n_bytes;   /* on the host */
} ms__copied;

/* One run of a unit's forward, and its backward. */
typedef struct ms__visit {
    int32_t unit;
    int32_t forward, backward;        /* segments */
    ms__copied moved[MS__N_VARIANTS]; /* by the variant of the unit: what it saves; of the recomputed one its inputs */
} ms__visit;

typedef struct ms__changes {
    ms__unit_changes *units;
    /* Kept results. */
    uint8_t *spared;      /* event -> enum ms_keep: it does not happen if its unit keeps that */
    uint8_t *kept;        /* key -> enum ms_keep: held beyond its release, if its unit keeps that */
    int32_t *maker;       /* key -> the unit whose forward allocates it, or MS__NOBODY */
    int32_t *first_after; /* key -> the first kept key that goes when it is released, or MS__NOBODY */
    int32_t *first_over;  /* event of backward -> the first one that goes before it: a recomputation is over there */
    int32_t *first_last;  /* segment -> the first one that goes at its end */
    int32_t *next_kept;   /* key -> the next of the same list, or MS__NOBODY */
    /* Offloading. */
    ms__visit *visits;               /* in the order of forward */
    int32_t *visit_of;               /* segment of forward or backward -> its visit, or MS__NOBODY */
    uint32_t *moved[MS__N_VARIANTS]; /* keys, by visit; of the recomputed variant those that only its call holds */
    int32_t *dropped_in; /* key -> the segment of forward after which a cast of its maker's is dropped, or MS__NOBODY */
    int32_t *first_dropped, *next_dropped; /* segment -> those that are dropped after it; key -> the next one */
    /* Of the plain and of the pointwise variant: event of backward -> those that are made again before it; key -> the
     * next one. */
    int32_t *first_made[MS__N_VARIANTS], *next_made[MS__N_VARIANTS];
    int32_t n_visits;
} ms__changes;

/* Its arrays belong to the arena. Errors: MS_E_NO_MEMORY. */
ms_status ms__changes_make(ms__arena *arena, const ms__step *step, ms__changes *out);

/* Does a unit that keeps `keeps` (enum ms_keep) keep all that `needs` names? `needs` 0: no unit keeps it. */
static inline bool ms__is_spared(uint8_t needs, uint32_t keeps) { return needs != 0 && (needs & keeps) == needs; }

#endif
