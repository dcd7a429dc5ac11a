/*
 * Averaging during the backward pass: with buckets of any size, the gradients and parameters are bit-identical to
 * averaging after the pass. A failure inside a bucket reaches all ranks, and the ranks stay in step. The same holds
 * with `.shards`, for the buckets of each rank's last slice.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdlib.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "base/share.h"
#include "parallel/slices.h"
#include "tests/support/numbers.h"

enum { INPUTS = 5, WIDTH = 128, OUTPUTS = 3, STEPS = 6, SEED = 11 };

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* The layer `twice` runs twice. The layer `sometimes` runs only if the input says so, which differs between ranks.
   The layer `never` never runs. */
typedef struct network {
    ls_module *first, *norm, *twice, *sometimes, *never, *last;
} network;

static ls_tensor *network_forward(ls_module *self, ls_tensor *input) {
    const network *n = ls_module_state(self);
    ls_tensor *x = ls_tanh(ls_forward(n->first, input));
    x = n->norm != NULL ? ls_forward(n->norm, x) : x;
    x = ls_tanh(ls_forward(n->twice, ls_tanh(ls_forward(n->twice, x))));
    if (ls_size(input, 0) > 0 && ls_at(input, (const int64_t[]){0, 0}) > 0) {
        x = ls_add(x, ls_forward(n->sometimes, x));
    }
    return ls_forward(n->last, ls_to(x, LS_F64));
}

static ls_module *make(bool normalized) {
    static const ls_module_type type = {.name = "Network", .state_size = sizeof(network), .forward = network_forward};
    ls_seed(SEED);
    ls_module *module = ls_module_new(&type);
    network *n = ls_module_state(module);
    n->first = ls_module_add_child(module, "first", ls_nn_linear(INPUTS, WIDTH));
    n->norm = normalized ? ls_module_add_child(module, "norm", ls_nn_batch_norm_1d(WIDTH, NULL)) : NULL;
    n->never = ls_module_add_child(module, "never", ls_nn_linear(WIDTH, WIDTH));
    n->twice = ls_module_add_child(module, "twice", ls_nn_linear(WIDTH, WIDTH));
    n->sometimes = ls_module_add_child(module, "sometimes", ls_nn_linear(WIDTH, WIDTH));
    n->last =
        ls_module_add_child(module, "last", ls_nn_linear_with(WIDTH, OUTPUTS, &(ls_linear_options){.dtype = LS_F64}));
    return ls_module_finish(module);
}

static ls_module *make_single(void) {
    ls_seed(SEED);
    return ls_sequential(ls_nn_linear(INPUTS, WIDTH), ls_nn_tanh(), ls_nn_linear(WIDTH, WIDTH), ls_nn_tanh(),
                         ls_nn_linear(WIDTH, OUTPUTS));
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* The kinds of trainings. */
typedef enum case_kind { PLAIN, NORMALIZED, SUMS, ACCUMULATED, FROZEN, UNEVEN, HALVES, KINDS } case_kind;

static ls_module *wrap(ls_comm *world, case_kind kind, ls_overlap_mode overlap, size_t bytes) {
    const ls_data_parallel_options options = {
        .overlap = overlap, .bucket_bytes = bytes, .reduce_dtype = kind == HALVES ? LS_BF16 : LS_F32};
    return ls_data_parallel(kind == HALVES ? make_single() : make(kind == NORMALIZED), world, &options);
}

/* Returns rows of random numbers. The first number of the first row decides whether the layer `sometimes` runs. */
static ls_tensor *rows(int step, int rank, int64_t count) {
    ls_tensor *x = ls_empty(LS_SHAPE(count, INPUTS), LS_F32);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        numbers_set(x, i, ls_random_normal(SEED, (uint64_t)(step * 100 + rank), (uint64_t)i));
    }
    return x;
}

