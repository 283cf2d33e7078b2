/* fuzz_plan.c - any bytes as a plan. One that reads writes and reads back equal, and fits its own units; its model is
 * then planned again, which drives the search with sizes that no model has.
 */
#include "fuzz.h"

#include <string.h>

#include <memscale/memscale.h>

#define MAX_UNITS 8 /* of the models that are planned again: the search takes milliseconds for many */

const char *const fuzz_dictionary[] = {"\"memscale_plan\": 1",
                                       "\"state_bytes\": ",
                                       "\"rest_bytes\": ",
                                       "\"budget_bytes\": ",
                                       "\"skipped\": false",
                                       "\"units\": [",
                                       "\"name\": \"a\"",
                                       "\"action\": \"keep\"",
                                       "\"recompute\"",
                                       "\"reason\": \"saves\"",
                                       "\"no gain\"",
                                       "\"not run\"",
                                       "\"param_bytes\": ",
                                       "\"saved_bytes\": ",
                                       "\"boundary_bytes\": ",
                                       "\"n_rows\": ",
                                       "\"eligible\": ",
                                       "\"run\": ",
                                       "true",
                                       "false",
                                       "1152921504606846975",
                                       "576460752303423487",
                                       "-1",
                                       "0",
                                       NULL};

static ms_plan_summary summary_of(const ms_plan *plan) {
    ms_plan_summary summary = {.struct_bytes = sizeof summary};
    REQUIRE(ms_plan_get_summary(plan, &summary) == MS_OK);
    REQUIRE(summary.baseline_peak_bytes >= 0 && summary.predicted_peak_bytes >= 0);
    REQUIRE(summary.n_recomputed >= 0 && summary.n_recomputed <= summary.n_units);
    REQUIRE(summary.slowdown_ppm >= 0 && summary.slowdown_ppm <= 333334);
    return summary;
}

static void check_round_trip(const ms_plan *plan, const ms_plan_summary *summary) {
    char *first = NULL, *second = NULL;
    ms_plan *back = NULL;
    REQUIRE(ms_plan_to_json(plan, &first) == MS_OK);
    REQUIRE(ms_plan_from_json(first, strlen(first), &back) == MS_OK);
    REQUIRE(ms_plan_to_json(back, &second) == MS_OK);
    REQUIRE(strcmp(first, second) == 0);
    ms_plan_summary again = summary_of(back);
    REQUIRE(memcmp(summary, &again, sizeof again) == 0);
    ms_plan_destroy(back);
    ms_free(first);
    ms_free(second);
}

static void plan_again(const ms_unit *units, const ms_plan_summary *old, uint32_t flags) {
    ms_plan_request request = {.struct_bytes = sizeof request,
                               .units = units,
                               .n_units = old->n_units,
                               .state_bytes = old->baseline_peak_bytes / 8,
                               .rest_bytes = old->baseline_peak_bytes / 16,
                               .budget_bytes = old->budget_bytes,
                               .slowdown_ppm = old->budget_bytes % 1000000001,
                               .flags = flags};
    ms_plan *plan = NULL;
    ms_status status = ms_plan_create(&request, &plan);
    if (status == MS_E_BUDGET) {
        REQUIRE(ms_error_value() > request.budget_bytes);
    } else if (status == MS_OK) {
        REQUIRE(summary_of(plan).predicted_peak_bytes <= request.budget_bytes);
    } else {
        REQUIRE(status == MS_E_LIMIT);
    }
    ms_plan_destroy(plan);
}

static void use_units(const ms_plan *plan, const ms_plan_summary *summary) {
    ms_unit units[MAX_UNITS];
    if (summary->n_units > MAX_UNITS) return;
    for (int64_t i = 0; i < summary->n_units; i++) {
        ms_plan_entry entry = {.struct_bytes = sizeof entry};
        REQUIRE(ms_plan_get_entry(plan, i, &entry) == MS_OK);
        REQUIRE(entry.cost_ppm >= 0 && entry.cost_ppm <= 333334);
        units[i] = entry.unit;
    }
    REQUIRE(ms_plan_check_units(plan, units, summary->n_units) == MS_OK);
    plan_again(units, summary, MS_PLAN_FASTEST);
    plan_again(units, summary, MS_PLAN_FORCE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ms_plan *plan = NULL;
    ms_status status = ms_plan_from_json((const char *)data, n_bytes, &plan);
    if (status != MS_OK) {
        REQUIRE(status == MS_E_PARSE || status == MS_E_VERSION || status == MS_E_INVALID || status == MS_E_LIMIT);
        REQUIRE(plan == NULL);
        return 0;
    }
    ms_plan_summary summary = summary_of(plan);
    check_round_trip(plan, &summary);
    use_units(plan, &summary);
    ms_plan_destroy(plan);
    return 0;
}
