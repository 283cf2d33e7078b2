/* prim_linux.c - prim.h for Linux. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "prim.h"

ms_status ms__prim_join(char *out, const char *root, const char *path) {
    char joined[MS__PRIM_PATH_BYTES];
    int n = snprintf(joined, sizeof joined, "%s%s", root == NULL ? "" : root, path);
    if (n < 0 || (size_t)n >= sizeof joined) return ms__fail(MS_E_LIMIT, "path too long: %.80s...", path);
    memcpy(out, joined, (size_t)n + 1);
    return MS_OK;
}

/* Read until the end of the file or the limit; files in /proc do not have a size. */
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

/* A regular file's bytes, by the size that it has now. */
static ms_status read_regular(int file, const char *path, size_t max_bytes, void **out_bytes, size_t *out_n_bytes) {
    struct stat info;
    if (fstat(file, &info) != 0) return ms__fail(MS_E_IO, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return ms__fail(MS_E_IO, "%s is not a regular file", path);
    if ((uint64_t)info.st_size > max_bytes) return ms__fail(MS_E_LIMIT, "%s is larger than %zu bytes", path, max_bytes);
    size_t n_bytes = (size_t)info.st_size;
    char *bytes = malloc(n_bytes + 1);
    if (bytes == NULL) return ms__fail_memory(n_bytes + 1);
    ms_status status = read_all(file, path, n_bytes, bytes, out_n_bytes);
    if (status != MS_OK) {
        free(bytes);
        return status;
    }
    bytes[*out_n_bytes] = '\0';
    *out_bytes = bytes;
    return MS_OK;
}

ms_status ms__prim_read_bytes(const char *path, size_t max_bytes, void **out_bytes, size_t *out_n_bytes) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not wait for its writer */
    if (file < 0) return ms__fail(MS_E_IO, "cannot open %s: %s", path, strerror(errno));
    size_t n_bytes = 0;
    ms_status status = read_regular(file, path, max_bytes, out_bytes, &n_bytes);
    (void)close(file);
    if (status == MS_OK) *out_n_bytes = n_bytes;
    return status;
}

bool ms__prim_exists(const char *root, const char *path) {
    char full[MS__PRIM_PATH_BYTES];
    return ms__prim_join(full, root, path) == MS_OK && access(full, F_OK) == 0;
}

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

ms_status ms__prim_make_folder(const char *path) {
    char part[MS__PRIM_PATH_BYTES];
    size_t n = strlen(path);
    if (n >= sizeof part) return ms__fail(MS_E_LIMIT, "path too long: %.80s...", path);
    memcpy(part, path, n + 1);
    if (is_folder(part)) return MS_OK; /* also if the folders above it are not readable */
    for (char *at = part + (part[0] == '/');; at++) {
        if (*at != '/' && *at != '\0') continue;
        char here = *at;
        *at = '\0';
        if (mkdir(part, 0700) != 0) {
            int reason = errno;
            if (!is_folder(part))
                return ms__fail(MS_E_IO, "cannot create folder %s: %s", part,
                                strerror(reason == EEXIST ? ENOTDIR : reason));
        }
        *at = here;
        if (here == '\0') return MS_OK;
    }
}

ms_status ms__prim_check_private(const char *path) {
    struct stat info;
    if (lstat(path, &info) != 0) return ms__fail(MS_E_IO, "cannot look at %s: %s", path, strerror(errno));
    if (S_ISLNK(info.st_mode)) return ms__fail(MS_E_IO, "%s is a link; give the path that it leads to", path);
    if (info.st_uid != 0 && info.st_uid != geteuid()) return ms__fail(MS_E_IO, "%s belongs to another user", path);
    if (info.st_mode & (S_IWGRP | S_IWOTH))
        return ms__fail(MS_E_IO, "other users may write to %s: chmod go-w it, or remove it", path);
    return MS_OK;
}

ms_status ms__prim_check_folder(const char *path) {
    char part[MS__PRIM_PATH_BYTES];
    ms_status status = ms__prim_join(part, NULL, path);
    if (status != MS_OK) return status;
    while (access(part, F_OK) != 0 && strcmp(part, "/") != 0 && strcmp(part, ".") != 0) {
        char *slash = strrchr(part, '/');
        if (slash == NULL) /* a relative path */
            memcpy(part, ".", 2);
        else
            slash[slash == part] = '\0';
    }
    if (!is_folder(part)) return ms__fail(MS_E_IO, "%s is not a folder", part);
    if (access(part, W_OK | X_OK) != 0) return ms__fail(MS_E_IO, "%s is not writable: %s", part, strerror(errno));
    return MS_OK;
}

static ms_status write_all(int file, const char *path, const char *bytes, size_t n_bytes) {
    for (size_t n = 0; n < n_bytes;) {
        ssize_t put = write(file, bytes + n, n_bytes - n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return ms__fail(MS_E_IO, "cannot write %s: %s", path, strerror(errno));
        n += (size_t)put;
    }
    return MS_OK;
}

ms_status ms__prim_write_file(const char *path, const void *bytes, size_t n_bytes) {
    static atomic_uint n_written; /* with the process id, a different name for every writer */
    char temporary[MS__PRIM_PATH_BYTES], tail[64];
    (void)snprintf(tail, sizeof tail, ".%" PRId64 ".%u.tmp", ms__prim_pid(), atomic_fetch_add(&n_written, 1));
    ms_status status = ms__prim_join(temporary, path, tail);
    if (status != MS_OK) return status;
    int file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return ms__fail(MS_E_IO, "cannot create %s: %s", temporary, strerror(errno));
    status = write_all(file, temporary, bytes, n_bytes);
    if (close(file) != 0 && status == MS_OK) /* some file systems report only now that they are full */
        status = ms__fail(MS_E_IO, "cannot write %s: %s", temporary, strerror(errno));
    if (status == MS_OK && rename(temporary, path) != 0)
        status = ms__fail(MS_E_IO, "cannot rename %s to %s: %s", temporary, path, strerror(errno));
    if (status != MS_OK) (void)unlink(temporary);
    return status;
}

const char *ms__prim_environment(const char *name) {
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

int64_t ms__prim_pid(void) { return getpid(); }

int64_t ms__prim_now_ns(void) {
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

ms_status ms__prim_open_library(const char *path, bool loaded_only, void **out_library) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | (loaded_only ? RTLD_NOLOAD : 0));
    const char *reason = library == NULL ? dlerror() : NULL; /* it names the library */
    if (library == NULL && reason != NULL) return ms__fail(MS_E_UNAVAILABLE, "%s", reason);
    if (library == NULL) return ms__fail(MS_E_UNAVAILABLE, "%s is not loaded", path);
    *out_library = library;
    return MS_OK;
}

void *ms__prim_find_symbol(void *library, const char *name) { return dlsym(library, name); }

const char *ms__prim_library_path(void *library) {
    struct link_map *map = NULL;
    return dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL ? map->l_name : "";
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
