/* roofline.h - how long operations take on a device and on the host that queues them, for simulations and frontiers.
 *
 * On the device, an operation takes as long as its arithmetic at the rate of its type, or its memory traffic, whichever
 * is longer. On the host it depends on who calls it: modules in forward, autograd's engine in backward, or the
 * optimizer. Times saturate at MS__MAX_NS.
 */
#ifndef MS_SIM_ROOFLINE_H
#define MS_SIM_ROOFLINE_H

#include "../profile/step.h"

#define MS__MAX_NS (INT64_MAX / 8)

/* A copy of a caller's rates, checked: it is safe to divide by them and to add up times. Errors: MS_E_INVALID,
 * MS_E_VERSION.
 */
ms_status ms__rates_read(const ms_rates *theirs, ms_rates *out);

/* A copy of a caller's device. `device` points to `rates`, so it must stay where it is. */
typedef struct ms__device_copy {
    ms_device device;
    ms_rates rates;
} ms__device_copy;

/* A device that steps can be simulated on: rates as above, a kind that matches them. Errors: MS_E_INVALID,
 * MS_E_VERSION.
 */
ms_status ms__device_read(const ms_device *theirs, ms__device_copy *out);

/* The sum of two times; it saturates. */
int64_t ms__add_ns(int64_t ns, int64_t more_ns);

/* How long an operation keeps the device busy; 0 for views. The rates must have been checked. */
int64_t ms__op_busy_ns(const ms_rates *rates, const ms__step *step, const ms__step_cost *cost);

/* How long a kernel takes that does little more than to read and write so many bytes. */
int64_t ms__kernel_ns(const ms_rates *rates, int64_t n_bytes);

/* How long an operation of a phase (enum ms_phase) takes on the host, with what it does for each tensor of a list, and
 * with what recomputation does for each that is saved. The rates must have been checked. */
int64_t ms__op_host_ns(const ms_rates *rates, const ms__step_cost *cost, uint32_t phase);

/* What keeping results adds to a unit's run and its recomputation on the host, and what each result adds. */
int64_t ms__keeping_ns(const ms_rates *rates);
int64_t ms__kept_result_ns(const ms_rates *rates);

/* What offloading takes the host in one run of a unit: of what autograd saves for it, each of which passes a hook
 * twice, `n_moved` are described, put and fetched; or all of its inputs are. */
int64_t ms__handling_ns(const ms_rates *rates, int64_t n_saved, int64_t n_moved);
int64_t ms__input_handling_ns(const ms_rates *rates, int64_t n_inputs);

/* How long the host, as device, takes to get pages for a new block; 0 for blocks that malloc has already. */
int64_t ms__fresh_ns(const ms_rates *rates, int64_t n_bytes);

#endif
