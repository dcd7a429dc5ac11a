/*
 * The state of optimizers, saved and restored into a new optimizer: interrupted training continues bit-identically.
 * State that does not match is refused, and everything stays unchanged.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <lockstep/formats.h>
#include <lockstep/optim.h>

#include <math.h>

#include "base/status.h"
#include "tests/support/allocator.h"
#include "tests/support/files.h"
#include "tests/support/optimizers.h"

enum { BEFORE = 4, AFTER = 4 };

static ls_module *make_model(void) {
    ls_seed(3);
    ls_module *model = ls_sequential(ls_nn_linear(5, 7), ls_nn_tanh(), ls_nn_linear(7, 3));
    assert_non_null(model);
    return model;
}

typedef struct problem {
    ls_module *model;
    int step;
} problem;

static ls_status loss_of_step(void *argument, double *value) {
    const problem *p = argument;
    ls_seed(100 +
            (uint64_t)p->step / 2); /* so that methods with a line search use the same function for several steps */
    ls_tensor *x = ls_randn(LS_SHAPE(6, 5), LS_F32);
    ls_tensor *loss = ls_mean(ls_square(ls_sub(ls_forward(p->model, x), ls_randn(LS_SHAPE(6, 3), LS_F32))));
    LS_TRY(ls_backward(loss));
    *value = ls_item(loss);
    return LS_OK;
}

static void train(ls_module *model, ls_optimizer *optimizer, int first, int last) {
    for (int step = first; step < last; step++) {
        problem p = {model, step};
        double loss;
        assert_int_equal(ls_optimizer_set_learning_rate(optimizer, -1, 0.1 / (1 + step)), LS_OK);
        assert_int_equal(ls_optimizer_step_closure(optimizer, loss_of_step, &p, &loss), LS_OK);
    }
}

/* Returns the hash of the parameters after all steps, with or without an interruption. */
static uint64_t trained(int kind, bool broken_off) {
    ls_module *model = make_model();
    ls_optimizer *optimizer = optimizer_make(kind, model);
    assert_non_null(optimizer);
    train(model, optimizer, 0, BEFORE);
    if (broken_off) {
        assert_int_equal(ls_module_save(model, test_path("model"), NULL), LS_OK);
        assert_int_equal(ls_optimizer_save(optimizer, test_path("optimizer"), NULL), LS_OK);
        ls_optimizer_free(optimizer);
        ls_module_free(model);
        model = make_model();
        optimizer = optimizer_make(kind, model);
        if (kind % 2 == 1) { /* the new optimizer may have had a different state before */
            train(model, optimizer, 50, 53);
        }
        assert_int_equal(ls_module_load(model, test_path("model")), LS_OK);
        assert_int_equal(ls_optimizer_load(optimizer, test_path("optimizer")), LS_OK);
        assert_true(ls_optimizer_learning_rate(optimizer, 0) == 0.1 / BEFORE);
    }
    train(model, optimizer, BEFORE, BEFORE + AFTER);
    const uint64_t hash = ls_module_hash(model);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return hash;
}

TEST(test_going_on) {
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        if (trained(kind, true) != trained(kind, false)) {
            fail_msg("%s does not go on as it would have", optimizer_names[kind]);
        }
    }
}

/* Without its state, a method that has state gives different results. So the test above is able to fail. */
TEST(test_state_matters) {
    for (int kind = 1; kind < OPTIMIZERS; kind++) {
        ls_module *model = make_model();
        ls_optimizer *optimizer = optimizer_make(kind, model);
        train(model, optimizer, 0, BEFORE);
        ls_optimizer_free(optimizer);
        optimizer = optimizer_make(kind, model);
        train(model, optimizer, BEFORE, BEFORE + AFTER);
        if (ls_module_hash(model) == trained(kind, false)) {
            fail_msg("%s remembers nothing that matters", optimizer_names[kind]);
        }
        ls_optimizer_free(optimizer);
        ls_module_free(model);
    }
}

