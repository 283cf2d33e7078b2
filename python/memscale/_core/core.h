/* core.h - the extension module memscale._core: its state, its errors, and what all of its parts use.
 *
 * bind/ is a thin layer over memscale.h. recompute/ recomputes layers in backward, offload/ keeps what they save in
 * host memory, pointwise/ makes some of it again: they hold Python objects, so they cannot be in the library. The
 * extension uses the limited API of Python 3.10, so one binary serves every later Python. All state lives in the
 * module: no globals. It never links against torch: bind() is given the few callables of torch that it needs.
 */
#ifndef MS_CORE_H
#define MS_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memscale/memscale.h>

/* What bind() is given: the name in core_state, and what it is. */
#define CORE_BOUND(X)                                                                                                  \
    X(tensor_type)          /* torch.Tensor */                                                                         \
    X(parameter_type)       /* torch.nn.Parameter */                                                                   \
    X(mask_type)            /* torch.bool */                                                                           \
    X(detach)               /* torch.Tensor.detach */                                                                  \
    X(clone)                /* torch.Tensor.clone */                                                                   \
    X(graph_task_id)        /* () -> id of the running backward */                                                     \
    X(push_hooks)           /* (pack, unpack): hooks on saved tensors, from here on */                                 \
    X(pop_hooks)            /* () */                                                                                   \
    X(grad_enabled)         /* () -> bool */                                                                           \
    X(set_grad_enabled)     /* (bool) */                                                                               \
    X(copy)                 /* copy.copy */                                                                            \
    X(switches)             /* tuple of (read, write, argument or None): torch's switches, see conditions.c */         \
    X(enter_autocast)       /* () -> depth of autocast blocks: one more */                                             \
    X(leave_autocast)       /* () -> the same: one less */                                                             \
    X(clear_autocast_cache) /* () */                                                                                   \
    X(same_bits)            /* (tensor, tensor) -> bool */                                                             \
    X(recurrent_type)       /* torch.nn.RNNBase */                                                                     \
    X(context)              /* contextvars.Context */                                                                  \
    X(generator)            /* torch's generator on the CPU */                                                         \
    X(cuda)                 /* torch.cuda: its default_generators */                                                   \
    X(python_random)        /* random._inst */                                                                         \
    X(note_python)          /* () -> the whole state of Python's random, with moved() and restore() */                 \
    X(note_numpy)           /* () -> the same for numpy's global generator */                                          \
    X(note_owned)           /* (generator) -> the same for one of theirs that a module owns */                         \
    X(owned_kind)           /* (type) -> what a module owns with such an object, see owned.c */                        \
    X(note_elsewhere)       /* (modules) -> what they share with others; its undo() -> what changed, or None */        \
    X(strided)              /* torch.strided */                                                                        \
    X(storage_of)           /* torch.Tensor.untyped_storage */                                                         \
    X(new_storage)          /* (bytes, device) -> a storage */                                                         \
    X(view_of)              /* (storage, dtype, shape, stride, offset) -> a tensor on it */                            \
    X(note_stream)          /* (storage): the current stream uses it, and another one made it */                       \
    X(autocast_dtype)       /* (tensor) -> what autocast casts to where it is, or None: it is off */                   \
    X(count_users)          /* (storage) -> how many hold it; always the same if torch does not tell */                \
    X(raw_stream)           /* (index of a GPU) -> its current stream as a number */                                   \
    X(cast_node_type)       /* the type of grad_fn of a tensor that is a cast */                                       \
    X(cast_source)          /* (such a grad_fn, its tensor) -> the parameter that it is a cast of, or None */          \
    X(cast_to)              /* (tensor, dtype, shape, stride, offset) -> that view of its cast */                      \
    X(cast_operand)         /* (such a grad_fn, list of tensors) -> the index of the one that was cast, or -1 */       \
    X(view_again)           /* (tensor, dtype, shape, stride, offset) -> that view of its storage, without history */  \
    X(with_history)         /* (tensor) -> an alias that autograd takes for the result of something */                 \
    X(attention_functions)  /* tuple of torch's functions: of attention, see kept.c */                                 \
    X(product_functions)    /* the same of products and convolutions */                                                \
    X(pointwise_functions)  /* the same of functions that work element by element, see pointwise/ */                   \
    X(fused_functions)      /* dict: the name in pointwise/fused.c of functions that programs compute */               \
    X(fused_dtypes)         /* tuple of torch's types, by enum ms_pointwise_dtype */                                   \
    X(new_result)           /* (tensor, dtype, shape, stride) -> an empty tensor on the same device */                 \
    X(cast_function)        /* torch.Tensor.to */                                                                      \
    X(extra_users) /* int: what count_users() says beyond the tensors on a storage, or None: it cannot tell */         \
    X(make_again)  /* (function, args, kwargs or None) -> its result, without history */                               \
    X(top_hooks)   /* () -> the hooks on saved tensors that are active (pack, unpack), or None */                      \
    X(push_mode)   /* (object): on torch's stack of function modes */                                                  \
    X(pop_mode)    /* (object): off it, wherever it is on it */

