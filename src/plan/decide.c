/* decide.c - chooses the plan: the rules around the search.
 *
 * With MS_PLAN_FASTEST, the fastest plan within the budget; else the least memory within the allowed slowdown, and if
 * that does not fit, the fastest that does. Every set of model options that is allowed has a chain of its own. The
 * bytes of a plan are the larger of what its chain gives and what a simulation of its step gives; neither depends on
 * the budget. So the candidates and their bytes do not depend on it either: a larger budget only admits more of them.
 */
#include "decide.h"

#include <string.h>

#include "../common/math.h"
#include "../sim/model_options.h"

#define RESOLUTION_PARTS 8192 /* of the baseline peak */
#define MAX_PLANS 128         /* in a list, if each is simulated several times */
#define SKIP_SHARE 4          /* the smart skip: a peak under 1/4 of the budget */

/* ---- Model choices ---- */

static bool may_have(const ms__decision *d, uint32_t model_options) {
    if ((model_options & ~d->request->model_options) != 0) return false;
    if (model_options & MS_MODEL_HALF && d->request->half_profile == NULL) return false;
    return ms__model_options_with_link(model_options) == 0 || ms__has_link(d->request->device->rates);
}

/* The fastest first, then those with the lower number. */
static void insert_model(ms__decision *d, const ms__model_choice *model) {
    int32_t at = d->n_models++;
    for (; at > 0 && model->chain.base_ns < d->models[at - 1].chain.base_ns; at--) d->models[at] = d->models[at - 1];
    d->models[at] = *model;
}

static ms_status find_baseline(ms__decision *d, const ms__model_choice *model) {
    uint8_t *kept = ms__arena_array(&d->arena, (size_t)model->chain.n, 1);
    if (kept == NULL) return MS_E_NO_MEMORY;
    d->baseline_ns = model->chain.base_ns;
    return ms__find_needed(d, model, kept, INT64_MAX, &d->baseline_bytes);
}

static ms_status add_model(ms__decision *d, uint32_t model_options) {
    ms__model_choice model = {.model_options = model_options,
                              .basis = model_options & MS_MODEL_HALF ? &d->half : &d->plain};
    ms_status status = ms__chain_make(&d->arena, model.basis, model_options, &model.chain, &model.host_bytes);
    if (status == MS_OK && model_options == 0) status = find_baseline(d, &model);
    if (status != MS_OK) return status;
    model.least_bytes = ms__chain_least_peak(&model.chain);
    if (model.chain.host_limit_bytes >= 0) insert_model(d, &model);
    return MS_OK;
}

ms_status ms__decision_open(ms__decision *d) {
    const ms_plan_request *request = d->request;
    d->usable_bytes = request->budget_bytes - request->margin_bytes;
    ms_status status = ms__basis_make(&d->arena, request, request->profile, &d->plain);
    if (status == MS_OK && request->half_profile != NULL && request->model_options & MS_MODEL_HALF)
        status = ms__basis_make(&d->arena, request, request->half_profile, &d->half);
    for (uint32_t options = 0; options < MS__N_MODEL_CHOICES && status == MS_OK; options++)
        if (may_have(d, options)) status = add_model(d, options);
    return status;
}

void ms__decision_close(ms__decision *d) {
    ms__basis_free(&d->plain);
    ms__basis_free(&d->half);
    ms__arena_free(&d->arena);
}

const ms__model_choice *ms__decision_model(const ms__decision *d, uint32_t model_options) {
    for (int32_t i = 0; i < d->n_models; i++)
        if (d->models[i].model_options == model_options) return &d->models[i];
    return &d->models[0];
}

/* ---- Candidates ---- */

static bool is_faster(const ms__candidate *a, const ms__candidate *b) {
    if (b->choices == NULL) return true;
    if (a->step_ns != b->step_ns) return a->step_ns < b->step_ns;
    if (a->peak_bytes != b->peak_bytes) return a->peak_bytes < b->peak_bytes;
    return a->model_options < b->model_options;
}

/* Differences below the resolution are not worth any time. */
static bool is_leaner(const ms__candidate *a, const ms__candidate *b, int64_t resolution) {
    if (b->choices == NULL) return true;
    if (a->peak_bytes / resolution != b->peak_bytes / resolution) return a->peak_bytes < b->peak_bytes;
    return is_faster(a, b);
}

