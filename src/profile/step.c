/* step.c - from traces to a step.
 *
 * A trace is walked once. Operations and allocations start a run when the unit or the phase changes; releases belong to
 * the run in which they happen. The traces of a step have the same operations in the same order, except those of
 * recomputation (between MS_TRACE_RECOMPUTE marks). So the n-th plain operation of one is the n-th of the other, and
 * what it allocates has the same key in all.
 */
#include "step.h"

#include <string.h>

#include "../common/intern.h"
#include "../common/math.h"
#include "../common/vec.h"
#include "trace.h"

#define NO_KEY UINT32_MAX

/* An allocation after a plain operation: the `ordinal`-th, its `place`-th allocation. */
typedef struct slot {
    int64_t ordinal, place;
    uint32_t key;
} slot;

typedef struct run {
    int32_t unit;
    uint32_t phase;
    uint32_t first, n;
} run;

/* What one trace becomes. */
typedef struct walk {
    const ms_trace *trace;
    MS__VEC(run) runs;
    MS__VEC(ms__step_event) events;
    MS__VEC(slot) slots;
    MS__VEC(uint32_t) names; /* of plain operations, in order */
    uint32_t *keys;          /* of storages */
    int32_t *released;       /* storage -> run, or -1 */
    uint32_t *born;          /* storage -> phase */
    int64_t ordinal, place;
    size_t cursor; /* in the slots of the other trace */
    int32_t unit, repeating;
    uint32_t phase;
    uint32_t n_saved;    /* by a recomputation before its first operation */
    uint32_t keep;       /* enum ms_keep: of the function that runs; 0: none whose result may be kept */
    size_t began;        /* the first cost of that function */
    uint32_t *maker;     /* storage -> the cost of the operation that allocates it */
    ms__op_cost last;    /* the operation whose outputs are being allocated */
    const int64_t *seen; /* what was seen of its kernels, if something was, from here on; */
    int n_seen;          /* so much */
} walk;

typedef struct builder {
    MS__VEC(ms__step_key) keys;
    MS__VEC(ms__step_cost) costs;
    MS__VEC(ms__step_scratch) scratches;
    MS__VEC(int64_t) numbers;
    const ms_trace *const *traces; /* by variant; NULL: it has none */
    walk walks[MS__N_VARIANTS];
    int64_t n_units;
} builder;

/* ---- One trace ---- */

static bool add_number(builder *b, int64_t value, uint32_t *out) {
    *out = (uint32_t)b->numbers.n;
    return ms__vec_push(&b->numbers, value);
}

static bool is_open(const walk *w, int32_t unit) {
    const run *last = w->runs.n > 0 ? &w->runs.items[w->runs.n - 1] : NULL;
    return last != NULL && last->unit == unit && last->phase == w->phase;
}

static bool open_run(walk *w, int32_t unit) {
    if (is_open(w, unit)) return true;
    run next = {.unit = unit, .phase = w->phase, .first = (uint32_t)w->events.n};
    return ms__vec_push(&w->runs, next);
}

static bool add_event(walk *w, uint32_t kind, uint32_t index) {
    ms__step_event event = {kind, index};
    if (!ms__vec_push(&w->events, event)) return false;
    w->runs.items[w->runs.n - 1].n++;
    return true;
}

static int32_t unit_now(const walk *w) { return w->repeating >= 0 ? w->repeating : w->unit; }

static ms_status add_scratch(builder *b, walk *w, enum ms__scratch_rule rule, const int64_t *n) {
    ms__step_scratch scratch = {.rule = (uint32_t)rule};
    for (int i = 0; i < MS__SCRATCH_NUMBERS; i++)
        if (!add_number(b, n[i], &scratch.n[i])) return MS_E_NO_MEMORY;
    uint32_t index = (uint32_t)b->scratches.n;
    return ms__vec_push(&b->scratches, scratch) && add_event(w, MS__SCRATCH, index) ? MS_OK : MS_E_NO_MEMORY;
}

