/* test_step.c - from traces to a step: what both variants share, the totals of units, and what is refused.
 *
 * What is refused is the small model of steps.h with one thing changed, so that nothing else can be the cause.
 */
#include "steps.h"

#include <string.h>

static script kept, recomputed;

static const ms__step *step_now(ms_profile **out) {
    two_units(&kept, false);
    two_units(&recomputed, true);
    *out = profile_of_scripts(&kept, &recomputed);
    return (*out)->step;
}

/* ---- What is made ---- */

static void check_segment(const ms__step *step, uint32_t index, int32_t unit, uint32_t phase, uint32_t n_kept,
                          uint32_t n_recomputed) {
    const ms__segment *s = &step->segments[index];
    CHECK_EQ_INT(s->unit, unit);
    CHECK_EQ_INT(s->phase, phase);
    CHECK_EQ_INT(s->n[MS__PLAIN], n_kept);
    CHECK_EQ_INT(s->n[MS__RECOMPUTED], n_recomputed);
}

TEST(segments_of_both_variants) {
    ms_profile *profile;
    const ms__step *step = step_now(&profile);
    CHECK_EQ_INT(step->n_segments, 9);
    check_segment(step, 0, -1, MS_PHASE_SETUP, 3, 3);
    check_segment(step, 1, 0, MS_PHASE_FORWARD, 3, 4);
    check_segment(step, 2, 1, MS_PHASE_FORWARD, 3, 4);
    check_segment(step, 3, -1, MS_PHASE_LOSS, 2, 2);
    check_segment(step, 4, -1, MS_PHASE_BACKWARD, 4, 4);
    check_segment(step, 5, 1, MS_PHASE_BACKWARD, 6, 10);
    check_segment(step, 6, 0, MS_PHASE_BACKWARD, 4, 8);
    check_segment(step, 7, -1, MS_PHASE_OPTIMIZER_FIRST, 5, 5);
    check_segment(step, 8, -1, MS_PHASE_OPTIMIZER, 3, 3);
    CHECK_EQ_INT(step->n_events, 33 + 43);
    CHECK_EQ_INT(step->n_units, 2);
    CHECK_EQ_INT(step->batch, 4);
    CHECK_EQ_INT(step->length, 128);
    CHECK(step->has_recomputed);
    ms_profile_destroy(profile);
}

static const ms__step_event *event_of(const ms__step *step, uint32_t segment, int variant, uint32_t index) {
    return &step->events[step->segments[segment].first[variant] + index];
}

static void check_event(const ms__step *step, uint32_t segment, int variant, uint32_t at, uint32_t kind, uint32_t key) {
    const ms__step_event *event = event_of(step, segment, variant, at);
    CHECK_EQ_INT(event->kind, kind);
    CHECK_EQ_INT(event->index, key);
}

/* Keys of the small model: 0 to 2 start, 3 and 4 made by unit 0, 5 and 6 by unit 1, 7 the loss, 8 its gradient, 9 and
 * 10 recomputed by unit 1, 11 the gradient of its parameter, 12 of its input, 13 to 15 unit 0, 16 to 19 optimizer. */
