/* plan_file.c - does a training step fit into this machine, and how? A whole program on libmemscale.
 *
 *   decide PROFILE.json [--budget GB]
 *
 * Reads a profile (what each unit of a model keeps in memory), looks at the hardware, asks for the fastest plan within
 * the budget and prints it. Without --budget (in 1e9 bytes) it is 85 % of the first GPU, or of the host without one.
 * Exit codes: 0 it fits, 1 an error, 2 wrong usage, 3 no plan fits.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <memscale/memscale.h>

enum { FITS = 0, FAILED = 1, USAGE = 2, DOES_NOT_FIT = 3 };

#define USED_PERCENT 85
#define MAX_PROFILE_BYTES ((size_t)64 << 20)
#define MAX_BUDGET_GB 1e9

static double gb(int64_t n_bytes) { return (double)n_bytes / 1e9; }

static int fail(const char *what) {
    fprintf(stderr, "plan_file: %s: %s\n", what, ms_error_message());
    return FAILED;
}

/* The arguments; `*budget_bytes` stays 0 where none is given. */
static int parse(int argc, char **argv, const char **path, int64_t *budget_bytes) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--budget") == 0 && i + 1 < argc) {
            char *end;
            double value = strtod(argv[++i], &end);
            if (*end != '\0' || !(value * 1e9 >= 1 && value <= MAX_BUDGET_GB)) return USAGE;
            *budget_bytes = (int64_t)(value * 1e9);
        } else if (argv[i][0] != '-' && *path == NULL) {
            *path = argv[i];
        } else {
            return USAGE;
        }
    }
    return *path == NULL ? USAGE : FITS;
}

/* The hardware, and the budget where it is not chosen yet. */
static int look_at_machine(int64_t *budget_bytes) {
    ms_gpu *gpu = NULL;
    ms_hw hw = {.struct_bytes = sizeof hw};
    ms_status status = ms_gpu_create(NULL, &gpu);
    if (status == MS_OK) status = ms_hw_detect(NULL, gpu, &hw);
    int code = status == MS_OK ? FITS : fail("the hardware cannot be read"); /* before the next call */
    ms_gpu_destroy(gpu);
    if (code != FITS) return code;

    printf("host     %.1f GB usable of %.1f GB, %" PRId64 " cores\n", gb(hw.memory_limit_bytes),
           gb(hw.memory_total_bytes), hw.n_cores);
    for (int64_t i = 0; i < hw.n_gpus; i++)
        printf("gpu %-4" PRId64 " %s, %.1f GB\n", hw.gpus[i].index, hw.gpus[i].name, gb(hw.gpus[i].memory_total_bytes));
    int64_t usable = hw.n_gpus > 0 ? hw.gpus[0].memory_total_bytes : hw.memory_limit_bytes;
    if (*budget_bytes == 0) *budget_bytes = usable / 100 * USED_PERCENT;
    return FITS;
}

/* A whole file; `*text` is owned, free. */
static int read_file(const char *path, char **text, size_t *n_bytes) {
    int code = FAILED;
    FILE *file = fopen(path, "rb");
    char *bytes = file == NULL ? NULL : malloc(MAX_PROFILE_BYTES);
    if (bytes != NULL) {
        *n_bytes = fread(bytes, 1, MAX_PROFILE_BYTES, file);
        if (!ferror(file) && *n_bytes < MAX_PROFILE_BYTES) code = FITS;
    }
    if (file != NULL) fclose(file);
    if (code == FITS) {
        *text = bytes;
    } else {
        free(bytes);
        fprintf(stderr, "plan_file: cannot read %s\n", path);
    }
    return code;
}

static int read_profile(const char *path, ms_profile **profile) {
    char *text = NULL;
    size_t n_bytes = 0;
    if (read_file(path, &text, &n_bytes) != FITS) return FAILED;
    ms_status status = ms_profile_from_json(text, n_bytes, profile);
    free(text);
    return status == MS_OK ? FITS : fail(path);
}

static int make_plan(const ms_profile *profile, int64_t budget_bytes, ms_plan **plan) {
    ms_plan_request request = {.struct_bytes = sizeof request,
                               .profile = profile,
                               .budget_bytes = budget_bytes,
                               .actions = 1U << MS_ACTION_RECOMPUTE,
                               .flags = MS_PLAN_FASTEST};
    ms_status status = ms_plan_create(&request, plan);
    if (status != MS_E_BUDGET) return status == MS_OK ? FITS : fail("no plan could be made");
    printf("does not fit: the smallest reachable peak is %.3f GB, the budget %.3f GB\n", gb(ms_error_value()),
           gb(budget_bytes));
    return DOES_NOT_FIT;
}

static int print_plan(const ms_plan *plan) {
    ms_plan_summary summary = {.struct_bytes = sizeof summary};
    if (ms_plan_get_summary(plan, &summary) != MS_OK) return fail("the plan cannot be read");
    printf("\n%-32s  %-9s  %10s  %s\n", "unit", "action", "saved MB", "reason");
    for (int64_t i = 0; i < summary.n_units; i++) {
        ms_plan_entry entry = {.struct_bytes = sizeof entry};
        if (ms_plan_get_entry(plan, i, &entry) != MS_OK) return fail("the plan cannot be read");
        printf("%-32s  %-9s  %10.1f  %s\n", entry.name, ms_action_name(entry.action), (double)entry.kept_bytes / 1e6,
               ms_reason_name(entry.reason));
    }
    printf("\npeak     %.3f GB -> %.3f GB\n", gb(summary.baseline_peak_bytes), gb(summary.predicted_peak_bytes));
    printf("budget   %.3f GB\n", gb(summary.budget_bytes));
    printf("slowdown %.1f %% predicted, %" PRId64 " of %" PRId64 " units recomputed\n",
           (double)summary.slowdown_ppm / 1e4, summary.n_changed, summary.n_units);
    return FITS;
}

int main(int argc, char **argv) {
    const char *path = NULL;
    int64_t budget_bytes = 0;
    if (parse(argc, argv, &path, &budget_bytes) != FITS) {
        fprintf(stderr, "usage: decide PROFILE.json [--budget GB]\n");
        return USAGE;
    }
    ms_profile *profile = NULL;
    ms_plan *plan = NULL;
    int code = read_profile(path, &profile);
    if (code == FITS) code = look_at_machine(&budget_bytes);
    if (code == FITS) code = make_plan(profile, budget_bytes, &plan);
    if (code == FITS) code = print_plan(plan);
    ms_plan_destroy(plan);
    ms_profile_destroy(profile);
    return code;
}
