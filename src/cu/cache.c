/* cache.c - the files of cache.h.
 *
 * A file is a header and the code: magic, format, key, size and hash of the code. Numbers are little-endian, as on
 * every machine that has these GPUs. A file that is too short, too long, altered, of another format or of another key
 * counts as absent; the next compilation replaces it. What is compiled is code that runs in training, so folder and
 * file must be such that no other user can change them: elsewhere the cache is not used, and ms_gpu_get_component says
 * why.
 */
#include "cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/hash.h"
#include "../common/log.h"

#define MAGIC "MSPROG\r\n"
#define FORMAT 1
#define MAX_FILE_BYTES ((size_t)64 << 20)
#define SEED_A UINT64_C(0x6D656D7363616C65)
#define SEED_B UINT64_C(0x70726F6772616D73)

enum { FINE = 0, TELLING = 1, BROKEN = 2 }; /* ms_gpu.cache_state; cache_component may be read when BROKEN */

typedef struct header {
    char magic[8];
    uint64_t format;
    uint64_t key[2];
    uint64_t n_bytes;
    uint64_t hash;
} header;

_Static_assert(sizeof(header) == 48, "a header of the cache has no holes");

static uint64_t hash_of(const ms__program *program, const char *option, int64_t nvrtc_version, int64_t capability,
                        uint64_t seed) {
    uint64_t hash = ms_hash64(program->source, strlen(program->source), seed);
    hash = ms_hash64(option, strlen(option), hash);
    hash = ms__hash_fold(hash, (uint64_t)nvrtc_version);
    return ms__hash_fold(hash, (uint64_t)capability);
}

ms__cache_key ms__cache_key_of(const ms__program *program, const char *option, int64_t nvrtc_version,
                               int64_t capability) {
    return (ms__cache_key){{hash_of(program, option, nvrtc_version, capability, SEED_A),
                            hash_of(program, option, nvrtc_version, capability, SEED_B)}};
}

static bool set_path(ms_gpu *gpu, const char *folder, const char *tail) {
    if (folder == NULL) return false;
    if (ms__prim_join(gpu->cache_path, folder, tail) != MS_OK) {
        gpu->cache_path[0] = '\0';
        (void)snprintf(gpu->cache_reason, sizeof gpu->cache_reason, "%s", ms_error_message());
    }
    return true;
}

void ms__cache_init(ms_gpu *gpu, const char *path) {
    if (path != NULL && path[0] == '\0') {
        (void)snprintf(gpu->cache_reason, sizeof gpu->cache_reason, "switched off");
        return;
    }
    const char *shared = ms__prim_environment("XDG_CACHE_HOME");
    if (shared != NULL && shared[0] != '/') shared = NULL; /* as its specification says */
    if (set_path(gpu, path, "") || set_path(gpu, ms__prim_environment("MEMSCALE_CACHE_DIR"), "") ||
        set_path(gpu, shared, "/memscale") || set_path(gpu, ms__prim_environment("HOME"), "/.cache/memscale"))
        return;
    (void)snprintf(gpu->cache_reason, sizeof gpu->cache_reason, "neither MEMSCALE_CACHE_DIR nor HOME is set");
}

/* The first failure is remembered for ms_gpu_get_component. */
static void tell_broken(ms_gpu *gpu, const char *reason) {
    int expected = FINE;
    ms__log(MS_LOG_INFO, "compiled programs are not cached: %s", reason);
    if (!atomic_compare_exchange_strong(&gpu->cache_state, &expected, TELLING)) return;
    ms__component_fails(&gpu->cache_component, "%s", reason);
    atomic_store_explicit(&gpu->cache_state, BROKEN, memory_order_release); /* partner: ms__cache_describe */
}

