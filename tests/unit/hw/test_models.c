/* test_models.c - the table of GPUs: figures that agree with each other, and names as people, drivers and torch spell
 * them.
 */
#include "runner.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static ms_gpu_model model_at(int64_t index) {
    ms_gpu_model model = {.struct_bytes = sizeof model};
    CHECK_STATUS(ms_gpu_model_get(index, &model), MS_OK);
    return model;
}

static void check_found(const char *name, const char *key) {
    ms_gpu_model model = {.struct_bytes = sizeof model};
    ms_status status = ms_gpu_model_find(name, &model);
    if (status != MS_OK) test_fail(__FILE__, __LINE__, "\"%s\": %s", name, ms_error_message());
    if (strcmp(model.key, key) != 0) test_fail(__FILE__, __LINE__, "\"%s\" is %s, not %s", name, model.key, key);
}

static void check_unknown(const char *name, const char *closest) {
    ms_gpu_model model = {.struct_bytes = sizeof model}, untouched = model;
    char wanted[64];
    (void)snprintf(wanted, sizeof wanted, "the closest is \"%s\"", closest);
    CHECK_STATUS(ms_gpu_model_find(name, &model), MS_E_NOT_FOUND);
    CHECK(memcmp(&model, &untouched, sizeof model) == 0);
    if (strstr(ms_error_message(), wanted) == NULL) test_fail(__FILE__, __LINE__, "%s: %s", name, ms_error_message());
}

/* Lanes for fp32 of a multiprocessor; 0: a generation that is not in the table. */
static int64_t lanes_of(int64_t capability) {
    static const int64_t generations[][2] = {{60, 64},  {61, 128}, {70, 64},  {75, 64},   {80, 64},
                                             {86, 128}, {89, 128}, {90, 128}, {100, 128}, {120, 128}};
    for (size_t i = 0; i < sizeof generations / sizeof *generations; i++)
        if (generations[i][0] == capability) return generations[i][1];
    return 0;
}

TEST(figures_agree) {
    for (int64_t i = 0; i < ms_gpu_model_count(); i++) {
        ms_gpu_model m = model_at(i);
        int64_t lanes = lanes_of(m.capability), gb = m.memory_bytes / 1000000000;
        CHECK(lanes > 0);
        CHECK(m.struct_bytes == sizeof m && gb >= 4 && gb < 200 && m.memory_bytes % (1 << 20) == 0);
        int64_t clock_mhz = m.fp32_gflops * 1000 / (2 * lanes * m.n_multiprocessors);
        if (clock_mhz < 1250 || clock_mhz > 2650)
            test_fail(__FILE__, __LINE__, "%s would run at %lld MHz", m.key, (long long)clock_mhz);
        CHECK((m.tf32_gflops > 0) == (m.capability >= 80) && (m.bf16_gflops > 0) == (m.capability >= 80));
        CHECK(m.tf32_gflops == 0 || m.tf32_gflops >= m.fp32_gflops);
        CHECK(m.fp16_gflops >= m.fp32_gflops && 100 * m.fp16_gflops >= 98 * 2 * m.tf32_gflops);
        CHECK(m.bf16_gflops == 0 || m.bf16_gflops == m.fp16_gflops);
        CHECK(m.memory_mb_per_s >= 128000 && m.memory_mb_per_s <= 8000000);
        CHECK(m.link_mb_per_s >= 12000 && m.link_mb_per_s <= 60000 && m.link_mb_per_s < m.memory_mb_per_s);
    }
}

TEST(keys_are_unique_and_plain) {
    CHECK(ms_gpu_model_count() >= 50);
    for (int64_t i = 0; i < ms_gpu_model_count(); i++) {
        ms_gpu_model m = model_at(i);
        for (const char *c = m.key; *c != '\0'; c++) CHECK(islower(*c) || isdigit(*c) || *c == '-');
        for (int64_t k = 0; k < i; k++) CHECK(strcmp(model_at(k).key, m.key) != 0);
    }
}

/* A driver's name may be shared by several sizes; then it means the smallest. */
TEST(every_model_finds_itself) {
    for (int64_t i = 0; i < ms_gpu_model_count(); i++) {
        ms_gpu_model m = model_at(i), found = {.struct_bytes = sizeof found};
        check_found(m.key, m.key);
        CHECK_STATUS(ms_gpu_model_find(m.name, &found), MS_OK);
        CHECK_EQ_STR(found.name, m.name);
        CHECK(found.memory_bytes <= m.memory_bytes);
    }
}

