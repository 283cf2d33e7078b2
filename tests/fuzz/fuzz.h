/* fuzz.h - what a fuzz target provides, to libFuzzer or to the stand-alone driver (fuzz_driver.c).
 *
 * A target is one function and one list of words. It keeps nothing from one input to the next, so that an input which
 * fails fails again by itself.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Run one input; a condition that does not hold aborts. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* Words of the format for the driver's mutations; ends in NULL. */
extern const char *const fuzz_dictionary[];

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (condition) break;                                                                                          \
        fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition);                                       \
        abort();                                                                                                       \
    } while (0)

#endif
