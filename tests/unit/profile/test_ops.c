/* test_ops.c - what is known about torch's operations: arithmetic, traffic, and the memory that kernels allocate.
 *
 * Bytes of reductions and of attention's backward are what an H200 (capability 9.0, 132 multiprocessors) was observed
 * to allocate under torch 2.13.
 */
#include <string.h>

#include "runner.h"

#include "profile/ops.h"

#define MAX_OPERANDS 10
#define HOPPER 90
#define N_MULTIPROCESSORS 132

static ms__operand operand(int64_t element_bytes, int64_t n_dims, const int64_t *dims) {
    ms__operand t = {.element_bytes = element_bytes, .n_dims = n_dims, .dims = {1, 1, 1, 1, 1, 1}};
    for (int64_t i = 0; i < n_dims && i < MS__MAX_DIMS; i++) t.dims[i] = dims[i];
    return t;
}

static ms__operand matrix(int64_t rows, int64_t columns) { return operand(4, 2, (int64_t[]){rows, columns}); }

static ms__operand vector(int64_t n) { return operand(4, 1, &n); }

static ms__operand heads(int64_t batch, int64_t n_heads, int64_t length, int64_t width) {
    return operand(4, 4, (int64_t[]){batch, n_heads, length, width});
}

static ms__op_cost cost_of(const char *name, const ms__operand *operands, int64_t n_inputs, int64_t n_outputs) {
    ms__op_cost cost;
    ms__op_cost_of(name, operands, n_inputs, operands + n_inputs, n_outputs, &cost);
    return cost;
}

static int64_t scratch_on(const ms__op_cost *cost, int64_t capability) {
    return ms__scratch_bytes(cost->rule, cost->n, capability, N_MULTIPROCESSORS);
}

TEST(products) {
    const ms__operand mm[] = {matrix(8, 16), matrix(16, 32), matrix(8, 32)};
    ms__op_cost cost = cost_of("aten.mm.default", mm, 2, 1);
    CHECK_EQ_INT(cost.flops, 2 * 8 * 16 * 32);
    CHECK_EQ_INT(cost.bytes, 4 * (8 * 16 + 16 * 32 + 8 * 32));
    CHECK_EQ_INT(cost.element_bytes, 4);
    CHECK(cost.is_matrix && !cost.is_view && !cost.is_random && cost.rule == MS__SCRATCH_NONE);

    const ms__operand addmm[] = {vector(32), matrix(8, 16), matrix(16, 32), matrix(8, 32)};
    cost = cost_of("aten.addmm.default", addmm, 3, 1);
    CHECK_EQ_INT(cost.flops, 2 * 8 * 16 * 32);
    CHECK(cost.is_matrix);

    const int64_t a[] = {3, 8, 16}, b[] = {3, 16, 32}, c[] = {3, 8, 32};
    const ms__operand bmm[] = {operand(2, 3, a), operand(2, 3, b), operand(2, 3, c)};
    cost = cost_of("aten.bmm.default", bmm, 2, 1);
    CHECK_EQ_INT(cost.flops, 3 * 2 * 8 * 16 * 32);
    CHECK_EQ_INT(cost.element_bytes, 2);
}

static ms__operand transposed(int64_t rows, int64_t columns) {
    ms__operand t = matrix(rows, columns);
    t.last_stride = rows;
    return t;
}

