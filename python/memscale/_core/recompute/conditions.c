/* conditions.c - what a forward depends on besides its modules: inputs, random generators, torch's switches.
 *
 * Inputs are copied when the unit is called: containers become new objects, since the caller may append to them later,
 * and tensors with a history become aliases without it, so that a call neither keeps the graph before it alive nor
 * registers anything on it. An alias shares memory and version counter with its tensor. An object that cannot be
 * looked into, such as a key-value cache, is reported: there is no way to tell whether the call changes it.
 *
 * Generators are noted before the first run; those that did not move are forgotten after it, so a recomputation puts
 * back only what the unit draws from. Those that its modules own are among them (owned.c). A generator on a GPU is its
 * seed and offset: two numbers, no tensor, no wait for the device. The states of Python's and numpy's generators are
 * compared in place where randomness.c found that to work; else, and for a unit that is known to draw from them, their
 * own functions are called (kind API).
 */
#include "recompute.h"

#include <string.h>

/* ---- Inputs ---- */

typedef struct snapshot {
    core_state *state;
    PyObject *tensors; /* list: as given, each once */
    PyObject *aliases; /* list: as they are in the copy */
    PyObject *opaque;  /* owned: the type of the first object that cannot be looked into, or NULL */
} snapshot;

static PyObject *copy_input(snapshot *s, PyObject *object, int depth);

static PyObject *share(PyObject *object) {
    Py_INCREF(object);
    return object;
}

static PyObject *share_opaque(snapshot *s, PyObject *object) {
    if (s->opaque == NULL) s->opaque = share((PyObject *)Py_TYPE(object));
    return share(object);
}

static PyObject *make_alias(snapshot *s, PyObject *tensor) {
    core_state *state = s->state;
    if (Py_TYPE(tensor) == (PyTypeObject *)state->parameter_type) return share(tensor);
    if (Py_TYPE(tensor) != (PyTypeObject *)state->tensor_type)
        return share_opaque(s, tensor); /* its data may be anywhere */
    int nested = CORE_READ_BOOL(state, tensor, is_nested);
    if (nested != 0) return nested < 0 ? NULL : share_opaque(s, tensor);
    PyObject *alias = core_without_history(state, tensor);
    return alias == NULL && !PyErr_Occurred() ? share(tensor) : alias;
}

static PyObject *copy_tensor(snapshot *s, PyObject *tensor) {
    for (Py_ssize_t i = 0; i < PyList_Size(s->tensors); i++)
        if (PyList_GetItem(s->tensors, i) == tensor) return share(PyList_GetItem(s->aliases, i));
    PyObject *alias = make_alias(s, tensor);
    if (alias != NULL && (PyList_Append(s->tensors, tensor) < 0 || PyList_Append(s->aliases, alias) < 0))
        Py_CLEAR(alias);
    return alias;
}

/* Replace the values of a dict that is ours by their copies. */
static int copy_values(snapshot *s, PyObject *dict, int depth) {
    PyObject *items = PyDict_Copy(dict), *key, *value;
    Py_ssize_t position = 0;
    int status = items == NULL ? -1 : 0;
    while (status == 0 && PyDict_Next(items, &position, &key, &value)) {
        PyObject *item = copy_input(s, value, depth + 1);
        status = item == NULL ? -1 : PyDict_SetItem(dict, key, item);
        Py_XDECREF(item);
    }
    Py_XDECREF(items);
    return status;
}

static PyObject *copy_dict(snapshot *s, PyObject *dict, int depth) {
    PyObject *copy = PyDict_Copy(dict);
    if (copy != NULL && copy_values(s, copy, depth) < 0) Py_CLEAR(copy);
    return copy;
}

static PyObject *copy_sequence(snapshot *s, PyObject *sequence, int depth) {
    PyObject *items = PySequence_Tuple(sequence); /* copying an item may run Python code, which may change it */
    Py_ssize_t n = items == NULL ? 0 : PyTuple_Size(items);
    PyObject *copy = items == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; copy != NULL && i < n; i++) {
        PyObject *item = copy_input(s, PyTuple_GetItem(items, i), depth + 1);
        if (item == NULL || PyList_Append(copy, item) < 0) Py_CLEAR(copy);
        Py_XDECREF(item);
    }
    Py_XDECREF(items);
    if (copy == NULL || PyList_CheckExact(sequence)) return copy;
    PyObject *tuple = PyTuple_CheckExact(sequence)
                          ? PySequence_Tuple(copy)
                          : PyObject_CallMethod((PyObject *)Py_TYPE(sequence), "_make", "O", copy); /* a named tuple */
    Py_DECREF(copy);
    return tuple;
}

