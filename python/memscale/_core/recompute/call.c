/* call.c - one call of a unit: its first run, and its recomputation in backward.
 *
 * Unit.run() is what every training step does. The call notes what its forward depends on: inputs and modules (which
 * are captured anew only where they changed since the last call), versions of tensors, switches, generators. Buffers
 * that the unit may change are copied, to be put back; other tensors are watched: whether something changed them in
 * place shows in their version counters. Then the forward runs with pack() of a SavedTensors as hook on saved tensors.
 * In backward, the saved tensors call core_call_recompute(), which puts everything back and recomputes the forward.
 *
 * What always holds
 *   - leave() undoes what enter() did, last to first, also after an exception and after an enter() that failed halfway.
 *   - A call keeps no tensor with a history, so it never keeps the graph before it alive.
 *   - One recomputation of a unit at a time: its modules have another state meanwhile (the unit's lock). The lock order
 *     is: the saved tensors', the unit's, the random lock.
 */
#include "recompute.h"

#include <string.h>

/* Steps of enter(), as bits of `entered`. */
enum { UNIT_LOCK = 1, SWITCHES = 2, RANDOM = 4, GRAD_ON = 8, MODULES = 16, FLAGS = 32 };

static int call_void(PyObject *function) {
    PyObject *result = PyObject_CallNoArgs(function);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int call_method_void(PyObject *object, PyObject *name) {
    PyObject *result = PyObject_CallMethodObjArgs(object, name, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int call_with(PyObject *function, PyObject *argument) {
    PyObject *result = PyObject_CallFunctionObjArgs(function, argument, NULL);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* ---- Devices ---- */

Py_ssize_t core_cuda_index(core_state *state, PyObject *device) {
    PyObject *type = PyObject_GetAttr(device, state->str_type);
    int is_cuda = type == NULL ? -1 : PyUnicode_CompareWithASCIIString(type, "cuda") == 0;
    Py_XDECREF(type);
    if (is_cuda <= 0) return is_cuda < 0 ? -2 : -1;
    PyObject *index = PyObject_GetAttr(device, state->str_index);
    Py_ssize_t value = index == NULL || index == Py_None ? 0 : PyLong_AsSsize_t(index);
    int failed = index == NULL || PyErr_Occurred();
    Py_XDECREF(index);
    return failed ? -2 : value;
}

static int contains(PyObject *devices, PyObject *device) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(devices); i++) {
        int same = PyObject_RichCompareBool(PyTuple_GetItem(devices, i), device, Py_EQ);
        if (same != 0) return same;
    }
    return 0;
}

PyObject *core_devices_add(core_state *state, PyObject *devices, PyObject *tensors) {
    for (Py_ssize_t i = 0; devices != NULL && i < PyList_Size(tensors); i++) {
        PyObject *device = CORE_READ(state, PyList_GetItem(tensors, i), device);
        int known = device == NULL ? -1 : contains(devices, device);
        if (known != 1) {
            PyObject *one = known < 0 ? NULL : PyTuple_Pack(1, device);
            PyObject *joined = one == NULL ? NULL : PySequence_Concat(devices, one);
            Py_XDECREF(one);
            Py_DECREF(devices);
            devices = joined;
        }
        Py_XDECREF(device);
    }
    return devices;
}

int core_has_cuda(core_state *state, PyObject *devices) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(devices); i++) {
        Py_ssize_t index = core_cuda_index(state, PyTuple_GetItem(devices, i));
        if (index != -1) return index == -2 ? -1 : 1;
    }
    return 0;
}

/* ---- Locks ---- */

/* The thread that holds the lock of a unit may take it again. */
static void lock_unit(Unit *unit) {
    unsigned long me = PyThread_get_thread_ident();
    if (unit->depth == 0 || unit->owner != me) {
        if (!PyThread_acquire_lock(unit->lock, NOWAIT_LOCK)) {
            Py_BEGIN_ALLOW_THREADS(void)
            PyThread_acquire_lock(unit->lock, WAIT_LOCK);
            Py_END_ALLOW_THREADS
        }
        unit->owner = me;
    }
    unit->depth++;
}

