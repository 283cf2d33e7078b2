/* prim_thread.c - prim_thread.h: what is more than a call of the system. */
#define _GNU_SOURCE
#include "prim_thread.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

ms_status ms__thread_start(ms__thread *out, void *(*run)(void *), void *argument) {
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* a new thread has the mask of the one that starts it */
    int code = pthread_create(&out->system, NULL, run, argument);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code == 0 ? MS_OK : ms__fail(MS_E_NO_MEMORY, "cannot start a thread: %s", strerror(code));
}

void ms__thread_yield(void) { (void)sched_yield(); }

void ms__thread_sleep(int64_t ns) {
    struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    (void)nanosleep(&time, NULL);
}
