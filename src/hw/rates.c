/* rates.c - how fast a device is: from its data sheet, from a file of measurements, or guessed.
 *
 * A data sheet gives peaks. The operators of a training step reach a fixed share of them, the same for every device, so
 * that plans for a device that is not in this machine are the same everywhere; whoever has the device can measure it.
 * Invariant: rates that are made or read here are in the ranges of the table below, so that code which computes with
 * them needs no checks.
 */
#include <stddef.h>

#include "../common/fields.h"
#include "../common/json.h"
#include "../common/structs.h"

#define VERSION_KEY "memscale_rates"
#define MOST INT64_C(1000000000) /* of a rate in GFLOP/s or MB/s, and of a time in ns */

/* The oldest chips that compute in a type natively. */
enum { LEAST_FP16_CAPABILITY = 70, LEAST_BF16_CAPABILITY = 80 };

/* Per mille of the peak. Large products and copies reach 800 and 900 on an H200; in the training steps that were
 * measured there (bench/results), products of layers and pointwise operators reach about this. */
enum { MATRIX_SHARE = 650, MEMORY_SHARE = 650 };

/* As seen on an H200: 55 GB/s each way and 101 both ways at once, pinning 1.6 GB/s. */
enum { BOTH_WAYS_SHARE = 1800, PINNING_MB_PER_S = 1600 };

/* The time of an empty kernel that follows another one. */
enum { LAUNCH_NS = 3000 };

/* What the host takes for operators, by kind and caller, and for recomputation (ms_rates). Of a GPU: fitted to the time
 * in which the host of an H200, which is not a fast one, queued forward, backward and the optimizer's step of eleven
 * models (bench/slowdown.py), plain and recomputed. Of the host itself, where nothing is launched: as measured on a
 * server with AVX-512. */
#define GPU_HOST_NS                                                                                                    \
    .dispatch_ns = 19000, .product_ns = 76000, .view_ns = 4500, .backward_ns = 17000, .backward_product_ns = 28000,    \
    .backward_view_ns = 9500, .list_tensor_ns = 1100, .parameter_ns = 10000, .saved_tensor_ns = 15000,                 \
    .recomputation_ns = 210000
#define HOST_NS                                                                                                        \
    .dispatch_ns = 7500, .product_ns = 35000, .view_ns = 2200, .backward_ns = 6000, .backward_product_ns = 10000,      \
    .backward_view_ns = 1400, .list_tensor_ns = 1300, .parameter_ns = 5600, .saved_tensor_ns = 7500,                   \
    .recomputation_ns = 105000

/* Guesses: for a host as a whole, for each multiprocessor of a GPU, and for the link of any GPU (PCIe 3.0 with 16
 * lanes). Products in 16 bits are four times as fast as in 32. */
enum { HOST_GFLOPS = 100, HOST_MB_PER_S = 20000, HOST_RANDOM_MB_PER_S = 600, HOST_FRESH_MB_PER_S = 2700 };
enum { GPU_GFLOPS = 200, GPU_MB_PER_S = 10000, GPU_LINK_MB_PER_S = 12000, MAX_MULTIPROCESSORS = 100000 };
enum { HALF_SPEEDUP = 4 };

/* X(field, least, most) */
#define FIELD_LIST(X)                                                                                                  \
    X(source, MS_RATES_TABLE, MS_RATES_MEASURED)                                                                       \
    X(capability, 0, 9999)                                                                                             \
    X(memory_bytes, 1, INT64_MAX)                                                                                      \
    X(fp32_gflops, 1, MOST)                                                                                            \
    X(tf32_gflops, 0, MOST)                                                                                            \
    X(fp16_gflops, 0, MOST)                                                                                            \
    X(bf16_gflops, 0, MOST)                                                                                            \
    X(memory_mb_per_s, 1, MOST)                                                                                        \
    X(to_device_mb_per_s, 0, MOST)                                                                                     \
    X(from_device_mb_per_s, 0, MOST)                                                                                   \
    X(both_mb_per_s, 0, 2 * MOST)                                                                                      \
    X(pinning_mb_per_s, 0, MOST)                                                                                       \
    X(launch_ns, 0, MOST)                                                                                              \
    X(dispatch_ns, 0, MOST)                                                                                            \
    X(product_ns, 0, MOST)                                                                                             \
    X(view_ns, 0, MOST)                                                                                                \
    X(backward_ns, 0, MOST)                                                                                            \
    X(backward_product_ns, 0, MOST)                                                                                    \
    X(backward_view_ns, 0, MOST)                                                                                       \
    X(list_tensor_ns, 0, MOST)                                                                                         \
    X(parameter_ns, 0, MOST)                                                                                           \
    X(saved_tensor_ns, 0, MOST)                                                                                        \
    X(recomputation_ns, 0, MOST)                                                                                       \
    X(random_mb_per_s, 0, MOST)                                                                                        \
    X(fresh_mb_per_s, 0, MOST)

