/* bench_simulate.c - how long simulations take: 1,000 of them, each with another plan, with and without the allocator.
 *
 *   bench_simulate [PROFILE.json]     built with the C tests (build/tests/bench_simulate), or by hand:
 *   cc -O2 -Iinclude bench/bench_simulate.c build/libmemscale.a -lm -ldl -pthread -o bench_simulate
 *
 * Without a file, the model has 50 units that do about what 50 blocks of GPT-2 do. The limit: 1,000 simulations of 50
 * units without the allocator within a second.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <memscale/memscale.h>

#include "devices.h"

#define N_SIMULATIONS 1000
#define N_UNITS 50
#define MAX_EVENTS 100000
#define MAX_FILE_BYTES ((size_t)64 << 20)

enum { FORWARD_OPS = 48, SAVED = 16, BACKWARD_OPS = 100 };

typedef struct recorder {
    ms_trace_event *events;
    int64_t *kinds;
    int64_t n_events, n_storages;
} recorder;

static void die(const char *what) {
    fprintf(stderr, "simulate: %s: %s\n", what, ms_error_message());
    exit(1);
}

static void say(recorder *r, int64_t kind, int64_t a, int64_t b) {
    if (r->n_events == MAX_EVENTS) die("too many events");
    r->events[r->n_events++] = (ms_trace_event){kind, a, b};
}

static int64_t take(recorder *r, int64_t category, int64_t n_bytes) {
    r->kinds[r->n_storages] = category;
    say(r, MS_TRACE_ALLOC, r->n_storages, n_bytes);
    return r->n_storages++;
}

/* Every other operation allocates a tensor; every third of these is kept for backward, the others are freed at once. */
static void run(recorder *r, int n_ops, int64_t *saved) {
    for (int i = 0, n_saved = 0; i < n_ops; i++) {
        say(r, MS_TRACE_OP, i % 4, 0);
        if (i % 2 == 1) continue;
        int64_t made = take(r, MS_CATEGORY_ACTIVATION, (int64_t)(1 + i % 7) << 20);
        if (saved != NULL && i % 3 == 0 && n_saved < SAVED)
            saved[n_saved++] = made;
        else
            say(r, MS_TRACE_FREE, made, 0);
    }
}

static void free_saved(recorder *r, const int64_t *saved) {
    for (int i = 0; i < FORWARD_OPS / 6; i++) say(r, MS_TRACE_FREE, saved[i], 0);
}

static void record(recorder *r, int recomputed) {
    static int64_t saved[N_UNITS][SAVED], results[N_UNITS];
    for (int64_t i = 0; i < 12 * N_UNITS; i++) (void)take(r, MS_CATEGORY_PARAMETER, (1 + i % 12) << 18);
    say(r, MS_TRACE_PHASE, MS_PHASE_FORWARD, 0);
    for (int64_t u = 0; u < N_UNITS; u++) {
        say(r, MS_TRACE_UNIT, u, 0);
        run(r, FORWARD_OPS, saved[u]);
        results[u] = take(r, MS_CATEGORY_ACTIVATION, 4 << 20);
        if (recomputed) free_saved(r, saved[u]);
    }
    say(r, MS_TRACE_PHASE, MS_PHASE_BACKWARD, 0);
    for (int64_t u = N_UNITS - 1; u >= 0; u--) {
        say(r, MS_TRACE_UNIT, u, 0);
        if (recomputed) {
            say(r, MS_TRACE_RECOMPUTE, u, 0);
            run(r, FORWARD_OPS, saved[u]);
            say(r, MS_TRACE_RECOMPUTE, -1, 0);
        }
        run(r, BACKWARD_OPS, NULL);
        for (int64_t i = 0; i < 12; i++) (void)take(r, MS_CATEGORY_GRADIENT, (1 + i) << 18);
        free_saved(r, saved[u]);
        say(r, MS_TRACE_FREE, results[u], 0);
    }
    for (int64_t phase = MS_PHASE_OPTIMIZER_FIRST; phase <= MS_PHASE_OPTIMIZER; phase++) {
        say(r, MS_TRACE_UNIT, -1, 0);
        say(r, MS_TRACE_PHASE, phase, 0);
        for (int64_t i = 0; i < 12 * N_UNITS; i++) {
            say(r, MS_TRACE_OP, 0, 0);
            if (phase == MS_PHASE_OPTIMIZER_FIRST) (void)take(r, MS_CATEGORY_OPTIMIZER, (1 + i % 12) << 19);
        }
    }
}

