/* module.c - memscale._core: the module itself, its state, its exceptions and logging.
 *
 * Multi-phase initialisation; everything that lives longer than a call is in core_state.
 */
#include "bind/bind.h"
#include "core.h"
#include "offload/offloading.h"
#include "pointwise/pointwise.h"
#include "recompute/recompute.h"
#include "tensors.h"

#include <string.h>

core_state *core_get_state(PyObject *module) { return PyModule_GetState(module); }

core_state *core_state_of_type(PyTypeObject *type) { return PyType_GetModuleState(type); }

static PyObject *exception_for(const core_state *state, ms_status status) {
    switch (status) {
    case MS_E_INVALID:
    case MS_E_PARSE:
    case MS_E_LIMIT:
    case MS_E_NOT_FOUND:
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
    ms_error_info info = {.struct_bytes = sizeof info};
    if (ms_error_get_info(&info) != MS_OK) info.needed_bytes = 0;
    const char *message = ms_error_message();
    PyObject *type = exception_for(state, status);
    if (message[0] == '\0') message = ms_status_text(status);
    /* A name that was cut to fit may end inside a character. */
    PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
    PyObject *error = text == NULL ? NULL : PyObject_CallFunctionObjArgs(type, text, NULL);
    Py_XDECREF(text);
    if (error == NULL) return NULL;
    if (status == MS_E_BUDGET) {
        PyObject *bytes = PyLong_FromLongLong(info.needed_bytes);
        int failed = bytes == NULL || PyObject_SetAttr(error, state->str_smallest_peak_bytes, bytes) < 0;
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

PyDoc_STRVAR(bind_doc, "bind(bindings)\n--\n\n"
                       "Give the extension what it needs of torch and Python, as a dict (core.h, CORE_BOUND).");

static PyObject *bind(PyObject *module, PyObject *bindings) {
    core_state *state = core_get_state(module);
    static const char *const names[] = {
#define NAME(name) #name,
        CORE_BOUND(NAME)
#undef NAME
#define TEXT(token) #token
#define NAME(name) TEXT(get_##name),
            CORE_TENSOR_ATTRIBUTES(NAME)
#undef NAME
#undef TEXT
    };
    PyObject **slots[] = {
#define SLOT(name) &state->name,
        CORE_BOUND(SLOT)
#undef SLOT
#define SLOT(name) &state->get_##name,
            CORE_TENSOR_ATTRIBUTES(SLOT)
#undef SLOT
    };
    if (!PyDict_Check(bindings)) {
        PyErr_SetString(PyExc_TypeError, "bind() takes a dict");
        return NULL;
    }
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        if (PyDict_GetItemString(bindings, names[i]) != NULL) continue;
        return PyErr_Format(PyExc_TypeError, "bind(): '%s' is missing", names[i]);
    }
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        PyObject *old = *slots[i];
        *slots[i] = PyDict_GetItemString(bindings, names[i]);
        Py_INCREF(*slots[i]);
        Py_XDECREF(old);
    }
    if (core_probe_python(state) < 0) return NULL;
    Py_RETURN_NONE;
}

int core_check_bound(const core_state *state) {
    if (state->note_numpy != NULL) return 0;
    PyErr_SetString(PyExc_RuntimeError, "bind() has not been called");
    return -1;
}

core_pending core_set_aside(void) {
    core_pending pending;
    PyErr_Fetch(&pending.type, &pending.value, &pending.trace);
    return pending;
}

void core_put_back(core_pending pending) {
    if (pending.type != NULL && PyErr_Occurred()) PyErr_WriteUnraisable(NULL); /* the first one counts */
    if (pending.type != NULL) PyErr_Restore(pending.type, pending.value, pending.trace);
}

/* Returns the previous value, for the caller to put back. */
static PyObject *set_object(PyObject **slot, PyObject *value) {
    PyObject *old = *slot;
    if (value != Py_None) Py_INCREF(value);
    *slot = value == Py_None ? NULL : value;
    if (old != NULL) return old;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(set_lock_doc, "set_random_lock(lock)\n--\n\n"
                           "The lock of runs that draw from the CPU's generators, which all threads share; or None.");

static PyObject *set_random_lock(PyObject *module, PyObject *lock) {
    return set_object(&core_get_state(module)->random_lock, lock);
}

PyDoc_STRVAR(set_observer_doc, "set_observer(callback)\n--\n\n"
                               "Call callback(unit) before a unit is recomputed; None: call nothing. Returns what "
                               "was set before.");

static PyObject *set_observer(PyObject *module, PyObject *callback) {
    return set_object(&core_get_state(module)->observer, callback);
}

/* Called by libmemscale, on any thread, with or without the GIL held. */
static void write_log(void *user, int level, const char *message) {
    PyGILState_STATE gil = PyGILState_Ensure();
    core_state *state = user;
    PyObject *callback = state->log_callback;
    if (callback != NULL) {
        core_pending pending = core_set_aside();
        Py_INCREF(callback);
        PyObject *result = PyObject_CallFunction(callback, "is", level, message);
        if (result == NULL) PyErr_WriteUnraisable(callback);
        Py_XDECREF(result);
        Py_DECREF(callback);
        core_put_back(pending);
    }
    PyGILState_Release(gil);
}

PyDoc_STRVAR(set_log_doc, "set_log(callback)\n--\n\n"
                          "Send the core's messages to callback(level, text), or nowhere with None. Levels: 0 debug, "
                          "1 info, 2 warning. Returns what was set before.");

static PyObject *set_log(PyObject *module, PyObject *callback) {
    core_state *state = core_get_state(module);
    if (callback != Py_None && !PyCallable_Check(callback)) {
        PyErr_SetString(PyExc_TypeError, "set_log() takes a callable or None");
        return NULL;
    }
    ms_log_set_sink(NULL);
    PyObject *old = state->log_callback;
    state->log_callback = NULL;
    if (callback != Py_None) {
        Py_INCREF(callback);
        state->log_callback = callback;
        state->sink = (ms_log_sink){.write = write_log, .user = state, .min_level = MS_LOG_DEBUG};
        ms_log_set_sink(&state->sink);
    }
    if (old != NULL) return old;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(unpack_doc, "unpack(handle)\n--\n\nThe saved tensor of a handle; recomputes it if need be.");
PyDoc_STRVAR(unpack_offloaded_doc,
             "unpack_offloaded(handle)\n--\n\nThe same for a layer whose tensors are on the host.");
PyDoc_STRVAR(unpack_pointwise_doc,
             "unpack_pointwise(handle)\n--\n\nThe same for a layer whose pointwise results are made again.");
PyDoc_STRVAR(tensors_doc, "tensors_in(obj)\n--\n\nThe tensors in nested tuples, lists, dicts and dataclasses.");
PyDoc_STRVAR(hw_detect_doc, "hw_detect(root)\n--\n\nThis host as a JSON record; root is put before every path.");
PyDoc_STRVAR(hw_from_json_doc, "hw_from_json(text)\n--\n\nCheck a host record and return it in canonical form.");
PyDoc_STRVAR(checksum_doc,
             "checksum(data)\n--\n\nThe checksum of bytes; Gpu.checksum computes the same of device memory.");
PyDoc_STRVAR(gpu_models_doc, "gpu_models()\n--\n\nThe GPUs that are known by their data sheets, a dict each.");
PyDoc_STRVAR(gpu_model_doc, "gpu_model(name)\n--\n\nOne of them, by its key or any usual spelling of its name.");
PyDoc_STRVAR(find_units_doc, "find_units(parents, class_hashes, own_hashes, param_bytes, flags)\n--\n\n"
                             "The units of a model as tuples (index, UNIT_BLOCK or 0). Arguments are bytes of 64-bit "
                             "integers, flags of 32.");
PyDoc_STRVAR(hash64_doc, "hash64(data)\n--\n\nA stable 64-bit hash of bytes.");
PyDoc_STRVAR(fit_shapes_doc, "fit_shapes(batch, length)\n--\n\n"
                             "Shapes (batch, length) at which a step is profiled for profile_fit().");
PyDoc_STRVAR(next_batch_doc,
             "next_batch(*, fits, too_large, limit_bytes, n_tried)\n--\n\n"
             "The batch to try next, 0: none. fits: (batch, bytes) of the largest that is known to fit; "
             "too_large: of the smallest that does not.");
PyDoc_STRVAR(next_changes_doc,
             "next_changes(*, allowed, tried, fitting, limits, fixed)\n--\n\n"
             "The set of changes (CHANGE_*) to try next, the cheapest first; 0: none. fitting: sets "
             "that fit. limits: what may be needed, without and with the largest budget. fixed: bytes "
             "of parameters, gradients and optimizer state.");
PyDoc_STRVAR(budget_for_peak_doc, "budget_for_peak(n)\n--\n\n"
                                  "The least budget, in round figures, for a step with this peak and its margin.");
PyDoc_STRVAR(plan_from_json_doc, "plan_from_json(text)\n--\n\nA plan that was saved by Plan.to_json().");
PyDoc_STRVAR(profile_from_traces_doc, "profile_from_traces(names, param_bytes, flags, traces, shape)\n--\n\n"
                                      "A profile from the traces of a step: plain, recomputed, pointwise; all but the "
                                      "first may be None.");
PyDoc_STRVAR(
    profile_from_watched_doc,
    "profile_from_watched(names, param_bytes, flags, trace, shape)\n--\n\n"
    "A profile from the trace of a step whose units were recomputed and told what autograd saved (TRACE_SAVE).");
PyDoc_STRVAR(profile_from_json_doc, "profile_from_json(text)\n--\n\nA profile that was saved by Profile.to_json().");
PyDoc_STRVAR(profile_fit_doc,
             "profile_fit(profiles)\n--\n\n"
             "One profile for all shapes, from a list of profiles at a few; the last one checks the fit.");

PyDoc_STRVAR(run_in_children_doc,
             "run_in_children(functions, *, quiet_seconds, limit_seconds, memory_bytes=0)\n--\n\n"
             "Call each of a tuple of functions in a throw-away copy of this process, and return a list of the bytes "
             "that they return. In place of bytes: a MemScaleError if no such process can be had, an OSError if it "
             "ended without an answer, a ValueError if it took too long.");

PyDoc_STRVAR(pointwise_doc,
             "pointwise(dtypes, ops, inputs, output, n, place=..., /)\n--\n\n"
             "Compute a pointwise program (enum ms_pointwise_kind; ops are tuples (kind, dtype, a, b, scalar)) for n "
             "elements at these addresses: on the host, or queued on a device; place is (Gpu, device, stream).");
PyDoc_STRVAR(pointwise_source_doc, "pointwise_source(dtypes, ops, /)\n--\n\nThe source of its kernel.");

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef functions[] = {
    {"bind", bind, METH_O, bind_doc},
    {"set_random_lock", set_random_lock, METH_O, set_lock_doc},
    {"set_observer", set_observer, METH_O, set_observer_doc},
    {"set_log", set_log, METH_O, set_log_doc},
    {"unpack", core_unpack, METH_O, unpack_doc},
    {"unpack_offloaded", core_unpack_offloaded, METH_O, unpack_offloaded_doc},
    {"unpack_pointwise", core_unpack_pointwise, METH_O, unpack_pointwise_doc},
    {"pointwise", core_pointwise, METH_VARARGS, pointwise_doc},
    {"pointwise_source", core_pointwise_source, METH_VARARGS, pointwise_source_doc},
    {"tensors_in", core_tensors_in, METH_O, tensors_doc},
    {"hw_detect", core_hw_detect, METH_O, hw_detect_doc},
    {"hw_from_json", core_hw_from_json, METH_O, hw_from_json_doc},
    {"gpu_models", core_gpu_models, METH_NOARGS, gpu_models_doc},
    {"gpu_model", core_gpu_model, METH_O, gpu_model_doc},
    {"capability_has_bf16", core_capability_has_bf16, METH_O,
     PyDoc_STR("capability_has_bf16(capability)\n--\n\nDoes such a GPU compute in bfloat16 itself?")},
    {"capability_has_fp16", core_capability_has_fp16, METH_O,
     PyDoc_STR("capability_has_fp16(capability)\n--\n\nDoes such a GPU compute in float16 itself?")},
    {"find_units", FAST(core_find_units), METH_FASTCALL, find_units_doc},
    {"hash64", core_hash64, METH_O, hash64_doc},
    {"checksum", core_checksum, METH_O, checksum_doc},
    {"plan_from_json", core_plan_from_json, METH_O, plan_from_json_doc},
    {"profile_from_traces", FAST(core_profile_from_traces), METH_FASTCALL, profile_from_traces_doc},
    {"profile_from_watched", FAST(core_profile_from_watched), METH_FASTCALL, profile_from_watched_doc},
    {"profile_from_json", core_profile_from_json, METH_O, profile_from_json_doc},
    {"format_bytes", core_format_bytes, METH_O, PyDoc_STR("format_bytes(n)\n--\n\nA size for people: 10.6 GB.")},
    {"format_ns", core_format_ns, METH_O, PyDoc_STR("format_ns(n)\n--\n\nA time for people: 7.70 ms.")},
    {"format_place", FAST(core_format_place), METH_FASTCALL,
     PyDoc_STR("format_place(phase, layer)\n--\n\nWhere in a step something happens: in backward of lm_head.")},
    {"fit_shapes", FAST(core_fit_shapes), METH_FASTCALL, fit_shapes_doc},
    {"next_batch", FAST(core_next_batch), METH_VARARGS | METH_KEYWORDS, next_batch_doc},
    {"next_changes", FAST(core_next_changes), METH_VARARGS | METH_KEYWORDS, next_changes_doc},
    {"budget_for_peak", core_budget_for_peak, METH_O, budget_for_peak_doc},
    {"host_limit", core_host_limit, METH_O,
     PyDoc_STR("host_limit(n)\n--\n\nHow much host memory may be filled: n, or if negative what this host has.")},
    {"run_in_children", FAST(core_run_in_children), METH_VARARGS | METH_KEYWORDS, run_in_children_doc},
    {"profile_fit", core_profile_fit, METH_O, profile_fit_doc},
    {NULL, NULL, 0, NULL},
};

static int add_constants(PyObject *module) {
    static const struct {
        const char *name;
        long value;
    } constants[] = {
        {"MODULE_LIST", MS_MODULE_LIST},
        {"MODULE_CALLED", MS_MODULE_CALLED},
        {"MODULE_OPAQUE", MS_MODULE_OPAQUE},
        {"UNIT_BLOCK", MS_UNIT_BLOCK},
        {"ACTION_KEEP", MS_ACTION_KEEP},
        {"MODEL_HALF", MS_MODEL_HALF},
        {"PLAN_FASTEST", MS_PLAN_FASTEST},
        {"TECHNIQUE_RECOMPUTE", MS_TECHNIQUE_RECOMPUTE},
        {"TECHNIQUE_OFFLOAD", MS_TECHNIQUE_OFFLOAD},
        {"TECHNIQUE_TILE", MS_TECHNIQUE_TILE},
        {"TECHNIQUE_HALF", MS_TECHNIQUE_HALF},
        {"TECHNIQUE_8BIT", MS_TECHNIQUE_8BIT},
        {"TRACE_OP", MS_TRACE_OP},
        {"TRACE_ALLOC", MS_TRACE_ALLOC},
        {"TRACE_FREE", MS_TRACE_FREE},
        {"TRACE_UNIT", MS_TRACE_UNIT},
        {"TRACE_PHASE", MS_TRACE_PHASE},
        {"TRACE_RECOMPUTE", MS_TRACE_RECOMPUTE},
        {"TRACE_SAVE", MS_TRACE_SAVE},
        {"TRACE_GRADIENT", MS_TRACE_GRADIENT},
        {"TRACE_FUNCTION", MS_TRACE_FUNCTION},
        {"TRACE_INPUT", MS_TRACE_INPUT},
        {"KEEP_ATTENTION", MS_KEEP_ATTENTION},
        {"OFFLOAD_LEAST_BYTES", MS_OFFLOAD_LEAST_BYTES},
        {"OFFLOAD_LEAVING", MS_OFFLOAD_LEAVING},
        {"KEEP_PRODUCTS", MS_KEEP_PRODUCTS},
        {"SIMULATE_ALLOCATOR", MS_SIMULATE_ALLOCATOR},
        {"SIMULATE_ENGINE_THREAD", MS_SIMULATE_ENGINE_THREAD},
        {"SIMULATE_FUSED", MS_SIMULATE_FUSED},
        {"BOUNDARY_FORWARD_BEGINS", MS_BOUNDARY_FORWARD_BEGINS},
        {"BOUNDARY_FORWARD_ENDS", MS_BOUNDARY_FORWARD_ENDS},
        {"BOUNDARY_BACKWARD_BEGINS", MS_BOUNDARY_BACKWARD_BEGINS},
        {"BOUNDARY_PEAK", MS_BOUNDARY_PEAK},
        {"SIMULATE_RESUMED", MS_SIMULATE_RESUMED},
        {"SIMULATE_KEEP_GRADIENTS", MS_SIMULATE_KEEP_GRADIENTS},
        {"SIMULATE_GROWING", MS_SIMULATE_GROWING},
        {"CATEGORY_GRADIENT", MS_CATEGORY_GRADIENT},
        {"CATEGORY_OPTIMIZER", MS_CATEGORY_OPTIMIZER},
        {"CHANGE_BUDGET", MS_CHANGE_BUDGET},
        {"CHANGE_FUSED", MS_CHANGE_FUSED},
        {"CHANGE_TECHNIQUE", MS_CHANGE_TECHNIQUE},
        {"CHANGE_BATCH", MS_CHANGE_BATCH},
        {"CHANGE_AUTOCAST", MS_CHANGE_AUTOCAST},
        {"CHANGE_HALF", MS_CHANGE_HALF},
        {"CHANGE_ADAFACTOR", MS_CHANGE_ADAFACTOR},
        {"RATES_MEASURED", MS_RATES_MEASURED},
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
    if (PyObject_SetAttr(state->budget_error, state->str_smallest_peak_bytes, Py_None) < 0) return -1;
    state->stop = PyErr_NewExceptionWithDoc(
        "memscale._core.StopRecompute",
        "Raised inside a recomputation to end it, once all needed tensors are recomputed.", PyExc_BaseException, NULL);
    if (state->stop == NULL) return -1;
    if (PyModule_AddObjectRef(module, "MemScaleError", state->error) < 0) return -1;
    if (PyModule_AddObjectRef(module, "BudgetError", state->budget_error) < 0) return -1;
    return PyModule_AddObjectRef(module, "StopRecompute", state->stop);
}

static int intern_names(core_state *state) {
#define INTERN(name)                                                                                                   \
    state->str_##name = PyUnicode_InternFromString(#name);                                                             \
    if (state->str_##name == NULL) return -1;
    CORE_NAMES(INTERN)
    CORE_TENSOR_ATTRIBUTES(INTERN)
    CORE_UNREAD_TABLES(INTERN)
#undef INTERN
    state->numpy_random = PyUnicode_InternFromString("numpy.random");
    return state->numpy_random == NULL ? -1 : 0;
}

static int exec_module(PyObject *module) {
    core_state *state = core_get_state(module);
    memset(state, 0, sizeof *state);
    if (intern_names(state) < 0 || add_constants(module) < 0 || add_exceptions(module, state) < 0) return -1;
    if (core_add_saved(module, state) < 0 || core_add_modules(module, state) < 0) return -1;
    if (core_add_randomness(module, state) < 0 || core_add_unit(module, state) < 0) return -1;
    if (core_add_profile(module, state) < 0 || core_add_plan(module, state) < 0 || core_add_device(module, state) < 0 ||
        core_add_request(module, state) < 0 || core_add_shape_plans(module, state) < 0 ||
        core_add_gpu(module, state) < 0 || core_add_tables(module, state) < 0)
        return -1;
    if (core_add_offload_engine(module, state) < 0 || core_add_offloaded(module, state) < 0 ||
        core_add_offloaded_inputs(module, state) < 0 || core_add_pointwise(module, state) < 0)
        return -1;
    state->unpack = PyObject_GetAttrString(module, "unpack");
    state->unpack_offloaded = PyObject_GetAttrString(module, "unpack_offloaded");
    state->unpack_pointwise = PyObject_GetAttrString(module, "unpack_pointwise");
    return state->unpack == NULL || state->unpack_offloaded == NULL || state->unpack_pointwise == NULL ? -1 : 0;
}

/* Every other object that the state owns, for traverse and clear. */
#define STATE_OBJECTS(X)                                                                                               \
    X(error)                                                                                                           \
    X(budget_error)                                                                                                    \
    X(stop)                                                                                                            \
    X(handle_type)                                                                                                     \
    X(saved_type)                                                                                                      \
    X(plan_type)                                                                                                       \
    X(profile_type)                                                                                                    \
    X(rates_type)                                                                                                      \
    X(device_type)                                                                                                     \
    X(request_type)                                                                                                    \
    X(shape_plans_type)                                                                                                \
    X(modules_type)                                                                                                    \
    X(unit_type)                                                                                                       \
    X(call_type)                                                                                                       \
    X(randomness_type)                                                                                                 \
    X(gpu_type)                                                                                                        \
    X(offload_engine_type)                                                                                             \
    X(offloaded_tensors_type)                                                                                          \
    X(offloaded_handle_type)                                                                                           \
    X(offloaded_inputs_type)                                                                                           \
    X(offload_mark_type)                                                                                               \
    X(pointwise_tensors_type)                                                                                          \
    X(pointwise_handle_type)                                                                                           \
    X(unpack)                                                                                                          \
    X(unpack_offloaded)                                                                                                \
    X(unpack_pointwise)                                                                                                \
    X(random_lock)                                                                                                     \
    X(observer)                                                                                                        \
    X(last_switches)                                                                                                   \
    X(numpy_random)                                                                                                    \
    X(owned_kinds)                                                                                                     \
    X(raw_python.owner)                                                                                                \
    X(raw_python.last)                                                                                                 \
    X(raw_numpy.owner)                                                                                                 \
    X(raw_numpy.last)                                                                                                  \
    X(log_callback)

static int traverse_module(PyObject *module, visitproc visit, void *arg) {
    core_state *state = core_get_state(module);
    if (state == NULL) return 0;
#define VISIT(name) Py_VISIT(state->name);
    STATE_OBJECTS(VISIT)
    CORE_BOUND(VISIT)
#undef VISIT
#define VISIT(name) Py_VISIT(state->get_##name);
    CORE_TENSOR_ATTRIBUTES(VISIT)
#undef VISIT
    return 0;
}

static int clear_module(PyObject *module) {
    core_state *state = core_get_state(module);
    if (state == NULL) return 0;
    if (state->log_callback != NULL) ms_log_set_sink(NULL);
    state->raw_python.memory = state->raw_numpy.memory = NULL; /* their owners go */
#define CLEAR(name) Py_CLEAR(state->name);
    STATE_OBJECTS(CLEAR)
    CORE_BOUND(CLEAR)
#undef CLEAR
#define CLEAR(name) Py_CLEAR(state->str_##name);
    CORE_NAMES(CLEAR)
    CORE_TENSOR_ATTRIBUTES(CLEAR)
    CORE_UNREAD_TABLES(CLEAR)
#undef CLEAR
#define CLEAR(name) Py_CLEAR(state->get_##name);
    CORE_TENSOR_ATTRIBUTES(CLEAR)
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
