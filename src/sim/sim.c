/* sim.c - simulates a training step under a plan: how much memory and time it takes, and where the peak is.
 *
 * The segments of a profile's step are played in order, each in the variant of its unit's action (so a plan that keeps
 * everything, or recomputes everything, plays what was traced). There are a few steps: the first, which creates the
 * optimizer's state, and later ones, until the allocator has settled. On a GPU, blocks come from a model of torch's
 * caching allocator or, if only sizes matter, are rounded as it rounds them.
 *
 * Time: the host queues operations one after the other, and what that takes depends on the kind of operation and on who
 * calls it (roofline.h). The device starts each when it is queued and the one before is done, and takes as long as its
 * arithmetic or its memory traffic, whichever is longer. A host that is itself the device does one after the other. A
 * step ends when both are done, as in a loop that reads its loss.
 *
 * A step's sums fit in 60 bits (step.h) and the request is checked, so bytes need no checks here; times saturate at
 * MS__MAX_NS.
 */
#include <stdlib.h>
#include <string.h>

#include "../common/math.h"
#include "../common/structs.h"
#include "actions.h"
#include "needs.h"
#include "player.h"

#define N_STEPS 3
#define NEVER INT32_MAX

/* ---- Playing ---- */

/* Segments between units run as in the plain step, unless all units run otherwise. */
static int variant_of(const ms__player *p, int32_t unit) {
    static const int order[MS__N_VARIANTS] = {MS__PLAIN, MS__POINTWISE, MS__RECOMPUTED};
    for (int i = 0; unit < 0 && i < MS__N_VARIANTS; i++)
        if (p->has_variant[order[i]]) return order[i];
    int variant = p->request->actions == NULL ? MS__PLAIN : ms__actions[p->request->actions[unit]].variant;
    return ms__step_played(p->step, variant);
}

/* Fused optimizers update in place, without temporaries. */
static bool is_skipped(const ms__player *p, const ms__segment *segment, const ms__step_event *event) {
    bool optimizer = segment->phase == MS_PHASE_OPTIMIZER_FIRST || segment->phase == MS_PHASE_OPTIMIZER;
    return optimizer && p->request->flags & MS_SIMULATE_FUSED && event->kind == MS__ALLOCATE &&
           p->step->keys[event->index].category == MS_CATEGORY_TEMPORARY;
}

static bool is_released_here(const ms__player *p, uint32_t key, int64_t segment) {
    uint32_t split = p->step->keys[key].split;
    return split == 0 || p->released_in[split - 1] == segment;
}

static ms_status play_operation(ms__player *p, const ms__segment *segment, int64_t index, uint32_t cost,
                                enum ms__role role) {
    ms__player_run(p, segment->phase, cost, role);
    ms_status status = ms__player_give_brief(p);
    return status == MS_OK ? ms__player_take_workspaces(p, segment, index, p->step->costs[cost].flags) : status;
}

static ms_status play_event(ms__player *p, const ms__segment *segment, int64_t index, const ms__step_event *event) {
    enum ms__role role = ms__changes_role(p, segment->unit, (uint32_t)(event - p->step->events));
    if (is_skipped(p, segment, event)) return MS_OK;
    if (role == MS__ROLE_SPARED && event->kind != MS__OPERATION) return ms__changes_play_spared(p, event, index);
    if (role != MS__ROLE_SPARED && event->kind == MS__OPERATION && p->n_compared > 0) {
        ms_status status = ms__changes_end_comparison(p, index);
        if (status != MS_OK) return status;
    }
    switch (event->kind) {
    case MS__ALLOCATE:
        return ms__player_take(p, event->index, index);
    case MS__RELEASE:
        return is_released_here(p, event->index, index) ? ms__changes_release(p, event->index) : MS_OK;
    case MS__OPERATION:
        return play_operation(p, segment, index, event->index, role);
    case MS__ACCUMULATE:
        return ms__player_give_addend(p, event->index);
    case MS__HOLD:
        return MS_OK;
    default:
        return ms__player_take_transient(p, p->scratch_bytes[event->index], index);
    }
}