static int share_tensors_in(snapshot *s, PyObject *object) {
    PyObject *found = core_find_tensors(s->state, object);
    int status = found == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && i < PyList_Size(found); i++) {
        PyObject *tensor = PyList_GetItem(found, i);
        if (PyList_Append(s->tensors, tensor) < 0 || PyList_Append(s->aliases, tensor) < 0) status = -1;
    }
    Py_XDECREF(found);
    return status;
}

/* A shallow copy of a container of another class. What a dataclass keeps is copied too; elsewhere tensors are shared.
 */
static PyObject *copy_shallow(snapshot *s, PyObject *object, int depth) {
    int failed = 0;
    PyObject *copy = PyObject_CallFunctionObjArgs(s->state->copy, object, NULL);
    if (copy == NULL) return NULL;
    PyObject *dict = PyDict_Check(object) ? NULL : core_get_optional(copy, s->state->str___dict__, &failed);
    int status = failed ? -1 : 0;
    if (status == 0 && dict != NULL && PyDict_CheckExact(dict) && copy != object)
        status = copy_values(s, dict, depth);
    else if (status == 0)
        status = share_tensors_in(s, copy);
    Py_XDECREF(dict);
    if (status < 0) Py_CLEAR(copy);
    return copy;
}

/* Values that nobody changes: numbers, text, functions, modules' and torch's own constants, enumeration members. */
static int is_constant(core_state *state, PyObject *object) {
    if (object == Py_None || PyBool_Check(object) || PyLong_Check(object) || PyFloat_Check(object) ||
        PyUnicode_Check(object) || PyBytes_Check(object) || PyComplex_Check(object) || PySlice_Check(object) ||
        PyFrozenSet_Check(object) || object == Py_Ellipsis || PyType_Check(object) || PyRange_Check(object))
        return 1;
    PyObject *type = (PyObject *)Py_TYPE(object);
    int failed, known = 0;
    PyObject *members = core_get_optional(type, state->str__member_map_, &failed);
    Py_XDECREF(members);
    if (failed) return -1;
    PyObject *name = members == NULL ? PyObject_Str(type) : NULL; /* "<class 'torch.dtype'>" */
    if (members == NULL && name == NULL) return -1;
    const char *text = name == NULL ? NULL : PyUnicode_AsUTF8AndSize(name, NULL);
    static const char *const constants[] = {
        "'function'",     "'method'",       "'builtin_function_or_method'", "'functools.partial'", "'torch.dtype'",
        "'torch.device'", "'torch.layout'", "'torch.memory_format'",        "'torch.Size'",        ".BlockMask'"};
    for (size_t i = 0; text != NULL && i < sizeof constants / sizeof *constants; i++)
        known = known || strstr(text, constants[i]) != NULL;
    Py_XDECREF(name);
    return members != NULL || known;
}

static PyObject *copy_input(snapshot *s, PyObject *object, int depth) {
    if (object == Py_None || depth > CORE_MAX_DEPTH) return share(object);
    if (core_is_tensor(s->state, object)) return copy_tensor(s, object);
    if (PyDict_CheckExact(object)) return copy_dict(s, object, depth);
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) return copy_sequence(s, object, depth);
    if (PyTuple_Check(object) && PyObject_HasAttrString(object, "_fields")) return copy_sequence(s, object, depth);
    int constant = is_constant(s->state, object);
    if (constant != 0) return constant < 0 ? NULL : share(object);
    int known = PyDict_Check(object) || PyList_Check(object) || PyTuple_Check(object) || PyAnySet_Check(object);
    if (!known) known = core_is_dataclass(s->state, object);
    if (known < 0) return NULL;
    return known ? copy_shallow(s, object, depth) : share_opaque(s, object);
}

