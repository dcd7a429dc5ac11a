/*
 * autograd: recording, accumulation of gradients, the lifetime of tapes, refusals.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include "tests/support/allocator.h"
#include "tests/support/toy_ops.h"

#define GRAD(leaf, ...) ls_at(ls_grad(leaf), (const int64_t[]){__VA_ARGS__})
#define assert_near(a, b)                                                                                              \
    do {                                                                                                               \
        const double near_a = (a), near_b = (b);                                                                       \
        if (!(fabs(near_a - near_b) <= 1e-6 * (1 + fabs(near_b)))) {                                                   \
            fail_msg("%s is %.9g, not %.9g", #a, near_a, near_b);                                                      \
        }                                                                                                              \
    } while (0)

TEST(test_gradients_of_a_chain) {
    for (ls_dtype dtype = LS_F32; dtype <= LS_F64; dtype++) {
        ls_tensor *x = toy_leaf(LS_SHAPE(3), dtype, 0.5);
        ls_tensor *w = toy_leaf(LS_SHAPE(3), dtype, 2);
        assert_null(ls_grad(x));
        assert_int_equal(ls_backward(toy_sum(toy_exp(toy_mul(toy_square(x), w)))), LS_OK);
        assert_near(GRAD(x, 1), 2 * 0.5 * 2 * exp(0.5));
        assert_near(GRAD(w, 2), 0.25 * exp(0.5));
        assert_int_equal(ls_dtype_of(ls_grad(x)), dtype);
    }
}

TEST(test_a_result_used_many_times) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 3);
    ls_tensor *y = toy_square(x); /* 9; used four times: as both inputs of one operation, and twice in sequence */
    ls_tensor *z = toy_add(toy_mul(y, y), toy_add(y, y));
    assert_int_equal(ls_backward(toy_sum(z)), LS_OK); /* x^4 + 2 x^2 */
    assert_near(GRAD(x, 0), 4 * 27 + 4 * 3);
}

TEST(test_one_leaf_as_both_inputs) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F32, 3);
    assert_int_equal(ls_backward(toy_sum(toy_add(x, x))), LS_OK);
    assert_near(GRAD(x, 1), 2);
}

TEST(test_gradients_of_broadcast_inputs) {
    ls_tensor *row = toy_leaf(LS_SHAPE(3), LS_F32, 1);
    ls_tensor *column = toy_leaf(LS_SHAPE(2, 1), LS_F32, 5);
    ls_tensor *whole = toy_leaf(LS_SHAPE(4, 2, 3), LS_F32, 2);
    ls_tensor *made = toy_square(row); /* the result of a node, which is broadcast in two products */
    ls_tensor *product = toy_mul(toy_mul(toy_mul(whole, column), made), made);
    assert_int_equal(ls_backward(toy_sum(product)), LS_OK);
    assert_int_equal(ls_ndim(ls_grad(row)), 1);
    assert_near(GRAD(row, 2), 4 * 2 * 5 * 2 * 4);
    assert_int_equal(ls_size(ls_grad(column), 0), 2);
    assert_near(GRAD(column, 1, 0), 2 * 4 * 3);
    assert_near(GRAD(whole, 3, 1, 2), 5);
}

TEST(test_gradients_that_are_views) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2, 3), LS_F64, 1);
    const double numbers[] = {1, 2, 3, 4, 5, 6};
    ls_tensor *weights = ls_from(LS_SHAPE(3, 2), LS_F64, numbers);
    ls_tensor *turned = toy_turn(x);
    ls_tensor *back = toy_turn(toy_turn(turned)); /* first gets a transposed view, then a repeated view */
    ls_tensor *loss = toy_add(toy_sum(toy_mul(back, weights)), toy_sum(turned));
    assert_int_equal(ls_backward(loss), LS_OK);
    for (int64_t i = 0; i < 2; i++) {
        for (int64_t j = 0; j < 3; j++) {
            assert_near(GRAD(x, i, j), numbers[j * 2 + i] + 1);
        }
    }
    assert_true(ls_is_contiguous(ls_grad(x)));
}

TEST(test_sinks_gather_with_all_else) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 3);
    ls_tensor *y = toy_add(x, NULL);
    /* y's node first gets a repeated view, then gradients are written into it through sinks. The same happens to x's
     * leaf. */
    ls_tensor *loss = toy_add(toy_add(toy_sum(toy_square(y)), toy_sum(toy_square(y))), toy_sum(y));
    loss = toy_add(toy_add(loss, toy_sum(toy_square(x))), toy_sum(toy_square(x)));
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_near(GRAD(x, 0), 6 + 6 + 1 + 6 + 6);
}

