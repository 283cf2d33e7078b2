/* test_program.c - how a program gets onto a device: compiled, from the cache, from PTX, or not at all.
 *
 * The checksum represents all programs. Its result is right however it was loaded, so the tests look at the number of
 * compilations and at the files in the cache's folder.
 */
#define _DEFAULT_SOURCE
#include "fake_gpus.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cu/program.h"
#include "kernels/kernels.h"
#include "tree.h"

#define N_BYTES 1000

static char root[TREE_ROOT_BYTES];

static int64_t n_compiled(void) { return fake_calls("nvrtcCompileProgram"); }

/* Check that a checksum of device memory is right. Returns whether a kernel computed it. */
static int64_t use(ms_gpu *gpu) {
    int64_t n_launched = fake_calls("cuLaunchKernel");
    void *data = fake_alloc(0, N_BYTES);
    fill_random(data, N_BYTES, 1);
    CHECK_EQ_U64(checksum_of(gpu, 0, data, N_BYTES), ms_checksum(data, N_BYTES));
    fake_free(data);
    return fake_calls("cuLaunchKernel") - n_launched;
}

/* The whole life of a ms_gpu, with one checksum. */
static void live(const char *cache) {
    ms_gpu *gpu = open_fake(cache);
    CHECK_EQ_INT(use(gpu), 1);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

/* The only file in the cache's folder. */
static const char *only_file(void) {
    static char path[TREE_ROOT_BYTES + 300];
    int n = 0;
    DIR *folder = opendir(root);
    CHECK(folder != NULL);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof path, "%s/%s", root, entry->d_name);
        n++;
    }
    (void)closedir(folder);
    CHECK_EQ_INT(n, 1);
    return path;
}

static size_t read_file(const char *path, unsigned char *bytes, size_t room) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    size_t n = fread(bytes, 1, room, file);
    (void)fclose(file);
    return n;
}

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(bytes, 1, n, file) == n && fclose(file) == 0);
}

TEST(a_program_is_compiled_once) {
    tree_make(root);
    ms_gpu *gpu = open_fake(root);
    CHECK_EQ_INT(n_compiled(), 0);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(use(gpu), 1);
    CHECK_EQ_INT(n_compiled(), 1);
    ms_gpu_destroy(gpu);
    live(root);
    CHECK_EQ_INT(n_compiled(), 1); /* from the cache */
    CHECK(strstr(only_file(), "checksum-") != NULL);
    live("");
    CHECK_EQ_INT(n_compiled(), 2);
    tree_remove(root);
}

TEST(what_the_code_depends_on_is_in_the_key) {
    tree_make(root);
    live(root);
    fake_settings_now()->nvrtc_version = 12080;
    live(root);
    CHECK_EQ_INT(n_compiled(), 2);
    fake_settings_now()->capability[0] = 80;
    live(root);
    CHECK_EQ_INT(n_compiled(), 3);
    fake_settings_now()->nvrtc_version = 13000;
    fake_settings_now()->capability[0] = 90;
    live(root);
    CHECK_EQ_INT(n_compiled(), 3);
    tree_remove(root);
}

/* Every kind of damage causes one new compilation, and the file is intact again afterwards. */
static void check_replaced(const char *path, const unsigned char *whole, size_t n_whole) {
    unsigned char now[4096];
    int64_t n_before = n_compiled();
    live(root);
    CHECK_EQ_INT(n_compiled(), n_before + 1);
    CHECK(read_file(path, now, sizeof now) == n_whole && memcmp(now, whole, n_whole) == 0);
    live(root);
    CHECK_EQ_INT(n_compiled(), n_before + 1);
}

TEST(damaged_files_are_replaced) {
    unsigned char whole[4096], damaged[4096 + 1];
    tree_make(root);
    live(root);
    const char *path = only_file();
    size_t n = read_file(path, whole, sizeof whole);
    CHECK(n > 48 && n < sizeof whole);
    for (size_t cut = 0; cut < n; cut += cut < 60 ? 7 : 31) {
        write_file(path, whole, cut);
        check_replaced(path, whole, n);
    }
    for (size_t at = 0; at < n; at += at < 48 ? 1 : 17) {
        memcpy(damaged, whole, n);
        damaged[at] ^= (unsigned char)(1 << at % 8);
        write_file(path, damaged, n);
        check_replaced(path, whole, n);
    }
    memcpy(damaged, whole, n);
    damaged[n] = 0;
    write_file(path, damaged, n + 1);
    check_replaced(path, whole, n);
    write_file(path, "foreign", 7);
    check_replaced(path, whole, n);
    tree_remove(root);
}

TEST(a_file_of_another_program_is_not_taken) {
    unsigned char other[4096];
    char first[TREE_ROOT_BYTES + 300];
    tree_make(root);
    live(root);
    (void)snprintf(first, sizeof first, "%s", only_file());
    size_t n = read_file(first, other, sizeof other);
    CHECK(unlink(first) == 0);
    fake_settings_now()->capability[0] = 80;
    live(root);
    write_file(only_file(), other, n); /* intact, but for 9.0 */
    live(root);
    CHECK_EQ_INT(n_compiled(), 3);
    tree_remove(root);
}

