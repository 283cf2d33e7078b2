/* basis.c - from a profile to a chain.
 *
 * Two simulations say almost everything: what the device holds at the end of each stretch of forward is what units hold
 * behind it, and the peak of a stretch less what earlier units hold is what it takes itself. A chain of units that are
 * all kept, or all recomputed, so has the peaks of these simulations; levers.h says what other actions change.
 */
#include "chain_build.h"

#include <string.h>

#include "../sim/roofline.h"

#define LEAST_GAIN 4096 /* of what all units hold together */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

bool ms__unit_may_change(const ms_plan_request *request, const ms_profile *profile, int64_t unit) {
    uint32_t needed = MS_UNIT_ELIGIBLE | MS_UNIT_RUN;
    if ((profile->units[unit].flags & needed) != needed) return false;
    if (profile->step != NULL && !profile->step->has_recomputed) return false; /* a file may say so of its units */
    return request->may_change == NULL || request->may_change[unit] != 0;
}

/* ---- The basis ---- */

static ms_status play(const ms__basis *b, const int32_t *actions, ms_simulation **out) {
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = b->profile,
                                     .actions = actions,
                                     .n_actions = b->profile->n_units,
                                     .device = b->request->device,
                                     .flags = b->request->simulation};
    return ms_simulation_create(&request, out);
}

ms_status ms__basis_make(ms__arena *arena, const ms_plan_request *request, const ms_profile *profile, ms__basis *out) {
    *out = (ms__basis){.request = request, .profile = profile};
    const ms__step *step = profile->step;
    if (step == NULL) return MS_OK;
    int32_t *actions = ms__arena_array(arena, (size_t)profile->n_units, sizeof *actions);
    if (actions == NULL) return MS_E_NO_MEMORY;
    ms_status status = ms__order_make(arena, step, &out->order);
    if (status == MS_OK) status = ms__ledgers_make(arena, step, request->device->rates, &out->ledgers);
    if (status == MS_OK) status = play(out, actions, &out->runs[MS__PLAIN]);
    for (int64_t i = 0; i < profile->n_units; i++)
        if (ms__unit_may_change(request, profile, i)) actions[i] = MS_ACTION_RECOMPUTE;
    if (status == MS_OK) status = play(out, actions, &out->runs[MS__RECOMPUTED]);
    out->kept.struct_bytes = sizeof out->kept;
    if (status == MS_OK) status = ms_simulation_get_summary(out->runs[MS__PLAIN], &out->kept);
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
    int64_t held_bytes, forward_bytes, backward_bytes, forward_ns, backward_ns;
} measured;

typedef struct builder {
    const ms__basis *basis;
    ms__model_effect model;
    ms__chain *chain;
    measured *units[MS__N_VARIANTS];       /* by position */
    int64_t *between[MS__N_VARIANTS];      /* by prefix */
    int64_t *prefix_bytes[MS__N_VARIANTS]; /* by prefix: what its units hold */
    int64_t base_ns;
    int64_t least_gain; /* options that save no more are not worth having */
} builder;

static ms_simulation_segment point_at(const ms_simulation *run, int64_t index) {
    ms_simulation_segment point = {.struct_bytes = sizeof point};
    (void)ms_simulation_get_segment(run, index, &point);
    return point;
}

static bool takes_part(const ms_simulation_segment *point) {
    return point->phase != MS_PHASE_SETUP && point->phase != MS_PHASE_OPTIMIZER_FIRST;
}

static int32_t position_of(const builder *b, const ms_simulation_segment *point) {
    return point->unit < 0 ? MS__NO_CHAIN : b->basis->order.position[point->unit];
}

/* What the forward of each unit adds to what is held. */
static void measure_held(builder *b, int v) {
    const ms_simulation *run = b->basis->runs[v];
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    (void)ms_simulation_get_summary(run, &summary);
    int64_t before = summary.idle_bytes; /* a unit may be the first thing that runs */
    for (int64_t i = 0; i < ms_simulation_count_segments(run); i++) {
        ms_simulation_segment point = point_at(run, i);
        if (point.phase != MS_PHASE_FORWARD && point.phase != MS_PHASE_LOSS) continue;
        int32_t at = position_of(b, &point);
        if (at != MS__NO_CHAIN) b->units[v][at].held_bytes += point.end_bytes - before;
        before = point.end_bytes;
    }
    for (int32_t i = 0; i < b->chain->n; i++)
        b->prefix_bytes[v][i + 1] = b->prefix_bytes[v][i] + b->units[v][i].held_bytes;
}

/* The peak of a stretch under the state, less what the units before hold. */
static int64_t outside_bytes(const builder *b, int v, const ms_simulation_segment *point, int32_t prefix,
                             int64_t loss_from) {
    int64_t change[MS_N_CATEGORIES], loss_bytes = ms__transient_bytes(point) - loss_from;
    int64_t bytes = point->peak_bytes + ms__model_effect_at(&b->model, point, change) - b->prefix_bytes[v][prefix];
    bool in_tail = prefix >= b->chain->n - 1 && b->chain->n > 0 && point->phase <= MS_PHASE_BACKWARD;
    if (in_tail && loss_bytes > 0) bytes -= loss_bytes - ms__model_tiled_loss(&b->model, loss_bytes);
    return bytes;
}

