/* needs.h - what a step needs on a device: the one source of that figure for predictions, plans and estimates.
 *
 * A step has a peak: what is allocated at most. On a GPU torch's allocator must be allowed to reserve more than that,
 * since free blocks may be too small, and since it may exceed a limit by less than a granule (allocator.h): that is
 * what the step needs. On a CPU it needs its peak.
 *
 * How a step runs follows from what is done to it. If nothing is done, torch runs it as it always does, with backward
 * on a thread of its own. If something is done, MemScale keeps backward on the calling thread.
 */
#ifndef MS_SIM_NEEDS_H
#define MS_SIM_NEEDS_H

#include "sim.h"

#define MS__MARGIN_PARTS 64 /* this part of a budget stays free: what a prediction may be wrong by */

/* The flags of steps on this device. */
uint32_t ms__device_flags(const ms_device *device);

/* Those of `flags` that apply to a step, by whether anything is done to it. */
uint32_t ms__step_flags(uint32_t flags, bool is_changed);

/* Does the request do anything to a unit or to the model? */
bool ms__is_changed(const ms_simulation_request *request);

/* Are blocks of torch's allocator simulated? */
bool ms__has_blocks(const ms_device *device, uint32_t flags);

typedef struct ms__needs {
    ms_simulation_summary played; /* the step without a limit */
    int64_t peak_bytes;           /* its highest peak, in the first step or a later one */
    int64_t needed_bytes;
} ms__needs;

/* What a step needs. The request must be valid; its limit does not matter. `basis` may be NULL. Above `most_bytes`
 * needed_bytes need not be exact, only above it. Errors: as ms_simulation_create. */
ms_status ms__find_needs(const ms_simulation_request *request, const ms__sim_basis *basis, int64_t most_bytes,
                         ms__needs *out);

/* What a step of traced actions just runs with: torch's allocator then has to return memory again and again. The
 * request must have blocks. Errors: as ms_simulation_create. */
ms_status ms__find_least_need(const ms_simulation_request *request, const ms__sim_basis *basis, int64_t *out);

#endif
