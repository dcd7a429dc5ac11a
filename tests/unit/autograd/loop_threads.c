/*
 * Operations of each family, optimizers and a training run: the results are bit-identical for any number of threads.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <sys/mman.h>

#include <lockstep/attention.h>
#include <lockstep/autograd.h>
#include <lockstep/loss.h>
#include <lockstep/nn.h>
#include <lockstep/optim.h>

#include "tensor/device/cpu/libraries.h"
#include "tensor/device/cpu/parallel.h"
#include "tests/support/processes.h"

enum { COUNTS = 3, MOST = 4096, BLOCK = LS_PARALLEL_ELEMENTS / 8 };

/* The results of one process: a checksum of the bits of each result, with a name. */
typedef struct findings {
    bool onednn;
    int count;
    struct {
        uint64_t bits;
        char name[48];
    } result[MOST];
} findings;

static findings *found; /* of each process */
static findings *own;

static const char *take_threads(int number) {
    char text[16];
    (void)snprintf(text, sizeof text, "%d", number + 1);
    own = &found[number];
    LS_MUST(setenv("OMP_NUM_THREADS", text, 1) == 0); /* read when oneDNN is opened */
    LS_MUST(setenv("OMP_WAIT_POLICY", "passive", 1) == 0);
    const ls_onednn *onednn = ls_onednn_open(); /* once oneDNN is open, the loops use its number of threads */
    LS_MUST(onednn == NULL || onednn->team() == number + 1);
    own->onednn = onednn != NULL;
    return NULL;
}

static uint64_t bits_of(const ls_tensor *x) {
    uint64_t sum = 0xcbf29ce484222325U;
    const unsigned char *byte = ls_data_const(x);
    const size_t bytes = (size_t)ls_numel(x) * ls_dtype_size(ls_dtype_of(x));
    for (size_t i = 0; i < bytes; i++) {
        sum = (sum ^ byte[i]) * 0x100000001b3U;
    }
    return sum;
}

static void record(const char *name, ls_tensor *x) {
    ls_tensor *on_host = x != NULL ? ls_tensor_to_device(ls_contiguous(ls_detach(x)), "cpu") : NULL;
    if (on_host == NULL) {
        fprintf(stderr, "%s: %s\n", name, ls_error_message());
        abort();
    }
    own->result[own->count].bits = bits_of(on_host);
    (void)snprintf(own->result[own->count].name, sizeof own->result->name, "%s", name);
    own->count += own->count < MOST - 1;
}

/* Records the result, and the gradient of x if it has one. */
static void record_both(const char *name, ls_tensor *y, ls_tensor *x) {
    char gradient[48];
    record(name, y);
    (void)snprintf(gradient, sizeof gradient, "%s, gradient", name);
    ls_zero_grad(x);
    if (ls_requires_grad(y)) {
        record(gradient, ls_backward(ls_sum(ls_mul(y, y))) == LS_OK ? ls_grad(x) : NULL);
    }
}

#define EACH(call) record_both(#call, call, x)

static void record_maps(ls_tensor *x, ls_tensor *other, ls_tensor *row) {
    ls_tensor *above = ls_gt(x, other);
    EACH(ls_neg(x)), EACH(ls_abs(x)), EACH(ls_square(x)), EACH(ls_exp(x)), EACH(ls_sin(x)), EACH(ls_cos(x));
    EACH(ls_sqrt(ls_abs(x))), EACH(ls_log(ls_abs(x))), EACH(ls_log1p(ls_abs(x))), EACH(ls_erf(x));
    EACH(ls_tanh(x)), EACH(ls_sigmoid(x)), EACH(ls_relu(x)), EACH(ls_leaky_relu(x, 0.1)), EACH(ls_elu(x, 1));
    EACH(ls_gelu(x)), EACH(ls_gelu_tanh(x)), EACH(ls_silu(x)), EACH(ls_softplus(x)), EACH(ls_clamp(x, -0.5, 0.5));
    EACH(ls_floor(x)), EACH(ls_ceil(x)), EACH(ls_round(x)), EACH(ls_sign(x));
    EACH(ls_is_nan(x)), EACH(ls_is_finite(x)), EACH(ls_logical_not(x));
    EACH(ls_add(x, other)), EACH(ls_sub(x, row)), EACH(ls_mul(row, x)), EACH(ls_div(x, other)), EACH(ls_add(x, 0.1));
    EACH(ls_pow(x, 2)), EACH(ls_pow(x, 3)), EACH(ls_pow(ls_abs(x), 0.3)), EACH(ls_pow(ls_abs(x), other));
    EACH(ls_maximum(x, other)), EACH(ls_minimum(x, row)), EACH(ls_rsub_number(1, x));
    EACH(ls_eq(x, x)), EACH(ls_ne(x, other)), EACH(ls_lt(x, row)), EACH(ls_le(x, 0)), EACH(ls_ge(x, other));
    EACH(ls_logical_and(x, above)), EACH(ls_logical_or(x, above)), EACH(ls_logical_xor(x, above));
    EACH(ls_where(above, x, other)), EACH(ls_masked_fill(x, above, 1));
}

