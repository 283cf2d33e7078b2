/* prim_linux.c - prim.h for Linux. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "prim.h"

ms_status ms__prim_join(char *out, const char *root, const char *path) {
    char joined[MS__PRIM_PATH_BYTES];
    int n = snprintf(joined, sizeof joined, "%s%s", root == NULL ? "" : root, path);
    if (n < 0 || (size_t)n >= sizeof joined) return ms__fail(MS_E_LIMIT, "path too long: %.80s...", path);
    memcpy(out, joined, (size_t)n + 1);
    return MS_OK;
}

/* Read until the end of the file or the limit; files of /proc do not tell their size beforehand. */
static ms_status read_all(int file, const char *path, size_t max_bytes, char *text, size_t *out_n) {
    size_t n = 0;
    for (;;) {
        ssize_t got = read(file, text + n, max_bytes + 1 - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ms__fail(MS_E_IO, "cannot read %s: %s", path, strerror(errno));
        if (got == 0) break;
        n += (size_t)got;
        if (n > max_bytes) return ms__fail(MS_E_LIMIT, "%s is larger than %zu bytes", path, max_bytes);
    }
    *out_n = n;
    return MS_OK;
}

ms_status ms__prim_read_text(const char *root, const char *path, size_t max_bytes, char **out_text) {
    char full[MS__PRIM_PATH_BYTES];
    ms_status status = ms__prim_join(full, root, path);
    if (status != MS_OK) return status;
    int file = open(full, O_RDONLY | O_CLOEXEC);
    if (file < 0) return ms__fail(MS_E_IO, "cannot open %s: %s", full, strerror(errno));
    char *text = malloc(max_bytes + 1);
    size_t n = 0;
    status = text == NULL ? ms__fail_memory(max_bytes + 1) : read_all(file, full, max_bytes, text, &n);
    (void)close(file);
    if (status == MS_OK && text != NULL) {
        text[n] = '\0';
        *out_text = text;
        return MS_OK;
    }
    free(text);
    return status;
}

bool ms__prim_exists(const char *root, const char *path) {
    char full[MS__PRIM_PATH_BYTES];
    return ms__prim_join(full, root, path) == MS_OK && access(full, F_OK) == 0;
}

int64_t ms__prim_page_bytes(void) {
    long bytes = sysconf(_SC_PAGESIZE);
    return bytes > 0 ? bytes : 4096;
}

int64_t ms__prim_cores_online(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? n : 1;
}

int64_t ms__prim_cores_affine(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}
