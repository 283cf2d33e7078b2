/* test_profile.c - profiles: copies of their sources, a golden file, strictness, and the limits of plans.
 *
 * What is refused is the golden text with one thing changed, so that nothing else can be the cause.
 */
#include "plans.h"

#include <stdio.h>
#include <string.h>

#include "profile/profile.h"

/* Reviewed like code: a change here changes every profile that is on disk. */
static const char golden[] = "{\n"
                             "  \"memscale_profile\": 4,\n"
                             "  \"resident_bytes\": 1024000,\n"
                             "  \"outside_bytes\": 51200,\n"
                             "  \"units\": [\n"
                             "    {\n"
                             "      \"name\": \"embed \\\"in\\\"\",\n"
                             "      \"param_bytes\": 4096,\n"
                             "      \"saved_bytes\": 20480,\n"
                             "      \"input_bytes\": 0,\n"
                             "      \"n_rows\": 0,\n"
                             "      \"eligible\": false,\n"
                             "      \"run\": true\n"
                             "    },\n"
                             "    {\n"
                             "      \"name\": \"layers.\xC3\xA9\",\n"
                             "      \"param_bytes\": 65536,\n"
                             "      \"saved_bytes\": 102400,\n"
                             "      \"input_bytes\": 10240,\n"
                             "      \"n_rows\": 32,\n"
                             "      \"eligible\": true,\n"
                             "      \"run\": false\n"
                             "    }\n"
                             "  ],\n"
                             "  \"step\": {\n"
                             "    \"batch\": 0,\n"
                             "    \"length\": 0,\n"
                             "    \"recomputed\": true,\n"
                             "    \"numbers\": [1024000,0,20480,51200],\n"
                             "    \"costs\": [1,2,4,0,1,1,4,0,1,2,4,32],\n"
                             "    \"scratches\": [],\n"
                             "    \"keys\": [0,1,1,0,2,0,3,0,2,6],\n"
                             "    \"rest\": [\n"
                             "      [0,[0,0]],\n"
                             "      [2,[2,1,0,3]],\n"
                             "      [3,[2,1,1,2]]\n"
                             "    ],\n"
                             "    \"classes\": [\n"
                             "      [\n"
                             "        [1,[2,0,0,1,0,2,0,1,1,-1],[2,0,[3,4,1],1,0]],\n"
                             "        [3,[2,2,0,4,2,0,2,0,1,0,1,-3,1,2],[2,0,2,0,1,2,1,-1]]\n"
                             "      ],\n"
                             "      []\n"
                             "    ],\n"
                             "    \"units\": [0,1],\n"
                             "    \"order\": [-1,0,-1,-1,0]\n"
                             "  }\n"
                             "}\n";

static void golden_units(ms_unit units[2]) {
    units[0] = plain_unit("embed \"in\"", 20 * KB, 0);
    units[0].param_bytes = 4 * KB;
    units[0].flags = MS_UNIT_RUN;
    units[1] = plain_unit("layers.\xC3\xA9", 100 * KB, 10 * KB);
    units[1].param_bytes = 64 * KB;
    units[1].n_rows = 32;
    units[1].flags = MS_UNIT_ELIGIBLE;
}

/* A profile of these units with 1000 KB resident and 50 KB outside of units. What the units need is not what their step
 * says but what is given, as in any file. */
static ms_profile *profile_of(const ms_unit *units, int64_t n_units) {
    ms_profile *profile = plain_profile(units, n_units);
    for (int64_t i = 0; i < n_units; i++) {
        const char *name = profile->units[i].name;
        profile->units[i] = units[i];
        profile->units[i].name = name;
    }
    return profile;
}

static ms_profile_view view_of(const ms_profile *profile) {
    ms_profile_view view = {.struct_bytes = sizeof view};
    CHECK_STATUS(ms_profile_get_view(profile, &view), MS_OK);
    return view;
}

static char *text_of(const ms_profile *profile) {
    char *text = NULL;
    CHECK_STATUS(ms_profile_to_json(profile, &text), MS_OK);
    return text;
}

