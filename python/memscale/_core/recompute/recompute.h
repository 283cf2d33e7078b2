/* recompute.h - recomputing a unit in backward instead of keeping what it saved: what the files of this folder share.
 *
 * Who owns what. Everything that one call of a unit keeps hangs on the autograd graph, and dies with it:
 *
 *     autograd graph
 *        |  one handle for each tensor that the unit saved
 *        v
 *     SavedHandle -----> SavedTensors -----> Call -----> Unit (its module, its forward, what a check learned)
 *                          :     |             |
 *                          :     |             +--> inputs: copies, whose tensors have no history
 *     its handles, weakly..:     |             +--> ModuleState: what the modules held, shared by calls
 *                                |             +--> versions of tensors, buffers, generators, switches
 *                                v
 *                       recomputed tensors, until backward takes them
 *
 * No arrow leads back to the graph. So a step that is given up frees everything without a collector; a handle that
 * died early is not recomputed for; and a call never keeps the graph before it alive.
 *
 * The files, in the order in which a saved tensor passes them: call.c (a unit is called), conditions.c and modules.c
 * (what the call depends on; owned.c: what its modules own), saved.c (its tensors are saved, and asked for in
 * backward), call.c (it is recomputed), kept.c (but for results that were kept). Besides: unit.c (Unit and Call as
 * Python sees them), check.c (the first run of a unit, which is checked), graphs.c (compiled code), randomness.c
 * (random generators outside of calls).
 */
#ifndef MS_RECOMPUTE_H
#define MS_RECOMPUTE_H

#include "core.h"
#include "tensors.h"

#include <pythread.h>

/* ---- modules.c: the state of a unit's modules ---- */

/* An attribute of a module. All borrowed from the dicts of its entry. */
typedef struct core_attribute {
    PyObject *key, *value;
    PyObject *copy;        /* of a container: what it held; else NULL */
    Py_ssize_t n_in_table; /* of an exact dict or an OrderedDict, such as tables of hooks: how much it held; else -1 */
} core_attribute;

typedef struct core_module_entry {
    PyObject *module;           /* owned */
    PyObject *captured;         /* owned: a copy of its dict, with copies of the containers in it */
    PyObject *originals;        /* owned: the same dict with the containers themselves; NULL if that would keep tensors
                                   alive */
    core_attribute *attributes; /* owned array: the items of `originals` in their order, to compare with; may be NULL */
    PyObject *own;              /* owned while the module has a copy: its own dict; else NULL */
} core_module_entry;

typedef struct ModuleState {
    PyObject_HEAD
    core_module_entry *entries;
    Py_ssize_t n, capacity;
    PyObject *parameters;     /* owned list */
    PyObject *tensors;        /* owned list: tensors that modules keep as plain attributes */
    PyObject *training_flags; /* owned bytes: one for each module */
    PyObject *devices;        /* owned tuple: of the parameters */
    PyObject *generators;     /* owned list: random generators that modules own; NULL: none */
    PyObject *unrestorable;   /* owned text: why what they own forbids a second run; NULL: it does not */
    int reusable;             /* serves later calls too, as long as the modules match it */
    int has_buffers;
    int mode; /* enum core_module_mode */
} ModuleState;

enum core_module_mode { MODULES_OWN = 0, MODULES_COPIED = 1, MODULES_IN_PLACE = 2 };

/* Capture a module and all below it. New reference. */
ModuleState *core_modules_capture(core_state *state, PyObject *root);

/* 1 if the modules are now as they were captured, 0 if not, -1 with an exception. */
int core_modules_match(ModuleState *self);

/* Give the modules the state that was captured: in place if `in_place` allows it and they have it already, else in
 * fresh copies. leave() undoes it, and every change in between; `*touched`, if not NULL, tells whether there
 * was one. -1 with an exception. */
int core_modules_enter(core_state *state, ModuleState *self, int in_place);
int core_modules_leave(core_state *state, ModuleState *self, int *touched);

/* ---- owned.c: what modules own that a run moves on ---- */

/* Add to a capture what is in the attributes of a module (a dict that belongs to the capture): random generators, and
 * whether there is something whose position cannot be put back. -1 with an exception. */
int core_owned_find(core_state *state, ModuleState *self, PyObject *module, PyObject *attributes);

/* ---- conditions.c: inputs, random generators, torch's switches ---- */

