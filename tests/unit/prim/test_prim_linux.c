/* test_prim_linux.c - files, folders and libraries of the operating system, especially their failures.
 *
 * Tests may run as root, who ignores permissions; a path below a regular file and one below /proc fail for everyone.
 */
#define _DEFAULT_SOURCE
#include "runner.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "prim/prim.h"
#include "tree.h"

static char root[TREE_ROOT_BYTES];

static const char *below(const char *path) {
    static char full[4][TREE_ROOT_BYTES + 256];
    static int turn;
    char *out = full[turn++ % 4];
    (void)snprintf(out, sizeof full[0], "%s%s", root, path);
    return out;
}

static int count_files(const char *folder) {
    int n = 0;
    DIR *open = opendir(folder);
    CHECK(open != NULL);
    while (readdir(open) != NULL) n++;
    (void)closedir(open);
    return n - 2;
}

TEST(bytes_are_read_whole) {
    void *bytes = NULL;
    size_t n = 99;
    tree_make(root);
    tree_write(root, "/a", "x\0y", 3);
    tree_write(root, "/empty", "", 0);
    CHECK_STATUS(ms__prim_read_bytes(below("/a"), 3, &bytes, &n), MS_OK);
    CHECK(n == 3 && memcmp(bytes, "x\0y", 4) == 0); /* with the NUL after it */
    ms_free(bytes);
    CHECK_STATUS(ms__prim_read_bytes(below("/empty"), 0, &bytes, &n), MS_OK);
    CHECK(n == 0 && *(char *)bytes == '\0');
    ms_free(bytes);
    tree_remove(root);
}

TEST(what_cannot_be_read_is_an_error) {
    void *bytes = NULL;
    size_t n = 99;
    tree_make(root);
    tree_write(root, "/a", "xyz", 3);
    CHECK(mkfifo(below("/pipe"), 0600) == 0);
    CHECK_STATUS(ms__prim_read_bytes(below("/a"), 2, &bytes, &n), MS_E_LIMIT);
    CHECK_STATUS(ms__prim_read_bytes(below("/none"), 9, &bytes, &n), MS_E_IO);
    CHECK_STATUS(ms__prim_read_bytes(root, 9, &bytes, &n), MS_E_IO);
    CHECK_STATUS(ms__prim_read_bytes(below("/pipe"), 9, &bytes, &n), MS_E_IO); /* and no waiting for a writer */
    CHECK_STATUS(ms__prim_read_bytes("/dev/zero", 9, &bytes, &n), MS_E_IO);
    CHECK(bytes == NULL && n == 99);
    tree_remove(root);
}

TEST(folders_are_made_with_those_above) {
    tree_make(root);
    CHECK_STATUS(ms__prim_check_folder(below("/a/b/c")), MS_OK);
    CHECK(!ms__prim_exists(root, "/a"));
    CHECK_STATUS(ms__prim_make_folder(below("/a/b/c")), MS_OK);
    CHECK_STATUS(ms__prim_make_folder(below("/a/b/c")), MS_OK);
    CHECK_STATUS(ms__prim_make_folder(below("/a//d/")), MS_OK);
    CHECK(ms__prim_exists(root, "/a/b/c") && ms__prim_exists(root, "/a/d"));
    CHECK_STATUS(ms__prim_check_folder(below("/a/b/c")), MS_OK);
    CHECK(chdir(root) == 0);
    CHECK_STATUS(ms__prim_check_folder("relative/e"), MS_OK);
    CHECK_STATUS(ms__prim_make_folder("relative/e"), MS_OK);
    CHECK(ms__prim_exists(root, "/relative/e"));
    CHECK(chdir("/") == 0);
    tree_remove(root);
}

TEST(folders_that_cannot_be_made) {
    char longest[MS__PRIM_PATH_BYTES + 2];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    tree_make(root);
    tree_write(root, "/file", "", 0);
    const char *const paths[] = {below("/file"), below("/file/a/b"), "/proc/memscale/a"};
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(ms__prim_make_folder(paths[i]), MS_E_IO);
        CHECK(strstr(ms_error_message(), "folder") != NULL);
    }
    CHECK_STATUS(ms__prim_check_folder(paths[0]), MS_E_IO);
    CHECK_STATUS(ms__prim_check_folder(paths[1]), MS_E_IO);
    CHECK_STATUS(ms__prim_make_folder(""), MS_E_IO);
    CHECK_STATUS(ms__prim_make_folder(longest), MS_E_LIMIT);
    CHECK_STATUS(ms__prim_check_folder(longest), MS_E_LIMIT);
    tree_remove(root);
}

TEST(a_file_is_replaced_whole) {
    void *bytes = NULL;
    size_t n = 0;
    tree_make(root);
    tree_write(root, "/a", "old and longer", 14);
    CHECK_STATUS(ms__prim_write_file(below("/a"), "new", 3), MS_OK);
    CHECK_STATUS(ms__prim_read_bytes(below("/a"), 99, &bytes, &n), MS_OK);
    CHECK(n == 3 && memcmp(bytes, "new", 3) == 0);
    CHECK_EQ_INT(count_files(root), 1);
    ms_free(bytes);
    tree_remove(root);
}