TEST(keys_are_common_to_both_variants) {
    ms_profile *profile;
    const ms__step *step = step_now(&profile);
    CHECK_EQ_INT(step->n_keys, 20);
    for (int v = 0; v <= MS__RECOMPUTED; v++) {
        for (uint32_t i = 0; i < 3; i++) check_event(step, 0, v, i, MS__ALLOCATE, i);
        CHECK_EQ_INT(event_of(step, 1, v, 0)->kind, MS__OPERATION);
        check_event(step, 1, v, 1, MS__ALLOCATE, 3);
        check_event(step, 1, v, 2, MS__ALLOCATE, 4);
        check_event(step, 4, v, 2, MS__RELEASE, 7);
        check_event(step, 4, v, 3, MS__RELEASE, 6);
        check_event(step, 5, v, v == MS__PLAIN ? 1 : 5, MS__ALLOCATE, 11);
        check_event(step, 8, v, 2, MS__RELEASE, 19);
    }
    check_event(step, 1, MS__RECOMPUTED, 3, MS__RELEASE, 3);
    check_event(step, 5, MS__RECOMPUTED, 1, MS__ALLOCATE, 9);
    check_event(step, 5, MS__RECOMPUTED, 2, MS__ALLOCATE, 10);
    check_event(step, 5, MS__RECOMPUTED, 3, MS__RELEASE, 10);
    check_event(step, 5, MS__PLAIN, 4, MS__RELEASE, 5);
    check_event(step, 5, MS__RECOMPUTED, 8, MS__RELEASE, 9); /* the recomputed tensor, in its place */
    ms_profile_destroy(profile);
}

TEST(keys_that_end_elsewhere_are_loose) {
    ms_profile *profile;
    const ms__step *step = step_now(&profile);
    CHECK_EQ_INT(step->n_split_keys, 2);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_EQ_INT(step->split_keys[i].key, i == 0 ? 3 : 5);
        CHECK_EQ_INT(step->split_keys[i].segment[MS__PLAIN], i == 0 ? 6 : 5);
        CHECK_EQ_INT(step->split_keys[i].segment[MS__RECOMPUTED], i == 0 ? 1 : 2);
        CHECK_EQ_INT(step->keys[step->split_keys[i].key].split, i + 1);
    }
    for (uint32_t k = 0; k < step->n_keys; k++) CHECK(step->keys[k].split == 0 || k == 3 || k == 5);
    ms_profile_destroy(profile);
}

TEST(a_key_that_one_variant_never_releases_is_loose) {
    two_units(&kept, false);
    two_units(&recomputed, true);
    for (int64_t i = 0; i < recomputed.n_events; i++) /* the loss, storage 7 */
        if (recomputed.events[i].kind == MS_TRACE_FREE && recomputed.events[i].a == 7)
            recomputed.events[i].kind = MS_TRACE_UNIT;
    for (int64_t i = 0; i < recomputed.n_events; i++)
        if (recomputed.events[i].kind == MS_TRACE_UNIT && recomputed.events[i].a == 7) recomputed.events[i].a = -1;
    ms_profile *profile = profile_of_scripts(&kept, &recomputed);
    const ms__step *step = profile->step;
    CHECK_EQ_INT(step->n_split_keys, 3);
    CHECK_EQ_INT(step->split_keys[2].key, 7);
    CHECK_EQ_INT(step->split_keys[2].segment[MS__PLAIN], 4);
    CHECK_EQ_INT(step->split_keys[2].segment[MS__RECOMPUTED], -1);
    CHECK_EQ_INT(step->keys[7].category, MS_CATEGORY_ACTIVATION); /* the plain variant decides */
    ms_profile_destroy(profile);
}

TEST(categories) {
    static const uint32_t wanted[] = {
        MS_CATEGORY_PARAMETER,  MS_CATEGORY_PARAMETER,  MS_CATEGORY_INPUT,      MS_CATEGORY_ACTIVATION,
        MS_CATEGORY_ACTIVATION, MS_CATEGORY_ACTIVATION, MS_CATEGORY_ACTIVATION, MS_CATEGORY_ACTIVATION,
        MS_CATEGORY_TEMPORARY,  MS_CATEGORY_TEMPORARY,  MS_CATEGORY_TEMPORARY,  MS_CATEGORY_GRADIENT,
        MS_CATEGORY_TEMPORARY,  MS_CATEGORY_TEMPORARY,  MS_CATEGORY_TEMPORARY,  MS_CATEGORY_GRADIENT,
        MS_CATEGORY_OPTIMIZER,  MS_CATEGORY_OPTIMIZER,  MS_CATEGORY_TEMPORARY,  MS_CATEGORY_TEMPORARY};
    static const int64_t sizes[] = {1024, 1024, 512,  4096, 2048, 4096, 2048, 512,  2048, 4096,
                                    2048, 1024, 2048, 4096, 2048, 1024, 2048, 2048, 1024, 1024};
    ms_profile *profile;
    const ms__step *step = step_now(&profile);
    for (uint32_t k = 0; k < step->n_keys; k++) {
        CHECK_EQ_INT(step->keys[k].category, wanted[k]);
        CHECK_EQ_INT(step->numbers[step->keys[k].size], sizes[k]);
    }
    ms_profile_destroy(profile);
}

