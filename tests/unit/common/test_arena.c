/* test_arena.c - memory that is freed all at once: alignment, zeroes, sizes from 0 to far too large.
 *
 * Allocated memory is filled with ones, so that a later allocation that overlaps it would not be zeroed.
 */
#include "runner.h"

#include <stdbool.h>
#include <string.h>

#include "common/arena.h"

static bool is_zero(const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != 0) return false;
    return true;
}

TEST(every_size_is_aligned_and_zeroed) {
    ms__arena arena = {0};
    for (size_t n = 0; n < 3000; n++) {
        unsigned char *memory = ms__arena_alloc(&arena, n);
        CHECK(memory != NULL);
        CHECK_EQ_INT((uintptr_t)memory % _Alignof(max_align_t), 0);
        CHECK(is_zero(memory, n));
        if (n > 0) memset(memory, 0xA5, n); /* a later allocation that overlaps would see it */
    }
    ms__arena_free(&arena);
}

TEST(nothing_moves_when_it_grows) {
    ms__arena arena = {0};
    int *numbers[2000];
    for (int i = 0; i < 2000; i++) {
        numbers[i] = ms__arena_alloc(&arena, sizeof(int) * 10);
        CHECK(numbers[i] != NULL);
        numbers[i][0] = numbers[i][9] = i;
    }
    for (int i = 0; i < 2000; i++) CHECK(numbers[i][0] == i && numbers[i][9] == i);
    ms__arena_free(&arena);
}

TEST(large_requests_get_their_block) {
    ms__arena arena = {0};
    char *small = ms__arena_alloc(&arena, 16);
    char *large = ms__arena_alloc(&arena, (size_t)1 << 24);
    char *after = ms__arena_alloc(&arena, 16);
    CHECK(small != NULL && large != NULL && after != NULL);
    CHECK(is_zero((unsigned char *)large, (size_t)1 << 24));
    memset(large, 1, (size_t)1 << 24);
    CHECK(is_zero((unsigned char *)small, 16) && is_zero((unsigned char *)after, 16));
    ms__arena_free(&arena);
}

TEST(an_exact_fit_does_not_spill) {
    ms__arena arena = {0};
    for (int i = 0; i < 10; i++) {
        unsigned char *memory = ms__arena_alloc(&arena, 4096); /* the size of the first block */
        CHECK(memory != NULL && is_zero(memory, 4096));
        memset(memory, 0xFF, 4096);
    }
    ms__arena_free(&arena);
}

TEST(impossible_sizes_are_errors) {
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 15, SIZE_MAX / 2, SIZE_MAX / 4 + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ms__arena arena = {0};
        ms_error_clear();
        CHECK(ms__arena_alloc(&arena, sizes[i]) == NULL);
        CHECK(ms_error_message()[0] != '\0');
        CHECK(ms__arena_alloc(&arena, 8) != NULL);
        ms__arena_free(&arena);
    }
}

TEST(arrays_check_their_product) {
    ms__arena arena = {0};
    CHECK(ms__arena_array(&arena, 10, 8) != NULL);
    CHECK(ms__arena_array(&arena, 0, 8) != NULL);
    CHECK(ms__arena_array(&arena, 8, 0) != NULL);
    CHECK(ms_error_message()[0] == '\0');
    CHECK(ms__arena_array(&arena, SIZE_MAX / 8 + 2, 8) == NULL); /* the product wraps to 8 */
    CHECK(ms_error_message()[0] != '\0');
    CHECK(ms__arena_array(&arena, SIZE_MAX, SIZE_MAX) == NULL);
    ms__arena_free(&arena);
}

TEST(strings_are_copied_and_terminated) {
    ms__arena arena = {0};
    char source[] = "unit.0.weight";
    char *copy = ms__arena_string(&arena, source, 6);
    source[0] = 'X';
    CHECK_EQ_STR(copy, "unit.0");
    CHECK_EQ_STR(ms__arena_string(&arena, NULL, 0), "");
    ms__arena_free(&arena);
}

TEST(an_arena_can_be_used_again) {
    ms__arena arena = {0};
    ms__arena_free(&arena);
    for (int i = 0; i < 3; i++) {
        unsigned char *memory = ms__arena_alloc(&arena, 10000);
        CHECK(memory != NULL && is_zero(memory, 10000));
        memset(memory, 0xFF, 10000);
        ms__arena_free(&arena);
        CHECK(arena.blocks == NULL);
    }
}

TEST(several_arrays) {
    ms__arena arena = {0};
    int64_t *numbers = NULL;
    char *bytes = NULL, *none = NULL;
    CHECK_STATUS(ms__arena_arrays(&arena, MS__ARRAY(numbers, 3), MS__ARRAY(bytes, 5), MS__ARRAY(none, 0)), MS_OK);
    CHECK(numbers != NULL && bytes != NULL && none != NULL);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(numbers[i], 0);
    for (int i = 0; i < 5; i++) CHECK_EQ_INT(bytes[i], 0);
    CHECK_STATUS(ms__arena_arrays(&arena, MS__ARRAY(bytes, 1), MS__ARRAY(numbers, SIZE_MAX / 2)), MS_E_NO_MEMORY);
    ms__arena_free(&arena);
}

SUITE(arena, CASE(several_arrays), CASE(every_size_is_aligned_and_zeroed), CASE(nothing_moves_when_it_grows),
      CASE(large_requests_get_their_block), CASE(an_exact_fit_does_not_spill), CASE(impossible_sizes_are_errors),
      CASE(arrays_check_their_product), CASE(strings_are_copied_and_terminated), CASE(an_arena_can_be_used_again));
