/* bench_plan.c - how long plans take, and how much memory: the search alone, and whole requests.
 *
 *   bench_plan     built with the C tests (build/tests/bench_plan)
 *
 * The limits, in one thread and with every action allowed: 96 equal units within 5 ms, 200 different ones within 100
 * ms, 1,000 within 2 s; at most 64 MB. Times are medians of CPU time. Each case runs in its own process, whose peak of
 * resident memory is printed.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "devices.h"
#include "plan/chain.h"

#define N_RUNS 9
#define MAX_UNITS 1000
#define KB INT64_C(1024)
#define MB (KB * KB)

typedef struct way {
    const char *name;
    uint32_t actions;
    uint32_t model_options; /* used by whole requests only */
    bool limited;           /* host memory is limited */
} way;

enum {
    RECOMPUTE = 1 << MS_ACTION_RECOMPUTE,
    SELECTIVE = RECOMPUTE | 1 << MS_ACTION_RECOMPUTE_EXCEPT_BOTH | 1 << MS_ACTION_RECOMPUTE_EXCEPT_PRODUCTS |
        1 << MS_ACTION_RECOMPUTE_EXCEPT_ATTENTION,
    EVERYTHING = (1 << MS_N_ACTIONS) - 1
};

static const way ways[] = {{"recompute", RECOMPUTE, 0, false},
                           {"selective, recompute", SELECTIVE, 0, false},
                           {"every action", EVERYTHING, 0, false},
                           {"every action, little host memory", EVERYTHING, 0, true},
                           {"every action and model option", EVERYTHING, MS_MODEL_ALL, false}};

static void die(const char *what) {
    fprintf(stderr, "plan: %s: %s\n", what, ms_error_message());
    exit(1);
}

static double now_ms(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

static double peak_mb(void) {
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *times) {
    qsort(times, N_RUNS, sizeof *times, by_size);
    return times[N_RUNS / 2];
}

/* ---- Chains ---- */

static uint64_t state = 88172645463325252U;

/* From `least` to twice as much; `least` if all are equal. */
static int64_t around(int64_t least, bool different) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return different ? least + (int64_t)(state % (uint64_t)least) : least;
}

/* A block of a language model, as in real profiles. */
static void make_unit(ms__chain_unit *unit, const ms__link *link, bool different) {
    int64_t saved = around(300 * MB, different), result = around(16 * MB, different), ns = around(2000000, different);
    int64_t whole = 2000 * MB + saved, products = saved / 2, attention = saved / 20;
    const ms__option all[MS_N_ACTIONS] = {
        {.held_bytes = saved + result, .forward_bytes = whole, .backward_bytes = whole},
        {.held_bytes = result, .forward_bytes = whole, .backward_bytes = whole + result, .extra_ns = ns},
        {.held_bytes = result + products + attention, .extra_ns = ns / 5},
        {.held_bytes = result + products, .extra_ns = ns / 3},
        {.held_bytes = result + attention, .extra_ns = ns * 4 / 5},
        {.held_bytes = result, .copy_bytes = saved, .extra_ns = ns / 20},
        {.held_bytes = result, .copy_bytes = saved, .extra_ns = ns / 20, .waits = true},
        {.copy_bytes = result, .extra_ns = ns + ns / 100},
        {.copy_bytes = result, .extra_ns = ns + ns / 100, .waits = true},
        {.held_bytes = result, .backward_bytes = whole - saved / 2, .extra_ns = ns + ns / 4}};
    for (int a = 0; a < MS_N_ACTIONS; a++) {
        ms__option *o = &unit->options[a];
        *o = all[a];
        o->action = a;
        if (o->forward_bytes == 0) o->forward_bytes = whole;
        if (o->backward_bytes == 0) o->backward_bytes = whole + result;
        o->copy_slots = ms__link_copy_slots(link, o->copy_bytes);
        o->hide_slots = ms__link_hide_slots(link, ns);
    }
}