/* In uneven training, some shares are empty, and the empty share moves from rank to rank. */
static int64_t share_of(case_kind kind, int step, const ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    const bool uneven = kind == UNEVEN || kind == ACCUMULATED || kind == NORMALIZED || kind == HALVES;
    return !uneven ? 4 : (rank + step) % size == 1 ? 0 : 2 + (rank + step) % 3;
}

static ls_tensor *loss_of(case_kind kind, ls_tensor *output) {
    ls_tensor *y = ls_square(output);
    return kind == SUMS ? ls_add(ls_sum(y), ls_mean(ls_sqrt(ls_add(y, 1)))) : ls_mean(y);
}

static ls_status run_pass(ls_comm *world, ls_module *model, case_kind kind, int step) {
    const int64_t count = share_of(kind, step, world);
    if (count == 0) {
        return ls_data_parallel_skip(model);
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *output = ls_forward(model, rows(step, ls_comm_rank(world), count));
    const ls_status status = ls_backward(loss_of(kind, output));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* Freezes different layers in different steps. */
static ls_status freeze(ls_module *model, int step) {
    LS_TRY(ls_set_requires_grad(ls_module_find(model, "twice.weight"), step % 3 != 1));
    return ls_set_requires_grad(ls_module_find(model, "last.bias"), step % 3 != 2);
}

/* Runs a training step without the optimizer's update. */
static ls_status run_step(ls_comm *world, ls_module *model, case_kind kind, int step) {
    for (int pass = 0; kind == ACCUMULATED && pass < 2; pass++) {
        LS_TRY(ls_data_parallel_no_sync(model, true));
        LS_TRY(run_pass(world, model, kind, 10 * step + pass));
    }
    LS_TRY(ls_data_parallel_no_sync(model, false));
    LS_TRY(kind == FROZEN ? freeze(model, step) : LS_OK);
    return run_pass(world, model, kind, 10 * step + 5);
}

static ls_status same_gradients(const ls_module *is, const ls_module *want) {
    for (int i = 0; i < ls_module_parameter_count(want); i++) {
        ls_tensor *a = ls_grad(ls_module_parameter(is, i)), *b = ls_grad(ls_module_parameter(want, i));
        LS_CHECK((a == NULL) == (b == NULL));
        if (a != NULL && !ls_equal(a, b)) {
            return ls_fail(LS_ERR_INTERNAL, "the gradients of \"%s\" differ", ls_module_parameter_name(want, i));
        }
    }
    return LS_OK;
}

static ls_status same_bits(ls_comm *world, case_kind kind, size_t bytes) {
    ls_module *is = wrap(world, kind, LS_OVERLAP_ON, bytes), *want = wrap(world, kind, LS_OVERLAP_OFF, 0);
    const ls_sgd_options sgd = {.learning_rate = 0.05, .momentum = 0.9};
    ls_optimizer *optimizers[] = {ls_sgd(is, &sgd), ls_sgd(want, &sgd)};
    LS_CHECK(optimizers[0] != NULL && optimizers[1] != NULL);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < 2 && step != 3; i++) { /* in step 3, gradients accumulate over steps */
            ls_optimizer_zero_grad(optimizers[i]);
        }
        LS_TRY(run_step(world, is, kind, step));
        LS_TRY(run_step(world, want, kind, step));
        LS_TRY(same_gradients(is, want));
        LS_TRY(ls_optimizer_step(optimizers[0]));
        LS_TRY(ls_optimizer_step(optimizers[1]));
        LS_CHECK(ls_module_hash(is) == ls_module_hash(want));
    }
    LS_TRY(ls_data_parallel_check(is));
    for (int i = 0; i < 2; i++) {
        ls_optimizer_free(optimizers[i]);
    }
    ls_module_free(is);
    ls_module_free(want);
    return LS_OK;
}

