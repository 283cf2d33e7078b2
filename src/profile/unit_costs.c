/* costs.c - what a unit does in a phase of the step: arithmetic, traffic, kernels, random draws, working set. */
#include "profile.h"

static void add_op(const ms__step *step, const ms__step_cost *cost, ms_unit_costs *out) {
    out->n_ops++;
    if (cost->flags & MS__OP_VIEW) return;
    out->n_kernels++;
    out->n_random += (cost->flags & MS__OP_RANDOM) != 0;
    out->flops += step->numbers[cost->flops];
    out->bytes += step->numbers[cost->bytes];
}

static void add_segment(const ms__step *step, const ms__segment *segment, ms_unit_costs *out) {
    int64_t held = 0;
    const ms__step_event *events = step->events + segment->first[MS__PLAIN];
    for (uint32_t i = 0; i < segment->n[MS__PLAIN]; i++) {
        uint32_t index = events[i].index;
        if (events[i].kind == MS__OPERATION) add_op(step, &step->costs[index], out);
        if (events[i].kind == MS__ALLOCATE) held += step->numbers[step->keys[index].size];
        if (events[i].kind == MS__RELEASE) held -= step->numbers[step->keys[index].size];
        if (held > out->working_bytes) out->working_bytes = held;
    }
}

ms_status ms_profile_get_costs(const ms_profile *profile, int64_t unit, int32_t phase, ms_unit_costs *out) {
    if (profile == NULL || out == NULL) return ms__fail(MS_E_INVALID, "ms_profile_get_costs: an argument is NULL");
    ms_status status = ms__check_struct(out->struct_bytes, sizeof *out, "ms_unit_costs");
    if (status != MS_OK) return status;
    const ms__step *step = profile->step;
    if (step == NULL) return ms__fail(MS_E_INVALID, "this profile has no step");
    if (unit < -1 || unit >= (int64_t)step->n_units || phase < 0 || phase >= MS_N_PHASES)
        return ms__fail(MS_E_INVALID, "ms_profile_get_costs: there is no such unit or phase");
    *out = (ms_unit_costs){.struct_bytes = sizeof *out};
    for (uint32_t i = 0; i < step->n_segments; i++)
        if (step->segments[i].unit == unit && step->segments[i].phase == (uint32_t)phase)
            add_segment(step, &step->segments[i], out);
    return MS_OK;
}