static void allow(ms__chain_unit *unit, uint32_t actions) {
    for (int a = 0; a < MS_N_ACTIONS; a++)
        if (a == MS_ACTION_KEEP || actions & 1U << a) unit->options[unit->n_options++] = unit->options[a];
}

static void make_chain(ms__chain *chain, int32_t n, bool different, const way *w) {
    static ms__chain_unit units[MAX_UNITS];
    static int64_t between[MAX_UNITS + 1];
    const ms_rates rates = {.to_device_mb_per_s = 25000, .from_device_mb_per_s = 25000};
    int64_t copies = 0;
    memset(units, 0, sizeof units);
    *chain = (ms__chain){.units = units, .n = n, .gap_bytes = between, .host_limit_bytes = INT64_MAX / 4};
    chain->link = ms__link_make(&rates, 600 * MB);
    for (int32_t i = 0; i < n; i++) {
        make_unit(&units[i], &chain->link, different);
        copies += units[i].options[MS_ACTION_OFFLOAD].copy_bytes;
        chain->base_ns += 3 * units[i].options[MS_ACTION_RECOMPUTE].extra_ns;
        allow(&units[i], w->actions);
    }
    for (int32_t i = 0; i <= n; i++) between[i] = 2000 * MB;
    if (w->limited) {
        chain->host_limit_bytes = copies / 2;
        chain->host_level_bytes = copies / 16 + 1;
    }
}

/* ---- The search ---- */

/* The fastest plan within half of the peak when everything is kept. */
static void search_fastest(const ms__chain *chain) {
    uint8_t choices[MAX_UNITS] = {0};
    ms__arena arena = {0};
    ms__search *search = NULL;
    ms__grid grid;
    if (ms__grid_make(&arena, chain, MS__GRID_FINE, &grid) != MS_OK) die("no grid");
    int64_t limit = ms__chain_play(chain, &grid, choices).peak_bytes / 2;
    if (ms__search_new(&arena, chain, &grid, grid.max_ticks, &search) != MS_OK) die("no search");
    if (ms__search_fastest(search, limit, grid.max_ticks, choices) == MS__NO_TICKS) die("nothing fits");
    ms__arena_free(&arena);
}

/* The leanest plan whose step takes at most 15 % longer. */
static void search_leanest(const ms__chain *chain) {
    uint8_t choices[MAX_UNITS];
    ms__arena arena = {0};
    ms__search *search = NULL;
    ms__grid grid;
    if (ms__grid_make(&arena, chain, MS__GRID_FINE, &grid) != MS_OK) die("no grid");
    int64_t ticks = chain->base_ns * 15 / 100 / grid.tick_ns;
    if (ms__search_new(&arena, chain, &grid, ticks, &search) != MS_OK) die("no search");
    if (ms__search_leanest(search, ticks, choices) == MS__NO_TICKS) die("there is no plan");
    ms__arena_free(&arena);
}

static void measure_search(int32_t n, bool different, const way *w) {
    static ms__chain chain;
    if (w->model_options != 0) return;
    double fastest[N_RUNS], leanest[N_RUNS];
    make_chain(&chain, n, different, w);
    for (int i = 0; i < N_RUNS; i++) {
        double start = now_ms();
        search_fastest(&chain);
        fastest[i] = now_ms() - start;
        start = now_ms();
        search_leanest(&chain);
        leanest[i] = now_ms() - start;
    }
    printf("%4d %-9s units, %-33s fastest %8.2f ms, leanest %8.2f ms, %6.1f MB\n", (int)n,
           different ? "different" : "equal", w->name, median(fastest), median(leanest), peak_mb());
}

/* ---- Whole requests ---- */

typedef struct recorder {
    ms_trace_event *events;
    int64_t *kinds;
    int64_t n_events, n_storages;
} recorder;

enum { N_SAVED = 6, MAX_EVENTS = 120 * MAX_UNITS };

