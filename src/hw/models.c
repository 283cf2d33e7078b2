/* models.c - the GPUs that can be planned for without having one: a table of vendors' figures, and finding one by name.
 *
 * The figures are those of the vendor's data sheets and architecture papers, dense, at the reference boost clock. A
 * name is found only as a whole, however it is spelled: a laptop's chip or a slice (MIG) is another GPU than the one
 * whose name it begins with. If a name does not give the memory, it means the first in the list, which has the least:
 * what fits it fits the others.
 */
#include <stdio.h>
#include <string.h>

#include "../common/fields.h"
#include "../common/structs.h"

#define NAME_BYTES 96 /* as in ms_hw_gpu */

/* What copies reach of each link, in MB/s. */
enum { GEN3 = 12500, GEN4_X8 = 12500, GEN4 = 25000, GEN5_X8 = 27000, GEN5 = 55000 };

/* X(key, name, GB, MiB, capability, multiprocessors, fp32, tf32, fp16, GB/s, link). The name is the driver's, and GB
 * what the vendor calls its memory. MiB is what the driver reports as total (cuDeviceTotalMem on Linux, ECC as
 * delivered): the least that was seen, since drivers differ by a percent or two; for a card that was not seen, as its
 * neighbours have it. Rates are GFLOP/s: fp32 without tensor cores; tf32, 0 if there is none; fp16 of products that
 * accumulate in fp32, which GeForce cards do at half the rate that is advertised and chips without tensor cores at that
 * of fp32. */