typedef struct core_inputs {
    PyObject *args, *kwargs; /* owned: copies */
    PyObject *tensors;       /* owned list: the tensors in them */
    PyObject *own;           /* owned list: those that are aliases, made for the call */
    PyObject *opaque;        /* owned: the type of the first object that cannot be looked into, or NULL */
} core_inputs;

int core_inputs_copy(core_state *state, PyObject *args, PyObject *kwargs, core_inputs *out);

typedef struct core_generator core_generator;

typedef struct core_randomness {
    core_generator *items;
    Py_ssize_t n;
} core_randomness;

/* Note where the generators of these devices (a tuple) are, those of the CPU, Python and numpy, and those that modules
 * own (a list, or NULL); with `by_api`, Python's and numpy's by their own functions instead of their memory. `out` is
 * empty on failure. */
int core_randomness_note(core_state *state, core_randomness *out, PyObject *devices, PyObject *owned, int by_api);
/* Did one of them move? -1 with an exception. */
int core_randomness_moved(core_state *state, const core_randomness *self);
/* Forget those that did not move; with `gpus_only`, only those of GPUs, and leave the others for later: putting one
 * back that did not move changes nothing, but setting one of a GPU has side effects (cuDNN). */
int core_randomness_keep_moved(core_state *state, core_randomness *self, int gpus_only);
/* Put them back where they were noted; `*now`, if not NULL, gets those that had to be, as they are now. */
int core_randomness_restore(core_state *state, const core_randomness *self, core_randomness *now);
int core_randomness_visit(const core_randomness *self, visitproc visit, void *arg);
void core_randomness_clear(core_randomness *self);
int core_randomness_has_api(const core_randomness *self); /* does it hold one that was noted by its own functions? */

/* The switches as a tuple, new reference; the same object as last time if nothing changed. */
PyObject *core_switches_note(core_state *state);
/* Set the switches as they were noted. `*now` gets what leave() sets back (owned); NULL if nothing had to be set. */
int core_switches_enter(core_state *state, PyObject *noted, PyObject **now);
int core_switches_leave(core_state *state, PyObject *noted, PyObject *now);

/* ---- randomness.c: the state of a generator as plain memory ---- */

int core_raw_equal(const core_raw *raw, PyObject *bytes);
void core_raw_put(const core_raw *raw, PyObject *bytes);
PyObject *core_raw_copy(core_raw *raw); /* as bytes, new reference; the last copy again if nothing changed */

/* Find out whether the state of these generators can be compared in place: sets state->raw_python, state->raw_numpy. */
int core_probe_python(core_state *state);
void core_probe_numpy(core_state *state, PyObject *global);

/* The bit generator of a numpy.random.RandomState, new reference; NULL, without an exception, if it has none. */
PyObject *core_numpy_bit_generator(core_state *state, PyObject *random_state);

/* ---- unit.c: the objects Unit and Call ---- */

/* What a recomputation of a unit needs, learned by a check, for one combination of its modules' training flags. */
typedef struct core_facts {
    PyObject *training_flags; /* owned bytes */
    PyObject *buffers;        /* owned set of (index of the module, name): to be put back; NULL: all of them */
    int draws_random_numbers;
    int draws_outside_torch; /* from Python's or numpy's generator */
    int leaves_no_trace;     /* in its modules: it can be recomputed in place */
} core_facts;

/* How the result of a function in a unit's forward fared when it was kept for the first time. */
enum core_trust { TRUST_UNKNOWN, TRUST_EQUAL, TRUST_NEVER };

typedef struct Unit {
    PyObject_HEAD
    PyObject *name;        /* str */
    PyObject *module;      /* the nn.Module */
    PyObject *plain;       /* its forward, as it was; its compiled call where it was compiled in place */
    PyObject *on_backward; /* called before a recomputation, or None */
    PyObject *on_end;      /* called after a recomputation, or None */
    PyObject *on_check;    /* called with 0 before the first run of a check, 1 before the second, 2 after it; or None */
    PyObject *put_inputs;  /* called with the call's own aliases of its inputs after its forward, or None: they may be
                              empty until bring() of what it returns is called */
    PyObject *on_save;     /* called for each tensor that autograd saves: see core_call_note_save(); or None */
    unsigned keeps;        /* enum ms_keep: the results that its recomputations need not compute */
    struct core_trusts {
        uint64_t fingerprint; /* of a function of kept.c that the forward calls */
        int trust;            /* enum core_trust */
    } *trusts;                /* owned array: those that were compared */
    Py_ssize_t n_trusts;
    char has_compiled; /* its forward calls compiled code, which no function mode may see */
    core_facts *facts; /* owned array */
    Py_ssize_t n_facts;
    ModuleState *state;      /* the last capture, if it may be used again */
    PyThread_type_lock lock; /* held during a recomputation; waited for without the GIL */
    unsigned long owner;     /* the thread that holds it, `depth` times */
    long depth;
} Unit;

