/* host.c - the host as a plain record: memory with its container limits, cores, NUMA nodes.
 *
 * A container shows the machine's /proc, so the limit that counts is the tightest control group from ours up to the
 * root, of version 1 or 2. Inside a container /proc/self/cgroup may name a path that is mounted elsewhere; the walk
 * then begins at the mount point, which is the container's own group. What cannot be read counts as no limit.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/math.h"
#include "../common/structs.h"
#include "../prim/prim.h"
#include "hw.h"

#define SMALL_FILE_BYTES ((size_t)1 << 18)
#define CGROUP_MOUNT "/sys/fs/cgroup"

typedef struct limits {
    int64_t version;      /* of the control groups that were found */
    int64_t memory_bytes; /* INT64_MAX: none */
    int64_t left_bytes;   /* what the fullest group leaves; page cache that can be dropped counts as free */
    int64_t cores;        /* 0: none; quota over period, rounded up */
} limits;

/* A number at the start of a small file; false for "max", for an absent file and for anything else. */
static bool read_number(const char *root, const char *folder, const char *file, int64_t *out) {
    char path[MS__PRIM_PATH_BYTES], *text = NULL;
    if (ms__prim_join(path, folder, file) != MS_OK) return false;
    if (ms__prim_read_text(root, path, SMALL_FILE_BYTES, &text) != MS_OK) return false;
    char *end = NULL;
    long long value = strtoll(text, &end, 10);
    bool found = end != text && value >= 0;
    if (found) *out = value;
    ms_free(text);
    return found;
}

/* The value after "name" at the start of a line, e.g. "MemTotal:" or "inactive_file". */
static bool find_field(const char *text, const char *name, int64_t *out) {
    size_t length = strlen(name);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, name, length) == 0 && (line[length] == ' ' || line[length] == '\t')) {
            char *end = NULL;
            long long value = strtoll(line + length, &end, 10);
            if (end == line + length || value < 0) return false;
            *out = value;
            return true;
        }
        line = strchr(line, '\n');
        if (line != NULL) line++;
    }
    return false;
}

/* File pages that the kernel would drop before it refuses memory. */
static int64_t reclaimable_bytes(const char *root, const char *folder, const char *field) {
    char path[MS__PRIM_PATH_BYTES], *text = NULL;
    int64_t bytes = 0;
    if (ms__prim_join(path, folder, "/memory.stat") != MS_OK) return 0;
    if (ms__prim_read_text(root, path, SMALL_FILE_BYTES, &text) != MS_OK) return 0;
    (void)find_field(text, field, &bytes);
    ms_free(text);
    return bytes;
}

static void take_memory_limit(const char *root, const char *folder, limits *found) {
    bool v2 = found->version == 2;
    int64_t limit, used = 0;
    if (!read_number(root, folder, v2 ? "/memory.max" : "/memory.limit_in_bytes", &limit)) return;
    (void)read_number(root, folder, v2 ? "/memory.current" : "/memory.usage_in_bytes", &used);
    used -= ms__min(used, reclaimable_bytes(root, folder, v2 ? "inactive_file" : "total_inactive_file"));
    found->memory_bytes = ms__min(found->memory_bytes, limit);
    found->left_bytes = ms__min(found->left_bytes, limit - ms__min(used, limit));
}

/* "quota period" in one file; false for "max period". */
static bool read_cpu_max(const char *root, const char *folder, int64_t *quota, int64_t *period) {
    char path[MS__PRIM_PATH_BYTES], *text = NULL, *end = NULL;
    if (ms__prim_join(path, folder, "/cpu.max") != MS_OK) return false;
    if (ms__prim_read_text(root, path, SMALL_FILE_BYTES, &text) != MS_OK) return false;
    *quota = strtoll(text, &end, 10);
    bool found = end != text;
    const char *rest = end;
    if (found) *period = strtoll(rest, &end, 10);
    found = found && end != rest;
    ms_free(text);
    return found;
}

static void take_core_quota(const char *root, const char *folder, limits *found) {
    int64_t quota = 0, period = 0;
    bool there = found->version == 2 ? read_cpu_max(root, folder, &quota, &period)
                                     : read_number(root, folder, "/cpu.cfs_quota_us", &quota) &&
                                           read_number(root, folder, "/cpu.cfs_period_us", &period);
    if (!there || quota <= 0 || period <= 0) return;
    int64_t cores = quota / period + (quota % period != 0);
    if (found->cores == 0 || cores < found->cores) found->cores = cores;
}

typedef void take_fn(const char *root, const char *folder, limits *found);

/* Call `take` on mount + path and on every group above it. */
static void walk_up(const char *root, const char *mount, const char *path, take_fn *take, limits *found) {
    char folder[MS__PRIM_PATH_BYTES];
    if (ms__prim_join(folder, mount, path) != MS_OK) return;
    size_t top = strlen(mount);
    for (;;) {
        size_t length = strlen(folder);
        while (length > top && folder[length - 1] == '/') folder[--length] = '\0';
        take(root, folder, found);
        if (length <= top) return;
        *strrchr(folder, '/') = '\0';
    }
}

