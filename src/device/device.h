/* device.h - kernels on devices: joins the table of kernels with the programs of cu. */
#ifndef MS_DEVICE_H
#define MS_DEVICE_H

#include "../cu/gpu.h"
#include "../cu/program.h"
#include "../kernels/kernels.h"

/* Queue a kernel of the table (MS__KERNEL_...) on a device whose context is current. `args` is the kernel's structure
 * and args_bytes its size, which is checked. Errors: MS_E_INVALID (another size), those of ms__program_launch. */
ms_status ms__kernel_launch(ms_gpu *gpu, int64_t device, int kernel, const ms__launch *launch);

#endif
