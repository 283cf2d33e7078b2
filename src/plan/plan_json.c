/* plan_json.c - plans as files: versioned JSON, read back strictly, and matched against a model.
 *
 * Actions, reasons, model options, phases and categories are written by their identifiers. The fields of a file are in
 * two tables, one for a plan and one for a unit; writing, reading and the check for unknown keys use them.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "../common/json.h"
#include "../sim/actions.h"
#include "../sim/model_options.h"
#include "plan.h"

#define VERSION_KEY "memscale_plan"
#define VERSION 4
#define UNITS_KEY "units"
#define NAME_KEY "name"
#define MAX_FIELDS 32

/* ---- Words ---- */

/* The identifiers of an enumeration, by number; for flags, by the number of the bit. */
typedef struct words {
    const char *(*at)(int index);
    int n;
} words;

static const char *action_word(int i) { return ms__actions[i].name.identifier; }
static const char *reason_word(int i) { return ms__reasons[i].identifier; }
static const char *phase_word(int i) { return ms__phases[i].name.identifier; }
static const char *category_word(int i) { return ms__categories[i].identifier; }
static const char *model_option_word(int i) { return ms__model_options[i].name.identifier; }

static const char *flag_word(int i) {
    static const char *const flags[] = {"force", "fastest", "grown", "lean"}; /* enum ms_plan_flag */
    return flags[i];
}

static const words actions = {action_word, MS_N_ACTIONS};
static const words reasons = {reason_word, MS_N_REASONS};
static const words phases = {phase_word, MS_N_PHASES};
static const words categories = {category_word, MS_N_CATEGORIES};
static const words model_options = {model_option_word, MS__N_MODEL_OPTIONS};
static const words flags = {flag_word, 4};

/* ---- Fields ---- */

enum field_kind {
    NUMBER, /* int64_t */
    LATER,  /* int64_t, in files since a later version of the library: left out if it is 0 */
    INDEX,  /* int32_t, -1 for none */
    WORD,   /* int32_t: an enumerator */
    SET,    /* uint32_t: flags, as an array of words */
    PARTS   /* int64_t for each word, as an object */
};

typedef struct field {
    const char *key;
    size_t offset;
    enum field_kind kind;
    int64_t min, max;   /* of numbers and parts */
    const words *words; /* of the other kinds */
} field;

#define MAX (INT64_C(1) << 62)        /* sums of a few sizes or times */
#define MAX_CHANGE (INT64_C(1) << 61) /* so that differences fit too */
#define SIZE(type, name) {#name, offsetof(type, name), NUMBER, 0, MAX, NULL}
#define ADDED(type, name) {#name, offsetof(type, name), LATER, 0, MAX, NULL}
#define CHANGE(type, name) {#name, offsetof(type, name), NUMBER, -MAX_CHANGE, MAX_CHANGE, NULL}
#define WORDS(type, name, kind, list) {#name, offsetof(type, name), kind, -MAX, MAX, list}

