/* unit.c - the objects Unit and Call, as Python sees them, and what is learned about a unit.
 *
 * memscale._run.recomputation.Unit, in Python, adds what the executor needs of a unit.
 */
#include "recompute.h"

#include <stddef.h>
#include <structmember.h>

/* ---- Unit ---- */

static void forget_facts(core_facts *facts) {
    Py_CLEAR(facts->training_flags);
    Py_CLEAR(facts->buffers);
}

int core_unit_learn(Unit *unit, core_facts *facts) {
    for (Py_ssize_t i = 0; i < unit->n_facts; i++) {
        int same = PyObject_RichCompareBool(unit->facts[i].training_flags, facts->training_flags, Py_EQ);
        if (same != 1) continue; /* bytes always compare */
        core_facts old = unit->facts[i];
        unit->facts[i] = *facts;
        forget_facts(&old);
        return 0;
    }
    core_facts *grown = PyMem_Realloc(unit->facts, (size_t)(unit->n_facts + 1) * sizeof *grown);
    if (grown == NULL) {
        forget_facts(facts);
        (void)PyErr_NoMemory();
        return -1;
    }
    unit->facts = grown;
    unit->facts[unit->n_facts++] = *facts;
    return 0;
}

/* ---- What is known of results that were kept ---- */

#define MAX_TRUSTS 4096 /* a forward that never repeats itself keeps nothing more */

int core_unit_trust(const Unit *unit, uint64_t fingerprint) {
    for (Py_ssize_t i = 0; i < unit->n_trusts; i++)
        if (unit->trusts[i].fingerprint == fingerprint) return unit->trusts[i].trust;
    return unit->n_trusts < MAX_TRUSTS ? TRUST_UNKNOWN : TRUST_NEVER;
}

int core_unit_set_trust(Unit *unit, uint64_t fingerprint, int trust) {
    for (Py_ssize_t i = 0; i < unit->n_trusts; i++) {
        if (unit->trusts[i].fingerprint != fingerprint) continue;
        if (unit->trusts[i].trust != TRUST_NEVER) unit->trusts[i].trust = trust;
        return 0;
    }
    struct core_trusts *grown = PyMem_Realloc(unit->trusts, (size_t)(unit->n_trusts + 1) * sizeof *grown);
    if (grown == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    unit->trusts = grown;
    unit->trusts[unit->n_trusts++] = (struct core_trusts){fingerprint, trust};
    return 0;
}

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
    Py_VISIT(self->on_end);
    Py_VISIT(self->on_check);
    Py_VISIT(self->on_save);
    Py_VISIT(self->put_inputs);
    Py_VISIT(self->state);
    return 0;
}

static int unit_clear(PyObject *object) {
    Unit *self = (Unit *)object;
    Py_CLEAR(self->module);
    Py_CLEAR(self->plain);
    Py_CLEAR(self->on_backward);
    Py_CLEAR(self->on_end);
    Py_CLEAR(self->on_check);
    Py_CLEAR(self->on_save);
    Py_CLEAR(self->put_inputs);
    Py_CLEAR(self->state);
    return 0;
}

