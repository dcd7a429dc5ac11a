/*
 * Ownership of tensors and modules: modules take ownership once or several times, in scopes and outside, even if they
 * fail. Also names of shared tensors in files. With the leak check of the address sanitizer, the test is complete.
 * Otherwise, modules that count their destruction show that each is freed once.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/nn.h>
#include <lockstep/optim.h>

#include "nn/module.h"
#include "tests/support/files.h"

static int ended; /* number of freed counting modules */

typedef struct table_state {
    ls_tensor *weight;
    bool transposed;
} table_state;

static ls_tensor *table_forward(ls_module *self, ls_tensor *input) {
    const table_state *table = ls_module_state(self);
    return table->transposed ? ls_linear(input, table->weight, NULL) : ls_matmul(input, table->weight);
}

static void module_ends(ls_module *self) {
    (void)self;
    ended++;
}

/* Computes x weight, or x weight^T: the two ways in which an encoder and a decoder use a shared weight [3, 2]. */
static ls_module *table_new(ls_tensor *weight, bool transposed) {
    static const ls_module_type type = {
        .name = "Table", .state_size = sizeof(table_state), .forward = table_forward, .free_state = module_ends};
    ls_module *module = ls_module_new(&type);
    table_state *table = ls_module_state(module);
    table->weight = ls_module_add_parameter(module, "weight", weight);
    table->transposed = transposed;
    return ls_module_finish(module);
}

static ls_tensor *new_weight(void) {
    return ls_from(LS_SHAPE(3, 2), LS_F32, (const float[]){0.5F, -1, 2, 0.25F, -0.75F, 1.5F});
}

/* Names "0.weight" and "2.weight". */
static ls_module *tied_model(void) {
    ls_tensor *weight = new_weight();
    return ls_sequential(table_new(weight, false), ls_nn_tanh(), table_new(weight, true));
}

static ls_tensor *loss_of(ls_module *model) {
    return ls_mean(ls_square(ls_sub(ls_forward(model, ls_ones(LS_SHAPE(4, 3), LS_F32)), 0.5)));
}

TEST(test_tied_weights_are_one_parameter) {
    ended = 0;
    ls_module *model = tied_model();
    assert_non_null(model);
    assert_int_equal(ls_module_parameter_count(model), 1);
    assert_int_equal(ls_module_size(model), 6);
    assert_string_equal(ls_module_parameter_name(model, 0), "0.weight");
    assert_ptr_equal(ls_module_find(model, "0.weight"), ls_module_find(model, "2.weight"));
    ls_module *single = table_new(new_weight(), false);
    assert_true(ls_module_hash(model) == ls_module_hash(single));
    ls_flat flats[LS_FLAT_LIMIT];
    assert_int_equal(ls_module_flatten(model, flats), 1);
    assert_int_equal(flats[0].count, 16);
    assert_true(ls_module_hash(model) == ls_module_hash(single));
    ls_module_free(single);
    ls_module_free(model);
    assert_int_equal(ended, 3);
}

/* The gradient of a tied weight is the sum of the gradients of two separate weights. */
TEST(test_gradients_of_tied_weights_add_up) {
    ls_module *tied = tied_model();
    ls_module *apart = ls_sequential(table_new(new_weight(), false), ls_nn_tanh(), table_new(new_weight(), true));
    assert_int_equal(ls_module_parameter_count(apart), 2);
    for (int flat = 0; flat < 2; flat++) {
        ls_scope *scope = ls_scope_begin();
        assert_int_equal(ls_backward(loss_of(tied)), LS_OK);
        assert_int_equal(ls_backward(loss_of(apart)), LS_OK);
        const ls_tensor *sum =
            ls_add(ls_grad(ls_module_find(apart, "0.weight")), ls_grad(ls_module_find(apart, "2.weight")));
        assert_true(ls_allclose(ls_grad(ls_module_find(tied, "0.weight")), sum, 1e-6, 1e-7));
        ls_flat flats[LS_FLAT_LIMIT];
        assert_int_equal(ls_module_flatten(tied, flats), 1);
        ls_module_zero_grad(tied);
        ls_module_zero_grad(apart);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
    ls_module_free(tied);
    ls_module_free(apart);
}

TEST(test_an_optimizer_steps_tied_weights_once) {
    ls_module *model = tied_model();
    ls_tensor *weight = ls_module_find(model, "2.weight");
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9});
    assert_non_null(optimizer);
    ls_scope *scope = ls_scope_begin();
    assert_int_equal(ls_backward(loss_of(model)), LS_OK);
    double norm = 0;
    const double right = sqrt(ls_item(ls_sum(ls_square(ls_grad(weight)))));
    assert_int_equal(ls_clip_grad_norm(model, 1e6, &norm), LS_OK);
    assert_true(fabs(norm - right) < 1e-6);
    const ls_tensor *wanted = ls_sub(ls_detach(weight), ls_mul(ls_grad(weight), 0.1));
    wanted = ls_clone((ls_tensor *)wanted);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    assert_true(ls_allclose(weight, wanted, 1e-6, 1e-7));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    const ls_named *tensors = NULL;
    int count = 0;
    assert_int_equal(ls_optimizer_state(optimizer, &tensors, &count), LS_OK);
    assert_int_equal(count, 3); /* learning rate, momentum, step */
    assert_string_equal(tensors[1].name, "0.weight.momentum_buffer");
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

