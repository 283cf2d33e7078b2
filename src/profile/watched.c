/* watched.c - from the trace of a first step, whose units were recomputed, to what plain and later steps do.
 *
 * Both rewrites change only which storages there are and how long they live: operations stay in their order, so the
 * traces match when they become a step (step.c).
 *
 *   forward            s is allocated, saved as number b, and freed, since only the unit's inputs are kept
 *   recomputation      r is allocated, saved as number b: r has the contents of s, its twin
 *   backward           uses r, and frees it
 *
 * In the plain step there is no r: s lives until r is freed, and operations that use r use s. The marks of
 * recomputations stay, with nothing between them: they are where the step goes from one unit to the next.
 *
 * A recomputed unit keeps its inputs until its backward is done. The plain step frees them earlier, if nothing else
 * keeps them: after their last use. In forward they are held by the caller until the next unit runs. In backward
 * autograd frees what a node saved when the node is done, and then it also frees the gradient that the node was given.
 */
#include <string.h>

#include "trace.h"

#define NO_TWIN (-2) /* -1: the twin is not on the device */
#define NONE (-1)

enum {
    REPEATED = 1,   /* allocated by a recomputation, or by what prepares one */
    USED = 2,       /* by an operation of the step's own, or saved by it */
    ACTIVATION = 4, /* allocated by forward or the loss */
    GRADIENT = 8    /* allocated by backward */
};

typedef struct derivation {
    const ms_trace *trace;
    /* Of storages: */
    int64_t *freed;     /* the event that frees it; n_events: none */
    int64_t *end;       /* the event after which the plain step frees it; n_events: it stays */
    int64_t *last_use;  /* the last of the step's own operations that uses it; NONE: none */
    int64_t *last_save; /* the last time that a recomputation saved it; NONE: none */
    int64_t *maker;     /* the visit to a unit that allocates it */
    int64_t *reader;    /* the first unit whose forward uses it as an input; NONE: none */
    int64_t *twin;
    int64_t *place; /* the storage that forward allocated at the same place, if it is known: else NONE */
    uint8_t *flags;
    int64_t *next_ended; /* the next one with the same end, NONE: no more */
    /* Of events: */
    int64_t *first_ended; /* the first storage that ends there */
    int64_t *op_end;      /* of an operation: where it has allocated its outputs */
    int64_t *next_unit;   /* in forward: where the next unit runs, or the next phase begins */
    int64_t *group_end;   /* the last of the storages of the step's own that are freed next, with nothing in between;
                           * NONE: there are none */
    /* Of saves: */
    int64_t *saved;    /* the storage */
    int64_t *saved_at; /* the event */
    int64_t n_saves;
    /* While the trace is walked: */
    int64_t phase, unit;
    int64_t backward;   /* where it begins */
    int64_t visit;      /* counts changes of the unit */
    int64_t recomputed; /* the unit that was recomputed last; NONE: none */
    int64_t repeating;  /* the unit that is recomputed; NONE: none */
    int64_t cursor;     /* the event of forward that the recomputation is at; NONE: unknown */
} derivation;

static bool is_repeated(const derivation *d, int64_t storage) { return (d->flags[storage] & REPEATED) != 0; }

/* What is allocated by recomputations, and where storages are freed. */
static void find_frees(derivation *d) {
    const ms_trace_event *events = d->trace->events;
    bool is_repeating = false;
    for (int64_t i = 0; i < d->trace->n_events; i++) {
        if (events[i].kind == MS_TRACE_RECOMPUTE) is_repeating = events[i].a >= 0;
        if (events[i].kind == MS_TRACE_ALLOC && is_repeating) d->flags[events[i].a] |= REPEATED;
        if (events[i].kind == MS_TRACE_FREE) d->freed[events[i].a] = i;
    }
}

