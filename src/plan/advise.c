/* advise.c - what would fit if no plan does: a larger budget, a smaller batch, other changes and sets of them. */
#include "../common/status.h"
#include "decide.h"

#define MAX_TRIES 8 /* of a batch: for each, the caller traces a step */

/* ---- Budgets ---- */

/* MS_E_BUDGET if there is no plan; ms__error_value() is then the smallest peak. */
static ms_status try_budget(const ms_plan_request *request, int64_t budget_bytes) {
    ms_plan *plan = NULL;
    ms_plan_request wider = *request;
    wider.budget_bytes = budget_bytes;
    wider.margin_bytes = budget_bytes / MS__MARGIN_PARTS;
    wider.limit_bytes = 0;
    ms_status status = ms_plan_create(&wider, &plan);
    ms_plan_destroy(plan);
    return status;
}

ms_status ms_plan_find_budget(const ms_plan_request *theirs, int64_t *out_bytes) {
    static const int64_t extra_parts[] = {0, 100, 20}; /* a little more, because plans are rounded up */
    ms__request_copy copy;
    if (out_bytes == NULL) return ms__fail(MS_E_INVALID, "ms_plan_find_budget: out_bytes is NULL");
    ms_status status = ms__request_read(theirs, &copy);
    const ms_plan_request *request = &copy.request;
    if (status == MS_OK) status = try_budget(request, 1);
    if (status != MS_E_BUDGET) {
        if (status == MS_OK) *out_bytes = 1;
        return status;
    }
    int64_t peak = ms__error_value() + request->occupied_bytes, needed = peak + peak / (MS__MARGIN_PARTS - 1) + 1;
    int64_t usable = request->device->usable_bytes;
    for (size_t i = 0; i < sizeof extra_parts / sizeof *extra_parts && status == MS_E_BUDGET; i++) {
        int64_t budget = ms__round_up_bytes(needed + (extra_parts[i] > 0 ? needed / extra_parts[i] : 0));
        if (budget > usable) break;
        status = try_budget(request, budget);
        if (status == MS_OK) *out_bytes = budget;
    }
    if (status != MS_E_BUDGET) return status;
    ms_error_clear();
    *out_bytes = 0;
    return MS_OK;
}

/* ---- Changes ---- */

static bool is_possible(uint32_t changes) {
    uint32_t types = MS_CHANGE_AUTOCAST | MS_CHANGE_HALF, optimizers = MS_CHANGE_FUSED | MS_CHANGE_ADAFACTOR;
    return (changes & types) != types && (changes & optimizers) != optimizers;
}

static bool contains_fitting(const ms_change_search *s, uint32_t changes) {
    for (int64_t i = 0; i < s->n_fitting; i++)
        if ((s->fitting[i] & ~changes) == 0) return true;
    return false;
}

/* The least that the step needs, at any batch. Moments have the type of their parameters. */
static bool is_hopeless(const ms_change_search *s, uint32_t changes) {
    int64_t limit = changes & MS_CHANGE_BUDGET ? s->most_bytes : s->limit_bytes;
    int64_t state = changes & MS_CHANGE_ADAFACTOR ? 0 : s->state_bytes;
    int64_t parts = changes & MS_CHANGE_HALF ? 2 : 1;
    return s->param_bytes / parts + s->gradient_bytes / parts + state / parts > limit;
}

uint32_t ms_change_search_get_next(const ms_change_search *s) {
    if (s == NULL) return 0;
    for (uint32_t changes = s->tried + 1; changes <= MS_CHANGE_ALL; changes++)
        if ((changes & ~s->allowed) == 0 && is_possible(changes) && !contains_fitting(s, changes) &&
            !is_hopeless(s, changes))
            return changes;
    return 0;
}

/* ---- Batches ---- */

/* How many of `n` equal steps from 0 to `range` stay within `room`. */
static int64_t steps_to(int64_t room, int64_t range, int64_t n) {
    if (room <= 0) return 0;
    if (room >= range) return n;
    return room <= INT64_MAX / n ? room * n / range : room / (range / n + 1);
}

int64_t ms_batch_search_get_next(const ms_batch_search *s) {
    if (s == NULL || s->high - s->low <= 1 || s->n_tried >= MAX_TRIES) return 0;
    int64_t range = s->high_bytes > s->low_bytes ? s->high_bytes - s->low_bytes : 1, n = s->high - s->low;
    int64_t more = steps_to(s->limit_bytes - s->low_bytes, range, n);
    bool creeps = more < n / 8 || more > n - n / 8; /* what is needed rises in stairs, by segments and granules */
    if (s->n_tried >= 2 && creeps) more = n / 2;
    return s->low + (more < 1 ? 1 : more > n - 1 ? n - 1 : more);
}

void ms_batch_search_note(ms_batch_search *s, int64_t batch, int64_t n_bytes, int32_t fits) {
    if (s == NULL) return;
    s->n_tried++;
    if (fits) {
        s->low = batch;
        s->low_bytes = n_bytes;
    } else {
        s->high = batch;
        s->high_bytes = n_bytes;
    }
}
