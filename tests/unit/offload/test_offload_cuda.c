/* test_offload_cuda.c - the engine on the driver: contents, host memory of three kinds, every call failing in turn.
 *
 * Device memory is on the second of two devices, while another context is current. The fake driver copies at once, so
 * what waits for what is tested on the host (test_copies.c).
 */
#include "groups.h"

#include <stdio.h>
#include <string.h>

#include "cu/driver.h"
#include "fake_gpus.h"

#define DEVICE 1

static ms_gpu *gpu;
static int n_warnings;
static char warning[512];

static void hear(void *user, int level, const char *message) {
    (void)user;
    n_warnings += level == MS_LOG_WARNING;
    (void)snprintf(warning, sizeof warning, "%s", message);
}

static void start(void) {
    static const ms_log_sink sink = {.write = hear, .min_level = MS_LOG_WARNING};
    ms_log_set_sink(&sink);
    fake_settings_now()->n_devices = 2;
    fake_push(0); /* a context that must be current afterwards */
    tensors_use_device(DEVICE);
    gpu = open_fake("");
}

static void finish(void) {
    int depth = 0;
    ms_gpu_destroy(gpu);
    CHECK(fake_current(&depth) != NULL && depth == 1);
    check_nothing_left();
}

static ms_status open_gpu(ms_offload **out) {
    ms_offload_options options = {.struct_bytes = sizeof options};
    CHECK_STATUS(ms_offload_options_init(&options, gpu, DEVICE, 16 * MIB), MS_OK);
    return ms_offload_create(&options, out);
}

TEST(a_whole_life) {
    ms_offload *engine = NULL;
    start();
    CHECK_STATUS(open_gpu(&engine), MS_OK);
    CHECK_EQ_INT(live_through(engine), 0);
    CHECK_EQ_INT(fake_live(FAKE_STREAM), 2);
    CHECK_EQ_INT(fake_live(FAKE_REGISTERED), stats_of(engine).n_grows);
    CHECK_EQ_INT(stats_of(engine).pinned_bytes, stats_of(engine).pool_bytes);
    ms_offload_destroy(engine);
    finish();
}

TEST(devices_that_are_not_there) {
    ms_offload_options options = {.struct_bytes = sizeof options};
    ms_gpu_options without = fake_options("");
    ms_offload *engine = NULL;
    start();
    for (int64_t device = -1; device <= 2; device += 3) {
        CHECK_STATUS(ms_offload_options_init(&options, gpu, device, MIB), MS_OK);
        CHECK_STATUS(ms_offload_create(&options, &engine), MS_E_INVALID);
    }
    without.driver_path = "/no/such/libcuda.so";
    ms_gpu_destroy(gpu);
    CHECK_STATUS(ms_gpu_create(&without, &gpu), MS_OK);
    CHECK_STATUS(open_gpu(&engine), MS_E_UNAVAILABLE);
    CHECK(engine == NULL);
    finish();
}

/* ---- Host memory ---- */

TEST(pages_that_cannot_be_pinned) {
    ms_offload *engine = NULL;
    start();
    CHECK_STATUS(open_gpu(&engine), MS_OK);
    fake_fail("cuMemHostRegister_v2", 999, 0);
    CHECK_EQ_INT(live_through(engine), 0);
    CHECK_EQ_INT(fake_live(FAKE_REGISTERED), 0);
    CHECK_EQ_INT(fake_live(FAKE_PINNED), stats_of(engine).n_grows);
    CHECK_EQ_INT(stats_of(engine).pinned_bytes, stats_of(engine).pool_bytes);
    CHECK_EQ_INT(n_warnings, 0);
    ms_offload_destroy(engine);
    finish();
}

/* It is said once, however often the pool grows. */
TEST(no_memory_can_be_pinned) {
    ms_offload *engine = NULL;
    start();
    CHECK_STATUS(open_gpu(&engine), MS_OK);
    fake_fail("cuMemHostRegister_v2", 999, 0);
    fake_fail("cuMemHostAlloc", 2, 0);
    CHECK_EQ_INT(live_through(engine), 0);
    CHECK(stats_of(engine).n_grows > 1);
    CHECK_EQ_INT(fake_live(FAKE_REGISTERED) + fake_live(FAKE_PINNED), 0);
    CHECK_EQ_INT(stats_of(engine).pinned_bytes, 0);
    CHECK_EQ_INT(n_warnings, 1);
    CHECK(strstr(warning, "cannot be pinned") != NULL && strstr(warning, "cuMemHostAlloc") != NULL);
    ms_offload_destroy(engine);
    finish();
}

TEST(memory_that_may_not_be_pinned) {
    ms_offload_options options = {.struct_bytes = sizeof options};
    ms_offload *engine = NULL;
    start();
    CHECK_STATUS(ms_offload_options_init(&options, gpu, DEVICE, 16 * MIB), MS_OK);
    options.pinned_limit_bytes = 0;
    CHECK_STATUS(ms_offload_create(&options, &engine), MS_OK);
    CHECK_EQ_INT(live_through(engine), 0);
    CHECK_EQ_INT(fake_calls("cuMemHostRegister_v2") + fake_calls("cuMemHostAlloc"), 0);
    CHECK_EQ_INT(n_warnings, 0);
    ms_offload_destroy(engine);
    finish();
}

