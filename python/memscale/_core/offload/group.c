/* group.c - the storages of one call: to the host, and back (offloading.h).
 *
 * What always holds
 *   - A storage is dropped only when no copy of it is in flight after what is queued on `stream`.
 *   - While a backward runs, a storage is held until all tensors that may need it were served, or are gone. Another
 *     request fetches it again: always right, at worst slower.
 *   - One thread at a time fetches. The lock is taken without waiting while the GIL is held.
 */
#include "offloading.h"

#include <string.h>

int64_t core_count_users(core_state *state, PyObject *storage) {
    PyObject *value = PyObject_CallFunctionObjArgs(state->count_users, storage, NULL);
    int64_t n = value == NULL ? -1 : PyLong_AsLongLong(value);
    Py_XDECREF(value);
    return n;
}

int core_group_open(core_group *self, OffloadEngine *engine, PyObject *owner, const core_schedule *schedule) {
    self->lock = PyThread_allocate_lock();
    if (self->lock == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    Py_INCREF((PyObject *)engine);
    self->engine = engine;
    self->owner = owner;
    self->schedule = *schedule;
    self->task = self->mark.task = CORE_NO_TASK;
    return 0;
}

/* A number that a storage tells of itself. -1 with an exception, which no number is. */
static int64_t ask(PyObject *storage, PyObject *method) {
    PyObject *value = PyObject_CallMethodObjArgs(storage, method, NULL);
    int64_t number = value == NULL ? -1 : PyLong_AsLongLong(value);
    Py_XDECREF(value);
    return number;
}

Py_ssize_t core_group_add(core_state *state, core_group *self, PyObject *storage) {
    int64_t id = core_storage_id(state, storage);
    if (id == -1 && PyErr_Occurred()) return -1;
    for (Py_ssize_t i = self->n_pieces; i-- > 0;)
        if (self->pieces[i].id == id && self->pieces[i].storage != NULL)
            return i; /* it is held, so no other one has its address */
    if (self->n_pieces == self->capacity) {
        Py_ssize_t capacity = self->capacity == 0 ? 16 : self->capacity * 2;
        core_piece *grown = PyMem_Realloc(self->pieces, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            (void)PyErr_NoMemory();
            return -1;
        }
        self->pieces = grown;
        self->capacity = capacity;
    }
    int64_t n_bytes = ask(storage, state->str_nbytes);
    if (n_bytes < 0) return -1;
    Py_INCREF(storage);
    self->pieces[self->n_pieces] = (core_piece){.storage = storage, .id = id, .n_bytes = n_bytes, .low = n_bytes};
    return self->n_pieces++;
}

/* ---- What is used ---- */

/* The part of its storage that a tensor uses. */
static int add_span(core_state *state, PyObject *tensor, const core_view *view, core_piece *piece) {
    int64_t n_bytes = ask(tensor, state->str_element_size), last = view->offset;
    for (Py_ssize_t i = 0; i < PyTuple_Size(view->shape); i++)
        last += (PyLong_AsLongLong(PyTuple_GetItem(view->shape, i)) - 1) *
                PyLong_AsLongLong(PyTuple_GetItem(view->stride, i));
    if (PyErr_Occurred()) return -1;
    piece->low = view->offset * n_bytes < piece->low ? view->offset * n_bytes : piece->low;
    piece->high = (last + 1) * n_bytes > piece->high ? (last + 1) * n_bytes : piece->high;
    return 0;
}

int core_group_empty(core_state *state, core_group *self, Py_ssize_t index, PyObject *alias, core_view *out) {
    if (core_view_read(state, alias, out) < 0 || add_span(state, alias, out, &self->pieces[index]) < 0) return -1;
    if (PyObject_SetAttr(alias, state->str_data, self->engine->nothing) < 0) return -1;
    self->pieces[index].n_users++;
    return 0;
}

/* ---- Letting go ---- */

static void drop(core_piece *piece) {
    if (!piece->stays) Py_CLEAR(piece->storage);
    Py_CLEAR(piece->views);
}

static void join_leaving(core_group *self) {
    OffloadEngine *engine = self->engine;
    self->state = GROUP_LEAVING;
    self->is_marked = self->schedule.waits || self->schedule.fetched_before <= 0;
    self->left_at = engine->clock;
    self->after = NULL;
    self->before = engine->last;
    *(engine->last == NULL ? &engine->first : &engine->last->after) = self;
    engine->last = self;
    self->is_listed = 1;
}

static void leave_list(core_group *self) {
    OffloadEngine *engine = self->engine;
    if (!self->is_listed) return;
    *(self->before == NULL ? &engine->first : &self->before->after) = self->after;
    *(self->after == NULL ? &engine->last : &self->after->before) = self->before;
    self->before = self->after = NULL;
    self->is_listed = 0;
}

/* From LEAVING to another state. */
static void quit_leaving(core_group *self, int state) {
    self->state = state;
    if (self->is_marked) leave_list(self);
}

static void set_marked(core_group *self) {
    self->is_marked = 1;
    if (self->state != GROUP_LEAVING) leave_list(self);
}

/* Nothing is in flight any more, for `stream`. In a forked child there never was. */
static void settle(core_group *self) {
    if (self->state != GROUP_LEAVING && self->state != GROUP_COMING) return;
    if (ms_offload_settle(self->core, self->stream) != MS_OK) ms_error_clear();
    if (self->state == GROUP_LEAVING) quit_leaving(self, GROUP_HERE);
    self->state = GROUP_HERE;
}

/* Their device memory is free: the copies are done, or `stream` waits for them. */
static void let_go(core_group *self) {
    PyObject *owner = self->owner;
    Py_INCREF(owner);
    if (self->state == GROUP_LEAVING) quit_leaving(self, GROUP_AWAY);
    self->state = GROUP_AWAY;
    for (Py_ssize_t i = 0; i < self->n_pieces; i++) drop(&self->pieces[i]);
    Py_DECREF(owner);
}

/* Nobody can ask for anything of it any more: its host memory goes now, since a mark may own it for longer. One without
 * `core` that is leaving is put by another thread at this moment. */
static void finish_unused(core_group *self) {
    for (Py_ssize_t i = 0; i < self->n_pieces; i++)
        if (self->pieces[i].n_users > 0) return;
    if (self->core == NULL) return;
    settle(self);
    leave_list(self);
    ms_offload_free(self->core);
    self->core = NULL;
    self->state = GROUP_HERE;
    for (Py_ssize_t i = 0; i < self->n_pieces; i++) drop(&self->pieces[i]);
    core_mark_clear(&self->mark);
}

void core_group_served(core_group *self, Py_ssize_t index) {
    core_piece *piece = &self->pieces[index];
    if (--piece->n_left == 0 && self->state == GROUP_HERE) drop(piece);
}

void core_group_gone(core_group *self, Py_ssize_t index, int was_served) {
    core_piece *piece = &self->pieces[index];
    piece->n_users--;
    if (!was_served) piece->n_left--;
    int is_in_flight = !piece->stays && (self->state == GROUP_LEAVING || self->state == GROUP_COMING);
    if (piece->n_users > 0) return;
    Py_CLEAR(piece->views);
    if (!is_in_flight) Py_CLEAR(piece->storage); /* else once the copies are done */
    finish_unused(self);
}

void core_group_drop_unused(core_group *self) {
    int is_in_flight = self->state == GROUP_LEAVING || self->state == GROUP_COMING;
    for (Py_ssize_t i = 0; i < self->n_pieces; i++)
        if (self->pieces[i].n_users == 0 && (self->pieces[i].stays || !is_in_flight)) Py_CLEAR(self->pieces[i].storage);
}

int core_group_visit(const core_group *self, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)self->engine);
    for (Py_ssize_t i = 0; i < self->n_pieces; i++) {
        Py_VISIT(self->pieces[i].storage);
        Py_VISIT(self->pieces[i].views);
    }
    return 0;
}

