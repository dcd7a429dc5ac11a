/*
 * No call blocks forever, for the calls beyond barrier, broadcast and all-reduce (comm_faults.c has those): a rank is
 * killed or stopped before, in and after each, and every other rank must get the error that names it.
 */
#include "tests/support/unit.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "comm/comm.h"
#include "tests/support/forks.h"

#define PATIENT 60.0 /* a timeout that no test waits for */
#define AT_ONCE 5.0  /* what the contract's second may become on a busy machine */
#define SILENT  0.3

enum { LARGE = 300000, RANKS_MOST = 5 };

typedef enum moment { BEFORE, IN, AFTER, MOMENTS } moment;

typedef ls_status a_call(ls_comm *world, size_t count, ls_work **work);

typedef struct fault {
    int size;
    int victim;
    moment when;
    int signal;
    size_t count;
    a_call *call;
    const char *name;
} fault;

static float out[RANKS_MOST * LARGE];
static float in[RANKS_MOST * LARGE];

static ls_status reduce(ls_comm *world, size_t count, ls_work **work) {
    return ls_comm_reduce(world, out, in, count, LS_F32, LS_SUM, 0, work);
}

static ls_status reduce_scatter(ls_comm *world, size_t count, ls_work **work) {
    return ls_comm_reduce_scatter(world, out, in, count, LS_F32, LS_SUM, work);
}

static ls_status gather(ls_comm *world, size_t count, ls_work **work) {
    return ls_comm_gather(world, out, in, count, LS_F32, 0, work);
}

static ls_status allgather(ls_comm *world, size_t count, ls_work **work) {
    return ls_comm_allgather(world, out, in, count, LS_F32, work);
}

static ls_status scatter(ls_comm *world, size_t count, ls_work **work) {
    return ls_comm_scatter(world, out, in, count, LS_F32, 0, work);
}

static ls_status alltoall(ls_comm *world, size_t count, ls_work **work) {
    return ls_comm_alltoall(world, out, in, count, LS_F32, work);
}

static ls_status alltoallv(ls_comm *world, size_t count, ls_work **work) {
    static size_t counts[RANKS_MOST];
    for (int rank = 0; rank < RANKS_MOST; rank++) {
        counts[rank] = count;
    }
    return ls_comm_alltoallv(world, out, counts, NULL, in, counts, NULL, LS_F32, work);
}

/* Not to be made as work: it is made and waited for. */
static ls_status split(ls_comm *world, size_t count, ls_work **work) {
    ls_comm *half = NULL;
    (void)count;
    (void)work;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) % 2, 0, &half));
    ls_comm_free(half);
    return LS_OK;
}

/* ---- collectives ---------------------------------------------------------------------------------------------------
 */

static const char *suffer(ls_comm *world, const fault *f) {
    ls_work *work = NULL;
    if (f->when == IN) {
        LS_MUST(f->call(world, f->count, &work) == LS_OK);
    }
    if (f->when == AFTER) {
        LS_MUST(f->call(world, f->count, NULL) == LS_OK);
    }
    raise(f->signal);
    return NULL;
}

static const char *survive(ls_comm *world, const fault *f) {
    const double start = ls_clock_seconds();
    ls_status status = f->call(world, f->count, NULL);
    LS_MUST(f->when != BEFORE || status != LS_OK);
    LS_MUST(f->when != AFTER || status == LS_OK);
    const bool in_first = status != LS_OK;
    if (!in_first) {
        status = ls_comm_barrier(world, NULL);
    }
    char victim[32];
    snprintf(victim, sizeof victim, "rank %d ", f->victim);
    LS_MUST(status == (f->signal == SIGSTOP ? LS_ERR_TIMEOUT : LS_ERR_PEER));
    LS_MUST(strstr(ls_error_message(), victim) != NULL);
    LS_MUST(strstr(ls_error_message(), in_first ? f->name : "ls_comm_barrier") != NULL);
    LS_MUST(f->signal == SIGSTOP || ls_clock_seconds() - start < AT_ONCE);
    ls_comm *none = NULL;
    LS_MUST(f->call(world, 1, NULL) == status && ls_comm_split(world, 0, 0, &none) == status && none == NULL);
    LS_MUST(ls_comm_send(world, out, 1, LS_F32, 0, 0, NULL) == status);
    LS_MUST(ls_comm_recv(world, out, 1, LS_F32, 0, 0, NULL) == status);
    return NULL;
}

static const char *fault_rank(ls_comm *world, int rank, const void *argument) {
    const fault *f = argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    return rank == f->victim ? suffer(world, f) : survive(world, f);
}

static void run_fault(const fault *f) {
    ls_forks forks;
    ls_forks_start(&forks, f->size, 0, f->signal == SIGSTOP ? SILENT : PATIENT, fault_rank, f);
    for (int rank = 0; rank < f->size; rank++) {
        if (rank != f->victim && ls_forks_wait(&forks, rank) != 0) {
            fprintf(stderr, "%s of %zu, size %d victim %d when %d\n", f->name, f->count, f->size, f->victim,
                    (int)f->when);
            ls_forks_end(&forks);
            fail();
        }
    }
    ls_forks_end(&forks);
}

static const struct {
    const char *name;
    a_call *call;
} calls[] = {{"ls_comm_reduce #", reduce},     {"ls_comm_reduce_scatter", reduce_scatter},
             {"ls_comm_gather", gather},       {"ls_comm_allgather", allgather},
             {"ls_comm_scatter", scatter},     {"ls_comm_alltoall #", alltoall},
             {"ls_comm_alltoallv", alltoallv}, {"ls_comm_split", split}};

