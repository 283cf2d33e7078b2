/* profile_json.c - profiles as versioned JSON, read back strictly.
 *
 * An optional flag of a unit is written only if it is set, so that files from before it existed stay valid.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "profile.h"
#include "step_json.h"

#define VERSION_KEY "memscale_profile"
#define VERSION 4
#define STEP_KEY "step"

static const struct {
    const char *key;
    size_t offset;
} sizes[] = {
    {"param_bytes", offsetof(ms_unit, param_bytes)},
    {"saved_bytes", offsetof(ms_unit, saved_bytes)},
    {"input_bytes", offsetof(ms_unit, input_bytes)},
    {"n_rows", offsetof(ms_unit, n_rows)},
};

static const struct {
    const char *key;
    uint32_t flag;
    bool is_optional;
} flags[] = {
    {"eligible", MS_UNIT_ELIGIBLE, false},
    {"run", MS_UNIT_RUN, false},
    {"block", MS_UNIT_BLOCK, true},
};

#define N_SIZES (sizeof sizes / sizeof *sizes)
#define N_FLAGS (sizeof flags / sizeof *flags)

static void write_unit(ms__json_writer *w, const ms_unit *unit) {
    ms__json_begin_object(w, NULL);
    ms__json_put_string(w, "name", unit->name, strlen(unit->name));
    for (size_t i = 0; i < N_SIZES; i++)
        ms__json_put_int(w, sizes[i].key, *(const int64_t *)((const char *)unit + sizes[i].offset));
    for (size_t i = 0; i < N_FLAGS; i++) {
        bool is_set = (unit->flags & flags[i].flag) != 0;
        if (is_set || !flags[i].is_optional) ms__json_put_bool(w, flags[i].key, is_set);
    }
    ms__json_end_object(w);
}

static ms_status check_unit_keys(const ms__json *object) {
    const char *allowed[1 + N_SIZES + N_FLAGS + 1] = {"name"};
    size_t n = 1;
    for (size_t i = 0; i < N_SIZES; i++) allowed[n++] = sizes[i].key;
    for (size_t i = 0; i < N_FLAGS; i++) allowed[n++] = flags[i].key;
    return ms__json_check_keys(object, allowed);
}

/* Strings belong to the document; ms__units_copy checks the ranges. */
static ms_status read_unit(const ms__json *object, ms_unit *out) {
    ms_unit unit = {0};
    ms_status status = check_unit_keys(object);
    if (status == MS_OK) status = ms__json_get_string(object, "name", &unit.name);
    for (size_t i = 0; i < N_SIZES && status == MS_OK; i++)
        status = ms__json_get_int(object, sizes[i].key, 0, (int64_t *)((char *)&unit + sizes[i].offset));
    for (size_t i = 0; i < N_FLAGS && status == MS_OK; i++) {
        bool is_set = false;
        if (!flags[i].is_optional || ms__json_get(object, flags[i].key) != NULL)
            status = ms__json_get_bool(object, flags[i].key, &is_set);
        if (is_set) unit.flags |= flags[i].flag;
    }
    if (status == MS_OK) *out = unit;
    return status;
}

ms_status ms_profile_to_json(const ms_profile *profile, char **out_text) {
    if (profile == NULL || out_text == NULL) return ms__fail(MS_E_INVALID, "ms_profile_to_json: an argument is NULL");
    ms__json_writer w = {0};
    ms__json_begin_object(&w, NULL);
    ms__json_put_int(&w, VERSION_KEY, VERSION);
    ms__json_put_int(&w, "resident_bytes", profile->resident_bytes);
    ms__json_put_int(&w, "outside_bytes", profile->outside_bytes);
    ms__json_begin_array(&w, "units");
    for (int64_t i = 0; i < profile->n_units; i++) write_unit(&w, &profile->units[i]);
    ms__json_end_array(&w);
    ms__json_begin_object(&w, STEP_KEY);
    ms__step_write(&w, profile->step);
    ms__json_end_object(&w);
    ms__json_end_object(&w);
    return ms__json_finish(&w, out_text);
}

static ms_status read_total(const ms__json *document, const char *key, int64_t *out) {
    ms_status status = ms__json_get_int(document, key, 0, out);
    if (status != MS_OK || ms__size_in_range(*out)) return status;
    return ms__fail(MS_E_LIMIT, "\"%s\" is out of range", key);
}

static ms_status read_totals(const ms__json *document, ms_profile *profile) {
    static const char *const allowed[] = {VERSION_KEY, "resident_bytes", "outside_bytes", "units", STEP_KEY, NULL};
    ms_status status = ms__json_check_version(document, VERSION_KEY, VERSION);
    if (status == MS_OK) status = ms__json_check_keys(document, allowed);
    if (status == MS_OK) status = read_total(document, "resident_bytes", &profile->resident_bytes);
    return status == MS_OK ? read_total(document, "outside_bytes", &profile->outside_bytes) : status;
}

static ms_status read_units(const ms__json *document, ms__arena *scratch, ms_profile *profile) {
    const ms__json *list = NULL;
    ms_status status = ms__json_get_array(document, "units", &list);
    if (status != MS_OK || list == NULL) return status;
    ms_unit *units = ms__arena_array(scratch, list->n, sizeof *units);
    if (units == NULL) return MS_E_NO_MEMORY;
    for (size_t i = 0; i < list->n && status == MS_OK; i++) status = read_unit(&list->items[i], &units[i]);
    if (status != MS_OK) return status;
    profile->n_units = (int64_t)list->n;
    return ms__units_copy(&profile->arena, units, profile->n_units, &profile->units);
}

static ms_status read_step(const ms__json *document, ms_profile *profile) {
    const ms__json *object = ms__json_get(document, STEP_KEY);
    if (object == NULL) return ms__fail(MS_E_PARSE, "\"" STEP_KEY "\" is missing: the profile has no training step");
    profile->step = ms__arena_alloc(&profile->arena, sizeof *profile->step);
    if (profile->step == NULL) return MS_E_NO_MEMORY;
    return ms__step_read(object, profile->n_units, &profile->arena, profile->step);
}

static ms_status read_profile(const ms__json *document, ms__arena *scratch, ms_profile **out) {
    ms_profile *profile = calloc(1, sizeof *profile);
    if (profile == NULL) return ms__fail_memory(sizeof *profile);
    ms_status status = read_totals(document, profile);
    if (status == MS_OK) status = read_units(document, scratch, profile);
    if (status == MS_OK) status = read_step(document, profile);
    if (status != MS_OK) {
        ms_profile_destroy(profile);
        return status;
    }
    *out = profile;
    return MS_OK;
}

ms_status ms_profile_from_json(const char *text, size_t n_bytes, ms_profile **out_profile) {
    if (text == NULL || out_profile == NULL) return ms__fail(MS_E_INVALID, "ms_profile_from_json: an argument is NULL");
    ms__arena arena = {0};
    const ms__json *document = NULL;
    ms_status status = ms__json_read(&arena, text, n_bytes, &document);
    if (status == MS_OK) status = read_profile(document, &arena, out_profile);
    ms__arena_free(&arena);
    return status;
}
