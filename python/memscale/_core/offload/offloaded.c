/* offloaded.c - the tensors that one call of a unit saves for backward, while their storages are on the host.
 *
 * While the forward runs, pack() of an OffloadedTensors is torch's hook on saved tensors. What is large, plain and the
 * unit's own goes to the host when the forward is over: of it stay only the geometry (size, stride, offset) and an
 * empty alias, which shares the tensor's version counter, so that a change in place is noticed as plain autograd would.
 * In backward the storage comes back, and unpack makes a tensor of the same geometry of it.
 *
 * What stays on the device
 *   - parameters and views of them; other types, layouts and devices; what is small;
 *   - storages that anybody else holds: those of the call's inputs and outputs, buffers, constants;
 *   - storages of which little is used.
 * Casts of parameters that autocast made are neither copied nor kept: backward casts again. They are known by the
 * function that runs, which was given the parameter: so the OffloadedTensors is on torch's stack of function modes.
 *
 * As in recompute/saved.c, handles are owned by the graph alone, and all of it dies with the graph.
 */
#include "offloading.h"

typedef struct OffloadedTensors OffloadedTensors;

typedef struct OffloadedHandle {
    PyObject_HEAD
    OffloadedTensors *saved; /* owned */
    Py_ssize_t index;        /* of its item */
} OffloadedHandle;

enum item_kind {
    ITEM_HELD, /* `tensor` itself */
    ITEM_CAST, /* `tensor` is a parameter, to be cast */
    ITEM_AWAY  /* a view of a piece; `tensor` is an empty alias */
};

typedef struct item {
    PyObject *tensor; /* owned */
    core_view view;   /* not of ITEM_HELD */
    int64_t version;
    Py_ssize_t piece;
    int64_t task; /* the backward that it was served in last */
    int kind;     /* enum item_kind */
} item;

struct OffloadedTensors {
    PyObject_HEAD
    PyObject *name; /* owned: of the unit */
    item *items;
    Py_ssize_t n_items, capacity;
    Py_ssize_t n_inputs; /* the first pieces of the group are the inputs */
    PyObject *operands;  /* owned list: of the function that runs and whose operands autocast casts; NULL: none */
    core_group group;
};

static void forget(item *it) {
    Py_CLEAR(it->tensor);
    core_view_clear(&it->view);
}

/* ---- What stays ---- */

/* The tensor that this one is a view of, or itself. New reference. */
static PyObject *base_of(core_state *state, PyObject *tensor) {
    PyObject *base = CORE_READ(state, tensor, _base);
    if (base != Py_None) return base;
    Py_DECREF(base);
    Py_INCREF(tensor);
    return tensor;
}

static int is_operand(const OffloadedTensors *self, PyObject *tensor) {
    for (Py_ssize_t i = 0; i < PyList_Size(self->operands); i++)
        if (PyList_GetItem(self->operands, i) == tensor) return 1;
    return 0;
}

/* The parameter that autocast has cast to this base of a tensor; NULL, maybe with an exception. New reference. */
static PyObject *find_cast(core_state *state, const OffloadedTensors *self, PyObject *tensor, PyObject *base) {
    if (self->operands == NULL || is_operand(self, tensor) || is_operand(self, base)) return NULL;
    PyObject *dtype = CORE_READ(state, tensor, dtype), *base_dtype = CORE_READ(state, base, dtype);
    int same = dtype != NULL && dtype == base_dtype;
    Py_XDECREF(dtype);
    Py_XDECREF(base_dtype);
    PyObject *node = same ? CORE_READ(state, base, grad_fn) : NULL;
    if (node == NULL || node == Py_None || Py_TYPE(node) != (PyTypeObject *)state->cast_node_type) {
        Py_XDECREF(node);
        return NULL;
    }
    PyObject *parameter = PyObject_CallFunctionObjArgs(state->cast_source, node, base, NULL);
    Py_DECREF(node);
    if (parameter == NULL || (parameter != Py_None && is_operand(self, parameter))) return parameter;
    Py_DECREF(parameter);
    return NULL;
}

/* ---- Pack ---- */

static PyObject *alias_of(core_state *state, PyObject *tensor) {
    return PyObject_CallFunctionObjArgs(state->detach, tensor, NULL);
}

