/* libnvml.c - the fake NVML. It sees all physical devices, in its own order, whatever CUDA_VISIBLE_DEVICES says. */
#define _POSIX_C_SOURCE 200809L
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../src/cu/driver.h"
#include "fake.h"

MS__NVML_SYMBOLS(FAKE_DECLARE)

enum { INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, UNINITIALIZED = 1 };

/* The driver and the firmware reserve some memory; it belongs to no process. */
#define RESERVED_BYTES ((uint64_t)512 << 20)

/* A handle is the address of one of these: whole devices, then slices. */
static char handles[2 * FAKE_MAX_DEVICES];

#define BEGIN(name)                                                                                                    \
    do {                                                                                                               \
        int injected = fake_begin(#name);                                                                              \
        if (injected != 0) return fake_end(injected);                                                                  \
        if (n_users == 0) return fake_end(UNINITIALIZED);                                                              \
    } while (0)

static int n_users; /* protected by the state's lock */

int nvmlInit_v2(void) {
    int injected = fake_begin("nvmlInit_v2");
    if (injected == 0) injected = fake_nvml_use(1);
    if (injected == 0) n_users++;
    return fake_end(injected);
}

int nvmlShutdown(void) {
    int injected = fake_begin("nvmlShutdown"), code = fake_nvml_use(-1);
    if (code == 0) n_users--;
    return fake_end(injected != 0 ? injected : code);
}

const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Unknown Error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned n_bytes) {
    BEGIN(nvmlSystemGetDriverVersion);
    (void)snprintf(text, n_bytes, "580.65.06");
    return fake_end(0);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, ms__nvml_device *device) {
    unsigned domain = 0, bus = 0;
    BEGIN(nvmlDeviceGetHandleByPciBusId_v2);
    if (sscanf(id, "%x:%x:00.0", &domain, &bus) != 2) return fake_end(INVALID);
    if (domain != 0 || bus < 0x40 || bus >= 0x40U + (unsigned)fake_settings_now()->n_devices)
        return fake_end(NOT_FOUND);
    *device = (ms__nvml_device)(void *)&handles[bus - 0x40];
    return fake_end(0);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, ms__nvml_device *device) {
    unsigned last = 0;
    BEGIN(nvmlDeviceGetHandleByUUID);
    bool slice = strncmp(uuid, "MIG-", 4) == 0;
    if (strlen(uuid) != 40 || sscanf(uuid + 38, "%2x", &last) != 1) return fake_end(INVALID);
    int index = (int)last - 0xF0;
    if (index < 0 || index >= fake_settings_now()->n_devices || slice != (fake_settings_now()->is_mig != 0))
        return fake_end(NOT_FOUND);
    *device = (ms__nvml_device)(void *)&handles[index + (slice ? FAKE_MAX_DEVICES : 0)];
    return fake_end(0);
}

static int index_of(ms__nvml_device device) { return (int)((char *)(void *)device - handles); }

int nvmlDeviceGetMaxPcieLinkGeneration(ms__nvml_device device, unsigned *generation) {
    BEGIN(nvmlDeviceGetMaxPcieLinkGeneration);
    if (index_of(device) >= FAKE_MAX_DEVICES) return fake_end(NOT_SUPPORTED); /* slices have no link */
    *generation = 5;
    return fake_end(0);
}

int nvmlDeviceGetMaxPcieLinkWidth(ms__nvml_device device, unsigned *width) {
    BEGIN(nvmlDeviceGetMaxPcieLinkWidth);
    if (index_of(device) >= FAKE_MAX_DEVICES) return fake_end(NOT_SUPPORTED);
    *width = 16;
    return fake_end(0);
}

static uint64_t used_bytes(ms__nvml_device device) {
    return fake_used(index_of(device) % FAKE_MAX_DEVICES) + fake_settings_now()->others_bytes;
}

int nvmlDeviceGetMemoryInfo(ms__nvml_device device, ms__nvml_memory *memory) {
    BEGIN(nvmlDeviceGetMemoryInfo);
    uint64_t total = fake_settings_now()->total_bytes;
    *memory = (ms__nvml_memory){.total = total, .free = total - used_bytes(device), .used = used_bytes(device)};
    return fake_end(0);
}

int nvmlDeviceGetMemoryInfo_v2(ms__nvml_device device, ms__nvml_memory_v2 *memory) {
    BEGIN(nvmlDeviceGetMemoryInfo_v2);
    if (memory->version != MS__NVML_MEMORY_V2) return fake_end(25);
    uint64_t total = fake_settings_now()->total_bytes + RESERVED_BYTES;
    *memory = (ms__nvml_memory_v2){.version = MS__NVML_MEMORY_V2,
                                   .total = total,
                                   .reserved = RESERVED_BYTES,
                                   .free = total - RESERVED_BYTES - used_bytes(device),
                                   .used = used_bytes(device)};
    return fake_end(0);
}

/* This process, if it has a context, and one other, if others use memory. */
static int list_processes(ms__nvml_device device, unsigned *n, ms__nvml_process *processes) {
    const fake_settings *settings = fake_settings_now();
    int index = index_of(device) % FAKE_MAX_DEVICES;
    unsigned wanted = (unsigned)(fake_context_active(index) != 0) + (unsigned)(settings->others_bytes > 0), room = *n;
    *n = wanted;
    if (room < wanted) return TOO_SMALL;
    unsigned at = 0, pid = (unsigned)getpid();
    if (settings->others_bytes > 0)
        processes[at++] = (ms__nvml_process){.pid = 1, .used_bytes = settings->others_bytes};
    if (fake_context_active(index))
        processes[at] =
            (ms__nvml_process){.pid = settings->hide_pid ? pid + 1000000 : pid, .used_bytes = fake_used(index)};
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v2(ms__nvml_device device, unsigned *n, ms__nvml_process *processes) {
    BEGIN(nvmlDeviceGetComputeRunningProcesses_v2);
    return fake_end(list_processes(device, n, processes));
}

int nvmlDeviceGetComputeRunningProcesses_v3(ms__nvml_device device, unsigned *n, ms__nvml_process *processes) {
    BEGIN(nvmlDeviceGetComputeRunningProcesses_v3);
    return fake_end(list_processes(device, n, processes));
}
