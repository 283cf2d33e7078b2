/* memscale.h - the public interface of libmemscale, the engine of the MemScale memory optimizer.
 *
 * libmemscale decides how a training step fits into the memory of a device. It does not know Python or PyTorch and
 * depends on the C library alone.
 *
 * Stability  The first part of this header is stable: programs built against it keep working with every later library
 *            of the same major version. What follows "#ifdef MS_EXPERIMENTAL" may change with every release; define
 *            MS_EXPERIMENTAL before including this header to use it. The symbols of both have versions of their own
 *            (MEMSCALE_0.1 and later, MEMSCALE_EXPERIMENTAL).
 *
 * Conventions
 *   Errors     Functions that can fail return ms_status: MS_OK (0) or a negative code of memscale_errors.h. Results go
 *              through out-parameters, which are written only on success. ms_error_message() explains the calling
 *              thread's last failure. The library never prints, exits or aborts.
 *   Names      ms_<noun>_get_<what>(object, [index,] out) copies what an object knows, ms_<noun>_count_<whats>(object)
 *              counts it. Tables of the library itself have ms_<noun>_count(), ms_<noun>_get(index, out) and
 *              ms_<noun>_find(name, out). ms_<noun>_name(value) is the name of an enumerator, in static storage.
 *   Ownership  Pointer parameters are borrowed for the call unless their comment says "owned": then the caller gets the
 *              object and frees it. What X_create returns is destroyed by X_destroy; X_destroy(NULL) does nothing.
 *   Threads    All functions may be called from several threads at once on different objects. An object is used by one
 *              thread at a time unless its comment says that it is immutable.
 *   Structs    Structures that cross the boundary start with struct_bytes. The caller sets it to sizeof of the
 * structure before each call, for input and output alike. New fields are only ever added at the end, and 0 in a new
 *              field means what libraries did before it existed. So programs and libraries of different age work
 *              together: fields that the caller's structure lacks are 0 on input and left out on output. Fields that
 *              the library does not know yet must be 0 on input (else MS_E_VERSION) and are set to 0 on output.
 *              Elements of arrays have no struct_bytes, and neither has ms_log_sink: their layout is frozen for the
 *              major version (ms_hw_gpu, ms_unit, ms_log_sink; and in the experimental part ms_field, ms_module,
 *              ms_trace_event, ms_trace_op, ms_trace_operand, ms_frontier_point, ms_pareto_point, ms_reading).
 *              Fields called "reserved" are 0.
 *   Counts     Enumerators and macros that count (MS_N_REASONS, MS_N_CATEGORIES, ...) are those of this header. A newer
 *              library may return values that are not in it; their names are known to ms_<noun>_name.
 *   Numbers    Sizes are bytes, times nanoseconds, counts 64-bit, fractions parts per million. GB and MB are 1e9 and
 *              1e6 bytes. No decision uses floating point.
 */
#ifndef MEMSCALE_H
#define MEMSCALE_H

#include <stddef.h>
#include <stdint.h>

#include "memscale_errors.h"

#if defined(_WIN32)
#error "libmemscale has not been ported to Windows"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MS_API __attribute__((visibility("default")))

/* Before functions whose result must be looked at. */
#if (defined(__cplusplus) && __cplusplus >= 201703L) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define MS_NODISCARD [[nodiscard]]
#else
#define MS_NODISCARD __attribute__((warn_unused_result))
#endif

#define MS_VERSION_MAJOR 0
#define MS_VERSION_MINOR 1
#define MS_VERSION_PATCH 0
#define MS_VERSION_STRING "0.1.0"

/* The version of this header as one number that grows, for #if: 1002003 is 1.2.3. */
#define MS_VERSION_NUMBER (MS_VERSION_MAJOR * 1000000 + MS_VERSION_MINOR * 1000 + MS_VERSION_PATCH)

/* The version of the library that was loaded, e.g. "0.1.0". Static storage. Any thread. Cannot fail. */
MS_API const char *ms_version(void);

/* The same as a number, see MS_VERSION_NUMBER. Any thread. Cannot fail. */
MS_API int64_t ms_version_number(void);

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

/* The numbers that belong to a failure. */
typedef struct ms_error_info {
    uint64_t struct_bytes;
    int64_t needed_bytes; /* with MS_E_BUDGET: the memory that would be enough. For a plan it is the smallest reachable
                           * peak, for a simulation the limit that the next allocation needs. Otherwise 0 */
    int64_t byte_offset;  /* with MS_E_PARSE: where the text is malformed, if it is not JSON. Otherwise -1 */
} ms_error_info;

/* The numbers of the calling thread's last failure. `out->struct_bytes` must be set. Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_error_get_info(ms_error_info *out);

/* Forget the calling thread's last failure. Cannot fail. */
MS_API void ms_error_clear(void);

/* Free memory that the library handed out as "owned, ms_free". NULL is allowed. Any thread. Cannot fail. */
MS_API void ms_free(void *memory);

/* ---- Logging --------------------------------------------------------------------------------------------------- */

enum ms_log_level { MS_LOG_DEBUG = 0, MS_LOG_INFO = 1, MS_LOG_WARNING = 2 };

/* Where the library's messages go. `write` is called on the thread that has the message, possibly on several at once,
 * with no lock held; `message` is valid during the call. */
typedef struct ms_log_sink {
    void (*write)(void *user, int level, const char *message);
    void *user;
    int min_level; /* messages below this level are not formatted */
} ms_log_sink;

/* Send messages to `sink`, which is copied, or nowhere with NULL (the default). Another thread that is inside the
 * library at this moment may still write to the sink before: what its `user` points to must live until those calls
 * have returned. Any thread. Cannot fail. */
MS_API void ms_log_set_sink(const ms_log_sink *sink);

/* ---- GPUs ------------------------------------------------------------------------------------------------------ */

/* The GPUs that this process can use: NVIDIA's driver, its management library and its run-time compiler, loaded at run
 * time, or the reason why each of them could not be loaded. Without a driver everything else still works; there are
 * then no devices. Devices have the driver's numbers (CUDA_VISIBLE_DEVICES and MIG respected). Contexts are the
 * devices' primary ones, which other libraries of the process use too; none is made before it is needed, and the
 * calling thread's current context is the same after a call as before. Any thread, several at once. After a fork the
 * child cannot use its parent's (MS_E_UNAVAILABLE). */
typedef struct ms_gpu ms_gpu;

typedef struct ms_gpu_options {
    uint64_t struct_bytes;
    const char *driver_path;        /* NULL: libcuda.so.1 */
    const char *nvml_path;          /* NULL: libnvidia-ml.so.1 */
    const char *const *nvrtc_paths; /* tried in this order, terminated by NULL. NULL: the usual names of libnvrtc */
    const char *cache_path;         /* folder of compiled programs. NULL: MEMSCALE_CACHE_DIR, else memscale in
                                     * XDG_CACHE_HOME, else ~/.cache/memscale. "": nothing is kept on disk */
} ms_gpu_options;

/* The defaults. `options->struct_bytes` must be set. Any thread. Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_gpu_options_init(ms_gpu_options *options);

/* Load what is installed. `options` may be NULL: the defaults. `*out_gpu` is owned, ms_gpu_destroy. A missing driver is
 * not an error. Errors: MS_E_INVALID, MS_E_VERSION, MS_E_LIMIT (a path is too long), MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_gpu_create(const ms_gpu_options *options, ms_gpu **out_gpu);

/* Unload programs, release contexts, shut NVML down. The libraries stay loaded, since other code of the process may use
 * them; in a forked child only memory is freed. No call on it may be running. Cannot fail. NULL is allowed. */
MS_API void ms_gpu_destroy(ms_gpu *gpu);

/* The number of devices; 0 without a driver, for NULL, and in a forked child. Cannot fail. */
MS_API int64_t ms_gpu_count_devices(const ms_gpu *gpu);

/* Does a GPU of this compute capability (10 * major + minor: 90 is 9.0) compute in bfloat16, or in float16, itself?
 * This is about the chip; libraries may emulate the type on others. 1 or 0. Any thread. Cannot fail. */
MS_API int ms_capability_has_bf16(int64_t capability);
MS_API int ms_capability_has_fp16(int64_t capability);

/* ---- Hardware -------------------------------------------------------------------------------------------------- */

#define MS_HW_MAX_GPUS 16

/* A GPU of the machine. */
typedef struct ms_hw_gpu {
    int64_t index; /* as the driver numbers devices in this process */
    char name[96]; /* UTF-8 */
    char uuid[48]; /* "GPU-..." or "MIG-...", "" if unknown */
    int64_t memory_total_bytes;
    int64_t memory_free_bytes;   /* -1: unknown */
    int64_t memory_others_bytes; /* used by other processes; -1: unknown */
    int64_t capability;          /* 10 * major + minor: 90 is 9.0 */
    int64_t has_bf16;            /* 1 or 0, see ms_capability_has_bf16 */
    int64_t has_fp16;            /* 1 or 0, see ms_capability_has_fp16 */
    int64_t n_multiprocessors;
    int64_t pcie_generation; /* the best that device and slot can do together; 0: unknown */
    int64_t pcie_width;      /* lanes, likewise; 0: unknown */
    int64_t is_mig;          /* 1: a slice of a device */
    int64_t is_integrated;   /* 1: its memory is the host's */
    int64_t reserved[4];     /* 0 */
} ms_hw_gpu;

/* The machine. Filled in by ms_hw_detect or ms_hw_from_json. A plain value: copy it freely. */
typedef struct ms_hw {
    uint64_t struct_bytes;
    int64_t memory_total_bytes;     /* physical memory of the machine */
    int64_t memory_limit_bytes;     /* what this process may use: the tightest control group, else the total */
    int64_t memory_available_bytes; /* what could be allocated now without swapping, within that limit */
    int64_t page_bytes;
    int64_t n_cores;        /* cores that this process may keep busy: affinity and control-group quota */
    int64_t n_cores_online; /* cores of the machine */
    int64_t n_numa_nodes;   /* at least 1 */
    int64_t cgroup_version; /* 1 or 2; 0: none found */
    int64_t n_gpus;         /* at most MS_HW_MAX_GPUS: further GPUs are left out */
    ms_hw_gpu gpus[MS_HW_MAX_GPUS];
} ms_hw;

/* Read this machine. `root` is put before every path that is read ("" or NULL: nothing), so that a recorded tree can
 * take the place of a machine. `gpu` may be NULL: the host alone. No context is made on a device. A device that cannot
 * be read is left out, with a message at warning level. `out->struct_bytes` must be set. Any thread.
 * Errors: MS_E_INVALID, MS_E_IO (no memory information), MS_E_LIMIT (root too long), MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_hw_detect(const char *root, ms_gpu *gpu, ms_hw *out);

/* The machine as JSON text. `*out_text` is owned, ms_free. Any thread. Errors: MS_E_INVALID, MS_E_VERSION,
 * MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_hw_to_json(const ms_hw *hw, char **out_text);

/* The inverse, strict: unknown or missing fields, values out of range and GPUs that are not in the order of their
 * indices are errors. `out->struct_bytes` must be set. Any thread. Errors: MS_E_INVALID, MS_E_PARSE, MS_E_VERSION,
 * MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_hw_from_json(const char *text, size_t n_bytes, ms_hw *out);

/* ---- GPU models ------------------------------------------------------------------------------------------------ */

