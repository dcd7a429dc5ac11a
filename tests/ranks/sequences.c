/*
 * Sequence models on several ranks: a Transformer, group norms and recurrent layers train as in a single process, even
 * if the ranks' shares differ or one is empty.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

enum { SAMPLES = 13, LENGTH = 5, WIDTH = 8, VALUES = 7, STEPS = 3, SEED = 12 };

static ls_tensor *swapped(ls_tensor *x, void *user) {
    (void)user;
    return ls_transpose(x, 1, 2); /* transposes [n, length, width] to [n, channels, length], and back */
}

static ls_module *recurrent_new(double dropout) {
    const ls_recurrent_options both = {.dtype = LS_F64, .layers = 2, .bidirectional = true, .dropout = dropout};
    const ls_recurrent_options f64 = {.dtype = LS_F64};
    return ls_sequential(ls_nn_lstm(VALUES, WIDTH, &both), ls_nn_rnn(2 * WIDTH, WIDTH, &f64),
                         ls_nn_gru(WIDTH, WIDTH, &both),
                         ls_nn_linear_with(2 * WIDTH, VALUES, &(ls_linear_options){.dtype = LS_F64}));
}

static ls_module *transformer_new(double dropout) {
    const ls_transformer_options causal = {.norm_first = true,
                                           .activation = LS_MLP_GELU,
                                           .dropout = dropout,
                                           .attention = {.dtype = LS_F64, .causal = true, .rotary = true}};
    const ls_linear_options f64 = {.dtype = LS_F64};
    const ls_rms_norm_options rms_f64 = {.dtype = LS_F64};
    const ls_norm_options norm_f64 = {.dtype = LS_F64};
    return ls_sequential(ls_nn_linear_with(VALUES, WIDTH, &f64), ls_nn_positions(LENGTH, WIDTH, LS_F64),
                         ls_nn_transformer_block(WIDTH, 2, &causal), ls_nn_rms_norm(LS_SHAPE(WIDTH), &rms_f64),
                         ls_nn_function("Transpose", swapped, NULL),
                         ls_nn_residual(ls_nn_group_norm(2, WIDTH, &norm_f64)),
                         ls_nn_function("Transpose", swapped, NULL), ls_nn_linear_with(WIDTH, VALUES, &f64));
}

/* Runs backward for samples `first` to `last` - 1 of the step. The model predicts the next element. */
static ls_status backward(ls_module *model, int step, int64_t first, int64_t last) {
    ls_scope *scope = ls_scope_begin();
    int64_t next[SAMPLES * LENGTH];
    double now[SAMPLES * LENGTH * VALUES] = {0};
    const int64_t count = (last - first) * LENGTH;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t place = (uint64_t)(first * LENGTH + i);
        next[i] = (int64_t)(ls_random_uniform(SEED, (uint64_t)step, place) * VALUES);
        now[i * VALUES + (int64_t)(ls_random_uniform(SEED + 1, (uint64_t)step, place) * VALUES)] = 1;
    }
    ls_tensor *x = ls_from(LS_SHAPE(last - first, LENGTH, VALUES), LS_F64, now);
    ls_tensor *target = ls_from(LS_SHAPE(count), LS_I64, next);
    ls_tensor *logits = ls_reshape(ls_forward(model, x), LS_SHAPE(count, VALUES));
    const ls_status status = ls_backward(ls_cross_entropy(logits, target, NULL));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/*
 * Runs a separate LSTM with states as inputs and outputs, and sequences of different lengths. The ranks begin with the
 * states of their samples.
 */
static ls_status backward_of_states(ls_module *model, int step, int64_t first, int64_t last) {
    ls_scope *scope = ls_scope_begin();
    int64_t lengths[SAMPLES];
    double numbers[SAMPLES * LENGTH * VALUES];
    const int64_t count = last - first;
    for (int64_t i = 0; i < count; i++) {
        lengths[i] = (first + i + step) % (LENGTH + 1);
    }
    for (int64_t i = 0; i < count * LENGTH * VALUES; i++) {
        numbers[i] = ls_random_uniform(SEED, (uint64_t)step, (uint64_t)(first * LENGTH * VALUES + i)) - 0.5;
    }
    ls_tensor *x = ls_from(LS_SHAPE(count, LENGTH, VALUES), LS_F64, numbers);
    ls_tensor *h = ls_narrow(ls_reshape(x, LS_SHAPE(count, -1)), 1, 0, 2 * WIDTH), *y[3];
    h = ls_reshape(h, LS_SHAPE(count, 2, WIDTH));
    ls_tensor *inputs[] = {x, h, ls_mul(h, 2), ls_from(LS_SHAPE(count), LS_I64, lengths)};
    ls_status status = ls_forward_many(model, inputs, 4, y, 3);
    status = status == LS_OK
                 ? ls_backward(ls_mean(ls_square(ls_add(ls_sum_axes(y[0], LS_AXES(1), false),
                                                        ls_sum_axes(ls_mul(y[1], y[2]), LS_AXES(1), false)))))
                 : status;
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_module *states_new(double dropout) {
    return ls_nn_lstm(VALUES, WIDTH, &(ls_recurrent_options){.dtype = LS_F64, .layers = 2, .dropout = dropout});
}

/* A model, and the function that runs its step. */
typedef struct kind {
    ls_module *(*make)(double dropout);
    ls_status (*backward)(ls_module *model, int step, int64_t first, int64_t last);
} kind;

static ls_status train(const kind *of, ls_module *model, int rank, int size) {
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.3});
    LS_CHECK(optimizer != NULL);
    for (int step = 0; step < STEPS; step++) {
        ls_optimizer_zero_grad(optimizer);
        const int sharing = step == 1 && size > 1 ? size - 1 : size; /* the last rank has no samples then */
        LS_TRY(rank < sharing ? of->backward(model, step, SAMPLES * rank / sharing, SAMPLES * (rank + 1) / sharing)
                              : ls_data_parallel_skip(model));
        LS_TRY(ls_optimizer_step(optimizer));
    }
    ls_optimizer_free(optimizer);
    return LS_OK;
}

static ls_status trains_like_one_process(ls_comm *world, const kind *of) {
    for (int dropout = 0; dropout < 2; dropout++) {
        ls_seed((uint64_t)(SEED + ls_comm_rank(world)));
        ls_module *model = ls_data_parallel(of->make(0.2 * dropout), world, NULL);
        ls_seed(SEED);
        ls_module *alone = of->make(0.2 * dropout);
        LS_CHECK(model != NULL && alone != NULL);
        LS_CHECK(ls_module_hash(model) == ls_module_hash(alone));
        const uint64_t before = ls_module_hash(alone);
        ls_seed(SEED);
        LS_TRY(train(of, model, ls_comm_rank(world), ls_comm_size(world)));
        ls_seed(SEED);
        LS_TRY(train(of, alone, 0, 1));
        LS_CHECK(ls_module_hash(alone) != before);
        for (int i = 0; i < ls_module_parameter_count(alone); i++) {
            LS_CHECK(ls_allclose(ls_module_parameter(model, i), ls_module_parameter(alone, i), 1e-10, 1e-11));
        }
        ls_module_free(model);
        ls_module_free(alone);
    }
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    const kind kinds[] = {{transformer_new, backward}, {recurrent_new, backward}, {states_new, backward_of_states}};
    for (int i = 0; i < 3; i++) {
        LS_TRY(trains_like_one_process(world, &kinds[i]));
    }
    return LS_OK;
}
