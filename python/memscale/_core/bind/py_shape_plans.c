/* py_shape_plans.c - ShapePlans: the plans of a model by the sizes of its inputs.
 *
 * The library makes and remembers the plans; this object remembers what Python made of each, so that the same plan is
 * the same object. The library may ask for a profile while the GIL is released: it is taken back for that.
 */
#include "bind.h"

#include <stddef.h>
#include <structmember.h>

#define MAX_OBJECTS 2048 /* plans whose objects are remembered: about as many as the library remembers */

typedef struct ShapePlansObject {
    PyObject_HEAD
    ms_shape_plans *plans;   /* owned */
    PyObject *source;        /* owned: (list of sizes) -> list of Profile, or None */
    PyObject *wrap;          /* owned: (Plan) -> what find() returns */
    PyObject *objects;       /* owned dict: address of a plan -> what wrap() made of it, which keeps the plan alive */
    PyThread_type_lock lock; /* held during find(); waited for without the GIL */
    struct ShapePlansObject *like; /* owned: plans that learn with these, whose lock counts; NULL: none */
    int64_t n_sizes;               /* of the input that find() was called for */
} ShapePlansObject;

/* ---- Sizes ---- */

/* How many numbers a tuple of tuples is: for each tensor the number of its dimensions, then each of them. -1: it is
 * something else. */
static Py_ssize_t count_numbers(PyObject *sizes) {
    Py_ssize_t n = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(sizes); i++) {
        PyObject *shape = PyTuple_GetItem(sizes, i);
        if (!PyTuple_Check(shape)) {
            PyErr_SetString(PyExc_TypeError, "sizes must be a tuple of tuples");
            return -1;
        }
        n += 1 + PyTuple_Size(shape);
    }
    return n;
}

