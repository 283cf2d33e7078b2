/* ref_pointwise.c - pointwise programs in plain C: what the device's result must equal, where the host's tanh, exp and
 * erf round as the device's do. */
#include <inttypes.h>
#include <math.h>

#include "../../common/status.h"
#include "../pointwise_math.h"
#include "../pointwise_program.h"

static float read_element(const void *data, int32_t dtype, int64_t i) {
    if (dtype == MS_POINTWISE_FP32) return ms__pw_read_fp32(((const float *)data)[i]);
    ms__u16 bits = ((const ms__u16 *)data)[i];
    return dtype == MS_POINTWISE_BF16 ? ms__pw_read_bf16(bits) : ms__pw_read_fp16(bits);
}

static void write_element(void *data, int32_t dtype, int64_t i, float value) {
    if (dtype == MS_POINTWISE_FP32)
        ((float *)data)[i] = ms__pw_write_fp32(value);
    else
        ((ms__u16 *)data)[i] = dtype == MS_POINTWISE_BF16 ? ms__pw_write_bf16(value) : ms__pw_write_fp16(value);
}

static float of_one(int32_t kind, float a) {
    switch (kind) {
    case MS_POINTWISE_NEG:
        return ms__pw_neg(a);
    case MS_POINTWISE_ABS:
        return ms__pw_abs(a);
    case MS_POINTWISE_RELU:
        return ms__pw_relu(a);
    case MS_POINTWISE_TANH:
        return ms__pw_tanh(a);
    case MS_POINTWISE_SIGMOID:
        return ms__pw_sigmoid(a);
    case MS_POINTWISE_SILU:
        return ms__pw_silu(a);
    case MS_POINTWISE_GELU:
        return ms__pw_gelu(a);
    case MS_POINTWISE_GELU_TANH:
        return ms__pw_gelu_tanh(a);
    default:
        return ms__pw_copy(a);
    }
}

static float of_two(int32_t kind, float a, float b) {
    switch (kind) {
    case MS_POINTWISE_ADD:
        return ms__pw_add(a, b);
    case MS_POINTWISE_SUB:
        return ms__pw_sub(a, b);
    case MS_POINTWISE_MUL:
        return ms__pw_mul(a, b);
    default:
        return ms__pw_div(a, b);
    }
}

static float rounded(float value, int32_t dtype) {
    if (dtype == MS_POINTWISE_BF16) return ms__pw_read_bf16(ms__pw_write_bf16(value));
    return dtype == MS_POINTWISE_FP16 ? ms__pw_read_fp16(ms__pw_write_fp16(value)) : value;
}

/* The last of `values`, of which the first n_inputs are known. */
static float compute(const ms_pointwise *program, float *values) {
    float last = 0;
    for (int64_t i = 0; i < program->n_ops; i++) {
        const ms_pointwise_op *op = &program->ops[i];
        float scalar = (float)op->scalar;
        float a = op->a == MS_POINTWISE_SCALAR ? scalar : values[op->a];
        float b = op->kind < MS_POINTWISE_ADD || op->b == MS_POINTWISE_SCALAR ? scalar : values[op->b];
        last = rounded(op->kind < MS_POINTWISE_ADD ? of_one(op->kind, a) : of_two(op->kind, a, b), op->dtype);
        values[program->n_inputs + i] = last;
    }
    return last;
}

ms_status ms_pointwise_run(const ms_pointwise *program, const void *const *inputs, void *output, int64_t n) {
    ms_pointwise ours;
    ms_status status = ms__pointwise_read(program, &ours);
    if (status != MS_OK) return status;
    if (n < 0 || (n > 0 && (inputs == NULL || output == NULL)))
        return ms__fail(MS_E_INVALID, "ms_pointwise_run: there is no memory for %" PRId64 " elements", n);
    for (int64_t e = 0; e < n; e++) {
        float values[MS_POINTWISE_MAX_INPUTS + MS_POINTWISE_MAX_OPS];
        for (int64_t i = 0; i < ours.n_inputs; i++) values[i] = read_element(inputs[i], ours.input_dtypes[i], e);
        write_element(output, ms__pointwise_result(&ours), e, compute(&ours, values));
    }
    return MS_OK;
}