/* What counts are the lengths of contiguous rows, not the number of rows. */
TEST(alignment_of_products) {
    const ms__operand forward[] = {matrix(7, 1024), transposed(1024, 50257), matrix(7, 50257)};
    CHECK_EQ_INT(cost_of("aten.mm.default", forward, 2, 1).alignment, 1);
    const ms__operand of_input[] = {matrix(7, 50258), matrix(50258, 1024), matrix(7, 1024)};
    CHECK_EQ_INT(cost_of("aten.mm.default", of_input, 2, 1).alignment, 2);
    const ms__operand of_weight[] = {transposed(50260, 7), matrix(7, 1024), matrix(50260, 1024)};
    CHECK_EQ_INT(cost_of("aten.mm.default", of_weight, 2, 1).alignment, 4);
    const ms__operand even[] = {matrix(7, 1024), transposed(1024, 50304), matrix(7, 50304)};
    CHECK_EQ_INT(cost_of("aten.mm.default", even, 2, 1).alignment, 128);
    const ms__operand empty[] = {matrix(7, 0), matrix(0, 0), matrix(7, 0)};
    CHECK_EQ_INT(cost_of("aten.mm.default", empty, 2, 1).alignment, 0);
    const ms__operand sum[] = {matrix(7, 5), matrix(7, 5), matrix(7, 5)};
    CHECK_EQ_INT(cost_of("aten.add.Tensor", sum, 2, 1).alignment, 0);
}

TEST(attention) {
    const ms__operand forward[] = {heads(4, 16, 512, 64), heads(4, 16, 512, 64), heads(4, 16, 512, 64),
                                   heads(4, 16, 512, 64)};
    ms__op_cost cost = cost_of("aten._scaled_dot_product_efficient_attention.default", forward, 3, 1);
    CHECK_EQ_INT(cost.flops, INT64_C(4) * 4 * 16 * 512 * 512 * 64);
    CHECK(!cost.is_matrix && cost.rule == MS__SCRATCH_NONE);
    CHECK_EQ_INT(scratch_on(&cost, HOPPER), 0);
}

static int64_t attention_backward(const char *name, int64_t batch, int64_t n_heads, int64_t length,
                                  int64_t capability) {
    ms__operand t = heads(batch, n_heads, length, 64);
    const ms__operand operands[] = {t, t, t, t, t, t, t};
    ms__op_cost cost = cost_of(name, operands, 4, 3);
    CHECK_EQ_INT(cost.flops, 10 * batch * n_heads * length * length * 64);
    return scratch_on(&cost, capability);
}

TEST(memory_of_attention) {
    static const char *const names[] = {"aten._scaled_dot_product_efficient_attention_backward.default",
                                        "aten._scaled_dot_product_flash_attention_backward.default"};
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(attention_backward(names[i], 4, 16, 512, HOPPER), 8519936);
        CHECK_EQ_INT(attention_backward(names[i], 32, 12, 197, HOPPER), 19668736);
        CHECK_EQ_INT(attention_backward(names[i], 4, 16, 512, 0), 0);
    }
    const char *cpu = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default";
    CHECK_EQ_INT(attention_backward(cpu, 4, 16, 512, HOPPER), 0);
}

/* Fewer heads for keys than for queries: keys and values are expanded first. */
TEST(grouped_attention) {
    ms__operand q = heads(2, 8, 128, 64), k = heads(2, 2, 128, 64);
    const ms__operand operands[] = {q, q, k, k, q, k, k};
    ms__op_cost cost = cost_of("aten._scaled_dot_product_flash_attention_backward.default", operands, 4, 3);
    int64_t rows = 2 * 8 * 128;
    CHECK_EQ_INT(scratch_on(&cost, HOPPER), rows * 4 * (64 + 1) + 256 + 2 * (2 * 8 * 128 * 64 * 4));
}

static int64_t sum_over_rows(int64_t rows, int64_t columns, int64_t capability) {
    const ms__operand operands[] = {matrix(rows, columns), matrix(1, columns)};
    ms__op_cost cost = cost_of("aten.sum.dim_IntList", operands, 1, 1);
    CHECK_EQ_INT(cost.bytes, 4 * (rows * columns + columns));
    CHECK_EQ_INT(cost.flops, 0);
    return scratch_on(&cost, capability);
}

TEST(memory_of_reductions) {
    CHECK_EQ_INT(sum_over_rows(2048, 4096, HOPPER), 67108864);
    CHECK_EQ_INT(sum_over_rows(2048, 1024, HOPPER), 16777216);
    CHECK_EQ_INT(sum_over_rows(2048, 3072, HOPPER), 50331648);
    CHECK_EQ_INT(sum_over_rows(6304, 3072, HOPPER), 138412032);
    CHECK_EQ_INT(sum_over_rows(6304, 768, HOPPER), 38928384);
}

