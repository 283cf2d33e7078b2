/* caller.h - checks for programs that represent other people's: no header of the library, no test runner. */
#ifndef TESTS_ABI_CALLER_H
#define TESTS_ABI_CALLER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (condition) break;                                                                                          \
        fprintf(stderr, "%s:%d: %s is false: %s\n", __FILE__, __LINE__, #condition, ms_error_message());               \
        exit(1);                                                                                                       \
    } while (0)

/* A model of three layers, measured without a step. */
#define UNIT(name, saved)                                                                                              \
    "{\"name\": \"" name "\", \"param_bytes\": 1000000, \"saved_bytes\": " saved ", \"input_bytes\": 1000000, "        \
    "\"n_rows\": 64, \"eligible\": true, \"run\": true}"
#define PROFILE                                                                                                        \
    "{\"memscale_profile\": 3, \"resident_bytes\": 12000000, \"outside_bytes\": 0, \"units\": [" UNIT(                 \
        "a", "50000000") ", " UNIT("b", "50000000") ", " UNIT("c", "50000000") "]}"

#endif
