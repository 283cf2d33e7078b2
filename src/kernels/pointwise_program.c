/* pointwise_program.c - pointwise programs as text: pointwise_program.h. */
#include "pointwise_program.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/status.h"
#include "../common/structs.h"

extern const char ms__pointwise_math_source[], ms__pointwise_source[];

static const struct dtype {
    const char *name, *type; /* of the functions in pointwise_math.h; in the device's memory */
    int64_t bytes;
} dtypes[MS_N_POINTWISE_DTYPES] = {[MS_POINTWISE_FP32] = {"fp32", "float", 4},
                                   [MS_POINTWISE_BF16] = {"bf16", "ms__u16", 2},
                                   [MS_POINTWISE_FP16] = {"fp16", "ms__u16", 2}};

static const char *const functions[MS_N_POINTWISE_KINDS] = {
    "copy", "neg", "abs", "relu", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "add", "sub", "mul", "div"};

static bool is_dtype(int32_t dtype) { return dtype >= 0 && dtype < MS_N_POINTWISE_DTYPES; }

/* Programs were checked when they came in; this lets checkers of this file see it. */
static const struct dtype *row_of(int32_t dtype) { return &dtypes[is_dtype(dtype) ? dtype : MS_POINTWISE_FP32]; }

int64_t ms__pointwise_element_bytes(int32_t dtype) { return row_of(dtype)->bytes; }

int32_t ms__pointwise_result(const ms_pointwise *program) {
    int64_t last = program->n_ops - 1;
    return last >= 0 && last < MS_POINTWISE_MAX_OPS ? program->ops[last].dtype : MS_POINTWISE_FP32;
}

/* ---- Checks ---- */

static bool is_operand(int32_t operand, int64_t n_known) {
    return operand == MS_POINTWISE_SCALAR || (operand >= 0 && operand < n_known);
}

static bool is_op(const ms_pointwise_op *op, int64_t n_known) {
    bool has_two = op->kind >= MS_POINTWISE_ADD;
    return op->kind >= 0 && op->kind < MS_N_POINTWISE_KINDS && is_dtype(op->dtype) && is_operand(op->a, n_known) &&
           (!has_two || is_operand(op->b, n_known));
}

ms_status ms__pointwise_read(const ms_pointwise *theirs, ms_pointwise *out) {
    ms_status status = ms__struct_read(MS__STRUCT(ms_pointwise), theirs, out);
    if (status != MS_OK) return status;
    if (out->n_inputs < 1 || out->n_inputs > MS_POINTWISE_MAX_INPUTS || out->n_ops < 1 ||
        out->n_ops > MS_POINTWISE_MAX_OPS)
        return ms__fail(MS_E_INVALID,
                        "a pointwise program has 1 to %d inputs and 1 to %d operations, not %" PRId64 " and %" PRId64,
                        MS_POINTWISE_MAX_INPUTS, MS_POINTWISE_MAX_OPS, out->n_inputs, out->n_ops);
    for (int64_t i = 0; i < out->n_inputs; i++)
        if (!is_dtype(out->input_dtypes[i]))
            return ms__fail(MS_E_INVALID, "input %" PRId64 " of a pointwise program has the unknown type %d", i,
                            (int)out->input_dtypes[i]);
    for (int64_t i = 0; i < out->n_ops; i++)
        if (!is_op(&out->ops[i], out->n_inputs + i))
            return ms__fail(MS_E_INVALID, "operation %" PRId64 " of a pointwise program is none", i);
    return MS_OK;
}

/* ---- Names ---- */

/* Two hashes, since what has the name of another program runs as that one. */
void ms__pointwise_name(const ms_pointwise *program, char *out) {
    uint64_t hashes[2] = {1, 2};
    for (int h = 0; h < 2; h++) {
        hashes[h] = ms_hash64(program->input_dtypes, (size_t)program->n_inputs * sizeof(int32_t), hashes[h]);
        for (int64_t i = 0; i < program->n_ops; i++)
            hashes[h] = ms_hash64(&program->ops[i], sizeof program->ops[i], hashes[h]);
    }
    (void)snprintf(out, MS__POINTWISE_NAME_BYTES, "pointwise-%016" PRIx64 "%016" PRIx64, hashes[0], hashes[1]);
}

