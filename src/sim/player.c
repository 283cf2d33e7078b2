/* player.c - the memory and the clocks of a step that is played (player.h). */
#include "player.h"

#include <string.h>

#include "../common/math.h"

#define ROUND_BYTES 512

/* ---- Memory ---- */

bool ms__player_on_gpu(const ms__player *p) { return p->request->device->rates->capability > 0; }

static int64_t rounded(const ms__player *p, int64_t n_bytes) {
    return ms__player_on_gpu(p) ? ms__round_up(n_bytes, ROUND_BYTES) : n_bytes;
}

void ms__player_note_peak(ms__player *p, int64_t segment) {
    p->allocated = p->allocator == NULL ? p->held_bytes : ms__allocator_get_stats(p->allocator).allocated_bytes;
    if (p->allocated <= p->peak.bytes) return;
    p->peak.bytes = p->allocated;
    p->peak.segment = segment;
    memcpy(p->peak.parts, p->parts, sizeof p->parts);
}

static ms_status take(ms__player *p, int64_t n_bytes, uint32_t category, int64_t segment, int64_t *out_block) {
    *out_block = MS__NO_BLOCK;
    ms_status status = p->allocator == NULL ? MS_OK : ms__allocator_take(p->allocator, n_bytes, 0, out_block);
    if (status != MS_OK) return status;
    p->parts[category] += rounded(p, n_bytes);
    p->held_bytes += rounded(p, n_bytes);
    p->now.host_ns = ms__add_ns(p->now.host_ns, ms__fresh_ns(p->request->device->rates, n_bytes));
    ms__player_note_peak(p, segment);
    return MS_OK;
}

static ms_status give(ms__player *p, int64_t n_bytes, uint32_t category, int64_t block) {
    p->parts[category] -= rounded(p, n_bytes);
    p->held_bytes -= rounded(p, n_bytes);
    return p->allocator == NULL ? MS_OK : ms__allocator_give(p->allocator, block);
}

ms_status ms__player_take_transient(ms__player *p, int64_t n_bytes, int64_t segment) {
    int64_t block;
    ms_status status = take(p, n_bytes, MS_CATEGORY_TEMPORARY, segment, &block);
    return status == MS_OK ? give(p, n_bytes, MS_CATEGORY_TEMPORARY, block) : status;
}

/* A gradient that exists already: the new one lives until it has been added to it. Autograd does so when the node that
 * made it is done, which may have other gradients to make first; and where a parameter is used more than once (tied
 * weights), when backward has come to its first use. */
static ms_status take_addend(ms__player *p, uint32_t key, int64_t segment) {
    int64_t n_bytes = ms__step_key_bytes(p->step, key);
    if (p->addends[key] != MS__NOT_THERE) return ms__player_take_transient(p, n_bytes, segment);
    ms_status status = take(p, n_bytes, MS_CATEGORY_TEMPORARY, segment, &p->addends[key]);
    if (status == MS_OK && !p->is_accumulated[key]) p->brief[p->n_brief++] = key;
    return status;
}

ms_status ms__player_give_addend(ms__player *p, uint32_t key) {
    int64_t block = p->addends[key];
    if (block == MS__NOT_THERE) return MS_OK;
    p->addends[key] = MS__NOT_THERE;
    return give(p, ms__step_key_bytes(p->step, key), MS_CATEGORY_TEMPORARY, block);
}

ms_status ms__player_give_brief(ms__player *p) {
    ms_status status = MS_OK;
    while (p->n_brief > 0 && status == MS_OK) status = ms__player_give_addend(p, p->brief[--p->n_brief]);
    return status;
}

/* At the end of a step. */
ms_status ms__player_give_addends(ms__player *p) {
    ms_status status = MS_OK;
    p->n_brief = 0;
    for (uint32_t k = 0; k < p->step->n_keys && status == MS_OK; k++) status = ms__player_give_addend(p, k);
    return status;
}

ms_status ms__player_take(ms__player *p, uint32_t key, int64_t segment) {
    uint32_t category = p->step->keys[key].category;
    int64_t n_bytes = ms__step_key_bytes(p->step, key);
    if (p->blocks[key] != MS__NOT_THERE)
        return category == MS_CATEGORY_GRADIENT ? take_addend(p, key, segment)
                                                : ms__player_take_transient(p, n_bytes, segment);
    return take(p, n_bytes, category, segment, &p->blocks[key]);
}

ms_status ms__player_give(ms__player *p, uint32_t key) {
    if (p->blocks[key] == MS__NOT_THERE) return MS_OK;
    int64_t block = p->blocks[key];
    p->blocks[key] = MS__NOT_THERE;
    return give(p, ms__step_key_bytes(p->step, key), p->step->keys[key].category, block);
}

