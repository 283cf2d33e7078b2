/* pointwise.c - the tensors that a call of a layer saves for backward, without results of pointwise functions that
 * other saved tensors give again.
 *
 * While the forward runs, pack() of a PointwiseTensors is torch's hook on saved tensors, and it is on torch's stack of
 * function modes, so every function of torch that Python calls passes by. It notes how the last results of pointwise
 * functions were made (recipe.c). If autograd saves one of these, or a tensor that autocast has just cast, the tensor
 * and its recipe are kept until the forward is over. Then all that is saved is known: a tensor is dropped where holding
 * the operands in its place frees memory. In backward it is made again for the node that asks for it.
 *
 * What always holds
 *   - A tensor is dropped only if neither it nor an operand was changed in place since, nor is an input or an output
 *     of the layer. An operand is one that autograd saves as well, so that a later change is as much an error as it is
 *     without MemScale; or nobody but this call holds its memory, so that nobody can change it.
 *   - What functions of others save (torch.autograd.Function) is no operand: their backward may write over it.
 *   - All of it happened on the stream on which the layer began.
 *   - The first time it is made again at once, and compared bit for bit (PointwiseLayer.trusts). What differs is kept.
 *   - Unpacking may be repeated, and gives a tensor of its own each time.
 *
 * Where other hooks on saved tensors are active when the layer begins (it is offloaded, too), what is left of its saved
 * tensors is given to these, when it is saved or when the forward is over: they hold it, and are asked for it.
 *
 * As in recompute/saved.c, handles are owned by the graph alone, and all of it dies with the graph.
 */
#include "pointwise.h"

#include <stddef.h>
#include <structmember.h>

#define N_NOTES 16
#define SMALL_PART 16      /* an operand that is so many times smaller than the result is small */
#define MAX_STRUCTURES 256 /* of programs of a layer */
#define MAX_NUMBERS 8      /* sets of numbers in programs of one structure */
#define MAX_TRUSTS 4096    /* a forward that never repeats itself drops nothing more */

enum trust { TRUST_UNKNOWN, TRUST_EQUAL, TRUST_NEVER };

/* What is known of a layer. */
typedef struct PointwiseLayer {
    PyObject_HEAD
    PyObject *name;              /* owned str */
    PyObject *plain;             /* owned: its forward */
    PyObject *on_make, *on_made; /* owned: called before and after a tensor is made in backward; or None */
    PyObject *fuser;             /* owned: see fused.c; NULL or None: torch's functions are called again */
    int64_t least_bytes;         /* smaller tensors are kept */
    char compares;               /* compare what is made again for the first time */
    struct trusts {
        uint64_t fingerprint;
        int trust; /* enum trust */
    } *trusts;     /* owned array */
    Py_ssize_t n_trusts;
    struct known { /* programs that differ in their numbers alone */
        uint64_t structure, numbers[MAX_NUMBERS];
        int n;
    } *known; /* owned array */
    Py_ssize_t n_known;
} PointwiseLayer;

typedef struct item {
    PyObject *tensor;                  /* owned alias, or the parameter; NULL: it is made again, or away */
    PyObject *away;                    /* owned: what outer hooks made of it; or NULL */
    core_recipe recipe;                /* of what may be dropped, or was */
    core_view view;                    /* the same */
    int64_t version, storage, n_bytes; /* of one that may be dropped its storage is all its own */
    char is_chosen;
} item;

typedef struct note {
    PyObject *result; /* owned weak reference; NULL: empty */
    int64_t version;
    core_recipe recipe;
} note;

typedef struct PointwiseTensors {
    PyObject_HEAD
    PointwiseLayer *layer; /* owned */
    item *items;
    Py_ssize_t n_items, capacity;
    int64_t *outside; /* owned: storages that others hold, or may write to */
    Py_ssize_t n_outside;
    int64_t stream;                      /* on which the layer began; -1: it is not known */
    PyObject *outer_pack, *outer_unpack; /* owned: of the hooks that were active; or NULL */
    note notes[N_NOTES];
    Py_ssize_t next_note;
    const core_function *running; /* borrowed: the function that runs; NULL: none */
} PointwiseTensors;

typedef struct PointwiseHandle {
    PyObject_HEAD
    PointwiseTensors *saved; /* owned */
    Py_ssize_t index;
} PointwiseHandle;

static void forget_item(item *it) {
    Py_CLEAR(it->tensor);
    Py_CLEAR(it->away);
    core_recipe_clear(&it->recipe);
    core_view_clear(&it->view);
}

static void forget_note(note *n) {
    Py_CLEAR(n->result);
    core_recipe_clear(&n->recipe);
}

/* ---- What others hold ---- */

static int is_outside(const PointwiseTensors *self, int64_t storage) {
    for (Py_ssize_t i = 0; i < self->n_outside; i++)
        if (self->outside[i] == storage) return 1;
    return 0;
}

static int add_storage(PointwiseTensors *self, int64_t storage) {
    int64_t *grown = PyMem_Realloc(self->outside, (size_t)(self->n_outside + 1) * sizeof *grown);
    if (grown == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    self->outside = grown;
    self->outside[self->n_outside++] = storage;
    return 0;
}

int64_t core_stream_of(core_state *state, PyObject *tensor, int64_t *out_device) {
    PyObject *device = CORE_READ(state, tensor, device);
    PyObject *index = device == NULL ? NULL : PyObject_GetAttr(device, state->str_index);
    PyObject *kind = index == NULL ? NULL : PyObject_GetAttr(device, state->str_type);
    int64_t stream = kind == NULL ? -1 : 0;
    if (kind != NULL && PyUnicode_CompareWithASCIIString(kind, "cuda") == 0 && index != Py_None) {
        PyObject *number = PyObject_CallFunctionObjArgs(state->raw_stream, index, NULL);
        stream = number == NULL ? -1 : PyLong_AsLongLong(number);
        *out_device = PyLong_AsLongLong(index);
        Py_XDECREF(number);
    }
    Py_XDECREF(kind);
    Py_XDECREF(index);
    Py_XDECREF(device);
    return stream;
}

static int64_t stream_of(core_state *state, PyObject *tensor) {
    int64_t device;
    return core_stream_of(state, tensor, &device);
}

/* The storages of the tensors in an object are those of others. With the first one, note the stream. */
static int add_outside(core_state *state, PointwiseTensors *self, PyObject *object) {
    PyObject *tensors = object == NULL ? PyList_New(0) : core_find_tensors(state, object);
    int status = tensors == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && i < PyList_Size(tensors); i++) {
        PyObject *tensor = PyList_GetItem(tensors, i);
        int64_t storage = core_storage_id_of(state, tensor);
        status = storage == -1 && PyErr_Occurred() ? core_cannot_tell() : add_storage(self, storage);
        if (status == 0 && self->stream == -1) self->stream = stream_of(state, tensor);
        if (PyErr_Occurred()) status = -1;
    }
    Py_XDECREF(tensors);
    return status;
}