static void unlock_unit(Unit *unit) {
    if (--unit->depth == 0) PyThread_release_lock(unit->lock);
}

/* Take the lock of the CPU's generators; `*out` gets it, owned, or NULL where none is needed. A unit on a GPU takes
 * none: its backward has a thread of its own, which must not wait for one that waits for it. */
static int take_random_lock(core_state *state, const Call *self, PyObject **out) {
    *out = NULL;
    int on_gpu = state->random_lock == NULL ? 1 : core_has_cuda(state, self->devices);
    if (on_gpu != 0) return on_gpu < 0 ? -1 : 0;
    PyObject *lock = state->random_lock; /* a fork may replace it */
    Py_INCREF(lock);
    if (call_method_void(lock, state->str_acquire) == 0) {
        *out = lock;
        return 0;
    }
    Py_DECREF(lock);
    return -1;
}

/* Release it; steals the reference. */
static int release_random_lock(core_state *state, PyObject *lock) {
    int status = lock == NULL ? 0 : call_method_void(lock, state->str_release);
    Py_XDECREF(lock);
    return status;
}

/* ---- What a call depends on ---- */

/* The devices of inputs and parameters. Those of the parameters were found when the modules were captured; a model that
 * moves takes its first parameter along. */
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

Call *core_call_new(core_state *state, Unit *unit, PyObject *args, PyObject *kwargs) {
    if (core_check_bound(state) < 0) return NULL;
    if (unit->lock == NULL) {
        PyErr_SetString(PyExc_TypeError, "Unit.__init__ has not been called");
        return NULL;
    }
    Call *self = (Call *)((allocfunc)PyType_GetSlot(state->call_type, Py_tp_alloc))(state->call_type, 0);
    if (self == NULL) return NULL;
    Py_INCREF((PyObject *)unit);
    self->unit = unit;
    if (core_inputs_copy(state, args, kwargs, &self->inputs) == 0) self->state = capture(state, unit);
    if (self->state != NULL) self->devices = find_devices(state, self);
    if (self->devices != NULL) return self;
    Py_DECREF((PyObject *)self);
    return NULL;
}

/* A buffer that is put back, with a copy of its content. */
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

/* Sort the buffers of one module: those in `wanted`, a set of (index, name) or NULL for all, are put back; the others
 * are watched. */
