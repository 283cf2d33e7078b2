/* test_plan.c - plans for small models whose best plan is known: goals, limits, reasons and errors.
 *
 * The model has four equal units (plans.h): recomputing one frees 90 KB, but the last frees nothing in its own
 * backward, which then has the peak. With all recomputed, the peak is three inputs and one whole unit: 130 KB above the
 * resident bytes.
 */
#include "plans.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "error_info.h"
#include "steps.h"

#define BASELINE (1450 * KB)
#define LEANEST (1130 * KB)

/* The summary of the plan for the four equal units. */
static ms_plan_summary plan_equal(int64_t budget_bytes, int64_t slowdown_ppm, uint32_t flags) {
    ms_profile *profile = equal_profile();
    ms_plan_request request = request_of(profile, budget_bytes, flags);
    request.slowdown_ppm = slowdown_ppm;
    ms_plan *plan = plan_of(&request);
    ms_plan_summary summary = summary_of(plan);
    ms_plan_destroy(plan);
    ms_profile_destroy(profile);
    CHECK_EQ_INT(summary.baseline_peak_bytes, BASELINE);
    CHECK_EQ_INT(summary.budget_bytes, budget_bytes);
    CHECK_EQ_INT(summary.n_units, 4);
    return summary;
}

TEST(fastest_keeps_all_that_fits) {
    static const int64_t budgets[] = {BASELINE, BASELINE + 1, 2 * BASELINE, 100 * BASELINE};
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        ms_plan_summary s = plan_equal(budgets[i], 0, MS_PLAN_FASTEST);
        CHECK_EQ_INT(s.predicted_peak_bytes, BASELINE);
        CHECK_EQ_INT(s.n_changed, 0);
        CHECK_EQ_INT(s.slowdown_ppm, 0);
        CHECK_EQ_INT(s.skipped, 0);
    }
}

TEST(fastest_recomputes_no_more_than_it_must) {
    static const struct {
        int64_t budget_kb, n, peak_kb;
    } table[] = {{1449, 1, 1360}, {1360, 1, 1360}, {1359, 2, 1270}, {1270, 2, 1270},
                 {1269, 3, 1180}, {1180, 3, 1180}, {1179, 4, 1130}, {1130, 4, 1130}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ms_plan_summary s = plan_equal(table[i].budget_kb * KB, 0, MS_PLAN_FASTEST);
        CHECK_EQ_INT(s.n_changed, table[i].n);
        CHECK_EQ_INT(s.predicted_peak_bytes, table[i].peak_kb * KB);
        /* a unit is a twelfth of the step: 102400 of 1228800, which are 2008 ticks of 51 */
        CHECK_EQ_INT(s.slowdown_ppm, table[i].n * 2008 * 51 * 1000000 / 1228800);
    }
}

/* Among plans that are equally fast and recomputed, the choice is fixed: a plan does not change from release to
 * release. */
TEST(ties_are_settled_the_same_way) {
    static const int64_t budgets_kb[] = {1360, 1270, 1180};
    static const char *const actions[] = {"kkrk", "krrk", "rrrk"};
    ms_unit units[4];
    equal_units(units);
    for (size_t b = 0; b < sizeof budgets_kb / sizeof *budgets_kb; b++) {
        ms_plan *plan = plan_for(units, 4, budgets_kb[b] * KB, MS_PLAN_FASTEST);
        char taken[5] = {0};
        for (int i = 0; i < 4; i++) taken[i] = entry_of(plan, i).action == MS_ACTION_KEEP ? 'k' : 'r';
        CHECK_EQ_STR(taken, actions[b]);
        ms_plan_destroy(plan);
    }
}

/* The first unit has the peak, so recomputing either of the others is enough; the one that then holds less is
 * chosen. */
