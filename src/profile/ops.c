/* ops.c - the table of operations.
 *
 * It follows what torch's kernels are documented or observed to allocate. Sizes are exact where torch computes them
 * from shapes (reductions, attention), and estimates for convolutions, whose library chooses by measuring. On a CPU
 * they are what torch 2.13 with oneDNN was observed to allocate.
 */
#include "ops.h"

#include <string.h>

#include "../common/math.h"

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
    BATCH_NORM_BACKWARD,
    UPSAMPLE,
    RECURRENT,
    RECURRENT_BACKWARD,
    POINTWISE,
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
    {"native_batch_norm_backward", BATCH_NORM_BACKWARD},
    {"upsample_nearest2d", UPSAMPLE},
    {"upsample_bilinear2d", UPSAMPLE},
    {"mkldnn_rnn_layer", RECURRENT},
    {"mkldnn_rnn_layer_backward", RECURRENT_BACKWARD},
    {"add", POINTWISE},
    {"add_", POINTWISE},
    {"sub", POINTWISE},
    {"sub_", POINTWISE},
    {"mul", POINTWISE},
    {"mul_", POINTWISE},
    {"div", POINTWISE},
    {"div_", POINTWISE},
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

#define LIGHT_CHANNELS 64 /* fewer are few for a product of matrices on a GPU */

/* Sizes come from a file or from Python, so products saturate. */
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

/* How many elements lie next to each other: of rows or, in a matrix that is transposed, of columns. */
static int64_t contiguous_elements(const ms__operand *t) {
    return dim_from_end(t, t->last_stride == 0 || t->last_stride == 1 ? 0 : 1);
}

