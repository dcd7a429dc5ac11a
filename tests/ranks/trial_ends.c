/*
 * Trials that end on one rank, on any number of ranks and any backend: a hook fails or stops there, or the trial's own
 * step fails. All ranks end after the same step, with the same status and the same message, and can communicate
 * afterwards.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/parallel.h>
#include <lockstep/train.h>

enum { SAMPLES = 40, INPUTS = 3, EPOCHS = 3, SEED = 5 };

/* What happens on the last rank. */
typedef struct ending {
    ls_comm *world;
    const char *name; /* of the hook that acts */
    bool stops;       /* else fails */
    int64_t step;     /* at the earliest */
    bool acts;        /* on this rank */
    bool silent;
} ending;

static ls_status act(ls_trial_state *state, void *user) {
    const ending *how = user;
    if (!how->acts || state->step < how->step) {
        return LS_OK;
    }
    state->stop = state->stop || how->stops;
    return how->stops ? LS_OK : how->silent ? LS_ERR_IO : ls_error_set(LS_ERR_IO, "the disk is full");
}

static const struct {
    const char *name;
    size_t place;
} hooks[] = {
#define HOOK(name)                                                                                                     \
    { #name, offsetof(ls_callback_hooks, name) }
    HOOK(on_start),
    HOOK(on_start_epoch),
    HOOK(on_start_training),
    HOOK(on_sample),
    HOOK(on_forward),
    HOOK(on_criterion),
    HOOK(on_backward),
    HOOK(on_step_training),
    HOOK(on_end_training),
    HOOK(on_start_validation),
    HOOK(on_sample_validation),
    HOOK(on_forward_validation),
    HOOK(on_step_validation),
    HOOK(on_end_validation),
    HOOK(on_criterion_validation),
    HOOK(on_end_epoch),
    HOOK(on_checkpoint),
    HOOK(on_end),
};

static ls_dataset *make_dataset(int64_t count) {
    ls_tensor *input = ls_full(LS_SHAPE(count, INPUTS), LS_F64, 0.5);
    ls_tensor *target = ls_full(LS_SHAPE(count, 1), LS_F64, 0.25);
    return ls_tensor_dataset(input, target);
}

/* Number of criterion calls until the step of one of this thread's ranks fails. */
static _Thread_local int64_t criterion_calls_left;

static ls_tensor *criterion(ls_tensor *output, ls_tensor *target, void *user) {
    if (--criterion_calls_left == 0) {
        return ls_matmul(output, ls_zeros(LS_SHAPE(2, 2), LS_F64));
    }
    return ls_criterion_mse(output, target, user);
}

typedef struct run {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_loader *train;
    ls_loader *validate;
    ls_trial *trial;
    ls_status status;
    char message[1024];
} run;

/* Begins a trial. `callback` and `step` (the trial's own step) may be NULL. */
static ls_status begin(run *r, ls_comm *world, int64_t global_batch, ls_callback *callback, ls_callback_function step,
                       void *user) {
    const ls_loader_options loading = {.global_batch_size = global_batch, .comm = world, .seed = SEED};
    const ls_linear_options layer = {.dtype = LS_F64};
    ls_seed(SEED);
    r->model = ls_data_parallel(ls_nn_linear_with(INPUTS, 1, &layer), world, NULL);
    r->optimizer = ls_sgd(r->model, &(ls_sgd_options){.learning_rate = 0.01});
    r->train = ls_loader_new(make_dataset(SAMPLES), &loading);
    r->validate = ls_loader_new(make_dataset(8), &loading);
    r->trial = ls_trial_new(&(ls_trial_options){.model = r->model,
                                                .optimizer = r->optimizer,
                                                .criterion = criterion,
                                                .train = r->train,
                                                .validate = r->validate,
                                                .callbacks = &callback,
                                                .callback_count = callback != NULL,
                                                .step = step,
                                                .step_user = user,
                                                .metrics = LS_METRICS("loss"),
                                                .quiet = true});
    LS_CHECK(r->trial != NULL);
    return LS_OK;
}

static void free_run(run *r) {
    ls_trial_free(r->trial);
    ls_optimizer_free(r->optimizer);
    ls_loader_free(r->train);
    ls_loader_free(r->validate);
    ls_module_free(r->model);
}

static ls_status carry_out(run *r) {
    r->status = ls_trial_run(r->trial, EPOCHS);
    snprintf(r->message, sizeof r->message, "%s", ls_error_message());
    free_run(r);
    return LS_OK;
}

/* Checks that the ranks are in step. */
static ls_status sum_ranks(ls_comm *world) {
    int64_t sum = 1;
    LS_CHECK(ls_comm_allreduce(world, &sum, &sum, 1, LS_I64, LS_SUM, NULL) == LS_OK);
    LS_CHECK(sum == ls_comm_size(world));
    return LS_OK;
}

/* Runs a trial with a callback whose hook acts, on all ranks or only on the acting rank. */
static ls_status end_in_hook(ls_comm *world, ending how, size_t hook, bool everywhere, int64_t global_batch) {
    const int last = ls_comm_size(world) - 1;
    run r = {0};
    how.world = world;
    how.name = hooks[hook].name;
    how.acts = ls_comm_rank(world) == last;
    ls_callback_hooks own = {.name = NULL};
    memcpy((char *)&own + hooks[hook].place, &(ls_callback_function){act}, sizeof(ls_callback_function));
    ls_callback *callback = everywhere || how.acts ? ls_callback_new(&own, &how) : NULL;
    LS_TRY(begin(&r, world, global_batch, callback, NULL, NULL));
    LS_TRY(carry_out(&r));
    if (how.stops) {
        LS_CHECK(r.status == LS_OK);
        return sum_ranks(world);
    }
    char expected[200];
    if (how.silent) {
        snprintf(expected, sizeof expected, "rank %d failed: the hook %s of callback 0 failed with LS_ERR_IO", last,
                 how.name);
    } else {
        snprintf(expected, sizeof expected, "rank %d failed: the hook %s of callback 0: the disk is full", last,
                 how.name);
    }
    if (r.status != LS_ERR_IO || strstr(r.message, expected) == NULL) {
        return ls_fail(LS_ERR_INTERNAL, "%s gave %s: \"%s\", not \"%s\"", how.name, ls_status_name(r.status), r.message,
                       expected);
    }
    return sum_ranks(world);
}

static ls_status every_hook_fails(ls_comm *world) {
    for (size_t hook = 0; hook < sizeof hooks / sizeof hooks[0]; hook++) {
        LS_TRY(end_in_hook(world, (ending){.step = 0}, hook, true, 8));
        LS_TRY(end_in_hook(world, (ending){.step = hook == 0 ? 0 : 3, .silent = true}, hook, false, 8));
    }
    return LS_OK;
}

/*
 * Global batches have fewer samples than ranks, so the last rank has none in most batches. A stop on the first rank
 * reaches it, too.
 */
static ls_status every_hook_stops(ls_comm *world) {
    for (size_t hook = 0; hook < sizeof hooks / sizeof hooks[0]; hook++) {
        LS_TRY(end_in_hook(world, (ending){.step = 3, .stops = true}, hook, hook % 2 == 0, hook % 3 == 0 ? 2 : 8));
    }
    return LS_OK;
}

/* No rank has callbacks. */
static ls_status own_step_fails(ls_comm *world) {
    const int last = ls_comm_size(world) - 1;
    char expected[100];
    for (int64_t call = 1; call <= 8; call += 3) { /* in training, and in validation */
        run r = {0};
        LS_TRY(begin(&r, world, 8, NULL, NULL, NULL));
        criterion_calls_left = ls_comm_rank(world) == last ? call : 0;
        LS_TRY(carry_out(&r));
        snprintf(expected, sizeof expected, "ls_trial: rank %d failed: ls_matmul: ", last);
        LS_CHECK(r.status == LS_ERR_SHAPE || r.status == LS_ERR_ARGUMENT);
        LS_CHECK(strstr(r.message, expected) != NULL);
        LS_TRY(sum_ranks(world));
    }
    return LS_OK;
}

/* Acts as a hook does, or trains. */
static ls_status act_and_train(ls_trial_state *state, void *user) {
    LS_TRY(act(state, user));
    ls_optimizer_zero_grad(state->optimizer);
    if (state->count > 0) {
        state->loss = ls_criterion_mse(ls_forward(state->model, state->input), state->target, NULL);
        LS_TRY(ls_backward(state->loss));
    } else {
        LS_TRY(ls_data_parallel_skip(state->model));
    }
    return ls_optimizer_step(state->optimizer);
}

static ls_status has_samples(ls_trial_state *state, void *user) {
    (void)user;
    return state->count > 0 ? LS_OK : ls_error_set(LS_ERR_INTERNAL, "on_sample without any");
}

/* Tests a custom step. With global batches of 2, some shares are empty. No rank has additional callbacks. */
static ls_status step_of_ones_own(ls_comm *world, bool stops, bool silent, int64_t global_batch) {
    const int last = ls_comm_size(world) - 1;
    ending how = {.world = world, .stops = stops, .step = 3, .acts = ls_comm_rank(world) == last, .silent = silent};
    run r = {0};
    ls_callback *callback =
        global_batch == 2 ? ls_callback_new(&(ls_callback_hooks){.on_sample = has_samples}, NULL) : NULL;
    LS_TRY(begin(&r, world, global_batch, callback, act_and_train, &how));
    const ls_status status = ls_trial_run(r.trial, EPOCHS);
    LS_CHECK(status == (stops ? LS_OK : LS_ERR_IO));
    char expected[100];
    snprintf(expected, sizeof expected, "rank %d failed: the step%s", last,
             silent ? " failed with LS_ERR_IO" : ": the disk is full");
    LS_CHECK(stops || strstr(ls_error_message(), expected) != NULL);
    LS_CHECK(ls_trial_history_count(r.trial) == 0);
    int64_t at;
    ls_loader_position(r.train, NULL, &at);
    LS_CHECK(at == 4); /* steps 0 to 3; the last one failed or stopped */
    free_run(&r);
    return sum_ranks(world);
}

/* After a run failed on one rank, this rank frees the training loader and runs the trial again. */
static ls_status loader_is_freed(ls_comm *world) {
    const int last = ls_comm_size(world) - 1;
    ending how = {.world = world, .acts = ls_comm_rank(world) == last};
    run r = {0};
    char expected[100];
    LS_TRY(begin(&r, world, 8, ls_callback_new(&(ls_callback_hooks){.on_start = act}, &how), NULL, NULL));
    LS_CHECK(ls_trial_run(r.trial, EPOCHS) == LS_ERR_IO);
    if (how.acts) {
        ls_loader_free(r.train);
        r.train = NULL;
    }
    how.acts = false;
    LS_TRY(carry_out(&r));
    snprintf(expected, sizeof expected, "rank %d failed: ls_trial_run: ", last);
    LS_CHECK(r.status == LS_ERR_STATE && strstr(r.message, expected) != NULL);
    return sum_ranks(world);
}

ls_status rank_test(ls_comm *world) {
    if (ls_comm_size(world) > 1) {
        LS_TRY(every_hook_fails(world));
        LS_TRY(every_hook_stops(world));
        LS_TRY(own_step_fails(world));
        LS_TRY(loader_is_freed(world));
        for (int64_t global_batch = 2; global_batch <= 8; global_batch += 6) {
            LS_TRY(step_of_ones_own(world, true, false, global_batch));
            LS_TRY(step_of_ones_own(world, false, false, global_batch));
            LS_TRY(step_of_ones_own(world, false, true, global_batch));
        }
    }
    return LS_OK;
}