/* Its storage becomes a piece, unless it is an input's. */
static int put_away(core_state *state, OffloadedTensors *self, PyObject *tensor, item *out) {
    PyObject *storage = PyObject_CallFunctionObjArgs(state->storage_of, tensor, NULL);
    Py_ssize_t piece = storage == NULL ? -1 : core_group_add(state, &self->group, storage);
    Py_XDECREF(storage);
    if (piece < 0) return -1;
    out->tensor = alias_of(state, tensor);
    if (out->tensor == NULL || piece < self->n_inputs) return out->tensor == NULL ? -1 : 0;
    if (core_offload_stream(state, self->group.engine, &self->group.pieces[piece].stream) < 0) return -1;
    if (core_group_empty(state, &self->group, piece, out->tensor, &out->view) < 0) return -1;
    out->kind = ITEM_AWAY;
    out->piece = piece;
    return 0;
}

static int describe(core_state *state, OffloadedTensors *self, PyObject *tensor, item *out) {
    out->version = core_tensor_version(state, tensor);
    if (out->version == -2) return -1;
    int is_candidate = core_offload_takes(state, self->group.engine, tensor);
    if (is_candidate < 0) return -1;
    PyObject *base = is_candidate ? base_of(state, tensor) : NULL;
    if (is_candidate && base == NULL) return -1;
    if (base != NULL && Py_TYPE(base) != (PyTypeObject *)state->parameter_type) {
        out->tensor = find_cast(state, self, tensor, base);
        Py_DECREF(base);
        if (out->tensor == NULL) return PyErr_Occurred() ? -1 : put_away(state, self, tensor, out);
        out->kind = ITEM_CAST;
        out->version = core_tensor_version(state, out->tensor);
        return out->version == -2 ? -1 : core_view_read(state, tensor, &out->view);
    }
    Py_XDECREF(base);
    if (Py_TYPE(tensor) == (PyTypeObject *)state->parameter_type) {
        Py_INCREF(tensor);
        out->tensor = tensor;
    } else {
        out->tensor = alias_of(state, tensor);
    }
    return out->tensor == NULL ? -1 : 0;
}

static int add_item(OffloadedTensors *self, const item *fresh) {
    if (self->n_items == self->capacity) {
        Py_ssize_t capacity = self->capacity == 0 ? 32 : self->capacity * 2;
        item *grown = PyMem_Realloc(self->items, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            (void)PyErr_NoMemory();
            return -1;
        }
        self->items = grown;
        self->capacity = capacity;
    }
    self->items[self->n_items++] = *fresh;
    return 0;
}

PyDoc_STRVAR(pack_doc, "pack($self, tensor, /)\n--\n\nThe saved-tensor hook of the forward.");

static PyObject *tensors_pack(PyObject *object, PyObject *tensor) {
    OffloadedTensors *self = (OffloadedTensors *)object;
    core_state *state = core_state_of_type(Py_TYPE(object));
    allocfunc alloc = (allocfunc)PyType_GetSlot(state->offloaded_handle_type, Py_tp_alloc);
    item fresh = {.kind = ITEM_HELD, .task = CORE_NO_TASK};
    OffloadedHandle *handle = (OffloadedHandle *)alloc(state->offloaded_handle_type, 0);
    if (handle == NULL) return NULL;
    if (describe(state, self, tensor, &fresh) < 0 || add_item(self, &fresh) < 0) {
        if (fresh.kind == ITEM_AWAY) core_group_gone(&self->group, fresh.piece, 1);
        forget(&fresh);
        Py_DECREF((PyObject *)handle); /* its `saved` is not set yet */
        return NULL;
    }
    Py_INCREF(object);
    handle->saved = self;
    handle->index = self->n_items - 1;
    return (PyObject *)handle;
}

PyDoc_STRVAR(function_doc, "__torch_function__($self, function, types, args, kwargs=None, /)\n--\n\n"
                           "The function mode of the forward.");

static PyObject *tensors_torch_function(PyObject *object, PyObject *const *args, Py_ssize_t n) {
    OffloadedTensors *self = (OffloadedTensors *)object;
    core_state *state = core_state_of_type(Py_TYPE(object));
    core_function call;
    if (core_read_function(args, n, &call) < 0) return NULL;
    if (core_is_product(state, call.function) || core_is_attention(state, call.function)) {
        PyObject *both = PyTuple_Pack(2, call.args, call.kwargs == NULL ? Py_None : call.kwargs);
        self->operands = both == NULL ? NULL : core_find_tensors(state, both);
        Py_XDECREF(both);
        if (self->operands == NULL) return NULL;
    }
    PyObject *result = PyObject_Call(call.function, call.args, call.kwargs);
    core_pending pending = core_set_aside();
    Py_CLEAR(self->operands);
    core_put_back(pending);
    return result;
}

/* ---- Unpack ---- */

