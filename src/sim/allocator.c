/* allocator.c - the model of torch's caching allocator: blocks, their segments, and the pools of free ones.
 *
 * A segment is a row of blocks, linked in the order of their addresses; two free blocks are never adjacent. The free
 * blocks of a pool (one for small requests, one for large) form a treap, ordered by stream, size and address, so that
 * the best fit is the first one that is not before the request. A block is known by its index, which is also what
 * callers get; 0 means none: it may be written but is never read. Priorities are hashes of indices: the same calls
 * build the same trees. Invariant for segments of fixed size: reserved = allocated + inactive split + what `empty`
 * would return.
 *
 * A segment that grows is a row of blocks as well. It ends in a block without memory that is longer than any device;
 * where free memory was returned there are more of those. They are in a list, not in the pool, and all of them begin
 * and end at granules. Its first block always has the same index.
 */
#include "allocator.h"

#include <stdlib.h>

#include "../common/hash.h"
#include "../common/math.h"
#include "../common/vec.h"
#include "addresses.h"

#define MIB ((int64_t)1 << 20)
#define BLOCK_BYTES ((int64_t)512)                    /* sizes are multiples of this */
#define SMALL_BYTES MIB                               /* the largest request of the small pool */
#define SMALL_SEGMENT_BYTES (2 * MIB)                 /* for small requests */
#define LARGE_SEGMENT_BYTES (20 * MIB)                /* for large ones below ... */
#define OWN_SEGMENT_BYTES (10 * MIB)                  /* ... this; larger ones get segments of their size, ... */
#define SEGMENT_STEP_BYTES (2 * MIB)                  /* ... rounded up to this */
#define MAX_BYTES ((int64_t)1 << 60)                  /* of one request; torch refuses more too */
#define GROWING_BYTES (MS__LARGE_GRANULE_BYTES << 33) /* of address space for each segment that grows: endless */
#define GROWING_ADDRESS (13 * GROWING_BYTES)          /* of the first one: above all others */
#define MAX_GROWING 32

enum state { UNUSED, FREE, TAKEN, UNMAPPED };

typedef struct block {
    int64_t stream;
    int64_t size_bytes;
    int64_t address;
    size_t previous; /* neighbours in the segment */
    size_t next;     /* of an unused one: the next unused */
    size_t left;     /* of a free one: its subtrees */
    size_t right;
    size_t whole_previous; /* of a free one that is a whole segment, or one without memory: neighbours among those */
    size_t whole_next;
    uint32_t priority;
    uint8_t state;
    bool large;
    bool grows; /* its segment does */
} block;

struct ms__allocator {
    MS__VEC(block) blocks;
    size_t unused;           /* the first record that is not a block any more */
    size_t pools[2];         /* roots: small, large */
    size_t wholes;           /* the first of the free blocks that are whole segments */
    size_t unmapped;         /* the first of the blocks without memory */
    MS__VEC(size_t) growing; /* the first blocks of segments that grow */
    bool grows;
    bool has_no_gaps; /* large memory is mapped at the end alone */
    ms__addresses addresses;
    int64_t limit_bytes;
    int64_t returnable_bytes; /* of all free blocks */
    ms__allocator_stats stats;
};

static int64_t granule_of(const block *b) { return b->large ? MS__LARGE_GRANULE_BYTES : MS__SMALL_GRANULE_BYTES; }

static bool has_neighbours(const block *b) { return b->previous != 0 || b->next != 0; }

static bool before(const block *a, const block *b) {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->size_bytes != b->size_bytes) return a->size_bytes < b->size_bytes;
    return a->address < b->address;
}

/* What `empty` would return of a free block: all of it if it is a whole segment, and of one that grows the whole
 * granules. */
static int64_t returnable(const block *b) {
    if (!b->grows) return has_neighbours(b) ? 0 : b->size_bytes;
    int64_t granule = granule_of(b), from = ms__round_up(b->address, granule);
    return ms__max((b->address + b->size_bytes) / granule * granule - from, 0);
}

static void list_add(ms__allocator *a, size_t *first, size_t index) {
    block *items = a->blocks.items;
    items[index].whole_previous = 0;
    items[index].whole_next = *first;
    items[*first].whole_previous = index;
    *first = index;
}

static void list_remove(ms__allocator *a, size_t *first, size_t index) {
    block *items = a->blocks.items, *self = &items[index];
    items[self->whole_next].whole_previous = self->whole_previous;
    *(self->whole_previous == 0 ? first : &items[self->whole_previous].whole_next) = self->whole_next;
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
    a->returnable_bytes += returnable(self);
    if (has_neighbours(self))
        a->stats.inactive_split_bytes += self->size_bytes;
    else
        list_add(a, &a->wholes, index);
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
    a->returnable_bytes -= returnable(&items[index]);
    if (has_neighbours(&items[index]))
        a->stats.inactive_split_bytes -= items[index].size_bytes;
    else
        list_remove(a, &a->wholes, index);
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
    ms__vec_free(&allocator->growing);
    free(allocator);
}

