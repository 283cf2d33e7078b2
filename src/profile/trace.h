/* trace.h - traces as they come from outside: checked, and rewritten before they become a step.
 *
 * The functions that rewrite are pure: what they return shares arrays with the trace that they were given, and all else
 * belongs to the arena. They take traces that ms__trace_check() accepted.
 */
#ifndef MS_PROFILE_TRACE_H
#define MS_PROFILE_TRACE_H

#include "../common/arena.h"
#include "../common/status.h"

/* Are all arrays there, and all indices in them and in the events in range? Units and the order of events are checked
 * when the trace becomes a step. Errors: MS_E_INVALID, MS_E_LIMIT (too many events). */
ms_status ms__trace_check(const ms_trace *trace);

/* The step in which nothing is recomputed, from the trace of one in which all units were. Errors: MS_E_INVALID (saves
 * are not numbered as they should be), MS_E_NO_MEMORY. */
ms_status ms__trace_without_recomputation(ms__arena *arena, const ms_trace *watched, ms_trace *out);

/* With a phase MS_PHASE_OPTIMIZER, which a first step does not have: what MS_PHASE_OPTIMIZER_FIRST does, except that
 * it makes no state. A trace that has this phase, or neither, is returned as it is. Errors: MS_E_NO_MEMORY. */
ms_status ms__trace_with_steady_optimizer(ms__arena *arena, const ms_trace *trace, ms_trace *out);

#endif