static const ms__json_field fields[] = {
#define FIELD(name, least, most) {#name, offsetof(ms_rates, name), least, most},
    FIELD_LIST(FIELD)
#undef FIELD
};

static const ms_field exported_fields[] = {
#define FIELD(name, least, most) MS__FIELD(ms_rates, name, MS_FIELD_INT64),
    FIELD_LIST(FIELD)
#undef FIELD
};

const ms_field *ms_rates_fields(int64_t *out_n) { MS__RETURN_FIELDS(exported_fields, out_n); }

#define N_FIELDS (sizeof fields / sizeof *fields)
#define N_FIELDS_OF_VERSION_1 14 /* up to dispatch_ns */

static ms_status check_ranges(const ms_rates *rates, const char *caller) {
    for (size_t i = 0; i < N_FIELDS; i++) {
        int64_t value = *(const int64_t *)((const char *)rates + fields[i].offset);
        if (value < fields[i].min || value > fields[i].max)
            return ms__fail(MS_E_INVALID, "%s: %s is %lld, which is out of range", caller, fields[i].key,
                            (long long)value);
    }
    return MS_OK;
}

static int64_t share(int64_t peak, int64_t per_mille) { return peak * per_mille / 1000; }

int ms_capability_has_bf16(int64_t capability) { return capability >= LEAST_BF16_CAPABILITY; }

int ms_capability_has_fp16(int64_t capability) { return capability >= LEAST_FP16_CAPABILITY; }

ms_status ms_rates_from_model(const ms_gpu_model *model, ms_rates *out) {
    ms_gpu_model m;
    ms_status status = ms__struct_read(MS__STRUCT(ms_gpu_model), model, &m);
    if (status != MS_OK) return status;
    ms_rates rates = {.source = MS_RATES_TABLE,
                      .capability = m.capability,
                      .memory_bytes = m.memory_bytes,
                      .fp32_gflops = m.fp32_gflops,
                      .tf32_gflops = m.tf32_gflops,
                      .fp16_gflops = m.fp16_gflops,
                      .bf16_gflops = m.bf16_gflops,
                      .memory_mb_per_s = m.memory_mb_per_s,
                      .to_device_mb_per_s = m.link_mb_per_s,
                      .from_device_mb_per_s = m.link_mb_per_s,
                      .pinning_mb_per_s = PINNING_MB_PER_S,
                      .launch_ns = LAUNCH_NS,
                      GPU_HOST_NS};
    status = check_ranges(&rates, "ms_rates_from_model");
    if (status != MS_OK) return status;
    rates.both_mb_per_s = share(m.link_mb_per_s, BOTH_WAYS_SHARE);
    rates.memory_mb_per_s = share(rates.memory_mb_per_s, MEMORY_SHARE);
    rates.fp32_gflops = share(rates.fp32_gflops, MATRIX_SHARE);
    rates.tf32_gflops = share(rates.tf32_gflops, MATRIX_SHARE);
    rates.fp16_gflops = share(rates.fp16_gflops, MATRIX_SHARE);
    rates.bf16_gflops = share(rates.bf16_gflops, MATRIX_SHARE);
    status = check_ranges(&rates, "ms_rates_from_model"); /* the share of a tiny rate may be 0 */
    return status == MS_OK ? ms__struct_write(MS__STRUCT(ms_rates), &rates, out) : status;
}