static int fill_numbers(PyObject *sizes, int64_t *numbers) {
    int64_t n = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(sizes); i++) {
        PyObject *shape = PyTuple_GetItem(sizes, i);
        numbers[n++] = PyTuple_Size(shape);
        for (Py_ssize_t d = 0; d < PyTuple_Size(shape); d++)
            numbers[n++] = PyLong_AsLongLong(PyTuple_GetItem(shape, d));
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* An input; *out_numbers is owned, PyMem_Free, and stays NULL if this fails. */
static int read_input(PyObject *sizes, PyObject *shape, int64_t **out_numbers, ms_input *out) {
    long long batch, length;
    if (!PyTuple_Check(sizes) || !PyTuple_Check(shape)) {
        PyErr_SetString(PyExc_TypeError, "sizes and shape must be tuples");
        return -1;
    }
    Py_ssize_t n = count_numbers(sizes);
    if (n < 0 || !PyArg_ParseTuple(shape, "LL", &batch, &length)) return -1;
    int64_t *numbers = PyMem_Realloc(NULL, ((size_t)n + 1) * sizeof *numbers);
    if (numbers == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    if (fill_numbers(sizes, numbers) < 0) {
        PyMem_Free(numbers);
        return -1;
    }
    *out = (ms_input){.struct_bytes = sizeof *out, .sizes = numbers, .n_sizes = n, .batch = batch, .length = length};
    *out_numbers = numbers;
    return 0;
}

/* ---- Profiles that the library asks for ---- */

static ms_status take_profiles(ShapePlansObject *self, PyObject *found, int64_t n, ms_profile **out) {
    if (found == NULL) return MS_E_INTERRUPTED;
    if (found == Py_None) return MS_E_UNAVAILABLE;
    if (!PyList_Check(found) || PyList_Size(found) != n) {
        PyErr_SetString(PyExc_TypeError, "source must return None or a list with a profile for each list of sizes");
        return MS_E_INTERRUPTED;
    }
    for (int64_t i = 0; i < n; i++) {
        PyObject *item = PyList_GetItem(found, (Py_ssize_t)i);
        const ms_profile *profile = core_profile_of(core_state_of_type(Py_TYPE((PyObject *)self)), item);
        if (profile == NULL) return MS_E_INTERRUPTED;
        out[i] = ms_profile_share(profile);
    }
    return MS_OK;
}

/* A tuple of tuples from one list of sizes. */
static PyObject *sizes_to_python(const int64_t *sizes, int64_t n_sizes) {
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; i < n_sizes && list != NULL; i += sizes[i] + 1) {
        PyObject *shape = PyTuple_New((Py_ssize_t)sizes[i]);
        for (int64_t d = 0; d < sizes[i] && shape != NULL; d++)
            if (PyTuple_SetItem(shape, (Py_ssize_t)d, PyLong_FromLongLong(sizes[i + 1 + d])) < 0) Py_CLEAR(shape);
        if (shape == NULL || PyList_Append(list, shape) < 0) Py_CLEAR(list);
        Py_XDECREF(shape);
    }
    PyObject *tuple = list == NULL ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    return tuple;
}

static PyObject *call_source(ShapePlansObject *self, const int64_t *sizes, int64_t n) {
    PyObject *lists = PyList_New(0), *found = NULL;
    for (int64_t i = 0; i < n && lists != NULL; i++) {
        PyObject *one = sizes_to_python(sizes + i * self->n_sizes, self->n_sizes);
        if (one == NULL || PyList_Append(lists, one) < 0) Py_CLEAR(lists);
        Py_XDECREF(one);
    }
    if (lists != NULL && self->source != NULL) found = PyObject_CallFunctionObjArgs(self->source, lists, NULL);
    Py_XDECREF(lists);
    return found;
}

/* An exception stays set in this thread until find() raises it. */
static ms_status ask_python(void *user, const int64_t *sizes, int64_t n, ms_profile **out) {
    PyGILState_STATE gil = PyGILState_Ensure();
    ShapePlansObject *self = user;
    PyObject *found = call_source(self, sizes, n);
    ms_status status = take_profiles(self, found, n, out);
    Py_XDECREF(found);
    PyGILState_Release(gil);
    return status;
}

/* ---- Making ---- */

static int remember(ShapePlansObject *self, const ms_plan *plan, PyObject *object) {
    if (PyDict_Size(self->objects) >= MAX_OBJECTS) PyDict_Clear(self->objects);
    PyObject *address = PyLong_FromVoidPtr((void *)plan);
    int failed = address == NULL || PyDict_SetItem(self->objects, address, object) < 0;
    Py_XDECREF(address);
    return failed ? -1 : 0;
}

static int create_plans(ShapePlansObject *self, core_state *state, const core_step *step, const ms_plan *plan,
                        const ms_input *input) {
    const ms_shape_plans_options options = {.struct_bytes = sizeof options,
                                            .request = &step->request,
                                            .plan = plan,
                                            .input = input,
                                            .source = ask_python,
                                            .user = self,
                                            .like = self->like == NULL ? NULL : self->like->plans};
    ms_status status = ms_shape_plans_create(&options, &self->plans);
    if (status == MS_OK) return 0;
    (void)core_raise(state, status);
    return -1;
}

static int fill(ShapePlansObject *self, PyObject *source, PyObject *wrap, PyObject *like) {
    if (like != NULL && like != Py_None) {
        ShapePlansObject *other = (ShapePlansObject *)like;
        if (Py_TYPE(like) != Py_TYPE((PyObject *)self)) {
            PyErr_SetString(PyExc_TypeError, "like must be a ShapePlans or None");
            return -1;
        }
        self->like = other->like == NULL ? other : other->like;
        Py_INCREF((PyObject *)self->like);
    }
    self->objects = PyDict_New();
    self->lock = PyThread_allocate_lock();
    Py_INCREF(source);
    self->source = source;
    Py_INCREF(wrap);
    self->wrap = wrap;
    if (self->lock == NULL) (void)PyErr_NoMemory();
    return self->lock == NULL || self->objects == NULL ? -1 : 0;
}

static PyObject *shape_plans_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"request", "plan",       "profile", "sizes", "shape", "source",
                                        "wrap",    "may_change", "fused",   "held",  "like",  NULL};
    core_state *state = core_state_of_type(type);
    core_step step = {0};
    PyObject *request = NULL, *plan = NULL, *sizes = NULL, *shape = NULL, *source = NULL, *wrap = NULL, *object = NULL;
    PyObject *like = NULL;
    int fused = 0, held = 0;
    int64_t *numbers = NULL;
    ms_input input;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OO!OOOOOOppO:ShapePlans", (char **)names, &request,
                                     state->plan_type, &plan, &step.profile, &sizes, &shape, &source, &wrap,
                                     &step.may_change, &fused, &held, &like))
        return NULL;
    if (request == NULL || plan == NULL || step.profile == NULL || sizes == NULL || shape == NULL || source == NULL ||
        wrap == NULL) {
        PyErr_SetString(PyExc_TypeError, "ShapePlans() needs request, plan, profile, sizes, shape, source and wrap");
        return NULL;
    }
    if (core_request_complete(state, request, &step, fused) < 0 || read_input(sizes, shape, &numbers, &input) < 0)
        return NULL;
    if (held) step.request.simulation |= MS_SIMULATE_KEEP_GRADIENTS;
    ShapePlansObject *self = core_allocate(type);
    if (self != NULL &&
        (fill(self, source, wrap, like) < 0 || create_plans(self, state, &step, core_plan_of(state, plan), &input) < 0))
        Py_CLEAR(self);
    PyMem_Free(numbers);
    if (self == NULL) return NULL;
    object = PyObject_CallFunctionObjArgs(wrap, plan, NULL);
    if (object == NULL || remember(self, core_plan_of(state, plan), object) < 0) Py_CLEAR(self);
    Py_XDECREF(object);
    return (PyObject *)self;
}

