/* test_intern.c - equal items become one, in the order of first occurrence. */
#include <string.h>

#include "common/intern.h"
#include "runner.h"

TEST(equal_items_become_one) {
    int64_t items[] = {7, -1, 7, 0, -1, 9, 7};
    static const int64_t left[] = {7, -1, 0, 9};
    static const uint32_t places[] = {0, 1, 0, 2, 1, 3, 0};
    ms__arena arena = {0};
    uint32_t *index = NULL, n = 0;
    CHECK_STATUS(ms__intern(&arena, items, 7, sizeof *items, &index, &n), MS_OK);
    CHECK_EQ_INT(n, 4);
    CHECK(memcmp(items, left, sizeof left) == 0);
    CHECK(memcmp(index, places, sizeof places) == 0);
    ms__arena_free(&arena);
}

TEST(nothing_stays_nothing) {
    ms__arena arena = {0};
    uint32_t *index = NULL, n = 1;
    CHECK_STATUS(ms__intern(&arena, NULL, 0, 8, &index, &n), MS_OK);
    CHECK_EQ_INT(n, 0);
    ms__arena_free(&arena);
}

/* Many items of any size, of which every fifth is new. */
TEST(many_items) {
    enum { N = 10000, BYTES = 12 };
    static unsigned char items[N][BYTES];
    ms__arena arena = {0};
    uint32_t *index = NULL, n = 0;
    for (uint32_t i = 0; i < N; i++) memcpy(&items[i][BYTES - 4], &(uint32_t){i / 5}, 4);
    CHECK_STATUS(ms__intern(&arena, items, N, BYTES, &index, &n), MS_OK);
    CHECK_EQ_INT(n, N / 5);
    for (uint32_t i = 0; i < N; i++) {
        CHECK_EQ_INT(index[i], i / 5);
        CHECK(memcmp(&items[index[i]][BYTES - 4], &(uint32_t){i / 5}, 4) == 0);
    }
    ms__arena_free(&arena);
}

SUITE(intern, CASE(equal_items_become_one), CASE(nothing_stays_nothing), CASE(many_items));
