/* search.c - the least peak of a chain for every time that it may take: exact, by one dynamic programme.
 *
 * Units are decided from the last to the first. What later units need to know of earlier ones is the time that is left,
 * the backlog on the link and the host memory that is taken: small whole numbers. What earlier units hold is added to
 * all that comes later alike, so for each of these states the least peak of the units from there on, less what is held
 * before them, is enough: less is never worse. At the first unit that is the whole trade between time and peak, and no
 * limit has to be tried. A row of the table is one backlog and level over all times; it falls with the time.
 *
 * Sizes are whole cells of bytes, rounded up. A row's entry has the option in its lowest bits, so that the least entry
 * is the least peak and, among equals, the first option. Options are remembered for a block of units at a time; where
 * there are several blocks, the states at their ends are kept and a block is gone through again when it is asked for.
 */
#include <string.h>

#include "chain.h"

#define OPTION_BITS 4
#define OPTION_MASK ((1 << OPTION_BITS) - 1)
#define MAX_CELLS (1 << 25)    /* a plan has fewer */
#define NO_WAY (2 * MAX_CELLS) /* with whatever is held before it: never below MAX_CELLS */
#define BLOCK_BYTES (INT64_C(16) << 20)

struct ms__search {
    const ms__chain *chain;
    int32_t n_backlogs, n_levels; /* of the link and the host, 1 each where they do not matter */
    int64_t width;                /* n_backlogs * n_levels: states at one time */
    int64_t n_ticks;
    int64_t stride; /* of rows: n_ticks, made even */
    int64_t cell_bytes, slack_bytes;
    int32_t *lengths;                     /* [n + 1]: more ticks than that change nothing for the units from there on */
    uint8_t *reached;                     /* [n + 1][state]: is there a way to it? */
    int32_t *rows[2];                     /* [state][tick]: entries of the unit at hand and of the one behind it */
    int32_t *first;                       /* [tick]: entries of the whole chain */
    int32_t *ends;                        /* [block][state][tick]: entries before its first unit */
    uint8_t *options;                     /* [unit of the block][state][tick / 2] */
    int32_t block_units, n_blocks, block; /* the block that `options` has */
};

/* ---- Cells ---- */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t magnitude(int64_t a) { return a < 0 ? -a : a; }

static int64_t peak_of(const ms__option *o) { return larger(o->forward_bytes, o->backward_bytes); }

/* Rounded up. */
static int32_t cells(const ms__search *s, int64_t n_bytes) {
    int64_t whole = n_bytes / s->cell_bytes;
    return (int32_t)(whole + (n_bytes % s->cell_bytes > 0));
}

/* The least power of two in which no plan has MAX_CELLS. */
static void set_cells(ms__search *s) {
    const ms__chain *chain = s->chain;
    int64_t most = magnitude(chain->gap_bytes[0]), held = s->n_backlogs * chain->link.slot_bytes, bits = 0;
    for (int32_t i = 0; i < chain->n; i++) {
        int64_t most_held = 0;
        bits |= chain->gap_bytes[i + 1];
        most = larger(most, magnitude(chain->gap_bytes[i + 1]));
        for (int32_t o = 0; o < chain->units[i].n_options; o++) {
            const ms__option *option = &chain->units[i].options[o];
            most = larger(most, magnitude(peak_of(option)));
            most_held = larger(most_held, magnitude(option->held_bytes));
            bits |= peak_of(option) | option->held_bytes;
        }
        held += most_held;
    }
    for (s->cell_bytes = 1; (most + held) / s->cell_bytes + chain->n + 2 >= MAX_CELLS;) s->cell_bytes *= 2;
    bits |= chain->gap_bytes[0] | (s->n_backlogs > 1 ? chain->link.slot_bytes : 0);
    s->slack_bytes = (bits & (s->cell_bytes - 1)) == 0 ? 0 : (chain->n + 1) * s->cell_bytes;
}

/* ---- Moves ---- */