static void killed_in_every_call(void **state) {
    (void)state;
    static const int sizes[] = {2, 3, 5};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        for (int when = BEFORE; when < MOMENTS; when++) {
            if (calls[i].call == split && when == IN) {
                continue;
            }
            for (int s = 0; s < 3; s++) {
                const fault f = {.size = sizes[s],
                                 .victim = (when + (int)i) % sizes[s],
                                 .when = (moment)when,
                                 .signal = SIGKILL,
                                 .count = (when + s) % 2 == 0 ? LARGE : 2,
                                 .call = calls[i].call,
                                 .name = calls[i].name};
                run_fault(&f);
            }
        }
    }
}

static void stopped_before_every_call(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        const fault f = {.size = 3,
                         .victim = (int)i % 3,
                         .when = BEFORE,
                         .signal = SIGSTOP,
                         .count = i % 2 == 0 ? LARGE : 2,
                         .call = calls[i].call,
                         .name = calls[i].name};
        run_fault(&f);
    }
}

/* ---- messages ------------------------------------------------------------------------------------------------------
 */

/* How a rank meets the end of another: what it does about it. */
static const char *message_rank(ls_comm *world, int rank, const void *argument) {
    const int how = *(const int *)argument;
    const double start = ls_clock_seconds();
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    if (rank == 2) {
        raise(SIGKILL);
    }
    ls_status status = LS_OK;
    if (how == 0) { /* rank 1 waits for a message of rank 0, which is alive and waits for the dead one */
        status = ls_comm_recv(world, in, LARGE, LS_F32, rank == 0 ? 2 : 0, 0, NULL);
    } else if (how == 1) { /* a large message waits to be taken */
        status = ls_comm_send(world, out, LARGE, LS_F32, 2, 0, NULL);
    } else if (how == 2) { /* small ones are kept for the receiver, for a while */
        while (status == LS_OK) {
            status = ls_comm_send(world, out, 1, LS_F32, 2, 0, NULL);
        }
    } else { /* as work */
        ls_work *works[2];
        LS_MUST(ls_comm_recv(world, in, 8, LS_F32, 2, 0, &works[0]) == LS_OK);
        /* The receive may have met the death already, which fails every call that follows. */
        const ls_status sent = ls_comm_send(world, out, LARGE, LS_F32, 2, 0, &works[1]);
        while (!ls_work_done(works[0])) {
        }
        status = ls_work_wait(works[0]);
        LS_MUST(sent == LS_OK ? ls_work_wait(works[1]) == status : sent == status && works[1] == NULL);
    }
    LS_MUST(failed_with(LS_ERR_PEER, "rank 2 ") && status == LS_ERR_PEER);
    LS_MUST(ls_clock_seconds() - start < AT_ONCE);
    LS_MUST(ls_comm_barrier(world, NULL) == LS_ERR_PEER);
    return NULL;
}

static void killed_partners(void **state) {
    (void)state;
    for (int how = 0; how < 4; how++) {
        ls_forks forks;
        ls_forks_start(&forks, 3, 0, PATIENT, message_rank, &how);
        const int first = ls_forks_wait(&forks, 0);
        const int second = ls_forks_wait(&forks, 1);
        ls_forks_end(&forks);
        if (first != 0 || second != 0) {
            fail_msg("how %d: ranks ended with %d and %d", how, first, second);
        }
    }
}

static const char *silent_rank(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    if (rank == 1) {
        pause();
    }
    LS_MUST(ls_comm_recv(world, in, 3, LS_F32, 1, 0, NULL) == LS_ERR_TIMEOUT);
    LS_MUST(failed_with(LS_ERR_TIMEOUT, "ls_comm_recv #1: rank 1 "));
    return NULL;
}

static void silent_partners(void **state) {
    (void)state;
    ls_forks forks;
    ls_forks_start(&forks, 2, 0, SILENT, silent_rank, NULL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    ls_forks_end(&forks);
}

/* Between threads: a partner that has left, what it sent before that still counts. */
static ls_status leave_early(ls_comm *world, void *argument) {
    (void)argument;
    int32_t number = 7;
    if (ls_comm_rank(world) == 1) {
        return ls_comm_send(world, &number, 1, LS_I32, 0, 0, NULL);
    }
    number = 0;
    LS_TRY(ls_comm_recv(world, &number, 1, LS_I32, 1, 0, NULL));
    if (number != 7) {
        return ls_fail(LS_ERR_INTERNAL, "received %d", number);
    }
    return ls_comm_recv(world, &number, 1, LS_I32, 1, 0, NULL);
}

static void partners_that_leave(void **state) {
    (void)state;
    assert_int_equal(ls_run_threads(2, leave_early, NULL), LS_ERR_PEER);
    assert_non_null(strstr(ls_error_message(), "ls_comm_recv #2: rank 1 "));
}

static ls_status own_message(ls_comm *world, void *argument) {
    (void)argument;
    int32_t number = 0;
    return ls_comm_recv(world, &number, 1, LS_I32, ls_comm_rank(world), 0, NULL);
}

static void nobody_can_send_it(void **state) {
    (void)state;
    ls_comm *world = ls_init(NULL);
    assert_non_null(world);
    assert_int_equal(own_message(world, NULL), LS_ERR_STATE);
    assert_int_equal(ls_finalize(), LS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_in_every_call), cmocka_unit_test(stopped_before_every_call),
        cmocka_unit_test(killed_partners),      cmocka_unit_test(silent_partners),
        cmocka_unit_test(partners_that_leave),  cmocka_unit_test(nobody_can_send_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
