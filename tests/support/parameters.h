/* For tests of optimizers: a model that consists of parameters of several sizes, and the gradients for each step. */
#ifndef LS_TESTS_SUPPORT_PARAMETERS_H
#define LS_TESTS_SUPPORT_PARAMETERS_H

#include <lockstep/optim.h>

#include "tests/support/numbers.h"

enum { PARAMETERS = 5 };

static const int64_t sizes[PARAMETERS] = {3, 17, 1, 40, 16};

static inline ls_tensor *parameters_forward(ls_module *self, ls_tensor *input) {
    (void)self;
    return input;
}

/* Makes a model. The initial value of element `at` of parameter `index` is a function of `at` and `index`. */
static inline ls_module *make_model(ls_dtype dtype) {
    static const ls_module_type type = {.name = "Numbers", .forward = parameters_forward};
    static const char *const names[PARAMETERS] = {"a", "b", "c", "d", "e"};
    ls_module *model = ls_module_new(&type);
    for (int i = 0; i < PARAMETERS; i++) {
        ls_tensor *tensor = ls_empty(LS_SHAPE(sizes[i]), dtype);
        assert_non_null(tensor);
        for (int64_t at = 0; at < sizes[i]; at++) {
            numbers_set(tensor, at, ls_random_normal(1, (uint64_t)i, (uint64_t)at));
        }
        assert_non_null(ls_module_add_parameter(model, names[i], tensor));
    }
    model = ls_module_finish(model);
    assert_non_null(model);
    return model;
}

/* Returns the gradient of the element in step `step`. */
static inline double gradient_at(ls_dtype dtype, int step, int index, int64_t at) {
    const double number = ls_random_normal(2, (uint64_t)(step * PARAMETERS + index), (uint64_t)at);
    return dtype == LS_F32 ? (double)(float)number : number;
}

/* Runs backward from sum(parameter * g), so that the parameter's gradient is exactly g. */
static inline void give_gradient(ls_tensor *parameter, int step, int index) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *gradient = ls_empty(ls_shape_of(parameter), ls_dtype_of(parameter));
    for (int64_t at = 0; at < ls_numel(parameter); at++) {
        numbers_set(gradient, at, gradient_at(ls_dtype_of(parameter), step, index, at));
    }
    assert_int_equal(ls_backward(ls_sum(ls_mul(parameter, gradient))), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

#endif