#define MODEL_LIST(X)                                                                                                  \
    X("gtx1060-6gb", "NVIDIA GeForce GTX 1060 6GB", 6, 6072, 61, 10, 4372, 0, 4372, 192, GEN3)                         \
    X("gtx1070", "NVIDIA GeForce GTX 1070", 8, 8110, 61, 15, 6463, 0, 6463, 256, GEN3)                                 \
    X("gtx1070ti", "NVIDIA GeForce GTX 1070 Ti", 8, 8110, 61, 19, 8186, 0, 8186, 256, GEN3)                            \
    X("gtx1080", "NVIDIA GeForce GTX 1080", 8, 8110, 61, 20, 8873, 0, 8873, 320, GEN3)                                 \
    X("gtx1080ti", "NVIDIA GeForce GTX 1080 Ti", 11, 11172, 61, 28, 11340, 0, 11340, 484, GEN3)                        \
    X("gtx1650", "NVIDIA GeForce GTX 1650", 4, 3897, 75, 14, 2984, 0, 2984, 128, GEN3)                                 \
    X("gtx1660", "NVIDIA GeForce GTX 1660", 6, 5914, 75, 22, 5027, 0, 5027, 192, GEN3)                                 \
    X("gtx1660super", "NVIDIA GeForce GTX 1660 SUPER", 6, 5914, 75, 22, 5027, 0, 5027, 336, GEN3)                      \
    X("gtx1660ti", "NVIDIA GeForce GTX 1660 Ti", 6, 5914, 75, 24, 5437, 0, 5437, 288, GEN3)                            \
    X("rtx2060", "NVIDIA GeForce RTX 2060", 6, 5735, 75, 30, 6451, 0, 25804, 336, GEN3)                                \
    X("rtx2060super", "NVIDIA GeForce RTX 2060 SUPER", 8, 7782, 75, 34, 7181, 0, 28724, 448, GEN3)                     \
    X("rtx2070", "NVIDIA GeForce RTX 2070", 8, 7782, 75, 36, 7465, 0, 29860, 448, GEN3)                                \
    X("rtx2070super", "NVIDIA GeForce RTX 2070 SUPER", 8, 7782, 75, 40, 9062, 0, 36248, 448, GEN3)                     \
    X("rtx2080", "NVIDIA GeForce RTX 2080", 8, 7782, 75, 46, 10068, 0, 40272, 448, GEN3)                               \
    X("rtx2080super", "NVIDIA GeForce RTX 2080 SUPER", 8, 7782, 75, 48, 11151, 0, 44604, 496, GEN3)                    \
    X("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", 11, 10820, 75, 68, 13448, 0, 53792, 616, GEN3)                        \
    X("rtx3050", "NVIDIA GeForce RTX 3050", 8, 7753, 86, 20, 9098, 9098, 18196, 224, GEN4_X8)                          \
    X("rtx3060", "NVIDIA GeForce RTX 3060", 12, 11900, 86, 28, 12738, 12738, 25476, 360, GEN4)                         \
    X("rtx3060ti", "NVIDIA GeForce RTX 3060 Ti", 8, 7753, 86, 38, 16197, 16197, 32394, 448, GEN4)                      \
    X("rtx3070", "NVIDIA GeForce RTX 3070", 8, 7753, 86, 46, 20314, 20314, 40628, 448, GEN4)                           \
    X("rtx3070ti", "NVIDIA GeForce RTX 3070 Ti", 8, 7753, 86, 48, 21750, 21750, 43500, 608, GEN4)                      \
    X("rtx3080-10gb", "NVIDIA GeForce RTX 3080", 10, 9870, 86, 68, 29768, 29768, 59536, 760, GEN4)                     \
    X("rtx3080-12gb", "NVIDIA GeForce RTX 3080", 12, 11900, 86, 70, 30643, 30643, 61286, 912, GEN4)                    \
    X("rtx3080ti", "NVIDIA GeForce RTX 3080 Ti", 12, 11900, 86, 80, 34099, 34099, 68198, 912, GEN4)                    \
    X("rtx3090", "NVIDIA GeForce RTX 3090", 24, 24120, 86, 82, 35581, 35581, 71162, 936, GEN4)                         \
    X("rtx3090ti", "NVIDIA GeForce RTX 3090 Ti", 24, 24120, 86, 84, 39997, 39997, 79994, 1008, GEN4)                   \
    X("rtx4060", "NVIDIA GeForce RTX 4060", 8, 7800, 89, 24, 15114, 15114, 30228, 272, GEN4_X8)                        \
    X("rtx4060ti-8gb", "NVIDIA GeForce RTX 4060 Ti", 8, 7800, 89, 34, 22065, 22065, 44130, 288, GEN4_X8)               \
    X("rtx4060ti-16gb", "NVIDIA GeForce RTX 4060 Ti", 16, 15940, 89, 34, 22065, 22065, 44130, 288, GEN4_X8)            \
    X("rtx4070", "NVIDIA GeForce RTX 4070", 12, 11880, 89, 46, 29146, 29146, 58292, 504, GEN4)                         \
    X("rtx4070super", "NVIDIA GeForce RTX 4070 SUPER", 12, 11880, 89, 56, 35482, 35482, 70964, 504, GEN4)              \
    X("rtx4070ti", "NVIDIA GeForce RTX 4070 Ti", 12, 11880, 89, 60, 40090, 40090, 80180, 504, GEN4)                    \
    X("rtx4070tisuper", "NVIDIA GeForce RTX 4070 Ti SUPER", 16, 15940, 89, 66, 44099, 44099, 88198, 672, GEN4)         \
    X("rtx4080", "NVIDIA GeForce RTX 4080", 16, 15940, 89, 76, 48737, 48737, 97474, 717, GEN4)                         \
    X("rtx4080super", "NVIDIA GeForce RTX 4080 SUPER", 16, 15940, 89, 80, 52224, 52224, 104448, 736, GEN4)             \
    X("rtx4090", "NVIDIA GeForce RTX 4090", 24, 24070, 89, 128, 82575, 82575, 165150, 1008, GEN4)                      \
    X("rtx5060", "NVIDIA GeForce RTX 5060", 8, 7680, 120, 30, 19177, 19177, 38354, 448, GEN5_X8)                       \
    X("rtx5060ti-8gb", "NVIDIA GeForce RTX 5060 Ti", 8, 7680, 120, 36, 23704, 23704, 47408, 448, GEN5_X8)              \
    X("rtx5060ti-16gb", "NVIDIA GeForce RTX 5060 Ti", 16, 15840, 120, 36, 23704, 23704, 47408, 448, GEN5_X8)           \
    X("rtx5070", "NVIDIA GeForce RTX 5070", 12, 11760, 120, 48, 30867, 30867, 61734, 672, GEN5)                        \
    X("rtx5070ti", "NVIDIA GeForce RTX 5070 Ti", 16, 15840, 120, 70, 43940, 43940, 87880, 896, GEN5)                   \
    X("rtx5080", "NVIDIA GeForce RTX 5080", 16, 15840, 120, 84, 56276, 56276, 112552, 960, GEN5)                       \
    X("rtx5090", "NVIDIA GeForce RTX 5090", 32, 32110, 120, 170, 104753, 104753, 209506, 1792, GEN5)                   \
    X("rtxa4000", "NVIDIA RTX A4000", 16, 15940, 86, 48, 19170, 38340, 76700, 448, GEN4)                               \
    X("rtxa5000", "NVIDIA RTX A5000", 24, 24060, 86, 64, 27770, 55540, 111100, 768, GEN4)                              \
    X("rtxa6000", "NVIDIA RTX A6000", 48, 48500, 86, 84, 38710, 77420, 154800, 768, GEN4)                              \
    X("rtx6000ada", "NVIDIA RTX 6000 Ada Generation", 48, 48500, 89, 142, 91060, 182100, 364200, 960, GEN4)            \
    X("p100", "Tesla P100-PCIE-16GB", 16, 16280, 60, 56, 9340, 0, 9340, 732, GEN3)                                     \
    X("v100-16gb", "Tesla V100-SXM2-16GB", 16, 16130, 70, 80, 15700, 0, 125000, 900, GEN3)                             \
    X("v100-32gb", "Tesla V100-SXM2-32GB", 32, 32490, 70, 80, 15700, 0, 125000, 900, GEN3)                             \
    X("v100-pcie-16gb", "Tesla V100-PCIE-16GB", 16, 16130, 70, 80, 14100, 0, 112000, 900, GEN3)                        \
    X("v100-pcie-32gb", "Tesla V100-PCIE-32GB", 32, 32490, 70, 80, 14100, 0, 112000, 900, GEN3)                        \
    X("t4", "Tesla T4", 16, 14910, 75, 40, 8100, 0, 65000, 320, GEN3)                                                  \
    X("a10", "NVIDIA A10", 24, 22500, 86, 72, 31200, 62500, 125000, 600, GEN4)                                         \
    X("a10g", "NVIDIA A10G", 24, 22500, 86, 80, 31500, 35000, 70000, 600, GEN4)                                        \
    X("a30", "NVIDIA A30", 24, 24060, 80, 56, 10300, 82000, 165000, 933, GEN4)                                         \
    X("a40", "NVIDIA A40", 48, 45400, 86, 84, 37400, 74800, 149700, 696, GEN4)                                         \
    X("a100-40gb", "NVIDIA A100-SXM4-40GB", 40, 40330, 80, 108, 19500, 156000, 312000, 1555, GEN4)                     \
    X("a100-80gb", "NVIDIA A100-SXM4-80GB", 80, 81030, 80, 108, 19500, 156000, 312000, 2039, GEN4)                     \
    X("a100-pcie-80gb", "NVIDIA A100 80GB PCIe", 80, 81030, 80, 108, 19500, 156000, 312000, 1935, GEN4)                \
    X("l4", "NVIDIA L4", 24, 22550, 89, 58, 30300, 60000, 121000, 300, GEN4)                                           \
    X("l40s", "NVIDIA L40S", 48, 45450, 89, 142, 91600, 183000, 362000, 864, GEN4)                                     \
    X("h100-pcie", "NVIDIA H100 PCIe", 80, 80990, 90, 114, 51200, 378000, 756000, 2039, GEN5)                          \
    X("h100-sxm", "NVIDIA H100 80GB HBM3", 80, 80990, 90, 132, 66900, 494700, 989400, 3350, GEN5)                      \
    X("h100-nvl", "NVIDIA H100 NVL", 94, 95300, 90, 132, 60000, 417000, 835000, 3938, GEN5)                            \
    X("h200", "NVIDIA H200", 141, 143070, 90, 132, 66900, 494700, 989400, 4800, GEN5)                                  \
    X("b200", "NVIDIA B200", 180, 182620, 100, 148, 75000, 1125000, 2250000, 7700, GEN5)

