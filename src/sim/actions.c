/* levers.c - what a plan's actions do, beside running a unit kept or recomputed. */
#include "actions.h"

#include "roofline.h"

#define N_TILES 4         /* of a unit */
#define N_LOSS_TILES 8    /* of logits and loss */
#define LINK_COPY_SLOTS 6 /* the largest copy takes so many ticks */
#define LINK_MAX_SLOTS 12 /* two of them */
#define LINK_DRAG 8 /* this part of a copy is not hidden: matrix products ran 15 % longer beside copies both ways */
#define CHUNK_BYTES (INT64_C(64) << 20)      /* buffers of a streamed optimizer step */
#define MAX_SLOT_US (MS__MAX_NS / 1000 / 64) /* so that a backlog is a time, too */
#define PPM INT64_C(1000000)

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- Order ---- */

static void note_forward(ms__order *o, int32_t unit) {
    if (o->position[unit] != MS__NO_CHAIN) return;
    o->position[unit] = o->n;
    o->units[o->n++] = unit;
}

/* Forward, all units up to the latest hold, but one that runs for the first time; backward, all before the earliest. */
static void find_prefixes(ms__order *o, const ms__step *step) {
    int32_t latest = -1, earliest = o->n;
    for (uint32_t i = 0; i < step->n_segments; i++) {
        const ms__segment *s = &step->segments[i];
        int32_t at = s->unit < 0 ? MS__NO_CHAIN : o->position[s->unit];
        if (s->phase <= MS_PHASE_LOSS) {
            bool is_first = at > latest;
            if (is_first) latest = at;
            o->prefix[i] = s->phase == MS_PHASE_SETUP ? 0 : latest + (is_first ? 0 : 1);
        } else if (s->phase == MS_PHASE_BACKWARD) {
            if (at != MS__NO_CHAIN && at < earliest) earliest = at;
            o->prefix[i] = earliest;
        }
    }
}

ms_status ms__order_make(ms__arena *arena, const ms__step *step, ms__order *out) {
    *out = (ms__order){.units = ms__arena_array(arena, step->n_units, sizeof *out->units),
                       .position = ms__arena_array(arena, step->n_units, sizeof *out->position),
                       .prefix = ms__arena_array(arena, step->n_segments, sizeof *out->prefix)};
    if (out->units == NULL || out->position == NULL || out->prefix == NULL) return MS_E_NO_MEMORY;
    for (uint32_t u = 0; u < step->n_units; u++) out->position[u] = MS__NO_CHAIN;
    for (uint32_t i = 0; i < step->n_segments; i++) {
        const ms__segment *s = &step->segments[i];
        if (s->unit >= 0 && (s->phase == MS_PHASE_FORWARD || s->phase == MS_PHASE_LOSS)) note_forward(out, s->unit);
    }
    find_prefixes(out, step);
    return MS_OK;
}

/* ---- Units ---- */

static ms__effect select_some(const ms__ledger *l, uint32_t keeps) {
    int64_t kept = ms__ledger_held(l, keeps), saved = ms__ledger_time(l, 0) - ms__ledger_time(l, keeps);
    return (ms__effect){.variant = MS__RECOMPUTED,
                        .held_bytes = kept,
                        .forward_bytes = kept,
                        .extra_ns = -saved,
                        .is_possible = kept > 0 && kept < l->saved_bytes && saved > 0};
}

static ms__effect offload(const ms__ledger *l, bool waits) {
    return (ms__effect){.variant = MS__PLAIN,
                        .held_bytes = -l->saved_bytes,
                        .copy_bytes = l->saved_bytes,
                        .waits = waits,
                        .is_possible = l->saved_bytes > 0};
}

static ms__effect offload_inputs(const ms__ledger *l, const ms_unit *unit, bool waits) {
    return (ms__effect){.variant = MS__RECOMPUTED,
                        .held_bytes = -unit->input_bytes,
                        .copy_bytes = unit->input_bytes,
                        .waits = waits,
                        .is_possible = unit->input_bytes > 0 && l->saved_bytes > 0};
}

/* A tile at a time is recomputed and gone through; every operation is queued once for each. */
static ms__effect tile(const ms__ledger *l) {
    return (ms__effect){.variant = MS__RECOMPUTED,
                        .backward_bytes = -(l->saved_bytes / N_TILES * (N_TILES - 1)),
                        .extra_ns = smaller(l->host_ns, MS__MAX_NS / N_TILES) * (N_TILES - 1),
                        .is_possible = l->saved_bytes >= N_TILES};
}

int ms__action_variant(int32_t action) {
    bool keeps = action == MS_ACTION_KEEP || action == MS_ACTION_OFFLOAD || action == MS_ACTION_OFFLOAD_BLOCKING;
    return keeps ? MS__PLAIN : MS__RECOMPUTED;
}

