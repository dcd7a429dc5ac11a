/*
 * Calls to modules with several inputs and outputs, their checks, and access to children.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <lockstep/nn.h>
#include <lockstep/parallel.h>

/* ---- a recurrent cell -------------------------------------------------------------------------------------------- */

typedef struct cell_state {
    ls_tensor *weight;
} cell_state;

/* Computes h' = x * weight + h and h' * h' from x [n, 2] and the previous hidden state h [n, 2], which may be NULL. */
static ls_status cell_forward(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                              int output_count) {
    const cell_state *cell = ls_module_state(self);
    assert_int_equal(input_count, 2);
    assert_int_equal(output_count, 2);
    ls_tensor *hidden = ls_mul(inputs[0], cell->weight);
    hidden = inputs[1] != NULL ? ls_add(hidden, inputs[1]) : hidden;
    outputs[0] = hidden;
    outputs[1] = ls_square(hidden);
    return outputs[1] != NULL ? LS_OK : ls_error_status();
}

static const ls_module_type cell_type = {.name = "Cell",
                                         .state_size = sizeof(cell_state),
                                         .forward_many = cell_forward,
                                         .inputs = 2,
                                         .outputs = 2,
                                         .optional = 1U << 1};

static ls_module *cell_new(void) {
    ls_module *module = ls_module_new(&cell_type);
    cell_state *cell = ls_module_state(module);
    cell->weight = ls_module_add_parameter(module, "weight", ls_full(LS_SHAPE(2), LS_F32, 3));
    return ls_module_finish(module);
}

static ls_tensor *row(float a, float b) {
    return ls_from(LS_SHAPE(1, 2), LS_F32, (const float[]){a, b});
}

static void assert_row(const ls_tensor *is, float a, float b) {
    assert_non_null(is);
    assert_memory_equal(elements(is), ((const float[]){a, b}), 2 * sizeof(float));
}

SCOPED_TEST(test_several_inputs_and_outputs) {
    ls_module *cell = cell_new();
    ls_tensor *outputs[2];
    assert_int_equal(ls_forward_many(cell, (ls_tensor *[]){row(1, 2), NULL}, 2, outputs, 2), LS_OK);
    assert_row(outputs[0], 3, 6);
    assert_row(outputs[1], 9, 36);
    assert_int_equal(ls_forward_many(cell, (ls_tensor *[]){row(1, 1), outputs[0]}, 2, outputs, 2), LS_OK);
    assert_row(outputs[0], 6, 9);
    assert_int_equal(ls_backward(ls_add(ls_sum(outputs[0]), ls_sum(outputs[1]))), LS_OK);
    /* (1 + 2 h') (1 + x of the previous step) */
    assert_memory_equal(elements(ls_grad(ls_module_find(cell, "weight"))), ((const float[]){13 * 2, 19 * 3}),
                        2 * sizeof(float));
    ls_module_free(cell);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

TEST(test_wrong_numbers_are_refused) {
    ls_module *cell = cell_new();
    ls_module *linear = ls_nn_linear(2, 2);
    ls_module *chain = ls_sequential(ls_nn_linear(2, 2), cell_new());
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = row(1, 2);
    ls_tensor *outputs[2] = {x, x};
    assert_null(ls_forward(cell, x));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "Cell: this module takes 2 inputs and returns 2 outputs, but the call "
                                            "passes 1 and requests 1 (call it with ls_forward_many)");
    assert_int_equal(ls_forward_many(cell, (ls_tensor *[]){x, x}, 2, outputs, 1), LS_ERR_ARGUMENT);
    assert_null(outputs[0]);
    assert_int_equal(ls_forward_many(linear, (ls_tensor *[]){x, x}, 2, outputs, 2), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "Linear: this module takes 1 input and returns 1 output, but the call "
                                            "passes 2 and requests 2 (ls_forward_many)");
    assert_null(outputs[1]);
    assert_int_equal(ls_forward_many(linear, &x, -1, outputs, 1), LS_ERR_ARGUMENT);
    outputs[0] = x;
    assert_int_equal(ls_forward_many(linear, NULL, 1, outputs, 1), LS_ERR_ARGUMENT);
    assert_null(outputs[0]);
    assert_int_equal(ls_forward_many(linear, &x, 1, NULL, 1), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "ls_forward_many: the array of outputs is NULL");
    assert_null(ls_forward(chain, x));
    expect_message("Cell: this module takes 2 inputs");
    ls_tensor *both[3] = {x, x, x};
    assert_int_equal(ls_forward_many(cell, both, 2, both + 1, 2), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "ls_forward_many: inputs and outputs must be different arrays");
    assert_ptr_equal(both[1], x);
    assert_int_equal(ls_scope_end(scope), LS_ERR_ARGUMENT);
    assert_null(ls_forward(NULL, NULL));
    ls_module_free(cell);
    ls_module_free(linear);
    ls_module_free(chain);
}

