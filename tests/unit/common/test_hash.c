/* test_hash.c - the stable hash: golden values, and the few properties it must have in addition.
 *
 * Fingerprints of plans and signatures of models are kept in files, so these values never change within a major
 * version. They were computed by an independent program from the definition in hash.c.
 */
#include "runner.h"

#include <stdbool.h>
#include <string.h>

#include "common/hash.h"

TEST(values_never_change) {
    unsigned char counting[64];
    for (size_t i = 0; i < sizeof counting; i++) counting[i] = (unsigned char)i;
    CHECK_EQ_U64(ms_hash64(NULL, 0, 0), UINT64_C(0x0000000000000000));
    CHECK_EQ_U64(ms_hash64(NULL, 0, 1), UINT64_C(0xD8685893E3D7D0E9));
    CHECK_EQ_U64(ms_hash64("a", 1, 0), UINT64_C(0xB25E7B12B714FC33));
    CHECK_EQ_U64(ms_hash64("abc", 3, 0), UINT64_C(0x09CCEA807068D618));
    CHECK_EQ_U64(ms_hash64("abc", 3, 7), UINT64_C(0x64F07782043623F6));
    CHECK_EQ_U64(ms_hash64("memscale", 8, 0), UINT64_C(0x42B1F77A28887DF4));
    CHECK_EQ_U64(ms_hash64("memscale!", 9, 0), UINT64_C(0xC12E47177BC70B23));
    CHECK_EQ_U64(ms_hash64(counting, sizeof counting, 0), UINT64_C(0xDFD30D9C36FB3E22));
    CHECK_EQ_U64(ms_hash64("\0\0\0\0\0\0\0\0", 8, 0), UINT64_C(0x1A7F025A9EF66A40));
    CHECK_EQ_U64(ms_hash64("\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 7, UINT64_MAX), UINT64_C(0x965651664329DAC3));
}

TEST(folded_values_never_change) {
    CHECK_EQ_U64(ms__hash_fold(0, 0), UINT64_C(0x0000000000000000));
    CHECK_EQ_U64(ms__hash_fold(0, 1), UINT64_C(0xAF51574B0D48D146));
    CHECK_EQ_U64(ms__hash_fold(1, 0), UINT64_C(0xD8685893E3D7D0E9));
    CHECK_EQ_U64(ms__hash_fold(UINT64_MAX, UINT64_MAX), UINT64_C(0x29170147B0B1032A));
    CHECK_EQ_U64(ms__hash_fold(UINT64_C(0x0123456789ABCDEF), 42), UINT64_C(0xE803B4880C1E9DAA));
}

TEST(alignment_does_not_matter) {
    char buffer[32];
    for (size_t shift = 0; shift < 8; shift++) {
        memcpy(buffer + shift, "memscale!", 9);
        CHECK_EQ_U64(ms_hash64(buffer + shift, 9, 0), UINT64_C(0xC12E47177BC70B23));
    }
}

TEST(order_matters) {
    CHECK(ms_hash64("ab", 2, 0) != ms_hash64("ba", 2, 0));
    CHECK(ms_hash64("0123456789abcdef", 16, 0) != ms_hash64("89abcdef01234567", 16, 0));
    CHECK(ms__hash_fold(ms__hash_fold(0, 1), 2) != ms__hash_fold(ms__hash_fold(0, 2), 1));
}

TEST(length_and_seed_matter) {
    static const char zeros[64];
    uint64_t seen[sizeof zeros + 1];
    for (size_t n = 0; n <= sizeof zeros; n++) {
        seen[n] = ms_hash64(zeros, n, 3);
        for (size_t i = 0; i < n; i++) CHECK(seen[i] != seen[n]);
    }
    CHECK(ms_hash64("abc", 3, 0) != ms_hash64("abc", 3, 1));
}

static int n_bits(uint64_t value) {
    int n = 0;
    for (; value != 0; value &= value - 1) n++;
    return n;
}

/* Every bit of the input changes about half of the bits of the hash, and none changes only a few. */
TEST(single_bits_spread) {
    unsigned char bytes[24];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37 + 11);
    uint64_t plain = ms_hash64(bytes, sizeof bytes, 0);
    int total = 0, n = (int)sizeof bytes * 8;
    for (int bit = 0; bit < n; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        int changed = n_bits(plain ^ ms_hash64(bytes, sizeof bytes, 0));
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(changed >= 8 && changed <= 56);
        total += changed;
    }
    CHECK(total > n * 28 && total < n * 36);
}

/* Names as models have them: none of 10,000 collide, in all bits or in the low 32 by more than chance allows. */
TEST(names_do_not_collide) {
    enum { N = 10000 };
    static uint64_t hashes[N];
    for (int i = 0; i < N; i++) {
        char name[32] = "model.layers.";
        size_t n = strlen(name);
        for (int rest = i; rest > 0; rest /= 10) name[n++] = (char)('0' + rest % 10);
        hashes[i] = ms_hash64(name, n, 0);
    }
    int n_low = 0;
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < i; k++) {
            CHECK(hashes[i] != hashes[k]);
            n_low += (uint32_t)hashes[i] == (uint32_t)hashes[k];
        }
    }
    CHECK(n_low <= 2); /* 0.012 expected */
}

SUITE(hash, CASE(values_never_change), CASE(folded_values_never_change), CASE(alignment_does_not_matter),
      CASE(order_matters), CASE(length_and_seed_matter), CASE(single_bits_spread), CASE(names_do_not_collide));
