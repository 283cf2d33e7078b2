/* module.c - memscale._core: the module itself, its state, its exceptions and logging.
 *
 * Multi-phase initialisation; everything that lives longer than a call is in core_state.
 */
#include "core.h"

#include <string.h>

core_state *core_get_state(PyObject *module) { return PyModule_GetState(module); }

core_state *core_state_of_type(PyTypeObject *type) { return PyType_GetModuleState(type); }

static PyObject *exception_for(const core_state *state, ms_status status) {
    switch (status) {
    case MS_E_INVALID:
    case MS_E_PARSE:
    case MS_E_LIMIT:
        return PyExc_ValueError;
    case MS_E_NO_MEMORY:
        return PyExc_MemoryError;
    case MS_E_IO:
        return PyExc_OSError;
    case MS_E_BUDGET:
        return state->budget_error;
    default:
        return state->error;
    }
}

PyObject *core_raise(core_state *state, ms_status status) {
    const char *message = ms_error_message();
    PyObject *type = exception_for(state, status);
    if (message[0] == '\0') message = ms_status_text(status);
    /* A name that was cut to fit may end inside a character. */
    PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
    PyObject *error = text == NULL ? NULL : PyObject_CallFunctionObjArgs(type, text, NULL);
    Py_XDECREF(text);
    if (error == NULL) return NULL;
    if (status == MS_E_BUDGET) {
        PyObject *bytes = PyLong_FromLongLong(ms_error_value());
        int failed = bytes == NULL || PyObject_SetAttr(error, state->str_smallest, bytes) < 0;
        Py_XDECREF(bytes);
        if (failed) {
            Py_DECREF(error);
            return NULL;
        }
    }
    PyErr_SetObject(type, error);
    Py_DECREF(error);
    return NULL;
}

int core_check_count(const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, %zd given", name, wanted, given);
    return 0;
}

int core_is_tensor(const core_state *state, PyObject *object) {
    return state->tensor_type != NULL && PyType_IsSubtype(Py_TYPE(object), (PyTypeObject *)state->tensor_type);
}

PyDoc_STRVAR(bind_doc, "bind(tensor_type, parameter_type, detach, graph_task_id, copy)\n--\n\n"
                       "Hand in what the extension needs: torch's Tensor and Parameter, Tensor.detach, the function "
                       "that tells the running backward's id, and copy.copy.");

static PyObject *bind(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    core_state *state = core_get_state(module);
    if (!core_check_count("bind", n, 5)) return NULL;
    if (!PyType_Check(args[0]) || !PyType_Check(args[1]) || !PyCallable_Check(args[2]) || !PyCallable_Check(args[3]) ||
        !PyCallable_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "bind() takes two types and three callables");
        return NULL;
    }
    PyObject **slots[] = {&state->tensor_type, &state->parameter_type, &state->detach, &state->graph_task_id,
                          &state->copy};
    for (int i = 0; i < 5; i++) {
        PyObject *old = *slots[i];
        Py_INCREF(args[i]);
        *slots[i] = args[i];
        Py_XDECREF(old);
    }
    Py_RETURN_NONE;
}

/* Called by libmemscale, on any thread, with or without the GIL held. */
static void write_log(void *user, int level, const char *message) {
    PyGILState_STATE gil = PyGILState_Ensure();
    core_state *state = user;
    PyObject *callback = state->log_callback;
    if (callback != NULL) {
        PyObject *pending_type, *pending_value, *pending_trace;
        PyErr_Fetch(&pending_type, &pending_value, &pending_trace);
        Py_INCREF(callback);
        PyObject *result = PyObject_CallFunction(callback, "is", level, message);
        if (result == NULL) PyErr_WriteUnraisable(callback);
        Py_XDECREF(result);
        Py_DECREF(callback);
        PyErr_Restore(pending_type, pending_value, pending_trace);
    }
    PyGILState_Release(gil);
}

PyDoc_STRVAR(set_log_doc, "set_log(callback)\n--\n\n"
                          "Send the core's messages to callback(level, text), or nowhere with None. Levels: 0 debug, "
                          "1 info, 2 warning.");

