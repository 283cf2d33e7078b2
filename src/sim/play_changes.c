/* play_changes.c - plays what the actions of a plan change in the events of a step (changes.h).
 *
 * Copies run on the link while the step goes on. The device waits for those of a visit when its tensors have to be
 * gone, and when backward needs them again; while they run they slow down what the device computes.
 */
#include "../common/math.h"
#include "actions.h"
#include "player.h"
#include "schedule.h"
#include "sim_link.h"

/* How far a key is that a unit keeps. */
enum { KEPT_LIVE, KEPT_WAITS /* the events have released it */, KEPT_GONE /* no recomputation needs it any more */ };

static const ms__action *action_of(const ms__player *p, int32_t unit) {
    return &ms__actions[p->request->actions == NULL ? MS_ACTION_KEEP : p->request->actions[unit]];
}

static bool offloads(const ms__action *action) { return action->needs_link && action->is_played; }

static bool moves_inputs(const ms__action *action) { return offloads(action) && action->variant == MS__RECOMPUTED; }

static bool is_needed(const ms_simulation_request *request) {
    for (int64_t i = 0; request->actions != NULL && i < request->n_actions; i++) {
        const ms__action *action = &ms__actions[request->actions[i]];
        if (action->keeps != 0 || offloads(action) || action->variant == MS__POINTWISE) return true;
    }
    return false;
}

/* Where this plan releases a key. */
static int32_t released_in(const ms__player *p, uint32_t key) {
    uint32_t split = p->step->keys[key].split;
    return split == 0 ? MS__NOBODY : p->released_in[split - 1];
}

/* A unit that is kept may hold the same tensor for longer; then it stays. A key that is not split is released where the
 * recomputed variant does it. */
static bool is_moved(const ms__player *p, const ms__visit *visit, uint32_t key) {
    int32_t at = released_in(p, key);
    return at == MS__NOBODY || (at < (int32_t)p->step->n_segments && p->step->segments[at].unit == visit->unit &&
                                p->step->segments[at].phase == MS_PHASE_BACKWARD);
}

static void find_moved(ms__player *p, int32_t v) {
    const ms__visit *visit = &p->changes->visits[v];
    const ms__action *action = action_of(p, visit->unit);
    ms__offloaded *own = &p->offloaded[v];
    const ms__copied *moved = &visit->moved[action->variant];
    const uint32_t *keys = p->changes->moved[action->variant] + moved->first;
    *own = (ms__offloaded){.first = MS__NOBODY, .next_leaving = MS__NOBODY, .next_fetched = MS__NOBODY};
    for (uint32_t i = 0; i < moved->n && offloads(action); i++) {
        if (moves_inputs(action) && !is_moved(p, visit, keys[i])) continue;
        p->next_moved[keys[i]] = own->first;
        own->first = (int32_t)keys[i];
        own->n_bytes += ms__round_up(ms__step_key_bytes(p->step, keys[i]), MS__HOST_ALIGN);
    }
    own->is_offloaded = own->first >= 0;
    own->waits = action->waits;
}

/* Whoever called a unit holds its inputs until the next one has run. */
static int32_t leaves_after(const ms__player *p, int32_t v) {
    if (!p->offloaded[v].waits) return p->schedule.leaving[p->changes->visits[v].unit];
    return moves_inputs(action_of(p, p->changes->visits[v].unit)) ? 1 : 0;
}

/* Later visits at whose end others are gone, and whose backward fetches others. What is needed first is fetched
 * first. */
static void find_offloaded(ms__player *p) {
    int32_t n = p->changes->n_visits;
    for (int32_t v = 0; v < n; v++) p->offloaded[v].first_leaving = p->offloaded[v].first_fetched = MS__NOBODY;
    for (int32_t v = 0; v < n; v++) {
        ms__offloaded *own = &p->offloaded[v];
        int32_t leaving = own->first_leaving, fetched = own->first_fetched, unit = p->changes->visits[v].unit;
        find_moved(p, v);
        own->first_leaving = leaving;
        own->first_fetched = fetched;
        if (!own->is_offloaded) continue;
        int32_t gone = v + leaves_after(p, v), back = own->waits ? v : v + p->schedule.ahead[unit];
        if (gone < n) {
            own->next_leaving = p->offloaded[gone].first_leaving;
            p->offloaded[gone].first_leaving = v;
        }
        if (back > v && back < n) {
            own->next_fetched = p->offloaded[back].first_fetched;
            p->offloaded[back].first_fetched = v;
        }
    }
}

