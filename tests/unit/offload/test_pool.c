/* test_pool.c - the pool of host memory: how it grows, which range is taken, what is joined, and a comparison with a
 * second model.
 *
 * The second model has one entry for each 512 bytes, and searches them all.
 */
#include "offload/pool.h"

#include <stdlib.h>
#include <string.h>

#include "runner.h"

#define UNIT ((int64_t)MS__POOL_ALIGN)
#define MAX_UNITS 4096
#define MAX_RANGES 256

static ms__pool pool; /* of the test that runs */

static ms__pool_range range_of(int64_t start, int64_t n, int64_t ticket) {
    return (ms__pool_range){.start = start * UNIT, .n_bytes = n * UNIT, .ticket = ticket};
}

/* A segment of n units. Nobody writes to it, so where it lies does not matter. */
static void add(int64_t n) {
    static unsigned char memory[MAX_UNITS * MS__POOL_ALIGN];
    const ms__host_memory host = {.memory = memory, .n_bytes = n * UNIT, .kind = MS__HOST_PINNED};
    CHECK_STATUS(ms__pool_add(&pool, &host), MS_OK);
}

static ms__pool_range take(int64_t n) {
    ms__pool_range range = {.start = -1};
    CHECK_EQ_INT(ms__pool_lacks(&pool, n * UNIT), 0);
    CHECK_STATUS(ms__pool_take(&pool, n * UNIT, &range), MS_OK);
    CHECK_EQ_INT(range.n_bytes, n * UNIT);
    return range;
}

static void give(ms__pool_range range, int64_t ticket) {
    range.ticket = ticket;
    ms__pool_give(&pool, range);
}

static void check_free(size_t n, const ms__pool_range *wanted) {
    CHECK_EQ_INT(pool.free.n, n);
    for (size_t i = 0; i < n; i++) {
        CHECK_EQ_INT(pool.free.items[i].start, wanted[i].start);
        CHECK_EQ_INT(pool.free.items[i].n_bytes, wanted[i].n_bytes);
        CHECK_EQ_INT(pool.free.items[i].ticket, wanted[i].ticket);
    }
}

TEST(an_empty_pool_lacks_everything) {
    ms__pool_range range = {.start = -1};
    CHECK_EQ_INT(ms__pool_lacks(&pool, 7 * UNIT), 7 * UNIT);
    CHECK_STATUS(ms__pool_take(&pool, UNIT, &range), MS_E_NO_MEMORY);
    CHECK_EQ_INT(range.start, -1);
    CHECK_EQ_INT(pool.used_bytes, 0);
    ms__pool_free(&pool);
}

/* What is free at the end counts, holes before it do not. */
TEST(it_grows_by_what_is_lacking) {
    add(10);
    ms__pool_range first = take(4), second = take(3);
    CHECK_EQ_INT(ms__pool_lacks(&pool, 3 * UNIT), 0);
    CHECK_EQ_INT(ms__pool_lacks(&pool, 8 * UNIT), 5 * UNIT);
    give(first, 0);
    CHECK_EQ_INT(ms__pool_lacks(&pool, 4 * UNIT), 0);
    CHECK_EQ_INT(ms__pool_lacks(&pool, 8 * UNIT), 5 * UNIT);
    add(5);
    CHECK_EQ_INT(ms__pool_lacks(&pool, 8 * UNIT), 0);
    ms__pool_range across = take(8);
    CHECK_EQ_INT(across.start, 7 * UNIT);
    CHECK_EQ_INT(pool.n_bytes, 15 * UNIT);
    CHECK_EQ_INT(pool.used_bytes, 11 * UNIT);
    CHECK_EQ_INT(ms__pool_lacks(&pool, 5 * UNIT), 5 * UNIT); /* the end is taken */
    give(across, 0);
    give(second, 0);
    check_free(1, (ms__pool_range[]){range_of(0, 15, 0)});
    ms__pool_free(&pool);
}

TEST(only_some_memory_is_pinned) {
    static unsigned char memory[4096];
    const ms__host_kind kinds[] = {MS__HOST_PAGEABLE, MS__HOST_REGISTERED, MS__HOST_PINNED};
    for (int i = 0; i < 3; i++) {
        const ms__host_memory host = {.memory = memory, .n_bytes = 4096, .kind = kinds[i]};
        CHECK_STATUS(ms__pool_add(&pool, &host), MS_OK);
        CHECK_EQ_INT(pool.pinned_bytes, i * 4096);
    }
    CHECK_EQ_INT(pool.n_bytes, 3 * 4096);
    ms__pool_free(&pool);
}