static const ls_tensor *find(ls_optimizer *optimizer, const char *name) {
    const ls_named *tensors = NULL;
    int count = 0;
    assert_int_equal(ls_optimizer_state(optimizer, &tensors, &count), LS_OK);
    for (int i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, name) == 0) {
            return tensors[i].tensor;
        }
    }
    return NULL;
}

static int count_of(ls_optimizer *optimizer) {
    const ls_named *tensors = NULL;
    int count = 0;
    assert_int_equal(ls_optimizer_state(optimizer, &tensors, &count), LS_OK);
    return count;
}

TEST(test_names) {
    ls_module *model = make_model();
    ls_optimizer *optimizer = optimizer_make(OPTIMIZER_AMSGRAD, model);
    train(model, optimizer, 0, 2);
    assert_int_equal(count_of(optimizer), 1 + 4 * 4);
    assert_true(ls_item(find(optimizer, "param_groups.0.lr")) == 0.05);
    assert_true(ls_item(find(optimizer, "2.bias.step")) == 2);
    assert_int_equal(ls_size(find(optimizer, "2.weight.exp_avg"), 1), 7);
    assert_non_null(find(optimizer, "0.weight.exp_avg_sq"));
    assert_non_null(find(optimizer, "0.bias.max_exp_avg_sq"));
    ls_optimizer_free(optimizer);
    optimizer = optimizer_make(OPTIMIZER_MUON, model); /* a group of matrices, and a group of other parameters */
    train(model, optimizer, 0, 2);
    assert_int_equal(count_of(optimizer), 2 + 2 * 2 + 2 * 3);
    assert_int_equal(ls_size(find(optimizer, "2.weight.momentum_buffer"), 1), 7);
    assert_null(find(optimizer, "2.weight.exp_avg"));
    assert_non_null(find(optimizer, "2.bias.exp_avg_sq"));
    assert_non_null(find(optimizer, "param_groups.1.lr"));
    ls_optimizer_free(optimizer);
    optimizer = optimizer_make(OPTIMIZER_NADAM, model);
    train(model, optimizer, 0, 2);
    assert_true(ls_item(find(optimizer, "2.bias.mu_product")) < 0.3);
    ls_optimizer_free(optimizer);
    optimizer = optimizer_make(OPTIMIZER_MOMENTUM, NULL);
    for (int i = 0; i < 4; i++) { /* one group each, because numbers continue across groups */
        ls_tensor *parameter = ls_module_parameter(model, i);
        assert_int_equal(ls_optimizer_add_group(optimizer, &parameter, 1, NULL), LS_OK);
    }
    assert_non_null(find(optimizer, "3.momentum_buffer"));
    assert_non_null(find(optimizer, "param_groups.3.lr"));
    ls_optimizer_free(optimizer);
    optimizer = optimizer_make(OPTIMIZER_LBFGS, model);
    assert_int_equal(count_of(optimizer), 1); /* no step yet, so only the learning rate */
    train(model, optimizer, 0, 4);
    assert_int_equal(count_of(optimizer), 1 + 7 + 5 * 3);
    assert_true(ls_item(find(optimizer, "n_iter")) > 5);
    assert_non_null(find(optimizer, "old_dirs.4"));
    assert_int_equal(ls_size(find(optimizer, "old_stps.0"), 0), ls_size(find(optimizer, "d"), 0));
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

/* An optimizer's own state, and an initial state, which resets the optimizer. */
TEST(test_own_state_and_none) {
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        ls_module *model = make_model();
        ls_optimizer *fresh = optimizer_make(kind, model);
        ls_optimizer *optimizer = optimizer_make(kind, model);
        train(model, optimizer, 0, 2);
        const ls_named *tensors = NULL;
        int count = 0;
        assert_int_equal(ls_optimizer_state(optimizer, &tensors, &count), LS_OK);
        assert_int_equal(ls_optimizer_set_state(optimizer, tensors, count), LS_OK);
        assert_int_equal(count_of(optimizer), count);
        assert_int_equal(ls_optimizer_state(fresh, &tensors, &count), LS_OK);
        assert_int_equal(ls_optimizer_set_state(optimizer, tensors, count), LS_OK);
        assert_int_equal(count_of(optimizer), count);
        ls_optimizer_free(optimizer);
        ls_optimizer_free(fresh);
        ls_module_free(model);
    }
}

