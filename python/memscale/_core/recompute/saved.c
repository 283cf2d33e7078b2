/* saved.c - the saved tensors of a call, kept or recomputed.
 *
 * While a unit's forward runs, pack() of a SavedTensors is torch's hook on saved tensors: for each tensor that autograd
 * saves it notes shape and type in a slot of an array and gives autograd a SavedHandle, nothing else. When backward
 * asks for the tensor of the first handle (unpack), the call is recomputed (call.c) with collect() as the hook; the
 * i-th tensor that this saves belongs to the i-th handle. The original graph is kept, so gradients add up in the same
 * order as without recomputation.
 *
 * What always holds
 *   - A handle is owned by the graph alone and owns the SavedTensors, which knows its handles only weakly. So all of it
 *     dies with the graph, and a handle that died early is not recomputed for.
 *   - Recomputed tensors belong to one backward (its graph task) and are released as they are returned. Another
 *     backward, or a second request, recomputes again: always right, at worst slower.
 *   - With `keep`, the tensors are held as plain autograd would hold them, until core_saved_release(). They are held as
 *     detached aliases: a saved output itself would close a cycle through C++ that no collector sees.
 *   - A parameter that is saved is kept: it exists anyway, and need not be found in a recomputation.
 *   - While it is on torch's stack of function modes, functions whose results may be kept are run by kept.c.
 *   - Recomputed tensors are held as they are, with the graph of the recomputation, which has nothing but None in place
 *     of saved tensors. It goes with them, as the handles die or are served.
 */
#include "recompute.h"

#include <string.h>

#define LARGE_MASK (1 << 23)
#define MAX_DIMS 8 /* of a tensor with more, the first ones are compared */

typedef struct SavedTensors SavedTensors;

typedef struct SavedHandle {
    PyObject_HEAD
    SavedTensors *saved; /* owned */
    Py_ssize_t index;    /* of its slot */
} SavedHandle;

typedef struct slot {
    PyObject *dtype;        /* owned, a constant of torch: with the shape, what the recomputed tensor must look like */
    int64_t dims[MAX_DIMS]; /* the shape */
    int64_t n_dims;
    PyObject *tensor;    /* owned; NULL while there is none */
    int64_t version;     /* of `tensor` when it was saved */
    SavedHandle *handle; /* borrowed; NULL once it died */
    int is_parameter;    /* `tensor` is a parameter, which exists anyway: kept, not recomputed; no shape is noted */
} slot;

struct SavedTensors {
    PyObject_HEAD
    Call *call; /* owned; has run */
    slot *slots;
    Py_ssize_t n_slots, capacity;
    Py_ssize_t cursor; /* slots that the running recomputation has passed */
    Py_ssize_t last;   /* the last slot that it must fill; -1 while none runs */
    int stop;          /* it ends there */
    int failed;        /* it saved something else: reported again if somebody swallowed the exception */
    int64_t task;      /* backward that the held tensors belong to */
    int keep;
    core_kept *kept;         /* owned; NULL: no results are kept */
    Py_ssize_t n_alive;      /* the last slots, from this one on, can not be asked for any more */
    PyThread_type_lock lock; /* one recomputation at a time; taken without waiting while the GIL is held */
    unsigned long owner;     /* thread that holds the lock */
};

static void clear_tensors(SavedTensors *self) {
    for (Py_ssize_t i = 0; i < self->n_slots; i++)
        if (!self->slots[i].is_parameter) Py_CLEAR(self->slots[i].tensor);
}

