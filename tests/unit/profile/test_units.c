/* test_units.c - the units of hand-built models: blocks, stages, experts, plain sequences, and malformed trees.
 *
 * Each test builds a model module by module, depth first, and notes those that must be its units.
 */
#include "runner.h"

#include <string.h>

#define MAX_MODULES 256

enum { CALLED = MS_MODULE_CALLED, LIST = MS_MODULE_LIST, OPAQUE = MS_MODULE_OPAQUE };

typedef struct model {
    ms_module modules[MAX_MODULES];
    int64_t n;
} model;

/* Modules of one class are told apart by their parameter bytes, as by their shapes in a real model. */
static int64_t add(model *m, int64_t parent, const char *class_name, int64_t param_bytes, uint32_t flags) {
    uint64_t class_hash = ms_hash64(class_name, strlen(class_name), 0);
    CHECK(m->n < MAX_MODULES);
    m->modules[m->n] = (ms_module){.parent = parent,
                                   .class_hash = class_hash,
                                   .own_hash = ms_hash64(&param_bytes, sizeof param_bytes, class_hash),
                                   .param_bytes = param_bytes,
                                   .flags = flags};
    return m->n++;
}

static int64_t add_leaf(model *m, int64_t parent, const char *class_name, int64_t param_bytes) {
    return add(m, parent, class_name, param_bytes, CALLED);
}

static int64_t add_transformer_block(model *m, int64_t parent, int64_t width) {
    int64_t block = add(m, parent, "Block", 0, CALLED);
    (void)add_leaf(m, block, "LayerNorm", width);
    int64_t attention = add(m, block, "Attention", 0, CALLED);
    (void)add_leaf(m, attention, "Linear", width * width * 3);
    (void)add_leaf(m, attention, "Linear", width * width);
    (void)add_leaf(m, block, "LayerNorm", width);
    int64_t mlp = add(m, block, "Mlp", 0, CALLED);
    (void)add_leaf(m, mlp, "Linear", width * width * 4);
    (void)add_leaf(m, mlp, "Gelu", 0);
    (void)add_leaf(m, mlp, "Linear", width * width * 4);
    return block;
}

/* Check that these are the units of the model. */
static void check_units(const model *m, const int64_t *wanted, int64_t n_wanted) {
    int64_t units[MAX_MODULES], n = -1;
    CHECK_STATUS(ms_units_find(m->modules, m->n, units, NULL, &n), MS_OK);
    CHECK_EQ_INT(n, n_wanted);
    for (int64_t i = 0; i < n; i++) CHECK_EQ_INT(units[i], wanted[i]);
}

TEST(gpt) {
    model m = {0};
    int64_t units[8], n = 0, root = add(&m, -1, "GPT", 0, CALLED);
    int64_t body = add(&m, root, "Transformer", 0, CALLED);
    units[n++] = add_leaf(&m, body, "Embedding", 50000);
    units[n++] = add_leaf(&m, body, "Embedding", 1000);
    int64_t list = add(&m, body, "ModuleList", 0, LIST);
    for (int i = 0; i < 4; i++) units[n++] = add_transformer_block(&m, list, 16);
    units[n++] = add_leaf(&m, body, "LayerNorm", 16);
    units[n++] = add_leaf(&m, root, "Linear", 50000);
    check_units(&m, units, n);
}

/* The flags of the units that were found: 'b' is a block. */
static void check_blocks(const model *m, const char *wanted) {
    int64_t units[MAX_MODULES], n = -1;
    uint32_t flags[MAX_MODULES];
    CHECK_STATUS(ms_units_find(m->modules, m->n, units, flags, &n), MS_OK);
    CHECK_EQ_INT(n, (int64_t)strlen(wanted));
    for (int64_t i = 0; i < n; i++) CHECK_EQ_INT(flags[i], wanted[i] == 'b' ? MS_UNIT_BLOCK : 0);
}

