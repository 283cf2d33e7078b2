/* test_gpu_failures.c - every function of the three libraries failing, at each of its calls in turn.
 *
 * The list is the library's own (driver.h). Whatever fails, a call returns its error or uses a documented fallback; its
 * result is correct; nothing is leaked, and the thread's current context is the same as before.
 */
#include "fake_gpus.h"

#include <stdio.h>
#include <string.h>

#include "cu/driver.h"
#include "hw/hw.h"
#include "tree.h"

#define N_BYTES 3000

static char root[TREE_ROOT_BYTES];

static void check_outcome(const char *call, const char *where, ms_status status) {
    bool fine = status == MS_OK || status == MS_E_CUDA || status == MS_E_UNAVAILABLE || status == MS_E_NO_MEMORY;
    if (!fine || (status != MS_OK && ms_error_message()[0] == '\0'))
        test_fail(__FILE__, __LINE__, "%s fails, %s: %s: %s", call, where, ms_status_name(status), ms_error_message());
}

/* The whole life of a ms_gpu, with every call, on the second of two devices. */
static void live(const char *call) {
    ms_gpu_options options = fake_options(root);
    ms_gpu *gpu = NULL;
    ms_hw hw = {.struct_bytes = sizeof hw};
    ms_gpu_link link = {.struct_bytes = sizeof link};
    uint64_t sum = 0;
    CHECK_STATUS(ms_gpu_create(&options, &gpu), MS_OK);
    unsigned char *data = fake_alloc(1, N_BYTES);
    fill_random(data, N_BYTES, 1);
    ms__hw_read_gpus(gpu, &hw);
    CHECK(hw.n_gpus >= 0 && hw.n_gpus <= 2);
    for (int i = 0; i < 2 && ms_gpu_count_devices(gpu) == 2; i++) {
        ms_status status = ms_gpu_checksum(gpu, 1, (uint64_t)(uintptr_t)data, N_BYTES, 0, &sum);
        check_outcome(call, "checksum", status);
        if (status == MS_OK) CHECK_EQ_U64(sum, ms_checksum(data, N_BYTES));
        check_outcome(call, "link", ms_gpu_measure_link(gpu, 1, 4096, &link));
        CHECK(link.n_bytes == 0 || link.intact == 1);
        hw.n_gpus = 0;
        ms__hw_read_gpus(gpu, &hw); /* now with a context */
    }
    fake_free(data);
    ms_gpu_destroy(gpu);
}

/* Run one life with the nth call failing. Returns whether there were that many calls. */
static bool live_failing(const char *call, int code, int nth) {
    int depth = 0;
    int64_t n_before = fake_calls(call), n_lost = fake_lost();
    const void *mine = fake_current(&depth);
    fake_fail(call, code, nth);
    live(call);
    fake_fail_nothing();
    bool used = fake_calls(call) >= n_before + nth;
    int now = 0;
    if (fake_current(&now) != mine || now != depth)
        test_fail(__FILE__, __LINE__, "%s fails (%d) at call %d: the current context has changed", call, code, nth);
    for (int kind = 0; kind < FAKE_N_KINDS; kind++)
        if (fake_live((enum fake_kind)kind) != 0)
            test_fail(__FILE__, __LINE__, "%s fails (%d) at call %d: an object of kind %d is left", call, code, nth,
                      kind);
    bool cannot_enter =
        strcmp(call, "cuCtxPushCurrent_v2") == 0; /* then programs cannot be unloaded and go with the context */
    if (fake_lost() != n_lost && !cannot_enter)
        test_fail(__FILE__, __LINE__, "%s fails (%d) at call %d: objects went with the context", call, code, nth);
    if (fake_retained() != 0 || fake_nvml_users() != 0)
        test_fail(__FILE__, __LINE__, "%s fails (%d) at call %d: a context or NVML is left", call, code, nth);
    return used;
}

/* With an empty cache, since a filled one would bypass the compiler. */
static void fail_everywhere(const char *call) {
    static const int codes[] = {999, 2, 200};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        for (int nth = 1; nth <= 200; nth++) {
            tree_make(root);
            bool used = live_failing(call, codes[i], nth);
            tree_remove(root);
            if (!used) break;
        }
    }
}

static void start(void) {
    fake_settings_now()->n_devices = 2;
    fake_push(0); /* a context that must be current afterwards */
}

#define FAIL_CALL(result, name, arguments, need) fail_everywhere(#name);

TEST(every_call_of_the_driver) {
    start();
    MS__CUDA_SYMBOLS(FAIL_CALL)
}

TEST(every_call_of_nvml) {
    start();
    MS__NVML_SYMBOLS(FAIL_CALL)
}

TEST(every_call_of_nvrtc) {
    start();
    MS__NVRTC_SYMBOLS(FAIL_CALL)
    fake_settings_now()->nvrtc_last = 89; /* compile to PTX */
    MS__NVRTC_SYMBOLS(FAIL_CALL)
    fake_settings_now()->compile_log = "error";
    MS__NVRTC_SYMBOLS(FAIL_CALL)
}

/* All calls of one function fail, always. */
#define FAIL_ALWAYS(result, name, arguments, need)                                                                     \
    tree_make(root);                                                                                                   \
    (void)live_failing(#name, 999, 0);                                                                                 \
    tree_remove(root);

TEST(calls_that_always_fail) {
    start();
    MS__CUDA_SYMBOLS(FAIL_ALWAYS)
    MS__NVML_SYMBOLS(FAIL_ALWAYS)
    MS__NVRTC_SYMBOLS(FAIL_ALWAYS)
}

TEST(errors_name_the_call_and_the_code) {
    static const char *const calls[] = {
        "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuMemAlloc_v2",
        "cuMemsetD8Async",          "cuModuleLoadData",    "cuLaunchKernel",     "cuMemcpyDtoHAsync_v2",
        "cuStreamSynchronize",      "cuDeviceGetAttribute"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        ms_gpu *gpu = open_fake("");
        void *data = fake_alloc(0, 64);
        uint64_t sum = 7;
        char wanted[64] = "";
        fill_random(data, 64, 1);
        fake_fail(calls[i], 999, 1);
        CHECK_STATUS(ms_gpu_checksum(gpu, 0, (uint64_t)(uintptr_t)data, 64, 0, &sum), MS_E_CUDA);
        (void)snprintf(wanted, sizeof wanted, "%.*s failed", (int)strcspn(calls[i], "_"), calls[i]);
        CHECK(strstr(ms_error_message(), wanted) != NULL);
        CHECK(strstr(ms_error_message(), "CUDA_ERROR_UNKNOWN, unknown error") != NULL && sum == 7);
        fake_fail_nothing();
        fake_free(data);
        ms_gpu_destroy(gpu);
        check_nothing_left();
    }
}

SUITE(gpu_failures, CASE(every_call_of_the_driver), CASE(every_call_of_nvml), CASE(every_call_of_nvrtc),
      CASE(calls_that_always_fail), CASE(errors_name_the_call_and_the_code));
