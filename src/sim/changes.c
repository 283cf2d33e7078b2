/* changes.c - finds what actions change in the events of a step (changes.h). */
#include "changes.h"

#include <string.h>

#include "../common/math.h"

#define NO_EVENT UINT32_MAX
#define MAX_BEFORE 64 /* operations of a recomputation before its forward: what puts buffers back */
#define COMPARED (MS__OP_ALL & ~(uint32_t)(MS__OP_REPEATED | MS__OP_TENSOR * MS__OP_MAX_TENSORS))

/* An operation of the recomputed variant. */
typedef struct operation {
    uint32_t event, end; /* end: of its segment */
    int32_t segment;
    uint32_t partner; /* of a repeated one: its operation in forward, as an index, or NO_EVENT */
    uint32_t keeps;   /* of one in forward: enum ms_keep, with which it need not be repeated */
} operation;

typedef struct finder {
    const ms__step *step;
    ms__changes *out;
    int32_t *first_segment, *last_segment; /* of a unit */
    int32_t *next_segment;                 /* of the same unit */
    uint32_t *released[MS__N_VARIANTS];    /* key -> the event that releases it, or NO_EVENT */
    uint32_t *node[MS__N_VARIANTS];        /* key -> the event after the release before that one: where the node of
                                            * backward begins that ends with it */
    operation *forward, *repeated;         /* of one unit */
    uint32_t *runs;                        /* where its recomputations begin, among the repeated ones */
    int32_t *visits;                       /* of one unit */
    uint32_t *n_holders;                   /* key -> the visits that hold it as an input */
    int32_t *released_in;                  /* key -> the segment of the recomputed variant, or -1 */
    uint32_t n_forward, n_repeated, n_runs;
} finder;

static bool is_forward(const ms__segment *s) { return s->phase == MS_PHASE_FORWARD || s->phase == MS_PHASE_LOSS; }

static const ms__step_cost *cost_at(const ms__step *step, uint32_t event) {
    return &step->costs[step->events[event].index];
}

/* ---- Operations ---- */

static const ms__step_cost *cost_of(const finder *f, const operation *o) { return cost_at(f->step, o->event); }

/* The next allocation after event e of the same operation, NO_EVENT: there is none. */
static uint32_t next_allocation(const finder *f, const operation *o, uint32_t e) {
    if (e == NO_EVENT) return NO_EVENT;
    for (e++; e < o->end && f->step->events[e].kind != MS__OPERATION; e++)
        if (f->step->events[e].kind == MS__ALLOCATE) return e;
    return NO_EVENT;
}

static uint32_t first_allocation(const finder *f, const operation *o) { return next_allocation(f, o, o->event); }

static uint32_t size_at(const finder *f, uint32_t allocation) {
    return f->step->keys[f->step->events[allocation].index].size;
}

static bool same_allocations(const finder *f, const operation *a, const operation *b) {
    uint32_t x = first_allocation(f, a), y = first_allocation(f, b);
    for (; x != NO_EVENT && y != NO_EVENT; x = next_allocation(f, a, x), y = next_allocation(f, b, y))
        if (size_at(f, x) != size_at(f, y)) return false;
    return x == y;
}

static bool same_operation(const finder *f, const operation *a, const operation *b) {
    const ms__step_cost *x = cost_of(f, a), *y = cost_of(f, b);
    bool same = x->flops == y->flops && x->bytes == y->bytes && x->element_bytes == y->element_bytes &&
                ((x->flags ^ y->flags) & COMPARED) == 0;
    return same && (ms__step_cost_keeps(x) == 0 || same_allocations(f, a, b));
}

/* Is the operation a cast from 32 to 16 bits, or back, that allocates this key? */
static bool is_cast_to(const ms__step *step, uint32_t event, uint32_t key) {
    const ms__step_cost *cost = cost_at(step, event);
    int64_t made = ms__step_key_bytes(step, key), moved = step->numbers[cost->bytes];
    if (step->numbers[cost->flops] > 0) return false;
    return cost->element_bytes == 4 ? moved == 3 * made : cost->element_bytes == 2 && 2 * moved == 3 * made;
}

