/* test_json_read.c - the strict JSON reader: what it accepts, what it refuses and where, and every truncated document.
 *
 * Texts are passed in memory of exactly their size, so that a sanitizer sees a read past the end.
 */
#include "runner.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "error_info.h"

#define TEXT(literal) literal, sizeof(literal) - 1

typedef struct sample {
    const char *text;
    size_t n_bytes;
} sample;

static ms_status read_exact(ms__arena *arena, const char *text, size_t n_bytes, const ms__json **out) {
    char *copy = malloc(n_bytes == 0 ? 1 : n_bytes);
    CHECK(copy != NULL);
    memcpy(copy, text, n_bytes);
    ms_error_clear();
    ms_status status = ms__json_read(arena, copy, n_bytes, out);
    free(copy);
    return status;
}

static void check_refused(const char *text, size_t n_bytes) {
    ms__arena arena = {0};
    const ms__json *document = NULL;
    ms_status status = read_exact(&arena, text, n_bytes, &document);
    if (status != MS_E_PARSE || document != NULL)
        test_fail(__FILE__, __LINE__, "%s for: %.*s", ms_status_name(status), (int)n_bytes, text);
    CHECK(ms_error_message()[0] != '\0');
    CHECK(error_info().byte_offset >= 0 && error_info().byte_offset <= (int64_t)n_bytes);
    ms__arena_free(&arena);
}

static const ms__json *check_read(ms__arena *arena, const char *text, size_t n_bytes) {
    const ms__json *document = NULL;
    ms_status status = read_exact(arena, text, n_bytes, &document);
    if (status != MS_OK)
        test_fail(__FILE__, __LINE__, "%s (%s) for: %.*s", ms_status_name(status), ms_error_message(), (int)n_bytes,
                  text);
    return document;
}

static void check_refused_at(const char *text, int64_t offset) {
    check_refused(text, strlen(text));
    CHECK_EQ_INT(error_info().byte_offset, offset);
}

static void check_string(const char *text, size_t n_bytes, const char *wanted, size_t n_wanted) {
    ms__arena arena = {0};
    const ms__json *value = check_read(&arena, text, n_bytes);
    CHECK_EQ_INT(value->type, MS__JSON_STRING);
    CHECK_EQ_INT(value->n, n_wanted);
    CHECK(memcmp(value->string, wanted, n_wanted) == 0 && value->string[n_wanted] == '\0');
    ms__arena_free(&arena);
}

TEST(words) {
    ms__arena arena = {0};
    CHECK_EQ_INT(check_read(&arena, TEXT("null"))->type, MS__JSON_NULL);
    const ms__json *yes = check_read(&arena, TEXT("true")), *no = check_read(&arena, TEXT(" \t\r\nfalse \t\r\n"));
    CHECK(yes->type == MS__JSON_BOOL && yes->boolean);
    CHECK(no->type == MS__JSON_BOOL && !no->boolean);
    ms__arena_free(&arena);
}

TEST(whole_numbers_are_exact) {
    static const struct {
        const char *text;
        int64_t value;
    } table[] = {{"0", 0},
                 {"-0", 0},
                 {"-1", -1},
                 {"10", 10},
                 {"9007199254740993", INT64_C(9007199254740993)}, /* no double has this value */
                 {"9223372036854775807", INT64_MAX},
                 {"-9223372036854775807", -INT64_MAX},
                 {"-9223372036854775808", INT64_MIN}};
    ms__arena arena = {0};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const ms__json *value = check_read(&arena, table[i].text, strlen(table[i].text));
        CHECK_EQ_INT(value->type, MS__JSON_INT);
        CHECK_EQ_INT(value->integer, table[i].value);
    }
    const ms__json *above = check_read(&arena, TEXT("9223372036854775808"));
    CHECK_EQ_INT(above->type, MS__JSON_UINT);
    CHECK_EQ_U64(above->uinteger, (uint64_t)INT64_MAX + 1);
    const ms__json *most = check_read(&arena, TEXT("18446744073709551615"));
    CHECK_EQ_INT(most->type, MS__JSON_UINT);
    CHECK_EQ_U64(most->uinteger, UINT64_MAX);
    ms__arena_free(&arena);
}

