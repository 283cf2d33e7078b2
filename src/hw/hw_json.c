/* hw_json.c - the hardware record as JSON and back, from tables of its fields.
 *
 * A record that was read is as memscale.h describes it: sizes in their ranges, flags 0 or 1, devices in the order of
 * their indices.
 */
#include <stddef.h>
#include <string.h>

#include "../common/json.h"
#include "../common/structs.h"

#define VERSION_KEY "memscale_hw"
#define VERSION 1
#define GPUS_KEY "gpus"

typedef struct text_field {
    const char *key;
    size_t offset, n_bytes;
} text_field;

static const ms__json_field host_fields[] = {
    {"memory_total_bytes", offsetof(ms_hw, memory_total_bytes), 1, INT64_MAX},
    {"memory_limit_bytes", offsetof(ms_hw, memory_limit_bytes), 0, INT64_MAX},
    {"memory_available_bytes", offsetof(ms_hw, memory_available_bytes), 0, INT64_MAX},
    {"page_bytes", offsetof(ms_hw, page_bytes), 1, INT64_MAX},
    {"n_cores", offsetof(ms_hw, n_cores), 1, INT64_MAX},
    {"n_cores_online", offsetof(ms_hw, n_cores_online), 1, INT64_MAX},
    {"n_numa_nodes", offsetof(ms_hw, n_numa_nodes), 1, INT64_MAX},
    {"cgroup_version", offsetof(ms_hw, cgroup_version), 0, INT64_MAX},
};

static const ms__json_field gpu_fields[] = {
    {"index", offsetof(ms_hw_gpu, index), 0, INT64_MAX},
    {"memory_total_bytes", offsetof(ms_hw_gpu, memory_total_bytes), 1, INT64_MAX},
    {"memory_free_bytes", offsetof(ms_hw_gpu, memory_free_bytes), -1, INT64_MAX},
    {"memory_others_bytes", offsetof(ms_hw_gpu, memory_others_bytes), -1, INT64_MAX},
    {"capability", offsetof(ms_hw_gpu, capability), 10, 9999},
    {"has_bf16", offsetof(ms_hw_gpu, has_bf16), 0, 1},
    {"has_fp16", offsetof(ms_hw_gpu, has_fp16), 0, 1},
    {"n_multiprocessors", offsetof(ms_hw_gpu, n_multiprocessors), 0, INT64_MAX},
    {"pcie_generation", offsetof(ms_hw_gpu, pcie_generation), 0, INT64_MAX},
    {"pcie_width", offsetof(ms_hw_gpu, pcie_width), 0, INT64_MAX},
    {"is_mig", offsetof(ms_hw_gpu, is_mig), 0, 1},
    {"is_integrated", offsetof(ms_hw_gpu, is_integrated), 0, 1},
};

static const text_field gpu_texts[] = {
    {"name", offsetof(ms_hw_gpu, name), sizeof((ms_hw_gpu *)NULL)->name},
    {"uuid", offsetof(ms_hw_gpu, uuid), sizeof((ms_hw_gpu *)NULL)->uuid},
};

#define N_HOST_FIELDS (sizeof host_fields / sizeof *host_fields)
#define N_GPU_FIELDS (sizeof gpu_fields / sizeof *gpu_fields)
#define N_GPU_TEXTS (sizeof gpu_texts / sizeof *gpu_texts)

static void write_gpu(ms__json_writer *w, const ms_hw_gpu *gpu) {
    ms__json_begin_object(w, NULL);
    for (size_t i = 0; i < N_GPU_TEXTS; i++) {
        const char *text = (const char *)gpu + gpu_texts[i].offset;
        const char *end = memchr(text, '\0', gpu_texts[i].n_bytes);
        ms__json_put_string(w, gpu_texts[i].key, text, end == NULL ? gpu_texts[i].n_bytes - 1 : (size_t)(end - text));
    }
    ms__json_put_record(w, gpu_fields, N_GPU_FIELDS, gpu);
    ms__json_end_object(w);
}

