/* explain.c - explains a plan to people: what the peak consists of, what is done to each layer and why; or why there is
 * no plan. Sizes, times and places are written by one function each (src/common/text.h).
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/math.h"
#include "../common/text.h"
#include "../common/vec.h"
#include "../sim/actions.h"
#include "../sim/model_options.h"
#include "decide.h"

#define MAX_NAME 48 /* bytes of a layer's name in the table, */

/* ---- Reasons ---- */

const ms__name ms__reasons[MS_N_REASONS] = {[MS_REASON_NOT_NEEDED] = {"not needed", "not_needed"},
                                            [MS_REASON_NO_GAIN] = {"saves nothing", "no_gain"},
                                            [MS_REASON_NOT_ELIGIBLE] = {"may not be changed", "not_eligible"},
                                            [MS_REASON_NOT_RUN] = {"did not run", "not_run"},
                                            [MS_REASON_SAVES] = {"lowers the peak", "saves"},
                                            [MS_REASON_OVER_BUDGET] = {"does not fit", "over_budget"},
                                            [MS_REASON_SLOWER] = {"slower", "slower"},
                                            [MS_REASON_HIGHER_PEAK] = {"higher peak", "higher_peak"}};

ms_status ms_reason_get_info(int32_t reason, ms_name_info *out) {
    return ms__name_get(ms__reasons, MS_N_REASONS, reason, out, "ms_reason_get_info");
}

/* The option that is closest in time: the next faster one, or if the unit is kept, the next slower one. */
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

/* Compare the plan with one in which this unit has another option. */
static void explain_other(const ms__decision *d, const ms__chain *chain, int32_t position, int32_t other,
                          ms_plan_entry *out) {
    const ms__grid *grid = d->best.grid;
    uint8_t *choices = d->best.choices, chosen = choices[position];
    ms__value before = ms__chain_play(chain, grid, choices);
    choices[position] = (uint8_t)other;
    ms__value after = ms__chain_play(chain, grid, choices);
    choices[position] = chosen;
    out->other = chain->units[position].options[other].action;
    out->other_bytes = after.peak_bytes - before.peak_bytes;
    out->other_ns = (after.ticks - before.ticks) * grid->tick_ns;
    if (after.peak_bytes > d->usable_bytes)
        out->other_reason = MS_REASON_OVER_BUDGET;
    else if (after.ticks > before.ticks)
        out->other_reason = out->other_bytes < 0 ? MS_REASON_SLOWER : MS_REASON_NO_GAIN;
    else
        out->other_reason = MS_REASON_HIGHER_PEAK;
}

static void explain_unit(const ms__decision *d, const ms__chain *chain, int32_t position, ms_plan_entry *out) {
    const ms__chain_unit *unit = &chain->units[position];
    int32_t chosen = d->best.choices[position], other = other_option(unit, chosen);
    const ms__option *option = &unit->options[chosen];
    out->plain_bytes = unit->options[0].held_bytes;
    out->held_bytes = option->held_bytes;
    out->host_bytes = option->copy_bytes;
    out->extra_ns = d->best.grid->ticks[position][chosen] * d->best.grid->tick_ns;
    out->action = out->other = option->action;
    out->reason = chosen > 0 ? MS_REASON_SAVES : unit->n_options > 1 ? MS_REASON_NOT_NEEDED : MS_REASON_NO_GAIN;
    out->other_reason = MS_REASON_NO_GAIN;
    if (other >= 0) explain_other(d, chain, position, other, out);
}

void ms__explain_units(const ms__decision *d, ms_plan *plan) {
    const ms_profile *profile = d->request->profile;
    const ms__chain *chain = &ms__decision_model(d, d->best.model_options)->chain;
    for (int64_t i = 0; i < plan->n_entries; i++) plan->entries[i].reason = MS_REASON_NOT_RUN;
    for (int32_t i = 0; i < chain->n; i++) explain_unit(d, chain, i, &plan->entries[chain->units[i].unit]);
    for (int64_t i = 0; i < plan->n_entries; i++) {
        bool runs = (profile->units[i].flags & MS_UNIT_RUN) != 0;
        if (runs && !ms__unit_may_change(d->request, profile, i)) plan->entries[i].reason = MS_REASON_NOT_ELIGIBLE;
        if (!runs) plan->entries[i].reason = MS_REASON_NOT_RUN;
    }
}

/* ---- Text ---- */

typedef struct text {
    MS__VEC(char) chars;
    bool failed;
} text;

__attribute__((format(printf, 2, 3))) static void put_format(text *t, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n >= (int)sizeof line) n = (int)sizeof line - 1;
    for (int i = 0; i < n && !t->failed; i++) t->failed = !ms__vec_push(&t->chars, line[i]);
}

/* The text, owned (free), or NULL. */
static char *finish_text(text *t) {
    if (!t->failed) t->failed = !ms__vec_push(&t->chars, '\0');
    if (!t->failed) return t->chars.items;
    free(t->chars.items);
    return NULL;
}

static ms__figure show_size(int64_t bytes) { return ms__size_text(bytes, MS__MIN_DIGITS); }

