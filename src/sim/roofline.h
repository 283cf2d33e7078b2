/* roofline.h - how long operations take on a device: what simulations and frontiers count with.
 *
 * An operation takes as long as its arithmetic at the rate of its type, or its memory traffic, whichever is longer.
 * Times end at MS__MAX_NS.
 */
#ifndef MS_SIM_ROOFLINE_H
#define MS_SIM_ROOFLINE_H

#include "../profile/step.h"

#define MS__MAX_NS (INT64_MAX / 8)

/* A copy of a caller's rates, checked: times can be divided by them and added up. Errors: MS_E_INVALID, MS_E_VERSION.
 */
ms_status ms__rates_read(const ms_rates *theirs, ms_rates *out);

/* A copy of a caller's device. `device` points to `rates`, so it must stay where it is. */
typedef struct ms__device_copy {
    ms_device device;
    ms_rates rates;
} ms__device_copy;

/* A device that steps can be simulated on: rates as above, a kind that fits them. Errors: MS_E_INVALID, MS_E_VERSION.
 */
ms_status ms__device_read(const ms_device *theirs, ms__device_copy *out);

/* Both are times; so is the sum. */
int64_t ms__add_ns(int64_t ns, int64_t more_ns);

/* For how long an operation keeps the device busy; 0 for views. The rates were checked. */
int64_t ms__op_busy_ns(const ms_rates *rates, const ms__step *step, const ms__step_cost *cost);

#endif
