/* ops.h - what is known about torch's operations: arithmetic, and memory that a kernel allocates for itself.
 *
 * A trace names operations and gives the shapes of their operands. Everything else about them is here: one table, by
 * name.
 */
#ifndef MS_PROFILE_OPS_H
#define MS_PROFILE_OPS_H

#include "../common/status.h"

#define MS__MAX_DIMS 6

/* An operand, as a trace has it. */
typedef ms_trace_operand ms__operand;

/* Memory that a kernel allocates while it runs, by rule. The numbers that a rule needs are in `n`: */
enum ms__scratch_rule {
    MS__SCRATCH_NONE,
    MS__SCRATCH_REDUCE,        /* outputs, inputs for each, is the fastest dimension reduced, bytes on a CPU */
    MS__SCRATCH_FLASH,         /* rows (batch x heads x length), batch x heads, head width, bytes of expanded keys */
    MS__SCRATCH_EFFICIENT,     /* the same */
    MS__SCRATCH_CONVOLUTION,   /* input bytes, output bytes, weight bytes, the batch if it is backward or 0 */
    MS__SCRATCH_BYTES,         /* bytes on a GPU, bytes on a CPU */
    MS__SCRATCH_CONVOLUTION16, /* as MS__SCRATCH_CONVOLUTION, elements of 16 bits */
    MS__SCRATCH_PRODUCT16,     /* rows, inner length and columns of a product of elements of 16 bits, on a CPU */
    MS__SCRATCH_CPU_ATTENTION, /* length of queries, length of keys, element bytes, head width or 0 if it is backward */
    MS__SCRATCH_LARGEST,       /* bytes at four moments of a kernel: the largest counts */
    MS__SCRATCH_LIGHT_CONVOLUTION,   /* as MS__SCRATCH_CONVOLUTION on a CPU; a GPU needs nothing */
    MS__SCRATCH_LIGHT_CONVOLUTION16, /* as MS__SCRATCH_CONVOLUTION16 on a CPU; a GPU needs nothing */
    MS__N_SCRATCH_RULES
};

#define MS__SCRATCH_NUMBERS 4

typedef struct ms__op_cost {
    int64_t flops;         /* of matrix products, convolutions and attention */
    int64_t bytes;         /* read and written */
    int64_t element_bytes; /* of the first operand: which rate counts */
    bool is_view;          /* no kernel runs */
    bool is_matrix;        /* goes through cuBLAS */
    bool is_biased;        /* goes through cuBLASLt, which adds a row to a product */
    bool is_attention;     /* one kernel for all of it */
    int64_t alignment;     /* of the rows of a product's matrices, in elements: the largest power of 2; 0: not known */
    bool is_random;        /* draws random numbers */
    enum ms__scratch_rule rule;
    int64_t n[MS__SCRATCH_NUMBERS];
} ms__op_cost;

/* What an operation costs. `name` is torch's, such as "aten.mm.default". Unknown operations move their bytes and do no
 * arithmetic. */
void ms__op_cost_of(const char *name, const ms__operand *inputs, int64_t n_inputs, const ms__operand *outputs,
                    int64_t n_outputs, ms__op_cost *out);

/* Bytes that the rule gives for a GPU with this capability and this many multiprocessors; capability 0: for a CPU with
 * this many threads. */
int64_t ms__scratch_bytes(enum ms__scratch_rule rule, const int64_t n[MS__SCRATCH_NUMBERS], int64_t capability,
                          int64_t n_multiprocessors);

#endif
