/* json_echo.c - the writer of json.h driven by a document of its reader.
 *
 * Every type of value is written by the function that is meant for it, so a document that comes back changed shows a
 * reader and a writer that disagree.
 */
#include "json_echo.h"

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
        ms__json_put_null(w, key);
        break;
    case MS__JSON_BOOL:
        ms__json_put_bool(w, key, value->boolean);
        break;
    case MS__JSON_INT:
        ms__json_put_int(w, key, value->integer);
        break;
    case MS__JSON_UINT:
        ms__json_put_uint(w, key, value->uinteger);
        break;
    case MS__JSON_DOUBLE:
        ms__json_put_double(w, key, value->real);
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
