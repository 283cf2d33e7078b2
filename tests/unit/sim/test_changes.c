/* test_changes.c - results that are kept, and tensors that leave the device, in a step whose bytes are known
 * (layered.h).
 */
#include <string.h>

#include "devices.h"
#include "layered.h"
#include "runner.h"
#include "sim/sim.h"

typedef struct result {
    ms_simulation_summary summary;
    int64_t ends[4 * MAX_LAYERS], peaks[4 * MAX_LAYERS]; /* of segments */
    int64_t n;
} result;

static result play(const ms_profile *profile, const int32_t *actions, const ms_rates *rates) {
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = profile,
                                     .actions = actions,
                                     .n_actions = profile->n_units,
                                     .device = DEVICE_OF(rates, 0)};
    result r = {.summary = {.struct_bytes = sizeof r.summary}};
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    CHECK_STATUS(ms_simulation_get_summary(sim, &r.summary), MS_OK);
    for (int64_t i = 0; i < ms_simulation_count_segments(sim); i++) {
        ms_simulation_segment segment = {.struct_bytes = sizeof segment};
        CHECK_STATUS(ms_simulation_get_segment(sim, i, &segment), MS_OK);
        r.ends[i] = segment.end_bytes;
        r.peaks[i] = segment.peak_bytes;
        r.n = i + 1;
    }
    ms_simulation_destroy(sim);
    return r;
}

/* Copies take no time. */
static ms_rates fast_link(void) {
    ms_rates rates = SMALL_RATES(0);
    rates.to_device_mb_per_s = rates.from_device_mb_per_s = 1000000000;
    return rates;
}

/* Every layer with the same action, on a CPU with a fast link. */
static result play_all(int n_layers, twist odd, int32_t action) {
    ms_profile *profile = layered_profile(n_layers, odd);
    ms_rates rates = fast_link();
    int32_t actions[MAX_LAYERS];
    for (int u = 0; u < n_layers; u++) actions[u] = action;
    result r = play(profile, actions, &rates);
    ms_profile_destroy(profile);
    return r;
}

/* Segments: setup, the layers, the loss, the layers backward. */
enum { SETUP, FIRST_LAYER };

static int64_t end_of_forward(const result *r, int n_layers) { return r->ends[FIRST_LAYER + n_layers - 1]; }

/* ---- Kept results ---- */

/* After forward: a parameter and an output for each layer; and the products where they are kept. */
TEST(products_are_held) {
    const int n = 3;
    result whole = play_all(n, NOTHING, MS_ACTION_RECOMPUTE);
    result products = play_all(n, NOTHING, MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS);
    result attention = play_all(n, NOTHING, MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION);
    CHECK_EQ_INT(end_of_forward(&whole, n), MIB + n * MIB);
    CHECK_EQ_INT(end_of_forward(&products, n), MIB + n * MIB + n * 2 * MIB);
    CHECK(memcmp(attention.ends, whole.ends, sizeof whole.ends) == 0);
    CHECK_EQ_INT(products.ends[products.n - 1], whole.ends[whole.n - 1]);
}

/* P goes with the tensor that takes its place in backward; Q, which the recomputation alone needs, when that is over.
 */
TEST(they_go_when_they_were_used) {
    ms_profile *profile = layered_profile(1, NOTHING);
    const ms__step *step = profile->step;
    ms__arena arena = {0};
    ms__changes changes;
    CHECK_STATUS(ms__changes_make(&arena, step, &changes), MS_OK);
    int n_after = 0, n_kept = 0, n_over = 0;
    for (uint32_t k = 0; k < step->n_keys; k++) {
        n_kept += changes.kept[k] != 0;
        for (int32_t other = changes.first_after[k]; other >= 0; other = changes.next_kept[other], n_after++)
            CHECK_EQ_INT(ms__step_key_bytes(step, k), ms__step_key_bytes(step, (uint32_t)other));
    }
    for (uint32_t e = 0; e < step->n_events; e++)
        for (int32_t other = changes.first_over[e]; other >= 0; other = changes.next_kept[other], n_over++)
            CHECK_EQ_INT(step->events[e].kind, MS__OPERATION); /* the first one after it */
    CHECK_EQ_INT(n_kept, 2);
    CHECK_EQ_INT(n_after, 1);
    CHECK_EQ_INT(n_over, 1);
    CHECK_EQ_INT(changes.units[0].kept_bytes[MS_KEEP_PRODUCTS], 2 * MIB);
    CHECK_EQ_INT(changes.units[0].kept_bytes[MS_KEEP_ATTENTION], 0);
    ms__arena_free(&arena);
    ms_profile_destroy(profile);
}