/* `resolution` 0: the fastest is the best. */
static ms_status keep_best(ms__decision *d, const ms__plan_list *list, ms__candidate *candidate, const uint8_t *choices,
                           int64_t resolution) {
    if (!(resolution > 0 ? is_leaner(candidate, &d->best, resolution) : is_faster(candidate, &d->best))) return MS_OK;
    size_t n = (size_t)list->model->chain.n;
    candidate->choices = ms__arena_array(&d->arena, n, 1);
    if (candidate->choices == NULL) return MS_E_NO_MEMORY;
    memcpy(candidate->choices, choices, n);
    d->best = *candidate;
    return MS_OK;
}

/* ---- The plans of a model choice ----
 *
 * In order: all units kept, then the leanest plan of each time, as long as it is leaner than those before; first on the
 * fine grid, then on the one with waits. The latter count as no faster than the slowest of the former, so that times
 * never fall along this list. If the time is not limited, the slowest of them is the leanest; else the slowest is
 * unknown, and they count as slow as the slowest possible one. All decisions are made from the same list: the fastest
 * is its first plan that fits; the leanest has the least peak, rounded to the resolution, among those that fit and are
 * within a time. If there is no such plan, every plan that fits takes longer.
 */

static ms__plan_list first_list(const ms__model_choice *model) {
    return (ms__plan_list){.model = model, .grid = &model->chain.grids[MS__GRID_FINE]};
}

/* The list that follows `first`; false if there is none. `slowest_ns`: of the plans in `first`; 0: unknown. */
static bool next_list(const ms__plan_list *first, int64_t slowest_ns, ms__plan_list *out) {
    const ms__chain *chain = &first->model->chain;
    if (first->grid == &chain->grids[MS__GRID_WAITS] || !ms__chain_has_waits(chain)) return false;
    if (slowest_ns == 0) slowest_ns = ms__grid_step_ns(first->grid, chain, first->grid->max_ticks);
    *out = (ms__plan_list){first->model, &chain->grids[MS__GRID_WAITS], slowest_ns};
    return true;
}

/* If each plan takes several simulations to appraise, the list has one plan for each stride of ticks. */
static int64_t stride_of(const ms__decision *d, const ms__grid *grid) {
    return ms__models_allocator(d->request) ? grid->max_ticks / MAX_PLANS + 1 : 1;
}

/* The end of the last complete stride up to `ticks`. */
static int64_t last_end(const ms__decision *d, const ms__grid *grid, int64_t ticks) {
    return ticks >= grid->max_ticks ? grid->max_ticks : ticks - (ticks + 1) % stride_of(d, grid);
}

static int64_t end_of_stride(const ms__decision *d, const ms__grid *grid, int64_t ticks) {
    int64_t stride = stride_of(d, grid);
    return ms__min(ticks / stride * stride + stride - 1, grid->max_ticks);
}

/* ---- The fastest within the budget ---- */

/* Plans from the fastest on until one fits. */
static ms_status try_fastest(ms__decision *d, const ms__plan_list *list, ms__search *search, uint8_t *choices,
                             bool *out_found) {
    int64_t limit = d->usable_bytes + ms__search_slack(search);
    while (limit > 0) {
        int64_t ticks = ms__search_fastest(search, limit, list->grid->max_ticks, choices);
        if (ticks == MS__NO_TICKS) return MS_OK;
        ticks = ms__search_leanest(search, end_of_stride(d, list->grid, ticks), choices);
        limit = ms__search_peak(search, ticks) - 1;
        if (ms__chain_play(&list->model->chain, list->grid, choices).peak_bytes > d->usable_bytes) continue;
        ms__candidate candidate;
        ms_status status = ms__appraise(d, list, choices, d->usable_bytes, &candidate);
        if (status != MS_OK) return status;
        if (candidate.peak_bytes <= d->usable_bytes) {
            *out_found = true;
            return keep_best(d, list, &candidate, choices, 0);
        }
    }
    return MS_OK;
}

/* The search on each grid has an arena of its own, which is freed at once. */
static ms_status search_fastest(ms__decision *d, const ms__plan_list *list, uint8_t *choices, bool *out_found) {
    const ms__chain *chain = &list->model->chain;
    int64_t ticks = list->grid->max_ticks; /* a plan slower than that of another model choice is useless */
    if (d->best.choices != NULL)
        ticks = end_of_stride(d, list->grid, (d->best.step_ns - chain->base_ns) / list->grid->tick_ns);
    ms__arena arena = {0};
    ms__search *search = NULL;
    ms_status status = ms__search_new(&arena, chain, list->grid, ticks, &search);
    if (status == MS_OK) status = try_fastest(d, list, search, choices, out_found);
    ms__arena_free(&arena);
    return status;
}

