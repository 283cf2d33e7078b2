/* fuzz_plan.c - any bytes as a plan. A plan that can be read is written and reads back equal, and matches its own
 * units. Then its model is planned again, which tests the search with sizes that no model has.
 */
#include "fuzz.h"

#include <string.h>

#include <memscale/memscale.h>

#include "error_info.h"
#include "plans.h"

#define MAX_UNITS 8                  /* of the models that are planned again: the search takes milliseconds for many */
#define MAX_BYTES (INT64_MAX / 1024) /* of a tensor */

const char *const fuzz_dictionary[] = {"\"memscale_plan\": 3",
                                       "\"baseline_peak_bytes\": ",
                                       "\"predicted_peak_bytes\": ",
                                       "\"budget_bytes\": ",
                                       "\"margin_bytes\": ",
                                       "\"host_limit_bytes\": ",
                                       "\"host_bytes\": ",
                                       "\"baseline_ns\": ",
                                       "\"step_ns\": ",
                                       "\"slowdown_ppm\": ",
                                       "\"batch\": ",
                                       "\"length\": ",
                                       "\"skipped\": 0",
                                       "\"model_options\": [",
                                       "\"half\"",
                                       "\"8bit\"",
                                       "\"offload_gradients\"",
                                       "\"tile_loss\"",
                                       "\"flags\": [",
                                       "\"force\"",
                                       "\"fastest\"",
                                       "\"peak_unit\": -1",
                                       "\"peak_phase\": \"backward\"",
                                       "\"optimizer_step\"",
                                       "\"parts\": {",
                                       "\"activations\": 0",
                                       "\"library_workspaces\": 0",
                                       "\"units\": [",
                                       "\"name\": \"a\"",
                                       "\"action\": \"keep\"",
                                       "\"recompute\"",
                                       "\"offload_blocking\"",
                                       "\"tile\"",
                                       "\"reason\": \"saves\"",
                                       "\"other\": \"offload\"",
                                       "\"other_reason\": \"slower\"",
                                       "\"no_gain\"",
                                       "\"not_run\"",
                                       "\"param_bytes\": ",
                                       "\"plain_bytes\": ",
                                       "\"held_bytes\": ",
                                       "\"extra_ns\": ",
                                       "\"other_bytes\": ",
                                       "\"other_ns\": ",
                                       "4611686018427387904",
                                       "-2305843009213693952",
                                       "-1",
                                       "0",
                                       NULL};

static ms_plan_summary checked_summary(const ms_plan *plan) {
    ms_plan_summary summary = {.struct_bytes = sizeof summary};
    REQUIRE(ms_plan_get_summary(plan, &summary) == MS_OK);
    REQUIRE(summary.baseline_peak_bytes >= 0 && summary.predicted_peak_bytes >= 0);
    REQUIRE(summary.n_changed >= 0 && summary.n_changed <= summary.n_units);
    REQUIRE(summary.peak_unit >= -1 && summary.peak_unit < summary.n_units);
    REQUIRE(summary.peak_phase >= 0 && summary.peak_phase < MS_N_PHASES);
    REQUIRE((summary.model_options & ~(uint32_t)MS_MODEL_ALL) == 0);
    return summary;
}

static void check_text(const ms_plan *plan) {
    char *text = NULL;
    REQUIRE(ms_plan_explain(plan, &text) == MS_OK);
    REQUIRE(strlen(text) > 0);
    ms_free(text);
}

static void check_round_trip(const ms_plan *plan, const ms_plan_summary *summary) {
    char *first = NULL, *second = NULL;
    ms_plan *back = NULL;
    REQUIRE(ms_plan_to_json(plan, &first) == MS_OK);
    REQUIRE(ms_plan_from_json(first, strlen(first), &back) == MS_OK);
    REQUIRE(ms_plan_to_json(back, &second) == MS_OK);
    REQUIRE(strcmp(first, second) == 0);
    ms_plan_summary again = checked_summary(back);
    REQUIRE(memcmp(summary, &again, sizeof again) == 0);
    ms_plan_destroy(back);
    ms_free(first);
    ms_free(second);
}