static PyObject *set_log(PyObject *module, PyObject *callback) {
    core_state *state = core_get_state(module);
    if (callback != Py_None && !PyCallable_Check(callback)) {
        PyErr_SetString(PyExc_TypeError, "set_log() takes a callable or None");
        return NULL;
    }
    ms_log_set_sink(NULL);
    PyObject *old = state->log_callback;
    state->log_callback = NULL;
    Py_XDECREF(old);
    if (callback != Py_None) {
        Py_INCREF(callback);
        state->log_callback = callback;
        state->sink = (ms_log_sink){.write = write_log, .user = state, .min_level = MS_LOG_DEBUG};
        ms_log_set_sink(&state->sink);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(unpack_doc, "unpack(record)\n--\n\nThe tensor that a Frame packed; runs its recomputation if need be.");
PyDoc_STRVAR(snapshot_doc,
             "snapshot_inputs(args, kwargs)\n--\n\n"
             "(args, kwargs, tensors, opaque): copies in which containers are new objects and tensors cut "
             "off from their graph, the tensors in them, and the type of the first object that cannot be "
             "seen into, or None.");
PyDoc_STRVAR(tensors_doc, "tensors_in(obj)\n--\n\nThe tensors in nested tuples, lists, dicts and dataclasses.");
PyDoc_STRVAR(versions_doc, "versions(tensors)\n--\n\nThe version counters of a list of tensors, as bytes.");
PyDoc_STRVAR(grad_flags_doc, "grad_flags(tensors)\n--\n\nrequires_grad of a list of tensors, a byte each.");
PyDoc_STRVAR(hw_detect_doc, "hw_detect(root)\n--\n\nThis host as a JSON record; root stands before every path read.");
PyDoc_STRVAR(hw_from_json_doc, "hw_from_json(text)\n--\n\nCheck a host record and give it back in canonical form.");
PyDoc_STRVAR(find_units_doc, "find_units(parents, class_hashes, own_hashes, param_bytes, flags)\n--\n\n"
                             "Indices of the units of a model. Arguments are bytes of 64-bit integers, flags of 32.");
PyDoc_STRVAR(hash64_doc, "hash64(data)\n--\n\nA stable 64-bit hash of bytes.");
PyDoc_STRVAR(plan_create_doc, "plan_create(units, state_bytes, rest_bytes, budget_bytes, slowdown_ppm, flags)\n--\n\n"
                              "Decide which units are recomputed. units: tuples (name, param_bytes, saved_bytes, "
                              "boundary_bytes, n_rows, flags).");
PyDoc_STRVAR(plan_from_json_doc, "plan_from_json(text)\n--\n\nA plan that was saved by Plan.to_json().");

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef functions[] = {
    {"bind", FAST(bind), METH_FASTCALL, bind_doc},
    {"set_log", set_log, METH_O, set_log_doc},
    {"unpack", core_unpack, METH_O, unpack_doc},
    {"snapshot_inputs", FAST(core_snapshot_inputs), METH_FASTCALL, snapshot_doc},
    {"tensors_in", core_tensors_in, METH_O, tensors_doc},
    {"versions", core_versions, METH_O, versions_doc},
    {"grad_flags", core_grad_flags, METH_O, grad_flags_doc},
    {"hw_detect", core_hw_detect, METH_O, hw_detect_doc},
    {"hw_from_json", core_hw_from_json, METH_O, hw_from_json_doc},
    {"find_units", FAST(core_find_units), METH_FASTCALL, find_units_doc},
    {"hash64", core_hash64, METH_O, hash64_doc},
    {"plan_create", FAST(core_plan_create), METH_FASTCALL, plan_create_doc},
    {"plan_from_json", core_plan_from_json, METH_O, plan_from_json_doc},
    {NULL, NULL, 0, NULL},
};

static int add_constants(PyObject *module) {
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"MODULE_LIST", MS_MODULE_LIST},     {"MODULE_CALLED", MS_MODULE_CALLED},
        {"MODULE_OPAQUE", MS_MODULE_OPAQUE}, {"UNIT_ELIGIBLE", MS_UNIT_ELIGIBLE},
        {"UNIT_RUN", MS_UNIT_RUN},           {"PLAN_FORCE", MS_PLAN_FORCE},
        {"PLAN_FASTEST", MS_PLAN_FASTEST},   {"PLAN_RECOMPUTE_ALL", MS_PLAN_RECOMPUTE_ALL},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) return -1;
    return PyModule_AddStringConstant(module, "version", ms_version());
}

