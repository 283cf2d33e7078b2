/* offload_engine.c - the object OffloadEngine: the library's offload engine for one device of torch. */
#include "offloading.h"

int core_offload_stream(core_state *state, const OffloadEngine *engine, uint64_t *out) {
    *out = 0;
    if (engine->index < 0) return 0;
    PyObject *index = PyLong_FromSsize_t(engine->index);
    PyObject *stream = index == NULL ? NULL : PyObject_CallFunctionObjArgs(state->raw_stream, index, NULL);
    Py_XDECREF(index);
    if (stream == NULL) return -1;
    *out = PyLong_AsUnsignedLongLong(stream);
    Py_DECREF(stream);
    return PyErr_Occurred() ? -1 : 0;
}

/* ---- What it takes ---- */

int core_offload_takes(core_state *state, const OffloadEngine *engine, PyObject *tensor) {
    if (Py_TYPE(tensor) != (PyTypeObject *)state->tensor_type) return 0;
    PyObject *layout = CORE_READ(state, tensor, layout);
    int is_strided = layout == state->strided;
    Py_XDECREF(layout);
    if (layout == NULL || !is_strided) return layout == NULL ? -1 : 0;
    PyObject *device = CORE_READ(state, tensor, device);
    int is_here = device == NULL ? -1 : PyObject_RichCompareBool(device, engine->device, Py_EQ);
    Py_XDECREF(device);
    if (is_here != 1) return is_here;
    PyObject *size = CORE_READ(state, tensor, nbytes);
    int64_t n_bytes = size == NULL ? -1 : PyLong_AsLongLong(size);
    Py_XDECREF(size);
    if (n_bytes < engine->least_bytes) return n_bytes == -1 && PyErr_Occurred() ? -1 : 0;
    int is_lazy = CORE_READ_BOOL(state, tensor, is_nested);
    if (is_lazy == 0) is_lazy = core_is_lazy(state, tensor);
    return is_lazy < 0 ? -1 : !is_lazy;
}

/* ---- Making one ---- */

typedef struct options {
    PyObject *gpu, *device, *nothing; /* borrowed */
    Py_ssize_t index;
    long long limit_bytes, pinned_bytes, least_bytes, delay_ns;
    unsigned long long seed;
} options;

static int read_options(PyObject *args, PyObject *kwargs, options *o) {
    static char *names[] = {
        (char *)"device",       (char *)"nothing",     (char *)"index",    (char *)"gpu",  (char *)"limit_bytes",
        (char *)"pinned_bytes", (char *)"least_bytes", (char *)"delay_ns", (char *)"seed", NULL};
    *o = (options){.gpu = Py_None, .index = -1, .pinned_bytes = -1};
    return PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$nOLLLLK:OffloadEngine", names, &o->device, &o->nothing,
                                       &o->index, &o->gpu, &o->limit_bytes, &o->pinned_bytes, &o->least_bytes,
                                       &o->delay_ns, &o->seed);
}

static ms_status create(const options *o, ms_gpu *gpu, ms_offload **out) {
    ms_offload_options core = {.struct_bytes = sizeof core};
    ms_status status = ms_offload_options_init(&core, gpu, o->index < 0 ? 0 : o->index, o->limit_bytes);
    core.max_pending = INT64_MAX; /* core_offload_tick() says when to wait */
    if (o->pinned_bytes >= 0) core.pinned_limit_bytes = o->pinned_bytes;
    core.delay_ns = o->delay_ns;
    core.seed = o->seed;
    return status == MS_OK ? ms_offload_create(&core, out) : status;
}

