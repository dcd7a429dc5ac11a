/*
 * The first guarantee of communication: no call blocks forever. A rank is killed, crashes, exits, leaves or is stopped
 * before, during and after each call, with 2, 3 and 5 ranks. Every other rank must get an error that names the rank,
 * the call and its number: at once for a death, after the timeout for silence, and again in every later call. Each call
 * is combined with each fault at each moment; with LOCKSTEP_TEST_FULL=1, also with small and large buffers and all
 * numbers of ranks. LOCKSTEP_TEST_BACKEND selects a backend other than shm. LOCKSTEP_TEST_ONE_IN=N runs every N-th job,
 * beginning with job LOCKSTEP_TEST_FROM (0 to N - 1).
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "tests/support/forks.h"
#include "tests/support/steps.h"

#define LONG_TIMEOUT                                                                                                   \
    60.0             /* a timeout that no test waits for: whoever learns of a death sooner learnt it from the system   \
                      */
#define SILENT  2.5  /* a timeout that tests let expire; on a busy machine, a rank may not run for a part of it */
#define AT_ONCE 20.0 /* limit on a busy machine for the guaranteed second; the slowest time is printed */

enum { WARM_UPS = 2, JOBS_MOST = 24 };

/* Calls in addition to the calls of steps.h. */
enum { ALLOC = STEP_CALLS, SPLIT, CALLS };

/* IN: the victim has begun the call. MIDST: at any time, while all ranks repeat the call. */
typedef enum moment { BEFORE, IN, AFTER, MIDST, MOMENTS } moment;
typedef enum way { KILLED, CRASHES, FAILS, EXITS, LEAVES, STOPPED, WAYS } way;

static const char *const way_names[WAYS] = {"killed", "crashed", "exit 1", "exit 0", "left", "stopped"};
static const char *const moment_names[MOMENTS] = {"before", "in", "after", "in the midst"};

typedef struct fault {
    int size;
    int victim;
    moment when;
    way how;
    int what;
    bool large;
    int job;
} fault;

/* Memory that the processes share. */
static struct board {
    _Atomic double ended[JOBS_MOST]; /* when the victim of the job ended */
    _Atomic double slowest[WAYS];    /* seconds from that time to the last error */
} * board;

static const fault *mine; /* in a victim: its fault */

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static const char *name_of(int what) {
    return what == ALLOC ? "alloc" : what == SPLIT ? "split" : step_name((step_call)what);
}

/* Makes the call, asynchronously if `s` must be kept until it ends. */
static ls_status make(ls_comm *world, const fault *f, step *s, bool later) {
    if (f->what == ALLOC) {
        void *memory = ls_comm_alloc(world, f->large ? 1 << 20 : 100);
        ls_comm_release(world, memory);
        return memory != NULL ? LS_OK : ls_error_status();
    }
    if (f->what == SPLIT) {
        ls_comm *half = NULL;
        LS_TRY(ls_comm_split(world, ls_comm_rank(world) % 2, 0, &half));
        ls_comm_free(half);
        return LS_OK;
    }
    *s = (step){.call = (step_call)f->what,
                .comm = world,
                .dtype = LS_F32,
                .count = f->large ? 100000 : 2,
                .root = f->what == STEP_RING ? 1 : 0};
    LS_TRY(step_prepare(s));
    LS_TRY(step_make(s, later ? &s->works[0] : NULL));
    if (later) {
        return LS_OK;
    }
    ls_work *sent = s->works[1];
    s->works[1] = NULL;
    LS_TRY(ls_work_wait(sent));
    return step_verify(s);
}

/* ---- the victim -------------------------------------------------------------------------------------------------- */

static void end_yourself(way how) {
    atomic_store(&board->ended[mine->job], ls_clock_seconds());
    switch (how) {
    case KILLED:
        raise(SIGKILL);
        break;
    case CRASHES:
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
        break;
    case FAILS:
        _exit(1);
    case EXITS:
        _exit(0);
    default:
        raise(SIGSTOP);
    }
}

static void alarmed(int number) {
    (void)number;
    end_yourself(mine->how);
}

static const char *suffer(ls_comm *world, const fault *f) {
    step s = {0};
    mine = f;
    if (f->when == MIDST) {
        signal(SIGALRM, alarmed);
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_usec = 500 + f->job * 700 % 9000}}, NULL);
        while (make(world, f, &s, false) == LS_OK) {
        }
        /*
         * The victim continues. Over a network, it gets the reason for the others' failure if the network's buffers had
         * room for it.
         */
        LS_MUST(f->how == STOPPED && (ls_error_status() == LS_ERR_TIMEOUT || f->what == SPLIT ||
                                      (getenv("LOCKSTEP_TEST_BACKEND") != NULL && ls_error_status() == LS_ERR_PEER)));
        return NULL;
    }
    if (f->when != BEFORE) {
        LS_MUST(make(world, f, &s, f->when == IN) == LS_OK);
    }
    if (f->how == LEAVES) {
        atomic_store(&board->ended[f->job], ls_clock_seconds());
        ls_comm_free(world);
        pause(); /* the process lives on */
    }
    end_yourself(f->how);
    for (int i = 0; i < 2; i++) { /* the victim was stopped and continued */
        LS_MUST(ls_work_done(s.works[i]) && (ls_work_wait(s.works[i]) == LS_OK || ls_error_status() == LS_ERR_TIMEOUT));
    }
    LS_MUST(ls_comm_barrier(world, NULL) == LS_ERR_TIMEOUT);
    return NULL;
}