/* The two products of a layer take no time to compute; the host finds their results, 1000 ns each. */
TEST(they_are_not_computed_again) {
    const int n = 2;
    result kept = play_all(n, NOTHING, MS_ACTION_KEEP), whole = play_all(n, NOTHING, MS_ACTION_RECOMPUTE);
    result products = play_all(n, NOTHING, MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS);
    int64_t product_ns = 2 * 100 * 100 * 100 / 10; /* 10 operations in a nanosecond */
    CHECK_EQ_INT(whole.summary.step_ns - products.summary.step_ns, n * 2 * (product_ns + 100 - 1000));
    CHECK(products.summary.step_ns > kept.summary.step_ns);
    CHECK_EQ_INT(products.summary.n_ops, whole.summary.n_ops);
}

/* What the executor does not keep is not kept here: products without marks, and with copies of their own; but copies
 * of attention that are small enough are held with it. */
TEST(what_is_not_kept) {
    static const twist odd[] = {NO_MARKS, OTHER_RECOMPUTATION};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        result whole = play_all(2, odd[i], MS_ACTION_RECOMPUTE);
        result both = play_all(2, odd[i], MS_ACTION_RECOMPUTE_EXCEPT_BOTH);
        CHECK(memcmp(whole.ends, both.ends, sizeof whole.ends) == 0);
        CHECK_EQ_INT(whole.summary.step_ns, both.summary.step_ns);
    }
    result whole = play_all(2, COPIES, MS_ACTION_RECOMPUTE);
    result both = play_all(2, COPIES, MS_ACTION_RECOMPUTE_EXCEPT_BOTH);
    CHECK_EQ_INT(end_of_forward(&both, 2) - end_of_forward(&whole, 2), 2 * MIB); /* Q, whose copy is not saved */
    whole = play_all(2, SMALL_COPIES, MS_ACTION_RECOMPUTE);
    both = play_all(2, SMALL_COPIES, MS_ACTION_RECOMPUTE_EXCEPT_BOTH);
    CHECK_EQ_INT(end_of_forward(&both, 2) - end_of_forward(&whole, 2), 2 * (2 * MIB + MIB / 4));
}

/* In the first step nothing is kept. */
TEST(the_first_step_is_a_check) {
    result whole = play_all(1, NOTHING, MS_ACTION_RECOMPUTE);
    result products = play_all(1, NOTHING, MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS);
    int64_t outputs = MIB, all = MIB + 2 * MIB + MIB + MIB + MIB / 2; /* P, R, Q, D, M */
    CHECK_EQ_INT(products.summary.first_peak_bytes, whole.summary.first_peak_bytes);
    CHECK_EQ_INT(products.summary.steady_peak_bytes, outputs + all + MIB); /* in forward, with the output */
}

/* ---- Offloading ---- */

/* What a layer saves is gone when two more have run, or at once. */
TEST(tensors_leave) {
    const int n = 6;
    result kept = play_all(n, NOTHING, MS_ACTION_KEEP), later = play_all(n, NOTHING, MS_ACTION_OFFLOAD);
    result now = play_all(n, NOTHING, MS_ACTION_OFFLOAD_BLOCKING);
    for (int u = 0; u < n; u++) {
        int gone = u < MS_OFFLOAD_LEAVING ? 0 : u - MS_OFFLOAD_LEAVING + 1;
        CHECK_EQ_INT(kept.ends[FIRST_LAYER + u] - later.ends[FIRST_LAYER + u], gone * SAVED);
        CHECK_EQ_INT(kept.ends[FIRST_LAYER + u] - now.ends[FIRST_LAYER + u], (u + 1) * SAVED);
    }
    CHECK_EQ_INT(later.ends[later.n - 1], kept.ends[kept.n - 1]);
    CHECK_EQ_INT(later.summary.host_bytes, n * SAVED);
}

/* Backward of a layer has its own tensors, and fetches those of the layer before. */
TEST(tensors_come_back) {
    const int n = 6;
    result now = play_all(n, NOTHING, MS_ACTION_OFFLOAD_BLOCKING), later = play_all(n, NOTHING, MS_ACTION_OFFLOAD);
    int first = FIRST_LAYER + n + 1; /* the last layer, backward */
    for (int i = 0; i < n; i++) {
        int64_t outputs = MIB + (n - 1 - i) * MIB, before = i + 1 < n ? SAVED : 0;
        CHECK_EQ_INT(now.peaks[first + i], outputs + SAVED);
        /* the last two were never gone; of the others, one is there early */
        int64_t early = i == 0 ? 2 * SAVED : before;
        CHECK_EQ_INT(later.peaks[first + i], outputs + SAVED + (i == 0 ? early - SAVED : early));
    }
}

