/* test_allocator.c - the model of torch's caching allocator: every rule with its numbers, and a comparison with a
 * second model.
 *
 * The second model is as simple as possible: one array of pieces, searched from end to end, with sums computed each
 * time. For random calls, with several streams and limits, both must agree after every call.
 */
#include "runner.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "error_info.h"
#include "sim/allocator.h"

#define KIB ((int64_t)1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define MAX_PIECES 4096
#define N_CELLS 8192
#define N_STREAMS 3

static ms__allocator *a; /* of the test that runs */

static void start(int64_t limit_bytes) { CHECK_STATUS(ms__allocator_create(limit_bytes, &a), MS_OK); }

static int64_t take_on(int64_t stream, int64_t n_bytes) {
    int64_t block = 0;
    CHECK_STATUS(ms__allocator_take(a, n_bytes, stream, &block), MS_OK);
    return block;
}

static int64_t take(int64_t n_bytes) { return take_on(0, n_bytes); }

static void give(int64_t block) { CHECK_STATUS(ms__allocator_give(a, block), MS_OK); }

static ms_status try_take(int64_t n_bytes) {
    int64_t block = -7;
    ms_status status = ms__allocator_take(a, n_bytes, 0, &block);
    CHECK((status == MS_OK) == (block != -7));
    return status;
}

#define STATS ms__allocator_get_stats(a)
#define CHECK_BYTES(allocated, reserved)                                                                               \
    (CHECK_EQ_INT(STATS.allocated_bytes, allocated), CHECK_EQ_INT(STATS.reserved_bytes, reserved))

static void finish(void) { ms__allocator_destroy(a); }

TEST(nothing_at_first) {
    start(0);
    ms__allocator_stats stats = STATS, zero = {0};
    CHECK(memcmp(&stats, &zero, sizeof stats) == 0);
    CHECK_STATUS(ms__allocator_empty(a), MS_OK);
    finish();
    ms__allocator_destroy(NULL);
}

TEST(sizes_are_multiples_of_512) {
    start(0);
    const int64_t sizes[][2] = {{1, 512},    {511, 512},         {512, 512},
                                {513, 1024}, {1000000, 1000448}, {2 * MIB - 1, 2 * MIB}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t block = take(sizes[i][0]);
        CHECK_EQ_INT(STATS.allocated_bytes, sizes[i][1]);
        give(block);
        CHECK_EQ_INT(STATS.allocated_bytes, 0);
    }
    finish();
}

TEST(zero_bytes_are_no_block) {
    start(0);
    CHECK_EQ_INT(take(0), MS__NO_BLOCK);
    CHECK_BYTES(0, 0);
    give(MS__NO_BLOCK);
    finish();
}

TEST(small_requests_share_segments_of_2_mib) {
    start(0);
    for (int i = 0; i < 4096; i++) (void)take(1);
    CHECK_BYTES(2 * MIB, 2 * MIB);
    (void)take(1);
    CHECK_BYTES(2 * MIB + 512, 4 * MIB);
    CHECK_EQ_INT(STATS.n_segments, 2);
    CHECK_EQ_INT(STATS.inactive_split_bytes, 2 * MIB - 512);
    finish();
}

TEST(segments_grow_with_requests) {
    const int64_t sizes[][2] = {{1, 2 * MIB},
                                {MIB, 2 * MIB},
                                {MIB + 1, 20 * MIB},
                                {10 * MIB - 512, 20 * MIB},
                                {10 * MIB, 10 * MIB},
                                {10 * MIB + 1, 12 * MIB},
                                {12 * MIB, 12 * MIB},
                                {20 * MIB, 20 * MIB},
                                {GIB + 1, GIB + 2 * MIB}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        start(0);
        (void)take(sizes[i][0]);
        CHECK_EQ_INT(STATS.reserved_bytes, sizes[i][1]);
        finish();
    }
}

/* The bound of 10 MiB applies to rounded sizes. */
TEST(the_last_byte_below_10_mib) {
    start(0);
    (void)take(10 * MIB - 511);
    CHECK_BYTES(10 * MIB, 10 * MIB);
    finish();
}

