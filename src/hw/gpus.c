/* gpus.c - the GPUs of the hardware record.
 *
 * No context is created: finding out what a plan needs must not cost memory on the device. The driver describes the
 * device. Free memory comes from the driver if this process already has a context on the device, else from NVML, which
 * also knows the link and the other processes. NVML numbers devices in its own way, so they are found by bus address,
 * slices (MIG) by their UUID. What is unknown is -1, 0 or "", as memscale.h says; only a device without a name, memory
 * or capability is left out.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../common/log.h"
#include "../cu/gpu.h"
#include "hw.h"

#define MAX_PROCESSES 512
#define BUS_ID_BYTES 32

typedef struct reading {
    ms_gpu *gpu;
    int64_t index;
    int handle;
    ms__nvml_device whole;  /* the device; NULL: NVML does not know it */
    ms__nvml_device memory; /* what has its memory: the slice, or the whole */
} reading;

static bool attribute(const reading *r, int which, int64_t *out) {
    int value = 0;
    if (r->gpu->cuda.cuDeviceGetAttribute(&value, which, r->handle) != 0) return false;
    *out = value;
    return true;
}

/* Names are ASCII; anything else that a driver might put there would not be valid JSON. */
static void clean_name(char *name) {
    for (; *name != '\0'; name++)
        if (*name < ' ' || *name > '~') *name = '?';
}

/* The fields that must be known. Errors: MS_E_CUDA. */
static ms_status read_device(const reading *r, ms_hw_gpu *out) {
    const ms__cuda *cuda = &r->gpu->cuda;
    size_t total = 0;
    int code = cuda->cuDeviceGetName(out->name, (int)sizeof out->name, r->handle);
    if (code != 0) return ms__cuda_fail(cuda, "cuDeviceGetName", code);
    out->name[sizeof out->name - 1] = '\0';
    clean_name(out->name);
    code = cuda->cuDeviceTotalMem_v2(&total, r->handle);
    if (code != 0) return ms__cuda_fail(cuda, "cuDeviceTotalMem", code);
    out->memory_total_bytes = (int64_t)total;
    ms_status status = ms__gpu_capability(r->gpu, r->index, &out->capability);
    if (status != MS_OK) return status;
    out->has_bf16 = ms_capability_has_bf16(out->capability);
    out->has_fp16 = ms_capability_has_fp16(out->capability);
    (void)attribute(r, MS__CUDA_ATTRIBUTE_MULTIPROCESSORS, &out->n_multiprocessors);
    (void)attribute(r, MS__CUDA_ATTRIBUTE_INTEGRATED, &out->is_integrated);
    return MS_OK;
}

static bool read_uuid(const reading *r, const char *kind, char *out, size_t n_bytes) {
    ms__cu_uuid uuid;
    if (r->gpu->cuda.cuDeviceGetUuid_v2 == NULL || r->gpu->cuda.cuDeviceGetUuid_v2(&uuid, r->handle) != 0) return false;
    size_t n = (size_t)snprintf(out, n_bytes, "%s", kind);
    for (size_t i = 0; i < sizeof uuid.bytes; i++)
        n += (size_t)snprintf(out + n, n_bytes - n, "%s%02x", i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "",
                              uuid.bytes[i]);
    return true;
}

/* Find the device in NVML, and whether it is a slice. */
static void find_in_nvml(reading *r, ms_hw_gpu *out) {
    const ms__nvml *nvml = &r->gpu->nvml;
    char slice[sizeof out->uuid] = "", bus_id[BUS_ID_BYTES] = "";
    bool has_uuid = read_uuid(r, "MIG", slice, sizeof slice);
    out->is_mig = strstr(out->name, " MIG ") != NULL; /* as drivers name slices; without NVML there is no other sign */
    if (r->gpu->nvml_component.works) {
        if (has_uuid && nvml->nvmlDeviceGetHandleByUUID(slice, &r->memory) == 0) out->is_mig = 1;
        if (r->gpu->cuda.cuDeviceGetPCIBusId(bus_id, BUS_ID_BYTES, r->handle) != 0 ||
            nvml->nvmlDeviceGetHandleByPciBusId_v2(bus_id, &r->whole) != 0)
            r->whole = NULL;
        if (!out->is_mig) r->memory = r->whole;
    }
    if (has_uuid) (void)read_uuid(r, out->is_mig ? "MIG" : "GPU", out->uuid, sizeof out->uuid);
}

static void read_link(const reading *r, ms_hw_gpu *out) {
    unsigned generation = 0, width = 0;
    if (r->whole == NULL) return;
    if (r->gpu->nvml.nvmlDeviceGetMaxPcieLinkGeneration(r->whole, &generation) == 0) out->pcie_generation = generation;
    if (r->gpu->nvml.nvmlDeviceGetMaxPcieLinkWidth(r->whole, &width) == 0) out->pcie_width = width;
}

