/* test_status.c - status codes with their names and texts, and the error record of each thread.
 *
 * Codes are part of the ABI: they are checked against their numbers, not only against the list that defines them.
 */
#include "runner.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/status.h"
#include "error_info.h"

TEST(every_code_has_its_name_and_text) {
#define CHECK_CODE(name, code, text)                                                                                   \
    CHECK_EQ_INT(name, code);                                                                                          \
    CHECK_EQ_STR(ms_status_name(code), #name);                                                                         \
    CHECK_EQ_STR(ms_status_text(code), text);
    MS_ERROR_LIST(CHECK_CODE)
#undef CHECK_CODE
}

TEST(codes_are_the_published_ones) {
    CHECK_EQ_INT(MS_OK, 0);
    CHECK_EQ_INT(MS_E_INVALID, -1);
    CHECK_EQ_INT(MS_E_NO_MEMORY, -2);
    CHECK_EQ_INT(MS_E_PARSE, -3);
    CHECK_EQ_INT(MS_E_IO, -4);
    CHECK_EQ_INT(MS_E_LIMIT, -5);
    CHECK_EQ_INT(MS_E_BUDGET, -6);
    CHECK_EQ_INT(MS_E_MISMATCH, -7);
    CHECK_EQ_INT(MS_E_VERSION, -8);
    CHECK_EQ_INT(MS_E_CUDA, -9);
    CHECK_EQ_INT(MS_E_UNAVAILABLE, -10);
    CHECK_EQ_INT(MS_E_NOT_FOUND, -11);
}

TEST(unknown_codes_are_named_so) {
    const ms_status unknown[] = {1, -13, -1000, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        CHECK_EQ_STR(ms_status_name(unknown[i]), "MS_E_UNKNOWN");
        CHECK_EQ_STR(ms_status_text(unknown[i]), "unknown error");
    }
}

TEST(version_is_that_of_the_header) {
    char numbers[64];
    CHECK_EQ_STR(ms_version(), MS_VERSION_STRING);
    (void)snprintf(numbers, sizeof numbers, "%d.%d.%d", MS_VERSION_MAJOR, MS_VERSION_MINOR, MS_VERSION_PATCH);
    CHECK_EQ_STR(numbers, MS_VERSION_STRING);
}

TEST(version_is_a_number_that_grows) {
    CHECK_EQ_INT(ms_version_number(), MS_VERSION_NUMBER);
    CHECK_EQ_INT(MS_VERSION_NUMBER, MS_VERSION_MAJOR * 1000000 + MS_VERSION_MINOR * 1000 + MS_VERSION_PATCH);
}

TEST(record_starts_empty_and_is_cleared) {
    CHECK_EQ_STR(ms_error_message(), "");
    CHECK_EQ_INT(error_info().needed_bytes, 0);
    CHECK_EQ_INT(error_info().byte_offset, -1);
    CHECK_STATUS(ms__fail_value(MS_E_BUDGET, 42, "needs %d", 42), MS_E_BUDGET);
    CHECK_EQ_STR(ms_error_message(), "needs 42");
    CHECK_EQ_INT(error_info().needed_bytes, 42);
    ms_error_clear();
    CHECK_EQ_STR(ms_error_message(), "");
    CHECK_EQ_INT(error_info().needed_bytes, 0);
}

TEST(a_failure_without_a_number_resets_it) {
    (void)ms__fail_value(MS_E_BUDGET, 42, "first");
    CHECK_STATUS(ms__fail(MS_E_INVALID, "second"), MS_E_INVALID);
    CHECK_EQ_STR(ms_error_message(), "second");
    CHECK_EQ_INT(error_info().needed_bytes, 0);
}

TEST(a_long_message_is_cut) {
    char longer[5000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    (void)ms__fail(MS_E_INVALID, "%s", longer);
    size_t length = strlen(ms_error_message());
    CHECK(length >= 255 && length < sizeof longer - 1);
    CHECK(strncmp(ms_error_message(), longer, length) == 0);
}

TEST(out_of_memory_tells_the_size) {
    CHECK_STATUS(ms__fail_memory(12345), MS_E_NO_MEMORY);
    CHECK(strstr(ms_error_message(), "12345") != NULL);
    CHECK_EQ_INT(error_info().needed_bytes, 0);
}

TEST(numbers_have_their_names) {
    (void)ms__fail_value(MS_E_BUDGET, 42, "too small");
    CHECK_EQ_INT(error_info().needed_bytes, 42);
    CHECK_EQ_INT(error_info().byte_offset, -1);
    (void)ms__fail_value(MS_E_PARSE, 7, "no JSON");
    CHECK_EQ_INT(error_info().needed_bytes, 0);
    CHECK_EQ_INT(error_info().byte_offset, 7);
    (void)ms__fail(MS_E_PARSE, "a key is missing");
    CHECK_EQ_INT(error_info().byte_offset, -1);
    (void)ms__fail(MS_E_BUDGET, "nothing is known");
    CHECK_EQ_INT(error_info().needed_bytes, 0);
    CHECK_EQ_STR(ms_error_message(), "nothing is known"); /* reading it changes nothing */
}

TEST(info_needs_a_structure) {
    ms_error_info info = {.struct_bytes = 8};
    CHECK_STATUS(ms_error_get_info(NULL), MS_E_INVALID);
    CHECK_STATUS(ms_error_get_info(&info), MS_E_INVALID);
}

TEST(free_takes_null) { ms_free(NULL); }

static void *fail_elsewhere(void *unused) {
    CHECK_EQ_STR(ms_error_message(), "");
    CHECK_STATUS(ms_plan_create(NULL, NULL), MS_E_INVALID);
    CHECK(ms_error_message()[0] != '\0');
    ms_error_clear();
    (void)ms__fail_value(MS_E_PARSE, 7, "elsewhere");
    return unused;
}

TEST(records_belong_to_their_threads) {
    pthread_t thread;
    (void)ms__fail_value(MS_E_BUDGET, 42, "here");
    CHECK(pthread_create(&thread, NULL, fail_elsewhere, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_EQ_STR(ms_error_message(), "here");
    CHECK_EQ_INT(error_info().needed_bytes, 42);
}

SUITE(status, CASE(every_code_has_its_name_and_text), CASE(codes_are_the_published_ones),
      CASE(unknown_codes_are_named_so), CASE(version_is_that_of_the_header), CASE(version_is_a_number_that_grows),
      CASE(record_starts_empty_and_is_cleared), CASE(a_failure_without_a_number_resets_it), CASE(a_long_message_is_cut),
      CASE(out_of_memory_tells_the_size), CASE(numbers_have_their_names), CASE(info_needs_a_structure),
      CASE(free_takes_null), CASE(records_belong_to_their_threads));
