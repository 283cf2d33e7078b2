/* step_prop.c - laws of steps and simulations, on random traces.
 *
 * A random model is written as three traces, one for each variant, and remembers which of their storages are the same.
 * Then the bytes of a step are counted from the trace itself, without keys, segments or variants: a simulation of a
 * plan that keeps everything, recomputes everything, or all pointwise results, must give the same. A step must survive
 * a round trip through a file bit for bit.
 */
#include "devices.h"
#include "random.h"
#include "steps.h"

#include <string.h>

#define MAX_UNITS 5
#define MAX_THINGS SCRIPT_ITEMS
#define N_STEPS 3

/* Something that is allocated. */
typedef struct thing {
    int64_t n_bytes;
    int64_t kind; /* as in a trace */
    int64_t born; /* the phase */
    bool in[MS__N_VARIANTS], released[MS__N_VARIANTS], accumulated[MS__N_VARIANTS];
    int64_t storage[MS__N_VARIANTS];
    uint32_t category;
} thing;

typedef struct model {
    script traces[MS__N_VARIANTS];
    thing things[MAX_THINGS];
    int64_t thing_of[MS__N_VARIANTS][SCRIPT_ITEMS]; /* by storage */
    int64_t n_things, n_units, phase;
} model;

/* ---- Random traces ---- */

static bool has_room(const model *m) {
    bool has = true;
    for (int v = 0; v < MS__N_VARIANTS; v++) has = has && m->traces[v].n_events < SCRIPT_ITEMS - 200;
    return has;
}

static int64_t new_thing(model *m) {
    static const int64_t kinds[] = {MS_CATEGORY_ACTIVATION, MS_CATEGORY_PARAMETER, MS_CATEGORY_BUFFER,
                                    MS_CATEGORY_INPUT,      MS_CATEGORY_GRADIENT,  MS_CATEGORY_OPTIMIZER};
    CHECK(m->n_things < MAX_THINGS);
    thing *t = &m->things[m->n_things];
    int64_t kind = m->phase == MS_PHASE_SETUP || one_in(20) ? kinds[up_to(5)] : MS_CATEGORY_ACTIVATION;
    *t = (thing){.n_bytes = one_in(10) ? up_to(3) : up_to(5000), .kind = kind, .born = m->phase};
    return m->n_things++;
}

static void allocate(model *m, int variant, int64_t index) {
    thing *t = &m->things[index];
    t->in[variant] = true;
    t->storage[variant] = take_as(&m->traces[variant], t->kind, t->n_bytes);
    m->thing_of[variant][t->storage[variant]] = index;
}

static void release_some(model *m, int variant, int64_t rarity) {
    for (int64_t i = 0; i < m->n_things; i++) {
        thing *t = &m->things[i];
        if (!t->in[variant] || t->released[variant] || !one_in(rarity)) continue;
        t->released[variant] = true;
        give(&m->traces[variant], t->storage[variant]);
    }
}

static void accumulate_some(model *m, int variant) {
    for (int64_t i = 0; i < m->n_things; i++) {
        thing *t = &m->things[i];
        if (!t->in[variant] || t->accumulated[variant] || t->born != MS_PHASE_BACKWARD || !one_in(8)) continue;
        t->accumulated[variant] = true;
        say(&m->traces[variant], MS_TRACE_GRADIENT, t->storage[variant], 0);
    }
}

static const char *random_name(void) {
    static const char *const names[] = {"aten.relu.default", "aten.view.default", "aten.mul.Tensor", "mine"};
    return names[up_to(3)];
}

/* A function whose result may be kept begins, or ends with the storage that was allocated last. */
static void mark(script *s, int64_t keep) { say(s, MS_TRACE_FUNCTION, keep, keep == 0 ? s->n_storages - 1 : 0); }

/* Operations of a recomputation, in one variant only. */
static void repeat_unit(model *m, int variant, int64_t unit) {
    script *trace = &m->traces[variant];
    repeating(trace, unit);
    for (int64_t n = up_to(3); n > 0; n--) {
        if (one_in(4)) mark(trace, up_to(2));
        compute(trace, random_name());
        if (one_in(2)) allocate(m, variant, new_thing(m));
        release_some(m, variant, 12);
    }
    repeating(trace, -1);
}

