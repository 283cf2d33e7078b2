/* offloading.h - what layers save for backward, in host memory meanwhile: what the files of this folder share.
 *
 * Who owns what. As in recompute/, everything that one call of a unit keeps hangs on the autograd graph:
 *
 *     autograd graph
 *        |  one handle for each tensor that the unit saved
 *        v
 *     OffloadedHandle -----> OffloadedTensors -----> core_group -----> OffloadEngine -----> ms_offload, Gpu
 *                                 |                     |
 *                                 |                     +--> storages, while they are on the device
 *                                 +--> tensors that stay; of others their geometry and their version counter
 *
 * The engine knows its groups by pointers that it does not own; a group leaves it before it is freed. All of that
 * happens with the GIL held, which is the one lock that ms_offload_next asks for.
 *
 * The files: offload_engine.c (the object OffloadEngine), group.c (storages on their way), offloaded.c (the tensors
 * that a unit saves), offloaded_inputs.c (the inputs of a unit that is recomputed), shared_inputs.c (which of them
 * stay).
 */
#ifndef MS_OFFLOADING_H
#define MS_OFFLOADING_H

#include "core.h"
#include "tensors.h"

#include <pythread.h>

typedef struct core_group core_group;

/* When a group leaves the device and comes back: by the plan, so that what a step needs is the same every time, however
 * fast the copies are. It is let go of when `leaves_after` more units have run forward, which then wait for its copies,
 * and fetched when backward begins with the unit that ran `fetched_before` units later. `waits`: the unit's own copies
 * are waited for at once, both ways. */
typedef struct core_schedule {
    long long leaves_after, fetched_before;
    int waits;
} core_schedule;

typedef struct OffloadEngine {
    PyObject_HEAD
    ms_offload *core;         /* owned */
    PyObject *gpu;            /* owned, and kept from closing; NULL: the device is the host */
    PyObject *device;         /* owned torch.device: whose tensors it takes */
    PyObject *nothing;        /* owned: a tensor there without elements */
    Py_ssize_t index;         /* of the GPU, as torch counts them; -1 for the host */
    int64_t least_bytes;      /* smaller tensors stay: a copy of its own costs more than it frees */
    int64_t n_holders;        /* what count_users() says of a storage that only a group holds */
    int64_t clock;            /* units that have run forward */
    int is_short;             /* there was no memory to fetch something early: not again in this backward */
    int64_t n_late;           /* groups that were still away when they were needed first */
    core_group *first, *last; /* borrowed: those that are leaving, or that no mark has been set for; the oldest first */
    uint8_t *lates;           /* owned, by key: how often in a row its group was fetched when it was needed only */
    size_t n_lates;
    PyObject *shared, *suspected; /* owned dicts: shared_inputs.c */
} OffloadEngine;

/* The stream that the calling thread uses, as ms_offload takes it. -1 with an exception. */
int core_offload_stream(core_state *state, const OffloadEngine *engine, uint64_t *out);

/* Does it take this tensor? A dense one of torch's own, on its device, that is large enough. -1 with an exception. */
int core_offload_takes(core_state *state, const OffloadEngine *engine, PyObject *tensor);

/* ---- group.c: storages of one call ---- */

enum core_group_state {
    GROUP_OPEN,    /* its storages are being collected, or all of them stay */
    GROUP_LEAVING, /* copies to the host may be in flight; the storages are still there */
    GROUP_AWAY,    /* on the host alone */
    GROUP_COMING,  /* copies to the device may be in flight */
    GROUP_HERE     /* nothing is in flight; a storage that is missing can be fetched again */
};

/* The index-th of n tensors that the unit with this key was given. */
typedef struct core_place {
    int64_t key;
    Py_ssize_t n, index;
} core_place;

/* A point of backward at which groups are fetched. */
typedef struct core_mark {
    struct core_marked {
        PyObject *owner;   /* owned: of the group */
        core_group *group; /* its owner's */
    } *items;              /* owned; what is needed first comes first */
    Py_ssize_t n;
    int64_t task; /* the backward that passed last */
} core_mark;

typedef struct core_piece {
    PyObject *storage; /* owned; NULL while it is on the host alone */
    int64_t id;        /* of the storage that was added: unique while that lives */
    int64_t n_bytes;
    int64_t low, high;  /* the part of it that is used */
    Py_ssize_t n_users; /* tensors of it that may still be asked for */
    Py_ssize_t n_left;  /* of them, those that this backward has not asked for */
    int stays;          /* on the device: it is not copied */
    uint64_t stream;    /* that a tensor of it was saved on last */
    PyObject *views;    /* owned list: the tensors of it that this backward was given; NULL: none */
    core_place place;   /* of an input */
} core_piece;

