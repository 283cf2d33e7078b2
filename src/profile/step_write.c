/* step_write.c - writes a step as JSON (step_json.h).
 *
 * Each unit is first written in numbers that do not depend on which unit it is; units with equal numbers form a class.
 * Equal steps give equal texts: classes and kinds of keys are numbered in the order in which they first occur.
 */
#include <stdlib.h>
#include <string.h>

#include "../common/vec.h"
#include "step_json.h"

#define MAX_PERIOD 128 /* the longest sequence of pairs that is tried as a repetition */

typedef struct coder {
    const ms__step *step;
    int32_t *owner;   /* key -> the unit that allocates it first, -1: between units */
    uint32_t *number; /* key -> its number there */
    uint8_t *variant; /* key -> the first variant that allocates it */
    uint32_t *kind;   /* key -> its kind */
    int32_t *place;   /* unit -> in the order in which units first run */
    int32_t *first;   /* unit + 1 -> its first segment, or -1 */
    int32_t *next;    /* segment -> the next one of the same unit, or -1 */
    /* For each segment: phase, number of tapes, and for each tape its number of pairs and the pairs. */
    MS__VEC(int32_t) code;
} coder;

/* ---- Grouping equal items ---- */

typedef struct item {
    const void *bytes;
    size_t n_bytes;
    uint32_t index;
} item;

static int by_content(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->n_bytes != y->n_bytes) return x->n_bytes < y->n_bytes ? -1 : 1;
    int order = x->n_bytes == 0 ? 0 : memcmp(x->bytes, y->bytes, x->n_bytes);
    return order != 0 ? order : x->index < y->index ? -1 : 1;
}

static bool same_content(const item *a, const item *b) {
    return a->n_bytes == b->n_bytes && (a->n_bytes == 0 || memcmp(a->bytes, b->bytes, a->n_bytes) == 0);
}

/* Number the items so that equal ones have the same number, in the order of their indices (0 to n - 1). Sorts them.
 * `leaders`, with room for n, gets the first item with each number. Returns how many there are. */
static uint32_t group(item *items, uint32_t n, uint32_t *numbers, uint32_t *leaders) {
    uint32_t n_groups = 0;
    qsort(items, n, sizeof *items, by_content);
    for (uint32_t i = 0, leader = 0; i < n; i++) { /* of equal items, the first comes first */
        if (i == 0 || !same_content(&items[i - 1], &items[i])) leader = items[i].index;
        numbers[items[i].index] = leader;
    }
    for (uint32_t i = 0; i < n; i++) {
        bool first = numbers[i] == i;
        numbers[i] = first ? n_groups : numbers[numbers[i]];
        if (first) leaders[n_groups++] = i;
    }
    return n_groups;
}

/* ---- Names that do not depend on the unit ---- */

static ms_status name_keys(coder *c, ms__arena *arena) {
    const ms__step *step = c->step;
    uint32_t *counts = ms__arena_array(arena, (size_t)step->n_units + 1, sizeof *counts);
    bool *known = ms__arena_array(arena, step->n_keys, sizeof *known);
    c->owner = ms__arena_array(arena, step->n_keys, sizeof *c->owner);
    c->number = ms__arena_array(arena, step->n_keys, sizeof *c->number);
    c->variant = ms__arena_array(arena, step->n_keys, sizeof *c->variant);
    if (counts == NULL || known == NULL || c->owner == NULL || c->number == NULL || c->variant == NULL)
        return MS_E_NO_MEMORY;
    for (int nth = 0; nth < MS__N_VARIANTS; nth++) {
        int v = ms__variant_order[nth];
        for (uint32_t i = 0; i < step->n_segments; i++) {
            const ms__segment *segment = &step->segments[i];
            for (uint32_t e = segment->first[v]; e < segment->first[v] + segment->n[v]; e++) {
                uint32_t key = step->events[e].index;
                if (step->events[e].kind != MS__ALLOCATE || known[key]) continue;
                known[key] = true;
                c->variant[key] = (uint8_t)v;
                c->owner[key] = segment->unit;
                c->number[key] = counts[segment->unit + 1]++;
            }
        }
    }
    return MS_OK;
}

