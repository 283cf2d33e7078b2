/* hw.h - the parts of the hardware record: the host (host.c) and its GPUs (gpus.c). */
#ifndef MS_HW_H
#define MS_HW_H

#include "../common/status.h"

/* Fill in n_gpus and gpus. `gpu` may be NULL: none. A device that cannot be read is left out and logged. */
void ms__hw_read_gpus(ms_gpu *gpu, ms_hw *out);

#endif
