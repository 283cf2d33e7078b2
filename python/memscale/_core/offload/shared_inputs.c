/* shared_inputs.c - which inputs of a unit others hold as well: to copy those would free nothing.
 *
 * A position bias or an encoder's output is given to many units, and the output of one that changes it in place is held
 * for that one's backward. When the device memory of an input is due to be free and somebody else still holds it, it
 * stays, and the next call does not copy it. A unit is told apart by its key and by how many tensors it was given, an
 * input by its place among them.
 */
#include "offloading.h"

#define MAX_PLACES 63 /* the bits of a mask; later inputs count as the unit's own */

/* A number for a unit that is given so many tensors. New reference. */
static PyObject *name_of(const core_place *place) {
    return PyLong_FromLongLong((long long)place->key << 16 | (place->n & 0xffff));
}

/* The places that are shared. -1 with an exception. */
static long long mask_of(const OffloadEngine *engine, PyObject *name) {
    PyObject *mask = name == NULL ? NULL : PyDict_GetItemWithError(engine->shared, name);
    return mask != NULL ? PyLong_AsLongLong(mask) : PyErr_Occurred() ? -1 : 0;
}

int core_input_is_shared(const OffloadEngine *engine, const core_place *place) {
    if (place->index >= MAX_PLACES) return 0;
    PyObject *name = name_of(place);
    long long mask = mask_of(engine, name);
    Py_XDECREF(name);
    return mask < 0 ? -1 : (int)(mask >> place->index & 1);
}

int core_input_share(OffloadEngine *engine, const core_place *place) {
    if (place->index >= MAX_PLACES) return 0;
    PyObject *name = name_of(place);
    long long mask = mask_of(engine, name);
    PyObject *more = mask < 0 ? NULL : PyLong_FromLongLong(mask | 1LL << place->index);
    int status = more == NULL ? -1 : PyDict_SetItem(engine->shared, name, more);
    Py_XDECREF(more);
    Py_XDECREF(name);
    return status;
}
