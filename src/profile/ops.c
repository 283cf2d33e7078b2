/* ops.c - the table of operations.
 *
 * Written from what torch's kernels are documented or seen to allocate. Sizes are exact where torch computes them from
 * shapes (reductions, attention), and estimates for convolutions, whose library chooses by measuring.
 */
#include "ops.h"

#include <string.h>

enum kind {
    PLAIN,
    VIEW,
    MM,                 /* [m, k] x [k, n], operands 0 and 1 */
    ADDMM,              /* operands 1 and 2 */
    ATTENTION,          /* operands 0 (queries) and 1 (keys) */
    ATTENTION_BACKWARD, /* operands 1 and 2 */
    CONVOLUTION,
    CONVOLUTION_BACKWARD,
    REDUCTION,
    EMBEDDING_BACKWARD,
    SOFTMAX_BACKWARD,
    SAFE_SOFTMAX,
    RANDOM
};

static const struct {
    const char *name; /* between "aten." and the overload */
    enum kind kind;
} table[] = {
    {"mm", MM},
    {"bmm", MM},
    {"addmm", ADDMM},
    {"baddbmm", ADDMM},
    {"addbmm", ADDMM},
    {"_scaled_dot_product_flash_attention", ATTENTION},
    {"_scaled_dot_product_efficient_attention", ATTENTION},
    {"_scaled_dot_product_cudnn_attention", ATTENTION},
    {"_scaled_dot_product_flash_attention_for_cpu", ATTENTION},
    {"_scaled_dot_product_flash_attention_backward", ATTENTION_BACKWARD},
    {"_scaled_dot_product_efficient_attention_backward", ATTENTION_BACKWARD},
    {"_scaled_dot_product_cudnn_attention_backward", ATTENTION_BACKWARD},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", ATTENTION_BACKWARD},
    {"convolution", CONVOLUTION},
    {"convolution_backward", CONVOLUTION_BACKWARD},
    {"sum", REDUCTION},
    {"mean", REDUCTION},
    {"embedding_dense_backward", EMBEDDING_BACKWARD},
    {"_softmax_backward_data", SOFTMAX_BACKWARD},
    {"_safe_softmax", SAFE_SOFTMAX},
    {"native_dropout", RANDOM},
    {"bernoulli", RANDOM},
    {"bernoulli_", RANDOM},
    {"rand", RANDOM},
    {"rand_like", RANDOM},
    {"randn", RANDOM},
    {"randn_like", RANDOM},
    {"randint", RANDOM},
    {"randperm", RANDOM},
    {"normal_", RANDOM},
    {"uniform_", RANDOM},
    {"random_", RANDOM},
    {"exponential_", RANDOM},
    {"multinomial", RANDOM},
    {"rrelu_with_noise", RANDOM},
    {"view", VIEW},
    {"_unsafe_view", VIEW},
    {"_reshape_alias", VIEW},
    {"t", VIEW},
    {"transpose", VIEW},
    {"permute", VIEW},
    {"expand", VIEW},
    {"slice", VIEW},
    {"select", VIEW},
    {"unsqueeze", VIEW},
    {"squeeze", VIEW},
    {"split", VIEW},
    {"split_with_sizes", VIEW},
    {"unbind", VIEW},
    {"as_strided", VIEW},
    {"alias", VIEW},
    {"detach", VIEW},
    {"diagonal", VIEW},
    {"unfold", VIEW},
    {"lift_fresh", VIEW},
};

static enum kind kind_of(const char *name) {
    if (strncmp(name, "aten.", 5) != 0) return PLAIN;
    name += 5;
    const char *dot = strchr(name, '.');
    size_t n = dot == NULL ? strlen(name) : (size_t)(dot - name);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strncmp(table[i].name, name, n) == 0 && table[i].name[n] == '\0') return table[i].kind;
    return PLAIN;
}

/* Sizes come from a file or from Python: products saturate. */
static int64_t times(int64_t a, int64_t b) {
    if (a <= 0 || b <= 0) return 0;
    return a > INT64_MAX / 8 / b ? INT64_MAX / 8 : a * b;
}

static int64_t plus(int64_t a, int64_t b) { return a > INT64_MAX / 8 - b ? INT64_MAX / 8 : a + b; }

static int64_t elements(const ms__operand *t) {
    int64_t n = 1;
    for (int i = 0; i < MS__MAX_DIMS; i++) n = times(n, t->dims[i]);
    return n;
}

