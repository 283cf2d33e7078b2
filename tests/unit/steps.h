/* steps.h - traces written by hand, and a small model all of whose bytes are known.
 *
 * A script is a trace that is being written. The model has two units and AdamW-like optimizer state; all sizes are
 * multiples of 512, so that they are the same on a GPU without the allocator's model.
 *
 *   start      parameters 1024 each, input 512                          2560
 *   forward    each unit keeps 4096 and outputs 2048; the loss is 512
 *   backward   gradients of activations 2048, of parameters 1024 each
 *   optimizer  2048 for each parameter, and 1024 for a moment
 */
#ifndef TESTS_STEPS_H
#define TESTS_STEPS_H

#include <stdbool.h>

#include "profile/profile.h"
#include "runner.h"

#define SCRIPT_ITEMS 2048

typedef struct script {
    ms_trace_event events[SCRIPT_ITEMS];
    ms_trace_op ops[SCRIPT_ITEMS];
    ms_trace_operand operands[SCRIPT_ITEMS];
    const char *names[SCRIPT_ITEMS];
    int64_t kinds[SCRIPT_ITEMS];
    int64_t n_events, n_ops, n_operands, n_storages;
} script;

/* Each adds an event. The operands of an operation are added after it: inputs, then outputs, of 4-byte elements (of
 * storage 0). `take` returns the index of a storage. */
void say(script *s, int64_t kind, int64_t a, int64_t b);
void in_phase(script *s, int64_t phase);
void in_unit(script *s, int64_t unit);
void repeating(script *s, int64_t unit);
void compute(script *s, const char *name);
void input(script *s, int64_t rows, int64_t columns);
void output(script *s, int64_t rows, int64_t columns);
int64_t take(script *s, int64_t n_bytes);
int64_t take_as(script *s, int64_t category, int64_t n_bytes);
void give(script *s, int64_t storage);
void save(script *s, int64_t storage, int64_t number);

ms_trace trace_of(const script *s);

/* The small model; `recomputed`: its units are recomputed. */
void two_units(script *s, bool recomputed);

/* The same, recomputed, with what its units save: number n is of unit n. */
void two_watched_units(script *s);

/* What ms_profile_from_watched_trace makes of a trace of two units; `plain` should be NULL. */
ms_status try_watched_profile(const ms_trace *watched, const ms_trace *plain, ms_profile **out);

/* The profile that ms_profile_from_traces makes from scripts of two units; `recomputed` may be NULL. */
ms_status try_profile(const script *kept, const script *recomputed, ms_profile **out);
ms_profile *profile_of_scripts(const script *kept, const script *recomputed);

/* Of the small model, with both variants. */
ms_profile *two_unit_profile(void);

/* Bit for bit. */
void check_same_step(const ms__step *a, const ms__step *b);

#endif
