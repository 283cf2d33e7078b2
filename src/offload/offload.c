/* offload.c - making and destroying an offload engine, its host memory and its events: offload.h. */
#include "offload.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/math.h"
#include "../common/structs.h"
#include "../common/text.h"
#include "../prim/prim.h"
#include "host_backend.h"

#define GROWS_BY (INT64_C(2) << 20) /* the pool grows by multiples of this, while its limit allows that */
#define PAGE_BYTES 4096             /* the limit is rounded down to whole pages */
#define MAX_PENDING 2

ms_status ms_offload_options_init(ms_offload_options *out, ms_gpu *gpu, int64_t device, int64_t limit_bytes) {
    const ms_offload_options usual = {.gpu = gpu,
                                      .device = device,
                                      .limit_bytes = limit_bytes,
                                      .pinned_limit_bytes = limit_bytes,
                                      .max_pending = MAX_PENDING};
    return ms__struct_write(MS__STRUCT(ms_offload_options), &usual, out);
}

static ms_status check(const ms_offload_options *options) {
    if (options->limit_bytes < 0 || options->pinned_limit_bytes < 0 || options->max_pending < 0 ||
        options->delay_ns < 0)
        return ms__fail(MS_E_INVALID, "ms_offload_create: a limit is below 0");
    return MS_OK;
}

/* ---- Its beginning and its end ---- */

ms_status ms__offload_check(const ms_offload *engine) {
    if (ms__prim_pid() == engine->pid) return MS_OK;
    return ms__fail(MS_E_UNAVAILABLE, "a forked process cannot use the offload engine of its parent");
}

ms_status ms__offload_enter(ms_offload *engine) {
    ms_status status = ms__offload_check(engine);
    return status == MS_OK ? engine->backend->enter(engine->device) : status;
}

/* Nothing is in flight once the streams are gone. */
static void stop(ms_offload *engine) {
    const ms__backend *backend = engine->backend;
    if (backend->enter(engine->device) == MS_OK) {
        if (engine->out != 0) backend->stream_destroy(engine->device, engine->out);
        if (engine->in != 0) backend->stream_destroy(engine->device, engine->in);
        for (size_t i = 0; i < engine->events.n; i++) backend->event_destroy(engine->device, engine->events.items[i]);
        for (size_t i = 0; i < engine->pool.segments.n; i++)
            backend->give_memory(engine->device, &engine->pool.segments.items[i].host);
        (void)backend->leave(engine->device, MS_OK);
    }
    backend->destroy(engine->device);
    ms__mutex_destroy(&engine->lock);
}

void ms__offload_drop(ms_offload *engine) {
    bool is_child = ms__prim_pid() != engine->pid; /* which has one thread, and maybe a lock that nobody opens */
    if (!is_child) ms__lock(&engine->lock);
    int64_t n_owners = --engine->n_owners;
    if (!is_child) ms__unlock(&engine->lock);
    if (n_owners > 0) return;
    if (is_child)
        engine->backend->abandon(engine->device);
    else
        stop(engine);
    ms__pool_free(&engine->pool);
    ms__vec_free(&engine->events);
    ms__vec_free(&engine->nexts);
    free(engine);
}

void ms_offload_destroy(ms_offload *engine) {
    if (engine != NULL) ms__offload_drop(engine);
}

static ms_status make_streams(ms_offload *engine) {
    ms_status status = engine->backend->enter(engine->device);
    if (status != MS_OK) return status;
    status = engine->backend->stream_create(engine->device, &engine->out);
    if (status == MS_OK) status = engine->backend->stream_create(engine->device, &engine->in);
    return engine->backend->leave(engine->device, status);
}

