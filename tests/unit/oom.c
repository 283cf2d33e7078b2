/* oom.c - running out of memory, at every allocation in turn: an ordinary error each time, no leak, no crash.
 *
 * The linker sends the library's calls of the allocator here (--wrap, tests/CMakeLists.txt). A scenario runs with its
 * k-th allocation failing, for every k until it makes fewer; then the same with every allocation from the k-th on
 * failing. What is still allocated afterwards is counted, so leaks show without a sanitizer too.
 */
#include "devices.h"
#include "plans.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "fake_gpus.h"
#include "profile/profile.h"
#include "profile/size_terms.h"
#include "shaped.h"
#include "sim/addresses.h"
#include "sim/allocator.h"
#include "tree.h"

#define TIMEOUT_S 300 /* a hang, not a slow sanitizer on a busy machine */
#define N_UNITS 60
#define NO_FAILURE INT64_MAX

static int64_t n_calls, fail_at = NO_FAILURE;
static _Atomic(int64_t) n_live; /* streams of the offload engine are threads that free, too */
static bool fail_on;

/* The linker's names: __real_X is the allocator's own. */
void *__real_malloc(size_t n_bytes);
void *__real_calloc(size_t n, size_t item_bytes);
void *__real_realloc(void *memory, size_t n_bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t n_bytes);
void *__wrap_calloc(size_t n, size_t item_bytes);
void *__wrap_realloc(void *memory, size_t n_bytes);
void __wrap_free(void *memory);

static bool refused(void) {
    int64_t call = n_calls++;
    return fail_on ? call >= fail_at : call == fail_at;
}

static void *counted(void *memory) {
    if (memory != NULL) n_live++;
    return memory;
}

void *__wrap_malloc(size_t n_bytes) { return refused() ? NULL : counted(__real_malloc(n_bytes)); }

void *__wrap_calloc(size_t n, size_t item_bytes) { return refused() ? NULL : counted(__real_calloc(n, item_bytes)); }

void *__wrap_realloc(void *memory, size_t n_bytes) {
    if (refused()) return NULL;
    void *moved = __real_realloc(memory, n_bytes);
    return memory == NULL ? counted(moved) : moved;
}

void __wrap_free(void *memory) {
    if (memory != NULL) n_live--;
    __real_free(memory);
}

/* Does its work, frees everything and returns the first failure. */
typedef ms_status scenario(void);

/* Run with the k-th allocation failing. Returns whether there was one. */
static bool run_failing(scenario *run, int64_t k, bool from_then_on, ms_status *out_status) {
    int64_t live = atomic_load(&n_live);
    n_calls = 0;
    fail_at = k;
    fail_on = from_then_on;
    ms_error_clear();
    *out_status = run();
    fail_at = NO_FAILURE;
    CHECK_EQ_INT(atomic_load(&n_live), live);
    return n_calls > k;
}

static void check_every_failure(scenario *run) {
    for (int mode = 0; mode < 2; mode++) {
        ms_status status = MS_OK;
        int64_t k = 0;
        for (; run_failing(run, k, mode == 1, &status); k++) {
            CHECK_STATUS(status, MS_E_NO_MEMORY);
            CHECK(strstr(ms_error_message(), "memory") != NULL);
        }
        CHECK_STATUS(status, MS_OK);
        CHECK(k > 0);
    }
}

/* Not every failure is an error: the log of NVRTC may be lost, and a program may not be cached. */
static void check_most_failures(scenario *run) {
    for (int mode = 0; mode < 2; mode++) {
        ms_status status = MS_OK;
        int64_t k = 0;
        for (; run_failing(run, k, mode == 1, &status); k++) {
            CHECK(status == MS_E_NO_MEMORY || (status == MS_OK && k > 0));
            check_nothing_left();
        }
        CHECK_STATUS(status, MS_OK);
        CHECK(k > 1);
    }
}