/* The driver may refuse a cached program too. */
TEST(cached_code_that_does_not_load_is_made_again) {
    tree_make(root);
    live(root);
    fake_fail("cuModuleLoadData", 200, 1);
    live(root);
    CHECK_EQ_INT(n_compiled(), 2);
    tree_remove(root);
}

TEST(a_folder_or_pipe_in_the_place_of_the_file) {
    char path[TREE_ROOT_BYTES + 300];
    tree_make(root);
    live(root);
    (void)snprintf(path, sizeof path, "%s", only_file());
    CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0);
    live(root); /* replaced */
    live(root);
    CHECK_EQ_INT(n_compiled(), 2);
    CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0);
    live(root); /* cannot be replaced */
    live(root);
    CHECK_EQ_INT(n_compiled(), 4);
    tree_remove(root);
}

TEST(a_cache_that_cannot_be_written) {
    char below_file[TREE_ROOT_BYTES + 16];
    tree_make(root);
    tree_write(root, "/file", "", 0);
    (void)snprintf(below_file, sizeof below_file, "%s/file/cache", root);
    const char *const paths[] = {below_file, "/proc/memscale"};
    for (int i = 0; i < 2; i++) {
        ms_gpu *gpu = open_fake(paths[i]);
        CHECK_EQ_INT(use(gpu), 1);
        CHECK_EQ_INT(use(gpu), 1);
        CHECK_EQ_INT(n_compiled(), i + 1);
        ms_gpu_component_info cache = part_of(gpu, MS_GPU_CACHE);
        CHECK(cache.works == 0 && strstr(cache.text, i == 0 ? "/file" : "/proc/memscale") != NULL);
        ms_gpu_destroy(gpu);
    }
    ms_gpu *gpu = open_fake(below_file); /* known before anything is compiled */
    CHECK_EQ_INT(part_of(gpu, MS_GPU_CACHE).works, 0);
    ms_gpu_destroy(gpu);
    check_nothing_left();
    tree_remove(root);
}

/* Compiled code that others could have changed is not run. */
TEST(a_cache_that_others_can_change) {
    char link[TREE_ROOT_BYTES + 16];
    tree_make(root);
    live(root);
    const char *path = only_file();
    for (int i = 0; i < 2; i++) {
        const char *changed = i == 0 ? root : path;
        CHECK(chmod(changed, i == 0 ? 0770 : 0602) == 0);
        ms_gpu *gpu = open_fake(root);
        CHECK_EQ_INT(part_of(gpu, MS_GPU_CACHE).works, i); /* a folder is looked at before anything is compiled */
        CHECK_EQ_INT(use(gpu), 1);
        CHECK_EQ_INT(n_compiled(), i + 2);
        ms_gpu_component_info cache = part_of(gpu, MS_GPU_CACHE);
        CHECK(cache.works == 0 && strstr(cache.text, "other users may write to") != NULL);
        ms_gpu_destroy(gpu);
        CHECK(chmod(changed, 0700) == 0);
    }
    live(root);
    CHECK_EQ_INT(n_compiled(), 3); /* from the cache again */
    (void)snprintf(link, sizeof link, "%s/.link", root);
    CHECK(symlink(root, link) == 0);
    live(link);
    CHECK_EQ_INT(n_compiled(), 4);
    tree_remove(root);
}

TEST(several_processes_share_a_cache) {
    enum { N = 6 };
    pid_t children[N];
    tree_make(root);
    for (int i = 0; i < N; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            for (int turn = 0; turn < 5; turn++) live(root);
            _Exit(0);
        }
    }
    for (int i = 0; i < N; i++) {
        int state = 0;
        CHECK(waitpid(children[i], &state, 0) == children[i] && WIFEXITED(state) && WEXITSTATUS(state) == 0);
    }
    live(root);
    CHECK_EQ_INT(n_compiled(), 0);
    (void)only_file();
    tree_remove(root);
}