/* X(spelling, key): other names for models of the list. */
#define ALIAS_LIST(X)                                                                                                  \
    X("gtx1060", "gtx1060-6gb")                                                                                        \
    X("p100-pcie", "p100")                                                                                             \
    X("p100-sxm2", "p100")                                                                                             \
    X("v100", "v100-16gb")                                                                                             \
    X("v100-sxm2", "v100-16gb")                                                                                        \
    X("v100-sxm3", "v100-32gb")                                                                                        \
    X("v100-pcie", "v100-pcie-16gb")                                                                                   \
    X("a100", "a100-40gb")                                                                                             \
    X("a100-sxm", "a100-40gb")                                                                                         \
    X("a100-sxm4", "a100-40gb")                                                                                        \
    X("a100-pcie", "a100-40gb")                                                                                        \
    X("a100-sxm", "a100-80gb")                                                                                         \
    X("h100", "h100-sxm")                                                                                              \
    X("h100-sxm5", "h100-sxm")                                                                                         \
    X("h200-sxm", "h200")

typedef struct model {
    const char *key, *name;
    int nominal_gb;
    int64_t memory_mib, capability, n_multiprocessors, fp32, tf32, fp16, memory_gb_per_s, link_mb_per_s;
} model;

static const model models[] = {
#define MODEL(...) {__VA_ARGS__},
    MODEL_LIST(MODEL)
#undef MODEL
};