/* What the last operation's kernel was seen to allocate for the result that was just allocated. */
static ms_status add_seen(builder *b, walk *w) {
    if (w->n_seen == 0) return MS_OK;
    int64_t n_bytes = *w->seen < 0 ? 0 : *w->seen;
    w->seen++;
    w->n_seen--;
    return add_scratch(b, w, MS__SCRATCH_BYTES, (const int64_t[MS__SCRATCH_NUMBERS]){n_bytes, n_bytes});
}

/* What the last operation allocates for itself after its outputs: by rule, or what else was seen. */
static ms_status end_operation(builder *b, walk *w) {
    enum ms__scratch_rule rule = w->last.rule;
    ms_status status = rule == MS__SCRATCH_NONE ? MS_OK : add_scratch(b, w, rule, w->last.n);
    w->last.rule = MS__SCRATCH_NONE;
    while (w->n_seen > 0 && *w->seen <= 0) w->seen++, w->n_seen--;
    while (w->n_seen > 0 && status == MS_OK) status = add_seen(b, w);
    return status;
}

static bool is_list_operation(const char *name) { return strncmp(name, "aten._foreach_", 14) == 0; }

static uint32_t alignment_flag(const ms__op_cost *cost) {
    if (!cost->is_matrix || cost->element_bytes != 2 || cost->alignment == 0 || cost->alignment >= 8) return 0;
    return cost->alignment == 1 ? MS__OP_ODD : MS__OP_UNEVEN;
}

static uint32_t function_flag(const walk *w) {
    if (w->keep == 0) return 0;
    return w->keep == MS_KEEP_ATTENTION ? MS__OP_IN_ATTENTION : MS__OP_IN_PRODUCT;
}

/* A function whose result may be kept begins, or has returned a storage (-1: none). */
static void walk_function(builder *b, walk *w, int64_t keep, int64_t storage) {
    if (keep == 0 && storage >= 0 && w->keys[storage] != NO_KEY && w->maker[storage] >= w->began &&
        w->maker[storage] < b->costs.n)
        b->costs.items[w->maker[storage]].flags |= MS__OP_RESULT;
    w->keep = (uint32_t)keep;
    w->began = b->costs.n;
}

static ms_status walk_op(builder *b, walk *w, int64_t index) {
    const ms_trace *trace = w->trace;
    const ms_trace_op *op = &trace->ops[index];
    static const ms__operand none;
    const ms__operand *operands = trace->n_operands > 0 ? trace->operands + op->first : &none;
    ms__op_cost cost;
    ms__op_cost_of(trace->names[op->name], operands, op->n_inputs, operands + op->n_inputs, op->n_outputs, &cost);
    ms__step_cost known = {.element_bytes = (uint32_t)cost.element_bytes};
    known.flags = (cost.is_view ? MS__OP_VIEW : 0U) | (cost.is_matrix ? MS__OP_MATRIX : 0U) |
                  (cost.is_biased ? MS__OP_BIASED : 0U) | (cost.is_attention ? MS__OP_ATTENTION : 0U) |
                  (cost.is_random ? MS__OP_RANDOM : 0U) | alignment_flag(&cost) | function_flag(w);
    if (w->repeating >= 0) {
        known.flags |= MS__OP_REPEATED + MS__OP_TENSOR * w->n_saved;
        w->n_saved = 0;
    } else if (is_list_operation(trace->names[op->name])) {
        known.flags |= MS__OP_LIST + MS__OP_TENSOR * (uint32_t)ms__min(op->n_inputs, MS__OP_MAX_TENSORS);
    }
    if (!open_run(w, unit_now(w)) || !add_number(b, cost.flops, &known.flops) ||
        !add_number(b, cost.bytes, &known.bytes) || !ms__vec_push(&b->costs, known) ||
        !add_event(w, MS__OPERATION, (uint32_t)b->costs.n - 1))
        return MS_E_NO_MEMORY;
    if (w->repeating < 0) {
        w->ordinal++;
        w->place = 0;
        if (!ms__vec_push(&w->names, (uint32_t)op->name)) return MS_E_NO_MEMORY;
    }
    w->last = cost;
    const int64_t *seen = trace->scratch_bytes == NULL ? NULL : &trace->scratch_bytes[op->name * MS_TRACE_SCRATCHES];
    if (seen != NULL && seen[0] >= 0) { /* it counts instead of the rule */
        w->last.rule = MS__SCRATCH_NONE;
        w->seen = seen;
        w->n_seen = MS_TRACE_SCRATCHES;
    }
    return MS_OK;
}

