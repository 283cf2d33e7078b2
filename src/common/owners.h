/* owners.h - counts the owners of an immutable object.
 *
 * A count of 0 means one owner, so a zeroed object belongs to its creator. Any thread.
 */
#ifndef MS_COMMON_OWNERS_H
#define MS_COMMON_OWNERS_H

#include <stdatomic.h>
#include <stdbool.h>

typedef struct ms__owners {
    atomic_long n_more; /* beyond the first */
} ms__owners;

static inline void ms__owners_add(ms__owners *owners) {
    atomic_fetch_add_explicit(&owners->n_more, 1, memory_order_relaxed);
}

/* One owner less. True if it was the last: the object is the caller's to free. Release and acquire pair with those of
 * the other owners, so that the last one sees all that they did with the object. */
static inline bool ms__owners_remove(ms__owners *owners) {
    return atomic_fetch_sub_explicit(&owners->n_more, 1, memory_order_acq_rel) == 0;
}

#endif
