/* search.c - the least peak of a chain for every time that it may take: exact, by dynamic programming.
 *
 * Units are decided from the last to the first. Later units depend on earlier ones only through the time that is left,
 * the backlog on the link and the level of host memory in use: small whole numbers. Backlog and level together are a
 * lane. What earlier units hold is added equally to everything later, so for each lane and time it is enough to know
 * the least peak of the units from there on, less what is held before them. At the first unit this is the whole trade
 * between time and peak, and no limit has to be tried. A row of the table is one lane over all times; more time never
 * raises an entry.
 *
 * Sizes are whole cells of bytes, rounded up. An entry of a row has the option in its lowest bits, so that the least
 * entry is the least peak and, among equals, the first option. Options are stored for one block of units at a time; if
 * there are several blocks, the rows at their ends are stored, and a block is computed again when it is needed.
 */
#include <string.h>

#include "../common/math.h"
#include "chain.h"

#define OPTION_BITS 4
#define OPTION_MASK ((1 << OPTION_BITS) - 1)
#define MAX_CELLS (1 << 25)    /* every plan has fewer */
#define NO_WAY (2 * MAX_CELLS) /* no plan; whatever held bytes are added, not below MAX_CELLS */
#define BLOCK_BYTES (INT64_C(16) << 20)

struct ms__search {
    const ms__chain *chain;
    const ms__grid *grid;
    int32_t n_backlogs, n_levels; /* of the link and the host; 1 each if they do not matter */
    int64_t n_lanes;              /* n_backlogs * n_levels */
    int64_t n_ticks;
    int64_t stride; /* of rows: n_ticks, rounded up to an even number */
    int64_t cell_bytes, slack_bytes;
    int32_t *lengths;                     /* [n + 1]: more ticks change nothing for the units from there on */
    uint8_t *reached;                     /* [n + 1][lane]: can it be reached? */
    int32_t *rows[2];                     /* [lane][tick]: entries of the current unit and of the one after it */
    int32_t *first;                       /* [tick]: entries of the whole chain */
    int32_t *ends;                        /* [block][lane][tick]: entries before its first unit */
    uint8_t *options;                     /* [unit of the block][lane][tick / 2] */
    int32_t block_units, n_blocks, block; /* the block that `options` has */
};

/* ---- Cells ---- */

static int64_t peak_of(const ms__option *o) { return ms__max(o->forward_bytes, o->backward_bytes); }

/* Rounded up. */
static int32_t cells(const ms__search *s, int64_t n_bytes) { return (int32_t)ms__ceil_div(n_bytes, s->cell_bytes); }

/* The least power of two with which no plan has MAX_CELLS. */
static void set_cells(ms__search *s) {
    const ms__chain *chain = s->chain;
    int64_t most = ms__abs(chain->gap_bytes[0]), held = s->n_backlogs * chain->link.slot_bytes, bits = 0;
    for (int32_t i = 0; i < chain->n; i++) {
        int64_t most_held = 0;
        bits |= chain->gap_bytes[i + 1];
        most = ms__max(most, ms__abs(chain->gap_bytes[i + 1]));
        for (int32_t o = 0; o < chain->units[i].n_options; o++) {
            const ms__option *option = &chain->units[i].options[o];
            most = ms__max(most, ms__abs(peak_of(option)));
            most_held = ms__max(most_held, ms__abs(option->held_bytes));
            bits |= peak_of(option) | option->held_bytes;
        }
        held += most_held;
    }
    for (s->cell_bytes = 1; (most + held) / s->cell_bytes + chain->n + 2 >= MAX_CELLS;) s->cell_bytes *= 2;
    bits |= chain->gap_bytes[0] | (s->n_backlogs > 1 ? chain->link.slot_bytes : 0);
    s->slack_bytes = (bits & (s->cell_bytes - 1)) == 0 ? 0 : (chain->n + 1) * s->cell_bytes;
}

/* ---- Moves ---- */

static int32_t backlog_of(const ms__search *s, int64_t lane) { return (int32_t)(lane / s->n_levels); }