static const field plan_fields[] = {SIZE(ms_plan_summary, baseline_peak_bytes),
                                    SIZE(ms_plan_summary, predicted_peak_bytes),
                                    {"budget_bytes", offsetof(ms_plan_summary, budget_bytes), NUMBER, 1, MAX, NULL},
                                    SIZE(ms_plan_summary, margin_bytes),
                                    ADDED(ms_plan_summary, aim_bytes),
                                    ADDED(ms_plan_summary, full_speed_bytes),
                                    SIZE(ms_plan_summary, host_limit_bytes),
                                    SIZE(ms_plan_summary, host_bytes),
                                    SIZE(ms_plan_summary, baseline_ns),
                                    SIZE(ms_plan_summary, step_ns),
                                    CHANGE(ms_plan_summary, slowdown_ppm),
                                    SIZE(ms_plan_summary, batch),
                                    SIZE(ms_plan_summary, length),
                                    {"skipped", offsetof(ms_plan_summary, skipped), NUMBER, 0, 1, NULL},
                                    WORDS(ms_plan_summary, model_options, SET, &model_options),
                                    WORDS(ms_plan_summary, flags, SET, &flags),
                                    {"peak_unit", offsetof(ms_plan_summary, peak_unit), INDEX, -1, INT32_MAX, NULL},
                                    WORDS(ms_plan_summary, peak_phase, WORD, &phases),
                                    WORDS(ms_plan_summary, parts, PARTS, &categories),
                                    SIZE(ms_plan_summary, reserved_bytes),
                                    SIZE(ms_plan_summary, needed_bytes),
                                    SIZE(ms_plan_summary, occupied_bytes),
                                    {"grows", offsetof(ms_plan_summary, grows), NUMBER, 0, 1, NULL},
                                    {"is_cramped", offsetof(ms_plan_summary, is_cramped), NUMBER, 0, 1, NULL},
                                    ADDED(ms_plan_summary, spacer_bytes),
                                    ADDED(ms_plan_summary, spacer_unit),
                                    ADDED(ms_plan_summary, spacer_saved_bytes)};

static const field unit_fields[] = {
    WORDS(ms_plan_entry, action, WORD, &actions),
    WORDS(ms_plan_entry, reason, WORD, &reasons),
    WORDS(ms_plan_entry, other, WORD, &actions),
    WORDS(ms_plan_entry, other_reason, WORD, &reasons),
    SIZE(ms_plan_entry, param_bytes),
    CHANGE(ms_plan_entry, plain_bytes),
    CHANGE(ms_plan_entry, held_bytes),
    SIZE(ms_plan_entry, host_bytes),
    SIZE(ms_plan_entry, extra_ns),
    CHANGE(ms_plan_entry, other_bytes),
    CHANGE(ms_plan_entry, other_ns),
    {"leaves_after", offsetof(ms_plan_entry, leaves_after), LATER, 0, INT32_MAX, NULL},
    {"fetched_before", offsetof(ms_plan_entry, fetched_before), LATER, 0, INT32_MAX, NULL}};

enum { N_PLAN_FIELDS = sizeof plan_fields / sizeof *plan_fields };
enum { N_UNIT_FIELDS = sizeof unit_fields / sizeof *unit_fields };
_Static_assert(N_PLAN_FIELDS + 3 <= MAX_FIELDS && N_UNIT_FIELDS + 2 <= MAX_FIELDS, "room for all keys");

/* ---- Writing ---- */

static void put_word(ms__json_writer *w, const char *key, const char *word) {
    ms__json_put_string(w, key, word, strlen(word));
}

static void put_field(ms__json_writer *w, const field *f, const void *value) {
    switch (f->kind) {
    case NUMBER:
        ms__json_put_int(w, f->key, *(const int64_t *)value);
        break;
    case LATER:
        if (*(const int64_t *)value != 0) ms__json_put_int(w, f->key, *(const int64_t *)value);
        break;
    case INDEX:
        ms__json_put_int(w, f->key, *(const int32_t *)value);
        break;
    case WORD:
        put_word(w, f->key, f->words->at(*(const int32_t *)value));
        break;
    case SET:
        ms__json_begin_array(w, f->key);
        for (int i = 0; i < f->words->n; i++)
            if (*(const uint32_t *)value & 1U << i) put_word(w, NULL, f->words->at(i));
        ms__json_end_array(w);
        break;
    case PARTS:
        ms__json_begin_object(w, f->key);
        for (int i = 0; i < f->words->n; i++) ms__json_put_int(w, f->words->at(i), ((const int64_t *)value)[i]);
        ms__json_end_object(w);
        break;
    }
}

static void put_fields(ms__json_writer *w, const field *fields, size_t n, const void *record) {
    for (size_t i = 0; i < n; i++) put_field(w, &fields[i], (const char *)record + fields[i].offset);
}