/* Of free ranges of 6, 3, 4 and 3 units the first of the smallest that are large enough. */
TEST(the_best_range_is_taken) {
    ms__pool_range ranges[8];
    const int64_t sizes[] = {6, 1, 3, 1, 4, 1, 3, 1};
    add(20);
    for (int i = 0; i < 8; i++) ranges[i] = take(sizes[i]);
    for (int i = 0; i < 8; i += 2) give(ranges[i], 0);
    CHECK_EQ_INT(take(2).start, ranges[2].start);
    CHECK_EQ_INT(take(3).start, ranges[6].start);
    CHECK_EQ_INT(take(4).start, ranges[4].start);
    CHECK_EQ_INT(take(5).start, ranges[0].start);
    ms__pool_free(&pool);
}

/* In every order, also where segments meet. */
TEST(neighbours_are_joined) {
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    add(4);
    add(1);
    add(4);
    for (int i = 0; i < 6; i++) {
        ms__pool_range ranges[3] = {take(3), take(3), take(3)};
        CHECK_EQ_INT(pool.free.n, 0);
        for (int k = 0; k < 3; k++) give(ranges[orders[i][k]], 0);
        check_free(1, (ms__pool_range[]){range_of(0, 9, 0)});
    }
    CHECK_EQ_INT(pool.n_taken, 0);
    ms__pool_free(&pool);
}

TEST(tickets) {
    add(9);
    ms__pool_range a = take(3), b = take(3), c = take(3);
    CHECK_EQ_INT(a.ticket, 0);
    give(a, 5);
    give(c, 7);
    check_free(2, (ms__pool_range[]){range_of(0, 3, 5), range_of(6, 3, 7)});
    ms__pool_range part = take(1); /* both parts may still be read by the same copy */
    CHECK_EQ_INT(part.ticket, 5);
    check_free(2, (ms__pool_range[]){range_of(1, 2, 5), range_of(6, 3, 7)});
    give(part, 6);
    check_free(2, (ms__pool_range[]){range_of(0, 3, 6), range_of(6, 3, 7)});
    give(b, 2);
    check_free(1, (ms__pool_range[]){range_of(0, 9, 7)});
    add(2); /* which nobody reads, but it is one range now */
    check_free(1, (ms__pool_range[]){range_of(0, 11, 7)});
    CHECK_EQ_INT(take(11).ticket, 7);
    ms__pool_free(&pool);
}

/* Each segment has memory of its own; a lookup ends where its segment does. */
TEST(memory_of_a_range) {
    static unsigned char memory[3][4 * MS__POOL_ALIGN];
    const int64_t n_units[] = {4, 1, 3}, starts[] = {0, 4, 5};
    for (int i = 0; i < 3; i++) {
        const ms__host_memory host = {.memory = memory[i], .n_bytes = n_units[i] * UNIT};
        CHECK_STATUS(ms__pool_add(&pool, &host), MS_OK);
    }
    for (int64_t at = 0; at < 8 * UNIT; at += 17) {
        int i = at < 4 * UNIT ? 0 : at < 5 * UNIT ? 1 : 2;
        int64_t left = (starts[i] + n_units[i]) * UNIT - at, n_here = -1;
        CHECK(ms__pool_memory(&pool, at, 8 * UNIT, &n_here) == memory[i] + (at - starts[i] * UNIT));
        CHECK_EQ_INT(n_here, left);
        (void)ms__pool_memory(&pool, at, left, &n_here);
        CHECK_EQ_INT(n_here, left);
        (void)ms__pool_memory(&pool, at, 1, &n_here);
        CHECK_EQ_INT(n_here, 1);
    }
    ms__pool_free(&pool);
}

/* However ranges come back, the list of free ones has room for them and does not move. */
TEST(giving_back_needs_no_memory) {
    static ms__pool_range ranges[MAX_RANGES];
    add(MAX_RANGES);
    for (int i = 0; i < MAX_RANGES; i++) {
        ranges[i] = take(1);
        CHECK(pool.free.capacity >= pool.free.n + (size_t)pool.n_taken);
    }
    const ms__pool_range *list = pool.free.items;
    size_t capacity = pool.free.capacity;
    for (int k = 0; k < 2; k++) /* every other one first: none of these has a free neighbour */
        for (int i = k; i < MAX_RANGES; i += 2) give(ranges[i], i);
    CHECK(pool.free.items == list && pool.free.capacity == capacity);
    check_free(1, (ms__pool_range[]){range_of(0, MAX_RANGES, MAX_RANGES - 1)});
    ms__pool_free(&pool);
}

