/* checksum_math.h - the checksum of ms_checksum, for host and device.
 *
 * Bytes are taken as little-endian 64-bit words, counted from the first byte, whatever its address; the last one is
 * padded with zeros. Each word is mixed with its index and the results are added, so any order and any number of
 * threads give the same sum, and bytes that moved change it. The length is mixed in at the end: zeros that were lost
 * change it too.
 */
#ifndef MS_KERNELS_CHECKSUM_MATH_H
#define MS_KERNELS_CHECKSUM_MATH_H

#include "shared.h"

typedef struct ms__checksum_args {
    ms__u64 data;    /* address of the first byte */
    ms__u64 n_bytes; /* any number */
    ms__u64 sum;     /* address of the ms__u64 that the sum is added to */
} ms__checksum_args;

MS__SAME(sizeof(ms__checksum_args) == 24, "the arguments of the checksum are the same on both sides");

/* One-to-one in `word` for a given `index`. */
MS__SHARED ms__u64 ms__checksum_mix(ms__u64 word, ms__u64 index) {
    ms__u64 mixed = word + (index + 1) * 0x9E3779B97F4A7C15ULL;
    mixed = (mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93ULL;
    mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9ULL;
    return mixed ^ (mixed >> 32);
}

/* The checksum, from the sum over all words. */
MS__SHARED ms__u64 ms__checksum_finish(ms__u64 sum, ms__u64 n_bytes) { return ms__checksum_mix(sum, n_bytes); }

#endif