static void find_next(derivation *d) {
    const ms_trace_event *events = d->trace->events;
    int64_t unit = d->trace->n_events, group = NONE;
    bool is_group = false, is_followed_by_allocation = false;
    for (int64_t i = d->trace->n_events - 1; i >= 0; i--) {
        int64_t kind = events[i].kind;
        if (kind == MS_TRACE_PHASE || (kind == MS_TRACE_UNIT && events[i].a >= 0)) unit = i;
        if (kind == MS_TRACE_OP || kind == MS_TRACE_ALLOC) is_group = false;
        if (kind == MS_TRACE_FREE && !is_repeated(d, events[i].a)) {
            if (!is_group) group = i;
            is_group = true;
        }
        d->op_end[i] = is_followed_by_allocation ? d->op_end[i + 1] : i;
        is_followed_by_allocation = kind == MS_TRACE_ALLOC;
        d->next_unit[i] = unit;
        d->group_end[i] = group;
    }
}

static ms_status prepare(ms__arena *scratch, derivation *d) {
    const ms_trace *trace = d->trace;
    int64_t n = trace->n_storages, n_saves = 0;
    for (int64_t i = 0; i < trace->n_events; i++) n_saves += trace->events[i].kind == MS_TRACE_SAVE;
    ms_status status = ms__arena_arrays(
        scratch, MS__ARRAY(d->freed, n), MS__ARRAY(d->end, n), MS__ARRAY(d->last_use, n), MS__ARRAY(d->last_save, n),
        MS__ARRAY(d->reader, n), MS__ARRAY(d->maker, n), MS__ARRAY(d->op_end, trace->n_events),
        MS__ARRAY(d->next_unit, trace->n_events), MS__ARRAY(d->group_end, trace->n_events), MS__ARRAY(d->twin, n),
        MS__ARRAY(d->place, n), MS__ARRAY(d->flags, n), MS__ARRAY(d->next_ended, n),
        MS__ARRAY(d->first_ended, trace->n_events), MS__ARRAY(d->saved, n_saves), MS__ARRAY(d->saved_at, n_saves));
    if (status != MS_OK) return status;
    for (int64_t s = 0; s < n; s++) {
        d->freed[s] = trace->n_events;
        d->twin[s] = NO_TWIN;
        d->end[s] = d->last_use[s] = d->last_save[s] = d->reader[s] = d->place[s] = NONE;
    }
    find_frees(d);
    find_next(d);
    return MS_OK;
}

/* ---- Twins ---- */

static void extend(derivation *d, int64_t storage, int64_t end) {
    if (d->end[storage] < end) d->end[storage] = end;
}

/* Storage `s` of forward takes the place of `r`. */
static void pair(derivation *d, int64_t s, int64_t r) {
    if (s >= 0 && s != r) extend(d, s, d->freed[r]);
    if (is_repeated(d, r) && d->twin[r] == NO_TWIN) d->twin[r] = s;
}

static ms_status note_save(derivation *d, int64_t at) {
    const ms_trace_event *event = &d->trace->events[at];
    if (d->repeating >= 0) {
        if (event->b >= d->n_saves)
            return ms__fail(MS_E_INVALID, "trace: a recomputation saves number %lld, which forward did not",
                            (long long)event->b);
        d->cursor = d->saved_at[event->b];
        if (event->a < 0) return MS_OK;
        d->last_save[event->a] = at;
        pair(d, d->saved[event->b], event->a);
        return MS_OK;
    }
    if (event->b != d->n_saves)
        return ms__fail(MS_E_INVALID, "trace: save number %lld comes where %lld should", (long long)event->b,
                        (long long)d->n_saves);
    if (event->a >= 0) d->flags[event->a] |= USED;
    d->saved[d->n_saves] = event->a;
    d->saved_at[d->n_saves++] = at;
    return MS_OK;
}

/* A recomputation does the same as forward: after the same save, both allocate the same storages in the same order. */
static void note_repeated_allocation(derivation *d, const ms_trace_event *event) {
    const ms_trace_event *events = d->trace->events;
    if (d->cursor == NONE) return;
    do d->cursor++;
    while (events[d->cursor].kind == MS_TRACE_OP || events[d->cursor].kind == MS_TRACE_FREE ||
           events[d->cursor].kind == MS_TRACE_FUNCTION || events[d->cursor].kind == MS_TRACE_INPUT);
    const ms_trace_event *same = &events[d->cursor];
    if (same->kind == MS_TRACE_ALLOC && same->b == event->b && same != event)
        d->place[event->a] = same->a;
    else
        d->cursor = NONE;
}

