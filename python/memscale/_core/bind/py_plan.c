/* plan.c - plans: requests in, what was decided out. */
#include "core.h"

#include <string.h>

#define MAX_PARETO 1024

typedef struct PlanObject {
    PyObject_HEAD
    ms_plan *plan; /* owned */
} PlanObject;

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
        units[i].input_bytes = boundary;
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

PyObject *core_profile_from_units(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    Py_ssize_t n = 0;
    if (!core_check_count("profile_from_units", n_args, 3)) return NULL;
    ms_profile_view view = {.struct_bytes = sizeof view,
                            .resident_bytes = PyLong_AsLongLong(args[1]),
                            .outside_bytes = PyLong_AsLongLong(args[2])};
    if (PyErr_Occurred()) return NULL;
    ms_unit *units = read_units(args[0], &n);
    if (units == NULL) return NULL;
    view.units = units;
    view.n_units = n;
    ms_profile *profile = NULL;
    ms_status status = ms_profile_create(&view, &profile);
    PyMem_Free(units);
    return core_wrap_profile(core_get_state(module), status, profile);
}

/* ---- Requests ---- */

typedef struct asked {
    ms_plan_request request;
    ms_rates rates;
    ms_device device;
} asked;

/* (profile, half profile or None, rates as JSON or None, n_multiprocessors, budget_bytes, margin_bytes,
 * host_limit_bytes, slowdown_ppm, may_change as bytes or None, actions, states, simulation, flags). What it says is
 * borrowed from the arguments. -1 with an exception. */
static int read_request(PyObject *module, PyObject *const *args, asked *out) {
    core_state *state = core_get_state(module);
    ms_plan_request *r = &out->request;
    *out = (asked){.request = {.struct_bytes = sizeof *r}, .rates = {.struct_bytes = sizeof out->rates}};
    out->device = (ms_device){.struct_bytes = sizeof out->device, .rates = &out->rates};
    int64_t numbers[5];
    uint32_t sets[4];
    for (int i = 0; i < 5; i++) numbers[i] = PyLong_AsLongLong(args[i + 3]);
    for (int i = 0; i < 4; i++) sets[i] = (uint32_t)PyLong_AsLongLong(args[i + 9]);
    if (PyErr_Occurred()) return -1;
    r->profile = core_profile_of(state, args[0]);
    if (r->profile == NULL) return -1;
    if (args[1] != Py_None && (r->half_profile = core_profile_of(state, args[1])) == NULL) return -1;
    if (args[2] != Py_None) {
        Py_ssize_t n;
        const char *text = PyUnicode_AsUTF8AndSize(args[2], &n);
        if (text == NULL) return -1;
        ms_status status = ms_rates_from_json(text, (size_t)n, &out->rates);
        if (status != MS_OK) {
            (void)core_raise(state, status);
            return -1;
        }
        out->device.n_multiprocessors = numbers[0];
        out->device.kind = out->rates.capability > 0 ? MS_DEVICE_GPU : MS_DEVICE_HOST;
        r->device = &out->device;
    }
    if (args[8] != Py_None) {
        char *data;
        Py_ssize_t n;
        ms_profile_view view = {.struct_bytes = sizeof view};
        if (PyBytes_AsStringAndSize(args[8], &data, &n) < 0 || ms_profile_get_view(r->profile, &view) != MS_OK)
            return -1;
        if (n != view.n_units) {
            PyErr_SetString(PyExc_ValueError, "may_change has one byte for each unit");
            return -1;
        }
        r->may_change = (const uint8_t *)data;
    }
    r->budget_bytes = numbers[1];
    r->margin_bytes = numbers[2];
    r->host_limit_bytes = numbers[3];
    r->slowdown_ppm = numbers[4];
    r->actions = sets[0];
    r->model_options = sets[1];
    r->simulation = sets[2];
    r->flags = sets[3];
    return 0;
}

PyObject *core_plan_create(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    asked a;
    if (!core_check_count("plan_create", n_args, 13) || read_request(module, args, &a) < 0) return NULL;
    ms_plan *plan = NULL;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_plan_create(&a.request, &plan);
    Py_END_ALLOW_THREADS
    return wrap_plan(core_get_state(module), status, plan);
}