static bool is_cast(const finder *f, const operation *o) {
    uint32_t e = first_allocation(f, o);
    return e != NO_EVENT && is_cast_to(f->step, o->event, f->step->events[e].index);
}

/* Is it held for the backward of a unit in this variant, and not for that of a recomputed one? */
static bool is_held_by(const ms__step *step, uint32_t key, int variant) {
    uint32_t split = step->keys[key].split;
    const int32_t *segment = split == 0 ? NULL : step->split_keys[split - 1].segment;
    if (segment == NULL || segment[variant] == segment[MS__RECOMPUTED]) return false; /* only others differ */
    int32_t at = segment[variant];
    return at >= 0 && step->segments[at].phase == MS_PHASE_BACKWARD;
}

/* Does autograd save it for the backward of a plain unit? */
static bool is_saved(const ms__step *step, uint32_t key) { return is_held_by(step, key, MS__PLAIN); }

/* ---- Which operations a recomputation repeats ---- */

static void find_releases_in(const finder *f, uint32_t index, int variant) {
    const ms__segment *s = &f->step->segments[index];
    uint32_t first = s->first[variant], node = first, after_last = first;
    bool was_release = false;
    for (uint32_t e = first; e < first + s->n[variant]; e++) {
        bool is_release = f->step->events[e].kind == MS__RELEASE;
        if (is_release && !was_release) node = after_last;
        if (is_release) {
            f->released[variant][f->step->events[e].index] = e;
            if (variant == MS__RECOMPUTED) f->released_in[f->step->events[e].index] = (int32_t)index;
            f->node[variant][f->step->events[e].index] = node;
            after_last = e + 1;
        }
        was_release = is_release;
    }
}

static void find_releases(const finder *f) {
    for (int v = 0; v < MS__N_VARIANTS; v++) {
        if (!ms__step_has(f->step, v)) continue;
        memset(f->released[v], 0xff, f->step->n_keys * sizeof *f->released[v]);
        memset(f->node[v], 0xff, f->step->n_keys * sizeof *f->node[v]);
        for (uint32_t i = 0; i < f->step->n_segments; i++) find_releases_in(f, i, v);
    }
}

/* The operations of a unit's forwards, and of its recomputations, in one of its segments. Autocast's cache has other
 * casts in a recomputation than in forward, so casts are left out of forward. */
static void collect_segment(finder *f, int32_t index) {
    const ms__segment *s = &f->step->segments[index];
    uint32_t first = s->first[MS__RECOMPUTED], end = first + s->n[MS__RECOMPUTED];
    bool was_repeated = false;
    for (uint32_t e = first; e < end; e++) {
        if (f->step->events[e].kind != MS__OPERATION) continue;
        const operation o = {.event = e, .end = end, .segment = index};
        bool is_repeated = cost_at(f->step, e)->flags & MS__OP_REPEATED;
        if (is_forward(s) && !is_repeated && !is_cast(f, &o)) f->forward[f->n_forward++] = o;
        if (s->phase == MS_PHASE_BACKWARD && is_repeated) {
            if (!was_repeated) f->runs[f->n_runs++] = f->n_repeated;
            f->repeated[f->n_repeated++] = o;
        }
        was_repeated = is_repeated;
    }
}

static void collect_operations(finder *f, int32_t unit) {
    f->n_forward = f->n_repeated = f->n_runs = 0;
    for (int32_t i = f->first_segment[unit]; i >= 0; i = f->next_segment[i]) collect_segment(f, i);
    f->runs[f->n_runs] = f->n_repeated;
}

/* Find the partners of repeated operations from `at` on: the operations of a call in forward, from `n` to `n_end`. */
static bool match_from(const finder *f, uint32_t n, uint32_t n_end, uint32_t at, uint32_t end) {
    for (; at < end; at++) {
        operation *again = &f->repeated[at];
        again->partner = NO_EVENT;
        if (is_cast(f, again)) continue;
        if (n == n_end || !same_operation(f, &f->forward[n], again)) return false;
        again->partner = n++;
    }
    return true;
}

