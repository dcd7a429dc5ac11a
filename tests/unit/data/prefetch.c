/*
 * Loaders whose threads make batches in advance: the same batches, in the same order, with errors at the right batch,
 * for any order of the threads. A data set with a gate controls the order: each fetch waits until the test permits it.
 *
 * devices: cpu
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "base/status.h"

enum { N = 23, BATCH = 2, BATCHES = (N + BATCH - 1) / BATCH, MOST_CALLS = 512 };

/* ---- a data set with a gate -------------------------------------------------------------------------------------- */

typedef struct gate gate;
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool (*may_go)(const gate *g, int64_t batch); /* called under the lock; NULL lets every fetch proceed */
    int64_t inside, most_inside;
    int64_t entered[BATCHES], left[BATCHES]; /* counts by batch */
    int64_t calls[MOST_CALLS], call_count;   /* batches, in the order of the calls of fetch */
    int64_t goal;                            /* used by the test's may_go */
    const int *order;                        /* used by the test's may_go */
    int yields;                              /* while it is inside */
    int64_t spoilt;                          /* this batch fails; -1 means none */
    bool silent;                             /* without a message */
};

static gate the_gate;

static void gate_reset(void) {
    the_gate = (gate){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .spoilt = -1};
}

/* Waits for at most a minute. Requires the lock. */
static void gate_wait(gate *g) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    if (pthread_cond_timedwait(&g->changed, &g->lock, &until) != 0) {
        fprintf(stderr, "the gate did not open in a minute\n");
        abort();
    }
}

static void enter(gate *g, int64_t batch) {
    pthread_mutex_lock(&g->lock);
    g->entered[batch]++;
    g->calls[g->call_count++ % MOST_CALLS] = batch;
    g->inside++;
    g->most_inside = g->inside > g->most_inside ? g->inside : g->most_inside;
    pthread_cond_broadcast(&g->changed);
    while (g->may_go != NULL && !g->may_go(g, batch)) {
        gate_wait(g);
    }
    pthread_mutex_unlock(&g->lock);
}

static int64_t count_of(gate *g, const int64_t *count) {
    pthread_mutex_lock(&g->lock);
    const int64_t now = *count;
    pthread_mutex_unlock(&g->lock);
    return now;
}

/* Waits until a count is not 0. */
static void wait_for(gate *g, const int64_t *count) {
    pthread_mutex_lock(&g->lock);
    while (*count == 0) {
        gate_wait(g);
    }
    pthread_mutex_unlock(&g->lock);
}

/* Leaves the gate. Returns whether the fetch succeeds. */
static bool leave(gate *g, int64_t batch) {
    pthread_mutex_lock(&g->lock);
    const bool spoilt = batch == g->spoilt;
    g->left[batch]++;
    g->inside--;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    return !spoilt;
}

/* Sample i is the number i, with target 10 i. The fetch creates temporary tensors, too. */
static ls_status gated_fetch(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    gate *g = *(gate **)ls_dataset_state(self);
    const bool real = samples->count > 1 || samples->indices[0] == N - 1;
    const int64_t batch = samples->places[0] / BATCH;
    if (real) {
        enter(g, batch);
    }
    for (int i = 0; real && i < g->yields; i++) {
        sched_yield();
    }
    ls_tensor *ten = ls_full(LS_SHAPE(1), LS_F64, 10);
    for (int64_t i = 0; i < samples->count; i++) {
        ((double *)ls_data(input))[i] = (double)samples->indices[i];
        ((double *)ls_data(target))[i] = (double)samples->indices[i] * *(const double *)elements(ten);
    }
    if (real && !leave(g, batch)) {
        return g->silent ? LS_ERR_IO : ls_error_set(LS_ERR_FORMAT, "gated: batch %d is spoilt", (int)batch);
    }
    return LS_OK;
}

static ls_dataset *gated(bool concurrent) {
    static const ls_dataset_type type = {.name = "gated", .state_size = sizeof(gate *), .fetch = gated_fetch};
    const ls_sample_layout layout = {.input_dtype = LS_F64, .target_dtype = LS_F64};
    ls_dataset *dataset = ls_dataset_new(&type, N, &layout);
    assert_non_null(dataset);
    *(gate **)ls_dataset_state(dataset) = &the_gate;
    return concurrent ? ls_dataset_concurrent(dataset) : dataset;
}

