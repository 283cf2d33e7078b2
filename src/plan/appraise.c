/* appraise.c - what a plan costs: what its step needs (needs.h), and its time.
 *
 * If units can only be kept or recomputed, the simulation is exact: every allocation of the step is played. What other
 * actions change is added to such a simulation; if they are allowed, the chain's peak counts as well where it is
 * higher.
 */
#include <stdlib.h>

#include "../common/math.h"
#include "../sim/actions.h"
#include "decide.h"

/* A step that is simulated: the actions of all units. */
typedef struct played_step {
    ms_simulation_request request;
    const ms__sim_basis *basis;
    int32_t *actions; /* owned */
} played_step;

bool ms__models_allocator(const ms_plan_request *request) {
    return ms__has_blocks(request->device, request->simulation);
}

bool ms__can_grow(const ms_plan_request *request) {
    return ms__models_allocator(request) && request->simulation & MS_SIMULATE_GROWING;
}

uint32_t ms__simulation_flags(const ms_plan_request *request, bool grows) {
    bool is_grown = grows || request->flags & MS_PLAN_GROWN;
    return request->simulation & ~(uint32_t)(is_grown ? 0 : MS_SIMULATE_GROWING);
}

int64_t ms__simulated_peak(const ms_simulation_summary *s) {
    return ms__max(s->first_peak_bytes, s->steady_peak_bytes);
}

static ms_status open_step(played_step *s, const ms__decision *d, const ms__choices_step *step) {
    const ms__model_choice *model = step->model;
    const ms_profile *profile = model->basis->profile;
    size_t n = (size_t)profile->n_units;
    *s = (played_step){.basis = &model->basis->sim, .actions = calloc(n + 1, sizeof *s->actions)};
    if (s->actions == NULL) return ms__fail_memory(n * sizeof *s->actions);
    for (int32_t i = 0; i < model->chain.n; i++)
        s->actions[model->chain.units[i].unit] = model->chain.units[i].options[step->choices[i]].action;
    s->request = (ms_simulation_request){.struct_bytes = sizeof s->request,
                                         .profile = profile,
                                         .actions = s->actions,
                                         .n_actions = profile->n_units,
                                         .device = d->request->device,
                                         .flags = ms__simulation_flags(d->request, step->grows),
                                         .model_options = model->model_options,
                                         .prefetch_depth = d->request->prefetch_depth,
                                         .spacer_bytes = step->spacer.n_bytes,
                                         .spacer_unit = step->spacer.unit};
    if (d->request->plain_profile != NULL && !ms__is_changed(&s->request)) {
        s->request.profile = d->request->plain_profile;
        s->basis = NULL;
    }
    return MS_OK;
}

ms__choices_step ms__best_step(const ms__decision *d) {
    return (ms__choices_step){ms__decision_model(d, d->best.model_options), d->best.choices, d->best.spacer,
                              d->best.grows};
}

ms_status ms__choices_needs(const ms__decision *d, const ms__choices_step *step, int64_t most_bytes, ms__needs *out) {
    played_step s;
    ms_status status = open_step(&s, d, step);
    if (status == MS_OK) status = ms__find_needs(&s.request, s.basis, most_bytes, out);
    free(s.actions);
    return status;
}

ms_status ms__choices_least_need(const ms__decision *d, const ms__choices_step *step, int64_t *out) {
    played_step s;
    ms_status status = open_step(&s, d, step);
    if (status == MS_OK) status = ms__find_least_need(&s.request, s.basis, out);
    free(s.actions);
    return status;
}

/* A step in which nothing is done has no spacer either. */
static bool is_kept(const ms__choices_step *step) {
    for (int32_t i = 0; i < step->model->chain.n; i++)
        if (step->choices[i] != 0) return false;
    return true;
}

/* With the spacer if the step needs less with it and its peak is no higher, else without. */
static ms_status find_less(const ms__decision *d, ms__choices_step *step, int64_t most_bytes, ms__needs *out) {
    ms__needs without;
    if (step->spacer.n_bytes == 0) return ms__choices_needs(d, step, most_bytes, out);
    ms_status status = ms__choices_needs(d, step, most_bytes, out);
    if (status != MS_OK) return status;
    step->spacer = (ms__spacer){0};
    status = ms__choices_needs(d, step, ms__min(most_bytes, out->needed_bytes), &without);
    if (status != MS_OK) return status;
    bool needs_less = out->needed_bytes<without.needed_bytes, is_higher = out->peak_bytes> without.peak_bytes;
    if (needs_less && is_higher) return ms__choices_needs(d, step, most_bytes, out);
    if (needs_less)
        step->spacer = d->spacer;
    else
        *out = without;
    return MS_OK;
}

ms_status ms__appraise(const ms__decision *d, const ms__plan_list *list, const uint8_t *choices, int64_t most_bytes,
                       ms__candidate *out) {
    const ms__model_choice *model = list->model;
    ms__value value = ms__chain_play(&model->chain, list->grid, choices);
    *out = (ms__candidate){.model_options = model->model_options,
                           .needed_bytes = value.peak_bytes,
                           .step_ns = ms__max(ms__grid_step_ns(list->grid, &model->chain, value.ticks), list->least_ns),
                           .host_bytes = model->host_bytes + value.host_bytes,
                           .grows = ms__can_grow(d->request),
                           .grid = list->grid};
    if (!d->is_exact && out->needed_bytes > most_bytes) return MS_OK;
    ms__choices_step step = {model, choices, d->spacer, out->grows};
    if (is_kept(&step)) step.spacer = (ms__spacer){0};
    ms__needs needs;
    ms_status status = find_less(d, &step, most_bytes, &needs);
    if (status != MS_OK) return status;
    out->needed_bytes = d->is_exact ? needs.needed_bytes : ms__max(out->needed_bytes, needs.needed_bytes);
    out->peak_bytes = needs.peak_bytes;
    out->spacer = step.spacer;
    return MS_OK;
}
