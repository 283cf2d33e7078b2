/* shape_plans.c - the plans of a model by the sizes of its inputs.
 *
 * The base is the input that the first plan was made for. The plan of another input is found in this order:
 *   1. sizes that were asked for before are looked up; sizes that are all no larger than those of a known input have
 * its plan;
 *   2. where a bound of the step's peak (peak_bound.h) is within the budget, the base's plan does;
 *   3. where it is known how the step grows with the sizes that vary (size_fit.h), the base's plan is simulated at
 * these sizes, rounded up, and a plan is made for them if it does not fit;
 *   4. otherwise the source is asked for profiles: at a few shapes, from which 3 follows, or of this input alone if the
 *      step cannot be fitted. The first such analysis is always made. Later ones are made only while all of them take
 *      no more than a share of the time trained so far;
 *   5. otherwise the step runs lean: with every unit recomputed that may be. That is not remembered, so the next input
 *      of these sizes may be analysed.
 * The plan that follows from a profile depends on nothing but the profile and the sizes. Time decides only whether an
 * analysis is made, which is where two runs of the same training may differ.
 *
 * Plans are shared with the callers, so that a model can go on using a plan that was forgotten here.
 */
#include <stdlib.h>
#include <string.h>

#include "../common/structs.h"
#include "../common/vec.h"
#include "../profile/size_fit.h"
#include "../sim/needs.h"
#include "decide.h"
#include "peak_bound.h"
#include "plan.h"
#include "varying_sizes.h"

#define MAX_KNOWN 1024    /* inputs that are remembered; beyond that all are forgotten */
#define ANALYSIS_PARTS 50 /* analyses after the first two may take this part of the time trained: 2 % */

typedef struct known_input {
    uint64_t hash; /* of the sizes */
    int64_t *sizes;
    int64_t n_sizes;
    ms_plan *plan;
} known_input;

/* How the step depends on the sizes that vary: the same for all plans of a model, whatever they are made for. */
typedef struct known_growth {
    ms__owners owners;
    ms__size_fit *fit;   /* NULL: there is none */
    ms__varying varying; /* the variables of `fit` */
    ms__varying tried;   /* those of the last try */
} known_growth;

struct ms_shape_plans {
    ms__request_copy copy; /* its profiles and may_change are the ones below */
    ms_profile *profile, *half_profile;
    uint8_t *may_change;
    known_input base;
    int32_t *actions; /* of the base's plan */
    ms__peak_bound bound;
    ms_plan *lean; /* NULL: not made yet */
    known_growth *growth;
    ms_profile_source source;
    void *user;
    MS__VEC(known_input) inputs;
};

/* ---- Making and freeing ---- */

static void forget_inputs(ms_shape_plans *s) {
    for (size_t i = 0; i < s->inputs.n; i++) {
        ms_plan_destroy(s->inputs.items[i].plan);
        free(s->inputs.items[i].sizes);
    }
    s->inputs.n = 0;
}

static void leave_growth(known_growth *growth) {
    if (growth == NULL || !ms__owners_remove(&growth->owners)) return;
    ms__size_fit_destroy(growth->fit);
    free(growth);
}

void ms_shape_plans_destroy(ms_shape_plans *s) {
    if (s == NULL) return;
    forget_inputs(s);
    leave_growth(s->growth);
    ms__vec_free(&s->inputs);
    ms__peak_bound_free(&s->bound);
    ms_plan_destroy(s->base.plan);
    ms_plan_destroy(s->lean);
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
    if (input->trained_ns < 0 || input->analysed_ns < 0 || input->analysis_ns < 0)
        return ms__fail(MS_E_INVALID, "ms_input: a time is negative");
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
    request->plain_profile = NULL; /* it has one shape */
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
    for (int64_t i = 0; i < plan->n_entries; i++) s->actions[i] = plan->entries[i].action;
    return MS_OK;
}

/* What is known of growth belongs to all plans of the model. */
static ms_status join_growth(ms_shape_plans *s, const ms_shape_plans *like) {
    if (like != NULL) {
        bool is_same = like->base.n_sizes == s->base.n_sizes && like->profile->n_units == s->profile->n_units;
        if (!is_same)
            return ms__fail(MS_E_MISMATCH, "ms_shape_plans_create: `like` has plans of another model or input");
        ms__owners_add(&like->growth->owners);
        s->growth = like->growth;
        return MS_OK;
    }
    s->growth = calloc(1, sizeof *s->growth);
    return s->growth == NULL ? ms__fail_memory(sizeof *s->growth) : MS_OK;
}