/* What is allocated before backward and stays is a buffer; what Python says about parameters, buffers and inputs
 * counts. */
TEST(categories_of_what_stays) {
    script s = {0};
    (void)take_as(&s, MS_CATEGORY_BUFFER, 100);
    in_phase(&s, MS_PHASE_FORWARD);
    (void)take(&s, 200);
    give(&s, take_as(&s, MS_CATEGORY_BUFFER, 300));
    (void)take_as(&s, MS_CATEGORY_GRADIENT, 400); /* allocated in forward: this category is ignored */
    in_phase(&s, MS_PHASE_OPTIMIZER);
    (void)take(&s, 500);
    ms_profile *profile = profile_of_scripts(&s, NULL);
    const ms__step *step = profile->step;
    static const uint32_t wanted[] = {MS_CATEGORY_BUFFER, MS_CATEGORY_BUFFER, MS_CATEGORY_BUFFER, MS_CATEGORY_BUFFER,
                                      MS_CATEGORY_OPTIMIZER};
    CHECK_EQ_INT(step->n_keys, 5);
    for (uint32_t k = 0; k < 5; k++) CHECK_EQ_INT(step->keys[k].category, wanted[k]);
    ms_profile_destroy(profile);
}

TEST(what_it_means_for_the_units) {
    ms_profile *profile;
    (void)step_now(&profile);
    ms_profile_view view = {.struct_bytes = sizeof view};
    CHECK_STATUS(ms_profile_get_view(profile, &view), MS_OK);
    CHECK_EQ_INT(view.n_units, 2);
    CHECK_EQ_STR(view.units[1].name, "layers.1");
    CHECK_EQ_INT(view.units[0].saved_bytes, 4096 + 2048);
    CHECK_EQ_INT(view.units[0].input_bytes, 0);                  /* an input of the step is allocated anyway */
    CHECK_EQ_INT(view.units[1].saved_bytes, 4096 + 2048 + 2048); /* with its input */
    CHECK_EQ_INT(view.units[1].input_bytes, 2048);
    CHECK_EQ_INT(view.units[0].flags, MS_UNIT_ELIGIBLE | MS_UNIT_RUN);
    CHECK_EQ_INT(view.resident_bytes, 2 * 1024 + 2 * 1024 + 2 * 2048);
    CHECK_EQ_INT(view.outside_bytes, 512);
    ms_profile_destroy(profile);
}

TEST(kept_alone) {
    two_units(&kept, false);
    ms_profile *profile = profile_of_scripts(&kept, NULL);
    const ms__step *step = profile->step;
    CHECK(!step->has_recomputed);
    CHECK_EQ_INT(step->n_keys, 16);
    CHECK_EQ_INT(step->n_split_keys, 0);
    CHECK_EQ_INT(step->n_events, 33);
    for (uint32_t i = 0; i < step->n_segments; i++) CHECK_EQ_INT(step->segments[i].n[MS__RECOMPUTED], 0);
    CHECK_EQ_INT(profile->units[0].flags, MS_UNIT_RUN);
    ms_profile_destroy(profile);
}

