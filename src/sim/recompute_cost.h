/* recompute_cost.h - what each unit of a step could keep, and what recomputing it costs: for frontiers, simulations and
 * plans.
 */
#ifndef MS_SIM_RECOMPUTE_COST_H
#define MS_SIM_RECOMPUTE_COST_H

#include "../common/arena.h"
#include "changes.h"

enum ms__group { MS__GROUP_ATTENTION, MS__GROUP_PRODUCT, MS__GROUP_REST, MS__N_GROUPS };

/* The times of the operations of a group: of a function whose result may be kept, or of none. */
typedef struct ms__sums {
    int64_t host_ns, busy_ns;
} ms__sums;

typedef struct ms__recompute_cost {
    ms__sums extra[MS__N_GROUPS]; /* what the recomputed variant does beyond the plain one */
    int64_t host_ns;              /* queueing everything that the plain variant does */
    int64_t freed_bytes;          /* what the plain variant holds until backward and the recomputed one does not */
    int64_t kept_bytes[MS_KEEP_ALL + 1]; /* by enum ms_keep: what a recomputation then holds (changes.h) */
    int64_t keeping_ns[MS_KEEP_ALL + 1]; /* by the same: what keeping takes the host */
    int64_t moved_bytes, dropped_bytes;  /* by offloading what it saves, */
    int64_t rest_bytes;                  /* the same without pointwise results, */
    int64_t input_bytes;                 /* and its inputs */
    int64_t handling_ns[MS__N_VARIANTS]; /* by the variant that runs then: what both take the host */
    int64_t pointwise_bytes; /* what the plain variant holds until backward, less what the pointwise one does */
    bool on_gpu;             /* queueing and computing overlap */
} ms__recompute_cost;

/* The costs of all units, in one pass. Without a recomputed trace, nothing is recomputed. The rates must have been
 * checked. `*out` belongs to the arena. Errors: MS_E_NO_MEMORY. */
ms_status ms__recompute_costs_make(ms__arena *arena, const ms__step *step, const ms_rates *rates,
                                   const ms__changes *changes, ms__recompute_cost **out);

/* The time of a recomputation if these groups are kept (enum ms_keep), with what keeping takes the host. */
int64_t ms__recompute_ns(const ms__recompute_cost *cost, uint32_t keeps);

/* What it then holds beyond a full recomputation. */
int64_t ms__recompute_held(const ms__recompute_cost *cost, uint32_t keeps);

#endif
