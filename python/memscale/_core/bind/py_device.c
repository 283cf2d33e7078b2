/* py_device.c - Rates and Device: how fast a device is, and what a step runs on. Both are values that never change.
 *
 * All calls are short: the GIL is kept.
 */
#include "bind.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

/* ---- Rates ---- */

typedef struct RatesObject {
    PyObject_HEAD
    ms_rates rates;
} RatesObject;

static PyObject *wrap_rates(core_state *state, ms_status status, const ms_rates *rates) {
    char *text = NULL;
    if (status == MS_OK) status = ms_rates_to_json(rates, &text); /* which checks them */
    ms_free(text);
    if (status != MS_OK) return core_raise(state, status);
    RatesObject *self = core_allocate(state->rates_type);
    if (self != NULL) self->rates = *rates;
    return (PyObject *)self;
}

/* Rates that the first version did not have may be left out: they are 0, as in a struct of that version. */
static PyObject *rates_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    ms_rates rates = {.struct_bytes = sizeof rates};
    int64_t n;
    const ms_field *fields = ms_rates_fields(&n);
    Py_ssize_t n_given = keywords == NULL ? 0 : PyDict_Size(keywords), n_known = 0;
    for (int64_t i = 0; i < n && n_given > 0; i++) {
        PyObject *value = PyDict_GetItemString(keywords, fields[i].name);
        if (value == NULL && fields[i].offset > offsetof(ms_rates, dispatch_ns)) continue;
        if (value == NULL) return PyErr_Format(PyExc_TypeError, "Rates(): '%s' is missing", fields[i].name);
        int64_t number = PyLong_AsLongLong(value);
        if (PyErr_Occurred()) return NULL;
        memcpy((char *)&rates + fields[i].offset, &number, sizeof number);
        n_known++;
    }
    if (PyTuple_Size(args) == 0 && n_known == n_given && n_given > 0)
        return wrap_rates(core_state_of_type(type), MS_OK, &rates);
    PyErr_Format(PyExc_TypeError, "Rates() takes keyword arguments, one for each of its %d rates", (int)n);
    return NULL;
}

PyDoc_STRVAR(from_json_doc, "from_json(text, /)\n--\n\nThe rates that to_json() wrote.");

static PyObject *rates_from_json(PyObject *type, PyObject *object) {
    size_t n;
    const char *text = core_utf8(object, &n);
    if (text == NULL) return NULL;
    ms_rates rates = {.struct_bytes = sizeof rates};
    return wrap_rates(core_state_of_type((PyTypeObject *)type), ms_rates_from_json(text, n, &rates), &rates);
}

PyDoc_STRVAR(to_json_doc, "to_json($self, /)\n--\n\nThe rates as JSON text.");

static PyObject *rates_to_json(PyObject *self, PyObject *Py_UNUSED(unused)) {
    char *text = NULL;
    ms_status status = ms_rates_to_json(&((RatesObject *)self)->rates, &text);
    return status == MS_OK ? core_text_to_str(text) : core_raise(core_state_of_type(Py_TYPE(self)), status);
}

PyDoc_STRVAR(as_dict_doc, "as_dict($self, /)\n--\n\nAll rates by name.");

static PyObject *rates_as_dict(PyObject *self, PyObject *Py_UNUSED(unused)) {
    int64_t n;
    const ms_field *fields = ms_rates_fields(&n);
    return core_fields_of(fields, n, &((RatesObject *)self)->rates);
}

/* -1 with an exception. */
static int find_model(core_state *state, PyObject *name, ms_gpu_model *out) {
    size_t n;
    const char *text = core_utf8(name, &n);
    if (text == NULL) return -1;
    if (strlen(text) != n) {
        PyErr_SetString(PyExc_ValueError, "the name of a GPU must not contain null characters");
        return -1;
    }
    *out = (ms_gpu_model){.struct_bytes = sizeof *out};
    ms_status status = ms_gpu_model_find(text, out);
    if (status == MS_OK) return 0;
    (void)core_raise(state, status);
    return -1;
}