static PyObject *raise_changed(core_state *state, const OffloadedTensors *self, const item *it, int64_t version) {
    PyObject *dtype = it->view.dtype, *shape = it->view.shape;
    if (it->kind == ITEM_HELD) {
        dtype = CORE_READ(state, it->tensor, dtype);
        shape = dtype == NULL ? NULL : CORE_READ(state, it->tensor, shape);
    } else {
        Py_INCREF(dtype);
        Py_INCREF(shape);
    }
    if (shape != NULL) (void)core_raise_in_place(dtype, shape, self->name, version, it->version);
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    return NULL;
}

/* Several tensors of one storage: backward must not have changed those that it was given before (a view that is new is
 * as it was made). -1 with an exception. */
static int note_view(core_state *state, OffloadedTensors *self, const item *it, PyObject *view) {
    core_piece *piece = &self->group.pieces[it->piece];
    if (piece->n_users < 2 && piece->views == NULL) return 0;
    if (piece->views == NULL && (piece->views = PyList_New(0)) == NULL) return -1;
    int64_t fresh = core_tensor_version(state, view);
    for (Py_ssize_t i = 0; i < PyList_Size(piece->views) && fresh != -2; i++) {
        int64_t version = core_tensor_version(state, PyList_GetItem(piece->views, i));
        if (version == fresh) continue;
        if (version != -2) (void)raise_changed(state, self, it, it->version + version - fresh);
        return -1;
    }
    return fresh == -2 ? -1 : PyList_Append(piece->views, view);
}

static PyObject *view_of(core_state *state, OffloadedTensors *self, Py_ssize_t index, int64_t task) {
    item *it = &self->items[index];
    PyObject *storage = core_group_need(state, &self->group, it->piece, task);
    if (storage == NULL) return NULL;
    Py_INCREF(storage);
    PyObject *view = core_view_call(state->view_of, storage, &it->view);
    Py_DECREF(storage);
    if (view != NULL && note_view(state, self, it, view) < 0) Py_CLEAR(view);
    if (view != NULL && it->task != task && self->group.task == task) {
        it->task = task;
        core_group_served(&self->group, it->piece);
    }
    return view;
}

PyObject *core_unpack_offloaded(PyObject *module, PyObject *object) {
    core_state *state = core_get_state(module);
    if (Py_TYPE(object) != state->offloaded_handle_type) {
        PyErr_SetString(PyExc_TypeError, "unpack_offloaded() takes a handle of OffloadedTensors.pack()");
        return NULL;
    }
    OffloadedTensors *self = ((OffloadedHandle *)object)->saved;
    Py_ssize_t index = ((OffloadedHandle *)object)->index;
    const item *it = &self->items[index];
    int64_t version = core_tensor_version(state, it->tensor);
    if (version == -2) return NULL;
    if (version != it->version) return raise_changed(state, self, it, version);
    if (it->kind == ITEM_CAST) return core_view_call(state->cast_to, it->tensor, &it->view);
    if (it->kind == ITEM_HELD) {
        Py_INCREF(it->tensor);
        return it->tensor;
    }
    int64_t task = core_current_task(state);
    if (task == CORE_NO_TASK && PyErr_Occurred()) return NULL;
    Py_INCREF(object); /* the handle, and with it `self`, stays while Python code runs */
    PyObject *view = view_of(state, self, index, task);
    Py_DECREF(object);
    return view;
}

/* ---- One call ---- */

/* Other layers, or the user, hold the storages of these tensors as well. Those of inputs are the first pieces. */
static int keep_storages(core_state *state, OffloadedTensors *self, PyObject *object, int are_inputs) {
    PyObject *tensors = core_find_tensors(state, object);
    Py_ssize_t n = tensors == NULL ? -1 : PyList_Size(tensors);
    int status = tensors == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && i < n; i++) {
        PyObject *tensor = PyList_GetItem(tensors, i);
        if (Py_TYPE(tensor) != (PyTypeObject *)state->tensor_type) continue;
        PyObject *storage = PyObject_CallFunctionObjArgs(state->storage_of, tensor, NULL);
        if (storage == NULL) { /* sparse ones have none */
            PyErr_Clear();
            continue;
        }
        Py_ssize_t piece = core_group_add(state, &self->group, storage);
        Py_DECREF(storage);
        if (piece < 0)
            status = -1;
        else
            self->group.pieces[piece].stays = 1;
    }
    if (are_inputs) self->n_inputs = self->group.n_pieces;
    Py_XDECREF(tensors);
    return status;
}

static OffloadedTensors *tensors_new(core_state *state, OffloadEngine *engine, const core_unit_call *call) {
    PyTypeObject *type = state->offloaded_tensors_type;
    OffloadedTensors *self = (OffloadedTensors *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    self->name = PyObject_GetAttr(call->unit, state->str_name);
    if (self->name != NULL && PyUnicode_Check(self->name) &&
        core_group_open(&self->group, engine, (PyObject *)self, &call->schedule) == 0)
        return self;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "run(): the unit has no name");
    Py_DECREF((PyObject *)self);
    return NULL;
}

