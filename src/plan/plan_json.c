/* plan_json.c - plans as files: versioned JSON, read back strictly, and matched against a model. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "../common/json.h"
#include "plan.h"

#define VERSION_KEY "memscale_plan"
#define VERSION 2

/* ---- Fields ---- */

#define MAX (INT64_C(1) << 62)        /* sums of a few sizes or times */
#define MAX_CHANGE (INT64_C(1) << 61) /* so that differences are numbers, too */
#define SIZE(type, name) {#name, offsetof(type, name), 0, MAX}
#define CHANGE(type, name) {#name, offsetof(type, name), -MAX_CHANGE, MAX_CHANGE}

static const ms__json_field summary_fields[] = {SIZE(ms_plan_summary, baseline_peak_bytes),
                                                SIZE(ms_plan_summary, predicted_peak_bytes),
                                                {"budget_bytes", offsetof(ms_plan_summary, budget_bytes), 1, MAX},
                                                SIZE(ms_plan_summary, margin_bytes),
                                                SIZE(ms_plan_summary, host_limit_bytes),
                                                SIZE(ms_plan_summary, host_bytes),
                                                SIZE(ms_plan_summary, baseline_ns),
                                                SIZE(ms_plan_summary, step_ns),
                                                CHANGE(ms_plan_summary, slowdown_ppm),
                                                SIZE(ms_plan_summary, batch),
                                                SIZE(ms_plan_summary, length),
                                                {"skipped", offsetof(ms_plan_summary, skipped), 0, 1}};

static const ms__json_field entry_fields[] = {SIZE(ms_plan_entry, param_bytes),  CHANGE(ms_plan_entry, plain_bytes),
                                              CHANGE(ms_plan_entry, held_bytes), SIZE(ms_plan_entry, host_bytes),
                                              SIZE(ms_plan_entry, extra_ns),     CHANGE(ms_plan_entry, other_bytes),
                                              CHANGE(ms_plan_entry, other_ns)};

enum { N_SUMMARY_FIELDS = sizeof summary_fields / sizeof *summary_fields };
enum { N_ENTRY_FIELDS = sizeof entry_fields / sizeof *entry_fields };

/* ---- Writing ---- */

static const char *const flag_names[] = {"force", "fastest", "recompute all"};

static const char *flag_name(uint32_t flag) {
    for (uint32_t i = 0; i < sizeof flag_names / sizeof *flag_names; i++)
        if (flag == 1U << i) return flag_names[i];
    return "?";
}

static void put_text(ms__json_writer *w, const char *key, const char *text) {
    ms__json_put_string(w, key, text, strlen(text));
}

static void put_set(ms__json_writer *w, const char *key, uint32_t set, const char *(*name_of)(uint32_t)) {
    ms__json_begin_array(w, key);
    for (uint32_t flag = 1; strcmp(name_of(flag), "?") != 0; flag <<= 1)
        if (set & flag) put_text(w, NULL, name_of(flag));
    ms__json_end_array(w);
}

static void put_entry(ms__json_writer *w, const ms_plan_entry *entry) {
    ms__json_begin_object(w, NULL);
    put_text(w, "name", entry->name);
    put_text(w, "action", ms_action_name(entry->action));
    put_text(w, "reason", ms_reason_name(entry->reason));
    put_text(w, "other", ms_action_name(entry->other));
    put_text(w, "other_reason", ms_reason_name(entry->other_reason));
    ms__json_put_record(w, entry_fields, N_ENTRY_FIELDS, entry);
    ms__json_end_object(w);
}

ms_status ms_plan_to_json(const ms_plan *plan, char **out_text) {
    if (plan == NULL || out_text == NULL) return ms__fail(MS_E_INVALID, "ms_plan_to_json: an argument is NULL");
    const ms_plan_summary *s = &plan->summary;
    ms__json_writer w = {0};
    ms__json_begin_object(&w, NULL);
    ms__json_put_int(&w, VERSION_KEY, VERSION);
    ms__json_put_record(&w, summary_fields, N_SUMMARY_FIELDS, s);
    put_set(&w, "state", s->model_options, ms_model_option_name);
    put_set(&w, "flags", s->flags, flag_name);
    ms__json_put_int(&w, "peak_unit", s->peak_unit);
    ms__json_put_int(&w, "peak_phase", s->peak_phase);
    ms__json_put_ints(&w, "parts", s->parts, MS_N_CATEGORIES);
    ms__json_begin_array(&w, "units");
    for (int64_t i = 0; i < plan->n_entries; i++) put_entry(&w, &plan->entries[i]);
    ms__json_end_array(&w);
    ms__json_end_object(&w);
    return ms__json_finish(&w, out_text);
}