TEST(of_equal_peaks_the_one_that_keeps_less) {
    ms_unit units[3] = {plain_unit("wide", 300 * KB, 0), plain_unit("thin", 100 * KB, 10 * KB),
                        plain_unit("thick", 100 * KB, 20 * KB)};
    ms_profile *profile = profile_with(units, 3, 1000 * KB, 150 * KB);
    ms_plan_request request = request_of(profile, 1300 * KB, MS_PLAN_FASTEST);
    ms_plan *plan = plan_of(&request);
    ms_profile_destroy(profile);
    CHECK_EQ_INT(summary_of(plan).predicted_peak_bytes, 1300 * KB);
    CHECK_EQ_INT(entry_of(plan, 0).action, MS_ACTION_RECOMPUTE);
    CHECK_EQ_INT(entry_of(plan, 1).action, MS_ACTION_RECOMPUTE);
    CHECK_EQ_INT(entry_of(plan, 2).action, MS_ACTION_KEEP);
    ms_plan_destroy(plan);
}

TEST(least_memory_within_the_slowdown) {
    static const struct {
        int64_t slowdown_ppm, n, peak_kb;
    } table[] = {{-1, 4, 1130},     {1000000, 4, 1130}, {333360, 4, 1130}, {333359, 3, 1180},
                 {250020, 3, 1180}, {250019, 2, 1270},  {166680, 2, 1270}, {166679, 1, 1360},
                 {83340, 1, 1360},  {83339, 0, 1450},   {0, 0, 1450}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ms_plan_summary s = plan_equal(2 * BASELINE, table[i].slowdown_ppm, 0);
        CHECK_EQ_INT(s.n_changed, table[i].n);
        CHECK_EQ_INT(s.predicted_peak_bytes, table[i].peak_kb * KB);
        CHECK(table[i].slowdown_ppm < 0 || s.slowdown_ppm <= table[i].slowdown_ppm);
        CHECK_EQ_INT(s.skipped, 0);
    }
}

/* The budget is more important than the slowdown: if both cannot be met, the fastest plan that fits is chosen. */
TEST(the_budget_goes_before_the_slowdown) {
    ms_plan_summary s = plan_equal(1200 * KB, 83334, 0);
    CHECK_EQ_INT(s.n_changed, 3);
    CHECK_EQ_INT(s.predicted_peak_bytes, 1180 * KB);
    s = plan_equal(1130 * KB, 0, 0);
    CHECK_EQ_INT(s.n_changed, 4);
}

TEST(small_models_are_skipped) {
    ms_plan_summary s = plan_equal(4 * BASELINE + 4, -1, 0);
    CHECK_EQ_INT(s.skipped, 1);
    CHECK_EQ_INT(s.n_changed, 0);
    CHECK_EQ_INT(s.predicted_peak_bytes, BASELINE);
    s = plan_equal(4 * BASELINE, -1, 0); /* a quarter is not less than a quarter */
    CHECK_EQ_INT(s.skipped, 0);
    CHECK_EQ_INT(s.n_changed, 4);
}

TEST(force_does_not_skip) {
    ms_plan_summary s = plan_equal(100 * BASELINE, -1, MS_PLAN_FORCE);
    CHECK_EQ_INT(s.skipped, 0);
    CHECK_EQ_INT(s.n_changed, 4);
    CHECK_EQ_INT(s.predicted_peak_bytes, LEANEST);
}

static void check_budget_error(const ms_plan_request *request, int64_t smallest) {
    ms_plan *plan = NULL;
    ms_error_clear();
    CHECK_STATUS(ms_plan_create(request, &plan), MS_E_BUDGET);
    CHECK(plan == NULL);
    CHECK_EQ_INT(error_info().needed_bytes, smallest);
    CHECK(strstr(ms_error_message(), "smallest reachable peak") != NULL);
}

TEST(no_plan_fits) {
    static const int64_t budgets[] = {1, 999 * KB, 1000 * KB, 1129 * KB, LEANEST - 1};
    static const uint32_t flags[] = {0, MS_PLAN_FASTEST, MS_PLAN_FORCE, MS_PLAN_FASTEST | MS_PLAN_FORCE};
    ms_profile *profile = equal_profile();
    for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
        for (size_t f = 0; f < sizeof flags / sizeof *flags; f++) {
            ms_plan_request request = request_of(profile, budgets[b], flags[f]);
            check_budget_error(&request, LEANEST);
            request.slowdown_ppm = 0;
            check_budget_error(&request, LEANEST);
        }
    }
    ms_profile_destroy(profile);
}