ms_status ms__player_take_spacer(ms__player *p, int64_t segment) {
    if (segment != p->spacer_segment) return MS_OK;
    return take(p, p->request->spacer_bytes, MS_CATEGORY_TEMPORARY, segment, &p->spacer);
}

ms_status ms__player_give_spacer(ms__player *p, int64_t segment) {
    if (segment != p->spacer_segment) return MS_OK;
    return give(p, p->request->spacer_bytes, MS_CATEGORY_TEMPORARY, p->spacer);
}

/* cuBLAS allocates a workspace for each thread that multiplies, 32 MiB on Hopper and later, else 8.1 MiB; cuBLASLt, if
 * it adds a bias, 1 MiB. */
ms_status ms__player_take_workspaces(ms__player *p, const ms__segment *segment, int64_t index, uint32_t flags) {
    const int64_t sizes[] = {p->request->device->rates->capability >= 90 ? INT64_C(33554432) : INT64_C(8519680),
                             INT64_C(1048576)};
    const uint32_t needed[] = {flags & MS__OP_MATRIX, flags & MS__OP_BIASED};
    int thread = segment->phase == MS_PHASE_BACKWARD && p->request->flags & MS_SIMULATE_ENGINE_THREAD;
    ms_status status = MS_OK;
    for (int i = 0; i < 2 && ms__player_on_gpu(p) && status == MS_OK; i++) {
        int64_t block;
        if (!needed[i] || p->has_workspace[thread][i]) continue;
        p->has_workspace[thread][i] = true;
        status = take(p, sizes[i], MS_CATEGORY_LIBRARY, index, &block);
    }
    return status;
}

/* ---- Time ---- */

/* What the host does besides the operations themselves: before a recomputation, and in the optimizer's step. */
static int64_t overhead_ns(ms__player *p, uint32_t phase, const ms__step_cost *cost, enum ms__role role) {
    const ms_rates *rates = p->request->device->rates;
    bool is_repeated = cost->flags & MS__OP_REPEATED, begins = is_repeated && !p->now.is_repeating;
    bool steps = phase > MS_PHASE_BACKWARD && !p->now.has_stepped;
    p->now.is_repeating = is_repeated;
    p->now.has_stepped = phase > MS_PHASE_BACKWARD;
    int64_t ns = (begins ? rates->recomputation_ns : 0) + (steps ? p->n_gradients * rates->parameter_ns : 0);
    if (begins && role != MS__ROLE_NONE) ns = ms__add_ns(ns, ms__keeping_ns(rates));
    bool is_found = role == MS__ROLE_SPARED && cost->flags & MS__OP_RESULT;
    return is_found ? ms__add_ns(ns, ms__kept_result_ns(rates)) : ns;
}

/* The host queues an operation; then the device does it, which may be the host itself. */
static void pass_time(ms__player *p, int64_t host_ns, int64_t busy_ns) {
    ms__clock *now = &p->now;
    now->host_ns = ms__add_ns(now->host_ns, host_ns);
    if (busy_ns == 0) return;
    if (ms__player_on_gpu(p))
        now->device_ns = ms__add_ns(ms__max(now->device_ns, now->host_ns), busy_ns);
    else
        now->host_ns = ms__add_ns(now->host_ns, busy_ns);
}

static bool is_fused(const ms__player *p, uint32_t phase) {
    return phase > MS_PHASE_BACKWARD && p->request->flags & MS_SIMULATE_FUSED;
}

/* A trace has the operations that a fused step replaces, since fused kernels do not run without a device. In their
 * place, one operation reads and writes everything once. */
void ms__player_run(ms__player *p, uint32_t phase, uint32_t index, enum ms__role role) {
    static const ms__step_cost one = {0};
    const ms_rates *rates = p->request->device->rates;
    const bool fused = is_fused(p, phase), is_replaced = fused && p->now.has_stepped;
    const ms__step_cost *cost = fused ? &one : &p->step->costs[index];
    p->n_ops++;
    if (is_replaced) return;
    int64_t host_ns = ms__add_ns(overhead_ns(p, phase, cost, role), ms__op_host_ns(rates, cost, phase));
    int64_t busy_ns = fused ? ms__kernel_ns(rates, p->update_bytes) : p->busy_ns[index];
    pass_time(p, host_ns, role == MS__ROLE_SPARED ? 0 : busy_ns);
}

void ms__player_wait(ms__player *p, int64_t until_ns, int64_t drag_ns) {
    if (!ms__player_on_gpu(p)) return;
    p->now.wait_ns = ms__add_ns(p->now.wait_ns, ms__max(until_ns - ms__player_time(p), 0));
    p->now.device_ns = ms__add_ns(ms__max(p->now.device_ns, until_ns), drag_ns);
}

int64_t ms__player_time(const ms__player *p) { return ms__max(p->now.device_ns, p->now.host_ns); }
