/* json_record.c - structures of whole numbers as JSON objects and back, from tables of their fields. */
#include "json.h"

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
        status = ms__fail(MS_E_VERSION, "%s of version %lld, this library reads %lld", key, (long long)found,
                          (long long)version);
    return status;
}
