/* actions.h - the table of actions: what a plan can do to a unit, one row each.
 *
 * Names, letters, techniques, needs and effects of actions are written here and nowhere else; simulations, the search,
 * plans as text and as files, and Python read the rows. A new action is an enumerator, a row, an effect and, to run it,
 * an executor.
 */
#ifndef MS_SIM_ACTIONS_H
#define MS_SIM_ACTIONS_H

#include "../common/names.h"
#include "../profile/profile.h"
#include "recompute_cost.h"

/* What an action changes, against the variant of the unit that it is based on. */
typedef struct ms__effect {
    int64_t held_bytes;     /* between its forward and its backward */
    int64_t forward_bytes;  /* at the peak of its forward, and of its backward */
    int64_t backward_bytes; /* may be below 0 */
    int64_t copy_bytes;     /* to the host, and back */
    int64_t extra_ns;       /* may be below 0 */
    bool is_possible;       /* there is something to copy, to keep or to recompute */
} ms__effect;

typedef struct ms__action ms__action;

struct ms__action {
    ms__name name;
    const char *sentence; /* of a number of layers, or a name: "%s recomputed" */
    const char *letter;
    uint32_t techniques; /* enum ms_technique: all of them must be allowed */
    uint32_t keeps;      /* enum ms_keep: outputs that are not recomputed */
    int variant;         /* MS__PLAIN, MS__RECOMPUTED or MS__POINTWISE: the trace that the unit runs as */
    bool is_played;      /* simulations play all that it changes (changes.h); of other actions they add a model of it */
    bool needs_link;     /* it copies between device and host */
    bool waits;          /* the next unit waits for its copies: nothing is left in the backlog */
    bool needs_tiles;    /* the unit must be computable in tiles */
    bool is_runnable;    /* an executor of this version runs it */
    uint32_t chosen_on;  /* kinds of devices (1 << enum ms_device_kind) on which plans use it: it was measured there */
    ms__effect (*effect)(const ms__action *action, const ms__recompute_cost *cost, const ms_unit *unit);
};

extern const ms__action ms__actions[MS_N_ACTIONS];

/* The action that does nothing but run its unit in this variant. */
int32_t ms__action_of_variant(int variant);

/* What an action does to a unit with these costs. */
ms__effect ms__effect_of(int32_t action, const ms__recompute_cost *cost, const ms_unit *unit);

#endif
