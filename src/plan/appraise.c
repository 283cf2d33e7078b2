/* appraise.c - what a plan costs: its peak, with what torch's allocator must reserve beyond it, and its time. */
#include <stdlib.h>

#include "../common/math.h"
#include "../sim/actions.h"
#include "decide.h"

#define MAX_TRIES 64 /* of limits: each adds what the one before lacked */

/* A step that is simulated: the actions of all units. */
typedef struct played_step {
    const ms__decision *decision;
    const ms__model_choice *model;
    int32_t *actions; /* owned */
} played_step;

static ms_status open_step(played_step *s, const uint8_t *choices) {
    size_t n = (size_t)s->model->basis->profile->n_units;
    s->actions = calloc(n + 1, sizeof *s->actions);
    if (s->actions == NULL) return ms__fail_memory(n * sizeof *s->actions);
    const ms__chain *chain = &s->model->chain;
    for (int32_t i = 0; i < chain->n; i++)
        s->actions[chain->units[i].unit] = chain->units[i].options[choices[i]].action;
    return MS_OK;
}

/* Errors: MS_E_BUDGET if it does not run within `limit_bytes`. */
static ms_status run_step(const played_step *s, uint32_t model_options, int64_t limit_bytes,
                          ms_simulation_summary *out) {
    const ms_plan_request *r = s->decision->request;
    const ms__basis *basis = s->model->basis;
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = basis->profile,
                                     .actions = s->actions,
                                     .n_actions = basis->profile->n_units,
                                     .device = r->device,
                                     .limit_bytes = limit_bytes,
                                     .flags = r->simulation,
                                     .model_options = model_options};
    ms_simulation *sim = NULL;
    ms_status status = ms__simulate(&request, &basis->sim, &sim);
    if (status == MS_OK) *out = sim->summary;
    ms_simulation_destroy(sim);
    return status;
}

ms_status ms__simulate_choices(const ms__decision *d, const ms__model_choice *model, const uint8_t *choices,
                               ms_simulation_summary *out) {
    played_step s = {d, model, NULL};
    ms_status status = open_step(&s, choices);
    if (status == MS_OK) status = run_step(&s, model->model_options, 0, out);
    free(s.actions);
    return status;
}

bool ms__models_allocator(const ms_plan_request *request) {
    return request->simulation & MS_SIMULATE_ALLOCATOR && request->device->kind != MS_DEVICE_HOST;
}

int64_t ms__simulated_peak(const ms_simulation_summary *s) {
    return ms__max(s->first_peak_bytes, s->steady_peak_bytes);
}

/* What torch's allocator must be allowed to reserve beyond the peak of the step: free blocks may be too small, however
 * many there are. Only the traced variants of units can be simulated with its blocks. If a limit is too low, the
 * allocation that fails names the limit it needs. Above `most_bytes` the exact value does not matter. */
static ms_status find_fragmentation(const played_step *s, int64_t most_bytes, int64_t *out) {
    for (int64_t i = 0; i < s->model->basis->profile->n_units; i++)
        s->actions[i] = ms__actions[s->actions[i]].variant == MS__RECOMPUTED ? MS_ACTION_RECOMPUTE : MS_ACTION_KEEP;
    ms_simulation_summary summary;
    ms_status status = run_step(s, 0, 0, &summary);
    if (status != MS_OK) return status;
    int64_t peak = ms__simulated_peak(&summary), limit = peak;
    for (int i = 0; i < MAX_TRIES && limit - peak <= most_bytes; i++) {
        status = run_step(s, 0, limit, &summary);
        if (status != MS_E_BUDGET) break;
        limit = ms__max(ms__error_value(), limit + 1);
        status = MS_OK;
    }
    if (status == MS_OK) *out = limit - peak;
    return status;
}

ms_status ms__find_needed(const ms__decision *d, const ms__model_choice *model, const uint8_t *choices,
                          int64_t most_bytes, int64_t *out) {
    played_step s = {d, model, NULL};
    ms_simulation_summary summary;
    int64_t peak = 0, fragmentation = 0;
    ms_status status = open_step(&s, choices);
    if (status == MS_OK) status = run_step(&s, model->model_options, 0, &summary);
    if (status == MS_OK) peak = ms__simulated_peak(&summary);
    if (status == MS_OK && ms__models_allocator(d->request) && peak <= most_bytes)
        status = find_fragmentation(&s, most_bytes - peak, &fragmentation);
    if (status == MS_OK) *out = peak + fragmentation;
    free(s.actions);
    return status;
}

ms_status ms__appraise(const ms__decision *d, const ms__plan_list *list, const uint8_t *choices, int64_t most_bytes,
                       ms__candidate *out) {
    const ms__model_choice *model = list->model;
    ms__value value = ms__chain_play(&model->chain, list->grid, choices);
    bool alone = model->model_options == 0;
    for (int32_t i = 0; i < model->chain.n && alone; i++) alone = choices[i] == 0;
    *out = (ms__candidate){.model_options = model->model_options,
                           .peak_bytes = alone ? d->baseline_bytes : value.peak_bytes,
                           .step_ns = ms__max(ms__grid_step_ns(list->grid, &model->chain, value.ticks), list->least_ns),
                           .host_bytes = model->host_bytes + value.host_bytes,
                           .grid = list->grid};
    if (alone || out->peak_bytes > most_bytes) return MS_OK;
    int64_t needed = 0;
    ms_status status = ms__find_needed(d, model, choices, most_bytes, &needed);
    if (status == MS_OK) out->peak_bytes = ms__max(out->peak_bytes, needed);
    return status;
}
