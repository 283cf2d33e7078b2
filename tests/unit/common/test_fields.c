/* test_fields.c - the tables of fields: each has every field of its structure once, in order, without gaps. */
#include "runner.h"

#include <string.h>

static uint64_t size_of_kind(int64_t kind) {
    static const uint64_t sizes[MS_N_FIELD_KINDS] = {[MS_FIELD_INT64] = 8,
                                                     [MS_FIELD_UINT64] = 8,
                                                     [MS_FIELD_INT32] = 4,
                                                     [MS_FIELD_UINT32] = 4,
                                                     [MS_FIELD_BOOL] = 8,
                                                     [MS_FIELD_TEXT] = sizeof(char *),
                                                     [MS_FIELD_PARTS] = MS_MAX_CATEGORIES * sizeof(int64_t)};
    CHECK(kind >= 0 && kind < MS_N_FIELD_KINDS);
    return sizes[kind];
}

static void check_table(const ms_field *(*get)(int64_t *), uint64_t struct_bytes) {
    int64_t n = 0;
    const ms_field *fields = get(&n);
    uint64_t at = sizeof(uint64_t); /* after struct_bytes */
    for (int64_t i = 0; i < n; i++) {
        CHECK_EQ_U64(fields[i].offset, at);
        CHECK(fields[i].name[0] != '\0');
        for (int64_t j = 0; j < i; j++) CHECK(strcmp(fields[i].name, fields[j].name) != 0);
        at += size_of_kind(fields[i].kind);
    }
    CHECK_EQ_U64(at, struct_bytes);
}

TEST(tables_are_complete) {
    check_table(ms_gpu_model_fields, sizeof(ms_gpu_model));
    check_table(ms_rates_fields, sizeof(ms_rates));
    check_table(ms_unit_costs_fields, sizeof(ms_unit_costs));
    check_table(ms_simulation_summary_fields, sizeof(ms_simulation_summary));
    check_table(ms_simulation_segment_fields, sizeof(ms_simulation_segment));
    check_table(ms_comparison_fields, sizeof(ms_comparison));
    check_table(ms_plan_summary_fields, sizeof(ms_plan_summary));
    check_table(ms_plan_entry_fields, sizeof(ms_plan_entry));
}

/* The tables as a binding would use them. */
TEST(values_are_found_by_name) {
    ms_gpu_model model = {.struct_bytes = sizeof model};
    int64_t n = 0, n_seen = 0;
    const ms_field *fields = ms_gpu_model_fields(&n);
    CHECK_STATUS(ms_gpu_model_find("h200", &model), MS_OK);
    for (int64_t i = 0; i < n; i++) {
        const void *value = (const char *)&model + fields[i].offset;
        if (strcmp(fields[i].name, "key") == 0) {
            CHECK_EQ_INT(fields[i].kind, MS_FIELD_TEXT);
            CHECK_EQ_STR(*(const char *const *)value, "h200");
            n_seen++;
        }
        if (strcmp(fields[i].name, "capability") == 0) {
            CHECK_EQ_INT(fields[i].kind, MS_FIELD_INT64);
            CHECK_EQ_INT(*(const int64_t *)value, 90);
            n_seen++;
        }
    }
    CHECK_EQ_INT(n_seen, 2);
}

SUITE(fields, CASE(tables_are_complete), CASE(values_are_found_by_name));
