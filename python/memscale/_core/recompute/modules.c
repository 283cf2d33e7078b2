/* modules.c - the state of a unit's modules, as it was when the unit ran.
 *
 * A forward depends on more than its inputs: on parameters (which functional_call swaps), buffers, training flags,
 * hooks, submodules, and any attribute that a module keeps. ModuleState takes a shallow copy of every module's
 * __dict__ at and below a root. Containers in attributes are copied one level deep, since modules keep parameters,
 * buffers, hooks and children in such; tensors are shared. From one call to the next nearly always nothing changes, so
 * a capture serves later calls too, as long as the modules match it: every attribute is the same object, every
 * container holds the same ones. For a recomputation the modules get fresh copies of what was captured, and leave()
 * gives them their own dicts back. Where the modules match and the unit is known to leave no trace, it runs in place,
 * and leave() undoes any change that happens after all. Either way the recomputation leaves no trace in the modules.
 */
#include "recompute.h"

#define LARGEST_COPY 4096 /* a longer list or dict is shared: it holds data, not module state */

/* Tensors with a history that modules keep are captured without it: a graph must not hold the one before it alive. */
static PyObject *without_history(core_state *state, PyObject *value) {
    return Py_TYPE(value) == (PyTypeObject *)state->tensor_type ? core_without_history(state, value) : NULL;
}

/* The same for every value of a dict that is our own copy. Values are replaced in place, so its size stays. Returns
 * how many were cut off, -1 with an exception. */
static int cut_dict(core_state *state, PyObject *dict) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int n = 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
        PyObject *alias = without_history(state, value);
        if (alias == NULL && PyErr_Occurred()) return -1;
        if (alias == NULL) continue;
        int failed = PyDict_SetItem(dict, key, alias) < 0;
        Py_DECREF(alias);
        if (failed) return -1;
        n++;
    }
    return n;
}

static int cut_list(core_state *state, PyObject *list) {
    int n = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        PyObject *alias = without_history(state, PyList_GetItem(list, i));
        if (alias == NULL && PyErr_Occurred()) return -1;
        if (alias == NULL) continue;
        if (PyList_SetItem(list, i, alias) < 0) return -1;
        n++;
    }
    return n;
}

static int cut_history(core_state *state, PyObject *dict) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    int n = cut_dict(state, dict);
    while (n >= 0 && PyDict_Next(dict, &position, &key, &value)) {
        int more = 0;
        if (PyDict_CheckExact(value) && PyDict_Size(value) <= LARGEST_COPY) more = cut_dict(state, value);
        if (PyList_CheckExact(value) && PyList_Size(value) <= LARGEST_COPY) more = cut_list(state, value);
        n = more < 0 ? -1 : n + more;
    }
    return n;
}

/* The attributes of a dict of a class of its own, such as a configuration. -1 without an exception if they cannot be
 * copied. */
static int copy_attributes(PyObject *from, PyObject *to) {
    PyObject *old = PyObject_GenericGetDict(from, NULL), *new = old == NULL ? NULL : PyObject_GenericGetDict(to, NULL);
    int has_none = old == NULL; /* its class has no room for attributes */
    PyErr_Clear();
    int failed = !has_none && (new == NULL || PyDict_Update(new, old) < 0);
    PyErr_Clear();
    Py_XDECREF(old);
    Py_XDECREF(new);
    return failed ? -1 : 0;
}

/* A copy of a container that is an attribute. A class of its own may refuse to copy, or copy to something else: then it
 * is shared.
 */
static PyObject *copy_container(PyObject *value) {
    if (PyDict_CheckExact(value)) return PyDict_Copy(value);
    if (PyList_CheckExact(value)) return PyList_GetSlice(value, 0, PyList_Size(value));
    if (!PyDict_Check(value)) return PySet_New(value);
    PyObject *twin = PyDict_Size(value) == 0 ? PyObject_CallNoArgs((PyObject *)Py_TYPE(value))
                                             : PyObject_CallMethod(value, "copy", NULL);
    if (twin != NULL && Py_TYPE(twin) == Py_TYPE(value) && copy_attributes(value, twin) == 0) return twin;
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

/* ---- Capturing ---- */

/* 1 if a container other than a module's own tables holds a tensor: the state must not keep that alive. */
static int holds_tensor(core_state *state, PyObject *container) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    if (PyDict_Check(container))
        while (PyDict_Next(container, &position, &key, &value))
            if (core_is_tensor(state, value)) return 1;
    for (Py_ssize_t i = 0; PyList_CheckExact(container) && i < PyList_Size(container); i++)
        if (core_is_tensor(state, PyList_GetItem(container, i))) return 1;
    return 0;
}