static ls_status all_buckets(ls_comm *world) {
    static const size_t sizes[] = {1, (size_t)64 << 10, (size_t)1 << 20, SIZE_MAX / 4};
    for (case_kind kind = 0; kind < KINDS; kind++) {
        for (int i = 0; i < 4; i++) {
            const ls_status status = same_bits(world, kind, sizes[i]);
            if (status != LS_OK) {
                return ls_fail(status, "kind %d, buckets of %zu bytes: %s", (int)kind, sizes[i], ls_error_message());
            }
        }
    }
    return LS_OK;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

typedef struct launches {
    const ls_data_parallel_state *state;
    int seen;
} launches;

static ls_status note_launches(ls_tensor *tensor, void *user) {
    (void)tensor;
    launches *noted = user;
    noted->seen = noted->state->overlap.launched;
    return LS_OK;
}

/* When the gradient of the first layer, which is computed last, is complete, the buckets of the later layers are
 * already in flight. The first pass is an exception, because it agrees on scaling factors at its end. */
static ls_status buckets_start_early(ls_comm *world) {
    ls_module *model = ls_data_parallel(make_single(), world,
                                        &(ls_data_parallel_options){.overlap = LS_OVERLAP_ON, .bucket_bytes = 1});
    LS_CHECK(model != NULL);
    launches noted = {.state = ls_module_state(model)};
    LS_TRY(ls_add_grad_hook(ls_module_parameter(model, 0), note_launches, &noted));
    for (int step = 0; step < 3; step++) {
        LS_TRY(run_pass(world, model, PLAIN, step));
        LS_CHECK(ls_comm_size(world) == 1 || step == 0 ? noted.seen == 0 : noted.seen >= 4);
    }
    ls_module_free(model);
    return LS_OK;
}

/* Two modules with a common layer: neither module averages during the pass, and the results are right. */
static ls_status modules_that_share(ls_comm *world) {
    uint64_t hashes[2];
    for (int i = 0; i < 2; i++) {
        const ls_data_parallel_options options = {.overlap = i == 0 ? LS_OVERLAP_ON : LS_OVERLAP_OFF,
                                                  .bucket_bytes = 1};
        ls_seed(SEED);
        ls_module *common = ls_nn_linear(WIDTH, WIDTH);
        ls_module *heads[] = {
            ls_data_parallel(ls_sequential(ls_nn_linear(INPUTS, WIDTH), common), world, &options),
            ls_data_parallel(ls_sequential(ls_nn_linear(INPUTS, WIDTH), common, ls_nn_linear(WIDTH, 2)), world,
                             &options)};
        ls_optimizer *optimizer = ls_sgd(heads[1], &(ls_sgd_options){.learning_rate = 0.1});
        LS_CHECK(heads[0] != NULL && optimizer != NULL);
        for (int step = 0; step < 4; step++) {
            ls_scope *scope = ls_scope_begin();
            ls_tensor *x = rows(step, ls_comm_rank(world), 4);
            ls_optimizer_zero_grad(optimizer);
            LS_TRY(ls_backward(
                ls_add(ls_mean(ls_square(ls_forward(heads[0], x))), ls_mean(ls_square(ls_forward(heads[1], x))))));
            LS_TRY(ls_optimizer_step(optimizer));
            LS_TRY(ls_scope_end(scope));
        }
        hashes[i] = ls_module_hash(heads[1]);
        ls_optimizer_free(optimizer);
        ls_module_free(heads[0]);
        ls_module_free(heads[1]);
    }
    LS_CHECK(hashes[0] == hashes[1]);
    return LS_OK;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static _Thread_local bool refuses;

static ls_status refuse(ls_tensor *tensor, void *user) {
    (void)tensor;
    (void)user;
    return refuses ? ls_error_set(LS_ERR_UNSUPPORTED, "the hook refuses") : LS_OK;
}

/* A hook fails on the last rank inside bucket `k`. All ranks learn the cause, and the next step succeeds. */
static ls_status hooks_that_fail(ls_comm *world, case_kind kind) {
    const int rank = ls_comm_rank(world), failing = ls_comm_size(world) - 1;
    ls_module *model = wrap(world, kind, LS_OVERLAP_ON, 1);
    LS_CHECK(model != NULL);
    for (int k = 0; k < ls_module_parameter_count(model) && rank == failing; k++) {
        LS_TRY(ls_add_grad_hook(ls_module_parameter(model, k), refuse, NULL));
    }
    LS_TRY(run_pass(world, model, SUMS, 0));
    for (int k = 0; k < 3; k++) {
        for (int step = 1; step < 3; step++) { /* with one mean, and with sums */
            refuses = rank == failing;
            const ls_status status = run_pass(world, model, step == 1 ? PLAIN : SUMS, step);
            refuses = false;
            LS_CHECK(status == (rank == failing ? LS_ERR_UNSUPPORTED : LS_ERR_MISMATCH));
            char words[40];
            snprintf(words, sizeof words, "rank %d failed: ", failing);
            LS_CHECK(rank == failing || strstr(ls_error_message(), words) != NULL);
            LS_EXPECT_MESSAGE("the hook refuses");
            LS_CHECK(ls_grad(ls_module_parameter(model, 0)) == NULL || ls_comm_size(world) == 1);
            LS_TRY(run_pass(world, model, PLAIN, step));
        }
    }
    LS_TRY(ls_data_parallel_check(model));
    ls_module_free(model);
    return LS_OK;
}

/* A module is freed after a failed pass while its buckets are in flight. */
static ls_status freed_in_flight(ls_comm *world) {
    ls_module *models[] = {wrap(world, PLAIN, LS_OVERLAP_ON, 1), wrap(world, NORMALIZED, LS_OVERLAP_ON, 1)};
    LS_CHECK(models[0] != NULL && models[1] != NULL);
    for (int i = 0; i < 2; i++) {
        LS_TRY(ls_add_grad_hook(ls_module_parameter(models[i], 2), refuse, NULL));
    }
    for (int step = 0; step < 3; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = rows(step, ls_comm_rank(world), 4);
        refuses = step > 0 && ls_comm_rank(world) == 0;
        const ls_status status =
            ls_backward(ls_mean(ls_square(ls_add(ls_forward(models[0], x), ls_forward(models[1], x)))));
        refuses = false;
        LS_CHECK((status == LS_OK) == (step == 0));
        (void)!ls_scope_end(scope);
    }
    ls_module_free(models[0]);
    ls_module_free(models[1]);
    return LS_OK;
}

/* Runs a step of two modules. On a rank that leaves early, an operation fails before the second module runs. */
static ls_status two_modules(ls_comm *world, ls_module *const *models, int step, bool leaves) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = rows(step, ls_comm_rank(world), 4);
    ls_tensor *y = ls_forward(models[0], leaves ? ls_add(x, ls_ones(LS_SHAPE(3, 3), LS_F32)) : x);
    y = leaves ? NULL : ls_add(y, ls_forward(models[1], x));
    const ls_status status = ls_backward(leaves ? NULL : ls_mean(ls_square(y)));
    (void)!ls_scope_end(scope);
    return status;
}

/* If one rank has not run the second module in a failed step, the buckets of this module are stale only on the other
 * ranks. The next step fails on all ranks with a message, and the step after it succeeds, although only the other ranks
 * have created buckets for the parameter that was frozen in the failed step. */
static ls_status stale_buckets(ls_comm *world) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    ls_module *models[] = {wrap(world, PLAIN, LS_OVERLAP_ON, 1), wrap(world, PLAIN, LS_OVERLAP_ON, 1)};
    LS_CHECK(models[0] != NULL && models[1] != NULL);
    LS_TRY(two_modules(world, models, 0, false));
    LS_TRY(two_modules(world, models, 1, false));
    ls_module_zero_grad(models[1]); /* a frozen parameter with a gradient is sent */
    LS_TRY(ls_set_requires_grad(ls_module_find(models[1], "twice.weight"), false));
    LS_CHECK(two_modules(world, models, 2, ls_comm_rank(world) == 0) != LS_OK);
    LS_TRY(ls_set_requires_grad(ls_module_find(models[1], "twice.weight"), true));
    LS_CHECK(two_modules(world, models, 3, false) == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("an earlier backward pass failed on some ranks");
    for (int step = 4; step < 7; step++) {
        LS_TRY(two_modules(world, models, step, false));
    }
    for (int i = 0; i < 2; i++) {
        LS_TRY(ls_data_parallel_check(models[i]));
        ls_module_free(models[i]);
    }
    return LS_OK;
}

/* ---- slices ------------------------------------------------------------------------------------------------------ */

typedef struct sliced {
    ls_module *model;
    case_kind kind;
    int ran; /* number of slices of this rank in the present step that have begun */
} sliced;

static ls_tensor *loss_of_slice(const ls_batch *batch, void *user) {
    sliced *s = user;
    s->ran++;
    return loss_of(s->kind, ls_forward(s->model, batch->input));
}

/* Runs a step with `shards` slices. In some steps of UNEVEN, the last slices have no samples. */
static ls_status step_of_slices(ls_comm *world, sliced *s, int shards, int step) {
    const int64_t count = s->kind != UNEVEN ? 3 * shards : step % 2 == 0 ? 3 * shards - 1 : (shards + 1) / 2;
    const ls_share slices = ls_share_of(shards, ls_comm_size(world), ls_comm_rank(world));
    const int64_t first = ls_share_of(count, shards, slices.start).start;
    const ls_share last = ls_share_of(count, shards, slices.start + slices.count - 1);
    ls_scope *scope = ls_scope_begin();
    ls_batch batch = {.first = first, .count = last.start + last.count - first, .global_count = count};
    batch.input = ls_narrow(rows(step, 0, count), 0, batch.first, batch.count);
    s->ran = 0;
    LS_TRY(s->kind == FROZEN ? freeze(s->model, step) : LS_OK);
    return ls_scope_end_after(scope, ls_data_parallel_step(s->model, &batch, loss_of_slice, s));
}

/* Makes three models: with slices and overlap, with slices only and, if there is one slice per rank, without slices. */
static void make_sliced(ls_comm *world, case_kind kind, int shards, size_t bytes, ls_module **models) {
    const ls_data_parallel_options options[] = {
        {.shards = shards, .overlap = LS_OVERLAP_ON, .bucket_bytes = bytes},
        {.shards = shards, .overlap = LS_OVERLAP_OFF},
        {.shards = shards > ls_comm_size(world) ? shards : 0, .overlap = LS_OVERLAP_OFF},
    };
    for (int i = 0; i < 3; i++) {
        models[i] = ls_data_parallel(make(kind == NORMALIZED), world, &options[i]);
    }
}

static ls_status same_slices(ls_comm *world, case_kind kind, int shards, size_t bytes) {
    ls_module *models[3];
    ls_optimizer *optimizers[3];
    make_sliced(world, kind, shards, bytes, models);
    for (int i = 0; i < 3; i++) {
        optimizers[i] = ls_sgd(models[i], &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.9});
        LS_CHECK(optimizers[i] != NULL);
    }
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < 3; i++) {
            if (kind != ACCUMULATED || step % 2 == 0) {
                ls_optimizer_zero_grad(optimizers[i]);
            }
            LS_TRY(step_of_slices(world, &(sliced){.model = models[i], .kind = kind}, shards, step));
            LS_TRY(same_gradients(models[i], models[0]));
            LS_TRY(ls_optimizer_step(optimizers[i]));
            LS_CHECK(ls_module_hash(models[i]) == ls_module_hash(models[0]));
        }
    }
    for (int i = 0; i < 3; i++) {
        ls_optimizer_free(optimizers[i]);
        ls_module_free(models[i]);
    }
    return LS_OK;
}

