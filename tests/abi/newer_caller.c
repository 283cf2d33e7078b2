/* newer_caller.c - a program that was compiled with a later memscale.h than its library.
 *
 * In that header every structure has one more field, added_later. A library that does not know the field accepts 0 in
 * it and writes 0 to it; it refuses any other value.
 */
#include <memscale/memscale.h>

#include "caller.h"

/* A structure as it may be before a call: fields that are not set contain anything. */
#define DIRTY(type, name)                                                                                              \
    type name;                                                                                                         \
    memset(&name, 0xA5, sizeof name);                                                                                  \
    name.struct_bytes = sizeof name

#define CHECK_WRITTEN(name) CHECK((name).struct_bytes == sizeof(name) && is_clear((name).added_later))

/* A call that reads `name` works, fails while the field is set, and works again. */
#define CHECK_READ(name, call)                                                                                         \
    do {                                                                                                               \
        CHECK((call) == MS_OK);                                                                                        \
        (name).added_later[1] = 1;                                                                                     \
        CHECK((call) == MS_E_VERSION);                                                                                 \
        CHECK(strstr(ms_error_message(), #name) != NULL || strstr(ms_error_message(), "ms_") != NULL);                 \
        (name).added_later[1] = 0;                                                                                     \
        CHECK((call) == MS_OK);                                                                                        \
    } while (0)

static int is_clear(const int64_t field[2]) { return field[0] == 0 && field[1] == 0; }

static char *text;

static ms_status put_hw(const ms_hw *hw) {
    ms_free(text);
    text = NULL;
    return ms_hw_to_json(hw, &text);
}

static ms_status put_rates(const ms_rates *rates) {
    ms_free(text);
    text = NULL;
    return ms_rates_to_json(rates, &text);
}

static ms_status open_gpu(const ms_gpu_options *options) {
    ms_gpu *gpu = NULL;
    ms_status status = ms_gpu_create(options, &gpu);
    ms_gpu_destroy(gpu);
    return status;
}

static ms_status make_plan(const ms_plan_request *request) {
    ms_plan *plan = NULL;
    ms_status status = ms_plan_create(request, &plan);
    ms_plan_destroy(plan);
    return status;
}

static void use_hardware(void) {
    DIRTY(ms_gpu_options, options);
    DIRTY(ms_hw, hw);
    CHECK(ms_gpu_options_init(&options) == MS_OK);
    CHECK_WRITTEN(options);
    options.driver_path = "/nowhere/libcuda.so";
    options.cache_path = "";
    CHECK_READ(options, open_gpu(&options));
    CHECK(ms_hw_detect(NULL, NULL, &hw) == MS_OK);
    CHECK_WRITTEN(hw);
    CHECK_READ(hw, put_hw(&hw));
    memset(hw.added_later, 0xA5, sizeof hw.added_later);
    CHECK(ms_hw_from_json(text, strlen(text), &hw) == MS_OK);
    CHECK_WRITTEN(hw);
}

static void use_rates(ms_rates *rates, ms_device *device) {
    DIRTY(ms_gpu_model, model);
    CHECK(ms_gpu_model_find("h200", &model) == MS_OK);
    CHECK_WRITTEN(model);
    CHECK_READ(model, ms_rates_from_model(&model, rates));
    CHECK_WRITTEN(*rates);
    CHECK_READ(*rates, put_rates(rates));
    CHECK_READ(model, ms_device_from_model(&model, rates, device));
    CHECK_WRITTEN(*device);
}

static void use_plan(const ms_profile *profile, ms_rates *rates, ms_device *device) {
    DIRTY(ms_plan_summary, summary);
    DIRTY(ms_plan_entry, entry);
    DIRTY(ms_profile_view, view);
    DIRTY(ms_error_info, info);
    ms_plan *plan = NULL;
    ms_plan_request request = {
        .struct_bytes = sizeof request, .profile = profile, .device = device, .budget_bytes = 1000000000};
    CHECK_READ(request, make_plan(&request));
    CHECK_READ(*device, make_plan(&request)); /* also what a request points to */
    CHECK_READ(*rates, make_plan(&request));
    CHECK(ms_plan_create(&request, &plan) == MS_OK);
    CHECK(ms_plan_get_summary(plan, &summary) == MS_OK && summary.n_units == 3);
    CHECK_WRITTEN(summary);
    CHECK(ms_plan_get_entry(plan, 1, &entry) == MS_OK && strcmp(entry.name, "b") == 0);
    CHECK_WRITTEN(entry);
    CHECK(ms_profile_get_view(profile, &view) == MS_OK && view.n_units == 3);
    CHECK_WRITTEN(view);
    CHECK(ms_error_get_info(&info) == MS_OK);
    CHECK_WRITTEN(info);
    ms_plan_destroy(plan);
}

int main(void) {
    ms_profile *profile = NULL;
    DIRTY(ms_rates, rates);
    DIRTY(ms_device, device);
    use_hardware();
    use_rates(&rates, &device);
    CHECK(ms_profile_from_json(PROFILE, sizeof PROFILE - 1, &profile) == MS_OK);
    use_plan(profile, &rates, &device);
    ms_profile_destroy(profile);
    ms_free(text);
    return 0;
}
