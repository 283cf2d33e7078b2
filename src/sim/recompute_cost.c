/* recompute_cost.c - what each unit of a step could keep, and what recomputing it costs.
 *
 * The recomputation is what the recomputed variant of a unit does beyond the plain one. It is found by subtraction,
 * since plain operations are in both. It ends after the last tensor that backward needs, so the outputs of all its
 * operations are needed by backward or by what it computes later. Operations are in three groups. If the results of
 * some groups are kept (changes.h), the others are recomputed in their order.
 */
#include "recompute_cost.h"

#include <string.h>

#include "../common/math.h"
#include "roofline.h"

#define NOBODY (-1)

enum { HELD_PLAIN = 1, HELD_RECOMPUTED = 2 };

typedef struct counter {
    const ms__step *step;
    const ms_rates *rates;
    int64_t *busy_ns;                               /* of each cost */
    ms__sums (*sums)[MS__N_VARIANTS][MS__N_GROUPS]; /* of each unit, in all phases */
    int32_t *maker;                                 /* key -> the unit whose plain forward allocates it, or NOBODY */
    uint8_t *held;                                  /* key -> the variants that release it in backward */
} counter;

static enum ms__group group_of(const ms__step_cost *cost) {
    uint32_t keeps = ms__step_cost_keeps(cost);
    return keeps & MS_KEEP_ATTENTION  ? MS__GROUP_ATTENTION
           : keeps & MS_KEEP_PRODUCTS ? MS__GROUP_PRODUCT
                                      : MS__GROUP_REST;
}

static void count_output(const counter *b, ms__sums *sums, int64_t n_bytes) {
    sums->busy_ns = ms__add_ns(sums->busy_ns, ms__fresh_ns(b->rates, n_bytes));
}

/* An operation allocates what is allocated between it and the next one. */
static void count_costs(counter *b, const ms__segment *s, int variant) {
    ms__sums *groups = s->unit < 0 ? NULL : b->sums[s->unit][variant];
    bool forward = s->phase == MS_PHASE_FORWARD || s->phase == MS_PHASE_LOSS, is_repeating = false;
    enum ms__group group = MS__GROUP_REST;
    for (uint32_t i = s->first[variant]; i < s->first[variant] + s->n[variant]; i++) {
        const ms__step_event *event = &b->step->events[i];
        uint32_t index = event->index;
        if (event->kind == MS__RELEASE && s->phase == MS_PHASE_BACKWARD)
            b->held[index] |= variant == MS__PLAIN ? HELD_PLAIN : HELD_RECOMPUTED;
        if (groups == NULL) continue;
        if (event->kind == MS__ALLOCATE) count_output(b, &groups[group], ms__step_key_bytes(b->step, index));
        if (event->kind == MS__ALLOCATE && forward && variant == MS__PLAIN) b->maker[index] = s->unit;
        if (event->kind != MS__OPERATION) continue;
        const ms__step_cost *cost = &b->step->costs[index];
        bool was_repeating = is_repeating;
        is_repeating = cost->flags & MS__OP_REPEATED;
        group = group_of(cost);
        groups[group].host_ns = ms__add_ns(groups[group].host_ns, ms__op_host_ns(b->rates, cost, s->phase));
        groups[group].busy_ns = ms__add_ns(groups[group].busy_ns, b->busy_ns[index]);
        if (is_repeating && !was_repeating) /* whatever is kept, the rest is recomputed */
            groups[MS__GROUP_REST].host_ns = ms__add_ns(groups[MS__GROUP_REST].host_ns, b->rates->recomputation_ns);
    }
}

static int64_t beyond(int64_t recomputed, int64_t plain) { return ms__max(recomputed - plain, 0); }

static void close_unit(const counter *b, uint32_t unit, const ms__unit_changes *changes, ms__recompute_cost *out) {
    out->on_gpu = b->rates->capability > 0;
    memcpy(out->kept_bytes, changes->kept_bytes, sizeof out->kept_bytes);
    for (int k = 0; k <= MS_KEEP_ALL; k++)
        if (changes->n_kept[k] > 0)
            out->keeping_ns[k] = ms__add_ns(changes->n_runs * ms__keeping_ns(b->rates),
                                            changes->n_kept[k] * ms__kept_result_ns(b->rates));
    out->moved_bytes = changes->moved_bytes;
    out->rest_bytes = changes->rest_bytes;
    out->dropped_bytes = changes->dropped_bytes;
    out->input_bytes = changes->input_bytes;
    for (int g = 0; g < MS__N_GROUPS; g++) {
        const ms__sums *recomputed = &b->sums[unit][MS__RECOMPUTED][g], *plain = &b->sums[unit][MS__PLAIN][g];
        out->extra[g] = (ms__sums){.host_ns = beyond(recomputed->host_ns, plain->host_ns),
                                   .busy_ns = beyond(recomputed->busy_ns, plain->busy_ns)};
        out->host_ns = ms__add_ns(out->host_ns, plain->host_ns);
    }
}