TEST(a_unit_that_does_not_run) {
    script s = {0};
    in_phase(&s, MS_PHASE_FORWARD);
    in_unit(&s, 1);
    compute(&s, "aten.relu.default");
    ms_profile *profile = profile_of_scripts(&s, &s);
    CHECK_EQ_INT(profile->units[0].flags, MS_UNIT_ELIGIBLE);
    CHECK_EQ_INT(profile->units[1].flags, MS_UNIT_ELIGIBLE | MS_UNIT_RUN);
    CHECK_EQ_INT(profile->step->n_segments, 1);
    ms_profile_destroy(profile);
}

TEST(an_empty_trace) {
    script s = {0};
    ms_profile *profile = profile_of_scripts(&s, &s);
    CHECK_EQ_INT(profile->step->n_segments, 0);
    CHECK_EQ_INT(profile->resident_bytes, 0);
    ms_profile_destroy(profile);
}

/* Equal sizes, costs and scratches are stored once. */
TEST(what_occurs_often_is_there_once) {
    script s = {0};
    in_phase(&s, MS_PHASE_FORWARD);
    for (int i = 0; i < 5; i++) {
        compute(&s, "aten.sum.dim_IntList");
        input(&s, 2048, 1024);
        output(&s, 1, 1024);
        give(&s, take(&s, 4096));
    }
    ms_profile *profile = profile_of_scripts(&s, NULL);
    const ms__step *step = profile->step;
    CHECK_EQ_INT(step->n_costs, 1);
    CHECK_EQ_INT(step->n_scratches, 1);
    CHECK_EQ_INT(step->n_numbers, 5); /* 4096, no flops, bytes; the rule's: 1024, 2048, no, no */
    CHECK_EQ_INT(step->n_keys, 5);
    CHECK_EQ_INT(step->n_events, 20);
    ms_profile_destroy(profile);
}

/* A kernel allocates its scratch after its outputs, even if nothing follows. */
TEST(memory_inside_of_the_last_kernel) {
    script s = {0};
    in_phase(&s, MS_PHASE_FORWARD);
    compute(&s, "aten.sum.dim_IntList");
    input(&s, 2048, 1024);
    output(&s, 1, 1024);
    (void)take(&s, 4096);
    ms_profile *profile = profile_of_scripts(&s, NULL);
    CHECK_EQ_INT(profile->step->n_events, 3);
    check_event(profile->step, 0, MS__PLAIN, 2, MS__SCRATCH, 0);
    CHECK_EQ_INT(profile->step->scratches[0].rule, MS__SCRATCH_REDUCE);
    ms_profile_destroy(profile);
}

static ms_status try_seen(const int64_t *seen, ms_profile **out) {
    script s = {0};
    in_phase(&s, MS_PHASE_FORWARD);
    compute(&s, "aten.sum.dim_IntList"); /* by rule it would take something */
    input(&s, 2048, 1024);
    output(&s, 1, 1024);
    (void)take(&s, 4096);
    (void)take(&s, 512);
    compute(&s, "aten.relu.default");
    (void)take(&s, 1024);
    ms_trace trace = trace_of(&s);
    trace.scratch_bytes = seen;
    const ms_profile_request request = {.struct_bytes = sizeof request, .plain = &trace};
    return ms_profile_from_traces(&request, out);
}

/* What kernels were seen to allocate comes after one result each, and the rest after the last. */
TEST(memory_that_was_seen) {
    const int64_t seen[] = {100, 0, 300, -1, 5, 5};
    ms_profile *profile = NULL;
    CHECK_STATUS(try_seen(seen, &profile), MS_OK);
    const ms__step *step = profile->step;
    static const uint32_t wanted[] = {MS__OPERATION, MS__ALLOCATE, MS__SCRATCH,   MS__ALLOCATE,
                                      MS__SCRATCH,   MS__SCRATCH,  MS__OPERATION, MS__ALLOCATE};
    static const int64_t bytes[] = {100, 0, 300};
    CHECK_EQ_INT(step->n_events, sizeof wanted / sizeof *wanted);
    for (size_t i = 0, k = 0; i < sizeof wanted / sizeof *wanted; i++) {
        CHECK_EQ_INT(step->events[i].kind, wanted[i]);
        if (wanted[i] != MS__SCRATCH) continue;
        const ms__step_scratch *scratch = &step->scratches[step->events[i].index];
        CHECK_EQ_INT(scratch->rule, MS__SCRATCH_BYTES);
        CHECK_EQ_INT(step->numbers[scratch->n[0]], bytes[k]);
        CHECK_EQ_INT(step->numbers[scratch->n[1]], bytes[k++]);
    }
    ms_profile_destroy(profile);
}

