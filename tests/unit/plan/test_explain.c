/* test_explain.c - the texts of plans, and of budgets that no plan fits. */
#include "devices.h"
#include "plans.h"

#include <stdbool.h>
#include <string.h>

#include "plan/plan.h"
#include "steps.h"

#define BASELINE 22016

static const ms_rates rates = SMALL_RATES(0);

static const ms_device device = {.struct_bytes = sizeof(ms_device), .rates = &rates, .kind = MS_DEVICE_HOST};

/* Everything is allowed except copies. */
static ms_plan_request step_request(const ms_profile *profile, int64_t budget_bytes) {
    ms_plan_request request = request_of(profile, budget_bytes, MS_PLAN_FASTEST);
    request.device = &device;
    request.actions = 1U << MS_ACTION_RECOMPUTE | 1U << MS_ACTION_TILE;
    request.model_options = MS_MODEL_TILE_LOSS;
    return request;
}

static void check_text(const ms_plan *plan, const char *const *parts) {
    char *text = NULL;
    CHECK_STATUS(ms_plan_explain(plan, &text), MS_OK);
    for (; *parts != NULL; parts++)
        if (strstr(text, *parts) == NULL) test_fail(__FILE__, __LINE__, "\"%s\" is not in: %s", *parts, text);
    ms_free(text);
}

/* The first line is exactly `wanted`. */
static void check_paragraph(const ms_plan *plan, const char *wanted) {
    char *text = NULL;
    CHECK_STATUS(ms_plan_explain(plan, &text), MS_OK);
    *strchr(text, '\n') = '\0';
    CHECK_EQ_STR(text, wanted);
    ms_free(text);
}

TEST(a_layer_recomputed) {
    ms_profile *profile = two_unit_profile();
    ms_plan_request request = step_request(profile, 17920);
    request.model_options = 0;
    ms_plan *plan = plan_of(&request);
    check_paragraph(plan,
                    "A step needs 22.0 kB when nothing is done and 17.9 kB with this plan; the budget is 17.9 kB. "
                    "The peak is in backward of layers.1: activations 6.14 kB, optimizer state 4.10 kB, "
                    "temporaries 4.10 kB, parameters 2.05 kB, gradients 1.02 kB, inputs 512 B. "
                    "1 of 2 layers is changed: 1 recomputed. "
                    "The predicted change of the step time is +14.2 %: 8.80 us instead of 7.70 us.");
    check_text(plan,
               (const char *const[]){
                   "\nlayer     technique       saves      takes  closest alternative\n",
                   "\nlayers.0  recompute     4.10 kB    1.10 us  keep: does not fit; peak +4.10 kB, time -1.10 us\n",
                   "\nlayers.1  keep              0 B       0 ns  recompute: saves nothing; peak +0 B, time +1.10 us\n",
                   NULL});
    ms_plan_destroy(plan);
    ms_profile_destroy(profile);
}

TEST(model_options_in_sentences) {
    ms_profile *profile = two_unit_profile();
    ms_plan_request request = step_request(profile, 17919);
    ms_plan *plan = plan_of(&request);
    check_text(plan, (const char *const[]){"All 2 layers are kept. The loss is computed in tiles. ",
                                           "is +28.5 %: 9.90 us instead of 7.70 us.", NULL});
    static const struct {
        uint32_t options;
        const char *text;
    } table[] = {
        {MS_MODEL_OFFLOAD | MS_MODEL_OFFLOAD_GRADIENTS,
         "kept. Optimizer state and gradients are kept in host memory. The"},
        {MS_MODEL_OFFLOAD_GRADIENTS, "kept. Gradients are kept in host memory. The"},
        {MS_MODEL_OFFLOAD, "kept. Optimizer state is kept in host memory. The"},
        {MS_MODEL_HALF | MS_MODEL_8BIT, "The model is computed in 16 bits. Optimizer state is kept in 8 bits. The"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        plan->summary.model_options = table[i].options;
        check_text(plan, (const char *const[]){table[i].text, NULL});
    }
    plan->summary.host_bytes = 2000000;
    check_text(plan, (const char *const[]){"It uses 2.00 MB of host memory. ", NULL});
    ms_plan_destroy(plan);
    ms_profile_destroy(profile);
}

TEST(a_model_that_is_left_alone) {
    ms_profile *profile = two_unit_profile();
    ms_plan_request request = step_request(profile, 4 * BASELINE + 4);
    request.flags = 0;
    ms_plan *plan = plan_of(&request);
    check_text(plan,
               (const char *const[]){"A step needs 22.0 kB when nothing is done, less than a quarter of the budget of "
                                     "88.1 kB: nothing is done. ",
                                     NULL});
    ms_plan_destroy(plan);
    ms_profile_destroy(profile);
}

/* Different sizes in one sentence look different. */
TEST(a_plan_that_does_not_fit) {
    ms_profile *profile = two_unit_profile();
    ms_plan_request request = step_request(profile, 12799);
    ms_plan *plan = NULL;
    request.margin_bytes = 12;
    CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_BUDGET);
    CHECK_EQ_STR(
        ms_error_message(),
        "No plan fits 12.799 kB: the smallest reachable peak is 12.800 kB, in forward of layers.0. It consists "
        "of activations 6.14 kB, optimizer state 4.10 kB, parameters 2.05 kB, inputs 512 B.");
    request.budget_bytes = 12811;
    CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_BUDGET);
    CHECK(strncmp(ms_error_message(), "No plan fits 12.81 kB less the margin of 12 B: the smallest ", 58) == 0);
    request.margin_bytes = 0;
    request.budget_bytes = 6390;
    CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_BUDGET);
    CHECK(strncmp(ms_error_message(), "No plan fits 6.39 kB: the smallest reachable peak is 12.8 kB, in ", 65) == 0);
    ms_profile_destroy(profile);
}

