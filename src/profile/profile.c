/* profile.c - a model's units with their bytes, and a training step of it: what a plan is made from.
 *
 * Units are checked once, when they are copied. A profile is immutable.
 */
#include "profile.h"

#include <stdlib.h>
#include <string.h>

#include "../common/structs.h"

#define MAX_SUM (INT64_MAX / 8)

bool ms__size_in_range(int64_t value) { return value >= 0 && value <= MAX_SUM; }

static ms_status check_unit(const ms_unit *unit, int64_t index, int64_t *sum) {
    if (unit->name == NULL || unit->name[0] == '\0')
        return ms__fail(MS_E_INVALID, "layer %lld has no name", (long long)index);
    if (!ms__size_in_range(unit->param_bytes) || !ms__size_in_range(unit->saved_bytes) ||
        !ms__size_in_range(unit->input_bytes) || !ms__size_in_range(unit->n_rows))
        return ms__fail(MS_E_LIMIT, "layer \"%.64s\": a size is out of range", unit->name);
    int64_t parts[] = {unit->param_bytes, unit->saved_bytes, unit->input_bytes};
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
