/* plan_prop.c - laws of plans, on random models.
 *
 * The search counts in cells of a grid and rounds every size up. Its two ends are exact to the byte: everything kept,
 * and everything recomputed. Between them what holds, holds in cells; in bytes a sum of up to n + 1 sizes (all units,
 * and what is kept outside them) may be off by less than n + 1 cells. Models whose sizes are multiples of the cell have
 * no rounding: for them every law holds in bytes, and plans are compared with the best of all 2^n.
 */
#include "runner.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "random.h"

#define MAX_UNITS 200
#define MAX_SMALL 12 /* 2^12 plans are tried one by one */
#define MIN_GRID ((int64_t)512)
#define MAX_CELLS 8192

typedef struct profile {
    ms_unit units[MAX_UNITS];
    char names[MAX_UNITS][16];
    ms_plan_request request;
    int64_t grid; /* of the search for this model */
} profile;

/* One plan as a law sees it. */
typedef struct outcome {
    bool fits;
    ms_plan_summary summary;
    int64_t rounded_peak; /* the peak as the search sees it, every size rounded up to whole cells */
    int64_t cost;
    int64_t smallest; /* where it does not fit: the peak that the error names */
} outcome;

static int64_t round_up(int64_t bytes, int64_t cell) { return (bytes + cell - 1) / cell * cell; }

static int64_t total_saved(const profile *p) {
    int64_t total = p->request.rest_bytes;
    for (int64_t i = 0; i < p->request.n_units; i++) total += p->units[i].saved_bytes;
    return total;
}

static int64_t baseline(const profile *p) { return p->request.state_bytes + total_saved(p); }

static void random_unit(ms_unit *unit, int64_t max_saved, int64_t step) {
    static const int64_t rows[] = {0, 1, 32, 2048};
    unit->saved_bytes = (one_in(4) ? up_to(max_saved) : up_to(max_saved / 8 + 1)) * step;
    unit->boundary_bytes = one_in(8) ? unit->saved_bytes : up_to(unit->saved_bytes / step / (one_in(2) ? 1 : 8)) * step;
    unit->param_bytes = one_in(3) ? 0 : up_to(1 << 20);
    unit->n_rows = rows[up_to(3)];
    unit->flags = (one_in(8) ? 0 : (uint32_t)MS_UNIT_ELIGIBLE) | (one_in(16) ? 0 : (uint32_t)MS_UNIT_RUN);
}

/* The peak of the plan that recomputes these units, and what that costs, by the definition in search.c. With a cell of
 * one byte the peak is exact, with the search's own it is as the search sees it. */
static void try_plan(const profile *p, const bool *recomputed, int64_t cell, int64_t *out_peak, int64_t *out_cost) {
    int64_t kept = 0, peak = 0, cost = 0;
    for (int64_t i = 0; i < p->request.n_units; i++) {
        const ms_unit *unit = &p->units[i];
        int64_t whole = round_up(unit->saved_bytes, cell);
        if (kept + whole > peak) peak = kept + whole;
        kept += recomputed[i] ? round_up(unit->boundary_bytes, cell) : whole;
        cost += recomputed[i] ? ms__unit_cost(unit) : 0;
    }
    kept += round_up(p->request.rest_bytes, cell);
    *out_peak = p->request.state_bytes + (kept > peak ? kept : peak);
    *out_cost = cost;
}

/* Recomputing never raises a peak, so the least is that of all that can be. */
static int64_t leanest(const profile *p) {
    bool recomputed[MAX_UNITS];
    int64_t peak, cost;
    for (int64_t i = 0; i < p->request.n_units; i++) recomputed[i] = ms__unit_can_recompute(&p->units[i]) != 0;
    try_plan(p, recomputed, 1, &peak, &cost);
    return peak;
}

/* Mostly between the least and the most that makes a difference. */
static void random_budget(profile *p) {
    int64_t least = leanest(p), most = baseline(p);
    if (one_in(16))
        p->request.budget_bytes = 1 + up_to(least);
    else if (one_in(16))
        p->request.budget_bytes = 1 + most + up_to(8 * most);
    else
        p->request.budget_bytes = least + up_to(most - least) + (least == 0);
}

