/*
 * Attention, rotary positions and layers that use them: values and gradients from PyTorch, blocks compared with the
 * whole matrix, memory, masked keys, refusals.
 *
 * devices: cpu shadow cuda
 * environment: OMP_NUM_THREADS=1
 */
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/nn.h>

#include "autograd/ops/attention.h"
#include "base/memory.h"
#include "tensor/scope.h"
#include "tests/support/elements.h"
#include "tests/support/operations.h"

FIXTURES(language, "language.txt")

/* ---- the operation ----------------------------------------------------------------------------------------------- */

TEST(test_agrees_with_pytorch) {
    const struct {
        const char *name;
        ls_shape q, k, v;
    } cases[] = {{"heads", LS_SHAPE(2, 3, 5, 4), LS_SHAPE(2, 3, 7, 4), LS_SHAPE(2, 3, 7, 3)},
                 {"batch", LS_SHAPE(2, 4, 4), LS_SHAPE(2, 4, 4), LS_SHAPE(2, 4, 3)},
                 {"plain", LS_SHAPE(3, 4), LS_SHAPE(6, 4), LS_SHAPE(6, 3)}};
    for (int i = 0; i < 6; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x[] = {wave(cases[i / 2].q, 1), wave(cases[i / 2].k, 2), wave(cases[i / 2].v, 3)};
        char name[64];
        snprintf(name, sizeof name, "attention/%s/%d", cases[i / 2].name, i % 2);
        check_against(language, name, ls_attention(x[0], x[1], x[2], &(ls_attention_options){.causal = i % 2 != 0}), x,
                      3, NULL, 0);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x[] = {wave(LS_SHAPE(2, 2, 4, 3), 1), wave(LS_SHAPE(2, 2, 5, 3), 2), wave(LS_SHAPE(2, 2, 5, 3), 3)};
    const ls_attention_options options = {.key_mask = ls_ge(wave_between(LS_SHAPE(2, 5), 4, -2, 2), 0), .scale = 0.7};
    check_against(language, "attention/masked", ls_attention(x[0], x[1], x[2], &options), x, 3, NULL, 0);
    for (int halves = 0; halves < 2; halves++) {
        ls_tensor *r = wave(LS_SHAPE(2, 3, 5, 6), 1);
        const ls_rotary_options rotary = {.base = 100, .first = 2, .halves = halves != 0};
        check_against(language, halves != 0 ? "rotary/1" : "rotary/0", ls_rotary(r, &rotary), &r, 1, NULL, 0);
    }
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

/* Computes the same result with the whole matrix of scores. `hidden` is bool, [queries, keys]. */
static ls_tensor *by_matrix(ls_tensor *q, ls_tensor *k, ls_tensor *v, ls_tensor *hidden) {
    ls_tensor *scores = ls_mul(ls_matmul(q, ls_transpose(k, -1, -2)), 1 / sqrt((double)ls_size(q, -1)));
    return ls_matmul(ls_softmax(ls_masked_fill(scores, hidden, -INFINITY), -1), v);
}

static void expect_near(const char *what, const ls_tensor *a, const ls_tensor *b, double most) {
    const double apart = ls_item(ls_max(ls_abs(ls_sub(ls_detach((ls_tensor *)a), ls_detach((ls_tensor *)b)))));
    if (!(apart <= most)) {
        fail_msg("%s: %g apart", what, apart);
    }
}

static ls_tensor *random_leaf(ls_shape shape, ls_dtype dtype) {
    ls_tensor *x = ls_randn(shape, dtype);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    return x;
}

/* Stores copies of the gradients of sum(y * weight) with respect to q, k and v, and zeros the gradients. */
static void gradients_of(ls_tensor *y, ls_tensor *weight, ls_tensor *const x[3], ls_tensor *copies[3]) {
    assert_int_equal(ls_backward(ls_sum(ls_mul(y, weight))), LS_OK);
    for (int i = 0; i < 3; i++) {
        copies[i] = ls_clone(ls_grad(x[i]));
        ls_zero_grad(x[i]);
    }
}

/* Compares the values and gradients of two equivalent computations. */
static void expect_equal_ways(ls_dtype dtype, ls_tensor *y[2], ls_tensor *gradients[2][3]) {
    const double most = dtype == LS_F32 ? 2e-5 : 1e-12;
    expect_near("values", y[0], y[1], most);
    for (int i = 0; i < 3; i++) {
        expect_near(i == 0 ? "dq" : i == 1 ? "dk" : "dv", gradients[0][i], gradients[1][i], 4 * most);
    }
}

static void check_blocks(int64_t queries, int64_t keys, bool causal, ls_dtype dtype) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(7);
    ls_tensor *x[] = {random_leaf(LS_SHAPE(2, 2, queries, 8), dtype), random_leaf(LS_SHAPE(2, 2, keys, 8), dtype),
                      random_leaf(LS_SHAPE(2, 2, keys, 5), dtype)};
    ls_tensor *mask = ls_gt(ls_rand(LS_SHAPE(1, keys), LS_F32), 0.3);
    ls_tensor *hidden = ls_logical_not(ls_repeat(mask, LS_SHAPE(queries, 1)));
    hidden = causal ? ls_logical_or(hidden, ls_triu(ls_ones(LS_SHAPE(queries, keys), LS_BOOL), 1)) : hidden;
    /* A query without keys would give NaN in the matrix. */
    assert_int_equal(ls_fill(ls_narrow(hidden, 1, 0, 1), 0), LS_OK);
    assert_int_equal(ls_fill(ls_narrow(mask, 1, 0, 1), 1), LS_OK);
    const ls_attention_options options = {.causal = causal, .key_mask = ls_repeat(mask, LS_SHAPE(2, 1))};
    ls_tensor *weight = ls_randn(LS_SHAPE(2, 2, queries, 5), dtype);
    ls_tensor *y[2], *gradients[2][3];
    for (int way = 0; way < 2; way++) {
        y[way] = way == 0 ? ls_attention(x[0], x[1], x[2], &options) : by_matrix(x[0], x[1], x[2], hidden);
        gradients_of(y[way], weight, x, gradients[way]);
    }
    expect_equal_ways(dtype, y, gradients);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

/* Tests lengths near multiples of the block sizes, 128 queries and 256 keys. */
TEST(test_blocks) {
    const int64_t lengths[][2] = {{1, 1}, {127, 255}, {128, 256}, {129, 257}, {300, 600}, {600, 300}, {3, 700}};
    for (int i = 0; i < 7; i++) {
        for (int causal = 0; causal < 2; causal++) {
            check_blocks(lengths[i][0], lengths[i][1], causal != 0, LS_F32);
            check_blocks(lengths[i][0], lengths[i][1], causal != 0, LS_F64);
        }
    }
}

/*
 * Compares masks of every shape that broadcasts, bool and numeric, with the whole matrix. A mask per key position is a
 * key mask.
 */
static void check_attn_mask(ls_shape shape, bool numbers, ls_dtype dtype) {
    enum { QUERIES = 140, KEYS = 300 };
    ls_scope *scope = ls_scope_begin();
    ls_seed(11);
    ls_tensor *x[] = {random_leaf(LS_SHAPE(2, 3, QUERIES, 8), dtype), random_leaf(LS_SHAPE(2, 3, KEYS, 8), dtype),
                      random_leaf(LS_SHAPE(2, 3, KEYS, 5), dtype)};
    ls_tensor *hidden = ls_lt(ls_rand(shape, LS_F32), 0.4);
    if (ls_size(hidden, -1) > 1) { /* a query without keys would give NaN in the matrix */
        assert_int_equal(ls_fill(ls_narrow(hidden, -1, 0, 1), 0), LS_OK);
    }
    ls_tensor *added = numbers ? ls_randn(shape, dtype) : ls_zeros(shape, dtype);
    added = ls_size(hidden, -1) > 1 ? ls_masked_fill(added, hidden, -INFINITY) : added;
    ls_tensor *mask = numbers ? added : ls_is_finite(added);
    ls_tensor *weight = ls_randn(LS_SHAPE(2, 3, QUERIES, 5), dtype), *y[2], *gradients[2][3];
    for (int way = 0; way < 2; way++) {
        ls_tensor *scores = way == 0 ? NULL : ls_mul(ls_matmul(x[0], ls_transpose(x[1], -1, -2)), 0.3);
        y[way] = way == 0 ? ls_attention(x[0], x[1], x[2], &(ls_attention_options){.attn_mask = mask, .scale = 0.3})
                          : ls_matmul(ls_softmax(ls_add(scores, added), -1), x[2]);
        gradients_of(y[way], weight, x, gradients[way]);
    }
    expect_equal_ways(dtype, y, gradients);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_attn_masks) {
    const ls_shape shapes[] = {LS_SHAPE(140, 300),
                               LS_SHAPE(3, 140, 300),
                               LS_SHAPE(2, 1, 140, 300),
                               LS_SHAPE(2, 3, 140, 300),
                               LS_SHAPE(2, 1, 1, 300),
                               LS_SHAPE(140, 1),
                               LS_SHAPE(300)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int numbers = 0; numbers < 2; numbers++) {
            check_attn_mask(shapes[i], numbers != 0, LS_F32);
            check_attn_mask(shapes[i], numbers != 0, LS_F64);
        }
    }
}

/* Attention on one joint projection equals attention on its three parts, with the same gradient. */
static void check_projection(ls_dtype dtype, bool causal) {
    enum { BATCH = 3, LENGTH = 70, HEADS = 2, WIDTH = 16 };
    ls_tensor *y[2], *x[2];
    for (int way = 0; way < 2; way++) {
        ls_seed(9);
        x[way] = random_leaf(LS_SHAPE(BATCH, LENGTH, 3 * HEADS * WIDTH), dtype);
        ls_tensor *parts[3];
        for (int i = 0; i < 3; i++) {
            ls_tensor *part = ls_narrow(x[way], -1, i * HEADS * WIDTH, HEADS * WIDTH);
            parts[i] = ls_transpose(ls_reshape(part, LS_SHAPE(BATCH, LENGTH, HEADS, WIDTH)), 1, 2);
        }
        ls_tensor *apart = ls_attention(parts[0], parts[1], parts[2], &(ls_attention_options){.causal = causal});
        y[way] = way == 0 ? ls_attention_of_projection(x[way], HEADS, causal)
                          : ls_reshape(ls_transpose(apart, 1, 2), LS_SHAPE(BATCH, LENGTH, HEADS * WIDTH));
        assert_int_equal(ls_backward(ls_sum(ls_sin(y[way]))), LS_OK);
    }
    const double tolerance = dtype == LS_F64 ? 1e-12 : dtype == LS_F32 ? 1e-5 : 2e-2;
    expect_near("values", y[0], y[1], tolerance);
    expect_near("gradient", ls_grad(x[0]), ls_grad(x[1]), tolerance);
}

SCOPED_TEST(test_one_projection) {
    const ls_dtype dtypes[] = {LS_F64, LS_F32, LS_BF16};
    for (int i = 0; i < 3; i++) {
        check_projection(dtypes[i], false);
        check_projection(dtypes[i], true);
    }
}

SCOPED_TEST(test_strides_and_dtypes) {
    ls_seed(8);
    ls_tensor *packed = random_leaf(LS_SHAPE(2, 6, 3, 2, 4), LS_F32); /* [n, length, 3, heads, width] */
    ls_tensor *parts[3], *dense[3], *thin[3];
    for (int i = 0; i < 3; i++) {
        parts[i] = ls_transpose(ls_select(packed, 2, i), 1, 2);
        dense[i] = ls_contiguous(parts[i]);
        thin[i] = ls_transpose(ls_contiguous(ls_transpose(parts[i], -1, -2)), -1, -2);
    }
    ls_tensor *y = ls_attention(dense[0], dense[1], dense[2], NULL);
    assert_true(ls_equal(y, ls_attention(parts[0], parts[1], parts[2], NULL)));
    assert_true(ls_equal(y, ls_attention(thin[0], parts[1], thin[2], NULL)));
    ls_tensor *one = ls_narrow(dense[1], 2, 0, 1);
    ls_tensor *many = ls_expand(one, LS_SHAPE(2, 2, 5, 4)); /* overlapping rows */
    expect_near("one key", ls_attention(dense[0], many, many, NULL), ls_expand(one, LS_SHAPE(2, 2, 6, 4)), 1e-6);
    for (int i = 0; i < 3; i++) {
        parts[i] = ls_to(parts[i], LS_BF16);
    }
    ls_tensor *half = ls_attention(parts[0], parts[1], parts[2], NULL);
    assert_int_equal(ls_dtype_of(half), LS_BF16);
    expect_near("bf16", ls_to(half, LS_F32), y, 0.03);
    assert_int_equal(ls_backward(ls_sum(ls_to(half, LS_F32))), LS_OK);
    assert_non_null(ls_grad(packed));
}

/* No keys, only masked keys, and scores that are NaN. */
SCOPED_TEST(test_nothing_to_see) {
    ls_tensor *x[] = {wave(LS_SHAPE(2, 1, 3, 2), 1), wave(LS_SHAPE(2, 1, 4, 2), 2), wave(LS_SHAPE(2, 1, 4, 2), 3)};
    const uint8_t seen[] = {0, 0, 0, 0, 1, 0, 1, 0};
    ls_tensor *y = ls_attention(
        x[0], x[1], x[2], &(ls_attention_options){.key_mask = ls_from(LS_SHAPE(2, 4), LS_U8, seen), .causal = true});
    assert_true(ls_equal(ls_select(y, 0, 0), ls_zeros(LS_SHAPE(1, 3, 2), LS_F64)));
    assert_int_equal(ls_backward(ls_sum(ls_square(y))), LS_OK);
    for (int i = 0; i < 3; i++) {
        assert_true(ls_equal(ls_select(ls_grad(x[i]), 0, 0), ls_zeros(LS_SHAPE(1, i == 0 ? 3 : 4, 2), LS_F64)));
        assert_true(ls_item(ls_min(ls_to(ls_is_finite(ls_grad(x[i])), LS_F32))) == 1);
    }
    ls_tensor *none = ls_attention(ls_ones(LS_SHAPE(3, 2), LS_F32), ls_ones(LS_SHAPE(0, 2), LS_F32),
                                   ls_ones(LS_SHAPE(0, 2), LS_F32), NULL);
    assert_true(ls_equal(none, ls_zeros(LS_SHAPE(3, 2), LS_F32)));
    ls_tensor *nan = ls_full(LS_SHAPE(3, 2), LS_F32, (double)NAN);
    ls_tensor *lost = ls_attention(nan, ls_ones(LS_SHAPE(4, 2), LS_F32), ls_ones(LS_SHAPE(4, 2), LS_F32), NULL);
    assert_true(ls_item(ls_min(ls_to(ls_is_nan(lost), LS_F32))) == 1);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The number of allocated bytes, and its maximum. */
typedef struct byte_count {
    atomic_llong held, most;
} byte_count;

enum { HEAD = 64 }; /* before each block, to store its size */

static void *count_allocate(size_t size, size_t alignment, void *user) {
    byte_count *bytes = user;
    const size_t head = alignment > HEAD ? alignment : HEAD;
    char *memory = NULL;
    if (posix_memalign((void **)&memory, head, head + size) != 0) {
        return NULL;
    }
    memcpy(memory + head - sizeof size, &size, sizeof size);
    memcpy(memory + head - 2 * sizeof size, &head, sizeof head);
    const long long held = atomic_fetch_add(&bytes->held, (long long)size) + (long long)size;
    if (held > atomic_load(&bytes->most)) {
        atomic_store(&bytes->most, held);
    }
    return memory + head;
}

static void count_release(void *memory, void *user) {
    byte_count *bytes = user;
    size_t size, head;
    if (memory == NULL) {
        return;
    }
    memcpy(&size, (char *)memory - sizeof size, sizeof size);
    memcpy(&head, (char *)memory - 2 * sizeof size, sizeof head);
    atomic_fetch_sub(&bytes->held, (long long)size);
    free((char *)memory - head);
}

enum { LENGTH = 4096, HEADS = 4, WIDTH = 64 };

/*
 * Requires that a training step of 4 heads of width 64 over 4096 positions needs less than 1 / `divisor` of the memory
 * that its scores and probabilities would need as matrices.
 */
static void check_memory(ls_dtype dtype, ls_shape mask, int divisor) {
    byte_count bytes = {0};
    ls_tensor *probe = ls_zeros(LS_SCALAR, LS_F32);
    const bool on_cpu = strcmp(ls_device_of(probe), "cpu") == 0;
    ls_release(probe);
    if (!on_cpu) {
        skip(); /* a device other than the CPU has its own memory */
    }
    ls_thread_end();
    ls_set_allocator(&(ls_allocator){.allocate = count_allocate, .release = count_release, .user = &bytes});
    ls_scope *scope = ls_scope_begin();
    ls_tensor *packed = random_leaf(LS_SHAPE(1, LENGTH, 3, HEADS, WIDTH), dtype);
    ls_tensor *parts[3];
    for (int i = 0; i < 3; i++) {
        parts[i] = ls_transpose(ls_select(packed, 2, i), 1, 2);
    }
    const ls_attention_options options = {.causal = true, .attn_mask = mask.ndim > 0 ? ls_ones(mask, LS_BOOL) : NULL};
    ls_tensor *y = ls_attention(parts[0], parts[1], parts[2], &options);
    assert_int_equal(ls_backward(ls_mean(ls_square(y))), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_thread_end();
    ls_set_allocator(NULL);
    const long long matrices = 2LL * HEADS * LENGTH * LENGTH * (long long)sizeof(float);
    assert_true(atomic_load(&bytes.most) >= 3LL * LENGTH * HEADS * WIDTH * (long long)ls_dtype_size(dtype));
    if (atomic_load(&bytes.most) * divisor >= matrices) {
        fail_msg("%lld bytes, but must be below 1 / %d of %lld", (long long)atomic_load(&bytes.most), divisor,
                 matrices);
    }
}

TEST(test_memory_is_linear) {
    check_memory(LS_F32, LS_SCALAR, 10);
}

/* A mask of one number per key, or of one number per head, is not expanded in memory. bf16 inputs are copied to f32. */
TEST(test_memory_of_broadcast_masks_is_linear) {
    check_memory(LS_BF16, LS_SHAPE(LENGTH), 5);
    check_memory(LS_F32, LS_SHAPE(HEADS, 1, 1), 10);
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* Initializes parameters with waves between -0.5 and 0.5, beginning with salt 2, and appends them to `count` inputs. */
static int with_waves(ls_module *module, ls_tensor **inputs, int count) {
    assert_non_null(module);
    const bool before = ls_no_grad(true);
    for (int i = 0; i < ls_module_parameter_count(module); i++) {
        inputs[count] = ls_module_parameter(module, i);
        ls_tensor *values = wave_between(ls_shape_of(inputs[count]), 2 + i, -0.5, 0.5);
        assert_int_equal(ls_copy_into(inputs[count++], values), LS_OK);
    }
    (void)ls_no_grad(before);
    return count;
}

static void check_multi_head(bool bias) {
    const ls_attention_layer_options options = {.dtype = LS_F64, .no_bias = !bias};
    char name[64];
    for (int cross = 0; cross < 2; cross++) {
        ls_scope *scope = ls_scope_begin();
        ls_module *module = ls_nn_multi_head_attention(6, 3, &options);
        ls_tensor *all[8] = {wave(LS_SHAPE(2, 4, 6), 1), cross != 0 ? wave(LS_SHAPE(2, 5, 6), 20) : NULL,
                             cross != 0 ? wave(LS_SHAPE(2, 5, 6), 21) : NULL};
        const int count = with_waves(module, all, cross != 0 ? 3 : 1);
        ls_tensor *mask = ls_ge(wave_between(LS_SHAPE(2, 5), 4, -2, 2), -1.0);
        ls_tensor *y = NULL;
        ls_tensor *const inputs[] = {all[0], all[1], all[2], mask};
        assert_int_equal(ls_forward_many(module, inputs, cross != 0 ? 4 : 1, &y, 1), LS_OK);
        snprintf(name, sizeof name, "multi_head_attention/%s/%s", cross != 0 ? "cross" : "self",
                 bias ? "bias" : "plain");
        check_against(language, name, y, all, count, NULL, 0);
        ls_module_free(module);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

TEST(test_multi_head_attention) {
    check_multi_head(true);
    check_multi_head(false);
    ls_module *module = ls_nn_multi_head_attention(6, 3, NULL);
    assert_non_null(ls_module_find(module, "in_proj_weight"));
    assert_non_null(ls_module_find(module, "in_proj_bias"));
    assert_non_null(ls_module_find(module, "out_proj.weight"));
    assert_non_null(ls_module_find(module, "out_proj.bias"));
    assert_int_equal(ls_module_parameter_count(module), 4);
    ls_module_free(module);
}

TEST(test_transformer_block) {
    for (int causal = 0; causal < 2; causal++) {
        ls_scope *scope = ls_scope_begin();
        ls_module *module =
            ls_nn_transformer_block(6, 2,
                                    &(ls_transformer_options){.norm_first = true,
                                                              .activation = LS_MLP_GELU,
                                                              .hidden = 8,
                                                              .attention = {.dtype = LS_F64, .causal = causal != 0}});
        ls_tensor *all[16] = {wave(LS_SHAPE(2, 4, 6), 1)};
        const int count = with_waves(module, all, 1);
        assert_int_equal(count, 13);
        check_against(language, causal != 0 ? "transformer_block/causal" : "transformer_block/plain",
                      ls_forward(module, all[0]), all, count, NULL, 0);
        ls_module_free(module);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* Masked and later positions have no effect. Rotary attention depends only on distances. */
SCOPED_TEST(test_what_a_block_sees) {
    ls_seed(9);
    ls_module *causal =
        ls_nn_transformer_block(8, 2, &(ls_transformer_options){.attention = {.causal = true, .rotary = true}});
    ls_tensor *x = ls_randn(LS_SHAPE(2, 5, 8), LS_F32);
    ls_tensor *later = ls_concat((ls_tensor *[]){ls_narrow(x, 1, 0, 3), ls_randn(LS_SHAPE(2, 2, 8), LS_F32)}, 2, 1);
    ls_tensor *y = ls_forward(causal, x), *other = ls_forward(causal, later);
    expect_near("what comes before", ls_narrow(y, 1, 0, 3), ls_narrow(other, 1, 0, 3), 1e-6);
    assert_false(ls_equal(ls_narrow(y, 1, 3, 2), ls_narrow(other, 1, 3, 2)));
    ls_module_free(causal);

    ls_module *block = ls_nn_transformer_block(8, 2, NULL);
    ls_tensor *mask = ls_from(LS_SHAPE(2, 5), LS_U8, (const uint8_t[]){1, 1, 1, 0, 0, 1, 1, 1, 0, 0});
    ls_tensor *masked[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ls_forward_many(block, (ls_tensor *[]){i == 0 ? x : later, mask}, 2, &masked[i], 1), LS_OK);
    }
    expect_near("what is not masked", ls_narrow(masked[0], 1, 0, 3), ls_narrow(masked[1], 1, 0, 3), 1e-6);
    ls_module_free(block);

    ls_module *attention = ls_nn_multi_head_attention(8, 2, &(ls_attention_layer_options){.rotary = true});
    ls_module *moved =
        ls_nn_multi_head_attention(8, 2, &(ls_attention_layer_options){.rotary = true, .positions = {.first = 1000}});
    const bool before = ls_no_grad(true);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ls_copy_into(ls_module_parameter(moved, i), ls_module_parameter(attention, i)), LS_OK);
    }
    (void)ls_no_grad(before);
    expect_near("moved positions", ls_forward(attention, x), ls_forward(moved, x), 1e-5);
    ls_module_free(attention);
    ls_module_free(moved);
}

TEST(test_positions) {
    ls_scope *scope = ls_scope_begin();
    ls_module *module = ls_nn_positions(5, 3, LS_F32);
    ls_tensor *x = ls_zeros(LS_SHAPE(2, 4, 3), LS_F32);
    ls_tensor *y = ls_forward(module, x);
    assert_true(ls_equal(ls_select(y, 0, 1), ls_narrow(ls_module_find(module, "weight"), 0, 0, 4)));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    scope = ls_scope_begin();
    check_refused_in(scope, ls_forward(module, ls_zeros(LS_SHAPE(2, 6, 3), LS_F32)), LS_ERR_SHAPE,
                     "Positions: x is [2, 6, 3], but must be [..., positions, 3] with at most 5 positions");
    ls_module_free(module);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

#define REFUSED(expression, status, words)                                                                             \
    scope = ls_scope_begin();                                                                                          \
    x = ls_ones(LS_SHAPE(2, 3, 4), LS_F32);                                                                            \
    check_refused_in(scope, expression, status, words);

TEST(test_refusals) {
    ls_scope *scope;
    ls_tensor *x;
    REFUSED(ls_attention(x, NULL, x, NULL), LS_ERR_ARGUMENT, "ls_attention: argument 2 is NULL")
    REFUSED(ls_attention(x, ls_to(x, LS_F64), x, NULL), LS_ERR_SHAPE, "element types f32 and f64 differ")
    REFUSED(ls_attention(x, ls_select(x, 0, 0), x, NULL), LS_ERR_SHAPE, "k [3, 4], v [2, 3, 4]: all must be")
    REFUSED(ls_attention(x, ls_narrow(x, 0, 0, 1), x, NULL), LS_ERR_SHAPE, "the batches differ")
    REFUSED(ls_attention(x, ls_narrow(x, 2, 0, 2), x, NULL), LS_ERR_SHAPE, "the widths of q and k differ")
    REFUSED(ls_attention(x, ls_narrow(x, 1, 0, 2), x, NULL), LS_ERR_SHAPE, "the lengths of k and v differ")
    REFUSED(ls_attention(x, x, x, &(ls_attention_options){.key_mask = ls_ones(LS_SHAPE(2, 3), LS_F32)}), LS_ERR_SHAPE,
            "the key mask is a tensor of f32")
    REFUSED(ls_attention(x, x, x, &(ls_attention_options){.key_mask = ls_ones(LS_SHAPE(3), LS_BOOL)}), LS_ERR_SHAPE,
            "the key mask is [3], but must be [batch, keys] for k [2, 3, 4]")
    REFUSED(ls_attention(x, x, x, &(ls_attention_options){.attn_mask = ls_ones(LS_SHAPE(3, 3), LS_U8)}), LS_ERR_SHAPE,
            "attn_mask is a tensor of u8, but must be bool or f32, the dtype of q")
    REFUSED(ls_attention(x, x, x, &(ls_attention_options){.attn_mask = ls_ones(LS_SHAPE(2, 3), LS_BOOL)}), LS_ERR_SHAPE,
            "attn_mask is [2, 3], but must broadcast to [batch, heads, queries, keys] for q [2, 3, 4] and k [2, 3, 4]")
    REFUSED(ls_attention(x, x, x, &(ls_attention_options){.attn_mask = random_leaf(LS_SHAPE(3, 3), LS_F32)}),
            LS_ERR_UNSUPPORTED, "attn_mask requires a gradient, which is not supported")
    REFUSED(ls_rotary(ls_narrow(x, 2, 0, 3), NULL), LS_ERR_SHAPE, "ls_rotary: x is [2, 3, 3]")
    REFUSED(ls_rotary(x, &(ls_rotary_options){.base = -1}), LS_ERR_ARGUMENT, "ls_rotary: base is -1")
    REFUSED(ls_rotary(x, &(ls_rotary_options){.base = INFINITY}), LS_ERR_ARGUMENT, "ls_rotary: base is inf")
    REFUSED(ls_rotary(x, &(ls_rotary_options){.first = INT64_MAX}), LS_ERR_ARGUMENT,
            "ls_rotary: first is 9223372036854775807, but positions must be from -2^53 to 2^53")
    scope = ls_scope_begin();
    for (int half = 0; half < 2; half++) { /* computed in f32 */
        const ls_dtype dtype = half == 0 ? LS_BF16 : LS_F16;
        ls_tensor *narrow = ls_to(ls_randn(LS_SHAPE(9, 8), LS_F32), dtype);
        assert_true(ls_allclose(ls_rotary(narrow, NULL), ls_to(ls_rotary(ls_to(narrow, LS_F32), NULL), dtype), 0, 0));
    }
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_null(ls_nn_multi_head_attention(6, 4, NULL));
    expect_message("width 6 cannot be divided into 4 heads");
    assert_null(ls_nn_multi_head_attention(6, 2, &(ls_attention_layer_options){.rotary = true}));
    expect_message("even width");
    assert_null(ls_nn_transformer_block(6, 4, NULL));
    expect_message("width 6 cannot be divided into 4 heads");
    assert_null(ls_nn_positions(0, 4, LS_F32));
    ls_module *module = ls_nn_multi_head_attention(8, 4, NULL);
    REFUSED(ls_forward(module, x), LS_ERR_SHAPE, "MultiheadAttention: input 1 is [2, 3, 4], but must be [n, length, 8]")
    REFUSED(ls_forward(module, NULL), LS_ERR_ARGUMENT, "MultiheadAttention: the query is NULL")
    REFUSED(ls_forward(module, ls_reshape(x, LS_SHAPE(7))), LS_ERR_SHAPE, "ls_reshape: ")
    ls_module_free(module);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees_with_pytorch),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_attn_masks),
        cmocka_unit_test(test_one_projection),
        cmocka_unit_test(test_strides_and_dtypes),
        cmocka_unit_test(test_nothing_to_see),
        cmocka_unit_test(test_memory_is_linear),
        cmocka_unit_test(test_memory_of_broadcast_masks_is_linear),
        cmocka_unit_test(test_multi_head_attention),
        cmocka_unit_test(test_transformer_block),
        cmocka_unit_test(test_what_a_block_sees),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, language_begin, language_end);
}