/* The size in the error is exact and sufficient, even if sizes are no multiples of the search's resolution. */
TEST(the_smallest_budget_is_enough) {
    ms_unit units[3] = {plain_unit("a", 100001, 777), plain_unit("b", 54321, 1), plain_unit("c", 1, 0)};
    ms_profile *profile = profile_with(units, 3, 1000 * KB, 13);
    ms_plan_request request = request_of(profile, 1, MS_PLAN_FASTEST);
    ms_plan *plan = NULL;
    CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_BUDGET);
    CHECK_EQ_INT(error_info().needed_bytes, 1000 * KB + 100001);
    request.budget_bytes = error_info().needed_bytes;
    plan = plan_of(&request);
    CHECK_EQ_INT(summary_of(plan).predicted_peak_bytes, request.budget_bytes);
    ms_plan_destroy(plan);
    request.budget_bytes--;
    check_budget_error(&request, 1000 * KB + 100001);
    ms_profile_destroy(profile);
}

/* Many sizes far below the resolution, none of which can be recomputed: rounded up, they would not fit. */
TEST(small_sizes_fit_to_the_byte) {
    enum { N = 50 };
    static const uint32_t flags[] = {0, MS_PLAN_FASTEST, MS_PLAN_FORCE};
    ms_unit units[N];
    for (int i = 0; i < N; i++) units[i] = plain_unit("small", 10, 10);
    ms_profile *profile = plain_profile(units, N);
    for (size_t f = 0; f < sizeof flags / sizeof *flags; f++) {
        ms_plan_request request = request_of(profile, 1050 * KB + 10 * N, flags[f]);
        ms_plan *plan = plan_of(&request);
        CHECK_EQ_INT(summary_of(plan).predicted_peak_bytes, request.budget_bytes);
        ms_plan_destroy(plan);
        request.budget_bytes--;
        check_budget_error(&request, 1050 * KB + 10 * N);
    }
    ms_profile_destroy(profile);
}

TEST(the_cheaper_unit_is_recomputed) {
    ms_unit units[3] = {plain_unit("dear", 100 * KB, 10 * KB), plain_unit("cheap", 100 * KB, 10 * KB),
                        plain_unit("last", 10 * KB, 0)};
    units[0].n_rows = 1 << 19;
    ms_plan *plan = plan_for(units, 3, 1249 * KB, MS_PLAN_FASTEST); /* "last" alone is not enough */
    CHECK_EQ_INT(entry_of(plan, 0).action, MS_ACTION_KEEP);
    CHECK_EQ_INT(entry_of(plan, 1).action, MS_ACTION_RECOMPUTE);
    CHECK_EQ_INT(summary_of(plan).n_changed, 1);
    CHECK(entry_of(plan, 0).extra_ns == 0 && entry_of(plan, 1).extra_ns > 0);
    CHECK_EQ_INT(entry_of(plan, 0).other, MS_ACTION_RECOMPUTE);
    CHECK(entry_of(plan, 0).other_ns > entry_of(plan, 1).extra_ns);
    ms_plan_destroy(plan);
}

TEST(reasons_tell_why) {
    ms_unit units[5] = {plain_unit("fixed", 100 * KB, 10 * KB), plain_unit("absent", 100 * KB, 10 * KB),
                        plain_unit("thick", 100 * KB, 100 * KB), plain_unit("saved", 100 * KB, 10 * KB),
                        plain_unit("spare", 1 * KB, 0)};
    static const int32_t reasons[] = {MS_REASON_NOT_ELIGIBLE, MS_REASON_NOT_RUN, MS_REASON_NO_GAIN, MS_REASON_SAVES,
                                      MS_REASON_NOT_NEEDED};
    units[0].flags = MS_UNIT_RUN;
    units[1].flags = MS_UNIT_ELIGIBLE;
    ms_plan *plan = plan_for(units, 5, 1300 * KB, MS_PLAN_FASTEST);
    for (int i = 0; i < 5; i++) {
        ms_plan_entry entry = entry_of(plan, i);
        CHECK_EQ_STR(entry.name, units[i].name);
        CHECK_EQ_INT(entry.reason, reasons[i]);
        CHECK_EQ_INT(entry.action, i == 3 ? MS_ACTION_RECOMPUTE : MS_ACTION_KEEP);
    }
    ms_plan_destroy(plan);
}

