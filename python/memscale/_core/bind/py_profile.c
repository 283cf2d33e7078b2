/* py_profile.c - Profile: traces in, simulations and predictions out.
 *
 * A trace comes as a tuple of bytes, arrays of 64-bit integers in the layout of memscale.h, which are borrowed for the
 * call.
 */
#include "bind.h"

#include <stddef.h>
#include <string.h>

typedef struct ProfileObject {
    PyObject_HEAD
    ms_profile *profile; /* owned */
} ProfileObject;

PyObject *core_wrap_profile(core_state *state, ms_status status, ms_profile *profile) {
    if (status != MS_OK) return core_raise(state, status);
    ProfileObject *object = core_allocate(state->profile_type);
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
        PyErr_SetString(PyExc_ValueError, "an array of a trace is not a whole number of integers");
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

/* MS_TRACE_SCRATCHES numbers for each name, or none at all. */
static int read_scratch(PyObject *bytes, ms_trace *out) {
    int64_t n = 0;
    if (read_array(bytes, sizeof *out->scratch_bytes, (const void **)&out->scratch_bytes, &n) < 0) return -1;
    if (n == 0) out->scratch_bytes = NULL;
    if (n == 0 || n == out->n_names * MS_TRACE_SCRATCHES) return 0;
    PyErr_SetString(PyExc_ValueError, "a trace: scratch must have three numbers for each name, or none");
    return -1;
}

/* (events, ops, operands, kinds, names, scratch); the names are owned by the caller, PyMem_Free. */
static int read_trace(PyObject *tuple, ms_trace *out) {
    PyObject *events, *ops, *operands, *kinds, *names, *scratch;
    *out = (ms_trace){.struct_bytes = sizeof *out};
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a trace is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "SSSSOS", &events, &ops, &operands, &kinds, &names, &scratch)) return -1;
    if (read_array(events, sizeof *out->events, (const void **)&out->events, &out->n_events) < 0 ||
        read_array(ops, sizeof *out->ops, (const void **)&out->ops, &out->n_ops) < 0 ||
        read_array(operands, sizeof *out->operands, (const void **)&out->operands, &out->n_operands) < 0 ||
        read_array(kinds, sizeof *out->kinds, (const void **)&out->kinds, &out->n_storages) < 0)
        return -1;
    out->names = read_names(names, &out->n_names);
    return out->names == NULL ? -1 : read_scratch(scratch, out);
}

/* One number and one set of flags for each name. */
static int read_unit_arrays(PyObject *sizes, PyObject *flags, ms_profile_request *out) {
    int64_t n_sizes = 0, n_flags = 0;
    if (read_array(sizes, sizeof *out->unit_param_bytes, (const void **)&out->unit_param_bytes, &n_sizes) < 0 ||
        read_array(flags, sizeof *out->unit_flags, (const void **)&out->unit_flags, &n_flags) < 0)
        return -1;
    if (n_sizes == out->n_units && n_flags == out->n_units) return 0;
    PyErr_SetString(PyExc_ValueError, "a profile: param_bytes and flags must have one number for each name");
    return -1;
}

static int read_shape(PyObject *shape, ms_profile_request *out) {
    long long batch, length;
    if (!PyTuple_Check(shape) || !PyArg_ParseTuple(shape, "LL;a shape is (batch, length)", &batch, &length)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a shape is (batch, length)");
        return -1;
    }
    out->batch = batch;
    out->length = length;
    return 0;
}

typedef ms_status profile_maker(const ms_profile_request *request, ms_profile **out_profile);

/* A profile of the units in args[0] to args[2], with the traces of the request. */
static PyObject *make_profile(PyObject *module, PyObject *const *args, ms_profile_request *request,
                              profile_maker *maker) {
    PyObject *result = NULL;
    const char **names = read_names(args[0], &request->n_units);
    request->unit_names = names;
    if (names != NULL && read_unit_arrays(args[1], args[2], request) == 0) {
        ms_profile *profile = NULL;
        ms_status status;
        Py_BEGIN_ALLOW_THREADS
        status = maker(request, &profile);
        Py_END_ALLOW_THREADS
        result = core_wrap_profile(core_get_state(module), status, profile);
    }
    PyMem_Free((void *)names);
    return result;
}

