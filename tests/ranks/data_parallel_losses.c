/*
 * The gradient of a data-parallel module equals the gradient of one process with the global batch: for every loss with
 * every reduction and option, for custom sums and means, and for combinations of losses; with shares that are equal,
 * different or empty, with ranks on which all targets are ignored, with and without accumulation under no_sync. The
 * loss of the global batch is equal, too. Unsupported cases are refused.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>

#include <lockstep/parallel.h>

#include "autograd/batch.h"
#include "tensor/scope.h"
#include "tests/support/loss_cases.h"
#include "tests/support/numbers.h"

enum { INPUTS = 6, WIDTH = LOSS_WIDTH, LENGTH = LOSS_LENGTH, SEED = 77 };

/* Samples for models with statistics, which amplify rounding errors if there are only two or three samples. */
enum { WELL_CONDITIONED = 8 };

/* ---- batches and models ------------------------------------------------------------------------------------------ */

/* The distribution of batches, and whether all targets of rank 0 are ignored. */
typedef enum division { EQUAL, UNEVEN, SOME_HAVE_NONE, IGNORED_ON_ONE, DIVISIONS } division;
static const char *const division_names[DIVISIONS] = {"equal", "uneven", "some have none", "ignored on one"};

/* Returns the first sample of a rank's share. */
static int64_t share_begin(division how, int rank, int size, int pass, int scale) {
    int64_t begin = 0;
    for (int i = 0; i < rank; i++) {
        const bool none = how == SOME_HAVE_NONE && i % 2 == pass % 2;
        begin += how == EQUAL || size == 1 ? 4 * scale : none ? 0 : 1 + (i * 2 + pass) % 5 * scale;
    }
    return begin;
}

/* The loss of the global batch. On failure, NAN and a status. */
typedef struct global_loss {
    double value;
    ls_status status;
} global_loss;

/* The loss on a rank before and after the backward pass. */
typedef struct losses {
    global_loss before;
    global_loss after;
} losses;

typedef struct trainee {
    ls_module *model;
    ls_module *parallel; /* the model, or NULL for a single process */
    int rank;
    int size; /* of the world, even for a single process */
    ls_dtype dtype;
    int scale; /* Multiplies the share size. With 1, each share has 4 samples, or 1 to 5 if the sizes vary. */
    losses *loss;
} trainee;

/* Measures in its own scope, because all losses except a single mean are refused. */
static global_loss measure(const trainee *who, ls_tensor *loss) {
    ls_scope *scope = ls_scope_begin();
    global_loss is = {
        .value = who->parallel != NULL ? ls_data_parallel_loss(who->parallel, loss) : ls_item(loss),
    };
    is.status = ls_scope_end(scope);
    return is;
}

static ls_tensor *random_rows(ls_dtype dtype, int64_t first, int64_t count, int64_t width, int stream, bool unit) {
    ls_tensor *rows = ls_empty(LS_SHAPE(count, width), dtype);
    for (int64_t i = 0; rows != NULL && i < ls_numel(rows); i++) {
        const uint64_t at = (uint64_t)(first * width + i);
        numbers_set(rows, i,
                    unit ? 0.05 + 0.9 * ls_random_uniform(SEED, (uint64_t)stream, at)
                         : ls_random_normal(SEED, (uint64_t)stream, at));
    }
    return rows;
}

static ls_tensor *random_classes(int64_t first, int64_t count, int stream, int64_t ignored_before) {
    ls_tensor *classes = ls_empty(LS_SHAPE(count, LENGTH), LS_I64);
    int64_t *number = elements(classes);
    for (int64_t i = 0; i < count * LENGTH; i++) {
        const bool ignored = first + i / LENGTH < ignored_before;
        number[i] = ignored ? LOSS_IGNORED
                            : (int64_t)ls_random_below(SEED, (uint64_t)stream, (uint64_t)(first * LENGTH + i), WIDTH);
    }
    return classes;
}

