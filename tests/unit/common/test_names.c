/* test_names.c - the names of categories, phases and techniques, through their getters. */
#include "common/names.h"

#include <string.h>

#include "runner.h"

TEST(categories) {
    static const char *const names[MS_N_CATEGORIES] = {"activations", "parameters",        "buffers",
                                                       "inputs",      "gradients",         "optimizer state",
                                                       "temporaries", "library workspaces"};
    static const char *const identifiers[MS_N_CATEGORIES] = {"activations", "parameters",        "buffers",
                                                             "inputs",      "gradients",         "optimizer_state",
                                                             "temporaries", "library_workspaces"};
    ms_name_info info = {.struct_bytes = sizeof info};
    for (int32_t i = 0; i < MS_N_CATEGORIES; i++) {
        CHECK_STATUS(ms_category_get_info(i, &info), MS_OK);
        CHECK_EQ_STR(info.name, names[i]);
        CHECK_EQ_STR(info.identifier, identifiers[i]);
    }
    CHECK_STATUS(ms_category_get_info(-1, &info), MS_E_INVALID);
    CHECK_STATUS(ms_category_get_info(MS_N_CATEGORIES, &info), MS_E_INVALID);
    CHECK_STATUS(ms_category_get_info(0, NULL), MS_E_INVALID);
}

TEST(phases) {
    static const char *const names[MS_N_PHASES] = {
        "setup", "forward", "loss", "backward", "optimizer step (first)", "optimizer step", "end"};
    static const char *const identifiers[MS_N_PHASES] = {
        "setup", "forward", "loss", "backward", "optimizer_step_first", "optimizer_step", "end"};
    ms_phase_info info = {.struct_bytes = sizeof info};
    for (int32_t i = 0; i < MS_N_PHASES; i++) {
        CHECK_STATUS(ms_phase_get_info(i, &info), MS_OK);
        CHECK_EQ_STR(info.name, names[i]);
        CHECK_EQ_STR(info.identifier, identifiers[i]);
        CHECK(strlen(info.place) > 0);
    }
    CHECK_STATUS(ms_phase_get_info(-1, &info), MS_E_INVALID);
    CHECK_STATUS(ms_phase_get_info(MS_N_PHASES, &info), MS_E_INVALID);
    CHECK_STATUS(ms_phase_get_info(0, NULL), MS_E_INVALID);
}

TEST(techniques) {
    static const char *const identifiers[] = {"recompute", "offload", "tile", "half", "8bit"};
    ms_name_info info = {.struct_bytes = sizeof info};
    for (uint32_t i = 0; i < 5; i++) {
        CHECK_STATUS(ms_technique_get_info(1U << i, &info), MS_OK);
        CHECK_EQ_STR(info.identifier, identifiers[i]);
    }
    static const uint32_t unknown[] = {0, 3, MS_TECHNIQUE_ALL, MS_TECHNIQUE_ALL + 1};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        CHECK_STATUS(ms_technique_get_info(unknown[i], &info), MS_E_INVALID);
    info.struct_bytes = 0;
    CHECK_STATUS(ms_technique_get_info(1, &info), MS_E_INVALID);
}

SUITE(names, CASE(categories), CASE(phases), CASE(techniques));
