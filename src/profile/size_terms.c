/* size_terms.c - finds the few terms of a number.
 *
 * Candidates are all sets of one term, then of two, three and four. A set is ruled out by one sum modulo 2^64, which is
 * 0 for all numbers that it can give; a set that passes is solved exactly, over 128-bit whole numbers, and must give
 * every value. Sets of four have terms without padding only.
 */
#include "size_terms.h"

#include <string.h>

#include "../common/math.h"
#include "profile.h"

#define MAX_SIDE ((int64_t)1 << 30)
#define MAX_DEGREE 3 /* of terms in four variables; with fewer, each may be squared */
#define UNITS 8      /* sizes are 3 to 8 units */
#define MAX_PART ((ms__wide)1 << 124)

/* In units, by variable and shape. The first shape is the largest in every variable. */
static const int64_t units_at[MS__MAX_VARIABLES][MS__FIT_SHAPES] = {
    {8, 5, 3, 6, 4}, {8, 4, 6, 5, 3}, {8, 6, 5, 3, 4}, {8, 3, 6, 4, 5}};

int64_t ms__size_value(int64_t largest, int variable, int shape, int64_t *out_grain) {
    int64_t grain = 1;
    while (grain < MS__LENGTH_PADDING && grain * 2 * UNITS <= largest) grain *= 2;
    *out_grain = grain;
    int64_t unit = ms__max(largest / UNITS / grain, 1) * grain;
    return unit * units_at[variable][shape];
}

/* ---- Terms ---- */

static bool value_of(const ms__size_term *term, const int64_t sizes[MS__MAX_VARIABLES], ms__wide *out) {
    *out = 1;
    for (int v = 0; v < MS__MAX_VARIABLES; v++)
        for (int i = 0; i < term->powers[v]; i++)
            if (sizes[v] > MAX_SIDE || !ms__wide_multiply(*out, sizes[v], out)) return false;
    if (term->padded == 0) return true;
    return ms__wide_multiply(*out, ms__round_up(sizes[term->padded - 1], term->padding), out);
}

/* Is this column a multiple of one before it? */
static bool is_known(const ms__size_terms *t, const int64_t column[MS__FIT_SHAPES]) {
    for (int k = 0; k < t->n_terms; k++) {
        bool same = true;
        for (int p = 0; p < MS__FIT_SHAPES && same; p++) same = t->columns[k][p] == column[p];
        if (same) return true;
    }
    return false;
}

static bool add_term(ms__size_terms *t, const ms__size_term *term, const int64_t sizes[][MS__MAX_VARIABLES]) {
    int64_t column[MS__FIT_SHAPES], scale = 0;
    for (int p = 0; p < MS__FIT_SHAPES; p++) {
        ms__wide value;
        if (!value_of(term, sizes[p], &value) || value > MS__MAX_TERM) return false;
        column[p] = (int64_t)value;
        scale = (int64_t)ms__common_divisor(scale, column[p]);
    }
    for (int p = 0; p < MS__FIT_SHAPES; p++) column[p] /= scale;
    if (is_known(t, column) || t->n_terms == MS__MAX_SIZE_TERMS) return true;
    memcpy(t->columns[t->n_terms], column, sizeof column);
    t->scale[t->n_terms] = scale;
    t->terms[t->n_terms++] = *term;
    return true;
}

/* All products of powers from 0 to `most`, by their degree. */
static bool add_products(ms__size_terms *t, int most, int max_degree, const ms__size_term *with,
                         const int64_t sizes[][MS__MAX_VARIABLES]) {
    int n_all = 1;
    for (int v = 0; v < t->n_variables; v++) n_all *= most + 1;
    for (int degree = 0; degree <= max_degree; degree++)
        for (int i = 0; i < n_all; i++) {
            ms__size_term term = *with;
            int sum = 0, rest = i;
            for (int v = 0; v < t->n_variables; v++, rest /= most + 1) {
                sum += rest % (most + 1);
                term.powers[v] = (uint8_t)(term.powers[v] + rest % (most + 1));
            }
            bool is_twice = with->padded != 0 && term.powers[with->padded - 1] > with->powers[with->padded - 1];
            if (sum == degree && !is_twice && !add_term(t, &term, sizes)) return false;
        }
    return true;
}

