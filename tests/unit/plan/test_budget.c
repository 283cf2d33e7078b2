/* test_budget.c - a budget that is only an aim, and the budget that keeps full speed. */
#include <string.h>

#include "error_info.h"
#include "plans.h"

#define BASELINE (1450 * KB)

static ms_plan_request aiming_at(const ms_profile *profile, int64_t aim_bytes, int64_t limit_bytes) {
    ms_plan_request request = request_of(profile, aim_bytes, MS_PLAN_FORCE);
    request.margin_bytes = aim_bytes / 64;
    request.slowdown_ppm = 150000;
    request.limit_bytes = limit_bytes;
    return request;
}

static int64_t smallest_peak(const ms_profile *profile) {
    ms_plan_request request = request_of(profile, 1, MS_PLAN_FASTEST);
    ms_plan *plan = NULL;
    CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_BUDGET);
    return error_info().needed_bytes;
}

/* What fits the aim does not depend on the limit. */
TEST(within_the_aim) {
    ms_profile *profile = equal_profile();
    ms_plan_request request = aiming_at(profile, 1400 * KB, 0);
    ms_plan *alone = plan_of(&request);
    request.limit_bytes = 1 << 30;
    ms_plan *limited = plan_of(&request);
    CHECK_EQ_INT(summary_of(limited).fingerprint, summary_of(alone).fingerprint);
    CHECK(summary_of(limited).aim_bytes == 0 && summary_of(limited).budget_bytes == 1400 * KB);
    ms_plan_destroy(alone);
    ms_plan_destroy(limited);
    ms_profile_destroy(profile);
}

TEST(beyond_the_aim) {
    ms_profile *profile = equal_profile();
    int64_t smallest = smallest_peak(profile), limit = smallest + smallest / 32;
    ms_plan_request request = aiming_at(profile, smallest, limit); /* its margin is missing */
    ms_plan *plan = plan_of(&request);
    ms_plan_summary s = summary_of(plan);
    CHECK_EQ_INT(s.predicted_peak_bytes, smallest);
    CHECK(s.aim_bytes == smallest && s.budget_bytes == limit && s.margin_bytes == limit / 64);
    ms_plan_destroy(plan);
    request.limit_bytes = smallest + 12; /* less than its margin */
    plan = NULL;
    CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_BUDGET);
    CHECK_EQ_INT(error_info().needed_bytes, smallest);
    CHECK(strstr(ms_error_message(), " less the margin of ") != NULL);
    request = aiming_at(profile, smallest - 2, smallest - 1);
    CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_BUDGET);
    CHECK(plan == NULL && strstr(ms_error_message(), "margin") == NULL);
    ms_profile_destroy(profile);
}

/* A larger device is never slower, a smaller one never needs more, on both sides of the aim. */
TEST(devices_in_order) {
    ms_profile *profile = equal_profile();
    int64_t before_ns = INT64_MAX, n_beyond = 0, n_within = 0;
    for (int64_t usable = 1000 * KB; usable < 2000 * KB; usable += 3 * KB) {
        ms_plan_request request = aiming_at(profile, usable * 85 / 100, usable);
        ms_plan *plan = NULL;
        ms_status status = ms_plan_create(&request, &plan);
        if (status == MS_E_BUDGET) {
            CHECK(n_beyond == 0 && n_within == 0);
            continue;
        }
        CHECK_STATUS(status, MS_OK);
        ms_plan_summary s = summary_of(plan);
        if (s.aim_bytes > 0) CHECK_EQ_INT(s.predicted_peak_bytes, smallest_peak(profile));
        CHECK(s.step_ns <= before_ns && s.predicted_peak_bytes <= s.budget_bytes - s.margin_bytes);
        CHECK(n_within == 0 || s.aim_bytes == 0);
        before_ns = s.step_ns;
        *(s.aim_bytes > 0 ? &n_beyond : &n_within) += 1;
        ms_plan_destroy(plan);
    }
    CHECK(n_beyond > 0 && n_within > 0);
    ms_profile_destroy(profile);
}

/* Nothing is done under the budget that the plan names. */
static void check_full_speed(const ms_profile *profile, int64_t budget_bytes) {
    ms_plan_request request = request_of(profile, budget_bytes, MS_PLAN_FASTEST);
    request.margin_bytes = budget_bytes / 64;
    ms_plan *plan = plan_of(&request);
    CHECK(summary_of(plan).n_changed == 0 && summary_of(plan).full_speed_bytes == 0);
    ms_plan_destroy(plan);
}

static int64_t full_speed_of(const ms_plan_request *request) {
    ms_plan *plan = plan_of(request);
    int64_t n_bytes = summary_of(plan).full_speed_bytes;
    if (n_bytes > 0) CHECK(summary_of(plan).n_changed > 0);
    ms_plan_destroy(plan);
    return n_bytes;
}

TEST(full_speed) {
    ms_profile *profile = equal_profile();
    const struct {
        int64_t aim, limit, wanted;
    } table[] = {
        {3456789, 3600000, 3500000},                                /* in round figures, */
        {3456789, 0, 1509000},                                      /* if that is not too much, */
        {3540000, 3560000, 3500000},                                /* or rounded down; */
        {3460000, 3499999, 1509000},                                /* else what is needed */
        {1400 * KB, 2000 * KB, 1509000},                            /* it does not fit the aim, but what is usable */
        {1400 * KB, 1500 * KB, 1509000}, {1400 * KB, 1470 * KB, 0}, /* nor that: its margin is missing */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ms_plan_request request = aiming_at(profile, table[i].aim, table[i].limit);
        CHECK_EQ_INT(full_speed_of(&request), table[i].wanted);
        if (table[i].wanted > 0) check_full_speed(profile, table[i].wanted);
    }
    CHECK(BASELINE <= 1509000 - 1509000 / 64 && BASELINE > 1508000 - 1508000 / 64);
    ms_plan_request request = aiming_at(profile, 4000 * KB, 0);
    request.slowdown_ppm = 0; /* nothing may be done anyway */
    CHECK_EQ_INT(full_speed_of(&request), 0);
    ms_profile_destroy(profile);
}

/* A step that takes more when nothing is done to it: the baseline has that, and plans that change it do not. */
TEST(another_plain_step) {
    ms_unit units[4];
    equal_units(units);
    ms_profile *profile = equal_profile(), *larger = profile_with(units, 4, 1000 * KB, 80 * KB);
    ms_plan_request request = request_of(profile, 1470 * KB, MS_PLAN_FASTEST);
    ms_plan *same = plan_of(&request);
    CHECK(summary_of(same).baseline_peak_bytes == BASELINE && summary_of(same).n_changed == 0);
    request.plain_profile = larger;
    ms_plan *plan = plan_of(&request);
    CHECK_EQ_INT(summary_of(plan).baseline_peak_bytes, BASELINE + 30 * KB);
    CHECK(summary_of(plan).n_changed > 0 && summary_of(plan).predicted_peak_bytes < BASELINE);
    ms_plan_destroy(same);
    ms_plan_destroy(plan);
    request.budget_bytes = BASELINE + 30 * KB;
    plan = plan_of(&request);
    CHECK(summary_of(plan).n_changed == 0 && summary_of(plan).predicted_peak_bytes == BASELINE + 30 * KB);
    ms_plan_destroy(plan);
    ms_profile_destroy(profile);
    ms_profile_destroy(larger);
}

SUITE(budget, CASE(another_plain_step), CASE(within_the_aim), CASE(beyond_the_aim), CASE(devices_in_order),
      CASE(full_speed));
