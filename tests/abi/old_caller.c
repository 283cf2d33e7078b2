/* old_caller.c - a program that was compiled with memscale.h of 0.1: the declarations that it uses, as they were then.
 *
 * They are never updated: this program must run with every later library of the same major version. Every structure is
 * followed by bytes that the library must not change.
 */
#include <stddef.h>
#include <stdint.h>

typedef int32_t ms_status;
typedef struct ms_gpu ms_gpu;
typedef struct ms_profile ms_profile;
typedef struct ms_plan ms_plan;

enum { MS_OK = 0, MS_E_PARSE = -3, MS_E_BUDGET = -6 };
enum { MS_DEVICE_GPU = 1, MS_ACTION_KEEP = 0, MS_ACTION_RECOMPUTE = 1, MS_PLAN_FASTEST = 2, MS_REASON_SAVES = 4 };
enum { MS_HW_MAX_GPUS = 16, MS_MAX_CATEGORIES = 16 };

typedef struct ms_error_info {
    uint64_t struct_bytes;
    int64_t needed_bytes;
    int64_t byte_offset;
} ms_error_info;

typedef struct ms_log_sink {
    void (*write)(void *user, int level, const char *message);
    void *user;
    int min_level;
} ms_log_sink;

typedef struct ms_gpu_options {
    uint64_t struct_bytes;
    const char *driver_path;
    const char *nvml_path;
    const char *const *nvrtc_paths;
    const char *cache_path;
} ms_gpu_options;

typedef struct ms_hw_gpu {
    int64_t index;
    char name[96];
    char uuid[48];
    int64_t memory_total_bytes;
    int64_t memory_free_bytes;
    int64_t memory_others_bytes;
    int64_t capability;
    int64_t has_bf16;
    int64_t has_fp16;
    int64_t n_multiprocessors;
    int64_t pcie_generation;
    int64_t pcie_width;
    int64_t is_mig;
    int64_t is_integrated;
    int64_t reserved[4];
} ms_hw_gpu;

typedef struct ms_hw {
    uint64_t struct_bytes;
    int64_t memory_total_bytes;
    int64_t memory_limit_bytes;
    int64_t memory_available_bytes;
    int64_t page_bytes;
    int64_t n_cores;
    int64_t n_cores_online;
    int64_t n_numa_nodes;
    int64_t cgroup_version;
    int64_t n_gpus;
    ms_hw_gpu gpus[MS_HW_MAX_GPUS];
} ms_hw;

typedef struct ms_gpu_model {
    uint64_t struct_bytes;
    const char *key;
    const char *name;
    int64_t memory_bytes;
    int64_t capability;
    int64_t n_multiprocessors;
    int64_t fp32_gflops;
    int64_t tf32_gflops;
    int64_t fp16_gflops;
    int64_t bf16_gflops;
    int64_t memory_mb_per_s;
    int64_t link_mb_per_s;
} ms_gpu_model;

typedef struct ms_rates {
    uint64_t struct_bytes;
    int64_t source;
    int64_t capability;
    int64_t memory_bytes;
    int64_t fp32_gflops;
    int64_t tf32_gflops;
    int64_t fp16_gflops;
    int64_t bf16_gflops;
    int64_t memory_mb_per_s;
    int64_t to_device_mb_per_s;
    int64_t from_device_mb_per_s;
    int64_t both_mb_per_s;
    int64_t pinning_mb_per_s;
    int64_t launch_ns;
    int64_t dispatch_ns;
} ms_rates;

typedef struct ms_device {
    uint64_t struct_bytes;
    const ms_rates *rates;
    int64_t n_multiprocessors;
    int64_t usable_bytes;
    int64_t kind;
} ms_device;

typedef struct ms_unit {
    const char *name;
    int64_t param_bytes;
    int64_t saved_bytes;
    int64_t input_bytes;
    int64_t n_rows;
    uint32_t flags;
    uint32_t reserved;
} ms_unit;

