/* modules.c - the state of a unit's modules, as it was when the unit ran.
 *
 * A forward depends on more than its inputs: on parameters (which functional_call swaps), buffers, training flags,
 * hooks, submodules, and any attribute that a module keeps. ModuleState takes a shallow copy of every module's
 * __dict__ at and below a root; enter() lets the modules live in fresh copies of these for a while, and leave() gives
 * them their own dicts back. What happens in between leaves no trace in the modules. Containers in attributes are
 * copied one level deep, since modules keep parameters, buffers, hooks and children in such; tensors are shared.
 */
#include "core.h"

#define LARGEST_COPY 4096 /* a longer list or dict is shared: nobody keeps module state in such */

typedef struct entry {
    PyObject *module;   /* owned */
    PyObject *captured; /* owned: the copy */
    PyObject *own;      /* owned while entered: the module's own dict; else NULL */
} entry;

typedef struct ModuleState {
    PyObject_HEAD
    entry *entries;
    Py_ssize_t n, capacity;
    int entered;
} ModuleState;

/* Tensors with a history that modules keep are captured without it: a graph must not hold the one before it alive. */
static PyObject *without_history(core_state *state, PyObject *value) {
    return Py_TYPE(value) == (PyTypeObject *)state->tensor_type ? core_without_history(state, value) : NULL;
}

/* The same for every value of a dict that is our own copy. Values are replaced in place, so its size stays. */
static int cut_dict(core_state *state, PyObject *dict) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
        PyObject *alias = without_history(state, value);
        if (alias == NULL && PyErr_Occurred()) return -1;
        int failed = alias != NULL && PyDict_SetItem(dict, key, alias) < 0;
        Py_XDECREF(alias);
        if (failed) return -1;
    }
    return 0;
}

static int cut_list(core_state *state, PyObject *list) {
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        PyObject *alias = without_history(state, PyList_GetItem(list, i));
        if (alias == NULL && PyErr_Occurred()) return -1;
        if (alias != NULL && PyList_SetItem(list, i, alias) < 0) return -1;
    }
    return 0;
}

static int cut_history(core_state *state, PyObject *dict) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    if (cut_dict(state, dict) < 0) return -1;
    while (PyDict_Next(dict, &position, &key, &value)) {
        if (PyDict_CheckExact(value) && PyDict_Size(value) <= LARGEST_COPY && cut_dict(state, value) < 0) return -1;
        if (PyList_CheckExact(value) && PyList_Size(value) <= LARGEST_COPY && cut_list(state, value) < 0) return -1;
    }
    return 0;
}

/* A copy of a container that is an attribute. A class of its own may not copy, or to something else: then it is shared.
 */
static PyObject *copy_container(PyObject *value) {
    if (PyDict_CheckExact(value)) return PyDict_Copy(value);
    if (PyList_CheckExact(value)) return PyList_GetSlice(value, 0, PyList_Size(value));
    if (!PyDict_Check(value)) return PySet_New(value);
    PyObject *twin = PyDict_Size(value) == 0 ? PyObject_CallNoArgs((PyObject *)Py_TYPE(value))
                                             : PyObject_CallMethod(value, "copy", NULL);
    if (twin != NULL && Py_TYPE(twin) == Py_TYPE(value)) return twin;
    Py_XDECREF(twin);
    PyErr_Clear();
    Py_INCREF(value);
    return value;
}

static int is_copied(PyObject *value) {
    if (PyDict_Check(value)) return PyDict_Size(value) <= LARGEST_COPY;
    if (PyList_CheckExact(value)) return PyList_Size(value) <= LARGEST_COPY;
    return Py_TYPE(value) == &PySet_Type && PySet_Size(value) <= LARGEST_COPY;
}

/* A copy of a module's dict, with its containers copied too. */
static PyObject *copy_state(PyObject *dict) {
    PyObject *copy = PyDict_Copy(dict), *key, *value;
    Py_ssize_t position = 0;
    while (copy != NULL && PyDict_Next(copy, &position, &key, &value)) {
        if (!is_copied(value)) continue;
        PyObject *twin = copy_container(value);
        if (twin == NULL || PyDict_SetItem(copy, key, twin) < 0) Py_CLEAR(copy);
        Py_XDECREF(twin);
    }
    return copy;
}

