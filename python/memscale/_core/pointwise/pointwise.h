/* pointwise.h - layers that keep what they save for backward, but for results of pointwise functions. */
#ifndef MS_POINTWISE_H
#define MS_POINTWISE_H

#include "core.h"
#include "tensors.h"

/* How a tensor was made: function(*args, **kwargs), with these tensors at their places among the arguments. */
#define POINTWISE_MAX_OPERANDS 3

typedef struct core_operand {
    Py_ssize_t position;
    PyObject *weak;   /* owned weak reference, while nothing else is known to hold it; or NULL */
    PyObject *tensor; /* owned alias without history; or NULL */
    int64_t version, storage, storage_bytes;
    const void *dtype; /* which one: never dereferenced */
} core_operand;

typedef struct core_recipe {
    PyObject *function, *args, *kwargs; /* owned; NULL: there is none. None in place of the operands */
    core_operand operands[POINTWISE_MAX_OPERANDS];
    Py_ssize_t n_operands;
} core_recipe;

void core_recipe_clear(core_recipe *self);
int core_recipe_visit(const core_recipe *self, visitproc visit, void *arg);

/* May an operand be held at once? Returns 1 if its storage is held anyway, or small, 0 if not. */
typedef int (*core_holds)(const void *holder, const core_operand *operand);

/* Note how a function of the table is called. 1 if its result can be made again, else 0; -1 with an exception. */
int core_recipe_note(core_state *state, core_recipe *out, const core_function *call, core_holds holds,
                     const void *holder);

/* The cast of a tensor to this type. The same results. */
int core_recipe_of_cast(core_state *state, core_recipe *out, PyObject *tensor, PyObject *dtype);

/* A copy that holds all operands. 1; 0 if one of them has died or was changed since; -1 with an exception. */
int core_recipe_take(core_state *state, const core_recipe *from, core_recipe *out);

/* The first operand that was changed in place since, or is in other memory; NULL: none. -1 in `*status` with an
 * exception. */
const core_operand *core_recipe_changed(core_state *state, const core_recipe *self, int *status);

/* Make the tensor again. New reference. */
PyObject *core_recipe_make(core_state *state, const core_recipe *self);

/* A number that is the same for the same function on the same types of operands. */
uint64_t core_recipe_fingerprint(const core_recipe *self);

int core_add_pointwise(PyObject *module, core_state *state);
PyObject *core_unpack_pointwise(PyObject *module, PyObject *handle);

#endif