/* The odd entries, where the ranks' sums are not nodes of the same size, exclude overlap. With LOCKSTEP_TEST_LONG,
 * tries all entries. */
static ls_status all_slices(ls_comm *world) {
    const int size = ls_comm_size(world), shards[] = {2 * size, 2 * size + 1, size, 3 * size, 4 * size};
    const int count = getenv("LOCKSTEP_TEST_LONG") != NULL ? 5 : 2;
    for (case_kind kind = 0; kind < HALVES; kind++) {
        for (int i = 0; i < count; i++) {
            const size_t bytes = i == 0 && kind % 2 == 1 ? 1 << 16 : 1;
            const ls_status status = shards[i] == 1 ? LS_OK : same_slices(world, kind, shards[i], bytes);
            if (status != LS_OK) {
                return ls_fail(status, "kind %d, %d slices: %s", (int)kind, shards[i], ls_error_message());
            }
        }
    }
    return LS_OK;
}

/* When the gradient of the first layer is complete in the last slice, at least 4 of the 6 buckets are in flight. */
static ls_status slices_start_early(ls_comm *world) {
    const int size = ls_comm_size(world);
    ls_module *model =
        ls_data_parallel(make_single(), world,
                         &(ls_data_parallel_options){.shards = 4 * size, .overlap = LS_OVERLAP_ON, .bucket_bytes = 1});
    LS_CHECK(model != NULL);
    launches noted = {.state = ls_module_state(model)};
    LS_TRY(ls_add_grad_hook(ls_module_parameter(model, 0), note_launches, &noted));
    for (int step = 0; step < 3; step++) {
        LS_TRY(step_of_slices(world, &(sliced){.model = model}, 4 * size, step));
        LS_CHECK(size == 1 ? noted.seen == 0 : noted.seen >= 4);
    }
    ls_module_free(model);
    return LS_OK;
}

