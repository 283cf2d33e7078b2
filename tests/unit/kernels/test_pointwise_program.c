/* test_pointwise_program.c - pointwise programs: what is refused, their names and texts, and how they get onto a
 * device. What they compute is compared with torch in tests/python/test_pointwise_programs.py. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "fake_gpus.h"
#include "kernels/pointwise_program.h"

#define N 1003

static ms_pointwise copy_of(int32_t dtype) {
    return (ms_pointwise){.struct_bytes = sizeof(ms_pointwise),
                          .n_inputs = 1,
                          .n_ops = 1,
                          .input_dtypes = {dtype},
                          .ops = {{.kind = MS_POINTWISE_CAST, .dtype = MS_POINTWISE_FP32, .b = -1}}};
}

TEST(what_is_no_program_is_refused) {
    char *text = NULL;
    float in = 1, out = 7;
    const void *inputs[] = {&in};
    ms_pointwise good = copy_of(MS_POINTWISE_FP32), bad[8];
    for (int i = 0; i < 8; i++) bad[i] = good;
    bad[0].n_inputs = 0;
    bad[1].n_inputs = MS_POINTWISE_MAX_INPUTS + 1;
    bad[2].n_ops = MS_POINTWISE_MAX_OPS + 1;
    bad[3].input_dtypes[0] = MS_N_POINTWISE_DTYPES;
    bad[4].ops[0].kind = MS_N_POINTWISE_KINDS;
    bad[5].ops[0].a = 1; /* its own result */
    bad[6].ops[0].dtype = -1;
    bad[7].ops[0] = (ms_pointwise_op){.kind = MS_POINTWISE_ADD, .a = 0, .b = 2};
    for (int i = 0; i < 8; i++) {
        CHECK_STATUS(ms_pointwise_source(&bad[i], &text), MS_E_INVALID);
        CHECK_STATUS(ms_pointwise_run(&bad[i], inputs, &out, 1), MS_E_INVALID);
    }
    CHECK_STATUS(ms_pointwise_source(&good, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_pointwise_run(&good, NULL, &out, 1), MS_E_INVALID);
    CHECK_STATUS(ms_pointwise_run(&good, inputs, &out, -1), MS_E_INVALID);
    CHECK(text == NULL && out == 7);
    CHECK_STATUS(ms_pointwise_run(&good, NULL, NULL, 0), MS_OK);
    CHECK_STATUS(ms_pointwise_run(&good, inputs, &out, 1), MS_OK);
    CHECK(out == 1);
}

TEST(the_longest_program_has_room) {
    ms_pointwise p = {.struct_bytes = sizeof p, .n_inputs = MS_POINTWISE_MAX_INPUTS, .n_ops = MS_POINTWISE_MAX_OPS};
    for (int i = 0; i < MS_POINTWISE_MAX_INPUTS; i++) p.input_dtypes[i] = MS_POINTWISE_FP16;
    for (int i = 0; i < MS_POINTWISE_MAX_OPS; i++)
        p.ops[i] = (ms_pointwise_op){MS_POINTWISE_DIV, MS_POINTWISE_BF16, MS_POINTWISE_SCALAR, i, -1e-30};
    char *text = NULL;
    CHECK_STATUS(ms_pointwise_source(&p, &text), MS_OK);
    CHECK(strstr(text, "v35 = ms__pw_read_bf16") != NULL && strstr(text, "return ms__pw_write_bf16(v35)") != NULL);
    CHECK(text[strlen(text) - 1] == '\n'); /* the end of the frame is there */
    ms_free(text);
}

TEST(programs_have_names_of_their_own) {
    char one[MS__POINTWISE_NAME_BYTES], other[MS__POINTWISE_NAME_BYTES];
    ms_pointwise a = copy_of(MS_POINTWISE_FP32), b = a;
    ms__pointwise_name(&a, one);
    ms__pointwise_name(&b, other);
    CHECK_EQ_STR(one, other);
    b.ops[0].scalar = 1;
    ms__pointwise_name(&b, other);
    CHECK(strcmp(one, other) != 0);
    b = copy_of(MS_POINTWISE_BF16);
    ms__pointwise_name(&b, other);
    CHECK(strcmp(one, other) != 0);
}