ms_status ms__changes_open(ms__player *p, ms__arena *arena, const ms__sim_basis *basis) {
    if (!is_needed(p->request)) return MS_OK;
    ms__changes *own = NULL;
    p->changes = basis == NULL ? NULL : &basis->changes;
    if (p->changes == NULL) {
        own = ms__arena_array(arena, 1, sizeof *own);
        ms_status status = own == NULL ? MS_E_NO_MEMORY : ms__changes_make(arena, p->step, own);
        if (status != MS_OK) return status;
        p->changes = own;
    }
    ms_status status = ms__arena_arrays(
        arena, MS__ARRAY(p->kept, p->step->n_keys), MS__ARRAY(p->compared, p->step->n_keys),
        MS__ARRAY(p->next_moved, p->step->n_keys), MS__ARRAY(p->offloaded, (size_t)p->changes->n_visits));
    const ms__schedule_request schedule = {p->step, p->changes, p->request->actions, p->request->device->rates,
                                           p->request->prefetch_depth};
    if (status == MS_OK) status = ms__schedule_make(arena, &schedule, &p->schedule);
    if (status == MS_OK) find_offloaded(p);
    return status;
}

void ms__changes_begin_step(ms__player *p, int n_steps) {
    p->n_steps = n_steps;
    if (p->changes == NULL) return;
    for (uint32_t k = 0; k < p->step->n_keys; k++) p->kept[k] = KEPT_LIVE;
    for (int32_t v = 0; v < p->changes->n_visits; v++) {
        p->offloaded[v].is_away = false;
        p->offloaded[v].left_ns = p->offloaded[v].back_ns = 0;
    }
}

/* ---- Kept results ---- */

/* In the first step a unit is checked, and keeps nothing. In the second, what is kept is computed all the same, and
 * thrown away once it was compared. */
static uint32_t keeps_of(const ms__player *p, int32_t unit) { return p->n_steps == 0 ? 0 : action_of(p, unit)->keeps; }

enum ms__role ms__changes_role(const ms__player *p, int32_t unit, uint32_t event) {
    uint32_t keeps = p->changes == NULL || unit < 0 ? 0 : keeps_of(p, unit);
    if (keeps == 0 || p->changes->units[unit].n_kept[keeps] == 0) return MS__ROLE_NONE;
    return ms__is_spared(p->changes->spared[event], keeps) ? MS__ROLE_SPARED : MS__ROLE_KEEPER;
}

/* All that a function makes is there until its result was compared. */
ms_status ms__changes_play_spared(ms__player *p, const ms__step_event *event, int64_t segment) {
    if (p->n_steps > 1) return MS_OK;
    if (event->kind == MS__SCRATCH) return ms__player_take_transient(p, p->scratch_bytes[event->index], segment);
    if (event->kind != MS__ALLOCATE || p->blocks[event->index] != MS__NOT_THERE) return MS_OK;
    p->compared[p->n_compared++] = event->index;
    return ms__player_take(p, event->index, segment);
}

/* Comparing makes a flag for each element, on a GPU. */
ms_status ms__changes_end_comparison(ms__player *p, int64_t segment) {
    ms_status status = MS_OK;
    while (p->n_compared > 0 && status == MS_OK) {
        uint32_t key = p->compared[--p->n_compared];
        int64_t n_flags = ms__player_on_gpu(p) ? ms__step_key_bytes(p->step, key) / 2 : 0;
        if (n_flags > 0) status = ms__player_take_transient(p, n_flags, segment);
        if (status == MS_OK) status = ms__player_give(p, key);
    }
    return status;
}