/* A GPU by its data sheet, so that plans can be made without having it. Rates are dense peaks. */
typedef struct ms_gpu_model {
    uint64_t struct_bytes;
    const char *key;      /* e.g. "rtx3090", "a100-80gb"; static storage */
    const char *name;     /* as the driver names it, e.g. "NVIDIA GeForce RTX 3090"; static storage */
    int64_t memory_bytes; /* what the driver reports as total, which is less than what is printed on the box */
    int64_t capability;   /* as in ms_hw_gpu */
    int64_t n_multiprocessors;
    int64_t fp32_gflops; /* matrix products in GFLOP/s, without tensor cores */
    int64_t tf32_gflops; /* 0: the GPU does not have this type */
    int64_t fp16_gflops; /* accumulated in fp32 */
    int64_t bf16_gflops; /* likewise; 0: the GPU does not have this type */
    int64_t memory_mb_per_s;
    int64_t link_mb_per_s; /* each way, as copies reach it in a slot with all the lanes that the card can use */
} ms_gpu_model;

/* The number of models in the table. Any thread. Cannot fail. */
MS_API int64_t ms_gpu_model_count(void);

/* The `index`-th model, in the order of generations. `out->struct_bytes` must be set. Any thread.
 * Errors: MS_E_INVALID (index out of range). */
MS_NODISCARD MS_API ms_status ms_gpu_model_get(int64_t index, ms_gpu_model *out);

/* A model by its key, by the driver's name, or by what people call it: "rtx3090", "RTX 3090", "NVIDIA GeForce RTX
 * 3090". Case, spaces, dashes and the vendor's prefixes do not matter. The size of the memory may follow the name ("rtx
 * 4060 ti 16gb"); without it the model with the least memory is returned. `out->struct_bytes` must be set. Any thread.
 * Errors: MS_E_INVALID, MS_E_NOT_FOUND (the message names the closest). */
MS_NODISCARD MS_API ms_status ms_gpu_model_find(const char *name, ms_gpu_model *out);

/* ---- Rates ----------------------------------------------------------------------------------------------------- */

enum ms_rates_source { MS_RATES_TABLE = 0, MS_RATES_MEASURED = 1 };

#define MS_RATES_VERSION 2 /* of rates as JSON; version 1, which ends with dispatch_ns, is read as well */

/* How fast a device runs the operators of a training step. Work divided by rate is time: operations over GFLOP/s are
 * nanoseconds, bytes over MB/s microseconds. A plain value: copy it freely. */
typedef struct ms_rates {
    uint64_t struct_bytes;
    int64_t source;       /* enum ms_rates_source */
    int64_t capability;   /* as in ms_hw_gpu; 0: the host's own processor */
    int64_t memory_bytes; /* of the device */
    int64_t fp32_gflops;  /* matrix products; above 0 */
    int64_t tf32_gflops;  /* 0: no faster than fp32, here and below */
    int64_t fp16_gflops;
    int64_t bf16_gflops;
    int64_t memory_mb_per_s;    /* bytes read and bytes written, added up; above 0 */
    int64_t to_device_mb_per_s; /* from pinned host memory; 0: there is no link, the device is the host */
    int64_t from_device_mb_per_s;
    int64_t both_mb_per_s;    /* both ways at once, added up */
    int64_t pinning_mb_per_s; /* pinning host memory; 0: unknown */
    int64_t launch_ns;        /* the shortest time that a kernel takes on the device */
    int64_t dispatch_ns;      /* what an operator of forward takes on the host until it is queued, or done if the device
                               * is the host: called from Python, recorded by autograd */

    /* The same for operators of other kinds and in other places; 0: dispatch_ns. "Products" are matrix products,
     * convolutions and attention, together with the module that calls them. */
    int64_t product_ns;
    int64_t view_ns;
    int64_t backward_ns; /* called by autograd's engine or by an optimizer, here and in the next two */
    int64_t backward_product_ns;
    int64_t backward_view_ns;

    /* What the host does in addition; 0: nothing. */
    int64_t list_tensor_ns;   /* for each tensor in the lists that an operator takes */
    int64_t parameter_ns;     /* for each parameter, in the optimizer's step and zero_grad() */
    int64_t saved_tensor_ns;  /* for each tensor that a recomputed unit saves for backward */
    int64_t recomputation_ns; /* for each recomputation of a unit */

    /* Of a host as device: its generators draw one number after the other, and its system hands out large blocks as
     * pages that must be cleared first. */
    int64_t random_mb_per_s; /* bytes read and written by operators that draw; 0: memory_mb_per_s */
    int64_t fresh_mb_per_s;  /* blocks of 32 MiB and more; 0: takes no time */
} ms_rates;

/* What a model reaches in practice: fixed shares of its peaks. `out->struct_bytes` must be set. Any thread.
 * Errors: MS_E_INVALID, MS_E_VERSION. */
MS_NODISCARD MS_API ms_status ms_rates_from_model(const ms_gpu_model *model, ms_rates *out);

/* A rough guess for a device that is neither in the table nor measured: a GPU by the number of its multiprocessors, or
 * the host's processor (capability 0), for which n_multiprocessors does not matter. `out->struct_bytes` must be set.
 * Any thread. Errors: MS_E_INVALID (an argument is out of range). */
MS_NODISCARD MS_API ms_status ms_rates_guess(int64_t capability, int64_t memory_bytes, int64_t n_multiprocessors,
                                             ms_rates *out);

/* The rates as JSON text, versioned. `*out_text` is owned, ms_free. Any thread. Errors: MS_E_INVALID (also: a value out
 * of range), MS_E_VERSION, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_rates_to_json(const ms_rates *rates, char **out_text);

/* The inverse, strict: unknown or missing fields and values out of range are errors. Fields that version 1 did not have
 * are 0 where it is read. A rate is at most 1e9, both ways 2e9, and a time at most a second. `out->struct_bytes` must
 * be set. Any thread. Errors: MS_E_INVALID, MS_E_PARSE, MS_E_VERSION, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_rates_from_json(const char *text, size_t n_bytes, ms_rates *out);

/* ---- Devices --------------------------------------------------------------------------------------------------- */

enum ms_device_kind {
    MS_DEVICE_HOST = 0,       /* the host's own processor; its memory is the host's */
    MS_DEVICE_GPU = 1,        /* a GPU with memory of its own */
    MS_DEVICE_INTEGRATED = 2, /* a GPU whose memory is the host's: offloading gains nothing */
    MS_N_DEVICE_KINDS = 3
};

/* What a step runs on. */
typedef struct ms_device {
    uint64_t struct_bytes;
    const ms_rates *rates;     /* borrowed; its capability is 0 for MS_DEVICE_HOST and above 0 otherwise */
    int64_t n_multiprocessors; /* of a GPU; threads of the host */
    int64_t usable_bytes;      /* what torch's allocator could reserve there; 0: unknown */
    int64_t kind;              /* enum ms_device_kind */
} ms_device;

/* A device with these rates, which it borrows, of a kind (enum ms_device_kind). Multiprocessors and usable memory are
 * unknown (0) until the caller sets them. `device->struct_bytes` must be set. Any thread. Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_device_init(ms_device *device, const ms_rates *rates, int64_t kind);

/* A GPU of the table, for plans without having it: the rates of ms_rates_from_model go to `*out_rates`, which the
 * device borrows, and its memory less what a CUDA context takes (512 MiB) is usable. Both struct_bytes must be set. Any
 * thread. Errors: MS_E_INVALID, MS_E_VERSION. */
MS_NODISCARD MS_API ms_status ms_device_from_model(const ms_gpu_model *model, ms_rates *out_rates,
                                                   ms_device *out_device);

/* ---- Profiles -------------------------------------------------------------------------------------------------- */

enum ms_unit_flag {
    MS_UNIT_ELIGIBLE = 1 << 0, /* may be recomputed */
    MS_UNIT_RUN = 1 << 1,      /* took part in the step; its bytes are meaningful */
    MS_UNIT_BLOCK = 1 << 2     /* one of the model's repeated blocks (ms_units_find) */
};

/* A unit: a layer of the model, about which a plan decides. */
typedef struct ms_unit {
    const char *name;    /* UTF-8, unique in the model */
    int64_t param_bytes; /* of its parameters and those of its submodules */
    int64_t saved_bytes; /* what its forward keeps for backward when nothing is done */
    int64_t input_bytes; /* what must be kept to recompute it: inputs that no earlier unit keeps */
    int64_t n_rows;      /* rows that go through its parameters: batch times length */
    uint32_t flags;      /* enum ms_unit_flag */
    uint32_t reserved;   /* 0 */
} ms_unit;

/* A model's units in the order in which they first run, and its training step: what a plan is made from. Immutable: may
 * be read from several threads at once. */
typedef struct ms_profile ms_profile;

typedef struct ms_profile_view {
    uint64_t struct_bytes;
    const ms_unit *units; /* borrowed: lives as long as the profile */
    int64_t n_units;
    int64_t resident_bytes; /* parameters, buffers, gradients and optimizer state: there in every step */
    int64_t outside_bytes;  /* kept for backward outside units */
} ms_profile_view;

/* Read a profile from JSON text, strictly. `*out_profile` is owned, ms_profile_destroy. Any thread. Errors: MS_E_PARSE,
 * MS_E_VERSION, MS_E_INVALID, MS_E_NO_MEMORY, MS_E_LIMIT. */
MS_NODISCARD MS_API ms_status ms_profile_from_json(const char *text, size_t n_bytes, ms_profile **out_profile);

/* The inverse, versioned. `*out_text` is owned, ms_free. Errors: MS_E_INVALID, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_profile_to_json(const ms_profile *profile, char **out_text);

/* Another owner of the same profile, which each owner destroys. Any thread. NULL for NULL. Cannot fail. */
MS_API ms_profile *ms_profile_share(const ms_profile *profile);

/* One owner less; the last one frees it. Cannot fail. NULL is allowed. */
MS_API void ms_profile_destroy(ms_profile *profile);

/* The units and totals of a profile. `out->struct_bytes` must be set. Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_profile_get_view(const ms_profile *profile, ms_profile_view *out);

/* ---- Plans ----------------------------------------------------------------------------------------------------- */

/* The phases of a training step, in order. */
enum ms_phase {
    MS_PHASE_SETUP = 0, /* before the step */
    MS_PHASE_FORWARD = 1,
    MS_PHASE_LOSS = 2,
    MS_PHASE_BACKWARD = 3,
    MS_PHASE_OPTIMIZER_FIRST = 4, /* the first step of the optimizer, which makes its state */
    MS_PHASE_OPTIMIZER = 5,       /* every later one */
    MS_PHASE_END = 6,
    MS_N_PHASES = 7
};

