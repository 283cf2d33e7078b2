/* py_request.c - Request: what the engine is asked for, and the calls that answer it.
 *
 * A request is made from settings and a device, in C (ms_plan_request_init), and never changes. Its methods take the
 * step that it is asked for.
 */
#include "bind.h"

#include <stddef.h>
#include <structmember.h>

#define MAX_PARETO 1024

typedef struct RequestObject {
    PyObject_HEAD
    ms_plan_request request; /* without a profile; borrows from `device` */
    PyObject *device;        /* owned Device */
} RequestObject;

/* Host memory matters only if something may be offloaded and no limit is set; reading it takes a moment. */
static ms_status init_request(const ms_settings *settings, const ms_device *device, ms_plan_request *out) {
    ms_hw host = {.struct_bytes = sizeof host};
    int looks = settings->techniques & MS_TECHNIQUE_OFFLOAD && settings->offload_limit_bytes < 0;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = looks ? ms_hw_detect("", NULL, &host) : MS_OK;
    if (status == MS_OK) status = ms_plan_request_init(out, settings, device, looks ? &host : NULL);
    Py_END_ALLOW_THREADS
    return status;
}

static PyObject *request_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static const char *const names[] = {
        "device",     "techniques", "budget_bytes", "utilization_ppm", "slowdown_ppm", "offload_limit_bytes", "force",
        "unrunnable", "fixed",      "grown",        "occupied_bytes",  "overlaps",     "prefetch_depth",      NULL};
    core_state *state = core_state_of_type(type);
    PyObject *device = NULL;
    unsigned int techniques = 0;
    long long budget = 0, utilization = 850000, slowdown = -1, offload_limit = -1;
    long long occupied = 0, depth = 0;
    int force = 0, unrunnable = 0, fixed = 0, grown = 0, overlaps = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$O!ILLLLppppLpL:Request", (char **)names, state->device_type,
                                     &device, &techniques, &budget, &utilization, &slowdown, &offload_limit, &force,
                                     &unrunnable, &fixed, &grown, &occupied, &overlaps, &depth))
        return NULL;
    if (device == NULL) {
        PyErr_SetString(PyExc_TypeError, "Request() needs a device");
        return NULL;
    }
    ms_settings settings = {.struct_bytes = sizeof settings,
                            .budget_bytes = budget,
                            .utilization_ppm = utilization,
                            .slowdown_ppm = slowdown,
                            .offload_limit_bytes = offload_limit,
                            .techniques = techniques,
                            .flags = (force ? MS_SETTINGS_FORCE : 0U) | (unrunnable ? MS_SETTINGS_UNRUNNABLE : 0U) |
                                     (fixed ? MS_SETTINGS_FIXED : 0U) | (grown ? MS_SETTINGS_GROWN : 0U) |
                                     (overlaps ? MS_SETTINGS_ASYNC : 0U),
                            .occupied_bytes = occupied,
                            .prefetch_depth = depth};
    ms_plan_request request = {.struct_bytes = sizeof request};
    ms_status status = init_request(&settings, core_device_of(state, device), &request);
    if (status != MS_OK) return core_raise(state, status);
    RequestObject *self = core_allocate(type);
    if (self == NULL) return NULL;
    self->request = request;
    Py_INCREF(device);
    self->device = device;
    return (PyObject *)self;
}

static void request_dealloc(PyObject *self) {
    Py_CLEAR(((RequestObject *)self)->device);
    core_free(self);
}

/* ---- The step of a request ---- */

static int set_may_change(core_step *step) {
    char *data;
    Py_ssize_t n;
    ms_profile_view view = {.struct_bytes = sizeof view};
    if (PyBytes_AsStringAndSize(step->may_change, &data, &n) < 0) return -1;
    if (ms_profile_get_view(step->request.profile, &view) != MS_OK || n != view.n_units) {
        PyErr_SetString(PyExc_ValueError, "may_change must have one byte for each unit");
        return -1;
    }
    step->request.may_change = (const uint8_t *)data;
    return 0;
}

