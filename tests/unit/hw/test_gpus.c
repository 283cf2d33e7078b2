/* test_gpus.c - GPUs in the hardware record: where each field is read, and what is unknown if that fails. */
#define _DEFAULT_SOURCE
#include "fake_gpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GB ((int64_t)1 << 30)

static ms_hw detect(ms_gpu *gpu) {
    ms_hw hw = {.struct_bytes = sizeof hw};
    CHECK_STATUS(ms_hw_detect(NULL, gpu, &hw), MS_OK);
    return hw;
}

/* The first device, with a ms_gpu of its own. */
static ms_hw_gpu first(void) {
    ms_gpu *gpu = open_fake("");
    ms_hw hw = detect(gpu);
    CHECK(hw.n_gpus >= 1);
    ms_gpu_destroy(gpu);
    check_nothing_left();
    return hw.gpus[0];
}

TEST(without_a_ms_gpu_there_are_none) {
    ms_hw hw = detect(NULL);
    CHECK_EQ_INT(hw.n_gpus, 0);
}

TEST(an_idle_device) {
    fake_settings_now()->others_bytes = 3 * (uint64_t)GB;
    ms_hw_gpu gpu = first();
    CHECK_EQ_INT(gpu.index, 0);
    CHECK_EQ_STR(gpu.name, "Fake GPU 0");
    CHECK_EQ_STR(gpu.uuid, "GPU-00102030-4050-6070-8090-a0b0c0d0e0f0");
    CHECK_EQ_INT(gpu.memory_total_bytes, 24 * GB);
    CHECK_EQ_INT(gpu.memory_free_bytes, 21 * GB);
    CHECK_EQ_INT(gpu.memory_others_bytes, 3 * GB); /* exact: without a context, none of it is ours */
    CHECK_EQ_INT(gpu.capability, 90);
    CHECK(gpu.has_bf16 == 1 && gpu.has_fp16 == 1 && gpu.n_multiprocessors == 100);
    CHECK(gpu.pcie_generation == 5 && gpu.pcie_width == 16 && gpu.is_mig == 0 && gpu.is_integrated == 0);
    CHECK_EQ_INT(fake_calls("cuDevicePrimaryCtxRetain"), 0);
    CHECK_EQ_INT(fake_calls("cuMemGetInfo_v2"), 0);
}

TEST(a_device_that_this_process_uses) {
    fake_settings_now()->others_bytes = 3 * (uint64_t)GB;
    fake_settings_now()->is_active = 1;
    ms_gpu *gpu = open_fake("");
    void *ours = fake_alloc(0, (size_t)1 << 20);
    ms_hw hw = detect(gpu);
    CHECK_EQ_INT(fake_calls("cuMemGetInfo_v2"), 1);
    CHECK_EQ_INT(hw.gpus[0].memory_free_bytes, 21 * GB - (1 << 20));
    CHECK_EQ_INT(hw.gpus[0].memory_others_bytes, 3 * GB);
    fake_settings_now()->hide_pid = 1; /* a container */
    CHECK_EQ_INT(detect(gpu).gpus[0].memory_others_bytes, -1);
    fake_settings_now()->is_active = 0;
    fake_free(ours);
    ms_gpu_destroy(gpu);
    check_nothing_left();
    fake_fail("cuDevicePrimaryCtxGetState", 999, 1);
    CHECK_EQ_INT(first().memory_others_bytes, -1);
    CHECK_EQ_INT(first().memory_others_bytes, 3 * GB); /* without a context, it is known in a container too */
}

TEST(older_nvml) {
    fake_settings_now()->others_bytes = (uint64_t)GB;
    fake_fail("nvmlDeviceGetMemoryInfo_v2", 13, 0);
    CHECK_EQ_INT(first().memory_others_bytes, GB);
    fake_fail("nvmlDeviceGetMemoryInfo", 3, 0);
    ms_hw_gpu gpu = first();
    CHECK(gpu.memory_others_bytes == -1 && gpu.memory_free_bytes == -1 && gpu.pcie_width == 16);
    fake_settings_now()->is_active = 1;
    CHECK_EQ_INT(first().memory_free_bytes, 23 * GB); /* the driver still knows */
}