/* Modules that share a weight, owned by the user or by a scope, are freed in any order. */
TEST(test_a_weight_of_two_models) {
    for (int run = 0; run < 4; run++) {
        ended = 0;
        ls_scope *scope = (run & 1) != 0 ? ls_scope_begin() : NULL;
        ls_tensor *weight = new_weight();
        ls_module *models[] = {table_new(weight, false), table_new(weight, true)};
        ls_module *third = table_new(ls_module_find(models[0], "weight"), false);
        ls_release(weight); /* no longer owned by the caller, or owned by the scope */
        ls_module_free(models[run / 2]);
        assert_true(((const float *)elements(ls_module_find(models[1 - run / 2], "weight")))[2] == 2);
        if (scope != NULL) {
            assert_int_equal(ls_scope_end(scope), LS_OK);
        }
        ls_module_free(models[1 - run / 2]);
        assert_true(((const float *)elements(ls_module_find(third, "weight")))[2] == 2);
        ls_module_free(third);
        assert_int_equal(ended, 3);
    }
}

TEST(test_a_parameter_of_a_scope_stays_in_it) {
    ls_scope *outer = ls_scope_begin();
    ls_scope *scope = ls_scope_begin();
    ls_tensor *weight = new_weight();
    ls_tensor *kept = ls_keep(new_weight());
    ls_module *model = ls_sequential(table_new(weight, false), ls_nn_tanh(), table_new(kept, true));
    ls_module_free(model);
    assert_true(ls_item(ls_sum(weight)) == 2.5);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_true(ls_item(ls_sum(kept)) == 2.5);
    model = table_new(kept, false);
    assert_int_equal(ls_scope_end(outer), LS_OK);
    assert_int_equal(ls_module_size(model), 6);
    ls_module_free(model);
}

SCOPED_TEST(test_layers_leave_nothing_in_a_scope) {
    ls_module *model = ls_sequential(ls_nn_linear(3, 2), ls_nn_batch_norm_1d(2, NULL), ls_nn_embedding(2, 2));
    for (int i = 0; i < ls_module_parameter_count(model) + ls_module_buffer_count(model); i++) {
        const int parameters = ls_module_parameter_count(model);
        const ls_tensor *tensor =
            i < parameters ? ls_module_parameter(model, i) : ls_module_buffer(model, i - parameters);
        assert_int_equal(tensor->references, 1);
    }
    ls_module_free(model);
}

/* Returns the number of bytes of tensor memory that this thread uses. */
static int64_t memory_now(void) {
    ls_memory memory;
    assert_int_equal(ls_memory_stats(&memory), LS_OK);
    return memory.total;
}

static ls_tensor *failing_forward(ls_module *self, ls_tensor *input) {
    (void)self;
    return ls_matmul(ls_square(input), ls_square(input)); /* [5, 6] times [5, 6] */
}

static ls_tensor *handling_forward(ls_module *self, ls_tensor *input) {
    (void)self;
    ls_tensor *product = ls_matmul(input, input); /* [5, 6] times [5, 6] */
    return product != NULL ? product : input;
}

/* Returns its input twice. */
static ls_status twice_forward(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                               int output_count) {
    (void)self, (void)input_count, (void)output_count;
    outputs[0] = outputs[1] = ls_matmul(inputs[0], inputs[0]) != NULL ? NULL : inputs[0];
    return LS_OK;
}

static ls_tensor *leaving_forward(ls_module *self, ls_tensor *input) {
    (void)self;
    return ls_scope_begin() != NULL ? ls_square(input) : NULL;
}