typedef struct ms_profile_view {
    uint64_t struct_bytes;
    const ms_unit *units;
    int64_t n_units;
    int64_t resident_bytes;
    int64_t outside_bytes;
} ms_profile_view;

typedef struct ms_plan_request {
    uint64_t struct_bytes;
    const ms_profile *profile;
    const ms_profile *half_profile;
    const ms_device *device;
    int64_t budget_bytes;
    int64_t margin_bytes;
    int64_t host_limit_bytes;
    int64_t slowdown_ppm;
    const uint8_t *may_change;
    uint32_t actions;
    uint32_t model_options;
    uint32_t simulation;
    uint32_t flags;
} ms_plan_request;

typedef struct ms_plan_summary {
    uint64_t struct_bytes;
    int64_t baseline_peak_bytes;
    int64_t predicted_peak_bytes;
    int64_t budget_bytes;
    int64_t margin_bytes;
    int64_t host_limit_bytes;
    int64_t host_bytes;
    int64_t baseline_ns;
    int64_t step_ns;
    int64_t slowdown_ppm;
    int64_t batch;
    int64_t length;
    int64_t n_units;
    int64_t n_changed;
    int64_t skipped;
    uint64_t fingerprint;
    uint32_t model_options;
    uint32_t flags;
    int32_t peak_unit;
    int32_t peak_phase;
    int64_t parts[MS_MAX_CATEGORIES];
} ms_plan_summary;

typedef struct ms_plan_entry {
    uint64_t struct_bytes;
    const char *name;
    int64_t param_bytes;
    int64_t plain_bytes;
    int64_t held_bytes;
    int64_t host_bytes;
    int64_t extra_ns;
    int32_t action;
    int32_t reason;
    int32_t other;
    int32_t other_reason;
    int64_t other_bytes;
    int64_t other_ns;
} ms_plan_entry;

#if UINTPTR_MAX == UINT64_MAX
#define SIZE_OF_0_1(type, n_bytes) _Static_assert(sizeof(type) == (n_bytes), "this is not " #type " of 0.1")
SIZE_OF_0_1(ms_error_info, 24);
SIZE_OF_0_1(ms_log_sink, 24);
SIZE_OF_0_1(ms_gpu_options, 40);
SIZE_OF_0_1(ms_hw_gpu, 272);
SIZE_OF_0_1(ms_hw, 4432);
SIZE_OF_0_1(ms_gpu_model, 96);
SIZE_OF_0_1(ms_rates, 120);
SIZE_OF_0_1(ms_device, 40);
SIZE_OF_0_1(ms_unit, 48);
SIZE_OF_0_1(ms_profile_view, 40);
SIZE_OF_0_1(ms_plan_request, 88);
SIZE_OF_0_1(ms_plan_summary, 272);
SIZE_OF_0_1(ms_plan_entry, 88);
#endif

const char *ms_error_message(void);
ms_status ms_error_get_info(ms_error_info *out);
void ms_free(void *memory);
void ms_log_set_sink(const ms_log_sink *sink);
ms_status ms_gpu_options_init(ms_gpu_options *options);
ms_status ms_gpu_create(const ms_gpu_options *options, ms_gpu **out_gpu);
void ms_gpu_destroy(ms_gpu *gpu);
ms_status ms_hw_detect(const char *root, ms_gpu *gpu, ms_hw *out);
ms_status ms_hw_to_json(const ms_hw *hw, char **out_text);
ms_status ms_hw_from_json(const char *text, size_t n_bytes, ms_hw *out);
int64_t ms_gpu_model_count(void);
ms_status ms_gpu_model_get(int64_t index, ms_gpu_model *out);
ms_status ms_gpu_model_find(const char *name, ms_gpu_model *out);
ms_status ms_rates_from_model(const ms_gpu_model *model, ms_rates *out);
ms_status ms_rates_guess(int64_t capability, int64_t memory_bytes, int64_t n_multiprocessors, ms_rates *out);
ms_status ms_rates_to_json(const ms_rates *rates, char **out_text);
ms_status ms_rates_from_json(const char *text, size_t n_bytes, ms_rates *out);
ms_status ms_device_init(ms_device *device, const ms_rates *rates, int64_t kind);
ms_status ms_device_from_model(const ms_gpu_model *model, ms_rates *out_rates, ms_device *out_device);
ms_status ms_profile_from_json(const char *text, size_t n_bytes, ms_profile **out_profile);
void ms_profile_destroy(ms_profile *profile);
ms_status ms_profile_get_view(const ms_profile *profile, ms_profile_view *out);
ms_status ms_plan_create(const ms_plan_request *request, ms_plan **out_plan);
void ms_plan_destroy(ms_plan *plan);
ms_status ms_plan_get_summary(const ms_plan *plan, ms_plan_summary *out);
ms_status ms_plan_get_entry(const ms_plan *plan, int64_t index, ms_plan_entry *out);
ms_status ms_plan_check_units(const ms_plan *plan, const ms_unit *units, int64_t n_units);