/* ---- Reading ---- */

/* The index of a text in the names that `name_of` gives for 0, 1, ... until "?". */
static ms_status get_name(const ms__json *object, const char *key, const char *(*name_of)(int32_t), int32_t *out) {
    const char *text;
    ms_status status = ms__json_get_string(object, key, &text);
    if (status != MS_OK) return status;
    for (int32_t i = 0; strcmp(name_of(i), "?") != 0; i++) {
        if (strcmp(name_of(i), text) != 0) continue;
        *out = i;
        return MS_OK;
    }
    return ms__fail(MS_E_PARSE, "unknown %s \"%.32s\"", key, text);
}

static ms_status get_set(const ms__json *object, const char *key, const char *(*name_of)(uint32_t), uint32_t *out) {
    const ms__json *array;
    ms_status status = ms__json_get_array(object, key, &array);
    for (size_t i = 0; status == MS_OK && i < array->n; i++) {
        const ms__json *item = &array->items[i];
        uint32_t flag = 1;
        if (item->type != MS__JSON_STRING) return ms__fail(MS_E_PARSE, "\"%s\" has names in it", key);
        while (strcmp(name_of(flag), "?") != 0 && strcmp(name_of(flag), item->string) != 0) flag <<= 1;
        if (strcmp(name_of(flag), "?") == 0) return ms__fail(MS_E_PARSE, "unknown %s \"%.32s\"", key, item->string);
        *out |= flag;
    }
    return status;
}

static ms_status get_int32(const ms__json *object, const char *key, int64_t min, int64_t max, int32_t *out) {
    int64_t value;
    ms_status status = ms__json_get_int(object, key, min, &value);
    if (status == MS_OK && value > max) status = ms__fail(MS_E_PARSE, "\"%s\" is out of range", key);
    if (status == MS_OK) *out = (int32_t)value;
    return status;
}

static ms_status read_parts(const ms__json *object, ms__arena *arena, int64_t *out) {
    int64_t *parts;
    size_t n;
    ms_status status = ms__json_get_ints(object, "parts", -MAX, MAX, arena, &parts, &n);
    if (status == MS_OK && n != MS_N_CATEGORIES)
        status = ms__fail(MS_E_PARSE, "\"parts\" has %d numbers in it", MS_N_CATEGORIES);
    if (status == MS_OK) memcpy(out, parts, n * sizeof *out);
    return status;
}

static ms_status read_summary(const ms__json *object, ms__arena *arena, ms_plan_summary *out) {
    ms_status status = ms__json_get_record(object, summary_fields, N_SUMMARY_FIELDS, out);
    if (status == MS_OK) status = get_set(object, "state", ms_model_option_name, &out->model_options);
    if (status == MS_OK) status = get_set(object, "flags", flag_name, &out->flags);
    if (status == MS_OK) status = get_int32(object, "peak_phase", 0, MS_N_PHASES - 1, &out->peak_phase);
    return status == MS_OK ? read_parts(object, arena, out->parts) : status;
}

static ms_status read_entry(const ms__json *object, ms_plan *plan, int64_t index) {
    static const char *const allowed[] = {"name",        "action",      "reason",     "other",      "other_reason",
                                          "param_bytes", "plain_bytes", "held_bytes", "host_bytes", "extra_ns",
                                          "other_bytes", "other_ns",    NULL};
    ms_plan_entry *entry = &plan->entries[index];
    const char *name;
    ms_status status = ms__json_check_keys(object, allowed);
    if (status == MS_OK) status = ms__json_get_string(object, "name", &name);
    if (status == MS_OK) status = ms__plan_set_name(plan, index, name);
    if (status == MS_OK) status = get_name(object, "action", ms_action_name, &entry->action);
    if (status == MS_OK) status = get_name(object, "reason", ms_reason_name, &entry->reason);
    if (status == MS_OK) status = get_name(object, "other", ms_action_name, &entry->other);
    if (status == MS_OK) status = get_name(object, "other_reason", ms_reason_name, &entry->other_reason);
    if (status == MS_OK) status = ms__json_get_record(object, entry_fields, N_ENTRY_FIELDS, entry);
    return status;
}