static ls_status run_pass(const trainee *who, const loss_case *c, division how, int pass, ls_status *backward) {
    const int64_t all = share_begin(how, who->size, who->size, pass, who->scale);
    const int64_t first = who->parallel != NULL ? share_begin(how, who->rank, who->size, pass, who->scale) : 0;
    const int64_t last = who->parallel != NULL ? share_begin(how, who->rank + 1, who->size, pass, who->scale) : all;
    if (first == last && who->parallel != NULL) {
        LS_TRY(ls_data_parallel_skip(who->parallel));
        who->loss->after = measure(who, NULL);
        return LS_OK;
    }
    if (first == last) {
        *who->loss = (losses){.before = {.value = NAN}, .after = {.value = NAN}};
        return LS_OK;
    }
    const int64_t ignored = how == IGNORED_ON_ONE ? share_begin(how, 1, who->size, pass, who->scale) : 0;
    ls_scope *scope = ls_scope_begin();
    const sample_batch batch = {
        .output = ls_forward(who->model, random_rows(who->dtype, first, last - first, INPUTS, 3 * pass, false)),
        .target = random_rows(who->dtype, first, last - first, WIDTH, 3 * pass + 1, true),
        .class_ = random_classes(first, last - first, 3 * pass + 2, ignored),
        .weight = ls_module_parameter(who->model, 0)};
    ls_tensor *loss = c->make(c, &batch);
    if (how != SOME_HAVE_NONE) { /* a rank with an empty share takes part by calling ls_data_parallel_skip */
        who->loss->before = measure(who, loss);
    }
    *backward = ls_backward(loss);
    if (*backward == LS_OK) {
        who->loss->after = measure(who, loss);
    }
    const ls_status ended = ls_scope_end(scope);
    return *backward == LS_OK ? ended : LS_OK;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static ls_status compare_gradients(const ls_module *is, const ls_module *want, const char *what) {
    double largest = 0;
    double error = 0;
    for (int i = 0; i < ls_module_parameter_count(want); i++) {
        const ls_tensor *a = ls_grad(ls_module_parameter(is, i));
        const ls_tensor *b = ls_grad(ls_module_parameter(want, i));
        LS_CHECK((a != NULL) == (b != NULL));
        for (int64_t at = 0; b != NULL && at < ls_numel(b); at++) {
            const double off = fabs(numbers_get(a, at) - numbers_get(b, at));
            error = off <= error ? error : off; /* keeps NaN */
            largest = fmax(largest, fabs(numbers_get(b, at)));
        }
    }
    const bool single = ls_dtype_of(ls_module_parameter(want, 0)) == LS_F32;
    if (!(error <= (single ? 1e-6 : 1e-13) * largest)) {
        return ls_fail(LS_ERR_INTERNAL, "%s: the gradient is off by %.3g of %.3g", what, error, largest);
    }
    return LS_OK;
}

static ls_module *linear(ls_dtype dtype, int64_t in, int64_t out) {
    return ls_nn_linear_with(in, out, &(ls_linear_options){.dtype = dtype});
}

static ls_module *make_model(ls_dtype dtype) {
    return ls_sequential(linear(dtype, INPUTS, 7), ls_nn_tanh(), linear(dtype, 7, WIDTH * LENGTH));
}

static ls_tensor *fold(ls_tensor *x, void *user) {
    (void)user;
    return ls_reshape(x, LS_SHAPE(-1, 3, 4));
}

static ls_module *make_normalised(ls_dtype dtype) {
    const ls_batch_norm_options plain = {.dtype = dtype, .no_affine = true};
    return ls_sequential(ls_nn_batch_norm_1d(INPUTS, &plain), linear(dtype, INPUTS, 12),
                         ls_nn_function("Fold", fold, NULL),
                         ls_nn_batch_norm_1d(3, &(ls_batch_norm_options){.dtype = dtype}), ls_nn_flatten(),
                         ls_nn_tanh(), linear(dtype, 12, WIDTH * LENGTH));
}

static ls_module *make_dropping(ls_dtype dtype) {
    return ls_sequential(ls_nn_dropout(0.2), linear(dtype, INPUTS, 7), ls_nn_tanh(), ls_nn_dropout(0.4),
                         linear(dtype, 7, WIDTH * LENGTH));
}

static ls_module *make_both(ls_dtype dtype) {
    return ls_sequential(linear(dtype, INPUTS, 12), ls_nn_function("Fold", fold, NULL), ls_nn_dropout(0.3),
                         ls_nn_batch_norm_1d(3, &(ls_batch_norm_options){.dtype = dtype}), ls_nn_flatten(),
                         ls_nn_dropout(0.2), linear(dtype, 12, WIDTH * LENGTH));
}

/* A module with its own normalization and dropout. */
typedef struct own_state {
    ls_module *first;
    ls_module *second;
} own_state;

static ls_tensor *own_forward(ls_module *self, ls_tensor *input) {
    const own_state *state = ls_module_state(self);
    ls_tensor *x = ls_dropout(ls_forward(state->first, input), 0.3);
    return ls_forward(state->second, ls_batch_norm(x, NULL, NULL, NULL, NULL, true, 0.1, 1e-5));
}

static ls_module *make_own(ls_dtype dtype) {
    static const ls_module_type type = {
        .name = "Own", .state_size = sizeof(own_state), .forward = own_forward, .whole_batch = true};
    ls_module *module = ls_module_new(&type);
    own_state *state = ls_module_state(module);
    state->first = ls_module_add_child(module, "first", linear(dtype, INPUTS, 7));
    state->second = ls_module_add_child(module, "second", linear(dtype, 7, WIDTH * LENGTH));
    return ls_module_finish(module);
}

typedef struct pair {
    trainee all;
    trainee alone;
    losses losses[2]; /* losses of `all` and `alone` */
} pair;

static ls_status begin(pair *p, ls_comm *world, ls_module *(*make)(ls_dtype), ls_dtype dtype) {
    ls_seed(SEED);
    p->all = (trainee){.rank = ls_comm_rank(world), .size = ls_comm_size(world), .dtype = dtype, .scale = 1};
    p->all.model = p->all.parallel = ls_data_parallel(make(dtype), world, NULL);
    ls_seed(SEED);
    p->alone = (trainee){.model = make(dtype), .size = p->all.size, .dtype = dtype, .scale = 1};
    p->all.loss = &p->losses[0];
    p->alone.loss = &p->losses[1];
    LS_CHECK(p->all.model != NULL && p->alone.model != NULL);
    return LS_OK;
}

static void end(const pair *p) {
    ls_module_free(p->all.model);
    ls_module_free(p->alone.model);
}

static ls_status compare_buffers(const ls_module *is, const ls_module *want, const char *what) {
    for (int i = 0; i < ls_module_buffer_count(want); i++) {
        const ls_tensor *a = ls_module_buffer(is, i);
        const ls_tensor *b = ls_module_buffer(want, i);
        for (int64_t at = 0; at < ls_numel(b); at++) {
            if (!(fabs(numbers_get(a, at) - numbers_get(b, at)) <= 1e-6 * (1 + fabs(numbers_get(b, at))))) {
                return ls_fail(LS_ERR_INTERNAL, "%s: %s is %.9g, not %.9g", what, ls_module_buffer_name(want, i),
                               numbers_get(a, at), numbers_get(b, at));
            }
        }
    }
    return LS_OK;
}

/* Runs one round of training for one participant. */
static ls_status run_passes(const trainee *who, const loss_case *c, division how, int passes, int round) {
    ls_seed((uint64_t)(SEED + round));
    ls_module_zero_grad(who->model);
    for (int pass = 0; pass < passes; pass++) {
        ls_status backward = LS_OK;
        if (who->parallel != NULL) {
            LS_TRY(ls_data_parallel_no_sync(who->parallel, pass < passes - 1));
        }
        LS_TRY(run_pass(who, c, how, pass + round, &backward));
        LS_TRY(backward);
    }
    return LS_OK;
}

/* Returns whether the loss is a single mean over samples, apart from terms of parameters only. */
static bool is_one_mean(const loss_case *c) {
    const bool reduces = c->make == loss_elementwise || c->make == loss_of_classes;
    return c->make == loss_with_decay || (reduces && (c->reduction == LS_LOSS_MEAN || c->then_mean));
}

/* Checks that the loss of the global batch equals the loss of one process, and is bit-identical on all ranks. */
static ls_status compare_loss(ls_comm *world, const loss_case *c, const global_loss *is, double want,
                              const char *what) {
    double first = is->value;
    LS_TRY(ls_comm_broadcast(world, &first, 1, LS_F64, 0, NULL));
    LS_CHECK(memcmp(&first, &is->value, sizeof first) == 0 || (isnan(first) && isnan(is->value)));
    if (is->status != LS_OK) {
        LS_CHECK(!is_one_mean(c) && isnan(is->value));
        LS_CHECK(is->status == LS_ERR_UNSUPPORTED || is->status == LS_ERR_MISMATCH);
        return LS_OK;
    }
    return fabs(is->value - want) <= 1e-5 * (1 + fabs(want)) || (isnan(is->value) && isnan(want))
               ? LS_OK
               : ls_fail(LS_ERR_INTERNAL, "%s: the loss of the global batch is %.9g, not %.9g", what, is->value, want);
}

/* Accumulates `passes` passes in each of two rounds. The second round starts with the results of the first. */
static ls_status check_passes(ls_comm *world, const loss_case *c, ls_module *(*make)(ls_dtype), ls_dtype dtype,
                              division how, int passes) {
    pair p;
    LS_TRY(begin(&p, world, make, dtype));
    p.all.scale = p.alone.scale = make == make_model ? 1 : WELL_CONDITIONED;
    char what[200];
    snprintf(what, sizeof what, "%s, %s, %d passes, reduction %d%s%s%s", c->name, division_names[how], passes,
             (int)c->reduction, c->weighted ? ", weighted" : "", c->ignore ? ", ignoring" : "",
             c->long_ ? ", long" : "");
    for (int round = 0; round < 2; round++) {
        LS_TRY(run_passes(&p.all, c, how, passes, round));
        LS_TRY(run_passes(&p.alone, c, how, passes, round));
        LS_TRY(compare_loss(world, c, &p.all.loss->after, p.alone.loss->after.value, what));
        LS_TRY(how != SOME_HAVE_NONE ? compare_loss(world, c, &p.all.loss->before, p.alone.loss->after.value, what)
                                     : LS_OK);
        LS_TRY(compare_gradients(p.all.model, p.alone.model, what));
        LS_TRY(compare_buffers(p.all.model, p.alone.model, what));
    }
    end(&p);
    return LS_OK;
}

/* With LOCKSTEP_TEST_ONE_IN=N, only every N-th case runs, for slow communication. */
static bool is_left_out(void) {
    static _Thread_local int number;
    const char *one_in = getenv("LOCKSTEP_TEST_ONE_IN");
    return one_in != NULL && number++ % atoi(one_in) != 0;
}

static ls_status check_model(ls_comm *world, const loss_case *c, ls_module *(*make)(ls_dtype), ls_dtype dtype) {
    if (is_left_out()) {
        return LS_OK;
    }
    for (int how = 0; how < DIVISIONS; how++) {
        for (int passes = 1; passes <= 3; passes += 2) {
            LS_TRY(check_passes(world, c, make, dtype, (division)how, passes));
        }
    }
    return LS_OK;
}

static ls_status check_case(ls_comm *world, const loss_case *c) {
    return check_model(world, c, make_model, LS_F32);
}

/* Models whose samples depend on each other. */
static ls_status whole_batches(ls_comm *world) {
    static ls_module *(*const models[])(ls_dtype) = {make_normalised, make_dropping, make_both, make_own};
    static const loss_case cases[] = {
        {.name = "mse", .make = loss_elementwise, .function = loss_far_mse},
        {.name = "mse", .make = loss_elementwise, .function = loss_far_mse, .reduction = LS_LOSS_SUM},
        {.name = "cross entropy", .make = loss_of_classes},
        {.name = "cross entropy", .make = loss_of_classes, .ignore = true, .weighted = true},
        {.name = "long cross entropy", .make = loss_of_classes, .long_ = true, .ignore = true},
        {.name = "mean and decay", .make = loss_with_decay},
        {.name = "two losses", .make = loss_two, .ignore = true}};
    for (int m = 0; m < 4; m++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            LS_TRY(check_model(world, &cases[i], models[m], LS_F64));
            LS_TRY(check_model(world, &cases[i], models[m], LS_F32));
        }
    }
    return LS_OK;
}