/* What memory is used for. */
enum ms_category {
    MS_CATEGORY_ACTIVATION = 0,
    MS_CATEGORY_PARAMETER = 1,
    MS_CATEGORY_BUFFER = 2,
    MS_CATEGORY_INPUT = 3,
    MS_CATEGORY_GRADIENT = 4,  /* of parameters */
    MS_CATEGORY_OPTIMIZER = 5, /* its state */
    MS_CATEGORY_TEMPORARY = 6, /* gradients of activations, temporaries of the optimizer, memory inside kernels */
    MS_CATEGORY_LIBRARY = 7,   /* library workspaces */
    MS_N_CATEGORIES = 8
};

#define MS_MAX_CATEGORIES 16 /* room for the parts of a peak; those without a category are 0 */

/* What is done to a unit between its forward and its backward. */
enum ms_action {
    MS_ACTION_KEEP = 0,      /* nothing: what backward needs stays on the device */
    MS_ACTION_RECOMPUTE = 1, /* only its inputs stay; it is computed again in backward */
#ifdef MS_EXPERIMENTAL
    MS_ACTION_RECOMPUTE_EXCEPT_BOTH = 2,      /* recomputed except attention and matrix products, whose outputs stay */
    MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS = 3,  /* recomputed except matrix products */
    MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION = 4, /* recomputed except attention */
    MS_ACTION_OFFLOAD = 5,                    /* what backward needs is copied to host memory and back in time */
    MS_ACTION_OFFLOAD_BLOCKING = 6,           /* the same, and the next unit waits until the copy is done, both times */
    MS_ACTION_RECOMPUTE_OFFLOAD = 7,          /* recomputed, from inputs that are kept in host memory */
    MS_ACTION_RECOMPUTE_OFFLOAD_BLOCKING = 8,
    MS_ACTION_TILE = 9,                 /* recomputed in tiles, which need fewer temporaries */
    MS_ACTION_RECOMPUTE_POINTWISE = 10, /* kept, but for results of pointwise functions that other saved tensors give
                                         * again: these are computed when backward needs them */
    MS_ACTION_OFFLOAD_POINTWISE = 11,   /* the same, and what is left is copied to host memory and back in time */
    MS_N_ACTIONS = 12
#endif
};

/* Why a unit's action was chosen, or another one was not. */
enum ms_reason {
    MS_REASON_NOT_NEEDED = 0,   /* kept: the plan reaches its aim without changing it */
    MS_REASON_NO_GAIN = 1,      /* nothing would be saved */
    MS_REASON_NOT_ELIGIBLE = 2, /* kept: it may not be changed */
    MS_REASON_NOT_RUN = 3,      /* kept: it took no part in the step */
    MS_REASON_SAVES = 4,        /* changed: it lowers the peak */
    MS_REASON_OVER_BUDGET = 5,  /* the other action would not fit */
    MS_REASON_SLOWER = 6,       /* the other action takes longer than allowed, or than needed */
    MS_REASON_HIGHER_PEAK = 7,  /* the other action has a higher peak, and the lowest is wanted */
    MS_N_REASONS = 8
};

/* What may be used to save memory. */
enum ms_technique {
    MS_TECHNIQUE_RECOMPUTE = 1 << 0, /* units are recomputed in backward */
    MS_TECHNIQUE_OFFLOAD = 1 << 1,   /* activations, gradients and optimizer state go to host memory */
    MS_TECHNIQUE_TILE = 1 << 2,      /* units, and the loss, are computed in tiles */
    MS_TECHNIQUE_HALF = 1 << 3,      /* computed in 16 bits */
    MS_TECHNIQUE_8BIT = 1 << 4,      /* the optimizer's moments have 8 bits */
    MS_TECHNIQUE_ALL = 31
};

/* How far a plan may go: which techniques it may use and how much time it may spend. */
enum ms_mode { MS_MODE_CONSERVATIVE = 0, MS_MODE_BALANCED = 1, MS_MODE_AGGRESSIVE = 2, MS_N_MODES = 3 };

/* The name of a mode, e.g. "balanced"; "?" if unknown. Static storage. Cannot fail. */
MS_API const char *ms_mode_name(int32_t mode);

enum ms_settings_flag {
    MS_SETTINGS_FORCE = 1 << 0,      /* optimize also where the smart skip would do nothing */
    MS_SETTINGS_UNRUNNABLE = 1 << 1, /* plan also with what no executor of this version runs */
    MS_SETTINGS_FIXED = 1 << 2,      /* segments of torch's allocator cannot be made to grow here */
    MS_SETTINGS_GROWN = 1 << 3,      /* they grow already */
    MS_SETTINGS_ASYNC = 1 << 4,      /* copies between device and host may overlap with computing */
    MS_SETTINGS_ALL = 31
};

/* What a user asks for. */
typedef struct ms_settings {
    uint64_t struct_bytes;
    int64_t budget_bytes;        /* memory of the device that may be used; 0: a share of it, by utilization_ppm */
    int64_t utilization_ppm;     /* that share of what is usable on the device; above 0, at most 1000000 */
    int64_t slowdown_ppm;        /* extra step time allowed where there is no budget; negative: unbounded */
    int64_t offload_limit_bytes; /* host memory that a plan may fill; negative: what is available, less a reserve */
    uint32_t techniques;         /* enum ms_technique */
    uint32_t flags;              /* enum ms_settings_flag */
    int64_t occupied_bytes;      /* what torch's allocator holds on the device besides the step; 0: nothing */
    int64_t prefetch_depth;      /* the least number of units that a copy back begins before its use; 0: one */
} ms_settings;

/* The settings of a mode, which say how much time may be spent and with what; no budget. `out->struct_bytes` must be
 * set. Any thread. Errors: MS_E_INVALID (unknown mode). */
MS_NODISCARD MS_API ms_status ms_settings_init(ms_settings *out, int32_t mode);

/* All strings of these structures are static. A `name` is for people, e.g. "optimizer state"; an `identifier` is for
 * files and programs, e.g. "optimizer_state". */

typedef struct ms_action_info {
    uint64_t struct_bytes;
    const char *name;
    const char *identifier;
    const char *sentence; /* %s is the number of layers, or a name: "%s recomputed" */
    const char *letter;   /* one character, for tables with a column for each unit */
    uint32_t techniques;  /* enum ms_technique */
    uint32_t keeps;       /* enum ms_keep: of a recomputed unit, the outputs that stay */
    int64_t recomputes;   /* 1: the unit runs as in the trace with all units recomputed; 0: as in the plain one */
    int64_t needs_link;   /* 1: it copies between device and host */
    int64_t needs_tiles;  /* 1: the unit must be computable in tiles */
    int64_t is_runnable;  /* 1: this version can run it; 0: it can be planned only */
    int64_t waits;        /* 1: nothing else runs during its copies */
} ms_action_info;

typedef struct ms_phase_info {
    uint64_t struct_bytes;
    const char *name;
    const char *identifier;
    const char *place; /* in a sentence: "in the optimizer step", "between steps" */
} ms_phase_info;

typedef struct ms_name_info {
    uint64_t struct_bytes;
    const char *name;
    const char *identifier;
} ms_name_info;

/* Each takes an enumerator (one bit of enum ms_technique). `out->struct_bytes` must be set.
 * Any thread. Errors: MS_E_INVALID (unknown). */
MS_NODISCARD MS_API ms_status ms_action_get_info(int32_t action, ms_action_info *out);
MS_NODISCARD MS_API ms_status ms_technique_get_info(uint32_t technique, ms_name_info *out);
MS_NODISCARD MS_API ms_status ms_category_get_info(int32_t category, ms_name_info *out);
MS_NODISCARD MS_API ms_status ms_phase_get_info(int32_t phase, ms_phase_info *out);
MS_NODISCARD MS_API ms_status ms_reason_get_info(int32_t reason, ms_name_info *out);

/* How the step runs. */
enum ms_simulation_flag {
    MS_SIMULATE_ALLOCATOR = 1 << 0,      /* model torch's caching allocator: blocks and segments, not only sizes */
    MS_SIMULATE_ENGINE_THREAD = 1 << 1,  /* backward runs on a thread of its own, torch's default on a GPU */
    MS_SIMULATE_FUSED = 1 << 2,          /* the optimizer is fused: one kernel without temporaries */
    MS_SIMULATE_RESUMED = 1 << 3,        /* the optimizer's state exists from the start */
    MS_SIMULATE_KEEP_GRADIENTS = 1 << 4, /* gradients are set to zero, not to None, between steps */
    MS_SIMULATE_GROWING = 1 << 5 /* segments of torch's allocator grow (expandable_segments) from the first step on */
};

enum ms_plan_flag {
    MS_PLAN_FORCE = 1 << 0,   /* optimize even if the smart skip would leave the model alone */
    MS_PLAN_FASTEST = 1 << 1, /* find the fastest plan within the budget */
    MS_PLAN_GROWN = 1 << 2,   /* segments of torch's allocator grow also if nothing is done: the user has set that */
    MS_PLAN_LEAN = 1 << 3     /* recompute every unit that may be, whatever the budget */
};

typedef struct ms_plan_request {
    uint64_t struct_bytes;
    const ms_profile *profile;
    const ms_profile *half_profile; /* the same step in 16 bits, for MS_MODEL_HALF (experimental); NULL: none */
    const ms_device *device;        /* where the step runs */
    int64_t budget_bytes;           /* above 0 */
    int64_t margin_bytes;           /* of the budget, left free for errors of the prediction */
    int64_t host_limit_bytes;       /* host memory that may be allocated and pinned */
    int64_t slowdown_ppm;           /* extra step time allowed; negative: unbounded. Ignored with MS_PLAN_FASTEST */
    const uint8_t *may_change;      /* for each unit of the profile, 0: it must be kept; NULL: as the profile says */
    uint32_t actions;               /* bits 1 << enum ms_action: what may be done to units besides keeping them */
    uint32_t model_options;         /* enum ms_model_option (experimental): what may be done to the model */
    uint32_t simulation;            /* enum ms_simulation_flag: how steps run. MS_SIMULATE_GROWING: segments can be made
                                       to grow where anything is done */
    uint32_t flags;                 /* enum ms_plan_flag */
    int64_t occupied_bytes;         /* of the budget: what torch's allocator holds besides this step */
    int64_t limit_bytes;            /* what may be used if no plan fits the budget; 0: the budget is the limit */
    const ms_profile *plain_profile; /* the step when nothing is done to it, if it differs (a key-value cache is
                                        filled); NULL: it does not */
    int64_t prefetch_depth;          /* as in ms_settings */
} ms_plan_request;

