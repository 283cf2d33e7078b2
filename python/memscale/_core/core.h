/* core.h - shared by the files of the extension module memscale._core.
 *
 * The extension is a thin layer over memscale.h plus the per-tensor work of recomputation (frame.c), which must hold
 * Python objects. It uses the limited API of Python 3.10, so one binary serves every later Python. All state lives in
 * the module: no globals. It never links against torch; the few torch callables it needs are handed in by bind().
 */
#ifndef MS_CORE_H
#define MS_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pythread.h>

#include <memscale/memscale.h>

/* What bind() is handed: name in core_state, and what it is. */
#define CORE_BOUND(X)                                                                                                  \
    X(tensor_type)      /* torch.Tensor */                                                                             \
    X(parameter_type)   /* torch.nn.Parameter */                                                                       \
    X(mask_type)        /* torch.bool */                                                                               \
    X(detach)           /* torch.Tensor.detach */                                                                      \
    X(clone)            /* torch.Tensor.clone */                                                                       \
    X(graph_task_id)    /* () -> id of the running backward */                                                         \
    X(push_hooks)       /* (pack, unpack): hooks on saved tensors, from here on */                                     \
    X(pop_hooks)        /* () */                                                                                       \
    X(grad_enabled)     /* () -> bool */                                                                               \
    X(set_grad_enabled) /* (bool) */                                                                                   \
    X(copy)             /* copy.copy */                                                                                \
    X(switches)         /* list of (function, argument or None): the state of torch's switches */                      \
    X(put_switches)     /* (wanted, now) -> undo() */                                                                  \
    X(generator)        /* torch's generator on the CPU */                                                             \
    X(cuda)             /* torch.cuda: its default_generators */                                                       \
    X(python_random)    /* random._inst */                                                                             \
    X(note_python)      /* () -> the whole state of Python's random, with moved() and restore() */                     \
    X(note_numpy)       /* () -> the same for numpy's global generator */

/* Attributes of tensors that are read for each of them. bind() is handed torch's own descriptor of each, as get_NAME.
 */
#define CORE_TENSOR_ATTRIBUTES(X)                                                                                      \
    X(shape)                                                                                                           \
    X(dtype)                                                                                                           \
    X(device)                                                                                                          \
    X(_version)                                                                                                        \
    X(requires_grad)                                                                                                   \
    X(is_leaf)                                                                                                         \
    X(is_nested)

/* Tables of a module that forward does not read, or only beside others that say the same: not compared. */
#define CORE_UNREAD_TABLES(X)                                                                                          \
    X(_non_persistent_buffers_set)                                                                                     \
    X(_forward_hooks_with_kwargs)                                                                                      \
    X(_forward_hooks_always_called)                                                                                    \
    X(_forward_pre_hooks_with_kwargs)                                                                                  \
    X(_state_dict_hooks)                                                                                               \
    X(_state_dict_pre_hooks)                                                                                           \
    X(_load_state_dict_pre_hooks)                                                                                      \
    X(_load_state_dict_post_hooks)

#define CORE_NAMES(X)                                                                                                  \
    X(type)                                                                                                            \
    X(index)                                                                                                           \
    X(smallest_peak_bytes)                                                                                             \
    X(__dataclass_fields__)                                                                                            \
    X(__dict__)                                                                                                        \
    X(_modules)                                                                                                        \
    X(_parameters)                                                                                                     \
    X(_buffers)                                                                                                        \
    X(training)                                                                                                        \
    X(_member_map_)                                                                                                    \
    X(pack)                                                                                                            \
    X(collect)                                                                                                         \
    X(acquire)                                                                                                         \
    X(release)                                                                                                         \
    X(get_state)                                                                                                       \
    X(set_state)                                                                                                       \
    X(get_offset)                                                                                                      \
    X(set_offset)                                                                                                      \
    X(initial_seed)                                                                                                    \
    X(manual_seed)                                                                                                     \
    X(default_generators)                                                                                              \
    X(data_ptr)                                                                                                        \
    X(nbytes)                                                                                                          \
    X(gauss_next)                                                                                                      \
    X(moved)                                                                                                           \
    X(restore)                                                                                                         \
    X(mtrand)                                                                                                          \
    X(_rand)                                                                                                           \
    X(_bit_generator)                                                                                                  \
    X(capsule)

