/* allocator.c - the model of torch's caching allocator: blocks, their segments, and the pools of free ones.
 *
 * A segment is a row of blocks, linked in the order of their addresses; two free blocks are never adjacent. The free
 * blocks of a pool (one for small requests, one for large) form a treap, ordered by stream, size and address, so that
 * the best fit is the first one that is not before the request. A block is known by its index, which is also what
 * callers get; 0 means none: it may be written but is never read. Priorities are hashes of indices: the same calls
 * build the same trees. Invariant: reserved = allocated + inactive split + what `empty` would return.
 */
#include "allocator.h"

#include <stdlib.h>

#include "../common/hash.h"
#include "../common/math.h"
#include "../common/vec.h"
#include "addresses.h"

#define MIB ((int64_t)1 << 20)
#define BLOCK_BYTES ((int64_t)512)     /* sizes are multiples of this */
#define SMALL_BYTES MIB                /* the largest request of the small pool */
#define SMALL_SEGMENT_BYTES (2 * MIB)  /* for small requests */
#define LARGE_SEGMENT_BYTES (20 * MIB) /* for large ones below ... */
#define OWN_SEGMENT_BYTES (10 * MIB)   /* ... this; larger ones get segments of their size, ... */
#define SEGMENT_STEP_BYTES (2 * MIB)   /* ... rounded up to this */
#define MAX_BYTES ((int64_t)1 << 60)   /* of one request; torch refuses more too */

enum state { UNUSED, FREE, TAKEN };

typedef struct block {
    int64_t stream;
    int64_t size_bytes;
    int64_t address;
    size_t previous; /* neighbours in the segment */
    size_t next;     /* of an unused one: the next unused */
    size_t left;     /* of a free one: its subtrees */
    size_t right;
    size_t whole_previous; /* of a free one that is a whole segment: its neighbours among those */
    size_t whole_next;
    uint32_t priority;
    uint8_t state;
    bool large;
} block;

struct ms__allocator {
    MS__VEC(block) blocks;
    size_t unused;   /* the first record that is not a block any more */
    size_t pools[2]; /* roots: small, large */
    size_t wholes;   /* the first of the free blocks that are whole segments */
    ms__addresses addresses;
    int64_t limit_bytes;
    ms__allocator_stats stats;
};

static bool has_neighbours(const block *b) { return b->previous != 0 || b->next != 0; }

static bool before(const block *a, const block *b) {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->size_bytes != b->size_bytes) return a->size_bytes < b->size_bytes;
    return a->address < b->address;
}

/* The link to the first free block that does not come before `wanted`; it leads to 0 if there is none. */
static size_t *pool_find(ms__allocator *a, const block *wanted) {
    size_t *link = &a->pools[wanted->large], *found = NULL;
    while (*link != 0) {
        block *b = &a->blocks.items[*link];
        bool right = before(b, wanted);
        if (!right) found = link;
        link = right ? &b->right : &b->left;
    }
    return found != NULL ? found : link;
}

static void pool_add(ms__allocator *a, size_t index) {
    block *items = a->blocks.items, *self = &items[index];
    size_t *link = &a->pools[self->large], *low = &self->left, *high = &self->right;
    while (*link != 0 && items[*link].priority >= self->priority)
        link = before(&items[*link], self) ? &items[*link].right : &items[*link].left;
    size_t below = *link;
    *link = index;
    while (below != 0) { /* split the subtree into the blocks before and after */
        block *b = &items[below];
        if (before(b, self)) {
            *low = below;
            low = &b->right;
            below = b->right;
        } else {
            *high = below;
            high = &b->left;
            below = b->left;
        }
    }
    *low = *high = 0;
    self->state = FREE;
    if (has_neighbours(self)) {
        a->stats.inactive_split_bytes += self->size_bytes;
        return;
    }
    self->whole_previous = 0;
    self->whole_next = a->wholes;
    items[a->wholes].whole_previous = index;
    a->wholes = index;
}

