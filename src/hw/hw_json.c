/* hw_json.c - the hardware record as JSON and back, from one table of its fields. */
#include <stddef.h>

#include "../common/json.h"

#define VERSION_KEY "memscale_hw"
#define VERSION 1

static const struct {
    const char *key;
    size_t offset;
    int64_t min;
} fields[] = {
    {"memory_total_bytes", offsetof(ms_hw, memory_total_bytes), 1},
    {"memory_limit_bytes", offsetof(ms_hw, memory_limit_bytes), 0},
    {"memory_available_bytes", offsetof(ms_hw, memory_available_bytes), 0},
    {"page_bytes", offsetof(ms_hw, page_bytes), 1},
    {"n_cores", offsetof(ms_hw, n_cores), 1},
    {"n_cores_online", offsetof(ms_hw, n_cores_online), 1},
    {"n_numa_nodes", offsetof(ms_hw, n_numa_nodes), 1},
    {"cgroup_version", offsetof(ms_hw, cgroup_version), 0},
};

#define N_FIELDS (sizeof fields / sizeof *fields)

ms_status ms_hw_to_json(const ms_hw *hw, char **out_text) {
    if (hw == NULL || out_text == NULL) return ms__fail(MS_E_INVALID, "ms_hw_to_json: an argument is NULL");
    ms_status status = ms__check_struct(hw->struct_bytes, sizeof *hw, "ms_hw");
    if (status != MS_OK) return status;
    ms__json_writer w = {0};
    ms__json_begin_object(&w, NULL);
    ms__json_put_int(&w, VERSION_KEY, VERSION);
    for (size_t i = 0; i < N_FIELDS; i++)
        ms__json_put_int(&w, fields[i].key, *(const int64_t *)((const char *)hw + fields[i].offset));
    ms__json_end_object(&w);
    return ms__json_finish(&w, out_text);
}

static ms_status read_fields(const ms__json *object, ms_hw *out) {
    const char *allowed[N_FIELDS + 2] = {VERSION_KEY};
    for (size_t i = 0; i < N_FIELDS; i++) allowed[i + 1] = fields[i].key;
    int64_t version;
    ms_status status = object->type == MS__JSON_OBJECT ? ms__json_get_int(object, VERSION_KEY, 1, &version)
                                                       : ms__fail(MS_E_PARSE, "a JSON object was expected");
    if (status != MS_OK) return status;
    if (version != VERSION)
        return ms__fail(MS_E_VERSION, "hardware record of version %lld, this library reads %d", (long long)version,
                        VERSION);
    status = ms__json_check_keys(object, allowed);
    for (size_t i = 0; i < N_FIELDS && status == MS_OK; i++)
        status = ms__json_get_int(object, fields[i].key, fields[i].min, (int64_t *)((char *)out + fields[i].offset));
    return status;
}

ms_status ms_hw_from_json(const char *text, size_t n_bytes, ms_hw *out) {
    if (text == NULL || out == NULL) return ms__fail(MS_E_INVALID, "ms_hw_from_json: an argument is NULL");
    ms_status status = ms__check_struct(out->struct_bytes, sizeof *out, "ms_hw");
    if (status != MS_OK) return status;
    ms__arena arena = {0};
    const ms__json *document = NULL;
    ms_hw hw = {.struct_bytes = sizeof hw};
    status = ms__json_read(&arena, text, n_bytes, &document);
    if (status == MS_OK) status = read_fields(document, &hw);
    ms__arena_free(&arena);
    if (status == MS_OK) *out = hw;
    return status;
}
