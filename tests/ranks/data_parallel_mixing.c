/*
 * Operations that combine the samples of one rank, although one process would combine the samples of the global batch:
 * inside a data-parallel module, and in the loss of its output. Each operation is refused with a message that contains
 * its name, the axis and the remedy. Programs that keep samples apart, or exchange them, are not refused.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/parallel.h>

enum { WIDTH = 6 };

typedef ls_tensor *(*function)(ls_tensor *x, void *user);

typedef struct mixing_case {
    const char *name; /* of the refused operation */
    function make;    /* x: [samples, WIDTH]; returns the same shape, or [samples] */
} mixing_case;

static ls_tensor *indices(int64_t count, int64_t below) {
    ls_tensor *index = ls_empty(LS_SHAPE(count), LS_I64);
    int64_t *number = ls_data(index);
    for (int64_t i = 0; number != NULL && i < count; i++) {
        number[i] = i % below;
    }
    return index;
}

/* ---- refused ----------------------------------------------------------------------------------------------------- */

static ls_tensor *softmax(ls_tensor *x, void *user) {
    (void)user;
    return ls_softmax(x, 0);
}

static ls_tensor *centered(ls_tensor *x, void *user) {
    (void)user;
    return ls_sub(x, ls_mean_axes(x, LS_AXES(0), true));
}

static ls_tensor *centered_by_all(ls_tensor *x, void *user) {
    (void)user;
    return ls_sub(x, ls_mean(x));
}

static ls_tensor *scaled(ls_tensor *x, void *user) {
    (void)user;
    return ls_div(x, ls_max_axes(x, LS_AXES(0), true));
}

static ls_tensor *scaled_by_constant(ls_tensor *x, void *user) {
    (void)user;
    return ls_div(x, ls_detach(ls_max(ls_abs(x))));
}

static ls_tensor *centered_without_gradient(ls_tensor *x, void *user) {
    (void)user;
    const bool before = ls_no_grad(true);
    ls_tensor *mean = ls_mean_axes(x, LS_AXES(0), false);
    (void)ls_no_grad(before);
    return ls_sub(x, mean);
}

static ls_tensor *rows(ls_tensor *x, void *user) {
    (void)user;
    return ls_embedding(x, indices(ls_size(x, 0), 2));
}

static ls_tensor *similar(ls_tensor *x, void *user) {
    (void)user;
    return ls_matmul(ls_softmax(ls_matmul(x, ls_transpose(x, 0, 1)), 1), x);
}

static ls_tensor *transposed_softmax(ls_tensor *x, void *user) {
    (void)user;
    return ls_transpose(ls_softmax(ls_transpose(x, 0, 1), -1), 0, 1);
}

static ls_tensor *normalized(ls_tensor *x, void *user) {
    (void)user;
    return ls_layer_norm(x, 2, NULL, NULL, 1e-5);
}

static ls_tensor *accumulated(ls_tensor *x, void *user) {
    (void)user;
    return ls_cumsum(x, 0);
}

static ls_tensor *attended(ls_tensor *x, void *user) {
    (void)user;
    return ls_attention(x, x, x, NULL);
}

static ls_tensor *stacked(ls_tensor *x, void *user) {
    (void)user;
    ls_tensor *square = ls_slice(x, 1, 0, ls_size(x, 0), 1); /* [samples, samples] by accident */
    ls_tensor *both = ls_stack((ls_tensor *[]){square, ls_transpose(square, 0, 1)}, 2, 0);
    return ls_add(x, ls_mean_axes(ls_select(both, 0, 1), LS_AXES(1), true));
}

/* Accumulates without a gradient. Runs on a second thread while this thread waits. */
static void *accumulate(void *x) {
    (void)ls_no_grad(true);
    return ls_cumsum(x, 0);
}

static ls_tensor *accumulated_elsewhere(ls_tensor *x, void *user) {
    pthread_t thread;
    void *sums = NULL;
    (void)user;
    if (pthread_create(&thread, NULL, accumulate, x) != 0 || pthread_join(thread, &sums) != 0) {
        return NULL;
    }
    ls_tensor *result = ls_add(x, sums);
    ls_release(sums);
    return result;
}