TEST(other_numbers_are_doubles) {
    static const struct {
        const char *text;
        double value;
    } table[] = {{"0.5", 0.5},
                 {"-0.0", -0.0},
                 {"1.0", 1.0},
                 {"1e3", 1000.0},
                 {"1E+3", 1000.0},
                 {"25e-1", 2.5},
                 {"0.1", 0.1},
                 {"18446744073709551616", 18446744073709551616.0},
                 {"-9223372036854775809", -9223372036854775808.0},
                 {"1.7976931348623157e308", 1.7976931348623157e308},
                 {"5e-324", 5e-324},
                 {"1e-999", 0.0},
                 {"0e999", 0.0}};
    ms__arena arena = {0};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const ms__json *value = check_read(&arena, table[i].text, strlen(table[i].text));
        CHECK_EQ_INT(value->type, MS__JSON_DOUBLE);
        CHECK(value->real == table[i].value);
        CHECK_EQ_INT(signbit(value->real) != 0, signbit(table[i].value) != 0);
    }
    ms__arena_free(&arena);
}

TEST(malformed_numbers) {
    static const char *const table[] = {"-",     "+1",    "01",    "-01",    "00",      "0x10",     "1.",
                                        ".5",    "1.e1",  "1e",    "1e+",    "1e-",     "--1",      "1-",
                                        "1.2.3", "1e1.5", "1e999", "-1e999", "NaN",     "Infinity", "-Infinity",
                                        "1_000", "1,5",   "0b1",   "1f",     "\xD9\xA1"};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check_refused(table[i], strlen(table[i]));
    char digits[400];
    memset(digits, '9', sizeof digits);
    check_refused(digits, sizeof digits);
}

TEST(strings_and_escapes) {
    check_string(TEXT("\"\""), TEXT(""));
    check_string(TEXT("\"plain text\""), TEXT("plain text"));
    check_string(TEXT("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""), TEXT("\"\\/\b\f\n\r\t"));
    check_string(TEXT("\"\\u0041\\u00e9\\u20AC\""), TEXT("A\xC3\xA9\xE2\x82\xAC"));
    check_string(TEXT("\"a\\u0000b\""), TEXT("a\0b"));
    check_string(TEXT("\"\\ud83d\\uDE00\""), TEXT("\xF0\x9F\x98\x80"));
    check_string(TEXT("\"\\uD800\\uDC00\\uDBFF\\uDFFF\""), TEXT("\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"));
    check_string(TEXT("\"\x7F\""), TEXT("\x7F"));
    check_string(TEXT("\"\xC2\x80 \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xF4\x8F\xBF\xBF\""),
                 TEXT("\xC2\x80 \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xF4\x8F\xBF\xBF"));
}