/* ---- Functions ---- */

/* A result, while it is noted. */
typedef struct noted {
    const PointwiseTensors *self;
    int64_t n_bytes;
} noted;

static int holds(const void *holder, const core_operand *operand) {
    const noted *result = holder;
    const PointwiseTensors *self = result->self;
    if (operand->storage_bytes <= result->n_bytes / SMALL_PART) return 1;
    for (Py_ssize_t i = 0; i < self->n_items; i++)
        if (self->items[i].tensor != NULL && self->items[i].storage == operand->storage) return 1;
    return 0;
}

/* The bytes of a dense tensor of torch's own that is all of its storage, and large; 0: it is something else. -1 with an
 * exception. */
static int64_t bytes_of(core_state *state, const PointwiseTensors *self, PyObject *tensor) {
    if (Py_TYPE(tensor) != (PyTypeObject *)state->tensor_type) return 0;
    PyObject *size = CORE_READ(state, tensor, nbytes);
    int64_t n_bytes = size == NULL ? -1 : PyLong_AsLongLong(size);
    Py_XDECREF(size);
    if (n_bytes < self->layer->least_bytes) return n_bytes == -1 && PyErr_Occurred() ? core_cannot_tell() : 0;
    PyObject *storage = PyObject_CallFunctionObjArgs(state->storage_of, tensor, NULL);
    size = storage == NULL ? NULL : PyObject_CallMethodObjArgs(storage, state->str_nbytes, NULL);
    int64_t whole = size == NULL ? -1 : PyLong_AsLongLong(size);
    Py_XDECREF(size);
    Py_XDECREF(storage);
    if (whole == -1) return PyErr_Occurred() ? core_cannot_tell() : 0;
    int is_lazy = whole == n_bytes ? core_is_lazy(state, tensor) : 1;
    return is_lazy < 0 ? -1 : is_lazy ? 0 : n_bytes;
}

static int fuses(const PointwiseLayer *layer) { return layer->fuser != NULL && layer->fuser != Py_None; }

/* Is this tensor where the fuser computes? A function says nothing of that. -1 with an exception. */
static int is_in_reach(core_state *state, const PointwiseLayer *layer, PyObject *tensor) {
    int is_gpu = fuses(layer) && PyObject_TypeCheck(layer->fuser, state->gpu_type);
    if (!is_gpu && layer->fuser != Py_True) return fuses(layer);
    PyObject *device = CORE_READ(state, tensor, device);
    PyObject *kind = device == NULL ? NULL : PyObject_GetAttr(device, state->str_type);
    int is_it = kind == NULL ? -1 : PyUnicode_CompareWithASCIIString(kind, is_gpu ? "cuda" : "cpu") == 0;
    Py_XDECREF(kind);
    Py_XDECREF(device);
    return is_it;
}

/* Is it a function whose results are noted? */
static int is_noted(const core_state *state, const PointwiseTensors *self, PyObject *function) {
    return core_is_in(function, state->pointwise_functions) ||
           (fuses(self->layer) && PyDict_GetItem(state->fused_functions, function) != NULL);
}

/* How a tensor was made, if that was noted: 1, 0 if not, -1 with an exception. */
static int find_note(core_state *state, const PointwiseTensors *self, PyObject *tensor, const core_recipe **out) {
    for (Py_ssize_t i = 0; i < N_NOTES; i++) {
        const note *n = &self->notes[i];
        if (n->result == NULL || PyWeakref_GetObject(n->result) != tensor) continue;
        int64_t version = core_tensor_version(state, tensor);
        if (version != n->version) return version == -2 ? -1 : 0;
        *out = &n->recipe;
        return 1;
    }
    return 0;
}

/* Is a view all of its base, in the same type? -1 with an exception. */
static int is_whole(core_state *state, PyObject *view, PyObject *base) {
    PyObject *types[] = {CORE_READ(state, view, dtype), CORE_READ(state, base, dtype)};
    PyObject *sizes[] = {CORE_READ(state, view, nbytes), CORE_READ(state, base, nbytes)};
    int is_known = types[0] != NULL && types[1] != NULL && sizes[0] != NULL && sizes[1] != NULL;
    int is_it = is_known ? types[0] == types[1] : -1;
    if (is_it == 1) is_it = PyObject_RichCompareBool(sizes[0], sizes[1], Py_EQ);
    int is_lazy = is_it == 1 ? core_is_lazy(state, view) : 0;
    if (is_lazy != 0) is_it = is_lazy < 0 ? -1 : 0;
    for (int i = 0; i < 2; i++) {
        Py_XDECREF(types[i]);
        Py_XDECREF(sizes[i]);
    }
    return is_it;
}

/* The same of what the tensor is a view of, if it is one of all of it. */
static int find_base_note(core_state *state, const PointwiseTensors *self, PyObject *tensor, const core_recipe **out) {
    PyObject *base = CORE_READ(state, tensor, _base);
    int status = base == NULL ? -1 : 1;
    if (status == 1 && base != Py_None) status = is_whole(state, tensor, base);
    if (status == 1) status = find_note(state, self, base == Py_None ? tensor : base, out);
    Py_XDECREF(base);
    return status;
}

/* core_finder.find. Where a recipe begins with tensors of others, or with what is gone or was changed since, what it
 * made may be had, and the recipe not. */
