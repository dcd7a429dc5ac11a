/*
 * Gradients are constants on the tape: a loss that depends on a gradient is refused. Reading a gradient, or using it in
 * an optimizer step, is allowed.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <lockstep/lockstep.h>

static ls_scope *scope;

static int begin(void **state) {
    (void)state;
    scope = ls_scope_begin();
    return scope == NULL;
}

static int end(void **state) {
    (void)state;
    return ls_scope_end(scope) != LS_OK;
}

static ls_tensor *leaf(double value) {
    ls_tensor *x = ls_full(LS_SHAPE(3), LS_F64, value);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    return x;
}

/* Returns x with the gradient of sum(x^3). */
static ls_tensor *leaf_with_gradient(double value) {
    ls_tensor *x = leaf(value);
    assert_int_equal(ls_backward(ls_sum(ls_mul(ls_square(x), x))), LS_OK);
    return x;
}

/* The refusal is the scope's first failure, so it has its own scope. */
static void expect_refused(ls_tensor *(*loss)(ls_tensor *x, ls_tensor *w)) {
    ls_tensor *x = leaf_with_gradient(2);
    ls_tensor *w = leaf(1);
    ls_scope *inner = ls_scope_begin();
    assert_int_equal(ls_backward(loss(x, w)), LS_ERR_UNSUPPORTED);
    expect_message("[3], is a gradient (ls_grad) or was computed from one");
    expect_message("ls_detach");
    assert_int_equal(ls_scope_end(inner), LS_ERR_UNSUPPORTED);
    assert_null(ls_grad(w)); /* the failed pass leaves no gradient */
}

static ls_tensor *direct(ls_tensor *x, ls_tensor *w) {
    (void)w;
    return ls_sum(ls_mul(x, ls_grad(x)));
}

static ls_tensor *of_another_leaf(ls_tensor *x, ls_tensor *w) {
    return ls_sum(ls_mul(w, ls_grad(x)));
}

static ls_tensor *computed(ls_tensor *x, ls_tensor *w) {
    return ls_sum(ls_add(w, ls_mul(ls_square(ls_grad(x)), 0.5)));
}

static ls_tensor *viewed(ls_tensor *x, ls_tensor *w) {
    ls_tensor *view = ls_reshape(ls_narrow(ls_contiguous(ls_to(ls_grad(x), LS_F64)), 0, 0, 3), LS_SHAPE(3));
    return ls_sum(ls_mul(w, ls_exp(view)));
}

static ls_tensor *target_of_loss(ls_tensor *x, ls_tensor *w) {
    return ls_mse_loss(w, ls_clone(ls_grad(x)), LS_LOSS_SUM);
}

TEST(test_losses_of_gradients_are_refused) {
    expect_refused(direct);
    expect_refused(of_another_leaf);
    expect_refused(computed);
    expect_refused(viewed);
    expect_refused(target_of_loss);
}

/* The gradient of a sum is 1 whatever the values of the leaves. */
TEST(test_gradients_that_depend_on_no_leaf_are_constants) {
    ls_tensor *x = leaf(2);
    ls_tensor *factor = ls_full(LS_SHAPE(3), LS_F64, 5);
    assert_int_equal(ls_backward(ls_sum(ls_mul(x, factor))), LS_OK);
    assert_int_equal(ls_backward(ls_sum(ls_mul(x, ls_clone(ls_grad(x))))), LS_OK);
    assert_true(ls_allclose(ls_grad(x), ls_full(LS_SHAPE(3), LS_F64, 10), 0, 0));
    /* Once a gradient depends on the leaves, adding to it does not change this. ls_zero_grad makes it a constant
     * again. */
    assert_int_equal(ls_backward(ls_sum(ls_square(x))), LS_OK);
    assert_int_equal(ls_backward(ls_sum(x)), LS_OK);
    ls_scope *inner = ls_scope_begin();
    assert_int_equal(ls_backward(ls_sum(ls_mul(x, ls_grad(x)))), LS_ERR_UNSUPPORTED);
    assert_int_equal(ls_scope_end(inner), LS_ERR_UNSUPPORTED);
    ls_zero_grad(x);
    assert_int_equal(ls_backward(ls_sum(x)), LS_OK);
    assert_int_equal(ls_backward(ls_sum(ls_mul(x, ls_clone(ls_grad(x))))), LS_OK);
}

TEST(test_a_detached_gradient_is_a_constant) {
    ls_tensor *x = leaf_with_gradient(2);
    ls_tensor *gradient = ls_detach(ls_clone(ls_grad(x)));
    ls_zero_grad(x);
    assert_int_equal(ls_backward(ls_sum(ls_mul(x, gradient))), LS_OK);
    assert_true(ls_allclose(ls_grad(x), ls_full(LS_SHAPE(3), LS_F64, 12), 0, 0));
}

/* Norms for monitoring, hand-written clipping, and hand-written steps. */
TEST(test_what_is_not_differentiated_may_use_gradients) {
    ls_tensor *x = leaf_with_gradient(2);
    for (int step = 0; step < 2; step++) {
        assert_true(ls_item(ls_norm(ls_grad(x))) > 0);
        const bool before = ls_no_grad(true);
        ls_tensor *clipped = ls_clamp(ls_grad(x), -1, 1);
        x = ls_sub(x, ls_mul(clipped, 0.25));
        (void)ls_no_grad(before);
        assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
        ls_tensor *loss = ls_sum(ls_square(x));
        ls_tensor *shown = ls_add(ls_detach(loss), ls_norm(ls_grad(leaf_with_gradient(3))));
        assert_true(ls_item(shown) > 0);
        assert_int_equal(ls_backward(loss), LS_OK);
    }
    assert_true(ls_allclose(ls_grad(x), ls_full(LS_SHAPE(3), LS_F64, 3), 0, 0));
    /* A step without ls_no_grad, but on a detached parameter. */
    ls_tensor *next = ls_sub(ls_detach(x), ls_mul(ls_grad(x), 0.5));
    assert_int_equal(ls_set_requires_grad(next, true), LS_OK);
    assert_int_equal(ls_backward(ls_sum(ls_square(next))), LS_OK);
    /* A choice by the gradient's sign has no derivative. */
    ls_tensor *positive = ls_gt(ls_grad(x), 0);
    assert_int_equal(ls_backward(ls_sum(ls_where(positive, next, ls_neg(next)))), LS_OK);
    /* A gradient is the start of a backward pass. */
    const ls_backward_options begins = {.gradient = ls_grad(x)};
    assert_int_equal(ls_backward_with(ls_square(next), &begins), LS_OK);
    /* Values computed from a leaf and a gradient, without a backward pass. */
    assert_true(ls_item(ls_sum(ls_add(x, ls_mul(ls_grad(x), 0.1)))) != 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_losses_of_gradients_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_gradients_that_depend_on_no_leaf_are_constants, begin, end),
        cmocka_unit_test_setup_teardown(test_a_detached_gradient_is_a_constant, begin, end),
        cmocka_unit_test_setup_teardown(test_what_is_not_differentiated_may_use_gradients, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
