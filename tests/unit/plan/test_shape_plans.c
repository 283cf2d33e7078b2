/* test_shape_plans.c - the plans of a model by the sizes of its inputs. */
#include <string.h>

#include "plans.h"
#include "shaped.h"

static const ms_rates rates = {.struct_bytes = sizeof(ms_rates),
                               .memory_bytes = 1 << 30,
                               .fp32_gflops = 10,
                               .memory_mb_per_s = 1000,
                               .launch_ns = 100,
                               .dispatch_ns = 1000};
static const ms_device device = {.struct_bytes = sizeof(ms_device), .rates = &rates, .kind = MS_DEVICE_HOST};

static ms_plan_request step_request(const ms_profile *profile, int64_t budget_bytes) {
    ms_plan_request request = request_of(profile, budget_bytes, MS_PLAN_FASTEST);
    request.device = &device;
    request.actions = 1U << MS_ACTION_RECOMPUTE | 1U << MS_ACTION_TILE;
    return request;
}

static int64_t plain_peak_of(const ms_profile *profile) {
    ms_plan_request request = step_request(profile, INT64_MAX / 8);
    ms_plan *plan = plan_of(&request);
    int64_t peak = summary_of(plan).baseline_peak_bytes;
    ms_plan_destroy(plan);
    return peak;
}

static int64_t plain_peak_at(int64_t batch, int64_t length) {
    ms_profile *profile = shaped_profile((ms__shape){batch, length}, NOTHING_ODD);
    int64_t peak = plain_peak_of(profile);
    ms_profile_destroy(profile);
    return peak;
}

/* ---- A model whose input is tokens and a picture: [batch, length] and [batch, 3, side, side] ---- */

typedef struct sizes {
    int64_t numbers[8];
    ms_input input;
} sizes;

static const ms_input *input_of(sizes *s, int64_t batch, int64_t length, int64_t side) {
    const int64_t numbers[] = {2, batch, length, 4, batch, 3, side, side};
    memcpy(s->numbers, numbers, sizeof numbers);
    s->input = (ms_input){
        .struct_bytes = sizeof s->input, .sizes = s->numbers, .n_sizes = 8, .batch = batch, .length = length};
    return &s->input;
}

/* The source of profiles: how often it is called, and what it returns. */
typedef struct asked {
    int n_alone, n_shapes;
    ms_status status;
    oddity odd;      /* of profiles at several shapes: of the last one, or of all where it means that */
    bool has_none;   /* no step can be analysed */
    bool only_alone; /* none can at several shapes */
} asked;

static ms_status answer(void *user, const int64_t *lists, int64_t n, ms_profile **out) {
    asked *a = user;
    *(n > 1 ? &a->n_shapes : &a->n_alone) += 1;
    if (a->status != MS_OK) return a->status;
    if (a->has_none || (a->only_alone && n > 1)) return MS_E_UNAVAILABLE;
    for (int64_t i = 0; i < n; i++) {
        bool is_odd = n > 1 && (i == n - 1 || a->odd >= CUBE);
        out[i] = shaped_profile((ms__shape){lists[8 * i + 1], lists[8 * i + 2]}, is_odd ? a->odd : NOTHING_ODD);
    }
    return MS_OK;
}

typedef struct watched {
    ms_plan *base;
    ms_shape_plans *plans;
} watched;

static watched watch(const ms_plan_request *request, const ms_input *input, asked *who) {
    watched w = {.base = plan_of(request)};
    ms_shape_plans_options options = {.struct_bytes = sizeof options,
                                      .request = request,
                                      .plan = w.base,
                                      .input = input,
                                      .source = who == NULL ? NULL : answer,
                                      .user = who};
    CHECK_STATUS(ms_shape_plans_create(&options, &w.plans), MS_OK);
    return w;
}

static void unwatch(watched *w) {
    ms_shape_plans_destroy(w->plans);
    ms_plan_destroy(w->base);
}

