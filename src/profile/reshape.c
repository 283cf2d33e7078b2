/* reshape.c - a profile at another shape: the numbers of its step and the totals of its units are computed again.
 *
 * Events, keys and segments are the same at every shape. They are copied, so that profiles do not depend on each other:
 * copying is faster than the walk over the events that computes the totals of the units.
 */
#include <stdlib.h>
#include <string.h>

#include "profile.h"
#include "shape_terms.h"

static void *copy(ms__arena *arena, const void *items, size_t n, size_t item_bytes) {
    void *out = ms__arena_array(arena, n, item_bytes);
    if (out != NULL && n > 0) memcpy(out, items, n * item_bytes);
    return out;
}

static ms_status copy_step(ms__arena *arena, const ms__step *from, ms__step *out) {
    *out = *from;
    out->numbers = copy(arena, from->numbers, from->n_numbers, sizeof *from->numbers);
    out->keys = copy(arena, from->keys, from->n_keys, sizeof *from->keys);
    out->events = copy(arena, from->events, from->n_events, sizeof *from->events);
    out->costs = copy(arena, from->costs, from->n_costs, sizeof *from->costs);
    out->scratches = copy(arena, from->scratches, from->n_scratches, sizeof *from->scratches);
    out->segments = copy(arena, from->segments, from->n_segments, sizeof *from->segments);
    out->split_keys = copy(arena, from->split_keys, from->n_split_keys, sizeof *from->split_keys);
    if (from->coefficients != NULL)
        out->coefficients =
            copy(arena, from->coefficients, (size_t)from->n_numbers * MS__N_TERMS, sizeof *from->coefficients);
    bool there = out->numbers != NULL && out->keys != NULL && out->events != NULL && out->costs != NULL &&
                 out->scratches != NULL && out->segments != NULL && out->split_keys != NULL &&
                 (from->coefficients == NULL || out->coefficients != NULL);
    return there ? MS_OK : MS_E_NO_MEMORY;
}

static ms_status fill(ms_profile *profile, const ms_profile *from, const ms__step *step, ms__arena *scratch) {
    profile->step = ms__arena_alloc(&profile->arena, sizeof *profile->step);
    ms_unit *units = ms__arena_array(scratch, (size_t)from->n_units, sizeof *units);
    if (profile->step == NULL || units == NULL) return MS_E_NO_MEMORY;
    ms_status status = copy_step(&profile->arena, step, profile->step);
    if (status == MS_OK) status = ms__step_check_sums(profile->step);
    if (status != MS_OK) return status;
    for (int64_t i = 0; i < from->n_units; i++)
        units[i] = (ms_unit){.name = from->units[i].name,
                             .param_bytes = from->units[i].param_bytes,
                             .flags = from->units[i].flags & MS_UNIT_BLOCK};
    return ms__profile_tally(profile, units, from->n_units);
}

ms_status ms__profile_with_step(const ms_profile *from, const ms__step *step, ms_profile **out) {
    ms_profile *profile = calloc(1, sizeof *profile);
    if (profile == NULL) return ms__fail_memory(sizeof *profile);
    ms__arena scratch = {0};
    ms_status status = fill(profile, from, step, &scratch);
    ms__arena_free(&scratch);
    if (status != MS_OK) {
        ms_profile_destroy(profile);
        return status;
    }
    *out = profile;
    return MS_OK;
}

/* ---- Another shape ---- */

/* Does any number change with the batch, or with the length? If none does, only one batch or length was profiled. The
 * terms of padded lengths contain both and show neither: they mean padding even with a single batch. */
static bool depends(const ms__step *step, bool on_length) {
    static const bool has_length[MS__N_TERMS] = {
        [MS__TERM_T] = true, [MS__TERM_BT] = true, [MS__TERM_TT] = true, [MS__TERM_BTT] = true};
    static const bool has_batch[MS__N_TERMS] = {[MS__TERM_B] = true, [MS__TERM_BT] = true, [MS__TERM_BTT] = true};
    const bool *has = on_length ? has_length : has_batch;
    for (size_t i = 0; step->coefficients != NULL && i < (size_t)step->n_numbers * MS__N_TERMS; i++)
        if (has[i % MS__N_TERMS] && step->coefficients[i] != 0) return true;
    return false;
}

static ms_status fail_fixed(const char *what, int64_t value) {
    if (value == 0) return ms__fail(MS_E_INVALID, "this profile has no %s", what);
    return ms__fail(MS_E_INVALID, "this profile is valid for %s %lld only; profile at several shapes for others", what,
                    (long long)value);
}

static ms_status check_shape(const ms_profile *profile, ms__shape shape) {
    if (profile == NULL) return ms__fail(MS_E_INVALID, "ms_profile_reshape: the profile is NULL");
    const ms__step *step = profile->step;
    if ((shape.batch < 1 && shape.batch != step->batch) || (shape.length < 1 && shape.length != step->length))
        return ms__fail(MS_E_INVALID, "ms_profile_reshape: batch and length must be at least 1");
    if (shape.batch != step->batch && !depends(step, false)) return fail_fixed("batch", step->batch);
    if (shape.length != step->length && !depends(step, true)) return fail_fixed("length", step->length);
    return MS_OK;
}

static ms_status compute_numbers(const ms__step *step, ms__shape shape, int64_t *out) {
    int64_t terms[MS__N_TERMS];
    if (!ms__terms_of(shape, terms))
        return ms__fail(MS_E_LIMIT, "shape %lld x %lld is too large", (long long)shape.batch, (long long)shape.length);
    for (uint32_t i = 0; i < step->n_numbers; i++)
        if (!ms__terms_value(step->coefficients + (size_t)i * MS__N_TERMS, step->denominator, terms, &out[i]))
            return ms__fail(MS_E_LIMIT, "at shape %lld x %lld, a number of the step is negative or too large",
                            (long long)shape.batch, (long long)shape.length);
    return MS_OK;
}

ms_status ms_profile_reshape(const ms_profile *profile, int64_t batch, int64_t length, ms_profile **out_profile) {
    ms__shape shape = {batch, length};
    ms_status status = check_shape(profile, shape);
    if (status != MS_OK) return status;
    if (out_profile == NULL) return ms__fail(MS_E_INVALID, "ms_profile_reshape: out_profile is NULL");
    ms__step step = *profile->step;
    int64_t *numbers = NULL;
    step.batch = batch;
    step.length = length;
    if (step.coefficients != NULL) {
        numbers = calloc((size_t)step.n_numbers + 1, sizeof *numbers);
        if (numbers == NULL) return ms__fail_memory((size_t)step.n_numbers * sizeof *numbers);
        status = compute_numbers(&step, shape, numbers);
        step.numbers = numbers;
    }
    if (status == MS_OK) status = ms__profile_with_step(profile, &step, out_profile);
    free(numbers);
    return status;
}
