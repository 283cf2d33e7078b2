/* host_backend.c - host_backend.h.
 *
 * A stream has a queue of work and a thread that does it. An event has a mark: what was recorded last. A wait is for
 * the mark that the event had when the wait was queued; the mark lives as long as somebody waits for it. One lock
 * guards queues, events and marks; work is done without it.
 */
#include "host_backend.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../prim/prim.h"
#include "../prim/prim_thread.h"

typedef struct mark {
    int64_t n_owners; /* the event, and whoever waits */
    bool is_done;
} mark;

typedef struct event {
    mark *last; /* NULL: never recorded */
} event;

typedef enum work_kind { WORK_COPY, WORK_RECORD, WORK_WAIT, WORK_CALL, WORK_END } work_kind;

typedef struct work work;

struct work {
    work *next;
    work_kind kind;
    ms__copy copy;
    mark *mark; /* owned */
    void (*call)(void *argument);
    void *argument;
};

typedef struct host_backend host_backend;

typedef struct stream {
    host_backend *backend;
    ms__thread thread;
    work *first, *last;
    work end; /* here, so that ending a stream cannot fail */
    bool is_busy;
    uint64_t random; /* of its own thread */
} stream;

struct host_backend {
    ms__mutex lock;
    ms__condition changed; /* something was queued, or done */
    ms__host_faults faults;
    _Atomic(int64_t) n_calls;
    _Atomic(uint64_t) random;
    atomic_bool is_failing;
};

/* ---- Faults ---- */

/* xorshift64*: good enough for delays. */
static uint64_t next_random(uint64_t state) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state;
}

static uint64_t spread(uint64_t state) { return (state * 0x2545F4914F6CDD1DULL) >> 33; }

static ms_status may_fail(host_backend *self, const char *what) {
    int64_t n = atomic_fetch_add(&self->n_calls, 1) + 1;
    if (!atomic_load(&self->is_failing)) return MS_OK;
    bool fails = n == self->faults.fail_at;
    if (self->faults.fail_parts > 0) {
        uint64_t before = atomic_load(&self->random), after = next_random(before);
        while (!atomic_compare_exchange_weak(&self->random, &before, after)) after = next_random(before);
        fails = fails || spread(after) % (uint64_t)self->faults.fail_parts == 0;
    }
    return fails ? ms__fail(MS_E_CUDA, "%s failed, as it was asked to", what) : MS_OK;
}

int64_t ms__host_count_calls(void *self) { return atomic_load(&((host_backend *)self)->n_calls); }

void ms__host_stop_failing(void *self) { atomic_store(&((host_backend *)self)->is_failing, false); }

static void delay(stream *s) {
    int64_t most = s->backend->faults.max_delay_ns;
    if (most == 0) return;
    s->random = next_random(s->random);
    uint64_t chosen = spread(s->random);
    if (chosen % 4 == 0)
        ms__thread_yield();
    else if (chosen % 16 == 1)
        ms__thread_sleep((int64_t)(chosen / 16 % (uint64_t)most));
}

/* ---- Marks; the lock must be held ---- */

static mark *mark_share(mark *m) {
    if (m != NULL) m->n_owners++;
    return m;
}

static void mark_drop(mark *m) {
    if (m != NULL && --m->n_owners == 0) free(m);
}

/* ---- The thread of a stream ---- */

static void do_copy(const ms__copy *copy) {
    void *device = (void *)(uintptr_t)copy->device;
    memcpy(copy->to_device ? device : copy->host, copy->to_device ? copy->host : device, (size_t)copy->n_bytes);
}

/* With the lock held, which is not held while the work is done. */
static void do_work(stream *s, work *w) {
    ms__mutex *lock = &s->backend->lock;
    while (w->kind == WORK_WAIT && !w->mark->is_done) ms__condition_wait(&s->backend->changed, lock);
    ms__unlock(lock);
    delay(s);
    if (w->kind == WORK_COPY) do_copy(&w->copy);
    if (w->kind == WORK_CALL) w->call(w->argument);
    ms__lock(lock);
    if (w->kind == WORK_RECORD) w->mark->is_done = true;
    mark_drop(w->mark);
    if (w->kind == WORK_RECORD || s->first == NULL) ms__condition_wake_all(&s->backend->changed);
}

