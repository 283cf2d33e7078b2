/* test_growing.c - the model of torch's allocator with segments that grow: every rule with its numbers, and a
 * comparison with a second model.
 *
 * The second model is as simple as possible: for each pool and stream, one array of pieces in the order of their
 * addresses, searched from end to end. For random calls, with several streams and limits, both must agree after every
 * call.
 */
#include "runner.h"

#include <stdbool.h>
#include <string.h>

#include "error_info.h"
#include "sim/allocator.h"

#define KIB ((int64_t)1024)
#define MIB (1024 * KIB)
#define ENDLESS (INT64_C(1) << 50)
#define MAX_PIECES 4096
#define N_STREAMS 3

static ms__allocator *a; /* of the test that runs */

static void start(int64_t limit_bytes) {
    CHECK_STATUS(ms__allocator_create(limit_bytes, &a), MS_OK);
    ms__allocator_grow(a);
}

static int64_t take(int64_t n_bytes) {
    int64_t block = 0;
    CHECK_STATUS(ms__allocator_take(a, n_bytes, 0, &block), MS_OK);
    return block;
}

static void give(int64_t block) { CHECK_STATUS(ms__allocator_give(a, block), MS_OK); }

#define STATS ms__allocator_get_stats(a)
#define CHECK_BYTES(allocated, reserved)                                                                               \
    (CHECK_EQ_INT(STATS.allocated_bytes, allocated), CHECK_EQ_INT(STATS.reserved_bytes, reserved))

static void finish(void) { ms__allocator_destroy(a); }

TEST(memory_comes_in_granules) {
    start(0);
    (void)take(1);
    CHECK_BYTES(512, 2 * MIB);
    (void)take(2 * MIB);
    CHECK_BYTES(2 * MIB + 512, 22 * MIB);
    (void)take(18 * MIB); /* what is left of the granule */
    CHECK_BYTES(20 * MIB + 512, 22 * MIB);
    (void)take(21 * MIB);
    CHECK_BYTES(41 * MIB + 512, 62 * MIB);
    CHECK_EQ_INT(STATS.n_segments, 2);
    finish();
}

TEST(a_block_grows_into_new_memory) {
    start(0);
    give(take(15 * MIB));
    (void)take(25 * MIB); /* 15 are there, 5 more of the granule, and one granule */
    CHECK_BYTES(25 * MIB, 40 * MIB);
    finish();
}

/* Of two free blocks that fit, one that can grow counts as longer than any. */
TEST(the_end_of_a_segment_is_used_last) {
    start(0);
    int64_t hole = take(9 * MIB), wall = take(3 * MIB);
    give(hole); /* 9 MiB at the beginning, 8 MiB at the end */
    (void)take(4 * MIB);
    (void)take(5 * MIB); /* exactly what is left of the hole */
    CHECK_BYTES(12 * MIB, 20 * MIB);
    (void)take(8 * MIB);
    CHECK_BYTES(20 * MIB, 20 * MIB);
    give(wall);
    finish();
}

TEST(large_blocks_are_split_to_the_last_512) {
    start(0);
    (void)take(20 * MIB - 512);
    CHECK_BYTES(20 * MIB - 512, 20 * MIB);
    CHECK_EQ_INT(STATS.inactive_split_bytes, 512);
    finish();
}

/* The whole request counts, at least as a segment of fixed size would. */
TEST(the_limit_is_checked_for_the_request) {
    start(50 * MIB);
    int64_t first = take(15 * MIB); /* 20 MiB are mapped, of which 5 are free */
    CHECK_EQ_INT(STATS.needed_bytes, 16 * MIB);
    (void)take(25 * MIB); /* needs 20 more, counts as 26 */
    CHECK_BYTES(40 * MIB, 40 * MIB);
    CHECK_EQ_INT(STATS.needed_bytes, 46 * MIB);
    int64_t block = 0;
    CHECK_STATUS(ms__allocator_take(a, 2 * MIB, 0, &block), MS_E_BUDGET); /* 2 MiB count as 20 */
    CHECK_EQ_INT(error_info().needed_bytes, 60 * MIB);
    CHECK_EQ_INT(STATS.n_retries, 1);
    give(first);
    CHECK_STATUS(ms__allocator_take(a, 31 * MIB, 0, &block), MS_E_BUDGET); /* what is free was returned */
    CHECK_BYTES(25 * MIB, 40 * MIB); /* the block of 25 MiB reaches into the first granule */
    finish();
}