static int64_t bytes_of(const ms__operand *t) { return t->storage < 0 ? 0 : times(elements(t), t->element_bytes); }

/* The dimension that is `back` places from the last one. */
static int64_t dim_from_end(const ms__operand *t, int64_t back) {
    int64_t i = t->n_dims - 1 - back;
    return i >= 0 && i < MS__MAX_DIMS ? times(1, t->dims[i]) : 1;
}

static void cost_product(const ms__operand *a, const ms__operand *b, ms__op_cost *out) {
    out->is_matrix = true;
    out->flops = times(times(2, elements(a)), dim_from_end(b, 0));
}

/* Queries [batch, heads, length, width], keys [batch, heads, length, width]. */
static void cost_attention(const ms__operand *q, const ms__operand *k, bool backward, ms__op_cost *out) {
    int64_t scores = times(elements(q), dim_from_end(k, 1));
    out->is_attention = true;
    out->flops = times(backward ? 10 : 4, scores);
    if (!backward) return;
    int64_t rows = elements(q) / (dim_from_end(q, 0) > 0 ? dim_from_end(q, 0) : 1);
    int64_t heads = times(dim_from_end(q, 3), dim_from_end(q, 2));
    bool grouped = dim_from_end(q, 2) != dim_from_end(k, 2);
    out->n[0] = rows;
    out->n[1] = heads;
    out->n[2] = dim_from_end(q, 0);
    out->n[3] = grouped ? times(times(heads, dim_from_end(k, 1)), times(dim_from_end(q, 0), q->element_bytes)) : 0;
}

/* Does the sum run over the last dimension? The shapes tell, but for squares: those are taken as sums over rows. */
static bool reduces_last(const ms__operand *in, const ms__operand *out) {
    int64_t last = dim_from_end(in, 0);
    for (int64_t i = 0; i < out->n_dims && i < MS__MAX_DIMS; i++)
        if (out->dims[out->n_dims - 1 - i < MS__MAX_DIMS ? out->n_dims - 1 - i : 0] != 1)
            return dim_from_end(out, i) != last;
    return true;
}

static void cost_reduction(const ms__operand *in, const ms__operand *result, ms__op_cost *out) {
    int64_t n_outputs = elements(result);
    if (n_outputs <= 0) return;
    out->rule = MS__SCRATCH_REDUCE;
    out->n[0] = n_outputs;
    out->n[1] = elements(in) / n_outputs;
    out->n[2] = reduces_last(in, result);
    out->n[3] = in->element_bytes;
}

void ms__op_cost_of(const char *name, const ms__operand *inputs, int64_t n_inputs, const ms__operand *outputs,
                    int64_t n_outputs, ms__op_cost *out) {
    *out = (ms__op_cost){0};
    enum kind kind = kind_of(name);
    if (kind == VIEW) {
        out->is_view = true;
        return;
    }
    for (int64_t i = 0; i < n_inputs; i++) out->bytes = plus(out->bytes, bytes_of(&inputs[i]));
    for (int64_t i = 0; i < n_outputs; i++) out->bytes = plus(out->bytes, bytes_of(&outputs[i]));
    out->element_bytes = n_inputs > 0 ? inputs[0].element_bytes : 4;
    if (kind == MM && n_inputs >= 2) cost_product(&inputs[0], &inputs[1], out);
    if (kind == ADDMM && n_inputs >= 3) cost_product(&inputs[1], &inputs[2], out);
    if (kind == ATTENTION && n_inputs >= 2) cost_attention(&inputs[0], &inputs[1], false, out);
    if (kind == ATTENTION_BACKWARD && n_inputs >= 3) {
        cost_attention(&inputs[1], &inputs[2], true, out);
        out->rule = strstr(name, "efficient") != NULL ? MS__SCRATCH_EFFICIENT : MS__SCRATCH_FLASH;
        if (strstr(name, "for_cpu") != NULL) out->rule = MS__SCRATCH_NONE;
    }
    if (kind == REDUCTION && n_inputs >= 1 && n_outputs >= 1) cost_reduction(&inputs[0], &outputs[0], out);
    out->is_random = kind == RANDOM;
    if (kind >= EMBEDDING_BACKWARD && kind <= SAFE_SOFTMAX && n_inputs >= 1) {
        out->rule = MS__SCRATCH_BYTES;
        if (kind == SOFTMAX_BACKWARD) out->n[0] = bytes_of(&inputs[0]); /* the product of its operands */
        if (kind == SAFE_SOFTMAX) out->n[0] = elements(&inputs[0]);     /* which are minus infinity */
        if (kind == EMBEDDING_BACKWARD && n_inputs >= 2)
            out->n[0] = times(5, bytes_of(&inputs[1])); /* indices, sorted with their places, and room to sort */
    }
    bool backward = kind == CONVOLUTION_BACKWARD;
    if ((kind == CONVOLUTION && n_inputs >= 2 && n_outputs >= 1) || (backward && n_inputs >= 3)) {
        const ms__operand *data = &inputs[backward ? 1 : 0], *weight = &inputs[backward ? 2 : 1];
        const ms__operand *result = backward ? &inputs[0] : &outputs[0];
        int64_t channels = weight->dims[0] > 0 ? weight->dims[0] : 1;
        out->flops = times(times(backward ? 4 : 2, elements(result)), elements(weight) / channels);
        out->rule = MS__SCRATCH_CONVOLUTION;
        out->n[0] = bytes_of(data);
        out->n[1] = bytes_of(result);
        out->n[2] = bytes_of(weight);
        out->n[3] = backward;
    }
}

