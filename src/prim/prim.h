/* prim.h - every call to the operating system goes through this header.
 *
 * Linux. Functions that read files take a root that is put before the path, so that a recorded tree can replace a
 * machine (memscale.h, ms_hw_detect).
 */
#ifndef MS_PRIM_H
#define MS_PRIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/status.h"

#define MS__PRIM_PATH_BYTES 4096

/* root + path into `out` (MS__PRIM_PATH_BYTES); MS_E_LIMIT if it is too long. `out` may be `path`. */
ms_status ms__prim_join(char *out, const char *root, const char *path);

/* Read a small text file whole, at most max_bytes; `*out_text` is owned, ms_free, NUL-terminated.
 * Errors: MS_E_IO (absent or unreadable), MS_E_LIMIT (larger), MS_E_NO_MEMORY. */
ms_status ms__prim_read_text(const char *root, const char *path, size_t max_bytes, char **out_text);

/* The same for any bytes, of a regular file only: a pipe or a device in its place is MS_E_IO, not a wait. `*out_bytes`
 * is owned, ms_free; a NUL byte, which is not counted, follows the last. */
ms_status ms__prim_read_bytes(const char *path, size_t max_bytes, void **out_bytes, size_t *out_n_bytes);

/* Does the path exist? */
bool ms__prim_exists(const char *root, const char *path);

/* Create a folder and its parents, readable by this user only. It may exist already. Errors: MS_E_IO, MS_E_LIMIT. */
ms_status ms__prim_make_folder(const char *path);

/* Could files be written into this folder, or could it be created? Changes nothing, so a full disk is not noticed.
 * Errors: MS_E_IO (the reason is in the message), MS_E_LIMIT. */
ms_status ms__prim_check_folder(const char *path);

/* Is this file or folder such that only this user (or root) can change it? It is no link, belongs to one of them, and
 * nobody else may write to it. Errors: MS_E_IO (absent, or the reason). */
ms_status ms__prim_check_private(const char *path);

/* Write a file completely or not at all: it is written under another name in the same folder, then renamed. Readers see
 * the old file or the new one, whoever else writes it at the same time. It is not forced to disk: after a crash of the
 * machine the file may be too short, so readers check what they read. Errors: MS_E_IO (the temporary file was removed),
 * MS_E_LIMIT. */
ms_status ms__prim_write_file(const char *path, const void *bytes, size_t n_bytes);

/* An environment variable, or NULL if it is not set or empty. Borrowed until the environment changes. */
const char *ms__prim_environment(const char *name);

int64_t ms__prim_pid(void);
int64_t ms__prim_now_ns(void); /* a clock that never goes back; its zero means nothing */

/* A dynamic library by name or path. With `loaded_only`, only one that the process has already loaded. It is never
 * closed: the libraries that we open have threads and handlers that outlive any use. Errors: MS_E_UNAVAILABLE (the
 * loader's reason). */
ms_status ms__prim_open_library(const char *path, bool loaded_only, void **out_library);

/* The address of a function, or NULL. */
void *ms__prim_find_symbol(void *library, const char *name);

/* Where the library was found; "" if the loader does not say. Borrowed as long as the library is open. */
const char *ms__prim_library_path(void *library);

/* Whole pages, zeroed, that forked children do not get; on this NUMA node if it has room (-1: any). Errors:
 * MS_E_NO_MEMORY. */
ms_status ms__prim_map(int64_t n_bytes, int64_t numa_node, void **out);
void ms__prim_unmap(void *memory, int64_t n_bytes);

/* The NUMA node of a PCI device ("0000:41:00.0"); -1 if it has none or it is not known. */
int64_t ms__prim_numa_node(const char *root, const char *pci_id);

int64_t ms__prim_page_bytes(void);
int64_t ms__prim_cores_online(void);
int64_t ms__prim_cores_affine(void); /* cores this process may run on; 0 if unknown */

#endif