static int find_recipe(core_state *state, const void *holder, PyObject *tensor, const core_recipe **out) {
    const PointwiseTensors *self = ((const noted *)holder)->self;
    const core_recipe *found = NULL;
    int status = find_base_note(state, self, tensor, &found);
    for (Py_ssize_t i = 0; status == 1 && i < found->n_operands; i++)
        status = is_outside(self, found->operands[i].storage) ? 0 : core_operand_is_here(state, &found->operands[i]);
    if (status == 1) *out = found;
    return status < 0 ? -1 : 0;
}

/* Its operands are the layer's own, and no views of it. */
static int is_usable(const PointwiseTensors *self, const item *it) {
    for (Py_ssize_t i = 0; i < it->recipe.n_operands; i++) {
        int64_t storage = it->recipe.operands[i].storage;
        if (storage == it->storage || is_outside(self, storage)) return 0;
    }
    return !is_outside(self, it->storage);
}

/* The notes that begin with the same tensor as this recipe hold it, too: it may not be there any more when they are
 * asked. -1 with an exception. */
static int share(core_state *state, PointwiseTensors *self, const core_recipe *taken, const core_recipe *from) {
    for (Py_ssize_t i = 0; i < N_NOTES; i++) {
        core_recipe *other = &self->notes[i].recipe;
        for (Py_ssize_t k = 0; other->program != NULL && k < other->n_operands; k++)
            for (Py_ssize_t t = 0; t < taken->n_operands; t++) {
                core_operand *operand = &other->operands[k];
                if (operand->tensor != NULL || operand->weak != from->operands[t].weak) continue;
                operand->tensor = PyObject_CallFunctionObjArgs(state->detach, taken->operands[t].tensor, NULL);
                if (operand->tensor == NULL) return -1;
            }
    }
    return 0;
}

/* Have two tensors the same shape and strides? -1 with an exception. */
static int has_form_of(core_state *state, PyObject *a, PyObject *b) {
    core_view one = {0}, other = {0};
    int same = core_view_read(state, a, &one) < 0 || core_view_read(state, b, &other) < 0 ? -1 : 1;
    if (same == 1) same = PyObject_RichCompareBool(one.shape, other.shape, Py_EQ);
    if (same == 1) same = PyObject_RichCompareBool(one.stride, other.stride, Py_EQ);
    core_view_clear(&one);
    core_view_clear(&other);
    return same;
}

/* Functions such as tanh save their own result, before it is noted. -1 with an exception. */
static int note_saved_result(core_state *state, PointwiseTensors *self, const note *n, PyObject *result,
                             Py_ssize_t first_item) {
    int64_t storage = first_item < self->n_items ? core_storage_id_of(state, result) : -1;
    if (storage == -1) return PyErr_Occurred() ? -1 : 0;
    for (Py_ssize_t i = first_item; i < self->n_items; i++) {
        item *it = &self->items[i];
        if (it->storage != storage || it->n_bytes <= 0 || core_recipe_is_set(&it->recipe)) continue;
        int can = it->version == n->version ? has_form_of(state, it->tensor, result) : 0;
        if (can == 1) can = core_recipe_take(state, &n->recipe, &it->recipe);
        if (can == 1 && !is_usable(self, it)) core_recipe_clear(&it->recipe);
        if (core_recipe_is_set(&it->recipe) &&
            (share(state, self, &it->recipe, &n->recipe) < 0 || core_view_read(state, it->tensor, &it->view) < 0))
            can = -1;
        if (can < 0) return -1;
    }
    return 0;
}

/* Has this layer run the program before, or few others that differ from it in their numbers alone? Where a number
 * changes from step to step (a warm-up, say), each makes a program of its own, to be compiled and compared: no more of
 * these. -1 with an exception. */
static int is_steady(PointwiseLayer *layer, const core_recipe *recipe) {
    uint64_t structure, numbers;
    Py_ssize_t at = 0;
    core_fused_hashes(recipe, &structure, &numbers);
    while (at < layer->n_known && layer->known[at].structure != structure) at++;
    if (at == MAX_STRUCTURES) return 0;
    if (at == layer->n_known) {
        struct known *grown = PyMem_Realloc(layer->known, (size_t)(at + 1) * sizeof *grown);
        if (grown == NULL) {
            (void)PyErr_NoMemory();
            return -1;
        }
        layer->known = grown;
        layer->known[layer->n_known++] = (struct known){.structure = structure};
    }
    struct known *known = &layer->known[at];
    for (int i = 0; i < known->n; i++)
        if (known->numbers[i] == numbers) return 1;
    if (known->n == MAX_NUMBERS) return 0;
    known->numbers[known->n++] = numbers;
    return 1;
}

/* Has the function returned one of its arguments? */
static int is_argument(const core_function *call, const PyObject *result) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(call->args); i++)
        if (PyTuple_GetItem(call->args, i) == result) return 1;
    return 0;
}

/* What a function of the table has returned, which has saved the items from the first one on. */
static int note_result(core_state *state, PointwiseTensors *self, const core_function *call, PyObject *result,
                       Py_ssize_t first_item) {
    int64_t n_bytes = is_argument(call, result) ? 0 : bytes_of(state, self, result);
    if (n_bytes <= 0) return n_bytes < 0 ? -1 : 0;
    int64_t stream = stream_of(state, result);
    if (stream != self->stream) return stream == -1 ? -1 : 0;
    note *n = &self->notes[self->next_note];
    forget_note(n);
    const noted what = {self, n_bytes};
    const core_finder finder = {find_recipe, holds, &what};
    int can = is_in_reach(state, self->layer, result);
    if (can == 1) can = core_fused_note(state, &n->recipe, call, result, &finder);
    if (can == 1) can = is_steady(self->layer, &n->recipe);
    if (can != 1) core_recipe_clear(&n->recipe);
    if (can == 0 && core_is_in(call->function, state->pointwise_functions))
        can = core_recipe_note(state, &n->recipe, call, holds, &what);
    if (can != 1) return can < 0 ? core_cannot_tell() : 0;
    n->version = core_tensor_version(state, result);
    n->result = n->version == -2 ? NULL : PyWeakref_NewRef(result, NULL);
    if (n->result == NULL) return -1;
    self->next_note = (self->next_note + 1) % N_NOTES;
    return note_saved_result(state, self, n, result, first_item);
}

