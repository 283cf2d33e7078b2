/* graphs.c - which graphs of torch.compile a call of a unit ran.
 *
 * torch.compile may choose another graph when a unit is recomputed than it chose in forward: where another size has
 * been seen in between, a graph for any size takes the place of one for a single size. Its kernels round differently,
 * and it may save other tensors of the same shapes. Each graph that needs a backward has an autograd function of its
 * own, so the classes of these functions, found from the output of a call on, tell graphs apart.
 */
#include "recompute.h"

/* Steps that a walk takes at most: a forward of millions of operations is not looked through. */
#define MAX_NODES 100000

/* The node that made a tensor, or the one of a leaf's gradient: new reference, Py_None where there is none. */
static PyObject *node_of(core_state *state, PyObject *tensor) { return CORE_READ(state, tensor, grad_fn); }

/* Add a node to those to be looked at, unless it is known. */
static int visit(PyObject *node, PyObject *known, PyObject *todo) {
    int is_known = node == Py_None ? 1 : PySet_Contains(known, node);
    if (is_known != 0) return is_known < 0 ? -1 : 0;
    return PySet_Add(known, node) < 0 || PyList_Append(todo, node) < 0 ? -1 : 0;
}

/* The nodes that a node hands its gradients to: a tuple of (node or None, number of an input). */
static int visit_next(core_state *state, PyObject *node, PyObject *known, PyObject *todo) {
    PyObject *edges = PyObject_GetAttr(node, state->str_next_functions);
    int status = edges == NULL || !PyTuple_Check(edges) ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(edges); i++) {
        PyObject *edge = PyTuple_GetItem(edges, i);
        PyObject *next = PyTuple_Check(edge) && PyTuple_Size(edge) > 0 ? PyTuple_GetItem(edge, 0) : NULL;
        status = next == NULL ? -1 : visit(next, known, todo);
    }
    if (status < 0 && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "next_functions is no tuple of edges");
    Py_XDECREF(edges);
    return status;
}

/* Is it the class of a function of torch.compile? -1 with an exception. */
static int is_compiled_class(core_state *state, PyObject *class) {
    PyObject *name = PyObject_GetAttr(class, state->str___name__);
    int found = name == NULL ? -1 : PyUnicode_CompareWithASCIIString(name, "CompiledFunctionBackward") == 0;
    Py_XDECREF(name);
    return found;
}

/* The nodes that made these tensors, each marked as known and, with `todo`, to be looked at. */
static int visit_tensors(core_state *state, PyObject *object, PyObject *known, PyObject *todo) {
    PyObject *tensors = core_find_tensors(state, object);
    int status = tensors == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && i < PyList_Size(tensors); i++) {
        PyObject *node = node_of(state, PyList_GetItem(tensors, i));
        if (node == NULL)
            status = -1;
        else if (todo != NULL)
            status = visit(node, known, todo);
        else if (node != Py_None)
            status = PySet_Add(known, node);
        Py_XDECREF(node);
    }
    Py_XDECREF(tensors);
    return status;
}

static int walk(core_state *state, PyObject *known, PyObject *todo, PyObject *found) {
    for (Py_ssize_t i = 0; i < PyList_Size(todo) && i < MAX_NODES; i++) {
        PyObject *node = PyList_GetItem(todo, i), *class = (PyObject *)Py_TYPE(node);
        int is_compiled = is_compiled_class(state, class);
        if (is_compiled < 0 || (is_compiled && PyList_Append(found, class) < 0)) return -1;
        if (visit_next(state, node, known, todo) < 0) return -1;
    }
    return 0;
}

PyObject *core_graphs_between(core_state *state, PyObject *args, PyObject *kwargs, PyObject *output) {
    PyObject *known = PySet_New(NULL), *todo = PyList_New(0), *found = PyList_New(0);
    int status = known == NULL || todo == NULL || found == NULL ? -1 : 0;
    if (status == 0) status = visit_tensors(state, args, known, NULL);
    if (status == 0) status = visit_tensors(state, kwargs, known, NULL);
    if (status == 0) status = visit_tensors(state, output, known, todo);
    if (status == 0) status = walk(state, known, todo, found);
    Py_XDECREF(known);
    Py_XDECREF(todo);
    if (status < 0) Py_CLEAR(found);
    return found;
}

int core_graphs_same(PyObject *a, PyObject *b) {
    int same = PyList_Size(a) == PyList_Size(b);
    for (Py_ssize_t i = 0; same && i < PyList_Size(a); i++) same = PyList_GetItem(a, i) == PyList_GetItem(b, i);
    return same;
}
