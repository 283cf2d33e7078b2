/* structs.c - copies between a caller's structures and ours: structs.h. */
#include "structs.h"

#include <string.h>

/* A size that was never set may be anything. Larger sizes are refused, since that many bytes are read and written. */
#define MAX_BYTES ((uint64_t)1 << 16)

static uint64_t bytes_of(const void *theirs) {
    uint64_t n_bytes;
    memcpy(&n_bytes, theirs, sizeof n_bytes);
    return n_bytes;
}

ms_status ms__struct_check(ms__struct s, const void *theirs) {
    if (theirs == NULL) return ms__fail(MS_E_INVALID, "the pointer to %s is NULL", s.name);
    uint64_t n_bytes = bytes_of(theirs);
    if (n_bytes >= s.first_bytes && n_bytes <= MAX_BYTES) return MS_OK;
    return ms__fail(MS_E_INVALID, "%s.struct_bytes is %llu, but must be at least %zu: set it to sizeof(%s)", s.name,
                    (unsigned long long)n_bytes, s.first_bytes, s.name);
}

ms_status ms__struct_read(ms__struct s, const void *theirs, void *ours) {
    ms_status status = ms__struct_check(s, theirs);
    if (status != MS_OK) return status;
    size_t n_theirs = (size_t)bytes_of(theirs);
    for (size_t i = s.n_bytes; i < n_theirs; i++)
        if (((const unsigned char *)theirs)[i] != 0)
            return ms__fail(MS_E_VERSION,
                            "%s: the field at byte %zu is set, but version %s of the library does not know it", s.name,
                            i, MS_VERSION_STRING);
    uint64_t n_ours = s.n_bytes;
    memset(ours, 0, s.n_bytes);
    memcpy(ours, theirs, n_theirs < s.n_bytes ? n_theirs : s.n_bytes);
    memcpy(ours, &n_ours, sizeof n_ours);
    return MS_OK;
}

ms_status ms__struct_write(ms__struct s, const void *ours, void *theirs) {
    ms_status status = ms__struct_check(s, theirs);
    if (status != MS_OK) return status;
    uint64_t n_bytes = bytes_of(theirs);
    size_t n_theirs = (size_t)n_bytes, n_known = n_theirs < s.n_bytes ? n_theirs : s.n_bytes;
    memcpy(theirs, ours, n_known);
    memset((char *)theirs + n_known, 0, n_theirs - n_known);
    memcpy(theirs, &n_bytes, sizeof n_bytes);
    return MS_OK;
}