static int add_exceptions(PyObject *module, core_state *state) {
    state->error = PyErr_NewExceptionWithDoc("memscale.MemScaleError", "MemScale could not do what was asked.",
                                             PyExc_RuntimeError, NULL);
    if (state->error == NULL) return -1;
    state->budget_error = PyErr_NewExceptionWithDoc(
        "memscale.BudgetError",
        "No plan fits the memory budget; ``smallest_peak_bytes`` is the least that could be reached.", state->error,
        NULL);
    if (state->budget_error == NULL) return -1;
    if (PyObject_SetAttr(state->budget_error, state->str_smallest, Py_None) < 0) return -1;
    state->stop = PyErr_NewExceptionWithDoc("memscale._core.StopRecompute",
                                            "Raised inside a recomputation once everything needed is there.",
                                            PyExc_BaseException, NULL);
    if (state->stop == NULL) return -1;
    if (PyModule_AddObjectRef(module, "MemScaleError", state->error) < 0) return -1;
    if (PyModule_AddObjectRef(module, "BudgetError", state->budget_error) < 0) return -1;
    return PyModule_AddObjectRef(module, "StopRecompute", state->stop);
}

static int intern_names(core_state *state) {
    struct {
        PyObject **slot;
        const char *text;
    } names[] = {{&state->str_shape, "shape"},
                 {&state->str_dtype, "dtype"},
                 {&state->str_device, "device"},
                 {&state->str_version, "_version"},
                 {&state->str_smallest, "smallest_peak_bytes"},
                 {&state->str_fields, "__dataclass_fields__"},
                 {&state->str_dict, "__dict__"},
                 {&state->str_requires_grad, "requires_grad"},
                 {&state->str_is_leaf, "is_leaf"},
                 {&state->str_is_nested, "is_nested"},
                 {&state->str_modules, "_modules"},
                 {&state->str_parameters, "_parameters"},
                 {&state->str_training, "training"},
                 {&state->str_enum, "_member_map_"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *names[i].slot = PyUnicode_InternFromString(names[i].text);
        if (*names[i].slot == NULL) return -1;
    }
    return 0;
}

static int exec_module(PyObject *module) {
    core_state *state = core_get_state(module);
    memset(state, 0, sizeof *state);
    if (intern_names(state) < 0 || add_constants(module) < 0 || add_exceptions(module, state) < 0) return -1;
    if (core_add_frame(module, state) < 0 || core_add_modules(module, state) < 0) return -1;
    return core_add_plan(module, state);
}

/* Every object that the state owns, for traverse and clear. */
#define STATE_OBJECTS(X)                                                                                               \
    X(error)                                                                                                           \
    X(budget_error)                                                                                                    \
    X(stop)                                                                                                            \
    X(frame_type)                                                                                                      \
    X(saved_type)                                                                                                      \
    X(plan_type)                                                                                                       \
    X(modules_type)                                                                                                    \
    X(tensor_type)                                                                                                     \
    X(parameter_type)                                                                                                  \
    X(detach)                                                                                                          \
    X(graph_task_id)                                                                                                   \
    X(copy)                                                                                                            \
    X(log_callback)                                                                                                    \
    X(str_shape)                                                                                                       \
    X(str_dtype)                                                                                                       \
    X(str_device)                                                                                                      \
    X(str_version)                                                                                                     \
    X(str_smallest)                                                                                                    \
    X(str_fields)                                                                                                      \
    X(str_dict)                                                                                                        \
    X(str_requires_grad)                                                                                               \
    X(str_is_leaf)                                                                                                     \
    X(str_is_nested)                                                                                                   \
    X(str_modules)                                                                                                     \
    X(str_parameters)                                                                                                  \
    X(str_training)                                                                                                    \
    X(str_enum)

static int traverse_module(PyObject *module, visitproc visit, void *arg) {
    core_state *state = core_get_state(module);
    if (state == NULL) return 0;
#define VISIT(name) Py_VISIT(state->name);
    STATE_OBJECTS(VISIT)
#undef VISIT
    return 0;
}

static int clear_module(PyObject *module) {
    core_state *state = core_get_state(module);
    if (state == NULL) return 0;
    if (state->log_callback != NULL) ms_log_set_sink(NULL);
#define CLEAR(name) Py_CLEAR(state->name);
    STATE_OBJECTS(CLEAR)
#undef CLEAR
    return 0;
}

static void free_module(void *module) { (void)clear_module(module); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, exec_module}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "memscale._core",
    .m_doc = "The extension module of MemScale: a thin layer over libmemscale. Not a public interface.",
    .m_size = sizeof(core_state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = traverse_module,
    .m_clear = clear_module,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__core(void); /* no header declares it */

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
