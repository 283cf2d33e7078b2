/* rates.c - how fast a device is: from its data sheet, or from a file of what was measured on it.
 *
 * A data sheet gives peaks. What operators of a training step reach of them is a fixed share, the same for every
 * device, so that plans for devices that are not there repeat; whoever has the device measures it. Always holds: rates
 * that were made or read here are in the ranges of the table below, so whoever computes with them needs no checks.
 */
#include <stddef.h>

#include "../common/json.h"

#define VERSION_KEY "memscale_rates"
#define MOST INT64_C(1000000000) /* of a rate in GFLOP/s or MB/s, and of a time in ns */

/* Per mille of the peak. Large products and copies reach 800 and 900 on an H200; those of a training step are smaller.
 */
enum { MATRIX_SHARE = 700, MEMORY_SHARE = 850 };

/* As seen on an H200: 55 GB/s each way and 101 both ways at once, pinning 1.6 GB/s. */
enum { BOTH_WAYS_SHARE = 1800, PINNING_MB_PER_S = 1600 };

/* An empty kernel behind another one, and an operator of torch called from Python. */
enum { LAUNCH_NS = 3000, DISPATCH_NS = 6000 };

static const ms__json_field fields[] = {
    {"source", offsetof(ms_rates, source), MS_RATES_TABLE, MS_RATES_MEASURED},
    {"capability", offsetof(ms_rates, capability), 0, 9999},
    {"memory_bytes", offsetof(ms_rates, memory_bytes), 1, INT64_MAX},
    {"fp32_gflops", offsetof(ms_rates, fp32_gflops), 1, MOST},
    {"tf32_gflops", offsetof(ms_rates, tf32_gflops), 0, MOST},
    {"fp16_gflops", offsetof(ms_rates, fp16_gflops), 0, MOST},
    {"bf16_gflops", offsetof(ms_rates, bf16_gflops), 0, MOST},
    {"memory_mb_per_s", offsetof(ms_rates, memory_mb_per_s), 1, MOST},
    {"to_device_mb_per_s", offsetof(ms_rates, to_device_mb_per_s), 0, MOST},
    {"from_device_mb_per_s", offsetof(ms_rates, from_device_mb_per_s), 0, MOST},
    {"both_mb_per_s", offsetof(ms_rates, both_mb_per_s), 0, 2 * MOST},
    {"pinning_mb_per_s", offsetof(ms_rates, pinning_mb_per_s), 0, MOST},
    {"launch_ns", offsetof(ms_rates, launch_ns), 0, MOST},
    {"dispatch_ns", offsetof(ms_rates, dispatch_ns), 0, MOST},
};

#define N_FIELDS (sizeof fields / sizeof *fields)

static ms_status check_ranges(const ms_rates *rates, const char *caller) {
    for (size_t i = 0; i < N_FIELDS; i++) {
        int64_t value = *(const int64_t *)((const char *)rates + fields[i].offset);
        if (value < fields[i].min || value > fields[i].max)
            return ms__fail(MS_E_INVALID, "%s: %s is %lld", caller, fields[i].key, (long long)value);
    }
    return MS_OK;
}

static int64_t share(int64_t peak, int64_t per_mille) { return peak * per_mille / 1000; }

ms_status ms_rates_from_model(const ms_gpu_model *model, ms_rates *out) {
    if (model == NULL || out == NULL) return ms__fail(MS_E_INVALID, "ms_rates_from_model: an argument is NULL");
    ms_status status = ms__check_struct(model->struct_bytes, sizeof *model, "ms_gpu_model");
    if (status == MS_OK) status = ms__check_struct(out->struct_bytes, sizeof *out, "ms_rates");
    if (status != MS_OK) return status;
    ms_rates rates = {.struct_bytes = sizeof rates,
                      .source = MS_RATES_TABLE,
                      .capability = model->capability,
                      .memory_bytes = model->memory_bytes,
                      .fp32_gflops = model->fp32_gflops,
                      .tf32_gflops = model->tf32_gflops,
                      .fp16_gflops = model->fp16_gflops,
                      .bf16_gflops = model->bf16_gflops,
                      .memory_mb_per_s = model->memory_mb_per_s,
                      .to_device_mb_per_s = model->link_mb_per_s,
                      .from_device_mb_per_s = model->link_mb_per_s,
                      .pinning_mb_per_s = PINNING_MB_PER_S,
                      .launch_ns = LAUNCH_NS,
                      .dispatch_ns = DISPATCH_NS};
    status = check_ranges(&rates, "ms_rates_from_model");
    if (status != MS_OK) return status;
    rates.both_mb_per_s = share(model->link_mb_per_s, BOTH_WAYS_SHARE);
    rates.memory_mb_per_s = share(rates.memory_mb_per_s, MEMORY_SHARE);
    rates.fp32_gflops = share(rates.fp32_gflops, MATRIX_SHARE);
    rates.tf32_gflops = share(rates.tf32_gflops, MATRIX_SHARE);
    rates.fp16_gflops = share(rates.fp16_gflops, MATRIX_SHARE);
    rates.bf16_gflops = share(rates.bf16_gflops, MATRIX_SHARE);
    status = check_ranges(&rates, "ms_rates_from_model"); /* the share of a tiny rate is none */
    if (status == MS_OK) *out = rates;
    return status;
}

ms_status ms_rates_to_json(const ms_rates *rates, char **out_text) {
    if (rates == NULL || out_text == NULL) return ms__fail(MS_E_INVALID, "ms_rates_to_json: an argument is NULL");
    ms_status status = ms__check_struct(rates->struct_bytes, sizeof *rates, "ms_rates");
    if (status == MS_OK) status = check_ranges(rates, "ms_rates_to_json");
    if (status != MS_OK) return status;
    ms__json_writer w = {0};
    ms__json_begin_object(&w, NULL);
    ms__json_put_int(&w, VERSION_KEY, MS_RATES_VERSION);
    ms__json_put_record(&w, fields, N_FIELDS, rates);
    ms__json_end_object(&w);
    return ms__json_finish(&w, out_text);
}

static ms_status read_rates(const ms__json *document, ms_rates *out) {
    const char *allowed[N_FIELDS + 2] = {VERSION_KEY};
    for (size_t i = 0; i < N_FIELDS; i++) allowed[i + 1] = fields[i].key;
    ms_status status = ms__json_check_version(document, VERSION_KEY, MS_RATES_VERSION);
    if (status == MS_OK) status = ms__json_check_keys(document, allowed);
    return status == MS_OK ? ms__json_get_record(document, fields, N_FIELDS, out) : status;
}

ms_status ms_rates_from_json(const char *text, size_t n_bytes, ms_rates *out) {
    if (text == NULL || out == NULL) return ms__fail(MS_E_INVALID, "ms_rates_from_json: an argument is NULL");
    ms_status status = ms__check_struct(out->struct_bytes, sizeof *out, "ms_rates");
    if (status != MS_OK) return status;
    ms__arena arena = {0};
    const ms__json *document = NULL;
    ms_rates rates = {.struct_bytes = sizeof rates};
    status = ms__json_read(&arena, text, n_bytes, &document);
    if (status == MS_OK) status = read_rates(document, &rates);
    ms__arena_free(&arena);
    if (status == MS_OK) *out = rates;
    return status;
}