/* Recomputations come in the reverse order of the calls. */
static bool match_run(const finder *f, uint32_t run, uint32_t n_each) {
    uint32_t n = (f->n_runs - 1 - run) * n_each, first = f->runs[run], end = f->runs[run + 1];
    for (uint32_t begin = first; begin < end && begin <= first + MAX_BEFORE; begin++) {
        if (match_from(f, n, n + n_each, begin, end)) return true;
        f->repeated[begin].partner = NO_EVENT;
    }
    return false;
}

/* ---- Functions ---- */

/* What a function makes for itself, and autograd saves, is held with its result: casts aside, which are made again. The
 * executor keeps no result that would cost so much more (recompute/kept.c): nothing with a product, and up to a quarter
 * of the result with attention. */
static bool holds_little(const finder *f, const operation *o, uint32_t keeps, int64_t result_bytes) {
    const ms__step *step = f->step;
    if (cost_of(f, o)->flags & MS__OP_RESULT) return true;
    for (uint32_t e = first_allocation(f, o); e != NO_EVENT; e = next_allocation(f, o, e)) {
        uint32_t key = step->events[e].index;
        bool is_small = keeps == MS_KEEP_ATTENTION && ms__step_key_bytes(step, key) <= result_bytes / 4;
        if (is_saved(step, key) && !is_small) return false;
    }
    return true;
}

/* The bytes of a function's result; 0: it is not among its operations. */
static int64_t result_bytes(const finder *f, uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; i++) {
        if (!(cost_of(f, &f->forward[i])->flags & MS__OP_RESULT)) continue;
        uint32_t e = first_allocation(f, &f->forward[i]);
        return e == NO_EVENT ? 0 : ms__step_key_bytes(f->step, f->step->events[e].index);
    }
    return 0;
}

/* Where the function ends that begins with an operation of forward: after its result, and views of that. */
static uint32_t end_of_function(const finder *f, uint32_t first) {
    uint32_t keeps = ms__step_cost_keeps(cost_of(f, &f->forward[first])), i = first;
    bool has_result = false;
    for (; i < f->n_forward; i++) {
        const ms__step_cost *cost = cost_of(f, &f->forward[i]);
        if (ms__step_cost_keeps(cost) != keeps || (has_result && !(cost->flags & MS__OP_VIEW))) break;
        has_result = has_result || cost->flags & MS__OP_RESULT;
    }
    return i;
}

/* Which operations of forward need not be repeated if the results of their functions are kept. Views are made again. */
static void find_functions(const finder *f) {
    for (uint32_t i = 0, end; i < f->n_forward; i = end) {
        uint32_t keeps = ms__step_cost_keeps(cost_of(f, &f->forward[i]));
        end = keeps == 0 ? i + 1 : end_of_function(f, i);
        int64_t n_bytes = keeps == 0 ? 0 : result_bytes(f, i, end);
        bool can = n_bytes > 0;
        for (uint32_t k = i; k < end && can; k++) can = holds_little(f, &f->forward[k], keeps, n_bytes);
        for (uint32_t k = i; k < end && can; k++) {
            operation *o = &f->forward[k];
            o->keeps = cost_of(f, o)->flags & MS__OP_VIEW ? 0 : keeps;
        }
    }
}

/* ---- Kept results ---- */

static void link_key(int32_t *first, int32_t *next, uint32_t key) {
    next[key] = *first;
    *first = (int32_t)key;
}

static bool outlives(const finder *f, uint32_t key, uint32_t event) {
    uint32_t released = f->released[MS__RECOMPUTED][key];
    return released != NO_EVENT && released >= event;
}

/* A tensor of forward is held from its release on: until the tensor that takes its place in the recomputation is
 * released, or until the recomputation is over, if backward does not need that. */
