/*
 * The progress thread finishes asynchronous calls while their rank makes no call. Ranks that are threads have no such
 * thread.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 * environment: LOCKSTEP_PROGRESS_THREAD=1
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/poll.h"
#include "comm/record.h"

enum { LARGE = 1 << 20, ROUNDS = 3, LONGEST_S = 120 };

/* Makes no call until all work of this process has finished, or until LONGEST_S seconds have passed. */
static bool finishes_alone(void) {
    for (int i = 0; i < LONGEST_S * 1000 && atomic_load(&ls_comm_open_count) > 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return atomic_load(&ls_comm_open_count) == 0;
}

/* Begins two sums and a message on each communicator, and waits for them after they have finished. */
static ls_status run_calls(ls_comm *const *comms, int count, size_t elements, bool alone) {
    enum { CALLS = 4, MOST = 2 };
    float *memory = calloc(MOST * CALLS * elements + 1, sizeof *memory);
    ls_work *works[MOST * CALLS] = {NULL};
    LS_CHECK(memory != NULL && count <= MOST);
    for (int i = 0; i < count; i++) {
        const int rank = ls_comm_rank(comms[i]), size = ls_comm_size(comms[i]);
        float *at = memory + (size_t)i * CALLS * elements;
        for (size_t k = 0; k < CALLS * elements; k++) {
            at[k] = (float)(rank + 1);
        }
        LS_TRY(ls_comm_allreduce(comms[i], at, at, elements, LS_F32, LS_SUM, &works[i * CALLS]));
        LS_TRY(
            ls_comm_recv(comms[i], at + 2 * elements, elements, LS_F32, (rank + 1) % size, 4, &works[i * CALLS + 1]));
        LS_TRY(ls_comm_send(comms[i], at + 3 * elements, elements, LS_F32, (rank + size - 1) % size, 4,
                            &works[i * CALLS + 2]));
        LS_TRY(
            ls_comm_allreduce(comms[i], at + elements, at + elements, elements, LS_F32, LS_MAX, &works[i * CALLS + 3]));
    }
    LS_CHECK(!alone || finishes_alone());
    for (int i = 0; i < MOST * CALLS; i++) {
        LS_TRY(ls_work_wait(works[i]));
    }
    for (int i = 0; i < count; i++) {
        const int rank = ls_comm_rank(comms[i]), size = ls_comm_size(comms[i]);
        const float *at = memory + (size_t)i * CALLS * elements;
        for (size_t k = 0; k < elements; k++) {
            LS_CHECK(at[k] == (float)(size * (size + 1) / 2) && at[elements + k] == (float)size);
            LS_CHECK(at[2 * elements + k] == (float)((rank + 1) % size + 1));
        }
    }
    free(memory);
    return LS_OK;
}

/* This thread's calls and the progress thread's work alternate. */
static ls_status mix_calls(ls_comm *const *comms) {
    for (int i = 0; i < 200; i++) {
        ls_work *work = NULL;
        int64_t sum = i, one = 1;
        LS_TRY(ls_comm_allreduce(comms[0], &sum, &sum, 1, LS_I64, LS_SUM, &work));
        LS_TRY(ls_comm_allreduce(comms[1], &one, &one, 1, LS_I64, LS_SUM, NULL));
        while (i % 3 == 0 && !ls_work_done(work)) {
        }
        LS_TRY(ls_work_wait(work));
        LS_CHECK(one == ls_comm_size(comms[1]) && sum == (int64_t)i * ls_comm_size(comms[0]));
    }
    return LS_OK;
}

/* A communicator is freed during its calls. Other ranks may have left it. */
static ls_status free_early(ls_comm *world) {
    ls_comm *part = NULL;
    int64_t *numbers = calloc(LARGE, sizeof *numbers);
    ls_work *work = NULL;
    LS_CHECK(numbers != NULL);
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    LS_TRY(ls_comm_allreduce(part, numbers, numbers, LARGE, LS_I64, LS_SUM, &work));
    ls_comm_free(part);
    const ls_status status = ls_work_wait(work);
    LS_CHECK(status == LS_OK || status == LS_ERR_STATE || status == LS_ERR_PEER);
    free(numbers);
    return ls_comm_barrier(world, NULL);
}

/* A process that is forked while the progress thread uses the communicator has no progress thread, so its calls
 * fail. */
static ls_status fork_during_progress(ls_comm *world) {
    int result = 0;
    fflush(NULL);
    const pid_t child = fork();
    LS_CHECK(child >= 0);
    if (child == 0) {
        (void)alarm(20); /* ends a call that waits for the progress thread */
        atomic_store(&world->busy, LS_COMM_DRIVEN);
        const bool refused = ls_comm_barrier(world, NULL) == LS_ERR_STATE;
        ls_comm_free(world);
        _exit(refused && strstr(ls_error_message(), "is a fork of that rank") != NULL ? 0 : 1);
    }
    LS_CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result) && WEXITSTATUS(result) == 0);
    return ls_comm_barrier(world, NULL);
}

ls_status rank_test(ls_comm *world) {
    ls_comm *comms[] = {world, NULL};
    LS_TRY(ls_comm_split(world, 0, ls_comm_size(world) - ls_comm_rank(world), &comms[1]));
    const bool alone = world->driven;
    LS_CHECK(alone == (ls_world() != NULL && ls_comm_size(world) > 1 && getenv("LOCKSTEP_PROGRESS_THREAD") != NULL));
    LS_CHECK(comms[1]->driven == alone);
    for (int round = 0; round < ROUNDS; round++) {
        LS_TRY(run_calls(comms, 2, 1, alone));
        LS_TRY(run_calls(comms, 2, LARGE, alone));
        LS_TRY(run_calls(comms, 1, 0, alone));
        LS_TRY(mix_calls(comms));
        LS_TRY(free_early(world));
    }
    ls_comm_free(comms[1]);
    return alone ? fork_during_progress(world) : LS_OK;
}
