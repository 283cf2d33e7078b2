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

/* A model of three layers, each of which saves 50 MB and can be recomputed from 1 MB. */
#define UNIT(name, saved)                                                                                              \
    "{\"name\": \"" name "\", \"param_bytes\": 1000000, \"saved_bytes\": " saved ", \"input_bytes\": 1000000, "        \
    "\"n_rows\": 64, \"eligible\": true, \"run\": true}"
#define STEP                                                                                                           \
    "{\"batch\": 0, \"length\": 0, \"recomputed\": true, \"numbers\": [12000000,0,50000000,1000000,49000000], "        \
    "\"costs\": [1,2,4,0,1,1,4,0], \"scratches\": [], \"keys\": [0,1,3,0,4,0,1,0,4,6], "                               \
    "\"rest\": [[0,[0,0]],[2,[2,1,0,3]],[3,[2,1,1,2]]], "                                                              \
    "\"classes\": "                                                                                                    \
    "[[[1,[2,0,0,1,0,2,0,3,1,-1],[2,0,[3,4,1],1,0]],[3,[2,0,0,4,2,0,2,0,1,0,1,-3,1,2],[2,0,2,0,1,2,1,-1]]]], "         \
    "\"units\": [0,0,0], \"order\": [-1,0,1,2,-1,-1,2,1,0]}"
#define PROFILE                                                                                                        \
    "{\"memscale_profile\": 4, \"resident_bytes\": 12000000, \"outside_bytes\": 0, \"units\": [" UNIT(                 \
        "a", "50000000") ", " UNIT("b", "50000000") ", " UNIT("c", "50000000") "], \"step\": " STEP "}"

#endif
