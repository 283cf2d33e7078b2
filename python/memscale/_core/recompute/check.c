/* check.c - the first run of a unit, which is checked: may the unit be recomputed, and what does that need?
 *
 * Everything that the forward saves is kept, as without MemScale. Then the unit is recomputed at once, and its outputs
 * are compared bit for bit. Only if they are equal are its tensors freed, and what was learned (core_facts)
 * serves its later calls. Otherwise the unit is left alone: the first run counts, and an exception or a change of its
 * recomputation has no effect.
 */
#include "recompute.h"

#define SMALL_BUFFER_BYTES (64 << 10) /* buffers up to this size are always put back, changed or not */

typedef struct check {
    core_state *state;
    Call *call; /* borrowed, as are args and kwargs */
    PyObject *args, *kwargs;
    PyObject *saved;  /* owned: the SavedTensors of the first run */
    PyObject *output; /* owned: of the first run */
    core_facts facts;
    PyObject *problem; /* owned: (text, is it a surprise?), or NULL */
} check;

/* ---- Problems ---- */

/* Why the unit cannot be recomputed. Only what a user did not expect deserves a warning. Steals `text`. */
static int set_problem_text(check *c, PyObject *text, int is_surprise) {
    c->problem = text == NULL ? NULL : PyTuple_Pack(2, text, is_surprise ? Py_True : Py_False);
    Py_XDECREF(text);
    return c->problem == NULL ? -1 : 0;
}

static int set_problem(check *c, const char *text, int is_surprise) {
    return set_problem_text(c, PyUnicode_FromString(text), is_surprise);
}

/* The recomputation raised: that is a problem, unless it asks to end the program. */
static int set_problem_raised(check *c) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    core_pending error = core_set_aside();
    PyErr_NormalizeException(&error.type, &error.value, &error.trace);
    PyObject *name = PyObject_GetAttr(error.type, c->state->str___name__);
    PyObject *text = name == NULL ? NULL : PyUnicode_FromFormat("recomputing it raised %S: %S", name, error.value);
    Py_XDECREF(name);
    Py_XDECREF(error.type);
    Py_XDECREF(error.value);
    Py_XDECREF(error.trace);
    return set_problem_text(c, text, 1);
}

/* ---- Who watches the unit ---- */

enum stage { FIRST_RUN = 0, SECOND_RUN = 1, CHECK_OVER = 2 };

/* Tell that a run begins, or that the second is over and compared; keeps an exception that is set. */
static int announce(check *c, enum stage stage) {
    PyObject *on_check = c->call->unit->on_check;
    if (on_check == NULL || on_check == Py_None) return 0;
    core_pending pending = core_set_aside();
    PyObject *result = PyObject_CallFunction(on_check, "i", (int)stage);
    Py_XDECREF(result);
    core_put_back(pending);
    return result == NULL ? -1 : 0;
}

/* ---- Comparing ---- */

/* The tensors in the inputs, as a new list. */
static PyObject *input_tensors(check *c) {
    PyObject *inputs = PyTuple_Pack(2, c->args, c->kwargs);
    PyObject *found = inputs == NULL ? NULL : core_find_tensors(c->state, inputs);
    Py_XDECREF(inputs);
    return found;
}

static int same_objects(PyObject *a, PyObject *b) {
    if (PyList_Size(a) != PyList_Size(b)) return 0;
    for (Py_ssize_t i = 0; i < PyList_Size(a); i++)
        if (PyList_GetItem(a, i) != PyList_GetItem(b, i)) return 0;
    return 1;
}

static int same_bits(core_state *state, PyObject *a, PyObject *b) {
    return core_is_true(PyObject_CallFunctionObjArgs(state->same_bits, a, b, NULL));
}

/* 1, 0, or -1 with an exception. */
static int all_same_bits(core_state *state, PyObject *a, PyObject *b) {
    int same = PyList_Size(a) == PyList_Size(b);
    for (Py_ssize_t i = 0; same == 1 && i < PyList_Size(a); i++)
        same = same_bits(state, PyList_GetItem(a, i), PyList_GetItem(b, i));
    return same;
}

/* ---- Did the first run change what a recomputation starts from? ---- */

