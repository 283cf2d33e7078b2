/* profile.c - profiles: traces in, simulations out.
 *
 * A trace comes as a tuple of bytes, arrays of 64-bit integers in the layout of memscale.h, which are borrowed for the
 * call.
 */
#include "core.h"

#include <string.h>

typedef struct ProfileObject {
    PyObject_HEAD
    ms_profile *profile; /* owned */
} ProfileObject;

PyObject *core_wrap_profile(core_state *state, ms_status status, ms_profile *profile) {
    if (status != MS_OK) return core_raise(state, status);
    allocfunc alloc = (allocfunc)PyType_GetSlot(state->profile_type, Py_tp_alloc);
    ProfileObject *object = (ProfileObject *)alloc(state->profile_type, 0);
    if (object == NULL)
        ms_profile_destroy(profile);
    else
        object->profile = profile;
    return (PyObject *)object;
}

const ms_profile *core_profile_of(core_state *state, PyObject *object) {
    if (PyObject_TypeCheck(object, state->profile_type)) return ((ProfileObject *)object)->profile;
    PyErr_SetString(PyExc_TypeError, "a profile of libmemscale is needed");
    return NULL;
}

/* ---- Traces ---- */

static int read_array(PyObject *bytes, size_t item_bytes, const void **out, int64_t *out_n) {
    char *data;
    Py_ssize_t n;
    if (PyBytes_AsStringAndSize(bytes, &data, &n) < 0) return -1;
    if ((size_t)n % item_bytes != 0) {
        PyErr_SetString(PyExc_ValueError, "an array of a trace is cut off");
        return -1;
    }
    *out = data;
    *out_n = n / (Py_ssize_t)item_bytes;
    return 0;
}

/* A list of strings to an array of texts, which belong to the strings; NULL with an exception, else PyMem_Free. */
static const char **read_names(PyObject *list, int64_t *out_n) {
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "names must be a list of strings");
        return NULL;
    }
    Py_ssize_t n = PyList_Size(list);
    const char **names = PyMem_Calloc((size_t)n + 1, sizeof *names);
    if (names == NULL) {
        (void)PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        names[i] = PyUnicode_AsUTF8AndSize(PyList_GetItem(list, i), NULL);
        if (names[i] != NULL) continue;
        PyMem_Free(names);
        return NULL;
    }
    *out_n = n;
    return names;
}

/* (events, ops, operands, kinds, names); the names are owned by the caller, PyMem_Free. */
static int read_trace(PyObject *tuple, ms_trace *out) {
    PyObject *events, *ops, *operands, *kinds, *names;
    *out = (ms_trace){.struct_bytes = sizeof *out};
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a trace is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "SSSSO", &events, &ops, &operands, &kinds, &names)) return -1;
    if (read_array(events, sizeof *out->events, (const void **)&out->events, &out->n_events) < 0 ||
        read_array(ops, sizeof *out->ops, (const void **)&out->ops, &out->n_ops) < 0 ||
        read_array(operands, sizeof *out->operands, (const void **)&out->operands, &out->n_operands) < 0 ||
        read_array(kinds, sizeof *out->kinds, (const void **)&out->kinds, &out->n_storages) < 0)
        return -1;
    out->names = read_names(names, &out->n_names);
    return out->names == NULL ? -1 : 0;
}

PyObject *core_profile_from_traces(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    if (!core_check_count("profile_from_traces", n_args, 6)) return NULL;
    ms_trace kept = {0}, recomputed = {0};
    ms_profile_request request = {.struct_bytes = sizeof request, .kept = &kept};
    int64_t n_sizes = 0;
    PyObject *result = NULL;
    request.batch = PyLong_AsLongLong(args[4]);
    request.length = PyLong_AsLongLong(args[5]);
    if (PyErr_Occurred()) return NULL;
    const char **names = read_names(args[0], &request.n_units);
    request.unit_names = names;
    if (names == NULL || read_array(args[1], 8, (const void **)&request.unit_param_bytes, &n_sizes) < 0) goto done;
    if (n_sizes != request.n_units) {
        PyErr_SetString(PyExc_ValueError, "profile_from_traces(): as many sizes as names are needed");
        goto done;
    }
    if (read_trace(args[2], &kept) < 0 || (args[3] != Py_None && read_trace(args[3], &recomputed) < 0)) goto done;
    if (args[3] != Py_None) request.recomputed = &recomputed;
    ms_profile *profile = NULL;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_profile_from_traces(&request, &profile);
    Py_END_ALLOW_THREADS
    result = core_wrap_profile(core_get_state(module), status, profile);
done:
    PyMem_Free((void *)kept.names);
    PyMem_Free((void *)recomputed.names);
    PyMem_Free((void *)names);
    return result;
}

