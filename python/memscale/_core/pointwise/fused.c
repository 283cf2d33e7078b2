/* fused.c - results of pointwise functions as programs (ms_pointwise) over the tensors at the beginning of a chain.
 *
 * Where a layer's tensors are on a GPU with NVRTC, a recipe is no call of torch's function but a program that one
 * kernel computes. It goes back through the functions that made its operands, as long as these are of the table below
 * too: of all that a GELU of seven functions saves, only what it began with has to be held.
 *
 * A tensor of a program has as many elements as the result and lies in memory in their order. Results of a program are
 * numbered from MS_POINTWISE_MAX_INPUTS on here, so that tensors can be added; core_fused_make() closes the gap.
 */
#include "pointwise.h"

#include <string.h>

#define TOO_LARGE (-3)
#define IS_OP(operand) ((operand) >= MS_POINTWISE_MAX_INPUTS)

enum form { ONE, TWO, SWAPPED, SQUARE, POWER, CAST };

static const struct function {
    const char *name; /* in FUSED of _base/storages.py */
    int32_t kind;     /* enum ms_pointwise_kind */
    enum form form;
} functions[] = {
    {"cast", MS_POINTWISE_CAST, CAST}, {"neg", MS_POINTWISE_NEG, ONE},       {"abs", MS_POINTWISE_ABS, ONE},
    {"relu", MS_POINTWISE_RELU, ONE},  {"tanh", MS_POINTWISE_TANH, ONE},     {"sigmoid", MS_POINTWISE_SIGMOID, ONE},
    {"silu", MS_POINTWISE_SILU, ONE},  {"gelu", MS_POINTWISE_GELU, ONE},     {"add", MS_POINTWISE_ADD, TWO},
    {"sub", MS_POINTWISE_SUB, TWO},    {"rsub", MS_POINTWISE_SUB, SWAPPED},  {"mul", MS_POINTWISE_MUL, TWO},
    {"div", MS_POINTWISE_DIV, TWO},    {"square", MS_POINTWISE_MUL, SQUARE}, {"pow", MS_POINTWISE_MUL, POWER},
};

/* A recipe that is being written. */
typedef struct writer {
    core_state *state;
    core_recipe *out;
    const core_finder *finder;
    PyObject *device;   /* owned: of the result */
    int64_t n_elements; /* its elements, */
    int32_t dtype;      /* and their type */
} writer;

/* ---- Tensors ---- */

/* The number of a type of torch; -1: programs do not know it. */
static int32_t number_of(const core_state *state, const void *dtype) {
    for (int32_t i = 0; i < MS_N_POINTWISE_DTYPES; i++)
        if (PyTuple_GetItem(state->fused_dtypes, i) == dtype) return i;
    return -1;
}

/* Its number of elements, if they lie in memory in their order; 0: they do not. -1 with an exception. */
static int64_t count_elements(core_state *state, PyObject *tensor) {
    int is_dense = core_is_true(PyObject_CallMethodObjArgs(tensor, state->str_is_contiguous, NULL));
    if (is_dense != 1) return is_dense;
    PyObject *n = PyObject_CallMethodObjArgs(tensor, state->str_numel, NULL);
    int64_t count = n == NULL ? -1 : PyLong_AsLongLong(n);
    Py_XDECREF(n);
    return count;
}

/* ---- Writing ---- */

/* An operand of another recipe is one of this one: its number, -1 if there are too many, or if it was changed since the
 * other recipe was noted. */
static int32_t adopt(core_recipe *out, const core_operand *operand, int32_t dtype) {
    for (Py_ssize_t i = 0; i < out->n_operands && i < POINTWISE_MAX_OPERANDS; i++) {
        const core_operand *own = &out->operands[i];
        if (own->weak != operand->weak) continue;
        return own->version == operand->version && own->storage == operand->storage ? (int32_t)i : -1;
    }
    if (out->n_operands >= POINTWISE_MAX_OPERANDS) return -1;
    core_operand *own = &out->operands[out->n_operands];
    *own = *operand;
    Py_XINCREF(own->weak);
    Py_XINCREF(own->tensor);
    out->program->input_dtypes[out->n_operands] = dtype;
    return (int32_t)out->n_operands++;
}

