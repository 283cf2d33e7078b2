/* test_addresses.c - where segments go: against the addresses that a driver gave, and in every order of return. */
#include "runner.h"

#include "sim/addresses.h"

#define MIB ((int64_t)1 << 20)

static ms__addresses space;

static int64_t take(int64_t mib) {
    int64_t address = -1;
    CHECK_STATUS(ms__addresses_take(&space, mib * MIB, &address), MS_OK);
    CHECK(address >= 0);
    return address / MIB;
}

static void give(int64_t address, int64_t mib) { ms__addresses_give(&space, address * MIB, mib * MIB); }

/* As seen on an H200, in MiB from the first segment: two layers of a model's first forward. */
TEST(as_a_driver_does) {
    static const struct {
        int64_t mib, address;
    } seen[] = {{20, 0},    {12, 20},   {48, -64},  {48, -128}, {12, -80},  {12, -16},  {12, -160}, {12, -148},
                {12, -192}, {2, -180},  {12, -178}, {20, -224}, {12, -204}, {48, -288}, {48, -352}, {12, -304},
                {12, -240}, {12, -384}, {12, -372}, {12, -416}, {12, -404}, {20, -448}, {12, -428}};
    int64_t first = take(seen[0].mib);
    for (size_t i = 1; i < sizeof seen / sizeof *seen; i++) CHECK_EQ_INT(take(seen[i].mib) - first, seen[i].address);
    ms__addresses_free(&space);
}

TEST(a_range_that_is_free_is_taken_again) {
    space = (ms__addresses){0};
    int64_t a = take(32), b = take(64), c = take(32);
    give(b, 64);
    CHECK_EQ_INT(take(20), b + 32); /* the upper end of the hole */
    CHECK_EQ_INT(take(32), b);
    give(c, 32);
    CHECK_EQ_INT(take(96), c - 64); /* the lowest range went back */
    give(a, 32);
    CHECK_EQ_INT(take(30), a);
    ms__addresses_free(&space);
}

TEST(gaps_become_one) {
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        space = (ms__addresses){0};
        int64_t stays = take(2), parts[] = {take(10), take(10), take(10)}, other = take(32);
        for (int k = 0; k < 3; k++) give(parts[orders[i][k]], 10);
        CHECK_EQ_INT(take(30), stays + 2);
        give(stays + 2, 30);
        give(other, 32);
        CHECK_EQ_INT(take(32), other); /* a gap does not reach beyond its range */
        ms__addresses_free(&space);
    }
}

TEST(everything_goes_back) {
    space = (ms__addresses){0};
    int64_t first = take(12), second = take(48), third = take(100);
    give(second, 48);
    give(third, 100);
    give(first, 12);
    CHECK_EQ_INT(space.n_below, 0);
    CHECK_EQ_INT((int64_t)(space.chunks.n + space.gaps.n + space.holes.n + space.n_segments), 0);
    CHECK_EQ_INT(take(12), first);
    ms__addresses_free(&space);
}

SUITE(addresses, CASE(as_a_driver_does), CASE(a_range_that_is_free_is_taken_again), CASE(gaps_become_one),
      CASE(everything_goes_back));