/* A module that handles an error succeeds. The input that it returns still belongs to the caller. */
TEST(test_handled_errors_outside_scopes) {
    static const ls_module_type handling = {.name = "Handling", .forward = handling_forward};
    static const ls_module_type twice = {.name = "Twice", .forward_many = twice_forward, .inputs = 1, .outputs = 2};
    static const ls_module_type leaving = {.name = "Leaving", .forward = leaving_forward};
    const ls_module_type *types[] = {&handling, &twice, &leaving};
    ls_module *modules[3];
    ls_tensor *x = ls_ones(LS_SHAPE(5, 6), LS_F32), *outputs[2];
    for (int i = 0; i < 3; i++) {
        modules[i] = ls_module_finish(ls_module_new(types[i]));
    }
    const int64_t before = memory_now();
    assert_ptr_equal(ls_forward(modules[0], x), x);
    assert_int_equal(ls_forward_many(modules[1], &x, 1, outputs, 2), LS_OK);
    assert_ptr_equal(outputs[0], x);
    assert_ptr_equal(outputs[1], x);
    assert_null(ls_forward(modules[2], x));
    expect_message("Leaving");
    assert_int_equal(memory_now(), before);
    ls_tensor *sum = ls_sum(x);
    assert_non_null(sum);
    ls_release(sum);
    for (int i = 0; i < 3; i++) {
        ls_module_free(modules[i]);
    }
    ls_release(x);
}

/* The tensors between layers are freed, whether the call succeeds, fails, or keeps its history for a backward pass. */
TEST(test_calls_outside_scopes_leave_nothing) {
    static const ls_module_type failing = {.name = "Failing", .forward = failing_forward};
    ls_module *models[] = {
        ls_sequential(ls_nn_linear(6, 8), ls_nn_gelu(), ls_nn_layer_norm(LS_SHAPE(8), NULL), ls_nn_linear(8, 3)),
        ls_nn_transformer_block(6, 2, NULL),
        ls_sequential(ls_nn_linear(6, 6), ls_module_finish(ls_module_new(&failing))),
    };
    ls_tensor *x = ls_ones(LS_SHAPE(5, 6), LS_F32);
    ls_tensor *sequence = ls_ones(LS_SHAPE(2, 5, 6), LS_F32);
    for (int i = 0; i < 3; i++) {
        const int64_t before = memory_now();
        ls_tensor *y = ls_forward(models[i], i == 1 ? sequence : x);
        assert_true((y == NULL) == (i == 2));
        assert_true(y == NULL || memory_now() > before);
        ls_release(y);
        assert_int_equal(memory_now(), before);
    }
    const int64_t begun = memory_now();
    assert_null(ls_weight_norm(x, x)); /* the shapes do not match */
    assert_int_equal(memory_now(), begun);
    ls_tensor *y = ls_forward(models[0], x);
    ls_tensor *loss = ls_mean(y);
    ls_release(y);
    assert_int_equal(ls_backward(loss), LS_OK);
    ls_release(loss);
    assert_non_null(ls_grad(ls_module_parameter(models[0], 0)));
    const int64_t after = memory_now();
    for (int step = 0; step < 3; step++) {
        y = ls_forward(models[0], x);
        loss = ls_mean(y);
        assert_int_equal(ls_backward(loss), LS_OK);
        ls_release(loss);
        ls_release(y);
        assert_int_equal(memory_now(), after);
    }
    for (int i = 0; i < 3; i++) {
        ls_module_free(models[i]);
    }
    ls_release(x);
    ls_release(sequence);
}

TEST(test_a_module_twice_in_one_model) {
    ended = 0;
    ls_module *layer = ls_nn_linear(3, 3);
    ls_module *table = table_new(new_weight(), true);
    ls_module *model = ls_sequential(layer, ls_nn_relu(), layer, table, table_new(new_weight(), false));
    assert_non_null(model);
    assert_int_equal(ls_module_parameter_count(model), 4);
    assert_string_equal(ls_module_parameter_name(model, 2), "3.weight");
    assert_ptr_equal(ls_module_find(model, "2.bias"), ls_module_find(model, "0.bias"));
    ls_module_free(layer); /* no longer owned by the caller, so it has no effect */
    ls_module_free(model);
    assert_int_equal(ended, 2);

    table = table_new(new_weight(), false);
    ls_module *models[] = {ls_sequential(table, ls_nn_tanh()), ls_sequential(ls_nn_relu(), table)};
    ended = 0;
    ls_module_free(models[0]);
    assert_int_equal(ended, 0);
    assert_int_equal(ls_module_size(models[1]), 6);
    ls_module_free(models[1]);
    assert_int_equal(ended, 1);
}

