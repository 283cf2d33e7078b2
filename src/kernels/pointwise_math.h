/* pointwise_math.h - the functions of pointwise programs (pointwise_program.h), as torch computes them on a GPU, for
 * host and device.
 *
 * Values are floats; one of 16 bits is a float that 16 bits can hold. What torch does in kernels of their own is
 * rounded one by one here, too: compilers may not join these operations. The functions that torch computes in one
 * kernel have the expressions that torch has, and the compiler's freedom to join. On the host, <math.h> comes first.
 */
#ifndef MS_KERNELS_POINTWISE_MATH_H
#define MS_KERNELS_POINTWISE_MATH_H

#include "shared.h"

typedef unsigned short ms__u16;
typedef unsigned int ms__u32;

#if defined(__CUDACC__)
MS__SHARED ms__u32 ms__pw_bits(float x) { return __float_as_uint(x); }
MS__SHARED float ms__pw_float(ms__u32 bits) { return __uint_as_float(bits); }
MS__SHARED float ms__pw_add(float a, float b) { return __fadd_rn(a, b); }
MS__SHARED float ms__pw_sub(float a, float b) { return __fsub_rn(a, b); }
MS__SHARED float ms__pw_mul(float a, float b) { return __fmul_rn(a, b); }
MS__SHARED float ms__pw_div(float a, float b) { return __fdiv_rn(a, b); }
#else
typedef union ms__pw_word {
    float value;
    ms__u32 bits;
} ms__pw_word;

MS__SHARED ms__u32 ms__pw_bits(float x) { return ((ms__pw_word){.value = x}).bits; }
MS__SHARED float ms__pw_float(ms__u32 bits) { return ((ms__pw_word){.bits = bits}).value; }
MS__SHARED float ms__pw_add(float a, float b) { return a + b; }
MS__SHARED float ms__pw_sub(float a, float b) { return a - b; }
MS__SHARED float ms__pw_mul(float a, float b) { return a * b; }
MS__SHARED float ms__pw_div(float a, float b) { return a / b; }
#endif

/* ---- Types ---- */

MS__SHARED float ms__pw_read_fp32(float x) { return x; }
MS__SHARED float ms__pw_write_fp32(float x) { return x; }

MS__SHARED float ms__pw_read_bf16(ms__u16 x) { return ms__pw_float((ms__u32)x << 16); }

MS__SHARED ms__u16 ms__pw_write_bf16(float x) {
    ms__u32 bits = ms__pw_bits(x);
    if (x != x) return 0x7FFF; /* as GPUs write it */
    return (ms__u16)((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

MS__SHARED float ms__pw_read_fp16(ms__u16 x) {
    ms__u32 sign = (ms__u32)(x & 0x8000U) << 16, magnitude = x & 0x7FFFU;
    if (magnitude >= 0x7C00U) return ms__pw_float(sign | 0x7F800000U | (magnitude & 0x3FFU) << 13);
    if (magnitude >= 0x400U) return ms__pw_float(sign | ((magnitude << 13) + 0x38000000U));
    float tiny = (float)magnitude * ms__pw_float(0x33800000U); /* times 2^-24: exact */
    return ms__pw_float(sign | ms__pw_bits(tiny));
}

MS__SHARED ms__u16 ms__pw_write_fp16(float x) {
    ms__u32 bits = ms__pw_bits(x), sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7FFFFFFFU;
    if (magnitude > 0x7F800000U) return 0x7FFF;                     /* as GPUs write a NaN */
    if (magnitude >= 0x477FF000U) return (ms__u16)(sign | 0x7C00U); /* 65520 and above round to infinity */
    if (magnitude < 0x33000000U) return (ms__u16)sign;              /* below 2^-25 */
    if (magnitude >= 0x38800000U) {                                 /* normal: round to even at bit 13 */
        ms__u32 rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
        return (ms__u16)(sign | ((rounded - 0x38000000U) >> 13));
    }
    ms__u32 shift = 126U - (magnitude >> 23), mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
    ms__u32 whole = mantissa >> shift, rest = mantissa & ((1U << shift) - 1U), half = 1U << (shift - 1U);
    whole += rest > half || (rest == half && (whole & 1U) != 0U);
    return (ms__u16)(sign | whole);
}

/* ---- Functions ---- */

MS__SHARED float ms__pw_copy(float x) { return x; }
MS__SHARED float ms__pw_neg(float x) { return -x; }
MS__SHARED float ms__pw_abs(float x) { return ms__pw_float(ms__pw_bits(x) & 0x7FFFFFFFU); }
MS__SHARED float ms__pw_relu(float x) { return x != x || x > 0.0F ? x : 0.0F; }
MS__SHARED float ms__pw_tanh(float x) { return tanhf(x); }
MS__SHARED float ms__pw_sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }
MS__SHARED float ms__pw_silu(float x) { return x / (1.0F + expf(-x)); }

MS__SHARED float ms__pw_gelu(float x) { return x * 0.5F * (1.0F + erff(x * 0.70710678118654752440F)); }

MS__SHARED float ms__pw_gelu_tanh(float x) {
    const float beta = (float)(1.41421356237309504880 * 1.12837916709551257390 * 0.5), kappa = 0.044715F;
    float cube = x * x * x, inner = beta * (x + kappa * cube);
    return 0.5F * x * (1.0F + tanhf(inner));
}

#endif