static ms_status check_document(const ms__json *object) {
    static const char *const allowed[] = {VERSION_KEY,
                                          "baseline_peak_bytes",
                                          "predicted_peak_bytes",
                                          "budget_bytes",
                                          "margin_bytes",
                                          "host_limit_bytes",
                                          "host_bytes",
                                          "baseline_ns",
                                          "step_ns",
                                          "slowdown_ppm",
                                          "batch",
                                          "length",
                                          "skipped",
                                          "state",
                                          "flags",
                                          "peak_unit",
                                          "peak_phase",
                                          "parts",
                                          "units",
                                          NULL};
    ms_status status = ms__json_check_version(object, VERSION_KEY, VERSION);
    return status == MS_OK ? ms__json_check_keys(object, allowed) : status;
}

static ms_status read_plan(const ms__json *document, ms__arena *arena, ms_plan **out) {
    const ms__json *units = NULL;
    ms_status status = check_document(document);
    if (status == MS_OK) status = ms__json_get_array(document, "units", &units);
    if (status != MS_OK) return status;
    ms_plan *plan = NULL;
    int64_t n = (int64_t)units->n;
    status = ms__plan_new(n, &plan);
    if (status != MS_OK) return status;
    status = read_summary(document, arena, &plan->summary);
    if (status == MS_OK) status = get_int32(document, "peak_unit", -1, n - 1, &plan->summary.peak_unit);
    for (int64_t i = 0; i < n && status == MS_OK; i++) status = read_entry(&units->items[i], plan, i);
    if (status != MS_OK) {
        ms_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return MS_OK;
}

ms_status ms_plan_from_json(const char *text, size_t n_bytes, ms_plan **out_plan) {
    if (text == NULL || out_plan == NULL) return ms__fail(MS_E_INVALID, "ms_plan_from_json: an argument is NULL");
    ms__arena arena = {0};
    const ms__json *document = NULL;
    ms_status status = ms__json_read(&arena, text, n_bytes, &document);
    if (status == MS_OK) status = read_plan(document, &arena, out_plan);
    ms__arena_free(&arena);
    return status;
}

typedef struct name_size {
    const char *name;
    int64_t param_bytes;
} name_size;

static int by_name(const void *a, const void *b) {
    return strcmp(((const name_size *)a)->name, ((const name_size *)b)->name);
}

static ms_status compare_sorted(const name_size *ours, const name_size *theirs, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (strcmp(ours[i].name, theirs[i].name) != 0)
            return ms__fail(MS_E_MISMATCH, "the plan has a unit \"%.64s\" where the model has \"%.64s\"", ours[i].name,
                            theirs[i].name);
        if (ours[i].param_bytes != theirs[i].param_bytes)
            return ms__fail(MS_E_MISMATCH, "unit \"%.64s\" has %lld bytes of parameters in the plan, %lld in the model",
                            ours[i].name, (long long)ours[i].param_bytes, (long long)theirs[i].param_bytes);
    }
    return MS_OK;
}

ms_status ms_plan_check_units(const ms_plan *plan, const ms_unit *units, int64_t n_units) {
    if (plan == NULL || n_units < 0 || (units == NULL && n_units > 0))
        return ms__fail(MS_E_INVALID, "ms_plan_check_units: an argument is NULL");
    if (plan->n_entries != n_units)
        return ms__fail(MS_E_MISMATCH, "the plan is for %lld units, the model has %lld", (long long)plan->n_entries,
                        (long long)n_units);
    ms__arena arena = {0};
    name_size *ours = ms__arena_array(&arena, (size_t)n_units, sizeof *ours);
    name_size *theirs = ms__arena_array(&arena, (size_t)n_units, sizeof *theirs);
    ms_status status = ours == NULL || theirs == NULL ? MS_E_NO_MEMORY : MS_OK;
    for (int64_t i = 0; i < n_units && status == MS_OK; i++) {
        ours[i] = (name_size){plan->entries[i].name, plan->entries[i].param_bytes};
        theirs[i] = (name_size){units[i].name == NULL ? "" : units[i].name, units[i].param_bytes};
    }
    if (status == MS_OK) {
        qsort(ours, (size_t)n_units, sizeof *ours, by_name);
        qsort(theirs, (size_t)n_units, sizeof *theirs, by_name);
        status = compare_sorted(ours, theirs, n_units);
    }
    ms__arena_free(&arena);
    return status;
}