static ls_status elementwise_losses(ls_comm *world) {
    static const loss_case functions[] = {{.name = "mse", .function = loss_far_mse},
                                          {.name = "l1", .function = ls_l1_loss},
                                          {.name = "huber", .function = loss_huber},
                                          {.name = "bce", .function = loss_bce},
                                          {.name = "bce with logits", .function = loss_bce_with_logits},
                                          {.name = "weighted bce", .function = loss_weighted_bce},
                                          {.name = "kl", .function = loss_kl},
                                          {.name = "cross entropy of probabilities", .function = loss_probabilities}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        for (int variant = 0; variant < 4; variant++) {
            loss_case c = functions[i];
            c.make = loss_elementwise;
            c.reduction = variant < 3 ? (ls_loss_reduction)variant : LS_LOSS_NONE;
            c.then_mean = variant == 3;
            LS_TRY(check_case(world, &c));
        }
    }
    return LS_OK;
}

static ls_status class_losses(ls_comm *world) {
    for (int options = 0; options < 128; options++) {
        const int variant = options % 4;
        const loss_case c = {.name = options & 16   ? "nll"
                                     : options & 64 ? "smooth cross entropy"
                                                    : "cross entropy",
                             .make = loss_of_classes,
                             .reduction = variant < 3 ? (ls_loss_reduction)variant : LS_LOSS_NONE,
                             .then_mean = variant == 3,
                             .weighted = (options & 4) != 0,
                             .ignore = (options & 8) != 0,
                             .nll = (options & 16) != 0,
                             .long_ = (options & 32) != 0,
                             .smoothing = (options & 64) != 0 ? 0.1 : 0};
        if (!c.nll || c.smoothing == 0) {
            LS_TRY(check_case(world, &c));
        }
    }
    return LS_OK;
}

