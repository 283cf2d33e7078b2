/* shaped.h - a small model at any shape, traced by hand: its sizes have every term that a profile can be fitted with.
 *
 * Two units of width 8 between parameters and an optimizer. The first one attends (a product, efficient attention with
 * a padded log-sum-exp, a mask of t x t and scores of b x t x t), the second is a product and an activation. Both are
 * recomputed in the recomputed variant: the first up to its scores, the second up to its activation.
 */
#ifndef TESTS_SHAPED_H
#define TESTS_SHAPED_H

#include "profile/shape_terms.h"
#include "steps.h"

enum { SHAPED_WIDTH = 8 };

/* What is different at one shape. */
typedef enum oddity {
    NOTHING_ODD,
    EXTRA_OP,       /* the second unit does one thing more */
    OTHER_OP,       /* the second unit's activation is a product */
    OTHER_TYPE,     /* likewise, its elements have 2 bytes */
    EARLY_RELEASE,  /* a tensor of the second unit is released before another */
    OTHER_UNIT,     /* the last operation of forward is after the units */
    OTHER_CATEGORY, /* an activation has the category of a buffer */
    OTHER_RULE,     /* another kernel's memory */
    OTHER_NAME,     /* of a unit */
    OTHER_SIZE,     /* of a unit's parameters */
    ONE_UNIT,       /* the second unit is not known as one */
    NO_RECOMPUTED,  /* recomputing was not traced */
    ODD_BYTES,      /* a size is 4 bytes more */
    ODD_FLOPS,      /* a product is larger */
    ODD_MEMORY,     /* a kernel's memory depends on more */
    CUBE,           /* a size grows with the third power of the length: at every shape */
    HALF,           /* a size is half of batch and length: at every shape */
    PADDED_MASK,    /* a size has rows of lengths as masks are padded: at every shape */
    SHRINKING,      /* a size is 4000 less 10 for each length: at every shape */
    N_ODDITIES
} oddity;

/* Rounded up to what kernels pad to. */
int64_t padded(int64_t length);

void shaped_step(script *s, ms__shape shape, bool recomputed, oddity odd);

ms_profile *shaped_profile(ms__shape shape, oddity odd);

/* Profile the model at these shapes and fit the profiles; the last one may be odd. */
ms_status try_fit(const ms__shape *shapes, int64_t n, oddity odd, ms_profile **out);

#endif