/* One block is enough for each output: nothing is combined in global memory. */
TEST(small_reductions_take_nothing) {
    CHECK_EQ_INT(sum_over_rows(1, 1024, HOPPER), 0);
    CHECK_EQ_INT(sum_over_rows(64, 64, HOPPER), 0);
    CHECK_EQ_INT(sum_over_rows(255, 1024, HOPPER), 0);
    CHECK_EQ_INT(sum_over_rows(2048, 0, HOPPER), 0);
    CHECK_EQ_INT(sum_over_rows(0, 1024, HOPPER), 0);
}

TEST(reductions_on_a_cpu_take_nothing) {
    CHECK_EQ_INT(sum_over_rows(2048, 4096, 0), 0);
    CHECK_EQ_INT(sum_over_rows(6304, 768, 0), 0);
}

/* The output may have lost its first dimension, and means are sums. */
TEST(forms_of_reductions) {
    const ms__operand sum[] = {matrix(2048, 1024), vector(1024)};
    ms__op_cost cost = cost_of("aten.sum.dim_IntList", sum, 1, 1);
    CHECK_EQ_INT(cost.n[0], 1024);
    CHECK_EQ_INT(cost.n[1], 2048);
    CHECK_EQ_INT(cost.n[2], 0);
    CHECK_EQ_INT(scratch_on(&cost, HOPPER), 16777216);
    cost = cost_of("aten.mean.dim", sum, 1, 1);
    CHECK_EQ_INT(scratch_on(&cost, HOPPER), 16777216);

    const ms__operand last[] = {matrix(2048, 1024), matrix(2048, 1)}; /* over the last dimension */
    cost = cost_of("aten.sum.dim_IntList", last, 1, 1);
    CHECK_EQ_INT(cost.n[0], 2048);
    CHECK_EQ_INT(cost.n[2], 1);
    CHECK_EQ_INT(scratch_on(&cost, HOPPER), 0);

    const ms__operand all[] = {matrix(2048, 1024), operand(4, 0, NULL)};
    cost = cost_of("aten.sum.default", all, 1, 1);
    CHECK_EQ_INT(cost.n[0], 1);
    CHECK_EQ_INT(cost.n[1], 2048 * 1024);
    CHECK(scratch_on(&cost, HOPPER) > 0);
}

TEST(views_cost_nothing) {
    static const char *const names[] = {"aten.view.default", "aten.t.default", "aten.transpose.int", "aten.detach"};
    const ms__operand operands[] = {matrix(8, 8), matrix(8, 8)};
    for (int i = 0; i < 4; i++) {
        ms__op_cost cost = cost_of(names[i], operands, 1, 1);
        CHECK(cost.is_view && cost.bytes == 0 && cost.flops == 0 && cost.rule == MS__SCRATCH_NONE);
    }
}

TEST(unknown_operations_move_their_bytes) {
    static const char *const names[] = {
        "aten.gelu.default", "aten.viewer.default", "mine.mm.default", "aten.", "mm", "aten._foreach_add_.List", ""};
    const ms__operand operands[] = {matrix(8, 8), matrix(8, 8)};
    for (int i = 0; i < 7; i++) {
        ms__op_cost cost = cost_of(names[i], operands, 1, 1);
        CHECK(!cost.is_view && !cost.is_matrix && cost.flops == 0 && cost.rule == MS__SCRATCH_NONE);
        CHECK_EQ_INT(cost.bytes, 2 * 4 * 64);
    }
}

TEST(random_operations) {
    const ms__operand operands[] = {matrix(8, 8), matrix(8, 8), matrix(8, 8)};
    CHECK(cost_of("aten.native_dropout.default", operands, 1, 2).is_random);
    CHECK(cost_of("aten.bernoulli_.float", operands, 1, 1).is_random);
    CHECK(!cost_of("aten.native_dropout_backward.default", operands, 2, 1).is_random);
}

