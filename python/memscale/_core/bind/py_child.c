/* py_child.c - calls a Python function in a throw-away copy of the process (ms_child).
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

/* Wait without the GIL, and look after signals in between: an interrupt ends the wait. */
static PyObject *receive(core_state *state, ms_child *child, ms_status *status) {
    ms_child_answer answer = {.struct_bytes = sizeof answer};
    do {
        Py_BEGIN_ALLOW_THREADS
        *status = ms_child_receive(child, TICK_NS, &answer);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0) {
            *status = MS_OK;
            return NULL;
        }
    } while (*status == MS_OK && !answer.is_complete);
    if (*status != MS_OK) return core_raise(state, *status);
    return PyBytes_FromStringAndSize(answer.bytes, (Py_ssize_t)answer.n_bytes);
}

static PyObject *try_once(core_state *state, const ms_child_options *options, PyObject *function, ms_status *status) {
    ms_child *child = NULL;
    int64_t is_child = 0;
    PyOS_BeforeFork();
    *status = ms_child_create(options, &child, &is_child);
    if (*status == MS_OK && is_child) run(child, function);
    PyOS_AfterFork_Parent();
    if (*status != MS_OK) return core_raise(state, *status);
    PyObject *result = receive(state, child, status);
    Py_BEGIN_ALLOW_THREADS
    ms_child_destroy(child);
    Py_END_ALLOW_THREADS
    return result;
}

PyObject *core_run_in_child(PyObject *module, PyObject *args, PyObject *keywords) {
    static const char *const names[] = {"function", "quiet_seconds", "limit_seconds", "memory_bytes", NULL};
    core_state *state = core_get_state(module);
    PyObject *function;
    double quiet = 0, limit = 0;
    long long memory = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$ddL:run_in_child", (char **)names, &function, &quiet, &limit,
                                     &memory))
        return NULL;
    if (!(quiet > 0 && quiet < 1e6 && limit > 0 && limit < 1e6)) {
        PyErr_SetString(PyExc_ValueError, "run_in_child: quiet_seconds and limit_seconds must be above 0");
        return NULL;
    }
    ms_child_options options = {.struct_bytes = sizeof options,
                                .quiet_ns = (int64_t)(quiet * 1e9),
                                .limit_ns = (int64_t)(limit * 1e9),
                                .memory_bytes = memory};
    ms_status status = MS_OK;
    PyObject *result = NULL;
    for (int i = 0; i < MAX_TRIES; i++) {
        PyErr_Clear();
        result = try_once(state, &options, function, &status);
        if (result != NULL || status != MS_E_UNAVAILABLE) break;
    }
    return result;
}
