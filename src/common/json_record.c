/* json_record.c - structures of whole numbers as JSON objects and back, from tables of their fields; arrays of them. */
#include "json.h"

ms_status ms__json_get_ints(const ms__json *object, const char *key, int64_t min, int64_t max, ms__arena *arena,
                            int64_t **out, size_t *out_n) {
    const ms__json *list = NULL;
    ms_status status = ms__json_get_array(object, key, &list);
    if (status != MS_OK || list == NULL) return status;
    int64_t *values = ms__arena_array(arena, list->n, sizeof *values);
    if (values == NULL) return MS_E_NO_MEMORY;
    for (size_t i = 0; i < list->n; i++) {
        const ms__json *item = &list->items[i];
        if (item->type != MS__JSON_INT || item->integer < min || item->integer > max)
            return ms__fail(MS_E_PARSE, "\"%s\": item %zu must be a whole number from %lld to %lld", key, i,
                            (long long)min, (long long)max);
        values[i] = item->integer;
    }
    *out = values;
    *out_n = list->n;
    return MS_OK;
}

void ms__json_put_record(ms__json_writer *w, const ms__json_field *fields, size_t n, const void *record) {
    for (size_t i = 0; i < n; i++)
        ms__json_put_int(w, fields[i].key, *(const int64_t *)((const char *)record + fields[i].offset));
}

ms_status ms__json_get_record(const ms__json *object, const ms__json_field *fields, size_t n, void *record) {
    for (size_t i = 0; i < n; i++) {
        int64_t value;
        ms_status status = ms__json_get_int(object, fields[i].key, fields[i].min, &value);
        if (status == MS_OK && value > fields[i].max)
            status = ms__fail(MS_E_PARSE, "\"%s\" must be at most %lld", fields[i].key, (long long)fields[i].max);
        if (status != MS_OK) return status;
        *(int64_t *)((char *)record + fields[i].offset) = value;
    }
    return MS_OK;
}

ms_status ms__json_check_version(const ms__json *document, const char *key, int64_t version) {
    int64_t found;
    if (document->type != MS__JSON_OBJECT) return ms__fail(MS_E_PARSE, "a JSON object was expected");
    ms_status status = ms__json_get_int(document, key, 1, &found);
    if (status == MS_OK && found != version)
        status = ms__fail(MS_E_VERSION, "%s has version %lld; this library reads version %lld", key, (long long)found,
                          (long long)version);
    return status;
}
