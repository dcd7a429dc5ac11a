/*
 * Modules: names, modes, custom modules, flat buffers, saving, initializers, layers.
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
#include "tests/support/operations.h"

TEST(test_names_and_sizes) {
    ls_module *model = ls_sequential(ls_nn_linear(4, 3), ls_nn_relu(),
                                     ls_sequential(ls_nn_batch_norm_1d(3, NULL), ls_nn_linear(3, 2)));
    assert_non_null(model);
    assert_int_equal(ls_module_parameter_count(model), 6);
    assert_string_equal(ls_module_parameter_name(model, 0), "0.weight");
    assert_string_equal(ls_module_parameter_name(model, 5), "2.1.bias");
    assert_string_equal(ls_module_buffer_name(model, 1), "2.0.running_var");
    assert_null(ls_module_parameter_name(model, 6));
    assert_ptr_equal(ls_module_find(model, "2.1.bias"), ls_module_parameter(model, 5));
    assert_null(ls_module_find(model, "2.1"));
    assert_int_equal(ls_module_size(model), 15 + 6 + 8);
    char text[1024];
    assert_true(ls_module_format(model, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "weight: [3, 4] f32"));
    assert_non_null(strstr(text, "29 parameters"));
    ls_module_free(model);
}

TEST(test_names_of_ones_own) {
    ls_module *shared = ls_nn_linear(3, 3);
    ls_module *model =
        ls_sequential_named({"first", ls_nn_linear(4, 3)}, {"act", ls_nn_relu()}, {"", ls_sequential(shared, shared)},
                            {"block", ls_sequential_named({"last", ls_nn_linear(3, 2)})});
    assert_non_null(model);
    static const char *const names[] = {"first.weight", "first.bias",        "0.weight",
                                        "0.bias",       "block.last.weight", "block.last.bias"};
    assert_int_equal(ls_module_parameter_count(model), 6);
    for (int i = 0; i < 6; i++) {
        assert_string_equal(ls_module_parameter_name(model, i), names[i]);
    }
    assert_ptr_equal(ls_module_find_child(model, "act"), ls_module_child(model, 1));
    ls_module *numbered = ls_sequential(ls_nn_linear(4, 3), ls_nn_relu()); /* computes the same */
    ls_scope *scope = ls_scope_begin();
    const bool before = ls_no_grad(true);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ls_copy_into(ls_module_parameter(numbered, i), ls_module_parameter(model, i)), LS_OK);
    }
    ls_tensor *x = ls_randn(LS_SHAPE(2, 4), LS_F32);
    ls_tensor *hidden = ls_forward(shared, ls_forward(shared, ls_forward(numbered, x)));
    assert_true(ls_equal(ls_forward(model, x), ls_forward(ls_module_find_child(model, "block"), hidden)));
    (void)ls_no_grad(before);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(numbered);
    ls_module_free(model);
    assert_null(ls_sequential_named({"a.b", ls_nn_relu()}));
    expect_message("Sequential: the name \"a.b\" is not valid");
    assert_null(ls_sequential_named({"a", ls_nn_relu()}, {"b", ls_nn_linear(0, 1)}));
    expect_message("; Sequential: the object added as \"b\" is NULL");
    assert_null(ls_sequential_named({NULL, ls_nn_relu()}));
    expect_message("the name NULL is not valid");
    assert_null(ls_sequential_named_of(NULL, 1));
    expect_message("ls_sequential_named: 1 modules at NULL");
}

