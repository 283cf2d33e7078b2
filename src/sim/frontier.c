/* frontier.c - what a unit could keep of its forward, and the recomputation that this would save.
 *
 * A recomputation is what the lean variant of a unit does beyond the kept one, which is told by subtraction: plain
 * operations are in both. It ends behind the last tensor that backward needs, so the outputs of all its operations are
 * needed by backward or by what it computes later. Operations are in three groups; a point keeps the outputs of some
 * of them and runs the others again, in their order, as torch's selective checkpointing does.
 */
#include "../profile/profile.h"
#include "roofline.h"

enum group { ATTENTION, PRODUCT, REST, N_GROUPS };

/* What operations of a group take, and the bytes of their outputs. */
typedef struct sums {
    int64_t host_ns, busy_ns, output_bytes;
} sums;

typedef struct ledger {
    const ms__step *step;
    const ms_rates *rates;
    sums variants[MS__N_VARIANTS][N_GROUPS]; /* of the unit, in all phases */
    sums again[N_GROUPS];                    /* what the lean variant does beyond the kept one */
    int64_t saved_bytes;                     /* what the kept variant holds until backward and the lean one does not */
} ledger;

static int64_t size_of(const ms__step *step, uint32_t key) { return step->numbers[step->keys[key].size]; }

static enum group group_of(const ms__step *step, const ms__step_cost *cost) {
    if (cost->flags & MS__OP_ATTENTION) return ATTENTION;
    return cost->flags & MS__OP_MATRIX || step->numbers[cost->flops] > 0 ? PRODUCT : REST;
}

/* What stands behind an operation up to the next one is what it allocates. */
static void count_segment(ledger *l, const ms__segment *s, int variant) {
    sums *group = &l->variants[variant][REST];
    for (uint32_t i = s->first[variant]; i < s->first[variant] + s->n[variant]; i++) {
        const ms__step_event *event = &l->step->events[i];
        if (event->kind == MS__ALLOCATE) group->output_bytes += size_of(l->step, event->index);
        if (event->kind != MS__OPERATION) continue;
        const ms__step_cost *cost = &l->step->costs[event->index];
        group = &l->variants[variant][group_of(l->step, cost)];
        group->host_ns = ms__later(group->host_ns, l->rates->dispatch_ns);
        group->busy_ns = ms__later(group->busy_ns, ms__op_busy_ns(l->rates, l->step, cost));
    }
}

static int64_t beyond(int64_t lean, int64_t kept) { return lean > kept ? lean - kept : 0; }

static void count_unit(ledger *l, int64_t unit) {
    for (uint32_t i = 0; i < l->step->n_segments; i++)
        for (int v = 0; v < MS__N_VARIANTS && l->step->segments[i].unit == unit; v++)
            count_segment(l, &l->step->segments[i], v);
    for (int g = 0; g < N_GROUPS; g++) {
        const sums *lean = &l->variants[MS__LEAN][g], *kept = &l->variants[MS__KEPT][g];
        l->again[g] = (sums){.host_ns = beyond(lean->host_ns, kept->host_ns),
                             .busy_ns = beyond(lean->busy_ns, kept->busy_ns),
                             .output_bytes = beyond(lean->output_bytes, kept->output_bytes)};
    }
}

/* ---- What the kept variant saves ---- */

enum { MADE = 1, HELD_KEPT = 2, HELD_LEAN = 4 };

static void mark_segment(const ms__step *step, const ms__segment *s, int variant, int64_t unit, uint8_t *marks) {
    bool makes = variant == MS__KEPT && s->unit == unit && (s->phase == MS_PHASE_FORWARD || s->phase == MS_PHASE_LOSS);
    bool holds = s->phase == MS_PHASE_BACKWARD;
    for (uint32_t i = s->first[variant]; i < s->first[variant] + s->n[variant]; i++) {
        const ms__step_event *event = &step->events[i];
        if (event->kind == MS__ALLOCATE && makes) marks[event->index] |= MADE;
        if (event->kind == MS__RELEASE && holds)
            marks[event->index] |= (uint8_t)(variant == MS__KEPT ? HELD_KEPT : HELD_LEAN);
    }
}

