/*
 * Wire formats defined by the program. A format that rounds to f16 gives results that are bit-identical to
 * `.reduce_dtype`. Formats may send fewer numbers and keep the numbers that were not sent. If a function fails on one
 * rank, all ranks fail with its name. Gradients that differ between the ranks are refused. Also tests other errors.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/float16.h"
#include "tests/support/numbers.h"

enum { INPUTS = 7, WIDTH = 61, OUTPUTS = 3, STEPS = 4, SEED = 5, SPACE = 16384 };

static ls_module *make(void) {
    ls_seed(SEED);
    return ls_sequential(ls_nn_linear(INPUTS, WIDTH), ls_nn_tanh(), ls_nn_linear(WIDTH, WIDTH), ls_nn_tanh(),
                         ls_nn_linear(WIDTH, OUTPUTS));
}

/* Ways of averaging: at once, and in buckets of one parameter each during the backward pass. */
static ls_module *wrap(ls_comm *world, ls_wire_format *wire, ls_dtype dtype, bool overlap) {
    return ls_data_parallel(make(), world,
                            &(ls_data_parallel_options){.wire = wire,
                                                        .reduce_dtype = dtype,
                                                        .overlap = overlap ? LS_OVERLAP_ON : LS_OVERLAP_OFF,
                                                        .bucket_bytes = 1});
}

/* The ranks have different numbers of samples, so that the gradients have different weights. */
static ls_status run_pass(const ls_comm *world, ls_module *model, int step) {
    const int rank = ls_comm_rank(world);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_empty(LS_SHAPE(2 + (rank + step) % 3, INPUTS), LS_F32);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        numbers_set(x, i, ls_random_normal(SEED, (uint64_t)(step * 100 + rank), (uint64_t)i));
    }
    const ls_status status = ls_backward(ls_mean(ls_square(ls_forward(model, x))));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_status train(const ls_comm *world, ls_module *model) {
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    ls_status status = LS_OK;
    for (int step = 0; step < STEPS && status == LS_OK; step++) {
        ls_optimizer_zero_grad(optimizer);
        if (step == 2) { /* accumulates two passes */
            LS_TRY(ls_data_parallel_no_sync(model, true));
            LS_TRY(run_pass(world, model, 10));
            LS_TRY(ls_data_parallel_no_sync(model, false));
        }
        status = run_pass(world, model, step);
        status = status == LS_OK ? ls_optimizer_step(optimizer) : status;
    }
    ls_optimizer_free(optimizer);
    return status;
}

/* ---- f16 by hand ------------------------------------------------------------------------------------------------- */

/* What the functions of a format were called with, and whether they fail. */
typedef struct record {
    int64_t encoded;
    int64_t decoded;
    int64_t end;
    bool fails_to_encode, fails_to_decode, silent;
    int released;
} record;

static ls_status broken(const record *r) {
    return r->silent ? LS_ERR_IO : ls_fail(LS_ERR_IO, "the codec is broken");
}

static ls_status encode_f16(const float *gradients, int64_t first, int64_t count, void *encoded, void *user) {
    record *r = user;
    r->encoded += count;
    r->end = first + count > r->end ? first + count : r->end;
    for (int64_t i = 0; i < count; i++) {
        ((uint16_t *)encoded)[i] = ls_f16_from_float(gradients[i]);
    }
    return r->fails_to_encode ? broken(r) : LS_OK;
}

static ls_status decode_f16(const void *encoded, int64_t first, int64_t count, float *gradients, void *user) {
    record *r = user;
    (void)first;
    r->decoded += count;
    for (int64_t i = 0; i < count; i++) {
        gradients[i] = ls_f16_to_float(((const uint16_t *)encoded)[i]);
    }
    return r->fails_to_decode ? broken(r) : LS_OK;
}

static void release(void *user) {
    ((record *)user)->released++;
}

static const ls_wire_functions f16_functions = {
    .name = "f16 by hand", .dtype = LS_F16, .encode = encode_f16, .decode = decode_f16, .release = release};