PyObject *core_profile_from_json(PyObject *module, PyObject *object) {
    Py_ssize_t n;
    const char *text = PyUnicode_AsUTF8AndSize(object, &n);
    if (text == NULL) return NULL;
    ms_profile *profile = NULL;
    ms_status status = ms_profile_from_json(text, (size_t)n, &profile);
    return core_wrap_profile(core_get_state(module), status, profile);
}

/* ---- Shapes ---- */

PyObject *core_profile_fit(PyObject *module, PyObject *list) {
    core_state *state = core_get_state(module);
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "profile_fit() takes a list of profiles");
        return NULL;
    }
    PyObject *held = PyList_AsTuple(list); /* the list may change while the GIL is released */
    if (held == NULL) return NULL;
    Py_ssize_t n = PyTuple_Size(held);
    const ms_profile **profiles = PyMem_Calloc((size_t)n + 1, sizeof *profiles);
    PyObject *result = NULL;
    if (profiles == NULL) (void)PyErr_NoMemory();
    for (Py_ssize_t i = 0; profiles != NULL && i < n; i++) {
        PyObject *item = PyTuple_GetItem(held, i);
        if (!PyObject_TypeCheck(item, state->profile_type)) {
            PyErr_SetString(PyExc_TypeError, "profile_fit() takes a list of profiles");
            goto done;
        }
        profiles[i] = ((ProfileObject *)item)->profile;
    }
    if (profiles != NULL) {
        ms_profile *profile = NULL;
        ms_status status;
        Py_BEGIN_ALLOW_THREADS
        status = ms_profile_fit(profiles, n, &profile);
        Py_END_ALLOW_THREADS
        result = core_wrap_profile(state, status, profile);
    }
done:
    PyMem_Free((void *)profiles);
    Py_DECREF(held);
    return result;
}

PyDoc_STRVAR(at_doc, "at($self, batch, length, /)\n--\n\nThe profile at another shape, where profile_fit() made it.");

static PyObject *profile_at(PyObject *self, PyObject *args) {
    long long batch, length;
    if (!PyArg_ParseTuple(args, "LL:at", &batch, &length)) return NULL;
    ms_profile *profile = NULL;
    ms_status status = ms_profile_reshape(((ProfileObject *)self)->profile, batch, length, &profile);
    return core_wrap_profile(core_state_of_type(Py_TYPE(self)), status, profile);
}

/* ---- Simulations ---- */

PyObject *core_parts_of(const int64_t *parts) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < MS_N_CATEGORIES; i++) {
        PyObject *value = PyLong_FromLongLong(parts[i]);
        if (value == NULL || PyList_Append(list, value) < 0) Py_CLEAR(list);
        Py_XDECREF(value);
    }
    return list;
}