static ms_status list_segments(coder *c, ms__arena *arena) {
    const ms__step *step = c->step;
    int32_t *last = ms__arena_array(arena, (size_t)step->n_units + 1, sizeof *last), n_placed = 0;
    c->first = ms__arena_array(arena, (size_t)step->n_units + 1, sizeof *c->first);
    c->place = ms__arena_array(arena, step->n_units, sizeof *c->place);
    c->next = ms__arena_array(arena, step->n_segments, sizeof *c->next);
    if (last == NULL || c->first == NULL || c->place == NULL || c->next == NULL) return MS_E_NO_MEMORY;
    memset(c->first, 0xff, ((size_t)step->n_units + 1) * sizeof *c->first);
    for (uint32_t i = 0; i < step->n_segments; i++) {
        int32_t unit = step->segments[i].unit;
        int32_t *link = c->first[unit + 1] < 0 ? &c->first[unit + 1] : &c->next[last[unit + 1]];
        if (unit >= 0 && c->first[unit + 1] < 0) c->place[unit] = n_placed++;
        *link = last[unit + 1] = (int32_t)i;
        c->next[i] = -1;
    }
    return MS_OK;
}

/* ---- One unit ---- */

static bool put_number(coder *c, int32_t number) { return ms__vec_push(&c->code, number); }

static bool put_pair(coder *c, int32_t code, int32_t operand) { return put_number(c, code) && put_number(c, operand); }

static int32_t way_to(const coder *c, int32_t unit, int32_t other) {
    if (unit < 0) return other;
    return other < 0 ? 0 : c->place[other] - c->place[unit];
}

static int32_t code_of_key(uint32_t kind) {
    if (kind == MS__ALLOCATE) return MS__TAPE_ALLOCATE;
    if (kind == MS__RELEASE) return MS__TAPE_RELEASE;
    return kind == MS__HOLD ? MS__TAPE_HOLD : MS__TAPE_ACCUMULATE;
}

static bool put_key(coder *c, int32_t unit, const ms__step_event *event, bool is_new, int32_t *last) {
    uint32_t key = event->index;
    int32_t number = (int32_t)c->number[key], from = *last;
    if (c->owner[key] == unit) *last = number;
    if (is_new) return put_pair(c, MS__TAPE_NEW, (int32_t)c->kind[key]);
    int32_t code = code_of_key(event->kind);
    if (c->owner[key] == unit) return put_pair(c, code, number - from);
    return put_pair(c, MS__TAPE_OTHER, way_to(c, unit, c->owner[key])) && put_pair(c, code, number);
}

static bool put_tape(coder *c, const ms__segment *segment, int variant) {
    size_t at = c->code.n;
    int32_t last = -1;
    if (!put_number(c, 0)) return false;
    for (uint32_t i = 0; i < segment->n[variant]; i++) {
        const ms__step_event *event = &c->step->events[segment->first[variant] + i];
        bool is_new = event->kind == MS__ALLOCATE && c->variant[event->index] == variant;
        bool is_key = event->kind != MS__OPERATION && event->kind != MS__SCRATCH;
        bool done = is_key ? put_key(c, segment->unit, event, is_new, &last)
                           : put_pair(c, (int32_t)event->kind, (int32_t)event->index);
        if (!done) return false;
    }
    c->code.items[at] = (int32_t)((c->code.n - at) / 2);
    return true;
}

static bool are_alike(const ms__step *step, const ms__segment *s, int a, int b) {
    if (!ms__step_has(step, a) || !ms__step_has(step, b)) return true;
    if (s->n[a] != s->n[b]) return false;
    return s->n[a] == 0 ||
           memcmp(step->events + s->first[a], step->events + s->first[b], s->n[a] * sizeof *step->events) == 0;
}