TEST(operands_that_are_not_on_the_device) {
    ms__operand operands[] = {matrix(8, 8), matrix(8, 8), matrix(8, 8)};
    operands[1].storage = -1;
    CHECK_EQ_INT(cost_of("aten.add.Tensor", operands, 2, 1).bytes, 2 * 4 * 64);
}

TEST(memory_of_other_kernels) {
    const int64_t ids[] = {4, 128};
    const ms__operand embedding[] = {matrix(512, 64), operand(8, 2, ids), matrix(1000, 64)};
    ms__op_cost cost = cost_of("aten.embedding_dense_backward.default", embedding, 2, 1);
    CHECK_EQ_INT(scratch_on(&cost, HOPPER), 5 * 4 * 128 * 8);
    CHECK_EQ_INT(scratch_on(&cost, 0), 0);

    const ms__operand softmax[] = {matrix(16, 64), matrix(16, 64), matrix(16, 64)};
    cost = cost_of("aten._softmax_backward_data.default", softmax, 2, 1);
    CHECK_EQ_INT(scratch_on(&cost, HOPPER), 16 * 64 * 4);
    cost = cost_of("aten._safe_softmax.default", softmax, 1, 1);
    CHECK_EQ_INT(scratch_on(&cost, HOPPER), 16 * 64);
}

TEST(convolutions) {
    const int64_t image[] = {2, 3, 16, 16}, kernel[] = {8, 3, 4, 4}, result[] = {2, 8, 4, 4};
    const ms__operand forward[] = {operand(4, 4, image), operand(4, 4, kernel), operand(4, 4, result)};
    int64_t in = 2 * 3 * 16 * 16 * 4, out = 2 * 8 * 4 * 4 * 4, weight = 8 * 3 * 4 * 4 * 4;
    ms__op_cost cost = cost_of("aten.convolution.default", forward, 2, 1);
    CHECK_EQ_INT(cost.flops, 2 * (2 * 8 * 4 * 4) * (3 * 4 * 4));
    CHECK_EQ_INT(scratch_on(&cost, HOPPER), in + out + weight);
    const ms__operand backward[] = {operand(4, 4, result), operand(4, 4, image), operand(4, 4, kernel),
                                    operand(4, 4, image), operand(4, 4, kernel)};
    cost = cost_of("aten.convolution_backward.default", backward, 3, 2);
    CHECK_EQ_INT(cost.flops, 4 * (2 * 8 * 4 * 4) * (3 * 4 * 4));
    CHECK_EQ_INT(scratch_on(&cost, HOPPER), in + out + weight);
}

static int64_t on_gpu(const char *name, ms__operand first, ms__operand second, ms__operand third) {
    const ms__operand operands[] = {first, second, third};
    bool backward = strstr(name, "backward") != NULL;
    ms__op_cost cost = cost_of(name, operands, backward ? 3 : 2, backward ? 0 : 1);
    return scratch_on(&cost, HOPPER);
}

/* Measured on an H200 with torch 2.11 and cuDNN 9, in fp32 and bf16. */
TEST(convolutions_that_need_no_copies_on_a_gpu) {
    const int64_t wide[] = {8, 64, 56, 56}, wider[] = {8, 256, 56, 56}, few[] = {8, 16, 56, 56},
                  half[] = {8, 64, 28, 28};
    const int64_t depthwise[] = {64, 1, 3, 3}, point[] = {256, 64, 1, 1}, thin[] = {16, 64, 1, 1},
                  square[] = {64, 64, 1, 1};
    const char *forward = "aten.convolution.default", *backward = "aten.convolution_backward.default";
    CHECK_EQ_INT(on_gpu(forward, operand(4, 4, wide), operand(4, 4, depthwise), operand(4, 4, wide)), 0);
    CHECK_EQ_INT(on_gpu(backward, operand(4, 4, wide), operand(4, 4, wide), operand(4, 4, depthwise)), 0);
    CHECK_EQ_INT(on_gpu(forward, operand(2, 4, wide), operand(2, 4, point), operand(2, 4, wider)), 0);
    CHECK_EQ_INT(on_gpu(backward, operand(4, 4, wider), operand(4, 4, wide), operand(4, 4, point)), 0);
    CHECK_EQ_INT(on_gpu(forward, operand(4, 4, wide), operand(4, 4, thin), operand(4, 4, few)), 0);
    CHECK(on_gpu(backward, operand(4, 4, few), operand(4, 4, wide), operand(4, 4, thin)) > 0);
    CHECK(on_gpu(forward, operand(4, 4, wide), operand(4, 4, square), operand(4, 4, half)) > 0); /* strided */
}

