/* shaped.c - the model of shaped.h. */
#include "shaped.h"

#define WIDTH SHAPED_WIDTH

typedef struct model {
    script *s;
    int64_t b, t;
    bool recomputed;
    oddity odd;
    int64_t saved[2][8], n_saved[2]; /* of each unit, for backward */
    int64_t outputs[2];
} model;

int64_t padded(int64_t length) { return (length + MS__LENGTH_PADDING - 1) / MS__LENGTH_PADDING * MS__LENGTH_PADDING; }

/* The last operand has four dimensions. */
static void with_heads(script *s, int64_t b, int64_t t, int64_t width) {
    s->operands[s->n_operands - 1].n_dims = 4;
    const int64_t dims[6] = {b, 1, t, width, 1, 1};
    for (int i = 0; i < 6; i++) s->operands[s->n_operands - 1].dims[i] = dims[i];
}

static int64_t hidden_bytes(const model *m) { return 4 * m->b * m->t * WIDTH; }

static void multiply(model *m, int64_t inner) {
    compute(m->s, "aten.mm.default");
    input(m->s, m->b * m->t, inner);
    input(m->s, inner, WIDTH);
    output(m->s, m->b * m->t, WIDTH);
}

/* The same as a function whose result may be kept; the result. */
static int64_t product(model *m, int64_t inner) {
    say(m->s, MS_TRACE_FUNCTION, MS_KEEP_PRODUCTS, 0);
    multiply(m, inner);
    int64_t made = take(m->s, hidden_bytes(m));
    say(m->s, MS_TRACE_FUNCTION, 0, made);
    return made;
}

static void keep(model *m, int unit, int64_t storage) { m->saved[unit][m->n_saved[unit]++] = storage; }

static void attend(model *m) {
    say(m->s, MS_TRACE_FUNCTION, MS_KEEP_ATTENTION, 0);
    compute(m->s, "aten._scaled_dot_product_efficient_attention.default");
    for (int i = 0; i < 2; i++) {
        input(m->s, 0, 0);
        with_heads(m->s, m->b, m->t, WIDTH);
    }
    output(m->s, m->b * m->t, WIDTH);
    output(m->s, m->b, padded(m->t));
    keep(m, 0, take(m->s, hidden_bytes(m)));
    say(m->s, MS_TRACE_FUNCTION, 0, take(m->s, 4 * m->b * padded(m->t)) - 1);
    keep(m, 0, m->s->n_storages - 1);
}

/* The forward of the first unit, also when it is recomputed. */
static void run_first(model *m, bool again) {
    int64_t cube = m->odd == CUBE ? m->t * m->t * m->t : 0;
    keep(m, 0, product(m, WIDTH));
    attend(m);
    compute(m->s, "aten.ones.default");
    output(m->s, m->t, m->t);
    keep(m, 0, take(m->s, m->t * m->t + cube));
    compute(m->s, "aten.softmax.int");
    output(m->s, m->b * m->t, m->t);
    int64_t row = m->odd == PADDED_MASK ? (m->t + MS__MASK_PADDING - 1) / MS__MASK_PADDING * MS__MASK_PADDING : m->t;
    keep(m, 0, take(m->s, m->odd == HALF ? m->b * m->t / 2 : 4 * m->b * m->t * row));
    if (again) return;
    m->outputs[0] = product(m, WIDTH); /* nothing in backward needs it */
}

static void activate(model *m) {
    if (m->odd == OTHER_OP) {
        multiply(m, WIDTH);
        return;
    }
    compute(m->s, "aten.relu.default");
    input(m->s, m->b * m->t, WIDTH);
    if (m->odd == OTHER_TYPE) m->s->operands[m->s->n_operands - 1].element_bytes = 2;
    output(m->s, m->b * m->t, WIDTH);
}

static void run_second(model *m) {
    int64_t made = product(m, m->odd == ODD_FLOPS ? WIDTH + 1 : WIDTH);
    activate(m);
    keep(m, 1, take(m->s, hidden_bytes(m) + (m->odd == ODD_BYTES ? 4 : 0)));
    if (m->odd == EXTRA_OP) compute(m->s, "aten.relu.default");
    int64_t category = m->odd == OTHER_CATEGORY ? MS_CATEGORY_BUFFER : MS_CATEGORY_ACTIVATION;
    int64_t other = take_as(m->s, category, m->odd == SHRINKING ? 4000 - 10 * m->t : 64);
    give(m->s, m->odd == EARLY_RELEASE ? other : made);
    give(m->s, m->odd == EARLY_RELEASE ? made : other);
}