/* What torch counts for a storage that nobody holds but one object of Python. */
static int count_holders(core_state *state, OffloadEngine *self) {
    PyObject *size = PyLong_FromSsize_t(1);
    PyObject *storage =
        size == NULL ? NULL : PyObject_CallFunctionObjArgs(state->new_storage, size, self->device, NULL);
    self->n_holders = storage == NULL ? -1 : core_count_users(state, storage);
    Py_XDECREF(storage);
    Py_XDECREF(size);
    return self->n_holders < 0 ? -1 : 0;
}

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    core_state *state = core_state_of_type(type);
    options o;
    ms_gpu *gpu = NULL;
    if (!read_options(args, kwargs, &o) || core_check_bound(state) < 0) return NULL;
    if (o.gpu != Py_None && (gpu = core_gpu_hold(state, o.gpu)) == NULL) return NULL;
    OffloadEngine *self = (OffloadEngine *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) {
        if (gpu != NULL) core_gpu_release(o.gpu);
        return NULL;
    }
    self->index = gpu == NULL ? -1 : o.index;
    self->least_bytes = o.least_bytes;
    Py_INCREF(o.device);
    Py_INCREF(o.nothing);
    self->device = o.device;
    self->nothing = o.nothing;
    if (gpu != NULL) {
        Py_INCREF(o.gpu);
        self->gpu = o.gpu;
    }
    ms_status status = create(&o, gpu, &self->core);
    if (status != MS_OK) (void)core_raise(state, status);
    self->shared = PyDict_New();
    self->suspected = PyDict_New();
    int has_dicts = self->shared != NULL && self->suspected != NULL;
    if (status == MS_OK && has_dicts && count_holders(state, self) == 0) return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return NULL;
}

static void engine_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    OffloadEngine *self = (OffloadEngine *)object;
    ms_offload *core = self->core;
    Py_BEGIN_ALLOW_THREADS
    ms_offload_destroy(core); /* waits for copies */
    Py_END_ALLOW_THREADS
    if (self->gpu != NULL) core_gpu_release(self->gpu);
    Py_CLEAR(self->gpu);
    Py_CLEAR(self->device);
    Py_CLEAR(self->nothing);
    Py_CLEAR(self->shared);
    Py_CLEAR(self->suspected);
    PyMem_Free(self->lates);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* ---- Methods ---- */

PyDoc_STRVAR(run_doc, "run($self, unit, args, kwargs, key, schedule, /)\n--\n\n"
                      "Run a unit's forward and copy what it saves for backward to the host. key: an own number for "
                      "each unit. schedule: it is gone when so many more units have run forward, and fetched when "
                      "backward begins with the unit that ran so many later; does nothing else run during the "
                      "copies?");

static PyObject *engine_run(PyObject *object, PyObject *args) {
    core_unit_call call;
    if (!PyArg_ParseTuple(args, "OOO!O!L(LLp):run", &call.unit, &call.plain, &PyTuple_Type, &call.args, &PyDict_Type,
                          &call.kwargs, &call.key, &call.schedule.leaves_after, &call.schedule.fetched_before,
                          &call.schedule.waits))
        return NULL;
    return core_offload_run(core_state_of_type(Py_TYPE(object)), (OffloadEngine *)object, &call);
}

PyDoc_STRVAR(run_kept_doc, "run_kept($self, plain, args, kwargs, /)\n--\n\n"
                           "Run the forward of a unit that keeps what it saves, in a model in which others do not.");

static PyObject *engine_run_kept(PyObject *object, PyObject *args) {
    PyObject *plain, *unit_args, *unit_kwargs;
    if (!PyArg_ParseTuple(args, "OO!O!:run_kept", &plain, &PyTuple_Type, &unit_args, &PyDict_Type, &unit_kwargs))
        return NULL;
    return core_offload_run_kept(core_state_of_type(Py_TYPE(object)), (OffloadEngine *)object, plain, unit_args,
                                 unit_kwargs);
}

PyDoc_STRVAR(mark_doc, "mark($self, tensors, /)\n--\n\n"
                       "In place of put_inputs(), for a unit that is recomputed where others are offloaded.");

static PyObject *engine_mark(PyObject *object, PyObject *Py_UNUSED(tensors)) {
    return core_offload_mark(core_state_of_type(Py_TYPE(object)), (OffloadEngine *)object);
}

PyDoc_STRVAR(put_inputs_doc,
             "put_inputs($self, key, schedule, tensors, /)\n--\n\n"
             "Copy a list of tensors to the host and empty them: aliases, of which only a recomputation "
             "has need. Returns an object whose bring() puts them back.");

