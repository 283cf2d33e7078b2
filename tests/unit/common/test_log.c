/* test_log.c - the logging sink: levels, long messages, several threads at once.
 *
 * The last three tests are also for ThreadSanitizer: a sink is set and used without a lock.
 */
#include "runner.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/log.h"

#define N_THREADS 4
#define N_MESSAGES 500

typedef struct heard {
    int n;
    int level;
    char message[4096];
} heard;

static void hear(void *user, int level, const char *message) {
    heard *h = user;
    h->n++;
    h->level = level;
    CHECK(strlen(message) < sizeof h->message);
    memcpy(h->message, message, strlen(message) + 1);
}

TEST(nobody_listens_at_first) { ms__log(MS_LOG_WARNING, "%s", "into the void"); }

TEST(a_sink_hears_until_it_is_taken_away) {
    heard h = {0};
    ms_log_sink sink = {.write = hear, .user = &h, .min_level = MS_LOG_DEBUG};
    ms_log_set_sink(&sink);
    ms__log(MS_LOG_INFO, "%d and %s", 1, "two");
    CHECK_EQ_INT(h.n, 1);
    CHECK_EQ_INT(h.level, MS_LOG_INFO);
    CHECK_EQ_STR(h.message, "1 and two");
    ms_log_set_sink(NULL);
    ms__log(MS_LOG_WARNING, "unheard");
    CHECK_EQ_INT(h.n, 1);
}

TEST(a_sink_is_copied) {
    heard h = {0};
    ms_log_sink sink = {.write = hear, .user = &h};
    ms_log_set_sink(&sink);
    memset(&sink, 0xA5, sizeof sink);
    ms__log(MS_LOG_INFO, "hello");
    CHECK_EQ_STR(h.message, "hello");
}

TEST(the_last_of_many_sinks_is_used) {
    heard h[20] = {{0}};
    for (int i = 0; i < 20; i++) {
        ms_log_set_sink(&(ms_log_sink){.write = hear, .user = &h[i]});
        if (i % 3 == 0) ms_log_set_sink(NULL);
    }
    ms__log(MS_LOG_INFO, "hello");
    for (int i = 0; i < 20; i++) CHECK_EQ_INT(h[i].n, i == 19);
}

TEST(a_sink_replaces_another) {
    heard first = {0}, second = {0};
    ms_log_sink a = {.write = hear, .user = &first}, b = {.write = hear, .user = &second};
    ms_log_set_sink(&a);
    ms_log_set_sink(&b);
    ms__log(MS_LOG_INFO, "hello");
    CHECK_EQ_INT(first.n, 0);
    CHECK_EQ_INT(second.n, 1);
}

TEST(levels_below_the_least_are_dropped) {
    heard h = {0};
    ms_log_sink sink = {.write = hear, .user = &h, .min_level = MS_LOG_WARNING};
    ms_log_set_sink(&sink);
    ms__log(MS_LOG_DEBUG, "no");
    ms__log(MS_LOG_INFO, "no");
    CHECK_EQ_INT(h.n, 0);
    ms__log(MS_LOG_WARNING, "yes");
    CHECK_EQ_INT(h.n, 1);
}

TEST(a_sink_without_a_function_is_silent) {
    ms_log_sink sink = {0};
    ms_log_set_sink(&sink);
    ms__log(MS_LOG_WARNING, "unheard");
}

TEST(a_long_message_is_cut) {
    heard h = {0};
    char longer[3000];
    memset(longer, 'y', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    ms_log_sink sink = {.write = hear, .user = &h};
    ms_log_set_sink(&sink);
    ms__log(MS_LOG_INFO, "%s", longer);
    size_t length = strlen(h.message);
    CHECK(length >= 255 && length < sizeof longer - 1);
    CHECK(strncmp(h.message, longer, length) == 0);
}

static void count(void *user, int level, const char *message) {
    CHECK_EQ_INT(level, MS_LOG_INFO);
    CHECK(strncmp(message, "thread says ", 12) == 0);
    atomic_fetch_add((atomic_int *)user, 1);
}

static void *say_much(void *unused) {
    for (int i = 0; i < N_MESSAGES; i++) ms__log(MS_LOG_INFO, "thread says %d", i);
    return unused;
}

TEST(threads_write_at_once) {
    atomic_int n = 0;
    ms_log_sink sink = {.write = count, .user = &n};
    pthread_t threads[N_THREADS];
    ms_log_set_sink(&sink);
    for (int i = 0; i < N_THREADS; i++) CHECK(pthread_create(&threads[i], NULL, say_much, NULL) == 0);
    for (int i = 0; i < N_THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_EQ_INT(atomic_load(&n), N_THREADS * N_MESSAGES);
}

TEST(a_sink_may_change_while_threads_write) {
    atomic_int first = 0, second = 0;
    ms_log_sink a = {.write = count, .user = &first}, b = {.write = count, .user = &second};
    pthread_t threads[N_THREADS];
    ms_log_set_sink(&a);
    for (int i = 0; i < N_THREADS; i++) CHECK(pthread_create(&threads[i], NULL, say_much, NULL) == 0);
    for (int i = 0; i < N_MESSAGES; i++) ms_log_set_sink(i % 2 == 0 ? &b : &a);
    for (int i = 0; i < N_THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_EQ_INT(atomic_load(&first) + atomic_load(&second), N_THREADS * N_MESSAGES);
}

/* A sink's function and its user pointer belong together, even if another thread sets a sink at the same time. */
typedef struct pair {
    int64_t tag;
} pair;

static const pair even = {0}, odd = {1};

static void write_even(void *user, int level, const char *message) {
    CHECK(((const pair *)user)->tag == 0 && level == MS_LOG_INFO && message[0] != '\0');
}

static void write_odd(void *user, int level, const char *message) {
    CHECK(((const pair *)user)->tag == 1 && level == MS_LOG_INFO && message[0] != '\0');
}

static void *set_often(void *unused) {
    for (int i = 0; i < N_MESSAGES; i++)
        ms_log_set_sink(i % 2 == 0 ? &(ms_log_sink){.write = write_even, .user = (void *)&even}
                                   : &(ms_log_sink){.write = write_odd, .user = (void *)&odd});
    return unused;
}

TEST(sinks_are_never_mixed) {
    pthread_t writers[N_THREADS], setters[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&setters[i], NULL, set_often, NULL) == 0);
    for (int i = 0; i < N_THREADS; i++) CHECK(pthread_create(&writers[i], NULL, say_much, NULL) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(setters[i], NULL) == 0);
    for (int i = 0; i < N_THREADS; i++) CHECK(pthread_join(writers[i], NULL) == 0);
}

SUITE(log, CASE(nobody_listens_at_first), CASE(a_sink_hears_until_it_is_taken_away), CASE(a_sink_is_copied),
      CASE(the_last_of_many_sinks_is_used), CASE(a_sink_replaces_another), CASE(levels_below_the_least_are_dropped),
      CASE(a_sink_without_a_function_is_silent), CASE(a_long_message_is_cut), CASE(threads_write_at_once),
      CASE(a_sink_may_change_while_threads_write), CASE(sinks_are_never_mixed));
