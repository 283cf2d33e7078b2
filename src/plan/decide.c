/* decide.c - which plan it is: the rules around the search.
 *
 * With a budget that the user set, the fastest plan within it; else the least memory within the allowed slowdown, and
 * if that does not fit, the fastest that does. Every state that may be has a chain of its own. What a plan takes is the
 * larger of what its chain says and what a simulation of its step says; both know nothing of the budget. So the plans
 * that are candidates, and what each takes, do not depend on it either: a larger budget has more of them.
 */
#include <stdio.h>
#include <string.h>

#include "decide.h"
#include "plan.h"

#define RESOLUTION_PARTS 8192 /* of the memory that is taken when nothing is done */
#define MAX_TRIES 64          /* of limits: each is what the one before lacked */
#define MAX_PLANS 128         /* of a variant, where each is simulated several times */
#define SKIP_SHARE 4          /* the smart skip: a peak under 1/4 of the budget */

/* ---- Variants ---- */

static bool has_link(const ms_device *device) {
    return device != NULL && device->rates->to_device_mb_per_s > 0 && device->rates->from_device_mb_per_s > 0;
}

static bool is_allowed(const ms__decision *d, uint32_t state) {
    uint32_t away = MS_MODEL_OFFLOAD | MS_MODEL_OFFLOAD_GRADIENTS;
    if ((state & ~d->request->model_options) != 0) return false;
    if (state & MS_MODEL_HALF && d->request->half_profile == NULL) return false;
    if (state != 0 && d->request->profile->step == NULL) return false;
    return !(state & away) || has_link(d->request->device);
}

/* The fastest first, then those with the lower number. */
static void insert_variant(ms__decision *d, const ms__model_choice *v) {
    int32_t at = d->n_variants++;
    for (; at > 0 && v->chain.base_ns < d->variants[at - 1].chain.base_ns; at--) d->variants[at] = d->variants[at - 1];
    d->variants[at] = *v;
}

static ms_status find_needed(const ms__decision *d, const ms__model_choice *v, const uint8_t *choices,
                             int64_t most_bytes, int64_t *out);

static ms_status find_baseline(ms__decision *d, const ms__model_choice *v, const uint8_t *kept) {
    if (v->basis->runs[MS__PLAIN] != NULL) return find_needed(d, v, kept, INT64_MAX, &d->baseline_bytes);
    d->baseline_bytes = ms__chain_play(&v->chain, kept).peak_bytes;
    return MS_OK;
}

ms_status ms__decision_open(ms__decision *d) {
    const ms_plan_request *request = d->request;
    d->usable_bytes = request->budget_bytes - request->margin_bytes;
    d->actions = ms__arena_array(&d->arena, (size_t)request->profile->n_units, sizeof *d->actions);
    if (d->actions == NULL) return MS_E_NO_MEMORY;
    ms_status status = ms__basis_make(&d->arena, request, request->profile, &d->plain);
    if (status == MS_OK && request->half_profile != NULL && request->model_options & MS_MODEL_HALF)
        status = ms__basis_make(&d->arena, request, request->half_profile, &d->half);
    for (uint32_t state = 0; state < MS__N_MODEL_CHOICES && status == MS_OK; state++) {
        if (!is_allowed(d, state)) continue;
        ms__model_choice v = {.model_options = state, .basis = state & MS_MODEL_HALF ? &d->half : &d->plain};
        status = ms__chain_make(&d->arena, v.basis, state, &v.chain, &v.host_bytes);
        if (status != MS_OK) break;
        if (state == 0) {
            uint8_t *kept = ms__arena_array(&d->arena, (size_t)v.chain.n, 1);
            if (kept == NULL) return MS_E_NO_MEMORY;
            ms__chain_set_ticks(&v.chain, false);
            d->baseline_ns = v.chain.base_ns;
            status = find_baseline(d, &v, kept);
        }
        v.least_bytes = ms__chain_least_peak(&v.chain);
        if (v.chain.host_limit_bytes >= 0) insert_variant(d, &v);
    }
    return status;
}

void ms__decision_close(ms__decision *d) {
    ms__basis_free(&d->plain);
    ms__basis_free(&d->half);
    ms__arena_free(&d->arena);
}

/* ---- Candidates ---- */

