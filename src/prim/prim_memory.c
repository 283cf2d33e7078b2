/* prim_memory.c - whole pages of memory, for pools: prim.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "prim.h"

#define MAX_NODES 64 /* one word of a mask */
#define PREFER 1     /* MPOL_PREFERRED: other nodes, too, if that one is full */

/* A child that is forked must not share pages that a device writes to. Where they lie is a wish. */
ms_status ms__prim_map(int64_t n_bytes, int64_t numa_node, void **out) {
    void *memory = mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return ms__fail_memory((size_t)n_bytes);
    (void)madvise(memory, (size_t)n_bytes, MADV_DONTFORK);
    if (numa_node >= 0 && numa_node < MAX_NODES) {
        unsigned long mask = 1UL << numa_node;
        (void)syscall(SYS_mbind, memory, (size_t)n_bytes, PREFER, &mask, (unsigned long)MAX_NODES + 1, 0U);
    }
    *out = memory;
    return MS_OK;
}

void ms__prim_unmap(void *memory, int64_t n_bytes) {
    if (memory != NULL) (void)munmap(memory, (size_t)n_bytes);
}

int64_t ms__prim_numa_node(const char *root, const char *pci_id) {
    char path[128], *text = NULL;
    int n = snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", pci_id);
    if (n < 0 || (size_t)n >= sizeof path || ms__prim_read_text(root, path, 64, &text) != MS_OK) {
        ms_error_clear();
        return -1;
    }
    long node = strtol(text, NULL, 10);
    free(text);
    return node < 0 || node > INT_MAX ? -1 : node;
}
