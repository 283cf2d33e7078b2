/* roofline.c - the longer of arithmetic and traffic. */
#include "roofline.h"

#include "../common/structs.h"

#define MAX_RATE INT64_C(1000000000) /* of rates and times, as in rates.c */
#define MAX_MULTIPROCESSORS INT64_C(1000000)

static bool is_rate(int64_t value, int64_t min) { return value >= min && value <= MAX_RATE; }

ms_status ms__rates_read(const ms_rates *theirs, ms_rates *r) {
    ms_status status = ms__struct_read(MS__STRUCT(ms_rates), theirs, r);
    if (status != MS_OK) return status;
    if (r->capability < 0 || !is_rate(r->fp32_gflops, 1) || !is_rate(r->fp16_gflops, 0) ||
        !is_rate(r->bf16_gflops, 0) || !is_rate(r->memory_mb_per_s, 1) || !is_rate(r->launch_ns, 0) ||
        !is_rate(r->dispatch_ns, 0) || !is_rate(r->to_device_mb_per_s, 0) || !is_rate(r->from_device_mb_per_s, 0) ||
        r->both_mb_per_s < 0 || r->both_mb_per_s > 2 * MAX_RATE)
        return ms__fail(MS_E_INVALID, "ms_rates: a rate is out of range");
    return MS_OK;
}

ms_status ms__device_read(const ms_device *theirs, ms__device_copy *out) {
    ms_device *device = &out->device;
    ms_status status = ms__struct_read(MS__STRUCT(ms_device), theirs, device);
    if (status == MS_OK) status = ms__rates_read(device->rates, &out->rates);
    if (status != MS_OK) return status;
    device->rates = &out->rates;
    if (device->n_multiprocessors < 0 || device->n_multiprocessors > MAX_MULTIPROCESSORS || device->usable_bytes < 0)
        return ms__fail(MS_E_INVALID, "ms_device: n_multiprocessors or usable_bytes is out of range");
    if (device->kind < 0 || device->kind >= MS_N_DEVICE_KINDS ||
        (device->kind == MS_DEVICE_HOST) != (device->rates->capability == 0))
        return ms__fail(MS_E_INVALID, "ms_device: kind %lld does not match capability %lld", (long long)device->kind,
                        (long long)device->rates->capability);
    return MS_OK;
}

int64_t ms__add_ns(int64_t ns, int64_t more_ns) { return more_ns > MS__MAX_NS - ns ? MS__MAX_NS : ns + more_ns; }

static int64_t arithmetic_rate(const ms_rates *rates, uint32_t element_bytes) {
    int64_t narrow = rates->bf16_gflops > 0 ? rates->bf16_gflops : rates->fp16_gflops;
    return element_bytes <= 2 && narrow > 0 ? narrow : rates->fp32_gflops;
}

static int64_t traffic_ns(int64_t n_bytes, int64_t mb_per_s) {
    if (n_bytes <= INT64_MAX / 1000) return n_bytes * 1000 / mb_per_s;
    return n_bytes / mb_per_s > MS__MAX_NS / 1000 ? MS__MAX_NS : n_bytes / mb_per_s * 1000;
}

int64_t ms__op_busy_ns(const ms_rates *rates, const ms__step *step, const ms__step_cost *cost) {
    if (cost->flags & MS__OP_VIEW) return 0;
    int64_t arithmetic = step->numbers[cost->flops] / arithmetic_rate(rates, cost->element_bytes);
    int64_t traffic = traffic_ns(step->numbers[cost->bytes], rates->memory_mb_per_s);
    return ms__add_ns(rates->launch_ns, arithmetic > traffic ? arithmetic : traffic);
}