/* A model of n units whose sizes are multiples of `step`. */
static void random_model(profile *p, int64_t n, int64_t max_saved, int64_t step) {
    static const uint32_t flags[] = {0, MS_PLAN_FORCE, MS_PLAN_FASTEST, MS_PLAN_FASTEST};
    memset(p, 0, sizeof *p);
    int64_t n_kinds = one_in(3) ? 1 + up_to(2) : n; /* equal layers, as models have them: plans of equal cost */
    for (int64_t i = 0; i < n; i++) {
        if (i < n_kinds)
            random_unit(&p->units[i], max_saved, step);
        else
            p->units[i] = p->units[up_to(n_kinds - 1)];
        (void)snprintf(p->names[i], sizeof p->names[i], "u%d", (int)i);
        p->units[i].name = p->names[i];
    }
    p->request = (ms_plan_request){.struct_bytes = sizeof p->request,
                                   .units = p->units,
                                   .n_units = n,
                                   .state_bytes = up_to(1 << 24),
                                   .rest_bytes = one_in(3) ? 0 : up_to(max_saved) * step,
                                   .slowdown_ppm = one_in(4) ? -1 : up_to(350000),
                                   .flags = flags[up_to(3)]};
    p->grid = MIN_GRID;
    while (total_saved(p) / p->grid > MAX_CELLS) p->grid *= 2;
    random_budget(p);
}

/* Few units with sizes on the grid: mostly a small one of the least cell, now and then the full grid. */
static void small_on_grid(profile *p) {
    int64_t n = up_to(MAX_SMALL);
    if (!one_in(200)) {
        random_model(p, n, 1 + up_to(60), MIN_GRID);
        return;
    }
    int64_t step = MIN_GRID << up_to(20);
    do {
        random_model(p, n, MAX_CELLS / 2, step);
    } while (p->grid > step); /* a larger cell would not divide the sizes */
}

/* Sizes of any value; some with many units, few with gigabytes: those take the search longest. */
static void any_model(profile *p) {
    if (one_in(200))
        random_model(p, up_to(40), (int64_t)1 << (20 + up_to(12)), 1);
    else if (one_in(24))
        random_model(p, up_to(MAX_UNITS), 1 << (6 + up_to(9)), 1);
    else
        random_model(p, up_to(MAX_SMALL), 1 << (6 + up_to(14)), 1);
}

static void measure(const profile *p, const ms_plan *plan, outcome *out) {
    bool recomputed[MAX_UNITS];
    int64_t exact_peak;
    for (int64_t i = 0; i < p->request.n_units; i++) {
        ms_plan_entry entry = {.struct_bytes = sizeof entry};
        CHECK_STATUS(ms_plan_get_entry(plan, i, &entry), MS_OK);
        recomputed[i] = entry.action == MS_ACTION_RECOMPUTE;
        LAW(!recomputed[i] || ms__unit_can_recompute(&p->units[i]));
    }
    try_plan(p, recomputed, 1, &exact_peak, &out->cost);
    LAW(out->summary.predicted_peak_bytes == exact_peak);
    try_plan(p, recomputed, p->grid, &out->rounded_peak, &out->cost);
}

static outcome solve(const profile *p) {
    outcome out = {.summary.struct_bytes = sizeof out.summary};
    ms_plan *plan = NULL;
    ms_status status = ms_plan_create(&p->request, &plan);
    out.fits = status == MS_OK;
    if (!out.fits) {
        CHECK_STATUS(status, MS_E_BUDGET);
        out.smallest = ms_error_value();
        return out;
    }
    CHECK_STATUS(ms_plan_get_summary(plan, &out.summary), MS_OK);
    measure(p, plan, &out);
    ms_plan_destroy(plan);
    return out;
}

/* A plan stays within its budget, and there is one for every budget that recomputing everything fits into. Where there
 * is none, the error names the smallest budget that is enough. */
TEST(a_plan_stays_within_its_budget) {
    profile p;
    for (int64_t i = 0; i < n_cases(); i++) {
        start_case(i);
        any_model(&p);
        outcome out = solve(&p);
        if (!out.fits) {
            LAW(out.smallest > p.request.budget_bytes && out.smallest == leanest(&p));
            p.request.budget_bytes = out.smallest;
            out = solve(&p);
            LAW(out.fits);
        }
        LAW(out.summary.predicted_peak_bytes <= p.request.budget_bytes);
        LAW(out.summary.predicted_peak_bytes <= out.summary.baseline_peak_bytes);
        LAW(out.summary.baseline_peak_bytes == baseline(&p));
    }
}

