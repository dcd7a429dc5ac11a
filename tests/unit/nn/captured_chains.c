/*
 * Replays process runs of element-wise operations piece by piece. Random programs of such operations, with views that
 * overlap, repeated operands and gradients, give the bits of the step's function; and memory between the operations of
 * a run is not allocated.
 *
 * devices: cpu
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "tensor/device/cpu/libraries.h"
#include "tests/support/unit.h"

enum { ROWS = 290, COLUMNS = 290, LEAVES = 5, OPERATIONS = 20, REPLAYS = 2 };

typedef struct program {
    uint64_t seed;
    ls_dtype dtype;
    int64_t rows, columns;
    ls_tensor *leaves[LEAVES];
    ls_tensor *output;
} program;

/* ---- random programs --------------------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *state, uint64_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

static ls_tensor *one_operand(ls_tensor *x, uint64_t which) {
    switch (which) {
    case 0:
        return ls_tanh(x);
    case 1:
        return ls_mul(x, 0.75);
    case 2:
        return ls_relu(x);
    case 3:
        return ls_sigmoid(x);
    case 4:
        return ls_sub(x, 0.125);
    case 5:
        return ls_neg(x);
    default:
        return ls_abs(x);
    }
}

static ls_tensor *two_operands(ls_tensor *a, ls_tensor *b, uint64_t which) {
    return which == 0 ? ls_add(a, b) : which == 1 ? ls_sub(a, b) : which == 2 ? ls_mul(a, b) : ls_maximum(a, b);
}

/* A sum over three neighbours along an axis, in the old shape: views of one tensor that overlap. */
static ls_tensor *stencil(ls_tensor *x, int axis, bool forward) {
    const int64_t size = ls_shape_of(x).size[axis];
    ls_tensor *views[3];
    for (int i = 0; i < 3; i++) {
        views[i] = ls_narrow(x, axis, forward ? i : 2 - i, size - 2);
    }
    ls_tensor *inner = ls_sub(ls_add(ls_mul(views[0], 0.3), ls_mul(views[1], views[2])), ls_mul(views[2], 0.7));
    return ls_concat((ls_tensor *[]){inner, ls_narrow(x, axis, 0, 2)}, 2, axis);
}

static ls_tensor *run_program(const program *self) {
    uint64_t state = self->seed;
    ls_tensor *values[LEAVES + OPERATIONS];
    memcpy(values, self->leaves, sizeof self->leaves);
    int count = LEAVES;
    ls_tensor *latest = self->leaves[0];
    for (int i = 0; i < OPERATIONS; i++) {
        ls_tensor *other = values[draw(&state, (uint64_t)count)];
        const uint64_t kind = draw(&state, 10);
        latest = kind < 2   ? one_operand(latest, draw(&state, 7))
                 : kind < 7 ? two_operands(latest, other, draw(&state, 4))
                            : stencil(latest, (int)draw(&state, 2), draw(&state, 2) == 0);
        latest = self->rows == self->columns && draw(&state, 5) == 0 ? ls_transpose(latest, 0, 1) : latest;
        values[count++] = latest;
        latest = draw(&state, 6) == 0 ? self->leaves[0] : latest;
    }
    return ls_add(ls_mul(latest, 0.5), values[count - 1]);
}

static ls_tensor *train(void *user) {
    program *self = user;
    for (int i = 0; i < LEAVES; i++) {
        ls_zero_grad(self->leaves[i]);
    }
    ls_tensor *loss = ls_mean(run_program(self));
    return ls_backward(loss) == LS_OK ? loss : NULL;
}

static ls_tensor *compute(void *user) {
    const program *self = user;
    return run_program(self);
}

static void begin(program *self, uint64_t seed, bool requires_grad) {
    /* Rows that are longer than a piece, squares for transpositions, and short rows. */
    static const int64_t sizes[][2] = {{ROWS, COLUMNS}, {3, 40000}, {30000, 3}};
    const int64_t *size = sizes[seed % 5 < 3 ? 0 : seed % 5 - 2];
    *self = (program){.seed = seed, .dtype = seed % 3 == 0 ? LS_F64 : LS_F32, .rows = size[0], .columns = size[1]};
    const ls_shape shapes[LEAVES] = {LS_SHAPE(size[0], size[1]), LS_SHAPE(size[0], size[1]), LS_SHAPE(size[1]),
                                     LS_SHAPE(size[0], 1), LS_SHAPE(1)};
    ls_seed(seed);
    for (int i = 0; i < LEAVES; i++) {
        self->leaves[i] = ls_rand(shapes[i], self->dtype);
        assert_int_equal(ls_set_requires_grad(self->leaves[i], requires_grad), LS_OK);
    }
}

