/* plan_prop.c - laws of plans, on random models under several budgets each.
 *
 *   memscale_prop                 the laws, on MEMSCALE_PROP_N models
 *   memscale_prop --hash          a hash over the plans of MEMSCALE_PROP_N models: the same from every compiler
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>

#include "error_info.h"
#include "models.h"
#include "plan/plan.h"

#define N_BUDGETS 5
#define N_THREADS 4
#define N_GOLDEN 200
#define GOLDEN_HASH UINT64_C(0x653D60BABAD43402)

/* What a law needs to know about one plan. */
typedef struct outcome {
    int64_t budget;
    bool fits;
    ms_plan_summary s;
    int64_t smallest; /* where it does not fit: the peak that the error names */
} outcome;

static int64_t usable(const problem *p) {
    int64_t aim = p->request.budget_bytes - p->request.margin_bytes, limit = p->request.limit_bytes;
    int64_t most = limit > p->request.budget_bytes && limit - limit / 64 > aim ? limit - limit / 64 : aim;
    return most - p->request.occupied_bytes;
}

/* ---- One plan ---- */

static uint32_t may_be_done(const problem *p, int64_t unit) {
    const ms_unit *u = &p->profile->units[unit];
    uint32_t needed = MS_UNIT_ELIGIBLE | MS_UNIT_RUN;
    bool may = (u->flags & needed) == needed && (p->request.may_change == NULL || p->may_change[unit]);
    return may ? p->request.actions | 1U << MS_ACTION_KEEP : 1U << MS_ACTION_KEEP;
}

/* A plan only has allowed actions, and its peak is that of a simulation. */
static void check_plan(const problem *p, const ms_plan *plan, const ms_plan_summary *s) {
    int32_t actions[MAX_UNITS] = {0};
    for (int64_t i = 0; i < p->profile->n_units; i++) {
        ms_plan_entry entry = {.struct_bytes = sizeof entry};
        CHECK_STATUS(ms_plan_get_entry(plan, i, &entry), MS_OK);
        LAW((1U << entry.action & may_be_done(p, i)) != 0);
        actions[i] = entry.action;
    }
    LAW((s->model_options & ~p->request.model_options) == 0 &&
        (!(s->model_options & MS_MODEL_HALF) || p->half != NULL));
    LAW(s->host_bytes >= 0 && s->host_bytes <= p->request.host_limit_bytes);
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = s->model_options & MS_MODEL_HALF ? p->half : p->profile,
                                     .actions = actions,
                                     .n_actions = p->profile->n_units,
                                     .device = &p->device,
                                     .flags = p->request.simulation,
                                     .model_options = s->model_options,
                                     .spacer_bytes = s->spacer_bytes,
                                     .spacer_unit = s->spacer_unit};
    if (!s->grows && !(p->request.flags & MS_PLAN_GROWN)) request.flags &= ~(uint32_t)MS_SIMULATE_GROWING;
    ms_simulation *sim = NULL;
    ms_simulation_summary played = {.struct_bytes = sizeof played};
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    CHECK_STATUS(ms_simulation_get_summary(sim, &played), MS_OK);
    LAW(s->predicted_peak_bytes ==
        (played.first_peak_bytes > played.steady_peak_bytes ? played.first_peak_bytes : played.steady_peak_bytes));
    LAW(s->reserved_bytes == played.reserved_bytes || s->reserved_bytes == s->needed_bytes);
    LAW(s->reserved_bytes <= s->needed_bytes && s->reserved_bytes <= played.reserved_bytes);
    LAW(played.host_bytes == s->host_bytes);
    ms_simulation_destroy(sim);
}

static outcome solve(problem *p, int64_t budget) {
    outcome out = {.budget = budget, .s.struct_bytes = sizeof out.s};
    ms_plan *plan = NULL;
    p->request.budget_bytes = budget;
    ms_status status = ms_plan_create(&p->request, &plan);
    out.fits = status == MS_OK;
    if (!out.fits) {
        CHECK_STATUS(status, MS_E_BUDGET);
        out.smallest = error_info().needed_bytes;
        LAW(out.smallest > usable(p));
        return out;
    }
    CHECK_STATUS(ms_plan_get_summary(plan, &out.s), MS_OK);
    LAW(out.s.needed_bytes <= usable(p) && out.s.predicted_peak_bytes <= out.s.needed_bytes);
    check_plan(p, plan, &out.s);
    ms_plan_destroy(plan);
    return out;
}

/* ---- Several budgets ---- */

