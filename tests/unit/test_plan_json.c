/* test_plan_json.c - plans as files: there and back, a golden plan, strictness, and the match against a model.
 *
 * What is refused is the golden text with one thing changed, so that nothing else can be the cause.
 */
#include "plans.h"

#include <stdlib.h>
#include <string.h>

/* Reviewed like code: a change here changes every plan that is on disk. */
static const char golden[] = "{\n"
                             "  \"memscale_plan\": 1,\n"
                             "  \"state_bytes\": 1024000,\n"
                             "  \"rest_bytes\": 51200,\n"
                             "  \"budget_bytes\": 1228800,\n"
                             "  \"skipped\": false,\n"
                             "  \"units\": [\n"
                             "    {\n"
                             "      \"name\": \"embed \\\"in\\\"\",\n"
                             "      \"action\": \"keep\",\n"
                             "      \"reason\": \"not eligible\",\n"
                             "      \"param_bytes\": 4096,\n"
                             "      \"saved_bytes\": 20480,\n"
                             "      \"boundary_bytes\": 0,\n"
                             "      \"n_rows\": 0,\n"
                             "      \"eligible\": false,\n"
                             "      \"run\": true\n"
                             "    },\n"
                             "    {\n"
                             "      \"name\": \"layers.0\",\n"
                             "      \"action\": \"recompute\",\n"
                             "      \"reason\": \"saves\",\n"
                             "      \"param_bytes\": 65536,\n"
                             "      \"saved_bytes\": 102400,\n"
                             "      \"boundary_bytes\": 10240,\n"
                             "      \"n_rows\": 32,\n"
                             "      \"eligible\": true,\n"
                             "      \"run\": true\n"
                             "    },\n"
                             "    {\n"
                             "      \"name\": \"layers.\xC3\xA9\",\n"
                             "      \"action\": \"keep\",\n"
                             "      \"reason\": \"not needed\",\n"
                             "      \"param_bytes\": 65536,\n"
                             "      \"saved_bytes\": 102400,\n"
                             "      \"boundary_bytes\": 10240,\n"
                             "      \"n_rows\": 32,\n"
                             "      \"eligible\": true,\n"
                             "      \"run\": true\n"
                             "    }\n"
                             "  ]\n"
                             "}\n";
static const uint64_t golden_fingerprint = UINT64_C(0x03FE632A71D6527B);

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
    ms_plan_request request = request_of(units, 3, 1200 * KB, MS_PLAN_FASTEST);
    return plan_of(&request);
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
        CHECK_EQ_STR(x.unit.name, y.unit.name);
        x.unit.name = y.unit.name = NULL;
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
    static const uint32_t flags[] = {0, MS_PLAN_FASTEST, MS_PLAN_FORCE, MS_PLAN_RECOMPUTE_ALL};
    static const int64_t budgets[] = {1130 * KB, 1200 * KB, 1450 * KB, 100000 * KB};
    ms_unit units[4];
    equal_units(units);
    for (size_t f = 0; f < sizeof flags / sizeof *flags; f++) {
        for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
            ms_plan_request request = request_of(units, 4, budgets[b], flags[f]);
            ms_plan *plan = plan_of(&request);
            check_round_trip(plan);
            ms_plan_destroy(plan);
        }
    }
}

TEST(a_plan_without_units_comes_back) {
    ms_plan_request request = request_of(NULL, 0, 1450 * KB, 0);
    ms_plan *plan = plan_of(&request);
    check_round_trip(plan);
    ms_plan_destroy(plan);
}

TEST(strange_names_come_back) {
    static const char *const names[] = {"\"",      "\\",    "\n\t\x01\x1F\x7F", "/", "\xF0\x9F\x98\x80", " ",
                                        "\\u0041", "a.b[0]"};
    ms_unit units[8];
    for (int i = 0; i < 8; i++) units[i] = plain_unit(names[i], 10 * KB, 0);
    ms_plan_request request = request_of(units, 8, 100000 * KB, MS_PLAN_FORCE);
    ms_plan *plan = plan_of(&request);
    check_round_trip(plan);
    CHECK_STATUS(ms_plan_check_units(plan, units, 8), MS_OK);
    ms_plan_destroy(plan);
}

/* Behaviour changes it (names, sizes of parameters, actions); what was measured does not. */
TEST(the_fingerprint_is_of_behaviour) {
    ms_unit units[4];
    equal_units(units);
    ms_plan_request request = request_of(units, 4, 100000 * KB, MS_PLAN_FORCE);
    ms_plan *plan = plan_of(&request);
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
        request.flags = table[i].flags;
        plan = plan_of(&request);
        CHECK_EQ_INT(summary_of(plan).fingerprint == first, table[i].same);
        ms_plan_destroy(plan);
    }
}

/* The golden text with the first `old` replaced. */
static const char *with(const char *old, const char *new) {
    static char text[2 * sizeof golden];
    const char *at = strstr(golden, old);
    CHECK(at != NULL && strlen(new) < sizeof golden);
    size_t n = (size_t)(at - golden);
    memcpy(text, golden, n);
    memcpy(text + n, new, strlen(new));
    memcpy(text + n + strlen(new), at + strlen(old), strlen(at + strlen(old)) + 1);
    return text;
}