/* The aliases that were made, as a new list. */
static PyObject *list_own(const snapshot *s) {
    PyObject *own = PyList_New(0);
    for (Py_ssize_t i = 0; own != NULL && i < PyList_Size(s->tensors); i++) {
        PyObject *alias = PyList_GetItem(s->aliases, i);
        if (alias != PyList_GetItem(s->tensors, i) && PyList_Append(own, alias) < 0) Py_CLEAR(own);
    }
    return own;
}

int core_inputs_copy(core_state *state, PyObject *args, PyObject *kwargs, core_inputs *out) {
    snapshot s = {.state = state, .tensors = PyList_New(0), .aliases = PyList_New(0)};
    PyObject *positional = NULL, *keywords = NULL;
    if (s.tensors != NULL && s.aliases != NULL) positional = copy_input(&s, args, 0);
    if (positional != NULL) keywords = kwargs == NULL ? PyDict_New() : copy_input(&s, kwargs, 0);
    PyObject *own = keywords == NULL ? NULL : list_own(&s);
    Py_XDECREF(s.tensors);
    if (own == NULL) {
        Py_XDECREF(positional);
        Py_XDECREF(keywords);
        Py_XDECREF(s.aliases);
        Py_XDECREF(s.opaque);
        return -1;
    }
    *out = (core_inputs){.args = positional, .kwargs = keywords, .tensors = s.aliases, .own = own, .opaque = s.opaque};
    return 0;
}

/* ---- Random generators ---- */

enum kind { TORCH_STATE, TORCH_OFFSET, RAW_PYTHON, RAW_NUMPY, API, OWNED };

struct core_generator {
    enum kind kind;
    PyObject *object; /* owned: the generator; of kinds API and OWNED, what state->note_...() returned */
    PyObject *state;  /* owned: TORCH_STATE a tensor, RAW bytes; else NULL */
    PyObject *extra;  /* owned: RAW_PYTHON its gauss_next, OWNED the generator; else NULL */
    uint64_t seed, offset;
};

