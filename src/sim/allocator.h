/* allocator.h - a model of PyTorch's caching allocator for CUDA, which needs no GPU.
 *
 * From the sizes that a program allocates and frees, in order, it computes what torch.cuda.memory_allocated() and
 * memory_reserved() would be: torch 2.4 to 2.13 with default settings, one device, no record_stream, no graphs. Of
 * free blocks of equal size the one with the lowest address is taken, so where the driver puts segments counts as well:
 * addresses.h. From ms__allocator_grow() on, segments grow, as with expandable_segments:True. An allocator belongs to
 * one thread at a time.
 */
#ifndef MS_SIM_ALLOCATOR_H
#define MS_SIM_ALLOCATOR_H

#include <stdint.h>

#include "../common/status.h"

#define MS__NO_BLOCK (-1)

/* Segments that grow do so by whole granules. The limit is checked against the request, not against the granules that
 * it needs, so that what is reserved may exceed a limit by less than the larger granule. */
#define MS__SMALL_GRANULE_BYTES ((int64_t)2 << 20)
#define MS__LARGE_GRANULE_BYTES ((int64_t)20 << 20)

typedef struct ms__allocator ms__allocator;

typedef struct ms__allocator_stats {
    int64_t allocated_bytes; /* of whole blocks: more than was asked for where a block was not split */
    int64_t reserved_bytes;  /* of segments: what the driver has handed out */
    int64_t peak_allocated_bytes;
    int64_t peak_reserved_bytes;
    int64_t inactive_split_bytes; /* free, but in a segment that is partly used: cannot be returned */
    int64_t n_segments;
    int64_t n_retries;    /* requests that were over the limit until unused memory was returned */
    int64_t needed_bytes; /* the least limit with which every request so far would have been possible: unused memory is
                             returned first */
} ms__allocator_stats;

/* `limit_bytes` bounds the reserved bytes, as torch.cuda.set_per_process_memory_fraction does; 0: no limit. `*out` is
 * owned, ms__allocator_destroy. Errors: MS_E_INVALID, MS_E_NO_MEMORY. */
ms_status ms__allocator_create(int64_t limit_bytes, ms__allocator **out);

/* From now on segments grow: new memory is mapped at the end of one long segment for each pool and stream, or where
 * memory was returned. Segments that exist stay as they are. Cannot fail. */
void ms__allocator_grow(ms__allocator *allocator);

/* From now on large memory is mapped at the end alone, as if much of it had been mapped there: torch takes it from
 * there rather than from gaps that have no memory. Cannot fail. */
void ms__allocator_close_gaps(ms__allocator *allocator);

/* Cannot fail. NULL is allowed. */
void ms__allocator_destroy(ms__allocator *allocator);

/* Allocate a block of at least n_bytes for a stream, which is any number; MS__NO_BLOCK for 0 bytes. The numbers of
 * freed blocks are reused. Errors: MS_E_INVALID (negative), MS_E_BUDGET (no room under the limit although every unused
 * segment was returned; ms__error_value() is the limit that would be enough), MS_E_LIMIT (over 2^60 bytes, or 2^62 in
 * all segments), MS_E_NO_MEMORY (of the host; no block has changed). */
ms_status ms__allocator_take(ms__allocator *allocator, int64_t n_bytes, int64_t stream, int64_t *out_block);

/* Free the block for its stream. MS__NO_BLOCK is allowed. Errors: MS_E_INVALID (not a block that is taken). */
ms_status ms__allocator_give(ms__allocator *allocator, int64_t block);

/* Return all segments that are wholly free, and all free granules of those that grow, as torch.cuda.empty_cache()
 * does. Errors: MS_E_NO_MEMORY (of the host; less may have been returned). */
ms_status ms__allocator_empty(ms__allocator *allocator);

ms__allocator_stats ms__allocator_get_stats(const ms__allocator *allocator);

/* Set the peaks to the current values. */
void ms__allocator_reset_peaks(ms__allocator *allocator);

#endif