TEST(what_is_over_the_limit_is_less_than_a_granule) {
    start(50 * MIB);
    (void)take(30 * MIB); /* 40 MiB are mapped */
    give(take(10 * MIB));
    (void)take(10 * MIB);
    CHECK_BYTES(40 * MIB, 40 * MIB);
    (void)take(10 * MIB); /* 40 + 10 is within the limit; a granule is mapped */
    CHECK_BYTES(50 * MIB, 60 * MIB);
    finish();
}

TEST(free_granules_are_returned) {
    start(0);
    int64_t first = take(50 * MIB), wall = take(10 * MIB);
    give(first);
    CHECK_STATUS(ms__allocator_empty(a), MS_OK);
    CHECK_BYTES(10 * MIB, 20 * MIB); /* 40 MiB were whole granules */
    (void)take(30 * MIB);            /* in the gap, where the lowest address is */
    CHECK_BYTES(40 * MIB, 60 * MIB);
    (void)take(20 * MIB); /* what is left of the gap, and of the granule before the wall */
    CHECK_BYTES(60 * MIB, 60 * MIB);
    give(wall);
    CHECK_STATUS(ms__allocator_empty(a), MS_OK);
    CHECK_BYTES(50 * MIB, 60 * MIB);
    finish();
}

/* What was reserved before stays, and is used for what fits. */
/* A gap of 40 MiB between two blocks: a request of 30 goes there or, if gaps are closed, to the end, where it is in the
 * way of a larger one. Small memory has gaps all the same. */
static int64_t reserved_with_a_gap(bool is_closed) {
    start(0);
    (void)take(40 * MIB);
    int64_t second = take(40 * MIB), third = take(40 * MIB);
    give(second);
    CHECK_STATUS(ms__allocator_empty(a), MS_OK);
    if (is_closed) ms__allocator_close_gaps(a);
    CHECK_BYTES(80 * MIB, 80 * MIB);
    (void)take(30 * MIB);
    CHECK_BYTES(110 * MIB, 120 * MIB);
    give(third);
    (void)take(80 * MIB);
    int64_t reserved = STATS.reserved_bytes;
    finish();
    return reserved;
}

TEST(gaps_that_are_closed) {
    CHECK_EQ_INT(reserved_with_a_gap(false), 160 * MIB);
    CHECK_EQ_INT(reserved_with_a_gap(true), 200 * MIB);
    start(0);
    int64_t blocks[9];
    for (int i = 0; i < 9; i++) blocks[i] = take(MIB);
    for (int i = 2; i < 6; i++) give(blocks[i]);
    CHECK_STATUS(ms__allocator_empty(a), MS_OK);
    ms__allocator_close_gaps(a);
    CHECK_BYTES(5 * MIB, 6 * MIB);
    for (int i = 0; i < 5; i++) (void)take(MIB);
    CHECK_BYTES(10 * MIB, 10 * MIB);
    finish();
}

TEST(segments_from_before) {
    CHECK_STATUS(ms__allocator_create(0, &a), MS_OK);
    int64_t first = take(12 * MIB), second = take(5 * MIB);
    CHECK_BYTES(17 * MIB, 32 * MIB);
    ms__allocator_grow(a);
    (void)take(14 * MIB); /* from the rest of the second segment */
    CHECK_BYTES(31 * MIB, 32 * MIB);
    give(first);
    (void)take(13 * MIB); /* the free segment is too short, and does not grow */
    CHECK_BYTES(32 * MIB, 52 * MIB);
    CHECK_STATUS(ms__allocator_empty(a), MS_OK);
    CHECK_BYTES(32 * MIB, 40 * MIB);
    give(second);
    finish();
}

TEST(no_address_space) {
    start(0);
    int64_t block = 0;
    CHECK_STATUS(ms__allocator_take(a, INT64_C(1) << 59, 0, &block), MS_E_LIMIT);
    for (int64_t stream = 0; stream < 32; stream++) CHECK_STATUS(ms__allocator_take(a, 1, stream, &block), MS_OK);
    CHECK_STATUS(ms__allocator_take(a, 1, 32, &block), MS_E_LIMIT);
    finish();
}

/* ---- The second model ---- */

enum kind { FREE, TAKEN, UNMAPPED };

typedef struct piece {
    enum kind kind;
    int64_t n_bytes, block;
} piece;

typedef struct row {
    piece pieces[MAX_PIECES];
    int n;
    int64_t granule;
} row;

static row rows[2][N_STREAMS]; /* by pool and stream */
static int64_t plain_limit, plain_retries;

static void insert(row *r, int at, piece p) {
    CHECK(r->n + 1 < MAX_PIECES);
    memmove(&r->pieces[at + 1], &r->pieces[at], (size_t)(r->n - at) * sizeof *r->pieces);
    r->pieces[at] = p;
    r->n++;
}