/* The key of the same allocation in the trace that was walked first. */
static uint32_t find_key(walk *w, const walk *first) {
    while (w->cursor < first->slots.n) {
        const slot *s = &first->slots.items[w->cursor];
        if (s->ordinal > w->ordinal || (s->ordinal == w->ordinal && s->place > w->place)) break;
        w->cursor++;
        if (s->ordinal == w->ordinal && s->place == w->place) return s->key;
    }
    return NO_KEY;
}

static ms_status walk_allocation(builder *b, walk *w, const walk *first, int64_t storage, int64_t n_bytes) {
    if (w->keys[storage] != NO_KEY) return ms__fail(MS_E_INVALID, "trace: a storage is allocated twice");
    bool plain = w->repeating < 0;
    uint32_t key = plain && first != NULL ? find_key(w, first) : NO_KEY;
    if (key >= b->keys.n) { /* NO_KEY */
        ms__step_key fresh = {0};
        key = (uint32_t)b->keys.n;
        if (!add_number(b, n_bytes, &fresh.size) || !ms__vec_push(&b->keys, fresh)) return MS_E_NO_MEMORY;
    } else if (b->numbers.items[b->keys.items[key].size] != n_bytes) {
        return ms__fail(MS_E_MISMATCH, "the traces differ in a size after operation %lld", (long long)w->ordinal);
    }
    slot here = {w->ordinal, w->place, key};
    if (plain && !ms__vec_push(&w->slots, here)) return MS_E_NO_MEMORY;
    if (plain) w->place++;
    w->keys[storage] = key;
    w->maker[storage] = b->costs.n == 0 ? NO_KEY : (uint32_t)b->costs.n - 1;
    w->born[storage] = w->phase;
    if (!open_run(w, unit_now(w)) || !add_event(w, MS__ALLOCATE, key)) return MS_E_NO_MEMORY;
    return add_seen(b, w);
}

static ms_status walk_release(walk *w, int64_t storage) {
    if (w->keys[storage] == NO_KEY || w->released[storage] >= 0)
        return ms__fail(MS_E_INVALID, "trace: an event releases a storage that is not allocated");
    w->released[storage] = (int32_t)w->runs.n - 1;
    return add_event(w, MS__RELEASE, w->keys[storage]) ? MS_OK : MS_E_NO_MEMORY;
}

static ms_status walk_gradient(walk *w, int64_t storage) {
    if (w->keys[storage] == NO_KEY)
        return ms__fail(MS_E_INVALID, "trace: a gradient is a storage that is not allocated");
    return add_event(w, MS__ACCUMULATE, w->keys[storage]) ? MS_OK : MS_E_NO_MEMORY;
}

/* What was not allocated is not counted. A unit that has done nothing is not recomputed. */
static ms_status walk_input(walk *w, int64_t storage) {
    if (w->keys[storage] == NO_KEY || w->released[storage] >= 0 || w->unit < 0 || w->repeating >= 0) return MS_OK;
    if ((w->phase != MS_PHASE_FORWARD && w->phase != MS_PHASE_LOSS) || !is_open(w, w->unit)) return MS_OK;
    return add_event(w, MS__HOLD, w->keys[storage]) ? MS_OK : MS_E_NO_MEMORY;
}

static ms_status walk_phase(walk *w, int64_t phase) {
    if (phase < (int64_t)w->phase) return ms__fail(MS_E_INVALID, "trace: a phase comes after a later one");
    w->phase = (uint32_t)phase;
    return MS_OK;
}

