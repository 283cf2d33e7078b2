/* status.h - how code of the library reports a failure.
 *
 * `return ms__fail(MS_E_INVALID, "why %d", n);` fills the calling thread's error record and yields the code. Nothing
 * here allocates, so running out of memory can be reported too.
 */
#ifndef MS_COMMON_STATUS_H
#define MS_COMMON_STATUS_H

#include <stdbool.h>

#include <memscale/memscale.h>

#if defined(__GNUC__)
#define MS__PRINTF(format_index, first_index) __attribute__((format(printf, format_index, first_index)))
#else
#define MS__PRINTF(format_index, first_index)
#endif

/* Record a failure of this thread and return `status`. */
ms_status ms__fail(ms_status status, const char *format, ...) MS__PRINTF(2, 3);

/* The same, with the number that belongs to the status: needed_bytes or byte_offset of ms_error_info. */
ms_status ms__fail_value(ms_status status, int64_t value, const char *format, ...) MS__PRINTF(3, 4);

/* Out of memory, for `n_bytes` wanted. */
ms_status ms__fail_memory(size_t n_bytes);

/* The number of this thread's last failure. */
int64_t ms__error_value(void);

#endif
