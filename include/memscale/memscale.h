/* memscale.h - the public interface of libmemscale, the engine of the MemScale memory optimizer.
 *
 * libmemscale decides how one training step fits into the memory there is. It knows nothing of Python or PyTorch and
 * depends on the C library alone.
 *
 * Conventions
 *   Errors     Fallible functions return ms_status: MS_OK (0) or a negative code of memscale_errors.h. Results go
 *              through out-parameters, which are written only on success. ms_error_message() has the details of the
 *              calling thread's last failure. The library never prints, exits or aborts.
 *   Ownership  Every pointer parameter is borrowed for the call unless its comment says "owned" (the caller gets it
 *              and frees it). What X_create returns is destroyed by X_destroy, and X_destroy(NULL) does nothing.
 *   Threads    All functions may be called from several threads at once on different objects. An object belongs to
 *              one thread at a time, except where its comment says that it is immutable.
 *   Structs    Structures that cross the boundary start with struct_bytes, which the caller sets to sizeof of the
 *              structure as it was compiled; a newer library then knows which fields are there.
 *   Numbers    Sizes are bytes, counts are 64-bit, fractions are parts per million. No decision uses floating point.
 */
#ifndef MEMSCALE_H
#define MEMSCALE_H

#include <stddef.h>
#include <stdint.h>

#include "memscale_errors.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define MS_API
#else
#define MS_API __attribute__((visibility("default")))
#endif

#define MS_VERSION_MAJOR 0
#define MS_VERSION_MINOR 1
#define MS_VERSION_PATCH 0
#define MS_VERSION_STRING "0.1.0"

/* The version of the library that was loaded, e.g. "0.1.0". Static storage. Any thread. Cannot fail. */
MS_API const char *ms_version(void);

/* ---- Status and errors ---------------------------------------------------------------------------------------- */

typedef int32_t ms_status;

enum ms_status_code {
#define MS_ERROR_ENUM(name, code, text) name = code,
    MS_ERROR_LIST(MS_ERROR_ENUM)
#undef MS_ERROR_ENUM
};

/* The name of a code, e.g. "MS_E_PARSE", or "MS_E_UNKNOWN". Static storage. Any thread. Cannot fail. */
MS_API const char *ms_status_name(ms_status status);

/* The short text of a code, e.g. "malformed input". Static storage. Any thread. Cannot fail. */
MS_API const char *ms_status_text(ms_status status);

/* What went wrong in the calling thread's last failed call, as a sentence; "" if nothing has. Valid until the
 * thread's next call into the library. Cannot fail. */
MS_API const char *ms_error_message(void);

/* The number that belongs to the calling thread's last failure: for MS_E_BUDGET the smallest reachable peak in bytes,
 * for MS_E_PARSE the byte offset, else 0. Cannot fail. */
MS_API int64_t ms_error_value(void);

/* Forget the calling thread's last failure. Cannot fail. */
MS_API void ms_error_clear(void);

/* Free memory that the library handed out as "owned, ms_free". NULL is allowed. Any thread. Cannot fail. */
MS_API void ms_free(void *memory);

/* ---- Logging --------------------------------------------------------------------------------------------------- */

enum ms_log_level { MS_LOG_DEBUG = 0, MS_LOG_INFO = 1, MS_LOG_WARNING = 2 };

/* Where the library's messages go. `write` is called on whichever thread has something to say, possibly several at
 * once, with no lock held; `message` is valid during the call. */
typedef struct ms_log_sink {
    void (*write)(void *user, int level, const char *message);
    void *user;
    int min_level; /* messages below this level are not formatted */
} ms_log_sink;

/* Send messages to `sink`, or nowhere with NULL (the default). `sink` is borrowed until it is replaced and every call
 * that may still be logging has returned. Any thread. Cannot fail. */
MS_API void ms_log_set_sink(const ms_log_sink *sink);

/* ---- GPUs ------------------------------------------------------------------------------------------------------ */

/* The GPUs that this process can reach: NVIDIA's driver, its management library and its run-time compiler, opened at
 * run time, or the reason why each of them could not be. Without a driver everything else still works; there are then
 * no devices. Devices are numbered as the driver numbers them (CUDA_VISIBLE_DEVICES and MIG respected). Contexts are
 * the devices' primary ones, which other libraries of the process use too; none is made before it is needed, and the
 * calling thread's current context is the same after a call as before. Any thread, several at once. A child process
 * that was forked cannot use its parent's (MS_E_UNAVAILABLE). */
typedef struct ms_gpu ms_gpu;

typedef struct ms_gpu_options {
    uint64_t struct_bytes;
    const char *driver_path;        /* NULL: libcuda.so.1 */
    const char *nvml_path;          /* NULL: libnvidia-ml.so.1 */
    const char *const *nvrtc_paths; /* tried in this order, ends with NULL. NULL: the usual names of libnvrtc */
    const char *cache_path;         /* folder of compiled programs. NULL: MEMSCALE_CACHE_DIR, else memscale in
                                     * XDG_CACHE_HOME, else ~/.cache/memscale. "": nothing is kept on disk */
} ms_gpu_options;

/* Open what there is. `options` may be NULL. `*out_gpu` is owned, ms_gpu_destroy. An absent driver is not an error.
 * Errors: MS_E_INVALID, MS_E_LIMIT (a path is too long), MS_E_NO_MEMORY. */
MS_API ms_status ms_gpu_create(const ms_gpu_options *options, ms_gpu **out_gpu);

/* Unload programs, give contexts back, shut NVML down. The libraries stay loaded, since others of the process may use
 * them; in a forked child memory is freed and nothing else is done. No call on it may be running. Cannot fail. NULL is
 * allowed. */
MS_API void ms_gpu_destroy(ms_gpu *gpu);