/* What an option does in a state. */
typedef struct move {
    int64_t state; /* behind it; -1: it cannot be */
    int64_t ticks;
} move;

static move make_move(const ms__search *s, const ms__option *o, int32_t backlog, int32_t level) {
    int32_t behind = (backlog > o->hide_slots ? backlog - o->hide_slots : 0) + o->copy_slots;
    int64_t ticks = o->ticks;
    if (o->waits) {
        ticks += ms__chain_wait_ticks(s->chain, behind);
        behind = 0;
    }
    level += ms__chain_copy_levels(s->chain, o->copy_bytes);
    if (behind >= s->n_backlogs || level >= s->n_levels) return (move){.state = -1};
    return (move){.state = (int64_t)behind * s->n_levels + level, .ticks = ticks};
}

/* Which states there are, and how long a row has to be. */
static void find_reached(ms__search *s) {
    const ms__chain *chain = s->chain;
    s->reached[0] = 1;
    for (int32_t i = 0; i < chain->n; i++) {
        const ms__chain_unit *unit = &chain->units[i];
        int64_t longest = 0;
        for (int64_t w = 0; w < s->width; w++) {
            if (!s->reached[i * s->width + w]) continue;
            for (int32_t o = 0; o < unit->n_options; o++) {
                move m = make_move(s, &unit->options[o], (int32_t)(w / s->n_levels), (int32_t)(w % s->n_levels));
                if (m.state < 0) continue;
                s->reached[(i + 1) * s->width + m.state] = 1;
                longest = larger(longest, m.ticks);
            }
        }
        s->lengths[i] = (int32_t)(longest < s->n_ticks ? longest : s->n_ticks); /* of the unit alone, for now */
    }
    int64_t length = ms__chain_wait_ticks(chain, s->n_backlogs - 1) + 1;
    for (int32_t i = chain->n; i >= 0; i--) {
        if (i < chain->n) length += s->lengths[i];
        if (length > s->n_ticks) length = s->n_ticks;
        s->lengths[i] = (int32_t)length;
    }
}

/* ---- One unit ---- */

/* `out` gets the least of what is there and of `from` with `held` before it, which is at least `peak`. */
static void relax(int32_t *restrict out, const int32_t *restrict from, int64_t n, int32_t held, int32_t peak,
                  int32_t option) {
    for (int64_t t = 0; t < n; t++) {
        int32_t entry = from[t] + held;
        entry = (entry > peak ? entry : peak) | option;
        out[t] = entry < out[t] ? entry : out[t];
    }
}

/* The first entry of a row that is no larger, or the number of entries: rows fall, but for options among equals, and
 * the first option has the lowest number. */
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

/* From where on a row is as low as this option can be it changes nothing. */
static void take_option(ms__search *s, int32_t unit, int64_t state, int32_t option) {
    const ms__option *o = &s->chain->units[unit].options[option];
    int32_t backlog = (int32_t)(state / s->n_levels);
    move m = make_move(s, o, backlog, (int32_t)(state % s->n_levels));
    int64_t n_out = s->lengths[unit], n_from = s->lengths[unit + 1];
    if (m.state < 0 || m.ticks >= n_out) return;
    int32_t held = cells(s, o->held_bytes) * (1 << OPTION_BITS);
    int32_t peak = cells(s, peak_of(o) + backlog * s->chain->link.slot_bytes) * (1 << OPTION_BITS);
    int32_t *out = s->rows[unit & 1] + state * s->stride + m.ticks;
    const int32_t *from = s->rows[(unit + 1) & 1] + m.state * s->stride;
    int32_t last = (from[n_from - 1] + held > peak ? from[n_from - 1] + held : peak) | option;
    int64_t n_all = first_within(out, n_out - m.ticks, last), n = n_all < n_from ? n_all : n_from;
    relax(out, from, n, held, peak, option);
    for (int64_t t = n; t < n_all; t++) out[t] = last < out[t] ? last : out[t];
}

