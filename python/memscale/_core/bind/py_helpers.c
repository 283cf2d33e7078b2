/* py_helpers.c - what the bindings share: fields of structs, objects of our own types, texts. */
#include "bind.h"

#include <string.h>

/* A number of a struct, by its kind. */
static PyObject *read_number(const ms_field *field, const char *record) {
    int64_t wide;
    uint64_t large;
    int32_t narrow;
    uint32_t set;
    switch (field->kind) {
    case MS_FIELD_UINT64:
        memcpy(&large, record + field->offset, sizeof large);
        return PyLong_FromUnsignedLongLong(large);
    case MS_FIELD_INT32:
        memcpy(&narrow, record + field->offset, sizeof narrow);
        return PyLong_FromLongLong(narrow);
    case MS_FIELD_UINT32:
        memcpy(&set, record + field->offset, sizeof set);
        return PyLong_FromLongLong(set);
    default:
        memcpy(&wide, record + field->offset, sizeof wide);
        return field->kind == MS_FIELD_BOOL ? PyBool_FromLong(wide != 0) : PyLong_FromLongLong(wide);
    }
}

static PyObject *read_field(const ms_field *field, const char *record) {
    const char *text;
    int64_t parts[MS_MAX_CATEGORIES];
    switch (field->kind) {
    case MS_FIELD_TEXT:
        memcpy(&text, record + field->offset, sizeof text);
        return PyUnicode_FromString(text);
    case MS_FIELD_PARTS:
        memcpy(parts, record + field->offset, sizeof parts);
        return core_parts_of(parts);
    default:
        return read_number(field, record);
    }
}

int core_fields_into(PyObject *dict, const ms_field *fields, int64_t n_fields, const void *record) {
    for (int64_t i = 0; i < n_fields; i++) {
        PyObject *value = read_field(&fields[i], record);
        int failed = value == NULL || PyDict_SetItemString(dict, fields[i].name, value) < 0;
        Py_XDECREF(value);
        if (failed) return -1;
    }
    return 0;
}

PyObject *core_fields_of(const ms_field *fields, int64_t n_fields, const void *record) {
    PyObject *dict = PyDict_New();
    if (dict != NULL && core_fields_into(dict, fields, n_fields, record) < 0) Py_CLEAR(dict);
    return dict;
}

void *core_allocate(PyTypeObject *type) { return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); }

void core_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

int core_is_none(PyObject *object) { return object == NULL || object == Py_None; }

const char *core_utf8(PyObject *object, size_t *out_n) {
    Py_ssize_t n = 0;
    const char *text = PyUnicode_AsUTF8AndSize(object, &n);
    if (out_n != NULL) *out_n = (size_t)n;
    return text;
}

PyObject *core_parts_of(const int64_t *parts) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < MS_N_CATEGORIES; i++) {
        PyObject *value = PyLong_FromLongLong(parts[i]);
        if (value == NULL || PyList_Append(list, value) < 0) Py_CLEAR(list);
        Py_XDECREF(value);
    }
    return list;
}