static ms_status fill_plans(ms_shape_plans *s, const ms_shape_plans_options *options) {
    ms_input input;
    ms_status status = read_input(options->input, &input);
    if (status == MS_OK) status = ms__request_read(options->request, &s->copy);
    if (status == MS_OK) status = check_plan(options->plan, s->copy.request.profile);
    if (status != MS_OK) return status;
    s->source = options->source;
    s->user = options->user;
    status = adopt_request(s);
    if (status == MS_OK) status = adopt_plan(s, options->plan);
    if (status == MS_OK) status = note_input(&input, options->plan, &s->base);
    return status == MS_OK ? join_growth(s, options->like) : status;
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

/* ---- The base's plan, for other inputs ---- */

static ms_simulation_request base_request(const ms_shape_plans *s, const ms_plan_request *at) {
    const ms_plan_summary *summary = &s->base.plan->summary;
    uint32_t options = summary->model_options;
    return (ms_simulation_request){.struct_bytes = sizeof(ms_simulation_request),
                                   .profile = options & MS_MODEL_HALF ? at->half_profile : at->profile,
                                   .actions = s->actions,
                                   .n_actions = s->base.plan->n_entries,
                                   .device = at->device,
                                   .flags = ms__simulation_flags(at, summary->grows != 0),
                                   .model_options = options,
                                   .spacer_bytes = summary->spacer_bytes,
                                   .spacer_unit = summary->spacer_unit};
}

/* Does the step run with the base's plan within the bytes that may be reserved? */
static ms_status fits_base(const ms_shape_plans *s, const ms_plan_request *at, bool *out) {
    int64_t usable = at->budget_bytes - at->margin_bytes - at->occupied_bytes;
    ms_simulation_request request = base_request(s, at);
    ms__needs needs = {0};
    *out = false;
    if (request.profile == NULL) return MS_OK; /* the step in 16 bits is not known at these sizes */
    ms_status status = ms__find_needs(&request, NULL, usable, &needs);
    *out = status == MS_OK && needs.needed_bytes <= usable;
    return status;
}

/* Is the most that the step can need with the base's plan within the budget? */
static ms_status is_bounded(ms_shape_plans *s, const ms_input *input, bool *out) {
    const ms_plan_request *request = &s->copy.request;
    *out = false;
    if (s->bound.rows == NULL) {
        ms_simulation_request plain = base_request(s, request);
        ms_status status = ms__peak_bound_make(&plain, &s->bound);
        if (status != MS_OK) return status;
    }
    int64_t growth = ms__growth_of(s->base.sizes, input->sizes, input->n_sizes);
    int64_t usable = request->budget_bytes - request->margin_bytes - request->occupied_bytes;
    *out = ms__peak_bound_at(&s->bound, growth) <= usable;
    return MS_OK;
}

/* ---- Inputs that are known ---- */

static bool has_same_dims(const ms_input *input, const known_input *known) {
    if (input->n_sizes != known->n_sizes) return false;
    for (int64_t i = 0; i < input->n_sizes; i += input->sizes[i] + 1)
        if (input->sizes[i] != known->sizes[i]) return false;
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

/* An input that is known and no smaller in any dimension; NULL: there is none. */
static const known_input *find_larger(const ms_shape_plans *s, const ms_input *input) {
    if (is_no_larger(input, &s->base)) return &s->base;
    for (size_t i = 0; i < s->inputs.n; i++)
        if (is_no_larger(input, &s->inputs.items[i])) return &s->inputs.items[i];
    return NULL;
}

static bool is_same(const known_input *known, const ms_input *input, uint64_t hash) {
    size_t n_bytes = (size_t)input->n_sizes * sizeof *input->sizes;
    if (known->hash != hash || known->n_sizes != input->n_sizes) return false;
    return n_bytes == 0 || memcmp(known->sizes, input->sizes, n_bytes) == 0;
}

static const known_input *find_known(const ms_shape_plans *s, const ms_input *input, uint64_t hash) {
    if (is_same(&s->base, input, hash)) return &s->base;
    for (size_t i = 0; i < s->inputs.n; i++)
        if (is_same(&s->inputs.items[i], input, hash)) return &s->inputs.items[i];
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

/* ---- Plans by how the step grows ---- */

/* Statuses about the step or this process, not about missing knowledge. */
static bool is_final(ms_status status) {
    return status == MS_OK || status == MS_E_BUDGET || status == MS_E_NO_MEMORY || status == MS_E_INTERRUPTED;
}

/* A new plan, or the base's. Another shape has no smart skip: the fastest plan that fits is wanted. */
static ms_status make_plan_at(const ms_shape_plans *s, const int64_t *values, const ms_input *input, ms_plan **out) {
    ms_plan_request at = s->copy.request;
    ms_profile *profile = NULL;
    bool fits = false;
    ms_status status = ms__size_fit_at(s->growth->fit, values, (ms__shape){input->batch, input->length}, &profile);
    at.profile = profile;
    at.half_profile = NULL;
    at.flags |= MS_PLAN_FASTEST;
    if (status == MS_OK) status = fits_base(s, &at, &fits);
    if (status == MS_OK && fits)
        *out = ms_plan_share(s->base.plan);
    else if (status == MS_OK)
        status = ms_plan_create(&at, out);
    ms_profile_destroy(profile);
    return status;
}

/* The plan for sizes rounded up, which is remembered for all that are no larger; if there is none, for the sizes
 * themselves. Errors: as ms_plan_create, and MS_E_UNAVAILABLE (it is not known how the step grows with what differs).
 */
static ms_status make_plan_by_growth(ms_shape_plans *s, const ms_input *input, ms_plan **out) {
    const ms__varying *varying = &s->growth->varying;
    int64_t values[MS__MAX_VARIABLES], ends[MS__MAX_VARIABLES], sizes[MS__MAX_SIZES];
    if (s->growth->fit == NULL || !ms__varying_values(varying, s->base.sizes, input->sizes, input->n_sizes, values))
        return MS_E_UNAVAILABLE;
    ms_input largest = *input;
    largest.sizes = sizes;
    memcpy(ends, values, sizeof ends);
    ms__varying_round_up(varying, ends);
    ms__varying_fill(varying, s->base.sizes, ends, sizes);
    ms_status status = make_plan_at(s, ends, input, out);
    bool may_be_the_end = status != MS_OK && status != MS_E_NO_MEMORY && memcmp(ends, values, sizeof ends) != 0;
    if (may_be_the_end) {
        largest.sizes = input->sizes;
        status = make_plan_at(s, values, input, out);
    }
    if (status == MS_OK) status = remember_input(s, &largest, *out);
    return status;
}

/* ---- Profiles from the source ---- */

/* May the source be asked for so many profiles now? */
static bool may_analyse(const ms_input *input, int64_t n_profiles) {
    if (input->trained_ns == 0 || input->analysed_ns == 0) return true;
    if (input->analysis_ns > INT64_MAX / ANALYSIS_PARTS / 16 || input->analysed_ns > INT64_MAX / ANALYSIS_PARTS / 2)
        return false;
    return (input->analysed_ns + n_profiles * input->analysis_ns) * ANALYSIS_PARTS <= input->trained_ns;
}

/* Profiles of the step at `n` lists of sizes. They are the caller's, on success. */
static ms_status ask_profiles(const ms_shape_plans *s, const int64_t *sizes, int64_t n, ms_profile **out) {
    if (s->source == NULL) return ms__fail(MS_E_UNAVAILABLE, "this input cannot be profiled: the source is NULL");
    for (int64_t i = 0; i < n; i++) out[i] = NULL;
    ms_status status = s->source(s->user, sizes, n, out);
    for (int64_t i = 0; i < n && status == MS_OK; i++)
        if (out[i] == NULL || out[i]->n_units != s->profile->n_units)
            status = ms__fail(MS_E_UNAVAILABLE, "the profile of this input has other layers than the plan");
    for (int64_t i = 0; i < n && status != MS_OK; i++) ms_profile_destroy(out[i]);
    return status;
}

/* The variables of all inputs that are known, this one included. */
static bool find_varying(const ms_shape_plans *s, const ms_input *input, ms__varying *out) {
    const int64_t *inputs[MAX_KNOWN + 2] = {s->base.sizes, input->sizes};
    size_t n = 2;
    if (!has_same_dims(input, &s->base)) return false;
    for (size_t i = 0; i < s->inputs.n; i++)
        if (has_same_dims(input, &s->inputs.items[i])) inputs[n++] = s->inputs.items[i].sizes;
    return ms__varying_find(inputs, n, input->n_sizes, out);
}

/* Profile the step at a few shapes and find out how it grows with these variables. */
static ms_status learn_growth(ms_shape_plans *s, const ms__varying *varying) {
    known_growth *growth = s->growth;
    ms_profile *profiles[MS__FIT_SHAPES];
    int64_t values[MS__FIT_SHAPES][MS__MAX_VARIABLES];
    int64_t *sizes = malloc((size_t)varying->n_sizes * MS__FIT_SHAPES * sizeof *sizes);
    if (sizes == NULL) return ms__fail_memory((size_t)varying->n_sizes * MS__FIT_SHAPES * sizeof *sizes);
    for (int p = 0; p < MS__FIT_SHAPES; p++) {
        ms__varying_fit_values(varying, p, values[p]);
        ms__varying_fill(varying, s->base.sizes, values[p], sizes + p * varying->n_sizes);
    }
    ms_status status = ask_profiles(s, sizes, MS__FIT_SHAPES, profiles);
    free(sizes);
    ms__size_fit *fit = NULL;
    bool were_profiled = status == MS_OK;
    if (were_profiled)
        status = ms__size_fit_create((const ms_profile *const *)profiles, (const int64_t (*)[MS__MAX_VARIABLES])values,
                                     varying->n, &fit);
    for (int p = 0; p < MS__FIT_SHAPES && were_profiled; p++) ms_profile_destroy(profiles[p]);
    if (status != MS_E_INTERRUPTED && status != MS_E_NO_MEMORY) growth->tried = *varying;
    if (status != MS_OK) return status;
    ms__size_fit_destroy(growth->fit);
    growth->fit = fit;
    growth->varying = *varying;
    return MS_OK;
}

/* Errors: those of a plan, and others where it is not found out how the step grows; `*was_asked`: by the source. */
static ms_status make_plan_by_learning(ms_shape_plans *s, const ms_input *input, bool *was_asked, ms_plan **out) {
    ms__varying varying;
    *was_asked = false;
    if (!may_analyse(input, MS__FIT_SHAPES) || !find_varying(s, input, &varying)) return MS_E_UNAVAILABLE;
    if (ms__varying_equal(&varying, &s->growth->tried)) return MS_E_UNAVAILABLE;
    *was_asked = true;
    ms_status status = learn_growth(s, &varying);
    return status == MS_OK ? make_plan_by_growth(s, input, out) : status;
}

/* Make a plan from a profile of this input. */
static ms_status make_plan_alone(ms_shape_plans *s, const ms_input *input, ms_plan **out) {
    ms_plan_request request = s->copy.request;
    ms_profile *profile = NULL;
    ms_status status = ask_profiles(s, input->sizes, 1, &profile);
    if (status != MS_OK) return status;
    request.profile = profile;
    request.half_profile = NULL;
    status = ms_plan_create(&request, out);
    ms_profile_destroy(profile);
    if (status == MS_OK) status = remember_input(s, input, *out);
    return status;
}

/* ---- An input ---- */

/* Every unit recomputed that may be. */
static ms_status take_lean_plan(ms_shape_plans *s, ms_plan **out) {
    ms_status status = MS_OK;
    if (s->lean == NULL) {
        ms_plan_request request = s->copy.request;
        request.flags |= MS_PLAN_LEAN;
        status = ms_plan_create(&request, &s->lean);
    }
    if (status == MS_OK) *out = ms_plan_share(s->lean);
    return status;
}

static ms_status take_base_plan(ms_shape_plans *s, const ms_input *input, ms_plan **out) {
    *out = ms_plan_share(s->base.plan);
    return remember_input(s, input, *out);
}

static ms_status make_plan(ms_shape_plans *s, const ms_input *input, ms_plan **out) {
    const known_input *larger = find_larger(s, input);
    bool is_like_base = has_same_dims(input, &s->base), fits = false, was_asked = false;
    if (larger != NULL) {
        *out = ms_plan_share(larger->plan);
        return MS_OK;
    }
    ms_status status = is_like_base ? is_bounded(s, input, &fits) : MS_OK;
    if (status != MS_OK) return status;
    if (fits) return take_base_plan(s, input, out);
    status = make_plan_by_growth(s, input, out);
    if (is_final(status)) return status;
    status = make_plan_by_learning(s, input, &was_asked, out);
    if (is_final(status)) return status;
    if (was_asked ? input->trained_ns == 0 : may_analyse(input, 1)) status = make_plan_alone(s, input, out);
    return is_final(status) ? status : take_lean_plan(s, out);
}

ms_status ms_shape_plans_find(ms_shape_plans *s, const ms_input *theirs, ms_plan **out_plan) {
    ms_input input;
    if (s == NULL || out_plan == NULL) return ms__fail(MS_E_INVALID, "ms_shape_plans_find: an argument is NULL");
    ms_status status = read_input(theirs, &input);
    if (status != MS_OK) return status;
    const known_input *known = find_known(s, &input, hash_of(&input));
    if (known != NULL) {
        *out_plan = ms_plan_share(known->plan);
        return MS_OK;
    }
    ms_plan *plan = NULL;
    status = make_plan(s, &input, &plan);
    if (status != MS_OK) {
        ms_plan_destroy(plan);
        return status;
    }
    *out_plan = plan;
    return MS_OK;
}
