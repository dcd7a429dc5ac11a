/*
 * A rank of a data-parallel module is killed during a backward pass, while buckets of gradients are in flight. The
 * other ranks get an error that names the killed rank, and can free the module. With `.shards`, the rank is killed in
 * its last slice.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <signal.h>

#include <lockstep/parallel.h>

#include "tests/support/forks.h"

enum { RANKS = 3, KILLED = 1, STEPS = 4 };

typedef struct fault {
    int parameter; /* the rank dies when the gradient of this parameter is complete */
    int slices;    /* of each rank; 1: no `.shards` */
} fault;

static ls_status kill_self(ls_tensor *tensor, void *user) {
    int *passes = user; /* remaining backward passes of this rank */
    (void)tensor;
    if (--*passes == 0) {
        raise(SIGKILL);
    }
    return LS_OK;
}

static ls_tensor *loss_of(const ls_batch *batch, void *user) {
    return ls_mean(ls_square(ls_forward(user, batch->input)));
}

static ls_status run_step(ls_module *model, int rank) {
    const ls_batch batch = {
        .input = ls_ones(LS_SHAPE(8, 16), LS_F32), .first = 8 * rank, .count = 8, .global_count = 8 * RANKS};
    return ls_data_parallel_step(model, &batch, loss_of, model);
}

/* The killed rank dies in its last backward pass. */
static const char *train(ls_comm *world, int rank, const void *argument) {
    LS_MUST(world != NULL);
    const fault *f = argument;
    int passes = f->slices;
    ls_scope *scope = ls_scope_begin();
    ls_module *model = ls_data_parallel(
        ls_sequential(ls_nn_linear(16, 300), ls_nn_tanh(), ls_nn_linear(300, 300), ls_nn_tanh(), ls_nn_linear(300, 1)),
        world,
        &(ls_data_parallel_options){
            .overlap = LS_OVERLAP_ON, .bucket_bytes = 1, .shards = f->slices > 1 ? f->slices * RANKS : 0});
    LS_MUST(model != NULL);
    for (int step = 1; step < STEPS; step++) {
        LS_MUST(run_step(model, rank) == LS_OK);
    }
    if (rank == KILLED) {
        LS_MUST(ls_add_grad_hook(ls_module_parameter(model, f->parameter), kill_self, &passes) == LS_OK);
    }
    LS_MUST(run_step(model, rank) != LS_OK);
    LS_MUST(failed_with(LS_ERR_PEER, "rank 1"));
    LS_MUST(run_step(model, rank) != LS_OK); /* at once */
    ls_module_free(model);
    (void)ls_scope_end(scope);
    return NULL;
}

static void kill_in(int parameter, int slices) {
    ls_forks forks;
    ls_forks_start(&forks, RANKS, 0, 60, train, &(fault){parameter, slices});
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(ls_forks_wait(&forks, rank), rank == KILLED ? -SIGKILL : 0);
    }
    ls_forks_end(&forks);
}

/* Kills a rank in the first bucket that is launched, in one in the middle, and in the last. */
static void kill_in_buckets(void) {
    for (int slices = 1; slices <= 2; slices++) {
        kill_in(5, slices);
        kill_in(2, slices);
        kill_in(0, slices);
    }
}

TEST(test_killed_in_a_bucket_on_shm) {
    assert_int_equal(setenv("LOCKSTEP_TEST_BACKEND", "shm", 1), 0);
    kill_in_buckets();
}

TEST(test_killed_in_a_bucket_on_tcp) {
    assert_int_equal(setenv("LOCKSTEP_TEST_BACKEND", "tcp", 1), 0);
    kill_in_buckets();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_in_a_bucket_on_shm),
        cmocka_unit_test(test_killed_in_a_bucket_on_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
