/* budget.c - the budgets around a decision: the limit where the budget is only an aim, and the budget that keeps full
 * speed.
 *
 * Where no plan fits the aim, the one with the lowest peak is taken, and no faster one that would fit the limit too:
 * a slightly larger device, whose aim that plan just fits, gets no faster plan either, so a larger device is never
 * slower.
 */
#include "../common/math.h"
#include "decide.h"

#define GB INT64_C(1000000000)
#define DIGITS 10000 /* what is rounded up has four digits */

int64_t ms__round_up_bytes(int64_t n_bytes) {
    int64_t unit = 1;
    while (n_bytes / unit >= DIGITS) unit *= 10;
    return (n_bytes + unit - 1) / unit * unit;
}

int64_t ms_budget_for_peak(int64_t peak_bytes) {
    int64_t peak = ms__min(ms__max(peak_bytes, 0), INT64_MAX / 4);
    return ms__round_up_bytes(peak + peak / (MS__MARGIN_PARTS - 1) + 2);
}

void ms__decision_widen(ms__decision *d) {
    if (d->request->limit_bytes <= d->budget_bytes) return;
    d->budget_bytes = d->request->limit_bytes;
    d->margin_bytes = d->budget_bytes / MS__MARGIN_PARTS;
    d->usable_bytes = d->budget_bytes - d->margin_bytes - d->request->occupied_bytes;
}

/* Two digits, or whole gigabytes. */
static int64_t round_to_nearest(int64_t n_bytes) {
    int64_t unit = 1;
    while (n_bytes / unit >= 100 && unit < GB) unit *= 10;
    return (n_bytes + unit / 2) / unit * unit;
}

/* Is nothing done to the step under this budget? The plain step is then the fastest there is. */
static bool keeps_all(const ms__decision *d, int64_t budget_bytes) {
    int64_t most = ms__max(d->request->limit_bytes, d->request->budget_bytes);
    int64_t usable = budget_bytes - budget_bytes / MS__MARGIN_PARTS - d->request->occupied_bytes;
    return budget_bytes <= most && d->baseline.needed_bytes <= usable;
}

int64_t ms__full_speed_budget(const ms__decision *d) {
    bool is_fastest = d->models[0].model_options == 0; /* they come in the order of their times */
    if (d->request->flags & MS_PLAN_FASTEST || !is_fastest || d->best.step_ns <= d->baseline_ns) return 0;
    int64_t aim = round_to_nearest(d->request->budget_bytes);
    int64_t least = ms_budget_for_peak(d->baseline.needed_bytes + d->request->occupied_bytes);
    return keeps_all(d, aim) ? aim : keeps_all(d, least) ? least : 0;
}
