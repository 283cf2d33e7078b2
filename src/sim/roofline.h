/* roofline.h - how long operations take on a device: what simulations and frontiers count with.
 *
 * A roofline: arithmetic at the rate of its type, or memory traffic, whichever takes longer.
 */
#ifndef MS_SIM_ROOFLINE_H
#define MS_SIM_ROOFLINE_H

#include "../profile/step.h"

/* For how long an operation keeps the device busy; 0 for views. */
int64_t ms__op_busy_ns(const ms_rates *rates, const ms__step *step, const ms__step_cost *cost);

#endif
