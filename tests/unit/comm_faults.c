/*
 * The first promise of communication: no call blocks forever. A rank dies, is stopped, exits or leaves before, in and
 * after each collective, among 2, 3 and 5 ranks; every other rank must get the error that names it, at once for a death
 * and after the timeout for silence, and again on every later call.
 */
#include "tests/support/unit.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"
#include "tests/support/forks.h"

#define PATIENT                                                                                                        \
    60.0            /* a timeout that no test waits for: whoever learns of a death sooner learnt it from the kernel    \
                     */
#define AT_ONCE 5.0 /* what the contract's second may become on a busy machine */

enum { WARM_UPS = 3 };

typedef enum moment { BEFORE, IN, AFTER, MOMENTS } moment;
typedef enum way { KILLED, FAULT, EXIT_ONE, EXIT_CLEAN, LEAVES, STOPPED } way;
typedef enum collective { BARRIER, SMALL, WHOLE, CHUNKS, DIRECT, SEND_SMALL, SEND_LARGE, COLLECTIVES } collective;

typedef struct fault {
    int size;
    int victim;
    moment when;
    way how;
    collective what;
} fault;

static const char *const names[COLLECTIVES] = {
    [BARRIER] = "ls_comm_barrier",      [SMALL] = "ls_comm_allreduce",  [WHOLE] = "ls_comm_allreduce",
    [CHUNKS] = "ls_comm_allreduce",     [DIRECT] = "ls_comm_allreduce", [SEND_SMALL] = "ls_comm_broadcast",
    [SEND_LARGE] = "ls_comm_broadcast",
};

static float ordinary[300000];

static ls_status call(ls_comm *world, collective what, float *shared, ls_work **work) {
    static const size_t counts[COLLECTIVES] = {0, 1, 1000, 300000, 300000, 1, 300000};
    float *buffer = what == DIRECT ? shared : ordinary;
    if (what == BARRIER) {
        return ls_comm_barrier(world, work);
    }
    if (what == SEND_SMALL || what == SEND_LARGE) {
        return ls_comm_broadcast(world, buffer, counts[what], LS_F32, 0, work);
    }
    return ls_comm_allreduce(world, buffer, buffer, counts[what], LS_F32, LS_SUM, work);
}

static void end_yourself(ls_comm *world, way how) {
    switch (how) {
    case KILLED:
        raise(SIGKILL);
        break;
    case FAULT:
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
        break;
    case EXIT_ONE:
        _exit(1);
    case EXIT_CLEAN:
        _exit(0);
    case LEAVES:
        ls_comm_free(world);
        pause(); /* the process lives on */
        break;
    case STOPPED:
        raise(SIGSTOP);
        break;
    }
}

/* The victim. When it was stopped it is continued in the end, and must find the communicator revoked. */
static const char *suffer(ls_comm *world, const fault *f, float *shared) {
    ls_work *work = NULL;
    if (f->when == IN) {
        LS_MUST(call(world, f->what, shared, &work) == LS_OK);
    }
    if (f->when == AFTER) {
        LS_MUST(call(world, f->what, shared, NULL) == LS_OK);
    }
    end_yourself(world, f->how);
    LS_MUST(ls_work_done(work) && (ls_work_wait(work) == LS_OK || ls_error_status() == LS_ERR_TIMEOUT));
    LS_MUST(ls_comm_barrier(world, NULL) == LS_ERR_TIMEOUT);
    return NULL;
}

/* Another rank: calls on until something fails, and looks at how. */
static const char *survive(ls_comm *world, const fault *f, float *shared) {
    const double start = ls_clock_seconds();
    const bool first_may_end = f->when != BEFORE;
    ls_status status = call(world, f->what, shared, NULL);
    LS_MUST(first_may_end || status != LS_OK);
    LS_MUST(f->when != AFTER || status == LS_OK);
    const bool in_first = status != LS_OK;
    if (!in_first) {
        status = ls_comm_barrier(world, NULL);
    }
    const double took = ls_clock_seconds() - start;
    char message[1024];
    char victim[32];
    char number[64];
    snprintf(message, sizeof message, "%s", ls_error_message());
    snprintf(victim, sizeof victim, "rank %d ", f->victim);
    /* ls_comm_alloc and the warm-ups came before. */
    snprintf(number, sizeof number, "%s #%d:", in_first ? names[f->what] : names[BARRIER],
             1 + WARM_UPS + (in_first ? 1 : 2));
    LS_MUST(status == (f->how == STOPPED ? LS_ERR_TIMEOUT : LS_ERR_PEER));
    LS_MUST(strstr(message, victim) != NULL);
    LS_MUST(strncmp(message, number, strlen(number)) == 0);
    LS_MUST(f->how == STOPPED || took < AT_ONCE);
    const double again = ls_clock_seconds();
    LS_MUST(ls_comm_barrier(world, NULL) == status && strcmp(ls_error_message(), message) == 0);
    LS_MUST(call(world, SMALL, shared, NULL) == status && strcmp(ls_error_message(), message) == 0);
    LS_MUST(ls_comm_alloc(world, 100) == NULL && ls_error_status() == status);
    LS_MUST(ls_clock_seconds() - again < AT_ONCE / 2);
    return NULL;
}

