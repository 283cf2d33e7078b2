/* model_options.c - the table of model options, and what a set of them does to a step. */
#include "model_options.h"

#include "../common/structs.h"

#include "../common/math.h"
#include "roofline.h"
#include "sim_link.h"

#define N_LOSS_TILES 8                  /* of logits and loss */
#define CHUNK_BYTES (INT64_C(64) << 20) /* buffers of a streamed optimizer step */
#define PPM INT64_C(1000000)

/* ---- The table ---- */

#define SINGULAR(subject_, predicate_)                                                                                 \
    .subject = subject_, .predicate = predicate_, .sentence = subject_ " is " predicate_ "."
#define PLURAL(subject_, predicate_)                                                                                   \
    .subject = subject_, .predicate = predicate_, .sentence = subject_ " are " predicate_ ".", .is_plural = true

const ms__model_option ms__model_options[MS__N_MODEL_OPTIONS] = {
    {.name = {"16-bit computation", "half"},
     SINGULAR("The model", "computed in 16 bits"),
     .techniques = MS_TECHNIQUE_HALF},
    {.name = {"8-bit optimizer state", "8bit"},
     SINGULAR("Optimizer state", "kept in 8 bits"),
     .techniques = MS_TECHNIQUE_8BIT},
    {.name = {"offloaded optimizer state", "offload"},
     SINGULAR("Optimizer state", "kept in host memory"),
     .techniques = MS_TECHNIQUE_OFFLOAD,
     .needs_link = true},
    {.name = {"offloaded gradients", "offload_gradients"},
     PLURAL("Gradients", "kept in host memory"),
     .techniques = MS_TECHNIQUE_OFFLOAD,
     .needs_link = true},
    {.name = {"tiled loss", "tile_loss"}, SINGULAR("The loss", "computed in tiles"), .techniques = MS_TECHNIQUE_TILE}};

ms_status ms_model_option_get_info(uint32_t option, ms_model_option_info *out) {
    int number = ms__bit_number(option, MS__N_MODEL_OPTIONS);
    if (number < 0) return ms__fail(MS_E_INVALID, "model option %u is unknown", (unsigned)option);
    const ms__model_option *row = &ms__model_options[number];
    const ms_model_option_info info = {.name = row->name.name,
                                       .identifier = row->name.identifier,
                                       .sentence = row->sentence,
                                       .techniques = row->techniques,
                                       .needs_link = row->needs_link,
                                       .is_runnable = row->is_runnable};
    return ms__struct_write(MS__STRUCT(ms_model_option_info), &info, out);
}

uint32_t ms__model_options_with_link(uint32_t options) {
    uint32_t result = 0;
    for (uint32_t i = 0; i < MS__N_MODEL_OPTIONS; i++)
        if (ms__model_options[i].needs_link) result |= options & 1U << i;
    return result;
}

/* ---- The effect of a set ---- */

typedef struct totals {
    int64_t bytes[MS_N_CATEGORIES];
    int64_t largest_gradient;
    int64_t element_bytes; /* of parameters */
} totals;

static totals add_up(const ms__step *step) {
    totals t = {.element_bytes = 4};
    for (uint32_t k = 0; k < step->n_keys; k++) {
        int64_t size = ms__step_key_bytes(step, k);
        t.bytes[step->keys[k].category] += size;
        if (step->keys[k].category == MS_CATEGORY_GRADIENT) t.largest_gradient = ms__max(t.largest_gradient, size);
    }
    int64_t most = -1;
    for (uint32_t i = 0; i < step->n_segments; i++) {
        const ms__segment *s = &step->segments[i];
        for (uint32_t e = s->first[MS__PLAIN];
             s->phase == MS_PHASE_OPTIMIZER && e < s->first[MS__PLAIN] + s->n[MS__PLAIN]; e++) {
            if (step->events[e].kind != MS__OPERATION) continue;
            const ms__step_cost *cost = &step->costs[step->events[e].index];
            if (cost->flags & MS__OP_VIEW || step->numbers[cost->bytes] <= most) continue;
            most = step->numbers[cost->bytes];
            t.element_bytes = cost->element_bytes > 0 ? cost->element_bytes : 4;
        }
    }
    return t;
}

static int64_t transfer_ns(int64_t n_bytes, int64_t mb_per_s) {
    if (n_bytes == 0) return 0;
    if (mb_per_s <= 0) return MS__MAX_NS;
    return n_bytes / mb_per_s > MS__MAX_NS / 2000 ? MS__MAX_NS / 2 : n_bytes / mb_per_s * 1000;
}

/* Moments have 4 bytes for each element, or 1 byte and a scale of 4 bytes for every 256 elements. */
static int64_t moments_ppm(uint32_t options, int64_t element_bytes) {
    bool managed = (options & (MS_MODEL_8BIT | MS_MODEL_HALF)) != 0;
    if (!managed) return PPM;
    return options & MS_MODEL_8BIT ? (PPM + PPM / 64) / element_bytes : 4 * PPM / element_bytes;
}

static int64_t share_of(int64_t bytes, int64_t ppm) { return bytes / PPM * ppm + bytes % PPM * ppm / PPM; }

