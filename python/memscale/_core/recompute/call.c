/* call.c - one call of a unit, and how to repeat it.
 *
 * A Call remembers what the first run of a unit saw: what observe.c notes, random generators and torch's switches.
 * run() is the first run, with a Frame as hook on saved
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

#include <string.h>

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

/* ---- The conditions of the first run, again ---- */

static int check_observed(const Call *self) {
    if (self->switches != NULL) return 0;
    PyErr_SetString(PyExc_RuntimeError, "observe() has not been called");
    return -1;
}

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
    core_unit_lock(self->unit);
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
    if (core_read_grad_flags(state, self->state->parameters, self->grad_flags_now) < 0) return -1;
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
    if (entered & UNIT_LOCK) core_unit_unlock(self->unit);
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
    int changed = core_call_inputs_changed(state, self);
    if (changed > 0) return raise_modified(state, self, "an input");
    if (changed == 0) changed = core_call_watched_changed(state, self);
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
    if (core_call_capture(state, self, unit_args, unit_kwargs) == 0) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

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
    if (core_call_observe(state_of(object), (Call *)object, wanted) < 0) return NULL;
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
    if (core_call_observe(state, self, args[0]) < 0) return NULL;
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
    if (check_observed(self) < 0 || core_call_keep_buffers(state_of(object), self, kept) < 0) return NULL;
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
    return changed_as_bool(object, core_call_inputs_changed);
}

static PyObject *get_watched_changed(PyObject *object, void *Py_UNUSED(closure)) {
    return changed_as_bool(object, core_call_watched_changed);
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

int core_add_call(PyObject *module, core_state *state) {
    state->call_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &call_spec, NULL);
    return state->call_type == NULL ? -1 : PyModule_AddType(module, state->call_type);
}
