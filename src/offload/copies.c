/* copies.c - groups: put, release, fetch, use, settle, free. How streams wait for each other is in offload.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../common/math.h"
#include "../prim/prim.h"
#include "offload.h"

/* ---- Making a group ---- */

static ms_status check_pieces(const ms_offload_piece *pieces, int64_t n_pieces, int64_t *out_n_bytes) {
    int64_t total = 0;
    for (int64_t i = 0; i < n_pieces; i++) {
        if (pieces[i].n_bytes < 0 || (pieces[i].n_bytes > 0 && pieces[i].address == 0))
            return ms__fail(MS_E_INVALID, "ms_offload_put: piece %" PRId64 " has no address, or a size below 0", i);
        if (pieces[i].n_bytes > (INT64_C(1) << 60) - total)
            return ms__fail(MS_E_INVALID, "ms_offload_put: the pieces are too large");
        total += ms__round_up(pieces[i].n_bytes, MS__POOL_ALIGN);
    }
    *out_n_bytes = ms__max(total, MS__POOL_ALIGN); /* each group has a range of its own */
    return MS_OK;
}

static ms_offload_group *make_group(ms_offload *engine, int64_t key, const ms_offload_piece *pieces, int64_t n_pieces,
                                    void *user) {
    ms_offload_group *group = calloc(1, sizeof *group + (size_t)n_pieces * sizeof *group->sizes);
    if (group == NULL) {
        (void)ms__fail_memory(sizeof *group + (size_t)n_pieces * sizeof *group->sizes);
        return NULL;
    }
    group->engine = engine;
    group->key = key;
    group->user = user;
    group->n_pieces = n_pieces;
    for (int64_t i = 0; i < n_pieces; i++) group->n_bytes += group->sizes[i] = pieces[i].n_bytes;
    return group;
}

/* The newest of all, on its way out. */
static void publish(ms_offload *engine, ms_offload_group *group) {
    ms__lock(&engine->lock);
    group->is_pending = true;
    group->older = engine->newest;
    if (engine->newest == NULL)
        engine->oldest = group;
    else
        engine->newest->newer = group;
    engine->newest = group;
    engine->n_owners++;
    engine->counts.n_groups++;
    engine->counts.n_pending++;
    engine->counts.n_puts++;
    engine->counts.put_bytes += group->n_bytes;
    ms__unlock(&engine->lock);
}

/* With the lock held. */
static void unlink_group(ms_offload *engine, ms_offload_group *group) {
    if (group->older == NULL)
        engine->oldest = group->newer;
    else
        group->older->newer = group->newer;
    if (group->newer == NULL)
        engine->newest = group->older;
    else
        group->newer->older = group->older;
}

/* ---- Copies ---- */

/* On an H200 copies both ways at once reach 99 GB/s in parts of 16 MiB; in parts of 256, or 4, as little as 92. */
#define MOST_AT_ONCE ((int64_t)16 << 20)

/* One after the other as they are in the pool; in parts, none of which lies in two segments. */
static ms_status copy_piece(ms_offload *engine, int64_t start, uint64_t address, int64_t n_bytes, bool to_device) {
    ms_status status = MS_OK;
    while (n_bytes > 0 && status == MS_OK) {
        int64_t n_here = 0;
        ms__lock(&engine->lock); /* the list of segments may grow */
        void *host = ms__pool_memory(&engine->pool, start, n_bytes, &n_here);
        ms__unlock(&engine->lock);
        n_here = ms__min(n_here, MOST_AT_ONCE);
        const ms__copy copy = {.device = address, .host = host, .n_bytes = n_here, .to_device = to_device};
        status = engine->backend->copy(engine->device, &copy, to_device ? engine->in : engine->out);
        start += n_here;
        address += (uint64_t)n_here;
        n_bytes -= n_here;
    }
    return status;
}