TEST(sixteen_bits_are_rounded_to_even) {
    static const struct {
        int32_t dtype;
        float in;
        uint16_t out;
    } cases[] = {{MS_POINTWISE_BF16, 1.0F, 0x3F80},          {MS_POINTWISE_BF16, 1.00390625F, 0x3F80},
                 {MS_POINTWISE_BF16, 1.01171875F, 0x3F82},   {MS_POINTWISE_BF16, INFINITY, 0x7F80},
                 {MS_POINTWISE_FP16, 65519.0F, 0x7BFF},      {MS_POINTWISE_FP16, 65520.0F, 0x7C00},
                 {MS_POINTWISE_FP16, -0.0F, 0x8000},         {MS_POINTWISE_FP16, 5.9604645e-8F, 0x0001},
                 {MS_POINTWISE_FP16, 2.9802322e-8F, 0x0000}, {MS_POINTWISE_FP16, 2.9802326e-8F, 0x0001},
                 {MS_POINTWISE_FP16, 6.1035156e-5F, 0x0400}, {MS_POINTWISE_BF16, NAN, 0x7FFF}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ms_pointwise p = copy_of(MS_POINTWISE_FP32);
        p.ops[0].dtype = cases[i].dtype;
        const void *inputs[] = {&cases[i].in};
        uint16_t out = 0;
        CHECK_STATUS(ms_pointwise_run(&p, inputs, &out, 1), MS_OK);
        CHECK_EQ_INT(out, cases[i].out);
    }
}

/* The fake device copies, whatever the program. */
static void run_copy(ms_gpu *gpu, const ms_pointwise *p, size_t off, int64_t n) {
    float *in = fake_alloc(0, (N + 8) * sizeof *in), *out = fake_alloc(0, (N + 8) * sizeof *out);
    for (int i = 0; i < N + 8; i++) {
        in[i] = (float)i;
        out[i] = -1;
    }
    const uint64_t inputs[] = {(uint64_t)(uintptr_t)(in + off)};
    CHECK_STATUS(ms_gpu_pointwise(gpu, 0, p, inputs, (uint64_t)(uintptr_t)(out + off), n, 0), MS_OK);
    for (size_t i = 0; i < N + 8; i++) CHECK(out[i] == (i >= off && i < off + (size_t)n ? in[i] : -1));
    fake_free(in);
    fake_free(out);
}

TEST(a_program_is_compiled_once_on_a_device) {
    ms_gpu *gpu = open_fake("");
    ms_pointwise p = copy_of(MS_POINTWISE_FP32), q = p;
    q.ops[0].scalar = 2;
    for (int64_t n = 0; n <= N; n = 3 * n + 1)
        for (size_t off = 0; off < 5; off++) run_copy(gpu, &p, off, n);
    CHECK_EQ_INT(fake_calls("nvrtcCompileProgram"), 1);
    run_copy(gpu, &q, 0, N);
    CHECK_EQ_INT(fake_calls("nvrtcCompileProgram"), 2);
    const uint64_t inputs[] = {0};
    CHECK_STATUS(ms_gpu_pointwise(gpu, 0, &p, inputs, 0, -1, 0), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_pointwise(gpu, 0, &p, NULL, 0, 1, 0), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_pointwise(gpu, 0, &p, inputs, 0, INT64_MAX, 0), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_pointwise(gpu, 9, &p, inputs, 0, 1, 0), MS_E_INVALID);
    CHECK_STATUS(ms_gpu_pointwise(NULL, 0, &p, inputs, 0, 1, 0), MS_E_INVALID);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

TEST(what_cannot_be_compiled_says_so) {
    fake_settings_now()->compile_log = "error: no such function";
    ms_gpu *gpu = open_fake("");
    ms_pointwise p = copy_of(MS_POINTWISE_FP32);
    const uint64_t inputs[] = {4096};
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(ms_gpu_pointwise(gpu, 0, &p, inputs, 4096, 1, 0), MS_E_UNAVAILABLE);
        CHECK(strstr(ms_error_message(), "no such function") != NULL);
    }
    CHECK_EQ_INT(fake_calls("nvrtcCompileProgram"), 1);
    ms_gpu_destroy(gpu);
    check_nothing_left();
}

SUITE(pointwise_programs, CASE(what_is_no_program_is_refused), CASE(the_longest_program_has_room),
      CASE(programs_have_names_of_their_own), CASE(sixteen_bits_are_rounded_to_even),
      CASE(a_program_is_compiled_once_on_a_device), CASE(what_cannot_be_compiled_says_so));