TEST(pools_do_not_help_each_other) {
    start(0);
    give(take(20 * MIB));
    (void)take(MIB);
    CHECK_BYTES(MIB, 22 * MIB);
    (void)take(MIB + 1);
    CHECK_BYTES(2 * MIB + 512, 22 * MIB);
    finish();
}

TEST(small_blocks_are_split_to_the_last_512) {
    start(0);
    (void)take(MIB);
    (void)take(MIB - 512);
    CHECK_EQ_INT(STATS.inactive_split_bytes, 512);
    (void)take(1);
    CHECK_BYTES(2 * MIB, 2 * MIB);
    finish();
}

TEST(a_rest_of_1_mib_is_not_split_off) {
    start(0);
    give(take(12 * MIB));
    int64_t block = take(11 * MIB);
    CHECK_BYTES(12 * MIB, 12 * MIB); /* the whole block counts, not the request */
    CHECK_EQ_INT(STATS.inactive_split_bytes, 0);
    give(block);
    CHECK_BYTES(0, 12 * MIB);
    finish();
}

TEST(a_larger_rest_is_split_off) {
    start(0);
    give(take(12 * MIB));
    int64_t block = take(11 * MIB - 512);
    CHECK_BYTES(11 * MIB - 512, 12 * MIB);
    CHECK_EQ_INT(STATS.inactive_split_bytes, MIB + 512);
    (void)take(MIB + 512);
    CHECK_BYTES(12 * MIB, 12 * MIB);
    give(block);
    CHECK_BYTES(MIB + 512, 12 * MIB);
    finish();
}

TEST(a_new_segment_may_stay_whole_too) {
    start(0);
    (void)take(9 * MIB + 512);
    (void)take(9 * MIB + 512); /* leaves 2 MiB - 1024 of 20 */
    CHECK_BYTES(18 * MIB + KIB, 20 * MIB);
    CHECK_EQ_INT(STATS.inactive_split_bytes, 2 * MIB - KIB);
    (void)take(13 * MIB); /* its segment has 14 */
    CHECK_BYTES(32 * MIB + KIB, 34 * MIB);
    finish();
}

TEST(the_smallest_block_that_fits_is_taken) {
    start(0);
    int64_t large = take(40 * MIB), middle = take(30 * MIB), small = take(20 * MIB);
    give(large);
    give(small);
    give(middle);
    (void)take(30 * MIB);
    CHECK_EQ_INT(STATS.inactive_split_bytes, 0); /* not a part of the 40 */
    (void)take(12 * MIB);
    CHECK_EQ_INT(STATS.inactive_split_bytes, 8 * MIB); /* the 20 */
    (void)take(21 * MIB);
    CHECK_EQ_INT(STATS.inactive_split_bytes, 27 * MIB);
    CHECK_BYTES(63 * MIB, 90 * MIB);
    finish();
}

/* Two free blocks of 12 MiB: the rest of a segment that is in use, and a segment of its own, which can be returned as
 * long as it is not the one that is taken. */
TEST(of_equal_blocks_the_lower_address_is_taken) {
    for (int rest_first = 0; rest_first < 2; rest_first++) {
        start(0);
        int64_t own = rest_first ? 0 : take(12 * MIB);
        (void)take(8 * MIB);
        if (rest_first) { /* fill the rest, else it would be taken */
            int64_t filler = take(12 * MIB);
            own = take(12 * MIB);
            give(filler);
        }
        give(own);
        CHECK_BYTES(8 * MIB, 32 * MIB);
        (void)take(12 * MIB);
        CHECK_STATUS(ms__allocator_empty(a), MS_OK);
        CHECK_BYTES(20 * MIB, rest_first ? 20 * MIB : 32 * MIB);
        finish();
    }
}

