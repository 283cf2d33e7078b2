/* test_advise.c - what would fit if no plan does. */
#include "devices.h"
#include "error_info.h"
#include "plans.h"
#include "steps.h"

static const ms_rates rates = {
    .struct_bytes = sizeof(ms_rates), .fp32_gflops = 10, .memory_mb_per_s = 1000, .dispatch_ns = 1000};

/* The budget that is found has a plan; one just below the smallest peak has none. */
TEST(a_budget_that_suffices) {
    ms_profile *profile = two_unit_profile();
    ms_device device = DEVICE_WITH(&rates, 0);
    device.usable_bytes = 1 << 30;
    ms_plan_request request = request_of(profile, 1, MS_PLAN_FASTEST);
    request.device = &device;
    ms_plan *plan = NULL;
    CHECK_STATUS(ms_plan_create(&request, &plan), MS_E_BUDGET);
    int64_t smallest = error_info().needed_bytes, budget = -1;
    CHECK_STATUS(ms_plan_find_budget(&request, &budget), MS_OK);
    CHECK(budget > smallest && budget < smallest * 11 / 10);
    request.budget_bytes = budget;
    request.margin_bytes = budget / 64;
    ms_plan_destroy(plan_of(&request));
    device.usable_bytes = smallest;
    CHECK_STATUS(ms_plan_find_budget(&request, &budget), MS_OK);
    CHECK_EQ_INT(budget, 0); /* the device has less */
    CHECK_EQ_STR(ms_error_message(), "");
    CHECK_STATUS(ms_plan_find_budget(&request, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_plan_find_budget(NULL, &budget), MS_E_INVALID);
    ms_profile_destroy(profile);
}

/* What others hold comes on top. */
TEST(a_budget_with_memory_that_others_hold) {
    ms_profile *profile = two_unit_profile();
    ms_device device = DEVICE_WITH(&rates, 0);
    device.usable_bytes = INT64_C(1) << 40;
    ms_plan_request request = request_of(profile, 1, MS_PLAN_FASTEST);
    request.device = &device;
    int64_t alone = -1, budget = -1;
    CHECK_STATUS(ms_plan_find_budget(&request, &alone), MS_OK);
    for (int64_t occupied = 1; occupied < INT64_C(1) << 36; occupied *= 64) {
        request.occupied_bytes = occupied;
        request.budget_bytes = 1;
        CHECK_STATUS(ms_plan_find_budget(&request, &budget), MS_OK);
        CHECK(budget >= alone && budget - occupied <= alone + (alone + occupied) / 16);
        request.budget_bytes = budget;
        request.margin_bytes = budget / 64;
        ms_plan_destroy(plan_of(&request));
    }
    ms_profile_destroy(profile);
}

TEST(a_budget_for_a_peak) {
    static const int64_t peaks[] = {0, 1, 63, 64, 12345, 7165000000, INT64_C(1) << 50};
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
        int64_t budget = ms_budget_for_peak(peaks[i]), less = budget - budget / 500;
        CHECK(budget - budget / 64 >= peaks[i]);
        if (peaks[i] > 1000) CHECK(less - less / 64 < peaks[i]);
    }
    CHECK_EQ_INT(ms_budget_for_peak(7165000000), 7279000000);
    CHECK(ms_budget_for_peak(INT64_MAX) > 0 && ms_budget_for_peak(-1) > 0);
}

static ms_change_search changes_of(uint32_t allowed, int64_t limit_bytes, int64_t most_bytes) {
    return (ms_change_search){.struct_bytes = sizeof(ms_change_search),
                              .limit_bytes = limit_bytes,
                              .most_bytes = most_bytes,
                              .param_bytes = 400,
                              .gradient_bytes = 400,
                              .state_bytes = 800,
                              .allowed = allowed};
}

/* All sets of what may be changed, the cheapest first; no two precisions or optimizers at once. */
TEST(changes_in_order) {
    ms_change_search search = changes_of(MS_CHANGE_ALL, 2000, 2000);
    uint32_t changes = 0;
    int n = 0;
    for (; (changes = ms_change_search_get_next(&search)) > 0; n++) {
        CHECK(changes > search.tried && changes <= MS_CHANGE_ALL);
        CHECK(!(changes & MS_CHANGE_AUTOCAST) || !(changes & MS_CHANGE_HALF));
        CHECK(!(changes & MS_CHANGE_FUSED) || !(changes & MS_CHANGE_ADAFACTOR));
        search.tried = changes;
    }
    CHECK_EQ_INT(n, 2 * 2 * 2 * 3 * 3 - 1);
    search = changes_of(MS_CHANGE_BATCH | MS_CHANGE_HALF, 2000, 2000);
    static const uint32_t wanted[] = {MS_CHANGE_BATCH, MS_CHANGE_HALF, MS_CHANGE_BATCH | MS_CHANGE_HALF, 0};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        CHECK_EQ_INT(ms_change_search_get_next(&search), wanted[i]);
        search.tried = wanted[i];
    }
    CHECK_EQ_INT(ms_change_search_get_next(NULL), 0);
}