static void write_actions(const ms__model_choice *v, const uint8_t *choices, int64_t n_units, int32_t *out) {
    memset(out, 0, (size_t)n_units * sizeof *out);
    for (int32_t i = 0; i < v->chain.n; i++) out[v->chain.units[i].unit] = v->chain.units[i].options[choices[i]].action;
}

/* Is torch's allocator simulated? */
static bool allocates(const ms__decision *d) {
    const ms_device *device = d->request->device;
    return d->request->simulation & MS_SIMULATE_ALLOCATOR && device != NULL && device->kind != MS_DEVICE_HOST;
}

/* The step of a variant under the actions at hand. Errors: MS_E_BUDGET if it does not run within `limit_bytes`. */
static ms_status play(const ms__decision *d, const ms__model_choice *v, uint32_t state, int64_t limit_bytes,
                      ms_simulation_summary *out) {
    const ms_plan_request *r = d->request;
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = v->basis->profile,
                                     .actions = d->actions,
                                     .n_actions = r->profile->n_units,
                                     .device = r->device,
                                     .limit_bytes = limit_bytes,
                                     .flags = r->simulation,
                                     .model_options = state};
    ms_simulation *sim = NULL;
    ms_status status = ms_simulation_create(&request, &sim);
    out->struct_bytes = sizeof *out;
    if (status == MS_OK) status = ms_simulation_get_summary(sim, out);
    ms_simulation_destroy(sim);
    return status;
}

static ms_status simulate(const ms__decision *d, const ms__model_choice *v, const uint8_t *choices,
                          ms_simulation_summary *out) {
    write_actions(v, choices, d->request->profile->n_units, d->actions);
    return play(d, v, v->model_options, 0, out);
}

/* What torch's allocator must be allowed to reserve for the actions at hand, more than the step takes at its peak: free
 * blocks may lie too scattered. Where a limit is too low, the allocation that fails says what it would take. With more
 * than `most_bytes` it is enough to know that. */
static ms_status find_fragmentation(const ms__decision *d, const ms__model_choice *v, int64_t most_bytes,
                                    int64_t *out) {
    ms_simulation_summary played;
    ms_status status = play(d, v, 0, 0, &played);
    if (status != MS_OK) return status;
    int64_t peak = ms__simulated_peak(&played), limit = peak;
    for (int i = 0; i < MAX_TRIES && limit - peak <= most_bytes; i++) {
        status = play(d, v, 0, limit, &played);
        if (status != MS_E_BUDGET) break;
        int64_t needed = ms_error_value();
        limit = needed > limit ? needed : limit + 1;
        status = MS_OK;
    }
    if (status == MS_OK) *out = limit - peak;
    return status;
}

/* What must be reserved for these choices. */
static ms_status find_needed(const ms__decision *d, const ms__model_choice *v, const uint8_t *choices,
                             int64_t most_bytes, int64_t *out) {
    ms_simulation_summary played;
    ms_status status = simulate(d, v, choices, &played);
    if (status != MS_OK) return status;
    int64_t peak = ms__simulated_peak(&played), fragmentation = 0;
    for (int64_t i = 0; i < d->request->profile->n_units; i++) /* the events know two variants of a unit */
        d->actions[i] = ms__action_variant(d->actions[i]) == MS__RECOMPUTED ? MS_ACTION_RECOMPUTE : MS_ACTION_KEEP;
    if (allocates(d) && peak <= most_bytes) status = find_fragmentation(d, v, most_bytes - peak, &fragmentation);
    *out = peak + fragmentation;
    return status;
}

int64_t ms__simulated_peak(const ms_simulation_summary *s) {
    return s->first_peak_bytes > s->steady_peak_bytes ? s->first_peak_bytes : s->steady_peak_bytes;
}

/* Times that are cut off (roofline.h) still differ by their ticks. */
static int64_t step_ns(const ms__chain *chain, int64_t ticks) {
    int64_t most = INT64_MAX / 4;
    return chain->base_ns + (ticks > most / chain->tick_ns ? most : ticks * chain->tick_ns);
}