/* Repeats x three times along a new axis, without copying. */
static ls_tensor *thrice(ls_tensor *x, int axis) {
    const ls_shape shape = ls_shape_of(x);
    return axis == 0 ? ls_expand(ls_unsqueeze(x, 0), LS_SHAPE(3, shape.size[0], shape.size[1]))
                     : ls_expand(ls_unsqueeze(x, 1), LS_SHAPE(shape.size[0], 3, shape.size[1]));
}

static void record_copies(ls_tensor *x, int64_t columns) {
    EACH(ls_contiguous(ls_transpose(x, 0, 1))), EACH(ls_contiguous(ls_permute(thrice(x, 1), LS_AXES(2, 0, 1))));
    EACH(ls_contiguous(ls_permute(thrice(x, 1), LS_AXES(1, 0, 2)))), EACH(ls_contiguous(thrice(x, 1))),
        EACH(ls_clone(x));
    EACH(ls_mul(ls_transpose(x, 0, 1), 2)), EACH(ls_slice(x, 1, 0, columns, 2)), EACH(ls_add(thrice(x, 1), 1));
    EACH(ls_pad(x, 1, 1, 2, 0.5)), EACH(ls_flip(x, LS_AXES(1))), EACH(ls_roll(x, 1, 1));
    EACH(ls_repeat(x, LS_SHAPE(2, 1))), EACH(ls_concat((ls_tensor *const[]){x, x}, 2, 1));
    EACH(ls_tril(x, 0)), EACH(ls_triu(x, 1)), EACH(ls_cumsum(x, 1));
    EACH(ls_to(x, LS_F64)), EACH(ls_to(x, LS_F32)), EACH(ls_to(x, LS_BF16)), EACH(ls_to(x, LS_F16));
    EACH(ls_to(ls_to(x, LS_BF16), LS_F32)), EACH(ls_to(ls_to(x, LS_F16), LS_F64));
    EACH(ls_to(ls_clamp(x, -9, 9), LS_I64)), EACH(ls_to(ls_gt(x, 0), LS_F32)), EACH(ls_to(x, LS_BOOL));
}

static ls_tensor *pairs_of(ls_tensor *x) {
    return ls_narrow(x, 1, 0, ls_size(x, 1) / 2 * 2);
}

static void record_rows(ls_tensor *x, ls_tensor *other, ls_tensor *row, int64_t rows, int64_t columns) {
    EACH(ls_softmax(x, 1)), EACH(ls_softmax(x, 0)), EACH(ls_log_softmax(x, 1)), EACH(ls_log_softmax(x, 0));
    EACH(ls_softmax(thrice(x, 0), 1)), EACH(ls_log_softmax(thrice(x, 0), 1)), EACH(ls_logsumexp(x, 1, false));
    EACH(ls_layer_norm(x, 1, row, row, 1e-5)), EACH(ls_layer_norm(x, 1, NULL, NULL, 1e-5));
    EACH(ls_layer_norm(x, 2, NULL, NULL, 1e-5)), EACH(ls_rms_norm(x, 1, row, 1e-5));
    EACH(ls_group_norm(ls_reshape(x, LS_SHAPE(1, rows, columns, 1)), 1, NULL, NULL, 1e-5));
    EACH(ls_sum(x)), EACH(ls_sum_axes(x, LS_AXES(0), false)), EACH(ls_sum_axes(x, LS_AXES(1), true)), EACH(ls_mean(x));
    EACH(ls_max_axes(x, LS_AXES(1), false)), EACH(ls_min(x)), EACH(ls_var(x)), EACH(ls_norm(x));
    EACH(ls_argmax(x, 1, false)), EACH(ls_mse_loss(x, other, LS_LOSS_MEAN)), EACH(ls_l1_loss(x, other, LS_LOSS_MEAN));
    EACH(ls_bce_with_logits_loss(x, ls_sigmoid(other), NULL));
    EACH(ls_rotary(pairs_of(x), NULL)), EACH(ls_rotary(pairs_of(x), &(ls_rotary_options){.halves = true}));
    EACH(ls_rotary(thrice(pairs_of(x), 1), NULL));
    ls_seed(3);
    EACH(ls_dropout(x, 0.3));
}