static void note(builder *b, int v, const ms_simulation_segment *point, int32_t prefix, int64_t bytes) {
    int32_t at = position_of(b, point);
    bool backward = point->phase == MS_PHASE_BACKWARD;
    if (at != MS__NO_CHAIN)
        *(backward ? &b->units[v][at].backward_ns : &b->units[v][at].forward_ns) += point->duration_ns;
    int64_t *place = &b->between[v][prefix];
    if (at == prefix && at != MS__NO_CHAIN)
        place = backward ? &b->units[v][at].backward_bytes : &b->units[v][at].forward_bytes;
    *place = larger(*place, bytes);
}

static void measure(builder *b, int v) {
    const ms_simulation *run = b->basis->runs[v];
    int64_t loss_from = -1, before = 0, head_ns = 0;
    measure_held(b, v);
    for (int64_t i = 0; i < ms_simulation_count_segments(run); i++) {
        ms_simulation_segment point = point_at(run, i);
        if (!takes_part(&point)) continue;
        int32_t prefix = b->basis->order.prefix[i];
        bool in_tail = prefix >= b->chain->n - 1 && b->chain->n > 0 && point.phase <= MS_PHASE_LOSS;
        if (in_tail && loss_from < 0) loss_from = before;
        if (in_tail) head_ns = ms__add_ns(head_ns, point.duration_ns);
        before = ms__transient_end_bytes(&point);
        note(b, v, &point, prefix, outside_bytes(b, v, &point, prefix, larger(loss_from, 0)));
        bool steps = point.phase == MS_PHASE_OPTIMIZER;
        if (v == MS__PLAIN && !(steps && b->model.is_streamed)) b->base_ns = ms__add_ns(b->base_ns, point.duration_ns);
    }
    if (b->model.flags & MS_MODEL_TILE_LOSS && b->chain->n > 0) {
        measured *last = &b->units[v][b->chain->n - 1];
        last->held_bytes = smaller(last->held_bytes, ms__model_tiled_loss(&b->model, larger(last->held_bytes, 0)));
        if (v == MS__PLAIN) b->base_ns = ms__add_ns(b->base_ns, head_ns);
    }
}

/* ---- Options ---- */

static void add_option(builder *b, int32_t position, int32_t action) {
    const ms__basis *basis = b->basis;
    ms__chain_unit *unit = &b->chain->units[position];
    ms__effect e = ms__effect_of(&basis->ledgers[unit->unit], &basis->profile->units[unit->unit], action);
    if (!e.is_possible) return;
    const measured *m = &b->units[e.variant][position], *kept = &b->units[MS__PLAIN][position];
    int64_t ns = m->forward_ns + m->backward_ns + e.extra_ns - kept->forward_ns - kept->backward_ns;
    int64_t held = m->held_bytes + e.held_bytes; /* no less than nothing, by what copies are counted with */
    ms__option option = {.held_bytes = e.held_bytes < 0 ? larger(held, smaller(m->held_bytes, 0)) : held,
                         .forward_bytes = m->forward_bytes + e.forward_bytes,
                         .backward_bytes = m->backward_bytes + e.backward_bytes,
                         .copy_bytes = e.copy_bytes,
                         .extra_ns = larger(ns, 0),
                         .action = action,
                         .waits = e.waits};
    const ms__option *keep = &unit->options[0];
    bool gains = keep->held_bytes - option.held_bytes > b->least_gain ||
                 keep->backward_bytes - option.backward_bytes > b->least_gain;
    if (action == MS_ACTION_KEEP || gains) unit->options[unit->n_options++] = option;
}

static int64_t copies_bytes(const ms__chain *chain, int64_t *out_most) {
    int64_t sum = 0;
    for (int32_t i = 0; i < chain->n; i++) {
        int64_t most = 0;
        for (int32_t o = 0; o < chain->units[i].n_options; o++)
            most = larger(most, chain->units[i].options[o].copy_bytes);
        *out_most = larger(*out_most, most);
        sum += most;
    }
    return sum;
}

static void set_link(builder *b) {
    ms__chain *chain = b->chain;
    int64_t most = 0, sum = copies_bytes(chain, &most);
    chain->link = ms__link_make(b->basis->request->device->rates, most);
    if (sum > chain->host_limit_bytes) chain->host_level_bytes = sum / 16 + 1;
    for (int32_t i = 0; i < chain->n; i++)
        for (int32_t o = 0; o < chain->units[i].n_options; o++) {
            ms__option *option = &chain->units[i].options[o];
            const measured *m = &b->units[ms__action_variant(option->action)][i];
            option->extra_ns = ms__add_ns(option->extra_ns, ms__link_drag_ns(&chain->link, option->copy_bytes));
            option->copy_slots = ms__link_copy_slots(&chain->link, option->copy_bytes);
            option->hide_slots = ms__link_hide_slots(&chain->link, smaller(m->forward_ns, m->backward_ns));
        }
}

