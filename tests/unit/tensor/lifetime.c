/*
 * Pointers that a program keeps after the end of their owners: tensors of ended scopes, released tensors, and ended
 * scopes. Every call on them fails with LS_ERR_STATE and a message with the name of the call, even in release builds.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <pthread.h>

#include <lockstep/lockstep.h>

#include "base/status.h"
#include "tests/support/allocator.h"
#include "tests/support/files.h"

/* ---- every call on a freed tensor -------------------------------------------------------------------------------- */

static ls_tensor *f, *i, *b; /* freed: f32 [4, 4], i64 [4], bool [4, 4] */
static ls_tensor *x, *t, *w; /* valid: f32 [4, 4], i64 [4], f32 [4] */
static ls_comm *alone;
static ls_scope
    *around; /* the scope of the calls, so that their scopes do not directly follow the scope of f, i and b */

static int make_tensors(void **state) {
    (void)state;
    alone = ls_init(NULL);
    x = ls_zeros(LS_SHAPE(4, 4), LS_F32);
    t = ls_zeros(LS_SHAPE(4), LS_I64);
    w = ls_zeros(LS_SHAPE(4), LS_F32);
    ls_scope *scope = ls_scope_begin();
    f = ls_zeros(LS_SHAPE(4, 4), LS_F32);
    i = ls_zeros(LS_SHAPE(4), LS_I64);
    b = ls_zeros(LS_SHAPE(4, 4), LS_BOOL);
    const ls_status status = ls_scope_end(scope);
    around = ls_scope_begin();
    return alone == NULL || status != LS_OK;
}

static int free_tensors(void **state) {
    (void)state;
    const ls_status status = ls_scope_end(around);
    ls_release(x);
    ls_release(t);
    ls_release(w);
    return status != LS_OK || ls_finalize() != LS_OK;
}

static ls_status do_nothing(ls_tensor *leaf, void *user) {
    (void)leaf;
    (void)user;
    return LS_OK;
}

static void check_refused(const char *call, const char *expression, ls_scope *scope, const char *why) {
    const ls_status status = ls_scope_end(scope);
    const char *message = ls_error_message();
    const size_t length = strlen(call);
    if (status != LS_ERR_STATE || strncmp(message, call, length) != 0 || message[length] != ':' ||
        strstr(message, why) == NULL) {
        fail_msg("%s: %s: %s", expression, ls_status_name(status), message);
    }
}

