/* driver.h - NVIDIA's libraries as tables of functions: the driver, its management library, its run-time compiler.
 *
 * Everything that MemScale calls in them is in the three lists below, with our own prototypes; no CUDA header is read
 * and nothing is linked. Names are those that the libraries export, with a version suffix where there is one. If a
 * component works, every function of its table that is marked NEEDED can be called; those marked OPTIONAL are NULL if
 * the library is too old.
 */
#ifndef MS_CU_DRIVER_H
#define MS_CU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "../common/status.h"

typedef struct ms__cu_context_st *ms__cu_context;
typedef struct ms__cu_module_st *ms__cu_module;
typedef struct ms__cu_function_st *ms__cu_function;
typedef struct ms__cu_stream_st *ms__cu_stream;
typedef struct ms__cu_event_st *ms__cu_event;
typedef struct ms__nvml_device_st *ms__nvml_device;
typedef struct ms__nvrtc_program_st *ms__nvrtc_program;
typedef unsigned long long ms__cu_address; /* in device memory */

typedef struct ms__cu_uuid {
    unsigned char bytes[16];
} ms__cu_uuid;

typedef struct ms__nvml_memory {
    unsigned long long total, free, used;
} ms__nvml_memory;

typedef struct ms__nvml_memory_v2 {
    unsigned version; /* MS__NVML_MEMORY_V2 */
    unsigned long long total, reserved, free, used;
} ms__nvml_memory_v2;

typedef struct ms__nvml_process {
    unsigned pid;
    unsigned long long used_bytes; /* all ones: unknown */
    unsigned gpu_instance, compute_instance;
} ms__nvml_process;

#define MS__NVML_MEMORY_V2 ((unsigned)sizeof(ms__nvml_memory_v2) | 2U << 24)

enum {
    MS__CUDA_OUT_OF_MEMORY = 2,
    MS__CUDA_ATTRIBUTE_MULTIPROCESSORS = 16,
    MS__CUDA_ATTRIBUTE_INTEGRATED = 18,
    MS__CUDA_ATTRIBUTE_CAPABILITY_MAJOR = 75,
    MS__CUDA_ATTRIBUTE_CAPABILITY_MINOR = 76,
    MS__CUDA_NOT_READY = 600,
    MS__CUDA_STREAM_NON_BLOCKING = 1,
    MS__CUDA_EVENT_NO_TIMING = 2,
    MS__CUDA_HOST_PORTABLE = 1
};