TEST(test_gradients_add_up_over_passes) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F32, 3);
    assert_int_equal(ls_backward(toy_sum(toy_square(x))), LS_OK);
    ls_tensor *gradient = ls_grad(x);
    assert_int_equal(ls_backward(toy_sum(toy_square(x))), LS_OK);
    assert_ptr_equal(ls_grad(x), gradient);
    assert_near(GRAD(x, 0), 12);
    ls_release(gradient); /* borrowed: no effect */
    ls_zero_grad(x);
    assert_null(ls_grad(x));
    assert_int_equal(ls_backward(toy_sum(toy_mul(x, x))), LS_OK);
    assert_ptr_equal(ls_grad(x), gradient);
    assert_near(GRAD(x, 0), 6);
}

TEST(test_gradients_in_a_flat_buffer) {
    ls_tensor *flat = ls_zeros(LS_SHAPE(5), LS_F32);
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F32, 3);
    const int64_t size = 2;
    const int64_t stride = 1;
    x->leaf->gradient = ls_tensor_view_owned(flat, 1, &size, &stride, 2);
    assert_int_equal(ls_backward(toy_sum(toy_mul(x, x))), LS_OK);
    const float *numbers = elements(flat);
    assert_true(numbers[1] == 0 && numbers[2] == 6 && numbers[3] == 6 && numbers[4] == 0);
    ls_zero_grad(x);
    assert_int_equal(ls_backward(toy_sum(toy_square(x))), LS_OK);
    assert_int_equal(ls_backward(toy_sum(x)), LS_OK);
    assert_true(((const float *)elements(flat))[3] == 7);
}

TEST(test_half_precision_gradients) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2, 2), LS_BF16, 3);
    ls_tensor *gradient = ls_full(LS_SHAPE(2, 2), LS_BF16, 1.5);
    const ls_backward_options options = {.gradient = gradient};
    assert_int_equal(ls_backward_with(x, &options), LS_OK);
    assert_int_equal(ls_backward_with(x, &options), LS_OK);
    assert_int_equal(ls_dtype_of(ls_grad(x)), LS_BF16);
    assert_near(GRAD(x, 1, 1), 3);
}

TEST(test_what_is_recorded) {
    ls_tensor *plain = ls_ones(LS_SHAPE(2), LS_F32);
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F32, 3);
    assert_false(ls_requires_grad(toy_square(plain)));
    assert_true(ls_requires_grad(toy_add(plain, x)));
    assert_false(ls_requires_grad(toy_unary(&toy_flat_op, x, 0)));
    assert_false(ls_requires_grad(ls_alias(x)));
    assert_false(ls_no_grad(true));
    assert_false(ls_requires_grad(toy_square(x)));
    assert_true(ls_no_grad(false));
    assert_int_equal(x->leaf->uses, 1);
}

TEST(test_a_start_other_than_one) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2, 3), LS_F64, 3);
    ls_tensor *y = toy_square(x);
    ls_tensor *gradient = ls_arange(LS_SHAPE(2, 3), LS_F64);
    assert_int_equal(ls_backward_with(y, &(ls_backward_options){.gradient = gradient}), LS_OK);
    assert_near(GRAD(x, 1, 2), 30);
    assert_near(ls_at(gradient, (const int64_t[]){1, 2}), 5); /* still owned by the caller, and unchanged */
    ls_tensor *z = toy_square(x);
    assert_int_equal(ls_backward_with(z, &(ls_backward_options){.gradient = ls_ones(LS_SHAPE(3), LS_F64)}),
                     LS_ERR_SHAPE);
    assert_int_equal(ls_backward_with(z, &(ls_backward_options){.gradient = ls_ones(LS_SHAPE(2, 3), LS_F32)}),
                     LS_ERR_SHAPE);
}