static int add_entry(core_state *state, ModuleState *self, PyObject *module, PyObject *dict) {
    if (self->n == self->capacity) {
        Py_ssize_t capacity = self->capacity == 0 ? 16 : self->capacity * 2;
        entry *grown = PyMem_Realloc(self->entries, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            (void)PyErr_NoMemory();
            return -1;
        }
        self->entries = grown;
        self->capacity = capacity;
    }
    PyObject *captured = copy_state(dict);
    if (captured == NULL || cut_history(state, captured) < 0) {
        Py_XDECREF(captured);
        return -1;
    }
    Py_INCREF(module);
    self->entries[self->n++] = (entry){.module = module, .captured = captured};
    return 0;
}

static int is_known(const ModuleState *self, PyObject *module) {
    for (Py_ssize_t i = 0; i < self->n; i++)
        if (self->entries[i].module == module) return 1;
    return 0;
}

/* Capture a module and everything below, each once. */
static int capture(core_state *state, ModuleState *self, PyObject *module) {
    if (module == Py_None || is_known(self, module)) return 0;
    if (Py_EnterRecursiveCall(" while looking at submodules")) return -1;
    PyObject *dict = PyObject_GenericGetDict(module, NULL);
    int status = dict == NULL ? -1 : add_entry(state, self, module, dict);
    PyObject *children = status < 0 ? NULL : PyDict_GetItemWithError(dict, state->str_modules), *key, *child;
    Py_ssize_t position = 0;
    if (children != NULL && PyDict_Check(children)) {
        while (status == 0 && PyDict_Next(children, &position, &key, &child)) status = capture(state, self, child);
    } else if (PyErr_Occurred()) {
        status = -1;
    }
    Py_XDECREF(dict);
    Py_LeaveRecursiveCall();
    return status;
}