static uint32_t allowed_actions(const ms__basis *basis, int64_t unit) {
    uint32_t away = 1U << MS_ACTION_OFFLOAD | 1U << MS_ACTION_OFFLOAD_BLOCKING | 1U << MS_ACTION_RECOMPUTE_OFFLOAD |
                    1U << MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING;
    if (!ms__unit_may_change(basis->request, basis->profile, unit)) return 1U << MS_ACTION_KEEP;
    uint32_t actions = basis->request->actions | 1U << MS_ACTION_KEEP;
    return basis->request->device->rates->to_device_mb_per_s > 0 &&
                   basis->request->device->rates->from_device_mb_per_s > 0
               ? actions
               : actions & ~away;
}

static void set_options(builder *b) {
    b->least_gain = larger(b->prefix_bytes[MS__PLAIN][b->chain->n], 0) / LEAST_GAIN;
    for (int32_t i = 0; i < b->chain->n; i++) {
        b->chain->units[i].unit = b->basis->order.units[i];
        uint32_t allowed = allowed_actions(b->basis, b->chain->units[i].unit);
        for (int32_t action = 0; action < MS_N_ACTIONS; action++)
            if (allowed & 1U << action) add_option(b, i, action);
    }
    for (int32_t k = 0; k <= b->chain->n; k++)
        b->chain->gap_bytes[k] = larger(b->between[MS__PLAIN][k], b->between[MS__RECOMPUTED][k]);
    set_link(b);
}

/* ---- Without a step: only what units save is known ---- */

static ms_status make_plain_chain(ms__arena *arena, const ms__basis *basis, ms__chain *out) {
    const ms_profile *profile = basis->profile;
    out->n = 0;
    out->units = ms__arena_array(arena, (size_t)profile->n_units, sizeof *out->units);
    out->gap_bytes = ms__arena_array(arena, (size_t)profile->n_units + 1, sizeof *out->gap_bytes);
    if (out->units == NULL || out->gap_bytes == NULL) return MS_E_NO_MEMORY;
    out->gap_bytes[0] = profile->resident_bytes;
    for (int64_t i = 0; i < profile->n_units; i++) {
        const ms_unit *u = &profile->units[i];
        ms__chain_unit *unit = &out->units[out->n];
        int64_t whole = profile->resident_bytes + u->saved_bytes, cost = ms__unit_cost(u);
        unit->unit = (int32_t)i;
        unit->options[unit->n_options++] =
            (ms__option){.held_bytes = u->saved_bytes, .forward_bytes = whole, .backward_bytes = whole};
        bool gains = u->input_bytes < u->saved_bytes && basis->request->actions & 1U << MS_ACTION_RECOMPUTE;
        if (gains && ms__unit_may_change(basis->request, profile, i))
            unit->options[unit->n_options++] = (ms__option){.held_bytes = u->input_bytes,
                                                            .forward_bytes = whole,
                                                            .backward_bytes = whole,
                                                            .extra_ns = cost,
                                                            .action = MS_ACTION_RECOMPUTE};
        out->base_ns = ms__add_ns(out->base_ns, smaller(cost, MS__MAX_NS / 3) * 3);
        out->gap_bytes[++out->n] = profile->resident_bytes;
    }
    out->gap_bytes[out->n] = larger(out->gap_bytes[out->n], profile->resident_bytes + profile->outside_bytes);
    return MS_OK;
}

ms_status ms__chain_make(ms__arena *arena, const ms__basis *basis, uint32_t state, ms__chain *out,
                         int64_t *out_host_bytes) {
    *out = (ms__chain){.host_limit_bytes = basis->request->host_limit_bytes};
    *out_host_bytes = 0;
    if (basis->profile->step == NULL) return make_plain_chain(arena, basis, out);
    builder b = {.basis = basis, .chain = out};
    b.model =
        ms__model_effect_make(basis->profile->step, basis->request->device->rates, state, basis->kept.backward_ns);
    *out_host_bytes = b.model.host_bytes;
    out->host_limit_bytes -= b.model.host_bytes;
    out->n = basis->order.n;
    size_t n = (size_t)out->n + 1;
    out->units = ms__arena_array(arena, n, sizeof *out->units);
    out->gap_bytes = ms__arena_array(arena, n, sizeof *out->gap_bytes);
    bool there = out->units != NULL && out->gap_bytes != NULL;
    for (int v = 0; v < MS__N_VARIANTS; v++) {
        b.units[v] = ms__arena_array(arena, n, sizeof *b.units[v]);
        b.between[v] = ms__arena_array(arena, n, sizeof *b.between[v]);
        b.prefix_bytes[v] = ms__arena_array(arena, n, sizeof *b.prefix_bytes[v]);
        there = there && b.units[v] != NULL && b.between[v] != NULL && b.prefix_bytes[v] != NULL;
    }
    if (!there) return MS_E_NO_MEMORY;
    for (int v = 0; v < MS__N_VARIANTS; v++) measure(&b, v);
    out->base_ns = ms__add_ns(b.base_ns, b.model.backward_ns);
    if (b.model.is_streamed) out->base_ns = ms__add_ns(out->base_ns, b.model.optimizer_ns);
    set_options(&b);
    return MS_OK;
}