static size_t pool_remove(ms__allocator *a, size_t *link) {
    block *items = a->blocks.items;
    size_t index = *link, left = items[index].left, right = items[index].right;
    while (left != 0 && right != 0) { /* join the two subtrees */
        if (items[left].priority >= items[right].priority) {
            *link = left;
            link = &items[left].right;
            left = *link;
        } else {
            *link = right;
            link = &items[right].left;
            right = *link;
        }
    }
    *link = left != 0 ? left : right;
    const block *self = &items[index];
    if (has_neighbours(self)) {
        a->stats.inactive_split_bytes -= self->size_bytes;
        return index;
    }
    items[self->whole_next].whole_previous = self->whole_previous;
    *(self->whole_previous == 0 ? &a->wholes : &items[self->whole_previous].whole_next) = self->whole_next;
    return index;
}

/* A block in no pool. `take` has already reserved room for it. */
static size_t new_block(ms__allocator *a, const block *content) {
    size_t index = a->unused;
    if (index != 0)
        a->unused = a->blocks.items[index].next;
    else
        index = a->blocks.n++;
    a->blocks.items[index] = *content;
    a->blocks.items[index].priority = (uint32_t)ms__hash_fold(0, index);
    return index;
}

static void drop_block(ms__allocator *a, size_t index) {
    a->blocks.items[index].state = UNUSED;
    a->blocks.items[index].next = a->unused;
    a->unused = index;
}

ms_status ms__allocator_create(int64_t limit_bytes, ms__allocator **out) {
    if (limit_bytes < 0)
        return ms__fail(MS_E_INVALID, "limit_bytes must not be negative (%lld)", (long long)limit_bytes);
    ms__allocator *a = calloc(1, sizeof *a);
    if (a == NULL) return ms__fail_memory(sizeof *a);
    if (!ms__vec_push(&a->blocks, (block){0})) {
        free(a);
        return MS_E_NO_MEMORY;
    }
    a->limit_bytes = limit_bytes == 0 ? INT64_MAX : limit_bytes;
    *out = a;
    return MS_OK;
}

void ms__allocator_destroy(ms__allocator *allocator) {
    if (allocator == NULL) return;
    ms__addresses_free(&allocator->addresses);
    ms__vec_free(&allocator->blocks);
    free(allocator);
}

static int64_t segment_bytes(int64_t n_bytes) {
    if (n_bytes <= SMALL_BYTES) return SMALL_SEGMENT_BYTES;
    return n_bytes < OWN_SEGMENT_BYTES ? LARGE_SEGMENT_BYTES : ms__round_up(n_bytes, SEGMENT_STEP_BYTES);
}

/* A block that is a whole new segment. */
static ms_status reserve_segment(ms__allocator *a, const block *wanted, size_t *out) {
    block segment = {.stream = wanted->stream, .large = wanted->large};
    segment.size_bytes = segment_bytes(wanted->size_bytes);
    int64_t room = a->limit_bytes - segment.size_bytes;
    if (a->stats.reserved_bytes > room) ms__allocator_empty(a);
    if (a->stats.reserved_bytes > room)
        return ms__fail_value(MS_E_BUDGET, a->stats.reserved_bytes + segment.size_bytes,
                              "out of memory: cannot allocate %lld bytes, which need a segment of %lld; %lld of %lld "
                              "are reserved, %lld allocated",
                              (long long)wanted->size_bytes, (long long)segment.size_bytes,
                              (long long)a->stats.reserved_bytes, (long long)a->limit_bytes,
                              (long long)a->stats.allocated_bytes);
    ms_status status = ms__addresses_take(&a->addresses, segment.size_bytes, &segment.address);
    if (status != MS_OK) return status;
    a->stats.n_segments++;
    a->stats.reserved_bytes += segment.size_bytes;
    if (a->stats.reserved_bytes > a->stats.peak_reserved_bytes) a->stats.peak_reserved_bytes = a->stats.reserved_bytes;
    *out = new_block(a, &segment);
    return MS_OK;
}