#include "caller.h"

/* A structure, and the bytes after it in the caller's memory. */
enum { N_GUARD = 64, GUARD = 0xA5 };

#define GUARDED(type, name)                                                                                            \
    struct {                                                                                                           \
        type s;                                                                                                        \
        unsigned char after[N_GUARD];                                                                                  \
    } name;                                                                                                            \
    memset(&name, GUARD, sizeof name);                                                                                 \
    name.s.struct_bytes = sizeof name.s

static void check_guard(const unsigned char *after) {
    for (int i = 0; i < N_GUARD; i++) CHECK(after[i] == GUARD);
}

/* The bytes after it are unchanged. */
#define CHECK_GUARD(name)                                                                                              \
    do {                                                                                                               \
        check_guard((name).after);                                                                                     \
        CHECK((name).s.struct_bytes == sizeof(name).s);                                                                \
    } while (0)

static void use_hardware(void) {
    GUARDED(ms_gpu_options, options);
    GUARDED(ms_hw, hw);
    GUARDED(ms_hw, back);
    ms_gpu *gpu = NULL;
    char *text = NULL;
    CHECK(ms_gpu_options_init(&options.s) == MS_OK);
    CHECK(options.s.driver_path == NULL && options.s.cache_path == NULL);
    options.s.driver_path = "/nowhere/libcuda.so"; /* the same on every machine */
    options.s.cache_path = "";
    CHECK(ms_gpu_create(&options.s, &gpu) == MS_OK);
    CHECK(ms_hw_detect(NULL, gpu, &hw.s) == MS_OK);
    CHECK(hw.s.memory_total_bytes > 0 && hw.s.n_cores > 0 && hw.s.n_gpus == 0);
    CHECK(ms_hw_to_json(&hw.s, &text) == MS_OK);
    CHECK(ms_hw_from_json(text, strlen(text), &back.s) == MS_OK);
    CHECK(memcmp(&hw.s, &back.s, sizeof hw.s) == 0);
    ms_free(text);
    ms_gpu_destroy(gpu);
    CHECK_GUARD(options);
    CHECK_GUARD(hw);
    CHECK_GUARD(back);
}

static void use_rates(void) {
    GUARDED(ms_gpu_model, model);
    GUARDED(ms_rates, rates);
    GUARDED(ms_rates, back);
    GUARDED(ms_device, device);
    char *text = NULL;
    CHECK(ms_gpu_model_count() > 0 && ms_gpu_model_get(0, &model.s) == MS_OK);
    CHECK(ms_gpu_model_find("rtx3090", &model.s) == MS_OK);
    CHECK(strcmp(model.s.key, "rtx3090") == 0 && model.s.capability == 86 && model.s.link_mb_per_s > 0);
    CHECK(ms_device_from_model(&model.s, &rates.s, &device.s) == MS_OK);
    CHECK(device.s.rates == &rates.s && device.s.kind == MS_DEVICE_GPU && device.s.usable_bytes > 0);
    CHECK(ms_rates_from_model(&model.s, &back.s) == MS_OK);
    CHECK(memcmp(&rates.s, &back.s, sizeof rates.s) == 0);
    CHECK(ms_rates_to_json(&rates.s, &text) == MS_OK);
    CHECK(ms_rates_from_json(text, strlen(text), &back.s) == MS_OK);
    CHECK(memcmp(&rates.s, &back.s, sizeof rates.s) == 0);
    ms_free(text);
    CHECK(ms_rates_guess(90, 1 << 30, 10, &back.s) == MS_OK && back.s.dispatch_ns > 0);
    CHECK(ms_device_init(&device.s, &back.s, MS_DEVICE_GPU) == MS_OK && device.s.usable_bytes == 0);
    CHECK_GUARD(model);
    CHECK_GUARD(rates);
    CHECK_GUARD(back);
    CHECK_GUARD(device);
}

