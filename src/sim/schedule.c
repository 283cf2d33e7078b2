/* schedule.c - when the tensors of offloaded units leave the device, and when they come back (schedule.h). */
#include "schedule.h"

#include <string.h>

#include "../common/math.h"
#include "actions.h"
#include "roofline.h"
#include "sim_link.h"

#define LATE_PARTS 8 /* copies are expected to take one part in 8 longer than the rate says */

typedef struct planner {
    const ms__schedule_request *request;
    const ms__changes *changes;        /* the request's */
    int64_t *forward_ns, *backward_ns; /* visit -> when its forward ends, and when its backward begins */
    int64_t *leaves_ns, *starts_ns;    /* visit -> when its copies to the host are done, and when those back begin */
    ms__schedule *out;
} planner;

int64_t ms__visit_copy_bytes(const ms__visit *visit, int32_t action) {
    const ms__action *row = &ms__actions[action];
    if (!row->needs_link) return 0;
    return visit->moved[row->variant].n_bytes;
}

int64_t ms__copy_ns(const ms_rates *rates, int64_t n_bytes) {
    int64_t rate = ms__min(rates->to_device_mb_per_s, rates->from_device_mb_per_s); /* hardly ever both at once */
    return rate <= 0 ? 0 : ms__min(n_bytes, MS__MAX_NS / 1000) * 1000 / rate;
}

static int32_t action_of(const planner *p, int32_t unit) {
    return p->request->actions == NULL || unit < 0 ? MS_ACTION_KEEP : p->request->actions[unit];
}

static int64_t copy_ns(const planner *p, int32_t v) {
    const ms__visit *visit = &p->changes->visits[v];
    int64_t ns = ms__copy_ns(p->request->rates, ms__visit_copy_bytes(visit, action_of(p, visit->unit)));
    return ms__add_ns(ns, ns / LATE_PARTS);
}

static bool is_offloaded(const planner *p, int32_t v) {
    const ms__visit *visit = &p->changes->visits[v];
    int32_t action = action_of(p, visit->unit);
    return ms__visit_copy_bytes(visit, action) > 0 && !ms__actions[action].waits;
}

/* ---- The step without copies ---- */

/* The host queues operations; on a GPU, the device does each when it is queued and the one before is done. */
typedef struct clocks {
    int64_t host_ns, device_ns;
} clocks;

static int64_t time_of(const clocks *now) { return ms__max(now->host_ns, now->device_ns); }

static void pass_segment(const planner *p, const ms__segment *s, clocks *now) {
    const ms__action *action = &ms__actions[action_of(p, s->unit)];
    int variant = ms__step_played(p->request->step, action->variant);
    for (uint32_t e = s->first[variant]; e < s->first[variant] + s->n[variant]; e++) {
        if (p->request->step->events[e].kind != MS__OPERATION) continue;
        const ms__step_cost *cost = &p->request->step->costs[p->request->step->events[e].index];
        bool is_spared = ms__is_spared(p->changes->spared[e], action->keeps);
        int64_t busy_ns = is_spared ? 0 : ms__op_busy_ns(p->request->rates, p->request->step, cost);
        now->host_ns = ms__add_ns(now->host_ns, ms__op_host_ns(p->request->rates, cost, s->phase));
        if (busy_ns > 0) now->device_ns = ms__add_ns(time_of(now), busy_ns);
        if (p->request->rates->capability == 0) now->host_ns = time_of(now);
    }
}

static void find_times(planner *p) {
    clocks now = {0};
    for (uint32_t i = 0; i < p->request->step->n_segments; i++) {
        const ms__segment *s = &p->request->step->segments[i];
        int32_t v = p->changes->visit_of[i];
        if (s->phase < MS_PHASE_FORWARD || s->phase > MS_PHASE_BACKWARD) continue;
        if (v >= 0 && p->changes->visits[v].backward == (int32_t)i) p->backward_ns[v] = time_of(&now);
        pass_segment(p, s, &now);
        if (v >= 0 && p->changes->visits[v].forward == (int32_t)i) p->forward_ns[v] = time_of(&now);
    }
}

/* ---- The link ---- */

/* The first unit after which nothing has to be waited for. What would be late for all of them leaves after the last
 * one. */
static int32_t leaving_of(const planner *p, int32_t v) {
    int32_t last = p->changes->n_visits - 1, at = v + MS_OFFLOAD_LEAVING;
    while (at < last && p->forward_ns[at] < p->leaves_ns[v]) at++;
    return at - v;
}

/* The last unit whose backward begins early enough, else the first one; 0: backward has none before. */
static int32_t ahead_of(const planner *p, int32_t v) {
    int32_t best = v;
    for (int32_t at = v + 1; at < p->changes->n_visits; at++) {
        if (p->changes->visits[at].backward < 0) continue;
        best = at;
        if (p->backward_ns[at] <= p->starts_ns[v] && at - v >= p->request->prefetch_depth) break;
    }
    return best - v;
}

static void find_copies(planner *p) {
    int64_t done = 0, needed = INT64_MAX;
    for (int32_t v = 0; v < p->changes->n_visits; v++) {
        if (!is_offloaded(p, v)) continue;
        done = p->leaves_ns[v] = ms__add_ns(ms__max(done, p->forward_ns[v]), copy_ns(p, v));
        needed = p->starts_ns[v] = ms__max(ms__min(needed, p->backward_ns[v]) - copy_ns(p, v), -MS__MAX_NS);
    }
}

/* A unit that runs more than once has one schedule for all of its visits. */
static void write_schedule(planner *p) {
    for (int32_t v = 0; v < p->changes->n_visits; v++) {
        int32_t unit = p->changes->visits[v].unit;
        if (!is_offloaded(p, v)) continue;
        p->out->leaving[unit] = (int32_t)ms__max(p->out->leaving[unit], leaving_of(p, v));
        p->out->ahead[unit] = (int32_t)ms__max(p->out->ahead[unit], ahead_of(p, v));
    }
}

ms_status ms__schedule_make(ms__arena *arena, const ms__schedule_request *request, ms__schedule *out) {
    ms__arena scratch = {0};
    const ms__step *step = request->step;
    size_t n = (size_t)request->changes->n_visits;
    planner p = {.request = request, .changes = request->changes, .out = out};
    ms_status status =
        ms__arena_arrays(arena, MS__ARRAY(out->leaving, step->n_units), MS__ARRAY(out->ahead, step->n_units));
    if (status == MS_OK)
        status = ms__arena_arrays(&scratch, MS__ARRAY(p.forward_ns, n), MS__ARRAY(p.backward_ns, n),
                                  MS__ARRAY(p.leaves_ns, n), MS__ARRAY(p.starts_ns, n));
    if (status == MS_OK) {
        find_times(&p);
        find_copies(&p);
        write_schedule(&p);
    }
    ms__arena_free(&scratch);
    return status;
}

ms_status ms__schedule_copy(ms__arena *arena, const ms__schedule *schedule, uint32_t n_units, ms__schedule *out) {
    if (schedule->leaving == NULL) return MS_OK;
    ms_status status = ms__arena_arrays(arena, MS__ARRAY(out->leaving, n_units), MS__ARRAY(out->ahead, n_units));
    if (status != MS_OK || n_units == 0) return status;
    memcpy(out->leaving, schedule->leaving, n_units * sizeof *out->leaving);
    memcpy(out->ahead, schedule->ahead, n_units * sizeof *out->ahead);
    return MS_OK;
}