ms_status ms__decision_appraise(const ms__decision *d, const ms__model_choice *v, const uint8_t *choices,
                                int64_t most_bytes, ms__candidate *out) {
    ms__value value = ms__chain_play(&v->chain, choices);
    bool alone = v->model_options == 0;
    for (int32_t i = 0; i < v->chain.n && alone; i++) alone = choices[i] == 0;
    *out = (ms__candidate){.model_options = v->model_options,
                           .peak_bytes = alone ? d->baseline_bytes : value.peak_bytes,
                           .step_ns = step_ns(&v->chain, value.ticks),
                           .host_bytes = v->host_bytes + value.host_bytes,
                           .waits = v->waits};
    if (out->step_ns < v->least_ns) out->step_ns = v->least_ns;
    if (alone || v->basis->runs[MS__PLAIN] == NULL || out->peak_bytes > most_bytes) return MS_OK;
    int64_t needed = 0;
    ms_status status = find_needed(d, v, choices, most_bytes, &needed);
    if (status == MS_OK && needed > out->peak_bytes) out->peak_bytes = needed;
    return status;
}

static bool is_faster(const ms__candidate *a, const ms__candidate *b) {
    if (b->choices == NULL) return true;
    if (a->step_ns != b->step_ns) return a->step_ns < b->step_ns;
    if (a->peak_bytes != b->peak_bytes) return a->peak_bytes < b->peak_bytes;
    return a->model_options < b->model_options;
}

/* Less than a resolution of memory is not worth any time. */
static bool is_leaner(const ms__candidate *a, const ms__candidate *b, int64_t resolution) {
    if (b->choices == NULL) return true;
    if (a->peak_bytes / resolution != b->peak_bytes / resolution) return a->peak_bytes < b->peak_bytes;
    if (a->step_ns != b->step_ns) return a->step_ns < b->step_ns;
    if (a->peak_bytes != b->peak_bytes) return a->peak_bytes < b->peak_bytes;
    return a->model_options < b->model_options;
}

static ms_status keep_best(ms__decision *d, const ms__model_choice *v, ms__candidate *found, const uint8_t *choices,
                           int64_t resolution) {
    found->choices = d->best.choices;
    if (!(resolution > 0 ? is_leaner(found, &d->best, resolution) : is_faster(found, &d->best))) return MS_OK;
    uint8_t *copy = ms__arena_array(&d->arena, (size_t)v->chain.n, 1);
    if (copy == NULL) return MS_E_NO_MEMORY;
    memcpy(copy, choices, (size_t)v->chain.n);
    found->choices = copy;
    d->best = *found;
    return MS_OK;
}

/* ---- The plans of a variant ----
 *
 * In order: all units kept, then the leanest plan of each time, as long as it is leaner than those before; these with
 * ticks that are as long as plans without waits need, and once more with longer ones. The latter count as no faster
 * than the slowest of the former, so that times never fall along this list: where any time will do that is the leanest;
 * else it is not known, and they count as no faster than any could be. The same list is behind every decision: the
 * fastest is its first plan that fits, the leanest has the least peak, in grains, of those that fit and are within a
 * time. Where there is none of these, what fits takes longer than they would.
 */

/* Where each plan takes several simulations to appraise, the list has one for every so many ticks. */
static int64_t stride_of(const ms__decision *d, const ms__model_choice *v) {
    return allocates(d) ? v->chain.max_ticks / MAX_PLANS + 1 : 1;
}

/* The end of the last stride that is whole by then. */
static int64_t last_end(const ms__decision *d, const ms__model_choice *v, int64_t ticks) {
    return ticks >= v->chain.max_ticks ? v->chain.max_ticks : ticks - (ticks + 1) % stride_of(d, v);
}

static int64_t end_of_stride(const ms__decision *d, const ms__model_choice *v, int64_t ticks) {
    int64_t stride = stride_of(d, v), end = ticks / stride * stride + stride - 1;
    return end < v->chain.max_ticks ? end : v->chain.max_ticks;
}

static bool set_pass(ms__model_choice *v, int pass) {
    ms__chain_set_ticks(&v->chain, false);
    v->waits = pass > 0;
    v->least_ns = 0;
    if (pass == 0) return true;
    if (!ms__chain_has_waits(&v->chain)) return false;
    v->least_ns = v->slowest_ns > 0 ? v->slowest_ns : step_ns(&v->chain, v->chain.max_ticks);
    ms__chain_set_ticks(&v->chain, true);
    return true;
}

/* ---- The fastest within the budget ---- */

