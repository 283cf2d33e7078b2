/* main.c - the unit tests of libmemscale, one suite for each subject.
 *
 * A new file of tests is listed here and in tests/CMakeLists.txt. Usage: memscale_tests [--list] [part of a name...]
 */
#include "runner.h"

#define TIMEOUT_S 60 /* for the slowest sanitizer on a busy machine */

#define SUITE_LIST(X)                                                                                                  \
    X(status)                                                                                                          \
    X(structs)                                                                                                         \
    X(fields)                                                                                                          \
    X(log)                                                                                                             \
    X(arena)                                                                                                           \
    X(vec)                                                                                                             \
    X(hash)                                                                                                            \
    X(intern)                                                                                                          \
    X(names)                                                                                                           \
    X(text)                                                                                                            \
    X(json_read)                                                                                                       \
    X(json_write)                                                                                                      \
    X(prim)                                                                                                            \
    X(child)                                                                                                           \
    X(gpu)                                                                                                             \
    X(program)                                                                                                         \
    X(pointwise_programs)                                                                                              \
    X(kernels)                                                                                                         \
    X(gpu_failures)                                                                                                    \
    X(hw)                                                                                                              \
    X(hw_gpus)                                                                                                         \
    X(hw_json)                                                                                                         \
    X(models)                                                                                                          \
    X(rates)                                                                                                           \
    X(target)                                                                                                          \
    X(units)                                                                                                           \
    X(profile)                                                                                                         \
    X(ops)                                                                                                             \
    X(step)                                                                                                            \
    X(step_json)                                                                                                       \
    X(addresses)                                                                                                       \
    X(allocator)                                                                                                       \
    X(growing)                                                                                                         \
    X(sim)                                                                                                             \
    X(shapes)                                                                                                          \
    X(roofline)                                                                                                        \
    X(frontier)                                                                                                        \
    X(order)                                                                                                           \
    X(actions)                                                                                                         \
    X(sim_link)                                                                                                        \
    X(model_options)                                                                                                   \
    X(changes)                                                                                                         \
    X(compare)                                                                                                         \
    X(sim_actions)                                                                                                     \
    X(chain)                                                                                                           \
    X(search)                                                                                                          \
    X(decide)                                                                                                          \
    X(chain_build)                                                                                                     \
    X(appraise)                                                                                                        \
    X(explain)                                                                                                         \
    X(pareto)                                                                                                          \
    X(shape_plans)                                                                                                     \
    X(plan)                                                                                                            \
    X(plan_json)                                                                                                       \
    X(shape_plans)                                                                                                     \
    X(settings)                                                                                                        \
    X(advise)                                                                                                          \
    X(budget)                                                                                                          \
    X(predict)                                                                                                         \
    X(needs)                                                                                                           \
    X(fit_shapes)                                                                                                      \
    X(size_fit)                                                                                                        \
    X(watched)                                                                                                         \
    X(peak_bound)                                                                                                      \
    X(spacer)                                                                                                          \
    X(varying_sizes)                                                                                                   \
    X(size_terms)                                                                                                      \
    X(pool)                                                                                                            \
    X(offload)                                                                                                         \
    X(copies)                                                                                                          \
    X(fetch_order)                                                                                                     \
    X(offload_failures)                                                                                                \
    X(offload_cuda)

#define DECLARE_SUITE(subject) extern const test_suite subject##_suite;
SUITE_LIST(DECLARE_SUITE)

int main(int argc, char **argv) {
#define SUITE_ADDRESS(subject) &subject##_suite,
    static const test_suite *const suites[] = {SUITE_LIST(SUITE_ADDRESS)};
    return test_main(suites, sizeof suites / sizeof *suites, TIMEOUT_S, argc, argv);
}
