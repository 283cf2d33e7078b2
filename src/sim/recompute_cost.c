/* ledger.c - what each unit of a step could hold, and compute again.
 *
 * A recomputation is what the recomputed variant of a unit does beyond the kept one, which is told by subtraction:
 * plain operations are in both. It ends behind the last tensor that backward needs, so the outputs of all its
 * operations are needed by backward or by what it computes later. Operations are in three groups; who keeps the outputs
 * of some of them runs the others again, in their order, as torch's selective checkpointing does.
 */
#include "recompute_cost.h"

#include "roofline.h"

#define NOBODY (-1)

enum { HELD_PLAIN = 1, HELD_RECOMPUTED = 2 };

typedef struct book {
    const ms__step *step;
    const ms_rates *rates;
    int64_t *busy_ns;                               /* of each cost */
    ms__sums (*sums)[MS__N_VARIANTS][MS__N_GROUPS]; /* of each unit, in all phases */
    int32_t *maker;                                 /* key -> the unit whose kept forward allocates it, or NOBODY */
    uint8_t *held;                                  /* key -> the variants that release it in backward */
} book;

static int64_t size_of(const ms__step *step, uint32_t key) { return step->numbers[step->keys[key].size]; }

static enum ms__group group_of(const ms__step *step, const ms__step_cost *cost) {
    if (cost->flags & MS__OP_ATTENTION) return MS__GROUP_ATTENTION;
    return cost->flags & MS__OP_MATRIX || step->numbers[cost->flops] > 0 ? MS__GROUP_PRODUCT : MS__GROUP_REST;
}

/* What stands behind an operation up to the next one is what it allocates. */
static void count_segment(book *b, const ms__segment *s, int variant) {
    ms__sums *groups = s->unit < 0 ? NULL : b->sums[s->unit][variant];
    bool forward = s->phase == MS_PHASE_FORWARD || s->phase == MS_PHASE_LOSS;
    enum ms__group group = MS__GROUP_REST;
    for (uint32_t i = s->first[variant]; i < s->first[variant] + s->n[variant]; i++) {
        const ms__step_event *event = &b->step->events[i];
        uint32_t index = event->index;
        if (event->kind == MS__RELEASE && s->phase == MS_PHASE_BACKWARD)
            b->held[index] |= variant == MS__PLAIN ? HELD_PLAIN : HELD_RECOMPUTED;
        if (groups == NULL) continue;
        if (event->kind == MS__ALLOCATE) groups[group].output_bytes += size_of(b->step, index);
        if (event->kind == MS__ALLOCATE && forward && variant == MS__PLAIN) b->maker[index] = s->unit;
        if (event->kind != MS__OPERATION) continue;
        group = group_of(b->step, &b->step->costs[index]);
        groups[group].host_ns = ms__add_ns(groups[group].host_ns, b->rates->dispatch_ns);
        groups[group].busy_ns = ms__add_ns(groups[group].busy_ns, b->busy_ns[index]);
    }
}

static int64_t beyond(int64_t recomputed, int64_t kept) { return recomputed > kept ? recomputed - kept : 0; }

static void close_unit(const book *b, uint32_t unit, ms__ledger *out) {
    out->on_gpu = b->rates->capability > 0;
    for (int g = 0; g < MS__N_GROUPS; g++) {
        const ms__sums *recomputed = &b->sums[unit][MS__RECOMPUTED][g], *kept = &b->sums[unit][MS__PLAIN][g];
        out->again[g] = (ms__sums){.host_ns = beyond(recomputed->host_ns, kept->host_ns),
                                   .busy_ns = beyond(recomputed->busy_ns, kept->busy_ns),
                                   .output_bytes = beyond(recomputed->output_bytes, kept->output_bytes)};
        out->host_ns = ms__add_ns(out->host_ns, kept->host_ns);
    }
}

static ms_status open(book *b, ms__arena *arena) {
    b->busy_ns = ms__arena_array(arena, b->step->n_costs, sizeof *b->busy_ns);
    b->sums = ms__arena_array(arena, b->step->n_units, sizeof *b->sums);
    b->maker = ms__arena_array(arena, b->step->n_keys, sizeof *b->maker);
    b->held = ms__arena_array(arena, b->step->n_keys, sizeof *b->held);
    if (b->busy_ns == NULL || b->sums == NULL || b->maker == NULL || b->held == NULL) return MS_E_NO_MEMORY;
    for (uint32_t i = 0; i < b->step->n_costs; i++)
        b->busy_ns[i] = ms__op_busy_ns(b->rates, b->step, &b->step->costs[i]);
    for (uint32_t k = 0; k < b->step->n_keys; k++) b->maker[k] = NOBODY;
    return MS_OK;
}

ms_status ms__ledgers_make(ms__arena *arena, const ms__step *step, const ms_rates *rates, ms__ledger **out) {
    ms__arena scratch = {0};
    book b = {.step = step, .rates = rates};
    ms__ledger *ledgers = ms__arena_array(arena, step->n_units, sizeof *ledgers);
    ms_status status = ledgers == NULL ? MS_E_NO_MEMORY : open(&b, &scratch);
    if (status == MS_OK) {
        for (uint32_t i = 0; i < step->n_segments; i++)
            for (int v = 0; v < MS__N_VARIANTS; v++) count_segment(&b, &step->segments[i], v);
        for (uint32_t u = 0; u < step->n_units; u++) close_unit(&b, u, &ledgers[u]);
        for (uint32_t k = 0; k < step->n_keys; k++)
            if (b.maker[k] != NOBODY && b.held[k] == HELD_PLAIN && step->keys[k].category == MS_CATEGORY_ACTIVATION)
                ledgers[b.maker[k]].saved_bytes += size_of(step, k);
        *out = ledgers;
    }
    ms__arena_free(&scratch);
    return status;
}

int64_t ms__ledger_time(const ms__ledger *l, uint32_t keeps) {
    int64_t host = 0, busy = 0;
    for (uint32_t g = 0; g < MS__N_GROUPS; g++) {
        if (keeps & 1U << g) continue;
        host = ms__add_ns(host, l->again[g].host_ns);
        busy = ms__add_ns(busy, l->again[g].busy_ns);
    }
    if (!l->on_gpu) return ms__add_ns(host, busy);
    return host > busy ? host : busy;
}

int64_t ms__ledger_held(const ms__ledger *l, uint32_t keeps) {
    int64_t bytes = 0;
    if (keeps == MS_KEEP_ALL) return l->saved_bytes;
    for (uint32_t g = 0; g < MS__N_GROUPS; g++)
        if (keeps & 1U << g) bytes += l->again[g].output_bytes;
    return bytes;
}