int core_request_complete(core_state *state, PyObject *object, core_step *step, int fused) {
    if (!PyObject_TypeCheck(object, state->request_type)) {
        PyErr_SetString(PyExc_TypeError, "a Request is needed");
        return -1;
    }
    step->request = ((RequestObject *)object)->request;
    step->request.profile = core_profile_of(state, step->profile);
    if (step->request.profile == NULL) return -1;
    if (!core_is_none(step->half)) {
        step->request.half_profile = core_profile_of(state, step->half);
        if (step->request.half_profile == NULL) return -1;
    }
    if (!core_is_none(step->plain)) {
        step->request.plain_profile = core_profile_of(state, step->plain);
        if (step->request.plain_profile == NULL) return -1;
    }
    if (fused) step->request.simulation |= MS_SIMULATE_FUSED;
    return core_is_none(step->may_change) ? 0 : set_may_change(step);
}

PyDoc_STRVAR(plan_doc,
             "plan($self, profile, *, half=None, plain=None, may_change=None, fused=False, held=False)\n--\n\n"
             "Decide what is done to each unit of a step.\n\n"
             "half: the same step in 16 bits. plain: the step when nothing is done to it, if it differs. may_change: "
             "bytes, 0 for each unit that has to be kept. fused: "
             "the optimizer takes no temporaries. held: gradients exist when the step begins, and stay.");

static PyObject *request_plan(PyObject *self, PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"profile", "half", "plain", "may_change", "fused", "held", NULL};
    core_state *state = core_state_of_type(Py_TYPE(self));
    core_step step = {0};
    int fused = 0, held = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OOOpp:plan", (char **)names, &step.profile, &step.half,
                                     &step.plain, &step.may_change, &fused, &held) ||
        core_request_complete(state, self, &step, fused) < 0)
        return NULL;
    if (held) step.request.simulation |= MS_SIMULATE_KEEP_GRADIENTS;
    ms_plan *plan = NULL;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_plan_create(&step.request, &plan);
    Py_END_ALLOW_THREADS
    return core_wrap_plan(state, status, plan);
}

static PyObject *pareto_rows(const ms_pareto_point *points, int64_t n) {
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < n; i++) {
        const ms_pareto_point *p = &points[i];
        PyObject *row =
            Py_BuildValue("(LLLLI)", (long long)p->peak_bytes, (long long)p->step_ns, (long long)p->host_bytes,
                          (long long)p->n_changed, (unsigned int)p->model_options);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

PyDoc_STRVAR(pareto_doc,
             "pareto($self, profile, n_points, *, half=None, plain=None, may_change=None, fused=False)\n--\n\n"
             "The trade between memory and time: tuples (peak_bytes, step_ns, host_bytes, n_changed, "
             "model_options), the fastest first.");

static PyObject *request_pareto(PyObject *self, PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"profile", "n_points", "half", "plain", "may_change", "fused", NULL};
    core_state *state = core_state_of_type(Py_TYPE(self));
    core_step step = {0};
    long long n_points;
    int fused = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OL|$OOOp:pareto", (char **)names, &step.profile, &n_points,
                                     &step.half, &step.plain, &step.may_change, &fused) ||
        core_request_complete(state, self, &step, fused) < 0)
        return NULL;
    ms_pareto_point *points = PyMem_Calloc(MAX_PARETO, sizeof *points);
    if (points == NULL) return PyErr_NoMemory();
    int64_t n = 0;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_plan_pareto(&step.request, points, n_points < MAX_PARETO ? n_points : MAX_PARETO, &n);
    Py_END_ALLOW_THREADS
    PyObject *rows = status == MS_OK ? pareto_rows(points, n) : core_raise(state, status);
    PyMem_Free(points);
    return rows;
}