static const char *run_operations(int number, const void *what) {
    const ls_dtype dtype = *(const ls_dtype *)what;
    static const int64_t sizes[][2] = {{1, LS_PARALLEL_ELEMENTS - 1},
                                       {1, LS_PARALLEL_ELEMENTS},
                                       {1, LS_PARALLEL_ELEMENTS + 1},
                                       {1, LS_PARALLEL_ELEMENTS + BLOCK - 1},
                                       {1, LS_PARALLEL_ELEMENTS + BLOCK + 1},
                                       {LS_PARALLEL_ELEMENTS / 128, 128},
                                       {LS_PARALLEL_ELEMENTS / 128 + 1, 127},
                                       {2, LS_PARALLEL_ELEMENTS / 2 + 1},
                                       {LS_PARALLEL_ELEMENTS + 1, 2},
                                       {1021, 67},
                                       {37, 1025}};
    LS_MUST(take_threads(number) == NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t rows = sizes[i][0], columns = sizes[i][1];
        ls_scope *scope = ls_scope_begin();
        ls_seed(1);
        ls_tensor *x = ls_randn(LS_SHAPE(rows, columns), dtype), *other = ls_randn(LS_SHAPE(rows, columns), dtype);
        ls_tensor *row = ls_randn(LS_SHAPE(columns), dtype);
        LS_MUST(ls_set_requires_grad(x, true) == LS_OK);
        record_maps(x, other, row);
        record_copies(x, columns);
        record_rows(x, other, row, rows, columns);
        LS_MUST(ls_scope_end(scope) == LS_OK);
    }
    return NULL;
}

#define MAKER(kernel, ...)                                                                                             \
    static ls_optimizer *make_##kernel(ls_module *model) {                                                             \
        return ls_##kernel(model, &(ls_##kernel##_options){__VA_ARGS__});                                              \
    }
typedef ls_adam_options ls_adamw_options;
MAKER(sgd, .learning_rate = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01)
MAKER(adam, .learning_rate = 0.1, .amsgrad = true)
MAKER(adamw, .learning_rate = 0.1)
MAKER(rmsprop, .momentum = 0.9, .centered = true)
MAKER(adagrad, .learning_rate = 0.1)
MAKER(adadelta, .rho = 0.9)
MAKER(nadam, .learning_rate = 0.1)
MAKER(radam, .learning_rate = 0.1)
MAKER(lion, .weight_decay = 0.1)
MAKER(lamb, .learning_rate = 0.1)

static const struct {
    const char *name;
    ls_optimizer *(*make)(ls_module *model);
} optimizers[] = {{"sgd", make_sgd},           {"adam", make_adam},   {"adamw", make_adamw}, {"rmsprop", make_rmsprop},
                  {"adagrad", make_adagrad},   {"nadam", make_nadam}, {"radam", make_radam}, {"lion", make_lion},
                  {"adadelta", make_adadelta}, {"lamb", make_lamb}};

/* Makes six steps over `rows` rows of 7 numbers, whose gradients need no product. */
static const char *step_by(size_t which, int64_t rows) {
    ls_seed(1);
    ls_module *model = ls_nn_embedding(rows, 7);
    LS_MUST(model != NULL);
    ls_tensor *weight = ls_module_parameter(model, 0);
    ls_optimizer *optimizer = optimizers[which].make(model);
    LS_MUST(optimizer != NULL);
    for (int i = 0; i < 6; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_module_zero_grad(model);
        LS_MUST(ls_backward(ls_sum(ls_sin(ls_mul(weight, 3)))) == LS_OK && ls_optimizer_step(optimizer) == LS_OK);
        LS_MUST(ls_scope_end(scope) == LS_OK);
    }
    record(optimizers[which].name, weight);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return NULL;
}

static const char *run_optimizers(int number, const void *what) {
    static const int64_t rows[] = {LS_PARALLEL_ELEMENTS / 7, LS_PARALLEL_ELEMENTS / 7 + 1, 9 * BLOCK / 7 + 1, 7001};
    (void)what;
    LS_MUST(take_threads(number) == NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t which = 0; which < sizeof optimizers / sizeof *optimizers; which++) {
            ls_scope *scope = ls_scope_begin();
            LS_MUST(step_by(which, rows[i]) == NULL);
            LS_MUST(ls_scope_end(scope) == LS_OK);
        }
    }
    return NULL;
}