TEST(free_neighbours_are_joined) {
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        start(0);
        int64_t blocks[] = {take(512 * KIB), take(512 * KIB), take(512 * KIB)}; /* and 512 KiB are free after them */
        for (int k = 0; k < 3; k++) {
            CHECK_EQ_INT(STATS.inactive_split_bytes, (k + 1) * 512 * KIB);
            give(blocks[orders[i][k]]);
        }
        CHECK_BYTES(0, 2 * MIB);
        CHECK_EQ_INT(STATS.inactive_split_bytes, 0);
        (void)take(MIB);
        (void)take(MIB);
        CHECK_BYTES(2 * MIB, 2 * MIB);
        finish();
    }
}

TEST(blocks_that_are_taken_keep_neighbours_apart) {
    start(0);
    int64_t first = take(512 * KIB), second = take(512 * KIB), third = take(MIB);
    give(first);
    give(third);
    (void)take(MIB);
    CHECK_EQ_INT(STATS.reserved_bytes, 2 * MIB);
    (void)take(600 * KIB); /* 512 KiB are free, but not enough */
    CHECK_EQ_INT(STATS.reserved_bytes, 4 * MIB);
    give(second);
    CHECK_EQ_INT(STATS.inactive_split_bytes, MIB + 1448 * KIB);
    finish();
}

TEST(segments_are_not_joined) {
    start(0);
    int64_t first = take(10 * MIB), second = take(10 * MIB);
    give(first);
    give(second);
    (void)take(20 * MIB);
    CHECK_BYTES(20 * MIB, 40 * MIB);
    finish();
}

TEST(streams_do_not_share) {
    start(0);
    give(take_on(1, 16 * MIB));
    int64_t block = take_on(2, 16 * MIB);
    CHECK_BYTES(16 * MIB, 32 * MIB);
    (void)take_on(1, 16 * MIB);
    CHECK_BYTES(32 * MIB, 32 * MIB);
    give(block);
    (void)take_on(1, 16 * MIB);
    CHECK_BYTES(32 * MIB, 48 * MIB);
    (void)take_on(2, 16 * MIB); /* where it came from */
    CHECK_BYTES(48 * MIB, 48 * MIB);
    finish();
}

TEST(a_stream_is_any_number) {
    const int64_t streams[] = {INT64_MIN, -1, 0, 1, INT64_MAX};
    start(0);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 5; i++) give(take_on(streams[i], 1));
        CHECK_BYTES(0, 10 * MIB);
    }
    finish();
}

TEST(a_limit_may_be_reached) {
    start(24 * MIB);
    (void)take(12 * MIB);
    (void)take(12 * MIB);
    CHECK_BYTES(24 * MIB, 24 * MIB);
    finish();
}

TEST(at_the_limit_unused_segments_are_returned) {
    start(40 * MIB);
    give(take_on(1, 10 * MIB));
    give(take_on(2, 10 * MIB));
    give(take_on(1, 1));
    int64_t block = take(12 * MIB);
    CHECK_BYTES(12 * MIB, 34 * MIB);
    (void)take(28 * MIB);
    CHECK_BYTES(40 * MIB, 40 * MIB);
    CHECK_EQ_INT(STATS.n_segments, 2);
    CHECK_EQ_INT(STATS.peak_reserved_bytes, 40 * MIB);
    give(block);
    finish();
}

TEST(over_the_limit_nothing_is_taken) {
    start(30 * MIB);
    int64_t block = take(16 * MIB);
    give(take(10 * MIB));
    CHECK_BYTES(16 * MIB, 26 * MIB);
    CHECK_STATUS(try_take(15 * MIB), MS_E_BUDGET);
    CHECK_EQ_INT(error_info().needed_bytes, 32 * MIB);
    CHECK(strstr(ms_error_message(), "cannot allocate 15728640 bytes") != NULL);
    CHECK_BYTES(16 * MIB, 16 * MIB); /* torch has returned what it could by then too */
    CHECK_EQ_INT(STATS.peak_reserved_bytes, 26 * MIB);
    (void)take(14 * MIB);
    give(block);
    CHECK_BYTES(14 * MIB, 30 * MIB);
    finish();
}