static const struct alias {
    const char *spelling, *key;
} aliases[] = {
#define ALIAS(...) {__VA_ARGS__},
    ALIAS_LIST(ALIAS)
#undef ALIAS
};

#define N_MODELS (sizeof models / sizeof *models)
#define N_ALIASES (sizeof aliases / sizeof *aliases)

/* A name in the form that is compared: lower case, no spaces and dashes, without the vendor and the product line. False
 * if it is too long; `out` is then its beginning. */
static bool normalize(const char *text, char out[NAME_BYTES]) {
    static const char *const prefixes[] = {"nvidia", "tesla", "geforce", "rtx", "gtx"};
    char all[NAME_BYTES];
    size_t n = 0, skipped = 0;
    for (; *text != '\0' && n + 1 < NAME_BYTES; text++) {
        if (*text == ' ' || *text == '-' || *text == '_') continue;
        all[n++] = *text >= 'A' && *text <= 'Z' ? (char)(*text - 'A' + 'a') : *text;
    }
    all[n] = '\0';
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t length = strlen(prefixes[i]);
        if (strncmp(all + skipped, prefixes[i], length) == 0) skipped += length;
    }
    memcpy(out, all + skipped, n + 1 - skipped);
    return *text == '\0';
}

/* Is this spelling, alone or followed by the size of its memory, what was asked for? */
static bool is_spelled(const char *wanted, const char *spelling, int nominal_gb) {
    char plain[NAME_BYTES], sized[NAME_BYTES + 16];
    (void)normalize(spelling, plain);
    (void)snprintf(sized, sizeof sized, "%s%dgb", plain, nominal_gb);
    return strcmp(wanted, plain) == 0 || strcmp(wanted, sized) == 0;
}

static bool is_called(const model *m, const char *wanted) {
    if (is_spelled(wanted, m->key, m->nominal_gb) || is_spelled(wanted, m->name, m->nominal_gb)) return true;
    for (size_t i = 0; i < N_ALIASES; i++)
        if (strcmp(aliases[i].key, m->key) == 0 && is_spelled(wanted, aliases[i].spelling, m->nominal_gb)) return true;
    return false;
}

