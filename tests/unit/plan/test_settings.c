/* test_settings.c - from settings to requests: budgets, margins, host memory, techniques. */
#include <string.h>

#include "runner.h"

#define GIB (INT64_C(1) << 30)
#define MIB (INT64_C(1) << 20)

static const ms_rates gpu_rates = {
    .struct_bytes = sizeof(ms_rates), .capability = 86, .fp32_gflops = 10, .memory_mb_per_s = 1000};
static const ms_rates old_rates = {
    .struct_bytes = sizeof(ms_rates), .capability = 61, .fp32_gflops = 10, .memory_mb_per_s = 1000};
static const ms_rates cpu_rates = {.struct_bytes = sizeof(ms_rates), .fp32_gflops = 10, .memory_mb_per_s = 1000};
static const ms_hw host = {
    .struct_bytes = sizeof(ms_hw), .memory_limit_bytes = 64 * GIB, .memory_available_bytes = 40 * GIB + 5};

static ms_device device_of(const ms_rates *rates, int64_t kind, int64_t usable_bytes) {
    return (ms_device){.struct_bytes = sizeof(ms_device), .rates = rates, .usable_bytes = usable_bytes, .kind = kind};
}

static ms_settings settings_of(int32_t mode) {
    ms_settings settings = {.struct_bytes = sizeof settings};
    CHECK_STATUS(ms_settings_init(&settings, mode), MS_OK);
    return settings;
}

static ms_plan_request request_for(const ms_settings *settings, const ms_device *device, const ms_hw *hw) {
    ms_plan_request request = {.struct_bytes = sizeof request};
    CHECK_STATUS(ms_plan_request_init(&request, settings, device, hw), MS_OK);
    CHECK(request.device == device && request.profile == NULL);
    return request;
}

TEST(modes) {
    ms_settings settings = settings_of(MS_MODE_CONSERVATIVE);
    CHECK(settings.techniques == MS_TECHNIQUE_RECOMPUTE && settings.slowdown_ppm == 150000);
    settings = settings_of(MS_MODE_BALANCED);
    CHECK(settings.techniques == (MS_TECHNIQUE_RECOMPUTE | MS_TECHNIQUE_OFFLOAD) && settings.slowdown_ppm == 550000);
    settings = settings_of(MS_MODE_AGGRESSIVE);
    CHECK(settings.techniques == MS_TECHNIQUE_ALL && settings.slowdown_ppm < 0);
    CHECK(settings.budget_bytes == 0 && settings.utilization_ppm == 850000 && settings.offload_limit_bytes < 0);
    CHECK_EQ_STR(ms_mode_name(MS_MODE_BALANCED), "balanced");
    CHECK_EQ_STR(ms_mode_name(MS_N_MODES), "?");
    CHECK_STATUS(ms_settings_init(&settings, MS_N_MODES), MS_E_INVALID);
    CHECK_STATUS(ms_settings_init(&settings, -1), MS_E_INVALID);
    CHECK_STATUS(ms_settings_init(NULL, MS_MODE_BALANCED), MS_E_INVALID);
}

/* A share of what is usable, on a GPU rounded down to 256 MiB first; or what was set, but not more than there is. */
TEST(budgets) {
    ms_settings settings = settings_of(MS_MODE_BALANCED);
    ms_device gpu = device_of(&gpu_rates, MS_DEVICE_GPU, 10 * GIB + 255 * MIB);
    ms_device cpu = device_of(&cpu_rates, MS_DEVICE_HOST, 1000000007);
    CHECK_EQ_INT(request_for(&settings, &gpu, NULL).budget_bytes, INT64_C(9126805504)); /* 85 % of 10 GiB */
    CHECK_EQ_INT(request_for(&settings, &cpu, NULL).budget_bytes, 850000005);
    CHECK_EQ_INT(request_for(&settings, &cpu, NULL).margin_bytes, 850000005 / 64);
    cpu.usable_bytes = 0;
    CHECK_EQ_INT(request_for(&settings, &cpu, NULL).budget_bytes, 1);
    settings.budget_bytes = 7000000000;
    CHECK_EQ_INT(request_for(&settings, &gpu, NULL).budget_bytes, 7000000000);
    settings.budget_bytes = INT64_MAX;
    CHECK_EQ_INT(request_for(&settings, &gpu, NULL).budget_bytes, gpu.usable_bytes);
    CHECK_EQ_INT(request_for(&settings, &cpu, NULL).budget_bytes, INT64_C(1) << 50); /* nobody knows what it has */
}

/* With a budget, the fastest plan within it. On a GPU the allocator is simulated, with segments that grow if they can.
 */