/* A generator whose state is plain memory that can be compared in place, in one or two pieces. */
typedef struct core_raw {
    PyObject *owner; /* owned: the object that the first piece belongs to, if it may be replaced by another */
    PyObject *last;  /* owned: bytes; the last copy that was taken, shared while nothing moves */
    char *memory;    /* NULL: not available, the slow way is taken */
    size_t n_bytes;
    char *more;
    size_t n_more;
} core_raw;

typedef struct core_state {
    PyObject *error;        /* MemScaleError */
    PyObject *budget_error; /* BudgetError */
    PyObject *stop;         /* StopRecompute */
    PyTypeObject *frame_type;
    PyTypeObject *saved_type;
    PyTypeObject *plan_type;
    PyTypeObject *profile_type;
    PyTypeObject *guard_type;
    PyTypeObject *modules_type;
    PyTypeObject *unit_type;
    PyTypeObject *call_type;
    PyTypeObject *randomness_type;
    PyTypeObject *gpu_type;
    PyObject *unpack;        /* the module's own function */
    PyObject *random_lock;   /* see set_random_lock() */
    PyObject *observer;      /* called with each unit that is computed again, or NULL */
    PyObject *last_switches; /* the tuple that was noted last, shared while nothing changes */
    PyObject *numpy_random;  /* interned "numpy.random" */
    core_raw raw_python, raw_numpy;
    int numpy_probed;
#define CORE_FIELD(name) PyObject *name;
    CORE_BOUND(CORE_FIELD)
#undef CORE_FIELD
#define CORE_FIELD(name) PyObject *str_##name;
    CORE_NAMES(CORE_FIELD)
    CORE_TENSOR_ATTRIBUTES(CORE_FIELD)
    CORE_UNREAD_TABLES(CORE_FIELD)
#undef CORE_FIELD
#define CORE_FIELD(name) PyObject *get_##name;
    CORE_TENSOR_ATTRIBUTES(CORE_FIELD)
#undef CORE_FIELD
    ms_log_sink sink; /* what libmemscale writes to while log_callback is set */
    PyObject *log_callback;
} core_state;

core_state *core_get_state(PyObject *module);
core_state *core_state_of_type(PyTypeObject *type);

/* Raise the Python exception of a failed call, with the core's own message; always returns NULL. The one place where
 * statuses become exceptions. */
PyObject *core_raise(core_state *state, ms_status status);

/* Text that the core handed out, as str; frees it. */
PyObject *core_text_to_str(char *text);

/* Is it a torch tensor? bind() must have been called. */
int core_is_tensor(const core_state *state, PyObject *object);

/* An attribute of a tensor, from the list above: CORE_READ(state, tensor, shape). New reference. Goes straight to
 * torch's descriptor; the usual way looks through the classes of a tensor first, and takes twice as long. */
#define CORE_READ(state, tensor, name) core_read((state), (tensor), (state)->get_##name, (state)->str_##name)
PyObject *core_read(const core_state *state, PyObject *tensor, PyObject *descriptor, PyObject *name);

/* The truth of such an attribute; -1 with an exception. */
#define CORE_READ_BOOL(state, tensor, name) core_is_true(CORE_READ(state, tensor, name))
int core_is_true(PyObject *value); /* steals it; NULL is an exception */

/* The version counter of a tensor, -1 for one that has none (inference tensors), -2 with an exception set. */
int64_t core_tensor_version(core_state *state, PyObject *tensor);

/* An alias of a tensor that has a history, without it but with requires_grad; NULL, without an exception, for a leaf.
 */
PyObject *core_without_history(core_state *state, PyObject *tensor);

/* The number of arguments of a fast-call method; 0 and TypeError if it is wrong. */
int core_check_count(const char *name, Py_ssize_t given, Py_ssize_t wanted);

/* Fail with RuntimeError unless bind() has been called. */
int core_check_bound(const core_state *state);

/* Set the exception aside for clean-up code, and put it back. */
typedef struct core_pending {
    PyObject *type, *value, *trace;
} core_pending;
core_pending core_set_aside(void);
void core_put_back(core_pending pending);

/* ---- modules.c: the state of a unit's modules ---- */

/* An attribute of a module. All borrowed from the dicts of its entry. */
typedef struct core_attribute {
    PyObject *key, *value;
    PyObject *copy;        /* of a container: what it held; else NULL */
    Py_ssize_t n_in_table; /* of an exact dict or an OrderedDict, such as tables of hooks: how much it held; else -1 */
} core_attribute;