ms__model_effect ms__model_effect_make(const ms__step *step, const ms_rates *rates, uint32_t options,
                                       int64_t backward_ns) {
    if (options == 0) return (ms__model_effect){.optimizer_ppm = PPM};
    totals t = add_up(step);
    bool away = (options & MS_MODEL_OFFLOAD) != 0;
    int64_t lower = options & MS_MODEL_HALF ? t.bytes[MS_CATEGORY_PARAMETER] : 0;
    int64_t moments = share_of(t.bytes[MS_CATEGORY_OPTIMIZER], moments_ppm(options, t.element_bytes));
    int64_t gradients = t.bytes[MS_CATEGORY_GRADIENT];
    ms__model_effect effect = {.options = options,
                               .parameter_bytes = away ? 0 : lower,
                               .optimizer_ppm = away ? 0 : moments_ppm(options, t.element_bytes),
                               .drops_gradients = (options & MS_MODEL_OFFLOAD_GRADIENTS) != 0,
                               .is_streamed = (options & ~(uint32_t)MS_MODEL_TILE_LOSS) != 0,
                               .host_bytes = away ? lower + moments : 0,
                               .largest_gradient_bytes = t.largest_gradient};
    int64_t moved = 2 * (moments + lower + t.bytes[MS_CATEGORY_PARAMETER]) + gradients;
    effect.optimizer_ns = transfer_ns(moved, rates->memory_mb_per_s);
    int64_t link_ns = transfer_ns(away ? lower + moments : 0, ms__link_mb_per_s(rates));
    if (effect.drops_gradients) {
        int64_t leave_ns = transfer_ns(gradients, ms__link_mb_per_s(rates));
        effect.host_bytes += gradients;
        link_ns = ms__add_ns(link_ns, leave_ns);
        effect.backward_ns = ms__max(leave_ns - backward_ns, 0);
    }
    effect.optimizer_ns = ms__max(effect.optimizer_ns, link_ns);
    return effect;
}

/* ---- Applying it ---- */

static int64_t transient_bytes(const ms_simulation_segment *segment) {
    return segment->parts[MS_CATEGORY_ACTIVATION] + segment->parts[MS_CATEGORY_TEMPORARY];
}

int64_t ms__tail_begin_bytes(const ms__order *order, const ms_simulation_segment *segments, int64_t n_segments) {
    if (order->tail_begins == 0 || order->tail_begins >= n_segments) return 0;
    const ms_simulation_segment *before = &segments[order->tail_begins - 1];
    return ms__max(transient_bytes(before) - (before->peak_bytes - before->end_bytes), 0);
}

/* How parameters, gradients, moments and the optimizer's temporaries change, in bytes by category. */
static void find_change(const ms__model_effect *effect, const ms_simulation_segment *segment,
                        int64_t change[MS_N_CATEGORIES]) {
    if (effect->options == 0) return;
    bool steps = segment->phase == MS_PHASE_OPTIMIZER_FIRST || segment->phase == MS_PHASE_OPTIMIZER;
    int64_t moments = segment->parts[MS_CATEGORY_OPTIMIZER], gradients = segment->parts[MS_CATEGORY_GRADIENT];
    change[MS_CATEGORY_PARAMETER] = effect->parameter_bytes;
    change[MS_CATEGORY_OPTIMIZER] = share_of(moments, effect->optimizer_ppm) - moments;
    if (effect->drops_gradients)
        change[MS_CATEGORY_GRADIENT] =
            ms__min(gradients, ms__max(effect->largest_gradient_bytes, CHUNK_BYTES)) - gradients;
    if (steps && effect->is_streamed)
        change[MS_CATEGORY_TEMPORARY] = CHUNK_BYTES - segment->parts[MS_CATEGORY_TEMPORARY];
}

int64_t ms__model_tiled_loss(const ms__model_effect *effect, int64_t n_bytes) {
    if (!(effect->options & MS_MODEL_TILE_LOSS) || n_bytes <= effect->largest_gradient_bytes) return n_bytes;
    int64_t tiled = n_bytes - effect->largest_gradient_bytes;
    return effect->largest_gradient_bytes + ms__ceil_div(tiled, N_LOSS_TILES);
}

void ms__model_effect_apply(const ms__model_effect *effect, bool in_tail, int64_t tail_begin_bytes,
                            ms_simulation_segment *segment) {
    int64_t change[MS_N_CATEGORIES] = {0}, sum = 0;
    find_change(effect, segment, change);
    int64_t loss_bytes = in_tail ? transient_bytes(segment) - tail_begin_bytes : 0;
    int64_t spared = loss_bytes > 0 ? loss_bytes - ms__model_tiled_loss(effect, loss_bytes) : 0;
    int64_t of_temporaries = ms__min(spared, segment->parts[MS_CATEGORY_TEMPORARY]);
    change[MS_CATEGORY_TEMPORARY] -= of_temporaries;
    change[MS_CATEGORY_ACTIVATION] -= spared - of_temporaries;
    for (int c = 0; c < MS_N_CATEGORIES; c++) {
        segment->parts[c] += change[c];
        sum += change[c];
    }
    segment->peak_bytes += sum;
    segment->end_bytes += sum;
}