/* From below the smallest reachable peak to above the baseline, in order. The first is the smallest that fits. */
static void choose_budgets(problem *p, int64_t budgets[N_BUDGETS]) {
    outcome none = solve(p, 1);
    int64_t taken = p->request.margin_bytes + p->request.occupied_bytes;
    int64_t least = (none.fits ? 1 : none.smallest) + taken;
    uint32_t flags = p->request.flags;
    p->request.flags = MS_PLAN_FASTEST;
    int64_t most = solve(p, (int64_t)1 << 50).s.baseline_peak_bytes + taken;
    p->request.flags = flags;
    budgets[0] = least;
    for (int i = 1; i < N_BUDGETS; i++) {
        int64_t most_here = one_in(12) ? 5 * most + 1 : most;
        budgets[i] = least + (most_here > least ? up_to(most_here - least) : up_to(4));
        for (int k = i; k > 1 && budgets[k] < budgets[k - 1]; k--) {
            int64_t swap = budgets[k];
            budgets[k] = budgets[k - 1];
            budgets[k - 1] = swap;
        }
    }
}

/* The smart skip leaves the model alone even where something would make it faster. */
static void compare(const outcome *small, const outcome *large) {
    if (large->s.step_ns > small->s.step_ns && !large->s.skipped)
        test_fail(__FILE__, __LINE__, "case %lld: %lld ns with a budget of %lld, %lld ns with %lld",
                  (long long)current_case, (long long)small->s.step_ns, (long long)small->budget,
                  (long long)large->s.step_ns, (long long)large->budget);
    LAW(large->s.slowdown_ppm <= small->s.slowdown_ppm || large->s.skipped);
    if (small->s.needed_bytes > large->s.needed_bytes)
        test_fail(__FILE__, __LINE__, "case %lld: %lld bytes with a budget of %lld, %lld with %lld",
                  (long long)current_case, (long long)small->s.needed_bytes, (long long)small->budget,
                  (long long)large->s.needed_bytes, (long long)large->budget);
}

TEST(budgets) {
    static problem p;
    for (int64_t i = 0; i < n_cases(); i++) {
        random_problem(i, &p);
        int64_t budgets[N_BUDGETS];
        outcome found[N_BUDGETS];
        choose_budgets(&p, budgets);
        for (int b = 0; b < N_BUDGETS; b++) {
            found[b] = solve(&p, budgets[b]);
            LAW(found[b].fits);
            if (b > 0) compare(&found[b - 1], &found[b]);
        }
        if (budgets[0] > p.request.margin_bytes + 1) LAW(!solve(&p, budgets[0] - 1).fits);
        problem_free(&p);
    }
}

/* The same if the budget is only an aim, from below the smallest device to one whose aim fits the baseline. A plan that
 * fits the aim, and is not cramped, does not depend on the limit. */
TEST(aims) {
    static problem p;
    for (int64_t i = 0; i < n_cases(); i++) {
        random_problem(i, &p);
        int64_t budgets[N_BUDGETS];
        outcome before = {0};
        choose_budgets(&p, budgets);
        for (int b = 0; b < 2 * N_BUDGETS; b++) {
            int64_t budget =
                b < N_BUDGETS ? budgets[0] * (17 * N_BUDGETS + 3 * b) / (20 * N_BUDGETS) : budgets[b - N_BUDGETS];
            p.request.limit_bytes = 0;
            outcome alone = solve(&p, budget > 0 ? budget : 1);
            p.request.limit_bytes = budget + budget / 5;
            outcome found = solve(&p, budget > 0 ? budget : 1);
            if (alone.fits && !alone.s.is_cramped)
                LAW(found.fits && found.s.fingerprint == alone.s.fingerprint && found.s.aim_bytes == 0);
            if (!alone.fits && found.fits)
                LAW(found.s.aim_bytes == found.budget && found.s.needed_bytes >= alone.smallest);
            LAW(found.fits || !before.fits);
            if (before.fits) compare(&before, &found);
            before = found;
        }
        problem_free(&p);
    }
}

/* ---- The same bytes ---- */

static char *json_of(const ms_plan_request *request) {
    ms_plan *plan = NULL;
    char *text = NULL;
    if (ms_plan_create(request, &plan) != MS_OK) return NULL;
    CHECK_STATUS(ms_plan_to_json(plan, &text), MS_OK);
    ms_plan_destroy(plan);
    return text;
}

/* Between the smallest reachable peak and the baseline. */
static void choose_budget(problem *p) {
    int64_t budgets[N_BUDGETS];
    choose_budgets(p, budgets);
    p->request.budget_bytes = budgets[up_to(N_BUDGETS - 1)];
}

static ms_profile *through_json(const ms_profile *profile) {
    ms_profile *back = NULL;
    char *text = NULL;
    if (profile == NULL) return NULL;
    CHECK_STATUS(ms_profile_to_json(profile, &text), MS_OK);
    CHECK_STATUS(ms_profile_from_json(text, strlen(text), &back), MS_OK);
    ms_free(text);
    return back;
}

