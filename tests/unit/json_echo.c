/* json_echo.c - passes a document from the reader of json.h to its writer.
 *
 * A document that comes back changed shows that reader and writer disagree. The library itself writes no fractions and
 * no numbers above INT64_MAX; those are put into text here.
 */
#include "json_echo.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The shortest text that reads back as the same number, and as one with a fraction. */
static void put_double(ms__json_writer *w, const char *key, double value) {
    char text[48];
    (void)snprintf(text, sizeof text - 2, "%.17g", value);
    for (char *c = text; *c != '\0'; c++)
        if (*c == ',') *c = '.'; /* a locale's decimal comma */
    if (strpbrk(text, ".eE") == NULL) (void)strcat(text, ".0");
    ms__json_put_literal(w, key, text);
}

static void put_uint(ms__json_writer *w, const char *key, uint64_t value) {
    char text[32];
    (void)snprintf(text, sizeof text, "%" PRIu64, value);
    ms__json_put_literal(w, key, text);
}

static void put_value(ms__json_writer *w, const char *key, const ms__json *value);

static void put_container(ms__json_writer *w, const char *key, const ms__json *value) {
    bool object = value->type == MS__JSON_OBJECT;
    (object ? ms__json_begin_object : ms__json_begin_array)(w, key);
    for (size_t i = 0; i < value->n; i++) put_value(w, object ? value->keys[i] : NULL, &value->items[i]);
    (object ? ms__json_end_object : ms__json_end_array)(w);
}

static void put_value(ms__json_writer *w, const char *key, const ms__json *value) {
    switch (value->type) {
    case MS__JSON_NULL:
        ms__json_put_literal(w, key, "null");
        break;
    case MS__JSON_BOOL:
        ms__json_put_bool(w, key, value->boolean);
        break;
    case MS__JSON_INT:
        ms__json_put_int(w, key, value->integer);
        break;
    case MS__JSON_UINT:
        put_uint(w, key, value->uinteger);
        break;
    case MS__JSON_DOUBLE:
        put_double(w, key, value->real);
        break;
    case MS__JSON_STRING:
        ms__json_put_string(w, key, value->string, value->n);
        break;
    case MS__JSON_ARRAY:
    case MS__JSON_OBJECT:
        put_container(w, key, value);
        break;
    }
}

ms_status json_echo(const ms__json *document, char **out_text) {
    ms__json_writer w = {0};
    put_value(&w, NULL, document);
    return ms__json_finish(&w, out_text);
}