/* ---- Failures ---- */

/* These are reported wherever they fail, except where the engine ends: that cannot fail. */
static bool is_reported(const char *call) {
    static const char *const names[] = {
        "cuCtxPushCurrent_v2",  "cuCtxPopCurrent_v2",      "cuStreamCreate", "cuEventCreate",
        "cuEventRecord",        "cuStreamWaitEvent",       "cuEventQuery",   "cuMemcpyDtoHAsync_v2",
        "cuMemcpyHtoDAsync_v2", "cuDevicePrimaryCtxRetain"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], call) == 0) return true;
    return false;
}

/* Run one life with the nth call failing. Returns whether there were that many calls. */
static bool live_failing(const char *call, int code, int nth) {
    ms_offload *engine = NULL;
    int depth = 0;
    gpu = open_fake("");
    int64_t n_before = fake_calls(call), n_lost = fake_lost(), n_failed = 0;
    fake_fail(call, code, nth);
    ms_status status = open_gpu(&engine);
    if (status != MS_OK) {
        CHECK_STATUS(status, MS_E_CUDA);
        n_failed++;
        CHECK_STATUS(open_gpu(&engine), MS_OK);
    }
    n_failed += live_through(engine);
    bool was_reached = fake_calls(call) >= n_before + nth;
    if (n_failed != (was_reached ? 1 : 0) && is_reported(call))
        test_fail(__FILE__, __LINE__, "%s fails at call %d: that is not reported once", call, nth);
    ms_offload_destroy(engine);
    ms_gpu_destroy(gpu);
    bool is_used = fake_calls(call) >= n_before + nth;
    fake_fail_nothing();
    CHECK(fake_current(&depth) != NULL && depth == 1);
    for (int kind = 0; kind < FAKE_N_KINDS; kind++)
        if (fake_live((enum fake_kind)kind) != 0)
            test_fail(__FILE__, __LINE__, "%s fails at call %d: an object of kind %d is left", call, nth, kind);
    bool cannot_enter = strcmp(call, "cuCtxPushCurrent_v2") == 0; /* then objects go with their context */
    if (fake_lost() != n_lost && !cannot_enter)
        test_fail(__FILE__, __LINE__, "%s fails at call %d: objects went with the context", call, nth);
    CHECK_EQ_INT(fake_retained(), 0);
    return is_used;
}

static void fail_everywhere(const char *call) {
    for (int nth = 1; live_failing(call, 999, nth); nth++) continue;
}

#define FAIL_CALL(result, name, arguments, need) fail_everywhere(#name);

TEST(every_call_of_the_driver) {
    start();
    ms_gpu_destroy(gpu);
    MS__CUDA_SYMBOLS(FAIL_CALL)
}

/* Leaving the context fails after copies were queued: the call failed, and its memory may be used at once. */
TEST(a_call_that_cannot_leave_the_context) {
    ms_offload *engine = NULL;
    void *user = NULL;
    start();
    CHECK_STATUS(open_gpu(&engine), MS_OK);
    tensors t = tensors_of_size(1, 5000);
    int64_t n_waits = fake_calls("cuStreamSynchronize");
    fake_fail("cuCtxPopCurrent_v2", 999, 1);
    CHECK_STATUS(tensors_put(&t, engine, 0, 0), MS_E_CUDA);
    CHECK(t.group == NULL);
    CHECK_EQ_INT(fake_calls("cuStreamSynchronize"), n_waits + 1);
    check_empty(engine);
    CHECK_STATUS(tensors_put(&t, engine, 0, 0), MS_OK);
    fake_fail("cuCtxPopCurrent_v2", 999, 1);
    CHECK_STATUS(ms_offload_use(t.group, 0), MS_E_CUDA);
    CHECK_EQ_INT(stats_of(engine).n_pending, 1); /* neither counts it as released */
    fake_fail("cuCtxPopCurrent_v2", 999, 1);
    CHECK_STATUS(ms_offload_release(engine, 0, &user), MS_E_CUDA);
    CHECK(user == NULL && stats_of(engine).n_pending == 1);
    CHECK_STATUS(ms_offload_release(engine, 0, &user), MS_OK);
    CHECK(user == &t);
    tensors_drop(&t);
    tensors_take(&t);
    fake_fail("cuCtxPopCurrent_v2", 999, 1);
    CHECK_STATUS(tensors_fetch(&t, 0), MS_E_CUDA);
    CHECK_EQ_INT(fake_calls("cuStreamSynchronize"), n_waits + 2);
    CHECK_EQ_INT(stats_of(engine).n_fetches, 0);
    tensors_drop(&t);
    tensors_bring_back(&t);
    tensors_end(&t);
    ms_offload_destroy(engine);
    finish();
}

SUITE(offload_cuda, CASE(a_whole_life), CASE(devices_that_are_not_there), CASE(pages_that_cannot_be_pinned),
      CASE(no_memory_can_be_pinned), CASE(memory_that_may_not_be_pinned), CASE(every_call_of_the_driver),
      CASE(a_call_that_cannot_leave_the_context));