/* A use in the forward of a unit that did not allocate the storage: it is an input. */
static void note_use(derivation *d, int64_t at, int64_t storage) {
    d->last_use[storage] = at;
    d->flags[storage] |= USED;
    bool is_forward = d->phase == MS_PHASE_FORWARD || d->phase == MS_PHASE_LOSS;
    if (is_forward && d->reader[storage] == NONE && d->maker[storage] != d->visit) d->reader[storage] = d->unit;
}

static void note_op(derivation *d, int64_t at) {
    const ms_trace_op *op = &d->trace->ops[d->trace->events[at].a];
    for (int64_t i = op->first; i < op->first + op->n_inputs + op->n_outputs && d->repeating < 0; i++)
        if (d->trace->operands[i].storage >= 0) note_use(d, at, d->trace->operands[i].storage);
}

static void note_allocation(derivation *d, const ms_trace_event *event) {
    d->maker[event->a] = d->visit;
    d->reader[event->a] = NONE; /* the operation that makes it names it, too */
    if (d->repeating >= 0)
        note_repeated_allocation(d, event);
    else if (d->phase == MS_PHASE_FORWARD || d->phase == MS_PHASE_LOSS)
        d->flags[event->a] |= ACTIVATION;
    else if (d->phase == MS_PHASE_BACKWARD)
        d->flags[event->a] |= GRADIENT;
}

/* ---- Where a use is over ---- */

/* The end of the node that this operation of backward belongs to, if a gradient that the operation uses is among the
 * storages that are freed next after event `from`; else `from`. */
static int64_t end_of_node(const derivation *d, int64_t at, int64_t from) {
    const ms_trace_op *op = &d->trace->ops[d->trace->events[at].a];
    for (int64_t i = op->first; i < op->first + op->n_inputs; i++) {
        int64_t storage = d->trace->operands[i].storage;
        if (storage < 0 || (d->flags[storage] & GRADIENT) == 0) continue;
        if (d->freed[storage] > from && d->freed[storage] <= d->group_end[from]) return d->freed[storage];
    }
    return from;
}

static int64_t end_of_use(const derivation *d, int64_t at) {
    return at < d->backward ? d->next_unit[at] : end_of_node(d, at, d->op_end[at]);
}

/* Is it the end of a unit's backward that frees this storage, an input which the unit kept to be recomputed? */
static bool is_kept_input(const derivation *d, int64_t storage) {
    return (d->flags[storage] & ACTIVATION) != 0 && d->phase == MS_PHASE_BACKWARD && d->unit >= 0 &&
           d->reader[storage] == d->unit && d->recomputed == d->unit;
}

/* The last use of an input counts; but where backward uses what it saved in no operation that the trace shows, nothing
 * is known. */
static void note_free(derivation *d, int64_t at) {
    int64_t s = d->trace->events[at].a, last_use = d->last_use[s], twin = d->twin[s];
    bool is_let_go = d->trace->events[at].b != 0; /* by a node that holds no longer what it saved */
    if (is_repeated(d, s)) {
        if (twin >= 0 && last_use != NONE && !is_let_go) extend(d, twin, end_of_node(d, last_use, at));
        extend(d, s, at);
    } else if (is_kept_input(d, s) && last_use > d->last_save[s] && end_of_use(d, last_use) < at) {
        extend(d, s, end_of_use(d, last_use));
    } else {
        extend(d, s, at);
    }
}