PyObject *core_profile_from_traces(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    if (!core_check_count("profile_from_traces", n_args, 5)) return NULL;
    ms_trace traces[3] = {{0}, {0}, {0}};
    ms_profile_request request = {.struct_bytes = sizeof request, .plain = &traces[0]};
    PyObject *result = NULL, *given[3];
    if (!PyArg_ParseTuple(args[3], "OOO:profile_from_traces", &given[0], &given[1], &given[2])) return NULL;
    if (given[1] != Py_None) request.recomputed = &traces[1];
    if (given[2] != Py_None) request.pointwise = &traces[2];
    int status = read_shape(args[4], &request);
    for (int i = 0; i < 3 && status == 0; i++)
        if (i == 0 || given[i] != Py_None) status = read_trace(given[i], &traces[i]);
    if (status == 0) result = make_profile(module, args, &request, ms_profile_from_traces);
    for (int i = 0; i < 3; i++) PyMem_Free((void *)traces[i].names);
    return result;
}

PyObject *core_profile_from_watched(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    if (!core_check_count("profile_from_watched", n_args, 5)) return NULL;
    ms_trace trace = {0};
    ms_profile_request request = {.struct_bytes = sizeof request, .recomputed = &trace};
    PyObject *result = NULL;
    if (read_shape(args[4], &request) == 0 && read_trace(args[3], &trace) == 0)
        result = make_profile(module, args, &request, ms_profile_from_watched_trace);
    PyMem_Free((void *)trace.names);
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

PyObject *core_fit_shapes(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    ms_shape shapes[MS_FIT_MAX_SHAPES];
    int64_t n = 0;
    if (!core_check_count("fit_shapes", n_args, 2)) return NULL;
    ms_shape known = {.batch = PyLong_AsLongLong(args[0]), .length = PyLong_AsLongLong(args[1])};
    if (PyErr_Occurred()) return NULL;
    ms_status status = ms_profile_get_fit_shapes(known, shapes, &n);
    PyObject *list = status == MS_OK ? PyList_New(0) : core_raise(core_get_state(module), status);
    for (int64_t i = 0; list != NULL && i < n; i++) {
        PyObject *row = Py_BuildValue("(LL)", (long long)shapes[i].batch, (long long)shapes[i].length);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

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

static PyObject *segments_of(const ms_simulation *sim) {
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

static PyObject *summary_of(const ms_simulation_summary *summary) {
    int64_t n;
    const ms_field *fields = ms_simulation_summary_fields(&n);
    return core_fields_of(fields, n, summary);
}

/* The keywords that simulate() and predict() share. */
typedef struct simulation_arguments {
    PyObject *device, *actions;
    long long limit_bytes, spacer_unit, spacer_bytes;
    unsigned int flags, model_options;
} simulation_arguments;

static int read_simulation(PyObject *self, const simulation_arguments *arguments, ms_simulation_request *out) {
    *out = (ms_simulation_request){.struct_bytes = sizeof *out,
                                   .profile = ((ProfileObject *)self)->profile,
                                   .device = core_device_of(core_state_of_type(Py_TYPE(self)), arguments->device),
                                   .limit_bytes = arguments->limit_bytes,
                                   .flags = arguments->flags,
                                   .model_options = arguments->model_options,
                                   .spacer_unit = arguments->spacer_unit,
                                   .spacer_bytes = arguments->spacer_bytes};
    if (out->device == NULL) return -1;
    if (core_is_none(arguments->actions)) return 0;
    return read_array(arguments->actions, sizeof *out->actions, (const void **)&out->actions, &out->n_actions);
}

/* A list of tuples (leaves_after, fetched_before), one for each unit. */
static PyObject *schedule_of(core_state *state, const ms_simulation *sim, int64_t n_units) {
    PyObject *list = PyList_New(0);
    for (int64_t unit = 0; list != NULL && unit < n_units; unit++) {
        int64_t leaves_after = 0, fetched_before = 0;
        ms_status status = ms_simulation_get_schedule(sim, unit, &leaves_after, &fetched_before);
        PyObject *row = status == MS_OK ? Py_BuildValue("(LL)", (long long)leaves_after, (long long)fetched_before)
                                        : core_raise(state, status);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static int set_steals(PyObject *dict, const char *key, PyObject *value) {
    int status = value == NULL ? -1 : PyDict_SetItemString(dict, key, value);
    Py_XDECREF(value);
    return status;
}

static PyObject *simulation_dict(core_state *state, const ms_simulation *sim, int64_t n_units) {
    ms_simulation_summary s = {.struct_bytes = sizeof s};
    ms_status status = ms_simulation_get_summary(sim, &s);
    PyObject *dict = status == MS_OK ? summary_of(&s) : core_raise(state, status);
    if (dict != NULL && (set_steals(dict, "segments", segments_of(sim)) < 0 ||
                         set_steals(dict, "schedule", schedule_of(state, sim, n_units)) < 0))
        Py_CLEAR(dict);
    return dict;
}

PyDoc_STRVAR(simulate_doc, "simulate($self, device, *, actions=None, limit_bytes=0, flags=0, model_options=0, "
                           "spacer=(0, 0))\n--\n\n"
                           "Simulate the step. actions: bytes of 32-bit integers, one for each unit; flags: "
                           "SIMULATE_*; spacer: a unit, and bytes. A dict.");

static PyObject *profile_simulate(PyObject *self, PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"device", "actions", "limit_bytes", "flags", "model_options", "spacer", NULL};
    simulation_arguments arguments = {0};
    ms_simulation_request request;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OLII(LL):simulate", (char **)names, &arguments.device,
                                     &arguments.actions, &arguments.limit_bytes, &arguments.flags,
                                     &arguments.model_options, &arguments.spacer_unit, &arguments.spacer_bytes) ||
        read_simulation(self, &arguments, &request) < 0)
        return NULL;
    ms_simulation *sim = NULL;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_simulation_create(&request, &sim);
    Py_END_ALLOW_THREADS
    core_state *state = core_state_of_type(Py_TYPE(self));
    ms_profile_view view = {.struct_bytes = sizeof view};
    if (status == MS_OK) status = ms_profile_get_view(request.profile, &view);
    PyObject *result = status == MS_OK ? simulation_dict(state, sim, view.n_units) : core_raise(state, status);
    ms_simulation_destroy(sim);
    return result;
}

/* Triples of 64-bit integers (unit, boundary, measured_bytes) to readings; NULL with an exception, else PyMem_Free. */
static ms_reading *read_readings(PyObject *bytes, int64_t *out_n) {
    const int64_t *numbers = NULL;
    int64_t n = 0;
    if (read_array(bytes, 3 * sizeof *numbers, (const void **)&numbers, &n) < 0) return NULL;
    ms_reading *readings = PyMem_Calloc((size_t)n + 1, sizeof *readings);
    if (readings == NULL) {
        (void)PyErr_NoMemory();
        return NULL;
    }
    for (int64_t i = 0; i < n; i++, numbers += 3)
        readings[i] =
            (ms_reading){.unit = (int32_t)numbers[0], .boundary = (int32_t)numbers[1], .measured_bytes = numbers[2]};
    *out_n = n;
    return readings;
}

/* Tuples (predicted_bytes, predicted_ns), or None for a reading that was not compared. */
static PyObject *predicted_of(const ms_reading *readings, int64_t n) {
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < n; i++) {
        const ms_reading *r = &readings[i];
        PyObject *row = r->is_compared
                            ? Py_BuildValue("(LL)", (long long)r->predicted_bytes, (long long)r->predicted_ns)
                            : Py_BuildValue("");
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static ms_status simulate_and_compare(const ms_simulation_request *request, ms_reading *readings, int64_t n,
                                      int64_t margin_bytes, ms_comparison *out) {
    ms_simulation *sim = NULL;
    ms_status status = ms_simulation_create(request, &sim);
    if (status == MS_OK) status = ms_simulation_compare(sim, readings, n, margin_bytes, out);
    ms_simulation_destroy(sim);
    return status;
}

PyDoc_STRVAR(compare_doc,
             "compare($self, device, readings, *, actions=None, flags=0, margin_bytes=0, "
             "prefetch_depth=0)\n--\n\n"
             "Compare a step that ran with its simulation. readings: bytes of 64-bit integers (unit, "
             "BOUNDARY_*, bytes). A dict: the fields of ms_comparison, and under predicted a tuple (bytes, "
             "ns) for each reading, or None.");

static PyObject *profile_compare(PyObject *self, PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"device",       "readings",       "actions", "flags",
                                        "margin_bytes", "prefetch_depth", NULL};
    simulation_arguments arguments = {0};
    ms_simulation_request request;
    PyObject *bytes = NULL;
    long long margin_bytes = 0, prefetch_depth = 0;
    int64_t n = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|$OILL:compare", (char **)names, &arguments.device, &bytes,
                                     &arguments.actions, &arguments.flags, &margin_bytes, &prefetch_depth) ||
        read_simulation(self, &arguments, &request) < 0)
        return NULL;
    request.prefetch_depth = prefetch_depth;
    ms_reading *readings = read_readings(bytes, &n);
    if (readings == NULL) return NULL;
    ms_comparison comparison = {.struct_bytes = sizeof comparison};
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = simulate_and_compare(&request, readings, n, margin_bytes, &comparison);
    Py_END_ALLOW_THREADS
    int64_t n_fields;
    const ms_field *fields = ms_comparison_fields(&n_fields);
    PyObject *dict = status == MS_OK ? core_fields_of(fields, n_fields, &comparison)
                                     : core_raise(core_state_of_type(Py_TYPE(self)), status);
    if (dict != NULL && set_steals(dict, "predicted", predicted_of(readings, n)) < 0) Py_CLEAR(dict);
    PyMem_Free(readings);
    return dict;
}

PyDoc_STRVAR(predict_doc,
             "predict($self, device, *, actions=None, flags=0, usable_bytes=0, was_run=False, spacer=(0, 0))\n--\n\n"
             "Will the step fit into usable_bytes (0: what the device has)? A dict: the summary of its simulation, and "
             "the fields of ms_prediction.");

static PyObject *profile_predict(PyObject *self, PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"device", "actions", "flags", "usable_bytes", "was_run", "spacer", NULL};
    simulation_arguments arguments = {0};
    ms_simulation_request request;
    long long usable_bytes = 0;
    int was_run = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OILp(LL):predict", (char **)names, &arguments.device,
                                     &arguments.actions, &arguments.flags, &usable_bytes, &was_run,
                                     &arguments.spacer_unit, &arguments.spacer_bytes) ||
        read_simulation(self, &arguments, &request) < 0)
        return NULL;
    ms_simulation_summary summary = {.struct_bytes = sizeof summary};
    ms_prediction prediction = {.struct_bytes = sizeof prediction, .simulation = &summary};
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_predict(&request, usable_bytes, was_run, &prediction);
    Py_END_ALLOW_THREADS
    if (status != MS_OK) return core_raise(core_state_of_type(Py_TYPE(self)), status);
    int64_t n;
    const ms_field *fields = ms_prediction_fields(&n);
    PyObject *dict = summary_of(&summary);
    if (dict != NULL && core_fields_into(dict, fields, n, &prediction) < 0) Py_CLEAR(dict);
    return dict;
}