/* A recomputation in backward opens a run even if it does nothing that a trace shows, as in a plain trace that was
 * derived from a recomputed one. */
static ms_status walk_mark(const builder *b, walk *w, const ms_trace_event *event) {
    if (event->a >= b->n_units) return ms__fail(MS_E_INVALID, "trace: an event names an unknown layer");
    int32_t unit = (int32_t)event->a;
    if (event->kind == MS_TRACE_UNIT) {
        w->unit = unit;
        return MS_OK;
    }
    w->repeating = unit;
    return unit < 0 || w->phase != MS_PHASE_BACKWARD || open_run(w, unit) ? MS_OK : MS_E_NO_MEMORY;
}

/* In a recomputation, a saved tensor is counted with the operation before it. Autograd saves inputs before an operation
 * and results after it, so one may be counted an operation too early; what is saved first waits for an operation. */
static void count_save(builder *b, walk *w) {
    uint32_t *flags = b->costs.n == 0 ? NULL : &b->costs.items[b->costs.n - 1].flags;
    if (w->repeating < 0) return;
    if (flags == NULL || !(*flags & MS__OP_REPEATED))
        w->n_saved += w->n_saved < MS__OP_MAX_TENSORS;
    else if ((*flags / MS__OP_TENSOR & MS__OP_MAX_TENSORS) < MS__OP_MAX_TENSORS)
        *flags += MS__OP_TENSOR;
}

static ms_status walk_event(builder *b, walk *w, const walk *first, const ms_trace_event *event) {
    if (event->kind == MS_TRACE_SAVE) {
        count_save(b, w);
        return MS_OK;
    }
    if (event->kind == MS_TRACE_FUNCTION) {
        walk_function(b, w, event->a, event->b);
        return MS_OK;
    }
    ms_status status = event->kind == MS_TRACE_ALLOC ? MS_OK : end_operation(b, w);
    if (status != MS_OK) return status;
    switch (event->kind) {
    case MS_TRACE_OP:
        return walk_op(b, w, event->a);
    case MS_TRACE_ALLOC:
        return walk_allocation(b, w, first, event->a, event->b);
    case MS_TRACE_FREE:
        return walk_release(w, event->a);
    case MS_TRACE_GRADIENT:
        return walk_gradient(w, event->a);
    case MS_TRACE_INPUT:
        return walk_input(w, event->a);
    case MS_TRACE_PHASE:
        return walk_phase(w, event->a);
    default:
        return walk_mark(b, w, event);
    }
}

static ms_status walk_trace(builder *b, ms__arena *scratch, const ms_trace *trace, walk *w, const walk *first) {
    ms_status status = ms__trace_check(trace);
    if (status != MS_OK) return status;
    size_t n = (size_t)trace->n_storages;
    w->trace = trace;
    w->unit = w->repeating = -1;
    w->keys = ms__arena_array(scratch, n, sizeof *w->keys);
    w->released = ms__arena_array(scratch, n, sizeof *w->released);
    w->born = ms__arena_array(scratch, n, sizeof *w->born);
    w->maker = ms__arena_array(scratch, n, sizeof *w->maker);
    if (w->keys == NULL || w->released == NULL || w->born == NULL || w->maker == NULL) return MS_E_NO_MEMORY;
    memset(w->keys, 0xff, n * sizeof *w->keys);
    memset(w->released, 0xff, n * sizeof *w->released);
    for (int64_t i = 0; i < trace->n_events && status == MS_OK; i++)
        status = walk_event(b, w, first, &trace->events[i]);
    return status == MS_OK ? end_operation(b, w) : status;
}

