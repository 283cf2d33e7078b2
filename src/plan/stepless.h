/* stepless.h - plans from a profile without a step, where only what units save is known, and the plan that recomputes
 * everything.
 */
#ifndef MS_PLAN_STEPLESS_H
#define MS_PLAN_STEPLESS_H

#include "decide.h"
#include "plan.h"

/* The chain of a profile without a step, all but its grids. Errors: MS_E_NO_MEMORY. */
ms_status ms__stepless_chain_make(ms__arena *arena, const ms__basis *basis, ms__chain *out);

/* MS_PLAN_RECOMPUTE_ALL: every unit that may be is recomputed. Errors: as ms_simulation_create. */
ms_status ms__decide_recompute_all(ms__decision *d);

/* ... and so are units that did not run, of which nothing is known, so that no chain has an option for them. */
void ms__recompute_unmeasured(const ms__decision *d, ms_plan *plan);

#endif