typedef struct core_module_entry {
    PyObject *module;   /* owned */
    PyObject *captured; /* owned: a copy of its dict, with copies of the containers in it */
    PyObject
        *originals; /* owned: the same dict with the containers themselves; NULL if that would keep tensors alive */
    core_attribute *attributes; /* owned array: the items of `originals` in their order, to compare with; may be NULL */
    PyObject *own;              /* owned while the module lives in a copy: its own dict; else NULL */
} core_module_entry;

typedef struct ModuleState {
    PyObject_HEAD
    core_module_entry *entries;
    Py_ssize_t n, capacity;
    PyObject *parameters; /* owned list */
    PyObject *tensors;    /* owned list: tensors that modules keep as plain attributes */
    PyObject *training;   /* owned bytes: training flags, one each */
    PyObject *devices;    /* owned tuple: of the parameters */
    int reusable;         /* may stand for later calls, as long as it matches */
    int has_buffers;
    int mode; /* enum core_module_mode */
} ModuleState;

enum core_module_mode { MODULES_OWN = 0, MODULES_COPIED = 1, MODULES_IN_PLACE = 2 };

/* Capture a module and all below it. New reference. */
ModuleState *core_modules_capture(core_state *state, PyObject *root);

/* 1 if the modules are now as they were captured, 0 if not, -1 with an exception. */
int core_modules_match(ModuleState *self);

/* Let the modules be as they were captured: in place if `in_place` allows it and they are so already, else in fresh
 * copies. leave() undoes it, and whatever was done to them meanwhile; with `*touched`, if not NULL, 1 if something
 * was. -1 with an exception. */
int core_modules_enter(core_state *state, ModuleState *self, int in_place);
int core_modules_leave(core_state *state, ModuleState *self, int *touched);

/* ---- conditions.c: random generators, torch's switches ---- */

typedef struct core_generator core_generator;

typedef struct core_randomness {
    core_generator *items;
    Py_ssize_t n;
} core_randomness;

/* Note where the generators of these devices (a tuple) are, and those of the CPU, Python and numpy; with `full`, the
 * latter two by their own means. `out` is empty on failure. */
int core_randomness_note(core_state *state, core_randomness *out, PyObject *devices, int full);
/* Forget those that did not move; with `gpus_only`, only those of GPUs, and leave the others for later: putting one
 * back that did not move changes nothing, but setting one of a GPU has side effects (cuDNN). */
int core_randomness_keep_moved(core_state *state, core_randomness *self, int gpus_only);
/* Put them back where they were noted; `*now`, if not NULL, gets those that had to be, as they are now. */
int core_randomness_restore(core_state *state, const core_randomness *self, core_randomness *now);
int core_randomness_visit(const core_randomness *self, visitproc visit, void *arg);
void core_randomness_clear(core_randomness *self);
int core_randomness_is_full(const core_randomness *self); /* does it hold one that was noted by its own means? */

/* Find out whether the state of Python's generator can be compared in place; sets state->raw_python. */
int core_probe_python(core_state *state);

/* The devices of a list of tensors, added to a tuple of them, each once. Steals `devices`; new reference. */
PyObject *core_devices_add(core_state *state, PyObject *devices, PyObject *tensors);

/* Is one of these devices (a tuple) a GPU? -1 with an exception. */
int core_has_cuda(core_state *state, PyObject *devices);

/* The switches as a tuple, new reference; the same object as last time if nothing changed. */
PyObject *core_switches_note(core_state *state);

/* ---- frame.c ---- */

PyObject *core_frame_new(core_state *state, PyObject *recompute, PyObject *name, int keep);

/* ---- inputs.c ---- */

typedef struct core_inputs {
    PyObject *args, *kwargs; /* owned: copies */
    PyObject *tensors;       /* owned list: the tensors in them */
    PyObject *opaque;        /* owned: the type of the first object that cannot be seen into, or NULL */
} core_inputs;

int core_inputs_copy(core_state *state, PyObject *args, PyObject *kwargs, core_inputs *out);

/* ---- unit.c ---- */

typedef struct Unit {
    PyObject_HEAD
    PyObject *name;          /* str */
    PyObject *module;        /* the nn.Module */
    PyObject *plain;         /* its forward, as it was */
    PyObject *on_backward;   /* called before a repetition, or None */
    ModuleState *state;      /* the last capture, if it may be used again */
    PyThread_type_lock lock; /* held during a repetition; waited for without the GIL */
    unsigned long owner;     /* the thread that holds it, `depth` times */
    long depth;
} Unit;

