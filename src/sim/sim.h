/* sim.h - simulations for the other files of the library, without the checks and copies of the public interface. */
#ifndef MS_SIM_SIM_H
#define MS_SIM_SIM_H

#include "changes.h"
#include "order.h"
#include "recompute_cost.h"
#include "roofline.h"
#include "schedule.h"

struct ms_simulation {
    ms_simulation_summary summary;
    ms_simulation_segment *segments; /* owned */
    int64_t n_segments;
    int64_t n_units;
    ms__schedule schedule; /* belongs to the arena; its arrays are NULL if nothing is offloaded */
    ms__arena arena;
};

#define MS__SIMULATE_ALL                                                                                               \
    ((uint32_t)(MS_SIMULATE_ALLOCATOR | MS_SIMULATE_ENGINE_THREAD | MS_SIMULATE_FUSED | MS_SIMULATE_RESUMED |          \
                MS_SIMULATE_KEEP_GRADIENTS | MS_SIMULATE_GROWING))

/* Of our own requests, with MS_SIMULATE_GROWING: after the first step the memory of a step was taken as one block. */
#define MS__SIMULATE_SETTLED ((uint32_t)1 << 31)

/* What all simulations of one step on one device share. Immutable. */
typedef struct ms__sim_basis {
    ms__order order;
    ms__changes changes;
    ms__recompute_cost *costs; /* by unit */
} ms__sim_basis;

/* Its arrays belong to the arena. The rates must have been checked. Errors: MS_E_NO_MEMORY. */
ms_status ms__sim_basis_make(ms__arena *arena, const ms__step *step, const ms_rates *rates, ms__sim_basis *out);

/* A copy of a caller's request and of its device, checked; it points to `device`. Flags that do not apply to a step of
 * this kind are cleared (needs.h). Errors: as ms_simulation_create. */
ms_status ms__simulation_read(const ms_simulation_request *theirs, ms_simulation_request *request,
                              ms__device_copy *device);

/* As ms_simulation_create, for a request that is known to be valid. `basis` may be NULL: then it is made if it is
 * needed. A step that needs more than `most_bytes` is played only until that is known: of its figures only needed_bytes
 * or, without blocks, the peak, is then certain to be above. `*out` is owned, ms_simulation_destroy. Errors: as there.
 */
ms_status ms__simulate(const ms_simulation_request *request, const ms__sim_basis *basis, int64_t most_bytes,
                       ms_simulation **out);

/* Does the segment take part in a steady step? Setup and the first optimizer step do not. */
bool ms__is_steady(const ms_simulation_segment *segment);

/* Add what a step does not show of the actions and model options of the request to its simulation (sim_actions.c).
 * Errors: MS_E_NO_MEMORY. */
ms_status ms__apply_actions(const ms_simulation_request *request, const ms__sim_basis *basis, ms_simulation *sim);

#endif
