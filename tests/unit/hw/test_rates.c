/* test_rates.c - rates of a device: from each model of the table, as JSON there and back, and what is refused. */
#include "runner.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const ms_rates sample = {.struct_bytes = sizeof(ms_rates),
                                .source = MS_RATES_MEASURED,
                                .capability = 86,
                                .memory_bytes = INT64_C(25291653120),
                                .fp32_gflops = 25000,
                                .tf32_gflops = 33000,
                                .fp16_gflops = 66000,
                                .bf16_gflops = 65000,
                                .memory_mb_per_s = 850000,
                                .to_device_mb_per_s = 25100,
                                .from_device_mb_per_s = 26000,
                                .both_mb_per_s = 45000,
                                .pinning_mb_per_s = 1900,
                                .launch_ns = 2300,
                                .dispatch_ns = 5400,
                                .product_ns = 21000,
                                .view_ns = 1900,
                                .backward_ns = 5100,
                                .backward_product_ns = 9900,
                                .backward_view_ns = 800,
                                .list_tensor_ns = 7700,
                                .parameter_ns = 2400,
                                .saved_tensor_ns = 3300,
                                .recomputation_ns = 61000,
                                .random_mb_per_s = 610,
                                .fresh_mb_per_s = 2750};

static const char sample_text[] = "{\n  \"memscale_rates\": 2,\n  \"source\": 1,\n  \"capability\": 86,\n"
                                  "  \"memory_bytes\": 25291653120,\n  \"fp32_gflops\": 25000,\n"
                                  "  \"tf32_gflops\": 33000,\n  \"fp16_gflops\": 66000,\n  \"bf16_gflops\": 65000,\n"
                                  "  \"memory_mb_per_s\": 850000,\n  \"to_device_mb_per_s\": 25100,\n"
                                  "  \"from_device_mb_per_s\": 26000,\n  \"both_mb_per_s\": 45000,\n"
                                  "  \"pinning_mb_per_s\": 1900,\n  \"launch_ns\": 2300,\n  \"dispatch_ns\": 5400,\n"
                                  "  \"product_ns\": 21000,\n  \"view_ns\": 1900,\n  \"backward_ns\": 5100,\n"
                                  "  \"backward_product_ns\": 9900,\n  \"backward_view_ns\": 800,\n"
                                  "  \"list_tensor_ns\": 7700,\n  \"parameter_ns\": 2400,\n"
                                  "  \"saved_tensor_ns\": 3300,\n  \"recomputation_ns\": 61000,\n"
                                  "  \"random_mb_per_s\": 610,\n  \"fresh_mb_per_s\": 2750\n}\n";

/* As version 1 wrote it: the last eleven fields did not exist. */
static const char old_text[] =
    "{\"memscale_rates\": 1, \"source\": 1, \"capability\": 86, \"memory_bytes\": 25291653120,"
    "\"fp32_gflops\": 25000, \"tf32_gflops\": 33000, \"fp16_gflops\": 66000,"
    "\"bf16_gflops\": 65000, \"memory_mb_per_s\": 850000, \"to_device_mb_per_s\": 25100,"
    "\"from_device_mb_per_s\": 26000, \"both_mb_per_s\": 45000,"
    "\"pinning_mb_per_s\": 1900, \"launch_ns\": 2300, \"dispatch_ns\": 5400}";

/* Every number of the structure after its size, in the order of the header. */
#define N_NUMBERS ((sizeof(ms_rates) - offsetof(ms_rates, source)) / sizeof(int64_t))

static ms_status from_text(const char *text, ms_rates *out) {
    *out = (ms_rates){.struct_bytes = sizeof *out};
    return ms_rates_from_json(text, strlen(text), out);
}

/* The sample with the first `old` replaced. */
static const char *with(const char *old, const char *new) {
    static char text[2 * sizeof sample_text];
    return test_replace(sample_text, old, new, text, sizeof text);
}

static void check_refused(const char *text, ms_status wanted) {
    ms_rates rates, untouched = {.struct_bytes = sizeof rates};
    ms_status status = from_text(text, &rates);
    if (status != wanted) test_fail(__FILE__, __LINE__, "%s for: %s", ms_status_name(status), text);
    CHECK(memcmp(&rates, &untouched, sizeof rates) == 0);
}

TEST(there_and_back) {
    char *text = NULL;
    ms_rates back;
    CHECK_STATUS(ms_rates_to_json(&sample, &text), MS_OK);
    CHECK_EQ_STR(text, sample_text);
    CHECK_STATUS(from_text(text, &back), MS_OK);
    CHECK(memcmp(&back, &sample, sizeof back) == 0);
    ms_free(text);
}