/* A key that the other variant releases in this segment: at its end. */
static ms_status release_late(ms__player *p, uint32_t key) {
    return p->blocks[key] == MS__NOT_THERE ? MS_OK : ms__changes_release(p, key);
}

static ms_status play_events(ms__player *p, int64_t index) {
    const ms__segment *segment = &p->step->segments[index];
    int variant = variant_of(p, segment->unit);
    const ms__step_event *events = p->step->events + segment->first[variant];
    ms_status status = MS_OK;
    for (uint32_t i = 0; i < segment->n[variant] && status == MS_OK; i++) {
        status = ms__changes_begin_event(p, segment->first[variant] + i, index);
        if (status == MS_OK) status = play_event(p, segment, index, &events[i]);
    }
    for (int32_t l = p->first_released[index]; l >= 0 && status == MS_OK; l = p->next_released[l])
        status = release_late(p, p->step->split_keys[l].key);
    return status;
}

static ms_status give_category(ms__player *p, uint32_t category) {
    ms_status status = MS_OK;
    for (uint32_t k = 0; k < p->step->n_keys && status == MS_OK; k++)
        if (p->step->keys[k].category == category) status = ms__player_give(p, k);
    return status;
}

static ms_status take_category(ms__player *p, uint32_t category) {
    ms_status status = MS_OK;
    for (uint32_t k = 0; k < p->step->n_keys && status == MS_OK; k++)
        if (p->step->keys[k].category == category) status = ms__player_take(p, k, 0);
    return status;
}

/* Set all segments to what they are if they are not part of the step. */
static void clear_segments(ms_simulation *sim, const ms__step *step) {
    for (int64_t i = 0; i < sim->n_segments; i++)
        sim->segments[i] =
            (ms_simulation_segment){.unit = step->segments[i].unit, .phase = (int32_t)step->segments[i].phase};
}

static void set_segment(ms_simulation *sim, const ms__player *p, int64_t index, int64_t before_ns) {
    ms_simulation_segment *segment = &sim->segments[index];
    segment->end_bytes = p->allocated;
    segment->peak_bytes = p->peak.bytes;
    segment->duration_ns = ms__player_time(p) - before_ns;
    memcpy(segment->parts, p->peak.parts, sizeof p->peak.parts);
}

static bool is_played(const ms__player *p, const ms__segment *segment, int step) {
    bool first = step == 0 && !(p->request->flags & MS_SIMULATE_RESUMED);
    if (segment->phase == MS_PHASE_OPTIMIZER_FIRST) return first;
    if (segment->phase == MS_PHASE_OPTIMIZER) return !first;
    return segment->phase != MS_PHASE_SETUP;
}

/* Start a new peak from the current bytes. */
static void begin_peak(ms__player *p, int64_t segment) {
    p->peak.bytes = -1;
    ms__player_note_peak(p, segment);
}

static int64_t needed_so_far(const ms__player *p) {
    return p->allocator == NULL ? p->peak.bytes : ms__allocator_get_stats(p->allocator).needed_bytes;
}

/* One step, or as much of it as is asked for. It records the peak of each segment and of the step. */
static ms_status play_step(ms__player *p, ms_simulation *sim, int step) {
    ms_status status = MS_OK;
    p->now = (ms__clock){0};
    ms__changes_begin_step(p, step);
    p->n_ops = 0;
    begin_peak(p, 0);
    ms__peak highest = p->peak;
    for (int64_t i = 0; i < sim->n_segments && status == MS_OK; i++) {
        if (!is_played(p, &p->step->segments[i], step)) continue;
        int64_t before = ms__player_time(p);
        begin_peak(p, i);
        status = ms__player_take_spacer(p, i);
        if (status == MS_OK) status = ms__changes_begin_segment(p, i);
        if (status == MS_OK) status = play_events(p, i);
        if (status == MS_OK) status = ms__changes_end_segment(p, i);
        if (status == MS_OK) status = ms__player_give_spacer(p, i);
        ms__player_note_peak(p, i);
        set_segment(sim, p, i, before);
        if (p->peak.bytes > highest.bytes) highest = p->peak;
        p->is_over = needed_so_far(p) > p->most_bytes;
        if (p->is_over) break;
    }
    p->peak = highest;
    if (status == MS_OK) status = ms__player_give_addends(p);
    if (status == MS_OK && !(p->request->flags & MS_SIMULATE_KEEP_GRADIENTS))
        status = give_category(p, MS_CATEGORY_GRADIENT);
    if (status == MS_OK) status = give_category(p, MS_CATEGORY_ACTIVATION);
    if (status == MS_OK) status = give_category(p, MS_CATEGORY_TEMPORARY);
    ms__player_note_peak(p, highest.segment); /* the current bytes, which are lower */
    return status;
}