TEST(blocks_are_marked) {
    model m = {0};
    int64_t root = add(&m, -1, "GPT", 0, CALLED);
    (void)add_leaf(&m, root, "Embedding", 50000);
    int64_t list = add(&m, root, "ModuleList", 0, LIST);
    for (int i = 0; i < 3; i++) (void)add_transformer_block(&m, list, 16 + i % 2);
    (void)add_leaf(&m, root, "LayerNorm", 16);
    check_blocks(&m, "-bbb-");
}

TEST(the_only_block_of_a_list_is_one) {
    model m = {0};
    int64_t root = add(&m, -1, "GPT", 0, CALLED);
    (void)add_leaf(&m, root, "Embedding", 50000);
    (void)add_transformer_block(&m, add(&m, root, "ModuleList", 0, LIST), 16);
    check_blocks(&m, "-b");
}

/* In a sequence, only modules that recur and have parameters are blocks. */
TEST(other_members_of_a_list_are_no_blocks) {
    model m = {0};
    int64_t root = add(&m, -1, "Model", 0, CALLED), list = add(&m, root, "Sequential", 0, LIST | CALLED);
    (void)add_leaf(&m, list, "Linear", 100);
    (void)add_leaf(&m, list, "Relu", 0);
    (void)add_leaf(&m, list, "Linear", 100);
    (void)add_leaf(&m, list, "Relu", 0);
    (void)add_leaf(&m, list, "LayerNorm", 10);
    check_blocks(&m, "b-b--");
}

TEST(without_repetition_there_are_no_blocks) {
    model m = {0};
    int64_t root = add(&m, -1, "Model", 0, CALLED);
    (void)add_leaf(&m, root, "Linear", 100);
    (void)add_leaf(&m, root, "Linear", 100); /* not in a list */
    check_blocks(&m, "--");
}

TEST(a_list_of_blocks_that_is_called) {
    model m = {0};
    int64_t units[3], root = add(&m, -1, "Model", 0, CALLED), list = add(&m, root, "Sequential", 0, LIST | CALLED);
    for (int i = 0; i < 3; i++) units[i] = add_transformer_block(&m, list, 16);
    check_units(&m, units, 3);
}

TEST(a_list_of_one_block) {
    model m = {0};
    int64_t units[3], root = add(&m, -1, "Model", 0, CALLED);
    units[0] = add_leaf(&m, root, "Embedding", 100);
    int64_t list = add(&m, root, "ModuleList", 0, LIST);
    units[1] = add_transformer_block(&m, list, 16);
    units[2] = add_leaf(&m, root, "Linear", 100);
    check_units(&m, units, 3);
}

static int64_t add_residual_block(model *m, int64_t parent, int64_t width, int shrinks) {
    int64_t block = add(m, parent, "Bottleneck", 0, CALLED);
    for (int i = 0; i < 3; i++) {
        (void)add_leaf(m, block, "Conv2d", width * (i + 1));
        (void)add_leaf(m, block, "BatchNorm2d", width);
    }
    (void)add_leaf(m, block, "ReLU", 0);
    if (!shrinks) return block;
    int64_t shortcut = add(m, block, "Sequential", 0, LIST | CALLED);
    (void)add_leaf(m, shortcut, "Conv2d", width * 5);
    (void)add_leaf(m, shortcut, "BatchNorm2d", width);
    return block;
}

TEST(resnet_stages_are_opened) {
    model m = {0};
    int64_t units[32], n = 0, root = add(&m, -1, "ResNet", 0, CALLED);
    units[n++] = add_leaf(&m, root, "Conv2d", 100);
    units[n++] = add_leaf(&m, root, "ReLU", 0);
    for (int stage = 0; stage < 4; stage++) {
        int64_t list = add(&m, root, "Sequential", 0, LIST | CALLED);
        for (int i = 0; i < 2 + stage % 2; i++) units[n++] = add_residual_block(&m, list, 64 << stage, i == 0);
    }
    units[n++] = add_leaf(&m, root, "AvgPool", 0);
    units[n++] = add_leaf(&m, root, "Linear", 500);
    check_units(&m, units, n);
}