/* ---- Finding ---- */

/* What Python made of a plan; takes the plan over. */
static PyObject *object_of(ShapePlansObject *self, core_state *state, ms_plan *plan) {
    PyObject *address = PyLong_FromVoidPtr(plan);
    PyObject *known = address == NULL ? NULL : PyDict_GetItemWithError(self->objects, address);
    Py_XDECREF(address);
    if (known != NULL || PyErr_Occurred()) {
        ms_plan_destroy(plan);
        Py_XINCREF(known);
        return known;
    }
    PyObject *core = core_wrap_plan(state, MS_OK, plan);
    PyObject *object = core == NULL ? NULL : PyObject_CallFunctionObjArgs(self->wrap, core, NULL);
    if (object != NULL && remember(self, plan, object) < 0) Py_CLEAR(object);
    Py_XDECREF(core);
    return object;
}

PyDoc_STRVAR(find_doc,
             "find($self, sizes, shape, times=(0, 0, 0), /)\n--\n\n"
             "The plan for an input of these sizes (a tuple of tuples) and this shape (batch, length). times: "
             "nanoseconds trained, analysed, and for one more analysis; 0: analyses may take any time.");

static PyObject *shape_plans_find(PyObject *object, PyObject *args) {
    ShapePlansObject *self = (ShapePlansObject *)object;
    core_state *state = core_state_of_type(Py_TYPE(object));
    PyObject *sizes, *shape;
    long long trained = 0, analysed = 0, analysis = 0;
    int64_t *numbers = NULL;
    ms_input input;
    if (!PyArg_ParseTuple(args, "OO|(LLL):find", &sizes, &shape, &trained, &analysed, &analysis) ||
        read_input(sizes, shape, &numbers, &input) < 0)
        return NULL;
    input.trained_ns = trained;
    input.analysed_ns = analysed;
    input.analysis_ns = analysis;
    ms_plan *plan = NULL;
    ms_status status;
    PyThread_type_lock lock = self->like == NULL ? self->lock : self->like->lock;
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(lock, 1);
    self->n_sizes = input.n_sizes;
    status = ms_shape_plans_find(self->plans, &input, &plan);
    PyThread_release_lock(lock);
    Py_END_ALLOW_THREADS
    PyMem_Free(numbers);
    if (status == MS_E_INTERRUPTED && PyErr_Occurred()) return NULL;
    return status == MS_OK ? object_of(self, state, plan) : core_raise(state, status);
}

/* ---- The type ---- */

static int shape_plans_traverse(PyObject *object, visitproc visit, void *arg) {
    ShapePlansObject *self = (ShapePlansObject *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->source);
    Py_VISIT(self->wrap);
    Py_VISIT(self->objects);
    Py_VISIT((PyObject *)self->like);
    return 0;
}

static int shape_plans_clear(PyObject *object) {
    ShapePlansObject *self = (ShapePlansObject *)object;
    Py_CLEAR(self->source);
    Py_CLEAR(self->wrap);
    Py_CLEAR(self->objects);
    return 0;
}

static void shape_plans_dealloc(PyObject *object) {
    ShapePlansObject *self = (ShapePlansObject *)object;
    PyObject_GC_UnTrack(object);
    (void)shape_plans_clear(object);
    ms_shape_plans_destroy(self->plans);
    Py_XDECREF((PyObject *)self->like);
    if (self->lock != NULL) PyThread_free_lock(self->lock);
    core_free(object);
}

static PyMethodDef shape_plans_methods[] = {
    {"find", shape_plans_find, METH_VARARGS, find_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot shape_plans_slots[] = {
    {Py_tp_doc, (void *)"The plans of a model by the sizes of its inputs: ms_shape_plans of memscale.h."},
    {Py_tp_new, shape_plans_new},
    {Py_tp_dealloc, shape_plans_dealloc},
    {Py_tp_traverse, shape_plans_traverse},
    {Py_tp_clear, shape_plans_clear},
    {Py_tp_methods, shape_plans_methods},
    {0, NULL},
};

static PyType_Spec shape_plans_spec = {.name = "memscale._core.ShapePlans",
                                       .basicsize = sizeof(ShapePlansObject),
                                       .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                       .slots = shape_plans_slots};

int core_add_shape_plans(PyObject *module, core_state *state) {
    state->shape_plans_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &shape_plans_spec, NULL);
    return state->shape_plans_type == NULL ? -1 : PyModule_AddType(module, state->shape_plans_type);
}