void core_unit_lock(Unit *unit);
void core_unit_unlock(Unit *unit);

/* ---- observe.c and call.c: one call of a unit ---- */

typedef struct Call {
    PyObject_HEAD
    Unit *unit; /* owned */
    core_inputs inputs;
    ModuleState *state;
    PyObject *devices; /* owned tuple: of inputs and parameters */
    PyObject *watched; /* owned list: tensors that must not change, beside the inputs */
    PyObject *buffers; /* owned list of (index, name, module, buffer, copy): to be put back; NULL: none */
    PyObject *switches;
    int64_t *versions; /* of the inputs, then of what is watched */
    char *grad_flags;  /* of the parameters */
    core_randomness random;
    int in_place; /* its repetitions leave no trace in the modules */
    /* While entered: what leave() undoes. */
    unsigned entered;
    PyObject *random_lock; /* owned: the one that was taken */
    PyObject *undo_switches;
    core_randomness random_now;
    char *grad_flags_now;
    int touched; /* did the last repetition change its modules? */
} Call;

/* Copy the inputs, capture the modules, find the devices. */
int core_call_capture(core_state *state, Call *self, PyObject *args, PyObject *kwargs);

/* Note all that must be put back or must not change. `wanted`: the buffers to be put back, or None for all of them. */
int core_call_observe(core_state *state, Call *self, PyObject *wanted);

/* Put back only the buffers of this set; watch the others from now on. */
int core_call_keep_buffers(core_state *state, Call *self, PyObject *kept);

/* Was an input, or something that is watched, changed in place since? -1 with an exception. */
int core_call_inputs_changed(core_state *state, Call *self);
int core_call_watched_changed(core_state *state, Call *self);

/* requires_grad of a list of tensors, a byte each. */
int core_read_grad_flags(core_state *state, PyObject *tensors, char *out);

/* Run the unit of a Call again, with frame.collect as hook. -1 with an exception. */
int core_call_repeat(core_state *state, PyObject *call, PyObject *frame);

/* Each file adds its types and functions. */
int core_add_frame(PyObject *module, core_state *state);
int core_add_plan(PyObject *module, core_state *state);
int core_add_guard(PyObject *module, core_state *state);
int core_add_profile(PyObject *module, core_state *state);
int core_add_modules(PyObject *module, core_state *state);
int core_add_conditions(PyObject *module, core_state *state);
int core_add_unit(PyObject *module, core_state *state);
int core_add_call(PyObject *module, core_state *state);
int core_add_gpu(PyObject *module, core_state *state);

/* Functions of the module that live in other files. */
PyObject *core_unpack(PyObject *module, PyObject *record);
PyObject *core_tensors_in(PyObject *module, PyObject *object);
PyObject *core_hw_detect(PyObject *module, PyObject *root);
PyObject *core_hw_from_json(PyObject *module, PyObject *text);
PyObject *core_find_units(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_hash64(PyObject *module, PyObject *data);
PyObject *core_plan_create(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_plan_pareto(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_guard_create(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_action_name(PyObject *module, PyObject *action);
PyObject *core_model_option_name(PyObject *module, PyObject *flag);
PyObject *core_plan_from_json(PyObject *module, PyObject *text);
PyObject *core_profile_from_units(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_profile_from_traces(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_profile_from_json(PyObject *module, PyObject *text);
PyObject *core_profile_fit(PyObject *module, PyObject *list);

/* A profile as an object, which owns it; NULL with an exception where the status is an error. */
PyObject *core_wrap_profile(core_state *state, ms_status status, ms_profile *profile);

/* Bytes by category as a list. */
PyObject *core_parts_of(const int64_t *parts);

/* The profile of an object, borrowed; NULL with a TypeError if it is none. */
const ms_profile *core_profile_of(core_state *state, PyObject *object);
PyObject *core_checksum(PyObject *module, PyObject *data);
PyObject *core_gpu_models(PyObject *module, PyObject *unused);
PyObject *core_gpu_model(PyObject *module, PyObject *name);
PyObject *core_rates_of_model(PyObject *module, PyObject *name);
PyObject *core_rates_from_json(PyObject *module, PyObject *text);

#endif
