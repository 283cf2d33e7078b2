/* compile.c - device code through NVRTC: program.h.
 *
 * NVRTC works without a device and without a context, so nothing here touches either. An NVRTC program lives for one
 * call.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "../common/log.h"
#include "../common/text.h"
#include "program.h"

#define MAX_ARCHITECTURES 128
#define LOG_BYTES ((size_t)1 << 20)

static ms_status nvrtc_fail(const ms_gpu *gpu, const char *call, int code) {
    return ms__fail(MS_E_UNAVAILABLE, "%s failed: %s", call, gpu->nvrtc.nvrtcGetErrorString(code));
}

/* The latest architecture up to a capability that NVRTC knows. 0: it knows none. */
static ms_status latest_known(const ms_gpu *gpu, int64_t capability, int *out) {
    int n = 0, known[MAX_ARCHITECTURES], best = 0;
    int code = gpu->nvrtc.nvrtcGetNumSupportedArchs(&n);
    if (code != 0) return nvrtc_fail(gpu, "nvrtcGetNumSupportedArchs", code);
    if (n < 0 || n > MAX_ARCHITECTURES)
        return ms__fail(MS_E_UNAVAILABLE, "NVRTC reports %d architectures, which is out of range", n);
    code = gpu->nvrtc.nvrtcGetSupportedArchs(known);
    if (code != 0) return nvrtc_fail(gpu, "nvrtcGetSupportedArchs", code);
    for (int i = 0; i < n; i++)
        if (known[i] <= capability && known[i] > best) best = known[i];
    *out = best;
    return MS_OK;
}

ms_status ms__program_target(const ms_gpu *gpu, int64_t capability, char *option, bool *out_to_ptx) {
    if (!gpu->nvrtc_component.works) return ms__fail(MS_E_UNAVAILABLE, "no NVRTC: %s", gpu->nvrtc_component.text);
    int known = 0;
    ms_status status = latest_known(gpu, capability, &known);
    if (status != MS_OK) return status;
    if (known == 0)
        return ms__fail(MS_E_UNAVAILABLE, "NVRTC %" PRId64 ".%" PRId64 " does not support devices of capability %.1f",
                        gpu->nvrtc_component.version / 1000, gpu->nvrtc_component.version % 1000 / 10,
                        (double)capability / 10);
    bool to_ptx = known != capability;
    (void)snprintf(option, MS__OPTION_BYTES, "--gpu-architecture=%s_%d", to_ptx ? "compute" : "sm", known);
    *out_to_ptx = to_ptx;
    return MS_OK;
}

/* The compiler's log, as far as it fits into a message. */
static ms_status compile_fails(const ms_gpu *gpu, ms__nvrtc_program compiled, const char *name, int code) {
    size_t n_bytes = 0;
    char *log = NULL;
    if (gpu->nvrtc.nvrtcGetProgramLogSize(compiled, &n_bytes) == 0 && n_bytes > 0 && n_bytes <= LOG_BYTES)
        log = calloc(1, n_bytes + 1);
    if (log != NULL && gpu->nvrtc.nvrtcGetProgramLog(compiled, log) != 0) log[0] = '\0';
    ms_status status = ms__fail(MS_E_UNAVAILABLE, "NVRTC cannot compile %s: %s: %.400s", name,
                                gpu->nvrtc.nvrtcGetErrorString(code), log == NULL ? "" : log);
    free(log);
    return status;
}

/* The machine code or PTX of a compiled program. */
static ms_status take_image(const ms_gpu *gpu, ms__nvrtc_program compiled, bool to_ptx, ms__image *out) {
    size_t n_bytes = 0;
    int code =
        to_ptx ? gpu->nvrtc.nvrtcGetPTXSize(compiled, &n_bytes) : gpu->nvrtc.nvrtcGetCUBINSize(compiled, &n_bytes);
    if (code != 0) return nvrtc_fail(gpu, to_ptx ? "nvrtcGetPTXSize" : "nvrtcGetCUBINSize", code);
    if (n_bytes == 0) return ms__fail(MS_E_UNAVAILABLE, "NVRTC returned no code");
    char *bytes = calloc(1, n_bytes + 1);
    if (bytes == NULL) return ms__fail_memory(n_bytes + 1);
    code = to_ptx ? gpu->nvrtc.nvrtcGetPTX(compiled, bytes) : gpu->nvrtc.nvrtcGetCUBIN(compiled, bytes);
    if (code != 0) {
        free(bytes);
        return nvrtc_fail(gpu, to_ptx ? "nvrtcGetPTX" : "nvrtcGetCUBIN", code);
    }
    *out = (ms__image){bytes, n_bytes};
    return MS_OK;
}

ms_status ms__program_compile(const ms_gpu *gpu, const ms__program *program, const char *option, bool to_ptx,
                              ms__image *out) {
    int64_t start_ns = ms__prim_now_ns();
    ms__nvrtc_program compiled = NULL;
    int code = gpu->nvrtc.nvrtcCreateProgram(&compiled, program->source, program->name, 0, NULL, NULL);
    if (code != 0) return nvrtc_fail(gpu, "nvrtcCreateProgram", code);
    code = gpu->nvrtc.nvrtcCompileProgram(compiled, 1, &option);
    ms_status status =
        code != 0 ? compile_fails(gpu, compiled, program->name, code) : take_image(gpu, compiled, to_ptx, out);
    (void)gpu->nvrtc.nvrtcDestroyProgram(&compiled);
    if (status == MS_OK)
        ms__log(MS_LOG_DEBUG, "%s compiled with %s in %s", program->name, option,
                ms__time_text(ms__prim_now_ns() - start_ns, MS__MIN_DIGITS).text);
    return status;
}
