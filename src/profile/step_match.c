/* step_match.c - the same step at several shapes: is it the same, and which of its numbers belong together?
 *
 * Steps at different shapes do the same things in the same order; only their numbers differ. A step has each number
 * once, so two that are equal by chance at one shape are one number there and two elsewhere. Numbers are therefore
 * compared where they occur: by key, and by the place of an operation among the events. Numbers that are equal at all
 * shapes become one again.
 *
 * Which pointwise results a layer drops follows from sizes, so that variant may differ where all else is the same. Then
 * it is left out.
 */
#include "step_match.h"

#include <stdio.h>
#include <string.h>

#include "../common/intern.h"
#include "../common/names.h"

enum { COST_NUMBERS = 2 };

static const ms__step *step_of(const ms__match *m, int64_t profile) { return m->steps[profile]; }

/* ---- Places, for messages ---- */

static const char *const kinds[MS__N_EVENT_KINDS] = {"allocation",         "release",  "operation",
                                                     "memory of a kernel", "gradient", "input"};

static void write_segment(const ms_profile *profile, const ms__segment *s, int variant, char out[MS__PLACE_BYTES]) {
    const char *phase = ms__phases[s->phase].name.name;
    if (s->unit < 0)
        (void)snprintf(out, MS__PLACE_BYTES, "between layers, %s", phase);
    else
        (void)snprintf(out, MS__PLACE_BYTES, "%slayer \"%.64s\", %s",
                       variant == MS__RECOMPUTED  ? "recomputed "
                       : variant == MS__POINTWISE ? "pointwise recomputed "
                                                  : "",
                       profile->units[s->unit].name, phase);
}

/* The segment and the event's number among those of its kind there. */
static void write_place(const ms__match *m, uint32_t event, char out[MS__PLACE_BYTES]) {
    const ms__step *step = step_of(m, 0);
    out[0] = '\0';
    for (uint32_t i = 0; i < step->n_segments; i++) {
        const ms__segment *s = &step->segments[i];
        for (int v = 0; v < MS__N_VARIANTS; v++) {
            if (event < s->first[v] || event - s->first[v] >= s->n[v]) continue;
            uint32_t kind = step->events[event].kind;
            int ordinal = 0;
            for (uint32_t e = s->first[v]; e < event; e++) ordinal += step->events[e].kind == kind;
            write_segment(m->profiles[0], s, v, out);
            size_t n = strlen(out);
            (void)snprintf(out + n, MS__PLACE_BYTES - n, ", %s %d", kinds[kind], ordinal);
            return;
        }
    }
}

static ms_status fail_structure(const ms__match *m, int64_t other, const char *place, const char *what) {
    const ms__step *a = step_of(m, 0), *b = step_of(m, other);
    return ms__fail(MS_E_MISMATCH, "at %lld x %lld and %lld x %lld the step differs: %s: %s", (long long)a->batch,
                    (long long)a->length, (long long)b->batch, (long long)b->length, place, what);
}

/* ---- The same structure ---- */

static ms_status check_units(const ms__match *m, int64_t other) {
    const ms_profile *a = m->profiles[0], *b = m->profiles[other];
    if (a->n_units != b->n_units) return fail_structure(m, other, "layers", "their number differs");
    for (int64_t i = 0; i < a->n_units; i++)
        if (strcmp(a->units[i].name, b->units[i].name) != 0 || a->units[i].param_bytes != b->units[i].param_bytes ||
            a->units[i].flags != b->units[i].flags)
            return fail_structure(m, other, a->units[i].name, "a layer differs");
    return MS_OK;
}

static const char *compare_events(const ms__step *a, const ms__step *b, uint32_t event) {
    const ms__step_event *x = &a->events[event], *y = &b->events[event];
    if (x->kind != y->kind) return "the events differ";
    if (x->kind == MS__OPERATION) {
        const ms__step_cost *c = &a->costs[x->index], *d = &b->costs[y->index];
        uint32_t other = (c->flags ^ d->flags) & ~(uint32_t)(MS__OP_ODD | MS__OP_UNEVEN); /* these follow the sizes */
        return c->element_bytes != d->element_bytes || other != 0 ? "the operations differ" : NULL;
    }
    if (x->kind == MS__SCRATCH)
        return a->scratches[x->index].rule != b->scratches[y->index].rule ? "the kernels differ" : NULL;
    return x->index != y->index ? "the tensors differ" : NULL;
}

