/* chain_build.h - builds chains from a profile, which is simulated with all units plain and with all recomputed. */
#ifndef MS_PLAN_CHAIN_BUILD_H
#define MS_PLAN_CHAIN_BUILD_H

#include "../sim/sim.h"
#include "chain.h"

/* What the chains of a request, and the simulations of its plans, have in common. */
typedef struct ms__basis {
    const ms_plan_request *request;
    const ms_profile *profile;
    ms__sim_basis sim;
    ms_simulation *runs[MS__N_VARIANTS]; /* owned */
    int64_t handled_ns[MS__N_VARIANTS];  /* what handling copies adds to the time of a run whose units all copy */
} ms__basis;

/* The request must have been checked. Errors: as ms_simulation_create; then there is nothing to free. */
ms_status ms__basis_make(ms__arena *arena, const ms_plan_request *request, const ms_profile *profile, ms__basis *out);

/* Cannot fail. */
void ms__basis_free(ms__basis *basis);

/* The chain of a basis under model options. `*out_host_bytes` is the host memory that the options take; copies may use
 * the rest. The arrays of the chain belong to the arena. Errors: MS_E_NO_MEMORY. */
ms_status ms__chain_make(ms__arena *arena, const ms__basis *basis, uint32_t model_options, ms__chain *out,
                         int64_t *out_host_bytes);

/* May this unit be anything but kept? */
bool ms__unit_may_change(const ms_plan_request *request, const ms_profile *profile, int64_t unit);

#endif