/* ---- On a CPU: what torch 2.13 with oneDNN was observed to allocate, with AVX-512 and two threads ---- */

static ms__operand image(int64_t element_bytes, int64_t batch, int64_t channels, int64_t side) {
    return operand(element_bytes, 4, (int64_t[]){batch, channels, side, side});
}

static int64_t on_cpu(const char *name, const ms__operand *operands, int64_t n_inputs, int64_t n_outputs) {
    ms__op_cost cost = cost_of(name, operands, n_inputs, n_outputs);
    return ms__scratch_bytes(cost.rule, cost.n, 0, 2);
}

static bool is_near(int64_t bytes, int64_t seen) { return bytes > seen * 95 / 100 && bytes < seen * 105 / 100; }

TEST(a_cpu_copies_operands_of_another_type) {
    const int64_t shape[] = {4, 96, 128}, scores[] = {4, 4, 96, 96}, bias[] = {1, 4, 96, 96};
    const ms__operand sum[] = {operand(2, 3, shape), operand(4, 3, shape), operand(4, 3, shape)};
    CHECK_EQ_INT(on_cpu("aten.add.Tensor", sum, 2, 1), 196608);
    CHECK_EQ_INT(on_cpu("aten.mul.Tensor", sum, 2, 1), 196608);
    CHECK_EQ_INT(on_cpu("aten.add.Tensor", sum + 1, 1, 1), 0); /* of one type */
    const ms__operand masked[] = {operand(4, 4, scores), operand(2, 4, bias), operand(4, 4, scores)};
    CHECK_EQ_INT(on_cpu("aten.add.Tensor", masked, 2, 1), 147456);
    const ms__operand in_place[] = {operand(2, 3, shape), operand(4, 3, shape), operand(2, 3, shape)};
    CHECK_EQ_INT(on_cpu("aten.add_.Tensor", in_place, 2, 1), 196608);
    ms__op_cost cost = cost_of("aten.add.Tensor", sum, 2, 1);
    CHECK_EQ_INT(scratch_on(&cost, HOPPER), 0);
    const ms__operand mean[] = {operand(2, 3, shape), operand(2, 1, (int64_t[]){128})};
    CHECK_EQ_INT(on_cpu("aten.mean.dim", mean, 1, 1), 196608);
    CHECK_EQ_INT(on_cpu("aten.sum.dim_IntList", mean, 1, 1), 0);
}