/* Append an operation: its number, -1 if there are too many. */
static int32_t emit(ms_pointwise *program, ms_pointwise_op op) {
    if (program->n_ops >= MS_POINTWISE_MAX_OPS) return -1;
    program->ops[program->n_ops] = op;
    return (int32_t)(MS_POINTWISE_MAX_INPUTS + program->n_ops++);
}

/* Append a whole recipe: the number of its result, -1 if it is too much. */
static int32_t append(core_recipe *out, const core_recipe *from) {
    int32_t inputs[POINTWISE_MAX_OPERANDS] = {0}, shift = (int32_t)out->program->n_ops, last = -1;
    for (Py_ssize_t i = 0; i < from->n_operands && i < POINTWISE_MAX_OPERANDS; i++) {
        inputs[i] = adopt(out, &from->operands[i], from->program->input_dtypes[i]);
        if (inputs[i] < 0) return -1;
    }
    for (int64_t i = 0; i < from->program->n_ops; i++) {
        ms_pointwise_op op = from->program->ops[i];
        int32_t *operands[] = {&op.a, &op.b};
        for (int k = 0; k < 2; k++) {
            if (IS_OP(*operands[k]))
                *operands[k] += shift;
            else if (*operands[k] >= 0)
                *operands[k] = inputs[*operands[k]];
        }
        last = emit(out->program, op);
        if (last < 0) return -1;
    }
    return last;
}

/* A tensor as an input: its number. -1: it cannot be one; -2 with an exception. */
static int32_t add_input(const writer *w, PyObject *tensor) {
    core_recipe *out = w->out;
    core_operand operand = {0};
    int can = core_operand_note(w->state, &operand, tensor);
    int32_t dtype = can == 1 ? number_of(w->state, operand.dtype) : -1;
    int32_t number = can < 0 ? -2 : dtype < 0 ? -1 : adopt(out, &operand, dtype);
    core_operand_clear(&operand); /* adopt() has its own references */
    if (number < 0 || out->operands[number].tensor != NULL) return number;
    if (w->finder->holds(w->finder->holder, &out->operands[number])) {
        out->operands[number].tensor = PyObject_CallFunctionObjArgs(w->state->detach, tensor, NULL);
        if (out->operands[number].tensor == NULL) return -2;
    }
    return number;
}

/* Is it where the result is? -1 with an exception. */
static int is_beside(const writer *w, PyObject *tensor) {
    PyObject *device = CORE_READ(w->state, tensor, device);
    int same = device == NULL ? -1 : PyObject_RichCompareBool(device, w->device, Py_EQ);
    Py_XDECREF(device);
    return same;
}

/* A tensor as an operand: by the recipe that made it, else as an input. The same results. */
static int32_t add_tensor(const writer *w, PyObject *tensor) {
    if (Py_TYPE(tensor) != (PyTypeObject *)w->state->tensor_type) return -1;
    int same = is_beside(w, tensor);
    if (same != 1) return same < 0 ? -2 : -1;
    int64_t n = count_elements(w->state, tensor);
    if (n != w->n_elements) return n < 0 ? -2 : -1;
    const core_recipe *made = NULL;
    if (w->finder->find(w->state, w->finder->holder, tensor, &made) < 0) return -2;
    if (made != NULL && made->program != NULL) {
        core_recipe *out = w->out;
        Py_ssize_t n_operands = out->n_operands;
        int64_t n_ops = out->program->n_ops;
        int32_t number = append(out, made);
        if (number >= 0) return number;
        out->program->n_ops = n_ops;
        while (out->n_operands > n_operands) core_operand_clear(&out->operands[--out->n_operands]);
    }
    return add_input(w, tensor);
}