/* A failed operation returns NULL, which would otherwise select 1. */
TEST(test_a_start_whose_operation_failed) {
    ls_tensor *x = toy_leaf(LS_SHAPE(1), LS_F64, 3);
    ls_scope *outer = ls_scope_begin();
    ls_tensor *y = toy_square(x);
    ls_backward_options options = {.gradient = ls_add(ls_ones(LS_SHAPE(2), LS_F64), ls_ones(LS_SHAPE(3), LS_F64))};
    assert_null(options.gradient);
    assert_int_equal(ls_backward_with(y, &options), LS_ERR_SHAPE);
    expect_message("ls_add: ");
    assert_null(ls_grad(x));
    ls_scope *inner = ls_scope_begin();                                           /* does not have the failure */
    assert_int_equal(ls_fill(ls_ones(LS_SHAPE(1), LS_U8), 3.5), LS_ERR_ARGUMENT); /* returns no tensor */
    assert_int_equal(ls_backward_with(toy_square(x), &options), LS_OK);
    assert_int_equal(ls_scope_end(inner), LS_ERR_ARGUMENT);
    assert_near(GRAD(x, 0), 6);
    assert_int_equal(ls_backward(y), LS_OK); /* takes no gradient */
    assert_near(GRAD(x, 0), 12);
    assert_int_equal(ls_scope_end(outer), LS_ERR_SHAPE);
    assert_int_equal(ls_backward_with(toy_square(x), &options), LS_OK); /* outside any scope */
    assert_near(GRAD(x, 0), 18);
}

static void expect_refusal(ls_tensor *loss, ls_status status, const char *part) {
    assert_int_equal(ls_backward(loss), status);
    expect_message(part);
}

TEST(test_losses_that_are_refused) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F32, 3);
    expect_refusal(toy_square(x), LS_ERR_SHAPE, "must be one number, not [2]");
    expect_refusal(ls_ones(LS_SHAPE(1), LS_I64), LS_ERR_ARGUMENT, "only floating");
    expect_refusal(ls_ones(LS_SHAPE(1), LS_F32), LS_ERR_STATE, "no history");
    (void)ls_no_grad(true);
    ls_tensor *unrecorded = toy_sum(x);
    (void)ls_no_grad(false);
    expect_refusal(unrecorded, LS_ERR_STATE, "no history");
}

/* Comparisons, indices and integers have no gradient, but the other inputs of their operations have one. */
TEST(test_where_history_ends) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F32, 3);
    expect_refusal(ls_sum(ls_to(ls_gt(x, 0), LS_F32)), LS_ERR_STATE,
                   "or a comparison, ls_argmax, integers or ls_detach cut the history");
    expect_refusal(ls_to(ls_argmax(x, 0, false), LS_F32), LS_ERR_STATE, "ls_argmax");
    expect_refusal(ls_sum(ls_to(ls_to(x, LS_I64), LS_F32)), LS_ERR_STATE, "integers");
    expect_refusal(ls_sum(ls_detach(x)), LS_ERR_STATE, "ls_detach");
    assert_int_equal(ls_backward(ls_sum(ls_mul(x, ls_to(ls_gt(x, 0), LS_F32)))), LS_OK);
    assert_near(GRAD(x, 0), 1);
}

static ls_status recording_hook(ls_tensor *leaf, void *user) {
    *(bool *)user = ls_requires_grad(toy_square(leaf));
    return LS_OK;
}

/* Each call returns the previous setting. A pass restores the setting however it ends, and works with either
 * setting. */
TEST(test_recording_on_and_off) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F32, 3);
    ls_tensor *loss = toy_sum(toy_square(x));
    const bool outer = ls_no_grad(true);
    const bool middle = ls_no_grad(true);
    const bool inner = ls_no_grad(false);
    assert_true(!outer && middle && inner);
    assert_true(ls_requires_grad(toy_square(x)));
    (void)ls_no_grad(inner);
    assert_false(ls_requires_grad(toy_square(x)));
    assert_int_equal(ls_backward(loss), LS_OK);
    (void)ls_no_grad(middle);
    assert_int_equal(ls_backward(loss), LS_ERR_STATE);
    assert_false(ls_requires_grad(toy_square(x)));
    (void)ls_no_grad(outer);
    bool recorded = true;
    assert_int_equal(ls_add_grad_hook(x, recording_hook, &recorded), LS_OK);
    toy_fails = true;
    assert_int_equal(ls_backward(toy_sum(toy_unary(&toy_fail_op, x, 0))), LS_ERR_UNSUPPORTED);
    assert_true(ls_requires_grad(toy_square(x)));
    assert_int_equal(ls_backward(toy_sum(x)), LS_OK);
    assert_false(recorded);
}

