/* call.c - one call of a unit, and how to repeat it.
 *
 * A Call remembers what the first run of a unit saw: its inputs, the state of its modules, the versions of everything
 * that must not change, random generators and torch's switches. run() is the first run, with a Frame as hook on saved
 * tensors; core_call_repeat(), which the frame asks for in backward, runs the unit again under the same conditions.
 * enter() and leave() are these conditions by themselves.
 *
 * What always holds
 *   - leave() undoes what enter() did, last to first, also after an exception and after an enter() that failed halfway.
 *   - A call keeps no tensor with a history, so it never keeps the graph before it alive.
 *   - One repetition of a unit at a time: its modules live in another state meanwhile (the unit's lock). The lock order
 *     is: the frame's, the unit's, the random lock.
 */
#include "core.h"

#include <pythread.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

typedef struct Unit {
    PyObject_HEAD
    PyObject *name;          /* str */
    PyObject *module;        /* the nn.Module */
    PyObject *plain;         /* its forward, as it was */
    PyObject *on_backward;   /* called before a repetition, or None */
    ModuleState *state;      /* the last capture, if it may be used again */
    PyThread_type_lock lock; /* held during a repetition; waited for without the GIL */
    unsigned long owner;     /* the thread that holds it, `depth` times */
    long depth;
} Unit;

typedef struct Call {
    PyObject_HEAD
    Unit *unit; /* owned */
    core_inputs inputs;
    ModuleState *state;
    PyObject *devices; /* owned tuple: of inputs and parameters */
    PyObject *watched; /* owned list: tensors that must not change, beside the inputs */
    PyObject *buffers; /* owned list of (index, name, module, buffer, copy): to be put back; NULL: none */
    PyObject *switches;
    int64_t *versions; /* of the inputs, then of what is watched */
    char *grad_flags;  /* of the parameters */
    core_randomness random;
    int in_place; /* its repetitions leave no trace in the modules */
    /* While entered: what leave() undoes. */
    unsigned entered;
    PyObject *random_lock; /* owned: the one that was taken */
    PyObject *undo_switches;
    core_randomness random_now;
    char *grad_flags_now;
    int touched; /* did the last repetition change its modules? */
} Call;

/* Steps of enter(), as bits of `entered`. */
enum { UNIT_LOCK = 1, RANDOM_LOCK = 2, SWITCHES = 4, RANDOM = 8, GRAD_ON = 16, MODULES = 32, FLAGS = 64 };

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