TEST(the_same_request_gives_the_same_plan) {
    static problem p;
    for (int64_t i = 0; i < n_cases() / 4; i++) {
        random_problem(i, &p);
        choose_budget(&p);
        ms_plan_request request = p.request;
        ms_profile *profile = through_json(p.profile), *half = through_json(p.half);
        request.profile = profile;
        request.half_profile = half;
        char *text = json_of(&p.request), *twice = json_of(&p.request), *other = json_of(&request), *again = NULL;
        CHECK(text != NULL && twice != NULL && other != NULL);
        LAW(strcmp(text, twice) == 0 && strcmp(text, other) == 0);
        ms_plan *back = NULL;
        CHECK_STATUS(ms_plan_from_json(text, strlen(text), &back), MS_OK);
        CHECK_STATUS(ms_plan_to_json(back, &again), MS_OK);
        LAW(strcmp(text, again) == 0);
        ms_plan_destroy(back);
        ms_profile_destroy(profile);
        ms_profile_destroy(half);
        ms_free(text);
        ms_free(twice);
        ms_free(other);
        ms_free(again);
        problem_free(&p);
    }
}

static void *json_in_thread(void *request) { return json_of(request); }

TEST(threads_do_not_matter) {
    static problem p;
    for (int64_t i = 0; i < n_cases() / 20; i++) {
        random_problem(i, &p);
        choose_budget(&p);
        char *text = json_of(&p.request);
        pthread_t threads[N_THREADS];
        for (int t = 0; t < N_THREADS; t++) CHECK(pthread_create(&threads[t], NULL, json_in_thread, &p.request) == 0);
        for (int t = 0; t < N_THREADS; t++) {
            void *other = NULL;
            CHECK(pthread_join(threads[t], &other) == 0);
            CHECK(text != NULL && other != NULL);
            LAW(strcmp(text, other) == 0);
            ms_free(other);
        }
        ms_free(text);
        problem_free(&p);
    }
}

/* The decisions as numbers, independent of how a plan is written. */
static uint64_t hash_of_plan(const ms_plan *plan, uint64_t hash) {
    ms_plan_summary s = {.struct_bytes = sizeof s};
    CHECK_STATUS(ms_plan_get_summary(plan, &s), MS_OK);
    const int64_t whole[] = {s.baseline_peak_bytes,
                             s.predicted_peak_bytes,
                             s.host_bytes,
                             s.baseline_ns,
                             s.step_ns,
                             s.slowdown_ppm,
                             s.n_changed,
                             s.skipped,
                             s.model_options,
                             s.peak_unit,
                             s.peak_phase};
    hash = ms_hash64(whole, sizeof whole, hash);
    hash = ms_hash64(s.parts, MS_N_CATEGORIES * sizeof *s.parts, hash);
    for (int64_t i = 0; i < s.n_units; i++) {
        ms_plan_entry e = {.struct_bytes = sizeof e};
        CHECK_STATUS(ms_plan_get_entry(plan, i, &e), MS_OK);
        const int64_t unit[] = {e.action,     e.reason,     e.other,    e.other_reason, e.plain_bytes,
                                e.held_bytes, e.host_bytes, e.extra_ns, e.other_bytes,  e.other_ns};
        hash = ms_hash64(unit, sizeof unit, hash);
    }
    return hash;
}

static uint64_t hash_of_plans(int64_t n) {
    static problem p;
    uint64_t hash = 0;
    for (int64_t i = 0; i < n; i++) {
        random_problem(i, &p);
        choose_budget(&p);
        ms_plan *plan = NULL;
        ms_status status = ms_plan_create(&p.request, &plan);
        CHECK(status == MS_OK || status == MS_E_BUDGET);
        int64_t smallest = status == MS_OK ? 0 : error_info().needed_bytes;
        hash = status == MS_OK ? hash_of_plan(plan, hash) : ms_hash64(&smallest, sizeof smallest, hash);
        ms_plan_destroy(plan);
        problem_free(&p);
    }
    return hash;
}

/* The hash changes with decisions, but not with the machine or the format of a plan. */
TEST(plans_are_what_they_were) {
    CHECK(setenv("MEMSCALE_PROP_SEED", "1", 1) == 0);
    CHECK_EQ_U64(hash_of_plans(N_GOLDEN), GOLDEN_HASH);
}

SUITE(plan_prop, CASE(budgets), CASE(aims), CASE(the_same_request_gives_the_same_plan), CASE(threads_do_not_matter),
      CASE(plans_are_what_they_were));

int main(int argc, char **argv) {
    static const test_suite *const suites[] = {&plan_prop_suite};
    if (argc == 2 && strcmp(argv[1], "--hash") == 0) {
        printf("%016llx\n", (unsigned long long)hash_of_plans(n_cases()));
        return 0;
    }
    return test_main(suites, 1, 0, argc, argv);
}