static void release(model *m, int unit) {
    for (int64_t i = 0; i < m->n_saved[unit]; i++) give(m->s, m->saved[unit][i]);
    m->n_saved[unit] = 0;
}

static void forward(model *m) {
    in_phase(m->s, MS_PHASE_FORWARD);
    in_unit(m->s, 0);
    run_first(m, false);
    if (m->recomputed) release(m, 0);
    in_unit(m->s, m->odd == ONE_UNIT ? 0 : 1);
    run_second(m);
    if (m->odd == OTHER_UNIT) in_unit(m->s, -1);
    compute(m->s, "aten.neg.default");
    m->outputs[1] = take(m->s, hidden_bytes(m));
    if (m->recomputed) release(m, 1);
}

/* The gradient of a bias: a sum over all rows. */
static void sum_rows(model *m) {
    compute(m->s, m->odd == OTHER_RULE ? "aten._safe_softmax.default" : "aten.sum.dim_IntList");
    input(m->s, m->b * m->t * (m->odd == ODD_MEMORY ? m->t : 1), WIDTH);
    output(m->s, 1, WIDTH);
    (void)take_as(m->s, MS_CATEGORY_GRADIENT, 4 * WIDTH);
}

static void backward_of(model *m, int unit) {
    in_unit(m->s, m->odd == ONE_UNIT ? 0 : unit);
    if (m->recomputed) {
        repeating(m->s, m->odd == ONE_UNIT ? 0 : unit);
        if (unit == 0) run_first(m, true);
        if (unit == 1) run_second(m);
        repeating(m->s, -1);
    }
    multiply(m, WIDTH);
    int64_t gradient = take(m->s, hidden_bytes(m));
    sum_rows(m);
    give(m->s, gradient);
    give(m->s, m->outputs[unit]);
    release(m, unit);
}

void shaped_step(script *s, ms__shape shape, bool recomputed, oddity odd) {
    model m = {.s = s, .b = shape.batch, .t = shape.length, .recomputed = recomputed, .odd = odd};
    *s = (script){0};
    for (int i = 0; i < 2; i++) (void)take_as(s, MS_CATEGORY_PARAMETER, 4 * WIDTH * WIDTH);
    (void)take_as(s, MS_CATEGORY_INPUT, 8 * m.b);
    (void)take_as(s, MS_CATEGORY_INPUT, 8 * m.t);
    forward(&m);
    in_phase(s, MS_PHASE_BACKWARD);
    for (int unit = 1; unit >= 0; unit--) backward_of(&m, unit);
    in_phase(s, MS_PHASE_OPTIMIZER_FIRST);
    compute(s, "aten.zeros_like.default");
    (void)take_as(s, MS_CATEGORY_OPTIMIZER, 8 * WIDTH * WIDTH);
    in_phase(s, MS_PHASE_END);
}

ms_profile *shaped_profile(ms__shape shape, oddity odd) {
    static script kept, recomputed;
    const char *const names[] = {"attention", odd == OTHER_NAME ? "activation" : "product"};
    const int64_t sizes[] = {4 * WIDTH * WIDTH, odd == OTHER_SIZE ? 4 : 4 * WIDTH * WIDTH};
    shaped_step(&kept, shape, false, odd);
    shaped_step(&recomputed, shape, true, odd);
    ms_trace traces[] = {trace_of(&kept), trace_of(&recomputed)};
    ms_profile_request request = {.struct_bytes = sizeof request,
                                  .unit_names = names,
                                  .unit_param_bytes = sizes,
                                  .n_units = odd == ONE_UNIT ? 1 : 2,
                                  .plain = &traces[0],
                                  .recomputed = odd == NO_RECOMPUTED ? NULL : &traces[1],
                                  .batch = shape.batch,
                                  .length = shape.length};
    ms_profile *profile = NULL;
    CHECK_STATUS(ms_profile_from_traces(&request, &profile), MS_OK);
    return profile;
}

ms_status try_fit(const ms__shape *shapes, int64_t n, oddity odd, ms_profile **out) {
    ms_profile *profiles[MS__MAX_SHAPES + 1] = {NULL};
    bool everywhere = odd == CUBE || odd == HALF || odd == PADDED_MASK || odd == SHRINKING;
    for (int64_t i = 0; i < n; i++)
        profiles[i] = shaped_profile(shapes[i], everywhere || i == n - 1 ? odd : NOTHING_ODD);
    ms_status status = ms_profile_fit((const ms_profile *const *)profiles, n, out);
    for (int64_t i = 0; i < n; i++) ms_profile_destroy(profiles[i]);
    return status;
}