TEST(libraries_without_the_optional_functions) {
    ms_gpu_options options = fake_options("");
    ms_gpu *gpu = NULL;
    options.driver_path = FAKE_DRIVER_OLD;
    options.nvml_path = FAKE_NVML_OLD;
    fake_settings_now()->others_bytes = (uint64_t)GB;
    CHECK_STATUS(ms_gpu_create(&options, &gpu), MS_OK);
    ms_hw hw = detect(gpu);
    CHECK_EQ_INT(hw.n_gpus, 1);
    CHECK_EQ_STR(hw.gpus[0].uuid, "");
    CHECK(hw.gpus[0].memory_free_bytes == 23 * GB && hw.gpus[0].memory_others_bytes == GB);
    fake_settings_now()->is_active = 1;
    hw = detect(gpu);
    CHECK(hw.gpus[0].memory_free_bytes == 23 * GB && hw.gpus[0].memory_others_bytes == -1);
    uint64_t sum = 0;
    fake_fail("cuCtxPushCurrent_v2", 999, 1);
    CHECK_STATUS(ms_gpu_checksum(gpu, 0, 4096, 8, 0, &sum), MS_E_CUDA);
    CHECK_EQ_STR(ms_error_message(), "cuCtxPushCurrent failed: error 999");
    fake_settings_now()->is_active = 0;
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

TEST(capabilities) {
    static const struct {
        int capability, bf16, fp16;
    } cases[] = {{61, 0, 0}, {70, 0, 1}, {75, 0, 1}, {80, 1, 1}, {86, 1, 1}, {90, 1, 1}, {120, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake_settings_now()->capability[0] = cases[i].capability;
        ms_hw_gpu gpu = first();
        CHECK_EQ_INT(gpu.capability, cases[i].capability);
        CHECK(gpu.has_bf16 == cases[i].bf16 && gpu.has_fp16 == cases[i].fp16);
    }
}

TEST(a_slice_of_a_device) {
    fake_settings_now()->is_mig = 1;
    fake_settings_now()->others_bytes = (uint64_t)GB;
    ms_hw_gpu gpu = first();
    CHECK_EQ_INT(gpu.is_mig, 1);
    CHECK_EQ_STR(gpu.uuid, "MIG-00102030-4050-6070-8090-a0b0c0d0e0f0");
    CHECK_EQ_INT(gpu.memory_others_bytes, GB);               /* of the slice */
    CHECK(gpu.pcie_generation == 5 && gpu.pcie_width == 16); /* of the whole */
    fake_fail("nvmlDeviceGetHandleByUUID", 6, 0);
    gpu = first();
    CHECK(gpu.is_mig == 1 && gpu.memory_others_bytes == -1); /* the whole device's memory is not the slice's */
    fake_fail("nvmlInit_v2", 9, 0);
    gpu = first();
    CHECK(gpu.is_mig == 1 && strncmp(gpu.uuid, "MIG-", 4) == 0);
}

static char said[8][512];
static int n_said;

static void keep_log(void *user, int level, const char *message) {
    (void)user;
    if (level == MS_LOG_WARNING && n_said < 8) (void)snprintf(said[n_said++], sizeof said[0], "%s", message);
}

TEST(a_device_that_cannot_be_read_is_left_out) {
    static const char *const calls[] = {"cuDeviceGetName", "cuDeviceTotalMem_v2", "cuDeviceGetAttribute"};
    const ms_log_sink sink = {.write = keep_log, .min_level = MS_LOG_WARNING};
    ms_log_set_sink(&sink);
    fake_settings_now()->n_devices = 3;
    ms_gpu *gpu = open_fake("");
    for (int i = 0; i < 3; i++) {
        fake_fail(calls[i], 999, i == 2 ? 5 : 2); /* of the second device */
        ms_hw hw = detect(gpu);
        CHECK_EQ_INT(hw.n_gpus, 2);
        CHECK(hw.gpus[0].index == 0 && hw.gpus[1].index == 2);
        CHECK_EQ_INT(n_said, i + 1);
        CHECK(strstr(said[i], "GPU 1 is left out") != NULL && strstr(said[i], "CUDA_ERROR_UNKNOWN") != NULL);
        fake_fail_nothing();
    }
    ms_log_set_sink(NULL);
    ms_gpu_destroy(gpu);
}

TEST(names_are_kept_to_what_json_can_say) {
    char longest[200];
    memset(longest, 'g', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    longest[5] = '\t';
    longest[6] = '\xFF';
    fake_settings_now()->name = longest;
    ms_hw_gpu gpu = first();
    CHECK_EQ_INT(strlen(gpu.name), sizeof gpu.name - 1);
    CHECK(strncmp(gpu.name, "ggggg??ggg", 10) == 0);
}

TEST(more_devices_than_the_record_has_room_for) {
    fake_settings_now()->n_devices = 20;
    ms_gpu *gpu = open_fake("");
    CHECK_EQ_INT(ms_gpu_count_devices(gpu), 20);
    ms_hw hw = detect(gpu);
    CHECK_EQ_INT(hw.n_gpus, MS_HW_MAX_GPUS);
    CHECK_EQ_INT(hw.gpus[15].index, 15);
    ms_gpu_destroy(gpu);
}

TEST(the_record_comes_back_from_json) {
    char *text = NULL;
    ms_hw back = {.struct_bytes = sizeof back};
    fake_settings_now()->n_devices = 3;
    ms_gpu *gpu = open_fake("");
    ms_hw hw = detect(gpu);
    CHECK_STATUS(ms_hw_to_json(&hw, &text), MS_OK);
    CHECK_STATUS(ms_hw_from_json(text, strlen(text), &back), MS_OK);
    CHECK(memcmp(&hw, &back, sizeof hw) == 0);
    ms_free(text);
    ms_gpu_destroy(gpu);
}

SUITE(hw_gpus, CASE(without_a_ms_gpu_there_are_none), CASE(an_idle_device), CASE(a_device_that_this_process_uses),
      CASE(older_nvml), CASE(libraries_without_the_optional_functions), CASE(capabilities), CASE(a_slice_of_a_device),
      CASE(a_device_that_cannot_be_read_is_left_out), CASE(names_are_kept_to_what_json_can_say),
      CASE(more_devices_than_the_record_has_room_for), CASE(the_record_comes_back_from_json));