static void expect_refusal(int from, int into, const char *part) {
    ls_module *model = make_model();
    ls_optimizer *source = optimizer_make(from, model);
    ls_optimizer *optimizer = optimizer_make(into, model);
    train(model, source, 0, 8);
    train(model, optimizer, 0, 2);
    const ls_named *tensors = NULL;
    int count = 0;
    assert_int_equal(ls_optimizer_save(optimizer, test_path("before"), NULL), LS_OK);
    assert_int_equal(ls_optimizer_state(source, &tensors, &count), LS_OK);
    const ls_status status = ls_optimizer_set_state(optimizer, tensors, count);
    assert_true(status == LS_ERR_FORMAT || status == LS_ERR_SHAPE);
    expect_message(part);
    ls_safetensors *before = ls_safetensors_load(test_path("before"));
    assert_int_equal(ls_optimizer_state(optimizer, &tensors, &count), LS_OK);
    assert_int_equal(ls_safetensors_count(before), count);
    for (int i = 0; i < count; i++) {
        assert_true(ls_equal(tensors[i].tensor, ls_safetensors_find(before, tensors[i].name)));
    }
    ls_safetensors_free(before);
    ls_optimizer_free(source);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

TEST(test_what_does_not_fit) {
    expect_refusal(OPTIMIZER_SGD, OPTIMIZER_MOMENTUM,
                   "the file has no tensor 0.weight.momentum_buffer, which this ls_sgd needs");
    expect_refusal(OPTIMIZER_MOMENTUM, OPTIMIZER_SGD,
                   "the file has a tensor 0.weight.momentum_buffer that this ls_sgd does not have");
    expect_refusal(OPTIMIZER_ADAM, OPTIMIZER_RMSPROP, "square_avg");
    expect_refusal(OPTIMIZER_RADAM, OPTIMIZER_NADAM,
                   "the file has no tensor 0.weight.mu_product, which this ls_nadam needs");
    expect_refusal(OPTIMIZER_ADAM, OPTIMIZER_MUON, "momentum_buffer, which this ls_muon needs");
    expect_refusal(OPTIMIZER_LBFGS_SEARCH, OPTIMIZER_LBFGS, "the state contains more steps than the history_size 5");
    expect_refusal(OPTIMIZER_ADAM, OPTIMIZER_LBFGS_SEARCH, "does not have");
    expect_refusal(OPTIMIZER_CONJUGATE_GRADIENT, OPTIMIZER_LBFGS_SEARCH, "the file has no tensor H_diag");
    ls_module *model = make_model();
    ls_module *wider = ls_sequential(ls_nn_linear(5, 8), ls_nn_tanh(), ls_nn_linear(8, 3));
    ls_optimizer *optimizer = optimizer_make(OPTIMIZER_ADAM, model), *other = optimizer_make(OPTIMIZER_ADAM, wider);
    assert_int_equal(ls_optimizer_save(other, test_path("wider"), NULL), LS_OK);
    assert_int_equal(ls_optimizer_load(optimizer, test_path("wider")), LS_ERR_SHAPE);
    expect_message("wider: 0.weight.exp_avg is [8, 5] of f32 in the file, but [7, 5]");
    assert_int_equal(ls_optimizer_load(optimizer, test_path("missing")), LS_ERR_IO);
    assert_int_equal(ls_optimizer_load(NULL, test_path("wider")), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_save(NULL, test_path("none"), NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_set_state(optimizer, NULL, 1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_set_state(optimizer, (ls_named[]){{"a", NULL}}, 1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_state(optimizer, NULL, NULL), LS_ERR_ARGUMENT);
    const ls_named *own = NULL;
    ls_named twice[64];
    int count = 0;
    assert_int_equal(ls_optimizer_state(optimizer, &own, &count), LS_OK);
    memcpy(twice, own, (size_t)count * sizeof *own);
    twice[count] = own[1];
    assert_int_equal(ls_optimizer_set_state(optimizer, twice, count + 1), LS_ERR_FORMAT);
    expect_message("ls_optimizer_set_state: two tensors are named ");
    ls_optimizer_free(optimizer);
    ls_optimizer_free(other);
    ls_module_free(model);
    ls_module_free(wider);
}

/* States of different methods may have the same names. */
TEST(test_the_state_of_another_method) {
    ls_module *model = make_model();
    ls_optimizer *adam = optimizer_make(OPTIMIZER_ADAM, model), *adamw = optimizer_make(OPTIMIZER_ADAMW, model);
    const ls_named *tensors = NULL;
    int count = 0;
    const char *const metadata[] = {"lockstep_optimizer", "ls_sgd", "epoch", "3", NULL};
    train(model, adam, 0, 3);
    assert_int_equal(ls_optimizer_save(adam, test_path("adam"), metadata), LS_OK);
    assert_int_equal(ls_optimizer_save(adamw, test_path("before"), NULL), LS_OK);
    assert_int_equal(ls_optimizer_load(adamw, test_path("adam")), LS_ERR_FORMAT);
    expect_message("adam has the state of ls_adam, but this optimizer is ls_adamw: continue with ls_adam, or ");
    assert_int_equal(ls_optimizer_save(adamw, test_path("after"), NULL), LS_OK);
    ls_safetensors *saved = ls_safetensors_load(test_path("adam"));
    ls_safetensors *before = ls_safetensors_load(test_path("before")), *after = ls_safetensors_load(test_path("after"));
    assert_string_equal(ls_safetensors_metadata(saved, "lockstep_optimizer"), "ls_adam");
    assert_string_equal(ls_safetensors_metadata(saved, "epoch"), "3");
    for (int i = 0; i < ls_safetensors_count(before); i++) {
        assert_true(ls_equal(ls_safetensors_at(before, i).tensor, ls_safetensors_at(after, i).tensor));
    }
    assert_int_equal(ls_optimizer_state(adam, &tensors, &count), LS_OK);
    assert_int_equal(ls_safetensors_save(test_path("unnamed"), tensors, count, NULL), LS_OK);
    assert_int_equal(ls_optimizer_load(adamw, test_path("unnamed")), LS_OK); /* the file of an older version */
    const char *const unpaired[] = {"epoch", NULL};
    assert_int_equal(ls_optimizer_save(adam, test_path("unpaired"), unpaired), LS_ERR_ARGUMENT);
    ls_safetensors_free(saved);
    ls_safetensors_free(before);
    ls_safetensors_free(after);
    ls_optimizer_free(adam);
    ls_optimizer_free(adamw);
    ls_module_free(model);
}

/* Tries a state with one wrong number: the error names its tensor, and nothing changes. */
static void expect_refused_number(ls_optimizer *optimizer, int index, const void *number, size_t size) {
    const ls_named *own = NULL;
    int count = 0;
    assert_int_equal(ls_optimizer_save(optimizer, test_path("right"), NULL), LS_OK);
    ls_safetensors *wrong = ls_safetensors_load(test_path("right")), *before = ls_safetensors_load(test_path("right"));
    ls_named given[64];
    count = ls_safetensors_count(wrong);
    for (int i = 0; i < count; i++) {
        given[i] = ls_safetensors_at(wrong, i);
    }
    const size_t last = (size_t)ls_numel(given[index].tensor) - 1;
    memcpy((char *)elements(given[index].tensor) + last * size, number, size);
    if (ls_optimizer_set_state(optimizer, given, count) != LS_ERR_FORMAT ||
        strstr(ls_error_message(), given[index].name) == NULL) {
        fail_msg("%s: %s", given[index].name, ls_error_message());
    }
    assert_int_equal(ls_optimizer_state(optimizer, &own, &count), LS_OK);
    for (int i = 0; i < count; i++) {
        assert_true(ls_equal(own[i].tensor, ls_safetensors_find(before, own[i].name)));
    }
    ls_safetensors_free(wrong);
    ls_safetensors_free(before);
}

static bool ends_in(const char *name, const char *word) {
    const size_t length = strlen(name), end = strlen(word);
    return length >= end && strcmp(name + length - end, word) == 0;
}

static void expect_refused_numbers(ls_optimizer *optimizer, int index, const char *name, ls_dtype dtype) {
    static const char *const never_negative[] = {".lr",    "_sq",       "square_avg", ".sum",
                                                 "H_diag", "acc_delta", "mu_product"};
    if (dtype == LS_I64) {
        expect_refused_number(optimizer, index, &(int64_t){-1}, 8);
        expect_refused_number(optimizer, index, &(int64_t){INT64_MAX}, 8);
        return;
    }
    double doubles[] = {NAN, INFINITY, -INFINITY, -1};
    float floats[] = {NAN, INFINITY, -INFINITY, -1};
    bool negative = true;
    for (size_t i = 0; i < sizeof never_negative / sizeof *never_negative; i++) {
        negative = negative && !ends_in(name, never_negative[i]);
    }
    negative = negative && strncmp(name, "ro.", 3) != 0;
    for (int i = 0; i < (negative ? 3 : 4); i++) {
        const void *number = dtype == LS_F64 ? (void *)&doubles[i] : (void *)&floats[i];
        expect_refused_number(optimizer, index, number, ls_dtype_size(dtype));
    }
}

TEST(test_wrong_numbers) {
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        ls_module *model = make_model();
        ls_optimizer *optimizer = optimizer_make(kind, model);
        train(model, optimizer, 0, BEFORE);
        assert_int_equal(ls_optimizer_save(optimizer, test_path("all"), NULL), LS_OK);
        ls_safetensors *all = ls_safetensors_load(test_path("all"));
        for (int i = 0; i < ls_safetensors_count(all); i++) {
            const ls_named item = ls_safetensors_at(all, i);
            expect_refused_numbers(optimizer, i, item.name, ls_dtype_of(item.tensor));
        }
        ls_safetensors_free(all);
        ls_optimizer_free(optimizer);
        ls_module_free(model);
    }
}

/* Every failing allocation causes an error, leaves the state unchanged, and leaks nothing. */
TEST(test_failing_allocations) {
    const int kinds[] = {OPTIMIZER_AMSGRAD, OPTIMIZER_LBFGS}; /* one with buffers, one with a history */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        test_allocator allocator;
        test_allocator_start(&allocator);
        ls_module *model = make_model();
        ls_optimizer *source = optimizer_make(kinds[i], model), *optimizer = optimizer_make(kinds[i], model);
        train(model, source, 0, 4);
        train(model, optimizer, 0, 2);
        const ls_named *tensors = NULL;
        int count = 0;
        long failures = 0;
        assert_int_equal(ls_optimizer_state(source, &tensors, &count), LS_OK);
        const int before = count_of(optimizer);
        for (ls_status status = LS_ERR_MEMORY; status != LS_OK; failures += status != LS_OK) {
            const long calls = atomic_load(&allocator.calls);
            atomic_store(&allocator.fail_from, calls + failures);
            status = ls_optimizer_set_state(optimizer, tensors, count);
            atomic_store(&allocator.fail_from, -1);
            assert_true(status == LS_OK || status == LS_ERR_MEMORY);
            assert_int_equal(count_of(optimizer), status == LS_OK ? count : before);
        }
        assert_true(failures > 3);
        ls_optimizer_free(source);
        ls_optimizer_free(optimizer);
        ls_module_free(model);
        assert_int_equal(test_allocator_stop(&allocator), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_going_on),
        cmocka_unit_test(test_state_matters),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_own_state_and_none),
        cmocka_unit_test(test_what_does_not_fit),
        cmocka_unit_test(test_the_state_of_another_method),
        cmocka_unit_test(test_wrong_numbers),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
