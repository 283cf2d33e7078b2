/* conditions.c - what a forward depends on beside its inputs and its modules: random generators and torch's switches.
 *
 * Generators are noted before a unit's first run; those that did not move are forgotten after it, so a repetition puts
 * back only what the unit draws from. A generator on a GPU is its seed and offset: two numbers, no tensor, no wait for
 * the device. Python's and numpy's own generators keep their state in plain memory, which is compared in place and
 * copied only when it changed: asking them costs as much as a small layer. Whether that works is tried out on fresh
 * generators (probe_*), and where it does not, or where a unit is known to draw from them, they are asked (OBJECT).
 */
#include "core.h"

#include <string.h>

#define MT19937_BYTES 2500 /* numpy's state: 624 words and the position */

enum kind { TORCH_STATE, TORCH_OFFSET, RAW_PYTHON, RAW_NUMPY, OBJECT };

struct core_generator {
    enum kind kind;
    PyObject *object; /* owned: the generator; of OBJECT kind, what note_python() or note_numpy() returned */
    PyObject *state;  /* owned: TORCH_STATE a tensor, RAW bytes; else NULL */
    PyObject *extra;  /* owned: RAW_PYTHON its gauss_next; else NULL */
    uint64_t seed, offset;
};

/* ---- Numbers and memory of Python objects ---- */

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

static int raw_equal(const core_raw *raw, PyObject *bytes) {
    const char *copy = PyBytes_AsString(bytes);
    return memcmp(copy, raw->memory, raw->n_bytes) == 0 &&
           (raw->n_more == 0 || memcmp(copy + raw->n_bytes, raw->more, raw->n_more) == 0);
}

static void raw_put(const core_raw *raw, PyObject *bytes) {
    const char *copy = PyBytes_AsString(bytes);
    memcpy(raw->memory, copy, raw->n_bytes);
    if (raw->n_more > 0) memcpy(raw->more, copy + raw->n_bytes, raw->n_more);
}

/* A copy of the memory as bytes; the last one again if nothing changed. New reference. */
static PyObject *raw_copy(core_raw *raw) {
    if (raw->last == NULL || !raw_equal(raw, raw->last)) {
        PyObject *fresh = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(raw->n_bytes + raw->n_more));
        if (fresh == NULL) return NULL;
        memcpy(PyBytes_AsString(fresh), raw->memory, raw->n_bytes);
        if (raw->n_more > 0) memcpy(PyBytes_AsString(fresh) + raw->n_bytes, raw->more, raw->n_more);
        Py_XDECREF(raw->last);
        raw->last = fresh;
    }
    Py_INCREF(raw->last);
    return raw->last;
}

/* ---- Can the state be compared in place? ---- */

/* Call a method of both without arguments: the same result? 1, 0, or -1 with an exception. */
static int draw_same(PyObject *a, PyObject *b, const char *method) {
    PyObject *x = PyObject_CallMethod(a, method, NULL), *y = x == NULL ? NULL : PyObject_CallMethod(b, method, NULL);
    int same = y == NULL ? -1 : PyObject_RichCompareBool(x, y, Py_EQ);
    Py_XDECREF(x);
    Py_XDECREF(y);
    return same;
}

static int draw(PyObject *generator, const char *method) {
    PyObject *value = PyObject_CallMethod(generator, method, NULL);
    Py_XDECREF(value);
    return value == NULL ? -1 : 0;
}

/* Are these pieces all there is to the state of a generator? Of two with one seed they must be equal at first, differ
 * after every draw by one of the methods (which ends with NULL), and once they are copied, both continue alike; over
 * enough draws for a refill. 1, 0, or -1 with an exception. */
static int probe(PyObject *a, PyObject *b, core_raw *in_a, core_raw *in_b, const char *const *methods) {
    PyObject *copy = raw_copy(in_a);
    int works = copy == NULL ? -1 : raw_equal(in_b, copy);
    for (int i = 0; works == 1 && i < 700; i++) {
        for (const char *const *method = methods; works == 1 && *method != NULL; method++) {
            works = draw(a, *method) < 0 ? -1 : !raw_equal(in_a, copy);
            Py_XDECREF(copy);
            copy = works == 1 ? raw_copy(in_a) : NULL;
            if (works == 1 && copy == NULL) works = -1;
        }
        if (works != 1 || i % 50 != 0) continue;
        raw_put(in_b, copy);
        for (const char *const *method = methods; works == 1 && *method != NULL; method++)
            works = draw_same(a, b, *method);
        Py_XDECREF(copy);
        copy = raw_copy(in_a);
        if (works == 1) works = copy == NULL ? -1 : raw_equal(in_b, copy);
    }
    Py_XDECREF(copy);
    Py_CLEAR(in_a->last);
    Py_CLEAR(in_b->last);
    return works;
}