TEST(test_a_retained_module) {
    ended = 0;
    ls_module *table = ls_module_retain(table_new(new_weight(), false));
    for (int i = 0; i < 2; i++) {
        ls_module_free(ls_sequential(table, ls_nn_relu()));
        assert_null(ls_sequential(table, NULL));
    }
    assert_int_equal(ended, 0);
    assert_int_equal(ls_module_size(table), 6);
    ls_module_free(table);
    assert_int_equal(ended, 1);
    assert_null(ls_module_retain(NULL));
}

/* A model consists of many modules: freeing it does not forget that its first layer is freed. */
TEST(test_a_layer_of_a_large_model_that_was_freed) {
    enum { LAYERS = 1000 };
    ls_module *layers[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = ls_nn_relu();
    }
    ls_module *model = ls_sequential_of(layers, LAYERS);
    assert_non_null(model);
    ls_module_free(model);
    for (int i = 0; i < LAYERS; i++) {
        ls_module_free(layers[i]);
    }
    assert_null(ls_forward(layers[0], NULL));
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
    expect_message("the module was freed");
}

TEST(test_modules_that_are_gone) {
    ls_module *nothing = NULL;
    ls_module *table = table_new(new_weight(), false);
    ended = 0;
    ls_module_free(ls_sequential(table, ls_nn_relu()));
    assert_int_equal(ended, 1);
    ls_module_free(table);
    assert_int_equal(ended, 1);
    assert_null(ls_sequential(ls_nn_relu(), table, table));
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
    expect_message("keep it with ls_module_retain");
    expect_message("Sequential: the object added as \"1\"");
    assert_null(ls_module_add_child(table, "a", ls_nn_relu()));
    assert_null(ls_module_add_child(table, "a", table));
    assert_null(ls_module_add_parameter(table, "a", new_weight()));
    assert_null(ls_module_retain(table));
    assert_int_equal(ls_module_parameter_count(table), 0);
    ls_tensor *x = ls_ones(LS_SHAPE(1, 3), LS_F32);
    assert_null(ls_forward(table, x));
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
    ls_release(x);
    assert_int_equal(ls_module_save(table, test_path("none"), NULL), LS_ERR_STATE);
    assert_int_equal(ls_module_load(table, test_path("none")), LS_ERR_STATE);
    assert_null(ls_sgd(table, NULL));
    char text[16];
    assert_int_equal(ls_module_format(table, text, sizeof text), 5);
    /* In nested constructors, the inner one fails and frees its arguments. */
    table = table_new(new_weight(), false);
    assert_null(ls_sequential(table, ls_sequential(table, nothing), table));
}

TEST(test_shared_parts_of_models_that_fail) {
    ls_module *nothing = NULL;
    ls_module *table = table_new(new_weight(), false);
    ended = 0;
    assert_null(ls_sequential(nothing, table, table)); /* freed once */
    assert_int_equal(ended, 1);
    /* The outer constructor needs an argument that the inner one frees, so the user retains it. */
    table = ls_module_retain(table_new(new_weight(), false));
    ended = 0;
    assert_null(ls_sequential(table, ls_sequential(table, table, nothing), table));
    assert_int_equal(ended, 0);
    ls_module_free(table);
    assert_int_equal(ended, 1);
    table = table_new(new_weight(), false);
    ls_module *model = ls_sequential(table);
    ended = 0;
    assert_null(ls_sequential(nothing, table));
    assert_null(ls_module_add_child(NULL, "a", table));
    assert_int_equal(ended, 0);
    assert_int_equal(ls_module_size(model), 6);
    ls_module_free(model);
    assert_int_equal(ended, 1);
}