/* The term that has every variable once. Of four variables it is of a higher degree than the others. */
static bool add_product_of_all(ms__size_terms *t, const int64_t sizes[][MS__MAX_VARIABLES]) {
    ms__size_term product = {0};
    for (int v = 0; v < t->n_variables; v++) product.powers[v] = 1;
    if (!add_term(t, &product, sizes)) return false;
    for (int k = 0; k < t->n_terms; k++)
        if (memcmp(&t->terms[k], &product, sizeof product) == 0) t->product = k;
    return true;
}

static bool add_terms(ms__size_terms *t, const int64_t sizes[][MS__MAX_VARIABLES]) {
    static const ms__size_term nothing;
    bool fits =
        add_products(t, 2, t->n_variables < MS__MAX_VARIABLES ? 2 * t->n_variables : MAX_DEGREE, &nothing, sizes);
    t->n_plain = t->n_terms;
    fits = fits && add_product_of_all(t, sizes);
    for (int v = 0; v < t->n_variables && fits; v++) {
        ms__size_term length = {.padded = (uint8_t)(v + 1), .padding = MS__LENGTH_PADDING}, mask = length;
        mask.padding = MS__MASK_PADDING;
        mask.powers[v] = 1;
        fits = add_products(t, 1, 1, &length, sizes) && add_products(t, 1, 1, &mask, sizes);
    }
    return fits;
}

/* ---- Sets of terms ---- */

/* The determinant of these rows and columns, modulo 2^64. */
static uint64_t minor(const ms__size_terms *t, const uint8_t *terms, const int *rows, int n) {
    if (n == 0) return 1;
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        int others[MS__MAX_SUM];
        for (int j = 0; j < n - 1; j++) others[j] = rows[j < i ? j : j + 1];
        uint64_t part = (uint64_t)t->columns[terms[n - 1]][rows[i]] * minor(t, terms, others, n - 1);
        sum += (n - 1 - i) % 2 == 0 ? part : 0 - part;
    }
    return sum;
}

/* n terms and n + 1 shapes have one check; with more shapes, the checks of neighbours are added up. */
static void fill_check(const ms__size_terms *t, int n, ms__size_subset *subset) {
    memset(subset->check, 0, sizeof subset->check);
    for (int first = 0; first + n < MS__FIT_SHAPES; first++)
        for (int left_out = 0; left_out <= n; left_out++) {
            int rows[MS__MAX_SUM];
            for (int j = 0; j < n; j++) rows[j] = first + (j < left_out ? j : j + 1);
            uint64_t part = minor(t, subset->terms, rows, n) * (uint64_t)(2 * first + 1);
            subset->check[first + left_out] += left_out % 2 == 0 ? part : 0 - part;
        }
}

static ms_status make_subsets(ms__arena *arena, ms__size_terms *t, int n) {
    int n_terms = n == MS__MAX_SUM ? t->n_plain : t->n_terms;
    size_t n_all = 1;
    for (int i = 0; i < n; i++) n_all = n_all * (size_t)(n_terms - i) / (size_t)(i + 1);
    t->subsets[n] = ms__arena_array(arena, n_all, sizeof *t->subsets[n]);
    if (t->subsets[n] == NULL) return MS_E_NO_MEMORY;
    if (n > n_terms) return MS_OK;
    uint8_t at[MS__MAX_SUM] = {0, 1, 2, 3};
    for (int last = 0; last >= 0;) {
        ms__size_subset *subset = &t->subsets[n][t->n_subsets[n]++];
        memcpy(subset->terms, at, sizeof at);
        fill_check(t, n, subset);
        for (last = n - 1; last >= 0 && at[last] == n_terms - n + last;) last--;
        if (last >= 0) at[last]++;
        for (int i = last + 1; last >= 0 && i < n; i++) at[i] = (uint8_t)(at[i - 1] + 1);
    }
    return MS_OK;
}