/* X(result, name, arguments, NEEDED or OPTIONAL) */
#define MS__CUDA_SYMBOLS(X)                                                                                            \
    X(int, cuInit, (unsigned flags), NEEDED)                                                                           \
    X(int, cuDriverGetVersion, (int *version), NEEDED)                                                                 \
    X(int, cuGetErrorName, (int code, const char **text), OPTIONAL)                                                    \
    X(int, cuGetErrorString, (int code, const char **text), OPTIONAL)                                                  \
    X(int, cuDeviceGetCount, (int *n), NEEDED)                                                                         \
    X(int, cuDeviceGet, (int *device, int index), NEEDED)                                                              \
    X(int, cuDeviceGetName, (char *name, int n_bytes, int device), NEEDED)                                             \
    X(int, cuDeviceGetUuid_v2, (ms__cu_uuid * uuid, int device), OPTIONAL)                                             \
    X(int, cuDeviceGetPCIBusId, (char *id, int n_bytes, int device), NEEDED)                                           \
    X(int, cuDeviceTotalMem_v2, (size_t *n_bytes, int device), NEEDED)                                                 \
    X(int, cuDeviceGetAttribute, (int *value, int attribute, int device), NEEDED)                                      \
    X(int, cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active), NEEDED)                             \
    X(int, cuDevicePrimaryCtxRetain, (ms__cu_context * context, int device), NEEDED)                                   \
    X(int, cuDevicePrimaryCtxRelease_v2, (int device), NEEDED)                                                         \
    X(int, cuCtxPushCurrent_v2, (ms__cu_context context), NEEDED)                                                      \
    X(int, cuCtxPopCurrent_v2, (ms__cu_context * context), NEEDED)                                                     \
    X(int, cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes), NEEDED)                                         \
    X(int, cuMemAlloc_v2, (ms__cu_address * address, size_t n_bytes), NEEDED)                                          \
    X(int, cuMemFree_v2, (ms__cu_address address), NEEDED)                                                             \
    X(int, cuMemHostAlloc, (void **memory, size_t n_bytes, unsigned flags), NEEDED)                                    \
    X(int, cuMemFreeHost, (void *memory), NEEDED)                                                                      \
    X(int, cuMemHostRegister_v2, (void *memory, size_t n_bytes, unsigned flags), NEEDED)                               \
    X(int, cuMemHostUnregister, (void *memory), NEEDED)                                                                \
    X(int, cuMemsetD8Async, (ms__cu_address to, unsigned char value, size_t n, ms__cu_stream stream), NEEDED)          \
    X(int, cuMemcpyHtoDAsync_v2, (ms__cu_address to, const void *from, size_t n, ms__cu_stream stream), NEEDED)        \
    X(int, cuMemcpyDtoHAsync_v2, (void *to, ms__cu_address from, size_t n, ms__cu_stream stream), NEEDED)              \
    X(int, cuStreamCreate, (ms__cu_stream * stream, unsigned flags), NEEDED)                                           \
    X(int, cuStreamDestroy_v2, (ms__cu_stream stream), NEEDED)                                                         \
    X(int, cuStreamSynchronize, (ms__cu_stream stream), NEEDED)                                                        \
    X(int, cuStreamWaitEvent, (ms__cu_stream stream, ms__cu_event event, unsigned flags), NEEDED)                      \
    X(int, cuEventCreate, (ms__cu_event * event, unsigned flags), NEEDED)                                              \
    X(int, cuEventDestroy_v2, (ms__cu_event event), NEEDED)                                                            \
    X(int, cuEventQuery, (ms__cu_event event), NEEDED)                                                                 \
    X(int, cuEventRecord, (ms__cu_event event, ms__cu_stream stream), NEEDED)                                          \
    X(int, cuEventElapsedTime, (float *milliseconds, ms__cu_event start, ms__cu_event end), NEEDED)                    \
    X(int, cuModuleLoadData, (ms__cu_module * module, const void *image), NEEDED)                                      \
    X(int, cuModuleUnload, (ms__cu_module module), NEEDED)                                                             \
    X(int, cuModuleGetFunction, (ms__cu_function * function, ms__cu_module module, const char *name), NEEDED)          \
    X(int, cuLaunchKernel,                                                                                             \
      (ms__cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,                  \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, ms__cu_stream stream, void **arguments,              \
       void **extra),                                                                                                  \
      NEEDED)

#define MS__NVML_SYMBOLS(X)                                                                                            \
    X(int, nvmlInit_v2, (void), NEEDED)                                                                                \
    X(int, nvmlShutdown, (void), NEEDED)                                                                               \
    X(const char *, nvmlErrorString, (int code), NEEDED)                                                               \
    X(int, nvmlSystemGetDriverVersion, (char *text, unsigned n_bytes), NEEDED)                                         \
    X(int, nvmlDeviceGetHandleByPciBusId_v2, (const char *id, ms__nvml_device *device), NEEDED)                        \
    X(int, nvmlDeviceGetHandleByUUID, (const char *uuid, ms__nvml_device *device), NEEDED)                             \
    X(int, nvmlDeviceGetMaxPcieLinkGeneration, (ms__nvml_device device, unsigned *generation), NEEDED)                 \
    X(int, nvmlDeviceGetMaxPcieLinkWidth, (ms__nvml_device device, unsigned *width), NEEDED)                           \
    X(int, nvmlDeviceGetMemoryInfo, (ms__nvml_device device, ms__nvml_memory * memory), NEEDED)                        \
    X(int, nvmlDeviceGetMemoryInfo_v2, (ms__nvml_device device, ms__nvml_memory_v2 * memory), OPTIONAL)                \
    X(int, nvmlDeviceGetComputeRunningProcesses_v2,                                                                    \
      (ms__nvml_device device, unsigned *n, ms__nvml_process *processes), OPTIONAL)                                    \
    X(int, nvmlDeviceGetComputeRunningProcesses_v3,                                                                    \
      (ms__nvml_device device, unsigned *n, ms__nvml_process *processes), OPTIONAL)