/* How many characters must be removed or added to turn one name into the other. */
static size_t distance(const char *a, const char *b) {
    size_t common[NAME_BYTES + 1] = {
        0}; /* the longest common subsequence of what was seen of `a` and each start of b */
    size_t n_a = strlen(a), n_b = strlen(b);
    for (size_t i = 0; i < n_a; i++) {
        size_t diagonal = 0;
        for (size_t j = 0; j < n_b; j++) {
            size_t above = common[j + 1];
            common[j + 1] = a[i] == b[j] ? diagonal + 1 : above > common[j] ? above : common[j];
            diagonal = above;
        }
    }
    return n_a + n_b - 2 * common[n_b];
}

static const char *closest_key(const char *wanted) {
    const model *best = &models[0];
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < 2 * N_MODELS; i++) {
        char spelling[NAME_BYTES];
        const model *m = &models[i / 2];
        (void)normalize(i % 2 == 0 ? m->key : m->name, spelling);
        size_t far = distance(wanted, spelling);
        if (far >= least) continue;
        least = far;
        best = m;
    }
    return best->key;
}

static ms_status write_model(const model *m, ms_gpu_model *out) {
    const ms_gpu_model found = {
        .key = m->key,
        .name = m->name,
        .memory_bytes = m->memory_mib << 20,
        .capability = m->capability,
        .n_multiprocessors = m->n_multiprocessors,
        .fp32_gflops = m->fp32,
        .tf32_gflops = m->tf32,
        .fp16_gflops = m->fp16,
        .bf16_gflops = ms_capability_has_bf16(m->capability) ? m->fp16 : 0, /* tensor cores do both at one rate */
        .memory_mb_per_s = 1000 * m->memory_gb_per_s,
        .link_mb_per_s = m->link_mb_per_s,
    };
    return ms__struct_write(MS__STRUCT(ms_gpu_model), &found, out);
}

const ms_field *ms_gpu_model_fields(int64_t *out_n) {
    static const ms_field fields[] = {
        MS__FIELD(ms_gpu_model, key, MS_FIELD_TEXT),
        MS__FIELD(ms_gpu_model, name, MS_FIELD_TEXT),
        MS__FIELD(ms_gpu_model, memory_bytes, MS_FIELD_INT64),
        MS__FIELD(ms_gpu_model, capability, MS_FIELD_INT64),
        MS__FIELD(ms_gpu_model, n_multiprocessors, MS_FIELD_INT64),
        MS__FIELD(ms_gpu_model, fp32_gflops, MS_FIELD_INT64),
        MS__FIELD(ms_gpu_model, tf32_gflops, MS_FIELD_INT64),
        MS__FIELD(ms_gpu_model, fp16_gflops, MS_FIELD_INT64),
        MS__FIELD(ms_gpu_model, bf16_gflops, MS_FIELD_INT64),
        MS__FIELD(ms_gpu_model, memory_mb_per_s, MS_FIELD_INT64),
        MS__FIELD(ms_gpu_model, link_mb_per_s, MS_FIELD_INT64),
    };
    MS__RETURN_FIELDS(fields, out_n);
}

int64_t ms_gpu_model_count(void) { return (int64_t)N_MODELS; }

ms_status ms_gpu_model_get(int64_t index, ms_gpu_model *out) {
    if (index < 0 || index >= (int64_t)N_MODELS)
        return ms__fail(MS_E_INVALID, "ms_gpu_model_get: there is no model %lld", (long long)index);
    return write_model(&models[index], out);
}

ms_status ms_gpu_model_find(const char *name, ms_gpu_model *out) {
    if (name == NULL) return ms__fail(MS_E_INVALID, "ms_gpu_model_find: the name is NULL");
    char wanted[NAME_BYTES];
    bool whole = normalize(name, wanted);
    for (size_t i = 0; i < N_MODELS && whole; i++)
        if (is_called(&models[i], wanted)) return write_model(&models[i], out);
    return ms__fail(MS_E_NOT_FOUND, "no GPU \"%.64s\" is known; the closest is \"%s\"", name, closest_key(wanted));
}
