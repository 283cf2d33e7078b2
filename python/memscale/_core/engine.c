/* engine.c - the calls into libmemscale: hardware, units, plans.
 *
 * Validate under the GIL, release it, call the core, take it back, raise.
 */
#include "core.h"

#include <string.h>

typedef struct PlanObject {
    PyObject_HEAD
    ms_plan *plan; /* owned */
} PlanObject;

PyObject *core_text_to_str(char *text) {
    PyObject *result = PyUnicode_FromString(text);
    ms_free(text);
    return result;
}

PyObject *core_hw_detect(PyObject *module, PyObject *root) {
    const char *path = PyUnicode_AsUTF8AndSize(root, NULL);
    if (path == NULL) return NULL;
    ms_hw hw = {.struct_bytes = sizeof hw};
    char *text = NULL;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_hw_detect(path, NULL, &hw);
    if (status == MS_OK) status = ms_hw_to_json(&hw, &text);
    Py_END_ALLOW_THREADS
    return status == MS_OK ? core_text_to_str(text) : core_raise(core_get_state(module), status);
}

PyObject *core_hw_from_json(PyObject *module, PyObject *object) {
    Py_ssize_t n;
    const char *text = PyUnicode_AsUTF8AndSize(object, &n);
    if (text == NULL) return NULL;
    ms_hw hw = {.struct_bytes = sizeof hw};
    char *canonical = NULL;
    ms_status status = ms_hw_from_json(text, (size_t)n, &hw);
    if (status == MS_OK) status = ms_hw_to_json(&hw, &canonical);
    return status == MS_OK ? core_text_to_str(canonical) : core_raise(core_get_state(module), status);
}

PyObject *core_hash64(PyObject *Py_UNUSED(module), PyObject *data) {
    char *bytes;
    Py_ssize_t n;
    if (PyBytes_AsStringAndSize(data, &bytes, &n) < 0) return NULL;
    return PyLong_FromUnsignedLongLong(ms_hash64(bytes, (size_t)n, 0));
}

/* Five arrays of one length, as bytes, to an array of modules; NULL with an exception, else PyMem_Free. */
static ms_module *read_modules(PyObject *const *args, Py_ssize_t *out_n) {
    static const Py_ssize_t item_bytes[] = {8, 8, 8, 8, 4};
    char *data[5];
    Py_ssize_t n = 0;
    for (int i = 0; i < 5; i++) {
        Py_ssize_t n_bytes;
        if (PyBytes_AsStringAndSize(args[i], &data[i], &n_bytes) < 0) return NULL;
        if (i == 0) n = n_bytes / item_bytes[0];
        if (n_bytes == n * item_bytes[i]) continue;
        PyErr_SetString(PyExc_ValueError, "find_units(): the arrays differ in length");
        return NULL;
    }
    ms_module *modules = PyMem_Calloc((size_t)n + 1, sizeof *modules);
    if (modules == NULL) {
        (void)PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        memcpy(&modules[i].parent, data[0] + i * 8, 8);
        memcpy(&modules[i].class_hash, data[1] + i * 8, 8);
        memcpy(&modules[i].own_hash, data[2] + i * 8, 8);
        memcpy(&modules[i].param_bytes, data[3] + i * 8, 8);
        memcpy(&modules[i].flags, data[4] + i * 4, 4);
    }
    *out_n = n;
    return modules;
}

PyObject *core_find_units(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    Py_ssize_t n = 0;
    if (!core_check_count("find_units", n_args, 5)) return NULL;
    ms_module *modules = read_modules(args, &n);
    if (modules == NULL) return NULL;
    int64_t n_units = 0, *units = PyMem_Calloc((size_t)n + 1, sizeof *units);
    PyObject *result = NULL;
    if (units == NULL) {
        (void)PyErr_NoMemory();
    } else {
        ms_status status;
        Py_BEGIN_ALLOW_THREADS
        status = ms_units_find(modules, n, units, &n_units);
        Py_END_ALLOW_THREADS
        result = status == MS_OK ? PyList_New(0) : core_raise(core_get_state(module), status);
    }
    for (int64_t i = 0; result != NULL && i < n_units; i++) {
        PyObject *index = PyLong_FromLongLong(units[i]);
        if (index == NULL || PyList_Append(result, index) < 0) Py_CLEAR(result);
        Py_XDECREF(index);
    }
    PyMem_Free(units);
    PyMem_Free(modules);
    return result;
}

/* A list of tuples to an array of units, whose names are borrowed from the list; else NULL with an exception. */
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
        long long params, saved, boundary, rows;
        unsigned int flags;
        PyObject *row = PyList_GetItem(list, i);
        if (!PyTuple_Check(row)) {
            PyErr_SetString(PyExc_TypeError, "units must be a list of tuples");
            PyMem_Free(units);
            return NULL;
        }
        if (!PyArg_ParseTuple(row, "sLLLLI", &units[i].name, &params, &saved, &boundary, &rows, &flags)) {
            PyMem_Free(units);
            return NULL;
        }
        units[i].param_bytes = params;
        units[i].saved_bytes = saved;
        units[i].boundary_bytes = boundary;
        units[i].n_rows = rows;
        units[i].flags = flags;
    }
    *out_n = n;
    return units;
}