TEST(aims) {
    ms_settings settings = settings_of(MS_MODE_BALANCED);
    ms_device gpu = device_of(&gpu_rates, MS_DEVICE_GPU, 10 * GIB), cpu = device_of(&cpu_rates, MS_DEVICE_HOST, GIB);
    ms_device own = device_of(&gpu_rates, MS_DEVICE_INTEGRATED, GIB);
    ms_plan_request request = request_for(&settings, &gpu, NULL);
    const uint32_t growing = MS_SIMULATE_ALLOCATOR | MS_SIMULATE_ENGINE_THREAD | MS_SIMULATE_GROWING;
    CHECK(request.flags == 0 && request.simulation == growing && request.slowdown_ppm == 550000);
    CHECK_EQ_INT(request.limit_bytes, 10 * GIB);
    CHECK_EQ_INT(request_for(&settings, &cpu, NULL).simulation, 0);
    CHECK_EQ_INT(request_for(&settings, &cpu, NULL).limit_bytes, GIB);
    settings.budget_bytes = GIB;
    settings.flags = MS_SETTINGS_FORCE;
    request = request_for(&settings, &gpu, NULL);
    CHECK(request.flags == (MS_PLAN_FASTEST | MS_PLAN_FORCE) && request.simulation == growing);
    CHECK_EQ_INT(request.limit_bytes, 0); /* it is no mere aim */
    settings.flags = MS_SETTINGS_FIXED;
    CHECK_EQ_INT(request_for(&settings, &gpu, NULL).simulation, MS_SIMULATE_ALLOCATOR | MS_SIMULATE_ENGINE_THREAD);
    settings.flags = MS_SETTINGS_GROWN;
    settings.occupied_bytes = 12345;
    request = request_for(&settings, &own, NULL);
    CHECK(request.flags == (MS_PLAN_FASTEST | MS_PLAN_GROWN) && request.simulation == growing);
    CHECK_EQ_INT(request.occupied_bytes, 12345);
    settings.flags = 0;
    CHECK_EQ_INT(request_for(&settings, &own, NULL).simulation, MS_SIMULATE_ALLOCATOR | MS_SIMULATE_ENGINE_THREAD);
}

TEST(caps) {
    CHECK_EQ_INT(ms_budget_get_cap(GIB, 0), GIB - 20 * MIB);
    CHECK_EQ_INT(ms_budget_get_cap(GIB, 5), GIB - 20 * MIB - 5);
    CHECK_EQ_INT(ms_budget_get_cap(20 * MIB, 0), 0);
    CHECK_EQ_INT(ms_budget_get_cap(-1, -1), 0);
    CHECK_EQ_INT(ms_budget_get_cap(GIB, INT64_MAX), 0);
}

/* Actions that no executor runs are not planned unless asked for, and host memory is not offloaded to itself. Copies
 * run beside what is computed only where that is asked for. */
TEST(techniques) {
    ms_settings settings = settings_of(MS_MODE_AGGRESSIVE);
    ms_device gpu = device_of(&gpu_rates, MS_DEVICE_GPU, GIB), old = device_of(&old_rates, MS_DEVICE_GPU, GIB);
    ms_device cpu = device_of(&cpu_rates, MS_DEVICE_HOST, GIB), own = device_of(&gpu_rates, MS_DEVICE_INTEGRATED, GIB);
    ms_plan_request request = request_for(&settings, &gpu, &host);
    const uint32_t kept = 1U << MS_ACTION_RECOMPUTE | 1U << MS_ACTION_RECOMPUTE_EXCEPT_BOTH |
                          1U << MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS | 1U << MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION |
                          1U << MS_ACTION_RECOMPUTE_POINTWISE;
    const uint32_t blocking = 1U << MS_ACTION_OFFLOAD_BLOCKING | 1U << MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING;
    const uint32_t overlapping =
        1U << MS_ACTION_OFFLOAD | 1U << MS_ACTION_RECOMPUTE_OFFLOAD | 1U << MS_ACTION_OFFLOAD_POINTWISE;
    CHECK_EQ_INT(request.actions, kept | blocking);
    CHECK(request.model_options == 0 && request.host_limit_bytes > 0);
    CHECK_EQ_INT(request_for(&settings, &cpu, &host).actions, kept);
    settings.flags = MS_SETTINGS_ASYNC;
    settings.prefetch_depth = 3;
    request = request_for(&settings, &gpu, &host);
    CHECK_EQ_INT(request.actions, kept | overlapping);
    CHECK_EQ_INT(request.prefetch_depth, 3);
    settings.flags = MS_SETTINGS_UNRUNNABLE;
    request = request_for(&settings, &gpu, &host);
    CHECK(request.actions == (1U << MS_N_ACTIONS) - 2 && request.model_options == MS_MODEL_ALL);
    CHECK_EQ_INT(request_for(&settings, &old, &host).model_options, MS_MODEL_ALL & ~MS_MODEL_HALF);
    request = request_for(&settings, &own, &host);
    CHECK_EQ_INT(request.model_options, MS_MODEL_HALF | MS_MODEL_8BIT | MS_MODEL_TILE_LOSS);
    CHECK(!(request.actions & 1U << MS_ACTION_OFFLOAD) && !(request.actions & 1U << MS_ACTION_RECOMPUTE_OFFLOAD));
    CHECK_EQ_INT(request.host_limit_bytes, 0);
    CHECK_EQ_INT(request_for(&settings, &cpu, &host).actions, request.actions);
    settings.techniques = MS_TECHNIQUE_OFFLOAD;
    request = request_for(&settings, &gpu, &host);
    CHECK_EQ_INT(request.actions, 1U << MS_ACTION_OFFLOAD | 1U << MS_ACTION_OFFLOAD_BLOCKING);
    CHECK_EQ_INT(request.model_options, MS_MODEL_OFFLOAD | MS_MODEL_OFFLOAD_GRADIENTS);
    settings.techniques = 0;
    CHECK_EQ_INT(request_for(&settings, &gpu, &host).actions, 0);
}

