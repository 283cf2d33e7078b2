/* py_gpu.c - the GPUs of this process: a type over ms_gpu_*.
 *
 * Calls release the GIL, so another thread may close the object meanwhile. It is then closed for new calls at once, and
 * destroyed when the last call that was running returns. The counter of running calls is guarded by the GIL.
 */
#include "bind.h"

#include <string.h>

typedef struct GpuObject {
    PyObject_HEAD
    ms_gpu *gpu; /* owned; NULL once it is destroyed */
    Py_ssize_t n_running;
    int is_closed;
} GpuObject;

static void destroy(GpuObject *self) {
    ms_gpu *gpu = self->gpu;
    self->gpu = NULL;
    if (gpu == NULL) return;
    Py_BEGIN_ALLOW_THREADS
    ms_gpu_destroy(gpu);
    Py_END_ALLOW_THREADS
}

/* A call begins; NULL with an exception if the object is closed. Each that succeeds is followed by one end_call. */
static ms_gpu *begin_call(GpuObject *self) {
    if (self->is_closed) {
        PyErr_SetString(PyExc_ValueError, "this Gpu is closed");
        return NULL;
    }
    self->n_running++;
    return self->gpu;
}

/* After the error of the call has been raised: the thread's message is lost here. */
static PyObject *end_call(GpuObject *self, PyObject *result) {
    self->n_running--;
    if (self->is_closed && self->n_running == 0) destroy(self);
    return result;
}

ms_gpu *core_gpu_hold(core_state *state, PyObject *gpu) {
    if (PyObject_TypeCheck(gpu, state->gpu_type)) return begin_call((GpuObject *)gpu);
    PyErr_SetString(PyExc_TypeError, "gpu must be a Gpu or None");
    return NULL;
}

void core_gpu_release(PyObject *gpu) { (void)end_call((GpuObject *)gpu, NULL); }

/* The path in an argument, as bytes in `*owner`, or NULL for None. -1 with an exception. */
static int read_path(PyObject *object, PyObject **owner, const char **out) {
    *out = NULL;
    if (object == NULL || object == Py_None) return 0;
    if (!PyUnicode_FSConverter(object, owner)) return -1;
    *out = PyBytes_AsString(*owner);
    return *out == NULL ? -1 : 0;
}

/* What ms_gpu_options borrows. */
typedef struct options {
    PyObject *owners[3]; /* owned bytes: driver, NVML, cache */
    PyObject *items;     /* owned list of bytes: NVRTC */
    const char **nvrtc;  /* PyMem_Free */
    ms_gpu_options core;
} options;

static void options_clear(options *o) {
    for (int i = 0; i < 3; i++) Py_CLEAR(o->owners[i]);
    Py_CLEAR(o->items);
    PyMem_Free(o->nvrtc);
}

static int read_nvrtc(options *o, PyObject *paths) {
    if (paths == NULL || paths == Py_None) return 0;
    if (PyUnicode_Check(paths) || PyBytes_Check(paths)) { /* a sequence too, of characters */
        PyErr_SetString(PyExc_TypeError, "Gpu(): nvrtc must be a sequence of paths");
        return -1;
    }
    PyObject *given = PySequence_Tuple(paths);
    if (given == NULL) return -1;
    Py_ssize_t n = PyTuple_Size(given);
    int failed = 0;
    o->items = PyList_New(0);
    o->nvrtc = PyMem_Calloc((size_t)n + 1, sizeof *o->nvrtc);
    if (o->nvrtc == NULL) (void)PyErr_NoMemory();
    if (o->items == NULL || o->nvrtc == NULL) failed = 1;
    for (Py_ssize_t i = 0; i < n && !failed; i++) {
        PyObject *bytes = NULL;
        failed = !PyUnicode_FSConverter(PyTuple_GetItem(given, i), &bytes) || PyList_Append(o->items, bytes) < 0;
        if (!failed) failed = (o->nvrtc[i] = PyBytes_AsString(bytes)) == NULL;
        Py_XDECREF(bytes);
    }
    Py_DECREF(given);
    o->core.nvrtc_paths = o->nvrtc;
    return failed ? -1 : 0;
}