/* Remember what was learned about a unit, in place of what is known for the same training flags. Takes over what
 * `facts` owns, also on failure. */
int core_unit_learn(Unit *unit, core_facts *facts);

/* What is known of a function by its fingerprint, and what a comparison has shown: one that has failed counts for good.
 */
int core_unit_trust(const Unit *unit, uint64_t fingerprint);
int core_unit_set_trust(Unit *unit, uint64_t fingerprint, int trust);

typedef struct Call {
    PyObject_HEAD
    Unit *unit; /* owned */
    core_inputs inputs;
    ModuleState *state;
    PyObject *devices; /* owned tuple: of inputs and parameters */
    PyObject *watched; /* owned list: tensors that must not change, in addition to the inputs */
    PyObject *buffers; /* owned list of (index, name, module, buffer, copy): to be put back; NULL: none */
    PyObject *switches;
    int64_t *versions; /* of the inputs, then of what is watched */
    char *grad_flags;  /* of the parameters */
    core_randomness random;
    PyObject *away;   /* owned: what put_inputs() returned; NULL: nothing */
    PyObject *graphs; /* owned list: core_graphs_between() of its first run; NULL: its unit calls no compiled code */
    int in_place;     /* its recomputations leave no trace in the modules */
    /* While entered: what leave() undoes. */
    unsigned entered;
    PyObject *random_lock; /* owned: the one that was taken */
    PyObject *switches_now;
    core_randomness random_now;
    char *grad_flags_now;
    int touched; /* did the last recomputation change its modules? */
} Call;

/* ---- call.c: one call of a unit ---- */

/* The devices of a list of tensors, added to a tuple of them, each once. Steals `devices`; new reference. */
PyObject *core_devices_add(core_state *state, PyObject *devices, PyObject *tensors);

/* Is one of these devices (a tuple) a GPU? -1 with an exception. */
int core_has_cuda(core_state *state, PyObject *devices);

/* The index of a device if it is a GPU (0 if it has none), -1 if it is not, -2 with an exception. */
Py_ssize_t core_cuda_index(core_state *state, PyObject *device);

/* A call: its inputs are copied, its modules captured, its devices found. New reference. */
Call *core_call_new(core_state *state, Unit *unit, PyObject *args, PyObject *kwargs);

/* Methods: Unit.run(args, kwargs), Call.run(args, kwargs). */
PyObject *core_unit_run(PyObject *unit, PyTypeObject *type, PyObject *const *args, Py_ssize_t n, PyObject *names);
PyObject *core_call_run(PyObject *call, PyObject *const *args, Py_ssize_t n);

/* The arguments of such a method: a tuple and a dict. 0 with a TypeError if they are not. */
int core_check_run_arguments(const char *name, PyObject *const *args, Py_ssize_t n);

/* Note all that must be put back or must not change. `wanted`: the buffers to be put back, or NULL for all of them. */
int core_call_observe(core_state *state, Call *self, PyObject *wanted);

/* Put back only the buffers of this set; watch the others from now on. */
int core_call_keep_buffers(core_state *state, Call *self, PyObject *kept);

/* Was an input, or something that is watched, changed in place since? -1 with an exception. */
int core_call_inputs_changed(core_state *state, Call *self);
int core_call_watched_changed(core_state *state, Call *self);

/* After the forward: let the unit's put_inputs() take the inputs. */
int core_call_put_inputs(Call *self);

/* After the forward of a unit that calls compiled code: note which graphs have run. */
int core_call_note_graphs(core_state *state, Call *self, PyObject *args, PyObject *kwargs, PyObject *output);

/* Put back all that the first run depended on, until leave(), which keeps an exception that is set. */
int core_call_enter(core_state *state, Call *self);
int core_call_leave(core_state *state, Call *self);