PyDoc_STRVAR(find_budget_doc,
             "find_budget($self, profile, *, half=None, plain=None, may_change=None, fused=False)\n--\n\n"
             "The least budget in bytes, in round figures, for which there is a plan; 0: the device "
             "has less.");

static PyObject *request_find_budget(PyObject *self, PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"profile", "half", "plain", "may_change", "fused", NULL};
    core_state *state = core_state_of_type(Py_TYPE(self));
    core_step step = {0};
    int fused = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OOOp:find_budget", (char **)names, &step.profile, &step.half,
                                     &step.plain, &step.may_change, &fused) ||
        core_request_complete(state, self, &step, fused) < 0)
        return NULL;
    int64_t n_bytes = 0;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_plan_find_budget(&step.request, &n_bytes);
    Py_END_ALLOW_THREADS
    return status == MS_OK ? PyLong_FromLongLong(n_bytes) : core_raise(state, status);
}

PyDoc_STRVAR(cap_doc,
             "cap($self, own_bytes, /)\n--\n\n"
             "The limit for torch's allocator that keeps what it reserves within the budget, together with what "
             "MemScale allocates itself.");

static PyObject *request_cap(PyObject *self, PyObject *own) {
    long long own_bytes = PyLong_AsLongLong(own);
    if (own_bytes == -1 && PyErr_Occurred()) return NULL;
    return PyLong_FromLongLong(ms_budget_get_cap(((RequestObject *)self)->request.budget_bytes, own_bytes));
}

/* ---- The type ---- */

static PyMethodDef request_methods[] = {
    {"cap", request_cap, METH_O, cap_doc},
    {"plan", (PyCFunction)(void (*)(void))request_plan, METH_VARARGS | METH_KEYWORDS, plan_doc},
    {"pareto", (PyCFunction)(void (*)(void))request_pareto, METH_VARARGS | METH_KEYWORDS, pareto_doc},
    {"find_budget", (PyCFunction)(void (*)(void))request_find_budget, METH_VARARGS | METH_KEYWORDS, find_budget_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef request_members[] = {
    {"device", T_OBJECT_EX, offsetof(RequestObject, device), READONLY, "what the step runs on"},
    {"budget_bytes", T_LONGLONG, offsetof(RequestObject, request.budget_bytes), READONLY,
     "what may be reserved on the device"},
    {"margin_bytes", T_LONGLONG, offsetof(RequestObject, request.margin_bytes), READONLY,
     "the part of it that is left free"},
    {"occupied_bytes", T_LONGLONG, offsetof(RequestObject, request.occupied_bytes), READONLY,
     "the part of it that torch's allocator holds besides the step"},
    {"limit_bytes", T_LONGLONG, offsetof(RequestObject, request.limit_bytes), READONLY,
     "what may be used if no plan fits the budget; 0: the budget is the limit"},
    {"host_limit_bytes", T_LONGLONG, offsetof(RequestObject, request.host_limit_bytes), READONLY,
     "host memory that may be filled; 0 where nothing may go there"},
    {"slowdown_ppm", T_LONGLONG, offsetof(RequestObject, request.slowdown_ppm), READONLY,
     "extra step time that may be spent; negative: any"},
    {"actions", T_UINT, offsetof(RequestObject, request.actions), READONLY, "bits of what may be done to units"},
    {"model_options", T_UINT, offsetof(RequestObject, request.model_options), READONLY,
     "what may be done to the model"},
    {"simulation", T_UINT, offsetof(RequestObject, request.simulation), READONLY, "SIMULATE_*: how steps run"},
    {"flags", T_UINT, offsetof(RequestObject, request.flags), READONLY, "enum ms_plan_flag"},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot request_slots[] = {
    {Py_tp_doc, (void *)"What the engine is asked for: ms_plan_request of memscale.h, made from settings."},
    {Py_tp_new, request_new},
    {Py_tp_dealloc, request_dealloc},
    {Py_tp_methods, request_methods},
    {Py_tp_members, request_members},
    {0, NULL},
};

static PyType_Spec request_spec = {.name = "memscale._core.Request",
                                   .basicsize = sizeof(RequestObject),
                                   .flags = Py_TPFLAGS_DEFAULT,
                                   .slots = request_slots};

int core_add_request(PyObject *module, core_state *state) {
    state->request_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &request_spec, NULL);
    return state->request_type == NULL ? -1 : PyModule_AddType(module, state->request_type);
}

/* ---- Searching a batch ---- */

PyObject *core_next_batch(PyObject *Py_UNUSED(module), PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"fits", "too_large", "limit_bytes", "n_tried", NULL};
    long long low = 0, low_bytes = 0, high = 0, high_bytes = 0, limit = 0, n_tried = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$(LL)(LL)LL:next_batch", (char **)names, &low, &low_bytes, &high,
                                     &high_bytes, &limit, &n_tried))
        return NULL;
    const ms_batch_search search = {.struct_bytes = sizeof search,
                                    .limit_bytes = limit,
                                    .low = low,
                                    .low_bytes = low_bytes,
                                    .high = high,
                                    .high_bytes = high_bytes,
                                    .n_tried = n_tried};
    return PyLong_FromLongLong(ms_batch_search_get_next(&search));
}

