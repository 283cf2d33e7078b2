/* compare.c - a step that ran next to its simulation: what was allocated where units begin and end.
 *
 * A reading belongs to the segments of its unit by its order: the second time that a unit's forward begins is where its
 * second segment of forward does. If a unit has another number of segments than of readings, nothing is known of it,
 * and its readings are left out: it was called several times in a row, or others ran between its nodes in backward.
 *
 * The end of a forward is timed and not judged: whoever called the unit still holds its inputs, which a trace counts to
 * the unit until they are gone. What the unit keeps is there when the next one begins.
 */
#include "../common/math.h"
#include "../common/structs.h"
#include "roofline.h"
#include "sim.h"

#define MAX_BYTES ((int64_t)1 << 60)

static bool is_same(const ms_reading *a, const ms_reading *b) {
    return a->unit == b->unit && a->boundary == b->boundary;
}

static bool is_in_backward(const ms_simulation_segment *segment) { return segment->phase == MS_PHASE_BACKWARD; }

static bool is_in_forward(const ms_simulation_segment *segment) {
    return segment->phase == MS_PHASE_FORWARD || segment->phase == MS_PHASE_LOSS;
}

static bool is_of(const ms_simulation_segment *segment, const ms_reading *reading) {
    if (segment->unit != reading->unit) return false;
    return reading->boundary == MS_BOUNDARY_BACKWARD_BEGINS ? is_in_backward(segment) : is_in_forward(segment);
}

/* Set what was predicted for the `visit`-th reading of its kind. Returns how many of them the step has. */
static int64_t find_moment(const ms_simulation *sim, int64_t visit, ms_reading *reading) {
    int64_t n = 0, ns = 0, idle = sim->summary.idle_bytes, bytes = idle;
    for (int64_t i = 0; i < sim->n_segments; i++) {
        const ms_simulation_segment *segment = &sim->segments[i];
        if (!ms__is_steady(segment)) continue;
        int64_t begin_ns = ns, begin_bytes = bytes;
        bytes = segment->end_bytes;
        ns = ms__add_ns(ns, segment->duration_ns);
        if (!is_of(segment, reading) || n++ != visit) continue;
        bool ends = reading->boundary == MS_BOUNDARY_FORWARD_ENDS;
        reading->predicted_bytes = (ends ? bytes : begin_bytes) - idle;
        reading->predicted_ns = ends ? ns : begin_ns;
    }
    return n;
}

static void predict_moment(const ms_simulation *sim, ms_reading *readings, int64_t n, int64_t index) {
    int64_t n_before = 0, n_all = 0;
    for (int64_t i = 0; i < n; i++) {
        bool same = is_same(&readings[i], &readings[index]);
        n_before += same && i < index;
        n_all += same;
    }
    readings[index].is_compared = find_moment(sim, n_before, &readings[index]) == n_all;
}

static void predict_peak(const ms_simulation *sim, ms_reading *reading) {
    int64_t peak = sim->summary.idle_bytes;
    for (int64_t i = 0; i < sim->n_segments; i++) {
        const ms_simulation_segment *segment = &sim->segments[i];
        if (is_in_forward(segment) || is_in_backward(segment)) peak = ms__max(peak, segment->peak_bytes);
    }
    reading->predicted_bytes = peak - sim->summary.idle_bytes;
    reading->is_compared = 1;
}

static bool is_judged(const ms_reading *reading) {
    return reading->is_compared && reading->boundary != MS_BOUNDARY_FORWARD_ENDS;
}

static int64_t difference(const ms_reading *reading) { return reading->measured_bytes - reading->predicted_bytes; }

/* The readings with the highest and the lowest difference, -1: there are none. */
static void find_extremes(const ms_reading *readings, int64_t n, int64_t *out_most, int64_t *out_least) {
    for (int64_t i = 0; i < n; i++) {
        if (!is_judged(&readings[i])) continue;
        if (*out_most < 0 || difference(&readings[i]) > difference(&readings[*out_most])) *out_most = i;
        if (*out_least < 0 || difference(&readings[i]) < difference(&readings[*out_least])) *out_least = i;
    }
}

/* Memory that was not predicted counts before memory that was not needed. */
static ms_comparison judge(const ms_reading *readings, int64_t n, int64_t margin_bytes) {
    int64_t most = -1, least = -1;
    ms_comparison found = {.struct_bytes = sizeof found, .worst = -1, .first = -1};
    for (int64_t i = 0; i < n; i++) found.n_compared += is_judged(&readings[i]);
    find_extremes(readings, n, &most, &least);
    if (most < 0) return found;
    int64_t more = difference(&readings[most]), less = -difference(&readings[least]);
    found.worst = more > margin_bytes || more >= less ? most : least;
    found.difference_bytes = difference(&readings[found.worst]);
    int64_t sign = found.difference_bytes < 0 ? -1 : 1;
    for (int64_t i = n - 1; i >= 0; i--)
        if (is_judged(&readings[i]) && sign * difference(&readings[i]) > margin_bytes) found.first = i;
    return found;
}

static ms_status check_readings(const ms_simulation *sim, const ms_reading *readings, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const ms_reading *r = &readings[i];
        bool is_peak = r->boundary == MS_BOUNDARY_PEAK, knows = is_peak ? r->unit == -1 : r->unit >= 0;
        if (r->boundary < 0 || r->boundary >= MS_N_BOUNDARIES || !knows || r->unit >= sim->n_units ||
            r->measured_bytes < -MAX_BYTES || r->measured_bytes > MAX_BYTES)
            return ms__fail(MS_E_INVALID, "ms_simulation_compare: reading %lld is out of range", (long long)i);
    }
    return MS_OK;
}

ms_status ms_simulation_compare(const ms_simulation *sim, ms_reading *readings, int64_t n_readings,
                                int64_t margin_bytes, ms_comparison *out) {
    if (sim == NULL || n_readings < 0 || (readings == NULL && n_readings > 0) || margin_bytes < 0)
        return ms__fail(MS_E_INVALID, "ms_simulation_compare: an argument is NULL or below 0");
    ms_status status = ms__struct_check(MS__STRUCT(ms_comparison), out);
    if (status == MS_OK) status = check_readings(sim, readings, n_readings);
    if (status != MS_OK) return status;
    for (int64_t i = 0; i < n_readings; i++) {
        readings[i].is_compared = readings[i].predicted_bytes = readings[i].predicted_ns = 0;
        if (readings[i].boundary == MS_BOUNDARY_PEAK)
            predict_peak(sim, &readings[i]);
        else
            predict_moment(sim, readings, n_readings, i);
    }
    ms_comparison found = judge(readings, n_readings, margin_bytes);
    return ms__struct_write(MS__STRUCT(ms_comparison), &found, out);
}
