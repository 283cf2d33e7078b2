/* tensors.c - tensors.h */
#include "tensors.h"

/* ---- One tensor ---- */

int core_is_tensor(const core_state *state, PyObject *object) {
    return state->tensor_type != NULL && PyType_IsSubtype(Py_TYPE(object), (PyTypeObject *)state->tensor_type);
}

PyObject *core_read(const core_state *state, PyObject *tensor, PyObject *descriptor, PyObject *name) {
    PyTypeObject *type = Py_TYPE(tensor);
    int is_torchs = type == (PyTypeObject *)state->tensor_type || type == (PyTypeObject *)state->parameter_type;
    descrgetfunc get = is_torchs ? (descrgetfunc)PyType_GetSlot(Py_TYPE(descriptor), Py_tp_descr_get) : NULL;
    return get == NULL ? PyObject_GetAttr(tensor, name) : get(descriptor, tensor, (PyObject *)type);
}

int core_is_true(PyObject *value) {
    int truth = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    return truth;
}

int64_t core_tensor_version(core_state *state, PyObject *tensor) {
    PyObject *value = CORE_READ(state, tensor, _version);
    if (value == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return -2;
        PyErr_Clear(); /* inference tensors do not track one, and cannot change either */
        return -1;
    }
    int64_t version = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return PyErr_Occurred() ? -2 : version;
}

static int call_bool(PyObject *object, PyObject *method) {
    return core_is_true(PyObject_CallMethodObjArgs(object, method, NULL));
}

int core_is_lazy(core_state *state, PyObject *tensor) {
    int is_lazy = call_bool(tensor, state->str_is_conj);
    return is_lazy == 0 ? call_bool(tensor, state->str_is_neg) : is_lazy;
}

PyObject *core_without_history(core_state *state, PyObject *tensor) {
    if (CORE_READ_BOOL(state, tensor, is_leaf) != 0) return NULL;
    PyObject *alias = PyObject_CallFunctionObjArgs(state->detach, tensor, NULL);
    if (alias != NULL && PyObject_SetAttr(alias, state->str_requires_grad, Py_True) < 0) Py_CLEAR(alias);
    return alias;
}

/* ---- Views ---- */

int core_view_read(core_state *state, PyObject *tensor, core_view *out) {
    PyObject *offset = PyObject_CallMethodObjArgs(tensor, state->str_storage_offset, NULL);
    out->offset = offset == NULL ? -1 : PyLong_AsLongLong(offset);
    Py_XDECREF(offset);
    if (out->offset == -1 && PyErr_Occurred()) return -1;
    out->dtype = CORE_READ(state, tensor, dtype);
    out->shape = CORE_READ(state, tensor, shape);
    out->stride = PyObject_CallMethodObjArgs(tensor, state->str_stride, NULL);
    return out->dtype == NULL || out->shape == NULL || out->stride == NULL ? -1 : 0;
}

void core_view_clear(core_view *self) {
    Py_CLEAR(self->dtype);
    Py_CLEAR(self->shape);
    Py_CLEAR(self->stride);
}

PyObject *core_view_call(PyObject *function, PyObject *what, const core_view *view) {
    PyObject *offset = PyLong_FromLongLong(view->offset);
    if (offset == NULL) return NULL;
    PyObject *result =
        PyObject_CallFunctionObjArgs(function, what, view->dtype, view->shape, view->stride, offset, NULL);
    Py_DECREF(offset);
    return result;
}

int core_cannot_tell(void) {
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return -1;
    PyErr_Clear();
    return 0;
}

int core_view_same(const core_view *a, const core_view *b) {
    if (a->dtype != b->dtype || a->offset != b->offset) return 0;
    int same = PyObject_RichCompareBool(a->shape, b->shape, Py_EQ);
    return same == 1 ? PyObject_RichCompareBool(a->stride, b->stride, Py_EQ) : same;
}

int64_t core_storage_id(core_state *state, PyObject *storage) {
    PyObject *value = PyObject_GetAttr(storage, state->str__cdata);
    int64_t id = value == NULL ? -1 : PyLong_AsLongLong(value);
    Py_XDECREF(value);
    return id;
}

int64_t core_storage_id_of(core_state *state, PyObject *tensor) {
    PyObject *storage = PyObject_CallFunctionObjArgs(state->storage_of, tensor, NULL);
    int64_t id = storage == NULL ? -1 : core_storage_id(state, storage);
    Py_XDECREF(storage);
    return id;
}

/* ---- Finding tensors ---- */

static int walk(core_state *state, PyObject *object, PyObject *found, int depth);

/* Containers are walked as private copies: looking at an item may run Python code, which may change them. */
static int walk_dict(core_state *state, PyObject *dict, PyObject *found, int depth) {
    PyObject *items = PyDict_Copy(dict), *key, *value;
    Py_ssize_t position = 0;
    int status = items == NULL ? -1 : 0;
    while (status == 0 && PyDict_Next(items, &position, &key, &value)) status = walk(state, value, found, depth);
    Py_XDECREF(items);
    return status;
}

