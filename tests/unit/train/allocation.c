/*
 * Training and memory: in its steady state, training does not call the allocator. Wherever memory runs out, from the
 * data files to the saved weights, in one process or data-parallel, training fails with a reason and frees everything.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/lockstep.h>

#include "base/status.h"
#include "tests/support/allocator.h"
#include "tests/support/files.h"

enum { FEATURES = 20, CLASSES = 10, SIDE = 4 };

/* ---- steady state ------------------------------------------------------------------------------------------------ */

/* Batches of 16 samples and a smaller last batch. */
enum { STEADY_SAMPLES = 16 * 110 + 5 };

static ls_tensor *as_pictures(ls_tensor *x, const ls_samples *samples, void *user) {
    (void)user;
    return ls_reshape(x, LS_SHAPE(samples->count, 4, FEATURES / 4));
}

static ls_dataset *make_samples(int64_t count, bool classes) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_rand(LS_SHAPE(count, FEATURES), LS_F32);
    ls_tensor *y =
        classes ? ls_argmax(ls_narrow(x, 1, 0, CLASSES), 1, false) : ls_sum_axes(ls_pow(x, 3), LS_AXES(1), true);
    ls_dataset *set = ls_tensor_dataset(x, y);
    return ls_scope_end(scope) == LS_OK ? set : NULL;
}

/* Turns the features into pictures, with random changes. */
static ls_dataset *change_samples(ls_dataset *set) {
    return ls_dataset_flatten(
        ls_dataset_random_flip(ls_dataset_concurrent(ls_dataset_transform_input(set, as_pictures, NULL)), 0.5, 0.5));
}

static ls_module *make_model(ls_comm *world, int64_t hidden, int64_t outputs) {
    ls_module *model = ls_sequential(ls_nn_linear(FEATURES, hidden), ls_nn_relu(), ls_nn_linear(hidden, hidden),
                                     ls_nn_relu(), ls_nn_linear(hidden, outputs));
    return world != NULL ? ls_data_parallel(model, world, NULL) : model;
}

typedef struct steady {
    test_allocator *allocator;
    long before; /* allocator calls at the end of the second epoch; then all loaders are in use */
    long after;  /* and after the validation of the third epoch */
} steady;

static ls_status all_here(const ls_trial_state *state) {
    return state->comm != NULL ? ls_comm_barrier(state->comm, NULL) : LS_OK;
}

static ls_status note_before(ls_trial_state *state, void *user) {
    steady *seen = user;
    LS_TRY(all_here(state));
    if (state->epoch == 1) {
        seen->before = atomic_load(&seen->allocator->calls);
    }
    return all_here(state);
}

static ls_status note_after(ls_trial_state *state, void *user) {
    steady *seen = user;
    LS_TRY(all_here(state));
    if (state->epoch == 2) {
        seen->after = atomic_load(&seen->allocator->calls);
    }
    return all_here(state);
}

static ls_status average_gradients(ls_trial_state *state, void *user) {
    (void)user;
    return state->comm != NULL ? ls_sync_gradients(state->model, state->comm) : LS_OK;
}

/* Runs three epochs of a trial. The third must not call the allocator. */
static ls_status run_trial(ls_comm *world, test_allocator *allocator, ls_module *model, ls_callback *averaging,
                           int threads) {
    steady seen = {.allocator = allocator};
    ls_callback *const callbacks[] = {
        ls_callback_new(&(ls_callback_hooks){.on_end_epoch = note_before, .on_end_validation = note_after}, &seen),
        averaging};
    ls_optimizer *optimizer = ls_adam(model, NULL);
    ls_loader *train = ls_loader_new(threads > 0 ? change_samples(make_samples(STEADY_SAMPLES, true))
                                                 : make_samples(STEADY_SAMPLES, true),
                                     &(ls_loader_options){.global_batch_size = 16, .comm = world, .threads = threads});
    ls_loader *validate =
        ls_loader_new(make_samples(50, true), &(ls_loader_options){.global_batch_size = 20, .comm = world});
    ls_trial *trial = ls_trial_new(
        &(ls_trial_options){.model = model,
                            .optimizer = optimizer,
                            .criterion = ls_criterion_cross_entropy,
                            .train = train,
                            .validate = validate,
                            .comm = world,
                            .metrics = LS_METRICS("loss", "acc", "running_loss", "loss_std", "acc_var", "top_3_acc",
                                                  "f1", "confusion", "lr", "samples_per_second"),
                            .callbacks = callbacks,
                            .callback_count = 2,
                            .quiet = true});
    ls_status status = trial != NULL ? ls_trial_run(trial, 3) : ls_error_status();
    if (status == LS_OK && (seen.before == 0 || seen.after != seen.before)) {
        status = ls_fail(LS_ERR_INTERNAL, "%ld calls in two epochs and %ld in the third", seen.before,
                         seen.after - seen.before);
    }
    ls_trial_free(trial);
    ls_loader_free(train);
    ls_loader_free(validate);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return status;
}