/* An operation of all traces, which may keep different things of it. */
static void operate(model *m) {
    const char *name = random_name();
    bool optimizer = m->phase >= MS_PHASE_OPTIMIZER_FIRST;
    int64_t keep = one_in(4) ? up_to(2) : -1;
    for (int v = 0; v < MS__N_VARIANTS && keep >= 0; v++) mark(&m->traces[v], keep);
    for (int v = 0; v < MS__N_VARIANTS; v++) compute(&m->traces[v], name);
    for (int64_t n = up_to(2); n > 0; n--) {
        int64_t index = new_thing(m);
        for (int v = 0; v < MS__N_VARIANTS; v++) allocate(m, v, index);
    }
    if (!optimizer && one_in(10)) allocate(m, (int)up_to(MS__N_VARIANTS - 1), new_thing(m)); /* one of them alone */
    for (int v = 0; v < MS__N_VARIANTS; v++) release_some(m, v, 8);
    for (int v = 0; v < MS__N_VARIANTS && m->phase == MS_PHASE_BACKWARD; v++) accumulate_some(m, v);
}

static void take_turn(model *m, bool later) {
    int64_t unit = up_to(m->n_units) - 1;
    script *recomputed = &m->traces[MS__RECOMPUTED];
    bool in_backward = unit >= 0 && m->phase == MS_PHASE_BACKWARD;
    in_unit(&m->traces[MS__PLAIN], unit);
    in_unit(&m->traces[MS__POINTWISE], unit);
    if (!later) in_unit(recomputed, unit);
    if (!later && in_backward && one_in(2)) repeat_unit(m, MS__RECOMPUTED, unit);
    if (in_backward && one_in(2)) repeat_unit(m, MS__POINTWISE, unit);
    operate(m);
    if (later) in_unit(recomputed, unit); /* the first operation belonged to the unit before */
    if (later) operate(m);
    while (one_in(2) && has_room(m)) operate(m);
}

static void random_model(model *m) {
    memset(m, 0, sizeof *m);
    m->n_units = up_to(MAX_UNITS);
    for (int64_t n = up_to(5); n > 0; n--) {
        int64_t index = new_thing(m);
        for (int v = 0; v < MS__N_VARIANTS; v++) allocate(m, v, index);
    }
    for (m->phase = MS_PHASE_FORWARD; m->phase <= MS_PHASE_END; m->phase++) {
        for (int v = 0; v < MS__N_VARIANTS; v++) in_phase(&m->traces[v], m->phase);
        int64_t n_turns = up_to(8);
        for (int64_t i = 0; i < n_turns && has_room(m); i++) take_turn(m, i > 0 && one_in(8));
    }
}

static ms_profile *profile_of(model *m) {
    static const char *const names[MAX_UNITS] = {"a", "b", "c", "d", "e"};
    static const int64_t sizes[MAX_UNITS];
    ms_trace traces[MS__N_VARIANTS];
    for (int v = 0; v < MS__N_VARIANTS; v++) traces[v] = trace_of(&m->traces[v]);
    ms_profile_request request = {.struct_bytes = sizeof request,
                                  .unit_names = names,
                                  .unit_param_bytes = sizes,
                                  .n_units = m->n_units,
                                  .plain = &traces[MS__PLAIN],
                                  .recomputed = &traces[MS__RECOMPUTED],
                                  .pointwise = &traces[MS__POINTWISE]};
    ms_profile *profile = NULL;
    CHECK_STATUS(ms_profile_from_traces(&request, &profile), MS_OK);
    return profile;
}

/* ---- Counted from the trace ---- */

typedef struct count {
    int64_t start_bytes, first_peak, steady_peak, idle_bytes, n_ops;
} count;