/* ---- Before and after ---- */

/* The segment in which a split key is released under this plan: the last of those that hold it. A unit holds it in its
 * own variant. If it is released between units, or never, every variant that the plan has holds it. */
static int32_t segment_of(const ms__player *p, const ms__split_key *split) {
    int32_t last = -1, latest = -1;
    for (int v = 0; v < MS__N_VARIANTS; v++) {
        if (split->segment[v] == MS__NOT_ALLOCATED) continue;
        bool never = split->segment[v] < 0;
        int32_t at = never ? NEVER : split->segment[v], unit = never ? -1 : p->step->segments[at].unit;
        bool holds = unit < 0 ? p->has_variant[v] : variant_of(p, unit) == v;
        if (at > latest) latest = at;
        if (holds && at > last) last = at;
    }
    return last < 0 ? latest : last;
}

static void find_variants(ms__player *p) {
    for (uint32_t i = 0; i < p->step->n_segments; i++)
        if (p->step->segments[i].unit >= 0) p->has_variant[variant_of(p, p->step->segments[i].unit)] = true;
    if (!p->has_variant[MS__RECOMPUTED] && !p->has_variant[MS__POINTWISE])
        p->has_variant[MS__PLAIN] = true; /* no unit runs at all */
}

/* The segment in which the unit with the spacer first runs forward, or -1. */
static int64_t find_spacer_segment(const ms_simulation_request *request, const ms__step *step) {
    for (uint32_t i = 0; request->spacer_bytes > 0 && i < step->n_segments; i++) {
        const ms__segment *segment = &step->segments[i];
        bool is_forward = segment->phase == MS_PHASE_FORWARD || segment->phase == MS_PHASE_LOSS;
        if (is_forward && segment->unit == request->spacer_unit) return i;
    }
    return -1;
}

/* A parameter is as large as its gradient and, like the optimizer's state, is read and written. */
static void count_update(ms__player *p, uint32_t key) {
    uint32_t category = p->step->keys[key].category;
    int64_t n_bytes = ms__step_key_bytes(p->step, key);
    if (category == MS_CATEGORY_GRADIENT) {
        p->n_gradients++;
        p->update_bytes += 3 * n_bytes;
    } else if (category == MS_CATEGORY_OPTIMIZER) {
        p->update_bytes += 2 * n_bytes;
    }
}

