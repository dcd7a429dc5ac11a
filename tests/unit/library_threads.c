/* The bits of convolutions and of attention, and of their gradients, in f32 do not depend on the number of the
 * library's threads. Own loops are in loop_threads.c. */
#include "tests/support/unit.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <lockstep/autograd.h>

#include "tensor/device/cpu/libraries.h"
#include "tests/support/processes.h"

enum { COUNTS = 4, SUMS = 9, TENSORS = 4 };

static const char *const threads[COUNTS] = {"1", "2", "3", "8"};

/* Where each process puts what it has found, and, last, whether module onednn is there. */
static uint64_t (*found)[SUMS + 1];

static uint64_t bits_of(ls_tensor *x) {
    uint64_t sum = 0xcbf29ce484222325U;
    ls_tensor *on_host = ls_tensor_to_device(x, "cpu");
    const unsigned char *byte = on_host != NULL ? ls_data(on_host) : NULL;
    for (size_t i = 0; byte != NULL && i < (size_t)ls_numel(x) * sizeof(float); i++) {
        sum = (sum ^ byte[i]) * 0x100000001b3U;
    }
    return sum;
}

/*
 * Gives the process its threads. The own loops have them from when module onednn is open, which loops alone would never
 * do: so it is opened here, and must have so many. The parent never opens it: children would have its threads.
 */
static const char *take_threads(int number) {
    LS_MUST(setenv("OMP_NUM_THREADS", threads[number], 1) == 0); /* read when the library is opened */
    const ls_onednn *onednn = ls_onednn_open();
    LS_MUST(onednn == NULL || onednn->threads() == (int)strtol(threads[number], NULL, 10));
    found[number][SUMS] = onednn != NULL;
    return NULL;
}

/* Long sums over few results: what libraries share out over threads. */
static const char *convolve(int number, const void *what) {
    static const int64_t sizes[][5] = {{128, 28, 128, 1, 0}, {3, 80, 64, 7, 3}, {512, 6, 8, 3, 1}};
    (void)what;
    LS_MUST(take_threads(number) == NULL);
    for (int i = 0; i < 3; i++) {
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

/* Wide heads: y, and the gradients of queries, keys and values. */
static const char *attend(int number, const void *what) {
    static const int64_t sizes[][3] = {{128, 8, 2048}, {8, 128, 1024}}; /* queries, keys, width */
    (void)what;
    LS_MUST(take_threads(number) == NULL);
    for (int i = 0; i < 2; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_seed(1);
        ls_tensor *x[3];
        for (int k = 0; k < 3; k++) {
            x[k] = ls_randn(LS_SHAPE(sizes[i][k > 0], sizes[i][2]), LS_F32);
            LS_MUST(ls_set_requires_grad(x[k], true) == LS_OK);
        }
        ls_tensor *y = ls_attention(x[0], x[1], x[2], NULL);
        LS_MUST(ls_backward(ls_sum(ls_square(y))) == LS_OK);
        found[number][TENSORS * i] = bits_of(y);
        for (int k = 0; k < 3; k++) {
            found[number][TENSORS * i + 1 + k] = bits_of(ls_grad(x[k]));
        }
        LS_MUST(ls_scope_end(scope) == LS_OK);
    }
    return NULL;
}

static void expect_same_bits(process_body body, int sums, int tensors, const char *const *names) {
    found = mmap(NULL, COUNTS * sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(found, MAP_FAILED);
    processes_run(COUNTS, body, NULL, 0);
    for (int i = 0; i < sums; i++) {
        for (int count = 1; count < COUNTS; count++) {
            if (found[count][i] != found[0][i] && found[0][SUMS] == 0) {
                skip(); /* OpenBLAS in its place promises nothing of the kind */
            }
            if (found[count][i] != found[0][i]) {
                fail_msg("case %d, %s: other bits with %s threads", i / tensors, names[i % tensors], threads[count]);
            }
        }
    }
    assert_int_equal(munmap(found, COUNTS * sizeof *found), 0);
}

static void test_convolution(void **state) {
    (void)state;
    expect_same_bits(convolve, 9, 3, (const char *const[]){"y", "gradient of x", "gradient of weight"});
}

static void test_attention(void **state) {
    (void)state;
    expect_same_bits(attend, 2 * TENSORS, TENSORS, (const char *const[]){"y", "dq", "dk", "dv"});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_convolution), cmocka_unit_test(test_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
