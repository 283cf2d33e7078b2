/* plan.c - requests to plans: validation, the rules around the search, and what a plan says of itself.
 *
 * Rules (the search itself is in search.c): with a budget that the user set, the fastest plan within it; else the
 * least memory within the allowed slowdown, and if that does not fit, the fastest that does. Under a quarter of the
 * budget nothing is done, unless forced.
 */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "../common/hash.h"

#define SKIP_PRESSURE 4 /* the smart skip: a peak under 1/4 of the budget */

ms_status ms__plan_new(const ms_unit *units, int64_t n_units, ms_plan **out) {
    ms_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) return ms__fail_memory(sizeof *plan);
    ms_unit *copies = NULL;
    ms_status status = ms__units_copy(&plan->arena, units, n_units, &copies);
    if (status == MS_OK) plan->choices = ms__arena_array(&plan->arena, (size_t)n_units, sizeof *plan->choices);
    if (plan->choices == NULL) {
        ms_plan_destroy(plan);
        return status == MS_OK ? MS_E_NO_MEMORY : status;
    }
    plan->n_choices = n_units;
    for (int64_t i = 0; i < n_units; i++) plan->choices[i].unit = copies[i];
    *out = plan;
    return MS_OK;
}

int ms__unit_can_recompute(const ms_unit *unit) {
    uint32_t needed = MS_UNIT_ELIGIBLE | MS_UNIT_RUN;
    return (unit->flags & needed) == needed && unit->boundary_bytes < unit->saved_bytes;
}

static int64_t kept_bytes(const ms__choice *choice) {
    return choice->action == MS_ACTION_RECOMPUTE ? choice->unit.boundary_bytes : choice->unit.saved_bytes;
}

int64_t ms__plan_peak(const ms_plan *plan) {
    int64_t kept = 0, peak = 0;
    for (int64_t i = 0; i < plan->n_choices; i++) {
        if (kept + plan->choices[i].unit.saved_bytes > peak) peak = kept + plan->choices[i].unit.saved_bytes;
        kept += kept_bytes(&plan->choices[i]);
    }
    if (kept + plan->rest_bytes > peak) peak = kept + plan->rest_bytes;
    return plan->state_bytes + peak;
}

static int64_t baseline_peak(const ms_plan *plan) {
    int64_t bytes = plan->state_bytes + plan->rest_bytes;
    for (int64_t i = 0; i < plan->n_choices; i++) bytes += plan->choices[i].unit.saved_bytes;
    return bytes;
}

static ms_status check_request(const ms_plan_request *request) {
    if (request == NULL) return ms__fail(MS_E_INVALID, "ms_plan_create: the request is NULL");
    ms_status status = ms__check_struct(request->struct_bytes, sizeof *request, "ms_plan_request");
    if (status != MS_OK) return status;
    if (request->n_units < 0 || (request->units == NULL && request->n_units > 0))
        return ms__fail(MS_E_INVALID, "ms_plan_create: no units");
    if (!ms__size_in_range(request->state_bytes) || !ms__size_in_range(request->rest_bytes) ||
        !ms__size_in_range(request->budget_bytes))
        return ms__fail(MS_E_LIMIT, "ms_plan_create: a size is out of range");
    if (request->budget_bytes == 0) return ms__fail(MS_E_INVALID, "ms_plan_create: the budget must be above 0");
    if (request->slowdown_ppm > 1000000000) return ms__fail(MS_E_INVALID, "ms_plan_create: slowdown out of range");
    return MS_OK;
}

static void set_all(ms_plan *plan, bool recompute) {
    for (int64_t i = 0; i < plan->n_choices; i++) {
        bool eligible = (plan->choices[i].unit.flags & MS_UNIT_ELIGIBLE) != 0;
        plan->choices[i].action = recompute && eligible ? MS_ACTION_RECOMPUTE : MS_ACTION_KEEP;
    }
}

static int32_t reason_for(const ms__choice *choice) {
    if (choice->action == MS_ACTION_RECOMPUTE) return MS_REASON_SAVES;
    if (!(choice->unit.flags & MS_UNIT_ELIGIBLE)) return MS_REASON_NOT_ELIGIBLE;
    if (!(choice->unit.flags & MS_UNIT_RUN)) return MS_REASON_NOT_RUN;
    return ms__unit_can_recompute(&choice->unit) ? MS_REASON_NOT_NEEDED : MS_REASON_NO_GAIN;
}

static ms_status decide(ms_plan *plan, const ms_plan_request *request) {
    if (request->flags & MS_PLAN_RECOMPUTE_ALL) {
        set_all(plan, true);
        return MS_OK;
    }
    bool may_skip = !(request->flags & (MS_PLAN_FORCE | MS_PLAN_FASTEST));
    if (may_skip && baseline_peak(plan) < plan->budget_bytes / SKIP_PRESSURE) {
        plan->skipped = 1;
        set_all(plan, false);
        return MS_OK;
    }
    return ms__plan_search(plan, request);
}