/* How many devices there are; 0 without a driver, for NULL, and in a forked child. Cannot fail. */
MS_API int64_t ms_gpu_count_devices(const ms_gpu *gpu);

enum ms_gpu_component {
    MS_GPU_DRIVER = 0, /* devices, copies, launches */
    MS_GPU_NVML = 1,   /* link and memory of other processes */
    MS_GPU_NVRTC = 2,  /* compiles kernels */
    MS_GPU_PTX = 3,    /* kernels that were compiled when the library was built */
    MS_GPU_CACHE = 4   /* compiled programs on disk */
};

typedef struct ms_gpu_component_info {
    uint64_t struct_bytes;
    int64_t works;   /* 1 or 0 */
    int64_t version; /* 1000 * major + 10 * minor, as CUDA writes it; 0 if it has none or does not work */
    char text[256];  /* what it is (a path, a folder), or why it does not work */
} ms_gpu_component_info;

/* One of enum ms_gpu_component. `out->struct_bytes` must be set. Any thread. Errors: MS_E_INVALID. */
MS_API ms_status ms_gpu_get_component(ms_gpu *gpu, int32_t part, ms_gpu_component_info *out);

/* The name of a part, e.g. "driver"; "?" if unknown. Static storage. Cannot fail. */
MS_API const char *ms_gpu_component_name(int32_t part);

/* A 64-bit checksum of bytes, the same on host and device: a check against lost or changed bytes, not against malice.
 * `data` may be NULL where n_bytes is 0. Any thread. Cannot fail. */
MS_API uint64_t ms_checksum(const void *data, size_t n_bytes);

/* The same of device memory, computed there. `address` is a device address; `stream` is a CUstream (0: the legacy
 * default stream) of the device's primary context. Work that was queued on the stream is seen; the call waits for the
 * stream. Where no kernel can be had (ms_gpu_get_component tells why) the bytes are copied to the host in pieces and
 * summed there, which is said once at info. Any thread. Errors: MS_E_INVALID (no such device or range),
 * MS_E_UNAVAILABLE (no driver), MS_E_CUDA, MS_E_NO_MEMORY. */
MS_API ms_status ms_gpu_checksum(ms_gpu *gpu, int64_t device, uint64_t address, uint64_t n_bytes, uint64_t stream,
                                 uint64_t *out);

typedef struct ms_gpu_link {
    uint64_t struct_bytes;
    int64_t n_bytes;          /* of one copy */
    int64_t to_device_rate;   /* bytes per second, host to device, pinned memory; the median of several copies */
    int64_t from_device_rate; /* device to host */
    int64_t both_rate;        /* both at once, summed */
    int64_t pinning_rate;     /* taking pinned host memory */
    int64_t intact;           /* 1: what came back has the checksum of what was sent */
} ms_gpu_link;

/* Measure the link between host and device with copies of n_bytes (at least 4096). Takes n_bytes * 2 of pinned host
 * memory and of device memory meanwhile. `out->struct_bytes` must be set. Any thread. Errors: MS_E_INVALID,
 * MS_E_UNAVAILABLE, MS_E_CUDA (also: out of device memory), MS_E_NO_MEMORY. */
MS_API ms_status ms_gpu_measure_link(ms_gpu *gpu, int64_t device, int64_t n_bytes, ms_gpu_link *out);

/* ---- Hardware -------------------------------------------------------------------------------------------------- */

#define MS_HW_MAX_GPUS 16

/* One GPU as a plan sees it. */
typedef struct ms_hw_gpu {
    int64_t index; /* as the driver numbers them in this process */
    char name[96]; /* UTF-8 */
    char uuid[48]; /* "GPU-..." or "MIG-...", "" if unknown */
    int64_t memory_total_bytes;
    int64_t memory_free_bytes;   /* -1: unknown */
    int64_t memory_others_bytes; /* taken by other processes; -1: unknown */
    int64_t capability;          /* 10 * major + minor: 90 is 9.0 */
    int64_t has_bf16;            /* 1 from capability 8.0 on: what the chip does, not what libraries emulate */
    int64_t has_fp16;            /* 1 from capability 7.0 on */
    int64_t n_multiprocessors;
    int64_t pcie_generation; /* the best that device and slot can do together; 0: unknown */
    int64_t pcie_width;      /* lanes, likewise; 0: unknown */
    int64_t is_mig;          /* 1: a slice of a device */
    int64_t is_integrated;   /* 1: its memory is the host's */
} ms_hw_gpu;

/* The machine as a plan sees it. Filled by ms_hw_detect or ms_hw_from_json. A plain value: copy it freely. */
typedef struct ms_hw {
    uint64_t struct_bytes;
    int64_t memory_total_bytes;     /* physical memory of the machine */
    int64_t memory_limit_bytes;     /* what this process may use: the tightest control group, else the total */
    int64_t memory_available_bytes; /* what could be taken now without swapping, within that limit */
    int64_t page_bytes;
    int64_t n_cores;        /* cores that this process may keep busy: affinity and control-group quota */
    int64_t n_cores_online; /* cores of the machine */
    int64_t n_numa_nodes;   /* at least 1 */
    int64_t cgroup_version; /* 0: none found, 1 or 2 */
    int64_t n_gpus;         /* the first MS_HW_MAX_GPUS of them */
    ms_hw_gpu gpus[MS_HW_MAX_GPUS];
} ms_hw;

/* Read this machine. `root` is put before every path that is read ("" or NULL for the real ones), so that a recorded
 * tree can stand in for a machine. `gpu` may be NULL: the host alone. No context is made on a device. A device that
 * cannot be read is left out, which is said at warning. `out->struct_bytes` must be set. Any thread.
 * Errors: MS_E_INVALID, MS_E_IO (no memory information), MS_E_LIMIT (root too long), MS_E_NO_MEMORY. */