static PyObject *run(core_state *state, OffloadedTensors *self, const core_unit_call *call) {
    PyObject *pack = PyObject_GetAttr((PyObject *)self, state->str_pack), *plain = call->plain;
    int has_compiled = pack == NULL ? -1 : core_is_true(PyObject_GetAttr(call->unit, state->str_has_compiled));
    PyObject *result = NULL;
    if (has_compiled == 1)
        result = core_run_hooked(state, pack, state->unpack_offloaded, plain, call->args, call->kwargs);
    else if (has_compiled == 0)
        result =
            core_run_in_mode(state, (PyObject *)self, pack, state->unpack_offloaded, plain, call->args, call->kwargs);
    Py_XDECREF(pack);
    return result;
}

/* After the forward. */
static int put(core_state *state, OffloadedTensors *self, PyObject *result, int64_t key) {
    core_group *group = &self->group;
    if (keep_storages(state, self, result, 0) < 0 || core_group_put(state, group, key) < 0) return -1;
    if (group->core == NULL && core_offload_hook(state, &group->mark, result) < 0) return -1;
    return core_offload_tick(state, group->engine);
}

PyObject *core_offload_run(core_state *state, OffloadEngine *engine, const core_unit_call *call) {
    OffloadedTensors *self = tensors_new(state, engine, call);
    PyObject *result = NULL;
    if (self == NULL) return NULL;
    if (keep_storages(state, self, call->args, 0) == 0 && keep_storages(state, self, call->kwargs, 1) == 0)
        result = run(state, self, call);
    if (result != NULL && put(state, self, result, call->key) < 0) Py_CLEAR(result);
    core_group_drop_unused(&self->group);
    Py_DECREF((PyObject *)self);
    return result;
}

/* ---- The objects ---- */

static int tensors_traverse(PyObject *object, visitproc visit, void *arg) {
    OffloadedTensors *self = (OffloadedTensors *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->operands);
    for (Py_ssize_t i = 0; i < self->n_items; i++) Py_VISIT(self->items[i].tensor);
    return core_group_visit(&self->group, visit, arg);
}

/* Nothing of it leads back to the graph, so it is never part of a cycle that only a collector could free. */
static void tensors_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    OffloadedTensors *self = (OffloadedTensors *)object;
    PyObject_GC_UnTrack(object);
    core_group_clear(&self->group);
    for (Py_ssize_t i = 0; i < self->n_items; i++) forget(&self->items[i]);
    PyMem_Free(self->items);
    Py_CLEAR(self->operands);
    Py_CLEAR(self->name);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static void handle_dealloc(PyObject *object) {
    OffloadedHandle *self = (OffloadedHandle *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->saved != NULL) {
        item it = self->saved->items[self->index];
        self->saved->items[self->index] = (item){.kind = ITEM_HELD};
        if (it.kind == ITEM_AWAY) core_group_gone(&self->saved->group, it.piece, it.task == self->saved->group.task);
        forget(&it);
        Py_DECREF((PyObject *)self->saved);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef tensors_methods[] = {
    {"pack", tensors_pack, METH_O, pack_doc},
    {"__torch_function__", (PyCFunction)(void (*)(void))tensors_torch_function, METH_FASTCALL, function_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tensors_slots[] = {
    {Py_tp_doc, (void *)"The saved tensors of one call of a unit, in host memory until backward."},
    {Py_tp_dealloc, tensors_dealloc},
    {Py_tp_traverse, tensors_traverse},
    {Py_tp_methods, tensors_methods},
    {0, NULL},
};

static PyType_Spec tensors_spec = {
    .name = "memscale._core.OffloadedTensors",
    .basicsize = sizeof(OffloadedTensors),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = tensors_slots,
};

static PyType_Slot handle_slots[] = {
    {Py_tp_doc, (void *)"What autograd holds in place of a saved tensor that may be on the host."},
    {Py_tp_dealloc, handle_dealloc},
    {0, NULL},
};

static PyType_Spec handle_spec = {
    .name = "memscale._core.OffloadedHandle",
    .basicsize = sizeof(OffloadedHandle),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = handle_slots,
};

int core_add_offloaded(PyObject *module, core_state *state) {
    state->offloaded_tensors_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &tensors_spec, NULL);
    if (state->offloaded_tensors_type == NULL || PyModule_AddType(module, state->offloaded_tensors_type) < 0) return -1;
    state->offloaded_handle_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &handle_spec, NULL);
    return state->offloaded_handle_type == NULL ? -1 : 0;
}
