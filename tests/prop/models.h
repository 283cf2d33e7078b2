/* models.h - random models and requests for plans of them.
 *
 * A model is drawn as a list of calls: units of different sizes in the order of their forward, some called again later,
 * some whose result a much later call still needs, with tensors between them. It is then written as a trace with plain
 * units and as one with recomputed units, in full and in half precision. Other models are drawn as a chain of units
 * that have sizes only (plans.h), some of which may not be recomputed. Numbers are drawn one statement at a time,
 * because C does not define the order within an initializer.
 */
#ifndef TESTS_MODELS_H
#define TESTS_MODELS_H

#include <stdio.h>
#include <string.h>

#include "devices.h"
#include "plans.h"
#include "profile/profile.h"
#include "random.h"
#include "steps.h"

#define MAX_UNITS 8
#define MAX_CALLS 12
#define MAX_SAVED 4

/* One call of a unit. */
typedef struct call {
    int64_t unit;
    int64_t saved[MAX_SAVED], n_saved;
    int64_t result, between, working, gradient; /* bytes; between: of a tensor allocated after it */
    int64_t user;                               /* the call that needs the result in its backward */
    bool between_stays;                         /* until backward */
} call;

typedef struct model {
    call calls[MAX_CALLS];
    int64_t n_calls, n_units, scale;
    int64_t params[MAX_UNITS];
    int64_t input, loss;
    bool knows_recomputed, has_optimizer, has_marks; /* marks: of functions whose results may be kept */
} model;

/* Storages of a trace that is being written. */
typedef struct storages {
    int64_t saved[MAX_CALLS][MAX_SAVED], result[MAX_CALLS], between[MAX_CALLS];
} storages;

static const char *const unit_names[MAX_UNITS] = {"u0", "u1", "u2", "u3", "u4", "u5", "u6", "u7"};

/* ---- Drawing ---- */

static inline int64_t some_bytes(const model *m) { return (one_in(8) ? up_to(2) : up_to(64)) * m->scale; }

static inline call random_call(const model *m, int64_t unit) {
    call c = {.unit = unit, .n_saved = up_to(MAX_SAVED)};
    for (int64_t i = 0; i < c.n_saved; i++) c.saved[i] = some_bytes(m);
    c.result = some_bytes(m) / 2;
    c.between = one_in(3) ? some_bytes(m) / 2 : 0;
    c.between_stays = one_in(2);
    c.working = one_in(2) ? some_bytes(m) : 0;
    c.gradient = some_bytes(m) / 2;
    return c;
}

static inline void random_model(model *m) {
    static const int64_t scales[] = {1, 24, 512, 4096, 1 << 16, 1 << 20};
    memset(m, 0, sizeof *m);
    m->scale = scales[up_to(5)];
    m->n_units = one_in(20) ? 0 : 1 + up_to(MAX_UNITS - 1);
    int64_t n_kinds = one_in(3) ? 2 : MAX_UNITS; /* equal layers, as in real models: plans of equal time */
    call kinds[MAX_UNITS];
    for (int64_t k = 0; k < n_kinds; k++) kinds[k] = random_call(m, 0);
    for (int64_t u = 0; u < m->n_units; u++) {
        m->params[u] = one_in(4) ? 0 : some_bytes(m);
        if (one_in(12)) continue; /* it does not run */
        m->calls[m->n_calls] = kinds[u % n_kinds];
        m->calls[m->n_calls++].unit = u;
        if (one_in(8) && m->n_calls < MAX_CALLS - m->n_units) {
            m->calls[m->n_calls] = random_call(m, up_to(u)); /* again, a unit that may have run or not */
            m->n_calls++;
        }
    }
    for (int64_t c = 0; c < m->n_calls; c++) {
        int64_t behind = m->n_calls - 1 - c;
        m->calls[c].user = behind == 0 ? c : one_in(4) ? c + 1 + up_to(behind - 1) : one_in(8) ? c : c + 1;
    }
    m->input = some_bytes(m);
    m->loss = some_bytes(m);
    if (one_in(2)) m->loss /= 16;
    m->knows_recomputed = !one_in(12);
    m->has_optimizer = !one_in(6);
    m->has_marks = !one_in(4);
}

