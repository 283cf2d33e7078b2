/* plan.c - creates plans: checks requests, and returns summaries and entries. The decisions are in decide.c. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "../common/hash.h"
#include "../common/structs.h"
#include "../sim/actions.h"
#include "../sim/roofline.h"
#include "decide.h"

#define MAX_ENTRIES (INT64_C(1) << 24)
#define ALL_ACTIONS ((1U << MS_N_ACTIONS) - 1)
#define ALL_FLAGS ((uint32_t)(MS_PLAN_FORCE | MS_PLAN_FASTEST | MS_PLAN_GROWN | MS_PLAN_LEAN))

ms_status ms__plan_new(int64_t n_entries, ms_plan **out) {
    if (n_entries < 0 || n_entries > MAX_ENTRIES) return ms__fail(MS_E_LIMIT, "the plan has too many layers");
    ms_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) return ms__fail_memory(sizeof *plan);
    plan->entries = ms__arena_array(&plan->arena, (size_t)n_entries, sizeof *plan->entries);
    if (plan->entries == NULL) {
        ms_plan_destroy(plan);
        return MS_E_NO_MEMORY;
    }
    plan->n_entries = n_entries;
    *out = plan;
    return MS_OK;
}

ms_status ms__plan_set_name(ms_plan *plan, int64_t index, const char *name) {
    if (name == NULL || name[0] == '\0') return ms__fail(MS_E_INVALID, "layer %lld has no name", (long long)index);
    plan->entries[index].name = ms__arena_string(&plan->arena, name, strlen(name));
    return plan->entries[index].name == NULL ? MS_E_NO_MEMORY : MS_OK;
}

ms_plan *ms_plan_share(const ms_plan *plan) {
    ms_plan *shared = (ms_plan *)plan; /* only the number of its owners changes */
    if (shared != NULL) ms__owners_add(&shared->owners);
    return shared;
}

void ms_plan_destroy(ms_plan *plan) {
    if (plan == NULL || !ms__owners_remove(&plan->owners)) return;
    ms__arena_free(&plan->arena);
    free(plan);
}

/* ---- Requests ---- */

static ms_status check_plan_profiles(ms_plan_request *request, ms__device_copy *device) {
    const ms_profile *profile = request->profile, *half = request->half_profile, *plain = request->plain_profile;
    if (profile == NULL) return ms__fail(MS_E_INVALID, "ms_plan_create: the profile is NULL");
    ms_status status = ms__device_read(request->device, device);
    request->device = &device->device;
    if (status == MS_OK && plain != NULL && plain->n_units != profile->n_units)
        status = ms__fail(MS_E_MISMATCH, "ms_plan_create: the plain profile is not of the same model");
    if (status != MS_OK || half == NULL) return status;
    if (half->n_units != profile->n_units)
        return ms__fail(MS_E_MISMATCH, "ms_plan_create: the two profiles are not of one model");
    for (int64_t i = 0; i < profile->n_units; i++)
        if (strcmp(profile->units[i].name, half->units[i].name) != 0)
            return ms__fail(MS_E_MISMATCH, "ms_plan_create: the two profiles are not of one model");
    return MS_OK;
}

ms_status ms__request_read(const ms_plan_request *theirs, ms__request_copy *out) {
    ms_plan_request *request = &out->request;
    ms_status status = ms__struct_read(MS__STRUCT(ms_plan_request), theirs, request);
    if (status == MS_OK) status = check_plan_profiles(request, &out->device);
    if (status != MS_OK) return status;
    if (!ms__size_in_range(request->budget_bytes) || !ms__size_in_range(request->margin_bytes) ||
        !ms__size_in_range(request->host_limit_bytes) || !ms__size_in_range(request->occupied_bytes) ||
        !ms__size_in_range(request->limit_bytes) || request->prefetch_depth < 0 ||
        request->prefetch_depth > MS__MAX_PREFETCH)
        return ms__fail(MS_E_LIMIT, "ms_plan_create: a size is out of range");
    if (request->budget_bytes == 0) return ms__fail(MS_E_INVALID, "ms_plan_create: the budget must be above 0");
    if (request->slowdown_ppm > 1000000000)
        return ms__fail(MS_E_INVALID, "ms_plan_create: slowdown_ppm is out of range");
    if ((request->actions & ~ALL_ACTIONS) != 0 || (request->model_options & ~(uint32_t)MS_MODEL_ALL) != 0 ||
        (request->flags & ~ALL_FLAGS) != 0 || (request->simulation & ~MS__SIMULATE_ALL) != 0)
        return ms__fail(MS_E_INVALID, "ms_plan_create: a flag is unknown");
    return MS_OK;
}