static PyObject *state_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *root;
    static char *names[] = {(char *)"root", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:ModuleState", names, &root)) return NULL;
    if (core_state_of_type(type)->tensor_type == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "bind() has not been called");
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    ModuleState *self = (ModuleState *)alloc(type, 0);
    if (self != NULL && capture(core_state_of_type(type), self, root) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* As `module.__dict__ = dict` does. (PyObject_GenericSetDict leaves attributes that Python 3.13 keeps inside the
 * object.) */
static int set_dict(core_state *state, PyObject *module, PyObject *dict) {
    return PyObject_GenericSetAttr(module, state->str_dict, dict);
}

PyDoc_STRVAR(leave_doc, "leave($self, /)\n--\n\nGive the modules their own dicts back.");

static PyObject *state_leave(PyObject *object, PyObject *Py_UNUSED(unused)) {
    ModuleState *self = (ModuleState *)object;
    int failed = 0;
    for (Py_ssize_t i = self->n - 1; i >= 0; i--) {
        PyObject *own = self->entries[i].own;
        if (own == NULL) continue;
        self->entries[i].own = NULL;
        if (set_dict(core_state_of_type(Py_TYPE(object)), self->entries[i].module, own) < 0) failed = 1;
        Py_DECREF(own);
    }
    self->entered = 0;
    if (failed) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(enter_doc, "enter($self, /)\n--\n\nLet the modules live in fresh copies of what was captured.");

static PyObject *state_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
    ModuleState *self = (ModuleState *)object;
    if (self->entered) {
        PyErr_SetString(PyExc_RuntimeError, "enter() while entered");
        return NULL;
    }
    self->entered = 1;
    for (Py_ssize_t i = 0; i < self->n; i++) {
        entry *e = &self->entries[i];
        PyObject *fresh = copy_state(e->captured);
        e->own = fresh == NULL ? NULL : PyObject_GenericGetDict(e->module, NULL);
        int failed = e->own == NULL || set_dict(core_state_of_type(Py_TYPE(object)), e->module, fresh) < 0;
        Py_XDECREF(fresh);
        if (!failed) continue;
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        Py_XDECREF(state_leave(object, NULL));
        PyErr_Restore(type, value, trace);
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(modules_doc, "modules($self, /)\n--\n\nThe modules, parents before children.");

static PyObject *state_modules(PyObject *object, PyObject *Py_UNUSED(unused)) {
    ModuleState *self = (ModuleState *)object;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < self->n; i++)
        if (PyList_Append(list, self->entries[i].module) < 0) Py_CLEAR(list);
    return list;
}

PyDoc_STRVAR(parameters_doc, "parameters($self, /)\n--\n\nThe parameters that were captured.");

static PyObject *state_parameters(PyObject *object, PyObject *Py_UNUSED(unused)) {
    ModuleState *self = (ModuleState *)object;
    core_state *state = core_state_of_type(Py_TYPE(object));
    PyObject *list = PyList_New(0), *key, *value;
    for (Py_ssize_t i = 0; list != NULL && i < self->n; i++) {
        PyObject *parameters = PyDict_GetItemWithError(self->entries[i].captured, state->str_parameters);
        if (parameters == NULL || !PyDict_Check(parameters)) {
            if (PyErr_Occurred()) Py_CLEAR(list);
            continue;
        }
        Py_ssize_t position = 0;
        while (list != NULL && PyDict_Next(parameters, &position, &key, &value))
            if (core_is_tensor(state, value) && PyList_Append(list, value) < 0) Py_CLEAR(list);
    }
    return list;
}

PyDoc_STRVAR(tensors_doc, "tensors($self, /)\n--\n\nTensors that modules keep as plain attributes.");

static PyObject *state_tensors(PyObject *object, PyObject *Py_UNUSED(unused)) {
    ModuleState *self = (ModuleState *)object;
    core_state *state = core_state_of_type(Py_TYPE(object));
    PyObject *list = PyList_New(0), *key, *value;
    for (Py_ssize_t i = 0; list != NULL && i < self->n; i++) {
        Py_ssize_t position = 0;
        while (list != NULL && PyDict_Next(self->entries[i].captured, &position, &key, &value))
            if (core_is_tensor(state, value) && PyList_Append(list, value) < 0) Py_CLEAR(list);
    }
    return list;
}

PyDoc_STRVAR(training_doc, "training($self, /)\n--\n\nThe training flags that were captured, a byte each.");

static PyObject *state_training(PyObject *object, PyObject *Py_UNUSED(unused)) {
    ModuleState *self = (ModuleState *)object;
    core_state *state = core_state_of_type(Py_TYPE(object));
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, self->n);
    char *out = bytes == NULL ? NULL : PyBytes_AsString(bytes);
    for (Py_ssize_t i = 0; out != NULL && i < self->n; i++) {
        PyObject *flag = PyDict_GetItemWithError(self->entries[i].captured, state->str_training);
        out[i] = (char)(flag == Py_True);
    }
    if (PyErr_Occurred()) Py_CLEAR(bytes);
    return bytes;
}

static int state_traverse(PyObject *object, visitproc visit, void *arg) {
    ModuleState *self = (ModuleState *)object;
    Py_VISIT(Py_TYPE(object));
    for (Py_ssize_t i = 0; i < self->n; i++) {
        Py_VISIT(self->entries[i].module);
        Py_VISIT(self->entries[i].captured);
        Py_VISIT(self->entries[i].own);
    }
    return 0;
}

static int state_clear(PyObject *object) {
    ModuleState *self = (ModuleState *)object;
    Py_ssize_t n = self->n;
    self->n = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_CLEAR(self->entries[i].module);
        Py_CLEAR(self->entries[i].captured);
        Py_CLEAR(self->entries[i].own);
    }
    return 0;
}

static void state_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    (void)state_clear(object);
    PyMem_Free(((ModuleState *)object)->entries);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"enter", state_enter, METH_NOARGS, enter_doc},
    {"leave", state_leave, METH_NOARGS, leave_doc},
    {"modules", state_modules, METH_NOARGS, modules_doc},
    {"parameters", state_parameters, METH_NOARGS, parameters_doc},
    {"tensors", state_tensors, METH_NOARGS, tensors_doc},
    {"training", state_training, METH_NOARGS, training_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(type_doc, "ModuleState(root)\n--\n\nThe state of a module and all below it, to be lived in again.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)type_doc},
    {Py_tp_new, state_new},
    {Py_tp_dealloc, state_dealloc},
    {Py_tp_traverse, state_traverse},
    {Py_tp_clear, state_clear},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "memscale._core.ModuleState",
    .basicsize = sizeof(ModuleState),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int core_add_modules(PyObject *module, core_state *state) {
    state->modules_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return state->modules_type == NULL ? -1 : PyModule_AddType(module, state->modules_type);
}