TEST(test_shared_tensors_of_modules_that_fail) {
    static const ls_module_type type = {.name = "Table", .state_size = sizeof(table_state), .forward = table_forward};
    for (int in_scope = 0; in_scope < 2; in_scope++) {
        ls_scope *scope = in_scope ? ls_scope_begin() : NULL;
        ls_tensor *weight = new_weight();
        ls_module *model = ls_module_new(&type);
        assert_null(ls_module_add_parameter(model, "a.b", weight));
        assert_null(ls_module_add_parameter(model, "a", weight));
        assert_null(ls_module_add_buffer(model, "b", weight));
        assert_null(ls_module_finish(model));
        weight = in_scope ? weight : new_weight();
        assert_true(((const float *)elements(weight))[2] == 2);
        model = ls_module_new(&type);
        assert_ptr_equal(ls_module_add_parameter(model, "a", weight), weight);
        assert_ptr_equal(ls_module_add_parameter(model, "b", weight), weight); /* two names */
        assert_int_equal(ls_module_parameter_count(model), 1);
        assert_null(ls_module_add_buffer(model, "c", weight));
        expect_message("the tensor added as buffer \"c\" is already a parameter of this module");
        assert_null(ls_module_finish(model));
        weight = new_weight();
        assert_int_equal(ls_set_requires_grad(weight, true), LS_OK);
        model = ls_module_new(&type);
        assert_null(ls_module_add_parameter(model, "a", ls_square(weight)));
        expect_error(ls_error_status(), LS_ERR_STATE, "is the result of an operation, not a leaf");
        assert_null(ls_module_finish(model));
        ls_release(weight);
        if (in_scope) {
            weight = new_weight();
            assert_true(((const float *)elements(weight))[2] == 2);
            (void)ls_scope_end(scope);
        }
    }
}

TEST(test_a_module_is_not_below_itself) {
    static const ls_module_type type = {.name = "Table", .state_size = sizeof(table_state), .forward = table_forward};
    ls_module *model = ls_module_new(&type);
    assert_null(ls_module_add_child(model, "itself", model));
    expect_message("\"itself\" is the module itself");
    assert_null(ls_module_finish(model));
    model = ls_module_new(&type);
    assert_null(ls_module_add_child(model, "x", ls_sequential(ls_nn_relu(), ls_sequential(model))));
    expect_message("\"x\" is a module that it is part of");
    assert_null(ls_module_finish(model));
}

