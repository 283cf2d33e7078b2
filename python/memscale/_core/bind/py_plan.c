/* py_plan.c - Plan: what was decided. */
#include "bind.h"

#include <stddef.h>

typedef struct PlanObject {
    PyObject_HEAD
    ms_plan *plan; /* owned */
} PlanObject;

PyObject *core_wrap_plan(core_state *state, ms_status status, ms_plan *plan) {
    if (status != MS_OK) return core_raise(state, status);
    PlanObject *object = core_allocate(state->plan_type);
    if (object == NULL)
        ms_plan_destroy(plan);
    else
        object->plan = plan;
    return (PyObject *)object;
}

const ms_plan *core_plan_of(core_state *state, PyObject *object) {
    if (PyObject_TypeCheck(object, state->plan_type)) return ((PlanObject *)object)->plan;
    PyErr_SetString(PyExc_TypeError, "a plan of libmemscale is needed");
    return NULL;
}

PyObject *core_plan_from_json(PyObject *module, PyObject *object) {
    size_t n;
    const char *text = core_utf8(object, &n);
    if (text == NULL) return NULL;
    ms_plan *plan = NULL;
    ms_status status = ms_plan_from_json(text, n, &plan);
    return core_wrap_plan(core_get_state(module), status, plan);
}

PyDoc_STRVAR(summary_doc, "summary($self, /)\n--\n\nThe plan's figures as a dict.");

static PyObject *plan_summary(PyObject *self, PyObject *Py_UNUSED(unused)) {
    ms_plan_summary summary = {.struct_bytes = sizeof summary};
    int64_t n;
    const ms_field *fields = ms_plan_summary_fields(&n);
    ms_status status = ms_plan_get_summary(((PlanObject *)self)->plan, &summary);
    return status == MS_OK ? core_fields_of(fields, n, &summary)
                           : core_raise(core_state_of_type(Py_TYPE(self)), status);
}

PyDoc_STRVAR(entries_doc, "entries($self, /)\n--\n\nWhat each unit got: a dict of ms_plan_entry's fields each.");

static PyObject *plan_entries(PyObject *self, PyObject *Py_UNUSED(unused)) {
    const ms_plan *plan = ((PlanObject *)self)->plan;
    ms_plan_entry entry = {.struct_bytes = sizeof entry};
    ms_plan_summary summary = {.struct_bytes = sizeof summary};
    int64_t n;
    const ms_field *fields = ms_plan_entry_fields(&n);
    ms_status status = ms_plan_get_summary(plan, &summary);
    PyObject *list = status == MS_OK ? PyList_New(0) : core_raise(core_state_of_type(Py_TYPE(self)), status);
    for (int64_t i = 0; list != NULL && i < summary.n_units; i++) {
        status = ms_plan_get_entry(plan, i, &entry);
        PyObject *row =
            status == MS_OK ? core_fields_of(fields, n, &entry) : core_raise(core_state_of_type(Py_TYPE(self)), status);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

PyDoc_STRVAR(explain_doc, "explain($self, /)\n--\n\nThe plan for people: a paragraph and a table.");

static PyObject *plan_explain(PyObject *self, PyObject *Py_UNUSED(unused)) {
    char *text = NULL;
    ms_status status = ms_plan_explain(((PlanObject *)self)->plan, &text);
    return status == MS_OK ? core_text_to_str(text) : core_raise(core_state_of_type(Py_TYPE(self)), status);
}

PyDoc_STRVAR(to_json_doc, "to_json($self, /)\n--\n\nThe plan as JSON text.");

static PyObject *plan_to_json(PyObject *self, PyObject *Py_UNUSED(unused)) {
    char *text = NULL;
    ms_status status = ms_plan_to_json(((PlanObject *)self)->plan, &text);
    return status == MS_OK ? core_text_to_str(text) : core_raise(core_state_of_type(Py_TYPE(self)), status);
}

PyDoc_STRVAR(check_doc, "check_units($self, units, /)\n--\n\n"
                        "Raise unless the plan is for exactly these units: tuples (name, param_bytes).");

/* Names are borrowed. NULL with an exception, else PyMem_Free. */
static ms_unit *read_units(PyObject *list, Py_ssize_t *out_n) {
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "units must be a list of tuples");
        return NULL;
    }
    Py_ssize_t n = PyList_Size(list);
    ms_unit *units = PyMem_Calloc((size_t)n + 1, sizeof *units);
    if (units == NULL) {
        (void)PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        long long param_bytes;
        PyObject *row = PyList_GetItem(list, i);
        if (!PyTuple_Check(row)) PyErr_SetString(PyExc_TypeError, "units must be a list of tuples");
        if (PyErr_Occurred() || !PyArg_ParseTuple(row, "sL", &units[i].name, &param_bytes)) {
            PyMem_Free(units);
            return NULL;
        }
        units[i].param_bytes = param_bytes;
    }
    *out_n = n;
    return units;
}

static PyObject *plan_check_units(PyObject *self, PyObject *list) {
    Py_ssize_t n = 0;
    ms_unit *units = read_units(list, &n);
    if (units == NULL) return NULL;
    ms_status status = ms_plan_check_units(((PlanObject *)self)->plan, units, n);
    PyMem_Free(units);
    if (status != MS_OK) return core_raise(core_state_of_type(Py_TYPE(self)), status);
    Py_RETURN_NONE;
}

static void plan_dealloc(PyObject *self) {
    ms_plan_destroy(((PlanObject *)self)->plan);
    core_free(self);
}

static PyMethodDef plan_methods[] = {
    {"summary", plan_summary, METH_NOARGS, summary_doc},  {"entries", plan_entries, METH_NOARGS, entries_doc},
    {"explain", plan_explain, METH_NOARGS, explain_doc},  {"to_json", plan_to_json, METH_NOARGS, to_json_doc},
    {"check_units", plan_check_units, METH_O, check_doc}, {NULL, NULL, 0, NULL},
};

static PyType_Slot plan_slots[] = {
    {Py_tp_doc, (void *)"A plan of libmemscale."},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_methods, plan_methods},
    {0, NULL},
};

static PyType_Spec plan_spec = {
    .name = "memscale._core.Plan",
    .basicsize = sizeof(PlanObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = plan_slots,
};

int core_add_plan(PyObject *module, core_state *state) {
    state->plan_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &plan_spec, NULL);
    return state->plan_type == NULL ? -1 : PyModule_AddType(module, state->plan_type);
}
