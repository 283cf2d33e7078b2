/* shape_fit.c - fits one profile for all shapes to profiles of the same model at a few.
 *
 * Steps at different shapes do the same things in the same order; only their numbers differ. A step has each number
 * once, so two that are equal by chance at one shape are one number there and two elsewhere. Numbers are therefore
 * compared where they occur: by key, and by the place of an operation among the events. Numbers that are equal at all
 * shapes become one again.
 */
#include <stdio.h>
#include <string.h>

#include "../common/intern.h"
#include "../common/names.h"
#include "profile.h"
#include "shape_terms.h"

enum { COST_NUMBERS = 2, N_SOLVERS = 1 + 2 * MS__TERM_BP };

/* Events of one kind in all profiles. An event has one index in each profile; each such tuple of indices is stored
 * once. */
typedef struct tuples {
    uint32_t *indices; /* n_profiles for each tuple */
    uint32_t *of;      /* occurrence -> tuple */
    uint32_t n;
} tuples;

typedef struct fit {
    const ms_profile *const *profiles;
    int64_t n_profiles;
    ms__arena arena; /* for everything that is not part of the result */
    ms__shape shapes[MS__MAX_SHAPES];
    int64_t terms[MS__MAX_SHAPES][MS__N_TERMS];
    ms__solver solvers[N_SOLVERS];
    int n_solvers;
    tuples costs, scratches;
    int64_t *values;        /* n_profiles for each number */
    uint32_t *numbers;      /* key, then costs, then scratches -> number */
    uint32_t n_numbers;     /* different ones */
    ms__wide *coefficients; /* MS__N_TERMS for each number */
    ms__wide *divisors;     /* number -> the divisor of its coefficients */
    uint8_t *failed;        /* number -> 1 + the profile that it does not fit; 0: it fits all */
    bool all_fit;
} fit;

static const ms__step *step_of(const fit *f, int64_t profile) { return f->profiles[profile]->step; }

/* ---- Places, for messages ---- */

enum { PLACE_BYTES = 160 };

static const char *const kinds[MS__N_EVENT_KINDS] = {"allocation", "release", "operation", "memory of a kernel"};

static void write_segment(const ms_profile *profile, const ms__segment *s, int variant, char out[PLACE_BYTES]) {
    const char *phase = ms__phases[s->phase].name.name;
    if (s->unit < 0)
        (void)snprintf(out, PLACE_BYTES, "between layers, %s", phase);
    else
        (void)snprintf(out, PLACE_BYTES, "%slayer \"%.64s\", %s", variant == MS__RECOMPUTED ? "recomputed " : "",
                       profile->units[s->unit].name, phase);
}

/* The segment and the event's number among those of its kind there. */
static void write_place(const ms_profile *profile, uint32_t event, char out[PLACE_BYTES]) {
    const ms__step *step = profile->step;
    out[0] = '\0';
    for (uint32_t i = 0; i < step->n_segments; i++) {
        const ms__segment *s = &step->segments[i];
        for (int v = 0; v < MS__N_VARIANTS; v++) {
            if (event < s->first[v] || event - s->first[v] >= s->n[v]) continue;
            uint32_t kind = step->events[event].kind;
            int ordinal = 0;
            for (uint32_t e = s->first[v]; e < event; e++) ordinal += step->events[e].kind == kind;
            write_segment(profile, s, v, out);
            size_t n = strlen(out);
            (void)snprintf(out + n, PLACE_BYTES - n, ", %s %d", kinds[kind], ordinal);
            return;
        }
    }
}

static ms_status fail_structure(const fit *f, int64_t other, const char *place, const char *what) {
    const ms__shape *a = &f->shapes[0], *b = &f->shapes[other];
    return ms__fail(MS_E_MISMATCH, "at %lld x %lld and %lld x %lld the step differs: %s: %s", (long long)a->batch,
                    (long long)a->length, (long long)b->batch, (long long)b->length, place, what);
}

/* ---- The same structure ---- */

