/* plan_file.c - how does a training step fit into the memory of a GPU? A whole program on the stable part of
 * libmemscale.
 *
 * It reads a profile (what each layer of a model keeps and computes), describes the device, asks for a plan and prints
 * it. Every rule is the library's: budget, margin, host memory and allowed techniques come from ms_settings_init and
 * ms_plan_request_init. So the plan is the same, byte for byte, as the one that Python makes from the same profile.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <memscale/memscale.h>

enum { FITS = 0, FAILED = 1, USAGE = 2, DOES_NOT_FIT = 3 };

#define MAX_FILE_BYTES ((size_t)256 << 20)
#define MAX_GB 1e9 /* in bytes this still fits into 64 bits */

static const char usage[] = "usage: plan_file PROFILE [--gpu NAME] [--mode MODE] [--budget GB] [--host-memory GB]\n"
                            "                 [--hardware FILE] [--fused] [--json]\n";

static const char help[] =
    "\n"
    "Plan a training step: which layers are recomputed in backward, so that it fits.\n"
    "\n"
    "  PROFILE           a profile as JSON, e.g. from memscale.profile(...).to_json() in Python\n"
    "  --gpu NAME        plan for this GPU, which need not be in this machine, e.g. rtx3090;\n"
    "                    by default the plan is for the host's own processor\n"
    "  --mode MODE       conservative, balanced (the default) or aggressive\n"
    "  --budget GB       use at most this much memory of the device, and find the fastest plan;\n"
    "                    by default a share of its memory is used\n"
    "  --host-memory GB  let the plan fill this much host memory; by default what is available\n"
    "  --hardware FILE   take the host from this record (JSON of ms_hw_to_json), not from this machine\n"
    "  --fused           the optimizer is fused: it needs no temporaries\n"
    "  --json            print the plan as JSON\n"
    "\n"
    "GB are 1e9 bytes. Exit status: 0 a plan was printed, 1 error, 2 wrong usage, 3 no plan fits.\n";

typedef struct options {
    const char *profile, *gpu, *hardware; /* NULL: not given */
    int32_t mode;
    int64_t budget_bytes, host_bytes; /* as in ms_settings */
    bool is_fused, is_json, wants_help;
} options;

/* The calling thread's last failure in the library. */
static int fail(const char *what) {
    fprintf(stderr, "plan_file: %s: %s\n", what, ms_error_message());
    return FAILED;
}

/* ---- Arguments ---- */

static int parse_gb(const char *option, const char *text, int64_t least_bytes, int64_t *out_bytes) {
    char *end;
    double gb = strtod(text, &end);
    if (end != text && *end == '\0' && gb <= MAX_GB && gb * 1e9 >= (double)least_bytes) {
        *out_bytes = (int64_t)(gb * 1e9);
        return FITS;
    }
    fprintf(stderr, "plan_file: %s %s: a number of GB is needed, %s\n", option, text,
            least_bytes > 0 ? "above 0" : "0 or more");
    return USAGE;
}

static int parse_mode(const char *text, int32_t *out_mode) {
    for (int32_t mode = 0; mode < MS_N_MODES; mode++) {
        if (strcmp(text, ms_mode_name(mode)) != 0) continue;
        *out_mode = mode;
        return FITS;
    }
    fprintf(stderr, "plan_file: --mode %s: the modes are %s, %s and %s\n", text, ms_mode_name(MS_MODE_CONSERVATIVE),
            ms_mode_name(MS_MODE_BALANCED), ms_mode_name(MS_MODE_AGGRESSIVE));
    return USAGE;
}

static int parse_option(int letter, options *out) {
    switch (letter) {
    case 'g':
        out->gpu = optarg;
        return FITS;
    case 'm':
        return parse_mode(optarg, &out->mode);
    case 'b':
        return parse_gb("--budget", optarg, 1, &out->budget_bytes);
    case 'o':
        return parse_gb("--host-memory", optarg, 0, &out->host_bytes);
    case 'w':
        out->hardware = optarg;
        return FITS;
    case 'f':
        out->is_fused = true;
        return FITS;
    case 'j':
        out->is_json = true;
        return FITS;
    case 'h':
        out->wants_help = true;
        return FITS;
    default:
        return USAGE; /* getopt_long has printed the reason */
    }
}