static ms_status find_fastest_of(ms__decision *d, const ms__model_choice *model) {
    ms__plan_list list = first_list(model);
    uint8_t *choices = ms__arena_array(&d->arena, (size_t)model->chain.n, 1);
    if (choices == NULL) return MS_E_NO_MEMORY;
    ms__candidate kept;
    ms_status status = ms__appraise(d, &list, choices, d->usable_bytes, &kept);
    if (status != MS_OK) return status;
    if (kept.peak_bytes <= d->usable_bytes) return keep_best(d, &list, &kept, choices, 0);
    bool found = false;
    do {
        if (d->best.choices != NULL && list.least_ns > d->best.step_ns) break;
        status = search_fastest(d, &list, choices, &found);
    } while (status == MS_OK && !found && next_list(&list, 0, &list));
    return status;
}

static ms_status find_fastest(ms__decision *d) {
    ms_status status = MS_OK;
    for (int32_t i = 0; i < d->n_models && status == MS_OK; i++) {
        if (d->best.choices != NULL && d->models[i].chain.base_ns > d->best.step_ns)
            break; /* they come in the order of base_ns */
        status = find_fastest_of(d, &d->models[i]);
    }
    return status;
}

/* ---- The leanest within a time ---- */

/* What is searched for: plans of at most `max_ns` and `max_bytes`, rounded to a resolution. */
typedef struct goal {
    int64_t max_ns, max_bytes, resolution;
} goal;

static ms_status consider(ms__decision *d, const ms__plan_list *list, const uint8_t *choices, const goal *aim) {
    ms__candidate candidate;
    int64_t most = aim->max_bytes;
    if (d->best.choices != NULL && d->best.peak_bytes < most - aim->resolution)
        most = d->best.peak_bytes + aim->resolution;
    ms_status status = ms__appraise(d, list, choices, most, &candidate);
    if (status != MS_OK || candidate.peak_bytes > most) return status;
    return keep_best(d, list, &candidate, choices, aim->resolution);
}

/* Starting with the leanest by its chain, until no other can be leaner. */
static ms_status try_leanest(ms__decision *d, const ms__plan_list *list, ms__search *search, const goal *aim,
                             uint8_t *choices) {
    int64_t most = last_end(d, list->grid, (aim->max_ns - list->model->chain.base_ns) / list->grid->tick_ns);
    while (most >= 0) {
        int64_t ticks = ms__search_leanest(search, most, choices);
        if (ticks == MS__NO_TICKS) return MS_OK;
        int64_t least = ms__search_peak(search, ticks) - ms__search_slack(search);
        bool beaten = d->best.choices != NULL && least / aim->resolution > d->best.peak_bytes / aim->resolution;
        if (beaten || least > aim->max_bytes) return MS_OK;
        most = last_end(d, list->grid, ticks - 1);
        ms_status status = consider(d, list, choices, aim);
        if (status != MS_OK) return status;
    }
    return MS_OK;
}

/* `*out_slowest_ns`: of the plans in the list, if the time is not limited; else 0. */
static ms_status search_leanest(ms__decision *d, const ms__plan_list *list, const goal *aim, uint8_t *choices,
                                int64_t *out_slowest_ns) {
    const ms__chain *chain = &list->model->chain;
    ms__arena arena = {0};
    ms__search *search = NULL;
    int64_t max_ticks = (aim->max_ns - chain->base_ns) / list->grid->tick_ns;
    ms_status status = ms__search_new(&arena, chain, list->grid, max_ticks, &search);
    if (status == MS_OK) status = try_leanest(d, list, search, aim, choices);
    *out_slowest_ns = 0;
    if (status == MS_OK && aim->max_ns == INT64_MAX) {
        int64_t ticks = ms__search_leanest(search, list->grid->max_ticks, choices);
        if (ticks != MS__NO_TICKS) *out_slowest_ns = ms__grid_step_ns(list->grid, chain, ticks);
    }
    ms__arena_free(&arena);
    return status;
}

static ms_status find_leanest_of(ms__decision *d, const ms__model_choice *model, const goal *aim) {
    ms__plan_list list = first_list(model);
    uint8_t *choices = ms__arena_array(&d->arena, (size_t)model->chain.n, 1);
    if (choices == NULL) return MS_E_NO_MEMORY;
    int64_t slowest_ns = 0;
    ms_status status = consider(d, &list, choices, aim); /* every unit kept */
    if (status != MS_OK) return status;
    do {
        if (list.least_ns > aim->max_ns) break;
        status = search_leanest(d, &list, aim, choices, &slowest_ns);
    } while (status == MS_OK && next_list(&list, slowest_ns, &list));
    return status;
}