ms__effect ms__effect_of(const ms__ledger *l, const ms_unit *unit, int32_t action) {
    switch (action) {
    case MS_ACTION_KEEP:
        return (ms__effect){.variant = MS__PLAIN, .is_possible = true};
    case MS_ACTION_RECOMPUTE:
        return (ms__effect){.variant = MS__RECOMPUTED, .is_possible = l->saved_bytes > 0};
    case MS_ACTION_RECOMPUTE_EXCEPT_BOTH:
        return select_some(l, MS_KEEP_ATTENTION | MS_KEEP_PRODUCTS);
    case MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS:
        return select_some(l, MS_KEEP_PRODUCTS);
    case MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION:
        return select_some(l, MS_KEEP_ATTENTION);
    case MS_ACTION_OFFLOAD:
    case MS_ACTION_OFFLOAD_BLOCKING:
        return offload(l, action == MS_ACTION_OFFLOAD_BLOCKING);
    case MS_ACTION_RECOMPUTE_OFFLOAD:
    case MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING:
        return offload_inputs(l, unit, action == MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING);
    default:
        return tile(l);
    }
}

/* ---- The link ---- */

/* One way, while the other may be busy. MB/s are bytes in a microsecond. */
static int64_t one_way_rate(const ms_rates *rates) {
    int64_t rate = smaller(rates->to_device_mb_per_s, rates->from_device_mb_per_s);
    return rates->both_mb_per_s > 0 ? smaller(rate, rates->both_mb_per_s / 2) : rate;
}

ms__link ms__link_make(const ms_rates *rates, int64_t max_copy_bytes) {
    int64_t rate = one_way_rate(rates);
    if (rate <= 0 || max_copy_bytes <= 0) return (ms__link){0};
    int64_t us = smaller(max_copy_bytes / rate / LINK_COPY_SLOTS + 1, MAX_SLOT_US);
    return (ms__link){.slot_ns = us * 1000, .slot_bytes = us * rate, .mb_per_s = rate, .max_slots = LINK_MAX_SLOTS};
}

int32_t ms__link_copy_slots(const ms__link *link, int64_t n_bytes) {
    return link->slot_ns == 0 ? 0 : (int32_t)(n_bytes / link->slot_bytes + (n_bytes % link->slot_bytes != 0));
}

int32_t ms__link_hide_slots(const ms__link *link, int64_t ns) {
    if (link->slot_ns == 0) return 0;
    return (int32_t)smaller(ns / link->slot_ns, link->max_slots);
}

int64_t ms__link_drag_ns(const ms__link *link, int64_t n_bytes) {
    return link->mb_per_s == 0 ? 0 : smaller(n_bytes, MS__MAX_NS / 1000) * 1000 / link->mb_per_s / LINK_DRAG;
}

int64_t ms__link_wait_ns(const ms__link *link, int32_t backlog) {
    return link->slot_ns > 0 && backlog > MS__MAX_NS / 2 / link->slot_ns ? MS__MAX_NS
                                                                         : INT64_C(2) * backlog * link->slot_ns;
}

int32_t ms__link_step(const ms__link *link, int32_t before, int32_t hide, int32_t copy, bool waits,
                      int64_t *out_wait_ns) {
    int32_t behind = (before > hide ? before - hide : 0) + copy;
    *out_wait_ns = 0;
    if (!waits && behind <= link->max_slots) return behind;
    *out_wait_ns = ms__link_wait_ns(link, behind);
    return 0;
}

/* ---- The model's state ---- */

typedef struct totals {
    int64_t bytes[MS_N_CATEGORIES];
    int64_t largest_gradient;
    int64_t element_bytes; /* of parameters */
} totals;

static totals add_up(const ms__step *step) {
    totals t = {.element_bytes = 4};
    for (uint32_t k = 0; k < step->n_keys; k++) {
        int64_t size = step->numbers[step->keys[k].size];
        t.bytes[step->keys[k].category] += size;
        if (step->keys[k].category == MS_CATEGORY_GRADIENT) t.largest_gradient = larger(t.largest_gradient, size);
    }
    int64_t most = -1;
    for (uint32_t i = 0; i < step->n_segments; i++) {
        const ms__segment *s = &step->segments[i];
        for (uint32_t e = s->first[MS__PLAIN];
             s->phase == MS_PHASE_OPTIMIZER && e < s->first[MS__PLAIN] + s->n[MS__PLAIN]; e++) {
            if (step->events[e].kind != MS__OPERATION) continue;
            const ms__step_cost *cost = &step->costs[step->events[e].index];
            if (cost->flags & MS__OP_VIEW || step->numbers[cost->bytes] <= most) continue;
            most = step->numbers[cost->bytes];
            t.element_bytes = cost->element_bytes > 0 ? cost->element_bytes : 4;
        }
    }
    return t;
}

static int64_t transfer_ns(int64_t n_bytes, int64_t mb_per_s) {
    if (n_bytes == 0) return 0;
    if (mb_per_s <= 0) return MS__MAX_NS;
    return n_bytes / mb_per_s > MS__MAX_NS / 2000 ? MS__MAX_NS / 2 : n_bytes / mb_per_s * 1000;
}

