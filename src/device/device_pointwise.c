/* device_pointwise.c - ms_gpu_pointwise: pointwise programs on devices. */
#include <inttypes.h>

#include "../common/status.h"
#include "../kernels/pointwise_program.h"
#include "device.h"

#define N_THREADS 256
#define N_PER_BLOCK ((int64_t)N_THREADS * MS__POINTWISE_WIDTH)

_Static_assert(MS__POINTWISE_NAME_BYTES <= MS__PROGRAM_NAME_BYTES, "names of pointwise programs are names of programs");

/* May a thread read and write all of its elements at once? */
static bool is_aligned(const ms_pointwise *program, const ms__pointwise_args *args) {
    bool is_it =
        args->output % (ms__u64)(MS__POINTWISE_WIDTH * ms__pointwise_element_bytes(ms__pointwise_result(program))) == 0;
    for (int64_t i = 0; i < program->n_inputs; i++)
        is_it = is_it && args->inputs[i] % (ms__u64)(MS__POINTWISE_WIDTH *
                                                     ms__pointwise_element_bytes(program->input_dtypes[i])) ==
                             0;
    return is_it;
}

/* The context is current. The text is made only where the program has not run yet. */
static ms_status queue(ms_gpu *gpu, int64_t device, const ms_pointwise *program, const ms__launch *launch) {
    char name[MS__POINTWISE_NAME_BYTES];
    ms__pointwise_name(program, name);
    char *source = NULL;
    if (!ms__program_is_loaded(gpu, device, name)) {
        source = ms__pointwise_text(program);
        if (source == NULL) return ms__fail_memory(sizeof *program);
    }
    const ms__program text = {.name = name, .entry = MS__POINTWISE_ENTRY, .source = source};
    ms_status status = ms__program_launch(gpu, device, &text, launch);
    ms_free(source);
    return status;
}

ms_status ms_gpu_pointwise(ms_gpu *gpu, int64_t device, const ms_pointwise *program, const uint64_t *inputs,
                           uint64_t output, int64_t n, uint64_t stream) {
    ms_pointwise ours;
    ms_status status = ms__pointwise_read(program, &ours);
    if (status == MS_OK) status = ms__gpu_check(gpu, device);
    if (status != MS_OK) return status;
    int64_t n_blocks = n <= 0 ? 0 : (n - 1) / N_PER_BLOCK + 1;
    if (n < 0 || n_blocks > INT32_MAX || inputs == NULL)
        return ms__fail(MS_E_INVALID, "ms_gpu_pointwise: %" PRId64 " elements cannot be computed at once", n);
    if (n == 0) return MS_OK;
    ms__pointwise_args args = {.output = output, .n = (ms__u64)n};
    for (int64_t i = 0; i < MS_POINTWISE_MAX_INPUTS; i++) args.inputs[i] = inputs[i < ours.n_inputs ? i : 0];
    args.is_aligned = is_aligned(&ours, &args);
    const ms__launch launch = {.n_blocks = (unsigned)n_blocks,
                               .n_threads = N_THREADS,
                               .args = &args,
                               .args_bytes = sizeof args,
                               .stream = stream};
    status = ms__gpu_enter(gpu, device);
    if (status == MS_OK) status = ms__gpu_leave(gpu, queue(gpu, device, &ours, &launch));
    return status;
}