/* Makes the call, which must be refused. The message must contain `call`. */
#define REFUSED_AS(call, why, ...)                                                                                     \
    do {                                                                                                               \
        ls_scope *scope_ = ls_scope_begin();                                                                           \
        (void)ls_error_set(LS_OK, "%s", "");                                                                           \
        if (__VA_ARGS__) {                                                                                             \
        }                                                                                                              \
        check_refused(#call, #__VA_ARGS__, scope_, why);                                                               \
    } while (0)
#define REFUSED(call, ...) REFUSED_AS(call, "belongs to a scope that has ended", __VA_ARGS__)

TEST(test_looking) {
    REFUSED(ls_ndim, ls_ndim(f) != 0);
    REFUSED(ls_size, ls_size(f, 0) != 0);
    REFUSED(ls_stride, ls_stride(f, 0) != 0);
    REFUSED(ls_shape_of, ls_shape_of(f).ndim != 0);
    REFUSED(ls_numel, ls_numel(f) != 0);
    REFUSED(ls_dtype_of, ls_dtype_of(i) != LS_F32);
    REFUSED(ls_is_contiguous, ls_is_contiguous(f));
    REFUSED(ls_data, ls_data(f));
    REFUSED(ls_data_const, ls_data_const(f));
    REFUSED(ls_item, ls_item(f) != 0);
    REFUSED(ls_at, ls_at(f, (const int64_t[]){0, 0}) != 0);
    REFUSED(ls_equal, ls_equal(f, x));
    REFUSED(ls_equal, ls_equal(x, f));
    REFUSED(ls_allclose, ls_allclose(x, f, 0, 0));
    REFUSED(ls_format, ls_format(f, NULL, 0) != 4);
    REFUSED(ls_idx_write, ls_idx_write(test_path("x.idx"), f));
    REFUSED(ls_npy_write, ls_npy_write(test_path("x.npy"), f));
    REFUSED(ls_npz_save, ls_npz_save(test_path("x.npz"), &(ls_named){"f", f}, 1));
    REFUSED(ls_safetensors_save, ls_safetensors_save(test_path("x"), (ls_named[]){{"x", x}, {"f", f}}, 2, NULL));
}

TEST(test_changing_and_keeping) {
    REFUSED(ls_copy_into, ls_copy_into(f, x));
    REFUSED(ls_copy_into, ls_copy_into(x, f));
    REFUSED(ls_fill, ls_fill(f, 1));
    REFUSED(ls_mark_changed, (ls_mark_changed(f), 0));
    REFUSED(ls_keep, ls_keep(f));
    REFUSED(ls_release, (ls_release(f), 0));
    REFUSED(ls_alias, ls_alias(f));
    REFUSED(ls_alias, ls_detach(f));
    REFUSED(ls_tensor_dataset, ls_tensor_dataset(f, x));
}

TEST(test_gradients) {
    REFUSED(ls_set_requires_grad, ls_set_requires_grad(f, true));
    REFUSED(ls_requires_grad, ls_requires_grad(f));
    REFUSED(ls_grad, ls_grad(f));
    REFUSED(ls_zero_grad, (ls_zero_grad(f), 0));
    REFUSED(ls_backward, ls_backward(f));
    REFUSED(ls_backward_with, ls_backward_with(x, &(ls_backward_options){.gradient = f}));
    REFUSED(ls_add_grad_hook, ls_add_grad_hook(f, do_nothing, NULL));
}

TEST(test_elementwise) {
    REFUSED(ls_neg, ls_neg(f));
    REFUSED(ls_exp, ls_exp(i));
    REFUSED(ls_maximum, ls_relu(i));
    REFUSED(ls_relu, ls_relu(f));
    REFUSED(ls_clamp, ls_clamp(i, 0.5, 1));
    REFUSED(ls_add, ls_add(f, x));
    REFUSED(ls_add, ls_add(x, f));
    REFUSED(ls_add, ls_add(x, i));
    REFUSED(ls_add, ls_add(i, 1));
    REFUSED(ls_sub, ls_sub(f, x));
    REFUSED(ls_mul, ls_mul(f, 2.5));
    REFUSED(ls_div, ls_div(i, 2.5));
    REFUSED(ls_pow, ls_pow(f, 2));
    REFUSED(ls_minimum, ls_minimum(x, f));
    REFUSED(ls_eq, ls_eq(f, x));
    REFUSED(ls_lt, ls_lt(i, 3));
    REFUSED(ls_where, ls_where(b, x, x));
    REFUSED(ls_where, ls_where(x, f, x));
}

TEST(test_reductions_and_products) {
    REFUSED(ls_sum, ls_sum(f));
    REFUSED(ls_sum, ls_sum(b));
    REFUSED(ls_mean, ls_mean_axes(f, LS_AXES(1), false));
    REFUSED(ls_prod, ls_prod(f));
    REFUSED(ls_max, ls_max(f));
    REFUSED(ls_min, ls_min(i));
    REFUSED(ls_var, ls_var(f));
    REFUSED(ls_norm, ls_norm(f));
    REFUSED(ls_argmax, ls_argmax(f, 1, false));
    REFUSED(ls_argmin, ls_argmin(i, 0, false));
    REFUSED(ls_cumsum, ls_cumsum(f, 0));
    REFUSED(ls_logsumexp, ls_logsumexp(f, 1, false));
    REFUSED(ls_matmul, ls_matmul(f, x));
    REFUSED(ls_matmul, ls_matmul(x, f));
    REFUSED(ls_linear, ls_linear(f, x, NULL));
    REFUSED(ls_linear, ls_linear(x, x, f));
    REFUSED(ls_einsum, ls_einsum("ij,jk", (ls_tensor *[]){x, f}, 2));
}

TEST(test_shapes) {
    REFUSED(ls_reshape, ls_reshape(f, LS_SHAPE(16)));
    REFUSED(ls_permute, ls_transpose(f, 0, 1));
    REFUSED(ls_permute, ls_permute(f, LS_AXES(1, 0)));
    REFUSED(ls_expand, ls_expand(f, LS_SHAPE(2, 4, 4)));
    REFUSED(ls_slice, ls_narrow(f, 0, 1, 2));
    REFUSED(ls_slice, ls_slice(f, 0, 0, 4, 2));
    REFUSED(ls_slice, ls_select(f, 0, 1));
    REFUSED(ls_reshape, ls_flatten(f, 0, 1));
    REFUSED(ls_reshape, ls_unsqueeze(f, 0));
    REFUSED(ls_pad, ls_pad(f, 0, 1, 1, 0));
    REFUSED(ls_concat, ls_concat((ls_tensor *[]){x, f}, 2, 0));
    REFUSED(ls_stack, ls_stack((ls_tensor *[]){f, x}, 2, 0));
    REFUSED(ls_split, ls_split(f, 0, 2, (ls_tensor *[2]){NULL}, 2) == 2);
    REFUSED(ls_take_along_axis, ls_take_along_axis(f, 0, ls_unsqueeze(t, 0)));
    REFUSED(ls_index_select, ls_index_select(x, 0, i));
    REFUSED(ls_embedding, ls_embedding(f, t));
    REFUSED(ls_reshape, ls_contiguous(f));
    REFUSED(ls_clone, ls_clone(f));
    REFUSED(ls_to, ls_to(f, LS_F64));
}

TEST(test_layers_and_losses) {
    REFUSED(ls_softmax, ls_softmax(f, 1));
    REFUSED(ls_log_softmax, ls_log_softmax(f, 1));
    REFUSED(ls_dropout, ls_dropout(f, 0.5));
    REFUSED(ls_layer_norm, ls_layer_norm(f, 1, w, w, 1e-5));
    REFUSED(ls_batch_norm, ls_batch_norm(f, NULL, NULL, NULL, NULL, true, 0.1, 1e-5));
    REFUSED(ls_mse_loss, ls_mse_loss(x, f, LS_LOSS_MEAN));
    REFUSED(ls_mse_loss, ls_mse_loss(x, b, LS_LOSS_MEAN));
    REFUSED(ls_huber_loss, ls_huber_loss(f, x, 1, LS_LOSS_MEAN));
    REFUSED(ls_cross_entropy, ls_cross_entropy(f, t, NULL));
    REFUSED(ls_cross_entropy, ls_cross_entropy(x, i, NULL));
    REFUSED(ls_bce_loss, ls_bce_loss(f, x, LS_LOSS_MEAN));
    REFUSED(ls_kl_div_loss, ls_kl_div_loss(f, x, LS_LOSS_MEAN));
    REFUSED(ls_cosine_similarity, ls_cosine_similarity(x, f, 1, 0));
    REFUSED(ls_weight_norm, ls_weight_norm(f, x));
    REFUSED(ls_resize, ls_resize(f, LS_SHAPE(2), NULL));
    REFUSED(ls_pixel_shuffle, ls_pixel_shuffle(f, 2));
}

TEST(test_communication) {
    REFUSED(ls_allreduce, ls_allreduce(alone, f, LS_SUM));
    REFUSED(ls_broadcast, ls_broadcast(alone, f, 0));
    REFUSED(ls_isend, ls_isend(alone, f, 0, 0));
}

/* ---- typical causes ---------------------------------------------------------------------------------------------- */

/* A common mistake: a sum is kept across scopes. */
TEST(test_a_sum_over_scopes) {
    ls_tensor *sum = ls_zeros(LS_SCALAR, LS_F32);
    ls_tensor *first = sum;
    ls_status status = LS_OK;
    int step = 0;
    for (; step < 5 && status == LS_OK; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *loss = ls_sum(ls_rand(LS_SHAPE(8), LS_F32));
        for (int k = 0; k < 100; k++) { /* would reuse the record if possible */
            (void)ls_add(loss, 1.0);
        }
        sum = ls_add(sum, loss);
        status = ls_scope_end(scope);
    }
    assert_int_equal(step, 2);
    assert_int_equal(status, LS_ERR_STATE);
    assert_string_equal(ls_error_message(),
                        "ls_add: argument 1 belongs to a scope that has ended; call ls_keep before ls_scope_end");
    ls_release(first);
}

/* The last scope at each depth is remembered, although the library meanwhile uses its own scopes. */
TEST(test_scopes_in_scopes) {
    ls_tensor *of_inner = NULL, *of_outer = NULL;
    ls_tensor *leaf = ls_ones(LS_SHAPE(3), LS_F32);
    assert_int_equal(ls_set_requires_grad(leaf, true), LS_OK);
    for (int step = 0; step < 3; step++) {
        ls_scope *outer = ls_scope_begin();
        if (step > 0) {
            REFUSED(ls_item, ls_item(of_outer) != 0);
            REFUSED(ls_exp, ls_exp(of_inner));
        }
        of_outer = ls_zeros(LS_SCALAR, LS_F32);
        ls_scope *inner = ls_scope_begin();
        if (step > 0) {
            REFUSED(ls_exp, ls_exp(of_inner));
        }
        of_inner = ls_ones(LS_SCALAR, LS_F32);
        assert_int_equal(ls_scope_end(inner), LS_OK);
        assert_int_equal(ls_backward(ls_sum(ls_square(leaf))), LS_OK);
        for (int k = 0; k < 100; k++) {
            (void)ls_zeros(LS_SCALAR, LS_F32);
        }
        REFUSED(ls_exp, ls_exp(of_inner));
        assert_int_equal(ls_scope_end(outer), LS_OK);
    }
    ls_release(leaf);
}

TEST(test_released) {
    static const char why[] = "was released by ls_release";
    ls_tensor *kept = ls_zeros(LS_SHAPE(2), LS_F32);
    ls_release(kept);
    REFUSED_AS(ls_release, why, (ls_release(kept), 0));
    ls_tensor *made[8];
    for (int k = 0; k < 8; k++) {
        made[k] = ls_zeros(LS_SHAPE(2), LS_F32);
        assert_ptr_not_equal(made[k], kept);
    }
    REFUSED_AS(ls_add, why, ls_add(made[0], kept));
    REFUSED_AS(ls_keep, why, ls_keep(kept));
    for (int k = 0; k < 8; k++) {
        ls_release(made[k]);
    }
    REFUSED_AS(ls_data, why, ls_data(kept));
    /* A tensor that only a tape keeps no longer belongs to the user, and releasing it again has no effect. */
    ls_tensor *leaf = ls_ones(LS_SHAPE(2), LS_F32);
    assert_int_equal(ls_set_requires_grad(leaf, true), LS_OK);
    ls_tensor *square = ls_square(leaf), *loss = ls_sum(square);
    ls_release(square);
    ls_release(square);
    assert_int_equal(ls_backward(loss), LS_OK);
    ls_release(loss);
    ls_release(leaf);
}

/* ---- scopes ------------------------------------------------------------------------------------------------------ */

static void *end_on_this_thread(void *scope) {
    const ls_status status = ls_scope_end(scope);
    return status == LS_ERR_STATE && strstr(ls_error_message(), "belongs to another thread") != NULL ? scope : NULL;
}

TEST(test_scopes_that_cannot_end) {
    ls_scope *ended = ls_scope_begin();
    assert_int_equal(ls_scope_end(ended), LS_OK);
    assert_int_equal(ls_scope_end(ended), LS_ERR_STATE);
    assert_string_equal(
        ls_error_message(),
        "ls_scope_end: not an open scope of this thread: it has already ended, or belongs to another thread");
    ls_scope *outer = ls_scope_begin();
    assert_int_equal(ls_scope_end(ended), LS_ERR_STATE); /* does not end the scope that was opened since */
    ls_scope *inner = ls_scope_begin();
    assert_int_equal(ls_scope_end(outer), LS_ERR_STATE);
    expect_message("not the innermost scope of this thread");
    pthread_t thread;
    void *result = NULL;
    assert_int_equal(pthread_create(&thread, NULL, end_on_this_thread, inner), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, inner);
    assert_int_equal(ls_scope_end(inner), LS_OK);
    assert_int_equal(ls_scope_end(outer), LS_OK);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

typedef struct held {
    ls_module *model;
    ls_tensor *gradient; /* in memory of the communicator */
    ls_comm *part;
} held;

static ls_status leave_a_model(ls_comm *world, void *argument) {
    held *own = (held *)argument + ls_comm_rank(world);
    LS_TRY(ls_comm_split(world, 0, 0, &own->part));
    own->model = ls_data_parallel(ls_nn_linear(3, 2), world, NULL);
    ls_scope *scope = ls_scope_begin();
    const ls_status status = ls_backward(ls_sum(ls_forward(own->model, ls_ones(LS_SHAPE(1, 3), LS_F32))));
    LS_TRY(ls_scope_end(scope));
    LS_TRY(status);
    own->gradient = ls_alias(ls_grad(ls_module_parameter(own->model, 0)));
    return own->gradient != NULL ? LS_OK : ls_error_status();
}

/* Objects of threads that have exited are in ls_run_threads' memory, which lives as long as the objects. */
TEST(test_models_outlive_their_threads) {
    enum { RANKS = 3 };
    held kept[RANKS] = {{0}};
    assert_int_equal(ls_run_threads(RANKS, leave_a_model, kept), LS_OK);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_float_equal(ls_at(kept[rank].gradient, (const int64_t[]){0, 0}), RANKS, 1e-6);
        assert_int_equal(ls_comm_rank(ls_data_parallel_comm(kept[rank].model)), rank);
        assert_int_equal(ls_comm_barrier(ls_data_parallel_comm(kept[rank].model), NULL), LS_ERR_STATE);
        ls_module_free(kept[rank].model);
        assert_float_equal(ls_at(kept[rank].gradient, (const int64_t[]){1, 2}), RANKS, 1e-6);
        ls_release(kept[rank].gradient);
        ls_comm_free(kept[rank].part);
    }
}

/* Creates many communicators, one after another: their records do not accumulate. */
TEST(test_freed_communicators_do_not_gather) {
    ls_comm *first = ls_init(NULL);
    ls_comm *part = NULL;
    assert_int_equal(ls_comm_split(first, 0, 0, &part), LS_OK);
    ls_comm_free(part);
    ls_comm_free(part);
    assert_int_equal(ls_comm_barrier(part, NULL), LS_ERR_STATE);
    assert_string_equal(ls_error_message(), "ls_comm_barrier: the communicator was freed (ls_comm_free)");
    test_allocator allocator;
    test_allocator_start(&allocator);
    for (int k = 0; k < 100; k++) {
        assert_int_equal(ls_comm_split(first, 0, 0, &part), LS_OK);
        ls_comm_free(part);
    }
    assert_int_equal(test_allocator_stop(&allocator), 0);
    assert_int_equal(ls_finalize(), LS_OK);
    assert_int_equal(ls_comm_rank(first), 0);
    assert_int_equal(ls_comm_barrier(first, NULL), LS_ERR_STATE);
    assert_string_equal(ls_error_message(), "ls_comm_barrier: ls_finalize has left the job");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void run_steps(int steps) {
    for (int step = 0; step < steps; step++) {
        ls_scope *scope = ls_scope_begin();
        for (int k = 0; k < 20; k++) {
            ls_release(ls_exp(ls_zeros(LS_SHAPE(1000), LS_F32)));
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* The number of retained records is bounded, and all are freed when the thread exits. */
TEST(test_memory_does_not_grow) {
    test_allocator allocator;
    test_allocator_start(&allocator);
    run_steps(4);
    const long live = atomic_load(&allocator.live);
#ifndef LS_SANITIZED
    const long calls = atomic_load(&allocator.calls);
    run_steps(20);
    assert_int_equal(atomic_load(&allocator.calls), calls);
#else
    run_steps(20);
#endif
    assert_int_equal(atomic_load(&allocator.live), live);
    assert_int_equal(test_allocator_stop(&allocator), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_looking, make_tensors, free_tensors),
        cmocka_unit_test_setup_teardown(test_changing_and_keeping, make_tensors, free_tensors),
        cmocka_unit_test_setup_teardown(test_gradients, make_tensors, free_tensors),
        cmocka_unit_test_setup_teardown(test_elementwise, make_tensors, free_tensors),
        cmocka_unit_test_setup_teardown(test_reductions_and_products, make_tensors, free_tensors),
        cmocka_unit_test_setup_teardown(test_shapes, make_tensors, free_tensors),
        cmocka_unit_test_setup_teardown(test_layers_and_losses, make_tensors, free_tensors),
        cmocka_unit_test_setup_teardown(test_communication, make_tensors, free_tensors),
        cmocka_unit_test(test_a_sum_over_scopes),
        cmocka_unit_test(test_scopes_in_scopes),
        cmocka_unit_test(test_released),
        cmocka_unit_test(test_scopes_that_cannot_end),
        cmocka_unit_test(test_models_outlive_their_threads),
        cmocka_unit_test(test_freed_communicators_do_not_gather),
        cmocka_unit_test(test_memory_does_not_grow),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