static int64_t segment_bytes(int64_t n_bytes) {
    if (n_bytes <= SMALL_BYTES) return SMALL_SEGMENT_BYTES;
    return n_bytes < OWN_SEGMENT_BYTES ? LARGE_SEGMENT_BYTES : ms__round_up(n_bytes, SEGMENT_STEP_BYTES);
}

static void join(ms__allocator *a, size_t index, size_t next) {
    block *items = a->blocks.items;
    items[index].size_bytes += items[next].size_bytes;
    items[index].next = items[next].next;
    items[items[next].next].previous = index;
    drop_block(a, next);
}

/* Cut a block in two; the second half, in the same state, is in no pool or list. */
static size_t cut(ms__allocator *a, size_t index, int64_t n_bytes) {
    block rest = a->blocks.items[index];
    rest.address += n_bytes;
    rest.size_bytes -= n_bytes;
    rest.previous = index;
    size_t second = new_block(a, &rest);
    block *items = a->blocks.items;
    items[index].size_bytes = n_bytes;
    items[index].next = second;
    items[rest.next].previous = second;
    return second;
}

/* Put a free block into its pool, joined with the free blocks on both sides. */
static size_t add_free(ms__allocator *a, size_t index) {
    block *items = a->blocks.items;
    size_t previous = items[index].previous, next = items[index].next;
    if (items[next].state == FREE) join(a, index, pool_remove(a, pool_find(a, &items[next])));
    if (items[previous].state == FREE) {
        (void)pool_remove(a, pool_find(a, &items[previous]));
        join(a, previous, index);
        index = previous;
    }
    pool_add(a, index);
    return index;
}

static void count_reserved(ms__allocator *a, int64_t n_bytes) {
    a->stats.reserved_bytes += n_bytes;
    if (a->stats.reserved_bytes > a->stats.peak_reserved_bytes) a->stats.peak_reserved_bytes = a->stats.reserved_bytes;
}

/* ---- Segments that grow ---- */

/* Join a block without memory with those on both sides, and put it into the list. */
static void add_unmapped(ms__allocator *a, size_t index) {
    block *items = a->blocks.items;
    size_t previous = items[index].previous, next = items[index].next;
    items[index].state = UNMAPPED;
    if (items[next].state == UNMAPPED) {
        list_remove(a, &a->unmapped, next);
        join(a, index, next);
    }
    if (items[previous].state == UNMAPPED) {
        join(a, previous, index);
        return;
    }
    list_add(a, &a->unmapped, index);
}

/* Return the whole granules of a free block. */
static ms_status unmap(ms__allocator *a, size_t index) {
    int64_t granule = granule_of(&a->blocks.items[index]);
    int64_t from = ms__round_up(a->blocks.items[index].address, granule);
    int64_t end = a->blocks.items[index].address + a->blocks.items[index].size_bytes;
    int64_t to = end / granule * granule;
    if (to <= from) return MS_OK;
    if (!ms__vec_reserve(&a->blocks, 2)) return MS_E_NO_MEMORY;
    (void)pool_remove(a, pool_find(a, &a->blocks.items[index]));
    if (to < end) pool_add(a, cut(a, index, to - a->blocks.items[index].address));
    if (from > a->blocks.items[index].address) {
        size_t first = index;
        index = cut(a, first, from - a->blocks.items[first].address);
        pool_add(a, first);
    }
    add_unmapped(a, index);
    a->stats.reserved_bytes -= to - from;
    return MS_OK;
}

static ms_status unmap_all(ms__allocator *a) {
    ms_status status = MS_OK;
    for (size_t i = 0; i < a->growing.n && status == MS_OK; i++)
        for (size_t b = a->growing.items[i], next; b != 0 && status == MS_OK; b = next) {
            next = a->blocks.items[b].next;
            if (a->blocks.items[next].state == UNMAPPED) next = a->blocks.items[next].next; /* it may be joined */
            if (a->blocks.items[b].state == FREE) status = unmap(a, b);
        }
    return status;
}

/* Is there address space for n_bytes from this block on, in blocks that are not taken? */
static bool has_space(const ms__allocator *a, size_t index, int64_t n_bytes) {
    const block *items = a->blocks.items;
    for (; index != 0 && items[index].state != TAKEN; index = items[index].next)
        if ((n_bytes -= items[index].size_bytes) <= 0) return true;
    return false;
}

/* The block to grow from: the one without memory at the lowest address that has space, or the free one before it; 0 if
 * there is no such segment yet. */
