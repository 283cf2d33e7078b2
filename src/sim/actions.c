/* actions.c - the table of actions.
 *
 * An effect tells the search what an action does to a unit. Where simulations play the action, it only names
 * candidates; that of tiles is a model that was not measured yet.
 */
#include "actions.h"

#include "../common/structs.h"

#include "../common/math.h"
#include "roofline.h"

#define N_TILES 4 /* of a unit */
#define EVERYWHERE ((1U << MS_N_DEVICE_KINDS) - 1)

static ms__effect keep(const ms__action *action, const ms__recompute_cost *cost, const ms_unit *unit) {
    (void)action, (void)cost, (void)unit;
    return (ms__effect){.is_possible = true};
}

static ms__effect recompute(const ms__action *action, const ms__recompute_cost *cost, const ms_unit *unit) {
    (void)action, (void)unit;
    return (ms__effect){.is_possible = cost->freed_bytes > 0};
}

/* Some outputs are kept, and the operations that made them are not recomputed. */
static ms__effect recompute_some(const ms__action *action, const ms__recompute_cost *cost, const ms_unit *unit) {
    (void)unit;
    int64_t kept = ms__recompute_held(cost, action->keeps);
    int64_t spared = ms__recompute_ns(cost, 0) - ms__recompute_ns(cost, action->keeps);
    return (ms__effect){.held_bytes = kept,
                        .forward_bytes = kept,
                        .extra_ns = -spared,
                        .is_possible = kept > 0 && kept < cost->freed_bytes && spared > 0};
}

static ms__effect offload(const ms__action *action, const ms__recompute_cost *cost, const ms_unit *unit) {
    (void)action, (void)unit;
    return (ms__effect){.held_bytes = -cost->moved_bytes - cost->dropped_bytes,
                        .copy_bytes = cost->moved_bytes,
                        .is_possible = cost->moved_bytes > 0};
}

static ms__effect offload_pointwise(const ms__action *action, const ms__recompute_cost *cost, const ms_unit *unit) {
    (void)action, (void)unit;
    return (ms__effect){.held_bytes = -cost->rest_bytes - cost->dropped_bytes,
                        .copy_bytes = cost->rest_bytes,
                        .is_possible = cost->rest_bytes > 0 && cost->pointwise_bytes > 0};
}

static ms__effect offload_inputs(const ms__action *action, const ms__recompute_cost *cost, const ms_unit *unit) {
    (void)action, (void)unit;
    return (ms__effect){.held_bytes = -cost->input_bytes,
                        .copy_bytes = cost->input_bytes,
                        .is_possible = cost->input_bytes > 0 && cost->freed_bytes > 0};
}

/* What it does is in the traces. */
static ms__effect recompute_pointwise(const ms__action *action, const ms__recompute_cost *cost, const ms_unit *unit) {
    (void)action, (void)unit;
    return (ms__effect){.is_possible = cost->pointwise_bytes > 0};
}

/* Tiles are recomputed and run backward one at a time; every operation is queued once for each tile. */
static ms__effect tile(const ms__action *action, const ms__recompute_cost *cost, const ms_unit *unit) {
    (void)action, (void)unit;
    return (ms__effect){.backward_bytes = -(cost->freed_bytes / N_TILES * (N_TILES - 1)),
                        .extra_ns = ms__min(cost->host_ns, MS__MAX_NS / N_TILES) * (N_TILES - 1),
                        .is_possible = cost->freed_bytes >= N_TILES};
}

