/*
 * Results of matrix products in f32 and f64, of convolutions and attention in f32, and their gradients are
 * bit-identical, whatever number of threads the library uses. loop_threads.c tests Lockstep's own loops.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <lockstep/attention.h>
#include <lockstep/autograd.h>
#include <lockstep/convolution.h>

#include "tensor/device/cpu/cpu_kernels.h"
#include "tensor/device/cpu/libraries.h"
#include "tests/support/processes.h"

enum { COUNTS = 4, MOST = 512, TENSORS = 4 };

static const char *const threads[COUNTS] = {"1", "2", "3", "8"};

/* The results of each process; the last entry tells whether module onednn is available. */
static uint64_t (*found)[MOST + 1];

static uint64_t bits_of_numbers(const void *numbers, size_t bytes) {
    uint64_t sum = 0xcbf29ce484222325U;
    const unsigned char *byte = numbers;
    for (size_t i = 0; byte != NULL && i < bytes; i++) {
        sum = (sum ^ byte[i]) * 0x100000001b3U;
    }
    return sum;
}

static uint64_t bits_of(ls_tensor *x) {
    ls_tensor *on_host = ls_tensor_to_device(x, "cpu");
    return bits_of_numbers(on_host != NULL ? ls_data_const(on_host) : NULL, (size_t)ls_numel(x) * sizeof(float));
}

/*
 * Sets the number of threads of the process. Lockstep's loops use them once module onednn is open. Loops alone never
 * open it, so this function opens it and checks its number of threads. The parent never opens it, because children
 * would inherit its threads.
 */
static const char *take_threads(int number) {
    LS_MUST(setenv("OMP_NUM_THREADS", threads[number], 1) == 0); /* read when oneDNN is opened */
    LS_MUST(setenv("OMP_WAIT_POLICY", "passive", 1) == 0);
    const ls_onednn *onednn = ls_onednn_open();
    LS_MUST(onednn == NULL || onednn->team() == (int)strtol(threads[number], NULL, 10));
    found[number][MOST] = onednn != NULL;
    return NULL;
}

/*
 * Products of layers with one sample and with a batch, of their gradients, of attention heads, and long sums with few
 * results: libraries distribute them over threads, or use different code with several threads.
 */
static const int64_t products[][3] = {
    {1, 512, 784},   {7, 512, 784},   {16, 512, 784},  {33, 512, 784},   {64, 512, 784},   {64, 784, 512},
    {512, 784, 64},  {512, 784, 7},   {512, 784, 256}, {64, 512, 512},   {64, 10, 512},    {64, 512, 10},
    {10, 512, 64},   {64, 10, 3136},  {10, 3136, 64},  {64, 128, 3136},  {64, 3136, 128},  {128, 3136, 64},
    {20, 980, 33},   {33, 10, 980},   {500, 512, 784}, {1024, 384, 128}, {128, 384, 1024}, {1024, 128, 512},
    {128, 128, 32},  {128, 32, 128},  {128, 128, 784}, {64, 64, 64},     {300, 300, 300},  {530, 530, 530},
    {1, 1000, 3000}, {1000, 1, 3000}, {64, 64, 20000}, {3, 5, 70000},    {130, 9, 9000},
};
enum { PRODUCTS = sizeof products / sizeof *products };

static void *random_numbers(int64_t count, ls_dtype dtype) {
    ls_tensor *on_host = ls_tensor_to_device(ls_randn(LS_SHAPE(count), dtype), "cpu");
    return on_host != NULL ? ls_data(on_host) : NULL;
}

/* Computes the product with each operand plain or transposed. Every second product adds to the existing result. */
static const char *multiply_one(uint64_t sums[4], int i, ls_dtype dtype) {
    const int64_t m = products[i][0], n = products[i][1], k = products[i][2];
    ls_scope *scope = ls_scope_begin();
    ls_seed(1);
    const void *a = random_numbers(m * k, dtype), *b = random_numbers(k * n, dtype);
    LS_MUST(a != NULL && b != NULL);
    for (int kind = 0; kind < 4; kind++) {
        ls_gemm gemm = {.dtype = dtype, .m = m, .n = n, .k = k, .a = a, .b = b, .ldc = n};
        gemm.transpose_a = kind >= 2, gemm.lda = kind >= 2 ? m : k;
        gemm.transpose_b = kind % 2 == 1, gemm.ldb = kind % 2 == 1 ? k : n;
        gemm.accumulate = i % 2 == 1;
        gemm.c = random_numbers(m * n, dtype);
        LS_MUST(gemm.c != NULL && ls_cpu_gemm(NULL, &gemm) == LS_OK);
        sums[kind] = bits_of_numbers(gemm.c, (size_t)(m * n) * ls_dtype_size(dtype));
    }
    LS_MUST(ls_scope_end(scope) == LS_OK);
    return NULL;
}