/* Long enough for several blocks of an arena and several growths of a vector. */
static const char *long_document(void) {
    static char text[16384];
    size_t n = 0;
    n += (size_t)snprintf(text, sizeof text, "{\"list\": [");
    for (int i = 0; i < 200; i++) n += (size_t)snprintf(text + n, sizeof text - n, "%s%d.5", i == 0 ? "" : ", ", i);
    n += (size_t)snprintf(text + n, sizeof text - n, "], \"object\": {");
    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"key %d\": [[\"a\\u00e9\", {}], null]", i == 0 ? "" : ",",
                              i);
    (void)snprintf(text + n, sizeof text - n, "}}");
    return text;
}

static ms_status read_document(void) {
    ms__arena arena = {0};
    const ms__json *document = NULL;
    const char *text = long_document();
    ms_status status = ms__json_read(&arena, text, strlen(text), &document);
    CHECK((status == MS_OK) == (document != NULL));
    ms__arena_free(&arena);
    return status;
}

TEST(json_read) { check_every_failure(read_document); }

static ms_unit long_units[N_UNITS];

static const ms_unit *list_units(void) {
    static char names[N_UNITS][128];
    for (int i = 0; i < N_UNITS; i++) {
        (void)snprintf(names[i], sizeof names[i], "a.rather.long.name.of.a.module.that.stands.deep.in.its.model.%d", i);
        long_units[i] = plain_unit(names[i], 100 * KB, 10 * KB);
    }
    return long_units;
}

static ms_plan_request shared_request;

static ms_status create_plan(void) {
    ms_plan *plan = NULL;
    ms_status status = ms_plan_create(&shared_request, &plan);
    CHECK((status == MS_OK) == (plan != NULL));
    ms_plan_destroy(plan);
    return status;
}

TEST(plan_create) {
    ms_profile *profile = plain_profile(list_units(), N_UNITS);
    shared_request = request_of(profile, 4000 * KB, MS_PLAN_FASTEST);
    check_every_failure(create_plan);
    shared_request.flags = 0;
    shared_request.slowdown_ppm = 300000;
    check_every_failure(create_plan);
    ms_profile_destroy(profile);
}

static const ms_rates link_rates = SMALL_RATES(90);

static const ms_device link_device = {
    .struct_bytes = sizeof(ms_device), .rates = &link_rates, .n_multiprocessors = 132, .kind = MS_DEVICE_GPU};

/* Every action and model option is allowed, with a budget that needs some of them. */
static ms_plan_request step_request(const ms_profile *profile, int64_t budget_bytes) {
    ms_plan_request request = request_of(profile, budget_bytes, MS_PLAN_FASTEST);
    request.half_profile = profile;
    request.device = &link_device;
    request.host_limit_bytes = 6000;
    request.actions = (1U << MS_N_ACTIONS) - 1;
    request.model_options = MS_MODEL_HALF | MS_MODEL_OFFLOAD | MS_MODEL_TILE_LOSS;
    return request;
}

static ms_status refuse_plan(void) {
    ms_plan *plan = NULL;
    ms_status status = ms_plan_create(&shared_request, &plan);
    CHECK(plan == NULL);
    return status == MS_E_BUDGET ? MS_OK : status;
}

static ms_status trade_plans(void) {
    ms_pareto_point points[4];
    int64_t n = -1;
    ms_status status = ms_plan_pareto(&shared_request, points, 4, &n);
    CHECK((status == MS_OK) == (n > 0));
    return status;
}

TEST(plan_create_from_a_step) {
    ms_profile *profile = two_unit_profile();
    shared_request = step_request(profile, 17000);
    check_every_failure(create_plan);
    shared_request.flags = 0;
    shared_request.slowdown_ppm = 300000;
    check_every_failure(create_plan);
    check_every_failure(trade_plans);
    shared_request = step_request(profile, 1);
    check_every_failure(refuse_plan);
    shared_request.simulation = MS_SIMULATE_ALLOCATOR; /* which takes 2 MiB and more */
    check_every_failure(refuse_plan);
    shared_request.budget_bytes = 64 << 20;
    check_every_failure(create_plan);
    shared_request.model_options = 0; /* so that plans are simulated exactly, and may be cramped */
    shared_request.actions = 1U << MS_ACTION_RECOMPUTE;
    shared_request.simulation = MS_SIMULATE_ALLOCATOR | MS_SIMULATE_GROWING;
    check_every_failure(create_plan);
    shared_request.budget_bytes = 1;
    check_every_failure(refuse_plan);
    ms_profile_destroy(profile);
}

