/* layered.c - the model of layered.h. */
#include "layered.h"

#include "steps.h"

typedef struct layer {
    int64_t p, r, q, d, m, out, copy;
} layer;

typedef struct model {
    script s;
    layer layers[MAX_LAYERS];
    int n_layers;
    bool recomputed;
    twist twist;
    int64_t cast;
} model;

static int64_t product(model *m, int64_t n_bytes) {
    script *s = &m->s;
    bool attends = m->twist == SMALL_COPIES;
    if (m->twist != NO_MARKS) say(s, MS_TRACE_FUNCTION, attends ? MS_KEEP_ATTENTION : MS_KEEP_PRODUCTS, 0);
    if (m->twist == COPIES || attends) { /* what the function copies first is saved, too */
        compute(s, "aten.clone.default");
        m->layers[MAX_LAYERS - 1].copy = take(s, attends ? n_bytes / 4 : n_bytes);
    }
    compute(s, "aten.mm.default");
    for (int i = 0; i < 2; i++) input(s, 100, 100);
    output(s, 100, 100);
    int64_t made = take(s, n_bytes);
    if (m->twist != NO_MARKS) say(s, MS_TRACE_FUNCTION, 0, made);
    return made;
}

static void run(model *m, layer *l, bool again) {
    script *s = &m->s;
    l->p = product(m, MIB);
    l->copy = m->layers[MAX_LAYERS - 1].copy;
    if (!(again && m->twist == OTHER_RECOMPUTATION)) compute(s, "aten.relu.default");
    l->r = take(s, 2 * MIB);
    l->q = product(m, MIB);
    int64_t second = m->layers[MAX_LAYERS - 1].copy;
    compute(s, "aten.native_dropout.default");
    l->d = take(s, MIB);
    l->m = take(s, MIB / 2);
    if (!again) {
        compute(s, "aten.add.Tensor");
        l->out = take(s, MIB);
    }
    give(s, l->q);
    give(s, l->d);
    if (second != l->copy) give(s, second);
}

static void drop_saved(model *m, layer *l) {
    if (l->copy != 0) give(&m->s, l->copy);
    give(&m->s, l->p);
    give(&m->s, l->r);
    give(&m->s, l->m);
}

static void cast_weight(model *m) {
    say(&m->s, MS_TRACE_FUNCTION, MS_KEEP_PRODUCTS, 0);
    compute(&m->s, "aten._to_copy.default");
    input(&m->s, 512, 512);
    output(&m->s, 512, 512);
    m->s.operands[m->s.n_operands - 1].element_bytes = 2;
    m->cast = take(&m->s, 2 * 512 * 512);
    say(&m->s, MS_TRACE_FUNCTION, 0, -1);
}

static void forward(model *m) {
    in_phase(&m->s, MS_PHASE_FORWARD);
    for (int u = 0; u < m->n_layers; u++) {
        in_unit(&m->s, u);
        if (m->twist == CASTS && u == 0) cast_weight(m);
        run(m, &m->layers[u], false);
        if (m->recomputed) drop_saved(m, &m->layers[u]);
        if (m->recomputed && u > 0) say(&m->s, MS_TRACE_INPUT, m->layers[u - 1].out, 0);
        if (m->recomputed && u > 1 && m->twist == SHARED_INPUTS) say(&m->s, MS_TRACE_INPUT, m->layers[0].out, 0);
    }
    in_unit(&m->s, -1);
    compute(&m->s, "aten.mean.default");
    if (m->recomputed && m->twist == CASTS) give(&m->s, m->cast);
}

static void backward_of(model *m, int u) {
    script *s = &m->s;
    layer *l = &m->layers[u];
    in_unit(s, u);
    if (m->recomputed) {
        repeating(s, u);
        run(m, l, true);
        repeating(s, -1);
    }
    compute(s, "aten.native_dropout_backward.default");
    give(s, l->m);
    compute(s, "aten.threshold_backward.default");
    give(s, l->r);
    compute(s, "aten.mm.default");
    if (l->copy != 0) give(s, l->copy);
    give(s, l->p);
    if (m->twist == CASTS && u == 0 && !m->recomputed) give(s, m->cast);
    if (u > 0) give(s, m->layers[u - 1].out);
}

static void write_model(model *m, int n_layers, bool recomputed, twist odd) {
    *m = (model){.n_layers = n_layers, .recomputed = recomputed, .twist = odd};
    (void)take_as(&m->s, MS_CATEGORY_PARAMETER, MIB);
    forward(m);
    in_phase(&m->s, MS_PHASE_BACKWARD);
    give(&m->s, m->layers[n_layers - 1].out);
    for (int u = n_layers - 1; u >= 0; u--) backward_of(m, u);
    in_phase(&m->s, MS_PHASE_OPTIMIZER_FIRST);
    in_phase(&m->s, MS_PHASE_END);
}

ms_profile *layered_profile(int n_layers, twist odd) {
    static model kept, recomputed;
    static const char *const names[MAX_LAYERS] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    static const int64_t sizes[MAX_LAYERS] = {0};
    write_model(&kept, n_layers, false, odd);
    write_model(&recomputed, n_layers, true, odd);
    ms_trace traces[] = {trace_of(&kept.s), trace_of(&recomputed.s)};
    ms_profile_request request = {.struct_bytes = sizeof request,
                                  .unit_names = names,
                                  .unit_param_bytes = sizes,
                                  .n_units = n_layers,
                                  .plain = &traces[0],
                                  .recomputed = odd == ONLY_KEPT ? NULL : &traces[1]};
    ms_profile *profile = NULL;
    CHECK_STATUS(ms_profile_from_traces(&request, &profile), MS_OK);
    return profile;
}
