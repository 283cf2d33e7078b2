/* player.h - a step that is played: what it holds and where its clocks are, for the files that simulate.
 *
 * sim.c plays segments and events in their order, player.c keeps the books of memory and time, and play_changes.c does
 * what the actions of a plan change in the events (changes.h).
 */
#ifndef MS_SIM_PLAYER_H
#define MS_SIM_PLAYER_H

#include "allocator.h"
#include "changes.h"
#include "roofline.h"
#include "schedule.h"
#include "sim.h"

#define MS__NOT_THERE INT64_MIN

typedef struct ms__clock {
    int64_t host_ns, device_ns;
    int64_t out_ns, in_ns; /* when the copies to the host so far, and those back, are done */
    int64_t wait_ns;       /* the device has waited for copies */
    bool is_repeating;     /* the last operation was part of a recomputation */
    bool has_stepped;      /* the optimizer has begun */
} ms__clock;

typedef struct ms__peak {
    int64_t bytes, segment;
    int64_t parts[MS_N_CATEGORIES];
} ms__peak;

/* A visit (changes.h), and what of it is offloaded. Lists end with MS__NOBODY. */
typedef struct ms__offloaded {
    int64_t n_bytes;                    /* that are copied */
    int64_t left_ns, back_ns;           /* its copies are on the host, and on the device again */
    int32_t first;                      /* key that moves */
    int32_t first_leaving;              /* visit that is gone when this one has run forward */
    int32_t first_fetched;              /* visit that is fetched when this one's backward begins */
    int32_t next_leaving, next_fetched; /* of the lists that this one is in */
    bool is_offloaded, waits, is_away;
} ms__offloaded;

typedef struct ms__player {
    const ms_simulation_request *request;
    const ms__step *step;
    const ms__changes *changes; /* NULL: the events are played as they were traced */
    ms__allocator *allocator;   /* NULL: sizes are added up */
    int64_t *blocks;            /* key -> block, or MS__NOT_THERE */
    int64_t *scratch_bytes;     /* scratch -> bytes */
    int64_t *busy_ns;           /* cost -> time on the device */
    int32_t *released_in;       /* split key -> the segment in which this plan releases it, or never */
    int32_t *first_released;    /* segment -> its first split key, or -1 */
    int32_t *next_released;     /* split key -> the next of the same segment, or -1 */
    int64_t *addends;     /* gradient -> the block of a new one that is still to be added to it, or MS__NOT_THERE */
    bool *is_accumulated; /* key -> does the step say when that is done? If not, the next operation does it */
    uint32_t *brief;      /* the gradients with an addend that lives until the next operation */
    uint32_t n_brief;
    uint8_t *kept;      /* key -> how far it is (play_changes.c); NULL without changes */
    uint32_t *compared; /* keys of results that are computed to be compared */
    uint32_t n_compared;
    ms__offloaded *offloaded; /* by visit; NULL without changes */
    int32_t *next_moved;      /* key -> the next one that moves with it */
    ms__schedule schedule;
    int64_t spacer;         /* its block while it is there, or MS__NOT_THERE */
    int64_t spacer_segment; /* at whose beginning it is taken and at whose end it is given; -1: there is none */
    int n_steps;            /* that were played: in the first nothing is kept, in the second results are compared */
    int64_t most_bytes;     /* where the step needs more, the rest of it is not played */
    bool is_over;           /* it does */
    int64_t parts[MS_N_CATEGORIES];
    int64_t held_bytes;               /* what the parts add up to, rounded */
    int64_t allocated;                /* now */
    ms__peak peak;                    /* of this segment; at the end, of the step */
    bool has_variant[MS__N_VARIANTS]; /* does a unit run in this variant? */
    bool has_workspace[2][2];         /* of the calling thread and of the engine's: cuBLAS, cuBLASLt */
    ms__clock now;
    int64_t n_ops;
    int64_t n_gradients;  /* parameters that the optimizer updates */
    int64_t update_bytes; /* what a fused optimizer reads and writes for them */
} ms__player;

bool ms__player_on_gpu(const ms__player *p);

/* ---- Memory (player.c) ---- */

/* Errors, of all of them: as ms__allocator_take. */
ms_status ms__player_take(ms__player *p, uint32_t key, int64_t segment);
ms_status ms__player_take_transient(ms__player *p, int64_t n_bytes, int64_t segment);
ms_status ms__player_take_workspaces(ms__player *p, const ms__segment *segment, int64_t index, uint32_t flags);
ms_status ms__player_give(ms__player *p, uint32_t key);

/* The spacer of the request, in its segment. */
ms_status ms__player_take_spacer(ms__player *p, int64_t segment);
ms_status ms__player_give_spacer(ms__player *p, int64_t segment);

/* New gradients that are added to those that exist: of one, of those that live until the next operation, of all. */
ms_status ms__player_give_addend(ms__player *p, uint32_t key);
ms_status ms__player_give_brief(ms__player *p);
ms_status ms__player_give_addends(ms__player *p);

void ms__player_note_peak(ms__player *p, int64_t segment);

/* ---- Time (player.c) ---- */

/* An operation, and what it is to a unit that keeps results (ms__changes_role()). */
enum ms__role {
    MS__ROLE_NONE,   /* its unit keeps nothing */
    MS__ROLE_KEEPER, /* it runs in a unit that does */
    MS__ROLE_SPARED  /* the host finds its result, and the device does nothing */
};
void ms__player_run(ms__player *p, uint32_t phase, uint32_t cost, enum ms__role role);
int64_t ms__player_time(const ms__player *p);

/* The device waits until then, which copies that it shares its memory with make longer by `drag_ns`. */
void ms__player_wait(ms__player *p, int64_t until_ns, int64_t drag_ns);

/* ---- What actions change (play_changes.c) ---- */

/* Its arrays belong to the arena. `basis` may be NULL. Without such actions there are no changes. Errors:
 * MS_E_NO_MEMORY. */
ms_status ms__changes_open(ms__player *p, ms__arena *arena, const ms__sim_basis *basis);
void ms__changes_begin_step(ms__player *p, int n_steps);

/* Before and after the events of a segment. */
ms_status ms__changes_begin_segment(ms__player *p, int64_t index);
ms_status ms__changes_end_segment(ms__player *p, int64_t index);

/* Before an event: what is kept for a recomputation that is over goes, and casts that it needs are made again. */
ms_status ms__changes_begin_event(ms__player *p, uint32_t event, int64_t segment);

/* What an event is; MS__ROLE_SPARED: it does not happen. */
enum ms__role ms__changes_role(const ms__player *p, int32_t unit, uint32_t event);

/* Such an event, other than an operation. */
ms_status ms__changes_play_spared(ms__player *p, const ms__step_event *event, int64_t segment);

/* The function is over whose events these were. */
ms_status ms__changes_end_comparison(ms__player *p, int64_t segment);

/* In place of ms__player_give(): the events release the key here. */
ms_status ms__changes_release(ms__player *p, uint32_t key);

/* Of all visits: what is copied to the host. */
int64_t ms__changes_host_bytes(const ms__player *p);

#endif
