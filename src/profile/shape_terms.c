/* shape_terms.c - exact linear algebra for a handful of shapes.
 *
 * Gauss-Jordan elimination over whole numbers: rows are multiplied, and only divided by a common divisor of all their
 * entries. Products that do not fit in 128 bits are detected, not avoided: shapes of ordinary size stay far below.
 */
#include "shape_terms.h"

#include <string.h>

#include "../common/math.h"
#include "profile.h"

#define MAX_SIDE ((int64_t)1 << 30)
#define MAX_WIDE (((ms__wide)1 << 126) - 1)
#define N_COLUMNS (MS__N_TERMS + MS__MAX_SHAPES)

/* An equation: the factors of its terms, and the values that add up to its right side. */
typedef struct row {
    ms__wide a[N_COLUMNS];
} row;

typedef struct equations {
    row rows[MS__MAX_SHAPES];
    int64_t n_rows;
    int64_t scale[MS__N_TERMS]; /* what a column was divided by */
    int64_t pivot[MS__N_TERMS]; /* the row that determines a term; -1: none does */
} equations;

static ms__wide size_of(ms__wide a) { return a < 0 ? -a : a; }

bool ms__wide_multiply(ms__wide a, ms__wide b, ms__wide *out) {
    if (a != 0 && size_of(b) > MAX_WIDE / size_of(a)) return false;
    *out = a * b;
    return true;
}

/* Both are at most MAX_WIDE, so that the sum fits. */
static bool add(ms__wide a, ms__wide b, ms__wide *out) {
    *out = a + b;
    return size_of(*out) <= MAX_WIDE;
}

ms__wide ms__common_divisor(ms__wide a, ms__wide b) {
    while (b != 0) {
        ms__wide rest = a % b;
        a = b;
        b = rest;
    }
    return size_of(a);
}

/* ---- Terms ---- */

bool ms__terms_of(ms__shape shape, int64_t out[MS__N_TERMS]) {
    int64_t b = shape.batch, t = shape.length;
    if (b < 0 || t < 0 || b > MAX_SIDE || t > MAX_SIDE) return false;
    int64_t padded = ms__round_up(t, MS__LENGTH_PADDING), mask = ms__round_up(t, MS__MASK_PADDING);
    if ((ms__wide)b * padded * padded > MS__MAX_TERM) return false;
    out[MS__TERM_1] = 1;
    out[MS__TERM_B] = b;
    out[MS__TERM_T] = t;
    out[MS__TERM_BT] = b * t;
    out[MS__TERM_TT] = t * t;
    out[MS__TERM_BTT] = b * t * t;
    out[MS__TERM_BP] = b * padded;
    out[MS__TERM_BTQ] = b * t * mask;
    return true;
}

bool ms__terms_value(const int64_t coefficients[MS__N_TERMS], int64_t denominator, const int64_t terms[MS__N_TERMS],
                     int64_t *out) {
    ms__wide sum = 0;
    for (int k = 0; k < MS__N_TERMS; k++) sum += (ms__wide)coefficients[k] * terms[k];
    if (sum < 0 || sum > (ms__wide)INT64_MAX * denominator) return false;
    ms__wide value = sum / denominator + (sum % denominator != 0);
    if (value > INT64_MAX || !ms__size_in_range((int64_t)value)) return false;
    *out = (int64_t)value;
    return true;
}

bool ms__terms_sum(const ms__wide coefficients[MS__N_TERMS], const int64_t terms[MS__N_TERMS], ms__wide *out) {
    *out = 0;
    for (int k = 0; k < MS__N_TERMS; k++) {
        ms__wide part;
        if (!ms__wide_multiply(coefficients[k], terms[k], &part) || !add(*out, part, out)) return false;
    }
    return true;
}

/* ---- Equations ---- */

static bool fill_equations(const ms__shape *shapes, int64_t n_shapes, uint32_t left_out, equations *s) {
    int64_t terms[MS__MAX_SHAPES][MS__N_TERMS];
    *s = (equations){.n_rows = n_shapes};
    for (int64_t i = 0; i < n_shapes; i++) {
        if (!ms__terms_of(shapes[i], terms[i])) return false;
        for (int k = 0; k < MS__N_TERMS; k++) {
            if (left_out >> k & 1) terms[i][k] = 0;
            s->scale[k] = (int64_t)ms__common_divisor(s->scale[k], terms[i][k]); /* lengths often share one */
        }
    }
    for (int64_t i = 0; i < n_shapes; i++) {
        for (int k = 0; k < MS__N_TERMS; k++) s->rows[i].a[k] = s->scale[k] > 0 ? terms[i][k] / s->scale[k] : 0;
        s->rows[i].a[MS__N_TERMS + i] = 1;
    }
    return true;
}

