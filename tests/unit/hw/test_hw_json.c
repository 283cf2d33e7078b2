/* test_hw_json.c - the hardware record as JSON: there and back, and every kind of document that is refused.
 *
 * What is refused is the sample with one thing changed, so that nothing else can be the cause.
 */
#include "runner.h"

#include <stdio.h>
#include <string.h>

static const ms_hw sample = {.struct_bytes = sizeof(ms_hw),
                             .memory_total_bytes = INT64_C(68719476736),
                             .memory_limit_bytes = INT64_C(17179869184),
                             .memory_available_bytes = INT64_C(16106127360),
                             .page_bytes = 4096,
                             .n_cores = 6,
                             .n_cores_online = 16,
                             .n_numa_nodes = 2,
                             .cgroup_version = 2,
                             .n_gpus = 1,
                             .gpus = {{.name = "NVIDIA H200",
                                       .uuid = "GPU-1",
                                       .memory_total_bytes = INT64_C(150754820096),
                                       .memory_free_bytes = INT64_C(150000000000),
                                       .memory_others_bytes = -1,
                                       .capability = 90,
                                       .has_bf16 = 1,
                                       .has_fp16 = 1,
                                       .n_multiprocessors = 132,
                                       .pcie_generation = 5,
                                       .pcie_width = 16}}};

static const char sample_text[] = "{\n  \"memscale_hw\": 1,\n  \"memory_total_bytes\": 68719476736,\n"
                                  "  \"memory_limit_bytes\": 17179869184,\n  \"memory_available_bytes\": 16106127360,\n"
                                  "  \"page_bytes\": 4096,\n  \"n_cores\": 6,\n  \"n_cores_online\": 16,\n"
                                  "  \"n_numa_nodes\": 2,\n  \"cgroup_version\": 2,\n  \"gpus\": [\n    {\n"
                                  "      \"name\": \"NVIDIA H200\",\n      \"uuid\": \"GPU-1\",\n"
                                  "      \"index\": 0,\n      \"memory_total_bytes\": 150754820096,\n"
                                  "      \"memory_free_bytes\": 150000000000,\n      \"memory_others_bytes\": -1,\n"
                                  "      \"capability\": 90,\n      \"has_bf16\": 1,\n      \"has_fp16\": 1,\n"
                                  "      \"n_multiprocessors\": 132,\n      \"pcie_generation\": 5,\n"
                                  "      \"pcie_width\": 16,\n      \"is_mig\": 0,\n      \"is_integrated\": 0\n"
                                  "    }\n  ]\n}\n";

static ms_status from_text(const char *text, ms_hw *out) {
    *out = (ms_hw){.struct_bytes = sizeof *out};
    return ms_hw_from_json(text, strlen(text), out);
}

/* The sample with the first `old` replaced. */
static const char *with(const char *old, const char *new) {
    static char text[2 * sizeof sample_text];
    return test_replace(sample_text, old, new, text, sizeof text);
}

TEST(there_and_back) {
    char *text = NULL;
    ms_hw back;
    CHECK_STATUS(ms_hw_to_json(&sample, &text), MS_OK);
    CHECK_EQ_STR(text, sample_text);
    CHECK_STATUS(from_text(text, &back), MS_OK);
    CHECK(memcmp(&back, &sample, sizeof back) == 0);
    ms_free(text);
}

TEST(the_real_machine_comes_back) {
    ms_hw hw = {.struct_bytes = sizeof hw}, back;
    char *text = NULL;
    CHECK_STATUS(ms_hw_detect(NULL, NULL, &hw), MS_OK);
    CHECK_STATUS(ms_hw_to_json(&hw, &text), MS_OK);
    CHECK_STATUS(from_text(text, &back), MS_OK);
    CHECK(memcmp(&back, &hw, sizeof back) == 0);
    ms_free(text);
}

TEST(order_of_keys_is_free) {
    ms_hw back;
    CHECK_STATUS(
        from_text("{\"gpus\":[],\"cgroup_version\":2,\"n_numa_nodes\":2,\"n_cores_online\":16,\"n_cores\":6,"
                  "\"page_bytes\":4096,\"memory_available_bytes\":16106127360,\"memory_limit_bytes\":17179869184,"
                  "\"memory_total_bytes\":68719476736,\"memscale_hw\":1}",
                  &back),
        MS_OK);
    ms_hw without_gpus = sample;
    without_gpus.n_gpus = 0;
    memset(without_gpus.gpus, 0, sizeof without_gpus.gpus);
    CHECK(memcmp(&back, &without_gpus, sizeof back) == 0);
}

