/* kept.c - results of a call that its recomputation need not compute again: of matrix products and of attention.
 *
 * While a unit's forward runs, and while it is recomputed, its SavedTensors stand on torch's stack of function modes
 * (saved.c), so every function of torch that Python calls passes by. In forward, the result of such a function is kept,
 * and for each tensor that autograd saves meanwhile it is noted how it follows from the operands: it is one of them, a
 * view of one, or the cast of one by autocast. In the recomputation the same function finds its result here. What
 * autograd would save is made of the recomputed operands, and the function is not computed.
 *
 * What always holds
 *   - A result is only used if the function, the layout of its operands, their parameters and the number of tensors
 *     that were saved before are as in forward, and if nothing has changed it in place since. Otherwise the function is
 *     computed: always right, at worst slower.
 *   - The first time, it is computed as well, and all of it is compared bit for bit (Unit.trusts). What differs is not
 *     kept any more. What was compared has a fingerprint: the functions so far with the types of their operands, and
 *     the rules. Another one is compared again.
 *   - A result dies when it was used, with the first recomputation, or when nothing that was saved after it can be
 *     asked for any more.
 */
#include "recompute.h"

enum rule_kind {
    RULE_OPERAND, /* an operand itself */
    RULE_VIEW,    /* a view of one */
    RULE_CAST,    /* a view of its cast */
    RULE_HELD     /* the function made it: `tensor` */
};

/* How a tensor that autograd saved follows from the operands. */
typedef struct rule {
    int kind; /* enum rule_kind */
    Py_ssize_t operand;
    core_view view;   /* of RULE_VIEW and RULE_CAST */
    PyObject *tensor; /* owned: a detached alias */
    int64_t version;
} rule;

typedef struct operand {
    core_view view;
    int64_t storage;     /* its number, while the function runs */
    PyObject *parameter; /* owned: the operand, if it is one */
} operand;

/* One call of a function in forward. */
typedef struct kept_result {
    PyObject *function; /* borrowed from the table of functions */
    int is_attention;
    Py_ssize_t n_before; /* tensors that were saved before */
    operand *operands;
    Py_ssize_t n_operands;
    rule *rules;
    Py_ssize_t n_rules, capacity;
    PyObject *output; /* owned: a detached alias; NULL: it is to be computed */
    int64_t version;
    uint64_t fingerprint;
    PyObject *generator; /* owned: that it drew from; NULL: none */
    int64_t n_drawn;
} kept_result;

struct core_kept {
    unsigned keeps; /* enum ms_keep */
    kept_result *results;
    Py_ssize_t n, capacity;
    Py_ssize_t n_held;       /* the results after these are released */
    Py_ssize_t next;         /* in the recomputation that runs */
    uint64_t so_far;         /* the fingerprint of all calls of forward */
    PyObject *uncast, *cast; /* owned: the operand that was cast last in this recomputation, parameters aside, and a
                              * view of its cast */
    PyObject *now;           /* owned list: operands of the function that runs in forward; NULL: it is not to be kept */
    PyObject *autocast; /* owned: the type that its operands are cast to, or None. While it runs torch does not tell */
};

core_kept *core_kept_new(unsigned keeps) {
    core_kept *self = PyMem_Calloc(1, sizeof *self);
    if (self == NULL) (void)PyErr_NoMemory();
    if (self != NULL) self->keeps = keeps;
    return self;
}

static void release(kept_result *r) {
    for (Py_ssize_t i = 0; i < r->n_operands; i++) {
        core_view_clear(&r->operands[i].view);
        Py_CLEAR(r->operands[i].parameter);
    }
    for (Py_ssize_t i = 0; i < r->n_rules; i++) {
        core_view_clear(&r->rules[i].view);
        Py_CLEAR(r->rules[i].tensor);
    }
    PyMem_Free(r->operands);
    PyMem_Free(r->rules);
    r->operands = NULL;
    r->rules = NULL;
    r->n_operands = r->n_rules = r->capacity = 0;
    Py_CLEAR(r->output);
    Py_CLEAR(r->generator);
}

void core_kept_free(core_kept *self) {
    if (self == NULL) return;
    for (Py_ssize_t i = 0; i < self->n; i++) release(&self->results[i]);
    PyMem_Free(self->results);
    Py_CLEAR(self->now);
    Py_CLEAR(self->autocast);
    core_kept_end(self);
    PyMem_Free(self);
}

