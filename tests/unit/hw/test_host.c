/* test_host.c - reading a machine: fake trees of /proc and /sys for every kind of container, and the real one.
 *
 * A tree has the files that its test names and nothing else. The machine in all of them has 64 GB, of which 48 are
 * available, unless the test is about that.
 */
#include "runner.h"

#include <stdlib.h>
#include <string.h>

#include "tree.h"

#define GB ((int64_t)1 << 30)
#define V2 "/sys/fs/cgroup"

/* 64 GB, of which 48 are available */
static const char meminfo[] = "MemTotal:       67108864 kB\nMemFree:        10485760 kB\nMemAvailable:   50331648 kB\n"
                              "Buffers:          123456 kB\n";

typedef struct tree_file {
    const char *path, *text;
} tree_file;

/* The result of ms_hw_detect for a tree with these files and, unless they have one, the meminfo above. */
static ms_status detect(const tree_file *files, size_t n_files, ms_hw *out) {
    char root[TREE_ROOT_BYTES];
    tree_make(root);
    tree_write_text(root, "/proc/meminfo", meminfo);
    for (size_t i = 0; i < n_files; i++) tree_write_text(root, files[i].path, files[i].text);
    *out = (ms_hw){.struct_bytes = sizeof *out};
    ms_status status = ms_hw_detect(root, NULL, out);
    tree_remove(root);
    return status;
}

#define DETECT(files, out) CHECK_STATUS(detect(files, sizeof(files) / sizeof(tree_file), out), MS_OK)

static int64_t at_most_online(int64_t n) {
    ms_hw real = {.struct_bytes = sizeof real};
    CHECK_STATUS(ms_hw_detect(NULL, NULL, &real), MS_OK);
    return n < real.n_cores_online ? n : real.n_cores_online;
}

TEST(a_machine_without_control_groups) {
    ms_hw hw;
    CHECK_STATUS(detect(NULL, 0, &hw), MS_OK);
    CHECK_EQ_INT(hw.struct_bytes, sizeof hw);
    CHECK_EQ_INT(hw.memory_total_bytes, 64 * GB);
    CHECK_EQ_INT(hw.memory_limit_bytes, 64 * GB);
    CHECK_EQ_INT(hw.memory_available_bytes, 48 * GB);
    CHECK_EQ_INT(hw.cgroup_version, 0);
    CHECK_EQ_INT(hw.n_numa_nodes, 1);
    CHECK(hw.n_cores == hw.n_cores_online && hw.n_cores >= 1);
}

TEST(v2_takes_the_tightest_of_all_levels) {
    static const tree_file files[] = {
        {V2 "/cgroup.controllers", "cpu memory\n"},
        {"/proc/self/cgroup", "0::/outer/middle/inner\n"},
        {V2 "/outer/memory.max", "34359738368\n"},
        {V2 "/outer/memory.current", "1\n"},
        {V2 "/outer/middle/memory.max", "8589934592\n"},
        {V2 "/outer/middle/memory.current", "3221225472\n"},
        {V2 "/outer/middle/memory.stat", "anon 99\ninactive_file 1073741824\nactive_file 5\n"},
        {V2 "/outer/middle/inner/memory.max", "max\n"},
    };
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.cgroup_version, 2);
    CHECK_EQ_INT(hw.memory_total_bytes, 64 * GB);
    CHECK_EQ_INT(hw.memory_limit_bytes, 8 * GB);
    CHECK_EQ_INT(hw.memory_available_bytes, 6 * GB); /* 8, less 3 used, of which 1 is reclaimable cache */
}

TEST(v2_without_a_limit) {
    static const tree_file files[] = {{V2 "/cgroup.controllers", "memory\n"},
                                      {"/proc/self/cgroup", "0::/user.slice\n"},
                                      {V2 "/user.slice/memory.max", "max\n"},
                                      {V2 "/user.slice/memory.current", "123456789\n"}};
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.cgroup_version, 2);
    CHECK_EQ_INT(hw.memory_limit_bytes, 64 * GB);
    CHECK_EQ_INT(hw.memory_available_bytes, 48 * GB);
}

