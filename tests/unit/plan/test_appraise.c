/* test_appraise.c - what plans of the small model cost: by its chain, by simulations, and with torch's allocator. */
#include "devices.h"
#include "plan/decide.h"
#include "plans.h"
#include "steps.h"

#define BASELINE 22016
#define STEP_NS 7700
#define OP_NS 1100

static const ms_rates host_rates = SMALL_RATES(0), gpu_rates = SMALL_RATES(90);
static const ms_device host = {.struct_bytes = sizeof(ms_device), .rates = &host_rates, .kind = MS_DEVICE_HOST};
static const ms_device gpu = {
    .struct_bytes = sizeof(ms_device), .rates = &gpu_rates, .n_multiprocessors = 132, .kind = MS_DEVICE_GPU};

/* An open decision about the small model, with its list on the fine grid. */
typedef struct opened {
    ms_profile *profile;
    ms_plan_request request;
    ms__decision decision;
    ms__plan_list list;
} opened;

static void open_decision(opened *o, const ms_device *device, uint32_t simulation) {
    *o = (opened){.profile = two_unit_profile()};
    o->request = request_of(o->profile, 1 << 30, MS_PLAN_FASTEST);
    o->request.device = device;
    o->request.simulation = simulation;
    o->decision.request = &o->request;
    CHECK_STATUS(ms__decision_open(&o->decision), MS_OK);
    const ms__model_choice *model = ms__decision_model(&o->decision, 0);
    o->list = (ms__plan_list){model, &model->chain.grids[MS__GRID_FINE], 0};
}

static void close_decision(opened *o) {
    ms__decision_close(&o->decision);
    ms_profile_destroy(o->profile);
}

TEST(a_model_left_alone_and_recomputed) {
    opened o;
    ms__candidate c;
    open_decision(&o, &host, 0);
    CHECK_EQ_INT(o.decision.baseline.peak_bytes, BASELINE);
    CHECK_EQ_INT(o.decision.baseline_ns, STEP_NS);
    CHECK_STATUS(ms__appraise(&o.decision, &o.list, (const uint8_t[]){0, 0}, INT64_MAX, &c), MS_OK);
    CHECK_EQ_INT(c.needed_bytes, BASELINE);
    CHECK_EQ_INT(c.step_ns, STEP_NS);
    CHECK_STATUS(ms__appraise(&o.decision, &o.list, (const uint8_t[]){1, 0}, INT64_MAX, &c), MS_OK);
    CHECK_EQ_INT(c.needed_bytes, 17920);
    CHECK_EQ_INT(c.step_ns, STEP_NS + OP_NS);
    CHECK_EQ_INT(c.host_bytes, 0);
    o.list.least_ns = 3 * STEP_NS; /* every plan counts as at least this slow */
    CHECK_STATUS(ms__appraise(&o.decision, &o.list, (const uint8_t[]){1, 0}, INT64_MAX, &c), MS_OK);
    CHECK_EQ_INT(c.step_ns, 3 * STEP_NS);
    close_decision(&o);
}

/* Above the limit, the exact value does not matter. */
TEST(more_than_is_asked_for) {
    opened o;
    ms__candidate c;
    open_decision(&o, &host, 0);
    CHECK_STATUS(ms__appraise(&o.decision, &o.list, (const uint8_t[]){1, 0}, 17919, &c), MS_OK);
    CHECK(c.needed_bytes > 17919);
    CHECK_STATUS(ms__appraise(&o.decision, &o.list, (const uint8_t[]){1, 0}, 17920, &c), MS_OK);
    CHECK_EQ_INT(c.needed_bytes, 17920);
    close_decision(&o);
}

TEST(segments_that_grow) {
    opened o;
    ms__candidate c;
    ms__needs fixed, growing;
    const uint8_t choices[] = {1, 0};
    open_decision(&o, &gpu, MS_SIMULATE_ALLOCATOR | MS_SIMULATE_GROWING);
    CHECK(ms__models_allocator(&o.request) && ms__can_grow(&o.request));
    ms__choices_step step = {.model = o.list.model, .choices = choices, .grows = true};
    CHECK_STATUS(ms__choices_needs(&o.decision, &step, INT64_MAX, &growing), MS_OK);
    step.grows = false;
    CHECK_STATUS(ms__choices_needs(&o.decision, &step, INT64_MAX, &fixed), MS_OK);
    CHECK_STATUS(ms__appraise(&o.decision, &o.list, choices, INT64_MAX, &c), MS_OK);
    CHECK(c.grows && c.needed_bytes == growing.needed_bytes && c.peak_bytes == growing.peak_bytes);
    o.request.flags |= MS_PLAN_GROWN; /* then they always do */
    CHECK_STATUS(ms__choices_needs(&o.decision, &step, INT64_MAX, &fixed), MS_OK);
    CHECK_EQ_INT(growing.needed_bytes, fixed.needed_bytes);
    close_decision(&o);
    open_decision(&o, &gpu, MS_SIMULATE_ALLOCATOR);
    CHECK(ms__models_allocator(&o.request) && !ms__can_grow(&o.request));
    close_decision(&o);
    open_decision(&o, &host, MS_SIMULATE_ALLOCATOR | MS_SIMULATE_GROWING); /* the host has no such allocator */
    CHECK(!ms__models_allocator(&o.request) && !ms__can_grow(&o.request));
    close_decision(&o);
}

SUITE(appraise, CASE(a_model_left_alone_and_recomputed), CASE(more_than_is_asked_for), CASE(segments_that_grow));