int core_kept_visit(const core_kept *self, visitproc visit, void *arg) {
    for (Py_ssize_t i = 0; self != NULL && i < self->n; i++) {
        Py_VISIT(self->results[i].output);
        for (Py_ssize_t k = 0; k < self->results[i].n_rules; k++) Py_VISIT(self->results[i].rules[k].tensor);
    }
    return 0;
}

int core_kept_release_changed(core_state *state, core_kept *self) {
    for (Py_ssize_t i = 0; i < self->n; i++) {
        kept_result *r = &self->results[i];
        int64_t version = r->output == NULL ? r->version : core_tensor_version(state, r->output);
        if (version == -2) return -1;
        if (version != r->version) release(r);
    }
    return 0;
}

/* A product is not computed where its own operands are all that is needed: the recomputation ends before it. Attention
 * saves its result. */
void core_kept_release(core_kept *self, Py_ssize_t n_alive) {
    while (self->n_held > 0) {
        kept_result *r = &self->results[self->n_held - 1];
        if (r->n_before + (r->is_attention ? 0 : r->n_rules) < n_alive) return;
        release(r);
        self->n_held--;
    }
}

/* ---- Functions ---- */

/* The generator that attention draws from on a GPU, new reference; NULL, maybe with an exception. */
static PyObject *find_generator(core_state *state, PyObject *tensor) {
    PyObject *device = CORE_READ(state, tensor, device);
    Py_ssize_t index = device == NULL ? -2 : core_cuda_index(state, device);
    Py_XDECREF(device);
    PyObject *all = index < 0 ? NULL : PyObject_GetAttr(state->cuda, state->str_default_generators);
    PyObject *found = all == NULL ? NULL : PySequence_GetItem(all, index);
    Py_XDECREF(all);
    return found;
}

static int64_t offset_of(core_state *state, PyObject *generator) {
    PyObject *value = PyObject_CallMethodObjArgs(generator, state->str_get_offset, NULL);
    int64_t offset = value == NULL ? -1 : PyLong_AsLongLong(value);
    Py_XDECREF(value);
    return offset;
}

/* The rate of dropout, an argument of attention; below 0 with an exception. */
static double dropout_of(PyObject *args, PyObject *kwargs) {
    PyObject *value = kwargs == NULL ? NULL : PyDict_GetItemString(kwargs, "dropout_p"); /* borrowed */
    if (value == NULL && PyTuple_Size(args) > 4) value = PyTuple_GetItem(args, 4);
    return value == NULL ? 0 : PyFloat_AsDouble(value);
}

/* If it draws random numbers, how many must be known: a GPU's generator tells. 0: it cannot be kept. */
static int note_generator(core_state *state, kept_result *r, PyObject *args, PyObject *kwargs, PyObject *operands) {
    double dropout = r->is_attention ? dropout_of(args, kwargs) : 0;
    if (dropout == 0) return 1;
    if (PyErr_Occurred()) return -1;
    r->generator = find_generator(state, PyList_GetItem(operands, 0));
    if (r->generator == NULL) return PyErr_Occurred() ? -1 : 0;
    r->n_drawn = -offset_of(state, r->generator);
    return PyErr_Occurred() ? -1 : 1;
}