MS_API ms_status ms_hw_detect(const char *root, ms_gpu *gpu, ms_hw *out);

/* The record as JSON text. `*out_text` is owned, ms_free. Any thread. Errors: MS_E_INVALID, MS_E_NO_MEMORY. */
MS_API ms_status ms_hw_to_json(const ms_hw *hw, char **out_text);

/* The inverse, strict: unknown or missing fields and values out of range are errors, as are GPUs that do not stand in
 * the order of their indices. `out->struct_bytes` must be set. Any thread. Errors: MS_E_INVALID, MS_E_PARSE,
 * MS_E_VERSION, MS_E_NO_MEMORY. */
MS_API ms_status ms_hw_from_json(const char *text, size_t n_bytes, ms_hw *out);

/* ---- Hardware models ------------------------------------------------------------------------------------------- */

/* A GPU by its data sheet, so that a plan can be made for one that is not there. Rates are dense peaks. */
typedef struct ms_gpu_model {
    uint64_t struct_bytes;
    const char *key;      /* e.g. "rtx3090", "a100-80gb"; static storage */
    const char *name;     /* as the driver names it, e.g. "NVIDIA GeForce RTX 3090"; static storage */
    int64_t memory_bytes; /* what the driver reports as total, which is less than what is printed on the box */
    int64_t capability;   /* as in ms_hw_gpu */
    int64_t n_multiprocessors;
    int64_t fp32_gflops;     /* matrix products in GFLOP/s: without tensor cores */
    int64_t tf32_gflops;     /* 0: there is no such type */
    int64_t fp16_gflops;     /* accumulated in fp32 */
    int64_t bf16_gflops;     /* likewise; 0: there is no such type */
    int64_t memory_mb_per_s; /* MB are 1e6 bytes */
    int64_t link_mb_per_s;   /* each way, as copies reach it in a slot that has all that the card can use */
} ms_gpu_model;

/* How many models are known. Any thread. Cannot fail. */
MS_API int64_t ms_gpu_model_count(void);

/* The `index`-th of them, in the order of their generations. `out->struct_bytes` must be set. Any thread.
 * Errors: MS_E_INVALID (index out of range). */
MS_API ms_status ms_gpu_model_get(int64_t index, ms_gpu_model *out);

/* A model by its key, by the driver's name, or by what people call it: "rtx3090", "RTX 3090", "NVIDIA GeForce RTX
 * 3090". Case, spaces, dashes and the vendor's prefixes do not matter. The size of the memory may stand behind the name
 * ("rtx 4060 ti 16gb"); without it the model with the least is meant. `out->struct_bytes` must be set. Any thread.
 * Errors: MS_E_INVALID, MS_E_NOT_FOUND (the message names the closest). */
MS_API ms_status ms_gpu_model_find(const char *name, ms_gpu_model *out);

enum ms_rates_source { MS_RATES_TABLE = 0, MS_RATES_MEASURED = 1 };

#define MS_RATES_VERSION 1

/* How fast a device is, as operators reach it: what a model of time is made from. Work over rate is a time: operations
 * over GFLOP/s are nanoseconds, bytes over MB/s microseconds. A plain value: copy it freely. */
typedef struct ms_rates {
    uint64_t struct_bytes;
    int64_t source;       /* enum ms_rates_source */
    int64_t capability;   /* as in ms_hw_gpu; 0: the host's own processor */
    int64_t memory_bytes; /* of the device */
    int64_t fp32_gflops;  /* matrix products; above 0 */
    int64_t tf32_gflops;  /* 0: no faster than fp32, here and below */
    int64_t fp16_gflops;
    int64_t bf16_gflops;
    int64_t memory_mb_per_s;    /* bytes read and bytes written, together; above 0 */
    int64_t to_device_mb_per_s; /* from pinned host memory; 0: there is no link, the device is the host */
    int64_t from_device_mb_per_s;
    int64_t both_mb_per_s;    /* both ways at once, summed */
    int64_t pinning_mb_per_s; /* pinning host memory; 0: unknown */
    int64_t launch_ns;        /* the least time that a kernel takes on the device */
    int64_t dispatch_ns;      /* what an operator takes on the host until it is queued, or done where the device is the
                               * host */
} ms_rates;

/* What can be expected of a model: its peaks less fixed shares (rates.c). `model->struct_bytes` and `out->struct_bytes`
 * must be set. Any thread. Errors: MS_E_INVALID. */
MS_API ms_status ms_rates_from_model(const ms_gpu_model *model, ms_rates *out);

/* The rates as JSON text, versioned. `*out_text` is owned, ms_free. Any thread. Errors: MS_E_INVALID (also: a value out
 * of range), MS_E_NO_MEMORY. */
MS_API ms_status ms_rates_to_json(const ms_rates *rates, char **out_text);

/* The inverse, strict: unknown or missing fields and values out of range are errors. A rate is at most 1e9, both
 * ways 2e9, and a time at most a second. `out->struct_bytes` must be set. Any thread. Errors: MS_E_INVALID, MS_E_PARSE,
 * MS_E_VERSION, MS_E_NO_MEMORY. */
MS_API ms_status ms_rates_from_json(const char *text, size_t n_bytes, ms_rates *out);

/* ---- Devices --------------------------------------------------------------------------------------------------- */

enum ms_device_kind {
    MS_DEVICE_HOST = 0,       /* the host's own processor; its memory is the host's */
    MS_DEVICE_GPU = 1,        /* a GPU with memory of its own */
    MS_DEVICE_INTEGRATED = 2, /* a GPU whose memory is the host's: nothing is gained by offloading */
    MS_N_DEVICE_KINDS = 3
};