static void say(recorder *r, int64_t kind, int64_t a, int64_t b) {
    if (r->n_events == MAX_EVENTS) die("too many events");
    r->events[r->n_events++] = (ms_trace_event){kind, a, b};
}

static int64_t take(recorder *r, int64_t category, int64_t n_bytes) {
    r->kinds[r->n_storages] = category;
    say(r, MS_TRACE_ALLOC, r->n_storages, n_bytes);
    return r->n_storages++;
}

static void run(recorder *r, int64_t size, int64_t saved[N_SAVED]) {
    for (int i = 0; i < N_SAVED; i++) {
        say(r, MS_TRACE_OP, i % 3, 0);
        saved[i] = take(r, MS_CATEGORY_ACTIVATION, size * (1 + i % 3));
    }
}

static void record(recorder *r, int64_t n, bool different, bool recomputed) {
    static int64_t saved[MAX_UNITS][N_SAVED], results[MAX_UNITS], sizes[MAX_UNITS];
    state = 88172645463325252U;
    for (int64_t u = 0; u < n; u++) sizes[u] = around(16 * MB, different) / 512 * 512;
    for (int64_t u = 0; u < n; u++) (void)take(r, MS_CATEGORY_PARAMETER, 8 * MB);
    say(r, MS_TRACE_PHASE, MS_PHASE_FORWARD, 0);
    for (int64_t u = 0; u < n; u++) {
        say(r, MS_TRACE_UNIT, u, 0);
        run(r, sizes[u], saved[u]);
        results[u] = take(r, MS_CATEGORY_ACTIVATION, 4 * MB);
        for (int i = 0; recomputed && i < N_SAVED; i++) say(r, MS_TRACE_FREE, saved[u][i], 0);
    }
    say(r, MS_TRACE_PHASE, MS_PHASE_BACKWARD, 0);
    for (int64_t u = n - 1; u >= 0; u--) {
        say(r, MS_TRACE_UNIT, u, 0);
        if (recomputed) {
            say(r, MS_TRACE_RECOMPUTE, u, 0);
            run(r, sizes[u], saved[u]);
            say(r, MS_TRACE_RECOMPUTE, -1, 0);
        }
        for (int i = 0; i < 2 * N_SAVED; i++) say(r, MS_TRACE_OP, i % 3, 0);
        (void)take(r, MS_CATEGORY_GRADIENT, 8 * MB);
        for (int i = 0; i < N_SAVED; i++) say(r, MS_TRACE_FREE, saved[u][i], 0);
        say(r, MS_TRACE_FREE, results[u], 0);
    }
    for (int64_t phase = MS_PHASE_OPTIMIZER_FIRST; phase <= MS_PHASE_OPTIMIZER; phase++) {
        say(r, MS_TRACE_UNIT, -1, 0);
        say(r, MS_TRACE_PHASE, phase, 0);
        for (int64_t u = 0; u < n; u++) {
            say(r, MS_TRACE_OP, 1, 0);
            if (phase == MS_PHASE_OPTIMIZER_FIRST) (void)take(r, MS_CATEGORY_OPTIMIZER, 16 * MB);
        }
    }
}