static ms__figure show_time(int64_t ns) { return ms__time_text(ns, MS__MIN_DIGITS); }

/* The parts of a peak, the largest first; those under `least` bytes are left out. */
static void put_parts(text *t, const int64_t parts[MS_N_CATEGORIES], int64_t least, const char *before) {
    bool written[MS_N_CATEGORIES] = {false};
    for (int n = 0; n < MS_N_CATEGORIES; n++) {
        int largest = -1;
        for (int c = 0; c < MS_N_CATEGORIES; c++)
            if (!written[c] && (largest < 0 || parts[c] > parts[largest])) largest = c;
        if (parts[largest] <= 0 || parts[largest] < least) return;
        written[largest] = true;
        put_format(t, "%s%s %s", n == 0 ? before : ", ", ms__categories[largest].name, show_size(parts[largest]).text);
    }
}

/* ---- Refusing ---- */

static void put_refusal(text *t, const ms__decision *d, const ms__needs *needs) {
    const ms_simulation_summary *played = &needs->played;
    int64_t budget = d->budget_bytes, needed = d->best.needed_bytes, peak = ms__min(needs->peak_bytes, needed);
    int digits = (int)ms__max(ms__size_digits(budget, needed), ms__size_digits(budget, peak));
    put_format(t, "No plan fits %s", ms__size_text(budget, digits).text);
    if (needed <= budget) put_format(t, " less the margin of %s", show_size(d->margin_bytes).text);
    if (d->request->occupied_bytes > 0)
        put_format(t, ", of which other tensors hold %s", show_size(d->request->occupied_bytes).text);
    put_format(t, ": the smallest reachable peak is %s", ms__size_text(peak, digits).text);
    const char *unit = played->peak_unit >= 0 ? d->request->profile->units[played->peak_unit].name : NULL;
    put_format(t, ", %s", ms__place_text(played->peak_phase, unit).text);
    if (peak < needed)
        put_format(t, ", for which torch's allocator has to reserve %s", ms__size_text(needed, digits).text);
    put_parts(t, played->parts, peak / 50, ". It consists of ");
    put_format(t, ".");
}

ms_status ms__refuse(const ms__decision *d) {
    const ms__choices_step step = ms__best_step(d);
    ms__needs needs;
    ms_status status = ms__choices_needs(d, &step, INT64_MAX, &needs);
    if (status != MS_OK) return status;
    text t = {0};
    put_refusal(&t, d, &needs);
    char *message = finish_text(&t);
    if (message == NULL) return MS_E_NO_MEMORY;
    status = ms__fail_value(MS_E_BUDGET, d->best.needed_bytes, "%s", message);
    free(message);
    return status;
}

/* ---- The paragraph ---- */

static void put_peak(text *t, const ms_plan_summary *s) {
    int64_t before = s->baseline_peak_bytes, after = s->predicted_peak_bytes, budget = s->budget_bytes;
    if (s->skipped) {
        put_format(t,
                   "A step needs %s when nothing is done, less than a quarter of the budget of %s: nothing is done. ",
                   show_size(before).text, show_size(budget).text);
        return;
    }
    int digits = (int)ms__max(ms__size_digits(before, after), ms__size_digits(after, budget));
    put_format(t, "A step needs %s when nothing is done and %s with this plan; the budget is %s",
               ms__size_text(before, digits).text, ms__size_text(after, digits).text,
               ms__size_text(budget, digits).text);
    if (s->margin_bytes > 0) put_format(t, " with a margin of %s", show_size(s->margin_bytes).text);
    put_format(t, ". ");
}

static void put_peak_place(text *t, const ms_plan *plan) {
    const ms_plan_summary *s = &plan->summary;
    if (s->peak_phase == MS_PHASE_SETUP) return;
    const char *unit = s->peak_unit >= 0 ? plan->entries[s->peak_unit].name : NULL;
    put_format(t, "The peak is %s", ms__place_text(s->peak_phase, unit).text);
    put_parts(t, s->parts, s->predicted_peak_bytes / 100, ": ");
    put_format(t, ". ");
}

static void put_unchanged(text *t, int64_t n) {
    if (n == 0) put_format(t, "The model has no layers. ");
    if (n == 1) put_format(t, "The only layer is kept. ");
    if (n > 1) put_format(t, "All %lld layers are kept. ", (long long)n);
}

static void put_actions(text *t, const ms_plan *plan) {
    int64_t counts[MS_N_ACTIONS] = {0}, n = plan->n_entries;
    for (int64_t i = 0; i < n; i++) counts[plan->entries[i].action]++;
    int64_t changed = n - counts[MS_ACTION_KEEP];
    if (changed == 0) {
        put_unchanged(t, n);
        return;
    }
    put_format(t, "%lld of %lld layer%s %s changed", (long long)changed, (long long)n, n == 1 ? "" : "s",
               changed == 1 ? "is" : "are");
    const char *before = ": ";
    for (int a = 0; a < MS_N_ACTIONS; a++) {
        if (a == MS_ACTION_KEEP || counts[a] == 0) continue;
        const char *rest = strstr(ms__actions[a].sentence, "%s") + 2; /* the sentence begins with how many */
        put_format(t, "%s%lld%s", before, (long long)counts[a], rest);
        before = ", ";
    }
    put_format(t, ". ");
}

