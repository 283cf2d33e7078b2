/* arena.h - memory that is freed all at once.
 *
 * For structures that are built, used and thrown away together (a parsed document, the tables of a search). A zeroed
 * ms__arena is ready to use. Nothing moves: pointers stay valid until ms__arena_free.
 */
#ifndef MS_COMMON_ARENA_H
#define MS_COMMON_ARENA_H

#include <stddef.h>

#include "status.h"

typedef struct ms__arena_block ms__arena_block;

typedef struct ms__arena {
    ms__arena_block *blocks; /* newest first */
    size_t used;             /* bytes used of the newest block */
} ms__arena;

/* `n_bytes` zeroed bytes, aligned for any type; NULL when memory runs out (the error record is set). 0 bytes give a
 * valid pointer. */
void *ms__arena_alloc(ms__arena *arena, size_t n_bytes);

/* The same for an array; also NULL where the product overflows. */
void *ms__arena_array(ms__arena *arena, size_t n, size_t item_bytes);

/* Several arrays at once: ms__arena_arrays(arena, MS__ARRAY(a, n), MS__ARRAY(b, m)) sets the pointers a and b to n and
 * m zeroed items. Errors: MS_E_NO_MEMORY. */
typedef struct ms__array {
    void *pointer; /* the address of a pointer to objects */
    size_t n, item_bytes;
} ms__array;

#define MS__ARRAY(pointer, n) {&(pointer), (size_t)(n), sizeof *(pointer)}
#define ms__arena_arrays(arena, ...)                                                                                   \
    ms__arena_list((arena), (const ms__array[]){__VA_ARGS__},                                                          \
                   sizeof((const ms__array[]){__VA_ARGS__}) / sizeof(ms__array))
ms_status ms__arena_list(ms__arena *arena, const ms__array *arrays, size_t n_arrays);

/* A NUL-terminated copy of n_bytes bytes. */
char *ms__arena_string(ms__arena *arena, const char *text, size_t n_bytes);

/* Free everything and leave the arena ready for use. */
void ms__arena_free(ms__arena *arena);

#endif