static PyObject *make_seeded(PyObject *type, long seed) { return PyObject_CallFunction(type, "l", seed); }

static Py_ssize_t object_bytes(PyObject *type) {
    PyObject *size = PyObject_GetAttrString(type, "__basicsize__");
    Py_ssize_t n = size == NULL ? -1 : PyLong_AsSsize_t(size);
    Py_XDECREF(size);
    return n;
}

/* random.Random: the C type behind it adds index and state to an object, and nothing else. */
int core_probe_python(core_state *state) {
    static const char *const methods[] = {"random", NULL};
    PyObject *type = (PyObject *)Py_TYPE(state->python_random);
    PyObject *base = PyObject_GetAttrString(type, "__base__");
    Py_ssize_t n = base == NULL ? 0 : object_bytes(base) - (Py_ssize_t)sizeof(PyObject);
    PyObject *a = n > 0 ? make_seeded(type, 1) : NULL, *b = a == NULL ? NULL : make_seeded(type, 1);
    int works = 0;
    if (b != NULL) {
        core_raw in_a = {.memory = (char *)a + sizeof(PyObject), .n_bytes = (size_t)n};
        core_raw in_b = {.memory = (char *)b + sizeof(PyObject), .n_bytes = (size_t)n};
        works = probe(a, b, &in_a, &in_b, methods);
    }
    Py_XDECREF(base);
    Py_XDECREF(a);
    Py_XDECREF(b);
    PyErr_Clear(); /* whatever went wrong: it does not work */
    Py_CLEAR(state->raw_python.last);
    state->raw_python.memory = works == 1 ? (char *)state->python_random + sizeof(PyObject) : NULL;
    state->raw_python.n_bytes = works == 1 ? (size_t)n : 0;
    return 0;
}

static PyObject *numpy_bit_generator(core_state *state, PyObject *random_state) {
    PyObject *found = PyObject_GetAttr(random_state, state->str__bit_generator);
    if (found == NULL) PyErr_Clear();
    return found;
}

static char *numpy_memory(PyObject *bit_generator) {
    PyObject *capsule = PyObject_GetAttrString(bit_generator, "capsule");
    /* numpy/random/bitgen.h: the structure begins with a pointer to the state. */
    void **bitgen = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, "BitGenerator");
    Py_XDECREF(capsule); /* the bit generator keeps it */
    return bitgen == NULL ? NULL : (char *)*bitgen;
}

/* numpy's randn() makes two numbers at a time and keeps the second inside the object: find out where. */
static int find_second_number(PyObject *type, size_t *out_at, size_t *out_n) {
    Py_ssize_t n = object_bytes(type);
    PyObject *generator = n > 0 && n < 4096 ? make_seeded(type, 3) : NULL;
    char before[4096];
    size_t first = (size_t)n, end = 0;
    for (int i = 0; generator != NULL && i < 6; i++) {
        memcpy(before, generator, (size_t)n);
        if (draw(generator, "randn") < 0) break;
        for (size_t at = sizeof(PyObject); at < (size_t)n; at++) {
            if (((char *)generator)[at] == before[at]) continue;
            if (at < first) first = at;
            if (at >= end) end = at + 1;
        }
    }
    Py_XDECREF(generator);
    if (PyErr_Occurred() || end <= first || end - first > 32) return 0;
    *out_at = first;
    *out_n = end - first;
    return 1;
}

static core_raw numpy_raw(PyObject *random_state, PyObject *bit_generator, size_t at, size_t n_more) {
    return (core_raw){.memory = numpy_memory(bit_generator),
                      .n_bytes = MT19937_BYTES,
                      .more = (char *)random_state + at,
                      .n_more = n_more};
}

/* Tried once, when numpy is seen first. */
static void probe_numpy(core_state *state, PyObject *global) {
    static const char *const methods[] = {"random", "randn", "randn", "randn", NULL};
    PyObject *type = (PyObject *)Py_TYPE(global);
    PyObject *a = make_seeded(type, 1), *b = a == NULL ? NULL : make_seeded(type, 1);
    PyObject *bits_a = b == NULL ? NULL : numpy_bit_generator(state, a);
    PyObject *bits_b = bits_a == NULL ? NULL : numpy_bit_generator(state, b);
    PyObject *bits = bits_b == NULL ? NULL : numpy_bit_generator(state, global);
    size_t at = 0, n_more = 0;
    if (bits != NULL && Py_TYPE(bits) == Py_TYPE(bits_a) && find_second_number(type, &at, &n_more)) {
        core_raw in_a = numpy_raw(a, bits_a, at, n_more), in_b = numpy_raw(b, bits_b, at, n_more);
        core_raw real = numpy_raw(global, bits, at, n_more);
        if (in_a.memory != NULL && in_b.memory != NULL && real.memory != NULL &&
            probe(a, b, &in_a, &in_b, methods) == 1) {
            Py_INCREF(bits);
            real.owner = bits;
            state->raw_numpy = real;
        }
    }
    PyErr_Clear(); /* whatever went wrong: it does not work */
    state->numpy_probed = 1;
    Py_XDECREF(a);
    Py_XDECREF(b);
    Py_XDECREF(bits_a);
    Py_XDECREF(bits_b);
    Py_XDECREF(bits);
}

