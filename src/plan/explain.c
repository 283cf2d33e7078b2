/* explain.c - a plan for people: what the peak is, what was done about it, and what was not. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/vec.h"
#include "plan.h"

typedef struct text {
    MS__VEC(char) chars;
    bool failed;
} text;

__attribute__((format(printf, 2, 3))) static void put(text *t, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n >= (int)sizeof line) n = (int)sizeof line - 1;
    for (int i = 0; i < n && !t->failed; i++) t->failed = !ms__vec_push(&t->chars, line[i]);
}

/* A number and its unit. Whole numbers only: the same text everywhere. */
typedef struct shown {
    char text[40];
} shown;

static shown show_bytes(int64_t bytes) {
    shown s;
    const char *sign = bytes < 0 ? "-" : "";
    int64_t n = bytes < 0 ? -bytes : bytes;
    bool large = n >= 100000000;
    int64_t unit = large ? 1000000000 : 1000000, digit = unit / (large ? 1000 : 10);
    n += digit / 2;
    (void)snprintf(s.text, sizeof s.text, large ? "%s%lld.%03lld GB" : "%s%lld.%lld MB", sign, (long long)(n / unit),
                   (long long)(n % unit / digit));
    return s;
}

static shown show_ms(int64_t ns) {
    shown s;
    const char *sign = ns < 0 ? "-" : "";
    int64_t n = (ns < 0 ? -ns : ns) + 5000;
    (void)snprintf(s.text, sizeof s.text, "%s%lld.%02lld ms", sign, (long long)(n / 1000000),
                   (long long)(n % 1000000 / 10000));
    return s;
}

static shown show_signed(shown s) {
    shown result;
    (void)snprintf(result.text, sizeof result.text, "%s%.38s", s.text[0] == '-' ? "" : "+", s.text);
    return result;
}

/* How many bytes of a name are shown: no more than so many, and whole characters. */
static int cut(const char *name, int most) {
    if (strlen(name) <= (size_t)most) return most;
    while (most > 0 && ((unsigned char)name[most] & 0xC0) == 0x80) most--;
    return most;
}

/* ---- The paragraph ---- */

static void put_peak(text *t, const ms_plan *plan) {
    const ms_plan_summary *s = &plan->summary;
    put(t, "The step takes %s when nothing is done. ", show_bytes(s->baseline_peak_bytes).text);
    if (s->skipped) {
        put(t, "That is under a quarter of the budget of %s: nothing is done. ", show_bytes(s->budget_bytes).text);
        return;
    }
    put(t, "With this plan it takes %s at most; the budget is %s", show_bytes(s->predicted_peak_bytes).text,
        show_bytes(s->budget_bytes).text);
    if (s->margin_bytes > 0) put(t, ", of which %s stay free", show_bytes(s->margin_bytes).text);
    put(t, ". ");
}

static void put_place(text *t, const ms_plan *plan) {
    const ms_plan_summary *s = &plan->summary;
    if (s->peak_phase == MS_PHASE_SETUP) return;
    put(t, "The peak is in %s", ms__phase_name(s->peak_phase));
    const char *name = s->peak_unit >= 0 ? plan->entries[s->peak_unit].name : "";
    if (s->peak_unit >= 0) put(t, " of %.*s", cut(name, 96), name);
    const char *before = ": ";
    bool written[MS_N_CATEGORIES] = {false};
    for (int n = 0; n < MS_N_CATEGORIES; n++) { /* the largest first, what is under 1 % left out */
        int largest = -1;
        for (int c = 0; c < MS_N_CATEGORIES; c++)
            if (!written[c] && (largest < 0 || s->parts[c] > s->parts[largest])) largest = c;
        if (s->parts[largest] < s->predicted_peak_bytes / 100) break;
        written[largest] = true;
        put(t, "%s%s %s", before, ms__category_name(largest), show_bytes(s->parts[largest]).text);
        before = ", ";
    }
    put(t, ". ");
}

