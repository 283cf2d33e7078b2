/* order.h - the order in which a step runs its units, and where in it each segment is.
 *
 * A step runs its units in a chain: in the order of their first forward, and in the reverse order in backward. In each
 * segment of the step, the first `prefix` units of the chain hold what they keep for backward.
 */
#ifndef MS_SIM_ORDER_H
#define MS_SIM_ORDER_H

#include "../profile/profile.h"

#define MS__NO_CHAIN (-1)

typedef struct ms__order {
    int32_t *units;      /* chain position -> unit */
    int32_t *position;   /* unit -> chain position, MS__NO_CHAIN: it does not run */
    int32_t *prefix;     /* segment -> how many units hold */
    bool *in_tail;       /* segment -> is it in the tail, from the last unit's forward to its backward? */
    int64_t tail_begins; /* the first segment of the tail; n_segments if there is none */
    int32_t n;
} ms__order;

/* Its arrays belong to the arena. Errors: MS_E_NO_MEMORY. */
ms_status ms__order_make(ms__arena *arena, const ms__step *step, ms__order *out);

/* How long a unit runs in one step. */
typedef struct ms__unit_times {
    int64_t forward_ns, backward_ns;
} ms__unit_times;

/* The times of all units by chain position, in one pass. `out` has room for `order->n` and is zeroed. */
void ms__order_times(const ms__order *order, const ms_simulation_segment *segments, int64_t n_segments,
                     ms__unit_times *out);

/* The chain position of a segment's unit, MS__NO_CHAIN between units. */
int32_t ms__order_position(const ms__order *order, const ms_simulation_segment *segment);

/* How long the forward part of the tail takes. */
int64_t ms__order_tail_ns(const ms__order *order, const ms_simulation_segment *segments, int64_t n_segments);

#endif
