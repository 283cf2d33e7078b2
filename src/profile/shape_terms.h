/* shape_terms.h - numbers that depend on the shape of a batch, as sums of a few terms in its batch b and its length t.
 *
 * The terms are 1, b, t, bt, t^2, bt^2, bp and btq, where p is t rounded up to MS__LENGTH_PADDING, and q to
 * MS__MASK_PADDING: the log-sum-exp of efficient attention has p rows, and the gradient of its mask has rows of q. A
 * number is the sum of its coefficients times the terms, over a denominator. All arithmetic is in whole numbers, so a
 * fit is exact.
 *
 * Invariant: terms are at most MS__MAX_TERM, so that a sum with coefficients of 64 bits fits in 128.
 */
#ifndef MS_PROFILE_SHAPE_TERMS_H
#define MS_PROFILE_SHAPE_TERMS_H

#include "step.h"

#define MS__LENGTH_PADDING 32
#define MS__MASK_PADDING 16
#define MS__MAX_TERM ((int64_t)1 << 60)
#define MS__MAX_SHAPES 32

__extension__ typedef __int128 ms__wide;

typedef struct ms__shape {
    int64_t batch, length;
} ms__shape;

/* A matrix that turns values at some shapes into coefficients. */
typedef struct ms__solver {
    int64_t n_shapes;
    ms__wide weights[MS__N_TERMS][MS__MAX_SHAPES]; /* a row of zeros: the term is not used */
    ms__wide denominator;
} ms__solver;

/* The terms of a shape; false: the shape is negative or too large. */
bool ms__terms_of(ms__shape shape, int64_t out[MS__N_TERMS]);

/* The number with these coefficients, rounded up; false: it is negative or out of the range of sizes. */
bool ms__terms_value(const int64_t coefficients[MS__N_TERMS], int64_t denominator, const int64_t terms[MS__N_TERMS],
                     int64_t *out);

/* Prepare a solver for these shapes, at most MS__MAX_SHAPES of them. It uses the terms in their order, each that is not
 * a combination of those before, except those in `left_out` (bit k: term k). Errors: MS_E_LIMIT (shapes too large for
 * exact arithmetic). */
ms_status ms__solver_prepare(const ms__shape *shapes, int64_t n_shapes, uint32_t left_out, ms__solver *out);

/* Is this one of the terms that the solver uses? */
bool ms__solver_tells(const ms__solver *solver, int term);

/* Coefficients of the number with these values, over the solver's denominator; false: they do not fit in 128 bits. */
bool ms__solver_solve(const ms__solver *solver, const int64_t *values, ms__wide out[MS__N_TERMS]);

/* The sum of coefficients times terms; false: it does not fit in 128 bits. */
bool ms__terms_sum(const ms__wide coefficients[MS__N_TERMS], const int64_t terms[MS__N_TERMS], ms__wide *out);

/* The greatest common divisor, not negative; 0 of 0 and 0. */
ms__wide ms__common_divisor(ms__wide a, ms__wide b);

/* The product; false: it does not fit. */
bool ms__wide_multiply(ms__wide a, ms__wide b, ms__wide *out);

#endif