static void keep(const finder *f, uint32_t key, uint32_t twin, const operation *again, uint32_t over) {
    ms__changes *c = f->out;
    uint32_t keeps = f->forward[again->partner].keeps;
    int32_t unit = f->step->segments[again->segment].unit;
    c->kept[key] = (uint8_t)keeps;
    c->maker[key] = unit;
    for (uint32_t k = 1; k <= MS_KEEP_ALL; k++)
        if (ms__is_spared((uint8_t)keeps, k)) c->units[unit].kept_bytes[k] += ms__step_key_bytes(f->step, key);
    int32_t *first = over < again->end ? &c->first_over[over] : &c->first_last[again->segment];
    link_key(outlives(f, twin, over) ? &c->first_after[twin] : first, c->next_kept, key);
}

static void spare(const finder *f, const operation *o, uint32_t keeps) {
    ms__unit_changes *unit = &f->out->units[f->step->segments[o->segment].unit];
    f->out->spared[o->event] = (uint8_t)keeps;
    for (uint32_t k = 1; k <= MS_KEEP_ALL; k++)
        unit->n_kept[k] += ms__is_spared((uint8_t)keeps, k) && cost_of(f, o)->flags & MS__OP_RESULT ? 1 : 0;
    for (uint32_t e = o->event + 1; e < o->end && f->step->events[e].kind != MS__OPERATION; e++)
        if (f->step->events[e].kind != MS__RELEASE) f->out->spared[e] = (uint8_t)keeps;
}

/* A repeated operation, whose recomputation is over at event `over`. */
static void note_repeated(const finder *f, const operation *again, uint32_t over) {
    const operation *first = again->partner == NO_EVENT ? NULL : &f->forward[again->partner];
    if (first == NULL || first->keeps == 0) return;
    bool is_result = cost_of(f, first)->flags & MS__OP_RESULT;
    uint32_t a = first_allocation(f, first), b = first_allocation(f, again);
    spare(f, again, first->keeps);
    for (; a != NO_EVENT; a = next_allocation(f, first, a), b = next_allocation(f, again, b)) {
        uint32_t key = f->step->events[a].index;
        if (is_saved(f->step, key) || is_result) keep(f, key, f->step->events[b].index, again, over);
    }
}

static void note_run(const finder *f, uint32_t run) {
    const operation *last = &f->repeated[f->runs[run + 1] - 1];
    uint32_t over = last->event + 1;
    while (over < last->end && f->step->events[over].kind != MS__OPERATION) over++;
    for (uint32_t i = f->runs[run]; i < f->runs[run + 1]; i++) note_repeated(f, &f->repeated[i], over);
}

static void count_saved(const finder *f, int32_t unit) {
    int64_t n = 0;
    for (uint32_t i = 0; i < f->n_repeated; i++) n += ms__step_cost_tensors(cost_of(f, &f->repeated[i]));
    f->out->units[unit].n_saved = f->n_runs == 0 ? 0 : n / f->n_runs;
}

/* The calls of a unit must be alike: then it is known which recomputation belongs to which. */
static void find_kept(finder *f, int32_t unit) {
    collect_operations(f, unit);
    count_saved(f, unit);
    if (f->n_runs == 0 || f->n_forward % f->n_runs != 0) return;
    for (uint32_t r = 0; r < f->n_runs; r++)
        if (!match_run(f, r, f->n_forward / f->n_runs)) return;
    find_functions(f);
    f->out->units[unit].n_runs = f->n_runs;
    for (uint32_t r = 0; r < f->n_runs; r++) note_run(f, r);
}

/* ---- Offloading ---- */

static void note_dropped(const finder *f, int32_t unit, uint32_t key, int32_t released) {
    f->out->dropped_in[key] = released;
    f->out->maker[key] = unit;
    for (int v = 0; v < MS__N_VARIANTS; v++) {
        uint32_t node = f->node[ms__step_played(f->step, v)][key];
        if (v != MS__RECOMPUTED && node != NO_EVENT) link_key(&f->out->first_made[v][node], f->out->next_made[v], key);
    }
    f->out->units[unit].dropped_bytes += ms__step_key_bytes(f->step, key);
    link_key(&f->out->first_dropped[released], f->out->next_dropped, key);
}

