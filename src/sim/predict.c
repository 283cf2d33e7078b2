/* predict.c - will a step fit? */
#include "../common/structs.h"
#include "../profile/profile.h"

#define BAND_PARTS 1000
#define BAND 20          /* per mille: the error of predictions, with room to spare (docs/PREDICTION.md) */
#define BAND_OF_A_RUN 30 /* a step that really ran was measured under other conditions */

static ms_status simulate_within(const ms_simulation_request *request, int64_t limit_bytes,
                                 ms_simulation_summary *out) {
    ms_simulation_request limited = *request;
    ms_simulation *sim = NULL;
    limited.limit_bytes = limit_bytes;
    ms_status status = ms_simulation_create(&limited, &sim);
    if (status == MS_OK) status = ms_simulation_get_summary(sim, out);
    ms_simulation_destroy(sim);
    return status;
}

/* The allocated bytes may be less than the limit and still not fit, because of fragmentation. */
static ms_status check_fits(const ms_simulation_request *request, int64_t peak_bytes, int64_t usable_bytes,
                            int64_t *out) {
    ms_simulation_summary unused = {.struct_bytes = sizeof unused};
    *out = peak_bytes <= usable_bytes;
    if (!*out || !(request->flags & MS_SIMULATE_ALLOCATOR)) return MS_OK;
    ms_status status = simulate_within(request, usable_bytes, &unused);
    *out = status == MS_OK;
    if (status == MS_E_BUDGET) ms_error_clear();
    return status == MS_E_BUDGET ? MS_OK : status;
}

ms_status ms_predict(const ms_simulation_request *theirs, int64_t usable_bytes, int32_t was_run, ms_prediction *out) {
    ms_simulation_request request;
    ms_prediction found;
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    ms_status status = ms__struct_read(MS__STRUCT(ms_simulation_request), theirs, &request);
    if (status == MS_OK) status = ms__struct_read(MS__STRUCT(ms_prediction), out, &found);
    if (status == MS_OK) status = simulate_within(&request, 0, &summary);
    if (status != MS_OK) return status;
    found.usable_bytes = usable_bytes > 0 ? usable_bytes : request.device->usable_bytes;
    found.peak_bytes =
        summary.first_peak_bytes > summary.steady_peak_bytes ? summary.first_peak_bytes : summary.steady_peak_bytes;
    int64_t share = found.peak_bytes * (was_run ? BAND_OF_A_RUN : BAND) / BAND_PARTS;
    found.low_bytes = found.peak_bytes - share;
    found.high_bytes = found.peak_bytes + share;
    found.reserved_bytes = summary.reserved_bytes;
    status = check_fits(&request, found.peak_bytes, found.usable_bytes, &found.fits);
    if (status != MS_OK) return status;
    if (found.simulation != NULL) {
        status = ms__struct_write(MS__STRUCT(ms_simulation_summary), &summary, found.simulation);
        if (status != MS_OK) return status;
    }
    return ms__struct_write(MS__STRUCT(ms_prediction), &found, out);
}
