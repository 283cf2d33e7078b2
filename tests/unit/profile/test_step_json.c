/* test_step_json.c - steps in files: a golden one, exact round trips, repetitions written once, and what is refused.
 *
 * What is refused is the golden step with one thing changed, so that nothing else can be the cause.
 */
#include "steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER "{\"memscale_profile\": 4, \"resident_bytes\": 0, \"outside_bytes\": 0, \"units\": ["
#define UNIT(name)                                                                                                     \
    "{\"name\": \"" name "\", \"param_bytes\": 0, \"saved_bytes\": 0, \"input_bytes\": 0, \"n_rows\": 0, "             \
    "\"eligible\": true, \"run\": true}"

/* The small model. Reviewed like code: a change here changes every profile that is on disk. */
static const char golden[] =
    "  \"step\": {\n"
    "    \"batch\": 4,\n"
    "    \"length\": 128,\n"
    "    \"recomputed\": true,\n"
    "    \"numbers\": [1024,512,0,4096,2048],\n"
    "    \"costs\": [2,2,4,0,2,2,4,544],\n"
    "    \"scratches\": [],\n"
    "    \"keys\": [0,1,1,3,3,0,4,0,1,0,4,6,3,6,0,4,4,5,0,6],\n"
    "    \"rest\": [\n"
    "      [0,[0,0,0,0,0,1]],\n"
    "      [2,[2,0,0,4]],\n"
    "      [3,[2,0,0,5,1,-1,5,1,1,1]],\n"
    "      [4,[2,0,0,8,0,8,0,9,1,0]],\n"
    "      [5,[2,0,0,9,1,0]]\n"
    "    ],\n"
    "    \"classes\": [\n"
    "      [\n"
    "        [1,[2,0,0,2,0,3,1,-1],[2,0,4,1,4,1]],\n"
    "        [3,[2,1,0,6,0,5,1,0,2,0,0,7,5,1,1,5,1,-2],[2,0,4,5,5,1,1,5,1,-4]]\n"
    "      ],\n"
    "      [\n"
    "        [1,[2,0,0,2,0,3,1,-1],[2,0,4,1,4,1]],\n"
    "        [3,[2,1,0,6,0,5,1,0,2,0,0,7,0,5,5,0,1,4,1,-3,5,-1,1,1],[2,0,4,5,4,1,5,0,1,4,1,-5,5,-1,1,1]]\n"
    "      ]\n"
    "    ],\n"
    "    \"units\": [0,1],\n"
    "    \"order\": [-1,0,1,-1,-1,1,0,-1,-1]\n"
    "  }\n"
    "}\n";

static char *text_of(const ms_profile *profile) {
    static char *text; /* static: gcc 12 thinks that the result of strstr dangles otherwise */
    CHECK_STATUS(ms_profile_to_json(profile, &text), MS_OK);
    return text;
}

/* Where the step begins. */
static size_t step_at(const char *text) {
    const char *found = strstr(text, "  \"step\"");
    CHECK(found != NULL);
    return (size_t)(found - text);
}

static ms_profile *profile_of_text(const char *text) {
    ms_profile *profile = NULL;
    CHECK_STATUS(ms_profile_from_json(text, strlen(text), &profile), MS_OK);
    return profile;
}

static void check_round_trip(const ms_profile *profile) {
    char *text = text_of(profile);
    ms_profile *back = profile_of_text(text);
    check_same_step(profile->step, back->step);
    char *again = text_of(back);
    CHECK_EQ_STR(text, again);
    ms_free(text);
    ms_free(again);
    ms_profile_destroy(back);
}

/* ---- Round trips ---- */

TEST(the_golden_step) {
    ms_profile *profile = two_unit_profile();
    char *text = text_of(profile);
    CHECK_EQ_STR(text + step_at(text), golden);
    check_round_trip(profile);
    ms_free(text);
    ms_profile_destroy(profile);
}

TEST(one_variant) {
    script kept;
    two_units(&kept, false);
    ms_profile *profile = profile_of_scripts(&kept, NULL);
    check_round_trip(profile);
    ms_profile_destroy(profile);
}