PyDoc_STRVAR(function_doc, "__torch_function__($self, function, types, args, kwargs=None, /)\n--\n\n"
                           "The function mode of the forward.");

static PyObject *tensors_torch_function(PyObject *object, PyObject *const *args, Py_ssize_t n) {
    PointwiseTensors *self = (PointwiseTensors *)object;
    core_state *state = core_state_of_type(Py_TYPE(object));
    core_function call;
    if (core_read_function(args, n, &call) < 0) return NULL;
    Py_ssize_t first_item = self->n_items;
    self->running = &call;
    PyObject *result = PyObject_Call(call.function, call.args, call.kwargs);
    self->running = NULL;
    if (result != NULL && is_noted(state, self, call.function) &&
        note_result(state, self, &call, result, first_item) < 0)
        Py_CLEAR(result);
    return result;
}

/* ---- Pack ---- */

/* How a tensor was made that is saved now: 1, 0 if that is not known, -1 with an exception. */
static int take_note(core_state *state, PointwiseTensors *self, PyObject *tensor, core_recipe *out) {
    const core_recipe *found = NULL;
    int can = find_note(state, self, tensor, &found);
    if (can == 0 && fuses(self->layer)) { /* products save a view of their operand */
        can = core_is_true(PyObject_CallMethodObjArgs(tensor, state->str_is_contiguous, NULL));
        if (can == 1) can = find_base_note(state, self, tensor, &found);
        if (can == 1 && found->program == NULL) can = 0; /* a call gives the tensor itself, not this view */
    }
    if (can == 1) can = core_recipe_take(state, found, out);
    if (can == 1 && found->program != NULL && share(state, self, out, found) < 0) can = -1;
    return can;
}

static int note_cast(core_state *state, PointwiseTensors *self, PyObject *operand, PyObject *tensor, PyObject *dtype,
                     core_recipe *out) {
    int fused = is_in_reach(state, self->layer, tensor);
    if (fused < 0) return -1;
    if (fused) {
        core_recipe fresh;
        const noted what = {self, INT64_MAX}; /* what it begins with is held */
        const core_finder finder = {find_recipe, holds, &what};
        int can = core_fused_cast(state, &fresh, operand, tensor, &finder);
        if (can == 1) can = core_recipe_take(state, &fresh, out);
        if (can == 1 && share(state, self, out, &fresh) < 0) can = -1;
        core_recipe_clear(&fresh);
        if (can != 0) return can;
    }
    return core_recipe_of_cast(state, out, operand, dtype);
}

/* The same of a tensor that autocast has cast for the function that runs. */
static int find_cast(core_state *state, PointwiseTensors *self, PyObject *tensor, core_recipe *out) {
    PyObject *node = self->running == NULL ? NULL : CORE_READ(state, tensor, grad_fn);
    int is_cast = node != NULL && Py_TYPE(node) == (PyTypeObject *)state->cast_node_type;
    PyObject *both = NULL, *operands = NULL, *number = NULL, *dtype = NULL;
    Py_ssize_t index = -1;
    int can = PyErr_Occurred() ? -1 : 0;
    if (is_cast)
        both = PyTuple_Pack(2, self->running->args, self->running->kwargs == NULL ? Py_None : self->running->kwargs);
    if (both != NULL) operands = core_find_tensors(state, both);
    for (Py_ssize_t i = 0; operands != NULL && i < PyList_Size(operands); i++)
        if (PyList_GetItem(operands, i) == tensor)
            Py_CLEAR(operands); /* the cast is its own history, not the function's */
    if (operands != NULL) number = PyObject_CallFunctionObjArgs(state->cast_operand, node, operands, NULL);
    if (number != NULL) index = PyLong_AsSsize_t(number);
    if (index >= 0) dtype = CORE_READ(state, tensor, dtype);
    if (dtype != NULL) can = has_form_of(state, PyList_GetItem(operands, index), tensor);
    if (can == 1) can = note_cast(state, self, PyList_GetItem(operands, index), tensor, dtype, out);
    Py_XDECREF(dtype);
    Py_XDECREF(number);
    Py_XDECREF(operands);
    Py_XDECREF(both);
    Py_XDECREF(node);
    return PyErr_Occurred() ? -1 : can;
}

static int describe(core_state *state, PointwiseTensors *self, PyObject *tensor, item *out) {
    int is_parameter = Py_TYPE(tensor) == (PyTypeObject *)state->parameter_type;
    out->version = core_tensor_version(state, tensor);
    if (out->version == -2) return -1;
    if (is_parameter) Py_INCREF(tensor);
    out->tensor = is_parameter ? tensor : PyObject_CallFunctionObjArgs(state->detach, tensor, NULL);
    if (out->tensor == NULL) return -1;
    out->storage = is_parameter ? -1 : core_storage_id_of(state, tensor);
    if (out->storage == -1 && PyErr_Occurred() && core_cannot_tell() < 0) return -1;
    if (self->running == NULL && !is_parameter && add_storage(self, out->storage) < 0) return -1; /* by others */
    out->n_bytes = is_parameter ? 0 : bytes_of(state, self, tensor);
    if (out->n_bytes <= 0) return out->n_bytes < 0 ? -1 : 0;
    int64_t stream = stream_of(state, tensor);
    if (stream != self->stream) return stream == -1 ? -1 : 0;
    int can = take_note(state, self, tensor, &out->recipe);
    if (can == 0) can = find_cast(state, self, tensor, &out->recipe);
    if (can == 1 && !is_usable(self, out)) core_recipe_clear(&out->recipe);
    if (!core_recipe_is_set(&out->recipe)) return can < 0 ? -1 : 0;
    return core_view_read(state, tensor, &out->view);
}

/* Give a tensor to the outer hooks. -1 with an exception. */
static int put_away(const PointwiseTensors *self, PyObject *tensor, PyObject **away) {
    if (self->outer_pack == NULL || *away != NULL) return 0;
    *away = PyObject_CallFunctionObjArgs(self->outer_pack, tensor, NULL);
    return *away == NULL ? -1 : 0;
}

