/* search.c - which units to recompute: exact, on a fixed grid of bytes.
 *
 * Units run in order. When backward reaches unit i, everything before it is still kept (whole, or its boundary where it
 * is recomputed) and unit i is there whole; at the end of forward everything is kept, with the logits beside it. So the
 * peak is the largest of these sums, and the cheapest plan under a peak P is a shortest path over (unit, bytes kept so
 * far). The grid is derived from the units, never from the budget, and sizes round up: a plan that fits on the grid
 * fits. min_cost(P) falls with P, so the least peak for a given cost is found by bisection. The two ends are exact to
 * the byte: all is kept where that fits, and no plan is refused that recomputing everything would make fit.
 */
#include <stdio.h>
#include <string.h>

#include "plan.h"

#define GRID_CELLS 8192        /* at least so many cells ... */
#define GRID_CELLS_PER_UNIT 32 /* ... and so many a unit, since each rounds up on its own */
#define GRID_MIN_BYTES 512
#define NO_PATH INT64_MAX

typedef struct search {
    const ms_plan *plan;
    int64_t n;
    int64_t grid;
    int64_t *whole;    /* per unit, in cells: kept whole */
    int64_t *boundary; /* ... recomputed; -1: may not be */
    int64_t *cost;
    int64_t total_bytes; /* when everything is kept, above the states */
    int64_t rest;        /* cells kept outside units */
    int64_t all;         /* cells when everything is kept: no peak is higher */
    int64_t *best;       /* [cell]: the cheapest way to have that much kept, NO_PATH if none */
    int64_t *next;
    unsigned char *chosen; /* [unit][cell]: 1 if the best way there recomputes the unit */
} search;

static int64_t to_cells(int64_t bytes, int64_t grid) { return bytes / grid + (bytes % grid != 0); }

static int64_t total_bytes(const ms_plan *plan) {
    int64_t total = plan->rest_bytes;
    for (int64_t i = 0; i < plan->n_choices; i++) total += plan->choices[i].unit.saved_bytes;
    return total;
}

static ms_status prepare(search *s, ms__arena *arena) {
    size_t n = (size_t)s->n;
    s->total_bytes = total_bytes(s->plan);
    s->grid = GRID_MIN_BYTES;
    int64_t cells_wanted = s->n > GRID_CELLS / GRID_CELLS_PER_UNIT ? s->n * GRID_CELLS_PER_UNIT : GRID_CELLS;
    while (s->total_bytes / s->grid > cells_wanted) s->grid *= 2;
    s->whole = ms__arena_array(arena, n, sizeof *s->whole);
    s->boundary = ms__arena_array(arena, n, sizeof *s->boundary);
    s->cost = ms__arena_array(arena, n, sizeof *s->cost);
    if (s->whole == NULL || s->boundary == NULL || s->cost == NULL) return MS_E_NO_MEMORY;
    s->rest = s->all = to_cells(s->plan->rest_bytes, s->grid);
    for (int64_t i = 0; i < s->n; i++) {
        const ms_unit *unit = &s->plan->choices[i].unit;
        s->whole[i] = to_cells(unit->saved_bytes, s->grid);
        s->boundary[i] = ms__unit_can_recompute(unit) ? to_cells(unit->boundary_bytes, s->grid) : -1;
        s->cost[i] = ms__unit_cost(unit);
        s->all += s->whole[i];
    }
    size_t cells = (size_t)s->all + 1;
    s->best = ms__arena_array(arena, cells, sizeof *s->best);
    s->next = ms__arena_array(arena, cells, sizeof *s->next);
    s->chosen = ms__arena_array(arena, n, cells);
    return s->best == NULL || s->next == NULL || s->chosen == NULL ? MS_E_NO_MEMORY : MS_OK;
}

static void relax(int64_t *cell, unsigned char *chosen, int64_t cost, unsigned char recompute) {
    if (cost >= *cell) return;
    *cell = cost;
    *chosen = recompute;
}

/* The least cost of a plan whose peak is at most `peak` cells above the states, or NO_PATH. Ties keep. `*out_end` is
 * how much that plan keeps at the end of forward. */
static int64_t min_cost(search *s, int64_t peak, int64_t *out_end) {
    size_t row = (size_t)s->all + 1;
    for (int64_t b = 0; b <= s->all; b++) s->best[b] = b == 0 ? 0 : NO_PATH;
    for (int64_t i = 0; i < s->n; i++) {
        unsigned char *chosen = s->chosen + (size_t)i * row;
        for (int64_t b = 0; b <= s->all; b++) s->next[b] = NO_PATH;
        for (int64_t b = 0; b + s->whole[i] <= peak && b + s->whole[i] <= s->all; b++) {
            if (s->best[b] == NO_PATH) continue;
            relax(&s->next[b + s->whole[i]], &chosen[b + s->whole[i]], s->best[b], 0);
            if (s->boundary[i] < 0) continue;
            relax(&s->next[b + s->boundary[i]], &chosen[b + s->boundary[i]], s->best[b] + s->cost[i], 1);
        }
        int64_t *swap = s->best;
        s->best = s->next;
        s->next = swap;
    }
    int64_t least = NO_PATH;
    for (int64_t b = 0; b + s->rest <= peak && b <= s->all; b++) {
        if (s->best[b] >= least) continue;
        least = s->best[b];
        *out_end = b;
    }
    return least;
}

