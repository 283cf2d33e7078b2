/* test_peak_bound.c - the bound of a larger step is above its peak, whatever of it grows. */
#include "plan/peak_bound.h"

#include "plans.h"
#include "shaped.h"

static const ms_rates rates = {.struct_bytes = sizeof(ms_rates),
                               .memory_bytes = 1 << 30,
                               .fp32_gflops = 10,
                               .memory_mb_per_s = 1000,
                               .launch_ns = 100,
                               .dispatch_ns = 1000};
static const ms_rates gpu_rates = {.struct_bytes = sizeof(ms_rates),
                                   .capability = 80,
                                   .memory_bytes = 1 << 30,
                                   .fp32_gflops = 10,
                                   .tf32_gflops = 10,
                                   .fp16_gflops = 10,
                                   .bf16_gflops = 10,
                                   .memory_mb_per_s = 1000,
                                   .launch_ns = 100,
                                   .dispatch_ns = 1000};
static const ms_device devices[] = {
    {.struct_bytes = sizeof(ms_device), .rates = &rates, .kind = MS_DEVICE_HOST},
    {.struct_bytes = sizeof(ms_device), .rates = &gpu_rates, .n_multiprocessors = 100, .kind = MS_DEVICE_GPU}};

static int64_t reserved_of(const ms_simulation_request *request) {
    ms_simulation *sim = NULL;
    ms_simulation_summary s = {.struct_bytes = sizeof s};
    CHECK_STATUS(ms_simulation_create(request, &sim), MS_OK);
    CHECK_STATUS(ms_simulation_get_summary(sim, &s), MS_OK);
    ms_simulation_destroy(sim);
    int64_t peak = s.first_peak_bytes > s.steady_peak_bytes ? s.first_peak_bytes : s.steady_peak_bytes;
    return peak > s.reserved_bytes ? peak : s.reserved_bytes;
}

static ms_simulation_request step_of(const ms_profile *profile, int32_t action, int device) {
    static int32_t actions[2];
    actions[0] = actions[1] = action;
    return (ms_simulation_request){.struct_bytes = sizeof(ms_simulation_request),
                                   .profile = profile,
                                   .actions = actions,
                                   .n_actions = 2,
                                   .device = &devices[device],
                                   .flags = device == 0 ? 0 : MS_SIMULATE_ALLOCATOR};
}

TEST(larger_steps_are_within_their_bound) {
    static const ms__shape shapes[] = {{2, 64}, {3, 64}, {8, 64}, {2, 65}, {2, 200}, {5, 333}, {64, 64}};
    for (int i = 0; i < 4; i++) {
        int32_t action = i % 2 ? MS_ACTION_RECOMPUTE : MS_ACTION_KEEP;
        ms_profile *base = shaped_profile(shapes[0], NOTHING_ODD);
        ms_simulation_request request = step_of(base, action, i / 2);
        ms__peak_bound bound;
        CHECK_STATUS(ms__peak_bound_make(&request, &bound), MS_OK);
        CHECK(ms__peak_bound_at(&bound, MS__GROWTH_ONE) >= reserved_of(&request));
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int64_t before[] = {2, shapes[0].batch, shapes[0].length};
            const int64_t after[] = {2, shapes[s].batch, shapes[s].length};
            ms_profile *larger = shaped_profile(shapes[s], NOTHING_ODD);
            ms_simulation_request step = step_of(larger, action, i / 2);
            CHECK(ms__peak_bound_at(&bound, ms__growth_of(before, after, 3)) >= reserved_of(&step));
            ms_profile_destroy(larger);
        }
        ms__peak_bound_free(&bound);
        ms_profile_destroy(base);
    }
}

SUITE(peak_bound, CASE(larger_steps_are_within_their_bound));