/* What a step runs on, for simulations and plans. */
typedef struct ms_device {
    uint64_t struct_bytes;
    const ms_rates *rates;     /* borrowed; its capability is 0 for MS_DEVICE_HOST and above 0 otherwise */
    int64_t n_multiprocessors; /* of a GPU; threads of the host */
    int64_t usable_bytes;      /* what torch's allocator could reserve there; 0: unknown */
    int64_t kind;              /* enum ms_device_kind */
} ms_device;

/* ---- Units ----------------------------------------------------------------------------------------------------- */

enum ms_module_flag {
    MS_MODULE_LIST = 1 << 0,   /* holds an ordered series of children (a list or a sequence of blocks) */
    MS_MODULE_CALLED = 1 << 1, /* has a forward of its own, so it can be a unit */
    MS_MODULE_OPAQUE = 1 << 2  /* never opened up: its children are not called one by one */
};

/* One module of a model, in the order of a depth-first walk: a parent stands before its children. */
typedef struct ms_module {
    int64_t parent;      /* index of the parent; -1 for the root, which is module 0 */
    uint64_t class_hash; /* equal for modules of one class */
    uint64_t own_hash;   /* class and the shapes and types of the module's own parameters */
    int64_t param_bytes; /* of the module's own parameters, each counted once in the model */
    uint32_t flags;      /* enum ms_module_flag */
    uint32_t reserved;   /* 0 */
} ms_module;

/* Find the units of a model: what a plan decides about. They are the repeated blocks and what stands between them;
 * no unit contains another. `out_units` has room for n_modules indices and gets *out_n_units of them, ascending.
 * Any thread. Errors: MS_E_INVALID (not a tree in depth-first order), MS_E_NO_MEMORY. */
MS_API ms_status ms_units_find(const ms_module *modules, int64_t n_modules, int64_t *out_units, int64_t *out_n_units);

/* A stable 64-bit hash of bytes: the same on every machine and in every release of one major version. Any thread.
 * Cannot fail. `data` may be NULL where n_bytes is 0. */
MS_API uint64_t ms_hash64(const void *data, size_t n_bytes, uint64_t seed);

/* ---- Traces ---------------------------------------------------------------------------------------------------- */

/* The phases of a training step, in order. MS_PHASE_SETUP is what is there before it. */
enum ms_phase {
    MS_PHASE_SETUP = 0,
    MS_PHASE_FORWARD = 1,
    MS_PHASE_LOSS = 2,
    MS_PHASE_BACKWARD = 3,
    MS_PHASE_OPTIMIZER_FIRST = 4, /* the first step of the optimizer, which makes its state */
    MS_PHASE_OPTIMIZER = 5,       /* every later one */
    MS_PHASE_END = 6,
    MS_N_PHASES = 7
};

/* What memory is taken for. */
enum ms_category {
    MS_CATEGORY_ACTIVATION = 0,
    MS_CATEGORY_PARAMETER = 1,
    MS_CATEGORY_BUFFER = 2,
    MS_CATEGORY_INPUT = 3,
    MS_CATEGORY_GRADIENT = 4,  /* of parameters */
    MS_CATEGORY_OPTIMIZER = 5, /* its state */
    MS_CATEGORY_TEMPORARY = 6, /* gradients on their way, temporaries of the optimizer, memory inside kernels */
    MS_CATEGORY_LIBRARY = 7,   /* workspaces of libraries */
    MS_N_CATEGORIES = 8
};

enum ms_trace_event_kind {
    MS_TRACE_OP = 0,    /* a: the operation */
    MS_TRACE_ALLOC = 1, /* a: the storage, b: its bytes */
    MS_TRACE_FREE = 2,  /* a: the storage */
    MS_TRACE_UNIT = 3,  /* a: the unit that runs from now on, -1: none */
    MS_TRACE_PHASE = 4, /* a: the phase that begins */
    MS_TRACE_REPEAT = 5 /* a: what follows is done to compute this unit again, -1: no longer */
};

typedef struct ms_trace_event {
    int64_t kind; /* enum ms_trace_event_kind */
    int64_t a, b;
} ms_trace_event;

typedef struct ms_trace_op {
    int64_t name;  /* index into the names */
    int64_t first; /* of its operands: inputs, then outputs */
    int64_t n_inputs;
    int64_t n_outputs;
} ms_trace_op;

typedef struct ms_trace_operand {
    int64_t storage; /* -1: not on the device */
    int64_t element_bytes;
    int64_t n_dims;
    int64_t dims[6]; /* padded with 1 */
} ms_trace_operand;

/* One training step as it was seen, on tensors without memory or in earnest. */
typedef struct ms_trace {
    uint64_t struct_bytes;
    const ms_trace_event *events;
    int64_t n_events;
    const ms_trace_op *ops;
    int64_t n_ops;
    const ms_trace_operand *operands;
    int64_t n_operands;
    const char *const *names; /* of operations, such as "aten.mm.default" */
    int64_t n_names;
    const int64_t *kinds; /* of storages: enum ms_category where it is known, else MS_CATEGORY_ACTIVATION */
    int64_t n_storages;
} ms_trace;

/* ---- Profiles -------------------------------------------------------------------------------------------------- */

enum ms_unit_flag {
    MS_UNIT_ELIGIBLE = 1 << 0, /* may be recomputed */
    MS_UNIT_RUN = 1 << 1       /* took part in the measured step; its bytes are meaningful */
};

/* What is known about a unit, in the order in which units first run. */
typedef struct ms_unit {
    const char *name;    /* UTF-8, unique in the model */
    int64_t param_bytes; /* parameters below it */
    int64_t saved_bytes; /* what its forward keeps for backward when nothing is done */
    int64_t input_bytes; /* what must be kept to run it again: its inputs that no earlier unit keeps */
    int64_t n_rows;      /* rows that go through its parameters: batch times length */
    uint32_t flags;      /* enum ms_unit_flag */
    uint32_t reserved;   /* 0 */
} ms_unit;

