/* step.h - one training step: what it allocates, releases and computes, unit by unit.
 *
 * The step is a chain of segments, each one phase inside one unit or between units. Every segment has up to three
 * variants: as it runs when nothing is done ("plain"), when its unit is recomputed in backward, and when only results
 * of its pointwise functions are ("pointwise"). What is allocated is a key. All variants use the same keys, so that
 * units can be kept or recomputed one by one: a recomputed unit can release a tensor that a plain unit before it
 * allocated.
 *
 * Invariants
 *   - A step is immutable. Its indices were checked when it was made, so readers need not.
 *   - Within a variant of a segment events are in the order of the step. A variant allocates a key at most once, and
 *     releases it at most once, after that. A key is released in the same segment in all variants that allocate it, or
 * it is split, or it is never released.
 *   - A gradient is accumulated when backward has made all of it: until then it exists besides one that the parameter
 *     already has. Steps from traces that do not tell have no such events.
 *   - Keys are numbered in the order in which they are first allocated: in the recomputed variant, then in the plain
 * one, then in the pointwise one.
 *   - A step has a pointwise variant only if it has a recomputed one.
 *   - Numbers are sizes (ms__size_in_range), and so are these sums: the bytes of all keys, in blocks of 512; operations
 *     and bytes of all costs, each time that they occur. There are at most MS__STEP_MAX_EVENTS events.
 */
#ifndef MS_PROFILE_STEP_H
#define MS_PROFILE_STEP_H

#include "../common/arena.h"
#include "../common/json.h"
#include "../common/status.h"
#include "ops.h"

#define MS__STEP_MAX_EVENTS ((uint32_t)1 << 22)
#define MS__MAX_ELEMENT_BYTES 64

enum { MS__PLAIN, MS__RECOMPUTED, MS__POINTWISE, MS__N_VARIANTS };

/* In this order variants number new keys. */
static const int ms__variant_order[MS__N_VARIANTS] = {MS__RECOMPUTED, MS__PLAIN, MS__POINTWISE};

enum ms__step_event_kind {
    MS__ALLOCATE,
    MS__RELEASE,
    MS__OPERATION,
    MS__SCRATCH,
    MS__ACCUMULATE,
    MS__HOLD, /* of the recomputed variant, in forward: the unit holds an input for its recomputation */
    MS__N_EVENT_KINDS
};

typedef struct ms__step_event {
    uint32_t kind;
    uint32_t index; /* of a key, a key, a cost, a scratch, a key, a key */
} ms__step_event;

typedef struct ms__step_key {
    uint32_t size;     /* a number */
    uint32_t category; /* enum ms_category */
    uint32_t split;    /* 1 + index of its split key; 0: both variants release it in the same segment */
} ms__step_key;

typedef struct ms__step_cost {
    uint32_t flops, bytes; /* numbers */
    uint32_t element_bytes;
    uint32_t flags; /* MS__OP_..., and among them a number of tensors (ms__step_cost_tensors) */
} ms__step_cost;

enum {
    MS__OP_VIEW = 1,
    MS__OP_MATRIX = 2,
    MS__OP_RANDOM = 4,
    MS__OP_ATTENTION = 8,
    MS__OP_BIASED = 16,
    MS__OP_REPEATED = 32, /* by a recomputation: a forward operation that runs in backward */
    MS__OP_LIST = 64,     /* it works on lists of tensors, as optimizers call it */
    MS__OP_ODD = 128,     /* a product of 16-bit elements whose rows have odd lengths */
    MS__OP_UNEVEN = 256,  /* a product of 16-bit elements whose rows are no multiples of 16 bytes, though even */
    MS__OP_TENSOR = 512,  /* one of the tensors that are counted */
    MS__OP_MAX_TENSORS = 65535,
    MS__OP_IN_ATTENTION = 1 << 25, /* of a function whose result may be kept */
    MS__OP_IN_PRODUCT = 1 << 26,
    MS__OP_RESULT = 1 << 27, /* it allocates that result */
    MS__OP_ALL = (1 << 28) - 1
};

/* Tensors that the host handles one by one: those that autograd saves, of an operation that is repeated; those in the
 * lists, of one that has lists; else 0. */