static void check_equal(const ms_profile *a, const ms_profile *b) {
    ms_profile_view left = view_of(a), right = view_of(b);
    CHECK_EQ_INT(left.n_units, right.n_units);
    CHECK_EQ_INT(left.resident_bytes, right.resident_bytes);
    CHECK_EQ_INT(left.outside_bytes, right.outside_bytes);
    for (int64_t i = 0; i < left.n_units; i++) {
        ms_unit x = left.units[i], y = right.units[i];
        CHECK_EQ_STR(x.name, y.name);
        x.name = y.name = NULL;
        CHECK(memcmp(&x, &y, sizeof x) == 0);
    }
}

static void check_round_trip(const ms_profile *profile) {
    ms_profile *back = NULL;
    char *text = text_of(profile);
    CHECK_STATUS(ms_profile_from_json(text, strlen(text), &back), MS_OK);
    check_equal(profile, back);
    char *again = text_of(back);
    CHECK_EQ_STR(text, again);
    ms_free(text);
    ms_free(again);
    ms_profile_destroy(back);
}

TEST(the_golden_profile) {
    ms_unit units[2];
    golden_units(units);
    ms_profile *profile = profile_of(units, 2);
    char *text = text_of(profile);
    CHECK_EQ_STR(text, golden);
    check_round_trip(profile);
    ms_free(text);
    ms_profile_destroy(profile);
}

/* The key is optional: profiles that were written before it existed have no blocks. */
TEST(blocks_are_marked) {
    ms_unit units[2];
    golden_units(units);
    units[1].flags |= MS_UNIT_BLOCK;
    ms_profile *profile = profile_of(units, 2), *back = NULL;
    char *text = text_of(profile);
    CHECK(strstr(text, "\"run\": true\n") != NULL); /* written only if it is set */
    CHECK(strstr(text, "\"run\": false,\n      \"block\": true\n") != NULL);
    check_round_trip(profile);
    CHECK_STATUS(ms_profile_from_json(text, strlen(text), &back), MS_OK);
    CHECK_EQ_INT(view_of(back).units[0].flags, MS_UNIT_RUN);
    CHECK_EQ_INT(view_of(back).units[1].flags, MS_UNIT_ELIGIBLE | MS_UNIT_BLOCK);
    ms_free(text);
    ms_profile_destroy(profile);
    ms_profile_destroy(back);
}

TEST(a_profile_has_copies) {
    char name[] = "layers.0";
    ms_unit unit = plain_unit(name, 100 * KB, 10 * KB);
    ms_profile *profile = profile_of(&unit, 1);
    name[0] = 'x';
    unit.saved_bytes = 0;
    ms_profile_view view = view_of(profile);
    CHECK_EQ_INT(view.struct_bytes, sizeof view);
    CHECK_EQ_INT(view.n_units, 1);
    CHECK_EQ_INT(view.resident_bytes, 1000 * KB);
    CHECK_EQ_INT(view.outside_bytes, 50 * KB);
    CHECK_EQ_STR(view.units[0].name, "layers.0");
    CHECK_EQ_INT(view.units[0].saved_bytes, 100 * KB);
    ms_profile_destroy(profile);
}

TEST(a_profile_without_units_comes_back) {
    ms_profile *profile = profile_of(NULL, 0);
    CHECK_EQ_INT(view_of(profile).n_units, 0);
    check_round_trip(profile);
    ms_profile_destroy(profile);
}

TEST(strange_names_come_back) {
    static const char *const names[] = {"\"",      "\\",    "\n\t\x01\x1F\x7F", "/", "\xF0\x9F\x98\x80", " ",
                                        "\\u0041", "a.b[0]"};
    ms_unit units[8];
    for (int i = 0; i < 8; i++) units[i] = plain_unit(names[i], 10 * KB, 0);
    ms_profile *profile = profile_of(units, 8);
    check_round_trip(profile);
    ms_profile_destroy(profile);
}

/* A valid profile is also valid for a plan. */
TEST(a_profile_makes_a_plan) {
    ms_unit units[4];
    equal_units(units);
    ms_profile *profile = profile_of(units, 4);
    ms_plan_request request = request_of(profile, 1200 * KB, MS_PLAN_FASTEST);
    ms_plan *plan = plan_of(&request);
    ms_profile_destroy(profile); /* the plan has its own names */
    CHECK_STATUS(ms_plan_check_units(plan, units, 4), MS_OK);
    ms_plan_destroy(plan);
}