/* What these settings ask for on this device: budget, margin, host memory, allowed actions and model options, and how
 * the step is simulated. The budget is what is set, else a share of the device's usable memory (on a GPU rounded down
 * to 256 MiB, so that plans repeat); 1/64 of it stays free, since predictions may be wrong by that. A share is an aim:
 * all that is usable is the limit. Where something may be offloaded, host memory is what is set, else what is available
 * now, rounded down, less 2 GiB or 1/16 of all. On a GPU torch's allocator is simulated; where something is done to the
 * step, with segments that grow, if they can. `host` may be NULL: nothing is then offloaded unless
 * settings->offload_limit_bytes says how much. `out->struct_bytes` must be set; `device` is borrowed; the caller sets
 * the profile, and more flags of the simulation where it knows better. Any thread. Errors: MS_E_INVALID, MS_E_LIMIT. */
MS_NODISCARD MS_API ms_status ms_plan_request_init(ms_plan_request *out, const ms_settings *settings,
                                                   const ms_device *device, const ms_hw *host);

/* The limit that torch's allocator needs so that what it reserves stays within the budget, together with what MemScale
 * allocates itself: segments that grow do so by whole granules, and may exceed a limit by less than one. At least 0.
 * Cannot fail. Any thread. */
MS_API int64_t ms_budget_get_cap(int64_t budget_bytes, int64_t own_bytes);

/* How much host memory plans and engines may fill: `limit_bytes`, or if that is negative what is available on `host`
 * (borrowed; NULL: nothing), less a reserve. Cannot fail. Any thread. */
MS_API int64_t ms_budget_get_host_limit(int64_t limit_bytes, const ms_hw *host);

typedef struct ms_plan ms_plan; /* immutable: may be read from several threads at once */

typedef struct ms_plan_summary {
    uint64_t struct_bytes;
    int64_t baseline_peak_bytes;  /* what the step needs when nothing is done, as ms_predict has it */
    int64_t predicted_peak_bytes; /* the same with this plan */
    int64_t budget_bytes;         /* what the plan may use: the limit of the request where it was needed */
    int64_t margin_bytes;         /* the part of it that stays free */
    int64_t host_limit_bytes;     /* of the request, but no more than any plan could fill */
    int64_t host_bytes;           /* host memory used at most */
    int64_t baseline_ns;          /* step time, nothing done */
    int64_t step_ns;              /* step time with this plan */
    int64_t slowdown_ppm;         /* predicted extra step time of this plan */
    int64_t batch;                /* of the input that the plan was made for; 0: unknown */
    int64_t length;               /* likewise */
    int64_t n_units;
    int64_t n_changed;                /* units that are not kept */
    int64_t skipped;                  /* 1: the smart skip left the model alone */
    uint64_t fingerprint;             /* of everything that changes behaviour */
    uint32_t model_options;           /* enum ms_model_option (experimental) */
    uint32_t flags;                   /* enum ms_plan_flag of the request */
    int32_t peak_unit;                /* where the predicted peak is; -1: between units */
    int32_t peak_phase;               /* enum ms_phase; MS_PHASE_SETUP: the step is empty */
    int64_t parts[MS_MAX_CATEGORIES]; /* of the predicted peak, by enum ms_category */
    int64_t reserved_bytes;           /* what torch's allocator reserves for the step; on a CPU the predicted peak */
    int64_t needed_bytes;             /* what it must be allowed to reserve: at most the budget less margin and
                                         occupied bytes */
    int64_t occupied_bytes;           /* of the request */
    int64_t grows;                    /* 1: segments of torch's allocator have to grow (expandable_segments) */
    int64_t is_cramped;               /* 1: the plan only fits because torch's allocator returns memory in every step */
    int64_t aim_bytes;                /* the budget of the request, if no plan fits it and the limit was used; else 0 */
    int64_t full_speed_bytes;         /* a budget, in round figures, with which nothing is done to the step. 0: there is
                                         none within what may be used, or this plan does not take longer anyway */
    int64_t spacer_bytes;             /* a block that the executor takes before the forward of `spacer_unit`, the first
                                         one in each step, and gives back after it, so that torch's allocator needs less.
                                         0: there is none */
    int64_t spacer_unit;              /* 0 without a spacer */
    int64_t spacer_saved_bytes;       /* how much more than needed_bytes it would need without the spacer */
} ms_plan_summary;

typedef struct ms_plan_entry {
    uint64_t struct_bytes;
    const char *name; /* borrowed: lives as long as the plan */
    int64_t param_bytes;
    int64_t plain_bytes;  /* held between its forward and its backward when nothing is done */
    int64_t held_bytes;   /* the same with this plan */
    int64_t host_bytes;   /* held in host memory meanwhile */
    int64_t extra_ns;     /* time that its action takes */
    int32_t action;       /* enum ms_action */
    int32_t reason;       /* enum ms_reason */
    int32_t other;        /* the action that came closest */
    int32_t other_reason; /* why that one was not taken */
    int64_t other_bytes;  /* how much higher the peak would be with it */
    int64_t other_ns;     /* how much longer the step would take */
    /* Of what is offloaded: it is gone from the device when `leaves_after` more units have run forward, and fetched
     * when backward begins with the unit that ran `fetched_before` units later. Both 0: nothing is offloaded, or, in a
     * plan from elsewhere, MS_OFFLOAD_LEAVING. */
    int64_t leaves_after, fetched_before;
} ms_plan_entry;

/* Decide what is done to each unit and to the model: with MS_PLAN_FASTEST the fastest plan whose peak is within the
 * budget less the margin; else the one with the least memory whose step takes at most `slowdown_ppm` longer, and if
 * that does not fit, the fastest that does. If none fits the budget but the request has a higher limit, the one with
 * the lowest peak is taken if it fits that less 1/64. If the model needs less than a quarter of the budget, nothing is
 * done.
 * Memory and time come from a simulation of the step, with times of units rounded up to a tick that depends on the
 * profile. Among equals the lowest peak wins, then the lowest model options as a number, then the first action in the
 * order of docs/PLANNING.md. A larger budget never gives a slower plan, a smaller one never a higher peak. The same
 * request gives the same plan on every machine. `*out_plan` is owned, ms_plan_destroy. Any thread. Errors:
 * MS_E_INVALID, MS_E_VERSION, MS_E_MISMATCH (the two profiles are not of one model), MS_E_NO_MEMORY, MS_E_LIMIT (sizes
 * out of range), MS_E_BUDGET (no plan fits: ms_error_info.needed_bytes is what the leanest plan needs, and the message
 * says what dominates it). */
MS_NODISCARD MS_API ms_status ms_plan_create(const ms_plan_request *request, ms_plan **out_plan);

/* Another owner of the same plan, which each owner destroys. Any thread. NULL for NULL. Cannot fail. */
MS_API ms_plan *ms_plan_share(const ms_plan *plan);

/* One owner less; the last one frees it. Cannot fail. NULL is allowed. */
MS_API void ms_plan_destroy(ms_plan *plan);

/* The plan as a whole. `out->struct_bytes` must be set. Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_plan_get_summary(const ms_plan *plan, ms_plan_summary *out);

/* The `index`-th unit with its action. `out->struct_bytes` must be set. Errors: MS_E_INVALID (index out of range). */
MS_NODISCARD MS_API ms_status ms_plan_get_entry(const ms_plan *plan, int64_t index, ms_plan_entry *out);

/* The plan for people: one paragraph (where the peak is, what it consists of, what was done), then a table of units.
 * `*out_text` is owned, ms_free. Errors: MS_E_INVALID, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_plan_explain(const ms_plan *plan, char **out_text);

/* The plan as JSON text, versioned. `*out_text` is owned, ms_free. Errors: MS_E_INVALID, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_plan_to_json(const ms_plan *plan, char **out_text);

/* The inverse, strict. `*out_plan` is owned, ms_plan_destroy. Errors: MS_E_PARSE, MS_E_VERSION, MS_E_INVALID,
 * MS_E_NO_MEMORY, MS_E_LIMIT. */
MS_NODISCARD MS_API ms_status ms_plan_from_json(const char *text, size_t n_bytes, ms_plan **out_plan);

/* Is this plan for a model with exactly these units, by name and parameter bytes, in any order? Errors: MS_E_INVALID,
 * MS_E_NO_MEMORY, MS_E_MISMATCH (the message names the first difference). */
MS_NODISCARD MS_API ms_status ms_plan_check_units(const ms_plan *plan, const ms_unit *units, int64_t n_units);

/* ================================================================================================================ */
#ifdef MS_EXPERIMENTAL

/* ---- Fields of structures -------------------------------------------------------------------------------------- */

enum ms_field_kind {
    MS_FIELD_INT64 = 0,
    MS_FIELD_UINT64 = 1,
    MS_FIELD_INT32 = 2,
    MS_FIELD_UINT32 = 3,
    MS_FIELD_BOOL = 4,  /* int64_t, 1 or 0 */
    MS_FIELD_TEXT = 5,  /* const char * */
    MS_FIELD_PARTS = 6, /* int64_t[MS_MAX_CATEGORIES], by enum ms_category */
    MS_N_FIELD_KINDS = 7
};

/* A field of a structure below, so that bindings need not list each of them again. */
typedef struct ms_field {
    const char *name; /* static storage */
    uint64_t offset;
    int64_t kind; /* enum ms_field_kind */
} ms_field;

/* All fields of a structure except struct_bytes, in their order; *out_n of them. Static storage. Any thread. Cannot
 * fail. */
MS_API const ms_field *ms_gpu_model_fields(int64_t *out_n);
MS_API const ms_field *ms_rates_fields(int64_t *out_n);
MS_API const ms_field *ms_unit_costs_fields(int64_t *out_n);
MS_API const ms_field *ms_simulation_summary_fields(int64_t *out_n);
MS_API const ms_field *ms_simulation_segment_fields(int64_t *out_n);
MS_API const ms_field *ms_prediction_fields(int64_t *out_n);
MS_API const ms_field *ms_comparison_fields(int64_t *out_n);
MS_API const ms_field *ms_plan_summary_fields(int64_t *out_n);
MS_API const ms_field *ms_plan_entry_fields(int64_t *out_n);

/* ---- Components of a GPU's software ---------------------------------------------------------------------------- */

enum ms_gpu_component {
    MS_GPU_DRIVER = 0, /* devices, copies, launches */
    MS_GPU_NVML = 1,   /* link, and memory of other processes */
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
MS_NODISCARD MS_API ms_status ms_gpu_get_component(ms_gpu *gpu, int32_t component, ms_gpu_component_info *out);

/* The name of a component, e.g. "driver"; "?" if unknown. Static storage. Cannot fail. */
MS_API const char *ms_gpu_component_name(int32_t component);

/* ---- Checksums and the link ------------------------------------------------------------------------------------ */

/* A 64-bit checksum of bytes, the same on host and device. It detects lost or changed bytes, not malice. `data` may be
 * NULL if n_bytes is 0. Any thread. Cannot fail. */
MS_API uint64_t ms_checksum(const void *data, size_t n_bytes);

/* The same of device memory, computed there. `address` is a device address; `stream` is a CUstream (0: the legacy
 * default stream) of the device's primary context. Work that was queued on the stream is seen; the call waits for the
 * stream. If no kernel is available (ms_gpu_get_component tells why) the bytes are copied to the host in pieces and
 * summed there, with one message at info level. Any thread. Errors: MS_E_INVALID (no such device or range),
 * MS_E_UNAVAILABLE (no driver), MS_E_CUDA, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_gpu_checksum(ms_gpu *gpu, int64_t device, uint64_t address, uint64_t n_bytes,
                                              uint64_t stream, uint64_t *out);

typedef struct ms_gpu_link {
    uint64_t struct_bytes;
    int64_t n_bytes;          /* of one copy */
    int64_t to_device_rate;   /* bytes per second, host to device, pinned memory; the median of several copies */
    int64_t from_device_rate; /* device to host */
    int64_t both_rate;        /* both at once, added up */
    int64_t pinning_rate;     /* allocating pinned host memory */
    int64_t intact;           /* 1: what came back has the checksum of what was sent */
} ms_gpu_link;

