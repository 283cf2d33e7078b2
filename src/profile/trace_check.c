/* trace_check.c - checks a trace before anything is read from it: traces come from outside. */
#include "step.h"
#include "trace.h"

#define MAX_ITEMS ((int64_t)1 << 31)
#define MAX_BYTES (INT64_MAX / 1024)

static ms_status check_array(const void *items, int64_t n, const char *what) {
    if (n < 0 || n > MAX_ITEMS || (items == NULL && n > 0))
        return ms__fail(MS_E_INVALID, "trace: %s missing or out of range", what);
    return MS_OK;
}

static ms_status check_names(const ms_trace *trace) {
    for (int64_t i = 0; i < trace->n_names; i++) {
        if (trace->names[i] == NULL) return ms__fail(MS_E_INVALID, "trace: name %lld is NULL", (long long)i);
        for (int64_t j = 0; trace->scratch_bytes != NULL && j < MS_TRACE_SCRATCHES; j++)
            if (trace->scratch_bytes[i * MS_TRACE_SCRATCHES + j] > MAX_BYTES)
                return ms__fail(MS_E_INVALID, "trace: the bytes of name %lld are out of range", (long long)i);
    }
    return MS_OK;
}

static ms_status check_ops(const ms_trace *trace) {
    for (int64_t i = 0; i < trace->n_ops; i++) {
        const ms_trace_op *op = &trace->ops[i];
        if (op->name < 0 || op->name >= trace->n_names || op->n_inputs < 0 || op->n_outputs < 0 || op->first < 0 ||
            op->first > trace->n_operands || op->n_inputs > trace->n_operands - op->first ||
            op->n_outputs > trace->n_operands - op->first - op->n_inputs)
            return ms__fail(MS_E_INVALID, "trace: operation %lld is out of range", (long long)i);
    }
    for (int64_t i = 0; i < trace->n_operands; i++) {
        const ms_trace_operand *t = &trace->operands[i];
        if (t->storage < -1 || t->storage >= trace->n_storages || t->element_bytes < 0 ||
            t->element_bytes > MS__MAX_ELEMENT_BYTES || t->n_dims < 0)
            return ms__fail(MS_E_INVALID, "trace: operand %lld is out of range", (long long)i);
    }
    return MS_OK;
}

static bool is_in_range(const ms_trace *trace, const ms_trace_event *event) {
    switch (event->kind) {
    case MS_TRACE_OP:
        return event->a >= 0 && event->a < trace->n_ops;
    case MS_TRACE_ALLOC:
        return event->a >= 0 && event->a < trace->n_storages && event->b >= 0 && event->b <= MAX_BYTES;
    case MS_TRACE_FREE:
        return event->a >= 0 && event->a < trace->n_storages && (event->b == 0 || event->b == 1);
    case MS_TRACE_GRADIENT:
    case MS_TRACE_INPUT:
        return event->a >= 0 && event->a < trace->n_storages;
    case MS_TRACE_PHASE:
        return event->a >= 0 && event->a < MS_N_PHASES;
    case MS_TRACE_UNIT:
    case MS_TRACE_RECOMPUTE:
        return event->a >= -1;
    case MS_TRACE_SAVE:
        return event->a >= -1 && event->a < trace->n_storages && event->b >= 0;
    case MS_TRACE_FUNCTION:
        return event->a >= 0 && event->a <= MS_KEEP_PRODUCTS && event->b >= -1 && event->b < trace->n_storages;
    default:
        return false;
    }
}

ms_status ms__trace_check(const ms_trace *trace) {
    ms_status status = check_array(trace->events, trace->n_events, "events");
    if (status == MS_OK) status = check_array(trace->ops, trace->n_ops, "operations");
    if (status == MS_OK) status = check_array(trace->operands, trace->n_operands, "operands");
    if (status == MS_OK) status = check_array(trace->names, trace->n_names, "names");
    if (status == MS_OK) status = check_array(trace->kinds, trace->n_storages, "storages");
    if (status != MS_OK) return status;
    if (trace->n_events > MS__STEP_MAX_EVENTS)
        return ms__fail(MS_E_LIMIT, "trace: %lld events are too many", (long long)trace->n_events);
    for (int64_t i = 0; i < trace->n_events; i++)
        if (!is_in_range(trace, &trace->events[i]))
            return ms__fail(MS_E_INVALID, "trace: event %lld is out of range", (long long)i);
    status = check_names(trace);
    return status == MS_OK ? check_ops(trace) : status;
}
