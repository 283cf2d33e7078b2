/* py_tables.c - the library's tables as data: actions, model options, techniques, categories, phases, reasons, modes.
 *
 * Each is a tuple of tuples, in the order of its enum; memscale/_base/vocabulary.py gives their fields names.
 */
#include "bind.h"

#include <string.h>

typedef PyObject *(*row_maker)(core_state *state, int32_t index);

static PyObject *action_row(core_state *state, int32_t index) {
    ms_action_info info = {.struct_bytes = sizeof info};
    ms_status status = ms_action_get_info(index, &info);
    if (status != MS_OK) return core_raise(state, status);
    return Py_BuildValue("(issssIINNNN)", (int)index, info.name, info.identifier, info.sentence, info.letter,
                         (unsigned int)info.techniques, (unsigned int)info.keeps,
                         PyBool_FromLong((long)info.recomputes), PyBool_FromLong((long)info.needs_link),
                         PyBool_FromLong((long)info.is_runnable), PyBool_FromLong((long)info.waits));
}

static PyObject *model_option_row(core_state *state, int32_t index) {
    ms_model_option_info info = {.struct_bytes = sizeof info};
    ms_status status = ms_model_option_get_info(1U << index, &info);
    if (status != MS_OK) return core_raise(state, status);
    return Py_BuildValue("(IsssIN)", 1U << index, info.name, info.identifier, info.sentence,
                         (unsigned int)info.techniques, PyBool_FromLong((long)info.is_runnable));
}

static PyObject *phase_row(core_state *state, int32_t index) {
    ms_phase_info info = {.struct_bytes = sizeof info};
    ms_status status = ms_phase_get_info(index, &info);
    return status == MS_OK ? Py_BuildValue("(isss)", (int)index, info.name, info.identifier, info.place)
                           : core_raise(state, status);
}

static PyObject *name_row(core_state *state, ms_status status, const ms_name_info *info, uint32_t number) {
    return status == MS_OK ? Py_BuildValue("(Iss)", (unsigned int)number, info->name, info->identifier)
                           : core_raise(state, status);
}

static PyObject *category_row(core_state *state, int32_t index) {
    ms_name_info info = {.struct_bytes = sizeof info};
    return name_row(state, ms_category_get_info(index, &info), &info, (uint32_t)index);
}

static PyObject *reason_row(core_state *state, int32_t index) {
    ms_name_info info = {.struct_bytes = sizeof info};
    return name_row(state, ms_reason_get_info(index, &info), &info, (uint32_t)index);
}

static PyObject *technique_row(core_state *state, int32_t index) {
    ms_name_info info = {.struct_bytes = sizeof info};
    return name_row(state, ms_technique_get_info(1U << index, &info), &info, 1U << index);
}

static PyObject *mode_row(core_state *state, int32_t index) {
    ms_settings settings = {.struct_bytes = sizeof settings};
    ms_status status = ms_settings_init(&settings, index);
    if (status != MS_OK) return core_raise(state, status);
    return Py_BuildValue("(isIL)", (int)index, ms_mode_name(index), (unsigned int)settings.techniques,
                         (long long)settings.slowdown_ppm);
}

static int count_bits(uint32_t all) {
    int n = 0;
    while (all >> n != 0) n++;
    return n;
}

static PyObject *table_of(core_state *state, row_maker make, int n) {
    PyObject *table = PyTuple_New(n);
    for (int32_t i = 0; table != NULL && i < n; i++) {
        PyObject *row = make(state, i);
        if (row == NULL || PyTuple_SetItem(table, i, row) < 0) Py_CLEAR(table);
    }
    return table;
}

int core_add_tables(PyObject *module, core_state *state) {
    const struct {
        const char *name;
        row_maker make;
        int n;
    } tables[] = {
        {"ACTIONS", action_row, MS_N_ACTIONS},
        {"MODEL_OPTIONS", model_option_row, count_bits(MS_MODEL_ALL)},
        {"TECHNIQUES", technique_row, count_bits(MS_TECHNIQUE_ALL)},
        {"CATEGORIES", category_row, MS_N_CATEGORIES},
        {"PHASES", phase_row, MS_N_PHASES},
        {"REASONS", reason_row, MS_N_REASONS},
        {"MODES", mode_row, MS_N_MODES},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        PyObject *table = table_of(state, tables[i].make, tables[i].n);
        int failed = table == NULL || PyModule_AddObjectRef(module, tables[i].name, table) < 0;
        Py_XDECREF(table);
        if (failed) return -1;
    }
    return 0;
}

/* ---- Sizes and times for people ---- */

static PyObject *format(PyObject *module, PyObject *number, ms_status (*write)(int64_t, char *, size_t)) {
    char text[32];
    int64_t value = PyLong_AsLongLong(number);
    if (PyErr_Occurred()) return NULL;
    ms_status status = write(value, text, sizeof text);
    return status == MS_OK ? PyUnicode_FromString(text) : core_raise(core_get_state(module), status);
}

PyObject *core_format_bytes(PyObject *module, PyObject *number) { return format(module, number, ms_format_bytes); }

PyObject *core_format_ns(PyObject *module, PyObject *number) { return format(module, number, ms_format_ns); }

PyObject *core_format_place(PyObject *module, PyObject *const *args, Py_ssize_t n_args) {
    char text[160];
    if (!core_check_count("format_place", n_args, 2)) return NULL;
    long phase = PyLong_AsLong(args[0]);
    const char *layer = args[1] == Py_None ? NULL : core_utf8(args[1], NULL);
    if (PyErr_Occurred()) return NULL;
    ms_status status = ms_format_place((int32_t)phase, layer, text, sizeof text);
    return status == MS_OK ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace")
                           : core_raise(core_get_state(module), status);
}