ms_status ms_rates_guess(int64_t capability, int64_t memory_bytes, int64_t n_multiprocessors, ms_rates *out) {
    bool is_gpu = capability != 0;
    if (is_gpu && (n_multiprocessors < 1 || n_multiprocessors > MAX_MULTIPROCESSORS))
        return ms__fail(MS_E_INVALID, "ms_rates_guess: n_multiprocessors is %lld, which is out of range",
                        (long long)n_multiprocessors);
    int64_t fp32 = is_gpu ? GPU_GFLOPS * n_multiprocessors : 0;
    const ms_rates gpu = {.source = MS_RATES_TABLE,
                          .capability = capability,
                          .memory_bytes = memory_bytes,
                          .fp32_gflops = fp32,
                          .fp16_gflops = ms_capability_has_fp16(capability) ? HALF_SPEEDUP * fp32 : 0,
                          .bf16_gflops = ms_capability_has_bf16(capability) ? HALF_SPEEDUP * fp32 : 0,
                          .memory_mb_per_s = is_gpu ? GPU_MB_PER_S * n_multiprocessors : 0,
                          .to_device_mb_per_s = GPU_LINK_MB_PER_S,
                          .from_device_mb_per_s = GPU_LINK_MB_PER_S,
                          .both_mb_per_s = INT64_C(2) * GPU_LINK_MB_PER_S,
                          .launch_ns = LAUNCH_NS,
                          GPU_HOST_NS};
    const ms_rates host = {.source = MS_RATES_TABLE,
                           .memory_bytes = memory_bytes,
                           .fp32_gflops = HOST_GFLOPS,
                           .memory_mb_per_s = HOST_MB_PER_S,
                           .random_mb_per_s = HOST_RANDOM_MB_PER_S,
                           .fresh_mb_per_s = HOST_FRESH_MB_PER_S,
                           HOST_NS};
    const ms_rates *rates = is_gpu ? &gpu : &host;
    ms_status status = check_ranges(rates, "ms_rates_guess");
    return status == MS_OK ? ms__struct_write(MS__STRUCT(ms_rates), rates, out) : status;
}

ms_status ms_rates_to_json(const ms_rates *rates, char **out_text) {
    ms_rates ours;
    if (out_text == NULL) return ms__fail(MS_E_INVALID, "ms_rates_to_json: out_text is NULL");
    ms_status status = ms__struct_read(MS__STRUCT(ms_rates), rates, &ours);
    if (status == MS_OK) status = check_ranges(&ours, "ms_rates_to_json");
    if (status != MS_OK) return status;
    ms__json_writer w = {0};
    ms__json_begin_object(&w, NULL);
    ms__json_put_int(&w, VERSION_KEY, MS_RATES_VERSION);
    ms__json_put_record(&w, fields, N_FIELDS, &ours);
    ms__json_end_object(&w);
    return ms__json_finish(&w, out_text);
}

static bool is_version_1(const ms__json *document) {
    const ms__json *version = document->type == MS__JSON_OBJECT ? ms__json_get(document, VERSION_KEY) : NULL;
    return version != NULL && version->type == MS__JSON_INT && version->integer == 1;
}

static ms_status read_rates(const ms__json *document, ms_rates *out) {
    const char *allowed[N_FIELDS + 2] = {VERSION_KEY};
    bool is_old = is_version_1(document);
    size_t n = is_old ? N_FIELDS_OF_VERSION_1 : N_FIELDS;
    ms_status status = is_old ? MS_OK : ms__json_check_version(document, VERSION_KEY, MS_RATES_VERSION);
    for (size_t i = 0; i < n; i++) allowed[i + 1] = fields[i].key;
    if (status == MS_OK) status = ms__json_check_keys(document, allowed);
    return status == MS_OK ? ms__json_get_record(document, fields, n, out) : status;
}

ms_status ms_rates_from_json(const char *text, size_t n_bytes, ms_rates *out) {
    if (text == NULL) return ms__fail(MS_E_INVALID, "ms_rates_from_json: the text is NULL");
    ms_status status = ms__struct_check(MS__STRUCT(ms_rates), out);
    if (status != MS_OK) return status;
    ms__arena arena = {0};
    const ms__json *document = NULL;
    ms_rates rates = {0};
    status = ms__json_read(&arena, text, n_bytes, &document);
    if (status == MS_OK) status = read_rates(document, &rates);
    ms__arena_free(&arena);
    return status == MS_OK ? ms__struct_write(MS__STRUCT(ms_rates), &rates, out) : status;
}
