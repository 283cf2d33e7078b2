/* checksum.cu - the sum over mixed words of checksum_math.h on the device, added to *args.sum.
 *
 * Any grid of blocks whose size is a multiple of 32. Every byte is read once or twice, none outside of the range. Data
 * at a multiple of 16 bytes is read in pieces of 16; elsewhere a word is assembled from the two aligned ones that
 * contain it, and from single bytes at the ends.
 */
#include "../checksum_math.h"

MS__SHARED ms__u64 word_of_bytes(const unsigned char *data, ms__u64 n_bytes, ms__u64 index) {
    ms__u64 word = 0;
    for (ms__u64 i = 0; i < 8 && 8 * index + i < n_bytes; i++) word |= (ms__u64)data[8 * index + i] << (8 * i);
    return word;
}

/* The word at `index`, where `data` is `off` bytes after a multiple of 8. */
MS__SHARED ms__u64 word_at(const unsigned char *data, ms__u64 n_bytes, ms__u64 index, unsigned off) {
    ms__u64 first = 8 * index - off; /* of the aligned word in which it begins; before the range for index 0 */
    if (off == 0 && 8 * index + 8 <= n_bytes) return *(const ms__u64 *)(data + first);
    if (off == 0 || index == 0 || first + 16 > n_bytes) return word_of_bytes(data, n_bytes, index);
    const ms__u64 *aligned = (const ms__u64 *)(data + first);
    return aligned[0] >> (8 * off) | aligned[1] << (64 - 8 * off);
}

/* The sum of this thread's words: every `step`-th from `first` on. */
MS__SHARED ms__u64 sum_of_pairs(const unsigned char *data, ms__u64 n_bytes, ms__u64 first, ms__u64 step) {
    const ulonglong2 *pairs = (const ulonglong2 *)data;
    ms__u64 sum = 0, n_pairs = n_bytes / 16, n_words = (n_bytes + 7) / 8;
    for (ms__u64 i = first; i < n_pairs; i += step) {
        ulonglong2 pair = pairs[i];
        sum += ms__checksum_mix(pair.x, 2 * i) + ms__checksum_mix(pair.y, 2 * i + 1);
    }
    for (ms__u64 i = 2 * n_pairs + first; i < n_words; i += step)
        sum += ms__checksum_mix(word_of_bytes(data, n_bytes, i), i);
    return sum;
}

MS__SHARED ms__u64 sum_of_words(const unsigned char *data, ms__u64 n_bytes, ms__u64 first, ms__u64 step) {
    ms__u64 sum = 0, n_words = (n_bytes + 7) / 8;
    unsigned off = (unsigned)((ms__u64)data & 7);
    for (ms__u64 i = first; i < n_words; i += step) sum += ms__checksum_mix(word_at(data, n_bytes, i, off), i);
    return sum;
}

MS__KERNEL(ms_checksum_kernel)(ms__checksum_args args) {
    const unsigned char *data = (const unsigned char *)args.data;
    ms__u64 first = (ms__u64)blockIdx.x * blockDim.x + threadIdx.x, step = (ms__u64)gridDim.x * blockDim.x;
    ms__u64 sum = (args.data & 15) == 0 ? sum_of_pairs(data, args.n_bytes, first, step)
                                        : sum_of_words(data, args.n_bytes, first, step);
#if defined(__CUDA_ARCH__)
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xFFFFFFFFU, sum, lanes);
    if (threadIdx.x % 32 != 0) return;
#endif
    atomicAdd((ms__u64 *)args.sum, sum);
}