static ms_status check_segment(const ms__match *m, int64_t other, uint32_t index) {
    const ms__step *a = step_of(m, 0), *b = step_of(m, other);
    const ms__segment *x = &a->segments[index], *y = &b->segments[index];
    char place[MS__PLACE_BYTES];
    write_segment(m->profiles[0], x, MS__PLAIN, place);
    if (x->unit != y->unit || x->phase != y->phase) return fail_structure(m, other, place, "another layer runs here");
    for (int v = 0; v < MS__N_VARIANTS; v++) {
        write_segment(m->profiles[0], x, v, place);
        if (x->first[v] != y->first[v]) return fail_structure(m, other, place, "it starts at another event");
        for (uint32_t i = 0; i < x->n[v] && i < y->n[v]; i++) {
            const char *difference = compare_events(a, b, x->first[v] + i);
            if (difference == NULL) continue;
            write_place(m, x->first[v] + i, place);
            return fail_structure(m, other, place, difference);
        }
        if (x->n[v] != y->n[v]) return fail_structure(m, other, place, "the numbers of events differ");
    }
    return MS_OK;
}

static ms_status check_structure(const ms__match *m, int64_t other) {
    const ms__step *a = step_of(m, 0), *b = step_of(m, other);
    for (int v = 0; v < MS__N_VARIANTS; v++)
        if (ms__step_has(a, v) != ms__step_has(b, v))
            return fail_structure(m, other, "layers", "only one has a recomputed trace");
    ms_status status = check_units(m, other);
    for (uint32_t i = 0; i < a->n_segments && i < b->n_segments && status == MS_OK; i++)
        status = check_segment(m, other, i);
    if (status != MS_OK) return status;
    if (a->n_segments != b->n_segments || a->n_events != b->n_events || a->n_keys != b->n_keys)
        return fail_structure(m, other, "at the end", "one step is longer");
    for (uint32_t e = 0; e < a->n_events; e++) {
        char place[MS__PLACE_BYTES];
        uint32_t key = a->events[e].index;
        if (a->events[e].kind != MS__ALLOCATE || a->keys[key].category == b->keys[key].category) continue;
        write_place(m, e, place);
        return fail_structure(m, other, place, "the categories differ");
    }
    return MS_OK;
}

/* ---- Numbers where they occur ---- */

static ms_status gather_tuples(ms__match *m, uint32_t kind, ms__tuples *out) {
    const ms__step *first = step_of(m, 0);
    size_t n = 0, n_profiles = (size_t)m->n_profiles;
    for (uint32_t e = 0; e < first->n_events; e++) n += first->events[e].kind == kind;
    out->indices = ms__arena_array(m->arena, n * n_profiles, sizeof *out->indices);
    if (out->indices == NULL) return MS_E_NO_MEMORY;
    uint32_t *next = out->indices;
    for (uint32_t e = 0; e < first->n_events; e++)
        for (int64_t p = 0; p < m->n_profiles && first->events[e].kind == kind; p++)
            *next++ = step_of(m, p)->events[e].index;
    return ms__intern(m->arena, out->indices, n, n_profiles * sizeof *out->indices, &out->of, &out->n);
}

static void gather_values(const ms__match *m, int64_t profile) {
    const ms__step *step = step_of(m, profile);
    size_t n = (size_t)m->n_profiles;
    int64_t *value = m->values + profile;
    for (uint32_t k = 0; k < step->n_keys; k++, value += n) *value = step->numbers[step->keys[k].size];
    for (uint32_t i = 0; i < m->costs.n; i++, value += COST_NUMBERS * n) {
        const ms__step_cost *cost = &step->costs[m->costs.indices[i * n + (size_t)profile]];
        value[0] = step->numbers[cost->flops];
        value[n] = step->numbers[cost->bytes];
    }
    for (uint32_t i = 0; i < m->scratches.n; i++) {
        const ms__step_scratch *scratch = &step->scratches[m->scratches.indices[i * n + (size_t)profile]];
        for (int j = 0; j < MS__SCRATCH_NUMBERS; j++, value += n) *value = step->numbers[scratch->n[j]];
    }
}