static bool is_kept(const ms__player *p, uint32_t key) {
    uint8_t needs = p->changes->kept[key];
    return needs != 0 && ms__is_spared(needs, keeps_of(p, p->changes->maker[key]));
}

/* No recomputation needs these kept keys any more. */
static ms_status end_kept(ms__player *p, int32_t first) {
    ms_status status = MS_OK;
    for (int32_t k = first; k >= 0 && status == MS_OK; k = p->changes->next_kept[k]) {
        if (p->kept[k] == KEPT_WAITS) status = ms__player_give(p, (uint32_t)k);
        p->kept[k] = KEPT_GONE;
    }
    return status;
}

/* A cast of a parameter of a unit that is offloaded. */
static bool is_dropped(const ms__player *p, uint32_t key) {
    return p->changes->dropped_in[key] >= 0 && offloads(action_of(p, p->changes->maker[key]));
}

ms_status ms__changes_release(ms__player *p, uint32_t key) {
    if (p->changes == NULL) return ms__player_give(p, key);
    ms_status status = MS_OK;
    if (is_kept(p, key) && p->kept[key] != KEPT_GONE)
        p->kept[key] = KEPT_WAITS;
    else
        status = ms__player_give(p, key);
    return status == MS_OK ? end_kept(p, p->changes->first_after[key]) : status;
}

/* ---- Offloading ---- */

static int64_t copy_ns(const ms__player *p, int32_t visit) {
    return ms__copy_ns(p->request->device->rates, p->offloaded[visit].n_bytes);
}

static int64_t drag_ns(const ms__player *p, int32_t visit) { return copy_ns(p, visit) / MS__LINK_DRAG; }

static int64_t handling_ns(const ms__player *p, int32_t v) {
    const ms_rates *rates = p->request->device->rates;
    const ms__visit *visit = &p->changes->visits[v];
    const ms__action *action = action_of(p, visit->unit);
    int64_t n_moved = visit->moved[action->variant].n;
    if (moves_inputs(action)) return ms__input_handling_ns(rates, n_moved);
    return ms__handling_ns(rates, p->changes->units[visit->unit].n_saved, n_moved);
}

/* Each tensor that autograd saves passes a hook, twice, and each function of torch that the unit calls a mode. That is
 * a part of what the same takes a unit that is recomputed, which runs again. */
#define PART_OF_HOOKS 4

static int64_t hooks_ns(const ms__player *p, int32_t v) {
    const ms_rates *rates = p->request->device->rates;
    int64_t n_saved = p->changes->units[p->changes->visits[v].unit].n_saved;
    return ms__add_ns(rates->recomputation_ns, ms__min(n_saved * rates->saved_tensor_ns, MS__MAX_NS)) / PART_OF_HOOKS;
}

static ms_status leave(ms__player *p, int32_t v) {
    ms_status status = MS_OK;
    ms__player_wait(p, p->offloaded[v].left_ns, drag_ns(p, v));
    p->offloaded[v].is_away = true;
    for (int32_t k = p->offloaded[v].first; k >= 0 && status == MS_OK; k = p->next_moved[k])
        status = ms__player_give(p, (uint32_t)k);
    return status;
}

static ms_status fetch(ms__player *p, int32_t v, int64_t segment) {
    ms_status status = MS_OK;
    if (!p->offloaded[v].is_away) return MS_OK;
    p->offloaded[v].is_away = false;
    for (int32_t k = p->offloaded[v].first; k >= 0 && status == MS_OK; k = p->next_moved[k])
        status = ms__player_take(p, (uint32_t)k, segment);
    p->now.in_ns = ms__add_ns(ms__max(p->now.in_ns, ms__player_time(p)), copy_ns(p, v));
    p->offloaded[v].back_ns = p->now.in_ns;
    return status;
}

/* In the first step, what is made again is compared: on a GPU with a flag for each byte. */
static ms_status end_pointwise(ms__player *p, int32_t v, int64_t segment) {
    int64_t largest = p->changes->units[p->changes->visits[v].unit].largest_pointwise;
    p->now.host_ns = ms__add_ns(p->now.host_ns, hooks_ns(p, v));
    if (p->n_steps > 0 || largest == 0) return MS_OK;
    return ms__player_take_transient(p, ms__player_on_gpu(p) ? 2 * largest : largest, segment);
}

