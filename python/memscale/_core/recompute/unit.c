/* unit.c - a unit of a model, as its calls see it.
 *
 * Python's memscale._recompute.Unit adds what is needed once for each unit. The lock is held during a repetition, since
 * the unit's modules live in another state meanwhile; the thread that holds it may take it again.
 */
#include "core.h"

#include <stddef.h>
#include <structmember.h>

void core_unit_lock(Unit *unit) {
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

void core_unit_unlock(Unit *unit) {
    if (--unit->depth == 0) PyThread_release_lock(unit->lock);
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

int core_add_unit(PyObject *module, core_state *state) {
    state->unit_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &unit_spec, NULL);
    return state->unit_type == NULL ? -1 : PyModule_AddType(module, state->unit_type);
}
