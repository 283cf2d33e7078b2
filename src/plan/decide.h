/* decide.h - what a decision is based on: the sets of model options that are allowed, each with its chain, and the
 * appraisal of plans.
 */
#ifndef MS_PLAN_DECIDE_H
#define MS_PLAN_DECIDE_H

#include "../sim/needs.h"
#include "../sim/roofline.h"
#include "chain_build.h"
#include "plan.h"

#define MS__N_MODEL_CHOICES (MS_MODEL_ALL + 1)

/* A block that is there while a unit runs forward. What the unit allocates then lies above it, and what comes after
 * finds its room: one large hole in place of two that are too small. */
typedef struct ms__spacer {
    int64_t unit, n_bytes; /* 0 bytes: there is none */
} ms__spacer;

/* A plan that is possible. */
typedef struct ms__candidate {
    uint32_t model_options;
    int64_t needed_bytes; /* memory that must be there for it */
    int64_t peak_bytes;   /* what is allocated at most, if it is known */
    int64_t step_ns, host_bytes;
    ms__spacer spacer;
    bool grows;           /* segments of torch's allocator do */
    bool is_cramped;      /* torch's allocator has to return memory in every step */
    const ms__grid *grid; /* on which its time was counted */
    uint8_t *choices;     /* by position of the chain; NULL: there is none */
} ms__candidate;

/* One set of model options that is allowed, with its chain. */
typedef struct ms__model_choice {
    uint32_t model_options;
    const ms__basis *basis;
    ms__chain chain;
    int64_t host_bytes;  /* taken by the options */
    int64_t least_bytes; /* no plan has a lower peak */
    int64_t n_plans;     /* in its list, if they are simulated */
} ms__model_choice;

/* The plans of a model choice whose times are counted on one grid. */
typedef struct ms__plan_list {
    const ms__model_choice *model;
    const ms__grid *grid;
    int64_t least_ns; /* every plan counts as at least this slow */
} ms__plan_list;

typedef struct ms__decision {
    const ms_plan_request *request; /* must have been checked */
    ms__arena arena;
    ms__basis plain, half;
    ms__model_choice models[MS__N_MODEL_CHOICES]; /* the fastest first */
    int32_t n_models;
    int64_t budget_bytes, margin_bytes; /* of the request, or of its limit where no plan fits the budget */
    int64_t usable_bytes;               /* the budget less the margin and what is occupied */
    ms__needs baseline;                 /* of the plain step */
    int64_t baseline_ns;
    bool is_exact;     /* the simulation of every plan is: only traced actions are allowed */
    ms__spacer spacer; /* that plans have where they need less with it */
    ms__candidate best;
} ms__decision;

/* Fill in all but `request` and `best`. Errors: as ms_simulation_create. It must be closed in any case. */
ms_status ms__decision_open(ms__decision *decision);
void ms__decision_close(ms__decision *decision);

/* Set `best` to the plan that needs the least memory, however long it takes, of those that are as lean the fastest.
 * Errors: as ms_simulation_create. */
ms_status ms__decide_smallest(ms__decision *decision);

/* The model choice with these options, or the fastest if there is none. */
const ms__model_choice *ms__decision_model(const ms__decision *decision, uint32_t model_options);

/* ---- Budgets (budget.c) ---- */

/* No plan fits the budget: from now on the limit of the request is the budget, if it is higher. */
void ms__decision_widen(ms__decision *decision);

/* A budget in round figures, within what may be used, with which nothing is done to the step; 0: there is none, or
 * `best` takes no longer than the plain step. */
int64_t ms__full_speed_budget(const ms__decision *decision);

/* At least so many bytes, in round figures: four digits. */
int64_t ms__round_up_bytes(int64_t n_bytes);

/* A copy of a caller's request. It points into itself, so it must stay where it is. */
typedef struct ms__request_copy {
    ms_plan_request request;
    ms__device_copy device;
} ms__request_copy;

/* A request that plans can be made from. Errors: as ms_plan_create. */
ms_status ms__request_read(const ms_plan_request *theirs, ms__request_copy *out);

/* ---- Appraisal of plans (appraise.c) ---- */

/* The plan that does nothing: torch's allocator is left as it is, too. */
ms__candidate ms__alone(const ms__decision *decision, const ms__plan_list *list);

/* The cost of these choices, with segments that grow where they can. Bytes above `most_bytes` need not be exact, only
 * above it. `out->choices` is not set. Errors: as ms_simulation_create. */
ms_status ms__appraise(const ms__decision *decision, const ms__plan_list *list, const uint8_t *choices,
                       int64_t most_bytes, ms__candidate *out);

/* A step with these choices. */
typedef struct ms__choices_step {
    const ms__model_choice *model;
    const uint8_t *choices; /* by position of the chain */
    ms__spacer spacer;
    bool grows; /* segments of torch's allocator do */
} ms__choices_step;

ms__choices_step ms__best_step(const ms__decision *decision);

/* What a step needs, and what it just runs with (needs.h). Errors: as there. */
ms_status ms__choices_needs(const ms__decision *decision, const ms__choices_step *step, int64_t most_bytes,
                            ms__needs *out);
ms_status ms__choices_least_need(const ms__decision *decision, const ms__choices_step *step, int64_t *out);

/* Recompute the first `n_units` of the chain that may be. */
void ms__choose_first(const ms__chain *chain, int32_t n_units, uint8_t *choices);

/* How a step of this request is simulated if segments of torch's allocator grow, or stay as they are. */
uint32_t ms__simulation_flags(const ms_plan_request *request, bool grows);

/* Can segments of torch's allocator be made to grow? */
bool ms__can_grow(const ms_plan_request *request);

/* Is torch's allocator simulated? */
bool ms__models_allocator(const ms_plan_request *request);

/* The highest peak of a simulation: of the first step, or of a later one. */
int64_t ms__simulated_peak(const ms_simulation_summary *summary);

/* ---- The spacer (spacer.c) ---- */

/* Set the spacer of the decision, which must be open. It follows from the step and the device alone, whatever the
 * budget. Errors: as ms_simulation_create. */
ms_status ms__find_spacer(ms__decision *decision);

/* ---- Why (explain.c) ---- */

/* Fill in the entries of a plan: the action of each unit, and its closest alternative. */
void ms__explain_units(const ms__decision *decision, ms_plan *plan);

/* No plan fits, and `best` is the one with the least peak: report that peak and what it consists of. */
ms_status ms__refuse(const ms__decision *decision);

#endif