TEST(a_limit_above_the_machine_is_none) {
    static const tree_file files[] = {{V2 "/cgroup.controllers", "memory\n"},
                                      {"/proc/self/cgroup", "0::/a\n"},
                                      {V2 "/a/memory.max", "1099511627776\n"},
                                      {V2 "/a/memory.current", "1073741824\n"}};
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.memory_limit_bytes, 64 * GB);
    CHECK_EQ_INT(hw.memory_available_bytes, 48 * GB);
}

/* A parent with a higher limit may have less memory left: siblings use it too. */
TEST(the_fullest_level_says_what_is_left) {
    static const tree_file files[] = {
        {V2 "/cgroup.controllers", "memory\n"}, {"/proc/self/cgroup", "0::/a/b\n"},
        {V2 "/a/memory.max", "8589934592\n"},   {V2 "/a/memory.current", "7516192768\n"},
        {V2 "/a/b/memory.max", "4294967296\n"}, {V2 "/a/b/memory.current", "1073741824\n"}};
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.memory_limit_bytes, 4 * GB);
    CHECK_EQ_INT(hw.memory_available_bytes, GB);
}

TEST(a_full_group_has_nothing_left) {
    static const tree_file files[] = {{V2 "/cgroup.controllers", "memory\n"},
                                      {"/proc/self/cgroup", "0::/a\n"},
                                      {V2 "/a/memory.max", "1073741824\n"},
                                      {V2 "/a/memory.current", "2147483648\n"}};
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.memory_limit_bytes, GB);
    CHECK_EQ_INT(hw.memory_available_bytes, 0);
}

/* /proc/self/cgroup names the group as the host sees it; inside the container the mount point is that group. */
TEST(v2_container_whose_path_is_not_mounted) {
    static const tree_file files[] = {{V2 "/cgroup.controllers", "memory\n"},
                                      {"/proc/self/cgroup", "0::/kubepods/burstable/pod1234/abcd\n"},
                                      {V2 "/memory.max", "17179869184\n"},
                                      {V2 "/memory.current", "4294967296\n"},
                                      {V2 "/cpu.max", "100000 100000\n"}};
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.memory_limit_bytes, 16 * GB);
    CHECK_EQ_INT(hw.memory_available_bytes, 12 * GB);
    CHECK_EQ_INT(hw.n_cores, 1);
}

TEST(v2_path_outside_its_namespace) {
    static const tree_file files[] = {{V2 "/cgroup.controllers", "memory\n"},
                                      {"/proc/self/cgroup", "0::/../../elsewhere\n"},
                                      {V2 "/memory.max", "17179869184\n"}};
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.memory_limit_bytes, 16 * GB);
}

TEST(v2_without_a_line_of_its_own) {
    static const tree_file files[] = {{V2 "/cgroup.controllers", "memory\n"}, {V2 "/memory.max", "17179869184\n"}};
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.memory_limit_bytes, 16 * GB);
}

TEST(v1_takes_the_tightest_of_all_levels) {
    static const tree_file files[] = {
        {"/proc/self/cgroup",
         "12:pids:/p\n9:memory:/docker/abc\n5:cpu,cpuacct:/docker/cpu\n1:name=systemd:/x\n0::/y\n"},
        {V2 "/memory/memory.limit_in_bytes", "9223372036854771712\n"},
        {V2 "/memory/docker/memory.limit_in_bytes", "8589934592\n"},
        {V2 "/memory/docker/memory.usage_in_bytes", "3221225472\n"},
        {V2 "/memory/docker/memory.stat", "inactive_file 7\ntotal_inactive_file 2147483648\n"},
        {V2 "/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n"},
        {V2 "/cpu/docker/cpu/cpu.cfs_quota_us", "50000\n"},
        {V2 "/cpu/docker/cpu/cpu.cfs_period_us", "100000\n"},
    };
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.cgroup_version, 1);
    CHECK_EQ_INT(hw.memory_limit_bytes, 8 * GB);
    CHECK_EQ_INT(hw.memory_available_bytes, 7 * GB);
    CHECK_EQ_INT(hw.n_cores, 1);
}