/* Cut a block to n_bytes and put the rest into its pool, unless the rest is too small to be useful. */
static void split(ms__allocator *a, size_t index, int64_t n_bytes) {
    block *items = a->blocks.items, *self = &items[index], rest = *self;
    rest.address += n_bytes;
    rest.size_bytes -= n_bytes;
    rest.previous = index;
    if (self->large ? rest.size_bytes <= SMALL_BYTES : rest.size_bytes < BLOCK_BYTES) return;
    self->size_bytes = n_bytes;
    self->next = new_block(a, &rest);
    items[rest.next].previous = self->next;
    pool_add(a, self->next);
}

ms_status ms__allocator_take(ms__allocator *allocator, int64_t n_bytes, int64_t stream, int64_t *out_block) {
    ms__allocator *a = allocator;
    if (n_bytes < 0) return ms__fail(MS_E_INVALID, "n_bytes must not be negative (%lld)", (long long)n_bytes);
    if (n_bytes > MAX_BYTES) return ms__fail(MS_E_LIMIT, "a block of %lld bytes is too large", (long long)n_bytes);
    if (n_bytes == 0) {
        *out_block = MS__NO_BLOCK;
        return MS_OK;
    }
    if (!ms__vec_reserve(&a->blocks, 2)) return MS_E_NO_MEMORY; /* a segment and the rest of it */
    block wanted = {.stream = stream, .size_bytes = ms__round_up(n_bytes, BLOCK_BYTES)};
    wanted.large = wanted.size_bytes > SMALL_BYTES;
    size_t *link = pool_find(a, &wanted), index = 0;
    ms_status status = MS_OK;
    if (*link != 0 && a->blocks.items[*link].stream == stream)
        index = pool_remove(a, link);
    else
        status = reserve_segment(a, &wanted, &index);
    if (status != MS_OK) return status;
    split(a, index, wanted.size_bytes);
    a->blocks.items[index].state = TAKEN;
    a->stats.allocated_bytes += a->blocks.items[index].size_bytes;
    if (a->stats.allocated_bytes > a->stats.peak_allocated_bytes)
        a->stats.peak_allocated_bytes = a->stats.allocated_bytes;
    *out_block = (int64_t)index;
    return MS_OK;
}

static void join(ms__allocator *a, size_t index, size_t next) {
    block *items = a->blocks.items;
    items[index].size_bytes += items[next].size_bytes;
    items[index].next = items[next].next;
    items[items[next].next].previous = index;
    drop_block(a, next);
}

ms_status ms__allocator_give(ms__allocator *allocator, int64_t block_index) {
    ms__allocator *a = allocator;
    block *items = a->blocks.items;
    size_t index = (size_t)block_index;
    if (block_index == MS__NO_BLOCK) return MS_OK;
    if (index >= a->blocks.n || items[index].state != TAKEN)
        return ms__fail(MS_E_INVALID, "block %lld is not taken", (long long)block_index);
    size_t previous = items[index].previous, next = items[index].next;
    a->stats.allocated_bytes -= items[index].size_bytes;
    if (items[next].state == FREE) join(a, index, pool_remove(a, pool_find(a, &items[next])));
    if (items[previous].state == FREE) {
        (void)pool_remove(a, pool_find(a, &items[previous]));
        join(a, previous, index);
        index = previous;
    }
    pool_add(a, index);
    return MS_OK;
}

void ms__allocator_empty(ms__allocator *allocator) {
    while (allocator->wholes != 0) {
        const block *b = &allocator->blocks.items[allocator->wholes];
        allocator->stats.reserved_bytes -= b->size_bytes;
        allocator->stats.n_segments--;
        ms__addresses_give(&allocator->addresses, b->address, b->size_bytes);
        drop_block(allocator, pool_remove(allocator, pool_find(allocator, b)));
    }
}

ms__allocator_stats ms__allocator_get_stats(const ms__allocator *allocator) { return allocator->stats; }

void ms__allocator_reset_peaks(ms__allocator *allocator) {
    allocator->stats.peak_allocated_bytes = allocator->stats.allocated_bytes;
    allocator->stats.peak_reserved_bytes = allocator->stats.reserved_bytes;
}
