/* py_child.c - calls Python functions in throw-away copies of the process (ms_child), all at the same time.
 *
 * Python's own calls before and after a fork are made around it, so that its locks are right in the child. The warning
 * about threads that os.fork() gives is left out: it is about the danger that time limits and another try are for.
 */
#include "bind.h"

#include <stdlib.h>

#define MAX_TRIES 4
#define TICK_NS ((int64_t)50000000)

/* Hangs where another thread of the parent held the lock of malloc. */
static void try_malloc(void) {
    for (size_t n = 16; n <= 1 << 20; n *= 4) {
        char *volatile probe = malloc(n);
        free(probe);
    }
}

/* Everything in the child; never returns. A function that raises sends nothing: callers return their errors as bytes.
 */
static void run(ms_child *child, PyObject *function) {
    PyOS_AfterFork_Child();
    try_malloc();
    ms_status status = ms_child_report(child);
    PyObject *answer = status == MS_OK ? PyObject_CallNoArgs(function) : NULL;
    char *bytes = NULL;
    Py_ssize_t n = 0;
    if (answer == NULL || PyBytes_AsStringAndSize(answer, &bytes, &n) < 0) child = NULL;
    ms_child_finish(child, bytes, (size_t)n);
}

/* One function, and the child that calls it. */
typedef struct task {
    PyObject *function; /* borrowed */
    ms_child *child;    /* owned; NULL: there is none */
} task;

static void end(task *t) {
    ms_child *child = t->child;
    t->child = NULL;
    Py_BEGIN_ALLOW_THREADS
    ms_child_destroy(child);
    Py_END_ALLOW_THREADS
}

static ms_status start(task *t, const ms_child_options *options) {
    int64_t is_child = 0;
    PyOS_BeforeFork();
    ms_status status = ms_child_create(options, &t->child, &is_child);
    if (status == MS_OK && is_child) run(t->child, t->function);
    PyOS_AfterFork_Parent();
    return status;
}

/* Wait without the GIL, and look after signals in between: an interrupt ends the wait. -1 with an exception. */
static int receive(task *t, ms_child_answer *answer, ms_status *status) {
    do {
        Py_BEGIN_ALLOW_THREADS
        *status = ms_child_receive(t->child, TICK_NS, answer);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0) return -1;
    } while (*status == MS_OK && !answer->is_complete);
    return 0;
}

/* What the function returned, as bytes, or why it did not, as an exception object. One that did not start is started
 * again. NULL with an exception: an interrupt. */
static PyObject *finish(core_state *state, task *t, const ms_child_options *options) {
    ms_child_answer answer = {.struct_bytes = sizeof answer};
    ms_status status = MS_E_UNAVAILABLE;
    for (int i = 0; i < MAX_TRIES && status == MS_E_UNAVAILABLE; i++) {
        if (i > 0) end(t);
        status = t->child != NULL ? MS_OK : start(t, options);
        if (status == MS_OK && receive(t, &answer, &status) < 0) return NULL;
    }
    if (status == MS_OK) return PyBytes_FromStringAndSize(answer.bytes, (Py_ssize_t)answer.n_bytes);
    (void)core_raise(state, status);
    core_pending error = core_set_aside();
    PyErr_NormalizeException(&error.type, &error.value, &error.trace);
    Py_XDECREF(error.type);
    Py_XDECREF(error.trace);
    return error.value;
}

static PyObject *run_tasks(core_state *state, task *tasks, Py_ssize_t n, const ms_child_options *options) {
    for (Py_ssize_t i = 0; i < n; i++)
        if (start(&tasks[i], options) != MS_OK) break; /* finish() tries again, and has the reason */
    PyObject *results = PyList_New(0);
    for (Py_ssize_t i = 0; results != NULL && i < n; i++) {
        PyObject *result = finish(state, &tasks[i], options);
        if (result == NULL || PyList_Append(results, result) < 0) Py_CLEAR(results);
        Py_XDECREF(result);
    }
    core_pending pending = core_set_aside();
    for (Py_ssize_t i = 0; i < n; i++) end(&tasks[i]);
    core_put_back(pending);
    return results;
}

PyObject *core_run_in_children(PyObject *module, PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"functions", "quiet_seconds", "limit_seconds", "memory_bytes", NULL};
    PyObject *functions;
    double quiet = 0, limit = 0;
    long long memory = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!|$ddL:run_in_children", (char **)names, &PyTuple_Type,
                                     &functions, &quiet, &limit, &memory))
        return NULL;
    if (!(quiet > 0 && quiet < 1e6 && limit > 0 && limit < 1e6)) {
        PyErr_SetString(PyExc_ValueError, "run_in_children: quiet_seconds and limit_seconds must be above 0");
        return NULL;
    }
    ms_child_options options = {.struct_bytes = sizeof options,
                                .quiet_ns = (int64_t)(quiet * 1e9),
                                .limit_ns = (int64_t)(limit * 1e9),
                                .memory_bytes = memory};
    Py_ssize_t n = PyTuple_Size(functions);
    task *tasks = PyMem_Calloc((size_t)n + 1, sizeof *tasks);
    if (tasks == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++) tasks[i].function = PyTuple_GetItem(functions, i);
    PyObject *results = run_tasks(core_get_state(module), tasks, n, &options);
    PyMem_Free(tasks);
    return results;
}