/* A model's units with their bytes, and what is there beside them: what a plan is made from. Immutable: may be read
 * from several threads at once. */
typedef struct ms_profile ms_profile;

typedef struct ms_profile_view {
    uint64_t struct_bytes;
    const ms_unit *units; /* borrowed: lives as long as the profile */
    int64_t n_units;
    int64_t resident_bytes; /* parameters, buffers, gradients and optimizer state: there in every step */
    int64_t outside_bytes;  /* kept for backward outside of units */
} ms_profile_view;

/* A profile with copies of these units. `view->struct_bytes` must be set. `*out_profile` is owned, ms_profile_destroy.
 * Any thread. Errors: MS_E_INVALID, MS_E_LIMIT (sizes out of range), MS_E_NO_MEMORY. */
MS_API ms_status ms_profile_create(const ms_profile_view *view, ms_profile **out_profile);

typedef struct ms_profile_request {
    uint64_t struct_bytes;
    const char *const *unit_names; /* in the order of the numbers that the traces use */
    const int64_t *unit_param_bytes;
    int64_t n_units;
    const ms_trace *kept;       /* a step with all units kept */
    const ms_trace *recomputed; /* the same step with all units recomputed; NULL: what that would do is not known */
    int64_t batch, length;      /* the shape of its input; 0: not said */
} ms_profile_request;

/* A profile with the step that was traced: what it allocates, releases and computes, unit by unit. `*out_profile` is
 * owned, ms_profile_destroy. Any thread. Errors: MS_E_INVALID (a trace is malformed), MS_E_MISMATCH (the two are not of
 * the same step), MS_E_LIMIT, MS_E_NO_MEMORY. */
MS_API ms_status ms_profile_from_traces(const ms_profile_request *request, ms_profile **out_profile);

/* One profile for all shapes, from profiles of the same model at a few (ms_profile_request.batch and .length), 2 to 32
 * of them. Every size and cost becomes a sum of the terms 1, b, t, bt, t^2, bt^2 and bp in batch b and length t, where
 * p is t rounded up to 32, as attention kernels pad it. Terms are taken in this order, each that the shapes tell from
 * those before; a number that is no such sum is tried with bp in place of one of them. So two batches at three lengths
 * tell everything, two batches how sizes grow with the batch. The last profile is not fitted but held against the
 * result: it has a batch that no other has if batches differ, and a length that no other has if lengths differ.
 * Everything must agree exactly, at every shape. Padding counts as growth where lengths do not tell it: if they are
 * multiples of 32, or all of them are padded by the same share (25, 50, 100). The result stands at the shape of the
 * first profile. `*out_profile` is owned, ms_profile_destroy. Any thread. Errors: MS_E_INVALID, MS_E_MISMATCH (the
 * message says where: steps do not do the same things, or a number is no such sum), MS_E_LIMIT, MS_E_NO_MEMORY. */
MS_API ms_status ms_profile_fit(const ms_profile *const *profiles, int64_t n_profiles, ms_profile **out_profile);

/* The profile at another shape, without another trace: exact where the model does the same things there. It may not at
 * a batch or a length of 1, where nothing needs to be expanded or summed. Fractions are rounded up. `*out_profile` is
 * owned, ms_profile_destroy. Any thread. Errors: MS_E_INVALID (the profile has no step, or never saw another batch or
 * length), MS_E_LIMIT (a size is negative there, or too large), MS_E_NO_MEMORY. */
MS_API ms_status ms_profile_reshape(const ms_profile *profile, int64_t batch, int64_t length, ms_profile **out_profile);

/* Cannot fail. NULL is allowed. */
MS_API void ms_profile_destroy(ms_profile *profile);

/* What is in it. `out->struct_bytes` must be set. Errors: MS_E_INVALID. */
MS_API ms_status ms_profile_get_view(const ms_profile *profile, ms_profile_view *out);

/* What a unit does in one phase of the step, all units kept. */
typedef struct ms_unit_costs {
    uint64_t struct_bytes;
    int64_t flops;         /* of matrix products, convolutions and attention */
    int64_t bytes;         /* read and written */
    int64_t n_ops;         /* operations that the host dispatches */
    int64_t n_kernels;     /* of them, those that compute: views do not */
    int64_t n_random;      /* of them, those that draw random numbers */
    int64_t working_bytes; /* the most that is allocated within it above what was there when it began */
} ms_unit_costs;

/* The costs of a unit, or of everything between units (-1), in a phase (enum ms_phase). `out->struct_bytes` must be
 * set. Any thread. Errors: MS_E_INVALID (out of range, or a profile without a step). */
MS_API ms_status ms_profile_get_costs(const ms_profile *profile, int64_t unit, int32_t phase, ms_unit_costs *out);

/* The profile as JSON text, versioned. `*out_text` is owned, ms_free. Errors: MS_E_INVALID, MS_E_NO_MEMORY. */
MS_API ms_status ms_profile_to_json(const ms_profile *profile, char **out_text);

/* The inverse, strict. `*out_profile` is owned, ms_profile_destroy. Errors: MS_E_PARSE, MS_E_VERSION, MS_E_INVALID,
 * MS_E_NO_MEMORY, MS_E_LIMIT. */
MS_API ms_status ms_profile_from_json(const char *text, size_t n_bytes, ms_profile **out_profile);

/* ---- Simulation ------------------------------------------------------------------------------------------------ */