/* A variant that is like the one before it has no tape of its own. */
static int32_t count_tapes(const ms__step *step, const ms__segment *s) {
    if (!are_alike(step, s, MS__PLAIN, MS__POINTWISE)) return 3;
    return are_alike(step, s, MS__PLAIN, MS__RECOMPUTED) ? 1 : 2;
}

static bool put_unit(coder *c, int32_t unit) {
    for (int32_t i = c->first[unit + 1]; i >= 0; i = c->next[i]) {
        const ms__segment *s = &c->step->segments[i];
        int32_t n_tapes = count_tapes(c->step, s);
        if (!put_number(c, (int32_t)s->phase) || !put_number(c, n_tapes) ||
            !put_tape(c, s, c->step->has_recomputed ? MS__RECOMPUTED : MS__PLAIN) ||
            (n_tapes > 1 && !put_tape(c, s, MS__PLAIN)) || (n_tapes > 2 && !put_tape(c, s, MS__POINTWISE)))
            return false;
    }
    return true;
}

/* ---- Text ---- */

/* How many of the n pairs at `pairs` repeat, and how often: the choice that writes the most pairs in the least room. */
static size_t find_period(const int32_t *pairs, size_t n, size_t *out_times) {
    size_t best = 1, best_times = 1;
    for (size_t p = 1; p <= MAX_PERIOD && p <= n / 2; p++) {
        size_t times = 1;
        while (times < MS__TAPE_MAX_TIMES && (times + 1) * p <= n &&
               memcmp(pairs, pairs + times * p * 2, p * 2 * sizeof *pairs) == 0)
            times++;
        bool pays = (p + 1) < times * p; /* the array itself takes about as much as a pair */
        if (pays && (best_times == 1 || (p + 1) * best * best_times < (best + 1) * p * times)) {
            best = p;
            best_times = times;
        }
    }
    *out_times = best_times;
    return best;
}

static void write_tape(ms__json_writer *w, const int32_t *pairs, size_t n) {
    ms__json_begin_row(w, NULL);
    for (size_t at = 0; at < n && w->status == MS_OK;) {
        size_t times, period = find_period(pairs + 2 * at, n - at, &times);
        if (times > 1) {
            ms__json_begin_row(w, NULL);
            ms__json_put_int(w, NULL, (int64_t)times);
        }
        for (size_t i = 2 * at; i < 2 * (at + period); i++) ms__json_put_int(w, NULL, pairs[i]);
        if (times > 1) ms__json_end_row(w);
        at += period * times;
    }
    ms__json_end_row(w);
}

static void write_segments(ms__json_writer *w, const char *key, const int32_t *code, const int32_t *end) {
    ms__json_begin_array(w, key);
    while (code < end) {
        ms__json_begin_row(w, NULL);
        ms__json_put_int(w, NULL, *code++);
        for (int32_t n_tapes = *code++; n_tapes > 0; n_tapes--) {
            size_t n = (size_t)*code++;
            write_tape(w, code, n);
            code += 2 * n;
        }
        ms__json_end_row(w);
    }
    ms__json_end_array(w);
}

static void write_numbers(ms__json_writer *w, const ms__step *step) {
    ms__json_put_int(w, "batch", step->batch);
    ms__json_put_int(w, "length", step->length);
    ms__json_put_bool(w, "recomputed", step->has_recomputed);
    if (step->has_pointwise) ms__json_put_bool(w, "pointwise", true);
    ms__json_put_ints(w, "numbers", step->numbers, step->n_numbers);
    if (step->coefficients != NULL) {
        ms__json_put_int(w, "denominator", step->denominator);
        ms__json_put_ints(w, "coefficients", step->coefficients, (size_t)step->n_numbers * MS__N_TERMS);
    }
    ms__json_begin_row(w, "costs");
    for (uint32_t i = 0; i < step->n_costs; i++) {
        const ms__step_cost *cost = &step->costs[i];
        const uint32_t fields[] = {cost->flops, cost->bytes, cost->element_bytes, cost->flags};
        for (size_t j = 0; j < sizeof fields / sizeof *fields; j++) ms__json_put_int(w, NULL, fields[j]);
    }
    ms__json_end_row(w);
    ms__json_begin_row(w, "scratches");
    for (uint32_t i = 0; i < step->n_scratches; i++) {
        ms__json_put_int(w, NULL, step->scratches[i].rule);
        for (int j = 0; j < MS__SCRATCH_NUMBERS; j++) ms__json_put_int(w, NULL, step->scratches[i].n[j]);
    }
    ms__json_end_row(w);
}

