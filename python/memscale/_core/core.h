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

#include <memscale/memscale.h>

typedef struct core_state {
    PyObject *error;        /* MemScaleError */
    PyObject *budget_error; /* BudgetError */
    PyObject *stop;         /* StopRecompute */
    PyTypeObject *frame_type;
    PyTypeObject *saved_type;
    PyTypeObject *plan_type;
    PyTypeObject *modules_type;
    PyObject *tensor_type; /* handed in by bind(), NULL before */
    PyObject *parameter_type;
    PyObject *detach;
    PyObject *graph_task_id;
    PyObject *copy; /* copy.copy */
    PyObject *str_shape, *str_dtype, *str_device, *str_version, *str_smallest, *str_fields, *str_dict;
    PyObject *str_requires_grad, *str_is_leaf, *str_is_nested, *str_modules, *str_parameters, *str_training, *str_enum;
    ms_log_sink sink; /* what libmemscale writes to while log_callback is set */
    PyObject *log_callback;
} core_state;

core_state *core_get_state(PyObject *module);
core_state *core_state_of_type(PyTypeObject *type);

/* Raise the Python exception of a failed call, with the core's own message; always returns NULL. The one place where
 * statuses become exceptions. */
PyObject *core_raise(core_state *state, ms_status status);

/* Is it a torch tensor? bind() must have been called. */
int core_is_tensor(const core_state *state, PyObject *object);

/* The version counter of a tensor, -1 for one that has none (inference tensors), -2 with an exception set. */
int64_t core_tensor_version(core_state *state, PyObject *tensor);

/* An alias of a tensor that has a history, without it but with requires_grad; NULL, without an exception, for a leaf.
 */
PyObject *core_without_history(core_state *state, PyObject *tensor);

/* The number of arguments of a fast-call method; 0 and TypeError if it is wrong. */
int core_check_count(const char *name, Py_ssize_t given, Py_ssize_t wanted);

/* Each file adds its types and functions. */
int core_add_frame(PyObject *module, core_state *state);
int core_add_plan(PyObject *module, core_state *state);
int core_add_modules(PyObject *module, core_state *state);

/* Functions of the module that live in other files. */
PyObject *core_unpack(PyObject *module, PyObject *record);
PyObject *core_snapshot_inputs(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_tensors_in(PyObject *module, PyObject *object);
PyObject *core_versions(PyObject *module, PyObject *tensors);
PyObject *core_grad_flags(PyObject *module, PyObject *tensors);
PyObject *core_hw_detect(PyObject *module, PyObject *root);
PyObject *core_hw_from_json(PyObject *module, PyObject *text);
PyObject *core_find_units(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_hash64(PyObject *module, PyObject *data);
PyObject *core_plan_create(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_plan_from_json(PyObject *module, PyObject *text);

#endif
