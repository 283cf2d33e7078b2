/* arena.h - memory that is freed all at once.
 *
 * For structures that are built, used and thrown away together (a parsed document, the tables of a search). A zeroed
 * ms__arena is ready to use. Nothing moves: pointers stay valid until ms__arena_free.
 */
#ifndef MS_COMMON_ARENA_H
#define MS_COMMON_ARENA_H

#include <stddef.h>

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

/* A NUL-terminated copy of n_bytes bytes. */
char *ms__arena_string(ms__arena *arena, const char *text, size_t n_bytes);

/* Free everything and leave the arena ready for use. */
void ms__arena_free(ms__arena *arena);

#endif
