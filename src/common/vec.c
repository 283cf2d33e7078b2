/* vec.c - growth of the arrays of vec.h: doubling, with every product checked. */
#include "vec.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

bool ms__vec_grow(void *items, size_t *capacity, size_t n, size_t n_more, size_t item_bytes) {
    if (n_more <= *capacity - n) return true;
    size_t limit = SIZE_MAX / 2 / item_bytes;
    if (n_more > limit - n) {
        (void)ms__fail_memory(SIZE_MAX);
        return false;
    }
    size_t wanted = *capacity < 8 ? 8 : *capacity;
    while (wanted < n + n_more) wanted = wanted > limit / 2 ? limit : wanted * 2;
    void *old; /* copied, not cast: a pointer to T * may not be read through void ** */
    memcpy(&old, items, sizeof old);
    void *grown = realloc(old, wanted * item_bytes);
    if (grown == NULL) {
        (void)ms__fail_memory(wanted * item_bytes);
        return false;
    }
    memcpy(items, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}

void ms__vec_release(void *items, size_t *n, size_t *capacity) {
    void *old, *none = NULL;
    memcpy(&old, items, sizeof old);
    free(old);
    memcpy(items, &none, sizeof none);
    *n = 0;
    *capacity = 0;
}
