/* guard.c - plans for batches that change their shape.
 *
 * A shape is looked up first. If it is new, the profile's polynomials give the step at that shape (or at the end of its
 * bucket: the length rounded up), the plan at hand is simulated there, and only if that does not fit a plan is made.
 */
#include <stdlib.h>
#include <string.h>

#include "../common/vec.h"
#include "decide.h"
#include "plan.h"

#define BUCKET_PARTS 8  /* lengths between a power of two and the next fall into so many buckets */
#define MAX_SHAPES 4096 /* that are remembered: beyond, the oldest are forgotten */

typedef struct shape {
    int64_t batch, length;
    const ms_plan *plan;
} shape;

struct ms_shape_plans {
    ms_plan_request request;
    const ms_plan *base;
    int64_t batch, length; /* of the base */
    int32_t *actions;      /* of the base; owned */
    bool is_plain;         /* it only keeps and recomputes: limits can be simulated */
    MS__VEC(shape) shapes;
    MS__VEC(ms_plan *) plans; /* owned */
    size_t oldest;
};

void ms_shape_plans_destroy(ms_shape_plans *guard) {
    if (guard == NULL) return;
    for (size_t i = 0; i < guard->plans.n; i++) ms_plan_destroy(guard->plans.items[i]);
    ms__vec_free(&guard->plans);
    ms__vec_free(&guard->shapes);
    free(guard->actions);
    free(guard);
}

ms_status ms_shape_plans_create(const ms_plan_request *request, const ms_plan *plan, ms_shape_plans **out_guard) {
    ms_status status = ms__request_check(request);
    if (status != MS_OK) return status;
    if (plan == NULL || out_guard == NULL) return ms__fail(MS_E_INVALID, "ms_shape_plans_create: an argument is NULL");
    if (request->profile->step == NULL) return ms__fail(MS_E_INVALID, "a profile without a step knows no shapes");
    if (plan->n_entries != request->profile->n_units)
        return ms__fail(MS_E_MISMATCH, "the plan has %lld units, the profile %lld", (long long)plan->n_entries,
                        (long long)request->profile->n_units);
    ms_shape_plans *guard = calloc(1, sizeof *guard);
    int32_t *actions = calloc((size_t)plan->n_entries + 1, sizeof *actions);
    if (guard == NULL || actions == NULL) {
        free(guard);
        free(actions);
        return ms__fail_memory(sizeof *guard);
    }
    guard->is_plain = plan->summary.model_options == 0;
    for (int64_t i = 0; i < plan->n_entries; i++) {
        actions[i] = plan->entries[i].action;
        if (actions[i] > MS_ACTION_RECOMPUTE) guard->is_plain = false;
    }
    guard->request = *request;
    guard->base = plan;
    guard->batch = request->profile->step->batch;
    guard->length = request->profile->step->length;
    guard->actions = actions;
    *out_guard = guard;
    return MS_OK;
}

/* ---- A new shape ---- */

/* The request at another shape; its profiles are owned by the caller. */
static ms_status move_to(const ms_shape_plans *guard, int64_t batch, int64_t length, ms_plan_request *out) {
    ms_profile *profile = NULL, *half = NULL;
    *out = guard->request;
    ms_status status = ms_profile_reshape(guard->request.profile, batch, length, &profile);
    if (status == MS_OK && guard->request.half_profile != NULL)
        status = ms_profile_reshape(guard->request.half_profile, batch, length, &half);
    if (status != MS_OK || profile == NULL) {
        ms_profile_destroy(profile);
        return status;
    }
    out->profile = profile;
    out->half_profile = half;
    return MS_OK;
}

static void destroy_profiles(const ms_plan_request *request) {
    ms_profile_destroy((ms_profile *)request->profile);
    ms_profile_destroy((ms_profile *)request->half_profile);
}

