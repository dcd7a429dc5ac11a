/*
 * The end of a scope restores its thread's modes: ls_no_grad and ls_autocast.
 *
 * devices: cpu shadow
 */
#include "tests/support/unit.h"

#include <lockstep/autograd.h>

/* Returns the thread's modes as one number. */
static int modes(void) {
    const bool no_grad = ls_no_grad(false);
    const ls_dtype dtype = ls_autocast(LS_F32);
    (void)ls_no_grad(no_grad);
    (void)ls_autocast(dtype);
    return (no_grad ? 100 : 0) + (int)dtype;
}

TEST(test_the_end_of_a_scope_restores_the_modes) {
    const int before = modes();
    ls_scope *outer = ls_scope_begin();
    assert_int_equal(ls_no_grad(true), false);
    const int in_outer = modes();
    ls_scope *inner = ls_scope_begin();
    assert_int_equal(modes(), in_outer);
    assert_int_equal(ls_no_grad(false), true);
    assert_int_equal(ls_autocast(LS_BF16), LS_F32);
    assert_int_equal(ls_scope_end(outer), LS_ERR_STATE); /* not the innermost */
    assert_int_equal(modes(), (int)LS_BF16);
    assert_null(ls_add(ls_ones(LS_SHAPE(2), LS_F32), ls_ones(LS_SHAPE(3), LS_F32)));
    assert_int_equal(ls_scope_end(inner), LS_ERR_SHAPE);
    assert_int_equal(modes(), in_outer);
    assert_int_equal(ls_scope_end(outer), LS_OK);
    assert_int_equal(modes(), before);
}

/* Operations after the scope are recorded again, and a mode that was on outside the scope stays on. */
TEST(test_recording_goes_on_after_a_scope) {
    ls_scope *all = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(2), LS_F32);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    ls_scope *scope = ls_scope_begin();
    (void)ls_no_grad(true);
    assert_false(ls_requires_grad(ls_exp(x)));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_true(ls_requires_grad(ls_exp(x)));
    (void)ls_no_grad(true);
    scope = ls_scope_begin();
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_false(ls_requires_grad(ls_exp(x)));
    assert_int_equal(ls_scope_end(all), LS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_end_of_a_scope_restores_the_modes),
                                       cmocka_unit_test(test_recording_goes_on_after_a_scope)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
