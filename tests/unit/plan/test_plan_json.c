/* test_plan_json.c - plans as files: round trips, a golden plan, strictness, and the match with a model.
 *
 * What is refused is the golden text with one thing changed, so that nothing else can be the cause.
 */
#include "plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reviewed like code: a change here changes every plan that is on disk. */
static const char golden[] = "{\n"
                             "  \"memscale_plan\": 4,\n"
                             "  \"baseline_peak_bytes\": 1300480,\n"
                             "  \"predicted_peak_bytes\": 1208320,\n"
                             "  \"budget_bytes\": 1228800,\n"
                             "  \"margin_bytes\": 0,\n"
                             "  \"host_limit_bytes\": 0,\n"
                             "  \"host_bytes\": 0,\n"
                             "  \"baseline_ns\": 676032,\n"
                             "  \"step_ns\": 778472,\n"
                             "  \"slowdown_ppm\": 151531,\n"
                             "  \"batch\": 0,\n"
                             "  \"length\": 0,\n"
                             "  \"skipped\": 0,\n"
                             "  \"model_options\": [],\n"
                             "  \"flags\": [\n"
                             "    \"fastest\"\n"
                             "  ],\n"
                             "  \"peak_unit\": -1,\n"
                             "  \"peak_phase\": \"loss\",\n"
                             "  \"parts\": {\n"
                             "    \"activations\": 184320,\n"
                             "    \"parameters\": 1024000,\n"
                             "    \"buffers\": 0,\n"
                             "    \"inputs\": 0,\n"
                             "    \"gradients\": 0,\n"
                             "    \"optimizer_state\": 0,\n"
                             "    \"temporaries\": 0,\n"
                             "    \"library_workspaces\": 0\n"
                             "  },\n"
                             "  \"reserved_bytes\": 1208320,\n"
                             "  \"needed_bytes\": 1208320,\n"
                             "  \"occupied_bytes\": 0,\n"
                             "  \"grows\": 0,\n"
                             "  \"is_cramped\": 0,\n"
                             "  \"units\": [\n"
                             "    {\n"
                             "      \"name\": \"embed \\\"in\\\"\",\n"
                             "      \"action\": \"keep\",\n"
                             "      \"reason\": \"not_eligible\",\n"
                             "      \"other\": \"keep\",\n"
                             "      \"other_reason\": \"no_gain\",\n"
                             "      \"param_bytes\": 4096,\n"
                             "      \"plain_bytes\": 20480,\n"
                             "      \"held_bytes\": 20480,\n"
                             "      \"host_bytes\": 0,\n"
                             "      \"extra_ns\": 0,\n"
                             "      \"other_bytes\": 0,\n"
                             "      \"other_ns\": 0\n"
                             "    },\n"
                             "    {\n"
                             "      \"name\": \"layers.0\",\n"
                             "      \"action\": \"recompute\",\n"
                             "      \"reason\": \"saves\",\n"
                             "      \"other\": \"keep\",\n"
                             "      \"other_reason\": \"over_budget\",\n"
                             "      \"param_bytes\": 65536,\n"
                             "      \"plain_bytes\": 102400,\n"
                             "      \"held_bytes\": 10240,\n"
                             "      \"host_bytes\": 0,\n"
                             "      \"extra_ns\": 102440,\n"
                             "      \"other_bytes\": 92160,\n"
                             "      \"other_ns\": -102440\n"
                             "    },\n"
                             "    {\n"
                             "      \"name\": \"layers.\xC3\xA9\",\n"
                             "      \"action\": \"keep\",\n"
                             "      \"reason\": \"not_needed\",\n"
                             "      \"other\": \"recompute\",\n"
                             "      \"other_reason\": \"slower\",\n"
                             "      \"param_bytes\": 65536,\n"
                             "      \"plain_bytes\": 102400,\n"
                             "      \"held_bytes\": 102400,\n"
                             "      \"host_bytes\": 0,\n"
                             "      \"extra_ns\": 0,\n"
                             "      \"other_bytes\": -51200,\n"
                             "      \"other_ns\": 102440\n"
                             "    }\n"
                             "  ]\n"
                             "}\n";