TEST(copies_of_a_cpu_in_another_layout) {
    const ms__operand norm[] = {image(4, 4, 64, 8), image(4, 4, 64, 8), image(4, 4, 64, 8)};
    CHECK_EQ_INT(on_cpu("aten.native_batch_norm_backward.default", norm, 2, 1), 65536);
    const ms__operand wider[] = {image(4, 4, 32, 16), image(4, 4, 32, 32)};
    CHECK_EQ_INT(on_cpu("aten.upsample_nearest2d.default", wider, 1, 1), 655360);
    const int64_t scores[] = {4, 4, 96, 96};
    const ms__operand softmax[] = {operand(4, 4, scores), operand(4, 4, scores)};
    CHECK_EQ_INT(on_cpu("aten._safe_softmax.default", softmax, 1, 1), 147456);

    const int64_t kernel[] = {32, 32, 3, 3}, deep[] = {64, 64, 3, 3};
    const ms__operand forward[] = {image(4, 4, 32, 16), operand(4, 4, kernel), image(4, 4, 32, 16)};
    CHECK_EQ_INT(on_cpu("aten.convolution.default", forward, 2, 1), 167936);
    const ms__operand backward[] = {image(4, 4, 32, 16), image(4, 4, 32, 16), operand(4, 4, kernel)};
    CHECK_EQ_INT(on_cpu("aten.convolution_backward.default", backward, 3, 0), 262144);
    const ms__operand weights[] = {image(4, 4, 64, 8), image(4, 4, 64, 8), operand(4, 4, deep)};
    CHECK_EQ_INT(on_cpu("aten.convolution_backward.default", weights, 3, 0), 147456);
    const ms__operand narrow[] = {image(2, 4, 64, 8), image(2, 4, 64, 8), operand(2, 4, deep)};
    CHECK(is_near(on_cpu("aten.convolution_backward.default", narrow, 3, 0), 248196));
}

static int64_t forward_of(const char *name, ms__operand data, ms__operand weight, ms__operand result) {
    const ms__operand operands[] = {data, weight, result};
    return on_cpu(name, operands, 2, 1);
}

static int64_t backward_of(const char *name, ms__operand data, ms__operand weight, ms__operand result) {
    const ms__operand operands[] = {result, data, weight};
    return on_cpu(name, operands, 3, 0);
}

static ms__operand weight_of(int64_t element_bytes, int64_t n_out, int64_t n_in, int64_t edge) {
    return operand(element_bytes, 4, (int64_t[]){n_out, n_in, edge, edge});
}

TEST(convolutions_of_a_cpu_by_kernel) {
    ms__operand x = image(4, 4, 64, 16), y = image(4, 4, 128, 16), w = weight_of(4, 128, 64, 3);
    CHECK_EQ_INT(forward_of("aten.convolution.cpu_blocked", x, w, y), 557056);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_blocked", x, w, y), 786432);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_blocked_copied", x, w, y), 1310720);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_last", x, w, y), 884736);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_last_copied", x, w, y), 1409024);
    ms__operand point = weight_of(4, 128, 64, 1);
    CHECK_EQ_INT(forward_of("aten.convolution.cpu_direct", x, point, y), 0);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_direct_copied", x, point, y), 524288);
    ms__operand one = image(4, 1, 64, 16), one_y = image(4, 1, 128, 16);
    CHECK_EQ_INT(forward_of("aten.convolution.cpu_columns", one, w, one_y), 589824);
    ms__operand wide = image(4, 4, 32, 64), half = image(4, 4, 32, 32), square = weight_of(4, 32, 32, 3);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_blocked_strided", wide, square, half), 4157440);
}

TEST(convolutions_of_a_cpu_whose_channels_do_not_fill_blocks) {
    ms__operand x = image(4, 4, 24, 64), y = image(4, 4, 40, 64), w = weight_of(4, 40, 24, 3);
    CHECK_EQ_INT(forward_of("aten.convolution.cpu_blocked", x, w, y), 3145728);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_blocked", x, w, y), 5263616);
    ms__operand picture = image(4, 4, 3, 64), stem = weight_of(4, 32, 3, 3), made = image(4, 4, 32, 64);
    CHECK_EQ_INT(forward_of("aten.convolution.cpu_blocked", picture, stem, made), 2097152);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_blocked_weights", picture, stem, made), 2097152);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_blocked", picture, stem, made), 2964096);
    ms__operand patch = weight_of(4, 512, 3, 32), patches = image(4, 4, 512, 2);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_blocked_weights", picture, patch, patches), 25215232);
}

