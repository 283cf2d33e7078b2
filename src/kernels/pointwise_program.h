/* pointwise_program.h - pointwise programs: what memscale.h calls ms_pointwise, checked, as text and as a reference.
 *
 * A program's source is pointwise_math.h, the few lines that follow from the program, and cuda/pointwise.cu.
 */
#ifndef MS_KERNELS_POINTWISE_H
#define MS_KERNELS_POINTWISE_H

#include <memscale/memscale.h>

#include "shared.h"

#define MS__POINTWISE_WIDTH 4 /* elements of a thread: MS__PW_WIDTH in cuda/pointwise.cu */
#define MS__POINTWISE_ENTRY "ms_pointwise_kernel"

typedef struct ms__pointwise_args {
    ms__u64 inputs[MS_POINTWISE_MAX_INPUTS], output, n, is_aligned;
} ms__pointwise_args;

/* A caller's program as ours, if it is one. Errors: MS_E_INVALID. */
ms_status ms__pointwise_read(const ms_pointwise *theirs, ms_pointwise *out);

/* The bytes of one element. */
int64_t ms__pointwise_element_bytes(int32_t dtype);

/* The type of the result. */
int32_t ms__pointwise_result(const ms_pointwise *program);

/* One word that is another one for every other program. */
#define MS__POINTWISE_NAME_BYTES 48
void ms__pointwise_name(const ms_pointwise *program, char *out);

/* Its source: ms_free. NULL: no memory. */
char *ms__pointwise_text(const ms_pointwise *program);

#endif
