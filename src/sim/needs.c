/* needs.c - what a step needs: its peak, and what torch's allocator must reserve beyond it. */
#include "needs.h"

#include <stdlib.h>

#include "../common/math.h"
#include "actions.h"
#include "allocator.h"

#define MAX_LIMITS 64 /* that are tried: each adds what the one before lacked */
#define CRAMPED_PARTS                                                                                                  \
    32 /* of a limit within which memory has to be returned: what lies where differs in real steps                     \
        */

/* ---- How a step runs ---- */

uint32_t ms__device_flags(const ms_device *device) {
    return device->kind == MS_DEVICE_HOST ? 0 : MS_SIMULATE_ALLOCATOR | MS_SIMULATE_ENGINE_THREAD;
}

uint32_t ms__step_flags(uint32_t flags, bool is_changed) {
    return is_changed ? flags & ~(uint32_t)MS_SIMULATE_ENGINE_THREAD : flags;
}

bool ms__is_changed(const ms_simulation_request *request) {
    if (request->model_options != 0) return true;
    for (int64_t i = 0; request->actions != NULL && i < request->n_actions; i++)
        if (request->actions[i] != MS_ACTION_KEEP) return true;
    return false;
}

bool ms__has_blocks(const ms_device *device, uint32_t flags) {
    return device->kind != MS_DEVICE_HOST && flags & MS_SIMULATE_ALLOCATOR;
}

static bool is_played(const ms_simulation_request *request) {
    bool played = request->model_options == 0;
    for (int64_t i = 0; request->actions != NULL && i < request->n_actions; i++)
        played = played && ms__actions[request->actions[i]].is_played;
    return played;
}

/* ---- What it needs ---- */

/* What is above `most_bytes` is only known to be so. */
static ms_status play(const ms_simulation_request *request, const ms__sim_basis *basis, int64_t most_bytes,
                      ms_simulation_summary *out) {
    ms_simulation_request unlimited = *request;
    ms_simulation *sim = NULL;
    unlimited.limit_bytes = 0;
    ms_status status = ms__simulate(&unlimited, basis, is_played(request) ? most_bytes : INT64_MAX, &sim);
    if (status == MS_OK) *out = sim->summary;
    ms_simulation_destroy(sim);
    return status;
}

/* Errors: MS_E_BUDGET if it does not run within `limit_bytes`. */
static ms_status play_within(const ms_simulation_request *request, const ms__sim_basis *basis, int64_t limit_bytes) {
    ms_simulation_request limited = *request;
    ms_simulation *sim = NULL;
    limited.limit_bytes = limit_bytes;
    ms_status status = ms__simulate(&limited, basis, INT64_MAX, &sim);
    ms_simulation_destroy(sim);
    return status;
}

static int64_t highest_peak(const ms_simulation_summary *s) {
    return ms__max(s->first_peak_bytes, s->steady_peak_bytes);
}

/* Play a step with the allocator's blocks; *out_needed is what it must be allowed to reserve. Under a budget the
 * executor takes the memory of a step as one block after the first step. Where segments grow, that makes a difference
 * to what lies where, which goes either way, so the step has to run in both ways. If it needs more than `most_bytes` in
 * one, the other is not looked at. */
static ms_status play_blocks(const ms_simulation_request *request, const ms__sim_basis *basis, int64_t most_bytes,
                             ms_simulation_summary *out, int64_t *out_needed) {
    ms_simulation_request settled = *request;
    ms_simulation_summary summary = {0};
    settled.flags |= MS__SIMULATE_SETTLED;
    ms_status status = play(request, basis, most_bytes, out);
    *out_needed = out->needed_bytes;
    if (status != MS_OK || !(request->flags & MS_SIMULATE_GROWING) || out->needed_bytes > most_bytes) return status;
    status = play(&settled, basis, most_bytes, &summary);
    *out_needed = ms__max(out->needed_bytes, summary.needed_bytes);
    return status;
}

/* What an action does that is not played cannot be simulated with the allocator's blocks: what the step needs beyond
 * the peak is taken from the traced variants of its units. */
static ms_status find_beyond(const ms_simulation_request *request, const ms__sim_basis *basis, int64_t *out) {
    ms_simulation_request traced = *request;
    ms_simulation_summary summary = {0};
    int64_t needed = 0;
    int32_t *actions = calloc((size_t)request->n_actions + 1, sizeof *actions);
    if (actions == NULL) return ms__fail_memory((size_t)request->n_actions * sizeof *actions);
    for (int64_t i = 0; request->actions != NULL && i < request->n_actions; i++)
        actions[i] = ms__action_of_variant(ms__actions[request->actions[i]].variant);
    if (request->actions != NULL) traced.actions = actions;
    traced.model_options = 0;
    ms_status status = play_blocks(&traced, basis, INT64_MAX, &summary, &needed);
    free(actions);
    *out = ms__max(needed - highest_peak(&summary), 0);
    return status;
}

/* Sizes alone are simulated first: that is quicker, and never more than what is needed. */
ms_status ms__find_needs(const ms_simulation_request *request, const ms__sim_basis *basis, int64_t most_bytes,
                         ms__needs *out) {
    ms_simulation_request step = *request, sizes = *request;
    int64_t beyond = 0, needed = 0;
    sizes.flags = step.flags = ms__step_flags(request->flags, ms__is_changed(request));
    sizes.flags &= ~(uint32_t)MS_SIMULATE_ALLOCATOR;
    ms_status status = play(&sizes, basis, most_bytes, &out->played);
    if (status != MS_OK) return status;
    out->peak_bytes = highest_peak(&out->played);
    out->needed_bytes = ms__max(out->peak_bytes, out->played.needed_bytes); /* of the step that compares, too */
    if (!ms__has_blocks(step.device, step.flags) || out->peak_bytes > most_bytes) return MS_OK;
    bool played = is_played(&step);
    status = played ? play_blocks(&step, basis, most_bytes, &out->played, &needed)
                    : play(&step, basis, INT64_MAX, &out->played);
    out->peak_bytes = highest_peak(&out->played);
    if (status == MS_OK && !played) status = find_beyond(&step, basis, &beyond);
    out->needed_bytes = (played ? needed : out->peak_bytes + beyond) + MS__LARGE_GRANULE_BYTES;
    return status;
}

/* If a limit is too low, the allocation that fails names the limit it needs. */
ms_status ms__find_least_need(const ms_simulation_request *request, const ms__sim_basis *basis, int64_t *out) {
    ms_simulation_request step = *request, sizes = *request;
    ms_simulation_summary summary = {0};
    sizes.flags = step.flags = ms__step_flags(request->flags, ms__is_changed(request));
    sizes.flags &= ~(uint32_t)MS_SIMULATE_ALLOCATOR;
    ms_status status = play(&sizes, basis, INT64_MAX, &summary);
    int64_t limit = highest_peak(&summary);
    for (int i = 0; i < MAX_LIMITS && status == MS_OK; i++) {
        status = play_within(&step, basis, limit);
        if (status != MS_E_BUDGET) break;
        limit = ms__max(ms__error_value(), limit + 1);
        ms_error_clear();
        status = MS_OK;
    }
    *out = limit + limit / CRAMPED_PARTS + MS__LARGE_GRANULE_BYTES;
    return status;
}