ms_status ms_plan_to_json(const ms_plan *plan, char **out_text) {
    if (plan == NULL || out_text == NULL) return ms__fail(MS_E_INVALID, "ms_plan_to_json: an argument is NULL");
    ms__json_writer w = {0};
    ms__json_begin_object(&w, NULL);
    ms__json_put_int(&w, VERSION_KEY, VERSION);
    put_fields(&w, plan_fields, N_PLAN_FIELDS, &plan->summary);
    ms__json_begin_array(&w, UNITS_KEY);
    for (int64_t i = 0; i < plan->n_entries; i++) {
        ms__json_begin_object(&w, NULL);
        put_word(&w, NAME_KEY, plan->entries[i].name);
        put_fields(&w, unit_fields, N_UNIT_FIELDS, &plan->entries[i]);
        ms__json_end_object(&w);
    }
    ms__json_end_array(&w);
    ms__json_end_object(&w);
    return ms__json_finish(&w, out_text);
}

/* ---- Reading ---- */

static ms_status get_number(const ms__json *object, const char *key, int64_t min, int64_t max, int64_t *out) {
    ms_status status = ms__json_get_int(object, key, min, out);
    if (status == MS_OK && *out > max)
        status = ms__fail(MS_E_PARSE, "\"%s\" must be at most %lld", key, (long long)max);
    return status;
}

static ms_status find_word(const words *list, const char *key, const char *text, int *out) {
    for (*out = 0; *out < list->n; ++*out)
        if (strcmp(list->at(*out), text) == 0) return MS_OK;
    return ms__fail(MS_E_PARSE, "\"%s\": \"%.32s\" is unknown", key, text);
}

static ms_status get_word(const ms__json *object, const field *f, int32_t *out) {
    const char *text;
    ms_status status = ms__json_get_string(object, f->key, &text);
    return status == MS_OK ? find_word(f->words, f->key, text, out) : status;
}

static ms_status get_set(const ms__json *object, const field *f, uint32_t *out) {
    const ms__json *array;
    ms_status status = ms__json_get_array(object, f->key, &array);
    for (size_t i = 0; status == MS_OK && i < array->n; i++) {
        const ms__json *item = &array->items[i];
        int bit = 0;
        if (item->type != MS__JSON_STRING) return ms__fail(MS_E_PARSE, "\"%s\" must be an array of names", f->key);
        status = find_word(f->words, f->key, item->string, &bit);
        if (status == MS_OK) *out |= 1U << bit;
    }
    return status;
}

static ms_status get_parts(const ms__json *object, const field *f, int64_t *out) {
    const char *keys[MAX_FIELDS] = {NULL};
    const ms__json *parts = ms__json_get(object, f->key);
    if (parts == NULL) return ms__fail(MS_E_PARSE, "\"%s\" is missing", f->key);
    for (int i = 0; i < f->words->n; i++) keys[i] = f->words->at(i);
    ms_status status = ms__json_check_keys(parts, keys);
    for (int i = 0; i < f->words->n && status == MS_OK; i++)
        status = get_number(parts, keys[i], f->min, f->max, &out[i]);
    return status;
}

static ms_status get_field(const ms__json *object, const field *f, void *out) {
    int64_t number = 0;
    ms_status status;
    switch (f->kind) {
    case NUMBER:
        return get_number(object, f->key, f->min, f->max, out);
    case LATER:
        return ms__json_get(object, f->key) == NULL ? MS_OK : get_number(object, f->key, f->min, f->max, out);
    case INDEX:
        status = get_number(object, f->key, f->min, f->max, &number);
        if (status == MS_OK) *(int32_t *)out = (int32_t)number;
        return status;
    case WORD:
        return get_word(object, f, out);
    case SET:
        return get_set(object, f, out);
    default:
        return get_parts(object, f, out);
    }
}