TEST(steps_of_little) {
    script s = {0};
    ms_profile *profile = profile_of_scripts(&s, &s);
    check_round_trip(profile);
    ms_profile_destroy(profile);
    in_phase(&s, MS_PHASE_FORWARD);
    in_unit(&s, 1); /* and unit 0 never */
    compute(&s, "aten.relu.default");
    profile = profile_of_scripts(&s, NULL);
    check_round_trip(profile);
    ms_profile_destroy(profile);
}

TEST(costs_and_memory_inside_kernels) {
    script s = {0};
    (void)take(&s, 100);
    in_phase(&s, MS_PHASE_FORWARD);
    for (int i = 0; i < 40; i++) {
        compute(&s, i % 3 == 0 ? "aten.view.default" : i % 3 == 1 ? "aten.mm.default" : "aten.sum.dim_IntList");
        input(&s, 64 << i % 4, 64);
        if (i % 3 == 1) input(&s, 64, 64);
        output(&s, 1, 64);
        if (i % 2 == 0) give(&s, take(&s, 256));
    }
    ms_profile *profile = profile_of_scripts(&s, &s);
    CHECK(profile->step->n_scratches > 1 && profile->step->n_costs > 4);
    check_round_trip(profile);
    ms_profile_destroy(profile);
}

/* Keys that different units allocate in the two variants, and a key that only the second variant allocates. */
TEST(keys_that_change_hands) {
    script scripts[2];
    memset(scripts, 0, sizeof scripts);
    for (int recomputed = 0; recomputed < 2; recomputed++) {
        script *s = &scripts[recomputed];
        in_phase(s, MS_PHASE_FORWARD);
        in_unit(s, 0);
        compute(s, "aten.relu.default");
        int64_t first = take(s, 512);
        if (recomputed) in_unit(s, 1); /* the operation is the same, its unit is not */
        compute(s, "aten.gelu.default");
        int64_t second = take(s, 1024), third = recomputed ? -1 : take(s, 2048);
        in_unit(s, 1);
        compute(s, "aten.silu.default");
        in_phase(s, MS_PHASE_BACKWARD);
        compute(s, "aten.relu.default");
        give(s, second);
        in_unit(s, 0);
        compute(s, "aten.relu.default");
        if (third >= 0) give(s, third);
        give(s, first);
    }
    ms_profile *profile = profile_of_scripts(&scripts[0], &scripts[1]);
    CHECK_EQ_INT(profile->step->n_keys, 3);
    check_round_trip(profile);
    ms_profile_destroy(profile);
}

TEST(coefficients) {
    ms_profile *profile = two_unit_profile();
    int64_t coefficients[5 * MS__N_TERMS] = {0};
    CHECK_EQ_INT(profile->step->n_numbers, 5);
    for (int i = 0; i < 5; i++) { /* 12 times the number at 4 x 128 */
        coefficients[i * MS__N_TERMS + MS__TERM_BT] = profile->step->numbers[i] * 3;
        coefficients[i * MS__N_TERMS + MS__TERM_1] = profile->step->numbers[i] * (12 - 3 * 4 * 128);
    }
    profile->step->coefficients = coefficients;
    profile->step->denominator = 12;
    check_round_trip(profile);
    ms_profile_destroy(profile);
}

/* ---- What repeats ---- */

/* n units in a row that do the same, with many operations. */
static ms_profile *deep_profile(int64_t n_units) {
    enum { N_OPS = 20, MAX_UNITS = 256 };
    static ms_trace_event events[2 * MAX_UNITS * (3 * N_OPS + 2) + 2];
    static int64_t kinds[MAX_UNITS * N_OPS], sizes[MAX_UNITS];
    static char texts[MAX_UNITS][16];
    static const char *names[MAX_UNITS];
    static const char *const op_names[] = {"aten.relu.default"};
    const ms_trace_op op = {0};
    int64_t n = 0;
    events[n++] = (ms_trace_event){MS_TRACE_PHASE, MS_PHASE_FORWARD, 0};
    for (int64_t u = 0; u < n_units; u++) {
        (void)snprintf(texts[u], sizeof texts[u], "layers.%d", (int)u);
        names[u] = texts[u];
        events[n++] = (ms_trace_event){MS_TRACE_UNIT, u, 0};
        for (int64_t i = 0; i < N_OPS; i++) {
            events[n++] = (ms_trace_event){MS_TRACE_OP, 0, 0};
            events[n++] = (ms_trace_event){MS_TRACE_ALLOC, u * N_OPS + i, 512 * (1 + i * 7 % 5)};
        }
    }
    events[n++] = (ms_trace_event){MS_TRACE_PHASE, MS_PHASE_BACKWARD, 0};
    for (int64_t u = n_units - 1; u >= 0; u--) {
        events[n++] = (ms_trace_event){MS_TRACE_UNIT, u, 0};
        events[n++] = (ms_trace_event){MS_TRACE_OP, 0, 0};
        for (int64_t i = 0; i < N_OPS; i++) events[n++] = (ms_trace_event){MS_TRACE_FREE, u * N_OPS + i * 3 % N_OPS, 0};
    }
    const ms_trace trace = {.struct_bytes = sizeof trace,
                            .events = events,
                            .n_events = n,
                            .ops = &op,
                            .n_ops = 1,
                            .names = op_names,
                            .n_names = 1,
                            .kinds = kinds,
                            .n_storages = n_units * N_OPS};
    const ms_profile_request request = {.struct_bytes = sizeof request,
                                        .unit_names = names,
                                        .unit_param_bytes = sizes,
                                        .n_units = n_units,
                                        .plain = &trace,
                                        .recomputed = &trace};
    ms_profile *profile = NULL;
    CHECK_STATUS(ms_profile_from_traces(&request, &profile), MS_OK);
    return profile;
}

