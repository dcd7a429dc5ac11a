/*
 * `.capture` of a trial on several ranks: the results are bit-identical to training without it, even if only some
 * ranks capture the step, or a rank has no samples. Errors are the same.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include "tests/support/training.h"

enum { EPOCHS = 3, STEPS = 3 * EPOCHS };

typedef struct choice {
    int64_t global_batch;
    bool clips;      /* the trial clips gradients, and decays weights by the loss */
    bool grouped;    /* in one callback */
    bool overlaps;   /* gradients are averaged during the backward pass */
    bool normalizes; /* the model has batch normalization */
    int zero;
    bool hook_on_last; /* the last rank has a hook that prevents the capture */
    ls_callback_function on_start_epoch;
    ls_callback_function on_sample; /* of the last rank */
    ls_status ends;
} choice;

typedef struct outcome {
    uint64_t hash;
    double train_loss, loss, accuracy;
    int calls; /* of the criterion in training */
    char message[LS_ERROR_CAPACITY];
} outcome;

/* ---- the training ------------------------------------------------------------------------------------------------ */

static _Thread_local int calls;

static ls_tensor *criterion(ls_tensor *output, ls_tensor *target, void *user) {
    calls += ls_requires_grad(output);
    return ls_criterion_cross_entropy(output, target, user);
}

static ls_status accept(ls_trial_state *state, void *user) {
    (void)user;
    return state->loss != NULL ? LS_OK : ls_error_set(LS_ERR_STATE, "there is no loss");
}

static ls_status run(ls_comm *world, const choice *how, bool capture, outcome *is) {
    training t;
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    const ls_callback_hooks hooks = {.on_start_epoch = how->on_start_epoch,
                                     .on_sample = last ? how->on_sample : NULL,
                                     .on_criterion = last && how->hook_on_last ? accept : NULL};
    ls_callback *callbacks[] = {ls_callback_new(&hooks, NULL), how->clips ? ls_gradient_norm_clipping(0.3) : NULL,
                                how->clips ? ls_weight_decay(0.01, 2) : NULL};
    if (how->grouped) {
        callbacks[1] = ls_callbacks_of(callbacks + 1, 2);
    }
    const training_plan plan = {
        .criterion = criterion,
        .global_batch = how->global_batch,
        .callbacks = callbacks,
        .callback_count = how->grouped ? 2
                          : how->clips ? 3
                                       : 1,
        .capture = capture,
        .normalizes = how->normalizes,
        .parallel = {.zero = how->zero, .overlap = how->overlaps ? LS_OVERLAP_ON : LS_OVERLAP_OFF, .bucket_bytes = 1}};
    LS_TRY(training_begin(&t, &plan, world));
    calls = 0;
    LS_CHECK(ls_trial_run(t.trial, EPOCHS) == how->ends);
    LS_TRY(ls_data_parallel_gather(t.model, how->zero > 2));
    *is = (outcome){.hash = ls_module_hash(t.model),
                    .train_loss = ls_trial_metric(t.trial, "loss"),
                    .loss = ls_trial_metric(t.trial, "val_loss"),
                    .accuracy = ls_trial_metric(t.trial, "acc"),
                    .calls = calls};
    snprintf(is->message, sizeof is->message, "%s", how->ends != LS_OK ? ls_error_message() : "");
    training_end(&t);
    return LS_OK;
}

/* Compares with training without a capture. `most` is the largest permitted number of calls to the criterion. */
static ls_status compare(ls_comm *world, const choice *how, int most) {
    outcome eager, captured;
    LS_TRY(run(world, how, false, &eager));
    LS_TRY(run(world, how, true, &captured));
    LS_CHECK(captured.hash == eager.hash);
    LS_CHECK(memcmp(&captured.train_loss, &eager.train_loss, sizeof eager.train_loss) == 0);
    LS_CHECK(memcmp(&captured.loss, &eager.loss, sizeof eager.loss) == 0);
    LS_CHECK(memcmp(&captured.accuracy, &eager.accuracy, sizeof eager.accuracy) == 0);
    LS_CHECK(captured.calls <= most);
    if (strcmp(captured.message, eager.message) != 0) {
        return ls_fail(LS_ERR_INTERNAL, "\"%s\" instead of \"%s\"", captured.message, eager.message);
    }
    return how->ends == LS_OK ? ranks_have_same_bytes(world, &captured.hash, sizeof captured.hash) : LS_OK;
}