static const char *multiply(int number, const void *dtype) {
    LS_MUST(take_threads(number) == NULL);
    for (int i = 0; i < PRODUCTS; i++) {
        LS_MUST(multiply_one(&found[number][4 * i], i, *(const ls_dtype *)dtype) == NULL);
    }
    return NULL;
}

/* Samples, input channels, height and width, output channels, kernel size, padding. */
static const int64_t convolutions[][6] = {{2, 128, 28, 128, 1, 0}, {2, 3, 80, 64, 7, 3},  {2, 512, 6, 8, 3, 1},
                                          {16, 64, 14, 64, 1, 0},  {7, 16, 7, 40, 1, 0},  {33, 1, 28, 12, 3, 1},
                                          {33, 12, 14, 20, 3, 1},  {64, 32, 14, 64, 3, 1}};
enum { CONVOLUTIONS = sizeof convolutions / sizeof *convolutions };

static const char *convolve(int number, const void *what) {
    (void)what;
    LS_MUST(take_threads(number) == NULL);
    for (int i = 0; i < CONVOLUTIONS; i++) {
        const int64_t *s = convolutions[i];
        ls_scope *scope = ls_scope_begin();
        ls_seed(1);
        ls_tensor *x = ls_randn(LS_SHAPE(s[0], s[1], s[2], s[2]), LS_F32);
        ls_tensor *weight = ls_randn(LS_SHAPE(s[3], s[1], s[4], s[4]), LS_F32);
        LS_MUST(ls_set_requires_grad(x, true) == LS_OK && ls_set_requires_grad(weight, true) == LS_OK);
        ls_tensor *y = ls_conv(x, weight, NULL, &(ls_conv_options){.padding = LS_SHAPE(s[5])});
        LS_MUST(ls_backward(ls_sum(ls_square(y))) == LS_OK);
        found[number][3 * i] = bits_of(y);
        found[number][3 * i + 1] = bits_of(ls_grad(x));
        found[number][3 * i + 2] = bits_of(ls_grad(weight));
        LS_MUST(ls_scope_end(scope) == LS_OK);
    }
    return NULL;
}

/* Queries, keys, and width of a head. */
static const int64_t heads[][3] = {{128, 8, 2048}, {8, 128, 1024}, {128, 128, 32}, {200, 300, 64}};
enum { HEADS = sizeof heads / sizeof *heads };

/* Computes y, and the gradients of queries, keys and values. */
static const char *attend(int number, const void *what) {
    (void)what;
    LS_MUST(take_threads(number) == NULL);
    for (int i = 0; i < HEADS; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_seed(1);
        ls_tensor *x[3];
        for (int k = 0; k < 3; k++) {
            x[k] = ls_randn(LS_SHAPE(heads[i][k > 0], heads[i][2]), LS_F32);
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

static void expect_same_bits(process_body body, const void *what, int sums, int tensors, const char *const *names) {
    assert_in_range(sums, 1, MOST);
    found = mmap(NULL, COUNTS * sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(found, MAP_FAILED);
    processes_run(COUNTS, body, what, 0);
    for (int i = 0; i < sums; i++) {
        for (int count = 1; count < COUNTS; count++) {
            if (found[count][i] != found[0][i] && found[0][MOST] == 0) {
                skip(); /* OpenBLAS, which replaces it, does not guarantee this */
            }
            if (found[count][i] != found[0][i]) {
                fail_msg("case %d, %s: other bits with %s threads", i / tensors, names[i % tensors], threads[count]);
            }
        }
    }
    assert_int_equal(munmap(found, COUNTS * sizeof *found), 0);
}

TEST(test_products) {
    static const ls_dtype dtypes[] = {LS_F32, LS_F64};
    for (int i = 0; i < 2; i++) {
        expect_same_bits(multiply, &dtypes[i], 4 * PRODUCTS, 4,
                         (const char *const[]){"a b", "a b^T", "a^T b", "a^T b^T"});
    }
}

TEST(test_convolution) {
    expect_same_bits(convolve, NULL, 3 * CONVOLUTIONS, 3,
                     (const char *const[]){"y", "gradient of x", "gradient of weight"});
}

TEST(test_attention) {
    expect_same_bits(attend, NULL, HEADS * TENSORS, TENSORS, (const char *const[]){"y", "dq", "dk", "dv"});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_convolution),
                                       cmocka_unit_test(test_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
