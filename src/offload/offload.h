/* offload.h - what an offload engine and its groups consist of.
 *
 * Two streams: `out` copies to the host, `in` copies back. Each does its copies in order, and everything else is
 * ordered by events:
 *   - `out` waits for the stream that wrote the tensors; whoever frees them waits for the group's out_event.
 *   - `in` waits for the stream on which the device memory was free, and for the group's out_event; whoever reads the
 *     tensors waits for the group's in_event.
 *   - Host memory of a group that was freed may still be read by `in`. Copies to the device have tickets, 1, 2, ..., a
 *     free range has that of its last one, and before `out` fills it again it waits for all copies up to that. A copy
 *     that still fills it needs no care: `out` does that first.
 *
 * The engine's lock guards everything after it, and all fields of groups that say so. No call of the backend is made
 * under it. A group's other fields are the group's own thread's.
 *
 * Whose engine is a group's? Both own it: it goes with the last of them.
 */
#ifndef MS_OFFLOAD_OFFLOAD_H
#define MS_OFFLOAD_OFFLOAD_H

#include "../prim/prim_thread.h"
#include "backend.h"
#include "pool.h"

#define MS__MAX_KEYS 65536
#define MS__NO_KEY (-1)

struct ms_offload_group {
    ms_offload *engine;
    int64_t key;
    void *user;
    ms__pool_range range;
    ms__event out_event; /* its copies to the host are done; set for good when it is published */
    ms__event in_event;  /* those to the device; NULL before the first */
    /* under the lock */
    ms_offload_group *older, *newer; /* by the order in which they were put */
    int64_t n_holds;                 /* threads that look at it without the lock */
    bool is_pending;                 /* its device memory was not released yet */
    bool is_out_done;                /* its copies to the host were seen to be done */
    bool is_fetched;                 /* and not used since */
    bool is_foreseen;                /* next() returned it, and it was not used since */
    bool is_freed;                   /* whoever holds it last frees it */
    int64_t used_in;                 /* the backward in which it was used last; 0: none */
    /* never changed */
    int64_t n_pieces;
    int64_t n_bytes;  /* of all pieces */
    int64_t sizes[1]; /* of the pieces; one after the other in the range, aligned */
};

struct ms_offload {
    const ms__backend *backend;
    void *device; /* the backend's self */
    int64_t pid;
    int64_t limit_bytes, pinned_limit_bytes, max_pending;
    ms__stream out, in;
    ms__mutex lock;
    int64_t n_owners;
    ms__pool pool;
    int64_t growing_bytes, growing_pinned_bytes; /* that threads are taking from the system now */
    bool is_pageable_said;
    MS__VEC(ms__event) events; /* not in use */
    size_t n_taken_events;     /* in use: there is room in `events` for all of them */
    ms_offload_group *oldest, *newest;
    int64_t in_ticket;       /* of the last copy to the device */
    int64_t covered_ticket;  /* `out` has waited for all up to this one */
    MS__VEC(int64_t) nexts;  /* by key: the key that was used after it the last time, or MS__NO_KEY */
    int64_t last_key;        /* that was used */
    int64_t backward;        /* 1, 2, ...: a new one begins where a group is used that was used in this one */
    ms_offload_stats counts; /* those that are not elsewhere */
};

/* Is this the process that made the engine? Errors: MS_E_UNAVAILABLE. */
ms_status ms__offload_check(const ms_offload *engine);

/* Begin a call: that check, and the backend's enter. The backend's leave ends it. */
ms_status ms__offload_enter(ms_offload *engine);

/* Make an engine on a backend, which it owns from then on, also if this fails. */
ms_status ms__offload_start(const ms_offload_options *options, const ms__backend *backend, void *device,
                            ms_offload **out);

/* One owner less; without the lock. */
void ms__offload_drop(ms_offload *engine);

/* A range of the pool, which grows if it has to. Errors: MS_E_NO_MEMORY. */
ms_status ms__offload_take_range(ms_offload *engine, int64_t n_bytes, ms__pool_range *out);

/* An event that is not in use, and giving it back, which cannot fail. */
ms_status ms__offload_take_event(ms_offload *engine, ms__event *out);
void ms__offload_give_event(ms_offload *engine, ms__event event);

/* With the lock held: backward has come to a group. There is room for its key since it was put. */
void ms__offload_learn(ms_offload *engine, ms_offload_group *group);

/* Room to learn about a key. Errors: MS_E_NO_MEMORY. */
ms_status ms__offload_know_key(ms_offload *engine, int64_t key);

#endif
