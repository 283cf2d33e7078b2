/* from_traces.c - a profile from the traces of a step: the step itself, and what it means for each unit.
 *
 * A unit's saved bytes are what its forward allocates and backward releases, all units kept. Its boundary is what
 * others allocate in forward and the unit's backward releases, all units lean.
 */
#include <stdlib.h>
#include <string.h>

#include "profile.h"

#define NOBODY (-2)

typedef struct tally {
    const ms__step *step;
    int32_t *maker; /* key -> the unit whose forward allocates it, -1 between units, NOBODY otherwise */
    ms_unit *units; /* the totals */
    int64_t rest;   /* kept for backward between units */
} tally;

static int64_t size_of(const tally *t, uint32_t key) { return t->step->numbers[t->step->keys[key].size]; }

static bool is_activation(const tally *t, uint32_t key) {
    return t->step->keys[key].category == MS_CATEGORY_ACTIVATION && t->maker[key] != NOBODY;
}

static void count_release(tally *t, uint32_t key, int32_t segment, int variant) {
    if (segment < 0 || !is_activation(t, key)) return;
    const ms__segment *s = &t->step->segments[segment];
    int32_t maker = t->maker[key];
    if (s->phase != MS_PHASE_BACKWARD) return;
    if (variant == MS__LEAN && s->unit >= 0 && maker != s->unit) t->units[s->unit].boundary_bytes += size_of(t, key);
    if (variant == MS__KEPT && maker >= 0) t->units[maker].saved_bytes += size_of(t, key);
    if (variant == MS__KEPT && maker < 0) t->rest += size_of(t, key);
}

static void count_segment(tally *t, int32_t index, int variant) {
    const ms__segment *s = &t->step->segments[index];
    for (uint32_t i = s->first[variant]; i < s->first[variant] + s->n[variant]; i++) {
        const ms__step_event *event = &t->step->events[i];
        bool forward = s->phase == MS_PHASE_FORWARD || s->phase == MS_PHASE_LOSS;
        if (event->kind == MS__ALLOCATE && forward) t->maker[event->index] = s->unit;
        if (event->kind == MS__RELEASE) count_release(t, event->index, index, variant);
        if (event->kind == MS__OPERATION && forward && s->unit >= 0 && variant == MS__KEPT)
            t->units[s->unit].n_rows += t->step->numbers[t->step->costs[event->index].flops];
    }
}

static void count(tally *t) {
    for (int v = 0; v < (t->step->has_lean ? MS__N_VARIANTS : 1); v++)
        for (uint32_t i = 0; i < t->step->n_segments; i++) count_segment(t, (int32_t)i, v);
}

static void describe_units(const tally *t, const ms_profile_request *request) {
    for (uint32_t i = 0; i < t->step->n_segments; i++) {
        const ms__segment *s = &t->step->segments[i];
        if (s->unit >= 0 && s->phase == MS_PHASE_FORWARD) t->units[s->unit].flags |= MS_UNIT_RUN;
    }
    for (int64_t i = 0; i < request->n_units; i++) {
        ms_unit *unit = &t->units[i];
        int64_t weights = request->unit_param_bytes[i] / 2; /* two operations for each of four bytes */
        unit->name = request->unit_names[i];
        unit->param_bytes = request->unit_param_bytes[i];
        unit->saved_bytes += unit->boundary_bytes; /* what the first planner means by it */
        unit->n_rows = weights > 0 ? unit->n_rows / weights : 0;
        if (t->step->has_lean) unit->flags |= MS_UNIT_ELIGIBLE;
    }
}

static int64_t state_bytes(const tally *t) {
    int64_t sum = 0;
    for (uint32_t k = 0; k < t->step->n_keys; k++) {
        uint32_t category = t->step->keys[k].category;
        if (category == MS_CATEGORY_PARAMETER || category == MS_CATEGORY_BUFFER || category == MS_CATEGORY_GRADIENT ||
            category == MS_CATEGORY_OPTIMIZER)
            sum += size_of(t, k);
    }
    return sum;
}

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
        ms__step_from_traces(&profile->arena, request->kept, request->lean, request->n_units, profile->step);
    if (status != MS_OK) return status;
    profile->step->batch = request->batch;
    profile->step->length = request->length;
    tally t = {.step = profile->step};
    t.maker = ms__arena_array(scratch, t.step->n_keys, sizeof *t.maker);
    t.units = ms__arena_array(scratch, (size_t)request->n_units, sizeof *t.units);
    if (t.maker == NULL || t.units == NULL) return MS_E_NO_MEMORY;
    for (uint32_t k = 0; k < t.step->n_keys; k++) t.maker[k] = NOBODY;
    count(&t);
    describe_units(&t, request);
    profile->n_units = request->n_units;
    profile->state_bytes = state_bytes(&t);
    profile->rest_bytes = t.rest;
    return ms__units_copy(&profile->arena, t.units, request->n_units, &profile->units);
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