/* Plans from the fastest on until one fits. */
static ms_status try_fastest(ms__decision *d, ms__model_choice *v, ms__search *search, uint8_t *choices,
                             bool *out_found) {
    int64_t limit = d->usable_bytes + ms__search_slack(search);
    while (limit > 0) {
        int64_t ticks = ms__search_fastest(search, limit, v->chain.max_ticks, choices);
        if (ticks == MS__NO_TICKS) return MS_OK;
        ticks = ms__search_leanest(search, end_of_stride(d, v, ticks), choices);
        limit = ms__search_peak(search, ticks) - 1;
        if (ms__chain_play(&v->chain, choices).peak_bytes > d->usable_bytes) continue;
        ms__candidate found;
        ms_status status = ms__decision_appraise(d, v, choices, d->usable_bytes, &found);
        if (status != MS_OK) return status;
        if (found.peak_bytes <= d->usable_bytes) {
            *out_found = true;
            return keep_best(d, v, &found, choices, 0);
        }
    }
    return MS_OK;
}

/* A search needs memory for each length of tick; it is given back at once. */
static ms_status find_fastest_of(ms__decision *d, ms__model_choice *v) {
    uint8_t *choices = ms__arena_array(&d->arena, (size_t)v->chain.n, 1);
    if (choices == NULL) return MS_E_NO_MEMORY;
    (void)set_pass(v, 0);
    ms__candidate kept;
    ms_status status = ms__decision_appraise(d, v, choices, d->usable_bytes, &kept);
    bool found = status == MS_OK && kept.peak_bytes <= d->usable_bytes;
    if (found) return keep_best(d, v, &kept, choices, 0);
    for (int pass = 0; pass < 2 && !found && status == MS_OK && set_pass(v, pass); pass++) {
        int64_t ticks = v->chain.max_ticks; /* slower than what another variant has is of no use */
        if (d->best.choices != NULL)
            ticks = end_of_stride(d, v, (d->best.step_ns - v->chain.base_ns) / v->chain.tick_ns);
        if (d->best.choices != NULL && v->least_ns > d->best.step_ns) break;
        ms__arena arena = {0};
        ms__search *search = NULL;
        status = ms__search_new(&arena, &v->chain, ticks, &search);
        if (status == MS_OK) status = try_fastest(d, v, search, choices, &found);
        ms__arena_free(&arena);
    }
    return status;
}

static ms_status find_fastest(ms__decision *d) {
    ms_status status = MS_OK;
    for (int32_t i = 0; i < d->n_variants && status == MS_OK; i++) {
        ms__model_choice *v = &d->variants[i];
        if (d->best.choices != NULL && v->chain.base_ns > d->best.step_ns)
            break; /* they come in the order of base_ns */
        status = find_fastest_of(d, v);
    }
    return status;
}

/* ---- The leanest within a time ---- */

/* What is looked for: plans that take at most so long and so much, in grains of memory. */
typedef struct goal {
    int64_t max_ns, max_bytes, resolution;
} goal;

static ms_status consider(ms__decision *d, const ms__model_choice *v, const uint8_t *choices, const goal *aim) {
    ms__candidate found;
    int64_t most = aim->max_bytes;
    if (d->best.choices != NULL && d->best.peak_bytes < most - aim->resolution)
        most = d->best.peak_bytes + aim->resolution;
    ms_status status = ms__decision_appraise(d, v, choices, most, &found);
    if (status != MS_OK || found.peak_bytes > most) return status;
    return keep_best(d, v, &found, choices, aim->resolution);
}

/* From the leanest by its chain on, until no other can be leaner. */
static ms_status try_leanest(ms__decision *d, ms__model_choice *v, ms__search *search, const goal *aim,
                             uint8_t *choices) {
    int64_t most = last_end(d, v, (aim->max_ns - v->chain.base_ns) / v->chain.tick_ns);
    while (most >= 0) {
        int64_t ticks = ms__search_leanest(search, most, choices);
        if (ticks == MS__NO_TICKS) return MS_OK;
        int64_t least = ms__search_peak(search, ticks) - ms__search_slack(search);
        bool beaten = d->best.choices != NULL && least / aim->resolution > d->best.peak_bytes / aim->resolution;
        if (beaten || least > aim->max_bytes) return MS_OK;
        most = last_end(d, v, ticks - 1);
        ms_status status = consider(d, v, choices, aim);
        if (status != MS_OK) return status;
    }
    return MS_OK;
}

