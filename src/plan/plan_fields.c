/* plan_fields.c - the fields of a plan and of its units, for bindings. */
#include "../common/fields.h"

const ms_field *ms_plan_summary_fields(int64_t *out_n) {
    static const ms_field fields[] = {
        MS__FIELD(ms_plan_summary, baseline_peak_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, predicted_peak_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, budget_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, margin_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, host_limit_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, host_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, baseline_ns, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, step_ns, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, slowdown_ppm, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, batch, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, length, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, n_units, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, n_changed, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, skipped, MS_FIELD_BOOL),
        MS__FIELD(ms_plan_summary, fingerprint, MS_FIELD_UINT64),
        MS__FIELD(ms_plan_summary, model_options, MS_FIELD_UINT32),
        MS__FIELD(ms_plan_summary, flags, MS_FIELD_UINT32),
        MS__FIELD(ms_plan_summary, peak_unit, MS_FIELD_INT32),
        MS__FIELD(ms_plan_summary, peak_phase, MS_FIELD_INT32),
        MS__FIELD(ms_plan_summary, parts, MS_FIELD_PARTS),
        MS__FIELD(ms_plan_summary, reserved_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, needed_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, occupied_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, grows, MS_FIELD_BOOL),
        MS__FIELD(ms_plan_summary, is_cramped, MS_FIELD_BOOL),
        MS__FIELD(ms_plan_summary, aim_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, full_speed_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, spacer_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, spacer_unit, MS_FIELD_INT64),
        MS__FIELD(ms_plan_summary, spacer_saved_bytes, MS_FIELD_INT64),
    };
    MS__RETURN_FIELDS(fields, out_n);
}

const ms_field *ms_plan_entry_fields(int64_t *out_n) {
    static const ms_field fields[] = {
        MS__FIELD(ms_plan_entry, name, MS_FIELD_TEXT),
        MS__FIELD(ms_plan_entry, param_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_entry, plain_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_entry, held_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_entry, host_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_entry, extra_ns, MS_FIELD_INT64),
        MS__FIELD(ms_plan_entry, action, MS_FIELD_INT32),
        MS__FIELD(ms_plan_entry, reason, MS_FIELD_INT32),
        MS__FIELD(ms_plan_entry, other, MS_FIELD_INT32),
        MS__FIELD(ms_plan_entry, other_reason, MS_FIELD_INT32),
        MS__FIELD(ms_plan_entry, other_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_plan_entry, other_ns, MS_FIELD_INT64),
        MS__FIELD(ms_plan_entry, leaves_after, MS_FIELD_INT64),
        MS__FIELD(ms_plan_entry, fetched_before, MS_FIELD_INT64),
    };
    MS__RETURN_FIELDS(fields, out_n);
}
