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

static ms_profile *fitted_profile(void) {
    static const ms__shape shapes[] = {{2, 64}, {4, 64}, {2, 96}, {4, 96}, {2, 45}, {4, 45}, {3, 70}};
    ms_profile *profile = NULL;
    CHECK_STATUS(try_fit(shapes, 7, NOTHING_ODD, &profile), MS_OK);
    return profile;
}

static int64_t plain_peak_of(const ms_profile *profile) {
    ms_plan_request request = step_request(profile, INT64_MAX / 8);
    ms_plan *plan = plan_of(&request);
    int64_t peak = summary_of(plan).baseline_peak_bytes;
    ms_plan_destroy(plan);
    return peak;
}

static int64_t plain_peak_at(const ms_profile *profile, int64_t batch, int64_t length) {
    ms_profile *other = NULL;
    CHECK_STATUS(ms_profile_reshape(profile, batch, length, &other), MS_OK);
    int64_t peak = plain_peak_of(other);
    ms_profile_destroy(other);
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
    ms_profile *alone, *shapes; /* NULL: cannot be analysed */
} asked;

static ms_status answer(void *user, int32_t all_shapes, ms_profile **out) {
    asked *a = user;
    *(all_shapes ? &a->n_shapes : &a->n_alone) += 1;
    *out = ms_profile_share(all_shapes ? a->shapes : a->alone);
    if (a->status != MS_OK) return a->status;
    return *out == NULL ? MS_E_UNAVAILABLE : MS_OK;
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

/* Up to 4 x 64 no unit is changed; beyond, some are. */
TEST(shapes_of_a_fitted_profile) {
    sizes s;
    ms_profile *profile = fitted_profile();
    ms_plan_request request = step_request(profile, plain_peak_at(profile, 4, 64));
    watched w = watch(&request, input_of(&s, 2, 64, 7), NULL);
    CHECK_EQ_INT(summary_of(w.base).n_changed, 0);
    CHECK(plan_for_input(&w, 2, 64, 7) == w.base && plan_for_input(&w, 1, 3, 7) == w.base);
    CHECK(plan_for_input(&w, 4, 64, 7) == w.base);
    const ms_plan *larger = plan_for_input(&w, 4, 72, 7);
    CHECK(larger != w.base && summary_of(larger).n_changed > 0);
    CHECK(summary_of(larger).predicted_peak_bytes <= request.budget_bytes);
    CHECK_EQ_INT(summary_of(larger).batch, 4);
    CHECK(plan_for_input(&w, 4, 72, 7) == larger);
    CHECK(plan_for_input(&w, 4, 71, 7) == larger); /* of the same bucket */
    ms_plan *none = NULL;
    CHECK_STATUS(ms_shape_plans_find(w.plans, input_of(&s, 4000, 512, 7), &none), MS_E_BUDGET);
    CHECK(none == NULL && plan_for_input(&w, 2, 64, 7) == w.base);
    unwatch(&w);
    ms_profile_destroy(profile);
}

/* A plan outlives the ms_shape_plans it came from, and what the request borrowed can be freed at once. */
TEST(plans_are_shared) {
    sizes s;
    ms_profile *profile = fitted_profile();
    ms_rates own_rates = rates;
    ms_device own_device = {.struct_bytes = sizeof own_device, .rates = &own_rates, .kind = MS_DEVICE_HOST};
    uint8_t may_change[] = {1, 1};
    ms_plan_request request = step_request(profile, plain_peak_at(profile, 4, 64));
    request.device = &own_device;
    request.may_change = may_change;
    watched w = watch(&request, input_of(&s, 2, 64, 7), NULL);
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

/* With a profile of one shape, one of several shapes is requested once, and is used for every other shape. */
TEST(shapes_are_learned_once) {
    sizes s;
    ms_profile *one = shaped_profile((ms__shape){2, 64}, NOTHING_ODD);
    asked who = {.shapes = fitted_profile()};
    ms_plan_request request = step_request(one, plain_peak_at(who.shapes, 4, 64));
    watched w = watch(&request, input_of(&s, 2, 64, 7), &who);
    CHECK(plan_for_input(&w, 2, 60, 7) == w.base); /* smaller: no profile is requested */
    CHECK_EQ_INT(who.n_shapes, 0);
    const ms_plan *larger = plan_for_input(&w, 4, 72, 7);
    CHECK(larger != w.base && summary_of(larger).n_changed > 0);
    CHECK(plan_for_input(&w, 3, 64, 7) == w.base && plan_for_input(&w, 5, 64, 7) != w.base);
    CHECK(who.n_shapes == 1 && who.n_alone == 0);
    ms_profile *known = ms_shape_plans_get_profile(w.plans), *other = NULL;
    CHECK_STATUS(ms_profile_reshape(known, 9, 64, &other), MS_OK);
    CHECK(ms_shape_plans_get_profile(NULL) == NULL);
    ms_profile_destroy(other);
    ms_profile_destroy(known);
    unwatch(&w);
    ms_profile_destroy(who.shapes);
    ms_profile_destroy(one);
}

/* If the source has no profile of several shapes, one of the shape itself is used; without that, the first plan. */
TEST(shapes_that_cannot_be_learned) {
    sizes s;
    ms_profile *one = shaped_profile((ms__shape){2, 64}, NOTHING_ODD);
    asked who = {.alone = shaped_profile((ms__shape){4, 72}, NOTHING_ODD)};
    ms_plan_request request = step_request(one, plain_peak_of(who.alone) - 1);
    watched w = watch(&request, input_of(&s, 2, 64, 7), &who);
    const ms_plan *larger = plan_for_input(&w, 4, 72, 7);
    CHECK(larger != w.base && summary_of(larger).n_changed > 0);
    CHECK(plan_for_input(&w, 4, 72, 7) == larger);
    CHECK(who.n_shapes == 1 && who.n_alone == 1);
    ms_profile_destroy(who.alone);
    who.alone = NULL;
    CHECK(plan_for_input(&w, 5, 72, 7) == w.base);
    CHECK(who.n_shapes == 1 && who.n_alone == 2);
    unwatch(&w);
    ms_profile_destroy(one);
}

/* If other dimensions than batch and length differ, an input gets the plan of a larger known input, or a profile. */
TEST(inputs_that_differ_in_more) {
    sizes s;
    ms_profile *profile = fitted_profile();
    asked who = {.alone = shaped_profile((ms__shape){4, 72}, NOTHING_ODD)};
    ms_plan_request request = step_request(profile, plain_peak_of(who.alone) - 1);
    watched w = watch(&request, input_of(&s, 2, 64, 8), &who);
    CHECK(plan_for_input(&w, 2, 64, 5) == w.base && plan_for_input(&w, 1, 30, 8) == w.base);
    CHECK_EQ_INT(who.n_alone, 0);
    const ms_plan *larger = plan_for_input(&w, 2, 64, 16);
    CHECK(larger != w.base && who.n_alone == 1);
    CHECK(plan_for_input(&w, 2, 64, 16) == larger && plan_for_input(&w, 2, 63, 15) == larger);
    CHECK_EQ_INT(who.n_alone, 1);
    /* An input with another number of tensors or dimensions is a different input. */
    const int64_t fewer[] = {2, 2, 64};
    ms_input input = {.struct_bytes = sizeof input, .sizes = fewer, .n_sizes = 3, .batch = 2, .length = 64};
    ms_plan *plan = NULL;
    CHECK_STATUS(ms_shape_plans_find(w.plans, &input, &plan), MS_OK);
    CHECK_EQ_INT(who.n_alone, 2);
    ms_plan_destroy(plan);
    unwatch(&w);
    ms_profile_destroy(who.alone);
    ms_profile_destroy(profile);
}

/* The source may stop the call. Nothing is remembered, and the next call asks again. */
TEST(a_source_that_stops) {
    sizes s;
    ms_profile *profile = fitted_profile();
    asked who = {.status = MS_E_INTERRUPTED};
    ms_plan_request request = step_request(profile, INT64_MAX / 8);
    watched w = watch(&request, input_of(&s, 2, 64, 8), &who);
    ms_plan *plan = NULL;
    for (int i = 1; i <= 2; i++) {
        CHECK_STATUS(ms_shape_plans_find(w.plans, input_of(&s, 2, 64, 9), &plan), MS_E_INTERRUPTED);
        CHECK(plan == NULL && who.n_alone == i);
    }
    unwatch(&w);
    ms_profile_destroy(profile);
}

/* With more inputs than are remembered, plans are forgotten and made again; those in use stay alive. */
TEST(many_inputs) {
    sizes s;
    ms_profile *profile = fitted_profile();
    ms_plan_request request = step_request(profile, plain_peak_at(profile, 4, 64));
    watched w = watch(&request, input_of(&s, 2, 64, 7), NULL);
    ms_plan *held = NULL;
    CHECK_STATUS(ms_shape_plans_find(w.plans, input_of(&s, 4, 72, 7), &held), MS_OK);
    for (int64_t i = 1; i <= 3000; i++) CHECK(plan_for_input(&w, 1 + i % 2, 1 + i % 60, i % 7) == w.base);
    CHECK_EQ_INT(summary_of(held).batch, 4);
    ms_plan_destroy(held);
    unwatch(&w);
    ms_profile_destroy(profile);
}

TEST(what_is_refused) {
    sizes s;
    ms_profile *profile = fitted_profile(), *units = equal_profile();
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

SUITE(shape_plans, CASE(shapes_of_a_fitted_profile), CASE(plans_are_shared), CASE(shapes_are_learned_once),
      CASE(shapes_that_cannot_be_learned), CASE(inputs_that_differ_in_more), CASE(a_source_that_stops),
      CASE(many_inputs), CASE(what_is_refused));
