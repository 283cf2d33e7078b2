/* settings.c - makes a request from what a user asks for: the one place where budgets, margins, reserves and allowed
 * techniques are decided, for Python and for C.
 */
#include "../common/math.h"
#include "../common/structs.h"
#include "../sim/actions.h"
#include "../sim/allocator.h"
#include "../sim/model_options.h"
#include "../sim/roofline.h"
#include "decide.h"

#define PPM INT64_C(1000000)
#define ROUND_BYTES (INT64_C(256) << 20)       /* free memory varies; rounded down to this, plans repeat */
#define LEAST_RESERVE_BYTES (INT64_C(2) << 30) /* of host memory, for this program and others: this, ... */
#define RESERVE_PARTS 16                       /* ... or this part of the total */
#define MOST_BYTES (INT64_C(1) << 50)          /* more than any device has: as good as no limit */

/* ---- Modes ---- */

static const struct {
    const char *name;
    uint32_t techniques;
    int64_t slowdown_ppm;
} modes[MS_N_MODES] = {
    [MS_MODE_CONSERVATIVE] = {"conservative", MS_TECHNIQUE_RECOMPUTE, 150000},
    [MS_MODE_BALANCED] = {"balanced", MS_TECHNIQUE_RECOMPUTE | MS_TECHNIQUE_OFFLOAD, 550000},
    [MS_MODE_AGGRESSIVE] = {"aggressive", MS_TECHNIQUE_ALL, -1},
};

const char *ms_mode_name(int32_t mode) { return mode >= 0 && mode < MS_N_MODES ? modes[mode].name : "?"; }

ms_status ms_settings_init(ms_settings *out, int32_t mode) {
    if (mode < 0 || mode >= MS_N_MODES) return ms__fail(MS_E_INVALID, "mode %d is unknown", (int)mode);
    const ms_settings ours = {.utilization_ppm = 850000,
                              .slowdown_ppm = modes[mode].slowdown_ppm,
                              .offload_limit_bytes = -1,
                              .techniques = modes[mode].techniques};
    return ms__struct_write(MS__STRUCT(ms_settings), &ours, out);
}

/* ---- Memory ---- */

static int64_t round_down(int64_t n_bytes) { return n_bytes / ROUND_BYTES * ROUND_BYTES; }

static int64_t share_of(int64_t n_bytes, int64_t ppm) { return n_bytes / PPM * ppm + n_bytes % PPM * ppm / PPM; }

/* A budget that is set is not more than the device has. */
static int64_t budget_of(const ms_settings *settings, const ms_device *device) {
    int64_t most = device->usable_bytes > 0 ? ms__min(device->usable_bytes, MOST_BYTES) : MOST_BYTES;
    if (settings->budget_bytes > 0) return ms__min(settings->budget_bytes, most);
    int64_t usable = device->kind == MS_DEVICE_HOST ? device->usable_bytes : round_down(device->usable_bytes);
    int64_t budget = share_of(usable, settings->utilization_ppm);
    return budget > 0 ? budget : 1;
}

static int64_t host_limit_of(int64_t limit_bytes, const ms_hw *host) {
    if (limit_bytes >= 0) return ms__min(limit_bytes, MOST_BYTES);
    if (host == NULL) return 0;
    int64_t reserve = ms__max(host->memory_limit_bytes / RESERVE_PARTS, LEAST_RESERVE_BYTES);
    int64_t left = host->memory_available_bytes - reserve;
    return left > 0 ? round_down(left) : 0;
}

int64_t ms_budget_get_host_limit(int64_t limit_bytes, const ms_hw *host) {
    ms_hw machine;
    if (host != NULL && ms__struct_read(MS__STRUCT(ms_hw), host, &machine) != MS_OK) {
        ms_error_clear();
        host = NULL;
    }
    return host_limit_of(limit_bytes, host == NULL ? NULL : &machine);
}

int64_t ms_budget_get_cap(int64_t budget_bytes, int64_t own_bytes) {
    int64_t taken = ms__min(ms__max(own_bytes, 0), MOST_BYTES) + MS__LARGE_GRANULE_BYTES;
    return budget_bytes > taken ? budget_bytes - taken : 0;
}

/* ---- Techniques ---- */

/* Techniques that the device does not support are left out: a CPU has nothing to offload to, and the oldest GPUs have
 * no 16-bit type. */
static uint32_t techniques_on(const ms_settings *settings, const ms_device *device) {
    uint32_t techniques = settings->techniques;
    if (device->kind != MS_DEVICE_GPU) techniques &= ~(uint32_t)MS_TECHNIQUE_OFFLOAD;
    if (device->kind != MS_DEVICE_HOST && !ms_capability_has_fp16(device->rates->capability))
        techniques &= ~(uint32_t)MS_TECHNIQUE_HALF;
    return techniques;
}

