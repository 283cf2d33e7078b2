/* randomness.c - random generators outside of calls: an object for Python, and how their states can be compared.
 *
 * Python's and numpy's generators keep their state in plain memory. Comparing that costs next to nothing, where asking
 * them for their state costs as much as a small layer. Whether the memory is the whole state is tried out once, on
 * fresh generators; where it is not, they are asked (conditions.c).
 */
#include "recompute.h"

#include <string.h>

#define MT19937_BYTES 2500 /* numpy's state: 624 words and the position */

/* ---- The memory ---- */

int core_raw_equal(const core_raw *raw, PyObject *bytes) {
    const char *copy = PyBytes_AsString(bytes);
    return memcmp(copy, raw->memory, raw->n_bytes) == 0 &&
           (raw->n_more == 0 || memcmp(copy + raw->n_bytes, raw->more, raw->n_more) == 0);
}

void core_raw_put(const core_raw *raw, PyObject *bytes) {
    const char *copy = PyBytes_AsString(bytes);
    memcpy(raw->memory, copy, raw->n_bytes);
    if (raw->n_more > 0) memcpy(raw->more, copy + raw->n_bytes, raw->n_more);
}

PyObject *core_raw_copy(core_raw *raw) {
    if (raw->last == NULL || !core_raw_equal(raw, raw->last)) {
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

/* Are these pieces the whole state of a generator? Those of two generators with one seed must be equal at first and
 * differ after every draw (`methods` is a list that ends with NULL); once one's are copied to the other, both must
 * continue in the same way, over enough draws for a refill. 1, 0, or -1 with an exception. */
static int probe(PyObject *a, PyObject *b, core_raw *in_a, core_raw *in_b, const char *const *methods) {
    PyObject *copy = core_raw_copy(in_a);
    int works = copy == NULL ? -1 : core_raw_equal(in_b, copy);
    for (int i = 0; works == 1 && i < 700; i++) {
        for (const char *const *method = methods; works == 1 && *method != NULL; method++) {
            works = draw(a, *method) < 0 ? -1 : !core_raw_equal(in_a, copy);
            Py_XDECREF(copy);
            copy = works == 1 ? core_raw_copy(in_a) : NULL;
            if (works == 1 && copy == NULL) works = -1;
        }
        if (works != 1 || i % 50 != 0) continue;
        core_raw_put(in_b, copy);
        for (const char *const *method = methods; works == 1 && *method != NULL; method++)
            works = draw_same(a, b, *method);
        Py_XDECREF(copy);
        copy = core_raw_copy(in_a);
        if (works == 1) works = copy == NULL ? -1 : core_raw_equal(in_b, copy);
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

/* random.Random: the C type that it extends adds index and state to an object, and nothing else. */
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
    PyErr_Clear(); /* any failure means that it does not work */
    Py_CLEAR(state->raw_python.last);
    state->raw_python.memory = works == 1 ? (char *)state->python_random + sizeof(PyObject) : NULL;
    state->raw_python.n_bytes = works == 1 ? (size_t)n : 0;
    return 0;
}

PyObject *core_numpy_bit_generator(core_state *state, PyObject *random_state) {
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

/* Tried once, when numpy is first seen. */
void core_probe_numpy(core_state *state, PyObject *global) {
    static const char *const methods[] = {"random", "randn", "randn", "randn", NULL};
    PyObject *type = (PyObject *)Py_TYPE(global);
    PyObject *a = make_seeded(type, 1), *b = a == NULL ? NULL : make_seeded(type, 1);
    PyObject *bits_a = b == NULL ? NULL : core_numpy_bit_generator(state, a);
    PyObject *bits_b = bits_a == NULL ? NULL : core_numpy_bit_generator(state, b);
    PyObject *bits = bits_b == NULL ? NULL : core_numpy_bit_generator(state, global);
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
    PyErr_Clear(); /* any failure means that it does not work */
    state->numpy_probed = 1;
    Py_XDECREF(a);
    Py_XDECREF(b);
    Py_XDECREF(bits_a);
    Py_XDECREF(bits_b);
    Py_XDECREF(bits);
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
    if (self != NULL && core_randomness_note(state, &self->noted, tuple, NULL, 1) < 0) Py_CLEAR(self);
    Py_XDECREF(tuple);
    return (PyObject *)self;
}

PyDoc_STRVAR(moved_doc, "moved($self, /)\n--\n\nDid somebody draw since?");

static PyObject *randomness_moved(PyObject *object, PyObject *Py_UNUSED(unused)) {
    int moved = core_randomness_moved(core_state_of_type(Py_TYPE(object)), &((Randomness *)object)->noted);
    return moved < 0 ? NULL : PyBool_FromLong(moved);
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

int core_add_randomness(PyObject *module, core_state *state) {
    state->randomness_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    return state->randomness_type == NULL ? -1 : PyModule_AddType(module, state->randomness_type);
}
