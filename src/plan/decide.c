/* decide.c - chooses the plan: the rules around the search.
 *
 * With MS_PLAN_FASTEST, the fastest plan within the budget; else the least memory within the allowed slowdown, and if
 * that does not fit, the fastest that does. Every set of model options that is allowed has a chain of its own, whose
 * search gives the candidates. What a candidate needs comes from a simulation of its step (appraise.c). Neither depends
 * on the budget: a larger one only admits more of them.
 */
#include "decide.h"

#include <string.h>

#include "../common/math.h"
#include "../sim/actions.h"
#include "../sim/model_options.h"

#define RESOLUTION_PARTS 8192 /* of the baseline peak */
#define MAX_PLANS 128         /* in a list, if each is simulated */
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
    return ms__choices_needs(d, &(ms__choices_step){.model = model, .choices = kept}, INT64_MAX, &d->baseline);
}

/* How many plans the list on the fine grid has. */
static ms_status count_plans(ms__model_choice *model) {
    const ms__grid *grid = &model->chain.grids[MS__GRID_FINE];
    ms__arena arena = {0};
    ms__search *search = NULL;
    ms_status status = ms__search_new(&arena, &model->chain, grid, grid->max_ticks, &search);
    for (int64_t t = 1; t <= grid->max_ticks && status == MS_OK; t++)
        if (ms__search_peak(search, t) < ms__search_peak(search, t - 1)) model->n_plans++;
    ms__arena_free(&arena);
    return status;
}

static ms_status add_model(ms__decision *d, uint32_t model_options) {
    ms__model_choice model = {.model_options = model_options,
                              .basis = model_options & MS_MODEL_HALF ? &d->half : &d->plain};
    ms_status status = ms__chain_make(&d->arena, model.basis, model_options, &model.chain, &model.host_bytes);
    if (status == MS_OK && model_options == 0) status = find_baseline(d, &model);
    if (status != MS_OK) return status;
    model.least_bytes = ms__chain_least_peak(&model.chain);
    if (model.chain.host_limit_bytes < 0) return MS_OK; /* the options alone are too much for the host */
    if (d->is_exact || ms__models_allocator(d->request)) status = count_plans(&model);
    if (status == MS_OK) insert_model(d, &model);
    return status;
}

static bool is_exact(const ms_plan_request *request) {
    bool exact = request->model_options == 0;
    for (int32_t action = 0; action < MS_N_ACTIONS; action++)
        if (request->actions & 1U << action && !ms__actions[action].is_played) exact = false;
    return exact;
}

ms_status ms__decision_open(ms__decision *d) {
    const ms_plan_request *request = d->request;
    d->budget_bytes = request->budget_bytes;
    d->margin_bytes = request->margin_bytes;
    d->usable_bytes = d->budget_bytes - d->margin_bytes - request->occupied_bytes;
    d->is_exact = is_exact(request);
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
    if (a->needed_bytes != b->needed_bytes) return a->needed_bytes < b->needed_bytes;
    return a->model_options < b->model_options;
}

/* Differences below the resolution are not worth any time. */
static bool is_leaner(const ms__candidate *a, const ms__candidate *b, int64_t resolution) {
    if (b->choices == NULL) return true;
    if (a->needed_bytes / resolution != b->needed_bytes / resolution) return a->needed_bytes < b->needed_bytes;
    return is_faster(a, b);
}