/* The least peak, in cells, of a plan that costs at most `cost`; `high` is one that is known to do. */
static int64_t least_peak(search *s, int64_t cost, int64_t high) {
    int64_t low = -1, end;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (min_cost(s, middle, &end) <= cost)
            high = middle;
        else
            low = middle;
    }
    return high;
}

static void take_path(const search *s, ms_plan *plan, int64_t end) {
    size_t row = (size_t)s->all + 1;
    for (int64_t i = s->n - 1; i >= 0; i--) {
        bool recompute = s->chosen[(size_t)i * row + (size_t)end] != 0;
        plan->choices[i].action = recompute ? MS_ACTION_RECOMPUTE : MS_ACTION_KEEP;
        end -= recompute ? s->boundary[i] : s->whole[i];
    }
}

typedef struct size_text {
    char text[32];
} size_text;

static size_text show(int64_t bytes) {
    size_text shown;
    bool large = bytes >= 100000000;
    int64_t unit = large ? 1000000000 : 1000000;
    (void)snprintf(shown.text, sizeof shown.text, "%lld.%03lld %s", (long long)(bytes / unit),
                   (long long)(bytes % unit / (unit / 1000)), large ? "GB" : "MB");
    return shown;
}

/* Recomputing a unit never raises the peak, so this is the smallest there is, to the byte. */
static ms_status take_leanest(ms_plan *plan) {
    int64_t largest = 0;
    const char *name = "nothing";
    for (int64_t i = 0; i < plan->n_choices; i++) {
        const ms_unit *unit = &plan->choices[i].unit;
        plan->choices[i].action = ms__unit_can_recompute(unit) ? MS_ACTION_RECOMPUTE : MS_ACTION_KEEP;
        if (unit->saved_bytes <= largest) continue;
        largest = unit->saved_bytes;
        name = unit->name;
    }
    int64_t peak = ms__plan_peak(plan);
    if (peak <= plan->budget_bytes) return MS_OK;
    return ms__fail_value(
        MS_E_BUDGET, peak,
        "the smallest peak that recomputation can reach is %s, the budget is %s: parameters, gradients "
        "and optimizer state take %s, logits and loss %s, the largest layer (\"%.64s\") %s. A smaller "
        "batch or shorter inputs lower all but the first",
        show(peak).text, show(plan->budget_bytes).text, show(plan->state_bytes).text, show(plan->rest_bytes).text, name,
        show(largest).text);
}

/* Extra cost that the request allows: a share of the plain step, whose backward takes twice its forward. */
static int64_t allowed_cost(const search *s, const ms_plan_request *request) {
    if (request->slowdown_ppm < 0) return NO_PATH - 1;
    int64_t forward = 0;
    for (int64_t i = 0; i < s->n; i++) forward += s->cost[i];
    if (request->slowdown_ppm >= 1000000) return forward; /* more than recomputing everything takes */
    return forward / 1000000 * 3 * request->slowdown_ppm + forward % 1000000 * 3 * request->slowdown_ppm / 1000000;
}

static ms_status run(search *s, ms_plan *plan, const ms_plan_request *request) {
    int64_t left = plan->budget_bytes - plan->state_bytes, end = 0, peak = s->all;
    int64_t room = left >= s->total_bytes ? s->all : left / s->grid;
    bool fits = false;
    if (!(request->flags & MS_PLAN_FASTEST)) {
        peak = least_peak(s, allowed_cost(s, request), s->all);
        fits = plan->budget_bytes >= plan->state_bytes && peak <= room;
    }
    if (!fits) { /* the fastest plan within the budget, and of those the leanest */
        int64_t limit = room < s->all ? room : s->all;
        int64_t cost = plan->budget_bytes >= plan->state_bytes ? min_cost(s, limit, &end) : NO_PATH;
        if (cost == NO_PATH) return take_leanest(plan);
        peak = least_peak(s, cost, limit);
    }
    (void)min_cost(s, peak, &end);
    take_path(s, plan, end);
    return MS_OK;
}

ms_status ms__plan_search(ms_plan *plan, const ms_plan_request *request) {
    ms__arena arena = {0};
    search s = {.plan = plan, .n = plan->n_choices};
    ms_status status = prepare(&s, &arena);
    if (status == MS_OK) status = run(&s, plan, request);
    ms__arena_free(&arena);
    return status;
}