static void *run_stream(void *argument) {
    stream *s = argument;
    bool ends = false;
    ms__lock(&s->backend->lock);
    while (!ends) {
        while (s->first == NULL) ms__condition_wait(&s->backend->changed, &s->backend->lock);
        work *w = s->first;
        s->first = w->next;
        if (s->first == NULL) s->last = NULL;
        s->is_busy = true;
        ends = w->kind == WORK_END;
        do_work(s, w);
        s->is_busy = false;
        if (w != &s->end) free(w);
    }
    ms__unlock(&s->backend->lock);
    return NULL;
}

/* ---- Queueing ---- */

static void queue_locked(stream *s, work *w) {
    if (s->last == NULL)
        s->first = w;
    else
        s->last->next = w;
    s->last = w;
    if (s->first == w && !s->is_busy) ms__condition_wake_all(&s->backend->changed);
}

static ms_status queue(host_backend *self, ms__stream on, const work *wanted) {
    work *w = malloc(sizeof *w);
    if (w == NULL) return ms__fail_memory(sizeof *w);
    *w = *wanted;
    ms__lock(&self->lock);
    queue_locked((stream *)(uintptr_t)on, w);
    ms__unlock(&self->lock);
    return MS_OK;
}

static ms_status host_copy(void *object, const ms__copy *copy, ms__stream on) {
    host_backend *self = object;
    ms_status status = may_fail(self, "a copy");
    if (status != MS_OK) return status;
    if (on != 0) return queue(self, on, &(work){.kind = WORK_COPY, .copy = *copy});
    do_copy(copy);
    return MS_OK;
}

ms_status ms__host_call(void *self, ms__stream on, void (*call)(void *argument), void *argument) {
    if (on != 0) return queue(self, on, &(work){.kind = WORK_CALL, .call = call, .argument = argument});
    call(argument);
    return MS_OK;
}

static ms_status host_record(void *object, ms__event what, ms__stream on) {
    host_backend *self = object;
    event *e = what;
    ms_status status = may_fail(self, "recording an event");
    mark *fresh = status == MS_OK ? malloc(sizeof *fresh) : NULL;
    work *w = status == MS_OK && on != 0 ? calloc(1, sizeof *w) : NULL;
    if (status != MS_OK || fresh == NULL || (on != 0 && w == NULL)) {
        free(fresh);
        free(w);
        return status != MS_OK ? status : ms__fail_memory(sizeof *fresh + sizeof *w);
    }
    *fresh = (mark){.n_owners = 1, .is_done = on == 0};
    ms__lock(&self->lock);
    mark_drop(e->last);
    e->last = fresh;
    if (w != NULL) {
        *w = (work){.kind = WORK_RECORD, .mark = mark_share(fresh)};
        queue_locked((stream *)(uintptr_t)on, w);
    }
    ms__unlock(&self->lock);
    return MS_OK;
}

static ms_status host_wait(void *object, ms__stream on, ms__event what) {
    host_backend *self = object;
    event *e = what;
    ms_status status = may_fail(self, "waiting for an event");
    work *w = status == MS_OK && on != 0 ? calloc(1, sizeof *w) : NULL;
    if (status != MS_OK) return status;
    if (on != 0 && w == NULL) return ms__fail_memory(sizeof *w);
    ms__lock(&self->lock);
    mark *m = mark_share(e->last);
    if (w != NULL && m != NULL) {
        *w = (work){.kind = WORK_WAIT, .mark = m};
        queue_locked((stream *)(uintptr_t)on, w);
    } else {
        free(w);
        while (m != NULL && !m->is_done) ms__condition_wait(&self->changed, &self->lock);
        mark_drop(m);
    }
    ms__unlock(&self->lock);
    return MS_OK;
}

static ms_status host_is_done(void *object, ms__event what, bool *out) {
    host_backend *self = object;
    const event *e = what;
    ms_status status = may_fail(self, "asking for an event");
    if (status != MS_OK) return status;
    ms__lock(&self->lock);
    *out = e->last == NULL || e->last->is_done;
    ms__unlock(&self->lock);
    return MS_OK;
}

