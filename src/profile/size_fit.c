/* size_fit.c - fits the numbers of a step to terms in the sizes that vary.
 *
 * Which numbers of the profiles belong together is found by step_match.c, which terms a number has by size_terms.c. The
 * bytes of a tensor must be such a sum. What kernels take for themselves and how long operations take is estimated in
 * any case, and kernels differ from size to size: where a number of these is no sum, it is taken to grow with the
 * product of all variables, by the largest factor that was seen.
 */
#include "size_fit.h"

#include <stdlib.h>
#include <string.h>

#include "step_match.h"

struct ms__size_fit {
    ms__arena arena;
    ms_profile *first; /* shared: its units */
    ms__step step;     /* its numbers are those of the first profile */
    ms__size_terms terms;
    ms__size_sum *sums; /* for each number */
};

void ms__size_fit_destroy(ms__size_fit *fit) {
    if (fit == NULL) return;
    ms_profile_destroy(fit->first);
    ms__arena_free(&fit->arena);
    free(fit);
}

/* Some number does not fit: name the first place where it occurs. */
static ms_status report_misfit(const ms__match *match, const uint8_t *failed) {
    char place[MS__PLACE_BYTES];
    const char *what;
    uint32_t number;
    if (!ms__match_find(match, failed, place, &what, &number))
        return ms__fail(MS_E_MISMATCH, "a number of the step is no sum of a few terms in the sizes of its inputs");
    const int64_t *v = match->values + (size_t)number * MS__FIT_SHAPES;
    return ms__fail(MS_E_MISMATCH, "%s: %s is no sum of a few terms in the sizes: %lld, %lld, %lld, %lld, %lld", place,
                    what, (long long)v[0], (long long)v[1], (long long)v[2], (long long)v[3], (long long)v[4]);
}

/* Some numbers of kernels are 1 or 0, as the sizes may be: sums that give such values by chance are many. */
static bool is_yes_or_no(const int64_t values[MS__FIT_SHAPES]) {
    bool differs = false;
    for (int p = 0; p < MS__FIT_SHAPES; p++) {
        if (values[p] < 0 || values[p] > 1) return false;
        differs = differs || values[p] != values[0];
    }
    return differs;
}

static ms_status find_sums(ms__size_fit *fit, const ms__match *match) {
    uint8_t *is_tensor = ms__arena_array(match->arena, match->n_numbers, sizeof *is_tensor);
    uint8_t *failed = ms__arena_array(match->arena, match->n_numbers, sizeof *failed);
    fit->sums = ms__arena_array(&fit->arena, match->n_numbers, sizeof *fit->sums);
    if (is_tensor == NULL || failed == NULL || fit->sums == NULL) return MS_E_NO_MEMORY;
    for (uint32_t k = 0; k < match->steps[0]->n_keys; k++) is_tensor[match->numbers[k]] = 1;
    bool all_fit = true;
    for (uint32_t i = 0; i < match->n_numbers; i++) {
        const int64_t *values = match->values + (size_t)i * MS__FIT_SHAPES;
        if (!is_yes_or_no(values) && ms__size_terms_find(&fit->terms, values, &fit->sums[i])) continue;
        if (!is_tensor[i]) ms__size_terms_estimate(&fit->terms, values, &fit->sums[i]);
        failed[i] = is_tensor[i];
        all_fit = all_fit && !failed[i];
    }
    return all_fit ? MS_OK : report_misfit(match, failed);
}

static ms_status fill(ms__size_fit *fit, ms__match *match, const int64_t sizes[][MS__MAX_VARIABLES], int n_variables) {
    ms_status status = ms__match_steps(match);
    if (status == MS_OK) status = ms__size_terms_make(match->arena, n_variables, sizes, &fit->terms);
    if (status == MS_OK) status = find_sums(fit, match);
    if (status == MS_OK) status = ms__match_fill_step(match, &fit->arena, &fit->step);
    if (status != MS_OK) return status;
    memset(fit->terms.subsets, 0, sizeof fit->terms.subsets); /* they belong to the scratch arena */
    fit->first = ms_profile_share(match->profiles[0]);
    fit->step.coefficients = NULL;
    return MS_OK;
}

ms_status ms__size_fit_create(const ms_profile *const profiles[MS__FIT_SHAPES],
                              const int64_t sizes[MS__FIT_SHAPES][MS__MAX_VARIABLES], int n_variables,
                              ms__size_fit **out) {
    ms__size_fit *fit = calloc(1, sizeof *fit);
    if (fit == NULL) return ms__fail_memory(sizeof *fit);
    ms__arena scratch = {0};
    ms__match match = {.profiles = profiles, .n_profiles = MS__FIT_SHAPES, .arena = &scratch};
    ms_status status = fill(fit, &match, sizes, n_variables);
    ms__arena_free(&scratch);
    if (status != MS_OK) {
        ms__size_fit_destroy(fit);
        return status;
    }
    *out = fit;
    return MS_OK;
}

ms_status ms__size_fit_at(const ms__size_fit *fit, const int64_t sizes[MS__MAX_VARIABLES], ms__shape shape,
                          ms_profile **out) {
    ms__step step = fit->step;
    step.batch = shape.batch;
    step.length = shape.length;
    step.numbers = calloc((size_t)step.n_numbers + 1, sizeof *step.numbers);
    if (step.numbers == NULL) return ms__fail_memory((size_t)step.n_numbers * sizeof *step.numbers);
    ms_status status = MS_OK;
    for (uint32_t i = 0; i < step.n_numbers && status == MS_OK; i++)
        if (!ms__size_sum_value(&fit->terms, &fit->sums[i], sizes, &step.numbers[i]))
            status = ms__fail(MS_E_LIMIT, "a number of the step is negative or too large for this input");
    if (status == MS_OK) status = ms__profile_with_step(fit->first, &step, out);
    free(step.numbers);
    return status;
}
