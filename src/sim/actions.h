/* levers.h - what a plan's actions do to memory and time, beside running a unit kept or recomputed.
 *
 * Simulations (sim.c) and the search (src/plan) read the same rules here. A step runs its units in a chain: in the
 * order of their first forward, and backward the other way round. Where the step is in a segment, the first `prefix`
 * units of the chain hold what they keep for backward.
 *
 * The link: what a unit offloads is copied out while later units run forward, and comes back while they run backward,
 * so late that it is there just in time. So both ways look alike: behind each unit a backlog of copies is left, in
 * ticks, which later units work off; what is in the backlog is on the device still, or already.
 */
#ifndef MS_SIM_LEVERS_H
#define MS_SIM_LEVERS_H

#include "../profile/profile.h"
#include "recompute_cost.h"

#define MS__NO_CHAIN (-1)

/* Change a simulation of the variants into one of the actions and the state (overlay.c). Errors: MS_E_NO_MEMORY. */
ms_status ms__overlay(const ms_simulation_request *request, ms_simulation_segment *points,
                      ms_simulation_summary *summary);

typedef struct ms__order {
    int32_t *units;    /* chain position -> unit */
    int32_t *position; /* unit -> chain position, MS__NO_CHAIN: it does not run */
    int32_t *prefix;   /* segment -> how many units hold */
    int32_t n;
} ms__order;

/* What belongs to `out` belongs to the arena. Errors: MS_E_NO_MEMORY. */
ms_status ms__order_make(ms__arena *arena, const ms__step *step, ms__order *out);

/* What an action changes, against its variant of the unit. */
typedef struct ms__effect {
    int64_t held_bytes;     /* between its forward and its backward */
    int64_t forward_bytes;  /* at the peak of its forward, and of its backward */
    int64_t backward_bytes; /* may be below 0 */
    int64_t copy_bytes;     /* to the host, and back */
    int64_t extra_ns;       /* may be below 0 */
    int variant;            /* MS__PLAIN or MS__RECOMPUTED */
    bool waits;             /* nothing is left in the backlog behind it */
    bool is_possible;       /* there is something to copy, to keep, to compute again */
} ms__effect;

/* The variant in which a unit runs under an action. */
int ms__action_variant(int32_t action);

ms__effect ms__effect_of(const ms__ledger *ledger, const ms_unit *unit, int32_t action);

typedef struct ms__link {
    int64_t slot_ns;    /* 0: there is no link */
    int64_t slot_bytes; /* that go one way in a slot */
    int64_t mb_per_s;   /* one way */
    int32_t max_slots;  /* of a backlog; longer copies are waited for */
} ms__link;

/* For copies of at most so many bytes. */
ms__link ms__link_make(const ms_rates *rates, int64_t max_copy_bytes);

/* A unit's copy in ticks, rounded up, and the time that hides copies, rounded down. */
int32_t ms__link_copy_slots(const ms__link *link, int64_t n_bytes);
int32_t ms__link_hide_slots(const ms__link *link, int64_t ns);

/* What copies take from the units that hide them: the memory that both use is as fast as it is. */
int64_t ms__link_drag_ns(const ms__link *link, int64_t n_bytes);

/* What it takes to wait for a backlog, both ways. */
int64_t ms__link_wait_ns(const ms__link *link, int32_t backlog);

/* The backlog behind a unit. `*out_wait_ns`: what is waited for, both ways. */
int32_t ms__link_step(const ms__link *link, int32_t before, int32_t hide, int32_t copy, bool waits,
                      int64_t *out_wait_ns);

/* What a state (enum ms_model_option) changes. */
typedef struct ms__model_effect {
    uint32_t flags;
    int64_t parameter_bytes; /* change on the device: lower halves */
    int64_t optimizer_ppm;   /* of the optimizer's state in the profile stays on the device ... */
    bool drops_gradients;    /* gradients leave the device as they appear */
    bool is_streamed;        /* the optimizer step goes by chunks, and takes `optimizer_ns` and no more than a buffer */
    int64_t optimizer_ns;
    int64_t backward_ns; /* beyond the profile's: waiting for gradients to leave */
    int64_t host_bytes;
    int64_t loss_spared_bytes; /* the largest gradient: no part of what tiles of the loss make smaller */
} ms__model_effect;

/* From the parts of the profile's step. `backward_ns`: of the plain one. */
ms__model_effect ms__model_effect_make(const ms__step *step, const ms_rates *rates, uint32_t flags,
                                       int64_t backward_ns);

/* What it changes at a point of a simulation: bytes by category. Returns their sum. */
int64_t ms__model_effect_at(const ms__model_effect *state, const ms_simulation_segment *point,
                            int64_t change[MS_N_CATEGORIES]);

/* Activations and temporaries at the peak of a stretch, and those that are left behind it. */
int64_t ms__transient_bytes(const ms_simulation_segment *point);
int64_t ms__transient_end_bytes(const ms_simulation_segment *point);

/* What tiles of the loss make of so many bytes of activations and temporaries behind the last unit's beginning. */
int64_t ms__model_tiled_loss(const ms__model_effect *state, int64_t n_bytes);

#endif
