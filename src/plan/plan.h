/* plan.h - a plan as the files of this folder see it. */
#ifndef MS_PLAN_PLAN_H
#define MS_PLAN_PLAN_H

#include "../common/arena.h"
#include "../common/names.h"
#include "../common/owners.h"
#include "../common/status.h"
#include "../profile/profile.h"

struct ms_plan {
    ms__owners owners;
    ms__arena arena;
    ms_plan_entry *entries; /* names belong to the arena */
    int64_t n_entries;
    ms_plan_summary summary; /* without counts and fingerprint, which follow from the entries */
};

/* A plan with n entries, all zero. `*out` is owned, ms_plan_destroy. Errors: MS_E_LIMIT, MS_E_NO_MEMORY. */
ms_status ms__plan_new(int64_t n_entries, ms_plan **out);

/* Give an entry its name, which is copied. Errors: MS_E_INVALID (no name), MS_E_NO_MEMORY. */
ms_status ms__plan_set_name(ms_plan *plan, int64_t index, const char *name);

/* Decide (decide.c): fill in entries and summary. Their names, parameters and request are already set. Errors: as
 * ms_plan_create. */
ms_status ms__plan_decide(ms_plan *plan, const ms_plan_request *request);

extern const ms__name ms__reasons[MS_N_REASONS]; /* explain.c */

#endif
