/* ref_checksum.c - the checksum in plain C: what the device's result must equal, and the host's own checksum. */
#include <string.h>

#include "ref.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the checksum reads words as they lie in memory: little-endian, like every host of these GPUs"
#endif

uint64_t ms__checksum_sum(const void *data, size_t n_bytes, uint64_t first_index) {
    const unsigned char *bytes = data;
    uint64_t sum = 0;
    for (size_t at = 0; at < n_bytes; at += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, n_bytes - at < 8 ? n_bytes - at : 8);
        sum += ms__checksum_mix(word, first_index + at / 8);
    }
    return sum;
}

void ms__checksum_reference(const void *args) {
    const ms__checksum_args *a = args;
    *(ms__u64 *)a->sum += ms__checksum_sum((const void *)a->data, a->n_bytes, 0);
}

uint64_t ms_checksum(const void *data, size_t n_bytes) {
    return ms__checksum_finish(ms__checksum_sum(data, n_bytes, 0), n_bytes);
}
