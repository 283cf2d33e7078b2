/* tensors.h - what recomputation and offloading ask of tensors, and how a forward runs under hooks on what it saves. */
#ifndef MS_TENSORS_H
#define MS_TENSORS_H

#include "core.h"

/* ---- One tensor ---- */

/* Is it a torch tensor? bind() must have been called. */
int core_is_tensor(const core_state *state, PyObject *object);

/* An attribute of a tensor, one of CORE_TENSOR_ATTRIBUTES: CORE_READ(state, tensor, shape). New reference. Goes
 * straight to torch's descriptor; the usual way looks through the classes of a tensor first, and takes twice as long.
 */
#define CORE_READ(state, tensor, name) core_read((state), (tensor), (state)->get_##name, (state)->str_##name)
PyObject *core_read(const core_state *state, PyObject *tensor, PyObject *descriptor, PyObject *name);

/* The truth of such an attribute; -1 with an exception. */
#define CORE_READ_BOOL(state, tensor, name) core_is_true(CORE_READ(state, tensor, name))
int core_is_true(PyObject *value); /* steals it; NULL is an exception */

/* The version counter of a tensor, -1 for one that has none (inference tensors), -2 with an exception set. */
int64_t core_tensor_version(core_state *state, PyObject *tensor);

/* torch cannot tell something of a tensor (it has no storage, say), which it says by a RuntimeError or one of its
 * kinds: 0, and the exception is forgotten. -1 with any other exception. */
int core_cannot_tell(void);

/* Is it still to be conjugated or negated? Its memory does not show that. -1 with an exception. */
int core_is_lazy(core_state *state, PyObject *tensor);

/* An alias of a tensor that has a history, without it but with requires_grad; NULL, without an exception, for a leaf.
 */
PyObject *core_without_history(core_state *state, PyObject *tensor);

/* ---- Views ---- */

/* What a tensor looks like on its storage. */
typedef struct core_view {
    PyObject *dtype, *shape, *stride; /* owned; NULL: nothing was read */
    int64_t offset;
} core_view;

/* -1 with an exception; what was read then has to be cleared. */
int core_view_read(core_state *state, PyObject *tensor, core_view *out);
void core_view_clear(core_view *self);

/* Call function(what, dtype, shape, stride, offset). */
PyObject *core_view_call(PyObject *function, PyObject *what, const core_view *view);

/* Do they look the same? -1 with an exception. */
int core_view_same(const core_view *a, const core_view *b);

/* The number of a storage, unique while it lives; -1 with an exception, which no number is. */
int64_t core_storage_id(core_state *state, PyObject *storage);

/* The same for the storage of a tensor. */
int64_t core_storage_id_of(core_state *state, PyObject *tensor);

/* ---- In tuples, lists, dicts and dataclasses ---- */

#define CORE_MAX_DEPTH 32 /* deeper nesting, or a container that holds itself, is passed on as it is */

/* The tensors in an object, as a new list. */
PyObject *core_find_tensors(core_state *state, PyObject *object);

/* An attribute, or NULL without an exception where there is none. */
PyObject *core_get_optional(PyObject *object, PyObject *name, int *failed);

/* 1 if instances of this object's type are dataclasses, 0 if not, -1 with an exception. */
int core_is_dataclass(core_state *state, PyObject *object);

/* Function of the module. */
PyObject *core_tensors_in(PyObject *module, PyObject *object);

/* ---- Saved tensors ---- */

/* Call a function with these hooks on saved tensors. `pack` may be NULL, with an exception. */
PyObject *core_run_hooked(core_state *state, PyObject *pack, PyObject *unpack, PyObject *function, PyObject *args,
                          PyObject *kwargs);

/* The same with `mode`, which has a __torch_function__, on torch's stack of function modes. */
PyObject *core_run_in_mode(core_state *state, PyObject *mode, PyObject *pack, PyObject *unpack, PyObject *function,
                           PyObject *args, PyObject *kwargs);

/* What such a mode is called with: borrowed; `kwargs` may be NULL. -1 with an exception. */
typedef struct core_function {
    PyObject *function, *args, *kwargs;
} core_function;
int core_read_function(PyObject *const *args, Py_ssize_t n, core_function *out);

/* Is it in this tuple? */
int core_is_in(PyObject *function, PyObject *table);

/* Is it a function of torch whose result a recomputed layer may keep? Autocast casts the operands of these. */
int core_is_attention(const core_state *state, PyObject *function);
int core_is_product(const core_state *state, PyObject *function);

/* The number of the backward that runs; CORE_NO_TASK with an exception. */
#define CORE_NO_TASK INT64_MIN
int64_t core_current_task(core_state *state);

/* The error of plain autograd where a saved tensor was changed in place since; returns NULL. */
PyObject *core_raise_in_place(PyObject *dtype, PyObject *shape, PyObject *layer, int64_t now, int64_t then);

#endif