TEST(every_model_has_rates) {
    for (int64_t i = 0; i < ms_gpu_model_count(); i++) {
        ms_gpu_model model = {.struct_bytes = sizeof model};
        ms_rates rates = {.struct_bytes = sizeof rates}, back;
        char *text = NULL;
        CHECK_STATUS(ms_gpu_model_get(i, &model), MS_OK);
        CHECK_STATUS(ms_rates_from_model(&model, &rates), MS_OK);
        CHECK_EQ_INT(rates.source, MS_RATES_TABLE);
        CHECK_EQ_INT(rates.memory_bytes, model.memory_bytes);
        CHECK_EQ_INT(rates.capability, model.capability);
        CHECK(rates.fp32_gflops > 0 && rates.fp32_gflops < model.fp32_gflops);
        CHECK((rates.tf32_gflops > 0) == (model.tf32_gflops > 0) && (rates.bf16_gflops > 0) == (model.bf16_gflops > 0));
        CHECK(rates.memory_mb_per_s < model.memory_mb_per_s && rates.both_mb_per_s > rates.to_device_mb_per_s);
        CHECK(rates.launch_ns > 0 && rates.dispatch_ns > 0 && rates.pinning_mb_per_s > 0);
        CHECK_STATUS(ms_rates_to_json(&rates, &text), MS_OK);
        CHECK_STATUS(from_text(text, &back), MS_OK);
        CHECK(memcmp(&back, &rates, sizeof rates) == 0);
        ms_free(text);
    }
}

/* Plans depend on the shares, so they must only change on purpose. */
TEST(shares_of_the_peak) {
    ms_gpu_model model = {.struct_bytes = sizeof model};
    ms_rates rates = {.struct_bytes = sizeof rates};
    CHECK_STATUS(ms_gpu_model_find("a100-80gb", &model), MS_OK);
    CHECK_STATUS(ms_rates_from_model(&model, &rates), MS_OK);
    CHECK_EQ_INT(rates.fp32_gflops, 12675);
    CHECK_EQ_INT(rates.tf32_gflops, 101400);
    CHECK_EQ_INT(rates.fp16_gflops, 202800);
    CHECK_EQ_INT(rates.bf16_gflops, 202800);
    CHECK_EQ_INT(rates.memory_mb_per_s, 1325350);
    CHECK_EQ_INT(rates.to_device_mb_per_s, 25000);
    CHECK_EQ_INT(rates.from_device_mb_per_s, 25000);
    CHECK_EQ_INT(rates.both_mb_per_s, 45000);
    CHECK_EQ_INT(rates.pinning_mb_per_s, 1600);
    CHECK_EQ_INT(rates.launch_ns, 3000);
    CHECK_EQ_INT(rates.dispatch_ns, 19000);
    CHECK(rates.product_ns > rates.dispatch_ns && rates.view_ns < rates.dispatch_ns);
    CHECK(rates.backward_ns < rates.dispatch_ns && rates.saved_tensor_ns > 0 && rates.recomputation_ns > 0);
    CHECK(rates.random_mb_per_s == 0 && rates.fresh_mb_per_s == 0);
}

TEST(models_that_make_no_sense) {
    ms_gpu_model good = {.struct_bytes = sizeof good};
    ms_rates rates = {.struct_bytes = sizeof rates}, untouched = rates;
    CHECK_STATUS(ms_gpu_model_find("t4", &good), MS_OK);
    static const size_t places[] = {offsetof(ms_gpu_model, memory_bytes), offsetof(ms_gpu_model, fp32_gflops),
                                    offsetof(ms_gpu_model, fp16_gflops), offsetof(ms_gpu_model, memory_mb_per_s),
                                    offsetof(ms_gpu_model, link_mb_per_s)};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        ms_gpu_model bad = good;
        *(int64_t *)((char *)&bad + places[i]) = -1;
        CHECK_STATUS(ms_rates_from_model(&bad, &rates), MS_E_INVALID);
        *(int64_t *)((char *)&bad + places[i]) = INT64_MAX;
        if (i > 0) CHECK_STATUS(ms_rates_from_model(&bad, &rates), MS_E_INVALID);
    }
    ms_gpu_model tiny = good;
    tiny.fp32_gflops = 1;
    CHECK_STATUS(ms_rates_from_model(&tiny, &rates), MS_E_INVALID);
    CHECK(memcmp(&rates, &untouched, sizeof rates) == 0);
}

