/*
 * ls_comm_monitored_barrier: ranks that enter in time, and ranks that enter late. Every rank that has entered lists all
 * late ranks. A late rank is notified that the others have given up, and afterwards all calls work again.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdio.h>

#include "base/wait.h"
#include "comm/backend.h"

#define SHORT   1.0  /* a timeout that tests let expire */
#define PATIENT 30.0 /* ranks that are in time enter within this limit, even on a busy machine */
#define LONG    60.0 /* a timeout that never expires */
#define AT_ONCE 20.0 /* limit for a call that does not wait, even on a busy machine */

enum { PASSES = 20, GO_TAG = 9 };

/* The number of barriers that this rank has called. */
static _Thread_local int calls;

static ls_status passes(ls_comm *comm, double timeout) {
    calls++;
    return ls_comm_monitored_barrier(comm, timeout);
}

static bool is_late(unsigned late, int rank) {
    return (late >> rank & 1) != 0;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* Returns whether the latest call has failed with the list of late ranks, as it must on a rank that entered in time. */
static bool lists_late_ranks(const ls_comm *comm, unsigned late, double timeout) {
    char expected[LS_ERROR_CAPACITY];
    ls_rank_list list = {.count = 0};
    for (int rank = 0; rank < ls_comm_size(comm); rank++) {
        if (is_late(late, rank)) {
            ls_rank_list_add(&list, rank);
        }
    }
    snprintf(expected, sizeof expected, "ls_comm_monitored_barrier #%d: %s did not enter within %g s", calls, list.text,
             timeout);
    return strncmp(ls_error_message(), expected, strlen(expected)) == 0;
}

/* Checks that the latest call failed with the message for a late rank. */
static ls_status says_that_others_gave_up(double timeout) {
    char expected[LS_ERROR_CAPACITY];
    snprintf(expected, sizeof expected, "ls_comm_monitored_barrier #%d: this rank entered too late: ", calls);
    LS_EXPECT_MESSAGE(expected);
    snprintf(expected, sizeof expected, " gave up after %g s, without rank", timeout);
    LS_EXPECT_MESSAGE(expected);
    return LS_OK;
}

/* ---- late ranks -------------------------------------------------------------------------------------------------- */

static ls_status calls_work(ls_comm *comm) {
    const int rank = ls_comm_rank(comm), size = ls_comm_size(comm);
    int32_t sum = rank + 1, from = -1;
    ls_work *work = NULL;
    LS_TRY(ls_comm_allreduce(comm, &sum, &sum, 1, LS_I32, LS_SUM, NULL));
    LS_CHECK(sum == size * (size + 1) / 2);
    LS_TRY(ls_comm_send(comm, &rank, 1, LS_I32, (rank + 1) % size, 0, &work));
    LS_TRY(ls_comm_recv(comm, &from, 1, LS_I32, (rank + size - 1) % size, 0, NULL));
    LS_CHECK(from == (rank + size - 1) % size);
    return ls_work_wait(work);
}

/* Notifies the late ranks that this rank has given up. A late rank waits for these notifications. */
static ls_status wait_for_the_others(ls_comm *comm, unsigned late) {
    const int own = ls_comm_rank(comm);
    char nothing = 0;
    for (int rank = 0; rank < ls_comm_size(comm); rank++) {
        if (is_late(late, own) && !is_late(late, rank)) {
            LS_TRY(ls_comm_recv(comm, &nothing, 1, LS_U8, rank, GO_TAG, NULL));
        } else if (!is_late(late, own) && is_late(late, rank)) {
            LS_TRY(ls_comm_send(comm, &nothing, 1, LS_U8, rank, GO_TAG, NULL));
        }
    }
    return LS_OK;
}

/* `times` barriers in a row fail for some ranks. Then the late ranks enter all of them. Sets `*listed` to whether
 * this rank, if it is not late, got the list of the late ranks. */
static ls_status try_late(ls_comm *comm, unsigned late, int times, double timeout, bool *listed) {
    const bool entered = !is_late(late, ls_comm_rank(comm));
    LS_TRY(ls_comm_barrier(comm, NULL));
    *listed = true;
    for (int i = 0; i < times && entered; i++) {
        LS_CHECK(passes(comm, timeout) == LS_ERR_TIMEOUT);
        *listed = lists_late_ranks(comm, late, timeout) && *listed;
    }
    LS_TRY(wait_for_the_others(comm, late));
    const double start = ls_clock_seconds();
    for (int i = 0; i < times && !entered; i++) {
        LS_CHECK(passes(comm, LONG) == LS_ERR_TIMEOUT);
        LS_TRY(says_that_others_gave_up(timeout));
    }
    LS_TRY(calls_work(comm));
    LS_CHECK(entered || ls_clock_seconds() - start < AT_ONCE);
    LS_TRY(passes(comm, LONG));
    LS_TRY(passes(comm, LONG));
    return calls_work(comm);
}

/* On a busy machine, a rank that should enter in time may be late, too. Then the test retries with a longer timeout. */
static ls_status some_are_late(ls_comm *comm, unsigned late, int times) {
    bool listed = false;
    for (double timeout = SHORT; !listed; timeout = PATIENT) {
        LS_TRY(try_late(comm, late, times, timeout, &listed));
        LS_TRY(ls_comm_allreduce(comm, &listed, &listed, 1, LS_BOOL, LS_LAND, NULL));
        LS_CHECK(listed || timeout != PATIENT);
    }
    return LS_OK;
}

/* The late rank enters while the others wait for it in a different call. Before this, it gets no message from them
 * on `comm`. */
static ls_status others_have_gone_on(ls_comm *comm) {
    const int last = ls_comm_size(comm) - 1;
    ls_comm *other = NULL;
    LS_TRY(ls_comm_split(comm, 0, 0, &other));
    if (ls_comm_rank(comm) != last) {
        LS_CHECK(passes(comm, SHORT) == LS_ERR_TIMEOUT);
    }
    LS_TRY(wait_for_the_others(other, 1U << last));
    if (ls_comm_rank(comm) == last) {
        ls_sleep_ns(200000000);
        LS_CHECK(passes(comm, LONG) == LS_ERR_TIMEOUT);
        LS_TRY(says_that_others_gave_up(SHORT));
    }
    LS_TRY(calls_work(comm));
    ls_comm_free(other);
    return passes(comm, LONG);
}

/* A rank that waits long enough is not late. LS_ZERO selects the communicator's timeout, like 0. */
static ls_status a_patient_barrier(ls_comm *comm, double timeout) {
    if (ls_comm_rank(comm) == 0) {
        ls_sleep_ns(200000000);
    }
    return passes(comm, timeout);
}

/* ---- other calls ------------------------------------------------------------------------------------------------- */

/* A rank that leaves the barrier has received everything that the other ranks sent before they entered. */
static ls_status with_work_in_progress(ls_comm *comm) {
    enum { COUNT = 40000 };
    static _Thread_local float sums[COUNT];
    ls_work *work = NULL;
    for (int i = 0; i < COUNT; i++) {
        sums[i] = 1;
    }
    LS_TRY(ls_comm_allreduce(comm, sums, sums, COUNT, LS_F32, LS_SUM, &work));
    LS_TRY(passes(comm, LONG));
    LS_TRY(ls_work_wait(work));
    LS_CHECK(sums[0] == (float)ls_comm_size(comm) && sums[COUNT - 1] == (float)ls_comm_size(comm));
    return LS_OK;
}

static ls_status wrong_input(ls_comm *comm) {
    LS_CHECK(ls_comm_monitored_barrier(NULL, 1) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("ls_comm_monitored_barrier: the communicator is NULL");
    LS_CHECK(ls_comm_monitored_barrier(comm, -1) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("ls_comm_monitored_barrier: timeout is -1, but must be 0 or more seconds");
    LS_CHECK(ls_comm_monitored_barrier(comm, (double)NAN) == LS_ERR_ARGUMENT);
    return passes(comm, 0); /* the communicator's timeout */
}

/* On a split communicator, the message also gives the ranks in the world. */
static ls_status on_a_part(ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    ls_comm *part = NULL;
    LS_TRY(ls_comm_split(world, rank == 0 ? -1 : 0, -rank, &part)); /* in reverse order, without rank 0 */
    if (part == NULL) {
        return LS_OK;
    }
    calls = 0;
    LS_TRY(passes(part, LONG));
    if (size == 3 && rank == 2) {
        LS_CHECK(passes(part, SHORT) == LS_ERR_TIMEOUT);
        LS_CHECK(lists_late_ranks(part, 2, SHORT));
        LS_EXPECT_MESSAGE("this communicator's ranks 0 to 1 are the world's 2, 1");
    }
    LS_TRY(size == 3 ? wait_for_the_others(part, 2) : LS_OK);
    LS_CHECK(size != 3 || rank != 1 || passes(part, LONG) == LS_ERR_TIMEOUT);
    LS_TRY(passes(part, LONG));
    ls_comm_free(part);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    const int size = ls_comm_size(world);
    calls = 0;
    for (int i = 0; i < PASSES; i++) {
        LS_TRY(passes(world, LONG));
    }
    LS_TRY(with_work_in_progress(world));
    LS_TRY(a_patient_barrier(world, LONG));
    LS_TRY(a_patient_barrier(world, LS_ZERO));
    LS_TRY(wrong_input(world));
    if (size > 1) {
        const unsigned all = (1U << size) - 1;
        LS_TRY(some_are_late(world, 1, 1));                    /* rank 0 */
        LS_TRY(some_are_late(world, 1U << (size - 1), 2));     /* the last rank */
        LS_TRY(some_are_late(world, all & ~2U, 1));            /* all ranks but 1 */
        LS_TRY(size > 3 ? some_are_late(world, 9, 2) : LS_OK); /* ranks 0 and 3 */
        LS_TRY(others_have_gone_on(world));
    }
    LS_TRY(with_work_in_progress(world));
    return on_a_part(world);
}
