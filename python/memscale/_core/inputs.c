/* inputs.c - walking nested inputs and outputs: tuples, lists, dicts and dataclasses with tensors in them.
 *
 * A recomputation must see the inputs as they were, so lists and dicts are copied when a unit is called: the caller may
 * append to them later. Tensors themselves are shared; their version counters tell whether they were changed.
 */
#include "core.h"

#define MAX_DEPTH 32 /* deeper nesting, or a container that holds itself, is passed on as it is */

static int walk(core_state *state, PyObject *object, PyObject *found, int depth);

static int walk_dict(core_state *state, PyObject *dict, PyObject *found, int depth) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value))
        if (walk(state, value, found, depth) < 0) return -1;
    return 0;
}

static int walk_dataclass(core_state *state, PyObject *object, PyObject *found, int depth) {
    PyObject *fields = PyObject_GetAttr((PyObject *)Py_TYPE(object), state->str_fields);
    if (fields == NULL) {
        PyErr_Clear();
        return 0;
    }
    Py_DECREF(fields);
    PyObject *dict = PyObject_GetAttr(object, state->str_dict);
    if (dict == NULL) {
        PyErr_Clear(); /* slots only */
        return 0;
    }
    int status = PyDict_Check(dict) ? walk_dict(state, dict, found, depth) : 0;
    Py_DECREF(dict);
    return status;
}

static int walk(core_state *state, PyObject *object, PyObject *found, int depth) {
    if (object == Py_None || depth > MAX_DEPTH) return 0;
    if (core_is_tensor(state, object)) return PyList_Append(found, object);
    if (PyTuple_Check(object)) {
        for (Py_ssize_t i = 0; i < PyTuple_Size(object); i++)
            if (walk(state, PyTuple_GetItem(object, i), found, depth + 1) < 0) return -1;
        return 0;
    }
    if (PyList_Check(object)) {
        for (Py_ssize_t i = 0; i < PyList_Size(object); i++)
            if (walk(state, PyList_GetItem(object, i), found, depth + 1) < 0) return -1;
        return 0;
    }
    if (PyDict_Check(object)) return walk_dict(state, object, found, depth + 1);
    return walk_dataclass(state, object, found, depth + 1);
}

/* A new reference to a copy of exact lists, dicts and tuples, all the way down; anything else is shared. */
static PyObject *copy_containers(PyObject *object, int depth) {
    if (depth > MAX_DEPTH || !(PyTuple_CheckExact(object) || PyList_CheckExact(object) || PyDict_CheckExact(object))) {
        Py_INCREF(object);
        return object;
    }
    if (PyDict_CheckExact(object)) {
        PyObject *copy = PyDict_New(), *key, *value;
        Py_ssize_t position = 0;
        while (copy != NULL && PyDict_Next(object, &position, &key, &value)) {
            PyObject *item = copy_containers(value, depth + 1);
            if (item == NULL || PyDict_SetItem(copy, key, item) < 0) Py_CLEAR(copy);
            Py_XDECREF(item);
        }
        return copy;
    }
    int is_tuple = PyTuple_CheckExact(object);
    Py_ssize_t n = is_tuple ? PyTuple_Size(object) : PyList_Size(object);
    PyObject *copy = is_tuple ? PyTuple_New(n) : PyList_New(n);
    for (Py_ssize_t i = 0; copy != NULL && i < n; i++) {
        PyObject *item = copy_containers(is_tuple ? PyTuple_GetItem(object, i) : PyList_GetItem(object, i), depth + 1);
        int failed = item == NULL || (is_tuple ? PyTuple_SetItem(copy, i, item) : PyList_SetItem(copy, i, item)) < 0;
        if (failed) Py_CLEAR(copy);
    }
    return copy;
}

PyObject *core_tensors_in(PyObject *module, PyObject *object) {
    PyObject *found = PyList_New(0);
    if (found != NULL && walk(core_get_state(module), object, found, 0) < 0) Py_CLEAR(found);
    return found;
}

PyObject *core_snapshot_inputs(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    core_state *state = core_get_state(module);
    if (!core_check_count("snapshot_inputs", n, 2)) return NULL;
    PyObject *copied_args = copy_containers(args[0], 0);
    PyObject *copied_kwargs = copied_args == NULL ? NULL : copy_containers(args[1], 0);
    PyObject *found = copied_kwargs == NULL ? NULL : PyList_New(0);
    PyObject *result = NULL;
    if (found != NULL && walk(state, copied_args, found, 0) == 0 && walk(state, copied_kwargs, found, 0) == 0)
        result = PyTuple_Pack(3, copied_args, copied_kwargs, found);
    Py_XDECREF(copied_args);
    Py_XDECREF(copied_kwargs);
    Py_XDECREF(found);
    return result;
}

PyObject *core_versions(PyObject *module, PyObject *tensors) {
    core_state *state = core_get_state(module);
    if (!PyList_Check(tensors)) {
        PyErr_SetString(PyExc_TypeError, "versions() takes a list of tensors");
        return NULL;
    }
    Py_ssize_t n = PyList_Size(tensors);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, n * (Py_ssize_t)sizeof(int64_t));
    if (bytes == NULL) return NULL;
    char *out = PyBytes_AsString(bytes);
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t version = core_tensor_version(state, PyList_GetItem(tensors, i));
        if (version == -2) {
            Py_DECREF(bytes);
            return NULL;
        }
        for (size_t b = 0; b < sizeof version; b++)
            out[(size_t)i * sizeof version + b] = (char)((uint64_t)version >> (8 * b));
    }
    return bytes;
}