/* Memory in use by anyone, and free, as NVML sees it. What the driver keeps for itself counts as neither. */
static bool read_nvml_memory(const reading *r, int64_t *out_free, int64_t *out_used) {
    const ms__nvml *nvml = &r->gpu->nvml;
    ms__nvml_memory_v2 now = {.version = MS__NVML_MEMORY_V2};
    ms__nvml_memory old = {0};
    if (r->memory == NULL) return false;
    if (nvml->nvmlDeviceGetMemoryInfo_v2 != NULL && nvml->nvmlDeviceGetMemoryInfo_v2(r->memory, &now) == 0) {
        *out_used = (int64_t)(now.total - now.reserved - now.free);
        *out_free = (int64_t)now.free;
    } else if (nvml->nvmlDeviceGetMemoryInfo(r->memory, &old) == 0) {
        *out_used = (int64_t)(old.total - old.free);
        *out_free = (int64_t)old.free;
    } else {
        return false;
    }
    return *out_used >= 0 && *out_free >= 0;
}

/* What this process uses of the device; -1 where NVML does not see it, as in most containers. */
static int64_t own_bytes(const reading *r) {
    const ms__nvml *nvml = &r->gpu->nvml;
    ms__nvml_process processes[MAX_PROCESSES];
    unsigned n = MAX_PROCESSES;
    int code = nvml->nvmlDeviceGetComputeRunningProcesses_v3 != NULL
                   ? nvml->nvmlDeviceGetComputeRunningProcesses_v3(r->memory, &n, processes)
               : nvml->nvmlDeviceGetComputeRunningProcesses_v2 != NULL
                   ? nvml->nvmlDeviceGetComputeRunningProcesses_v2(r->memory, &n, processes)
                   : -1;
    if (code != 0 || n > MAX_PROCESSES) return -1;
    for (unsigned i = 0; i < n; i++)
        if (processes[i].pid == (unsigned)r->gpu->pid && processes[i].used_bytes <= INT64_MAX)
            return (int64_t)processes[i].used_bytes;
    return -1;
}

/* Is there a context of this process on the device? Then the driver's figure for free memory is preferred to NVML's,
 * and some of the memory in use is ours. */
typedef enum presence { ABSENT, PRESENT, UNKNOWN } presence;

static presence find_context(const reading *r) {
    unsigned flags = 0;
    int active = 0;
    if (r->gpu->cuda.cuDevicePrimaryCtxGetState(r->handle, &flags, &active) != 0) return UNKNOWN;
    return active != 0 ? PRESENT : ABSENT;
}

static bool read_driver_free(const reading *r, int64_t *out) {
    size_t free_bytes = 0, total_bytes = 0;
    if (ms__gpu_enter(r->gpu, r->index) != MS_OK) return false;
    bool known = r->gpu->cuda.cuMemGetInfo_v2(&free_bytes, &total_bytes) == 0;
    if (ms__gpu_leave(r->gpu, MS_OK) != MS_OK || !known) return false;
    *out = (int64_t)free_bytes;
    return true;
}

static void read_memory(const reading *r, ms_hw_gpu *out) {
    int64_t nvml_free = -1, used = -1;
    presence context = find_context(r);
    bool known = read_nvml_memory(r, &nvml_free, &used);
    out->memory_free_bytes = known ? nvml_free : -1;
    if (context == PRESENT) (void)read_driver_free(r, &out->memory_free_bytes);
    if (out->memory_free_bytes > out->memory_total_bytes) out->memory_free_bytes = out->memory_total_bytes;
    int64_t own = context == ABSENT ? 0 : known && context == PRESENT ? own_bytes(r) : -1;
    out->memory_others_bytes = !known || own < 0 ? -1 : used > own ? used - own : 0;
}

void ms__hw_read_gpus(ms_gpu *gpu, ms_hw *out) {
    int64_t n = ms_gpu_count_devices(gpu);
    for (int64_t i = 0; i < n && out->n_gpus < MS_HW_MAX_GPUS; i++) {
        reading r = {.gpu = gpu, .index = i, .handle = gpu->devices[i].handle};
        ms_hw_gpu found = {.index = i};
        if (read_device(&r, &found) != MS_OK) {
            ms__log(MS_LOG_WARNING, "GPU %" PRId64 " is left out: %s", i, ms_error_message());
            continue;
        }
        find_in_nvml(&r, &found);
        read_link(&r, &found);
        read_memory(&r, &found);
        out->gpus[out->n_gpus++] = found;
    }
}
