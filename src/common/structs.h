/* structs.h - structures that cross the boundary between programs and libraries of different versions.
 *
 * A caller's structure may be smaller or larger than ours: struct_bytes is its size when the caller was compiled.
 * Nothing outside these functions reads or writes a caller's structure. What memscale.h promises ("Structs") is kept
 * here.
 */
#ifndef MS_COMMON_STRUCTS_H
#define MS_COMMON_STRUCTS_H

#include "status.h"

/* X(structure, the last field of the first version that had it): no caller's structure is smaller than that. A field
 * that is added later does not change its row. */
#define MS__STRUCT_LIST(X)                                                                                             \
    X(ms_action_info, is_runnable)                                                                                     \
    X(ms_model_option_info, is_runnable)                                                                               \
    X(ms_phase_info, place)                                                                                            \
    X(ms_name_info, identifier)                                                                                        \
    X(ms_child_answer, n_bytes)                                                                                        \
    X(ms_child_options, memory_bytes)                                                                                  \
    X(ms_comparison, first)                                                                                            \
    X(ms_device, kind)                                                                                                 \
    X(ms_error_info, byte_offset)                                                                                      \
    X(ms_gpu_component_info, text)                                                                                     \
    X(ms_gpu_link, intact)                                                                                             \
    X(ms_gpu_model, link_mb_per_s)                                                                                     \
    X(ms_gpu_options, cache_path)                                                                                      \
    X(ms_hw, gpus)                                                                                                     \
    X(ms_input, length)                                                                                                \
    X(ms_offload_options, seed)                                                                                        \
    X(ms_offload_stats, host_ns)                                                                                       \
    X(ms_plan_entry, other_ns)                                                                                         \
    X(ms_plan_request, flags)                                                                                          \
    X(ms_plan_summary, parts)                                                                                          \
    X(ms_pointwise, ops)                                                                                               \
    X(ms_prediction, simulation)                                                                                       \
    X(ms_profile_request, unit_flags)                                                                                  \
    X(ms_profile_view, outside_bytes)                                                                                  \
    X(ms_rates, dispatch_ns)                                                                                           \
    X(ms_settings, flags)                                                                                              \
    X(ms_shape_plans_options, user)                                                                                    \
    X(ms_simulation_request, model_options)                                                                            \
    X(ms_simulation_segment, parts)                                                                                    \
    X(ms_simulation_summary, parts)                                                                                    \
    X(ms_trace, n_storages)                                                                                            \
    X(ms_unit_costs, working_bytes)

/* Some of the last fields are pointers. NOLINTBEGIN(bugprone-sizeof-expression) */
enum {
#define MS__FIRST_BYTES(type, last) MS__FIRST_##type = offsetof(type, last) + sizeof(((type *)0)->last),
    MS__STRUCT_LIST(MS__FIRST_BYTES)
#undef MS__FIRST_BYTES
};
/* NOLINTEND(bugprone-sizeof-expression) */

typedef struct ms__struct {
    const char *name;
    size_t n_bytes;     /* ours */
    size_t first_bytes; /* of the first version */
} ms__struct;

#define MS__STRUCT(type) ((ms__struct){#type, sizeof(type), MS__FIRST_##type})

/* Is this a caller's structure? Called for outputs that take time to compute, before they are computed. Errors:
 * MS_E_INVALID (NULL, or struct_bytes is not a size of this structure). */
ms_status ms__struct_check(ms__struct s, const void *theirs);

/* Copy a caller's structure to ours. Fields that it does not have are 0. Errors: as ms__struct_check, and MS_E_VERSION
 * (a field that we do not have is set). */
ms_status ms__struct_read(ms__struct s, const void *theirs, void *ours);

/* Copy our structure to the caller's, as far as that reaches; fields that we do not have become 0. Its struct_bytes
 * stays. Errors: as ms__struct_check. */
ms_status ms__struct_write(ms__struct s, const void *ours, void *theirs);

#endif