/* Attributes of tensors that are read for each of them. bind() is given torch's own descriptor of each, as get_NAME.
 */
#define CORE_TENSOR_ATTRIBUTES(X)                                                                                      \
    X(shape)                                                                                                           \
    X(dtype)                                                                                                           \
    X(device)                                                                                                          \
    X(_version)                                                                                                        \
    X(requires_grad)                                                                                                   \
    X(is_leaf)                                                                                                         \
    X(is_nested)                                                                                                       \
    X(layout)                                                                                                          \
    X(nbytes)                                                                                                          \
    X(_base)                                                                                                           \
    X(grad_fn)

/* Tables of a module that forward does not read, or only together with others that hold the same: not compared. */
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
    X(gauss_next)                                                                                                      \
    X(moved)                                                                                                           \
    X(restore)                                                                                                         \
    X(mtrand)                                                                                                          \
    X(_rand)                                                                                                           \
    X(_bit_generator)                                                                                                  \
    X(numel)                                                                                                           \
    X(is_contiguous)                                                                                                   \
    X(element_size)                                                                                                    \
    X(_backward_hooks)                                                                                                 \
    X(run)                                                                                                             \
    X(undo)                                                                                                            \
    X(dropout)                                                                                                         \
    X(num_layers)                                                                                                      \
    X(__name__)                                                                                                        \
    X(name)                                                                                                            \
    X(plain)                                                                                                           \
    X(data)                                                                                                            \
    X(stride)                                                                                                          \
    X(storage_offset)                                                                                                  \
    X(is_conj)                                                                                                         \
    X(is_neg)                                                                                                          \
    X(_cdata)                                                                                                          \
    X(bring)                                                                                                           \
    X(has_compiled)                                                                                                    \
    X(next_functions)                                                                                                  \
    X(passed)                                                                                                          \
    X(register_prehook)

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
    PyObject *error;           /* MemScaleError */
    PyObject *budget_error;    /* BudgetError */
    PyObject *stop;            /* StopRecompute */
    PyTypeObject *saved_type;  /* SavedTensors */
    PyTypeObject *handle_type; /* SavedHandle */
    PyTypeObject *plan_type;
    PyTypeObject *profile_type;
    PyTypeObject *rates_type;
    PyTypeObject *device_type;
    PyTypeObject *request_type;
    PyTypeObject *shape_plans_type;
    PyTypeObject *modules_type;
    PyTypeObject *unit_type;
    PyTypeObject *call_type;
    PyTypeObject *randomness_type;
    PyTypeObject *gpu_type;
    PyTypeObject *offload_engine_type;
    PyTypeObject *offloaded_tensors_type;
    PyTypeObject *offloaded_handle_type;
    PyTypeObject *offloaded_inputs_type;
    PyTypeObject *offload_mark_type;
    PyTypeObject *pointwise_tensors_type;
    PyTypeObject *pointwise_handle_type;
    PyObject *unpack; /* the module's own functions */
    PyObject *unpack_offloaded;
    PyObject *unpack_pointwise;
    PyObject *random_lock;   /* see set_random_lock() */
    PyObject *observer;      /* called with each unit that is recomputed, or NULL */
    PyObject *last_switches; /* the tuple that was noted last, shared while nothing changes */
    PyObject *numpy_random;  /* interned "numpy.random" */
    PyObject *owned_kinds;   /* dict: what owned_kind() said, by type; NULL: nothing yet */
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

/* Text that the core returned, as str; frees it. */
PyObject *core_text_to_str(char *text);

/* The number of arguments of a fast-call method; 0 and TypeError if it is wrong. */
int core_check_count(const char *name, Py_ssize_t given, Py_ssize_t wanted);

/* Fail with RuntimeError unless bind() has been called. */
int core_check_bound(const core_state *state);

/* The library's object in a Gpu, which is not closed until core_gpu_release(); NULL with an exception. */
ms_gpu *core_gpu_hold(core_state *state, PyObject *gpu);
void core_gpu_release(PyObject *gpu);

/* Save the current exception while clean-up code runs, and restore it. */
typedef struct core_pending {
    PyObject *type, *value, *trace;
} core_pending;
core_pending core_set_aside(void);
void core_put_back(core_pending pending);

#endif
