/* test_kernels.c - every kernel of the table against its reference, and the checksum against its promises.
 *
 * The device code runs on the fake device, compiled for the host from the same text that is embedded. If a kernel of
 * the table has no test here, this file does not compile.
 */
#include "fake_gpus.h"

#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "kernels/ref/ref.h"

/* Launch on device 0 of a ms_gpu; must succeed. */
static void launch(ms_gpu *gpu, int kernel, unsigned n_blocks, unsigned n_threads, const void *args) {
    const ms__launch how = {
        .n_blocks = n_blocks, .n_threads = n_threads, .args = args, .args_bytes = ms__kernels[kernel].args_bytes};
    CHECK_STATUS(ms__gpu_enter(gpu, 0), MS_OK);
    CHECK_STATUS(ms__gpu_leave(gpu, ms__kernel_launch(gpu, 0, kernel, &how)), MS_OK);
}

/* The kernel and its reference add the same to the same. */
static void compare_checksum(ms_gpu *gpu, const unsigned char *data, size_t n_bytes, unsigned n_blocks,
                             unsigned n_threads) {
    ms__u64 by_kernel = 5, by_reference = 5;
    ms__checksum_args args = {.data = (ms__u64)(uintptr_t)data, .n_bytes = n_bytes};
    args.sum = (ms__u64)(uintptr_t)&by_kernel;
    launch(gpu, MS__KERNEL_CHECKSUM, n_blocks, n_threads, &args);
    args.sum = (ms__u64)(uintptr_t)&by_reference;
    ms__kernels[MS__KERNEL_CHECKSUM].reference(&args);
    if (by_kernel != by_reference)
        test_fail(__FILE__, __LINE__, "%zu bytes at %u, grid of %u times %u", n_bytes, (unsigned)((uintptr_t)data % 16),
                  n_blocks, n_threads);
}

/* In memory of exactly its size, so that a sanitizer sees a read outside. */
static void test_checksum(ms_gpu *gpu) {
    static const size_t large[] = {255, 256, 257, 4095, 4096, 4097, 65535, (1 << 20) + 13};
    for (size_t off = 0; off < 17; off++) {
        for (size_t n = 0; n < 80 + sizeof large / sizeof *large; n++) {
            size_t n_bytes = n < 80 ? n : large[n - 80];
            unsigned char *data = malloc(off + n_bytes + 1);
            CHECK(data != NULL);
            unsigned char *exact = realloc(data, off + n_bytes == 0 ? 1 : off + n_bytes);
            CHECK(exact != NULL);
            fill_random(exact, off + n_bytes, n * 31 + off);
            compare_checksum(gpu, exact + off, n_bytes, 1, 32);
            if (n_bytes < 100000 || off < 2) compare_checksum(gpu, exact + off, n_bytes, 7, 96);
            free(exact);
        }
    }
}

TEST(every_kernel_equals_its_reference) {
    ms_gpu *gpu = open_fake("");
#define TEST_KERNEL(constant, name) test_##name(gpu);
    MS__KERNEL_LIST(TEST_KERNEL)
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

TEST(the_table_is_whole) {
    for (int i = 0; i < MS__N_KERNELS; i++) {
        const ms__kernel *k = &ms__kernels[i];
        CHECK(k->name[0] != '\0' && k->reference != NULL && k->args_bytes > 0);
        CHECK(strstr(k->source, k->entry) != NULL);
        CHECK(strstr(k->source, "#include") == NULL); /* NVRTC has nothing to include */
        CHECK(k->ptx[0] == '\0' || (strstr(k->ptx, k->entry) != NULL && strstr(k->ptx, ".target sm_7") != NULL));
        for (int j = 0; j < i; j++) CHECK(strcmp(ms__kernels[j].name, k->name) != 0);
    }
}

TEST(arguments_of_another_size_are_refused) {
    ms_gpu *gpu = open_fake("");
    const ms__launch how = {.n_blocks = 1, .n_threads = 32, .args = "", .args_bytes = 1};
    CHECK_STATUS(ms__kernel_launch(gpu, 0, MS__KERNEL_CHECKSUM, &how), MS_E_INVALID);
    CHECK_EQ_INT(fake_calls("cuLaunchKernel"), 0);
    ms_gpu_destroy(gpu);
}

/* The formula again, byte by byte. */
static uint64_t by_the_formula(const unsigned char *data, size_t n_bytes) {
    uint64_t sum = 0, word = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        word |= (uint64_t)data[i] << (8 * (i % 8));
        if (i % 8 != 7 && i + 1 != n_bytes) continue;
        sum += ms__checksum_mix(word, i / 8);
        word = 0;
    }
    return ms__checksum_mix(sum, n_bytes);
}