/* The fastest plan does nothing exactly where doing nothing fits. */
TEST(the_fastest_plan_keeps_all_that_fits) {
    profile p;
    for (int64_t i = 0; i < n_cases(); i++) {
        start_case(i);
        any_model(&p);
        p.request.flags = MS_PLAN_FASTEST;
        p.request.budget_bytes = baseline(&p) + (baseline(&p) == 0);
        LAW(solve(&p).summary.n_recomputed == 0);
        if (p.request.budget_bytes <= leanest(&p)) continue;
        p.request.budget_bytes--;
        LAW(solve(&p).summary.n_recomputed > 0);
    }
}

/* Two budgets for one model, the smaller first; false if the smaller has no plan. */
static bool solve_two(profile *p, outcome *small, outcome *large) {
    int64_t first = p->request.budget_bytes;
    random_budget(p);
    int64_t second = p->request.budget_bytes;
    p->request.budget_bytes = first < second ? first : second;
    *small = solve(p);
    p->request.budget_bytes = first < second ? second : first;
    *large = solve(p);
    LAW(large->fits || !small->fits);
    return small->fits;
}

TEST(a_larger_budget_is_never_slower) {
    profile p;
    outcome small, large;
    for (int64_t i = 0; i < n_cases(); i++) {
        start_case(i);
        any_model(&p);
        if (!solve_two(&p, &small, &large)) continue;
        LAW(large.cost <= small.cost);
        LAW(large.summary.slowdown_ppm <= small.summary.slowdown_ppm);
    }
}

/* Exact in cells. In bytes it is no law: the plan for the smaller budget has fewer cells, but if less of it is rounding
 * it may have more bytes. How often that happens is printed. */
TEST(a_smaller_budget_has_never_a_higher_peak) {
    profile p;
    outcome small, large;
    int64_t n_pairs = 0, n_higher = 0, most = 0;
    for (int64_t i = 0; i < n_cases(); i++) {
        start_case(i);
        any_model(&p);
        if (!solve_two(&p, &small, &large)) continue;
        LAW(small.rounded_peak <= large.rounded_peak);
        int64_t excess = small.summary.predicted_peak_bytes - large.summary.predicted_peak_bytes;
        LAW(excess < (p.request.n_units + 1) * p.grid);
        n_pairs++;
        if (excess <= 0) continue;
        n_higher++;
        int64_t percent = excess * 100 / p.grid; /* of a cell */
        if (percent > most) most = percent;
    }
    printf("note: in %lld of %lld pairs the smaller budget has a higher peak in bytes, by at most %lld %% of a cell\n",
           (long long)n_higher, (long long)n_pairs, (long long)most);
}

TEST(on_the_grid_that_holds_in_bytes) {
    profile p;
    outcome small, large;
    for (int64_t i = 0; i < n_cases(); i++) {
        start_case(i);
        small_on_grid(&p);
        if (!solve_two(&p, &small, &large)) continue;
        LAW(small.summary.predicted_peak_bytes <= large.summary.predicted_peak_bytes);
    }
}

static char *json_of(const profile *p) {
    ms_plan *plan = NULL;
    char *text = NULL;
    if (ms_plan_create(&p->request, &plan) != MS_OK) return NULL;
    CHECK_STATUS(ms_plan_to_json(plan, &text), MS_OK);
    ms_plan_destroy(plan);
    return text;
}

/* The same request gives the same plan, wherever in memory it stands, and the plan survives its file. */
TEST(the_same_request_gives_the_same_plan) {
    static profile first, second;
    for (int64_t i = 0; i < n_cases(); i++) {
        start_case(i);
        any_model(&first);
        second = first;
        second.request.units = second.units;
        for (int64_t k = 0; k < second.request.n_units; k++) second.units[k].name = second.names[k];
        char *a = json_of(&first), *b = json_of(&second), *again = NULL;
        LAW((a == NULL) == (b == NULL));
        if (a == NULL) continue;
        ms_plan *back = NULL;
        LAW(strcmp(a, b) == 0);
        CHECK_STATUS(ms_plan_from_json(a, strlen(a), &back), MS_OK);
        CHECK_STATUS(ms_plan_to_json(back, &again), MS_OK);
        LAW(strcmp(a, again) == 0);
        ms_plan_destroy(back);
        ms_free(a);
        ms_free(b);
        ms_free(again);
    }
}

/* All plans of a small model. */
typedef struct all_plans {
    int64_t n;
    int64_t peak[1 << MAX_SMALL]; /* bytes, with the state */
    int64_t cost[1 << MAX_SMALL];
} all_plans;

