/* backend.h - what the offload engine needs of a device, as a table of functions: streams, events, copies, host memory.
 *
 * Two backends: the driver of a GPU (cuda_backend.c), and the host itself (host_backend.h), whose streams are threads.
 * The engine is the same code with both.
 *
 * As with the driver: work of a stream is done in its order; an event records what was queued on a stream before it; a
 * wait is for the event as it was recorded last when the wait was queued, so an event may be recorded again at once.
 * All functions may be called from several threads. Those that take or give back host memory may take long. Between
 * enter() and leave() the calling thread may use the others; each thread for itself.
 */
#ifndef MS_OFFLOAD_BACKEND_H
#define MS_OFFLOAD_BACKEND_H

#include "../common/status.h"

/* How a piece of host memory was taken, and has to be given back. */
typedef enum ms__host_kind {
    MS__HOST_PAGEABLE,   /* copies may block the calling thread */
    MS__HOST_REGISTERED, /* pages that were pinned afterwards */
    MS__HOST_PINNED      /* memory that the driver pinned itself */
} ms__host_kind;

typedef struct ms__host_memory {
    void *memory;
    int64_t n_bytes;
    ms__host_kind kind;
} ms__host_memory;

typedef struct ms__copy {
    uint64_t device; /* address there */
    void *host;
    int64_t n_bytes;
    bool to_device;
} ms__copy;

typedef uint64_t ms__stream; /* one of the backend's, or of the program: a CUstream as a number */
typedef void *ms__event;

typedef struct ms__backend {
    ms_status (*enter)(void *self);
    ms_status (*leave)(void *self, ms_status status); /* `status`, or the failure to leave */
    ms_status (*stream_create)(void *self, ms__stream *out);
    void (*stream_destroy)(void *self, ms__stream stream); /* waits for its work */
    ms_status (*event_create)(void *self, ms__event *out);
    void (*event_destroy)(void *self, ms__event event); /* nothing may wait for it any more */
    ms_status (*record)(void *self, ms__event event, ms__stream stream);
    ms_status (*wait)(void *self, ms__stream stream, ms__event event);
    ms_status (*is_done)(void *self, ms__event event, bool *out);
    ms_status (*synchronize)(void *self, ms__stream stream); /* the calling thread waits for its work */
    ms_status (*copy)(void *self, const ms__copy *copy, ms__stream stream);
    ms_status (*take_memory)(void *self, int64_t n_bytes, bool is_pinned, ms__host_memory *out);
    void (*give_memory)(void *self, const ms__host_memory *memory);
    void (*destroy)(void *self);
    void (*abandon)(void *self); /* in a forked child: free what is the child's own, and call nothing */
} ms__backend;

/* Backends of an engine. `self` is owned by it. `*out_self` is set on success only. */
ms_status ms__cuda_backend_create(ms_gpu *gpu, int64_t device, const ms__backend **out, void **out_self);

#endif
