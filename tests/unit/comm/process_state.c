/*
 * ls_init and ls_finalize do not change the state of the process, and the library's thread team has the rank's share of
 * the cores. Under mpirun, the program is one rank (shell/mpi_programs.sh).
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <unistd.h>

#include <lockstep/autograd.h>
#include <lockstep/comm.h>
#include <lockstep/convolution.h>

#include "tensor/device/cpu/libraries.h"
#include "tests/support/processes.h"
#include "tests/support/unauthenticated.h"

enum { RANKS = 2, SIGNALS = 64 };

typedef struct process_state {
    char *variables; /* one per line */
    size_t buffer;   /* of standard output */
    int line_buffered;
    int threads; /* omp_get_max_threads() of this thread; 0 without OpenMP */
    struct sigaction action[SIGNALS + 1];
    sigset_t blocked;
} process_state;

static int (*max_threads)(void);

/* MPI_Init changes MPI's own variables. */
static bool is_of_mpi(const char *variable) {
    static const char *const prefixes[] = {"OMPI_", "PMIX_",  "OPAL_", "PMI_", "MPIR_", "HWLOC_",
                                           "UCX_",  "IPATH_", "PSM2_", "HFI_", "MV2_",  "MPICH_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0) {
            return true;
        }
    }
    return false;
}

static char *list_variables(void) {
    char *text = NULL;
    size_t size = 0;
    FILE *list = open_memstream(&text, &size);
    for (char **variable = environ; list != NULL && *variable != NULL; variable++) {
        if (!is_of_mpi(*variable)) {
            fprintf(list, "%s\n", *variable);
        }
    }
    return list != NULL && fclose(list) == 0 ? text : NULL;
}

static process_state read_state(void) {
    process_state state = {.variables = list_variables(),
                           .buffer = __fbufsize(stdout),
                           .line_buffered = __flbf(stdout),
                           .threads = max_threads != NULL ? max_threads() : 0};
    for (int number = 1; number <= SIGNALS; number++) {
        (void)sigaction(number, NULL, &state.action[number]);
    }
    (void)pthread_sigmask(SIG_SETMASK, NULL, &state.blocked);
    return state;
}

/* Returns the error of a failed part of a body. */
#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        const char *failure = call;                                                                                    \
        if (failure != NULL) {                                                                                         \
            return failure;                                                                                            \
        }                                                                                                              \
    } while (0)

static const char *compare(const process_state *before, bool by_mpi) {
    const process_state now = read_state();
    LS_MUST(before->variables != NULL && now.variables != NULL && strcmp(now.variables, before->variables) == 0);
    LS_MUST(now.buffer == before->buffer || (by_mpi && now.buffer == 1)); /* MPICH removes the buffer */
    LS_MUST((now.line_buffered != 0) == (before->line_buffered != 0));
    LS_MUST(now.threads == before->threads);
    for (int number = 1; number <= SIGNALS && !by_mpi; number++) { /* MPI_Init installs handlers */
        LS_MUST(now.action[number].sa_handler == before->action[number].sa_handler);
        LS_MUST(now.action[number].sa_flags == before->action[number].sa_flags);
    }
    LS_MUST(by_mpi || memcmp(&now.blocked, &before->blocked, sizeof now.blocked) == 0);
    free(now.variables);
    return NULL;
}

/* Computes an f32 and an f64 product, a bf16 product, a convolution and a loop, to use every library and Lockstep's
 * own thread team. */
static const char *compute(void) {
    ls_scope *scope = ls_scope_begin();
    (void)ls_matmul(ls_randn(LS_SHAPE(256, 512), LS_F32), ls_randn(LS_SHAPE(512, 256), LS_F32));
    (void)ls_matmul(ls_randn(LS_SHAPE(256, 512), LS_F64), ls_randn(LS_SHAPE(512, 256), LS_F64));
    (void)ls_conv(ls_randn(LS_SHAPE(8, 16, 28, 28), LS_F32), ls_randn(LS_SHAPE(32, 16, 3, 3), LS_F32), NULL, NULL);
    (void)ls_exp(ls_randn(LS_SHAPE(1 << 20), LS_F32));
    (void)ls_autocast(LS_BF16);
    (void)ls_matmul(ls_randn(LS_SHAPE(256, 512), LS_F32), ls_randn(LS_SHAPE(512, 256), LS_F32));
    LS_MUST(ls_scope_end(scope) == LS_OK);
    return NULL;
}

/* Without the OpenMP library, the thread counts before and after are 0. */
static void open_openmp(void) {
    void *library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library != NULL) {
        *(void **)&max_threads = dlsym(library, "omp_get_max_threads");
    }
}