static ms_status open_player(ms__player *p, ms__arena *arena) {
    const ms__step *step = p->step;
    find_variants(p);
    p->spacer_segment = find_spacer_segment(p->request, step);
    ms_status status =
        ms__arena_arrays(arena, MS__ARRAY(p->blocks, step->n_keys), MS__ARRAY(p->scratch_bytes, step->n_scratches),
                         MS__ARRAY(p->busy_ns, step->n_costs), MS__ARRAY(p->released_in, step->n_split_keys),
                         MS__ARRAY(p->first_released, step->n_segments),
                         MS__ARRAY(p->next_released, step->n_split_keys), MS__ARRAY(p->addends, step->n_keys),
                         MS__ARRAY(p->is_accumulated, step->n_keys), MS__ARRAY(p->brief, step->n_keys));
    if (status != MS_OK) return status;
    for (uint32_t k = 0; k < step->n_keys; k++) {
        p->blocks[k] = p->addends[k] = MS__NOT_THERE;
        count_update(p, k);
    }
    for (uint32_t i = 0; i < step->n_events; i++)
        if (step->events[i].kind == MS__ACCUMULATE) p->is_accumulated[step->events[i].index] = true;
    for (uint32_t i = 0; i < step->n_costs; i++)
        p->busy_ns[i] = ms__op_busy_ns(p->request->device->rates, step, &step->costs[i]);
    for (uint32_t i = 0; i < step->n_scratches; i++) {
        int64_t n[MS__SCRATCH_NUMBERS];
        for (int j = 0; j < MS__SCRATCH_NUMBERS; j++) n[j] = step->numbers[step->scratches[i].n[j]];
        p->scratch_bytes[i] =
            ms__scratch_bytes((enum ms__scratch_rule)step->scratches[i].rule, n, p->request->device->rates->capability,
                              p->request->device->n_multiprocessors);
    }
    memset(p->first_released, 0xff, step->n_segments * sizeof *p->first_released);
    for (uint32_t i = 0; i < step->n_split_keys; i++) {
        int32_t at = p->released_in[i] = segment_of(p, &step->split_keys[i]);
        if (at == NEVER) continue;
        p->next_released[i] = p->first_released[at];
        p->first_released[at] = (int32_t)i;
    }
    return MS_OK;
}

static ms_status play_setup(ms__player *p, int64_t *out_bytes) {
    ms_status status = MS_OK;
    for (uint32_t i = 0; i < p->step->n_segments && status == MS_OK; i++)
        if (p->step->segments[i].phase == MS_PHASE_SETUP) status = play_events(p, i);
    *out_bytes = p->held_bytes;
    if (status == MS_OK && p->request->flags & MS_SIMULATE_RESUMED) status = take_category(p, MS_CATEGORY_OPTIMIZER);
    if (status == MS_OK && p->allocator != NULL && p->request->flags & MS_SIMULATE_GROWING)
        ms__allocator_grow(p->allocator);
    return status;
}

static void sum_times(ms_simulation *sim) {
    ms_simulation_summary *s = &sim->summary;
    for (int64_t i = 0; i < sim->n_segments; i++) {
        int64_t ns = sim->segments[i].duration_ns;
        s->step_ns += ns;
        if (sim->segments[i].phase <= MS_PHASE_LOSS) s->forward_ns += ns;
        if (sim->segments[i].phase == MS_PHASE_BACKWARD) s->backward_ns += ns;
        if (sim->segments[i].phase > MS_PHASE_BACKWARD) s->optimizer_ns += ns;
    }
}

/* After the first step, in which units are checked, unused memory is returned: so does the executor. */
static ms_status settle(ms__player *p) {
    if (p->allocator == NULL || !(p->request->flags & MS_SIMULATE_GROWING)) return MS_OK;
    ms_status status = ms__allocator_empty(p->allocator);
    if (p->request->flags & MS__SIMULATE_SETTLED) ms__allocator_close_gaps(p->allocator);
    ms__allocator_reset_peaks(p->allocator);
    return status;
}

static ms_status play_all(ms__player *p, ms_simulation *sim) {
    ms_simulation_summary *s = &sim->summary;
    int64_t steady = 0;
    ms_status status = play_setup(p, &s->start_bytes);
    s->start_reserved_bytes =
        p->allocator == NULL ? s->start_bytes : ms__allocator_get_stats(p->allocator).reserved_bytes;
    int n_steps = p->changes == NULL ? N_STEPS : N_STEPS + 1; /* results are compared in the second */
    for (int step = 0; step < n_steps && status == MS_OK && !p->is_over; step++) {
        clear_segments(sim, p->step);
        status = play_step(p, sim, step);
        ms__allocator_stats stats = {.peak_reserved_bytes = p->peak.bytes, .needed_bytes = p->peak.bytes};
        if (p->allocator != NULL) stats = ms__allocator_get_stats(p->allocator);
        steady = stats.peak_reserved_bytes;
        s->reserved_bytes = ms__max(s->reserved_bytes, steady);
        s->needed_bytes = ms__max(s->needed_bytes, stats.needed_bytes);
        if (step > 0 || status != MS_OK) continue;
        s->first_peak_bytes = p->peak.bytes;
        s->first_reserved_bytes = s->reserved_bytes;
        status = settle(p);
    }
    s->needed_bytes = ms__max(s->needed_bytes, steady);
    s->steady_peak_bytes = p->peak.bytes;
    s->idle_bytes = p->allocated;
    s->peak_unit = sim->n_segments > 0 ? p->step->segments[p->peak.segment].unit : -1;
    s->peak_phase = sim->n_segments > 0 ? (int32_t)p->step->segments[p->peak.segment].phase : 0;
    s->n_ops = p->n_ops;
    int64_t known = 0;
    for (int c = 0; c < MS_N_CATEGORIES; c++) known += s->parts[c] = p->peak.parts[c];
    s->unused_bytes = p->peak.bytes - known;
    s->host_bytes = ms__changes_host_bytes(p);
    s->wait_ns = p->now.wait_ns;
    s->host_ns = p->now.host_ns;
    s->device_ns = p->now.device_ns;
    sum_times(sim);
    return status;
}