/* Moments have 4 bytes an element, or 1 and a scale for every 256 of them (which is 4 / 256). */
static int64_t moments_ppm(uint32_t flags, int64_t element_bytes) {
    bool managed = (flags & (MS_MODEL_8BIT | MS_MODEL_HALF)) != 0;
    if (!managed) return PPM;
    return flags & MS_MODEL_8BIT ? (PPM + PPM / 64) / element_bytes : 4 * PPM / element_bytes;
}

static int64_t share(int64_t bytes, int64_t ppm) { return bytes / PPM * ppm + bytes % PPM * ppm / PPM; }

ms__model_effect ms__model_effect_make(const ms__step *step, const ms_rates *rates, uint32_t flags,
                                       int64_t backward_ns) {
    if (flags == 0) return (ms__model_effect){.optimizer_ppm = PPM};
    totals t = add_up(step);
    bool away = (flags & MS_MODEL_OFFLOAD) != 0;
    int64_t lower = flags & MS_MODEL_HALF ? t.bytes[MS_CATEGORY_PARAMETER] : 0;
    int64_t moments = share(t.bytes[MS_CATEGORY_OPTIMIZER], moments_ppm(flags, t.element_bytes));
    int64_t gradients = t.bytes[MS_CATEGORY_GRADIENT];
    ms__model_effect state = {
        .flags = flags,
        .parameter_bytes = away ? 0 : lower,
        .optimizer_ppm = away ? 0 : moments_ppm(flags, t.element_bytes),
        .drops_gradients = (flags & MS_MODEL_OFFLOAD_GRADIENTS) != 0,
        .is_streamed = (flags & (MS_MODEL_HALF | MS_MODEL_8BIT | MS_MODEL_OFFLOAD | MS_MODEL_OFFLOAD_GRADIENTS)) != 0,
        .host_bytes = away ? lower + moments : 0,
        .loss_spared_bytes = t.largest_gradient};
    int64_t moved = 2 * (moments + lower + t.bytes[MS_CATEGORY_PARAMETER]) + gradients;
    state.optimizer_ns = transfer_ns(moved, rates->memory_mb_per_s);
    int64_t link_ns = transfer_ns(away ? lower + moments : 0, one_way_rate(rates));
    if (state.drops_gradients) {
        state.host_bytes += gradients;
        link_ns = ms__add_ns(link_ns, transfer_ns(gradients, one_way_rate(rates)));
        int64_t leave_ns = transfer_ns(gradients, one_way_rate(rates));
        state.backward_ns = leave_ns > backward_ns ? leave_ns - backward_ns : 0;
    }
    state.optimizer_ns = larger(state.optimizer_ns, link_ns);
    return state;
}

int64_t ms__model_effect_at(const ms__model_effect *state, const ms_simulation_segment *point,
                            int64_t change[MS_N_CATEGORIES]) {
    int64_t sum = 0;
    for (int c = 0; c < MS_N_CATEGORIES; c++) change[c] = 0;
    if (state->flags == 0) return 0;
    bool steps = point->phase == MS_PHASE_OPTIMIZER_FIRST || point->phase == MS_PHASE_OPTIMIZER;
    int64_t moments = point->parts[MS_CATEGORY_OPTIMIZER];
    change[MS_CATEGORY_PARAMETER] = state->parameter_bytes;
    change[MS_CATEGORY_OPTIMIZER] = share(moments, state->optimizer_ppm) - moments;
    if (state->drops_gradients) {
        int64_t there = smaller(point->parts[MS_CATEGORY_GRADIENT], larger(state->loss_spared_bytes, CHUNK_BYTES));
        change[MS_CATEGORY_GRADIENT] = there - point->parts[MS_CATEGORY_GRADIENT];
    }
    if (steps && state->is_streamed) change[MS_CATEGORY_TEMPORARY] = CHUNK_BYTES - point->parts[MS_CATEGORY_TEMPORARY];
    for (int c = 0; c < MS_N_CATEGORIES; c++) sum += change[c];
    return sum;
}

int64_t ms__transient_bytes(const ms_simulation_segment *point) {
    return point->parts[MS_CATEGORY_ACTIVATION] + point->parts[MS_CATEGORY_TEMPORARY];
}

int64_t ms__transient_end_bytes(const ms_simulation_segment *point) {
    return larger(ms__transient_bytes(point) - (point->peak_bytes - point->end_bytes), 0);
}

int64_t ms__model_tiled_loss(const ms__model_effect *state, int64_t n_bytes) {
    if (!(state->flags & MS_MODEL_TILE_LOSS) || n_bytes <= state->loss_spared_bytes) return n_bytes;
    int64_t tiled = n_bytes - state->loss_spared_bytes;
    return state->loss_spared_bytes + tiled / N_LOSS_TILES + (tiled % N_LOSS_TILES != 0);
}
