/* hash.h - adds integers to the stable 64-bit hash of memscale.h. */
#ifndef MS_COMMON_HASH_H
#define MS_COMMON_HASH_H

#include <stdint.h>

/* The hash of a sequence: fold one value after the other into `hash`. Order matters. */
uint64_t ms__hash_fold(uint64_t hash, uint64_t value);

#endif
