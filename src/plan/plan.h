/* plan.h - a plan as the files of this folder see it. */
#ifndef MS_PLAN_PLAN_H
#define MS_PLAN_PLAN_H

#include "../common/arena.h"
#include "../common/status.h"
#include "../profile/profile.h"

typedef struct ms__choice {
    ms_unit unit; /* the name belongs to the plan's arena */
    int32_t action;
    int32_t reason;
} ms__choice;

struct ms_plan {
    ms__arena arena;
    ms__choice *choices;
    int64_t n_choices;
    int64_t state_bytes;
    int64_t rest_bytes;
    int64_t budget_bytes;
    int64_t skipped;
};

/* An empty plan with copies of the units, all kept. Errors: MS_E_INVALID, MS_E_LIMIT, MS_E_NO_MEMORY. */
ms_status ms__plan_new(const ms_unit *units, int64_t n_units, ms_plan **out);

/* Does recomputing this unit save anything at all, and may it be done? */
int ms__unit_can_recompute(const ms_unit *unit);

/* The peak of a plan: states and what is kept, at the end of forward and at each unit of backward. */
int64_t ms__plan_peak(const ms_plan *plan);

/* Decide the actions (search.c). Errors: MS_E_NO_MEMORY, MS_E_BUDGET. */
ms_status ms__plan_search(ms_plan *plan, const ms_plan_request *request);

#endif
