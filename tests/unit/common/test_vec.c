/* test_vec.c - growing arrays: growth, reserved room, impossible sizes.
 *
 * If growing fails, the array must stay as it was, with its items, its capacity and its length.
 */
#include "runner.h"

#include <string.h>

#include "common/vec.h"

TEST(items_stay_while_it_grows) {
    MS__VEC(int) numbers = {0};
    for (int i = 0; i < 10000; i++) CHECK(ms__vec_push(&numbers, i));
    CHECK_EQ_INT(numbers.n, 10000);
    CHECK(numbers.capacity >= numbers.n);
    for (int i = 0; i < 10000; i++) CHECK_EQ_INT(numbers.items[i], i);
    ms__vec_free(&numbers);
    CHECK(numbers.items == NULL && numbers.n == 0 && numbers.capacity == 0);
}

TEST(items_may_be_structures) {
    typedef struct pair {
        char letter;
        double number;
    } pair;
    MS__VEC(pair) pairs = {0};
    for (int i = 0; i < 100; i++) CHECK(ms__vec_push(&pairs, ((pair){(char)('a' + i % 26), i * 0.5})));
    CHECK(pairs.items[99].letter == 'v' && pairs.items[99].number == 49.5);
    ms__vec_free(&pairs);
}

TEST(growth_is_geometric) {
    MS__VEC(char) text = {0};
    size_t n_moves = 0, capacity = 0;
    for (int i = 0; i < 1 << 16; i++) {
        CHECK(ms__vec_push(&text, 'x'));
        n_moves += text.capacity != capacity;
        capacity = text.capacity;
    }
    CHECK(n_moves <= 16);
    ms__vec_free(&text);
}

TEST(reserve_makes_room_once) {
    MS__VEC(int64_t) numbers = {0};
    CHECK(ms__vec_reserve(&numbers, 1000));
    CHECK_EQ_INT(numbers.n, 0);
    CHECK(numbers.capacity >= 1000);
    int64_t *before = numbers.items;
    for (int i = 0; i < 1000; i++) CHECK(ms__vec_push(&numbers, i));
    CHECK(numbers.items == before);
    ms__vec_free(&numbers);
}

TEST(reserve_of_nothing_takes_nothing) {
    MS__VEC(int) numbers = {0};
    CHECK(ms__vec_reserve(&numbers, 0));
    CHECK(numbers.items == NULL && numbers.capacity == 0);
    ms__vec_free(&numbers);
}

TEST(impossible_sizes_leave_it_unchanged) {
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 3, SIZE_MAX / 2, SIZE_MAX / 8 + 1, SIZE_MAX / 16 + 1};
    MS__VEC(int64_t) numbers = {0};
    for (int i = 0; i < 3; i++) CHECK(ms__vec_push(&numbers, i));
    int64_t *items = numbers.items;
    size_t capacity = numbers.capacity;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ms_error_clear();
        CHECK(!ms__vec_reserve(&numbers, sizes[i]));
        CHECK(ms_error_message()[0] != '\0');
        CHECK(numbers.items == items && numbers.capacity == capacity && numbers.n == 3);
    }
    CHECK(ms__vec_push(&numbers, 3));
    CHECK_EQ_INT(numbers.items[3], 3);
    ms__vec_free(&numbers);
}

SUITE(vec, CASE(items_stay_while_it_grows), CASE(items_may_be_structures), CASE(growth_is_geometric),
      CASE(reserve_makes_room_once), CASE(reserve_of_nothing_takes_nothing), CASE(impossible_sizes_leave_it_unchanged));