TEST(test_a_missing_loss_tells_the_first_error) {
    assert_int_equal(ls_backward(NULL), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "ls_backward: the loss is NULL");
    ls_scope *inner = ls_scope_begin();
    ls_tensor *missing = ls_ones(LS_SHAPE(-1), LS_F32);
    (void)ls_error_set(LS_ERR_IO, "something else meanwhile");
    assert_int_equal(ls_backward(toy_sum(missing)), LS_ERR_SHAPE);
    assert_string_equal(ls_error_message(), "ls_ones: shape [-1] has a negative size");
    assert_int_equal(ls_scope_end(inner), LS_ERR_SHAPE);
}

TEST(test_missing_inputs) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F32, 3);
    (void)ls_keep(x);
    assert_non_null(toy_add(x, NULL)); /* optional */
    assert_int_equal(ls_error_status(), LS_OK);
    assert_null(toy_mul(x, NULL));
    assert_string_equal(ls_error_message(), "toy_mul: argument 2 is NULL");
    assert_int_equal(ls_scope_end(scope), LS_ERR_ARGUMENT);
    scope = ls_scope_begin();
    (void)ls_error_set(LS_ERR_IO, "cannot open x.npy"); /* the program failed to create x */
    assert_null(toy_mul(NULL, x));
    assert_int_equal(ls_scope_end(scope), LS_ERR_IO);
    assert_string_equal(ls_error_message(), "cannot open x.npy; toy_mul: argument 1 is NULL");
    scope = ls_scope_begin();
    assert_int_equal(ls_backward(NULL), LS_ERR_ARGUMENT); /* an old error does not explain this failure */
    assert_true(isnan(ls_item(NULL)));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    (void)ls_error_set(LS_OK, "%s", ""); /* the scope keeps its error */
    assert_int_equal(ls_copy_into(ls_ones(LS_SHAPE(2), LS_F32), NULL), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "ls_backward: the loss is NULL");
    ls_release(x);
}

TEST(test_a_tape_is_walked_once) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F32, 3);
    ls_tensor *trunk = toy_exp(x);
    ls_tensor *one = toy_sum(toy_square(trunk));
    ls_tensor *other = toy_sum(trunk);
    assert_int_equal(ls_backward(one), LS_OK);
    expect_refusal(one, LS_ERR_STATE, "has used up");
    expect_refusal(other, LS_ERR_STATE,
                   "toy_sum depends on a part of the tape that an earlier backward pass has used up");
    assert_int_equal(ls_set_requires_grad(trunk, true), LS_ERR_STATE);
}

TEST(test_keeping_the_tape) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 3);
    ls_tensor *trunk = toy_exp(x);
    ls_tensor *one = toy_sum(toy_square(trunk));
    ls_tensor *other = toy_sum(trunk);
    const ls_backward_options keep = {.keep_tape = true};
    assert_int_equal(ls_backward_with(one, &keep), LS_OK);
    const double first = GRAD(x, 0);
    assert_near(first, 2 * exp(6));
    assert_int_equal(ls_backward_with(one, &keep), LS_OK);
    assert_near(GRAD(x, 0), 2 * first);
    assert_int_equal(ls_backward(other), LS_OK);
    assert_near(GRAD(x, 0), 2 * first + exp(3));
    expect_refusal(one, LS_ERR_STATE, "has used up");
}

TEST(test_intermediate_results_may_be_released) {
    for (int keep = 0; keep < 2; keep++) {
        ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 0.5);
        ls_tensor *y = toy_exp(x);
        ls_tensor *z = toy_square(y);
        ls_tensor *loss = toy_sum(z);
        ls_tensor *unused = toy_exp(y);
        ls_release(y);
        ls_release(z);
        ls_release(unused);
        assert_int_equal(x->leaf->uses, 1);
        assert_int_equal(ls_backward_with(loss, &(ls_backward_options){.keep_tape = keep == 1}), LS_OK);
        assert_near(GRAD(x, 1), 2 * exp(1.0));
        ls_release(loss);
        assert_int_equal(x->leaf->uses, 0);
    }
}

