/* libnvrtc.c - the fake compiler: its code is a record of what it was given, which the fake driver can load.
 *
 * It reads no C++. It only checks what MemScale must get right: a known architecture, no includes, an entry point.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/cu/driver.h"
#include "fake.h"

MS__NVRTC_SYMBOLS(FAKE_DECLARE)

enum { NO_MEMORY = 1, INVALID = 3, BAD_PROGRAM = 4, BAD_OPTION = 5, COMPILATION = 6 };

static const int architectures[] = {50, 60, 70, 75, 80, 86, 87, 89, 90, 100, 103, 120, 121};

#define BEGIN(name)                                                                                                    \
    do {                                                                                                               \
        int injected = fake_begin(#name);                                                                              \
        if (injected != 0) return fake_end(injected);                                                                  \
    } while (0)

const char *nvrtcGetErrorString(int code) {
    return code == COMPILATION  ? "NVRTC_ERROR_COMPILATION"
           : code == BAD_OPTION ? "NVRTC_ERROR_INVALID_OPTION"
                                : "NVRTC_ERROR_INTERNAL_ERROR";
}

int nvrtcVersion(int *major, int *minor) {
    BEGIN(nvrtcVersion);
    *major = fake_settings_now()->nvrtc_version / 1000;
    *minor = fake_settings_now()->nvrtc_version % 1000 / 10;
    return fake_end(0);
}

/* The architectures that this version knows; returns how many. */
static int list_architectures(int *out) {
    int n = 0;
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        int one = architectures[i];
        if (one < fake_settings_now()->nvrtc_first || one > fake_settings_now()->nvrtc_last) continue;
        if (out != NULL) out[n] = one;
        n++;
    }
    return n;
}

int nvrtcGetNumSupportedArchs(int *n) {
    BEGIN(nvrtcGetNumSupportedArchs);
    *n = list_architectures(NULL);
    return fake_end(0);
}

int nvrtcGetSupportedArchs(int *out) {
    BEGIN(nvrtcGetSupportedArchs);
    (void)list_architectures(out);
    return fake_end(0);
}

/* A program keeps its source in `memory` until it is compiled, then its code. */
int nvrtcCreateProgram(ms__nvrtc_program *program, const char *source, const char *name, int n_headers,
                       const char *const *headers, const char *const *names) {
    BEGIN(nvrtcCreateProgram);
    if (source == NULL || name == NULL || n_headers != 0 || headers != NULL || names != NULL) return fake_end(INVALID);
    fake_object *made = fake_make(FAKE_PROGRAM, 0, strlen(source) + 1);
    if (made == NULL) return fake_end(NO_MEMORY);
    memcpy(made->memory, source, made->n_bytes);
    *program = (ms__nvrtc_program)(void *)made;
    return fake_end(0);
}

int nvrtcDestroyProgram(ms__nvrtc_program *program) {
    int injected = fake_begin("nvrtcDestroyProgram");
    int code = fake_drop(FAKE_PROGRAM, *program) == 0 ? 0 : BAD_PROGRAM;
    if (code == 0) *program = NULL;
    return fake_end(injected != 0 ? injected : code);
}

static int fails(fake_object *program, int code, const char *log) {
    free(program->log);
    size_t n = strlen(log) + 1;
    program->log = malloc(n);
    if (program->log != NULL) memcpy(program->log, log, n);
    return code;
}

/* The entry point: the first MS__KERNEL(name) that is not its definition. */
static int find_entry(const char *source, char *entry) {
    for (const char *at = source; (at = strstr(at, "MS__KERNEL(")) != NULL; at++) {
        int is_definition = at >= source + 8 && strncmp(at - 8, "#define ", 8) == 0;
        if (!is_definition && sscanf(at, "MS__KERNEL(%127[A-Za-z0-9_])", entry) == 1) return 1;
    }
    return 0;
}

