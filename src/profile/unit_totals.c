/* unit_totals.c - computes the bytes of each unit, and of the whole model, from a step.
 *
 * A unit's saved bytes are what its forward allocates and backward releases in the plain step, and its inputs. Its
 * inputs are what others allocate in forward and the unit's backward releases, all units recomputed. The sums of a step
 * are in range (step.h), so these are too.
 */
#include "profile.h"

#define NOBODY (-2)

typedef struct tally {
    const ms__step *step;
    int32_t *maker; /* key -> the unit whose forward allocates it, -1 between units, NOBODY otherwise */
    ms_unit *units; /* the totals */
    int64_t rest;   /* kept for backward outside units */
} tally;

static bool is_activation(const tally *t, uint32_t key) {
    return t->step->keys[key].category == MS_CATEGORY_ACTIVATION && t->maker[key] != NOBODY;
}

static void count_release(tally *t, uint32_t key, const ms__segment *s, int variant) {
    if (s->phase != MS_PHASE_BACKWARD || !is_activation(t, key)) return;
    int32_t maker = t->maker[key];
    int64_t n_bytes = ms__step_key_bytes(t->step, key);
    if (variant == MS__RECOMPUTED && s->unit >= 0 && maker != s->unit) t->units[s->unit].input_bytes += n_bytes;
    if (variant == MS__PLAIN && maker >= 0) t->units[maker].saved_bytes += n_bytes;
    if (variant == MS__PLAIN && maker < 0) t->rest += n_bytes;
}

static void count_segment(tally *t, uint32_t index, int variant) {
    const ms__segment *s = &t->step->segments[index];
    bool forward = s->phase == MS_PHASE_FORWARD || s->phase == MS_PHASE_LOSS;
    for (uint32_t i = s->first[variant]; i < s->first[variant] + s->n[variant]; i++) {
        const ms__step_event *event = &t->step->events[i];
        if (event->kind == MS__ALLOCATE && forward) t->maker[event->index] = s->unit;
        if (event->kind == MS__RELEASE) count_release(t, event->index, s, variant);
        if (event->kind == MS__OPERATION && forward && s->unit >= 0 && variant == MS__PLAIN)
            t->units[s->unit].n_rows += t->step->numbers[t->step->costs[event->index].flops];
    }
}

/* Segments contain all releases, those of split keys too. */
static void count(tally *t) {
    for (int v = 0; v < (t->step->has_recomputed ? MS__POINTWISE : MS__RECOMPUTED); v++)
        for (uint32_t i = 0; i < t->step->n_segments; i++) count_segment(t, i, v);
}

static void describe_units(const tally *t, int64_t n_units) {
    for (uint32_t i = 0; i < t->step->n_segments; i++) {
        const ms__segment *s = &t->step->segments[i];
        if (s->unit >= 0 && s->phase == MS_PHASE_FORWARD) t->units[s->unit].flags |= MS_UNIT_RUN;
    }
    for (int64_t i = 0; i < n_units; i++) {
        ms_unit *unit = &t->units[i];
        int64_t weights = unit->param_bytes / 2; /* two operations for each of four bytes */
        unit->saved_bytes += unit->input_bytes;
        unit->n_rows = weights > 0 ? unit->n_rows / weights : 0;
        if (t->step->has_recomputed) unit->flags |= MS_UNIT_ELIGIBLE;
    }
}

static int64_t resident_bytes(const ms__step *step) {
    int64_t sum = 0;
    for (uint32_t k = 0; k < step->n_keys; k++) {
        uint32_t category = step->keys[k].category;
        if (category == MS_CATEGORY_PARAMETER || category == MS_CATEGORY_BUFFER || category == MS_CATEGORY_GRADIENT ||
            category == MS_CATEGORY_OPTIMIZER)
            sum += ms__step_key_bytes(step, k);
    }
    return sum;
}

ms_status ms__profile_tally(ms_profile *profile, ms_unit *units, int64_t n_units) {
    ms__arena scratch = {0};
    tally t = {.step = profile->step, .units = units};
    t.maker = ms__arena_array(&scratch, t.step->n_keys, sizeof *t.maker);
    if (t.maker == NULL) return MS_E_NO_MEMORY;
    for (uint32_t k = 0; k < t.step->n_keys; k++) t.maker[k] = NOBODY;
    count(&t);
    ms__arena_free(&scratch);
    describe_units(&t, n_units);
    profile->n_units = n_units;
    profile->resident_bytes = resident_bytes(t.step);
    profile->outside_bytes = t.rest;
    return ms__units_copy(&profile->arena, units, n_units, &profile->units);
}