static PyObject *gpu_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {(char *)"driver", (char *)"nvml", (char *)"nvrtc", (char *)"cache", NULL};
    PyObject *driver = NULL, *nvml = NULL, *nvrtc = NULL, *cache = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OOOO:Gpu", (char **)names, &driver, &nvml, &nvrtc, &cache))
        return NULL;
    options o = {.core = {.struct_bytes = sizeof o.core}};
    GpuObject *self = NULL;
    if (read_path(driver, &o.owners[0], &o.core.driver_path) == 0 &&
        read_path(nvml, &o.owners[1], &o.core.nvml_path) == 0 &&
        read_path(cache, &o.owners[2], &o.core.cache_path) == 0 && read_nvrtc(&o, nvrtc) == 0)
        self = (GpuObject *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self != NULL) {
        ms_gpu *made = NULL;
        ms_status status;
        Py_BEGIN_ALLOW_THREADS
        status = ms_gpu_create(&o.core, &made);
        Py_END_ALLOW_THREADS
        self->gpu = made;
        if (status != MS_OK) {
            (void)core_raise(core_state_of_type(type), status);
            Py_CLEAR(self);
        }
    }
    options_clear(&o);
    return (PyObject *)self;
}

static void gpu_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    destroy((GpuObject *)object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(close_doc, "close($self, /)\n--\n\n"
                        "Release contexts and programs, once running calls have returned. Later calls "
                        "raise ValueError.");

static PyObject *gpu_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
    GpuObject *self = (GpuObject *)object;
    self->is_closed = 1;
    if (self->n_running == 0) destroy(self);
    Py_RETURN_NONE;
}

static PyObject *get_count(PyObject *object, void *Py_UNUSED(closure)) {
    GpuObject *self = (GpuObject *)object;
    const ms_gpu *gpu = begin_call(self);
    return gpu == NULL ? NULL : end_call(self, PyLong_FromLongLong(ms_gpu_count_devices(gpu)));
}

/* Reasons come from other libraries and are cut to fit: they may not be valid UTF-8. */
static PyObject *part_row(const char *name, const ms_gpu_component_info *part) {
    PyObject *text = PyUnicode_DecodeUTF8(part->text, (Py_ssize_t)strlen(part->text), "replace");
    if (text == NULL) return NULL;
    return Py_BuildValue("(sNLN)", name, PyBool_FromLong((long)part->works), (long long)part->version, text);
}

PyDoc_STRVAR(components_doc, "components($self, /)\n--\n\n"
                             "Tuples (name, works, version, text): what it is, or why it does not work.");

