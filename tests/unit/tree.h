/* tree.h - a folder of fake /proc and /sys files that represents a machine (ms_hw_detect).
 *
 * It is created in $TMPDIR, or /tmp. A test that fails does not remove its folder.
 */
#ifndef TESTS_TREE_H
#define TESTS_TREE_H

#include <stddef.h>

#define TREE_ROOT_BYTES 256

/* Make an empty folder for temporary files; its path goes to `root`, which has TREE_ROOT_BYTES. */
void tree_make(char *root);

/* Write a file below it, with the folders above it. `path` starts with "/". */
void tree_write(const char *root, const char *path, const void *data, size_t n_bytes);
void tree_write_text(const char *root, const char *path, const char *text);

/* Remove the folder with all that is in it. */
void tree_remove(const char *root);

#endif