static size_t step_bytes(int64_t n_units) {
    ms_profile *profile = deep_profile(n_units);
    check_round_trip(profile);
    char *text = text_of(profile);
    size_t n = strlen(text) - step_at(text);
    ms_free(text);
    ms_profile_destroy(profile);
    return n;
}

/* One more unit only adds its entries to the lists, however much it does. */
TEST(equal_units_are_written_once) {
    size_t one = step_bytes(1), many = step_bytes(200);
    CHECK(one < 800);
    CHECK(many - one < 200 * 12);
}

TEST(repeated_pairs_are_written_once) {
    script s = {0};
    in_phase(&s, MS_PHASE_FORWARD);
    int64_t storages[60];
    for (int i = 0; i < 60; i++) {
        if (i % 3 == 0) compute(&s, "aten.relu.default");
        storages[i] = take(&s, 512);
    }
    in_phase(&s, MS_PHASE_BACKWARD);
    compute(&s, "aten.relu.default");
    for (int i = 59; i >= 0; i--) give(&s, storages[i]);
    ms_profile *profile = profile_of_scripts(&s, NULL);
    char *text = text_of(profile);
    CHECK(strstr(text, "[1,[[16,2,0,0,0,0,0,0,0],[4,2,0,0,0,0,0,0,0]]]") != NULL);
    CHECK(strstr(text, "[3,[2,0,1,60,[16,1,-1,1,-1,1,-1],[11,1,-1]]]") != NULL);
    check_round_trip(profile);
    ms_free(text);
    ms_profile_destroy(profile);
}

/* ---- What is refused ---- */

static char changed[4 * sizeof golden];

/* The golden step with the first `old` replaced, in a profile of its own. */
static const char *with(const char *old, const char *new) {
    const char *start = HEADER UNIT("a") ", " UNIT("b") "],\n";
    const char *at = strstr(golden, old);
    CHECK(at != NULL);
    int n = snprintf(changed, sizeof changed, "%s%.*s%s%s", start, (int)(at - golden), golden, new, at + strlen(old));
    CHECK(n > 0 && (size_t)n < sizeof changed);
    return changed;
}

static void check_refused(const char *text, ms_status wanted, const char *message) {
    ms_profile *profile = NULL;
    ms_status status = ms_profile_from_json(text, strlen(text), &profile);
    if (status != wanted) test_fail(__FILE__, __LINE__, "%s for: %.4000s", ms_status_name(status), text);
    CHECK(profile == NULL);
    if (strstr(ms_error_message(), message) == NULL)
        test_fail(__FILE__, __LINE__, "\"%s\" is not in \"%s\"", message, ms_error_message());
}

TEST(the_text_that_is_changed_reads) {
    ms_profile *profile = profile_of_text(with("\"batch\"", "\"batch\"")), *wanted = two_unit_profile();
    check_same_step(profile->step, wanted->step);
    ms_profile_destroy(profile);
    ms_profile_destroy(wanted);
}

