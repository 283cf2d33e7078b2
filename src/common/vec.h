/* vec.h - a growing array of any plain type, as macros over one untyped function.
 *
 *     MS__VEC(int) numbers = {0};
 *     if (!ms__vec_push(&numbers, 7)) return MS_E_NO_MEMORY;
 *     ms__vec_free(&numbers);
 *
 * Items move when the array grows: keep indices, not pointers.
 */
#ifndef MS_COMMON_VEC_H
#define MS_COMMON_VEC_H

#include <stdbool.h>
#include <stddef.h>

#define MS__VEC(type)                                                                                                  \
    struct {                                                                                                           \
        type *items;                                                                                                   \
        size_t n;                                                                                                      \
        size_t capacity;                                                                                               \
    }

/* Room for `n_more` items after the last; false when memory runs out (the error record is set, nothing changed). */
#define ms__vec_reserve(vec, n_more)                                                                                   \
    ms__vec_grow(&(vec)->items, &(vec)->capacity, (vec)->n, (n_more), sizeof *(vec)->items)

#define ms__vec_push(vec, item) (ms__vec_reserve(vec, 1) && ((vec)->items[(vec)->n++] = (item), true))

#define ms__vec_free(vec) ms__vec_release(&(vec)->items, &(vec)->n, &(vec)->capacity)

/* `items` is the address of a pointer of the vector's own type. */
bool ms__vec_grow(void *items, size_t *capacity, size_t n, size_t n_more, size_t item_bytes);
void ms__vec_release(void *items, size_t *n, size_t *capacity);

#endif