struct core_group {
    OffloadEngine *engine; /* owned */
    PyObject *owner;       /* borrowed: the object that the group is part of */
    ms_offload_group *core;
    core_piece *pieces;
    Py_ssize_t n_pieces, capacity;
    core_schedule schedule;
    core_mark mark;             /* groups that are fetched when backward begins with this one */
    int state;                  /* enum core_group_state */
    int are_inputs;             /* who else holds a storage is seen when it is due to go; else before it is copied */
    int is_listed, is_marked;   /* in the engine's list; a later unit has a mark for it, or none will */
    uint64_t stream;            /* the last one that used the storages */
    int64_t task;               /* the backward that asked last */
    core_group *before, *after; /* borrowed: neighbours in the engine's list */
    int64_t left_at;            /* the engine's clock then */
    int64_t key;
    PyThread_type_lock lock;
};

/* For the groups that the schedule fetches here. -1 with an exception. */
int core_mark_set(core_mark *self, OffloadEngine *engine);
void core_mark_clear(core_mark *self);

/* Backward is here. -1 with an exception. */
int core_mark_passed(core_state *state, core_mark *self);

int core_group_open(core_group *self, OffloadEngine *engine, PyObject *owner, const core_schedule *schedule);

/* The index of a storage, which is added if it is new; -1 with an exception. */
Py_ssize_t core_group_add(core_state *state, core_group *self, PyObject *storage);

/* Take a tensor away: its storage, which is a piece, gets a user, and the alias, with which nobody else computes,
 * becomes empty. */
int core_group_empty(core_state *state, core_group *self, Py_ssize_t index, PyObject *alias, core_view *out);

/* Copy the pieces that do not stay to the host; `key` as in ms_offload_put(). If all of them stay, `core` is NULL
 * afterwards, and somebody else has to pass the group's mark. -1 with an exception. */
int core_group_put(core_state *state, core_group *self, int64_t key);

/* A unit has run forward: let go of groups. -1 with an exception. */
int core_offload_tick(core_state *state, OffloadEngine *engine);

/* Backward will need it soon: fetch it, if there is memory for it, and this stream will use it. -1 with an exception.
 */
int core_group_fetch_early(core_state *state, core_group *self);

/* The storage of a piece, which is there after what is queued on the current stream: borrowed; NULL with an exception.
 */
PyObject *core_group_need(core_state *state, core_group *self, Py_ssize_t index, int64_t task);

/* A user of the piece has asked for it in this backward (served), or will not ask any more (gone). */
void core_group_served(core_group *self, Py_ssize_t index);
void core_group_gone(core_group *self, Py_ssize_t index, int was_served);

/* After a call: let go of storages that nobody will ask for. */
void core_group_drop_unused(core_group *self);

/* How many hold a storage; -1 with an exception. */
int64_t core_count_users(core_state *state, PyObject *storage);

int core_group_visit(const core_group *self, visitproc visit, void *arg);
void core_group_clear(core_group *self);

/* ---- offloaded.c ---- */

/* One call of a unit's forward; `key` as in ms_offload_put(). */
typedef struct core_unit_call {
    PyObject *unit, *plain, *args, *kwargs; /* borrowed; `plain` runs its forward */
    long long key;
    core_schedule schedule;
} core_unit_call;

/* Run it, with what it saves copied to the host. */
PyObject *core_offload_run(core_state *state, OffloadEngine *engine, const core_unit_call *call);

/* Run the forward of a unit that keeps what it saves: where its backward begins, groups of others are fetched. */
PyObject *core_offload_run_kept(core_state *state, OffloadEngine *engine, PyObject *plain, PyObject *args,
                                PyObject *kwargs);

/* ---- offloaded_inputs.c ---- */

/* The same for a unit that is recomputed: a new object, whose bring() is called before that; None if there is nothing
 * to fetch. */
PyObject *core_offload_mark(core_state *state, OffloadEngine *engine);

/* Let the node of a result fetch what the mark says. It takes the mark's items. -1 with an exception. */
int core_offload_hook(core_state *state, core_mark *mark, PyObject *result);

/* Put the tensors of a list away, aliases that only a recomputation will use; a new object whose bring() puts them
 * back. `key` as in ms_offload_put(). */
PyObject *core_offload_inputs(core_state *state, OffloadEngine *engine, PyObject *tensors, int64_t key,
                              const core_schedule *schedule);

/* ---- shared_inputs.c ---- */

/* Is this input known to be held by others? -1 with an exception. */
int core_input_is_shared(const OffloadEngine *engine, const core_place *place);

/* When it was due to go: was it held by others? -1 with an exception. */
int core_input_note(OffloadEngine *engine, const core_place *place, int is_shared);

/* With another plan, all of that may be different. */
void core_inputs_forget(OffloadEngine *engine);

/* ---- For module.c ---- */

int core_add_offload_engine(PyObject *module, core_state *state);
int core_add_offloaded(PyObject *module, core_state *state);
int core_add_offloaded_inputs(PyObject *module, core_state *state); /* and marks */
PyObject *core_unpack_offloaded(PyObject *module, PyObject *handle);

#endif