static int call_uint64(PyObject *object, PyObject *method, uint64_t *out) {
    PyObject *value = PyObject_CallMethodObjArgs(object, method, NULL);
    if (value == NULL) return -1;
    *out = PyLong_AsUnsignedLongLongMask(value); /* seeds may be negative */
    Py_DECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

static int call_with(PyObject *object, PyObject *method, PyObject *argument) {
    PyObject *result = argument == NULL ? NULL : PyObject_CallMethodObjArgs(object, method, argument, NULL);
    int status = result == NULL ? -1 : 0;
    Py_XDECREF(result);
    return status;
}

static int call_uint64_with(PyObject *object, PyObject *method, uint64_t value) {
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    int status = call_with(object, method, number);
    Py_XDECREF(number);
    return status;
}

/* The bytes of a contiguous tensor on the CPU; valid while it lives. */
static int tensor_memory(core_state *state, PyObject *tensor, const char **out, uint64_t *out_n) {
    uint64_t address;
    PyObject *n_bytes = PyObject_GetAttr(tensor, state->str_nbytes);
    if (n_bytes == NULL) return -1;
    *out_n = PyLong_AsUnsignedLongLong(n_bytes);
    Py_DECREF(n_bytes);
    if (PyErr_Occurred() || call_uint64(tensor, state->str_data_ptr, &address) < 0) return -1;
    *out = (const char *)(uintptr_t)address;
    return 0;
}

/* Noting one generator. */

static int note_object(PyObject *noter, core_generator *out) {
    *out = (core_generator){.kind = API, .object = PyObject_CallNoArgs(noter)};
    return out->object == NULL ? -1 : 0;
}

static int note_python(core_state *state, int by_api, core_generator *out) {
    if (by_api || state->raw_python.memory == NULL) return note_object(state->note_python, out);
    Py_INCREF(state->python_random);
    *out = (core_generator){
        .kind = RAW_PYTHON, .object = state->python_random, .state = core_raw_copy(&state->raw_python)};
    out->extra = PyObject_GetAttr(state->python_random, state->str_gauss_next);
    return out->state == NULL || out->extra == NULL ? -1 : 0;
}

/* numpy's global generator, borrowed from numpy; NULL if the program has not imported numpy. */
static PyObject *find_numpy(core_state *state) {
    PyObject *numpy = PyImport_GetModule(state->numpy_random);
    PyObject *mtrand = numpy == NULL ? NULL : PyObject_GetAttr(numpy, state->str_mtrand);
    PyObject *global = mtrand == NULL ? NULL : PyObject_GetAttr(mtrand, state->str__rand);
    Py_XDECREF(numpy);
    Py_XDECREF(mtrand);
    PyErr_Clear(); /* half imported */
    return global;
}

static int note_numpy(core_state *state, PyObject *global, int by_api, core_generator *out) {
    if (!state->numpy_probed) core_probe_numpy(state, global);
    PyObject *bit_generator =
        by_api || state->raw_numpy.memory == NULL ? NULL : core_numpy_bit_generator(state, global);
    int usable = bit_generator != NULL && bit_generator == state->raw_numpy.owner; /* set_bit_generator() changes it */
    Py_XDECREF(bit_generator);
    if (!usable) return note_object(state->note_numpy, out);
    Py_INCREF(global);
    *out = (core_generator){.kind = RAW_NUMPY, .object = global, .state = core_raw_copy(&state->raw_numpy)};
    return out->state == NULL ? -1 : 0;
}

static int note_torch(core_state *state, PyObject *generator, enum kind kind, core_generator *out) {
    Py_INCREF(generator);
    *out = (core_generator){.kind = kind, .object = generator};
    if (kind == TORCH_STATE) {
        out->state = PyObject_CallMethodObjArgs(generator, state->str_get_state, NULL);
        return out->state == NULL ? -1 : 0;
    }
    if (call_uint64(generator, state->str_initial_seed, &out->seed) < 0) return -1;
    return call_uint64(generator, state->str_get_offset, &out->offset);
}

/* Older versions of torch have no offsets in Python: then it is the state. */
static int note_cuda(core_state *state, PyObject *generator, core_generator *out) {
    int has_offset = PyObject_HasAttr(generator, state->str_get_offset);
    return note_torch(state, generator, has_offset ? TORCH_OFFSET : TORCH_STATE, out);
}

/* A generator that a module owns: of torch, on any device, or of Python or numpy. */
static int note_owned(core_state *state, PyObject *generator, core_generator *out) {
    if (PyObject_TypeCheck(generator, Py_TYPE(state->generator))) {
        PyObject *device = PyObject_GetAttr(generator, state->str_device);
        Py_ssize_t index = device == NULL ? -2 : core_cuda_index(state, device);
        Py_XDECREF(device);
        if (index == -2) return -1;
        return index >= 0 ? note_cuda(state, generator, out) : note_torch(state, generator, TORCH_STATE, out);
    }
    Py_INCREF(generator);
    *out = (core_generator){
        .kind = OWNED, .object = PyObject_CallFunctionObjArgs(state->note_owned, generator, NULL), .extra = generator};
    return out->object == NULL ? -1 : 0;
}

static int note_again(core_state *state, const core_generator *of, core_generator *out) {
    switch (of->kind) {
    case RAW_PYTHON:
        return note_python(state, 0, out);
    case RAW_NUMPY:
        return note_numpy(state, of->object, 0, out);
    case API:
        return note_object((PyObject *)Py_TYPE(of->object), out);
    case OWNED:
        return note_owned(state, of->extra, out);
    default:
        return note_torch(state, of->object, of->kind, out);
    }
}

static void forget(core_generator *g) {
    Py_CLEAR(g->object);
    Py_CLEAR(g->state);
    Py_CLEAR(g->extra);
}

/* Has it moved? Put it back. */

static int state_moved(core_state *state, const core_generator *g) {
    const char *before, *now;
    uint64_t n_before, n_now;
    PyObject *current = PyObject_CallMethodObjArgs(g->object, state->str_get_state, NULL);
    if (current == NULL) return -1;
    int moved = -1;
    if (tensor_memory(state, g->state, &before, &n_before) == 0 && tensor_memory(state, current, &now, &n_now) == 0)
        moved = n_before != n_now || memcmp(before, now, (size_t)n_now) != 0;
    Py_DECREF(current);
    return moved;
}

static int offset_moved(core_state *state, const core_generator *g) {
    uint64_t seed, offset;
    if (call_uint64(g->object, state->str_get_offset, &offset) < 0) return -1;
    if (offset != g->offset) return 1;
    return call_uint64(g->object, state->str_initial_seed, &seed) < 0 ? -1 : seed != g->seed;
}

static int raw_moved(const core_raw *raw, const core_generator *g) {
    return raw->memory == NULL || !core_raw_equal(raw, g->state);
}

/* gauss() returns every second number without a draw. */
static int python_moved(core_state *state, const core_generator *g) {
    if (raw_moved(&state->raw_python, g)) return 1;
    PyObject *gauss = PyObject_GetAttr(g->object, state->str_gauss_next);
    int moved = gauss == NULL ? -1 : gauss != g->extra;
    Py_XDECREF(gauss);
    return moved;
}

static int has_moved(core_state *state, const core_generator *g) {
    switch (g->kind) {
    case TORCH_STATE:
        return state_moved(state, g);
    case TORCH_OFFSET:
        return offset_moved(state, g);
    case RAW_PYTHON:
        return python_moved(state, g);
    case RAW_NUMPY:
        return raw_moved(&state->raw_numpy, g);
    default:
        return core_is_true(PyObject_CallMethodObjArgs(g->object, state->str_moved, NULL));
    }
}

static int put_offset(core_state *state, const core_generator *g) {
    uint64_t seed;
    if (call_uint64(g->object, state->str_initial_seed, &seed) < 0) return -1;
    if (seed != g->seed && call_uint64_with(g->object, state->str_manual_seed, g->seed) < 0) return -1;
    return call_uint64_with(g->object, state->str_set_offset, g->offset);
}

static int put(core_state *state, const core_generator *g) {
    switch (g->kind) {
    case TORCH_STATE:
        return call_with(g->object, state->str_set_state, g->state);
    case TORCH_OFFSET:
        return put_offset(state, g);
    case RAW_PYTHON:
        core_raw_put(&state->raw_python, g->state);
        return PyObject_SetAttr(g->object, state->str_gauss_next, g->extra);
    case RAW_NUMPY:
        core_raw_put(&state->raw_numpy, g->state);
        return 0;
    default: {
        PyObject *done = PyObject_CallMethodObjArgs(g->object, state->str_restore, NULL);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    }
}

/* All of them. */

static int note_gpus(core_state *state, core_randomness *out, PyObject *devices) {
    PyObject *generators = NULL;
    int status = 0;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(devices); i++) {
        Py_ssize_t index = core_cuda_index(state, PyTuple_GetItem(devices, i));
        if (index < 0) {
            status = index == -2 ? -1 : 0;
            continue;
        }
        if (generators == NULL) generators = PyObject_GetAttr(state->cuda, state->str_default_generators);
        if (generators == NULL || !PyTuple_Check(generators)) {
            status = -1;
        } else if (index < PyTuple_Size(generators)) {
            status = note_cuda(state, PyTuple_GetItem(generators, index), &out->items[out->n++]);
        }
    }
    Py_XDECREF(generators);
    return status;
}

static int allocate(core_randomness *out, Py_ssize_t n) {
    *out = (core_randomness){.items = PyMem_Calloc((size_t)n + 1, sizeof *out->items)};
    if (out->items != NULL) return 0;
    (void)PyErr_NoMemory();
    return -1;
}

int core_randomness_note(core_state *state, core_randomness *out, PyObject *devices, PyObject *owned, int by_api) {
    Py_ssize_t n_owned = owned == NULL ? 0 : PyList_Size(owned);
    if (allocate(out, PyTuple_Size(devices) + n_owned + 3) < 0) return -1;
    PyObject *numpy = find_numpy(state);
    int status = note_torch(state, state->generator, TORCH_STATE, &out->items[out->n++]);
    if (status == 0) status = note_gpus(state, out, devices);
    if (status == 0) status = note_python(state, by_api, &out->items[out->n++]);
    if (status == 0 && numpy != NULL) status = note_numpy(state, numpy, by_api, &out->items[out->n++]);
    for (Py_ssize_t i = 0; status == 0 && i < n_owned; i++)
        status = note_owned(state, PyList_GetItem(owned, i), &out->items[out->n++]);
    Py_XDECREF(numpy);
    if (status < 0) core_randomness_clear(out);
    return status;
}

int core_randomness_moved(core_state *state, const core_randomness *self) {
    int moved = 0;
    for (Py_ssize_t i = 0; moved == 0 && i < self->n; i++) moved = has_moved(state, &self->items[i]);
    return moved;
}

int core_randomness_keep_moved(core_state *state, core_randomness *self, int gpus_only) {
    Py_ssize_t n = 0;
    int status = 0;
    for (Py_ssize_t i = 0; i < self->n; i++) {
        int later = gpus_only && self->items[i].kind != TORCH_OFFSET;
        int moved = status < 0 || later ? 1 : has_moved(state, &self->items[i]);
        if (moved < 0) status = -1;
        if (moved == 0) {
            forget(&self->items[i]);
        } else {
            self->items[n++] = self->items[i];
        }
    }
    self->n = n;
    return status;
}

int core_randomness_restore(core_state *state, const core_randomness *self, core_randomness *now) {
    int status = now == NULL ? 0 : allocate(now, self->n);
    for (Py_ssize_t i = 0; i < self->n && (now == NULL || status == 0); i++) {
        const core_generator *g = &self->items[i];
        int moved = has_moved(state, g); /* on a GPU, setting a generator starts cuDNN's own dropout anew */
        if (moved > 0 && now != NULL && note_again(state, g, &now->items[now->n++]) < 0) moved = -1;
        if (moved < 0 || (moved > 0 && put(state, g) < 0)) status = -1;
    }
    return status;
}

int core_randomness_visit(const core_randomness *self, visitproc visit, void *arg) {
    for (Py_ssize_t i = 0; i < self->n; i++) {
        Py_VISIT(self->items[i].object);
        Py_VISIT(self->items[i].state);
        Py_VISIT(self->items[i].extra);
    }
    return 0;
}

void core_randomness_clear(core_randomness *self) {
    Py_ssize_t n = self->n;
    self->n = 0;
    for (Py_ssize_t i = 0; i < n; i++) forget(&self->items[i]);
    PyMem_Free(self->items);
    self->items = NULL;
}

int core_randomness_has_api(const core_randomness *self) {
    for (Py_ssize_t i = 0; i < self->n; i++)
        if (self->items[i].kind == API) return 1;
    return 0;
}

/* ---- Switches ---- */

/* state->switches is a tuple of (read, write, argument or None). The first tells whether autocast is on at all. The
 * N_AUTOCAST that follow are autocast itself: for each type of device, whether it is on and its dtype; last, its cache.
 * While it is off for all, they do not matter: they are noted as False, and not read. */
#define N_AUTOCAST 5

static int is_autocast(Py_ssize_t i) { return i > 0 && i <= N_AUTOCAST; }

static int is_autocast_on(Py_ssize_t i) { return i < N_AUTOCAST && i % 2 == 1; }

static PyObject *read_switch(core_state *state, Py_ssize_t i) {
    PyObject *entry = PyTuple_GetItem(state->switches, i);
    PyObject *read = PyTuple_GetItem(entry, 0), *argument = PyTuple_GetItem(entry, 2);
    if (read == NULL || argument == NULL) return NULL;
    return argument == Py_None ? PyObject_CallNoArgs(read) : PyObject_CallFunctionObjArgs(read, argument, NULL);
}

static int write_switch(core_state *state, Py_ssize_t i, PyObject *value) {
    PyObject *entry = PyTuple_GetItem(state->switches, i);
    PyObject *write = PyTuple_GetItem(entry, 1), *argument = PyTuple_GetItem(entry, 2);
    PyObject *done = argument == Py_None ? PyObject_CallFunctionObjArgs(write, value, NULL)
                                         : PyObject_CallFunctionObjArgs(write, argument, value, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* A tuple of n that begins with the first `n_known` of another one. */
static PyObject *start_tuple(PyObject *other, Py_ssize_t n_known, Py_ssize_t n) {
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple != NULL && i < n_known; i++) {
        PyObject *item = PyTuple_GetItem(other, i);
        Py_INCREF(item);
        (void)PyTuple_SetItem(tuple, i, item);
    }
    return tuple;
}

PyObject *core_switches_note(core_state *state) {
    Py_ssize_t n = PyTuple_Size(state->switches);
    PyObject *last = state->last_switches, *fresh = NULL;
    int any_autocast = 1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *value = Py_False;
        if (any_autocast || !is_autocast(i))
            value = read_switch(state, i);
        else
            Py_INCREF(value);
        if (value == NULL) goto failed;
        if (i == 0) any_autocast = value == Py_True;
        if (fresh == NULL && last != NULL && PyTuple_GetItem(last, i) == value) {
            Py_DECREF(value);
            continue;
        }
        if (fresh == NULL) fresh = start_tuple(last, i, n); /* the first that differs */
        if (fresh == NULL) Py_DECREF(value);
        if (fresh == NULL || PyTuple_SetItem(fresh, i, value) < 0) goto failed;
    }
    if (fresh != NULL) {
        Py_XDECREF(last);
        state->last_switches = fresh;
    }
    Py_INCREF(state->last_switches);
    return state->last_switches;
failed:
    Py_XDECREF(fresh);
    return NULL;
}

/* Must switch i be written to be as it was noted, and written back to be as it is now? */
static int differs(PyObject *noted, PyObject *now, Py_ssize_t i) {
    if (i == 0) return 0;
    if (is_autocast(i) && PyTuple_GetItem(noted, 0) != Py_True && !is_autocast_on(i)) return 0;
    return PyTuple_GetItem(noted, i) != PyTuple_GetItem(now, i);
}

/* Does any switch differ, or with `autocast_only` any of autocast? */
static int any_differs(PyObject *noted, PyObject *now, int autocast_only) {
    Py_ssize_t n = autocast_only ? N_AUTOCAST + 1 : PyTuple_Size(now);
    for (Py_ssize_t i = 0; i < n; i++)
        if (differs(noted, now, i)) return 1;
    return 0;
}

static PyObject *read_switches(core_state *state) {
    Py_ssize_t n = PyTuple_Size(state->switches);
    PyObject *now = PyTuple_New(n);
    for (Py_ssize_t i = 0; now != NULL && i < n; i++) {
        PyObject *value = read_switch(state, i);
        if (value == NULL || PyTuple_SetItem(now, i, value) < 0) Py_CLEAR(now);
    }
    return now;
}

/* Write those that differ, all of them even after a failure; the first exception stays. */
static int write_switches(core_state *state, PyObject *noted, PyObject *now, PyObject *wanted) {
    int status = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(now); i++) {
        if (!differs(noted, now, i)) continue;
        core_pending pending = core_set_aside();
        if (write_switch(state, i, PyTuple_GetItem(wanted, i)) < 0) status = -1;
        core_put_back(pending);
    }
    return status;
}

