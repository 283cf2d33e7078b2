/* order.c - the order in which a step runs its units. */
#include "order.h"

#include "../common/math.h"
#include "roofline.h"

static void note_forward(ms__order *o, int32_t unit) {
    if (o->position[unit] != MS__NO_CHAIN) return;
    o->position[unit] = o->n;
    o->units[o->n++] = unit;
}

/* In forward, all units up to the latest one hold, except one that runs for the first time; in backward, all before the
 * earliest. */
static void find_prefixes(ms__order *o, const ms__step *step) {
    int32_t latest = -1, earliest = o->n;
    for (uint32_t i = 0; i < step->n_segments; i++) {
        const ms__segment *s = &step->segments[i];
        int32_t at = s->unit < 0 ? MS__NO_CHAIN : o->position[s->unit];
        if (s->phase <= MS_PHASE_LOSS) {
            bool is_first = at > latest;
            if (is_first) latest = at;
            o->prefix[i] = s->phase == MS_PHASE_SETUP ? 0 : latest + (is_first ? 0 : 1);
        } else if (s->phase == MS_PHASE_BACKWARD) {
            if (at != MS__NO_CHAIN && at < earliest) earliest = at;
            o->prefix[i] = earliest;
        }
    }
}

static void find_tail(ms__order *o, const ms__step *step) {
    o->tail_begins = step->n_segments;
    for (uint32_t i = 0; i < step->n_segments; i++) {
        uint32_t phase = step->segments[i].phase;
        o->in_tail[i] = o->n > 0 && o->prefix[i] >= o->n - 1 && phase >= MS_PHASE_FORWARD && phase <= MS_PHASE_BACKWARD;
        if (o->in_tail[i]) o->tail_begins = ms__min(o->tail_begins, i);
    }
}

ms_status ms__order_make(ms__arena *arena, const ms__step *step, ms__order *out) {
    *out = (ms__order){0};
    ms_status status =
        ms__arena_arrays(arena, MS__ARRAY(out->units, step->n_units), MS__ARRAY(out->position, step->n_units),
                         MS__ARRAY(out->prefix, step->n_segments), MS__ARRAY(out->in_tail, step->n_segments));
    if (status != MS_OK) return status;
    for (uint32_t u = 0; u < step->n_units; u++) out->position[u] = MS__NO_CHAIN;
    for (uint32_t i = 0; i < step->n_segments; i++) {
        const ms__segment *s = &step->segments[i];
        if (s->unit >= 0 && (s->phase == MS_PHASE_FORWARD || s->phase == MS_PHASE_LOSS)) note_forward(out, s->unit);
    }
    find_prefixes(out, step);
    find_tail(out, step);
    return MS_OK;
}

int32_t ms__order_position(const ms__order *order, const ms_simulation_segment *segment) {
    return segment->unit < 0 ? MS__NO_CHAIN : order->position[segment->unit];
}

void ms__order_times(const ms__order *order, const ms_simulation_segment *segments, int64_t n_segments,
                     ms__unit_times *out) {
    for (int64_t i = 0; i < n_segments; i++) {
        int32_t at = ms__order_position(order, &segments[i]);
        if (at == MS__NO_CHAIN) continue;
        if (segments[i].phase == MS_PHASE_BACKWARD)
            out[at].backward_ns += segments[i].duration_ns;
        else
            out[at].forward_ns += segments[i].duration_ns;
    }
}

int64_t ms__order_tail_ns(const ms__order *order, const ms_simulation_segment *segments, int64_t n_segments) {
    int64_t ns = 0;
    for (int64_t i = order->tail_begins; i < n_segments; i++)
        if (order->in_tail[i] && segments[i].phase <= MS_PHASE_LOSS) ns = ms__add_ns(ns, segments[i].duration_ns);
    return ns;
}
