/* host_backend.h - a device that is the host: its memory is host memory, and its streams are threads.
 *
 * Stream 0 is the calling thread: what it queues is done before the call returns, and a wait on it blocks. For training
 * on the CPU and for tests, which let streams be slow at random and calls fail.
 */
#ifndef MS_OFFLOAD_HOST_BACKEND_H
#define MS_OFFLOAD_HOST_BACKEND_H

#include "backend.h"

typedef struct ms__host_faults {
    uint64_t seed;        /* of what is random */
    int64_t max_delay_ns; /* before each piece of work of a stream; 0: none */
    int64_t fail_at;      /* the n-th call that can fail does, counted from 1; 0: none */
    int64_t fail_parts;   /* one in so many calls fails, at random; 0: none */
} ms__host_faults;

/* `faults` may be NULL. */
ms_status ms__host_backend_create(const ms__host_faults *faults, const ms__backend **out, void **out_self);

/* For tests: how many of its calls could have failed so far; let a stream call a function in its order; fail no more.
 */
int64_t ms__host_count_calls(void *self);
ms_status ms__host_call(void *self, ms__stream stream, void (*call)(void *argument), void *argument);
void ms__host_stop_failing(void *self);

#endif