TEST(test_constructors_nest_over_errors) {
    assert_null(ls_sequential(ls_nn_linear(4, 3), ls_nn_linear(0, 3), ls_nn_relu()));
    expect_message("ls_nn_linear: 0 inputs and 3 outputs");
    expect_message("; Sequential: the object added as \"1\" is NULL");
    assert_null(ls_sequential(ls_nn_relu(), ls_sequential(ls_nn_tanh(), ls_nn_linear(3, 0))));
    expect_message("ls_nn_linear: 3 inputs and 0 outputs");
    assert_ptr_equal(strstr(ls_error_message(), "Sequential: "), strrchr(ls_error_message(), ';') + 2); /* once */
    ls_module *nothing = NULL; /* unrelated to an earlier failure */
    assert_null(ls_sequential(ls_nn_relu(), ls_nn_tanh(), nothing));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    expect_message("; Sequential: the object added as \"2\" is NULL");
    assert_null(ls_sequential_of(NULL, 3));
    assert_null(ls_sequential_of(NULL, -1));
    assert_null(ls_nn_dropout(1.5));
    ls_module *model = ls_nn_relu();
    (void)ls_module_add_parameter(model, "a.b", ls_ones(LS_SHAPE(1), LS_F32));
    assert_null(ls_module_add_child(model, "next", ls_nn_linear(-1, 2)));
    assert_null(ls_module_finish(model));
    expect_message("\"a.b\""); /* the first error */
    assert_null(strstr(ls_error_message(), "-1 inputs"));
    assert_null(ls_module_finish(model)); /* freed */
}

typedef struct scale_state {
    ls_tensor *factor;
} scale_state;

static ls_tensor *scale_forward(ls_module *self, ls_tensor *input) {
    const scale_state *scale = ls_module_state(self);
    return ls_mul(input, scale->factor);
}

static ls_module *scale_new(int64_t width) {
    static const ls_module_type type = {.name = "Scale", .state_size = sizeof(scale_state), .forward = scale_forward};
    ls_module *module = ls_module_new(&type);
    if (module != NULL) {
        scale_state *scale = ls_module_state(module);
        scale->factor = ls_module_add_parameter(module, "factor", ls_full(LS_SHAPE(width), LS_F32, 3));
    }
    return ls_module_finish(module);
}

static ls_tensor *power(ls_tensor *x, void *user) {
    return ls_pow(x, *(const double *)user);
}

TEST(test_a_module_of_ones_own) {
    ls_module *model = ls_sequential(scale_new(2), ls_nn_function("Power", power, &(double){2}));
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_from(LS_SHAPE(1, 2), LS_F32, (const float[]){1, 2});
    ls_tensor *y = ls_forward(model, x);
    assert_memory_equal(elements(y), ((const float[]){9, 36}), 2 * sizeof(float));
    assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
    assert_memory_equal(elements(ls_grad(ls_module_find(model, "0.factor"))), ((const float[]){6, 24}),
                        2 * sizeof(float));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(model);
}

/* Without .state_size, a write to the state would damage memory. */
TEST(test_a_forgotten_state_size) {
    static const ls_module_type type = {.name = "Scale", .forward = scale_forward};
    ls_module *module = ls_module_new(&type);
    assert_non_null(module);
    assert_null(ls_module_state(module));
    assert_null(ls_module_finish(module));
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
    assert_string_equal(ls_error_message(),
                        "ls_module_state: the type Scale has no state: set .state_size of ls_module_type");
}

TEST(test_flat_buffers_keep_values_and_handles) {
    ls_module *model = ls_sequential(ls_nn_linear(5, 3), ls_nn_linear(3, 7));
    ls_tensor *weight = ls_module_find(model, "1.weight");
    assert_true(ls_module_hash(NULL) == 0);
    const uint64_t hash = ls_module_hash(model);
    ls_flat flats[LS_FLAT_LIMIT];
    assert_int_equal(ls_module_flatten(model, flats), 1);
    assert_true(ls_module_hash(model) == hash);
    assert_ptr_equal(ls_module_find(model, "1.weight"), weight);
    const int64_t step = LS_FLAT_ALIGNMENT / (int64_t)sizeof(float);
    assert_int_equal(ls_flat_offset(&flats[0], weight) % step, 0);
    assert_ptr_equal(weight->storage->whole, flats[0].parameters);
    const ls_storage *parameters = flats[0].parameters;
    assert_int_equal(ls_module_flatten(model, flats), 1);
    assert_ptr_equal(flats[0].parameters, parameters); /* parameters that are already in the flat buffer do not move */
    ls_module_free(model);
}