/* The golden text with the first `old` replaced. */
static const char *with(const char *old, const char *new) {
    static char text[2 * sizeof golden];
    return test_replace(golden, old, new, text, sizeof text);
}

static void check_refused(const char *text, ms_status wanted) {
    ms_profile *profile = NULL;
    ms_status status = ms_profile_from_json(text, strlen(text), &profile);
    if (status != wanted) test_fail(__FILE__, __LINE__, "%s for: %s", ms_status_name(status), text);
    CHECK(profile == NULL);
    CHECK(ms_error_message()[0] != '\0');
}

TEST(versions) {
    check_refused(with("\"memscale_profile\": 4", "\"memscale_profile\": 9"), MS_E_VERSION);
    check_refused("{\"memscale_profile\": 5, \"future\": true}", MS_E_VERSION);
    check_refused(with("\"memscale_profile\": 4", "\"memscale_profile\": 0"), MS_E_PARSE);
    check_refused(with("\"memscale_profile\": 4", "\"memscale_profile\": 4.0"), MS_E_PARSE);
    check_refused(with("memscale_profile", "memscale_plan"), MS_E_PARSE);
}

/* Older files are refused by their version, not by the first unknown key, since keys changed with each version. */
TEST(older_versions) {
    check_refused(with("\"memscale_profile\": 4", "\"memscale_profile\": 1"), MS_E_VERSION);
    check_refused(with("\"memscale_profile\": 4", "\"memscale_profile\": 2"), MS_E_VERSION);
    check_refused(with("\"memscale_profile\": 4", "\"memscale_profile\": 3"), MS_E_VERSION);
}

TEST(unknown_missing_and_duplicate_keys) {
    static const char *const keys[] = {"resident_bytes", "outside_bytes", "units",  "name",     "param_bytes",
                                       "saved_bytes",    "input_bytes",   "n_rows", "eligible", "run"};
    char old[64], new[64];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) { /* an unknown key, and the right one missing */
        (void)snprintf(old, sizeof old, "\"%s\"", keys[i]);
        (void)snprintf(new, sizeof new, "\"%sx\"", keys[i]);
        check_refused(with(old, new), MS_E_PARSE);
    }
    check_refused(with("\"n_rows\": 0", "\"n_rows\": 0, \"colour\": 1"), MS_E_PARSE);
    check_refused(with("\"n_rows\": 0", "\"n_rows\": 0, \"action\": \"keep\""), MS_E_PARSE);
    check_refused(with("\"outside_bytes\": 51200", "\"outside_bytes\": 51200, \"budget_bytes\": 1"), MS_E_PARSE);
    check_refused(with("      \"n_rows\": 0,\n", ""), MS_E_PARSE);
    check_refused(with("  \"outside_bytes\": 51200,\n", ""), MS_E_PARSE);
    check_refused(with("\"n_rows\": 0", "\"n_rows\": 0, \"n_rows\": 0"), MS_E_PARSE);
    check_refused(with("\"outside_bytes\": 51200", "\"outside_bytes\": 51200, \"outside_bytes\": 51200"), MS_E_PARSE);
}

TEST(wrong_types) {
    check_refused(with("1024000", "\"1024000\""), MS_E_PARSE);
    check_refused(with("1024000", "-1"), MS_E_PARSE);
    check_refused(with("1024000", "1e6"), MS_E_PARSE);
    check_refused(with("20480", "null"), MS_E_PARSE);
    check_refused(with("20480", "-1"), MS_E_PARSE);
    check_refused(with("20480", "18446744073709551615"), MS_E_PARSE);
    check_refused(with("\"eligible\": false", "\"eligible\": 0"), MS_E_PARSE);
    check_refused(with("\"name\": \"embed", "\"name\": \"\\u0000embed"), MS_E_PARSE);
    check_refused("{\"memscale_profile\": 4, \"resident_bytes\": 0, \"outside_bytes\": 0, \"units\": {}}", MS_E_PARSE);
    check_refused("{\"memscale_profile\": 4, \"resident_bytes\": 0, \"outside_bytes\": 0, \"units\": [1]}", MS_E_PARSE);
    check_refused("[]", MS_E_PARSE);
    check_refused("", MS_E_PARSE);
}