/* Copies overlap with computing if that is asked for, else the step waits for them. */
static bool may_copy_so(const ms__action *row, const ms_settings *settings) {
    return !row->needs_link || row->waits == !(settings->flags & MS_SETTINGS_ASYNC);
}

static bool is_allowed(uint32_t needed, bool is_chosen, uint32_t techniques, const ms_settings *settings) {
    return (needed & ~techniques) == 0 && (is_chosen || settings->flags & MS_SETTINGS_UNRUNNABLE);
}

static void allow(ms_plan_request *out, const ms_settings *settings, const ms_device *device) {
    uint32_t techniques = techniques_on(settings, device);
    for (int32_t action = 1; action < MS_N_ACTIONS; action++) {
        const ms__action *row = &ms__actions[action];
        bool is_chosen = row->chosen_on & 1U << device->kind && may_copy_so(row, settings);
        if (is_allowed(row->techniques, is_chosen, techniques, settings)) out->actions |= 1U << action;
    }
    for (uint32_t i = 0; i < MS__N_MODEL_OPTIONS; i++) {
        const ms__model_option *row = &ms__model_options[i];
        if (is_allowed(row->techniques, row->is_runnable, techniques, settings)) out->model_options |= 1U << i;
    }
}

static bool uses_host(const ms_plan_request *request) {
    for (int32_t action = 0; action < MS_N_ACTIONS; action++)
        if (request->actions & 1U << action && ms__actions[action].needs_link) return true;
    return ms__model_options_with_link(request->model_options) != 0;
}

/* ---- The request ---- */

static ms_status read_settings(const ms_settings *theirs, ms_settings *settings) {
    ms_status status = ms__struct_read(MS__STRUCT(ms_settings), theirs, settings);
    if (status != MS_OK) return status;
    if (settings->utilization_ppm <= 0 || settings->utilization_ppm > PPM)
        return ms__fail(MS_E_INVALID, "ms_settings: utilization_ppm must be from 1 to 1000000");
    if (settings->prefetch_depth < 0 || settings->prefetch_depth > MS__MAX_PREFETCH)
        return ms__fail(MS_E_INVALID, "ms_settings: prefetch_depth must be from 0 to %d", MS__MAX_PREFETCH);
    if (settings->budget_bytes < 0 || settings->occupied_bytes < 0)
        return ms__fail(MS_E_INVALID, "ms_settings: budget_bytes and occupied_bytes must not be negative");
    if ((settings->techniques & ~(uint32_t)MS_TECHNIQUE_ALL) != 0 ||
        (settings->flags & ~(uint32_t)MS_SETTINGS_ALL) != 0)
        return ms__fail(MS_E_INVALID, "ms_settings: a technique or a flag is unknown");
    return MS_OK;
}

/* Segments that grow fail with driver errors on integrated GPUs. */
static bool may_grow(const ms_settings *settings, const ms_device *device) {
    if (settings->flags & MS_SETTINGS_GROWN) return true;
    return device->kind == MS_DEVICE_GPU && !(settings->flags & MS_SETTINGS_FIXED);
}

static ms_plan_request request_for(const ms_settings *settings, const ms_device *device, const ms_hw *host) {
    bool has_budget = settings->budget_bytes > 0;
    ms_plan_request request = {.budget_bytes = budget_of(settings, device),
                               .slowdown_ppm = settings->slowdown_ppm < 0 ? -1 : settings->slowdown_ppm};
    request.margin_bytes = request.budget_bytes / MS__MARGIN_PARTS;
    request.limit_bytes = has_budget ? 0 : ms__min(device->usable_bytes, MOST_BYTES);
    allow(&request, settings, device);
    if (uses_host(&request)) request.host_limit_bytes = host_limit_of(settings->offload_limit_bytes, host);
    request.simulation = ms__device_flags(device);
    if (may_grow(settings, device)) request.simulation |= MS_SIMULATE_GROWING;
    if (settings->flags & MS_SETTINGS_GROWN) request.flags |= MS_PLAN_GROWN;
    request.occupied_bytes = settings->occupied_bytes;
    request.prefetch_depth = settings->prefetch_depth;
    if (settings->flags & MS_SETTINGS_FORCE) request.flags |= MS_PLAN_FORCE;
    if (has_budget) request.flags |= MS_PLAN_FASTEST;
    return request;
}

ms_status ms_plan_request_init(ms_plan_request *out, const ms_settings *settings, const ms_device *device,
                               const ms_hw *host) {
    ms_settings ours;
    ms__device_copy copy;
    ms_hw machine;
    ms_status status = read_settings(settings, &ours);
    if (status == MS_OK) status = ms__device_read(device, &copy);
    if (status == MS_OK && host != NULL) status = ms__struct_read(MS__STRUCT(ms_hw), host, &machine);
    if (status != MS_OK) return status;
    ms_plan_request request = request_for(&ours, &copy.device, host == NULL ? NULL : &machine);
    request.device = device;
    return ms__struct_write(MS__STRUCT(ms_plan_request), &request, out);
}