static int sort_buffers(core_state *state, Call *self, Py_ssize_t i, PyObject *wanted) {
    PyObject *module = self->state->entries[i].module, *key, *value;
    PyObject *table = PyDict_GetItemWithError(self->state->entries[i].captured, state->str__buffers);
    Py_ssize_t position = 0;
    if (table == NULL || !PyDict_Check(table)) return PyErr_Occurred() ? -1 : 0;
    PyObject *index = PyLong_FromSsize_t(i);
    int status = index == NULL ? -1 : 0;
    while (status == 0 && PyDict_Next(table, &position, &key, &value)) {
        if (!core_is_tensor(state, value)) continue;
        PyObject *id = wanted == NULL ? NULL : PyTuple_Pack(2, index, key);
        int keep = wanted == NULL ? 1 : (id == NULL ? -1 : PySet_Contains(wanted, id));
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

static int read_grad_flags(core_state *state, PyObject *tensors, char *out) {
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
    if (read_grad_flags(state, self->state->parameters, flags) < 0) return -1;
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

/* ---- Putting back what the first run depended on ---- */

static int set_grad_flags(core_state *state, Call *self, const char *wanted, const char *current) {
    PyObject *parameters = self->state->parameters;
    size_t n = (size_t)PyList_Size(parameters);
    for (size_t i = 0; memcmp(wanted, current, n) != 0 && i < n; i++) {
        PyObject *parameter = PyList_GetItem(parameters, (Py_ssize_t)i);
        int leaf = CORE_READ_BOOL(state, parameter, is_leaf);
        if (leaf < 0) return -1;
        if (leaf && PyObject_SetAttr(parameter, state->str_requires_grad, wanted[i] ? Py_True : Py_False) < 0)
            return -1;
    }
    return 0;
}

static int enter_locks(core_state *state, Call *self) {
    lock_unit(self->unit);
    self->entered |= UNIT_LOCK;
    return self->random.n == 0 ? 0 : take_random_lock(state, self, &self->random_lock);
}

static int enter_switches(core_state *state, Call *self) {
    int status = core_switches_enter(state, self->switches, &self->switches_now);
    if (self->switches_now != NULL) self->entered |= SWITCHES;
    return status;
}

static int enter_random(core_state *state, Call *self) {
    if (self->random.n == 0) return 0;
    self->entered |= RANDOM;
    return core_randomness_restore(state, &self->random, &self->random_now);
}

static int enter_grad(core_state *state, Call *self) {
    PyObject *now = PyObject_CallNoArgs(state->grad_enabled);
    if (now == NULL) return -1;
    int was_on = now == Py_True;
    Py_DECREF(now);
    if (was_on) return 0;
    if (call_with(state->set_grad_enabled, Py_True) < 0) return -1;
    self->entered |= GRAD_ON;
    return 0;
}

static int enter_buffers(core_state *state, Call *self) {
    Py_ssize_t n = self->buffers == NULL ? 0 : PyList_Size(self->buffers);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *entry = PyList_GetItem(self->buffers, i), *module = PyTuple_GetItem(entry, 2);
        PyObject *table = PyObject_GetAttr(module, state->str__buffers);
        PyObject *copy =
            table == NULL ? NULL : PyObject_CallFunctionObjArgs(state->clone, PyTuple_GetItem(entry, 4), NULL);
        int status = copy == NULL ? -1 : PyObject_SetItem(table, PyTuple_GetItem(entry, 1), copy);
        Py_XDECREF(table);
        Py_XDECREF(copy);
        if (status < 0) return -1;
    }
    return 0;
}

static int enter_modules(core_state *state, Call *self) {
    if (core_modules_enter(state, self->state, self->in_place && self->buffers == NULL) < 0) return -1;
    self->entered |= MODULES;
    if (enter_buffers(state, self) < 0) return -1;
    if (read_grad_flags(state, self->state->parameters, self->grad_flags_now) < 0) return -1;
    self->entered |= FLAGS;
    return set_grad_flags(state, self, self->grad_flags, self->grad_flags_now);
}

int core_call_leave(core_state *state, Call *self) {
    core_pending pending = core_set_aside();
    unsigned entered = self->entered;
    self->entered = 0;
    int status = 0;
    if (entered & MODULES && core_modules_leave(state, self->state, &self->touched) < 0) status = -1;
    if (entered & FLAGS && set_grad_flags(state, self, self->grad_flags_now, self->grad_flags) < 0) status = -1;
    if (entered & GRAD_ON && call_with(state->set_grad_enabled, Py_False) < 0) status = -1;
    if (entered & RANDOM) {
        if (core_randomness_restore(state, &self->random_now, NULL) < 0) status = -1;
        core_randomness_clear(&self->random_now);
    }
    if (entered & SWITCHES) {
        if (core_switches_leave(state, self->switches, self->switches_now) < 0) status = -1;
        Py_CLEAR(self->switches_now);
    }
    PyObject *lock = self->random_lock;
    self->random_lock = NULL;
    if (release_random_lock(state, lock) < 0) status = -1;
    if (entered & UNIT_LOCK) unlock_unit(self->unit);
    core_put_back(pending);
    return status;
}

int core_call_enter(core_state *state, Call *self) {
    if (self->entered) { /* its own backward runs inside of it */
        PyErr_Format(state->error, "layer '%U' asked for its own saved tensors while it was recomputed",
                     self->unit->name);
        return -1;
    }
    if (enter_locks(state, self) == 0 && enter_switches(state, self) == 0 && enter_random(state, self) == 0 &&
        enter_grad(state, self) == 0 && enter_modules(state, self) == 0)
        return 0;
    (void)core_call_leave(state, self);
    return -1;
}

/* ---- The first run ---- */

/* Of a unit that is known to draw, only the GPUs' generators are compared after the forward: of the others, a
 * recomputation puts back those that moved, so noting one too many does no harm. One that did not draw when it
 * was checked has all of them compared, since it may draw now. */
static PyObject *run_and_note(core_state *state, Call *self, const core_facts *facts, PyObject *args,
                              PyObject *kwargs) {
    PyObject *saved = core_saved_new(state, self, 0);
    PyObject *result = NULL;
    core_randomness_clear(&self->random);
    if (saved != NULL && core_randomness_note(state, &self->random, self->devices, self->state->generators,
                                              facts->draws_outside_torch) == 0)
        result = core_saved_run(state, saved, 1, self->unit->plain, args, kwargs);
    if (result != NULL && core_randomness_keep_moved(state, &self->random, facts->draws_random_numbers) < 0)
        Py_CLEAR(result);
    Py_XDECREF(saved);
    return result;
}

int core_call_put_inputs(Call *self) {
    PyObject *put_inputs = self->unit->put_inputs;
    if (put_inputs == NULL || put_inputs == Py_None) return 0;
    Py_INCREF(put_inputs); /* it may be replaced meanwhile */
    PyObject *old = self->away;
    self->away = PyObject_CallFunctionObjArgs(put_inputs, self->inputs.own, NULL);
    Py_DECREF(put_inputs);
    Py_XDECREF(old);
    int status = self->away == NULL ? -1 : 0;
    if (self->away == Py_None) Py_CLEAR(self->away);
    return status;
}

int core_call_note_graphs(core_state *state, Call *self, PyObject *args, PyObject *kwargs, PyObject *output) {
    if (!self->unit->has_compiled) return 0;
    PyObject *old = self->graphs;
    self->graphs = core_graphs_between(state, args, kwargs, output);
    Py_XDECREF(old);
    return self->graphs == NULL ? -1 : 0;
}

/* `facts` is a copy: the unit's table may move while Python code runs. */
static PyObject *run_first(core_state *state, Call *self, core_facts facts, PyObject *args, PyObject *kwargs) {
    self->in_place = facts.leaves_no_trace;
    Py_XINCREF(facts.buffers);
    int status = core_call_observe(state, self, facts.buffers);
    Py_XDECREF(facts.buffers);
    PyObject *lock = NULL;
    if (status < 0 || (facts.draws_random_numbers && take_random_lock(state, self, &lock) < 0)) return NULL;
    PyObject *result = run_and_note(state, self, &facts, args, kwargs);
    if (result != NULL &&
        (core_call_note_graphs(state, self, args, kwargs, result) < 0 || core_call_put_inputs(self) < 0))
        Py_CLEAR(result);
    if (lock == NULL) return result;
    core_pending pending = core_set_aside();
    if (release_random_lock(state, lock) < 0) Py_CLEAR(result);
    core_put_back(pending);
    return result;
}

/* What a check learned about the unit of a call, for the training flags that its modules have; NULL: not checked. */
static const core_facts *find_facts(const Call *self) {
    PyObject *flags = self->state->training_flags;
    size_t n = (size_t)self->state->n;
    for (Py_ssize_t i = 0; i < self->unit->n_facts; i++) {
        const core_facts *facts = &self->unit->facts[i];
        if (facts->training_flags == flags) return facts;
        if ((size_t)PyBytes_Size(facts->training_flags) == n &&
            memcmp(PyBytes_AsString(facts->training_flags), PyBytes_AsString(flags), n) == 0)
            return facts;
    }
    return NULL;
}

int core_check_run_arguments(const char *name, PyObject *const *args, Py_ssize_t n) {
    if (n == 2 && PyTuple_Check(args[0]) && PyDict_Check(args[1])) return 1;
    PyErr_Format(PyExc_TypeError, "%s() takes a tuple and a dict", name);
    return 0;
}

PyObject *core_unit_run(PyObject *unit, PyTypeObject *type, PyObject *const *args, Py_ssize_t n, PyObject *names) {
    if (!core_check_run_arguments("run", args, names == NULL ? n : -1)) return NULL;
    core_state *state = core_state_of_type(type);
    Call *call = core_call_new(state, (Unit *)unit, args[0], args[1]);
    int cannot = call == NULL || call->inputs.opaque != NULL || call->state->unrestorable != NULL;
    const core_facts *facts = cannot ? NULL : find_facts(call);
    if (facts == NULL) return (PyObject *)call;
    PyObject *result = run_first(state, call, *facts, args[0], args[1]);
    Py_DECREF((PyObject *)call);
    return result;
}

PyObject *core_call_run(PyObject *call, PyObject *const *args, Py_ssize_t n) {
    static const core_facts worst = {.draws_random_numbers = 1, .draws_outside_torch = 1};
    if (!core_check_run_arguments("run", args, n)) return NULL;
    const core_facts *facts = find_facts((Call *)call);
    return run_first(core_state_of_type(Py_TYPE(call)), (Call *)call, facts == NULL ? worst : *facts, args[0], args[1]);
}

/* ---- The recomputation ---- */

static int raise_modified(const core_state *state, const Call *self, const char *what) {
    (void)PyErr_Format(
        state->error,
        "%s of layer '%U' was modified by an inplace operation after its forward, so the layer cannot be "
        "recomputed for backward. Do not change it before backward (a second backward after "
        "optimizer.step() does that, too), or train with enable_checkpointing=False.",
        what, self->unit->name);
    return -1;
}

static int check_unchanged(core_state *state, Call *self) {
    int changed = core_call_inputs_changed(state, self);
    if (changed > 0) return raise_modified(state, self, "an input");
    if (changed == 0) changed = core_call_watched_changed(state, self);
    if (changed > 0) return raise_modified(state, self, "a parameter or buffer");
    return changed;
}

static int announce(core_state *state, Call *self) {
    PyObject *on_backward = self->unit->on_backward;
    if (state->observer != NULL && call_with(state->observer, (PyObject *)self->unit) < 0) return -1;
    return on_backward == NULL || on_backward == Py_None ? 0 : call_void(on_backward);
}

/* The recomputation is over; keeps an exception that is set. */
static int announce_end(Call *self) {
    PyObject *on_end = self->unit->on_end;
    if (on_end == NULL || on_end == Py_None) return 0;
    core_pending pending = core_set_aside();
    int status = call_void(on_end);
    core_put_back(pending);
    return status;
}

int core_call_note_save(Call *self, Py_ssize_t index, PyObject *tensor) {
    PyObject *on_save = self->unit->on_save;
    if (on_save == NULL || on_save == Py_None) return 0;
    PyObject *number = PyLong_FromSsize_t(index);
    if (number == NULL) return -1;
    Py_INCREF(on_save); /* it may replace itself */
    PyObject *result = PyObject_CallFunctionObjArgs(on_save, (PyObject *)self, number, tensor, NULL);
    Py_DECREF(on_save);
    Py_DECREF(number);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Did the recomputation run the graphs of torch.compile that the forward ran? */
static int check_graphs(core_state *state, const Call *self, PyObject *result) {
    if (self->graphs == NULL) return 0;
    PyObject *graphs = core_graphs_between(state, self->inputs.args, self->inputs.kwargs, result);
    int same = graphs == NULL ? -1 : core_graphs_same(self->graphs, graphs);
    Py_XDECREF(graphs);
    if (same == 0)
        PyErr_Format(state->error,
                     "layer '%U' cannot be recomputed for backward: torch.compile has compiled it anew since its "
                     "forward, so it would round differently. Run backward before a forward with other sizes, or "
                     "compile it for all sizes at once (dynamic=True).",
                     self->unit->name);
    return same == 1 ? 0 : -1;
}

int core_call_recompute(core_state *state, Call *self, PyObject *saved) {
    if (announce(state, self) < 0 || check_unchanged(state, self) < 0) return -1;
    if (self->away != NULL && call_method_void(self->away, state->str_bring) < 0) return -1;
    if (core_call_enter(state, self) < 0) return -1;
    PyObject *result = core_saved_run(state, saved, 0, self->unit->plain, self->inputs.args, self->inputs.kwargs);
    int status = result == NULL ? -1 : check_graphs(state, self, result);
    Py_XDECREF(result);
    if (status < 0 && PyErr_ExceptionMatches(state->stop)) { /* all needed tensors are recomputed */
        PyErr_Clear();
        status = 0;
    }
    if (core_call_leave(state, self) < 0) status = -1;
    return announce_end(self) < 0 ? -1 : status;
}
