/* random.h - random numbers of the property tests: MEMSCALE_PROP_N cases (2000), from MEMSCALE_PROP_SEED (1).
 *
 * Each case has its own seed, so that it can be run without those before it.
 */
#ifndef TESTS_RANDOM_H
#define TESTS_RANDOM_H

#include <stdbool.h>
#include <stdlib.h>

#include "runner.h"

static uint64_t random_state;
static int64_t current_case;

#define LAW(condition)                                                                                                 \
    ((condition) ? (void)0                                                                                             \
                 : test_fail(__FILE__, __LINE__, "case %lld: %s is false", (long long)current_case, #condition))

static inline int64_t setting(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoll(text, NULL, 10);
}

static inline int64_t n_cases(void) { return setting("MEMSCALE_PROP_N", 2000); }

static inline uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* From 0 to `most`. */
static inline int64_t up_to(int64_t most) { return (int64_t)(next_random() % ((uint64_t)most + 1)); }

static inline bool one_in(int64_t n) { return up_to(n - 1) == 0; }

static inline void start_case(int64_t index) {
    current_case = index;
    random_state = ms_hash64(&index, sizeof index, (uint64_t)setting("MEMSCALE_PROP_SEED", 1)) | 1;
    for (int i = 0; i < 4; i++) (void)next_random();
}

#endif
