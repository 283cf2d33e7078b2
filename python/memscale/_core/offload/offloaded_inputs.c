/* offloaded_inputs.c - the inputs of a unit that is recomputed, on the host until then.
 *
 * A recomputation starts from aliases of the inputs, which are its own (recompute/call.c). Their storages go to the
 * host, and they become empty; they keep their version counters, so a change in place is still noticed. bring() gives
 * them their storages back, for good: what the recomputation saves may be the aliases themselves.
 */
#include "offloading.h"

typedef struct input {
    PyObject *tensor; /* owned */
    core_view view;
    Py_ssize_t piece;
} input;

typedef struct OffloadedInputs {
    PyObject_HEAD
    input *items; /* those that are empty */
    Py_ssize_t n_items;
    core_group group;
} OffloadedInputs;

static void forget(input *item) {
    Py_CLEAR(item->tensor);
    core_view_clear(&item->view);
}

static int empty(core_state *state, OffloadedInputs *self, PyObject *tensor, const core_place *place) {
    core_group *group = &self->group;
    PyObject *storage = PyObject_CallFunctionObjArgs(state->storage_of, tensor, NULL);
    Py_ssize_t piece = storage == NULL ? -1 : core_group_add(state, group, storage);
    Py_XDECREF(storage);
    input *item = &self->items[self->n_items];
    if (piece < 0 || core_group_empty(state, group, piece, tensor, &item->view) < 0) {
        core_view_clear(&item->view);
        return -1;
    }
    Py_INCREF(tensor);
    item->tensor = tensor;
    item->piece = piece;
    group->pieces[piece].place = *place;
    self->n_items++;
    return 0;
}

/* Empty a tensor if that is worth a copy. */
static int put_away(core_state *state, OffloadedInputs *self, PyObject *tensor, const core_place *place) {
    int is_worth_it = core_offload_takes(state, self->group.engine, tensor);
    if (is_worth_it <= 0) return is_worth_it;
    int is_shared = core_input_is_shared(self->group.engine, place);
    return is_shared == 0 ? empty(state, self, tensor, place) : is_shared < 0 ? -1 : 0;
}

static int fill(core_state *state, OffloadedInputs *self, const input *item, int64_t task) {
    PyObject *storage = core_group_need(state, &self->group, item->piece, task);
    if (storage == NULL) return -1;
    Py_INCREF(storage);
    PyObject *whole = core_view_call(state->view_of, storage, &item->view);
    Py_DECREF(storage);
    int status = whole == NULL ? -1 : PyObject_SetAttr(item->tensor, state->str_data, whole);
    Py_XDECREF(whole);
    return status;
}

/* All of them, or those that are left after a failure. */
static int bring_items(core_state *state, OffloadedInputs *self) {
    int64_t task = core_current_task(state);
    if (task == CORE_NO_TASK && PyErr_Occurred()) return -1;
    while (self->n_items > 0) {
        input *last = &self->items[self->n_items - 1];
        if (fill(state, self, last, task) < 0) return -1;
        self->n_items--;
        core_group_gone(&self->group, last->piece, 0);
        forget(last);
    }
    return 0;
}

/* Then backward is here: the mark goes with the group. */
static int bring(core_state *state, OffloadedInputs *self) {
    core_mark mark = self->group.mark;
    self->group.mark = (core_mark){.task = CORE_NO_TASK};
    int status = bring_items(state, self);
    if (status == 0) status = core_mark_passed(state, &mark);
    core_pending pending = core_set_aside();
    core_mark_clear(&mark);
    core_put_back(pending);
    return status;
}

PyDoc_STRVAR(bring_doc, "bring($self, /)\n--\n\nGive the tensors their storages back. Does nothing a second time.");

static PyObject *inputs_bring(PyObject *object, PyObject *Py_UNUSED(unused)) {
    if (bring(core_state_of_type(Py_TYPE(object)), (OffloadedInputs *)object) < 0) return NULL;
    Py_RETURN_NONE;
}

PyObject *core_offload_inputs(core_state *state, OffloadEngine *engine, PyObject *tensors, int64_t key,
                              const core_schedule *schedule) {
    PyTypeObject *type = state->offloaded_inputs_type;
    OffloadedInputs *self = (OffloadedInputs *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    Py_ssize_t n = PyList_Size(tensors);
    int status = core_group_open(&self->group, engine, (PyObject *)self, schedule);
    self->group.are_inputs = 1;
    if (schedule->leaves_after < 1) self->group.schedule.leaves_after = 1; /* until then its caller holds them */
    self->items = PyMem_Calloc((size_t)n + 1, sizeof *self->items);
    if (status == 0 && self->items == NULL) {
        (void)PyErr_NoMemory();
        status = -1;
    }
    for (Py_ssize_t i = 0; status == 0 && self->items != NULL && i < n; i++) {
        const core_place place = {.key = key, .n = n, .index = i};
        status = put_away(state, self, PyList_GetItem(tensors, i), &place);
    }
    if (status == 0) status = core_group_put(state, &self->group, key);
    if (status == 0) status = core_offload_tick(state, engine);
    if (status == 0) return (PyObject *)self;
    core_pending pending = core_set_aside();
    (void)bring(state, self); /* they are somebody's */
    core_put_back(pending);
    Py_DECREF((PyObject *)self);
    return NULL;
}

static int inputs_traverse(PyObject *object, visitproc visit, void *arg) {
    OffloadedInputs *self = (OffloadedInputs *)object;
    Py_VISIT(Py_TYPE(object));
    for (Py_ssize_t i = 0; i < self->n_items; i++) Py_VISIT(self->items[i].tensor);
    return core_group_visit(&self->group, visit, arg);
}

static void inputs_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    OffloadedInputs *self = (OffloadedInputs *)object;
    PyObject_GC_UnTrack(object);
    core_group_clear(&self->group);
    for (Py_ssize_t i = 0; i < self->n_items; i++) forget(&self->items[i]);
    PyMem_Free(self->items);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"bring", inputs_bring, METH_NOARGS, bring_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"The inputs of one call of a unit, in host memory until it is recomputed."},
    {Py_tp_dealloc, inputs_dealloc},
    {Py_tp_traverse, inputs_traverse},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "memscale._core.OffloadedInputs",
    .basicsize = sizeof(OffloadedInputs),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