static ls_status train_by_trial(ls_comm *world, void *argument) {
    return run_trial(world, argument, make_model(world, 32, CLASSES), ls_callback_new(&(ls_callback_hooks){0}, NULL),
                     0);
}

/* Trains on pictures that threads change and combine into batches. */
static ls_status train_with_threads(ls_comm *world, void *argument) {
    return run_trial(world, argument, make_model(world, 32, CLASSES), ls_callback_new(&(ls_callback_hooks){0}, NULL),
                     2);
}

static ls_status train_by_callbacks(ls_comm *world, void *argument) {
    return run_trial(world, argument, make_model(NULL, 32, CLASSES),
                     ls_callback_new(&(ls_callback_hooks){.on_backward = average_gradients}, NULL), 0);
}

/* Built-in callbacks have allocated their state before the third epoch. */
static ls_status train_with_ready_callbacks(ls_comm *world, void *argument) {
    ls_callback *const list[] = {
        ls_early_stopping(&(ls_early_stopping_options){.monitor = "loss", .patience = 9, .restore_best = true}),
        ls_terminate_on_nan(&(ls_terminate_on_nan_options){.by_layer = true}),
        ls_gradient_norm_clipping(1),
        ls_weight_decay(1e-4, 2),
        ls_mixup(&(ls_mixup_options){.classes = CLASSES}),
        ls_label_smoothing(0.1, 0),
        ls_weight_averaging(&(ls_weight_averaging_options){.decay = 0.9}),
        ls_csv_log("/dev/null", &(ls_csv_log_options){.per_batch = true}),
        ls_timer(&(ls_timer_options){.waiting = true, .no_table = true})};
    ls_callback *all = ls_callbacks_of(list, sizeof list / sizeof *list);
    return run_trial(world, argument, make_model(world, 32, CLASSES), all, 0);
}

static ls_status step_by_hand(ls_module *model, ls_optimizer *optimizer, ls_loader *loader) {
    ls_batch batch;
    bool more = false;
    LS_TRY(ls_loader_next(loader, &batch, &more));
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = ls_mse_loss(ls_forward(model, batch.input), batch.target, LS_LOSS_MEAN);
    ls_optimizer_zero_grad(optimizer);
    ls_status status = ls_backward(loss);
    if (status == LS_OK) {
        status = ls_optimizer_step(optimizer);
    }
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/*
 * The loop of the perceptron example, with one sample at a time. The tensor records of its first batches are not reused
 * immediately.
 */
static ls_status train_by_hand(ls_comm *world, void *argument) {
    test_allocator *allocator = argument;
    ls_module *model = make_model(world, 16, 1);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 1e-6, .momentum = 0.9});
    ls_loader *loader = ls_loader_new(make_samples(1000, false), &(ls_loader_options){.comm = world});
    ls_status status = loader != NULL && optimizer != NULL ? LS_OK : ls_error_status();
    const ls_trial_state here = {.comm = world};
    long before = 0;
    for (int i = 0; status == LS_OK && i < 300; i++) {
        status = step_by_hand(model, optimizer, loader);
        if (status == LS_OK && i == 199) {
            LS_TRY(all_here(&here));
            before = atomic_load(&allocator->calls);
        }
    }
    if (status == LS_OK) {
        status = all_here(&here);
    }
    const long calls = atomic_load(&allocator->calls) - before;
    if (status == LS_OK) {
        status = all_here(&here);
    }
    ls_loader_free(loader);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return status == LS_OK && calls != 0 ? ls_fail(LS_ERR_INTERNAL, "%ld calls in 100 steps", calls) : status;
}

static void check_steady(ls_rank_function train, int ranks) {
    test_allocator allocator;
    test_allocator_start(&allocator);
    const ls_status status = ranks == 0 ? train(NULL, &allocator) : ls_run_threads(ranks, train, &allocator);
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", ls_error_message());
    const long calls = atomic_load(&allocator.calls);
    const long left = test_allocator_stop(&allocator);
    if (status != LS_OK) {
        fail_msg("%d ranks: %s", ranks, message);
    }
    assert_true(calls > 0);
    assert_int_equal(left, 0);
}

TEST(test_steady_training_allocates_nothing) {
#ifdef LS_SANITIZED
    skip(); /* under a sanitizer nothing is cached */
#endif
    for (int ranks = 0; ranks <= 2; ranks++) {
        check_steady(train_by_trial, ranks);
        check_steady(train_with_threads, ranks);
        check_steady(train_by_callbacks, ranks);
        check_steady(train_with_ready_callbacks, ranks);
        check_steady(train_by_hand, ranks);
    }
}

