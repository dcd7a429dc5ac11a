/*
 * PowerSGD (.powersgd_rank): the averaged gradients and the error feedback agree with a reference in double precision,
 * the gradients are bit-identical on all ranks, and failures, Inf, frozen and unused parameters do not damage the error
 * feedback.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "comm/meter.h"
#include "tests/support/numbers.h"

enum { INPUTS = 18, HIDDEN = 32, OUTPUTS = 10, SEED = 70, RANK = 2, PARAMETERS = 6, CONV = 0, LAST = 2, UNUSED = 4 };

/* ---- models and passes ------------------------------------------------------------------------------------------- */

/* A convolution [8, 2, 2, 2] and a linear layer [10, 32], which are compressed, their biases, and an unused layer. */
typedef struct parts {
    ls_module *conv, *last, *unused;
} parts;

static ls_tensor *forward(ls_module *self, ls_tensor *input) {
    const parts *p = ls_module_state(self);
    const int64_t samples = ls_size(input, 0);
    ls_tensor *y = ls_tanh(ls_forward(p->conv, ls_reshape(input, LS_SHAPE(samples, 2, 3, 3))));
    return ls_forward(p->last, ls_reshape(y, LS_SHAPE(samples, HIDDEN)));
}

static ls_module *make(void) {
    static const ls_module_type type = {.name = "Parts", .state_size = sizeof(parts), .forward = forward};
    ls_seed(SEED);
    ls_module *module = ls_module_new(&type);
    parts *p = ls_module_state(module);
    p->conv = ls_module_add_child(module, "conv", ls_nn_conv_2d(2, 8, LS_SHAPE(2, 2), NULL));
    p->last = ls_module_add_child(module, "last", ls_nn_linear(HIDDEN, OUTPUTS));
    p->unused = ls_module_add_child(module, "unused", ls_nn_linear(20, 20));
    return ls_module_finish(module);
}

static ls_module *wrapped(ls_comm *world, int rank) {
    return ls_data_parallel(make(), world, &(ls_data_parallel_options){.powersgd_rank = rank});
}

static ls_tensor *rows_of(int number, int64_t first, int64_t last, int64_t width) {
    ls_tensor *rows = ls_empty(LS_SHAPE(last - first, width), LS_F32);
    for (int64_t i = 0; rows != NULL && i < ls_numel(rows); i++) {
        numbers_set(rows, i, ls_random_normal(SEED, (uint64_t)(number * 100 + width), (uint64_t)(first * width + i)));
    }
    return rows;
}

static int64_t share_of(const ls_comm *world, int batch) {
    const int64_t rank = ls_comm_rank(world), size = ls_comm_size(world);
    return batch * (rank + 1) / size - batch * rank / size;
}

