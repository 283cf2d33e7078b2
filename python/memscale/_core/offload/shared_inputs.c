/* shared_inputs.c - which inputs of a unit others hold as well: to copy those would free nothing.
 *
 * A position bias or an encoder's output is given to many units, and the output of one that changes it in place is held
 * for that one's backward. When the device memory of an input is due to be free and somebody else still holds it, it
 * stays; after twice in a row it is not copied any more, until there is another plan. A unit is told apart by its key
 * and by how many tensors it was given, an input by its place among them.
 */
#include "offloading.h"

#define MAX_PLACES 63 /* the bits of a mask; later inputs count as the unit's own */

/* A number for a unit that is given so many tensors. New reference. */
static PyObject *name_of(const core_place *place) {
    return PyLong_FromLongLong((long long)place->key << 16 | (place->n & 0xffff));
}

/* The places that are shared. -1 with an exception. */
static long long mask_in(PyObject *masks, PyObject *name) {
    PyObject *mask = name == NULL ? NULL : PyDict_GetItemWithError(masks, name);
    return mask != NULL ? PyLong_AsLongLong(mask) : PyErr_Occurred() ? -1 : 0;
}

int core_input_is_shared(const OffloadEngine *engine, const core_place *place) {
    if (place->index >= MAX_PLACES) return 0;
    PyObject *name = name_of(place);
    long long mask = mask_in(engine->shared, name);
    Py_XDECREF(name);
    return mask < 0 ? -1 : (int)(mask >> place->index & 1);
}

/* Set or clear a place in one of the engine's dicts. */
static int set_place(PyObject *masks, PyObject *name, Py_ssize_t index, int is_set) {
    long long mask = mask_in(masks, name);
    if (mask < 0) return -1;
    long long changed = is_set ? mask | 1LL << index : mask & ~(1LL << index);
    PyObject *value = changed == mask ? NULL : PyLong_FromLongLong(changed);
    int status = changed == mask ? 0 : value == NULL ? -1 : PyDict_SetItem(masks, name, value);
    Py_XDECREF(value);
    return status;
}

/* Once may be by chance: somebody looked at a tensor. */
int core_input_note(OffloadEngine *engine, const core_place *place, int is_shared) {
    if (place->index >= MAX_PLACES) return 0;
    PyObject *name = name_of(place);
    long long once = name == NULL ? -1 : mask_in(engine->suspected, name);
    int status = once < 0 ? -1 : set_place(engine->suspected, name, place->index, is_shared);
    if (status == 0 && is_shared && once >> place->index & 1) status = set_place(engine->shared, name, place->index, 1);
    Py_XDECREF(name);
    return status;
}

void core_inputs_forget(OffloadEngine *engine) {
    PyDict_Clear(engine->shared);
    PyDict_Clear(engine->suspected);
}