TEST(what_cannot_be_written_leaves_nothing) {
    tree_make(root);
    tree_write(root, "/file", "kept", 4);
    tree_write(root, "/folder/inside", "", 0);
    CHECK_STATUS(ms__prim_write_file(below("/none/a"), "x", 1), MS_E_IO);
    CHECK_STATUS(ms__prim_write_file(below("/file/a"), "x", 1), MS_E_IO);
    CHECK_STATUS(ms__prim_write_file("/proc/memscale", "x", 1), MS_E_IO);
    CHECK_STATUS(ms__prim_write_file(below("/folder"), "x", 1), MS_E_IO); /* the rename fails */
    CHECK(strstr(ms_error_message(), "rename") != NULL);
    CHECK_EQ_INT(count_files(root), 2);
    CHECK_EQ_INT(count_files(below("/folder")), 1);
    tree_remove(root);
}

/* A write that fails half way: a limit on file sizes acts as a full disk. */
TEST(a_full_disk_leaves_nothing) {
    static const char large[1 << 20];
    const struct rlimit limit = {65536, 65536};
    tree_make(root);
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK_STATUS(ms__prim_write_file(below("/a"), large, sizeof large), MS_E_IO);
    CHECK(strstr(ms_error_message(), "cannot write") != NULL);
    CHECK_EQ_INT(count_files(root), 0);
    tree_remove(root);
}

static void *write_as(void *path_and_letter) {
    char text[4096];
    const char *path = path_and_letter;
    memset(text, path[0], sizeof text);
    for (int i = 0; i < 50; i++) CHECK_STATUS(ms__prim_write_file(path + 1, text, sizeof text), MS_OK);
    return NULL;
}

TEST(writers_at_once_never_mix) {
    enum { N = 4 };
    pthread_t threads[N];
    char names[N][TREE_ROOT_BYTES + 8];
    tree_make(root);
    for (int i = 0; i < N; i++) {
        (void)snprintf(names[i], sizeof names[i], "%c%s/a", 'a' + i, root);
        CHECK(pthread_create(&threads[i], NULL, write_as, names[i]) == 0);
    }
    for (int i = 0; i < 200; i++) {
        void *bytes = NULL;
        size_t n = 0;
        ms_status status = ms__prim_read_bytes(names[0] + 1, 4096, &bytes, &n);
        CHECK(status == MS_OK || status == MS_E_IO); /* not yet there */
        CHECK(status != MS_OK || (n == 4096 && memcmp(bytes, (char *)bytes + 1, 4095) == 0));
        ms_free(bytes);
    }
    for (int i = 0; i < N; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_EQ_INT(count_files(root), 1);
    tree_remove(root);
}

TEST(environment_clock_and_process) {
    CHECK(setenv("MEMSCALE_TEST", "x", 1) == 0);
    CHECK_EQ_STR(ms__prim_environment("MEMSCALE_TEST"), "x");
    CHECK(setenv("MEMSCALE_TEST", "", 1) == 0);
    CHECK(ms__prim_environment("MEMSCALE_TEST") == NULL);
    CHECK(ms__prim_environment("MEMSCALE_TEST_NOT_SET") == NULL);
    CHECK_EQ_INT(ms__prim_pid(), getpid());
    int64_t now = ms__prim_now_ns();
    CHECK(now > 0 && ms__prim_now_ns() >= now);
}

TEST(libraries) {
    void *library = NULL;
    CHECK_STATUS(ms__prim_open_library("/no/such/library.so", false, &library), MS_E_UNAVAILABLE);
    CHECK(strstr(ms_error_message(), "/no/such/library.so") != NULL && library == NULL);
    CHECK_STATUS(ms__prim_open_library(FAKE_FOLDER "/libshort.so", true, &library), MS_E_UNAVAILABLE);
    CHECK_STATUS(ms__prim_open_library(FAKE_FOLDER "/libshort.so", false, &library), MS_OK);
    CHECK_STATUS(ms__prim_open_library(FAKE_FOLDER "/libshort.so", true, &library), MS_OK);
    CHECK(ms__prim_find_symbol(library, "cuInit") != NULL && ms__prim_find_symbol(library, "cuExit") == NULL);
    CHECK(strstr(ms__prim_library_path(library), "libshort.so") != NULL);
}

SUITE(prim, CASE(bytes_are_read_whole), CASE(what_cannot_be_read_is_an_error), CASE(folders_are_made_with_those_above),
      CASE(folders_that_cannot_be_made), CASE(a_file_is_replaced_whole), CASE(what_cannot_be_written_leaves_nothing),
      CASE(a_full_disk_leaves_nothing), CASE(writers_at_once_never_mix), CASE(environment_clock_and_process),
      CASE(libraries));
