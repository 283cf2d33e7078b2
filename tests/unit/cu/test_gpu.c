/* test_gpu.c - opening the libraries: every way in which the driver, NVML or NVRTC can be missing is a clean state with
 * a reason; contexts are borrowed and released; a forked child touches nothing.
 */
#define _DEFAULT_SOURCE
#include "fake_gpus.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "prim/prim.h"

/* There are no devices, and the reason contains this; every other call answers. */
static void check_cpu_mode(const ms_gpu_options *options, const char *reason) {
    ms_gpu *gpu = NULL;
    ms_hw hw = {.struct_bytes = sizeof hw};
    ms_gpu_link link = {.struct_bytes = sizeof link};
    uint64_t sum = 7;
    CHECK_STATUS(ms_gpu_create(options, &gpu), MS_OK);
    CHECK_EQ_INT(ms_gpu_count_devices(gpu), 0);
    ms_gpu_component_info driver = part_of(gpu, MS_GPU_DRIVER);
    CHECK(driver.works == 0 && driver.version == 0);
    if (strstr(driver.text, reason) == NULL) test_fail(__FILE__, __LINE__, "\"%s\" in: %s", reason, driver.text);
    CHECK_STATUS(ms_gpu_checksum(gpu, 0, 4096, 8, 0, &sum), MS_E_UNAVAILABLE);
    CHECK(strstr(ms_error_message(), reason) != NULL && sum == 7);
    CHECK_STATUS(ms_gpu_measure_link(gpu, 0, 1 << 20, &link), MS_E_UNAVAILABLE);
    CHECK_STATUS(ms_hw_detect(NULL, gpu, &hw), MS_OK);
    CHECK_EQ_INT(hw.n_gpus, 0);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

TEST(no_driver) {
    ms_gpu_options options = fake_options("");
    options.driver_path = "/no/such/libcuda.so.1";
    check_cpu_mode(&options, "/no/such/libcuda.so.1: cannot open");
}

TEST(a_driver_that_lacks_functions) {
    ms_gpu_options options = fake_options("");
    options.driver_path = FAKE_SHORT;
    check_cpu_mode(&options, "has no function cuDriverGetVersion");
}

TEST(a_driver_that_is_too_old) {
    ms_gpu_options options = fake_options("");
    fake_settings_now()->driver_version = 11070;
    check_cpu_mode(&options, "CUDA 11.7, and 11.8 or later");
    CHECK_EQ_INT(fake_calls("cuInit"), 0);
}

TEST(a_driver_that_does_not_start) {
    ms_gpu_options options = fake_options("");
    fake_fail("cuInit", 999, 1);
    check_cpu_mode(&options, "cuInit failed: CUDA_ERROR_UNKNOWN");
    fake_fail("cuDriverGetVersion", 2, 1);
    check_cpu_mode(&options, "cuDriverGetVersion failed: CUDA_ERROR_OUT_OF_MEMORY");
    fake_fail("cuDeviceGetCount", 999, 1);
    check_cpu_mode(&options, "cuDeviceGetCount failed");
    fake_fail("cuDeviceGet", 999, 1);
    check_cpu_mode(&options, "cuDeviceGet failed");
    fake_fail("cuInit", 999, 1);
    fake_fail("cuGetErrorName", 1, 1); /* an error without a name */
    check_cpu_mode(&options, "cuInit failed: error 999");
}

TEST(no_devices) {
    ms_gpu_options options = fake_options("");
    fake_settings_now()->n_devices = 0;
    check_cpu_mode(&options, "CUDA_ERROR_NO_DEVICE");
    fake_settings_now()->n_devices = 2;
    CHECK(setenv("CUDA_VISIBLE_DEVICES", "", 1) == 0);
    check_cpu_mode(&options, "CUDA_ERROR_NO_DEVICE");
}

TEST(no_nvml) {
    static const struct {
        const char *path, *reason;
    } cases[] = {{"/no/such/libnvidia-ml.so.1", "cannot open"}, {FAKE_SHORT, "has no function"}};
    ms_hw hw = {.struct_bytes = sizeof hw};
    for (int i = 0; i < 3; i++) {
        ms_gpu_options options = fake_options("");
        ms_gpu *gpu = NULL;
        if (i < 2) options.nvml_path = cases[i].path;
        if (i == 2) fake_fail("nvmlInit_v2", 9, 1);
        CHECK_STATUS(ms_gpu_create(&options, &gpu), MS_OK);
        ms_gpu_component_info nvml = part_of(gpu, MS_GPU_NVML);
        CHECK(nvml.works == 0 && strstr(nvml.text, i < 2 ? cases[i].reason : "Driver Not Loaded") != NULL);
        CHECK_EQ_INT(ms_gpu_count_devices(gpu), 1);
        CHECK_STATUS(ms_hw_detect(NULL, gpu, &hw), MS_OK);
        CHECK(hw.n_gpus == 1 && hw.gpus[0].memory_free_bytes == -1 && hw.gpus[0].memory_others_bytes == -1);
        CHECK(hw.gpus[0].pcie_generation == 0 && hw.gpus[0].pcie_width == 0);
        ms_gpu_destroy(gpu);
        check_nothing_left();
    }
}

TEST(parts_of_a_whole_machine) {
    ms_gpu *gpu = open_fake("/tmp/memscale-not-made");
    ms_gpu_component_info driver = part_of(gpu, MS_GPU_DRIVER), nvrtc = part_of(gpu, MS_GPU_NVRTC);
    CHECK(driver.works == 1 && driver.version == 13000 && strstr(driver.text, "libcuda.so.1") != NULL);
    CHECK(nvrtc.works == 1 && nvrtc.version == 13000 && strstr(nvrtc.text, "libnvrtc.so.13") != NULL);
    ms_gpu_component_info nvml = part_of(gpu, MS_GPU_NVML);
    CHECK(nvml.works == 1 && strstr(nvml.text, "580.65.06") != NULL);
    ms_gpu_component_info cache = part_of(gpu, MS_GPU_CACHE);
    CHECK(cache.works == 1 && strcmp(cache.text, "/tmp/memscale-not-made") == 0);
    ms_gpu_component_info ptx = part_of(gpu, MS_GPU_PTX);
    CHECK(ptx.text[0] != '\0');
    CHECK_EQ_INT(fake_retained(), 0); /* no context before it is needed */
    CHECK(access("/tmp/memscale-not-made", F_OK) != 0);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

TEST(names_of_parts) {
    CHECK_EQ_STR(ms_gpu_component_name(MS_GPU_DRIVER), "driver");
    CHECK_EQ_STR(ms_gpu_component_name(MS_GPU_NVML), "nvml");
    CHECK_EQ_STR(ms_gpu_component_name(MS_GPU_NVRTC), "nvrtc");
    CHECK_EQ_STR(ms_gpu_component_name(MS_GPU_PTX), "ptx");
    CHECK_EQ_STR(ms_gpu_component_name(MS_GPU_CACHE), "cache");
    CHECK_EQ_STR(ms_gpu_component_name(5), "?");
    CHECK_EQ_STR(ms_gpu_component_name(-1), "?");
}

TEST(arguments_are_checked) {
    ms_gpu_options options = fake_options("");
    ms_gpu *gpu = NULL;
    ms_gpu_component_info state = {.struct_bytes = sizeof state};
    ms_gpu_link link = {.struct_bytes = sizeof link};
    uint64_t sum = 0;
    CHECK_STATUS(ms_gpu_create(&options, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_options_init(NULL), MS_E_INVALID);
    options.struct_bytes = 8;
    CHECK_STATUS(ms_gpu_options_init(&options), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_create(&options, &gpu), MS_E_INVALID);
    CHECK(gpu == NULL && ms_gpu_count_devices(NULL) == 0);
    ms_gpu_destroy(NULL);
    gpu = open_fake("");
    CHECK_STATUS(ms_gpu_get_component(NULL, 0, &state), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_get_component(gpu, 0, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_get_component(gpu, 5, &state), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_get_component(gpu, -1, &state), MS_E_INVALID);
    state.struct_bytes = 8;
    CHECK_STATUS(ms_gpu_get_component(gpu, 0, &state), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_checksum(NULL, 0, 0, 0, 0, &sum), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_checksum(gpu, 0, 0, 0, 0, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_checksum(gpu, 1, 0, 0, 0, &sum), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_checksum(gpu, -1, 0, 0, 0, &sum), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_checksum(gpu, 0, 0, 1, 0, &sum), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_checksum(gpu, 0, 4096, UINT64_MAX - 1, 0, &sum), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_measure_link(gpu, 0, 4095, &link), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_measure_link(gpu, 1, 4096, &link), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_measure_link(gpu, 0, 4096, NULL), MS_E_INVALID);
    link.struct_bytes = 0;
    CHECK_STATUS(ms_gpu_measure_link(gpu, 0, 4096, &link), MS_E_INVALID);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

TEST(paths_that_are_too_long) {
    char longest[5000];
    const char *const nvrtc[] = {FAKE_NVRTC, longest, NULL};
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    for (int i = 0; i < 4; i++) {
        ms_gpu *gpu = NULL;
        ms_gpu_options options = fake_options("");
        if (i == 0) options.driver_path = longest;
        if (i == 1) options.nvml_path = longest;
        if (i == 2) options.cache_path = longest;
        if (i == 3) options.nvrtc_paths = nvrtc;
        CHECK_STATUS(ms_gpu_create(&options, &gpu), MS_E_LIMIT);
        CHECK(gpu == NULL);
    }
    CHECK(setenv("MEMSCALE_CACHE_DIR", longest, 1) == 0); /* not the caller's fault: there is no cache, and no error */
    ms_gpu *gpu = open_fake(NULL);
    CHECK(part_of(gpu, MS_GPU_CACHE).works == 0);
    ms_gpu_destroy(gpu);
}

TEST(where_the_cache_is) {
    static const struct {
        const char *own, *xdg, *home, *path;
    } cases[] = {{"/tmp/own", "/tmp/xdg", "/tmp/home", "/tmp/own"},
                 {"", "/tmp/xdg", "/tmp/home", "/tmp/xdg/memscale"},
                 {"", "relative", "/tmp/home", "/tmp/home/.cache/memscale"},
                 {"", "", "/tmp/home", "/tmp/home/.cache/memscale"},
                 {"", "", "", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(setenv("MEMSCALE_CACHE_DIR", cases[i].own, 1) == 0);
        CHECK(setenv("XDG_CACHE_HOME", cases[i].xdg, 1) == 0);
        CHECK(setenv("HOME", cases[i].home, 1) == 0);
        ms_gpu *gpu = open_fake(NULL);
        ms_gpu_component_info cache = part_of(gpu, MS_GPU_CACHE);
        CHECK_EQ_INT(cache.works, cases[i].path != NULL);
        if (cases[i].path != NULL) CHECK_EQ_STR(cache.text, cases[i].path);
        ms_gpu_destroy(gpu);
        gpu = open_fake("");
        CHECK_EQ_STR(part_of(gpu, MS_GPU_CACHE).text, "switched off");
        ms_gpu_destroy(gpu);
    }
}

TEST(nvrtc_is_the_first_that_fits_the_driver) {
    static const char *const paths[] = {"/no/such/libnvrtc.so", FAKE_SHORT, FAKE_NVRTC, NULL}, *const none[] = {NULL};
    ms_gpu_options options = fake_options("");
    ms_gpu *gpu = NULL;
    options.nvrtc_paths = paths;
    CHECK_STATUS(ms_gpu_create(&options, &gpu), MS_OK);
    CHECK(part_of(gpu, MS_GPU_NVRTC).works == 1);
    ms_gpu_destroy(gpu);
    fake_settings_now()->driver_version = 12080; /* which cannot load code from the NVRTC of CUDA 13 */
    CHECK_STATUS(ms_gpu_create(&options, &gpu), MS_OK);
    CHECK(part_of(gpu, MS_GPU_NVRTC).works == 0 && strstr(part_of(gpu, MS_GPU_NVRTC).text, "has no function") != NULL);
    ms_gpu_destroy(gpu);
    gpu = open_fake("");
    CHECK(strstr(part_of(gpu, MS_GPU_NVRTC).text, "belongs to CUDA 13.0") != NULL);
    ms_gpu_destroy(gpu);
    options.nvrtc_paths = (const char *const[]){"/no/such/first.so", "/no/such/second.so", NULL};
    CHECK_STATUS(ms_gpu_create(&options, &gpu), MS_OK);
    CHECK(strstr(part_of(gpu, MS_GPU_NVRTC).text, "first.so") != NULL); /* if all are missing, the first is named */
    ms_gpu_destroy(gpu);
    options.nvrtc_paths = none;
    CHECK_STATUS(ms_gpu_create(&options, &gpu), MS_OK);
    CHECK(part_of(gpu, MS_GPU_NVRTC).works == 0);
    ms_gpu_destroy(gpu);
    options.nvrtc_paths = paths;
    options.driver_path = "/none";
    CHECK_STATUS(ms_gpu_create(&options, &gpu), MS_OK); /* without a driver, any version is accepted */
    CHECK(part_of(gpu, MS_GPU_NVRTC).works == 1);
    ms_gpu_destroy(gpu);
}

/* This is how torch's NVRTC is found: it is where no loader looks, but the process has already loaded it. */
TEST(an_nvrtc_that_is_loaded_is_found_by_its_name) {
    ms_gpu_options options = fake_options("");
    ms_gpu *gpu = NULL;
    void *library = NULL;
    CHECK_STATUS(ms__prim_open_library(FAKE_NVRTC, false, &library), MS_OK);
    options.nvrtc_paths = NULL;
    CHECK_STATUS(ms_gpu_create(&options, &gpu), MS_OK);
    CHECK(part_of(gpu, MS_GPU_NVRTC).works == 1 && strstr(part_of(gpu, MS_GPU_NVRTC).text, FAKE_NVRTC) != NULL);
    ms_gpu_destroy(gpu);
}

/* With the libraries of this machine, if any. ctest runs it again with the fake libraries in the loader's path. */
TEST(the_usual_names) {
    ms_gpu *gpu = NULL;
    bool has_fake = getenv("MEMSCALE_TEST_FAKE") != NULL;
    CHECK_STATUS(ms_gpu_create(NULL, &gpu), MS_OK);
    CHECK(!has_fake || ms_gpu_count_devices(gpu) == 1);
    for (int32_t part = MS_GPU_DRIVER; part <= MS_GPU_CACHE; part++) {
        ms_gpu_component_info state = part_of(gpu, part);
        CHECK(state.text[0] != '\0');
        if (has_fake && part <= MS_GPU_NVRTC) CHECK(state.works == 1 && strstr(state.text, FAKE_FOLDER) != NULL);
    }
    ms_gpu_destroy(gpu);
}

TEST(the_current_context_stays) {
    int depth = 0;
    fake_settings_now()->n_devices = 3;
    ms_gpu *gpu = open_fake("");
    void *data = fake_alloc(2, 100);
    fill_random(data, 100, 1);
    CHECK(fake_current(&depth) == NULL && depth == 0);
    CHECK_EQ_U64(checksum_of(gpu, 2, data, 100), ms_checksum(data, 100));
    CHECK(fake_current(&depth) == NULL && depth == 0);
    fake_push(1);
    const void *mine = fake_current(&depth);
    CHECK_EQ_U64(checksum_of(gpu, 2, data, 100), ms_checksum(data, 100));
    CHECK(fake_current(&depth) == mine && depth == 1);
    CHECK_EQ_INT(fake_retained(), 1); /* once, however often it is used */
    CHECK_EQ_INT(fake_calls("cuMemAlloc_v2"), 1);
    CHECK_EQ_INT(fake_calls("cuMemFree_v2"), 0);
    fake_free(data);
    ms_gpu_destroy(gpu);
    CHECK(fake_current(&depth) == mine && depth == 1);
    check_nothing_left();
}

TEST(visible_devices_are_numbered_anew) {
    ms_hw hw = {.struct_bytes = sizeof hw};
    fake_settings_now()->n_devices = 4;
    fake_settings_now()->capability[3] = 75;
    CHECK(setenv("CUDA_VISIBLE_DEVICES", "3,1", 1) == 0);
    ms_gpu *gpu = open_fake("");
    void *data = fake_alloc(3, 50);
    CHECK_EQ_INT(ms_gpu_count_devices(gpu), 2);
    fill_random(data, 50, 2);
    CHECK_EQ_U64(checksum_of(gpu, 0, data, 50), ms_checksum(data, 50));
    CHECK_STATUS(ms_hw_detect(NULL, gpu, &hw), MS_OK);
    CHECK_EQ_INT(hw.n_gpus, 2);
    CHECK(hw.gpus[0].index == 0 && hw.gpus[0].capability == 75 && hw.gpus[1].capability == 90);
    CHECK_EQ_STR(hw.gpus[0].uuid, "GPU-03132333-4353-6373-8393-a3b3c3d3e3f3");
    fake_free(data);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

/* In the child, nothing works, nothing is called, and the ms_gpu can be destroyed. */
static void check_child(ms_gpu *gpu, const void *data) {
    int64_t n_calls = fake_calls(NULL);
    uint64_t sum = 0;
    ms_hw hw = {.struct_bytes = sizeof hw};
    ms_gpu_link link = {.struct_bytes = sizeof link};
    CHECK_EQ_INT(ms_gpu_count_devices(gpu), 0);
    CHECK_STATUS(ms_gpu_checksum(gpu, 0, (uint64_t)(uintptr_t)data, 64, 0, &sum), MS_E_UNAVAILABLE);
    CHECK(strstr(ms_error_message(), "fork") != NULL);
    CHECK_STATUS(ms_gpu_measure_link(gpu, 0, 4096, &link), MS_E_UNAVAILABLE);
    CHECK_STATUS(ms_hw_detect(NULL, gpu, &hw), MS_OK);
    CHECK_EQ_INT(hw.n_gpus, 0);
    ms_gpu_destroy(gpu);
    CHECK_EQ_INT(fake_calls(NULL), n_calls);
}

TEST(a_forked_child_keeps_its_hands_off) {
    int state = 0;
    ms_gpu *gpu = open_fake("");
    void *data = fake_alloc(0, 64);
    fill_random(data, 64, 3);
    uint64_t sum = checksum_of(gpu, 0, data, 64);
    pid_t child = fork();
    if (child == 0) {
        check_child(gpu, data);
        _Exit(0);
    }
    CHECK(child > 0 && waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 0);
    CHECK_EQ_U64(checksum_of(gpu, 0, data, 64), sum); /* the parent still works */
    fake_free(data);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

typedef struct worker {
    ms_gpu *gpu;
    int device;
    uint64_t seed;
} worker;

static void *work(void *argument) {
    const worker *w = argument;
    enum { N = 30000 };
    ms_hw hw = {.struct_bytes = sizeof hw};
    ms_gpu_link link = {.struct_bytes = sizeof link};
    int depth = 0;
    for (int i = 0; i < 5; i++) {
        unsigned char *data = fake_alloc(w->device, N);
        fill_random(data, N, w->seed + (uint64_t)i);
        CHECK_EQ_U64(checksum_of(w->gpu, w->device, data + i, (size_t)(N - i)), ms_checksum(data + i, (size_t)(N - i)));
        fake_free(data);
        CHECK(part_of(w->gpu, MS_GPU_CACHE).text[0] != '\0');
        CHECK_STATUS(ms_hw_detect(NULL, w->gpu, &hw), MS_OK);
        CHECK_EQ_INT(hw.n_gpus, 2);
        CHECK_STATUS(ms_gpu_measure_link(w->gpu, w->device, 5000, &link), MS_OK);
        CHECK_EQ_INT(link.intact, 1);
        CHECK(fake_current(&depth) == NULL && depth == 0);
    }
    return NULL;
}

TEST(several_threads_at_once) {
    enum { N = 8 };
    pthread_t threads[N];
    worker workers[N];
    fake_settings_now()->n_devices = 2;
    ms_gpu *gpu = open_fake("/proc/memscale"); /* a cache that fails, because its state is shared too */
    for (int i = 0; i < N; i++) {
        workers[i] = (worker){gpu, i % 2, (uint64_t)i * 100};
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < N; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_EQ_INT(fake_retained(), 2);
    CHECK_EQ_INT(fake_live(FAKE_MODULE), 2);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

TEST(the_link_is_measured) {
    ms_gpu_link link = {.struct_bytes = sizeof link};
    fake_settings_now()->n_devices = 2;
    ms_gpu *gpu = open_fake("");
    static const int64_t sizes[] = {4096, 4097, 1 << 20};
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(ms_gpu_measure_link(gpu, 1, sizes[i], &link), MS_OK);
        CHECK(link.struct_bytes == sizeof link && link.n_bytes == sizes[i] && link.intact == 1);
        CHECK(link.to_device_rate > 0 && link.from_device_rate > 0 && link.both_rate > 0 && link.pinning_rate > 0);
    }
    fake_settings_now()->total_bytes = 1 << 20; /* room for the first buffer only */
    CHECK_STATUS(ms_gpu_measure_link(gpu, 1, 600000, &link), MS_E_CUDA);
    CHECK(strstr(ms_error_message(), "OUT_OF_MEMORY") != NULL);
    fake_fail("cuMemHostAlloc", 2, 2);
    CHECK_STATUS(ms_gpu_measure_link(gpu, 1, 4096, &link), MS_E_NO_MEMORY);
    CHECK_EQ_INT(link.n_bytes, 1 << 20); /* unchanged */
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

SUITE(gpu, CASE(no_driver), CASE(a_driver_that_lacks_functions), CASE(a_driver_that_is_too_old),
      CASE(a_driver_that_does_not_start), CASE(no_devices), CASE(no_nvml), CASE(parts_of_a_whole_machine),
      CASE(names_of_parts), CASE(arguments_are_checked), CASE(paths_that_are_too_long), CASE(where_the_cache_is),
      CASE(nvrtc_is_the_first_that_fits_the_driver), CASE(an_nvrtc_that_is_loaded_is_found_by_its_name),
      CASE(the_usual_names), CASE(the_current_context_stays), CASE(visible_devices_are_numbered_anew),
      CASE(a_forked_child_keeps_its_hands_off), CASE(several_threads_at_once), CASE(the_link_is_measured));