/* ---- Noting one generator ---- */

static int note_object(PyObject *noter, core_generator *out) {
    *out = (core_generator){.kind = OBJECT, .object = PyObject_CallNoArgs(noter)};
    return out->object == NULL ? -1 : 0;
}

static int note_python(core_state *state, int full, core_generator *out) {
    if (full || state->raw_python.memory == NULL) return note_object(state->note_python, out);
    Py_INCREF(state->python_random);
    *out = (core_generator){.kind = RAW_PYTHON, .object = state->python_random, .state = raw_copy(&state->raw_python)};
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

static int note_numpy(core_state *state, PyObject *global, int full, core_generator *out) {
    if (!state->numpy_probed) probe_numpy(state, global);
    PyObject *bit_generator = full || state->raw_numpy.memory == NULL ? NULL : numpy_bit_generator(state, global);
    int usable = bit_generator != NULL && bit_generator == state->raw_numpy.owner; /* set_bit_generator() changes it */
    Py_XDECREF(bit_generator);
    if (!usable) return note_object(state->note_numpy, out);
    Py_INCREF(global);
    *out = (core_generator){.kind = RAW_NUMPY, .object = global, .state = raw_copy(&state->raw_numpy)};
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

static int note_again(core_state *state, const core_generator *of, core_generator *out) {
    switch (of->kind) {
    case RAW_PYTHON:
        return note_python(state, 0, out);
    case RAW_NUMPY:
        return note_numpy(state, of->object, 0, out);
    case OBJECT:
        return note_object((PyObject *)Py_TYPE(of->object), out);
    default:
        return note_torch(state, of->object, of->kind, out);
    }
}

static void forget(core_generator *g) {
    Py_CLEAR(g->object);
    Py_CLEAR(g->state);
    Py_CLEAR(g->extra);
}

/* ---- Has it moved? Put it back. ---- */

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
    return raw->memory == NULL || !raw_equal(raw, g->state);
}

/* gauss() hands out every second number without a draw. */
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
    default: {
        PyObject *answer = PyObject_CallMethodObjArgs(g->object, state->str_moved, NULL);
        int moved = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        return moved;
    }
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
        raw_put(&state->raw_python, g->state);
        return PyObject_SetAttr(g->object, state->str_gauss_next, g->extra);
    case RAW_NUMPY:
        raw_put(&state->raw_numpy, g->state);
        return 0;
    default: {
        PyObject *done = PyObject_CallMethodObjArgs(g->object, state->str_restore, NULL);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    }
}

/* ---- All of them ---- */

/* The index of a device if it is a GPU (0 where it does not say), -1 if not, -2 with an exception. */
static Py_ssize_t cuda_index(core_state *state, PyObject *device) {
    PyObject *type = PyObject_GetAttr(device, state->str_type);
    int is_cuda = type == NULL ? -1 : PyUnicode_CompareWithASCIIString(type, "cuda") == 0;
    Py_XDECREF(type);
    if (is_cuda <= 0) return is_cuda < 0 ? -2 : -1;
    PyObject *index = PyObject_GetAttr(device, state->str_index);
    Py_ssize_t value = index == NULL || index == Py_None ? 0 : PyLong_AsSsize_t(index);
    int failed = index == NULL || PyErr_Occurred();
    Py_XDECREF(index);
    return failed ? -2 : value;
}

static int contains(PyObject *devices, PyObject *device) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(devices); i++) {
        int same = PyObject_RichCompareBool(PyTuple_GetItem(devices, i), device, Py_EQ);
        if (same != 0) return same;
    }
    return 0;
}

PyObject *core_devices_add(core_state *state, PyObject *devices, PyObject *tensors) {
    for (Py_ssize_t i = 0; devices != NULL && i < PyList_Size(tensors); i++) {
        PyObject *device = CORE_READ(state, PyList_GetItem(tensors, i), device);
        int known = device == NULL ? -1 : contains(devices, device);
        if (known != 1) {
            PyObject *one = known < 0 ? NULL : PyTuple_Pack(1, device);
            PyObject *joined = one == NULL ? NULL : PySequence_Concat(devices, one);
            Py_XDECREF(one);
            Py_DECREF(devices);
            devices = joined;
        }
        Py_XDECREF(device);
    }
    return devices;
}