static ms_status find_leanest_of(ms__decision *d, ms__model_choice *v, const goal *aim) {
    uint8_t *choices = ms__arena_array(&d->arena, (size_t)v->chain.n, 1);
    if (choices == NULL) return MS_E_NO_MEMORY;
    (void)set_pass(v, 0);
    ms_status status = consider(d, v, choices, aim); /* all are kept */
    for (int pass = 0; pass < 2 && status == MS_OK && set_pass(v, pass); pass++) {
        if (v->least_ns > aim->max_ns) break;
        ms__arena arena = {0};
        ms__search *search = NULL;
        status = ms__search_new(&arena, &v->chain, (aim->max_ns - v->chain.base_ns) / v->chain.tick_ns, &search);
        if (status == MS_OK) status = try_leanest(d, v, search, aim, choices);
        if (status == MS_OK && pass == 0 && aim->max_ns == INT64_MAX) {
            int64_t ticks = ms__search_leanest(search, v->chain.max_ticks, choices);
            if (ticks != MS__NO_TICKS) v->slowest_ns = step_ns(&v->chain, ticks);
        }
        ms__arena_free(&arena);
    }
    return status;
}

/* Those first that may be the leanest: the others are soon beaten. */
static ms_status find_leanest(ms__decision *d, const goal *aim) {
    bool done[MS__N_MODEL_CHOICES] = {false};
    ms_status status = MS_OK;
    for (int32_t n = 0; n < d->n_variants && status == MS_OK; n++) {
        int32_t next = 0;
        while (done[next]) next++;
        for (int32_t i = next + 1; i < d->n_variants; i++)
            if (!done[i] && d->variants[i].least_bytes < d->variants[next].least_bytes) next = i;
        done[next] = true;
        if (d->variants[next].chain.base_ns <= aim->max_ns) status = find_leanest_of(d, &d->variants[next], aim);
    }
    return status;
}

static int64_t allowed_ns(const ms__decision *d) {
    int64_t ppm = d->request->slowdown_ppm, ns = d->baseline_ns;
    if (ppm < 0) return INT64_MAX;
    if (ns / 1000000 > INT64_MAX / 4 / (ppm + 1)) return INT64_MAX;
    return ns + ns / 1000000 * ppm + ns % 1000000 * ppm / 1000000;
}

/* ---- Refusing ---- */

typedef struct size_text {
    char text[32];
} size_text;

static size_text show(int64_t bytes) {
    size_text shown;
    bool large = bytes >= 100000000;
    int64_t unit = large ? 1000000000 : 1000000;
    (void)snprintf(shown.text, sizeof shown.text, "%lld.%03lld %s", (long long)(bytes / unit),
                   (long long)(bytes % unit / (unit / 1000)), large ? "GB" : "MB");
    return shown;
}

/* What the peak is made of, what is under 2 % left out; where only units are known, what no plan changes. */
static void show_parts(const ms__decision *d, const ms_simulation_summary *played, char *out, size_t n) {
    size_t used = 0;
    for (int c = 0; c < MS_N_CATEGORIES; c++)
        if (played->parts[c] > d->best.peak_bytes / 50 && used < n)
            used += (size_t)snprintf(out + used, n - used, "%s%s %s", used == 0 ? ": " : ", ", ms__category_name(c),
                                     show(played->parts[c]).text);
    if (d->request->profile->step == NULL)
        (void)snprintf(out, n,
                       "parameters, gradients and optimizer state are %s of it; a smaller batch or shorter "
                       "inputs lower the rest",
                       show(d->request->profile->resident_bytes).text);
}

/* Nothing fits: say how close the leanest plan comes and what is in the way. */
static ms_status refuse(ms__decision *d) {
    ms_status status = MS_OK;
    char parts[256] = "", kept_free[64] = "", place[160] = "";
    const ms__model_choice *v = NULL;
    for (int32_t i = 0; i < d->n_variants; i++)
        if (d->variants[i].model_options == d->best.model_options) v = &d->variants[i];
    ms_simulation_summary played = {.peak_unit = -1};
    if (v != NULL && v->basis->runs[MS__PLAIN] != NULL) {
        status = simulate(d, v, d->best.choices, &played);
        const char *name = played.peak_unit >= 0 ? d->request->profile->units[played.peak_unit].name : "between layers";
        (void)snprintf(place, sizeof place, "it is in %s, %.96s", ms__phase_name(played.peak_phase), name);
    }
    if (status != MS_OK) return status;
    show_parts(d, &played, parts, sizeof parts);
    if (d->request->margin_bytes > 0)
        (void)snprintf(kept_free, sizeof kept_free, ", of which %s stay free", show(d->request->margin_bytes).text);
    return ms__fail_value(MS_E_BUDGET, d->best.peak_bytes,
                          "the smallest peak that may be reached is %s, the budget is %s%s; %s%s",
                          show(d->best.peak_bytes).text, show(d->request->budget_bytes).text, kept_free, place, parts);
}

