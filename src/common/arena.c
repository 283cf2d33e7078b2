/* arena.c - a chain of blocks whose sizes double up to a limit; a larger request gets its own block. */
#include "arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BLOCK_BYTES ((size_t)4096)
#define LARGEST_BLOCK_BYTES ((size_t)1 << 20)
#define ALIGNMENT (_Alignof(max_align_t))

struct ms__arena_block {
    ms__arena_block *next;
    size_t capacity;
    max_align_t data[];
};

static ms__arena_block *grow(ms__arena *arena, size_t n_bytes) {
    size_t capacity = arena->blocks == NULL ? FIRST_BLOCK_BYTES : arena->blocks->capacity * 2;
    if (capacity > LARGEST_BLOCK_BYTES) capacity = LARGEST_BLOCK_BYTES;
    if (capacity < n_bytes) capacity = n_bytes;
    ms__arena_block *block = calloc(1, sizeof *block + capacity);
    if (block == NULL) {
        (void)ms__fail_memory(capacity);
        return NULL;
    }
    block->next = arena->blocks;
    block->capacity = capacity;
    arena->blocks = block;
    arena->used = 0;
    return block;
}

void *ms__arena_alloc(ms__arena *arena, size_t n_bytes) {
    if (n_bytes > SIZE_MAX / 4) {
        (void)ms__fail_memory(n_bytes);
        return NULL;
    }
    size_t rounded = (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    ms__arena_block *block = arena->blocks;
    if (block == NULL || block->capacity - arena->used < rounded) {
        block = grow(arena, rounded);
        if (block == NULL) return NULL;
    }
    void *memory = (char *)block->data + arena->used;
    arena->used += rounded;
    return memory;
}

void *ms__arena_array(ms__arena *arena, size_t n, size_t item_bytes) {
    if (item_bytes != 0 && n > SIZE_MAX / item_bytes) {
        (void)ms__fail_memory(SIZE_MAX);
        return NULL;
    }
    return ms__arena_alloc(arena, n * item_bytes);
}

ms_status ms__arena_list(ms__arena *arena, const ms__array *arrays, size_t n_arrays) {
    for (size_t i = 0; i < n_arrays; i++) {
        void *items = ms__arena_array(arena, arrays[i].n, arrays[i].item_bytes);
        if (items == NULL) return MS_E_NO_MEMORY;
        memcpy(arrays[i].pointer, &items, sizeof items); /* pointers to objects have one representation */
    }
    return MS_OK;
}

char *ms__arena_string(ms__arena *arena, const char *text, size_t n_bytes) {
    char *copy = ms__arena_alloc(arena, n_bytes + 1);
    if (copy != NULL && n_bytes > 0) memcpy(copy, text, n_bytes);
    return copy;
}

void ms__arena_free(ms__arena *arena) {
    for (ms__arena_block *block = arena->blocks; block != NULL;) {
        ms__arena_block *next = block->next;
        free(block);
        block = next;
    }
    arena->blocks = NULL;
    arena->used = 0;
}
