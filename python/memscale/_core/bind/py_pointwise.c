/* py_pointwise.c - pointwise programs: ms_pointwise_* as functions of the module. Layers use the library itself
 * (pointwise/fused.c); this is for tests and for doctor. */
#include "bind.h"

/* Types of the inputs, and operations (kind, dtype, a, b, scalar). -1 with an exception. */
static int read_program(PyObject *dtypes, PyObject *ops, ms_pointwise *out) {
    *out = (ms_pointwise){.struct_bytes = sizeof *out, .n_inputs = PyTuple_Size(dtypes), .n_ops = PyTuple_Size(ops)};
    if (out->n_inputs > MS_POINTWISE_MAX_INPUTS || out->n_ops > MS_POINTWISE_MAX_OPS) {
        PyErr_SetString(PyExc_ValueError, "a pointwise program has at most 4 inputs and 32 operations");
        return -1;
    }
    for (Py_ssize_t i = 0; i < out->n_inputs; i++) {
        out->input_dtypes[i] = (int32_t)PyLong_AsLong(PyTuple_GetItem(dtypes, i));
        if (PyErr_Occurred()) return -1;
    }
    for (Py_ssize_t i = 0; i < out->n_ops; i++) {
        ms_pointwise_op *op = &out->ops[i];
        if (!PyArg_ParseTuple(PyTuple_GetItem(ops, i), "iiiid", &op->kind, &op->dtype, &op->a, &op->b, &op->scalar))
            return -1;
    }
    return 0;
}

PyObject *core_pointwise_source(PyObject *module, PyObject *args) {
    PyObject *dtypes, *ops;
    ms_pointwise program;
    if (!PyArg_ParseTuple(args, "O!O!:pointwise_source", &PyTuple_Type, &dtypes, &PyTuple_Type, &ops) ||
        read_program(dtypes, ops, &program) < 0)
        return NULL;
    char *text = NULL;
    ms_status status = ms_pointwise_source(&program, &text);
    return status == MS_OK ? core_text_to_str(text) : core_raise(core_get_state(module), status);
}

typedef struct place {
    PyObject *gpu; /* borrowed: a Gpu, or None */
    long long device;
    unsigned long long stream;
} place;

static ms_status run(ms_gpu *gpu, const place *at, const ms_pointwise *program, const uint64_t *inputs, uint64_t output,
                     int64_t n) {
    if (gpu != NULL) return ms_gpu_pointwise(gpu, at->device, program, inputs, output, n, at->stream);
    const void *sources[MS_POINTWISE_MAX_INPUTS];
    for (int i = 0; i < MS_POINTWISE_MAX_INPUTS; i++) sources[i] = (const void *)(uintptr_t)inputs[i];
    return ms_pointwise_run(program, sources, (void *)(uintptr_t)output, n);
}

PyObject *core_pointwise(PyObject *module, PyObject *args) {
    core_state *state = core_get_state(module);
    PyObject *dtypes, *ops, *addresses;
    place at = {.gpu = Py_None};
    unsigned long long output;
    long long n;
    ms_pointwise program;
    uint64_t inputs[MS_POINTWISE_MAX_INPUTS] = {0};
    if (!PyArg_ParseTuple(args, "O!O!O!KL|(OLK):pointwise", &PyTuple_Type, &dtypes, &PyTuple_Type, &ops, &PyTuple_Type,
                          &addresses, &output, &n, &at.gpu, &at.device, &at.stream) ||
        read_program(dtypes, ops, &program) < 0)
        return NULL;
    if (PyTuple_Size(addresses) != program.n_inputs) {
        PyErr_SetString(PyExc_ValueError, "pointwise() takes one address for each input");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < program.n_inputs; i++) {
        inputs[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(addresses, i));
        if (PyErr_Occurred()) return NULL;
    }
    ms_gpu *gpu = at.gpu == Py_None ? NULL : core_gpu_hold(state, at.gpu);
    if (gpu == NULL && at.gpu != Py_None) return NULL;
    ms_status status = run(gpu, &at, &program, inputs, output, n);
    if (status != MS_OK) (void)core_raise(state, status);
    if (gpu != NULL) core_gpu_release(at.gpu);
    if (status != MS_OK) return NULL;
    Py_RETURN_NONE;
}