PyObject *core_plan_pareto(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    asked a;
    if (!core_check_count("plan_pareto", n_args, 14) || read_request(module, args, &a) < 0) return NULL;
    long long capacity = PyLong_AsLongLong(args[13]);
    if (PyErr_Occurred()) return NULL;
    ms_pareto_point *points = PyMem_Calloc(MAX_PARETO, sizeof *points);
    if (points == NULL) return PyErr_NoMemory();
    int64_t n = 0;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_plan_pareto(&a.request, points, capacity < MAX_PARETO ? capacity : MAX_PARETO, &n);
    Py_END_ALLOW_THREADS
    PyObject *list = status == MS_OK ? PyList_New(0) : core_raise(core_get_state(module), status);
    for (int64_t i = 0; list != NULL && i < n; i++) {
        const ms_pareto_point *p = &points[i];
        PyObject *row =
            Py_BuildValue("(LLLLI)", (long long)p->peak_bytes, (long long)p->step_ns, (long long)p->host_bytes,
                          (long long)p->n_changed, (unsigned int)p->model_options);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    PyMem_Free(points);
    return list;
}

PyObject *core_action_name(PyObject *Py_UNUSED(module), PyObject *action) {
    long long value = PyLong_AsLongLong(action);
    return PyErr_Occurred() ? NULL : PyUnicode_FromString(ms_action_name((int32_t)value));
}

PyObject *core_model_option_name(PyObject *Py_UNUSED(module), PyObject *flag) {
    long long value = PyLong_AsLongLong(flag);
    return PyErr_Occurred() ? NULL : PyUnicode_FromString(ms_model_option_name((uint32_t)value));
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
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"baseline_peak_bytes", s.baseline_peak_bytes},
        {"predicted_peak_bytes", s.predicted_peak_bytes},
        {"budget_bytes", s.budget_bytes},
        {"margin_bytes", s.margin_bytes},
        {"host_limit_bytes", s.host_limit_bytes},
        {"host_bytes", s.host_bytes},
        {"baseline_ns", s.baseline_ns},
        {"step_ns", s.step_ns},
        {"slowdown_ppm", s.slowdown_ppm},
        {"batch", s.batch},
        {"length", s.length},
        {"n_units", s.n_units},
        {"n_changed", s.n_changed},
        {"state", s.model_options},
        {"flags", s.flags},
        {"peak_unit", s.peak_unit},
        {"peak_phase", s.peak_phase},
    };
    PyObject *dict = Py_BuildValue("{sNsNsK}", "parts", core_parts_of(s.parts), "skipped",
                                   PyBool_FromLong((long)s.skipped), "fingerprint", (unsigned long long)s.fingerprint);
    for (size_t i = 0; dict != NULL && i < sizeof numbers / sizeof *numbers; i++) {
        PyObject *value = PyLong_FromLongLong(numbers[i].value);
        if (value == NULL || PyDict_SetItemString(dict, numbers[i].name, value) < 0) Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

PyDoc_STRVAR(entries_doc, "entries($self, /)\n--\n\n"
                          "Tuples (name, action, reason, param_bytes, kept_bytes, held_bytes, host_bytes, extra_ns, "
                          "other, other_reason, other_bytes, other_ns); actions are numbers.");

static PyObject *plan_entries(PyObject *self, PyObject *Py_UNUSED(unused)) {
    const ms_plan *plan = ((PlanObject *)self)->plan;
    ms_plan_entry e = {.struct_bytes = sizeof e};
    ms_plan_summary summary = {.struct_bytes = sizeof summary};
    ms_status status = ms_plan_get_summary(plan, &summary);
    PyObject *list = status == MS_OK ? PyList_New(0) : NULL;
    for (int64_t i = 0; list != NULL && i < summary.n_units; i++) {
        status = ms_plan_get_entry(plan, i, &e);
        if (status != MS_OK) {
            Py_CLEAR(list);
            break;
        }
        PyObject *row = Py_BuildValue("(sisLLLLLisLL)", e.name, (int)e.action, ms_reason_name(e.reason),
                                      (long long)e.param_bytes, (long long)e.plain_bytes, (long long)e.held_bytes,
                                      (long long)e.host_bytes, (long long)e.extra_ns, (int)e.other,
                                      ms_reason_name(e.other_reason), (long long)e.other_bytes, (long long)e.other_ns);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list == NULL && status != MS_OK ? core_raise(core_state_of_type(Py_TYPE(self)), status) : list;
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

/* ---- Guards ---- */

/* Owns the plan and the profiles that it borrows. */
typedef struct GuardObject {
    PyObject_HEAD
    ms_shape_plans *guard; /* owned */
    PyObject *held;        /* a tuple: what the request was read from, and the plan */
    asked asked;
} GuardObject;

PyObject *core_guard_create(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    core_state *state = core_get_state(module);
    if (!core_check_count("guard_create", n_args, 14)) return NULL;
    if (!PyObject_TypeCheck(args[13], state->plan_type)) {
        PyErr_SetString(PyExc_TypeError, "a plan of libmemscale is needed");
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(state->guard_type, Py_tp_alloc);
    GuardObject *self = (GuardObject *)alloc(state->guard_type, 0);
    if (self == NULL) return NULL;
    self->held = PyTuple_New(n_args);
    for (Py_ssize_t i = 0; self->held != NULL && i < n_args; i++) {
        Py_INCREF(args[i]);
        if (PyTuple_SetItem(self->held, i, args[i]) < 0) Py_CLEAR(self->held);
    }
    ms_status status = MS_OK;
    if (self->held == NULL || read_request(module, args, &self->asked) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    status = ms_shape_plans_create(&self->asked.request, ((PlanObject *)args[13])->plan, &self->guard);
    if (status == MS_OK) return (PyObject *)self;
    Py_DECREF(self);
    return core_raise(state, status);
}

PyDoc_STRVAR(guard_check_doc,
             "check($self, batch, length, /)\n--\n\n"
             "The plan for an input of this shape as a number: None for the guard's own, else one that "
             "stays the same for the same plan; plan() makes an object of it.");

static PyObject *guard_check(PyObject *object, PyObject *const *args, Py_ssize_t n_args) {
    GuardObject *self = (GuardObject *)object;
    if (!core_check_count("check", n_args, 2)) return NULL;
    int64_t batch = PyLong_AsLongLong(args[0]), length = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    const ms_plan *plan = NULL;
    ms_status status = ms_shape_plans_find(self->guard, batch, length, &plan);
    if (status != MS_OK) return core_raise(core_state_of_type(Py_TYPE(object)), status);
    PyObject *own = PyTuple_GetItem(self->held, 13);
    if (own == NULL) return NULL;
    if (((PlanObject *)own)->plan == plan) Py_RETURN_NONE;
    return PyLong_FromLongLong((long long)(intptr_t)plan);
}

PyDoc_STRVAR(guard_plan_doc, "plan($self, batch, length, /)\n--\n\nThe plan for an input of this shape, a copy.");

static PyObject *guard_plan(PyObject *object, PyObject *const *args, Py_ssize_t n_args) {
    GuardObject *self = (GuardObject *)object;
    if (!core_check_count("plan", n_args, 2)) return NULL;
    int64_t batch = PyLong_AsLongLong(args[0]), length = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    const ms_plan *plan = NULL;
    ms_plan *copy = NULL;
    char *text = NULL;
    ms_status status = ms_shape_plans_find(self->guard, batch, length, &plan);
    if (status == MS_OK) status = ms_plan_to_json(plan, &text);
    if (status == MS_OK) status = ms_plan_from_json(text, strlen(text), &copy);
    ms_free(text);
    return wrap_plan(core_state_of_type(Py_TYPE(object)), status, copy);
}

static void guard_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    GuardObject *self = (GuardObject *)object;
    ms_shape_plans_destroy(self->guard);
    Py_CLEAR(self->held);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef guard_methods[] = {
    {"check", (PyCFunction)(void (*)(void))guard_check, METH_FASTCALL, guard_check_doc},
    {"plan", (PyCFunction)(void (*)(void))guard_plan, METH_FASTCALL, guard_plan_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot guard_slots[] = {
    {Py_tp_doc, (void *)"Plans for batches that change their shape."},
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_methods, guard_methods},
    {0, NULL},
};

static PyType_Spec guard_spec = {
    .name = "memscale._core.Guard",
    .basicsize = sizeof(GuardObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = guard_slots,
};

int core_add_guard(PyObject *module, core_state *state) {
    state->guard_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &guard_spec, NULL);
    return state->guard_type == NULL ? -1 : PyModule_AddType(module, state->guard_type);
}