static int describe(core_state *state, PyObject *tensor, slot *out) {
    PyObject *shape = CORE_READ(state, tensor, shape);
    if (shape == NULL) return -1;
    out->n_dims = PyTuple_Size(shape);
    for (Py_ssize_t i = 0; i < out->n_dims && i < MAX_DIMS; i++)
        out->dims[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    Py_DECREF(shape);
    if (PyErr_Occurred()) return -1;
    out->dtype = CORE_READ(state, tensor, dtype);
    return out->dtype == NULL ? -1 : 0;
}

static void forget(slot *s) {
    Py_CLEAR(s->dtype);
    Py_CLEAR(s->tensor);
}

/* The shape of a slot as a tuple, for messages. */
static PyObject *shape_of(core_state *state, const slot *s) {
    if (s->is_parameter) return CORE_READ(state, s->tensor, shape);
    Py_ssize_t n = s->n_dims < MAX_DIMS ? (Py_ssize_t)s->n_dims : MAX_DIMS;
    PyObject *shape = PyTuple_New(n);
    for (Py_ssize_t i = 0; shape != NULL && i < n; i++) {
        PyObject *size = PyLong_FromLongLong(s->dims[i]);
        if (size == NULL || PyTuple_SetItem(shape, i, size) < 0) Py_CLEAR(shape);
    }
    return shape;
}

/* Keep a tensor in the slot, or a detached alias, which shares its version counter, so that later changes show. */
static int hold(core_state *state, slot *s, PyObject *tensor, int as_alias) {
    int64_t version = core_tensor_version(state, tensor);
    if (version == -2) return -1;
    PyObject *kept = tensor;
    if (as_alias)
        kept = PyObject_CallFunctionObjArgs(state->detach, tensor, NULL);
    else
        Py_INCREF(kept);
    if (kept == NULL) return -1;
    Py_XDECREF(s->tensor);
    s->tensor = kept;
    s->version = version;
    return 0;
}

/* Append a slot; takes what it owns over on success. */
static int add_slot(SavedTensors *self, const slot *fresh) {
    if (self->n_slots == self->capacity) {
        Py_ssize_t capacity = self->capacity == 0 ? 32 : self->capacity * 2;
        slot *grown = PyMem_Realloc(self->slots, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            (void)PyErr_NoMemory();
            return -1;
        }
        self->slots = grown;
        self->capacity = capacity;
    }
    self->slots[self->n_slots++] = *fresh;
    return 0;
}

PyDoc_STRVAR(pack_doc, "pack($self, tensor, /)\n--\n\nThe saved-tensor hook of the first run.");

static PyObject *saved_pack(PyObject *object, PyObject *tensor) {
    SavedTensors *self = (SavedTensors *)object;
    core_state *state = core_state_of_type(Py_TYPE(object));
    allocfunc alloc = (allocfunc)PyType_GetSlot(state->handle_type, Py_tp_alloc);
    SavedHandle *handle = (SavedHandle *)alloc(state->handle_type, 0);
    if (handle == NULL) return NULL;
    slot fresh = {.handle = handle};
    fresh.is_parameter = !self->keep && Py_TYPE(tensor) == (PyTypeObject *)state->parameter_type;
    int holds = self->keep || fresh.is_parameter;
    if ((!fresh.is_parameter && describe(state, tensor, &fresh) < 0) ||
        (holds && hold(state, &fresh, tensor, self->keep) < 0) || add_slot(self, &fresh) < 0) {
        forget(&fresh);
        Py_DECREF(handle); /* its `saved` is not set yet */
        return NULL;
    }
    Py_INCREF(self);
    handle->saved = self;
    handle->index = self->n_slots - 1;
    self->n_alive = self->n_slots;
    if (self->kept != NULL && core_kept_save(state, self->kept, tensor) < 0) {
        Py_DECREF(handle);
        return NULL;
    }
    /* The second run of a check, in which the call is entered, is not the step's own. */
    if (self->call->entered == 0 && core_call_note_save(self->call, handle->index, tensor) < 0) {
        Py_DECREF(handle);
        return NULL;
    }
    return (PyObject *)handle;
}

static void raise_changed(core_state *state, SavedTensors *self, Py_ssize_t index, const slot *now) {
    const slot *s = &self->slots[index];
    PyObject *then_shape = shape_of(state, s), *now_shape = then_shape == NULL ? NULL : shape_of(state, now);
    self->failed = 1;
    if (now_shape != NULL)
        (void)PyErr_Format(state->error,
                           "layer '%U' did not repeat itself: tensor %zd that it saved was %S %S in forward, and %S %S "
                           "when it was recomputed for backward. Its forward depends on something that changes between "
                           "calls; make it repeatable, or train with enable_checkpointing=False.",
                           self->call->unit->name, index, s->dtype, then_shape, now->dtype, now_shape);
    Py_XDECREF(then_shape);
    Py_XDECREF(now_shape);
}

static int looks_the_same(const slot *a, const slot *b) {
    size_t n = (size_t)(a->n_dims < MAX_DIMS ? a->n_dims : MAX_DIMS);
    return a->dtype == b->dtype && a->n_dims == b->n_dims && memcmp(a->dims, b->dims, n * sizeof *a->dims) == 0;
}

/* A recomputation came to a slot that keeps a parameter: 1 if it saved that one again. Else the slot becomes one like
 * any other: 0, or -1 with an exception. */
static int forget_parameter(core_state *state, slot *s, PyObject *tensor) {
    if (s->tensor == tensor || s->tensor == NULL) return 1; /* or its handle has died */
    if (describe(state, s->tensor, s) < 0) return -1;
    s->is_parameter = 0;
    Py_CLEAR(s->tensor);
    return 0;
}

PyDoc_STRVAR(collect_doc, "collect($self, tensor, /)\n--\n\nThe saved-tensor hook of a recomputation.");

static PyObject *saved_collect(PyObject *object, PyObject *tensor) {
    SavedTensors *self = (SavedTensors *)object;
    core_state *state = core_state_of_type(Py_TYPE(object));
    Py_ssize_t index = self->cursor;
    if (index > self->last || self->failed) { /* nothing is needed any more, or our exception was swallowed */
        if (!self->stop && !self->failed && self->last >= 0) Py_RETURN_NONE;
        PyErr_SetNone(state->stop);
        return NULL;
    }
    self->cursor++;
    if (self->slots[index].is_parameter && forget_parameter(state, &self->slots[index], tensor) != 0) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }
    slot now = {0};
    if (describe(state, tensor, &now) < 0) return NULL;
    if (!looks_the_same(&self->slots[index], &now)) raise_changed(state, self, index, &now);
    forget(&now);
    if (PyErr_Occurred()) return NULL;
    if (self->slots[index].handle != NULL && /* else nobody will ask for it */
        (hold(state, &self->slots[index], tensor, 0) < 0 || core_call_note_save(self->call, index, tensor) < 0))
        return NULL;
    if (index == self->last && self->stop) {
        PyErr_SetNone(state->stop);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- Functions whose results are kept ---- */

/* What a recomputation has just saved for these slots, as a new list, with None where nobody can ask for it. */
static PyObject *list_saved(const SavedTensors *self, Py_ssize_t first, Py_ssize_t n) {
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = first; list != NULL && i < first + n; i++) {
        int is_there = i < self->n_slots && self->slots[i].handle != NULL && self->slots[i].tensor != NULL;
        if (PyList_Append(list, is_there ? self->slots[i].tensor : Py_None) < 0) Py_CLEAR(list);
    }
    return list;
}

/* Put what was kept in the place of what was just computed and saved, which is equal: it is there already. */
static int replace_saved(core_state *state, SavedTensors *self, Py_ssize_t first, PyObject *saved) {
    for (Py_ssize_t i = 0; i < PyList_Size(saved); i++) {
        slot *s = &self->slots[first + i];
        if (s->handle == NULL || s->tensor == NULL || s->is_parameter) continue;
        if (hold(state, s, PyList_GetItem(saved, i), 0) < 0) return -1;
    }
    return 0;
}

/* Autocast's cache holds what the function was given. */
static int forget_casts(const core_state *state) {
    PyObject *done = PyObject_CallNoArgs(state->clear_autocast_cache);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Compute a function whose result was kept, and compare: it is the first time. What is equal is thrown away again, so
 * that this step needs little more memory than later ones. */
static PyObject *compare(core_state *state, SavedTensors *self, const core_found *found, PyObject *function,
                         PyObject *args, PyObject *kwargs) {
    Py_ssize_t before = self->cursor, n = PyList_Size(found->saved);
    PyObject *result = PyObject_Call(function, args, kwargs);
    PyObject *saved = result == NULL ? NULL : list_saved(self, before, n);
    int same = saved == NULL ? -1 : self->cursor - before == n;
    if (same == 1) same = core_found_equals(state, found, result, saved);
    Py_XDECREF(saved);
    if (same >= 0 && core_unit_set_trust(self->call->unit, found->fingerprint, same ? TRUST_EQUAL : TRUST_NEVER) < 0)
        same = -1;
    if (same == 1) same = replace_saved(state, self, before, found->saved) < 0 ? -1 : 1;
    if (same == 1) same = forget_casts(state) < 0 ? -1 : 1;
    if (same == 1) {
        Py_INCREF(found->result);
        Py_DECREF(result);
        result = found->result;
    }
    if (same < 0) Py_CLEAR(result);
    return result;
}

/* Save what the function would, and return what it would. */
static PyObject *skip(core_state *state, SavedTensors *self, core_found *found) {
    for (Py_ssize_t i = 0; i < PyList_Size(found->saved); i++) {
        PyObject *done = saved_collect((PyObject *)self, PyList_GetItem(found->saved, i));
        if (done == NULL) return NULL;
        Py_DECREF(done);
    }
    if (core_kept_skip(state, self->kept, found) < 0) return NULL;
    Py_INCREF(found->result);
    return found->result;
}

static PyObject *run_again(core_state *state, SavedTensors *self, PyObject *function, PyObject *args,
                           PyObject *kwargs) {
    core_found found = {0};
    PyObject *result = NULL;
    int is_there = core_kept_find(state, self->kept, function, args, kwargs, self->cursor, &found);
    int trust = is_there == 1 ? core_unit_trust(self->call->unit, found.fingerprint) : TRUST_NEVER;
    if (is_there >= 0 && trust == TRUST_NEVER) result = PyObject_Call(function, args, kwargs);
    if (is_there == 1 && trust == TRUST_EQUAL) result = skip(state, self, &found);
    if (is_there == 1 && trust == TRUST_UNKNOWN) result = compare(state, self, &found, function, args, kwargs);
    core_found_clear(&found);
    return result;
}

static PyObject *run_first(core_state *state, SavedTensors *self, PyObject *function, PyObject *args,
                           PyObject *kwargs) {
    if (core_kept_open(state, self->kept, function, args, kwargs, self->n_slots) < 0) return NULL;
    PyObject *result = PyObject_Call(function, args, kwargs);
    if (core_kept_close(state, self->kept, self->call->unit, result, self->n_slots) < 0) Py_CLEAR(result);
    return result;
}

PyDoc_STRVAR(function_doc, "__torch_function__($self, function, types, args, kwargs=None, /)\n--\n\n"
                           "The function mode of the first run and of recomputations.");

static PyObject *saved_torch_function(PyObject *object, PyObject *const *args, Py_ssize_t n) {
    SavedTensors *self = (SavedTensors *)object;
    core_state *state = core_state_of_type(Py_TYPE(object));
    core_function call;
    if (core_read_function(args, n, &call) < 0) return NULL;
    if (self->kept == NULL || !(core_is_attention(state, call.function) || core_is_product(state, call.function)))
        return PyObject_Call(call.function, call.args, call.kwargs);
    return (self->last < 0 ? run_first : run_again)(state, self, call.function, call.args, call.kwargs);
}

PyObject *core_saved_run(core_state *state, PyObject *object, int is_first, PyObject *function, PyObject *args,
                         PyObject *kwargs) {
    SavedTensors *self = (SavedTensors *)object;
    unsigned keeps = self->call->unit->keeps;
    if (is_first && keeps != 0 && self->kept == NULL && (self->kept = core_kept_new(keeps)) == NULL) return NULL;
    PyObject *hook = PyObject_GetAttr(object, is_first ? state->str_pack : state->str_collect);
    PyObject *result = self->kept == NULL
                           ? core_run_hooked(state, hook, state->unpack, function, args, kwargs)
                           : core_run_in_mode(state, object, hook, state->unpack, function, args, kwargs);
    Py_XDECREF(hook);
    if (!is_first || self->kept == NULL) return result;
    core_kept_release(self->kept, self->n_alive); /* the last results */
    if (result != NULL && core_kept_release_changed(state, self->kept) < 0) Py_CLEAR(result);
    return result;
}

static int raise_short(const core_state *state, const SavedTensors *self, Py_ssize_t last) {
    PyErr_Format(
        state->error,
        "layer '%U' did not repeat itself: its forward saved at least %zd tensors, and only %zd of them when it was "
        "recomputed for backward. Its forward depends on something that changes between calls; make it repeatable, or "
        "train with enable_checkpointing=False.",
        self->call->unit->name, last + 1, self->cursor);
    return -1;
}

/* Is it worth an exception to end a recomputation after its last saved tensor? The inputs of a matrix product are saved
 * before it is computed: yes. A dropout's mask is saved after it, and what follows is an addition: only where that
 * takes a GPU longer than an exception through C++ takes the host, some 50 microseconds each. */
static int stop_pays(const core_state *state, const slot *s) {
    int64_t n = 1;
    if (s->dtype != state->mask_type) return 1;
    for (int64_t i = 0; i < s->n_dims && i < MAX_DIMS && n < LARGE_MASK; i++) n *= s->dims[i];
    return n >= LARGE_MASK;
}

/* Fill the slots of all handles that are alive. */
static int recompute(core_state *state, SavedTensors *self, int64_t task) {
    clear_tensors(self);
    self->task = CORE_NO_TASK;
    self->failed = 0;
    self->cursor = 0;
    if (self->kept != NULL) core_kept_rewind(self->kept);
    self->last = self->n_slots - 1;
    while (self->last > 0 && (self->slots[self->last].handle == NULL || self->slots[self->last].is_parameter))
        self->last--;
    /* Compiled code is not ended from within, and its graphs are read from the output. */
    self->stop = !self->call->unit->has_compiled &&
                 (self->last < self->n_slots - 1 || stop_pays(state, &self->slots[self->last]));
    int status = core_call_recompute(state, self->call, (PyObject *)self);
    Py_ssize_t last = self->last;
    self->last = -1;
    if (self->kept != NULL) {
        core_kept_end(self->kept);
        core_kept_release(self->kept, 0); /* slots have what backward needs; another one computes all of it */
    }
    if (status == 0 && (self->failed || self->cursor <= last)) status = raise_short(state, self, last);
    if (status < 0) {
        clear_tensors(self);
        return -1;
    }
    self->task = task;
    return 0;
}

static int lock_saved(const core_state *state, SavedTensors *self) {
    if (!PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) {
        if (self->owner == PyThread_get_thread_ident()) {
            PyErr_Format(state->error, "layer '%U' asked for its own saved tensors while it was recomputed",
                         self->call->unit->name);
            return -1;
        }
        Py_BEGIN_ALLOW_THREADS(void)
        PyThread_acquire_lock(self->lock, WAIT_LOCK);
        Py_END_ALLOW_THREADS
    }
    self->owner = PyThread_get_thread_ident();
    return 0;
}

static void unlock_saved(SavedTensors *self) {
    self->owner = 0;
    PyThread_release_lock(self->lock);
}

/* Return a slot's tensor. Autograd cannot check the version of a tensor that went through hooks, so it is done here.
 */
static PyObject *take(core_state *state, SavedTensors *self, Py_ssize_t index) {
    slot *s = &self->slots[index];
    if (s->tensor == NULL) {
        (void)raise_short(state, self, index);
        return NULL;
    }
    int64_t version = core_tensor_version(state, s->tensor);
    if (version == -2) return NULL;
    if (version != s->version) {
        PyObject *shape = shape_of(state, s), *dtype = shape == NULL ? NULL : CORE_READ(state, s->tensor, dtype);
        if (dtype != NULL) (void)core_raise_in_place(dtype, shape, self->call->unit->name, version, s->version);
        Py_XDECREF(shape);
        Py_XDECREF(dtype);
        return NULL;
    }
    PyObject *tensor = s->tensor;
    if (self->keep || s->is_parameter)
        Py_INCREF(tensor);
    else
        s->tensor = NULL;
    return tensor;
}

PyObject *core_unpack(PyObject *module, PyObject *object) {
    core_state *state = core_get_state(module);
    if (Py_TYPE(object) != state->handle_type) {
        PyErr_SetString(PyExc_TypeError, object == Py_None
                                             ? "a layer asked for its own saved tensors while it was recomputed"
                                             : "unpack() takes a handle of SavedTensors.pack()");
        return NULL;
    }
    SavedHandle *handle = (SavedHandle *)object;
    SavedTensors *saved = handle->saved;
    int64_t task = core_current_task(state);
    if (task == CORE_NO_TASK) return NULL;
    /* Does the slot hold a tensor of this backward? A running recomputation, on any thread, belongs to none yet. */
    const slot *s = &saved->slots[handle->index];
    if (s->tensor != NULL && (s->is_parameter || saved->task == task)) return take(state, saved, handle->index);
    Py_INCREF(object); /* the handle, and with it `saved`, stays while Python code runs */
    PyObject *tensor = NULL;
    if (lock_saved(state, saved) == 0) {
        int there = saved->slots[handle->index].tensor != NULL && (saved->keep || saved->task == task);
        if (there || recompute(state, saved, task) == 0) tensor = take(state, saved, handle->index);
        unlock_saved(saved);
    }
    Py_DECREF(object);
    return tensor;
}

void core_saved_release(PyObject *object) {
    SavedTensors *self = (SavedTensors *)object;
    self->keep = 0;
    clear_tensors(self);
}

PyObject *core_saved_held(PyObject *object) {
    SavedTensors *self = (SavedTensors *)object;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < self->n_slots; i++) {
        if (self->slots[i].tensor != NULL && PyList_Append(list, self->slots[i].tensor) < 0) Py_CLEAR(list);
    }
    return list;
}

int core_saved_changed(core_state *state, PyObject *object) {
    SavedTensors *self = (SavedTensors *)object;
    for (Py_ssize_t i = 0; i < self->n_slots; i++) {
        if (self->slots[i].tensor == NULL) continue;
        int64_t version = core_tensor_version(state, self->slots[i].tensor);
        if (version != self->slots[i].version) return version == -2 ? -1 : 1;
    }
    return 0;
}

PyObject *core_saved_new(core_state *state, Call *call, int keep) {
    PyTypeObject *type = state->saved_type;
    SavedTensors *self = (SavedTensors *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    self->task = CORE_NO_TASK;
    self->last = -1;
    self->keep = keep;
    self->lock = PyThread_allocate_lock();
    if (self->lock == NULL) {
        Py_DECREF((PyObject *)self);
        return PyErr_NoMemory();
    }
    Py_INCREF((PyObject *)call);
    self->call = call;
    return (PyObject *)self;
}

static int saved_traverse(PyObject *object, visitproc visit, void *arg) {
    SavedTensors *self = (SavedTensors *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->call);
    for (Py_ssize_t i = 0; i < self->n_slots; i++) Py_VISIT(self->slots[i].tensor);
    return core_kept_visit(self->kept, visit, arg);
}

static int saved_clear(PyObject *object) {
    SavedTensors *self = (SavedTensors *)object;
    Py_CLEAR(self->call);
    clear_tensors(self);
    return 0;
}

static void saved_dealloc(PyObject *object) {
    SavedTensors *self = (SavedTensors *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->call);
    core_kept_free(self->kept);
    for (Py_ssize_t i = 0; i < self->n_slots; i++) forget(&self->slots[i]);
    PyMem_Free(self->slots);
    if (self->lock != NULL) PyThread_free_lock(self->lock);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* A handle has died: what was kept for slots after those that are left is not needed any more. */
static void release_kept(SavedTensors *self) {
    while (self->n_alive > 0 &&
           (self->slots[self->n_alive - 1].handle == NULL || self->slots[self->n_alive - 1].is_parameter))
        self->n_alive--;
    if (self->last < 0) core_kept_release(self->kept, self->n_alive); /* else a recomputation may be at it */
}

static void handle_dealloc(PyObject *object) {
    SavedHandle *self = (SavedHandle *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->saved != NULL) {
        slot *s = &self->saved->slots[self->index];
        s->handle = NULL;
        Py_CLEAR(s->tensor);
        if (self->saved->kept != NULL) release_kept(self->saved);
        Py_DECREF(self->saved);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef saved_methods[] = {
    {"pack", saved_pack, METH_O, pack_doc},
    {"collect", saved_collect, METH_O, collect_doc},
    {"__torch_function__", (PyCFunction)(void (*)(void))saved_torch_function, METH_FASTCALL, function_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot saved_slots[] = {
    {Py_tp_doc, (void *)"The saved tensors of one call of a unit, kept or recomputed."},
    {Py_tp_dealloc, saved_dealloc},
    {Py_tp_traverse, saved_traverse},
    {Py_tp_clear, saved_clear},
    {Py_tp_methods, saved_methods},
    {0, NULL},
};

static PyType_Spec saved_spec = {
    .name = "memscale._core.SavedTensors",
    .basicsize = sizeof(SavedTensors),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = saved_slots,
};

static PyType_Slot handle_slots[] = {
    {Py_tp_doc, (void *)"What autograd holds in place of a saved tensor."},
    {Py_tp_dealloc, handle_dealloc},
    {0, NULL},
};

static PyType_Spec handle_spec = {
    .name = "memscale._core.SavedHandle",
    .basicsize = sizeof(SavedHandle),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = handle_slots,
};

int core_add_saved(PyObject *module, core_state *state) {
    state->saved_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &saved_spec, NULL);
    if (state->saved_type == NULL || PyModule_AddType(module, state->saved_type) < 0) return -1;
    state->handle_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &handle_spec, NULL);
    return state->handle_type == NULL ? -1 : 0;
}