static void check_refused(const char *text, ms_status wanted) {
    ms_plan *plan = NULL;
    ms_status status = ms_plan_from_json(text, strlen(text), &plan);
    if (status != wanted) test_fail(__FILE__, __LINE__, "%s for: %s", ms_status_name(status), text);
    CHECK(plan == NULL);
    CHECK(ms_error_message()[0] != '\0');
}

TEST(versions) {
    check_refused(with("\"memscale_plan\": 1", "\"memscale_plan\": 2"), MS_E_VERSION);
    check_refused("{\"memscale_plan\": 3, \"future\": true}", MS_E_VERSION);
    check_refused(with("\"memscale_plan\": 1", "\"memscale_plan\": 0"), MS_E_PARSE);
    check_refused(with("\"memscale_plan\": 1", "\"memscale_plan\": true"), MS_E_PARSE);
    check_refused(with("memscale_plan", "memscale_hw"), MS_E_PARSE);
}

TEST(unknown_and_missing_keys) {
    check_refused(with("\"skipped\": false", "\"skipped\": false, \"colour\": 1"), MS_E_PARSE);
    CHECK(strstr(ms_error_message(), "colour") != NULL);
    check_refused(with("\"n_rows\": 0", "\"n_rows\": 0, \"colour\": 1"), MS_E_PARSE);
    static const char *const lines[] = {
        "  \"state_bytes\": 1024000,\n",  "  \"rest_bytes\": 51200,\n",      "  \"budget_bytes\": 1228800,\n",
        "  \"skipped\": false,\n",        "      \"name\": \"layers.0\",\n", "      \"action\": \"keep\",\n",
        "      \"reason\": \"saves\",\n", "      \"param_bytes\": 4096,\n",  "      \"saved_bytes\": 20480,\n",
        "      \"boundary_bytes\": 0,\n", "      \"n_rows\": 0,\n",          "      \"eligible\": false,\n",
        ",\n      \"run\": true"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) check_refused(with(lines[i], ""), MS_E_PARSE);
}

TEST(wrong_values) {
    static const struct {
        const char *old, *new;
        ms_status status;
    } table[] = {{"\"state_bytes\": 1024000", "\"state_bytes\": -1", MS_E_PARSE},
                 {"\"state_bytes\": 1024000", "\"state_bytes\": 1.5", MS_E_PARSE},
                 {"\"state_bytes\": 1024000", "\"state_bytes\": 9223372036854775807", MS_E_LIMIT},
                 {"\"state_bytes\": 1024000", "\"state_bytes\": 9223372036854775808", MS_E_PARSE},
                 {"\"rest_bytes\": 51200", "\"rest_bytes\": 1152921504606846976", MS_E_LIMIT},
                 {"\"budget_bytes\": 1228800", "\"budget_bytes\": 0", MS_E_PARSE},
                 {"\"budget_bytes\": 1228800", "\"budget_bytes\": 2305843009213693952", MS_E_LIMIT},
                 {"\"skipped\": false", "\"skipped\": 0", MS_E_PARSE},
                 {"\"name\": \"layers.0\"", "\"name\": \"\"", MS_E_INVALID},
                 {"\"name\": \"layers.0\"", "\"name\": \"a\\u0000b\"", MS_E_PARSE},
                 {"\"name\": \"layers.0\"", "\"name\": 5", MS_E_PARSE},
                 {"\"keep\"", "\"Keep\"", MS_E_PARSE},
                 {"\"keep\"", "\"?\"", MS_E_PARSE},
                 {"\"keep\"", "0", MS_E_PARSE},
                 {"\"saves\"", "\"because\"", MS_E_PARSE},
                 {"\"saves\"", "\"?\"", MS_E_PARSE},
                 {"\"n_rows\": 32", "\"n_rows\": -32", MS_E_PARSE},
                 {"\"saved_bytes\": 20480", "\"saved_bytes\": 9223372036854775807", MS_E_LIMIT},
                 {"\"param_bytes\": 65536", "\"param_bytes\": 1152921504606846975", MS_E_LIMIT},
                 {"\"run\": true", "\"run\": null", MS_E_PARSE},
                 {"\"units\": [", "\"units\": [7,", MS_E_PARSE},
                 {"\"units\": [", "\"units\": [[],", MS_E_PARSE}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        check_refused(with(table[i].old, table[i].new), table[i].status);
    check_refused("{\"memscale_plan\":1,\"state_bytes\":0,\"rest_bytes\":0,\"budget_bytes\":1,\"skipped\":false,"
                  "\"units\":{}}",
                  MS_E_PARSE);
}

TEST(what_is_no_plan) {
    static const char *const texts[] = {"", "null", "[]", "{}", "1", "\"memscale_plan\"", "{\"memscale_plan\": 1}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check_refused(texts[i], MS_E_PARSE);
    size_t n = strlen(golden) - 1; /* without the newline behind the bracket */
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
      CASE(unknown_and_missing_keys), CASE(wrong_values), CASE(what_is_no_plan), CASE(units_match_in_any_order),
      CASE(mismatches_are_named), CASE(arguments_are_checked));
