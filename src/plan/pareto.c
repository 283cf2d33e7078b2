/* pareto.c - the trade between memory and time: plans of which none is both smaller and faster than another.
 *
 * Each model choice is searched at limits spread between its least possible peak and its peak with all units kept.
 * Plans that no other one beats are simulated; then the beaten ones are dropped again.
 */
#include <stdlib.h>
#include <string.h>

#include "decide.h"

#define MAX_POINTS 1024

/* A plan with the list that it was found in. */
typedef struct point {
    ms__candidate plan;
    ms__plan_list list;
} point;

typedef struct collection {
    ms__decision decision;
    point *points;
    int64_t n;
    int64_t n_limits;
} collection;

static ms_status add_point(collection *c, const ms__plan_list *list, const uint8_t *choices) {
    const ms__chain *chain = &list->model->chain;
    ms__value value = ms__chain_play(chain, list->grid, choices);
    point *item = &c->points[c->n];
    *item = (point){.list = *list,
                    .plan = {.model_options = list->model->model_options,
                             .needed_bytes = value.peak_bytes,
                             .step_ns = ms__grid_step_ns(list->grid, chain, value.ticks),
                             .choices = ms__arena_array(&c->decision.arena, (size_t)chain->n, 1)}};
    if (item->plan.choices == NULL) return MS_E_NO_MEMORY;
    memcpy(item->plan.choices, choices, (size_t)chain->n);
    c->n++;
    return MS_OK;
}

static ms_status search_limits(collection *c, const ms__plan_list *list, ms__search *search, uint8_t *choices) {
    const ms__chain *chain = &list->model->chain;
    int64_t high = ms__chain_play(chain, list->grid, choices).peak_bytes; /* every unit kept */
    ms_status status = add_point(c, list, choices);
    (void)ms__search_leanest(search, list->grid->max_ticks, choices);
    int64_t low = ms__chain_play(chain, list->grid, choices).peak_bytes;
    for (int64_t i = 0; i < c->n_limits && status == MS_OK; i++) {
        int64_t limit = low + (high - low) / c->n_limits * i;
        if (ms__search_fastest(search, limit, list->grid->max_ticks, choices) == MS__NO_TICKS) continue;
        status = add_point(c, list, choices);
    }
    return status;
}

static ms_status search_list(collection *c, const ms__plan_list *list) {
    const ms__chain *chain = &list->model->chain;
    ms__arena arena = {0};
    ms__search *search = NULL;
    uint8_t *choices = ms__arena_array(&arena, (size_t)chain->n, 1);
    ms_status status = MS_E_NO_MEMORY;
    if (choices != NULL) status = ms__search_new(&arena, chain, list->grid, list->grid->max_ticks, &search);
    if (status == MS_OK) status = search_limits(c, list, search, choices);
    ms__arena_free(&arena);
    return status;
}

/* On both grids: one is finer, the other reaches further. */
static ms_status search_model(collection *c, const ms__model_choice *model) {
    int n_grids = ms__chain_has_waits(&model->chain) ? MS__N_GRIDS : 1;
    ms_status status = MS_OK;
    for (int kind = 0; kind < n_grids && status == MS_OK; kind++) {
        const ms__plan_list list = {.model = model, .grid = &model->chain.grids[kind]};
        status = search_list(c, &list);
    }
    return status;
}

static int compare_points(const void *a, const void *b) {
    const ms__candidate *x = &((const point *)a)->plan, *y = &((const point *)b)->plan;
    if (x->step_ns != y->step_ns) return x->step_ns < y->step_ns ? -1 : 1;
    if (x->needed_bytes != y->needed_bytes) return x->needed_bytes < y->needed_bytes ? -1 : 1;
    return x->model_options < y->model_options ? -1 : x->model_options > y->model_options;
}