/* ---- when memory runs out ---------------------------------------------------------------------------------------- */

enum { FILE_SAMPLES = 6, PATH_ROOM = 320 };

static char images[PATH_ROOM];
static char labels[PATH_ROOM];
static char weights[PATH_ROOM];

static int write_files(void **state) {
    (void)state;
    unsigned char pictures[16 + FILE_SAMPLES * SIDE * SIDE] = {0, 0, 8, 3,    0, 0, 0, FILE_SAMPLES,
                                                               0, 0, 0, SIDE, 0, 0, 0, SIDE};
    unsigned char classes[8 + FILE_SAMPLES] = {0, 0, 8, 1, 0, 0, 0, FILE_SAMPLES};
    for (size_t i = 16; i < sizeof pictures; i++) {
        pictures[i] = (unsigned char)(i * 37);
    }
    for (size_t i = 8; i < sizeof classes; i++) {
        classes[i] = (unsigned char)(i % CLASSES);
    }
    snprintf(images, sizeof images, "%s", test_file("images", pictures, sizeof pictures));
    snprintf(labels, sizeof labels, "%s", test_file("labels", classes, sizeof classes));
    snprintf(weights, sizeof weights, "%s", test_path("weights"));
    return 0;
}

static ls_loader *open_files(ls_comm *world) {
    static const double fractions[] = {0.5, 0.5};
    static const int64_t chosen[] = {2, 0, 1, 3};
    static const double shares[] = {1, 0.5, 2, 1};
    ls_dataset *parts[2];
    ls_dataset *set = ls_dataset_subset(ls_idx_dataset(images, labels), 1, FILE_SAMPLES - 2);
    if (ls_dataset_split(ls_dataset_normalize(set, 0.3, 0.4), fractions, 2, 3, parts) != LS_OK) {
        return NULL;
    }
    set = ls_dataset_concat(ls_dataset_flatten(parts[0]), ls_dataset_flatten(parts[1]));
    set = ls_dataset_preload(ls_dataset_select(set, chosen, 4));
    return ls_loader_new(
        set,
        &(ls_loader_options){
            .global_batch_size = 2, .comm = world, .seed = 3, .weights = shares, .weight_count = FILE_SAMPLES - 2});
}

static ls_status train_and_save(ls_comm *world, ls_module *model, ls_optimizer *optimizer, ls_loader *loader) {
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_cross_entropy,
                                                       .train = loader,
                                                       .validate = loader,
                                                       .metrics = LS_METRICS("loss", "acc"),
                                                       .max_steps = 1,
                                                       .quiet = true});
    ls_status status = trial != NULL ? ls_trial_run(trial, 1) : ls_error_status();
    if (status == LS_OK && (world == NULL || ls_comm_rank(world) == 0)) {
        status = ls_module_save(model, weights, (const char *const[]){"made by", "a test", NULL});
    }
    ls_trial_free(trial);
    return status;
}

/* Makes a model with a layer that is used twice. */
static ls_module *make_classifier(void) {
    ls_module *shared = ls_nn_linear(5, 5);
    return ls_sequential(ls_nn_linear((int64_t)SIDE * SIDE, 5), ls_nn_relu(), shared, ls_nn_dropout(0.2), shared,
                         ls_nn_linear(5, CLASSES));
}

/*
 * Does everything that the example does, on a small scale. With several ranks, a final barrier reports ranks that left
 * early.
 */
static ls_status whole_program(ls_comm *world) {
    ls_loader *loader = open_files(world);
    ls_module *model = loader == NULL ? NULL : make_classifier();
    if (model != NULL && world != NULL) {
        model = ls_data_parallel(model, world, NULL);
    }
    ls_optimizer *optimizer = model != NULL ? ls_adam(model, NULL) : NULL;
    ls_status status = optimizer != NULL ? train_and_save(world, model, optimizer, loader) : ls_error_status();
    if (status == LS_OK && world != NULL) {
        status = ls_comm_barrier(world, NULL);
    }
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    return status;
}

enum { RANKS = 2, NOT_RUN = -1 };

/* The result of each rank. */
typedef struct outcome {
    int status[RANKS];
    char message[RANKS][LS_ERROR_CAPACITY];
} outcome;

static ls_status run_rank(ls_comm *world, void *argument) {
    outcome *ended = argument;
    const int rank = ls_comm_rank(world);
    const ls_status status = whole_program(world);
    ended->status[rank] = (int)status;
    snprintf(ended->message[rank], sizeof ended->message[rank], "%s", ls_error_message());
    return status;
}