static ls_status own_losses(ls_comm *world) {
    for (size_t i = 0; i < loss_own_count; i++) {
        LS_TRY(check_case(world, &loss_own_cases[i]));
    }
    return LS_OK;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

/* The communicator of losses that communicate; NULL in the process with the global batch. */
static _Thread_local ls_comm *summed_over;

/* Only the root has the sum of all ranks, and a loss. */
static ls_tensor *loss_on_root(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_square(ls_reduce(summed_over, ls_sum(loss_difference(b)), LS_SUM, 0));
}

static ls_tensor *gathered_on_root(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_sum(ls_gather(summed_over, b->output, 0, 0));
}

static ls_tensor *root_of_mean(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_sqrt(ls_mean(loss_difference(b)));
}

static ls_tensor *worst(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_max(loss_difference(b));
}

static ls_tensor *contrast(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_mean(ls_logsumexp(ls_matmul(b->output, ls_transpose(b->output, 0, 1)), 1, false));
}

static ls_tensor *softmax_over_samples(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_sum(ls_square(ls_softmax(b->output, 0)));
}

static ls_tensor *centered(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_mean(ls_square(ls_sub(b->output, ls_mean_axes(b->output, LS_AXES(0), true))));
}

static ls_tensor *one_sample(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_mean(ls_select(b->output, 0, 0));
}

static ls_tensor *product_of_means(const loss_case *c, const sample_batch *b) {
    (void)c;
    return ls_mul(ls_mean(b->output), ls_mean(loss_difference(b)));
}

/* The sum and the mean need different scaling factors. */
static ls_tensor *mixed_sums(const loss_case *c, const sample_batch *b) {
    (void)c;
    ls_tensor *difference = loss_difference(b);
    return ls_allreduce(summed_over, ls_add(ls_sum(difference), ls_mul(ls_mean(difference), 2)), LS_SUM);
}

static ls_status refusals(ls_comm *world) {
    static const loss_case cases[] = {
        {.name = "ls_sqrt", .make = root_of_mean},    {.name = "ls_max", .make = worst},
        {.name = "ls_matmul", .make = contrast},      {.name = "ls_softmax", .make = softmax_over_samples},
        {.name = "ls_sub", .make = centered},         {.name = "ls_select", .make = one_sample},
        {.name = "ls_mul", .make = product_of_means}, {.name = "ls_allreduce", .make = mixed_sums},
        {.name = "ls_reduce", .make = loss_on_root},  {.name = "ls_gather", .make = gathered_on_root}};
    pair p;
    LS_TRY(begin(&p, world, make_model, LS_F32));
    summed_over = world;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_status backward = LS_OK;
        LS_TRY(run_pass(&p.all, &cases[i], UNEVEN, 0, &backward));
        if (p.all.size == 1) {
            LS_TRY(backward);
            continue;
        }
        LS_CHECK(backward == LS_ERR_UNSUPPORTED);
        const char *name = i == 5 ? "ls_slice" : cases[i].name;
        LS_EXPECT_MESSAGE(name);
        LS_EXPECT_MESSAGE(i == 7  ? "separately for sums and for means"
                          : i > 7 ? "gives only the root a result: use ls_allreduce"
                                  : "ls_allreduce");
    }
    summed_over = NULL;
    end(&p);
    return LS_OK;
}

