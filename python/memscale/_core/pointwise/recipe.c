/* recipe.c - how a tensor was made, so that it can be made again.
 *
 * Only functions of one table count (state->pointwise_functions): their results depend on their operands alone, element
 * by element, and autocast does not cast for them. An operand is a tensor that the layer computed and that autograd
 * follows; whether somebody has changed it shows its version.
 */
#include "pointwise.h"

void core_operand_clear(core_operand *self) {
    Py_CLEAR(self->weak);
    Py_CLEAR(self->tensor);
    Py_CLEAR(self->away);
}

void core_recipe_clear(core_recipe *self) {
    for (Py_ssize_t i = 0; i < self->n_operands; i++) core_operand_clear(&self->operands[i]);
    self->n_operands = 0;
    PyMem_Free(self->program);
    self->program = NULL;
    Py_CLEAR(self->function);
    Py_CLEAR(self->args);
    Py_CLEAR(self->kwargs);
}

int core_recipe_visit(const core_recipe *self, visitproc visit, void *arg) {
    for (Py_ssize_t i = 0; i < self->n_operands; i++) Py_VISIT(self->operands[i].tensor);
    return 0;
}

/* ---- Operands ---- */

/* The bytes of the storage of a tensor, and its number; -1 with an exception. */
static int describe(core_state *state, PyObject *tensor, core_operand *out) {
    PyObject *storage = PyObject_CallFunctionObjArgs(state->storage_of, tensor, NULL);
    PyObject *size = storage == NULL ? NULL : PyObject_CallMethodObjArgs(storage, state->str_nbytes, NULL);
    out->storage = size == NULL ? -1 : core_storage_id(state, storage);
    out->storage_bytes = size == NULL ? -1 : PyLong_AsLongLong(size);
    out->version = size == NULL ? -2 : core_tensor_version(state, tensor);
    Py_XDECREF(size);
    Py_XDECREF(storage);
    return PyErr_Occurred() ? -1 : 0;
}

/* A dense tensor of torch's own that an operation with a history has made. -1 with an exception. */
static int is_operand(core_state *state, PyObject *object) {
    if (Py_TYPE(object) != (PyTypeObject *)state->tensor_type) return 0;
    PyObject *layout = CORE_READ(state, object, layout);
    int is_it = layout == NULL ? -1 : layout == state->strided;
    Py_XDECREF(layout);
    PyObject *node = is_it == 1 ? CORE_READ(state, object, grad_fn) : NULL;
    if (is_it == 1) is_it = node == NULL ? -1 : node != Py_None;
    Py_XDECREF(node);
    if (is_it == 1) {
        int is_other = CORE_READ_BOOL(state, object, is_nested);
        if (is_other == 0) is_other = core_is_lazy(state, object);
        is_it = is_other < 0 ? -1 : !is_other;
    }
    return is_it;
}

/* A value that cannot change. The name of a device is none, so text counts by keyword only. */
static int is_constant(const core_state *state, PyObject *object) {
    return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
           Py_TYPE(object) == Py_TYPE(state->mask_type); /* a torch.dtype */
}

int core_operand_note(core_state *state, core_operand *out, PyObject *tensor) {
    int can = is_operand(state, tensor);
    if (can != 1) return can;
    PyObject *dtype = CORE_READ(state, tensor, dtype);
    out->dtype = dtype; /* types of torch live as long as torch */
    Py_XDECREF(dtype);
    if (dtype == NULL || describe(state, tensor, out) < 0) return -1;
    out->weak = PyWeakref_NewRef(tensor, NULL);
    return out->weak == NULL ? -1 : 1;
}

static int add_operand(core_state *state, core_recipe *self, PyObject *tensor, Py_ssize_t position) {
    if (self->n_operands == POINTWISE_MAX_OPERANDS) return 0;
    core_operand operand = {.position = position};
    int can = core_operand_note(state, &operand, tensor);
    if (can == 1) self->operands[self->n_operands++] = operand;
    return can;
}

static PyObject *alias_of(core_state *state, PyObject *tensor) {
    return PyObject_CallFunctionObjArgs(state->detach, tensor, NULL);
}

/* ---- Noting ---- */

static int note_arguments(core_state *state, core_recipe *self, PyObject *args) {
    Py_ssize_t n = PyTuple_Size(args);
    self->args = PyTuple_New(n);
    if (self->args == NULL) return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *value = PyTuple_GetItem(args, i);
        int is_tensor = core_is_tensor(state, value), can = 1;
        if (is_tensor) can = add_operand(state, self, value, i);
        if (!is_tensor) can = is_constant(state, value);
        if (can != 1) return can;
        PyObject *item = is_tensor ? Py_None : value;
        Py_INCREF(item);
        (void)PyTuple_SetItem(self->args, i, item);
    }
    return self->n_operands > 0;
}

static int note_keywords(const core_state *state, core_recipe *self, PyObject *kwargs) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    if (kwargs == NULL || PyDict_Size(kwargs) == 0) return 1;
    while (PyDict_Next(kwargs, &position, &key, &value))
        if (!is_constant(state, value) && !PyUnicode_CheckExact(value)) return 0;
    self->kwargs = PyDict_Copy(kwargs);
    return self->kwargs == NULL ? -1 : 1;
}

/* What costs no memory is held at once. */
static int hold_held(core_state *state, core_recipe *self, PyObject *args, core_holds holds, const void *holder) {
    for (Py_ssize_t i = 0; i < self->n_operands; i++) {
        core_operand *operand = &self->operands[i];
        if (!holds(holder, operand)) continue;
        operand->tensor = alias_of(state, PyTuple_GetItem(args, operand->position));
        if (operand->tensor == NULL) return -1;
        Py_CLEAR(operand->weak);
    }
    return 1;
}