static ms_plan *shared_plan;
static char *shared_text;

static ms_status write_plan(void) {
    char *text = NULL;
    ms_status status = ms_plan_to_json(shared_plan, &text);
    CHECK((status == MS_OK) == (text != NULL));
    ms_free(text);
    return status;
}

static ms_status read_plan(void) {
    ms_plan *plan = NULL;
    ms_status status = ms_plan_from_json(shared_text, strlen(shared_text), &plan);
    CHECK((status == MS_OK) == (plan != NULL));
    ms_plan_destroy(plan);
    return status;
}

static ms_status explain_plan(void) {
    char *text = NULL;
    ms_status status = ms_plan_explain(shared_plan, &text);
    CHECK((status == MS_OK) == (text != NULL));
    ms_free(text);
    return status;
}

static ms_status match_plan(void) { return ms_plan_check_units(shared_plan, long_units, N_UNITS); }

TEST(plans_as_files) {
    shared_plan = plan_for(list_units(), N_UNITS, 4000 * KB, MS_PLAN_FASTEST);
    CHECK_STATUS(ms_plan_to_json(shared_plan, &shared_text), MS_OK);
    check_every_failure(write_plan);
    check_every_failure(read_plan);
    check_every_failure(match_plan);
    check_every_failure(explain_plan);
    ms_free(shared_text);
    ms_plan_destroy(shared_plan);
}

static ms_profile *shared_profile;

static ms_status write_profile(void) {
    char *text = NULL;
    ms_status status = ms_profile_to_json(shared_profile, &text);
    CHECK((status == MS_OK) == (text != NULL));
    ms_free(text);
    return status;
}

static ms_status read_profile(void) {
    ms_profile *profile = NULL;
    ms_status status = ms_profile_from_json(shared_text, strlen(shared_text), &profile);
    CHECK((status == MS_OK) == (profile != NULL));
    ms_profile_destroy(profile);
    return status;
}

TEST(profiles) {
    shared_profile = plain_profile(list_units(), N_UNITS);
    CHECK_STATUS(ms_profile_to_json(shared_profile, &shared_text), MS_OK);
    check_every_failure(write_profile);
    check_every_failure(read_profile);
    ms_free(shared_text);
    ms_profile_destroy(shared_profile);
}

static ms_status trace_profile(void) {
    static script kept, recomputed;
    ms_profile *profile = NULL;
    two_units(&kept, false);
    two_units(&recomputed, true);
    ms_status status = try_profile(&kept, &recomputed, &profile);
    CHECK((status == MS_OK) == (profile != NULL));
    ms_profile_destroy(profile);
    return status;
}

static ms_status watch_profile(void) {
    static script watched;
    ms_profile *profile = NULL;
    two_watched_units(&watched);
    for (int64_t i = 0; i < watched.n_events; i++) /* the steady optimizer step is derived, too */
        if (watched.events[i].kind == MS_TRACE_PHASE && watched.events[i].a == MS_PHASE_OPTIMIZER)
            watched.events[i].a = MS_PHASE_OPTIMIZER_FIRST;
    ms_trace trace = trace_of(&watched);
    ms_status status = try_watched_profile(&trace, NULL, &profile);
    CHECK((status == MS_OK) == (profile != NULL));
    ms_profile_destroy(profile);
    return status;
}

static uint32_t simulation_flags, simulation_state;