PyDoc_STRVAR(frontier_doc, "frontier($self, unit, device, /)\n--\n\n"
                           "What a unit could keep for its backward: tuples (keeps, held_bytes, recompute_ns, "
                           "spared_ns).");

static PyObject *profile_frontier(PyObject *self, PyObject *args) {
    core_state *state = core_state_of_type(Py_TYPE(self));
    PyObject *object;
    long long unit;
    ms_frontier_point points[MS_FRONTIER_MAX_POINTS];
    int64_t n = 0;
    if (!PyArg_ParseTuple(args, "LO:frontier", &unit, &object)) return NULL;
    const ms_device *device = core_device_of(state, object);
    if (device == NULL) return NULL;
    ms_status status =
        ms_profile_frontier(((ProfileObject *)self)->profile, unit, device->rates, points, MS_FRONTIER_MAX_POINTS, &n);
    if (status != MS_OK) return core_raise(state, status);
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
                        "Tuples (name, param_bytes, saved_bytes, input_bytes, n_rows, flags)");

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
    int64_t n;
    const ms_field *fields = ms_unit_costs_fields(&n);
    return core_fields_of(fields, n, &c);
}

PyDoc_STRVAR(to_json_doc, "to_json($self, /)\n--\n\nThe profile as JSON text.");

static PyObject *profile_to_json(PyObject *self, PyObject *Py_UNUSED(unused)) {
    char *text = NULL;
    ms_status status = ms_profile_to_json(((ProfileObject *)self)->profile, &text);
    return status == MS_OK ? core_text_to_str(text) : core_raise(core_state_of_type(Py_TYPE(self)), status);
}

static void profile_dealloc(PyObject *self) {
    ms_profile_destroy(((ProfileObject *)self)->profile);
    core_free(self);
}

static PyMethodDef profile_methods[] = {
    {"at", profile_at, METH_VARARGS, at_doc},
    {"frontier", profile_frontier, METH_VARARGS, frontier_doc},
    {"simulate", (PyCFunction)(void (*)(void))profile_simulate, METH_VARARGS | METH_KEYWORDS, simulate_doc},
    {"compare", (PyCFunction)(void (*)(void))profile_compare, METH_VARARGS | METH_KEYWORDS, compare_doc},
    {"predict", (PyCFunction)(void (*)(void))profile_predict, METH_VARARGS | METH_KEYWORDS, predict_doc},
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
