/* chain.c - playing a chain, and the grids that it is searched on. */
#include "chain.h"

#include "../sim/roofline.h"

#define MAX_HOST_LEVELS 16
#define MAX_TICKS (1 << 16)

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

int32_t ms__chain_wait_ticks(const ms__chain *chain, int32_t backlog) {
    if (backlog == 0) return 0;
    int64_t ns = ms__link_wait_ns(&chain->link, backlog);
    return (int32_t)(ns / chain->tick_ns + (ns % chain->tick_ns != 0));
}

int32_t ms__chain_copy_levels(const ms__chain *chain, int64_t copy_bytes) {
    if (chain->host_level_bytes == 0) return 0;
    return (int32_t)(copy_bytes / chain->host_level_bytes + (copy_bytes % chain->host_level_bytes != 0));
}

int32_t ms__chain_host_levels(const ms__chain *chain) {
    if (chain->host_level_bytes == 0) return 1;
    int64_t levels = chain->host_limit_bytes / chain->host_level_bytes;
    return (int32_t)(levels < MAX_HOST_LEVELS ? levels : MAX_HOST_LEVELS) + 1;
}

ms__value ms__chain_play(const ms__chain *chain, const uint8_t *choices) {
    ms__value value = {.peak_bytes = chain->gap_bytes[0], .is_valid = true};
    int64_t held = 0;
    int32_t backlog = 0, levels = 0;
    for (int32_t i = 0; i < chain->n; i++) {
        const ms__option *o = &chain->units[i].options[choices[i]];
        int64_t before = held + backlog * chain->link.slot_bytes;
        value.peak_bytes = larger(value.peak_bytes, before + larger(o->forward_bytes, o->backward_bytes));
        backlog = (backlog > o->hide_slots ? backlog - o->hide_slots : 0) + o->copy_slots;
        value.ticks += o->ticks;
        if (o->waits) {
            value.ticks += ms__chain_wait_ticks(chain, backlog);
            backlog = 0;
        }
        if (backlog > chain->link.max_slots) value.is_valid = false;
        held += o->held_bytes;
        value.host_bytes += o->copy_bytes;
        levels += ms__chain_copy_levels(chain, o->copy_bytes);
        value.peak_bytes = larger(value.peak_bytes, held + backlog * chain->link.slot_bytes + chain->gap_bytes[i + 1]);
    }
    value.ticks += ms__chain_wait_ticks(chain, backlog);
    if (levels >= ms__chain_host_levels(chain)) value.is_valid = false;
    return value;
}

int64_t ms__chain_least_peak(const ms__chain *chain) {
    int64_t least = chain->gap_bytes[0], held = 0;
    for (int32_t i = 0; i < chain->n; i++) {
        int64_t least_held = INT64_MAX, least_here = INT64_MAX;
        for (int32_t o = 0; o < chain->units[i].n_options; o++) {
            const ms__option *option = &chain->units[i].options[o];
            int64_t here = larger(option->forward_bytes, option->backward_bytes);
            if (here < least_here) least_here = here;
            if (option->held_bytes < least_held) least_held = option->held_bytes;
        }
        least = larger(least, held + least_here);
        held += least_held;
        least = larger(least, held + chain->gap_bytes[i + 1]);
    }
    return least;
}

/* ---- Ticks ---- */

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

/* How many ticks a plan may take at most: more would be slower to search, fewer less exact. Each backlog and level of
 * host memory is searched with all of them. */
static int64_t wanted_ticks(const ms__chain *chain) {
    if (!ms__chain_has_copies(chain)) return 8192;
    if (ms__chain_host_levels(chain) > 1) return 1024;
    return chain->n <= 128 ? 1024 : chain->n <= 512 ? 2048 : 3072;
}

/* What a unit may add to the time of the step at most. */
static int64_t most_ns(const ms__chain *chain, const ms__chain_unit *unit, bool waits) {
    int64_t most = 0, wait_ns = INT64_C(2) * chain->link.max_slots * chain->link.slot_ns;
    for (int32_t o = 0; o < unit->n_options; o++) {
        const ms__option *option = &unit->options[o];
        if (option->waits && !waits) continue;
        most = larger(most, ms__add_ns(option->extra_ns, option->waits ? 2 * wait_ns : 0));
    }
    return most;
}

void ms__chain_set_ticks(ms__chain *chain, bool waits) {
    int64_t range = INT64_C(2) * chain->link.max_slots * chain->link.slot_ns;
    for (int32_t i = 0; i < chain->n; i++) range = ms__add_ns(range, most_ns(chain, &chain->units[i], waits));
    chain->tick_ns = range / wanted_ticks(chain) + 1;
    int64_t most = ms__chain_wait_ticks(chain, chain->link.max_slots);
    for (int32_t i = 0; i < chain->n; i++) {
        ms__chain_unit *unit = &chain->units[i];
        for (int32_t o = 0; o < unit->n_options; o++) {
            ms__option *option = &unit->options[o];
            int64_t ticks = option->extra_ns / chain->tick_ns + (option->extra_ns % chain->tick_ns != 0);
            option->ticks = (int32_t)(ticks < MAX_TICKS ? ticks : MAX_TICKS); /* which no plan has */
        }
        most += most_ns(chain, unit, waits) / chain->tick_ns + 1;
    }
    chain->max_ticks = (int32_t)(most < MAX_TICKS ? most : MAX_TICKS - 1);
}
