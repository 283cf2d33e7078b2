/* schedule.h - when the tensors of offloaded units leave the device, and when they come back.
 *
 * The executor lets go of a unit's tensors when `leaving` more units have run forward, and fetches them when backward
 * begins with the unit that ran `ahead` units later. The device waits there if copies are late. So what a step needs is
 * the same however fast the copies are, and if they are as fast as the rates say, nothing waits: `leaving` and `ahead`
 * are the smallest with which the link, one copy after the other, is done in time.
 */
#ifndef MS_SIM_SCHEDULE_H
#define MS_SIM_SCHEDULE_H

#include "changes.h"

/* By unit; 0 for units whose tensors stay. */
typedef struct ms__schedule {
    int32_t *leaving, *ahead;
} ms__schedule;

/* What a visit copies to the host under this action. */
int64_t ms__visit_copy_bytes(const ms__visit *visit, int32_t action);

/* How long the link takes for so many bytes, one way. */
int64_t ms__copy_ns(const ms_rates *rates, int64_t n_bytes);

#define MS__MAX_PREFETCH 65536

/* `actions`: by unit; NULL: all are kept. `prefetch_depth`: the least `ahead`; 0: one. */
typedef struct ms__schedule_request {
    const ms__step *step;
    const ms__changes *changes;
    const int32_t *actions;
    const ms_rates *rates;
    int64_t prefetch_depth;
} ms__schedule_request;

/* Its arrays belong to the arena. Errors: MS_E_NO_MEMORY. */
ms_status ms__schedule_make(ms__arena *arena, const ms__schedule_request *request, ms__schedule *out);

/* A copy whose arrays belong to the arena; of one without arrays, one without. Errors: MS_E_NO_MEMORY. */
ms_status ms__schedule_copy(ms__arena *arena, const ms__schedule *schedule, uint32_t n_units, ms__schedule *out);

#endif