static ms_status gather(ms__match *m) {
    ms_status status = gather_tuples(m, MS__OPERATION, &m->costs);
    if (status == MS_OK) status = gather_tuples(m, MS__SCRATCH, &m->scratches);
    if (status != MS_OK) return status;
    size_t n = step_of(m, 0)->n_keys + (size_t)m->costs.n * COST_NUMBERS + (size_t)m->scratches.n * MS__SCRATCH_NUMBERS;
    m->values = ms__arena_array(m->arena, n * (size_t)m->n_profiles, sizeof *m->values);
    if (m->values == NULL) return MS_E_NO_MEMORY;
    for (int64_t p = 0; p < m->n_profiles; p++) gather_values(m, p);
    size_t item_bytes = (size_t)m->n_profiles * sizeof *m->values;
    return ms__intern(m->arena, m->values, n, item_bytes, &m->numbers, &m->n_numbers);
}

static uint32_t number_of_cost(const ms__match *m, uint32_t cost, uint32_t which) {
    return m->numbers[step_of(m, 0)->n_keys + cost * COST_NUMBERS + which];
}

static uint32_t number_of_scratch(const ms__match *m, uint32_t scratch, uint32_t which) {
    return m->numbers[step_of(m, 0)->n_keys + m->costs.n * COST_NUMBERS + scratch * MS__SCRATCH_NUMBERS + which];
}

/* ---- Results ---- */

bool ms__match_find(const ms__match *m, const uint8_t *is_marked, char out_place[MS__PLACE_BYTES],
                    const char **out_what, uint32_t *out_number) {
    const ms__step *step = step_of(m, 0);
    static const char *const of_cost[COST_NUMBERS] = {"the number of its multiplications",
                                                      "the number of bytes it moves"};
    uint32_t n_ops = 0, n_scratches = 0;
    for (uint32_t e = 0; e < step->n_events; e++) {
        uint32_t kind = step->events[e].kind, number = 0;
        const char *what = NULL;
        if (kind == MS__ALLOCATE && is_marked[number = m->numbers[step->events[e].index]]) what = "its size in bytes";
        for (uint32_t j = 0; j < COST_NUMBERS && kind == MS__OPERATION && what == NULL; j++)
            if (is_marked[number = number_of_cost(m, m->costs.of[n_ops], j)]) what = of_cost[j];
        for (uint32_t j = 0; j < MS__SCRATCH_NUMBERS && kind == MS__SCRATCH && what == NULL; j++)
            if (is_marked[number = number_of_scratch(m, m->scratches.of[n_scratches], j)])
                what = "a size that it depends on";
        if (what != NULL) {
            write_place(m, e, out_place);
            *out_what = what;
            *out_number = number;
            return true;
        }
        n_ops += kind == MS__OPERATION;
        n_scratches += kind == MS__SCRATCH;
    }
    return false;
}

ms_status ms__match_fill_step(const ms__match *m, ms__arena *arena, ms__step *out) {
    const ms__step *from = step_of(m, 0);
    size_t n = (size_t)m->n_profiles;
    uint32_t n_ops = 0, n_scratches = 0;
    *out = *from;
    out->n_numbers = m->n_numbers;
    out->n_costs = m->costs.n;
    out->n_scratches = m->scratches.n;
    out->numbers = ms__arena_array(arena, m->n_numbers, sizeof *out->numbers);
    out->keys = ms__arena_array(arena, from->n_keys, sizeof *out->keys);
    out->costs = ms__arena_array(arena, m->costs.n, sizeof *out->costs);
    out->scratches = ms__arena_array(arena, m->scratches.n, sizeof *out->scratches);
    out->segments = ms__arena_array(arena, from->n_segments, sizeof *out->segments); /* the match may own them */
    out->split_keys = ms__arena_array(arena, from->n_split_keys, sizeof *out->split_keys);
    out->events = ms__arena_array(arena, from->n_events, sizeof *out->events);
    if (out->numbers == NULL || out->keys == NULL || out->costs == NULL || out->scratches == NULL ||
        out->events == NULL || out->segments == NULL || out->split_keys == NULL)
        return MS_E_NO_MEMORY;
    if (from->n_segments > 0) memcpy(out->segments, from->segments, from->n_segments * sizeof *out->segments);
    if (from->n_split_keys > 0) memcpy(out->split_keys, from->split_keys, from->n_split_keys * sizeof *out->split_keys);
    for (uint32_t i = 0; i < m->n_numbers; i++) out->numbers[i] = m->values[i * n];
    for (uint32_t k = 0; k < from->n_keys; k++) {
        out->keys[k] = from->keys[k];
        out->keys[k].size = m->numbers[k];
    }
    for (uint32_t i = 0; i < m->costs.n; i++) {
        out->costs[i] = from->costs[m->costs.indices[i * n]];
        out->costs[i].flops = number_of_cost(m, i, 0);
        out->costs[i].bytes = number_of_cost(m, i, 1);
    }
    for (uint32_t i = 0; i < m->scratches.n; i++) {
        out->scratches[i] = from->scratches[m->scratches.indices[i * n]];
        for (uint32_t j = 0; j < MS__SCRATCH_NUMBERS; j++) out->scratches[i].n[j] = number_of_scratch(m, i, j);
    }
    for (uint32_t e = 0; e < from->n_events; e++) {
        out->events[e] = from->events[e];
        if (from->events[e].kind == MS__OPERATION) out->events[e].index = m->costs.of[n_ops++];
        if (from->events[e].kind == MS__SCRATCH) out->events[e].index = m->scratches.of[n_scratches++];
    }
    return MS_OK;
}

