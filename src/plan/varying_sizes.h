/* varying_sizes.h - which sizes of a model's inputs vary, and which of them are the same thing.
 *
 * Two dimensions that were equal in every input so far are one variable: the batch of all tensors, the length of tokens
 * and mask. What never varied is no variable.
 */
#ifndef MS_PLAN_VARYING_SIZES_H
#define MS_PLAN_VARYING_SIZES_H

#include "../common/status.h"
#include "../profile/size_terms.h"

#define MS__MAX_SIZES 512 /* numbers of an input */

typedef struct ms__varying {
    int8_t of[MS__MAX_SIZES]; /* position in the sizes of an input -> 1 + its variable; 0: it does not vary */
    int64_t n_sizes;
    int n;                              /* variables */
    int64_t largest[MS__MAX_VARIABLES]; /* of each, as seen so far */
    bool is_first[MS__MAX_VARIABLES];   /* it is the first dimension of a tensor: nothing rounds it up */
} ms__varying;

/* Find the variables of these inputs, which have the same numbers of dimensions. False: there are none, or more than
 * MS__MAX_VARIABLES. */
bool ms__varying_find(const int64_t *const *inputs, size_t n_inputs, int64_t n_sizes, ms__varying *out);

/* Are the variables the same? */
bool ms__varying_equal(const ms__varying *a, const ms__varying *b);

/* The values of the variables in an input that differs from `base` in nothing else; false: it does. */
bool ms__varying_values(const ms__varying *varying, const int64_t *base, const int64_t *sizes, int64_t n_sizes,
                        int64_t out[MS__MAX_VARIABLES]);

/* The values of the variables at a shape of a fit. */
void ms__varying_fit_values(const ms__varying *varying, int shape, int64_t out[MS__MAX_VARIABLES]);

/* Values that stand for all up to them: rounded up by at most an eighth, or to a grain of the fit. */
void ms__varying_round_up(const ms__varying *varying, int64_t values[MS__MAX_VARIABLES]);

/* The sizes of `base` with these values of the variables. */
void ms__varying_fill(const ms__varying *varying, const int64_t *base, const int64_t values[MS__MAX_VARIABLES],
                      int64_t *out);

#endif