TEST(malformed_strings) {
    static const sample table[] = {
        {TEXT("\"")},          {TEXT("\"abc")},       {TEXT("\"abc\\\"")},   {TEXT("\"\\")},        {TEXT("\"\\x41\"")},
        {TEXT("\"\\U0041\"")}, {TEXT("\"\\'\"")},     {TEXT("\"\\\0\"")},    {TEXT("\"\\u\"")},     {TEXT("\"\\u12\"")},
        {TEXT("\"\\u123\"")},  {TEXT("\"\\u123g\"")}, {TEXT("\"\\u 123\"")}, {TEXT("\"\\u-123\"")}, {TEXT("\"\\u123")},
        {TEXT("\"a\nb\"")},    {TEXT("\"a\tb\"")},    {TEXT("\"a\0b\"")},    {TEXT("\"\x1F\"")},    {TEXT("'abc'")},
        {TEXT("abc")},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check_refused(table[i].text, table[i].n_bytes);
}

TEST(broken_surrogates) {
    static const char *const table[] = {"\"\\uD83D\"",  "\"\\uDE00\"",    "\"\\uDE00\\uD83D\"", "\"\\uD83D\\uD83D\"",
                                        "\"\\uD83Dx\"", "\"\\uD83D\\n\"", "\"\\uD83D\\u\"",     "\"\\uD83D\\u0041\"",
                                        "\"\\uD83D\\",  "\"\\uD83D",      "\"\\uDBFF\\uE000\"", "\"\\uD83D\\uDE0\""};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check_refused(table[i], strlen(table[i]));
}

TEST(broken_utf8) {
    static const char *const table[] = {
        "\x80",
        "\xBF", /* a continuation byte alone */
        "\xC3",
        "\xE2\x82",
        "\xF0\x9F\x98", /* cut short */
        "\xC3x",
        "\xE2\x82x",
        "\xE2x\xAC",
        "\xF0\x9F\x98x", /* cut short by a letter */
        "\xC0\x80",
        "\xC1\xBF",
        "\xE0\x80\x80",
        "\xE0\x9F\xBF", /* overlong */
        "\xF0\x80\x80\x80",
        "\xF0\x8F\xBF\xBF", /* ... and in four bytes */
        "\xED\xA0\x80",
        "\xED\xBF\xBF", /* surrogates */
        "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80",
        "\xF8\x88\x80\x80", /* above U+10FFFF */
        "\xFE",
        "\xFF",
        "\xC3\xC3",
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char text[16];
        size_t n = strlen(table[i]);
        text[0] = '"';
        memcpy(text + 1, table[i], n);
        text[n + 1] = '"';
        check_refused(text, n + 2);
        check_refused(text, n + 1); /* the text ends inside the sequence */
        check_refused(table[i], n); /* outside a string */
    }
    check_refused(TEXT("\xEF\xBB\xBF{}")); /* a byte order mark */
}

TEST(arrays) {
    ms__arena arena = {0};
    CHECK_EQ_INT(check_read(&arena, TEXT("[]"))->n, 0);
    CHECK_EQ_INT(check_read(&arena, TEXT("[ ]"))->n, 0);
    const ms__json *list = check_read(&arena, TEXT(" [ 1 , \"two\",[3], {} ,null ] "));
    CHECK_EQ_INT(list->type, MS__JSON_ARRAY);
    CHECK_EQ_INT(list->n, 5);
    CHECK_EQ_INT(list->items[0].integer, 1);
    CHECK_EQ_STR(list->items[1].string, "two");
    CHECK_EQ_INT(list->items[2].items[0].integer, 3);
    CHECK_EQ_INT(list->items[3].type, MS__JSON_OBJECT);
    CHECK_EQ_INT(list->items[4].type, MS__JSON_NULL);
    ms__arena_free(&arena);
}

TEST(a_long_array_keeps_its_order) {
    enum { N = 5000 };
    char *text = malloc(N * 2 + 1);
    CHECK(text != NULL);
    for (int i = 0; i < N; i++) {
        text[i * 2] = i == 0 ? '[' : ',';
        text[i * 2 + 1] = (char)('0' + i % 10);
    }
    text[N * 2] = ']';
    ms__arena arena = {0};
    const ms__json *list = check_read(&arena, text, N * 2 + 1);
    CHECK_EQ_INT(list->n, N);
    for (int i = 0; i < N; i++) CHECK_EQ_INT(list->items[i].integer, i % 10);
    ms__arena_free(&arena);
    free(text);
}

TEST(objects) {
    ms__arena arena = {0};
    CHECK_EQ_INT(check_read(&arena, TEXT("{}"))->n, 0);
    CHECK(ms__json_get(check_read(&arena, TEXT("{ }")), "x") == NULL);
    const ms__json *object = check_read(&arena, TEXT("{\"b\":1,\"a\":{\"b\":2},\"\":3, \"\\u0063\" : 4}"));
    CHECK_EQ_INT(object->n, 4);
    CHECK_EQ_STR(object->keys[0], "b");
    CHECK_EQ_INT(ms__json_get(object, "b")->integer, 1);
    CHECK_EQ_INT(ms__json_get(ms__json_get(object, "a"), "b")->integer, 2);
    CHECK_EQ_INT(ms__json_get(object, "")->integer, 3);
    CHECK_EQ_INT(ms__json_get(object, "c")->integer, 4);
    CHECK(ms__json_get(object, "d") == NULL);
    CHECK(ms__json_get(NULL, "a") == NULL);
    CHECK(ms__json_get(ms__json_get(object, "b"), "a") == NULL);
    ms__arena_free(&arena);
}

TEST(malformed_structure) {
    static const sample table[] = {
        {TEXT("")},
        {TEXT(" \n")},
        {TEXT("[")},
        {TEXT("]")},
        {TEXT("[1")},
        {TEXT("[1,")},
        {TEXT("[1,]")},
        {TEXT("[,1]")},
        {TEXT("[1 2]")},
        {TEXT("[1}")},
        {TEXT("{")},
        {TEXT("}")},
        {TEXT("{\"a\"")},
        {TEXT("{\"a\":")},
        {TEXT("{\"a\":1")},
        {TEXT("{\"a\":1,")},
        {TEXT("{\"a\":1,}")},
        {TEXT("{\"a\" 1}")},
        {TEXT("{a:1}")},
        {TEXT("{1:2}")},
        {TEXT("{\"a\":}")},
        {TEXT("{\"a\":1]")},
        {TEXT("{,}")},
        {TEXT("{\"a\"}")},
        {TEXT("{} {}")},
        {TEXT("1 2")},
        {TEXT("null,")},
        {TEXT("[]]")},
        {TEXT("\"a\"b")},
        {TEXT("tru")},
        {TEXT("True")},
        {TEXT("truee")},
        {TEXT("nul")},
        {TEXT("falsch")},
        {TEXT("// no\n1")},
        {TEXT("[1]\0")},
        {TEXT("/* no */ 1")},
        {TEXT("\v1")},
        {TEXT("\xC2\xA0"
              "1")},
        {TEXT("\0")},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check_refused(table[i].text, table[i].n_bytes);
}

TEST(keys_are_unique_and_without_nul) {
    static const sample table[] = {{TEXT("{\"a\":1,\"a\":1}")}, {TEXT("{\"a\":1,\"b\":2,\"\\u0061\":3}")},
                                   {TEXT("{\"\":1,\"\":2}")},   {TEXT("[{\"x\":{\"a\":1,\"a\":2}}]")},
                                   {TEXT("{\"a\\u0000\":1}")},  {TEXT("{\"\\u0000\":1}")}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check_refused(table[i].text, table[i].n_bytes);
}

TEST(depth_is_limited) {
    char text[2 * (MS__JSON_MAX_DEPTH + 1)];
    ms__arena arena = {0};
    CHECK_EQ_INT(MS__JSON_MAX_DEPTH, 64);
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    const ms__json *value = check_read(&arena, text, 128);
    for (int i = 1; i < 64; i++) value = &value->items[0];
    CHECK(value->type == MS__JSON_ARRAY && value->n == 0);
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    check_refused(text, 130);
    memset(text, '[', sizeof text); /* never closed, and still too deep */
    check_refused(text, sizeof text);
    check_read(&arena, TEXT("[[],[[]],{\"a\":[]},[],[]]")); /* siblings do not add up */
    ms__arena_free(&arena);
}

TEST(errors_tell_where) {
    check_refused_at("", 0);
    check_refused_at("[1, 2", 5);
    check_refused_at("[1, x]", 4);
    check_refused_at("{\"a\": 1} x", 9);
    check_refused_at("\"abc", 4);
    check_refused_at("\"ab\xFF\"", 3);
}

/* Every proper prefix of a document that ends in a bracket is an error. */
TEST(every_truncation_is_an_error) {
    static const char text[] =
        "{\"memscale\": [1, -2.5e+10, \"a\\u00e9\\ud83d\\ude00\\n\xE2\x82\xAC\", true, false, null, "
        "{\"x\": {}, \"y\": []}], \"z\": 18446744073709551615}";
    size_t n = sizeof text - 1;
    ms__arena arena = {0};
    check_read(&arena, text, n);
    ms__arena_free(&arena);
    for (size_t cut = 0; cut < n; cut++) check_refused(text, cut);
}

TEST(typed_members) {
    ms__arena arena = {0};
    const ms__json *object = check_read(&arena, TEXT("{\"i\":5,\"s\":\"text\",\"n\":\"a\\u0000b\",\"l\":[1],\"d\":5.0,"
                                                     "\"u\":18446744073709551615}"));
    int64_t number = -1;
    const char *text = NULL;
    const ms__json *list = NULL;
    CHECK_STATUS(ms__json_get_int(object, "i", 5, &number), MS_OK);
    CHECK_EQ_INT(number, 5);
    CHECK_STATUS(ms__json_get_int(object, "i", 6, &number), MS_E_PARSE);
    CHECK_STATUS(ms__json_get_int(object, "d", 0, &number), MS_E_PARSE);
    CHECK_STATUS(ms__json_get_int(object, "u", 0, &number), MS_E_PARSE);
    CHECK_STATUS(ms__json_get_int(object, "missing", 0, &number), MS_E_PARSE);
    CHECK(strstr(ms_error_message(), "missing") != NULL);
    CHECK_EQ_INT(number, 5);
    CHECK_STATUS(ms__json_get_string(object, "s", &text), MS_OK);
    CHECK_EQ_STR(text, "text");
    CHECK_STATUS(ms__json_get_string(object, "n", &text), MS_E_PARSE);
    CHECK_STATUS(ms__json_get_string(object, "i", &text), MS_E_PARSE);
    CHECK_STATUS(ms__json_get_array(object, "l", &list), MS_OK);
    CHECK_EQ_INT(list->n, 1);
    CHECK_STATUS(ms__json_get_array(object, "s", &list), MS_E_PARSE);
    ms__arena_free(&arena);
}

TEST(arrays_of_whole_numbers) {
    ms__arena arena = {0};
    const ms__json *object = check_read(&arena, TEXT("{\"a\":[3,-1,7],\"e\":[],\"d\":[1,2.0],\"m\":[1,[2]],\"i\":5}"));
    int64_t *values = NULL;
    size_t n = 9;
    CHECK_STATUS(ms__json_get_ints(object, "a", -1, 7, &arena, &values, &n), MS_OK);
    CHECK_EQ_INT(n, 3);
    CHECK(values[0] == 3 && values[1] == -1 && values[2] == 7);
    CHECK_STATUS(ms__json_get_ints(object, "a", 0, 7, &arena, &values, &n), MS_E_PARSE);
    CHECK(strstr(ms_error_message(), "item 1") != NULL);
    CHECK_STATUS(ms__json_get_ints(object, "a", -1, 6, &arena, &values, &n), MS_E_PARSE);
    CHECK_STATUS(ms__json_get_ints(object, "d", 0, 7, &arena, &values, &n), MS_E_PARSE);
    CHECK_STATUS(ms__json_get_ints(object, "m", 0, 7, &arena, &values, &n), MS_E_PARSE);
    CHECK_STATUS(ms__json_get_ints(object, "i", 0, 7, &arena, &values, &n), MS_E_PARSE);
    CHECK_STATUS(ms__json_get_ints(object, "missing", 0, 7, &arena, &values, &n), MS_E_PARSE);
    CHECK_EQ_INT(n, 3);
    CHECK_STATUS(ms__json_get_ints(object, "e", 0, 7, &arena, &values, &n), MS_OK);
    CHECK_EQ_INT(n, 0);
    ms__arena_free(&arena);
}

TEST(keys_are_checked_against_a_list) {
    static const char *const allowed[] = {"a", "b", NULL};
    ms__arena arena = {0};
    CHECK_STATUS(ms__json_check_keys(check_read(&arena, TEXT("{}")), allowed), MS_OK);
    CHECK_STATUS(ms__json_check_keys(check_read(&arena, TEXT("{\"b\":1,\"a\":2}")), allowed), MS_OK);
    CHECK_STATUS(ms__json_check_keys(check_read(&arena, TEXT("{\"a\":1,\"ab\":2}")), allowed), MS_E_PARSE);
    CHECK(strstr(ms_error_message(), "\"ab\"") != NULL);
    CHECK_STATUS(ms__json_check_keys(check_read(&arena, TEXT("[]")), allowed), MS_E_PARSE);
    ms__arena_free(&arena);
}

SUITE(json_read, CASE(words), CASE(whole_numbers_are_exact), CASE(other_numbers_are_doubles), CASE(malformed_numbers),
      CASE(strings_and_escapes), CASE(malformed_strings), CASE(broken_surrogates), CASE(broken_utf8), CASE(arrays),
      CASE(a_long_array_keeps_its_order), CASE(objects), CASE(malformed_structure),
      CASE(keys_are_unique_and_without_nul), CASE(depth_is_limited), CASE(errors_tell_where),
      CASE(every_truncation_is_an_error), CASE(typed_members), CASE(arrays_of_whole_numbers),
      CASE(keys_are_checked_against_a_list));
