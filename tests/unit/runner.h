/* runner.h - the test runner: every test in a process of its own, with a time limit.
 *
 * A file of tests holds functions TEST(name) { ... } and ends in one SUITE(subject, CASE(name), ...); the main file of
 * an executable lists its suites and calls test_main. A check that fails ends its test; a test that cannot run here
 * says so with test_skip. A test that passes leaves with exit(), so that a leak checker which runs at exit sees each
 * test by itself.
 */
#ifndef TESTS_RUNNER_H
#define TESTS_RUNNER_H

#include <stddef.h>
#include <stdint.h>

#include <memscale/memscale.h>

typedef struct test_case {
    const char *name;
    void (*run)(void);
} test_case;

typedef struct test_suite {
    const char *name;
    const test_case *cases;
    size_t n_cases;
} test_suite;

#define TEST(name) static void name(void)
#define CASE(name) {#name, name}
#define SUITE(subject, ...)                                                                                            \
    static const test_case subject##_cases[] = {__VA_ARGS__};                                                          \
    const test_suite subject##_suite = {#subject, subject##_cases, sizeof subject##_cases / sizeof(test_case)}

#define TEST_SKIPPED 77 /* the exit code of a test that was skipped; ctest has SKIP_RETURN_CODE for it */

/* Run the tests whose "suite/name" contains one of the arguments, all without arguments; "--list" names them. A test
 * that takes longer than timeout_s seconds fails; 0: no limit. Returns the exit code of the program: TEST_SKIPPED if
 * every test was skipped, and a failure if no test has such a name. */
int test_main(const test_suite *const *suites, size_t n_suites, unsigned timeout_s, int argc, char **argv);

#define CHECK(condition) ((condition) ? (void)0 : test_fail(__FILE__, __LINE__, "%s is false", #condition))
#define CHECK_EQ_INT(a, b) test_check_int(__FILE__, __LINE__, #a, (int64_t)(a), #b, (int64_t)(b))
#define CHECK_EQ_U64(a, b) test_check_u64(__FILE__, __LINE__, #a, (a), #b, (b))
#define CHECK_EQ_STR(a, b) test_check_str(__FILE__, __LINE__, #a, (a), #b, (b))
#define CHECK_STATUS(call, status) test_check_status(__FILE__, __LINE__, #call, (call), (status))

/* Print a failure and end the test. */
_Noreturn void test_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Print why this test cannot run here and end it; it counts neither as passed nor as failed. */
_Noreturn void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* `text` with the first `old` replaced by `new`, in the `n` bytes at `out`. Fails if there is no `old`, or no room. */
const char *test_replace(const char *text, const char *old, const char *new, char *out, size_t n);

void test_check_int(const char *file, int line, const char *a_text, int64_t a, const char *b_text, int64_t b);
void test_check_u64(const char *file, int line, const char *a_text, uint64_t a, const char *b_text, uint64_t b);
void test_check_str(const char *file, int line, const char *a_text, const char *a, const char *b_text, const char *b);
void test_check_status(const char *file, int line, const char *call, ms_status got, ms_status wanted);

#endif
