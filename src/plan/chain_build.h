/* basis.h - what the chains of a request are made from: a profile, played with its units kept and with them recomputed.
 */
#ifndef MS_PLAN_BASIS_H
#define MS_PLAN_BASIS_H

#include "chain.h"

typedef struct ms__basis {
    const ms_plan_request *request;
    const ms_profile *profile;
    ms__order order;
    ms__ledger *ledgers;
    ms_simulation *runs[MS__N_VARIANTS]; /* owned; NULL: the profile has no step */
    ms_simulation_summary kept;          /* of the first */
} ms__basis;

/* The request was checked. Errors: as ms_simulation_create. On errors nothing is left to free. */
ms_status ms__basis_make(ms__arena *arena, const ms_plan_request *request, const ms_profile *profile, ms__basis *out);

/* Cannot fail. */
void ms__basis_free(ms__basis *basis);

/* The chain of a basis under a state, whose host memory is left for copies; `*out_host_bytes` is what the state itself
 * takes there. What it holds belongs to the arena. Errors: MS_E_NO_MEMORY. */
ms_status ms__chain_make(ms__arena *arena, const ms__basis *basis, uint32_t state, ms__chain *out,
                         int64_t *out_host_bytes);

/* May this unit be anything but kept? */
bool ms__unit_may_change(const ms_plan_request *request, const ms_profile *profile, int64_t unit);

#endif