TEST(test_a_kept_loss_takes_its_tape_along) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 0.5);
    ls_scope *middle = ls_scope_begin();
    ls_tensor *y = toy_exp(x);
    ls_scope *inner = ls_scope_begin();
    ls_tensor *z = ls_keep(toy_square(toy_add(y, NULL)));
    (void)toy_exp(toy_mul(y, y)); /* not kept, so it was freed */
    assert_int_equal(ls_scope_end(inner), LS_OK);
    ls_tensor *loss = ls_keep(toy_sum(z));
    assert_int_equal(ls_scope_end(middle), LS_OK);
    assert_int_equal(x->leaf->uses, 1);
    inner = ls_scope_begin(); /* the pass begins in the inner scope and continues to the outer scope */
    assert_int_equal(ls_backward(toy_mul(loss, loss)), LS_OK);
    assert_int_equal(ls_scope_end(inner), LS_OK);
    const double sum = 2 * exp(1.0);
    assert_near(GRAD(x, 0), 2 * sum * 2 * exp(1.0));
    assert_null(ls_thread()->scope->tape.first);
}

/* A loss is kept through two scopes at once, past tensors that are created and freed in between. */
TEST(test_a_loss_kept_twice) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 3);
    ls_scope *middle = ls_scope_begin();
    ls_tensor *between = toy_square(x);
    ls_scope *inner = ls_scope_begin();
    ls_tensor *loss = ls_keep(ls_keep(toy_sum(toy_mul(between, x))));
    assert_int_equal(ls_scope_end(inner), LS_OK);
    assert_int_equal(ls_scope_end(middle), LS_OK);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_near(GRAD(x, 0), 27);
    assert_int_equal(x->leaf->uses, 0);
}

TEST(test_a_loss_without_a_scope) {
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 0.5);
    scope = ls_scope_begin();
    ls_tensor *loss = ls_keep(toy_sum(toy_square(x)));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_near(GRAD(x, 0), 1);
    ls_release(loss);
    ls_release(x);
    assert_null(ls_thread()->root.tape.first);
    scope = ls_scope_begin();
}

enum { LONG = 100000 };

static ls_tensor *long_chain(ls_tensor *x) {
    for (int i = 0; i < LONG; i++) {
        ls_tensor *next = toy_add(x, NULL);
        if (i > 0) {
            ls_release(x); /* so that only the next node holds a reference to it */
        }
        x = next;
    }
    return x;
}

TEST(test_long_chains_take_no_deep_stack) {
    ls_tensor *x = toy_leaf(LS_SHAPE(1), LS_F32, 1);
    ls_release(long_chain(x));
    assert_int_equal(x->leaf->uses, 0);
    assert_int_equal(ls_backward(long_chain(x)), LS_OK);
    assert_near(GRAD(x, 0), 1);
    ls_scope *inner = ls_scope_begin();
    (void)long_chain(x);
    assert_int_equal(ls_scope_end(inner), LS_OK);
    assert_int_equal(x->leaf->uses, 0);
}

TEST(test_many_inputs) {
    enum { COUNT = 150 };
    ls_tensor *inputs[COUNT];
    for (int i = 0; i < COUNT; i++) {
        inputs[i] = i % 3 == 0 ? toy_leaf(LS_SHAPE(2), LS_F64, i) : ls_full(LS_SHAPE(2), LS_F64, i);
    }
    ls_tensor *sum = ls_apply(&toy_join_op, inputs, COUNT, NULL);
    assert_near(ls_at(sum, (const int64_t[]){0}), COUNT * (COUNT - 1) / 2.0);
    assert_int_equal(ls_backward(toy_sum(toy_add(sum, sum))), LS_OK);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(ls_grad(inputs[i]) != NULL, i % 3 == 0);
        if (i % 3 == 0) {
            assert_near(GRAD(inputs[i], 1), 2);
            assert_int_equal(inputs[i]->leaf->uses, 0);
        }
    }
}

TEST(test_leaves_that_change_their_mind) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 3);
    ls_tensor *late = ls_ones(LS_SHAPE(2), LS_F64);
    ls_tensor *loss = toy_sum(toy_mul(x, late));
    assert_int_equal(ls_set_requires_grad(late, true),
                     LS_OK); /* set after the tensor was used, so this use gives no gradient */
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_null(ls_grad(late));
    assert_int_equal(late->leaf->uses, 0);
    loss = toy_sum(toy_mul(x, late));
    assert_int_equal(ls_set_requires_grad(x, false), LS_OK); /* frozen before the pass; its gradient remains */
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_near(GRAD(x, 0), 1);
    assert_near(GRAD(late, 0), 3);
    assert_int_equal(x->leaf->uses, 0);
    assert_false(ls_requires_grad(toy_square(x)));
    assert_int_equal(ls_set_requires_grad(ls_ones(LS_SHAPE(1), LS_I32), true), LS_ERR_ARGUMENT);
    assert_int_equal(ls_set_requires_grad(NULL, true), LS_ERR_ARGUMENT);
    assert_false(ls_requires_grad(NULL));
    assert_null(ls_grad(NULL));
    ls_zero_grad(NULL);
}

