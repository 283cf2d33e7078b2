/* test_watched.c - what is derived from the trace of a first step: the plain step, and later optimizer steps.
 *
 * Most tests write a step as it is watched and the step that should come out, side by side.
 */
#include "profile/trace.h"
#include "steps.h"

#include <string.h>

static script seen, wanted;

/* An operation that uses these storages. */
static void use(script *s, int64_t a, int64_t b) {
    compute(s, "aten.relu.default");
    for (int i = 0; i < (b < 0 ? 1 : 2); i++) {
        input(s, 1, 1);
        s->operands[s->n_operands - 1].storage = i == 0 ? a : b;
    }
}

/* Both scripts start with storage 0, a parameter, in the forward of unit 0. */
static void begin(void) {
    script *both[] = {&seen, &wanted};
    for (int i = 0; i < 2; i++) {
        *both[i] = (script){0};
        (void)take_as(both[i], MS_CATEGORY_PARAMETER, 512);
        in_phase(both[i], MS_PHASE_FORWARD);
        in_unit(both[i], 0);
    }
}

/* A storage that is allocated in both. */
static int64_t take_both(int64_t n_bytes) {
    (void)take(&wanted, n_bytes);
    return take(&seen, n_bytes);
}

/* A storage that only the step that was seen has: the other one must not use its number. */
static int64_t take_seen(int64_t n_bytes) {
    wanted.kinds[wanted.n_storages++] = MS_CATEGORY_ACTIVATION;
    return take(&seen, n_bytes);
}

static void use_both(int64_t a, int64_t b) {
    use(&seen, a, b);
    use(&wanted, a, b);
}

static void backward_both(int64_t unit) {
    in_phase(&seen, MS_PHASE_BACKWARD);
    in_phase(&wanted, MS_PHASE_BACKWARD);
    in_unit(&seen, unit);
    in_unit(&wanted, unit);
}

/* The marks of a recomputation, before and after it. */
static void mark_both(int64_t unit) {
    repeating(&seen, unit);
    repeating(&wanted, unit);
}

static void check_events(const ms_trace *found, const script *s) {
    for (int64_t i = 0; i < found->n_events && i < s->n_events; i++) {
        ms_trace_event a = found->events[i], b = s->events[i];
        CHECK_EQ_INT(a.kind, b.kind);
        if (a.kind == MS_TRACE_OP) {
            const ms_trace_op *x = &found->ops[a.a], *y = &s->ops[b.a];
            CHECK_EQ_STR(found->names[x->name], s->names[y->name]);
            CHECK_EQ_INT(x->n_inputs, y->n_inputs);
            for (int64_t j = 0; j < x->n_inputs; j++)
                CHECK_EQ_INT(found->operands[x->first + j].storage, s->operands[y->first + j].storage);
        } else {
            CHECK_EQ_INT(a.a, b.a);
            CHECK_EQ_INT(a.b, b.b);
        }
    }
    CHECK_EQ_INT(found->n_events, s->n_events);
}

static void check_plain(void) {
    ms__arena arena = {0};
    ms_trace trace = trace_of(&seen), plain;
    CHECK_STATUS(ms__trace_check(&trace), MS_OK);
    CHECK_STATUS(ms__trace_without_recomputation(&arena, &trace, &plain), MS_OK);
    CHECK_STATUS(ms__trace_check(&plain), MS_OK);
    check_events(&plain, &wanted);
    ms__arena_free(&arena);
}

/* ---- Storages that are saved ---- */

TEST(saved_in_forward_until_backward_has_used_it) {
    begin();
    use_both(0, -1);
    int64_t s = take_both(1024), unsaved = take_both(2048);
    save(&seen, s, 0);
    give(&seen, unsaved);
    give(&wanted, unsaved);
    give(&seen, s);
    backward_both(0);
    mark_both(0);
    use(&seen, 0, -1);
    int64_t r = take_seen(1024), other = take_seen(2048);
    save(&seen, r, 0);
    give(&seen, other);
    mark_both(-1);
    use(&seen, r, 0);
    use(&wanted, s, 0);
    give(&seen, r);
    give(&wanted, s);
    check_plain();
}

