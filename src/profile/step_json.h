/* step_json.h - a step in a file: what repeats is written once.
 *
 * Units that do the same form a class, and a class is written once. For that, nothing in it may depend on which unit it
 * is: a key belongs to the unit (or to what is between units) that allocates it first, and has a number there, in the
 * order of these allocations; others call it by the way to its unit and that number.
 *
 *   "batch", "length"   the shape; 0: unknown
 *   "recomputed"        is it known what the units do when they are recomputed?
 *   "numbers"           sizes and costs at this shape
 *   "denominator", "coefficients"   MS__N_TERMS for each number; both are there or none
 *   "costs"             flops, bytes (both: a number), element bytes and flags of each
 *   "scratches"         rule and MS__SCRATCH_NUMBERS numbers of each
 *   "keys"              size (a number) and category of each kind of key
 *   "rest"              the segments between units
 *   "classes"           lists of segments
 *   "units"             the class of each unit
 *   "order"             the unit of each segment, in the order of the step; -1: between units
 *
 * A segment is [phase, tape] where both variants are alike or there is one only, else [phase, recomputed tape, plain
 * tape]. A tape is pairs of whole numbers, a code (enum ms__tape_code) and its operand; an array [n, pairs...] between
 * them is pairs that occur n times. Unless a key is new, its operand is its distance from the one of this unit
 * that the tape named last, in their numbers (from -1 where the tape begins). What is new is found by reading all
 * recomputed tapes in the order of the step, then all plain ones: keys are numbered in that order.
 */
#ifndef MS_PROFILE_STEP_JSON_H
#define MS_PROFILE_STEP_JSON_H

#include "../common/json.h"
#include "step.h"

/* The first four are the kinds of events of a step. */
enum ms__tape_code {
    MS__TAPE_NEW,       /* allocate a new key: its kind */
    MS__TAPE_RELEASE,   /* a key */
    MS__TAPE_OPERATION, /* a cost */
    MS__TAPE_SCRATCH,   /* a scratch */
    MS__TAPE_ALLOCATE,  /* a key that is not new: the recomputed variant allocates it, too */
    MS__TAPE_OTHER,     /* the next pair names another's key, by its number there. The operand says whose: its distance
                         * from here in the order in which units first run, or 0: between units. Where there is no
                         * "here", in the tapes between units: the unit's own number. */
    MS__N_TAPE_CODES
};

/* How often an array of pairs may occur. This and that every unit takes its place in the file bound what a file can
 * unfold to: well below 1000 events for each of its bytes, up to MS__STEP_MAX_EVENTS. */
#define MS__TAPE_MAX_TIMES 16

/* The members of an object. */
void ms__step_write(ms__json_writer *w, const ms__step *step);

/* The inverse, strict. What it holds belongs to the arena. Errors: MS_E_PARSE, MS_E_LIMIT, MS_E_NO_MEMORY. */
ms_status ms__step_read(const ms__json *object, int64_t n_units, ms__arena *arena, ms__step *out);

#endif