/* As the end of an autocast block: the casts that it cached go with the outermost one. */
static int leave_autocast(core_state *state) {
    PyObject *depth = PyObject_CallNoArgs(state->leave_autocast);
    int is_inside = core_is_true(depth);
    if (is_inside != 0) return is_inside < 0 ? -1 : 0;
    PyObject *cleared = PyObject_CallNoArgs(state->clear_autocast_cache);
    Py_XDECREF(cleared);
    return cleared == NULL ? -1 : 0;
}

static int enter_autocast(core_state *state) {
    PyObject *depth = PyObject_CallNoArgs(state->enter_autocast);
    Py_XDECREF(depth);
    return depth == NULL ? -1 : 0;
}

int core_switches_enter(core_state *state, PyObject *noted, PyObject **out) {
    PyObject *now = core_switches_note(state);
    int status = now == NULL ? -1 : 0, same = now == noted;
    *out = NULL;
    Py_XDECREF(now);
    if (status < 0 || same) return status;
    now = read_switches(state);
    if (now == NULL) return -1;
    if (any_differs(noted, now, 1)) status = enter_autocast(state);
    if (status < 0 || !any_differs(noted, now, 0)) {
        Py_DECREF(now);
        return status;
    }
    *out = now;
    return write_switches(state, noted, now, noted);
}

int core_switches_leave(core_state *state, PyObject *noted, PyObject *now) {
    int status = any_differs(noted, now, 1) ? leave_autocast(state) : 0;
    return write_switches(state, noted, now, now) < 0 ? -1 : status;
}
