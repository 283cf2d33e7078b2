/* decide.h - what a decision is made from: the states that may be, each with its chain, and what plans come to. */
#ifndef MS_PLAN_DECIDE_H
#define MS_PLAN_DECIDE_H

#include "chain_build.h"

#define MS__N_MODEL_CHOICES (MS_MODEL_ALL + 1)

/* A plan that may be. */
typedef struct ms__candidate {
    uint32_t model_options;
    int64_t peak_bytes, step_ns, host_bytes;
    bool waits;       /* the chain's ticks were set so */
    uint8_t *choices; /* by position of the chain; NULL: there is none */
} ms__candidate;

/* One state of the model that may be. */
typedef struct ms__model_choice {
    uint32_t model_options;
    const ms__basis *basis;
    ms__chain chain;
    int64_t host_bytes;  /* that the state takes */
    int64_t least_bytes; /* no plan has a lower peak */
    int64_t least_ns;    /* with ticks as they are set: a plan counts as no faster */
    int64_t slowest_ns;  /* of plans that do not wait for the link; 0: not known */
    bool waits;          /* ticks are set so that plans which wait for the link fit */
} ms__model_choice;

typedef struct ms__decision {
    const ms_plan_request *request; /* was checked */
    ms__arena arena;
    ms__basis plain, half;
    ms__model_choice variants[MS__N_MODEL_CHOICES]; /* the fastest first */
    int32_t n_variants;
    int64_t usable_bytes; /* the budget less the margin */
    int64_t baseline_bytes, baseline_ns;
    int32_t *actions; /* by unit: room for one plan */
    ms__candidate best;
} ms__decision;

/* Fill in all but `request` and `best`. Errors: as ms_simulation_create. Either way it is closed. */
ms_status ms__decision_open(ms__decision *decision);
void ms__decision_close(ms__decision *decision);

/* What these choices come to, counted with ticks as they are set: the larger of what the chain says and what a
 * simulation says must be reserved. A model that is left alone is exactly as it was simulated. Where it is more than
 * `most_bytes`, the peak is some number that is. `out->choices` is left out. Errors: as ms_simulation_create. */
ms_status ms__decision_appraise(const ms__decision *decision, const ms__model_choice *variant, const uint8_t *choices,
                                int64_t most_bytes, ms__candidate *out);

/* The highest peak of a simulation: of the first step, or of a later one. */
int64_t ms__simulated_peak(const ms_simulation_summary *summary);

/* Is this a request that ms_plan_create can take? Errors: as there. */
ms_status ms__request_check(const ms_plan_request *request);

#endif