/* Move the options out of a row, and count what there is between units. */
static void finish_row(ms__search *s, int32_t unit, int64_t state, uint8_t *restrict options) {
    int32_t *restrict row = s->rows[unit & 1] + state * s->stride;
    int64_t backlog_bytes = state / s->n_levels * s->chain->link.slot_bytes;
    int32_t between = cells(s, s->chain->gap_bytes[unit] + backlog_bytes) * (1 << OPTION_BITS);
    int64_t n = s->lengths[unit];
    if (n % 2 != 0) row[n] = row[n - 1];
    for (int64_t k = 0; k < (n + 1) / 2; k++)
        options[k] = (uint8_t)((row[2 * k] & OPTION_MASK) | (row[2 * k + 1] & OPTION_MASK) << OPTION_BITS);
    for (int64_t t = 0; t < n; t++) {
        int32_t entry = row[t] & ~OPTION_MASK;
        row[t] = entry > between ? entry : between;
    }
}

static int64_t options_bytes(const ms__search *s) { return s->width * s->stride / 2; }

static void decide_unit(ms__search *s, int32_t unit) {
    uint8_t *options = s->options + unit % s->block_units * options_bytes(s);
    for (int64_t state = 0; state < s->width; state++) {
        if (!s->reached[unit * s->width + state]) continue;
        int32_t *row = s->rows[unit & 1] + state * s->stride;
        for (int64_t t = 0; t < s->lengths[unit]; t++) row[t] = NO_WAY << OPTION_BITS | OPTION_MASK;
        for (int32_t o = 0; o < s->chain->units[unit].n_options; o++) take_option(s, unit, state, o);
        finish_row(s, unit, state, options + state * s->stride / 2);
    }
}

/* ---- The whole chain ---- */

/* Behind the last unit nothing hides what is left of the backlog. */
static void set_end(ms__search *s) {
    const ms__chain *chain = s->chain;
    for (int64_t state = 0; state < s->width; state++) {
        int32_t backlog = (int32_t)(state / s->n_levels), wait = ms__chain_wait_ticks(chain, backlog);
        int32_t *row = s->rows[chain->n & 1] + state * s->stride;
        int32_t peak = cells(s, chain->gap_bytes[chain->n] + backlog * chain->link.slot_bytes);
        for (int64_t t = 0; t < s->lengths[chain->n]; t++) row[t] = (t < wait ? NO_WAY : peak) * (1 << OPTION_BITS);
    }
}

static void run_block(ms__search *s, int32_t block) {
    const ms__chain *chain = s->chain;
    size_t row_bytes = (size_t)(s->width * s->stride) * sizeof(int32_t);
    int64_t from = (int64_t)block * s->block_units, to = from + s->block_units;
    if (to >= chain->n)
        set_end(s);
    else
        memcpy(s->rows[to & 1], s->ends + (block + 1) * s->width * s->stride, row_bytes);
    for (int32_t i = (int32_t)(to < chain->n ? to : chain->n) - 1; i >= from; i--) decide_unit(s, i);
    if (block > 0) memcpy(s->ends + block * s->width * s->stride, s->rows[from & 1], row_bytes);
    s->block = block;
}

static ms_status allot(ms__arena *arena, ms__search *s) {
    size_t n = (size_t)s->chain->n, states = (size_t)s->width * (size_t)s->stride;
    s->block_units = (int32_t)larger(1, BLOCK_BYTES / options_bytes(s));
    if (s->block_units > s->chain->n) s->block_units = s->chain->n > 0 ? s->chain->n : 1;
    s->n_blocks = (s->chain->n + s->block_units - 1) / s->block_units;
    s->lengths = ms__arena_array(arena, n + 1, sizeof *s->lengths);
    s->reached = ms__arena_array(arena, n + 1, (size_t)s->width);
    s->rows[0] = ms__arena_array(arena, states, sizeof **s->rows);
    s->rows[1] = ms__arena_array(arena, states, sizeof **s->rows);
    s->first = ms__arena_array(arena, (size_t)s->n_ticks, sizeof *s->first);
    s->ends = ms__arena_array(arena, s->n_blocks > 1 ? (size_t)s->n_blocks * states : 0, sizeof *s->ends);
    s->options = ms__arena_array(arena, (size_t)s->block_units, (size_t)options_bytes(s));
    bool there = s->lengths != NULL && s->reached != NULL && s->rows[0] != NULL && s->rows[1] != NULL &&
                 s->first != NULL && s->ends != NULL && s->options != NULL;
    return there ? MS_OK : MS_E_NO_MEMORY;
}