TEST(v1_without_limits) {
    static const tree_file files[] = {{"/proc/self/cgroup", "9:memory:/\n5:cpuacct,cpu:/\n"},
                                      {V2 "/memory/memory.limit_in_bytes", "9223372036854771712\n"},
                                      {V2 "/cpu/cpu.cfs_quota_us", "-1\n"},
                                      {V2 "/cpu/cpu.cfs_period_us", "100000\n"}};
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.memory_limit_bytes, 64 * GB);
    CHECK_EQ_INT(hw.memory_available_bytes, 48 * GB);
    CHECK_EQ_INT(hw.n_cores, hw.n_cores_online);
}

TEST(v1_container_whose_path_is_not_mounted) {
    static const tree_file files[] = {{"/proc/self/cgroup", "9:memory:/docker/0123\n5:cpu,cpuacct:/docker/0123\n"},
                                      {V2 "/memory/memory.limit_in_bytes", "2147483648\n"},
                                      {V2 "/cpu/cpu.cfs_quota_us", "10000\n"},
                                      {V2 "/cpu/cpu.cfs_period_us", "100000\n"}};
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.memory_limit_bytes, 2 * GB);
    CHECK_EQ_INT(hw.n_cores, 1);
}

static int64_t cores_with(const char *cpu_max) {
    const tree_file files[] = {
        {V2 "/cgroup.controllers", "cpu\n"}, {"/proc/self/cgroup", "0::/a\n"}, {V2 "/a/cpu.max", cpu_max}};
    ms_hw hw;
    DETECT(files, &hw);
    return hw.n_cores;
}

TEST(core_quotas_round_up) {
    int64_t online = at_most_online(INT64_MAX);
    CHECK_EQ_INT(cores_with("100000 100000\n"), 1);
    CHECK_EQ_INT(cores_with("1000 100000\n"), 1);
    CHECK_EQ_INT(cores_with("100001 100000\n"), at_most_online(2));
    CHECK_EQ_INT(cores_with("150000 100000\n"), at_most_online(2));
    CHECK_EQ_INT(cores_with("200000 100000\n"), at_most_online(2));
    CHECK_EQ_INT(cores_with("9223372036854775807 1\n"), online);
    static const char *const none[] = {"max 100000\n", "",     "100000\n", "0 100000\n", "100000 0\n",
                                       "-5 100000\n",  "x y\n"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) CHECK_EQ_INT(cores_with(none[i]), online);
}

TEST(the_tightest_core_quota_counts) {
    static const tree_file files[] = {{V2 "/cgroup.controllers", "cpu\n"},
                                      {"/proc/self/cgroup", "0::/a/b\n"},
                                      {V2 "/cpu.max", "max 100000\n"},
                                      {V2 "/a/cpu.max", "90000 100000\n"},
                                      {V2 "/a/b/cpu.max", "6400000 100000\n"}};
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.n_cores, 1);
}

TEST(memory_free_stands_in_for_available) {
    static const tree_file old_kernel[] = {{"/proc/meminfo", "MemTotal: 2097152 kB\nMemFree: 1048576 kB\n"}};
    static const tree_file garbage[] = {
        {"/proc/meminfo", "MemTotal: 2097152 kB\nMemAvailable: -1 kB\nMemFree: 1048576 kB"}};
    ms_hw hw;
    DETECT(old_kernel, &hw);
    CHECK_EQ_INT(hw.memory_total_bytes, 2 * GB);
    CHECK_EQ_INT(hw.memory_available_bytes, GB);
    DETECT(garbage, &hw);
    CHECK_EQ_INT(hw.memory_available_bytes, GB);
}

