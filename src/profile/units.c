/* units.c - finds the units of a model: the modules that a plan decides about.
 *
 * A unit is a repeated block (a child of a list in which some class with parameters occurs more than once) or a module
 * between blocks. Lists of stages are opened: their members differ for the most part, and contain blocks. Blocks of two
 * levels or more are found anywhere below a stage. Blocks of one level (those of ConvNeXt, or the residual blocks of a
 * diffusion model) look like the experts of a transformer's block, so they count only in a stage that consists of
 * lists: a transformer's block has attention and norms besides. A model without repetition is split at its top-level
 * children, and further down, until each is small compared with the whole. Invariant: no unit contains another, and
 * every unit has its own forward.
 */
#include <stdlib.h>
#include <string.h>

#include "../common/arena.h"
#include "../common/hash.h"
#include "../common/status.h"

/* Without repetition a module is opened while it holds more than this share of the model. */
#define SHARE_TO_OPEN 4

typedef struct node {
    int64_t first_child; /* index, -1: none */
    int64_t next_sibling;
    int64_t n_children;
    int64_t subtree_bytes;
    uint64_t signature;      /* of the whole subtree */
    int height;              /* 0: no children */
    unsigned repeats : 1;    /* a list in which a class with parameters recurs */
    unsigned equals : 1;     /* ... and most members have the whole signature of another */
    unsigned has_list : 1;   /* it or one of its descendants repeats */
    unsigned has_blocks : 1; /* ... with members that are blocks of at least two levels */
    unsigned is_shallow : 1; /* it repeats, and its blocks have one level, with several layers */
    unsigned is_stage : 1;   /* it is shallow, or consists of lists, one of which is */
    unsigned in_stage : 1;   /* it was opened as a stage, or is below one: lists of its members are no stages */
} node;

typedef struct finder {
    const ms_module *modules;
    node *nodes;
    uint64_t *block_classes; /* those of repeated blocks */
    int64_t n_block_classes;
    int64_t *units;
    uint32_t *flags; /* of each unit; may be NULL */
    int64_t n_units;
} finder;

static ms_status check(const ms_module *modules, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        bool root = i == 0;
        if (root ? modules[i].parent != -1 : modules[i].parent < 0 || modules[i].parent >= i)
            return ms__fail(MS_E_INVALID, "module %lld: its parent %lld does not come before it", (long long)i,
                            (long long)modules[i].parent);
        int64_t above = i - 1; /* depth first: the module before, or one above that */
        while (above > modules[i].parent) above = modules[above].parent;
        if (above != modules[i].parent)
            return ms__fail(MS_E_INVALID, "module %lld is not in depth-first order", (long long)i);
        if (modules[i].param_bytes < 0 || modules[i].param_bytes > INT64_MAX / 4 / n)
            return ms__fail(MS_E_INVALID, "module %lld: param_bytes is out of range", (long long)i);
    }
    return MS_OK;
}

/* Children come after their parents, so one backward pass sees every child before its parent. */
static void build_tree(const ms_module *modules, node *nodes, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        nodes[i] = (node){.first_child = -1, .next_sibling = -1, .subtree_bytes = modules[i].param_bytes};
        nodes[i].signature = ms__hash_fold(modules[i].own_hash, modules[i].flags);
    }
    for (int64_t i = n - 1; i > 0; i--) {
        node *parent = &nodes[modules[i].parent];
        nodes[i].next_sibling = parent->first_child;
        parent->first_child = i;
        parent->n_children++;
        parent->subtree_bytes += nodes[i].subtree_bytes;
        parent->signature = ms__hash_fold(parent->signature, nodes[i].signature);
        if (nodes[i].height >= parent->height) parent->height = nodes[i].height + 1;
    }
}

/* Is it one level deep, with at least three layers that have parameters? (A convolution and its norm are no block.) */
static bool is_shallow_block(const node *nodes, int64_t i) {
    int64_t n_layers = 0;
    for (int64_t c = nodes[i].first_child; c >= 0; c = nodes[c].next_sibling) n_layers += nodes[c].subtree_bytes > 0;
    return nodes[i].height == 1 && n_layers >= 3;
}

/* Note that a list holds this block. Members that are lists themselves are sequences of layers, not blocks of a class.
 */
static void mark_block(finder *f, int64_t list, int64_t block) {
    node *self = &f->nodes[list];
    uint64_t class_hash = f->modules[block].class_hash;
    bool is_deep = f->nodes[block].height >= 2, is_shallow = is_shallow_block(f->nodes, block);
    if (is_deep) self->has_blocks = 1;
    if (is_shallow) self->is_shallow = 1;
    if ((!is_deep && !is_shallow) || (f->modules[block].flags & MS_MODULE_LIST)) return;
    for (int64_t i = 0; i < f->n_block_classes; i++)
        if (f->block_classes[i] == class_hash) return;
    f->block_classes[f->n_block_classes++] = class_hash;
}

/* Does a class, or a whole signature, occur twice among the children of a list? Modules without parameters do not
 * count: an activation between two layers is not a block. */
static void mark_repetition(finder *f, int64_t list) {
    const ms_module *modules = f->modules;
    node *nodes = f->nodes;
    int64_t n = 0, n_equal = 0;
    for (int64_t a = nodes[list].first_child; a >= 0; a = nodes[a].next_sibling) {
        if (nodes[a].subtree_bytes == 0) continue;
        bool recurs = false, has_equal = false;
        for (int64_t b = nodes[list].first_child; b >= 0 && !has_equal; b = nodes[b].next_sibling) {
            if (a == b || modules[a].class_hash != modules[b].class_hash || nodes[b].subtree_bytes == 0) continue;
            recurs = true;
            has_equal = nodes[a].signature == nodes[b].signature;
        }
        n++;
        n_equal += has_equal;
        if (!recurs) continue;
        nodes[list].repeats = 1;
        mark_block(f, list, a);
    }
    nodes[list].equals = n_equal > n / 2;
}