/* Runs a backward pass over this rank's share of a batch. `scale` multiplies this rank's inputs. */
static ls_status scaled_pass(ls_module *model, ls_comm *world, int number, int batch, double scale) {
    const int64_t count = share_of(world, batch), first = (int64_t)batch * ls_comm_rank(world) / ls_comm_size(world);
    if (count == 0) {
        return ls_data_parallel_comm(model) != NULL ? ls_data_parallel_skip(model) : LS_OK;
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *y = ls_forward(model, ls_mul(rows_of(number, first, first + count, INPUTS), scale));
    const ls_status status =
        ls_backward(ls_mse_loss(y, rows_of(number + 1, first, first + count, OUTPUTS), LS_LOSS_MEAN));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_status pass(ls_module *model, ls_comm *world, int number, int batch) {
    return scaled_pass(model, world, number, batch, 1);
}

static void forget(ls_module *model) {
    for (int i = 0; i < PARAMETERS; i++) {
        ls_zero_grad(ls_module_parameter(model, i));
    }
}

/* ---- the reference ----------------------------------------------------------------------------------------------- */

/* One parameter, in double precision. */
typedef struct reference {
    int64_t rows, columns; /* 0 rows: sent unchanged */
    double error[400], q[RANK][400], mean[400];
} reference;

/* Draws the same numbers for Q as the library. */
static void draw(reference *r, int index, int k) {
    for (int64_t j = 0; j < r->columns; j++) {
        r->q[k][j] = ls_random_normal(UINT64_C(0x506f776572534744), (uint64_t)(index * RANK + k), (uint64_t)j);
    }
}

static void begin_reference(reference *all) {
    static const int64_t sizes[PARAMETERS][2] = {{8, 8}, {0, 8}, {10, 32}, {0, 10}, {0, 0}, {0, 0}};
    for (int i = 0; i < PARAMETERS; i++) {
        all[i] = (reference){.rows = sizes[i][0], .columns = sizes[i][1]};
        for (int k = 0; k < RANK && all[i].rows > 0; k++) {
            draw(&all[i], i, k);
        }
    }
}

static double product(const double *x, const double *y, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

/* Runs Gram-Schmidt, as in the paper. A column that depends linearly on the first becomes zero. */
static void orthogonalize(double p[RANK][400], int64_t rows) {
    for (int k = 0; k < RANK; k++) {
        const double before = sqrt(product(p[k], p[k], rows));
        for (int i = 0; i < k; i++) {
            const double part = product(p[i], p[k], rows);
            for (int64_t row = 0; row < rows; row++) {
                p[k][row] -= part * p[i][row];
            }
        }
        const double norm = sqrt(product(p[k], p[k], rows));
        for (int64_t row = 0; row < rows; row++) {
            p[k][row] = norm > 1e-5 * before ? p[k][row] / norm : 0;
        }
    }
}

static ls_status average(ls_comm *world, double *numbers, size_t count) {
    return ls_comm_allreduce(world, numbers, numbers, count, LS_F64, LS_AVG, NULL);
}

/* Computes the expected result of a pass. `m` is this rank's gradient. Sets r->mean, the next error and Q. */
static ls_status step_reference(ls_comm *world, reference *r, int index, double *m) {
    double p[RANK][400] = {{0}}, q[RANK][400] = {{0}};
    for (int64_t i = 0; i < r->rows * r->columns; i++) {
        m[i] += r->error[i];
    }
    for (int k = 0; k < RANK; k++) {
        for (int64_t row = 0; row < r->rows; row++) {
            p[k][row] = product(m + row * r->columns, r->q[k], r->columns);
        }
    }
    LS_TRY(average(world, p[0], sizeof p / sizeof(double)));
    orthogonalize(p, r->rows);
    for (int k = 0; k < RANK; k++) {
        for (int64_t i = 0; i < r->rows * r->columns; i++) {
            q[k][i % r->columns] += m[i] * p[k][i / r->columns];
        }
    }
    LS_TRY(average(world, q[0], sizeof q / sizeof(double)));
    for (int64_t i = 0; i < r->rows * r->columns; i++) {
        r->mean[i] = 0;
        for (int k = 0; k < RANK; k++) {
            r->mean[i] += p[k][i / r->columns] * q[k][i % r->columns];
        }
        r->error[i] = m[i] - r->mean[i];
    }
    memcpy(r->q, q, sizeof q);
    for (int k = 0; k < RANK; k++) {
        if (product(q[k], q[k], r->columns) == 0) {
            draw(r, index, k);
        }
    }
    return LS_OK;
}

/* Adds this rank's scaled gradients of a batch to `sums`. `plain` is not data-parallel. */
static ls_status add_own(ls_module *plain, ls_comm *world, int number, int batch, double sums[PARAMETERS][400]) {
    const double share = (double)share_of(world, batch) * ls_comm_size(world) / batch;
    forget(plain);
    LS_TRY(pass(plain, world, number, batch));
    for (int k = 0; k < UNUSED; k++) {
        const ls_tensor *own = ls_grad(ls_module_parameter(plain, k));
        for (int64_t i = 0; own != NULL && i < ls_numel(own); i++) {
            sums[k][i] += share * numbers_get(own, i);
        }
    }
    return LS_OK;
}

static ls_status same_on_all_ranks(ls_comm *world, const ls_tensor *tensor) {
    return ranks_have_same_bytes(world, elements(tensor), (size_t)ls_numel(tensor) * sizeof(float));
}

/* Compares the gradients of a model with the reference, after its step. */
static ls_status check_pass(ls_comm *world, const ls_module *model, reference *all, double sums[PARAMETERS][400]) {
    for (int k = 0; k < PARAMETERS; k++) {
        const ls_tensor *is = ls_grad(ls_module_parameter(model, k));
        reference *r = &all[k];
        LS_CHECK((is != NULL) == (k < UNUSED));
        if (is == NULL) {
            continue;
        }
        if (r->rows > 0 && ls_comm_size(world) > 1) {
            LS_TRY(step_reference(world, r, k, sums[k]));
        } else {
            LS_TRY(average(world, sums[k], 400));
            memcpy(r->mean, sums[k], sizeof r->mean);
        }
        LS_TRY(same_on_all_ranks(world, is));
        double largest = 0, wrong = 0;
        for (int64_t i = 0; i < ls_numel(is); i++) {
            largest = fmax(largest, fabs(r->mean[i]));
            wrong = fmax(wrong, fabs(r->mean[i] - numbers_get(is, i)));
        }
        if (!(wrong <= 1e-4 * largest)) {
            return ls_fail(LS_ERR_INTERNAL, "parameter %d: wrong by %g of %g", k, wrong, largest);
        }
    }
    return LS_OK;
}

/* Batches whose shares are equal, differ, or are empty on some ranks. With one sample, the gradients are matrices of
 * rank 1. */
static ls_status as_the_reference(ls_comm *world, const int *batches, int count, bool gathered) {
    reference all[PARAMETERS];
    begin_reference(all);
    ls_module *plain = make(), *model = wrapped(world, RANK);
    LS_CHECK(model != NULL);
    for (int i = 0; i < count; i++) {
        double sums[PARAMETERS][400] = {{0}};
        forget(model);
        for (int part = gathered ? 0 : 1; part < 2; part++) {
            LS_TRY(ls_data_parallel_no_sync(model, part == 0));
            LS_TRY(pass(model, world, 10 * i + part, batches[i]));
            LS_TRY(add_own(plain, world, 10 * i + part, batches[i], sums));
        }
        LS_TRY(check_pass(world, model, all, sums));
    }
    ls_module_free(plain);
    ls_module_free(model);
    return LS_OK;
}

/* ---- passes that must not change the error feedback -------------------------------------------------------------- */

static ls_status refuse(ls_tensor *leaf, void *user) {
    (void)leaf;
    return *(const bool *)user ? ls_error_set(LS_ERR_ARGUMENT, "the hook refuses") : LS_OK;
}

typedef enum spoiled { BY_HOOK, BY_INF, BY_SKIPPING, NOT } spoiled;

static ls_status spoil(ls_module *model, ls_comm *world, spoiled how, bool *refuses) {
    const int size = ls_comm_size(world);
    const bool last = ls_comm_rank(world) == size - 1;
    if (how == BY_HOOK) {
        *refuses = last;
        LS_CHECK(pass(model, world, 5, 4 * size) == (last ? LS_ERR_ARGUMENT : LS_ERR_MISMATCH));
        LS_EXPECT_MESSAGE("the hook refuses");
        *refuses = false;
    } else if (how == BY_INF) {
        LS_TRY(scaled_pass(model, world, 5, 4 * size, last ? (double)INFINITY : 1));
        for (int k = 0; k < UNUSED; k++) {
            LS_CHECK(isnan(numbers_get(ls_grad(ls_module_parameter(model, k)), 0)));
        }
    } else if (how == BY_SKIPPING) {
        LS_TRY(ls_data_parallel_skip(model));
    }
    return LS_OK;
}

/* Trains a model with a spoiled pass in the middle, and returns a hash of its parameters. */
static ls_status hash_with(ls_comm *world, spoiled how, int zero, uint64_t *hash) {
    bool refuses = false;
    ls_module *model =
        ls_data_parallel(make(), world, &(ls_data_parallel_options){.powersgd_rank = RANK, .zero = zero});
    ls_optimizer *optimizer = ls_adam(model, &(ls_adam_options){.learning_rate = 0.01});
    LS_CHECK(optimizer != NULL);
    LS_TRY(ls_add_grad_hook(ls_module_parameter(model, LAST), refuse, &refuses));
    for (int step = 0; step < 4; step++) {
        if (step == 2) {
            ls_optimizer_zero_grad(optimizer);
            LS_TRY(spoil(model, world, how, &refuses));
        }
        ls_optimizer_zero_grad(optimizer);
        LS_TRY(pass(model, world, step, 7));
        LS_TRY(ls_optimizer_step(optimizer));
        LS_TRY(ls_data_parallel_check(model));
    }
    *hash = ls_module_hash(model);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

static ls_status error_feedback_stays(ls_comm *world) {
    uint64_t want, is;
    LS_TRY(hash_with(world, NOT, 0, &want));
    for (int how = BY_HOOK; how < NOT && ls_comm_size(world) > 1; how++) {
        LS_TRY(hash_with(world, (spoiled)how, 0, &is));
        LS_CHECK(is == want);
    }
    LS_TRY(hash_with(world, NOT, 1, &is));
    LS_CHECK(is == want);
    return LS_OK;
}

/* An older gradient stays bit-identical if no rank has a new gradient, because the parameter is frozen or no rank
 * has samples. */
static ls_status old_gradients_stay(ls_comm *world) {
    ls_module *model = wrapped(world, RANK);
    LS_TRY(pass(model, world, 0, 12));
    ls_tensor *gradient = ls_grad(ls_module_parameter(model, LAST)), *before = ls_clone(gradient);
    LS_TRY(ls_data_parallel_skip(model));
    LS_CHECK(ls_equal(gradient, before));
    LS_TRY(ls_set_requires_grad(ls_module_parameter(model, LAST), false));
    LS_TRY(pass(model, world, 1, 7));
    LS_CHECK(ls_equal(gradient, before));
    ls_zero_grad(ls_module_parameter(model, LAST));
    LS_TRY(pass(model, world, 2, 7));
    LS_CHECK(ls_grad(ls_module_parameter(model, LAST)) == NULL);
    LS_TRY(ls_set_requires_grad(ls_module_parameter(model, LAST), true));
    LS_TRY(pass(model, world, 3, 7));
    LS_TRY(same_on_all_ranks(world, ls_grad(ls_module_parameter(model, LAST))));
    ls_release(before);
    ls_module_free(model);
    return LS_OK;
}

/* Different ranks freeze different parameters of the same size. */
static ls_status frozen_on_one_rank(ls_comm *world) {
    const int frozen = ls_comm_rank(world) == 0 ? LAST : CONV;
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    ls_module *model = wrapped(world, RANK);
    LS_TRY(ls_set_requires_grad(ls_module_parameter(model, frozen), false));
    LS_CHECK(pass(model, world, 0, 2 * ls_comm_size(world)) == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("freeze it on all ranks or on none");
    LS_TRY(ls_set_requires_grad(ls_module_parameter(model, frozen), true));
    LS_TRY(pass(model, world, 0, 2 * ls_comm_size(world)));
    ls_module_free(model);
    return LS_OK;
}

/* If compression would not make any gradient smaller, all gradients are sent unchanged. */
static ls_status nothing_to_compress(ls_comm *world) {
    ls_module *plain = wrapped(world, 0), *model = wrapped(world, 1000);
    LS_TRY(pass(plain, world, 0, 7));
    LS_TRY(pass(model, world, 0, 7));
    for (int k = 0; k < UNUSED; k++) {
        const ls_tensor *a = ls_grad(ls_module_parameter(model, k)), *b = ls_grad(ls_module_parameter(plain, k));
        for (int64_t i = 0; i < ls_numel(a); i++) {
            LS_CHECK(fabs(numbers_get(a, i) - numbers_get(b, i)) <= 1e-6);
        }
    }
    ls_module_free(plain);
    ls_module_free(model);
    return LS_OK;
}

/* ---- bytes and wrong input --------------------------------------------------------------------------------------- */

/* For each layer, a step passes 4 ((n + m) r + bias) bytes to collective calls, plus a few bytes. */
static ls_status bytes_of_step(ls_comm *world) {
    enum { WIDTH = 1024, WIDE_RANK = 4 };
    ls_module *model =
        ls_data_parallel(ls_sequential(ls_nn_linear(WIDTH, WIDTH), ls_nn_tanh(), ls_nn_linear(WIDTH, WIDTH)), world,
                         &(ls_data_parallel_options){.powersgd_rank = WIDE_RANK, .overlap = LS_OVERLAP_ON});
    uint64_t before = 0;
    for (int step = 0; step < 2; step++) { /* the first step also compares the ranks */
        before = ls_comm_metered.bytes;
        ls_scope *scope = ls_scope_begin();
        LS_TRY(ls_backward(ls_mean(ls_square(ls_forward(model, ls_ones(LS_SHAPE(2, WIDTH), LS_F32))))));
        LS_TRY(ls_scope_end(scope));
    }
    const double bytes = (double)(ls_comm_metered.bytes - before), formula = 2 * 4.0 * (2 * WIDTH * WIDE_RANK + WIDTH);
    LS_CHECK(ls_comm_size(world) == 1 || (bytes >= formula && bytes <= 1.02 * formula));
    ls_module_free(model);
    return LS_OK;
}

static ls_status refused(ls_comm *world, ls_module *model, ls_data_parallel_options options, ls_status status,
                         const char *message) {
    LS_CHECK(ls_data_parallel(model, world, &options) == NULL);
    LS_CHECK(ls_error_status() == status);
    LS_EXPECT_MESSAGE(message);
    return LS_OK;
}

static ls_status wrong_input(ls_comm *world) {
    ls_module *wide = ls_nn_linear_with(2, 2, &(ls_linear_options){.dtype = LS_F64});
    LS_TRY(refused(world, wide, (ls_data_parallel_options){.powersgd_rank = 2}, LS_ERR_UNSUPPORTED,
                   ".powersgd_rank is 2, but a parameter is of f64"));
    LS_TRY(refused(world, make(), (ls_data_parallel_options){.powersgd_rank = -1}, LS_ERR_ARGUMENT,
                   ".powersgd_rank is -1, but must be 0 (off) or positive"));
    for (int i = 0; i < 3; i++) {
        const ls_data_parallel_options options = {.powersgd_rank = 2,
                                                  .zero = i == 1   ? 2
                                                          : i == 2 ? 3
                                                                   : 0,
                                                  .reduce_dtype = i == 0 ? LS_BF16 : LS_F32};
        LS_TRY(refused(world, make(), options, LS_ERR_UNSUPPORTED, ".powersgd_rank = 2 cannot be combined with"));
    }
    if (ls_comm_size(world) > 1) {
        LS_TRY(refused(world, make(), (ls_data_parallel_options){.powersgd_rank = ls_comm_rank(world) == 0 ? 0 : 2},
                       LS_ERR_MISMATCH, "the options differ between the ranks"));
    }
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(wrong_input(world));
    LS_TRY(as_the_reference(world, (int[]){60, 7, 1, 9, 60}, 5, false));
    LS_TRY(as_the_reference(world, (int[]){1, 1, 60, 7}, 4, false));
    LS_TRY(as_the_reference(world, (int[]){12, 7, 9}, 3, true));
    LS_TRY(error_feedback_stays(world));
    LS_TRY(old_gradients_stay(world));
    LS_TRY(frozen_on_one_rank(world));
    LS_TRY(nothing_to_compress(world));
    LS_TRY(bytes_of_step(world));
    return ls_comm_barrier(world, NULL);
}