static ls_status same_as_built_in(ls_comm *world, bool overlap) {
    record r = {0};
    ls_wire_format *format = ls_wire_format_new(&f16_functions, &r);
    ls_module *own = wrap(world, format, LS_F32, overlap);
    ls_module *built_in = wrap(world, NULL, LS_F16, overlap);
    ls_module *plain = wrap(world, NULL, LS_F32, overlap);
    ls_wire_format_free(format);
    LS_CHECK(own != NULL && built_in != NULL && plain != NULL && r.released == 0);
    LS_TRY(train(world, own));
    LS_TRY(train(world, built_in));
    LS_TRY(train(world, plain));
    LS_CHECK(ls_module_hash(own) == ls_module_hash(built_in));
    LS_TRY(ranks_have_same_module(world, own));
    const bool several = ls_comm_size(world) > 1;
    LS_CHECK((ls_module_hash(own) == ls_module_hash(plain)) == !several);
    LS_CHECK(r.encoded == (several ? STEPS * r.end : 0) && r.decoded == r.encoded && r.end % 16 == 0);
    ls_module_free(own);
    LS_CHECK(r.released == 1);
    ls_module_free(built_in);
    ls_module_free(plain);
    return LS_OK;
}

/* ---- fewer numbers, with error feedback -------------------------------------------------------------------------- */

/* Sends one number for two gradients: their mean. Each rank keeps the difference. Decodes the padding to ones. */
typedef struct pairs {
    float errors[SPACE];
} pairs;

static int64_t half(int64_t count, void *user) {
    (void)user;
    return (count + 1) / 2;
}

static ls_status encode_pairs(const float *gradients, int64_t first, int64_t count, void *encoded, void *user) {
    pairs *p = user;
    LS_CHECK(first >= 0 && first % 16 == 0 && count % 16 == 0 && first + count <= SPACE);
    for (int64_t i = 0; i < count; i += 2) {
        float *error = &p->errors[first + i];
        const float a = gradients[i] + error[0], b = gradients[i + 1] + error[1], mean = (a + b) / 2;
        ((float *)encoded)[i / 2] = mean;
        error[0] = a - mean;
        error[1] = b - mean;
    }
    return LS_OK;
}

static ls_status decode_pairs(const void *encoded, int64_t first, int64_t count, float *gradients, void *user) {
    (void)first;
    (void)user;
    for (int64_t i = 0; i < count; i++) {
        gradients[i] = ((const float *)encoded)[i / 2] + (i % 2 == 0 ? 1.0F : -1.0F);
    }
    return LS_OK;
}