/* What is done to a unit between its forward and its backward. */
enum ms_action {
    MS_ACTION_KEEP = 0,                  /* nothing: what backward needs stays on the device */
    MS_ACTION_RECOMPUTE = 1,             /* only its inputs stay; it is computed again in backward */
    MS_ACTION_RECOMPUTE_EXCEPT_BOTH = 2, /* computed again but for attention and matrix products, whose outputs stay */
    MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS = 3,  /* ... but for matrix products */
    MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION = 4, /* ... but for attention */
    MS_ACTION_OFFLOAD = 5,                    /* what backward needs goes to host memory and comes back in time */
    MS_ACTION_OFFLOAD_BLOCKING = 6,  /* ... and the next unit waits until it has left, and again for what comes back */
    MS_ACTION_RECOMPUTE_OFFLOAD = 7, /* computed again, from inputs that wait in host memory */
    MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING = 8,
    MS_ACTION_TILE = 9, /* computed again in tiles, which take less working memory */
    MS_N_ACTIONS = 10
};

/* What is done to the model as a whole. */
enum ms_model_option {
    MS_MODEL_HALF = 1 << 0,              /* computed in 16 bits; weights in fp32 stay whole, as two halves */
    MS_MODEL_8BIT = 1 << 1,              /* the optimizer's moments have 8 bits */
    MS_MODEL_OFFLOAD = 1 << 2,           /* moments and lower halves of weights are in host memory */
    MS_MODEL_OFFLOAD_GRADIENTS = 1 << 3, /* gradients go to host memory as they appear */
    MS_MODEL_TILE_LOSS = 1 << 4,         /* what follows the last unit, logits and loss, goes by tiles */
    MS_MODEL_ALL = 31
};

enum ms_simulation_flag {
    MS_SIMULATE_ALLOCATOR = 1 << 0,     /* model torch's caching allocator: blocks and segments, not only sizes */
    MS_SIMULATE_ENGINE_THREAD = 1 << 1, /* backward runs on a thread of its own, as torch's default is on a GPU */
    MS_SIMULATE_FUSED = 1 << 2,         /* the optimizer is fused: it takes no temporaries */
    MS_SIMULATE_RESUMED = 1 << 3,       /* the optimizer's state is there from the start */
    MS_SIMULATE_KEEP_GRADIENTS = 1 << 4 /* gradients are set to zero, not to none, between steps */
};

typedef struct ms_simulation_request {
    uint64_t struct_bytes;
    const ms_profile *profile; /* with a step */
    const int32_t *actions;    /* enum ms_action for each unit; NULL: all are kept */
    int64_t n_actions;
    const ms_device *device;
    int64_t limit_bytes;    /* what torch's allocator may reserve, with MS_SIMULATE_ALLOCATOR; 0: no limit */
    uint32_t flags;         /* enum ms_simulation_flag */
    uint32_t model_options; /* enum ms_model_option; with MS_MODEL_HALF the profile is one in 16 bits */
} ms_simulation_request;

typedef struct ms_simulation_summary {
    uint64_t struct_bytes;
    int64_t start_bytes;       /* parameters, buffers and inputs: there before the step */
    int64_t first_peak_bytes;  /* of the first step */
    int64_t steady_peak_bytes; /* of later steps */
    int64_t idle_bytes;        /* held between steps */
    int64_t first_reserved_bytes;
    int64_t reserved_bytes;         /* with MS_SIMULATE_ALLOCATOR; else the peak */
    int64_t parts[MS_N_CATEGORIES]; /* of the steady peak, by enum ms_category */
    int64_t unused_bytes;           /* of the steady peak: blocks larger than what was asked for */
    int64_t step_ns, forward_ns, backward_ns, optimizer_ns;
    int64_t host_ns;   /* until the host has queued the step */
    int64_t device_ns; /* until the device has done it */
    int64_t n_ops;
    int64_t host_bytes; /* of host memory: activations, gradients and state that are there at most */
    int64_t wait_ns;    /* of the step, waiting for the link */
    int32_t peak_unit;  /* where the steady peak is; -1: between units */
    int32_t peak_phase; /* enum ms_phase */
} ms_simulation_summary;

/* A stretch of the steady step: one phase inside of one unit, or between units. */
typedef struct ms_simulation_segment {
    uint64_t struct_bytes;
    int32_t unit; /* -1: between units */
    int32_t phase;
    int64_t peak_bytes;
    int64_t end_bytes;
    int64_t parts[MS_N_CATEGORIES]; /* of the peak */
    int64_t duration_ns;            /* 0 where it takes no part in a steady step */
} ms_simulation_segment;

typedef struct ms_simulation ms_simulation; /* immutable: may be read from several threads at once */

/* Play a step of the profile under these actions. The same request gives the same result, everywhere. `*out` is owned,
 * ms_simulation_destroy. Any thread. Errors: MS_E_INVALID, MS_E_MISMATCH (the number of actions), MS_E_BUDGET (it does
 * not fit limit_bytes; ms_error_value() is the limit that the next allocation would need), MS_E_NO_MEMORY, MS_E_LIMIT.
 */
MS_API ms_status ms_simulation_create(const ms_simulation_request *request, ms_simulation **out);

/* Cannot fail. NULL is allowed. */
MS_API void ms_simulation_destroy(ms_simulation *sim);

/* `out->struct_bytes` must be set. Errors: MS_E_INVALID. */
MS_API ms_status ms_simulation_get_summary(const ms_simulation *sim, ms_simulation_summary *out);

/* How many stretches the step has. Cannot fail. */
MS_API int64_t ms_simulation_count_segments(const ms_simulation *sim);

/* One of them, in order. `out->struct_bytes` must be set. Errors: MS_E_INVALID. */
MS_API ms_status ms_simulation_get_segment(const ms_simulation *sim, int64_t index, ms_simulation_segment *out);

/* ---- Frontiers ------------------------------------------------------------------------------------------------- */

/* What a unit keeps of its forward for its backward, beside its boundary. */
enum ms_keep {
    MS_KEEP_ATTENTION = 1 << 0, /* all that fused attention kernels return */
    MS_KEEP_PRODUCTS = 1 << 1,  /* outputs of matrix products and convolutions */
    MS_KEEP_REST = 1 << 2,
    MS_KEEP_ALL = 7 /* what is saved when nothing is done: nothing is recomputed */
};

