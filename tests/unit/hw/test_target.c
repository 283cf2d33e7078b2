/* test_target.c - devices that steps run on: made from rates, and from models of the table. */
#include "runner.h"

#include <string.h>

#define CONTEXT_BYTES (INT64_C(512) << 20)

TEST(a_device_from_rates) {
    ms_rates rates = {.struct_bytes = sizeof rates};
    ms_device device;
    CHECK_STATUS(ms_rates_guess(0, 1000, 0, &rates), MS_OK);
    for (int64_t kind = 0; kind < MS_N_DEVICE_KINDS; kind++) {
        memset(&device, 0xA5, sizeof device);
        device.struct_bytes = sizeof device;
        CHECK_STATUS(ms_device_init(&device, &rates, kind), MS_OK);
        CHECK(device.struct_bytes == sizeof device && device.rates == &rates && device.kind == kind);
        CHECK(device.n_multiprocessors == 0 && device.usable_bytes == 0);
    }
}

TEST(a_device_from_every_model) {
    for (int64_t i = 0; i < ms_gpu_model_count(); i++) {
        ms_gpu_model model = {.struct_bytes = sizeof model};
        ms_rates rates = {.struct_bytes = sizeof rates}, wanted = rates;
        ms_device device = {.struct_bytes = sizeof device};
        CHECK_STATUS(ms_gpu_model_get(i, &model), MS_OK);
        CHECK_STATUS(ms_rates_from_model(&model, &wanted), MS_OK);
        CHECK_STATUS(ms_device_from_model(&model, &rates, &device), MS_OK);
        CHECK(memcmp(&rates, &wanted, sizeof rates) == 0);
        CHECK(device.rates == &rates && device.kind == MS_DEVICE_GPU);
        CHECK_EQ_INT(device.n_multiprocessors, model.n_multiprocessors);
        CHECK_EQ_INT(device.usable_bytes, model.memory_bytes - CONTEXT_BYTES);
    }
}

TEST(arguments_are_checked) {
    ms_gpu_model model = {.struct_bytes = sizeof model};
    ms_rates rates = {.struct_bytes = sizeof rates}, small_rates = {.struct_bytes = 8};
    ms_device device = {.struct_bytes = sizeof device}, small = {.struct_bytes = 8}, untouched = device;
    CHECK_STATUS(ms_gpu_model_find("t4", &model), MS_OK);
    CHECK_STATUS(ms_device_init(NULL, &rates, MS_DEVICE_GPU), MS_E_INVALID);
    CHECK_STATUS(ms_device_init(&small, &rates, MS_DEVICE_GPU), MS_E_INVALID);
    CHECK_STATUS(ms_device_init(&device, NULL, MS_DEVICE_GPU), MS_E_INVALID);
    CHECK_STATUS(ms_device_init(&device, &rates, -1), MS_E_INVALID);
    CHECK_STATUS(ms_device_init(&device, &rates, MS_N_DEVICE_KINDS), MS_E_INVALID);
    CHECK_STATUS(ms_device_from_model(NULL, &rates, &device), MS_E_INVALID);
    CHECK_STATUS(ms_device_from_model(&model, NULL, &device), MS_E_INVALID);
    CHECK_STATUS(ms_device_from_model(&model, &small_rates, &device), MS_E_INVALID);
    CHECK_STATUS(ms_device_from_model(&model, &rates, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_device_from_model(&model, &rates, &small), MS_E_INVALID);
    model.memory_bytes = CONTEXT_BYTES;
    CHECK_STATUS(ms_device_from_model(&model, &rates, &device), MS_E_INVALID);
    CHECK(memcmp(&device, &untouched, sizeof device) == 0);
    CHECK_EQ_INT(rates.fp32_gflops, 0);
}

SUITE(target, CASE(a_device_from_rates), CASE(a_device_from_every_model), CASE(arguments_are_checked));