static int64_t address_of(const row *r, int at) {
    int64_t address = 0;
    for (int i = 0; i < at; i++) address += r->pieces[i].n_bytes;
    return address;
}

/* Join neighbours of one kind that are not taken. */
static void tidy(row *r) {
    for (int i = 0; i + 1 < r->n;) {
        if (r->pieces[i].kind == TAKEN || r->pieces[i].kind != r->pieces[i + 1].kind) {
            i++;
            continue;
        }
        r->pieces[i].n_bytes += r->pieces[i + 1].n_bytes;
        memmove(&r->pieces[i + 1], &r->pieces[i + 2], (size_t)(r->n - i - 2) * sizeof *r->pieces);
        r->n--;
    }
}

static int64_t sum_of(enum kind kind) {
    int64_t n_bytes = 0;
    for (int p = 0; p < 2; p++)
        for (int s = 0; s < N_STREAMS; s++)
            for (int i = 0; i < rows[p][s].n; i++)
                if (rows[p][s].pieces[i].kind == kind) n_bytes += rows[p][s].pieces[i].n_bytes;
    return n_bytes;
}

static int64_t plain_reserved(void) { return sum_of(FREE) + sum_of(TAKEN); }

static void plain_empty_row(row *r) {
    for (int i = 0; i < r->n; i++) {
        if (r->pieces[i].kind != FREE) continue;
        int64_t begin = address_of(r, i), end = begin + r->pieces[i].n_bytes;
        int64_t from = (begin + r->granule - 1) / r->granule * r->granule, to = end / r->granule * r->granule;
        if (to <= from) continue;
        r->pieces[i] = (piece){.kind = UNMAPPED, .n_bytes = to - from};
        if (end > to) insert(r, i + 1, (piece){.kind = FREE, .n_bytes = end - to});
        if (from > begin) insert(r, i++, (piece){.kind = FREE, .n_bytes = from - begin});
    }
    tidy(r);
}

static void plain_empty(void) {
    for (int p = 0; p < 2; p++)
        for (int s = 0; s < N_STREAMS; s++) plain_empty_row(&rows[p][s]);
}

static int64_t can_be(const row *r, int at) {
    bool grows = at + 1 < r->n && r->pieces[at + 1].kind == UNMAPPED;
    return r->pieces[at].n_bytes + (grows ? r->pieces[at + 1].n_bytes : 0);
}

/* The next free piece by size and address after `last` (-1: none) of at least n_bytes; -1: none. */
static int next_fit(const row *r, int64_t n_bytes, int last) {
    int best = -1;
    for (int i = 0; i < r->n; i++) {
        int64_t size = r->pieces[i].n_bytes;
        if (r->pieces[i].kind != FREE || size < n_bytes) continue;
        if (last >= 0 && (size < r->pieces[last].n_bytes || (size == r->pieces[last].n_bytes && i <= last))) continue;
        if (best < 0 || size < r->pieces[best].n_bytes) best = i;
    }
    return best;
}

static int best_fit(const row *r, int64_t n_bytes) {
    int best = next_fit(r, n_bytes, -1);
    while (best >= 0) {
        int next = next_fit(r, n_bytes, best);
        if (next < 0 || can_be(r, next) >= can_be(r, best)) break;
        best = next;
    }
    return best;
}

/* Map memory from the first gap on that has room for n_bytes with what is free on both sides. */
static int plain_extend(row *r, int64_t n_bytes) {
    if (r->n == 0) insert(r, 0, (piece){.kind = UNMAPPED, .n_bytes = ENDLESS});
    for (int i = 0; i < r->n; i++) {
        if (r->pieces[i].kind != UNMAPPED) continue;
        int from = i > 0 && r->pieces[i - 1].kind == FREE ? i - 1 : i;
        int64_t room = 0, begin = address_of(r, from);
        for (int k = from; k < r->n && r->pieces[k].kind != TAKEN; k++) room += r->pieces[k].n_bytes;
        if (room < n_bytes) continue;
        for (int k = from; k < r->n; k++) {
            int64_t missing = begin + n_bytes - address_of(r, k), here = r->pieces[k].n_bytes;
            if (missing <= 0) break;
            if (r->pieces[k].kind != UNMAPPED) continue;
            int64_t mapped = (missing + r->granule - 1) / r->granule * r->granule;
            if (mapped < here) insert(r, k + 1, (piece){.kind = UNMAPPED, .n_bytes = here - mapped});
            r->pieces[k] = (piece){.kind = FREE, .n_bytes = mapped < here ? mapped : here};
        }
        tidy(r);
        return from;
    }
    CHECK(false);
    return -1;
}