#define MS_FRONTIER_MAX_POINTS 5

/* One way between recomputing a unit and keeping it: outputs of some operations are kept, the others run again. */
typedef struct ms_frontier_point {
    uint32_t keeps;       /* enum ms_keep; 0: all is recomputed */
    uint32_t reserved;    /* 0 */
    int64_t held_bytes;   /* held from forward to backward, beyond what is held when all is recomputed */
    int64_t recompute_ns; /* what the recomputation still takes */
    int64_t spared_ns;    /* what it takes less than when all is recomputed */
} ms_frontier_point;

/* What a unit could keep, and what that would save. The choices are to recompute it whole, to keep attention, products
 * or both, and to keep all; the result has them in the order of their bytes, without those that keep no fewer bytes
 * than another and save no more time. The first keeps no bytes. An output counts if the recomputation makes it: that
 * ends behind the last tensor that backward needs, so each is needed by backward or by what is recomputed later. Times
 * are those of ms_simulation_create for these operations by themselves; on a GPU, the longer of queueing and computing
 * them. `out` has room for `capacity` points, of which MS_FRONTIER_MAX_POINTS always suffice, and gets *out_n. Any
 * thread. Errors: MS_E_INVALID (no such unit, or the profile does not know its units recomputed), MS_E_LIMIT
 * (capacity), MS_E_NO_MEMORY. */
MS_API ms_status ms_profile_frontier(const ms_profile *profile, int64_t unit, const ms_rates *rates,
                                     ms_frontier_point *out, int64_t capacity, int64_t *out_n);

/* ---- Plans ----------------------------------------------------------------------------------------------------- */

/* Why a unit's action was chosen, or another one was not. */
enum ms_reason {
    MS_REASON_NOT_NEEDED = 0,   /* kept: the plan reaches its aim without it */
    MS_REASON_NO_GAIN = 1,      /* nothing would be saved */
    MS_REASON_NOT_ELIGIBLE = 2, /* kept: it may not be changed */
    MS_REASON_NOT_RUN = 3,      /* kept: it took no part in the step */
    MS_REASON_SAVES = 4,        /* changed: it lowers the peak */
    MS_REASON_OVER_BUDGET = 5,  /* the other one would not fit */
    MS_REASON_SLOWER = 6,       /* the other one takes longer than is allowed, or than is needed */
    MS_REASON_HIGHER_PEAK = 7,  /* the other one has a higher peak, where the lowest is wanted */
    MS_N_REASONS = 8
};

enum ms_plan_flag {
    MS_PLAN_FORCE = 1 << 0,        /* optimize also where the smart skip would do nothing */
    MS_PLAN_FASTEST = 1 << 1,      /* the budget was set by the user: the fastest plan within it */
    MS_PLAN_RECOMPUTE_ALL = 1 << 2 /* recompute every eligible unit: the leanest start, before anything is measured */
};

typedef struct ms_plan_request {
    uint64_t struct_bytes;
    const ms_profile *profile;      /* borrowed for the call */
    const ms_profile *half_profile; /* the same step in 16 bits, for MS_MODEL_HALF; NULL: that is not to be had */
    const ms_device *device;        /* may be NULL where the profile has no step */
    int64_t budget_bytes;           /* above 0 */
    int64_t margin_bytes;           /* of the budget, left free: what a prediction may be wrong by */
    int64_t host_limit_bytes;       /* host memory that may be taken and pinned */
    int64_t slowdown_ppm;           /* extra step time allowed; negative: unbounded. Ignored with MS_PLAN_FASTEST. */
    const uint8_t *may_change; /* for each unit of the profile: 0 if it has to be kept; NULL: as the profile says */
    uint32_t actions;          /* bits 1 << enum ms_action: what may be done to units beside keeping them */
    uint32_t model_options;    /* enum ms_model_option: what may be done to the model */
    uint32_t simulation;       /* enum ms_simulation_flag: how the step runs */
    uint32_t flags;            /* enum ms_plan_flag */
} ms_plan_request;

typedef struct ms_plan ms_plan; /* immutable: may be read from several threads at once */

typedef struct ms_plan_summary {
    uint64_t struct_bytes;
    int64_t baseline_peak_bytes;  /* nothing done */
    int64_t predicted_peak_bytes; /* with this plan */
    int64_t budget_bytes;
    int64_t margin_bytes;
    int64_t host_limit_bytes;
    int64_t host_bytes;             /* of host memory, at most */
    int64_t baseline_ns, step_ns;   /* of the step, nothing done and with this plan; 0: not known */
    int64_t slowdown_ppm;           /* predicted extra step time of this plan */
    int64_t batch, length;          /* of the input that it was made for; 0: not said */
    int64_t parts[MS_N_CATEGORIES]; /* of the predicted peak; all 0: not known */
    int64_t n_units;
    int64_t n_changed;      /* units that are not kept */
    int64_t skipped;        /* 1: the smart skip left the model alone */
    uint64_t fingerprint;   /* of everything that changes behaviour */
    uint32_t model_options; /* enum ms_model_option */
    uint32_t flags;         /* enum ms_plan_flag of the request */
    int32_t peak_unit;      /* where the predicted peak is; -1: between units */
    int32_t peak_phase;     /* enum ms_phase; MS_PHASE_SETUP: not known */
} ms_plan_summary;

typedef struct ms_plan_entry {
    uint64_t struct_bytes;
    const char *name; /* borrowed: it lives as long as the plan */
    int64_t param_bytes;
    int64_t plain_bytes;  /* held between its forward and its backward when nothing is done */
    int64_t held_bytes;   /* with this plan */
    int64_t host_bytes;   /* in host memory meanwhile */
    int64_t extra_ns;     /* that its action takes */
    int32_t action;       /* enum ms_action */
    int32_t reason;       /* enum ms_reason */
    int32_t other;        /* the action that came closest, and */
    int32_t other_reason; /* why it was not taken */
    int64_t other_bytes;  /* what the peak would be with it, less what it is */
    int64_t other_ns;     /* the same of the step time */
} ms_plan_entry;