TEST(memory_that_cannot_be) {
    ms_profile *profile = NULL;
    for (int i = 0; i < 6; i++) {
        int64_t seen[] = {1, 2, 3, 4, 5, 6};
        seen[i] = INT64_MAX;
        CHECK_STATUS(try_seen(seen, &profile), MS_E_INVALID);
    }
}

/* ---- Traces of different steps ---- */

static void check_refused(ms_status wanted) {
    ms_profile *profile = NULL;
    CHECK_STATUS(try_profile(&kept, &recomputed, &profile), wanted);
    CHECK(profile == NULL);
    CHECK(ms_error_message()[0] != '\0');
}

static void fresh(void) {
    two_units(&kept, false);
    two_units(&recomputed, true);
}

TEST(mismatches) {
    fresh();
    recomputed.names[3] = "aten.silu.default"; /* of a plain operation */
    check_refused(MS_E_MISMATCH);
    fresh();
    compute(&recomputed, "aten.relu.default"); /* one more */
    check_refused(MS_E_MISMATCH);
    fresh();
    compute(&kept, "aten.relu.default");
    check_refused(MS_E_MISMATCH);
    fresh();
    two_units(&kept, true); /* sizes in other places */
    kept.events[0].b = 2048;
    check_refused(MS_E_MISMATCH);
    CHECK(strstr(ms_error_message(), "size") != NULL);
    fresh();
    for (int64_t i = 0; i < recomputed.n_events; i++) /* units run in another order */
        if (recomputed.events[i].kind == MS_TRACE_UNIT && recomputed.events[i].a >= 0) recomputed.events[i].a = 1;
    check_refused(MS_E_MISMATCH);
    fresh();
    for (int64_t i = 0; i < recomputed.n_events; i++) /* so do phases */
        if (recomputed.events[i].kind == MS_TRACE_PHASE && recomputed.events[i].a == MS_PHASE_LOSS)
            recomputed.events[i].a = MS_PHASE_FORWARD;
    check_refused(MS_E_MISMATCH);
}

/* Operations of recomputation alone are never a mismatch. */
TEST(repetitions_may_differ) {
    fresh();
    for (int64_t i = 0, repeated = -1; i < recomputed.n_events; i++) {
        if (recomputed.events[i].kind == MS_TRACE_RECOMPUTE) repeated = recomputed.events[i].a;
        if (recomputed.events[i].kind == MS_TRACE_OP && repeated >= 0)
            recomputed.names[recomputed.events[i].a] = "aten.silu.default";
        if (recomputed.events[i].kind == MS_TRACE_ALLOC && repeated >= 0) recomputed.events[i].b = 1 << 20;
    }
    ms_profile *profile = profile_of_scripts(&kept, &recomputed);
    ms_profile_destroy(profile);
}

/* ---- Malformed traces ---- */

static ms_trace_event *event_at(int64_t kind) {
    for (int64_t i = 0; i < kept.n_events; i++)
        if (kept.events[i].kind == kind) return &kept.events[i];
    test_fail(__FILE__, __LINE__, "no such event");
}

static void check_event_refused(int64_t kind, int64_t a, int64_t b) {
    fresh();
    ms_trace_event *event = event_at(kind);
    event->a = a;
    event->b = b;
    check_refused(MS_E_INVALID);
}

