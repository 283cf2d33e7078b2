/* fake_gpus.c - fake_gpus.h. */
#include "fake_gpus.h"

#include <stdbool.h>

ms_gpu_options fake_options(const char *cache) {
    static const char *const nvrtc[] = {FAKE_NVRTC, NULL};
    return (ms_gpu_options){.struct_bytes = sizeof(ms_gpu_options),
                            .driver_path = FAKE_DRIVER,
                            .nvml_path = FAKE_NVML,
                            .nvrtc_paths = nvrtc,
                            .cache_path = cache};
}

static ms_gpu *open_with(const ms_gpu_options *options) {
    ms_gpu *gpu = NULL;
    CHECK_STATUS(ms_gpu_create(options, &gpu), MS_OK);
    return gpu;
}

ms_gpu *open_fake(const char *cache) {
    ms_gpu_options options = fake_options(cache);
    return open_with(&options);
}

ms_gpu *open_without_nvrtc(const char *cache) {
    static const char *const none[] = {"/no/such/libnvrtc.so", NULL};
    ms_gpu_options options = fake_options(cache);
    options.nvrtc_paths = none;
    return open_with(&options);
}

ms_gpu_component_info part_of(ms_gpu *gpu, int32_t part) {
    ms_gpu_component_info state = {.struct_bytes = sizeof state};
    CHECK_STATUS(ms_gpu_get_component(gpu, part, &state), MS_OK);
    return state;
}

void check_nothing_left(void) {
    for (int kind = 0; kind < FAKE_N_KINDS; kind++) CHECK_EQ_INT(fake_live((enum fake_kind)kind), 0);
    CHECK_EQ_INT(fake_lost(), 0);
    CHECK_EQ_INT(fake_retained(), 0);
    CHECK_EQ_INT(fake_nvml_users(), 0);
}

void fill_random(void *memory, size_t n_bytes, uint64_t seed) {
    unsigned char *bytes = memory;
    for (size_t i = 0; i < n_bytes; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (unsigned char)(seed >> 56);
    }
}

uint64_t checksum_of(ms_gpu *gpu, int64_t device, const void *memory, size_t n_bytes) {
    uint64_t sum = 0;
    CHECK_STATUS(ms_gpu_checksum(gpu, device, (uint64_t)(uintptr_t)memory, n_bytes, 0, &sum), MS_OK);
    return sum;
}
