/* test_text.c - sizes and times as people read them. */
#include "common/text.h"

#include <string.h>

#include "runner.h"

TEST(sizes) {
    static const struct {
        int64_t bytes;
        const char *text;
    } table[] = {{0, "0 B"},
                 {1, "1 B"},
                 {-1, "-1 B"},
                 {12, "12 B"},
                 {999, "999 B"},
                 {1000, "1.00 kB"},
                 {1004, "1.00 kB"},
                 {1005, "1.01 kB"},
                 {9995, "10.0 kB"},
                 {536870912, "537 MB"},
                 {999499999, "999 MB"},
                 {999500000, "1.00 GB"},
                 {10639999999, "10.6 GB"},
                 {-10639999999, "-10.6 GB"},
                 {1234567890123, "1.23 TB"},
                 {INT64_MAX, "9.22 EB"},
                 {INT64_MIN, "-9.22 EB"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char out[32];
        CHECK_STATUS(ms_format_bytes(table[i].bytes, out, sizeof out), MS_OK);
        CHECK_EQ_STR(out, table[i].text);
    }
}

TEST(times) {
    static const struct {
        int64_t ns;
        const char *text;
    } table[] = {{0, "0 ns"},
                 {999, "999 ns"},
                 {1100, "1.10 us"},
                 {-1100, "-1.10 us"},
                 {7700000, "7.70 ms"},
                 {999999999, "1.00 s"},
                 {123456789012, "123 s"},
                 {7200000000000, "7200 s"},
                 {INT64_MAX, "9220000000 s"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char out[32];
        CHECK_STATUS(ms_format_ns(table[i].ns, out, sizeof out), MS_OK);
        CHECK_EQ_STR(out, table[i].text);
    }
}

/* As many digits as tell two numbers apart, and no more. */
TEST(digits_that_tell_apart) {
    CHECK_EQ_INT(ms__size_digits(7170000000, 6390000000), 3);
    CHECK_EQ_INT(ms__size_digits(7170000000, 7170000000), 3);
    CHECK_EQ_INT(ms__size_digits(7170000000, 7171000000), 4);
    CHECK_EQ_STR(ms__size_text(7171000000, 4).text, "7.171 GB");
    CHECK_EQ_INT(ms__size_digits(INT64_MAX, INT64_MAX - 1), 19);
    CHECK_EQ_STR(ms__size_text(INT64_MIN, 19).text, "-9.223372036854775808 EB");
    CHECK_EQ_INT(ms__time_digits(7700, 7701), 4);
    CHECK_EQ_STR(ms__time_text(7701, 4).text, "7.701 us");
}

TEST(signs) {
    CHECK_EQ_STR(ms__signed_text(ms__size_text(4096, 3)).text, "+4.10 kB");
    CHECK_EQ_STR(ms__signed_text(ms__size_text(-4096, 3)).text, "-4.10 kB");
    CHECK_EQ_STR(ms__signed_text(ms__size_text(INT64_MAX, 19)).text, "+9.223372036854775807 EB");
}

TEST(no_room) {
    char out[8] = "before";
    CHECK_STATUS(ms_format_bytes(1000, out, 7), MS_E_INVALID);
    CHECK_EQ_STR(out, "before");
    CHECK_STATUS(ms_format_bytes(1000, out, 8), MS_OK);
    CHECK_EQ_STR(out, "1.00 kB");
    CHECK_STATUS(ms_format_bytes(1000, NULL, 8), MS_E_INVALID);
    CHECK_STATUS(ms_format_ns(1000, NULL, 8), MS_E_INVALID);
}

static void check_place(int32_t phase, const char *layer, const char *wanted) {
    char out[160];
    CHECK_STATUS(ms_format_place(phase, layer, out, sizeof out), MS_OK);
    CHECK_EQ_STR(out, wanted);
}

TEST(places) {
    check_place(MS_PHASE_BACKWARD, "lm_head", "in backward of lm_head");
    check_place(MS_PHASE_FORWARD, NULL, "in forward, between layers");
    check_place(MS_PHASE_LOSS, NULL, "in the loss");
    check_place(MS_PHASE_OPTIMIZER, NULL, "in the optimizer step");
    check_place(MS_PHASE_OPTIMIZER_FIRST, NULL, "in the first optimizer step");
    check_place(MS_PHASE_SETUP, NULL, "between steps");
    check_place(MS_PHASE_END, NULL, "between steps");
    char name[301], out[160], small[8];
    memset(name, 'x', sizeof name);
    name[95] = (char)0xC3; /* a character of two bytes where the name is cut */
    name[96] = (char)0xA9;
    name[sizeof name - 1] = '\0';
    CHECK_STATUS(ms_format_place(MS_PHASE_FORWARD, name, out, sizeof out), MS_OK);
    CHECK_EQ_INT(strlen(out), strlen("in forward of ") + 95);
    CHECK_STATUS(ms_format_place(MS_PHASE_FORWARD, "h", small, sizeof small), MS_E_INVALID);
    CHECK_STATUS(ms_format_place(MS_PHASE_FORWARD, "h", NULL, 160), MS_E_INVALID);
    CHECK_STATUS(ms_format_place(-1, NULL, out, sizeof out), MS_E_INVALID);
    CHECK_STATUS(ms_format_place(MS_N_PHASES, NULL, out, sizeof out), MS_E_INVALID);
}

SUITE(text, CASE(places), CASE(sizes), CASE(times), CASE(digits_that_tell_apart), CASE(signs), CASE(no_room));
