/* pareto.c - the trade between memory and time: plans of which none is both smaller and faster than another.
 *
 * Each state is searched at limits that are spread between the least peak that it can have and its peak with all units
 * kept; what is left of all of them is simulated, and what another one beats is dropped.
 */
#include <stdlib.h>
#include <string.h>

#include "decide.h"

#define MAX_POINTS 1024

/* A plan that was found, with what is needed to play it again. */
typedef struct found {
    ms__candidate plan;
    int32_t variant;
    bool waits; /* the ticks that it is counted in */
} found;

typedef struct collection {
    ms__decision decision;
    found *items;
    int64_t n;
    int64_t n_limits;
    bool waits; /* ticks as they are set */
} collection;

static ms_status add(collection *c, int32_t variant, const uint8_t *choices) {
    ms__decision *d = &c->decision;
    const ms__model_choice *v = &d->variants[variant];
    ms__value value = ms__chain_play(&v->chain, choices);
    found *item = &c->items[c->n];
    *item = (found){.variant = variant,
                    .waits = c->waits,
                    .plan = {.model_options = v->model_options,
                             .peak_bytes = value.peak_bytes,
                             .step_ns = v->chain.base_ns + value.ticks * v->chain.tick_ns,
                             .choices = ms__arena_array(&d->arena, (size_t)v->chain.n, 1)}};
    if (item->plan.choices == NULL) return MS_E_NO_MEMORY;
    memcpy(item->plan.choices, choices, (size_t)v->chain.n);
    c->n++;
    return MS_OK;
}

static ms_status search_limits(collection *c, int32_t variant, ms__search *search, uint8_t *choices) {
    const ms__chain *chain = &c->decision.variants[variant].chain;
    int64_t high = ms__chain_play(chain, choices).peak_bytes; /* all are kept */
    ms_status status = add(c, variant, choices);
    (void)ms__search_leanest(search, chain->max_ticks, choices);
    int64_t low = ms__chain_play(chain, choices).peak_bytes;
    for (int64_t i = 0; i < c->n_limits && status == MS_OK; i++) {
        int64_t limit = low + (high - low) / c->n_limits * i;
        if (ms__search_fastest(search, limit, chain->max_ticks, choices) == MS__NO_TICKS) continue;
        status = add(c, variant, choices);
    }
    return status;
}

static ms_status search_pass(collection *c, int32_t variant, bool waits) {
    ms__chain *chain = &c->decision.variants[variant].chain;
    ms__arena arena = {0};
    ms__search *search = NULL;
    uint8_t *choices = ms__arena_array(&arena, (size_t)chain->n, 1);
    ms__chain_set_ticks(chain, waits);
    c->waits = waits;
    ms_status status = choices == NULL ? MS_E_NO_MEMORY : ms__search_new(&arena, chain, chain->max_ticks, &search);
    if (status == MS_OK) status = search_limits(c, variant, search, choices);
    ms__arena_free(&arena);
    return status;
}

/* Both lengths of ticks: one is finer, the other reaches further. */
static ms_status search_variant(collection *c, int32_t variant) {
    ms_status status = search_pass(c, variant, false);
    bool more = status == MS_OK && ms__chain_has_waits(&c->decision.variants[variant].chain);
    return more ? search_pass(c, variant, true) : status;
}

static int by_time(const void *a, const void *b) {
    const ms__candidate *x = &((const found *)a)->plan, *y = &((const found *)b)->plan;
    if (x->step_ns != y->step_ns) return x->step_ns < y->step_ns ? -1 : 1;
    if (x->peak_bytes != y->peak_bytes) return x->peak_bytes < y->peak_bytes ? -1 : 1;
    return x->model_options < y->model_options ? -1 : x->model_options > y->model_options;
}

/* In the order of time, those that are smaller than all before. */
static void keep_unbeaten(collection *c) {
    int64_t n = 0;
    qsort(c->items, (size_t)c->n, sizeof *c->items, by_time);
    for (int64_t i = 0; i < c->n; i++)
        if (n == 0 || c->items[i].plan.peak_bytes < c->items[n - 1].plan.peak_bytes) c->items[n++] = c->items[i];
    c->n = n;
}

/* Every so many of them, the first and the last included. */
static void thin(collection *c, int64_t n_wanted) {
    if (c->n <= n_wanted) return;
    for (int64_t i = 0; i < n_wanted; i++) c->items[i] = c->items[i * (c->n - 1) / (n_wanted - 1)];
    c->n = n_wanted;
}

static ms_status simulate_all(collection *c) {
    ms_status status = MS_OK;
    for (int64_t i = 0; i < c->n && status == MS_OK; i++) {
        found *item = &c->items[i];
        ms__model_choice *variant = &c->decision.variants[item->variant];
        uint8_t *choices = item->plan.choices;
        ms__chain_set_ticks(&variant->chain, item->waits);
        status = ms__decision_appraise(&c->decision, variant, choices, INT64_MAX, &item->plan);
        item->plan.choices = choices;
    }
    return status;
}

static ms_status collect(collection *c, int64_t capacity) {
    ms_status status = ms__decision_open(&c->decision);
    c->n_limits = capacity - 1;
    size_t most = (size_t)c->decision.n_variants * (size_t)(capacity + 1) * 2;
    c->items = ms__arena_array(&c->decision.arena, most + 1, sizeof *c->items);
    if (status == MS_OK && c->items == NULL) status = MS_E_NO_MEMORY;
    for (int32_t i = 0; i < c->decision.n_variants && status == MS_OK; i++) status = search_variant(c, i);
    if (status != MS_OK) return status;
    keep_unbeaten(c);
    thin(c, capacity);
    status = simulate_all(c);
    if (status == MS_OK) keep_unbeaten(c);
    return status;
}

static int64_t count_changed(const ms__candidate *plan, const ms__chain *chain) {
    int64_t n = 0;
    for (int32_t i = 0; i < chain->n; i++) n += plan->choices[i] != 0;
    return n;
}

ms_status ms_plan_pareto(const ms_plan_request *request, ms_pareto_point *out, int64_t capacity, int64_t *out_n) {
    ms_status status = ms__request_check(request);
    if (status != MS_OK) return status;
    if (out == NULL || out_n == NULL || capacity < 2 || capacity > MAX_POINTS)
        return ms__fail(MS_E_INVALID, "ms_plan_pareto: room for 2 to %d points is needed", MAX_POINTS);
    collection c = {.decision = {.request = request}};
    status = collect(&c, capacity);
    for (int64_t i = 0; i < c.n && status == MS_OK; i++) {
        const ms__candidate *plan = &c.items[i].plan;
        out[i] = (ms_pareto_point){.peak_bytes = plan->peak_bytes,
                                   .step_ns = plan->step_ns,
                                   .host_bytes = plan->host_bytes,
                                   .n_changed = count_changed(plan, &c.decision.variants[c.items[i].variant].chain),
                                   .model_options = plan->model_options};
    }
    if (status == MS_OK) *out_n = c.n;
    ms__decision_close(&c.decision);
    return status;
}
