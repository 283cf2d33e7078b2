/* sim_fields.c - the fields of a simulation's results, for bindings. */
#include "../common/fields.h"

const ms_field *ms_simulation_summary_fields(int64_t *out_n) {
    static const ms_field fields[] = {
        MS__FIELD(ms_simulation_summary, start_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, first_peak_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, steady_peak_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, idle_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, first_reserved_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, reserved_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, unused_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, step_ns, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, forward_ns, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, backward_ns, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, optimizer_ns, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, host_ns, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, device_ns, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, n_ops, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, host_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, wait_ns, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, peak_unit, MS_FIELD_INT32),
        MS__FIELD(ms_simulation_summary, peak_phase, MS_FIELD_INT32),
        MS__FIELD(ms_simulation_summary, parts, MS_FIELD_PARTS),
        MS__FIELD(ms_simulation_summary, start_reserved_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_summary, needed_bytes, MS_FIELD_INT64),
    };
    MS__RETURN_FIELDS(fields, out_n);
}

const ms_field *ms_simulation_segment_fields(int64_t *out_n) {
    static const ms_field fields[] = {
        MS__FIELD(ms_simulation_segment, unit, MS_FIELD_INT32),
        MS__FIELD(ms_simulation_segment, phase, MS_FIELD_INT32),
        MS__FIELD(ms_simulation_segment, peak_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_segment, end_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_segment, duration_ns, MS_FIELD_INT64),
        MS__FIELD(ms_simulation_segment, parts, MS_FIELD_PARTS),
    };
    MS__RETURN_FIELDS(fields, out_n);
}

const ms_field *ms_prediction_fields(int64_t *out_n) {
    static const ms_field fields[] = {
        MS__FIELD(ms_prediction, peak_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_prediction, low_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_prediction, high_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_prediction, reserved_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_prediction, usable_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_prediction, fits, MS_FIELD_BOOL),
        MS__FIELD(ms_prediction, needed_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_prediction, margin_bytes, MS_FIELD_INT64),
    };
    MS__RETURN_FIELDS(fields, out_n);
}

const ms_field *ms_comparison_fields(int64_t *out_n) {
    static const ms_field fields[] = {
        MS__FIELD(ms_comparison, n_compared, MS_FIELD_INT64),
        MS__FIELD(ms_comparison, worst, MS_FIELD_INT64),
        MS__FIELD(ms_comparison, difference_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_comparison, first, MS_FIELD_INT64),
    };
    MS__RETURN_FIELDS(fields, out_n);
}
