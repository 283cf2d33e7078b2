/* names.h - the names of categories, phases and techniques: one table each, and the only place where they are written.
 *
 * A name is for people, an identifier for files and programs; all are static.
 */
#ifndef MS_COMMON_NAMES_H
#define MS_COMMON_NAMES_H

#include "status.h"

typedef struct ms__name {
    const char *name, *identifier;
} ms__name;

typedef struct ms__phase_row {
    ms__name name;
    const char *place; /* in a sentence: "in the optimizer step", "between steps" */
} ms__phase_row;

extern const ms__name ms__categories[MS_N_CATEGORIES];
extern const ms__phase_row ms__phases[MS_N_PHASES];

/* For getters: the `index`-th of `n` names. Errors: MS_E_INVALID. */
ms_status ms__name_get(const ms__name *names, int64_t n, int64_t index, ms_name_info *out, const char *function);

/* The number of a bit, or -1 if `flag` is not exactly one of the first `n`. */
int ms__bit_number(uint32_t flag, int n);

#endif