static const char *fault_rank(ls_comm *world, int rank, const void *argument) {
    const fault *f = argument;
    LS_MUST(world != NULL);
    float *shared = ls_comm_alloc(world, sizeof ordinary);
    LS_MUST(shared != NULL);
    for (int i = 0; i < WARM_UPS; i++) {
        LS_MUST(ls_comm_barrier(world, NULL) == LS_OK);
    }
    return rank == f->victim ? suffer(world, f, shared) : survive(world, f, shared);
}

static void run_fault(const fault *f) {
    ls_forks forks;
    ls_forks_start(&forks, f->size, 0, f->how == STOPPED ? 0.3 : PATIENT, fault_rank, f);
    for (int rank = 0; rank < f->size; rank++) {
        if (rank != f->victim && ls_forks_wait(&forks, rank) != 0) {
            fprintf(stderr, "size %d victim %d when %d how %d what %d\n", f->size, f->victim, (int)f->when, (int)f->how,
                    (int)f->what);
            ls_forks_end(&forks);
            fail();
        }
    }
    if (f->how == STOPPED) {
        kill(forks.processes[f->victim], SIGCONT);
        assert_int_equal(ls_forks_wait(&forks, f->victim), 0);
    }
    ls_forks_end(&forks);
}

static void run_faults(way how) {
    static const int sizes[] = {2, 3, 5};
    for (int i = 0; i < 3; i++) {
        for (int when = BEFORE; when < MOMENTS; when++) {
            for (int what = BARRIER; what < COLLECTIVES; what++) {
                if (how == STOPPED && sizes[i] != 3 && what != CHUNKS) {
                    continue; /* these wait for a timeout each */
                }
                const fault f = {.size = sizes[i],
                                 .victim = (when + what) % sizes[i],
                                 .when = (moment)when,
                                 .how = how,
                                 .what = (collective)what};
                run_fault(&f);
            }
        }
    }
}

static void killed_ranks(void **state) {
    (void)state;
    run_faults(KILLED);
}

static void crashed_ranks(void **state) {
    (void)state;
    run_faults(FAULT);
}

static void failed_ranks(void **state) {
    (void)state;
    run_faults(EXIT_ONE);
}

static void exited_ranks(void **state) {
    (void)state;
    run_faults(EXIT_CLEAN);
}

static void ranks_that_leave(void **state) {
    (void)state;
    run_faults(LEAVES);
}

static void stopped_ranks(void **state) {
    (void)state;
    run_faults(STOPPED);
}

/* ---- a job that is stopped as a whole goes on afterwards
 * ------------------------------------------------------------- */

static const char *resumed_rank(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    if (rank == 1) {
        usleep(300000); /* the other waits meanwhile, and both are stopped */
    }
    LS_MUST(ls_comm_barrier(world, NULL) == LS_OK);
    return NULL;
}

static void a_stopped_job_goes_on(void **state) {
    (void)state;
    ls_forks forks;
    ls_forks_start(&forks, 2, 0, 1.2, resumed_rank, NULL);
    usleep(150000);
    kill(forks.processes[1], SIGSTOP);
    kill(forks.processes[0], SIGSTOP);
    usleep(1500000);
    kill(forks.processes[0], SIGCONT);
    kill(forks.processes[1], SIGCONT);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    assert_int_equal(ls_forks_wait(&forks, 1), 0);
    ls_forks_end(&forks);
}

/* ---- children of a rank do not vouch for it
 * -------------------------------------------------------------------------- */

static const char *parent_rank(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    if (rank == 1) {
        if (fork() == 0) {
            usleep(300000); /* a child that inherited everything outlives the rank */
            _exit(0);
        }
        raise(SIGKILL);
    }
    const double start = ls_clock_seconds();
    LS_MUST(ls_comm_barrier(world, NULL) == LS_ERR_PEER);
    LS_MUST(ls_clock_seconds() - start < AT_ONCE && strstr(ls_error_message(), "rank 1 ") != NULL);
    return NULL;
}