static PyObject *gpu_components(PyObject *object, PyObject *Py_UNUSED(unused)) {
    GpuObject *self = (GpuObject *)object;
    ms_gpu *gpu = begin_call(self);
    if (gpu == NULL) return NULL;
    PyObject *list = PyList_New(0);
    for (int32_t i = MS_GPU_DRIVER; i <= MS_GPU_CACHE && list != NULL; i++) {
        ms_gpu_component_info part = {.struct_bytes = sizeof part};
        ms_status status;
        Py_BEGIN_ALLOW_THREADS
        status = ms_gpu_get_component(gpu, i, &part); /* looks at the cache's folder */
        Py_END_ALLOW_THREADS
        PyObject *row = status == MS_OK ? part_row(ms_gpu_component_name(i), &part)
                                        : core_raise(core_state_of_type(Py_TYPE(object)), status);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return end_call(self, list);
}

PyDoc_STRVAR(hw_doc, "hw($self, root='', /)\n--\n\n"
                     "This host with its GPUs as a JSON record; makes no context. root is put before every path.");

static PyObject *gpu_hw(PyObject *object, PyObject *args) {
    GpuObject *self = (GpuObject *)object;
    const char *root = "";
    if (!PyArg_ParseTuple(args, "|s:hw", &root)) return NULL;
    ms_gpu *gpu = begin_call(self);
    if (gpu == NULL) return NULL;
    ms_hw hw = {.struct_bytes = sizeof hw};
    char *text = NULL;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_hw_detect(root, gpu, &hw);
    if (status == MS_OK) status = ms_hw_to_json(&hw, &text);
    Py_END_ALLOW_THREADS
    PyObject *result =
        status == MS_OK ? core_text_to_str(text) : core_raise(core_state_of_type(Py_TYPE(object)), status);
    return end_call(self, result);
}

PyDoc_STRVAR(checksum_doc, "checksum($self, device, address, n_bytes, stream, /)\n--\n\n"
                           "The checksum of device memory, computed there, after what is queued on the stream.");

static PyObject *gpu_checksum(PyObject *object, PyObject *const *args, Py_ssize_t n_args) {
    GpuObject *self = (GpuObject *)object;
    if (!core_check_count("checksum", n_args, 4)) return NULL;
    long long device = PyLong_AsLongLong(args[0]);
    if (device == -1 && PyErr_Occurred()) return NULL;
    unsigned long long numbers[3];
    for (int i = 0; i < 3; i++) {
        numbers[i] = PyLong_AsUnsignedLongLong(args[i + 1]);
        if (numbers[i] == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    }
    ms_gpu *gpu = begin_call(self);
    if (gpu == NULL) return NULL;
    uint64_t sum = 0;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_gpu_checksum(gpu, device, numbers[0], numbers[1], numbers[2], &sum);
    Py_END_ALLOW_THREADS
    PyObject *result =
        status == MS_OK ? PyLong_FromUnsignedLongLong(sum) : core_raise(core_state_of_type(Py_TYPE(object)), status);
    return end_call(self, result);
}

PyDoc_STRVAR(link_doc, "link($self, device, n_bytes, /)\n--\n\n"
                       "Measure copies of n_bytes between host and device: a dict of rates in bytes per second.");

static PyObject *gpu_link(PyObject *object, PyObject *const *args, Py_ssize_t n_args) {
    GpuObject *self = (GpuObject *)object;
    if (!core_check_count("link", n_args, 2)) return NULL;
    long long device = PyLong_AsLongLong(args[0]);
    if (device == -1 && PyErr_Occurred()) return NULL;
    long long n_bytes = PyLong_AsLongLong(args[1]);
    if (n_bytes == -1 && PyErr_Occurred()) return NULL;
    ms_gpu *gpu = begin_call(self);
    if (gpu == NULL) return NULL;
    ms_gpu_link link = {.struct_bytes = sizeof link};
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_gpu_measure_link(gpu, device, n_bytes, &link);
    Py_END_ALLOW_THREADS
    if (status != MS_OK) return end_call(self, core_raise(core_state_of_type(Py_TYPE(object)), status));
    return end_call(self,
                    Py_BuildValue("{sLsLsLsLsLsN}", "n_bytes", (long long)link.n_bytes, "to_device_rate",
                                  (long long)link.to_device_rate, "from_device_rate", (long long)link.from_device_rate,
                                  "both_rate", (long long)link.both_rate, "pinning_rate", (long long)link.pinning_rate,
                                  "intact", PyBool_FromLong((long)link.intact)));
}

PyObject *core_checksum(PyObject *Py_UNUSED(module), PyObject *data) {
    char *bytes;
    Py_ssize_t n;
    if (PyBytes_AsStringAndSize(data, &bytes, &n) < 0) return NULL;
    uint64_t sum;
    Py_BEGIN_ALLOW_THREADS
    sum = ms_checksum(bytes, (size_t)n);
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(sum);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"close", gpu_close, METH_NOARGS, close_doc},
    {"components", gpu_components, METH_NOARGS, components_doc},
    {"hw", gpu_hw, METH_VARARGS, hw_doc},
    {"checksum", FAST(gpu_checksum), METH_FASTCALL, checksum_doc},
    {"link", FAST(gpu_link), METH_FASTCALL, link_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"count", get_count, NULL, "How many devices there are.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(type_doc, "Gpu(driver=None, nvml=None, nvrtc=None, cache=None)\n--\n\n"
                       "The GPUs that this process can reach. Paths of libraries, nvrtc a sequence of them; cache is a "
                       "folder, '' for none. Making one initializes the driver, so children that are forked later "
                       "cannot use CUDA.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)type_doc}, {Py_tp_new, gpu_new},   {Py_tp_dealloc, gpu_dealloc},
    {Py_tp_methods, methods},      {Py_tp_getset, getset}, {0, NULL},
};

static PyType_Spec spec = {
    .name = "memscale._core.Gpu",
    .basicsize = sizeof(GpuObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

int core_add_gpu(PyObject *module, core_state *state) {
    state->gpu_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return state->gpu_type == NULL ? -1 : PyModule_AddType(module, state->gpu_type);
}