static void check_refused(const char *text, ms_status wanted) {
    ms_hw hw, untouched = {.struct_bytes = sizeof hw};
    ms_status status = from_text(text, &hw);
    if (status != wanted) test_fail(__FILE__, __LINE__, "%s for: %s", ms_status_name(status), text);
    CHECK(memcmp(&hw, &untouched, sizeof hw) == 0);
}

TEST(unknown_and_missing_fields) {
    check_refused(with("\"n_cores\": 6", "\"n_cores\": 6, \"colour\": 3"), MS_E_PARSE);
    CHECK(strstr(ms_error_message(), "colour") != NULL);
    static const char *const lines[] = {"  \"memory_total_bytes\": 68719476736,\n",
                                        "  \"memory_limit_bytes\": 17179869184,\n",
                                        "  \"memory_available_bytes\": 16106127360,\n",
                                        "  \"page_bytes\": 4096,\n",
                                        "  \"n_cores\": 6,\n",
                                        "  \"n_cores_online\": 16,\n",
                                        "  \"n_numa_nodes\": 2,\n",
                                        "  \"cgroup_version\": 2,\n",
                                        "      \"name\": \"NVIDIA H200\",\n",
                                        "      \"uuid\": \"GPU-1\",\n",
                                        "      \"index\": 0,\n",
                                        "      \"memory_total_bytes\": 150754820096,\n",
                                        "      \"memory_free_bytes\": 150000000000,\n",
                                        "      \"memory_others_bytes\": -1,\n",
                                        "      \"capability\": 90,\n",
                                        "      \"has_bf16\": 1,\n",
                                        "      \"has_fp16\": 1,\n",
                                        "      \"n_multiprocessors\": 132,\n",
                                        "      \"pcie_generation\": 5,\n",
                                        "      \"pcie_width\": 16,\n",
                                        "      \"is_mig\": 0,\n",
                                        ",\n      \"is_integrated\": 0",
                                        "  \"memscale_hw\": 1,\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) check_refused(with(lines[i], ""), MS_E_PARSE);
}

TEST(values_out_of_range) {
    check_refused(with("\"n_cores\": 6", "\"n_cores\": -6"), MS_E_PARSE);
    check_refused(with("\"n_cores\": 6", "\"n_cores\": 0"), MS_E_PARSE);
    check_refused(with("\"n_cores\": 6", "\"n_cores\": 6.0"), MS_E_PARSE);
    check_refused(with("\"n_cores\": 6", "\"n_cores\": \"6\""), MS_E_PARSE);
    check_refused(with("\"n_cores\": 6", "\"n_cores\": null"), MS_E_PARSE);
    check_refused(with("\"n_cores\": 6", "\"n_cores\": 9223372036854775808"), MS_E_PARSE);
    check_refused(with("\"page_bytes\": 4096", "\"page_bytes\": 0"), MS_E_PARSE);
    check_refused(with("17179869184", "-1"), MS_E_PARSE);
    check_refused(with("68719476736", "0"), MS_E_PARSE);
}

#define X48 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

TEST(gpus_out_of_range) {
    static const char *const pairs[][2] = {
        {"\"index\": 0", "\"index\": -1"},
        {"150754820096", "0"},
        {"150000000000", "-2"},
        {"\"memory_others_bytes\": -1", "\"memory_others_bytes\": -2"},
        {"\"capability\": 90", "\"capability\": 9"},
        {"\"capability\": 90", "\"capability\": 10000"},
        {"\"has_bf16\": 1", "\"has_bf16\": 2"},
        {"\"has_bf16\": 1", "\"has_bf16\": true"},
        {"\"is_mig\": 0", "\"is_mig\": -1"},
        {"\"n_multiprocessors\": 132", "\"n_multiprocessors\": -132"},
        {"\"NVIDIA H200\"", "7"},
        {"\"NVIDIA H200\"", "\"a\\u0000b\""},
        {"\"NVIDIA H200\"", "\"" X48 X48 "\""},
        {"\"GPU-1\"", "\"" X48 "\""},
        {"\"is_mig\": 0", "\"is_mig\": 0, \"colour\": 1"},
        {"\"gpus\": [", "\"gpus\": [null, "},
        {"\"gpus\": [", "\"gpus\": [[], "},
        {"\"gpus\": [", "\"gpu\": ["},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) check_refused(with(pairs[i][0], pairs[i][1]), MS_E_PARSE);
    ms_hw hw;
    CHECK_STATUS(from_text(with("150000000000", "-1"), &hw), MS_OK);
    CHECK_EQ_INT(hw.gpus[0].memory_free_bytes, -1);
    CHECK_STATUS(from_text(with("\"GPU-1\"", "\"\""), &hw), MS_OK);
    CHECK_EQ_STR(hw.gpus[0].uuid, "");
}

TEST(as_many_gpus_as_there_is_room_for) {
    ms_hw hw = sample, back;
    char *text = NULL;
    hw.n_gpus = MS_HW_MAX_GPUS;
    for (int i = 0; i < MS_HW_MAX_GPUS; i++) {
        hw.gpus[i] = sample.gpus[0];
        hw.gpus[i].index = 3 * i;
        memset(hw.gpus[i].name, 'n', sizeof hw.gpus[i].name - 1);
    }
    CHECK_STATUS(ms_hw_to_json(&hw, &text), MS_OK);
    CHECK_STATUS(from_text(text, &back), MS_OK);
    CHECK(memcmp(&back, &hw, sizeof hw) == 0);
    ms_free(text);
    static char more[1 << 15];
    size_t n = (size_t)snprintf(more, sizeof more, "{\"memscale_hw\": 1, \"gpus\": [{}");
    for (int i = 0; i < MS_HW_MAX_GPUS; i++) n += (size_t)snprintf(more + n, sizeof more - n, ", {}");
    (void)snprintf(more + n, sizeof more - n, "], %s", strstr(with("\"gpus\": [", "\"gpu\": ["), "\"memory_total"));
    *strstr(more, ",\n  \"gpu\"") = '\0';
    check_refused(strcat(more, "}"), MS_E_PARSE);
    CHECK(strstr(ms_error_message(), "17 GPUs") != NULL);
    hw.gpus[3].index = hw.gpus[2].index;
    CHECK_STATUS(ms_hw_to_json(&hw, &text), MS_OK);
    check_refused(text, MS_E_PARSE);
    CHECK(strstr(ms_error_message(), "order") != NULL);
    ms_free(text);
    text = NULL;
    hw.n_gpus = MS_HW_MAX_GPUS + 1;
    CHECK_STATUS(ms_hw_to_json(&hw, &text), MS_E_INVALID);
    hw.n_gpus = -1;
    CHECK_STATUS(ms_hw_to_json(&hw, &text), MS_E_INVALID);
    CHECK(text == NULL);
}

TEST(versions) {
    check_refused(with("\"memscale_hw\": 1", "\"memscale_hw\": 2"), MS_E_VERSION);
    check_refused(with("\"memscale_hw\": 1", "\"memscale_hw\": 0"), MS_E_PARSE);
    check_refused(with("\"memscale_hw\": 1", "\"memscale_hw\": \"1\""), MS_E_PARSE);
    check_refused("{\"memscale_hw\": 2, \"fields of the future\": []}", MS_E_VERSION);
    check_refused("{\"memscale_plan\": 1}", MS_E_PARSE);
}

TEST(what_is_no_record) {
    static const char *const texts[] = {"", "null", "[]", "{}", "1", "\"memscale_hw\"", "{\"memscale_hw\": 1}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check_refused(texts[i], MS_E_PARSE);
    size_t n = strlen(sample_text) - 1; /* without the newline after the bracket */
    for (size_t cut = 0; cut < n; cut++) {
        ms_hw hw = {.struct_bytes = sizeof hw};
        CHECK_STATUS(ms_hw_from_json(sample_text, cut, &hw), MS_E_PARSE);
    }
}

TEST(arguments_are_checked) {
    ms_hw hw = sample;
    char *text = NULL;
    CHECK_STATUS(ms_hw_to_json(NULL, &text), MS_E_INVALID);
    CHECK_STATUS(ms_hw_to_json(&sample, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_hw_from_json(NULL, 0, &hw), MS_E_INVALID);
    CHECK_STATUS(ms_hw_from_json(sample_text, strlen(sample_text), NULL), MS_E_INVALID);
    hw.struct_bytes = sizeof hw - 8;
    CHECK_STATUS(ms_hw_to_json(&hw, &text), MS_E_INVALID);
    CHECK_STATUS(ms_hw_from_json(sample_text, strlen(sample_text), &hw), MS_E_INVALID);
    CHECK(text == NULL);
}

SUITE(hw_json, CASE(there_and_back), CASE(the_real_machine_comes_back), CASE(order_of_keys_is_free),
      CASE(unknown_and_missing_fields), CASE(values_out_of_range), CASE(gpus_out_of_range),
      CASE(as_many_gpus_as_there_is_room_for), CASE(versions), CASE(what_is_no_record), CASE(arguments_are_checked));