/* Autograd frees what a node saved after all operations of the node, with the gradient that the node was given; what
 * was recomputed for it goes after the operation that uses it. A gradient that is used elsewhere tells nothing. */
static void check_node(bool is_last_use) {
    begin();
    use_both(0, -1);
    int64_t s = take_both(1024);
    save(&seen, s, 0);
    give(&seen, s);
    backward_both(0);
    int64_t gradient = take_both(512);
    mark_both(0);
    int64_t r = take_seen(1024);
    save(&seen, r, 0);
    mark_both(-1);
    use(&seen, gradient, r);
    use(&wanted, gradient, s);
    int64_t other = take_both(2048);
    give(&seen, r);
    if (!is_last_use) give(&wanted, s);
    use_both(0, -1); /* for the gradient of a bias */
    give(&seen, other);
    give(&wanted, other);
    if (!is_last_use) use_both(0, -1);
    give(&seen, gradient);
    if (is_last_use) give(&wanted, s);
    give(&wanted, gradient);
    check_plain();
}

TEST(what_a_node_saved_ends_with_the_node) {
    check_node(true);
    check_node(false);
}

/* Compiled code is one node, which lets go of what it saved while it runs. */
TEST(what_compiled_code_lets_go_of_ends_at_once) {
    begin();
    use_both(0, -1);
    int64_t s = take_both(1024);
    save(&seen, s, 0);
    give(&seen, s);
    backward_both(0);
    int64_t gradient = take_both(512);
    mark_both(0);
    int64_t r = take_seen(1024);
    save(&seen, r, 0);
    mark_both(-1);
    use(&seen, gradient, r);
    use(&wanted, gradient, s);
    say(&seen, MS_TRACE_FREE, r, 1);
    give(&wanted, s);
    (void)take_both(2048);
    give(&seen, gradient);
    give(&wanted, gradient);
    check_plain();
}

/* A gradient that stays tells nothing, even if nothing is freed after it. */
TEST(what_a_node_saved_ends_before_a_gradient_that_stays) {
    begin();
    use_both(0, -1);
    int64_t s = take_both(1024);
    save(&seen, s, 0);
    give(&seen, s);
    backward_both(0);
    int64_t gradient = take_both(512);
    mark_both(0);
    int64_t r = take_seen(1024);
    save(&seen, r, 0);
    mark_both(-1);
    use(&seen, gradient, r);
    use(&wanted, gradient, s);
    give(&seen, r);
    give(&wanted, s);
    check_plain();
}

/* One storage, saved by two units: unit 0 is recomputed last. The second save of unit 0 is recomputed twice. */
TEST(the_last_of_its_saves_counts) {
    begin();
    use_both(0, -1);
    int64_t s = take_both(1024);
    save(&seen, s, 0);
    save(&seen, s, 1);
    in_unit(&seen, 1);
    in_unit(&wanted, 1);
    use_both(s, -1);
    save(&seen, s, 2);
    give(&seen, s);
    backward_both(1);
    for (int64_t i = 0; i < 3; i++) {
        int64_t unit = i == 0 ? 1 : 0;
        in_unit(&seen, unit);
        in_unit(&wanted, unit);
        mark_both(unit);
        int64_t r = take_seen(1024);
        if (i > 0) save(&seen, r, 0);
        save(&seen, r, i == 0 ? 2 : 1);
        mark_both(-1);
        use(&seen, r, r);
        use(&wanted, s, s);
        give(&seen, r);
    }
    give(&wanted, s);
    check_plain();
}

TEST(a_save_that_is_not_recomputed_keeps_nothing) {
    begin();
    use_both(0, -1);
    int64_t s = take_both(1024);
    save(&seen, s, 0);
    give(&seen, s);
    give(&wanted, s);
    backward_both(0);
    check_plain();
}

/* What stays after the step stays in the plain one, and so does the twin of what stays. */
TEST(what_is_never_freed) {
    begin();
    int64_t buffer = take_both(512), s = take_both(1024);
    save(&seen, buffer, 0);
    save(&seen, s, 1);
    save(&seen, -1, 2);
    give(&seen, s);
    backward_both(0);
    mark_both(0);
    int64_t copy = take_seen(512), r = take_seen(1024), host = take_seen(2048);
    save(&seen, copy, 0);
    save(&seen, r, 1);
    save(&seen, host, 2);
    mark_both(-1);
    use(&seen, copy, host);
    use(&wanted, buffer, -1);
    input(&wanted, 1, 1);
    wanted.operands[wanted.n_operands - 1].storage = -1;
    give(&seen, copy);
    give(&seen, host);
    check_plain();
}