/* A set that contains one which fits is no news. */
TEST(changes_that_fit) {
    static const uint32_t fitting[] = {MS_CHANGE_BATCH, MS_CHANGE_FUSED | MS_CHANGE_TECHNIQUE};
    ms_change_search search =
        changes_of(MS_CHANGE_FUSED | MS_CHANGE_TECHNIQUE | MS_CHANGE_BATCH | MS_CHANGE_HALF, 2000, 2000);
    search.fitting = fitting;
    search.n_fitting = 2;
    static const uint32_t wanted[] = {MS_CHANGE_FUSED,
                                      MS_CHANGE_TECHNIQUE,
                                      MS_CHANGE_HALF,
                                      MS_CHANGE_FUSED | MS_CHANGE_HALF,
                                      MS_CHANGE_TECHNIQUE | MS_CHANGE_HALF,
                                      0};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        CHECK_EQ_INT(ms_change_search_get_next(&search), wanted[i]);
        search.tried = wanted[i];
    }
}

/* 1600 bytes are needed as it is, 800 with either of the last two changes, 400 with both. */
TEST(changes_that_cannot_be_enough) {
    const struct {
        int64_t limit, most;
        uint32_t wanted;
    } table[] = {{1600, 1600, MS_CHANGE_BUDGET},
                 {1599, 1600, MS_CHANGE_BUDGET},
                 {1599, 1599, MS_CHANGE_HALF},
                 {800, 1599, MS_CHANGE_HALF},
                 {799, 800, MS_CHANGE_HALF | MS_CHANGE_BUDGET},
                 {799, 799, MS_CHANGE_HALF | MS_CHANGE_ADAFACTOR},
                 {399, 400, MS_CHANGE_HALF | MS_CHANGE_ADAFACTOR | MS_CHANGE_BUDGET},
                 {399, 399, 0}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ms_change_search search = changes_of(MS_CHANGE_ALL, table[i].limit, table[i].most);
        CHECK_EQ_INT(ms_change_search_get_next(&search), table[i].wanted);
    }
}

static ms_batch_search search_of(int64_t high, int64_t high_bytes, int64_t low_bytes, int64_t limit_bytes) {
    return (ms_batch_search){.struct_bytes = sizeof(ms_batch_search),
                             .limit_bytes = limit_bytes,
                             .low_bytes = low_bytes,
                             .high = high,
                             .high_bytes = high_bytes};
}

/* Batches that take 1000 + 100 each: the first guess is right, the second shows that it is the largest. */
TEST(batches_that_grow_evenly) {
    ms_batch_search search = search_of(64, 7400, 1000, 4050);
    int n = 0;
    for (int64_t batch; (batch = ms_batch_search_get_next(&search)) > 0; n++) {
        int64_t n_bytes = 1000 + 100 * batch;
        ms_batch_search_note(&search, batch, n_bytes, n_bytes <= search.limit_bytes);
    }
    CHECK(search.low == 30 && search.high == 31 && n == 2);
}

/* A step that grows with the square of the batch, or jumps: found in a few tries, or the search gives up. */
TEST(batches_that_do_not) {
    for (int64_t limit = 0; limit < 70000; limit += 997) {
        ms_batch_search search = search_of(256, 66000, 464, limit);
        int64_t n = 0;
        for (int64_t batch; (batch = ms_batch_search_get_next(&search)) > 0; n++) {
            CHECK(batch > search.low && batch < search.high);
            int64_t n_bytes = 464 + batch * batch;
            ms_batch_search_note(&search, batch, n_bytes, n_bytes <= limit);
        }
        CHECK(n <= 8 && search.n_tried == n);
        if (search.low > 0) CHECK(search.low_bytes <= limit);
        CHECK(search.high == 256 || search.high_bytes > limit);
    }
}

TEST(searches_without_end) {
    ms_batch_search search = search_of(INT64_MAX, INT64_MAX, 0, INT64_MAX - 1);
    int64_t batch = ms_batch_search_get_next(&search);
    CHECK(batch > 0 && batch < INT64_MAX);
    search = search_of(INT64_MAX, 5, INT64_MAX / 2, 1);
    CHECK_EQ_INT(ms_batch_search_get_next(&search), 1);
    search = search_of(1, 100, 1, 50);
    CHECK_EQ_INT(ms_batch_search_get_next(&search), 0);
    CHECK_EQ_INT(ms_batch_search_get_next(NULL), 0);
    ms_batch_search_note(NULL, 1, 1, 1);
}

SUITE(advise, CASE(a_budget_that_suffices), CASE(a_budget_with_memory_that_others_hold), CASE(a_budget_for_a_peak),
      CASE(changes_in_order), CASE(changes_that_fit), CASE(changes_that_cannot_be_enough),
      CASE(batches_that_grow_evenly), CASE(batches_that_do_not), CASE(searches_without_end));