static const uint64_t golden_fingerprint = UINT64_C(0xc95314985ba1d6c1);

static void golden_units(ms_unit units[3]) {
    units[0] = plain_unit("embed \"in\"", 20 * KB, 0);
    units[0].param_bytes = 4 * KB;
    units[0].flags = MS_UNIT_RUN;
    units[1] = plain_unit("layers.0", 100 * KB, 10 * KB);
    units[2] = plain_unit("layers.\xC3\xA9", 100 * KB, 10 * KB);
    units[1].param_bytes = units[2].param_bytes = 64 * KB;
    units[1].n_rows = units[2].n_rows = 32;
}

static ms_plan *golden_plan(void) {
    ms_unit units[3];
    golden_units(units);
    return plan_for(units, 3, 1200 * KB, MS_PLAN_FASTEST);
}

static char *text_of(const ms_plan *plan) {
    char *text = NULL;
    CHECK_STATUS(ms_plan_to_json(plan, &text), MS_OK);
    return text;
}

static void check_equal(const ms_plan *a, const ms_plan *b) {
    ms_plan_summary left = summary_of(a), right = summary_of(b);
    CHECK(memcmp(&left, &right, sizeof left) == 0);
    for (int64_t i = 0; i < left.n_units; i++) {
        ms_plan_entry x = entry_of(a, i), y = entry_of(b, i);
        CHECK_EQ_STR(x.name, y.name);
        x.name = y.name = NULL;
        CHECK(memcmp(&x, &y, sizeof x) == 0);
    }
}

static void check_round_trip(const ms_plan *plan) {
    ms_plan *back = NULL;
    char *text = text_of(plan);
    CHECK_STATUS(ms_plan_from_json(text, strlen(text), &back), MS_OK);
    check_equal(plan, back);
    char *again = text_of(back);
    CHECK_EQ_STR(text, again);
    ms_free(text);
    ms_free(again);
    ms_plan_destroy(back);
}

TEST(the_golden_plan) {
    ms_plan *plan = golden_plan();
    char *text = text_of(plan);
    CHECK_EQ_STR(text, golden);
    CHECK_EQ_U64(summary_of(plan).fingerprint, golden_fingerprint);
    ms_free(text);
    ms_plan_destroy(plan);
}

TEST(plans_come_back_equal) {
    static const uint32_t flags[] = {0, MS_PLAN_FASTEST, MS_PLAN_FORCE};
    static const int64_t budgets[] = {1130 * KB, 1200 * KB, 1450 * KB, 100000 * KB};
    ms_unit units[4];
    equal_units(units);
    for (size_t f = 0; f < sizeof flags / sizeof *flags; f++) {
        for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
            ms_plan *plan = plan_for(units, 4, budgets[b], flags[f]);
            check_round_trip(plan);
            ms_plan_destroy(plan);
        }
    }
}

TEST(a_plan_without_units_comes_back) {
    ms_plan *plan = plan_for(NULL, 0, 1450 * KB, 0);
    check_round_trip(plan);
    ms_plan_destroy(plan);
}

TEST(strange_names_come_back) {
    static const char *const names[] = {"\"",      "\\",    "\n\t\x01\x1F\x7F", "/", "\xF0\x9F\x98\x80", " ",
                                        "\\u0041", "a.b[0]"};
    ms_unit units[8];
    for (int i = 0; i < 8; i++) units[i] = plain_unit(names[i], 10 * KB, 0);
    ms_plan *plan = plan_for(units, 8, 100000 * KB, MS_PLAN_FORCE);
    check_round_trip(plan);
    CHECK_STATUS(ms_plan_check_units(plan, units, 8), MS_OK);
    ms_plan_destroy(plan);
}