/* Options with the same predicate share a sentence: "Optimizer state and gradients are kept in host memory." */
static void put_model_options(text *t, uint32_t options) {
    uint32_t written = 0;
    for (uint32_t i = 0; i < MS__N_MODEL_OPTIONS; i++) {
        const ms__model_option *first = &ms__model_options[i];
        if (!(options & 1U << i) || written & 1U << i) continue;
        bool is_plural = first->is_plural;
        put_format(t, "%s", first->subject);
        for (uint32_t k = i + 1; k < MS__N_MODEL_OPTIONS; k++) {
            const ms__model_option *other = &ms__model_options[k];
            if (!(options & 1U << k) || strcmp(first->predicate, other->predicate) != 0) continue;
            put_format(t, " and %c%s", other->subject[0] | 0x20, other->subject + 1); /* in lower case */
            written |= 1U << k;
            is_plural = true;
        }
        put_format(t, " %s %s. ", is_plural ? "are" : "is", first->predicate);
    }
}

static void put_spacer(text *t, const ms_plan *plan) {
    const ms_plan_summary *s = &plan->summary;
    if (s->spacer_bytes == 0) return;
    const char *unit = plan->entries[s->spacer_unit].name;
    put_format(t, "While %.*s runs forward, a spacer of %s is allocated, so that torch's allocator needs %s less. ",
               ms__name_cut(unit, MAX_NAME), unit, show_size(s->spacer_bytes).text,
               show_size(s->spacer_saved_bytes).text);
}

static void put_time(text *t, const ms_plan_summary *s) {
    int64_t tenths = ms__abs(s->slowdown_ppm) / 1000;
    const char *sign = s->slowdown_ppm < 0 ? "-" : "+";
    if (s->host_bytes > 0) put_format(t, "It uses %s of host memory. ", show_size(s->host_bytes).text);
    put_format(t, "The predicted change of the step time is %s%lld.%lld %%", sign, (long long)(tenths / 10),
               (long long)(tenths % 10));
    if (s->step_ns > 0) {
        int digits = ms__time_digits(s->step_ns, s->baseline_ns);
        put_format(t, ": %s instead of %s", ms__time_text(s->step_ns, digits).text,
                   ms__time_text(s->baseline_ns, digits).text);
    }
    put_format(t, ".\n");
}

/* ---- The table ---- */

typedef struct widths {
    int name, action;
} widths;

static widths find_widths(const ms_plan *plan) {
    widths w = {(int)strlen("layer"), (int)strlen("technique")};
    for (int64_t i = 0; i < plan->n_entries; i++) {
        const ms_plan_entry *e = &plan->entries[i];
        w.name = (int)ms__max(w.name, ms__min((int64_t)strlen(e->name), MAX_NAME));
        w.action = (int)ms__max(w.action, (int64_t)strlen(ms__actions[e->action].name.name));
    }
    return w;
}

static void put_row(text *t, const ms_plan_entry *e, widths w) {
    put_format(t, "%-*.*s  %-*s  %10s  %9s  ", w.name, ms__name_cut(e->name, w.name), e->name, w.action,
               ms__actions[e->action].name.name, show_size(e->plain_bytes - e->held_bytes).text,
               show_time(e->extra_ns).text);
    if (e->reason == MS_REASON_NOT_ELIGIBLE || e->reason == MS_REASON_NOT_RUN)
        put_format(t, "none: %s\n", ms__reasons[e->reason].name);
    else if (e->other == e->action)
        put_format(t, "none: nothing else would save memory\n");
    else
        put_format(t, "%s: %s; peak %s, time %s\n", ms__actions[e->other].name.name, ms__reasons[e->other_reason].name,
                   ms__signed_text(show_size(e->other_bytes)).text, ms__signed_text(show_time(e->other_ns)).text);
}

static void put_table(text *t, const ms_plan *plan) {
    widths w = find_widths(plan);
    put_format(t, "\n%-*s  %-*s  %10s  %9s  %s\n", w.name, "layer", w.action, "technique", "saves", "takes",
               "closest alternative");
    for (int64_t i = 0; i < plan->n_entries; i++) put_row(t, &plan->entries[i], w);
}

ms_status ms_plan_explain(const ms_plan *plan, char **out_text) {
    if (plan == NULL || out_text == NULL) return ms__fail(MS_E_INVALID, "ms_plan_explain: an argument is NULL");
    text t = {0};
    put_peak(&t, &plan->summary);
    put_peak_place(&t, plan);
    put_actions(&t, plan);
    put_model_options(&t, plan->summary.model_options);
    put_spacer(&t, plan);
    put_time(&t, &plan->summary);
    if (plan->n_entries > 0) put_table(&t, plan);
    char *result = finish_text(&t);
    if (result == NULL) return MS_E_NO_MEMORY;
    *out_text = result;
    return MS_OK;
}
