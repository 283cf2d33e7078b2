/* plan_json.c - plans as files: versioned JSON, read back strictly, and matched against a model. */
#include <stdlib.h>
#include <string.h>

#include "../common/json.h"
#include "plan.h"

#define VERSION_KEY "memscale_plan"
#define VERSION 1

static void put_choice(ms__json_writer *w, const ms__choice *choice) {
    const ms__unit_note notes[] = {{"action", ms_action_name(choice->action)},
                                   {"reason", ms_reason_name(choice->reason)}};
    ms__unit_write(w, &choice->unit, notes, 2);
}

ms_status ms_plan_to_json(const ms_plan *plan, char **out_text) {
    if (plan == NULL || out_text == NULL) return ms__fail(MS_E_INVALID, "ms_plan_to_json: an argument is NULL");
    ms__json_writer w = {0};
    ms__json_begin_object(&w, NULL);
    ms__json_put_int(&w, VERSION_KEY, VERSION);
    ms__json_put_int(&w, "state_bytes", plan->state_bytes);
    ms__json_put_int(&w, "rest_bytes", plan->rest_bytes);
    ms__json_put_int(&w, "budget_bytes", plan->budget_bytes);
    ms__json_put_bool(&w, "skipped", plan->skipped != 0);
    ms__json_begin_array(&w, "units");
    for (int64_t i = 0; i < plan->n_choices; i++) put_choice(&w, &plan->choices[i]);
    ms__json_end_array(&w);
    ms__json_end_object(&w);
    return ms__json_finish(&w, out_text);
}

/* The index of a note's text in the names that `name_of` gives for 0, 1, ... until "?". */
static ms_status find_name(const ms__unit_note *note, const char *(*name_of)(int32_t), int32_t *out) {
    for (int32_t i = 0; strcmp(name_of(i), "?") != 0; i++) {
        if (strcmp(name_of(i), note->text) != 0) continue;
        *out = i;
        return MS_OK;
    }
    return ms__fail(MS_E_PARSE, "unknown %s \"%.32s\"", note->key, note->text);
}

static ms_status read_choice(const ms__json *object, ms__choice *out) {
    ms__unit_note notes[] = {{"action", ""}, {"reason", ""}};
    ms_status status = ms__unit_read(object, notes, 2, &out->unit);
    if (status == MS_OK) status = find_name(&notes[0], ms_action_name, &out->action);
    if (status == MS_OK) status = find_name(&notes[1], ms_reason_name, &out->reason);
    return status;
}

typedef struct header {
    int64_t state_bytes, rest_bytes, budget_bytes;
    bool skipped;
    const ms__json *units;
} header;

static ms_status read_header(const ms__json *object, header *out) {
    static const char *const allowed[] = {VERSION_KEY, "state_bytes", "rest_bytes", "budget_bytes",
                                          "skipped",   "units",       NULL};
    int64_t version;
    if (object->type != MS__JSON_OBJECT) return ms__fail(MS_E_PARSE, "a JSON object was expected");
    ms_status status = ms__json_get_int(object, VERSION_KEY, 1, &version);
    if (status == MS_OK && version != VERSION)
        status = ms__fail(MS_E_VERSION, "plan of version %lld, this library reads %d", (long long)version, VERSION);
    if (status == MS_OK) status = ms__json_check_keys(object, allowed);
    if (status == MS_OK) status = ms__json_get_int(object, "state_bytes", 0, &out->state_bytes);
    if (status == MS_OK) status = ms__json_get_int(object, "rest_bytes", 0, &out->rest_bytes);
    if (status == MS_OK) status = ms__json_get_int(object, "budget_bytes", 1, &out->budget_bytes);
    if (status == MS_OK) status = ms__json_get_bool(object, "skipped", &out->skipped);
    if (status == MS_OK) status = ms__json_get_array(object, "units", &out->units);
    if (status == MS_OK && (!ms__size_in_range(out->state_bytes) || !ms__size_in_range(out->rest_bytes) ||
                            !ms__size_in_range(out->budget_bytes)))
        status = ms__fail(MS_E_LIMIT, "a size of the plan is out of range");
    return status;
}

static ms_status read_plan(const ms__json *document, ms__arena *scratch, ms_plan **out) {
    header head = {0};
    ms_status status = read_header(document, &head);
    if (status != MS_OK || head.units == NULL) return status;
    size_t n = head.units->n;
    ms__choice *choices = ms__arena_array(scratch, n, sizeof *choices);
    ms_unit *units = ms__arena_array(scratch, n, sizeof *units);
    if (choices == NULL || units == NULL) return MS_E_NO_MEMORY;
    for (size_t i = 0; i < n && status == MS_OK; i++) {
        status = read_choice(&head.units->items[i], &choices[i]);
        units[i] = choices[i].unit;
    }
    ms_plan *plan = NULL;
    if (status == MS_OK) status = ms__plan_new(units, (int64_t)n, &plan);
    if (status != MS_OK) return status;
    plan->state_bytes = head.state_bytes;
    plan->rest_bytes = head.rest_bytes;
    plan->budget_bytes = head.budget_bytes;
    plan->skipped = head.skipped;
    for (size_t i = 0; i < n; i++) {
        plan->choices[i].action = choices[i].action;
        plan->choices[i].reason = choices[i].reason;
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
    if (plan->n_choices != n_units)
        return ms__fail(MS_E_MISMATCH, "the plan is for %lld units, the model has %lld", (long long)plan->n_choices,
                        (long long)n_units);
    ms__arena arena = {0};
    name_size *ours = ms__arena_array(&arena, (size_t)n_units, sizeof *ours);
    name_size *theirs = ms__arena_array(&arena, (size_t)n_units, sizeof *theirs);
    ms_status status = ours == NULL || theirs == NULL ? MS_E_NO_MEMORY : MS_OK;
    for (int64_t i = 0; i < n_units && status == MS_OK; i++) {
        ours[i] = (name_size){plan->choices[i].unit.name, plan->choices[i].unit.param_bytes};
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
