/* hash.c - the stable hash of signatures and fingerprints.
 *
 * Eight bytes at a time, read as little-endian whatever the machine, each folded in with a multiply and a shift. Not
 * for hostile keys: it is used to compare shapes, plans and programs, all of our own. Compiled code is named by two of
 * it.
 */
#include "hash.h"

#include <memscale/memscale.h>

#define ODD_A UINT64_C(0x9E3779B97F4A7C15)
#define ODD_B UINT64_C(0xD6E8FEB86659FD93)

uint64_t ms__hash_fold(uint64_t hash, uint64_t value) {
    uint64_t mixed = (hash ^ value) * ODD_A;
    mixed ^= mixed >> 29;
    mixed = (mixed + value) * ODD_B;
    return mixed ^ (mixed >> 32);
}

uint64_t ms_hash64(const void *data, size_t n_bytes, uint64_t seed) {
    const unsigned char *bytes = data;
    uint64_t hash = ms__hash_fold(seed, n_bytes);
    for (size_t start = 0; start < n_bytes; start += 8) {
        uint64_t word = 0;
        for (size_t i = 0; i < 8 && start + i < n_bytes; i++) word |= (uint64_t)bytes[start + i] << (8 * i);
        hash = ms__hash_fold(hash, word);
    }
    return hash;
}