TEST(missing_and_unknown_keys) {
    static const char *const keys[] = {"batch", "length", "recomputed", "numbers", "costs", "scratches",
                                       "keys",  "rest",   "classes",    "units",   "order"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char old[32], new[64];
        (void)snprintf(old, sizeof old, "\"%s\":", keys[i]);
        (void)snprintf(new, sizeof new, "\"%sx\":", keys[i]);
        check_refused(with(old, new), MS_E_PARSE, "unknown key");
        (void)snprintf(new, sizeof new, "\"%s\": 7, \"%s\":", keys[i], keys[i]);
        check_refused(with(old, new), MS_E_PARSE, "duplicate key");
    }
    check_refused(with("\"batch\": 4,\n", ""), MS_E_PARSE, "\"batch\"");
    check_refused(with("\"recomputed\": true,\n", ""), MS_E_PARSE, "\"recomputed\"");
    check_refused(with("\"scratches\": [],\n", ""), MS_E_PARSE, "\"scratches\"");
    check_refused(with("\"units\": [0,1],\n", ""), MS_E_PARSE, "\"units\"");
}

TEST(wrong_values) {
    check_refused(with("\"batch\": 4", "\"batch\": -1"), MS_E_PARSE, "\"batch\"");
    check_refused(with("\"length\": 128", "\"length\": \"128\""), MS_E_PARSE, "\"length\"");
    check_refused(with("\"recomputed\": true", "\"recomputed\": 1"), MS_E_PARSE, "\"recomputed\"");
    check_refused(with("[1024,512", "[-1,512"), MS_E_PARSE, "\"numbers\"");
    check_refused(with("[1024,512", "[1024.5,512"), MS_E_PARSE, "\"numbers\"");
    check_refused(with("[1024,512", "[1152921504606846976,512"), MS_E_LIMIT, "out of range");
    check_refused(with("[1024,512,0,4096,2048]", "{}"), MS_E_PARSE, "\"numbers\"");
    check_refused(with("[2,2,4,0,", "[5,2,4,0,"), MS_E_PARSE, "\"costs\"");
    check_refused(with("[2,2,4,0,", "[2,2,65,0,"), MS_E_PARSE, "\"costs\"");
    check_refused(with("[2,2,4,0,", "[2,2,4,268435456,"), MS_E_PARSE, "\"costs\"");
    check_refused(with("[2,2,4,0,", "[2,2,4,"), MS_E_PARSE, "\"costs\"");
    check_refused(with("\"scratches\": []", "\"scratches\": [1,0,0,0,5]"), MS_E_PARSE, "\"scratches\"");
    check_refused(with("[0,1,1,3,3", "[5,1,1,3,3"), MS_E_PARSE, "\"keys\"");
    check_refused(with("[0,1,1,3,3", "[0,8,1,3,3"), MS_E_PARSE, "\"keys\"");
    check_refused(with("[0,1,1,3,3", "[0,1,1,3,-3"), MS_E_PARSE, "\"keys\"");
}

/* Every rule can be read, and the number after the last is refused. */
TEST(rules_of_scratches) {
    for (int rule = 0; rule <= MS__N_SCRATCH_RULES; rule++) {
        char scratch[64];
        (void)snprintf(scratch, sizeof scratch, "\"scratches\": [%d,0,1,2,3]", rule);
        const char *text = with("\"scratches\": []", scratch);
        if (rule == MS__N_SCRATCH_RULES)
            check_refused(text, MS_E_PARSE, "\"scratches\"");
        else
            ms_profile_destroy(profile_of_text(text));
    }
}