static ms_status check_actions(const ms_simulation_request *request, const ms__step *step) {
    if (request->actions == NULL) return MS_OK;
    if (request->n_actions != (int64_t)step->n_units)
        return ms__fail(MS_E_MISMATCH, "ms_simulation_create: %lld actions for %u layers",
                        (long long)request->n_actions, step->n_units);
    for (int64_t i = 0; i < request->n_actions; i++) {
        if (request->actions[i] < 0 || request->actions[i] >= MS_N_ACTIONS)
            return ms__fail(MS_E_INVALID, "ms_simulation_create: action %d is unknown", (int)request->actions[i]);
        if (request->actions[i] != MS_ACTION_KEEP && !step->has_recomputed)
            return ms__fail(MS_E_INVALID, "this profile has no recomputed trace");
    }
    return MS_OK;
}

ms_status ms__simulation_read(const ms_simulation_request *theirs, ms_simulation_request *request,
                              ms__device_copy *device) {
    ms_status status = ms__struct_read(MS__STRUCT(ms_simulation_request), theirs, request);
    if (status == MS_OK) status = ms__device_read(request->device, device);
    if (status != MS_OK) return status;
    request->device = &device->device;
    if (request->profile == NULL) return ms__fail(MS_E_INVALID, "ms_simulation_create: the profile is NULL");
    if (request->limit_bytes < 0 || request->prefetch_depth < 0 || request->prefetch_depth > MS__MAX_PREFETCH ||
        (request->flags & ~MS__SIMULATE_ALL) != 0 || (request->model_options & ~(uint32_t)MS_MODEL_ALL) != 0)
        return ms__fail(MS_E_INVALID, "ms_simulation_create: a field of the request is out of range");
    if (!ms__size_in_range(request->spacer_bytes))
        return ms__fail(MS_E_INVALID, "ms_simulation_create: spacer_bytes is out of range");
    if (request->spacer_bytes > 0 &&
        (request->spacer_unit < 0 || request->spacer_unit >= (int64_t)request->profile->step->n_units))
        return ms__fail(MS_E_INVALID, "ms_simulation_create: there is no layer %lld for the spacer",
                        (long long)request->spacer_unit);
    status = check_actions(request, request->profile->step);
    if (status == MS_OK) request->flags = ms__step_flags(request->flags, ms__is_changed(request));
    return status;
}

ms_status ms_simulation_request_init(ms_simulation_request *request, const ms_profile *profile,
                                     const ms_device *device) {
    ms__device_copy copy;
    ms_status status = ms__device_read(device, &copy);
    if (status != MS_OK) return status;
    const ms_simulation_request ours = {.profile = profile, .device = device, .flags = ms__device_flags(&copy.device)};
    return ms__struct_write(MS__STRUCT(ms_simulation_request), &ours, request);
}

ms_status ms__sim_basis_make(ms__arena *arena, const ms__step *step, const ms_rates *rates, ms__sim_basis *out) {
    ms_status status = ms__order_make(arena, step, &out->order);
    if (status == MS_OK) status = ms__changes_make(arena, step, &out->changes);
    return status == MS_OK ? ms__recompute_costs_make(arena, step, rates, &out->changes, &out->costs) : status;
}

