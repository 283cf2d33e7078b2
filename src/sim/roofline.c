/* roofline.c - the longer of arithmetic and traffic, and what the host does for each operation. */
#include "roofline.h"

#include "../common/math.h"
#include "../common/structs.h"

#define MAX_RATE INT64_C(1000000000) /* of rates and times, as in rates.c */
#define MAX_MULTIPROCESSORS INT64_C(1000000)
#define LEAST_FRESH_BYTES (INT64_C(32) << 20) /* glibc maps larger blocks anew each time, and keeps smaller ones */

static bool is_rate(int64_t value, int64_t min) { return value >= min && value <= MAX_RATE; }

static bool has_host_rates(const ms_rates *r) {
    return is_rate(r->product_ns, 0) && is_rate(r->view_ns, 0) && is_rate(r->backward_ns, 0) &&
           is_rate(r->backward_product_ns, 0) && is_rate(r->backward_view_ns, 0) && is_rate(r->list_tensor_ns, 0) &&
           is_rate(r->parameter_ns, 0) && is_rate(r->saved_tensor_ns, 0) && is_rate(r->recomputation_ns, 0) &&
           is_rate(r->random_mb_per_s, 0) && is_rate(r->fresh_mb_per_s, 0);
}

ms_status ms__rates_read(const ms_rates *theirs, ms_rates *r) {
    ms_status status = ms__struct_read(MS__STRUCT(ms_rates), theirs, r);
    if (status != MS_OK) return status;
    if (r->capability < 0 || !is_rate(r->fp32_gflops, 1) || !is_rate(r->fp16_gflops, 0) ||
        !is_rate(r->bf16_gflops, 0) || !is_rate(r->memory_mb_per_s, 1) || !is_rate(r->launch_ns, 0) ||
        !is_rate(r->dispatch_ns, 0) || !is_rate(r->to_device_mb_per_s, 0) || !is_rate(r->from_device_mb_per_s, 0) ||
        r->both_mb_per_s < 0 || r->both_mb_per_s > 2 * MAX_RATE || !has_host_rates(r))
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

/* By what the rate of large products is divided on a GPU, measured on an H200: attention reached 140 to 330 TFLOP/s of
 * 700 in 16 bits and 20 of 50 in 32, products with rows of odd lengths 95 to 147, and with even ones 245 to 260. The
 * kernels for such rows are those of older GPUs, so these are assumed to lose less; that was not measured. */
#define ATTENTION_PARTS 3
#define ODD_PARTS 6
#define UNEVEN_PARTS 3
#define OLDER_ODD_PARTS 3
#define OLDER_UNEVEN_PARTS 2
#define HOPPER_CAPABILITY 90

static int64_t arithmetic_parts(const ms_rates *rates, uint32_t flags) {
    if (rates->capability == 0) return 1;
    bool is_older = rates->capability < HOPPER_CAPABILITY;
    if (flags & MS__OP_ATTENTION) return ATTENTION_PARTS;
    if (flags & MS__OP_ODD) return is_older ? OLDER_ODD_PARTS : ODD_PARTS;
    if (flags & MS__OP_UNEVEN) return is_older ? OLDER_UNEVEN_PARTS : UNEVEN_PARTS;
    return 1;
}

static int64_t arithmetic_rate(const ms_rates *rates, const ms__step_cost *cost) {
    int64_t narrow = rates->bf16_gflops > 0 ? rates->bf16_gflops : rates->fp16_gflops;
    int64_t rate = cost->element_bytes <= 2 && narrow > 0 ? narrow : rates->fp32_gflops;
    return ms__max(rate / arithmetic_parts(rates, cost->flags), 1);
}

static int64_t traffic_ns(int64_t n_bytes, int64_t mb_per_s) {
    if (n_bytes <= INT64_MAX / 1000) return n_bytes * 1000 / mb_per_s;
    return n_bytes / mb_per_s > MS__MAX_NS / 1000 ? MS__MAX_NS : n_bytes / mb_per_s * 1000;
}

int64_t ms__op_busy_ns(const ms_rates *rates, const ms__step *step, const ms__step_cost *cost) {
    if (cost->flags & MS__OP_VIEW) return 0;
    int64_t arithmetic = step->numbers[cost->flops] / arithmetic_rate(rates, cost);
    bool draws = cost->flags & MS__OP_RANDOM && rates->random_mb_per_s > 0;
    int64_t traffic = traffic_ns(step->numbers[cost->bytes], draws ? rates->random_mb_per_s : rates->memory_mb_per_s);
    return ms__add_ns(rates->launch_ns, arithmetic > traffic ? arithmetic : traffic);
}

int64_t ms__kernel_ns(const ms_rates *rates, int64_t n_bytes) {
    return ms__add_ns(rates->launch_ns, traffic_ns(n_bytes, rates->memory_mb_per_s));
}

/* What is known for operations of this kind and place; 0: nothing in particular. */
static int64_t known_host_ns(const ms_rates *rates, const ms__step_cost *cost, uint32_t phase) {
    bool is_view = cost->flags & MS__OP_VIEW, is_product = cost->flags & (MS__OP_MATRIX | MS__OP_ATTENTION);
    if (phase >= MS_PHASE_BACKWARD && !(cost->flags & MS__OP_REPEATED))
        return is_view ? rates->backward_view_ns : is_product ? rates->backward_product_ns : rates->backward_ns;
    return is_view ? rates->view_ns : is_product ? rates->product_ns : rates->dispatch_ns;
}

int64_t ms__op_host_ns(const ms_rates *rates, const ms__step_cost *cost, uint32_t phase) {
    int64_t ns = known_host_ns(rates, cost, phase);
    int64_t of_tensor = cost->flags & MS__OP_LIST ? rates->list_tensor_ns : rates->saved_tensor_ns;
    return (ns > 0 ? ns : rates->dispatch_ns) + ms__step_cost_tensors(cost) * of_tensor;
}

/* Every function of torch that a unit calls passes its mode, twice; and of each result that is kept, operands and saved
 * tensors are described, and found again. Fitted to nine models on a CPU (bench/slowdown.py). */
int64_t ms__keeping_ns(const ms_rates *rates) { return 2 * rates->recomputation_ns; }

int64_t ms__kept_result_ns(const ms_rates *rates) {
    return rates->product_ns > 0 ? rates->product_ns : rates->dispatch_ns;
}

/* In tensors that pass a hook; fitted to LoRA on an H200, where the host is the limit and a layer saves 60 tensors. */
#define TENSORS_OF_A_MOVE 5 /* each that moves is described, put, fetched and viewed */
#define TENSORS_OF_AN_INPUT 8

/* As for a recomputed unit, each function of torch passes a mode. `n_tensors` pass a hook, or as much is done. */
static int64_t hooks_ns(const ms_rates *rates, int64_t n_tensors) {
    return ms__add_ns(rates->recomputation_ns, ms__min(n_tensors * rates->saved_tensor_ns, MS__MAX_NS));
}

int64_t ms__handling_ns(const ms_rates *rates, int64_t n_saved, int64_t n_moved) {
    return hooks_ns(rates, n_saved + TENSORS_OF_A_MOVE * n_moved);
}

int64_t ms__input_handling_ns(const ms_rates *rates, int64_t n_inputs) {
    return hooks_ns(rates, TENSORS_OF_AN_INPUT * n_inputs);
}

int64_t ms__fresh_ns(const ms_rates *rates, int64_t n_bytes) {
    bool is_fresh = rates->capability == 0 && rates->fresh_mb_per_s > 0 && n_bytes >= LEAST_FRESH_BYTES;
    return is_fresh ? traffic_ns(n_bytes, rates->fresh_mb_per_s) : 0;
}