static ms_status simulate(void) {
    const ms_rates rates = {.struct_bytes = sizeof rates, .capability = 90, .fp32_gflops = 1, .memory_mb_per_s = 1};
    const int32_t actions[] = {simulation_state == 0 ? MS_ACTION_KEEP : MS_ACTION_OFFLOAD, MS_ACTION_RECOMPUTE};
    const ms_simulation_request request = {.struct_bytes = sizeof request,
                                           .profile = shared_profile,
                                           .actions = actions,
                                           .n_actions = 2,
                                           .device = DEVICE_OF(&rates, 0),
                                           .flags = simulation_flags,
                                           .model_options = simulation_state};
    ms_simulation *sim = NULL;
    ms_status status = ms_simulation_create(&request, &sim);
    CHECK((status == MS_OK) == (sim != NULL));
    ms_simulation_destroy(sim);
    return status;
}

TEST(steps) {
    check_every_failure(trace_profile);
    check_every_failure(watch_profile);
    shared_profile = two_unit_profile();
    CHECK_STATUS(ms_profile_to_json(shared_profile, &shared_text), MS_OK);
    check_every_failure(write_profile);
    check_every_failure(read_profile);
    check_every_failure(simulate);
    simulation_flags = MS_SIMULATE_ALLOCATOR;
    check_every_failure(simulate);
    simulation_state = MS_MODEL_ALL;
    check_every_failure(simulate);
    ms_free(shared_text);
    ms_profile_destroy(shared_profile);
}

enum { N_SHAPES = 7 };

static ms_profile *shared_profiles[N_SHAPES];

static ms_status fit_shapes(void) {
    ms_profile *fitted = NULL;
    ms_status status = ms_profile_fit((const ms_profile *const *)shared_profiles, N_SHAPES, &fitted);
    CHECK((status == MS_OK) == (fitted != NULL));
    ms_profile_destroy(fitted);
    return status;
}

static ms_status go_to_shape(void) {
    ms_profile *other = NULL;
    ms_status status = ms_profile_reshape(shared_profile, 5, 33, &other);
    CHECK((status == MS_OK) == (other != NULL));
    ms_profile_destroy(other);
    return status;
}

/* An input of this shape: one tensor of tokens. */
static ms_status find_plan(ms_shape_plans *plans, int64_t batch, int64_t length, ms_plan **out) {
    const int64_t sizes[] = {2, batch, length};
    const ms_input input = {
        .struct_bytes = sizeof input, .sizes = sizes, .n_sizes = 3, .batch = batch, .length = length};
    return ms_shape_plans_find(plans, &input, out);
}

/* The step at the shapes of a fit for up to 5 x 70, made before memory runs out. */
static ms_profile *fit_profiles[MS__FIT_SHAPES];

static ms_status give_profiles(void *user, const int64_t *sizes, int64_t n, ms_profile **out) {
    (void)user;
    if (n != MS__FIT_SHAPES) return MS_E_UNAVAILABLE;
    for (int64_t i = 0; i < n; i++) {
        CHECK(fit_profiles[i]->step->batch == sizes[3 * i + 1] && fit_profiles[i]->step->length == sizes[3 * i + 2]);
        out[i] = ms_profile_share(fit_profiles[i]);
    }
    return MS_OK;
}

static ms_status create_shape_plans(ms_shape_plans **out) {
    static const int64_t sizes[] = {2, 2, 64};
    const ms_input input = {.struct_bytes = sizeof input, .sizes = sizes, .n_sizes = 3, .batch = 2, .length = 64};
    const ms_shape_plans_options options = {.struct_bytes = sizeof options,
                                            .request = &shared_request,
                                            .plan = shared_plan,
                                            .input = &input,
                                            .source = give_profiles};
    return ms_shape_plans_create(&options, out);
}

/* The first plan does not fit at a larger shape. */
static ms_status plan_shapes(void) {
    ms_shape_plans *plans = NULL;
    ms_plan *plan = NULL;
    ms_status status = create_shape_plans(&plans);
    CHECK((status == MS_OK) == (plans != NULL));
    if (status == MS_OK) status = find_plan(plans, 5, 70, &plan);
    CHECK((status == MS_OK) == (plan != NULL));
    if (status == MS_OK) CHECK(plan != shared_plan);
    ms_plan_destroy(plan);
    ms_shape_plans_destroy(plans);
    return status;
}