/* The plan, of which only the address is used: `w.plans` keeps it alive. */
static const ms_plan *plan_for_input(const watched *w, int64_t batch, int64_t length, int64_t side) {
    sizes s;
    ms_plan *plan = NULL;
    CHECK_STATUS(ms_shape_plans_find(w->plans, input_of(&s, batch, length, side), &plan), MS_OK);
    ms_plan_destroy(plan);
    return plan;
}

/* A model that was planned for 2 x 64, within the peak of `batch` x 64. */
typedef struct fixture {
    ms_profile *profile;
    ms_plan_request request;
    asked who;
    watched w;
} fixture;

static void open_fixture(fixture *f, int64_t batch, int64_t side) {
    sizes s;
    f->profile = shaped_profile((ms__shape){2, 64}, NOTHING_ODD);
    f->request = step_request(f->profile, plain_peak_at(batch, 64));
    f->w = watch(&f->request, input_of(&s, 2, 64, side), &f->who);
    CHECK_EQ_INT(summary_of(f->w.base).n_changed, 0);
}

static void close_fixture(fixture *f) {
    unwatch(&f->w);
    ms_profile_destroy(f->profile);
}

/* Up to 4 x 64 no unit is changed; beyond, some are. The step is profiled at several shapes once. */
TEST(sizes_are_learned_once) {
    fixture f = {0};
    sizes s;
    open_fixture(&f, 4, 7);
    const ms_plan *base = f.w.base;
    CHECK(plan_for_input(&f.w, 2, 64, 7) == base && plan_for_input(&f.w, 1, 3, 7) == base);
    CHECK(plan_for_input(&f.w, 2, 60, 5) == base && f.who.n_shapes == 0); /* smaller: no profile is asked for */
    const ms_plan *larger = plan_for_input(&f.w, 4, 72, 7);
    CHECK(larger != base && summary_of(larger).n_changed > 0);
    CHECK(summary_of(larger).predicted_peak_bytes <= f.request.budget_bytes);
    CHECK_EQ_INT(summary_of(larger).batch, 4);
    CHECK(plan_for_input(&f.w, 4, 72, 7) == larger && plan_for_input(&f.w, 4, 71, 7) == larger);
    CHECK(plan_for_input(&f.w, 3, 65, 7) == larger); /* what fits more fits less */
    const ms_plan *longer = plan_for_input(&f.w, 2, 100, 7), *most = plan_for_input(&f.w, 5, 64, 7);
    CHECK(longer != base && most != base && most != larger);
    CHECK(f.who.n_shapes == 1 && f.who.n_alone == 0);
    ms_plan *none = NULL;
    CHECK_STATUS(ms_shape_plans_find(f.w.plans, input_of(&s, 4000, 512, 7), &none), MS_E_BUDGET);
    CHECK(none == NULL && plan_for_input(&f.w, 2, 64, 7) == base);
    close_fixture(&f);
}

/* The plan at sizes that were not profiled is the plan from a profile of these sizes. */
TEST(plans_from_a_fit_are_exact) {
    static const ms__shape shapes[] = {{4, 80}, {5, 96}, {3, 128}, {7, 64}, {2, 256}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        fixture f = {0};
        open_fixture(&f, 4, 7);
        (void)plan_for_input(&f.w, 4, 65, 7); /* both vary */
        sizes s;
        ms_plan *found = NULL, *wanted = NULL;
        ms_profile *own = shaped_profile(shapes[i], NOTHING_ODD);
        ms_plan_request request = step_request(own, f.request.budget_bytes);
        ms_status status = ms_shape_plans_find(f.w.plans, input_of(&s, shapes[i].batch, shapes[i].length, 7), &found);
        CHECK_STATUS(ms_plan_create(&request, &wanted), status);
        if (status == MS_OK) {
            CHECK_EQ_INT(summary_of(found).predicted_peak_bytes, summary_of(wanted).predicted_peak_bytes);
            CHECK_EQ_INT(summary_of(found).step_ns, summary_of(wanted).step_ns);
        }
        CHECK_EQ_INT(f.who.n_alone, 0);
        ms_plan_destroy(found);
        ms_plan_destroy(wanted);
        ms_profile_destroy(own);
        close_fixture(&f);
    }
}