/* Decide what is done to each unit and to the model: with MS_PLAN_FASTEST the fastest plan whose peak is within the
 * budget less the margin; else the one with the least memory whose step takes at most `slowdown_ppm` longer, and if
 * that does not fit, the fastest that does. Under a quarter of the budget nothing is done. Memory and time are those of
 * ms_simulation_create, with unit times rounded up to a tick that the profile gives. Among equals the lowest peak wins,
 * then the state with the lowest number, then the first action in the order of docs/PLANNING.md. A larger budget never
 * gives a slower plan, a smaller one never a higher peak. The same request gives the same plan, everywhere. `*out_plan`
 * is owned, ms_plan_destroy. Any thread. Errors: MS_E_INVALID, MS_E_NO_MEMORY, MS_E_LIMIT (sizes out of range),
 * MS_E_BUDGET (no such plan; ms_error_value() is the smallest reachable peak, the message says what dominates it). */
MS_API ms_status ms_plan_create(const ms_plan_request *request, ms_plan **out_plan);

/* Cannot fail. NULL is allowed. */
MS_API void ms_plan_destroy(ms_plan *plan);

/* `out->struct_bytes` must be set. Errors: MS_E_INVALID. */
MS_API ms_status ms_plan_get_summary(const ms_plan *plan, ms_plan_summary *out);

/* The `index`-th unit with its action. `out->struct_bytes` must be set. Errors: MS_E_INVALID (index out of range). */
MS_API ms_status ms_plan_get_entry(const ms_plan *plan, int64_t index, ms_plan_entry *out);

/* One point of the trade between memory and time. */
typedef struct ms_pareto_point {
    int64_t peak_bytes;
    int64_t step_ns;
    int64_t host_bytes;
    int64_t n_changed;      /* units that are not kept */
    uint32_t model_options; /* enum ms_model_option */
    uint32_t reserved;      /* 0 */
} ms_pareto_point;

/* The trade that a request has: plans of which none is both smaller and faster than another, from the fastest to the
 * smallest; budget, slowdown and flags do not matter. `out` has room for `capacity` points (2 to 1024), which are
 * spread over the peaks there are, and gets *out_n. Any thread. Errors: as ms_plan_create, without MS_E_BUDGET. */
MS_API ms_status ms_plan_pareto(const ms_plan_request *request, ms_pareto_point *out, int64_t capacity, int64_t *out_n);

/* The plan for people: one paragraph (where the peak is, what it is made of, what was done), then a table of units.
 * `*out_text` is owned, ms_free. Errors: MS_E_INVALID, MS_E_NO_MEMORY. */
MS_API ms_status ms_plan_explain(const ms_plan *plan, char **out_text);

/* The name of an action or a reason, e.g. "recompute", "no gain"; "?" if unknown. Static storage. Cannot fail. */
MS_API const char *ms_action_name(int32_t action);
MS_API const char *ms_reason_name(int32_t reason);

/* The name of one state flag, e.g. "8bit"; "?" if unknown. Static storage. Cannot fail. */
MS_API const char *ms_model_option_name(uint32_t flag);

/* The plan as JSON text, versioned. `*out_text` is owned, ms_free. Errors: MS_E_INVALID, MS_E_NO_MEMORY. */
MS_API ms_status ms_plan_to_json(const ms_plan *plan, char **out_text);

/* The inverse, strict. `*out_plan` is owned, ms_plan_destroy. Errors: MS_E_PARSE, MS_E_VERSION, MS_E_INVALID,
 * MS_E_NO_MEMORY, MS_E_LIMIT. */
MS_API ms_status ms_plan_from_json(const char *text, size_t n_bytes, ms_plan **out_plan);

/* Is this plan for a model with exactly these units, by name and parameter bytes, in any order? Errors: MS_E_INVALID,
 * MS_E_NO_MEMORY, MS_E_MISMATCH (the message names the first difference). */
MS_API ms_status ms_plan_check_units(const ms_plan *plan, const ms_unit *units, int64_t n_units);

/* ---- Shapes of batches ----------------------------------------------------------------------------------------- */

/* Plans for batches that change their shape. One thread at a time. */
typedef struct ms_shape_plans ms_shape_plans;

/* Watch over a plan that was made from this request, at the shape of its profile. Profiles, rates and may_change are
 * borrowed until it is destroyed, `plan` too. `*out_guard` is owned, ms_shape_plans_destroy. Errors: as ms_plan_create,
 * and MS_E_MISMATCH (the plan has other units). */
MS_API ms_status ms_shape_plans_create(const ms_plan_request *request, const ms_plan *plan, ms_shape_plans **out_guard);

/* Cannot fail. NULL is allowed. */
MS_API void ms_shape_plans_destroy(ms_shape_plans *guard);

/* The plan for an input of this shape: the guard's own as long as the step fits with it, else one that is made for the
 * shape and for lengths that are a little longer (up to an eighth). Nothing is computed for what is smaller in both,
 * and a shape that was asked for before takes no time and no memory. `*out_plan` is borrowed: it lives as long as the
 * guard. Errors: MS_E_BUDGET (no plan fits), MS_E_INVALID (the profile knows no other shape than its own), MS_E_LIMIT,
 * MS_E_NO_MEMORY. */
MS_API ms_status ms_shape_plans_find(ms_shape_plans *guard, int64_t batch, int64_t length, const ms_plan **out_plan);

#ifdef __cplusplus
}
#endif

#endif /* MEMSCALE_H */