/* Measure the link between host and device with copies of n_bytes (at least 4096). Needs 2 * n_bytes of pinned host
 * memory and of device memory meanwhile. `out->struct_bytes` must be set. Any thread. Errors: MS_E_INVALID,
 * MS_E_UNAVAILABLE, MS_E_CUDA (also: out of device memory), MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_gpu_measure_link(ms_gpu *gpu, int64_t device, int64_t n_bytes, ms_gpu_link *out);

/* ---- Pointwise programs ----------------------------------------------------------------------------------------- */

/* What is computed element by element from up to four tensors, as one kernel: it gives the bits that torch's functions
 * give one after the other on a GPU. */
enum { MS_POINTWISE_MAX_INPUTS = 4, MS_POINTWISE_MAX_OPS = 32, MS_POINTWISE_SCALAR = -1 };

/* Types of tensors. */
enum ms_pointwise_dtype {
    MS_POINTWISE_FP32 = 0,
    MS_POINTWISE_BF16 = 1,
    MS_POINTWISE_FP16 = 2,
    MS_N_POINTWISE_DTYPES = 3
};

enum ms_pointwise_kind {
    MS_POINTWISE_CAST = 0, /* of `a`, as all that follow up to GELU_TANH */
    MS_POINTWISE_NEG = 1,
    MS_POINTWISE_ABS = 2,
    MS_POINTWISE_RELU = 3,
    MS_POINTWISE_TANH = 4,
    MS_POINTWISE_SIGMOID = 5,
    MS_POINTWISE_SILU = 6,
    MS_POINTWISE_GELU = 7,
    MS_POINTWISE_GELU_TANH = 8,
    MS_POINTWISE_ADD = 9, /* of `a` and `b` */
    MS_POINTWISE_SUB = 10,
    MS_POINTWISE_MUL = 11,
    MS_POINTWISE_DIV = 12,
    MS_N_POINTWISE_KINDS = 13
};

/* One operation. An operand is an input (its number), the result of an earlier operation (n_inputs + its number), or
 * MS_POINTWISE_SCALAR; `b` counts for two operands only. It is computed in 32 bits and rounded to `dtype`. */
typedef struct ms_pointwise_op {
    int32_t kind, dtype, a, b; /* enum ms_pointwise_kind, enum ms_pointwise_dtype */
    double scalar;             /* is rounded to 32 bits */
} ms_pointwise_op;

/* The last operation gives the result. */
typedef struct ms_pointwise {
    uint64_t struct_bytes;
    int64_t n_inputs, n_ops;
    int32_t input_dtypes[MS_POINTWISE_MAX_INPUTS];
    ms_pointwise_op ops[MS_POINTWISE_MAX_OPS];
} ms_pointwise;

/* Its source for NVRTC, with one kernel ms_pointwise_kernel. Free it with ms_free. Any thread. Errors: MS_E_INVALID,
 * MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_pointwise_source(const ms_pointwise *program, char **out);

/* Compute it on the host, for n elements: one address for each input. The output may be no input. Any thread. Errors:
 * MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_pointwise_run(const ms_pointwise *program, const void *const *inputs, void *output,
                                               int64_t n);

/* Queue it on a stream (as in ms_gpu_checksum), with device addresses that stay valid until it is done. A program is
 * compiled when it first runs on a device, and kept on disk as all programs are. Any thread. Errors: MS_E_INVALID,
 * MS_E_UNAVAILABLE (no NVRTC, or it cannot compile it), MS_E_CUDA, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_gpu_pointwise(ms_gpu *gpu, int64_t device, const ms_pointwise *program,
                                               const uint64_t *inputs, uint64_t output, int64_t n, uint64_t stream);

/* ---- Units of a model ------------------------------------------------------------------------------------------ */

enum ms_module_flag {
    MS_MODULE_LIST = 1 << 0,   /* an ordered list of children (a list or a sequence of blocks) */
    MS_MODULE_CALLED = 1 << 1, /* has a forward of its own, so it can be a unit */
    MS_MODULE_OPAQUE = 1 << 2  /* never split: its children are not called one by one */
};

/* A module of a model. Modules are listed depth first: a parent comes before its children. */
typedef struct ms_module {
    int64_t parent;      /* index of the parent; -1 for the root, which is module 0 */
    uint64_t class_hash; /* equal for modules of one class */
    uint64_t own_hash;   /* of the class and of the shapes and types of the module's own parameters */
    int64_t param_bytes; /* of the module's own parameters, each counted once in the model */
    uint32_t flags;      /* enum ms_module_flag */
    uint32_t reserved;   /* 0 */
} ms_module;

/* Find the units of a model: its repeated blocks, and the modules between them. No unit contains another. `out_units`
 * and `out_flags` have room for n_modules items each and get *out_n_units: indices of modules, ascending, and for each
 * of them MS_UNIT_BLOCK or 0. A block is a member of a list that has parameters and whose class occurs more than once
 * in the list, or the only member of a list. `out_flags` may be NULL. Any thread. Errors: MS_E_INVALID (not a tree in
 * depth-first order), MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_units_find(const ms_module *modules, int64_t n_modules, int64_t *out_units,
                                            uint32_t *out_flags, int64_t *out_n_units);

/* A stable 64-bit hash of bytes: the same on every machine and in every release of one major version. `data` may be
 * NULL if n_bytes is 0. Any thread. Cannot fail. */
MS_API uint64_t ms_hash64(const void *data, size_t n_bytes, uint64_t seed);

/* ---- Traces ---------------------------------------------------------------------------------------------------- */

enum ms_trace_event_kind {
    MS_TRACE_OP = 0,    /* a: the operation */
    MS_TRACE_ALLOC = 1, /* a: the storage, b: its bytes */
    MS_TRACE_FREE = 2,  /* a: the storage; b: 1 if a node of backward frees it that lets go of what it saved while it
                         * runs, as compiled code does; else 0 */
    MS_TRACE_UNIT = 3,  /* a: the unit that runs from now on, -1: none */
    MS_TRACE_PHASE = 4, /* a: the phase that begins */
    MS_TRACE_RECOMPUTE = 5, /* a: the unit that what follows recomputes, -1: none any more */
    MS_TRACE_SAVE = 6,      /* a: the storage that autograd saves for backward, -1: not on the device; b: the number of
                             * the save. Outside of recomputations saves are numbered 0, 1, 2, ...; within one, the
                             * storage takes the place of the one that had this number */
    MS_TRACE_GRADIENT = 7,  /* a: the storage, which is complete and becomes the gradient of a parameter that has none;
                             * of one that has a gradient, it would be added to that here and be freed */
    MS_TRACE_FUNCTION = 8,  /* a: MS_KEEP_ATTENTION or MS_KEEP_PRODUCTS: the operations that follow are those of a
                             * function whose result may be kept; 0: it has returned, b: the storage of its result, -1:
                             * not on the device */
    MS_TRACE_INPUT = 9      /* a: the storage, an input that the unit which has just run holds for its recomputation */
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
    int64_t dims[6];     /* padded with 1 */
    int64_t last_stride; /* of the last dimension, in elements; 1 or 0: that one is contiguous */
} ms_trace_operand;

#define MS_TRACE_SCRATCHES 3

/* One training step as it was observed, on tensors without memory or on real data. */
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
    const int64_t *kinds; /* of storages: enum ms_category if known, else MS_CATEGORY_ACTIVATION */
    int64_t n_storages;
    const int64_t *scratch_bytes; /* MS_TRACE_SCRATCHES for each name: what its kernels were seen to allocate for
                                   * themselves, each after one result; the first is negative: unknown. NULL: unknown
                                   * for all. What is unknown is known by rule */
} ms_trace;

/* ---- Building profiles ----------------------------------------------------------------------------------------- */

typedef struct ms_profile_request {
    uint64_t struct_bytes;
    const char *const *unit_names; /* in the order of the numbers that the traces use */
    const int64_t *unit_param_bytes;
    int64_t n_units;
    const ms_trace *plain;      /* a step in which nothing is done */
    const ms_trace *recomputed; /* the same step with all units recomputed; NULL: unknown */
    int64_t batch, length;      /* the shape of its input; 0: unknown */
    const uint32_t *unit_flags; /* MS_UNIT_BLOCK or 0 of each unit; NULL: all 0 */
    const ms_trace *pointwise;  /* the same step with the results of pointwise functions of all units computed again
                                 * in backward (MS_ACTION_RECOMPUTE_POINTWISE); used only with `recomputed`; NULL:
                                 * unknown */
} ms_profile_request;

/* A request for a model without units, with this trace, which it borrows; the other fields are 0. Set them as needed.
 * `request->struct_bytes` must be set. Any thread. Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_profile_request_init(ms_profile_request *request, const ms_trace *plain);

/* A profile with the step that was traced: what it allocates, frees and computes, unit by unit. `*out_profile` is
 * owned, ms_profile_destroy. Any thread. Errors: MS_E_INVALID (a trace is malformed), MS_E_VERSION, MS_E_MISMATCH (the
 * traces are not of the same step), MS_E_LIMIT, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_profile_from_traces(const ms_profile_request *request, ms_profile **out_profile);

/* The same from one trace, `request->recomputed`, of a step that was watched while its units were recomputed;
 * `request->plain` must be NULL. The plain step is derived: recomputations are left out, and what autograd saved
 * (MS_TRACE_SAVE) lives until backward has used it. If the trace has MS_PHASE_OPTIMIZER_FIRST and no
 * MS_PHASE_OPTIMIZER, the latter is derived too: the same operations without the state that the first step makes.
 * `*out_profile` is owned, ms_profile_destroy. Any thread. Errors: as ms_profile_from_traces(). */
MS_NODISCARD MS_API ms_status ms_profile_from_watched_trace(const ms_profile_request *request,
                                                            ms_profile **out_profile);

