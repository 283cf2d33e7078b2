/* ledger.h - what each unit of a step could hold, and compute again: for frontiers, simulations and plans. */
#ifndef MS_SIM_LEDGER_H
#define MS_SIM_LEDGER_H

#include "../common/arena.h"
#include "../profile/step.h"

enum ms__group { MS__GROUP_ATTENTION, MS__GROUP_PRODUCT, MS__GROUP_REST, MS__N_GROUPS };

/* What operations of a group take, and the bytes of their outputs. */
typedef struct ms__sums {
    int64_t host_ns, busy_ns, output_bytes;
} ms__sums;

typedef struct ms__ledger {
    ms__sums again[MS__N_GROUPS]; /* what the recomputed variant does beyond the kept one */
    int64_t host_ns;              /* queueing everything that the kept variant does */
    int64_t saved_bytes;          /* what the kept variant holds until backward and the recomputed one does not */
    bool on_gpu;                  /* queueing and computing overlap */
} ms__ledger;

/* The ledgers of all units, in one pass. The step knows its units recomputed; the rates were checked. `*out` belongs to
 * the arena. Errors: MS_E_NO_MEMORY. */
ms_status ms__ledgers_make(ms__arena *arena, const ms__step *step, const ms_rates *rates, ms__ledger **out);

/* The time of a recomputation that keeps these (enum ms_keep). */
int64_t ms__ledger_time(const ms__ledger *ledger, uint32_t keeps);

/* What it holds beyond what a whole recomputation does. */
int64_t ms__ledger_held(const ms__ledger *ledger, uint32_t keeps);

#endif