/* A cast of a parameter, by autocast in a function that the executor sees. Autocast holds it until it ends. */
static bool is_cast_of_operand(const ms__step *step, uint32_t maker, uint32_t key) {
    return ms__step_cost_keeps(cost_at(step, maker)) != 0 && is_cast_to(step, maker, key);
}

static void move(const finder *f, ms__visit *visit, int variant, uint32_t key) {
    ms__copied *moved = &visit->moved[variant];
    f->out->moved[variant][moved->first + moved->n++] = key;
    moved->n_bytes += ms__round_up(ms__step_key_bytes(f->step, key), MS__HOST_ALIGN);
}

/* What only the unit's own backward needs: the recomputed variant frees it while the unit runs. */
static void find_moved_of(const finder *f, ms__visit *visit, int variant) {
    const ms__step *step = f->step;
    const ms__segment *s = &step->segments[visit->forward];
    uint32_t maker = NO_EVENT;
    int played = ms__step_played(step, variant);
    for (uint32_t e = s->first[played]; e < s->first[played] + s->n[played]; e++) {
        uint32_t key = step->events[e].index;
        if (step->events[e].kind == MS__OPERATION) maker = e;
        if (step->events[e].kind != MS__ALLOCATE || step->keys[key].category != MS_CATEGORY_ACTIVATION) continue;
        if (!is_held_by(step, key, played) || visit->backward < 0) continue;
        if (ms__step_key_bytes(step, key) < MS_OFFLOAD_LEAST_BYTES) continue;
        int32_t released = step->split_keys[step->keys[key].split - 1].segment[MS__RECOMPUTED];
        if (released < 0 || !is_forward(&step->segments[released])) continue;
        if (step->segments[released].unit < 0 && maker != NO_EVENT && is_cast_of_operand(step, maker, key)) {
            if (variant == MS__PLAIN) note_dropped(f, visit->unit, key, released);
        } else if (released == visit->forward) {
            move(f, visit, variant, key);
        }
    }
}

static void find_moved_by(const finder *f, int variant) {
    uint32_t n = 0;
    for (int32_t v = 0; v < f->out->n_visits; v++) {
        ms__visit *visit = &f->out->visits[v];
        ms__unit_changes *unit = &f->out->units[visit->unit];
        visit->moved[variant].first = n;
        find_moved_of(f, visit, variant);
        n += visit->moved[variant].n;
        *(variant == MS__PLAIN ? &unit->moved_bytes : &unit->rest_bytes) += visit->moved[variant].n_bytes;
    }
}

/* The backward segments of a unit belong to its visits in reverse; those of one visit may be several. */
static void find_backwards(const finder *f, int32_t unit) {
    ms__changes *c = f->out;
    int32_t n_visits = 0, n_backward = 0, nth = 0;
    for (int32_t i = f->first_segment[unit]; i >= 0; i = f->next_segment[i]) {
        if (is_forward(&f->step->segments[i])) f->visits[n_visits++] = c->visit_of[i];
        n_backward += f->step->segments[i].phase == MS_PHASE_BACKWARD;
    }
    if (n_visits == 0 || (n_visits > 1 && n_visits != n_backward)) return;
    for (int32_t i = f->first_segment[unit]; i >= 0; i = f->next_segment[i]) {
        if (f->step->segments[i].phase != MS_PHASE_BACKWARD) continue;
        c->visit_of[i] = f->visits[n_visits == 1 ? 0 : n_visits - 1 - nth++];
        ms__visit *visit = &c->visits[c->visit_of[i]];
        if (visit->backward < 0) visit->backward = i;
    }
}

