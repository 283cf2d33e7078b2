/* py_engine.c - the calls into libmemscale about hardware and units.
 *
 * Validate under the GIL, release it, call the core, take it back, raise.
 */
#include "bind.h"

#include <string.h>

PyObject *core_text_to_str(char *text) {
    PyObject *result = PyUnicode_FromString(text);
    ms_free(text);
    return result;
}

PyObject *core_hw_detect(PyObject *module, PyObject *root) {
    const char *path = PyUnicode_AsUTF8AndSize(root, NULL);
    if (path == NULL) return NULL;
    ms_hw hw = {.struct_bytes = sizeof hw};
    char *text = NULL;
    ms_status status;
    Py_BEGIN_ALLOW_THREADS
    status = ms_hw_detect(path, NULL, &hw);
    if (status == MS_OK) status = ms_hw_to_json(&hw, &text);
    Py_END_ALLOW_THREADS
    return status == MS_OK ? core_text_to_str(text) : core_raise(core_get_state(module), status);
}

PyObject *core_hw_from_json(PyObject *module, PyObject *object) {
    Py_ssize_t n;
    const char *text = PyUnicode_AsUTF8AndSize(object, &n);
    if (text == NULL) return NULL;
    ms_hw hw = {.struct_bytes = sizeof hw};
    char *canonical = NULL;
    ms_status status = ms_hw_from_json(text, (size_t)n, &hw);
    if (status == MS_OK) status = ms_hw_to_json(&hw, &canonical);
    return status == MS_OK ? core_text_to_str(canonical) : core_raise(core_get_state(module), status);
}

PyObject *core_hash64(PyObject *Py_UNUSED(module), PyObject *data) {
    char *bytes;
    Py_ssize_t n;
    if (PyBytes_AsStringAndSize(data, &bytes, &n) < 0) return NULL;
    return PyLong_FromUnsignedLongLong(ms_hash64(bytes, (size_t)n, 0));
}

/* Five arrays of one length, as bytes, to an array of modules; NULL with an exception, else PyMem_Free. */
static ms_module *read_modules(PyObject *const *args, Py_ssize_t *out_n) {
    static const Py_ssize_t item_bytes[] = {8, 8, 8, 8, 4};
    char *data[5];
    Py_ssize_t n = 0;
    for (int i = 0; i < 5; i++) {
        Py_ssize_t n_bytes;
        if (PyBytes_AsStringAndSize(args[i], &data[i], &n_bytes) < 0) return NULL;
        if (i == 0) n = n_bytes / item_bytes[0];
        if (n_bytes == n * item_bytes[i]) continue;
        PyErr_SetString(PyExc_ValueError, "find_units(): the arrays differ in length");
        return NULL;
    }
    ms_module *modules = PyMem_Calloc((size_t)n + 1, sizeof *modules);
    if (modules == NULL) {
        (void)PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        memcpy(&modules[i].parent, data[0] + i * 8, 8);
        memcpy(&modules[i].class_hash, data[1] + i * 8, 8);
        memcpy(&modules[i].own_hash, data[2] + i * 8, 8);
        memcpy(&modules[i].param_bytes, data[3] + i * 8, 8);
        memcpy(&modules[i].flags, data[4] + i * 4, 4);
    }
    *out_n = n;
    return modules;
}

static PyObject *unit_rows(const int64_t *units, const uint32_t *flags, int64_t n) {
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < n; i++) {
        PyObject *row = Py_BuildValue("(LI)", (long long)units[i], (unsigned int)flags[i]);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

PyObject *core_find_units(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    Py_ssize_t n = 0;
    if (!core_check_count("find_units", n_args, 5)) return NULL;
    ms_module *modules = read_modules(args, &n);
    if (modules == NULL) return NULL;
    int64_t n_units = 0, *units = PyMem_Calloc((size_t)n + 1, sizeof *units);
    uint32_t *flags = PyMem_Calloc((size_t)n + 1, sizeof *flags);
    PyObject *result = NULL;
    if (units == NULL || flags == NULL) {
        (void)PyErr_NoMemory();
    } else {
        ms_status status;
        Py_BEGIN_ALLOW_THREADS
        status = ms_units_find(modules, n, units, flags, &n_units);
        Py_END_ALLOW_THREADS
        result = status == MS_OK ? unit_rows(units, flags, n_units) : core_raise(core_get_state(module), status);
    }
    PyMem_Free(units);
    PyMem_Free(flags);
    PyMem_Free(modules);
    return result;
}