/* It changes with behaviour (names, sizes of parameters, actions), not with measurements. */
TEST(the_fingerprint_is_of_behaviour) {
    ms_unit units[4];
    equal_units(units);
    ms_plan *plan = plan_for(units, 4, 100000 * KB, MS_PLAN_FORCE);
    uint64_t first = summary_of(plan).fingerprint;
    ms_plan_destroy(plan);
    const struct {
        const char *name;
        int64_t param_bytes, saved_bytes;
        uint32_t flags;
        int same;
    } table[] = {{"layers.2", 0, 100 * KB, MS_PLAN_FORCE, 1},
                 {"layers.2", 0, 101 * KB, MS_PLAN_FORCE, 1},
                 {"layers.2", 1, 100 * KB, MS_PLAN_FORCE, 0},
                 {"layers.x", 0, 100 * KB, MS_PLAN_FORCE, 0},
                 {"layers.2", 0, 100 * KB, MS_PLAN_FASTEST, 0}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        units[2] = plain_unit(table[i].name, table[i].saved_bytes, 10 * KB);
        units[2].param_bytes = table[i].param_bytes;
        plan = plan_for(units, 4, 100000 * KB, table[i].flags);
        CHECK_EQ_INT(summary_of(plan).fingerprint == first, table[i].same);
        ms_plan_destroy(plan);
    }
}

/* The golden text with the first `old` replaced. */
static const char *with(const char *old, const char *new) {
    static char text[2 * sizeof golden];
    return test_replace(golden, old, new, text, sizeof text);
}

static void check_refused(const char *text, ms_status wanted) {
    ms_plan *plan = NULL;
    ms_status status = ms_plan_from_json(text, strlen(text), &plan);
    if (status != wanted) test_fail(__FILE__, __LINE__, "%s for: %s", ms_status_name(status), text);
    CHECK(plan == NULL);
    CHECK(ms_error_message()[0] != '\0');
}

TEST(versions) {
    check_refused(with("\"memscale_plan\": 4", "\"memscale_plan\": 1"), MS_E_VERSION); /* the first one */
    check_refused(with("\"memscale_plan\": 4", "\"memscale_plan\": 2"), MS_E_VERSION);
    check_refused(with("\"memscale_plan\": 4", "\"memscale_plan\": 3"), MS_E_VERSION);
    check_refused("{\"memscale_plan\": 5, \"future\": true}", MS_E_VERSION);
    CHECK(strstr(ms_error_message(), "version 5") != NULL);
    check_refused(with("\"memscale_plan\": 4", "\"memscale_plan\": 0"), MS_E_PARSE);
    check_refused(with("\"memscale_plan\": 4", "\"memscale_plan\": true"), MS_E_PARSE);
    check_refused(with("memscale_plan", "memscale_hw"), MS_E_PARSE);
}

/* Every key of a plan and of a unit. The keys of units follow those of the plan. So if both have a key, the first is
 * the plan's: "host_bytes" of a unit is tested separately. */
static const char *const keys[] = {"baseline_peak_bytes",
                                   "predicted_peak_bytes",
                                   "budget_bytes",
                                   "margin_bytes",
                                   "host_limit_bytes",
                                   "host_bytes",
                                   "baseline_ns",
                                   "step_ns",
                                   "slowdown_ppm",
                                   "batch",
                                   "length",
                                   "skipped",
                                   "model_options",
                                   "flags",
                                   "peak_unit",
                                   "peak_phase",
                                   "parts",
                                   "activations",
                                   "optimizer_state",
                                   "library_workspaces",
                                   "units",
                                   "name",
                                   "action",
                                   "reason",
                                   "other",
                                   "other_reason",
                                   "param_bytes",
                                   "plain_bytes",
                                   "held_bytes",
                                   "extra_ns",
                                   "other_bytes",
                                   "other_ns"};

enum { N_KEYS = sizeof keys / sizeof *keys };

