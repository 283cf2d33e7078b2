/* prim_thread.h - threads, locks and conditions. Calls of the system that cannot fail when used as here have no result.
 */
#ifndef MS_PRIM_PRIM_THREAD_H
#define MS_PRIM_PRIM_THREAD_H

#include <pthread.h>

#include "../common/status.h"

typedef struct ms__mutex {
    pthread_mutex_t system;
} ms__mutex;

typedef struct ms__condition {
    pthread_cond_t system;
} ms__condition;

typedef struct ms__thread {
    pthread_t system;
} ms__thread;

#define MS__MUTEX_INIT ((ms__mutex){PTHREAD_MUTEX_INITIALIZER})
#define MS__CONDITION_INIT ((ms__condition){PTHREAD_COND_INITIALIZER})

static inline void ms__lock(ms__mutex *mutex) { (void)pthread_mutex_lock(&mutex->system); }
static inline void ms__unlock(ms__mutex *mutex) { (void)pthread_mutex_unlock(&mutex->system); }
static inline void ms__mutex_destroy(ms__mutex *mutex) { (void)pthread_mutex_destroy(&mutex->system); }

/* The mutex must be locked. It may return without a wake-up: check what was waited for again. */
static inline void ms__condition_wait(ms__condition *condition, ms__mutex *mutex) {
    (void)pthread_cond_wait(&condition->system, &mutex->system);
}
static inline void ms__condition_wake_all(ms__condition *condition) {
    (void)pthread_cond_broadcast(&condition->system);
}
static inline void ms__condition_destroy(ms__condition *condition) { (void)pthread_cond_destroy(&condition->system); }

/* Start a thread that takes no signals: those of the process are for its own threads. Errors: MS_E_NO_MEMORY. */
ms_status ms__thread_start(ms__thread *out, void *(*run)(void *), void *argument);

/* Wait until it has ended. */
static inline void ms__thread_join(ms__thread *thread) { (void)pthread_join(thread->system, NULL); }

/* Let other threads run, or wait for about so long. */
void ms__thread_yield(void);
void ms__thread_sleep(int64_t ns);

#endif