/* ---- Searching changes ---- */

#define MAX_FITTING 64

static int read_fitting(PyObject *object, uint32_t *out, int64_t *out_n) {
    PyObject *tuple = PySequence_Tuple(object);
    Py_ssize_t n = tuple == NULL ? -1 : PyTuple_Size(tuple);
    if (n > MAX_FITTING) {
        PyErr_SetString(PyExc_ValueError, "too many sets of changes");
        n = -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        out[i] = (uint32_t)PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (PyErr_Occurred() != NULL) n = -1;
    }
    Py_XDECREF(tuple);
    *out_n = n;
    return n < 0 ? -1 : 0;
}

PyObject *core_next_changes(PyObject *Py_UNUSED(module), PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"allowed", "tried", "fitting", "limits", "fixed", NULL};
    unsigned int allowed = 0, tried = 0;
    long long limit = 0, most = 0, params = 0, gradients = 0, state = 0;
    PyObject *object = NULL;
    uint32_t fitting[MAX_FITTING];
    int64_t n_fitting = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$IIO(LL)(LLL):next_changes", (char **)names, &allowed, &tried,
                                     &object, &limit, &most, &params, &gradients, &state) ||
        (object != NULL && read_fitting(object, fitting, &n_fitting) < 0))
        return NULL;
    const ms_change_search search = {.struct_bytes = sizeof search,
                                     .limit_bytes = limit,
                                     .most_bytes = most,
                                     .param_bytes = params,
                                     .gradient_bytes = gradients,
                                     .state_bytes = state,
                                     .fitting = fitting,
                                     .n_fitting = n_fitting,
                                     .allowed = allowed,
                                     .tried = tried};
    return PyLong_FromLongLong(ms_change_search_get_next(&search));
}

PyObject *core_host_limit(PyObject *module, PyObject *object) {
    long long limit_bytes = PyLong_AsLongLong(object);
    if (limit_bytes == -1 && PyErr_Occurred()) return NULL;
    ms_hw host = {.struct_bytes = sizeof host};
    ms_status status = limit_bytes < 0 ? ms_hw_detect("", NULL, &host) : MS_OK;
    if (status != MS_OK) return core_raise(core_get_state(module), status);
    return PyLong_FromLongLong(ms_budget_get_host_limit(limit_bytes, limit_bytes < 0 ? &host : NULL));
}

PyObject *core_budget_for_peak(PyObject *Py_UNUSED(module), PyObject *object) {
    long long peak_bytes = PyLong_AsLongLong(object);
    return PyErr_Occurred() != NULL ? NULL : PyLong_FromLongLong(ms_budget_for_peak(peak_bytes));
}
