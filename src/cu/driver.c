/* driver.c - opening NVIDIA's libraries: driver.h.
 *
 * Nothing here is an error to the caller. A machine without a GPU, with a driver that is too old or broken, or without
 * one of the libraries is an ordinary machine: the text of the component says why it does not work.
 */
#include "driver.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../common/log.h"
#include "../prim/prim.h"

/* CUDA 11.8: the oldest that a supported torch (2.4) is built for. */
#define OLDEST_DRIVER 11080

typedef struct symbol {
    const char *name;
    size_t offset; /* in the table */
    enum { NEEDED, OPTIONAL } need;
} symbol;

#define CUDA_SYMBOL(result, name, arguments, need) {#name, offsetof(ms__cuda, name), need},
#define NVML_SYMBOL(result, name, arguments, need) {#name, offsetof(ms__nvml, name), need},
#define NVRTC_SYMBOL(result, name, arguments, need) {#name, offsetof(ms__nvrtc, name), need},

static const symbol cuda_symbols[] = {MS__CUDA_SYMBOLS(CUDA_SYMBOL){NULL, 0, NEEDED}};
static const symbol nvml_symbols[] = {MS__NVML_SYMBOLS(NVML_SYMBOL){NULL, 0, NEEDED}};
static const symbol nvrtc_symbols[] = {MS__NVRTC_SYMBOLS(NVRTC_SYMBOL){NULL, 0, NEEDED}};

static const char *const usual_nvrtc_names[] = {"libnvrtc.so.13",   "libnvrtc.so.12", "libnvrtc.so.11.2",
                                                "libnvrtc.so.11.8", "libnvrtc.so",    NULL};

void ms__component_works(ms__component *part, int64_t version, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(part->text, sizeof part->text, format, args);
    va_end(args);
    part->version = version;
    part->works = true;
}

void ms__component_fails(ms__component *part, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(part->text, sizeof part->text, format, args);
    va_end(args);
    part->version = 0;
    part->works = false;
}

const char *ms__cuda_error_name(const ms__cuda *cuda, int code, char *buffer) {
    const char *name = NULL;
    if (cuda->cuGetErrorName != NULL && cuda->cuGetErrorName(code, &name) == 0 && name != NULL) return name;
    (void)snprintf(buffer, MS__CUDA_NAME_BYTES, "error %d", code);
    return buffer;
}

ms_status ms__cuda_fail(const ms__cuda *cuda, const char *call, int code) {
    char buffer[MS__CUDA_NAME_BYTES];
    const char *text = NULL;
    if (cuda->cuGetErrorString == NULL || cuda->cuGetErrorString(code, &text) != 0) text = NULL;
    return ms__fail(MS_E_CUDA, "%s failed: %s%s%s", call, ms__cuda_error_name(cuda, code, buffer),
                    text == NULL ? "" : ", ", text == NULL ? "" : text);
}

/* Fill a table from a library; the name of the first function that is missing, or NULL. */
static const char *find_symbols(void *library, const symbol *symbols, void *table) {
    for (const symbol *wanted = symbols; wanted->name != NULL; wanted++) {
        void *address = ms__prim_find_symbol(library, wanted->name);
        if (address == NULL && wanted->need == NEEDED) return wanted->name;
        memcpy((char *)table + wanted->offset, &address, sizeof address); /* ISO C has no cast to a function */
    }
    return NULL;
}

/* Open a library and fill its table. On false, the reason is in `part`. */
static bool open_table(const char *path, bool loaded_only, const symbol *symbols, void *table, ms__component *part,
                       void **out_library) {
    void *library = NULL;
    part->is_there = ms__prim_open_library(path, loaded_only, &library) == MS_OK;
    if (!part->is_there) {
        ms__component_fails(part, "%s", ms_error_message());
        return false;
    }
    const char *missing = find_symbols(library, symbols, table);
    if (missing != NULL) {
        ms__component_fails(part, "%s has no function %s: it is too old", path, missing);
        return false;
    }
    *out_library = library;
    return true;
}

static void driver_fails(const ms__cuda *cuda, ms__component *part, const char *call, int code) {
    char buffer[MS__CUDA_NAME_BYTES];
    ms__component_fails(part, "%s failed: %s", call, ms__cuda_error_name(cuda, code, buffer));
}

void ms__driver_open(ms__cuda *cuda, ms__component *part, const char *path) {
    void *library = NULL;
    int version = 0, code;
    if (!open_table(path == NULL ? "libcuda.so.1" : path, false, cuda_symbols, cuda, part, &library)) return;
    if ((code = cuda->cuDriverGetVersion(&version)) != 0) {
        driver_fails(cuda, part, "cuDriverGetVersion", code);
    } else if (version < OLDEST_DRIVER) {
        ms__component_fails(part, "the driver is for CUDA %d.%d, and %d.%d or later is needed", version / 1000,
                            version % 1000 / 10, OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10);
    } else if ((code = cuda->cuInit(0)) != 0) {
        driver_fails(cuda, part, "cuInit", code);
    } else {
        ms__component_works(part, version, "%s", ms__prim_library_path(library));
    }
}

void ms__nvml_open(ms__nvml *nvml, ms__component *part, const char *path) {
    void *library = NULL;
    char version[80] = "";
    if (!open_table(path == NULL ? "libnvidia-ml.so.1" : path, false, nvml_symbols, nvml, part, &library)) return;
    int code = nvml->nvmlInit_v2();
    if (code != 0) {
        ms__component_fails(part, "nvmlInit failed: %s", nvml->nvmlErrorString(code));
        return;
    }
    if (nvml->nvmlSystemGetDriverVersion(version, sizeof version) != 0) memcpy(version, "?", 2);
    ms__component_works(part, 0, "%s, driver %s", ms__prim_library_path(library), version);
}

/* Open a compiler whose code the driver can load. On false, the reason is in `part`. */
static bool open_nvrtc(ms__nvrtc *nvrtc, ms__component *part, const char *path, bool loaded_only,
                       int64_t driver_version) {
    void *library = NULL;
    int major = 0, minor = 0;
    if (!open_table(path, loaded_only, nvrtc_symbols, nvrtc, part, &library)) return false;
    int code = nvrtc->nvrtcVersion(&major, &minor);
    if (code != 0) {
        ms__component_fails(part, "%s: nvrtcVersion failed: %s", path, nvrtc->nvrtcGetErrorString(code));
    } else if (driver_version != 0 && major > driver_version / 1000) {
        ms__component_fails(part, "%s belongs to CUDA %d.%d; the driver, for CUDA %d.%d, cannot load its code", path,
                            major, minor, (int)(driver_version / 1000), (int)(driver_version % 1000 / 10));
    } else {
        ms__component_works(part, major * 1000 + minor * 10, "%s", ms__prim_library_path(library));
    }
    return part->works;
}

void ms__nvrtc_open(ms__nvrtc *nvrtc, ms__component *part, const char *const *paths, int64_t driver_version) {
    ms__component first = {0}; /* its reason is reported: the first that could be opened, else the first */
    for (int loaded_only = paths == NULL; loaded_only >= 0; loaded_only--) {
        for (const char *const *path = paths == NULL ? usual_nvrtc_names : paths; *path != NULL; path++) {
            if (open_nvrtc(nvrtc, part, *path, loaded_only, driver_version)) return;
            ms__log(MS_LOG_DEBUG, "NVRTC: %s", part->text);
            if (!loaded_only && (first.text[0] == '\0' || (part->is_there && !first.is_there))) first = *part;
        }
    }
    *part = first;
    if (part->text[0] == '\0') ms__component_fails(part, "no path to libnvrtc was given");
}
