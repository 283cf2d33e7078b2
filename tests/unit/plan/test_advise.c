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
        CHECK(n <= 6 && search.n_tried == n);
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

SUITE(advise, CASE(a_budget_that_suffices), CASE(batches_that_grow_evenly), CASE(batches_that_do_not),
      CASE(searches_without_end));