static int count_threads(void) {
    int count = 0;
    DIR *list = opendir("/proc/self/task");
    for (const struct dirent *item = list != NULL ? readdir(list) : NULL; item != NULL; item = readdir(list)) {
        count += item->d_name[0] != '.';
    }
    return list != NULL && closedir(list) == 0 ? count : 0;
}

/* Joins the job, computes and leaves the job. */
static const char *visit_job(int threads, bool by_mpi) {
    open_openmp();
    ls_log_set_level(LS_LOG_ERROR);
    const process_state before = read_state();
    ls_comm *world = ls_init(NULL);
    LS_MUST(world != NULL && ls_comm_size(world) == RANKS);
    CHECK(compare(&before, by_mpi));
    const int started = count_threads();
    CHECK(compute());
    LS_MUST(count_threads() - started < threads); /* the team consists of this thread and its helpers */
    const ls_onednn *onednn = ls_onednn_opened();
    LS_MUST(onednn == NULL || onednn->team() == threads);
    CHECK(compare(&before, by_mpi));
    LS_MUST(ls_finalize() == LS_OK);
    CHECK(compare(&before, by_mpi));
    free(before.variables);
    return NULL;
}

static int count_cores(void) {
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

static int share_of_cores(void) {
    return count_cores() / RANKS > 1 ? count_cores() / RANKS : 1;
}

typedef struct plan {
    int port;
    const char *threads; /* OMP_NUM_THREADS; NULL: unset */
    bool launched;
} plan;

/* A rank that is started by hand: RANK and similar variables are set, and standard output is a pipe. */
static const char *be_rank(int rank, const void *what) {
    const plan *p = what;
    char number[16];
    int ends[2];
    LS_MUST(pipe(ends) == 0 && dup2(ends[1], STDOUT_FILENO) == STDOUT_FILENO);
    snprintf(number, sizeof number, "%d", p->port);
    LS_MUST(setenv("MASTER_PORT", number, 1) == 0 && setenv("MASTER_ADDR", "127.0.0.1", 1) == 0);
    LS_MUST(setenv("RANK", rank == 0 ? "0" : "1", 1) == 0 && setenv("WORLD_SIZE", "2", 1) == 0);
    LS_MUST((p->threads != NULL ? setenv("OMP_NUM_THREADS", p->threads, 1) : unsetenv("OMP_NUM_THREADS")) == 0);
    LS_MUST((p->launched ? setenv("LOCKSTEP_LAUNCH", "x", 1) : unsetenv("LOCKSTEP_LAUNCH")) == 0);
    if (!p->launched) {
        return visit_job(p->threads != NULL ? (int)strtol(p->threads, NULL, 10) : share_of_cores(), false);
    }
    LS_MUST(!__flbf(stdout) && ls_init(NULL) != NULL && __flbf(stdout));
    LS_MUST(ls_finalize() == LS_OK);
    return NULL;
}

TEST(test_ranks_started_by_hand) {
    processes_run(RANKS, be_rank, &(plan){.port = free_port()}, 0);
}

TEST(test_numbers_of_the_user_win) {
    processes_run(RANKS, be_rank, &(plan){.port = free_port(), .threads = "3"}, 0);
}

TEST(test_the_launcher_asks_for_lines) {
    processes_run(RANKS, be_rank, &(plan){.port = free_port(), .launched = true}, 0);
}

/* A single process has all cores. A thread count set by the program takes precedence. */
static const char *be_alone(int number, const void *what) {
    (void)number;
    (void)what;
    LS_MUST(unsetenv("OMP_NUM_THREADS") == 0);
    LS_MUST(ls_init(&(ls_init_options){.world_size = 1}) != NULL);
    const ls_onednn *onednn = ls_onednn_open();
    LS_MUST(onednn == NULL || onednn->team() == count_cores());
    const int before = onednn != NULL ? onednn->set_threads(1) : 1;
    LS_MUST(onednn == NULL || (onednn->team() == 1 && onednn->set_threads(before) == 1));
    LS_MUST(ls_finalize() == LS_OK);
    return NULL;
}

TEST(test_a_process_alone_has_all_cores) {
    processes_run(1, be_alone, NULL, 0);
}

int main(void) {
    if (getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMI_SIZE") != NULL) {
        const char *failure = visit_job(share_of_cores(), true);
        (void)fprintf(stderr, "%s", failure != NULL ? failure : "");
        return failure != NULL;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_started_by_hand), cmocka_unit_test(test_numbers_of_the_user_win),
        cmocka_unit_test(test_the_launcher_asks_for_lines), cmocka_unit_test(test_a_process_alone_has_all_cores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