/* Where nothing has to be done and there is room for the square of what grows, nobody is asked. */
TEST(a_bound_settles_easy_cases) {
    fixture f = {0};
    open_fixture(&f, 400, 7);
    CHECK(plan_for_input(&f.w, 4, 64, 7) == f.w.base && plan_for_input(&f.w, 2, 200, 7) == f.w.base);
    CHECK(plan_for_input(&f.w, 3, 100, 14) == f.w.base && plan_for_input(&f.w, 3, 99, 14) == f.w.base);
    CHECK(f.who.n_shapes == 0 && f.who.n_alone == 0);
    (void)plan_for_input(&f.w, 300, 64, 7); /* it fits, but its square does not */
    CHECK_EQ_INT(f.who.n_shapes, 1);
    close_fixture(&f);
}

/* A plan outlives the ms_shape_plans it came from, and what the request borrowed can be freed at once. */
TEST(plans_are_shared) {
    sizes s;
    asked who = {0};
    ms_profile *profile = shaped_profile((ms__shape){2, 64}, NOTHING_ODD);
    ms_rates own_rates = rates;
    ms_device own_device = {.struct_bytes = sizeof own_device, .rates = &own_rates, .kind = MS_DEVICE_HOST};
    uint8_t may_change[] = {1, 1};
    ms_plan_request request = step_request(profile, plain_peak_at(4, 64));
    request.device = &own_device;
    request.may_change = may_change;
    watched w = watch(&request, input_of(&s, 2, 64, 7), &who);
    ms_profile_destroy(profile);
    memset(&own_rates, 0xff, sizeof own_rates);
    memset(&own_device, 0xff, sizeof own_device);
    may_change[0] = may_change[1] = 0;
    ms_plan *plan = NULL;
    CHECK_STATUS(ms_shape_plans_find(w.plans, input_of(&s, 4, 72, 7), &plan), MS_OK);
    unwatch(&w);
    CHECK(summary_of(plan).n_changed > 0);
    ms_plan *twice = ms_plan_share(plan);
    ms_plan_destroy(plan);
    CHECK(twice == plan && summary_of(twice).batch == 4);
    ms_plan_destroy(twice);
    CHECK(ms_plan_share(NULL) == NULL && ms_profile_share(NULL) == NULL);
}

/* If the steps differ or a size is no sum of terms, the step is profiled for the input alone; without that, it runs
 * lean. */
TEST(sizes_that_cannot_be_learned) {
    static const oddity odd[] = {EXTRA_OP, ODD_BYTES, CUBE};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        fixture f = {.who = {.odd = odd[i]}};
        open_fixture(&f, 4, 7);
        const ms_plan *larger = plan_for_input(&f.w, 4, 72, 7);
        CHECK(larger != f.w.base && summary_of(larger).n_changed > 0);
        CHECK(plan_for_input(&f.w, 4, 72, 7) == larger);
        CHECK(f.who.n_shapes == 1 && f.who.n_alone == 1);
        f.who.has_none = true;
        const ms_plan *lean = plan_for_input(&f.w, 5, 80, 7);
        CHECK(lean != f.w.base && lean != larger && summary_of(lean).n_changed == 2);
        CHECK(f.who.n_shapes == 1 && f.who.n_alone == 2);
        close_fixture(&f);
    }
}

/* After the first analysis, others are made as the time trained allows; until then the step runs lean. */
TEST(analyses_take_little_of_the_time) {
    fixture f = {.who = {.only_alone = true}};
    sizes s;
    ms_plan *plan = NULL, *lean = NULL;
    open_fixture(&f, 4, 7);
    (void)input_of(&s, 4, 72, 7);
    s.input.trained_ns = 1000;
    s.input.analysis_ns = 100;
    CHECK_STATUS(ms_shape_plans_find(f.w.plans, &s.input, &lean), MS_OK);
    CHECK(f.who.n_shapes == 1 && f.who.n_alone == 0); /* one analysis at a time */
    CHECK_EQ_INT(summary_of(lean).n_changed, 2);
    s.input.analysed_ns = 500;
    s.input.trained_ns = 50 * (500 + 100) - 1;
    CHECK_STATUS(ms_shape_plans_find(f.w.plans, &s.input, &plan), MS_OK);
    CHECK(plan == lean && f.who.n_alone == 0);
    ms_plan_destroy(plan);
    s.input.trained_ns++;
    CHECK_STATUS(ms_shape_plans_find(f.w.plans, &s.input, &plan), MS_OK);
    CHECK(plan != lean && f.who.n_alone == 1 && f.who.n_shapes == 1);
    ms_plan_destroy(plan);
    ms_plan_destroy(lean);
    s.input.trained_ns = -1;
    CHECK_STATUS(ms_shape_plans_find(f.w.plans, &s.input, &plan), MS_E_INVALID);
    close_fixture(&f);
}