static ms_status count_saved(ledger *l, int64_t unit) {
    const ms__step *step = l->step;
    ms__arena arena = {0};
    uint8_t *marks = ms__arena_array(&arena, step->n_keys, sizeof *marks);
    if (marks == NULL) return MS_E_NO_MEMORY;
    for (uint32_t i = 0; i < step->n_segments; i++)
        for (int v = 0; v < MS__N_VARIANTS; v++) mark_segment(step, &step->segments[i], v, unit, marks);
    for (uint32_t k = 0; k < step->n_keys; k++)
        if (marks[k] == (MADE | HELD_KEPT) && step->keys[k].category == MS_CATEGORY_ACTIVATION)
            l->saved_bytes += size_of(step, k);
    ms__arena_free(&arena);
    return MS_OK;
}

/* ---- Points ---- */

/* The time of what is not kept: on a GPU the host queues while the device computes. */
static int64_t time_without(const ledger *l, uint32_t keeps) {
    int64_t host = 0, busy = 0;
    for (uint32_t g = 0; g < N_GROUPS; g++) {
        if (keeps & 1U << g) continue;
        host = ms__later(host, l->again[g].host_ns);
        busy = ms__later(busy, l->again[g].busy_ns);
    }
    if (l->rates->capability == 0) return ms__later(host, busy);
    return host > busy ? host : busy;
}

static ms_frontier_point point_of(const ledger *l, uint32_t keeps) {
    ms_frontier_point point = {.keeps = keeps, .recompute_ns = time_without(l, keeps)};
    for (uint32_t g = 0; g < N_GROUPS && keeps != MS_KEEP_ALL; g++)
        if (keeps & 1U << g) point.kept_bytes += l->again[g].output_bytes;
    if (keeps == MS_KEEP_ALL) point.kept_bytes = l->saved_bytes;
    point.saved_ns = time_without(l, 0) - point.recompute_ns;
    return point;
}

static bool is_better(const ms_frontier_point *a, const ms_frontier_point *b) {
    if (a->kept_bytes != b->kept_bytes) return a->kept_bytes < b->kept_bytes;
    return a->recompute_ns < b->recompute_ns;
}

/* In the order of their bytes, those only that save time over all before. */
static int64_t fill_points(const ledger *l, ms_frontier_point *out) {
    static const uint32_t choices[MS_FRONTIER_MAX_POINTS] = {0, MS_KEEP_ATTENTION, MS_KEEP_PRODUCTS,
                                                             MS_KEEP_ATTENTION | MS_KEEP_PRODUCTS, MS_KEEP_ALL};
    int64_t n = 0;
    for (int64_t i = 0; i < MS_FRONTIER_MAX_POINTS; i++) {
        ms_frontier_point point = point_of(l, choices[i]);
        int64_t at = i;
        for (; at > 0 && is_better(&point, &out[at - 1]); at--) out[at] = out[at - 1];
        out[at] = point;
    }
    for (int64_t i = 0; i < MS_FRONTIER_MAX_POINTS; i++)
        if (n == 0 || out[i].recompute_ns < out[n - 1].recompute_ns) out[n++] = out[i];
    return n;
}

static ms_status check_arguments(const ms_profile *profile, int64_t unit, const ms_rates *rates) {
    if (profile == NULL || rates == NULL) return ms__fail(MS_E_INVALID, "ms_profile_frontier: an argument is NULL");
    ms_status status = ms__rates_check(rates);
    if (status != MS_OK) return status;
    if (profile->step == NULL || !profile->step->has_lean)
        return ms__fail(MS_E_INVALID, "this profile does not know its units recomputed");
    if (unit < 0 || unit >= (int64_t)profile->step->n_units)
        return ms__fail(MS_E_INVALID, "there is no unit %lld", (long long)unit);
    return MS_OK;
}

ms_status ms_profile_frontier(const ms_profile *profile, int64_t unit, const ms_rates *rates, ms_frontier_point *out,
                              int64_t capacity, int64_t *out_n) {
    ms_frontier_point points[MS_FRONTIER_MAX_POINTS];
    if (out == NULL || out_n == NULL)
        return ms__fail(MS_E_INVALID, "ms_profile_frontier: there is nowhere to write to");
    ms_status status = check_arguments(profile, unit, rates);
    if (status != MS_OK) return status;
    ledger l = {.step = profile->step, .rates = rates};
    count_unit(&l, unit);
    status = count_saved(&l, unit);
    if (status != MS_OK) return status;
    int64_t n = fill_points(&l, points);
    if (n > capacity)
        return ms__fail(MS_E_LIMIT, "the frontier has %lld points, there is room for %lld", (long long)n,
                        (long long)capacity);
    for (int64_t i = 0; i < n; i++) out[i] = points[i];
    *out_n = n;
    return MS_OK;
}
