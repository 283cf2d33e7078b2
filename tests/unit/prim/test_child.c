/* test_child.c - throw-away copies of the process: what they answer, how they end, and what they cannot do.
 *
 * ThreadSanitizer knows nothing of a process that is made by the system call itself, so it runs none of these.
 */
#define _GNU_SOURCE
#include "runner.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tree.h"

#ifdef __has_feature /* clang */
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__
#endif
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__
#endif
#endif

#ifndef __SANITIZE_THREAD__

#define SECOND ((int64_t)1000000000)

static char root[TREE_ROOT_BYTES];
static int shared_file; /* what a child finds in its memory */

static ms_child_options options_of(int64_t quiet_ns, int64_t limit_ns) {
    return (ms_child_options){.struct_bytes = sizeof(ms_child_options), .quiet_ns = quiet_ns, .limit_ns = limit_ns};
}

/* Run a function in a child. What it leaves in `text` is the answer; the status is that of the parent's wait. */
static ms_status ask(const ms_child_options *options, void (*work)(char text[256]), char text[256]) {
    ms_child *child = NULL;
    int64_t is_child = -1;
    CHECK_STATUS(ms_child_create(options, &child, &is_child), MS_OK);
    if (is_child) {
        if (ms_child_report(child) != MS_OK) _exit(9);
        work(text);
        ms_child_finish(child, text, strlen(text) + 1);
    }
    ms_child_answer answer = {.struct_bytes = sizeof answer};
    ms_status status;
    do status = ms_child_receive(child, SECOND / 20, &answer);
    while (status == MS_OK && !answer.is_complete);
    if (status == MS_OK) {
        CHECK(answer.n_bytes <= 256);
        memcpy(text, answer.bytes, answer.n_bytes);
    }
    ms_child_destroy(child);
    return status;
}

static void say_hello(char text[256]) { (void)strcpy(text, "hello"); }

TEST(a_child_answers_and_its_parent_stays_as_it_is) {
    char text[256] = "before";
    ms_child_options options = options_of(SECOND, 10 * SECOND);
    CHECK_STATUS(ask(&options, say_hello, text), MS_OK);
    CHECK(strcmp(text, "hello") == 0);
    errno = 0;
    CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD); /* it was never visible */
}

static void crash(char text[256]) {
    (void)text;
    (void)raise(SIGSEGV);
}

static void leave(char text[256]) {
    (void)text;
    _exit(7);
}

static void sleep_long(char text[256]) {
    (void)text;
    for (;;) (void)pause();
}

static void spin(char text[256]) {
    (void)text;
    for (volatile unsigned i = 0;; i++) continue;
}

TEST(a_child_that_ends_early_or_never_is_an_error) {
    char text[256] = "";
    ms_child_options options = options_of(SECOND / 2, SECOND);
    CHECK_STATUS(ask(&options, crash, text), MS_E_IO);
    CHECK(strstr(ms_error_message(), "signal 11") != NULL);
    CHECK_STATUS(ask(&options, leave, text), MS_E_IO);
    CHECK(strstr(ms_error_message(), "status 7") != NULL);
    CHECK_STATUS(ask(&options, sleep_long, text), MS_E_LIMIT);
    CHECK_STATUS(ask(&options, spin, text), MS_E_LIMIT);
}

/* What each of these calls says in a child. */
static void try_everything(char text[256]) {
    char path[TREE_ROOT_BYTES + 16];
    (void)snprintf(path, sizeof path, "%s/new", root);
    int made = open(path, O_CREAT | O_WRONLY, 0600) < 0 ? errno : 0;
    (void)snprintf(path, sizeof path, "%s/old", root);
    int cut = open(path, O_TRUNC | O_WRONLY) < 0 ? errno : 0;
    int removed = unlink(path) < 0 ? errno : 0;
    int file = open(path, O_WRONLY);
    int written = file < 0 || write(file, "x", 1) < 0 ? errno : 0;
    int called = socket(AF_INET, SOCK_STREAM, 0) < 0 ? errno : 0;
    int killed = kill(getppid(), 0) < 0 ? errno : 0;
    pid_t other = fork();
    int forked = other < 0 ? errno : 0;
    if (other == 0) _exit(0);
    int old_file = write(shared_file, "x", 1) < 0 ? errno : 0;
    (void)snprintf(text, 256, "%d %d %d %d %d %d %d %d", made, cut, removed, written, called, killed, forked, old_file);
}

TEST(a_child_changes_nothing_outside) {
    char text[256] = "", expected[256], path[TREE_ROOT_BYTES + 16];
    tree_make(root);
    tree_write(root, "/old", "abc", 3);
    (void)snprintf(path, sizeof path, "%s/old", root);
    int file = open(path, O_WRONLY);
    shared_file = fcntl(file, F_DUPFD, 10); /* a number that the child does not use for its pipe */
    CHECK(file >= 0 && shared_file >= 10 && close(file) == 0);
    ms_child_options options = options_of(2 * SECOND, 10 * SECOND);
    CHECK_STATUS(ask(&options, try_everything, text), MS_OK);
    (void)snprintf(expected, sizeof expected, "%d %d %d %d %d %d %d %d", EACCES, EACCES, EACCES, EFBIG, EACCES, EACCES,
                   EACCES, EBADF);
    if (strcmp(text, expected) != 0) (void)fprintf(stderr, "got %s, expected %s\n", text, expected);
    CHECK(strcmp(text, expected) == 0);
    struct stat found;
    CHECK(stat(path, &found) == 0 && found.st_size == 3);
    (void)close(shared_file);
    tree_remove(root);
}