#define MS__NVRTC_SYMBOLS(X)                                                                                           \
    X(const char *, nvrtcGetErrorString, (int code), NEEDED)                                                           \
    X(int, nvrtcVersion, (int *major, int *minor), NEEDED)                                                             \
    X(int, nvrtcGetNumSupportedArchs, (int *n), NEEDED)                                                                \
    X(int, nvrtcGetSupportedArchs, (int *architectures), NEEDED)                                                       \
    X(int, nvrtcCreateProgram,                                                                                         \
      (ms__nvrtc_program * program, const char *source, const char *name, int n_headers, const char *const *headers,   \
       const char *const *names),                                                                                      \
      NEEDED)                                                                                                          \
    X(int, nvrtcDestroyProgram, (ms__nvrtc_program * program), NEEDED)                                                 \
    X(int, nvrtcCompileProgram, (ms__nvrtc_program program, int n_options, const char *const *options), NEEDED)        \
    X(int, nvrtcGetProgramLogSize, (ms__nvrtc_program program, size_t *n_bytes), NEEDED)                               \
    X(int, nvrtcGetProgramLog, (ms__nvrtc_program program, char *log), NEEDED)                                         \
    X(int, nvrtcGetCUBINSize, (ms__nvrtc_program program, size_t *n_bytes), NEEDED)                                    \
    X(int, nvrtcGetCUBIN, (ms__nvrtc_program program, char *image), NEEDED)                                            \
    X(int, nvrtcGetPTXSize, (ms__nvrtc_program program, size_t *n_bytes), NEEDED)                                      \
    X(int, nvrtcGetPTX, (ms__nvrtc_program program, char *image), NEEDED)

#define MS__DRIVER_MEMBER(result, name, arguments, need) result(*name) arguments;

typedef struct ms__cuda {
    MS__CUDA_SYMBOLS(MS__DRIVER_MEMBER)
} ms__cuda;

typedef struct ms__nvml {
    MS__NVML_SYMBOLS(MS__DRIVER_MEMBER)
} ms__nvml;

typedef struct ms__nvrtc {
    MS__NVRTC_SYMBOLS(MS__DRIVER_MEMBER)
} ms__nvrtc;

#undef MS__DRIVER_MEMBER

/* One of the libraries, or why it cannot be used. */
typedef struct ms__component {
    bool is_there; /* the library could be opened, whether it works or not */
    bool works;
    int64_t version; /* as in ms_gpu_component_info */
    char text[sizeof((ms_gpu_component_info *)NULL)->text];
} ms__component;

/* Record what a component is, or why it does not work. Longer texts are cut. */
void ms__component_works(ms__component *part, int64_t version, const char *format, ...) MS__PRINTF(3, 4);
void ms__component_fails(ms__component *part, const char *format, ...) MS__PRINTF(2, 3);

/* Open the library and initialise it (cuInit, nvmlInit). A failure is not an error: it becomes the component's text. */
void ms__driver_open(ms__cuda *cuda, ms__component *part, const char *path);
void ms__nvml_open(ms__nvml *nvml, ms__component *part, const char *path);

/* The first of `paths` (which ends in NULL) that can be used; NULL: the usual names, first those that the process has
 * already loaded. If `driver_version` is not 0, a compiler of a later CUDA is skipped: the driver could not load its
 * code. */
void ms__nvrtc_open(ms__nvrtc *nvrtc, ms__component *part, const char *const *paths, int64_t driver_version);

/* Record that `call` returned `code`: MS_E_CUDA, with the driver's name for the error. */
ms_status ms__cuda_fail(const ms__cuda *cuda, const char *call, int code);

/* The driver's name for an error ("CUDA_ERROR_NO_DEVICE"), or "error N" in `buffer`. */
#define MS__CUDA_NAME_BYTES 32
const char *ms__cuda_error_name(const ms__cuda *cuda, int code, char *buffer);

#endif