bool ms__is_steady(const ms_simulation_segment *segment) {
    return segment->phase != MS_PHASE_SETUP && segment->phase != MS_PHASE_OPTIMIZER_FIRST;
}

ms_status ms__simulate(const ms_simulation_request *request, const ms__sim_basis *basis, int64_t most_bytes,
                       ms_simulation **out) {
    ms__player p = {.request = request, .step = request->profile->step, .most_bytes = most_bytes};
    ms__arena arena = {0};
    ms_status status = MS_OK;
    ms_simulation *sim = calloc(1, sizeof *sim);
    if (sim == NULL) return ms__fail_memory(sizeof *sim);
    sim->n_segments = p.step->n_segments;
    sim->n_units = p.step->n_units;
    sim->segments = calloc((size_t)sim->n_segments + 1, sizeof *sim->segments);
    if (sim->segments == NULL) status = ms__fail_memory((size_t)sim->n_segments * sizeof *sim->segments);
    if (status == MS_OK && ms__has_blocks(request->device, request->flags))
        status = ms__allocator_create(request->limit_bytes, &p.allocator);
    if (status == MS_OK) status = open_player(&p, &arena);
    if (status == MS_OK) status = ms__changes_open(&p, &arena, basis);
    if (status == MS_OK) status = ms__schedule_copy(&sim->arena, &p.schedule, p.step->n_units, &sim->schedule);
    if (status == MS_OK) status = play_all(&p, sim);
    if (status == MS_OK) status = ms__apply_actions(request, basis, sim);
    ms__allocator_destroy(p.allocator);
    ms__arena_free(&arena);
    if (status != MS_OK) {
        ms_simulation_destroy(sim);
        return status;
    }
    *out = sim;
    return MS_OK;
}

ms_status ms_simulation_create(const ms_simulation_request *theirs, ms_simulation **out) {
    ms_simulation_request request;
    ms__device_copy device;
    ms_status status = ms__simulation_read(theirs, &request, &device);
    if (status != MS_OK) return status;
    if (out == NULL) return ms__fail(MS_E_INVALID, "ms_simulation_create: out is NULL");
    return ms__simulate(&request, NULL, INT64_MAX, out);
}

void ms_simulation_destroy(ms_simulation *sim) {
    if (sim == NULL) return;
    ms__arena_free(&sim->arena);
    free(sim->segments);
    free(sim);
}

ms_status ms_simulation_get_summary(const ms_simulation *sim, ms_simulation_summary *out) {
    if (sim == NULL) return ms__fail(MS_E_INVALID, "ms_simulation_get_summary: the simulation is NULL");
    return ms__struct_write(MS__STRUCT(ms_simulation_summary), &sim->summary, out);
}

int64_t ms_simulation_count_segments(const ms_simulation *sim) { return sim == NULL ? 0 : sim->n_segments; }

ms_status ms_simulation_get_segment(const ms_simulation *sim, int64_t index, ms_simulation_segment *out) {
    if (sim == NULL || index < 0 || index >= sim->n_segments)
        return ms__fail(MS_E_INVALID, "ms_simulation_get_segment: the simulation is NULL or the index out of range");
    return ms__struct_write(MS__STRUCT(ms_simulation_segment), &sim->segments[index], out);
}

ms_status ms_simulation_get_schedule(const ms_simulation *sim, int64_t unit, int64_t *out_leaves_after,
                                     int64_t *out_fetched_before) {
    if (sim == NULL || unit < 0 || unit >= sim->n_units || out_leaves_after == NULL || out_fetched_before == NULL)
        return ms__fail(MS_E_INVALID, "ms_simulation_get_schedule: an argument is NULL or the unit out of range");
    *out_leaves_after = sim->schedule.leaving == NULL ? 0 : sim->schedule.leaving[unit];
    *out_fetched_before = sim->schedule.ahead == NULL ? 0 : sim->schedule.ahead[unit];
    return MS_OK;
}
