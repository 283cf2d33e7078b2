/* fake_state.c - the common state of the fake libraries: settings, planned failures, live objects, contexts.
 *
 * One mutex protects all of it; only the stack of current contexts is thread-local.
 */
#define _POSIX_C_SOURCE 200809L
#include "fake.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_CALLS 256
#define MAX_RULES 64
#define MAX_DEPTH 16
#define DEFAULT_TOTAL ((uint64_t)24 << 30)

typedef struct rule {
    char call[64];
    int code;
    int64_t at; /* the call's number; -1: every one */
} rule;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static fake_settings settings;
static rule rules[MAX_RULES];
static int n_rules;
static struct {
    const char *name;
    int64_t n;
} calls[MAX_CALLS];
static int64_t n_calls;
static fake_object *objects;
static int64_t n_live[FAKE_N_KINDS];
static int contexts[FAKE_MAX_DEVICES]; /* how often each primary one is retained; its address is the context */
static int n_nvml_users;
static int64_t n_lost;
static _Thread_local void *stack[MAX_DEPTH];
static _Thread_local int depth;

static int64_t number_from(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    return text == NULL || text[0] == '\0' ? otherwise : strtoll(text, NULL, 10);
}

static void add_rule(const char *call, size_t n, int code, int64_t at) {
    if (n_rules == MAX_RULES || n >= sizeof rules[0].call) return;
    memcpy(rules[n_rules].call, call, n);
    rules[n_rules].call[n] = '\0';
    rules[n_rules].code = code;
    rules[n_rules++].at = at;
}

/* "name=code[@nth],..." */
static void read_rules(const char *text) {
    while (text != NULL && *text != '\0') {
        const char *equals = strchr(text, '='), *end = strchr(text, ',');
        if (equals == NULL) return;
        char *rest = NULL;
        int code = (int)strtol(equals + 1, &rest, 10);
        add_rule(text, (size_t)(equals - text), code, *rest == '@' ? strtoll(rest + 1, NULL, 10) : -1);
        text = end == NULL ? NULL : end + 1;
    }
}

static void start(void) {
    settings = (fake_settings){.n_devices = (int)number_from("FAKE_CUDA_DEVICES", 1),
                               .driver_version = (int)number_from("FAKE_CUDA_DRIVER", 13000),
                               .nvrtc_version = (int)number_from("FAKE_NVRTC_VERSION", 13000),
                               .nvrtc_first = 75,
                               .nvrtc_last = 121,
                               .is_mig = (int)number_from("FAKE_CUDA_MIG", 0),
                               .hide_pid = (int)number_from("FAKE_CUDA_HIDE_PID", 0),
                               .is_active = (int)number_from("FAKE_CUDA_ACTIVE", 0),
                               .total_bytes = (uint64_t)number_from("FAKE_CUDA_TOTAL", DEFAULT_TOTAL),
                               .others_bytes = (uint64_t)number_from("FAKE_CUDA_OTHERS", 0),
                               .name = "Fake GPU",
                               .compile_log = getenv("FAKE_NVRTC_LOG")};
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) settings.capability[i] = (int)number_from("FAKE_CUDA_CAPABILITY", 90);
    read_rules(getenv("FAKE_CUDA_FAIL"));
}

static void enter(void) {
    (void)pthread_once(&once, start);
    (void)pthread_mutex_lock(&lock);
}

static void leave(void) { (void)pthread_mutex_unlock(&lock); }

fake_settings *fake_settings_now(void) {
    (void)pthread_once(&once, start);
    return &settings;
}

static int64_t *count_of(const char *call) {
    int i = 0;
    while (i < MAX_CALLS && calls[i].name != NULL && strcmp(calls[i].name, call) != 0) i++;
    if (i == MAX_CALLS) return &n_calls;
    if (calls[i].name == NULL) calls[i].name = call;
    return &calls[i].n;
}

void fake_fail(const char *call, int code, int nth) {
    enter();
    add_rule(call, strlen(call), code, nth == 0 ? -1 : *count_of(call) + nth);
    leave();
}

void fake_fail_nothing(void) {
    enter();
    n_rules = 0;
    leave();
}

int64_t fake_calls(const char *call) {
    enter();
    int64_t n = n_calls;
    if (call != NULL) {
        n = 0;
        for (int i = 0; i < MAX_CALLS && calls[i].name != NULL; i++)
            if (strcmp(calls[i].name, call) == 0) n = calls[i].n;
    }
    leave();
    return n;
}

int fake_begin(const char *call) {
    enter();
    n_calls++;
    int64_t number = ++*count_of(call);
    for (int i = 0; i < n_rules; i++)
        if (strcmp(rules[i].call, call) == 0 && (rules[i].at < 0 || rules[i].at == number)) return rules[i].code;
    return 0;
}

int fake_end(int code) {
    leave();
    return code;
}

fake_object *fake_make(enum fake_kind kind, int device, size_t n_bytes) {
    fake_object *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    *made = (fake_object){.next = objects, .kind = kind, .device = device, .n_bytes = n_bytes, .kernel = -1};
    if (n_bytes > 0 && (made->memory = aligned_alloc(512, (n_bytes + 511) / 512 * 512)) == NULL) {
        free(made);
        return NULL;
    }
    objects = made;
    n_live[kind]++;
    return made;
}

