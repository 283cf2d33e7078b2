/* inputs.c - nested inputs and outputs: tuples, lists, dicts and dataclasses with tensors in them.
 *
 * A recomputation must see the inputs as they were, so a call's inputs are copied when the unit is called: containers
 * become new objects (the caller may append to them later), and tensors with a history become aliases without it, so
 * that a call neither keeps the graph before it alive nor registers anything on it. An alias shares memory and version
 * counter with its tensor. An object that cannot be seen into, such as a key-value cache, is reported: nobody could
 * tell whether the call changes it.
 */
#include "core.h"

#include <string.h>

#define MAX_DEPTH 32 /* deeper nesting, or a container that holds itself, is passed on as it is */

typedef struct snapshot {
    core_state *state;
    PyObject *tensors; /* list: as given, each once */
    PyObject *aliases; /* list: as they are in the copy */
    PyObject *opaque;  /* owned: the type of the first object that cannot be seen into, or NULL */
} snapshot;

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

/* An attribute, or NULL without an exception where there is none. */
static PyObject *get_optional(PyObject *object, PyObject *name, int *failed) {
    PyObject *value = PyObject_GetAttr(object, name);
    *failed = value == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError);
    if (value == NULL && !*failed) PyErr_Clear();
    return value;
}

/* 1 if instances of this type are dataclasses, 0 if not, -1 with an exception. */
static int is_dataclass(core_state *state, PyObject *object) {
    int failed;
    PyObject *fields = get_optional((PyObject *)Py_TYPE(object), state->str___dataclass_fields__, &failed);
    int found = fields != NULL;
    Py_XDECREF(fields);
    return failed ? -1 : found;
}

static int walk_dataclass(core_state *state, PyObject *object, PyObject *found, int depth) {
    int failed, status = is_dataclass(state, object);
    if (status <= 0) return status;
    PyObject *dict = get_optional(object, state->str___dict__, &failed);
    if (dict == NULL) return failed ? -1 : 0;
    status = PyDict_Check(dict) ? walk_dict(state, dict, found, depth) : 0;
    Py_DECREF(dict);
    return status;
}

static int walk(core_state *state, PyObject *object, PyObject *found, int depth) {
    if (object == Py_None || depth > MAX_DEPTH) return 0;
    if (core_is_tensor(state, object)) return PyList_Append(found, object);
    if (PyTuple_Check(object) || PyList_Check(object)) return walk_sequence(state, object, found, depth + 1);
    if (PyDict_Check(object)) return walk_dict(state, object, found, depth + 1);
    return walk_dataclass(state, object, found, depth + 1);
}

PyObject *core_tensors_in(PyObject *module, PyObject *object) {
    PyObject *found = PyList_New(0);
    if (found != NULL && walk(core_get_state(module), object, found, 0) < 0) Py_CLEAR(found);
    return found;
}

/* ---- Copying inputs ---- */

static PyObject *copy_input(snapshot *s, PyObject *object, int depth);

static PyObject *share(PyObject *object) {
    Py_INCREF(object);
    return object;
}

static PyObject *share_opaque(snapshot *s, PyObject *object) {
    if (s->opaque == NULL) s->opaque = share((PyObject *)Py_TYPE(object));
    return share(object);
}

PyObject *core_without_history(core_state *state, PyObject *tensor) {
    if (CORE_READ_BOOL(state, tensor, is_leaf) != 0) return NULL;
    PyObject *alias = PyObject_CallFunctionObjArgs(state->detach, tensor, NULL);
    if (alias != NULL && PyObject_SetAttr(alias, state->str_requires_grad, Py_True) < 0) Py_CLEAR(alias);
    return alias;
}

static PyObject *make_alias(snapshot *s, PyObject *tensor) {
    core_state *state = s->state;
    if (Py_TYPE(tensor) == (PyTypeObject *)state->parameter_type) return share(tensor);
    if (Py_TYPE(tensor) != (PyTypeObject *)state->tensor_type)
        return share_opaque(s, tensor); /* its data may be anywhere */
    int nested = CORE_READ_BOOL(state, tensor, is_nested);
    if (nested != 0) return nested < 0 ? NULL : share_opaque(s, tensor);
    PyObject *alias = core_without_history(state, tensor);
    return alias == NULL && !PyErr_Occurred() ? share(tensor) : alias;
}

static PyObject *copy_tensor(snapshot *s, PyObject *tensor) {
    for (Py_ssize_t i = 0; i < PyList_Size(s->tensors); i++)
        if (PyList_GetItem(s->tensors, i) == tensor) return share(PyList_GetItem(s->aliases, i));
    PyObject *alias = make_alias(s, tensor);
    if (alias != NULL && (PyList_Append(s->tensors, tensor) < 0 || PyList_Append(s->aliases, alias) < 0))
        Py_CLEAR(alias);
    return alias;
}

/* Replace the values of a dict that is ours by their copies. */
static int copy_values(snapshot *s, PyObject *dict, int depth) {
    PyObject *items = PyDict_Copy(dict), *key, *value;
    Py_ssize_t position = 0;
    int status = items == NULL ? -1 : 0;
    while (status == 0 && PyDict_Next(items, &position, &key, &value)) {
        PyObject *item = copy_input(s, value, depth + 1);
        status = item == NULL ? -1 : PyDict_SetItem(dict, key, item);
        Py_XDECREF(item);
    }
    Py_XDECREF(items);
    return status;
}

static PyObject *copy_dict(snapshot *s, PyObject *dict, int depth) {
    PyObject *copy = PyDict_Copy(dict);
    if (copy != NULL && copy_values(s, copy, depth) < 0) Py_CLEAR(copy);
    return copy;
}