TEST(names_that_torch_reports) {
    static const char *const pairs[][2] = {{"NVIDIA A100-SXM4-80GB", "a100-80gb"},
                                           {"NVIDIA A100-SXM4-40GB", "a100-40gb"},
                                           {"NVIDIA A100-PCIE-40GB", "a100-40gb"},
                                           {"A100-SXM4-40GB", "a100-40gb"},
                                           {"NVIDIA A100 80GB PCIe", "a100-pcie-80gb"},
                                           {"Tesla T4", "t4"},
                                           {"Tesla V100-SXM2-16GB", "v100-16gb"},
                                           {"Tesla V100-SXM2-32GB", "v100-32gb"},
                                           {"Tesla V100-SXM3-32GB", "v100-32gb"},
                                           {"Tesla V100-PCIE-16GB", "v100-pcie-16gb"},
                                           {"Tesla V100-PCIE-32GB", "v100-pcie-32gb"},
                                           {"Tesla P100-PCIE-16GB", "p100"},
                                           {"NVIDIA H100 80GB HBM3", "h100-sxm"},
                                           {"NVIDIA H100 PCIe", "h100-pcie"},
                                           {"NVIDIA H100 NVL", "h100-nvl"},
                                           {"NVIDIA H200", "h200"},
                                           {"NVIDIA B200", "b200"},
                                           {"NVIDIA L4", "l4"},
                                           {"NVIDIA L40S", "l40s"},
                                           {"NVIDIA A10", "a10"},
                                           {"NVIDIA A10G", "a10g"},
                                           {"NVIDIA A30", "a30"},
                                           {"NVIDIA A40", "a40"},
                                           {"NVIDIA RTX A6000", "rtxa6000"},
                                           {"RTX A6000", "rtxa6000"},
                                           {"NVIDIA RTX 6000 Ada Generation", "rtx6000ada"},
                                           {"GeForce RTX 2080 Ti", "rtx2080ti"},
                                           {"NVIDIA GeForce RTX 2080 SUPER", "rtx2080super"},
                                           {"NVIDIA GeForce GTX 1060 6GB", "gtx1060-6gb"},
                                           {"NVIDIA GeForce RTX 4060 Ti", "rtx4060ti-8gb"},
                                           {"NVIDIA GeForce RTX 3080", "rtx3080-10gb"},
                                           {"NVIDIA GeForce RTX 4070 Ti SUPER", "rtx4070tisuper"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) check_found(pairs[i][0], pairs[i][1]);
}

TEST(names_that_people_write) {
    static const char *const pairs[][2] = {
        {"rtx3090", "rtx3090"},
        {"RTX 3090", "rtx3090"},
        {"NVIDIA RTX-3090", "rtx3090"},
        {"geforce_rtx_3090", "rtx3090"},
        {"3090", "rtx3090"},
        {" 3090 Ti ", "rtx3090ti"},
        {"rtx 3090 24GB", "rtx3090"},
        {"RTX 4060 Ti 16 GB", "rtx4060ti-16gb"},
        {"4060ti-8gb", "rtx4060ti-8gb"},
        {"3080 12gb", "rtx3080-12gb"},
        {"rtx 5060 ti 16gb", "rtx5060ti-16gb"},
        {"a100", "a100-40gb"},
        {"A100 80GB", "a100-80gb"},
        {"a10080gb", "a100-80gb"},
        {"A100 PCIe 80GB", "a100-pcie-80gb"},
        {"a100-sxm-80gb", "a100-80gb"},
        {"v100", "v100-16gb"},
        {"V100 32GB", "v100-32gb"},
        {"v100-sxm2", "v100-16gb"},
        {"v100-pcie", "v100-pcie-16gb"},
        {"nvidia tesla t4", "t4"},
        {"T4 16GB", "t4"},
        {"H100", "h100-sxm"},
        {"h100 sxm5", "h100-sxm"},
        {"H100 SXM 80GB", "h100-sxm"},
        {"h200 141gb", "h200"},
        {"A6000", "rtxa6000"},
        {"rtx 6000 ada", "rtx6000ada"},
        {"GTX 1060", "gtx1060-6gb"},
        {"1660 super", "gtx1660super"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) check_found(pairs[i][0], pairs[i][1]);
}

/* Chips whose names only begin like one of the table; sizes that do not exist; and typing errors. */
TEST(names_that_are_not_there) {
    check_unknown("NVIDIA GeForce RTX 3070 Laptop GPU", "rtx3070");
    check_unknown("NVIDIA GeForce RTX 2060 with Max-Q Design", "rtx2060");
    check_unknown("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100-sxm");
    check_unknown("NVIDIA GeForce GTX 1060 3GB", "gtx1060-6gb");
    check_unknown("a100-60gb", "a100-40gb");
    check_unknown("rtx 3090 48gb", "rtx3090");
    check_unknown("rtx3091", "rtx3090");
    check_unknown("rtx 4095", "rtx4090");
    check_unknown("l40", "l4");
    check_unknown("rtx3090\n", "rtx3090");
}

TEST(odd_names) {
    static const char *const names[] = {"",         " ",        "-",        "rtx", "nvidia geforce", "gb", "\xff",
                                        "\xc3\xa9", "%s%n%99d", "a\tb\x01", "16gb"};
    ms_gpu_model model = {.struct_bytes = sizeof model};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK_STATUS(ms_gpu_model_find(names[i], &model), MS_E_NOT_FOUND);
    char longer[4000];
    for (size_t n = 80; n < sizeof longer; n = n < 120 ? n + 1 : n * 2) {
        memset(longer, 'x', n);
        memcpy(longer, "rtx3090", 7);
        longer[n] = '\0';
        CHECK_STATUS(ms_gpu_model_find(longer, &model), MS_E_NOT_FOUND);
        memset(longer, ' ', n); /* spaces do not count */
        memcpy(longer + n - 7, "rtx3090", 7);
        CHECK_STATUS(ms_gpu_model_find(longer, &model), MS_OK);
        CHECK_EQ_STR(model.key, "rtx3090");
    }
}

TEST(arguments_are_checked) {
    ms_gpu_model model = {.struct_bytes = sizeof model}, small = {.struct_bytes = sizeof small - 8};
    CHECK_STATUS(ms_gpu_model_find(NULL, &model), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_model_find("t4", NULL), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_model_find("t4", &small), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_model_get(0, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_model_get(0, &small), MS_E_INVALID);
    const int64_t wrong[] = {-1, ms_gpu_model_count(), INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_STATUS(ms_gpu_model_get(wrong[i], &model), MS_E_INVALID);
    CHECK(model.key == NULL);
}

SUITE(models, CASE(figures_agree), CASE(keys_are_unique_and_plain), CASE(every_model_finds_itself),
      CASE(names_that_torch_reports), CASE(names_that_people_write), CASE(names_that_are_not_there), CASE(odd_names),
      CASE(arguments_are_checked));