/* Does the unit hold a recurrent layer with dropout between its levels, on a GPU? */
static int has_cudnn_dropout(check *c) {
    core_state *state = c->state;
    int found = core_has_cuda(state, c->call->devices);
    if (found != 1) return found;
    found = 0;
    for (Py_ssize_t i = 0; found == 0 && i < c->call->state->n; i++) {
        PyObject *module = c->call->state->entries[i].module;
        int is_recurrent = PyObject_IsInstance(module, state->recurrent_type);
        if (is_recurrent != 1) {
            found = is_recurrent;
            continue;
        }
        PyObject *dropout = PyObject_GetAttr(module, state->str_dropout);
        PyObject *levels = dropout == NULL ? NULL : PyObject_GetAttr(module, state->str_num_layers);
        found = levels == NULL ? -1 : PyFloat_AsDouble(dropout) > 0 && PyLong_AsLong(levels) > 1;
        Py_XDECREF(dropout);
        Py_XDECREF(levels);
    }
    return PyErr_Occurred() ? -1 : found;
}

/* Did the parameters of the modules change? Sets the problem. */
static int check_parameters(check *c) {
    ModuleState *now = core_modules_capture(c->state, c->call->unit->module);
    PyObject *before = c->call->state->parameters, *after = now == NULL ? NULL : now->parameters;
    int changed = after == NULL ? -1 : PyList_Size(before) != PyList_Size(after);
    if (changed == 0) changed = core_call_watched_changed(c->state, c->call);
    int replaced = 0;
    for (Py_ssize_t i = 0; changed == 0 && replaced == 0 && i < PyList_Size(after); i++) {
        PyObject *parameter = PyList_GetItem(after, i);
        if (parameter != PyList_GetItem(before, i)) replaced = CORE_READ_BOOL(c->state, parameter, is_leaf);
    }
    Py_XDECREF((PyObject *)now);
    if (changed < 0 || replaced < 0) return -1;
    if (changed) return set_problem(c, "it changes its parameters, or a tensor that it keeps", 0);
    return replaced ? set_problem(c, "it replaces its parameters", 0) : 0;
}

static int check_inputs(check *c, PyObject *before) {
    PyObject *after = input_tensors(c);
    int same = after == NULL ? -1 : same_objects(before, after);
    Py_XDECREF(after);
    if (same < 0) return -1;
    if (!same) return set_problem(c, "it changes the containers of its inputs", 0);
    int changed = core_call_inputs_changed(c->state, c->call);
    return changed > 0 ? set_problem(c, "it changes its inputs in place", 0) : changed;
}

/* Finds the first problem. `before`: the tensors in the inputs, before the run. */
static int find_change(check *c, PyObject *before) {
    if (check_inputs(c, before) < 0) return -1;
    if (c->problem == NULL && check_parameters(c) < 0) return -1;
    if (c->problem != NULL) return 0;
    int changed = core_saved_changed(c->state, c->saved);
    if (changed > 0) return set_problem(c, "it changes a tensor in place that its backward needs", 0);
    int hidden = changed < 0 ? -1 : has_cudnn_dropout(c);
    return hidden > 0 ? set_problem(c, "cuDNN keeps the random state of a recurrent layer's dropout to itself", 0)
                      : hidden;
}

/* ---- What a recomputation needs ---- */

static int64_t call_int64(PyObject *object, PyObject *method) {
    PyObject *value = PyObject_CallMethodObjArgs(object, method, NULL);
    int64_t number = value == NULL ? -1 : PyLong_AsLongLong(value);
    Py_XDECREF(value);
    return number;
}

/* Must a buffer, an entry of call->buffers, be put back? Small ones always, others if they changed, which batch norm
 * does without a new version. */
static int must_put_back(check *c, PyObject *entry) {
    core_state *state = c->state;
    PyObject *buffer = PyTuple_GetItem(entry, 3);
    int64_t n = call_int64(buffer, state->str_numel),
            n_bytes = n < 0 ? -1 : call_int64(buffer, state->str_element_size);
    if (n_bytes < 0) return PyErr_Occurred() ? -1 : 1;
    if (n * n_bytes <= SMALL_BUFFER_BYTES) return 1;
    PyObject *table = PyObject_GetAttr(PyTuple_GetItem(entry, 2), state->str__buffers);
    if (table == NULL) return -1;
    PyObject *now = PyDict_Check(table) ? PyDict_GetItemWithError(table, PyTuple_GetItem(entry, 1)) : NULL;
    Py_DECREF(table);
    if (now != buffer) return PyErr_Occurred() ? -1 : 1;
    int same = same_bits(state, buffer, PyTuple_GetItem(entry, 4));
    return same < 0 ? -1 : !same;
}

