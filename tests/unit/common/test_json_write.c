/* test_json_write.c - the JSON writer: its layout, and that its output reads back unchanged.
 *
 * Doubles must come back bit for bit, also in a program whose locale writes a decimal comma.
 */
#include "runner.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "json_echo.h"

static char *finish(ms__json_writer *w) {
    char *text = NULL;
    CHECK_STATUS(ms__json_finish(w, &text), MS_OK);
    CHECK(w->text.items == NULL && w->depth == 0);
    return text;
}

static const ms__json *read_back(ms__arena *arena, const char *text) {
    const ms__json *document = NULL;
    CHECK_STATUS(ms__json_read(arena, text, strlen(text), &document), MS_OK);
    return document;
}

TEST(layout) {
    ms__json_writer w = {0};
    ms__json_begin_object(&w, NULL);
    ms__json_put_int(&w, "int", INT64_MIN);
    ms__json_put_literal(&w, "literal", "18446744073709551615");
    ms__json_put_bool(&w, "yes", true);
    ms__json_put_bool(&w, "no", false);
    ms__json_put_literal(&w, "null", "null");
    ms__json_put_string(&w, "text", "abc", 2);
    ms__json_begin_array(&w, "empty");
    ms__json_end_array(&w);
    ms__json_begin_array(&w, "list");
    ms__json_put_int(&w, NULL, 1);
    ms__json_begin_object(&w, NULL);
    ms__json_end_object(&w);
    ms__json_end_array(&w);
    ms__json_end_object(&w);
    char *text = finish(&w);
    CHECK_EQ_STR(text,
                 "{\n  \"int\": -9223372036854775808,\n  \"literal\": 18446744073709551615,\n  \"yes\": true,\n"
                 "  \"no\": false,\n  \"null\": null,\n  \"text\": \"ab\",\n  \"empty\": [],\n  \"list\": [\n    1,\n"
                 "    {}\n  ]\n}\n");
    ms_free(text);
}

TEST(rows) {
    const int64_t numbers[] = {1, -2, INT64_MAX};
    ms__json_writer w = {0};
    ms__json_begin_object(&w, NULL);
    ms__json_put_ints(&w, "numbers", numbers, 3);
    ms__json_put_ints(&w, "none", NULL, 0);
    ms__json_begin_array(&w, "list");
    ms__json_begin_row(&w, NULL);
    ms__json_put_int(&w, NULL, 1);
    ms__json_begin_row(&w, NULL);
    ms__json_put_bool(&w, NULL, true);
    ms__json_begin_object(&w, NULL);
    ms__json_put_literal(&w, "a", "null");
    ms__json_end_object(&w);
    ms__json_end_row(&w);
    ms__json_put_string(&w, NULL, "b", 1);
    ms__json_end_row(&w);
    ms__json_put_int(&w, NULL, 2); /* lines again */
    ms__json_end_array(&w);
    ms__json_end_object(&w);
    char *text = finish(&w);
    CHECK_EQ_STR(text, "{\n  \"numbers\": [1,-2,9223372036854775807],\n  \"none\": [],\n  \"list\": [\n"
                       "    [1,[true,{\"a\": null}],\"b\"],\n    2\n  ]\n}\n");
    ms_free(text);
}

TEST(a_writer_can_be_used_again) {
    ms__json_writer w = {0};
    for (int i = 0; i < 2; i++) {
        ms__json_put_int(&w, NULL, 7);
        char *text = finish(&w);
        CHECK_EQ_STR(text, "7\n");
        ms_free(text);
    }
}

TEST(every_byte_that_may_be_in_a_string_comes_back) {
    char all[4 + 0x80];
    size_t n = 0;
    for (int c = 0; c < 0x80; c++) all[n++] = (char)c;
    memcpy(all + n, "\xF0\x9F\x98\x80", 4);
    n += 4;
    ms__json_writer w = {0};
    ms__json_put_string(&w, NULL, all, n);
    char *text = finish(&w);
    ms__arena arena = {0};
    const ms__json *value = read_back(&arena, text);
    CHECK_EQ_INT(value->n, n);
    CHECK(memcmp(value->string, all, n) == 0);
    ms__arena_free(&arena);
    ms_free(text);
}

TEST(keys_are_escaped_too) {
    ms__json_writer w = {0};
    ms__json_begin_object(&w, NULL);
    ms__json_put_int(&w, "a\"\\\n\x01", 1);
    ms__json_end_object(&w);
    char *text = finish(&w);
    ms__arena arena = {0};
    CHECK_EQ_STR(read_back(&arena, text)->keys[0], "a\"\\\n\x01");
    ms__arena_free(&arena);
    ms_free(text);
}

static char *echo_double(double value) {
    const ms__json number = {.type = MS__JSON_DOUBLE, .real = value};
    char *text = NULL;
    CHECK_STATUS(json_echo(&number, &text), MS_OK);
    return text;
}

static void check_double(double value) {
    ms__arena arena = {0};
    char *text = echo_double(value);
    const ms__json *back = read_back(&arena, text);
    CHECK_EQ_INT(back->type, MS__JSON_DOUBLE);
    CHECK(memcmp(&back->real, &value, sizeof value) == 0);
    ms__arena_free(&arena);
    ms_free(text);
}

static void check_doubles(void) {
    static const double values[] = {0.0,
                                    -0.0,
                                    1.0,
                                    -1.0,
                                    0.1,
                                    1.0 / 3.0,
                                    1e21,
                                    1e22,
                                    1e-7,
                                    123.456,
                                    DBL_MAX,
                                    -DBL_MAX,
                                    DBL_MIN,
                                    5e-324,
                                    DBL_EPSILON,
                                    9007199254740993.0,
                                    18446744073709551616.0,
                                    100000.0,
                                    2.5e-10};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) check_double(values[i]);
    uint64_t state = 88172645463325252u;
    for (int i = 0; i < 2000; i++) {
        double value;
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(&value, &state, sizeof value);
        if (isfinite(value)) check_double(value);
    }
}

TEST(doubles_come_back_bit_for_bit) { check_doubles(); }

/* In a program that has set a locale with a decimal comma. Machines without such a locale check nothing here. */
TEST(doubles_ignore_the_locale) {
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8",
                                        "fr_FR.utf8",  "de_DE",      "nl_NL.utf8"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (setlocale(LC_ALL, names[i]) == NULL || localeconv()->decimal_point[0] != ',') continue;
        char *text = echo_double(1234567.5);
        CHECK_EQ_STR(text, "1234567.5\n");
        ms_free(text);
        check_doubles();
        return;
    }
}

TEST(a_document_echoes) {
    static const char source[] =
        " {\"a\":[1,-2,18446744073709551615,0.1,1e300,{\"b\":{}}],\"\":\"\\u0000\\ud83d\\ude00\","
        "\"t\":true,\"f\":false,\"n\":null,\"e\":[[],{}]}";
    ms__arena arena = {0};
    char *first = NULL, *second = NULL;
    CHECK_STATUS(json_echo(read_back(&arena, source), &first), MS_OK);
    CHECK_STATUS(json_echo(read_back(&arena, first), &second), MS_OK);
    CHECK_EQ_STR(first, second);
    ms_free(first);
    ms_free(second);
    ms__arena_free(&arena);
}

SUITE(json_write, CASE(layout), CASE(rows), CASE(a_writer_can_be_used_again),
      CASE(every_byte_that_may_be_in_a_string_comes_back), CASE(keys_are_escaped_too),
      CASE(doubles_come_back_bit_for_bit), CASE(doubles_ignore_the_locale), CASE(a_document_echoes));