static void find_moved(const finder *f) {
    ms__changes *c = f->out;
    for (uint32_t i = 0; i < f->step->n_segments; i++) {
        const ms__segment *s = &f->step->segments[i];
        if (s->unit < 0 || !is_forward(s)) continue;
        c->visit_of[i] = c->n_visits;
        c->visits[c->n_visits++] = (ms__visit){.unit = s->unit, .forward = (int32_t)i, .backward = MS__NOBODY};
    }
    for (uint32_t u = 0; u < f->step->n_units; u++) find_backwards(f, (int32_t)u);
    find_moved_by(f, MS__PLAIN);
    find_moved_by(f, MS__POINTWISE);
}

/* ---- Offloaded inputs ---- */

/* Does the segment have this event before event `end` already? */
static bool holds_before(const ms__step *step, const ms__segment *s, uint32_t key, uint32_t end) {
    for (uint32_t e = s->first[MS__RECOMPUTED]; e < end; e++)
        if (step->events[e].kind == MS__HOLD && step->events[e].index == key) return true;
    return false;
}

static void count_holders(const finder *f) {
    for (uint32_t i = 0; i < f->step->n_segments; i++) {
        const ms__segment *s = &f->step->segments[i];
        for (uint32_t e = s->first[MS__RECOMPUTED]; e < s->first[MS__RECOMPUTED] + s->n[MS__RECOMPUTED]; e++)
            if (f->step->events[e].kind == MS__HOLD && !holds_before(f->step, s, f->step->events[e].index, e))
                f->n_holders[f->step->events[e].index]++;
    }
}

/* Only the backward of its own unit frees it. */
static bool is_own_input(const finder *f, const ms__visit *visit, uint32_t key) {
    const ms__step *step = f->step;
    int32_t released = f->released_in[key];
    if (step->keys[key].category != MS_CATEGORY_ACTIVATION || f->n_holders[key] != 1) return false;
    if (released < 0 || ms__step_key_bytes(step, key) < MS_OFFLOAD_LEAST_BYTES) return false;
    return step->segments[released].phase == MS_PHASE_BACKWARD && step->segments[released].unit == visit->unit;
}

static void find_inputs_of(const finder *f, ms__visit *visit, uint32_t *n_inputs) {
    const ms__segment *s = &f->step->segments[visit->forward];
    visit->moved[MS__RECOMPUTED].first = *n_inputs;
    for (uint32_t e = s->first[MS__RECOMPUTED]; e < s->first[MS__RECOMPUTED] + s->n[MS__RECOMPUTED]; e++) {
        uint32_t key = f->step->events[e].index;
        if (f->step->events[e].kind != MS__HOLD || visit->backward < 0 || !is_own_input(f, visit, key)) continue;
        if (holds_before(f->step, s, key, e)) continue;
        move(f, visit, MS__RECOMPUTED, key);
    }
    *n_inputs += visit->moved[MS__RECOMPUTED].n;
    f->out->units[visit->unit].input_bytes += visit->moved[MS__RECOMPUTED].n_bytes;
}

static void find_inputs(const finder *f) {
    uint32_t n_inputs = 0;
    count_holders(f);
    for (int32_t v = 0; v < f->out->n_visits; v++) find_inputs_of(f, &f->out->visits[v], &n_inputs);
}

/* ---- Pointwise results ---- */

static void find_pointwise(const finder *f) {
    const ms__step *step = f->step;
    for (uint32_t i = 0; i < step->n_segments && step->has_pointwise; i++) {
        const ms__segment *s = &step->segments[i];
        for (uint32_t e = s->first[MS__POINTWISE]; e < s->first[MS__POINTWISE] + s->n[MS__POINTWISE]; e++) {
            uint32_t key = step->events[e].index;
            if (s->unit < 0 || !is_forward(s) || step->events[e].kind != MS__ALLOCATE || step->keys[key].split == 0)
                continue;
            const ms__split_key *split = &step->split_keys[step->keys[key].split - 1];
            int64_t *largest = &f->out->units[s->unit].largest_pointwise;
            if (ms__step_is_held(step, split, MS__PLAIN) && !ms__step_is_held(step, split, MS__POINTWISE))
                *largest = ms__max(*largest, ms__step_key_bytes(step, key));
        }
    }
}

