/* sim_link.c - the link between device and host while a step runs. */
#include "sim_link.h"

#include "../common/math.h"
#include "roofline.h"

#define COPY_SLOTS 6                         /* of the largest copy */
#define MAX_SLOTS 12                         /* of a backlog: two of the largest copies */
#define MAX_SLOT_US (MS__MAX_NS / 1000 / 64) /* so that a backlog does not overflow as a time */

bool ms__has_link(const ms_rates *rates) { return rates->to_device_mb_per_s > 0 && rates->from_device_mb_per_s > 0; }

int64_t ms__link_mb_per_s(const ms_rates *rates) {
    int64_t rate = ms__min(rates->to_device_mb_per_s, rates->from_device_mb_per_s);
    return rates->both_mb_per_s > 0 ? ms__min(rate, rates->both_mb_per_s / 2) : rate;
}

/* MB/s are bytes in a microsecond. */
ms__link ms__link_make(const ms_rates *rates, int64_t max_copy_bytes) {
    int64_t rate = ms__link_mb_per_s(rates);
    if (rate <= 0 || max_copy_bytes <= 0) return (ms__link){0};
    int64_t us = ms__min(max_copy_bytes / rate / COPY_SLOTS + 1, MAX_SLOT_US);
    return (ms__link){.slot_ns = us * 1000, .slot_bytes = us * rate, .mb_per_s = rate, .max_slots = MAX_SLOTS};
}

int32_t ms__link_copy_slots(const ms__link *link, int64_t n_bytes) {
    return link->slot_ns == 0 ? 0 : (int32_t)ms__ceil_div(n_bytes, link->slot_bytes);
}

int32_t ms__link_hide_slots(const ms__link *link, int64_t ns) {
    return link->slot_ns == 0 ? 0 : (int32_t)ms__min(ns / link->slot_ns, link->max_slots);
}

int64_t ms__link_drag_ns(const ms__link *link, int64_t n_bytes) {
    return link->mb_per_s == 0 ? 0 : ms__min(n_bytes, MS__MAX_NS / 1000) * 1000 / link->mb_per_s / MS__LINK_DRAG;
}

int64_t ms__link_wait_ns(const ms__link *link, int32_t slots) {
    if (link->slot_ns > 0 && slots > MS__MAX_NS / 2 / link->slot_ns) return MS__MAX_NS;
    return INT64_C(2) * slots * link->slot_ns;
}