static int walk_sequence(core_state *state, PyObject *sequence, PyObject *found, int depth) {
    PyObject *items = PySequence_Tuple(sequence);
    int status = items == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(items); i++)
        status = walk(state, PyTuple_GetItem(items, i), found, depth);
    Py_XDECREF(items);
    return status;
}

PyObject *core_get_optional(PyObject *object, PyObject *name, int *failed) {
    PyObject *value = PyObject_GetAttr(object, name);
    *failed = value == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError);
    if (value == NULL && !*failed) PyErr_Clear();
    return value;
}

int core_is_dataclass(core_state *state, PyObject *object) {
    int failed;
    PyObject *fields = core_get_optional((PyObject *)Py_TYPE(object), state->str___dataclass_fields__, &failed);
    int found = fields != NULL;
    Py_XDECREF(fields);
    return failed ? -1 : found;
}

static int walk_dataclass(core_state *state, PyObject *object, PyObject *found, int depth) {
    int failed, status = core_is_dataclass(state, object);
    if (status <= 0) return status;
    PyObject *dict = core_get_optional(object, state->str___dict__, &failed);
    if (dict == NULL) return failed ? -1 : 0;
    status = PyDict_Check(dict) ? walk_dict(state, dict, found, depth) : 0;
    Py_DECREF(dict);
    return status;
}

static int walk(core_state *state, PyObject *object, PyObject *found, int depth) {
    if (object == Py_None || depth > CORE_MAX_DEPTH) return 0;
    if (core_is_tensor(state, object)) return PyList_Append(found, object);
    if (PyTuple_Check(object) || PyList_Check(object)) return walk_sequence(state, object, found, depth + 1);
    if (PyDict_Check(object)) return walk_dict(state, object, found, depth + 1);
    return walk_dataclass(state, object, found, depth + 1);
}

PyObject *core_find_tensors(core_state *state, PyObject *object) {
    PyObject *found = PyList_New(0);
    if (found != NULL && walk(state, object, found, 0) < 0) Py_CLEAR(found);
    return found;
}

PyObject *core_tensors_in(PyObject *module, PyObject *object) {
    return core_find_tensors(core_get_state(module), object);
}

/* ---- Saved tensors ---- */

PyObject *core_run_hooked(core_state *state, PyObject *pack, PyObject *unpack, PyObject *function, PyObject *args,
                          PyObject *kwargs) {
    PyObject *pushed = pack == NULL ? NULL : PyObject_CallFunctionObjArgs(state->push_hooks, pack, unpack, NULL);
    if (pushed == NULL) return NULL;
    Py_DECREF(pushed);
    PyObject *result = PyObject_Call(function, args, kwargs);
    core_pending pending = core_set_aside();
    PyObject *popped = PyObject_CallNoArgs(state->pop_hooks);
    core_put_back(pending);
    if (popped == NULL) Py_CLEAR(result);
    Py_XDECREF(popped);
    return result;
}

PyObject *core_run_in_mode(core_state *state, PyObject *mode, PyObject *pack, PyObject *unpack, PyObject *function,
                           PyObject *args, PyObject *kwargs) {
    PyObject *done = pack == NULL ? NULL : PyObject_CallFunctionObjArgs(state->push_mode, mode, NULL);
    if (done == NULL) return NULL;
    Py_DECREF(done);
    PyObject *result = core_run_hooked(state, pack, unpack, function, args, kwargs);
    core_pending pending = core_set_aside();
    done = PyObject_CallFunctionObjArgs(state->pop_mode, mode, NULL);
    core_put_back(pending);
    if (done == NULL) Py_CLEAR(result);
    Py_XDECREF(done);
    return result;
}

int core_read_function(PyObject *const *args, Py_ssize_t n, core_function *out) {
    if (n < 3 || n > 4 || !PyTuple_Check(args[2]) || (n == 4 && args[3] != Py_None && !PyDict_Check(args[3]))) {
        PyErr_SetString(PyExc_TypeError, "__torch_function__() takes a function, types, a tuple and a dict");
        return -1;
    }
    *out = (core_function){args[0], args[2], n == 4 && args[3] != Py_None ? args[3] : NULL};
    return 0;
}

int core_is_in(PyObject *function, PyObject *table) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(table); i++)
        if (PyTuple_GetItem(table, i) == function) return 1;
    return 0;
}

int core_is_attention(const core_state *state, PyObject *function) {
    return core_is_in(function, state->attention_functions);
}

int core_is_product(const core_state *state, PyObject *function) {
    return core_is_in(function, state->product_functions);
}

int64_t core_current_task(core_state *state) {
    PyObject *value = PyObject_CallNoArgs(state->graph_task_id);
    if (value == NULL) return CORE_NO_TASK;
    int64_t task = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return PyErr_Occurred() ? CORE_NO_TASK : task;
}

PyObject *core_raise_in_place(PyObject *dtype, PyObject *shape, PyObject *layer, int64_t now, int64_t then) {
    return PyErr_Format(PyExc_RuntimeError,
                        "one of the variables needed for gradient computation has been modified by an inplace "
                        "operation: %S %S, saved by layer '%U', is at version %lld; expected version %lld instead.",
                        dtype, shape, layer, (long long)now, (long long)then);
}
