/* peak_bound.c - the most that a step can need for a larger input.
 *
 * The step is simulated once. Each of its segments has a part that stays (parameters, buffers, the optimizer's state,
 * and the gradients that were there when it began) and a part that grows with the input.
 */
#include "peak_bound.h"

#include <stdlib.h>

#include "../common/math.h"
#include "../sim/needs.h"

#define MAX_GROWTH ((int64_t)1 << 31)
#define UNUSABLE_PARTS 6 /* of a peak: what torch's allocator reserves beyond it jumps by segments, up to so much */

struct ms__bound_row {
    int64_t fixed_bytes, growing_bytes;
};

/* What does not depend on the input. Within the optimizer's step, neither gradients nor temporaries do. */
static int64_t fixed_bytes(const ms_simulation_segment *segment, int64_t held_gradient_bytes) {
    const int64_t *parts = segment->parts;
    int64_t fixed = parts[MS_CATEGORY_PARAMETER] + parts[MS_CATEGORY_BUFFER] + parts[MS_CATEGORY_OPTIMIZER];
    bool in_optimizer = segment->phase == MS_PHASE_OPTIMIZER || segment->phase == MS_PHASE_OPTIMIZER_FIRST;
    if (in_optimizer) return fixed + parts[MS_CATEGORY_GRADIENT] + parts[MS_CATEGORY_TEMPORARY];
    return fixed + ms__min(parts[MS_CATEGORY_GRADIENT], held_gradient_bytes);
}

static ms_status fill_rows(const ms_simulation *sim, ms__peak_bound *out) {
    out->n_rows = ms_simulation_count_segments(sim);
    out->rows = calloc((size_t)out->n_rows + 1, sizeof *out->rows);
    if (out->rows == NULL) return ms__fail_memory((size_t)out->n_rows * sizeof *out->rows);
    int64_t gradient_bytes = 0; /* at the peak of the segment before: gradients only become more until the optimizer */
    for (int64_t i = 0; i < out->n_rows; i++) {
        ms_simulation_segment segment = {.struct_bytes = sizeof segment};
        ms_status status = ms_simulation_get_segment(sim, i, &segment);
        if (status != MS_OK) return status;
        int64_t fixed = ms__min(fixed_bytes(&segment, gradient_bytes), segment.peak_bytes);
        gradient_bytes = segment.parts[MS_CATEGORY_GRADIENT];
        out->rows[i] = (ms__bound_row){fixed, segment.peak_bytes - fixed};
    }
    return MS_OK;
}

ms_status ms__peak_bound_make(const ms_simulation_request *request, ms__peak_bound *out) {
    ms_simulation *sim = NULL;
    ms_simulation_request step = *request;
    ms__needs needs = {0};
    *out = (ms__peak_bound){0};
    step.flags = ms__step_flags(request->flags, ms__is_changed(request));
    ms_status status = ms__find_needs(request, NULL, INT64_MAX, &needs);
    if (status == MS_OK) status = ms_simulation_create(&step, &sim);
    if (status == MS_OK) status = fill_rows(sim, out);
    ms_simulation_destroy(sim);
    if (status != MS_OK) {
        ms__peak_bound_free(out);
        return status;
    }
    out->least_bytes = needs.peak_bytes;
    out->unusable_bytes = ms__max(ms__max(needs.played.reserved_bytes, needs.needed_bytes) - needs.peak_bytes, 0);
    return MS_OK;
}

void ms__peak_bound_free(ms__peak_bound *bound) {
    free(bound->rows);
    *bound = (ms__peak_bound){0};
}

/* Rounded up; INT64_MAX if it is out of range. */
static int64_t grown(int64_t n_bytes, int64_t growth) {
    if (n_bytes > INT64_MAX / 4 / growth) return INT64_MAX;
    return ms__ceil_div(n_bytes * growth, MS__GROWTH_ONE);
}

int64_t ms__peak_bound_at(const ms__peak_bound *bound, int64_t growth) {
    if (growth > MAX_GROWTH) return INT64_MAX;
    int64_t most = bound->least_bytes, unusable = grown(bound->unusable_bytes, growth);
    for (int64_t i = 0; i < bound->n_rows; i++) {
        int64_t growing = grown(bound->rows[i].growing_bytes, growth);
        if (growing == INT64_MAX) return INT64_MAX;
        most = ms__max(most, bound->rows[i].fixed_bytes + growing);
    }
    if (unusable == INT64_MAX) return INT64_MAX;
    return most + (unusable > 0 ? ms__max(unusable, most / UNUSABLE_PARTS) : 0);
}

int64_t ms__growth_of(const int64_t *before, const int64_t *after, int64_t n_sizes) {
    int64_t most = MS__GROWTH_ONE;
    for (int64_t i = 0; i < n_sizes; i += before[i] + 1) {
        int64_t growth = MS__GROWTH_ONE;
        for (int64_t d = i + 1; d <= i + before[i]; d++) {
            if (after[d] <= before[d]) continue;
            if (before[d] == 0 || after[d] > MAX_GROWTH) return INT64_MAX;
            growth = ms__ceil_div(growth * after[d], before[d]);
            if (growth > MAX_GROWTH) return INT64_MAX;
        }
        most = ms__max(most, growth);
    }
    return ms__ceil_div(most * most, MS__GROWTH_ONE);
}
