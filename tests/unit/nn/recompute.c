/*
 * ls_recompute: results bit-identical to training without it, less memory, and errors.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/loss.h>
#include <lockstep/nn.h>
#include <lockstep/optim.h>

#include <malloc.h>
#include <math.h>

#include "tensor/scope.h"

enum { STEPS = 3, MOST = 64, SEED = 7 };

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef struct model {
    const char *name;
    ls_module *(*make)(void);
    void (*select)(ls_module *module);
    ls_tensor *(*input)(void);
} model;

static ls_module *make_mlp(void) {
    return ls_sequential(ls_sequential(ls_nn_linear(8, 16), ls_nn_relu(), ls_nn_dropout(0.5)),
                         ls_sequential(ls_nn_linear(16, 16), ls_nn_tanh(), ls_nn_dropout(0.3)), ls_nn_linear(16, 4));
}

static ls_tensor *mlp_input(void) {
    return ls_rand(LS_SHAPE(6, 8), LS_F32);
}

/* Batch normalization that runs twice in a step. */
static ls_tensor *norm_forward(ls_module *self, ls_tensor *input) {
    ls_module *norm = ls_module_child(self, 0);
    return ls_forward(norm, ls_tanh(ls_forward(norm, input)));
}

static ls_module *make_norm(void) {
    static const ls_module_type type = {.name = "Norm", .forward = norm_forward};
    ls_module *module = ls_module_new(&type);
    (void)ls_module_add_child(module, "norm", ls_nn_batch_norm_1d(8, NULL));
    return ls_module_finish(module);
}

static ls_module *make_cnn(void) {
    return ls_sequential(
        ls_sequential(ls_nn_conv_2d(1, 4, LS_SHAPE(3, 3), NULL), ls_nn_batch_norm_2d(4, NULL), ls_nn_relu()),
        ls_sequential(ls_nn_conv_2d(4, 4, LS_SHAPE(3, 3), NULL), ls_nn_batch_norm_2d(4, NULL), ls_nn_relu()));
}

static ls_tensor *cnn_input(void) {
    return ls_rand(LS_SHAPE(3, 1, 9, 9), LS_F32);
}

static ls_module *make_transformer(void) {
    const ls_transformer_options block = {.norm_first = true, .dropout = 0.2, .attention = {.causal = true}};
    return ls_sequential(ls_nn_transformer_block(8, 2, &block), ls_nn_transformer_block(8, 2, &block),
                         ls_nn_linear(8, 4));
}

static ls_tensor *transformer_input(void) {
    return ls_rand(LS_SHAPE(2, 5, 8), LS_F32);
}

static void select_children(ls_module *module) {
    for (int i = 0; i < ls_module_child_count(module); i++) {
        assert_int_equal(ls_recompute(ls_module_child(module, i), true), LS_OK);
    }
}

/* Selects nested modules: the module, its children, and their children. */
static void select_all(ls_module *module) {
    assert_int_equal(ls_recompute(module, true), LS_OK);
    for (int i = 0; i < ls_module_child_count(module); i++) {
        select_all(ls_module_child(module, i));
    }
}

/* Calls the same layer twice, with an input that also bypasses it. */
static ls_tensor *twice_forward(ls_module *self, ls_tensor *input) {
    ls_module *layer = ls_module_child(self, 0);
    ls_tensor *x = ls_forward(layer, input);
    return ls_add(ls_mul(ls_forward(layer, x), x), input);
}