/* ---- All of it ---- */

static void sort_segments(const finder *f) {
    for (uint32_t u = 0; u < f->step->n_units; u++) f->first_segment[u] = f->last_segment[u] = MS__NOBODY;
    for (uint32_t i = 0; i < f->step->n_segments; i++) {
        int32_t unit = f->step->segments[i].unit;
        f->next_segment[i] = MS__NOBODY;
        if (unit < 0) continue;
        if (f->last_segment[unit] < 0)
            f->first_segment[unit] = (int32_t)i;
        else
            f->next_segment[f->last_segment[unit]] = (int32_t)i;
        f->last_segment[unit] = (int32_t)i;
    }
}

static void fill(int32_t *items, size_t n) { memset(items, 0xff, n * sizeof *items); }

static ms_status open_finder(finder *f, ms__arena *arena, ms__arena *scratch) {
    const ms__step *step = f->step;
    ms__changes *c = f->out;
    size_t keys = step->n_keys, segments = step->n_segments, events = step->n_events;
    ms_status status = ms__arena_arrays(
        arena, MS__ARRAY(c->units, step->n_units), MS__ARRAY(c->spared, events), MS__ARRAY(c->kept, keys),
        MS__ARRAY(c->maker, keys), MS__ARRAY(c->first_after, keys), MS__ARRAY(c->first_last, segments),
        MS__ARRAY(c->next_kept, keys), MS__ARRAY(c->visits, segments), MS__ARRAY(c->visit_of, segments),
        MS__ARRAY(c->dropped_in, keys), MS__ARRAY(c->first_dropped, segments), MS__ARRAY(c->next_dropped, keys),
        MS__ARRAY(c->first_over, events));
    for (int v = 0; v < MS__N_VARIANTS && status == MS_OK; v++)
        status = ms__arena_arrays(arena, MS__ARRAY(c->moved[v], keys), MS__ARRAY(c->first_made[v], events),
                                  MS__ARRAY(c->next_made[v], keys));
    for (int v = 0; v < MS__N_VARIANTS && status == MS_OK; v++)
        status = ms__arena_arrays(scratch, MS__ARRAY(f->released[v], keys), MS__ARRAY(f->node[v], keys));
    if (status == MS_OK)
        status = ms__arena_arrays(scratch, MS__ARRAY(f->first_segment, step->n_units),
                                  MS__ARRAY(f->last_segment, step->n_units), MS__ARRAY(f->next_segment, segments),
                                  MS__ARRAY(f->forward, events), MS__ARRAY(f->repeated, events),
                                  MS__ARRAY(f->runs, events + 1), MS__ARRAY(f->visits, segments),
                                  MS__ARRAY(f->n_holders, keys), MS__ARRAY(f->released_in, keys));
    if (status != MS_OK) return status;
    int32_t *of_keys[] = {c->maker, c->first_after, c->next_kept, c->dropped_in, c->next_dropped};
    for (size_t i = 0; i < sizeof of_keys / sizeof *of_keys; i++) fill(of_keys[i], keys);
    fill(f->released_in, keys);
    fill(c->first_last, segments);
    fill(c->visit_of, segments);
    fill(c->first_dropped, segments);
    for (int v = 0; v < MS__N_VARIANTS; v++) {
        fill(c->first_made[v], events);
        fill(c->next_made[v], keys);
    }
    fill(c->first_over, events);
    return MS_OK;
}

ms_status ms__changes_make(ms__arena *arena, const ms__step *step, ms__changes *out) {
    ms__arena scratch = {0};
    finder f = {.step = step, .out = out};
    *out = (ms__changes){0};
    ms_status status = open_finder(&f, arena, &scratch);
    if (status == MS_OK && step->has_recomputed) {
        sort_segments(&f);
        find_releases(&f);
        for (uint32_t u = 0; u < step->n_units; u++) find_kept(&f, (int32_t)u);
        find_moved(&f);
        find_inputs(&f);
        find_pointwise(&f);
    }
    ms__arena_free(&scratch);
    return status;
}