/* A layer that is kept fetches the offloaded one before it. */
TEST(kept_layers_fetch_for_others) {
    static const int32_t actions[] = {MS_ACTION_OFFLOAD, MS_ACTION_KEEP, MS_ACTION_KEEP, MS_ACTION_KEEP,
                                      MS_ACTION_KEEP};
    const int n = 5;
    ms_profile *profile = layered_profile(n, NOTHING);
    ms_rates rates = fast_link();
    const int32_t all_kept[MAX_LAYERS] = {0};
    result mixed = play(profile, actions, &rates), kept = play(profile, all_kept, &rates);
    int first = FIRST_LAYER + n + 1;
    CHECK_EQ_INT(kept.peaks[first] - mixed.peaks[first], SAVED);         /* layer 4 */
    CHECK_EQ_INT(kept.peaks[first + 1] - mixed.peaks[first + 1], SAVED); /* layer 3 */
    CHECK_EQ_INT(kept.peaks[first + 2] - mixed.peaks[first + 2], SAVED); /* layer 2 */
    CHECK_EQ_INT(kept.peaks[first + 3], mixed.peaks[first + 3]);         /* layer 1 fetches */
    ms_profile_destroy(profile);
}

/* What a recomputed layer starts from, the output of the layer before, leaves and comes back in the same way. */
TEST(inputs_leave_and_come_back) {
    const int n = 6;
    result stay = play_all(n, NOTHING, MS_ACTION_RECOMPUTE), later = play_all(n, NOTHING, MS_ACTION_RECOMPUTE_OFFLOAD);
    result now = play_all(n, NOTHING, MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING);
    int first = FIRST_LAYER + n + 1;
    for (int u = 0; u < n; u++) {
        CHECK_EQ_INT(stay.ends[FIRST_LAYER + u] - now.ends[FIRST_LAYER + u], u <= 1 ? 0 : (u - 1) * MIB);
        CHECK_EQ_INT(stay.ends[FIRST_LAYER + u] - later.ends[FIRST_LAYER + u], u <= 2 ? 0 : (u - 2) * MIB);
        int others = n - 2 - u < 0 ? 0 : n - 2 - u; /* layers whose inputs are still away */
        CHECK_EQ_INT(stay.peaks[first + u] - now.peaks[first + u], others * MIB);
    }
    CHECK_EQ_INT(later.ends[later.n - 1], stay.ends[stay.n - 1]);
    CHECK_EQ_INT(later.summary.host_bytes, (n - 1) * MIB);
    CHECK_EQ_INT(now.summary.host_bytes, (n - 1) * MIB);
}

/* A tensor that several layers were given stays. */
TEST(inputs_of_several_layers_stay) {
    const int n = 6;
    CHECK_EQ_INT(play_all(n, SHARED_INPUTS, MS_ACTION_RECOMPUTE_OFFLOAD).summary.host_bytes, (n - 2) * MIB);
}

static void schedule_of(const ms_profile *profile, const int32_t *actions, const ms_rates *rates, int64_t *out_wait_ns,
                        int64_t *out_leaves_after, int64_t *out_fetched_before) {
    ms_simulation_request request = {.struct_bytes = sizeof request,
                                     .profile = profile,
                                     .actions = actions,
                                     .n_actions = profile->n_units,
                                     .device = DEVICE_OF(rates, 0)};
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    ms_simulation *sim = NULL;
    CHECK_STATUS(ms_simulation_create(&request, &sim), MS_OK);
    CHECK_STATUS(ms_simulation_get_summary(sim, &summary), MS_OK);
    CHECK_STATUS(ms_simulation_get_schedule(sim, 0, out_leaves_after, out_fetched_before), MS_OK);
    CHECK_STATUS(ms_simulation_get_schedule(sim, profile->n_units, out_leaves_after, out_fetched_before), MS_E_INVALID);
    *out_wait_ns = summary.wait_ns;
    ms_simulation_destroy(sim);
}

/* The slower the link, the later a layer is gone and the earlier it is fetched, so that nothing waits for its copies.
 * A layer takes 900 us forward and 300 backward; 3.5 MiB take 4 and 1700 us. */