/* Buffers are copied before a unit runs, so that it can be recomputed. */
TEST(preparations_are_left_out) {
    begin();
    mark_both(0);
    use(&seen, 0, -1);
    int64_t copy = take_seen(512);
    mark_both(-1);
    use_both(0, -1);
    give(&seen, take_both(1024));
    give(&wanted, copy + 1);
    backward_both(0);
    mark_both(0);
    use(&seen, copy, -1);
    mark_both(-1);
    use_both(0, -1);
    give(&seen, copy);
    check_plain();
}

/* ---- Inputs of units ---- */

/* Unit 0 makes a storage, unit 1 takes it as its input, and keeps it until its backward is done. */
static int64_t begin_input(bool is_saved) {
    begin();
    use_both(0, -1);
    int64_t s = take_both(1024);
    in_unit(&seen, 1);
    in_unit(&wanted, 1);
    use_both(s, -1);
    if (is_saved) save(&seen, s, 0);
    return s;
}

static void recompute_input(int64_t s, bool is_saved) {
    backward_both(1);
    mark_both(1);
    use(&seen, s, -1);
    if (is_saved) save(&seen, s, 0);
    mark_both(-1);
}

/* The variable that holds it gets its next value when the unit has returned. */
TEST(an_input_that_is_not_saved_ends_before_the_next_unit) {
    int64_t s = begin_input(false);
    int64_t output = take_both(512);
    for (int64_t unit = -1; unit <= 2; unit += 3) {
        in_unit(&seen, unit);
        in_unit(&wanted, unit);
    }
    give(&wanted, s);
    use_both(output, -1);
    recompute_input(s, false);
    use_both(output, -1);
    give(&seen, s);
    check_plain();
}

TEST(an_input_that_is_saved_ends_with_its_last_use) {
    int64_t s = begin_input(true);
    recompute_input(s, true);
    int64_t gradient = take_both(512);
    use_both(s, gradient);
    (void)take_both(256);
    give(&seen, gradient);
    give(&wanted, s); /* at the same place; in the order of their numbers */
    give(&wanted, gradient);
    use_both(0, -1);
    give(&seen, s);
    check_plain();
}

TEST(an_input_whose_use_is_not_seen_ends_as_it_does) {
    int64_t s = begin_input(true);
    recompute_input(s, true);
    use_both(0, -1);
    give(&seen, s);
    give(&wanted, s);
    check_plain();
}

/* Somebody else holds it: it is not freed in the backward of the unit that takes it. */
TEST(an_input_that_others_hold_ends_as_it_does) {
    int64_t s = begin_input(false);
    recompute_input(s, false);
    in_unit(&seen, -1);
    in_unit(&wanted, -1);
    give(&seen, s);
    give(&wanted, s);
    check_plain();
}

/* ---- Storages that are recomputed, not saved, and used ---- */

TEST(one_that_forward_made_at_the_same_place) {
    begin();
    int64_t first = take_both(1024);
    save(&seen, first, 0);
    use_both(0, -1);
    int64_t s = take_both(2048);
    give(&seen, s);
    backward_both(0);
    mark_both(0);
    int64_t r = take_seen(1024);
    save(&seen, r, 0);
    use(&seen, 0, -1);
    int64_t again = take_seen(2048);
    mark_both(-1);
    use(&seen, again, r);
    use(&wanted, s, first);
    give(&seen, again);
    give(&wanted, s);
    check_plain();
}

TEST(one_that_forward_did_not_make) {
    begin();
    int64_t first = take_both(1024);
    save(&seen, first, 0);
    use_both(0, -1);
    give(&seen, take_both(2048));
    give(&wanted, first + 1);
    backward_both(0);
    mark_both(0);
    int64_t r = take_seen(1024);
    save(&seen, r, 0);
    int64_t again = take_both(4096);
    mark_both(-1);
    use_both(again, -1);
    give(&seen, again);
    give(&wanted, again);
    check_plain();
}