/* The engine forgets the group before anything of it goes. */
void core_group_clear(core_group *self) {
    settle(self);
    if (self->engine != NULL) leave_list(self);
    ms_offload_free(self->core);
    self->core = NULL;
    core_mark_clear(&self->mark);
    Py_ssize_t n = self->n_pieces;
    self->n_pieces = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_CLEAR(self->pieces[i].storage);
        Py_CLEAR(self->pieces[i].views);
    }
    PyMem_Free(self->pieces);
    self->pieces = NULL;
    if (self->lock != NULL) PyThread_free_lock(self->lock);
    self->lock = NULL;
    Py_CLEAR(self->engine);
}

/* ---- To the host ---- */

/* Does nobody else hold its storage? -1 with an exception. */
static int is_alone(core_state *state, const OffloadEngine *engine, const core_piece *piece) {
    PyObject *storage = piece->storage; /* it may go while Python code runs */
    Py_INCREF(storage);
    int64_t n_holders = core_count_users(state, storage);
    Py_DECREF(storage);
    return n_holders < 0 ? -1 : n_holders == engine->n_holders;
}

/* Is it worth a copy? Not if somebody else holds it, which a copy would not free; not if it is small, or if little of
 * it is used, which belongs to something larger. -1 with an exception. */
static int is_worth_it(core_state *state, const core_group *self, const core_piece *piece) {
    const OffloadEngine *engine = self->engine;
    int64_t n_used = piece->high - piece->low;
    if (piece->stays || piece->n_users == 0 || n_used < piece->n_bytes / 2 || n_used < engine->least_bytes) return 0;
    int64_t n_bytes = ask(piece->storage, state->str_nbytes);
    if (n_bytes != piece->n_bytes) return n_bytes < 0 ? -1 : 0; /* it was given another size since */
    return self->are_inputs ? 1 : is_alone(state, engine, piece);
}

