/* roofline.h - how long operations take on a device: what simulations and frontiers count with.
 *
 * An operation takes as long as its arithmetic at the rate of its type, or its memory traffic, whichever is longer.
 * Times end at MS__MAX_NS.
 */
#ifndef MS_SIM_ROOFLINE_H
#define MS_SIM_ROOFLINE_H

#include "../profile/step.h"

#define MS__MAX_NS (INT64_MAX / 8)

/* Are these rates that a time can be divided by and added up from? Errors: MS_E_INVALID. */
ms_status ms__rates_check(const ms_rates *rates);

/* A device that steps can be simulated on: rates as above, a kind that fits them. Errors: MS_E_INVALID. */
ms_status ms__device_check(const ms_device *device);

/* Both are times; so is the sum. */
int64_t ms__add_ns(int64_t ns, int64_t more_ns);

/* For how long an operation keeps the device busy; 0 for views. The rates were checked. */
int64_t ms__op_busy_ns(const ms_rates *rates, const ms__step *step, const ms__step_cost *cost);

#endif
