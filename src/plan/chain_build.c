/* chain_build.c - from a profile to a chain.
 *
 * A simulation of each variant gives almost everything: the bytes at the end of each segment of forward are what the
 * units so far hold, and the peak of a segment less what earlier units hold is what the segment itself takes. So a
 * chain whose units are all in one variant has the peak of its simulation; actions.h says what other actions change.
 */
#include "chain_build.h"

#include "../common/math.h"
#include "../profile/shape_terms.h"
#include "../sim/actions.h"
#include "../sim/model_options.h"
#include "../sim/needs.h"
#include "../sim/roofline.h"

#define LEAST_GAIN 4096 /* of what all units hold together */
#define HOST_LEVELS 16
#define INSTANT_MB_PER_S INT64_C(1000000000) /* the most that rates may have */

bool ms__unit_may_change(const ms_plan_request *request, const ms_profile *profile, int64_t unit) {
    uint32_t needed = MS_UNIT_ELIGIBLE | MS_UNIT_RUN;
    if ((profile->units[unit].flags & needed) != needed) return false;
    if (!profile->step->has_recomputed) return false; /* whatever a file says of its units */
    return request->may_change == NULL || request->may_change[unit] != 0;
}

/* ---- The basis ---- */

static ms_simulation_request request_of(const ms__basis *b, const int32_t *actions) {
    return (ms_simulation_request){.struct_bytes = sizeof(ms_simulation_request),
                                   .profile = b->profile,
                                   .actions = actions,
                                   .n_actions = b->profile->n_units,
                                   .device = b->request->device,
                                   .flags = ms__step_flags(b->request->simulation, true)};
}

static ms_status run_basis(const ms__basis *b, const int32_t *actions, ms_simulation **out) {
    ms_simulation_request request = request_of(b, actions);
    return ms__simulate(&request, &b->sim, INT64_MAX, out);
}

/* Do all units that may change the same. */
static void set_actions(const ms__basis *b, int32_t action, int32_t *actions) {
    for (int64_t i = 0; i < b->profile->n_units; i++)
        if (ms__unit_may_change(b->request, b->profile, i)) actions[i] = action;
}

/* The actions that copy in a unit that runs in this variant, and one of them that need not wait. */
static uint32_t copying_actions(int variant, int32_t *out_one) {
    uint32_t actions = 0;
    for (int32_t action = 0; action < MS_N_ACTIONS; action++) {
        if (!ms__actions[action].needs_link || ms__actions[action].variant != variant) continue;
        actions |= 1U << action;
        if (!ms__actions[action].waits) *out_one = action;
    }
    return actions;
}

/* What the host does for copies is hidden where the device is the limit, and only there. So it is what a simulation
 * with copies that take hardly any time is longer by. Its bytes do not matter. */
static ms_status find_handled(ms__basis *b, int variant, int32_t *actions) {
    int32_t action = MS_ACTION_KEEP;
    bool is_wanted = b->request->actions & copying_actions(variant, &action) && ms__has_link(b->request->device->rates);
    if (!is_wanted || b->runs[variant] == NULL) return MS_OK;
    ms_device device = *b->request->device;
    ms_rates rates = *device.rates;
    rates.to_device_mb_per_s = rates.from_device_mb_per_s = INSTANT_MB_PER_S;
    device.rates = &rates;
    set_actions(b, action, actions);
    ms_simulation_request request = request_of(b, actions);
    request.device = &device;
    request.flags &= ~(uint32_t)(MS_SIMULATE_ALLOCATOR | MS_SIMULATE_GROWING);
    ms_simulation *run = NULL;
    ms_status status = ms__simulate(&request, &b->sim, INT64_MAX, &run);
    if (status != MS_OK) return status;
    b->handled_ns[variant] = ms__max(run->summary.step_ns - b->runs[variant]->summary.step_ns, 0);
    ms_simulation_destroy(run);
    return MS_OK;
}

ms_status ms__basis_make(ms__arena *arena, const ms_plan_request *request, const ms_profile *profile, ms__basis *out) {
    *out = (ms__basis){.request = request, .profile = profile};
    int32_t *actions = ms__arena_array(arena, (size_t)profile->n_units, sizeof *actions);
    if (actions == NULL) return MS_E_NO_MEMORY;
    ms_status status = ms__sim_basis_make(arena, profile->step, request->device->rates, &out->sim);
    if (status == MS_OK) status = run_basis(out, actions, &out->runs[MS__PLAIN]);
    for (int v = MS__RECOMPUTED; v < MS__N_VARIANTS && status == MS_OK; v++) {
        bool is_wanted = v == MS__RECOMPUTED || request->actions & 1U << ms__action_of_variant(v);
        if (v != MS__RECOMPUTED && !(is_wanted && ms__step_has(profile->step, v))) continue;
        set_actions(out, ms__action_of_variant(v), actions);
        status = run_basis(out, actions, &out->runs[v]);
    }
    for (int v = 0; v < MS__N_VARIANTS && status == MS_OK; v++) status = find_handled(out, v, actions);
    if (status != MS_OK) ms__basis_free(out);
    return status;
}