/* The pieces that are copied; all others stay. -1 with an exception. */
static Py_ssize_t list_pieces(core_state *state, core_group *self, ms_offload_piece *out) {
    Py_ssize_t n = 0;
    for (Py_ssize_t i = 0; i < self->n_pieces; i++) {
        core_piece *piece = &self->pieces[i];
        int moves = piece->storage == NULL ? 0 : is_worth_it(state, self, piece);
        int64_t address = moves > 0 ? ask(piece->storage, state->str_data_ptr) : 0;
        if (moves < 0 || (address == -1 && PyErr_Occurred())) return -1;
        piece->stays = address == 0;
        out[i] = (ms_offload_piece){.address = (uint64_t)address, .n_bytes = piece->stays ? 0 : piece->n_bytes};
        n += !piece->stays;
    }
    return n;
}

/* An input that somebody else holds stays: it would be there twice in backward. Who does so is noted, so that it is not
 * copied for nothing in later steps. */
static int keep_shared(core_state *state, core_group *self) {
    for (Py_ssize_t i = 0; self->are_inputs && i < self->n_pieces; i++) {
        core_piece *piece = &self->pieces[i];
        if (piece->stays || piece->storage == NULL) continue;
        int is_own = is_alone(state, self->engine, piece);
        if (is_own < 0 || core_input_note(self->engine, &piece->place, !is_own) < 0) return -1;
        if (i < self->n_pieces && self->pieces[i].storage != NULL) self->pieces[i].stays = !is_own;
    }
    return 0;
}

/* A group that has to be gone; NULL: none. One without `core` is put by another thread at this moment. */
static core_group *find_due(const OffloadEngine *engine) {
    core_group *group = engine->first;
    while (group != NULL && (group->state != GROUP_LEAVING || group->core == NULL ||
                             engine->clock - group->left_at <= group->schedule.leaves_after))
        group = group->after;
    return group;
}

/* The unit that should have had a mark did not run. */
static void forget_unmarked(OffloadEngine *engine) {
    for (core_group *group = engine->first, *next; group != NULL; group = next) {
        next = group->after;
        if (engine->clock - group->left_at > group->schedule.fetched_before) set_marked(group);
    }
}

/* The stream that the storages were put on waits for their copies: it is the one that torch gives their memory to. */
int core_offload_tick(core_state *state, OffloadEngine *engine) {
    ms_status status = MS_OK;
    core_group *due;
    engine->clock++;
    engine->is_short = 0;
    forget_unmarked(engine);
    while (status == MS_OK && (due = find_due(engine)) != NULL) {
        PyObject *owner = due->owner; /* Python code may run, and drop it */
        Py_INCREF(owner);
        int failed = keep_shared(state, due) < 0;
        int is_due = !failed && due->state == GROUP_LEAVING && due->core != NULL;
        if (is_due) status = ms_offload_settle(due->core, due->stream);
        if (is_due && status == MS_OK) let_go(due);
        Py_DECREF(owner);
        if (failed) return -1;
    }
    if (status == MS_OK) return 0;
    (void)core_raise(state, status);
    return -1;
}