static void a_child_is_not_the_rank(void **state) {
    (void)state;
    ls_forks forks;
    ls_forks_start(&forks, 2, 0, PATIENT, parent_rank, NULL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    ls_forks_end(&forks);
}

/* ---- joining
 * ----------------------------------------------------------------------------------------------------------- */

static const char *early_rank(ls_comm *world, int rank, const void *argument) {
    (void)rank;
    (void)argument;
    LS_MUST(world == NULL && failed_with(LS_ERR_TIMEOUT, "rank 2 did not join"));
    return NULL;
}

static void a_rank_that_never_joins(void **state) {
    (void)state;
    ls_forks forks;
    ls_forks_start(&forks, 3, 1U << 2, 0.5, early_rank, NULL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    assert_int_equal(ls_forks_wait(&forks, 1), 0);
    ls_forks_end(&forks);
}

/* A connection of somebody who does not know the secret, to the socket that rank 0 announced in the store. */
static int connect_as_stranger(const ls_forks *forks) {
    char url[128];
    char ticket[256];
    size_t size = 0;
    snprintf(url, sizeof url, "file://%s", forks->folder);
    ls_store *store = ls_store_open(url, &(ls_store_options){.timeout = PATIENT});
    assert_non_null(store);
    assert_int_equal(ls_store_get(store, "test/shm", ticket, sizeof ticket, &size), LS_OK);
    ls_store_close(store);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t length = strlen(ticket); /* the ticket begins with the name */
    memcpy(address.sun_path + 1, ticket, length);
    const int stranger = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const socklen_t used = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    assert_int_equal(connect(stranger, (struct sockaddr *)&address, used), 0);
    return stranger;
}

static const char *plain_rank(ls_comm *world, int rank, const void *argument) {
    (void)rank;
    (void)argument;
    LS_MUST(world != NULL && ls_comm_barrier(world, NULL) == LS_OK);
    return NULL;
}

static void strangers_get_nothing(void **state) {
    (void)state;
    ls_forks forks;
    char answer[64];
    ls_forks_start(&forks, 2, 1U << 1, PATIENT, plain_rank, NULL);
    const int silent = connect_as_stranger(&forks);
    const int wrong = connect_as_stranger(&forks);
    assert_int_equal(send(wrong, "sixteen bytes, no secret", 20, MSG_NOSIGNAL), 20); /* the right length */
    assert_int_equal(recv(wrong, answer, sizeof answer, 0), 0);
    assert_int_equal(recv(silent, answer, sizeof answer, 0), 0);
    ls_forks_start_late(&forks, 1);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    assert_int_equal(ls_forks_wait(&forks, 1), 0);
    close(silent);
    close(wrong);
    ls_forks_end(&forks);
}

/* ---- too little memory
 * --------------------------------------------------------------------------------------------------- */

static const char *poor_rank(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL);
    if (rank == 0) { /* as when the machine cannot reserve any more */
        signal(SIGXFSZ, SIG_DFL);
        const struct rlimit little = {8 << 20, 8 << 20};
        LS_MUST(setrlimit(RLIMIT_FSIZE, &little) == 0);
    }
    float *small = ls_comm_alloc(world, 1 << 20);
    LS_MUST(small != NULL);
    LS_MUST(ls_comm_alloc(world, 16 << 20) == NULL && failed_with(LS_ERR_MEMORY, rank == 0 ? "ulimit -f" : "rank 0"));
    LS_MUST(ls_comm_alloc(world, (size_t)1 << 56) == NULL && ls_error_status() == LS_ERR_MEMORY);
    small[0] = (float)rank;
    LS_MUST(ls_comm_allreduce(world, small, small, 100000, LS_F32, LS_SUM, NULL) == LS_OK && small[0] == 1.0F);
    return NULL;
}

static void a_shortage_is_an_error(void **state) {
    (void)state;
    assert_true(ls_forks_run(2, PATIENT, poor_rank, NULL));
}

/* ---- work
 * ------------------------------------------------------------------------------------------------------------------ */

static const char *work_rank(ls_comm *world, int rank, const void *argument) {
    (void)argument;
    LS_MUST(world != NULL);
    ls_work *works[3] = {NULL, NULL, NULL};
    if (rank == 1) {
        raise(SIGKILL);
    }
    for (int i = 0; i < 3; i++) {
        LS_MUST(ls_comm_allreduce(world, ordinary, ordinary, 300000, LS_F32, LS_SUM, &works[i]) == LS_OK || i > 0);
    }
    const double start = ls_clock_seconds();
    while (!ls_work_done(works[0])) { /* polling alone finds out, too */
        LS_MUST(ls_clock_seconds() - start < AT_ONCE);
    }
    LS_MUST(ls_work_wait(works[0]) == LS_ERR_PEER && strstr(ls_error_message(), "#1: rank 1 ") != NULL);
    LS_MUST(works[1] == NULL || ls_work_wait(works[1]) == LS_ERR_PEER);
    ls_comm_free(world); /* before works[2] is waited for */
    LS_MUST(works[2] == NULL || ls_work_wait(works[2]) != LS_OK);
    fflush(NULL);
    _exit(0);
}

static void work_fails_with_its_reason(void **state) {
    (void)state;
    ls_forks forks;
    ls_forks_start(&forks, 2, 0, PATIENT, work_rank, NULL);
    assert_int_equal(ls_forks_wait(&forks, 0), 0);
    ls_forks_end(&forks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_ranks),
        cmocka_unit_test(crashed_ranks),
        cmocka_unit_test(failed_ranks),
        cmocka_unit_test(exited_ranks),
        cmocka_unit_test(ranks_that_leave),
        cmocka_unit_test(stopped_ranks),
        cmocka_unit_test(a_stopped_job_goes_on),
        cmocka_unit_test(a_child_is_not_the_rank),
        cmocka_unit_test(a_rank_that_never_joins),
        cmocka_unit_test(strangers_get_nothing),
        cmocka_unit_test(a_shortage_is_an_error),
        cmocka_unit_test(work_fails_with_its_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