/* ---- the same bits ----------------------------------------------------------------------------------------------- */

enum { CALLS = 1 + EPOCHS }; /* the capture, and the small batch of each epoch */

/* The last batch of an epoch is smaller, and may have no samples for some ranks. */
static ls_status replays(ls_comm *world) {
    for (int64_t batch = 27; batch <= 29; batch++) {
        LS_TRY(compare(world, &(choice){.global_batch = batch}, CALLS));
        LS_TRY(compare(world, &(choice){.global_batch = batch, .overlaps = true}, CALLS));
    }
    return LS_OK;
}

static ls_status clips(ls_comm *world) {
    outcome plain, clipped;
    LS_TRY(compare(world, &(choice){.global_batch = 28, .clips = true}, CALLS));
    LS_TRY(compare(world, &(choice){.global_batch = 28, .clips = true, .grouped = true}, CALLS));
    LS_TRY(run(world, &(choice){.global_batch = 28, .clips = true}, true, &clipped));
    LS_TRY(run(world, &(choice){.global_batch = 28}, true, &plain));
    LS_CHECK(plain.hash != clipped.hash);
    return LS_OK;
}

/* Replays exchange the sums of batch normalization, and the shards of parameters and gradients. */
static ls_status shares(ls_comm *world) {
    LS_TRY(compare(world, &(choice){.global_batch = 28, .normalizes = true}, CALLS));
    LS_TRY(compare(world, &(choice){.global_batch = 29, .normalizes = true, .clips = true, .overlaps = true}, CALLS));
    for (int zero = 1; zero <= 3; zero++) {
        LS_TRY(compare(world, &(choice){.global_batch = 28, .zero = zero}, CALLS));
        LS_TRY(compare(world, &(choice){.global_batch = 29, .zero = zero, .overlaps = true}, CALLS));
        LS_TRY(compare(world, &(choice){.global_batch = 28, .zero = zero, .normalizes = true}, CALLS));
    }
    return LS_OK;
}

/* The first layer is not trained in the second epoch. */
static ls_status freeze(ls_trial_state *state, void *user) {
    (void)user;
    return ls_set_requires_grad(ls_module_parameter(state->model, 0), state->epoch != 1);
}

static ls_status captures_again(ls_comm *world) {
    LS_TRY(compare(world, &(choice){.global_batch = 29, .on_start_epoch = freeze}, CALLS + 2));
    return compare(world, &(choice){.global_batch = 29, .on_start_epoch = freeze, .overlaps = true}, CALLS + 2);
}

static ls_status replays_on_some_ranks(ls_comm *world) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    LS_TRY(compare(world, &(choice){.global_batch = 28, .hook_on_last = true}, last ? STEPS : CALLS));
    return compare(world, &(choice){.global_batch = 28, .hook_on_last = true, .overlaps = true}, last ? STEPS : CALLS);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* A class that does not exist, in a step that is a replay. */
static ls_status spoil(ls_trial_state *state, void *user) {
    (void)user;
    if (state->step == 4) {
        state->target = ls_full(LS_SHAPE(state->count), LS_I64, TRAINING_CLASSES);
    }
    return LS_OK;
}

/* The criterion is called by the capture and for the small batch of the first epoch. */
static ls_status fails_alike(ls_comm *world) {
    LS_TRY(compare(world, &(choice){.global_batch = 28, .on_sample = spoil, .ends = LS_ERR_ARGUMENT}, 2));
    return compare(world, &(choice){.global_batch = 28, .on_sample = spoil, .overlaps = true, .ends = LS_ERR_ARGUMENT},
                   2);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(replays(world));
    LS_TRY(clips(world));
    LS_TRY(shares(world));
    LS_TRY(captures_again(world));
    LS_TRY(replays_on_some_ranks(world));
    LS_TRY(fails_alike(world));
    return ls_comm_barrier(world, NULL);
}
