/* test_predict.c - will a step fit? */
#include <string.h>

#include "devices.h"
#include "steps.h"

#define PEAK 22016 /* of the small model, nothing done */

static const ms_rates cpu = {.struct_bytes = sizeof(ms_rates), .fp32_gflops = 10, .memory_mb_per_s = 1000};
static const ms_rates gpu = {
    .struct_bytes = sizeof(ms_rates), .capability = 80, .fp32_gflops = 10, .memory_mb_per_s = 1000};

TEST(a_prediction_and_its_band) {
    ms_profile *profile = two_unit_profile();
    ms_device device = DEVICE_WITH(&cpu, 0);
    device.usable_bytes = PEAK * 64 / 63 + 1; /* a 64th stays free */
    ms_simulation_request request = {.struct_bytes = sizeof request, .profile = profile, .device = &device};
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    ms_prediction p = {.struct_bytes = sizeof p, .simulation = &summary};
    CHECK_STATUS(ms_predict(&request, 0, 0, &p), MS_OK);
    CHECK(p.peak_bytes == PEAK && p.needed_bytes == PEAK && p.fits == 1);
    CHECK(p.usable_bytes == device.usable_bytes && p.margin_bytes == device.usable_bytes / 64);
    CHECK(p.low_bytes == PEAK - PEAK / 50 && p.high_bytes == PEAK + PEAK / 50);
    CHECK(summary.steady_peak_bytes == PEAK && p.reserved_bytes == summary.reserved_bytes);
    p.simulation = NULL;
    CHECK_STATUS(ms_predict(&request, device.usable_bytes - 2, 1, &p), MS_OK);
    CHECK(p.fits == 0 && p.usable_bytes == device.usable_bytes - 2 && p.high_bytes == PEAK + PEAK * 3 / 100);
    CHECK_STATUS(ms_predict(NULL, 0, 0, &p), MS_E_INVALID);
    CHECK_STATUS(ms_predict(&request, 0, 0, NULL), MS_E_INVALID);
    p.struct_bytes = 0;
    CHECK_STATUS(ms_predict(&request, 0, 0, &p), MS_E_INVALID);
    ms_profile_destroy(profile);
}

/* The allocated bytes would fit, but the segments that torch's allocator reserves do not. */
TEST(fragmentation_counts) {
    ms_profile *profile = two_unit_profile();
    ms_device device = DEVICE_WITH(&gpu, 100);
    ms_simulation_request request = {
        .struct_bytes = sizeof request, .profile = profile, .device = &device, .flags = MS_SIMULATE_ALLOCATOR};
    ms_prediction p = {.struct_bytes = sizeof p};
    CHECK_STATUS(ms_predict(&request, INT64_C(1) << 40, 0, &p), MS_OK);
    CHECK(p.fits == 1 && p.reserved_bytes >= p.peak_bytes && p.needed_bytes > p.reserved_bytes);
    CHECK_STATUS(ms_predict(&request, p.peak_bytes * 64 / 63 + 1, 0, &p), MS_OK);
    CHECK_EQ_INT(p.fits, 0);
    CHECK_EQ_STR(ms_error_message(), "");
    ms_profile_destroy(profile);
}

SUITE(predict, CASE(a_prediction_and_its_band), CASE(fragmentation_counts));