/* ---- Writing ---- */

typedef struct writer {
    const model *m;
    script *s;
    storages at;
    bool recomputed;
    int64_t divisor; /* of sizes: 2 where the step is in half precision */
} writer;

static inline int64_t sized(const writer *w, int64_t n_bytes) { return n_bytes / w->divisor; }

enum { SOME_PRODUCT, SOME_ACTIVATION, SOME_ATTENTION, SOME_SUM };

static inline void compute_some(writer *w, int64_t kind, int64_t n_bytes) {
    static const char *const names[] = {"aten.mm.default", "aten.gelu.default",
                                        "aten._scaled_dot_product_flash_attention.default", "aten.mul.Tensor"};
    int64_t columns = n_bytes / 64 % 4096 + 1;
    compute(w->s, names[kind % 4]);
    input(w->s, 16, columns);
    input(w->s, columns, 16);
    output(w->s, 16, 16);
}

/* An operation and its result, as a function if it is one whose result may be kept. */
static inline int64_t make_some(writer *w, int64_t kind, int64_t n_bytes) {
    bool is_product = kind % 4 == SOME_PRODUCT;
    bool is_function = w->m->has_marks && (is_product || kind % 4 == SOME_ATTENTION);
    if (is_function) say(w->s, MS_TRACE_FUNCTION, is_product ? MS_KEEP_PRODUCTS : MS_KEEP_ATTENTION, 0);
    compute_some(w, kind, n_bytes);
    int64_t made = take(w->s, sized(w, n_bytes));
    if (is_function) say(w->s, MS_TRACE_FUNCTION, 0, made);
    return made;
}

/* Forward of a call, also when it is recomputed. Returns its result. */
static inline int64_t run_call(writer *w, int64_t index) {
    const call *c = &w->m->calls[index];
    for (int64_t i = 0; i < c->n_saved; i++) w->at.saved[index][i] = make_some(w, index + i, c->saved[i]);
    compute_some(w, SOME_ACTIVATION, c->result);
    if (c->working > 0) give(w->s, take(w->s, sized(w, c->working)));
    return take(w->s, sized(w, c->result));
}

static inline void give_saved(writer *w, int64_t index) {
    for (int64_t i = 0; i < w->m->calls[index].n_saved; i++) give(w->s, w->at.saved[index][i]);
}

static inline void write_forward(writer *w) {
    in_phase(w->s, MS_PHASE_FORWARD);
    for (int64_t i = 0; i < w->m->n_calls; i++) {
        const call *c = &w->m->calls[i];
        in_unit(w->s, c->unit);
        w->at.result[i] = run_call(w, i);
        if (w->recomputed) give_saved(w, i);
        if (c->between == 0) continue;
        in_unit(w->s, -1);
        compute_some(w, SOME_SUM, c->between);
        w->at.between[i] = take(w->s, sized(w, c->between));
        if (!c->between_stays) give(w->s, w->at.between[i]);
    }
}

static inline void give_results_of(writer *w, int64_t user) {
    for (int64_t i = 0; i < w->m->n_calls; i++)
        if (w->m->calls[i].user == user) give(w->s, w->at.result[i]);
}

static inline void write_backward(writer *w) {
    in_phase(w->s, MS_PHASE_BACKWARD);
    int64_t flowing = take(w->s, sized(w, w->m->loss));
    for (int64_t i = w->m->n_calls - 1; i >= 0; i--) {
        const call *c = &w->m->calls[i];
        if (c->between > 0 && c->between_stays) {
            in_unit(w->s, -1);
            give(w->s, w->at.between[i]);
        }
        in_unit(w->s, c->unit);
        if (w->recomputed) {
            repeating(w->s, c->unit);
            give(w->s, run_call(w, i));
            repeating(w->s, -1);
        }
        compute_some(w, SOME_PRODUCT, c->gradient);
        int64_t next = take(w->s, sized(w, c->result));
        if (c->gradient > 0) (void)take_as(w->s, MS_CATEGORY_GRADIENT, sized(w, c->gradient));
        give(w->s, flowing);
        flowing = next;
        give_saved(w, i);
        give_results_of(w, i);
    }
    in_unit(w->s, -1);
    give(w->s, flowing);
}