/* A list of stages of one class whose shapes differ, each with a list of blocks. */
TEST(a_list_of_stages_is_opened) {
    model m = {0};
    int64_t units[32], n = 0, root = add(&m, -1, "Swin", 0, CALLED), stages = add(&m, root, "ModuleList", 0, LIST);
    for (int stage = 0; stage < 3; stage++) {
        int64_t self = add(&m, stages, "Stage", 0, CALLED);
        units[n++] = add_leaf(&m, self, "Linear", 100 << stage);
        int64_t list = add(&m, self, "ModuleList", 0, LIST);
        for (int i = 0; i < 2; i++) units[n++] = add_transformer_block(&m, list, 8 << stage);
    }
    check_units(&m, units, n);
}

/* One level deep: the block of ConvNeXt, or a residual block of a diffusion model. */
static int64_t add_shallow_block(model *m, int64_t parent, int64_t width) {
    int64_t block = add(m, parent, "ShallowBlock", 0, CALLED);
    (void)add_leaf(m, block, "Conv2d", width * 9);
    (void)add_leaf(m, block, "LayerNorm", width);
    (void)add_leaf(m, block, "Linear", width * width * 4);
    (void)add_leaf(m, block, "Gelu", 0);
    (void)add_leaf(m, block, "Linear", width * width * 4);
    return block;
}

/* A stage with `n` shallow blocks, and before them a list of what shrinks its input; adds its units to `units`. */
static int64_t add_shallow_stage(model *m, int64_t parent, int64_t width, int n, int64_t *units) {
    int64_t n_units = 0, stage = add(m, parent, "Stage", 0, CALLED);
    int64_t list = add(m, stage, "ModuleList", 0, LIST);
    units[n_units++] = add_leaf(m, list, "LayerNorm", width);
    units[n_units++] = add_leaf(m, list, "Conv2d", width * width);
    list = add(m, stage, "ModuleList", 0, LIST);
    for (int i = 0; i < n; i++) units[n_units++] = add_shallow_block(m, list, width);
    return n_units;
}

TEST(stages_of_shallow_blocks_are_opened) {
    static const int depths[] = {3, 3, 9, 1}; /* the class of the last block recurs in other stages */
    model m = {0};
    int64_t units[32], n = 0, root = add(&m, -1, "ConvNext", 0, CALLED);
    units[n++] = add_leaf(&m, root, "Embedding", 100);
    int64_t encoder = add(&m, root, "Encoder", 0, CALLED), stages = add(&m, encoder, "ModuleList", 0, LIST);
    for (int i = 0; i < 4; i++) n += add_shallow_stage(&m, stages, 8 << i, depths[i], units + n);
    units[n++] = add_leaf(&m, root, "LayerNorm", 10);
    check_units(&m, units, n);
}

/* The decoder of an autoencoder: two of its four stages are equal. */
TEST(some_stages_may_be_equal) {
    static const int64_t widths[] = {64, 64, 32, 16};
    model m = {0};
    int64_t units[32], n = 0, root = add(&m, -1, "Decoder", 0, CALLED), stages = add(&m, root, "ModuleList", 0, LIST);
    for (int i = 0; i < 4; i++) n += add_shallow_stage(&m, stages, widths[i], 3, units + n);
    check_units(&m, units, n);
}

TEST(equal_stages_are_blocks) {
    model m = {0};
    int64_t units[4], inside[8], root = add(&m, -1, "Model", 0, CALLED), stages = add(&m, root, "ModuleList", 0, LIST);
    for (int i = 0; i < 4; i++) {
        units[i] = m.n;
        (void)add_shallow_stage(&m, stages, 16, 3, inside);
    }
    check_units(&m, units, 4);
}