TEST(test_missing_and_foreign_inputs_are_refused) {
    ls_module *cell = cell_new();
    ls_tensor *outputs[2];
    ls_tensor *x = row(1, 2);
    ls_scope *scope = ls_scope_begin();
    assert_int_equal(ls_forward_many(cell, (ls_tensor *[]){NULL, x}, 2, outputs, 2), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "Cell: input 0 is NULL");
    assert_int_equal(ls_scope_end(scope), LS_ERR_ARGUMENT);
    scope = ls_scope_begin(); /* the operation that should have created the input has set the error */
    ls_tensor *none = ls_matmul(x, x);
    assert_null(none);
    assert_int_equal(ls_forward_many(cell, (ls_tensor *[]){none, x}, 2, outputs, 2), LS_ERR_SHAPE);
    expect_message("ls_matmul: ");
    assert_int_equal(ls_scope_end(scope), LS_ERR_SHAPE);
    scope = ls_scope_begin();
    ls_release(x);
    assert_int_equal(ls_forward_many(cell, (ls_tensor *[]){row(1, 2), x}, 2, outputs, 2), LS_ERR_STATE);
    expect_message("Cell: argument 2 was released");
    assert_int_equal(ls_scope_end(scope), LS_ERR_STATE);
    ls_module_free(cell);
}

/* The mistake of a forward function: 0 makes none, 1 fails without a message, 2 returns NULL, 3 returns a released
 * tensor. */
static int fault;

static ls_status faulty_many(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                             int output_count) {
    (void)self, (void)input_count;
    for (int i = 0; i < output_count; i++) {
        outputs[i] = inputs[0];
    }
    if (fault == 2) {
        outputs[output_count - 1] = NULL;
    } else if (fault == 3) {
        ls_tensor *released = ls_ones(LS_SHAPE(1), LS_F32);
        ls_release(released);
        outputs[0] = released;
    } else if (fault == 4) {
        outputs[1] = ls_matmul(inputs[0], ls_ones(LS_SHAPE(7, 7), LS_F64));
    }
    return fault == 1 ? LS_ERR_UNSUPPORTED : LS_OK;
}

static ls_tensor *faulty_one(ls_module *self, ls_tensor *input) {
    (void)self;
    return fault == 2 ? NULL : input;
}

