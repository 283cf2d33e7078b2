/* observe.c - what a Call notes before the first run of its unit: inputs, modules, versions, flags, buffers.
 *
 * The state of the modules is captured anew only where it changed since the last call (modules.c). Buffers are sorted:
 * those that the unit may change are put back for a repetition, the others are watched, like parameters: whether
 * something changed them in place shows in their version counters.
 */
#include "core.h"

/* The devices of inputs and parameters. Those of the parameters were found when the modules were captured; a model that
 * moves takes the first along. */
static PyObject *find_devices(core_state *state, Call *self) {
    PyObject *parameters = self->state->parameters, *known = self->state->devices;
    if (PyList_Size(parameters) > 0) {
        PyObject *device = CORE_READ(state, PyList_GetItem(parameters, 0), device);
        int same = device == NULL ? -1 : PyObject_RichCompareBool(PyTuple_GetItem(known, 0), device, Py_EQ);
        Py_XDECREF(device);
        if (same < 0) return NULL;
        if (same == 0) {
            PyObject *moved = core_devices_add(state, PyTuple_New(0), parameters);
            if (moved == NULL) return NULL;
            self->state->devices = moved;
            Py_DECREF(known);
        }
    }
    Py_INCREF(self->state->devices);
    return core_devices_add(state, self->state->devices, self->inputs.tensors);
}

/* The state of the unit's modules: the last capture if it still holds, else a new one. */
static ModuleState *capture(core_state *state, Unit *unit) {
    int same = unit->state == NULL ? 0 : core_modules_match(unit->state);
    if (same < 0) return NULL;
    if (same == 0 || unit->state->mode != MODULES_OWN) {
        ModuleState *fresh = core_modules_capture(state, unit->module);
        ModuleState *old = unit->state;
        if (fresh == NULL) return NULL;
        unit->state = fresh->reusable ? fresh : NULL;
        Py_XINCREF((PyObject *)unit->state);
        Py_XDECREF((PyObject *)old);
        return fresh;
    }
    Py_INCREF((PyObject *)unit->state);
    return unit->state;
}

/* A buffer that is put back, with a copy of what is in it now. */
static int keep_buffer(core_state *state, Call *self, PyObject *index, PyObject *name, PyObject *module,
                       PyObject *buffer) {
    PyObject *alias = PyObject_CallFunctionObjArgs(state->detach, buffer, NULL);
    PyObject *copy = alias == NULL ? NULL : PyObject_CallFunctionObjArgs(state->clone, alias, NULL);
    PyObject *entry = copy == NULL ? NULL : PyTuple_Pack(5, index, name, module, buffer, copy);
    Py_XDECREF(alias);
    Py_XDECREF(copy);
    if (entry != NULL && self->buffers == NULL) self->buffers = PyList_New(0);
    int status = entry == NULL || self->buffers == NULL ? -1 : PyList_Append(self->buffers, entry);
    Py_XDECREF(entry);
    return status;
}

/* Sort the buffers of one module: those in `wanted`, a set of (index, name), are put back, the others watched. */
static int sort_buffers(core_state *state, Call *self, Py_ssize_t i, PyObject *wanted) {
    PyObject *module = self->state->entries[i].module, *key, *value;
    PyObject *table = PyDict_GetItemWithError(self->state->entries[i].captured, state->str__buffers);
    Py_ssize_t position = 0;
    if (table == NULL || !PyDict_Check(table)) return PyErr_Occurred() ? -1 : 0;
    PyObject *index = PyLong_FromSsize_t(i);
    int status = index == NULL ? -1 : 0;
    while (status == 0 && PyDict_Next(table, &position, &key, &value)) {
        if (!core_is_tensor(state, value)) continue;
        PyObject *id = wanted == Py_None ? NULL : PyTuple_Pack(2, index, key);
        int keep = wanted == Py_None ? 1 : (id == NULL ? -1 : PySet_Contains(wanted, id));
        Py_XDECREF(id);
        if (keep < 0) status = -1;
        if (keep == 1) status = keep_buffer(state, self, index, key, module, value);
        if (keep == 0) status = PyList_Append(self->watched, value);
    }
    Py_XDECREF(index);
    return status;
}