static void find_category(thing *t) {
    int v = t->in[MS__PLAIN] ? MS__PLAIN : t->in[MS__RECOMPUTED] ? MS__RECOMPUTED : MS__POINTWISE;
    bool stays = !t->released[v];
    if (t->kind == MS_CATEGORY_PARAMETER || t->kind == MS_CATEGORY_BUFFER || t->kind == MS_CATEGORY_INPUT)
        t->category = (uint32_t)t->kind;
    else if (t->born <= MS_PHASE_LOSS)
        t->category = stays ? MS_CATEGORY_BUFFER : MS_CATEGORY_ACTIVATION;
    else if (t->born == MS_PHASE_BACKWARD)
        t->category = stays ? MS_CATEGORY_GRADIENT : MS_CATEGORY_TEMPORARY;
    else
        t->category = stays ? MS_CATEGORY_OPTIMIZER : MS_CATEGORY_TEMPORARY;
}

/* Is this phase a part of the step? -1: before the first one. */
static bool is_played(int64_t phase, int step, uint32_t flags) {
    bool first = step == 0 && !(flags & MS_SIMULATE_RESUMED);
    if (phase == MS_PHASE_SETUP) return step < 0;
    if (phase == MS_PHASE_OPTIMIZER_FIRST) return step >= 0 && first;
    return step >= 0 && (phase != MS_PHASE_OPTIMIZER || !first);
}

typedef struct holder {
    const model *m;
    bool held[MAX_THINGS];
    bool has_addend[MAX_THINGS]; /* a new gradient that is still to be added to the one that is held */
    int64_t bytes, peak;
} holder;

static void hold(holder *h, int64_t index) {
    int64_t n_bytes = h->m->things[index].n_bytes, with = h->bytes + n_bytes;
    bool is_addend = h->held[index] && h->m->things[index].category == MS_CATEGORY_GRADIENT;
    if (with > h->peak) h->peak = with;
    if (!h->held[index] || is_addend) h->bytes = with; /* else it was only temporary */
    if (is_addend) h->has_addend[index] = true;
    h->held[index] = true;
}

static void add(holder *h, int64_t index) {
    if (h->has_addend[index]) h->bytes -= h->m->things[index].n_bytes;
    h->has_addend[index] = false;
}

/* The gradients of which the traces do not tell when they are added; or all. */
static void add_up(holder *h, bool all) {
    for (int64_t i = 0; i < h->m->n_things; i++) {
        const bool *told = h->m->things[i].accumulated;
        bool is_told = false;
        for (int v = 0; v < MS__N_VARIANTS; v++) is_told = is_told || told[v];
        if (all || !is_told) add(h, i);
    }
}

static void let_go(holder *h, int64_t index) {
    if (h->held[index]) h->bytes -= h->m->things[index].n_bytes;
    h->held[index] = false;
}

static void let_go_of(holder *h, uint32_t category) {
    for (int64_t i = 0; i < h->m->n_things; i++)
        if (h->m->things[i].category == category) let_go(h, i);
}

/* Count one step from the trace. Returns the number of operations. */
static int64_t count_step(holder *h, int variant, int step, uint32_t flags) {
    const script *s = &h->m->traces[variant];
    int64_t phase = MS_PHASE_SETUP, n_ops = 0;
    h->peak = h->bytes;
    for (int64_t i = 0; i < s->n_events; i++) {
        const ms_trace_event *e = &s->events[i];
        if (e->kind == MS_TRACE_PHASE) phase = e->a;
        if (!is_played(phase, step, flags)) continue;
        n_ops += e->kind == MS_TRACE_OP;
        if (e->kind == MS_TRACE_OP) add_up(h, false);
        if (e->kind == MS_TRACE_GRADIENT) add(h, h->m->thing_of[variant][e->a]);
        if (e->kind != MS_TRACE_ALLOC && e->kind != MS_TRACE_FREE) continue;
        int64_t index = h->m->thing_of[variant][e->a];
        bool optimizer = phase == MS_PHASE_OPTIMIZER_FIRST || phase == MS_PHASE_OPTIMIZER;
        bool none = optimizer && flags & MS_SIMULATE_FUSED && h->m->things[index].category == MS_CATEGORY_TEMPORARY;
        if (e->kind == MS_TRACE_ALLOC && !none) hold(h, index);
        if (e->kind == MS_TRACE_FREE) let_go(h, index);
    }
    add_up(h, true);
    return n_ops;
}

