/* error_info.h - the numbers of the calling thread's last error, for tests. */
#ifndef TESTS_ERROR_INFO_H
#define TESTS_ERROR_INFO_H

#include <memscale/memscale.h>

static inline ms_error_info error_info(void) {
    ms_error_info info = {.struct_bytes = sizeof info};
    ms_status status = ms_error_get_info(&info);
    return status == MS_OK ? info : (ms_error_info){.needed_bytes = -1, .byte_offset = -1};
}

#endif