static ls_tensor *mean_output(const ls_batch *batch, void *user) {
    return ls_mean(ls_forward(user, batch->input));
}

/* After a step without samples on any rank, the loss is NAN, not the loss of the step before. */
static ls_status loss_without_samples(ls_comm *world) {
    pair p;
    LS_TRY(begin(&p, world, make_model, LS_F32));
    ls_batch batch = {.input = ls_ones(LS_SHAPE(2, INPUTS), LS_F32), .count = 2};
    LS_TRY(ls_data_parallel_step(p.all.model, &batch, mean_output, p.all.model));
    LS_CHECK(isfinite(ls_data_parallel_loss(p.all.model, NULL)));
    LS_TRY(ls_data_parallel_step(p.all.model, &(ls_batch){.count = 0}, mean_output, p.all.model));
    LS_CHECK(isnan(ls_data_parallel_loss(p.all.model, NULL)));
    ls_release(batch.input);
    end(&p);
    return LS_OK;
}

/* An unrecorded loss is refused, and a failure on one rank is an error on all ranks. */
static ls_status refused_losses(ls_comm *world) {
    pair p;
    LS_TRY(begin(&p, world, make_model, LS_F32));
    LS_CHECK(isnan(ls_data_parallel_loss(p.alone.model, NULL)) && ls_error_status() == LS_ERR_ARGUMENT);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = random_rows(LS_F32, 0, 4, INPUTS, 0, false);
    const bool recording = ls_no_grad(true);
    ls_tensor *loss = ls_mean(ls_forward(p.all.model, x));
    (void)ls_no_grad(recording);
    const global_loss unrecorded = measure(&p.all, loss);
    LS_CHECK(unrecorded.status == (p.all.size == 1 ? LS_OK : LS_ERR_STATE));
    ls_tensor *output = ls_forward(p.all.model, x);
    const global_loss failed = measure(&p.all, p.all.rank == 0 ? output : ls_mean(output));
    LS_CHECK(failed.status == (p.all.rank == 0 ? LS_ERR_SHAPE : LS_ERR_MISMATCH) && isnan(failed.value));
    LS_EXPECT_MESSAGE(p.all.rank == 0 ? "one" : "rank 0 failed: ls_data_parallel_loss");
    LS_TRY(ls_scope_end(scope));
    end(&p);
    return LS_OK;
}