static ms_status host_synchronize(void *object, ms__stream on) {
    host_backend *self = object;
    stream *s = (stream *)(uintptr_t)on;
    ms__lock(&self->lock);
    while (s != NULL && (s->first != NULL || s->is_busy)) ms__condition_wait(&self->changed, &self->lock);
    ms__unlock(&self->lock);
    return MS_OK;
}

/* ---- Objects ---- */

static ms_status host_stream_create(void *object, ms__stream *out) {
    host_backend *self = object;
    ms_status status = may_fail(self, "making a stream");
    stream *s = status == MS_OK ? calloc(1, sizeof *s) : NULL;
    if (status != MS_OK) return status;
    if (s == NULL) return ms__fail_memory(sizeof *s);
    s->backend = self;
    s->random = (self->faults.seed + (uint64_t)(uintptr_t)s) | 1;
    status = ms__thread_start(&s->thread, run_stream, s);
    if (status != MS_OK)
        free(s);
    else
        *out = (ms__stream)(uintptr_t)s;
    return status;
}

static void host_stream_destroy(void *object, ms__stream on) {
    host_backend *self = object;
    stream *s = (stream *)(uintptr_t)on;
    s->end = (work){.kind = WORK_END};
    ms__lock(&self->lock);
    queue_locked(s, &s->end);
    ms__unlock(&self->lock);
    ms__thread_join(&s->thread);
    free(s);
}

static ms_status host_event_create(void *object, ms__event *out) {
    ms_status status = may_fail(object, "making an event");
    event *e = status == MS_OK ? calloc(1, sizeof *e) : NULL;
    if (status != MS_OK) return status;
    if (e == NULL) return ms__fail_memory(sizeof *e);
    *out = e;
    return MS_OK;
}

static void host_event_destroy(void *object, ms__event what) {
    host_backend *self = object;
    event *e = what;
    ms__lock(&self->lock);
    mark_drop(e->last);
    ms__unlock(&self->lock);
    free(e);
}

static ms_status host_take_memory(void *object, int64_t n_bytes, bool is_pinned, ms__host_memory *out) {
    ms_status status = may_fail(object, "taking host memory");
    void *memory = NULL;
    if (status == MS_OK) status = ms__prim_map(n_bytes, -1, &memory);
    if (status != MS_OK) return status;
    *out = (ms__host_memory){
        .memory = memory, .n_bytes = n_bytes, .kind = is_pinned ? MS__HOST_PINNED : MS__HOST_PAGEABLE};
    return MS_OK;
}

static void host_give_memory(void *object, const ms__host_memory *memory) {
    (void)object;
    ms__prim_unmap(memory->memory, memory->n_bytes);
}

static ms_status host_enter(void *object) {
    (void)object;
    return MS_OK;
}

static ms_status host_leave(void *object, ms_status status) {
    (void)object;
    return status;
}

static void host_destroy(void *object) {
    host_backend *self = object;
    ms__condition_destroy(&self->changed);
    ms__mutex_destroy(&self->lock);
    free(self);
}

/* Threads, and what they own, are the parent's. */
static void host_abandon(void *object) { free(object); }

static const ms__backend host_table = {.enter = host_enter,
                                       .leave = host_leave,
                                       .stream_create = host_stream_create,
                                       .stream_destroy = host_stream_destroy,
                                       .event_create = host_event_create,
                                       .event_destroy = host_event_destroy,
                                       .record = host_record,
                                       .wait = host_wait,
                                       .is_done = host_is_done,
                                       .synchronize = host_synchronize,
                                       .copy = host_copy,
                                       .take_memory = host_take_memory,
                                       .give_memory = host_give_memory,
                                       .destroy = host_destroy,
                                       .abandon = host_abandon};

ms_status ms__host_backend_create(const ms__host_faults *faults, const ms__backend **out, void **out_self) {
    host_backend *self = calloc(1, sizeof *self);
    if (self == NULL) return ms__fail_memory(sizeof *self);
    self->lock = MS__MUTEX_INIT;
    self->changed = MS__CONDITION_INIT;
    if (faults != NULL) self->faults = *faults;
    atomic_init(&self->random, self->faults.seed | 1);
    atomic_init(&self->is_failing, faults != NULL);
    *out = &host_table;
    *out_self = self;
    return MS_OK;
}