const ms__action ms__actions[MS_N_ACTIONS] = {
    [MS_ACTION_KEEP] = {.name = {"keep", "keep"},
                        .sentence = "%s kept",
                        .letter = "k",
                        .variant = MS__PLAIN,
                        .is_played = true,
                        .is_runnable = true,
                        .chosen_on = EVERYWHERE,
                        .effect = keep},
    [MS_ACTION_RECOMPUTE] = {.name = {"recompute", "recompute"},
                             .sentence = "%s recomputed",
                             .letter = "r",
                             .techniques = MS_TECHNIQUE_RECOMPUTE,
                             .variant = MS__RECOMPUTED,
                             .is_played = true,
                             .is_runnable = true,
                             .chosen_on = EVERYWHERE,
                             .effect = recompute},
    [MS_ACTION_RECOMPUTE_EXCEPT_BOTH] = {.name = {"recompute except attention and products", "recompute_except_both"},
                                         .sentence = "%s recomputed except attention and products",
                                         .letter = "b",
                                         .techniques = MS_TECHNIQUE_RECOMPUTE,
                                         .keeps = MS_KEEP_ATTENTION | MS_KEEP_PRODUCTS,
                                         .variant = MS__RECOMPUTED,
                                         .is_played = true,
                                         .is_runnable = true,
                                         .chosen_on = EVERYWHERE,
                                         .effect = recompute_some},
    [MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS] = {.name = {"recompute except products", "recompute_except_products"},
                                             .sentence = "%s recomputed except products",
                                             .letter = "p",
                                             .techniques = MS_TECHNIQUE_RECOMPUTE,
                                             .keeps = MS_KEEP_PRODUCTS,
                                             .variant = MS__RECOMPUTED,
                                             .is_played = true,
                                             .is_runnable = true,
                                             .chosen_on = EVERYWHERE,
                                             .effect = recompute_some},
    [MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION] = {.name = {"recompute except attention", "recompute_except_attention"},
                                              .sentence = "%s recomputed except attention",
                                              .letter = "a",
                                              .techniques = MS_TECHNIQUE_RECOMPUTE,
                                              .keeps = MS_KEEP_ATTENTION,
                                              .variant = MS__RECOMPUTED,
                                              .is_played = true,
                                              .is_runnable = true,
                                              .chosen_on = EVERYWHERE,
                                              .effect = recompute_some},
    [MS_ACTION_OFFLOAD] = {.name = {"offload", "offload"},
                           .sentence = "%s offloaded",
                           .letter = "o",
                           .techniques = MS_TECHNIQUE_OFFLOAD,
                           .variant = MS__PLAIN,
                           .needs_link = true,
                           .is_played = true,
                           .is_runnable = true,
                           .chosen_on = EVERYWHERE,
                           .effect = offload},
    [MS_ACTION_OFFLOAD_BLOCKING] = {.name = {"blocking offload", "offload_blocking"},
                                    .sentence = "%s offloaded with blocking copies",
                                    .letter = "O",
                                    .techniques = MS_TECHNIQUE_OFFLOAD,
                                    .variant = MS__PLAIN,
                                    .needs_link = true,
                                    .waits = true,
                                    .is_played = true,
                                    .is_runnable = true,
                                    .chosen_on = EVERYWHERE,
                                    .effect = offload},
    [MS_ACTION_RECOMPUTE_OFFLOAD] = {.name = {"recompute with offloaded inputs", "recompute_offload"},
                                     .sentence = "%s recomputed with offloaded inputs",
                                     .letter = "i",
                                     .techniques = MS_TECHNIQUE_RECOMPUTE | MS_TECHNIQUE_OFFLOAD,
                                     .variant = MS__RECOMPUTED,
                                     .needs_link = true,
                                     .is_played = true,
                                     .is_runnable = true,
                                     .chosen_on = EVERYWHERE,
                                     .effect = offload_inputs},
    [MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING] = {.name = {"recompute with blocking offload of inputs",
                                                       "recompute_offload_blocking"},
                                              .sentence = "%s recomputed with blocking offload of inputs",
                                              .letter = "I",
                                              .techniques = MS_TECHNIQUE_RECOMPUTE | MS_TECHNIQUE_OFFLOAD,
                                              .variant = MS__RECOMPUTED,
                                              .needs_link = true,
                                              .is_played = true,
                                              .is_runnable = true,
                                              .waits = true,
                                              .chosen_on = EVERYWHERE,
                                              .effect = offload_inputs},
    [MS_ACTION_TILE] = {.name = {"tile", "tile"},
                        .sentence = "%s recomputed in tiles",
                        .letter = "t",
                        .techniques = MS_TECHNIQUE_TILE,
                        .variant = MS__RECOMPUTED,
                        .needs_tiles = true,
                        .effect = tile},
    [MS_ACTION_RECOMPUTE_POINTWISE] = {.name = {"recompute pointwise results", "recompute_pointwise"},
                                       .sentence = "%s kept except pointwise results",
                                       .letter = "w",
                                       .techniques = MS_TECHNIQUE_RECOMPUTE,
                                       .variant = MS__POINTWISE,
                                       .is_played = true,
                                       .is_runnable = true,
                                       .chosen_on = EVERYWHERE,
                                       .effect = recompute_pointwise},
    [MS_ACTION_OFFLOAD_POINTWISE] = {.name = {"offload except pointwise results", "offload_pointwise"},
                                     .sentence = "%s offloaded except pointwise results",
                                     .letter = "x",
                                     .techniques = MS_TECHNIQUE_RECOMPUTE | MS_TECHNIQUE_OFFLOAD,
                                     .variant = MS__POINTWISE,
                                     .needs_link = true,
                                     .is_played = true,
                                     .is_runnable = true,
                                     .chosen_on = EVERYWHERE,
                                     .effect = offload_pointwise}};

int32_t ms__action_of_variant(int variant) {
    static const int32_t actions[MS__N_VARIANTS] = {[MS__PLAIN] = MS_ACTION_KEEP,
                                                    [MS__RECOMPUTED] = MS_ACTION_RECOMPUTE,
                                                    [MS__POINTWISE] = MS_ACTION_RECOMPUTE_POINTWISE};
    return actions[variant];
}

ms__effect ms__effect_of(int32_t action, const ms__recompute_cost *cost, const ms_unit *unit) {
    const ms__action *row = &ms__actions[action];
    return row->effect(row, cost, unit);
}

ms_status ms_action_get_info(int32_t action, ms_action_info *out) {
    if (action < 0 || action >= MS_N_ACTIONS) return ms__fail(MS_E_INVALID, "action %d is unknown", (int)action);
    const ms__action *row = &ms__actions[action];
    const ms_action_info info = {.name = row->name.name,
                                 .identifier = row->name.identifier,
                                 .sentence = row->sentence,
                                 .letter = row->letter,
                                 .techniques = row->techniques,
                                 .keeps = row->keeps,
                                 .recomputes = row->variant == MS__RECOMPUTED,
                                 .needs_link = row->needs_link,
                                 .needs_tiles = row->needs_tiles,
                                 .is_runnable = row->is_runnable,
                                 .waits = row->waits};
    return ms__struct_write(MS__STRUCT(ms_action_info), &info, out);
}