/* Recompute the unit under the conditions of its first run, with the collect() of its saved tensors as hook. -1 with an
 * exception. */
int core_call_recompute(core_state *state, Call *self, PyObject *saved);

/* Tell the unit's on_save(call, index, tensor), if there is one, that autograd saves this tensor as the index-th of the
 * call: in forward, and again in a recomputation, where the tensor takes the place of the one that forward saved. -1
 * with an exception. */
int core_call_note_save(Call *self, Py_ssize_t index, PyObject *tensor);

/* ---- graphs.c: graphs of torch.compile ---- */

/* The classes of the compiled functions between the inputs of a call and its output, as a new list, in an order that is
 * the same for the same graphs. */
PyObject *core_graphs_between(core_state *state, PyObject *args, PyObject *kwargs, PyObject *output);
int core_graphs_same(PyObject *a, PyObject *b);

/* ---- kept.c: results of a call that need not be computed again ---- */

typedef struct core_kept core_kept;

core_kept *core_kept_new(unsigned keeps);
void core_kept_free(core_kept *self);
int core_kept_visit(const core_kept *self, visitproc visit, void *arg);

/* In forward: the function is called after so many tensors were saved; one is saved during it; it has returned, or
 * raised (NULL, and its exception stays). -1 with an exception. */
int core_kept_open(core_state *state, core_kept *self, PyObject *function, PyObject *args, PyObject *kwargs,
                   Py_ssize_t n_saved);
int core_kept_save(core_state *state, core_kept *self, PyObject *tensor);
int core_kept_close(core_state *state, core_kept *self, const Unit *unit, PyObject *result, Py_ssize_t n_saved);

/* After the forward: what it has changed in place since is computed again. -1 with an exception. */
int core_kept_release_changed(core_state *state, core_kept *self);

/* Release what is not needed if only the first `n_alive` saved tensors can be asked for. */
void core_kept_release(core_kept *self, Py_ssize_t n_alive);

/* In place of a function. */
typedef struct core_found {
    Py_ssize_t index;
    uint64_t fingerprint;
    PyObject *result; /* owned */
    PyObject *saved;  /* owned list: what autograd would save */
} core_found;

/* In a recomputation: it begins; the function is called after so many tensors were saved: is its result there (1)? 0 if
 * it must be computed, -1 with an exception. */
void core_kept_rewind(core_kept *self);
void core_kept_end(core_kept *self); /* and it ends */
int core_kept_find(core_state *state, core_kept *self, PyObject *function, PyObject *args, PyObject *kwargs,
                   Py_ssize_t n_saved, core_found *out);

/* The function is not computed: let what else it does happen. -1 with an exception. */
int core_kept_skip(core_state *state, const core_kept *self, const core_found *found);

/* Is what was found equal to what the function returned and to what was saved, a list with None where nobody can ask
 * for it? -1 with an exception. */
int core_found_equals(core_state *state, const core_found *found, PyObject *result, PyObject *saved);
void core_found_clear(core_found *found);

/* ---- saved.c: the saved tensors of a call ---- */

/* Run a forward with the saved tensors as hook: the first run (pack), or a recomputation (collect). */
PyObject *core_saved_run(core_state *state, PyObject *saved, int is_first, PyObject *function, PyObject *args,
                         PyObject *kwargs);

/* New reference. With `keep` it holds the tensors, as plain autograd would, until core_saved_release(). */
PyObject *core_saved_new(core_state *state, Call *call, int keep);
void core_saved_release(PyObject *saved);
PyObject *core_saved_held(PyObject *saved);                 /* the tensors that it holds, as a new list */
int core_saved_changed(core_state *state, PyObject *saved); /* was one modified since? -1 with an exception */

/* ---- check.c ---- */

/* Method: Call.run_checked(args, kwargs). */
PyObject *core_call_run_checked(PyObject *call, PyObject *const *args, Py_ssize_t n);

/* ---- For module.c: what each file adds, and functions of the module ---- */

int core_add_saved(PyObject *module, core_state *state);
int core_add_modules(PyObject *module, core_state *state);
int core_add_randomness(PyObject *module, core_state *state);
int core_add_unit(PyObject *module, core_state *state);
PyObject *core_unpack(PyObject *module, PyObject *handle);

#endif
