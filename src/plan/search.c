/* search.c - the fastest plan of a chain within a limit: exact, by dynamic programming.
 *
 * Units are decided in order. What later units need to know of earlier ones is how long they take, how much they hold,
 * the backlog on the link and the host memory that is taken. Time, backlog and host memory are small whole numbers, so
 * for each of their combinations the least that can be held is enough: less is never worse. Plans that break the limit
 * are dropped where they do. The least peak is found by trying limits, on a grain that the chain gives and no budget
 * changes: the least ticks fall with the limit, so a larger budget is never slower.
 */
#include <string.h>

#include "chain.h"

#define INFINITE INT64_MAX
#define GRAIN_CELLS 8192
#define GRAIN_MIN_BYTES 512
#define OPTION_BITS 4 /* of a step back: the option, and above it the backlog before */

typedef struct ms__search {
    const ms__chain *chain;
    int32_t n_backlogs, n_levels; /* of the link and the host, 1 each where they do not matter */
    int64_t width;                /* n_backlogs * n_levels: states at one tick */
    int64_t n_ticks;
    int64_t grain;
    int64_t *held, *next; /* [tick][backlog][level]: the least bytes held, INFINITE if there is no way */
    int64_t *least;       /* [backlog][level]: over all ticks up to now */
    uint8_t *back;        /* [unit][tick][backlog][level]: how it was reached */
    int64_t limit_bytes, max_ticks;
    int64_t last_tick; /* the latest that is reached */
} ms__search;

static int64_t state_of(const ms__search *s, int64_t tick, int32_t backlog, int32_t level) {
    return tick * s->width + (int64_t)backlog * s->n_levels + level;
}

static int64_t find_grain(const ms__chain *chain) {
    int64_t most = chain->between_bytes[0], held = 0, grain = GRAIN_MIN_BYTES;
    for (int32_t i = 0; i < chain->n; i++) {
        const ms__option *keep = &chain->units[i].options[0];
        int64_t here = keep->forward_bytes > keep->backward_bytes ? keep->forward_bytes : keep->backward_bytes;
        if (held + here > most) most = held + here;
        held += keep->held_bytes;
        if (held + chain->between_bytes[i + 1] > most) most = held + chain->between_bytes[i + 1];
    }
    while (most / grain > GRAIN_CELLS) grain *= 2;
    return grain;
}

static bool has_copies(const ms__chain *chain) {
    for (int32_t i = 0; i < chain->n; i++)
        for (int32_t o = 0; o < chain->units[i].n_options; o++)
            if (chain->units[i].options[o].copy_bytes > 0) return true;
    return false;
}

ms_status ms__search_new(ms__arena *arena, const ms__chain *chain, ms__search **out) {
    ms__search *s = ms__arena_alloc(arena, sizeof *s);
    if (s == NULL) return MS_E_NO_MEMORY;
    bool copies = has_copies(chain);
    *s = (ms__search){.chain = chain,
                      .n_backlogs = copies ? chain->link.max_ticks + 1 : 1,
                      .n_levels = copies ? ms__chain_host_levels(chain) : 1,
                      .n_ticks = (int64_t)chain->max_ticks + 1,
                      .grain = find_grain(chain)};
    s->width = (int64_t)s->n_backlogs * s->n_levels;
    size_t states = (size_t)(s->n_ticks * s->width);
    s->held = ms__arena_array(arena, states, sizeof *s->held);
    s->next = ms__arena_array(arena, states, sizeof *s->next);
    s->least = ms__arena_array(arena, (size_t)s->width, sizeof *s->least);
    s->back = ms__arena_array(arena, (size_t)chain->n + 1, states);
    if (s->held == NULL || s->next == NULL || s->least == NULL || s->back == NULL) return MS_E_NO_MEMORY;
    *out = s;
    return MS_OK;
}

int64_t ms__search_round(const ms__search *s, int64_t n_bytes) { return n_bytes - n_bytes % s->grain; }

/* ---- One unit ---- */