/* Let `then` go on after what is queued on `first` now. */
static ms_status order(ms_offload *engine, ms__stream first, ms__stream then) {
    ms__event event = NULL;
    ms_status status = ms__offload_take_event(engine, &event);
    if (status == MS_OK) status = engine->backend->record(engine->device, event, first);
    if (status == MS_OK) status = engine->backend->wait(engine->device, then, event);
    ms__offload_give_event(engine, event);
    return status;
}

/* Before host memory is filled again: wait for the copies that may still read it. */
static ms_status order_after_readers(ms_offload *engine, int64_t ticket) {
    ms__lock(&engine->lock);
    bool is_covered = ticket <= engine->covered_ticket;
    int64_t covers = engine->in_ticket;
    ms__unlock(&engine->lock);
    if (is_covered) return MS_OK;
    ms_status status = order(engine, engine->in, engine->out);
    if (status != MS_OK) return status;
    ms__lock(&engine->lock);
    engine->covered_ticket = ms__max(engine->covered_ticket, covers);
    ms__unlock(&engine->lock);
    return MS_OK;
}

static ms_status copy_out(ms_offload_group *group, const ms_offload_piece *pieces, ms__stream stream) {
    ms_offload *engine = group->engine;
    int64_t start = group->range.start;
    ms_status status = order_after_readers(engine, group->range.ticket);
    if (status == MS_OK) status = order(engine, stream, engine->out);
    if (status != MS_OK) return status;
    for (int64_t i = 0; i < group->n_pieces && status == MS_OK; i++) {
        status = copy_piece(engine, start, pieces[i].address, pieces[i].n_bytes, false);
        start += ms__round_up(pieces[i].n_bytes, MS__POOL_ALIGN);
    }
    if (status == MS_OK) status = engine->backend->record(engine->device, group->out_event, engine->out);
    if (status != MS_OK) (void)engine->backend->synchronize(engine->device, engine->out); /* nothing is in flight */
    return status;
}

static ms_status copy_in(ms_offload_group *group, const uint64_t *addresses, ms__stream stream) {
    ms_offload *engine = group->engine;
    int64_t start = group->range.start;
    ms_status status = order(engine, stream, engine->in);
    if (status == MS_OK) status = engine->backend->wait(engine->device, engine->in, group->out_event);
    if (status != MS_OK) return status;
    for (int64_t i = 0; i < group->n_pieces && status == MS_OK; i++) {
        if (addresses[i] != 0) status = copy_piece(engine, start, addresses[i], group->sizes[i], true);
        start += ms__round_up(group->sizes[i], MS__POOL_ALIGN);
    }
    if (status == MS_OK) status = engine->backend->record(engine->device, group->in_event, engine->in);
    if (status != MS_OK) (void)engine->backend->synchronize(engine->device, engine->in);
    return status;
}

/* End a call that queued copies on `stream`. Where that fails, the call does, so nothing may be in flight. */
static ms_status leave_copies(ms_offload *engine, ms_status status, ms__stream stream) {
    ms_status left = engine->backend->leave(engine->device, status);
    if (left == MS_OK || status != MS_OK || engine->backend->enter(engine->device) != MS_OK) return left;
    (void)engine->backend->synchronize(engine->device, stream);
    (void)engine->backend->leave(engine->device, MS_OK);
    return left;
}

/* ---- Put and free ---- */

/* Free what a group owns; it is in no list. In a forked child nothing but its own memory. */
static void discard(ms_offload_group *group, bool is_child) {
    ms_offload *engine = group->engine;
    if (!is_child) {
        ms__offload_give_event(engine, group->out_event);
        ms__offload_give_event(engine, group->in_event);
        ms__lock(&engine->lock);
        if (group->range.n_bytes > 0) ms__pool_give(&engine->pool, group->range);
        ms__unlock(&engine->lock);
    }
    free(group);
}

