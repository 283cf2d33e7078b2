/* fuzz_program.c - any bytes as a file of the cache of compiled programs, and as a program that goes through it.
 *
 * A file that is accepted is intact, has the requested key, and contains its code. Read from disk, the result is the
 * same.
 */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <inttypes.h>
#include <string.h>

#include "cu/cache.h"
#include "tree.h"

const char *const fuzz_dictionary[] = {"MSPROG\r\n",
                                       "\x7f"
                                       "ELF",
                                       ".version 7.8\n",
                                       "FAKECUBIN\n",
                                       "\x01",
                                       "\xFF\xFF\xFF\xFF",
                                       NULL};

/* The corpus has files of this key: 0123456789abcdef, as text. */
static const ms__cache_key key = {{UINT64_C(0x3736353433323130), UINT64_C(0x6665646362613938)}};
static ms_gpu gpu;
static char file[96];

static void remove_folder(void) { tree_remove(gpu.cache_path); }

static void make_folder(void) {
    tree_make(gpu.cache_path);
    (void)atexit(remove_folder);
    (void)snprintf(file, sizeof file, "/fuzz-%016" PRIx64 "%016" PRIx64 ".bin", key.words[0], key.words[1]);
}

/* The same bytes as code survive a round trip. */
static void check_round_trip(const uint8_t *data, size_t n_bytes) {
    void *copy = malloc(n_bytes);
    REQUIRE(copy != NULL);
    memcpy(copy, data, n_bytes);
    const ms__image image = {copy, n_bytes};
    ms__image back = {0};
    ms__cache_put(&gpu, "fuzz", key, &image);
    REQUIRE(ms__cache_get(&gpu, "fuzz", key, &back));
    REQUIRE(back.n_bytes == n_bytes && memcmp(back.bytes, data, n_bytes) == 0);
    REQUIRE(((const char *)back.bytes)[n_bytes] == '\0');
    ms_free(back.bytes);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    const void *code = NULL;
    size_t n_code = 0;
    ms__image image = {0};
    if (gpu.cache_path[0] == '\0') make_folder();
    bool taken = ms__cache_parse(data, n_bytes, key, &code, &n_code);
    if (taken) REQUIRE(n_code > 0 && (const uint8_t *)code > data && (const uint8_t *)code + n_code == data + n_bytes);
    tree_write(gpu.cache_path, file, data, n_bytes);
    REQUIRE(ms__cache_get(&gpu, "fuzz", key, &image) == taken);
    REQUIRE(!taken || (image.n_bytes == n_code && memcmp(image.bytes, code, n_code) == 0));
    ms_free(image.bytes);
    if (n_bytes > 0) check_round_trip(data, n_bytes);
    return 0;
}