static ms_status fill_plan(ms_plan *plan, const ms_plan_request *request) {
    const ms_profile *profile = request->profile;
    ms_status status = MS_OK;
    for (int64_t i = 0; i < profile->n_units && status == MS_OK; i++) {
        status = ms__plan_set_name(plan, i, profile->units[i].name);
        plan->entries[i].param_bytes = profile->units[i].param_bytes;
    }
    plan->summary.budget_bytes = request->budget_bytes;
    plan->summary.margin_bytes = request->margin_bytes;
    plan->summary.occupied_bytes = request->occupied_bytes;
    plan->summary.flags = request->flags;
    plan->summary.peak_unit = -1;
    plan->summary.batch = profile->step->batch;
    plan->summary.length = profile->step->length;
    return status == MS_OK ? ms__plan_decide(plan, request) : status;
}

ms_status ms_plan_create(const ms_plan_request *request, ms_plan **out_plan) {
    ms__request_copy copy;
    ms_status status = ms__request_read(request, &copy);
    if (status != MS_OK) return status;
    if (out_plan == NULL) return ms__fail(MS_E_INVALID, "ms_plan_create: out_plan is NULL");
    ms_plan *plan = NULL;
    status = ms__plan_new(copy.request.profile->n_units, &plan);
    if (status != MS_OK || plan == NULL) return status;
    status = fill_plan(plan, &copy.request);
    if (status != MS_OK) {
        ms_plan_destroy(plan);
        return status;
    }
    *out_plan = plan;
    return MS_OK;
}

/* ---- Summaries and entries ---- */

static uint64_t fingerprint(const ms_plan *plan) {
    const ms_plan_summary *s = &plan->summary;
    uint64_t hash = ms__hash_fold(0, (uint64_t)plan->n_entries);
    hash = ms__hash_fold(hash, s->model_options);
    hash = ms__hash_fold(hash, (uint64_t)s->budget_bytes);
    hash = ms__hash_fold(hash, (uint64_t)s->margin_bytes);
    hash = ms__hash_fold(hash, (uint64_t)s->host_limit_bytes);
    hash = ms__hash_fold(hash, (uint64_t)s->occupied_bytes);
    hash = ms__hash_fold(hash, (uint64_t)s->grows);
    if (s->spacer_bytes > 0) {
        hash = ms__hash_fold(hash, (uint64_t)s->spacer_bytes);
        hash = ms__hash_fold(hash, (uint64_t)s->spacer_unit);
    }
    for (int64_t i = 0; i < plan->n_entries; i++) {
        const ms_plan_entry *entry = &plan->entries[i];
        hash = ms_hash64(entry->name, strlen(entry->name), hash);
        hash = ms__hash_fold(hash, (uint64_t)entry->param_bytes);
        hash = ms__hash_fold(hash, (uint64_t)entry->action);
        if (ms__actions[entry->action].needs_link) {
            hash = ms__hash_fold(hash, (uint64_t)entry->leaves_after);
            hash = ms__hash_fold(hash, (uint64_t)entry->fetched_before);
        }
    }
    return hash;
}

ms_status ms_plan_get_summary(const ms_plan *plan, ms_plan_summary *out) {
    if (plan == NULL) return ms__fail(MS_E_INVALID, "ms_plan_get_summary: the plan is NULL");
    ms_plan_summary summary = plan->summary;
    summary.n_units = plan->n_entries;
    summary.n_changed = 0;
    for (int64_t i = 0; i < plan->n_entries; i++) summary.n_changed += plan->entries[i].action != MS_ACTION_KEEP;
    summary.fingerprint = fingerprint(plan);
    return ms__struct_write(MS__STRUCT(ms_plan_summary), &summary, out);
}

ms_status ms_plan_get_entry(const ms_plan *plan, int64_t index, ms_plan_entry *out) {
    if (plan == NULL) return ms__fail(MS_E_INVALID, "ms_plan_get_entry: the plan is NULL");
    if (index < 0 || index >= plan->n_entries)
        return ms__fail(MS_E_INVALID, "ms_plan_get_entry: there is no layer %lld; the plan has %lld", (long long)index,
                        (long long)plan->n_entries);
    return ms__struct_write(MS__STRUCT(ms_plan_entry), &plan->entries[index], out);
}