/* An option of the unit at hand, with what does not depend on the state. */
typedef struct move {
    const ms__option *option;
    int64_t room_bytes;   /* what may be held and in the backlog before it */
    int64_t behind_bytes; /* the same behind it */
    int32_t levels;
    uint8_t index;
} move;

static int32_t list_moves(const ms__search *s, int32_t unit, move *out) {
    const ms__chain_unit *u = &s->chain->units[unit];
    int32_t n = 0;
    for (int32_t o = 0; o < u->n_options; o++) {
        const ms__option *option = &u->options[o];
        int64_t peak = option->forward_bytes > option->backward_bytes ? option->forward_bytes : option->backward_bytes;
        move m = {.option = option,
                  .room_bytes = s->limit_bytes - peak,
                  .behind_bytes = s->limit_bytes - s->chain->between_bytes[unit + 1],
                  .levels = ms__chain_copy_levels(s->chain, option->copy_bytes),
                  .index = (uint8_t)o};
        if (m.room_bytes >= 0 && m.behind_bytes >= option->held_bytes && m.levels < s->n_levels) out[n++] = m;
    }
    return n;
}

static void take(ms__search *s, uint8_t *back, int64_t tick, int32_t backlog, int32_t level, const move *m) {
    const ms__link *link = &s->chain->link;
    int64_t held = s->held[state_of(s, tick, backlog, level)];
    if (held + backlog * link->tick_bytes > m->room_bytes || level + m->levels >= s->n_levels) return;
    const ms__option *o = m->option;
    int32_t behind = (backlog > o->hide_ticks ? backlog - o->hide_ticks : 0) + o->copy_ticks;
    int64_t later = tick + o->ticks;
    if (o->waits) {
        later += ms__chain_wait_ticks(s->chain, behind);
        behind = 0;
    }
    if (behind >= s->n_backlogs || later > s->max_ticks) return;
    held += o->held_bytes;
    if (held + behind * link->tick_bytes > m->behind_bytes) return;
    int64_t state = state_of(s, later, behind, level + m->levels);
    if (held >= s->next[state]) return;
    s->next[state] = held;
    back[state] = (uint8_t)(m->index | backlog << OPTION_BITS);
    if (later > s->last_tick) s->last_tick = later;
}

/* Drop what another state is no worse than in anything. */
static void prune(ms__search *s) {
    for (int64_t w = 0; w < s->width; w++) s->least[w] = INFINITE;
    for (int64_t t = 0; t <= s->last_tick; t++) {
        int64_t *row = s->next + t * s->width;
        for (int32_t b = 0; b < s->n_backlogs; b++) {
            for (int32_t l = 0; l < s->n_levels; l++) {
                int64_t w = (int64_t)b * s->n_levels + l, *least = &s->least[w];
                if (b > 0 && s->least[w - s->n_levels] < *least) *least = s->least[w - s->n_levels];
                if (l > 0 && s->least[w - 1] < *least) *least = s->least[w - 1];
                if (row[w] >= *least)
                    row[w] = INFINITE;
                else
                    *least = row[w];
            }
        }
    }
}

static void decide_unit(ms__search *s, int32_t unit) {
    move moves[MS_N_ACTIONS];
    int32_t n_moves = list_moves(s, unit, moves);
    uint8_t *back = s->back + (int64_t)unit * s->n_ticks * s->width;
    int64_t last = s->last_tick;
    for (int64_t i = 0; i < s->n_ticks * s->width; i++) s->next[i] = INFINITE;
    for (int64_t t = 0; t <= last; t++)
        for (int32_t b = 0; b < s->n_backlogs; b++)
            for (int32_t l = 0; l < s->n_levels; l++) {
                if (s->held[state_of(s, t, b, l)] == INFINITE) continue;
                for (int32_t m = 0; m < n_moves; m++) take(s, back, t, b, l, &moves[m]);
            }
    prune(s);
    int64_t *swap = s->held;
    s->held = s->next;
    s->next = swap;
}

/* ---- A whole search ---- */