TEST(test_results_are_not_changed_in_place) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 3);
    ls_tensor *y = toy_square(x);
    const bool before = ls_no_grad(true);
    assert_int_equal(ls_fill(y, 0), LS_ERR_STATE);
    assert_int_equal(ls_copy_into(y, x), LS_ERR_STATE);
    assert_int_equal(ls_backward(toy_sum(x)), LS_ERR_STATE);
    (void)ls_no_grad(before);
    assert_int_equal(ls_backward(toy_sum(y)), LS_OK);
    (void)ls_no_grad(true);
    assert_int_equal(ls_fill(y, 0), LS_OK); /* the node of y was already walked, so no node needs the value */
    (void)ls_no_grad(before);
}

TEST(test_a_failing_rule_leaves_things_in_order) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 3);
    ls_tensor *w = toy_leaf(LS_SHAPE(2), LS_F64, 2);
    ls_scope *inner = ls_scope_begin();
    ls_tensor *loss = toy_sum(toy_mul(toy_unary(&toy_fail_op, toy_square(x), 0), w));
    toy_fails = true;
    assert_int_equal(ls_backward(loss), LS_ERR_UNSUPPORTED);
    assert_string_equal(ls_error_message(), "toy_fail: as asked");
    toy_fails = false;
    assert_null(ls_grad(w)); /* the first gradient of w was added in the pass that failed */
    assert_null(ls_grad(x));
    assert_int_equal(ls_scope_end(inner), LS_ERR_UNSUPPORTED);
    assert_int_equal(x->leaf->uses + w->leaf->uses, 0);
    assert_int_equal(ls_backward(toy_sum(toy_mul(toy_unary(&toy_fail_op, toy_square(x), 0), w))), LS_OK);
    assert_near(GRAD(x, 0), 12);
    assert_near(GRAD(w, 0), 9);
}

static ls_status training_step(ls_tensor *w, ls_tensor *x) {
    ls_scope *step = ls_scope_begin();
    if (step == NULL) {
        return ls_error_status();
    }
    ls_tensor *loss = toy_sum(toy_square(toy_add(toy_mul(toy_exp(w), x), toy_sum(w))));
    const ls_status passed = ls_backward(toy_mul(loss, loss));
    ls_zero_grad(w);
    const ls_status ended = ls_scope_end(step);
    return passed != LS_OK ? passed : ended;
}

TEST(test_the_steady_state_allocates_nothing) {
#ifdef LS_SANITIZED
    skip(); /* under a sanitizer nothing is cached */
#endif
    test_allocator allocator;
    assert_int_equal(ls_scope_end(scope), LS_OK);
    test_allocator_start(&allocator);
    ls_tensor *w = toy_leaf(LS_SHAPE(30), LS_F32, 0.01);
    ls_tensor *x = ls_ones(LS_SHAPE(8, 30), LS_F32);
    for (int i = 0; i < 105; i++) {
        if (i == 5) {
            atomic_store(&allocator.calls, 0);
        }
        assert_int_equal(training_step(w, x), LS_OK);
    }
    assert_int_equal(atomic_load(&allocator.calls), 0);
    ls_release(w);
    ls_release(x);
    assert_int_equal(test_allocator_stop(&allocator), 0);
    scope = ls_scope_begin();
}

TEST(test_every_failing_allocation_is_an_error) {
    test_allocator allocator;
    assert_int_equal(ls_scope_end(scope), LS_OK);
    bool worked = false;
    for (long fail = 0; fail < 1000 && !worked; fail++) {
        test_allocator_start(&allocator);
        atomic_store(&allocator.fail_once, fail);
        ls_tensor *w = toy_leaf(LS_SHAPE(30), LS_F32, 0.01);
        ls_tensor *x = w != NULL ? ls_ones(LS_SHAPE(8, 30), LS_F32) : NULL;
        const ls_status status = x != NULL ? training_step(w, x) : LS_ERR_MEMORY;
        assert_true(status == LS_ERR_MEMORY || status == LS_OK);
        worked = status == LS_OK && atomic_load(&allocator.calls) <= fail;
        ls_release(x);
        ls_release(w);
        assert_int_equal(test_allocator_stop(&allocator), 0);
    }
    assert_true(worked);
    scope = ls_scope_begin();
}