/* Subtract a multiple of `from`, so that column k of `r` becomes 0. */
static bool eliminate(row *r, const row *from, int k) {
    if (r->a[k] == 0) return true;
    ms__wide common = ms__common_divisor(r->a[k], from->a[k]), divisor = 0;
    ms__wide times = from->a[k] / common, less = r->a[k] / common;
    for (int c = 0; c < N_COLUMNS; c++) {
        ms__wide x, y;
        if (!ms__wide_multiply(r->a[c], times, &x) || !ms__wide_multiply(from->a[c], less, &y) || !add(x, -y, &r->a[c]))
            return false;
        divisor = ms__common_divisor(divisor, r->a[c]);
    }
    for (int c = 0; c < N_COLUMNS && divisor > 1; c++) r->a[c] /= divisor;
    return true;
}

static bool solve_column(equations *s, int k, bool *used) {
    int64_t pivot = 0;
    while (pivot < s->n_rows && (used[pivot] || s->rows[pivot].a[k] == 0)) pivot++;
    s->pivot[k] = pivot < s->n_rows ? pivot : -1;
    if (s->pivot[k] >= 0) used[pivot] = true;
    for (int64_t i = 0; i < s->n_rows; i++) {
        if (s->pivot[k] < 0) s->rows[i].a[k] = 0; /* the term is left out */
        if (s->pivot[k] >= 0 && i != pivot && !eliminate(&s->rows[i], &s->rows[pivot], k)) return false;
    }
    return true;
}

/* The coefficient of the unscaled term k is its row's values divided by this. */
static bool divisor_of(const equations *s, int k, ms__wide *out) {
    return ms__wide_multiply(s->rows[s->pivot[k]].a[k], s->scale[k], out);
}

static bool find_denominator(const equations *s, ms__wide *out) {
    *out = 1;
    for (int k = 0; k < MS__N_TERMS; k++) {
        ms__wide divisor;
        if (s->pivot[k] < 0) continue;
        if (!divisor_of(s, k, &divisor)) return false;
        divisor = size_of(divisor);
        if (!ms__wide_multiply(*out, divisor / ms__common_divisor(*out, divisor), out)) return false;
    }
    return true;
}

static bool fill_weights(const equations *s, ms__solver *out) {
    for (int k = 0; k < MS__N_TERMS; k++) {
        ms__wide divisor;
        if (s->pivot[k] < 0) continue;
        if (!divisor_of(s, k, &divisor) || divisor == 0) return false;
        const row *r = &s->rows[s->pivot[k]];
        for (int64_t i = 0; i < s->n_rows; i++)
            if (!ms__wide_multiply(r->a[MS__N_TERMS + i], out->denominator / divisor, &out->weights[k][i]))
                return false;
    }
    return true;
}

ms_status ms__solver_prepare(const ms__shape *shapes, int64_t n_shapes, uint32_t left_out, ms__solver *out) {
    equations s;
    bool used[MS__MAX_SHAPES] = {false};
    *out = (ms__solver){.n_shapes = n_shapes};
    bool fits = fill_equations(shapes, n_shapes, left_out, &s);
    for (int k = 0; k < MS__N_TERMS && fits; k++) fits = solve_column(&s, k, used);
    if (fits) fits = find_denominator(&s, &out->denominator) && fill_weights(&s, out);
    return fits ? MS_OK : ms__fail(MS_E_LIMIT, "the shapes are too large or too odd to be fitted exactly");
}

bool ms__solver_tells(const ms__solver *solver, int term) {
    for (int64_t i = 0; i < solver->n_shapes; i++)
        if (solver->weights[term][i] != 0) return true;
    return false;
}

bool ms__solver_solve(const ms__solver *solver, const int64_t *values, ms__wide out[MS__N_TERMS]) {
    for (int k = 0; k < MS__N_TERMS; k++) {
        out[k] = 0;
        for (int64_t i = 0; i < solver->n_shapes; i++) {
            ms__wide part;
            if (!ms__wide_multiply(solver->weights[k][i], values[i], &part) || !add(out[k], part, &out[k]))
                return false;
        }
    }
    return true;
}