static count count_trace(const model *m, int variant, uint32_t flags) {
    count c = {0};
    static holder h;
    h = (holder){.m = m};
    (void)count_step(&h, variant, -1, flags);
    c.start_bytes = h.bytes;
    for (int64_t i = 0; i < m->n_things && flags & MS_SIMULATE_RESUMED; i++)
        if (m->things[i].category == MS_CATEGORY_OPTIMIZER) hold(&h, i);
    for (int step = 0; step < N_STEPS; step++) {
        c.n_ops = count_step(&h, variant, step, flags);
        c.steady_peak = h.peak;
        if (step == 0) c.first_peak = h.peak;
        if (!(flags & MS_SIMULATE_KEEP_GRADIENTS)) let_go_of(&h, MS_CATEGORY_GRADIENT);
        let_go_of(&h, MS_CATEGORY_ACTIVATION);
        let_go_of(&h, MS_CATEGORY_TEMPORARY);
        c.idle_bytes = h.bytes;
    }
    return c;
}

/* ---- Laws ---- */

static ms_simulation *simulate(const ms_profile *profile, const int32_t *actions, int64_t capability, uint32_t flags) {
    const ms_rates rates = {.struct_bytes = sizeof rates,
                            .capability = capability,
                            .fp32_gflops = 1000,
                            .memory_mb_per_s = 1000,
                            .launch_ns = 10,
                            .dispatch_ns = 10};
    const ms_simulation_request request = {.struct_bytes = sizeof request,
                                           .profile = profile,
                                           .actions = actions,
                                           .n_actions = profile->n_units,
                                           .device = DEVICE_OF(&rates, 132),
                                           .flags = flags};
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    return sim;
}

static ms_simulation_summary summary_of(const ms_simulation *sim) {
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    CHECK_STATUS(ms_simulation_get_summary(sim, &summary), MS_OK);
    return summary;
}

static ms_simulation_segment point_of(const ms_simulation *sim, int64_t index) {
    ms_simulation_segment point = {.struct_bytes = sizeof point};
    CHECK_STATUS(ms_simulation_get_segment(sim, index, &point), MS_OK);
    return point;
}

TEST(a_plan_of_one_kind_plays_the_trace) {
    static const uint32_t flags[] = {0, MS_SIMULATE_RESUMED, MS_SIMULATE_KEEP_GRADIENTS, MS_SIMULATE_FUSED,
                                     MS_SIMULATE_RESUMED | MS_SIMULATE_KEEP_GRADIENTS | MS_SIMULATE_FUSED};
    static model m;
    for (int64_t i = 0; i < n_cases(); i++) {
        start_case(i);
        random_model(&m);
        for (int64_t t = 0; t < m.n_things; t++) find_category(&m.things[t]);
        ms_profile *profile = profile_of(&m);
        bool runs = false; /* a unit */
        for (uint32_t s = 0; s < profile->step->n_segments; s++) runs |= profile->step->segments[s].unit >= 0;
        for (int j = 0; j < 5 * MS__N_VARIANTS; j++) {
            int variant = runs ? j % MS__N_VARIANTS : MS__PLAIN;
            int32_t action = variant == MS__PLAIN        ? MS_ACTION_KEEP
                             : variant == MS__RECOMPUTED ? MS_ACTION_RECOMPUTE
                                                         : MS_ACTION_RECOMPUTE_POINTWISE;
            const int32_t actions[MAX_UNITS] = {action, action, action, action, action};
            count wanted = count_trace(&m, variant, flags[j / MS__N_VARIANTS]);
            ms_simulation *sim = simulate(profile, actions, 0, flags[j / MS__N_VARIANTS]);
            ms_simulation_summary s = summary_of(sim);
            LAW(s.start_bytes == wanted.start_bytes);
            LAW(s.first_peak_bytes == wanted.first_peak ||
                (variant == MS__POINTWISE && s.first_peak_bytes > wanted.first_peak)); /* comparisons */
            LAW(s.steady_peak_bytes == wanted.steady_peak);
            LAW(s.idle_bytes == wanted.idle_bytes);
            LAW(s.n_ops == wanted.n_ops);
            ms_simulation_destroy(sim);
        }
        ms_profile_destroy(profile);
    }
}