/* ---- The optimizer step ---- */

static void check_optimizer(void) {
    ms__arena arena = {0};
    ms_trace trace = trace_of(&seen), steady;
    CHECK_STATUS(ms__trace_check(&trace), MS_OK);
    CHECK_STATUS(ms__trace_with_steady_optimizer(&arena, &trace, &steady), MS_OK);
    CHECK_STATUS(ms__trace_check(&steady), MS_OK);
    check_events(&steady, &wanted);
    ms__arena_free(&arena);
}

TEST(later_optimizer_steps_make_no_state) {
    begin();
    in_phase(&seen, MS_PHASE_OPTIMIZER_FIRST);
    in_phase(&wanted, MS_PHASE_OPTIMIZER_FIRST);
    compute(&seen, "aten.lift_fresh.default"); /* the number of steps */
    compute(&wanted, "aten.lift_fresh.default");
    compute(&seen, "aten.zeros_like.default");
    compute(&wanted, "aten.zeros_like.default");
    int64_t state = take_both(512);
    compute(&seen, "aten.lift_fresh.default"); /* a constant */
    compute(&wanted, "aten.lift_fresh.default");
    use_both(state, 0);
    int64_t temporary = take_both(256);
    use_both(temporary, -1);
    int64_t late = take_both(128);
    give(&seen, temporary);
    give(&wanted, temporary);
    say(&seen, MS_TRACE_PHASE, MS_PHASE_END, 0);
    give(&seen, late);
    say(&wanted, MS_TRACE_PHASE, MS_PHASE_OPTIMIZER, 0);
    compute(&wanted, "aten.lift_fresh.default");
    use(&wanted, state, 0);
    int64_t again = take(&wanted, 256);
    use(&wanted, again, -1);
    int64_t late_again = take(&wanted, 128);
    give(&wanted, again);
    say(&wanted, MS_TRACE_PHASE, MS_PHASE_END, 0);
    give(&wanted, late);
    give(&wanted, late_again);
    check_optimizer();
}

TEST(optimizer_steps_that_are_known_stay) {
    two_units(&seen, true);
    two_units(&wanted, true);
    check_optimizer();
    begin();
    use_both(0, -1);
    check_optimizer();
}

/* ---- Profiles ---- */

TEST(one_trace_is_as_good_as_two) {
    ms_profile *both = two_unit_profile(), *watched = NULL;
    two_watched_units(&seen);
    ms_trace trace = trace_of(&seen);
    CHECK_STATUS(try_watched_profile(&trace, NULL, &watched), MS_OK);
    check_same_step(both->step, watched->step);
    CHECK_EQ_INT(watched->resident_bytes, both->resident_bytes);
    CHECK_EQ_INT(watched->outside_bytes, both->outside_bytes);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(watched->units[i].saved_bytes, both->units[i].saved_bytes);
        CHECK_EQ_INT(watched->units[i].input_bytes, both->units[i].input_bytes);
    }
    ms_profile_destroy(both);
    ms_profile_destroy(watched);
}

/* A recomputation that does nothing which a trace shows is a turn of its unit all the same. */
TEST(units_take_turns_as_they_were_seen) {
    ms_profile *profile = NULL;
    begin();
    use(&seen, 0, -1);
    in_phase(&seen, MS_PHASE_BACKWARD);
    in_unit(&seen, 0);
    repeating(&seen, 0);
    give(&seen, take(&seen, 512));
    repeating(&seen, -1);
    in_unit(&seen, 1);
    use(&seen, 0, -1);
    ms_trace trace = trace_of(&seen);
    CHECK_STATUS(try_watched_profile(&trace, NULL, &profile), MS_OK);
    CHECK_EQ_INT(profile->step->n_segments, 4);
    CHECK_EQ_INT(profile->step->segments[2].unit, 0);
    CHECK_EQ_INT(profile->step->segments[2].n[MS__PLAIN], 0);
    CHECK_EQ_INT(profile->step->segments[2].n[MS__RECOMPUTED], 2);
    ms_profile_destroy(profile);
}