TEST(values_out_of_range) {
    check_refused(with("1024000", "1152921504606846976"), MS_E_LIMIT);
    check_refused(with("51200", "1152921504606846976"), MS_E_LIMIT);
    check_refused(with("\"saved_bytes\": 20480", "\"saved_bytes\": 1152921504606846976"), MS_E_LIMIT);
    check_refused(with("\"saved_bytes\": 20480", "\"saved_bytes\": 1152921504606846975"), MS_E_LIMIT); /* in sum */
    check_refused(with("\"n_rows\": 32", "\"n_rows\": 9223372036854775807"), MS_E_LIMIT);
    check_refused(with("embed \\\"in\\\"", ""), MS_E_INVALID);
}

/* A good file that is cut anywhere is refused. */
TEST(a_file_that_is_cut) {
    for (size_t n = 0; n < sizeof golden - 3; n++) {
        ms_profile *profile = NULL;
        CHECK_STATUS(ms_profile_from_json(golden, n, &profile), MS_E_PARSE);
        CHECK(profile == NULL);
    }
}

TEST(no_step) {
    const char *step = strstr(golden, ",\n  \"step\"");
    char text[sizeof golden + 8];
    (void)snprintf(text, sizeof text, "%.*s\n}\n", (int)(step - golden), golden);
    check_refused(text, MS_E_PARSE);
    CHECK_EQ_STR(ms_error_message(), "\"step\" is missing: the profile has no training step");
    check_refused(with("\"step\": {", "\"step\": null, \"also\": {"), MS_E_PARSE);
}

static void check_not_copied(const ms_unit *unit, ms_status wanted) {
    ms__arena arena = {0};
    ms_unit *copies = NULL;
    CHECK_STATUS(ms__units_copy(&arena, unit, 1, &copies), wanted);
    CHECK(copies == NULL);
    ms__arena_free(&arena);
}

TEST(units_that_are_refused) {
    ms_unit unit = plain_unit("a", 10, 1);
    unit.param_bytes = -1;
    check_not_copied(&unit, MS_E_LIMIT);
    unit = plain_unit("a", INT64_MAX, 1);
    check_not_copied(&unit, MS_E_LIMIT);
    unit = plain_unit(NULL, 10, 1);
    check_not_copied(&unit, MS_E_INVALID);
    unit = plain_unit("", 10, 1);
    check_not_copied(&unit, MS_E_INVALID);
}

TEST(missing_arguments) {
    ms_profile *profile = profile_of(NULL, 0);
    ms_profile_view view = {.struct_bytes = sizeof view, .n_units = 7};
    char *text = NULL;
    CHECK_STATUS(ms_profile_get_view(NULL, &view), MS_E_INVALID);
    CHECK_STATUS(ms_profile_get_view(profile, NULL), MS_E_INVALID);
    view.struct_bytes = 0;
    CHECK_STATUS(ms_profile_get_view(profile, &view), MS_E_INVALID);
    CHECK_EQ_INT(view.n_units, 7);
    CHECK_STATUS(ms_profile_to_json(NULL, &text), MS_E_INVALID);
    CHECK_STATUS(ms_profile_to_json(profile, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_profile_from_json(NULL, 0, &profile), MS_E_INVALID);
    CHECK_STATUS(ms_profile_from_json(golden, sizeof golden - 1, NULL), MS_E_INVALID);
    CHECK(text == NULL);
    ms_profile_destroy(profile);
    ms_profile_destroy(NULL);
}

SUITE(profile, CASE(the_golden_profile), CASE(blocks_are_marked), CASE(a_profile_has_copies),
      CASE(a_profile_without_units_comes_back), CASE(strange_names_come_back), CASE(a_profile_makes_a_plan),
      CASE(versions), CASE(older_versions), CASE(unknown_missing_and_duplicate_keys), CASE(wrong_types),
      CASE(values_out_of_range), CASE(a_file_that_is_cut), CASE(no_step), CASE(units_that_are_refused),
      CASE(missing_arguments));