TEST(unknown_and_missing_fields) {
    check_refused(with("\"source\": 1", "\"source\": 1, \"colour\": 3"), MS_E_PARSE);
    CHECK(strstr(ms_error_message(), "colour") != NULL);
    check_refused(with("\"source\": 1", "\"source\": 1, \"source\": 1"), MS_E_PARSE);
    check_refused(with(",\n  \"fresh_mb_per_s\": 2750", ""), MS_E_PARSE);
    char line[64];
    for (const char *at = strstr(sample_text, "\n  \"source"); strstr(at, ",\n") != NULL; at = strchr(at + 1, '\n')) {
        (void)snprintf(line, sizeof line, "%.*s", (int)(strchr(at, ',') + 1 - at), at);
        check_refused(with(line, ""), MS_E_PARSE);
    }
}

TEST(values_out_of_range) {
    static const char *const pairs[][2] = {
        {"\"source\": 1", "\"source\": 2"},
        {"\"source\": 1", "\"source\": true"},
        {"\"capability\": 86", "\"capability\": -1"},
        {"\"capability\": 86", "\"capability\": 10000"},
        {"25291653120", "0"},
        {"25291653120", "9223372036854775808"},
        {"\"fp32_gflops\": 25000", "\"fp32_gflops\": 0"},
        {"\"fp32_gflops\": 25000", "\"fp32_gflops\": 1000000001"},
        {"\"fp32_gflops\": 25000", "\"fp32_gflops\": 25000.0"},
        {"\"fp32_gflops\": 25000", "\"fp32_gflops\": \"25000\""},
        {"\"tf32_gflops\": 33000", "\"tf32_gflops\": -1"},
        {"\"memory_mb_per_s\": 850000", "\"memory_mb_per_s\": 0"},
        {"\"both_mb_per_s\": 45000", "\"both_mb_per_s\": 2000000001"},
        {"\"launch_ns\": 2300", "\"launch_ns\": 1000000001"},
        {"\"dispatch_ns\": 5400", "\"dispatch_ns\": -5400"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) check_refused(with(pairs[i][0], pairs[i][1]), MS_E_PARSE);
    ms_rates rates;
    CHECK_STATUS(from_text(with("\"tf32_gflops\": 33000", "\"tf32_gflops\": 0"), &rates), MS_OK);
    CHECK_EQ_INT(rates.tf32_gflops, 0);
}

TEST(versions) {
    check_refused(with("\"memscale_rates\": 2", "\"memscale_rates\": 3"), MS_E_VERSION);
    CHECK(strstr(ms_error_message(), "memscale_rates has version 3") != NULL);
    check_refused(with("\"memscale_rates\": 2", "\"memscale_rates\": 0"), MS_E_PARSE);
    check_refused("{\"memscale_rates\": 3, \"fields of the future\": []}", MS_E_VERSION);
    check_refused("{\"memscale_hw\": 1}", MS_E_PARSE);
}

/* What version 1 did not have is 0, which means what libraries did then. */
TEST(the_first_version) {
    ms_rates rates, wanted = sample;
    memset(&wanted.product_ns, 0, sizeof wanted - offsetof(ms_rates, product_ns));
    CHECK_STATUS(from_text(old_text, &rates), MS_OK);
    CHECK(memcmp(&rates, &wanted, sizeof rates) == 0);
    check_refused(with("\"memscale_rates\": 2", "\"memscale_rates\": 1"), MS_E_PARSE);
}

TEST(what_is_no_record) {
    static const char *const texts[] = {
        "", "null", "[]", "{}", "1", "\"memscale_rates\"", "{\"memscale_rates\": 1}", "{\"memscale_rates\": 2}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check_refused(texts[i], MS_E_PARSE);
    size_t n = strlen(sample_text) - 1; /* without the newline after the bracket */
    for (size_t cut = 0; cut < n; cut++) {
        ms_rates rates = {.struct_bytes = sizeof rates};
        CHECK_STATUS(ms_rates_from_json(sample_text, cut, &rates), MS_E_PARSE);
    }
}

TEST(types_of_a_capability) {
    static const struct {
        int64_t capability;
        int fp16, bf16;
    } cases[] = {{-1, 0, 0}, {0, 0, 0},  {61, 0, 0}, {69, 0, 0}, {70, 1, 0},
                 {75, 1, 0}, {79, 1, 0}, {80, 1, 1}, {120, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_EQ_INT(ms_capability_has_fp16(cases[i].capability), cases[i].fp16);
        CHECK_EQ_INT(ms_capability_has_bf16(cases[i].capability), cases[i].bf16);
    }
}

TEST(guesses) {
#define HOST_NS 7500, 35000, 2200, 6000, 10000, 1400, 1300, 5600, 7500, 105000
#define GPU_HOST_NS 19000, 76000, 4500, 17000, 28000, 9500, 1100, 10000, 15000, 210000
    static const ms_rates wanted[] = {
        {sizeof(ms_rates), 0, 0, 64000000000, 100, 0, 0, 0, 20000, 0, 0, 0, 0, 0, HOST_NS, 600, 2700},
        {sizeof(ms_rates), 0, 61, 8000000000, 4000, 0, 0, 0, 200000, 12000, 12000, 24000, 0, 3000, GPU_HOST_NS, 0, 0},
        {sizeof(ms_rates), 0, 75, 16000000000, 8000, 0, 32000, 0, 400000, 12000, 12000, 24000, 0, 3000, GPU_HOST_NS, 0,
         0},
        {sizeof(ms_rates), 0, 103, 180000000000, 29600, 0, 118400, 118400, 1480000, 12000, 12000, 24000, 0, 3000,
         GPU_HOST_NS, 0, 0},
    };
#undef GPU_HOST_NS
#undef HOST_NS
    static const int64_t n_multiprocessors[] = {0, 20, 40, 148};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        ms_rates rates = {.struct_bytes = sizeof rates};
        const ms_rates *w = &wanted[i];
        CHECK_STATUS(ms_rates_guess(w->capability, w->memory_bytes, n_multiprocessors[i], &rates), MS_OK);
        CHECK(memcmp(&rates, w, sizeof rates) == 0);
    }
}

TEST(guesses_that_make_no_sense) {
    ms_rates rates = {.struct_bytes = sizeof rates}, untouched = rates;
    CHECK_STATUS(ms_rates_guess(90, 1000, 10, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_rates_guess(90, 0, 10, &rates), MS_E_INVALID);
    CHECK_STATUS(ms_rates_guess(90, 1000, 0, &rates), MS_E_INVALID);
    CHECK_STATUS(ms_rates_guess(90, 1000, INT64_MAX, &rates), MS_E_INVALID);
    CHECK_STATUS(ms_rates_guess(-1, 1000, 10, &rates), MS_E_INVALID);
    CHECK_STATUS(ms_rates_guess(10000, 1000, 10, &rates), MS_E_INVALID);
    CHECK(memcmp(&rates, &untouched, sizeof rates) == 0);
}

/* Rates that could not be read back are not written. */
TEST(arguments_are_checked) {
    ms_gpu_model model = {.struct_bytes = sizeof model}, small_model = {.struct_bytes = sizeof small_model - 8};
    ms_rates rates = sample, small = {.struct_bytes = offsetof(ms_rates, dispatch_ns)};
    char *text = NULL;
    CHECK_STATUS(ms_gpu_model_find("t4", &model), MS_OK);
    CHECK_STATUS(ms_rates_from_model(NULL, &rates), MS_E_INVALID);
    CHECK_STATUS(ms_rates_from_model(&model, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_rates_from_model(&small_model, &rates), MS_E_INVALID);
    CHECK_STATUS(ms_rates_from_model(&model, &small), MS_E_INVALID);
    CHECK_STATUS(ms_rates_to_json(NULL, &text), MS_E_INVALID);
    CHECK_STATUS(ms_rates_to_json(&sample, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_rates_to_json(&small, &text), MS_E_INVALID);
    CHECK_STATUS(ms_rates_from_json(NULL, 0, &rates), MS_E_INVALID);
    CHECK_STATUS(ms_rates_from_json(sample_text, strlen(sample_text), NULL), MS_E_INVALID);
    CHECK_STATUS(ms_rates_from_json(sample_text, strlen(sample_text), &small), MS_E_INVALID);
    for (size_t i = 0; i < N_NUMBERS; i++) {
        rates = sample;
        (&rates.source)[i] = -1;
        CHECK_STATUS(ms_rates_to_json(&rates, &text), MS_E_INVALID);
    }
    CHECK(text == NULL);
}

SUITE(rates, CASE(there_and_back), CASE(every_model_has_rates), CASE(shares_of_the_peak), CASE(types_of_a_capability),
      CASE(guesses), CASE(guesses_that_make_no_sense), CASE(models_that_make_no_sense),
      CASE(unknown_and_missing_fields), CASE(values_out_of_range), CASE(versions), CASE(the_first_version),
      CASE(what_is_no_record), CASE(arguments_are_checked));