static void unit_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    (void)unit_clear(object);
    Unit *self = (Unit *)object;
    Py_CLEAR(self->name);
    for (Py_ssize_t i = 0; i < self->n_facts; i++) forget_facts(&self->facts[i]);
    PyMem_Free(self->facts);
    PyMem_Free(self->trusts);
    if (self->lock != NULL) PyThread_free_lock(self->lock);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMemberDef unit_members[] = {
    {"name", T_OBJECT_EX, offsetof(Unit, name), READONLY, "Its name in the model."},
    {"module", T_OBJECT_EX, offsetof(Unit, module), READONLY, "The module."},
    {"plain", T_OBJECT_EX, offsetof(Unit, plain), 0,
     "The module's forward, as it was; its compiled call where it was compiled in place."},
    {"on_backward", T_OBJECT, offsetof(Unit, on_backward), 0, "Called before each recomputation, or None."},
    {"on_end", T_OBJECT, offsetof(Unit, on_end), 0, "Called after each recomputation, or None."},
    {"on_check", T_OBJECT, offsetof(Unit, on_check), 0,
     "Called with 0 before the first run of a check, 1 before the second, 2 after it; or None."},
    {"put_inputs", T_OBJECT, offsetof(Unit, put_inputs), 0,
     "Called with a list of the call's own aliases of inputs after its forward, or None. What it returns, unless "
     "that is None, is told bring() before the recomputation."},
    {"keeps", T_UINT, offsetof(Unit, keeps), 0,
     "The results that a recomputation need not compute (Action.keeps), of calls from now on."},
    {"has_compiled", T_BOOL, offsetof(Unit, has_compiled), 0,
     "Does its forward call compiled code? No function mode is put around that."},
    {"on_save", T_OBJECT, offsetof(Unit, on_save), 0,
     "Called as on_save(call, index, tensor) for each tensor that autograd saves in forward, and again for the tensor "
     "that takes its place in a recomputation; or None."},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *get_trusts(PyObject *object, void *Py_UNUSED(closure)) {
    static const char *const names[] = {"unknown", "equal", "never"};
    Unit *self = (Unit *)object;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < self->n_trusts; i++) {
        PyObject *name = PyUnicode_FromString(names[self->trusts[i].trust]);
        if (name == NULL || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyGetSetDef unit_getset[] = {
    {"trusts", get_trusts, NULL,
     "Of each product and attention whose kept result was compared, whether it was 'equal', or 'never' is kept again.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(unit_run_doc,
             "run($self, args, kwargs, /)\n--\n\n"
             "Run the forward so that it can be recomputed in backward. Returns the output; where that is "
             "not possible yet, a Call to continue with: an input is opaque, or the unit has not been "
             "checked with these training flags.");

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef unit_methods[] = {
    /* A subclass made in Python has no module state: the defining class leads to it. */
    {"run", FAST(core_unit_run), METH_METHOD | METH_FASTCALL | METH_KEYWORDS, unit_run_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot unit_slots[] = {
    {Py_tp_doc, (void *)"Unit(name, module, plain)\n--\n\nA unit of a model, and what is known about it."},
    {Py_tp_methods, unit_methods},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, unit_init},
    {Py_tp_dealloc, unit_dealloc},
    {Py_tp_traverse, unit_traverse},
    {Py_tp_clear, unit_clear},
    {Py_tp_members, unit_members},
    {Py_tp_getset, unit_getset},
    {0, NULL},
};

static PyType_Spec unit_spec = {
    .name = "memscale._core.Unit",
    .basicsize = sizeof(Unit),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = unit_slots,
};

/* ---- Call ---- */

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *unit, *unit_args, *unit_kwargs;
    static char *names[] = {(char *)"unit", (char *)"args", (char *)"kwargs", NULL};
    core_state *state = core_state_of_type(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!:Call", names, state->unit_type, &unit, &PyTuple_Type,
                                     &unit_args, &PyDict_Type, &unit_kwargs))
        return NULL;
    return (PyObject *)core_call_new(state, (Unit *)unit, unit_args, unit_kwargs);
}

static PyObject *get_opaque(PyObject *object, void *Py_UNUSED(closure)) {
    PyObject *opaque = ((Call *)object)->inputs.opaque;
    if (opaque == NULL) Py_RETURN_NONE;
    Py_INCREF(opaque);
    return opaque;
}

static PyGetSetDef call_getset[] = {
    {"opaque", get_opaque, NULL, "The type of the first input that cannot be looked into, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(call_run_doc, "run($self, args, kwargs, /)\n--\n\n"
                           "Run the forward so that it can be recomputed in backward. For a unit that has not been "
                           "checked, the worst is assumed: it draws from all generators and changes all its buffers.");
PyDoc_STRVAR(run_checked_doc,
             "run_checked($self, args, kwargs, /)\n--\n\n"
             "Run the forward, keeping everything that it saves, then recompute it at once and compare. Returns the "
             "output, what is wrong as (text, is it a surprise?) or None, and the tensors that were saved. If nothing "
             "is wrong they are freed, and the unit knows what its recomputation needs.");

static PyMethodDef call_methods[] = {
    {"run", FAST(core_call_run), METH_FASTCALL, call_run_doc},
    {"run_checked", FAST(core_call_run_checked), METH_FASTCALL, run_checked_doc},
    {NULL, NULL, 0, NULL},
};

static int call_traverse(PyObject *object, visitproc visit, void *arg) {
    Call *self = (Call *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->unit);
    Py_VISIT(self->inputs.args);
    Py_VISIT(self->inputs.kwargs);
    Py_VISIT(self->inputs.tensors);
    Py_VISIT(self->inputs.own);
    Py_VISIT(self->away);
    Py_VISIT(self->graphs);
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
    Py_CLEAR(self->inputs.own);
    Py_CLEAR(self->away);
    Py_CLEAR(self->graphs);
    Py_CLEAR(self->inputs.opaque);
    Py_CLEAR(self->state);
    Py_CLEAR(self->devices);
    Py_CLEAR(self->watched);
    Py_CLEAR(self->buffers);
    Py_CLEAR(self->switches);
    Py_CLEAR(self->random_lock);
    Py_CLEAR(self->switches_now);
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
    {Py_tp_doc,
     (void
          *)"Call(unit, args, kwargs)\n--\n\nOne call of a unit: its inputs and all else that its forward depends on."},
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

int core_add_unit(PyObject *module, core_state *state) {
    state->unit_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &unit_spec, NULL);
    if (state->unit_type == NULL || PyModule_AddType(module, state->unit_type) < 0) return -1;
    state->call_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &call_spec, NULL);
    return state->call_type == NULL ? -1 : PyModule_AddType(module, state->call_type);
}
