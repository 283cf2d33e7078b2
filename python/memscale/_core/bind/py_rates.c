/* rates.c - models of GPUs and rates of devices: the calls of ms_gpu_model_* and ms_rates_*.
 *
 * All of them are short: the GIL is kept.
 */
#include "core.h"

#include <string.h>

static PyObject *model_dict(const ms_gpu_model *m) {
    return Py_BuildValue("{sssssLsLsLsLsLsLsLsLsL}", "key", m->key, "name", m->name, "memory_bytes",
                         (long long)m->memory_bytes, "capability", (long long)m->capability, "n_multiprocessors",
                         (long long)m->n_multiprocessors, "fp32_gflops", (long long)m->fp32_gflops, "tf32_gflops",
                         (long long)m->tf32_gflops, "fp16_gflops", (long long)m->fp16_gflops, "bf16_gflops",
                         (long long)m->bf16_gflops, "memory_mb_per_s", (long long)m->memory_mb_per_s, "link_mb_per_s",
                         (long long)m->link_mb_per_s);
}

PyObject *core_gpu_models(PyObject *module, PyObject *Py_UNUSED(unused)) {
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < ms_gpu_model_count(); i++) {
        ms_gpu_model model = {.struct_bytes = sizeof model};
        ms_status status = ms_gpu_model_get(i, &model);
        PyObject *row = status == MS_OK ? model_dict(&model) : core_raise(core_get_state(module), status);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* -1 with an exception. */
static int find_model(PyObject *module, PyObject *name, ms_gpu_model *out) {
    Py_ssize_t n;
    const char *text = PyUnicode_AsUTF8AndSize(name, &n);
    if (text == NULL) return -1;
    if (strlen(text) != (size_t)n) {
        PyErr_SetString(PyExc_ValueError, "a name of a GPU has no null characters");
        return -1;
    }
    *out = (ms_gpu_model){.struct_bytes = sizeof *out};
    ms_status status = ms_gpu_model_find(text, out);
    if (status == MS_OK) return 0;
    (void)core_raise(core_get_state(module), status);
    return -1;
}

PyObject *core_gpu_model(PyObject *module, PyObject *name) {
    ms_gpu_model model;
    return find_model(module, name, &model) < 0 ? NULL : model_dict(&model);
}

static PyObject *rates_text(PyObject *module, ms_status status, const ms_rates *rates) {
    char *text = NULL;
    if (status == MS_OK) status = ms_rates_to_json(rates, &text);
    return status == MS_OK ? core_text_to_str(text) : core_raise(core_get_state(module), status);
}

PyObject *core_rates_of_model(PyObject *module, PyObject *name) {
    ms_gpu_model model;
    ms_rates rates = {.struct_bytes = sizeof rates};
    if (find_model(module, name, &model) < 0) return NULL;
    return rates_text(module, ms_rates_from_model(&model, &rates), &rates);
}

PyObject *core_rates_from_json(PyObject *module, PyObject *object) {
    Py_ssize_t n;
    const char *text = PyUnicode_AsUTF8AndSize(object, &n);
    if (text == NULL) return NULL;
    ms_rates rates = {.struct_bytes = sizeof rates};
    return rates_text(module, ms_rates_from_json(text, (size_t)n, &rates), &rates);
}
