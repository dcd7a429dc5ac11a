/*
 * Models with weights from PyTorch: pytorch_NAME.safetensors contains the weights, pytorch_NAME_values.safetensors an
 * input and its output.
 */
#ifndef LS_TESTS_SUPPORT_WEIGHTS_H
#define LS_TESTS_SUPPORT_WEIGHTS_H

#include <lockstep/formats.h>
#include <lockstep/nn.h>

#include "tests/support/unit.h"

/* Checks the model, and takes ownership of it. */
static inline void check_weights(ls_module *model, const char *name, int parameters, int buffers) {
    char path[512];
    snprintf(path, sizeof path, LS_FIXTURES "/pytorch_%s.safetensors", name);
    assert_int_equal(ls_module_load(model, path), LS_OK);
    assert_int_equal(ls_module_parameter_count(model), parameters);
    assert_int_equal(ls_module_buffer_count(model), buffers);
    snprintf(path, sizeof path, LS_FIXTURES "/pytorch_%s_values.safetensors", name);
    ls_safetensors *values = ls_safetensors_load(path);
    assert_non_null(values);
    ls_module_train(model, false);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *y = ls_forward(model, ls_to_device(ls_safetensors_find(values, "x"), ls_default_device()));
    assert_non_null(y);
    assert_true(ls_allclose(y, ls_safetensors_find(values, "y"), 1e-4, 1e-6));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_safetensors_free(values);
    ls_module_free(model);
}

#endif