TEST(unknown_missing_and_duplicate_keys) {
    char old[64], new[64];
    for (size_t i = 0; i < N_KEYS; i++) { /* an unknown key, and the right one missing */
        (void)snprintf(old, sizeof old, "\"%s\"", keys[i]);
        (void)snprintf(new, sizeof new, "\"%sx\"", keys[i]);
        check_refused(with(old, new), MS_E_PARSE);
        CHECK(strstr(ms_error_message(), keys[i]) != NULL);
        (void)snprintf(new, sizeof new, "\"%s\": 0, \"%s\"", keys[i], keys[i]);
        check_refused(with(old, new), MS_E_PARSE); /* twice */
    }
    check_refused(with("\"skipped\": 0", "\"skipped\": 0, \"aim_bytes\": -1"), MS_E_PARSE);
    check_refused(with("\"skipped\": 0", "\"skipped\": 0, \"full_speed_bytes\": true"), MS_E_PARSE);
    check_refused(with("\"skipped\": 0", "\"skipped\": 0, \"spacer_bytes\": -1"), MS_E_PARSE);
    check_refused(with("\"skipped\": 0", "\"skipped\": 0, \"spacer_bytes\": 1, \"spacer_unit\": 9"), MS_E_PARSE);
    check_refused(with("\"skipped\": 0", "\"skipped\": 0, \"colour\": 1"), MS_E_PARSE);
    CHECK(strstr(ms_error_message(), "colour") != NULL);
    check_refused(with("\"other_ns\": 0", "\"other_ns\": 0, \"colour\": 1"), MS_E_PARSE);
    static const char *const lines[] = {"  \"baseline_peak_bytes\": 1300480,\n",
                                        "  \"margin_bytes\": 0,\n",
                                        "  \"skipped\": 0,\n",
                                        "  \"model_options\": [],\n",
                                        "  \"peak_unit\": -1,\n",
                                        "    \"activations\": 184320,\n",
                                        ",\n    \"library_workspaces\": 0",
                                        "      \"name\": \"layers.0\",\n",
                                        "      \"action\": \"keep\",\n",
                                        "      \"other_reason\": \"no_gain\",\n",
                                        "      \"param_bytes\": 4096,\n",
                                        "      \"host_bytes\": 0,\n",
                                        ",\n      \"other_ns\": 0"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) check_refused(with(lines[i], ""), MS_E_PARSE);
}

TEST(wrong_types) {
    static const char *const others[] = {"null", "true", "1.5", "1e6", "\"1\"", "[]", "{}", "9223372036854775808"};
    char old[64], new[64];
    for (size_t i = 0; i < N_KEYS; i++) {
        const char *at = strstr(golden, keys[i]);
        while (at != NULL && strncmp(at + strlen(keys[i]), "\": ", 3) != 0) at = strstr(at + 1, keys[i]);
        CHECK(at != NULL);
        const char *value = at + strlen(keys[i]) + 3;
        (void)snprintf(old, sizeof old, "%s\": %.*s", keys[i], (int)strcspn(value, ",\n"), value);
        for (size_t j = 0; j < sizeof others / sizeof *others; j++) {
            if (strchr("[{", value[0]) != NULL || (value[0] == '"' && j == 4)) break; /* below */
            (void)snprintf(new, sizeof new, "%s\": %s", keys[i], others[j]);
            check_refused(with(old, new), MS_E_PARSE);
        }
    }
    static const char *const lists[] = {"0", "null", "\"half\"", "[0]", "[\"half\", 1]", "[null]", "{}"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        (void)snprintf(new, sizeof new, "\"model_options\": %s", lists[i]);
        check_refused(with("\"model_options\": []", new), MS_E_PARSE);
    }
    for (size_t i = 0; i < 6; i++) { /* the parts are not an object */
        (void)snprintf(new, sizeof new, "\"parts\": %s, \"also\": {", others[i]);
        check_refused(with("\"parts\": {", new), MS_E_PARSE);
    }
}