static int learn_buffers(check *c) {
    PyObject *all = c->call->buffers;
    c->facts.buffers = PySet_New(NULL);
    int status = c->facts.buffers == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && all != NULL && i < PyList_Size(all); i++) {
        PyObject *entry = PyList_GetItem(all, i);
        status = must_put_back(c, entry);
        if (status != 1) continue;
        PyObject *id = PyTuple_GetSlice(entry, 0, 2);
        status = id == NULL ? -1 : PySet_Add(c->facts.buffers, id);
        Py_XDECREF(id);
    }
    return status < 0 ? -1 : core_call_keep_buffers(c->state, c->call, c->facts.buffers);
}

static int learn(check *c) {
    c->facts.training_flags = c->call->state->training_flags;
    Py_INCREF(c->facts.training_flags);
    if (learn_buffers(c) < 0) return -1;
    c->facts.draws_random_numbers = c->call->random.n > 0;
    c->facts.draws_outside_torch = core_randomness_has_api(&c->call->random);
    return 0;
}

/* ---- The recomputation ---- */

/* The hooks that the inputs have, as a list of (tensor, copy of its table or None). */
static PyObject *note_hooks(check *c) {
    PyObject *tensors = input_tensors(c), *noted = PyList_New(0);
    int status = tensors == NULL || noted == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && i < PyList_Size(tensors); i++) {
        PyObject *tensor = PyList_GetItem(tensors, i);
        int needed = CORE_READ_BOOL(c->state, tensor, requires_grad);
        PyObject *hooks = needed == 1 ? PyObject_GetAttr(tensor, c->state->str__backward_hooks) : NULL;
        PyObject *copy = hooks != NULL && PyDict_Check(hooks) ? PyDict_Copy(hooks) : NULL;
        PyObject *entry = hooks == NULL ? NULL : PyTuple_Pack(2, tensor, copy == NULL ? Py_None : copy);
        if (PyErr_Occurred() || (entry != NULL && PyList_Append(noted, entry) < 0)) status = -1;
        Py_XDECREF(hooks);
        Py_XDECREF(copy);
        Py_XDECREF(entry);
    }
    Py_XDECREF(tensors);
    if (status < 0) Py_CLEAR(noted);
    return noted;
}

/* Remove the hooks that a tensor did not have before. */
static int remove_hooks_of(check *c, PyObject *tensor, PyObject *known) {
    PyObject *hooks = PyObject_GetAttr(tensor, c->state->str__backward_hooks);
    PyObject *keys = hooks != NULL && PyDict_Check(hooks) ? PyDict_Keys(hooks) : NULL;
    int status = hooks == NULL || (keys == NULL && PyErr_Occurred()) ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && keys != NULL && i < PyList_Size(keys); i++) {
        PyObject *key = PyList_GetItem(keys, i);
        int was_there = known == Py_None ? 0 : PyDict_Contains(known, key);
        if (was_there < 0 || (was_there == 0 && PyObject_DelItem(hooks, key) < 0)) status = -1;
    }
    Py_XDECREF(hooks);
    Py_XDECREF(keys);
    return status;
}

static int remove_new_hooks(check *c, PyObject *noted) {
    int status = 0;
    for (Py_ssize_t i = 0; status == 0 && i < PyList_Size(noted); i++) {
        PyObject *entry = PyList_GetItem(noted, i);
        status = remove_hooks_of(c, PyTuple_GetItem(entry, 0), PyTuple_GetItem(entry, 1));
    }
    return status;
}

/* The forward in a context of its own: code that collects outputs through a context variable must not get them twice.
 */
