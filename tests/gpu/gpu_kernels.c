/* gpu_kernels.c - the C tests on a real GPU: every kernel against its reference, programs, the link, the hardware
 * record.
 *
 * The same table of kernels as in tests/unit/kernels/test_kernels.c, on device memory. Without a GPU the tests are
 * skipped, and the message says why there is none; with MEMSCALE_REQUIRE_GPU=1 (tools/test_gpu.sh sets it) they fail
 * instead.
 */
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "gpu_tests.h"
#include "kernels/ref/ref.h"
#include "tree.h"

_Noreturn void lacks(const char *what, const char *why) {
    const char *required = getenv("MEMSCALE_REQUIRE_GPU");
    if (required != NULL && strcmp(required, "1") == 0)
        test_fail(__FILE__, __LINE__, "%s: %s (MEMSCALE_REQUIRE_GPU is 1)", what, why);
    test_skip("%s: %s", what, why);
}

ms_gpu *open_gpu(void) { return open_with(NULL, ""); }

ms_gpu *open_with(const char *const *nvrtc_paths, const char *cache) {
    ms_gpu_options options = {.struct_bytes = sizeof options, .nvrtc_paths = nvrtc_paths, .cache_path = cache};
    ms_gpu *gpu = NULL;
    CHECK_STATUS(ms_gpu_create(&options, &gpu), MS_OK);
    if (ms_gpu_count_devices(gpu) > 0) return gpu;
    ms_gpu_component_info driver = {.struct_bytes = sizeof driver};
    CHECK_STATUS(ms_gpu_get_component(gpu, MS_GPU_DRIVER, &driver), MS_OK);
    lacks("no GPU", driver.text);
}

static void fill(unsigned char *memory, size_t n_bytes, uint64_t seed) {
    for (size_t i = 0; i < n_bytes; i++) {
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        memory[i] = (unsigned char)(seed >> 56);
    }
}

/* The kernel on device memory that begins `off` bytes after a multiple of 16, against the reference on the host. */
static void compare_checksum(ms_gpu *gpu, size_t off, size_t n_bytes, unsigned n_blocks, unsigned n_threads) {
    unsigned char *data = malloc(n_bytes + 1);
    CHECK(data != NULL);
    fill(data, n_bytes, n_bytes * 31 + off);
    ms__u64 by_kernel = 5, by_reference = 5;
    ms__cu_address memory = 0, sum = 0;
    CHECK_STATUS(ms__gpu_enter(gpu, 0), MS_OK);
    CHECK(gpu->cuda.cuMemAlloc_v2(&memory, off + n_bytes + 1) == 0 && gpu->cuda.cuMemAlloc_v2(&sum, 8) == 0);
    CHECK(n_bytes == 0 || gpu->cuda.cuMemcpyHtoDAsync_v2(memory + off, data, n_bytes, NULL) == 0);
    CHECK(gpu->cuda.cuMemcpyHtoDAsync_v2(sum, &by_kernel, 8, NULL) == 0);
    ms__checksum_args args = {.data = memory + off, .n_bytes = n_bytes, .sum = sum};
    const ms__launch how = {.n_blocks = n_blocks, .n_threads = n_threads, .args = &args, .args_bytes = sizeof args};
    CHECK_STATUS(ms__kernel_launch(gpu, 0, MS__KERNEL_CHECKSUM, &how), MS_OK);
    CHECK(gpu->cuda.cuMemcpyDtoHAsync_v2(&by_kernel, sum, 8, NULL) == 0 && gpu->cuda.cuStreamSynchronize(NULL) == 0);
    CHECK(gpu->cuda.cuMemFree_v2(memory) == 0 && gpu->cuda.cuMemFree_v2(sum) == 0);
    CHECK_STATUS(ms__gpu_leave(gpu, MS_OK), MS_OK);
    args = (ms__checksum_args){
        .data = (ms__u64)(uintptr_t)data, .n_bytes = n_bytes, .sum = (ms__u64)(uintptr_t)&by_reference};
    ms__kernels[MS__KERNEL_CHECKSUM].reference(&args);
    if (by_kernel != by_reference)
        test_fail(__FILE__, __LINE__, "%zu bytes, %zu off, grid of %u times %u", n_bytes, off, n_blocks, n_threads);
    free(data);
}

