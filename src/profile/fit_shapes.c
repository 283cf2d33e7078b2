/* fit_shapes.c - the shapes at which a step is profiled so that shape_fit.c can tell its terms apart. */
#include "../common/status.h"

#define LEAST_LENGTH 8  /* the quarters of shorter lengths are too close */
#define LEAST_PADDED 64 /* from here on lengths are chosen by how attention kernels pad them */
#define PAD 32

/* About `n` quarters of a length. Longer lengths are chosen so that padding differs too much between them to look like
 * growth. */
static int64_t quarters_of(int64_t length, int64_t n) {
    static const int64_t beyond[] = {24, 8, 16};
    int64_t part = length / 4 * n + length % 4 * n / 4;
    return length < LEAST_PADDED ? part : part / PAD * PAD + beyond[n - 1];
}

ms_status ms_profile_get_fit_shapes(ms_shape known, ms_shape *out, int64_t *out_n) {
    if (out == NULL || out_n == NULL) return ms__fail(MS_E_INVALID, "ms_profile_get_fit_shapes: out or out_n is NULL");
    if (known.batch <= 0 || known.batch > INT64_MAX / 4 || known.length < 0)
        return ms__fail(MS_E_INVALID, "profiling other shapes needs an input whose first dimension is the batch");
    int64_t batch = known.batch > 2 ? known.batch : 2, n = 0;
    if (known.length < LEAST_LENGTH) {
        for (int64_t times = 1; times <= 3; times++) out[n++] = (ms_shape){times * batch, known.length};
    } else {
        const int64_t lengths[] = {known.length, quarters_of(known.length, 2), quarters_of(known.length, 1)};
        for (int i = 0; i < 6; i++) out[n++] = (ms_shape){.batch = (1 + i % 2) * batch, .length = lengths[i / 2]};
        out[n++] = (ms_shape){3 * batch, quarters_of(known.length, 3)};
    }
    *out_n = n;
    return MS_OK;
}
