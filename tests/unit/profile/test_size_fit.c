/* test_size_fit.c - a fit of sizes where pointwise results are dropped at some of them only. */
#include <stdlib.h>

#include "profile/size_fit.h"
#include "steps.h"

static void write_step(script *s, int64_t batch, int variant, bool drops) {
    bool is_made_again = variant == MS__RECOMPUTED || (variant == MS__POINTWISE && drops);
    in_phase(s, MS_PHASE_FORWARD);
    in_unit(s, 0);
    compute(s, "aten.mul.Tensor");
    input(s, batch, 16);
    output(s, batch, 16);
    int64_t saved = take(s, 64 * batch);
    if (is_made_again) give(s, saved);
    in_phase(s, MS_PHASE_BACKWARD);
    in_unit(s, 0);
    if (is_made_again) {
        repeating(s, 0);
        compute(s, "aten.mul.Tensor");
        input(s, batch, 16);
        output(s, batch, 16);
        saved = take(s, 64 * batch);
        repeating(s, -1);
    }
    compute(s, "aten.add.Tensor");
    output(s, batch, 16);
    give(s, take(s, 64 * batch));
    give(s, saved);
    in_phase(s, MS_PHASE_END);
}

static ms_profile *profile_at(int64_t batch, bool drops) {
    static const char *const names[] = {"layer"};
    static const int64_t sizes[] = {0};
    script *scripts = calloc(MS__N_VARIANTS, sizeof *scripts);
    ms_trace traces[MS__N_VARIANTS];
    CHECK(scripts != NULL);
    for (int v = 0; v < MS__N_VARIANTS; v++) {
        write_step(&scripts[v], batch, v, drops);
        traces[v] = trace_of(&scripts[v]);
    }
    const ms_profile_request request = {.struct_bytes = sizeof request,
                                        .unit_names = names,
                                        .unit_param_bytes = sizes,
                                        .n_units = 1,
                                        .plain = &traces[MS__PLAIN],
                                        .recomputed = &traces[MS__RECOMPUTED],
                                        .pointwise = &traces[MS__POINTWISE]};
    ms_profile *profile = NULL;
    CHECK_STATUS(ms_profile_from_traces(&request, &profile), MS_OK);
    free(scripts);
    return profile;
}

/* A fit of batches, from `first_to_drop` on with dropped results, at another batch; the profiles are gone then. */
static ms_profile *fit_at(int64_t batch, int64_t first_to_drop) {
    const ms_profile *profiles[MS__FIT_SHAPES];
    ms_profile *owned[MS__FIT_SHAPES], *out = NULL;
    int64_t sizes[MS__FIT_SHAPES][MS__MAX_VARIABLES] = {{0}};
    const int64_t wanted[MS__MAX_VARIABLES] = {batch};
    ms__size_fit *fit = NULL;
    for (int i = 0; i < MS__FIT_SHAPES; i++) {
        sizes[i][0] = i + 1;
        profiles[i] = owned[i] = profile_at(i + 1, i + 1 >= first_to_drop);
    }
    CHECK_STATUS(ms__size_fit_create(profiles, (const int64_t (*)[MS__MAX_VARIABLES])sizes, 1, &fit), MS_OK);
    for (int i = 0; i < MS__FIT_SHAPES; i++) ms_profile_destroy(owned[i]);
    CHECK_STATUS(ms__size_fit_at(fit, wanted, (ms__shape){batch, 0}, &out), MS_OK);
    ms__size_fit_destroy(fit);
    return out;
}

TEST(results_that_all_sizes_drop) {
    ms_profile *fitted = fit_at(100, 1), *traced = profile_at(100, true);
    const ms__step *a = fitted->step, *b = traced->step;
    CHECK(a->has_pointwise && a->n_keys == 4 && b->n_keys == 4 && a->n_events == b->n_events);
    for (uint32_t k = 0; k < a->n_keys; k++) CHECK_EQ_INT(ms__step_key_bytes(a, k), ms__step_key_bytes(b, k));
    for (uint32_t i = 0; i < a->n_segments; i++)
        CHECK_EQ_INT(a->segments[i].n[MS__POINTWISE], b->segments[i].n[MS__POINTWISE]);
    ms_profile_destroy(fitted);
    ms_profile_destroy(traced);
}

TEST(results_that_some_sizes_drop) {
    ms_profile *fitted = fit_at(100, 2);
    const ms__step *step = fitted->step;
    CHECK(step->has_recomputed && !step->has_pointwise);
    CHECK_EQ_INT(step->n_keys, 3); /* saved, the gradient, what is recomputed */
    for (uint32_t k = 0; k < step->n_keys; k++) CHECK_EQ_INT(ms__step_key_bytes(step, k), 6400);
    for (uint32_t i = 0; i < step->n_segments; i++) CHECK_EQ_INT(step->segments[i].n[MS__POINTWISE], 0);
    CHECK_EQ_INT(step->n_split_keys, 1);
    ms_profile_destroy(fitted);
}

SUITE(size_fit, CASE(results_that_all_sizes_drop), CASE(results_that_some_sizes_drop));