TEST(wrong_coefficients) {
    const char *six = "\"denominator\": 2, \"coefficients\": [1,2,3,4,5,6], \"costs\"";
    char many[512] = "\"denominator\": 1, \"coefficients\": [1024,0,0,0,0,0,0,0, 512,0,0,0,0,0,0,0, 0,0,0,0,0,0,0,0,";
    size_t n = strlen(many);
    check_refused(with("\"costs\"", six), MS_E_PARSE, "for each number");
    (void)snprintf(many + n, sizeof many - n, "4096,0,0,0,0,0,0,0, 0,512,0,0,0,0,0,0], \"costs\"");
    ms_profile_destroy(profile_of_text(with("\"costs\"", many))); /* 512 times the batch */
    (void)snprintf(many + n, sizeof many - n, "4096,0,0,0,0,0,0,0, 0,513,0,0,0,0,0,0], \"costs\"");
    check_refused(with("\"costs\"", many), MS_E_PARSE, "do not give number 4");
    (void)snprintf(many + n, sizeof many - n, "4096,0,0,0,0,0,0,0, -1,0,0,0,0,0,0,0], \"costs\"");
    check_refused(with("\"costs\"", many), MS_E_PARSE, "do not give number 4");
    (void)snprintf(many + n, sizeof many - n, "4096,0,0,0,0,0,0,0, 9223372036854775807,0,0,0,0,0,0,0], \"costs\"");
    check_refused(with("\"costs\"", many), MS_E_PARSE, "\"coefficients\": item 32");
    check_refused(with("\"costs\"", "\"denominator\": 2, \"costs\""), MS_E_PARSE, "\"coefficients\"");
    check_refused(with("\"costs\"", "\"coefficients\": [], \"costs\""), MS_E_PARSE, "\"denominator\"");
    check_refused(with("\"costs\"", "\"denominator\": 0, \"coefficients\": [], \"costs\""), MS_E_PARSE,
                  "\"denominator\"");
}

TEST(wrong_segments) {
    check_refused(with("[2,[2,0,0,4]]", "[2]"), MS_E_PARSE, "a segment");
    check_refused(with("[2,[2,0,0,4]]", "[]"), MS_E_PARSE, "a segment");
    check_refused(with("[2,[2,0,0,4]]", "[2,[],[],[]]"), MS_E_PARSE, "a segment");
    check_refused(with("[2,[2,0,0,4]]", "7"), MS_E_PARSE, "a segment");
    check_refused(with("[2,[2,0,0,4]]", "[7,[2,0,0,4]]"), MS_E_PARSE, "no phase");
    check_refused(with("[2,[2,0,0,4]]", "[-1,[2,0,0,4]]"), MS_E_PARSE, "no phase");
    check_refused(with("[2,[2,0,0,4]]", "[[2],[2,0,0,4]]"), MS_E_PARSE, "no phase");
    check_refused(with("\"recomputed\": true", "\"recomputed\": false"), MS_E_PARSE, "a segment"); /* with two tapes */
    check_refused(with("\"classes\": [", "\"classes\": [7,"), MS_E_PARSE, "a class");
    check_refused(with("\"classes\": [", "\"classes\": {\"a\":"), MS_E_PARSE, "");
    check_refused(with("\"rest\": [", "\"rest\": [null,"), MS_E_PARSE, "a segment");
}

TEST(wrong_tapes) {
    static const char *const tapes[] = {"7",             /* no array */
                                        "[2]",           /* no operand */
                                        "[2,0,0]",       /* nor here */
                                        "[8,0]",         /* an unknown code */
                                        "[-1,0]",        /* and another */
                                        "[2,0.5]",       /* no whole number */
                                        "[2,4194305]",   /* out of range */
                                        "[2,[2,2,0]]",   /* an array for an operand */
                                        "[[]]",          /* an empty repetition */
                                        "[[2]]",         /* nor this */
                                        "[[2,2]]",       /* half a pair */
                                        "[[1,2,0]]",     /* once */
                                        "[[17,2,0]]",    /* too often */
                                        "[[2,[2,2,0]]]", /* nested */
                                        "[[\"2\",2,0]]", /* no number */
                                        "[[-2,2,0]]",    /* a negative number of times */
                                        "[[9223372036854775807,2,0]]"};
    for (size_t i = 0; i < sizeof tapes / sizeof *tapes; i++) {
        char segment[64];
        (void)snprintf(segment, sizeof segment, "[2,%s]", tapes[i]);
        check_refused(with("[2,[2,0,0,4]]", segment), MS_E_PARSE, "a tape");
    }
}