static int add_item(PointwiseTensors *self, const item *fresh) {
    if (self->n_items == self->capacity) {
        Py_ssize_t capacity = self->capacity == 0 ? 32 : self->capacity * 2;
        item *grown = PyMem_Realloc(self->items, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            (void)PyErr_NoMemory();
            return -1;
        }
        self->items = grown;
        self->capacity = capacity;
    }
    self->items[self->n_items++] = *fresh;
    return 0;
}

PyDoc_STRVAR(pack_doc, "pack($self, tensor, /)\n--\n\nThe saved-tensor hook of the forward.");

static PyObject *tensors_pack(PyObject *object, PyObject *tensor) {
    PointwiseTensors *self = (PointwiseTensors *)object;
    core_state *state = core_state_of_type(Py_TYPE(object));
    allocfunc alloc = (allocfunc)PyType_GetSlot(state->pointwise_handle_type, Py_tp_alloc);
    item fresh = {0};
    PointwiseHandle *handle = (PointwiseHandle *)alloc(state->pointwise_handle_type, 0);
    if (handle == NULL) return NULL;
    int failed = describe(state, self, tensor, &fresh) < 0;
    if (!failed && !core_recipe_is_set(&fresh.recipe)) failed = put_away(self, tensor, &fresh.away) < 0;
    if (failed || add_item(self, &fresh) < 0) {
        forget_item(&fresh);
        Py_DECREF((PyObject *)handle); /* its `saved` is not set yet */
        return NULL;
    }
    Py_INCREF(object);
    handle->saved = self;
    handle->index = self->n_items - 1;
    return (PyObject *)handle;
}

/* ---- After the forward ---- */

static uint64_t fingerprint_of(const item *it, Py_ssize_t index) {
    const int64_t what[] = {(int64_t)index, (int64_t)(intptr_t)it->view.dtype};
    return ms_hash64(what, sizeof what, core_recipe_fingerprint(&it->recipe));
}

static struct trusts *find_trust(const PointwiseLayer *layer, uint64_t fingerprint) {
    for (Py_ssize_t i = 0; i < layer->n_trusts; i++)
        if (layer->trusts[i].fingerprint == fingerprint) return &layer->trusts[i];
    return NULL;
}

