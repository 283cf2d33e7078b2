/* steps.c - the scripts of steps.h. */
#include "steps.h"

#include <string.h>

void say(script *s, int64_t kind, int64_t a, int64_t b) {
    CHECK(s->n_events < SCRIPT_ITEMS);
    s->events[s->n_events++] = (ms_trace_event){kind, a, b};
}

void in_phase(script *s, int64_t phase) {
    in_unit(s, -1);
    say(s, MS_TRACE_PHASE, phase, 0);
}

void in_unit(script *s, int64_t unit) { say(s, MS_TRACE_UNIT, unit, 0); }

void repeating(script *s, int64_t unit) { say(s, MS_TRACE_RECOMPUTE, unit, 0); }

void compute(script *s, const char *name) {
    s->names[s->n_ops] = name;
    s->ops[s->n_ops] = (ms_trace_op){.name = s->n_ops, .first = s->n_operands};
    say(s, MS_TRACE_OP, s->n_ops++, 0);
}

static void operand(script *s, int64_t rows, int64_t columns) {
    CHECK(s->n_operands < SCRIPT_ITEMS && s->n_ops > 0);
    s->operands[s->n_operands++] =
        (ms_trace_operand){.element_bytes = 4, .n_dims = 2, .dims = {rows, columns, 1, 1, 1, 1}};
}

void input(script *s, int64_t rows, int64_t columns) {
    operand(s, rows, columns);
    s->ops[s->n_ops - 1].n_inputs++;
}

void output(script *s, int64_t rows, int64_t columns) {
    operand(s, rows, columns);
    s->ops[s->n_ops - 1].n_outputs++;
}

int64_t take_as(script *s, int64_t category, int64_t n_bytes) {
    s->kinds[s->n_storages] = category;
    say(s, MS_TRACE_ALLOC, s->n_storages, n_bytes);
    return s->n_storages++;
}

int64_t take(script *s, int64_t n_bytes) { return take_as(s, MS_CATEGORY_ACTIVATION, n_bytes); }

void give(script *s, int64_t storage) { say(s, MS_TRACE_FREE, storage, 0); }

void save(script *s, int64_t storage, int64_t number) { say(s, MS_TRACE_SAVE, storage, number); }

ms_trace trace_of(const script *s) {
    return (ms_trace){.struct_bytes = sizeof(ms_trace),
                      .events = s->events,
                      .n_events = s->n_events,
                      .ops = s->ops,
                      .n_ops = s->n_ops,
                      .operands = s->operands,
                      .n_operands = s->n_operands,
                      .names = s->names,
                      .n_names = s->n_ops,
                      .kinds = s->kinds,
                      .n_storages = s->n_storages};
}

/* The forward of a unit, also when it is recomputed: what it saves for backward, and its result. */
static void run_unit(script *s, int64_t *saved, int64_t *result) {
    compute(s, "aten.relu.default");
    *saved = take(s, 4096);
    *result = take(s, 2048);
}

static void forward(script *s, bool recomputed, int64_t saved[2], int64_t results[2]) {
    in_phase(s, MS_PHASE_FORWARD);
    for (int64_t unit = 0; unit < 2; unit++) {
        in_unit(s, unit);
        run_unit(s, &saved[unit], &results[unit]);
        if (recomputed) give(s, saved[unit]);
    }
}

static void backward_of(script *s, int64_t unit, bool recomputed, int64_t saved[2]) {
    int64_t again;
    in_unit(s, unit);
    if (recomputed) {
        repeating(s, unit);
        run_unit(s, &saved[unit], &again);
        give(s, again);
        repeating(s, -1);
    }
    compute(s, "aten.threshold_backward.default");
}

static void backward(script *s, bool recomputed, int64_t saved[2], const int64_t results[2], int64_t loss) {
    in_phase(s, MS_PHASE_BACKWARD);
    compute(s, "aten.ones_like.default");
    int64_t last = take(s, 2048);
    give(s, loss);
    give(s, results[1]);
    backward_of(s, 1, recomputed, saved);
    (void)take_as(s, MS_CATEGORY_GRADIENT, 1024);
    int64_t next = take(s, 2048);
    give(s, last);
    give(s, saved[1]);
    give(s, results[0]);
    backward_of(s, 0, recomputed, saved);
    (void)take_as(s, MS_CATEGORY_GRADIENT, 1024);
    give(s, next);
    give(s, saved[0]);
}