TEST(nothing_to_gain_keeps_all) {
    ms_unit units[2] = {plain_unit("a", 100 * KB, 100 * KB), plain_unit("b", 100 * KB, 200 * KB)};
    ms_profile *profile = plain_profile(units, 2);
    ms_plan_request request = request_of(profile, 1300 * KB, 0); /* what "a" saves, and the inputs of "b" */
    ms_plan *plan = plan_of(&request);
    CHECK_EQ_INT(summary_of(plan).n_changed, 0);
    ms_plan_destroy(plan);
    request.budget_bytes = 1299 * KB;
    check_budget_error(&request, 1300 * KB);
    ms_profile_destroy(profile);
}

TEST(a_model_without_units) {
    ms_profile *profile = plain_profile(NULL, 0);
    ms_plan_request request = request_of(profile, 1050 * KB, 0);
    ms_plan *plan = plan_of(&request);
    ms_plan_summary s = summary_of(plan);
    CHECK_EQ_INT(s.n_units, 0);
    CHECK_EQ_INT(s.baseline_peak_bytes, 1050 * KB);
    CHECK_EQ_INT(s.predicted_peak_bytes, 1050 * KB);
    CHECK_EQ_INT(s.slowdown_ppm, 0);
    ms_plan_entry entry = {.struct_bytes = sizeof entry};
    CHECK_STATUS(ms_plan_get_entry(plan, 0, &entry), MS_E_INVALID);
    ms_plan_destroy(plan);
    request.budget_bytes--;
    check_budget_error(&request, 1050 * KB);
    ms_profile_destroy(profile);
}

TEST(nothing_at_all) {
    ms_unit unit = plain_unit("empty", 0, 0);
    ms_profile *profile = profile_with(&unit, 1, 0, 0);
    ms_plan_request request = request_of(profile, 1, MS_PLAN_FASTEST);
    ms_plan *plan = plan_of(&request);
    ms_profile_destroy(profile);
    CHECK_EQ_INT(summary_of(plan).predicted_peak_bytes, 0);
    CHECK_EQ_INT(entry_of(plan, 0).reason, MS_REASON_NO_GAIN);
    ms_plan_destroy(plan);
}

TEST(names_are_copied) {
    char name[] = "layers.0";
    ms_unit unit = plain_unit(name, 100 * KB, 0);
    ms_plan *plan = plan_for(&unit, 1, BASELINE, MS_PLAN_FASTEST);
    memset(name, 'x', sizeof name - 1);
    CHECK_EQ_STR(entry_of(plan, 0).name, "layers.0");
    ms_plan_destroy(plan);
}

TEST(sizes_of_real_models) {
    enum { N = 80 };
    ms_unit units[N];
    char names[N][16];
    for (int i = 0; i < N; i++) {
        (void)snprintf(names[i], sizeof names[i], "layers.%d", i);
        units[i] = plain_unit(names[i], INT64_C(1700000000) + i, INT64_C(134217728));
        units[i].param_bytes = INT64_C(1711276032);
    }
    ms_profile *profile = profile_with(units, N, INT64_C(20) << 30, INT64_C(4) << 30);
    ms_plan_request request = request_of(profile, INT64_C(80) << 30, MS_PLAN_FASTEST);
    ms_plan *plan = plan_of(&request);
    ms_profile_destroy(profile);
    ms_plan_summary s = summary_of(plan);
    CHECK(s.predicted_peak_bytes <= request.budget_bytes);
    CHECK(s.predicted_peak_bytes > request.budget_bytes - INT64_C(1700000000)); /* one less would not fit */
    CHECK(s.n_changed > N / 2 && s.n_changed < N);
    ms_plan_destroy(plan);
}