static int set_trust(PointwiseLayer *layer, uint64_t fingerprint, int trust) {
    struct trusts *grown = PyMem_Realloc(layer->trusts, (size_t)(layer->n_trusts + 1) * sizeof *grown);
    if (grown == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    layer->trusts = grown;
    layer->trusts[layer->n_trusts++] = (struct trusts){fingerprint, trust};
    return 0;
}

/* Does the tensor look as the one that was saved? -1 with an exception. */
static int looks_alike(core_state *state, const item *it, PyObject *tensor) {
    core_view view = {0};
    int same = core_view_read(state, tensor, &view) < 0 ? -1 : core_view_same(&it->view, &view);
    core_view_clear(&view);
    return same;
}

/* Is that the exception that is set? */
static int is_out_of_memory(void) {
    core_pending pending = core_set_aside();
    PyObject *name = pending.type == NULL ? NULL : PyObject_GetAttrString(pending.type, "__name__");
    int is_it = name != NULL && PyUnicode_CompareWithASCIIString(name, "OutOfMemoryError") == 0;
    Py_XDECREF(name);
    core_put_back(pending);
    return is_it;
}

/* Make it again, for the first time; what cannot be made is not the same. -1 with an exception. */
static int compare(core_state *state, const PointwiseLayer *layer, const item *it) {
    PyObject *made = core_recipe_make(state, &it->recipe, &it->view, layer->fuser);
    int same = made == NULL ? -1 : looks_alike(state, it, made);
    if (same == 1) same = core_is_true(PyObject_CallFunctionObjArgs(state->same_bits, it->tensor, made, NULL));
    Py_XDECREF(made);
    return same < 0 && !is_out_of_memory() ? core_cannot_tell() : same;
}

/* Does making it again give the same? -1 with an exception. */
static int is_trusted(core_state *state, const PointwiseTensors *self, Py_ssize_t index) {
    PointwiseLayer *layer = self->layer;
    if (!layer->compares) return 1;
    uint64_t fingerprint = fingerprint_of(&self->items[index], index);
    const struct trusts *known = find_trust(layer, fingerprint);
    if (known != NULL || layer->n_trusts >= MAX_TRUSTS) return known != NULL && known->trust == TRUST_EQUAL;
    int same = compare(state, layer, &self->items[index]);
    if (same >= 0 && set_trust(layer, fingerprint, same ? TRUST_EQUAL : TRUST_NEVER) < 0) return -1;
    return same;
}

/* How many of our own tensors are on a storage. */
static int64_t count_own(const PointwiseTensors *self, int64_t storage) {
    int64_t n = 0;
    for (Py_ssize_t i = 0; i < self->n_items; i++) {
        const item *it = &self->items[i];
        n += it->tensor != NULL && it->storage == storage;
        for (Py_ssize_t k = 0; k < it->recipe.n_operands; k++) n += it->recipe.operands[k].storage == storage;
    }
    return n;
}

/* Can nobody change an operand later without an error? It is saved as well, or nobody else holds it. -1 with an
 * exception. */
static int is_safe(core_state *state, const PointwiseTensors *self, const core_operand *operand) {
    for (Py_ssize_t i = 0; i < self->n_items; i++)
        if (self->items[i].tensor != NULL && self->items[i].storage == operand->storage) return 1;
    if (state->extra_users == Py_None) return 0;
    PyObject *storage = PyObject_CallFunctionObjArgs(state->storage_of, operand->tensor, NULL);
    PyObject *users = storage == NULL ? NULL : PyObject_CallFunctionObjArgs(state->count_users, storage, NULL);
    int64_t n = users == NULL ? -1 : PyLong_AsLongLong(users);
    Py_XDECREF(users);
    Py_XDECREF(storage);
    if (n < 0) return -1;
    return n == count_own(self, operand->storage) + PyLong_AsLongLong(state->extra_users);
}

/* May it be dropped? Nothing was changed, and neither it nor what it is made of leaves the layer. */
static int may_drop(core_state *state, const PointwiseTensors *self, Py_ssize_t index) {
    const item *it = &self->items[index];
    if (it->tensor == NULL || !core_recipe_is_set(&it->recipe) || !is_usable(self, it)) return 0;
    int64_t version = core_tensor_version(state, it->tensor);
    if (version != it->version) return version == -2 ? -1 : 0;
    int status;
    if (core_recipe_changed(state, &it->recipe, &status) != NULL) return status;
    for (Py_ssize_t k = 0; k < it->recipe.n_operands; k++) {
        int safe = is_safe(state, self, &it->recipe.operands[k]);
        if (safe != 1) return safe;
    }
    return is_trusted(state, self, index);
}

/* Is a storage held, if those that are chosen go? By what is saved, or for what is chosen. */
static int is_held(const PointwiseTensors *self, int64_t storage) {
    for (Py_ssize_t i = 0; i < self->n_items; i++) {
        const item *it = &self->items[i];
        if (it->tensor != NULL && !it->is_chosen && it->storage == storage) return 1;
        for (Py_ssize_t k = 0; it->is_chosen && k < it->recipe.n_operands; k++)
            if (it->recipe.operands[k].storage == storage) return 1;
    }
    return 0;
}

/* What it frees to drop all that is saved of this item's storage; 0: something of it has to stay. */
static int64_t gain_of(const PointwiseTensors *self, const item *chosen) {
    int64_t gain = chosen->n_bytes;
    for (Py_ssize_t i = 0; i < self->n_items; i++) {
        const item *it = &self->items[i];
        if (it->tensor != NULL && it->storage == chosen->storage && !core_recipe_is_set(&it->recipe)) return 0;
        for (Py_ssize_t k = 0; it->is_chosen && k < it->recipe.n_operands; k++)
            if (it->recipe.operands[k].storage == chosen->storage) return 0;
    }
    for (Py_ssize_t k = 0; k < chosen->recipe.n_operands; k++) {
        const core_operand *operand = &chosen->recipe.operands[k];
        int is_again = 0;
        for (Py_ssize_t j = 0; j < k; j++) is_again |= chosen->recipe.operands[j].storage == operand->storage;
        if (!is_again && !is_held(self, operand->storage)) gain -= operand->storage_bytes;
    }
    return gain;
}

/* Choose what is dropped, until nothing more frees memory: what was saved first is looked at first, or last. Returns
 * what is freed. */
static int64_t choose_by(PointwiseTensors *self, int is_last_first) {
    int64_t freed = 0, gain;
    for (Py_ssize_t i = 0; i < self->n_items; i++) self->items[i].is_chosen = 0;
    for (int is_done = 0; !is_done;) {
        is_done = 1;
        for (Py_ssize_t n = 0; n < self->n_items; n++) {
            item *it = &self->items[is_last_first ? self->n_items - 1 - n : n];
            if (!core_recipe_is_set(&it->recipe) || it->is_chosen) continue;
            if ((gain = gain_of(self, it)) < self->layer->least_bytes) continue;
            for (Py_ssize_t k = 0; k < self->n_items; k++)
                if (self->items[k].tensor != NULL && self->items[k].storage == it->storage)
                    self->items[k].is_chosen = 1;
            freed += gain;
            is_done = 0;
        }
    }
    return freed;
}

/* A tensor that is dropped cannot be what another one follows from. Which of them to drop, the one that was saved first
 * or the one that was saved last, depends on the layer. */
static void choose(PointwiseTensors *self) {
    int64_t first = choose_by(self, 0), last = choose_by(self, 1);
    if (first >= last) (void)choose_by(self, 0);
}

/* What is left is given to the outer hooks, if there are any. -1 with an exception. */
static int leave(core_state *state, PointwiseTensors *self) {
    for (Py_ssize_t i = 0; i < self->n_items && self->outer_pack != NULL; i++) {
        item *it = &self->items[i];
        int64_t version = it->tensor == NULL ? it->version : core_tensor_version(state, it->tensor);
        if (version == -2) return -1;
        if (version != it->version && it->away == NULL) continue; /* backward says that it was changed */
        if (it->tensor != NULL && put_away(self, it->tensor, &it->away) < 0) return -1;
        Py_CLEAR(it->tensor);
        for (Py_ssize_t k = 0; k < it->recipe.n_operands; k++) {
            core_operand *operand = &it->recipe.operands[k];
            if (put_away(self, operand->tensor, &operand->away) < 0) return -1;
            Py_CLEAR(operand->tensor);
        }
    }
    Py_CLEAR(self->outer_pack);
    return 0;
}

/* The forward has returned `result`. */
static int settle(core_state *state, PointwiseTensors *self, PyObject *result) {
    for (Py_ssize_t i = 0; i < N_NOTES; i++) forget_note(&self->notes[i]);
    if (add_outside(state, self, result) < 0) return -1;
    for (Py_ssize_t i = 0; i < self->n_items; i++) {
        int may = may_drop(state, self, i);
        if (may < 0) return -1;
        if (!may) core_recipe_clear(&self->items[i].recipe);
    }
    choose(self);
    for (Py_ssize_t i = 0; i < self->n_items; i++) {
        item *it = &self->items[i];
        if (!it->is_chosen) {
            core_recipe_clear(&it->recipe);
            continue;
        }
        Py_CLEAR(it->tensor);
        Py_CLEAR(it->away); /* a result that its function saved before it was noted */
    }
    PyMem_Free(self->outside);
    self->outside = NULL;
    self->n_outside = 0;
    return leave(state, self);
}

/* ---- Unpack ---- */

static PyObject *raise_changed(core_state *state, const PointwiseTensors *self, PyObject *tensor, int64_t now,
                               int64_t then) {
    PyObject *dtype = CORE_READ(state, tensor, dtype), *shape = dtype == NULL ? NULL : CORE_READ(state, tensor, shape);
    if (shape != NULL) (void)core_raise_in_place(dtype, shape, self->layer->name, now, then);
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    return NULL;
}

static PyObject *kept(core_state *state, const PointwiseTensors *self, const item *it) {
    int64_t version = core_tensor_version(state, it->tensor);
    if (version == -2) return NULL;
    if (version != it->version) return raise_changed(state, self, it->tensor, version, it->version);
    Py_INCREF(it->tensor);
    return it->tensor;
}

static int call_void(PyObject *function) {
    PyObject *done = function == NULL || function == Py_None ? NULL : PyObject_CallNoArgs(function);
    Py_XDECREF(done);
    return PyErr_Occurred() ? -1 : 0;
}

static int check_operands(core_state *state, const PointwiseTensors *self, const core_recipe *recipe) {
    int status;
    const core_operand *changed = core_recipe_changed(state, recipe, &status);
    if (changed == NULL || status < 0) return status;
    int64_t now = core_tensor_version(state, changed->tensor);
    (void)raise_changed(state, self, changed->tensor, now, changed->version);
    return -1;
}

/* A copy of the recipe whose operands are here: those of outer hooks are asked for, and these say what was changed. -1
 * with an exception. */
static int bring_operands(core_state *state, const PointwiseTensors *self, const core_recipe *from, core_recipe *out) {
    *out = *from;
    if (self->outer_unpack == NULL) return check_operands(state, self, from);
    for (Py_ssize_t k = 0; k < out->n_operands; k++) out->operands[k].tensor = NULL;
    for (Py_ssize_t k = 0; k < out->n_operands; k++) {
        const core_operand *operand = &from->operands[k];
        if (operand->away == NULL) Py_XINCREF(operand->tensor); /* it is here still: the outer hooks failed */
        out->operands[k].tensor = operand->away == NULL
                                      ? operand->tensor
                                      : PyObject_CallFunctionObjArgs(self->outer_unpack, operand->away, NULL);
        if (out->operands[k].tensor == NULL) return -1;
    }
    return 0;
}

static void drop_operands(const PointwiseTensors *self, core_recipe *here) {
    for (Py_ssize_t k = 0; self->outer_unpack != NULL && k < here->n_operands; k++) Py_CLEAR(here->operands[k].tensor);
}

static PyObject *make(core_state *state, const PointwiseTensors *self, const item *it) {
    core_recipe here;
    int status = bring_operands(state, self, &it->recipe, &here);
    if (status == 0) status = call_void(self->layer->on_make);
    PyObject *made = status < 0 ? NULL : core_recipe_make(state, &here, &it->view, self->layer->fuser);
    drop_operands(self, &here);
    if (status < 0) return NULL;
    core_pending pending = core_set_aside();
    status = call_void(self->layer->on_made);
    if (pending.type != NULL) core_put_back(pending);
    int same = made == NULL || status < 0 ? -1 : looks_alike(state, it, made);
    if (same == 0)
        PyErr_Format(state->error,
                     "layer '%U': a tensor that was computed again for backward has another type or layout than in "
                     "forward; train with enable_checkpointing=False, and please report it.",
                     self->layer->name);
    if (same != 1) Py_CLEAR(made);
    return made;
}

PyObject *core_unpack_pointwise(PyObject *module, PyObject *object) {
    core_state *state = core_get_state(module);
    if (Py_TYPE(object) != state->pointwise_handle_type) {
        PyErr_SetString(PyExc_TypeError, "unpack_pointwise() takes a handle of PointwiseTensors.pack()");
        return NULL;
    }
    PointwiseTensors *self = ((PointwiseHandle *)object)->saved;
    const item *it = &self->items[((PointwiseHandle *)object)->index];
    Py_INCREF(object); /* the handle, and with it `self`, stays while Python code runs */
    PyObject *tensor = it->tensor != NULL ? kept(state, self, it)
                       : it->away != NULL ? PyObject_CallFunctionObjArgs(self->outer_unpack, it->away, NULL)
                                          : make(state, self, it);
    Py_DECREF(object);
    return tensor;
}

/* ---- The objects ---- */

static int tensors_traverse(PyObject *object, visitproc visit, void *arg) {
    PointwiseTensors *self = (PointwiseTensors *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->layer);
    Py_VISIT(self->outer_pack);
    for (Py_ssize_t i = 0; i < self->n_items; i++) {
        Py_VISIT(self->items[i].tensor);
        int status = core_recipe_visit(&self->items[i].recipe, visit, arg);
        if (status != 0) return status;
    }
    return 0;
}

/* Nothing of it leads back to the graph, so it is never part of a cycle that only a collector could free. */
static void tensors_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PointwiseTensors *self = (PointwiseTensors *)object;
    PyObject_GC_UnTrack(object);
    for (Py_ssize_t i = 0; i < self->n_items; i++) forget_item(&self->items[i]);
    for (Py_ssize_t i = 0; i < N_NOTES; i++) forget_note(&self->notes[i]);
    PyMem_Free(self->items);
    PyMem_Free(self->outside);
    Py_CLEAR(self->layer);
    Py_CLEAR(self->outer_pack);
    Py_CLEAR(self->outer_unpack);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static void handle_dealloc(PyObject *object) {
    PointwiseHandle *self = (PointwiseHandle *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->saved != NULL) {
        item it = self->saved->items[self->index];
        self->saved->items[self->index] = (item){.storage = -1};
        forget_item(&it);
        Py_DECREF((PyObject *)self->saved);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* The hooks on saved tensors that are active. -1 with an exception. */
static int find_outer(core_state *state, PointwiseTensors *self) {
    PyObject *hooks = PyObject_CallNoArgs(state->top_hooks);
    if (hooks == NULL) return -1;
    if (PyTuple_Check(hooks) && PyTuple_Size(hooks) >= 2) {
        self->outer_pack = PyTuple_GetItem(hooks, 0);
        self->outer_unpack = PyTuple_GetItem(hooks, 1);
        Py_INCREF(self->outer_pack);
        Py_INCREF(self->outer_unpack);
    }
    Py_DECREF(hooks);
    return 0;
}

static PyObject *layer_call(PyObject *object, PyObject *args, PyObject *kwargs) {
    PointwiseLayer *layer = (PointwiseLayer *)object;
    core_state *state = core_state_of_type(Py_TYPE(object));
    if (core_check_bound(state) < 0) return NULL;
    if (layer->plain == NULL) {
        PyErr_SetString(PyExc_TypeError, "this PointwiseLayer has no forward");
        return NULL;
    }
    PyTypeObject *type = state->pointwise_tensors_type;
    PointwiseTensors *self = (PointwiseTensors *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) return NULL;
    PyObject *plain = layer->plain, *result = NULL;
    Py_INCREF(object);
    Py_INCREF(plain);
    self->layer = layer;
    self->stream = -1;
    if (find_outer(state, self) == 0 && add_outside(state, self, args) == 0 && add_outside(state, self, kwargs) == 0) {
        PyObject *pack = PyObject_GetAttr((PyObject *)self, state->str_pack);
        result = core_run_in_mode(state, (PyObject *)self, pack, state->unpack_pointwise, plain, args, kwargs);
        Py_XDECREF(pack);
    }
    if (result != NULL && settle(state, self, result) < 0) Py_CLEAR(result);
    Py_DECREF(plain);
    Py_DECREF((PyObject *)self);
    return result;
}

static int layer_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    PointwiseLayer *self = (PointwiseLayer *)object;
    static char *names[] = {(char *)"name",     (char *)"plain", (char *)"least_bytes",
                            (char *)"compares", (char *)"fuser", NULL};
    PyObject *name, *plain, *fuser = Py_None;
    long long least_bytes = MS_OFFLOAD_LEAST_BYTES;
    int compares = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UO|LpO:PointwiseLayer", names, &name, &plain, &least_bytes,
                                     &compares, &fuser))
        return -1;
    PyObject *old[] = {self->name, self->plain, self->fuser};
    Py_INCREF(name);
    Py_INCREF(plain);
    Py_INCREF(fuser);
    self->name = name;
    self->plain = plain;
    self->fuser = fuser;
    self->least_bytes = least_bytes;
    self->compares = (char)compares;
    for (int i = 0; i < 3; i++) Py_XDECREF(old[i]);
    return 0;
}

