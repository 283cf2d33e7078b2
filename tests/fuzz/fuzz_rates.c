/* fuzz_rates.c - any bytes as rates of a device, and as the name of a GPU.
 *
 * Rates that can be read have what memscale.h promises and survive a round trip; others leave the caller's unchanged. A
 * name finds a model or none, and a model that is found is also found by its key.
 */
#include "fuzz.h"

#include <string.h>

#include <memscale/memscale.h>

#define MOST INT64_C(1000000000)
#define NAME_BYTES 256

const char *const fuzz_dictionary[] = {"\"memscale_rates\": 1",
                                       "\"memscale_rates\": 2",
                                       "\"source\": ",
                                       "\"capability\": ",
                                       "\"memory_bytes\": ",
                                       "\"fp32_gflops\": ",
                                       "\"tf32_gflops\": ",
                                       "\"fp16_gflops\": ",
                                       "\"bf16_gflops\": ",
                                       "\"memory_mb_per_s\": ",
                                       "\"to_device_mb_per_s\": ",
                                       "\"from_device_mb_per_s\": ",
                                       "\"both_mb_per_s\": ",
                                       "\"pinning_mb_per_s\": ",
                                       "\"launch_ns\": ",
                                       "\"dispatch_ns\": ",
                                       "\"product_ns\": ",
                                       "\"view_ns\": ",
                                       "\"backward_ns\": ",
                                       "\"backward_product_ns\": ",
                                       "\"backward_view_ns\": ",
                                       "\"list_tensor_ns\": ",
                                       "\"parameter_ns\": ",
                                       "\"saved_tensor_ns\": ",
                                       "\"recomputation_ns\": ",
                                       "\"random_mb_per_s\": ",
                                       "\"fresh_mb_per_s\": ",
                                       "1000000000",
                                       "1000000001",
                                       "9223372036854775807",
                                       "-1",
                                       "0",
                                       "1.0",
                                       ",",
                                       "{",
                                       "}",
                                       "NVIDIA ",
                                       "GeForce RTX ",
                                       "3090",
                                       "16GB",
                                       NULL};

static void check_name(const uint8_t *data, size_t n_bytes) {
    char name[NAME_BYTES];
    ms_gpu_model model = {.struct_bytes = sizeof model}, again = model;
    size_t n = n_bytes < NAME_BYTES ? n_bytes : NAME_BYTES - 1;
    if (n > 0) memcpy(name, data, n);
    name[n] = '\0';
    ms_status status = ms_gpu_model_find(name, &model);
    REQUIRE(status == MS_OK || status == MS_E_NOT_FOUND);
    if (status != MS_OK) return;
    REQUIRE(ms_gpu_model_find(model.key, &again) == MS_OK && again.key == model.key);
}

static void check_ranges(const ms_rates *rates) {
    REQUIRE((rates->source | 1) == 1 && rates->capability >= 0 && rates->memory_bytes > 0);
    REQUIRE(rates->fp32_gflops > 0 && rates->fp32_gflops <= MOST);
    REQUIRE(rates->tf32_gflops >= 0 && rates->fp16_gflops >= 0 && rates->bf16_gflops >= 0);
    REQUIRE(rates->memory_mb_per_s > 0 && rates->memory_mb_per_s <= MOST && rates->pinning_mb_per_s >= 0);
    REQUIRE(rates->to_device_mb_per_s >= 0 && rates->from_device_mb_per_s >= 0 && rates->both_mb_per_s <= 2 * MOST);
    for (const int64_t *value = &rates->launch_ns; value <= &rates->fresh_mb_per_s; value++)
        REQUIRE(*value >= 0 && *value <= MOST);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ms_rates rates = {.struct_bytes = sizeof rates}, back = rates;
    char *text = NULL;
    check_name(data, n_bytes);
    ms_status status = ms_rates_from_json((const char *)data, n_bytes, &rates);
    if (status != MS_OK) {
        REQUIRE(status == MS_E_PARSE || status == MS_E_VERSION);
        REQUIRE(memcmp(&rates, &back, sizeof rates) == 0);
        return 0;
    }
    check_ranges(&rates);
    REQUIRE(ms_rates_to_json(&rates, &text) == MS_OK);
    REQUIRE(ms_rates_from_json(text, strlen(text), &back) == MS_OK);
    REQUIRE(memcmp(&rates, &back, sizeof rates) == 0);
    ms_free(text);
    return 0;
}
