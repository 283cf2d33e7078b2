/* stepless.c - plans from a profile without a step. A unit's time is counted in units of its cost (ms__unit_cost). */
#include "stepless.h"

#include "../common/math.h"
#include "../sim/roofline.h"

ms_status ms__stepless_chain_make(ms__arena *arena, const ms__basis *basis, ms__chain *out) {
    const ms_profile *profile = basis->profile;
    out->n = 0;
    out->units = ms__arena_array(arena, (size_t)profile->n_units, sizeof *out->units);
    out->gap_bytes = ms__arena_array(arena, (size_t)profile->n_units + 1, sizeof *out->gap_bytes);
    if (out->units == NULL || out->gap_bytes == NULL) return MS_E_NO_MEMORY;
    out->gap_bytes[0] = profile->resident_bytes;
    for (int64_t i = 0; i < profile->n_units; i++) {
        const ms_unit *u = &profile->units[i];
        ms__chain_unit *unit = &out->units[out->n];
        int64_t whole = profile->resident_bytes + u->saved_bytes, cost = ms__unit_cost(u);
        unit->unit = (int32_t)i;
        unit->options[unit->n_options++] =
            (ms__option){.held_bytes = u->saved_bytes, .forward_bytes = whole, .backward_bytes = whole};
        bool gains = u->input_bytes < u->saved_bytes && basis->request->actions & 1U << MS_ACTION_RECOMPUTE;
        if (gains && ms__unit_may_change(basis->request, profile, i))
            unit->options[unit->n_options++] = (ms__option){.held_bytes = u->input_bytes,
                                                            .forward_bytes = whole,
                                                            .backward_bytes = whole,
                                                            .extra_ns = cost,
                                                            .action = MS_ACTION_RECOMPUTE};
        out->base_ns = ms__add_ns(out->base_ns, ms__min(cost, MS__MAX_NS / 3) * 3);
        out->gap_bytes[++out->n] = profile->resident_bytes;
    }
    out->gap_bytes[out->n] = ms__max(out->gap_bytes[out->n], profile->resident_bytes + profile->outside_bytes);
    return MS_OK;
}

ms_status ms__decide_recompute_all(ms__decision *d) {
    const ms__model_choice *model = ms__decision_model(d, 0);
    uint8_t *choices = ms__arena_array(&d->arena, (size_t)model->chain.n, 1);
    if (choices == NULL) return MS_E_NO_MEMORY;
    for (int32_t i = 0; i < model->chain.n; i++)
        for (int32_t o = 0; o < model->chain.units[i].n_options; o++)
            if (model->chain.units[i].options[o].action == MS_ACTION_RECOMPUTE) choices[i] = (uint8_t)o;
    const ms__plan_list list = {model, &model->chain.grids[MS__GRID_FINE], 0};
    ms_status status = ms__appraise(d, &list, choices, INT64_MAX, &d->best);
    d->best.choices = choices;
    return status;
}

void ms__recompute_unmeasured(const ms__decision *d, ms_plan *plan) {
    const ms_plan_request *request = d->request;
    for (int64_t i = 0; i < plan->n_entries && request->actions & 1U << MS_ACTION_RECOMPUTE; i++) {
        bool may_change = request->may_change == NULL || request->may_change[i] != 0;
        if (request->profile->units[i].flags != MS_UNIT_ELIGIBLE || !may_change) continue;
        plan->entries[i].action = MS_ACTION_RECOMPUTE;
        plan->entries[i].reason = MS_REASON_SAVES;
    }
}