int core_recipe_note(core_state *state, core_recipe *out, const core_function *call, core_holds holds,
                     const void *holder) {
    *out = (core_recipe){0};
    int can = note_arguments(state, out, call->args);
    if (can == 1) can = note_keywords(state, out, call->kwargs);
    if (can == 1) can = hold_held(state, out, call->args, holds, holder);
    if (can == 1) {
        Py_INCREF(call->function);
        out->function = call->function;
    } else {
        core_recipe_clear(out);
    }
    return can;
}

int core_recipe_of_cast(core_state *state, core_recipe *out, PyObject *tensor, PyObject *dtype) {
    *out = (core_recipe){0};
    int can = add_operand(state, out, tensor, 0);
    if (can == 1) {
        out->operands[0].tensor = alias_of(state, tensor);
        out->args = PyTuple_Pack(2, Py_None, dtype);
        Py_INCREF(state->cast_function);
        out->function = state->cast_function;
        if (out->operands[0].tensor == NULL || out->args == NULL) can = -1;
    }
    if (can != 1) core_recipe_clear(out);
    return can;
}

/* ---- Taking, making ---- */

/* Is the tensor as it was noted: its version, and the memory that it is in? -1 with an exception. */
static int is_same(core_state *state, const core_operand *noted, PyObject *tensor) {
    core_operand now = {0};
    if (describe(state, tensor, &now) < 0) return -1;
    return now.version == noted->version && now.storage == noted->storage && now.storage_bytes == noted->storage_bytes;
}

int core_operand_is_here(core_state *state, const core_operand *self) {
    PyObject *tensor = self->tensor != NULL ? self->tensor : PyWeakref_GetObject(self->weak); /* borrowed */
    if (tensor == NULL || tensor == Py_None) return tensor == NULL ? -1 : 0;
    Py_INCREF(tensor); /* nobody else may hold it */
    int same = is_same(state, self, tensor);
    Py_DECREF(tensor);
    return same;
}

static int take_operand(core_state *state, const core_operand *from, core_operand *out) {
    PyObject *tensor = from->tensor != NULL ? from->tensor : PyWeakref_GetObject(from->weak); /* borrowed */
    if (tensor == NULL || tensor == Py_None) return tensor == NULL ? -1 : 0;
    Py_INCREF(tensor); /* nobody else may hold it */
    int same = is_same(state, from, tensor);
    *out = *from;
    out->weak = NULL;
    out->tensor = same == 1 ? alias_of(state, tensor) : NULL;
    Py_DECREF(tensor);
    return same == 1 && out->tensor == NULL ? -1 : same;
}

int core_recipe_take(core_state *state, const core_recipe *from, core_recipe *out) {
    int can = 1;
    *out = (core_recipe){.function = from->function, .args = from->args, .kwargs = from->kwargs};
    Py_XINCREF(out->function);
    Py_XINCREF(out->args);
    Py_XINCREF(out->kwargs);
    if (from->program != NULL && (out->program = PyMem_Malloc(sizeof *out->program)) == NULL) {
        (void)PyErr_NoMemory();
        can = -1;
    }
    if (from->program != NULL && can == 1) *out->program = *from->program;
    for (Py_ssize_t i = 0; i < POINTWISE_MAX_OPERANDS && i < from->n_operands && can == 1; i++) {
        can = take_operand(state, &from->operands[i], &out->operands[i]);
        out->n_operands += can == 1;
    }
    if (can != 1) core_recipe_clear(out);
    return can;
}

const core_operand *core_recipe_changed(core_state *state, const core_recipe *self, int *status) {
    *status = 0;
    for (Py_ssize_t i = 0; i < self->n_operands; i++) {
        int same = is_same(state, &self->operands[i], self->operands[i].tensor);
        if (same < 0) *status = -1;
        if (same != 1) return &self->operands[i];
    }
    return NULL;
}

/* The arguments with the operands in their places. New reference. */
static PyObject *arguments_of(const core_recipe *self) {
    Py_ssize_t n = PyTuple_Size(self->args);
    PyObject *args = PyTuple_New(n);
    for (Py_ssize_t i = 0; args != NULL && i < n; i++) {
        PyObject *value = PyTuple_GetItem(self->args, i);
        for (Py_ssize_t k = 0; k < self->n_operands && k < POINTWISE_MAX_OPERANDS; k++)
            if (self->operands[k].position == i) value = self->operands[k].tensor;
        Py_INCREF(value);
        (void)PyTuple_SetItem(args, i, value);
    }
    return args;
}

PyObject *core_recipe_make(core_state *state, const core_recipe *self, const core_view *view, PyObject *fuser) {
    if (self->program != NULL) return core_fused_make(state, self, view, fuser);
    PyObject *args = arguments_of(self), *kwargs = self->kwargs == NULL ? Py_None : self->kwargs;
    PyObject *result =
        args == NULL ? NULL : PyObject_CallFunctionObjArgs(state->make_again, self->function, args, kwargs, NULL);
    Py_XDECREF(args);
    return result;
}

uint64_t core_recipe_fingerprint(const core_recipe *self) {
    if (self->program != NULL) return core_fused_fingerprint(self);
    int64_t pointer = (int64_t)(intptr_t)self->function;
    uint64_t fingerprint = ms_hash64(&pointer, sizeof pointer, (uint64_t)self->n_operands);
    for (Py_ssize_t i = 0; i < self->n_operands; i++) {
        pointer = (int64_t)(intptr_t)self->operands[i].dtype;
        fingerprint = ms_hash64(&pointer, sizeof pointer, fingerprint);
    }
    return fingerprint;
}