static int64_t backlog_bytes(const ms__search *s, int64_t lane) {
    return backlog_of(s, lane) * s->chain->link.slot_bytes;
}

/* What an option of a unit does from a lane. */
typedef struct move {
    int64_t lane; /* after it; -1: it is not possible */
    int64_t ticks;
} move;

static move make_move(const ms__search *s, int32_t unit, int32_t option, int64_t lane) {
    const ms__option *o = &s->chain->units[unit].options[option];
    const ms__link *link = &s->chain->link;
    ms__link_step step = ms__link_advance(link, backlog_of(s, lane), o->hide_slots, o->copy_slots, o->waits);
    int64_t level = lane % s->n_levels + ms__chain_copy_levels(s->chain, o->copy_bytes);
    if (step.is_over || level >= s->n_levels) return (move){.lane = -1};
    return (move){.lane = (int64_t)step.backlog * s->n_levels + level,
                  .ticks = s->grid->ticks[unit][option] + ms__grid_wait_ticks(s->grid, link, step.waited)};
}

/* Which lanes are reached, and how long a row has to be. */
static void find_reached(ms__search *s) {
    const ms__chain *chain = s->chain;
    s->reached[0] = 1;
    for (int32_t i = 0; i < chain->n; i++) {
        const ms__chain_unit *unit = &chain->units[i];
        int64_t longest = 0;
        for (int64_t lane = 0; lane < s->n_lanes; lane++) {
            if (!s->reached[i * s->n_lanes + lane]) continue;
            for (int32_t o = 0; o < unit->n_options; o++) {
                move m = make_move(s, i, o, lane);
                if (m.lane < 0) continue;
                s->reached[(i + 1) * s->n_lanes + m.lane] = 1;
                longest = ms__max(longest, m.ticks);
            }
        }
        s->lengths[i] = (int32_t)ms__min(longest, s->n_ticks); /* of the unit alone, for now */
    }
    int64_t length = ms__grid_wait_ticks(s->grid, &chain->link, s->n_backlogs - 1) + 1;
    for (int32_t i = chain->n; i >= 0; i--) {
        length = ms__min(length + (i < chain->n ? s->lengths[i] : 0), s->n_ticks);
        s->lengths[i] = (int32_t)length;
    }
}

/* ---- One unit ---- */

/* Lower each entry of `out` to the entry of `from` plus `held`, or to `peak` if that is higher. */
static void relax(int32_t *restrict out, const int32_t *restrict from, int64_t n, int32_t held, int32_t peak,
                  int32_t option) {
    for (int64_t t = 0; t < n; t++) {
        int32_t entry = from[t] + held;
        entry = (entry > peak ? entry : peak) | option;
        out[t] = entry < out[t] ? entry : out[t];
    }
}

/* The first entry of a row that is not larger, or the number of entries. Peaks never rise along a row; only the options
 * of equal peaks differ, and the first option has the lowest number. */
