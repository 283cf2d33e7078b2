/* status.c - status codes with their texts, and the per-thread error record.
 *
 * The record is plain thread-local storage: no allocation, no lock, nothing to free when a thread ends.
 */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "structs.h"

#define MESSAGE_BYTES 1024
#define NO_VALUE (-1)

static _Thread_local struct {
    char message[MESSAGE_BYTES];
    ms_status status;
    int64_t value; /* what it means depends on the status: ms_error_info */
} last_error;

const char *ms_version(void) { return MS_VERSION_STRING; }

int64_t ms_version_number(void) { return MS_VERSION_NUMBER; }

const char *ms_status_name(ms_status status) {
    switch (status) {
#define NAME_CASE(name, code, text)                                                                                    \
    case code:                                                                                                         \
        return #name;
        MS_ERROR_LIST(NAME_CASE)
#undef NAME_CASE
    default:
        return "MS_E_UNKNOWN";
    }
}

const char *ms_status_text(ms_status status) {
    switch (status) {
#define TEXT_CASE(name, code, text)                                                                                    \
    case code:                                                                                                         \
        return text;
        MS_ERROR_LIST(TEXT_CASE)
#undef TEXT_CASE
    default:
        return "unknown error";
    }
}

const char *ms_error_message(void) { return last_error.message; }

int64_t ms__error_value(void) { return last_error.value; }

ms_status ms_error_get_info(ms_error_info *out) {
    const ms_error_info info = {.needed_bytes =
                                    last_error.status == MS_E_BUDGET && last_error.value > 0 ? last_error.value : 0,
                                .byte_offset = last_error.status == MS_E_PARSE ? last_error.value : -1};
    return ms__struct_write(MS__STRUCT(ms_error_info), &info, out);
}

void ms_error_clear(void) {
    last_error.message[0] = '\0';
    last_error.status = MS_OK;
    last_error.value = NO_VALUE;
}

void ms_free(void *memory) { free(memory); }

static void record(ms_status status, int64_t value, const char *format, va_list args) {
    last_error.status = status;
    last_error.value = value;
    if (vsnprintf(last_error.message, sizeof last_error.message, format, args) < 0) last_error.message[0] = '\0';
}

ms_status ms__fail(ms_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    record(status, NO_VALUE, format, args);
    va_end(args);
    return status;
}

ms_status ms__fail_value(ms_status status, int64_t value, const char *format, ...) {
    va_list args;
    va_start(args, format);
    record(status, value, format, args);
    va_end(args);
    return status;
}

ms_status ms__fail_memory(size_t n_bytes) {
    return ms__fail(MS_E_NO_MEMORY, "could not allocate %zu bytes of host memory", n_bytes);
}