static void cost_product(const ms__operand *a, const ms__operand *b, ms__op_cost *out) {
    out->is_matrix = true;
    uint64_t rows = (uint64_t)(contiguous_elements(a) | contiguous_elements(b) | dim_from_end(b, 0));
    out->alignment = (int64_t)(rows & -rows);
    out->flops = times(times(2, elements(a)), dim_from_end(b, 0));
    if (a->element_bytes != 2) return;
    out->rule = MS__SCRATCH_PRODUCT16;
    out->n[0] = dim_from_end(a, 1);
    out->n[1] = dim_from_end(a, 0);
    out->n[2] = dim_from_end(b, 0);
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

static void cost_cpu_attention(const ms__operand *q, const ms__operand *k, bool backward, ms__op_cost *out) {
    out->rule = MS__SCRATCH_CPU_ATTENTION;
    out->n[0] = dim_from_end(q, 1);
    out->n[1] = dim_from_end(k, 1);
    out->n[2] = q->element_bytes;
    out->n[3] = backward ? 0 : dim_from_end(q, 0);
}

/* Does the sum run over the last dimension? The shapes show it, except for squares, which count as sums over rows. */
static bool reduces_last(const ms__operand *in, const ms__operand *out) {
    int64_t last = dim_from_end(in, 0);
    for (int64_t i = 0; i < out->n_dims && i < MS__MAX_DIMS; i++)
        if (out->dims[out->n_dims - 1 - i < MS__MAX_DIMS ? out->n_dims - 1 - i : 0] != 1)
            return dim_from_end(out, i) != last;
    return true;
}

static void cost_reduction(const ms__operand *in, const ms__operand *result, bool mean, ms__op_cost *out) {
    int64_t n_outputs = elements(result);
    if (n_outputs <= 0) return;
    out->rule = MS__SCRATCH_REDUCE;
    out->n[0] = n_outputs;
    out->n[1] = elements(in) / n_outputs;
    out->n[2] = reduces_last(in, result);
    if (result->element_bytes > in->element_bytes || (mean && in->element_bytes == 2)) /* a copy to sum up */
        out->n[3] = times(elements(in), result->element_bytes > 4 ? result->element_bytes : 4);
}

/* A CPU first copies operands whose type differs from the one that it computes in. */
static void cost_pointwise(const ms__operand *inputs, int64_t n_inputs, const ms__operand *result, ms__op_cost *out) {
    int64_t wanted = result->element_bytes, bytes = 0;
    for (int64_t i = 0; i < n_inputs; i++)
        if (wanted == 2 && inputs[i].element_bytes == 4 && inputs[i].n_dims > 0) wanted = 4;
    for (int64_t i = 0; i < n_inputs; i++)
        if (inputs[i].element_bytes != wanted) bytes = plus(bytes, times(elements(&inputs[i]), wanted));
    if (bytes == 0) return;
    out->rule = MS__SCRATCH_BYTES;
    out->n[1] = bytes;
}

static bool is_pointwise(const ms__operand *data, const ms__operand *weight, const ms__operand *result) {
    for (int64_t i = 2; i < weight->n_dims; i++)
        if (weight->dims[i] != 1 || data->dims[i] != result->dims[i]) return false;
    return true;
}

/* Does a GPU compute it without copies in another layout? Depthwise convolutions have kernels of torch's own; a product
 * of matrices serves where each output depends on one position. Backward of one with few channels is not such a
 * product.
 */
static bool is_light(const ms__operand *data, const ms__operand *weight, const ms__operand *result, bool backward) {
    bool depthwise = weight->dims[1] == 1 && data->dims[1] > 1;
    bool few_channels = weight->dims[0] < LIGHT_CHANNELS || weight->dims[1] < LIGHT_CHANNELS;
    return depthwise || (is_pointwise(data, weight, result) && !(backward && (few_channels || weight->n_dims != 4)));
}

static void cost_convolution(const ms__operand *data, const ms__operand *weight, const ms__operand *result,
                             bool backward, ms__op_cost *out) {
    int64_t channels = weight->dims[0] > 0 ? weight->dims[0] : 1;
    out->flops = times(times(backward ? 4 : 2, elements(result)), elements(weight) / channels);
    bool narrow = data->element_bytes == 2;
    out->rule = narrow ? MS__SCRATCH_CONVOLUTION16 : MS__SCRATCH_CONVOLUTION;
    if (is_light(data, weight, result, backward))
        out->rule = narrow ? MS__SCRATCH_LIGHT_CONVOLUTION16 : MS__SCRATCH_LIGHT_CONVOLUTION;
    out->n[0] = bytes_of(data);
    out->n[1] = bytes_of(result);
    out->n[2] = bytes_of(weight);
    out->n[3] = !backward ? 0 : ms__max(times(1, data->dims[0]), 1);
}

/* A convolution in fp32 on a CPU. oneDNN computes in blocks of 16 channels, so copies of everything come and go; in the
 * layout with channels last, only the weights are copied. */
typedef struct cpu_convolution {
    int64_t in, out, weight;         /* bytes as torch has them */
    int64_t in_copy, out_copy, copy; /* in oneDNN's layout; `copy` is that of the weights */
    int64_t columns;                 /* of one image and group, unfolded for a product of matrices */
    int64_t batch, kernel;           /* kernel: its largest edge */
    int64_t block, each;             /* channels of a block (16, or 8 without AVX-512), and of a group */
    bool wants_input, grouped, few;  /* few: an image whose channels do not fill a block */
} cpu_convolution;

enum { CHANNELS = 16, HALF_CHANNELS = 8, IMAGE_CHANNELS = 3 };

static int64_t in_blocks(int64_t n, int64_t block) { return times(ms__ceil_div(n, block), block); }

/* The channels of the input as oneDNN has them. Few are not copied in forward, nor for gradients of weights alone. */
static int64_t copied_channels(const cpu_convolution *c, int64_t n_in, bool backward) {
    if (!c->few) return in_blocks(n_in, c->block);
    if (!backward || (!c->wants_input && n_in <= IMAGE_CHANNELS)) return 0;
    return in_blocks(n_in, c->wants_input ? c->block : HALF_CHANNELS);
}

static cpu_convolution cpu_convolution_of(const char *name, const ms__operand *data, const ms__operand *weight,
                                          const ms__operand *result, bool backward) {
    int64_t n_in = ms__max(times(1, data->dims[1]), 1), n_out = ms__max(times(1, result->dims[1]), 1);
    int64_t n_each = ms__max(times(1, weight->dims[1]), 1);
    bool depthwise = strstr(name, "depthwise") != NULL;
    cpu_convolution c = {.in = bytes_of(data), .out = bytes_of(result), .weight = bytes_of(weight), .kernel = 1};
    c.each = n_each;
    c.grouped = n_each < n_in;
    c.block = strstr(name, "_by8") != NULL ? HALF_CHANNELS : CHANNELS;
    c.few = !c.grouped && n_in < c.block;
    c.wants_input = strstr(name, "weights") == NULL;
    c.batch = ms__max(times(1, data->dims[0]), 1);
    for (int64_t i = 2; i < weight->n_dims && i < MS__MAX_DIMS; i++) c.kernel = ms__max(c.kernel, weight->dims[i]);
    c.columns = times(c.weight / n_out, c.out / c.batch / n_out) / 4;
    c.in_copy = c.in, c.out_copy = c.out, c.copy = c.weight;
    if (c.grouped && !depthwise) return c;
    int64_t wide_in = copied_channels(&c, n_in, backward), wide_out = in_blocks(n_out, c.block);
    c.in_copy = times(c.in / n_in, wide_in);
    c.out_copy = times(c.out / n_out, wide_out);
    c.copy = times(c.weight / n_out, wide_out);
    if (!c.grouped && wide_in > 0) c.copy = times(c.copy / n_each, wide_in);
    return c;
}

static void cost_cpu_forward(const char *name, const cpu_convolution *c, int64_t n[MS__SCRATCH_NUMBERS]) {
    if (strstr(name, "cpu_columns") != NULL) n[0] = times(c->batch, c->columns);
    if (strstr(name, "cpu_last") != NULL) n[0] = strstr(name, "depthwise") != NULL ? c->weight : times(2, c->weight);
    if (strstr(name, "cpu_blocked") == NULL) return;
    n[0] = plus(plus(c->in_copy, c->copy), c->out_copy - c->out);
    n[1] = c->out_copy;
}

enum { LARGEST_KERNEL = 14, LARGEST_DEPTHWISE = 3 }; /* of oneDNN's own kernels */

/* With channels last, backward copies the weights and sums their gradients in fp32. Where oneDNN has no kernel for a
 * depthwise convolution, the one channel of each group fills a block on either side. */
static int64_t last_backward_bytes(const cpu_convolution *c, bool depthwise, bool narrow) {
    enum { ROOM = 128 << 10 };
    int64_t padded = c->block * c->block;
    if (!depthwise) return times(narrow ? 4 : 3, c->weight);
    if (c->kernel <= LARGEST_DEPTHWISE) return times(2, c->weight);
    if (!narrow) return times(padded + 1, c->weight);
    return plus(times(3 * padded, c->weight), plus(times(8, c->out), ROOM));
}

static void cost_cpu_backward(const char *name, const cpu_convolution *c, bool narrow, int64_t n[MS__SCRATCH_NUMBERS]) {
    bool depthwise = strstr(name, "depthwise") != NULL;
    if (strstr(name, "cpu_columns") != NULL) n[0] = times(c->batch, c->columns);
    if (strstr(name, "cpu_last") != NULL) n[0] = last_backward_bytes(c, depthwise, narrow);
    if (strstr(name, "cpu_blocked") != NULL && c->kernel > LARGEST_KERNEL) {
        n[0] = plus(times(4, c->weight), plus(c->columns, 256));
    } else if (strstr(name, "cpu_blocked") != NULL && depthwise && c->kernel > LARGEST_DEPTHWISE) {
        n[0] = c->wants_input ? c->in_copy - c->weight : plus(times(8, c->weight), 256);
        n[1] = c->wants_input ? plus(c->out_copy, c->copy - c->weight) : 0;
    } else if (strstr(name, "cpu_blocked") != NULL) {
        n[0] = plus(plus(c->in_copy, c->out_copy), c->copy - c->weight) - (c->few && c->wants_input ? c->in : 0);
        n[1] = c->copy;
        bool is_wide = !c->grouped || c->each > c->block;
        if (c->wants_input && is_wide && !c->few && strstr(name, "strided") != NULL)
            n[2] = times(2, c->in_copy) - c->weight;
    }
}

static void cost_cpu_convolution(const char *name, const ms__operand *data, const ms__operand *weight,
                                 const ms__operand *result, bool backward, ms__op_cost *out) {
    cpu_convolution c = cpu_convolution_of(name, data, weight, result, backward);
    out->rule = MS__SCRATCH_LARGEST;
    memset(out->n, 0, sizeof out->n);
    if (backward)
        cost_cpu_backward(name, &c, data->element_bytes == 2, out->n);
    else
        cost_cpu_forward(name, &c, out->n);
    int64_t copied = strstr(name, "copied") != NULL ? c.out : 0; /* torch copies what has neither layout */
    if (strstr(name, "gathered") != NULL) copied = plus(copied, c.in);
    for (int i = 0; i < MS__SCRATCH_NUMBERS; i++) out->n[i] = plus(ms__max(out->n[i], 0), copied);
}

/* Kernels that allocate the same number of bytes on every device. */
static void cost_bytes(enum kind kind, const ms__operand *inputs, int64_t n_inputs, const ms__operand *outputs,
                       ms__op_cost *out) {
    int64_t in = bytes_of(&inputs[0]);
    out->rule = MS__SCRATCH_BYTES;
    if (kind == SOFTMAX_BACKWARD) out->n[0] = in;                           /* the product of its operands */
    if (kind == SAFE_SOFTMAX) out->n[0] = out->n[1] = elements(&inputs[0]); /* which elements are minus infinity */
    if (kind == BATCH_NORM_BACKWARD) out->n[1] = in;                        /* a copy */
    if (kind == UPSAMPLE && outputs != NULL) out->n[1] = plus(in, bytes_of(outputs)); /* both in another layout */
    if (kind == EMBEDDING_BACKWARD && n_inputs >= 2)
        out->n[0] = times(5, bytes_of(&inputs[1])); /* sorted indices and their positions, and room to sort */
}

/* A recurrent layer: copies of its weights and, as the batch comes first, of a gradient; gates or gradients in fp32. */
static void cost_recurrent(const ms__operand *inputs, const ms__operand *result, bool backward, ms__op_cost *out) {
    int64_t weights = plus(bytes_of(&inputs[1]), bytes_of(&inputs[2])), made = bytes_of(result);
    bool narrow = inputs[0].element_bytes == 2;
    out->rule = MS__SCRATCH_BYTES;
    out->n[1] = plus(times(narrow && backward ? 3 : 1, weights), times(narrow ? 0 : 4, made));
    if (backward) out->n[1] = plus(out->n[1], times(narrow ? 3 : 1, made));
}

/* Kernels that copy the first or second operand, as the name says: it is not contiguous. */
static void cost_copies(const char *which, const ms__operand *inputs, int64_t n_inputs, ms__op_cost *out) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < 2 && i < n_inputs; i++)
        if (strchr(which, (int)('0' + i)) != NULL) bytes = plus(bytes, bytes_of(&inputs[i]));
    if (out->rule == MS__SCRATCH_NONE) out->rule = MS__SCRATCH_BYTES;
    for (int i = 0; i < 2 && out->rule == MS__SCRATCH_BYTES; i++) out->n[i] = plus(out->n[i], bytes);
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
    if (kind == ADDMM && n_inputs >= 3) {
        cost_product(&inputs[1], &inputs[2], out);
        out->is_biased = inputs[0].n_dims == 1;
    }
    if (kind == ATTENTION && n_inputs >= 2) cost_attention(&inputs[0], &inputs[1], false, out);
    if (kind == ATTENTION_BACKWARD && n_inputs >= 3) {
        cost_attention(&inputs[1], &inputs[2], true, out);
        out->rule = strstr(name, "efficient") != NULL ? MS__SCRATCH_EFFICIENT : MS__SCRATCH_FLASH;
    }
    if (strstr(name, "for_cpu") != NULL && n_inputs >= 3)
        cost_cpu_attention(&inputs[kind == ATTENTION ? 0 : 1], &inputs[kind == ATTENTION ? 1 : 2], kind != ATTENTION,
                           out);
    if (kind == REDUCTION && n_inputs >= 1 && n_outputs >= 1)
        cost_reduction(&inputs[0], &outputs[0], strncmp(name, "aten.mean", 9) == 0, out);
    if (kind == POINTWISE && n_outputs >= 1) cost_pointwise(inputs, n_inputs, &outputs[0], out);
    out->is_random = kind == RANDOM;
    if (kind == RECURRENT && n_inputs >= 3 && n_outputs >= 1) cost_recurrent(inputs, &outputs[0], false, out);
    if (kind == RECURRENT_BACKWARD && n_inputs >= 8) cost_recurrent(inputs, &inputs[7], true, out);
    if (kind >= EMBEDDING_BACKWARD && kind <= UPSAMPLE && n_inputs >= 1)
        cost_bytes(kind, inputs, n_inputs, n_outputs > 0 ? outputs : NULL, out);
    if (kind == CONVOLUTION && n_inputs >= 2 && n_outputs >= 1)
        cost_convolution(&inputs[0], &inputs[1], &outputs[0], false, out);
    if (kind == CONVOLUTION_BACKWARD && n_inputs >= 3) cost_convolution(&inputs[1], &inputs[2], &inputs[0], true, out);
    const char *copies = strstr(name, ".copies");
    if (copies != NULL) cost_copies(copies, inputs, n_inputs, out);
    if (strstr(name, ".cpu_") != NULL && kind == CONVOLUTION && n_inputs >= 2 && n_outputs >= 1)
        cost_cpu_convolution(name, &inputs[0], &inputs[1], &outputs[0], false, out);
    if (strstr(name, ".cpu_") != NULL && kind == CONVOLUTION_BACKWARD && n_inputs >= 3)
        cost_cpu_convolution(name, &inputs[1], &inputs[2], &inputs[0], true, out);
}