static inline uint32_t ms__step_cost_tensors(const ms__step_cost *cost) {
    return cost->flags / MS__OP_TENSOR & MS__OP_MAX_TENSORS;
}

/* Of which kind of function (enum ms_keep) it is a part; 0: of none whose result may be kept. */
static inline uint32_t ms__step_cost_keeps(const ms__step_cost *cost) {
    return (cost->flags & MS__OP_IN_ATTENTION ? MS_KEEP_ATTENTION : 0U) |
           (cost->flags & MS__OP_IN_PRODUCT ? MS_KEEP_PRODUCTS : 0U);
}

typedef struct ms__step_scratch {
    uint32_t rule;                   /* enum ms__scratch_rule */
    uint32_t n[MS__SCRATCH_NUMBERS]; /* numbers */
} ms__step_scratch;

typedef struct ms__segment {
    int32_t unit;   /* -1: between units */
    uint32_t phase; /* enum ms_phase */
    uint32_t first[MS__N_VARIANTS], n[MS__N_VARIANTS];
} ms__segment;

#define MS__NEVER_RELEASED (-1)
#define MS__NOT_ALLOCATED (-2) /* in this variant */

/* A key that the variants release in different segments. */
typedef struct ms__split_key {
    uint32_t key;
    int32_t segment[MS__N_VARIANTS];
} ms__split_key;

/* Sizes and costs at other shapes: terms in batch b and length t (shape_terms.h). The last two have the length as
 * attention kernels pad it. */
enum {
    MS__TERM_1,
    MS__TERM_B,
    MS__TERM_T,
    MS__TERM_BT,
    MS__TERM_TT,
    MS__TERM_BTT,
    MS__TERM_BP,
    MS__TERM_BTQ,
    MS__N_TERMS
};

typedef struct ms__step {
    int64_t *numbers;      /* sizes and costs at this shape, each once */
    int64_t *coefficients; /* MS__N_TERMS for each number, over `denominator`; NULL: only this shape is known. Their
                            * magnitudes are in the range of sizes. At this shape they give the numbers */
    int64_t denominator;   /* above 0 where there are coefficients */
    int64_t batch, length; /* this shape; 0: unknown */
    ms__step_key *keys;
    ms__step_event *events;
    ms__step_cost *costs;
    ms__step_scratch *scratches;
    ms__segment *segments;
    ms__split_key *split_keys;
    uint32_t n_numbers, n_keys, n_events, n_costs, n_scratches, n_segments, n_split_keys, n_units;
    bool has_recomputed, has_pointwise;
} ms__step;

static inline bool ms__step_has(const ms__step *step, int variant) {
    return variant == MS__PLAIN || (variant == MS__RECOMPUTED ? step->has_recomputed : step->has_pointwise);
}

/* The variant that is played for it: a step without pointwise results has the plain one. */
static inline int ms__step_played(const ms__step *step, int variant) {
    return ms__step_has(step, variant) ? variant : MS__PLAIN;
}

/* Is it held until backward in this variant? */
static inline bool ms__step_is_held(const ms__step *step, const ms__split_key *split, int variant) {
    int32_t at = split->segment[variant];
    return at >= 0 && step->segments[at].phase == MS_PHASE_BACKWARD;
}

static inline int64_t ms__step_key_bytes(const ms__step *step, uint32_t key) {
    return step->numbers[step->keys[key].size];
}

/* Find the split keys of a step that is otherwise complete, and check its sums. Errors: MS_E_LIMIT, MS_E_NO_MEMORY. */
ms_status ms__step_finish(ms__arena *arena, ms__step *step);

/* Check the numbers and sums of a step at another shape. Errors: MS_E_LIMIT. */
ms_status ms__step_check_sums(const ms__step *step);

/* From the trace of a plain step; of one with all units recomputed, or NULL; and with that, of one with the results of
 * all pointwise functions recomputed, or NULL. Its arrays belong to the arena. Errors:
 * MS_E_INVALID (a trace is malformed), MS_E_MISMATCH (the traces are of different steps), MS_E_LIMIT,
 * MS_E_NO_MEMORY. */
ms_status ms__step_from_traces(ms__arena *arena, const ms_trace *const traces[MS__N_VARIANTS], int64_t n_units,
                               ms__step *out);

#endif
