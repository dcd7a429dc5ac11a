/* The bits of a convolution and its gradients in f32 do not depend on the number of the library's threads. */
#include "tests/support/unit.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <lockstep/autograd.h>

#include "tests/support/processes.h"

enum { COUNTS = 4, SUMS = 9 };

/* Where each process puts what it has found. */
static uint64_t (*found)[SUMS];

static uint64_t bits_of(ls_tensor *x) {
    uint64_t sum = 0xcbf29ce484222325U;
    ls_tensor *on_host = ls_tensor_to_device(x, "cpu");
    const unsigned char *byte = on_host != NULL ? ls_data(on_host) : NULL;
    for (size_t i = 0; byte != NULL && i < (size_t)ls_numel(x) * sizeof(float); i++) {
        sum = (sum ^ byte[i]) * 0x100000001b3U;
    }
    return sum;
}

/* Long sums over few results: what libraries share out over threads. */
static const char *convolve(int number, const void *what) {
    static const char *const threads[COUNTS] = {"1", "2", "3", "8"};
    static const int64_t sizes[][5] = {{128, 28, 128, 1, 0}, {3, 80, 64, 7, 3}, {512, 6, 8, 3, 1}};
    (void)what;
    LS_MUST(setenv("OMP_NUM_THREADS", threads[number], 1) == 0); /* read when the library is opened */
    for (int i = 0; i < SUMS / 3; i++) {
        const int64_t *s = sizes[i];
        ls_scope *scope = ls_scope_begin();
        ls_seed(1);
        ls_tensor *x = ls_randn(LS_SHAPE(2, s[0], s[1], s[1]), LS_F32);
        ls_tensor *weight = ls_randn(LS_SHAPE(s[2], s[0], s[3], s[3]), LS_F32);
        LS_MUST(ls_set_requires_grad(x, true) == LS_OK && ls_set_requires_grad(weight, true) == LS_OK);
        ls_tensor *y = ls_conv(x, weight, NULL, &(ls_conv_options){.padding = LS_SHAPE(s[4])});
        LS_MUST(ls_backward(ls_sum(ls_square(y))) == LS_OK);
        found[number][3 * i] = bits_of(y);
        found[number][3 * i + 1] = bits_of(ls_grad(x));
        found[number][3 * i + 2] = bits_of(ls_grad(weight));
        LS_MUST(ls_scope_end(scope) == LS_OK);
    }
    return NULL;
}

static void test_bits_do_not_depend_on_threads(void **state) {
    (void)state;
    found = mmap(NULL, COUNTS * sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(found, MAP_FAILED);
    processes_run(COUNTS, convolve, NULL, 0);
    for (int i = 0; i < SUMS; i++) {
        for (int count = 1; count < COUNTS; count++) {
            if (found[count][i] != found[0][i]) {
                fail_msg("case %d, %s: other bits with more threads (%d)", i / 3,
                         i % 3 == 0   ? "y"
                         : i % 3 == 1 ? "gradient of x"
                                      : "gradient of weight",
                         count);
            }
        }
    }
    assert_int_equal(munmap(found, COUNTS * sizeof *found), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits_do_not_depend_on_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