void two_units(script *s, bool recomputed) {
    int64_t saved[2], results[2];
    *s = (script){0};
    for (int i = 0; i < 2; i++) (void)take_as(s, MS_CATEGORY_PARAMETER, 1024);
    (void)take_as(s, MS_CATEGORY_INPUT, 512);
    forward(s, recomputed, saved, results);
    in_phase(s, MS_PHASE_LOSS);
    compute(s, "aten.mse_loss.default");
    int64_t loss = take(s, 512);
    backward(s, recomputed, saved, results, loss);
    in_phase(s, MS_PHASE_OPTIMIZER_FIRST);
    compute(s, "aten.zeros_like.default");
    for (int i = 0; i < 2; i++) (void)take_as(s, MS_CATEGORY_OPTIMIZER, 2048);
    give(s, take_as(s, MS_CATEGORY_OPTIMIZER, 1024));
    in_phase(s, MS_PHASE_OPTIMIZER);
    compute(s, "aten.addcdiv_.default");
    give(s, take_as(s, MS_CATEGORY_OPTIMIZER, 1024));
    in_phase(s, MS_PHASE_END);
}

void two_watched_units(script *s) {
    script silent;
    int64_t repeated = -1, n_saves = 0;
    two_units(&silent, true);
    *s = silent;
    s->n_events = 0;
    for (int64_t i = 0; i < silent.n_events; i++) {
        ms_trace_event event = silent.events[i];
        if (event.kind == MS_TRACE_RECOMPUTE) repeated = event.a;
        say(s, event.kind, event.a, event.b);
        if (event.kind == MS_TRACE_ALLOC && event.b == 4096) save(s, event.a, repeated < 0 ? n_saves++ : repeated);
    }
}

static ms_profile_request request_of(const ms_trace *plain, const ms_trace *recomputed) {
    static const char *const names[] = {"layers.0", "layers.1"};
    static const int64_t sizes[] = {1024, 1024};
    return (ms_profile_request){.struct_bytes = sizeof(ms_profile_request),
                                .unit_names = names,
                                .unit_param_bytes = sizes,
                                .n_units = 2,
                                .plain = plain,
                                .recomputed = recomputed,
                                .batch = 4,
                                .length = 128};
}

ms_status try_profile(const script *kept, const script *recomputed, ms_profile **out) {
    ms_trace first = trace_of(kept), second = recomputed == NULL ? (ms_trace){0} : trace_of(recomputed);
    ms_profile_request request = request_of(&first, recomputed == NULL ? NULL : &second);
    return ms_profile_from_traces(&request, out);
}

ms_status try_watched_profile(const ms_trace *watched, const ms_trace *plain, ms_profile **out) {
    ms_profile_request request = request_of(plain, watched);
    return ms_profile_from_watched_trace(&request, out);
}

ms_profile *profile_of_scripts(const script *kept, const script *recomputed) {
    ms_profile *profile = NULL;
    CHECK_STATUS(try_profile(kept, recomputed, &profile), MS_OK);
    return profile;
}

ms_profile *two_unit_profile(void) {
    script kept, recomputed;
    two_units(&kept, false);
    two_watched_units(&recomputed);
    return profile_of_scripts(&kept, &recomputed);
}

#define CHECK_SAME_ARRAY(a, b, field)                                                                                  \
    do {                                                                                                               \
        CHECK_EQ_INT((a)->n_##field, (b)->n_##field);                                                                  \
        CHECK(memcmp((a)->field, (b)->field, (a)->n_##field * sizeof *(a)->field) == 0);                               \
    } while (0)

void check_same_step(const ms__step *a, const ms__step *b) {
    CHECK_SAME_ARRAY(a, b, numbers);
    CHECK_SAME_ARRAY(a, b, keys);
    CHECK_SAME_ARRAY(a, b, events);
    CHECK_SAME_ARRAY(a, b, costs);
    CHECK_SAME_ARRAY(a, b, scratches);
    CHECK_SAME_ARRAY(a, b, segments);
    CHECK_SAME_ARRAY(a, b, split_keys);
    CHECK_EQ_INT(a->n_units, b->n_units);
    CHECK_EQ_INT(a->has_recomputed, b->has_recomputed);
    CHECK_EQ_INT(a->batch, b->batch);
    CHECK_EQ_INT(a->length, b->length);
    CHECK_EQ_INT(a->denominator, b->denominator);
    CHECK((a->coefficients == NULL) == (b->coefficients == NULL));
    if (a->coefficients != NULL)
        CHECK(memcmp(a->coefficients, b->coefficients, a->n_numbers * MS__N_TERMS * sizeof *a->coefficients) == 0);
}