static void change_leaves(const program *self) {
    for (int i = 0; i < LEAVES; i++) {
        ls_scope *scope = ls_scope_begin();
        const bool before = ls_no_grad(true);
        assert_int_equal(ls_copy_into(self->leaves[i], ls_rand(ls_shape_of(self->leaves[i]), self->dtype)), LS_OK);
        (void)ls_no_grad(before);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* ---- comparisons ------------------------------------------------------------------------------------------------- */

static void expect_bits(const ls_tensor *a, const ls_tensor *b, uint64_t seed) {
    const size_t bytes = (size_t)ls_numel(a) * ls_dtype_size(ls_dtype_of(a));
    if (memcmp(ls_data_const(a), ls_data_const(b), bytes) != 0) {
        fail_msg("program %llu: a replay has other bits than the function", (unsigned long long)seed);
    }
}

static void check_program(uint64_t seed, bool trains) {
    ls_scope *scope = ls_scope_begin();
    program self;
    begin(&self, seed, trains);
    const ls_step_function function = trains ? train : compute;
    ls_step *step = ls_step_capture(function, &self, NULL);
    assert_non_null(step);
    for (int replay = 0; replay < REPLAYS; replay++) {
        change_leaves(&self);
        const ls_tensor *expected = ls_clone(function(&self));
        ls_tensor *gradients[LEAVES] = {NULL};
        for (int i = 0; i < LEAVES && trains; i++) {
            gradients[i] = ls_grad(self.leaves[i]) != NULL ? ls_clone(ls_grad(self.leaves[i])) : NULL;
        }
        assert_int_equal(ls_step_replay(step), LS_OK);
        expect_bits(ls_step_result(step), expected, seed);
        for (int i = 0; i < LEAVES; i++) {
            if (gradients[i] != NULL) {
                expect_bits(ls_grad(self.leaves[i]), gradients[i], seed);
            }
        }
    }
    ls_step_free(step);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_random_programs) {
    for (uint64_t seed = 1; seed <= (IS_SANITIZED ? 40 : 120); seed++) {
        check_program(seed, seed % 4 != 0);
    }
}

/*
 * Memory of a tensor that a run reads before it writes its last results is not used for these results: at other
 * offsets, a piece of a result would replace elements that a later piece reads.
 */
static ls_tensor *compute_sums(void *user) {
    const program *self = user;
    ls_tensor *more = ls_narrow(self->leaves[1], 0, 0, 10);
    ls_tensor *large = ls_cos(ls_concat((ls_tensor *[]){more, self->leaves[0]}, 2, 0));
    ls_tensor *one = ls_narrow(large, 0, 0, ROWS);
    for (int i = 0; i < 4; i++) {
        one = ls_add(ls_mul(one, self->leaves[1]), 1);
    }
    ls_tensor *other = ls_mul(one, 2);
    return ls_add(ls_sum(one), ls_sum(other));
}

SCOPED_TEST(test_reused_memory) {
    program self;
    begin(&self, 5, false);
    ls_step *step = ls_step_capture(compute_sums, &self, NULL);
    assert_non_null(step);
    change_leaves(&self);
    ls_tensor *expected = compute_sums(&self);
    assert_int_equal(ls_step_replay(step), LS_OK);
    expect_bits(ls_step_result(step), expected, 0);
    ls_step_free(step);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static ls_tensor *long_run(void *user) {
    const program *self = user;
    ls_tensor *t = self->leaves[0];
    for (int i = 0; i < 5; i++) {
        t = ls_add(ls_mul(ls_tanh(t), self->leaves[1]), self->leaves[2]);
    }
    return t;
}

static int64_t peak_of_replay(ls_step *step) {
    ls_memory memory;
    assert_int_equal(ls_memory_reset_peak(), LS_OK);
    assert_int_equal(ls_step_replay(step), LS_OK);
    assert_int_equal(ls_memory_stats(&memory), LS_OK);
    return memory.peak_total;
}

/* Between the operations of a run, only pieces exist: the arena is empty. */
SCOPED_TEST(test_memory_of_a_run) {
    program self;
    begin(&self, 5, false);
    ls_memory memory;
    ls_step *step = ls_step_capture(long_run, &self, NULL);
    assert_non_null(step);
    assert_int_equal(ls_memory_stats(&memory), LS_OK);
    int64_t bytes = 0;
    for (int i = 0; i < LEAVES; i++) {
        bytes += ls_numel(self.leaves[i]) * (int64_t)ls_dtype_size(self.dtype);
    }
    const int64_t result = ls_numel(ls_step_result(step)) * (int64_t)ls_dtype_size(self.dtype);
    assert_true(peak_of_replay(step) <= bytes + result + result / 8);
    ls_step_free(step);
}

enum { PAIRS = 8 };

/* Pairs of operations whose input ends with the pair, and whose result is used later. */
static ls_tensor *many_results(void *user) {
    const program *self = user;
    ls_tensor *inputs[PAIRS], *results[PAIRS], *sum = ls_zeros(LS_SCALAR, LS_F32);
    for (int i = 0; i < PAIRS; i++) {
        inputs[i] = ls_cumsum(ls_roll(self->leaves[0], i + 1, 0), 0);
    }
    for (int i = 0; i < PAIRS; i++) {
        results[i] = ls_add(ls_mul(inputs[i], 2), 1);
        ls_release(inputs[i]);
    }
    for (int i = 0; i < PAIRS; i++) {
        sum = ls_add(sum, ls_sum(ls_cumsum(results[i], 0)));
    }
    return sum;
}

static double peak_in_tensors(int64_t elements) {
    program self = {.leaves = {ls_rand(LS_SHAPE(elements), LS_F32)}};
    ls_step *step = ls_step_capture(many_results, &self, NULL);
    assert_non_null(step);
    const double peak = (double)peak_of_replay(step) / ((double)elements * sizeof(float));
    ls_step_free(step);
    ls_release(self.leaves[0]);
    return peak;
}

/* A run that would keep more memory than it saves is not replaced. 65,536 elements are the least for a run. */
SCOPED_TEST(test_memory_does_not_grow) {
    const double without = peak_in_tensors(65535);
    assert_true(peak_in_tensors(65536) < without + 0.5);
}

/* Two threads share the pieces, if plug-in onednn is installed. */
int main(void) {
    if (setenv("OMP_NUM_THREADS", "2", 1) != 0 || ls_onednn_open() == NULL) {
        printf("SKIPPED two threads: there is no plug-in onednn\n");
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_programs), cmocka_unit_test(test_reused_memory),
                                       cmocka_unit_test(test_memory_of_a_run),
                                       cmocka_unit_test(test_memory_does_not_grow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