TEST(plans_that_say_little) {
    ms_plan *none = plan_for(NULL, 0, 2000 * KB, MS_PLAN_FASTEST);
    check_text(none, (const char *const[]){"The model has no layers. ", NULL});
    ms_plan_destroy(none);
    ms_unit units[4];
    equal_units(units);
    units[1].flags = MS_UNIT_RUN;
    units[2].flags = MS_UNIT_ELIGIBLE;
    ms_plan *plan = plan_for(units, 4, 1400 * KB, MS_PLAN_FASTEST);
    check_text(plan, (const char *const[]){"may not be changed", "did not run", "layers.3", NULL});
    char *text = NULL;
    CHECK_STATUS(ms_plan_explain(NULL, &text), MS_E_INVALID);
    CHECK_STATUS(ms_plan_explain(plan, NULL), MS_E_INVALID);
    CHECK(text == NULL);
    ms_plan_destroy(plan);
}

/* The text is valid UTF-8 even if a name is cut. */
TEST(long_names_are_cut_between_characters) {
    char name[128] = "a";
    for (int i = 0; i < 60; i++) strcat(name, "\xC3\xA9");
    ms_unit unit = plain_unit(name, 100 * KB, 10 * KB);
    for (int first = 0; first < 2; first++) {
        unit.name = name + first; /* 121 bytes, and 120 */
        ms_plan *plan = plan_for(&unit, 1, 2000 * KB, MS_PLAN_FASTEST);
        char *text = NULL;
        CHECK_STATUS(ms_plan_explain(plan, &text), MS_OK);
        int64_t n = 0;
        for (const char *at = strchr(text, '\xC3'); at != NULL; at = strchr(at + 1, '\xC3'), n++)
            CHECK(at[1] == '\xA9');
        CHECK_EQ_INT(n, first == 0 ? 23 : 24); /* 47 or 48 bytes */
        ms_free(text);
        ms_plan_destroy(plan);
    }
}

TEST(names_of_reasons) {
    static const char *const names[MS_N_REASONS] = {"not needed",  "saves nothing",   "may not be changed",
                                                    "did not run", "lowers the peak", "does not fit",
                                                    "slower",      "higher peak"};
    ms_name_info info = {.struct_bytes = sizeof info};
    for (int32_t i = 0; i < MS_N_REASONS; i++) {
        CHECK_STATUS(ms_reason_get_info(i, &info), MS_OK);
        CHECK_EQ_STR(info.name, names[i]);
        CHECK(strchr(info.identifier, ' ') == NULL);
    }
    CHECK_STATUS(ms_reason_get_info(-1, &info), MS_E_INVALID);
    CHECK_STATUS(ms_reason_get_info(MS_N_REASONS, &info), MS_E_INVALID);
    CHECK_STATUS(ms_reason_get_info(0, NULL), MS_E_INVALID);
}

SUITE(explain, CASE(a_layer_recomputed), CASE(model_options_in_sentences), CASE(a_model_that_is_left_alone),
      CASE(a_plan_that_does_not_fit), CASE(plans_that_say_little), CASE(long_names_are_cut_between_characters),
      CASE(names_of_reasons));