TEST(depthwise_convolutions_of_a_cpu) {
    ms__operand x = image(4, 4, 64, 16), narrow = image(2, 4, 64, 16);
    ms__operand small = weight_of(4, 64, 1, 3), large = weight_of(4, 64, 1, 7), large16 = weight_of(2, 64, 1, 7);
    CHECK_EQ_INT(forward_of("aten.convolution.cpu_blocked_depthwise", x, small, x), 264448);
    CHECK_EQ_INT(forward_of("aten.convolution.cpu_last_depthwise", x, large, x), 12544);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_blocked_depthwise", x, small, x), 524288);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_blocked_depthwise", x, large, x), 262144);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_blocked_depthwise_weights", x, large, x), 100608);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_last_depthwise", x, small, x), 4608);
    CHECK_EQ_INT(backward_of("aten.convolution_backward.cpu_last_depthwise", x, large, x), 3223808);
    CHECK(is_near(backward_of("aten.convolution_backward.cpu_last_depthwise", narrow, large16, narrow), 5998856));
}

TEST(a_cpu_copies_what_is_not_contiguous) {
    const ms__operand operands[] = {matrix(8, 16), matrix(8, 16)};
    CHECK_EQ_INT(on_cpu("aten._log_softmax_backward_data.default.copies0", operands, 2, 0), 8 * 16 * 4);
    CHECK_EQ_INT(on_cpu("aten._log_softmax_backward_data.default.copies01", operands, 2, 0), 2 * 8 * 16 * 4);
    CHECK_EQ_INT(on_cpu("aten._log_softmax_backward_data.default", operands, 2, 0), 0);
}

static int64_t product16(int64_t rows, int64_t inner, int64_t columns) {
    const ms__operand operands[] = {operand(2, 2, (int64_t[]){rows, inner}), operand(2, 2, (int64_t[]){inner, columns}),
                                    operand(2, 2, (int64_t[]){rows, columns})};
    return on_cpu("aten.mm.default", operands, 2, 1);
}

TEST(blocks_of_a_cpu) {
    CHECK(is_near(product16(512, 384, 128), 624384));
    CHECK(is_near(product16(256, 512, 256), 476928));
    CHECK(product16(1 << 20, 1 << 20, 1 << 20) < 4 << 20); /* it goes by blocks */
    const ms__operand wide[] = {matrix(512, 384), matrix(384, 128), matrix(512, 128)};
    CHECK_EQ_INT(on_cpu("aten.mm.default", wide, 2, 1), 0);
    ms__operand t = heads(4, 4, 96, 32);
    const ms__operand attention[] = {t, t, t, t, t, t, t};
    CHECK_EQ_INT(on_cpu("aten._scaled_dot_product_flash_attention_for_cpu.default", attention, 3, 1), 33280);
    CHECK_EQ_INT(on_cpu("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", attention, 4, 3), 49152);
}

TEST(recurrent_layers_of_a_cpu) {
    const int64_t in[] = {96, 4, 64}, out[] = {96, 4, 96};
    const ms__operand x = operand(4, 3, in), y = operand(4, 3, out), state = matrix(4, 96);
    const ms__operand layer[] = {x, matrix(384, 64), matrix(384, 96), vector(384), vector(384), state, state, y};
    CHECK(is_near(on_cpu("aten.mkldnn_rnn_layer.default", layer, 7, 1), 849976));
    CHECK(is_near(on_cpu("aten.mkldnn_rnn_layer_backward.default", layer, 8, 0), 853048 + 147456)); /* and a copy */
}