void ms__basis_free(ms__basis *basis) {
    for (int v = 0; v < MS__N_VARIANTS; v++) {
        ms_simulation_destroy(basis->runs[v]);
        basis->runs[v] = NULL;
    }
}

/* ---- Measuring a variant ---- */

/* A unit in one variant. */
typedef struct measured {
    int64_t held_bytes, forward_bytes, backward_bytes;
} measured;

/* A step whose units are all in one variant, under the model options. */
typedef struct measured_step {
    const ms_simulation *run; /* NULL: no action needs this variant */
    measured *units;          /* by position */
    ms__unit_times *times;    /* by position */
    int64_t *gap_bytes;       /* by prefix: between units */
    int64_t *prefix_bytes;    /* by prefix: what its units hold */
} measured_step;

typedef struct builder {
    const ms__basis *basis;
    const ms__order *order;
    ms__model_effect model;
    ms__chain *chain;
    measured_step steps[MS__N_VARIANTS];
    int64_t least_gain;                  /* options that save no more are left out */
    int64_t late_ns;                     /* what recomputing all units adds to the step between units, */
    int64_t extra_ns;                    /* and in units */
    int64_t handling_ns[MS__N_VARIANTS]; /* what the host does for the copies of all units that may change */
} builder;

/* How many held bytes the forward of each unit adds. */
static void measure_held(const builder *b, measured_step *m) {
    int64_t before = m->run->summary.idle_bytes; /* a unit may be the first thing that runs */
    for (int64_t i = 0; i < m->run->n_segments; i++) {
        const ms_simulation_segment *segment = &m->run->segments[i];
        if (segment->phase != MS_PHASE_FORWARD && segment->phase != MS_PHASE_LOSS) continue;
        int32_t at = ms__order_position(b->order, segment);
        if (at != MS__NO_CHAIN) m->units[at].held_bytes += segment->end_bytes - before;
        before = segment->end_bytes;
    }
    for (int32_t i = 0; i < b->chain->n; i++) m->prefix_bytes[i + 1] = m->prefix_bytes[i] + m->units[i].held_bytes;
}

/* Where a segment's bytes count: at its unit, if exactly the units before it hold; else between units. */
static int64_t *bytes_at(const builder *b, const measured_step *m, const ms_simulation_segment *segment,
                         int32_t prefix) {
    int32_t at = ms__order_position(b->order, segment);
    if (at == MS__NO_CHAIN || at != prefix) return &m->gap_bytes[prefix];
    return segment->phase == MS_PHASE_BACKWARD ? &m->units[at].backward_bytes : &m->units[at].forward_bytes;
}

/* The peak of each segment under the model options, less what the units before it hold. */
static void measure_peaks(const builder *b, const measured_step *m) {
    int64_t tail_begin_bytes = ms__tail_begin_bytes(b->order, m->run->segments, m->run->n_segments);
    for (int64_t i = 0; i < m->run->n_segments; i++) {
        ms_simulation_segment segment = m->run->segments[i];
        if (!ms__is_steady(&segment)) continue;
        int32_t prefix = b->order->prefix[i];
        ms__model_effect_apply(&b->model, b->order->in_tail[i], tail_begin_bytes, &segment);
        int64_t *bytes = bytes_at(b, m, &segment, prefix);
        *bytes = ms__max(*bytes, segment.peak_bytes - m->prefix_bytes[prefix]);
    }
}

static void measure_variant(const builder *b, measured_step *m) {
    if (m->run == NULL) return;
    measure_held(b, m);
    measure_peaks(b, m);
    ms__order_times(b->order, m->run->segments, m->run->n_segments, m->times);
    if (b->model.options & MS_MODEL_TILE_LOSS && b->chain->n > 0) {
        measured *last = &m->units[b->chain->n - 1];
        last->held_bytes = ms__min(last->held_bytes, ms__model_tiled_loss(&b->model, ms__max(last->held_bytes, 0)));
    }
}

/* The time of the step with every unit kept. */
static int64_t base_ns(const builder *b) {
    const ms_simulation *run = b->steps[MS__PLAIN].run;
    int64_t ns = 0;
    for (int64_t i = 0; i < run->n_segments; i++) {
        bool is_replaced = run->segments[i].phase == MS_PHASE_OPTIMIZER && b->model.is_streamed;
        if (ms__is_steady(&run->segments[i]) && !is_replaced) ns = ms__add_ns(ns, run->segments[i].duration_ns);
    }
    if (b->model.options & MS_MODEL_TILE_LOSS) /* logits and loss are computed twice */
        ns = ms__add_ns(ns, ms__order_tail_ns(b->order, run->segments, run->n_segments));
    ns = ms__add_ns(ns, b->model.backward_ns);
    return b->model.is_streamed ? ms__add_ns(ns, b->model.optimizer_ns) : ns;
}