ms_status ms__search_new(ms__arena *arena, const ms__chain *chain, int64_t max_ticks, ms__search **out) {
    ms__search *s = ms__arena_alloc(arena, sizeof *s);
    if (s == NULL) return MS_E_NO_MEMORY;
    bool copies = ms__chain_has_copies(chain);
    *s = (ms__search){.chain = chain,
                      .n_backlogs = copies ? chain->link.max_slots + 1 : 1,
                      .n_levels = copies ? ms__chain_host_levels(chain) : 1,
                      .n_ticks = larger(0, max_ticks < chain->max_ticks ? max_ticks : chain->max_ticks) + 1};
    s->stride = s->n_ticks + s->n_ticks % 2;
    s->width = (int64_t)s->n_backlogs * s->n_levels;
    set_cells(s);
    ms_status status = allot(arena, s);
    if (status != MS_OK) return status;
    find_reached(s);
    if (chain->n == 0) set_end(s);
    for (int32_t block = s->n_blocks - 1; block >= 0; block--) run_block(s, block);
    for (int64_t t = 0; t < s->n_ticks; t++)
        s->first[t] = s->rows[0][t < s->lengths[0] ? t : s->lengths[0] - 1] / (1 << OPTION_BITS);
    *out = s;
    return MS_OK;
}

/* ---- Asking ---- */

/* The least ticks with at most so many cells, up to a number of ticks; -1: there are none. */
static int64_t least_ticks(const ms__search *s, int64_t most_cells, int64_t max_ticks) {
    int64_t low = 0, high = max_ticks < s->n_ticks ? max_ticks : s->n_ticks - 1;
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

static void walk(ms__search *s, int64_t ticks, uint8_t *out) {
    int64_t state = 0;
    for (int32_t i = 0; i < s->chain->n; i++) {
        if (i / s->block_units != s->block) run_block(s, i / s->block_units);
        const uint8_t *options = s->options + i % s->block_units * options_bytes(s) + state * s->stride / 2;
        int64_t t = ticks < s->lengths[i] ? ticks : s->lengths[i] - 1;
        out[i] = options[t / 2] >> (t % 2 * OPTION_BITS) & OPTION_MASK;
        const ms__option *o = &s->chain->units[i].options[out[i]];
        move m = make_move(s, o, (int32_t)(state / s->n_levels), (int32_t)(state % s->n_levels));
        ticks -= m.ticks;
        state = m.state;
    }
}

int64_t ms__search_fastest(ms__search *s, int64_t limit_bytes, int64_t max_ticks, uint8_t *out_choices) {
    if (limit_bytes < 0) return MS__NO_TICKS;
    int64_t ticks = least_ticks(s, limit_bytes / s->cell_bytes, max_ticks);
    if (ticks < 0) return MS__NO_TICKS;
    walk(s, ticks, out_choices);
    return ticks;
}

int64_t ms__search_leanest(ms__search *s, int64_t max_ticks, uint8_t *out_choices) {
    int64_t last = max_ticks < s->n_ticks ? max_ticks : s->n_ticks - 1;
    if (last < 0) return MS__NO_TICKS;
    int64_t ticks = least_ticks(s, s->first[last], max_ticks);
    if (ticks < 0) return MS__NO_TICKS;
    walk(s, ticks, out_choices);
    return ticks;
}

int64_t ms__search_peak(const ms__search *s, int64_t ticks) { return s->first[ticks] * s->cell_bytes; }

int64_t ms__search_slack(const ms__search *s) { return s->slack_bytes; }