static void use_plan(const ms_profile *profile, const ms_device *device) {
    GUARDED(ms_plan_request, request);
    GUARDED(ms_plan_summary, summary);
    GUARDED(ms_plan_entry, entry);
    GUARDED(ms_profile_view, view);
    GUARDED(ms_error_info, info);
    ms_plan *plan = NULL;
    request.s = (ms_plan_request){.struct_bytes = sizeof request.s,
                                  .profile = profile,
                                  .device = device,
                                  .budget_bytes = 1000,
                                  .actions = 1U << MS_ACTION_RECOMPUTE,
                                  .flags = MS_PLAN_FASTEST};
    CHECK(ms_plan_create(&request.s, &plan) == MS_E_BUDGET);
    CHECK(ms_error_get_info(&info.s) == MS_OK && info.s.needed_bytes > 12000000 && info.s.byte_offset == -1);
    request.s.budget_bytes = info.s.needed_bytes;
    CHECK(ms_plan_create(&request.s, &plan) == MS_OK);
    CHECK(ms_plan_get_summary(plan, &summary.s) == MS_OK);
    CHECK(summary.s.n_units == 3 && summary.s.n_changed > 0 && summary.s.peak_unit >= -1);
    CHECK(summary.s.predicted_peak_bytes == info.s.needed_bytes);
    CHECK(ms_plan_get_entry(plan, 0, &entry.s) == MS_OK);
    CHECK(strcmp(entry.s.name, "a") == 0 && entry.s.action == MS_ACTION_RECOMPUTE && entry.s.reason == MS_REASON_SAVES);
    CHECK(ms_profile_get_view(profile, &view.s) == MS_OK && view.s.n_units == 3 && view.s.outside_bytes == 0);
    CHECK(strcmp(view.s.units[2].name, "c") == 0 && view.s.units[2].saved_bytes == 50000000);
    CHECK(ms_plan_check_units(plan, view.s.units, 3) == MS_OK);
    ms_plan_destroy(plan);
    CHECK_GUARD(request);
    CHECK_GUARD(summary);
    CHECK_GUARD(entry);
    CHECK_GUARD(view);
    CHECK_GUARD(info);
}

static void count_messages(void *user, int level, const char *message) {
    CHECK(level >= 0 && message[0] != '\0');
    ++*(int *)user;
}

int main(void) {
    int n_messages = 0;
    ms_log_sink sink = {.write = count_messages, .user = &n_messages};
    ms_profile *profile = NULL;
    GUARDED(ms_rates, rates);
    GUARDED(ms_device, device);
    ms_log_set_sink(&sink);
    memset(&sink, GUARD, sizeof sink); /* the library has its own copy */
    use_hardware();
    CHECK(n_messages > 0);
    ms_log_set_sink(NULL);
    use_rates();
    CHECK(ms_profile_from_json(PROFILE, sizeof PROFILE - 1, &profile) == MS_OK);
    CHECK(ms_rates_guess(90, 1 << 30, 10, &rates.s) == MS_OK);
    CHECK(ms_device_init(&device.s, &rates.s, MS_DEVICE_GPU) == MS_OK);
    use_plan(profile, &device.s);
    ms_profile_destroy(profile);
    CHECK_GUARD(rates);
    CHECK_GUARD(device);
    return 0;
}