/* Visits from which nothing moves are not handled (play_changes.c). */
static void count_handling(const counter *b, const ms__changes *changes, ms__recompute_cost *costs) {
    for (int32_t v = 0; v < changes->n_visits; v++) {
        const ms__visit *visit = &changes->visits[v];
        int64_t *ns = costs[visit->unit].handling_ns, n_saved = changes->units[visit->unit].n_saved;
        for (int w = 0; w < MS__N_VARIANTS; w++) {
            int64_t n = visit->moved[w].n;
            int64_t own_ns =
                w == MS__RECOMPUTED ? ms__input_handling_ns(b->rates, n) : ms__handling_ns(b->rates, n_saved, n);
            if (n > 0) ns[w] = ms__add_ns(ns[w], own_ns);
        }
    }
}

static void count_pointwise(const counter *b, const ms__split_key *split, ms__recompute_cost *costs) {
    if (b->maker[split->key] == NOBODY || split->segment[MS__POINTWISE] == MS__NOT_ALLOCATED) return;
    int held = ms__step_is_held(b->step, split, MS__PLAIN) - ms__step_is_held(b->step, split, MS__POINTWISE);
    costs[b->maker[split->key]].pointwise_bytes += held * ms__step_key_bytes(b->step, split->key);
}

static ms_status open_counter(counter *b, ms__arena *arena) {
    ms_status status =
        ms__arena_arrays(arena, MS__ARRAY(b->busy_ns, b->step->n_costs), MS__ARRAY(b->sums, b->step->n_units),
                         MS__ARRAY(b->maker, b->step->n_keys), MS__ARRAY(b->held, b->step->n_keys));
    if (status != MS_OK) return status;
    for (uint32_t i = 0; i < b->step->n_costs; i++)
        b->busy_ns[i] = ms__op_busy_ns(b->rates, b->step, &b->step->costs[i]);
    for (uint32_t k = 0; k < b->step->n_keys; k++) b->maker[k] = NOBODY;
    return MS_OK;
}

ms_status ms__recompute_costs_make(ms__arena *arena, const ms__step *step, const ms_rates *rates,
                                   const ms__changes *changes, ms__recompute_cost **out) {
    ms__arena scratch = {0};
    counter b = {.step = step, .rates = rates};
    ms__recompute_cost *costs = ms__arena_array(arena, step->n_units, sizeof *costs);
    ms_status status = costs == NULL ? MS_E_NO_MEMORY : open_counter(&b, &scratch);
    if (status == MS_OK) {
        for (uint32_t i = 0; i < step->n_segments; i++)
            for (int v = 0; v <= MS__RECOMPUTED; v++) count_costs(&b, &step->segments[i], v);
        for (uint32_t u = 0; u < step->n_units; u++) close_unit(&b, u, &changes->units[u], &costs[u]);
        count_handling(&b, changes, costs);
        for (uint32_t k = 0; k < step->n_keys; k++)
            if (b.maker[k] != NOBODY && b.held[k] == HELD_PLAIN && step->keys[k].category == MS_CATEGORY_ACTIVATION)
                costs[b.maker[k]].freed_bytes += ms__step_key_bytes(step, k);
        for (uint32_t i = 0; i < step->n_split_keys; i++) count_pointwise(&b, &step->split_keys[i], costs);
        *out = costs;
    }
    ms__arena_free(&scratch);
    return status;
}

int64_t ms__recompute_ns(const ms__recompute_cost *cost, uint32_t keeps) {
    if (keeps == MS_KEEP_ALL) return 0; /* it does not run */
    int64_t host = cost->keeping_ns[keeps], busy = 0;
    for (uint32_t g = 0; g < MS__N_GROUPS; g++) {
        host = ms__add_ns(host, cost->extra[g].host_ns);
        if (!(keeps & 1U << g)) busy = ms__add_ns(busy, cost->extra[g].busy_ns);
    }
    if (!cost->on_gpu) return ms__add_ns(host, busy);
    return host > busy ? host : busy;
}

int64_t ms__recompute_held(const ms__recompute_cost *cost, uint32_t keeps) {
    return keeps == MS_KEEP_ALL ? cost->freed_bytes : cost->kept_bytes[keeps];
}
