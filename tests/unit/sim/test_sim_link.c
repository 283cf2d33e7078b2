/* test_sim_link.c - the link between device and host: slots, backlogs and waits, by hand. */
#include "sim/sim_link.h"

#include "runner.h"
#include "sim/roofline.h"

static ms_rates link_rates(int64_t to_device, int64_t from_device, int64_t both) {
    return (ms_rates){.struct_bytes = sizeof(ms_rates),
                      .fp32_gflops = 10,
                      .memory_mb_per_s = 1000,
                      .to_device_mb_per_s = to_device,
                      .from_device_mb_per_s = from_device,
                      .both_mb_per_s = both,
                      .launch_ns = 100,
                      .dispatch_ns = 1000};
}

static void check_link(const ms_rates *rates, int64_t max_copy, int64_t slot_ns, int64_t slot_bytes) {
    ms__link link = ms__link_make(rates, max_copy);
    CHECK_EQ_INT(link.slot_ns, slot_ns);
    CHECK_EQ_INT(link.slot_bytes, slot_bytes);
    CHECK_EQ_INT(link.max_slots, slot_ns > 0 ? 12 : 0);
}

/* The slower direction, or half of both at once: 700 bytes in a microsecond. 42000 bytes take 60, in six slots of
 * 11. */
TEST(slots_of_a_link) {
    ms_rates rates = link_rates(1000, 800, 1400), apart = link_rates(900, 1000, 0), wide = link_rates(10, 1000, 2000);
    check_link(&rates, 42000, 11000, 7700);
    check_link(&rates, 1, 1000, 700);
    check_link(&apart, 5400, 2000, 1800);
    check_link(&wide, 600, 11000, 110);
    ms_rates none[] = {link_rates(0, 0, 0), link_rates(0, 1000, 1000), link_rates(1000, 0, 0), link_rates(9, 9, 1)};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) check_link(&none[i], 42000, 0, 0);
    check_link(&rates, 0, 0, 0);
}

TEST(copies_in_slots) {
    ms_rates rates = link_rates(1000, 800, 1400);
    ms__link link = ms__link_make(&rates, 42000), none = {0};
    static const int64_t bytes[][2] = {{0, 0}, {1, 1}, {7700, 1}, {7701, 2}, {42000, 6}};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        CHECK_EQ_INT(ms__link_copy_slots(&link, bytes[i][0]), bytes[i][1]);
    static const int64_t times[][2] = {{0, 0}, {10999, 0}, {11000, 1}, {131999, 11}, {132000, 12}, {MS__MAX_NS, 12}};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        CHECK_EQ_INT(ms__link_hide_slots(&link, times[i][0]), times[i][1]);
    CHECK_EQ_INT(ms__link_drag_ns(&link, 42000), 60000 / 24);
    CHECK_EQ_INT(ms__link_drag_ns(&link, 0), 0);
    CHECK_EQ_INT(ms__link_copy_slots(&none, 42000), 0);
    CHECK_EQ_INT(ms__link_hide_slots(&none, 42000), 0);
    CHECK_EQ_INT(ms__link_drag_ns(&none, 42000), 0);
}

TEST(backlogs) {
    static const struct {
        int32_t before, hide, copy;
        bool waits;
        int32_t backlog, waited;
        bool is_over;
    } table[] = {{0, 0, 0, false, 0, 0, false},  {0, 0, 0, true, 0, 0, false},    {5, 3, 4, false, 6, 0, false},
                 {2, 3, 4, false, 4, 0, false},  {12, 0, 0, false, 12, 0, false}, {12, 0, 1, false, 0, 13, true},
                 {12, 0, 1, true, 0, 13, false}, {12, 12, 6, false, 6, 0, false}, {5, 3, 4, true, 0, 6, false},
                 {5, 5, 0, true, 0, 0, false},   {6, 0, 6, false, 12, 0, false}};
    const ms__link link = {.slot_ns = 11000, .slot_bytes = 7700, .max_slots = 12};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        ms__link_step s = ms__link_advance(&link, table[i].before, table[i].hide, table[i].copy, table[i].waits);
        CHECK_EQ_INT(s.backlog, table[i].backlog);
        CHECK_EQ_INT(s.waited, table[i].waited);
        CHECK_EQ_INT(s.is_over, table[i].is_over);
    }
    CHECK_EQ_INT(ms__link_wait_ns(&link, 13), 2 * 13 * 11000); /* out, and back */
    CHECK_EQ_INT(ms__link_wait_ns(&link, 0), 0);
}

/* The largest copy over the slowest link: times saturate, they do not overflow. */
TEST(copies_that_take_forever) {
    ms_rates rates = link_rates(1, 1, 0);
    ms__link link = ms__link_make(&rates, MS__MAX_NS);
    int32_t copy = ms__link_copy_slots(&link, MS__MAX_NS);
    CHECK(copy > 0 && link.slot_ns > 0 && link.slot_ns <= MS__MAX_NS / 64);
    ms__link_step step = ms__link_advance(&link, 12, 0, copy, true);
    CHECK_EQ_INT(step.backlog, 0);
    CHECK(ms__link_wait_ns(&link, step.waited) > 0 && ms__link_wait_ns(&link, step.waited) <= MS__MAX_NS);
    CHECK(ms__link_drag_ns(&link, MS__MAX_NS) >= 0);
}

SUITE(sim_link, CASE(slots_of_a_link), CASE(copies_in_slots), CASE(backlogs), CASE(copies_that_take_forever));