/* A tensor that is a parameter in one module and a buffer in another is one parameter. */
TEST(test_a_buffer_that_is_a_parameter_elsewhere) {
    static const ls_module_type type = {.name = "Table", .state_size = sizeof(table_state), .forward = table_forward};
    ls_tensor *weight = new_weight();
    ls_module *looks = ls_module_new(&type);
    (void)ls_module_add_buffer(looks, "copy", weight);
    ls_module *model = ls_sequential(looks, table_new(weight, false));
    assert_int_equal(ls_module_parameter_count(model), 1);
    assert_int_equal(ls_module_buffer_count(model), 0);
    assert_string_equal(ls_module_parameter_name(model, 0), "1.weight");
    assert_ptr_equal(ls_module_find(model, "0.copy"), weight);
    ls_module_free(model);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void fill(ls_module *model, const char *name, double value) {
    assert_int_equal(ls_nn_init_constant(ls_module_find(model, name), value), LS_OK);
}

static bool is_filled(const ls_module *model, const char *name, double value) {
    const ls_tensor *tensor = ls_module_find(model, name);
    bool same = tensor != NULL;
    for (int64_t i = 0; same && i < ls_numel(tensor); i++) {
        same = ((const float *)elements(tensor))[i] == (float)value;
    }
    return same;
}

static ls_module *separate_model(void) {
    return ls_sequential(table_new(new_weight(), false), ls_nn_tanh(), table_new(new_weight(), true));
}

TEST(test_tied_weights_are_saved_once_under_both_names) {
    const char *path = test_path("tied.safetensors");
    ls_module *tied = tied_model();
    fill(tied, "2.weight", 3);
    assert_int_equal(ls_module_save(tied, path, (const char *const[]){"epoch", "7", NULL}), LS_OK);
    ls_safetensors *file = ls_safetensors_load(path);
    assert_int_equal(ls_safetensors_count(file), 1);
    assert_string_equal(ls_safetensors_at(file, 0).name, "0.weight");
    assert_string_equal(ls_safetensors_metadata(file, "2.weight"), "0.weight");
    assert_string_equal(ls_safetensors_metadata(file, "epoch"), "7");
    ls_safetensors_free(file);
    assert_int_equal(ls_module_save(tied, path, (const char *const[]){"2.weight", "x", NULL}), LS_ERR_ARGUMENT);
    expect_message("2.weight");

    fill(tied, "0.weight", 0);
    assert_int_equal(ls_module_load(tied, path), LS_OK);
    assert_true(is_filled(tied, "0.weight", 3));
    ls_module *apart = separate_model();
    assert_int_equal(ls_module_load(apart, path), LS_OK);
    assert_true(is_filled(apart, "0.weight", 3) && is_filled(apart, "2.weight", 3));
    ls_module_free(apart);
    ls_module_free(tied);
}

/* A file saved by a model without tied weights, or by a library that does not support sharing. */
TEST(test_files_with_both_names) {
    const char *path = test_path("apart.safetensors");
    ls_module *apart = separate_model();
    ls_module *tied = tied_model();
    fill(apart, "0.weight", 5);
    fill(apart, "2.weight", 5);
    assert_int_equal(ls_module_save(apart, path, NULL), LS_OK);
    assert_int_equal(ls_module_load(tied, path), LS_OK);
    assert_true(is_filled(tied, "0.weight", 5));
    fill(apart, "2.weight", 6);
    assert_int_equal(ls_module_save(apart, path, NULL), LS_OK);
    assert_int_equal(ls_module_load(tied, path), LS_ERR_FORMAT);
    expect_message("0.weight and 2.weight are the same tensor in the model, but differ in the file");
    assert_true(is_filled(tied, "0.weight", 5));

    /* For the tied model, a file without metadata that has only one of the two names is enough. */
    const ls_named second = {.name = "2.weight", .tensor = ls_module_find(apart, "2.weight")};
    assert_int_equal(ls_safetensors_save(path, &second, 1, NULL), LS_OK);
    assert_int_equal(ls_module_load(tied, path), LS_OK);
    assert_true(is_filled(tied, "0.weight", 6));
    assert_int_equal(ls_module_load(apart, path), LS_ERR_FORMAT);
    expect_message("has no tensor 0.weight");
    ls_module_free(apart);
    ls_module_free(tied);
}

TEST(test_files_of_pytorch) {
    const char *const paths[] = {LS_FIXTURES "/pytorch_tied.safetensors", LS_FIXTURES "/pytorch_both.safetensors"};
    for (int i = 0; i < 2; i++) {
        ls_module *tied = tied_model();
        ls_module *apart = separate_model();
        assert_int_equal(ls_module_load(tied, paths[i]), LS_OK);
        assert_int_equal(ls_module_load(apart, paths[i]), LS_OK);
        assert_true(is_filled(tied, "0.weight", 7));
        assert_true(is_filled(apart, "0.weight", 7) && is_filled(apart, "2.weight", 7));
        ls_module_free(tied);
        ls_module_free(apart);
    }
}

TEST(test_tensors_of_a_file_become_parameters) {
    const char *path = test_path("one.safetensors");
    ls_module *model = table_new(new_weight(), false);
    assert_int_equal(ls_module_save(model, path, NULL), LS_OK);
    ls_module_free(model);
    ls_safetensors *file = ls_safetensors_load(path);
    ls_release(ls_safetensors_find(file, "weight")); /* borrowed: no effect */
    model = table_new(ls_safetensors_find(file, "weight"), false);
    ls_safetensors_free(file);
    assert_true(((const float *)elements(ls_module_find(model, "weight")))[2] == 2);
    ls_module_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tied_weights_are_one_parameter),
        cmocka_unit_test(test_gradients_of_tied_weights_add_up),
        cmocka_unit_test(test_an_optimizer_steps_tied_weights_once),
        cmocka_unit_test(test_a_weight_of_two_models),
        cmocka_unit_test(test_a_parameter_of_a_scope_stays_in_it),
        cmocka_unit_test(test_layers_leave_nothing_in_a_scope),
        cmocka_unit_test(test_calls_outside_scopes_leave_nothing),
        cmocka_unit_test(test_handled_errors_outside_scopes),
        cmocka_unit_test(test_a_module_twice_in_one_model),
        cmocka_unit_test(test_a_retained_module),
        cmocka_unit_test(test_a_layer_of_a_large_model_that_was_freed),
        cmocka_unit_test(test_modules_that_are_gone),
        cmocka_unit_test(test_shared_parts_of_models_that_fail),
        cmocka_unit_test(test_shared_tensors_of_modules_that_fail),
        cmocka_unit_test(test_a_module_is_not_below_itself),
        cmocka_unit_test(test_a_buffer_that_is_a_parameter_elsewhere),
        cmocka_unit_test(test_tied_weights_are_saved_once_under_both_names),
        cmocka_unit_test(test_files_with_both_names),
        cmocka_unit_test(test_files_of_pytorch),
        cmocka_unit_test(test_tensors_of_a_file_become_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