static ms_status check_same(const walk *a, const walk *b) {
    size_t n = a->names.n < b->names.n ? a->names.n : b->names.n;
    for (size_t i = 0; i < n; i++) {
        const char *x = a->trace->names[a->names.items[i]], *y = b->trace->names[b->names.items[i]];
        if (strcmp(x, y) != 0)
            return ms__fail(MS_E_MISMATCH, "the traces differ at operation %zu: %.64s and %.64s", i, x, y);
    }
    if (a->names.n != b->names.n) return ms__fail(MS_E_MISMATCH, "the traces differ in length");
    if (a->runs.n != b->runs.n) return ms__fail(MS_E_MISMATCH, "layers take turns differently in the two traces");
    for (size_t i = 0; i < a->runs.n; i++)
        if (a->runs.items[i].unit != b->runs.items[i].unit || a->runs.items[i].phase != b->runs.items[i].phase)
            return ms__fail(MS_E_MISMATCH, "layers take turns differently in the two traces");
    return MS_OK;
}

/* ---- Both ---- */

/* The category of a storage: what the trace says for parameters, buffers and inputs; else it depends on when it was
 * allocated and whether it stays. */
static uint32_t category_of(const walk *w, int64_t storage) {
    int64_t kind = w->trace->kinds[storage];
    bool stays = w->released[storage] < 0;
    uint32_t born = w->born[storage];
    if (kind == MS_CATEGORY_PARAMETER || kind == MS_CATEGORY_BUFFER || kind == MS_CATEGORY_INPUT) return (uint32_t)kind;
    if (born <= MS_PHASE_LOSS) return stays ? MS_CATEGORY_BUFFER : MS_CATEGORY_ACTIVATION;
    if (born == MS_PHASE_BACKWARD) return stays ? MS_CATEGORY_GRADIENT : MS_CATEGORY_TEMPORARY;
    return stays ? MS_CATEGORY_OPTIMIZER : MS_CATEGORY_TEMPORARY;
}

/* Set size and category of each key. */
static void settle_keys(builder *b) {
    for (int v = MS__N_VARIANTS - 1; v >= 0; v--) { /* the plain variant decides */
        const walk *w = &b->walks[v];
        if (b->traces[v] == NULL) continue;
        ms__step_key *keys = b->keys.items; /* NULL if there are no keys */
        for (int64_t s = 0; s < w->trace->n_storages && keys != NULL; s++)
            if (w->keys[s] != NO_KEY) keys[w->keys[s]].category = category_of(w, s);
    }
}

static void *copy(ms__arena *arena, const void *items, size_t n, size_t item_bytes) {
    void *out = ms__arena_array(arena, n, item_bytes);
    if (out != NULL && items != NULL) memcpy(out, items, n * item_bytes);
    return out;
}

static ms_status fill_segments(builder *b, ms__arena *arena, ms__step *out) {
    size_t n_segments = b->walks[MS__PLAIN].runs.n, n_events = 0;
    settle_keys(b);
    for (int v = 0; v < MS__N_VARIANTS; v++) n_events += b->walks[v].events.n;
    if (n_events > MS__STEP_MAX_EVENTS)
        return ms__fail(MS_E_LIMIT, "the step has %zu events, which are too many", n_events);
    out->segments = ms__arena_array(arena, n_segments, sizeof *out->segments);
    out->events = ms__arena_array(arena, n_events, sizeof *out->events);
    if (out->segments == NULL || out->events == NULL) return MS_E_NO_MEMORY;
    for (size_t i = 0; i < n_segments; i++) {
        ms__segment *segment = &out->segments[i];
        const run *plain = &b->walks[MS__PLAIN].runs.items[i];
        segment->unit = plain->unit;
        segment->phase = plain->phase;
        for (int v = 0; v < MS__N_VARIANTS; v++) {
            if (b->traces[v] == NULL) continue;
            const run *r = &b->walks[v].runs.items[i];
            segment->first[v] = out->n_events;
            segment->n[v] = r->n;
            for (uint32_t e = 0; e < r->n; e++) out->events[out->n_events++] = b->walks[v].events.items[r->first + e];
        }
    }
    out->n_segments = (uint32_t)n_segments;
    out->has_recomputed = b->traces[MS__RECOMPUTED] != NULL;
    out->has_pointwise = b->traces[MS__POINTWISE] != NULL;
    return MS_OK;
}

