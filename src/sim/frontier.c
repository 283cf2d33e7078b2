/* frontier.c - the ways between keeping a unit and recomputing it, and what each would save (recompute_cost.h). */
#include "../profile/profile.h"
#include "recompute_cost.h"
#include "roofline.h"

static ms_frontier_point point_of(const ms__recompute_cost *cost, uint32_t keeps) {
    int64_t ns = ms__recompute_ns(cost, keeps);
    return (ms_frontier_point){.keeps = keeps,
                               .held_bytes = ms__recompute_held(cost, keeps),
                               .recompute_ns = ns,
                               .spared_ns = ms__recompute_ns(cost, 0) - ns};
}

static bool is_better(const ms_frontier_point *a, const ms_frontier_point *b) {
    if (a->held_bytes != b->held_bytes) return a->held_bytes < b->held_bytes;
    return a->recompute_ns < b->recompute_ns;
}

/* In the order of their bytes, only those that are faster than all before. */
static int64_t fill_points(const ms__recompute_cost *cost, ms_frontier_point *out) {
    static const uint32_t choices[MS_FRONTIER_MAX_POINTS] = {0, MS_KEEP_ATTENTION, MS_KEEP_PRODUCTS,
                                                             MS_KEEP_ATTENTION | MS_KEEP_PRODUCTS, MS_KEEP_ALL};
    int64_t n = 0;
    for (int64_t i = 0; i < MS_FRONTIER_MAX_POINTS; i++) {
        ms_frontier_point point = point_of(cost, choices[i]);
        int64_t at = i;
        for (; at > 0 && is_better(&point, &out[at - 1]); at--) out[at] = out[at - 1];
        out[at] = point;
    }
    for (int64_t i = 0; i < MS_FRONTIER_MAX_POINTS; i++)
        if (n == 0 || out[i].recompute_ns < out[n - 1].recompute_ns) out[n++] = out[i];
    return n;
}

static ms_status check_frontier(const ms_profile *profile, int64_t unit) {
    if (profile == NULL) return ms__fail(MS_E_INVALID, "ms_profile_frontier: the profile is NULL");
    if (!profile->step->has_recomputed) return ms__fail(MS_E_INVALID, "this profile has no recomputed trace");
    if (unit < 0 || unit >= (int64_t)profile->step->n_units)
        return ms__fail(MS_E_INVALID, "there is no layer %lld", (long long)unit);
    return MS_OK;
}

ms_status ms_profile_frontier(const ms_profile *profile, int64_t unit, const ms_rates *rates, ms_frontier_point *out,
                              int64_t capacity, int64_t *out_n) {
    ms_frontier_point points[MS_FRONTIER_MAX_POINTS];
    ms_rates ours;
    if (out == NULL || out_n == NULL) return ms__fail(MS_E_INVALID, "ms_profile_frontier: out or out_n is NULL");
    ms_status status = ms__rates_read(rates, &ours);
    if (status == MS_OK) status = check_frontier(profile, unit);
    if (status != MS_OK) return status;
    ms__arena arena = {0};
    ms__recompute_cost *costs = NULL;
    ms__changes changes;
    status = ms__changes_make(&arena, profile->step, &changes);
    if (status == MS_OK) status = ms__recompute_costs_make(&arena, profile->step, &ours, &changes, &costs);
    int64_t n = status == MS_OK ? fill_points(&costs[unit], points) : 0;
    ms__arena_free(&arena);
    if (status != MS_OK) return status;
    if (n > capacity)
        return ms__fail(MS_E_LIMIT, "the frontier has %lld points, but capacity is %lld", (long long)n,
                        (long long)capacity);
    for (int64_t i = 0; i < n; i++) out[i] = points[i];
    *out_n = n;
    return MS_OK;
}
