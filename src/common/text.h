/* text.h - sizes and times as people read them: three significant digits and a unit, the same text on every machine. */
#ifndef MS_COMMON_TEXT_H
#define MS_COMMON_TEXT_H

#include <stdint.h>

#define MS__MIN_DIGITS 3

/* A number with its unit. */
typedef struct ms__figure {
    char text[32];
} ms__figure;

/* `digits` significant digits (at least MS__MIN_DIGITS), rounded: "10.6 GB", "537 MB", "12 B"; "7.70 us". */
ms__figure ms__size_text(int64_t bytes, int digits);
ms__figure ms__time_text(int64_t ns, int digits);

/* With a sign also where it is positive: "+10.6 GB". */
ms__figure ms__signed_text(ms__figure figure);

/* How many bytes of a name are shown: at most `most`, and whole characters. */
int ms__name_cut(const char *name, int most);

/* Where something happens in a step, long names cut. */
typedef struct ms__place {
    char text[160];
} ms__place;

/* "in backward of lm_head", "in forward, between layers", "between steps". `layer`: its name, or NULL. */
ms__place ms__place_text(int32_t phase, const char *layer);

/* How many digits two numbers in one sentence need, so that different numbers look different. */
int ms__size_digits(int64_t a, int64_t b);
int ms__time_digits(int64_t a, int64_t b);

#endif
