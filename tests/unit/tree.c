/* tree.c - tree.h with plain system calls.
 *
 * A failure here is the machine's fault, not the library's, so it ends the program. Nothing here calls the allocator,
 * because the test that counts allocations uses this too.
 */
#define _XOPEN_SOURCE 700
#include "tree.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 8192

static void must(bool done, const char *what) {
    if (done) return;
    perror(what);
    _Exit(EXIT_FAILURE);
}

void tree_make(char *root) {
    const char *folder = getenv("TMPDIR");
    int n = snprintf(root, TREE_ROOT_BYTES, "%s/memscale-test-XXXXXX", folder == NULL ? "/tmp" : folder);
    must(n > 0 && n < TREE_ROOT_BYTES && mkdtemp(root) != NULL, "mkdtemp");
}

void tree_write(const char *root, const char *path, const void *data, size_t n_bytes) {
    char full[PATH_BYTES];
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    must(n > 0 && (size_t)n < sizeof full, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        (void)mkdir(full, 0777); /* it may exist; if it cannot be created, open fails */
        *slash = '/';
    }
    int file = open(full, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    must(file >= 0, full);
    must(write(file, data, n_bytes) == (ssize_t)n_bytes && close(file) == 0, full);
}

void tree_write_text(const char *root, const char *path, const char *text) {
    tree_write(root, path, text, strlen(text));
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info, (void)type, (void)place;
    return remove(path);
}

void tree_remove(const char *root) { must(nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0, root); }