/* Tapes that are well formed, but name things that do not exist. */
TEST(wrong_names) {
    check_refused(with("[2,[2,0,0,4]]", "[2,[2,2,0,4]]"), MS_E_PARSE, "unknown cost");
    check_refused(with("[2,[2,0,0,4]]", "[2,[2,-1,0,4]]"), MS_E_PARSE, "unknown cost");
    check_refused(with("[2,[2,0,0,4]]", "[2,[2,0,6,4]]"), MS_E_PARSE, "unknown key");
    check_refused(with("[2,[2,0,0,4]]", "[2,[3,0,0,4]]"), MS_E_PARSE, "unknown scratch");
    check_refused(with("[2,[2,0,0,4]]", "[2,[2,0,0,10]]"), MS_E_PARSE, "unknown kind");
    check_refused(with("[2,[2,0,0,4]]", "[2,[2,0,0,-1]]"), MS_E_PARSE, "unknown kind");
    check_refused(with("[0,0,0,0,0,1]", "[0,0,0,0,0,1,1,1]"), MS_E_PARSE, "names an unknown key");
    check_refused(with("[0,0,0,0,0,1]", "[0,0,0,0,0,1,1,-3]"), MS_E_PARSE, "names an unknown key");
    check_refused(with("[0,0,0,0,0,1]", "[0,0,0,0,0,1,4,0]"), MS_E_PARSE, "already allocated");
    check_refused(with("[0,0,0,0,0,1]", "[0,0,0,0,0,1,1,0,1,0]"), MS_E_PARSE, "key that is not allocated");
    check_refused(with("5,1,1,1]]", "5,2,1,1]]"), MS_E_PARSE, "unknown layer");
    check_refused(with("5,1,1,1]]", "5,-1,1,1]]"), MS_E_PARSE, "unknown layer");
    check_refused(with("5,1,1,1]]", "5,1,1,-1]]"), MS_E_PARSE, "names an unknown key");
    check_refused(with("5,1,1,1]]", "5,1,1,2]]"), MS_E_PARSE, "names an unknown key");      /* not yet */
    check_refused(with("5,1,1,1]]", "5,1,1,0]]"), MS_E_PARSE, "key that is not allocated"); /* no longer */
    check_refused(with("5,1,1,1]]", "5,1]]"), MS_E_PARSE, "does nothing to it");
    check_refused(with("5,1,1,1]]", "5,1,2,0]]"), MS_E_PARSE, "does nothing to it");
    check_refused(with("5,1,1,1]]", "5,1,5,1,1,1]]"), MS_E_PARSE, "does nothing to it");
    check_refused(with("5,1,1,5,1,-2]", "5,2,1,5,1,-2]"), MS_E_PARSE, "unknown layer"); /* of the last unit */
    check_refused(with("5,-1,1,1],[", "5,-2,1,1],["), MS_E_PARSE, "unknown layer");     /* of the first one */
    check_refused(with("[2,0,4,1,4,1]", "[2,0,4,1,4,1,4,0]"), MS_E_PARSE, "already allocated");
    check_refused(with("[2,0,4,1,4,1]", "[2,0,4,1]"), MS_E_PARSE, "key that is not allocated"); /* later */
}

TEST(wrong_order) {
    check_refused(with("\"units\": [0,1]", "\"units\": [0,2]"), MS_E_PARSE, "\"units\"");
    check_refused(with("\"units\": [0,1]", "\"units\": [0]"), MS_E_PARSE, "1 layers, the profile has 2");
    check_refused(with("\"units\": [0,1]", "\"units\": [0,1,1]"), MS_E_PARSE, "3 layers, the profile has 2");
    check_refused(with("\"units\": [0,1]", "\"units\": [1,1]"), MS_E_PARSE, "no layer of the step has class 0");
    check_refused(with("[-1,0,1,-1", "[-1,0,2,-1"), MS_E_PARSE, "\"order\"");
    check_refused(with("[-1,0,1,-1", "[-2,0,1,-1"), MS_E_PARSE, "\"order\"");
    check_refused(with("[-1,0,1,-1", "[-1,1,1,-1"), MS_E_PARSE, "\"order\"");
    check_refused(with("1,0,-1,-1]", "1,0,-1]"), MS_E_PARSE, "layer -1 has too few segments");
    check_refused(with("1,0,-1,-1]", "1,-1,-1]"), MS_E_PARSE, "layer 0 has too few segments");
    check_refused(with("1,0,-1,-1]", "1,0,-1,-1,-1]"), MS_E_PARSE, "layer -1 has too many segments");
    check_refused(with("1,0,-1,-1]", "1,0,-1,-1,0]"), MS_E_PARSE, "layer 0 has too many segments");
    check_refused(with("[4,[2,0,0,8", "[2,[2,0,0,8"), MS_E_PARSE, "earlier phase");
    check_refused("{\"memscale_profile\": 4, \"resident_bytes\": 0, \"outside_bytes\": 0, \"units\": [], \"step\": 7}",
                  MS_E_PARSE, "object");
}