static ms_status check_units(const fit *f, int64_t other) {
    const ms_profile *a = f->profiles[0], *b = f->profiles[other];
    if (a->n_units != b->n_units) return fail_structure(f, other, "layers", "their number differs");
    for (int64_t i = 0; i < a->n_units; i++)
        if (strcmp(a->units[i].name, b->units[i].name) != 0 || a->units[i].param_bytes != b->units[i].param_bytes ||
            a->units[i].flags != b->units[i].flags)
            return fail_structure(f, other, a->units[i].name, "a layer differs");
    return MS_OK;
}

static const char *compare_events(const ms__step *a, const ms__step *b, uint32_t event) {
    const ms__step_event *x = &a->events[event], *y = &b->events[event];
    if (x->kind != y->kind) return "the events differ";
    if (x->kind == MS__OPERATION) {
        const ms__step_cost *c = &a->costs[x->index], *d = &b->costs[y->index];
        return c->element_bytes != d->element_bytes || c->flags != d->flags ? "the operations differ" : NULL;
    }
    if (x->kind == MS__SCRATCH)
        return a->scratches[x->index].rule != b->scratches[y->index].rule ? "the kernels differ" : NULL;
    return x->index != y->index ? "the tensors differ" : NULL;
}

static ms_status check_segment(const fit *f, int64_t other, uint32_t index) {
    const ms__step *a = step_of(f, 0), *b = step_of(f, other);
    const ms__segment *x = &a->segments[index], *y = &b->segments[index];
    char place[PLACE_BYTES];
    write_segment(f->profiles[0], x, MS__PLAIN, place);
    if (x->unit != y->unit || x->phase != y->phase) return fail_structure(f, other, place, "another layer runs here");
    for (int v = 0; v < MS__N_VARIANTS; v++) {
        write_segment(f->profiles[0], x, v, place);
        if (x->first[v] != y->first[v]) return fail_structure(f, other, place, "it starts at another event");
        for (uint32_t i = 0; i < x->n[v] && i < y->n[v]; i++) {
            const char *difference = compare_events(a, b, x->first[v] + i);
            if (difference == NULL) continue;
            write_place(f->profiles[0], x->first[v] + i, place);
            return fail_structure(f, other, place, difference);
        }
        if (x->n[v] != y->n[v]) return fail_structure(f, other, place, "the numbers of events differ");
    }
    return MS_OK;
}

static ms_status check_structure(const fit *f, int64_t other) {
    const ms__step *a = step_of(f, 0), *b = step_of(f, other);
    if (a->has_recomputed != b->has_recomputed)
        return fail_structure(f, other, "layers", "only one has a recomputed trace");
    ms_status status = check_units(f, other);
    for (uint32_t i = 0; i < a->n_segments && i < b->n_segments && status == MS_OK; i++)
        status = check_segment(f, other, i);
    if (status != MS_OK) return status;
    if (a->n_segments != b->n_segments || a->n_events != b->n_events || a->n_keys != b->n_keys)
        return fail_structure(f, other, "at the end", "one step is longer");
    for (uint32_t e = 0; e < a->n_events; e++) {
        char place[PLACE_BYTES];
        uint32_t key = a->events[e].index;
        if (a->events[e].kind != MS__ALLOCATE || a->keys[key].category == b->keys[key].category) continue;
        write_place(f->profiles[0], e, place);
        return fail_structure(f, other, place, "the categories differ");
    }
    return MS_OK;
}

/* ---- Numbers where they occur ---- */

static ms_status gather_tuples(fit *f, uint32_t kind, tuples *out) {
    const ms__step *first = step_of(f, 0);
    size_t n = 0, n_profiles = (size_t)f->n_profiles;
    for (uint32_t e = 0; e < first->n_events; e++) n += first->events[e].kind == kind;
    out->indices = ms__arena_array(&f->arena, n * n_profiles, sizeof *out->indices);
    if (out->indices == NULL) return MS_E_NO_MEMORY;
    uint32_t *next = out->indices;
    for (uint32_t e = 0; e < first->n_events; e++)
        for (int64_t p = 0; p < f->n_profiles && first->events[e].kind == kind; p++)
            *next++ = step_of(f, p)->events[e].index;
    return ms__intern(&f->arena, out->indices, n, n_profiles * sizeof *out->indices, &out->of, &out->n);
}

