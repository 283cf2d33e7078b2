/* chain.c - playing a chain, and the grids that it is searched on. */
#include "chain.h"

#include "../common/math.h"
#include "../sim/roofline.h"

#define MAX_HOST_LEVELS 16
#define MAX_TICKS (1 << 16)

int32_t ms__chain_copy_levels(const ms__chain *chain, int64_t copy_bytes) {
    return chain->host_level_bytes == 0 ? 0 : (int32_t)ms__ceil_div(copy_bytes, chain->host_level_bytes);
}

int32_t ms__chain_host_levels(const ms__chain *chain) {
    if (chain->host_level_bytes == 0) return 1;
    return (int32_t)ms__min(chain->host_limit_bytes / chain->host_level_bytes, MAX_HOST_LEVELS) + 1;
}

ms__value ms__chain_play(const ms__chain *chain, const ms__grid *grid, const uint8_t *choices) {
    ms__value value = {.peak_bytes = chain->gap_bytes[0], .is_valid = true};
    int64_t held = 0;
    int32_t backlog = 0, levels = 0;
    for (int32_t i = 0; i < chain->n; i++) {
        const ms__option *o = &chain->units[i].options[choices[i]];
        int64_t before = held + backlog * chain->link.slot_bytes;
        value.peak_bytes = ms__max(value.peak_bytes, before + ms__max(o->forward_bytes, o->backward_bytes));
        ms__link_step step = ms__link_advance(&chain->link, backlog, o->hide_slots, o->copy_slots, o->waits);
        value.ticks += grid->ticks[i][choices[i]];
        if (step.is_over)
            value.is_valid = false; /* its bytes are counted as if the link had room */
        else
            value.ticks += ms__grid_wait_ticks(grid, &chain->link, step.waited);
        backlog = step.is_over ? step.waited : step.backlog;
        held += o->held_bytes;
        value.host_bytes += o->copy_bytes;
        levels += ms__chain_copy_levels(chain, o->copy_bytes);
        value.peak_bytes = ms__max(value.peak_bytes, held + backlog * chain->link.slot_bytes + chain->gap_bytes[i + 1]);
    }
    value.ticks += ms__grid_wait_ticks(grid, &chain->link, backlog);
    if (levels >= ms__chain_host_levels(chain)) value.is_valid = false;
    return value;
}

int64_t ms__chain_least_peak(const ms__chain *chain) {
    int64_t least = chain->gap_bytes[0], held = 0;
    for (int32_t i = 0; i < chain->n; i++) {
        int64_t least_held = INT64_MAX, least_here = INT64_MAX;
        for (int32_t o = 0; o < chain->units[i].n_options; o++) {
            const ms__option *option = &chain->units[i].options[o];
            least_here = ms__min(least_here, ms__max(option->forward_bytes, option->backward_bytes));
            least_held = ms__min(least_held, option->held_bytes);
        }
        least = ms__max(least, held + least_here);
        held += least_held;
        least = ms__max(least, held + chain->gap_bytes[i + 1]);
    }
    return least;
}

bool ms__chain_has_copies(const ms__chain *chain) {
    for (int32_t i = 0; i < chain->n; i++)
        for (int32_t o = 0; o < chain->units[i].n_options; o++)
            if (chain->units[i].options[o].copy_bytes > 0) return true;
    return false;
}

bool ms__chain_has_waits(const ms__chain *chain) {
    for (int32_t i = 0; i < chain->n; i++)
        for (int32_t o = 0; o < chain->units[i].n_options; o++)
            if (chain->units[i].options[o].waits) return true;
    return false;
}

/* ---- Grids ---- */

int32_t ms__grid_wait_ticks(const ms__grid *grid, const ms__link *link, int32_t slots) {
    return slots == 0 ? 0 : (int32_t)ms__ceil_div(ms__link_wait_ns(link, slots), grid->tick_ns);
}

/* Times that reach the maximum (roofline.h) still differ in their ticks. */
int64_t ms__grid_step_ns(const ms__grid *grid, const ms__chain *chain, int64_t ticks) {
    int64_t most = INT64_MAX / 4;
    return chain->base_ns + (ticks > most / grid->tick_ns ? most : ticks * grid->tick_ns);
}

/* How many ticks a plan may take at most: more would be slower to search, fewer less exact. Each backlog and level of
 * host memory is searched with all of them. */
static int64_t wanted_ticks(const ms__chain *chain) {
    if (!ms__chain_has_copies(chain)) return 8192;
    if (ms__chain_host_levels(chain) > 1) return 1024;
    return chain->n <= 128 ? 1024 : chain->n <= 512 ? 2048 : 3072;
}

/* What a unit may add to the time of the step at most. */
static int64_t most_ns(const ms__chain *chain, const ms__chain_unit *unit, ms__grid_kind kind) {
    int64_t most = 0, wait_ns = INT64_C(2) * chain->link.max_slots * chain->link.slot_ns;
    for (int32_t o = 0; o < unit->n_options; o++) {
        const ms__option *option = &unit->options[o];
        if (option->waits && kind == MS__GRID_FINE) continue;
        most = ms__max(most, ms__add_ns(option->extra_ns, option->waits ? 2 * wait_ns : 0));
    }
    return most;
}

ms_status ms__grid_make(ms__arena *arena, const ms__chain *chain, ms__grid_kind kind, ms__grid *out) {
    int64_t range = INT64_C(2) * chain->link.max_slots * chain->link.slot_ns;
    for (int32_t i = 0; i < chain->n; i++) range = ms__add_ns(range, most_ns(chain, &chain->units[i], kind));
    *out = (ms__grid){.tick_ns = range / wanted_ticks(chain) + 1};
    ms_status status = ms__arena_arrays(arena, MS__ARRAY(out->ticks, chain->n));
    if (status != MS_OK) return status;
    int64_t most = ms__grid_wait_ticks(out, &chain->link, chain->link.max_slots);
    for (int32_t i = 0; i < chain->n; i++) {
        const ms__chain_unit *unit = &chain->units[i];
        for (int32_t o = 0; o < unit->n_options; o++) /* no plan has MAX_TICKS */
            out->ticks[i][o] = (int32_t)ms__min(ms__ceil_div(unit->options[o].extra_ns, out->tick_ns), MAX_TICKS);
        most += most_ns(chain, unit, kind) / out->tick_ns + 1;
    }
    out->max_ticks = (int32_t)ms__min(most, MAX_TICKS - 1);
    return MS_OK;
}