TEST(test_a_thread_may_end_with_a_tape) {
    test_allocator allocator;
    assert_int_equal(ls_scope_end(scope), LS_OK);
    test_allocator_start(&allocator);
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 3);
    scope = ls_scope_begin();
    ls_tensor *loss = ls_keep(toy_sum(toy_exp(x)));
    (void)toy_send(x, 1);
    (void)ls_scope_begin();
    (void)toy_square(x);
    ls_thread_end();
    assert_int_equal(x->leaf->uses, 0);
    expect_refusal(loss, LS_ERR_STATE, "used up");
    ls_release(loss);
    ls_release(x);
    assert_int_equal(test_allocator_stop(&allocator), 0);
    scope = ls_scope_begin();
}

#define ENGINE_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

/* The pass changes x's gradient while it reads the initial gradient, which is the same tensor or shares its memory. */
SCOPED_TEST(test_initial_gradients_that_are_gradients) {
    for (int shared = 0; shared < 2; shared++) {
        ls_tensor *x = ls_from(LS_SHAPE(2), LS_F32, (float[]){3, 5});
        ls_tensor *w = ls_from(LS_SHAPE(2), LS_F32, (float[]){2, 2});
        assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
        assert_int_equal(ls_set_requires_grad(w, true), LS_OK);
        assert_int_equal(ls_backward(ls_sum(x)), LS_OK);
        ls_tensor *y = ls_add(ls_mul(x, w), ls_mul(x, w));
        ls_tensor *gradient = shared ? ls_detach(ls_grad(x)) : ls_grad(x);
        assert_int_equal(ls_backward_with(y, &(ls_backward_options){.gradient = gradient}), LS_OK);
        assert_true(ls_equal(ls_grad(x), ls_full(LS_SHAPE(2), LS_F32, 5)));
        assert_true(ls_equal(ls_grad(w), ls_from(LS_SHAPE(2), LS_F32, (float[]){6, 10})));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENGINE_TEST(test_gradients_of_a_chain),
        ENGINE_TEST(test_a_result_used_many_times),
        ENGINE_TEST(test_initial_gradients_that_are_gradients),
        ENGINE_TEST(test_one_leaf_as_both_inputs),
        ENGINE_TEST(test_gradients_of_broadcast_inputs),
        ENGINE_TEST(test_gradients_that_are_views),
        ENGINE_TEST(test_sinks_gather_with_all_else),
        ENGINE_TEST(test_gradients_add_up_over_passes),
        ENGINE_TEST(test_gradients_in_a_flat_buffer),
        ENGINE_TEST(test_half_precision_gradients),
        ENGINE_TEST(test_what_is_recorded),
        ENGINE_TEST(test_a_start_other_than_one),
        ENGINE_TEST(test_a_start_whose_operation_failed),
        ENGINE_TEST(test_losses_that_are_refused),
        ENGINE_TEST(test_where_history_ends),
        ENGINE_TEST(test_recording_on_and_off),
        ENGINE_TEST(test_a_missing_loss_tells_the_first_error),
        ENGINE_TEST(test_missing_inputs),
        ENGINE_TEST(test_a_tape_is_walked_once),
        ENGINE_TEST(test_keeping_the_tape),
        ENGINE_TEST(test_intermediate_results_may_be_released),
        ENGINE_TEST(test_a_kept_loss_takes_its_tape_along),
        ENGINE_TEST(test_a_loss_kept_twice),
        ENGINE_TEST(test_a_loss_without_a_scope),
        ENGINE_TEST(test_long_chains_take_no_deep_stack),
        ENGINE_TEST(test_many_inputs),
        ENGINE_TEST(test_leaves_that_change_their_mind),
        ENGINE_TEST(test_results_are_not_changed_in_place),
        ENGINE_TEST(test_a_failing_rule_leaves_things_in_order),
        ENGINE_TEST(test_the_steady_state_allocates_nothing),
        ENGINE_TEST(test_every_failing_allocation_is_an_error),
        ENGINE_TEST(test_a_thread_may_end_with_a_tape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