static void test_checksum(ms_gpu *gpu) {
    static const size_t sizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 255, 257, 4095, 65537, (1 << 20) + 13, 64 << 20};
    for (size_t off = 0; off < 17; off++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            if (sizes[i] > (1 << 21) && off > 1) continue;
            compare_checksum(gpu, off, sizes[i], 1, 32);
            compare_checksum(gpu, off, sizes[i], 264, 256);
        }
    }
}

static void test_every_kernel(ms_gpu *gpu) {
#define TEST_KERNEL(constant, name) test_##name(gpu);
    MS__KERNEL_LIST(TEST_KERNEL)
#undef TEST_KERNEL
}

TEST(every_kernel_by_nvrtc) {
    ms_gpu *gpu = open_with(NULL, "");
    ms_gpu_component_info nvrtc = {.struct_bytes = sizeof nvrtc};
    CHECK_STATUS(ms_gpu_get_component(gpu, MS_GPU_NVRTC, &nvrtc), MS_OK);
    if (!nvrtc.works) lacks("NVRTC does not work", nvrtc.text);
    test_every_kernel(gpu);
    ms_gpu_destroy(gpu);
}

TEST(every_kernel_by_built_in_ptx) {
    static const char *const none[] = {NULL};
    ms_gpu *gpu = open_with(none, "");
    ms_gpu_component_info ptx = {.struct_bytes = sizeof ptx};
    CHECK_STATUS(ms_gpu_get_component(gpu, MS_GPU_PTX, &ptx), MS_OK);
    if (!ptx.works) test_skip("no PTX is built in: %s", ptx.text);
    test_every_kernel(gpu);
    ms_gpu_destroy(gpu);
}

/* A pointwise program in three types, without functions that the host rounds otherwise. */
static const ms_pointwise mixed_program = {.struct_bytes = sizeof mixed_program,
                                           .n_inputs = 2,
                                           .n_ops = 4,
                                           .input_dtypes = {MS_POINTWISE_BF16, MS_POINTWISE_FP32},
                                           .ops = {{MS_POINTWISE_MUL, MS_POINTWISE_FP32, 0, 1, 0},
                                                   {MS_POINTWISE_ADD, MS_POINTWISE_FP32, 2, -1, 0.1},
                                                   {MS_POINTWISE_DIV, MS_POINTWISE_FP32, 3, 1, 0},
                                                   {MS_POINTWISE_SUB, MS_POINTWISE_FP16, 4, 0, 0}}};

static void compare_pointwise(ms_gpu *gpu, size_t off, size_t n) {
    size_t n_bytes = (off + n + 1) * sizeof(float);
    unsigned char *a = malloc(n_bytes), *b = malloc(n_bytes), *made = calloc(1, n_bytes),
                  *expected = calloc(1, n_bytes);
    CHECK(a != NULL && b != NULL && made != NULL && expected != NULL);
    for (size_t i = 0; i < off + n; i++) {
        ((uint16_t *)a)[i] = (uint16_t)(0x3E00 + i % 0x200);
        ((float *)b)[i] = 0.001F * (float)(i % 5000 + 1);
    }
    ms__cu_address memory[3] = {0};
    CHECK_STATUS(ms__gpu_enter(gpu, 0), MS_OK);
    for (int i = 0; i < 3; i++) CHECK(gpu->cuda.cuMemAlloc_v2(&memory[i], n_bytes) == 0);
    CHECK(gpu->cuda.cuMemcpyHtoDAsync_v2(memory[0], a, n_bytes, NULL) == 0);
    CHECK(gpu->cuda.cuMemcpyHtoDAsync_v2(memory[1], b, n_bytes, NULL) == 0);
    CHECK(gpu->cuda.cuMemcpyHtoDAsync_v2(memory[2], made, n_bytes, NULL) == 0);
    const uint64_t inputs[] = {memory[0] + 2 * off, memory[1] + 4 * off};
    CHECK_STATUS(ms_gpu_pointwise(gpu, 0, &mixed_program, inputs, memory[2] + 2 * off, (int64_t)n, 0), MS_OK);
    CHECK(gpu->cuda.cuMemcpyDtoHAsync_v2(made, memory[2], n_bytes, NULL) == 0);
    CHECK(gpu->cuda.cuStreamSynchronize(NULL) == 0);
    for (int i = 0; i < 3; i++) CHECK(gpu->cuda.cuMemFree_v2(memory[i]) == 0);
    CHECK_STATUS(ms__gpu_leave(gpu, MS_OK), MS_OK);
    const void *sources[] = {a + 2 * off, b + 4 * off};
    CHECK_STATUS(ms_pointwise_run(&mixed_program, sources, expected + 2 * off, (int64_t)n), MS_OK);
    CHECK(memcmp(made, expected, n_bytes) == 0);
    free(a);
    free(b);
    free(made);
    free(expected);
}