/* ---- the other ranks --------------------------------------------------------------------------------------------- */

static void note_slowest(const fault *f, double started) {
    const double ended = atomic_load(&board->ended[f->job]);
    const double took = ls_clock_seconds() - (ended > started ? ended : started);
    double slowest = atomic_load(&board->slowest[f->how]);
    while (took > slowest && !atomic_compare_exchange_weak(&board->slowest[f->how], &slowest, took)) {
    }
}

/*
 * Returns whether the message begins with the failed call, "ls_comm_NAME #NUMBER:". Sends are numbered separately. If a
 * send or a split of one rank fails, all ranks report this call.
 */
static bool names_call(const fault *f, bool barrier, int number) {
    char expected[64];
    if (f->what == STEP_RING || f->what == SPLIT) {
        return strncmp(ls_error_message(), "ls_comm_", 8) == 0 && strchr(ls_error_message(), '#') != NULL;
    }
    snprintf(expected, sizeof expected, "ls_comm_%s #%d:", barrier ? "barrier" : name_of(f->what), number);
    if (strncmp(ls_error_message(), expected, strlen(expected)) == 0) {
        return true;
    }
    /* If the victim has begun the call, other ranks can finish the call and report the barrier after it. */
    snprintf(expected, sizeof expected, "ls_comm_barrier #%d:", number + 1);
    return f->when == IN && !barrier && strncmp(ls_error_message(), expected, strlen(expected)) == 0;
}

/*
 * Returns whether the message names "rank 1 ", or "ranks 0, 1 " if other ranks wait for the victim in a different call.
 * A rank that waits for a message of a rank that waits for the silent rank can only name the former. If a split opens
 * connections, this also holds for ranks outside the group.
 */
static bool names_victim(const fault *f) {
    char rank[32];
    const char *ranks = strstr(ls_error_message(), "ranks ");
    const bool apart = f->what == SPLIT && getenv("LOCKSTEP_TEST_BACKEND") != NULL;
    if ((f->what == STEP_RING || apart) && f->how == STOPPED) {
        return strstr(ls_error_message(), "rank") != NULL;
    }
    snprintf(rank, sizeof rank, "rank %d ", f->victim);
    if (strstr(ls_error_message(), rank) != NULL) {
        return true;
    }
    snprintf(rank, sizeof rank, "%d", f->victim);
    return (f->what == STEP_RING || f->what == SPLIT) && ranks != NULL && strstr(ranks, rank) != NULL;
}

/* All later calls fail at once in the same way. */
static const char *check_revoked(ls_comm *world, const fault *f, ls_status status) {
    char message[LS_ERROR_CAPACITY];
    step s = {0};
    ls_comm *half = NULL;
    float x = 0;
    const double start = ls_clock_seconds();
    snprintf(message, sizeof message, "%s", ls_error_message());
    LS_MUST(ls_comm_barrier(world, NULL) == status && strcmp(ls_error_message(), message) == 0);
    LS_MUST(make(world, f, &s, false) == status && strcmp(ls_error_message(), message) == 0);
    LS_MUST(ls_comm_alloc(world, 100) == NULL && ls_error_status() == status);
    LS_MUST(ls_comm_split(world, 0, 0, &half) == status && half == NULL);
    LS_MUST(ls_comm_send(world, &x, 1, LS_F32, 0, 0, NULL) == status);
    LS_MUST(ls_comm_recv(world, &x, 1, LS_F32, 0, 0, NULL) == status);
    LS_MUST(ls_clock_seconds() - start < AT_ONCE / 2);
    return NULL;
}

static const char *survive(ls_comm *world, const fault *f) {
    const bool message = f->what == STEP_RING;
    step s = {0};
    int number = WARM_UPS;
    double start = ls_clock_seconds();
    ls_status status = LS_OK;
    do {
        number++;
        start = ls_clock_seconds();
        status = make(world, f, &s, false);
    } while (f->when == MIDST && status == LS_OK);
    const bool barrier = status == LS_OK;
    if (!barrier) {
        note_slowest(f, start);
    }
    LS_MUST(f->when != BEFORE || !barrier || message);
    LS_MUST(f->when != AFTER || barrier || message);
    if (barrier || f->what == SPLIT) { /* a split can fail on some ranks and succeed on others, because only the new
                                          communicators notice */
        start = ls_clock_seconds();
        number += message ? 0 : 1;
        status = ls_comm_barrier(world, NULL);
    }
    LS_MUST(status == (f->how == STOPPED ? LS_ERR_TIMEOUT : LS_ERR_PEER));
    LS_MUST(names_victim(f));
    LS_MUST(names_call(f, barrier, number));
    note_slowest(f, start);
    return check_revoked(world, f, status);
}

