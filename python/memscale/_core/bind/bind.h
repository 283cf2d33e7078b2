/* bind.h - the bindings of memscale.h: types and functions of the module, one file for each part of the library. */
#ifndef MS_BIND_H
#define MS_BIND_H

#include "core.h"

/* ---- Helpers ---- */

/* Put these fields of a struct of the library into a dict. -1 with an exception. */
int core_fields_into(PyObject *dict, const ms_field *fields, int64_t n_fields, const void *record);

/* A new dict of them. */
PyObject *core_fields_of(const ms_field *fields, int64_t n_fields, const void *record);

/* An object of one of our types, zeroed. NULL with an exception. */
void *core_allocate(PyTypeObject *type);

/* Free an object whose own members are freed already, and let go of its type. */
void core_free(PyObject *self);

/* Is it None, or not given? */
int core_is_none(PyObject *object);

/* Text of a Python string; NULL or -1 with an exception if it is not a string. */
const char *core_utf8(PyObject *object, size_t *out_n);

/* ---- Types; each file adds its own ---- */

int core_add_device(PyObject *module, core_state *state);
int core_add_request(PyObject *module, core_state *state);
int core_add_plan(PyObject *module, core_state *state);
int core_add_shape_plans(PyObject *module, core_state *state);
int core_add_profile(PyObject *module, core_state *state);
int core_add_gpu(PyObject *module, core_state *state);
int core_add_tables(PyObject *module, core_state *state);

/* The library's object inside one of Python's, borrowed; NULL with a TypeError if it is of another type. */
const ms_device *core_device_of(core_state *state, PyObject *object);
const ms_profile *core_profile_of(core_state *state, PyObject *object);
const ms_plan *core_plan_of(core_state *state, PyObject *object);

/* The library's object as one of Python's, which owns it; NULL with an exception where the status is an error. */
PyObject *core_wrap_profile(core_state *state, ms_status status, ms_profile *profile);
PyObject *core_wrap_plan(core_state *state, ms_status status, ms_plan *plan);

/* The step that a request is about, in the keywords of Request.plan(). What it borrows lives as long as the arguments.
 */
typedef struct core_step {
    ms_plan_request request;
    PyObject *profile, *half, *plain, *may_change; /* borrowed; NULL: not given */
} core_step;

/* Complete a request (py_request.c) by a step. -1 with an exception. */
int core_request_complete(core_state *state, PyObject *request, core_step *step, int fused);

/* Bytes by category as a list. */
PyObject *core_parts_of(const int64_t *parts);

/* ---- Functions of the module ---- */

PyObject *core_pointwise(PyObject *module, PyObject *args);
PyObject *core_pointwise_source(PyObject *module, PyObject *args);
PyObject *core_hw_detect(PyObject *module, PyObject *root);
PyObject *core_hw_from_json(PyObject *module, PyObject *text);
PyObject *core_find_units(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_hash64(PyObject *module, PyObject *data);
PyObject *core_checksum(PyObject *module, PyObject *data);
PyObject *core_gpu_models(PyObject *module, PyObject *unused);
PyObject *core_gpu_model(PyObject *module, PyObject *name);
PyObject *core_capability_has_bf16(PyObject *module, PyObject *capability);
PyObject *core_capability_has_fp16(PyObject *module, PyObject *capability);
PyObject *core_plan_from_json(PyObject *module, PyObject *text);
PyObject *core_next_batch(PyObject *module, PyObject *args, PyObject *keywords);
PyObject *core_next_changes(PyObject *module, PyObject *args, PyObject *keywords);
PyObject *core_budget_for_peak(PyObject *module, PyObject *object);
PyObject *core_host_limit(PyObject *module, PyObject *object);
PyObject *core_profile_from_traces(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_profile_from_watched(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_profile_from_json(PyObject *module, PyObject *text);
PyObject *core_profile_fit(PyObject *module, PyObject *list);
PyObject *core_run_in_children(PyObject *module, PyObject *args, PyObject *keywords);
PyObject *core_format_bytes(PyObject *module, PyObject *number);
PyObject *core_format_ns(PyObject *module, PyObject *number);
PyObject *core_format_place(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *core_fit_shapes(PyObject *module, PyObject *const *args, Py_ssize_t n);

#endif