PyDoc_STRVAR(of_model_doc, "of_model(name, /)\n--\n\nWhat can be expected of a GPU, by its data sheet.");

static PyObject *rates_of_model(PyObject *type, PyObject *name) {
    core_state *state = core_state_of_type((PyTypeObject *)type);
    ms_gpu_model model;
    ms_rates rates = {.struct_bytes = sizeof rates};
    if (find_model(state, name, &model) < 0) return NULL;
    return wrap_rates(state, ms_rates_from_model(&model, &rates), &rates);
}

PyDoc_STRVAR(guess_doc, "guess(capability, memory_bytes, n_multiprocessors, /)\n--\n\n"
                        "A rough guess for a device that is neither in the table nor measured.");

static PyObject *rates_guess(PyObject *type, PyObject *args) {
    long long capability, memory_bytes, n_multiprocessors;
    ms_rates rates = {.struct_bytes = sizeof rates};
    if (!PyArg_ParseTuple(args, "LLL:guess", &capability, &memory_bytes, &n_multiprocessors)) return NULL;
    ms_status status = ms_rates_guess(capability, memory_bytes, n_multiprocessors, &rates);
    return wrap_rates(core_state_of_type((PyTypeObject *)type), status, &rates);
}

static PyObject *rates_compare(PyObject *self, PyObject *other, int operation) {
    if ((operation != Py_EQ && operation != Py_NE) || !PyObject_TypeCheck(other, Py_TYPE(self))) {
        Py_INCREF(Py_NotImplemented);
        return Py_NotImplemented;
    }
    int differ = memcmp(&((RatesObject *)self)->rates, &((RatesObject *)other)->rates, sizeof(ms_rates)) != 0;
    return PyBool_FromLong(differ == (operation == Py_NE));
}

static Py_hash_t rates_hash(PyObject *self) {
    Py_hash_t hash = (Py_hash_t)ms_hash64(&((RatesObject *)self)->rates, sizeof(ms_rates), 0);
    return hash == -1 ? -2 : hash;
}

static PyMethodDef rates_methods[] = {
    {"from_json", rates_from_json, METH_O | METH_CLASS, from_json_doc},
    {"of_model", rates_of_model, METH_O | METH_CLASS, of_model_doc},
    {"guess", rates_guess, METH_VARARGS | METH_CLASS, guess_doc},
    {"to_json", rates_to_json, METH_NOARGS, to_json_doc},
    {"as_dict", rates_as_dict, METH_NOARGS, as_dict_doc},
    {NULL, NULL, 0, NULL},
};

/* Each field of the struct is an attribute. */
static PyObject *rates_getattr(PyObject *self, PyObject *name) {
    int64_t n, value;
    const ms_field *fields = ms_rates_fields(&n);
    for (int64_t i = 0; i < n; i++) {
        if (PyUnicode_CompareWithASCIIString(name, fields[i].name) != 0) continue;
        memcpy(&value, (const char *)&((RatesObject *)self)->rates + fields[i].offset, sizeof value);
        return PyLong_FromLongLong(value);
    }
    return PyObject_GenericGetAttr(self, name);
}

static PyType_Slot rates_slots[] = {
    {Py_tp_doc, (void *)"How fast a device is: ms_rates of memscale.h, whose comments describe each field."},
    {Py_tp_new, rates_new},
    {Py_tp_dealloc, core_free},
    {Py_tp_methods, rates_methods},
    {Py_tp_getattro, rates_getattr},
    {Py_tp_richcompare, rates_compare},
    {Py_tp_hash, rates_hash},
    {0, NULL},
};

static PyType_Spec rates_spec = {.name = "memscale._core.Rates",
                                 .basicsize = sizeof(RatesObject),
                                 .flags = Py_TPFLAGS_DEFAULT,
                                 .slots = rates_slots};