static void walk_back(const ms__search *s, int64_t tick, int32_t backlog, int32_t level, uint8_t *out) {
    for (int32_t i = s->chain->n - 1; i >= 0; i--) {
        uint8_t step = s->back[(int64_t)i * s->n_ticks * s->width + state_of(s, tick, backlog, level)];
        int32_t before = step >> OPTION_BITS;
        out[i] = step & ((1 << OPTION_BITS) - 1);
        const ms__option *o = &s->chain->units[i].options[out[i]];
        int32_t behind = (before > o->hide_ticks ? before - o->hide_ticks : 0) + o->copy_ticks;
        tick -= o->ticks + (o->waits ? ms__chain_wait_ticks(s->chain, behind) : 0);
        level -= ms__chain_copy_levels(s->chain, o->copy_bytes);
        backlog = before;
    }
}

int64_t ms__search_fastest(ms__search *s, int64_t limit_bytes, int64_t max_ticks, uint8_t *out_choices) {
    if (s->chain->between_bytes[0] > limit_bytes || max_ticks < 0) return MS__NO_TICKS;
    s->limit_bytes = limit_bytes;
    s->max_ticks = max_ticks < s->n_ticks - 1 ? max_ticks : s->n_ticks - 1;
    s->last_tick = 0;
    for (int64_t i = 0; i < s->width; i++) s->held[i] = INFINITE;
    s->held[0] = 0;
    for (int32_t i = 0; i < s->chain->n; i++) decide_unit(s, i);
    int64_t best = MS__NO_TICKS, best_tick = 0;
    int32_t best_backlog = 0, best_level = 0;
    for (int64_t t = 0; t <= s->last_tick; t++)
        for (int32_t b = 0; b < s->n_backlogs; b++)
            for (int32_t l = 0; l < s->n_levels; l++) {
                int64_t ticks = t + ms__chain_wait_ticks(s->chain, b); /* at the end nothing hides it */
                if (s->held[state_of(s, t, b, l)] == INFINITE || ticks >= best || ticks > max_ticks) continue;
                best = ticks;
                best_tick = t;
                best_backlog = b;
                best_level = l;
            }
    if (best != MS__NO_TICKS) walk_back(s, best_tick, best_backlog, best_level, out_choices);
    return best;
}

static int64_t round_up(const ms__search *s, int64_t n_bytes) { return ms__search_round(s, n_bytes + s->grain - 1); }

/* No plan has a lower peak than if every unit did what is least, each for itself. */
static int64_t least_peak(const ms__chain *chain) {
    int64_t least = chain->between_bytes[0], held = 0;
    for (int32_t i = 0; i < chain->n; i++) {
        int64_t least_held = INFINITE, least_here = INFINITE;
        for (int32_t o = 0; o < chain->units[i].n_options; o++) {
            const ms__option *option = &chain->units[i].options[o];
            int64_t here =
                option->forward_bytes > option->backward_bytes ? option->forward_bytes : option->backward_bytes;
            if (here < least_here) least_here = here;
            if (option->held_bytes < least_held) least_held = option->held_bytes;
        }
        if (held + least_here > least) least = held + least_here;
        held += least_held;
        if (held + chain->between_bytes[i + 1] > least) least = held + chain->between_bytes[i + 1];
    }
    return least;
}

void ms__search_leanest(ms__search *s, int64_t max_ticks, uint8_t *choices) {
    int64_t high = round_up(s, ms__chain_play(s->chain, choices).peak_bytes), at = INFINITE;
    int64_t low = ms__search_round(s, least_peak(s->chain) - 1);
    int64_t middle = high - s->grain; /* most often that is too low already */
    while (high - low > s->grain) {   /* there is a plan at `high` and none at `low` */
        if (ms__search_fastest(s, middle, max_ticks, choices) == MS__NO_TICKS) {
            low = middle;
        } else {
            at = middle;
            high = round_up(s, ms__chain_play(s->chain, choices).peak_bytes);
        }
        middle = low + ms__search_round(s, (high - low) / 2);
    }
    if (at != high) (void)ms__search_fastest(s, high, max_ticks, choices);
}
