/* stepless.h - plans from a profile without a step, which only says what units save, and the plan that recomputes
 * everything.
 */
#ifndef MS_PLAN_STEPLESS_H
#define MS_PLAN_STEPLESS_H

#include "decide.h"
#include "plan.h"

/* The chain of a profile without a step. The grids are not made. Errors: MS_E_NO_MEMORY. */
ms_status ms__stepless_chain_make(ms__arena *arena, const ms__basis *basis, ms__chain *out);

/* MS_PLAN_RECOMPUTE_ALL: every unit that may be changed is recomputed. Errors: as ms_simulation_create. */
ms_status ms__decide_recompute_all(ms__decision *d);

/* Recompute units that did not run too. Nothing is known about them, so no chain has an option for them. */
void ms__recompute_unmeasured(const ms__decision *d, ms_plan *plan);

#endif
