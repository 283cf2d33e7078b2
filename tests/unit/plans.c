/* plans.c - the steps of plans.h, written as traces. */
#include "plans.h"

#include <stdlib.h>

#include "common/math.h"
#include "steps.h"

static const ms_rates exact_rates = {.struct_bytes = sizeof(ms_rates), .fp32_gflops = 1, .memory_mb_per_s = 1000};

const ms_device exact_device = {.struct_bytes = sizeof(ms_device), .rates = &exact_rates, .kind = MS_DEVICE_HOST};

/* The storages of a unit. */
typedef struct kept {
    int64_t inputs, rest;
    int64_t surplus; /* of inputs that are larger than what the unit saves: a kept unit frees it at once */
} kept;

/* A step that is being written. */
typedef struct sketch {
    script trace;
    bool recomputed;
} sketch;

/* Write as many bytes as the forward of the unit takes nanoseconds. */
static void work(script *s, const ms_unit *unit) {
    compute(s, "aten.relu.default");
    output(s, unit->saved_bytes + unit->n_rows, 1);
    s->operands[s->n_operands - 1].element_bytes = 1;
}

static void write_unit_forward(sketch *k, const ms_unit *unit, kept *out) {
    script *s = &k->trace;
    int64_t inputs = ms__min(unit->input_bytes, unit->saved_bytes);
    work(s, unit);
    out->inputs = take(s, inputs);
    out->rest = take(s, unit->saved_bytes - inputs);
    out->surplus = take(s, unit->input_bytes - inputs);
    give(s, k->recomputed ? out->rest : out->surplus);
}

static void write_unit_backward(sketch *k, const ms_unit *unit, int64_t index, kept *held) {
    script *s = &k->trace;
    if (k->recomputed) {
        repeating(s, index);
        work(s, unit);
        held->rest = take(s, unit->saved_bytes - ms__min(unit->input_bytes, unit->saved_bytes));
        repeating(s, -1);
    }
    work(s, unit);
    work(s, unit);
    give(s, held->rest);
    give(s, held->inputs);
    if (k->recomputed) give(s, held->surplus);
}

static void write_step(sketch *k, const ms_unit *units, int64_t n_units, int64_t resident_bytes,
                       int64_t outside_bytes) {
    script *s = &k->trace;
    kept *held = calloc((size_t)n_units + 1, sizeof *held);
    CHECK(held != NULL);
    (void)take_as(s, MS_CATEGORY_PARAMETER, resident_bytes);
    in_phase(s, MS_PHASE_FORWARD);
    for (int64_t i = 0; i < n_units; i++) {
        if (!(units[i].flags & MS_UNIT_RUN)) continue;
        in_unit(s, i);
        write_unit_forward(k, &units[i], &held[i]);
    }
    in_phase(s, MS_PHASE_LOSS);
    compute(s, "aten.mse_loss.default");
    int64_t outside = take(s, outside_bytes);
    in_phase(s, MS_PHASE_BACKWARD);
    compute(s, "aten.ones_like.default");
    give(s, outside);
    for (int64_t i = n_units - 1; i >= 0; i--) {
        if (!(units[i].flags & MS_UNIT_RUN)) continue;
        in_unit(s, i);
        write_unit_backward(k, &units[i], i, &held[i]);
    }
    in_phase(s, MS_PHASE_END);
    free(held);
}

static ms_status profile_of_sketches(const sketch sketches[2], const ms_unit *units, int64_t n_units,
                                     ms_profile **out) {
    ms_trace plain = trace_of(&sketches[MS__PLAIN].trace), recomputed = trace_of(&sketches[MS__RECOMPUTED].trace);
    const char **names = calloc((size_t)n_units + 1, sizeof *names);
    int64_t *sizes = calloc((size_t)n_units + 1, sizeof *sizes);
    CHECK(names != NULL && sizes != NULL);
    for (int64_t i = 0; i < n_units; i++) {
        names[i] = units[i].name;
        sizes[i] = units[i].param_bytes;
    }
    ms_profile_request request = {.struct_bytes = sizeof request,
                                  .unit_names = names,
                                  .unit_param_bytes = sizes,
                                  .n_units = n_units,
                                  .plain = &plain,
                                  .recomputed = &recomputed};
    ms_status status = ms_profile_from_traces(&request, out);
    for (int64_t i = 0; i < n_units && status == MS_OK; i++) (*out)->units[i].flags = units[i].flags;
    free(names);
    free(sizes);
    return status;
}

ms_status try_profile_with(const ms_unit *units, int64_t n_units, int64_t resident_bytes, int64_t outside_bytes,
                           ms_profile **out) {
    sketch *sketches = calloc(2, sizeof *sketches);
    CHECK(sketches != NULL);
    for (int v = 0; v < 2; v++) {
        sketches[v].recomputed = v == MS__RECOMPUTED;
        write_step(&sketches[v], units, n_units, resident_bytes, outside_bytes);
    }
    ms_status status = profile_of_sketches(sketches, units, n_units, out);
    free(sketches);
    return status;
}

ms_profile *profile_with(const ms_unit *units, int64_t n_units, int64_t resident_bytes, int64_t outside_bytes) {
    ms_profile *profile = NULL;
    CHECK_STATUS(try_profile_with(units, n_units, resident_bytes, outside_bytes, &profile), MS_OK);
    return profile;
}