static ms_status put(ms_offload_group *group, const ms_offload_piece *pieces, int64_t n_bytes, ms__stream stream) {
    ms_offload *engine = group->engine;
    ms_status status = ms__offload_know_key(engine, group->key);
    if (status == MS_OK) status = ms__offload_take_range(engine, n_bytes, &group->range);
    if (status == MS_OK) status = ms__offload_take_event(engine, &group->out_event);
    return status == MS_OK ? copy_out(group, pieces, stream) : status;
}

ms_status ms_offload_put(ms_offload *engine, int64_t key, const ms_offload_piece *pieces, int64_t n_pieces,
                         uint64_t stream, void *user, ms_offload_group **out) {
    int64_t n_bytes = 0;
    if (engine == NULL || out == NULL || user == NULL || pieces == NULL || n_pieces < 1 || n_pieces > INT32_MAX)
        return ms__fail(MS_E_INVALID, "ms_offload_put: an argument is missing");
    if (key < 0 || key >= MS__MAX_KEYS)
        return ms__fail(MS_E_INVALID, "ms_offload_put: the key %" PRId64 " is not in 0 to %d", key, MS__MAX_KEYS - 1);
    ms_status status = check_pieces(pieces, n_pieces, &n_bytes);
    if (status == MS_OK) status = ms__offload_enter(engine);
    if (status != MS_OK) return status;
    ms_offload_group *group = make_group(engine, key, pieces, n_pieces, user);
    if (group == NULL) return engine->backend->leave(engine->device, MS_E_NO_MEMORY);
    status = leave_copies(engine, put(group, pieces, n_bytes, stream), engine->out);
    if (status != MS_OK) {
        discard(group, false);
        return status;
    }
    publish(engine, group);
    *out = group;
    return MS_OK;
}

void ms_offload_free(ms_offload_group *group) {
    if (group == NULL) return;
    ms_offload *engine = group->engine;
    bool is_child = ms__prim_pid() != engine->pid;
    if (!is_child) {
        ms__lock(&engine->lock);
        unlink_group(engine, group);
        engine->counts.n_groups--;
        engine->counts.n_pending -= group->is_pending;
        group->is_pending = false;
        group->is_freed = group->n_holds > 0; /* then whoever holds it last discards it */
        bool is_held = group->is_freed;
        ms__unlock(&engine->lock);
        if (is_held) return;
    }
    discard(group, is_child);
    ms__offload_drop(engine);
}

/* ---- Release ---- */

/* The oldest group on its way out, held; NULL: none. */
static ms_offload_group *hold_oldest(ms_offload *engine, bool *out_has_to_wait) {
    ms__lock(&engine->lock);
    ms_offload_group *group = engine->oldest;
    while (group != NULL && !group->is_pending) group = group->newer;
    if (group != NULL) group->n_holds++;
    *out_has_to_wait = engine->counts.n_pending > engine->max_pending;
    ms__unlock(&engine->lock);
    return group;
}

/* What is known of a group's copies to the host, for the stream that asked. */
typedef enum copies_out { OUT_RUNS, OUT_WAITED_FOR, OUT_DONE } copies_out;

/* Let go of a group. Was this the call that released it? */
static bool let_go(ms_offload_group *group, copies_out out) {
    ms_offload *engine = group->engine;
    ms__lock(&engine->lock);
    bool is_first = out != OUT_RUNS && group->is_pending;
    if (is_first) {
        group->is_pending = false;
        engine->counts.n_pending--;
        engine->counts.n_waits += out == OUT_WAITED_FOR;
    }
    group->is_out_done = group->is_out_done || out == OUT_DONE;
    bool is_last = --group->n_holds == 0 && group->is_freed;
    ms__unlock(&engine->lock);
    if (is_last) {
        discard(group, false);
        ms__offload_drop(engine);
    }
    return is_first;
}