static ls_tensor *class_loss(ls_tensor *x, void *user) {
    (void)user;
    return ls_cross_entropy(ls_transpose(x, 0, 1), indices(WIDTH, 2), NULL);
}

static ls_tensor *nll(ls_tensor *x, void *user) {
    (void)user;
    return ls_nll_loss(ls_transpose(ls_log_softmax(x, 1), 0, 1), indices(WIDTH, 2), NULL);
}

static ls_tensor *loss_of_vector(ls_tensor *x, void *user) {
    (void)user;
    return ls_cross_entropy(ls_select(x, 1, 0), ls_reshape(indices(1, 1), LS_SCALAR), NULL);
}

static const mixing_case refused_inside[] = {{"ls_softmax", softmax},
                                             {"ls_mean", centered},
                                             {"ls_mean", centered_by_all},
                                             {"ls_max", scaled},
                                             {"ls_max", scaled_by_constant},
                                             {"ls_mean", centered_without_gradient},
                                             {"ls_embedding", rows},
                                             {"ls_matmul", similar},
                                             {"ls_softmax", transposed_softmax},
                                             {"ls_layer_norm", normalized},
                                             {"ls_cumsum", accumulated},
                                             {"ls_attention", attended},
                                             {"ls_cumsum", accumulated_elsewhere},
                                             {"ls_stack", stacked}};

static const mixing_case refused_after[] = {{"ls_softmax", softmax},
                                            {"ls_stack", stacked},
                                            {"ls_embedding", rows},
                                            {"ls_cross_entropy", class_loss},
                                            {"ls_nll_loss", nll},
                                            {"ls_cross_entropy", loss_of_vector},
                                            {"ls_softmax", transposed_softmax},
                                            {"ls_matmul", similar}};

/* ---- allowed ----------------------------------------------------------------------------------------------------- */

static ls_tensor *over_features(ls_tensor *x, void *user) {
    (void)user;
    ls_tensor *y = ls_sub(ls_softmax(x, 1), ls_mean_axes(x, LS_AXES(1), true));
    return ls_div(y, ls_max_axes(ls_abs(x), LS_AXES(1), true));
}

static ls_tensor *time_first(ls_tensor *x, void *user) {
    (void)user;
    const int64_t n = ls_size(x, 0);
    ls_tensor *y = ls_transpose(ls_reshape(x, LS_SHAPE(n, 3, 2)), 0, 1); /* [time, samples, features] */
    y = ls_sub(ls_softmax(y, 0), ls_mean_axes(y, LS_AXES(0), true));
    y = ls_layer_norm(ls_cumsum(y, 0), 1, NULL, NULL, 1e-5);
    y = ls_reshape(ls_tanh(ls_reshape(y, LS_SHAPE(3 * n, 2))), LS_SHAPE(3, n, 2));
    return ls_reshape(ls_transpose(y, 0, 1), LS_SHAPE(n, WIDTH));
}

static ls_tensor *by_heads(ls_tensor *x, void *user) {
    (void)user;
    const int64_t n = ls_size(x, 0);
    ls_tensor *y = ls_transpose(ls_reshape(x, LS_SHAPE(n, 3, 2, 1)), 1, 2);
    y = ls_attention(y, y, y, &(ls_attention_options){.causal = true});
    ls_tensor *scores = ls_softmax(ls_matmul(y, ls_transpose(y, 2, 3)), -1);
    return ls_reshape(ls_transpose(ls_matmul(scores, y), 1, 2), LS_SHAPE(n, WIDTH));
}

static ls_tensor *rotated_by_time(ls_tensor *x, void *user) {
    (void)user;
    const int64_t n = ls_size(x, 0);
    return ls_reshape(ls_rotary(ls_reshape(x, LS_SHAPE(n, 3, 2)), NULL), LS_SHAPE(n, WIDTH));
}

static ls_tensor *folded(ls_tensor *x, void *user) {
    (void)user;
    const int64_t n = ls_size(x, 0);
    ls_tensor *y = ls_matmul(ls_reshape(x, LS_SHAPE(3 * n, 2)), ls_ones(LS_SHAPE(2, 2), LS_F32));
    return ls_layer_norm(ls_flatten(ls_reshape(y, LS_SHAPE(n, 3, 2)), 1, 2), 1, NULL, NULL, 1e-5);
}