/* A list with one member holds a block if the list is not itself called (a model of one layer, or one layer that is
 * used many times), or if that class is repeated elsewhere (the last stage of several). */
static void mark_only_member(finder *f, int64_t list) {
    int64_t only = f->nodes[list].n_children == 1 ? f->nodes[list].first_child : -1;
    if (only < 0 || f->nodes[only].subtree_bytes == 0) return;
    bool is_block = f->nodes[only].height >= 2 && !(f->modules[list].flags & MS_MODULE_CALLED);
    for (int64_t i = 0; i < f->n_block_classes && !is_block; i++)
        is_block = f->block_classes[i] == f->modules[only].class_hash;
    if (!is_block) return;
    f->nodes[list].repeats = f->nodes[list].equals = 1;
    mark_block(f, list, only);
}

/* Does it consist of lists, apart from what has no parameters, and is one of them shallow? */
static bool consists_of_lists(const finder *f, int64_t i) {
    bool found = false;
    for (int64_t c = f->nodes[i].first_child; c >= 0; c = f->nodes[c].next_sibling) {
        if (f->nodes[c].subtree_bytes > 0 && !(f->modules[c].flags & MS_MODULE_LIST)) return false;
        found = found || f->nodes[c].is_shallow;
    }
    return found;
}

static void mark_lists(finder *f, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (f->modules[i].flags & MS_MODULE_LIST) mark_repetition(f, i);
    for (int64_t i = n - 1; i >= 0; i--) {
        node *self = &f->nodes[i];
        if (f->modules[i].flags & MS_MODULE_LIST) mark_only_member(f, i);
        if (self->repeats) self->has_list = 1;
        self->is_stage = self->is_shallow || consists_of_lists(f, i);
        if (i == 0) continue;
        node *parent = &f->nodes[f->modules[i].parent];
        parent->has_list |= self->has_list;
        parent->has_blocks |= self->has_blocks;
    }
}

/* What to do with module i: take it as a unit, or look at its children? */
static bool open_up(const finder *f, int64_t i) {
    const node *self = &f->nodes[i], *parent = &f->nodes[f->modules[i].parent < 0 ? 0 : f->modules[i].parent];
    if (self->n_children == 0 || (f->modules[i].flags & MS_MODULE_OPAQUE)) return false;
    if (i == 0 || !(f->modules[i].flags & MS_MODULE_CALLED)) return true;
    if (parent->repeats) return !parent->equals && (self->has_blocks || (self->is_stage && !parent->in_stage));
    if (self->has_list) return true;
    return self->subtree_bytes > f->nodes[0].subtree_bytes / SHARE_TO_OPEN;
}

/* Is module i one of the blocks of a list? It has parameters, and its class recurs there, or it is the only member. */
static bool is_block(const finder *f, int64_t i) {
    const node *list = &f->nodes[f->modules[i].parent];
    if (!list->repeats || f->nodes[i].subtree_bytes == 0) return false;
    for (int64_t other = list->first_child; other >= 0; other = f->nodes[other].next_sibling)
        if (other != i && f->modules[other].class_hash == f->modules[i].class_hash) return true;
    return list->n_children == 1;
}

static void take_unit(finder *f, int64_t i) {
    if (f->flags != NULL) f->flags[f->n_units] = is_block(f, i) ? MS_UNIT_BLOCK : 0;
    f->units[f->n_units++] = i;
}

static void take_units(finder *f, int64_t n) {
    /* A height of -1 marks what is below a unit; a parent is always decided before its children. */
    for (int64_t i = 0; i < n; i++) {
        int64_t parent = f->modules[i].parent;
        bool inside = parent >= 0 && f->nodes[parent].height < 0;
        if (!inside && open_up(f, i)) {
            f->nodes[i].in_stage = parent >= 0 && (f->nodes[parent].in_stage || f->nodes[parent].repeats);
            continue;
        }
        if (!inside && i > 0 && (f->modules[i].flags & MS_MODULE_CALLED)) take_unit(f, i);
        f->nodes[i].height = -1; /* decided: nothing below it is considered */
    }
}

ms_status ms_units_find(const ms_module *modules, int64_t n_modules, int64_t *out_units, uint32_t *out_flags,
                        int64_t *out_n_units) {
    if (modules == NULL || out_units == NULL || out_n_units == NULL || n_modules < 1)
        return ms__fail(MS_E_INVALID, "ms_units_find: there are no modules, or an argument is NULL");
    ms_status status = check(modules, n_modules);
    if (status != MS_OK) return status;
    ms__arena arena = {0};
    finder f = {.modules = modules, .units = out_units, .flags = out_flags};
    f.nodes = ms__arena_array(&arena, (size_t)n_modules, sizeof *f.nodes);
    f.block_classes = ms__arena_array(&arena, (size_t)n_modules, sizeof *f.block_classes);
    if (f.nodes == NULL || f.block_classes == NULL) {
        ms__arena_free(&arena);
        return MS_E_NO_MEMORY;
    }
    build_tree(modules, f.nodes, n_modules);
    mark_lists(&f, n_modules);
    take_units(&f, n_modules);
    ms__arena_free(&arena);
    *out_n_units = f.n_units;
    return MS_OK;
}