TEST(slow_copies_have_more_time) {
    static const int64_t mb_per_s[] = {1000000, 2200};
    static const int32_t actions[MAX_LAYERS] = {MS_ACTION_OFFLOAD};
    ms_profile *profile = layered_profile(MAX_LAYERS, NOTHING);
    int64_t leaves_before = 0, fetched_before = 0;
    for (int i = 0; i < 2; i++) {
        ms_rates rates = SMALL_RATES(80);
        rates.launch_ns = 100000;
        int64_t wait_ns = 0, leaves = 0, fetched = 0;
        rates.to_device_mb_per_s = rates.from_device_mb_per_s = mb_per_s[i];
        schedule_of(profile, actions, &rates, &wait_ns, &leaves, &fetched);
        CHECK_EQ_INT(wait_ns, 0);
        CHECK(i == 0 ? leaves == MS_OFFLOAD_LEAVING && fetched >= 1
                     : leaves > leaves_before && fetched > fetched_before);
        leaves_before = leaves;
        fetched_before = fetched;
    }
    ms_profile_destroy(profile);
}

/* On a GPU the device waits for copies that are not done. 3.5 MiB take 7168 us here. */
TEST(copies_take_time) {
    const int n = 6;
    ms_profile *profile = layered_profile(n, NOTHING);
    ms_rates slow = SMALL_RATES(80), fast = SMALL_RATES(80);
    slow.both_mb_per_s = fast.both_mb_per_s = 1024;
    fast.to_device_mb_per_s = fast.from_device_mb_per_s = 1000000000;
    fast.both_mb_per_s = 2000000000;
    int32_t actions[MAX_LAYERS], kept[MAX_LAYERS] = {0};
    for (int u = 0; u < n; u++) actions[u] = MS_ACTION_OFFLOAD;
    result late = play(profile, actions, &slow), soon = play(profile, actions, &fast),
           plain = play(profile, kept, &slow);
    int64_t copy_ns = SAVED * 1000 / 512;
    CHECK(late.summary.wait_ns > 6 * copy_ns); /* hardly anything hides them */
    CHECK(late.summary.step_ns > plain.summary.step_ns + late.summary.wait_ns / 2);
    CHECK(soon.summary.step_ns - plain.summary.step_ns < plain.summary.step_ns / 50);
    for (int u = 0; u < n; u++) actions[u] = MS_ACTION_OFFLOAD_BLOCKING;
    result blocking = play(profile, actions, &slow);
    CHECK(blocking.summary.wait_ns >= 2 * n * copy_ns);
    CHECK(blocking.summary.step_ns > late.summary.step_ns);
    ms_profile_destroy(profile);
}

/* A parameter's cast, which autocast holds until forward is over, is dropped then and made again when it is used. */
TEST(casts_are_made_again) {
    const int n = 4;
    const int64_t cast = 2 * 512 * 512;
    result kept = play_all(n, CASTS, MS_ACTION_KEEP), plain = play_all(n, NOTHING, MS_ACTION_KEEP);
    result away = play_all(n, CASTS, MS_ACTION_OFFLOAD_BLOCKING);
    result same = play_all(n, NOTHING, MS_ACTION_OFFLOAD_BLOCKING);
    int loss = FIRST_LAYER + n, last = loss + n;
    CHECK_EQ_INT(kept.ends[loss] - plain.ends[loss], cast);
    CHECK_EQ_INT(away.ends[loss], same.ends[loss]);
    CHECK_EQ_INT(away.summary.host_bytes, same.summary.host_bytes); /* it is not copied */
    CHECK_EQ_INT(away.ends[last], same.ends[last]);
}

/* Without a recomputed trace nothing is known to be a layer's own. */
TEST(a_step_that_was_only_seen_kept) {
    ms_profile *profile = layered_profile(2, ONLY_KEPT);
    ms__arena arena = {0};
    ms__changes changes;
    CHECK_STATUS(ms__changes_make(&arena, profile->step, &changes), MS_OK);
    CHECK_EQ_INT(changes.n_visits, 0);
    CHECK_EQ_INT(changes.units[0].moved_bytes, 0);
    ms__arena_free(&arena);
    ms_profile_destroy(profile);
}

SUITE(changes, CASE(products_are_held), CASE(they_go_when_they_were_used), CASE(they_are_not_computed_again),
      CASE(what_is_not_kept), CASE(the_first_step_is_a_check), CASE(tensors_leave), CASE(tensors_come_back),
      CASE(kept_layers_fetch_for_others), CASE(inputs_leave_and_come_back), CASE(inputs_of_several_layers_stay),
      CASE(slow_copies_have_more_time), CASE(copies_take_time), CASE(casts_are_made_again),
      CASE(a_step_that_was_only_seen_kept));
