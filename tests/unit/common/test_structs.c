/* test_structs.c - copies of structures between programs and libraries of different versions.
 *
 * The structure here has had three versions: its first had two fields, ours has three, a later one has four.
 */
#include "runner.h"

#include <string.h>

#include "common/structs.h"

typedef struct first {
    uint64_t struct_bytes;
    int64_t a;
} first;

typedef struct ours {
    uint64_t struct_bytes;
    int64_t a;
    int64_t b;
} ours;

typedef struct later {
    uint64_t struct_bytes;
    int64_t a;
    int64_t b;
    int64_t c[2];
} later;

static const ms__struct kind = {"ms_x", sizeof(ours), sizeof(first)};

TEST(the_same_version) {
    ours theirs = {sizeof theirs, 1, 2}, copy;
    CHECK_STATUS(ms__struct_read(kind, &theirs, &copy), MS_OK);
    CHECK(copy.struct_bytes == sizeof copy && copy.a == 1 && copy.b == 2);
    copy = (ours){0, 3, 4};
    CHECK_STATUS(ms__struct_write(kind, &copy, &theirs), MS_OK);
    CHECK(theirs.struct_bytes == sizeof theirs && theirs.a == 3 && theirs.b == 4);
}

TEST(an_older_caller) {
    struct {
        first theirs;
        int64_t after;
    } memory = {{sizeof(first), 1}, 77};
    ours copy = {0, 5, 6};
    CHECK_STATUS(ms__struct_read(kind, &memory.theirs, &copy), MS_OK);
    CHECK(copy.struct_bytes == sizeof copy && copy.a == 1 && copy.b == 0);
    copy = (ours){0, 3, 4};
    CHECK_STATUS(ms__struct_write(kind, &copy, &memory.theirs), MS_OK);
    CHECK(memory.theirs.struct_bytes == sizeof(first) && memory.theirs.a == 3 && memory.after == 77);
}

TEST(a_newer_caller) {
    later theirs = {sizeof theirs, 1, 2, {0, 0}};
    ours copy;
    CHECK_STATUS(ms__struct_read(kind, &theirs, &copy), MS_OK);
    CHECK(copy.struct_bytes == sizeof copy && copy.a == 1 && copy.b == 2);
    theirs.c[0] = theirs.c[1] = 9;
    copy = (ours){0, 3, 4};
    CHECK_STATUS(ms__struct_write(kind, &copy, &theirs), MS_OK);
    CHECK(theirs.struct_bytes == sizeof theirs && theirs.a == 3 && theirs.b == 4);
    CHECK(theirs.c[0] == 0 && theirs.c[1] == 0);
}

TEST(what_a_newer_caller_sets_is_not_ignored) {
    ours copy = {0, 5, 6};
    for (size_t i = sizeof(ours); i < sizeof(later); i++) {
        later theirs = {sizeof theirs, 1, 2, {0, 0}};
        ((unsigned char *)&theirs)[i] = 1;
        CHECK_STATUS(ms__struct_read(kind, &theirs, &copy), MS_E_VERSION);
        CHECK(strstr(ms_error_message(), "ms_x") != NULL);
        CHECK(copy.a == 5 && copy.b == 6);
    }
}

TEST(sizes_that_are_none) {
    static const uint64_t sizes[] = {0,         1, 8, sizeof(first) - 1, (1 << 16) + 1, UINT64_C(0xA5A5A5A5A5A5A5A5),
                                     UINT64_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ours theirs = {sizes[i], 1, 2}, copy = {0, 5, 6};
        CHECK_STATUS(ms__struct_check(kind, &theirs), MS_E_INVALID);
        CHECK_STATUS(ms__struct_read(kind, &theirs, &copy), MS_E_INVALID);
        CHECK_STATUS(ms__struct_write(kind, &copy, &theirs), MS_E_INVALID);
        CHECK(strstr(ms_error_message(), "sizeof(ms_x)") != NULL);
        CHECK(theirs.a == 1 && theirs.b == 2 && copy.a == 5 && copy.b == 6);
    }
}

TEST(null) {
    ours copy = {0};
    CHECK_STATUS(ms__struct_check(kind, NULL), MS_E_INVALID);
    CHECK_STATUS(ms__struct_read(kind, NULL, &copy), MS_E_INVALID);
    CHECK_STATUS(ms__struct_write(kind, &copy, NULL), MS_E_INVALID);
    CHECK(strstr(ms_error_message(), "ms_x is NULL") != NULL);
}

/* A field that is added later might lie in padding, where an older caller has arbitrary bytes. */
TEST(no_structure_ends_in_padding) {
#define CHECK_END(type, last) CHECK(MS__FIRST_##type % 8 == 0 && sizeof(type) >= MS__FIRST_##type);
    MS__STRUCT_LIST(CHECK_END)
#undef CHECK_END
}

SUITE(structs, CASE(the_same_version), CASE(an_older_caller), CASE(a_newer_caller),
      CASE(what_a_newer_caller_sets_is_not_ignored), CASE(sizes_that_are_none), CASE(null),
      CASE(no_structure_ends_in_padding));