/* ---- Marks ---- */

typedef struct OffloadMark {
    PyObject_HEAD
    core_mark mark;
} OffloadMark;

/* An object with the items of a mark; None if there are none. */
static PyObject *mark_new(core_state *state, core_mark *mark) {
    PyTypeObject *type = state->offload_mark_type;
    if (mark->n == 0) Py_RETURN_NONE;
    OffloadMark *self = (OffloadMark *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) {
        core_mark_clear(mark);
        return NULL;
    }
    self->mark = *mark;
    *mark = (core_mark){.task = CORE_NO_TASK};
    return (PyObject *)self;
}

static PyObject *set_mark(core_state *state, OffloadEngine *engine) {
    core_mark mark = {.task = CORE_NO_TASK};
    return core_mark_set(&mark, engine) < 0 ? NULL : mark_new(state, &mark);
}

PyObject *core_offload_mark(core_state *state, OffloadEngine *engine) {
    PyObject *mark = set_mark(state, engine);
    if (mark != NULL && core_offload_tick(state, engine) < 0) Py_CLEAR(mark);
    return mark;
}

PyDoc_STRVAR(mark_doc, "bring($self, /)\n--\n\nBackward is here: fetch what it needs soon.");

static PyObject *mark_bring(PyObject *object, PyObject *Py_UNUSED(unused)) {
    if (core_mark_passed(core_state_of_type(Py_TYPE(object)), &((OffloadMark *)object)->mark) < 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(passed_doc, "passed($self, gradients, /)\n--\n\nThe same, as a hook of an autograd node.");

static PyObject *mark_passed(PyObject *object, PyObject *Py_UNUSED(gradients)) { return mark_bring(object, NULL); }

/* The node that made the first output with a history: NULL, maybe with an exception. New reference. */
static PyObject *find_node(core_state *state, PyObject *result) {
    PyObject *tensors = core_find_tensors(state, result), *node = NULL;
    for (Py_ssize_t i = 0; tensors != NULL && node == NULL && i < PyList_Size(tensors); i++) {
        node = CORE_READ(state, PyList_GetItem(tensors, i), grad_fn);
        if (node == NULL) break;
        if (node == Py_None) Py_CLEAR(node);
    }
    Py_XDECREF(tensors);
    return node;
}

/* Backward of a unit begins with the node of its output. */
static int hook_mark(core_state *state, PyObject *mark, PyObject *result) {
    PyObject *node = mark == Py_None ? NULL : find_node(state, result);
    if (node == NULL) return PyErr_Occurred() ? -1 : 0;
    PyObject *hook = PyObject_GetAttr(mark, state->str_passed);
    PyObject *handle = hook == NULL ? NULL : PyObject_CallMethodObjArgs(node, state->str_register_prehook, hook, NULL);
    Py_XDECREF(handle);
    Py_XDECREF(hook);
    Py_DECREF(node);
    return handle == NULL ? -1 : 0;
}

int core_offload_hook(core_state *state, core_mark *mark, PyObject *result) {
    PyObject *object = mark_new(state, mark);
    int status = object == NULL ? -1 : hook_mark(state, object, result);
    Py_XDECREF(object);
    return status;
}

PyObject *core_offload_run_kept(core_state *state, OffloadEngine *engine, PyObject *plain, PyObject *args,
                                PyObject *kwargs) {
    PyObject *mark = set_mark(state, engine);
    PyObject *result = mark == NULL ? NULL : PyObject_Call(plain, args, kwargs);
    if (result != NULL && (hook_mark(state, mark, result) < 0 || core_offload_tick(state, engine) < 0))
        Py_CLEAR(result);
    Py_XDECREF(mark);
    return result;
}

static void mark_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    core_mark_clear(&((OffloadMark *)object)->mark);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef mark_methods[] = {
    {"bring", mark_bring, METH_NOARGS, mark_doc},
    {"passed", mark_passed, METH_O, passed_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot mark_slots[] = {
    {Py_tp_doc, (void *)"A point of backward at which a layer's tensors are fetched."},
    {Py_tp_dealloc, mark_dealloc},
    {Py_tp_methods, mark_methods},
    {0, NULL},
};

static PyType_Spec mark_spec = {
    .name = "memscale._core.OffloadMark",
    .basicsize = sizeof(OffloadMark),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = mark_slots,
};

int core_add_offloaded_inputs(PyObject *module, core_state *state) {
    state->offloaded_inputs_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    if (state->offloaded_inputs_type == NULL || PyModule_AddType(module, state->offloaded_inputs_type) < 0) return -1;
    state->offload_mark_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &mark_spec, NULL);
    return state->offload_mark_type == NULL ? -1 : PyModule_AddType(module, state->offload_mark_type);
}
