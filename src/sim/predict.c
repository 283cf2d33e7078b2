/* predict.c - will a step fit? */
#include "../common/math.h"
#include "../common/structs.h"
#include "needs.h"

#define BAND_PARTS 1000
#define BAND 20          /* per mille: the error of predictions, with room to spare (docs/PREDICTION.md) */
#define BAND_OF_A_RUN 30 /* a step that really ran was measured under other conditions */

static void fill_in(const ms__needs *needs, int64_t usable_bytes, int32_t was_run, ms_prediction *out) {
    int64_t share = needs->peak_bytes * (was_run ? BAND_OF_A_RUN : BAND) / BAND_PARTS;
    out->usable_bytes = usable_bytes;
    out->margin_bytes = usable_bytes / MS__MARGIN_PARTS;
    out->peak_bytes = needs->peak_bytes;
    out->needed_bytes = needs->needed_bytes;
    out->low_bytes = out->peak_bytes - share;
    out->high_bytes = out->peak_bytes + share;
    out->reserved_bytes = needs->played.reserved_bytes;
    out->fits = out->needed_bytes <= usable_bytes - out->margin_bytes;
}

ms_status ms_predict(const ms_simulation_request *theirs, int64_t usable_bytes, int32_t was_run, ms_prediction *out) {
    ms_simulation_request request;
    ms__device_copy device;
    ms_prediction found;
    ms__needs needs;
    ms_status status = ms__simulation_read(theirs, &request, &device);
    if (status == MS_OK) status = ms__struct_read(MS__STRUCT(ms_prediction), out, &found);
    if (status == MS_OK && !ms__is_changed(&request)) request.flags &= ~(uint32_t)MS_SIMULATE_GROWING;
    if (status == MS_OK) status = ms__find_needs(&request, NULL, INT64_MAX, &needs);
    if (status != MS_OK) return status;
    int64_t most = request.device->usable_bytes; /* 0: not known */
    int64_t usable = usable_bytes > 0 && most > 0 ? ms__min(usable_bytes, most) : ms__max(usable_bytes, most);
    fill_in(&needs, usable, was_run, &found);
    if (found.simulation != NULL) {
        status = ms__struct_write(MS__STRUCT(ms_simulation_summary), &needs.played, found.simulation);
        if (status != MS_OK) return status;
    }
    return ms__struct_write(MS__STRUCT(ms_prediction), &found, out);
}