ms_status ms__size_terms_make(ms__arena *arena, int n_variables, const int64_t sizes[][MS__MAX_VARIABLES],
                              ms__size_terms *out) {
    *out = (ms__size_terms){.n_variables = n_variables};
    if (!add_terms(out, sizes)) return ms__fail(MS_E_LIMIT, "the sizes of the inputs are too large to be fitted");
    ms_status status = MS_OK;
    for (int n = 1; n <= MS__MAX_SUM && status == MS_OK; n++) status = make_subsets(arena, out, n);
    return status;
}

/* ---- A number ---- */

/* An equation: the factors of the terms, and the value. */
typedef struct row {
    ms__wide a[MS__MAX_SUM + 1];
} row;

/* Subtract a multiple of `from`, so that column k becomes 0. */
static bool eliminate(row *r, const row *from, int k) {
    if (r->a[k] == 0) return true;
    ms__wide common = ms__common_divisor(r->a[k], from->a[k]), divisor = 0;
    ms__wide times = from->a[k] / common, less = r->a[k] / common;
    for (int c = 0; c <= MS__MAX_SUM; c++) {
        ms__wide x, y;
        if (!ms__wide_multiply(r->a[c], times, &x) || !ms__wide_multiply(from->a[c], less, &y)) return false;
        r->a[c] = x - y;
        divisor = ms__common_divisor(divisor, r->a[c]);
    }
    for (int c = 0; c <= MS__MAX_SUM && divisor > 1; c++) r->a[c] /= divisor;
    return true;
}

/* Make column k 0 in all rows but one, which is swapped to position k. */
static bool solve_column(row rows[MS__FIT_SHAPES], int k) {
    int pivot = k;
    while (pivot < MS__FIT_SHAPES && rows[pivot].a[k] == 0) pivot++;
    if (pivot >= MS__FIT_SHAPES) return false;
    row found = rows[pivot];
    rows[pivot] = rows[k];
    rows[k] = found;
    for (int i = 0; i < MS__FIT_SHAPES; i++)
        if (i != k && !eliminate(&rows[i], &rows[k], k)) return false;
    return true;
}

/* Coefficients from solved rows, brought to one divisor. Terms that the number does not have are left out. */
static bool fill_sum(const ms__size_terms *t, const row rows[], const uint8_t *terms, int n, ms__size_sum *out) {
    *out = (ms__size_sum){.divisor = 1};
    ms__wide divisors[MS__MAX_SUM] = {1, 1, 1, 1};
    for (int k = 0; k < n && k < MS__MAX_SUM; k++) {
        ms__wide value = rows[k].a[MS__MAX_SUM], divisor = rows[k].a[k];
        if (value == 0) continue;
        if (!ms__wide_multiply(divisor, t->scale[terms[k]], &divisor)) return false;
        ms__wide common = ms__common_divisor(value, divisor) * (divisor < 0 ? -1 : 1);
        out->terms[out->n] = terms[k];
        out->coefficients[out->n] = value / common;
        divisors[out->n++] = divisor / common;
    }
    for (int k = 0; k < out->n; k++)
        if (!ms__wide_multiply(out->divisor, divisors[k] / ms__common_divisor(out->divisor, divisors[k]),
                               &out->divisor))
            return false;
    for (int k = 0; k < out->n; k++)
        if (!ms__wide_multiply(out->coefficients[k], out->divisor / divisors[k], &out->coefficients[k])) return false;
    return true;
}

