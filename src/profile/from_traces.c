/* from_traces.c - a profile from the traces of a step: the step itself, and what it means for each unit. */
#include <stdlib.h>

#include "profile.h"

static ms_status check_request(const ms_profile_request *request) {
    if (request == NULL) return ms__fail(MS_E_INVALID, "ms_profile_from_traces: the request is NULL");
    ms_status status = ms__check_struct(request->struct_bytes, sizeof *request, "ms_profile_request");
    if (status != MS_OK) return status;
    if (request->batch < 0 || request->length < 0)
        return ms__fail(MS_E_INVALID, "ms_profile_from_traces: a negative shape");
    if (request->n_units < 0 || request->n_units > INT32_MAX || request->kept == NULL ||
        (request->n_units > 0 && (request->unit_names == NULL || request->unit_param_bytes == NULL)))
        return ms__fail(MS_E_INVALID, "ms_profile_from_traces: no trace, or no units");
    return MS_OK;
}

static ms_status fill(ms_profile *profile, const ms_profile_request *request, ms__arena *scratch) {
    profile->step = ms__arena_alloc(&profile->arena, sizeof *profile->step);
    if (profile->step == NULL) return MS_E_NO_MEMORY;
    ms_status status =
        ms__step_from_traces(&profile->arena, request->kept, request->recomputed, request->n_units, profile->step);
    if (status != MS_OK) return status;
    profile->step->batch = request->batch;
    profile->step->length = request->length;
    ms_unit *units = ms__arena_array(scratch, (size_t)request->n_units, sizeof *units);
    if (units == NULL) return MS_E_NO_MEMORY;
    for (int64_t i = 0; i < request->n_units; i++)
        units[i] = (ms_unit){.name = request->unit_names[i], .param_bytes = request->unit_param_bytes[i]};
    return ms__profile_tally(profile, units, request->n_units);
}

ms_status ms_profile_from_traces(const ms_profile_request *request, ms_profile **out_profile) {
    ms_status status = check_request(request);
    if (status != MS_OK) return status;
    if (out_profile == NULL) return ms__fail(MS_E_INVALID, "ms_profile_from_traces: out_profile is NULL");
    ms_profile *profile = calloc(1, sizeof *profile);
    if (profile == NULL) return ms__fail_memory(sizeof *profile);
    ms__arena scratch = {0};
    status = fill(profile, request, &scratch);
    ms__arena_free(&scratch);
    if (status != MS_OK) {
        ms_profile_destroy(profile);
        return status;
    }
    *out_profile = profile;
    return MS_OK;
}