static int append_tensors(core_state *state, PyObject *list, PyObject *dict) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Check(dict) && PyDict_Next(dict, &position, &key, &value))
        if (core_is_tensor(state, value) && PyList_Append(list, value) < 0) return -1;
    return 0;
}

/* What a captured dict tells: parameters, tensors in attributes, whether it has buffers, whether it may be kept. */
static int take_stock(core_state *state, ModuleState *self, PyObject *captured) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(captured, &position, &key, &value)) {
        int is_name = PyUnicode_Check(key);
        if (is_name && PyUnicode_Compare(key, state->str__parameters) == 0) {
            if (append_tensors(state, self->parameters, value) < 0) return -1;
        } else if (is_name && PyUnicode_Compare(key, state->str__buffers) == 0) {
            self->has_buffers = self->has_buffers || holds_tensor(state, value);
        } else if (core_is_tensor(state, value)) {
            self->reusable = 0;
            if (PyList_Append(self->tensors, value) < 0) return -1;
        } else if (is_copied(value) && holds_tensor(state, value)) {
            self->reusable = 0;
        }
    }
    return PyErr_Occurred() ? -1 : 0;
}

static core_module_entry *new_entry(ModuleState *self) {
    if (self->n == self->capacity) {
        Py_ssize_t capacity = self->capacity == 0 ? 16 : self->capacity * 2;
        core_module_entry *grown = PyMem_Realloc(self->entries, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            (void)PyErr_NoMemory();
            return NULL;
        }
        self->entries = grown;
        self->capacity = capacity;
    }
    self->entries[self->n] = (core_module_entry){0};
    return &self->entries[self->n++];
}

/* Names in dicts of modules are interned. */
static int is_unread(const core_state *state, PyObject *key) {
#define IS_KEY(name) || key == state->str_##name
    return 0 CORE_UNREAD_TABLES(IS_KEY);
#undef IS_KEY
}