TEST(a_file_brings_the_step_back) {
    static model m;
    for (int64_t i = 0; i < n_cases(); i++) {
        start_case(i);
        random_model(&m);
        ms_profile *profile = profile_of(&m), *back = NULL;
        char *text = NULL, *again = NULL;
        CHECK_STATUS(ms_profile_to_json(profile, &text), MS_OK);
        CHECK_STATUS(ms_profile_from_json(text, strlen(text), &back), MS_OK);
        check_same_step(profile->step, back->step);
        CHECK_STATUS(ms_profile_to_json(back, &again), MS_OK);
        LAW(strcmp(text, again) == 0);
        ms_free(text);
        ms_free(again);
        ms_profile_destroy(profile);
        ms_profile_destroy(back);
    }
}

static void check_parts(const int64_t parts[MS_N_CATEGORIES], int64_t sum) {
    for (int i = 0; i < MS_N_CATEGORIES; i++) {
        LAW(parts[i] >= 0);
        sum -= parts[i];
    }
    LAW(sum == 0);
}

/* For any plan, parts add up, no segment is above the peak, and the allocator takes at least what is requested. */
TEST(simulations_of_any_plan) {
    static model m;
    for (int64_t i = 0; i < n_cases(); i++) {
        start_case(i);
        random_model(&m);
        ms_profile *profile = profile_of(&m);
        int32_t actions[MAX_UNITS];
        for (int u = 0; u < MAX_UNITS; u++) actions[u] = one_in(2) ? MS_ACTION_RECOMPUTE : MS_ACTION_KEEP;
        uint32_t flags = (uint32_t)up_to(63) & ~(uint32_t)MS_SIMULATE_ALLOCATOR;
        int64_t capability = one_in(3) ? 0 : 90, at_peak = 0;
        ms_simulation *sim = simulate(profile, actions, capability, flags);
        ms_simulation *with = simulate(profile, actions, capability, flags | MS_SIMULATE_ALLOCATOR);
        ms_simulation_summary s = summary_of(sim), t = summary_of(with);
        check_parts(s.parts, s.steady_peak_bytes);
        check_parts(t.parts, t.steady_peak_bytes - t.unused_bytes);
        LAW(t.steady_peak_bytes >= s.steady_peak_bytes && t.reserved_bytes >= t.steady_peak_bytes);
        LAW(t.idle_bytes >= s.idle_bytes && s.idle_bytes <= s.steady_peak_bytes);
        LAW(s.step_ns == t.step_ns && s.n_ops == t.n_ops);
        for (int64_t p = 0; p < ms_simulation_count_segments(sim); p++) {
            ms_simulation_segment point = point_of(sim, p);
            LAW(point.peak_bytes <= s.steady_peak_bytes && point.end_bytes <= point.peak_bytes);
            check_parts(point.parts, point.peak_bytes);
            at_peak += point.peak_bytes == s.steady_peak_bytes;
        }
        LAW(at_peak > 0 || s.peak_phase == MS_PHASE_SETUP);
        ms_simulation_destroy(sim);
        ms_simulation_destroy(with);
        ms_profile_destroy(profile);
    }
}

SUITE(step_prop, CASE(a_plan_of_one_kind_plays_the_trace), CASE(a_file_brings_the_step_back),
      CASE(simulations_of_any_plan));

int main(int argc, char **argv) {
    static const test_suite *const suites[] = {&step_prop_suite};
    return test_main(suites, 1, 0, argc, argv);
}