static ls_status expect_no_loss(const pair *p, ls_tensor *loss, ls_status own, ls_status others, const char *message) {
    LS_CHECK(isnan(ls_data_parallel_loss(p->all.model, loss)));
    LS_CHECK(ls_error_status() == (p->all.rank == 0 ? own : others));
    LS_EXPECT_MESSAGE(message);
    return LS_OK;
}

/* Outside scopes, a loss that failed on rank 0 is not mistaken for a rank without samples, even after a step. */
static ls_status failed_losses(ls_comm *world) {
    pair p;
    LS_TRY(begin(&p, world, make_model, LS_F32));
    ls_tensor *x = random_rows(LS_F32, 0, 2 + p.all.rank, INPUTS, 0, false);
    ls_tensor *target = ls_zeros(LS_SHAPE(p.all.rank == 0 ? 9 : 2 + p.all.rank, WIDTH * LENGTH), LS_F32);
    const ls_batch batch = {.input = x, .count = 2 + p.all.rank};
    for (int i = 0; i < 2; i++) {
        ls_tensor *output = ls_forward(p.all.model, x), *loss = ls_mse_loss(output, target, LS_LOSS_MEAN);
        LS_CHECK((loss == NULL) == (p.all.rank == 0));
        LS_TRY(expect_no_loss(&p, loss, LS_ERR_SHAPE, LS_ERR_MISMATCH, "ls_mse_loss"));
        LS_CHECK(ls_backward(loss) != LS_OK);
        ls_release(output);
        ls_release(loss);
        LS_TRY(ls_data_parallel_step(p.all.model, &batch, mean_output, p.all.model));
        LS_CHECK(isfinite(ls_data_parallel_loss(p.all.model, NULL)));
    }
    LS_CHECK(ls_reshape(x, LS_SHAPE(1)) == NULL);
    LS_TRY(expect_no_loss(&p, NULL, LS_ERR_SHAPE, LS_ERR_SHAPE, "ls_reshape"));
    ls_release(x);
    ls_release(target);
    end(&p);
    return LS_OK;
}