typedef struct refusal {
    sliced slices;
    int at; /* the hook refuses in this slice of the rank, counted from 1; 0: in none */
} refusal;

static ls_status refuse_in_slice(ls_tensor *tensor, void *user) {
    const refusal *r = user;
    (void)tensor;
    return r->at == r->slices.ran ? ls_error_set(LS_ERR_UNSUPPORTED, "the hook refuses") : LS_OK;
}

/* The step after a failed step succeeds, with the same gradients as without overlap. Frees the models. */
static ls_status step_after_failure(ls_comm *world, ls_module *const *models, int shards) {
    for (int i = 0; i < 2; i++) {
        ls_module_zero_grad(models[i]);
        LS_TRY(step_of_slices(world, &(sliced){.model = models[i]}, shards, 3));
    }
    LS_TRY(same_gradients(models[0], models[1]));
    for (int i = 0; i < 3; i++) {
        ls_module_free(models[i]);
    }
    return LS_OK;
}

/* A hook of the first or last parameter fails on the last rank, in its first or last slice. */
static ls_status slices_that_fail(ls_comm *world) {
    const int size = ls_comm_size(world), rank = ls_comm_rank(world), shards = 2 * size;
    for (int k = 0; k < 4; k++) {
        ls_module *models[3];
        make_sliced(world, PLAIN, shards, 1, models);
        refusal r = {.slices = {.model = models[0]}};
        LS_TRY(ls_add_grad_hook(ls_module_parameter(models[0], k % 2 == 0 ? 0 : 8), refuse_in_slice, &r));
        LS_TRY(step_of_slices(world, &r.slices, shards, 0));
        r.at = rank == size - 1 ? 1 + k / 2 : 0;
        const ls_status status = step_of_slices(world, &r.slices, shards, 1);
        LS_CHECK(status == (rank == size - 1 ? LS_ERR_UNSUPPORTED : LS_ERR_MISMATCH));
        char words[40];
        snprintf(words, sizeof words, "rank %d failed: ", size - 1);
        LS_CHECK(rank == size - 1 || strstr(ls_error_message(), words) != NULL);
        LS_EXPECT_MESSAGE("the hook refuses");
        LS_CHECK(ls_grad(ls_module_parameter(models[0], 0)) == NULL);
        r.at = 0;
        LS_TRY(step_after_failure(world, models, shards));
    }
    return LS_OK;
}