TEST(malformed_events) {
    check_event_refused(MS_TRACE_OP, -1, 0);
    check_event_refused(MS_TRACE_OP, kept.n_ops, 0);
    check_event_refused(MS_TRACE_ALLOC, -1, 0);
    check_event_refused(MS_TRACE_ALLOC, kept.n_storages, 0);
    check_event_refused(MS_TRACE_ALLOC, 0, -1);
    check_event_refused(MS_TRACE_ALLOC, 0, INT64_MAX);
    check_event_refused(MS_TRACE_ALLOC, 1, 1024); /* which is allocated again later */
    check_event_refused(MS_TRACE_FREE, -1, 0);
    check_event_refused(MS_TRACE_FREE, kept.n_storages, 0);
    check_event_refused(MS_TRACE_FREE, kept.n_storages - 1, 0); /* before it is allocated */
    check_event_refused(MS_TRACE_FREE, 0, 2);
    check_event_refused(MS_TRACE_UNIT, -2, 0);
    check_event_refused(MS_TRACE_UNIT, 2, 0);
    check_event_refused(MS_TRACE_PHASE, -1, 0);
    check_event_refused(MS_TRACE_PHASE, MS_N_PHASES, 0);
    check_event_refused(MS_TRACE_PHASE, MS_PHASE_END, 0); /* and then back */
    fresh();
    event_at(MS_TRACE_UNIT)->kind = MS_TRACE_GRADIENT + 1;
    check_refused(MS_E_INVALID);
    const int64_t no_gradients[] = {-1, kept.n_storages, kept.n_storages - 1}; /* the last is allocated later */
    for (int i = 0; i < 3; i++) {
        fresh();
        *event_at(MS_TRACE_UNIT) = (ms_trace_event){MS_TRACE_GRADIENT, no_gradients[i], 0};
        check_refused(MS_E_INVALID);
    }
    fresh();
    event_at(MS_TRACE_UNIT)->kind = -1;
    check_refused(MS_E_INVALID);
    fresh();
    *event_at(MS_TRACE_UNIT) = (ms_trace_event){MS_TRACE_RECOMPUTE, 2, 0};
    check_refused(MS_E_INVALID);
    fresh();
    give(&kept, 0);
    give(&kept, 0); /* twice */
    check_refused(MS_E_INVALID);
}

TEST(malformed_operations) {
    static const int64_t bad[] = {-1, INT64_MAX, INT64_MIN, SCRIPT_ITEMS};
    for (int i = 0; i < 4; i++) {
        fresh();
        kept.ops[1].name = bad[i];
        check_refused(MS_E_INVALID);
        fresh();
        kept.ops[1].first = bad[i];
        check_refused(MS_E_INVALID);
        fresh();
        kept.ops[1].n_inputs = bad[i];
        check_refused(MS_E_INVALID);
        fresh();
        kept.ops[1].n_outputs = bad[i];
        check_refused(MS_E_INVALID);
    }
    fresh();
    kept.names[0] = NULL;
    check_refused(MS_E_INVALID);
}

static void check_operand_refused(int64_t storage, int64_t element_bytes, int64_t n_dims) {
    fresh();
    compute(&kept, "aten.relu.default");
    input(&kept, 1, 1);
    ms_trace_operand *operand = &kept.operands[kept.n_operands - 1];
    operand->storage = storage;
    operand->element_bytes = element_bytes;
    operand->n_dims = n_dims;
    check_refused(MS_E_INVALID);
}

TEST(malformed_operands) {
    check_operand_refused(-2, 4, 2);
    check_operand_refused(kept.n_storages, 4, 2);
    check_operand_refused(0, -1, 2);
    check_operand_refused(0, 65, 2);
    check_operand_refused(0, 4, -1);
}

static const uint32_t result_flags[] = {MS_UNIT_BLOCK, MS_UNIT_RUN};

typedef void change(ms_profile_request *request, ms_trace *trace);