static ls_loader *in_order(ls_dataset *dataset, int threads, int64_t prefetch) {
    ls_loader *loader = ls_loader_new(
        dataset,
        &(ls_loader_options){
            .batch_size = BATCH, .no_shuffle = true, .threads = threads, .prefetch = prefetch, .device = "cpu"});
    assert_non_null(loader);
    return loader;
}

/* Checks that the next batch of a loader without shuffling is number `number`. */
static void next_is(ls_loader *loader, int64_t number) {
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_true(more);
    assert_int_equal(batch.number, number);
    for (int64_t i = 0; i < batch.count; i++) {
        assert_true(((const double *)ls_data_const(batch.input))[i] == (double)(number * BATCH + i));
        assert_true(((const double *)ls_data_const(batch.target))[i] == 10 * (double)(number * BATCH + i));
    }
}

/* Returns the number of threads of this process. A joined thread may still be listed briefly. */
static int count_threads(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

static void threads_are(int wanted) {
    const uint64_t until = ls_clock_ns() + UINT64_C(60000000000);
    while (count_threads() != wanted && ls_clock_ns() < until) {
        sched_yield();
    }
    assert_int_equal(count_threads(), wanted);
}

/* ---- the same batches -------------------------------------------------------------------------------------------- */

static ls_tensor *add_noise(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples, (void)user;
    return ls_add(batch, ls_rand(ls_shape_of(batch), LS_F32));
}

/* Pictures that are cropped, flipped and covered with noise. The noise is from an operation with its own random
 * numbers. */
static ls_dataset *pictures(void) {
    ls_tensor *input = ls_empty(LS_SHAPE(N, 4, 3), LS_U8);
    for (int64_t i = 0; i < ls_numel(input); i++) {
        ((uint8_t *)elements(input))[i] = (uint8_t)(i % 251);
    }
    ls_dataset *set = ls_tensor_dataset(input, ls_arange(LS_SHAPE(N), LS_I64));
    set = ls_dataset_random_crop(ls_dataset_random_flip(set, 0.5, 0.5), &(ls_random_crop_options){.padding = 1});
    return ls_dataset_concurrent(ls_dataset_transform_input(ls_dataset_normalize(set, 0, 1), add_noise, NULL));
}

static void same_batch(ls_loader *a, ls_loader *b) {
    ls_batch one, other;
    bool more_of_one, more_of_other;
    int64_t places[4];
    assert_int_equal(ls_loader_next(a, &one, &more_of_one), LS_OK);
    assert_int_equal(ls_loader_next(b, &other, &more_of_other), LS_OK);
    assert_int_equal(more_of_one, more_of_other);
    ls_loader_position(a, &places[0], &places[1]);
    ls_loader_position(b, &places[2], &places[3]);
    assert_memory_equal(places, places + 2, 2 * sizeof *places);
    assert_true(one.count == other.count && one.global_count == other.global_count && one.number == other.number);
    if (more_of_one) {
        assert_memory_equal(elements(one.input), elements(other.input), (size_t)ls_numel(one.input) * sizeof(float));
        assert_memory_equal(elements(one.target), elements(other.target),
                            (size_t)ls_numel(one.target) * sizeof(int64_t));
    }
}

/* Runs a sequence of steps and jumps, determined by its seed. */
static void walk(uint64_t seed, int threads) {
    const int64_t size = 1 + (int64_t)(ls_random_u32(seed, 0, 0) % 6), batches = (N + size - 1) / size;
    ls_loader_options options = {.batch_size = size, .seed = seed, .no_shuffle = seed % 3 == 0};
    ls_loader *alone = ls_loader_new(pictures(), &options);
    options.threads = threads;
    options.prefetch = ls_random_u32(seed, 0, 1) % 6; /* 0: the default */
    ls_loader *ahead = ls_loader_new(pictures(), &options);
    assert_non_null(ahead);
    for (uint64_t step = 0; step < 60; step++) {
        const uint32_t draw = ls_random_u32(seed, 1, step);
        if (draw % 11 == 0) {
            const int64_t epoch = draw / 11 % 3, batch = (int64_t)(draw / 64) % (batches + 1);
            assert_int_equal(ls_loader_seek(alone, epoch, batch), LS_OK);
            assert_int_equal(ls_loader_seek(ahead, epoch, batch), LS_OK);
        }
        same_batch(alone, ahead);
    }
    ls_loader_free(alone);
    ls_loader_free(ahead);
}

TEST(test_the_same_batches) {
    const int before = count_threads();
    ls_seed(77);
    const ls_random_state numbers = ls_random_get_state();
    for (uint64_t seed = 0; seed < 24; seed++) {
        walk(seed, 1 + (int)(seed % 4));
    }
    const ls_random_state after = ls_random_get_state(); /* the loader drew no random numbers of this thread */
    assert_true(numbers.seed == after.seed && numbers.stream == after.stream);
    threads_are(before);
}

/* ---- any order of threads ---------------------------------------------------------------------------------------- */

enum { AT_ONCE = 4, ORDERS = 24 };

/* The first batches finish in order. */
static bool in_turn(const gate *g, int64_t batch) {
    for (int i = 0; i < AT_ONCE && batch < AT_ONCE; i++) {
        if (g->order[i] == batch) {
            return i == 0 || g->left[g->order[i - 1]] > 0;
        }
    }
    return true;
}

static void nth_order(int n, int order[AT_ONCE]) {
    int left[AT_ONCE] = {0, 1, 2, 3};
    for (int i = 0; i < AT_ONCE; i++) {
        const int choice = n % (AT_ONCE - i);
        n /= AT_ONCE - i;
        order[i] = left[choice];
        memmove(left + choice, left + choice + 1, (size_t)(AT_ONCE - 1 - choice) * sizeof *left);
    }
}

TEST(test_any_thread_may_be_first) {
    for (int n = 0; n < ORDERS; n++) {
        int order[AT_ONCE];
        nth_order(n, order);
        gate_reset();
        the_gate.order = order;
        the_gate.may_go = in_turn;
        ls_loader *loader = in_order(gated(true), AT_ONCE, AT_ONCE - 1);
        for (int64_t number = 0; number < BATCHES; number++) {
            next_is(loader, number);
        }
        ls_loader_free(loader);
        for (int64_t number = 0; number < BATCHES; number++) {
            assert_int_equal(the_gate.left[number], 1);
        }
    }
}

/* ---- how far ahead ----------------------------------------------------------------------------------------------- */

/*
 * While a batch is in use, exactly this number of batches is made in advance. These batches still exist when the loader
 * is freed.
 */
TEST(test_how_far_ahead) {
    for (int threads = 1; threads <= 3; threads++) {
        for (int64_t prefetch = 0; prefetch <= 5; prefetch++) {
            const int64_t ahead = prefetch > 0 ? prefetch : 2 * threads;
            gate_reset();
            ls_loader *loader = in_order(gated(true), threads, prefetch);
            next_is(loader, 0);
            next_is(loader, 1);
            for (int64_t number = 0; number <= 1 + ahead; number++) {
                wait_for(&the_gate, &the_gate.left[number]);
            }
            int64_t batch;
            ls_loader_position(loader, NULL, &batch);
            assert_int_equal(batch, 2); /* the taken batch counts */
            ls_loader_free(loader);
            for (int64_t number = 0; number < BATCHES; number++) {
                assert_int_equal(the_gate.left[number], number <= 1 + ahead);
            }
        }
    }
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* First without threads, then with threads: the error recurs until its cause is corrected. */
TEST(test_errors_come_with_their_batch) {
    char said[2][LS_ERROR_CAPACITY];
    for (int silent = 0; silent < 2; silent++) {
        for (int threads = 0; threads <= 3; threads++) {
            gate_reset();
            the_gate.spoilt = 3;
            the_gate.silent = silent == 1;
            ls_loader *loader = in_order(gated(true), threads, 0);
            for (int64_t number = 0; number < 3; number++) {
                next_is(loader, number);
            }
            for (int again = 0; again < 2; again++) {
                ls_batch batch;
                bool more = true;
                int64_t stands;
                (void)ls_error_set(LS_ERR_PEER, "an older error");
                assert_int_equal(ls_loader_next(loader, &batch, &more), silent ? LS_ERR_IO : LS_ERR_FORMAT);
                assert_true(!more && batch.input == NULL);
                snprintf(said[threads > 0], LS_ERROR_CAPACITY, "%s", ls_error_message());
                assert_string_equal(said[threads > 0], said[0]);
                ls_loader_position(loader, NULL, &stands);
                assert_int_equal(stands, 3);
            }
            assert_non_null(strstr(said[0], silent ? "failed with LS_ERR_IO" : "gated: batch 3 is spoilt"));
            pthread_mutex_lock(&the_gate.lock);
            the_gate.spoilt = -1;
            pthread_mutex_unlock(&the_gate.lock);
            next_is(loader, 3);
            next_is(loader, 4);
            ls_loader_free(loader);
        }
    }
}

/* ---- custom functions -------------------------------------------------------------------------------------------- */

static bool two_are_inside(const gate *g, int64_t batch) {
    return batch > 1 || g->entered[0] + g->entered[1] == 2;
}

TEST(test_several_threads_where_that_is_said) {
    gate_reset();
    the_gate.may_go = two_are_inside;
    ls_loader *loader = in_order(gated(true), 2, 0);
    next_is(loader, 0);
    ls_loader_free(loader);
    assert_true(the_gate.most_inside >= 2);
}

static ls_tensor *same(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples, (void)user;
    return batch;
}

TEST(test_one_at_a_time_else) {
    for (int kind = 0; kind < 3; kind++) {
        gate_reset();
        ls_dataset *dataset = gated(kind > 0);
        if (kind > 0) { /* by default, custom transforms are not thread-safe, nor are data sets that use them */
            dataset = ls_dataset_transform_input(dataset, same, NULL);
        }
        if (kind > 1) {
            dataset = ls_dataset_concat(dataset);
        }
        ls_loader *loader = in_order(dataset, 4, 3);
        for (int64_t number = 0; number < BATCHES; number++) {
            next_is(loader, number);
        }
        ls_loader_free(loader);
        assert_int_equal(the_gate.most_inside, 1);
        for (int64_t number = 0; number < BATCHES; number++) {
            assert_int_equal(the_gate.calls[number], number);
        }
    }
}

/* Nor do the threads of two loaders call it at the same time for parts of the same data set. */
TEST(test_one_at_a_time_of_parts) {
    gate_reset();
    the_gate.yields = 200;
    ls_dataset *whole = ls_dataset_retain(gated(false));
    ls_loader *one = in_order(ls_dataset_subset(whole, 0, N - 3), 2, 2);
    ls_loader *other = in_order(ls_dataset_transform_input(whole, same, NULL), 1, 2);
    for (int64_t number = 0; number < (N - 3) / BATCH; number++) {
        next_is(one, number);
        next_is(other, number);
    }
    ls_loader_free(one);
    ls_loader_free(other);
    ls_dataset_free(whole);
    assert_int_equal(the_gate.most_inside, 1);
}

/* ---- ending ------------------------------------------------------------------------------------------------------ */

static bool goal_is_reached(const gate *g, int64_t batch) {
    return batch != 2 || g->goal > 0 || g->left[2] > 0;
}

static void *open_gate(void *argument) {
    gate *g = argument;
    for (int i = 0; i < 1000; i++) { /* so that the loader really waits */
        sched_yield();
    }
    pthread_mutex_lock(&g->lock);
    g->goal = 1;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* While a batch is being made, the loader is freed or moved to a different position or epoch. No thread remains. */
TEST(test_ends_in_the_midst) {
    const int before = count_threads();
    for (int way = 0; way < 3; way++) {
        pthread_t opener;
        gate_reset();
        the_gate.may_go = goal_is_reached;
        ls_loader *loader = in_order(gated(true), 2, 4);
        next_is(loader, 0);
        wait_for(&the_gate, &the_gate.entered[2]);
        assert_int_equal(pthread_create(&opener, NULL, open_gate, &the_gate), 0);
        if (way == 1) {
            assert_int_equal(ls_loader_seek(loader, 0, 7), LS_OK);
            next_is(loader, 7);
            assert_int_equal(count_of(&the_gate, &the_gate.left[2]), 1); /* the loader waited for it */
            next_is(loader, 8);
        } else if (way == 2) {
            assert_int_equal(ls_loader_seek(loader, 1, 1), LS_OK);
            next_is(loader, 1);
            assert_true(count_of(&the_gate, &the_gate.left[2]) > 0);
            next_is(loader, 2);
        }
        ls_loader_free(loader);
        assert_int_equal(pthread_join(opener, NULL), 0);
        for (int64_t number = 0; number < BATCHES; number++) {
            assert_int_equal(the_gate.left[number], the_gate.entered[number]);
        }
    }
    threads_are(before);
}

/* Batches that the program keeps stay unchanged, and only its thread accesses them. */
TEST(test_batches_that_are_kept) {
    gate_reset();
    ls_loader *loader = in_order(gated(true), 3, 2);
    ls_dataset *kept[BATCHES], *for_a_while = NULL;
    for (int64_t number = 0; number < BATCHES; number++) {
        ls_batch batch;
        bool more;
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        kept[number] = ls_tensor_dataset(batch.input, batch.target);
        assert_non_null(kept[number]);
        ls_dataset_free(for_a_while); /* belongs to the previous batch, whose slot is reused */
        for_a_while = ls_tensor_dataset(batch.input, batch.target);
    }
    ls_loader_free(loader);
    ls_dataset_free(for_a_while);
    for (int64_t number = 0; number < BATCHES; number++) {
        ls_batch batch;
        bool more;
        loader = in_order(kept[number], 0, 0);
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        assert_true(((const double *)ls_data_const(batch.input))[0] == (double)(number * BATCH));
        ls_loader_free(loader);
    }
}

/* ---- forks ------------------------------------------------------------------------------------------------------- */

/* Returns 0 if the loader reports the fork, or makes its batches by itself. */
static int in_fork(ls_loader *loader, bool used) {
    ls_batch batch;
    bool more;
    const ls_status status = ls_loader_next(loader, &batch, &more);
    const bool good = used ? status == LS_ERR_STATE && strstr(ls_error_message(), "the parent of this process") != NULL
                           : status == LS_OK && ((const double *)ls_data_const(batch.input))[0] == 0;
    ls_loader_free(loader);
    return good ? 0 : 1;
}

TEST(test_forks) {
    for (int used = 0; used < 2; used++) {
        gate_reset();
        ls_loader *loader = in_order(gated(true), 2, 2);
        if (used) {
            next_is(loader, 0);
        }
        const pid_t child = fork();
        if (child == 0) {
            alarm(60);
            _exit(in_fork(loader, used == 1));
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        next_is(loader, used);
        ls_loader_free(loader);
    }
}

/* ---- options, and waiting for data ------------------------------------------------------------------------------- */

TEST(test_options) {
    gate_reset();
    assert_null(ls_loader_new(gated(true), &(ls_loader_options){.threads = -1}));
    expect_message("threads is -1, but must be between 0 and 1024");
    assert_null(ls_loader_new(gated(true), &(ls_loader_options){.prefetch = 3}));
    expect_message("prefetching needs threads");
    assert_null(ls_loader_new(gated(true), &(ls_loader_options){.threads = 1, .prefetch = -1}));
    expect_message("prefetch is -1, but must be between 0 and");
    assert_null(ls_dataset_concurrent(NULL));
}

enum { LONG_NS = 3000000 };

static ls_tensor *take_long(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples, (void)user;
    const uint64_t began = ls_clock_ns();
    while (ls_clock_ns() - began < LONG_NS) {
    }
    return ls_reshape(batch, LS_SHAPE(ls_size(batch, 0), 1));
}

/* Loading of an epoch's first batch starts only when it is requested, so a trial waits at least as long as the batch
 * takes. */
TEST(test_waiting_for_data_is_told) {
    enum { EPOCHS = 3 };
    gate_reset();
    ls_callback *timer = ls_timer(&(ls_timer_options){.no_table = true});
    ls_dataset *set = ls_dataset_transform_target(gated(true), take_long, NULL);
    ls_loader *loader = ls_loader_new(ls_dataset_transform_input(set, take_long, NULL),
                                      &(ls_loader_options){.batch_size = N, .threads = 2});
    ls_module *model = ls_nn_linear_with(1, 1, &(ls_linear_options){.dtype = LS_F64});
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 1e-6});
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_mse,
                                                       .train = loader,
                                                       .metrics = LS_METRICS("loss", "data_wait"),
                                                       LS_CALLBACKS(timer),
                                                       .quiet = true});
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, EPOCHS), LS_OK);
    assert_true(ls_timer_seconds(timer, LS_TIME_DATA) >= EPOCHS * 2 * LONG_NS * 1e-9);
    assert_true(ls_trial_metric(trial, "data_wait") >= 2 * LONG_NS * 1e-9);
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forks), /* before any threads exist */
        cmocka_unit_test(test_the_same_batches),
        cmocka_unit_test(test_any_thread_may_be_first),
        cmocka_unit_test(test_how_far_ahead),
        cmocka_unit_test(test_errors_come_with_their_batch),
        cmocka_unit_test(test_several_threads_where_that_is_said),
        cmocka_unit_test(test_one_at_a_time_else),
        cmocka_unit_test(test_one_at_a_time_of_parts),
        cmocka_unit_test(test_ends_in_the_midst),
        cmocka_unit_test(test_batches_that_are_kept),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_waiting_for_data_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