static int is_number(PyObject *object) { return PyFloat_CheckExact(object) || PyLong_CheckExact(object); }

/* An operand, tensor or number. The same results. */
static int32_t add_operand(const writer *w, PyObject *object, double *scalar) {
    if (!is_number(object)) return add_tensor(w, object);
    *scalar = PyFloat_AsDouble(object);
    if (!PyErr_Occurred()) return MS_POINTWISE_SCALAR;
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return -2;
    PyErr_Clear(); /* an integer that no float is near to */
    return TOO_LARGE;
}

/* ---- Functions ---- */

/* What is written returns 1, or 0 if this call is no program, or -1 with an exception. */
static int wrote(int32_t number) { return number >= 0 ? 1 : number == -2 && PyErr_Occurred() ? -1 : 0; }

static int write_one(const writer *w, PyObject *tensor, int32_t kind) {
    int32_t a = add_tensor(w, tensor);
    return a < 0 ? wrote(a) : wrote(emit(w->out->program, (ms_pointwise_op){.kind = kind, .dtype = w->dtype, .a = a}));
}

/* Torch divides by a number by multiplying with what 1 divided by it is in 32 bits. */
static int write_two(const writer *w, PyObject *first, PyObject *second, int32_t kind) {
    ms_pointwise_op op = {.kind = kind, .dtype = w->dtype};
    if (is_number(first) && is_number(second)) return 0;
    op.a = add_operand(w, first, &op.scalar);
    if (op.a < 0 && !(op.a == MS_POINTWISE_SCALAR && is_number(first))) return wrote(op.a);
    op.b = add_operand(w, second, &op.scalar);
    if (op.b < 0 && !(op.b == MS_POINTWISE_SCALAR && is_number(second))) return wrote(op.b);
    if (kind == MS_POINTWISE_DIV && op.a == MS_POINTWISE_SCALAR) return 0;
    if (kind == MS_POINTWISE_DIV && op.b == MS_POINTWISE_SCALAR) {
        op.kind = MS_POINTWISE_MUL;
        op.scalar = (double)(1.0F / (float)op.scalar);
    }
    return wrote(emit(w->out->program, op));
}

/* The second and third power, rounded after each product. */
static int write_power(const writer *w, PyObject *tensor, double exponent) {
    if (exponent != 2.0 && exponent != 3.0) return 0;
    int32_t a = add_tensor(w, tensor);
    if (a < 0) return wrote(a);
    ms_pointwise_op op = {.kind = MS_POINTWISE_MUL, .dtype = w->dtype, .a = a, .b = a};
    op.a = emit(w->out->program, op);
    return op.a < 0 || exponent == 2.0 ? wrote(op.a) : wrote(emit(w->out->program, op));
}

/* Is this the only keyword, or none there? */
static int has_only(PyObject *kwargs, const char *name, PyObject **value) {
    *value = NULL;
    if (kwargs == NULL || PyDict_Size(kwargs) == 0) return 1;
    *value = PyDict_GetItemString(kwargs, name); /* borrowed */
    return *value != NULL && PyDict_Size(kwargs) == 1;
}

