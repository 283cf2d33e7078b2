/* runner.c - the test runner of runner.h: fork, run, wait, report.
 *
 * The parent stays single-threaded and does nothing but fork and wait, so whatever a test does to its process (threads,
 * locale, logging sink, a crash) cannot affect another test.
 */
#define _POSIX_C_SOURCE 200809L
#include "runner.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAME_BYTES 256

void test_fail(const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    _Exit(EXIT_FAILURE); /* without a leak report about what the test still holds */
}

void test_skip(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    _Exit(TEST_SKIPPED);
}

const char *test_replace(const char *text, const char *old, const char *new, char *out, size_t n) {
    const char *at = strstr(text, old);
    CHECK(at != NULL);
    int n_written = snprintf(out, n, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    CHECK(n_written >= 0 && (size_t)n_written < n);
    return out;
}

void test_check_int(const char *file, int line, const char *a_text, int64_t a, const char *b_text, int64_t b) {
    if (a != b) test_fail(file, line, "%s is %" PRId64 ", %s is %" PRId64, a_text, a, b_text, b);
}

void test_check_u64(const char *file, int line, const char *a_text, uint64_t a, const char *b_text, uint64_t b) {
    if (a != b) test_fail(file, line, "%s is 0x%016" PRIX64 ", %s is 0x%016" PRIX64, a_text, a, b_text, b);
}

void test_check_str(const char *file, int line, const char *a_text, const char *a, const char *b_text, const char *b) {
    if (a == NULL || b == NULL || strcmp(a, b) != 0)
        test_fail(file, line, "%s is \"%s\", %s is \"%s\"", a_text, a == NULL ? "(NULL)" : a, b_text,
                  b == NULL ? "(NULL)" : b);
}

void test_check_status(const char *file, int line, const char *call, ms_status got, ms_status wanted) {
    if (got != wanted)
        test_fail(file, line, "%s gives %s, not %s; the error record says \"%s\"", call, ms_status_name(got),
                  ms_status_name(wanted), ms_error_message());
}

static const char *signal_name(int number) {
    static const struct {
        int number;
        const char *name;
    } known[] = {{SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
                 {SIGILL, "SIGILL"},   {SIGKILL, "SIGKILL"}, {SIGPIPE, "SIGPIPE"},
                 {SIGSEGV, "SIGSEGV"}, {SIGTERM, "SIGTERM"}, {SIGTRAP, "SIGTRAP"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].number == number) return known[i].name;
    return "another signal";
}

typedef enum outcome { PASSED, FAILED, SKIPPED, N_OUTCOMES } outcome;

static outcome report(const char *name, int state) {
    if (WIFSIGNALED(state) && WTERMSIG(state) == SIGALRM)
        printf("FAIL %s: timed out\n", name);
    else if (WIFSIGNALED(state))
        printf("FAIL %s: crashed with %s (%d)\n", name, signal_name(WTERMSIG(state)), WTERMSIG(state));
    else if (WEXITSTATUS(state) == TEST_SKIPPED)
        printf("skip %s\n", name);
    else if (WEXITSTATUS(state) != 0)
        printf("FAIL %s: exit code %d\n", name, WEXITSTATUS(state));
    else
        printf("pass %s\n", name);
    if (WIFEXITED(state) && WEXITSTATUS(state) == TEST_SKIPPED) return SKIPPED;
    return WIFEXITED(state) && WEXITSTATUS(state) == 0 ? PASSED : FAILED;
}

static outcome run_forked(const char *name, const test_case *test, unsigned timeout_s) {
    (void)fflush(NULL); /* or the child would print it again */
    pid_t child = fork();
    if (child == 0) {
        (void)alarm(timeout_s);
        test->run();
        exit(EXIT_SUCCESS);
    }
    int state = 0;
    if (child < 0 || waitpid(child, &state, 0) != child) {
        printf("FAIL %s: could not be started\n", name);
        return FAILED;
    }
    return report(name, state);
}

static bool wanted(const char *name, int n_filters, char **filters) {
    for (int i = 0; i < n_filters; i++)
        if (strstr(name, filters[i]) != NULL) return true;
    return n_filters == 0;
}

int test_main(const test_suite *const *suites, size_t n_suites, unsigned timeout_s, int argc, char **argv) {
    bool list = argc > 1 && strcmp(argv[1], "--list") == 0;
    int n_own_args = list ? 2 : 1, n[N_OUTCOMES] = {0};
    for (size_t s = 0; s < n_suites; s++) {
        for (size_t c = 0; c < suites[s]->n_cases; c++) {
            const test_case *test = &suites[s]->cases[c];
            char name[NAME_BYTES];
            (void)snprintf(name, sizeof name, "%s/%s", suites[s]->name, test->name);
            if (!wanted(name, argc - n_own_args, argv + n_own_args)) continue;
            if (list)
                printf("%s\n", name);
            else
                n[run_forked(name, test, timeout_s)]++;
        }
    }
    if (!list) printf("%d passed, %d failed, %d skipped\n", n[PASSED], n[FAILED], n[SKIPPED]);
    if (list || n[PASSED] + n[FAILED] + n[SKIPPED] == 0) return list ? EXIT_SUCCESS : EXIT_FAILURE;
    if (n[FAILED] > 0) return EXIT_FAILURE;
    return n[PASSED] == 0 ? TEST_SKIPPED : EXIT_SUCCESS;
}
