/* math.h - arithmetic on whole numbers that several files need. No function checks for overflow: callers know that
 * their numbers fit.
 */
#ifndef MS_COMMON_MATH_H
#define MS_COMMON_MATH_H

#include <stdint.h>

static inline int64_t ms__min(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t ms__max(int64_t a, int64_t b) { return a > b ? a : b; }

static inline int64_t ms__abs(int64_t a) { return a < 0 ? -a : a; }

/* Rounded up, also below zero. `divisor` is above 0. */
static inline int64_t ms__ceil_div(int64_t n, int64_t divisor) { return n / divisor + (n % divisor > 0); }

/* To the next multiple of `step`, which is above 0. */
static inline int64_t ms__round_up(int64_t n, int64_t step) { return ms__ceil_div(n, step) * step; }

#endif
