/*
 * The gradient-check table: every row of every family of operations, compared with central differences. An operation
 * that has a gradient, but that no case runs, fails the test.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/gradcheck_cases.h"

enum { MAX_ROWS = 512 };

static const ls_op *recorded[MAX_ROWS];
static int recorded_count;

static void note_row(const ls_op *op) {
    for (int i = 0; i < recorded_count; i++) {
        if (recorded[i] == op) {
            return;
        }
    }
    assert_true(recorded_count < MAX_ROWS);
    recorded[recorded_count++] = op;
}
static void check_trial(trial *t) {
    if (ls_gradcheck(run_trial, t->leaves, t->count, t, &t->row->options) != LS_OK) {
        fail_msg("%s, round %d, variant %.12s: %s", t->row->name, t->round, t->variant, ls_error_message());
    }
    assert_non_null(run_trial(t->leaves, t->count, t));
    for (ls_tape_link *link = ls_thread()->scope->tape.first; link != NULL; link = link->next) {
        note_row(((const ls_node *)link)->op);
    }
}

TEST(test_elementwise) {
    CHECK_CASES(elementwise_cases, check_trial);
}

TEST(test_reductions) {
    CHECK_CASES(reduce_cases, check_trial);
}

TEST(test_shapes) {
    CHECK_CASES(shape_cases, check_trial);
}

TEST(test_matrices_and_norms) {
    CHECK_CASES(matrix_cases, check_trial);
}

TEST(test_images) {
    CHECK_CASES(image_cases, check_trial);
}

TEST(test_losses) {
    CHECK_CASES(loss_cases, check_trial);
}

/* Must run after the other tests. */
static void test_every_row_has_a_case(void **state) {
    int missing = 0, differentiable = 0;
    (void)state;
    for (int family = 0; ls_op_families[family] != NULL; family++) {
        for (const ls_op *const *row = ls_op_families[family]; *row != NULL; row++) {
            bool found = (*row)->backward == NULL; /* nothing to check */
            differentiable += !found;
            for (int i = 0; i < recorded_count && !found; i++) {
                found = recorded[i] == *row;
            }
            if (!found) {
                print_error("no case for %s (family %d, row %td)\n", (*row)->name, family,
                            row - ls_op_families[family]);
                missing++;
            }
        }
    }
    assert_int_equal(missing, 0);
    assert_true(differentiable > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elementwise),          cmocka_unit_test(test_reductions), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_matrices_and_norms),   cmocka_unit_test(test_images),     cmocka_unit_test(test_losses),
        cmocka_unit_test(test_every_row_has_a_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