static ms_status find_frontier(void) {
    ms_rates rates = {.struct_bytes = sizeof rates, .fp32_gflops = 1, .memory_mb_per_s = 1};
    ms_frontier_point points[MS_FRONTIER_MAX_POINTS];
    int64_t n = -1;
    ms_status status = ms_profile_frontier(shared_profile, 0, &rates, points, MS_FRONTIER_MAX_POINTS, &n);
    CHECK((status == MS_OK) == (n > 0));
    return status;
}

TEST(shapes_and_frontiers) {
    static const ms__shape shapes[N_SHAPES] = {{2, 64}, {4, 64}, {2, 96}, {4, 96}, {2, 45}, {4, 45}, {3, 70}};
    for (int i = 0; i < N_SHAPES; i++) shared_profiles[i] = shaped_profile(shapes[i], NOTHING_ODD);
    check_every_failure(fit_shapes);
    CHECK_STATUS(ms_profile_fit((const ms_profile *const *)shared_profiles, N_SHAPES, &shared_profile), MS_OK);
    check_every_failure(go_to_shape);
    check_every_failure(find_frontier);
    for (int i = 0; i < N_SHAPES; i++) ms_profile_destroy(shared_profiles[i]);
    ms_profile_destroy(shared_profile);
}

static int64_t peak_at(int64_t batch, int64_t length) {
    ms_profile *other = shaped_profile((ms__shape){batch, length}, NOTHING_ODD);
    ms_plan_request request = step_request(other, INT64_MAX / 8);
    ms_plan *plan = plan_of(&request);
    int64_t peak = summary_of(plan).baseline_peak_bytes;
    ms_plan_destroy(plan);
    ms_profile_destroy(other);
    return peak;
}

/* Finding the plan of a known input allocates nothing. */
static void check_known_shapes(void) {
    ms_shape_plans *plans = NULL;
    ms_plan *first = NULL, *again = NULL;
    CHECK_STATUS(create_shape_plans(&plans), MS_OK);
    CHECK_STATUS(find_plan(plans, 5, 70, &first), MS_OK);
    n_calls = 0;
    for (int i = 0; i < 1000; i++) {
        CHECK_STATUS(find_plan(plans, 5, 70, &again), MS_OK);
        CHECK(again == first);
        ms_plan_destroy(again);
        CHECK_STATUS(find_plan(plans, 2, 64, &again), MS_OK);
        CHECK(again == shared_plan);
        ms_plan_destroy(again);
    }
    CHECK_EQ_INT(n_calls, 0);
    ms_plan_destroy(first);
    ms_shape_plans_destroy(plans);
}

TEST(shape_plans) {
    int64_t grain;
    for (int i = 0; i < MS__FIT_SHAPES; i++)
        fit_profiles[i] =
            shaped_profile((ms__shape){ms__size_value(5, 0, i, &grain), ms__size_value(70, 1, i, &grain)}, NOTHING_ODD);
    shared_profile = shaped_profile((ms__shape){2, 64}, NOTHING_ODD);
    shared_request = step_request(shared_profile, peak_at(5, 70) - 1);
    shared_request.model_options = 0;
    shared_plan = plan_of(&shared_request);
    check_every_failure(plan_shapes);
    check_known_shapes();
    ms_plan_destroy(shared_plan);
    ms_profile_destroy(shared_profile);
    for (int i = 0; i < MS__FIT_SHAPES; i++) ms_profile_destroy(fit_profiles[i]);
}

static ms_status read_hw(void) {
    ms_hw hw = {.struct_bytes = sizeof hw};
    return ms_hw_from_json(shared_text, strlen(shared_text), &hw);
}

static ms_status write_hw(void) {
    ms_hw hw = {.struct_bytes = sizeof hw, .n_cores = 3, .n_gpus = 2};
    char *text = NULL;
    ms_status status = ms_hw_to_json(&hw, &text);
    CHECK((status == MS_OK) == (text != NULL));
    ms_free(text);
    return status;
}