/* ---- What is noted before the first run ---- */

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

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *unit, *unit_args, *unit_kwargs;
    static char *names[] = {(char *)"unit", (char *)"args", (char *)"kwargs", NULL};
    core_state *state = core_state_of_type(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!:Call", names, state->unit_type, &unit, &PyTuple_Type,
                                     &unit_args, &PyDict_Type, &unit_kwargs))
        return NULL;
    if (core_check_bound(state) < 0) return NULL;
    if (((Unit *)unit)->lock == NULL) {
        PyErr_SetString(PyExc_TypeError, "Unit.__init__ has not been called");
        return NULL;
    }
    Call *self = (Call *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    Py_INCREF(unit);
    self->unit = (Unit *)unit;
    int status = core_inputs_copy(state, unit_args, unit_kwargs, &self->inputs);
    if (status == 0) self->state = capture(state, self->unit);
    if (self->state != NULL) self->devices = find_devices(state, self);
    if (self->devices != NULL) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
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

static int inputs_changed(core_state *state, Call *self) {
    return has_changed(state, self->inputs.tensors, self->versions);
}

static int watched_changed(core_state *state, Call *self) {
    return has_changed(state, self->watched, self->versions + PyList_Size(self->inputs.tensors));
}

/* Note all that must be put back or must not change. `wanted`: the buffers to be put back, or None for all of them. */
static int observe(core_state *state, Call *self, PyObject *wanted) {
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

static int check_observed(const Call *self) {
    if (self->switches != NULL) return 0;
    PyErr_SetString(PyExc_RuntimeError, "observe() has not been called");
    return -1;
}

/* ---- The conditions of the first run, again ---- */

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
    if (self->random.n == 0 || state->random_lock == NULL) return 0;
    /* Not for a unit on a GPU: its backward has a thread of its own, which must not wait for one that waits for it. */
    int on_gpu = core_has_cuda(state, self->devices);
    if (on_gpu != 0) return on_gpu < 0 ? -1 : 0;
    self->random_lock = state->random_lock; /* a fork may replace it */
    Py_INCREF(self->random_lock);
    if (call_method_void(self->random_lock, state->str_acquire) == 0) self->entered |= RANDOM_LOCK;
    return self->entered & RANDOM_LOCK ? 0 : -1;
}

static int enter_switches(core_state *state, Call *self) {
    PyObject *now = core_switches_note(state);
    if (now == NULL) return -1;
    if (now != self->switches) {
        self->undo_switches = PyObject_CallFunctionObjArgs(state->put_switches, self->switches, now, NULL);
        if (self->undo_switches != NULL) self->entered |= SWITCHES;
    }
    int failed = now != self->switches && self->undo_switches == NULL;
    Py_DECREF(now);
    return failed ? -1 : 0;
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
    PyObject *done = PyObject_CallFunctionObjArgs(state->set_grad_enabled, Py_True, NULL);
    Py_XDECREF(done);
    if (done != NULL) self->entered |= GRAD_ON;
    return done == NULL ? -1 : 0;
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

/* Undo what was entered, last to first. Keeps an exception that is set; -1 if it raised one of its own. */
static int leave(core_state *state, Call *self) {
    core_pending pending = core_set_aside();
    unsigned entered = self->entered;
    self->entered = 0;
    int status = 0;
    if (entered & MODULES && core_modules_leave(state, self->state, &self->touched) < 0) status = -1;
    if (entered & FLAGS && set_grad_flags(state, self, self->grad_flags_now, self->grad_flags) < 0) status = -1;
    if (entered & GRAD_ON) {
        PyObject *done = PyObject_CallFunctionObjArgs(state->set_grad_enabled, Py_False, NULL);
        if (done == NULL) status = -1;
        Py_XDECREF(done);
    }
    if (entered & RANDOM) {
        if (core_randomness_restore(state, &self->random_now, NULL) < 0) status = -1;
        core_randomness_clear(&self->random_now);
    }
    if (entered & SWITCHES) {
        if (call_void(self->undo_switches) < 0) status = -1;
        Py_CLEAR(self->undo_switches);
    }
    if (entered & RANDOM_LOCK && call_method_void(self->random_lock, state->str_release) < 0) status = -1;
    Py_CLEAR(self->random_lock);
    if (entered & UNIT_LOCK) unlock_unit(self->unit);
    core_put_back(pending);
    return status;
}

static int enter(core_state *state, Call *self) {
    if (check_observed(self) < 0) return -1;
    if (self->entered) { /* its own backward runs inside of it */
        PyErr_Format(state->error, "unit '%U' asked for its own saved tensors while it was computed again",
                     self->unit->name);
        return -1;
    }
    if (enter_locks(state, self) == 0 && enter_switches(state, self) == 0 && enter_random(state, self) == 0 &&
        enter_grad(state, self) == 0 && enter_modules(state, self) == 0)
        return 0;
    (void)leave(state, self);
    return -1;
}

/* ---- Running ---- */

/* Call the unit's forward with a frame's method as hook on saved tensors. */
static PyObject *run_hooked(core_state *state, const Call *self, PyObject *pack, PyObject *args, PyObject *kwargs) {
    PyObject *pushed = pack == NULL ? NULL : PyObject_CallFunctionObjArgs(state->push_hooks, pack, state->unpack, NULL);
    if (pushed == NULL) return NULL;
    Py_DECREF(pushed);
    PyObject *result = PyObject_Call(self->unit->plain, args, kwargs);
    core_pending pending = core_set_aside();
    int failed = call_void(state->pop_hooks) < 0;
    core_put_back(pending);
    if (failed) Py_CLEAR(result);
    return result;
}

static int raise_modified(const core_state *state, const Call *self, const char *what) {
    (void)PyErr_Format(state->error,
                       "%s of unit '%U' was modified by an inplace operation after its forward, so the unit cannot be "
                       "computed again for backward. Do not change it before backward (a second backward after "
                       "optimizer.step() does that, too), or train with enable_checkpointing=False.",
                       what, self->unit->name);
    return -1;
}

static int check_unchanged(core_state *state, Call *self) {
    int changed = inputs_changed(state, self);
    if (changed > 0) return raise_modified(state, self, "an input");
    if (changed == 0) changed = watched_changed(state, self);
    if (changed > 0) return raise_modified(state, self, "a parameter or buffer");
    return changed;
}

static int announce(core_state *state, Call *self) {
    if (state->observer != NULL) {
        PyObject *done = PyObject_CallFunctionObjArgs(state->observer, self->unit, NULL);
        Py_XDECREF(done);
        if (done == NULL) return -1;
    }
    return self->unit->on_backward == NULL || self->unit->on_backward == Py_None ? 0
                                                                                 : call_void(self->unit->on_backward);
}

int core_call_repeat(core_state *state, PyObject *object, PyObject *frame) {
    Call *self = (Call *)object;
    if (check_observed(self) < 0 || announce(state, self) < 0 || check_unchanged(state, self) < 0) return -1;
    if (enter(state, self) < 0) return -1;
    PyObject *collect = PyObject_GetAttr(frame, state->str_collect);
    PyObject *result = run_hooked(state, self, collect, self->inputs.args, self->inputs.kwargs);
    int status = result == NULL ? -1 : 0;
    Py_XDECREF(collect);
    Py_XDECREF(result);
    if (status < 0 && PyErr_ExceptionMatches(state->stop)) { /* everything that is needed is there */
        PyErr_Clear();
        status = 0;
    }
    return leave(state, self) < 0 ? -1 : status;
}

/* ---- For Python ---- */

static core_state *state_of(PyObject *object) { return core_state_of_type(Py_TYPE(object)); }

PyDoc_STRVAR(observe_doc,
             "observe($self, buffers, /)\n--\n\n"
             "Note what must be put back or must not change. buffers: a set of (index of the module, name) "
             "to be put back, or None for all of them.");

static PyObject *call_observe(PyObject *object, PyObject *wanted) {
    if (wanted != Py_None && !PyAnySet_Check(wanted)) {
        PyErr_SetString(PyExc_TypeError, "observe() takes a set or None");
        return NULL;
    }
    if (observe(state_of(object), (Call *)object, wanted) < 0) return NULL;
    Py_RETURN_NONE;
}

static int begin(core_state *state, Call *self, int full) {
    core_randomness_clear(&self->random);
    return core_randomness_note(state, &self->random, self->devices, full);
}

PyDoc_STRVAR(begin_doc, "begin($self, /)\n--\n\nThe first run begins: note the generators by their own means.");

static PyObject *call_begin(PyObject *object, PyObject *Py_UNUSED(unused)) {
    if (begin(state_of(object), (Call *)object, 1) < 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(end_doc, "end($self, /)\n--\n\nIt has ended: forget the generators that it did not draw from.");

static PyObject *call_end(PyObject *object, PyObject *Py_UNUSED(unused)) {
    if (core_randomness_keep_moved(state_of(object), &((Call *)object)->random, 0) < 0) return NULL;
    Py_RETURN_NONE;
}

/* The lock of the CPU's generators, for a first run that is known to draw. New reference; NULL without an exception:
 * not needed. */
static PyObject *take_random_lock(core_state *state, Call *self, int draws) {
    int needed = draws && state->random_lock != NULL ? core_has_cuda(state, self->devices) : 1;
    if (needed != 0) return NULL;
    PyObject *lock = state->random_lock; /* a fork may replace it */
    Py_INCREF(lock);
    if (call_method_void(lock, state->str_acquire) == 0) return lock;
    Py_DECREF(lock);
    return NULL;
}

/* The first run, without the lock. Of a unit that draws, only the GPUs' generators are looked at again: whatever else
 * moves until its repetition is put back and forth there. One that does not is held to it. */
static PyObject *run_first(core_state *state, Call *self, int draws, int full, PyObject *args, PyObject *kwargs) {
    PyObject *frame = core_frame_new(state, (PyObject *)self, self->unit->name, 0);
    PyObject *pack = frame == NULL ? NULL : PyObject_GetAttr(frame, state->str_pack);
    PyObject *result = NULL;
    if (pack != NULL && begin(state, self, full) == 0) result = run_hooked(state, self, pack, args, kwargs);
    if (result != NULL && core_randomness_keep_moved(state, &self->random, draws) < 0) Py_CLEAR(result);
    Py_XDECREF(pack);
    Py_XDECREF(frame);
    return result;
}

PyDoc_STRVAR(run_doc, "run($self, buffers, draws, full, in_place, args, kwargs, /)\n--\n\n"
                      "The first run of a unit that was checked before: keeps only what is needed to run it again. "
                      "draws: it draws random numbers; full: also from Python's or numpy's generator; in_place: its "
                      "repetitions leave no trace in its modules.");

static PyObject *call_run(PyObject *object, PyObject *const *args, Py_ssize_t n) {
    Call *self = (Call *)object;
    core_state *state = state_of(object);
    if (!core_check_count("run", n, 6)) return NULL;
    if (!PyAnySet_Check(args[0]) || !PyTuple_Check(args[4]) || !PyDict_Check(args[5])) {
        PyErr_SetString(PyExc_TypeError, "run() takes a set, three flags, a tuple and a dict");
        return NULL;
    }
    self->in_place = args[3] == Py_True;
    if (observe(state, self, args[0]) < 0) return NULL;
    int draws = args[1] == Py_True;
    PyObject *lock = take_random_lock(state, self, draws);
    if (lock == NULL && PyErr_Occurred()) return NULL;
    PyObject *result = run_first(state, self, draws, args[2] == Py_True, args[4], args[5]);
    if (lock == NULL) return result;
    core_pending pending = core_set_aside();
    if (call_method_void(lock, state->str_release) < 0) Py_CLEAR(result);
    core_put_back(pending);
    Py_DECREF(lock);
    return result;
}

PyDoc_STRVAR(enter_doc, "enter($self, /)\n--\n\nAll that the first run depended on is as it was then, until leave().");

static PyObject *call_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
    if (enter(state_of(object), (Call *)object) < 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(leave_doc, "leave($self, /)\n--\n\n"
                        "Back to how it was before enter(). True if the modules were changed meanwhile.");

static PyObject *call_leave(PyObject *object, PyObject *Py_UNUSED(unused)) {
    if (leave(state_of(object), (Call *)object) < 0) return NULL;
    return PyBool_FromLong(((Call *)object)->touched);
}

PyDoc_STRVAR(keep_doc,
             "keep_buffers($self, kept, /)\n--\n\n"
             "Put back only these entries of `buffers`, a set of (index, name); watch the others from now on.");

static PyObject *call_keep_buffers(PyObject *object, PyObject *kept) {
    Call *self = (Call *)object;
    if (!PyAnySet_Check(kept)) {
        PyErr_SetString(PyExc_TypeError, "keep_buffers() takes a set");
        return NULL;
    }
    if (check_observed(self) < 0) return NULL;
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
    if (status < 0 || note_versions(state_of(object), self) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *share_or_none(PyObject *object) {
    PyObject *value = object == NULL ? Py_None : object;
    Py_INCREF(value);
    return value;
}

static PyObject *get_opaque(PyObject *object, void *Py_UNUSED(closure)) {
    return share_or_none(((Call *)object)->inputs.opaque);
}

static PyObject *get_flags(PyObject *object, void *Py_UNUSED(closure)) {
    return share_or_none(((Call *)object)->state->training);
}

static PyObject *get_devices(PyObject *object, void *Py_UNUSED(closure)) {
    return share_or_none(((Call *)object)->devices);
}

static PyObject *get_parameters(PyObject *object, void *Py_UNUSED(closure)) {
    return share_or_none(((Call *)object)->state->parameters);
}

static PyObject *get_buffers(PyObject *object, void *Py_UNUSED(closure)) {
    PyObject *buffers = ((Call *)object)->buffers;
    return buffers == NULL ? PyList_New(0) : share_or_none(buffers);
}

static PyObject *get_draws(PyObject *object, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((Call *)object)->random.n > 0);
}

static PyObject *get_full(PyObject *object, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(core_randomness_is_full(&((Call *)object)->random));
}

static PyObject *changed_as_bool(PyObject *object, int (*changed)(core_state *, Call *)) {
    if (check_observed((Call *)object) < 0) return NULL;
    int answer = changed(state_of(object), (Call *)object);
    return answer < 0 ? NULL : PyBool_FromLong(answer);
}

static PyObject *get_inputs_changed(PyObject *object, void *Py_UNUSED(closure)) {
    return changed_as_bool(object, inputs_changed);
}

static PyObject *get_watched_changed(PyObject *object, void *Py_UNUSED(closure)) {
    return changed_as_bool(object, watched_changed);
}

static PyGetSetDef call_getset[] = {
    {"opaque", get_opaque, NULL, "The type of the first input that cannot be seen into, or None.", NULL},
    {"flags", get_flags, NULL, "The training flags of the modules, a byte each.", NULL},
    {"devices", get_devices, NULL, "The devices of inputs and parameters.", NULL},
    {"parameters", get_parameters, NULL, "The parameters of the modules.", NULL},
    {"buffers", get_buffers, NULL, "What is put back: (index, name, module, buffer, copy).", NULL},
    {"draws", get_draws, NULL, "Did the first run draw random numbers?", NULL},
    {"full", get_full, NULL, "Also from a generator that was noted by its own means?", NULL},
    {"inputs_changed", get_inputs_changed, NULL, "Was an input changed in place since observe()?", NULL},
    {"watched_changed", get_watched_changed, NULL, "Was a parameter, or a tensor that a module keeps?", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef call_methods[] = {
    {"observe", call_observe, METH_O, observe_doc},
    {"begin", call_begin, METH_NOARGS, begin_doc},
    {"end", call_end, METH_NOARGS, end_doc},
    {"run", FAST(call_run), METH_FASTCALL, run_doc},
    {"enter", call_enter, METH_NOARGS, enter_doc},
    {"leave", call_leave, METH_NOARGS, leave_doc},
    {"keep_buffers", call_keep_buffers, METH_O, keep_doc},
    {NULL, NULL, 0, NULL},
};

/* ---- Types ---- */

static int call_traverse(PyObject *object, visitproc visit, void *arg) {
    Call *self = (Call *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->unit);
    Py_VISIT(self->inputs.args);
    Py_VISIT(self->inputs.kwargs);
    Py_VISIT(self->inputs.tensors);
    Py_VISIT(self->state);
    Py_VISIT(self->watched);
    Py_VISIT(self->buffers);
    return core_randomness_visit(&self->random, visit, arg);
}

static int call_clear(PyObject *object) {
    Call *self = (Call *)object;
    Py_CLEAR(self->unit);
    Py_CLEAR(self->inputs.args);
    Py_CLEAR(self->inputs.kwargs);
    Py_CLEAR(self->inputs.tensors);
    Py_CLEAR(self->inputs.opaque);
    Py_CLEAR(self->state);
    Py_CLEAR(self->devices);
    Py_CLEAR(self->watched);
    Py_CLEAR(self->buffers);
    Py_CLEAR(self->switches);
    Py_CLEAR(self->random_lock);
    Py_CLEAR(self->undo_switches);
    core_randomness_clear(&self->random);
    core_randomness_clear(&self->random_now);
    return 0;
}

static void call_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    (void)call_clear(object);
    PyMem_Free(((Call *)object)->versions);
    PyMem_Free(((Call *)object)->grad_flags);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyType_Slot call_slots[] = {
    {Py_tp_doc, (void *)"Call(unit, args, kwargs)\n--\n\nOne call of a unit, and how to repeat it."},
    {Py_tp_new, call_new},
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_traverse, call_traverse},
    {Py_tp_clear, call_clear},
    {Py_tp_methods, call_methods},
    {Py_tp_getset, call_getset},
    {0, NULL},
};

static PyType_Spec call_spec = {
    .name = "memscale._core.Call",
    .basicsize = sizeof(Call),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = call_slots,
};

static int unit_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    Unit *self = (Unit *)object;
    static char *names[] = {(char *)"name", (char *)"module", (char *)"plain", NULL};
    PyObject *values[3];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UOO:Unit", names, &values[0], &values[1], &values[2])) return -1;
    if (self->lock == NULL) self->lock = PyThread_allocate_lock();
    if (self->lock == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    PyObject **slots[] = {&self->name, &self->module, &self->plain};
    for (int i = 0; i < 3; i++) {
        PyObject *old = *slots[i];
        Py_INCREF(values[i]);
        *slots[i] = values[i];
        Py_XDECREF(old);
    }
    return 0;
}

static int unit_traverse(PyObject *object, visitproc visit, void *arg) {
    Unit *self = (Unit *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->module);
    Py_VISIT(self->plain);
    Py_VISIT(self->on_backward);
    Py_VISIT(self->state);
    return 0;
}

static int unit_clear(PyObject *object) {
    Unit *self = (Unit *)object;
    Py_CLEAR(self->module);
    Py_CLEAR(self->plain);
    Py_CLEAR(self->on_backward);
    Py_CLEAR(self->state);
    return 0;
}

static void unit_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    (void)unit_clear(object);
    Py_CLEAR(((Unit *)object)->name);
    if (((Unit *)object)->lock != NULL) PyThread_free_lock(((Unit *)object)->lock);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMemberDef unit_members[] = {
    {"name", T_OBJECT_EX, offsetof(Unit, name), READONLY, "Its name in the model."},
    {"module", T_OBJECT_EX, offsetof(Unit, module), READONLY, "The module."},
    {"plain", T_OBJECT_EX, offsetof(Unit, plain), READONLY, "The module's forward, as it was."},
    {"on_backward", T_OBJECT, offsetof(Unit, on_backward), 0, "Called before the next repetition, or None."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot unit_slots[] = {
    {Py_tp_doc, (void *)"Unit(name, module, plain)\n--\n\nA unit of a model: what a Call calls."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, unit_init},
    {Py_tp_dealloc, unit_dealloc},
    {Py_tp_traverse, unit_traverse},
    {Py_tp_clear, unit_clear},
    {Py_tp_members, unit_members},
    {0, NULL},
};

static PyType_Spec unit_spec = {
    .name = "memscale._core.Unit",
    .basicsize = sizeof(Unit),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = unit_slots,
};

int core_add_call(PyObject *module, core_state *state) {
    state->unit_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &unit_spec, NULL);
    if (state->unit_type == NULL || PyModule_AddType(module, state->unit_type) < 0) return -1;
    state->call_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &call_spec, NULL);
    return state->call_type == NULL ? -1 : PyModule_AddType(module, state->call_type);
}