static int write_function(const writer *w, const struct function *f, const core_function *call) {
    Py_ssize_t n = PyTuple_Size(call->args);
    PyObject *first = n > 0 ? PyTuple_GetItem(call->args, 0) : NULL,
             *second = n > 1 ? PyTuple_GetItem(call->args, 1) : NULL;
    PyObject *option;
    if (first == NULL) return 0;
    if (f->form == CAST) return write_one(w, first, f->kind);
    if (f->kind == MS_POINTWISE_GELU) {
        if (n != 1 || !has_only(call->kwargs, "approximate", &option)) return 0;
        int is_tanh =
            option != NULL && PyUnicode_Check(option) && PyUnicode_CompareWithASCIIString(option, "tanh") == 0;
        return write_one(w, first, is_tanh ? MS_POINTWISE_GELU_TANH : MS_POINTWISE_GELU);
    }
    if (f->form == ONE) {
        if (n > 2 || !has_only(call->kwargs, "inplace", &option)) return 0;
        return (second != NULL && second != Py_False) || (option != NULL && option != Py_False)
                   ? 0
                   : write_one(w, first, f->kind);
    }
    if (call->kwargs != NULL && PyDict_Size(call->kwargs) > 0) return 0;
    if (f->form == SQUARE) return n == 1 ? write_power(w, first, 2.0) : 0;
    if (n != 2) return 0;
    if (f->form == POWER) return is_number(second) ? write_power(w, first, PyFloat_AsDouble(second)) : 0;
    return f->form == SWAPPED ? write_two(w, second, first, f->kind) : write_two(w, first, second, f->kind);
}

static const struct function *find_function(const core_state *state, PyObject *function) {
    PyObject *name = PyDict_GetItem(state->fused_functions, function); /* borrowed; no exception */
    for (size_t i = 0; name != NULL && i < sizeof functions / sizeof *functions; i++)
        if (PyUnicode_CompareWithASCIIString(name, functions[i].name) == 0) return &functions[i];
    return NULL;
}

/* ---- Recipes ---- */

