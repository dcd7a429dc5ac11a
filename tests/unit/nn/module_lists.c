/*
 * Names in a module, errors of its children, and its lists after tensors or children were added later.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/formats.h>
#include <lockstep/nn.h>

#include "nn/module.h"
#include "tests/support/files.h"

static ls_tensor *table_forward(ls_module *self, ls_tensor *input) {
    return ls_matmul(input, ls_module_parameter(self, 0));
}

static const ls_module_type type = {.name = "Table", .forward = table_forward};

static ls_tensor *new_weight(void) {
    return ls_ones(LS_SHAPE(3, 2), LS_F32);
}

static ls_module *table_new(void) {
    ls_module *module = ls_module_new(&type);
    (void)ls_module_add_parameter(module, "weight", new_weight());
    return ls_module_finish(module);
}

/* Names of parameters, buffers and children are different. Only names of children may be empty. */
TEST(test_names_that_exist) {
    for (int i = 0; i < 5; i++) {
        ls_module *model = ls_module_new(&type);
        assert_non_null(ls_module_add_parameter(model, "a", new_weight()));
        assert_non_null(ls_module_add_buffer(model, "b", new_weight()));
        assert_non_null(ls_module_add_child(model, "c", ls_nn_relu()));
        assert_non_null(ls_module_add_child(model, "", ls_nn_relu()));
        assert_non_null(ls_module_add_child(model, "", table_new()));
        assert_int_equal(ls_module_parameter_count(model), 2);
        assert_string_equal(ls_module_parameter_name(model, 1), "weight");
        if (i < 3) {
            static const char *const names[] = {"a", "b", "c"};
            assert_null(i == 0   ? (void *)ls_module_add_child(model, names[i], ls_nn_relu())
                        : i == 1 ? (void *)ls_module_add_parameter(model, names[i], new_weight())
                                 : (void *)ls_module_add_buffer(model, names[i], new_weight()));
            expect_message(i == 0   ? "Table: a parameter named \"a\" exists already: choose another name"
                           : i == 1 ? "Table: a buffer named \"b\" exists already"
                                    : "Table: a child named \"c\" exists already");
        } else {
            assert_null(i == 3 ? ls_module_add_parameter(model, "", new_weight())
                               : ls_module_add_buffer(model, "", new_weight()));
            expect_message("Table: the name \"\" is not valid: names are not empty");
        }
        assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
        assert_null(ls_module_finish(model));
    }
    for (int i = 0; i < 2; i++) {
        ls_module *model = ls_module_new(&type);
        assert_null(ls_module_add_child(model, i == 0 ? "a.b" : NULL, ls_nn_relu()));
        expect_message(i == 0 ? "Table: the name \"a.b\" is not valid: names of children are strings without dots"
                              : "Table: the name NULL is not valid: names of children are strings without dots");
        assert_null(ls_module_finish(model));
    }
    assert_null(ls_sequential_named({"a", ls_nn_relu()}, {"a", ls_nn_tanh()}));
    expect_message("Sequential: a child named \"a\" exists already");
}

/* A module fails with the first error of a child that has failed, before or after the child was added. */
TEST(test_children_that_have_failed) {
    for (int later = 0; later < 2; later++) {
        ls_module *model = ls_module_new(&type), *child = ls_module_new(&type);
        if (later) {
            assert_ptr_equal(ls_module_add_child(model, "child", child), child);
        }
        assert_null(ls_module_add_parameter(child, "a.b", new_weight()));
        assert_null(ls_module_add_parameter(child, "c.d", new_weight()));
        assert_null(ls_nn_linear(-1, 2));
        if (!later) {
            assert_null(ls_module_add_child(model, "child", child));
            assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
            expect_message("the name \"a.b\" is not valid");
        }
        assert_null(ls_module_finish(model));
        expect_message("the name \"a.b\" is not valid");
    }
}

