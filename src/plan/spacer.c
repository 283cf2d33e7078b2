/* spacer.c - finds the spacer of a step: a block whose being there makes torch's allocator need less.
 *
 * A unit near the end of forward that makes something large (logits) can leave it between two holes, neither of which
 * has room for the largest gradient. If the place before it is taken while the unit runs, the result lies after that
 * place, and casts and gradients of it, which are a few times as large, fit in. Whether it helps depends on all other
 * blocks, so sizes are tried with simulations: on the step with everything recomputed, and on one with half of it
 * recomputed, since plans are mixtures. Plans decide one by one whether they have it (appraise.c).
 */
#include "../common/math.h"
#include "decide.h"

#define LAST_UNITS 4    /* of the chain are looked at */
#define MOST_TIMES 6    /* the result, in a spacer */
#define LEAST_RESULT 64 /* the result is at least this part of what the step needs, */
#define LEAST_SAVED 128 /* and at least this part of that has to be saved */
#define ROUND_BYTES 512 /* of blocks of torch's allocator */

/* The steps that spacers are tried on: the first half of the units recomputed, and all. */
enum { HALF, ALL, N_REFERENCES };

typedef struct references {
    const ms__decision *d;
    ms__choices_step steps[N_REFERENCES];
    ms__needs needs[N_REFERENCES]; /* without a spacer */
    int64_t best_bytes;            /* a spacer is better if they need less together */
} references;

static ms_status open_references(references *r, ms__decision *d) {
    const ms__model_choice *model = ms__decision_model(d, 0);
    ms_status status = MS_OK;
    r->d = d;
    for (int i = 0; i < N_REFERENCES && status == MS_OK; i++) {
        uint8_t *choices = ms__arena_array(&d->arena, (size_t)model->chain.n, 1);
        if (choices == NULL) return MS_E_NO_MEMORY;
        ms__choose_first(&model->chain, i == ALL ? model->chain.n : model->chain.n / 2, choices);
        r->steps[i] = (ms__choices_step){.model = model, .choices = choices, .grows = true};
        status = ms__choices_needs(d, &r->steps[i], INT64_MAX, &r->needs[i]);
        r->best_bytes += r->needs[i].needed_bytes;
    }
    return status;
}

/* What has to be saved of both together. */
static int64_t least_saved(const references *r) { return r->needs[ALL].needed_bytes / LEAST_SAVED; }

/* Is so much lost to holes? */
static bool has_holes(const references *r) {
    int64_t lost = 0;
    for (int i = 0; i < N_REFERENCES; i++) lost += r->needs[i].needed_bytes - r->needs[i].peak_bytes;
    return lost > least_saved(r);
}

/* ---- Spacers to try ---- */

/* The largest block that a segment takes and does not give back. */
static int64_t largest_result(const ms__step *step, const ms__segment *segment, int variant) {
    const ms__step_event *events = step->events + segment->first[variant];
    int64_t largest = 0;
    for (uint32_t i = 0; i < segment->n[variant]; i++) {
        int64_t n_bytes = events[i].kind == MS__ALLOCATE ? ms__step_key_bytes(step, events[i].index) : 0;
        bool stays = n_bytes > largest;
        for (uint32_t k = i + 1; stays && k < segment->n[variant]; k++)
            stays = events[k].kind != MS__RELEASE || events[k].index != events[i].index;
        if (stays) largest = n_bytes;
    }
    return ms__round_up(largest, ROUND_BYTES);
}

/* The segment in which a unit first runs forward. */
static const ms__segment *first_forward(const ms__step *step, int32_t unit) {
    for (uint32_t i = 0; i < step->n_segments; i++) {
        const ms__segment *segment = &step->segments[i];
        if (segment->unit == unit && (segment->phase == MS_PHASE_FORWARD || segment->phase == MS_PHASE_LOSS))
            return segment;
    }
    return NULL;
}

/* What a reference needs with the spacer, if that is at most `most_bytes`. Without it where its peak would be higher.
 */
static ms_status need_with(const references *r, int reference, ms__spacer spacer, int64_t most_bytes, int64_t *out) {
    const ms__needs *without = &r->needs[reference];
    ms__choices_step step = r->steps[reference];
    ms__needs needs;
    step.spacer = spacer;
    ms_status status = ms__choices_needs(r->d, &step, most_bytes, &needs);
    bool is_used = status == MS_OK && needs.peak_bytes <= without->peak_bytes;
    *out = is_used ? ms__min(needs.needed_bytes, without->needed_bytes) : without->needed_bytes;
    return status;
}

/* The best spacer is that with which both references together need the least. */
static ms_status try_spacer(references *r, ms__spacer spacer, ms__spacer *best) {
    int64_t half_bytes = 0, all_bytes = 0, most = r->best_bytes - 1 - r->needs[ALL].peak_bytes;
    ms_status status = need_with(r, HALF, spacer, most, &half_bytes);
    if (status != MS_OK || half_bytes > most) return status;
    most = r->best_bytes - 1 - half_bytes;
    status = need_with(r, ALL, spacer, most, &all_bytes);
    if (status != MS_OK || all_bytes > most) return status;
    r->best_bytes = half_bytes + all_bytes;
    *best = spacer;
    return MS_OK;
}

/* The result, and a few times as much: casts and gradients of it. */
static ms_status try_unit(references *r, int32_t position, ms__spacer *best) {
    const ms__model_choice *model = r->steps[ALL].model;
    const ms__step *step = model->basis->profile->step;
    int32_t unit = model->chain.units[position].unit;
    const ms__segment *segment = first_forward(step, unit);
    int variant = r->steps[ALL].choices[position] == 0 ? MS__PLAIN : MS__RECOMPUTED;
    int64_t n_bytes = segment == NULL ? 0 : largest_result(step, segment, variant);
    ms_status status = MS_OK;
    if (n_bytes < r->needs[ALL].needed_bytes / LEAST_RESULT) return MS_OK;
    int64_t before = model->basis->runs[MS__RECOMPUTED]->segments[segment - step->segments].peak_bytes;
    for (int times = MOST_TIMES; times > 0 && status == MS_OK; times--)
        if (before + times * n_bytes <= r->needs[ALL].peak_bytes) /* else it would be the peak */
            status = try_spacer(r, (ms__spacer){unit, times * n_bytes}, best);
    return status;
}

ms_status ms__find_spacer(ms__decision *d) {
    references r = {0};
    ms__spacer best = {0};
    d->spacer = best;
    bool may_recompute = (d->request->actions & 1U << MS_ACTION_RECOMPUTE) != 0;
    if (!d->is_exact || !may_recompute || !ms__can_grow(d->request)) return MS_OK;
    ms_status status = open_references(&r, d);
    if (status != MS_OK || !has_holes(&r)) return status;
    int32_t n = r.steps[ALL].model->chain.n;
    r.best_bytes -= least_saved(&r);
    for (int32_t i = n - 1; i >= 0 && i >= n - LAST_UNITS && status == MS_OK; i--) status = try_unit(&r, i, &best);
    if (status == MS_OK) d->spacer = best;
    return status;
}
