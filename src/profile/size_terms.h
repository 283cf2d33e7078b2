/* size_terms.h - numbers of a step that depend on the sizes of its inputs, as sums of a few terms.
 *
 * A term is a product of powers of up to four sizes (a batch, lengths, a height and a width, numbers of nodes and
 * edges), each at most squared; one factor may be rounded up as attention kernels pad it (shape_terms.h). There are far
 * more terms than shapes at which a step is profiled. What makes a fit possible all the same is that a number has few
 * of them: the bytes of a tensor are one product or two, the traffic of an operation is the sum of its operands. So the
 * fewest terms that give a number exactly at every shape are looked for. MS__FIT_SHAPES shapes leave at least one of
 * them to check the result.
 *
 * Invariant: sizes are chosen so (ms__size_values) that no four terms without padding are combinations of each other.
 */
#ifndef MS_PROFILE_SIZE_TERMS_H
#define MS_PROFILE_SIZE_TERMS_H

#include "shape_terms.h"

#define MS__MAX_VARIABLES 4
#define MS__FIT_SHAPES 5
#define MS__MAX_SUM 4 /* terms of a number */
#define MS__MAX_SIZE_TERMS 64

/* A product of powers of sizes. */
typedef struct ms__size_term {
    uint8_t powers[MS__MAX_VARIABLES];
    uint8_t padded;  /* 1 + the variable that is a factor once more, rounded up to `padding`; 0: none */
    uint8_t padding; /* MS__LENGTH_PADDING or MS__MASK_PADDING */
} ms__size_term;

/* A number: the sum of coefficients times terms, over a divisor. */
typedef struct ms__size_sum {
    ms__wide coefficients[MS__MAX_SUM];
    ms__wide divisor; /* above 0 */
    uint8_t terms[MS__MAX_SUM];
    uint8_t n;
} ms__size_sum;

typedef struct ms__size_subset {
    uint64_t check[MS__FIT_SHAPES]; /* sums to 0 with the values of every number that has these terms, modulo 2^64 */
    uint8_t terms[MS__MAX_SUM];
} ms__size_subset;

/* The terms of some variables at the shapes of a fit. */
typedef struct ms__size_terms {
    ms__size_term terms[MS__MAX_SIZE_TERMS];
    int64_t columns[MS__MAX_SIZE_TERMS][MS__FIT_SHAPES]; /* their values, over `scale` */
    int64_t scale[MS__MAX_SIZE_TERMS];
    int n_terms, n_plain, n_variables;         /* those without padding come first */
    int product;                               /* the term that has every variable once */
    ms__size_subset *subsets[MS__MAX_SUM + 1]; /* by their number of terms; they belong to an arena */
    uint32_t n_subsets[MS__MAX_SUM + 1];
    ms__size_subset recent[16]; /* of many terms, which were found last: numbers of like operations have the same */
    uint32_t n_recent;
} ms__size_terms;

/* The value of variable `variable` at shape `shape` of a fit, for a variable that has been seen as large as `largest`:
 * a multiple of `*out_grain`, which strides and paddings divide where the sizes leave room for that. */
int64_t ms__size_value(int64_t largest, int variable, int shape, int64_t *out_grain);

/* Terms in `n_variables` sizes, whose values at the shapes are given. Errors: MS_E_LIMIT, MS_E_NO_MEMORY. */
ms_status ms__size_terms_make(ms__arena *arena, int n_variables, const int64_t sizes[][MS__MAX_VARIABLES],
                              ms__size_terms *out);

/* The fewest terms that give these values; false: there are none. */
bool ms__size_terms_find(ms__size_terms *terms, const int64_t values[MS__FIT_SHAPES], ms__size_sum *out);

/* Something that grows with the product of all variables and is nowhere below these values; the larger of values that
 * are 0 and 1. */
void ms__size_terms_estimate(const ms__size_terms *terms, const int64_t values[MS__FIT_SHAPES], ms__size_sum *out);

/* A number at other sizes, rounded up; false: it is negative or out of the range of sizes. */
bool ms__size_sum_value(const ms__size_terms *terms, const ms__size_sum *sum, const int64_t sizes[MS__MAX_VARIABLES],
                        int64_t *out);

#endif