/* Model choices with the lowest bound come first: then the others are soon ruled out. */
static ms_status find_leanest(ms__decision *d, const goal *aim) {
    bool done[MS__N_MODEL_CHOICES] = {false};
    ms_status status = MS_OK;
    for (int32_t n = 0; n < d->n_models && status == MS_OK; n++) {
        int32_t next = 0;
        while (done[next]) next++;
        for (int32_t i = next + 1; i < d->n_models; i++)
            if (!done[i] && d->models[i].least_bytes < d->models[next].least_bytes) next = i;
        done[next] = true;
        if (d->models[next].chain.base_ns <= aim->max_ns) status = find_leanest_of(d, &d->models[next], aim);
    }
    return status;
}

/* ---- Deciding ---- */

static int64_t allowed_ns(const ms__decision *d) {
    int64_t ppm = d->request->slowdown_ppm, ns = d->baseline_ns;
    if (ppm < 0) return INT64_MAX;
    if (ns / 1000000 > INT64_MAX / 4 / (ppm + 1)) return INT64_MAX;
    return ns + ns / 1000000 * ppm + ns % 1000000 * ppm / 1000000;
}

static ms_status choose(ms__decision *d) {
    ms_status status = MS_OK;
    bool may_be_slower = true;
    if (!(d->request->flags & MS_PLAN_FASTEST)) {
        const goal leanest = {allowed_ns(d), d->usable_bytes, d->baseline_bytes / RESOLUTION_PARTS + 1};
        status = find_leanest(d, &leanest);
        if (status != MS_OK || d->best.choices != NULL) return status;
        may_be_slower = leanest.max_ns < INT64_MAX;
    }
    if (may_be_slower) status = find_fastest(d);
    if (status != MS_OK || d->best.choices != NULL) return status;
    const goal smallest = {.max_ns = INT64_MAX, .max_bytes = INT64_MAX, .resolution = 1};
    status = find_leanest(d, &smallest);
    return status == MS_OK ? ms__refuse(d) : status;
}

/* The smart skip: nothing is done to the model. */
static ms_status keep_all(ms__decision *d) {
    ms__plan_list list = first_list(ms__decision_model(d, 0));
    uint8_t *choices = ms__arena_array(&d->arena, (size_t)list.model->chain.n, 1);
    if (choices == NULL) return MS_E_NO_MEMORY;
    ms_status status = ms__appraise(d, &list, choices, INT64_MAX, &d->best);
    d->best.choices = choices;
    return status;
}

static bool is_small_enough(const ms__decision *d) {
    bool may_skip = !(d->request->flags & (MS_PLAN_FORCE | MS_PLAN_FASTEST));
    return may_skip && d->baseline_bytes < d->request->budget_bytes / SKIP_SHARE &&
           d->baseline_bytes <= d->usable_bytes;
}

static int64_t share_ppm(int64_t part, int64_t whole) {
    return part > INT64_MAX / 8 / 1000000 ? part / (whole / 1000000 + 1) : part * 1000000 / whole;
}

/* Fill in the plan's summary. */
static ms_status describe_best(const ms__decision *d, ms_plan *plan) {
    const ms__model_choice *model = ms__decision_model(d, d->best.model_options);
    ms_plan_summary *s = &plan->summary;
    s->baseline_peak_bytes = d->baseline_bytes;
    s->model_options = d->best.model_options;
    s->predicted_peak_bytes = d->best.peak_bytes;
    s->host_bytes = d->best.host_bytes;
    if (d->baseline_ns > 0) s->slowdown_ppm = share_ppm(d->best.step_ns - d->baseline_ns, d->baseline_ns);
    ms__explain_units(d, plan);
    s->baseline_ns = d->baseline_ns;
    s->step_ns = d->best.step_ns;
    ms_simulation_summary played;
    ms_status status = ms__simulate_choices(d, model, d->best.choices, &played);
    if (status != MS_OK) return status;
    memcpy(s->parts, played.parts, sizeof s->parts);
    s->peak_unit = played.peak_unit;
    s->peak_phase = played.peak_phase;
    return MS_OK;
}

static ms_status decide(ms__decision *d, ms_plan *plan) {
    ms_status status = ms__decision_open(d);
    if (status != MS_OK) return status;
    plan->summary.skipped = is_small_enough(d);
    status = plan->summary.skipped ? keep_all(d) : choose(d);
    return status == MS_OK ? describe_best(d, plan) : status;
}

ms_status ms__plan_decide(ms_plan *plan, const ms_plan_request *request) {
    ms__decision d = {.request = request};
    ms_status status = decide(&d, plan);
    ms__decision_close(&d);
    return status;
}
