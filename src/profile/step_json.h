/* step_json.h - a step in a file, in which repetitions are written once.
 *
 * Units that do the same form a class, and a class is written once. So nothing in it may depend on which unit it is: a
 * key belongs to the unit (or to the segments between units) that allocates it first, and has a number there, in the
 * order of these allocations. Other units name it by the distance to its unit and that number.
 *
 *   "batch", "length"   the shape; 0: unknown
 *   "recomputed"        was the recomputed variant traced?
 *   "numbers"           sizes and costs at this shape
 *   "denominator", "coefficients"   MS__N_TERMS for each number; both or neither
 *   "costs"             flops, bytes (both: a number), element bytes and flags of each
 *   "scratches"         rule and MS__SCRATCH_NUMBERS numbers of each
 *   "keys"              size (a number) and category of each kind of key
 *   "rest"              the segments between units
 *   "classes"           lists of segments
 *   "units"             the class of each unit
 *   "order"             the unit of each segment, in the order of the step; -1: between units
 *
 * A segment is [phase, tape] if both variants are equal or there is only one, else [phase, recomputed tape, plain
 * tape]. A tape is pairs of whole numbers, a code (enum ms__tape_code) and its operand; an array [n, pairs...] between
 * them is pairs that occur n times. Unless a key is new, its operand is the difference between its number and that of
 * the key of this unit that the tape named last (-1 where the tape begins). Keys are numbered in the order in which
 * they are new, reading all recomputed tapes in the order of the step, then all plain ones.
 */
#ifndef MS_PROFILE_STEP_JSON_H
#define MS_PROFILE_STEP_JSON_H

#include "../common/json.h"
#include "step.h"

/* The first four are kinds of events of a step. */
enum ms__tape_code {
    MS__TAPE_NEW,        /* allocate a new key: its kind */
    MS__TAPE_RELEASE,    /* a key */
    MS__TAPE_OPERATION,  /* a cost */
    MS__TAPE_SCRATCH,    /* a scratch */
    MS__TAPE_ALLOCATE,   /* a key that is not new: the recomputed variant allocates it too */
    MS__TAPE_OTHER,      /* the next pair names a key of another unit, by its number there. The operand is the
                          * distance to that unit in the order in which units first run, or 0: between units. In the
                          * tapes between units, it is the index of the unit. */
    MS__TAPE_ACCUMULATE, /* a key */
    MS__TAPE_HOLD,       /* a key */
    MS__N_TAPE_CODES
};

/* How often an array of pairs may be repeated. Since every unit also has entries of its own, this bounds what a file
 * can unfold to: well below 1000 events for each of its bytes, up to MS__STEP_MAX_EVENTS. */
#define MS__TAPE_MAX_TIMES 16

/* Write the members of an object. */
void ms__step_write(ms__json_writer *w, const ms__step *step);

/* The inverse, strict. Its arrays belong to the arena. Errors: MS_E_PARSE, MS_E_LIMIT, MS_E_NO_MEMORY. */
ms_status ms__step_read(const ms__json *object, int64_t n_units, ms__arena *arena, ms__step *out);

#endif