static ms_status end_forward(ms__player *p, int32_t v, int64_t segment) {
    ms__offloaded *own = &p->offloaded[v];
    ms_status status = MS_OK;
    if (action_of(p, p->changes->visits[v].unit)->variant == MS__POINTWISE) status = end_pointwise(p, v, segment);
    if (status != MS_OK) return status;
    if (own->is_offloaded) {
        p->now.host_ns = ms__add_ns(p->now.host_ns, handling_ns(p, v));
        p->now.out_ns = ms__add_ns(ms__max(p->now.out_ns, ms__player_time(p)), copy_ns(p, v));
        own->left_ns = p->now.out_ns;
        if (own->waits) ms__player_wait(p, own->left_ns, 0);
    }
    for (int32_t u = own->first_leaving; u >= 0 && status == MS_OK; u = p->offloaded[u].next_leaving)
        status = leave(p, u);
    return status;
}

/* The visit's own tensors are needed, and those of others will be soon. */
static ms_status begin_backward(ms__player *p, int32_t v, int64_t segment) {
    const ms__offloaded *own = &p->offloaded[v];
    ms_status status = MS_OK;
    if (own->is_offloaded) status = fetch(p, v, segment);
    if (own->back_ns > 0) ms__player_wait(p, own->back_ns, drag_ns(p, v));
    for (int32_t u = own->first_fetched; u >= 0 && status == MS_OK; u = p->offloaded[u].next_fetched)
        status = fetch(p, u, segment);
    return status;
}

ms_status ms__changes_begin_event(ms__player *p, uint32_t event, int64_t segment) {
    if (p->changes == NULL) return MS_OK;
    ms_status status = end_kept(p, p->changes->first_over[event]);
    for (int v = 0; v < MS__N_VARIANTS; v++)
        for (int32_t k = p->changes->first_made[v][event]; k >= 0 && status == MS_OK; k = p->changes->next_made[v][k])
            if (is_dropped(p, (uint32_t)k) && action_of(p, p->changes->maker[k])->variant == v)
                status = ms__player_take(p, (uint32_t)k, segment);
    return status;
}

/* ---- Segments ---- */

ms_status ms__changes_begin_segment(ms__player *p, int64_t index) {
    if (p->changes == NULL || p->step->segments[index].phase != MS_PHASE_BACKWARD) return MS_OK;
    int32_t v = p->changes->visit_of[index];
    return v >= 0 && p->changes->visits[v].backward == index ? begin_backward(p, v, index) : MS_OK;
}

static ms_status drop_casts(ms__player *p, int64_t index) {
    ms_status status = MS_OK;
    for (int32_t k = p->changes->first_dropped[index]; k >= 0 && status == MS_OK; k = p->changes->next_dropped[k])
        if (is_dropped(p, (uint32_t)k)) status = ms__player_give(p, (uint32_t)k);
    return status;
}

ms_status ms__changes_end_segment(ms__player *p, int64_t index) {
    if (p->changes == NULL) return MS_OK;
    uint32_t phase = p->step->segments[index].phase;
    ms_status status = ms__changes_end_comparison(p, index);
    if (phase == MS_PHASE_BACKWARD && status == MS_OK) return end_kept(p, p->changes->first_last[index]);
    if (status != MS_OK) return status;
    if (phase != MS_PHASE_FORWARD && phase != MS_PHASE_LOSS) return MS_OK;
    int32_t v = p->changes->visit_of[index];
    status = v < 0 ? MS_OK : end_forward(p, v, index);
    return status == MS_OK ? drop_casts(p, index) : status;
}

int64_t ms__changes_host_bytes(const ms__player *p) {
    int64_t n_bytes = 0;
    for (int32_t v = 0; p->changes != NULL && v < p->changes->n_visits; v++) n_bytes += p->offloaded[v].n_bytes;
    return n_bytes;
}
