/* shape_plans.c - the plans of a model by the sizes of its inputs.
 *
 * The base is the input that the first plan was made for. Sizes that were asked for before are looked up. New sizes
 * that differ from the base only in batch and length get the base's plan if they are smaller, or if the profile's
 * polynomials say that the step fits with it at that shape (at the end of the shape's bucket: the length rounded up);
 * else a plan is made for the shape. If the profile is valid for one shape only, a profile at several shapes is
 * requested once. Sizes that differ in other ways get the plan of an input that is larger in every dimension, or a plan
 * from their own profile.
 *
 * Plans are shared with the callers, so that a model can go on using a plan that was forgotten here.
 */
#include <stdlib.h>
#include <string.h>

#include "../common/structs.h"
#include "../common/vec.h"
#include "../sim/actions.h"
#include "decide.h"
#include "plan.h"

#define BUCKET_PARTS 8 /* the number of buckets between a power of two and the next */
#define MAX_KNOWN 1024 /* inputs, and shapes, that are remembered; beyond that all are forgotten */

typedef struct known_input {
    uint64_t hash; /* of the sizes */
    int64_t *sizes;
    int64_t n_sizes;
    ms_plan *plan;
} known_input;

typedef struct known_shape {
    int64_t batch, length;
    ms_plan *plan;
} known_shape;

struct ms_shape_plans {
    ms__request_copy copy; /* its profiles and may_change are the ones below */
    ms_profile *profile, *half_profile;
    uint8_t *may_change;
    known_input base;
    int64_t batch, length; /* of the base */
    int32_t *actions;      /* of the base's plan */
    bool has_own_events;   /* the base's plan has only traced actions, so that a limit can be simulated */
    bool was_learned;      /* a profile at several shapes was requested */
    ms_profile_source source;
    void *user;
    MS__VEC(known_input) inputs;
    MS__VEC(known_shape) shapes;
};

/* ---- Making and freeing ---- */

static void forget_inputs(ms_shape_plans *s) {
    for (size_t i = 0; i < s->inputs.n; i++) {
        ms_plan_destroy(s->inputs.items[i].plan);
        free(s->inputs.items[i].sizes);
    }
    s->inputs.n = 0;
}

static void forget_shapes(ms_shape_plans *s) {
    for (size_t i = 0; i < s->shapes.n; i++) ms_plan_destroy(s->shapes.items[i].plan);
    s->shapes.n = 0;
}

void ms_shape_plans_destroy(ms_shape_plans *s) {
    if (s == NULL) return;
    forget_inputs(s);
    forget_shapes(s);
    ms__vec_free(&s->inputs);
    ms__vec_free(&s->shapes);
    ms_plan_destroy(s->base.plan);
    ms_profile_destroy(s->profile);
    ms_profile_destroy(s->half_profile);
    free(s->base.sizes);
    free(s->may_change);
    free(s->actions);
    free(s);
}

/* `n` items of an array; NULL only if memory runs out. */
static void *copy_of(const void *items, int64_t n, size_t item_bytes) {
    size_t n_bytes = (size_t)n * item_bytes;
    void *copy = malloc(n_bytes + 1);
    if (copy == NULL) (void)ms__fail_memory(n_bytes);
    if (copy != NULL && n_bytes > 0) memcpy(copy, items, n_bytes);
    return copy;
}

static uint64_t hash_of(const ms_input *input) {
    return ms_hash64(input->sizes, (size_t)input->n_sizes * sizeof *input->sizes, 0);
}

static ms_status note_input(const ms_input *input, const ms_plan *plan, known_input *out) {
    int64_t *sizes = copy_of(input->sizes, input->n_sizes, sizeof *sizes);
    if (sizes == NULL) return MS_E_NO_MEMORY;
    *out =
        (known_input){.hash = hash_of(input), .sizes = sizes, .n_sizes = input->n_sizes, .plan = ms_plan_share(plan)};
    return MS_OK;
}

static ms_status read_input(const ms_input *theirs, ms_input *input) {
    ms_status status = ms__struct_read(MS__STRUCT(ms_input), theirs, input);
    if (status != MS_OK) return status;
    if (input->n_sizes < 0 || (input->n_sizes > 0 && input->sizes == NULL))
        return ms__fail(MS_E_INVALID, "ms_input: sizes is NULL or n_sizes is negative");
    for (int64_t i = 0; i < input->n_sizes; i += input->sizes[i] + 1)
        if (input->sizes[i] < 0 || input->sizes[i] >= input->n_sizes - i)
            return ms__fail(MS_E_INVALID,
                            "ms_input: the tensor at %lld has %lld dimensions, but sizes ends before the last",
                            (long long)i, (long long)input->sizes[i]);
    return MS_OK;
}

