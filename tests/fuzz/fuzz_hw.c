/* fuzz_hw.c - any bytes as a hardware record.
 *
 * A record that can be read has what memscale.h promises and survives a round trip. One that cannot leaves the caller's
 * record unchanged.
 */
#include "fuzz.h"

#include <string.h>

#include <memscale/memscale.h>

const char *const fuzz_dictionary[] = {"\"memscale_hw\": 1",
                                       "\"memory_total_bytes\": ",
                                       "\"memory_limit_bytes\": ",
                                       "\"memory_available_bytes\": ",
                                       "\"page_bytes\": ",
                                       "\"n_cores\": ",
                                       "\"n_cores_online\": ",
                                       "\"n_numa_nodes\": ",
                                       "\"cgroup_version\": ",
                                       "\"gpus\": [",
                                       "\"index\": ",
                                       "\"name\": \"a\"",
                                       "\"uuid\": \"\"",
                                       "\"memory_free_bytes\": ",
                                       "\"memory_others_bytes\": ",
                                       "\"capability\": ",
                                       "\"has_bf16\": ",
                                       "\"is_mig\": ",
                                       "9223372036854775807",
                                       "9223372036854775808",
                                       "-1",
                                       "0",
                                       "1.0",
                                       ",",
                                       "{",
                                       "}",
                                       NULL};

static void check_gpu(const ms_hw_gpu *gpu, int64_t last_index) {
    REQUIRE(gpu->index > last_index && gpu->memory_total_bytes > 0 && gpu->capability >= 10);
    REQUIRE(gpu->memory_free_bytes >= -1 && gpu->memory_others_bytes >= -1 && gpu->n_multiprocessors >= 0);
    REQUIRE(memchr(gpu->name, 0, sizeof gpu->name) != NULL && memchr(gpu->uuid, 0, sizeof gpu->uuid) != NULL);
    REQUIRE((gpu->has_bf16 | gpu->has_fp16 | gpu->is_mig | gpu->is_integrated | 1) == 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ms_hw hw = {.struct_bytes = sizeof hw}, back = hw;
    char *text = NULL;
    ms_status status = ms_hw_from_json((const char *)data, n_bytes, &hw);
    if (status != MS_OK) {
        REQUIRE(status == MS_E_PARSE || status == MS_E_VERSION);
        REQUIRE(memcmp(&hw, &back, sizeof hw) == 0);
        return 0;
    }
    REQUIRE(hw.memory_total_bytes > 0 && hw.page_bytes > 0 && hw.n_cores > 0 && hw.n_numa_nodes > 0);
    REQUIRE(hw.memory_limit_bytes >= 0 && hw.memory_available_bytes >= 0 && hw.cgroup_version >= 0);
    REQUIRE(hw.n_gpus >= 0 && hw.n_gpus <= MS_HW_MAX_GPUS);
    for (int64_t i = 0; i < hw.n_gpus; i++) check_gpu(&hw.gpus[i], i == 0 ? -1 : hw.gpus[i - 1].index);
    REQUIRE(ms_hw_to_json(&hw, &text) == MS_OK);
    REQUIRE(ms_hw_from_json(text, strlen(text), &back) == MS_OK);
    REQUIRE(memcmp(&hw, &back, sizeof hw) == 0);
    ms_free(text);
    return 0;
}