/* ---- Memory that kernels allocate ---- */

static int64_t power_below(int64_t n) {
    int64_t p = 1;
    while (p <= n / 2) p *= 2;
    return p;
}

static int64_t threads_of(int64_t capability) {
    if (capability == 75) return 1024;
    return capability == 86 || capability == 87 || capability == 89 || capability >= 120 ? 1536 : 2048;
}

/* Torch splits a reduction over blocks, which combine their results in global memory: partial sums in fp32 for every
 * thread of every block along the outputs. */
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
    int64_t width = ms__min(across2, WARP), height = ms__min(along2, max_threads / width);
    width = ms__min(across2, max_threads / height);
    int64_t step_inputs = last ? width : 1, step_outputs = last ? 1 : width;
    bool across_warps = ms__ceil_div(n_inputs, step_inputs) >= ms__min(height * 16, MAX_VALUES);
    if (across_warps)
        step_inputs *= height;
    else
        step_outputs *= height;
    int64_t values = ms__ceil_div(n_inputs, step_inputs);
    int64_t grid = ms__ceil_div(n_outputs / vector, step_outputs);
    int64_t target = n_multiprocessors * (threads_of(capability) / (width * height));
    if (!across_warps || values < MAX_VALUES || grid > target) return 0;
    int64_t blocks = ms__max(ms__min(ms__ceil_div(target, grid), ms__ceil_div(values, MIN_VALUES)),
                             ms__ceil_div(values, MAX_VALUES));
    if (blocks <= 1) return 0;
    int64_t bytes = times(times(PARTIAL_BYTES, n_outputs), blocks);
    return last ? bytes : times(bytes, width * vector);
}