static ms_status check_plan(const ms_plan *plan, const ms_profile *profile) {
    if (plan == NULL) return ms__fail(MS_E_INVALID, "ms_shape_plans_create: the plan is NULL");
    if (plan->n_entries != profile->n_units)
        return ms__fail(MS_E_MISMATCH, "the plan has %lld layers, the profile has %lld", (long long)plan->n_entries,
                        (long long)profile->n_units);
    return MS_OK;
}

/* Copy or share everything that the request borrows. */
static ms_status adopt_request(ms_shape_plans *s) {
    ms_plan_request *request = &s->copy.request;
    s->profile = ms_profile_share(request->profile);
    s->half_profile = ms_profile_share(request->half_profile);
    if (request->may_change == NULL) return MS_OK;
    s->may_change = copy_of(request->may_change, request->profile->n_units, sizeof *s->may_change);
    request->may_change = s->may_change;
    return s->may_change == NULL ? MS_E_NO_MEMORY : MS_OK;
}

static ms_status adopt_plan(ms_shape_plans *s, const ms_plan *plan) {
    s->actions = calloc((size_t)plan->n_entries + 1, sizeof *s->actions);
    if (s->actions == NULL) return ms__fail_memory((size_t)plan->n_entries * sizeof *s->actions);
    s->has_own_events = plan->summary.model_options == 0;
    for (int64_t i = 0; i < plan->n_entries; i++) {
        s->actions[i] = plan->entries[i].action;
        if (!ms__actions[s->actions[i]].is_traced) s->has_own_events = false;
    }
    return MS_OK;
}

static ms_status fill_plans(ms_shape_plans *s, const ms_shape_plans_options *options) {
    ms_input input;
    ms_status status = read_input(options->input, &input);
    if (status == MS_OK) status = ms__request_read(options->request, &s->copy);
    if (status == MS_OK) status = check_plan(options->plan, s->copy.request.profile);
    if (status != MS_OK) return status;
    s->source = options->source;
    s->user = options->user;
    s->batch = input.batch;
    s->length = input.length;
    status = adopt_request(s);
    if (status == MS_OK) status = adopt_plan(s, options->plan);
    return status == MS_OK ? note_input(&input, options->plan, &s->base) : status;
}

ms_status ms_shape_plans_create(const ms_shape_plans_options *options, ms_shape_plans **out_plans) {
    ms_shape_plans_options ours;
    ms_status status = ms__struct_read(MS__STRUCT(ms_shape_plans_options), options, &ours);
    if (status != MS_OK) return status;
    if (out_plans == NULL) return ms__fail(MS_E_INVALID, "ms_shape_plans_create: out_plans is NULL");
    ms_shape_plans *s = calloc(1, sizeof *s);
    if (s == NULL) return ms__fail_memory(sizeof *s);
    status = fill_plans(s, &ours);
    if (status != MS_OK) {
        ms_shape_plans_destroy(s);
        return status;
    }
    *out_plans = s;
    return MS_OK;
}

ms_profile *ms_shape_plans_get_profile(const ms_shape_plans *s) {
    return s == NULL ? NULL : ms_profile_share(s->profile);
}

/* ---- A shape: batch and length ---- */

/* The request with profiles of another shape, which the caller frees. */
static ms_status request_at(const ms_shape_plans *s, int64_t batch, int64_t length, ms_plan_request *out) {
    ms_profile *profile = NULL, *half = NULL;
    ms_status status = ms_profile_reshape(s->profile, batch, length, &profile);
    if (status == MS_OK && s->half_profile != NULL) status = ms_profile_reshape(s->half_profile, batch, length, &half);
    if (status != MS_OK || profile == NULL) {
        ms_profile_destroy(profile);
        return status;
    }
    *out = s->copy.request;
    out->profile = profile;
    out->half_profile = half;
    return MS_OK;
}

static void free_profiles(const ms_plan_request *request) {
    ms_profile_destroy((ms_profile *)request->profile);
    ms_profile_destroy((ms_profile *)request->half_profile);
}

/* Does the step run with the base's plan within the bytes that may be reserved? */
static ms_status fits_base(const ms_shape_plans *s, const ms_plan_request *at, bool *out) {
    uint32_t options = s->base.plan->summary.model_options;
    int64_t usable = at->budget_bytes - at->margin_bytes;
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = options & MS_MODEL_HALF ? at->half_profile : at->profile,
                                     .actions = s->actions,
                                     .n_actions = s->base.plan->n_entries,
                                     .device = at->device,
                                     .limit_bytes = s->has_own_events ? usable : 0,
                                     .flags = at->simulation,
                                     .model_options = options};
    ms_simulation *sim = NULL;
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    ms_status status = usable > 0 ? ms_simulation_create(&request, &sim) : MS_E_BUDGET;
    if (status == MS_OK) status = ms_simulation_get_summary(sim, &summary);
    ms_simulation_destroy(sim);
    *out = status == MS_OK && ms__simulated_peak(&summary) <= usable;
    return status == MS_E_BUDGET ? MS_OK : status;
}