TEST(bad_memory_information_is_an_error) {
    static const char *const texts[] = {"",
                                        "\n\n\n",
                                        "MemTotal: lots kB\nMemAvailable: 1 kB\n",
                                        "MemAvailable: 1 kB\n",
                                        "MemTotal: 1000 kB\n",
                                        "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
                                        "MemTotal: -5 kB\nMemAvailable: 0 kB\n",
                                        "MemTotal: 1000 kB\nMemAvailable: 1001 kB\n",
                                        "MemTotal: 9223372036854775807 kB\nMemAvailable: 1 kB\n",
                                        "MemTotal: 99999999999999999999999999 kB\nMemAvailable: 1 kB\n",
                                        "xMemTotal: 1000 kB\nMemAvailable: 1 kB\n",
                                        "MemTotal:1000 kB\nMemAvailable: 1 kB\n",
                                        "\xFF\xFE\x01 garbage"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const tree_file files[] = {{"/proc/meminfo", texts[i]}};
        ms_hw hw, untouched = {.struct_bytes = sizeof hw};
        CHECK_STATUS(detect(files, 1, &hw), MS_E_IO);
        CHECK(memcmp(&hw, &untouched, sizeof hw) == 0);
    }
}

TEST(no_memory_information_is_an_error) {
    char root[TREE_ROOT_BYTES];
    ms_hw hw = {.struct_bytes = sizeof hw};
    tree_make(root);
    CHECK_STATUS(ms_hw_detect(root, NULL, &hw), MS_E_IO);
    CHECK(strstr(ms_error_message(), "meminfo") != NULL);
    tree_remove(root);
    CHECK_STATUS(ms_hw_detect("/no/such/folder", NULL, &hw), MS_E_IO);
}

TEST(garbage_in_group_files_is_no_limit) {
    static const char *const garbage[] = {"", "\n", "x", "-1", "\xFF\xFF", "max max", "nan", " \t "};
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        const tree_file v2[] = {{V2 "/cgroup.controllers", garbage[i]}, {"/proc/self/cgroup", "0::/a\n"},
                                {V2 "/a/memory.max", garbage[i]},       {V2 "/a/cpu.max", garbage[i]},
                                {V2 "/a/memory.current", garbage[i]},   {V2 "/a/memory.stat", garbage[i]}};
        ms_hw hw;
        DETECT(v2, &hw);
        CHECK_EQ_INT(hw.memory_limit_bytes, 64 * GB);
        CHECK_EQ_INT(hw.n_cores, hw.n_cores_online);
    }
}

TEST(garbage_in_the_list_of_groups_means_the_mount) {
    static const char *const garbage[] = {"",
                                          "\n",
                                          ":",
                                          "::",
                                          "0:",
                                          "0::",
                                          "x:y:z",
                                          "1:memory",
                                          "0\n:\n:/a",
                                          "0::\n",
                                          "\xFF:\xFF:\xFF",
                                          "0",
                                          "1:name=x:/",
                                          "9:mem:/a",
                                          "9:memoryx:/a",
                                          "9:cpu:"};
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        const tree_file v2[] = {{V2 "/cgroup.controllers", ""},
                                {"/proc/self/cgroup", garbage[i]},
                                {V2 "/memory.max", "1073741824"},
                                {V2 "/a/memory.max", "5"}};
        const tree_file v1[] = {{"/proc/self/cgroup", garbage[i]},
                                {V2 "/memory/memory.limit_in_bytes", "1073741824"},
                                {V2 "/memory/a/memory.limit_in_bytes", "5"}};
        ms_hw hw;
        DETECT(v2, &hw);
        CHECK_EQ_INT(hw.memory_limit_bytes, GB);
        DETECT(v1, &hw);
        CHECK_EQ_INT(hw.memory_limit_bytes, GB);
    }
}