static ls_tensor *positions(ls_tensor *x, void *user) {
    (void)user;
    ls_tensor *place = ls_to(ls_arange(LS_SHAPE(WIDTH), LS_I64), LS_F32);
    return ls_add(x, ls_sub(ls_softmax(place, 0), ls_mean(place)));
}

static ls_tensor *weights_first(ls_tensor *x, void *user) {
    (void)user;
    return ls_transpose(ls_matmul(ls_ones(LS_SHAPE(WIDTH, WIDTH), LS_F32), ls_transpose(x, 0, 1)), 0, 1);
}

static ls_tensor *branches(ls_tensor *x, void *user) {
    (void)user;
    ls_tensor *both = ls_stack((ls_tensor *[]){x, ls_neg(x)}, 2, 0); /* [branches, samples, features] */
    return ls_sum_axes(ls_mul(ls_softmax(both, 0), both), LS_AXES(0), false);
}

static ls_tensor *views(ls_tensor *x, void *user) {
    (void)user;
    const int64_t n = ls_size(x, 0);
    ls_tensor *both = ls_concat((ls_tensor *[]){x, ls_neg(x)}, 2, 0);
    return ls_mean_axes(ls_softmax(ls_reshape(both, LS_SHAPE(2, n, WIDTH)), 0), LS_AXES(0), false);
}

/* Applies a different kernel to each sample, using groups of channels. */
static ls_tensor *own_kernels(ls_tensor *x, void *user) {
    (void)user;
    const int64_t n = ls_size(x, 0);
    ls_tensor *kernel = ls_reshape(ls_narrow(x, 1, 0, 2), LS_SHAPE(2 * n, 1, 1));
    ls_tensor *y = ls_conv(ls_reshape(x, LS_SHAPE(1, 2 * n, 3)), kernel, NULL, &(ls_conv_options){.groups = 2 * n});
    return ls_reshape(y, LS_SHAPE(n, WIDTH));
}

/* Computes statistics that no output depends on. */
static ls_tensor *watched(ls_tensor *x, void *user) {
    (void)user;
    ls_tensor *statistics = ls_mul(ls_mean(x), ls_max(x));
    return statistics != NULL ? ls_relu(x) : NULL;
}

static ls_tensor *reduced(ls_tensor *x, void *user) {
    ls_tensor *mean = ls_allreduce(user, ls_mean_axes(x, LS_AXES(0), true), LS_AVG);
    return ls_sub(x, mean);
}

static ls_status custom_forward(ls_custom_call *call) {
    call->outputs[0] = ls_mul(call->inputs[0], 2);
    return LS_OK;
}

static ls_status custom_backward(ls_custom_call *call) {
    call->input_gradients[0] = ls_mul(call->output_gradients[0], 2);
    return LS_OK;
}

static ls_tensor *custom(ls_tensor *x, void *user) {
    static const ls_custom_op twice = {.name = "twice", .forward = custom_forward, .backward = custom_backward};
    (void)user;
    return ls_custom(&twice, &x, 1, NULL, NULL);
}

static ls_tensor *one_number(ls_tensor *x, void *user) {
    (void)user;
    return ls_add(ls_mul(ls_mean(ls_square(x)), 0.5), 1);
}

static ls_tensor *long_loss(ls_tensor *x, void *user) {
    (void)user;
    const int64_t n = ls_size(x, 0);
    ls_tensor *steps = ls_transpose(ls_reshape(x, LS_SHAPE(n, 3, 2)), 0, 1);
    return ls_cross_entropy(ls_reshape(steps, LS_SHAPE(3 * n, 2)), indices(3 * n, 2), NULL);
}

static const mixing_case allowed_inside[] = {{"over features", over_features},
                                             {"time first", time_first},
                                             {"by heads", by_heads},
                                             {"rotated by time", rotated_by_time},
                                             {"folded", folded},
                                             {"positions", positions},
                                             {"weights first", weights_first},
                                             {"branches", branches},
                                             {"views", views},
                                             {"own kernels", own_kernels},
                                             {"watched", watched},
                                             {"reduced", reduced},
                                             {"custom", custom},
                                             {"one number", one_number}};