static const char *fault_rank(ls_comm *world, int rank, const void *argument) {
    const fault *f = argument;
    LS_MUST(world != NULL);
    for (int i = 0; i < WARM_UPS; i++) {
        LS_MUST(ls_comm_barrier(world, NULL) == LS_OK);
    }
    return rank == f->victim ? suffer(world, f) : survive(world, f);
}

/* ---- many jobs at once ------------------------------------------------------------------------------------------- */

typedef struct job {
    ls_forks forks;
    fault f;
    bool running;
} job;

static job jobs[JOBS_MOST];
static int failures;

static void end_job(job *j) {
    bool good = true;
    for (int rank = 0; rank < j->f.size && j->running; rank++) {
        good = (rank == j->f.victim || ls_forks_wait(&j->forks, rank) == 0) && good;
    }
    if (j->running && j->f.how == STOPPED) {
        kill(j->forks.processes[j->f.victim], SIGCONT);
        good = (!good || ls_forks_wait(&j->forks, j->f.victim) == 0) && good;
    }
    if (j->running) {
        ls_forks_end(&j->forks);
    }
    if (!good) {
        failures++;
        print_error("%s of %s, %s: rank %d of %d %s\n", name_of(j->f.what), j->f.large ? "much" : "little",
                    moment_names[j->f.when], j->f.victim, j->f.size, way_names[j->f.how]);
    }
    j->running = false;
}

static void start_job(const fault *f, int turn, int at_once) {
    job *j = &jobs[turn % at_once];
    end_job(j);
    j->f = *f;
    j->f.job = turn % at_once;
    j->running = true;
    atomic_store(&board->ended[j->f.job], 0.0);
    ls_forks_start(&j->forks, f->size, 0, f->how == STOPPED ? SILENT : LONG_TIMEOUT, fault_rank, &j->f);
}

static bool is_possible(const fault *f) {
    const bool as_work = f->what < STEP_CALLS;
    return f->what != STEP_MESSAGE && (f->when != IN || as_work) && (f->when != MIDST || f->how != LEAVES);
}

/* Returns whether the case belongs to the sample: each call at each moment, with other parameters in turn. */
static bool is_chosen(const fault *f, int size_index) {
    const char *full = getenv("LOCKSTEP_TEST_FULL");
    const int turn = f->what + (int)f->when + (int)f->how;
    return (full != NULL && strcmp(full, "0") != 0) || (turn % 3 == size_index && turn / 3 % 2 == (f->large ? 1 : 0));
}

static int number_of(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    return text != NULL && atoi(text) > 0 ? atoi(text) : otherwise;
}

static void run_faults(way how) {
    static const int sizes[] = {2, 3, 5};
    const int at_once = how == STOPPED ? JOBS_MOST : 4;
    const int one_in = number_of("LOCKSTEP_TEST_ONE_IN", 1);
    const int from = number_of("LOCKSTEP_TEST_FROM", 0);
    int found = 0;
    int turn = 0;
    failures = 0;
    for (int what = 0; what < CALLS; what++) {
        for (int when = BEFORE; when < MOMENTS; when++) {
            for (int i = 0; i < 6; i++) {
                fault f = {.size = sizes[i / 2], .when = (moment)when, .how = how, .what = what, .large = i % 2 == 1};
                f.victim = (what + when) % f.size;
                if (is_possible(&f) && is_chosen(&f, i / 2) && found++ % one_in == from) {
                    start_job(&f, turn++, at_once);
                }
            }
        }
    }
    for (int i = 0; i < JOBS_MOST; i++) {
        end_job(&jobs[i]);
    }
    print_message("%s: %d jobs, the slowest error came after %.3f s%s\n", way_names[how], turn,
                  atomic_load(&board->slowest[how]), how == STOPPED ? " (of which 2.5 s are the timeout)" : "");
    assert_int_equal(failures, 0);
    assert_true(atomic_load(&board->slowest[how]) < AT_ONCE + (how == STOPPED ? SILENT : 0));
}

TEST(killed_ranks) {
    run_faults(KILLED);
}

TEST(crashed_ranks) {
    run_faults(CRASHES);
}

TEST(failed_ranks) {
    run_faults(FAILS);
}

TEST(exited_ranks) {
    run_faults(EXITS);
}

TEST(ranks_that_leave) {
    run_faults(LEAVES);
}

TEST(stopped_ranks) {
    run_faults(STOPPED);
}

static int make_board(void **state) {
    (void)state;
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board == MAP_FAILED ? -1 : 0;
}

/* Checks that no process of any job is left. */
static int look_for_processes(void **state) {
    (void)state;
    munmap(board, sizeof *board);
    return waitpid(-1, NULL, WNOHANG) == -1 ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_ranks), cmocka_unit_test(crashed_ranks),    cmocka_unit_test(failed_ranks),
        cmocka_unit_test(exited_ranks), cmocka_unit_test(ranks_that_leave), cmocka_unit_test(stopped_ranks),
    };
    return cmocka_run_group_tests(tests, make_board, look_for_processes);
}