static ms_status write_kinds(ms__json_writer *w, coder *c, ms__arena *arena) {
    uint32_t n = c->step->n_keys;
    item *items = ms__arena_array(arena, n, sizeof *items);
    uint32_t *leaders = ms__arena_array(arena, n, sizeof *leaders);
    c->kind = ms__arena_array(arena, n, sizeof *c->kind);
    if (items == NULL || leaders == NULL || c->kind == NULL) return MS_E_NO_MEMORY;
    for (uint32_t k = 0; k < n; k++) /* size and category are the first two fields */
        items[k] = (item){&c->step->keys[k], offsetof(ms__step_key, split), k};
    uint32_t n_kinds = group(items, n, c->kind, leaders);
    ms__json_begin_row(w, "keys");
    for (uint32_t i = 0; i < n_kinds; i++) {
        ms__json_put_int(w, NULL, c->step->keys[leaders[i]].size);
        ms__json_put_int(w, NULL, c->step->keys[leaders[i]].category);
    }
    ms__json_end_row(w);
    return MS_OK;
}

static ms_status write_units(ms__json_writer *w, coder *c, ms__arena *arena) {
    uint32_t n = c->step->n_units;
    size_t *ends = ms__arena_array(arena, (size_t)n + 1, sizeof *ends); /* of the rest's code, then of each unit's */
    item *items = ms__arena_array(arena, n, sizeof *items);
    uint32_t *classes = ms__arena_array(arena, n, sizeof *classes),
             *leaders = ms__arena_array(arena, n, sizeof *leaders);
    if (ends == NULL || items == NULL || classes == NULL || leaders == NULL || !ms__vec_reserve(&c->code, 1))
        return MS_E_NO_MEMORY;
    for (uint32_t i = 0; i <= n; i++) {
        if (!put_unit(c, (int32_t)i - 1)) return MS_E_NO_MEMORY;
        ends[i] = c->code.n;
    }
    const int32_t *code = c->code.items;
    for (uint32_t i = 0; i < n; i++) items[i] = (item){code + ends[i], (ends[i + 1] - ends[i]) * sizeof *code, i};
    uint32_t n_classes = group(items, n, classes, leaders);
    write_segments(w, "rest", code, code + ends[0]);
    ms__json_begin_array(w, "classes");
    for (uint32_t i = 0; i < n_classes; i++)
        write_segments(w, NULL, code + ends[leaders[i]], code + ends[leaders[i] + 1]);
    ms__json_end_array(w);
    ms__json_begin_row(w, "units");
    for (uint32_t i = 0; i < n; i++) ms__json_put_int(w, NULL, classes[i]);
    ms__json_end_row(w);
    return MS_OK;
}

void ms__step_write(ms__json_writer *w, const ms__step *step) {
    ms__arena arena = {0};
    coder c = {.step = step};
    ms_status status = name_keys(&c, &arena);
    write_numbers(w, step);
    if (status == MS_OK) status = list_segments(&c, &arena);
    if (status == MS_OK) status = write_kinds(w, &c, &arena);
    if (status == MS_OK) status = write_units(w, &c, &arena);
    ms__json_begin_row(w, "order");
    for (uint32_t i = 0; i < step->n_segments; i++) ms__json_put_int(w, NULL, step->segments[i].unit);
    ms__json_end_row(w);
    ms__vec_free(&c.code);
    ms__arena_free(&arena);
    if (w->status == MS_OK) w->status = status;
}
