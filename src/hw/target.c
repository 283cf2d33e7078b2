/* target.c - descriptions of the device that a step runs on (ms_device). */
#include "../common/structs.h"

/* What a CUDA context takes for itself. On a GPU of this machine it is already taken from the free memory. */
#define CONTEXT_BYTES (INT64_C(512) << 20)

ms_status ms_device_init(ms_device *device, const ms_rates *rates, int64_t kind) {
    if (rates == NULL) return ms__fail(MS_E_INVALID, "ms_device_init: rates is NULL");
    if (kind < 0 || kind >= MS_N_DEVICE_KINDS)
        return ms__fail(MS_E_INVALID, "ms_device_init: kind %lld is unknown", (long long)kind);
    const ms_device ours = {.rates = rates, .kind = kind};
    return ms__struct_write(MS__STRUCT(ms_device), &ours, device);
}

ms_status ms_device_from_model(const ms_gpu_model *model, ms_rates *out_rates, ms_device *out_device) {
    ms_gpu_model m;
    ms_status status = ms__struct_read(MS__STRUCT(ms_gpu_model), model, &m);
    if (status == MS_OK) status = ms__struct_check(MS__STRUCT(ms_device), out_device);
    if (status != MS_OK) return status;
    if (m.memory_bytes <= CONTEXT_BYTES)
        return ms__fail(MS_E_INVALID, "ms_device_from_model: %lld bytes of memory have no room for a CUDA context",
                        (long long)m.memory_bytes);
    status = ms_rates_from_model(&m, out_rates);
    if (status != MS_OK) return status;
    const ms_device ours = {.rates = out_rates,
                            .n_multiprocessors = m.n_multiprocessors,
                            .usable_bytes = m.memory_bytes - CONTEXT_BYTES,
                            .kind = MS_DEVICE_GPU};
    return ms__struct_write(MS__STRUCT(ms_device), &ours, out_device);
}