/* ---- The second model ---- */

static struct {
    int64_t n;
    bool is_taken[MAX_UNITS];
    int64_t tickets[MAX_UNITS];
} plain;

static int64_t run_from(int64_t start) {
    int64_t n = 0;
    while (start + n < plain.n && !plain.is_taken[start + n]) n++;
    return n;
}

/* The whole of a free run has its highest ticket. */
static void plain_join(void) {
    for (int64_t i = 0, n; i < plain.n; i += n == 0 ? 1 : n) {
        int64_t highest = 0;
        n = run_from(i);
        for (int64_t k = i; k < i + n; k++) highest = plain.tickets[k] > highest ? plain.tickets[k] : highest;
        for (int64_t k = i; k < i + n; k++) plain.tickets[k] = highest;
    }
}

/* The start of the smallest run of at least n; -1: there is none. */
static int64_t plain_best(int64_t n) {
    int64_t best = -1, best_n = INT64_MAX;
    for (int64_t i = 0, here; i < plain.n; i += here == 0 ? 1 : here) {
        here = run_from(i);
        if (here < n || here >= best_n) continue;
        best = i;
        best_n = here;
    }
    return best;
}

static int64_t plain_tail(void) {
    int64_t n = 0;
    while (n < plain.n && !plain.is_taken[plain.n - 1 - n]) n++;
    return n;
}

static uint64_t random_state = 88172645463325252U;

static int64_t below(int64_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (int64_t)(random_state % (uint64_t)n);
}

/* Returns whether the range could be taken, if need be after the pool has grown by what it lacks. */
static bool take_from_both(int64_t n, ms__pool_range *out) {
    int64_t at = plain_best(n), lacks = ms__pool_lacks(&pool, n * UNIT);
    CHECK_EQ_INT(lacks, at >= 0 ? 0 : (n - plain_tail()) * UNIT);
    if (plain.n + lacks / UNIT > MAX_UNITS) return false;
    if (lacks > 0) {
        add(lacks / UNIT);
        plain.n += lacks / UNIT;
        plain_join();
        at = plain_best(n);
    }
    *out = take(n);
    CHECK_EQ_INT(out->start, at * UNIT);
    CHECK_EQ_INT(out->ticket, plain.tickets[at]);
    for (int64_t k = at; k < at + n; k++) plain.is_taken[k] = true;
    return true;
}

static void give_to_both(ms__pool_range range, int64_t ticket) {
    give(range, ticket);
    for (int64_t k = range.start / UNIT; k < (range.start + range.n_bytes) / UNIT; k++) {
        plain.is_taken[k] = false;
        plain.tickets[k] = ticket;
    }
    plain_join();
}

static void compare_states(void) {
    size_t n_runs = 0;
    int64_t n_used = 0;
    for (int64_t i = 0; i < plain.n; i++) {
        n_used += plain.is_taken[i];
        n_runs += !plain.is_taken[i] && (i == 0 || plain.is_taken[i - 1]);
    }
    CHECK_EQ_INT(pool.free.n, n_runs);
    CHECK_EQ_INT(pool.used_bytes, n_used * UNIT);
    CHECK_EQ_INT(pool.n_bytes, plain.n * UNIT);
    CHECK(pool.free.capacity >= pool.free.n + (size_t)pool.n_taken);
}

TEST(two_models_agree) {
    static ms__pool_range live[MAX_RANGES];
    int n = 0;
    for (int i = 0; i < 8000; i++) {
        bool more = i / 500 % 2 == 0; /* in waves, as steps of a training do */
        ms__pool_range range;
        if (below(100) < (more ? 65 : 35)) {
            if (n < MAX_RANGES && take_from_both(below(4) == 0 ? 1 + below(60) : 1 + below(12), &range))
                live[n++] = range;
        } else if (n > 0) {
            int k = (int)below(n);
            give_to_both(live[k], below(3) == 0 ? i : live[k].ticket);
            live[k] = live[--n];
        }
        compare_states();
    }
    while (n > 0) give_to_both(live[--n], 0);
    compare_states();
    CHECK_EQ_INT(pool.free.n, 1);
    ms__pool_free(&pool);
}

SUITE(pool, CASE(an_empty_pool_lacks_everything), CASE(it_grows_by_what_is_lacking), CASE(only_some_memory_is_pinned),
      CASE(the_best_range_is_taken), CASE(neighbours_are_joined), CASE(tickets), CASE(memory_of_a_range),
      CASE(giving_back_needs_no_memory), CASE(two_models_agree));