static void gather_values(const fit *f, int64_t profile) {
    const ms__step *step = step_of(f, profile);
    size_t n = (size_t)f->n_profiles;
    int64_t *value = f->values + profile;
    for (uint32_t k = 0; k < step->n_keys; k++, value += n) *value = step->numbers[step->keys[k].size];
    for (uint32_t i = 0; i < f->costs.n; i++, value += COST_NUMBERS * n) {
        const ms__step_cost *cost = &step->costs[f->costs.indices[i * n + (size_t)profile]];
        value[0] = step->numbers[cost->flops];
        value[n] = step->numbers[cost->bytes];
    }
    for (uint32_t i = 0; i < f->scratches.n; i++) {
        const ms__step_scratch *scratch = &step->scratches[f->scratches.indices[i * n + (size_t)profile]];
        for (int j = 0; j < MS__SCRATCH_NUMBERS; j++, value += n) *value = step->numbers[scratch->n[j]];
    }
}

static ms_status gather(fit *f) {
    ms_status status = gather_tuples(f, MS__OPERATION, &f->costs);
    if (status == MS_OK) status = gather_tuples(f, MS__SCRATCH, &f->scratches);
    if (status != MS_OK) return status;
    size_t n = step_of(f, 0)->n_keys + (size_t)f->costs.n * COST_NUMBERS + (size_t)f->scratches.n * MS__SCRATCH_NUMBERS;
    f->values = ms__arena_array(&f->arena, n * (size_t)f->n_profiles, sizeof *f->values);
    if (f->values == NULL) return MS_E_NO_MEMORY;
    for (int64_t p = 0; p < f->n_profiles; p++) gather_values(f, p);
    size_t item_bytes = (size_t)f->n_profiles * sizeof *f->values;
    return ms__intern(&f->arena, f->values, n, item_bytes, &f->numbers, &f->n_numbers);
}

static uint32_t number_of_cost(const fit *f, uint32_t cost, uint32_t which) {
    return f->numbers[step_of(f, 0)->n_keys + cost * COST_NUMBERS + which];
}

static uint32_t number_of_scratch(const fit *f, uint32_t scratch, uint32_t which) {
    return f->numbers[step_of(f, 0)->n_keys + f->costs.n * COST_NUMBERS + scratch * MS__SCRATCH_NUMBERS + which];
}

/* ---- Coefficients ---- */

/* The first solver takes the terms in their order. With fewer shapes than terms, it has no room for those of padded
 * lengths, which are the last; each of the other solvers has one of these, and leaves out another term instead. */
static ms_status prepare_solvers(fit *f) {
    static const int others[] = {MS__TERM_TT, MS__TERM_T, MS__TERM_B, MS__TERM_1, MS__TERM_BTT, MS__TERM_BT};
    f->n_solvers = 1;
    ms_status status = ms__solver_prepare(f->shapes, f->n_profiles - 1, 0, &f->solvers[0]);
    for (int padded = MS__TERM_BP; padded < MS__N_TERMS && status == MS_OK; padded++)
        for (size_t i = 0; i < sizeof others / sizeof *others && status == MS_OK; i++) {
            uint32_t rest = 1U << MS__TERM_BP | 1U << MS__TERM_BTQ;
            ms__solver *solver = &f->solvers[f->n_solvers];
            if (ms__solver_tells(&f->solvers[0], padded)) break;
            status =
                ms__solver_prepare(f->shapes, f->n_profiles - 1, (rest & ~(1U << padded)) | 1U << others[i], solver);
            if (status == MS_OK && ms__solver_tells(solver, padded)) f->n_solvers++;
        }
    return status;
}

/* The first profile that this number does not fit, plus 1; 0: it fits them all. */
static uint8_t find_misfit(const fit *f, uint32_t number) {
    const int64_t *values = f->values + (size_t)number * (size_t)f->n_profiles;
    ms__wide divisor = f->divisors[number];
    for (int64_t p = 0; p < f->n_profiles; p++) {
        ms__wide sum;
        if (!ms__terms_sum(f->coefficients + (size_t)number * MS__N_TERMS, f->terms[p], &sum) || sum % divisor != 0 ||
            sum / divisor != values[p])
            return (uint8_t)(p + 1);
    }
    return 0;
}