static int64_t first_within(const int32_t *row, int64_t n, int32_t entry) {
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if ((row[middle] & ~OPTION_MASK) <= (entry & ~OPTION_MASK))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The row of a lane: least peaks, by ticks, from `unit` to the end of the chain. */
static int32_t *row_of(const ms__search *s, int32_t unit, int64_t lane) { return s->rows[unit & 1] + lane * s->stride; }

/* Improve the row of a lane by one option: at `m.ticks + t` the option leads to entry t of the next unit's row. Beyond
 * the first entry that is as low as this option can get, nothing changes. */
static void take_option(ms__search *s, int32_t unit, int64_t lane, int32_t option) {
    const ms__option *o = &s->chain->units[unit].options[option];
    move m = make_move(s, unit, option, lane);
    int64_t n_row = s->lengths[unit], n_next = s->lengths[unit + 1];
    if (m.lane < 0 || m.ticks >= n_row) return;
    int32_t held = cells(s, o->held_bytes) * (1 << OPTION_BITS);
    int32_t peak = cells(s, peak_of(o) + backlog_bytes(s, lane)) * (1 << OPTION_BITS);
    int32_t *reached = row_of(s, unit, lane) + m.ticks;
    const int32_t *next = row_of(s, unit + 1, m.lane);
    int32_t lowest = next[n_next - 1] + held > peak ? next[n_next - 1] + held : peak;
    int64_t n_improved = first_within(reached, n_row - m.ticks, lowest | option), n = ms__min(n_improved, n_next);
    relax(reached, next, n, held, peak, option);
    for (int64_t t = n; t < n_improved; t++) /* more time than the next units can use */
        reached[t] = (lowest | option) < reached[t] ? lowest | option : reached[t];
}

/* Move the options out of a row, and add the peaks between units. */
static void finish_row(ms__search *s, int32_t unit, int64_t lane, uint8_t *restrict options) {
    int32_t *restrict row = row_of(s, unit, lane);
    int32_t gap = cells(s, s->chain->gap_bytes[unit] + backlog_bytes(s, lane)) * (1 << OPTION_BITS);
    int64_t n = s->lengths[unit];
    if (n % 2 != 0) row[n] = row[n - 1];
    for (int64_t k = 0; k < (n + 1) / 2; k++)
        options[k] = (uint8_t)((row[2 * k] & OPTION_MASK) | (row[2 * k + 1] & OPTION_MASK) << OPTION_BITS);
    for (int64_t t = 0; t < n; t++) {
        int32_t entry = row[t] & ~OPTION_MASK;
        row[t] = entry > gap ? entry : gap;
    }
}

static int64_t options_bytes(const ms__search *s) { return s->n_lanes * s->stride / 2; }

static void decide_unit(ms__search *s, int32_t unit) {
    uint8_t *options = s->options + unit % s->block_units * options_bytes(s);
    for (int64_t lane = 0; lane < s->n_lanes; lane++) {
        if (!s->reached[unit * s->n_lanes + lane]) continue;
        int32_t *row = row_of(s, unit, lane);
        for (int64_t t = 0; t < s->lengths[unit]; t++) row[t] = NO_WAY << OPTION_BITS | OPTION_MASK;
        for (int32_t o = 0; o < s->chain->units[unit].n_options; o++) take_option(s, unit, lane, o);
        finish_row(s, unit, lane, options + lane * s->stride / 2);
    }
}

/* ---- The whole chain ---- */

/* After the last unit nothing hides what is left of the backlog. */
static void set_end(ms__search *s) {
    const ms__chain *chain = s->chain;
    for (int64_t lane = 0; lane < s->n_lanes; lane++) {
        int32_t wait = ms__grid_wait_ticks(s->grid, &chain->link, backlog_of(s, lane));
        int32_t *row = row_of(s, chain->n, lane);
        int32_t peak = cells(s, chain->gap_bytes[chain->n] + backlog_bytes(s, lane));
        for (int64_t t = 0; t < s->lengths[chain->n]; t++) row[t] = (t < wait ? NO_WAY : peak) * (1 << OPTION_BITS);
    }
}

static void run_block(ms__search *s, int32_t block) {
    const ms__chain *chain = s->chain;
    size_t row_bytes = (size_t)(s->n_lanes * s->stride) * sizeof(int32_t);
    int64_t from = (int64_t)block * s->block_units, to = from + s->block_units;
    if (to >= chain->n)
        set_end(s);
    else
        memcpy(s->rows[to & 1], s->ends + (block + 1) * s->n_lanes * s->stride, row_bytes);
    for (int32_t i = (int32_t)ms__min(to, chain->n) - 1; i >= from; i--) decide_unit(s, i);
    if (block > 0) memcpy(s->ends + block * s->n_lanes * s->stride, s->rows[from & 1], row_bytes);
    s->block = block;
}

static ms_status allot_search(ms__arena *arena, ms__search *s) {
    int64_t n = s->chain->n, n_entries = s->n_lanes * s->stride;
    s->block_units = (int32_t)ms__min(ms__max(1, BLOCK_BYTES / options_bytes(s)), ms__max(n, 1));
    s->n_blocks = (int32_t)ms__ceil_div(n, s->block_units);
    return ms__arena_arrays(arena, MS__ARRAY(s->lengths, n + 1), MS__ARRAY(s->reached, (n + 1) * s->n_lanes),
                            MS__ARRAY(s->rows[0], n_entries), MS__ARRAY(s->rows[1], n_entries),
                            MS__ARRAY(s->first, s->n_ticks),
                            MS__ARRAY(s->ends, s->n_blocks > 1 ? s->n_blocks * n_entries : 0),
                            MS__ARRAY(s->options, s->block_units * options_bytes(s)));
}

ms_status ms__search_new(ms__arena *arena, const ms__chain *chain, const ms__grid *grid, int64_t max_ticks,
                         ms__search **out) {
    ms__search *s = ms__arena_alloc(arena, sizeof *s);
    if (s == NULL) return MS_E_NO_MEMORY;
    bool copies = ms__chain_has_copies(chain);
    *s = (ms__search){.chain = chain,
                      .grid = grid,
                      .n_backlogs = copies ? chain->link.max_slots + 1 : 1,
                      .n_levels = copies ? ms__chain_host_levels(chain) : 1,
                      .n_ticks = ms__max(0, ms__min(max_ticks, grid->max_ticks)) + 1};
    s->stride = s->n_ticks + s->n_ticks % 2;
    s->n_lanes = (int64_t)s->n_backlogs * s->n_levels;
    set_cells(s);
    ms_status status = allot_search(arena, s);
    if (status != MS_OK) return status;
    find_reached(s);
    if (chain->n == 0) set_end(s);
    for (int32_t block = s->n_blocks - 1; block >= 0; block--) run_block(s, block);
    for (int64_t t = 0; t < s->n_ticks; t++)
        s->first[t] = s->rows[0][ms__min(t, s->lengths[0] - 1)] / (1 << OPTION_BITS);
    *out = s;
    return MS_OK;
}

/* ---- Queries ---- */

/* The least ticks with at most `most_cells`, up to `max_ticks`; -1: there are none. */
static int64_t least_ticks(const ms__search *s, int64_t most_cells, int64_t max_ticks) {
    int64_t low = 0, high = ms__min(max_ticks, s->n_ticks - 1);
    if (high < 0 || s->first[high] > most_cells || s->first[high] >= MAX_CELLS) return -1;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (s->first[middle] <= most_cells)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Follow the stored options from the first unit to the last. */
static void read_choices(ms__search *s, int64_t ticks, uint8_t *out) {
    int64_t lane = 0;
    for (int32_t i = 0; i < s->chain->n; i++) {
        if (i / s->block_units != s->block) run_block(s, i / s->block_units);
        const uint8_t *options = s->options + i % s->block_units * options_bytes(s) + lane * s->stride / 2;
        int64_t t = ms__min(ticks, s->lengths[i] - 1);
        out[i] = options[t / 2] >> (t % 2 * OPTION_BITS) & OPTION_MASK;
        move m = make_move(s, i, out[i], lane);
        ticks -= m.ticks;
        lane = m.lane;
    }
}

int64_t ms__search_fastest(ms__search *s, int64_t limit_bytes, int64_t max_ticks, uint8_t *out_choices) {
    if (limit_bytes < 0) return MS__NO_TICKS;
    int64_t ticks = least_ticks(s, limit_bytes / s->cell_bytes, max_ticks);
    if (ticks < 0) return MS__NO_TICKS;
    read_choices(s, ticks, out_choices);
    return ticks;
}

int64_t ms__search_leanest(ms__search *s, int64_t max_ticks, uint8_t *out_choices) {
    int64_t last = ms__min(max_ticks, s->n_ticks - 1);
    if (last < 0) return MS__NO_TICKS;
    int64_t ticks = least_ticks(s, s->first[last], max_ticks);
    if (ticks < 0) return MS__NO_TICKS;
    read_choices(s, ticks, out_choices);
    return ticks;
}

int64_t ms__search_peak(const ms__search *s, int64_t ticks) { return s->first[ticks] * s->cell_bytes; }

int64_t ms__search_slack(const ms__search *s) { return s->slack_bytes; }