/* Read these fields. The object may also have the keys in `others`, which ends in NULL, and no more. */
static ms_status get_fields(const ms__json *object, const field *fields, size_t n, const char *const *others,
                            void *record) {
    const char *keys[MAX_FIELDS] = {NULL};
    size_t n_keys = 0;
    for (size_t i = 0; i < n; i++) keys[n_keys++] = fields[i].key;
    for (; *others != NULL; others++) keys[n_keys++] = *others;
    ms_status status = ms__json_check_keys(object, keys);
    for (size_t i = 0; i < n && status == MS_OK; i++)
        status = get_field(object, &fields[i], (char *)record + fields[i].offset);
    return status;
}

static ms_status read_plan_unit(const ms__json *object, ms_plan *plan, int64_t index) {
    static const char *const others[] = {NAME_KEY, NULL};
    const char *name;
    ms_status status = get_fields(object, unit_fields, N_UNIT_FIELDS, others, &plan->entries[index]);
    if (status == MS_OK) status = ms__json_get_string(object, NAME_KEY, &name);
    return status == MS_OK ? ms__plan_set_name(plan, index, name) : status;
}

static ms_status read_plan_into(const ms__json *document, const ms__json *units, ms_plan *plan) {
    static const char *const others[] = {VERSION_KEY, UNITS_KEY, NULL};
    ms_status status = get_fields(document, plan_fields, N_PLAN_FIELDS, others, &plan->summary);
    if (status == MS_OK && plan->summary.peak_unit >= plan->n_entries)
        status = ms__fail(MS_E_PARSE, "\"peak_unit\" must be below the number of layers");
    if (status == MS_OK && plan->summary.spacer_bytes > 0 && plan->summary.spacer_unit >= plan->n_entries)
        status = ms__fail(MS_E_PARSE, "\"spacer_unit\" must be below the number of layers");
    for (int64_t i = 0; i < plan->n_entries && status == MS_OK; i++) status = read_plan_unit(&units->items[i], plan, i);
    return status;
}

static ms_status read_plan(const ms__json *document, ms_plan **out) {
    const ms__json *units = NULL;
    ms_plan *plan = NULL;
    ms_status status = ms__json_check_version(document, VERSION_KEY, VERSION);
    if (status == MS_OK) status = ms__json_get_array(document, UNITS_KEY, &units);
    if (status == MS_OK) status = ms__plan_new((int64_t)units->n, &plan);
    if (status == MS_OK) status = read_plan_into(document, units, plan);
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
    if (status == MS_OK) status = read_plan(document, out_plan);
    ms__arena_free(&arena);
    return status;
}

/* ---- Matching ---- */

typedef struct name_size {
    const char *name;
    int64_t param_bytes;
} name_size;

static int compare_names(const void *a, const void *b) {
    return strcmp(((const name_size *)a)->name, ((const name_size *)b)->name);
}

static ms_status compare_sorted(const name_size *ours, const name_size *theirs, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (strcmp(ours[i].name, theirs[i].name) != 0)
            return ms__fail(MS_E_MISMATCH, "the plan has layer \"%.64s\" where the model has \"%.64s\"", ours[i].name,
                            theirs[i].name);
        if (ours[i].param_bytes != theirs[i].param_bytes)
            return ms__fail(MS_E_MISMATCH,
                            "layer \"%.64s\" has %lld bytes of parameters in the plan, %lld in the model", ours[i].name,
                            (long long)ours[i].param_bytes, (long long)theirs[i].param_bytes);
    }
    return MS_OK;
}

ms_status ms_plan_check_units(const ms_plan *plan, const ms_unit *units, int64_t n_units) {
    if (plan == NULL || n_units < 0 || (units == NULL && n_units > 0))
        return ms__fail(MS_E_INVALID, "ms_plan_check_units: an argument is NULL");
    if (plan->n_entries != n_units)
        return ms__fail(MS_E_MISMATCH, "the plan is for %lld layers, the model has %lld", (long long)plan->n_entries,
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
        qsort(ours, (size_t)n_units, sizeof *ours, compare_names);
        qsort(theirs, (size_t)n_units, sizeof *theirs, compare_names);
        status = compare_sorted(ours, theirs, n_units);
    }
    ms__arena_free(&arena);
    return status;
}