TEST(very_long_paths_do_no_harm) {
    enum { N = 20000 };
    char *text = malloc(N + 1);
    CHECK(text != NULL);
    memset(text, 'd', N);
    memcpy(text, "0::/", 4);
    for (int i = 4; i < N; i += 50) text[i] = '/';
    text[N] = '\0';
    const tree_file files[] = {{V2 "/cgroup.controllers", ""}, {"/proc/self/cgroup", text}, {V2 "/memory.max", "4096"}};
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.memory_limit_bytes, 4096);
    free(text);
}

TEST(numa_nodes_are_counted) {
    static const tree_file files[] = {{"/sys/devices/system/node/node0/cpulist", "0-3\n"},
                                      {"/sys/devices/system/node/node1/cpulist", "4-7\n"},
                                      {"/sys/devices/system/node/node8/cpulist", "8-11\n"},
                                      {"/sys/devices/system/node/possible", "0-255\n"}};
    ms_hw hw;
    DETECT(files, &hw);
    CHECK_EQ_INT(hw.n_numa_nodes, 3);
}

TEST(the_real_machine_is_sane) {
    ms_hw hw = {.struct_bytes = sizeof hw}, same = {.struct_bytes = sizeof same};
    CHECK_STATUS(ms_hw_detect(NULL, NULL, &hw), MS_OK);
    CHECK(hw.memory_total_bytes >= (int64_t)16 << 20);
    CHECK(hw.memory_limit_bytes > 0 && hw.memory_limit_bytes <= hw.memory_total_bytes);
    CHECK(hw.memory_available_bytes >= 0 && hw.memory_available_bytes <= hw.memory_limit_bytes);
    CHECK(hw.page_bytes >= 4096 && (hw.page_bytes & (hw.page_bytes - 1)) == 0);
    CHECK(hw.n_cores >= 1 && hw.n_cores <= hw.n_cores_online);
    CHECK(hw.n_numa_nodes >= 1);
    CHECK(hw.cgroup_version >= 0 && hw.cgroup_version <= 2);
    CHECK_STATUS(ms_hw_detect("", NULL, &same), MS_OK);
    CHECK_EQ_INT(same.memory_total_bytes, hw.memory_total_bytes);
    CHECK_EQ_INT(same.n_cores, hw.n_cores);
}

TEST(arguments_are_checked) {
    ms_hw hw = {.struct_bytes = sizeof hw - 1};
    CHECK_STATUS(ms_hw_detect(NULL, NULL, NULL), MS_E_INVALID);
    CHECK_STATUS(ms_hw_detect(NULL, NULL, &hw), MS_E_INVALID);
    hw.struct_bytes = 0;
    CHECK_STATUS(ms_hw_detect(NULL, NULL, &hw), MS_E_INVALID);
    CHECK_EQ_INT(hw.memory_total_bytes, 0);
}

SUITE(hw, CASE(a_machine_without_control_groups), CASE(v2_takes_the_tightest_of_all_levels), CASE(v2_without_a_limit),
      CASE(a_limit_above_the_machine_is_none), CASE(the_fullest_level_says_what_is_left),
      CASE(a_full_group_has_nothing_left), CASE(v2_container_whose_path_is_not_mounted),
      CASE(v2_path_outside_its_namespace), CASE(v2_without_a_line_of_its_own),
      CASE(v1_takes_the_tightest_of_all_levels), CASE(v1_without_limits), CASE(v1_container_whose_path_is_not_mounted),
      CASE(core_quotas_round_up), CASE(the_tightest_core_quota_counts), CASE(memory_free_stands_in_for_available),
      CASE(bad_memory_information_is_an_error), CASE(no_memory_information_is_an_error),
      CASE(garbage_in_group_files_is_no_limit), CASE(garbage_in_the_list_of_groups_means_the_mount),
      CASE(very_long_paths_do_no_harm), CASE(numa_nodes_are_counted), CASE(the_real_machine_is_sane),
      CASE(arguments_are_checked));