/* When more sizes vary than before, the step is profiled again: for all of them. */
TEST(inputs_that_differ_in_more) {
    fixture f = {0};
    open_fixture(&f, 4, 7);
    CHECK(plan_for_input(&f.w, 2, 64, 5) == f.w.base && plan_for_input(&f.w, 1, 30, 7) == f.w.base);
    const ms_plan *larger = plan_for_input(&f.w, 4, 65, 7);
    CHECK(larger != f.w.base && f.who.n_shapes == 1);
    const ms_plan *wider = plan_for_input(&f.w, 4, 70, 16);
    CHECK(f.who.n_shapes == 2 && summary_of(wider).n_changed > 0);
    CHECK(plan_for_input(&f.w, 4, 70, 16) == wider && plan_for_input(&f.w, 2, 63, 15) == wider);
    (void)plan_for_input(&f.w, 4, 66, 33);
    CHECK(f.who.n_shapes == 2 && f.who.n_alone == 0);
    /* An input with another number of tensors or dimensions is a different input. */
    const int64_t fewer[] = {2, 2, 64};
    ms_input input = {.struct_bytes = sizeof input, .sizes = fewer, .n_sizes = 3, .batch = 2, .length = 64};
    ms_plan *plan = NULL;
    CHECK_STATUS(ms_shape_plans_find(f.w.plans, &input, &plan), MS_OK);
    CHECK_EQ_INT(f.who.n_alone, 1);
    ms_plan_destroy(plan);
    close_fixture(&f);
}

/* Plans of the same model for another request know what the first ones learned, and outlive them. */
TEST(plans_that_learn_together) {
    fixture f = {0};
    sizes s;
    open_fixture(&f, 4, 7);
    ms_plan_request held = f.request;
    held.budget_bytes += held.budget_bytes / 4;
    ms_plan *plan = plan_of(&held), *found = NULL;
    ms_shape_plans *plans = NULL;
    ms_shape_plans_options options = {.struct_bytes = sizeof options,
                                      .request = &held,
                                      .plan = plan,
                                      .input = input_of(&s, 2, 64, 7),
                                      .source = answer,
                                      .user = &f.who,
                                      .like = f.w.plans};
    CHECK_STATUS(ms_shape_plans_create(&options, &plans), MS_OK);
    (void)plan_for_input(&f.w, 4, 72, 7);
    close_fixture(&f);
    CHECK_STATUS(ms_shape_plans_find(plans, input_of(&s, 4, 80, 7), &found), MS_OK);
    CHECK(f.who.n_shapes == 1 && f.who.n_alone == 0);
    ms_plan_destroy(found);
    ms_plan_destroy(plan);
    ms_shape_plans_destroy(plans);
}

/* The source may stop the call. Nothing is remembered, and the next call asks again. */
TEST(a_source_that_stops) {
    fixture f = {.who = {.status = MS_E_INTERRUPTED}};
    sizes s;
    ms_plan *plan = NULL;
    open_fixture(&f, 4, 7);
    for (int i = 1; i <= 2; i++) {
        CHECK_STATUS(ms_shape_plans_find(f.w.plans, input_of(&s, 4, 72, 7), &plan), MS_E_INTERRUPTED);
        CHECK(plan == NULL && f.who.n_shapes == i);
    }
    close_fixture(&f);
}

