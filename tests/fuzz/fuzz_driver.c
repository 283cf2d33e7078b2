/* fuzz_driver.c - a stand-alone main for the fuzz targets, for compilers without libFuzzer.
 *
 * Usage: fuzz_X [--seconds N] [--seed S] FILE_OR_FOLDER...
 * Replays every file in its own process, then, with --seconds, mutates them for that long: flipped bits, inserted,
 * removed and repeated bytes, pieces of other files, words of the target's dictionary. The current input is in memory
 * shared with the parent, which writes it to a file "crash-SEED" when the child dies.
 */
#define _DEFAULT_SOURCE
#include "fuzz.h"

#include <dirent.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define INPUT_BYTES ((size_t)1 << 14)
#define MAX_FILES 4096
#define HANG_S 30
#define INPUTS_PER_ALARM 64

typedef struct input {
    size_t n;
    uint8_t bytes[INPUT_BYTES];
} input;

typedef struct shared {
    uint64_t n_run; /* inputs that the child has begun */
    input at_work;
} shared;

static input *corpus[MAX_FILES];
static size_t n_corpus;
static uint64_t random_state;

static void die(const char *what, const char *detail) {
    fprintf(stderr, "%s: %s\n", what, detail);
    exit(2);
}

static void load_file(const char *path) {
    FILE *file = fopen(path, "rb");
    input *loaded = calloc(1, sizeof *loaded);
    if (file == NULL || loaded == NULL || n_corpus == MAX_FILES) die("cannot load", path);
    loaded->n = fread(loaded->bytes, 1, INPUT_BYTES, file);
    (void)fclose(file);
    corpus[n_corpus++] = loaded;
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void load(const char *path) {
    struct stat info;
    struct dirent **names = NULL;
    if (stat(path, &info) != 0) die("cannot find", path);
    if (!S_ISDIR(info.st_mode)) {
        load_file(path);
        return;
    }
    int n = scandir(path, &names, NULL, by_name); /* sorted: a seed means the same everywhere */
    for (int i = 0; i < n; i++) {
        char full[4096];
        (void)snprintf(full, sizeof full, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.') load(full);
        free(names[i]);
    }
    free(names);
}

static size_t random_below(size_t limit) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return limit == 0 ? 0 : (size_t)(random_state >> 11) % limit;
}

static void insert(input *in, size_t at, const void *bytes, size_t n) {
    if (n > INPUT_BYTES - in->n) n = INPUT_BYTES - in->n;
    memmove(in->bytes + at + n, in->bytes + at, in->n - at);
    memmove(in->bytes + at, bytes, n);
    in->n += n;
}

static void erase(input *in, size_t at, size_t n) {
    if (n > in->n - at) n = in->n - at;
    memmove(in->bytes + at, in->bytes + at + n, in->n - at - n);
    in->n -= n;
}

static void put_word(input *in, size_t at) {
    size_t n_words = 0;
    while (fuzz_dictionary[n_words] != NULL) n_words++;
    const char *word = fuzz_dictionary[random_below(n_words)];
    if (random_below(2) == 0) erase(in, at, 1 + random_below(strlen(word)));
    insert(in, at, word, strlen(word));
}

/* Replace a number by another one: most inputs consist of numbers as text. */
static void change_number(input *in, size_t at) {
    static const char *const numbers[] = {"0", "1", "-1", "512", "65536", "1000000", "1152921504606846975", "1e3"};
    while (at < in->n && (in->bytes[at] < '0' || in->bytes[at] > '9')) at++;
    while (at < in->n && in->bytes[at] >= '0' && in->bytes[at] <= '9') erase(in, at, 1);
    const char *number = numbers[random_below(sizeof numbers / sizeof *numbers)];
    insert(in, at, number, strlen(number));
}

static void splice(input *in, size_t at) {
    const input *other = corpus[random_below(n_corpus)];
    size_t from = random_below(other->n), n = random_below(other->n - from + 1);
    if (random_below(2) == 0) erase(in, at, n);
    insert(in, at, other->bytes + from, n);
}

static void repeat(input *in, size_t at) {
    uint8_t piece[64];
    size_t n = 1 + random_below(sizeof piece);
    if (n > in->n - at) n = in->n - at;
    memcpy(piece, in->bytes + at, n);
    for (size_t times = 1 + random_below(4); times > 0; times--) insert(in, at, piece, n);
}

static void mutate_once(input *in) {
    size_t at = random_below(in->n + 1);
    uint8_t byte = (uint8_t)random_below(256);
    switch (random_below(8)) {
    case 0:
        if (at < in->n) in->bytes[at] ^= (uint8_t)(1 << random_below(8));
        break;
    case 1:
        if (at < in->n) in->bytes[at] = byte;
        break;
    case 2:
        insert(in, at, &byte, 1);
        break;
    case 3:
        erase(in, at, random_below(2) == 0 ? 1 : random_below(32));
        break;
    case 4:
        splice(in, at);
        break;
    case 5:
        repeat(in, at);
        break;
    case 6:
        change_number(in, at);
        break;
    default:
        put_word(in, at);
    }
}

/* In memory of exactly its size, so that a sanitizer sees a read past the end. */
static void run_input(const input *in) {
    uint8_t *copy = malloc(in->n == 0 ? 1 : in->n);
    if (copy == NULL) die("out of memory", "input");
    memcpy(copy, in->bytes, in->n);
    (void)LLVMFuzzerTestOneInput(copy, in->n);
    free(copy);
}

static double now_s(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void fuzz(shared *state, double seconds) {
    for (double end = now_s() + seconds; now_s() < end;) {
        (void)alarm(HANG_S);
        for (int i = 0; i < INPUTS_PER_ALARM; i++) {
            state->at_work = *corpus[random_below(n_corpus)];
            for (size_t n = 1 + random_below(6); n > 0; n--) mutate_once(&state->at_work);
            state->n_run++;
            run_input(&state->at_work);
        }
    }
}

static void replay(shared *state, size_t index) {
    (void)alarm(HANG_S);
    state->at_work = *corpus[index];
    state->n_run++;
    run_input(&state->at_work);
}

static bool survived(pid_t child) {
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void save_crash(const shared *state, unsigned long long seed) {
    char path[64];
    (void)snprintf(path, sizeof path, "crash-%llu", seed);
    FILE *file = fopen(path, "wb");
    if (file == NULL) die("cannot write", path);
    (void)fwrite(state->at_work.bytes, 1, state->at_work.n, file);
    (void)fclose(file);
    fprintf(stderr, "the input is in %s\n", path);
}

/* Replay all, then mutate; the number of failures. */
static int run_all(shared *state, double seconds, unsigned long long seed) {
    int n_failed = 0;
    size_t n_rounds = n_corpus + (seconds > 0.0 && n_corpus > 0 ? 1 : 0);
    random_state = seed * 0x9E3779B97F4A7C15u | 1;
    for (size_t i = 0; i < n_rounds; i++) {
        (void)fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            if (i < n_corpus)
                replay(state, i);
            else
                fuzz(state, seconds);
            exit(0);
        }
        if (survived(child)) continue;
        n_failed++;
        save_crash(state, seed);
    }
    return n_failed;
}

int main(int argc, char **argv) {
    double seconds = 0.0;
    unsigned long long seed = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 10);
        else
            load(argv[i]);
    }
    shared *state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (state == MAP_FAILED) die("cannot map", "shared memory");
    int n_failed = run_all(state, seconds, seed);
    for (size_t i = 0; i < n_corpus; i++) free(corpus[i]);
    printf("%llu passed, %d failed\n", (unsigned long long)state->n_run - (unsigned long long)n_failed, n_failed);
    return n_failed > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