/* Events between the failed step and the next step. */
typedef enum stale_event { NOTHING, THAWING, STATISTICS, SHARING, EVENTS } stale_event;

/* THAWING ends a freeze of the failed step. STATISTICS switches batch normalization on. SHARING passes a layer of the
 * model to another data-parallel module, which the function returns. */
static ls_module *change(ls_comm *world, stale_event event, ls_module *const *models) {
    (void)ls_set_requires_grad(ls_module_find(models[0], "twice.weight"), true);
    for (int i = 0; i < 3 && event == STATISTICS; i++) {
        ls_module_train(models[i], true);
    }
    const ls_data_parallel_state *state = ls_module_state(models[0]);
    return event == SHARING ? ls_data_parallel(ls_sequential(state->model->children[0].module), world, NULL) : NULL;
}

/* If rank 0 calls a barrier instead of a step, the next step also fails, and the step after it succeeds. */
static ls_status stale_slices(ls_comm *world, stale_event event) {
    const int size = ls_comm_size(world), rank = ls_comm_rank(world), shards = 2 * size;
    ls_module *models[3];
    make_sliced(world, event == STATISTICS ? NORMALIZED : PLAIN, shards, 1, models);
    for (int i = 0; i < 3; i++) {
        ls_module_train(models[i], event != STATISTICS);
    }
    sliced s = {.model = models[0]};
    LS_TRY(step_of_slices(world, &s, shards, 0));
    ls_module_zero_grad(models[0]);
    LS_TRY(ls_set_requires_grad(ls_module_find(models[0], "twice.weight"), event != THAWING));
    if (size > 1) {
        LS_CHECK((rank == 0 ? ls_comm_barrier(world, NULL) : step_of_slices(world, &s, shards, 1)) == LS_ERR_MISMATCH);
    }
    ls_module *other = change(world, event, models);
    if (size > 1) {
        const ls_status status = step_of_slices(world, &s, shards, 2);
        LS_CHECK(status == (event <= THAWING || rank == 0 ? LS_ERR_MISMATCH : LS_ERR_STATE));
        LS_EXPECT_MESSAGE("an earlier backward pass failed on some ranks");
        const ls_data_parallel_state *state = ls_module_state(models[0]);
        LS_CHECK(rank == 0 || state->slices->losses[0].loss == 0);
    }
    LS_TRY(step_after_failure(world, models, shards));
    ls_module_free(other);
    return LS_OK;
}

