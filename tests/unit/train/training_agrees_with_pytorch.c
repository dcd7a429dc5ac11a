/*
 * 200 training steps with the weights and batches of tests/fixtures/make_training.py: at every step, the loss agrees
 * with PyTorch's to within 1e-4.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/optim.h>

#include "tests/support/operations.h"

enum { STEPS = 200, BATCH = 16, INPUTS = 20, HIDDEN = 32, CLASSES = 10, WEIGHT_SEED = 7, DATA_SEED = 8 };

FIXTURES(fixtures, "training.txt")

/* Sets element i to (2 u - 1) bound, where u is number i of the stream. */
static void set_uniform(ls_tensor *tensor, uint64_t seed, uint64_t stream, double bound) {
    float *values = elements(tensor);
    for (int64_t i = 0; i < ls_numel(tensor); i++) {
        values[i] = (float)((2.0 * ls_random_uniform(seed, stream, (uint64_t)i) - 1.0) * bound);
    }
}

static ls_module *make_model(void) {
    ls_module *model = ls_sequential(ls_nn_linear(INPUTS, HIDDEN), ls_nn_relu(), ls_nn_linear(HIDDEN, CLASSES));
    assert_non_null(model);
    assert_int_equal(ls_module_parameter_count(model), 4);
    for (int i = 0; i < 4; i++) {
        set_uniform(ls_module_parameter(model, i), WEIGHT_SEED, (uint64_t)i, 1.0 / sqrt(i < 2 ? INPUTS : HIDDEN));
    }
    return model;
}

/* Returns the class of each row: the number of positive values among its first nine. */
static ls_tensor *classes_of(const ls_tensor *x) {
    ls_tensor *target = ls_empty(LS_SHAPE(BATCH), LS_I64);
    const float *values = elements(x);
    for (int row = 0; row < BATCH; row++) {
        int64_t positive = 0;
        for (int i = 0; i < 9; i++) {
            positive += values[row * INPUTS + i] > 0;
        }
        ((int64_t *)elements(target))[row] = positive;
    }
    return target;
}

static double train_step(ls_module *model, ls_optimizer *optimizer, int step) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_empty(LS_SHAPE(BATCH, INPUTS), LS_F32);
    set_uniform(x, DATA_SEED, (uint64_t)step, 1.0);
    ls_tensor *loss = ls_cross_entropy(ls_forward(model, x), classes_of(x), NULL);
    const double value = ls_item(loss);
    ls_optimizer_zero_grad(optimizer);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    return value;
}

static void check_training(const char *name, ls_module *model, ls_optimizer *optimizer) {
    const fixture *expected = fixture_find(fixtures, name);
    assert_int_equal(expected->count, STEPS);
    assert_non_null(optimizer);
    for (int step = 0; step < STEPS; step++) {
        const double loss = train_step(model, optimizer, step);
        const double right = expected->values[step];
        if (!(fabs(loss - right) <= 1e-4 * right)) {
            fail_msg("%s: the loss of step %d is %.9g, PyTorch's is %.9g", name, step, loss, right);
        }
    }
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

TEST(test_sgd_with_momentum) {
    ls_module *model = make_model();
    check_training("sgd", model, ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.9}));
}

TEST(test_adam) {
    ls_module *model = make_model();
    check_training("adam", model, ls_adam(model, &(ls_adam_options){.learning_rate = 0.01}));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd_with_momentum),
        cmocka_unit_test(test_adam),
    };
    return cmocka_run_group_tests(tests, fixtures_begin, fixtures_end);
}
