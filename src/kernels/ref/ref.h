/* ref.h - every kernel in plain C: the oracle that device code is compared with. It reads like the formula. */
#ifndef MS_KERNELS_REF_H
#define MS_KERNELS_REF_H

#include <stddef.h>
#include <stdint.h>

#include <memscale/memscale.h>

#include "../checksum_math.h"

/* The sum over the words of a piece whose first word has this index in the whole. A piece that is not the last has a
 * multiple of 8 bytes. */
uint64_t ms__checksum_sum(const void *data, size_t n_bytes, uint64_t first_index);

/* The same as the kernel, with host addresses in the arguments. */
void ms__checksum_reference(const void *args);

#endif