TEST(wrong_values) {
    static const struct {
        const char *old, *new;
        ms_status status;
    } table[] = {{"\"baseline_peak_bytes\": 1300480", "\"baseline_peak_bytes\": -1", MS_E_PARSE},
                 {"\"baseline_peak_bytes\": 1300480", "\"baseline_peak_bytes\": 9223372036854775807", MS_E_PARSE},
                 {"\"budget_bytes\": 1228800", "\"budget_bytes\": 0", MS_E_PARSE},
                 {"\"budget_bytes\": 1228800", "\"budget_bytes\": 4611686018427387905", MS_E_PARSE},
                 {"\"margin_bytes\": 0", "\"margin_bytes\": -1", MS_E_PARSE},
                 {"\"slowdown_ppm\": 151531", "\"slowdown_ppm\": -2305843009213693953", MS_E_PARSE},
                 {"\"skipped\": 0", "\"skipped\": 2", MS_E_PARSE},
                 {"\"model_options\": []", "\"model_options\": [\"8 bit\"]", MS_E_PARSE},
                 {"\"model_options\": []", "\"model_options\": [\"?\"]", MS_E_PARSE},
                 {"\"fastest\"", "\"slowest\"", MS_E_PARSE},
                 {"\"fastest\"", "\"?\"", MS_E_PARSE},
                 {"\"peak_unit\": -1", "\"peak_unit\": -2", MS_E_PARSE},
                 {"\"peak_unit\": -1", "\"peak_unit\": 3", MS_E_PARSE}, /* there are three */
                 {"\"loss\"", "\"before\"", MS_E_PARSE},
                 {"\"loss\"", "0", MS_E_PARSE},
                 {"\"inputs\": 0", "\"inputs\": 0, \"colour\": 1", MS_E_PARSE},
                 {"\"inputs\": 0", "\"inputs\": \"0\"", MS_E_PARSE},
                 {"\"inputs\": 0", "\"inputs\": 4611686018427387905", MS_E_PARSE},
                 {"\"name\": \"layers.0\"", "\"name\": \"\"", MS_E_INVALID},
                 {"\"name\": \"layers.0\"", "\"name\": \"a\\u0000b\"", MS_E_PARSE},
                 {"\"keep\"", "\"Keep\"", MS_E_PARSE},
                 {"\"keep\"", "\"?\"", MS_E_PARSE},
                 {"\"saves\"", "\"because\"", MS_E_PARSE},
                 {"\"saves\"", "\"?\"", MS_E_PARSE},
                 {"\"param_bytes\": 4096", "\"param_bytes\": -4096", MS_E_PARSE},
                 {"\"extra_ns\": 102440", "\"extra_ns\": -1", MS_E_PARSE},
                 {"\"other_ns\": -102440", "\"other_ns\": -9223372036854775807", MS_E_PARSE},
                 {"\"param_bytes\": 65536", "\"param_bytes\": 4611686018427387905", MS_E_PARSE},
                 {"\"units\": [", "\"units\": [7,", MS_E_PARSE},
                 {"\"units\": [", "\"units\": [[],", MS_E_PARSE},
                 {"\"units\": [", "\"units\": [null,", MS_E_PARSE}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        check_refused(with(table[i].old, table[i].new), table[i].status);
}

/* The least and the largest of every number, every model option and every flag. */
TEST(extremes_come_back) {
    static const char *const edges[][2] = {
        {"\"baseline_peak_bytes\": 1300480", "\"baseline_peak_bytes\": 4611686018427387904"},
        {"\"slowdown_ppm\": 151531", "\"slowdown_ppm\": -2305843009213693952"},
        {"\"model_options\": []",
         "\"model_options\": [\"half\", \"8bit\", \"offload\", \"offload_gradients\", \"tile_loss\"]"},
        {"\"fastest\"", "\"force\", \"fastest\""},
        {"\"model_options\": []", "\"model_options\": [\"8bit\", \"8bit\"]"}, /* a set */
        {"\"peak_unit\": -1", "\"peak_unit\": 2"},
        {"\"loss\"", "\"end\""},
        {"\"inputs\": 0", "\"inputs\": -4611686018427387904"},
        {"\"skipped\": 0", "\"skipped\": 1"},
        {"\"margin_bytes\": 0", "\"margin_bytes\": 0, \"aim_bytes\": 4611686018427387904"}, /* left out if it is 0 */
        {"\"margin_bytes\": 0", "\"margin_bytes\": 0, \"aim_bytes\": 0, \"full_speed_bytes\": 1"},
        {"\"margin_bytes\": 0",
         "\"margin_bytes\": 0, \"spacer_bytes\": 4611686018427387904, \"spacer_unit\": 1, \"spacer_saved_bytes\": 7"},
        {"\"plain_bytes\": 20480", "\"plain_bytes\": -2305843009213693952"},
        {"\"keep\"", "\"recompute_offload_blocking\""},
        {"\"saves\"", "\"higher_peak\""}};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        const char *text = with(edges[i][0], edges[i][1]);
        ms_plan *plan = NULL;
        CHECK_STATUS(ms_plan_from_json(text, strlen(text), &plan), MS_OK);
        check_round_trip(plan);
        ms_plan_destroy(plan);
    }
}

