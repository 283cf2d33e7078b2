/* decide.h - what a decision is based on: the sets of model options that are allowed, each with its chain, and the
 * appraisal of plans.
 */
#ifndef MS_PLAN_DECIDE_H
#define MS_PLAN_DECIDE_H

#include "../sim/roofline.h"
#include "chain_build.h"
#include "plan.h"

#define MS__MARGIN_PARTS 64 /* this part of a budget stays free: what a prediction may be wrong by */
#define MS__N_MODEL_CHOICES (MS_MODEL_ALL + 1)

/* A plan that is possible. */
typedef struct ms__candidate {
    uint32_t model_options;
    int64_t peak_bytes, step_ns, host_bytes;
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
    int64_t usable_bytes; /* the budget less the margin */
    int64_t baseline_bytes, baseline_ns;
    ms__candidate best;
} ms__decision;

/* Fill in all but `request` and `best`. Errors: as ms_simulation_create. It must be closed in any case. */
ms_status ms__decision_open(ms__decision *decision);
void ms__decision_close(ms__decision *decision);

/* The model choice with these options, or the fastest if there is none. */
const ms__model_choice *ms__decision_model(const ms__decision *decision, uint32_t model_options);

/* A copy of a caller's request. It points into itself, so it must stay where it is. */
typedef struct ms__request_copy {
    ms_plan_request request;
    ms__device_copy device;
} ms__request_copy;

/* A request that plans can be made from. Errors: as ms_plan_create. */
ms_status ms__request_read(const ms_plan_request *theirs, ms__request_copy *out);

/* ---- Appraisal of plans (appraise.c) ---- */

/* The cost of these choices: the larger of the chain's peak and of what must be reserved in a simulation. If nothing is
 * done to the model, the simulation is exact. A peak above `most_bytes` need not be exact, only above it.
 * `out->choices` is not set. Errors: as ms_simulation_create. */
ms_status ms__appraise(const ms__decision *decision, const ms__plan_list *list, const uint8_t *choices,
                       int64_t most_bytes, ms__candidate *out);

/* What must be reserved for these choices; if it is above `most_bytes`, any number above. Errors: as
 * ms_simulation_create. */
ms_status ms__find_needed(const ms__decision *decision, const ms__model_choice *model, const uint8_t *choices,
                          int64_t most_bytes, int64_t *out);

/* The step under these choices. Errors: as ms_simulation_create. */
ms_status ms__simulate_choices(const ms__decision *decision, const ms__model_choice *model, const uint8_t *choices,
                               ms_simulation_summary *out);

/* Is torch's allocator simulated? */
bool ms__models_allocator(const ms_plan_request *request);

/* The highest peak of a simulation: of the first step, or of a later one. */
int64_t ms__simulated_peak(const ms_simulation_summary *summary);

/* ---- Why (explain.c) ---- */

/* Fill in the entries of a plan: the action of each unit, and its closest alternative. */
void ms__explain_units(const ms__decision *decision, ms_plan *plan);

/* No plan fits, and `best` is the one with the least peak: report that peak and what it consists of. */
ms_status ms__refuse(const ms__decision *decision);

#endif
