/*
 * Replays compute a matrix product and the ReLU of its result in one call. The bits are the bits of the step's
 * function, also with NaN and with negative zeros, and the result before the ReLU needs no memory. If the step uses
 * this result elsewhere, both calls remain.
 *
 * devices: cpu
 */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "tests/support/unit.h"

enum { REPLAYS = 3 };

typedef enum usage { PLAIN, TRANSPOSED, USED_AGAIN, RETURNED, TWICE, MATMUL, USES } usage;

typedef struct network {
    usage use;
    bool autocast;
    ls_tensor *x, *weight, *bias, *last;
} network;

/* Returns the product and its ReLU, and other uses of the product. */
static ls_tensor *hidden(const network *self) {
    ls_tensor *product = self->use == MATMUL ? ls_matmul(self->x, ls_transpose(self->weight, 0, 1))
                                             : ls_linear(self->x, self->weight, self->bias);
    switch (self->use) {
    case TRANSPOSED:
        return ls_transpose(ls_relu(ls_transpose(product, 0, 1)), 0, 1);
    case USED_AGAIN:
        return ls_add(ls_relu(product), ls_sigmoid(product));
    case TWICE:
        return ls_relu(ls_add(ls_relu(product), -0.5));
    default:
        return ls_relu(product);
    }
}

static ls_tensor *compute(void *user) {
    const network *self = user;
    const bool before = ls_no_grad(true);
    ls_tensor *y = hidden(self);
    (void)ls_no_grad(before);
    return self->use == RETURNED ? y : ls_linear(y, self->last, NULL);
}

static ls_tensor *train(void *user) {
    const network *self = user;
    ls_tensor *const leaves[] = {self->weight, self->bias, self->last};
    for (int i = 0; i < 3; i++) {
        ls_zero_grad(leaves[i]);
    }
    const ls_dtype cast = ls_autocast(self->autocast ? LS_BF16 : LS_F32);
    ls_tensor *y = hidden(self);
    ls_tensor *loss = ls_mean(ls_square(self->use == RETURNED ? y : ls_linear(y, self->last, NULL)));
    (void)ls_autocast(cast);
    return ls_backward(loss) == LS_OK ? loss : NULL;
}

static void fill(const network *self, uint64_t seed) {
    ls_scope *scope = ls_scope_begin();
    const bool before = ls_no_grad(true);
    ls_tensor *const tensors[] = {self->x, self->weight, self->bias, self->last};
    ls_seed(seed);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ls_copy_into(tensors[i], ls_randn(ls_shape_of(tensors[i]), ls_dtype_of(tensors[i]))), LS_OK);
    }
    if (ls_dtype_of(self->x) == LS_F32 && ls_numel(self->x) > 0) {
        float *x = ls_data(self->x);
        for (int64_t i = 0; i < ls_size(self->x, 1); i++) {
            x[i] = -0.0f; /* a row of negative zeros */
        }
        x[ls_numel(self->x) - 1] = seed % 2 == 0 ? NAN : 1;
    }
    (void)ls_no_grad(before);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

static void expect_bits(const ls_tensor *a, const ls_tensor *b) {
    assert_int_equal(ls_numel(a), ls_numel(b));
    assert_memory_equal(ls_data_const(a), ls_data_const(b), (size_t)ls_numel(a) * ls_dtype_size(ls_dtype_of(a)));
}

static void check(usage use, ls_dtype dtype, bool trains, bool autocast, const int64_t *size) {
    ls_scope *scope = ls_scope_begin();
    network self = {.use = use,
                    .autocast = autocast,
                    .x = ls_empty(LS_SHAPE(size[0], size[1]), dtype),
                    .weight = ls_empty(LS_SHAPE(size[2], size[1]), dtype),
                    .bias = ls_empty(LS_SHAPE(size[2]), dtype),
                    .last = ls_empty(LS_SHAPE(2, size[2]), dtype)};
    fill(&self, 1);
    ls_tensor *const leaves[] = {self.weight, self.bias, self.last};
    for (int i = 0; i < 3 && trains; i++) {
        assert_int_equal(ls_set_requires_grad(leaves[i], true), LS_OK);
    }
    const ls_step_function function = trains ? train : compute;
    ls_step *step = ls_step_capture(function, &self, NULL);
    assert_non_null(step);
    for (uint64_t replay = 0; replay < REPLAYS; replay++) {
        fill(&self, 2 + replay);
        const ls_tensor *expected = ls_clone(function(&self));
        ls_tensor *gradients[3] = {NULL};
        for (int i = 0; i < 3; i++) {
            gradients[i] = ls_grad(leaves[i]) != NULL ? ls_clone(ls_grad(leaves[i])) : NULL;
        }
        assert_int_equal(ls_step_replay(step), LS_OK);
        expect_bits(ls_step_result(step), expected);
        for (int i = 0; i < 3; i++) {
            assert_true((gradients[i] != NULL) == (ls_grad(leaves[i]) != NULL));
            if (gradients[i] != NULL) {
                expect_bits(ls_grad(leaves[i]), gradients[i]);
            }
        }
    }
    ls_step_free(step);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_bits) {
    static const int64_t sizes[][3] = {{1, 10, 100}, {64, 33, 17}, {300, 64, 130}, {5, 1, 9}, {40, 600, 500}};
    for (usage use = PLAIN; use < USES; use++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            check(use, LS_F32, true, false, sizes[i]);
            check(use, LS_F32, true, true, sizes[i]);
            check(use, LS_F32, false, false, sizes[i]);
            check(use, LS_F64, true, false, sizes[i]);
        }
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static ls_tensor *sum_of_relu(void *user) {
    const network *self = user;
    return ls_sum(hidden(self));
}

/* Returns the peak memory of a replay, in multiples of the product's memory, without the memory before the replay. */
static double peak_of_replay(usage use) {
    enum { ROWS = 2000, COLUMNS = 500 };
    network self = {.use = use,
                    .x = ls_ones(LS_SHAPE(ROWS, 3), LS_F32),
                    .weight = ls_ones(LS_SHAPE(COLUMNS, 3), LS_F32),
                    .bias = ls_ones(LS_SHAPE(COLUMNS), LS_F32)};
    ls_memory before, memory;
    assert_int_equal(ls_memory_stats(&before), LS_OK);
    ls_step *step = ls_step_capture(sum_of_relu, &self, NULL);
    assert_non_null(step);
    assert_int_equal(ls_memory_reset_peak(), LS_OK);
    assert_int_equal(ls_step_replay(step), LS_OK);
    assert_int_equal(ls_memory_stats(&memory), LS_OK);
    ls_step_free(step);
    return (double)(memory.peak_total - before.total) / ((double)ROWS * COLUMNS * sizeof(float));
}

SCOPED_TEST(test_memory) {
    assert_true(peak_of_replay(PLAIN) < 1.2);
    assert_true(peak_of_replay(TRANSPOSED) > 1.8);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
