/* intern.c - equal items of an array become one: a table of places, open addressing, never more than half full. */
#include "intern.h"

#include <string.h>

#include "hash.h"

ms_status ms__intern(ms__arena *arena, void *items, size_t n, size_t item_bytes, uint32_t **out_index,
                     uint32_t *out_n) {
    size_t n_places = 16;
    while (n_places < n * 2) n_places *= 2;
    uint32_t *places = ms__arena_array(arena, n_places, sizeof *places); /* index + 1; 0: free */
    uint32_t *index = ms__arena_array(arena, n, sizeof *index);
    if (places == NULL || index == NULL) return MS_E_NO_MEMORY;
    char *all = items;
    uint32_t n_left = 0;
    for (size_t i = 0; i < n; i++) {
        const char *item = all + i * item_bytes;
        size_t at = (size_t)ms_hash64(item, item_bytes, 0) & (n_places - 1);
        while (places[at] != 0 && memcmp(all + (places[at] - 1) * item_bytes, item, item_bytes) != 0)
            at = (at + 1) & (n_places - 1);
        if (places[at] == 0) {
            memmove(all + n_left * item_bytes, item, item_bytes);
            places[at] = ++n_left;
        }
        index[i] = places[at] - 1;
    }
    *out_index = index;
    *out_n = n_left;
    return MS_OK;
}
