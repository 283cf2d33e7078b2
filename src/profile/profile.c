/* profile.c - a model's units with their bytes: what a plan is made from.
 *
 * Units are checked once, when they are copied. A profile is immutable.
 */
#include "profile.h"

#include <stdlib.h>
#include <string.h>

#include "../common/structs.h"

/* Arithmetic that takes as long as moving one byte: a unit's cost is its bytes plus its multiplications over this. */
#define FLOPS_PER_BYTE 64
#define MAX_SUM (INT64_MAX / 8)

bool ms__size_in_range(int64_t value) { return value >= 0 && value <= MAX_SUM; }

int64_t ms__unit_cost(const ms_unit *unit) {
    /* Two operations for each four-byte parameter and row; saturating, since the caller bounds the sum. */
    int64_t weights = unit->param_bytes / 2 / FLOPS_PER_BYTE + 1;
    if (unit->n_rows > 0 && weights > MAX_SUM / unit->n_rows) return MAX_SUM;
    return unit->saved_bytes + weights * unit->n_rows;
}

static ms_status check_unit(const ms_unit *unit, int64_t index, int64_t *sum) {
    if (unit->name == NULL || unit->name[0] == '\0')
        return ms__fail(MS_E_INVALID, "layer %lld has no name", (long long)index);
    if (!ms__size_in_range(unit->param_bytes) || !ms__size_in_range(unit->saved_bytes) ||
        !ms__size_in_range(unit->input_bytes) || !ms__size_in_range(unit->n_rows))
        return ms__fail(MS_E_LIMIT, "layer \"%.64s\": a size is out of range", unit->name);
    int64_t parts[] = {unit->param_bytes, unit->saved_bytes, unit->input_bytes, ms__unit_cost(unit)};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i] > MAX_SUM - *sum)
            return ms__fail(MS_E_LIMIT, "layer \"%.64s\": the sizes of the layers are too large in sum", unit->name);
        *sum += parts[i];
    }
    return MS_OK;
}

ms_status ms__units_copy(ms__arena *arena, const ms_unit *units, int64_t n_units, ms_unit **out) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n_units; i++) {
        ms_status status = check_unit(&units[i], i, &sum);
        if (status != MS_OK) return status;
    }
    ms_unit *copies = ms__arena_array(arena, (size_t)n_units, sizeof *copies);
    if (copies == NULL) return MS_E_NO_MEMORY;
    for (int64_t i = 0; i < n_units; i++) {
        copies[i] = units[i];
        copies[i].name = ms__arena_string(arena, units[i].name, strlen(units[i].name));
        if (copies[i].name == NULL) return MS_E_NO_MEMORY;
    }
    *out = copies;
    return MS_OK;
}

static ms_status check_view(const ms_profile_view *view) {
    if (view->n_units < 0 || (view->units == NULL && view->n_units > 0))
        return ms__fail(MS_E_INVALID, "ms_profile_create: units is NULL or n_units is negative");
    if (!ms__size_in_range(view->resident_bytes) || !ms__size_in_range(view->outside_bytes))
        return ms__fail(MS_E_LIMIT, "a size of the profile is out of range");
    return MS_OK;
}

ms_status ms_profile_create(const ms_profile_view *view, ms_profile **out_profile) {
    ms_profile_view ours;
    ms_status status = ms__struct_read(MS__STRUCT(ms_profile_view), view, &ours);
    if (status == MS_OK) status = check_view(&ours);
    if (status != MS_OK) return status;
    if (out_profile == NULL) return ms__fail(MS_E_INVALID, "ms_profile_create: out_profile is NULL");
    ms_profile *profile = calloc(1, sizeof *profile);
    if (profile == NULL) return ms__fail_memory(sizeof *profile);
    status = ms__units_copy(&profile->arena, ours.units, ours.n_units, &profile->units);
    if (status != MS_OK) {
        ms_profile_destroy(profile);
        return status;
    }
    profile->n_units = ours.n_units;
    profile->resident_bytes = ours.resident_bytes;
    profile->outside_bytes = ours.outside_bytes;
    *out_profile = profile;
    return MS_OK;
}

ms_profile *ms_profile_share(const ms_profile *profile) {
    ms_profile *shared = (ms_profile *)profile; /* only the number of its owners changes */
    if (shared != NULL) ms__owners_add(&shared->owners);
    return shared;
}

void ms_profile_destroy(ms_profile *profile) {
    if (profile == NULL || !ms__owners_remove(&profile->owners)) return;
    ms__arena_free(&profile->arena);
    free(profile);
}

ms_status ms_profile_get_view(const ms_profile *profile, ms_profile_view *out) {
    if (profile == NULL) return ms__fail(MS_E_INVALID, "ms_profile_get_view: the profile is NULL");
    const ms_profile_view view = {.units = profile->units,
                                  .n_units = profile->n_units,
                                  .resident_bytes = profile->resident_bytes,
                                  .outside_bytes = profile->outside_bytes};
    return ms__struct_write(MS__STRUCT(ms_profile_view), &view, out);
}