ms_status ms_plan_create(const ms_plan_request *request, ms_plan **out_plan) {
    ms_status status = check_request(request);
    if (status != MS_OK) return status;
    if (out_plan == NULL) return ms__fail(MS_E_INVALID, "ms_plan_create: out_plan is NULL");
    ms_plan *plan = NULL;
    status = ms__plan_new(request->units, request->n_units, &plan);
    if (status != MS_OK || plan == NULL) return status;
    plan->state_bytes = request->state_bytes;
    plan->rest_bytes = request->rest_bytes;
    plan->budget_bytes = request->budget_bytes;
    status = decide(plan, request);
    if (status != MS_OK) {
        ms_plan_destroy(plan);
        return status;
    }
    for (int64_t i = 0; i < plan->n_choices; i++) plan->choices[i].reason = reason_for(&plan->choices[i]);
    *out_plan = plan;
    return MS_OK;
}

void ms_plan_destroy(ms_plan *plan) {
    if (plan == NULL) return;
    ms__arena_free(&plan->arena);
    free(plan);
}

static int64_t step_cost(const ms_plan *plan) {
    int64_t cost = 0;
    for (int64_t i = 0; i < plan->n_choices; i++) cost += ms__unit_cost(&plan->choices[i].unit);
    return cost * 3;
}

static int64_t share_ppm(int64_t part, int64_t whole) {
    if (whole == 0) return 0;
    return part > INT64_MAX / 1000000 ? part / (whole / 1000000) : part * 1000000 / whole;
}

static uint64_t fingerprint(const ms_plan *plan) {
    uint64_t hash = ms__hash_fold(0, (uint64_t)plan->n_choices);
    for (int64_t i = 0; i < plan->n_choices; i++) {
        const ms__choice *choice = &plan->choices[i];
        hash = ms_hash64(choice->unit.name, strlen(choice->unit.name), hash);
        hash = ms__hash_fold(hash, (uint64_t)choice->unit.param_bytes);
        hash = ms__hash_fold(hash, (uint64_t)choice->action);
    }
    return hash;
}

ms_status ms_plan_get_summary(const ms_plan *plan, ms_plan_summary *out) {
    if (plan == NULL || out == NULL) return ms__fail(MS_E_INVALID, "ms_plan_get_summary: an argument is NULL");
    ms_status status = ms__check_struct(out->struct_bytes, sizeof *out, "ms_plan_summary");
    if (status != MS_OK) return status;
    int64_t extra = 0, n_recomputed = 0;
    for (int64_t i = 0; i < plan->n_choices; i++) {
        if (plan->choices[i].action != MS_ACTION_RECOMPUTE) continue;
        extra += ms__unit_cost(&plan->choices[i].unit);
        n_recomputed++;
    }
    *out = (ms_plan_summary){.struct_bytes = sizeof *out,
                             .baseline_peak_bytes = baseline_peak(plan),
                             .predicted_peak_bytes = ms__plan_peak(plan),
                             .budget_bytes = plan->budget_bytes,
                             .slowdown_ppm = share_ppm(extra, step_cost(plan)),
                             .n_units = plan->n_choices,
                             .n_recomputed = n_recomputed,
                             .skipped = plan->skipped,
                             .fingerprint = fingerprint(plan)};
    return MS_OK;
}

ms_status ms_plan_get_entry(const ms_plan *plan, int64_t index, ms_plan_entry *out) {
    if (plan == NULL || out == NULL) return ms__fail(MS_E_INVALID, "ms_plan_get_entry: an argument is NULL");
    ms_status status = ms__check_struct(out->struct_bytes, sizeof *out, "ms_plan_entry");
    if (status != MS_OK) return status;
    if (index < 0 || index >= plan->n_choices)
        return ms__fail(MS_E_INVALID, "unit %lld of a plan with %lld", (long long)index, (long long)plan->n_choices);
    const ms__choice *choice = &plan->choices[index];
    *out = (ms_plan_entry){.struct_bytes = sizeof *out,
                           .unit = choice->unit,
                           .action = choice->action,
                           .reason = choice->reason,
                           .cost_ppm = share_ppm(ms__unit_cost(&choice->unit), step_cost(plan))};
    return MS_OK;
}

static const char *const action_names[] = {"keep", "recompute"};
static const char *const reason_names[] = {"not needed", "no gain", "not eligible", "not run", "saves"};

const char *ms_action_name(int32_t action) {
    return action >= 0 && action <= MS_ACTION_RECOMPUTE ? action_names[action] : "?";
}

const char *ms_reason_name(int32_t reason) {
    return reason >= 0 && reason <= MS_REASON_SAVES ? reason_names[reason] : "?";
}