/* Makes some steps of AdamW, and records every weight after each step. */
static const char *train(ls_module *model, ls_tensor *input, ls_tensor *target, int64_t classes) {
    LS_MUST(model != NULL);
    ls_optimizer *optimizer = ls_adamw(model, &(ls_adam_options){.learning_rate = 1e-2});
    LS_MUST(optimizer != NULL);
    for (int i = 0; i < 5; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_module_zero_grad(model);
        ls_tensor *logits = ls_reshape(ls_forward(model, input), LS_SHAPE(-1, classes));
        LS_MUST(ls_backward(ls_cross_entropy(logits, target, NULL)) == LS_OK);
        LS_MUST(ls_optimizer_step(optimizer) == LS_OK);
        for (int k = 0; k < ls_module_parameter_count(model); k++) {
            record(ls_module_parameter_name(model, k), ls_module_parameter(model, k));
        }
        LS_MUST(ls_scope_end(scope) == LS_OK);
    }
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return NULL;
}

/*
 * Trains a small GPT, a small convolutional network whose activations are distributed over threads, and a network of
 * linear layers.
 */
static const char *run_training(int number, const void *what) {
    (void)what;
    LS_MUST(take_threads(number) == NULL);
    ls_scope *scope = ls_scope_begin();
    ls_seed(1);
    const ls_transformer_options causal = {
        .norm_first = true, .activation = LS_MLP_GELU, .dropout = 0.1, .attention = {.causal = true}};
    ls_module *gpt = ls_sequential(ls_nn_embedding(97, 64), ls_nn_positions(80, 64, LS_F32),
                                   ls_nn_transformer_block(64, 4, &causal), ls_nn_transformer_block(64, 4, &causal),
                                   ls_nn_layer_norm(LS_SHAPE(64), NULL), ls_nn_linear(64, 97));
    LS_MUST(train(gpt, ls_randint(LS_SHAPE(9, 80), LS_I64, 0, 97), ls_randint(LS_SHAPE(720), LS_I64, 0, 97), 97) ==
            NULL);
    ls_module *cnn = ls_sequential(
        ls_nn_conv_2d(1, 12, LS_SHAPE(3), &(ls_conv_layer_options){.same = true, .no_bias = true}),
        ls_nn_batch_norm_2d(12, NULL), ls_nn_relu(), ls_nn_max_pool(&(ls_max_pool_options){.kernel = LS_SHAPE(2)}),
        ls_nn_conv_2d(12, 20, LS_SHAPE(3), &(ls_conv_layer_options){.same = true}), ls_nn_batch_norm_2d(20, NULL),
        ls_nn_gelu(), ls_nn_average_pool(&(ls_average_pool_options){.kernel = LS_SHAPE(2)}), ls_nn_flatten(),
        ls_nn_linear(20 * 7 * 7, 10));
    LS_MUST(train(cnn, ls_randn(LS_SHAPE(33, 1, 28, 28), LS_F32), ls_randint(LS_SHAPE(33), LS_I64, 0, 10), 10) == NULL);
    ls_module *mlp = ls_sequential(ls_nn_linear(784, 300), ls_nn_relu(), ls_nn_linear(300, 512), ls_nn_relu(),
                                   ls_nn_linear(512, 10));
    LS_MUST(train(mlp, ls_randn(LS_SHAPE(64, 784), LS_F32), ls_randint(LS_SHAPE(64), LS_I64, 0, 10), 10) == NULL);
    LS_MUST(ls_scope_end(scope) == LS_OK);
    return NULL;
}

static void expect_same_bits(process_body body, const void *what) {
    found = mmap(NULL, COUNTS * sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(found, MAP_FAILED);
    processes_run(COUNTS, body, what, 0);
    int differ = 0;
    assert_in_range(found->count, 1, MOST - 2);
    for (int count = 1; count < COUNTS; count++) {
        assert_int_equal(found[count].count, found->count);
        for (int i = 0; i < found->count; i++) {
            if (found[count].result[i].bits != found->result[i].bits) {
                print_error("result %d, %s: other bits with %d threads\n", i, found->result[i].name, count + 1);
                differ++;
            }
        }
    }
    const bool onednn = found->onednn;
    assert_int_equal(munmap(found, COUNTS * sizeof *found), 0);
    if (differ > 0 && !onednn) {
        skip(); /* OpenBLAS, which replaces it, does not guarantee this */
    }
    assert_int_equal(differ, 0);
}

TEST(test_operations) {
    expect_same_bits(run_operations, &(ls_dtype){LS_F32});
    expect_same_bits(run_operations, &(ls_dtype){LS_F64});
}

TEST(test_optimizers) {
    expect_same_bits(run_optimizers, NULL);
}

TEST(test_training) {
    expect_same_bits(run_training, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_operations), cmocka_unit_test(test_optimizers),
                                       cmocka_unit_test(test_training)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