/* What recomputing a unit adds to its own forward and backward. */
static int64_t extra_of(const builder *b, int32_t position) {
    const ms__unit_times *plain = &b->steps[MS__PLAIN].times[position];
    const ms__unit_times *recomputed = &b->steps[MS__RECOMPUTED].times[position];
    return recomputed->forward_ns + recomputed->backward_ns - plain->forward_ns - plain->backward_ns;
}

/* A host that is late in recomputed units is late for what follows them, too. */
static void find_late(builder *b) {
    const ms_simulation_summary *plain = &b->steps[MS__PLAIN].run->summary;
    const ms_simulation_summary *recomputed = &b->steps[MS__RECOMPUTED].run->summary;
    b->late_ns = recomputed->step_ns - plain->step_ns;
    for (int32_t i = 0; i < b->chain->n; i++) {
        int64_t ns = extra_of(b, i);
        b->late_ns -= ns;
        b->extra_ns = ms__add_ns(b->extra_ns, ms__max(ns, 0));
    }
    b->late_ns = ms__max(b->late_ns, 0);
}

/* The share of the above of a unit that takes `ns` longer, so that all of them have all of it. */
static int64_t late_share(const builder *b, int64_t ns) {
    return ns <= 0 || b->extra_ns == 0 ? 0 : (int64_t)((ms__wide)b->late_ns * ns / b->extra_ns);
}

static void sum_handling(builder *b) {
    const ms__basis *basis = b->basis;
    for (int64_t i = 0; i < basis->profile->n_units; i++)
        for (int v = 0; v < MS__N_VARIANTS && ms__unit_may_change(basis->request, basis->profile, i); v++)
            b->handling_ns[v] = ms__add_ns(b->handling_ns[v], basis->sim.costs[i].handling_ns[v]);
}

/* A unit's share of what copies add to the step when all units copy. It is shared, since whichever units copy, the
 * device hides as much. */
static int64_t handled_share(const builder *b, const ms__chain_unit *unit, const ms__action *action) {
    int v = action->variant;
    if (!action->needs_link || b->handling_ns[v] == 0) return 0;
    int64_t own_ns = b->basis->sim.costs[unit->unit].handling_ns[v];
    return (int64_t)((ms__wide)b->basis->handled_ns[v] * own_ns / b->handling_ns[v]);
}

/* ---- Options ---- */

static void add_option(builder *b, int32_t position, int32_t action) {
    ms__chain_unit *unit = &b->chain->units[position];
    ms__effect e = ms__effect_of(action, &b->basis->sim.costs[unit->unit], &b->basis->profile->units[unit->unit]);
    if (!e.is_possible) return;
    const measured_step *step = &b->steps[ms__actions[action].variant], *plain = &b->steps[MS__PLAIN];
    if (step->run == NULL) return;
    const measured *m = &step->units[position];
    const ms__unit_times *times = &step->times[position], *plain_times = &plain->times[position];
    int64_t ns =
        times->forward_ns + times->backward_ns + e.extra_ns - plain_times->forward_ns - plain_times->backward_ns;
    if (ms__actions[action].variant == MS__RECOMPUTED) ns = ms__add_ns(ns, late_share(b, ns));
    ns = ms__add_ns(ns, handled_share(b, unit, &ms__actions[action]));
    int64_t held = m->held_bytes + e.held_bytes; /* copied bytes were part of it, so it is not below zero for them */
    ms__option option = {.held_bytes = e.held_bytes < 0 ? ms__max(held, ms__min(m->held_bytes, 0)) : held,
                         .forward_bytes = m->forward_bytes + e.forward_bytes,
                         .backward_bytes = m->backward_bytes + e.backward_bytes,
                         .copy_bytes = e.copy_bytes,
                         .extra_ns = ms__max(ns, 0),
                         .action = action,
                         .waits = ms__actions[action].waits};
    const ms__option *keep = &unit->options[0];
    bool gains = keep->held_bytes - option.held_bytes > b->least_gain ||
                 keep->backward_bytes - option.backward_bytes > b->least_gain;
    if (action == MS_ACTION_KEEP || gains) unit->options[unit->n_options++] = option;
}

static bool is_allowed(const ms__basis *basis, int64_t unit, int32_t action) {
    if (action == MS_ACTION_KEEP) return true;
    if (!(basis->request->actions & 1U << action) || !ms__unit_may_change(basis->request, basis->profile, unit))
        return false;
    return !ms__actions[action].needs_link || ms__has_link(basis->request->device->rates);
}