/* A new plan, or the base's. Another shape has no smart skip: the fastest plan that fits is wanted. */
static ms_status make_plan_at(const ms_shape_plans *s, int64_t batch, int64_t length, ms_plan **out) {
    ms_plan_request at = {0};
    bool fits = false;
    ms_status status = request_at(s, batch, length, &at);
    if (status != MS_OK) return status;
    at.flags |= MS_PLAN_FASTEST;
    status = fits_base(s, &at, &fits);
    if (status == MS_OK && fits)
        *out = ms_plan_share(s->base.plan);
    else if (status == MS_OK)
        status = ms_plan_create(&at, out);
    free_profiles(&at);
    return status;
}

static const ms_plan *known_plan_at(const ms_shape_plans *s, int64_t batch, int64_t length) {
    for (size_t i = 0; i < s->shapes.n; i++)
        if (s->shapes.items[i].batch == batch && s->shapes.items[i].length == length) return s->shapes.items[i].plan;
    return NULL;
}

/* The plan at a shape, made if it is new. `*out` is borrowed from the known shapes. */
static ms_status plan_at(ms_shape_plans *s, int64_t batch, int64_t length, const ms_plan **out) {
    *out = known_plan_at(s, batch, length);
    if (*out != NULL) return MS_OK;
    ms_plan *plan = NULL;
    ms_status status = make_plan_at(s, batch, length, &plan);
    if (status != MS_OK) return status;
    if (s->shapes.n >= MAX_KNOWN) forget_shapes(s);
    known_shape shape = {batch, length, plan};
    if (!ms__vec_push(&s->shapes, shape)) {
        ms_plan_destroy(plan);
        return MS_E_NO_MEMORY;
    }
    *out = plan;
    return MS_OK;
}

/* The longest length of the same bucket. */
static int64_t end_of_bucket(int64_t length) {
    int64_t step = 1;
    if (length > INT64_MAX / 2) return length;
    while (step * BUCKET_PARTS * 2 <= length) step *= 2;
    return (length + step - 1) / step * step;
}

/* The end of the bucket may be too long to fit, or longer than the model's longest: then the shape itself counts. */
static ms_status plan_in_bucket(ms_shape_plans *s, int64_t batch, int64_t length, const ms_plan **out) {
    int64_t end = end_of_bucket(length);
    ms_status status = plan_at(s, batch, end, out);
    bool may_be_the_end = status != MS_OK && status != MS_E_NO_MEMORY && end > length;
    return may_be_the_end ? plan_at(s, batch, length, out) : status;
}

/* ---- Profiles from the source ---- */

static ms_status ask_profile(const ms_shape_plans *s, bool all_shapes, ms_profile **out) {
    if (s->source == NULL) return ms__fail(MS_E_UNAVAILABLE, "this input cannot be profiled: the source is NULL");
    ms_status status = s->source(s->user, all_shapes, out);
    if (status != MS_OK || (*out)->n_units == s->profile->n_units) return status;
    ms_profile_destroy(*out);
    *out = NULL;
    return ms__fail(MS_E_UNAVAILABLE, "the profile of this input has other layers than the plan");
}

/* Replace the profile by one for all shapes, reshaped to the base's shape. */
static ms_status learn_shapes(ms_shape_plans *s) {
    ms_profile *fitted = NULL, *profile = NULL;
    s->was_learned = true;
    ms_status status = ask_profile(s, true, &fitted);
    if (status == MS_OK) status = ms_profile_reshape(fitted, s->batch, s->length, &profile);
    ms_profile_destroy(fitted);
    if (status != MS_OK) return status;
    ms_profile_destroy(s->profile);
    s->profile = profile;
    s->copy.request.profile = profile;
    return MS_OK;
}

/* Statuses about the step or this process, not about missing knowledge of shapes. */
static bool is_final(ms_status status) {
    return status == MS_OK || status == MS_E_BUDGET || status == MS_E_NO_MEMORY || status == MS_E_INTERRUPTED;
}

/* Make a plan from a profile of this input. If that is impossible, use the base's plan. */
static ms_status make_plan_alone(const ms_shape_plans *s, ms_plan **out) {
    ms_plan_request request = s->copy.request;
    ms_profile *profile = NULL;
    ms_status status = ask_profile(s, false, &profile);
    request.profile = profile;
    request.half_profile = NULL;
    if (status == MS_OK) status = ms_plan_create(&request, out);
    ms_profile_destroy(profile);
    if (is_final(status)) return status;
    *out = ms_plan_share(s->base.plan);
    return MS_OK;
}

