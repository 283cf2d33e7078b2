/* fuzz_profile.c - any bytes as a profile. One that reads writes and reads back equal, and is what a plan takes: sizes
 * that a profile lets through are never out of a plan's range.
 */
#include "fuzz.h"

#include <string.h>

#include <memscale/memscale.h>

#define BUDGET_BYTES ((int64_t)1 << 59)

const char *const fuzz_dictionary[] = {"\"memscale_profile\": 1",
                                       "\"state_bytes\": ",
                                       "\"rest_bytes\": ",
                                       "\"units\": [",
                                       "\"name\": \"a\"",
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

static ms_profile_view view_of(const ms_profile *profile) {
    ms_profile_view view = {.struct_bytes = sizeof view};
    REQUIRE(ms_profile_get(profile, &view) == MS_OK);
    return view;
}

static void check_round_trip(const ms_profile *profile) {
    char *text = NULL, *again = NULL;
    ms_profile *back = NULL;
    REQUIRE(ms_profile_to_json(profile, &text) == MS_OK);
    REQUIRE(ms_profile_from_json(text, strlen(text), &back) == MS_OK);
    REQUIRE(ms_profile_to_json(back, &again) == MS_OK);
    REQUIRE(strcmp(text, again) == 0);
    REQUIRE(view_of(back).n_units == view_of(profile).n_units);
    ms_free(text);
    ms_free(again);
    ms_profile_destroy(back);
}

/* Without a search, which fuzz_plan drives: all recomputed always works. */
static void check_plan(const ms_profile_view *view) {
    ms_plan_request request = {.struct_bytes = sizeof request,
                               .units = view->units,
                               .n_units = view->n_units,
                               .state_bytes = view->state_bytes,
                               .rest_bytes = view->rest_bytes,
                               .budget_bytes = BUDGET_BYTES,
                               .flags = MS_PLAN_RECOMPUTE_ALL};
    ms_plan_summary summary = {.struct_bytes = sizeof summary};
    ms_plan *plan = NULL;
    REQUIRE(ms_plan_create(&request, &plan) == MS_OK);
    REQUIRE(ms_plan_get_summary(plan, &summary) == MS_OK);
    REQUIRE(summary.n_units == view->n_units);
    REQUIRE(summary.baseline_peak_bytes >= 0 && summary.predicted_peak_bytes >= 0);
    REQUIRE(ms_plan_check_units(plan, view->units, view->n_units) == MS_OK);
    ms_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ms_profile *profile = NULL;
    ms_status status = ms_profile_from_json((const char *)data, n_bytes, &profile);
    if (status != MS_OK) {
        REQUIRE(status == MS_E_PARSE || status == MS_E_VERSION || status == MS_E_INVALID || status == MS_E_LIMIT);
        REQUIRE(profile == NULL);
        return 0;
    }
    ms_profile_view view = view_of(profile);
    check_round_trip(profile);
    check_plan(&view);
    ms_profile_destroy(profile);
    return 0;
}