/* A lone parameter and its gradient are in order, but where the padding belongs, their memory ends or is in use. */
TEST(test_flat_buffers_are_padded) {
    static const ls_module_type type = {.name = "Scale", .state_size = sizeof(scale_state), .forward = scale_forward};
    for (int view = 0; view < 2; view++) {
        ls_tensor *whole = ls_ones(LS_SHAPE(40), LS_F64);
        ls_module *model = ls_module_new(&type);
        scale_state *scale = ls_module_state(model);
        scale->factor = ls_module_add_parameter(model, "factor",
                                                view == 1 ? ls_narrow(whole, 0, 0, 33) : ls_ones(LS_SHAPE(33), LS_F64));
        ls_scope *scope = ls_scope_begin();
        assert_int_equal(ls_backward(ls_sum(ls_forward(model, ls_ones(LS_SHAPE(33), LS_F64)))), LS_OK);
        assert_int_equal(ls_scope_end(scope), LS_OK);
        ls_flat flats[LS_FLAT_LIMIT];
        assert_int_equal(ls_module_flatten(model, flats), 1);
        assert_int_equal(flats[0].count, 40);
        assert_true(flats[0].parameters->bytes >= 40 * sizeof(double));
        assert_true(flats[0].gradients->bytes >= 40 * sizeof(double));
        assert_ptr_not_equal(flats[0].parameters, whole->storage);
        const ls_shape shape = LS_SHAPE(40);
        ls_tensor *gradients = ls_tensor_over(flats[0].gradients->device, &shape, LS_F64, flats[0].gradients->memory);
        ls_tensor *parameters =
            ls_tensor_over(flats[0].parameters->device, &shape, LS_F64, flats[0].parameters->memory);
        assert_true(((const double *)elements(gradients))[32] == 1);
        assert_true(((const double *)elements(parameters))[33] == 0);
        ls_tensor_drop(gradients);
        ls_tensor_drop(parameters);
        ls_module_free(model);
        ls_release(whole);
    }
}

static ls_tensor *run(ls_module *model, bool training) {
    ls_module_train(model, training);
    return ls_forward(model, ls_ones(LS_SHAPE(4, 8), LS_F32));
}

TEST(test_modes) {
    ls_seed(1);
    ls_module *model = ls_sequential(ls_nn_dropout(0.5), ls_nn_batch_norm_1d(8, NULL));
    ls_scope *scope = ls_scope_begin();
    ls_tensor *ones = ls_ones(LS_SHAPE(4, 8), LS_F32);
    assert_true(ls_allclose(run(model, false), ones, 1e-4, 1e-4));
    assert_false(ls_allclose(run(model, true), ones, 1e-4, 1e-4));
    assert_false(ls_module_is_training(NULL));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(model);
}

TEST(test_save_and_load) {
    ls_seed(3);
    ls_module *model = ls_sequential(ls_nn_linear(4, 3), ls_nn_batch_norm_1d(3, NULL));
    const char *path = test_path("model.safetensors");
    assert_int_equal(ls_module_save(model, path, NULL), LS_OK);
    assert_int_equal(ls_module_save(model, path, (const char *const[]){"k", "v", "key", NULL}), LS_ERR_ARGUMENT);
    expect_message("ls_module_save: the key key of the metadata has no value");
    ls_module *other = ls_sequential(ls_nn_linear(4, 3), ls_nn_batch_norm_1d(3, NULL));
    assert_false(ls_module_hash(other) == ls_module_hash(model));
    assert_int_equal(ls_module_load(other, path), LS_OK);
    assert_true(ls_module_hash(other) == ls_module_hash(model));
    ls_module_free(other);
    other = ls_sequential(ls_nn_linear(5, 3), ls_nn_batch_norm_1d(3, NULL));
    const uint64_t before = ls_module_hash(other);
    assert_int_equal(ls_module_load(other, path), LS_ERR_SHAPE);
    expect_message("0.weight is [3, 4] in the file and [3, 5] in the model");
    assert_true(ls_module_hash(other) == before);
    ls_module_free(other);
    other = ls_sequential(ls_nn_linear(4, 3));
    assert_int_equal(ls_module_load(other, path), LS_ERR_FORMAT);
    ls_module_free(other);
    ls_module_free(model);
}

static double mean_of(const ls_tensor *tensor, double power, double around) {
    double sum = 0;
    for (int64_t i = 0; i < ls_numel(tensor); i++) {
        sum += pow(((const double *)elements(tensor))[i] - around, power);
    }
    return sum / (double)ls_numel(tensor);
}

