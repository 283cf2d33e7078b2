/* intern.h - equal items of an array become one. */
#ifndef MS_COMMON_INTERN_H
#define MS_COMMON_INTERN_H

#include "arena.h"
#include "status.h"

/* Move the first of every set of equal items to the front, in their order; `*out_n` items remain. `(*out_index)[i]` is
 * the new index of item i; it belongs to the arena. Items are compared byte by byte, so padding must be equal too.
 * Errors: MS_E_NO_MEMORY. */
ms_status ms__intern(ms__arena *arena, void *items, size_t n, size_t item_bytes, uint32_t **out_index, uint32_t *out_n);

#endif