/* For each thread: a block of either matrix; its share of the first one again if that is transposed, as for gradients
 * of weights; and a block of the result in fp32 if several are summed. */
static int64_t product_bytes(const int64_t n[MS__SCRATCH_NUMBERS], int64_t n_threads) {
    enum { BLOCK = 512, LINE = 128 };
    int64_t rows = ms__min(n[0], BLOCK), inner = ms__min(n[1], BLOCK), columns = ms__min(n[2], BLOCK);
    int64_t share = ms__min(ms__ceil_div(n[0], ms__max(n_threads, 1)), BLOCK / 2);
    return LINE * (rows + inner) + 2 * share * inner + (n[1] > BLOCK ? 4 * share * columns : 0);
}

/* For each thread: a block of scores, and in backward also of their gradients. */
static int64_t cpu_attention_bytes(const int64_t n[MS__SCRATCH_NUMBERS]) {
    int64_t block = n[0] >= 768 ? 256 : n[0] >= 192 ? 64 : 32;
    int64_t rows = ms__min(n[0], block), columns = ms__min(n[1], 512);
    bool narrow = n[2] == 2;
    if (n[3] == 0) return times(rows * columns, narrow ? 16 : 8);
    return plus(times(rows * 4, plus(columns + 2, n[3])), narrow ? 2 * rows * columns : 0);
}