TEST(host_memory) {
    ms_settings settings = settings_of(MS_MODE_BALANCED);
    ms_device gpu = device_of(&gpu_rates, MS_DEVICE_GPU, GIB);
    ms_hw small = host;
    settings.flags = MS_SETTINGS_UNRUNNABLE;
    CHECK_EQ_INT(request_for(&settings, &gpu, &host).host_limit_bytes, 36 * GIB); /* less 1/16 of 64 GiB */
    small.memory_limit_bytes = 8 * GIB;
    small.memory_available_bytes = 5 * GIB - 1;
    CHECK_EQ_INT(request_for(&settings, &gpu, &small).host_limit_bytes, 3 * GIB - 256 * MIB); /* less 2 GiB */
    small.memory_available_bytes = GIB;
    CHECK_EQ_INT(request_for(&settings, &gpu, &small).host_limit_bytes, 0);
    CHECK_EQ_INT(request_for(&settings, &gpu, NULL).host_limit_bytes, 0);
    settings.offload_limit_bytes = 12345;
    CHECK_EQ_INT(request_for(&settings, &gpu, NULL).host_limit_bytes, 12345);
    CHECK_EQ_INT(ms_budget_get_host_limit(-1, &host), 36 * GIB);
    CHECK_EQ_INT(ms_budget_get_host_limit(-1, NULL), 0);
    CHECK_EQ_INT(ms_budget_get_host_limit(12345, &host), 12345);
    CHECK_EQ_INT(ms_budget_get_host_limit(0, &host), 0);
}

TEST(settings_that_are_refused) {
    const ms_settings good = settings_of(MS_MODE_BALANCED);
    const ms_device gpu = device_of(&gpu_rates, MS_DEVICE_GPU, GIB);
    ms_plan_request request = {.struct_bytes = sizeof request};
    const struct {
        int64_t budget_bytes, utilization_ppm;
        uint32_t techniques, flags;
    } bad[] = {{-1, 1, 0, 0}, {0, 0, 0, 0}, {0, 1000001, 0, 0}, {0, 1, 32, 0}, {0, 1, 0, 32}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ms_settings settings = good;
        settings.budget_bytes = bad[i].budget_bytes;
        settings.utilization_ppm = bad[i].utilization_ppm;
        settings.techniques = bad[i].techniques;
        settings.flags = bad[i].flags;
        CHECK_STATUS(ms_plan_request_init(&request, &settings, &gpu, NULL), MS_E_INVALID);
    }
    ms_settings deep = good;
    deep.prefetch_depth = 1 << 20;
    CHECK_STATUS(ms_plan_request_init(&request, &deep, &gpu, NULL), MS_E_INVALID);
    ms_device wrong = gpu;
    wrong.kind = MS_DEVICE_HOST;
    CHECK_STATUS(ms_plan_request_init(&request, &good, &wrong, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_plan_request_init(NULL, &good, &gpu, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_plan_request_init(&request, NULL, &gpu, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_plan_request_init(&request, &good, NULL, NULL), MS_E_INVALID);
    CHECK_EQ_INT(request.budget_bytes, 0);
}

SUITE(settings, CASE(modes), CASE(budgets), CASE(aims), CASE(caps), CASE(techniques), CASE(host_memory),
      CASE(settings_that_are_refused));