int core_has_cuda(core_state *state, PyObject *devices) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(devices); i++) {
        Py_ssize_t index = cuda_index(state, PyTuple_GetItem(devices, i));
        if (index != -1) return index == -2 ? -1 : 1;
    }
    return 0;
}

static int note_gpus(core_state *state, core_randomness *out, PyObject *devices) {
    PyObject *generators = NULL;
    int status = 0;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(devices); i++) {
        Py_ssize_t index = cuda_index(state, PyTuple_GetItem(devices, i));
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

int core_randomness_note(core_state *state, core_randomness *out, PyObject *devices, int full) {
    if (allocate(out, PyTuple_Size(devices) + 3) < 0) return -1;
    PyObject *numpy = find_numpy(state);
    int status = note_torch(state, state->generator, TORCH_STATE, &out->items[out->n++]);
    if (status == 0) status = note_gpus(state, out, devices);
    if (status == 0) status = note_python(state, full, &out->items[out->n++]);
    if (status == 0 && numpy != NULL) status = note_numpy(state, numpy, full, &out->items[out->n++]);
    Py_XDECREF(numpy);
    if (status < 0) core_randomness_clear(out);
    return status;
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

int core_randomness_is_full(const core_randomness *self) {
    for (Py_ssize_t i = 0; i < self->n; i++)
        if (self->items[i].kind == OBJECT) return 1;
    return 0;
}

/* ---- Switches ---- */

/* The first switch says whether autocast is on at all. While it is not, the N_AUTOCAST that follow do not matter. */
#define N_AUTOCAST 5

static PyObject *read_switch(core_state *state, Py_ssize_t i, int any_autocast) {
    if (i > 0 && i <= N_AUTOCAST && !any_autocast) {
        Py_INCREF(Py_False);
        return Py_False;
    }
    PyObject *entry = PyTuple_GetItem(state->switches, i);
    PyObject *function = entry == NULL ? NULL : PyTuple_GetItem(entry, 0), *argument = PyTuple_GetItem(entry, 1);
    if (function == NULL || argument == NULL) return NULL;
    return argument == Py_None ? PyObject_CallNoArgs(function) : PyObject_CallFunctionObjArgs(function, argument, NULL);
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
        PyObject *value = read_switch(state, i, any_autocast);
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

/* ---- For Python ---- */

typedef struct Randomness {
    PyObject_HEAD
    core_randomness noted;
} Randomness;

static PyObject *randomness_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *devices;
    static char *names[] = {(char *)"devices", NULL};
    core_state *state = core_state_of_type(type);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Randomness", names, &devices)) return NULL;
    if (core_check_bound(state) < 0) return NULL;
    PyObject *tuple = PySequence_Tuple(devices);
    Randomness *self = tuple == NULL ? NULL : (Randomness *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self != NULL && core_randomness_note(state, &self->noted, tuple, 1) < 0) Py_CLEAR(self);
    Py_XDECREF(tuple);
    return (PyObject *)self;
}

PyDoc_STRVAR(moved_doc, "moved($self, /)\n--\n\nDid somebody draw since?");

static PyObject *randomness_moved(PyObject *object, PyObject *Py_UNUSED(unused)) {
    Randomness *self = (Randomness *)object;
    for (Py_ssize_t i = 0; i < self->noted.n; i++) {
        int moved = has_moved(core_state_of_type(Py_TYPE(object)), &self->noted.items[i]);
        if (moved != 0) return moved < 0 ? NULL : PyBool_FromLong(1);
    }
    Py_RETURN_FALSE;
}

PyDoc_STRVAR(restore_doc, "restore($self, /)\n--\n\nPut the generators back where they were.");

static PyObject *randomness_restore(PyObject *object, PyObject *Py_UNUSED(unused)) {
    if (core_randomness_restore(core_state_of_type(Py_TYPE(object)), &((Randomness *)object)->noted, NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int randomness_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    return core_randomness_visit(&((Randomness *)object)->noted, visit, arg);
}

static void randomness_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    core_randomness_clear(&((Randomness *)object)->noted);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"moved", randomness_moved, METH_NOARGS, moved_doc},
    {"restore", randomness_restore, METH_NOARGS, restore_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(type_doc, "Randomness(devices)\n--\n\nThe random generators, as they are when it is made.");

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)type_doc},         {Py_tp_new, randomness_new}, {Py_tp_dealloc, randomness_dealloc},
    {Py_tp_traverse, randomness_traverse}, {Py_tp_methods, methods},    {0, NULL},
};

static PyType_Spec spec = {
    .name = "memscale._core.Randomness",
    .basicsize = sizeof(Randomness),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int core_add_conditions(PyObject *module, core_state *state) {
    state->randomness_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return state->randomness_type == NULL ? -1 : PyModule_AddType(module, state->randomness_type);
}