/* ---- Memory that kernels take ---- */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t power_below(int64_t n) {
    int64_t p = 1;
    while (p <= n / 2) p *= 2;
    return p;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t threads_of(int64_t capability) {
    if (capability == 75) return 1024;
    return capability == 86 || capability == 87 || capability == 89 || capability >= 120 ? 1536 : 2048;
}

/* How torch splits a reduction over blocks, which then meet in global memory: partial sums in fp32 for every thread of
 * every block along the outputs. */
static int64_t reduce_bytes(const int64_t n[MS__SCRATCH_NUMBERS], int64_t capability, int64_t n_multiprocessors) {
    enum { MAX_THREADS = 512, WARP = 32, MIN_VALUES = 16, MAX_VALUES = 256, VECTOR = 4, PARTIAL_BYTES = 4 };
    int64_t n_outputs = n[0], n_inputs = n[1];
    bool last = n[2] != 0;
    if (n_outputs <= 0 || n_inputs <= 0) return 0;
    int64_t vector = !last && n_outputs % VECTOR == 0 ? VECTOR : 1;
    int64_t across = last ? n_inputs : n_outputs / vector, along = last ? n_outputs : n_inputs;
    int64_t max_threads = MAX_THREADS / vector;
    int64_t across2 = across < max_threads ? power_below(across) : max_threads;
    int64_t along2 = along < max_threads ? power_below(along) : max_threads;
    int64_t width = smaller(across2, WARP), height = smaller(along2, max_threads / width);
    width = smaller(across2, max_threads / height);
    int64_t step_inputs = last ? width : 1, step_outputs = last ? 1 : width;
    bool across_warps = ceil_div(n_inputs, step_inputs) >= smaller(height * 16, MAX_VALUES);
    if (across_warps)
        step_inputs *= height;
    else
        step_outputs *= height;
    int64_t values = ceil_div(n_inputs, step_inputs);
    int64_t grid = ceil_div(n_outputs / vector, step_outputs);
    int64_t target = n_multiprocessors * (threads_of(capability) / (width * height));
    if (!across_warps || values < MAX_VALUES || grid > target) return 0;
    int64_t blocks =
        larger(smaller(ceil_div(target, grid), ceil_div(values, MIN_VALUES)), ceil_div(values, MAX_VALUES));
    if (blocks <= 1) return 0;
    int64_t bytes = times(times(PARTIAL_BYTES, n_outputs), blocks);
    return last ? bytes : times(bytes, width * vector);
}

int64_t ms__scratch_bytes(enum ms__scratch_rule rule, const int64_t n[MS__SCRATCH_NUMBERS], int64_t capability,
                          int64_t n_multiprocessors) {
    if (capability <= 0) return 0;
    switch (rule) {
    case MS__SCRATCH_REDUCE:
        return reduce_bytes(n, capability, n_multiprocessors);
    case MS__SCRATCH_FLASH: /* the gradient of the queries in fp32, and a sum for each row */
    case MS__SCRATCH_EFFICIENT:
        return plus(plus(times(times(n[0], 4), n[2] + 1), 256), times(2, n[3]));
    case MS__SCRATCH_CONVOLUTION: /* copies in another layout */
        return n[3] ? plus(times(2, n[0]), times(2, n[1])) : plus(n[0], n[1]);
    case MS__SCRATCH_BYTES:
        return n[0];
    case MS__SCRATCH_NONE:
        break;
    }
    return 0;
}