static ms_status check_all(const ms__match *m) {
    ms_status status = MS_OK;
    for (int64_t p = 1; p < m->n_profiles && status == MS_OK; p++) status = check_structure(m, p);
    return status;
}

/* Keys of the pointwise variant alone are the last ones. */
static ms_status leave_out_keys(const ms__match *m, ms__step *step) {
    uint32_t n = 0;
    for (uint32_t e = 0; e < step->n_events; e++)
        if (step->events[e].kind == MS__ALLOCATE && step->events[e].index >= n) n = step->events[e].index + 1;
    ms__step_key *keys = ms__arena_array(m->arena, n, sizeof *keys);
    if (keys == NULL) return MS_E_NO_MEMORY;
    if (n > 0) memcpy(keys, step->keys, n * sizeof *keys);
    step->keys = keys;
    step->n_keys = n;
    return ms__step_finish(m->arena, step);
}

/* The step as it is without its pointwise variant. */
static ms_status leave_out_pointwise(ms__match *m, int64_t profile) {
    const ms__step *from = step_of(m, profile);
    ms__step *out = ms__arena_array(m->arena, 1, sizeof *out);
    if (out == NULL) return MS_E_NO_MEMORY;
    *out = *from;
    out->has_pointwise = false;
    out->n_events = 0;
    out->segments = ms__arena_array(m->arena, from->n_segments, sizeof *out->segments);
    out->events = ms__arena_array(m->arena, from->n_events, sizeof *out->events);
    if (out->segments == NULL || out->events == NULL) return MS_E_NO_MEMORY;
    for (uint32_t i = 0; i < from->n_segments; i++) {
        ms__segment *to = &out->segments[i];
        *to = from->segments[i];
        to->first[MS__POINTWISE] = to->n[MS__POINTWISE] = 0;
        for (int v = 0; v < MS__POINTWISE; v++) {
            to->first[v] = out->n_events;
            for (uint32_t e = 0; e < to->n[v]; e++)
                out->events[out->n_events++] = from->events[from->segments[i].first[v] + e];
        }
    }
    m->steps[profile] = out;
    return leave_out_keys(m, out);
}

ms_status ms__match_steps(ms__match *m) {
    bool has_pointwise = false;
    m->steps = ms__arena_array(m->arena, (size_t)m->n_profiles, sizeof *m->steps);
    if (m->steps == NULL) return MS_E_NO_MEMORY;
    for (int64_t p = 0; p < m->n_profiles; p++) {
        m->steps[p] = m->profiles[p]->step;
        has_pointwise = has_pointwise || m->steps[p]->has_pointwise;
    }
    ms_status status = check_all(m);
    if (status == MS_E_MISMATCH && has_pointwise) {
        status = MS_OK;
        for (int64_t p = 0; p < m->n_profiles && status == MS_OK; p++) status = leave_out_pointwise(m, p);
        if (status == MS_OK) status = check_all(m);
    }
    return status == MS_OK ? gather(m) : status;
}