/* A parameter is frozen on rank 0 only, so only rank 0 creates new buckets. The next step succeeds. */
static ls_status slices_frozen_in_part(ls_comm *world) {
    const int shards = 2 * ls_comm_size(world);
    ls_module *models[3];
    make_sliced(world, PLAIN, shards, 1, models);
    sliced s = {.model = models[0]};
    LS_TRY(step_of_slices(world, &s, shards, 0));
    ls_module_zero_grad(models[0]);
    LS_TRY(ls_set_requires_grad(ls_module_find(models[0], "twice.weight"), ls_comm_rank(world) > 0));
    if (ls_comm_size(world) > 1) {
        LS_CHECK(step_of_slices(world, &s, shards, 1) == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE("a parameter must be frozen (ls_set_requires_grad) on all ranks or on none");
    }
    LS_TRY(ls_set_requires_grad(ls_module_find(models[0], "twice.weight"), true));
    return step_after_failure(world, models, shards);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(slices_start_early(world));
    LS_TRY(all_slices(world));
    LS_TRY(slices_that_fail(world));
    for (stale_event event = NOTHING; event < EVENTS; event++) {
        LS_TRY(stale_slices(world, event));
    }
    LS_TRY(slices_frozen_in_part(world));
    LS_TRY(buckets_start_early(world));
    LS_TRY(all_buckets(world));
    LS_TRY(modules_that_share(world));
    LS_TRY(hooks_that_fail(world, PLAIN));
    LS_TRY(hooks_that_fail(world, NORMALIZED));
    LS_TRY(stale_buckets(world));
    LS_TRY(freed_in_flight(world));
    return ls_comm_barrier(world, NULL);
}