ms_status ms__offload_start(const ms_offload_options *options, const ms__backend *backend, void *device,
                            ms_offload **out) {
    ms_offload *engine = calloc(1, sizeof *engine);
    if (engine == NULL) {
        backend->destroy(device);
        return ms__fail_memory(sizeof *engine);
    }
    engine->backend = backend;
    engine->device = device;
    engine->pid = ms__prim_pid();
    engine->limit_bytes = options->limit_bytes / PAGE_BYTES * PAGE_BYTES;
    engine->pinned_limit_bytes = options->pinned_limit_bytes;
    engine->max_pending = options->max_pending;
    engine->lock = MS__MUTEX_INIT;
    engine->n_owners = 1;
    engine->last_key = MS__NO_KEY;
    engine->backward = 1;
    ms_status status = make_streams(engine);
    if (status == MS_OK)
        *out = engine;
    else
        ms__offload_drop(engine);
    return status;
}

ms_status ms_offload_create(const ms_offload_options *options, ms_offload **out) {
    ms_offload_options ours = {0};
    const ms__backend *backend = NULL;
    void *device = NULL;
    if (out == NULL) return ms__fail(MS_E_INVALID, "ms_offload_create: out is NULL");
    ms_status status = ms__struct_read(MS__STRUCT(ms_offload_options), options, &ours);
    if (status == MS_OK) status = check(&ours);
    if (status != MS_OK) return status;
    const ms__host_faults late = {.seed = ours.seed, .max_delay_ns = ours.delay_ns};
    status = ours.gpu == NULL ? ms__host_backend_create(&late, &backend, &device)
                              : ms__cuda_backend_create(ours.gpu, ours.device, &backend, &device);
    return status == MS_OK ? ms__offload_start(&ours, backend, device, out) : status;
}

/* ---- Host memory ---- */

/* Pinned memory, if it may be; where the system does not pin any more, memory that is not. */
static ms_status take_memory(ms_offload *engine, int64_t n_bytes, bool is_pinned, ms__host_memory *out) {
    ms_status status = engine->backend->take_memory(engine->device, n_bytes, is_pinned, out);
    if (status == MS_OK || !is_pinned) return status;
    ms__lock(&engine->lock);
    bool is_said = engine->is_pageable_said;
    engine->is_pageable_said = true;
    ms__unlock(&engine->lock);
    if (!is_said)
        ms__log(MS_LOG_WARNING, "%s of host memory cannot be pinned, so copies of it are slow: %s",
                ms__size_text(n_bytes, MS__MIN_DIGITS).text, ms_error_message());
    return engine->backend->take_memory(engine->device, n_bytes, false, out);
}

/* Take `n_bytes` of host memory that were counted as growing. */
static ms_status grow(ms_offload *engine, int64_t n_bytes, bool is_pinned) {
    ms__host_memory host = {0};
    int64_t start = ms__prim_now_ns();
    ms_status status = take_memory(engine, n_bytes, is_pinned, &host);
    ms__lock(&engine->lock);
    engine->growing_bytes -= n_bytes;
    if (is_pinned) engine->growing_pinned_bytes -= n_bytes;
    if (status == MS_OK) {
        engine->counts.n_grows++;
        engine->counts.host_ns += ms__prim_now_ns() - start;
        status = ms__pool_add(&engine->pool, &host);
    }
    ms__unlock(&engine->lock);
    if (status != MS_OK && host.memory != NULL) engine->backend->give_memory(engine->device, &host);
    return status;
}

/* With the lock held: count what the pool will grow by for `n_bytes` more. 0: its limit does not allow that. */
static int64_t begin_to_grow(ms_offload *engine, int64_t n_bytes, bool *out_is_pinned) {
    int64_t room = engine->limit_bytes - engine->pool.n_bytes - engine->growing_bytes;
    if (n_bytes > room) return 0;
    int64_t rest = n_bytes % GROWS_BY, more = n_bytes + ms__min(rest == 0 ? 0 : GROWS_BY - rest, room - n_bytes);
    *out_is_pinned = engine->pool.pinned_bytes + engine->growing_pinned_bytes + more <= engine->pinned_limit_bytes;
    engine->growing_bytes += more;
    if (*out_is_pinned) engine->growing_pinned_bytes += more;
    return more;
}

static ms_status fail_at_limit(const ms_offload *engine, int64_t n_bytes) {
    return ms__fail(MS_E_NO_MEMORY, "%s more of host memory exceed the limit of %s",
                    ms__size_text(n_bytes, MS__MIN_DIGITS).text,
                    ms__size_text(engine->limit_bytes, MS__MIN_DIGITS).text);
}