/* The items of a module's dict as an array, in their order. */
static int list_attributes(const core_state *state, core_module_entry *e) {
    PyObject *key, *value, *captured_key, *captured;
    Py_ssize_t at = 0, at_captured = 0, i = 0;
    e->attributes = PyMem_Calloc((size_t)PyDict_Size(e->originals) + 1, sizeof *e->attributes);
    if (e->attributes == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    while (PyDict_Next(e->originals, &at, &key, &value) &&
           PyDict_Next(e->captured, &at_captured, &captured_key, &captured))
        e->attributes[i++] = (core_attribute){.key = key,
                                              .value = value,
                                              .copy = value == captured || is_unread(state, key) ? NULL : captured,
                                              .n_in_table = PyDict_Check(value) ? PyDict_Size(value) : -1};
    return 0;
}

static int add_entry(core_state *state, ModuleState *self, PyObject *module, PyObject *dict) {
    core_module_entry *e = new_entry(self);
    if (e == NULL) return -1;
    Py_INCREF(module);
    e->module = module;
    e->captured = copy_state(dict);
    e->originals = e->captured == NULL ? NULL : PyDict_Copy(dict);
    int n_cut = e->originals == NULL ? -1 : cut_history(state, e->captured);
    if (n_cut > 0) self->reusable = 0;
    if (n_cut < 0 || list_attributes(state, e) < 0 || take_stock(state, self, e->captured) < 0) return -1;
    return core_owned_find(state, self, module, e->captured);
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
    PyObject *children = status < 0 ? NULL : PyDict_GetItemWithError(dict, state->str__modules), *key, *child;
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

static int note_training(core_state *state, ModuleState *self) {
    self->training_flags = PyBytes_FromStringAndSize(NULL, self->n);
    char *out = self->training_flags == NULL ? NULL : PyBytes_AsString(self->training_flags);
    for (Py_ssize_t i = 0; out != NULL && i < self->n; i++)
        out[i] = (char)(PyDict_GetItemWithError(self->entries[i].captured, state->str_training) == Py_True);
    return PyErr_Occurred() ? -1 : 0;
}

static void drop_originals(core_module_entry *e) {
    PyMem_Free(e->attributes);
    e->attributes = NULL;
    Py_CLEAR(e->originals);
}

ModuleState *core_modules_capture(core_state *state, PyObject *root) {
    PyTypeObject *type = state->modules_type;
    ModuleState *self = (ModuleState *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    self->reusable = 1;
    self->parameters = PyList_New(0);
    self->tensors = PyList_New(0);
    int status = self->parameters == NULL || self->tensors == NULL ? -1 : capture(state, self, root);
    if (status == 0) status = note_training(state, self);
    if (status == 0) self->devices = core_devices_add(state, PyTuple_New(0), self->parameters);
    if (self->devices == NULL) status = -1;
    for (Py_ssize_t i = 0; i < self->n && !self->reusable; i++) drop_originals(&self->entries[i]);
    if (status == 0) return self;
    Py_DECREF(self);
    return NULL;
}

/* ---- Matching ---- */

static int same_dict(PyObject *a, PyObject *b) {
    PyObject *key_a, *key_b, *value_a, *value_b;
    Py_ssize_t at_a = 0, at_b = 0;
    if (PyDict_Size(a) != PyDict_Size(b)) return 0;
    while (PyDict_Next(a, &at_a, &key_a, &value_a))
        if (!PyDict_Next(b, &at_b, &key_b, &value_b) || key_a != key_b || value_a != value_b) return 0;
    return 1;
}

/* Do two containers of one kind hold the same objects? -1 with an exception. */
static int same_content(PyObject *a, PyObject *b) {
    if (a == b) return 1;
    if (Py_TYPE(a) != Py_TYPE(b)) return 0;
    if (PyDict_Check(a)) return same_dict(a, b);
    if (!PyList_CheckExact(a)) return PySet_Size(a) == PySet_Size(b) ? PyObject_RichCompareBool(a, b, Py_EQ) : 0;
    if (PyList_Size(a) != PyList_Size(b)) return 0;
    for (Py_ssize_t i = 0; i < PyList_Size(a); i++)
        if (PyList_GetItem(a, i) != PyList_GetItem(b, i)) return 0;
    return 1;
}

/* Is a module's dict as it was when it was captured: the very same objects, containers with the same content? */
static int same_as_before(PyObject *dict, const core_module_entry *e) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    if (PyDict_Size(dict) != PyDict_Size(e->originals)) return 0;
    for (const core_attribute *a = e->attributes; PyDict_Next(dict, &position, &key, &value); a++) {
        if (key != a->key || value != a->value) return 0;
        if (a->copy == NULL) continue;
        if (a->n_in_table >= 0 && PyDict_Size(value) != a->n_in_table) return 0;
        if (a->n_in_table == 0) continue; /* nearly every table of hooks: not worth a look at the copy */
        int same = same_content(value, a->copy);
        if (same != 1) return same;
    }
    return 1;
}

/* Is the copy that a module has been given still as it was captured? */
static int same_as_copied(PyObject *dict, const core_module_entry *e) {
    PyObject *key, *value, *captured_key, *captured;
    Py_ssize_t at = 0, at_captured = 0;
    if (PyDict_Size(dict) != PyDict_Size(e->captured)) return 0;
    while (PyDict_Next(dict, &at, &key, &value) && PyDict_Next(e->captured, &at_captured, &captured_key, &captured)) {
        if (key != captured_key) return 0;
        if (value == captured) continue;
        int same = is_copied(value) && is_copied(captured) ? same_content(value, captured) : 0;
        if (same != 1) return same;
    }
    return 1;
}

/* 1 if all modules are so, 0 if not, -1 with an exception. */
static int match(ModuleState *self, int (*same_state)(PyObject *, const core_module_entry *)) {
    for (Py_ssize_t i = 0; i < self->n; i++) {
        PyObject *dict = PyObject_GenericGetDict(self->entries[i].module, NULL);
        int same = dict == NULL ? -1 : same_state(dict, &self->entries[i]);
        Py_XDECREF(dict);
        if (same != 1) return same;
    }
    return 1;
}

int core_modules_match(ModuleState *self) { return self->reusable ? match(self, same_as_before) : 0; }

/* ---- Entering and leaving ---- */

/* As `module.__dict__ = dict` does. (PyObject_GenericSetDict leaves attributes that Python 3.13 keeps inside the
 * object.) */
static int set_dict(core_state *state, PyObject *module, PyObject *dict) {
    return PyObject_GenericSetAttr(module, state->str___dict__, dict);
}

static int leave_copies(core_state *state, ModuleState *self) {
    int status = 0;
    for (Py_ssize_t i = self->n - 1; i >= 0; i--) {
        PyObject *own = self->entries[i].own;
        if (own == NULL) continue;
        self->entries[i].own = NULL;
        if (set_dict(state, self->entries[i].module, own) < 0) status = -1;
        Py_DECREF(own);
    }
    return status;
}

static int enter_copies(core_state *state, ModuleState *self) {
    for (Py_ssize_t i = 0; i < self->n; i++) {
        core_module_entry *e = &self->entries[i];
        PyObject *fresh = copy_state(e->captured);
        e->own = fresh == NULL ? NULL : PyObject_GenericGetDict(e->module, NULL);
        int failed = e->own == NULL || set_dict(state, e->module, fresh) < 0;
        Py_XDECREF(fresh);
        if (failed) return -1;
    }
    return 0;
}

/* Give a container the content of its copy again. */
static int refill(PyObject *container, PyObject *copy) {
    if (PyList_CheckExact(container)) return PyList_SetSlice(container, 0, PyList_Size(container), copy);
    PyObject *cleared = PyObject_CallMethod(container, "clear", NULL);
    PyObject *filled = cleared == NULL ? NULL : PyObject_CallMethod(container, "update", "O", copy);
    Py_XDECREF(cleared);
    Py_XDECREF(filled);
    return filled == NULL ? -1 : 0;
}

/* A module ran in place and was changed after all: give it back what it had. */
static int put_back(core_module_entry *e) {
    PyObject *key, *copy;
    Py_ssize_t position = 0;
    PyObject *dict = PyObject_GenericGetDict(e->module, NULL);
    int status = dict == NULL ? -1 : 0;
    if (dict != NULL) PyDict_Clear(dict);
    while (status == 0 && PyDict_Next(e->captured, &position, &key, &copy)) {
        PyObject *original = PyDict_GetItemWithError(e->originals, key);
        if (original == NULL) status = -1;
        if (status == 0 && original != copy && same_content(original, copy) == 0) status = refill(original, copy);
        if (status == 0) status = PyDict_SetItem(dict, key, original);
    }
    Py_XDECREF(dict);
    return status;
}

int core_modules_enter(core_state *state, ModuleState *self, int in_place) {
    if (self->mode != MODULES_OWN) {
        PyErr_SetString(PyExc_RuntimeError, "enter() was called twice without leave()");
        return -1;
    }
    int same = in_place ? core_modules_match(self) : 0;
    if (same < 0) return -1;
    self->mode = same ? MODULES_IN_PLACE : MODULES_COPIED;
    if (same || enter_copies(state, self) == 0) return 0;
    core_pending pending = core_set_aside();
    (void)leave_copies(state, self);
    self->mode = MODULES_OWN;
    core_put_back(pending);
    return -1;
}

int core_modules_leave(core_state *state, ModuleState *self, int *touched) {
    int mode = self->mode, status = 0;
    self->mode = MODULES_OWN;
    if (mode == MODULES_OWN) return 0;
    int same = match(self, mode == MODULES_IN_PLACE ? same_as_before : same_as_copied);
    if (touched != NULL) *touched = same != 1;
    if (mode == MODULES_COPIED) return leave_copies(state, self);
    for (Py_ssize_t i = 0; i < self->n && same != 1; i++)
        if (put_back(&self->entries[i]) < 0) status = -1;
    return same < 0 ? -1 : status;
}

/* ---- For Python ---- */

static PyObject *state_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *root;
    static char *names[] = {(char *)"root", NULL};
    core_state *state = core_state_of_type(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:ModuleState", names, &root)) return NULL;
    return core_check_bound(state) < 0 ? NULL : (PyObject *)core_modules_capture(state, root);
}

PyDoc_STRVAR(leave_doc, "leave($self, /)\n--\n\nGive the modules their own dicts back.");

static PyObject *state_leave(PyObject *object, PyObject *Py_UNUSED(unused)) {
    if (core_modules_leave(core_state_of_type(Py_TYPE(object)), (ModuleState *)object, NULL) < 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(enter_doc, "enter($self, /)\n--\n\nGive the modules fresh copies of what was captured.");

static PyObject *state_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
    if (core_modules_enter(core_state_of_type(Py_TYPE(object)), (ModuleState *)object, 0) < 0) return NULL;
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
    PyObject *list = ((ModuleState *)object)->parameters;
    return PyList_GetSlice(list, 0, PyList_Size(list));
}

static int state_traverse(PyObject *object, visitproc visit, void *arg) {
    ModuleState *self = (ModuleState *)object;
    Py_VISIT(Py_TYPE(object));
    for (Py_ssize_t i = 0; i < self->n; i++) {
        Py_VISIT(self->entries[i].module);
        Py_VISIT(self->entries[i].captured);
        Py_VISIT(self->entries[i].originals);
        Py_VISIT(self->entries[i].own);
    }
    Py_VISIT(self->parameters);
    Py_VISIT(self->tensors);
    Py_VISIT(self->generators);
    return 0;
}

static int state_clear(PyObject *object) {
    ModuleState *self = (ModuleState *)object;
    Py_ssize_t n = self->n;
    self->n = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_CLEAR(self->entries[i].module);
        Py_CLEAR(self->entries[i].captured);
        drop_originals(&self->entries[i]);
        Py_CLEAR(self->entries[i].own);
    }
    Py_CLEAR(self->parameters);
    Py_CLEAR(self->tensors);
    Py_CLEAR(self->generators);
    Py_CLEAR(self->unrestorable);
    Py_CLEAR(self->training_flags);
    Py_CLEAR(self->devices);
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
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(type_doc, "ModuleState(root)\n--\n\nThe state of a module and all below it, to be put back for a while.");

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