/* Sort by time and keep the points that are smaller than all before them. */
static void keep_unbeaten(collection *c) {
    int64_t n = 0;
    qsort(c->points, (size_t)c->n, sizeof *c->points, compare_points);
    for (int64_t i = 0; i < c->n; i++)
        if (n == 0 || c->points[i].plan.needed_bytes < c->points[n - 1].plan.needed_bytes)
            c->points[n++] = c->points[i];
    c->n = n;
}

/* Keep evenly spaced points, the first and the last included. */
static void keep_some(collection *c, int64_t n_wanted) {
    if (c->n <= n_wanted) return;
    for (int64_t i = 0; i < n_wanted; i++) c->points[i] = c->points[i * (c->n - 1) / (n_wanted - 1)];
    c->n = n_wanted;
}

static int64_t count_changed(const point *item) {
    int64_t n = 0;
    for (int32_t i = 0; i < item->list.model->chain.n; i++) n += item->plan.choices[i] != 0;
    return n;
}

static ms_status appraise_all(collection *c) {
    ms_status status = MS_OK;
    for (int64_t i = 0; i < c->n && status == MS_OK; i++) {
        point *item = &c->points[i];
        uint8_t *choices = item->plan.choices;
        if (count_changed(item) == 0 && item->list.model->model_options == 0)
            item->plan = ms__alone(&c->decision, &item->list);
        else
            status = ms__appraise(&c->decision, &item->list, choices, INT64_MAX, &item->plan);
        item->plan.choices = choices;
    }
    return status;
}

/* The leanest plan that is made. Where plans are decided by exact simulations, the search alone does not know it. */
static ms_status add_smallest(collection *c) {
    ms__decision *d = &c->decision;
    ms_status status = d->is_exact ? ms__decide_smallest(d) : MS_OK;
    if (status != MS_OK || d->best.choices == NULL) return status;
    const ms__plan_list list = {.model = ms__decision_model(d, d->best.model_options), .grid = d->best.grid};
    c->points[c->n++] = (point){.plan = d->best, .list = list};
    return MS_OK;
}

static ms_status collect(collection *c, int64_t capacity) {
    ms__decision *d = &c->decision;
    ms_status status = ms__decision_open(d);
    if (status == MS_OK) status = ms__find_spacer(d);
    c->n_limits = capacity - 1;
    size_t most = (size_t)d->n_models * (size_t)(capacity + 1) * MS__N_GRIDS + 1;
    if (status == MS_OK) status = ms__arena_arrays(&d->arena, MS__ARRAY(c->points, most + 1));
    for (int32_t i = 0; i < d->n_models && status == MS_OK; i++) status = search_model(c, &d->models[i]);
    if (status != MS_OK) return status;
    keep_unbeaten(c);
    keep_some(c, capacity);
    status = appraise_all(c);
    if (status == MS_OK) status = add_smallest(c);
    if (status == MS_OK) keep_unbeaten(c);
    keep_some(c, capacity);
    return status;
}

ms_status ms_plan_pareto(const ms_plan_request *request, ms_pareto_point *out, int64_t capacity, int64_t *out_n) {
    ms__request_copy copy;
    ms_status status = ms__request_read(request, &copy);
    if (status != MS_OK) return status;
    if (out == NULL || out_n == NULL || capacity < 2 || capacity > MAX_POINTS)
        return ms__fail(MS_E_INVALID, "ms_plan_pareto: capacity must be from 2 to %d", MAX_POINTS);
    collection c = {.decision = {.request = &copy.request}};
    status = collect(&c, capacity);
    for (int64_t i = 0; i < c.n && status == MS_OK; i++) {
        const ms__candidate *plan = &c.points[i].plan;
        out[i] = (ms_pareto_point){.peak_bytes = plan->peak_bytes,
                                   .step_ns = plan->step_ns,
                                   .host_bytes = plan->host_bytes,
                                   .n_changed = count_changed(&c.points[i]),
                                   .model_options = plan->model_options};
    }
    if (status == MS_OK) *out_n = c.n;
    ms__decision_close(&c.decision);
    return status;
}
