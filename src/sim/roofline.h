/* roofline.h - how long operations take on a device, for simulations and frontiers.
 *
 * An operation takes as long as its arithmetic at the rate of its type, or its memory traffic, whichever is longer.
 * Times saturate at MS__MAX_NS.
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

#endif