static ls_module *make_twice(void) {
    static const ls_module_type type = {.name = "Twice", .forward = twice_forward};
    ls_module *module = ls_module_new(&type);
    ls_module *layer = ls_sequential(ls_nn_linear(8, 8), ls_nn_tanh(), ls_nn_dropout(0.5));
    (void)ls_module_add_child(module, "layer", layer);
    return ls_module_finish(module);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

typedef struct result {
    float values[8192];
    int count;
    int hooks;
    ls_random_state random;
} result;

static void note(result *r, ls_tensor *tensor) {
    const int64_t count = ls_numel(tensor);
    assert_true(r->count + count <= (int)(sizeof r->values / sizeof *r->values));
    memcpy(r->values + r->count, ls_data_const(tensor), (size_t)count * sizeof(float));
    r->count += (int)count;
}

static ls_status count_hook(ls_tensor *leaf, void *user) {
    (void)leaf;
    ++*(int *)user;
    return LS_OK;
}

static void train(const model *m, bool recompute, ls_dtype autocast, result *r) {
    memset(r, 0, sizeof *r);
    ls_seed(SEED);
    ls_module *module = m->make();
    assert_non_null(module);
    if (recompute) {
        m->select(module);
    }
    assert_int_equal(ls_add_grad_hook(ls_module_parameter(module, 0), count_hook, &r->hooks), LS_OK);
    for (int step = 0; step < STEPS; step++) { /* gradients accumulate */
        ls_scope *scope = ls_scope_begin();
        ls_tensor *input = m->input();
        assert_int_equal(ls_set_requires_grad(input, step == 1), LS_OK);
        (void)ls_autocast(autocast);
        ls_tensor *loss = ls_mul(ls_mean(ls_square(ls_forward(module, input))), 64.0);
        (void)ls_autocast(LS_F32);
        assert_int_equal(ls_backward(loss), LS_OK);
        note(r, loss);
        if (step == 1) {
            note(r, ls_grad(input));
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
    for (int i = 0; i < ls_module_parameter_count(module); i++) {
        note(r, ls_grad(ls_module_parameter(module, i)));
    }
    for (int i = 0; i < ls_module_buffer_count(module); i++) {
        if (ls_dtype_of(ls_module_buffer(module, i)) == LS_F32) {
            note(r, ls_module_buffer(module, i));
        }
    }
    r->random = ls_random_get_state();
    ls_module_free(module);
}

static const model models[] = {
    {"mlp", make_mlp, select_children, mlp_input},
    {"mlp, nested", make_mlp, select_all, mlp_input},
    {"cnn", make_cnn, select_children, cnn_input},
    {"cnn, nested", make_cnn, select_all, cnn_input},
    {"transformer", make_transformer, select_children, transformer_input},
    {"transformer, nested", make_transformer, select_all, transformer_input},
    {"norm", make_norm, select_children, mlp_input},
    {"norm, nested", make_norm, select_all, mlp_input},
    {"twice", make_twice, select_children, mlp_input},
    {"twice, nested", make_twice, select_all, mlp_input},
};

static void compare(ls_dtype autocast) {
    static result plain, recomputed;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        train(&models[i], false, autocast, &plain);
        train(&models[i], true, autocast, &recomputed);
        if (plain.count != recomputed.count || memcmp(plain.values, recomputed.values, sizeof plain.values) != 0) {
            fail_msg("%s: the values differ", models[i].name);
        }
        assert_int_equal(plain.hooks, STEPS);
        assert_int_equal(recomputed.hooks, STEPS);
        assert_int_equal(plain.random.stream, recomputed.random.stream);
    }
}

TEST(test_bits) {
    compare(LS_F32);
}

TEST(test_bits_autocast) {
    compare(LS_BF16);
    compare(LS_F16);
}

/* ---- how often the module runs, and with what -------------------------------------------------------------------- */

static int runs;
static bool fails, trained;

static ls_tensor *count_forward(ls_module *self, ls_tensor *input) {
    runs++;
    trained = ls_module_is_training(self);
    return fails ? (ls_tensor *)(ls_error_set(LS_ERR_IO, "no such thing"), NULL) : ls_square(input);
}

static ls_module *make_counter(void) {
    static const ls_module_type type = {.name = "Counter", .forward = count_forward};
    runs = 0;
    fails = false;
    ls_module *module = ls_module_new(&type);
    assert_int_equal(ls_recompute(module, true), LS_OK);
    return module;
}

static ls_tensor *make_leaf(void) {
    ls_tensor *x = ls_full(LS_SHAPE(3), LS_F32, 2);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    return x;
}

SCOPED_TEST(test_runs) {
    ls_module *module = make_counter();
    ls_tensor *x = make_leaf();
    const bool before = ls_no_grad(true);
    assert_false(ls_requires_grad(ls_forward(module, x)));
    (void)ls_no_grad(before);
    assert_false(ls_requires_grad(ls_forward(module, ls_detach(x))));
    assert_int_equal(runs, 2);
    ls_module_train(module, false);
    ls_tensor *loss = ls_sum(ls_forward(module, x));
    ls_module_train(module, true);
    assert_int_equal(runs, 3);
    assert_int_equal(ls_backward_with(loss, &(ls_backward_options){.keep_tape = true}), LS_OK);
    assert_int_equal(runs, 4);
    assert_false(trained); /* the mode of the original call */
    assert_true(ls_module_is_training(module));
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_int_equal(runs, 5);
    assert_true(ls_item(ls_select(ls_grad(x), 0, 0)) == 8);
    assert_int_equal(ls_recompute(module, false), LS_OK);
    assert_int_equal(ls_backward(ls_sum(ls_forward(module, x))), LS_OK);
    assert_int_equal(runs, 6);
    ls_module_free(module);
}

TEST(test_errors) {
    expect_error(ls_recompute(NULL, true), LS_ERR_ARGUMENT, "ls_recompute: the module is NULL");
    ls_module *module = make_counter();
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = make_leaf();
    ls_tensor *loss = ls_sum(ls_forward(module, x));
    fails = true;
    expect_error(ls_backward(loss), LS_ERR_IO, "no such thing");
    (void)ls_scope_end(scope);
    fails = false;
    scope = ls_scope_begin();
    x = make_leaf();
    loss = ls_sum(ls_forward(module, x));
    const bool before = ls_no_grad(true);
    assert_int_equal(ls_fill(x, 3), LS_OK);
    (void)ls_no_grad(before);
    expect_error(ls_backward(loss), LS_ERR_STATE, "ls_recompute saved a tensor [3] that was later modified in place");
    (void)ls_scope_end(scope);
    ls_module_free(module);
}

/* ---- state that would make a second run differ from the first ---------------------------------------------------- */

typedef enum trick { NO_TRICK, READ_A_LEAF, LEAVE_A_SCOPE, CHANGE_A_BUFFER } trick;

typedef struct tricky {
    trick trick;
    ls_tensor *factor, *buffer;
    ls_tensor *leaf; /* of the program */
} tricky;

static ls_tensor *tricky_forward(ls_module *self, ls_tensor *input) {
    const tricky *t = ls_module_state(self);
    if (t->trick == LEAVE_A_SCOPE) {
        (void)ls_scope_begin();
    }
    if (t->trick == CHANGE_A_BUFFER) {
        (void)!ls_fill(t->buffer, 5);
    }
    return ls_mul(ls_mul(ls_mul(input, t->factor), t->buffer), t->trick == READ_A_LEAF ? t->leaf : input);
}

/* Makes a module with a factor and a buffer, and its output for a leaf. */
static ls_module *make_tricky(trick kind, ls_tensor *leaf) {
    static const ls_module_type type = {.name = "Tricky", .state_size = sizeof(tricky), .forward = tricky_forward};
    ls_module *module = ls_module_new(&type);
    tricky *t = ls_module_state(module);
    t->trick = kind;
    t->leaf = leaf;
    t->factor = ls_module_add_parameter(module, "factor", ls_ones(LS_SHAPE(3), LS_F32));
    t->buffer = ls_module_add_buffer(module, "buffer", ls_ones(LS_SHAPE(3), LS_F32));
    assert_int_equal(ls_recompute(module, true), LS_OK);
    return module;
}

TEST(test_state_that_differs) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *leaf = make_leaf(), *x = make_leaf();
    ls_module *reader = make_tricky(READ_A_LEAF, leaf), *leaver = make_tricky(LEAVE_A_SCOPE, leaf);
    ls_module *changer = make_tricky(CHANGE_A_BUFFER, leaf), *plain = make_tricky(NO_TRICK, leaf);
    expect_error(ls_backward(ls_sum(ls_forward(reader, x))), LS_ERR_UNSUPPORTED,
                 "Tricky reads a tensor [3] that requires a gradient, but is neither an input nor a parameter");
    /* Without another gradient, the call is not computed twice. */
    assert_int_equal(ls_module_set_requires_grad(reader, false), LS_OK);
    ls_zero_grad(leaf);
    assert_int_equal(ls_backward(ls_sum(ls_forward(reader, ls_full(LS_SHAPE(3), LS_F32, 4)))), LS_OK);
    assert_non_null(ls_grad(leaf));
    assert_true(ls_item(ls_sum(ls_grad(leaf))) == 12);
    ls_tensor *loss = ls_sum(ls_forward(plain, x));
    (void)!ls_fill(((tricky *)ls_module_state(plain))->buffer, 2);
    expect_error(ls_backward(loss), LS_ERR_STATE, "buffer buffer of Tricky was changed by ls_fill");
    expect_error(ls_backward(ls_sum(ls_forward(changer, x))), LS_ERR_STATE,
                 "buffer buffer of Tricky was changed by ls_fill");
    ls_tensor *factor = ls_module_parameter(plain, 0);
    (void)!ls_set_requires_grad(factor, false);
    loss = ls_sum(ls_forward(plain, x));
    (void)!ls_set_requires_grad(factor, true);
    expect_error(ls_backward(loss), LS_ERR_STATE, "requires a gradient now, but did not in the forward pass");
    assert_null(ls_forward(leaver, x));
    expect_message("the forward function of Tricky has left a scope open");
    (void)ls_scope_end(scope);
    ls_module_free(reader);
    ls_module_free(leaver);
    ls_module_free(changer);
    ls_module_free(plain);
}

static ls_tensor *cache_forward(ls_module *self, ls_tensor *input) {
    ls_tensor **cache = ls_module_state(self);
    *cache = *cache == NULL ? ls_module_add_buffer(self, "cache", ls_full(LS_SHAPE(3), LS_F32, 5)) : *cache;
    return ls_mul(ls_forward(ls_module_child(self, 0), input), *cache);
}

/* A recomputed module may register a cache of its own in its first forward pass. */
SCOPED_TEST(test_cache) {
    static const ls_module_type type = {.name = "Cached", .state_size = sizeof(ls_tensor *), .forward = cache_forward};
    ls_module *module = ls_module_new(&type);
    assert_non_null(ls_module_add_child(module, "norm", ls_nn_batch_norm_1d(3, NULL)));
    assert_int_equal(ls_recompute(module, true), LS_OK);
    for (int i = 0; i < 2; i++) {
        ls_tensor *x = ls_ones(LS_SHAPE(4, 3), LS_F32);
        assert_int_equal(ls_backward(ls_sum(ls_forward(module, x))), LS_OK);
        assert_int_equal(ls_module_buffer_count(module), 3);
        assert_string_equal(ls_module_buffer_name(module, 0), "cache");
    }
    ls_module_free(module);
}

static ls_status leave_a_scope(ls_tensor *leaf, void *user) {
    (void)leaf, (void)user;
    (void)ls_scope_begin();
    return LS_OK;
}

static ls_status count_call(ls_module_call *call, void *user) {
    (void)call;
    ++*(int *)user;
    return LS_OK;
}

/* Hooks of the recomputed module run once. Forward hooks of a module in it run twice, and backward hooks once. */
SCOPED_TEST(test_hooks_of_modules) {
    ls_module *inner = ls_nn_linear(3, 3), *module = ls_sequential(inner, ls_nn_tanh());
    int forward[2] = {0}, backward[2] = {0};
    for (int i = 0; i < 2; i++) {
        ls_module *hooked = i == 0 ? module : inner;
        assert_int_not_equal(
            ls_module_add_hooks(hooked, &(ls_module_hooks){.user = &forward[i], .forward = count_call}), 0);
        assert_int_not_equal(
            ls_module_add_hooks(hooked, &(ls_module_hooks){.user = &backward[i], .backward = count_call}), 0);
    }
    assert_int_equal(ls_recompute(module, true), LS_OK);
    assert_int_equal(ls_backward(ls_sum(ls_forward(module, ls_rand(LS_SHAPE(2, 3), LS_F32)))), LS_OK);
    assert_int_equal(forward[0], 1);
    assert_int_equal(backward[0], 1);
    assert_int_equal(forward[1], 2);
    assert_int_equal(backward[1], 1);
    ls_module_free(module);
}

/* A hook leaves a scope open during the backward walk of the recomputation (sanitizer builds detect a leak). */
TEST(test_hook_leaves_a_scope) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *leaf = make_leaf();
    ls_module *module = make_tricky(NO_TRICK, leaf);
    assert_int_equal(ls_add_grad_hook(ls_module_parameter(module, 0), leave_a_scope, NULL), LS_OK);
    assert_int_equal(ls_backward(ls_sum(ls_forward(module, leaf))), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(module);
}

/* Evaluation reads the running statistics, so training must not change them before the backward pass. */
TEST(test_batch_norm_of_two_modes) {
    ls_scope *scope = ls_scope_begin();
    ls_module *norm = ls_nn_batch_norm_1d(3, NULL);
    assert_int_equal(ls_recompute(norm, true), LS_OK);
    ls_module_train(norm, false);
    ls_tensor *x = ls_rand(LS_SHAPE(4, 3), LS_F32);
    ls_tensor *loss = ls_sum(ls_forward(norm, x));
    ls_module_train(norm, true);
    assert_non_null(ls_forward(norm, x));
    expect_error(ls_backward(loss), LS_ERR_STATE, "buffer running_mean of");
    (void)ls_scope_end(scope);
    ls_module_free(norm);
}

static ls_status two_forward(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                             int output_count) {
    (void)self, (void)input_count, (void)output_count;
    outputs[0] = outputs[1] = ls_square(inputs[0]);
    return LS_OK;
}

TEST(test_several_outputs) {
    static const ls_module_type type = {.name = "Two", .forward_many = two_forward, .inputs = 1, .outputs = 2};
    ls_scope *scope = ls_scope_begin();
    ls_module *module = ls_module_new(&type);
    assert_int_equal(ls_recompute(module, true), LS_OK);
    ls_tensor *x = make_leaf(), *outputs[2];
    const bool before = ls_no_grad(true);
    assert_int_equal(ls_forward_many(module, &x, 1, outputs, 2), LS_OK);
    (void)ls_no_grad(before);
    expect_error(ls_forward_many(module, &x, 1, outputs, 2), LS_ERR_UNSUPPORTED, "Two returns 2 outputs");
    (void)ls_scope_end(scope);
    ls_module_free(module);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static size_t held, most_held;

static void *count_allocate(size_t size, size_t alignment, void *user) {
    (void)user;
    void *memory = NULL;
    if (posix_memalign(&memory, alignment > sizeof(void *) ? alignment : sizeof(void *), size) != 0) {
        return NULL;
    }
    held += malloc_usable_size(memory);
    most_held = held > most_held ? held : most_held;
    return memory;
}

static void count_release(void *memory, void *user) {
    (void)user;
    held -= memory != NULL ? malloc_usable_size(memory) : 0;
    free(memory);
}

enum { LAYERS = 16, WIDTH = 32, ROWS = 2048, ROW_BYTES = ROWS * WIDTH * 4 };

/* Returns the peak memory in bytes, relative to its start, of a step with 16 blocks of two layers each. */
static size_t peak_of(bool recompute) {
    ls_thread_end();
    ls_module *blocks[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        blocks[i] = ls_sequential(ls_nn_linear(WIDTH, WIDTH), ls_nn_tanh(), ls_nn_linear(WIDTH, WIDTH), ls_nn_tanh());
        if (recompute) {
            assert_int_equal(ls_recompute(blocks[i], true), LS_OK);
        }
    }
    ls_module *module = ls_sequential_of(blocks, LAYERS);
    const size_t before = held;
    most_held = held;
    ls_scope *scope = ls_scope_begin();
    ls_tensor *input = ls_rand(LS_SHAPE(ROWS, WIDTH), LS_F32);
    assert_int_equal(ls_backward(ls_mean(ls_forward(module, input))), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    const size_t peak = most_held - before;
    ls_module_free(module);
    ls_thread_end();
    return peak;
}

/* Without recomputation, four results per block are kept; with it, one per block and the tensors of one block. */
TEST(test_memory) {
    const size_t plain = peak_of(false);
    const size_t recomputed = peak_of(true);
    assert_true(plain >= (size_t)LAYERS * 4 * ROW_BYTES);
    assert_true(recomputed <= (size_t)(LAYERS + 12) * ROW_BYTES);
}

/* ---- a small GPT ------------------------------------------------------------------------------------------------- */

enum { FEATURES = 64, HEADS = 4, CONTEXT = 64, SEQUENCES = 4, VOCABULARY = 128, MOST_BLOCKS = 16 };

static double activations(bool peak) {
    ls_memory memory;
    assert_int_equal(ls_memory_stats(&memory), LS_OK);
    return (double)(peak ? memory.peak : memory.bytes)[LS_MEMORY_ACTIVATIONS];
}

static ls_module *make_block(void) {
    return ls_nn_transformer_block(FEATURES, HEADS,
                                   &(ls_transformer_options){.norm_first = true,
                                                             .activation = LS_MLP_GELU,
                                                             .attention = {.causal = true, .rotary = true}});
}

/* The model of examples/gpt.c. */
static ls_module *make_gpt(int blocks, bool recompute) {
    ls_module *layers[MOST_BLOCKS];
    for (int i = 0; i < blocks; i++) {
        layers[i] = make_block();
        assert_int_equal(ls_recompute(layers[i], recompute), LS_OK);
    }
    return ls_sequential(ls_nn_embedding(VOCABULARY, FEATURES), ls_sequential_of(layers, blocks),
                         ls_nn_layer_norm(LS_SHAPE(FEATURES), NULL), ls_nn_linear(FEATURES, VOCABULARY));
}

/* Runs a step. Sets *kept to the bytes of activations after the forward pass, and *peak to their peak. */
static void step_gpt(int blocks, bool recompute, double *kept, double *peak) {
    ls_module *gpt = make_gpt(blocks, recompute);
    const double before = activations(false);
    assert_int_equal(ls_memory_reset_peak(), LS_OK);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *bytes = ls_zeros(LS_SHAPE(SEQUENCES, CONTEXT), LS_I64);
    ls_tensor *logits = ls_reshape(ls_forward(gpt, bytes), LS_SHAPE(-1, VOCABULARY));
    ls_tensor *loss = ls_cross_entropy(logits, ls_reshape(bytes, LS_SHAPE(-1)), NULL);
    *kept = activations(false) - before;
    assert_int_equal(ls_backward(loss), LS_OK);
    *peak = activations(true) - before;
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(gpt);
}

/* Returns the bytes that a block keeps for its backward pass, with its output. */
static double results_of_block(void) {
    ls_module *block = make_block();
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_zeros(LS_SHAPE(SEQUENCES, CONTEXT, FEATURES), LS_F32);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    const double before = activations(false);
    assert_non_null(ls_forward(block, x));
    const double results = activations(false) - before;
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(block);
    return results;
}

/*
 * With n recomputed blocks, a step keeps n outputs, the results outside the blocks, and the results of one block: at
 * most 1.2 times their sum. For n layers, the square-root formula is 2 sqrt(n) layers (Chen et al.).
 */
TEST(test_memory_of_gpt) {
    const double block = results_of_block(), output = 4.0 * SEQUENCES * CONTEXT * FEATURES;
    assert_true(block > 20 * output);
    for (int blocks = 4; blocks <= MOST_BLOCKS; blocks *= 4) {
        double kept, peak, all_kept, full_peak;
        step_gpt(blocks, false, &all_kept, &full_peak);
        step_gpt(blocks, true, &kept, &peak);
        print_message("%d blocks: the peak is %.1f outputs, %.3f of the formula, %.3f of 2 sqrt(n) blocks; without "
                      "recomputation %.1f outputs\n",
                      blocks, peak / output, peak / (kept + block), peak / (2 * sqrt(blocks) * block),
                      full_peak / output);
        assert_true(all_kept >= blocks * block);
        assert_true(kept <= (blocks + 7) * output); /* and the embedding, the norm and the logits */
        assert_true(peak <= 1.2 * (kept + block));
        assert_true(peak <= 1.2 * 2 * sqrt(blocks) * block);
    }
}

int main(void) {
    const ls_allocator allocator = {.allocate = count_allocate, .release = count_release};
    ls_set_allocator(&allocator);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_bits_autocast),
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_of_gpt),
        cmocka_unit_test(test_state_that_differs),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_batch_norm_of_two_modes),
        cmocka_unit_test(test_several_outputs),
        cmocka_unit_test(test_hooks_of_modules),
        cmocka_unit_test(test_hook_leaves_a_scope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