/* Tries an invalid addition. */
static void *add_refused(ls_module *model, int which) {
    ls_tensor *weight = ls_module_parameter(model, 0);
    switch (which) {
    case 0:
        return ls_module_add_child(model, "a.b", table_new());
    case 1:
        return ls_module_add_child(model, "0", table_new());
    case 2:
        return ls_module_add_parameter(model, "a.b", new_weight());
    case 3:
        return ls_module_add_buffer(model, "0", new_weight());
    case 4:
        return ls_module_add_buffer(model, "b", ls_transpose(weight, 0, 1));
    default:
        return ls_module_add_parameter(model, "p", ls_square(weight));
    }
}

/* A refused object does not become part of a module that was finished before. The later additions fail with the first
 * error, which names the cause. */
TEST(test_refused_additions) {
    static const char *const words[] = {"the name \"a.b\"",     "\"0\" exists already",           "the name \"a.b\"",
                                        "\"0\" exists already", "\"b\" [2, 3] is not contiguous", "is the result of"};
    for (int i = 0; i < 6; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_module *model = ls_sequential(table_new(), ls_nn_relu());
        const uint64_t hash = ls_module_hash(model);
        const char *name = ls_module_parameter_name(model, 0);
        assert_null(add_refused(model, i));
        const ls_status status = ls_error_status();
        expect_message(words[i]);
        for (int later = 0; later < 3; later++) {
            assert_null(ls_nn_linear(-1, 2));
            assert_null(later == 0   ? (void *)ls_module_add_child(model, "c", table_new())
                        : later == 1 ? (void *)ls_module_add_parameter(model, "d", new_weight())
                                     : (void *)ls_module_add_child(model, "itself", model));
            expect_error(ls_error_status(), status, words[i]);
        }
        assert_string_equal(name, "0.weight");
        assert_int_equal(ls_module_child_count(model), 2);
        assert_int_equal(ls_module_parameter_count(model), 1);
        assert_int_equal(ls_module_buffer_count(model), 0);
        assert_true(ls_module_hash(model) == hash);
        assert_int_equal(ls_size(ls_forward(model, ls_ones(LS_SHAPE(1, 3), LS_F32)), 1), 2);
        assert_int_equal(ls_module_save(model, test_path("refused"), NULL), LS_OK);
        ls_safetensors *file = ls_safetensors_load(test_path("refused"));
        assert_int_equal(ls_safetensors_count(file), 1);
        ls_safetensors_free(file);
        assert_null(ls_module_finish(model));
        expect_error(ls_error_status(), status, words[i]);
        (void)ls_scope_end(scope);
    }
}

/* A module keeps a refused child until it is freed, and does not become a part of that child. */
TEST(test_a_module_is_not_below_a_refused_child) {
    ls_module *model = ls_module_new(&type), *child = ls_module_new(&type);
    assert_null(ls_module_add_child(model, "a.b", child));
    assert_non_null(ls_module_add_child(child, "table", table_new()));
    assert_null(ls_module_add_child(child, "model", model));
    expect_message("\"model\" is a module that it is part of");
    assert_null(ls_module_finish(child));
}

/* The lists of a model contain objects that were added to a module in the model later. */
TEST(test_lists_of_models_that_grow) {
    ls_module *inner = ls_sequential(ls_nn_relu()), *shared = ls_module_retain(table_new());
    ls_module *model = ls_sequential(ls_sequential(inner), shared), *other = ls_sequential(shared, shared);
    assert_int_equal(ls_module_parameter_count(model), 1);
    assert_int_equal(ls_module_parameter_count(other), 1);
    assert_non_null(ls_module_add_child(inner, "late", table_new()));
    assert_non_null(ls_module_add_buffer(shared, "statistics", new_weight()));
    assert_int_equal(ls_module_parameter_count(model), 2);
    assert_string_equal(ls_module_parameter_name(model, 0), "0.0.late.weight");
    assert_int_equal(ls_module_buffer_count(model), 1);
    assert_int_equal(ls_module_buffer_count(other), 1);
    ls_module_free(other);
    assert_non_null(ls_module_add_buffer(shared, "more", new_weight()));
    ls_module_free(shared);
    assert_int_equal(ls_module_save(model, test_path("grown"), NULL), LS_OK);
    ls_safetensors *file = ls_safetensors_load(test_path("grown"));
    assert_non_null(ls_safetensors_find(file, "0.0.late.weight"));
    assert_non_null(ls_safetensors_find(file, "1.statistics"));
    assert_non_null(ls_safetensors_find(file, "1.more"));
    ls_safetensors_free(file);
    ls_module_free(model);
}