static PyObject *run_in_new_context(check *c, PyObject *pack) {
    PyObject *context = PyObject_CallNoArgs(c->state->context);
    PyObject *run = context == NULL ? NULL : PyObject_GetAttr(context, c->state->str_run);
    PyObject *first = run == NULL ? NULL : PyTuple_Pack(1, c->call->unit->plain);
    PyObject *args = first == NULL ? NULL : PySequence_Concat(first, c->args);
    PyObject *second = args == NULL ? NULL : core_run_hooked(c->state, pack, c->state->unpack, run, args, c->kwargs);
    Py_XDECREF(context);
    Py_XDECREF(run);
    Py_XDECREF(first);
    Py_XDECREF(args);
    return second;
}

/* Recompute with the real inputs and saved tensors of its own: a tensor that escapes, through a forward hook that
 * collects features, has its whole history. `*moved`: did the generators end in another state? NULL if it raised, which
 * is the problem or an exception. */
static PyObject *recompute(check *c, const core_randomness *after, int *moved) {
    PyObject *saved = core_saved_new(c->state, c->call, 0);
    PyObject *pack = saved == NULL ? NULL : PyObject_GetAttr(saved, c->state->str_pack), *second = NULL;
    if (pack != NULL && core_call_enter(c->state, c->call) == 0) {
        second = run_in_new_context(c, pack);
        *moved = second == NULL ? 0 : core_randomness_moved(c->state, after);
        if (*moved < 0) Py_CLEAR(second);
        if (second == NULL) (void)set_problem_raised(c);
        if (core_call_leave(c->state, c->call) < 0) Py_CLEAR(second);
        c->facts.leaves_no_trace = !c->call->touched;
    }
    Py_XDECREF(pack);
    Py_XDECREF(saved);
    return second;
}

/* What the unit's classes, files and objects hold, to be put back. New reference. */
static PyObject *note_elsewhere(check *c) {
    PyObject *modules = PyList_New(0), *noted = NULL;
    int status = modules == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; status == 0 && i < c->call->state->n; i++)
        status = PyList_Append(modules, c->call->state->entries[i].module);
    if (status == 0) noted = PyObject_CallFunctionObjArgs(c->state->note_elsewhere, modules, NULL);
    Py_XDECREF(modules);
    return noted;
}

/* Put it back. What changed is the problem. */
static int undo_elsewhere(check *c, PyObject *noted) {
    PyObject *changed = PyObject_CallMethodObjArgs(noted, c->state->str_undo, NULL);
    int status = changed == NULL ? -1 : 0;
    if (status == 0 && changed != Py_None) {
        Py_CLEAR(c->problem);
        status = set_problem_text(
            c, PyUnicode_FromFormat("it changes %S, and a recomputation would change that again", changed), 1);
    }
    Py_XDECREF(changed);
    return status;
}

/* The same, after which generators, hooks and what is shared with others are as after the first run. */
static PyObject *recompute_aside(check *c, int *moved) {
    core_randomness after;
    PyObject *hooks = note_hooks(c), *second = NULL, *elsewhere = hooks == NULL ? NULL : note_elsewhere(c);
    if (elsewhere == NULL ||
        core_randomness_note(c->state, &after, c->call->devices, c->call->state->generators, 1) < 0) {
        Py_XDECREF(hooks);
        Py_XDECREF(elsewhere);
        return NULL;
    }
    second = recompute(c, &after, moved);
    core_pending pending = core_set_aside();
    int status = remove_new_hooks(c, hooks);
    core_put_back(pending);
    pending = core_set_aside();
    if (core_randomness_restore(c->state, &after, NULL) < 0) status = -1;
    core_put_back(pending);
    pending = core_set_aside();
    if (undo_elsewhere(c, elsewhere) < 0) status = -1;
    core_put_back(pending);
    core_randomness_clear(&after);
    Py_DECREF(hooks);
    Py_DECREF(elsewhere);
    if (status < 0) Py_CLEAR(second);
    return second;
}

/* Of the tensors of both outputs; sets the problem. */
static int compare_outputs(check *c, PyObject *ours, PyObject *second) {
    PyObject *theirs = core_find_tensors(c->state, second);
    int same = theirs == NULL ? -1 : all_same_bits(c->state, ours, theirs);
    Py_XDECREF(theirs);
    return same == 0 ? set_problem(c, "recomputing it from the same input gave a different output", 1)
                     : (same < 0 ? -1 : 0);
}