TEST(hardware_records) {
    ms_hw hw = {.struct_bytes = sizeof hw};
    CHECK_STATUS(ms_hw_detect(NULL, NULL, &hw), MS_OK);
    CHECK_STATUS(ms_hw_to_json(&hw, &shared_text), MS_OK);
    check_every_failure(read_hw);
    check_every_failure(write_hw);
    ms_free(shared_text);
}

static ms_status read_rates(void) {
    ms_rates rates = {.struct_bytes = sizeof rates};
    return ms_rates_from_json(shared_text, strlen(shared_text), &rates);
}

static ms_status write_rates(void) {
    ms_gpu_model model = {.struct_bytes = sizeof model};
    ms_rates rates = {.struct_bytes = sizeof rates};
    char *text = NULL;
    CHECK_STATUS(ms_gpu_model_find("rtx3090", &model), MS_OK);
    CHECK_STATUS(ms_rates_from_model(&model, &rates), MS_OK);
    ms_status status = ms_rates_to_json(&rates, &text);
    CHECK((status == MS_OK) == (text != NULL));
    if (shared_text == NULL) shared_text = text;
    if (shared_text != text) ms_free(text);
    return status;
}

TEST(rates) {
    CHECK_STATUS(write_rates(), MS_OK);
    check_every_failure(write_rates);
    check_every_failure(read_rates);
    ms_free(shared_text);
}

static ms_status find_units(void) {
    static ms_module modules[500];
    static int64_t units[500];
    int64_t n_units = -1;
    for (int i = 0; i < 500; i++)
        modules[i] = (ms_module){.parent = i == 0 ? -1 : 0, .param_bytes = 4, .flags = MS_MODULE_CALLED};
    ms_status status = ms_units_find(modules, 500, units, NULL, &n_units);
    CHECK_EQ_INT(n_units, status == MS_OK ? 499 : -1);
    return status;
}

TEST(units_find) { check_every_failure(find_units); }

/* Enough blocks for several growths; a take that fails leaves everything as it was. */
static ms_status use_addresses(void) {
    ms__addresses addresses = {0};
    int64_t at[40], n = 0;
    ms_status status = MS_OK;
    for (; n < 40 && status == MS_OK; n++) status = ms__addresses_take(&addresses, (n % 3 + 1) << 24, &at[n]);
    CHECK_EQ_INT((int64_t)addresses.n_segments, status == MS_OK ? n : n - 1);
    n = (int64_t)addresses.n_segments;
    for (int64_t i = 0; i < n; i++) /* giving needs no memory: every other one first, which leaves gaps and holes */
        if (i % 2 == 0) ms__addresses_give(&addresses, at[i], (i % 3 + 1) << 24);
    for (int64_t i = 0; i < n; i++)
        if (i % 2 == 1) ms__addresses_give(&addresses, at[i], (i % 3 + 1) << 24);
    CHECK_EQ_INT(addresses.n_below, 0);
    ms__addresses_free(&addresses);
    return status;
}

TEST(addresses) { check_every_failure(use_addresses); }

static ms_status use_allocator(void) {
    ms__allocator *allocator = NULL;
    int64_t block;
    ms_status status = ms__allocator_create(0, &allocator);
    CHECK((status == MS_OK) == (allocator != NULL));
    for (int64_t i = 0; i < 100 && status == MS_OK; i++) {
        status = ms__allocator_take(allocator, 512, i % 3, &block);
        CHECK_EQ_INT(ms__allocator_get_stats(allocator).allocated_bytes, (status == MS_OK ? i + 1 : i) * 512);
    }
    ms__allocator_destroy(allocator);
    return status;
}

TEST(allocator) { check_every_failure(use_allocator); }

