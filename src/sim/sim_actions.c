/* overlay.c - a simulation of kept and recomputed units, changed into one of all that a plan can do (levers.h).
 *
 * The events of a step know two variants of a unit. What other actions hold, copy and compute, and what a state
 * changes, is added to each stretch of the step; then the peak is looked for again.
 */
#include <string.h>

#include "actions.h"
#include "roofline.h"

typedef struct overlay {
    const ms_simulation_request *request;
    const ms__step *step;
    ms__order order;
    ms__ledger *ledgers;
    ms__effect *effects; /* by chain position */
    int64_t *held;       /* [prefix]: change of what its units hold */
    int32_t *backlog;    /* [prefix]: behind its last unit */
    int64_t *wait_ns;    /* by chain position */
    ms__link link;
    ms__model_effect model;
    int64_t loss_from_bytes; /* activations and temporaries before the last unit, for tiles of the loss */
} overlay;

static bool is_needed(const ms_simulation_request *request) {
    if (request->model_options != 0) return true;
    for (int64_t i = 0; request->actions != NULL && i < request->n_actions; i++)
        if (request->actions[i] > MS_ACTION_RECOMPUTE) return true;
    return false;
}

static int32_t action_of(const overlay *o, int32_t unit) {
    return o->request->actions == NULL ? MS_ACTION_KEEP : o->request->actions[unit];
}

static ms_status prepare(overlay *o, ms__arena *arena) {
    ms_status status = ms__order_make(arena, o->step, &o->order);
    if (status == MS_OK) status = ms__ledgers_make(arena, o->step, o->request->device->rates, &o->ledgers);
    size_t n = (size_t)o->order.n;
    o->effects = ms__arena_array(arena, n + 1, sizeof *o->effects);
    o->held = ms__arena_array(arena, n + 1, sizeof *o->held);
    o->backlog = ms__arena_array(arena, n + 1, sizeof *o->backlog);
    o->wait_ns = ms__arena_array(arena, n + 1, sizeof *o->wait_ns);
    if (status != MS_OK) return status;
    return o->effects == NULL || o->held == NULL || o->backlog == NULL || o->wait_ns == NULL ? MS_E_NO_MEMORY : MS_OK;
}

/* The time of a unit that hides copies: the shorter of forward and backward. */
static int64_t hiding_ns(const overlay *o, const ms_simulation_segment *points, int32_t unit) {
    int64_t ns[2] = {0, 0};
    for (uint32_t i = 0; i < o->step->n_segments; i++)
        if (points[i].unit == unit) ns[points[i].phase == MS_PHASE_BACKWARD] += points[i].duration_ns;
    return ns[0] < ns[1] ? ns[0] : ns[1];
}

static void walk_units(overlay *o, const ms_simulation_segment *points, ms_simulation_summary *summary) {
    int64_t most = 0;
    for (int32_t i = 0; i < o->order.n; i++) {
        int32_t unit = o->order.units[i];
        o->effects[i] = ms__effect_of(&o->ledgers[unit], &o->request->profile->units[unit], action_of(o, unit));
        o->held[i + 1] = o->held[i] + o->effects[i].held_bytes;
        summary->host_bytes += o->effects[i].copy_bytes;
        if (o->effects[i].copy_bytes > most) most = o->effects[i].copy_bytes;
    }
    o->link = ms__link_make(o->request->device->rates, most);
    for (int32_t i = 0; i < o->order.n && o->link.slot_ns > 0; i++) {
        int32_t hide = ms__link_hide_slots(&o->link, hiding_ns(o, points, o->order.units[i]));
        int32_t copy = ms__link_copy_slots(&o->link, o->effects[i].copy_bytes);
        bool waits = o->effects[i].waits || i == o->order.n - 1;
        o->backlog[i + 1] = ms__link_step(&o->link, o->backlog[i], hide, copy, waits, &o->wait_ns[i]);
        summary->wait_ns = ms__add_ns(summary->wait_ns, o->wait_ns[i]);
    }
}

/* What a stretch behind the last unit's beginning takes less if the loss goes by tiles. */
static int64_t spared_by_tiles(const overlay *o, const ms_simulation_segment *point, int32_t prefix) {
    bool in_tail = prefix >= o->order.n - 1 && point->phase >= MS_PHASE_FORWARD && point->phase <= MS_PHASE_BACKWARD;
    int64_t n_bytes = ms__transient_bytes(point) - o->loss_from_bytes;
    if (!in_tail || o->order.n == 0 || n_bytes <= 0) return 0;
    return n_bytes - ms__model_tiled_loss(&o->model, n_bytes);
}

static void change_point(overlay *o, ms_simulation_segment *point, int32_t prefix, int64_t *waits_left) {
    int64_t change[MS_N_CATEGORIES];
    int64_t sum = ms__model_effect_at(&o->model, point, change);
    int64_t own = o->held[prefix] + o->backlog[prefix] * o->link.slot_bytes;
    int32_t at = point->unit < 0 ? MS__NO_CHAIN : o->order.position[point->unit];
    bool backward = point->phase == MS_PHASE_BACKWARD;
    if (at != MS__NO_CHAIN && backward) {
        own += o->effects[at].backward_bytes;
        int64_t ns = point->duration_ns + waits_left[at];
        point->duration_ns = ns > 0 ? ns : 0;
        waits_left[at] = ns > 0 ? 0 : ns;
    } else if (at != MS__NO_CHAIN && point->phase <= MS_PHASE_LOSS) {
        own += o->effects[at].forward_bytes;
    }
    int64_t spared = spared_by_tiles(o, point, prefix), working = point->parts[MS_CATEGORY_TEMPORARY];
    int64_t of_working = spared < working ? spared : working;
    change[MS_CATEGORY_TEMPORARY] -= of_working;
    change[MS_CATEGORY_ACTIVATION] += own - (spared - of_working);
    own -= spared;
    for (int c = 0; c < MS_N_CATEGORIES; c++) point->parts[c] += change[c];
    point->peak_bytes += sum + own;
    point->end_bytes += sum + own;
    if (point->end_bytes > point->peak_bytes) point->end_bytes = point->peak_bytes;
}