static int compile(fake_object *program, int n_options, const char *const *options) {
    char code[1024], entry[128], kind[8];
    const char *source = program->memory;
    int known[64], n_known = list_architectures(known), architecture = 0, found = 0;
    if (n_options != 1 || sscanf(options[0], "--gpu-architecture=%7[a-z]_%d", kind, &architecture) != 2)
        return fails(program, BAD_OPTION, "nvrtc: error: unknown option");
    for (int i = 0; i < n_known; i++) found |= known[i] == architecture;
    if (!found) return fails(program, BAD_OPTION, "nvrtc: error: invalid value for --gpu-architecture");
    if (fake_settings_now()->compile_log != NULL) return fails(program, COMPILATION, fake_settings_now()->compile_log);
    if (strstr(source, "#include") != NULL) return fails(program, COMPILATION, "could not open source file");
    if (!find_entry(source, entry)) return fails(program, COMPILATION, "no entry point");
    int n = strcmp(kind, "sm") == 0
                ? snprintf(code, sizeof code, "FAKECUBIN\narch=%d\nsource=%016" PRIx64 "\noption=%s\nentry=%s\n",
                           architecture, (uint64_t)strlen(source), options[0], entry)
                : snprintf(code, sizeof code, "//\n.version 8.0\n.target sm_%d\n.visible .entry %s(\n", architecture,
                           entry);
    free(program->memory);
    program->memory = malloc((size_t)n + 1);
    if (program->memory == NULL) return NO_MEMORY;
    memcpy(program->memory, code, (size_t)n + 1);
    program->n_bytes = (size_t)n + 1;
    program->kernel = strcmp(kind, "sm") == 0; /* 1: machine code, 0: PTX */
    return fails(program, 0, "");
}

int nvrtcCompileProgram(ms__nvrtc_program program, int n_options, const char *const *options) {
    BEGIN(nvrtcCompileProgram);
    fake_object *found = fake_find(FAKE_PROGRAM, program);
    return fake_end(found == NULL ? BAD_PROGRAM : compile(found, n_options, options));
}

static int get(ms__nvrtc_program program, int kind, size_t *n_bytes, char *image) {
    const fake_object *found = fake_find(FAKE_PROGRAM, program);
    if (found == NULL || found->kernel != kind) return BAD_PROGRAM;
    if (n_bytes != NULL) *n_bytes = found->n_bytes;
    if (image != NULL) memcpy(image, found->memory, found->n_bytes);
    return 0;
}

int nvrtcGetProgramLogSize(ms__nvrtc_program program, size_t *n_bytes) {
    BEGIN(nvrtcGetProgramLogSize);
    const fake_object *found = fake_find(FAKE_PROGRAM, program);
    if (found == NULL || found->log == NULL) return fake_end(BAD_PROGRAM);
    *n_bytes = strlen(found->log) + 1;
    return fake_end(0);
}

int nvrtcGetProgramLog(ms__nvrtc_program program, char *log) {
    BEGIN(nvrtcGetProgramLog);
    const fake_object *found = fake_find(FAKE_PROGRAM, program);
    if (found == NULL || found->log == NULL) return fake_end(BAD_PROGRAM);
    memcpy(log, found->log, strlen(found->log) + 1);
    return fake_end(0);
}

int nvrtcGetCUBINSize(ms__nvrtc_program program, size_t *n_bytes) {
    BEGIN(nvrtcGetCUBINSize);
    return fake_end(get(program, 1, n_bytes, NULL));
}

int nvrtcGetCUBIN(ms__nvrtc_program program, char *image) {
    BEGIN(nvrtcGetCUBIN);
    return fake_end(get(program, 1, NULL, image));
}

int nvrtcGetPTXSize(ms__nvrtc_program program, size_t *n_bytes) {
    BEGIN(nvrtcGetPTXSize);
    return fake_end(get(program, 0, n_bytes, NULL));
}

int nvrtcGetPTX(ms__nvrtc_program program, char *image) {
    BEGIN(nvrtcGetPTX);
    return fake_end(get(program, 0, NULL, image));
}