/* ---- What a unit got, and what it did not ---- */

/* The option that comes next in time: before what was chosen, or behind what is kept. */
static int32_t other_option(const ms__chain_unit *unit, int32_t chosen) {
    int32_t other = -1;
    for (int32_t o = 0; o < unit->n_options; o++) {
        int64_t ns = unit->options[o].extra_ns;
        if (o == chosen || (chosen > 0) != (ns < unit->options[chosen].extra_ns || o == 0)) continue;
        if (other < 0 || (chosen > 0 ? ns > unit->options[other].extra_ns : ns < unit->options[other].extra_ns))
            other = o;
    }
    return other;
}

static void explain_unit(const ms__decision *d, const ms__model_choice *v, uint8_t *choices, int32_t position,
                         ms_plan_entry *out) {
    const ms__chain_unit *unit = &v->chain.units[position];
    int32_t chosen = choices[position], other = other_option(unit, chosen);
    const ms__option *option = &unit->options[chosen];
    out->plain_bytes = unit->options[0].held_bytes;
    out->held_bytes = option->held_bytes;
    out->host_bytes = option->copy_bytes;
    out->extra_ns = option->ticks * v->chain.tick_ns;
    out->action = out->other = option->action;
    out->reason = chosen > 0 ? MS_REASON_SAVES : unit->n_options > 1 ? MS_REASON_NOT_NEEDED : MS_REASON_NO_GAIN;
    out->other_reason = MS_REASON_NO_GAIN;
    if (other < 0) return;
    ms__value before = ms__chain_play(&v->chain, choices);
    choices[position] = (uint8_t)other;
    ms__value after = ms__chain_play(&v->chain, choices);
    choices[position] = (uint8_t)chosen;
    out->other = unit->options[other].action;
    out->other_bytes = after.peak_bytes - before.peak_bytes;
    out->other_ns = (after.ticks - before.ticks) * v->chain.tick_ns;
    if (after.peak_bytes > d->usable_bytes)
        out->other_reason = MS_REASON_OVER_BUDGET;
    else if (after.ticks > before.ticks)
        out->other_reason = out->other_bytes < 0 ? MS_REASON_SLOWER : MS_REASON_NO_GAIN;
    else
        out->other_reason = MS_REASON_HIGHER_PEAK;
}

static void explain_units(const ms__decision *d, const ms__model_choice *v, uint8_t *choices, ms_plan *plan) {
    const ms_profile *profile = d->request->profile;
    for (int64_t i = 0; i < plan->n_entries; i++) plan->entries[i].reason = MS_REASON_NOT_RUN;
    for (int32_t i = 0; i < v->chain.n; i++) explain_unit(d, v, choices, i, &plan->entries[v->chain.units[i].unit]);
    for (int64_t i = 0; i < plan->n_entries; i++) {
        bool runs = (profile->units[i].flags & MS_UNIT_RUN) != 0;
        if (runs && !ms__unit_may_change(d->request, profile, i)) plan->entries[i].reason = MS_REASON_NOT_ELIGIBLE;
        if (!runs) plan->entries[i].reason = MS_REASON_NOT_RUN;
    }
}

static ms_status describe(ms__decision *d, ms_plan *plan) {
    ms__model_choice *v = &d->variants[0];
    for (int32_t i = 0; i < d->n_variants; i++)
        if (d->variants[i].model_options == d->best.model_options) v = &d->variants[i];
    ms_plan_summary *s = &plan->summary;
    s->model_options = d->best.model_options;
    s->predicted_peak_bytes = d->best.peak_bytes;
    s->host_bytes = d->best.host_bytes;
    s->step_ns = d->best.step_ns;
    ms__chain_set_ticks(&v->chain, d->best.waits);
    explain_units(d, v, d->best.choices, plan);
    if (v->basis->runs[MS__PLAIN] == NULL) return MS_OK;
    ms_simulation_summary played;
    ms_status status = simulate(d, v, d->best.choices, &played);
    if (status != MS_OK) return status;
    memcpy(s->parts, played.parts, sizeof s->parts);
    s->peak_unit = played.peak_unit;
    s->peak_phase = played.peak_phase;
    return MS_OK;
}