/* While an object uses a model's layout, the model keeps its lists. */
TEST(test_lists_that_are_kept) {
    ls_module *inner = ls_sequential(ls_nn_relu()), *model = ls_sequential(inner, table_new());
    ls_module *around = ls_sequential(model);
    assert_true(ls_module_keep_lists(model) && ls_module_keep_lists(model));
    assert_non_null(ls_module_add_buffer(inner, "cache", new_weight()));
    assert_non_null(ls_module_add_buffer(model, "cache", new_weight()));
    assert_non_null(ls_module_add_child(model, "tied", ls_module_child(model, 1)));
    assert_int_equal(ls_module_buffer_count(model), 0);
    assert_false(ls_module_has_grown(model));
    assert_int_equal(ls_module_save(model, test_path("kept"), NULL), LS_OK);
    assert_non_null(ls_module_add_parameter(inner, "weight", new_weight()));
    assert_true(ls_module_has_grown(model));
    assert_int_equal(ls_module_parameter_count(model), 1);
    assert_int_equal(ls_module_parameter_count(around), 2);
    assert_int_equal(ls_module_save(model, test_path("kept"), NULL), LS_ERR_STATE);
    expect_message(
        "ls_module_save: a layer was added to the model after ls_data_parallel, ls_outer_new or a recomputed");
    assert_int_equal(ls_module_save(around, test_path("kept"), NULL), LS_OK);
    ls_module_release_lists(model);
    assert_int_equal(ls_module_buffer_count(model), 0);
    assert_true(ls_module_has_grown(model));
    ls_module_release_lists(model);
    assert_false(ls_module_has_grown(model));
    assert_int_equal(ls_module_buffer_count(model), 2);
    assert_int_equal(ls_module_parameter_count(model), 2);
    assert_string_equal(ls_module_buffer_name(model, 0), "cache");
    assert_int_equal(ls_module_save(model, test_path("kept"), NULL), LS_OK);
    ls_module_free(around);
}

/* ls_module_load refuses a buffer that the tape may need, before it changes a parameter. */
TEST(test_load_into_a_result) {
    ls_module *model = ls_module_new(&type);
    ls_tensor *weight = ls_module_add_parameter(model, "weight", new_weight());
    ls_tensor *twice = ls_mul(weight, 2.0);
    assert_non_null(ls_module_add_buffer(model, "twice", twice));
    model = ls_module_finish(model);
    assert_non_null(model);
    const char *path = test_path("result");
    const ls_named saved[] = {{"weight", ls_full(LS_SHAPE(3, 2), LS_F32, 7)}, {"twice", new_weight()}};
    assert_int_equal(ls_safetensors_save(path, saved, 2, NULL), LS_OK);
    assert_int_equal(ls_module_load(model, path), LS_ERR_STATE);
    expect_message("is the result of a recorded operation");
    expect_message("(twice of the model)");
    assert_true(ls_at(weight, (int64_t[]){0, 0}) == 1);
    ls_module_free(model);
    ls_release(saved[0].tensor);
    ls_release(saved[1].tensor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_into_a_result),
        cmocka_unit_test(test_names_that_exist),
        cmocka_unit_test(test_children_that_have_failed),
        cmocka_unit_test(test_lists_of_models_that_grow),
        cmocka_unit_test(test_lists_that_are_kept),
        cmocka_unit_test(test_refused_additions),
        cmocka_unit_test(test_a_module_is_not_below_a_refused_child),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