static void try_all_plans(const profile *p, all_plans *all) {
    all->n = 0;
    for (int mask = 0; mask < 1 << p->request.n_units; mask++) {
        bool recomputed[MAX_SMALL] = {0}, possible = true;
        for (int64_t i = 0; i < p->request.n_units; i++) {
            recomputed[i] = (mask >> i & 1) != 0;
            if (recomputed[i] && !ms__unit_can_recompute(&p->units[i])) possible = false;
        }
        if (!possible) continue;
        try_plan(p, recomputed, 1, &all->peak[all->n], &all->cost[all->n]);
        all->n++;
    }
}

/* The least peak of plans that cost at most `cost`, and the least cost of plans with at most `peak`. */
static int64_t least_peak(const all_plans *all, int64_t cost) {
    int64_t least = INT64_MAX;
    for (int64_t i = 0; i < all->n; i++)
        if (all->cost[i] <= cost && all->peak[i] < least) least = all->peak[i];
    return least;
}

static int64_t least_cost(const all_plans *all, int64_t peak) {
    int64_t least = INT64_MAX;
    for (int64_t i = 0; i < all->n; i++)
        if (all->peak[i] <= peak && all->cost[i] < least) least = all->cost[i];
    return least;
}

static int64_t allowed_cost(const profile *p) {
    int64_t forward = 0;
    if (p->request.slowdown_ppm < 0) return INT64_MAX;
    for (int64_t i = 0; i < p->request.n_units; i++) forward += ms__unit_cost(&p->units[i]);
    return forward * 3 * p->request.slowdown_ppm / 1000000;
}

static void check_optimal(const profile *p, const all_plans *all) {
    outcome out = solve(p);
    int64_t budget = p->request.budget_bytes, peak = least_peak(all, allowed_cost(p));
    bool may_skip = (p->request.flags & (MS_PLAN_FORCE | MS_PLAN_FASTEST)) == 0;
    LAW(out.summary.skipped == (may_skip && baseline(p) < budget / 4));
    if (out.summary.skipped) return;
    if ((p->request.flags & MS_PLAN_FASTEST) || peak > budget) {
        int64_t cost = least_cost(all, budget);
        LAW(out.fits == (cost != INT64_MAX));
        if (!out.fits) {
            LAW(out.smallest == least_peak(all, INT64_MAX));
            return;
        }
        peak = least_peak(all, cost);
    }
    LAW(out.fits);
    LAW(out.summary.predicted_peak_bytes == peak);
    LAW(out.cost == least_cost(all, peak));
}

TEST(on_the_grid_a_plan_is_the_best_of_all) {
    static all_plans all;
    profile p;
    for (int64_t i = 0; i < n_cases(); i++) {
        start_case(i);
        small_on_grid(&p);
        try_all_plans(&p, &all);
        check_optimal(&p, &all);
    }
}

/* Off the grid, a plan is no slower than the best for a budget that is n + 1 cells smaller. */
TEST(off_the_grid_a_plan_is_nearly_the_best) {
    static all_plans all;
    profile p;
    for (int64_t i = 0; i < n_cases(); i++) {
        start_case(i);
        random_model(&p, up_to(MAX_SMALL), 1 << (6 + up_to(14)), 1);
        p.request.flags = MS_PLAN_FASTEST;
        try_all_plans(&p, &all);
        outcome out = solve(&p);
        int64_t margin = (p.request.n_units + 1) * p.grid, budget = p.request.budget_bytes;
        LAW(out.fits == (least_peak(&all, INT64_MAX) <= budget));
        if (!out.fits) continue;
        LAW(out.cost >= least_cost(&all, budget));
        LAW(out.cost <= least_cost(&all, budget - margin));
    }
}

SUITE(plan_prop, CASE(a_plan_stays_within_its_budget), CASE(the_fastest_plan_keeps_all_that_fits),
      CASE(a_larger_budget_is_never_slower), CASE(a_smaller_budget_has_never_a_higher_peak),
      CASE(on_the_grid_that_holds_in_bytes), CASE(the_same_request_gives_the_same_plan),
      CASE(on_the_grid_a_plan_is_the_best_of_all), CASE(off_the_grid_a_plan_is_nearly_the_best));

int main(int argc, char **argv) {
    static const test_suite *const suites[] = {&plan_prop_suite};
    return test_main(suites, 1, 0, argc, argv);
}