/* Compares with the mean of pairs of the gradients that plain averaging gives. */
static ls_status fewer_numbers(ls_comm *world, bool overlap) {
    pairs *state = calloc(1, sizeof *state);
    LS_CHECK(state != NULL);
    const ls_wire_functions functions = {
        .name = "pairs", .length = half, .encode = encode_pairs, .decode = decode_pairs, .release = free};
    ls_wire_format *format = ls_wire_format_new(&functions, state);
    ls_module *own = wrap(world, format, LS_F32, overlap), *plain = wrap(world, NULL, LS_F32, overlap);
    LS_CHECK(own != NULL && plain != NULL);
    LS_TRY(run_pass(world, own, 0));
    LS_TRY(run_pass(world, plain, 0));
    for (int k = 0; k < ls_module_parameter_count(own) && ls_comm_size(world) > 1; k++) {
        const ls_tensor *g = ls_grad(ls_module_parameter(own, k)), *expected = ls_grad(ls_module_parameter(plain, k));
        for (int64_t i = 0; i < ls_numel(g); i++) {
            const int64_t other = i % 2 == 0 ? i + 1 : i - 1;
            const double pair = other < ls_numel(g) ? numbers_get(expected, other) : 0;
            const double mean = (numbers_get(expected, i) + pair) / 2 + (i % 2 == 0 ? 1 : -1);
            LS_CHECK(fabs(numbers_get(g, i) - mean) < 1e-5);
        }
    }
    if (ls_comm_size(world) > 1) { /* the padding is zero again: the norm counts it */
        double squares = 0;
        for (int k = 0; k < ls_module_parameter_count(own); k++) {
            const ls_tensor *g = ls_grad(ls_module_parameter(own, k));
            for (int64_t i = 0; i < ls_numel(g); i++) {
                squares += numbers_get(g, i) * numbers_get(g, i);
            }
        }
        double norm = 0;
        LS_TRY(ls_clip_grad_norm(own, 1e9, &norm));
        LS_CHECK(fabs(norm - sqrt(squares)) < 1e-4 * norm);
    }
    ls_module_free(own);
    ls_module_free(plain);
    ls_wire_format_free(format);
    return LS_OK;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static ls_status fails_on_all_ranks(ls_comm *world, bool overlap, bool decodes, bool silent) {
    const int size = ls_comm_size(world), culprit = size - 1;
    const bool here = ls_comm_rank(world) == culprit;
    record r = {0};
    ls_wire_format *format = ls_wire_format_new(&f16_functions, &r);
    ls_module *model = wrap(world, format, LS_F32, overlap);
    LS_CHECK(model != NULL);
    char wanted[160];
    snprintf(wanted, sizeof wanted, "`%s` of the wire format \"f16 by hand\" has failed on rank %d: %s",
             decodes ? "decode" : "encode", culprit, silent ? "LS_ERR_IO" : "the codec is broken");
    for (int step = 0; step < STEPS && size > 1; step++) {
        r.fails_to_encode = here && !decodes && step % 2 == 1;
        r.fails_to_decode = here && decodes && step % 2 == 1;
        r.silent = silent;
        const ls_status status = run_pass(world, model, step);
        if (step % 2 == 0) {
            LS_TRY(status);
            LS_TRY(ranks_have_same_module(world, model));
        } else {
            LS_CHECK(status == (here ? LS_ERR_IO : LS_ERR_MISMATCH));
            LS_EXPECT_MESSAGE(wanted);
            LS_CHECK(ls_grad(ls_module_parameter(model, 0)) == NULL);
        }
    }
    ls_module_free(model);
    ls_wire_format_free(format);
    return ls_comm_barrier(world, NULL);
}

/* Makes the gradients of the last rank a little larger on request. */
static ls_status decode_unequally(const void *encoded, int64_t first, int64_t count, float *gradients, void *user) {
    const bool *unequal = user;
    (void)first;
    for (int64_t i = 0; i < count; i++) {
        gradients[i] = ((const float *)encoded)[i];
    }
    gradients[0] = *unequal ? nextafterf(gradients[0], 1e9F) : gradients[0];
    return LS_OK;
}

static ls_status encode_plainly(const float *gradients, int64_t first, int64_t count, void *encoded, void *user) {
    (void)first;
    (void)user;
    memcpy(encoded, gradients, (size_t)count * sizeof *gradients);
    return LS_OK;
}

/* One bit that differs on one rank fails the pass on all ranks. Later passes succeed. */
static ls_status refused_bits(ls_comm *world, bool overlap) {
    bool unequal = false;
    const ls_wire_functions functions = {.name = "odd", .encode = encode_plainly, .decode = decode_unequally};
    ls_wire_format *format = ls_wire_format_new(&functions, &unequal);
    ls_module *model = wrap(world, format, LS_F32, overlap);
    LS_CHECK(model != NULL);
    for (int step = 0; step < STEPS && ls_comm_size(world) > 1; step++) {
        unequal = step % 2 == 1 && ls_comm_rank(world) == ls_comm_size(world) - 1;
        const ls_status status = run_pass(world, model, step);
        if (step % 2 == 0) {
            LS_TRY(status);
        } else {
            LS_CHECK(status == LS_ERR_MISMATCH);
            LS_EXPECT_MESSAGE("`decode` of the wire format \"odd\" has given the ranks different gradients");
            LS_CHECK(ls_grad(ls_module_parameter(model, 0)) == NULL);
        }
    }
    ls_module_free(model);
    ls_wire_format_free(format);
    return ls_comm_barrier(world, NULL);
}

/* Returns one number less on the last rank. */
static int64_t unequal_length(int64_t count, void *user) {
    const ls_comm *world = user;
    return ls_comm_rank(world) == ls_comm_size(world) - 1 ? count - 1 : count;
}

static ls_status encode_nothing(const float *gradients, int64_t first, int64_t count, void *encoded, void *user) {
    (void)gradients;
    (void)first;
    (void)user;
    memset(encoded, 0, (size_t)(count - 1) * sizeof *gradients);
    return LS_OK;
}

static ls_status decode_nothing(const void *encoded, int64_t first, int64_t count, float *gradients, void *user) {
    (void)encoded;
    (void)first;
    (void)user;
    memset(gradients, 0, (size_t)count * sizeof *gradients);
    return LS_OK;
}

static ls_status refused_lengths(ls_comm *world, bool overlap) {
    const ls_wire_functions functions = {
        .name = "shorter", .length = unequal_length, .encode = encode_nothing, .decode = decode_nothing};
    ls_wire_format *format = ls_wire_format_new(&functions, world);
    ls_module *model = wrap(world, format, LS_F32, overlap);
    LS_CHECK(model != NULL);
    for (int step = 0; step < 2 && ls_comm_size(world) > 1; step++) { /* the second pass may overlap */
        LS_CHECK(run_pass(world, model, step) == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE("`length` of the wire format \"shorter\" must return the same number on all ranks");
    }
    ls_module_free(model);
    ls_wire_format_free(format);
    return LS_OK;
}

static int64_t too_long(int64_t count, void *user) {
    (void)user;
    return count + 1;
}

static ls_status refused_functions(ls_comm *world) {
    record r = {0};
    ls_wire_functions functions = f16_functions;
    LS_CHECK(ls_wire_format_new(NULL, NULL) == NULL);
    functions.encode = NULL;
    LS_CHECK(ls_wire_format_new(&functions, &r) == NULL && r.released == 1);
    LS_EXPECT_MESSAGE("ls_wire_format_new: set .name, .encode and .decode");
    functions = f16_functions;
    functions.dtype = LS_I32;
    LS_CHECK(ls_wire_format_new(&functions, &r) == NULL && r.released == 2);
    LS_EXPECT_MESSAGE("must be f32, f64, bf16 or f16");
    functions = f16_functions;
    functions.name = "a name that has more bytes than a name may have";
    LS_CHECK(ls_wire_format_new(&functions, &r) == NULL);
    ls_wire_format_free(NULL);

    functions = f16_functions;
    functions.length = too_long;
    ls_wire_format *format = ls_wire_format_new(&functions, &r);
    ls_module *model = wrap(world, format, LS_F32, false);
    LS_CHECK(model != NULL && (run_pass(world, model, 0) == LS_OK) == (ls_comm_size(world) == 1));
    if (ls_comm_size(world) > 1) {
        LS_EXPECT_MESSAGE("must be 0 to ");
    }
    ls_module_free(model);
    ls_wire_format_free(format);
    return LS_OK;
}

static ls_status refused_options(ls_comm *world) {
    record r = {0};
    ls_wire_format *format = ls_wire_format_new(&f16_functions, &r);
    const ls_data_parallel_options combined[] = {{.wire = format, .reduce_dtype = LS_BF16},
                                                 {.wire = format, .powersgd_rank = 2},
                                                 {.wire = format, .shards = 8},
                                                 {.wire = format, .zero = 2}};
    for (size_t i = 0; i < sizeof combined / sizeof *combined; i++) {
        ls_module *model = ls_data_parallel(make(), world, &combined[i]);
        LS_CHECK(model == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
        LS_EXPECT_MESSAGE(".wire (\"f16 by hand\") cannot be combined");
    }
    ls_module *wide = ls_nn_linear_with(2, 2, &(ls_linear_options){.dtype = LS_F64});
    LS_CHECK(ls_data_parallel(wide, world, &(ls_data_parallel_options){.wire = format}) == NULL);
    LS_EXPECT_MESSAGE("a parameter is of f64: omit .wire");
    if (ls_comm_size(world) > 1) {
        LS_CHECK(wrap(world, ls_comm_rank(world) == 0 ? format : NULL, LS_F32, false) == NULL);
        LS_EXPECT_MESSAGE("the options differ between the ranks");
    }
    LS_CHECK(r.released == 0);
    ls_wire_format_free(format);
    LS_CHECK(r.released == 1);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    for (int overlap = 0; overlap < 2; overlap++) {
        LS_TRY(same_as_built_in(world, overlap != 0));
        LS_TRY(fewer_numbers(world, overlap != 0));
        for (int which = 0; which < 4; which++) {
            LS_TRY(fails_on_all_ranks(world, overlap != 0, which % 2 != 0, which / 2 != 0));
        }
        LS_TRY(refused_bits(world, overlap != 0));
        LS_TRY(refused_lengths(world, overlap != 0));
    }
    LS_TRY(refused_functions(world));
    return refused_options(world);
}