static void set_options(builder *b) {
    ms__chain *chain = b->chain;
    b->least_gain = ms__max(b->steps[MS__PLAIN].prefix_bytes[chain->n], 0) / LEAST_GAIN;
    for (int32_t i = 0; i < chain->n; i++) {
        chain->units[i].unit = b->order->units[i];
        for (int32_t action = 0; action < MS_N_ACTIONS; action++)
            if (is_allowed(b->basis, chain->units[i].unit, action)) add_option(b, i, action);
    }
    for (int32_t k = 0; k <= chain->n; k++)
        for (int v = 0; v < MS__N_VARIANTS; v++)
            chain->gap_bytes[k] = ms__max(chain->gap_bytes[k], b->steps[v].gap_bytes[k]);
}

static int64_t sum_copies(const ms__chain *chain, int64_t *out_most) {
    int64_t sum = 0;
    for (int32_t i = 0; i < chain->n; i++) {
        int64_t most = 0;
        for (int32_t o = 0; o < chain->units[i].n_options; o++)
            most = ms__max(most, chain->units[i].options[o].copy_bytes);
        *out_most = ms__max(*out_most, most);
        sum += most;
    }
    return sum;
}

static void set_link(builder *b) {
    ms__chain *chain = b->chain;
    int64_t most = 0, sum = sum_copies(chain, &most);
    chain->link = ms__link_make(b->basis->request->device->rates, most);
    chain->most_copied_bytes = sum;
    if (sum > chain->host_limit_bytes) chain->host_level_bytes = sum / HOST_LEVELS + 1;
    for (int32_t i = 0; i < chain->n; i++)
        for (int32_t o = 0; o < chain->units[i].n_options; o++) {
            ms__option *option = &chain->units[i].options[o];
            const ms__unit_times *times = &b->steps[ms__actions[option->action].variant].times[i];
            option->extra_ns = ms__add_ns(option->extra_ns, ms__link_drag_ns(&chain->link, option->copy_bytes));
            option->copy_slots = ms__link_copy_slots(&chain->link, option->copy_bytes);
            option->hide_slots = ms__link_hide_slots(&chain->link, ms__min(times->forward_ns, times->backward_ns));
        }
}

/* ---- The whole ---- */

static ms_status open_builder(builder *b, ms__arena *arena) {
    size_t n = (size_t)b->chain->n + 1;
    ms_status status = ms__arena_arrays(arena, MS__ARRAY(b->chain->units, n), MS__ARRAY(b->chain->gap_bytes, n));
    for (int v = 0; v < MS__N_VARIANTS && status == MS_OK; v++) {
        measured_step *m = &b->steps[v];
        m->run = b->basis->runs[v];
        status = ms__arena_arrays(arena, MS__ARRAY(m->units, n), MS__ARRAY(m->times, n), MS__ARRAY(m->gap_bytes, n),
                                  MS__ARRAY(m->prefix_bytes, n));
    }
    return status;
}

static ms_status build_chain(ms__arena *arena, const ms__basis *basis, uint32_t model_options, ms__chain *out,
                             int64_t *out_host_bytes) {
    builder b = {.basis = basis, .order = &basis->sim.order, .chain = out};
    b.model = ms__model_effect_make(basis->profile->step, basis->request->device->rates, model_options,
                                    basis->runs[MS__PLAIN]->summary.backward_ns);
    *out_host_bytes = b.model.host_bytes;
    out->host_limit_bytes -= b.model.host_bytes;
    out->n = basis->sim.order.n;
    ms_status status = open_builder(&b, arena);
    if (status != MS_OK) return status;
    for (int v = 0; v < MS__N_VARIANTS; v++) measure_variant(&b, &b.steps[v]);
    out->base_ns = base_ns(&b);
    find_late(&b);
    sum_handling(&b);
    set_options(&b);
    set_link(&b);
    return MS_OK;
}

ms_status ms__chain_make(ms__arena *arena, const ms__basis *basis, uint32_t model_options, ms__chain *out,
                         int64_t *out_host_bytes) {
    *out = (ms__chain){.host_limit_bytes = basis->request->host_limit_bytes};
    *out_host_bytes = 0;
    ms_status status = build_chain(arena, basis, model_options, out, out_host_bytes);
    if (status == MS_OK) status = ms__grid_make(arena, out, MS__GRID_FINE, &out->grids[MS__GRID_FINE]);
    if (status == MS_OK && ms__chain_has_waits(out))
        status = ms__grid_make(arena, out, MS__GRID_WAITS, &out->grids[MS__GRID_WAITS]);
    return status;
}