/* oneDNN computes in a layout of its own: copies of everything come and go. */
static int64_t cpu_convolution_bytes(const int64_t n[MS__SCRATCH_NUMBERS], bool narrow, int64_t n_threads) {
    int64_t both = plus(n[0], n[1]);
    if (n[3] <= 0) return ms__max(plus(n[0], n[2]), n[1]);
    if (!narrow) return ms__max(both, n[2]);
    return plus(both, plus(times(n_threads, both / n[3]), times(2, n[2]))); /* and gradients of weights in fp32 */
}

static int64_t cpu_bytes(enum ms__scratch_rule rule, const int64_t n[MS__SCRATCH_NUMBERS], int64_t n_threads) {
    switch (rule) {
    case MS__SCRATCH_REDUCE:
        return n[3];
    case MS__SCRATCH_BYTES:
        return n[1];
    case MS__SCRATCH_CONVOLUTION:
    case MS__SCRATCH_LIGHT_CONVOLUTION:
        return cpu_convolution_bytes(n, false, n_threads);
    case MS__SCRATCH_CONVOLUTION16:
    case MS__SCRATCH_LIGHT_CONVOLUTION16:
        return cpu_convolution_bytes(n, true, n_threads);
    case MS__SCRATCH_PRODUCT16:
        return times(n_threads, product_bytes(n, n_threads));
    case MS__SCRATCH_CPU_ATTENTION:
        return times(n_threads, cpu_attention_bytes(n));
    case MS__SCRATCH_LARGEST:
        return ms__max(ms__max(n[0], n[1]), ms__max(n[2], n[3]));
    default:
        return 0;
    }
}

int64_t ms__scratch_bytes(enum ms__scratch_rule rule, const int64_t n[MS__SCRATCH_NUMBERS], int64_t capability,
                          int64_t n_multiprocessors) {
    if (capability <= 0) return cpu_bytes(rule, n, n_multiprocessors);
    switch (rule) {
    case MS__SCRATCH_REDUCE:
        return reduce_bytes(n, capability, n_multiprocessors);
    case MS__SCRATCH_FLASH: /* the gradient of the queries in fp32, and a sum for each row */
    case MS__SCRATCH_EFFICIENT:
        return plus(plus(times(times(n[0], 4), n[2] + 1), 256), times(2, n[3]));
    case MS__SCRATCH_CONVOLUTION: /* copies in another layout */
    case MS__SCRATCH_CONVOLUTION16:
        return plus(plus(n[0], n[1]), n[2]);
    case MS__SCRATCH_BYTES:
        return n[0];
    default:
        return 0;
    }
}