static ms_status use_growing(void) {
    ms__allocator *allocator = NULL;
    int64_t blocks[40], n = 0;
    ms_status status = ms__allocator_create(0, &allocator);
    if (status == MS_OK) ms__allocator_grow(allocator);
    for (; n < 40 && status == MS_OK; n++)
        status = ms__allocator_take(allocator, (n % 4 * 9 + 1) << 20, n % 3, &blocks[n]);
    for (int64_t i = 0; i < n && status == MS_OK; i += 2) status = ms__allocator_give(allocator, blocks[i]);
    if (status == MS_OK) status = ms__allocator_empty(allocator);
    for (int64_t i = 0; i < n && status == MS_OK; i += 2)
        status = ms__allocator_take(allocator, 45 << 20, i % 3, &blocks[i]);
    ms__allocator_destroy(allocator);
    return status;
}

TEST(growing_allocator) { check_every_failure(use_growing); }

static char machine[TREE_ROOT_BYTES];

static ms_status detect(void) {
    ms_hw hw = {.struct_bytes = sizeof hw};
    return ms_hw_detect(machine, NULL, &hw);
}

/* A file that cannot be read counts as no limit, so not every failure is an error here. */
TEST(hw_detect) {
    tree_make(machine);
    tree_write_text(machine, "/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 500 kB\n");
    tree_write_text(machine, "/proc/self/cgroup", "0::/a\n");
    tree_write_text(machine, "/sys/fs/cgroup/cgroup.controllers", "memory\n");
    tree_write_text(machine, "/sys/fs/cgroup/a/memory.max", "500000\n");
    tree_write_text(machine, "/sys/fs/cgroup/a/memory.current", "1000\n");
    tree_write_text(machine, "/sys/fs/cgroup/a/memory.stat", "inactive_file 5\n");
    tree_write_text(machine, "/sys/fs/cgroup/a/cpu.max", "max 100000\n");
    for (int mode = 0; mode < 2; mode++) {
        ms_status status = MS_OK;
        for (int64_t k = 0; run_failing(detect, k, mode == 1, &status); k++)
            CHECK(status == MS_E_NO_MEMORY || (status == MS_OK && k > 0));
        CHECK_STATUS(status, MS_OK);
    }
    tree_remove(machine);
}

static ms_status create_gpu(void) {
    ms_gpu_options options = fake_options("");
    ms_gpu *gpu = NULL;
    ms_status status = ms_gpu_create(&options, &gpu);
    CHECK((status == MS_OK) == (gpu != NULL));
    ms_gpu_destroy(gpu);
    return status;
}

TEST(gpu_create) { check_every_failure(create_gpu); }

static const char *cache = "";

static ms_status use_gpu(void) {
    ms_gpu_options options = fake_options(cache);
    ms_hw hw = {.struct_bytes = sizeof hw};
    ms_gpu_link link = {.struct_bytes = sizeof link};
    ms_gpu *gpu = NULL;
    uint64_t sum = 0;
    ms_status status = ms_gpu_create(&options, &gpu);
    if (status != MS_OK) return status;
    unsigned char *data = fake_alloc(0, 1000);
    fill_random(data, 1000, 1);
    status = ms_hw_detect(machine, gpu, &hw);
    if (status == MS_OK) status = ms_gpu_checksum(gpu, 0, (uint64_t)(uintptr_t)data, 1000, 0, &sum);
    if (status == MS_OK) CHECK(sum == ms_checksum(data, 1000) && hw.n_gpus == 1);
    if (status == MS_OK) status = ms_gpu_measure_link(gpu, 0, 4096, &link);
    fake_free(data);
    ms_gpu_destroy(gpu);
    return status;
}

TEST(gpu_use) {
    char folder[TREE_ROOT_BYTES];
    tree_make(machine);
    tree_write_text(machine, "/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 500 kB\n");
    check_most_failures(use_gpu);
    tree_make(folder);
    cache = folder;
    check_most_failures(use_gpu); /* also with programs that come from the cache */
    tree_remove(folder);
    cache = "";
    fake_settings_now()->compile_log = "error";
    check_most_failures(use_gpu);
    fake_settings_now()->capability[0] = 60; /* only the host can compute */
    check_most_failures(use_gpu);
    tree_remove(machine);
}

