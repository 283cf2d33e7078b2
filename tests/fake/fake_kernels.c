/* fake_kernels.c - the project's device code, compiled by the C compiler, and the loop over a grid.
 *
 * So the same text that runs on a GPU runs under the host's sanitizers. A new kernel is one include and one line. It is
 * built without strict aliasing, which device code does not follow.
 */
#include "fake.h"

#include <string.h>

#include "shim.h"

#include "../../src/kernels/cuda/checksum.cu"
#include "../../src/kernels/pointwise_program.h"

static void run_checksum(const void *args) { ms_checksum_kernel(*(const ms__checksum_args *)args); }

/* The frame of pointwise programs is C++. This one copies 32-bit elements, whatever the program. */
static void run_pointwise(const void *args) {
    const ms__pointwise_args *a = args;
    unsigned long long first = ((unsigned long long)blockIdx.x * blockDim.x + threadIdx.x) * MS__POINTWISE_WIDTH;
    for (unsigned long long i = first; i < first + MS__POINTWISE_WIDTH && i < a->n; i++)
        ((float *)a->output)[i] = ((const float *)a->inputs[0])[i];
}

static const struct {
    const char *entry;
    size_t args_bytes;
    void (*run)(const void *args);
} kernels[] = {{"ms_checksum_kernel", sizeof(ms__checksum_args), run_checksum},
               {MS__POINTWISE_ENTRY, sizeof(ms__pointwise_args), run_pointwise}};

int fake_kernel_find(const char *entry) {
    for (int i = 0; i < (int)(sizeof kernels / sizeof *kernels); i++)
        if (strcmp(kernels[i].entry, entry) == 0) return i;
    return -1;
}

size_t fake_kernel_args_bytes(int kernel) { return kernels[kernel].args_bytes; }

void fake_kernel_run(int kernel, unsigned n_blocks, unsigned n_threads, const void *args) {
    gridDim = (fake_dim){n_blocks, 1, 1};
    blockDim = (fake_dim){n_threads, 1, 1};
    for (unsigned block = 0; block < n_blocks; block++) {
        for (unsigned thread = 0; thread < n_threads; thread++) {
            blockIdx = (fake_dim){block, 0, 0};
            threadIdx = (fake_dim){thread, 0, 0};
            kernels[kernel].run(args);
        }
    }
}