/* Devices that NVRTC does not know: later ones get PTX of the latest before them, older ones the built-in PTX. */
TEST(architectures_unknown_to_nvrtc) {
    fake_settings_now()->nvrtc_last = 89;
    live("");
    CHECK_EQ_INT(fake_calls("nvrtcGetPTX"), 1);
    CHECK_EQ_INT(fake_calls("nvrtcGetCUBIN"), 0);
    fake_settings_now()->nvrtc_first = 100;
    fake_settings_now()->nvrtc_last = 121;
    ms_gpu *gpu = open_fake("");
    int64_t has_ptx = part_of(gpu, MS_GPU_PTX).works;
    CHECK_EQ_INT(use(gpu), has_ptx);
    CHECK_EQ_INT(n_compiled(), 1);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

static char said[4][512];
static int n_said;

static void keep_log(void *user, int level, const char *message) {
    (void)user;
    if (level == MS_LOG_INFO && n_said < 4) (void)snprintf(said[n_said++], sizeof said[0], "%s", message);
}

TEST(without_nvrtc) {
    const ms_log_sink sink = {.write = keep_log, .min_level = MS_LOG_INFO};
    ms_log_set_sink(&sink);
    ms_gpu *gpu = open_without_nvrtc("");
    int64_t has_ptx = part_of(gpu, MS_GPU_PTX).works;
    CHECK_EQ_INT(part_of(gpu, MS_GPU_NVRTC).works, 0);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(use(gpu), has_ptx);
    CHECK_EQ_INT(n_said, !has_ptx); /* the fallback to the host is logged once */
    if (!has_ptx) CHECK(strstr(said[0], "on the host") != NULL && strstr(said[0], "no NVRTC") != NULL);
    ms_gpu_destroy(gpu);
    ms_log_set_sink(NULL);
    check_nothing_left();
}

/* On a device that is too old for the built-in PTX, or a library without any, the host computes. */
TEST(with_neither_nvrtc_nor_ptx) {
    const ms_log_sink sink = {.write = keep_log, .min_level = MS_LOG_INFO};
    ms_log_set_sink(&sink);
    fake_settings_now()->capability[0] = 60;
    ms_gpu *gpu = open_without_nvrtc("");
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(use(gpu), 0);
    CHECK_EQ_INT(n_said, 1);
    CHECK(strstr(said[0], "on the host") != NULL && strstr(said[0], "no NVRTC") != NULL);
    CHECK(strstr(said[0], "PTX") != NULL);
    CHECK(fake_calls("cuModuleLoadData") <= 1); /* tried once */
    ms_gpu_destroy(gpu);
    ms_log_set_sink(NULL);
    check_nothing_left();
}

TEST(pieces_on_the_host_make_the_same_sum) {
    enum { N = (9 << 20) + 5 };
    fake_settings_now()->capability[0] = 60;
    ms_gpu *gpu = open_without_nvrtc("");
    unsigned char *data = fake_alloc(0, N);
    fill_random(data, N, 5);
    CHECK_EQ_U64(checksum_of(gpu, 0, data, N), ms_checksum(data, N));
    CHECK_EQ_U64(checksum_of(gpu, 0, data + 3, N - 3), ms_checksum(data + 3, N - 3));
    CHECK_EQ_INT(fake_calls("cuLaunchKernel"), 0);
    fake_free(data);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

TEST(the_log_of_a_compilation_that_fails) {
    const ms__program program = {.name = "broken", .entry = "ms_checksum_kernel", .source = "MS__KERNEL(x)"};
    const ms__launch launch = {.n_blocks = 1, .n_threads = 32};
    static char long_log[3000];
    memset(long_log, 'e', sizeof long_log - 1);
    memcpy(long_log, "broken.cu(1): error: expected a ';'\n", 36);
    fake_settings_now()->compile_log = long_log;
    ms_gpu *gpu = open_fake("");
    CHECK_STATUS(ms__gpu_enter(gpu, 0), MS_OK);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(ms__program_launch(gpu, 0, &program, &launch), MS_E_UNAVAILABLE);
        CHECK(strstr(ms_error_message(), "expected a ';'") != NULL && strstr(ms_error_message(), "broken") != NULL);
        CHECK(strstr(ms_error_message(), "without PTX") != NULL);
    }
    CHECK_EQ_INT(n_compiled(), 1); /* not tried a second time */
    CHECK_STATUS(ms__gpu_leave(gpu, MS_OK), MS_OK);
    CHECK_EQ_INT(use(gpu), part_of(gpu, MS_GPU_PTX).works); /* the checksum has its PTX */
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

TEST(trouble_of_the_device_is_not_remembered) {
    ms_gpu *gpu = open_fake("");
    uint64_t sum = 7;
    void *data = fake_alloc(0, 64);
    fill_random(data, 64, 1);
    fake_fail("cuModuleLoadData", 2, 1);
    CHECK_STATUS(ms_gpu_checksum(gpu, 0, (uint64_t)(uintptr_t)data, 64, 0, &sum), MS_E_CUDA);
    CHECK(sum == 7 && strstr(ms_error_message(), "cuModuleLoadData failed: CUDA_ERROR_OUT_OF_MEMORY") != NULL);
    fake_free(data);
    CHECK_EQ_INT(use(gpu), 1);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

SUITE(program, CASE(a_program_is_compiled_once), CASE(what_the_code_depends_on_is_in_the_key),
      CASE(damaged_files_are_replaced), CASE(a_file_of_another_program_is_not_taken),
      CASE(cached_code_that_does_not_load_is_made_again), CASE(a_folder_or_pipe_in_the_place_of_the_file),
      CASE(a_cache_that_cannot_be_written), CASE(a_cache_that_others_can_change), CASE(several_processes_share_a_cache),
      CASE(architectures_unknown_to_nvrtc), CASE(without_nvrtc), CASE(with_neither_nvrtc_nor_ptx),
      CASE(pieces_on_the_host_make_the_same_sum), CASE(the_log_of_a_compilation_that_fails),
      CASE(trouble_of_the_device_is_not_remembered));
