/*
 * Attention in 16-bit floats on the device of LOCKSTEP_DEVICE, compared with f32 on the CPU with rounded operands:
 * sizes that a GPU's fused kernels accept, and other sizes. (LOCKSTEP_LOG=debug shows which kernels run.) Results must
 * be deterministic.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/lockstep.h>

enum { RESULTS = 4, TIMES = 4 };

static const char *device;

static int choose_device(void **state) {
    (void)state;
    device = ls_default_device();
    return ls_use_device("cpu") == LS_OK ? 0 : 1;
}

typedef struct attention_case {
    int64_t queries, keys, width;
    bool causal, packed; /* packed: q, k and v are slices of one projection */
} attention_case;

static const attention_case cases[] = {
    {128, 128, 64, false, false},  {128, 128, 64, true, false}, {1000, 1000, 64, false, false},
    {1000, 1000, 64, true, false}, {256, 256, 64, true, true},  {256, 256, 128, true, true},
    {200, 384, 40, false, false},  {129, 77, 24, false, false}, {65, 65, 8, true, true},
    {1024, 1024, 64, false, true}, {300, 300, 36, true, true},  {50, 50, 64, true, true},
};

/* Makes q, k and v, [batch, heads, length, width] in memory of device `where`, with values that the 16-bit dtype
 * represents. */
static void operands(const attention_case *c, const char *where, ls_dtype half, ls_tensor **x) {
    ls_seed(12);
    ls_tensor *packed = NULL;
    if (c->packed) {
        packed =
            ls_to_device(ls_to(ls_to(ls_randn(LS_SHAPE(2, c->queries, 3, 3, c->width), LS_F32), half), LS_F32), where);
    }
    for (int i = 0; i < 3; i++) {
        const int64_t length = i == 0 ? c->queries : c->keys;
        x[i] = c->packed ? ls_transpose(ls_select(packed, 2, i), 1, 2)
                         : ls_to_device(ls_to(ls_to(ls_randn(LS_SHAPE(2, 3, length, c->width), LS_F32), half), LS_F32),
                                        where);
        x[i] = ls_detach(x[i]);
        assert_non_null(x[i]);
        assert_int_equal(ls_set_requires_grad(x[i], true), LS_OK);
    }
}

/* Computes y and the gradients, as tensors on the CPU. */
static void results(const attention_case *c, const char *where, ls_dtype half, ls_dtype autocast, ls_tensor **into) {
    ls_tensor *x[3];
    operands(c, where, half, x);
    ls_tensor *g =
        ls_to_device(ls_to(ls_to(ls_randn(LS_SHAPE(2, 3, c->queries, c->width), LS_F32), half), LS_F32), where);
    const ls_dtype before = ls_autocast(autocast);
    ls_tensor *y = ls_attention(x[0], x[1], x[2], &(ls_attention_options){.causal = c->causal});
    (void)ls_autocast(before);
    if (y == NULL || ls_backward_with(y, &(ls_backward_options){.gradient = g}) != LS_OK) {
        fail_msg("%s: %s", where, ls_error_message());
    }
    into[0] = ls_to_device(ls_clone(ls_detach(y)), "cpu");
    for (int i = 0; i < 3; i++) {
        into[i + 1] = ls_to_device(ls_clone(ls_grad(x[i])), "cpu");
        assert_non_null(into[i + 1]);
    }
}

static double largest_of(ls_tensor *x) {
    return ls_item(ls_max(ls_abs(x)));
}

static void check(const attention_case *c, ls_dtype half) {
    if (IS_SANITIZED && c->queries > 300) {
        return;
    }
    static const char *const names[RESULTS] = {"y", "the gradient of q", "the gradient of k", "the gradient of v"};
    ls_scope *scope = ls_scope_begin();
    ls_tensor *wanted[RESULTS], *is[RESULTS], *again[RESULTS];
    results(c, "cpu", half, LS_F32, wanted);
    results(c, device, half, half, is);
    for (int i = 0; i < RESULTS; i++) {
        const double apart = largest_of(ls_sub(is[i], wanted[i])), largest = largest_of(wanted[i]);
        if (!(apart <= 0.015 * largest)) {
            fail_msg("%s of %lld x %lld x %lld%s in %s: %g away, the largest number is %g", names[i],
                     (long long)c->queries, (long long)c->keys, (long long)c->width, c->causal ? ", causal" : "",
                     ls_dtype_name(half), apart, largest);
        }
    }
    for (int time = 0; time < TIMES && c->queries <= 256; time++) {
        results(c, device, half, half, again);
        for (int i = 0; i < RESULTS; i++) {
            if (!ls_equal(is[i], again[i])) {
                fail_msg("%s has other bits in another run", names[i]);
            }
        }
    }
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_bf16) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check(&cases[i], LS_BF16);
    }
}

TEST(test_f16) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check(&cases[i], LS_F16);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f16),
    };
    return cmocka_run_group_tests(tests, choose_device, NULL);
}
