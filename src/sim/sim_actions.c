/* sim_actions.c - adds to a simulation what it does not play: some actions, and all model options (actions.h,
 * model_options.h).
 *
 * What these actions hold, copy and compute, and what model options change, is added to each segment of the step; then
 * the peak is found again.
 */
#include <string.h>

#include "../common/math.h"
#include "actions.h"
#include "model_options.h"
#include "roofline.h"
#include "sim.h"
#include "sim_link.h"

/* The units of the chain under their actions. */
typedef struct unit_effects {
    const ms_simulation_request *request;
    const ms__sim_basis *basis;
    ms__effect *effects;   /* by chain position */
    ms__unit_times *times; /* by chain position */
    int64_t *held;         /* [prefix]: change of what its units hold */
    int32_t *backlog;      /* [prefix]: after its last unit */
    int64_t *extra_ns;     /* by chain position: what is not yet added to its backward; may be below 0 */
    ms__link link;
} unit_effects;

/* Does the request have anything that is not played? */
static bool is_needed(const ms_simulation_request *request) {
    if (request->model_options != 0) return true;
    for (int64_t i = 0; request->actions != NULL && i < request->n_actions; i++)
        if (!ms__actions[request->actions[i]].is_played) return true;
    return false;
}

static int32_t action_at(const unit_effects *o, int32_t position) {
    return o->request->actions == NULL ? MS_ACTION_KEEP : o->request->actions[o->basis->order.units[position]];
}

static ms_status open_effects(unit_effects *o, ms__arena *arena) {
    size_t n = (size_t)o->basis->order.n;
    return ms__arena_arrays(arena, MS__ARRAY(o->effects, n), MS__ARRAY(o->times, n), MS__ARRAY(o->held, n + 1),
                            MS__ARRAY(o->backlog, n + 1), MS__ARRAY(o->extra_ns, n));
}

/* ---- Units ---- */

static void find_effects(unit_effects *o, ms_simulation_summary *summary) {
    const ms__order *order = &o->basis->order;
    int64_t largest_copy = 0;
    for (int32_t i = 0; i < order->n; i++) {
        int32_t unit = order->units[i];
        int32_t action = action_at(o, i);
        if (!ms__actions[action].is_played)
            o->effects[i] = ms__effect_of(action, &o->basis->costs[unit], &o->request->profile->units[unit]);
        o->held[i + 1] = o->held[i] + o->effects[i].held_bytes;
        summary->host_bytes += o->effects[i].copy_bytes;
        largest_copy = ms__max(largest_copy, o->effects[i].copy_bytes);
    }
    o->link = ms__link_make(o->request->device->rates, largest_copy);
}

/* Copies are hidden by the shorter of a unit's forward and backward; after the last unit nothing hides them. */
static void run_link(unit_effects *o, ms_simulation_summary *summary) {
    int32_t n = o->basis->order.n;
    for (int32_t i = 0; i < n; i++) {
        int64_t wait_ns = 0, copy_bytes = o->effects[i].copy_bytes;
        if (o->link.slot_ns > 0) {
            int32_t hide = ms__link_hide_slots(&o->link, ms__min(o->times[i].forward_ns, o->times[i].backward_ns));
            int32_t copy = ms__link_copy_slots(&o->link, copy_bytes);
            bool waits = (ms__actions[action_at(o, i)].waits && copy_bytes > 0) || i == n - 1;
            ms__link_step step = ms__link_advance(&o->link, o->backlog[i], hide, copy, waits);
            o->backlog[i + 1] = step.backlog;
            wait_ns = ms__link_wait_ns(&o->link, step.waited);
        }
        summary->wait_ns = ms__add_ns(summary->wait_ns, wait_ns);
        o->extra_ns[i] = ms__add_ns(wait_ns, ms__link_drag_ns(&o->link, copy_bytes)) + o->effects[i].extra_ns;
    }
}

/* ---- Segments ---- */

static void apply_units(unit_effects *o, ms_simulation_segment *segment, int32_t prefix) {
    int64_t own = o->held[prefix] + o->backlog[prefix] * o->link.slot_bytes;
    int32_t at = ms__order_position(&o->basis->order, segment);
    if (at != MS__NO_CHAIN && segment->phase == MS_PHASE_BACKWARD) {
        own += o->effects[at].backward_bytes;
        int64_t ns = segment->duration_ns + o->extra_ns[at];
        segment->duration_ns = ms__max(ns, 0);
        o->extra_ns[at] = ms__min(ns, 0);
    } else if (at != MS__NO_CHAIN && segment->phase <= MS_PHASE_LOSS) {
        own += o->effects[at].forward_bytes;
    }
    segment->parts[MS_CATEGORY_ACTIVATION] += own;
    segment->peak_bytes += own;
    segment->end_bytes = ms__min(segment->end_bytes + own, segment->peak_bytes);
}