static inline void write_optimizer(writer *w) {
    for (int64_t phase = MS_PHASE_OPTIMIZER_FIRST; phase <= MS_PHASE_OPTIMIZER; phase++) {
        in_phase(w->s, phase);
        for (int64_t u = 0; u < w->m->n_units && w->m->has_optimizer; u++) {
            int64_t n_bytes = sized(w, w->m->params[u]);
            compute_some(w, SOME_SUM, n_bytes);
            if (phase == MS_PHASE_OPTIMIZER_FIRST) (void)take_as(w->s, MS_CATEGORY_OPTIMIZER, 2 * n_bytes);
            give(w->s, take_as(w->s, MS_CATEGORY_OPTIMIZER, n_bytes));
        }
    }
    in_phase(w->s, MS_PHASE_END);
}

static inline void write_model(const model *m, bool recomputed, int64_t divisor, script *out) {
    writer w = {.m = m, .s = out, .recomputed = recomputed, .divisor = divisor};
    memset(out, 0, sizeof *out);
    for (int64_t u = 0; u < m->n_units; u++) (void)take_as(out, MS_CATEGORY_PARAMETER, sized(&w, m->params[u]));
    (void)take_as(out, MS_CATEGORY_INPUT, m->input);
    write_forward(&w);
    in_phase(out, MS_PHASE_LOSS);
    compute_some(&w, SOME_SUM, m->loss);
    int64_t loss = take(out, sized(&w, m->loss));
    write_backward(&w);
    give(out, loss);
    write_optimizer(&w);
}

/* The model's profile; with a divisor of 2, in half precision. */
static inline ms_profile *profile_of(const model *m, int64_t divisor) {
    static script scripts[2];
    ms_trace traces[2];
    for (int v = 0; v < 2; v++) {
        write_model(m, v == MS__RECOMPUTED, divisor, &scripts[v]);
        traces[v] = trace_of(&scripts[v]);
    }
    ms_profile_request request = {.struct_bytes = sizeof request,
                                  .unit_names = unit_names,
                                  .unit_param_bytes = m->params,
                                  .n_units = m->n_units,
                                  .plain = &traces[MS__PLAIN],
                                  .recomputed = m->knows_recomputed ? &traces[MS__RECOMPUTED] : NULL};
    ms_profile *profile = NULL;
    CHECK_STATUS(ms_profile_from_traces(&request, &profile), MS_OK);
    return profile;
}

/* The profile of as many units with other sizes and flags. */
static inline ms_profile *random_chain(const model *m) {
    static const int64_t rows[] = {0, 1, 32, 2048};
    ms_unit units[MAX_UNITS];
    for (int64_t u = 0; u < m->n_units; u++) {
        ms_unit *unit = &units[u];
        *unit = (ms_unit){.name = unit_names[u], .param_bytes = m->params[u], .saved_bytes = some_bytes(m) * 4};
        unit->input_bytes = one_in(8) ? unit->saved_bytes : up_to(unit->saved_bytes / (one_in(2) ? 1 : 8));
        unit->n_rows = rows[up_to(3)];
        if (!one_in(8)) unit->flags |= MS_UNIT_ELIGIBLE;
        if (!one_in(16)) unit->flags |= MS_UNIT_RUN;
    }
    int64_t resident_bytes = some_bytes(m) * 8, outside_bytes = 0;
    if (!one_in(3)) outside_bytes = some_bytes(m);
    return profile_with(units, m->n_units, resident_bytes, outside_bytes);
}

/* ---- Requests ---- */