static void check_unit_limit(int64_t params, int64_t saved, int64_t boundary, int64_t rows) {
    ms_unit units[2] = {plain_unit("huge", saved, boundary), plain_unit("small", KB, 0)};
    units[0].param_bytes = params;
    units[0].n_rows = rows;
    ms__arena arena = {0};
    ms_unit *copies = NULL;
    CHECK_STATUS(ms__units_copy(&arena, units, 2, &copies), MS_E_LIMIT);
    CHECK(copies == NULL);
    ms__arena_free(&arena);
}

TEST(sizes_out_of_range) {
    const int64_t huge = INT64_MAX / 8;
    static const int64_t bad[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX / 8 + 1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        check_unit_limit(bad[i], 0, 0, 0);
        check_unit_limit(0, bad[i], 0, 0);
        check_unit_limit(0, 0, bad[i], 0);
        check_unit_limit(0, 0, 0, bad[i]);
    }
    check_unit_limit(0, huge, 0, 0); /* too large together with the other unit */
    check_unit_limit(huge, 0, huge, 0);
}

TEST(request_sizes_out_of_range) {
    ms_profile *profile = equal_profile();
    static const int64_t bad[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX / 8 + 1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ms_plan *plan = NULL;
        ms_plan_request request = request_of(profile, bad[i], 0);
        CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_LIMIT);
        request = request_of(profile, BASELINE, 0);
        request.margin_bytes = bad[i];
        CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_LIMIT);
        request = request_of(profile, BASELINE, 0);
        request.host_limit_bytes = bad[i];
        CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_LIMIT);
        request = request_of(profile, BASELINE, 0);
        request.limit_bytes = bad[i];
        CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_LIMIT);
        CHECK(plan == NULL);
    }
    ms_profile_destroy(profile);
}

/* The largest tensors that are allowed, with the largest slowdown: nothing overflows. */
TEST(the_largest_sizes_work) {
    enum { N = 16 };
    const int64_t most = INT64_MAX / 1024, slowdowns[] = {-1, 0, 1, 999999, 1000000000};
    ms_unit units[N];
    for (int i = 0; i < N; i++) units[i] = plain_unit("huge", most, i == 0 ? most / 4 : 0);
    ms_profile *profile = profile_with(units, N, most, most);
    for (size_t i = 0; i < sizeof slowdowns / sizeof *slowdowns; i++) {
        ms_plan_request request = request_of(profile, INT64_MAX / 8, MS_PLAN_FORCE);
        request.slowdown_ppm = slowdowns[i];
        ms_plan *plan = plan_of(&request);
        CHECK_EQ_INT(summary_of(plan).baseline_peak_bytes, (N + 2) * most);
        CHECK_EQ_INT(summary_of(plan).baseline_ns, 3 * N * most);
        CHECK(summary_of(plan).slowdown_ppm <= 334000); /* all units recomputed */
        CHECK_EQ_INT(summary_of(plan).n_changed, slowdowns[i] == 0 || slowdowns[i] == 1 ? 0 : N);
        ms_plan_destroy(plan);
        request.budget_bytes = 2 * most; /* the first unit's inputs do not fit */
        CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_BUDGET);
        CHECK_EQ_INT(error_info().needed_bytes, 2 * most + most / 4);
    }
    ms_profile_destroy(profile);
}

static void check_refused(const ms_plan_request *request, ms_status wanted) {
    ms_plan *plan = NULL;
    ms_error_clear();
    CHECK_STATUS(ms_plan_create(request, &plan), wanted);
    CHECK(plan == NULL && ms_error_message()[0] != '\0');
}

