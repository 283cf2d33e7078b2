/* size_fit.h - the step of a model for inputs of any sizes, from profiles at a few. */
#ifndef MS_PROFILE_SIZE_FIT_H
#define MS_PROFILE_SIZE_FIT_H

#include "profile.h"
#include "size_terms.h"

typedef struct ms__size_fit ms__size_fit; /* immutable */

/* From profiles at MS__FIT_SHAPES shapes; `sizes` has the values of the variables at each. `*out` is owned,
 * ms__size_fit_destroy. Errors: MS_E_MISMATCH (the steps differ, or a size of theirs is no sum of a few terms: the
 * message says where), MS_E_LIMIT, MS_E_NO_MEMORY. */
ms_status ms__size_fit_create(const ms_profile *const profiles[MS__FIT_SHAPES],
                              const int64_t sizes[MS__FIT_SHAPES][MS__MAX_VARIABLES], int n_variables,
                              ms__size_fit **out);

/* Cannot fail. NULL is allowed. */
void ms__size_fit_destroy(ms__size_fit *fit);

/* The profile at other sizes. `shape` is what it says of itself. `*out` is owned, ms_profile_destroy. Errors:
 * MS_E_LIMIT (a size is negative there, or too large), MS_E_NO_MEMORY. */
ms_status ms__size_fit_at(const ms__size_fit *fit, const int64_t sizes[MS__MAX_VARIABLES], ms__shape shape,
                          ms_profile **out);

#endif