static size_t find_space(const ms__allocator *a, const block *wanted) {
    const block *items = a->blocks.items;
    size_t lowest = 0;
    for (size_t i = a->unmapped; i != 0; i = items[i].whole_next) {
        if (items[i].stream != wanted->stream || items[i].large != wanted->large) continue;
        if (a->has_no_gaps && wanted->large && items[i].next != 0) continue;
        size_t from = items[items[i].previous].state == FREE ? items[i].previous : i;
        bool is_lower = lowest == 0 || items[from].address < items[lowest].address;
        if (is_lower && has_space(a, from, wanted->size_bytes)) lowest = from;
    }
    return lowest;
}

static ms_status open_growing(ms__allocator *a, const block *wanted, size_t *out) {
    block segment = {.stream = wanted->stream, .large = wanted->large, .grows = true, .size_bytes = GROWING_BYTES};
    segment.address = GROWING_ADDRESS + (int64_t)a->growing.n * GROWING_BYTES;
    if (a->growing.n >= MAX_GROWING || wanted->size_bytes > GROWING_BYTES)
        return ms__fail(MS_E_LIMIT, "no address space for a block of %lld bytes", (long long)wanted->size_bytes);
    if (!ms__vec_reserve(&a->growing, 1)) return MS_E_NO_MEMORY;
    *out = new_block(a, &segment);
    a->growing.items[a->growing.n++] = *out;
    a->stats.n_segments++;
    add_unmapped(a, *out);
    return MS_OK;
}

/* Map the first n_bytes of a block without memory, in whole granules; it becomes free, joined with its neighbours. */
static size_t map(ms__allocator *a, size_t index, int64_t n_bytes) {
    int64_t mapped = ms__round_up(n_bytes, granule_of(&a->blocks.items[index]));
    list_remove(a, &a->unmapped, index);
    if (mapped < a->blocks.items[index].size_bytes) list_add(a, &a->unmapped, cut(a, index, mapped));
    count_reserved(a, mapped);
    return add_free(a, index);
}

/* A block of at least the wanted size at the end of a segment that grows, or in a gap of it. */
static ms_status extend(ms__allocator *a, const block *wanted, size_t *out) {
    size_t index = find_space(a, wanted);
    ms_status status = index == 0 ? open_growing(a, wanted, &index) : MS_OK;
    if (status != MS_OK) return status;
    int64_t missing = wanted->size_bytes;
    if (a->blocks.items[index].state == UNMAPPED)
        index = map(a, index, ms__min(missing, a->blocks.items[index].size_bytes));
    while ((missing = wanted->size_bytes - a->blocks.items[index].size_bytes) > 0) {
        if (!ms__vec_reserve(&a->blocks, 2)) return MS_E_NO_MEMORY;
        size_t next = a->blocks.items[index].next;
        index = map(a, next, ms__min(missing, a->blocks.items[next].size_bytes));
    }
    *out = pool_remove(a, pool_find(a, &a->blocks.items[index]));
    return MS_OK;
}

void ms__allocator_grow(ms__allocator *allocator) { allocator->grows = true; }

void ms__allocator_close_gaps(ms__allocator *allocator) { allocator->has_no_gaps = true; }

/* ---- New memory ---- */

/* A block that is a whole new segment of fixed size. */
static ms_status reserve_segment(ms__allocator *a, const block *wanted, size_t *out) {
    block segment = {.stream = wanted->stream, .large = wanted->large, .size_bytes = segment_bytes(wanted->size_bytes)};
    ms_status status = ms__addresses_take(&a->addresses, segment.size_bytes, &segment.address);
    if (status != MS_OK) return status;
    a->stats.n_segments++;
    count_reserved(a, segment.size_bytes);
    *out = new_block(a, &segment);
    return MS_OK;
}

/* As torch does: the whole request counts, also where part of it is mapped already. */
static ms_status check_limit(ms__allocator *a, const block *wanted) {
    int64_t request = segment_bytes(wanted->size_bytes), room = a->limit_bytes - request;
    ms_status status = MS_OK;
    if (a->stats.reserved_bytes > room) {
        a->stats.n_retries++;
        status = ms__allocator_empty(a);
    }
    if (status == MS_OK && a->stats.reserved_bytes > room)
        return ms__fail_value(MS_E_BUDGET, a->stats.reserved_bytes + request,
                              "out of memory: cannot allocate %lld bytes, which count as %lld; %lld of %lld are "
                              "reserved, %lld allocated",
                              (long long)wanted->size_bytes, (long long)request, (long long)a->stats.reserved_bytes,
                              (long long)a->limit_bytes, (long long)a->stats.allocated_bytes);
    int64_t least = a->stats.reserved_bytes - a->returnable_bytes;
    a->stats.needed_bytes = ms__max(a->stats.needed_bytes, least + request);
    return status;
}