TEST(the_kernel_of_a_pointwise_program) {
    static const size_t sizes[] = {0, 1, 3, 4, 5, 1023, 1025, 100003};
    ms_gpu *gpu = open_with(NULL, "");
    ms_gpu_component_info nvrtc = {.struct_bytes = sizeof nvrtc};
    CHECK_STATUS(ms_gpu_get_component(gpu, MS_GPU_NVRTC, &nvrtc), MS_OK);
    if (!nvrtc.works) lacks("NVRTC does not work", nvrtc.text);
    for (size_t off = 0; off < 9; off++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) compare_pointwise(gpu, off, sizes[i]);
    ms_gpu_destroy(gpu);
}

TEST(programs_come_from_the_cache) {
    char folder[TREE_ROOT_BYTES];
    ms_gpu_destroy(open_with(NULL, "")); /* without a GPU the test ends here, before it makes a folder */
    tree_make(folder);
    for (int round = 0; round < 2; round++) {
        ms_gpu *gpu = open_with(NULL, folder);
        compare_checksum(gpu, 3, 100003, 8, 128);
        ms_gpu_destroy(gpu);
    }
    tree_remove(folder);
}

TEST(the_link_is_intact) {
    ms_gpu *gpu = open_with(NULL, "");
    ms_gpu_link link = {.struct_bytes = sizeof link};
    CHECK_STATUS(ms_gpu_measure_link(gpu, 0, 16 << 20, &link), MS_OK);
    CHECK(link.intact == 1 && link.to_device_rate > 0 && link.from_device_rate > 0);
    CHECK(link.both_rate > 0 && link.pinning_rate > 0);
    ms_gpu_destroy(gpu);
}

TEST(the_hardware_record_is_whole) {
    ms_gpu *gpu = open_with(NULL, "");
    ms_hw hw = {.struct_bytes = sizeof hw}, again = {.struct_bytes = sizeof again};
    char *text = NULL;
    CHECK_STATUS(ms_hw_detect("", gpu, &hw), MS_OK);
    CHECK_EQ_INT(hw.n_gpus, ms_gpu_count_devices(gpu));
    CHECK(hw.gpus[0].name[0] != '\0' && hw.gpus[0].memory_total_bytes > 0 && hw.gpus[0].capability >= 50);
    CHECK(hw.gpus[0].n_multiprocessors > 0 && hw.gpus[0].memory_free_bytes <= hw.gpus[0].memory_total_bytes);
    CHECK_STATUS(ms_hw_to_json(&hw, &text), MS_OK);
    CHECK_STATUS(ms_hw_from_json(text, strlen(text), &again), MS_OK);
    CHECK(memcmp(&hw, &again, sizeof hw) == 0);
    ms_free(text);
    ms_gpu_destroy(gpu);
}

/* If the table has this GPU. Several may share the name; then the one with the least memory is found. */
TEST(the_table_agrees_with_the_device) {
    ms_gpu *gpu = open_with(NULL, "");
    ms_hw hw = {.struct_bytes = sizeof hw};
    ms_gpu_model model = {.struct_bytes = sizeof model};
    CHECK_STATUS(ms_hw_detect("", gpu, &hw), MS_OK);
    if (ms_gpu_model_find(hw.gpus[0].name, &model) != MS_OK)
        test_skip("the table of models has no %s", hw.gpus[0].name);
    CHECK_EQ_INT(model.capability, hw.gpus[0].capability);
    CHECK_EQ_INT(model.n_multiprocessors, hw.gpus[0].n_multiprocessors);
    CHECK(model.memory_bytes <= hw.gpus[0].memory_total_bytes);
    ms_gpu_destroy(gpu);
}

SUITE(real_gpu, CASE(every_kernel_by_nvrtc), CASE(every_kernel_by_built_in_ptx),
      CASE(the_kernel_of_a_pointwise_program), CASE(programs_come_from_the_cache), CASE(the_link_is_intact),
      CASE(the_hardware_record_is_whole), CASE(the_table_agrees_with_the_device));

extern const test_suite gpu_offload_suite;

int main(int argc, char **argv) {
    static const test_suite *const suites[] = {&real_gpu_suite, &gpu_offload_suite};
    return test_main(suites, 2, 300, argc, argv);
}