/* Stages of two blocks that differ, each of which is a list of convolutions with their norms. */
TEST(blocks_that_consist_of_lists_are_not_opened) {
    model m = {0};
    int64_t units[16], n = 0, root = add(&m, -1, "RegNet", 0, CALLED), stages = add(&m, root, "ModuleList", 0, LIST);
    for (int stage = 0; stage < 3; stage++) {
        int64_t list = add(&m, add(&m, stages, "Stage", 0, CALLED), "Sequential", 0, LIST | CALLED);
        for (int i = 0; i < 2; i++) {
            int64_t block = units[n++] = add(&m, list, "Block", 0, CALLED);
            int64_t layers = add(&m, block, "Sequential", 0, LIST | CALLED);
            for (int k = 0; k < 3; k++) {
                int64_t layer = add(&m, layers, "ConvLayer", 0, CALLED);
                (void)add_leaf(&m, layer, "Conv2d", (100 + i) << stage);
                (void)add_leaf(&m, layer, "BatchNorm2d", 10);
            }
        }
    }
    check_units(&m, units, n);
}

static int64_t add_expert_block(model *m, int64_t parent, int n_experts) {
    int64_t block = add(m, parent, "Block", 0, CALLED);
    (void)add_leaf(m, block, "LayerNorm", 16);
    int64_t router = add(m, block, "Experts", 0, CALLED);
    (void)add_leaf(m, router, "Linear", 64);
    int64_t experts = add(m, router, "ModuleList", 0, LIST);
    for (int i = 0; i < n_experts; i++) {
        int64_t expert = add(m, experts, "Mlp", 0, CALLED); /* two levels deep, as a block of its own would be */
        int64_t gate = add(m, expert, "Gate", 0, CALLED);
        (void)add_leaf(m, gate, "Linear", 4000);
        (void)add_leaf(m, gate, "Linear", 4000);
        (void)add_leaf(m, expert, "Linear", 4000);
    }
    return block;
}

TEST(experts_stay_inside_their_block) {
    model m = {0};
    int64_t units[4], root = add(&m, -1, "MoE", 0, CALLED), list = add(&m, root, "ModuleList", 0, LIST);
    for (int i = 0; i < 4; i++) units[i] = add_expert_block(&m, list, 4);
    check_units(&m, units, 4);
}

TEST(dense_and_expert_blocks_in_turn) {
    model m = {0};
    int64_t units[6], root = add(&m, -1, "MoE", 0, CALLED), list = add(&m, root, "ModuleList", 0, LIST);
    for (int i = 0; i < 6; i++)
        units[i] = i % 2 == 0 ? add_transformer_block(&m, list, 16) : add_expert_block(&m, list, 4);
    check_units(&m, units, 6);
}

/* A dense block and one with experts: neither is equal to the other, and experts are one level deep. */
TEST(experts_of_the_only_expert_block) {
    model m = {0};
    int64_t units[2], root = add(&m, -1, "MoE", 0, CALLED), list = add(&m, root, "ModuleList", 0, LIST);
    units[0] = add_transformer_block(&m, list, 16);
    units[1] = add(&m, list, "Block", 0, CALLED);
    (void)add_leaf(&m, units[1], "LayerNorm", 16);
    int64_t experts = add(&m, units[1], "ModuleList", 0, LIST);
    for (int i = 0; i < 4; i++) (void)add_shallow_block(&m, experts, 16);
    check_units(&m, units, 2);
}

TEST(a_plain_sequence_of_layers) {
    model m = {0};
    int64_t units[5], root = add(&m, -1, "Sequential", 0, LIST | CALLED);
    for (int i = 0; i < 5; i++) units[i] = add_leaf(&m, root, i % 2 == 0 ? "Linear" : "ReLU", i % 2 == 0 ? 400 : 0);
    check_units(&m, units, 5);
}

TEST(a_sequence_inside_a_model) {
    model m = {0};
    int64_t units[6], n = 0, root = add(&m, -1, "Model", 0, CALLED);
    int64_t list = add(&m, root, "Sequential", 0, LIST | CALLED);
    for (int i = 0; i < 5; i++) units[n++] = add_leaf(&m, list, i % 2 == 0 ? "Linear" : "ReLU", i % 2 == 0 ? 400 : 0);
    units[n++] = add_leaf(&m, root, "Linear", 10);
    check_units(&m, units, n);
}