/* ---- What is refused ---- */

static void check_refused(const ms_trace *trace, const ms_trace *plain) {
    ms_profile *profile = NULL;
    CHECK_STATUS(try_watched_profile(trace, plain, &profile), MS_E_INVALID);
    CHECK(profile == NULL);
    CHECK(ms_error_message()[0] != '\0');
}

TEST(malformed_requests) {
    two_watched_units(&seen);
    ms_trace trace = trace_of(&seen), old = trace, bad = trace;
    ms_profile *profile = NULL;
    old.struct_bytes = 8;
    bad.kinds = NULL;
    check_refused(NULL, NULL);
    check_refused(NULL, &trace);
    check_refused(&trace, &trace);
    check_refused(&old, NULL);
    check_refused(&bad, NULL);
    const ms_profile_request request = {.struct_bytes = sizeof request, .recomputed = &trace};
    CHECK_STATUS(ms_profile_from_watched_trace(NULL, &profile), MS_E_INVALID);
    CHECK_STATUS(ms_profile_from_watched_trace(&request, NULL), MS_E_INVALID);
}

static void check_save_refused(int64_t n_before, int64_t storage, int64_t number, int64_t unit) {
    begin();
    for (int64_t i = 0; i < n_before; i++) save(&seen, 0, i);
    if (unit >= 0) repeating(&seen, unit);
    save(&seen, storage, number);
    ms_trace trace = trace_of(&seen);
    check_refused(&trace, NULL);
}

TEST(malformed_saves) {
    check_save_refused(0, 0, 1, -1);
    check_save_refused(1, 0, 0, -1);
    check_save_refused(1, 0, -1, -1);
    check_save_refused(1, 0, INT64_MAX, -1);
    check_save_refused(1, -2, 1, -1);
    check_save_refused(1, 1, 1, -1);
    check_save_refused(0, 0, 0, 0);
    check_save_refused(2, 0, 2, 0);
    check_save_refused(2, 0, INT64_MIN, 0);
}

/* Every event with every field changed: a profile, or an error, and nothing else. */
TEST(changed_traces) {
    static const int64_t values[] = {INT64_MIN, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 1024, INT64_MAX};
    const size_t n_values = sizeof values / sizeof *values;
    two_watched_units(&wanted);
    for (size_t i = 0; i < (size_t)wanted.n_events * 3 * n_values; i++) {
        memcpy(&seen, &wanted, sizeof seen);
        ms_trace_event *event = &seen.events[i / 3 / n_values];
        *(i / n_values % 3 == 0 ? &event->kind : i / n_values % 3 == 1 ? &event->a : &event->b) = values[i % n_values];
        ms_trace trace = trace_of(&seen);
        ms_profile *profile = NULL;
        ms_status status = try_watched_profile(&trace, NULL, &profile);
        CHECK(status == MS_OK || status == MS_E_INVALID || status == MS_E_MISMATCH || status == MS_E_LIMIT);
        CHECK((status == MS_OK) == (profile != NULL));
        ms_profile_destroy(profile);
    }
}

SUITE(watched, CASE(saved_in_forward_until_backward_has_used_it), CASE(what_a_node_saved_ends_with_the_node),
      CASE(what_compiled_code_lets_go_of_ends_at_once), CASE(what_a_node_saved_ends_before_a_gradient_that_stays),
      CASE(the_last_of_its_saves_counts), CASE(a_save_that_is_not_recomputed_keeps_nothing), CASE(what_is_never_freed),
      CASE(preparations_are_left_out), CASE(an_input_that_is_not_saved_ends_before_the_next_unit),
      CASE(an_input_that_is_saved_ends_with_its_last_use), CASE(an_input_whose_use_is_not_seen_ends_as_it_does),
      CASE(an_input_that_others_hold_ends_as_it_does), CASE(one_that_forward_made_at_the_same_place),
      CASE(one_that_forward_did_not_make), CASE(later_optimizer_steps_make_no_state),
      CASE(optimizer_steps_that_are_known_stay), CASE(one_trace_is_as_good_as_two),
      CASE(units_take_turns_as_they_were_seen), CASE(malformed_requests), CASE(malformed_saves), CASE(changed_traces));