/* A rank that computes its loss must pass it. */
static ls_status missing_losses(ls_comm *world) {
    pair p;
    LS_TRY(begin(&p, world, make_model, LS_F32));
    LS_TRY(ls_data_parallel_skip(p.all.model));
    LS_CHECK(isnan(ls_data_parallel_loss(p.all.model, NULL)));
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = ls_mean(ls_forward(p.all.model, random_rows(LS_F32, 0, 4, INPUTS, 0, false)));
    LS_TRY(ls_backward(loss));
    LS_TRY(expect_no_loss(&p, p.all.rank == 0 ? NULL : loss, LS_ERR_ARGUMENT, LS_ERR_MISMATCH, "the loss is NULL"));
    LS_CHECK(ls_scope_end(scope) == (p.all.rank == 0 ? LS_ERR_ARGUMENT : LS_ERR_MISMATCH));
    end(&p);
    return LS_OK;
}

static ls_tensor *root_of_sum(const loss_case *c, const sample_batch *b) {
    (void)c;
    ls_tensor *sum = ls_sum(loss_difference(b));
    return ls_sqrt(summed_over != NULL ? ls_allreduce(summed_over, sum, LS_SUM) : sum);
}

/* A mean that is computed first, and the root of several sums that are exchanged together, as in a Dice loss. */
static ls_tensor *mean_and_root(const loss_case *c, const sample_batch *b) {
    (void)c;
    ls_tensor *difference = loss_difference(b);
    ls_tensor *mean = ls_mean(difference);
    ls_tensor *sums = ls_add(ls_sum(difference), ls_sum(ls_square(difference)));
    return ls_add(mean, ls_sqrt(summed_over != NULL ? ls_allreduce(summed_over, sums, LS_SUM) : sums));
}

/* The same with another mean, so that the loss has several means. */
static ls_tensor *means_and_root(const loss_case *c, const sample_batch *b) {
    ls_tensor *loss = mean_and_root(c, b);
    return ls_add(ls_mean(ls_square(ls_narrow(loss_difference(b), 1, 0, 1))), loss);
}

/* The program itself adds up the sums of the ranks, whose shares differ: the sum of all ranks counts once. */
static ls_status sums_by_allreduce(ls_comm *world) {
    static const loss_case cases[] = {{.name = "root of an all-reduced sum", .make = root_of_sum},
                                      {.name = "mean and root of all-reduced sums", .make = mean_and_root},
                                      {.name = "two means and root of all-reduced sums", .make = means_and_root}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pair p;
        LS_TRY(begin(&p, world, make_model, LS_F32));
        ls_status backward = LS_OK;
        LS_TRY(run_pass(&p.alone, &cases[i], UNEVEN, 0, &backward));
        LS_TRY(backward);
        summed_over = world;
        const ls_status status = run_pass(&p.all, &cases[i], UNEVEN, 0, &backward);
        summed_over = NULL;
        LS_TRY(status);
        LS_TRY(backward);
        LS_TRY(compare_gradients(p.all.model, p.alone.model, cases[i].name));
        end(&p);
    }
    return LS_OK;
}

/* If the program itself calls an all-reduce, the gradient equals the gradient of one process: here for the square root
 * of a mean, with equal shares. */
static ls_status by_allreduce(ls_comm *world) {
    static const loss_case alone = {.name = "root of the mean", .make = root_of_mean};
    pair p;
    LS_TRY(begin(&p, world, make_model, LS_F32));
    ls_status backward = LS_OK;
    LS_TRY(run_pass(&p.alone, &alone, EQUAL, 0, &backward));
    ls_scope *scope = ls_scope_begin();
    const int64_t first = share_begin(EQUAL, p.all.rank, p.all.size, 0, 1);
    ls_tensor *output = ls_forward(p.all.model, random_rows(LS_F32, first, 4, INPUTS, 0, false));
    ls_tensor *target = random_rows(LS_F32, first, 4, WIDTH, 1, true);
    ls_tensor *mean = ls_mse_loss(ls_narrow(output, 1, 0, WIDTH), target, LS_LOSS_MEAN);
    LS_TRY(ls_backward(ls_sqrt(ls_allreduce(world, mean, LS_AVG))));
    LS_TRY(ls_scope_end(scope));
    LS_TRY(compare_gradients(p.all.model, p.alone.model, "root of an all-reduced mean"));
    end(&p);
    return LS_OK;
}

