/* fake.h - a GPU's software without a GPU: libcuda, NVML and NVRTC for tests.
 *
 * Three libraries with the real names use a fourth one that has their common state (this header). Device memory is host
 * memory; streams are finished before a call returns; a launch runs the project's own device code, compiled for the
 * host (fake_kernels.c). Everything is counted, checked against misuse (a call without a current context, a copy
 * outside of an allocation), and any call can be made to fail. Calls that release something do so even when they are
 * made to fail, as the driver's do. Everything may be used from several threads.
 *
 * Other processes are controlled by environment variables: FAKE_CUDA_DEVICES, FAKE_CUDA_CAPABILITY, FAKE_CUDA_DRIVER,
 * FAKE_CUDA_MIG, FAKE_CUDA_TOTAL, FAKE_CUDA_OTHERS, FAKE_CUDA_HIDE_PID, FAKE_CUDA_ACTIVE, FAKE_NVRTC_VERSION,
 * FAKE_NVRTC_LOG, and FAKE_CUDA_FAIL="cuMemAlloc_v2=2@1,nvmlInit_v2=9" (the code, and which call fails; without @ every
 * one).
 */
#ifndef TESTS_FAKE_H
#define TESTS_FAKE_H

#include <stddef.h>
#include <stdint.h>

#define FAKE_MAX_DEVICES 32

typedef struct fake_settings {
    int n_devices; /* physical; CUDA_VISIBLE_DEVICES, a list of numbers, selects some of them */
    int driver_version, nvrtc_version;
    int capability[FAKE_MAX_DEVICES];
    int nvrtc_first, nvrtc_last; /* the architectures that NVRTC knows, of a fixed list */
    int is_mig;                  /* every device is a slice */
    int hide_pid;                /* NVML lists this process under another number, as in a container */
    int is_active;               /* other code in this process holds every primary context */
    uint64_t total_bytes, others_bytes;
    const char *name;
    const char *compile_log; /* not NULL: compilations fail with it */
} fake_settings;

/* What the libraries answer; change it before they are used. */
fake_settings *fake_settings_now(void);

/* Make the nth call from now on fail with a code (1: the next; 0: all). Rules are added to earlier ones. */
void fake_fail(const char *call, int code, int nth);
void fake_fail_nothing(void);

/* How often the function was called; NULL: all calls of all three libraries. */
int64_t fake_calls(const char *call);

enum fake_kind {
    FAKE_MEMORY,
    FAKE_PINNED,
    FAKE_REGISTERED,
    FAKE_STREAM,
    FAKE_EVENT,
    FAKE_MODULE,
    FAKE_PROGRAM,
    FAKE_N_KINDS
};

/* Objects that were created and not released. */
int64_t fake_live(enum fake_kind kind);
int64_t fake_lost(void);              /* objects that were destroyed with their context, because nobody released them */
int64_t fake_retained(void);          /* of primary contexts, on all devices */
int64_t fake_nvml_users(void);        /* nvmlInit without nvmlShutdown */
const void *fake_current(int *depth); /* the calling thread's current context, and the depth of its stack */

/* For tests: memory on a device, and a context that this thread must find again. */
void *fake_alloc(int device, size_t n_bytes);
void fake_free(void *memory);
void fake_push(int device);
void fake_pop(void);

/* ---- between the libraries -------------------------------------------------------------------------------------- */

typedef struct fake_object fake_object;

struct fake_object {
    fake_object *next;
    enum fake_kind kind;
    int device;
    size_t n_bytes;
    void *memory;    /* owned */
    void *pages;     /* that were registered; not owned */
    int64_t time_ns; /* of an event */
    int kernel;      /* of a module: what fake_kernel_find gave */
    char *log;       /* of a program, owned */
};

/* Lock the state and count the call. Returns the code that the call must fail with, or 0. One fake_end must follow. */
int fake_begin(const char *call);
int fake_end(int code);

/* The state must be locked for all of these. */
fake_object *fake_make(enum fake_kind kind, int device, size_t n_bytes);
int fake_drop(enum fake_kind kind, const void *handle); /* 0, or 400: no such object */
fake_object *fake_find(enum fake_kind kind, const void *handle);
int fake_in_range(int device, uint64_t address, size_t n_bytes);
uint64_t fake_used(int device);
int fake_n_visible(void);
int fake_visible(int index);
int fake_context_active(int device);
int fake_retain(int device, int by); /* by 1 or -1; 0, or 201 */
void *fake_context(int device);
int fake_push_locked(void *context);
int fake_pop_locked(void **context);
int fake_device_now(void); /* of the thread's current context; -1: none */
int fake_nvml_use(int by);

int64_t fake_now_ns(void);

/* Kernels compiled for the host. Find one by its entry point (-1: none); run one over a grid, without the lock. */
int fake_kernel_find(const char *entry);
size_t fake_kernel_args_bytes(int kernel);
void fake_kernel_run(int kernel, unsigned n_blocks, unsigned n_threads, const void *args);

#define FAKE_DECLARE(result, name, arguments, need) result name arguments;

#endif
