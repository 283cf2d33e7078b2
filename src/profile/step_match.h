/* step_match.h - the same step at several shapes, with the numbers of all of them side by side. */
#ifndef MS_PROFILE_STEP_MATCH_H
#define MS_PROFILE_STEP_MATCH_H

#include "profile.h"

enum { MS__PLACE_BYTES = 160 };

/* Events of one kind in all profiles. An event has one index in each profile; each such tuple of indices is stored
 * once. */
typedef struct ms__tuples {
    uint32_t *indices; /* n_profiles for each tuple */
    uint32_t *of;      /* occurrence -> tuple */
    uint32_t n;
} ms__tuples;

typedef struct ms__match {
    const ms_profile *const *profiles;
    int64_t n_profiles;
    ms__arena *arena;       /* for everything below */
    const ms__step **steps; /* of the profiles; without pointwise variants, if these differ */
    ms__tuples costs, scratches;
    int64_t *values;    /* n_profiles for each number */
    uint32_t *numbers;  /* key, then costs, then scratches -> number */
    uint32_t n_numbers; /* different ones */
} ms__match;

/* Compare the steps and gather their numbers; profiles and arena are set. Errors: MS_E_MISMATCH (the message says where
 * the steps differ), MS_E_NO_MEMORY. */
ms_status ms__match_steps(ms__match *match);

/* The first place of the step that depends on a marked number, and what that number is there; false: there is none. */
bool ms__match_find(const ms__match *match, const uint8_t *is_marked, char out_place[MS__PLACE_BYTES],
                    const char **out_what, uint32_t *out_number);

/* The step of the first profile whose keys, costs, scratches and events have the indices of the common numbers. Its
 * arrays belong to the arena. Errors: MS_E_NO_MEMORY. */
ms_status ms__match_fill_step(const ms__match *match, ms__arena *arena, ms__step *out);

#endif