static ms_status note_event(derivation *d, int64_t at) {
    const ms_trace_event *event = &d->trace->events[at];
    switch (event->kind) {
    case MS_TRACE_OP:
        note_op(d, at);
        return MS_OK;
    case MS_TRACE_ALLOC:
        note_allocation(d, event);
        return MS_OK;
    case MS_TRACE_FREE:
        note_free(d, at);
        return MS_OK;
    case MS_TRACE_PHASE:
        d->phase = event->a;
        if (event->a >= MS_PHASE_BACKWARD && d->backward > at) d->backward = at;
        return MS_OK;
    case MS_TRACE_UNIT:
        d->unit = event->a;
        d->visit++;
        return MS_OK;
    case MS_TRACE_RECOMPUTE:
        d->repeating = event->a;
        if (event->a >= 0) d->recomputed = event->a;
        d->cursor = NONE;
        return MS_OK;
    case MS_TRACE_GRADIENT: /* at the same place in the plain step */
    case MS_TRACE_FUNCTION:
    case MS_TRACE_INPUT:
        return MS_OK;
    default:
        return note_save(d, at);
    }
}

/* A storage that was recomputed, not saved, and is used by the step's own operations all the same: the plain step has
 * had it since forward. Where it is not known which one it was, the storage itself stays. */
static void pair_by_place(derivation *d) {
    for (int64_t r = 0; r < d->trace->n_storages; r++)
        if (is_repeated(d, r) && (d->flags[r] & USED) != 0 && d->twin[r] == NO_TWIN && d->place[r] >= 0)
            pair(d, d->place[r], r);
}

/* ---- The plain trace ---- */

/* Does the plain step have this storage? */
static bool is_plain(const derivation *d, int64_t storage) {
    return !is_repeated(d, storage) || ((d->flags[storage] & USED) != 0 && d->twin[storage] == NO_TWIN);
}

/* Is it never freed in the plain step? */
static bool stays(const derivation *d, int64_t storage) {
    return d->freed[storage] == d->trace->n_events || d->end[storage] == d->trace->n_events;
}

static void sort_ends(derivation *d) {
    for (int64_t i = 0; i < d->trace->n_events; i++) d->first_ended[i] = NONE;
    for (int64_t s = d->trace->n_storages - 1; s >= 0; s--) {
        if (!is_plain(d, s) || stays(d, s)) continue;
        d->next_ended[s] = d->first_ended[d->end[s]];
        d->first_ended[d->end[s]] = s;
    }
}

static int64_t write_ends(const derivation *d, int64_t at, ms_trace_event *out) {
    int64_t n = 0;
    for (int64_t s = d->first_ended[at]; s != NONE; s = d->next_ended[s])
        out[n++] = (ms_trace_event){.kind = MS_TRACE_FREE, .a = s};
    return n;
}

/* Does the plain step have this event, and there? A gradient that a layer made in forward and saved is recomputed: in
 * the plain step it is another storage, which may have ended; then nothing tells when it is added. */
static bool is_in_plain(const derivation *d, int64_t at, bool is_repeating) {
    const ms_trace_event *event = &d->trace->events[at];
    switch (event->kind) {
    case MS_TRACE_SAVE:
    case MS_TRACE_FREE:
    case MS_TRACE_INPUT:
        return false;
    case MS_TRACE_OP:
    case MS_TRACE_FUNCTION:
        return !is_repeating;
    case MS_TRACE_ALLOC:
        return is_plain(d, event->a);
    case MS_TRACE_GRADIENT:
        return is_plain(d, event->a) && (stays(d, event->a) || d->end[event->a] >= at);
    default:
        return true;
    }
}

static int64_t write_events(const derivation *d, ms_trace_event *out) {
    int64_t n = 0;
    bool is_repeating = false;
    for (int64_t i = 0; i < d->trace->n_events; i++) {
        const ms_trace_event *event = &d->trace->events[i];
        if (event->kind == MS_TRACE_RECOMPUTE) is_repeating = event->a >= 0;
        if (is_in_plain(d, i, is_repeating)) out[n++] = *event;
        n += write_ends(d, i, out + n);
    }
    return n;
}