static ms_status solve_number(fit *f, uint32_t number, const ms__solver *solver) {
    ms__wide *coefficients = f->coefficients + (size_t)number * MS__N_TERMS, common = solver->denominator;
    if (!ms__solver_solve(solver, f->values + (size_t)number * (size_t)f->n_profiles, coefficients))
        return ms__fail(MS_E_LIMIT, "a number of the step is too large to be fitted exactly");
    for (int k = 0; k < MS__N_TERMS; k++) common = ms__common_divisor(common, coefficients[k]);
    for (int k = 0; k < MS__N_TERMS; k++) coefficients[k] /= common;
    f->divisors[number] = solver->denominator / common;
    f->failed[number] = find_misfit(f, number);
    return MS_OK;
}

static ms_status solve(fit *f) {
    f->coefficients = ms__arena_array(&f->arena, (size_t)f->n_numbers * MS__N_TERMS, sizeof *f->coefficients);
    f->divisors = ms__arena_array(&f->arena, f->n_numbers, sizeof *f->divisors);
    f->failed = ms__arena_array(&f->arena, f->n_numbers, sizeof *f->failed);
    if (f->coefficients == NULL || f->divisors == NULL || f->failed == NULL) return MS_E_NO_MEMORY;
    f->all_fit = true;
    for (uint32_t i = 0; i < f->n_numbers; i++) {
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

static ms_status fail_number(const fit *f, uint32_t event, const char *what, uint32_t number) {
    char place[PLACE_BYTES];
    int64_t profile = f->failed[number] - 1;
    int64_t value = f->values[(size_t)number * (size_t)f->n_profiles + (size_t)profile];
    write_place(f->profiles[0], event, place);
    return ms__fail(MS_E_MISMATCH, "%s: %s at %lld x %lld is %lld; the other shapes predict %lld", place, what,
                    (long long)f->shapes[profile].batch, (long long)f->shapes[profile].length, (long long)value,
                    guess(f, number, profile));
}

/* Some number does not fit: name the first place where it occurs. */
static ms_status report_misfit(const fit *f) {
    const ms__step *step = step_of(f, 0);
    static const char *const of_cost[COST_NUMBERS] = {"the number of its multiplications",
                                                      "the number of bytes it moves"};
    uint32_t n_ops = 0, n_scratches = 0;
    for (uint32_t e = 0; e < step->n_events; e++) {
        uint32_t kind = step->events[e].kind, number;
        if (kind == MS__ALLOCATE && f->failed[number = f->numbers[step->events[e].index]])
            return fail_number(f, e, "its size in bytes", number);
        for (uint32_t j = 0; j < COST_NUMBERS && kind == MS__OPERATION; j++)
            if (f->failed[number = number_of_cost(f, f->costs.of[n_ops], j)])
                return fail_number(f, e, of_cost[j], number);
        for (uint32_t j = 0; j < MS__SCRATCH_NUMBERS && kind == MS__SCRATCH; j++)
            if (f->failed[number = number_of_scratch(f, f->scratches.of[n_scratches], j)])
                return fail_number(f, e, "a size that it depends on", number);
        n_ops += kind == MS__OPERATION;
        n_scratches += kind == MS__SCRATCH;
    }
    return ms__fail(MS_E_MISMATCH, "a number of the step does not fit at all shapes");
}

/* ---- The result ---- */

static bool find_denominator(const fit *f, ms__wide *out) {
    *out = 1;
    for (uint32_t i = 0; i < f->n_numbers; i++) {
        ms__wide common = ms__common_divisor(*out, f->divisors[i]);
        if (!ms__wide_multiply(*out, f->divisors[i] / common, out)) return false;
    }
    return *out <= INT64_MAX;
}

/* Bring all coefficients to one denominator, within the range of sizes. */
static ms_status fill_coefficients(fit *f, ms__step *out) {
    size_t n = (size_t)f->n_numbers * MS__N_TERMS;
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

/* Keys, costs, scratches and events with the new indices; everything else comes from the first profile. */
static ms_status fill_step(fit *f, ms__step *out) {
    const ms__step *from = step_of(f, 0);
    size_t n = (size_t)f->n_profiles;
    uint32_t n_ops = 0, n_scratches = 0;
    *out = *from;
    out->n_numbers = f->n_numbers;
    out->n_costs = f->costs.n;
    out->n_scratches = f->scratches.n;
    out->numbers = ms__arena_array(&f->arena, f->n_numbers, sizeof *out->numbers);
    out->keys = ms__arena_array(&f->arena, from->n_keys, sizeof *out->keys);
    out->costs = ms__arena_array(&f->arena, f->costs.n, sizeof *out->costs);
    out->scratches = ms__arena_array(&f->arena, f->scratches.n, sizeof *out->scratches);
    out->events = ms__arena_array(&f->arena, from->n_events, sizeof *out->events);
    if (out->numbers == NULL || out->keys == NULL || out->costs == NULL || out->scratches == NULL ||
        out->events == NULL)
        return MS_E_NO_MEMORY;
    for (uint32_t i = 0; i < f->n_numbers; i++) out->numbers[i] = f->values[i * n];
    for (uint32_t k = 0; k < from->n_keys; k++) {
        out->keys[k] = from->keys[k];
        out->keys[k].size = f->numbers[k];
    }
    for (uint32_t i = 0; i < f->costs.n; i++) {
        out->costs[i] = from->costs[f->costs.indices[i * n]];
        out->costs[i].flops = number_of_cost(f, i, 0);
        out->costs[i].bytes = number_of_cost(f, i, 1);
    }
    for (uint32_t i = 0; i < f->scratches.n; i++) {
        out->scratches[i] = from->scratches[f->scratches.indices[i * n]];
        for (uint32_t j = 0; j < MS__SCRATCH_NUMBERS; j++) out->scratches[i].n[j] = number_of_scratch(f, i, j);
    }
    for (uint32_t e = 0; e < from->n_events; e++) {
        out->events[e] = from->events[e];
        if (from->events[e].kind == MS__OPERATION) out->events[e].index = f->costs.of[n_ops++];
        if (from->events[e].kind == MS__SCRATCH) out->events[e].index = f->scratches.of[n_scratches++];
    }
    return fill_coefficients(f, out);
}

/* ---- The whole fit ---- */

/* If batches differ, the last profile must have one that no other has; the same for lengths. So it shows whether a term
 * is missing: two lengths cannot tell a square from a line, a third can. */
static ms_status check_held_out(const fit *f) {
    const ms__shape *last = &f->shapes[f->n_profiles - 1];
    bool batches = false, lengths = false, batch_seen = false, length_seen = false;
    for (int64_t p = 0; p < f->n_profiles - 1; p++) {
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
    if (f->profiles == NULL || f->n_profiles < 2)
        return ms__fail(MS_E_INVALID, "ms_profile_fit: at least two profiles are needed");
    if (f->n_profiles > MS__MAX_SHAPES)
        return ms__fail(MS_E_LIMIT, "ms_profile_fit: at most %d profiles can be fitted", MS__MAX_SHAPES);
    for (int64_t p = 0; p < f->n_profiles; p++) {
        if (f->profiles[p] == NULL) return ms__fail(MS_E_INVALID, "ms_profile_fit: profile %lld is NULL", (long long)p);
        f->shapes[p] = (ms__shape){step_of(f, p)->batch, step_of(f, p)->length};
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
    for (int64_t p = 1; p < f->n_profiles && status == MS_OK; p++) status = check_structure(f, p);
    if (status == MS_OK) status = prepare_solvers(f);
    if (status == MS_OK) status = gather(f);
    if (status == MS_OK) status = solve(f);
    if (status == MS_OK && !f->all_fit) status = report_misfit(f);
    if (status == MS_OK) status = fill_step(f, &step);
    return status == MS_OK ? ms__profile_with_step(f->profiles[0], &step, out) : status;
}

ms_status ms_profile_fit(const ms_profile *const *profiles, int64_t n_profiles, ms_profile **out_profile) {
    if (out_profile == NULL) return ms__fail(MS_E_INVALID, "ms_profile_fit: out_profile is NULL");
    fit f = {.profiles = profiles, .n_profiles = n_profiles};
    ms_status status = run(&f, out_profile);
    ms__arena_free(&f.arena);
    return status;
}