/* One profile for all shapes, from profiles of the same model at a few shapes (ms_profile_request.batch and .length), 2
 * to 32 of them. Every size and cost becomes a sum of the terms 1, b, t, bt, t^2, bt^2 and bp in batch b and length t;
 * p is t rounded up to 32, as attention kernels pad it. Terms are taken in this order, if the shapes can tell them from
 * the terms before; a number that is no such sum is tried with bp in place of one of them. So two batches at three
 * lengths are enough for everything, two batches for how sizes grow with the batch. The last profile is not used for
 * the fit but compared with the result: its batch must differ from all others if batches differ, and its length if
 * lengths differ. All numbers must agree exactly, at every shape. Padding counts as growth if the lengths cannot tell
 * the two apart: if all are multiples of 32, or all are padded by the same share (25, 50, 100). The result has the
 * shape of the first profile. `*out_profile` is owned, ms_profile_destroy. Any thread. Errors: MS_E_INVALID,
 * MS_E_MISMATCH (the message says where: steps do different things, or a number is no such sum), MS_E_LIMIT,
 * MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_profile_fit(const ms_profile *const *profiles, int64_t n_profiles,
                                             ms_profile **out_profile);

#define MS_FIT_MAX_SHAPES 7

typedef struct ms_shape {
    int64_t batch, length; /* 0: there is none */
} ms_shape;

/* The shapes at which a step has to be profiled for ms_profile_fit, from the one that is known: enough to tell how
 * sizes grow, and one more to check it. Batches are at least 2, since what is copied for two is often not for one;
 * lengths of 64 and more are padded by attention kernels to multiples of 32, each by another share, so that padding
 * is not taken for growth. `out` has room for MS_FIT_MAX_SHAPES. Any thread. Errors: MS_E_INVALID (no batch). */
MS_NODISCARD MS_API ms_status ms_profile_get_fit_shapes(ms_shape known, ms_shape *out, int64_t *out_n);

/* The profile at another shape, without another trace: exact if the model does the same things there. It may not at a
 * batch or a length of 1, where nothing needs to be expanded or summed. Fractions are rounded up. `*out_profile` is
 * owned, ms_profile_destroy. Any thread. Errors: MS_E_INVALID (the profile is valid for one batch or length only),
 * MS_E_LIMIT (a size is negative there, or too large), MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_profile_reshape(const ms_profile *profile, int64_t batch, int64_t length,
                                                 ms_profile **out_profile);

/* What a unit does in one phase of the step, nothing recomputed. */
typedef struct ms_unit_costs {
    uint64_t struct_bytes;
    int64_t flops;         /* of matrix products, convolutions and attention */
    int64_t bytes;         /* read and written */
    int64_t n_ops;         /* operations that the host dispatches */
    int64_t n_kernels;     /* of them, those that compute: views do not */
    int64_t n_random;      /* of them, those that draw random numbers */
    int64_t working_bytes; /* the most that is allocated within it, above what was allocated when it began */
} ms_unit_costs;

/* The costs of a unit, or of everything between units (-1), in a phase (enum ms_phase). `out->struct_bytes` must be
 * set. Any thread. Errors: MS_E_INVALID (out of range). */
MS_NODISCARD MS_API ms_status ms_profile_get_costs(const ms_profile *profile, int64_t unit, int32_t phase,
                                                   ms_unit_costs *out);

/* ---- Model options --------------------------------------------------------------------------------------------- */

/* What is done to the model as a whole. */
enum ms_model_option {
    MS_MODEL_HALF = 1 << 0,              /* computed in 16 bits; fp32 weights stay exact, as two halves */
    MS_MODEL_8BIT = 1 << 1,              /* the optimizer's moments have 8 bits */
    MS_MODEL_OFFLOAD = 1 << 2,           /* moments and lower halves of weights are in host memory */
    MS_MODEL_OFFLOAD_GRADIENTS = 1 << 3, /* gradients are copied to host memory as they appear */
    MS_MODEL_TILE_LOSS = 1 << 4,         /* what follows the last unit, logits and loss, is computed in tiles */
    MS_MODEL_ALL = 31
};

typedef struct ms_model_option_info {
    uint64_t struct_bytes;
    const char *name;
    const char *identifier;
    const char *sentence; /* "Optimizer state is kept in host memory." */
    uint32_t techniques;  /* enum ms_technique */
    uint32_t reserved;    /* 0 */
    int64_t needs_link;   /* as in ms_action_info, here and below */
    int64_t is_runnable;
} ms_model_option_info;

/* One bit of enum ms_model_option. `out->struct_bytes` must be set. Any thread. Errors: MS_E_INVALID (unknown). */
MS_NODISCARD MS_API ms_status ms_model_option_get_info(uint32_t option, ms_model_option_info *out);

/* ---- Texts ------------------------------------------------------------------------------------------------------ */

/* A size or a time as every text of the library shows it: three significant digits, "10.6 GB", "7.70 ms"; GB are 1e9
 * bytes. `out` has room for `n` characters, of which 32 always suffice. Any thread. Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_format_bytes(int64_t bytes, char *out, size_t n);
MS_NODISCARD MS_API ms_status ms_format_ns(int64_t ns, char *out, size_t n);

/* Where in a step something happens: "in backward of lm_head", "in forward, between layers", "between steps". `layer`
 * is its name, or NULL; long names are cut. `out` has room for `n` characters, of which 160 always suffice. Any thread.
 * Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_format_place(int32_t phase, const char *layer, char *out, size_t n);

/* ---- Simulation ------------------------------------------------------------------------------------------------ */

typedef struct ms_simulation_request {
    uint64_t struct_bytes;
    const ms_profile *profile;
    const int32_t *actions; /* enum ms_action for each unit; NULL: all are kept */
    int64_t n_actions;
    const ms_device *device;
    int64_t limit_bytes;    /* what torch's allocator may reserve, with MS_SIMULATE_ALLOCATOR; 0: no limit */
    uint32_t flags;         /* enum ms_simulation_flag */
    uint32_t model_options; /* enum ms_model_option; with MS_MODEL_HALF the profile is one in 16 bits */
    int64_t prefetch_depth; /* as in ms_settings */
    int64_t spacer_bytes;   /* a block that is there while `spacer_unit` runs forward for the first time; 0: none */
    int64_t spacer_unit;    /* ignored without a spacer */
} ms_simulation_request;

/* A request for the plain step on this device, as torch runs it: backward on a thread of its own and, on a GPU, the
 * caching allocator without a limit. Profile and device are borrowed. `request->struct_bytes` must be set. Any thread.
 * Errors: MS_E_INVALID, MS_E_VERSION. */
MS_NODISCARD MS_API ms_status ms_simulation_request_init(ms_simulation_request *request, const ms_profile *profile,
                                                         const ms_device *device);

typedef struct ms_simulation_summary {
    uint64_t struct_bytes;
    int64_t start_bytes;       /* parameters, buffers and inputs: there before the step */
    int64_t first_peak_bytes;  /* of the first step */
    int64_t steady_peak_bytes; /* of later steps */
    int64_t idle_bytes;        /* held between steps */
    int64_t first_reserved_bytes;
    int64_t reserved_bytes; /* with MS_SIMULATE_ALLOCATOR; else the peak */
    int64_t unused_bytes;   /* of the steady peak: parts of blocks beyond what was requested */
    int64_t step_ns, forward_ns, backward_ns, optimizer_ns;
    int64_t host_ns;   /* until the host has queued the step */
    int64_t device_ns; /* until the device has finished it */
    int64_t n_ops;
    int64_t host_bytes;               /* host memory used at most by activations, gradients and optimizer state */
    int64_t wait_ns;                  /* of the step, waiting for the link */
    int32_t peak_unit;                /* where the steady peak is; -1: between units */
    int32_t peak_phase;               /* enum ms_phase */
    int64_t parts[MS_MAX_CATEGORIES]; /* of the steady peak, by enum ms_category */
    int64_t start_reserved_bytes;     /* reserved before the first step */
    int64_t needed_bytes; /* the least limit within which the first step runs, and later ones without having to return
                             memory first */
} ms_simulation_summary;

/* A segment of the steady step: one phase inside one unit, or between units. */
typedef struct ms_simulation_segment {
    uint64_t struct_bytes;
    int32_t unit;  /* -1: between units */
    int32_t phase; /* enum ms_phase */
    int64_t peak_bytes;
    int64_t end_bytes;
    int64_t duration_ns;              /* 0 if it is no part of a steady step */
    int64_t parts[MS_MAX_CATEGORIES]; /* of the peak, by enum ms_category */
} ms_simulation_segment;

typedef struct ms_simulation ms_simulation; /* immutable: may be read from several threads at once */

/* Simulate a step of the profile with these actions. How it runs follows from what is done: MemScale keeps backward on
 * the calling thread, so MS_SIMULATE_ENGINE_THREAD applies only where nothing is done to any unit or to the model; and
 * it lets segments grow, so MS_SIMULATE_GROWING applies only where something is. The same request gives the same result
 * on every machine. `*out` is owned, ms_simulation_destroy. Any thread. Errors: MS_E_INVALID, MS_E_VERSION,
 * MS_E_MISMATCH (the number of actions), MS_E_BUDGET (it does not fit limit_bytes; ms_error_info.needed_bytes is the
 * limit that the next allocation needs), MS_E_NO_MEMORY, MS_E_LIMIT. */
MS_NODISCARD MS_API ms_status ms_simulation_create(const ms_simulation_request *request, ms_simulation **out);

/* Cannot fail. NULL is allowed. */
MS_API void ms_simulation_destroy(ms_simulation *sim);

/* The step as a whole. `out->struct_bytes` must be set. Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_simulation_get_summary(const ms_simulation *sim, ms_simulation_summary *out);

/* The number of segments of the step. Cannot fail. */
MS_API int64_t ms_simulation_count_segments(const ms_simulation *sim);

/* One of them, in order. `out->struct_bytes` must be set. Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_simulation_get_segment(const ms_simulation *sim, int64_t index,
                                                        ms_simulation_segment *out);

/* When the tensors of an offloaded unit leave the device and come back, as ms_plan_entry has it; 0 for other units.
 * Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_simulation_get_schedule(const ms_simulation *sim, int64_t unit,
                                                         int64_t *out_leaves_after, int64_t *out_fetched_before);

/* ---- Measured steps -------------------------------------------------------------------------------------------- */

enum ms_boundary {
    MS_BOUNDARY_FORWARD_BEGINS = 0,  /* of a unit */
    MS_BOUNDARY_FORWARD_ENDS = 1,    /* its caller may still hold the inputs: predicted, but not compared */
    MS_BOUNDARY_BACKWARD_BEGINS = 2, /* with its recomputation, if there is one */
    MS_BOUNDARY_PEAK = 3,            /* the most of the whole forward and backward; unit -1 */
    MS_N_BOUNDARIES = 4
};

/* What was allocated at a boundary of a steady step that ran, beyond what was allocated when its forward began. */
typedef struct ms_reading {
    int32_t unit;
    int32_t boundary; /* enum ms_boundary */
    int64_t measured_bytes;
    int64_t predicted_bytes; /* the rest is set: the same in the simulation */
    int64_t predicted_ns;    /* from the begin of forward to here; 0 for the peak */
    int64_t is_compared;     /* 0: the simulation has this boundary more or less often than the step, so nothing is
                                known of it */
} ms_reading;