/* Taking host memory may take long: without the GIL. Another thread may let go of the group before this returns. */
static ms_status put(core_group *self, const ms_offload_piece *pieces, int64_t key) {
    ms_offload *core = self->engine->core;
    ms_offload_group *made = NULL;
    ms_status status;
    uint64_t stream = self->stream;
    int64_t n_pieces = (int64_t)self->n_pieces;
    join_leaving(self);
    Py_BEGIN_ALLOW_THREADS
    status = ms_offload_put(core, key, pieces, n_pieces, stream, self, &made);
    Py_END_ALLOW_THREADS
    self->core = made;
    if (status != MS_OK) {
        quit_leaving(self, GROUP_OPEN);
        set_marked(self);
    }
    return status;
}

static void keep_all(core_group *self) {
    for (Py_ssize_t i = 0; i < self->n_pieces; i++) self->pieces[i].stays = 1;
}

/* A storage that was made or saved on another stream: torch must not give its memory away before this one is done. */
static int note_storage(core_state *state, const core_piece *piece) {
    PyObject *done = PyObject_CallFunctionObjArgs(state->note_stream, piece->storage, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int note_others(core_state *state, const core_group *self) {
    for (Py_ssize_t i = 0; i < self->n_pieces; i++) {
        const core_piece *piece = &self->pieces[i];
        int is_other = piece->n_users > 0 && piece->stream != self->stream;
        if (!piece->stays && is_other && note_storage(state, piece) < 0) return -1;
    }
    return 0;
}

/* Nothing else runs during the copies. Whoever called the unit still holds its inputs; they go after the next unit. */
static int wait_now(core_state *state, core_group *self) {
    ms_status status = ms_offload_settle(self->core, self->stream);
    self->schedule.leaves_after = 1;
    if (status == MS_OK && !self->are_inputs) let_go(self);
    if (status == MS_OK) return 0;
    (void)core_raise(state, status);
    return -1;
}

int core_group_put(core_state *state, core_group *self, int64_t key) {
    if (core_mark_set(&self->mark, self->engine) < 0) return -1;
    self->key = key;
    ms_offload_piece *pieces = PyMem_Calloc((size_t)self->n_pieces + 1, sizeof *pieces);
    if (pieces == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t n = list_pieces(state, self, pieces);
    int failed = n < 0 || (n > 0 && core_offload_stream(state, self->engine, &self->stream) < 0) ||
                 (n > 0 && note_others(state, self) < 0);
    ms_status status = failed || n == 0 ? MS_OK : put(self, pieces, key);
    PyMem_Free(pieces);
    if (failed) return -1;
    if (status == MS_E_NO_MEMORY) { /* the engine counts it */
        ms_error_clear();
        keep_all(self);
        return 0;
    }
    if (status != MS_OK) {
        (void)core_raise(state, status);
        return -1;
    }
    return self->state == GROUP_LEAVING && self->schedule.waits ? wait_now(state, self) : 0;
}

/* ---- Back ---- */

static int lock_group(core_group *self, int waits) {
    if (PyThread_acquire_lock(self->lock, NOWAIT_LOCK)) return 1;
    if (!waits) return 0;
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(self->lock, WAIT_LOCK);
    Py_END_ALLOW_THREADS
    return 1;
}

/* A piece that has to be fetched: all that may be asked for, or that one. */
static int is_wanted(const core_group *self, Py_ssize_t i, Py_ssize_t only) {
    const core_piece *piece = &self->pieces[i];
    return piece->storage == NULL && piece->n_users > 0 && (only < 0 || i == only);
}

/* Memory for the pieces that are wanted; their addresses, 0 for the others. */
static int make_room(core_state *state, core_group *self, Py_ssize_t only, PyObject **made, uint64_t *addresses) {
    for (Py_ssize_t i = 0; i < self->n_pieces; i++) {
        if (!is_wanted(self, i, only)) continue;
        PyObject *size = PyLong_FromLongLong(self->pieces[i].n_bytes);
        if (size == NULL) return -1;
        made[i] = PyObject_CallFunctionObjArgs(state->new_storage, size, self->engine->device, NULL);
        Py_DECREF(size);
        int64_t address = made[i] == NULL ? -1 : ask(made[i], state->str_data_ptr);
        if (address == -1 && PyErr_Occurred()) return -1;
        addresses[i] = (uint64_t)address;
    }
    return 0;
}

/* The storages that are here were used on another stream so far. */
static int note_stream(core_state *state, const core_group *self, uint64_t stream) {
    for (Py_ssize_t i = 0; self->stream != stream && i < self->n_pieces; i++)
        if (self->pieces[i].storage != NULL && note_storage(state, &self->pieces[i]) < 0) return -1;
    return 0;
}

/* The lock is held. */
static int fetch(core_state *state, core_group *self, Py_ssize_t only, uint64_t stream) {
    size_t n = (size_t)self->n_pieces;
    PyObject **made = PyMem_Calloc(n, sizeof *made);
    uint64_t *addresses = PyMem_Calloc(n, sizeof *addresses);
    int status = made == NULL || addresses == NULL ? -1 : make_room(state, self, only, made, addresses);
    if (made == NULL || addresses == NULL) (void)PyErr_NoMemory();
    ms_status code = status == 0 ? ms_offload_fetch(self->core, addresses, stream) : MS_OK;
    if (code != MS_OK) {
        (void)core_raise(state, code);
        status = -1;
    }
    if (status == 0) status = note_stream(state, self, stream);
    if (status == 0) {
        self->state = GROUP_COMING;
        self->stream = stream;
    }
    for (size_t i = 0; made != NULL && i < n; i++) {
        if (status == 0 && made[i] != NULL)
            self->pieces[i].storage = made[i];
        else
            Py_XDECREF(made[i]);
    }
    PyMem_Free(made);
    PyMem_Free(addresses);
    return status;
}

/* No memory now is no error: it is fetched when it is needed. */
static int forgive(OffloadEngine *engine, const core_state *state) {
    int is_known = PyErr_ExceptionMatches(PyExc_MemoryError) || PyErr_ExceptionMatches(PyExc_RuntimeError) ||
                   PyErr_ExceptionMatches(state->error);
    if (!is_known) return -1;
    PyErr_Clear();
    engine->is_short = 1;
    return 0;
}

int core_group_fetch_early(core_state *state, core_group *self) {
    uint64_t stream = 0;
    PyObject *owner = self->owner;
    if (self->state != GROUP_AWAY || self->core == NULL || self->schedule.waits || self->engine->is_short) return 0;
    Py_INCREF(owner);
    int status = core_offload_stream(state, self->engine, &stream);
    if (status == 0 && self->stream == stream && lock_group(self, 0)) {
        if (self->state == GROUP_AWAY && fetch(state, self, -1, stream) < 0) status = forgive(self->engine, state);
        PyThread_release_lock(self->lock);
    }
    Py_DECREF(owner);
    return status;
}

/* ---- Marks ---- */

static int is_due_here(const core_group *group, int64_t clock) {
    return !group->is_marked && clock - group->left_at == group->schedule.fetched_before;
}

int core_mark_set(core_mark *self, OffloadEngine *engine) {
    Py_ssize_t n = 0;
    for (const core_group *group = engine->first; group != NULL; group = group->after)
        n += is_due_here(group, engine->clock);
    core_mark_clear(self);
    if (n == 0) return 0;
    self->items = PyMem_Calloc((size_t)n, sizeof *self->items);
    if (self->items == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    for (core_group *group = engine->last, *before; group != NULL; group = before) {
        before = group->before;
        if (!is_due_here(group, engine->clock)) continue;
        Py_INCREF(group->owner);
        self->items[self->n++] = (struct core_marked){.owner = group->owner, .group = group};
        set_marked(group);
    }
    return 0;
}

void core_mark_clear(core_mark *self) {
    struct core_marked *items = self->items;
    Py_ssize_t n = self->n;
    *self = (core_mark){.task = CORE_NO_TASK};
    for (Py_ssize_t i = 0; i < n; i++) Py_DECREF(items[i].owner);
    PyMem_Free(items);
}

int core_mark_passed(core_state *state, core_mark *self) {
    if (self->n == 0) return 0;
    int64_t task = core_current_task(state);
    if (task == CORE_NO_TASK && PyErr_Occurred()) return -1;
    if (self->task == task) return 0;
    self->task = task;
    for (Py_ssize_t i = 0; i < self->n; i++)
        if (core_group_fetch_early(state, self->items[i].group) < 0) return -1;
    return 0;
}

/* ---- Learning ---- */

#define OFTEN 2 /* times in a row */

/* Was the group still away when backward came to it? */
static int note_arrival(const core_group *self, int is_late) {
    OffloadEngine *engine = self->engine;
    size_t key = (size_t)self->key;
    if (key >= engine->n_lates) {
        size_t n = key + 64;
        uint8_t *grown = PyMem_Realloc(engine->lates, n);
        if (grown == NULL) {
            (void)PyErr_NoMemory();
            return -1;
        }
        memset(grown + engine->n_lates, 0, n - engine->n_lates);
        engine->lates = grown;
        engine->n_lates = n;
    }
    if (engine->lates[key] < OFTEN) engine->lates[key] = is_late ? (uint8_t)(engine->lates[key] + 1) : 0;
    return 0;
}

/* Where backward runs in another order than the plan foresees, a group is fetched when the one is used that was used
 * before it the last time. */
static int fetch_learned(core_state *state, const core_group *self) {
    core_group *next = ms_offload_next(self->core, 1);
    int is_known = next != NULL && (size_t)next->key < self->engine->n_lates;
    if (!is_known || self->engine->lates[next->key] < OFTEN) return 0;
    return core_group_fetch_early(state, next);
}

/* ---- Use ---- */

/* Let `stream` wait for the copies; the first request of a backward tells the engine where backward is. */
static int wait_for(core_state *state, core_group *self, uint64_t stream, int is_first) {
    ms_status status = is_first ? ms_offload_use(self->core, stream) : ms_offload_settle(self->core, stream);
    if (status != MS_OK) {
        (void)core_raise(state, status);
        return -1;
    }
    if (self->state == GROUP_LEAVING) quit_leaving(self, GROUP_HERE);
    self->state = GROUP_HERE;
    if (note_stream(state, self, stream) < 0) return -1;
    self->stream = stream;
    return 0;
}

/* The lock is held. */
static int bring(core_state *state, core_group *self, Py_ssize_t index, int64_t task, uint64_t stream) {
    int is_first = self->task != task;
    int is_away = self->state == GROUP_AWAY || (self->state == GROUP_HERE && self->pieces[index].storage == NULL);
    self->engine->n_late += is_first && is_away;
    if (is_first && !self->schedule.waits && note_arrival(self, is_away) < 0) return -1;
    if (is_away && fetch(state, self, is_first ? -1 : index, stream) < 0) return -1;
    int has_to_wait = is_first || self->state != GROUP_HERE || self->stream != stream;
    if (has_to_wait && wait_for(state, self, stream, is_first) < 0) return -1;
    if (!is_first) return 0;
    self->task = task;
    for (Py_ssize_t i = 0; i < self->n_pieces; i++) {
        self->pieces[i].n_left = self->pieces[i].n_users;
        if (self->pieces[i].n_users == 0) drop(&self->pieces[i]);
    }
    return core_mark_passed(state, &self->mark) < 0 ? -1 : fetch_learned(state, self);
}

PyObject *core_group_need(core_state *state, core_group *self, Py_ssize_t index, int64_t task) {
    uint64_t stream = 0;
    if (self->core == NULL || self->pieces[index].stays) return self->pieces[index].storage;
    if (core_offload_stream(state, self->engine, &stream) < 0) return NULL;
    (void)lock_group(self, 1);
    int is_there = self->task == task && self->state == GROUP_HERE && self->stream == stream;
    int status = is_there && self->pieces[index].storage != NULL ? 0 : bring(state, self, index, task, stream);
    PyThread_release_lock(self->lock);
    return status < 0 ? NULL : self->pieces[index].storage;
}