/* Does it run with the base, within what may be reserved? */
static ms_status fits_base(const ms_shape_plans *guard, const ms_plan_request *at, bool *out) {
    uint32_t state = guard->base->summary.model_options;
    int64_t usable = at->budget_bytes - at->margin_bytes;
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = state & MS_MODEL_HALF ? at->half_profile : at->profile,
                                     .actions = guard->actions,
                                     .n_actions = guard->base->n_entries,
                                     .device = at->device,
                                     .limit_bytes = guard->is_plain ? usable : 0,
                                     .flags = at->simulation,
                                     .model_options = state};
    ms_simulation *sim = NULL;
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    ms_status status = usable > 0 ? ms_simulation_create(&request, &sim) : MS_E_BUDGET;
    if (status == MS_OK) status = ms_simulation_get_summary(sim, &summary);
    ms_simulation_destroy(sim);
    *out = status == MS_OK && ms__simulated_peak(&summary) <= usable;
    return status == MS_E_BUDGET ? MS_OK : status;
}

/* What is asked for here was not at another time: no skipping, and the fastest that fits. */
static ms_status make_plan(ms_shape_plans *guard, ms_plan_request *at, const ms_plan **out) {
    ms_plan *plan = NULL;
    at->flags |= MS_PLAN_FASTEST;
    ms_status status = ms_plan_create(at, &plan);
    if (status != MS_OK) return status;
    if (!ms__vec_push(&guard->plans, plan)) {
        ms_plan_destroy(plan);
        return MS_E_NO_MEMORY;
    }
    *out = plan;
    return MS_OK;
}

static ms_status plan_at(ms_shape_plans *guard, int64_t batch, int64_t length, const ms_plan **out) {
    ms_plan_request at;
    bool fits = false;
    ms_status status = move_to(guard, batch, length, &at);
    if (status != MS_OK) return status;
    status = fits_base(guard, &at, &fits);
    if (status == MS_OK && fits)
        *out = guard->base;
    else if (status == MS_OK)
        status = make_plan(guard, &at, out);
    destroy_profiles(&at);
    return status;
}

static const ms_plan *find(const ms_shape_plans *guard, int64_t batch, int64_t length) {
    for (size_t i = 0; i < guard->shapes.n; i++) {
        const shape *s = &guard->shapes.items[i];
        if (s->batch == batch && s->length == length) return s->plan;
    }
    return NULL;
}

static ms_status remember(ms_shape_plans *guard, int64_t batch, int64_t length, const ms_plan *plan) {
    shape s = {batch, length, plan};
    if (guard->shapes.n < MAX_SHAPES) return ms__vec_push(&guard->shapes, s) ? MS_OK : MS_E_NO_MEMORY;
    guard->shapes.items[guard->oldest++ % MAX_SHAPES] = s;
    return MS_OK;
}

/* The longest length of the same bucket. */
static int64_t end_of_bucket(int64_t length) {
    int64_t step = 1;
    if (length > INT64_MAX / 2) return length;
    while (step * BUCKET_PARTS * 2 <= length) step *= 2;
    return (length + step - 1) / step * step;
}

static ms_status find_new(ms_shape_plans *guard, int64_t batch, int64_t length, const ms_plan **out) {
    int64_t end = end_of_bucket(length);
    *out = find(guard, batch, end);
    if (*out == NULL && end > length && plan_at(guard, batch, end, out) != MS_OK) *out = NULL;
    if (*out != NULL && end > length && find(guard, batch, end) == NULL) {
        ms_status status = remember(guard, batch, end, *out);
        if (status != MS_OK) return status;
    }
    ms_status status = *out == NULL ? plan_at(guard, batch, length, out) : MS_OK;
    return status == MS_OK ? remember(guard, batch, length, *out) : status;
}

ms_status ms_shape_plans_find(ms_shape_plans *guard, int64_t batch, int64_t length, const ms_plan **out_plan) {
    if (guard == NULL || out_plan == NULL) return ms__fail(MS_E_INVALID, "ms_shape_plans_find: an argument is NULL");
    const ms_plan *plan = batch <= guard->batch && length <= guard->length ? guard->base : find(guard, batch, length);
    if (plan == NULL) {
        ms_status status = find_new(guard, batch, length, &plan);
        if (status != MS_OK) return status;
    }
    *out_plan = plan;
    return MS_OK;
}