TEST(what_is_no_plan) {
    static const char *const texts[] = {"", "null", "[]", "{}", "1", "\"memscale_plan\"", "{\"memscale_plan\": 4}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check_refused(texts[i], MS_E_PARSE);
    size_t n = strlen(golden) - 1; /* without the newline after the bracket */
    for (size_t cut = 0; cut < n; cut++) {
        ms_plan *plan = NULL;
        CHECK_STATUS(ms_plan_from_json(golden, cut, &plan), MS_E_PARSE);
    }
}

TEST(units_match_in_any_order) {
    ms_unit units[3];
    golden_units(units);
    ms_plan *plan = golden_plan();
    CHECK_STATUS(ms_plan_check_units(plan, units, 3), MS_OK);
    ms_unit swapped[3] = {units[2], units[0], units[1]};
    swapped[0].saved_bytes = 7; /* only names and parameters count */
    swapped[1].flags = 0;
    CHECK_STATUS(ms_plan_check_units(plan, swapped, 3), MS_OK);
    ms_plan_destroy(plan);
}

TEST(mismatches_are_named) {
    ms_unit units[4];
    golden_units(units);
    units[3] = plain_unit("extra", KB, 0);
    ms_plan *plan = golden_plan();
    CHECK_STATUS(ms_plan_check_units(plan, units, 2), MS_E_MISMATCH);
    CHECK_STATUS(ms_plan_check_units(plan, units, 4), MS_E_MISMATCH);
    CHECK_STATUS(ms_plan_check_units(plan, NULL, 0), MS_E_MISMATCH);
    units[1].name = "layers.9";
    CHECK_STATUS(ms_plan_check_units(plan, units, 3), MS_E_MISMATCH);
    CHECK(strstr(ms_error_message(), "layers.0") != NULL && strstr(ms_error_message(), "layers.9") != NULL);
    units[1].name = NULL;
    CHECK_STATUS(ms_plan_check_units(plan, units, 3), MS_E_MISMATCH);
    golden_units(units);
    units[1].param_bytes++;
    CHECK_STATUS(ms_plan_check_units(plan, units, 3), MS_E_MISMATCH);
    CHECK(strstr(ms_error_message(), "65537") != NULL);
    ms_plan_destroy(plan);
}

TEST(arguments_are_checked) {
    ms_plan *plan = golden_plan(), *out = NULL;
    char *text = NULL;
    ms_unit units[3];
    golden_units(units);
    CHECK_STATUS(ms_plan_to_json(NULL, &text), MS_E_INVALID);
    CHECK_STATUS(ms_plan_to_json(plan, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_plan_from_json(NULL, 0, &out), MS_E_INVALID);
    CHECK_STATUS(ms_plan_from_json(golden, strlen(golden), NULL), MS_E_INVALID);
    CHECK_STATUS(ms_plan_check_units(NULL, units, 3), MS_E_INVALID);
    CHECK_STATUS(ms_plan_check_units(plan, NULL, 3), MS_E_INVALID);
    CHECK_STATUS(ms_plan_check_units(plan, units, -1), MS_E_INVALID);
    CHECK(text == NULL && out == NULL);
    ms_plan_destroy(plan);
}

SUITE(plan_json, CASE(the_golden_plan), CASE(plans_come_back_equal), CASE(a_plan_without_units_comes_back),
      CASE(strange_names_come_back), CASE(the_fingerprint_is_of_behaviour), CASE(versions),
      CASE(unknown_missing_and_duplicate_keys), CASE(wrong_types), CASE(wrong_values), CASE(extremes_come_back),
      CASE(what_is_no_plan), CASE(units_match_in_any_order), CASE(mismatches_are_named), CASE(arguments_are_checked));