/* Memory is known by its address, everything else by its record. */
/* What the libraries call the object by. */
static const void *handle_of(const fake_object *object) {
    if (object->kind == FAKE_REGISTERED) return object->pages;
    return object->kind == FAKE_MEMORY || object->kind == FAKE_PINNED ? object->memory : object;
}

static bool is_handle(const fake_object *object, enum fake_kind kind, const void *handle) {
    return object->kind == kind && handle == handle_of(object);
}

fake_object *fake_find(enum fake_kind kind, const void *handle) {
    fake_object *at = objects;
    while (at != NULL && !is_handle(at, kind, handle)) at = at->next;
    return at;
}

int fake_drop(enum fake_kind kind, const void *handle) {
    for (fake_object **at = &objects; *at != NULL; at = &(*at)->next) {
        if (!is_handle(*at, kind, handle)) continue;
        fake_object *gone = *at;
        *at = gone->next;
        n_live[kind]--;
        free(gone->memory);
        free(gone->log);
        free(gone);
        return 0;
    }
    return 400;
}

int64_t fake_live(enum fake_kind kind) {
    enter();
    int64_t n = n_live[kind];
    leave();
    return n;
}

int fake_in_range(int device, uint64_t address, size_t n_bytes) {
    for (const fake_object *at = objects; at != NULL; at = at->next) {
        uint64_t start = (uint64_t)(uintptr_t)at->memory;
        if (at->kind == FAKE_MEMORY && at->device == device && address >= start && address - start <= at->n_bytes &&
            n_bytes <= at->n_bytes - (address - start))
            return 1;
    }
    return 0;
}

uint64_t fake_used(int device) {
    uint64_t used = 0;
    for (const fake_object *at = objects; at != NULL; at = at->next)
        if (at->kind == FAKE_MEMORY && at->device == device) used += at->n_bytes;
    return used;
}

int fake_visible(int index) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (list == NULL) return index < settings.n_devices ? index : -1;
    for (; *list != '\0'; index--) {
        char *end = NULL;
        long device = strtol(list, &end, 10);
        if (end == list || device < 0 || device >= settings.n_devices) return -1; /* the rest is ignored */
        if (index == 0) return (int)device;
        list = *end == ',' ? end + 1 : end;
    }
    return -1;
}

int fake_n_visible(void) {
    int n = 0;
    while (n < FAKE_MAX_DEVICES && fake_visible(n) >= 0) n++;
    return n;
}

void *fake_context(int device) { return &contexts[device]; }

int fake_context_active(int device) { return contexts[device] > 0 || settings.is_active; }

/* When the last owner releases a context, everything in it is destroyed. */
static void lose_all(int device) {
    for (fake_object *at = objects, *next; at != NULL; at = next) {
        next = at->next;
        if (at->device != device || at->kind == FAKE_PROGRAM) continue;
        (void)fake_drop(at->kind, handle_of(at));
        n_lost++;
    }
}

int fake_retain(int device, int by) {
    if (device < 0 || device >= settings.n_devices) return 101;
    if (contexts[device] + by < 0) return 201;
    contexts[device] += by;
    if (!fake_context_active(device)) lose_all(device);
    return 0;
}

int64_t fake_lost(void) {
    enter();
    int64_t n = n_lost;
    leave();
    return n;
}

int64_t fake_retained(void) {
    int64_t n = 0;
    enter();
    for (int i = 0; i < FAKE_MAX_DEVICES; i++) n += contexts[i];
    leave();
    return n;
}

int fake_push_locked(void *context) {
    if ((int *)context < contexts || (int *)context >= contexts + FAKE_MAX_DEVICES || depth == MAX_DEPTH) return 201;
    stack[depth++] = context;
    return 0;
}

int fake_pop_locked(void **context) {
    if (depth == 0) return 201;
    *context = stack[--depth];
    return 0;
}

int fake_device_now(void) { return depth == 0 ? -1 : (int)((int *)stack[depth - 1] - contexts); }

const void *fake_current(int *out_depth) {
    *out_depth = depth;
    return depth == 0 ? NULL : stack[depth - 1];
}

void fake_push(int device) { (void)fake_push_locked(fake_context(device)); }

void fake_pop(void) {
    void *context = NULL;
    (void)fake_pop_locked(&context);
}

int fake_nvml_use(int by) {
    if (n_nvml_users + by < 0) return 1;
    n_nvml_users += by;
    return 0;
}

int64_t fake_nvml_users(void) {
    enter();
    int64_t n = n_nvml_users;
    leave();
    return n;
}

void *fake_alloc(int device, size_t n_bytes) {
    enter();
    fake_object *made = fake_make(FAKE_MEMORY, device, n_bytes);
    leave();
    return made == NULL ? NULL : made->memory;
}

void fake_free(void *memory) {
    enter();
    (void)fake_drop(FAKE_MEMORY, memory);
    leave();
}

int64_t fake_now_ns(void) {
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