/* With too few operands or absurd shapes, the cost is still in range. */
TEST(nothing_overflows) {
    static const char *const names[] = {"aten.mm.default",
                                        "aten.addmm.default",
                                        "aten._scaled_dot_product_efficient_attention_backward.default",
                                        "aten._scaled_dot_product_flash_attention.default",
                                        "aten.convolution.default",
                                        "aten.convolution_backward.default",
                                        "aten.convolution.cpu_blocked",
                                        "aten.convolution.cpu_columns",
                                        "aten.convolution_backward.cpu_blocked_strided_copied",
                                        "aten.convolution_backward.cpu_blocked_depthwise",
                                        "aten.convolution_backward.cpu_last_depthwise",
                                        "aten._softmax.default.copies01",
                                        "aten.sum.dim_IntList",
                                        "aten.embedding_dense_backward.default",
                                        "aten._softmax_backward_data.default",
                                        "aten._safe_softmax.default",
                                        "aten._scaled_dot_product_flash_attention_for_cpu.default",
                                        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
                                        "aten.native_batch_norm_backward.default",
                                        "aten.upsample_nearest2d.default",
                                        "aten.mkldnn_rnn_layer.default",
                                        "aten.mkldnn_rnn_layer_backward.default",
                                        "aten.add.Tensor",
                                        "aten.gelu.default"};
    static const int64_t sizes[] = {INT64_MIN, -1, 0, 1, 3, INT64_C(1) << 31, INT64_C(1) << 60, INT64_MAX};
    const int64_t most = INT64_MAX / 8;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            int64_t n = sizes[j], dims[] = {n, 2, n, 3, n, n};
            ms__operand all[MAX_OPERANDS];
            for (int k = 0; k < MAX_OPERANDS; k++)
                all[k] = operand(k % 2 == 0 ? 64 : 2, ((int)j + k) % 3 == 0 ? 9 : 6, dims);
            for (int64_t n_inputs = 0; n_inputs <= 8; n_inputs++) {
                ms__op_cost cost = cost_of(names[i], all, n_inputs, n_inputs % 3);
                CHECK(cost.flops >= 0 && cost.flops <= most && cost.bytes >= 0 && cost.bytes <= most);
                for (int k = 0; k < MS__SCRATCH_NUMBERS; k++) CHECK(cost.n[k] >= 0 && cost.n[k] <= most);
                int64_t gpu = scratch_on(&cost, HOPPER), cpu = scratch_on(&cost, 0);
                CHECK(gpu >= 0 && gpu <= most && cpu >= 0 && cpu <= most);
            }
        }
    }
}

/* A file may contain any numbers. */
TEST(rules_with_any_numbers) {
    static const int64_t values[] = {0, 1, 5, 4096, INT64_C(1) << 40, INT64_MAX / 8};
    enum { N = sizeof values / sizeof *values };
    for (int rule = MS__SCRATCH_NONE; rule < MS__N_SCRATCH_RULES; rule++) {
        for (int i = 0; i < N * N * N * N; i++) {
            const int64_t n[] = {values[i % N], values[i / N % N], values[i / N / N % N], values[i / N / N / N]};
            for (int64_t capability = 0; capability <= 120; capability += 15) {
                int64_t bytes = ms__scratch_bytes((enum ms__scratch_rule)rule, n, capability, i % 2 == 0 ? 0 : 1000000);
                CHECK(bytes >= 0 && bytes <= INT64_MAX / 8);
            }
        }
    }
}

SUITE(ops, CASE(products), CASE(alignment_of_products), CASE(attention), CASE(memory_of_attention),
      CASE(grouped_attention), CASE(memory_of_reductions), CASE(small_reductions_take_nothing),
      CASE(reductions_on_a_cpu_take_nothing), CASE(forms_of_reductions), CASE(views_cost_nothing),
      CASE(unknown_operations_move_their_bytes), CASE(random_operations), CASE(operands_that_are_not_on_the_device),
      CASE(memory_of_other_kernels), CASE(convolutions), CASE(convolutions_that_need_no_copies_on_a_gpu),
      CASE(a_cpu_copies_operands_of_another_type), CASE(copies_of_a_cpu_in_another_layout),
      CASE(convolutions_of_a_cpu_by_kernel), CASE(convolutions_of_a_cpu_whose_channels_do_not_fill_blocks),
      CASE(depthwise_convolutions_of_a_cpu), CASE(a_cpu_copies_what_is_not_contiguous), CASE(blocks_of_a_cpu),
      CASE(recurrent_layers_of_a_cpu), CASE(nothing_overflows), CASE(rules_with_any_numbers));