static ms_status write_plain(ms__arena *arena, derivation *d, ms_trace *out) {
    const ms_trace *trace = d->trace;
    ms_trace_event *events;
    ms_trace_operand *operands;
    /* A storage ends at most once, and where it does its own FREE is left out. */
    ms_status status =
        ms__arena_arrays(arena, MS__ARRAY(events, trace->n_events), MS__ARRAY(operands, trace->n_operands));
    if (status != MS_OK) return status;
    for (int64_t i = 0; i < trace->n_operands; i++) {
        operands[i] = trace->operands[i];
        if (operands[i].storage >= 0 && d->twin[operands[i].storage] != NO_TWIN)
            operands[i].storage = d->twin[operands[i].storage];
    }
    *out = *trace;
    out->n_events = write_events(d, events);
    out->events = events;
    out->operands = operands;
    return MS_OK;
}

static ms_status derive(ms__arena *arena, ms__arena *scratch, derivation *d, ms_trace *out) {
    ms_status status = prepare(scratch, d);
    for (int64_t i = 0; status == MS_OK && i < d->trace->n_events; i++) status = note_event(d, i);
    if (status != MS_OK) return status;
    pair_by_place(d);
    sort_ends(d);
    return write_plain(arena, d, out);
}

ms_status ms__trace_without_recomputation(ms__arena *arena, const ms_trace *watched, ms_trace *out) {
    ms__arena scratch = {0};
    derivation d = {.trace = watched,
                    .backward = watched->n_events,
                    .unit = NONE,
                    .repeating = NONE,
                    .recomputed = NONE,
                    .cursor = NONE};
    ms_status status = derive(arena, &scratch, &d, out);
    ms__arena_free(&scratch);
    return status;
}

/* ---- The optimizer step ---- */

/* The first optimizer step, and its copy. Copied operations and operands follow the others in their arrays. */
typedef struct optimizer_copy {
    const ms_trace *trace;
    int64_t first, end; /* events of the first optimizer step */
    int64_t *copies;    /* of storages: of a temporary, its copy; else NONE */
    int64_t n_copies;
} optimizer_copy;

/* The first optimizer step; false if there is none, or a later one too. */
static bool find_first_step(optimizer_copy *c) {
    const ms_trace *trace = c->trace;
    c->first = c->end = trace->n_events;
    for (int64_t i = trace->n_events - 1; i >= 0; i--) {
        const ms_trace_event *event = &trace->events[i];
        if (event->kind != MS_TRACE_PHASE) continue;
        if (event->a == MS_PHASE_OPTIMIZER) return false;
        if (event->a == MS_PHASE_OPTIMIZER_FIRST) c->first = i + 1;
        if (event->a > MS_PHASE_OPTIMIZER) c->end = i;
    }
    return c->first <= c->end && c->first < trace->n_events;
}

/* What it allocates and does not leave is temporary. */
static ms_status find_temporaries(ms__arena *scratch, optimizer_copy *c) {
    const ms_trace *trace = c->trace;
    uint8_t *is_freed;
    ms_status status =
        ms__arena_arrays(scratch, MS__ARRAY(c->copies, trace->n_storages), MS__ARRAY(is_freed, trace->n_storages));
    if (status != MS_OK) return status;
    for (int64_t s = 0; s < trace->n_storages; s++) c->copies[s] = NONE;
    for (int64_t i = c->first; i < trace->n_events; i++)
        if (trace->events[i].kind == MS_TRACE_FREE) is_freed[trace->events[i].a] = 1;
    for (int64_t i = c->first; i < c->end; i++) {
        const ms_trace_event *event = &trace->events[i];
        if (event->kind == MS_TRACE_ALLOC && is_freed[event->a] && c->copies[event->a] == NONE)
            c->copies[event->a] = trace->n_storages + c->n_copies++;
    }
    return MS_OK;
}

/* The next operation of the optimizer step. */
static int64_t next_op(const optimizer_copy *c, int64_t at) {
    do at++;
    while (at < c->end && c->trace->events[at].kind != MS_TRACE_OP);
    return at;
}

/* Is all that the operation of this event allocates state? */
static bool allocates_state(const optimizer_copy *c, int64_t at) {
    const ms_trace_event *events = c->trace->events;
    bool allocates = false;
    for (int64_t i = at + 1, end = next_op(c, at); i < end; i++) {
        if (events[i].kind != MS_TRACE_ALLOC) continue;
        if (c->copies[events[i].a] != NONE) return false;
        allocates = true;
    }
    return allocates;
}