static int run_and_compare(check *c, PyObject *ours) {
    int moved = 0, status = 0;
    PyObject *second = recompute_aside(c, &moved);
    if (second == NULL) return PyErr_Occurred() ? -1 : 0; /* it has set the problem */
    if (c->problem == NULL)                               /* else it changed something elsewhere */
        status = moved ? set_problem(c, "it drew a different number of random values when it was recomputed", 1)
                       : compare_outputs(c, ours, second);
    Py_DECREF(second);
    return status;
}

static int recompute_and_compare(check *c, PyObject *ours) {
    if (announce(c, SECOND_RUN) < 0) return -1;
    int status = run_and_compare(c, ours);
    return announce(c, CHECK_OVER) < 0 ? -1 : status;
}

static int compare(check *c) {
    PyObject *ours = core_find_tensors(c->state, c->output);
    if (ours == NULL) return -1;
    int status = PyList_Size(ours) > 0
                     ? recompute_and_compare(c, ours)
                     : set_problem(c, "its output has no tensors that a recomputation could be compared with", 0);
    Py_DECREF(ours);
    return status;
}

/* ---- All of it ---- */

/* The first run, keeping everything. */
static int run_kept(check *c) {
    core_state *state = c->state;
    Call *call = c->call;
    if (core_call_observe(state, call, NULL) < 0) return -1;
    c->saved = core_saved_new(state, call, 1);
    PyObject *pack = c->saved == NULL ? NULL : PyObject_GetAttr(c->saved, state->str_pack);
    core_randomness_clear(&call->random);
    if (pack != NULL && core_randomness_note(state, &call->random, call->devices, call->state->generators, 1) == 0 &&
        announce(c, FIRST_RUN) == 0)
        c->output = core_run_hooked(state, pack, state->unpack, call->unit->plain, c->args, c->kwargs);
    Py_XDECREF(pack);
    if (c->output == NULL || core_call_note_graphs(state, call, c->args, c->kwargs, c->output) < 0) return -1;
    return core_randomness_keep_moved(state, &call->random, 0);
}

/* If nothing is wrong, frees the saved tensors, stores the facts in the unit and lets the inputs go. */
static int settle(check *c) {
    if (c->problem != NULL) return 0;
    core_saved_release(c->saved);
    int status = core_unit_learn(c->call->unit, &c->facts);
    c->facts = (core_facts){0};
    return status < 0 ? -1 : core_call_put_inputs(c->call);
}

/* The unit owns what a second run would move on: it runs once, as without MemScale. */
static PyObject *run_plainly(check *c) {
    PyObject *result = NULL, *held = PyList_New(0);
    if (held != NULL) c->output = PyObject_Call(c->call->unit->plain, c->args, c->kwargs);
    if (c->output != NULL) {
        Py_INCREF(c->call->state->unrestorable); /* set_problem_text() takes it over */
        if (set_problem_text(c, c->call->state->unrestorable, 0) == 0)
            result = PyTuple_Pack(3, c->output, c->problem, held);
    }
    Py_XDECREF(held);
    Py_CLEAR(c->output);
    Py_CLEAR(c->problem);
    return result;
}

PyObject *core_call_run_checked(PyObject *object, PyObject *const *args, Py_ssize_t n) {
    if (!core_check_run_arguments("run_checked", args, n)) return NULL;
    check c = {
        .state = core_state_of_type(Py_TYPE(object)), .call = (Call *)object, .args = args[0], .kwargs = args[1]};
    if (c.call->state->unrestorable != NULL) return run_plainly(&c);
    PyObject *before = input_tensors(&c), *held = NULL, *result = NULL;
    int status = before == NULL ? -1 : run_kept(&c);
    if (status == 0) held = core_saved_held(c.saved);
    status = held == NULL ? -1 : find_change(&c, before);
    if (status == 0 && c.problem == NULL) status = learn(&c);
    if (status == 0 && c.problem == NULL) status = compare(&c);
    if (status == 0) status = settle(&c);
    if (status == 0) result = PyTuple_Pack(3, c.output, c.problem == NULL ? Py_None : c.problem, held);
    Py_XDECREF(before);
    Py_XDECREF(held);
    Py_XDECREF(c.saved);
    Py_XDECREF(c.output);
    Py_XDECREF(c.problem);
    Py_XDECREF(c.facts.training_flags);
    Py_XDECREF(c.facts.buffers);
    return result;
}
