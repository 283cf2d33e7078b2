/* addresses.h - where the driver puts the segments that it hands out.
 *
 * Torch takes the free block with the lowest address among those of equal size, so addresses decide which holes a step
 * leaves. As seen with CUDA's driver on Linux: a segment goes to the lowest gap that is large enough, in address ranges
 * that are in use; else a new range of whole 32 MiB is taken, from the top of the address space downwards. A range that
 * is wholly free goes back.
 */
#ifndef MS_SIM_ADDRESSES_H
#define MS_SIM_ADDRESSES_H

#include "../common/status.h"
#include "../common/vec.h"

typedef struct ms__range {
    int64_t address, n_bytes;
} ms__range;

typedef struct ms__address_chunk {
    ms__range range;
    int64_t used_bytes;
} ms__address_chunk;

/* All of it is zero at the beginning. The arrays are in the order of addresses. */
typedef struct ms__addresses {
    MS__VEC(ms__address_chunk) chunks; /* ranges in use */
    MS__VEC(ms__range) gaps;           /* free, inside of chunks */
    MS__VEC(ms__range) holes;          /* free, between chunks */
    int64_t n_below;                   /* bytes from the top of the space to its lowest chunk */
    size_t n_segments;
} ms__addresses;

/* An address for a segment of n_bytes (above 0). Errors: MS_E_LIMIT (it would be above 2^62 bytes in all),
 * MS_E_NO_MEMORY; nothing has changed then. */
ms_status ms__addresses_take(ms__addresses *addresses, int64_t n_bytes, int64_t *out_address);

/* Return a segment. Cannot fail. */
void ms__addresses_give(ms__addresses *addresses, int64_t address, int64_t n_bytes);

void ms__addresses_free(ms__addresses *addresses);

#endif