/* The times of model options: the optimizer step, gradients that leave after backward, and the tail, whose forward part
 * is computed twice. */
static void apply_model_times(const unit_effects *o, const ms__model_effect *model, ms_simulation *sim) {
    int64_t backward_ns = model->backward_ns, optimizer_ns = model->optimizer_ns;
    if (model->options & MS_MODEL_TILE_LOSS)
        backward_ns = ms__add_ns(backward_ns, ms__order_tail_ns(&o->basis->order, sim->segments, sim->n_segments));
    for (int64_t i = 0; i < sim->n_segments; i++) {
        ms_simulation_segment *segment = &sim->segments[i];
        if (segment->phase == MS_PHASE_BACKWARD) {
            segment->duration_ns = ms__add_ns(segment->duration_ns, backward_ns);
            backward_ns = 0;
        }
        if (segment->phase == MS_PHASE_OPTIMIZER && model->is_streamed) {
            segment->duration_ns = optimizer_ns;
            optimizer_ns = 0;
        }
    }
}

static void apply_segments(unit_effects *o, const ms__model_effect *model, ms_simulation *sim) {
    const ms__order *order = &o->basis->order;
    int64_t tail_begin_bytes = ms__tail_begin_bytes(order, sim->segments, sim->n_segments);
    for (int64_t i = 0; i < sim->n_segments; i++) {
        if (sim->segments[i].peak_bytes == 0) continue;
        ms__model_effect_apply(model, order->in_tail[i], tail_begin_bytes, &sim->segments[i]);
        apply_units(o, &sim->segments[i], order->prefix[i]);
    }
    apply_model_times(o, model, sim);
}

/* ---- The whole ---- */

static void sum_times_again(ms_simulation *sim) {
    ms_simulation_summary *s = &sim->summary;
    s->step_ns = s->forward_ns = s->backward_ns = s->optimizer_ns = 0;
    for (int64_t i = 0; i < sim->n_segments; i++) {
        int32_t phase = sim->segments[i].phase;
        int64_t *of_phase = phase <= MS_PHASE_LOSS       ? &s->forward_ns
                            : phase == MS_PHASE_BACKWARD ? &s->backward_ns
                                                         : &s->optimizer_ns;
        *of_phase = ms__add_ns(*of_phase, sim->segments[i].duration_ns);
        s->step_ns = ms__add_ns(s->step_ns, sim->segments[i].duration_ns);
    }
}

static void find_peak_again(ms_simulation *sim) {
    ms_simulation_summary *s = &sim->summary;
    const ms_simulation_segment *highest = NULL;
    for (int64_t i = 0; i < sim->n_segments; i++) {
        const ms_simulation_segment *segment = &sim->segments[i];
        if (ms__is_steady(segment) && (highest == NULL || segment->peak_bytes > highest->peak_bytes)) highest = segment;
    }
    if (highest == NULL) return;
    int64_t change = highest->peak_bytes - s->steady_peak_bytes, known = 0;
    memcpy(s->parts, highest->parts, sizeof s->parts);
    for (int c = 0; c < MS_N_CATEGORIES; c++) known += s->parts[c];
    s->unused_bytes = highest->peak_bytes - known;
    s->steady_peak_bytes += change;
    s->first_peak_bytes = ms__max(s->first_peak_bytes + change, 0);
    s->reserved_bytes = ms__max(s->reserved_bytes + change, s->steady_peak_bytes);
    s->first_reserved_bytes = s->reserved_bytes;
    s->needed_bytes = ms__max(s->needed_bytes + change, s->reserved_bytes);
    s->peak_unit = highest->unit;
    s->peak_phase = highest->phase;
}

static void apply_all(unit_effects *o, ms_simulation *sim) {
    const ms_simulation_request *r = o->request;
    ms__model_effect model =
        ms__model_effect_make(r->profile->step, r->device->rates, r->model_options, sim->summary.backward_ns);
    ms__order_times(&o->basis->order, sim->segments, sim->n_segments, o->times);
    find_effects(o, &sim->summary);
    run_link(o, &sim->summary);
    sim->summary.host_bytes += model.host_bytes;
    apply_segments(o, &model, sim);
    sum_times_again(sim);
    find_peak_again(sim);
}

ms_status ms__apply_actions(const ms_simulation_request *request, const ms__sim_basis *basis, ms_simulation *sim) {
    if (!is_needed(request)) return MS_OK;
    ms__arena arena = {0};
    ms__sim_basis own = {0};
    ms_status status = MS_OK;
    if (basis == NULL) status = ms__sim_basis_make(&arena, request->profile->step, request->device->rates, &own);
    unit_effects o = {.request = request, .basis = basis == NULL ? &own : basis};
    if (status == MS_OK) status = open_effects(&o, &arena);
    if (status == MS_OK) apply_all(&o, sim);
    ms__arena_free(&arena);
    return status;
}
