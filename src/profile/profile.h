/* profile.h - profiles and their units, for this folder and for the planner.
 *
 * Invariant: the sizes of a checked list of units add up to less than 2^60, so that code which adds them needs no
 * checks.
 */
#ifndef MS_PROFILE_PROFILE_H
#define MS_PROFILE_PROFILE_H

#include "../common/arena.h"
#include "../common/json.h"
#include "../common/owners.h"
#include "../common/status.h"
#include "step.h"

struct ms_profile {
    ms__owners owners;
    ms__arena arena;
    ms_unit *units; /* names belong to the arena */
    int64_t n_units;
    int64_t resident_bytes;
    int64_t outside_bytes;
    ms__step *step; /* belongs to the arena */
};

/* Can this be a size of a profile or a plan? */
bool ms__size_in_range(int64_t value);

/* Copies of these units, names included, which belong to the arena. Errors: MS_E_INVALID (a unit without a name),
 * MS_E_LIMIT, MS_E_NO_MEMORY. */
ms_status ms__units_copy(ms__arena *arena, const ms_unit *units, int64_t n_units, ms_unit **out);

/* Fill in what follows from the profile's step: its sizes and its units. `units` have their names, parameters and
 * MS_UNIT_BLOCK, and 0 elsewhere; the totals are added there, and copies go to the profile. Errors: as ms__units_copy.
 */
ms_status ms__profile_tally(ms_profile *profile, ms_unit *units, int64_t n_units);

/* A profile with a copy of this step, and the units of `from`, counted anew. `*out` is owned, ms_profile_destroy.
 * Errors: MS_E_LIMIT, MS_E_NO_MEMORY. */
ms_status ms__profile_with_step(const ms_profile *from, const ms__step *step, ms_profile **out);

#endif