static int64_t as_size(int64_t value) { return value < 0 ? 0 : value > MAX_BYTES ? MAX_BYTES : value; }

/* A profile whose sizes are those of the plan; NULL if that is impossible. */
static ms_profile *profile_of(const ms_unit *units, const ms_plan_summary *plan) {
    ms_profile *profile = NULL;
    ms_status status = try_profile_with(units, plan->n_units, as_size(plan->baseline_peak_bytes / 8),
                                        as_size(plan->baseline_peak_bytes / 16), &profile);
    REQUIRE(status == MS_OK || status == MS_E_LIMIT);
    return profile;
}

static void plan_again(const ms_profile *profile, const ms_plan_summary *old, uint32_t flags) {
    ms_plan_request request = {.struct_bytes = sizeof request,
                               .profile = profile,
                               .device = &exact_device,
                               .budget_bytes = old->budget_bytes,
                               .margin_bytes = old->margin_bytes,
                               .host_limit_bytes = old->host_limit_bytes,
                               .slowdown_ppm = old->budget_bytes % 1000000001,
                               .actions = (1U << MS_N_ACTIONS) - 1,
                               .flags = flags};
    ms_plan *plan = NULL;
    ms_status status = ms_plan_create(&request, &plan);
    int64_t usable = request.budget_bytes - request.margin_bytes;
    if (status == MS_E_BUDGET) {
        int64_t smallest = error_info().needed_bytes;
        REQUIRE(smallest > usable);
        request.margin_bytes = 0;
        request.budget_bytes = smallest > 0 ? smallest : 1;
        status = ms_plan_create(&request, &plan); /* enough, if it is a valid budget */
        REQUIRE(status == MS_OK || (status == MS_E_LIMIT && smallest > INT64_MAX / 8));
        usable = smallest;
    }
    if (status == MS_OK) {
        ms_plan_summary summary = checked_summary(plan);
        REQUIRE(summary.skipped || summary.predicted_peak_bytes <= usable);
        check_round_trip(plan, &summary);
        check_text(plan);
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
        REQUIRE(entry.action >= 0 && entry.action < MS_N_ACTIONS && entry.other >= 0 && entry.other < MS_N_ACTIONS);
        units[i] = (ms_unit){.name = entry.name,
                             .param_bytes = entry.param_bytes,
                             .saved_bytes = as_size(entry.plain_bytes),
                             .input_bytes = as_size(entry.held_bytes),
                             .n_rows = entry.extra_ns % 65536,
                             .flags = entry.reason == MS_REASON_NOT_ELIGIBLE ? MS_UNIT_RUN
                                      : entry.reason == MS_REASON_NOT_RUN    ? MS_UNIT_ELIGIBLE
                                                                             : MS_UNIT_ELIGIBLE | MS_UNIT_RUN};
    }
    REQUIRE(ms_plan_check_units(plan, units, summary->n_units) == MS_OK);
    ms_profile *profile = profile_of(units, summary);
    if (profile == NULL) return;
    plan_again(profile, summary, MS_PLAN_FASTEST);
    plan_again(profile, summary, MS_PLAN_FORCE);
    plan_again(profile, summary, 0);
    ms_profile_destroy(profile);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ms_plan *plan = NULL;
    ms_status status = ms_plan_from_json((const char *)data, n_bytes, &plan);
    if (status != MS_OK) {
        REQUIRE(status == MS_E_PARSE || status == MS_E_VERSION || status == MS_E_INVALID || status == MS_E_LIMIT);
        REQUIRE(plan == NULL);
        return 0;
    }
    ms_plan_summary summary = checked_summary(plan);
    check_round_trip(plan, &summary);
    check_text(plan);
    use_units(plan, &summary);
    ms_plan_destroy(plan);
    return 0;
}