static PyObject *wrap_plan(core_state *state, ms_status status, ms_plan *plan) {
    if (status != MS_OK) return core_raise(state, status);
    allocfunc alloc = (allocfunc)PyType_GetSlot(state->plan_type, Py_tp_alloc);
    PlanObject *object = (PlanObject *)alloc(state->plan_type, 0);
    if (object == NULL)
        ms_plan_destroy(plan);
    else
        object->plan = plan;
    return (PyObject *)object;
}

PyObject *core_plan_create(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    Py_ssize_t n = 0;
    if (!core_check_count("plan_create", n_args, 6)) return NULL;
    int64_t numbers[5];
    for (int i = 0; i < 5; i++) {
        numbers[i] = PyLong_AsLongLong(args[i + 1]);
        if (numbers[i] == -1 && PyErr_Occurred()) return NULL;
    }
    ms_unit *units = read_units(args[0], &n);
    if (units == NULL) return NULL;
    ms_plan_request request = {.struct_bytes = sizeof request,
                               .units = units,
                               .n_units = n,
                               .state_bytes = numbers[0],
                               .rest_bytes = numbers[1],
                               .budget_bytes = numbers[2],
                               .slowdown_ppm = numbers[3],
                               .flags = (uint32_t)numbers[4]};
    ms_plan *plan = NULL;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_plan_create(&request, &plan);
    Py_END_ALLOW_THREADS
    PyMem_Free(units);
    return wrap_plan(core_get_state(module), status, plan);
}

PyObject *core_plan_from_json(PyObject *module, PyObject *object) {
    Py_ssize_t n;
    const char *text = PyUnicode_AsUTF8AndSize(object, &n);
    if (text == NULL) return NULL;
    ms_plan *plan = NULL;
    ms_status status = ms_plan_from_json(text, (size_t)n, &plan);
    return wrap_plan(core_get_state(module), status, plan);
}

PyDoc_STRVAR(summary_doc, "summary($self, /)\n--\n\nThe plan's figures as a dict.");

static PyObject *plan_summary(PyObject *self, PyObject *Py_UNUSED(unused)) {
    ms_plan_summary s = {.struct_bytes = sizeof s};
    ms_status status = ms_plan_get_summary(((PlanObject *)self)->plan, &s);
    if (status != MS_OK) return core_raise(core_state_of_type(Py_TYPE(self)), status);
    return Py_BuildValue("{sLsLsLsLsLsLsNsK}", "baseline_peak_bytes", (long long)s.baseline_peak_bytes,
                         "predicted_peak_bytes", (long long)s.predicted_peak_bytes, "budget_bytes",
                         (long long)s.budget_bytes, "slowdown_ppm", (long long)s.slowdown_ppm, "n_units",
                         (long long)s.n_units, "n_recomputed", (long long)s.n_recomputed, "skipped",
                         PyBool_FromLong((long)s.skipped), "fingerprint", (unsigned long long)s.fingerprint);
}

PyDoc_STRVAR(entries_doc, "entries($self, /)\n--\n\n"
                          "Tuples (name, action, reason, param_bytes, saved_bytes, boundary_bytes, cost_ppm).");

static PyObject *plan_entries(PyObject *self, PyObject *Py_UNUSED(unused)) {
    const ms_plan *plan = ((PlanObject *)self)->plan;
    ms_plan_entry entry = {.struct_bytes = sizeof entry};
    ms_plan_summary summary = {.struct_bytes = sizeof summary};
    ms_status status = ms_plan_get_summary(plan, &summary);
    PyObject *list = status == MS_OK ? PyList_New(0) : NULL;
    for (int64_t i = 0; list != NULL && i < summary.n_units; i++) {
        status = ms_plan_get_entry(plan, i, &entry);
        if (status != MS_OK) {
            Py_CLEAR(list);
            break;
        }
        PyObject *row =
            Py_BuildValue("(sssLLLL)", entry.unit.name, ms_action_name(entry.action), ms_reason_name(entry.reason),
                          (long long)entry.unit.param_bytes, (long long)entry.unit.saved_bytes,
                          (long long)entry.unit.boundary_bytes, (long long)entry.cost_ppm);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list == NULL && status != MS_OK ? core_raise(core_state_of_type(Py_TYPE(self)), status) : list;
}

PyDoc_STRVAR(to_json_doc, "to_json($self, /)\n--\n\nThe plan as JSON text.");

static PyObject *plan_to_json(PyObject *self, PyObject *Py_UNUSED(unused)) {
    char *text = NULL;
    ms_status status = ms_plan_to_json(((PlanObject *)self)->plan, &text);
    return status == MS_OK ? core_text_to_str(text) : core_raise(core_state_of_type(Py_TYPE(self)), status);
}

PyDoc_STRVAR(check_doc, "check_units($self, units, /)\n--\n\nRaise unless the plan is for exactly these units.");

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
    PyTypeObject *type = Py_TYPE(self);
    ms_plan_destroy(((PlanObject *)self)->plan);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef plan_methods[] = {
    {"summary", plan_summary, METH_NOARGS, summary_doc},
    {"entries", plan_entries, METH_NOARGS, entries_doc},
    {"to_json", plan_to_json, METH_NOARGS, to_json_doc},
    {"check_units", plan_check_units, METH_O, check_doc},
    {NULL, NULL, 0, NULL},
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