/* Does it do nothing but make state? Adam counts steps in a tensor on the host, which it makes from a number just
 * before the rest of a parameter's state. */
static bool makes_state(const optimizer_copy *c, int64_t at) {
    const ms_trace *trace = c->trace;
    int64_t next = next_op(c, at);
    if (strcmp(trace->names[trace->ops[trace->events[at].a].name], "aten.lift_fresh.default") == 0 && next < c->end)
        return allocates_state(c, next);
    return allocates_state(c, at);
}

/* The copy of an event in the steady step; false if it has none. */
static bool copy_event(const optimizer_copy *c, int64_t at, ms_trace_event *out) {
    *out = c->trace->events[at];
    switch (out->kind) {
    case MS_TRACE_OP:
        out->a += c->trace->n_ops;
        return !makes_state(c, at);
    case MS_TRACE_ALLOC:
    case MS_TRACE_FREE:
        out->a = c->copies[out->a];
        return out->a != NONE;
    default:
        return out->kind == MS_TRACE_UNIT;
    }
}

static int64_t write_steps(const optimizer_copy *c, ms_trace_event *out) {
    const ms_trace *trace = c->trace;
    int64_t n = 0;
    for (int64_t i = 0; i < c->end; i++) out[n++] = trace->events[i];
    out[n++] = (ms_trace_event){.kind = MS_TRACE_PHASE, .a = MS_PHASE_OPTIMIZER};
    for (int64_t i = c->first; i < c->end; i++)
        if (copy_event(c, i, &out[n])) n++;
    for (int64_t i = c->end; i < trace->n_events; i++) {
        out[n++] = trace->events[i];
        if (trace->events[i].kind == MS_TRACE_FREE && copy_event(c, i, &out[n])) n++; /* it outlives its phase */
    }
    return n;
}

static ms_status write_optimizer(ms__arena *arena, const optimizer_copy *c, ms_trace *out) {
    const ms_trace *trace = c->trace;
    ms_trace_event *events;
    ms_trace_op *ops;
    ms_trace_operand *operands;
    int64_t *kinds;
    ms_status status =
        ms__arena_arrays(arena, MS__ARRAY(events, 2 * trace->n_events + 2), MS__ARRAY(ops, 2 * trace->n_ops),
                         MS__ARRAY(operands, 2 * trace->n_operands), MS__ARRAY(kinds, trace->n_storages + c->n_copies));
    if (status != MS_OK) return status;
    for (int64_t i = 0; i < trace->n_ops; i++) {
        ops[i] = ops[trace->n_ops + i] = trace->ops[i];
        ops[trace->n_ops + i].first += trace->n_operands;
    }
    for (int64_t i = 0; i < trace->n_operands; i++) {
        ms_trace_operand *copy = &operands[trace->n_operands + i];
        operands[i] = *copy = trace->operands[i];
        if (copy->storage >= 0 && c->copies[copy->storage] != NONE) copy->storage = c->copies[copy->storage];
    }
    for (int64_t s = 0; s < trace->n_storages; s++) {
        kinds[s] = trace->kinds[s];
        if (c->copies[s] != NONE) kinds[c->copies[s]] = trace->kinds[s];
    }
    *out = *trace;
    out->n_events = write_steps(c, events);
    out->events = events;
    out->ops = ops;
    out->n_ops = 2 * trace->n_ops;
    out->operands = operands;
    out->n_operands = 2 * trace->n_operands;
    out->kinds = kinds;
    out->n_storages = trace->n_storages + c->n_copies;
    return MS_OK;
}

ms_status ms__trace_with_steady_optimizer(ms__arena *arena, const ms_trace *trace, ms_trace *out) {
    ms__arena scratch = {0};
    optimizer_copy c = {.trace = trace};
    if (!find_first_step(&c)) {
        *out = *trace;
        return MS_OK;
    }
    ms_status status = find_temporaries(&scratch, &c);
    if (status == MS_OK) status = write_optimizer(arena, &c, out);
    ms__arena_free(&scratch);
    return status;
}
