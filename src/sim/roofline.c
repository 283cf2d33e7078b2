/* roofline.c - the longer of arithmetic and traffic. Rates are above 0, or taken as 1, so that no rates at all still
 * give a time. */
#include "roofline.h"

static int64_t rate_of(const ms_rates *rates, uint32_t element_bytes) {
    int64_t narrow = rates->bf16_gflops > 0 ? rates->bf16_gflops : rates->fp16_gflops;
    int64_t rate = element_bytes <= 2 && narrow > 0 ? narrow : rates->fp32_gflops;
    return rate > 0 ? rate : 1;
}

int64_t ms__op_busy_ns(const ms_rates *rates, const ms__step *step, const ms__step_cost *cost) {
    if (cost->flags & MS__OP_VIEW) return 0;
    int64_t arithmetic = step->numbers[cost->flops] / rate_of(rates, cost->element_bytes);
    int64_t bandwidth = rates->memory_mb_per_s > 0 ? rates->memory_mb_per_s : 1;
    int64_t bytes = step->numbers[cost->bytes];
    int64_t traffic = bytes > INT64_MAX / 1000 ? INT64_MAX / 1000 : bytes * 1000 / bandwidth;
    return rates->launch_ns + (arithmetic > traffic ? arithmetic : traffic);
}