static ms_profile *make_profile(int64_t n, bool different) {
    static const char *const op_names[] = {"aten.mm.default", "aten.gelu.default",
                                           "aten._scaled_dot_product_flash_attention.default"};
    static const ms_trace_operand operands[] = {{0, 4, 2, {4096, 1024, 1, 1, 1, 1}, 1},
                                                {0, 4, 2, {1024, 1024, 1, 1, 1, 1}, 1}};
    static const ms_trace_op ops[] = {{0, 0, 2, 0}, {1, 0, 1, 0}, {2, 0, 2, 0}};
    static char texts[MAX_UNITS][24];
    static const char *names[MAX_UNITS];
    static int64_t params[MAX_UNITS];
    ms_trace traces[2];
    for (int64_t i = 0; i < n; i++) {
        (void)snprintf(texts[i], sizeof texts[i], "layers.%d", (int)i);
        names[i] = texts[i];
        params[i] = 8 * MB;
    }
    for (int v = 0; v < 2; v++) {
        recorder r = {.events = calloc(MAX_EVENTS, sizeof *r.events), .kinds = calloc(MAX_EVENTS, sizeof *r.kinds)};
        if (r.events == NULL || r.kinds == NULL) die("out of memory");
        record(&r, n, different, v == 1);
        traces[v] = (ms_trace){.struct_bytes = sizeof(ms_trace),
                               .events = r.events,
                               .n_events = r.n_events,
                               .ops = ops,
                               .n_ops = 3,
                               .operands = operands,
                               .n_operands = 2,
                               .names = op_names,
                               .n_names = 3,
                               .kinds = r.kinds,
                               .n_storages = r.n_storages};
    }
    ms_profile_request request = {.struct_bytes = sizeof request,
                                  .unit_names = names,
                                  .unit_param_bytes = params,
                                  .n_units = n,
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

static double time_plan(const ms_plan_request *request, int64_t *out_baseline) {
    double times[N_RUNS];
    for (int i = 0; i < N_RUNS; i++) {
        ms_plan *plan = NULL;
        ms_plan_summary s = {.struct_bytes = sizeof s};
        double start = now_ms();
        if (ms_plan_create(request, &plan) != MS_OK || ms_plan_get_summary(plan, &s) != MS_OK) die("no plan");
        times[i] = now_ms() - start;
        *out_baseline = s.baseline_peak_bytes;
        ms_plan_destroy(plan);
    }
    return median(times);
}

static void measure_plan(int32_t n, bool different, const way *w) {
    ms_profile *profile = make_profile(n, different);
    ms_gpu_model model = {.struct_bytes = sizeof model};
    ms_rates rates = {.struct_bytes = sizeof rates};
    if (ms_gpu_model_find("rtx3090", &model) != MS_OK || ms_rates_from_model(&model, &rates) != MS_OK) die("no rates");
    ms_plan_request request = {.struct_bytes = sizeof request,
                               .profile = profile,
                               .device = DEVICE_OF(&rates, model.n_multiprocessors),
                               .budget_bytes = (int64_t)1 << 50,
                               .host_limit_bytes = w->limited ? 4000 * MB : (int64_t)1 << 50,
                               .slowdown_ppm = 150000,
                               .actions = w->actions,
                               .model_options = w->model_options,
                               .flags = MS_PLAN_FASTEST};
    int64_t baseline = 0, none;
    (void)time_plan(&request, &baseline);
    request.budget_bytes = baseline * 6 / 10;
    double fastest = time_plan(&request, &none);
    request.flags = MS_PLAN_FORCE;
    request.budget_bytes = baseline;
    double leanest = time_plan(&request, &none);
    printf("%4d %-9s units, %-33s fastest %8.2f ms, leanest %8.2f ms, %6.1f MB\n", (int)n,
           different ? "different" : "equal", w->name, fastest, leanest, peak_mb());
    ms_profile_destroy(profile);
}

/* ---- All of them ---- */

static void measure_all(const char *what, void (*measure)(int32_t, bool, const way *)) {
    static const int32_t counts[] = {96, 200, 1000};
    printf("%s\n", what);
    for (int c = 0; c < 3; c++)
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            (void)fflush(stdout);
            pid_t child = fork();
            int status = 0;
            if (child == 0) {
                measure(counts[c], c > 0, &ways[w]);
                exit(0);
            }
            if (child < 0 || waitpid(child, &status, 0) != child || status != 0) die("a case failed");
        }
}

int main(void) {
    measure_all("The search:", measure_search);
    measure_all("Whole requests, with simulations:", measure_plan);
    return 0;
}
