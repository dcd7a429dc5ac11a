/*
 * A rank of a data-parallel module is killed during a backward pass, while buckets of gradients are in flight. The
 * other ranks get an error that names the killed rank, and can free the module.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <signal.h>

#include <lockstep/parallel.h>

#include "tests/support/forks.h"

enum { RANKS = 3, KILLED = 1, STEPS = 4 };

static ls_status kill_self(ls_tensor *tensor, void *user) {
    (void)tensor;
    (void)user;
    raise(SIGKILL);
    return LS_OK;
}

static ls_status run_pass(ls_module *model) {
    ls_scope *scope = ls_scope_begin();
    const ls_status status = ls_backward(ls_mean(ls_square(ls_forward(model, ls_ones(LS_SHAPE(8, 16), LS_F32)))));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* The killed rank dies in the last step, when the gradient of parameter *argument is complete. */
static const char *train(ls_comm *world, int rank, const void *argument) {
    LS_MUST(world != NULL);
    ls_module *model = ls_data_parallel(
        ls_sequential(ls_nn_linear(16, 300), ls_nn_tanh(), ls_nn_linear(300, 300), ls_nn_tanh(), ls_nn_linear(300, 1)),
        world, &(ls_data_parallel_options){.overlap = LS_OVERLAP_ON, .bucket_bytes = 1});
    LS_MUST(model != NULL);
    for (int step = 1; step < STEPS; step++) {
        LS_MUST(run_pass(model) == LS_OK);
    }
    if (rank == KILLED) {
        LS_MUST(ls_add_grad_hook(ls_module_parameter(model, *(const int *)argument), kill_self, NULL) == LS_OK);
    }
    LS_MUST(run_pass(model) != LS_OK);
    LS_MUST(failed_with(LS_ERR_PEER, "rank 1"));
    LS_MUST(run_pass(model) != LS_OK); /* at once */
    ls_module_free(model);
    return NULL;
}

static void kill_in(int parameter) {
    ls_forks forks;
    ls_forks_start(&forks, RANKS, 0, 60, train, &parameter);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(ls_forks_wait(&forks, rank), rank == KILLED ? -SIGKILL : 0);
    }
    ls_forks_end(&forks);
}

/* Kills a rank in the first bucket that is launched, in one in the middle, and in the last. */
static void kill_in_buckets(void) {
    kill_in(5);
    kill_in(2);
    kill_in(0);
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