static int parse(int argc, char **argv, options *out) {
    static const struct option known[] = {
        {"gpu", required_argument, NULL, 'g'},
        {"mode", required_argument, NULL, 'm'},
        {"budget", required_argument, NULL, 'b'},
        {"hardware", required_argument, NULL, 'w'},
        {"host-memory", required_argument, NULL, 'o'},
        {"fused", no_argument, NULL, 'f'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int code = FITS, letter;
    while (code == FITS && (letter = getopt_long(argc, argv, "h", known, NULL)) != -1) code = parse_option(letter, out);
    if (code != FITS || out->wants_help) return code;
    if (argc - optind != 1) {
        fprintf(stderr, "plan_file: %s\n", argc == optind ? "a profile is needed" : "only one profile can be planned");
        return USAGE;
    }
    out->profile = argv[optind];
    return FITS;
}

/* ---- Files ---- */

static bool read_all(FILE *file, char **text, size_t *n_bytes) {
    size_t room = 0;
    do {
        room = room == 0 ? 1 << 16 : 2 * room;
        char *larger = realloc(*text, room);
        if (larger == NULL) return false;
        *text = larger;
        *n_bytes += fread(*text + *n_bytes, 1, room - *n_bytes, file);
        if (ferror(file)) return false;
    } while (*n_bytes == room && room < MAX_FILE_BYTES);
    if (*n_bytes < room) return true;
    errno = EFBIG;
    return false;
}

/* A whole file; `*out_text` is owned, free. */
static int read_file(const char *path, char **out_text, size_t *out_n) {
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *file = fopen(path, "rb");
    bool is_read = file != NULL && read_all(file, &text, &n_bytes);
    if (!is_read) fprintf(stderr, "plan_file: %s cannot be read: %s\n", path, strerror(errno));
    if (file != NULL) fclose(file);
    if (!is_read) {
        free(text);
        return FAILED;
    }
    *out_text = text;
    *out_n = n_bytes;
    return FITS;
}

/* `*out_profile` is owned, ms_profile_destroy. */
static int read_profile(const char *path, ms_profile **out_profile) {
    char *text = NULL;
    size_t n_bytes = 0;
    if (read_file(path, &text, &n_bytes) != FITS) return FAILED;
    ms_status status = ms_profile_from_json(text, n_bytes, out_profile);
    free(text);
    return status == MS_OK ? FITS : fail(path);
}

/* ---- Hardware ---- */

/* The machine of the record at `path`, or with NULL this one. */
static int find_host(const char *path, ms_hw *out) {
    if (path == NULL) return ms_hw_detect(NULL, NULL, out) == MS_OK ? FITS : fail("the host cannot be read");
    char *text = NULL;
    size_t n_bytes = 0;
    if (read_file(path, &text, &n_bytes) != FITS) return FAILED;
    ms_status status = ms_hw_from_json(text, n_bytes, out);
    free(text);
    return status == MS_OK ? FITS : fail(path);
}

/* A GPU of the table. `*out_device` borrows `*out_rates`. */
static int find_gpu(const char *name, ms_rates *out_rates, ms_device *out_device) {
    ms_gpu_model model = {.struct_bytes = sizeof model};
    ms_status status = ms_gpu_model_find(name, &model);
    if (status == MS_OK) status = ms_device_from_model(&model, out_rates, out_device);
    return status == MS_OK ? FITS : fail("--gpu");
}

/* The host's own processor. */
static int describe_host(const ms_hw *host, ms_rates *out_rates, ms_device *out_device) {
    ms_status status = ms_rates_guess(0, host->memory_limit_bytes, 0, out_rates);
    if (status == MS_OK) status = ms_device_init(out_device, out_rates, MS_DEVICE_HOST);
    if (status != MS_OK) return fail("the host cannot be planned for");
    out_device->n_multiprocessors = host->n_cores;
    out_device->usable_bytes = host->memory_limit_bytes;
    return FITS;
}

/* ---- The plan ---- */

static int refuse(void) {
    ms_error_info info = {.struct_bytes = sizeof info};
    fprintf(stderr, "plan_file: %s\n", ms_error_message());
    if (ms_error_get_info(&info) != MS_OK) return fail("the refusal cannot be read");
    fprintf(stderr, "plan_file: the smallest reachable peak is %" PRId64 " bytes\n", info.needed_bytes);
    return DOES_NOT_FIT;
}

/* `*out_plan` is owned, ms_plan_destroy. */
static int make_plan(const options *o, const ms_profile *profile, ms_plan **out_plan) {
    ms_hw host = {.struct_bytes = sizeof host};
    ms_rates rates = {.struct_bytes = sizeof rates};
    ms_device device = {.struct_bytes = sizeof device};
    int code = find_host(o->hardware, &host);
    if (code == FITS) code = o->gpu != NULL ? find_gpu(o->gpu, &rates, &device) : describe_host(&host, &rates, &device);
    if (code != FITS) return code;

    ms_settings settings = {.struct_bytes = sizeof settings};
    ms_plan_request request = {.struct_bytes = sizeof request};
    if (ms_settings_init(&settings, o->mode) != MS_OK) return fail("--mode");
    settings.budget_bytes = o->budget_bytes;
    settings.offload_limit_bytes = o->host_bytes;
    if (ms_plan_request_init(&request, &settings, &device, &host) != MS_OK) return fail("the settings are not allowed");
    request.profile = profile;
    if (o->is_fused) request.simulation |= MS_SIMULATE_FUSED;
    ms_status status = ms_plan_create(&request, out_plan);
    if (status == MS_E_BUDGET) return refuse();
    return status == MS_OK ? FITS : fail("no plan could be made");
}

static int print_plan(const ms_plan *plan, bool is_json) {
    char *text = NULL;
    ms_status status = is_json ? ms_plan_to_json(plan, &text) : ms_plan_explain(plan, &text);
    if (status != MS_OK) return fail("the plan cannot be printed");
    bool is_written = fputs(text, stdout) != EOF && fflush(stdout) == 0;
    if (!is_written) fprintf(stderr, "plan_file: the plan cannot be written: %s\n", strerror(errno));
    ms_free(text);
    return is_written ? FITS : FAILED;
}

static int run(const options *o) {
    ms_profile *profile = NULL;
    ms_plan *plan = NULL;
    int code = read_profile(o->profile, &profile);
    if (code == FITS) code = make_plan(o, profile, &plan);
    if (code == FITS) code = print_plan(plan, o->is_json);
    ms_plan_destroy(plan);
    ms_profile_destroy(profile);
    return code;
}

int main(int argc, char **argv) {
    options o = {.mode = MS_MODE_BALANCED, .host_bytes = -1};
    int code = parse(argc, argv, &o);
    if (code == USAGE) fputs(usage, stderr);
    if (code != FITS) return code;
    if (!o.wants_help) return run(&o);
    printf("%s%s", usage, help);
    return FITS;
}