/* Begin a recipe for this result. 1, 0 if it cannot have one, -1 with an exception. */
static int begin(writer *w, PyObject *result) {
    *w->out = (core_recipe){0};
    PyObject *dtype = CORE_READ(w->state, result, dtype);
    if (dtype == NULL) return -1;
    w->dtype = number_of(w->state, dtype);
    Py_DECREF(dtype);
    w->n_elements = w->dtype < 0 ? 0 : count_elements(w->state, result);
    if (w->n_elements <= 0) return w->n_elements < 0 ? -1 : 0;
    w->device = CORE_READ(w->state, result, device);
    if (w->device == NULL) return -1;
    w->out->program = PyMem_Calloc(1, sizeof *w->out->program);
    if (w->out->program == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    w->out->program->struct_bytes = sizeof *w->out->program;
    return 1;
}

static int end(writer *w, int can) {
    Py_CLEAR(w->device);
    if (can == 1 && w->out->n_operands == 0) can = 0;
    if (can != 1) core_recipe_clear(w->out);
    return can;
}

int core_fused_note(core_state *state, core_recipe *out, const core_function *call, PyObject *result,
                    const core_finder *finder) {
    const struct function *f = find_function(state, call->function);
    *out = (core_recipe){0};
    if (f == NULL || (PyTuple_Size(call->args) > 0 && PyTuple_GetItem(call->args, 0) == result)) return 0;
    writer w = {.state = state, .out = out, .finder = finder};
    int can = begin(&w, result);
    return end(&w, can == 1 ? write_function(&w, f, call) : can);
}

int core_fused_cast(core_state *state, core_recipe *out, PyObject *tensor, PyObject *result,
                    const core_finder *finder) {
    writer w = {.state = state, .out = out, .finder = finder};
    int can = begin(&w, result);
    return end(&w, can == 1 ? write_one(&w, tensor, MS_POINTWISE_CAST) : can);
}

/* ---- Making ---- */

/* The program as the library takes it. */
static ms_pointwise finished(const core_recipe *self) {
    ms_pointwise program = *self->program;
    program.n_inputs = self->n_operands;
    for (int64_t i = 0; i < program.n_ops; i++) {
        int32_t *operands[] = {&program.ops[i].a, &program.ops[i].b};
        for (int k = 0; k < 2; k++)
            if (IS_OP(*operands[k])) *operands[k] += (int32_t)self->n_operands - MS_POINTWISE_MAX_INPUTS;
    }
    return program;
}

static int address_of(core_state *state, PyObject *tensor, uint64_t *out) {
    PyObject *address = PyObject_CallMethodObjArgs(tensor, state->str_data_ptr, NULL);
    *out = address == NULL ? 0 : PyLong_AsUnsignedLongLong(address);
    Py_XDECREF(address);
    return PyErr_Occurred() ? -1 : 0;
}

/* Compute it on the host (fuser: True) or on a GPU. -1 with an exception. */
static int compute(core_state *state, const core_recipe *self, PyObject *fuser, PyObject *result) {
    ms_pointwise program = finished(self);
    uint64_t inputs[MS_POINTWISE_MAX_INPUTS] = {0}, output = 0;
    int64_t n = count_elements(state, result), device = 0;
    int failed = n < 0 || address_of(state, result, &output) < 0;
    for (int64_t i = 0; i < self->n_operands && i < MS_POINTWISE_MAX_INPUTS && !failed; i++)
        failed = address_of(state, self->operands[i].tensor, &inputs[i]) < 0;
    if (failed) return -1;
    if (fuser == Py_True) {
        const void *sources[MS_POINTWISE_MAX_INPUTS];
        for (int i = 0; i < MS_POINTWISE_MAX_INPUTS; i++) sources[i] = (const void *)(uintptr_t)inputs[i];
        ms_status status = ms_pointwise_run(&program, sources, (void *)(uintptr_t)output, n);
        if (status != MS_OK) (void)core_raise(state, status);
        return status == MS_OK ? 0 : -1;
    }
    int64_t stream = core_stream_of(state, result, &device);
    ms_gpu *gpu = stream == -1 ? NULL : core_gpu_hold(state, fuser);
    if (gpu == NULL) return -1;
    ms_status status = ms_gpu_pointwise(gpu, device, &program, inputs, output, n, (uint64_t)stream);
    if (status != MS_OK) (void)core_raise(state, status);
    core_gpu_release(fuser);
    return status == MS_OK ? 0 : -1;
}

PyObject *core_fused_make(core_state *state, const core_recipe *self, const core_view *view, PyObject *fuser) {
    if (fuser == Py_True || PyObject_TypeCheck(fuser, state->gpu_type)) {
        PyObject *result = PyObject_CallFunctionObjArgs(state->new_result, self->operands[0].tensor, view->dtype,
                                                        view->shape, view->stride, NULL);
        if (result != NULL && compute(state, self, fuser, result) < 0) Py_CLEAR(result);
        return result;
    }
    PyObject *operands = PyTuple_New(self->n_operands);
    for (Py_ssize_t i = 0; operands != NULL && i < self->n_operands && i < POINTWISE_MAX_OPERANDS; i++) {
        Py_INCREF(self->operands[i].tensor);
        (void)PyTuple_SetItem(operands, i, self->operands[i].tensor);
    }
    PyObject *result =
        operands == NULL ? NULL
                         : PyObject_CallFunctionObjArgs(fuser, operands, view->dtype, view->shape, view->stride, NULL);
    Py_XDECREF(operands);
    return result;
}

uint64_t core_fused_fingerprint(const core_recipe *self) {
    const ms_pointwise program = finished(self);
    uint64_t hash = ms_hash64(program.input_dtypes, sizeof program.input_dtypes, (uint64_t)program.n_inputs);
    return ms_hash64(program.ops, (size_t)program.n_ops * sizeof *program.ops, hash);
}

void core_fused_hashes(const core_recipe *self, uint64_t *structure, uint64_t *numbers) {
    ms_pointwise program = finished(self);
    *numbers = (uint64_t)program.n_ops;
    for (int64_t i = 0; i < program.n_ops; i++) {
        *numbers = ms_hash64(&program.ops[i].scalar, sizeof program.ops[i].scalar, *numbers);
        program.ops[i].scalar = 0;
    }
    *structure = ms_hash64(program.ops, (size_t)program.n_ops * sizeof *program.ops, (uint64_t)program.n_inputs);
    *structure = ms_hash64(program.input_dtypes, sizeof program.input_dtypes, *structure);
}