#ifndef __SANITIZE_ADDRESS__ /* which ends the process where malloc would return NULL */
static void fill_memory(char text[256]) {
    size_t n = 0;
    while (n < 64) {
        char *volatile block = malloc((size_t)64 << 20); /* so that the compiler does not leave it out */
        if (block == NULL) break;
        memset(block, 1, (size_t)64 << 20);
        n++;
    }
    (void)snprintf(text, 256, "%zu", n);
}

TEST(a_child_runs_out_of_memory_alone) {
    char text[256] = "";
    ms_child_options options = options_of(2 * SECOND, 30 * SECOND);
    options.memory_bytes = (int64_t)512 << 20;
    CHECK_STATUS(ask(&options, fill_memory, text), MS_OK);
    CHECK(atoi(text) < 9);
}
#endif

static void say_much(char text[256]) {
    (void)printf("this is printed nowhere\n");
    (void)fprintf(stderr, "nor this\n");
    (void)fflush(NULL);
    (void)strcpy(text, "said");
}

TEST(a_child_prints_nothing) {
    int ends[2];
    char text[256] = "";
    CHECK(pipe(ends) == 0);
    int before = dup(1);
    CHECK(fflush(stdout) == 0 && dup2(ends[1], 1) == 1);
    ms_child_options options = options_of(2 * SECOND, 10 * SECOND);
    ms_status status = ask(&options, say_much, text);
    CHECK(dup2(before, 1) == 1);
    (void)close(ends[1]);
    CHECK_STATUS(status, MS_OK);
    CHECK(read(ends[0], text, sizeof text) == 0);
    (void)close(ends[0]);
    (void)close(before);
}

TEST(interrupts_are_for_the_parent) {
    ms_child *child = NULL;
    int64_t is_child = 0;
    ms_child_options options = options_of(2 * SECOND, 10 * SECOND);
    CHECK_STATUS(ms_child_create(&options, &child, &is_child), MS_OK);
    if (is_child) {
        (void)raise(SIGINT);
        ms_child_finish(child, "alive", 6);
    }
    ms_child_answer answer = {.struct_bytes = sizeof answer};
    CHECK_STATUS(ms_child_receive(child, 5 * SECOND, &answer), MS_OK);
    CHECK(answer.is_complete == 1 && strcmp(answer.bytes, "alive") == 0);
    CHECK_STATUS(ms_child_report(child), MS_E_INVALID); /* for the child */
    ms_child_destroy(child);
}

TEST(options_are_checked) {
    ms_child *child = NULL;
    int64_t is_child = 0;
    ms_child_options options = options_of(0, SECOND);
    CHECK_STATUS(ms_child_create(&options, &child, &is_child), MS_E_INVALID);
    options = options_of(SECOND, -1);
    CHECK_STATUS(ms_child_create(&options, &child, &is_child), MS_E_INVALID);
    options = options_of(SECOND, SECOND);
    CHECK_STATUS(ms_child_create(&options, NULL, &is_child), MS_E_INVALID);
    CHECK_STATUS(ms_child_create(NULL, &child, &is_child), MS_E_INVALID);
    CHECK(setenv("MEMSCALE_NO_FORK", "1", 1) == 0);
    CHECK_STATUS(ms_child_create(&options, &child, &is_child), MS_E_UNAVAILABLE);
    CHECK(setenv("MEMSCALE_NO_FORK", "0", 1) == 0);
    CHECK_STATUS(ms_child_create(&options, &child, &is_child), MS_OK);
    if (is_child) ms_child_finish(child, "", 0);
    ms_child_destroy(child);
    ms_child_destroy(NULL);
    CHECK(unsetenv("MEMSCALE_NO_FORK") == 0);
}

static volatile int stop_threads;

static void *allocate(void *unused) {
    (void)unused;
    while (!stop_threads) {
        char *volatile block = malloc(4096);
        free(block);
    }
    return NULL;
}

/* A child of a process whose threads are inside of malloc at any time may hang before it reports. It is found out, and
 * another one is made: callers try up to four times. */
TEST(threads_that_allocate_cost_a_try_at_most) {
    pthread_t threads[8];
    char text[256] = "";
    ms_child_options options = options_of(SECOND, 10 * SECOND);
    for (int i = 0; i < 8; i++) CHECK(pthread_create(&threads[i], NULL, allocate, NULL) == 0);
    for (int i = 0; i < 10; i++) {
        ms_status status = MS_E_UNAVAILABLE;
        for (int tries = 0; tries < 4 && status == MS_E_UNAVAILABLE; tries++) status = ask(&options, say_hello, text);
        CHECK_STATUS(status, MS_OK);
    }
    stop_threads = 1;
    for (int i = 0; i < 8; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

#ifdef __SANITIZE_ADDRESS__
#define MEMORY_CASE
#else
#define MEMORY_CASE CASE(a_child_runs_out_of_memory_alone),
#endif

SUITE(child, CASE(a_child_answers_and_its_parent_stays_as_it_is), CASE(a_child_that_ends_early_or_never_is_an_error),
      CASE(a_child_changes_nothing_outside), MEMORY_CASE CASE(a_child_prints_nothing),
      CASE(interrupts_are_for_the_parent), CASE(options_are_checked), CASE(threads_that_allocate_cost_a_try_at_most));

#else

TEST(nothing_under_this_sanitizer) { test_skip("ThreadSanitizer does not survive a copy of the process"); }

SUITE(child, CASE(nothing_under_this_sanitizer));

#endif