/* A good file that is cut anywhere is refused. */
TEST(a_file_that_is_cut) {
    const char *text = with("\"batch\"", "\"batch\"");
    size_t whole = strlen(text);
    for (size_t n = 0; n + 2 < whole; n++) {
        ms_profile *profile = NULL;
        CHECK_STATUS(ms_profile_from_json(text, n, &profile), MS_E_PARSE);
        CHECK(profile == NULL);
    }
}

TEST(sums_that_do_not_fit) {
    const char *huge = "1152921504606846975";
    char numbers[128];
    (void)snprintf(numbers, sizeof numbers, "[%s,512,0,4096,2048]", huge);
    check_refused(with("[1024,512,0,4096,2048]", numbers), MS_E_LIMIT, "bytes in sum");
    (void)snprintf(numbers, sizeof numbers, "[1024,512,%s,4096,2048]", huge);
    check_refused(with("[1024,512,0,4096,2048]", numbers), MS_E_LIMIT, "operations of the step are too large");
}

/* ---- What a file unfolds to ---- */

/* One class of n_parts segments without releases, for n_units units; each tape is as long as its text allows. */
static char *long_text(int n_units, int n_parts, int n_repeats) {
    size_t size = (size_t)n_units * 256 + (size_t)n_parts * ((size_t)n_repeats * 16 + 64) + 1024, n = 0;
    size += (size_t)n_units * (size_t)n_parts * 8;
    char *text = calloc(1, size);
    CHECK(text != NULL);
    n += (size_t)snprintf(text + n, size - n, HEADER);
    for (int i = 0; i < n_units; i++) n += (size_t)snprintf(text + n, size - n, "%s" UNIT("u"), i == 0 ? "" : ",");
    n += (size_t)snprintf(
        text + n, size - n,
        "],\"step\":{\"batch\":0,\"length\":0,\"recomputed\":false,\"numbers\":[0],\"costs\":[0,0,4,0],"
        "\"scratches\":[],\"keys\":[],\"rest\":[],\"classes\":[[");
    for (int i = 0; i < n_parts; i++) {
        n += (size_t)snprintf(text + n, size - n, "%s[1,[", i == 0 ? "" : ",");
        for (int j = 0; j < n_repeats; j++) n += (size_t)snprintf(text + n, size - n, "%s[16,2,0]", j == 0 ? "" : ",");
        n += (size_t)snprintf(text + n, size - n, "]]");
    }
    n += (size_t)snprintf(text + n, size - n, "]],\"units\":[");
    for (int i = 0; i < n_units; i++) n += (size_t)snprintf(text + n, size - n, "%s0", i == 0 ? "" : ",");
    n += (size_t)snprintf(text + n, size - n, "],\"order\":[");
    for (int i = 0; i < n_units * n_parts; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%d", i == 0 ? "" : ",", i % n_units);
    n += (size_t)snprintf(text + n, size - n, "]}}");
    CHECK(n < size);
    return text;
}

TEST(files_that_unfold) {
    char *text = long_text(64, 1, 4096); /* 2^22 events: the most there may be */
    ms_profile *profile = profile_of_text(text);
    CHECK_EQ_INT(profile->step->n_events, MS__STEP_MAX_EVENTS);
    ms_profile_destroy(profile);
    free(text);
    text = long_text(65, 1, 4096);
    check_refused(text, MS_E_LIMIT, "more than 4194304 events");
    free(text);
    text = long_text(2, 2, 65537); /* few units that are long */
    check_refused(text, MS_E_LIMIT, "more than 4194304 events");
    free(text);
}

SUITE(step_json, CASE(the_golden_step), CASE(one_variant), CASE(steps_of_little), CASE(costs_and_memory_inside_kernels),
      CASE(keys_that_change_hands), CASE(coefficients), CASE(equal_units_are_written_once),
      CASE(repeated_pairs_are_written_once), CASE(the_text_that_is_changed_reads), CASE(missing_and_unknown_keys),
      CASE(wrong_values), CASE(rules_of_scratches), CASE(wrong_coefficients), CASE(wrong_segments), CASE(wrong_tapes),
      CASE(wrong_names), CASE(wrong_order), CASE(a_file_that_is_cut), CASE(sums_that_do_not_fit),
      CASE(files_that_unfold));