/* Is the device memory of a group free, if need be after a wait? */
static ms_status look_out(const ms_offload_group *group, ms__stream stream, bool has_to_wait, copies_out *out) {
    ms_offload *engine = group->engine;
    bool is_done = false;
    *out = OUT_RUNS;
    ms_status status = ms__offload_enter(engine);
    if (status != MS_OK) return status;
    status = engine->backend->is_done(engine->device, group->out_event, &is_done);
    bool waits = status == MS_OK && !is_done && has_to_wait;
    if (waits) status = engine->backend->wait(engine->device, stream, group->out_event);
    status = engine->backend->leave(engine->device, status);
    if (status == MS_OK && (is_done || waits)) *out = is_done ? OUT_DONE : OUT_WAITED_FOR;
    return status;
}

ms_status ms_offload_release(ms_offload *engine, uint64_t stream, void **out_user) {
    if (engine == NULL || out_user == NULL) return ms__fail(MS_E_INVALID, "ms_offload_release: an argument is missing");
    ms_status status = ms__offload_check(engine);
    if (status != MS_OK) return status;
    int64_t start = ms__prim_now_ns();
    void *user = NULL;
    copies_out out = OUT_DONE;
    while (user == NULL && out != OUT_RUNS) { /* another thread may have been first: look again */
        bool has_to_wait = false;
        ms_offload_group *group = hold_oldest(engine, &has_to_wait);
        if (group == NULL) break;
        void *found = group->user;
        status = look_out(group, stream, has_to_wait, &out);
        if (let_go(group, out)) user = found;
    }
    ms__lock(&engine->lock);
    engine->counts.host_ns += ms__prim_now_ns() - start;
    ms__unlock(&engine->lock);
    if (status == MS_OK) *out_user = user;
    return status;
}

/* ---- Back ---- */

ms_status ms_offload_fetch(ms_offload_group *group, const uint64_t *addresses, uint64_t stream) {
    if (group == NULL || addresses == NULL) return ms__fail(MS_E_INVALID, "ms_offload_fetch: an argument is missing");
    ms_offload *engine = group->engine;
    ms_status status = ms__offload_enter(engine);
    if (status != MS_OK) return status;
    if (group->in_event == NULL) status = ms__offload_take_event(engine, &group->in_event);
    if (status == MS_OK) status = copy_in(group, addresses, stream);
    status = leave_copies(engine, status, engine->in);
    if (status != MS_OK) return status;
    ms__lock(&engine->lock);
    group->range.ticket = ++engine->in_ticket;
    group->is_fetched = true;
    engine->counts.n_fetches++;
    for (int64_t i = 0; i < group->n_pieces; i++)
        engine->counts.fetched_bytes += addresses[i] == 0 ? 0 : group->sizes[i];
    ms__unlock(&engine->lock);
    return MS_OK;
}

/* Let `stream` wait until nothing is in flight on device memory of the group. */
static ms_status settle(ms_offload_group *group, ms__stream stream, bool is_used) {
    if (group == NULL) return ms__fail(MS_E_INVALID, "ms_offload_use and _settle: the group is NULL");
    ms_offload *engine = group->engine;
    ms_status status = ms__offload_enter(engine);
    if (status != MS_OK) return status;
    int64_t start = ms__prim_now_ns();
    ms__lock(&engine->lock);
    bool is_out_done = group->is_out_done;
    ms__unlock(&engine->lock);
    if (!is_out_done) status = engine->backend->wait(engine->device, stream, group->out_event);
    if (status == MS_OK && group->in_event != NULL)
        status = engine->backend->wait(engine->device, stream, group->in_event);
    status = engine->backend->leave(engine->device, status);
    ms__lock(&engine->lock);
    if (status == MS_OK) {
        engine->counts.n_pending -= group->is_pending;
        if (is_used) ms__offload_learn(engine, group);
        group->is_pending = group->is_fetched = group->is_foreseen = false;
    }
    engine->counts.host_ns += ms__prim_now_ns() - start;
    ms__unlock(&engine->lock);
    return status;
}

ms_status ms_offload_use(ms_offload_group *group, uint64_t stream) { return settle(group, stream, true); }

ms_status ms_offload_settle(ms_offload_group *group, uint64_t stream) { return settle(group, stream, false); }
