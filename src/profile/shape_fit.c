/* shape_fit.c - fits one profile for all shapes to profiles of the same model at a few.
 *
 * Every number becomes a sum of the terms of shape_terms.h, which agrees exactly at every shape, the one included that
 * took no part in the fit. Which numbers of the steps belong together is found by step_match.c.
 */
#include "shape_terms.h"
#include "step_match.h"

enum { N_SOLVERS = 1 + 2 * MS__TERM_BP };

typedef struct fit {
    ms__match match;
    ms__arena arena; /* for everything that is not part of the result */
    ms__shape shapes[MS__MAX_SHAPES];
    int64_t terms[MS__MAX_SHAPES][MS__N_TERMS];
    ms__solver solvers[N_SOLVERS];
    int n_solvers;
    ms__wide *coefficients; /* MS__N_TERMS for each number */
    ms__wide *divisors;     /* number -> the divisor of its coefficients */
    uint8_t *failed;        /* number -> 1 + the profile that it does not fit; 0: it fits all */
    bool all_fit;
} fit;

/* ---- Coefficients ---- */

/* The first solver takes the terms in their order. With fewer shapes than terms, it has no room for those of padded
 * lengths, which are the last; each of the other solvers has one of these, and leaves out another term instead. */
static ms_status prepare_solvers(fit *f) {
    static const int others[] = {MS__TERM_TT, MS__TERM_T, MS__TERM_B, MS__TERM_1, MS__TERM_BTT, MS__TERM_BT};
    f->n_solvers = 1;
    ms_status status = ms__solver_prepare(f->shapes, f->match.n_profiles - 1, 0, &f->solvers[0]);
    for (int padded = MS__TERM_BP; padded < MS__N_TERMS && status == MS_OK; padded++)
        for (size_t i = 0; i < sizeof others / sizeof *others && status == MS_OK; i++) {
            uint32_t rest = 1U << MS__TERM_BP | 1U << MS__TERM_BTQ;
            ms__solver *solver = &f->solvers[f->n_solvers];
            if (ms__solver_tells(&f->solvers[0], padded)) break;
            status = ms__solver_prepare(f->shapes, f->match.n_profiles - 1, (rest & ~(1U << padded)) | 1U << others[i],
                                        solver);
            if (status == MS_OK && ms__solver_tells(solver, padded)) f->n_solvers++;
        }
    return status;
}

/* The first profile that this number does not fit, plus 1; 0: it fits them all. */
static uint8_t find_misfit(const fit *f, uint32_t number) {
    const int64_t *values = f->match.values + (size_t)number * (size_t)f->match.n_profiles;
    ms__wide divisor = f->divisors[number];
    for (int64_t p = 0; p < f->match.n_profiles; p++) {
        ms__wide sum;
        if (!ms__terms_sum(f->coefficients + (size_t)number * MS__N_TERMS, f->terms[p], &sum) || sum % divisor != 0 ||
            sum / divisor != values[p])
            return (uint8_t)(p + 1);
    }
    return 0;
}

static ms_status solve_number(fit *f, uint32_t number, const ms__solver *solver) {
    ms__wide *coefficients = f->coefficients + (size_t)number * MS__N_TERMS, common = solver->denominator;
    if (!ms__solver_solve(solver, f->match.values + (size_t)number * (size_t)f->match.n_profiles, coefficients))
        return ms__fail(MS_E_LIMIT, "a number of the step is too large to be fitted exactly");
    for (int k = 0; k < MS__N_TERMS; k++) common = ms__common_divisor(common, coefficients[k]);
    for (int k = 0; k < MS__N_TERMS; k++) coefficients[k] /= common;
    f->divisors[number] = solver->denominator / common;
    f->failed[number] = find_misfit(f, number);
    return MS_OK;
}

static ms_status solve(fit *f) {
    f->coefficients = ms__arena_array(&f->arena, (size_t)f->match.n_numbers * MS__N_TERMS, sizeof *f->coefficients);
    f->divisors = ms__arena_array(&f->arena, f->match.n_numbers, sizeof *f->divisors);
    f->failed = ms__arena_array(&f->arena, f->match.n_numbers, sizeof *f->failed);
    if (f->coefficients == NULL || f->divisors == NULL || f->failed == NULL) return MS_E_NO_MEMORY;
    f->all_fit = true;
    for (uint32_t i = 0; i < f->match.n_numbers; i++) {
        ms_status status = solve_number(f, i, &f->solvers[0]);
        for (int s = 1; s < f->n_solvers && f->failed[i] != 0 && status == MS_OK; s++)
            status = solve_number(f, i, &f->solvers[s]);
        if (status == MS_OK && f->failed[i] != 0) status = solve_number(f, i, &f->solvers[0]); /* for the message */
        if (status != MS_OK) return status;
        f->all_fit = f->all_fit && f->failed[i] == 0;
    }
    return MS_OK;
}

/* The value of the coefficients, rounded down, for messages. */
static long long guess(const fit *f, uint32_t number, int64_t profile) {
    ms__wide sum;
    if (!ms__terms_sum(f->coefficients + (size_t)number * MS__N_TERMS, f->terms[profile], &sum)) return -1;
    sum /= f->divisors[number];
    return sum > INT64_MAX || sum < INT64_MIN ? -1 : (long long)sum;
}