/* ---- An input ---- */

/* Does this input differ from the base only in batch and length? */
static bool follows_base(const ms_shape_plans *s, const ms_input *input) {
    if (input->n_sizes != s->base.n_sizes) return false;
    for (int64_t i = 0; i < input->n_sizes; i += input->sizes[i] + 1) {
        if (input->sizes[i] != s->base.sizes[i]) return false;
        for (int64_t d = 1; d <= input->sizes[i]; d++) {
            int64_t old = s->base.sizes[i + d], new = input->sizes[i + d];
            bool follows = d == 1 ? old == s->batch && new == input->batch : old == s->length && new == input->length;
            if (old != new && !follows) return false;
        }
    }
    return true;
}

static bool is_no_larger(const ms_input *input, const known_input *known) {
    if (input->n_sizes != known->n_sizes) return false;
    for (int64_t i = 0; i < input->n_sizes; i += input->sizes[i] + 1) {
        if (input->sizes[i] != known->sizes[i]) return false;
        for (int64_t d = 1; d <= input->sizes[i]; d++)
            if (input->sizes[i + d] > known->sizes[i + d]) return false;
    }
    return true;
}

static const ms_plan *plan_of_larger(const ms_shape_plans *s, const ms_input *input) {
    if (is_no_larger(input, &s->base)) return s->base.plan;
    for (size_t i = 0; i < s->inputs.n; i++)
        if (is_no_larger(input, &s->inputs.items[i])) return s->inputs.items[i].plan;
    return NULL;
}

static ms_status make_plan_by_shape(ms_shape_plans *s, const ms_input *input, ms_plan **out) {
    const ms_plan *plan = s->base.plan;
    ms_status status = MS_OK;
    if (input->batch > s->batch || input->length > s->length)
        status = plan_in_bucket(s, input->batch, input->length, &plan);
    if (!is_final(status) && !s->was_learned) {
        status = learn_shapes(s);
        if (status == MS_OK) status = plan_in_bucket(s, input->batch, input->length, &plan);
    }
    if (!is_final(status)) return make_plan_alone(s, out);
    if (status == MS_OK) *out = ms_plan_share(plan);
    return status;
}

static ms_status make_plan(ms_shape_plans *s, const ms_input *input, ms_plan **out) {
    if (follows_base(s, input)) return make_plan_by_shape(s, input, out);
    const ms_plan *larger = plan_of_larger(s, input);
    if (larger == NULL) return make_plan_alone(s, out);
    *out = ms_plan_share(larger);
    return MS_OK;
}

static bool is_same(const known_input *known, const ms_input *input, uint64_t hash) {
    size_t n_bytes = (size_t)input->n_sizes * sizeof *input->sizes;
    if (known->hash != hash || known->n_sizes != input->n_sizes) return false;
    return n_bytes == 0 || memcmp(known->sizes, input->sizes, n_bytes) == 0;
}

static const ms_plan *known_plan(const ms_shape_plans *s, const ms_input *input, uint64_t hash) {
    if (is_same(&s->base, input, hash)) return s->base.plan;
    for (size_t i = 0; i < s->inputs.n; i++)
        if (is_same(&s->inputs.items[i], input, hash)) return s->inputs.items[i].plan;
    return NULL;
}

static ms_status remember_input(ms_shape_plans *s, const ms_input *input, const ms_plan *plan) {
    known_input known;
    if (s->inputs.n >= MAX_KNOWN) forget_inputs(s);
    ms_status status = note_input(input, plan, &known);
    if (status != MS_OK || ms__vec_push(&s->inputs, known)) return status;
    ms_plan_destroy(known.plan);
    free(known.sizes);
    return MS_E_NO_MEMORY;
}

ms_status ms_shape_plans_find(ms_shape_plans *s, const ms_input *theirs, ms_plan **out_plan) {
    ms_input input;
    if (s == NULL || out_plan == NULL) return ms__fail(MS_E_INVALID, "ms_shape_plans_find: an argument is NULL");
    ms_status status = read_input(theirs, &input);
    if (status != MS_OK) return status;
    const ms_plan *known = known_plan(s, &input, hash_of(&input));
    if (known != NULL) {
        *out_plan = ms_plan_share(known);
        return MS_OK;
    }
    ms_plan *plan = NULL;
    status = make_plan(s, &input, &plan);
    if (status == MS_OK) status = remember_input(s, &input, plan);
    if (status != MS_OK) {
        ms_plan_destroy(plan);
        return status;
    }
    *out_plan = plan;
    return MS_OK;
}