TEST(segments_in_use_are_not_returned) {
    start(40 * MIB);
    (void)take(2 * MIB); /* holds 20 */
    (void)take(1);       /* holds 2 */
    CHECK_STATUS(try_take(19 * MIB), MS_E_BUDGET);
    CHECK_EQ_INT(error_info().needed_bytes, 42 * MIB);
    (void)take(18 * MIB); /* no new segment is needed for this */
    CHECK_BYTES(20 * MIB + 512, 22 * MIB);
    finish();
}

TEST(a_limit_below_any_segment) {
    start(1);
    CHECK_STATUS(try_take(1), MS_E_BUDGET);
    CHECK_EQ_INT(error_info().needed_bytes, 2 * MIB);
    CHECK_BYTES(0, 0);
    finish();
}

TEST(empty_returns_what_is_wholly_free) {
    start(0);
    int64_t small = take(1), large = take(3 * MIB), own = take(50 * MIB), other = take_on(1, 50 * MIB);
    give(own);
    give(other);
    CHECK_STATUS(ms__allocator_empty(a), MS_OK);
    CHECK_BYTES(3 * MIB + 512, 22 * MIB);
    give(small);
    give(large);
    CHECK_EQ_INT(STATS.inactive_split_bytes, 0);
    CHECK_STATUS(ms__allocator_empty(a), MS_OK);
    CHECK_BYTES(0, 0);
    CHECK_EQ_INT(STATS.n_segments, 0);
    (void)take(1);
    CHECK_BYTES(512, 2 * MIB);
    finish();
}

TEST(peaks_stay_until_they_are_reset) {
    start(0);
    int64_t first = take(10 * MIB), second = take(30 * MIB);
    give(second);
    CHECK_STATUS(ms__allocator_empty(a), MS_OK);
    CHECK_EQ_INT(STATS.peak_allocated_bytes, 40 * MIB);
    CHECK_EQ_INT(STATS.peak_reserved_bytes, 40 * MIB);
    ms__allocator_reset_peaks(a);
    CHECK_EQ_INT(STATS.peak_allocated_bytes, 10 * MIB);
    CHECK_EQ_INT(STATS.peak_reserved_bytes, 10 * MIB);
    give(first);
    CHECK_EQ_INT(STATS.peak_allocated_bytes, 10 * MIB);
    ms__allocator_reset_peaks(a);
    (void)take(1);
    CHECK_EQ_INT(STATS.peak_allocated_bytes, 512);
    CHECK_EQ_INT(STATS.peak_reserved_bytes, 12 * MIB);
    finish();
}

TEST(sizes_that_cannot_be) {
    const int64_t most = (int64_t)1 << 60;
    start(0);
    CHECK_STATUS(try_take(-1), MS_E_INVALID);
    CHECK_STATUS(try_take(INT64_MIN), MS_E_INVALID);
    CHECK_STATUS(try_take(most + 1), MS_E_LIMIT);
    CHECK_STATUS(try_take(INT64_MAX), MS_E_LIMIT);
    for (int i = 0; i < 4; i++) CHECK_STATUS(try_take(most), MS_OK);
    for (int i = 0; i < 10; i++) { /* addresses come again */
        give(take(most));
        CHECK_STATUS(ms__allocator_empty(a), MS_OK);
    }
    CHECK_STATUS(try_take(most), MS_OK);
    CHECK_BYTES(5 * most, 5 * most);
    CHECK_STATUS(try_take(most), MS_E_LIMIT); /* no addresses are left */
    CHECK_STATUS(try_take(1), MS_OK);
    CHECK_BYTES(5 * most + 512, 5 * most + 2 * MIB);
    finish();
    a = NULL;
    CHECK_STATUS(ms__allocator_create(-1, &a), MS_E_INVALID);
    CHECK(a == NULL);
}