typedef struct ms_comparison {
    uint64_t struct_bytes;
    int64_t n_compared;       /* readings that could be, without ends of a forward */
    int64_t worst;            /* the reading that differs most, -1: none was compared. If in any more than the margin
                                 is measured beyond what was predicted, the one that exceeds it most */
    int64_t difference_bytes; /* there: measured less predicted */
    int64_t first;            /* the first reading that differs by more than the margin, in the direction of the worst;
                                 -1: none does */
} ms_comparison;

/* Compare a step that ran with its simulation. `readings` (borrowed, also written) are in the order of the step.
 * `out->struct_bytes` must be set. Any thread. Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_simulation_compare(const ms_simulation *sim, ms_reading *readings, int64_t n_readings,
                                                    int64_t margin_bytes, ms_comparison *out);

/* ---- Predictions ------------------------------------------------------------------------------------------------ */

typedef struct ms_prediction {
    uint64_t struct_bytes;
    int64_t peak_bytes;                /* the most that is allocated */
    int64_t low_bytes, high_bytes;     /* the error band around it */
    int64_t reserved_bytes;            /* by torch's allocator, if nothing limits it */
    int64_t usable_bytes;              /* what it was held against */
    int64_t fits;                      /* 1: what is needed is within usable_bytes less the margin */
    ms_simulation_summary *simulation; /* may be NULL; else gets the summary, struct_bytes must be set */
    int64_t needed_bytes;              /* what torch's allocator must be allowed to reserve; on a CPU the peak */
    int64_t margin_bytes;              /* the part of usable_bytes that stays free, as under a budget of that size */
} ms_prediction;

/* Will this step fit? `usable_bytes` 0: what the device has. The peak, and whether it fits, are those of a plan with
 * these actions; on a GPU the flags should be those of ms_plan_request_init: segments grow only if something is done.
 * The error band is 2 % of the peak, 3 % for a profile of a step that really ran (`was_run` not 0), as measured in
 * docs/PREDICTION.md. `out->struct_bytes` must be set. Any thread. Errors: as ms_simulation_create, without
 * MS_E_BUDGET. */
MS_NODISCARD MS_API ms_status ms_predict(const ms_simulation_request *request, int64_t usable_bytes, int32_t was_run,
                                         ms_prediction *out);

/* ---- Frontiers ------------------------------------------------------------------------------------------------- */

/* What a unit keeps of its forward for its backward, in addition to its inputs. */
enum ms_keep {
    MS_KEEP_ATTENTION = 1 << 0, /* all that fused attention kernels return */
    MS_KEEP_PRODUCTS = 1 << 1,  /* outputs of matrix products and convolutions */
    MS_KEEP_REST = 1 << 2,
    MS_KEEP_ALL = 7 /* what is saved when nothing is done: nothing is recomputed */
};

#define MS_FRONTIER_MAX_POINTS 5

/* One way between recomputing a unit and keeping it: outputs of some operations are kept, the others are recomputed. */
typedef struct ms_frontier_point {
    uint32_t keeps;       /* enum ms_keep; 0: all is recomputed */
    uint32_t reserved;    /* 0 */
    int64_t held_bytes;   /* held from forward to backward, beyond what is held when all is recomputed */
    int64_t recompute_ns; /* what the recomputation still takes */
    int64_t spared_ns;    /* how much less that is than when all is recomputed */
} ms_frontier_point;

/* What a unit could keep, and what that would save. The choices are to recompute it completely, to keep attention,
 * products or both, and to keep all. The result has them in the order of their bytes, without those that another one
 * beats in bytes and in time. The first keeps no bytes. An output counts if the recomputation makes it: that ends with
 * the last tensor that backward needs, so each is needed by backward or by what is recomputed later. Times are those of
 * ms_simulation_create for these operations alone; on a GPU, the longer of queueing and computing them. `out` has room
 * for `capacity` points (MS_FRONTIER_MAX_POINTS are always enough) and gets *out_n. Any thread. Errors: MS_E_INVALID
 * (no such unit, or the profile has no recomputed trace), MS_E_VERSION, MS_E_LIMIT (capacity), MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_profile_frontier(const ms_profile *profile, int64_t unit, const ms_rates *rates,
                                                  ms_frontier_point *out, int64_t capacity, int64_t *out_n);

/* One point of the trade between memory and time. */
typedef struct ms_pareto_point {
    int64_t peak_bytes;
    int64_t step_ns;
    int64_t host_bytes;
    int64_t n_changed;      /* units that are not kept */
    uint32_t model_options; /* enum ms_model_option */
    uint32_t reserved;      /* 0 */
} ms_pareto_point;

/* The trade between memory and time: plans of which none is both smaller and faster than another, from the fastest to
 * the smallest. Budget, slowdown and flags of the request do not matter. `out` has room for `capacity` points (2 to
 * 1024), which are spread over the possible peaks, and gets *out_n. Any thread. Errors: as ms_plan_create, without
 * MS_E_BUDGET. */
MS_NODISCARD MS_API ms_status ms_plan_pareto(const ms_plan_request *request, ms_pareto_point *out, int64_t capacity,
                                             int64_t *out_n);

/* ---- Advice ----------------------------------------------------------------------------------------------------- */

/* The least budget, in round figures, for which this request has a plan: 4 digits, a little above what is needed. 0
 * where the device has not that much. For requests that were refused; budget and margin of `request` do not matter.
 * Any thread. Errors: as ms_plan_create, without MS_E_BUDGET. */
MS_NODISCARD MS_API ms_status ms_plan_find_budget(const ms_plan_request *request, int64_t *out_bytes);

/* The least budget, in round figures, that has room for a step with this peak and its margin. Any thread. Cannot fail.
 */
MS_API int64_t ms_budget_for_peak(int64_t peak_bytes);

/* What a user may change so that a step fits. Each change costs more than all before it together, so sets of changes as
 * numbers are in the order of their cost. */
enum ms_change {
    MS_CHANGE_BUDGET = 1 << 0,    /* a larger budget */
    MS_CHANGE_FUSED = 1 << 1,     /* the same optimizer, fused, which needs no temporaries */
    MS_CHANGE_TECHNIQUE = 1 << 2, /* more is recomputed, or may be done */
    MS_CHANGE_BATCH = 1 << 3,     /* a smaller batch */
    MS_CHANGE_AUTOCAST = 1 << 4,  /* computed in 16 bits */
    MS_CHANGE_HALF = 1 << 5,      /* the model converted to 16 bits */
    MS_CHANGE_ADAFACTOR = 1 << 6, /* an optimizer that has almost no state */
    MS_CHANGE_ALL = 127
};

/* The search for changes with which a step fits, for a caller who can try a set of them. */
typedef struct ms_change_search {
    uint64_t struct_bytes;
    int64_t limit_bytes;     /* what the step may need */
    int64_t most_bytes;      /* the same with the largest budget */
    int64_t param_bytes;     /* of the step as it is; it needs these three at the same time, */
    int64_t gradient_bytes;  /* whatever the batch is */
    int64_t state_bytes;     /* of the optimizer */
    const uint32_t *fitting; /* sets that were found to fit */
    int64_t n_fitting;
    uint32_t allowed; /* enum ms_change: what may be changed */
    uint32_t tried;   /* the set that was tried last; 0: none */
} ms_change_search;

/* The set of changes to try next: the cheapest after `tried` that is possible, that does not contain one that fits, and
 * whose parameters, gradients and optimizer state alone do not need too much. 0: there is none. Cannot fail. */
MS_API uint32_t ms_change_search_get_next(const ms_change_search *search);

/* The search for the largest batch that fits, for a caller who can try one: peaks grow about evenly with the batch, so
 * the next one to try lies where a straight line between two that are known meets the limit. */
typedef struct ms_batch_search {
    uint64_t struct_bytes;
    int64_t limit_bytes;      /* what may be used */
    int64_t low, low_bytes;   /* the largest batch that fits, and what it takes; at first 0 and what any batch takes */
    int64_t high, high_bytes; /* the smallest that does not fit; at first the one that was refused */
    int64_t n_tried;
} ms_batch_search;

/* The batch to try next; 0: the search is done, or has gone on for too long. Cannot fail. */
MS_API int64_t ms_batch_search_get_next(const ms_batch_search *search);

/* What came of a try. Cannot fail. */
MS_API void ms_batch_search_note(ms_batch_search *search, int64_t batch, int64_t n_bytes, int32_t fits);

/* ---- Plans by the sizes of inputs ------------------------------------------------------------------------------- */

/* The sizes of all tensors of an input, and how much time there is to analyse steps with it. */
typedef struct ms_input {
    uint64_t struct_bytes;
    const int64_t *sizes;  /* tensor by tensor: the number of its dimensions, then each dimension */
    int64_t n_sizes;       /* numbers in `sizes` */
    int64_t batch, length; /* which of them are the batch and the length of sequences, for the plan's summary */
    int64_t trained_ns;    /* since the first step began; 0: analyses may take any time */
    int64_t analysed_ns;   /* of that, what `source` took, for all plans of the model */
    int64_t analysis_ns;   /* what one more profile takes */
} ms_input;

/* Profile the step of the input that ms_shape_plans_find was called for, resized to each of `n_profiles` lists of
 * sizes, which follow each other and are like ms_input.sizes of that input. `out_profiles` has room for as many, which
 * are then the library's. Returns MS_OK; MS_E_UNAVAILABLE where the step cannot be analysed, so that another plan has
 * to do; or MS_E_INTERRUPTED to stop the call that asked. */
typedef ms_status (*ms_profile_source)(void *user, const int64_t *sizes, int64_t n_profiles, ms_profile **out_profiles);

/* The plans of a model by the sizes of its inputs. One thread at a time, those that share what they learned included.
 */
typedef struct ms_shape_plans ms_shape_plans;

typedef struct ms_shape_plans_options {
    uint64_t struct_bytes;
    const ms_plan_request *request; /* what the plan was made from, except plain_profile. All that it borrows is copied
                                       or shared */
    const ms_plan *plan;            /* the first plan; it is shared */
    const ms_input *input;          /* the input that it was made for; copied */
    ms_profile_source source;       /* NULL: no other profile can be had */
    void *user;                     /* for `source` */
    const ms_shape_plans *like;     /* of the same model and input, for another request: how the step grows is found out
                                     * once for both. NULL: none */
} ms_shape_plans_options;

/* `*out_plans` is owned, ms_shape_plans_destroy. Errors: as ms_plan_create, and MS_E_MISMATCH (the plan has other
 * units, or `like` is of another model). */
MS_NODISCARD MS_API ms_status ms_shape_plans_create(const ms_shape_plans_options *options, ms_shape_plans **out_plans);

/* Cannot fail. NULL is allowed. */
MS_API void ms_shape_plans_destroy(ms_shape_plans *plans);

