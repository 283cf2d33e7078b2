/* pool.c - pool.h. There are at most some hundred ranges, so lists are walked. */
#include "pool.h"

#include <string.h>

#include "../common/math.h"

/* ---- Free ranges ---- */

static ms__pool_range *at(const ms__pool *pool, size_t i) { return &pool->free.items[i]; }

static int64_t end_of(const ms__pool_range *range) { return range->start + range->n_bytes; }

static void remove_at(ms__pool *pool, size_t i) {
    pool->free.n--;
    memmove(at(pool, i), at(pool, i) + 1, (pool->free.n - i) * sizeof *pool->free.items);
}

/* There is room: it was reserved when the range was taken, or right before. */
static void insert_at(ms__pool *pool, size_t i, ms__pool_range range) {
    memmove(at(pool, i) + 1, at(pool, i), (pool->free.n - i) * sizeof *pool->free.items);
    pool->free.n++;
    *at(pool, i) = range;
}

/* Add a free range, joined with its neighbours. */
static void put_back(ms__pool *pool, ms__pool_range range) {
    size_t i = 0;
    while (i < pool->free.n && at(pool, i)->start < range.start) i++;
    if (i < pool->free.n && end_of(&range) == at(pool, i)->start) {
        range.n_bytes += at(pool, i)->n_bytes;
        range.ticket = ms__max(range.ticket, at(pool, i)->ticket);
        remove_at(pool, i);
    }
    if (i > 0 && end_of(at(pool, i - 1)) == range.start) {
        at(pool, i - 1)->n_bytes += range.n_bytes;
        at(pool, i - 1)->ticket = ms__max(range.ticket, at(pool, i - 1)->ticket);
        return;
    }
    insert_at(pool, i, range);
}

/* Room for `n_more` free ranges beyond those that are free or out. */
static bool reserve(ms__pool *pool, size_t n_more) {
    return ms__vec_reserve(&pool->free, (size_t)pool->n_taken + n_more);
}

/* ---- Segments ---- */

ms_status ms__pool_add(ms__pool *pool, const ms__host_memory *host) {
    if (!ms__vec_reserve(&pool->segments, 1) || !reserve(pool, 1)) return MS_E_NO_MEMORY;
    pool->segments.items[pool->segments.n++] = (ms__pool_segment){.start = pool->n_bytes, .host = *host};
    put_back(pool, (ms__pool_range){.start = pool->n_bytes, .n_bytes = host->n_bytes});
    pool->n_bytes += host->n_bytes;
    if (host->kind != MS__HOST_PAGEABLE) pool->pinned_bytes += host->n_bytes;
    return MS_OK;
}

int64_t ms__pool_lacks(const ms__pool *pool, int64_t n_bytes) {
    int64_t tail = 0;
    for (size_t i = 0; i < pool->free.n; i++) {
        if (at(pool, i)->n_bytes >= n_bytes) return 0;
        if (end_of(at(pool, i)) == pool->n_bytes) tail = at(pool, i)->n_bytes;
    }
    return n_bytes - tail;
}

void *ms__pool_memory(const ms__pool *pool, int64_t start, int64_t n_bytes, int64_t *out_n_here) {
    size_t low = 0, high = pool->segments.n;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (pool->segments.items[middle].start <= start)
            low = middle;
        else
            high = middle;
    }
    const ms__pool_segment *segment = &pool->segments.items[low];
    *out_n_here = ms__min(n_bytes, segment->start + segment->host.n_bytes - start);
    return (char *)segment->host.memory + (start - segment->start);
}

/* ---- Ranges ---- */

ms_status ms__pool_take(ms__pool *pool, int64_t n_bytes, ms__pool_range *out) {
    size_t best = pool->free.n;
    if (!reserve(pool, 2)) return MS_E_NO_MEMORY;
    for (size_t i = 0; i < pool->free.n; i++) {
        if (at(pool, i)->n_bytes < n_bytes) continue;
        if (best == pool->free.n || at(pool, i)->n_bytes < at(pool, best)->n_bytes) best = i;
    }
    if (best == pool->free.n) return ms__fail(MS_E_NO_MEMORY, "the pool has no free range of that size");
    ms__pool_range *range = at(pool, best);
    *out = (ms__pool_range){.start = range->start, .n_bytes = n_bytes, .ticket = range->ticket};
    range->start += n_bytes;
    range->n_bytes -= n_bytes;
    if (range->n_bytes == 0) remove_at(pool, best);
    pool->n_taken++;
    pool->used_bytes += n_bytes;
    return MS_OK;
}

void ms__pool_give(ms__pool *pool, ms__pool_range range) {
    pool->n_taken--;
    pool->used_bytes -= range.n_bytes;
    put_back(pool, range);
}

void ms__pool_free(ms__pool *pool) {
    ms__vec_free(&pool->segments);
    ms__vec_free(&pool->free);
    *pool = (ms__pool){0};
}