/* Solve for the terms of a set, exactly; the equations that are left must hold. */
static bool solve(const ms__size_terms *t, const ms__size_subset *subset, int n, const int64_t *values,
                  ms__size_sum *out) {
    row rows[MS__FIT_SHAPES] = {0};
    for (int p = 0; p < MS__FIT_SHAPES; p++) {
        for (int k = 0; k < n; k++) rows[p].a[k] = t->columns[subset->terms[k]][p];
        rows[p].a[MS__MAX_SUM] = values[p];
    }
    for (int k = 0; k < n && k < MS__MAX_SUM; k++)
        if (!solve_column(rows, k)) return false;
    for (int p = n; p < MS__FIT_SHAPES; p++)
        if (rows[p].a[MS__MAX_SUM] != 0) return false;
    return fill_sum(t, rows, subset->terms, n, out);
}

static bool passes(const ms__size_subset *subset, const int64_t *values) {
    uint64_t sum = 0;
    for (int p = 0; p < MS__FIT_SHAPES; p++) sum += subset->check[p] * (uint64_t)values[p];
    return sum == 0;
}

static void remember(ms__size_terms *t, const ms__size_subset *subset) {
    t->recent[t->n_recent++ % (sizeof t->recent / sizeof *t->recent)] = *subset;
}

static bool find_among(ms__size_terms *t, int n, const int64_t *values, ms__size_sum *out) {
    for (uint32_t i = 0; i < t->n_subsets[n]; i++) {
        const ms__size_subset *subset = &t->subsets[n][i];
        if (!passes(subset, values) || !solve(t, subset, n, values, out)) continue;
        if (n == 3) remember(t, subset);
        return true;
    }
    return false;
}

static bool find_recent(const ms__size_terms *t, const int64_t *values, ms__size_sum *out) {
    for (uint32_t i = 0; i < t->n_recent && i < sizeof t->recent / sizeof *t->recent; i++)
        if (passes(&t->recent[i], values) && solve(t, &t->recent[i], 3, values, out)) return true;
    return false;
}

bool ms__size_terms_find(ms__size_terms *t, const int64_t values[MS__FIT_SHAPES], ms__size_sum *out) {
    if (find_among(t, 1, values, out) || find_among(t, 2, values, out) || find_recent(t, values, out)) return true;
    return find_among(t, 3, values, out) || find_among(t, 4, values, out);
}

void ms__size_terms_estimate(const ms__size_terms *t, const int64_t values[MS__FIT_SHAPES], ms__size_sum *out) {
    int most = 0, term = t->product;
    bool are_flags = true;
    for (int p = 0; p < MS__FIT_SHAPES; p++) are_flags = are_flags && values[p] >= 0 && values[p] <= 1;
    if (are_flags) {
        *out = (ms__size_sum){.coefficients = {1}, .divisor = 1, .n = 1};
        return;
    }
    for (int p = 1; p < MS__FIT_SHAPES; p++)
        if ((ms__wide)values[p] * t->columns[term][most] > (ms__wide)values[most] * t->columns[term][p]) most = p;
    *out = (ms__size_sum){.coefficients = {values[most]},
                          .divisor = (ms__wide)t->columns[term][most] * t->scale[term],
                          .terms = {(uint8_t)term},
                          .n = 1};
}

bool ms__size_sum_value(const ms__size_terms *t, const ms__size_sum *sum, const int64_t sizes[MS__MAX_VARIABLES],
                        int64_t *out) {
    ms__wide total = 0;
    for (int k = 0; k < sum->n; k++) {
        ms__wide part;
        if (!value_of(&t->terms[sum->terms[k]], sizes, &part) || !ms__wide_multiply(part, sum->coefficients[k], &part))
            return false;
        if (part > MAX_PART || part < -MAX_PART) return false;
        total += part;
    }
    if (total < 0) return false;
    ms__wide value = total / sum->divisor + (total % sum->divisor != 0);
    if (value > INT64_MAX || !ms__size_in_range((int64_t)value)) return false;
    *out = (int64_t)value;
    return true;
}