static int layer_traverse(PyObject *object, visitproc visit, void *arg) {
    PointwiseLayer *self = (PointwiseLayer *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->plain);
    Py_VISIT(self->on_make);
    Py_VISIT(self->on_made);
    Py_VISIT(self->fuser);
    return 0;
}

static int layer_clear(PyObject *object) {
    PointwiseLayer *self = (PointwiseLayer *)object;
    Py_CLEAR(self->plain);
    Py_CLEAR(self->on_make);
    Py_CLEAR(self->on_made);
    Py_CLEAR(self->fuser);
    return 0;
}

static void layer_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PointwiseLayer *self = (PointwiseLayer *)object;
    PyObject_GC_UnTrack(object);
    (void)layer_clear(object);
    Py_CLEAR(self->name);
    PyMem_Free(self->trusts);
    PyMem_Free(self->known);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *get_trusts(PyObject *object, void *Py_UNUSED(closure)) {
    const PointwiseLayer *self = (PointwiseLayer *)object;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < self->n_trusts; i++) {
        PyObject *name = PyUnicode_FromString(self->trusts[i].trust == TRUST_EQUAL ? "equal" : "never");
        if (name == NULL || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyMemberDef layer_members[] = {
    {"plain", T_OBJECT_EX, offsetof(PointwiseLayer, plain), 0, "The forward that it calls."},
    {"on_make", T_OBJECT, offsetof(PointwiseLayer, on_make), 0, "Called before a tensor is made again, or None."},
    {"on_made", T_OBJECT, offsetof(PointwiseLayer, on_made), 0, "Called after it, or None."},
    {"fuser", T_OBJECT, offsetof(PointwiseLayer, fuser), 0,
     "What computes chains of functions as one: a Gpu; True: the host; a function (operands, dtype, shape, stride) -> "
     "result; "
     "or None: only single functions are computed again."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef layer_getset[] = {
    {"trusts", get_trusts, NULL,
     "Of each tensor that was made again and compared, whether it was 'equal', or is 'never' dropped again.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot layer_slots[] = {
    {Py_tp_doc,
     (void *)"PointwiseLayer(name, plain, least_bytes=..., compares=True, fuser=None)\n--\n\n"
             "Calls the forward of a layer so that results of pointwise functions, which other saved tensors "
             "give again, are not held until backward."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, layer_init},
    {Py_tp_call, layer_call},
    {Py_tp_dealloc, layer_dealloc},
    {Py_tp_traverse, layer_traverse},
    {Py_tp_clear, layer_clear},
    {Py_tp_members, layer_members},
    {Py_tp_getset, layer_getset},
    {0, NULL},
};

static PyType_Spec layer_spec = {
    .name = "memscale._core.PointwiseLayer",
    .basicsize = sizeof(PointwiseLayer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = layer_slots,
};

static PyMethodDef tensors_methods[] = {
    {"pack", tensors_pack, METH_O, pack_doc},
    {"__torch_function__", (PyCFunction)(void (*)(void))tensors_torch_function, METH_FASTCALL, function_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tensors_slots[] = {
    {Py_tp_doc, (void *)"The saved tensors of one call of a PointwiseLayer."},
    {Py_tp_dealloc, tensors_dealloc},
    {Py_tp_traverse, tensors_traverse},
    {Py_tp_methods, tensors_methods},
    {0, NULL},
};

static PyType_Spec tensors_spec = {
    .name = "memscale._core.PointwiseTensors",
    .basicsize = sizeof(PointwiseTensors),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = tensors_slots,
};

static PyType_Slot handle_slots[] = {
    {Py_tp_doc, (void *)"What autograd holds in place of a saved tensor that may have to be made again."},
    {Py_tp_dealloc, handle_dealloc},
    {0, NULL},
};

static PyType_Spec handle_spec = {
    .name = "memscale._core.PointwiseHandle",
    .basicsize = sizeof(PointwiseHandle),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = handle_slots,
};

int core_add_pointwise(PyObject *module, core_state *state) {
    PyTypeObject *layer = (PyTypeObject *)PyType_FromModuleAndSpec(module, &layer_spec, NULL);
    int status = layer == NULL ? -1 : PyModule_AddType(module, layer);
    Py_XDECREF((PyObject *)layer);
    if (status < 0) return -1;
    state->pointwise_tensors_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &tensors_spec, NULL);
    if (state->pointwise_tensors_type == NULL || PyModule_AddType(module, state->pointwise_tensors_type) < 0) return -1;
    state->pointwise_handle_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &handle_spec, NULL);
    return state->pointwise_handle_type == NULL ? -1 : 0;
}
