/* profile.h - profiles and their units, for this folder and for those that decide.
 *
 * What a unit may be (its name, the range of its sizes) and how it is written is said once, here, for profiles and for
 * plans. Always holds: the sizes of a checked list of units and their modelled costs fit in 60 bits in sum, so that
 * whoever adds them up needs no checks.
 */
#ifndef MS_PROFILE_PROFILE_H
#define MS_PROFILE_PROFILE_H

#include "../common/arena.h"
#include "../common/json.h"
#include "../common/status.h"
#include "step.h"

#define MS__UNIT_MAX_NOTES 2

struct ms_profile {
    ms__arena arena;
    ms_unit *units; /* names belong to the arena */
    int64_t n_units;
    int64_t resident_bytes;
    int64_t outside_bytes;
    ms__step *step; /* belongs to the arena; NULL: only the units are known */
};

/* Can this be a size of a profile or a plan? */
bool ms__size_in_range(int64_t value);

/* Modelled forward time of a unit, in bytes moved: what it writes, and its arithmetic at a fixed rate. */
int64_t ms__unit_cost(const ms_unit *unit);

/* Copies of these units, names included, which belong to the arena. Errors: MS_E_INVALID (a unit without a name),
 * MS_E_LIMIT, MS_E_NO_MEMORY. */
ms_status ms__units_copy(ms__arena *arena, const ms_unit *units, int64_t n_units, ms_unit **out);

/* Fill in what the profile's step means: its sizes, and its units. These have their names and parameters, and 0
 * elsewhere; the totals go there too, and copies into the profile. Errors: as ms__units_copy. */
ms_status ms__profile_tally(ms_profile *profile, ms_unit *units, int64_t n_units);

/* A profile with a copy of this step, and the units of `from`, counted anew. `*out` is owned, ms_profile_destroy.
 * Errors: MS_E_LIMIT, MS_E_NO_MEMORY. */
ms_status ms__profile_with_step(const ms_profile *from, const ms__step *step, ms_profile **out);

/* A text that stands in a unit's object behind its name: what a plan has to say about it. MS__UNIT_MAX_NOTES at most.
 */
typedef struct ms__unit_note {
    const char *key;
    const char *text;
} ms__unit_note;

/* One unit as a JSON object. */
void ms__unit_write(ms__json_writer *w, const ms_unit *unit, const ms__unit_note *notes, size_t n_notes);

/* The inverse, strict. The keys of the notes are given, their texts are filled in. Strings belong to the document;
 * ms__units_copy checks the ranges. Errors: MS_E_PARSE. */
ms_status ms__unit_read(const ms__json *object, ms__unit_note *notes, size_t n_notes, ms_unit *out);

#endif