void ms__cache_describe(ms_gpu *gpu, ms__component *out) {
    if (gpu->cache_path[0] == '\0')
        ms__component_fails(out, "%s", gpu->cache_reason);
    else if (atomic_load_explicit(&gpu->cache_state, memory_order_acquire) == BROKEN) /* partner: tell_broken */
        *out = gpu->cache_component;
    else if (ms__prim_check_folder(gpu->cache_path) != MS_OK ||
             (ms__prim_exists("", gpu->cache_path) && ms__prim_check_private(gpu->cache_path) != MS_OK))
        ms__component_fails(out, "%s", ms_error_message());
    else
        ms__component_works(out, 0, "%s", gpu->cache_path);
}

bool ms__cache_parse(const void *bytes, size_t n_bytes, ms__cache_key key, const void **out_code, size_t *out_n_bytes) {
    header head;
    if (n_bytes <= sizeof head) return false;
    memcpy(&head, bytes, sizeof head);
    const char *code = (const char *)bytes + sizeof head;
    size_t n_code = n_bytes - sizeof head;
    if (memcmp(head.magic, MAGIC, sizeof head.magic) != 0 || head.format != FORMAT) return false;
    if (head.key[0] != key.words[0] || head.key[1] != key.words[1]) return false;
    if (head.n_bytes != n_code || head.hash != ms_hash64(code, n_code, SEED_A)) return false;
    *out_code = code;
    *out_n_bytes = n_code;
    return true;
}

static ms_status file_path(const ms_gpu *gpu, const char *name, ms__cache_key key, char *out) {
    char tail[128];
    (void)snprintf(tail, sizeof tail, "/%.64s-%016" PRIx64 "%016" PRIx64 ".bin", name, key.words[0], key.words[1]);
    return ms__prim_join(out, gpu->cache_path, tail);
}

bool ms__cache_get(ms_gpu *gpu, const char *name, ms__cache_key key, ms__image *out) {
    char path[MS__PRIM_PATH_BYTES];
    void *bytes = NULL;
    const void *code = NULL;
    size_t n_bytes = 0, n_code = 0;
    if (gpu->cache_path[0] == '\0' || file_path(gpu, name, key, path) != MS_OK) return false;
    if (!ms__prim_exists("", path)) return false;
    if (ms__prim_check_private(gpu->cache_path) != MS_OK || ms__prim_check_private(path) != MS_OK) {
        tell_broken(gpu, ms_error_message());
        return false;
    }
    if (ms__prim_read_bytes(path, MAX_FILE_BYTES, &bytes, &n_bytes) != MS_OK) return false;
    bool intact = ms__cache_parse(bytes, n_bytes, key, &code, &n_code);
    if (intact) {
        memmove(bytes, code, n_code + 1); /* with the NUL that follows the file's last byte */
        *out = (ms__image){bytes, n_code};
    } else {
        ms__log(MS_LOG_DEBUG, "%s is damaged or of another version; it will be replaced", path);
        ms_free(bytes);
    }
    return intact;
}

void ms__cache_put(ms_gpu *gpu, const char *name, ms__cache_key key, const ms__image *image) {
    char path[MS__PRIM_PATH_BYTES];
    if (gpu->cache_path[0] == '\0' || image->n_bytes > MAX_FILE_BYTES - sizeof(header)) return;
    header head = {.format = FORMAT,
                   .key = {key.words[0], key.words[1]},
                   .n_bytes = image->n_bytes,
                   .hash = ms_hash64(image->bytes, image->n_bytes, SEED_A)};
    memcpy(head.magic, MAGIC, sizeof head.magic);
    char *file = malloc(sizeof head + image->n_bytes);
    if (file == NULL) {
        (void)ms__fail_memory(sizeof head + image->n_bytes);
    } else {
        memcpy(file, &head, sizeof head);
        memcpy(file + sizeof head, image->bytes, image->n_bytes);
    }
    bool kept = file != NULL && file_path(gpu, name, key, path) == MS_OK &&
                ms__prim_make_folder(gpu->cache_path) == MS_OK && ms__prim_check_private(gpu->cache_path) == MS_OK &&
                ms__prim_write_file(path, file, sizeof head + image->n_bytes) == MS_OK;
    if (!kept) tell_broken(gpu, ms_error_message());
    free(file);
}