static int move_generator(core_state *state, const kept_result *r) {
    if (r->generator == NULL) return 0;
    int64_t now = offset_of(state, r->generator);
    PyObject *offset = PyErr_Occurred() ? NULL : PyLong_FromLongLong(now + r->n_drawn);
    PyObject *done =
        offset == NULL ? NULL : PyObject_CallMethodObjArgs(r->generator, state->str_set_offset, offset, NULL);
    Py_XDECREF(offset);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* ---- Operands ---- */

static int is_plain(const core_state *state, PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    return type == (PyTypeObject *)state->tensor_type || type == (PyTypeObject *)state->parameter_type;
}

/* The tensors among the arguments, as a new list; NULL, maybe with an exception: there are none, or others than
 * torch's own, or some that are to be conjugated or negated. */
static PyObject *find_operands(core_state *state, PyObject *args, PyObject *kwargs) {
    PyObject *both = PyTuple_Pack(2, args, kwargs == NULL ? Py_None : kwargs);
    PyObject *found = both == NULL ? NULL : core_find_tensors(state, both);
    Py_XDECREF(both);
    if (found == NULL) return NULL;
    int are_plain = PyList_Size(found) > 0;
    for (Py_ssize_t i = 0; are_plain == 1 && i < PyList_Size(found); i++) {
        PyObject *tensor = PyList_GetItem(found, i);
        int is_lazy = is_plain(state, tensor) ? core_is_lazy(state, tensor) : 1;
        are_plain = is_lazy < 0 ? -1 : !is_lazy;
    }
    if (are_plain != 1) Py_CLEAR(found);
    return found;
}

static int describe_operands(core_state *state, kept_result *r, PyObject *tensors) {
    Py_ssize_t n = PyList_Size(tensors);
    r->operands = PyMem_Calloc((size_t)n, sizeof *r->operands);
    if (r->operands == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        operand *o = &r->operands[i];
        PyObject *tensor = PyList_GetItem(tensors, i);
        r->n_operands = i; /* that are described */
        if (core_view_read(state, tensor, &o->view) < 0) return -1;
        r->n_operands = i + 1;
        o->storage = core_storage_id_of(state, tensor);
        if (o->storage == -1 && PyErr_Occurred()) return -1;
        if (Py_TYPE(tensor) == (PyTypeObject *)state->parameter_type) {
            Py_INCREF(tensor);
            o->parameter = tensor;
        }
    }
    return 0;
}

/* Are these the operands of forward, as far as that shows? -1 with an exception. */
static int same_operands(core_state *state, const kept_result *r, PyObject *tensors) {
    int same = PyList_Size(tensors) == r->n_operands;
    for (Py_ssize_t i = 0; same == 1 && i < r->n_operands; i++) {
        const operand *o = &r->operands[i];
        PyObject *tensor = PyList_GetItem(tensors, i);
        int is_parameter = Py_TYPE(tensor) == (PyTypeObject *)state->parameter_type;
        if (o->parameter != (is_parameter ? tensor : NULL)) return 0;
        core_view view = {0};
        same = core_view_read(state, tensor, &view) < 0 ? -1 : core_view_same(&o->view, &view);
        core_view_clear(&view);
    }
    return same;
}

/* ---- Fingerprints ---- */

static uint64_t mix(uint64_t fingerprint, const void *data, size_t n_bytes) {
    return ms_hash64(data, n_bytes, fingerprint);
}

/* The function, where it is called, and which parameters and kinds of operands it has: not their shapes. */
static void mix_call(core_kept *self, kept_result *r) {
    const int64_t call[] = {(int64_t)(intptr_t)r->function, r->n_before, r->n_operands};
    self->so_far = mix(self->so_far, call, sizeof call);
    for (Py_ssize_t i = 0; i < r->n_operands; i++) {
        const operand *o = &r->operands[i];
        const int64_t kind[] = {(int64_t)(intptr_t)o->view.dtype, PyTuple_Size(o->view.shape),
                                (int64_t)(intptr_t)o->parameter};
        self->so_far = mix(self->so_far, kind, sizeof kind);
    }
    r->fingerprint = self->so_far;
}

static void mix_rules(kept_result *r) {
    for (Py_ssize_t i = 0; i < r->n_rules; i++) {
        const int64_t how[] = {r->rules[i].kind, r->rules[i].kind == RULE_HELD ? -1 : r->rules[i].operand};
        r->fingerprint = mix(r->fingerprint, how, sizeof how);
    }
}

/* ---- Forward ---- */

static kept_result *add_result(core_kept *self) {
    if (self->n == self->capacity) {
        Py_ssize_t capacity = self->capacity == 0 ? 8 : self->capacity * 2;
        kept_result *grown = PyMem_Realloc(self->results, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            (void)PyErr_NoMemory();
            return NULL;
        }
        self->results = grown;
        self->capacity = capacity;
    }
    self->results[self->n] = (kept_result){0};
    return &self->results[self->n++];
}

static int note_autocast(core_state *state, core_kept *self, PyObject *tensor) {
    PyObject *old = self->autocast;
    self->autocast = PyObject_CallFunctionObjArgs(state->autocast_dtype, tensor, NULL);
    Py_XDECREF(old);
    return self->autocast == NULL ? -1 : 0;
}

int core_kept_open(core_state *state, core_kept *self, PyObject *function, PyObject *args, PyObject *kwargs,
                   Py_ssize_t n_saved) {
    kept_result *r = add_result(self);
    if (r == NULL) return -1;
    r->function = function;
    r->n_before = n_saved;
    r->is_attention = core_is_attention(state, function);
    unsigned wanted = r->is_attention ? MS_KEEP_ATTENTION : MS_KEEP_PRODUCTS;
    PyObject *tensors = self->keeps & wanted ? find_operands(state, args, kwargs) : NULL;
    if (tensors == NULL && PyErr_Occurred()) return -1;
    int can = tensors == NULL ? 0 : 1;
    if (can == 1 && describe_operands(state, r, tensors) < 0) can = core_cannot_tell();
    mix_call(self, r);
    if (can == 1) can = note_autocast(state, self, PyList_GetItem(tensors, 0)) < 0 ? -1 : 1;
    if (can == 1) can = note_generator(state, r, args, kwargs, tensors);
    if (can == 1)
        self->now = tensors;
    else
        Py_XDECREF(tensors);
    return can < 0 ? -1 : 0;
}

/* The only operand without a history that may have been cast to this; -1: none, or not the only one. One that is given
 * twice counts once. */
static Py_ssize_t find_uncast(core_state *state, const kept_result *r, PyObject *tensors, const core_view *base) {
    Py_ssize_t found = -1;
    for (Py_ssize_t i = 0; i < r->n_operands; i++) {
        const core_view *view = &r->operands[i].view;
        int same = view->dtype != base->dtype ? PyObject_RichCompareBool(view->shape, base->shape, Py_EQ) : 0;
        int has_history = same == 1 ? CORE_READ_BOOL(state, PyList_GetItem(tensors, i), requires_grad) : 1;
        if (same < 0 || has_history < 0) return -1;
        if (has_history || (found >= 0 && PyList_GetItem(tensors, i) == PyList_GetItem(tensors, found))) continue;
        if (found >= 0) return -1;
        found = i;
    }
    return found;
}

/* The operand that autocast made this base of; -1, maybe with an exception. Functions make other tensors without a
 * history, too: attention makes numbers of a mask, and scales a query. */
static Py_ssize_t find_cast(core_state *state, const core_kept *self, const kept_result *r, PyObject *base) {
    PyObject *tensors = self->now;
    PyObject *node = CORE_READ(state, base, grad_fn);
    Py_ssize_t found = -1;
    if (node == Py_None) {
        core_view view = {0};
        int status = core_view_read(state, base, &view);
        if (status == 0 && view.dtype == self->autocast) found = find_uncast(state, r, tensors, &view);
        core_view_clear(&view);
    } else if (node != NULL && Py_TYPE(node) == (PyTypeObject *)state->cast_node_type) {
        PyObject *number = PyObject_CallFunctionObjArgs(state->cast_operand, node, tensors, NULL);
        found = number == NULL ? -1 : PyLong_AsSsize_t(number);
        Py_XDECREF(number);
    }
    Py_XDECREF(node);
    return found;
}

/* Is it an operand, or a view of one? */
static int find_view(core_state *state, const kept_result *r, PyObject *tensors, PyObject *tensor, rule *out) {
    for (Py_ssize_t i = 0; i < r->n_operands; i++) {
        if (PyList_GetItem(tensors, i) != tensor) continue;
        out->kind = RULE_OPERAND;
        out->operand = i;
        return 1;
    }
    int64_t storage = core_storage_id_of(state, tensor);
    if ((storage == -1 && PyErr_Occurred()) || core_view_read(state, tensor, &out->view) < 0) return -1;
    for (Py_ssize_t i = 0; i < r->n_operands; i++) {
        if (r->operands[i].storage != storage || r->operands[i].view.dtype != out->view.dtype) continue;
        out->kind = RULE_VIEW;
        out->operand = i;
        return 1;
    }
    return 0;
}

static int find_rule(core_state *state, const core_kept *self, PyObject *tensor, rule *out) {
    const kept_result *r = &self->results[self->n - 1];
    int found = is_plain(state, tensor) ? find_view(state, r, self->now, tensor, out) : 0;
    if (found != 0) return found < 0 ? -1 : 0;
    PyObject *base = CORE_READ(state, tensor, _base);
    if (base == NULL) return -1;
    out->kind = RULE_CAST;
    out->operand = find_cast(state, self, r, base == Py_None ? tensor : base);
    Py_DECREF(base);
    if (out->operand >= 0) return 0;
    if (PyErr_Occurred()) return -1;
    out->kind = RULE_HELD;
    out->version = core_tensor_version(state, tensor);
    out->tensor = out->version == -2 ? NULL : PyObject_CallFunctionObjArgs(state->detach, tensor, NULL);
    return out->tensor == NULL ? -1 : 0;
}

static int add_rule(kept_result *r, const rule *fresh) {
    if (r->n_rules == r->capacity) {
        Py_ssize_t capacity = r->capacity == 0 ? 4 : r->capacity * 2;
        rule *grown = PyMem_Realloc(r->rules, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            (void)PyErr_NoMemory();
            return -1;
        }
        r->rules = grown;
        r->capacity = capacity;
    }
    r->rules[r->n_rules++] = *fresh;
    return 0;
}

int core_kept_save(core_state *state, core_kept *self, PyObject *tensor) {
    if (self->now == NULL) return 0;
    kept_result *r = &self->results[self->n - 1];
    rule fresh = {0};
    if (find_rule(state, self, tensor, &fresh) == 0 && add_rule(r, &fresh) == 0) return 0;
    core_view_clear(&fresh.view);
    Py_CLEAR(fresh.tensor);
    Py_CLEAR(self->now);
    return core_cannot_tell();
}

static int64_t bytes_of(core_state *state, PyObject *tensor) {
    PyObject *size = CORE_READ(state, tensor, nbytes);
    int64_t n = size == NULL ? -1 : PyLong_AsLongLong(size);
    Py_XDECREF(size);
    return n;
}

/* Is what the function made for itself no more than its kernel returns? What it copied before (padded heads, a mask of
 * another type) would be held in addition. -1 with an exception. */
static int holds_little(core_state *state, const kept_result *r, PyObject *output) {
    int64_t id = core_storage_id_of(state, output), most = bytes_of(state, output) / 4;
    for (Py_ssize_t i = 0; i < r->n_rules && !PyErr_Occurred(); i++) {
        PyObject *held = r->rules[i].tensor;
        if (r->rules[i].kind != RULE_HELD) continue;
        if (!r->is_attention) return 0;
        if (core_storage_id_of(state, held) != id && bytes_of(state, held) > most) return 0;
    }
    return PyErr_Occurred() ? -1 : 1;
}

/* Is it a new tensor, with a history, for which autograd saved what is in the rules? */
static int is_result(core_state *state, const kept_result *r, PyObject *result, Py_ssize_t n_saved) {
    if (result == NULL || r->n_rules == 0 || r->n_before + r->n_rules != n_saved || !is_plain(state, result)) return 0;
    int has_history = CORE_READ_BOOL(state, result, requires_grad);
    if (has_history != 1) return has_history;
    int64_t id = core_storage_id_of(state, result);
    for (Py_ssize_t i = 0; i < r->n_operands; i++)
        if (r->operands[i].storage == id) return PyErr_Occurred() ? -1 : 0;
    return PyErr_Occurred() ? -1 : holds_little(state, r, result);
}

static int keep_result(core_state *state, kept_result *r, PyObject *result, Py_ssize_t n_saved) {
    int can = is_result(state, r, result, n_saved);
    if (can != 1) return can;
    if (r->generator != NULL) r->n_drawn += offset_of(state, r->generator);
    r->version = core_tensor_version(state, result);
    if (PyErr_Occurred()) return -1;
    r->output = PyObject_CallFunctionObjArgs(state->detach, result, NULL);
    return r->output == NULL ? -1 : 1;
}

int core_kept_close(core_state *state, core_kept *self, const Unit *unit, PyObject *result, Py_ssize_t n_saved) {
    if (self->now == NULL) return 0;
    kept_result *r = &self->results[self->n - 1];
    core_pending pending = core_set_aside(); /* the function's own */
    int can = keep_result(state, r, result, n_saved);
    if (can < 0) can = core_cannot_tell();
    Py_CLEAR(self->now);
    mix_rules(r);
    if (can == 1 && core_unit_trust(unit, r->fingerprint) != TRUST_NEVER)
        self->n_held = self->n;
    else
        release(r);
    if (can < 0 && result != NULL) return -1;
    core_put_back(pending);
    return 0;
}

/* ---- Recomputation ---- */

void core_kept_rewind(core_kept *self) { self->next = 0; }

void core_kept_end(core_kept *self) {
    Py_CLEAR(self->uncast);
    Py_CLEAR(self->cast);
}

static int was_changed(core_state *state, PyObject *tensor, int64_t version) {
    int64_t now = core_tensor_version(state, tensor);
    return now == -2 ? -1 : now != version;
}

/* A view of an operand's cast, which queries, keys and values share. */
static PyObject *cast(core_state *state, core_kept *self, PyObject *from, const core_view *view) {
    core_view last = {0};
    int same = self->uncast != from                           ? 0
               : core_view_read(state, self->cast, &last) < 0 ? -1
                                                              : core_view_same(&last, view);
    core_view_clear(&last);
    if (same < 0) return NULL;
    if (!same) {
        core_kept_end(self);
        self->cast = core_view_call(state->cast_to, from, view);
        if (self->cast == NULL) return NULL;
        Py_INCREF(from);
        self->uncast = from;
    }
    Py_INCREF(self->cast);
    return self->cast;
}

/* The tensor that autograd would save. New reference; NULL, without an exception, if it was changed in place. */
static PyObject *apply(core_state *state, core_kept *self, const rule *how, PyObject *tensors) {
    PyObject *from = how->kind == RULE_HELD ? how->tensor : PyList_GetItem(tensors, how->operand);
    if (how->kind == RULE_CAST && Py_TYPE(from) != (PyTypeObject *)state->parameter_type)
        return cast(state, self, from, &how->view);
    if (how->kind == RULE_CAST) return core_view_call(state->cast_to, from, &how->view);
    if (how->kind == RULE_VIEW) return core_view_call(state->view_again, from, &how->view);
    if (how->kind == RULE_HELD && was_changed(state, from, how->version) != 0) return NULL;
    Py_INCREF(from);
    return from;
}

static PyObject *apply_all(core_state *state, core_kept *self, const kept_result *r, PyObject *tensors) {
    PyObject *made = PyList_New(0);
    for (Py_ssize_t i = 0; made != NULL && i < r->n_rules; i++) {
        PyObject *tensor = apply(state, self, &r->rules[i], tensors);
        if (tensor == NULL || PyList_Append(made, tensor) < 0) Py_CLEAR(made);
        Py_XDECREF(tensor);
    }
    return made;
}

int core_kept_find(core_state *state, core_kept *self, PyObject *function, PyObject *args, PyObject *kwargs,
                   Py_ssize_t n_saved, core_found *out) {
    out->index = self->next++;
    if (out->index >= self->n) return 0;
    const kept_result *r = &self->results[out->index];
    out->fingerprint = r->fingerprint;
    if (r->output == NULL || r->function != function || r->n_before != n_saved) return 0;
    int changed = was_changed(state, r->output, r->version);
    if (changed != 0) return changed < 0 ? -1 : 0;
    PyObject *tensors = find_operands(state, args, kwargs);
    int same = tensors == NULL ? 0 : same_operands(state, r, tensors);
    if (same == 1) out->saved = apply_all(state, self, r, tensors);
    Py_XDECREF(tensors);
    if (same != 1 || out->saved == NULL) return PyErr_Occurred() ? -1 : 0;
    out->result = PyObject_CallFunctionObjArgs(state->with_history, r->output, NULL);
    if (out->result == NULL) Py_CLEAR(out->saved);
    return out->result == NULL ? -1 : 1;
}

int core_kept_skip(core_state *state, const core_kept *self, const core_found *found) {
    return move_generator(state, &self->results[found->index]);
}

/* One and the same memory need not be compared. -1 with an exception. */
static int same_memory(core_state *state, PyObject *a, PyObject *b, const core_view views[2]) {
    int same = core_view_same(&views[0], &views[1]);
    if (same != 1) return same;
    int64_t id = core_storage_id_of(state, a);
    same = id == core_storage_id_of(state, b);
    return PyErr_Occurred() ? -1 : same;
}

static int same_tensors(core_state *state, PyObject *a, PyObject *b) {
    core_view views[2] = {{0}, {0}};
    int status = core_view_read(state, a, &views[0]) < 0 || core_view_read(state, b, &views[1]) < 0 ? -1 : 0;
    int same = status < 0 ? -1 : same_memory(state, a, b, views);
    if (same == 0) {
        same = PyObject_RichCompareBool(views[0].stride, views[1].stride, Py_EQ);
        if (same == 1) same = core_is_true(PyObject_CallFunctionObjArgs(state->same_bits, a, b, NULL));
    }
    core_view_clear(&views[0]);
    core_view_clear(&views[1]);
    return same;
}

int core_found_equals(core_state *state, const core_found *found, PyObject *result, PyObject *saved) {
    int same = is_plain(state, result) ? same_tensors(state, found->result, result) : 0;
    for (Py_ssize_t i = 0; same == 1 && i < PyList_Size(found->saved); i++) {
        PyObject *theirs = PyList_GetItem(saved, i);
        if (theirs != Py_None) same = same_tensors(state, PyList_GetItem(found->saved, i), theirs);
    }
    return same;
}

void core_found_clear(core_found *found) {
    Py_CLEAR(found->result);
    Py_CLEAR(found->saved);
}
