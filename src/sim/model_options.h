/* model_options.h - the table of model options, and what a set of them does to a step.
 *
 * As with actions, their names, needs and sentences are written here and nowhere else. None of them runs in this
 * version, and their effects are models that were not measured yet.
 */
#ifndef MS_SIM_MODEL_OPTIONS_H
#define MS_SIM_MODEL_OPTIONS_H

#include "../common/names.h"
#include "order.h"

enum { MS__N_MODEL_OPTIONS = 5 };

typedef struct ms__model_option {
    ms__name name;
    const char *subject, *predicate, *sentence; /* the sentence is made of the first two, with "is" or "are" */
    uint32_t techniques;                        /* enum ms_technique: all of them must be allowed */
    bool is_plural;
    bool needs_link;
    bool is_runnable;
} ms__model_option;

extern const ms__model_option ms__model_options[MS__N_MODEL_OPTIONS]; /* by the number of its bit */

/* Those of a set (enum ms_model_option) that need a link. */
uint32_t ms__model_options_with_link(uint32_t options);

/* What a set of options changes. */
typedef struct ms__model_effect {
    uint32_t options;
    int64_t parameter_bytes; /* change on the device: lower halves of weights */
    int64_t optimizer_ppm;   /* the share of the profile's optimizer state that stays on the device */
    bool drops_gradients;    /* gradients leave the device as they appear */
    bool is_streamed;        /* the optimizer step runs in chunks: it takes `optimizer_ns` and one buffer */
    int64_t optimizer_ns;
    int64_t backward_ns; /* beyond the profile's: waiting for gradients to leave */
    int64_t host_bytes;
    int64_t largest_gradient_bytes;
} ms__model_effect;

/* Computed from the keys and costs of the step. `backward_ns`: of the plain step. */
ms__model_effect ms__model_effect_make(const ms__step *step, const ms_rates *rates, uint32_t options,
                                       int64_t backward_ns);

/* The activations and temporaries that are allocated when the tail of a plain or recomputed step begins. Tiles of the
 * loss do not make these smaller. */
int64_t ms__tail_begin_bytes(const ms__order *order, const ms_simulation_segment *segments, int64_t n_segments);

/* Change the bytes of a segment: the one place where model options are applied to a step. `in_tail` and
 * `tail_begin_bytes` as above. */
void ms__model_effect_apply(const ms__model_effect *effect, bool in_tail, int64_t tail_begin_bytes,
                            ms_simulation_segment *segment);

/* What remains of `n_bytes` of activations and temporaries in the tail when the loss is tiled. */
int64_t ms__model_tiled_loss(const ms__model_effect *effect, int64_t n_bytes);

#endif