ms_status ms_hw_to_json(const ms_hw *hw, char **out_text) {
    ms_hw ours;
    if (out_text == NULL) return ms__fail(MS_E_INVALID, "ms_hw_to_json: out_text is NULL");
    ms_status status = ms__struct_read(MS__STRUCT(ms_hw), hw, &ours);
    if (status != MS_OK) return status;
    if (ours.n_gpus < 0 || ours.n_gpus > MS_HW_MAX_GPUS)
        return ms__fail(MS_E_INVALID, "ms_hw_to_json: n_gpus is %lld, not 0 to %d", (long long)ours.n_gpus,
                        MS_HW_MAX_GPUS);
    ms__json_writer w = {0};
    ms__json_begin_object(&w, NULL);
    ms__json_put_int(&w, VERSION_KEY, VERSION);
    ms__json_put_record(&w, host_fields, N_HOST_FIELDS, &ours);
    ms__json_begin_array(&w, GPUS_KEY);
    for (int64_t i = 0; i < ours.n_gpus; i++) write_gpu(&w, &ours.gpus[i]);
    ms__json_end_array(&w);
    ms__json_end_object(&w);
    return ms__json_finish(&w, out_text);
}

static ms_status read_gpu(const ms__json *object, ms_hw_gpu *out) {
    const char *allowed[N_GPU_FIELDS + N_GPU_TEXTS + 1] = {NULL};
    for (size_t i = 0; i < N_GPU_FIELDS; i++) allowed[i] = gpu_fields[i].key;
    for (size_t i = 0; i < N_GPU_TEXTS; i++) allowed[N_GPU_FIELDS + i] = gpu_texts[i].key;
    ms_status status = ms__json_check_keys(object, allowed);
    if (status == MS_OK) status = ms__json_get_record(object, gpu_fields, N_GPU_FIELDS, out);
    for (size_t i = 0; i < N_GPU_TEXTS && status == MS_OK; i++) {
        const char *text = NULL;
        status = ms__json_get_string(object, gpu_texts[i].key, &text);
        if (status == MS_OK && strlen(text) >= gpu_texts[i].n_bytes)
            status = ms__fail(MS_E_PARSE, "\"%s\" has more than %zu bytes", gpu_texts[i].key, gpu_texts[i].n_bytes - 1);
        if (status == MS_OK) memcpy((char *)out + gpu_texts[i].offset, text, strlen(text));
    }
    return status;
}

static ms_status read_gpus(const ms__json *object, ms_hw *out) {
    const ms__json *list = NULL;
    ms_status status = ms__json_get_array(object, GPUS_KEY, &list);
    if (status != MS_OK) return status;
    if (list->n > MS_HW_MAX_GPUS)
        return ms__fail(MS_E_PARSE, "the record has %zu GPUs; at most %d are allowed", list->n, MS_HW_MAX_GPUS);
    int64_t last = -1;
    for (size_t i = 0; i < list->n; i++) {
        status = read_gpu(&list->items[i], &out->gpus[i]);
        if (status != MS_OK) return status;
        if (out->gpus[i].index <= last) return ms__fail(MS_E_PARSE, "GPUs must be in the order of their indices");
        last = out->gpus[i].index;
    }
    out->n_gpus = (int64_t)list->n;
    return MS_OK;
}

static ms_status read_record(const ms__json *object, ms_hw *out) {
    const char *allowed[N_HOST_FIELDS + 3] = {VERSION_KEY, GPUS_KEY};
    for (size_t i = 0; i < N_HOST_FIELDS; i++) allowed[i + 2] = host_fields[i].key;
    ms_status status = ms__json_check_version(object, VERSION_KEY, VERSION);
    if (status == MS_OK) status = ms__json_check_keys(object, allowed);
    if (status == MS_OK) status = ms__json_get_record(object, host_fields, N_HOST_FIELDS, out);
    return status == MS_OK ? read_gpus(object, out) : status;
}

ms_status ms_hw_from_json(const char *text, size_t n_bytes, ms_hw *out) {
    if (text == NULL) return ms__fail(MS_E_INVALID, "ms_hw_from_json: the text is NULL");
    ms_status status = ms__struct_check(MS__STRUCT(ms_hw), out);
    if (status != MS_OK) return status;
    ms__arena arena = {0};
    const ms__json *document = NULL;
    ms_hw hw = {0};
    status = ms__json_read(&arena, text, n_bytes, &document);
    if (status == MS_OK) status = read_record(document, &hw);
    ms__arena_free(&arena);
    return status == MS_OK ? ms__struct_write(MS__STRUCT(ms_hw), &hw, out) : status;
}