ms_status ms__offload_take_range(ms_offload *engine, int64_t n_bytes, ms__pool_range *out) {
    for (;;) {
        bool is_pinned = false;
        int64_t more = 0;
        ms_status status = MS_OK;
        ms__lock(&engine->lock);
        int64_t lacks = ms__pool_lacks(&engine->pool, n_bytes);
        if (lacks == 0) {
            status = ms__pool_take(&engine->pool, n_bytes, out);
            engine->counts.peak_used_bytes = ms__max(engine->counts.peak_used_bytes, engine->pool.used_bytes);
        } else {
            more = begin_to_grow(engine, lacks, &is_pinned);
            if (more == 0) engine->counts.n_refused++;
        }
        ms__unlock(&engine->lock);
        if (lacks == 0) return status;
        if (more == 0) return fail_at_limit(engine, lacks);
        status = grow(engine, more, is_pinned);
        if (status == MS_E_NO_MEMORY) { /* the system's limit counts like the engine's own */
            ms__lock(&engine->lock);
            engine->counts.n_refused++;
            ms__unlock(&engine->lock);
        }
        if (status != MS_OK) return status;
    }
}

ms_status ms_offload_reserve(ms_offload *engine, int64_t n_bytes) {
    if (engine == NULL || n_bytes < 0) return ms__fail(MS_E_INVALID, "ms_offload_reserve: no engine, or below 0 bytes");
    ms_status status = ms__offload_enter(engine);
    if (status != MS_OK) return status;
    bool is_pinned = false;
    ms__lock(&engine->lock);
    int64_t lacks = ms__max(n_bytes - engine->pool.n_bytes, 0);
    int64_t more = lacks == 0 ? 0 : begin_to_grow(engine, lacks, &is_pinned);
    ms__unlock(&engine->lock);
    if (more > 0)
        status = grow(engine, more, is_pinned);
    else if (lacks > 0)
        status = fail_at_limit(engine, lacks);
    return engine->backend->leave(engine->device, status);
}

/* ---- Events ---- */

ms_status ms__offload_take_event(ms_offload *engine, ms__event *out) {
    ms__event event = NULL;
    ms__lock(&engine->lock);
    bool has_room = engine->events.n > 0 || ms__vec_reserve(&engine->events, engine->n_taken_events + 1);
    if (has_room) {
        engine->n_taken_events++;
        if (engine->events.n > 0) event = engine->events.items[--engine->events.n];
    }
    ms__unlock(&engine->lock);
    if (!has_room) return MS_E_NO_MEMORY;
    ms_status status = event == NULL ? engine->backend->event_create(engine->device, &event) : MS_OK;
    if (status == MS_OK) {
        *out = event;
        return MS_OK;
    }
    ms__lock(&engine->lock);
    engine->n_taken_events--;
    ms__unlock(&engine->lock);
    return status;
}

/* It may be recorded again at once: whoever waits for it waits for what it recorded then. */
void ms__offload_give_event(ms_offload *engine, ms__event event) {
    if (event == NULL) return;
    ms__lock(&engine->lock);
    engine->n_taken_events--;
    engine->events.items[engine->events.n++] = event;
    ms__unlock(&engine->lock);
}

/* ---- Counts ---- */

ms_status ms_offload_get_stats(ms_offload *engine, ms_offload_stats *out) {
    if (engine == NULL) return ms__fail(MS_E_INVALID, "ms_offload_get_stats: no engine");
    ms_status status = ms__offload_check(engine);
    if (status != MS_OK) return status;
    ms__lock(&engine->lock);
    ms_offload_stats stats = engine->counts;
    stats.used_bytes = engine->pool.used_bytes;
    stats.pool_bytes = engine->pool.n_bytes;
    stats.pinned_bytes = engine->pool.pinned_bytes;
    ms__unlock(&engine->lock);
    return ms__struct_write(MS__STRUCT(ms_offload_stats), &stats, out);
}