/* Activations recur in it, but no layer does: a small sequence is one unit. */
TEST(activations_alone_are_no_repetition) {
    model m = {0};
    int64_t root = add(&m, -1, "Model", 0, CALLED), list = add(&m, root, "Sequential", 0, LIST | CALLED);
    (void)add_leaf(&m, list, "Conv2d", 10);
    (void)add_leaf(&m, list, "ReLU", 0);
    (void)add_leaf(&m, list, "BatchNorm2d", 10);
    (void)add_leaf(&m, list, "ReLU", 0);
    int64_t units[2] = {list, add_leaf(&m, root, "Linear", 1000)};
    check_units(&m, units, 2);
}

TEST(without_repetition_large_children_are_opened) {
    model m = {0};
    int64_t units[8], n = 0, root = add(&m, -1, "Model", 0, CALLED);
    int64_t encoder = add(&m, root, "Encoder", 0, CALLED); /* most of the model: opened */
    units[n++] = add_leaf(&m, encoder, "Conv2d", 500);
    int64_t neck = add(&m, encoder, "Neck", 0, CALLED); /* more than a quarter: opened too */
    units[n++] = add_leaf(&m, neck, "Conv2d", 300);
    units[n++] = add_leaf(&m, neck, "Linear", 100);
    int64_t pooling = add(&m, encoder, "Pooling", 0, CALLED); /* small: a unit as it is */
    (void)add_leaf(&m, pooling, "Linear", 40);
    units[n++] = pooling;
    int64_t head = add(&m, root, "Head", 0, CALLED);
    (void)add_leaf(&m, head, "Linear", 50);
    (void)add_leaf(&m, head, "Softmax", 0);
    units[n++] = head;
    check_units(&m, units, n);
}

TEST(opaque_modules_are_taken_whole) {
    model m = {0};
    int64_t units[4], n = 0, root = add(&m, -1, "Model", 0, CALLED);
    int64_t closed = add(&m, root, "Scripted", 0, CALLED | OPAQUE), list = add(&m, closed, "ModuleList", 0, LIST);
    for (int i = 0; i < 3; i++) (void)add_transformer_block(&m, list, 16);
    units[n++] = closed;
    units[n++] = add_leaf(&m, root, "Linear", 10);
    check_units(&m, units, n);
}

TEST(an_opaque_root_has_no_units) {
    model m = {0};
    int64_t root = add(&m, -1, "Model", 0, CALLED | OPAQUE);
    (void)add_leaf(&m, root, "Linear", 10);
    check_units(&m, NULL, 0);
}

TEST(a_root_without_children_has_no_units) {
    model m = {0};
    (void)add(&m, -1, "Linear", 10, CALLED);
    check_units(&m, NULL, 0);
}

TEST(containers_are_never_units) {
    model m = {0};
    int64_t units[2], root = add(&m, -1, "Model", 0, CALLED);
    (void)add(&m, root, "ParameterList", 100, LIST);
    int64_t dict = add(&m, root, "ModuleDict", 0, 0);
    units[0] = add_leaf(&m, dict, "Linear", 10);
    units[1] = add_leaf(&m, dict, "Linear", 20);
    check_units(&m, units, 2);
}

/* For every model, units are in ascending order, have a forward, and none is inside another. */
TEST(units_never_contain_each_other) {
    uint64_t state = 2463534242u;
    for (int round = 0; round < 2000; round++) {
        model m = {0};
        int64_t units[MAX_MODULES], n = -1, n_modules = 1 + round % 60, last = 0;
        for (int64_t i = 0; i < n_modules; i++) {
            static const char *const names[] = {"A", "B", "C", "D"};
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            int64_t parent = i == 0 ? -1 : last; /* the last module or, by chance, one above it */
            for (uint64_t up = state >> 8 & 3; up > 1 && parent > 0; up--) parent = m.modules[parent].parent;
            last = add(&m, parent, names[state >> 16 & 3], (int64_t)(state >> 24 & 3) * 100, state >> 32 & 7);
        }
        CHECK_STATUS(ms_units_find(m.modules, m.n, units, NULL, &n), MS_OK);
        char taken[MAX_MODULES] = {0};
        for (int64_t i = 0; i < n; i++) {
            CHECK(units[i] > (i == 0 ? 0 : units[i - 1]) && units[i] < m.n);
            CHECK(m.modules[units[i]].flags & CALLED);
            for (int64_t up = m.modules[units[i]].parent; up >= 0; up = m.modules[up].parent) CHECK(!taken[up]);
            taken[units[i]] = 1;
        }
    }
}

