/* test_order.c - the order of units, the prefixes of segments, and the tail: all by hand. */
#include "sim/order.h"

#include "steps.h"

#define MAX_SEGMENTS 12

typedef struct walk {
    int32_t unit;
    uint32_t phase;
    int32_t prefix; /* wanted */
} walk;

static void check_order(const walk *walks, uint32_t n, uint32_t n_units, const int32_t *units, int32_t n_chain) {
    ms__arena arena = {0};
    ms__segment segments[MAX_SEGMENTS];
    ms__order order;
    CHECK(n <= MAX_SEGMENTS);
    for (uint32_t i = 0; i < n; i++) segments[i] = (ms__segment){.unit = walks[i].unit, .phase = walks[i].phase};
    ms__step step = {.segments = segments, .n_segments = n, .n_units = n_units};
    CHECK_STATUS(ms__order_make(&arena, &step, &order), MS_OK);
    CHECK_EQ_INT(order.n, n_chain);
    for (int32_t i = 0; i < n_chain; i++) {
        CHECK_EQ_INT(order.units[i], units[i]);
        CHECK_EQ_INT(order.position[units[i]], i);
    }
    int32_t n_positions = 0;
    for (uint32_t u = 0; u < n_units; u++) n_positions += order.position[u] != MS__NO_CHAIN;
    CHECK_EQ_INT(n_positions, n_chain);
    for (uint32_t i = 0; i < n; i++) CHECK_EQ_INT(order.prefix[i], walks[i].prefix);
    ms__arena_free(&arena);
}

enum { NONE = -1, STATE = MS_PHASE_SETUP, FORWARD = MS_PHASE_FORWARD, LOSS = MS_PHASE_LOSS };
enum { BACKWARD = MS_PHASE_BACKWARD, FIRST = MS_PHASE_OPTIMIZER_FIRST, STEP = MS_PHASE_OPTIMIZER };

TEST(units_one_after_the_other) {
    static const walk walks[] = {{NONE, STATE, 0},    {0, FORWARD, 0},  {NONE, FORWARD, 1},  {1, FORWARD, 1},
                                 {2, FORWARD, 2},     {NONE, LOSS, 3},  {NONE, BACKWARD, 3}, {2, BACKWARD, 2},
                                 {NONE, BACKWARD, 2}, {1, BACKWARD, 1}, {0, BACKWARD, 0},    {NONE, STEP, 0}};
    check_order(walks, 12, 3, (const int32_t[]){0, 1, 2}, 3);
}

/* The chain has the order in which units run, not that of their numbers. Units without a forward are not in it. */
TEST(units_in_another_order) {
    static const walk walks[] = {{3, FORWARD, 0},  {0, FORWARD, 1},  {2, LOSS, 2},     {2, BACKWARD, 2},
                                 {1, BACKWARD, 2}, {0, BACKWARD, 1}, {3, BACKWARD, 0}, {NONE, FIRST, 0}};
    check_order(walks, 8, 4, (const int32_t[]){3, 0, 2}, 3);
}

/* The second forward is after all units that ran; from the first backward on, no unit is sure to hold. */
TEST(a_unit_that_is_called_twice) {
    static const walk walks[] = {{0, FORWARD, 0},     {1, FORWARD, 1},  {0, FORWARD, 2},  {NONE, LOSS, 2},
                                 {NONE, BACKWARD, 2}, {0, BACKWARD, 0}, {1, BACKWARD, 0}, {0, BACKWARD, 0}};
    check_order(walks, 8, 2, (const int32_t[]){0, 1}, 2);
}

TEST(no_units_and_no_step) {
    static const walk walks[] = {{NONE, FORWARD, 0}, {NONE, LOSS, 0}, {NONE, BACKWARD, 0}};
    check_order(walks, 3, 0, NULL, 0);
    check_order(walks, 0, 0, NULL, 0);
    check_order(walks, 3, 2, NULL, 0);
}

/* From the last unit's forward to its backward, whatever runs in between. */
TEST(the_tail) {
    static const ms__segment segments[] = {{.unit = NONE, .phase = STATE},    {.unit = 0, .phase = FORWARD},
                                           {.unit = 1, .phase = FORWARD},     {.unit = NONE, .phase = LOSS},
                                           {.unit = NONE, .phase = BACKWARD}, {.unit = 1, .phase = BACKWARD},
                                           {.unit = 0, .phase = BACKWARD},    {.unit = NONE, .phase = STEP}};
    static const bool in_tail[] = {false, false, true, true, true, true, false, false};
    ms__step step = {.segments = (ms__segment *)segments, .n_segments = 8, .n_units = 2};
    ms__arena arena = {0};
    ms__order order;
    CHECK_STATUS(ms__order_make(&arena, &step, &order), MS_OK);
    CHECK_EQ_INT(order.tail_begins, 2);
    ms_simulation_segment played[8] = {{0}};
    ms__unit_times times[2] = {{0}};
    for (int i = 0; i < 8; i++) {
        CHECK_EQ_INT(order.in_tail[i], in_tail[i]);
        played[i] = (ms_simulation_segment){
            .unit = segments[i].unit, .phase = (int32_t)segments[i].phase, .duration_ns = (int64_t)1 << i};
    }
    CHECK_EQ_INT(ms__order_tail_ns(&order, played, 8), 4 + 8);
    ms__order_times(&order, played, 8, times);
    CHECK_EQ_INT(times[0].forward_ns, 2);
    CHECK_EQ_INT(times[0].backward_ns, 64);
    CHECK_EQ_INT(times[1].forward_ns, 4);
    CHECK_EQ_INT(times[1].backward_ns, 32);
    step.n_units = 0;
    ms__segment outside[] = {{.unit = NONE, .phase = FORWARD}, {.unit = NONE, .phase = BACKWARD}};
    step.segments = outside;
    step.n_segments = 2;
    CHECK_STATUS(ms__order_make(&arena, &step, &order), MS_OK);
    CHECK(!order.in_tail[0] && !order.in_tail[1] && order.tail_begins == 2);
    CHECK_EQ_INT(ms__order_tail_ns(&order, played, 2), 0);
    ms__arena_free(&arena);
}

SUITE(order, CASE(units_one_after_the_other), CASE(units_in_another_order), CASE(a_unit_that_is_called_twice),
      CASE(no_units_and_no_step), CASE(the_tail));