static ms_profile *made_up(void) {
    static const char *const op_names[] = {"aten.mm.default", "aten.gelu.default", "aten.add.Tensor",
                                           "aten.view.default"};
    static const ms_trace_operand operands[] = {{0, 4, 2, {512, 1024, 1, 1, 1, 1}, 1},
                                                {0, 4, 2, {1024, 1024, 1, 1, 1, 1}, 1}};
    static const ms_trace_op ops[] = {{0, 0, 2, 0}, {1, 0, 1, 0}, {2, 0, 2, 0}, {3, 0, 1, 0}};
    static char texts[N_UNITS][16];
    static const char *names[N_UNITS];
    static int64_t sizes[N_UNITS];
    ms_trace traces[2];
    for (int i = 0; i < N_UNITS; i++) {
        (void)snprintf(texts[i], sizeof texts[i], "layers.%d", i);
        names[i] = texts[i];
    }
    for (int v = 0; v < 2; v++) {
        recorder r = {.events = calloc(MAX_EVENTS, sizeof *r.events), .kinds = calloc(MAX_EVENTS, sizeof *r.kinds)};
        if (r.events == NULL || r.kinds == NULL) die("out of memory");
        record(&r, v);
        traces[v] = (ms_trace){.struct_bytes = sizeof(ms_trace),
                               .events = r.events,
                               .n_events = r.n_events,
                               .ops = ops,
                               .n_ops = 4,
                               .operands = operands,
                               .n_operands = 2,
                               .names = op_names,
                               .n_names = 4,
                               .kinds = r.kinds,
                               .n_storages = r.n_storages};
    }
    ms_profile_request request = {.struct_bytes = sizeof request,
                                  .unit_names = names,
                                  .unit_param_bytes = sizes,
                                  .n_units = N_UNITS,
                                  .plain = &traces[0],
                                  .recomputed = &traces[1]};
    ms_profile *profile = NULL;
    if (ms_profile_from_traces(&request, &profile) != MS_OK) die("the profile cannot be made");
    for (int v = 0; v < 2; v++) {
        free((void *)traces[v].events);
        free((void *)traces[v].kinds);
    }
    return profile;
}

static ms_profile *from_file(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = malloc(MAX_FILE_BYTES);
    ms_profile *profile = NULL;
    if (file == NULL || text == NULL) die(path);
    size_t n = fread(text, 1, MAX_FILE_BYTES, file);
    (void)fclose(file);
    if (ms_profile_from_json(text, n, &profile) != MS_OK) die(path);
    free(text);
    return profile;
}

static double now_s(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void measure(const ms_profile *profile, int64_t n_units, const char *what, uint32_t flags) {
    int32_t *actions = calloc((size_t)n_units + 1, sizeof *actions);
    ms_gpu_model model = {.struct_bytes = sizeof model};
    ms_rates rates = {.struct_bytes = sizeof rates};
    ms_simulation_summary s = {.struct_bytes = sizeof s};
    if (actions == NULL || ms_gpu_model_find("rtx3090", &model) != MS_OK ||
        ms_rates_from_model(&model, &rates) != MS_OK)
        die("no rates");
    int64_t n_ops = 0;
    double start = now_s();
    for (int64_t i = 0; i < N_SIMULATIONS; i++) {
        for (int64_t u = 0; u < n_units; u++) actions[u] = ms_hash64(&u, sizeof u, (uint64_t)i) % 2 == 0;
        ms_simulation_request request = {.struct_bytes = sizeof request,
                                         .profile = profile,
                                         .actions = actions,
                                         .n_actions = n_units,
                                         .device = DEVICE_OF(&rates, model.n_multiprocessors),
                                         .flags = flags};
        ms_simulation *sim = NULL;
        if (ms_simulation_create(&request, &sim) != MS_OK || ms_simulation_get_summary(sim, &s) != MS_OK)
            die("it cannot be simulated");
        ms_simulation_destroy(sim);
        n_ops += s.n_ops;
    }
    double seconds = now_s() - start;
    printf("%-22s %d simulations in %.3f s of CPU time: %.3f ms each, %" PRId64 " units, %" PRId64
           " operations a step\n",
           what, N_SIMULATIONS, seconds, seconds * 1e3 / N_SIMULATIONS, n_units, n_ops / N_SIMULATIONS);
    free(actions);
}

int main(int argc, char **argv) {
    ms_profile *profile = argc > 1 ? from_file(argv[1]) : made_up();
    ms_profile_view view = {.struct_bytes = sizeof view};
    if (ms_profile_get_view(profile, &view) != MS_OK) die("no profile");
    measure(profile, view.n_units, "sizes alone:", 0);
    measure(profile, view.n_units, "with the allocator:", MS_SIMULATE_ALLOCATOR);
    ms_profile_destroy(profile);
    return 0;
}