/* Checks the status with which a rank ended: successfully, out of memory, or because of another rank. */
static void check_end(long n, const char *who, int status, const char *message) {
    const bool known = status == LS_OK || status == LS_ERR_MEMORY || status == LS_ERR_PEER;
    if (!known || (status != LS_OK && *message == '\0')) {
        fail_msg("allocation %ld fails: %s: %s, %s", n, who, ls_status_name((ls_status)status), message);
    }
}

/*
 * Runs the program once, with allocator call `n` failing, alone or together with all later calls. Returns whether this
 * call took place.
 */
static bool run_once(int ranks, long n, bool once) {
    outcome ended = {.status = {NOT_RUN, NOT_RUN}};
    (void)ls_error_set(LS_OK, "%s", "");
    test_allocator allocator;
    test_allocator_start(&allocator);
    atomic_store(once ? &allocator.fail_once : &allocator.fail_from, n);
    const ls_status status = ranks == 0 ? whole_program(NULL) : ls_run_threads(ranks, run_rank, &ended);
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", ls_error_message());
    const long calls = atomic_load(&allocator.calls);
    const long left = test_allocator_stop(&allocator);
    if (left != 0) {
        fail_msg("allocation %ld fails: %ld blocks are left (%s)", n, left, message);
    }
    check_end(n, "the program", (int)status, message);
    for (int rank = 0; rank < ranks; rank++) {
        if (ended.status[rank] != NOT_RUN) {
            check_end(n, rank == 0 ? "rank 0" : "rank 1", ended.status[rank], ended.message[rank]);
            assert_true((ended.status[rank] == LS_OK) == (status == LS_OK)); /* all or none */
        }
    }
    assert_true(remove(weights) == 0 || status != LS_OK);
    assert_int_equal(test_files_count(), 2); /* no partial files are left */
    if (calls > n && status == LS_OK && !once) {
        fail_msg("allocation %ld and all after it fail, and nobody noticed", n);
    }
    if (calls <= n && status != LS_OK) {
        fail_msg("with memory enough: %s", message);
    }
    return calls > n;
}

static void check_every_allocation(int ranks, bool once) {
    long n = 0;
    while (run_once(ranks, n, once)) {
        n++;
    }
    assert_true(n > 100);
}

TEST(test_memory_runs_out_alone) {
    check_every_allocation(0, false);
    check_every_allocation(0, true);
}

TEST(test_memory_runs_out_on_two_ranks) {
    check_every_allocation(RANKS, false);
    check_every_allocation(RANKS, true);
}

static ls_status read_two_epochs(void) {
    ls_dataset *set =
        ls_tensor_dataset(ls_zeros(LS_SHAPE(FILE_SAMPLES, 4, 3), LS_U8), ls_zeros(LS_SHAPE(FILE_SAMPLES), LS_U8));
    set = ls_dataset_normalize(ls_dataset_random_flip(set, 0.5, 0.5), 0, 1);
    ls_loader *loader =
        ls_loader_new(ls_dataset_select(set, (const int64_t[]){3, 2, 1, 4, 0}, 5),
                      &(ls_loader_options){.batch_size = 2, .threads = 2, .prefetch = 1, .device = "cpu"});
    ls_status status = loader != NULL ? LS_OK : ls_error_status();
    for (int64_t epoch = 0; status == LS_OK && epoch < 2;) {
        ls_batch batch;
        bool more;
        status = ls_loader_next(loader, &batch, &more);
        ls_loader_position(loader, &epoch, NULL);
    }
    ls_loader_free(loader);
    return status;
}

/* Wherever memory runs out, the error is reported and everything is freed. */
TEST(test_memory_runs_out_on_threads_of_a_loader) {
    bool enough = false;
    for (long n = 0; !enough; n++) {
        test_allocator allocator;
        test_allocator_start(&allocator);
        atomic_store(&allocator.fail_from, n);
        const ls_status status = read_two_epochs();
        char message[LS_ERROR_CAPACITY];
        snprintf(message, sizeof message, "%s", ls_error_message());
        enough = atomic_load(&allocator.calls) <= n;
        assert_int_equal(test_allocator_stop(&allocator), 0);
        if ((status != LS_OK && status != LS_ERR_MEMORY) || (enough && status != LS_OK)) {
            fail_msg("allocation %ld: %s: %s", n, ls_status_name(status), message);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steady_training_allocates_nothing),
        cmocka_unit_test(test_memory_runs_out_alone),
        cmocka_unit_test(test_memory_runs_out_on_two_ranks),
        cmocka_unit_test(test_memory_runs_out_on_threads_of_a_loader),
    };
    return cmocka_run_group_tests(tests, write_files, test_files_teardown);
}