/* What must not change: parameters, tensors that modules keep, and buffers that are not put back. */
static int collect_watched(core_state *state, Call *self, PyObject *wanted) {
    Py_CLEAR(self->watched);
    Py_CLEAR(self->buffers);
    PyObject *parameters = self->state->parameters;
    if (!self->state->has_buffers && PyList_Size(self->state->tensors) == 0) { /* share the list */
        Py_INCREF(parameters);
        self->watched = parameters;
        return 0;
    }
    self->watched = PySequence_Concat(parameters, self->state->tensors);
    int status = self->watched == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && i < self->state->n; i++) status = sort_buffers(state, self, i, wanted);
    return status;
}

static int read_versions(core_state *state, PyObject *tensors, int64_t *out) {
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); i++) {
        out[i] = core_tensor_version(state, PyList_GetItem(tensors, i));
        if (out[i] == -2) return -1;
    }
    return 0;
}

int core_read_grad_flags(core_state *state, PyObject *tensors, char *out) {
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); i++) {
        int flag = CORE_READ_BOOL(state, PyList_GetItem(tensors, i), requires_grad);
        if (flag < 0) return -1;
        out[i] = (char)flag;
    }
    return 0;
}

static int note_versions(core_state *state, Call *self) {
    Py_ssize_t n = PyList_Size(self->inputs.tensors), n_watched = PyList_Size(self->watched);
    int64_t *versions = PyMem_Realloc(self->versions, (size_t)(n + n_watched + 1) * sizeof *versions);
    if (versions == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    self->versions = versions;
    if (read_versions(state, self->inputs.tensors, versions) < 0) return -1;
    return read_versions(state, self->watched, versions + n);
}

/* Did a tensor of the list change since its version was noted? -1 with an exception. */
static int has_changed(core_state *state, PyObject *tensors, const int64_t *versions) {
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); i++) {
        int64_t version = core_tensor_version(state, PyList_GetItem(tensors, i));
        if (version != versions[i]) return version == -2 ? -1 : 1;
    }
    return 0;
}

int core_call_inputs_changed(core_state *state, Call *self) {
    return has_changed(state, self->inputs.tensors, self->versions);
}

int core_call_watched_changed(core_state *state, Call *self) {
    return has_changed(state, self->watched, self->versions + PyList_Size(self->inputs.tensors));
}

int core_call_observe(core_state *state, Call *self, PyObject *wanted) {
    if (collect_watched(state, self, wanted) < 0 || note_versions(state, self) < 0) return -1;
    Py_ssize_t n = PyList_Size(self->state->parameters);
    char *flags = PyMem_Realloc(self->grad_flags, (size_t)(2 * n + 1));
    if (flags == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    self->grad_flags = flags;
    self->grad_flags_now = flags + n;
    if (core_read_grad_flags(state, self->state->parameters, flags) < 0) return -1;
    Py_XDECREF(self->switches);
    self->switches = core_switches_note(state);
    return self->switches == NULL ? -1 : 0;
}

int core_call_keep_buffers(core_state *state, Call *self, PyObject *kept) {
    PyObject *all = self->buffers, *some = PyList_New(0);
    int status = some == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && all != NULL && i < PyList_Size(all); i++) {
        PyObject *entry = PyList_GetItem(all, i), *id = PyTuple_GetSlice(entry, 0, 2);
        int is_kept = id == NULL ? -1 : PySet_Contains(kept, id);
        Py_XDECREF(id);
        if (is_kept < 0) status = -1;
        if (is_kept == 1) status = PyList_Append(some, entry);
        if (is_kept == 0) status = PyList_Append(self->watched, PyTuple_GetItem(entry, 3)); /* ours: it has buffers */
    }
    if (status == 0 && PyList_Size(some) == 0) Py_CLEAR(some);
    self->buffers = status == 0 ? some : all;
    Py_XDECREF(status == 0 ? all : some);
    return status < 0 ? -1 : note_versions(state, self);
}

int core_call_capture(core_state *state, Call *self, PyObject *args, PyObject *kwargs) {
    if (core_inputs_copy(state, args, kwargs, &self->inputs) < 0) return -1;
    self->state = capture(state, self->unit);
    if (self->state != NULL) self->devices = find_devices(state, self);
    return self->devices == NULL ? -1 : 0;
}