/*
 * Two data-parallel modules in sequence. The first has statistics, so the ranks agree on shares before its pass; they
 * must also agree in the second.
 */
static ls_status one_behind_the_other(ls_comm *world) {
    pair first;
    pair second;
    LS_TRY(begin(&first, world, make_normalised, LS_F64));
    LS_TRY(begin(&second, world, make_model, LS_F64));
    for (int round = 0; round < 2; round++) {
        for (int who = 0; who < 2; who++) {
            const trainee *a = who == 0 ? &first.all : &first.alone;
            const trainee *b = who == 0 ? &second.all : &second.alone;
            const int64_t begin_at = who == 0 ? share_begin(UNEVEN, a->rank, a->size, round, 8) : 0;
            const int64_t end_at = share_begin(UNEVEN, who == 0 ? a->rank + 1 : a->size, a->size, round, 8);
            ls_scope *scope = ls_scope_begin();
            ls_module_zero_grad(a->model);
            ls_module_zero_grad(b->model);
            ls_tensor *x = random_rows(LS_F64, begin_at, end_at - begin_at, INPUTS, 40, false);
            ls_tensor *between = ls_narrow(ls_forward(a->model, x), 1, 0, INPUTS);
            ls_tensor *loss = ls_mean(ls_square(ls_add(ls_forward(b->model, between), 1)));
            LS_TRY(ls_backward(round == 0 ? loss : ls_add(loss, ls_sum(between))));
            LS_TRY(ls_scope_end(scope));
        }
        LS_TRY(compare_gradients(first.all.model, first.alone.model, "the first of two modules"));
        LS_TRY(compare_gradients(second.all.model, second.alone.model, "the second of two modules"));
    }
    end(&first);
    end(&second);
    return LS_OK;
}

/* A batch that is distributed over the ranks. */
typedef struct shared_batch {
    ls_batch_part part;
    ls_comm *world;
} shared_batch;

static ls_status add_over_world(ls_batch_part *part, double *numbers, int64_t count) {
    const shared_batch *batch = (const shared_batch *)(const void *)part;
    return ls_comm_allreduce(batch->world, numbers, numbers, (size_t)count, LS_F64, LS_SUM, NULL);
}

static ls_tensor *normalise(ls_tensor **inputs, int count, void *user) {
    (void)count;
    ls_thread()->batch = user;
    ls_tensor *y = ls_batch_norm(inputs[0], NULL, NULL, inputs[1], inputs[2], true, 0.1, 1e-5);
    ls_thread()->batch = NULL;
    return y;
}

/* The gradient of a normalization over all ranks equals finite differences, with one sample on rank 0. */
static ls_status checked_by_differences(ls_comm *world) {
    shared_batch batch = {.part = {.add = add_over_world}, .world = world};
    const int64_t rows = ls_comm_size(world) == 1 ? 4 : ls_comm_rank(world) + 1;
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = random_rows(LS_F64, 10 * ls_comm_rank(world), rows, 6, 41, false);
    ls_tensor *inputs[] = {ls_reshape(x, LS_SHAPE(rows, 3, 2)), ls_ones(LS_SHAPE(3), LS_F64),
                           ls_zeros(LS_SHAPE(3), LS_F64)};
    for (int i = 0; i < 3; i++) {
        LS_TRY(ls_set_requires_grad(inputs[i], true));
    }
    LS_TRY(ls_gradcheck_distributed(world, normalise, inputs, 3, &batch, NULL));
    return ls_scope_end(scope);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(whole_batches(world));
    LS_TRY(own_losses(world));
    LS_TRY(elementwise_losses(world));
    LS_TRY(class_losses(world));
    LS_TRY(refusals(world));
    LS_TRY(loss_without_samples(world));
    LS_TRY(refused_losses(world));
    LS_TRY(failed_losses(world));
    LS_TRY(missing_losses(world));
    LS_TRY(by_allreduce(world));
    LS_TRY(sums_by_allreduce(world));
    LS_TRY(one_behind_the_other(world));
    LS_TRY(checked_by_differences(world));
    return ls_comm_barrier(world, NULL);
}