TEST(test_faults_of_forward_functions_have_sentences) {
    static const ls_module_type many = {.name = "Faulty", .forward_many = faulty_many};
    static const ls_module_type one = {.name = "Faulty", .forward = faulty_one};
    static const struct {
        ls_status status;
        const char *text;
    } wants[] = {{LS_OK, ""},
                 {LS_ERR_UNSUPPORTED, "Faulty: its forward function failed with LS_ERR_UNSUPPORTED"},
                 {LS_ERR_STATE, "Faulty: its forward function returned no output 2"},
                 {LS_ERR_STATE, "Faulty: the tensor was released by ls_release, or was freed with its last owner"},
                 {LS_ERR_SHAPE, "ls_matmul: "}};
    ls_module *module = ls_module_new(&many);
    for (fault = 0; fault < 5; fault++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *outputs[3];
        assert_int_equal(ls_forward_many(module, (ls_tensor *[]){row(1, 2)}, 1, outputs, 3), wants[fault].status);
        assert_true((outputs[0] != NULL) == (fault == 0));
        assert_true(fault == 0 || strncmp(ls_error_message(), wants[fault].text, strlen(wants[fault].text)) == 0);
        assert_int_equal(ls_scope_end(scope), wants[fault].status);
    }
    ls_module_free(module);
    fault = 2;
    module = ls_module_new(&one);
    ls_scope *scope = ls_scope_begin();
    assert_null(ls_forward(module, row(1, 2)));
    assert_string_equal(ls_error_message(), "Faulty: its forward function returned no output 0");
    assert_int_equal(ls_scope_end(scope), LS_ERR_STATE);
    ls_module_free(module);
}

TEST(test_a_type_has_one_forward_function) {
    assert_null(ls_module_new(&(ls_module_type){.name = "None"}));
    assert_string_equal(ls_error_message(), "ls_module_new: the type None has no forward function");
    assert_null(ls_module_new(&(ls_module_type){.name = "Both", .forward = faulty_one, .forward_many = faulty_many}));
    assert_string_equal(ls_error_message(),
                        "ls_module_new: the type Both has both forward and forward_many: it must have one of them");
    assert_null(ls_module_new(&(ls_module_type){.name = "Two", .forward = faulty_one, .inputs = 2}));
    assert_string_equal(ls_error_message(),
                        "ls_module_new: the type Two has 2 inputs and 0 outputs, which forward_many is for");
    assert_null(ls_module_new(NULL));
}

/* ---- children ---------------------------------------------------------------------------------------------------- */

TEST(test_children) {
    ls_module *inner = ls_sequential(ls_nn_linear(3, 2), ls_nn_tanh());
    ls_module *model = ls_sequential(ls_nn_linear(4, 3), ls_nn_relu(), inner);
    assert_string_equal(ls_module_type_name(model), "Sequential");
    assert_int_equal(ls_module_child_count(model), 3);
    assert_ptr_equal(ls_module_child(model, 2), inner);
    assert_string_equal(ls_module_child_name(model, 2), "2");
    assert_string_equal(ls_module_type_name(ls_module_child(model, 0)), "Linear");
    assert_int_equal(ls_module_child_count(ls_module_child(model, 0)), 0);
    assert_null(ls_module_child(model, 3));
    assert_null(ls_module_child(model, -1));
    assert_null(ls_module_child_name(model, 3));
    assert_ptr_equal(ls_module_find_child(model, "2.1"), ls_module_child(inner, 1));
    assert_ptr_equal(ls_module_find_child(model, ""), model);
    assert_null(ls_module_find_child(model, "2.1.weight"));
    assert_null(ls_module_find_child(model, "2.2"));
    assert_null(ls_module_find_child(model, "21"));
    assert_null(ls_module_find_child(model, "2."));
    assert_null(ls_module_find_child(model, NULL));
    assert_null(ls_module_find_child(NULL, "2"));
    assert_null(ls_module_type_name(NULL));
    assert_int_equal(ls_module_child_count(NULL), 0);
    ls_comm *comm = ls_init(NULL);
    assert_non_null(comm);
    model = ls_data_parallel(model, comm, NULL); /* the child of a wrapper has no name */
    assert_string_equal(ls_module_child_name(model, 0), "");
    assert_ptr_equal(ls_module_find_child(model, "2.0"), ls_module_child(inner, 0));
    ls_module_free(model);
    assert_int_equal(ls_finalize(), LS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_several_inputs_and_outputs),
        cmocka_unit_test(test_wrong_numbers_are_refused),
        cmocka_unit_test(test_missing_and_foreign_inputs_are_refused),
        cmocka_unit_test(test_faults_of_forward_functions_have_sentences),
        cmocka_unit_test(test_a_type_has_one_forward_function),
        cmocka_unit_test(test_children),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