static ms_status reserve(ms__allocator *a, const block *wanted, size_t *out) {
    ms_status status = check_limit(a, wanted);
    if (status != MS_OK) return status;
    if (!ms__vec_reserve(&a->blocks, 3)) return MS_E_NO_MEMORY; /* a segment, what is left of it, and of the block */
    return a->grows ? extend(a, wanted, out) : reserve_segment(a, wanted, out);
}

/* ---- Taking and giving ---- */

/* What a free block counts as when the best fit is chosen: with the memory that it could grow into. */
static int64_t expandable_bytes(const ms__allocator *a, const block *b) {
    const block *next = &a->blocks.items[b->next];
    return b->size_bytes + (b->next != 0 && next->state == UNMAPPED ? next->size_bytes : 0);
}

/* The link to the block that torch would take; it leads to 0, or to one of another stream, if there is none. */
static size_t *find_fit(ms__allocator *a, const block *wanted) {
    const block *items = a->blocks.items;
    size_t *link = pool_find(a, wanted);
    while (a->grows && *link != 0 && items[*link].grows && items[*link].stream == wanted->stream) {
        block after = items[*link];
        after.address++;
        size_t *next = pool_find(a, &after);
        if (*next == 0 || items[*next].stream != wanted->stream ||
            expandable_bytes(a, &items[*next]) >= expandable_bytes(a, &items[*link]))
            break;
        link = next;
    }
    return link;
}

/* Cut a block to n_bytes and put the rest into its pool, unless the rest is too small to be useful. */
static void split(ms__allocator *a, size_t index, int64_t n_bytes) {
    const block *self = &a->blocks.items[index];
    int64_t rest = self->size_bytes - n_bytes;
    if (self->large && !a->grows ? rest <= SMALL_BYTES : rest < BLOCK_BYTES) return;
    pool_add(a, cut(a, index, n_bytes));
}

ms_status ms__allocator_take(ms__allocator *allocator, int64_t n_bytes, int64_t stream, int64_t *out_block) {
    ms__allocator *a = allocator;
    if (n_bytes < 0) return ms__fail(MS_E_INVALID, "n_bytes must not be negative (%lld)", (long long)n_bytes);
    if (n_bytes > MAX_BYTES) return ms__fail(MS_E_LIMIT, "a block of %lld bytes is too large", (long long)n_bytes);
    if (n_bytes == 0) {
        *out_block = MS__NO_BLOCK;
        return MS_OK;
    }
    if (!ms__vec_reserve(&a->blocks, 1)) return MS_E_NO_MEMORY; /* the rest of the block */
    block wanted = {.stream = stream, .size_bytes = ms__round_up(n_bytes, BLOCK_BYTES)};
    wanted.large = wanted.size_bytes > SMALL_BYTES;
    size_t *link = find_fit(a, &wanted), index = 0;
    ms_status status = MS_OK;
    if (*link != 0 && a->blocks.items[*link].stream == stream)
        index = pool_remove(a, link);
    else
        status = reserve(a, &wanted, &index);
    if (status != MS_OK) return status;
    split(a, index, wanted.size_bytes);
    a->blocks.items[index].state = TAKEN;
    a->stats.allocated_bytes += a->blocks.items[index].size_bytes;
    if (a->stats.allocated_bytes > a->stats.peak_allocated_bytes)
        a->stats.peak_allocated_bytes = a->stats.allocated_bytes;
    *out_block = (int64_t)index;
    return MS_OK;
}

ms_status ms__allocator_give(ms__allocator *allocator, int64_t block_index) {
    ms__allocator *a = allocator;
    block *items = a->blocks.items;
    size_t index = (size_t)block_index;
    if (block_index == MS__NO_BLOCK) return MS_OK;
    if (index >= a->blocks.n || items[index].state != TAKEN)
        return ms__fail(MS_E_INVALID, "block %lld is not taken", (long long)block_index);
    a->stats.allocated_bytes -= items[index].size_bytes;
    (void)add_free(a, index);
    return MS_OK;
}

ms_status ms__allocator_empty(ms__allocator *allocator) {
    while (allocator->wholes != 0) {
        const block *b = &allocator->blocks.items[allocator->wholes];
        allocator->stats.reserved_bytes -= b->size_bytes;
        allocator->stats.n_segments--;
        ms__addresses_give(&allocator->addresses, b->address, b->size_bytes);
        drop_block(allocator, pool_remove(allocator, pool_find(allocator, b)));
    }
    return unmap_all(allocator);
}

ms__allocator_stats ms__allocator_get_stats(const ms__allocator *allocator) { return allocator->stats; }

void ms__allocator_reset_peaks(ms__allocator *allocator) {
    allocator->stats.peak_allocated_bytes = allocator->stats.allocated_bytes;
    allocator->stats.peak_reserved_bytes = allocator->stats.reserved_bytes;
}
