/* pool.h - the host memory of an offload engine: one range of numbers, made of segments, given out in ranges.
 *
 * A position in the pool is a number from 0 to its size. Segments of host memory cover it, one after the other, and the
 * pool grows at its end by exactly what is missing. A range may lie across segments: whoever copies asks for the memory
 * of each part. So free ranges next to each other are always one, nothing is rounded to powers of two, and nothing is
 * taken again while the pool is large enough.
 *
 * Each free range has a ticket: the last copy to the device that may still read it (offload.h). Whoever fills it again
 * waits for that copy first.
 *
 * Not locked: the engine's lock is held around every call.
 */
#ifndef MS_OFFLOAD_POOL_H
#define MS_OFFLOAD_POOL_H

#include "../common/vec.h"
#include "backend.h"

#define MS__POOL_ALIGN 512 /* of the ranges that are given out */

typedef struct ms__pool_segment {
    int64_t start;
    ms__host_memory host;
} ms__pool_segment;

typedef struct ms__pool_range {
    int64_t start, n_bytes;
    int64_t ticket;
} ms__pool_range;

typedef struct ms__pool {
    MS__VEC(ms__pool_segment) segments; /* without gaps */
    MS__VEC(ms__pool_range) free;       /* by start; never next to each other */
    int64_t n_taken;                    /* ranges that are out: there is room in `free` for all of them */
    int64_t n_bytes, used_bytes, pinned_bytes;
} ms__pool;

/* Add a segment at the end. Errors: MS_E_NO_MEMORY; then it is still the caller's. */
ms_status ms__pool_add(ms__pool *pool, const ms__host_memory *host);

/* How many bytes the pool lacks for a range of n_bytes; 0: there is one. */
int64_t ms__pool_lacks(const ms__pool *pool, int64_t n_bytes);

/* Take a range of n_bytes, a multiple of MS__POOL_ALIGN: the smallest that is large enough. The pool must not lack
 * anything. Errors: MS_E_NO_MEMORY. */
ms_status ms__pool_take(ms__pool *pool, int64_t n_bytes, ms__pool_range *out);

/* Give back a range that was taken, as it was taken, with the ticket of the last copy that reads it. Cannot fail. */
void ms__pool_give(ms__pool *pool, ms__pool_range range);

/* The memory at a position, and how much of n_bytes lies there without a break. */
void *ms__pool_memory(const ms__pool *pool, int64_t start, int64_t n_bytes, int64_t *out_n_here);

/* Free the lists; the segments must have been given back. */
void ms__pool_free(ms__pool *pool);

#endif
