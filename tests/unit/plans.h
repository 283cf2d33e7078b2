/* plans.h - small models for the tests of plans, all of whose figures are known.
 *
 * Their step: what is resident, then the forward of each unit, which allocates its inputs and what else it saves; the
 * loss, which allocates what is kept outside of units; then each unit's backward, which frees what the unit saved. A
 * recomputed unit holds its inputs only. On the device below, a unit's forward takes a nanosecond for each byte that it
 * saves and for each of its rows, its backward takes twice that, and bytes are exact.
 */
#ifndef TESTS_PLANS_H
#define TESTS_PLANS_H

#include "runner.h"

#define KB ((int64_t)1024)

extern const ms_device exact_device;

/* A unit without parameters or rows: its forward takes as many nanoseconds as it saves bytes. */
static inline ms_unit plain_unit(const char *name, int64_t saved_bytes, int64_t input_bytes) {
    return (ms_unit){
        .name = name, .saved_bytes = saved_bytes, .input_bytes = input_bytes, .flags = MS_UNIT_ELIGIBLE | MS_UNIT_RUN};
}

/* A profile of these units, with their flags: units without MS_UNIT_RUN are not in the step. Errors: as
 * ms_profile_from_traces. */
ms_status try_profile_with(const ms_unit *units, int64_t n_units, int64_t resident_bytes, int64_t outside_bytes,
                           ms_profile **out);
ms_profile *profile_with(const ms_unit *units, int64_t n_units, int64_t resident_bytes, int64_t outside_bytes);

/* Four equal units: with the profile below, a peak of 1450 KB when nothing is done. */
static inline void equal_units(ms_unit units[4]) {
    static const char *const names[] = {"layers.0", "layers.1", "layers.2", "layers.3"};
    for (int i = 0; i < 4; i++) units[i] = plain_unit(names[i], 100 * KB, 10 * KB);
}

/* 1000 KB resident, 50 KB outside of units. */
static inline ms_profile *plain_profile(const ms_unit *units, int64_t n_units) {
    return profile_with(units, n_units, 1000 * KB, 50 * KB);
}

static inline ms_profile *equal_profile(void) {
    ms_unit units[4];
    equal_units(units);
    return plain_profile(units, 4);
}

static inline ms_plan_request request_of(const ms_profile *profile, int64_t budget_bytes, uint32_t flags) {
    return (ms_plan_request){.struct_bytes = sizeof(ms_plan_request),
                             .profile = profile,
                             .device = &exact_device,
                             .budget_bytes = budget_bytes,
                             .slowdown_ppm = -1,
                             .actions = 1U << MS_ACTION_RECOMPUTE,
                             .flags = flags};
}

static inline ms_plan *plan_of(const ms_plan_request *request) {
    ms_plan *plan = NULL;
    CHECK_STATUS(ms_plan_create(request, &plan), MS_OK);
    return plan;
}

/* A plan for these units, with the resident and outside bytes of plain_profile. */
static inline ms_plan *plan_for(const ms_unit *units, int64_t n_units, int64_t budget_bytes, uint32_t flags) {
    ms_profile *profile = plain_profile(units, n_units);
    ms_plan_request request = request_of(profile, budget_bytes, flags);
    ms_plan *plan = plan_of(&request);
    ms_profile_destroy(profile); /* the plan has what it needs */
    return plan;
}

static inline ms_plan_summary summary_of(const ms_plan *plan) {
    ms_plan_summary summary = {.struct_bytes = sizeof summary};
    CHECK_STATUS(ms_plan_get_summary(plan, &summary), MS_OK);
    return summary;
}

static inline ms_plan_entry entry_of(const ms_plan *plan, int64_t index) {
    ms_plan_entry entry = {.struct_bytes = sizeof entry};
    CHECK_STATUS(ms_plan_get_entry(plan, index, &entry), MS_OK);
    return entry;
}

#endif
