/* fuzz_host.c - any bytes as the files of a machine: whatever they contain, the record of the host is valid or refused.
 *
 * An input is the contents of the files below, in this order, with a line "%" between them. A file without contents is
 * absent; its folder exists.
 */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <string.h>
#include <unistd.h>

#include <memscale/memscale.h>

#include "tree.h"

#define SEPARATOR "\n%\n"

static const char *const paths[] = {
    "/proc/meminfo",
    "/proc/self/cgroup",
    "/sys/fs/cgroup/cgroup.controllers",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/a/memory.max",
    "/sys/fs/cgroup/a/memory.current",
    "/sys/fs/cgroup/a/memory.stat",
    "/sys/fs/cgroup/a/cpu.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/memory/a/memory.usage_in_bytes",
    "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
    "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us",
    "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us",
};

const char *const fuzz_dictionary[] = {
    SEPARATOR,        "MemTotal: ", "MemAvailable: ",      "MemFree: ",      " kB\n", "max",
    "0::/a",          "0::/",       "memory:/a",           "cpu,cpuacct:/a", "..",    "/",
    "inactive_file ", "-1",         "9223372036854771712", "100000",         ":",     NULL};

static char root[TREE_ROOT_BYTES];

static void remove_root(void) { tree_remove(root); }

static const uint8_t *find_separator(const uint8_t *data, size_t n_bytes) {
    for (size_t i = 0; i + 3 <= n_bytes; i++)
        if (memcmp(data + i, SEPARATOR, 3) == 0) return data + i;
    return NULL;
}

static void write_file(const char *path, const uint8_t *data, size_t n_bytes) {
    char full[TREE_ROOT_BYTES + 64];
    (void)snprintf(full, sizeof full, "%s%s", root, path);
    tree_write(root, path, data, n_bytes);
    if (n_bytes == 0) (void)unlink(full);
}

static void write_files(const uint8_t *data, size_t n_bytes) {
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        const uint8_t *end = find_separator(data, n_bytes);
        size_t n = end == NULL ? n_bytes : (size_t)(end - data), n_gone = end == NULL ? n : n + 3;
        write_file(paths[i], data, n);
        data += n_gone;
        n_bytes -= n_gone;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    ms_hw hw = {.struct_bytes = sizeof hw}, back = hw;
    char *text = NULL;
    if (root[0] == '\0') {
        tree_make(root);
        (void)atexit(remove_root);
    }
    write_files(data, n_bytes);
    ms_status status = ms_hw_detect(root, NULL, &hw);
    if (status != MS_OK) {
        REQUIRE(status == MS_E_IO || status == MS_E_LIMIT);
        return 0;
    }
    REQUIRE(hw.memory_total_bytes > 0 && hw.memory_limit_bytes >= 0 && hw.memory_available_bytes >= 0);
    REQUIRE(hw.memory_limit_bytes <= hw.memory_total_bytes && hw.memory_available_bytes <= hw.memory_limit_bytes);
    REQUIRE(hw.n_cores >= 1 && hw.n_cores <= hw.n_cores_online && hw.n_numa_nodes >= 1);
    REQUIRE(ms_hw_to_json(&hw, &text) == MS_OK);
    REQUIRE(ms_hw_from_json(text, strlen(text), &back) == MS_OK);
    REQUIRE(memcmp(&hw, &back, sizeof hw) == 0);
    ms_free(text);
    return 0;
}
