/* peak_bound.h - the most that a step can need for a larger input, without a profile of it.
 *
 * Parameters, buffers, gradients and the optimizer's state do not depend on the input. For everything else the
 * assumption is that no tensor grows faster than the square of the input that grows most: of the number of its
 * elements. Attention is such a square, and so are losses that compare all elements of a batch; what else models do
 * grows with the elements themselves.
 */
#ifndef MS_PLAN_PEAK_BOUND_H
#define MS_PLAN_PEAK_BOUND_H

#include "../common/status.h"

#define MS__GROWTH_ONE 1024 /* growth is in parts of this */

typedef struct ms__bound_row ms__bound_row;

typedef struct ms__peak_bound {
    ms__bound_row *rows; /* owned: one for each segment of the step */
    int64_t n_rows;
    int64_t least_bytes;    /* the bound of an input that does not grow */
    int64_t unusable_bytes; /* what the allocator reserves beyond the peak */
} ms__peak_bound;

/* For the step that this request simulates, without a limit. The bound must be freed. Errors: as
 * ms_simulation_create. */
ms_status ms__peak_bound_make(const ms_simulation_request *request, ms__peak_bound *out);

void ms__peak_bound_free(ms__peak_bound *bound);

/* The bound for an input that grows so much; INT64_MAX if it is out of range. */
int64_t ms__peak_bound_at(const ms__peak_bound *bound, int64_t growth);

/* How much more elements the input that grows most has, squared. `sizes` are those of ms_input, of both inputs, which
 * have the same numbers of dimensions. INT64_MAX: a size was 0 before, or the growth is out of range. */
int64_t ms__growth_of(const int64_t *before, const int64_t *after, int64_t n_sizes);

#endif