/* Nothing is done to the model, nor to torch's allocator. */
ms__candidate ms__alone(const ms__decision *d, const ms__plan_list *list) {
    return (ms__candidate){.needed_bytes = d->baseline.needed_bytes,
                           .peak_bytes = d->baseline.peak_bytes,
                           .step_ns = d->baseline_ns,
                           .grid = list->grid};
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

/* If there are too many plans to simulate them all, the list has one plan for each stride of ticks. */
static int64_t stride_of(const ms__plan_list *list) {
    return list->model->n_plans > MAX_PLANS ? list->grid->max_ticks / MAX_PLANS + 1 : 1;
}

/* The end of the last complete stride up to `ticks`. */
static int64_t last_end(const ms__plan_list *list, int64_t ticks) {
    return ticks >= list->grid->max_ticks ? list->grid->max_ticks : ticks - (ticks + 1) % stride_of(list);
}

static int64_t end_of_stride(const ms__plan_list *list, int64_t ticks) {
    int64_t stride = stride_of(list);
    return ms__min(ticks / stride * stride + stride - 1, list->grid->max_ticks);
}

/* ---- A second list, where plans are simulated exactly ----
 *
 * The first units recomputed, one more in each plan, up to all of them. A chain may see no gain in that, and have none
 * of them in its list: it does not know what torch's allocator needs beyond the peak. The best plan of both lists is
 * taken, so that a larger budget is still never slower.
 */

void ms__choose_first(const ms__chain *chain, int32_t n_units, uint8_t *choices) {
    memset(choices, 0, (size_t)chain->n);
    for (int32_t i = 0; i < n_units; i++)
        for (int32_t o = 0; o < chain->units[i].n_options; o++)
            if (chain->units[i].options[o].action == MS_ACTION_RECOMPUTE) choices[i] = (uint8_t)o;
}

/* The number of units in the plan that follows one with `n_units`: at most MAX_PLANS plans, the last one with all. */
static int32_t next_first(const ms__chain *chain, int32_t n_units) {
    int32_t stride = chain->n / MAX_PLANS + 1;
    return n_units < chain->n ? (int32_t)ms__min(n_units + stride, chain->n) : chain->n + 1;
}

static int64_t first_ns(const ms__plan_list *list, int32_t n_units, uint8_t *choices) {
    const ms__chain *chain = &list->model->chain;
    ms__choose_first(chain, n_units, choices);
    return ms__grid_step_ns(list->grid, chain, ms__chain_play(chain, list->grid, choices).ticks);
}

/* ---- The fastest within the budget ---- */

/* Plans from the fastest on until one fits. */
static ms_status try_fastest(ms__decision *d, const ms__plan_list *list, ms__search *search, uint8_t *choices,
                             bool *out_found) {
    int64_t limit = d->is_exact ? INT64_MAX : d->usable_bytes + ms__search_slack(search);
    while (limit > 0) {
        int64_t ticks = ms__search_fastest(search, limit, list->grid->max_ticks, choices);
        if (ticks == MS__NO_TICKS) return MS_OK;
        ticks = ms__search_leanest(search, end_of_stride(list, ticks), choices);
        limit = ms__search_peak(search, ticks) - 1;
        ms__candidate candidate;
        ms_status status = ms__appraise(d, list, choices, d->usable_bytes, &candidate);
        if (status != MS_OK) return status;
        if (candidate.needed_bytes <= d->usable_bytes) {
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
    if (d->best.choices != NULL) ticks = end_of_stride(list, (d->best.step_ns - chain->base_ns) / list->grid->tick_ns);
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
    ms__candidate kept = ms__alone(d, &list);
    ms_status status = MS_OK;
    if (model->model_options != 0 || kept.needed_bytes > d->usable_bytes)
        status = ms__appraise(d, &list, choices, d->usable_bytes, &kept);
    if (status != MS_OK) return status;
    if (kept.needed_bytes <= d->usable_bytes) return keep_best(d, &list, &kept, choices, 0);
    bool found = false;
    do {
        if (d->best.choices != NULL && list.least_ns > d->best.step_ns) break;
        status = search_fastest(d, &list, choices, &found);
    } while (status == MS_OK && !found && next_list(&list, 0, &list));
    list = first_list(model);
    for (int32_t n = next_first(&model->chain, 0); d->is_exact && n <= model->chain.n && status == MS_OK;
         n = next_first(&model->chain, n)) {
        if (first_ns(&list, n, choices) > (d->best.choices == NULL ? INT64_MAX : d->best.step_ns)) break;
        status = ms__appraise(d, &list, choices, d->usable_bytes, &kept);
        if (status != MS_OK || kept.needed_bytes > d->usable_bytes) continue;
        return keep_best(d, &list, &kept, choices, 0);
    }
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
    if (d->best.choices != NULL && d->best.needed_bytes < most - aim->resolution)
        most = d->best.needed_bytes + aim->resolution;
    ms_status status = ms__appraise(d, list, choices, most, &candidate);
    if (status != MS_OK || candidate.needed_bytes > most) return status;
    return keep_best(d, list, &candidate, choices, aim->resolution);
}

/* Starting with the leanest by its chain, until no other can be leaner. What is simulated exactly may be less than its
 * chain says, so that all plans have to be looked at. */
static ms_status try_leanest(ms__decision *d, const ms__plan_list *list, ms__search *search, const goal *aim,
                             uint8_t *choices) {
    int64_t most = last_end(list, (aim->max_ns - list->model->chain.base_ns) / list->grid->tick_ns);
    while (most >= 0) {
        int64_t ticks = ms__search_leanest(search, most, choices);
        if (ticks == MS__NO_TICKS) return MS_OK;
        int64_t least = ms__search_peak(search, ticks) - ms__search_slack(search);
        bool beaten = d->best.choices != NULL && least / aim->resolution > d->best.needed_bytes / aim->resolution;
        if (!d->is_exact && (beaten || least > aim->max_bytes)) return MS_OK;
        most = last_end(list, ticks - 1);
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
    ms__candidate kept = ms__alone(d, &list);
    ms_status status = MS_OK;
    if (model->model_options != 0)
        status = consider(d, &list, choices, aim);
    else if (kept.needed_bytes <= aim->max_bytes)
        status = keep_best(d, &list, &kept, choices, aim->resolution);
    if (status != MS_OK) return status;
    do {
        if (list.least_ns > aim->max_ns) break;
        status = search_leanest(d, &list, aim, choices, &slowest_ns);
    } while (status == MS_OK && next_list(&list, slowest_ns, &list));
    list = first_list(model);
    for (int32_t n = next_first(&model->chain, 0); d->is_exact && n <= model->chain.n && status == MS_OK;
         n = next_first(&model->chain, n)) {
        if (first_ns(&list, n, choices) > aim->max_ns) break;
        status = consider(d, &list, choices, aim);
    }
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

/* The last resort: the leanest plan runs in less memory if torch's allocator returns memory whenever a request does not
 * fit. That takes time, so it counts as no faster than any other plan. */
static ms_status cramp(ms__decision *d) {
    const ms__model_choice *model = ms__decision_model(d, 0);
    const ms__grid *grid = &model->chain.grids[MS__GRID_FINE];
    const ms__choices_step step = {.model = model, .choices = d->best.choices, .grows = true};
    int64_t least = 0;
    ms_status status = ms__choices_least_need(d, &step, &least);
    if (status != MS_OK || least >= d->best.needed_bytes) return status;
    d->best.needed_bytes = least;
    d->best.spacer = (ms__spacer){0};
    d->best.step_ns = ms__max(d->best.step_ns, ms__grid_step_ns(grid, &model->chain, grid->max_ticks));
    d->best.grows = d->best.is_cramped = true;
    return MS_OK;
}

/* The plan of another decision about the same step, with fewer actions, if it is better. */
static ms_status take_better(ms__decision *d, const ms__decision *other, int64_t resolution) {
    ms__candidate candidate = other->best;
    if (candidate.choices == NULL) return MS_OK;
    const ms__model_choice *from = ms__decision_model(other, candidate.model_options);
    ms__plan_list list = first_list(ms__decision_model(d, candidate.model_options));
    const ms__chain *chain = &list.model->chain;
    uint8_t *choices = ms__arena_array(&d->arena, (size_t)chain->n, 1);
    if (choices == NULL) return MS_E_NO_MEMORY;
    for (int32_t i = 0; i < chain->n; i++) {
        int32_t action = from->chain.units[i].options[candidate.choices[i]].action;
        for (int32_t o = 0; o < chain->units[i].n_options; o++)
            if (chain->units[i].options[o].action == action) choices[i] = (uint8_t)o;
    }
    candidate.grid = list.grid;
    return keep_best(d, &list, &candidate, choices, resolution);
}

static ms_status choose_alone(ms__decision *d, const goal *aim) {
    return aim == NULL ? find_fastest(d) : find_leanest(d, aim);
}

/* Actions that copy something of a unit in these variants (bits). */
static uint32_t copying_actions(uint32_t variants) {
    uint32_t actions = 0;
    for (int32_t action = 0; action < MS_N_ACTIONS; action++)
        if (ms__actions[action].needs_link && variants & 1U << ms__actions[action].variant) actions |= 1U << action;
    return actions;
}

static ms_status choose_without(ms__decision *d, uint32_t actions, const goal *aim) {
    ms_plan_request request = *d->request;
    request.actions &= ~actions;
    if (!d->is_exact || request.actions == d->request->actions) return MS_OK;
    ms__decision other = {.request = &request};
    ms_status status = ms__decision_open(&other);
    other.usable_bytes = d->usable_bytes;
    other.spacer = d->spacer;
    if (status == MS_OK) status = choose_alone(&other, aim);
    if (status == MS_OK) status = take_better(d, &other, aim == NULL ? 0 : aim->resolution);
    ms__decision_close(&other);
    return status;
}

/* The fastest plan (`aim` NULL), or the leanest. A list has only so many plans, and the link is counted in parts of its
 * largest copy. So plans that copy nothing, or only inputs, or no pointwise results, are looked for by themselves, too,
 * and more techniques never give a worse plan. */
static ms_status choose_best(ms__decision *d, const goal *aim) {
    static const uint32_t without[] = {1U << MS__PLAIN, 1U << MS__PLAIN | 1U << MS__POINTWISE,
                                       1U << MS__PLAIN | 1U << MS__POINTWISE | 1U << MS__RECOMPUTED};
    ms_status status = choose_alone(d, aim);
    for (size_t i = 0; i < sizeof without / sizeof *without && status == MS_OK; i++)
        status = choose_without(d, copying_actions(without[i]), aim);
    return status;
}

/* `best` needs the least: take the fastest plan that needs no more, as a device would whose aim just fits it. */
static ms_status choose_smallest(ms__decision *d) {
    int64_t usable = d->usable_bytes;
    d->usable_bytes = d->best.needed_bytes;
    d->best = (ms__candidate){0};
    ms_status status = choose_best(d, NULL);
    d->usable_bytes = usable;
    return status;
}

ms_status ms__decide_smallest(ms__decision *d) {
    const goal smallest = {.max_ns = INT64_MAX, .max_bytes = INT64_MAX, .resolution = 1};
    return choose_best(d, &smallest);
}

static ms_status choose(ms__decision *d) {
    bool may_be_slower = true, fits = d->baseline.needed_bytes <= d->usable_bytes;
    ms_status status = fits && d->request->flags & MS_PLAN_FASTEST ? MS_OK : ms__find_spacer(d);
    if (status != MS_OK) return status;
    if (!(d->request->flags & MS_PLAN_FASTEST)) {
        const goal leanest = {allowed_ns(d), d->usable_bytes, d->baseline.peak_bytes / RESOLUTION_PARTS + 1};
        status = choose_best(d, &leanest);
        if (status != MS_OK || d->best.choices != NULL) return status;
        may_be_slower = leanest.max_ns < INT64_MAX;
    }
    if (may_be_slower) status = choose_best(d, NULL);
    if (status != MS_OK || d->best.choices != NULL) return status;
    status = ms__decide_smallest(d);
    if (status != MS_OK) return status;
    ms__decision_widen(d);
    if (d->best.needed_bytes <= d->usable_bytes) return choose_smallest(d);
    if (d->is_exact && ms__can_grow(d->request)) status = cramp(d);
    if (status != MS_OK || d->best.needed_bytes <= d->usable_bytes) return status;
    return ms__refuse(d);
}

/* The smart skip: nothing is done to the model. */
static ms_status keep_all(ms__decision *d) {
    ms__plan_list list = first_list(ms__decision_model(d, 0));
    uint8_t *choices = ms__arena_array(&d->arena, (size_t)list.model->chain.n, 1);
    if (choices == NULL) return MS_E_NO_MEMORY;
    d->best = ms__alone(d, &list);
    d->best.choices = choices;
    return MS_OK;
}

/* Every unit is recomputed that may be, whether the budget needs it or not. */
static ms_status recompute_all(ms__decision *d) {
    ms__plan_list list = first_list(ms__decision_model(d, 0));
    uint8_t *choices = ms__arena_array(&d->arena, (size_t)list.model->chain.n, 1);
    if (choices == NULL) return MS_E_NO_MEMORY;
    ms__choose_first(&list.model->chain, list.model->chain.n, choices);
    ms_status status = ms__appraise(d, &list, choices, INT64_MAX, &d->best);
    d->best.choices = choices;
    return status;
}

static bool is_small_enough(const ms__decision *d) {
    bool may_skip = !(d->request->flags & (MS_PLAN_FORCE | MS_PLAN_FASTEST | MS_PLAN_LEAN));
    return may_skip && d->baseline.peak_bytes < d->request->budget_bytes / SKIP_SHARE &&
           d->baseline.needed_bytes <= d->usable_bytes;
}

static int64_t share_ppm(int64_t part, int64_t whole) {
    return part > INT64_MAX / 8 / 1000000 ? part / (whole / 1000000 + 1) : part * 1000000 / whole;
}

/* When what is offloaded leaves and comes back. */
static ms_status schedule_units(const ms__decision *d, const ms__basis *basis, ms_plan *plan) {
    ms__arena arena = {0};
    ms__schedule schedule;
    int32_t *actions = ms__arena_array(&arena, (size_t)plan->n_entries, sizeof *actions);
    for (int64_t i = 0; actions != NULL && i < plan->n_entries; i++) actions[i] = plan->entries[i].action;
    const ms__schedule_request request = {basis->profile->step, &basis->sim.changes, actions, d->request->device->rates,
                                          d->request->prefetch_depth};
    ms_status status = actions == NULL ? MS_E_NO_MEMORY : ms__schedule_make(&arena, &request, &schedule);
    for (int64_t i = 0; i < plan->n_entries && status == MS_OK; i++) {
        plan->entries[i].leaves_after = schedule.leaving[i];
        plan->entries[i].fetched_before = schedule.ahead[i];
    }
    ms__arena_free(&arena);
    return status;
}

/* Of the host memory that may be used, what any plan could fill: where there is more, plans do not depend on it. */
static int64_t host_limit_of(const ms__decision *d) {
    int64_t most = 0;
    for (int32_t i = 0; i < d->n_models; i++)
        most = ms__max(most, d->models[i].host_bytes + d->models[i].chain.most_copied_bytes);
    return ms__min(d->request->host_limit_bytes, most);
}

static ms_status describe_spacer(const ms__decision *d, ms_plan_summary *s) {
    ms__choices_step without = ms__best_step(d);
    ms__needs needs;
    if (d->best.spacer.n_bytes == 0) return MS_OK;
    without.spacer = (ms__spacer){0};
    ms_status status = ms__choices_needs(d, &without, INT64_MAX, &needs);
    if (status != MS_OK) return status;
    s->spacer_unit = d->best.spacer.unit;
    s->spacer_bytes = d->best.spacer.n_bytes;
    s->spacer_saved_bytes = needs.needed_bytes - d->best.needed_bytes;
    return MS_OK;
}

/* Fill in the plan's summary. */
static ms_status describe_best(const ms__decision *d, ms_plan *plan) {
    const ms__model_choice *model = ms__decision_model(d, d->best.model_options);
    ms_plan_summary *s = &plan->summary;
    s->baseline_peak_bytes = d->baseline.peak_bytes;
    s->model_options = d->best.model_options;
    s->needed_bytes = d->best.needed_bytes;
    s->grows = d->best.grows;
    s->is_cramped = d->best.is_cramped;
    s->host_bytes = d->best.host_bytes;
    s->host_limit_bytes = host_limit_of(d);
    if (d->baseline_ns > 0) s->slowdown_ppm = share_ppm(d->best.step_ns - d->baseline_ns, d->baseline_ns);
    ms__explain_units(d, plan);
    s->baseline_ns = d->baseline_ns;
    s->step_ns = d->best.step_ns;
    s->budget_bytes = d->budget_bytes;
    s->margin_bytes = d->margin_bytes;
    s->aim_bytes = d->budget_bytes > d->request->budget_bytes ? d->request->budget_bytes : 0;
    s->full_speed_bytes = ms__full_speed_budget(d);
    ms__choices_step step = ms__best_step(d);
    ms__needs needs;
    ms_status status = describe_spacer(d, s);
    if (status == MS_OK) status = ms__choices_needs(d, &step, INT64_MAX, &needs);
    if (status == MS_OK) status = schedule_units(d, model->basis, plan);
    if (status != MS_OK) return status;
    const ms_simulation_summary *played = &needs.played;
    s->predicted_peak_bytes = needs.peak_bytes;
    s->reserved_bytes = ms__min(played->reserved_bytes, s->needed_bytes); /* the first step may be limited */
    memcpy(s->parts, played->parts, sizeof s->parts);
    s->peak_unit = played->peak_unit;
    s->peak_phase = played->peak_phase;
    return MS_OK;
}

static ms_status decide(ms__decision *d, ms_plan *plan) {
    ms_status status = ms__decision_open(d);
    if (status != MS_OK) return status;
    plan->summary.skipped = is_small_enough(d);
    if (d->request->flags & MS_PLAN_LEAN) {
        status = recompute_all(d);
        return status == MS_OK ? describe_best(d, plan) : status;
    }
    status = plan->summary.skipped ? keep_all(d) : choose(d);
    return status == MS_OK ? describe_best(d, plan) : status;
}

ms_status ms__plan_decide(ms_plan *plan, const ms_plan_request *request) {
    ms__decision d = {.request = request};
    ms_status status = decide(&d, plan);
    ms__decision_close(&d);
    return status;
}