TEST(the_checksum_is_its_formula_wherever_the_bytes_lie) {
    unsigned char data[300], moved[320];
    fill_random(data, sizeof data, 9);
    CHECK_EQ_U64(ms_checksum(NULL, 0), by_the_formula(NULL, 0));
    for (size_t n = 0; n <= sizeof data; n++) {
        uint64_t wanted = by_the_formula(data, n);
        for (size_t off = 0; off < 17; off += 4 - off % 3) {
            memcpy(moved + off, data, n);
            CHECK_EQ_U64(ms_checksum(moved + off, n), wanted);
        }
    }
}

/* No file contains checksums, but the formula must only change on purpose. */
TEST(known_checksums) {
    CHECK_EQ_U64(ms_checksum("", 0), UINT64_C(0xCA9F68570E703967));
    CHECK_EQ_U64(ms_checksum("a", 1), UINT64_C(0x2D54400D4B804A73));
    CHECK_EQ_U64(ms_checksum("0123456789abcdef!", 17), UINT64_C(0x2EA49AD5F948BE20));
}

TEST(every_change_shows) {
    unsigned char data[64] = {0}, other[65] = {0};
    fill_random(data, 40, 3); /* then zeros */
    uint64_t sum = ms_checksum(data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        memcpy(other, data, sizeof data);
        other[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(ms_checksum(other, sizeof data) != sum);
    }
    for (size_t n = 0; n < sizeof data; n++) CHECK(ms_checksum(data, n) != sum); /* lost zeros too */
    CHECK(ms_checksum(other, 65) != sum);
    for (size_t i = 0; i + 8 < 40; i++) { /* two words, or two bytes, swapped */
        memcpy(other, data, sizeof data);
        memcpy(other + i, data + i + 1, 1);
        memcpy(other + i + 1, data + i, 1);
        CHECK(memcmp(other, data, sizeof data) == 0 || ms_checksum(other, sizeof data) != sum);
        if (i % 8 != 0) continue;
        memcpy(other, data, sizeof data);
        memcpy(other + i, data + i + 8, 8);
        memcpy(other + i + 8, data + i, 8);
        CHECK(ms_checksum(other, sizeof data) != sum);
    }
}

TEST(device_and_host_agree) {
    enum { N = 100000 };
    ms_gpu *gpu = open_fake("");
    unsigned char *data = fake_alloc(0, N);
    fill_random(data, N, 4);
    for (size_t n = 0; n <= N; n = n * 3 + 1)
        for (size_t off = 0; off < 5 && off + n <= N; off++)
            CHECK_EQ_U64(checksum_of(gpu, 0, data + off, n), ms_checksum(data + off, n));
    CHECK_EQ_U64(checksum_of(gpu, 0, NULL, 0), ms_checksum(NULL, 0));
    fake_free(data);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

SUITE(kernels, CASE(every_kernel_equals_its_reference), CASE(the_table_is_whole),
      CASE(arguments_of_another_size_are_refused), CASE(the_checksum_is_its_formula_wherever_the_bytes_lie),
      CASE(known_checksums), CASE(every_change_shows), CASE(device_and_host_agree));