static const mixing_case allowed_after[] = {{"over features", over_features},
                                            {"time first", long_loss},
                                            {"weights first", weights_first},
                                            {"branches", branches},
                                            {"one number", one_number}};

/* ---- running them ------------------------------------------------------------------------------------------------ */

static ls_tensor *nothing(ls_tensor *x, void *user) {
    (void)user;
    return x;
}

typedef struct pass {
    function inside; /* between the layers of the model, or NULL */
    bool first;      /* or before them */
    function after;  /* in the loss; or NULL */
    int64_t samples;
} pass;

static ls_status run_pass(ls_comm *world, const pass *p) {
    ls_seed(5);
    ls_module *own = ls_nn_function("Inside", p->inside != NULL ? p->inside : nothing, world);
    ls_module *model = p->first ? ls_sequential(own, ls_nn_linear(WIDTH, WIDTH), ls_nn_tanh())
                                : ls_sequential(ls_nn_linear(WIDTH, WIDTH), ls_nn_tanh(), own);
    model = ls_data_parallel(model, world, NULL);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_randn(LS_SHAPE(p->samples, WIDTH), LS_F32);
    ls_tensor *y = ls_forward(model, x);
    ls_status status = y != NULL ? LS_OK : ls_error_status();
    if (status == LS_OK) {
        y = p->after != NULL ? p->after(y, world) : y;
        status = ls_backward(ls_ndim(y) > 0 ? ls_mean(ls_square(y)) : y);
    }
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", ls_error_message());
    (void)ls_scope_end(scope);
    ls_module_free(model);
    return status == LS_OK ? LS_OK : ls_fail(status, "%s", message);
}

static ls_status expect_refusal(ls_comm *world, const mixing_case *c, ls_status status) {
    if (ls_comm_size(world) == 1) {
        return status;
    }
    if (status != LS_ERR_UNSUPPORTED) {
        return ls_fail(LS_ERR_INTERNAL, "%s: %s, not refused", c->name, ls_status_name(status));
    }
    LS_EXPECT_MESSAGE(c->name);
    LS_EXPECT_MESSAGE("ls_allgather");
    LS_EXPECT_MESSAGE("along axis ");
    return LS_OK;
}

static ls_status expect_success(const mixing_case *c, ls_status status) {
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", ls_error_message());
    return status == LS_OK ? LS_OK : ls_fail(LS_ERR_INTERNAL, "%s: refused: %s", c->name, message);
}

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* The ranks have 2, 3, ... samples. */
static ls_status refusals(ls_comm *world) {
    const int64_t samples = ls_comm_rank(world) + 2;
    for (size_t i = 0; i < COUNT(refused_inside); i++) {
        const mixing_case *c = &refused_inside[i];
        LS_TRY(expect_refusal(world, c, run_pass(world, &(pass){c->make, true, NULL, samples})));
        LS_TRY(expect_refusal(world, c, run_pass(world, &(pass){c->make, false, NULL, samples})));
    }
    for (size_t i = 0; i < COUNT(refused_after); i++) {
        const mixing_case *c = &refused_after[i];
        LS_TRY(expect_refusal(world, c, run_pass(world, &(pass){NULL, false, c->make, samples})));
    }
    return LS_OK;
}

/* The first rank has `samples` samples, and each further rank has one more. */
static ls_status programs(ls_comm *world, int64_t samples) {
    samples += ls_comm_rank(world);
    for (size_t i = 0; i < COUNT(allowed_inside); i++) {
        const mixing_case *c = &allowed_inside[i];
        LS_TRY(expect_success(c, run_pass(world, &(pass){c->make, false, NULL, samples})));
        if (c->make != one_number) {
            LS_TRY(expect_success(c, run_pass(world, &(pass){c->make, true, NULL, samples})));
        }
    }
    for (size_t i = 0; i < COUNT(allowed_after); i++) {
        const mixing_case *c = &allowed_after[i];
        LS_TRY(expect_success(c, run_pass(world, &(pass){NULL, false, c->make, samples})));
    }
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(refusals(world));
    LS_TRY(programs(world, 2));
    LS_TRY(programs(world, 1));
    return ls_comm_barrier(world, NULL);
}