static void check_request_refused(change *apply, ms_status wanted) {
    static const char *const names[] = {"a", "b"};
    static const int64_t sizes[] = {0, 0};
    fresh();
    ms_trace first = trace_of(&kept);
    ms_profile_request request = {
        .struct_bytes = sizeof request, .unit_names = names, .unit_param_bytes = sizes, .n_units = 2, .plain = &first};
    ms_profile *profile = NULL;
    apply(&request, &first);
    CHECK_STATUS(ms_profile_from_traces(&request, &profile), wanted);
    CHECK(profile == NULL);
}

#define CHANGE(name, code)                                                                                             \
    static void name(ms_profile_request *request, ms_trace *trace) {                                                   \
        (void)request;                                                                                                 \
        (void)trace;                                                                                                   \
        code;                                                                                                          \
    }

CHANGE(old_request, request->struct_bytes = 8)
CHANGE(old_trace, trace->struct_bytes = 8)
CHANGE(no_trace, request->plain = NULL)
CHANGE(no_names, request->unit_names = NULL)
CHANGE(no_sizes, request->unit_param_bytes = NULL)
CHANGE(negative_units, request->n_units = -1)
CHANGE(negative_batch, request->batch = -1)
CHANGE(negative_length, request->length = -1)
CHANGE(no_events, trace->events = NULL)
CHANGE(no_ops, trace->ops = NULL)
CHANGE(no_op_names, trace->names = NULL)
CHANGE(no_kinds, trace->kinds = NULL)
CHANGE(no_operands, (trace->operands = NULL, trace->n_operands = 1))
CHANGE(negative_events, trace->n_events = -1)
CHANGE(negative_storages, trace->n_storages = -1)
CHANGE(fewer_units, request->n_units = 1)
CHANGE(flags_of_the_result, request->unit_flags = result_flags)
CHANGE(too_many_events, trace->n_events = (int64_t)MS__STEP_MAX_EVENTS + 1)

TEST(malformed_requests) {
    check_request_refused(old_request, MS_E_INVALID);
    check_request_refused(old_trace, MS_E_INVALID);
    check_request_refused(no_trace, MS_E_INVALID);
    check_request_refused(no_names, MS_E_INVALID);
    check_request_refused(no_sizes, MS_E_INVALID);
    check_request_refused(negative_units, MS_E_INVALID);
    check_request_refused(negative_batch, MS_E_INVALID);
    check_request_refused(negative_length, MS_E_INVALID);
    check_request_refused(no_events, MS_E_INVALID);
    check_request_refused(no_ops, MS_E_INVALID);
    check_request_refused(no_op_names, MS_E_INVALID);
    check_request_refused(no_kinds, MS_E_INVALID);
    check_request_refused(no_operands, MS_E_INVALID);
    check_request_refused(negative_events, MS_E_INVALID);
    check_request_refused(negative_storages, MS_E_INVALID);
    check_request_refused(fewer_units, MS_E_INVALID);
    check_request_refused(flags_of_the_result, MS_E_INVALID);
    check_request_refused(too_many_events, MS_E_LIMIT);
    CHECK_STATUS(ms_profile_from_traces(NULL, NULL), MS_E_INVALID);
}

