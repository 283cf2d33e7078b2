/* owned.c - what modules own that a run moves on: random generators, and what cannot be put back.
 *
 * A generator that a module keeps as an attribute, or in a list, tuple or dict that is one, is put back for a
 * recomputation like torch's own (conditions.c). An iterator, a file or a queue has a position that nobody can put
 * back: a unit that owns one is never recomputed. Both are found when the modules are captured, and a capture serves
 * many calls. What a type is, is asked once (state->owned_kind) and remembered.
 */
#include "recompute.h"

#define LARGEST_CONTAINER 4096 /* a longer one holds data */
#define MOST_TYPES 1024        /* that are remembered: a program may make types without end */

/* As state->owned_kind() says. */
enum kind { NOTHING, GENERATOR, UNRESTORABLE };

/* Values that most attributes have: numbers, text, None, tensors. */
static int is_plain(const core_state *state, PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    return value == Py_None || type == &PyBool_Type || type == &PyLong_Type || type == &PyFloat_Type ||
           type == &PyUnicode_Type || type == (PyTypeObject *)state->tensor_type ||
           type == (PyTypeObject *)state->parameter_type;
}

static PyObject *ask_kind(core_state *state, PyObject *type) {
    PyObject *kind = PyObject_CallFunctionObjArgs(state->owned_kind, type, NULL);
    if (kind == NULL) return NULL;
    if (PyDict_Size(state->owned_kinds) >= MOST_TYPES) PyDict_Clear(state->owned_kinds);
    if (PyDict_SetItem(state->owned_kinds, type, kind) < 0) Py_CLEAR(kind);
    return kind;
}

/* An enum kind; -1 with an exception. */
static int kind_of(core_state *state, PyObject *value) {
    if (is_plain(state, value)) return NOTHING;
    PyObject *type = (PyObject *)Py_TYPE(value);
    if (state->owned_kinds == NULL) state->owned_kinds = PyDict_New();
    PyObject *kind = state->owned_kinds == NULL ? NULL : PyDict_GetItemWithError(state->owned_kinds, type);
    Py_XINCREF(kind);
    if (kind == NULL && !PyErr_Occurred()) kind = ask_kind(state, type);
    long number = kind == NULL ? -1 : PyLong_AsLong(kind);
    Py_XDECREF(kind);
    return (int)number;
}

static int add_generator(ModuleState *self, PyObject *generator) {
    if (self->generators == NULL) self->generators = PyList_New(0);
    Py_ssize_t n = self->generators == NULL ? 0 : PyList_Size(self->generators);
    for (Py_ssize_t i = 0; i < n; i++)
        if (PyList_GetItem(self->generators, i) == generator) return 0;
    return self->generators == NULL ? -1 : PyList_Append(self->generators, generator);
}

/* Why the unit cannot be recomputed: "'batches' of its Source is a list_iterator, ...". */
static int set_unrestorable(core_state *state, ModuleState *self, PyObject *module, PyObject *name, PyObject *value) {
    PyObject *owner = PyObject_GetAttr((PyObject *)Py_TYPE(module), state->str___name__);
    PyObject *kind = owner == NULL ? NULL : PyObject_GetAttr((PyObject *)Py_TYPE(value), state->str___name__);
    if (kind != NULL)
        self->unrestorable = PyUnicode_FromFormat(
            "attribute '%S' of its %S holds a %S, whose position cannot be restored for a second run", name, owner,
            kind);
    Py_XDECREF(owner);
    Py_XDECREF(kind);
    return self->unrestorable == NULL ? -1 : 0;
}

static int look_at(core_state *state, ModuleState *self, PyObject *module, PyObject *name, PyObject *value) {
    int kind = kind_of(state, value);
    if (kind == GENERATOR) return add_generator(self, value);
    if (kind == UNRESTORABLE && self->unrestorable == NULL) return set_unrestorable(state, self, module, name, value);
    return kind < 0 ? -1 : 0;
}

static int look_into_dict(core_state *state, ModuleState *self, PyObject *module, PyObject *name, PyObject *dict) {
    PyObject *copy = PyDict_Copy(dict), *key, *value; /* one of a class of its own may be the module's, not a copy */
    Py_ssize_t position = 0;
    int status = copy == NULL ? -1 : 0;
    while (status == 0 && PyDict_Next(copy, &position, &key, &value))
        status = look_at(state, self, module, name, value);
    Py_XDECREF(copy);
    return status;
}

static int look_into_list(core_state *state, ModuleState *self, PyObject *module, PyObject *name, PyObject *list) {
    PyObject *items = PySequence_Tuple(list);
    Py_ssize_t n = items == NULL ? 0 : PyTuple_Size(items);
    int status = items == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && i < n; i++)
        status = look_at(state, self, module, name, PyTuple_GetItem(items, i));
    Py_XDECREF(items);
    return status;
}

int core_owned_find(core_state *state, ModuleState *self, PyObject *module, PyObject *attributes) {
    PyObject *name, *value;
    Py_ssize_t position = 0;
    int status = 0;
    while (status == 0 && PyDict_Next(attributes, &position, &name, &value)) {
        if (name == state->str__parameters || name == state->str__buffers || name == state->str__modules) continue;
        int is_dict = PyDict_Check(value), is_list = PyList_CheckExact(value) || PyTuple_Check(value);
        Py_ssize_t n = is_dict ? PyDict_Size(value) : (is_list ? PySequence_Size(value) : 0);
        if (is_dict || is_list) {
            if (n == 0 || n > LARGEST_CONTAINER) continue;
            status = is_dict ? look_into_dict(state, self, module, name, value)
                             : look_into_list(state, self, module, name, value);
        } else {
            status = look_at(state, self, module, name, value);
        }
    }
    return status;
}