/* ---- Devices ---- */

typedef struct DeviceObject {
    PyObject_HEAD
    ms_device device;
    PyObject *name;  /* owned str */
    PyObject *rates; /* owned Rates, which `device` borrows from */
    PyObject *kind;  /* owned str */
} DeviceObject;

static int64_t kind_of(PyObject *text, int is_integrated) {
    if (PyUnicode_CompareWithASCIIString(text, "cpu") == 0) return MS_DEVICE_HOST;
    if (PyUnicode_CompareWithASCIIString(text, "cuda") == 0)
        return is_integrated ? MS_DEVICE_INTEGRATED : MS_DEVICE_GPU;
    PyErr_SetString(PyExc_ValueError, "Device(): kind must be 'cpu' or 'cuda'");
    return -1;
}

/* The library has all rules for devices: to check this one, a request is made for it. */
static int check_device(core_state *state, const ms_device *device) {
    ms_settings settings = {.struct_bytes = sizeof settings};
    ms_plan_request request = {.struct_bytes = sizeof request};
    ms_status status = ms_settings_init(&settings, MS_MODE_CONSERVATIVE);
    if (status == MS_OK) status = ms_plan_request_init(&request, &settings, device, NULL);
    if (status == MS_OK) return 0;
    (void)core_raise(state, status);
    return -1;
}

static PyObject *device_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"kind",         "name",          "rates", "n_multiprocessors",
                                        "usable_bytes", "is_integrated", NULL};
    core_state *state = core_state_of_type(type);
    PyObject *kind = NULL, *name = NULL, *rates = NULL;
    long long n_multiprocessors = -1, usable_bytes = -1;
    int is_integrated = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$UUO!LLp:Device", (char **)names, &kind, &name,
                                     state->rates_type, &rates, &n_multiprocessors, &usable_bytes, &is_integrated))
        return NULL;
    if (kind == NULL || name == NULL || rates == NULL) {
        PyErr_SetString(PyExc_TypeError, "Device() needs kind, name, rates, n_multiprocessors and usable_bytes");
        return NULL;
    }
    ms_device device = {.struct_bytes = sizeof device,
                        .rates = &((RatesObject *)rates)->rates,
                        .n_multiprocessors = n_multiprocessors,
                        .usable_bytes = usable_bytes,
                        .kind = kind_of(kind, is_integrated)};
    if (device.kind < 0 || check_device(state, &device) < 0) return NULL;
    DeviceObject *self = core_allocate(type);
    if (self == NULL) return NULL;
    self->device = device;
    Py_INCREF(name);
    self->name = name;
    Py_INCREF(rates);
    self->rates = rates;
    Py_INCREF(kind);
    self->kind = kind;
    return (PyObject *)self;
}

PyDoc_STRVAR(device_of_model_doc, "of_model(name, /)\n--\n\nA GPU of the table, which need not be in this machine.");

static PyObject *device_of_model(PyObject *type, PyObject *name) {
    core_state *state = core_state_of_type((PyTypeObject *)type);
    ms_gpu_model model;
    ms_rates rates = {.struct_bytes = sizeof rates};
    ms_device device = {.struct_bytes = sizeof device};
    if (find_model(state, name, &model) < 0) return NULL;
    ms_status status = ms_device_from_model(&model, &rates, &device);
    PyObject *object = wrap_rates(state, status, &rates);
    if (object == NULL) return NULL;
    PyObject *keywords =
        Py_BuildValue("{sssssNsLsL}", "kind", "cuda", "name", model.name, "rates", object, "n_multiprocessors",
                      (long long)device.n_multiprocessors, "usable_bytes", (long long)device.usable_bytes);
    PyObject *none = PyTuple_New(0);
    PyObject *result = keywords == NULL || none == NULL ? NULL : device_new((PyTypeObject *)type, none, keywords);
    Py_XDECREF(keywords);
    Py_XDECREF(none);
    return result;
}

