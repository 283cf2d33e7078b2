/* unit_costs.c - what a unit does in a phase of the step: arithmetic, traffic, kernels, random draws, memory. */
#include "../common/fields.h"
#include "../common/structs.h"
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

const ms_field *ms_unit_costs_fields(int64_t *out_n) {
    static const ms_field fields[] = {
        MS__FIELD(ms_unit_costs, flops, MS_FIELD_INT64),    MS__FIELD(ms_unit_costs, bytes, MS_FIELD_INT64),
        MS__FIELD(ms_unit_costs, n_ops, MS_FIELD_INT64),    MS__FIELD(ms_unit_costs, n_kernels, MS_FIELD_INT64),
        MS__FIELD(ms_unit_costs, n_random, MS_FIELD_INT64), MS__FIELD(ms_unit_costs, working_bytes, MS_FIELD_INT64),
    };
    MS__RETURN_FIELDS(fields, out_n);
}

ms_status ms_profile_get_costs(const ms_profile *profile, int64_t unit, int32_t phase, ms_unit_costs *out) {
    if (profile == NULL) return ms__fail(MS_E_INVALID, "ms_profile_get_costs: the profile is NULL");
    const ms__step *step = profile->step;
    if (unit < -1 || unit >= (int64_t)step->n_units || phase < 0 || phase >= MS_N_PHASES)
        return ms__fail(MS_E_INVALID, "ms_profile_get_costs: the layer or the phase is out of range");
    ms_unit_costs costs = {0};
    for (uint32_t i = 0; i < step->n_segments; i++)
        if (step->segments[i].unit == unit && step->segments[i].phase == (uint32_t)phase)
            add_segment(step, &step->segments[i], &costs);
    return ms__struct_write(MS__STRUCT(ms_unit_costs), &costs, out);
}