static PyObject *points_of(const ms_simulation *sim) {
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < ms_simulation_count_segments(sim); i++) {
        ms_simulation_segment p = {.struct_bytes = sizeof p};
        PyObject *row = NULL;
        if (ms_simulation_get_segment(sim, i, &p) == MS_OK)
            row = Py_BuildValue("(iiLLLN)", (int)p.unit, (int)p.phase, (long long)p.peak_bytes, (long long)p.end_bytes,
                                (long long)p.duration_ns, core_parts_of(p.parts));
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *summary_of(const ms_simulation *sim) {
    ms_simulation_summary s = {.struct_bytes = sizeof s};
    if (ms_simulation_get_summary(sim, &s) != MS_OK) return NULL;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"state_bytes", s.start_bytes},
        {"first_peak_bytes", s.first_peak_bytes},
        {"steady_peak_bytes", s.steady_peak_bytes},
        {"between_bytes", s.idle_bytes},
        {"first_reserved_bytes", s.first_reserved_bytes},
        {"reserved_bytes", s.reserved_bytes},
        {"unused_bytes", s.unused_bytes},
        {"step_ns", s.step_ns},
        {"forward_ns", s.forward_ns},
        {"backward_ns", s.backward_ns},
        {"optimizer_ns", s.optimizer_ns},
        {"host_ns", s.host_ns},
        {"device_ns", s.device_ns},
        {"n_ops", s.n_ops},
        {"host_bytes", s.host_bytes},
        {"wait_ns", s.wait_ns},
        {"peak_unit", s.peak_unit},
        {"peak_phase", s.peak_phase},
    };
    PyObject *dict = Py_BuildValue("{sNsN}", "parts", core_parts_of(s.parts), "points", points_of(sim));
    for (size_t i = 0; dict != NULL && i < sizeof numbers / sizeof *numbers; i++) {
        PyObject *value = PyLong_FromLongLong(numbers[i].value);
        if (value == NULL || PyDict_SetItemString(dict, numbers[i].name, value) < 0) Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

PyDoc_STRVAR(simulate_doc, "simulate($self, actions, rates, n_multiprocessors, limit_bytes, flags, state, /)\n--\n\n"
                           "Play the step. actions: bytes of 32-bit integers, one for each unit, or None; rates: JSON "
                           "text. A dict.");

static PyObject *profile_simulate(PyObject *self, PyObject *args) {
    PyObject *actions;
    const char *text;
    Py_ssize_t n_text;
    long long n_multiprocessors, limit;
    unsigned int flags, model_state;
    ms_rates rates = {.struct_bytes = sizeof rates};
    ms_device device = {.struct_bytes = sizeof device, .rates = &rates};
    ms_simulation_request request = {.struct_bytes = sizeof request, .device = &device};
    core_state *state = core_state_of_type(Py_TYPE(self));
    if (!PyArg_ParseTuple(args, "Os#LLII:simulate", &actions, &text, &n_text, &n_multiprocessors, &limit, &flags,
                          &model_state))
        return NULL;
    if (actions != Py_None && read_array(actions, 4, (const void **)&request.actions, &request.n_actions) < 0)
        return NULL;
    request.profile = ((ProfileObject *)self)->profile;
    device.n_multiprocessors = n_multiprocessors;
    request.limit_bytes = limit;
    request.flags = flags;
    request.model_options = model_state;
    ms_simulation *sim = NULL;
    ms_status status = ms_rates_from_json(text, (size_t)n_text, &rates);
    device.kind = rates.capability > 0 ? MS_DEVICE_GPU : MS_DEVICE_HOST;
    if (status == MS_OK) {
        Py_BEGIN_ALLOW_THREADS
        status = ms_simulation_create(&request, &sim);
        Py_END_ALLOW_THREADS
    }
    if (status != MS_OK) return core_raise(state, status);
    PyObject *result = summary_of(sim);
    ms_simulation_destroy(sim);
    return result;
}

PyDoc_STRVAR(frontier_doc, "frontier($self, unit, rates, /)\n--\n\n"
                           "What a unit could keep for its backward: tuples (keeps, kept_bytes, recompute_ns, "
                           "spared_ns). rates: JSON text.");

static PyObject *profile_frontier(PyObject *self, PyObject *args) {
    const char *text;
    Py_ssize_t n_text;
    long long unit;
    ms_rates rates = {.struct_bytes = sizeof rates};
    ms_frontier_point points[MS_FRONTIER_MAX_POINTS];
    int64_t n = 0;
    if (!PyArg_ParseTuple(args, "Ls#:frontier", &unit, &text, &n_text)) return NULL;
    ms_status status = ms_rates_from_json(text, (size_t)n_text, &rates);
    if (status == MS_OK)
        status =
            ms_profile_frontier(((ProfileObject *)self)->profile, unit, &rates, points, MS_FRONTIER_MAX_POINTS, &n);
    if (status != MS_OK) return core_raise(core_state_of_type(Py_TYPE(self)), status);
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < n; i++) {
        const ms_frontier_point *p = &points[i];
        PyObject *row = Py_BuildValue("(ILLL)", (unsigned int)p->keeps, (long long)p->held_bytes,
                                      (long long)p->recompute_ns, (long long)p->spared_ns);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* ---- The rest ---- */

PyDoc_STRVAR(units_doc, "units($self, /)\n--\n\n"
                        "Tuples (name, param_bytes, saved_bytes, input_bytes, n_rows, flags), as plan_create takes.");

static PyObject *profile_units(PyObject *self, PyObject *Py_UNUSED(unused)) {
    ms_profile_view view = {.struct_bytes = sizeof view};
    ms_status status = ms_profile_get_view(((ProfileObject *)self)->profile, &view);
    if (status != MS_OK) return core_raise(core_state_of_type(Py_TYPE(self)), status);
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < view.n_units; i++) {
        const ms_unit *u = &view.units[i];
        PyObject *row = Py_BuildValue("(sLLLLI)", u->name, (long long)u->param_bytes, (long long)u->saved_bytes,
                                      (long long)u->input_bytes, (long long)u->n_rows, (unsigned int)u->flags);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

PyDoc_STRVAR(costs_doc, "costs($self, unit, phase, /)\n--\n\n"
                        "A dict: what a unit (-1: everything between units) does in a phase, all units kept.");

static PyObject *profile_costs(PyObject *self, PyObject *args) {
    long long unit;
    int phase;
    ms_unit_costs c = {.struct_bytes = sizeof c};
    if (!PyArg_ParseTuple(args, "Li:costs", &unit, &phase)) return NULL;
    ms_status status = ms_profile_get_costs(((ProfileObject *)self)->profile, unit, phase, &c);
    if (status != MS_OK) return core_raise(core_state_of_type(Py_TYPE(self)), status);
    return Py_BuildValue("{sLsLsLsLsLsL}", "flops", (long long)c.flops, "bytes", (long long)c.bytes, "n_ops",
                         (long long)c.n_ops, "n_kernels", (long long)c.n_kernels, "n_random", (long long)c.n_random,
                         "working_bytes", (long long)c.working_bytes);
}

PyDoc_STRVAR(to_json_doc, "to_json($self, /)\n--\n\nThe profile as JSON text.");

static PyObject *profile_to_json(PyObject *self, PyObject *Py_UNUSED(unused)) {
    char *text = NULL;
    ms_status status = ms_profile_to_json(((ProfileObject *)self)->profile, &text);
    return status == MS_OK ? core_text_to_str(text) : core_raise(core_state_of_type(Py_TYPE(self)), status);
}

static void profile_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ms_profile_destroy(((ProfileObject *)self)->profile);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef profile_methods[] = {
    {"at", profile_at, METH_VARARGS, at_doc},
    {"frontier", profile_frontier, METH_VARARGS, frontier_doc},
    {"simulate", profile_simulate, METH_VARARGS, simulate_doc},
    {"units", profile_units, METH_NOARGS, units_doc},
    {"costs", profile_costs, METH_VARARGS, costs_doc},
    {"to_json", profile_to_json, METH_NOARGS, to_json_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot profile_slots[] = {
    {Py_tp_doc, (void *)"A profile of libmemscale."},
    {Py_tp_dealloc, profile_dealloc},
    {Py_tp_methods, profile_methods},
    {0, NULL},
};

static PyType_Spec profile_spec = {
    .name = "memscale._core.Profile",
    .basicsize = sizeof(ProfileObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = profile_slots,
};

int core_add_profile(PyObject *module, core_state *state) {
    state->profile_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &profile_spec, NULL);
    return state->profile_type == NULL ? -1 : PyModule_AddType(module, state->profile_type);
}