TEST(test_initialisers) {
    ls_seed(11);
    ls_tensor *t = ls_empty(LS_SHAPE(200, 100), LS_F64);
    assert_int_equal(ls_nn_init_constant(t, 2), LS_OK);
    assert_true(mean_of(t, 2, 2) == 0);
    assert_int_equal(ls_nn_init_uniform(t, -1, 3), LS_OK);
    assert_true(fabs(mean_of(t, 1, 1)) < 0.05 && fabs(mean_of(t, 2, 1) - 16.0 / 12) < 0.05);
    assert_int_equal(ls_nn_init_normal(t, 5, 2), LS_OK);
    assert_true(fabs(mean_of(t, 1, 5)) < 0.06 && fabs(mean_of(t, 2, 5) - 4) < 0.2);
    assert_int_equal(ls_nn_init_kaiming_uniform(t, 0), LS_OK);
    assert_true(fabs(mean_of(t, 2, 0) / (2.0 / 100) - 1) < 0.05);
    assert_int_equal(ls_nn_init_kaiming_normal(t, 1), LS_OK);
    assert_true(fabs(mean_of(t, 2, 0) / (1.0 / 100) - 1) < 0.05);
    assert_int_equal(ls_nn_init_xavier_uniform(t, 2), LS_OK);
    assert_true(fabs(mean_of(t, 2, 0) / (4 * 2.0 / 300) - 1) < 0.05);
    assert_int_equal(ls_nn_init_xavier_normal(t, 1), LS_OK);
    assert_true(fabs(mean_of(t, 2, 0) / (2.0 / 300) - 1) < 0.05);
    assert_int_equal(ls_nn_init_truncated_normal(t, 1, 2, 0, 2), LS_OK);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        const double number = ((const double *)elements(t))[i];
        assert_true(number >= 0 && number <= 2);
    }
    assert_int_equal(ls_nn_init_orthogonal(t, 3), LS_OK);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *gram = ls_matmul(ls_transpose(t, 0, 1), t);
    ls_tensor *wanted =
        ls_mul(ls_to(ls_eq(ls_arange(LS_SHAPE(100, 1), LS_I64), ls_arange(LS_SHAPE(100), LS_I64)), LS_F64), 9);
    assert_true(ls_allclose(gram, wanted, 0, 1e-10));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_release(t);
    ls_tensor *flat = ls_empty(LS_SHAPE(3), LS_F32);
    assert_int_equal(ls_nn_init_xavier_normal(flat, 1), LS_ERR_SHAPE);
    ls_release(flat);
}

/* Every layer gives the result of its operation, and its parameters get gradients. */
TEST(test_layers) {
    ls_seed(2);
    ls_module *layers[] = {
        ls_nn_linear_with(6, 6, &(ls_linear_options){.no_bias = true}),
        ls_nn_relu(),
        ls_nn_leaky_relu(0.1),
        ls_nn_elu(1),
        ls_nn_gelu(),
        ls_nn_silu(),
        ls_nn_softplus(),
        ls_nn_sigmoid(),
        ls_nn_tanh(),
        ls_nn_softmax(-1),
        ls_nn_log_softmax(-1),
        ls_nn_dropout(0.3),
        ls_nn_flatten(),
        ls_nn_layer_norm(LS_SHAPE(6), NULL),
        ls_nn_batch_norm_1d(6, NULL),
    };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        assert_non_null(layers[i]);
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = ls_randn(LS_SHAPE(5, 6), LS_F32);
        assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
        ls_tensor *y = ls_forward(layers[i], x);
        assert_int_equal(ls_size(y, 0), 5);
        assert_int_equal(ls_backward(ls_sum(ls_square(y))), LS_OK);
        assert_non_null(ls_grad(x));
        for (int p = 0; p < ls_module_parameter_count(layers[i]); p++) {
            assert_non_null(ls_grad(ls_module_parameter(layers[i], p)));
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
        ls_module_free(layers[i]);
    }
    ls_module *embedding = ls_nn_embedding(10, 4);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *rows = ls_forward(embedding, ls_from(LS_SHAPE(2, 1), LS_I64, (const int64_t[]){7, 7}));
    assert_int_equal(ls_ndim(rows), 3);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(embedding);
}