static void check_refused(const model *m) {
    int64_t units[MAX_MODULES], n = -1;
    CHECK_STATUS(ms_units_find(m->modules, m->n, units, NULL, &n), MS_E_INVALID);
    CHECK_EQ_INT(n, -1);
    CHECK(ms_error_message()[0] != '\0');
}

TEST(invalid_trees) {
    static const int64_t parents[][4] = {
        {0, 0, 0, 0},   /* the root is its own parent */
        {-1, -1, 0, 0}, /* two roots */
        {-1, 0, 2, 0},  /* its own parent */
        {-1, 0, 3, 0},  /* a parent that comes later */
        {-1, 0, 4, 0},  /* ... outside */
        {-1, -2, 0, 0},        {-1, 0, 0, INT64_MAX},
        {-1, 0, 0, INT64_MIN}, {-1, 0, 0, 1}, /* not depth first: the parent was already left */
    };
    for (size_t i = 0; i < sizeof parents / sizeof *parents; i++) {
        model m = {0};
        for (int k = 0; k < 4; k++) (void)add_leaf(&m, parents[i][k], "A", 1);
        check_refused(&m);
    }
}

TEST(invalid_sizes) {
    static const int64_t sizes[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX / 4};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        model m = {0};
        int64_t root = add(&m, -1, "Model", 0, CALLED);
        (void)add_leaf(&m, root, "Linear", sizes[i]);
        check_refused(&m);
    }
}

TEST(arguments_are_checked) {
    model m = {0};
    int64_t units[1], n = -1;
    (void)add(&m, -1, "Linear", 10, CALLED);
    CHECK_STATUS(ms_units_find(NULL, 1, units, NULL, &n), MS_E_INVALID);
    CHECK_STATUS(ms_units_find(m.modules, 0, units, NULL, &n), MS_E_INVALID);
    CHECK_STATUS(ms_units_find(m.modules, -1, units, NULL, &n), MS_E_INVALID);
    CHECK_STATUS(ms_units_find(m.modules, 1, NULL, NULL, &n), MS_E_INVALID);
    CHECK_STATUS(ms_units_find(m.modules, 1, units, NULL, NULL), MS_E_INVALID);
    CHECK_EQ_INT(n, -1);
}

SUITE(units, CASE(gpt), CASE(blocks_are_marked), CASE(the_only_block_of_a_list_is_one),
      CASE(other_members_of_a_list_are_no_blocks), CASE(without_repetition_there_are_no_blocks),
      CASE(a_list_of_blocks_that_is_called), CASE(a_list_of_one_block), CASE(resnet_stages_are_opened),
      CASE(a_list_of_stages_is_opened), CASE(stages_of_shallow_blocks_are_opened), CASE(some_stages_may_be_equal),
      CASE(equal_stages_are_blocks), CASE(blocks_that_consist_of_lists_are_not_opened),
      CASE(experts_of_the_only_expert_block), CASE(experts_stay_inside_their_block),
      CASE(dense_and_expert_blocks_in_turn), CASE(a_plain_sequence_of_layers), CASE(a_sequence_inside_a_model),
      CASE(activations_alone_are_no_repetition), CASE(without_repetition_large_children_are_opened),
      CASE(opaque_modules_are_taken_whole), CASE(an_opaque_root_has_no_units),
      CASE(a_root_without_children_has_no_units), CASE(containers_are_never_units),
      CASE(units_never_contain_each_other), CASE(invalid_trees), CASE(invalid_sizes), CASE(arguments_are_checked));