/* The path of our group in a hierarchy: for version 1 the line whose controllers hold `controller`, for version 2 the
 * line "0::path". "/" if there is no such line. */
static void group_path(const char *cgroup, const char *controller, char *out) {
    (void)snprintf(out, MS__PRIM_PATH_BYTES, "/");
    for (const char *line = cgroup; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        const char *names = strchr(line, ':');
        const char *path = names == NULL ? NULL : strchr(names + 1, ':');
        if (path != NULL && (end == NULL || path < end)) {
            size_t n = strlen(controller);
            bool match = n == 0 ? path == names + 1 : false;
            for (const char *name = names + 1; n > 0 && name < path; name++) {
                if (strncmp(name, controller, n) == 0 && (name[n] == ',' || name[n] == ':')) match = true;
                while (name < path && *name != ',') name++;
            }
            int length = (int)(end == NULL ? (ptrdiff_t)strlen(path + 1) : end - path - 1);
            if (match && length < MS__PRIM_PATH_BYTES) {
                (void)snprintf(out, MS__PRIM_PATH_BYTES, "%.*s", length, path + 1);
                return;
            }
        }
        line = end == NULL ? NULL : end + 1;
    }
}

static limits read_limits(const char *root) {
    limits found = {.memory_bytes = INT64_MAX, .left_bytes = INT64_MAX};
    char path[MS__PRIM_PATH_BYTES], *text = NULL;
    const char *cgroup = "";
    if (ms__prim_read_text(root, "/proc/self/cgroup", SMALL_FILE_BYTES, &text) == MS_OK) cgroup = text;
    if (ms__prim_exists(root, CGROUP_MOUNT "/cgroup.controllers")) {
        found.version = 2;
        group_path(cgroup, "", path);
        walk_up(root, CGROUP_MOUNT, path, take_memory_limit, &found);
        walk_up(root, CGROUP_MOUNT, path, take_core_quota, &found);
    } else if (ms__prim_exists(root, CGROUP_MOUNT "/memory")) {
        found.version = 1;
        group_path(cgroup, "memory", path);
        walk_up(root, CGROUP_MOUNT "/memory", path, take_memory_limit, &found);
        group_path(cgroup, "cpu", path);
        walk_up(root, CGROUP_MOUNT "/cpu", path, take_core_quota, &found);
    }
    ms_free(text);
    return found;
}

static int64_t count_numa_nodes(const char *root) {
    char path[64];
    int64_t n = 0;
    for (int node = 0; node < 1024; node++) {
        (void)snprintf(path, sizeof path, "/sys/devices/system/node/node%d", node);
        if (ms__prim_exists(root, path)) n++;
    }
    return n > 0 ? n : 1;
}

static ms_status read_meminfo(const char *root, int64_t *total, int64_t *available) {
    char *text = NULL;
    ms_status status = ms__prim_read_text(root, "/proc/meminfo", SMALL_FILE_BYTES, &text);
    if (status != MS_OK) return status;
    bool found = find_field(text, "MemTotal:", total);
    if (!find_field(text, "MemAvailable:", available)) found = found && find_field(text, "MemFree:", available);
    ms_free(text);
    if (!found || *total <= 0 || *total > INT64_MAX / 1024 || *available > *total)
        return ms__fail(MS_E_IO, "/proc/meminfo does not give the memory of this machine");
    *total *= 1024;
    *available *= 1024;
    return MS_OK;
}

ms_status ms_hw_detect(const char *root, ms_gpu *gpu, ms_hw *out) {
    ms_status status = ms__struct_check(MS__STRUCT(ms_hw), out);
    if (status != MS_OK) return status;
    bool real = root == NULL || root[0] == '\0';
    ms_hw hw = {.page_bytes = ms__prim_page_bytes()};
    status = read_meminfo(root, &hw.memory_total_bytes, &hw.memory_available_bytes);
    if (status != MS_OK) return status;

    limits found = read_limits(root);
    hw.cgroup_version = found.version;
    hw.memory_limit_bytes = ms__min(hw.memory_total_bytes, found.memory_bytes);
    hw.memory_available_bytes = ms__min(hw.memory_available_bytes, found.left_bytes);
    hw.n_cores_online = ms__prim_cores_online();
    hw.n_cores = hw.n_cores_online;
    int64_t affine = real ? ms__prim_cores_affine() : 0; /* a recorded tree has no affinity */
    if (affine > 0) hw.n_cores = ms__min(hw.n_cores, affine);
    if (found.cores > 0) hw.n_cores = ms__min(hw.n_cores, found.cores);
    hw.n_numa_nodes = count_numa_nodes(root);
    ms__hw_read_gpus(gpu, &hw);
    ms__log(MS_LOG_DEBUG, "host: %" PRId64 " of %" PRId64 " bytes usable, cgroup v%" PRId64, hw.memory_limit_bytes,
            hw.memory_total_bytes, hw.cgroup_version);
    return ms__struct_write(MS__STRUCT(ms_hw), &hw, out);
}