static void put_actions(text *t, const ms_plan *plan) {
    int64_t counts[MS_N_ACTIONS] = {0};
    for (int64_t i = 0; i < plan->n_entries; i++) counts[plan->entries[i].action]++;
    int64_t n = plan->n_entries, changed = n - counts[MS_ACTION_KEEP];
    if (changed == 0) put(t, "All %lld layers are kept as they are. ", (long long)n);
    if (changed > 0) put(t, "Of %lld layers, %lld are changed", (long long)n, (long long)changed);
    const char *before = ":";
    for (int a = 1; a < MS_N_ACTIONS; a++) {
        if (counts[a] == 0) continue;
        put(t, "%s %lld x %s", before, (long long)counts[a], ms_action_name(a));
        before = ",";
    }
    if (changed > 0) put(t, ". ");
    for (uint32_t flag = 1; flag <= MS_MODEL_ALL; flag <<= 1)
        if (plan->summary.model_options & flag) put(t, "The model: %s. ", ms_model_option_name(flag));
    if (plan->summary.host_bytes > 0)
        put(t, "%s of host memory are taken. ", show_bytes(plan->summary.host_bytes).text);
}

static void put_time(text *t, const ms_plan_summary *s) {
    int64_t tenths = (s->slowdown_ppm < 0 ? -s->slowdown_ppm : s->slowdown_ppm) / 1000;
    const char *sign = s->slowdown_ppm < 0 ? "-" : "+";
    put(t, "A step is predicted to take ");
    if (s->step_ns > 0) put(t, "%s instead of %s, ", show_ms(s->step_ns).text, show_ms(s->baseline_ns).text);
    put(t, "%s%lld.%lld %%.\n", sign, (long long)(tenths / 10), (long long)(tenths % 10));
}

/* ---- The table ---- */

static const char *why(const ms_plan_entry *entry) {
    static const char *const texts[MS_N_REASONS] = {"not needed",  "saves nothing",   "may not be changed",
                                                    "did not run", "lowers the peak", "would not fit",
                                                    "not needed",  "a higher peak"};
    return texts[entry->other_reason];
}

static void put_entry(text *t, const ms_plan_entry *e, int width) {
    put(t, "%-*.*s  %-27s  %11s  %10s  ", width, cut(e->name, width), e->name, ms_action_name(e->action),
        show_bytes(e->plain_bytes - e->held_bytes).text, show_ms(e->extra_ns).text);
    if (e->reason == MS_REASON_NOT_ELIGIBLE || e->reason == MS_REASON_NOT_RUN)
        put(t, "%s\n", e->reason == MS_REASON_NOT_RUN ? "did not run" : "may not be changed");
    else if (e->other == e->action)
        put(t, "nothing else would save memory\n");
    else
        put(t, "not %s (%s, %s): %s\n", ms_action_name(e->other), show_signed(show_bytes(e->other_bytes)).text,
            show_signed(show_ms(e->other_ns)).text, why(e));
}

static void put_table(text *t, const ms_plan *plan) {
    int width = 5;
    for (int64_t i = 0; i < plan->n_entries; i++) {
        size_t n = strlen(plan->entries[i].name);
        if ((int)n > width) width = n > 48 ? 48 : (int)n;
    }
    put(t, "\n%-*s  %-27s  %11s  %10s  %s\n", width, "layer", "technique", "saves", "takes", "rejected, and why");
    for (int64_t i = 0; i < plan->n_entries; i++) put_entry(t, &plan->entries[i], width);
}

ms_status ms_plan_explain(const ms_plan *plan, char **out_text) {
    if (plan == NULL || out_text == NULL) return ms__fail(MS_E_INVALID, "ms_plan_explain: an argument is NULL");
    text t = {0};
    put_peak(&t, plan);
    put_place(&t, plan);
    put_actions(&t, plan);
    put_time(&t, &plan->summary);
    if (plan->n_entries > 0) put_table(&t, plan);
    if (!t.failed) t.failed = !ms__vec_push(&t.chars, '\0');
    if (t.failed) {
        free(t.chars.items);
        return MS_E_NO_MEMORY;
    }
    *out_text = t.chars.items;
    return MS_OK;
}