/* With more inputs than are remembered, plans are forgotten and made again; those in use stay alive. */
TEST(many_inputs) {
    fixture f = {0};
    sizes s;
    open_fixture(&f, 4, 7);
    ms_plan *held = NULL;
    CHECK_STATUS(ms_shape_plans_find(f.w.plans, input_of(&s, 4, 72, 7), &held), MS_OK);
    for (int64_t i = 1; i <= 3000; i++) CHECK(plan_for_input(&f.w, 1 + i % 2, 1 + i % 60, i % 7) == f.w.base);
    CHECK_EQ_INT(summary_of(held).batch, 4);
    ms_plan_destroy(held);
    close_fixture(&f);
    fixture wide = {0};
    open_fixture(&wide, 400000, 2000);
    for (int64_t i = 1; i <= 1500; i++) CHECK(plan_for_input(&wide.w, 2, 64 + i, 3501 - i) == wide.w.base);
    CHECK_EQ_INT(wide.who.n_shapes, 0);
    close_fixture(&wide);
}

TEST(what_is_refused) {
    sizes s;
    ms_profile *profile = shaped_profile((ms__shape){2, 64}, NOTHING_ODD), *units = equal_profile();
    ms_plan_request request = step_request(profile, INT64_MAX / 8), plain = request_of(units, 4000 * KB, 0);
    ms_plan *plan = plan_of(&request), *other = plan_of(&plain), *none = NULL;
    ms_shape_plans *plans = NULL;
    const ms_shape_plans_options good = {
        .struct_bytes = sizeof good, .request = &request, .plan = plan, .input = input_of(&s, 2, 64, 7)};
    ms_shape_plans_options bad = good;
    CHECK_STATUS(ms_shape_plans_create(NULL, &plans), MS_E_INVALID);
    CHECK_STATUS(ms_shape_plans_create(&good, NULL), MS_E_INVALID);
    bad.request = NULL;
    CHECK_STATUS(ms_shape_plans_create(&bad, &plans), MS_E_INVALID);
    bad = good;
    bad.plan = NULL;
    CHECK_STATUS(ms_shape_plans_create(&bad, &plans), MS_E_INVALID);
    bad.plan = other;
    CHECK_STATUS(ms_shape_plans_create(&bad, &plans), MS_E_MISMATCH);
    CHECK(plans == NULL);
    CHECK_STATUS(ms_shape_plans_create(&good, &plans), MS_OK);
    static const int64_t cut[] = {2, 4}, negative[] = {-1};
    ms_input input = {.struct_bytes = sizeof input, .sizes = cut, .n_sizes = 2};
    CHECK_STATUS(ms_shape_plans_find(plans, &input, &none), MS_E_INVALID);
    input = (ms_input){.struct_bytes = sizeof input, .sizes = negative, .n_sizes = 1};
    CHECK_STATUS(ms_shape_plans_find(plans, &input, &none), MS_E_INVALID);
    input = (ms_input){.struct_bytes = sizeof input, .n_sizes = 1};
    CHECK_STATUS(ms_shape_plans_find(plans, &input, &none), MS_E_INVALID);
    CHECK_STATUS(ms_shape_plans_find(plans, NULL, &none), MS_E_INVALID);
    CHECK_STATUS(ms_shape_plans_find(plans, good.input, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_shape_plans_find(NULL, good.input, &none), MS_E_INVALID);
    CHECK(none == NULL);
    ms_shape_plans_destroy(plans);
    ms_shape_plans_destroy(NULL);
    ms_plan_destroy(plan);
    ms_plan_destroy(other);
    ms_profile_destroy(profile);
    ms_profile_destroy(units);
}

SUITE(shape_plans, CASE(sizes_are_learned_once), CASE(plans_from_a_fit_are_exact), CASE(a_bound_settles_easy_cases),
      CASE(plans_are_shared), CASE(sizes_that_cannot_be_learned), CASE(analyses_take_little_of_the_time),
      CASE(inputs_that_differ_in_more), CASE(plans_that_learn_together), CASE(a_source_that_stops), CASE(many_inputs),
      CASE(what_is_refused));