static PyMethodDef device_methods[] = {
    {"of_model", device_of_model, METH_O | METH_CLASS, device_of_model_doc},
    {NULL, NULL, 0, NULL},
};

static void device_dealloc(PyObject *object) {
    DeviceObject *self = (DeviceObject *)object;
    Py_CLEAR(self->name);
    Py_CLEAR(self->rates);
    Py_CLEAR(self->kind);
    core_free(object);
}

static PyObject *device_capability(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(((DeviceObject *)self)->device.rates->capability);
}

static PyMemberDef device_members[] = {
    {"kind", T_OBJECT_EX, offsetof(DeviceObject, kind), READONLY, "'cpu' or 'cuda'"},
    {"name", T_OBJECT_EX, offsetof(DeviceObject, name), READONLY, "as the driver or the table of GPUs has it"},
    {"rates", T_OBJECT_EX, offsetof(DeviceObject, rates), READONLY, "how fast it is"},
    {"usable_bytes", T_LONGLONG, offsetof(DeviceObject, device.usable_bytes), READONLY,
     "what torch's allocator can have there"},
    {"n_multiprocessors", T_LONGLONG, offsetof(DeviceObject, device.n_multiprocessors), READONLY,
     "of a GPU; torch's threads on a CPU"},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef device_getters[] = {
    {"capability", device_capability, NULL, "10 times the major and the minor compute capability; 0 for a CPU", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot device_slots[] = {
    {Py_tp_doc, (void *)"A device that steps are simulated on and planned for: ms_device of memscale.h."},
    {Py_tp_new, device_new},
    {Py_tp_dealloc, device_dealloc},
    {Py_tp_methods, device_methods},
    {Py_tp_members, device_members},
    {Py_tp_getset, device_getters},
    {0, NULL},
};

static PyType_Spec device_spec = {.name = "memscale._core.Device",
                                  .basicsize = sizeof(DeviceObject),
                                  .flags = Py_TPFLAGS_DEFAULT,
                                  .slots = device_slots};

const ms_device *core_device_of(core_state *state, PyObject *object) {
    if (PyObject_TypeCheck(object, state->device_type)) return &((DeviceObject *)object)->device;
    PyErr_SetString(PyExc_TypeError, "a Device is needed");
    return NULL;
}

int core_add_device(PyObject *module, core_state *state) {
    state->rates_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &rates_spec, NULL);
    if (state->rates_type == NULL || PyModule_AddType(module, state->rates_type) < 0) return -1;
    state->device_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &device_spec, NULL);
    return state->device_type == NULL ? -1 : PyModule_AddType(module, state->device_type);
}

/* ---- Models of GPUs ---- */

static PyObject *model_dict(const ms_gpu_model *model) {
    int64_t n;
    const ms_field *fields = ms_gpu_model_fields(&n);
    return core_fields_of(fields, n, model);
}

PyObject *core_gpu_models(PyObject *module, PyObject *Py_UNUSED(unused)) {
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < ms_gpu_model_count(); i++) {
        ms_gpu_model model = {.struct_bytes = sizeof model};
        ms_status status = ms_gpu_model_get(i, &model);
        PyObject *row = status == MS_OK ? model_dict(&model) : core_raise(core_get_state(module), status);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

PyObject *core_gpu_model(PyObject *module, PyObject *name) {
    ms_gpu_model model;
    return find_model(core_get_state(module), name, &model) < 0 ? NULL : model_dict(&model);
}

static PyObject *has_type(PyObject *number, int (*has)(int64_t)) {
    int64_t capability = PyLong_AsLongLong(number);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(has(capability));
}

PyObject *core_capability_has_bf16(PyObject *Py_UNUSED(module), PyObject *capability) {
    return has_type(capability, ms_capability_has_bf16);
}

PyObject *core_capability_has_fp16(PyObject *Py_UNUSED(module), PyObject *capability) {
    return has_type(capability, ms_capability_has_fp16);
}