/* Is it possible within the limit? */
static bool plain_take(int64_t wanted, int64_t stream, int64_t block) {
    int64_t n_bytes = (wanted + 511) / 512 * 512;
    bool large = n_bytes > MIB;
    row *r = &rows[large][stream];
    r->granule = large ? 20 * MIB : 2 * MIB;
    int at = best_fit(r, n_bytes);
    if (at < 0) {
        int64_t counted = !large               ? 2 * MIB
                          : n_bytes < 10 * MIB ? 20 * MIB
                                               : (n_bytes + 2 * MIB - 1) / (2 * MIB) * 2 * MIB;
        if (plain_limit != 0 && plain_reserved() + counted > plain_limit) {
            plain_retries++;
            plain_empty();
        }
        if (plain_limit != 0 && plain_reserved() + counted > plain_limit) return false;
        at = plain_extend(r, n_bytes);
    }
    int64_t rest = r->pieces[at].n_bytes - n_bytes;
    r->pieces[at] = (piece){.kind = TAKEN, .n_bytes = n_bytes, .block = block};
    if (rest > 0) insert(r, at + 1, (piece){.kind = FREE, .n_bytes = rest});
    return true;
}

static void plain_give(int64_t block) {
    for (int p = 0; p < 2; p++)
        for (int s = 0; s < N_STREAMS; s++)
            for (int i = 0; i < rows[p][s].n; i++)
                if (rows[p][s].pieces[i].kind == TAKEN && rows[p][s].pieces[i].block == block) {
                    rows[p][s].pieces[i].kind = FREE;
                    tidy(&rows[p][s]);
                    return;
                }
    CHECK(false);
}

static uint64_t random_state = 88172645463325252u;

static int64_t below(int64_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (int64_t)(random_state % (uint64_t)n);
}

/* All kinds of requests, and often those at the bounds between them; few sizes, so that free blocks fit again. */
static int64_t random_size(void) {
    static const int64_t bounds[] = {512, MIB, 2 * MIB, 10 * MIB, 12 * MIB, 20 * MIB, 40 * MIB};
    switch (below(6)) {
    case 0:
        return bounds[below(7)] + below(3) * 512 - 512 + 1;
    case 1:
        return 1 + below(60 * MIB);
    case 2:
        return (1 + below(12)) * MIB;
    default:
        return 1 + below(8) * 130 * KIB;
    }
}

static void compare_models(int64_t limit_bytes, int n_calls, int n_live) {
    static int64_t live[MAX_PIECES];
    int n = 0;
    memset(rows, 0, sizeof rows);
    plain_limit = limit_bytes;
    plain_retries = 0;
    start(limit_bytes);
    for (int i = 0; i < n_calls; i++) {
        bool more = i / 1000 % 2 == 0; /* in waves, as steps of a training do */
        if (below(2000) == 0) {
            CHECK_STATUS(ms__allocator_empty(a), MS_OK);
            plain_empty();
        } else if (below(100) < (more ? 60 : 40) && n < n_live) {
            int64_t n_bytes = random_size(), stream = below(N_STREAMS), block = 0;
            ms_status status = ms__allocator_take(a, n_bytes, stream, &block);
            CHECK_STATUS(status, plain_take(n_bytes, stream, block) ? MS_OK : MS_E_BUDGET);
            if (status == MS_OK) live[n++] = block;
        } else if (n > 0) {
            int k = (int)below(n);
            give(live[k]);
            plain_give(live[k]);
            live[k] = live[--n];
        }
        CHECK_BYTES(sum_of(TAKEN), plain_reserved());
        CHECK_EQ_INT(STATS.n_retries, plain_retries);
        CHECK(limit_bytes == 0 || STATS.reserved_bytes < limit_bytes + MS__LARGE_GRANULE_BYTES);
        CHECK(STATS.needed_bytes <= (limit_bytes == 0 ? INT64_MAX : limit_bytes));
    }
    finish();
}

TEST(two_models_agree) {
    compare_models(0, 20000, 300);
    compare_models(0, 10000, 20);
}

TEST(two_models_agree_under_limits) {
    const int64_t limits[] = {MIB, 64 * MIB, 300 * MIB, 301 * MIB + 5, 900 * MIB};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) compare_models(limits[i], 8000, 300);
}

SUITE(growing, CASE(memory_comes_in_granules), CASE(a_block_grows_into_new_memory),
      CASE(the_end_of_a_segment_is_used_last), CASE(large_blocks_are_split_to_the_last_512),
      CASE(the_limit_is_checked_for_the_request), CASE(what_is_over_the_limit_is_less_than_a_granule),
      CASE(free_granules_are_returned), CASE(gaps_that_are_closed), CASE(segments_from_before), CASE(no_address_space),
      CASE(two_models_agree), CASE(two_models_agree_under_limits));
