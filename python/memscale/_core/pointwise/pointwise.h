/* pointwise.h - layers that keep what they save for backward, but for results of pointwise functions. */
#ifndef MS_POINTWISE_H
#define MS_POINTWISE_H

#include "core.h"
#include "tensors.h"

#define POINTWISE_MAX_OPERANDS MS_POINTWISE_MAX_INPUTS

typedef struct core_operand {
    Py_ssize_t position;
    PyObject *weak;   /* owned weak reference, while nothing else is known to hold it; or NULL */
    PyObject *tensor; /* owned alias without history; or NULL */
    PyObject *away;   /* owned: what others hold in place of `tensor`, see pointwise.c; or NULL */
    int64_t version, storage, storage_bytes;
    const void *dtype; /* which one: never dereferenced */
} core_operand;

/* How a tensor was made: function(*args, **kwargs), with the operands at their places among the arguments; or by a
 * program with the operands as its inputs (fused.c). */
typedef struct core_recipe {
    PyObject *function, *args, *kwargs; /* owned; function NULL: it is no call. None in place of the operands */
    ms_pointwise *program;              /* owned, PyMem_Free; NULL: it is no program */
    core_operand operands[POINTWISE_MAX_OPERANDS];
    Py_ssize_t n_operands;
} core_recipe;

void core_recipe_clear(core_recipe *self);
void core_operand_clear(core_operand *self);

/* Is there a recipe? */
static inline int core_recipe_is_set(const core_recipe *self) {
    return self->function != NULL || self->program != NULL;
}
int core_recipe_visit(const core_recipe *self, visitproc visit, void *arg);

/* May an operand be held at once? Returns 1 if its storage is held anyway, or small, 0 if not. */
typedef int (*core_holds)(const void *holder, const core_operand *operand);

/* Note a tensor as an operand, without its position. 1; 0 if it cannot be one; -1 with an exception. */
int core_operand_note(core_state *state, core_operand *out, PyObject *tensor);

/* Is the tensor still there, and as it was noted? -1 with an exception. */
int core_operand_is_here(core_state *state, const core_operand *self);

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

/* Make the tensor again, which looks like this; `fuser` as in PointwiseLayer. New reference. */
PyObject *core_recipe_make(core_state *state, const core_recipe *self, const core_view *view, PyObject *fuser);

/* A number that is the same for the same function on the same types of operands. */
uint64_t core_recipe_fingerprint(const core_recipe *self);

/* The current stream of a tensor's device as a number, 0 where there are none, and the device's; -1 with an exception.
 */
int64_t core_stream_of(core_state *state, PyObject *tensor, int64_t *device);

/* ---- Programs (fused.c) ---- */

/* What is known of tensors: the recipe of one that was noted and not changed since, or NULL (-1 with an exception); and
 * whether an operand may be held at once. */
typedef struct core_finder {
    int (*find)(core_state *state, const void *holder, PyObject *tensor, const core_recipe **out);
    core_holds holds;
    const void *holder;
} core_finder;

/* The result of a call, or of a cast that autocast made, as a program. 1; 0 if it is none; -1 with an exception. */
int core_fused_note(core_state *state, core_recipe *out, const core_function *call, PyObject *result,
                    const core_finder *finder);
int core_fused_cast(core_state *state, core_recipe *out, PyObject *tensor, PyObject *result, const core_finder *finder);

PyObject *core_fused_make(core_state *state, const core_recipe *self, const core_view *view, PyObject *fuser);
uint64_t core_fused_fingerprint(const core_recipe *self);

/* A hash of what it does, and one of the numbers in it. */
void core_fused_hashes(const core_recipe *self, uint64_t *structure, uint64_t *numbers);

int core_add_pointwise(PyObject *module, core_state *state);
PyObject *core_unpack_pointwise(PyObject *module, PyObject *handle);

#endif