/* Some number does not fit: name the first place where it occurs. */
static ms_status report_misfit(const fit *f) {
    char place[MS__PLACE_BYTES];
    const char *what;
    uint32_t number;
    if (!ms__match_find(&f->match, f->failed, place, &what, &number))
        return ms__fail(MS_E_MISMATCH, "a number of the step does not fit at all shapes");
    int64_t profile = f->failed[number] - 1;
    int64_t value = f->match.values[(size_t)number * (size_t)f->match.n_profiles + (size_t)profile];
    return ms__fail(MS_E_MISMATCH, "%s: %s at %lld x %lld is %lld; the other shapes predict %lld", place, what,
                    (long long)f->shapes[profile].batch, (long long)f->shapes[profile].length, (long long)value,
                    guess(f, number, profile));
}

/* ---- The result ---- */

static bool find_denominator(const fit *f, ms__wide *out) {
    *out = 1;
    for (uint32_t i = 0; i < f->match.n_numbers; i++) {
        ms__wide common = ms__common_divisor(*out, f->divisors[i]);
        if (!ms__wide_multiply(*out, f->divisors[i] / common, out)) return false;
    }
    return *out <= INT64_MAX;
}

/* Bring all coefficients to one denominator, within the range of sizes. */
static ms_status fill_coefficients(fit *f, ms__step *out) {
    size_t n = (size_t)f->match.n_numbers * MS__N_TERMS;
    ms__wide denominator, value;
    bool fits = find_denominator(f, &denominator);
    out->coefficients = ms__arena_array(&f->arena, n, sizeof *out->coefficients);
    if (out->coefficients == NULL) return MS_E_NO_MEMORY;
    for (size_t i = 0; i < n && fits; i++) {
        fits = ms__wide_multiply(f->coefficients[i], denominator / f->divisors[i / MS__N_TERMS], &value) &&
               value <= INT64_MAX && value >= -INT64_MAX && ms__size_in_range((int64_t)(value < 0 ? -value : value));
        if (fits) out->coefficients[i] = (int64_t)value;
    }
    if (!fits) return ms__fail(MS_E_LIMIT, "a coefficient of the step is too large");
    out->denominator = (int64_t)denominator;
    return MS_OK;
}

/* ---- The whole fit ---- */

/* If batches differ, the last profile must have one that no other has; the same for lengths. So it shows whether a term
 * is missing: two lengths cannot tell a square from a line, a third can. */
static ms_status check_held_out(const fit *f) {
    const ms__shape *last = &f->shapes[f->match.n_profiles - 1];
    bool batches = false, lengths = false, batch_seen = false, length_seen = false;
    for (int64_t p = 0; p < f->match.n_profiles - 1; p++) {
        batches = batches || f->shapes[p].batch != f->shapes[0].batch;
        lengths = lengths || f->shapes[p].length != f->shapes[0].length;
        batch_seen = batch_seen || f->shapes[p].batch == last->batch;
        length_seen = length_seen || f->shapes[p].length == last->length;
    }
    if ((batches && batch_seen) || (lengths && length_seen) || (batch_seen && length_seen))
        return ms__fail(MS_E_INVALID,
                        "ms_profile_fit: the last shape, %lld x %lld, checks the result: it must have a batch and a "
                        "length that no other profile has",
                        (long long)last->batch, (long long)last->length);
    return MS_OK;
}

static ms_status check_profiles(fit *f) {
    if (f->match.profiles == NULL || f->match.n_profiles < 2)
        return ms__fail(MS_E_INVALID, "ms_profile_fit: at least two profiles are needed");
    if (f->match.n_profiles > MS__MAX_SHAPES)
        return ms__fail(MS_E_LIMIT, "ms_profile_fit: at most %d profiles can be fitted", MS__MAX_SHAPES);
    for (int64_t p = 0; p < f->match.n_profiles; p++) {
        if (f->match.profiles[p] == NULL)
            return ms__fail(MS_E_INVALID, "ms_profile_fit: profile %lld is NULL", (long long)p);
        f->shapes[p] = (ms__shape){f->match.profiles[p]->step->batch, f->match.profiles[p]->step->length};
        if ((f->shapes[p].batch == 0) != (f->shapes[0].batch == 0) ||
            (f->shapes[p].length == 0) != (f->shapes[0].length == 0))
            return ms__fail(MS_E_INVALID, "ms_profile_fit: profile %lld has no shape", (long long)p);
        if (!ms__terms_of(f->shapes[p], f->terms[p]))
            return ms__fail(MS_E_LIMIT, "the shape of profile %lld is too large", (long long)p);
    }
    return check_held_out(f);
}

static ms_status run(fit *f, ms_profile **out) {
    ms__step step;
    ms_status status = check_profiles(f);
    if (status == MS_OK) status = ms__match_steps(&f->match);
    if (status == MS_OK) status = prepare_solvers(f);
    if (status == MS_OK) status = solve(f);
    if (status == MS_OK && !f->all_fit) status = report_misfit(f);
    if (status == MS_OK) status = ms__match_fill_step(&f->match, &f->arena, &step);
    if (status == MS_OK) status = fill_coefficients(f, &step);
    return status == MS_OK ? ms__profile_with_step(f->match.profiles[0], &step, out) : status;
}

ms_status ms_profile_fit(const ms_profile *const *profiles, int64_t n_profiles, ms_profile **out_profile) {
    if (out_profile == NULL) return ms__fail(MS_E_INVALID, "ms_profile_fit: out_profile is NULL");
    fit f = {.match = {.profiles = profiles, .n_profiles = n_profiles}};
    f.match.arena = &f.arena;
    ms_status status = run(&f, out_profile);
    ms__arena_free(&f.arena);
    return status;
}