/* ---- Deciding ---- */

static ms_status choose(ms__decision *d) {
    const ms_plan_request *request = d->request;
    ms_status status = MS_OK;
    bool may_be_slower = true;
    if (!(request->flags & MS_PLAN_FASTEST)) {
        const goal leanest = {allowed_ns(d), d->usable_bytes, d->baseline_bytes / RESOLUTION_PARTS + 1};
        status = find_leanest(d, &leanest);
        if (status != MS_OK || d->best.choices != NULL) return status;
        may_be_slower = leanest.max_ns < INT64_MAX;
    }
    if (may_be_slower) status = find_fastest(d);
    if (status != MS_OK || d->best.choices != NULL) return status;
    const goal smallest = {.max_ns = INT64_MAX, .max_bytes = INT64_MAX, .resolution = 1};
    status = find_leanest(d, &smallest);
    return status == MS_OK ? refuse(d) : status;
}

/* Every unit that may be is recomputed, or none is. */
static ms_status set_all(ms__decision *d, bool recompute) {
    ms__model_choice *v = &d->variants[0];
    for (int32_t i = 0; i < d->n_variants; i++)
        if (d->variants[i].model_options == 0) v = &d->variants[i];
    uint8_t *choices = ms__arena_array(&d->arena, (size_t)v->chain.n, 1);
    if (choices == NULL) return MS_E_NO_MEMORY;
    ms__chain_set_ticks(&v->chain, false);
    for (int32_t i = 0; i < v->chain.n; i++)
        for (int32_t o = 0; recompute && o < v->chain.units[i].n_options; o++)
            if (v->chain.units[i].options[o].action == MS_ACTION_RECOMPUTE) choices[i] = (uint8_t)o;
    ms_status status = ms__decision_appraise(d, v, choices, INT64_MAX, &d->best);
    d->best.choices = choices;
    return status;
}

/* Of units that did not run nothing is known, so that no chain has an option for them. */
static void recompute_unmeasured(const ms__decision *d, ms_plan *plan) {
    const ms_plan_request *request = d->request;
    for (int64_t i = 0; i < plan->n_entries && request->actions & 1U << MS_ACTION_RECOMPUTE; i++) {
        bool may_change = request->may_change == NULL || request->may_change[i] != 0;
        if (request->profile->units[i].flags != MS_UNIT_ELIGIBLE || !may_change) continue;
        plan->entries[i].action = MS_ACTION_RECOMPUTE;
        plan->entries[i].reason = MS_REASON_SAVES;
    }
}

static int64_t share_ppm(int64_t part, int64_t whole) {
    return part > INT64_MAX / 8 / 1000000 ? part / (whole / 1000000 + 1) : part * 1000000 / whole;
}

static ms_status run(ms__decision *d, ms_plan *plan) {
    uint32_t flags = d->request->flags;
    ms_status status = ms__decision_open(d);
    if (status != MS_OK) return status;
    plan->summary.baseline_peak_bytes = d->baseline_bytes;
    plan->summary.baseline_ns = d->baseline_ns;
    bool may_skip = !(flags & (MS_PLAN_FORCE | MS_PLAN_FASTEST | MS_PLAN_RECOMPUTE_ALL));
    plan->summary.skipped =
        may_skip && d->baseline_bytes < d->request->budget_bytes / SKIP_SHARE && d->baseline_bytes <= d->usable_bytes;
    if (flags & MS_PLAN_RECOMPUTE_ALL || plan->summary.skipped)
        status = set_all(d, !plan->summary.skipped);
    else
        status = choose(d);
    if (status == MS_OK) status = describe(d, plan);
    if (status != MS_OK) return status;
    if (flags & MS_PLAN_RECOMPUTE_ALL) recompute_unmeasured(d, plan);
    int64_t extra = plan->summary.step_ns - d->baseline_ns, base = d->baseline_ns;
    if (base > 0) plan->summary.slowdown_ppm = share_ppm(extra, base);
    if (d->plain.runs[0] == NULL) plan->summary.step_ns = plan->summary.baseline_ns = 0; /* they were no times */
    return MS_OK;
}

ms_status ms__plan_decide(ms_plan *plan, const ms_plan_request *request) {
    ms__decision d = {.request = request};
    ms_status status = run(&d, plan);
    ms__decision_close(&d);
    return status;
}
