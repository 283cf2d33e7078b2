/* step_check.c - completes and checks every step before it is used, from traces or from a file.
 *
 * It finds the keys that the variants release in different segments, and bounds the sums that a simulation uses.
 * Indices were checked when the step was made.
 */
#include <string.h>

#include "profile.h"

#define BLOCK_BYTES 512 /* sizes are rounded to this on a GPU */

/* Where each variant releases each key. */
typedef struct ends {
    int32_t *released; /* MS__N_VARIANTS for each key: a segment, or why there is none */
} ends;

static int32_t *released_at(const ends *e, uint32_t key) { return e->released + (size_t)key * MS__N_VARIANTS; }

static void note_ends(const ms__step *step, uint32_t segment, int variant, ends *e) {
    const ms__segment *s = &step->segments[segment];
    for (uint32_t i = s->first[variant]; i < s->first[variant] + s->n[variant]; i++) {
        const ms__step_event *event = &step->events[i];
        if (event->kind == MS__ALLOCATE) released_at(e, event->index)[variant] = MS__NEVER_RELEASED;
        if (event->kind == MS__RELEASE) released_at(e, event->index)[variant] = (int32_t)segment;
    }
}

static bool is_split(const ends *e, uint32_t key) {
    const int32_t *released = released_at(e, key);
    int32_t first = MS__NOT_ALLOCATED;
    for (int v = 0; v < MS__N_VARIANTS; v++) {
        if (released[v] == MS__NOT_ALLOCATED) continue;
        if (first != MS__NOT_ALLOCATED && released[v] != first) return true;
        first = released[v];
    }
    return false;
}

static ms_status find_split_keys(ms__arena *arena, ms__arena *scratch, ms__step *step) {
    size_t n_released = (size_t)step->n_keys * MS__N_VARIANTS, n_split_keys = 0;
    ends e = {.released = ms__arena_array(scratch, n_released, sizeof *e.released)};
    if (e.released == NULL) return MS_E_NO_MEMORY;
    for (size_t i = 0; i < n_released; i++) e.released[i] = MS__NOT_ALLOCATED;
    for (uint32_t i = 0; i < step->n_segments; i++)
        for (int v = 0; v < MS__N_VARIANTS; v++) note_ends(step, i, v, &e);
    for (uint32_t k = 0; k < step->n_keys; k++) n_split_keys += is_split(&e, k);
    step->split_keys = ms__arena_array(arena, n_split_keys, sizeof *step->split_keys);
    if (step->split_keys == NULL) return MS_E_NO_MEMORY;
    step->n_split_keys = 0;
    for (uint32_t k = 0; k < step->n_keys; k++) {
        step->keys[k].split = 0;
        if (!is_split(&e, k)) continue;
        ms__split_key *l = &step->split_keys[step->n_split_keys++];
        l->key = k;
        memcpy(l->segment, released_at(&e, k), sizeof l->segment);
        step->keys[k].split = step->n_split_keys;
    }
    return MS_OK;
}

static bool add(int64_t *sum, int64_t value) {
    *sum += value; /* both in range, so this fits */
    return ms__size_in_range(*sum);
}

ms_status ms__step_check_sums(const ms__step *step) {
    int64_t held = 0, flops = 0, moved = 0;
    for (uint32_t i = 0; i < step->n_numbers; i++)
        if (!ms__size_in_range(step->numbers[i])) return ms__fail(MS_E_LIMIT, "a number of the step is out of range");
    for (uint32_t i = 0; i < step->n_keys; i++)
        if (!add(&held, step->numbers[step->keys[i].size] / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES))
            return ms__fail(MS_E_LIMIT, "the step allocates too many bytes in sum");
    for (uint32_t i = 0; i < step->n_events; i++) {
        if (step->events[i].kind != MS__OPERATION) continue;
        const ms__step_cost *cost = &step->costs[step->events[i].index];
        if (!add(&flops, step->numbers[cost->flops]) || !add(&moved, step->numbers[cost->bytes]))
            return ms__fail(MS_E_LIMIT, "the operations of the step are too large in sum");
    }
    return MS_OK;
}

ms_status ms__step_finish(ms__arena *arena, ms__step *step) {
    ms__arena scratch = {0};
    if (step->n_units > MS__STEP_MAX_EVENTS) return ms__fail(MS_E_LIMIT, "the step has too many layers");
    ms_status status = ms__step_check_sums(step);
    if (status == MS_OK) status = find_split_keys(arena, &scratch, step);
    ms__arena_free(&scratch);
    return status;
}