/* ---- Offload ---- */

enum { OFFLOAD_BYTES = 3 << 20 }; /* more than the pool has at first */

static ms_status put_and_fetch(ms_offload *engine, int64_t key, void *data) {
    const uint64_t address = (uint64_t)(uintptr_t)data;
    const ms_offload_piece piece = {.address = address, .n_bytes = OFFLOAD_BYTES};
    ms_offload_group *groups[2] = {NULL, NULL};
    void *user = NULL;
    ms_status status = MS_OK;
    for (int i = 0; i < 2 && status == MS_OK; i++) {
        status = ms_offload_put(engine, key + i, &piece, 1, 0, data, &groups[i]);
        CHECK((status == MS_OK) == (groups[i] != NULL));
        if (status == MS_OK) status = ms_offload_release(engine, 0, &user);
    }
    for (int i = 1; i >= 0 && status == MS_OK; i--) {
        status = ms_offload_fetch(groups[i], &address, 0);
        if (status == MS_OK) status = ms_offload_use(groups[i], 0);
    }
    for (int i = 0; i < 2; i++) ms_offload_free(groups[i]);
    return status;
}

static ms_status use_engine(ms_gpu *gpu, void *data) {
    ms_offload_options options = {.struct_bytes = sizeof options};
    ms_offload_stats stats = {.struct_bytes = sizeof stats};
    ms_offload *engine = NULL;
    CHECK_STATUS(ms_offload_options_init(&options, gpu, 0, 2 * OFFLOAD_BYTES), MS_OK);
    ms_status status = ms_offload_create(&options, &engine);
    CHECK((status == MS_OK) == (engine != NULL));
    if (engine == NULL) return status;
    status = ms_offload_reserve(engine, 1);
    for (int64_t step = 0; step < 3 && status == MS_OK; step++) status = put_and_fetch(engine, 100 * step, data);
    CHECK_STATUS(ms_offload_get_stats(engine, &stats), MS_OK);
    CHECK(stats.used_bytes == 0 && stats.n_groups == 0 && stats.n_pending == 0);
    ms_offload_destroy(engine);
    return status;
}

/* Whatever fails, the tensors are as they were. */
static ms_status use_tensors(ms_gpu *gpu, void *data) {
    fill_random(data, OFFLOAD_BYTES, 1);
    uint64_t sum = ms_checksum(data, OFFLOAD_BYTES);
    ms_status status = use_engine(gpu, data);
    CHECK_EQ_U64(ms_checksum(data, OFFLOAD_BYTES), sum);
    return status;
}

static ms_status offload_on_host(void) {
    static unsigned char data[OFFLOAD_BYTES];
    return use_tensors(NULL, data);
}

static ms_status offload_on_gpu(void) {
    ms_gpu_options options = fake_options("");
    ms_gpu *gpu = NULL;
    ms_status status = ms_gpu_create(&options, &gpu);
    if (status != MS_OK) return status;
    void *data = fake_alloc(0, OFFLOAD_BYTES);
    status = use_tensors(gpu, data);
    fake_free(data);
    ms_gpu_destroy(gpu);
    return status;
}

TEST(offload) {
    check_every_failure(offload_on_host);
    check_most_failures(offload_on_gpu);
}

SUITE(oom, CASE(json_read), CASE(plan_create), CASE(plan_create_from_a_step), CASE(shape_plans), CASE(plans_as_files),
      CASE(profiles), CASE(steps), CASE(shapes_and_frontiers), CASE(hardware_records), CASE(rates), CASE(units_find),
      CASE(addresses), CASE(allocator), CASE(growing_allocator), CASE(hw_detect), CASE(gpu_create), CASE(gpu_use),
      CASE(offload));

int main(int argc, char **argv) {
    static const test_suite *const suites[] = {&oom_suite};
    return test_main(suites, 1, TIMEOUT_S, argc, argv);
}