/* The plan for an input of these sizes. Inputs that are no larger than a known one in any dimension have its plan. The
 * first plan does for an input for which a bound of the peak is within the budget: whatever depends on inputs grows at
 * most with the square of the elements of the one that grows most. Otherwise `source` profiles the step at five shapes,
 * once: every size is found as a sum of products of up to four dimensions that vary, and the first plan is simulated
 * with these, or another one made; lengths are rounded up by at most an eighth or to a multiple of 32. A step that
 * cannot be described so is profiled for this input alone. After the first, analyses are made only while they take less
 * than 2 % of `trained_ns`; where one would be needed, the plan recomputes every unit that may be (MS_PLAN_LEAN). The
 * same profiles give the same plans: time decides only whether there is a profile. Sizes that were asked for before
 * take no memory. `*out_plan` is owned, ms_plan_destroy; the same plan is the same pointer. Errors: MS_E_BUDGET (no
 * plan fits), MS_E_INVALID, MS_E_INTERRUPTED (by `source`), MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_shape_plans_find(ms_shape_plans *plans, const ms_input *input, ms_plan **out_plan);

/* ---- Throw-away processes -------------------------------------------------------------------------------------- */

/* A copy of this process that does something and ends, and leaves no trace: what it changes, in memory and in the
 * objects of the process, is its own. It is one thread's. */
typedef struct ms_child ms_child;

typedef struct ms_child_options {
    uint64_t struct_bytes;
    int64_t quiet_ns;     /* it is given up after so long without using the processor */
    int64_t limit_ns;     /* and after so long in any case */
    int64_t memory_bytes; /* that it may map in addition to what it has; 0: no limit of its own */
} ms_child_options;

typedef struct ms_child_answer {
    uint64_t struct_bytes;
    int64_t is_complete; /* 1 or 0: the child is still at work */
    const void *bytes;   /* what it sent; borrowed until ms_child_destroy */
    uint64_t n_bytes;
} ms_child_answer;

/* Make a child. Returns twice: in the parent, and in the child with `*out_is_child` 1. `*out_child` is owned in both;
 * ms_child_destroy in the parent, ms_child_finish in the child. No handler of fork() runs, in neither.
 *
 * The child has one thread, the one that called. It has no file but its pipe to the parent; what it prints is lost. It
 * has no mapping of a GPU: a call of CUDA ends it, and does no harm to the parent. It can create, change or remove no
 * file, open no socket, signal no other process, and start none: such calls fail with EACCES. It ends with the thread
 * that made it. Memory that the parent shares with other processes is shared with the child, too.
 *
 * Errors: MS_E_UNAVAILABLE (no child can be made here, or MEMSCALE_NO_FORK is set), MS_E_INVALID, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_child_create(const ms_child_options *options, ms_child **out_child,
                                              int64_t *out_is_child);

/* In the child, once it has allocated memory: tell the parent that it works. Errors: MS_E_INVALID (in the parent),
 * MS_E_IO (the parent does not listen). */
MS_NODISCARD MS_API ms_status ms_child_report(ms_child *child);

/* In the child: send these bytes and end the process. Does not return. Cannot fail: if the parent does not listen, the
 * process ends with another status. */
MS_API void ms_child_finish(ms_child *child, const void *bytes, size_t n_bytes);

/* In the parent: wait for the answer, for at most about `wait_ns`. May be called again until it is complete; after an
 * error, destroy the child. `out->struct_bytes` must be set. Errors: MS_E_UNAVAILABLE (it did not start: another may),
 * MS_E_LIMIT (it takes too long, or waits), MS_E_IO (it ended without an answer), MS_E_INVALID, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_child_receive(ms_child *child, int64_t wait_ns, ms_child_answer *out);

/* In the parent: kill it if it still runs, and forget it. NULL is allowed. Cannot fail. */
MS_API void ms_child_destroy(ms_child *child);

/* ---- Offload --------------------------------------------------------------------------------------------------- */

/* The offload engine of a device: it copies tensors to host memory and back, on two streams of its own, while the
 * device computes. What one call of a layer puts away is a group: it goes out at once and comes back at once.
 *
 *     forward    ms_offload_put, then ms_offload_release until it has nothing: the device memory of old groups is free
 *     backward   where a group is needed: ms_offload_fetch unless that was done before, ms_offload_use;
 *                then ms_offload_fetch for what ms_offload_next foresees
 *     at the end ms_offload_settle where device memory of the group may still be in use, ms_offload_free
 *
 * `stream` is the stream that uses the tensors: a CUstream of the device's primary context as a number (0: the legacy
 * default stream). Calls wait for nothing on the host; they make streams wait for each other. A call that fails has no
 * copy in flight on memory that it was given.
 *
 * Without a GPU the device is the host: addresses are those of host memory, copies run on threads, and stream 0 is the
 * calling thread, which then waits itself.
 *
 * An engine may be used by several threads at once, a group by one thread at a time. What ms_offload_release and
 * ms_offload_next return is the caller's own pointer: if other threads may free that group meanwhile, or put it at this
 * moment, one lock around these calls has to keep it valid. Objects of a parent process must only be freed in a forked
 * child; other calls fail there. */
typedef struct ms_offload ms_offload;
typedef struct ms_offload_group ms_offload_group;

/* What plans that offload assume of who runs them. */
enum {
    MS_OFFLOAD_LEAST_BYTES = 65536, /* smaller tensors stay on the device */
    MS_OFFLOAD_LEAVING = 2          /* the tensors of a unit stay at least until so many more units have run */
};

typedef struct ms_offload_options {
    uint64_t struct_bytes;
    ms_gpu *gpu;                /* borrowed until the engine and its groups are gone; NULL: the device is the host */
    int64_t device;             /* the driver's number */
    int64_t limit_bytes;        /* of host memory, all in all */
    int64_t pinned_limit_bytes; /* of it that may be pinned; the rest is pageable, and copies of it are slow */
    int64_t max_pending;        /* groups on their way out, after which release() makes the device wait; 0: for each */
    int64_t delay_ns;           /* host only: work of the streams is late by up to so much, at random. For tests */
    uint64_t seed;              /* of what is random */
} ms_offload_options;

/* The usual options of a device, with as much host memory as `limit_bytes`. `gpu` may be NULL. `out->struct_bytes` must
 * be set. Any thread. Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_offload_options_init(ms_offload_options *out, ms_gpu *gpu, int64_t device,
                                                      int64_t limit_bytes);

/* Make an engine; it takes no host memory yet. `*out` is owned, ms_offload_destroy. Errors: MS_E_INVALID,
 * MS_E_UNAVAILABLE (no driver, no such device), MS_E_CUDA, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_offload_create(const ms_offload_options *options, ms_offload **out);

/* Destroy an engine. Its host memory is given back now or, if it still has groups, with the last one. NULL is allowed.
 * Waits for copies in flight. Cannot fail. */
MS_API void ms_offload_destroy(ms_offload *offload);

/* Let the pool of host memory be at least so large, so that steps need not wait for it. Errors: MS_E_INVALID,
 * MS_E_NO_MEMORY (the limit, or the system has no more), MS_E_CUDA, MS_E_UNAVAILABLE. */
MS_NODISCARD MS_API ms_status ms_offload_reserve(ms_offload *offload, int64_t n_bytes);

typedef struct ms_offload_piece {
    uint64_t address; /* on the device */
    int64_t n_bytes;  /* 0 is allowed */
} ms_offload_piece;

/* Copy pieces of device memory to the host, after what is queued on `stream` now. They must stay as they are until they
 * are released. `key`: which layer it is, 0 to 65535; layers are foreseen by it. `user` is what release() and next()
 * return, not NULL. `*out` is owned, ms_offload_free. Errors: MS_E_NO_MEMORY (no host memory is left: keep the
 * tensors), MS_E_INVALID, MS_E_CUDA, MS_E_UNAVAILABLE. */
MS_NODISCARD MS_API ms_status ms_offload_put(ms_offload *offload, int64_t key, const ms_offload_piece *pieces,
                                             int64_t n_pieces, uint64_t stream, void *user, ms_offload_group **out);

/* The oldest group on its way out whose device memory is free after what is queued on `stream` from now on: its copies
 * are done or, if more than max_pending groups are on their way, `stream` waits for them. `*out_user` is its `user`,
 * and it counts as released; NULL: no group has to be released now. Errors: MS_E_CUDA, MS_E_UNAVAILABLE,
 * MS_E_NO_MEMORY; the group is then still on its way. */
MS_NODISCARD MS_API ms_status ms_offload_release(ms_offload *offload, uint64_t stream, void **out_user);

/* Copy a group back to device memory that is free after what is queued on `stream` now: one address for each piece, 0
 * for one that is not needed. Nobody may use or free that memory before ms_offload_use or ms_offload_settle. It may be
 * called again. Errors: MS_E_INVALID, MS_E_CUDA, MS_E_UNAVAILABLE, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_offload_fetch(ms_offload_group *group, const uint64_t *addresses, uint64_t stream);

/* Backward has come to this group: `stream` waits until its copies are done. If it was not released yet, it is still on
 * the device, and counts as released now. The order of these calls is what ms_offload_next learns from. Errors:
 * MS_E_CUDA, MS_E_UNAVAILABLE, MS_E_NO_MEMORY. */
MS_NODISCARD MS_API ms_status ms_offload_use(ms_offload_group *group, uint64_t stream);

/* The same where nobody needs the group any more, and its device memory is to be freed. Errors: as ms_offload_use. */
MS_NODISCARD MS_API ms_status ms_offload_settle(ms_offload_group *group, uint64_t stream);

/* The `user` of the group that will be needed as the n-th after this one (1: the next): what was needed then the last
 * time, else what was put before. NULL: there is none that has to be fetched, or it was used in this backward already.
 * A backward begins where a group is used that was used in the one before. Cannot fail. */
MS_API void *ms_offload_next(const ms_offload_group *group, int64_t n_ahead);

/* Forget a group, and give its host memory back to the pool. NULL is allowed. Cannot fail. */
MS_API void ms_offload_free(ms_offload_group *group);

typedef struct ms_offload_stats {
    uint64_t struct_bytes;
    int64_t n_groups;        /* that exist */
    int64_t n_pending;       /* of them on their way out */
    int64_t used_bytes;      /* of the pool */
    int64_t peak_used_bytes; /* the most ever */
    int64_t pool_bytes;
    int64_t pinned_bytes; /* of them */
    int64_t n_grows;      /* how often host memory was taken */
    int64_t n_puts;
    int64_t put_bytes;
    int64_t n_refused; /* puts for which there was no host memory */
    int64_t n_fetches;
    int64_t fetched_bytes;
    int64_t n_waits; /* releases for which a stream had to wait */
    int64_t n_late;  /* uses of a group that was fetched right before, since it was not foreseen */
    int64_t host_ns; /* how long calls took, all in all: taking host memory, and waits of the calling thread */
} ms_offload_stats;

/* Counts since the engine was made. `out->struct_bytes` must be set. Errors: MS_E_INVALID. */
MS_NODISCARD MS_API ms_status ms_offload_get_stats(ms_offload *offload, ms_offload_stats *out);

#endif /* MS_EXPERIMENTAL */

#ifdef __cplusplus
}
#endif

#endif /* MEMSCALE_H */
