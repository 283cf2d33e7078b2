/* from_traces.c - makes a profile from the traces of a step: the step itself, and the totals of each unit. */
#include <stdlib.h>

#include "../common/structs.h"
#include "profile.h"
#include "trace.h"

/* A request with the traces that it points to. */
typedef struct input {
    ms_profile_request request;
    ms_trace plain, recomputed, pointwise;
} input;

ms_status ms_profile_request_init(ms_profile_request *request, const ms_trace *plain) {
    if (plain == NULL) return ms__fail(MS_E_INVALID, "ms_profile_request_init: the trace is NULL");
    const ms_profile_request ours = {.plain = plain};
    return ms__struct_write(MS__STRUCT(ms_profile_request), &ours, request);
}

static ms_status check_request(const ms_profile_request *request) {
    if (request->batch < 0 || request->length < 0)
        return ms__fail(MS_E_INVALID, "a profile from traces: batch or length is negative");
    if (request->n_units < 0 || request->n_units > INT32_MAX ||
        (request->n_units > 0 && (request->unit_names == NULL || request->unit_param_bytes == NULL)))
        return ms__fail(MS_E_INVALID, "a profile from traces: n_units is out of range, or names or sizes are NULL");
    for (int64_t i = 0; request->unit_flags != NULL && i < request->n_units; i++)
        if ((request->unit_flags[i] & ~(uint32_t)MS_UNIT_BLOCK) != 0)
            return ms__fail(MS_E_INVALID, "a profile from traces: layer %lld has a flag other than MS_UNIT_BLOCK",
                            (long long)i);
    return MS_OK;
}

static ms_status read_request(const ms_profile_request *request, ms_profile_request *out) {
    ms_status status = ms__struct_read(MS__STRUCT(ms_profile_request), request, out);
    return status == MS_OK ? check_request(out) : status;
}

static ms_status read_all(const ms_profile_request *request, input *out) {
    ms_status status = read_request(request, &out->request);
    if (status == MS_OK) status = ms__struct_read(MS__STRUCT(ms_trace), out->request.plain, &out->plain);
    if (status == MS_OK && out->request.recomputed != NULL)
        status = ms__struct_read(MS__STRUCT(ms_trace), out->request.recomputed, &out->recomputed);
    if (status == MS_OK && out->request.pointwise != NULL)
        status = ms__struct_read(MS__STRUCT(ms_trace), out->request.pointwise, &out->pointwise);
    return status;
}

/* The traces of a watched step; they belong to the arena. */
static ms_status read_watched(const ms_profile_request *request, ms__arena *arena, input *out) {
    ms_trace watched;
    ms_status status = read_request(request, &out->request);
    if (status != MS_OK) return status;
    if (out->request.plain != NULL || out->request.recomputed == NULL || out->request.pointwise != NULL)
        return ms__fail(MS_E_INVALID,
                        "ms_profile_from_watched_trace: the trace must be `recomputed`, and the only one");
    status = ms__struct_read(MS__STRUCT(ms_trace), out->request.recomputed, &watched);
    if (status == MS_OK) status = ms__trace_check(&watched);
    if (status == MS_OK) status = ms__trace_with_steady_optimizer(arena, &watched, &out->recomputed);
    return status == MS_OK ? ms__trace_without_recomputation(arena, &out->recomputed, &out->plain) : status;
}

static ms_status fill(ms_profile *profile, const input *in, ms__arena *scratch) {
    const ms_profile_request *request = &in->request;
    profile->step = ms__arena_alloc(&profile->arena, sizeof *profile->step);
    if (profile->step == NULL) return MS_E_NO_MEMORY;
    bool has_recomputed = request->recomputed != NULL;
    const ms_trace *const traces[MS__N_VARIANTS] = {
        [MS__PLAIN] = &in->plain,
        [MS__RECOMPUTED] = has_recomputed ? &in->recomputed : NULL,
        [MS__POINTWISE] = has_recomputed && request->pointwise != NULL ? &in->pointwise : NULL};
    ms_status status = ms__step_from_traces(&profile->arena, traces, request->n_units, profile->step);
    if (status != MS_OK) return status;
    profile->step->batch = request->batch;
    profile->step->length = request->length;
    ms_unit *units = ms__arena_array(scratch, (size_t)request->n_units, sizeof *units);
    if (units == NULL) return MS_E_NO_MEMORY;
    for (int64_t i = 0; i < request->n_units; i++)
        units[i] = (ms_unit){.name = request->unit_names[i],
                             .param_bytes = request->unit_param_bytes[i],
                             .flags = request->unit_flags == NULL ? 0 : request->unit_flags[i]};
    return ms__profile_tally(profile, units, request->n_units);
}

static ms_status make(const input *in, ms__arena *scratch, ms_profile **out_profile) {
    if (out_profile == NULL) return ms__fail(MS_E_INVALID, "a profile from traces: out_profile is NULL");
    ms_profile *profile = calloc(1, sizeof *profile);
    if (profile == NULL) return ms__fail_memory(sizeof *profile);
    ms_status status = fill(profile, in, scratch);
    if (status == MS_OK)
        *out_profile = profile;
    else
        ms_profile_destroy(profile);
    return status;
}

ms_status ms_profile_from_traces(const ms_profile_request *request, ms_profile **out_profile) {
    input in;
    ms__arena scratch = {0};
    ms_status status = read_all(request, &in);
    if (status == MS_OK) status = make(&in, &scratch, out_profile);
    ms__arena_free(&scratch);
    return status;
}

ms_status ms_profile_from_watched_trace(const ms_profile_request *request, ms_profile **out_profile) {
    input in;
    ms__arena scratch = {0};
    ms_status status = read_watched(request, &scratch, &in);
    if (status == MS_OK) status = make(&in, &scratch, out_profile);
    ms__arena_free(&scratch);
    return status;
}