static PyObject *copy_sequence(snapshot *s, PyObject *sequence, int depth) {
    PyObject *items = PySequence_Tuple(sequence); /* see walk_dict */
    Py_ssize_t n = items == NULL ? 0 : PyTuple_Size(items);
    PyObject *copy = items == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; copy != NULL && i < n; i++) {
        PyObject *item = copy_input(s, PyTuple_GetItem(items, i), depth + 1);
        if (item == NULL || PyList_Append(copy, item) < 0) Py_CLEAR(copy);
        Py_XDECREF(item);
    }
    Py_XDECREF(items);
    if (copy == NULL || PyList_CheckExact(sequence)) return copy;
    PyObject *tuple = PyTuple_CheckExact(sequence)
                          ? PySequence_Tuple(copy)
                          : PyObject_CallMethod((PyObject *)Py_TYPE(sequence), "_make", "O", copy); /* a named tuple */
    Py_DECREF(copy);
    return tuple;
}

/* A shallow copy of a container of another class. What a dataclass keeps is copied too; elsewhere tensors are shared.
 */
static PyObject *copy_shallow(snapshot *s, PyObject *object, int depth) {
    int failed = 0;
    PyObject *copy = PyObject_CallFunctionObjArgs(s->state->copy, object, NULL);
    if (copy == NULL) return NULL;
    PyObject *dict = PyDict_Check(object) ? NULL : get_optional(copy, s->state->str___dict__, &failed);
    PyObject *found = PyList_New(0);
    int status = found == NULL || failed ? -1 : 0;
    if (status == 0 && dict != NULL && PyDict_CheckExact(dict) && copy != object)
        status = copy_values(s, dict, depth);
    else if (status == 0)
        status = walk(s->state, copy, found, 0);
    for (Py_ssize_t i = 0; status == 0 && i < PyList_Size(found); i++) {
        PyObject *tensor = PyList_GetItem(found, i);
        if (PyList_Append(s->tensors, tensor) < 0 || PyList_Append(s->aliases, tensor) < 0) status = -1;
    }
    Py_XDECREF(dict);
    Py_XDECREF(found);
    if (status < 0) Py_CLEAR(copy);
    return copy;
}

/* Values that nobody changes: numbers, text, functions, modules' and torch's own constants, enumeration members. */
static int is_constant(core_state *state, PyObject *object) {
    if (object == Py_None || PyBool_Check(object) || PyLong_Check(object) || PyFloat_Check(object) ||
        PyUnicode_Check(object) || PyBytes_Check(object) || PyComplex_Check(object) || PySlice_Check(object) ||
        PyFrozenSet_Check(object) || object == Py_Ellipsis || PyType_Check(object) || PyRange_Check(object))
        return 1;
    PyObject *type = (PyObject *)Py_TYPE(object);
    int failed, known = 0;
    PyObject *members = get_optional(type, state->str__member_map_, &failed);
    Py_XDECREF(members);
    if (failed) return -1;
    PyObject *name = members == NULL ? PyObject_Str(type) : NULL; /* "<class 'torch.dtype'>" */
    if (members == NULL && name == NULL) return -1;
    const char *text = name == NULL ? NULL : PyUnicode_AsUTF8AndSize(name, NULL);
    static const char *const constants[] = {
        "'function'",     "'method'",       "'builtin_function_or_method'", "'functools.partial'", "'torch.dtype'",
        "'torch.device'", "'torch.layout'", "'torch.memory_format'",        "'torch.Size'",        ".BlockMask'"};
    for (size_t i = 0; text != NULL && i < sizeof constants / sizeof *constants; i++)
        known = known || strstr(text, constants[i]) != NULL;
    Py_XDECREF(name);
    return members != NULL || known;
}

static PyObject *copy_input(snapshot *s, PyObject *object, int depth) {
    if (object == Py_None || depth > MAX_DEPTH) return share(object);
    if (core_is_tensor(s->state, object)) return copy_tensor(s, object);
    if (PyDict_CheckExact(object)) return copy_dict(s, object, depth);
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) return copy_sequence(s, object, depth);
    if (PyTuple_Check(object) && PyObject_HasAttrString(object, "_fields")) return copy_sequence(s, object, depth);
    int constant = is_constant(s->state, object);
    if (constant != 0) return constant < 0 ? NULL : share(object);
    int known = PyDict_Check(object) || PyList_Check(object) || PyTuple_Check(object) || PyAnySet_Check(object);
    if (!known) known = is_dataclass(s->state, object);
    if (known < 0) return NULL;
    return known ? copy_shallow(s, object, depth) : share_opaque(s, object);
}

int core_inputs_copy(core_state *state, PyObject *args, PyObject *kwargs, core_inputs *out) {
    snapshot s = {.state = state, .tensors = PyList_New(0), .aliases = PyList_New(0)};
    PyObject *positional = NULL, *keywords = NULL;
    if (s.tensors != NULL && s.aliases != NULL) positional = copy_input(&s, args, 0);
    if (positional != NULL) keywords = kwargs == NULL ? PyDict_New() : copy_input(&s, kwargs, 0);
    Py_XDECREF(s.tensors);
    if (keywords == NULL) {
        Py_XDECREF(positional);
        Py_XDECREF(s.aliases);
        Py_XDECREF(s.opaque);
        return -1;
    }
    *out = (core_inputs){.args = positional, .kwargs = keywords, .tensors = s.aliases, .opaque = s.opaque};
    return 0;
}