/* ls_flatten would return a number as [1]. */
SCOPED_TEST(test_flatten_needs_two_axes) {
    ls_module *flatten = ls_nn_flatten();
    check_refused(ls_forward(flatten, ls_scalar(1, LS_F32)), LS_ERR_SHAPE, "Flatten: x is [], but must be [n, a, ...]");
    ls_module_free(flatten);
}

TEST(test_norm_options_are_checked) {
    static const struct {
        ls_batch_norm_options options;
        const char *text; /* follows the call in the message */
    } cases[] = {
        {{.epsilon = -1e-5}, ": epsilon is -1e-05, but must be between 0 and inf"},
        {{.epsilon = NAN}, ": epsilon is "},
        {{.momentum = -0.1}, ": momentum is -0.1, but must be between 0 and 1"},
        {{.momentum = 1.5}, ": momentum is 1.5, but must be between 0 and 1"},
        {{.momentum = NAN}, ": momentum is "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char *const calls[] = {"ls_nn_batch_norm_1d", "ls_nn_layer_norm"};
        for (int k = 0; k < (cases[i].options.epsilon != 0 ? 2 : 1); k++) {
            assert_null(k == 0
                            ? ls_nn_batch_norm_1d(3, &cases[i].options)
                            : ls_nn_layer_norm(LS_SHAPE(3), &(ls_norm_options){.epsilon = cases[i].options.epsilon}));
            assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
            expect_message(calls[k]);
            expect_message(cases[i].text);
        }
    }
    ls_module *edge = ls_nn_batch_norm_1d(3, &(ls_batch_norm_options){.momentum = 1});
    assert_non_null(edge);
    ls_module_free(edge);
}

/* Zero selects the default, and LS_ZERO means zero. */
SCOPED_TEST(test_norm_options_may_be_zero) {
    ls_tensor *x = ls_from(LS_SHAPE(2, 1), LS_F64, (const double[]){1, 1 + 2e-3}); /* a variance of 1e-6 */
    ls_tensor *row = ls_reshape(x, LS_SHAPE(1, 2));
    for (int zero = 0; zero < 2; zero++) {
        const ls_batch_norm_options options = {
            .dtype = LS_F64, .epsilon = zero ? LS_ZERO : 0, .momentum = zero ? LS_ZERO : 0};
        const ls_norm_options layer_options = {.dtype = LS_F64, .epsilon = zero ? LS_ZERO : 0};
        const double epsilon = zero ? 0 : 1e-5;
        const double want = 1e-3 / sqrt(1e-6 + epsilon);
        ls_module *batch = ls_nn_batch_norm_1d(1, &options);
        ls_module *layer = ls_nn_layer_norm(LS_SHAPE(2), &layer_options);
        assert_true(fabs(((const double *)elements(ls_forward(batch, x)))[1] - want) < 1e-9);
        assert_true(fabs(((const double *)elements(ls_forward(layer, row)))[1] - want) < 1e-9);
        const double moved = zero ? 0 : 0.1 * (1 + 1e-3);
        assert_true(fabs(ls_item(ls_module_find(batch, "running_mean")) - moved) < 1e-12);
        ls_module_free(batch);
        ls_module_free(layer);
    }
}

/* LS_ZERO as a dropout probability means no dropout: the layers draw no random numbers. */
SCOPED_TEST(test_dropout_options_may_be_zero) {
    ls_module *recurrent = ls_nn_rnn(3, 4, &(ls_recurrent_options){.layers = 2, .dropout = LS_ZERO});
    ls_module *block = ls_nn_transformer_block(4, 2, &(ls_transformer_options){.dropout = LS_ZERO});
    ls_seed(3);
    assert_non_null(ls_forward(recurrent, ls_ones(LS_SHAPE(2, 5, 3), LS_F32)));
    assert_non_null(ls_forward(block, ls_ones(LS_SHAPE(2, 5, 4), LS_F32)));
    assert_int_equal(ls_random_get_state().stream, 0);
    ls_module_free(recurrent);
    ls_module_free(block);
}

/* Sequential's fused Linear and ReLU equal the separate layers, forward and backward. */
TEST(test_sequential_fuses_without_changing_results) {
    ls_seed(4);
    ls_module *fused = ls_sequential(ls_nn_linear(6, 5), ls_nn_relu());
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_randn(LS_SHAPE(3, 6), LS_F32);
    ls_tensor *weight = ls_module_find(fused, "0.weight");
    ls_tensor *y = ls_forward(fused, x);
    ls_tensor *plain = ls_relu(ls_linear(x, weight, ls_module_find(fused, "0.bias")));
    assert_true(ls_allclose(y, plain, 1e-6, 1e-6));
    assert_int_equal(ls_backward(ls_sum(ls_square(y))), LS_OK);
    ls_tensor *gradient = ls_clone(ls_grad(weight));
    ls_module_zero_grad(fused);
    assert_null(ls_grad(weight));
    assert_int_equal(ls_backward(ls_sum(ls_square(plain))), LS_OK);
    assert_true(ls_allclose(ls_grad(weight), gradient, 1e-5, 1e-6));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(fused);
}

/* If they were moved to separate memory, they would silently become two parameters. */
TEST(test_parameters_that_share_memory_are_refused) {
    for (int buffer = 0; buffer < 2; buffer++) {
        ls_module *model = ls_nn_linear(3, 3);
        ls_tensor *alias = ls_alias(ls_module_parameter(model, 0));
        assert_non_null(buffer ? ls_module_add_buffer(model, "twin", alias)
                               : ls_module_add_parameter(model, "twin", alias));
        assert_null(ls_sgd(model, NULL));
        assert_int_equal(ls_error_status(), LS_ERR_UNSUPPORTED);
        expect_message("\"weight\" and \"twin\" share memory");
        ls_module_free(model);
    }
    ls_module *aliased = ls_nn_linear(3, 3);
    ls_tensor *outside = ls_detach(ls_module_parameter(aliased, 0));
    assert_null(ls_sgd(aliased, NULL));
    assert_int_equal(ls_error_status(), LS_ERR_UNSUPPORTED);
    expect_message("an ls_alias or ls_detach of \"weight\" exists");
    ls_module *other = ls_nn_linear(3, 3); /* an alias of a different model's parameter */
    assert_non_null(ls_module_add_parameter(other, "twin", ls_alias(ls_module_parameter(aliased, 0))));
    assert_null(ls_sgd(other, NULL));
    expect_message("an ls_alias or ls_detach of \"twin\" exists");
    ls_module_free(other);
    ls_release(outside);
    ls_optimizer *unaliased = ls_sgd(aliased, NULL);
    assert_non_null(unaliased);
    ls_tensor *later = ls_alias(ls_module_parameter(aliased, 0)); /* the second optimizer moves nothing */
    ls_optimizer *second = ls_sgd(aliased, NULL);
    assert_non_null(second);
    ls_release(later);
    ls_optimizer_free(unaliased);
    ls_optimizer_free(second);
    ls_module_free(aliased);
    ls_module *model = ls_nn_linear(3, 3); /* one tensor with both names, so it is one parameter */
    assert_non_null(ls_module_add_parameter(model, "twin", ls_module_parameter(model, 0)));
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    assert_non_null(optimizer);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters_that_share_memory_are_refused),
        cmocka_unit_test(test_names_and_sizes),
        cmocka_unit_test(test_names_of_ones_own),
        cmocka_unit_test(test_constructors_nest_over_errors),
        cmocka_unit_test(test_a_module_of_ones_own),
        cmocka_unit_test(test_a_forgotten_state_size),
        cmocka_unit_test(test_flat_buffers_keep_values_and_handles),
        cmocka_unit_test(test_flat_buffers_are_padded),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_save_and_load),
        cmocka_unit_test(test_initialisers),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_flatten_needs_two_axes),
        cmocka_unit_test(test_norm_options_are_checked),
        cmocka_unit_test(test_norm_options_may_be_zero),
        cmocka_unit_test(test_dropout_options_may_be_zero),
        cmocka_unit_test(test_sequential_fuses_without_changing_results),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