static PyObject *engine_put_inputs(PyObject *object, PyObject *args) {
    PyObject *tensors;
    long long key;
    core_schedule schedule;
    if (!PyArg_ParseTuple(args, "L(LLp)O!:put_inputs", &key, &schedule.leaves_after, &schedule.fetched_before,
                          &schedule.waits, &PyList_Type, &tensors))
        return NULL;
    return core_offload_inputs(core_state_of_type(Py_TYPE(object)), (OffloadEngine *)object, tensors, key, &schedule);
}

PyDoc_STRVAR(reserve_doc, "reserve($self, n_bytes, /)\n--\n\nTake so much host memory now, so that steps need not.");

static PyObject *engine_reserve(PyObject *object, PyObject *number) {
    long long n_bytes = PyLong_AsLongLong(number);
    if (n_bytes == -1 && PyErr_Occurred()) return NULL;
    ms_status status;
    ms_offload *core = ((OffloadEngine *)object)->core;
    Py_BEGIN_ALLOW_THREADS
    status = ms_offload_reserve(core, n_bytes);
    Py_END_ALLOW_THREADS
    if (status != MS_OK) return core_raise(core_state_of_type(Py_TYPE(object)), status);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(forget_doc, "forget($self, /)\n--\n\nForget which inputs others hold: there is another plan.");

static PyObject *engine_forget(PyObject *object, PyObject *Py_UNUSED(unused)) {
    core_inputs_forget((OffloadEngine *)object);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(stats_doc, "stats($self, /)\n--\n\nCounts since it was made, as a dict.");

static PyObject *engine_stats(PyObject *object, PyObject *Py_UNUSED(unused)) {
    const OffloadEngine *self = (OffloadEngine *)object;
    ms_offload_stats stats = {.struct_bytes = sizeof stats};
    ms_status status = ms_offload_get_stats(self->core, &stats);
    if (status != MS_OK) return core_raise(core_state_of_type(Py_TYPE(object)), status);
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {{"n_groups", stats.n_groups},     {"n_pending", stats.n_pending},
                {"used_bytes", stats.used_bytes}, {"peak_used_bytes", stats.peak_used_bytes},
                {"pool_bytes", stats.pool_bytes}, {"pinned_bytes", stats.pinned_bytes},
                {"n_grows", stats.n_grows},       {"n_puts", stats.n_puts},
                {"put_bytes", stats.put_bytes},   {"n_refused", stats.n_refused},
                {"n_fetches", stats.n_fetches},   {"fetched_bytes", stats.fetched_bytes},
                {"n_waits", stats.n_waits},       {"n_late", self->n_late},
                {"host_ns", stats.host_ns}};
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < sizeof rows / sizeof *rows; i++) {
        PyObject *value = PyLong_FromLongLong(rows[i].value);
        if (value == NULL || PyDict_SetItemString(dict, rows[i].name, value) < 0) Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

static PyMethodDef methods[] = {
    {"run", engine_run, METH_VARARGS, run_doc},       {"run_kept", engine_run_kept, METH_VARARGS, run_kept_doc},
    {"mark", engine_mark, METH_O, mark_doc},          {"put_inputs", engine_put_inputs, METH_VARARGS, put_inputs_doc},
    {"reserve", engine_reserve, METH_O, reserve_doc}, {"forget", engine_forget, METH_NOARGS, forget_doc},
    {"stats", engine_stats, METH_NOARGS, stats_doc},  {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(type_doc,
             "OffloadEngine(device, nothing, *, index=-1, gpu=None, limit_bytes=0, pinned_bytes=-1, least_bytes=0, "
             "delay_ns=0, seed=0)\n--\n\n"
             "Takes tensors of a torch device to host memory. nothing: a tensor there without elements; gpu and index: "
             "the device as a GPU, else it is the host. At most pinned_bytes are pinned, -1: all. Tensors "
             "below least_bytes stay. delay_ns, seed: for tests, "
             "on the host.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)type_doc},
    {Py_tp_new, engine_new},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "memscale._core.OffloadEngine",
    .basicsize = sizeof(OffloadEngine),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

int core_add_offload_engine(PyObject *module, core_state *state) {
    state->offload_engine_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return state->offload_engine_type == NULL ? -1 : PyModule_AddType(module, state->offload_engine_type);
}
