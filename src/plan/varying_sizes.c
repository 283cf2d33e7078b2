/* varying_sizes.c - which sizes of a model's inputs vary. */
#include "varying_sizes.h"

#include <string.h>

#include "../common/math.h"

#define BUCKET_PARTS 8 /* the number of buckets between a power of two and the next */

static bool are_equal(const int64_t *const *inputs, size_t n_inputs, int64_t i, int64_t j) {
    for (size_t k = 0; k < n_inputs; k++)
        if (inputs[k][i] != inputs[k][j]) return false;
    return true;
}

static bool varies(const int64_t *const *inputs, size_t n_inputs, int64_t i) {
    for (size_t k = 1; k < n_inputs; k++)
        if (inputs[k][i] != inputs[0][i]) return true;
    return false;
}

/* The variable of a position: that of an equal one before it, or a new one; -1: there are too many. */
static int variable_of(const int64_t *const *inputs, size_t n_inputs, int64_t position, ms__varying *v) {
    for (int64_t i = 0; i < position; i++)
        if (v->of[i] != 0 && are_equal(inputs, n_inputs, i, position)) return v->of[i] - 1;
    if (v->n == MS__MAX_VARIABLES) return -1;
    for (size_t k = 0; k < n_inputs; k++) v->largest[v->n] = ms__max(v->largest[v->n], inputs[k][position]);
    return v->n++;
}

bool ms__varying_find(const int64_t *const *inputs, size_t n_inputs, int64_t n_sizes, ms__varying *out) {
    *out = (ms__varying){.n_sizes = n_sizes};
    if (n_sizes > MS__MAX_SIZES) return false;
    for (int64_t i = 0; i < n_sizes; i += inputs[0][i] + 1)
        for (int64_t d = i + 1; d <= i + inputs[0][i]; d++) {
            if (!varies(inputs, n_inputs, d)) continue;
            int variable = variable_of(inputs, n_inputs, d, out);
            if (variable < 0) return false;
            out->of[d] = (int8_t)(variable + 1);
            out->is_first[variable] = out->is_first[variable] || d == i + 1;
        }
    return out->n > 0;
}

bool ms__varying_equal(const ms__varying *a, const ms__varying *b) {
    return a->n_sizes == b->n_sizes && a->n == b->n && memcmp(a->of, b->of, sizeof a->of) == 0;
}

bool ms__varying_values(const ms__varying *v, const int64_t *base, const int64_t *sizes, int64_t n_sizes,
                        int64_t out[MS__MAX_VARIABLES]) {
    bool is_set[MS__MAX_VARIABLES] = {false};
    memset(out, 0, MS__MAX_VARIABLES * sizeof *out);
    if (v->n == 0 || n_sizes != v->n_sizes) return false;
    for (int64_t i = 0; i < n_sizes; i++) {
        int variable = v->of[i] - 1;
        if (variable < 0 && sizes[i] != base[i]) return false;
        if (variable < 0) continue;
        if (is_set[variable] && out[variable] != sizes[i]) return false;
        is_set[variable] = true;
        out[variable] = sizes[i];
    }
    return true;
}

void ms__varying_fit_values(const ms__varying *v, int shape, int64_t out[MS__MAX_VARIABLES]) {
    int64_t grain;
    memset(out, 0, MS__MAX_VARIABLES * sizeof *out);
    for (int i = 0; i < v->n; i++) out[i] = ms__size_value(v->largest[i], i, shape, &grain);
}

static int64_t end_of_bucket(int64_t size) {
    int64_t step = 1;
    if (size > INT64_MAX / 2) return size;
    while (step * BUCKET_PARTS * 2 <= size) step *= 2;
    return ms__round_up(size, step);
}

void ms__varying_round_up(const ms__varying *v, int64_t values[MS__MAX_VARIABLES]) {
    for (int i = 0; i < v->n; i++) {
        int64_t grain;
        (void)ms__size_value(v->largest[i], i, 0, &grain);
        if (!v->is_first[i] && values[i] < INT64_MAX / 2) values[i] = ms__round_up(end_of_bucket(values[i]), grain);
    }
}

void ms__varying_fill(const ms__varying *v, const int64_t *base, const int64_t values[MS__MAX_VARIABLES],
                      int64_t *out) {
    for (int64_t i = 0; i < v->n_sizes; i++) out[i] = v->of[i] == 0 ? base[i] : values[v->of[i] - 1];
}