typedef struct problem {
    model model;
    ms_profile *profile, *half; /* owned; half may be NULL */
    ms_rates rates;
    ms_device device;
    uint8_t may_change[MAX_UNITS];
    ms_plan_request request; /* without the budget */
} problem;

static inline ms_rates random_rates(void) {
    ms_rates rates = {.struct_bytes = sizeof rates};
    rates.capability = one_in(4) ? 0 : one_in(2) ? 86 : 90;
    rates.fp32_gflops = 1 + up_to(2000);
    rates.memory_mb_per_s = 1 + up_to(one_in(2) ? 100 : 100000);
    rates.launch_ns = up_to(2000);
    rates.dispatch_ns = up_to(5000);
    if (rates.capability == 0 || one_in(4)) return rates;
    rates.to_device_mb_per_s = 1 + up_to(one_in(2) ? 100 : 50000);
    rates.from_device_mb_per_s = 1 + up_to(one_in(2) ? 100 : 50000);
    rates.both_mb_per_s = one_in(4) ? 0 : rates.to_device_mb_per_s + rates.from_device_mb_per_s / 2;
    return rates;
}

static inline uint32_t random_mask(uint32_t all, uint32_t usual) {
    return one_in(3) ? all : one_in(2) ? usual : (uint32_t)next_random() & all;
}

static inline int64_t random_slowdown(void) {
    if (one_in(6)) return -1;
    return one_in(6) ? 0 : up_to(one_in(8) ? 1000000000 : 400000);
}

static inline int64_t random_host_limit(int64_t scale) {
    if (one_in(3)) return up_to(100 * scale);
    return one_in(2) ? up_to(1000 * scale) : (int64_t)1 << 40;
}

static inline void random_request(problem *p) {
    static const uint32_t flags[] = {0, MS_PLAN_FORCE, MS_PLAN_FASTEST, MS_PLAN_FASTEST | MS_PLAN_FORCE};
    int64_t scale = p->model.scale;
    for (int64_t u = 0; u < MAX_UNITS; u++) p->may_change[u] = !one_in(6);
    ms_plan_request *r = &p->request;
    *r = (ms_plan_request){
        .struct_bytes = sizeof *r, .profile = p->profile, .half_profile = p->half, .device = &p->device};
    r->margin_bytes = one_in(2) ? 0 : up_to(100 * scale);
    r->host_limit_bytes = random_host_limit(scale);
    r->slowdown_ppm = random_slowdown();
    r->may_change = one_in(2) ? p->may_change : NULL;
    r->actions = random_mask((1U << MS_N_ACTIONS) - 1, 1U << MS_ACTION_RECOMPUTE);
    r->model_options = one_in(2) ? 0 : random_mask(MS_MODEL_ALL, MS_MODEL_8BIT);
    r->simulation = (uint32_t)up_to(63);
    r->flags = flags[up_to(3)];
    if (one_in(2)) r->simulation &= ~(uint32_t)MS_SIMULATE_ALLOCATOR;
    if (one_in(4)) r->flags |= MS_PLAN_GROWN;
    if (one_in(4)) r->occupied_bytes = up_to(50 * scale);
    if (one_in(3)) { /* every plan is simulated exactly */
        r->actions = 1U << MS_ACTION_RECOMPUTE;
        r->model_options = 0;
    }
}

/* The problem of a case: a list of calls in three of four cases, else a chain of units. */
static inline void random_problem(int64_t index, problem *out) {
    start_case(index);
    *out = (problem){0};
    random_model(&out->model);
    bool has_calls = index % 4 != 0;
    out->rates = random_rates();
    out->device = (ms_device)DEVICE_WITH(&out->rates, 108);
    out->profile = has_calls ? profile_of(&out->model, 1) : random_chain(&out->model);
    if (has_calls && one_in(2)) out->half = profile_of(&out->model, 2);
    random_request(out);
}

static inline void problem_free(problem *p) {
    ms_profile_destroy(p->profile);
    ms_profile_destroy(p->half);
}

#endif