/* ---- Storing repeated values once ---- */

static ms_status intern_all(builder *b, ms__arena *arena, ms__arena *scratch, ms__step *out) {
    uint32_t *number, *cost, *taken;
    ms_status status =
        ms__intern(scratch, b->numbers.items, b->numbers.n, sizeof *b->numbers.items, &number, &out->n_numbers);
    if (status != MS_OK) return status;
    for (size_t i = 0; i < b->keys.n; i++) b->keys.items[i].size = number[b->keys.items[i].size];
    for (size_t i = 0; i < b->costs.n; i++) {
        b->costs.items[i].flops = number[b->costs.items[i].flops];
        b->costs.items[i].bytes = number[b->costs.items[i].bytes];
    }
    for (size_t i = 0; i < b->scratches.n; i++)
        for (int j = 0; j < MS__SCRATCH_NUMBERS; j++) b->scratches.items[i].n[j] = number[b->scratches.items[i].n[j]];
    status = ms__intern(scratch, b->costs.items, b->costs.n, sizeof *b->costs.items, &cost, &out->n_costs);
    if (status == MS_OK)
        status = ms__intern(scratch, b->scratches.items, b->scratches.n, sizeof *b->scratches.items, &taken,
                            &out->n_scratches);
    if (status != MS_OK) return status;
    for (uint32_t i = 0; i < out->n_events; i++) {
        ms__step_event *event = &out->events[i];
        if (event->kind == MS__OPERATION) event->index = cost[event->index];
        if (event->kind == MS__SCRATCH) event->index = taken[event->index];
    }
    out->numbers = copy(arena, b->numbers.items, out->n_numbers, sizeof *out->numbers);
    out->costs = copy(arena, b->costs.items, out->n_costs, sizeof *out->costs);
    out->scratches = copy(arena, b->scratches.items, out->n_scratches, sizeof *out->scratches);
    out->keys = copy(arena, b->keys.items, b->keys.n, sizeof *out->keys);
    out->n_keys = (uint32_t)b->keys.n;
    bool there = out->numbers != NULL && out->costs != NULL && out->scratches != NULL && out->keys != NULL;
    return there ? MS_OK : MS_E_NO_MEMORY;
}

static ms_status build(builder *b, ms__arena *arena, ms__arena *scratch, ms__step *out) {
    ms_status status = MS_OK;
    const walk *before = NULL;
    for (int i = 0; i < MS__N_VARIANTS && status == MS_OK; i++) {
        int v = ms__variant_order[i];
        if (b->traces[v] == NULL) continue;
        status = walk_trace(b, scratch, b->traces[v], &b->walks[v], before);
        if (status == MS_OK && before != NULL) status = check_same(&b->walks[v], before);
        before = &b->walks[v];
    }
    if (status == MS_OK) status = fill_segments(b, arena, out);
    if (status == MS_OK) status = intern_all(b, arena, scratch, out);
    return status == MS_OK ? ms__step_finish(arena, out) : status;
}

ms_status ms__step_from_traces(ms__arena *arena, const ms_trace *const traces[MS__N_VARIANTS], int64_t n_units,
                               ms__step *out) {
    ms__arena scratch = {0};
    builder b = {.traces = traces, .n_units = n_units};
    ms__step step = {.n_units = (uint32_t)n_units};
    ms_status status = build(&b, arena, &scratch, &step);
    for (int v = 0; v < MS__N_VARIANTS; v++) {
        ms__vec_free(&b.walks[v].runs);
        ms__vec_free(&b.walks[v].events);
        ms__vec_free(&b.walks[v].slots);
        ms__vec_free(&b.walks[v].names);
    }
    ms__vec_free(&b.keys);
    ms__vec_free(&b.costs);
    ms__vec_free(&b.scratches);
    ms__vec_free(&b.numbers);
    ms__arena_free(&scratch);
    if (status == MS_OK) *out = step;
    return status;
}