/* The state's times: the optimizer step anew, gradients that leave behind backward, and the head computed twice. */
static void change_times(const overlay *o, ms_simulation_segment *points) {
    int64_t head_ns = 0, backward_ns = o->model.backward_ns, optimizer_ns = o->model.optimizer_ns;
    for (uint32_t i = 0; i < o->step->n_segments; i++) {
        ms_simulation_segment *point = &points[i];
        bool in_tail = o->order.prefix[i] >= o->order.n - 1 && o->order.n > 0;
        if (in_tail && (point->phase == MS_PHASE_FORWARD || point->phase == MS_PHASE_LOSS))
            head_ns = ms__add_ns(head_ns, point->duration_ns);
        if (point->phase == MS_PHASE_BACKWARD) {
            int64_t extra = o->model.flags & MS_MODEL_TILE_LOSS ? ms__add_ns(head_ns, backward_ns) : backward_ns;
            point->duration_ns = ms__add_ns(point->duration_ns, extra);
            head_ns = backward_ns = 0;
        }
        if (point->phase == MS_PHASE_OPTIMIZER && o->model.is_streamed) {
            point->duration_ns = optimizer_ns;
            optimizer_ns = 0;
        }
    }
}

static void sum_up(const overlay *o, const ms_simulation_segment *points, ms_simulation_summary *s) {
    int64_t before = s->steady_peak_bytes;
    const ms_simulation_segment *highest = NULL;
    s->step_ns = s->forward_ns = s->backward_ns = s->optimizer_ns = 0;
    for (uint32_t i = 0; i < o->step->n_segments; i++) {
        const ms_simulation_segment *point = &points[i];
        s->step_ns = ms__add_ns(s->step_ns, point->duration_ns);
        if (point->phase <= MS_PHASE_LOSS) s->forward_ns = ms__add_ns(s->forward_ns, point->duration_ns);
        if (point->phase == MS_PHASE_BACKWARD) s->backward_ns = ms__add_ns(s->backward_ns, point->duration_ns);
        if (point->phase > MS_PHASE_BACKWARD) s->optimizer_ns = ms__add_ns(s->optimizer_ns, point->duration_ns);
        if (point->phase == MS_PHASE_SETUP || point->phase == MS_PHASE_OPTIMIZER_FIRST) continue;
        if (highest == NULL || point->peak_bytes > highest->peak_bytes) highest = point;
    }
    if (highest == NULL) return;
    int64_t change = highest->peak_bytes - before;
    memcpy(s->parts, highest->parts, sizeof s->parts);
    int64_t known = 0;
    for (int c = 0; c < MS_N_CATEGORIES; c++) known += s->parts[c];
    s->unused_bytes = highest->peak_bytes - known;
    s->steady_peak_bytes += change;
    s->first_peak_bytes = s->first_peak_bytes + change > 0 ? s->first_peak_bytes + change : 0;
    s->reserved_bytes =
        s->reserved_bytes + change > s->steady_peak_bytes ? s->reserved_bytes + change : s->steady_peak_bytes;
    s->first_reserved_bytes = s->reserved_bytes;
    s->peak_unit = highest->unit;
    s->peak_phase = highest->phase;
}

static void apply(overlay *o, ms_simulation_segment *points, ms_simulation_summary *summary, int64_t *waits_left) {
    int32_t last = o->order.n - 1;
    int64_t backward_ns = summary->backward_ns;
    walk_units(o, points, summary);
    o->model = ms__model_effect_make(o->step, o->request->device->rates, o->request->model_options, backward_ns);
    summary->host_bytes += o->model.host_bytes;
    for (int32_t i = 0; i <= last; i++)
        waits_left[i] =
            ms__add_ns(o->wait_ns[i], ms__link_drag_ns(&o->link, o->effects[i].copy_bytes)) + o->effects[i].extra_ns;
    for (uint32_t i = 0; i < o->step->n_segments; i++) /* the stretch before the last unit */
        if (o->order.prefix[i] >= last && last >= 0 && points[i].phase >= MS_PHASE_FORWARD) {
            o->loss_from_bytes = i > 0 ? ms__transient_end_bytes(&points[i - 1]) : 0;
            break;
        }
    for (uint32_t i = 0; i < o->step->n_segments; i++)
        if (points[i].peak_bytes > 0) change_point(o, &points[i], o->order.prefix[i], waits_left);
    change_times(o, points);
    sum_up(o, points, summary);
}

ms_status ms__overlay(const ms_simulation_request *request, ms_simulation_segment *points,
                      ms_simulation_summary *summary) {
    if (!is_needed(request)) return MS_OK;
    ms__arena arena = {0};
    overlay o = {.request = request, .step = request->profile->step};
    ms_status status = prepare(&o, &arena);
    int64_t *waits_left = ms__arena_array(&arena, (size_t)o.order.n + 1, sizeof *waits_left);
    if (waits_left == NULL) status = MS_E_NO_MEMORY;
    if (status == MS_OK) apply(&o, points, summary, waits_left);
    ms__arena_free(&arena);
    return status;
}