TEST(blocks_that_are_not_taken) {
    start(0);
    int64_t block = take(1);
    const int64_t wrong[] = {0, -2, block + 1 /* the rest of its segment */, block + 2, 1000000, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_STATUS(ms__allocator_give(a, wrong[i]), MS_E_INVALID);
    give(block);
    CHECK_STATUS(ms__allocator_give(a, block), MS_E_INVALID);
    CHECK(strstr(ms_error_message(), "not taken") != NULL);
    CHECK_BYTES(0, 2 * MIB);
    finish();
}

TEST(numbers_of_blocks_come_again) {
    int64_t blocks[100];
    start(0);
    for (int round = 0; round < 1000; round++) {
        for (int i = 0; i < 100; i++) blocks[i] = take((i + round) % 7 * 300 * KIB + 1);
        for (int i = 0; i < 100; i++) {
            CHECK(blocks[i] > 0 && blocks[i] < 300);
            give(blocks[i * 37 % 100]);
        }
    }
    finish();
}

/* The second model. */
typedef struct piece {
    int64_t segment, address, n_bytes, stream;
    int64_t block; /* the number under which it is taken, 0: free */
    bool large;
} piece;

static struct {
    piece pieces[MAX_PIECES];
    int n;
    int64_t n_segments, n_segments_ever, n_chunks_ever, limit_bytes, reserved_bytes, allocated_bytes;
    struct {
        int64_t chunk; /* 0: none */
        bool used;
    } cells[N_CELLS]; /* of 2 MiB, by address */
} plain;

/* The first of n_cells free ones that follow each other: in one chunk, the lowest; in none, the highest. */
static int64_t free_cells(int64_t n_cells, bool in_chunk) {
    int64_t found = -1;
    for (int64_t i = 0, run = 0; i < N_CELLS && !(in_chunk && found >= 0); i++) {
        bool fits = !plain.cells[i].used && (plain.cells[i].chunk != 0) == in_chunk;
        if (run > 0 && plain.cells[i].chunk != plain.cells[i - 1].chunk) run = 0;
        run = fits ? run + 1 : 0;
        if (run >= n_cells) found = i + 1 - n_cells;
    }
    return found;
}

static int64_t plain_address(int64_t n_bytes) {
    int64_t n_cells = n_bytes / (2 * MIB), at = free_cells(n_cells, true);
    if (at < 0) {
        int64_t n_new = (n_cells + 15) / 16 * 16, chunk = ++plain.n_chunks_ever;
        at = free_cells(n_new, false);
        CHECK(at >= 0);
        for (int64_t i = 0; i < n_new; i++) plain.cells[at + i].chunk = chunk;
    }
    for (int64_t i = 0; i < n_cells; i++) plain.cells[at + i].used = true;
    return at * 2 * MIB;
}

static void plain_return(int64_t address, int64_t n_bytes) {
    int64_t first = address / (2 * MIB), chunk = plain.cells[first].chunk;
    bool used = false;
    for (int64_t i = 0; i < n_bytes / (2 * MIB); i++) plain.cells[first + i].used = false;
    for (int64_t i = 0; i < N_CELLS; i++) used = used || (plain.cells[i].chunk == chunk && plain.cells[i].used);
    for (int64_t i = 0; i < N_CELLS && !used; i++)
        if (plain.cells[i].chunk == chunk) plain.cells[i].chunk = 0;
}

static bool segment_used(int64_t segment) {
    for (int i = 0; i < plain.n; i++)
        if (plain.pieces[i].segment == segment && plain.pieces[i].block != 0) return true;
    return false;
}

static void plain_sums(void) {
    plain.reserved_bytes = plain.allocated_bytes = 0;
    for (int i = 0; i < plain.n; i++) {
        plain.reserved_bytes += plain.pieces[i].n_bytes;
        if (plain.pieces[i].block != 0) plain.allocated_bytes += plain.pieces[i].n_bytes;
    }
}

static void plain_empty(void) {
    for (int i = plain.n - 1; i >= 0; i--)
        if (!segment_used(plain.pieces[i].segment)) {
            plain_return(plain.pieces[i].address, plain.pieces[i].n_bytes);
            plain.pieces[i] = plain.pieces[--plain.n];
            plain.n_segments--; /* wholly free means one piece */
        }
    plain_sums();
}

static piece *plain_segment(bool large, int64_t n_bytes, int64_t stream) {
    int64_t size = !large ? 2 * MIB : n_bytes < 10 * MIB ? 20 * MIB : (n_bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    if (plain.limit_bytes != 0 && plain.reserved_bytes + size > plain.limit_bytes) plain_empty();
    if (plain.limit_bytes != 0 && plain.reserved_bytes + size > plain.limit_bytes) return NULL;
    plain.pieces[plain.n] = (piece){plain.n_segments_ever++, plain_address(size), size, stream, 0, large};
    plain.n_segments++;
    CHECK(plain.n + 2 < MAX_PIECES);
    return &plain.pieces[plain.n++];
}

static piece *plain_take(int64_t wanted, int64_t stream) {
    int64_t n_bytes = wanted < 512 ? 512 : (wanted + 511) / 512 * 512;
    bool large = n_bytes > MIB;
    piece *best = NULL;
    for (piece *p = plain.pieces; p < plain.pieces + plain.n; p++) {
        if (p->block != 0 || p->large != large || p->stream != stream || p->n_bytes < n_bytes) continue;
        if (best == NULL || p->n_bytes < best->n_bytes || (p->n_bytes == best->n_bytes && p->address < best->address))
            best = p;
    }
    if (best == NULL) best = plain_segment(large, n_bytes, stream);
    if (best == NULL) return NULL;
    int64_t rest = best->n_bytes - n_bytes;
    if (large ? rest > MIB : rest >= 512) {
        plain.pieces[plain.n++] = (piece){best->segment, best->address + n_bytes, rest, stream, 0, large};
        best->n_bytes = n_bytes;
    }
    return best;
}

static void plain_give(piece *given) {
    given->block = 0;
    for (int i = plain.n - 1; i >= 0; i--) {
        piece *p = &plain.pieces[i];
        bool after = p->address == given->address + given->n_bytes,
             in_front = p->address + p->n_bytes == given->address;
        if (p->block != 0 || p->segment != given->segment || !(after || in_front)) continue;
        given->n_bytes += p->n_bytes;
        if (in_front) given->address = p->address;
        piece *last = &plain.pieces[--plain.n];
        *p = *last;
        if (given == last) given = p;
        i = plain.n; /* from the start: a second neighbour may be anywhere */
    }
}

static int64_t plain_inactive(void) {
    int64_t n_bytes = 0;
    for (int i = 0; i < plain.n; i++)
        if (plain.pieces[i].block == 0 && segment_used(plain.pieces[i].segment)) n_bytes += plain.pieces[i].n_bytes;
    return n_bytes;
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
    static const int64_t bounds[] = {512, MIB, 2 * MIB, 10 * MIB, 12 * MIB, 20 * MIB};
    switch (below(8)) {
    case 0:
        return bounds[below(6)] + below(3) * 512 - 512 + below(2);
    case 1:
        return 1 + below(30 * MIB);
    case 2:
        return MIB + 1 + below(9 * MIB);
    case 3:
        return (1 + below(12)) * MIB;
    case 4:
        return below(1200);
    default:
        return 1 + below(8) * 130 * KIB;
    }
}

static int random_taken(void) {
    for (int tries = 0; tries < 20 && plain.n > 0; tries++) {
        int i = (int)below(plain.n);
        if (plain.pieces[i].block != 0) return i;
    }
    return -1;
}

static void take_in_both(void) {
    int64_t n_bytes = random_size(), stream = below(N_STREAMS), block = -7;
    ms_status status = ms__allocator_take(a, n_bytes, stream, &block);
    if (n_bytes == 0) {
        CHECK_EQ_INT(block, MS__NO_BLOCK);
        return;
    }
    piece *p = plain_take(n_bytes, stream);
    CHECK_STATUS(status, p != NULL ? MS_OK : MS_E_BUDGET);
    for (int i = 0; i < plain.n; i++) CHECK(plain.pieces[i].block != block); /* nobody else's */
    if (p != NULL) p->block = block;
}

static void give_in_both(void) {
    int i = random_taken();
    if (i < 0) return;
    CHECK_STATUS(ms__allocator_give(a, plain.pieces[i].block), MS_OK);
    plain_give(&plain.pieces[i]);
}

static void compare_models(int64_t limit_bytes, int n_calls, int n_live) {
    int64_t peak_allocated = 0, peak_reserved = 0;
    memset(&plain, 0, sizeof plain);
    plain.limit_bytes = limit_bytes;
    start(limit_bytes);
    for (int i = 0; i < n_calls; i++) {
        bool grow = i / 2000 % 2 == 0; /* in waves, as steps of a training do */
        if (below(3000) == 0) {
            CHECK_STATUS(ms__allocator_empty(a), MS_OK);
            plain_empty();
        } else if (below(100) < (grow ? 60 : 40) && plain.n < n_live) {
            take_in_both();
        } else {
            give_in_both();
        }
        plain_sums();
        CHECK_BYTES(plain.allocated_bytes, plain.reserved_bytes);
        CHECK_EQ_INT(STATS.n_segments, plain.n_segments);
        if (plain.allocated_bytes > peak_allocated) peak_allocated = plain.allocated_bytes;
        if (plain.reserved_bytes > peak_reserved) peak_reserved = plain.reserved_bytes;
        CHECK_EQ_INT(STATS.peak_allocated_bytes, peak_allocated);
        CHECK_EQ_INT(STATS.peak_reserved_bytes, peak_reserved);
        if (i % 61 == 0) CHECK_EQ_INT(STATS.inactive_split_bytes, plain_inactive());
    }
    finish();
}

TEST(two_models_agree) {
    compare_models(0, 60000, 400);
    compare_models(0, 20000, 30);
}

TEST(two_models_agree_under_limits) {
    const int64_t limits[] = {MIB, 64 * MIB, 300 * MIB, 301 * MIB + 5, 900 * MIB, 2 * GIB};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) compare_models(limits[i], 25000, 400);
}

/* Printed, not checked: a busy machine is no failure. */
TEST(a_note_on_speed) {
    static int64_t blocks[30000];
    const int n_blocks = (int)(sizeof blocks / sizeof *blocks), n_rounds = 500000;
    start(0);
    for (int i = 0; i < n_blocks; i++) blocks[i] = take(random_size());
    clock_t begin = clock();
    for (int i = 0; i < n_rounds; i++) {
        int64_t *block = &blocks[below(n_blocks)];
        give(*block);
        *block = take(random_size());
    }
    int64_t ns = (int64_t)(clock() - begin) * (1000000000 / CLOCKS_PER_SEC) / (2 * n_rounds);
    printf("note: %lld ns for a take or a give among %d blocks\n", (long long)ns, n_blocks);
    finish();
}

SUITE(allocator, CASE(nothing_at_first), CASE(sizes_are_multiples_of_512), CASE(zero_bytes_are_no_block),
      CASE(small_requests_share_segments_of_2_mib), CASE(segments_grow_with_requests), CASE(the_last_byte_below_10_mib),
      CASE(pools_do_not_help_each_other), CASE(small_blocks_are_split_to_the_last_512),
      CASE(a_rest_of_1_mib_is_not_split_off), CASE(a_larger_rest_is_split_off), CASE(a_new_segment_may_stay_whole_too),
      CASE(the_smallest_block_that_fits_is_taken), CASE(of_equal_blocks_the_lower_address_is_taken),
      CASE(free_neighbours_are_joined), CASE(blocks_that_are_taken_keep_neighbours_apart),
      CASE(segments_are_not_joined), CASE(streams_do_not_share), CASE(a_stream_is_any_number),
      CASE(a_limit_may_be_reached), CASE(at_the_limit_unused_segments_are_returned),
      CASE(over_the_limit_nothing_is_taken), CASE(segments_in_use_are_not_returned), CASE(a_limit_below_any_segment),
      CASE(empty_returns_what_is_wholly_free), CASE(peaks_stay_until_they_are_reset), CASE(sizes_that_cannot_be),
      CASE(blocks_that_are_not_taken), CASE(numbers_of_blocks_come_again), CASE(two_models_agree),
      CASE(two_models_agree_under_limits), CASE(a_note_on_speed));