TEST(requests_are_initialised) {
    ms_trace trace = {.struct_bytes = sizeof trace};
    ms_profile_request request, small = {.struct_bytes = 8};
    memset(&request, 0xA5, sizeof request);
    request.struct_bytes = sizeof request;
    CHECK_STATUS(ms_profile_request_init(NULL, &trace), MS_E_INVALID);
    CHECK_STATUS(ms_profile_request_init(&small, &trace), MS_E_INVALID);
    CHECK_STATUS(ms_profile_request_init(&request, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_profile_request_init(&request, &trace), MS_OK);
    const ms_profile_request wanted = {.struct_bytes = sizeof wanted, .plain = &trace};
    CHECK(memcmp(&request, &wanted, sizeof request) == 0);
}

TEST(blocks_stay_blocks) {
    static const char *const names[] = {"embed", "layers.0"};
    static const int64_t sizes[] = {1024, 1024};
    static const uint32_t flags[] = {0, MS_UNIT_BLOCK};
    fresh();
    ms_trace plain = trace_of(&kept), again = trace_of(&recomputed);
    ms_profile_request request = {.struct_bytes = sizeof request};
    ms_profile_view view = {.struct_bytes = sizeof view};
    ms_profile *profile = NULL, *same = NULL;
    CHECK_STATUS(ms_profile_request_init(&request, &plain), MS_OK);
    request.recomputed = &again;
    request.unit_names = names;
    request.unit_param_bytes = sizes;
    request.n_units = 2;
    request.unit_flags = flags;
    CHECK_STATUS(ms_profile_from_traces(&request, &profile), MS_OK);
    CHECK_STATUS(ms_profile_reshape(profile, 0, 0, &same), MS_OK);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(ms_profile_get_view(i == 0 ? profile : same, &view), MS_OK);
        CHECK_EQ_INT(view.units[0].flags, MS_UNIT_ELIGIBLE | MS_UNIT_RUN);
        CHECK_EQ_INT(view.units[1].flags, MS_UNIT_ELIGIBLE | MS_UNIT_RUN | MS_UNIT_BLOCK);
    }
    ms_profile_destroy(profile);
    ms_profile_destroy(same);
}

/* ---- Sums ---- */

TEST(sums_that_do_not_fit) {
    const int64_t huge = INT64_MAX / 1024; /* the most that a storage may have */
    script s = {0};
    ms_profile *profile = NULL;
    for (int i = 0; i < 127; i++) (void)take_as(&s, MS_CATEGORY_PARAMETER, huge);
    CHECK_STATUS(try_profile(&s, NULL, &profile), MS_OK);
    ms_profile_destroy(profile);
    (void)take_as(&s, MS_CATEGORY_PARAMETER, huge); /* 2^60 less 128, in blocks of 512 more than that */
    profile = NULL;
    CHECK_STATUS(try_profile(&s, NULL, &profile), MS_E_LIMIT);
    CHECK(profile == NULL);
}

TEST(costs_that_do_not_fit) {
    script s = {0};
    ms_profile *profile = NULL;
    (void)take(&s, 512);
    in_phase(&s, MS_PHASE_FORWARD);
    compute(&s, "aten.mm.default");
    input(&s, INT64_C(1) << 20, INT64_C(1) << 19);
    input(&s, INT64_C(1) << 19, INT64_C(1) << 19); /* 2^59 operations */
    CHECK_STATUS(try_profile(&s, NULL, &profile), MS_OK);
    ms_profile_destroy(profile);
    compute(&s, "aten.mm.default");
    input(&s, INT64_C(1) << 20, INT64_C(1) << 19);
    input(&s, INT64_C(1) << 19, INT64_C(1) << 19);
    profile = NULL;
    CHECK_STATUS(try_profile(&s, NULL, &profile), MS_E_LIMIT);
    CHECK(profile == NULL);
}

SUITE(step, CASE(segments_of_both_variants), CASE(keys_are_common_to_both_variants),
      CASE(keys_that_end_elsewhere_are_loose), CASE(a_key_that_one_variant_never_releases_is_loose), CASE(categories),
      CASE(categories_of_what_stays), CASE(what_it_means_for_the_units), CASE(kept_alone),
      CASE(a_unit_that_does_not_run), CASE(an_empty_trace), CASE(what_occurs_often_is_there_once),
      CASE(memory_inside_of_the_last_kernel), CASE(memory_that_was_seen), CASE(memory_that_cannot_be), CASE(mismatches),
      CASE(repetitions_may_differ), CASE(malformed_events), CASE(malformed_operations), CASE(malformed_operands),
      CASE(malformed_requests), CASE(requests_are_initialised), CASE(blocks_stay_blocks), CASE(sums_that_do_not_fit),
      CASE(costs_that_do_not_fit));
