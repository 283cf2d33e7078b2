/* addresses.c - the model of the driver's address space: chunks of whole 32 MiB, the gaps in them, and the holes
 * between them. */
#include "addresses.h"

#include <string.h>

#include "../common/math.h"

#define CHUNK_BYTES ((int64_t)32 << 20)
#define TOP ((int64_t)6 << 60)

static int64_t end_of(ms__range range) { return range.address + range.n_bytes; }

static void remove_range(ms__range *ranges, size_t *n, size_t at) {
    memmove(ranges + at, ranges + at + 1, (--*n - at) * sizeof *ranges);
}

/* Add a range to those that are sorted; it becomes one with neighbours that it touches, if they are inside `bounds`. */
static void add_range(ms__range *ranges, size_t *n, ms__range added, ms__range bounds) {
    size_t at = 0;
    while (at < *n && ranges[at].address < added.address) at++;
    if (at < *n && ranges[at].address == end_of(added) && end_of(ranges[at]) <= end_of(bounds)) {
        added.n_bytes += ranges[at].n_bytes;
        remove_range(ranges, n, at);
    }
    if (at > 0 && end_of(ranges[at - 1]) == added.address && ranges[at - 1].address >= bounds.address) {
        ranges[at - 1].n_bytes += added.n_bytes;
        return;
    }
    memmove(ranges + at + 1, ranges + at, ((*n)++ - at) * sizeof *ranges);
    ranges[at] = added;
}

static size_t find_chunk(const ms__addresses *a, int64_t address) {
    size_t low = 0, high = a->chunks.n; /* the last one that does not begin after the address */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (a->chunks.items[middle].range.address <= address)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The first n_bytes of the lowest gap that has them; -1 if none has. */
static int64_t take_from_gaps(ms__addresses *a, int64_t n_bytes) {
    for (size_t i = 0; i < a->gaps.n; i++) {
        ms__range *gap = &a->gaps.items[i];
        if (gap->n_bytes < n_bytes) continue;
        int64_t address = gap->address;
        gap->address += n_bytes;
        gap->n_bytes -= n_bytes;
        if (gap->n_bytes == 0) remove_range(a->gaps.items, &a->gaps.n, i);
        a->chunks.items[find_chunk(a, address)].used_bytes += n_bytes;
        return address;
    }
    return -1;
}

/* The upper end of the highest hole that has n_bytes; else what is below everything. */
static int64_t take_from_holes(ms__addresses *a, int64_t n_bytes) {
    for (size_t i = a->holes.n; i-- > 0;) {
        ms__range *hole = &a->holes.items[i];
        if (hole->n_bytes < n_bytes) continue;
        hole->n_bytes -= n_bytes;
        int64_t address = end_of(*hole);
        if (hole->n_bytes == 0) remove_range(a->holes.items, &a->holes.n, i);
        return address;
    }
    a->n_below += n_bytes;
    return TOP - a->n_below;
}

static int64_t add_chunk(ms__addresses *a, int64_t n_bytes) {
    ms__range range = {.n_bytes = ms__round_up(n_bytes, CHUNK_BYTES)};
    range.address = take_from_holes(a, range.n_bytes);
    size_t at = a->chunks.n++;
    for (; at > 0 && a->chunks.items[at - 1].range.address > range.address; at--)
        a->chunks.items[at] = a->chunks.items[at - 1];
    a->chunks.items[at] = (ms__address_chunk){range, n_bytes};
    if (range.n_bytes > n_bytes)
        add_range(a->gaps.items, &a->gaps.n, (ms__range){range.address + n_bytes, range.n_bytes - n_bytes}, range);
    return range.address;
}

ms_status ms__addresses_take(ms__addresses *addresses, int64_t n_bytes, int64_t *out_address) {
    ms__addresses *a = addresses;
    if (n_bytes > TOP - CHUNK_BYTES - a->n_below) return ms__fail(MS_E_LIMIT, "no addresses are left");
    size_t n_more =
        a->n_segments + 2; /* every segment may become a gap or, with its chunk, a hole: giving never fails */
    if (!ms__vec_reserve(&a->chunks, 1) || !ms__vec_reserve(&a->gaps, n_more) || !ms__vec_reserve(&a->holes, n_more))
        return MS_E_NO_MEMORY;
    a->n_segments++;
    *out_address = take_from_gaps(a, n_bytes);
    if (*out_address < 0) *out_address = add_chunk(a, n_bytes);
    return MS_OK;
}

static void drop_chunk(ms__addresses *a, size_t index) {
    ms__range range = a->chunks.items[index].range;
    for (size_t i = a->gaps.n; i-- > 0;)
        if (a->gaps.items[i].address >= range.address && a->gaps.items[i].address < end_of(range))
            remove_range(a->gaps.items, &a->gaps.n, i);
    memmove(a->chunks.items + index, a->chunks.items + index + 1, (--a->chunks.n - index) * sizeof *a->chunks.items);
    add_range(a->holes.items, &a->holes.n, range, (ms__range){0, TOP});
    if (a->holes.items[0].address != TOP - a->n_below) return;
    a->n_below -= a->holes.items[0].n_bytes;
    remove_range(a->holes.items, &a->holes.n, 0);
}

void ms__addresses_give(ms__addresses *addresses, int64_t address, int64_t n_bytes) {
    size_t index = find_chunk(addresses, address);
    ms__address_chunk *chunk = &addresses->chunks.items[index];
    addresses->n_segments--;
    chunk->used_bytes -= n_bytes;
    if (chunk->used_bytes == 0)
        drop_chunk(addresses, index);
    else
        add_range(addresses->gaps.items, &addresses->gaps.n, (ms__range){address, n_bytes}, chunk->range);
}

void ms__addresses_free(ms__addresses *addresses) {
    ms__vec_free(&addresses->chunks);
    ms__vec_free(&addresses->gaps);
    ms__vec_free(&addresses->holes);
}