/* ---- Text ---- */

#define MAX_LINE 160
#define MAX_LINES (3 * MS_POINTWISE_MAX_OPS + 2 * MS_POINTWISE_MAX_INPUTS + 4)

typedef struct text {
    char *at;
    size_t n, capacity;
} text;

static void put(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(text *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(t->at + t->n, t->capacity - t->n, format, arguments);
    va_end(arguments);
    if (n > 0) t->n += (size_t)n;
}

/* v3, or the bits of the scalar. */
static void put_operand(text *t, const ms_pointwise_op *op, int32_t which) {
    float value = (float)op->scalar;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (which == MS_POINTWISE_SCALAR)
        put(t, "ms__pw_float(0x%08" PRIx32 "U)", bits);
    else
        put(t, "v%" PRId32, which);
}

static void put_op(text *t, const ms_pointwise_op *op, int64_t number) {
    const char *type = row_of(op->dtype)->name;
    put(t, "    float v%" PRId64 " = ms__pw_%s(", number, functions[op->kind]);
    put_operand(t, op, op->a);
    if (op->kind >= MS_POINTWISE_ADD) {
        put(t, ", ");
        put_operand(t, op, op->b);
    }
    put(t, ");\n");
    if (op->dtype != MS_POINTWISE_FP32)
        put(t, "    v%" PRId64 " = ms__pw_read_%s(ms__pw_write_%s(v%" PRId64 "));\n", number, type, type, number);
}

/* Inputs that are not used are the first one. */
static void put_program(text *t, const ms_pointwise *program) {
    int32_t result = ms__pointwise_result(program);
    for (int i = 0; i < MS_POINTWISE_MAX_INPUTS; i++)
        put(t, "typedef %s ms__pw_%d;\n", row_of(program->input_dtypes[i < program->n_inputs ? i : 0])->type, i);
    put(t, "typedef %s ms__pw_out;\n", row_of(result)->type);
    put(t, "MS__SHARED ms__pw_out ms__pw_value(ms__pw_0 i0, ms__pw_1 i1, ms__pw_2 i2, ms__pw_3 i3) {\n");
    for (int i = 0; i < MS_POINTWISE_MAX_INPUTS; i++)
        if (i < program->n_inputs)
            put(t, "    float v%d = ms__pw_read_%s(i%d);\n", i, row_of(program->input_dtypes[i])->name, i);
        else
            put(t, "    (void)i%d;\n", i);
    for (int64_t i = 0; i < program->n_ops; i++) put_op(t, &program->ops[i], program->n_inputs + i);
    put(t, "    return ms__pw_write_%s(v%" PRId64 ");\n}\n", row_of(result)->name,
        program->n_inputs + program->n_ops - 1);
}

char *ms__pointwise_text(const ms_pointwise *program) {
    size_t n_bytes =
        strlen(ms__pointwise_math_source) + strlen(ms__pointwise_source) + (size_t)MAX_LINES * MAX_LINE + 1;
    text t = {.at = malloc(n_bytes), .capacity = n_bytes};
    if (t.at == NULL) return NULL;
    put(&t, "%s", ms__pointwise_math_source);
    put_program(&t, program);
    put(&t, "%s", ms__pointwise_source);
    return t.at;
}

ms_status ms_pointwise_source(const ms_pointwise *program, char **out) {
    if (out == NULL) return ms__fail(MS_E_INVALID, "ms_pointwise_source: out is NULL");
    ms_pointwise ours;
    ms_status status = ms__pointwise_read(program, &ours);
    if (status != MS_OK) return status;
    char *made = ms__pointwise_text(&ours);
    if (made == NULL) return ms__fail_memory(sizeof ours);
    *out = made;
    return MS_OK;
}