TEST(arguments_are_checked) {
    ms_profile *profile = equal_profile();
    ms_plan *plan = NULL;
    const ms_plan_request good = request_of(profile, BASELINE, 0);
    ms_plan_request bad = good;
    CHECK_STATUS(ms_plan_create(NULL, &plan), MS_E_INVALID);
    CHECK_STATUS(ms_plan_create(&good, NULL), MS_E_INVALID);
    bad.struct_bytes = offsetof(ms_plan_request, occupied_bytes) - 1; /* less than in the first version */
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.profile = NULL;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    ms_profile *other = two_unit_profile();
    bad.plain_profile = other;
    check_refused(&bad, MS_E_MISMATCH);
    ms_profile_destroy(other);
    bad = good;
    bad.budget_bytes = 0;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.slowdown_ppm = 1000000001;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.actions = 1U << MS_N_ACTIONS;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.model_options = MS_MODEL_ALL + 1;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.flags = 1U << 4;
    check_refused(&bad, MS_E_INVALID);
    bad = good;
    bad.device = NULL;
    check_refused(&bad, MS_E_INVALID);
    ms_profile_destroy(profile);
    ms_plan_destroy(NULL);
}

TEST(getters_check_their_arguments) {
    ms_unit units[4];
    equal_units(units);
    ms_plan *plan = plan_for(units, 4, BASELINE, 0);
    ms_plan_summary summary = {.struct_bytes = sizeof summary};
    ms_plan_entry entry = {.struct_bytes = sizeof entry};
    CHECK_STATUS(ms_plan_get_summary(NULL, &summary), MS_E_INVALID);
    CHECK_STATUS(ms_plan_get_summary(plan, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_plan_get_entry(NULL, 0, &entry), MS_E_INVALID);
    CHECK_STATUS(ms_plan_get_entry(plan, 0, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_plan_get_entry(plan, -1, &entry), MS_E_INVALID);
    CHECK_STATUS(ms_plan_get_entry(plan, 4, &entry), MS_E_INVALID);
    summary.struct_bytes = offsetof(ms_plan_summary, reserved_bytes) - 1; /* less than in the first version */
    entry.struct_bytes = 0;
    CHECK_STATUS(ms_plan_get_summary(plan, &summary), MS_E_INVALID);
    CHECK_STATUS(ms_plan_get_entry(plan, 0, &entry), MS_E_INVALID);
    ms_plan_destroy(plan);
}

static void *plan_and_read(void *shared) {
    for (int i = 0; i < 20; i++) {
        CHECK_EQ_INT(plan_equal(1300 * KB, -1, MS_PLAN_FASTEST).n_changed, 2);
        CHECK_EQ_INT(summary_of(shared).n_changed, 2);
        CHECK_EQ_STR(entry_of(shared, i % 4).name + 7, i % 4 == 0 ? "0" : i % 4 == 1 ? "1" : i % 4 == 2 ? "2" : "3");
    }
    return NULL;
}

TEST(threads_plan_at_once_and_share_a_plan) {
    ms_unit units[4];
    pthread_t threads[4];
    equal_units(units);
    ms_plan *plan = plan_for(units, 4, 1300 * KB, MS_PLAN_FASTEST);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, plan_and_read, plan) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    ms_plan_destroy(plan);
}

SUITE(plan, CASE(fastest_keeps_all_that_fits), CASE(fastest_recomputes_no_more_than_it_must),
      CASE(ties_are_settled_the_same_way), CASE(of_equal_peaks_the_one_that_keeps_less),
      CASE(least_memory_within_the_slowdown), CASE(the_budget_goes_before_the_slowdown), CASE(small_models_are_skipped),
      CASE(force_does_not_skip), CASE(no_plan_fits), CASE(the_smallest_budget_is_enough),
      CASE(small_sizes_fit_to_the_byte), CASE(the_cheaper_unit_is_recomputed), CASE(reasons_tell_why),
      CASE(nothing_to_gain_keeps_all), CASE(a_model_without_units), CASE(nothing_at_all), CASE(names_are_copied),
      CASE(sizes_of_real_models), CASE(sizes_out_of_range), CASE(request_sizes_out_of_range),
      CASE(the_largest_sizes_work), CASE(arguments_are_checked), CASE(getters_check_their_arguments),
      CASE(threads_plan_at_once_and_share_a_plan));
