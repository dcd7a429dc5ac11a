/*
 * ls_init, ls_finalize and ls_spawn between real processes, for each kind of rendezvous.
 *
 * devices: cpu
 */
#include "tests/support/files.h"
#include "tests/support/unit.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/store_socket.h"
#include "tests/support/processes.h"
#include "tests/support/unauthenticated.h"

#include <lockstep/comm.h>

static char folder[] = "/tmp/lockstep-init-XXXXXX";

typedef struct plan {
    ls_init_options options;
    int listener; /* for env://, passed to rank 0 as a launcher does; -1 if there is none */
    int port;
} plan;

/* ---- ls_init ----------------------------------------------------------------------------------------------------- */

static const char *work(ls_comm *world, int rank, int size) {
    LS_MUST(world != NULL);
    LS_MUST(ls_world() == world);
    LS_MUST(ls_comm_rank(world) == rank && ls_comm_size(world) == size);
    LS_MUST(ls_comm_local_rank(world) == rank && ls_comm_local_size(world) == size);
    LS_MUST(strcmp(ls_comm_backend(world), size > 1 ? "shm" : "self") == 0);
    float value = (float)(rank + 1);
    LS_MUST(ls_comm_allreduce(world, &value, &value, 1, LS_F32, LS_SUM, NULL) == LS_OK);
    LS_MUST(value == (float)(size * (size + 1) / 2));
    LS_MUST(ls_init(NULL) == NULL && failed_with(LS_ERR_STATE, "ls_init: this thread is already rank "));
    LS_MUST(ls_finalize() == LS_OK);
    LS_MUST(ls_world() == NULL);
    LS_MUST(ls_finalize() == LS_OK);
    return NULL;
}

static const char *init_by_options(int rank, const void *what) {
    const plan *p = what;
    ls_init_options options = p->options;
    options.rank = rank;
    const int descriptors = test_descriptors_count();
    (void)ls_error_set(LS_ERR_STOPPED, "of before");
    ls_comm *world = ls_init(&options);
    LS_MUST(world != NULL && failed_with(LS_ERR_STOPPED, "of before")); /* waiting for other ranks is not a failure */
    const char *failure = work(world, rank, options.world_size);
    LS_MUST(failure != NULL || test_descriptors_count() == descriptors);
    return failure;
}

/* Started as `program <&-`, so the first opened descriptor is 0. */
static const char *init_without_input(int rank, const void *what) {
    close(STDIN_FILENO);
    return init_by_options(rank, what);
}

static void set_number(const char *name, int number) {
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static const char *init_by_environment(int rank, const void *what) {
    const plan *p = what;
    set_number("RANK", rank);
    set_number("WORLD_SIZE", p->options.world_size);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", p->port);
    if (p->listener >= 0 && rank == 0) {
        set_number("LOCKSTEP_STORE_FD", p->listener);
    } else if (p->listener >= 0) {
        close(p->listener);
    }
    return work(ls_init(NULL), rank, p->options.world_size);
}

TEST(test_alone) {
    plan p = {.options = {.world_size = 1}, .listener = -1, .port = 1};
    processes_run(1, init_by_options, &p, 0);
    processes_run(1, init_by_environment, &p, 0);
}

static void keep_line(ls_log_level level, int rank, const char *line, void *user) {
    (void)level;
    (void)rank;
    snprintf(user, 256, "%s", line);
}

/* Values that OpenMP would silently ignore. */
static const char *init_with_threads(int number, const void *what) {
    const char *const *texts = what;
    char line[256] = "";
    LS_MUST(setenv("OMP_NUM_THREADS", texts[number], 1) == 0);
    ls_log_set_sink(keep_line, line);
    LS_MUST(ls_init(&(ls_init_options){.world_size = 1}) != NULL);
    const bool told = strstr(line, "is not a number of threads, and is ignored") != NULL;
    LS_MUST(told == (number % 2 == 1));
    return ls_finalize() == LS_OK ? NULL : "cannot leave";
}

TEST(test_numbers_of_threads) {
    static const char *const texts[] = {"2", "abc", "4,2", "0", " 3 ", "2;3", "", "99999999999"};
    processes_run(sizeof texts / sizeof *texts, init_with_threads, texts, 0);
}

static void *free_world(void *world) {
    ls_comm_free(world);
    return NULL;
}

static const char *free_on_another_thread(int rank, const void *what) {
    (void)rank;
    (void)what;
    pthread_t other;
    for (int round = 0; round < 2; round++) {
        ls_comm *world = ls_init(&(ls_init_options){.world_size = 1});
        LS_MUST(world != NULL);
        LS_MUST(pthread_create(&other, NULL, free_world, world) == 0);
        LS_MUST(pthread_join(other, NULL) == 0);
    }
    LS_MUST(ls_world() == NULL);
    LS_MUST(ls_finalize() == LS_OK);
    return NULL;
}

TEST(test_another_thread_frees) {
    processes_run(1, free_on_another_thread, NULL, 0);
}

TEST(test_tcp) {
    for (int size = 2; size <= 4; size++) {
        char url[64];
        snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
        const plan p = {.options = {.init = url, .world_size = size, .timeout = 30}};
        processes_run(size, init_by_options, &p, 0);
        processes_run(size, init_without_input, &p, 0);
    }
}

TEST(test_meeting_in_a_folder) {
    for (int size = 2; size <= 4; size++) {
        char url[128];
        snprintf(url, sizeof url, "file://%s/meet", folder);
        const plan p = {.options = {.init = url, .world_size = size, .timeout = 30, .key = "key"}};
        processes_run(size, init_by_options, &p, 0);
        processes_run(size, init_without_input, &p, 0);
        assert_int_equal(test_folder_count(folder), 0);
    }
}

TEST(test_environment) {
    for (int inherited = 0; inherited < 2; inherited++) {
        plan p = {.options = {.world_size = 3}};
        p.port = free_port();
        p.listener = -1;
        if (inherited) {
            const ls_address at = {.host = "127.0.0.1", .port = p.port};
            assert_int_equal(ls_socket_listen(&at, false, &p.listener), LS_OK);
        }
        processes_run(3, init_by_environment, &p, 0);
        if (inherited) {
            close(p.listener);
        }
    }
}

TEST(test_refused) {
    char absent[64];
    snprintf(absent, sizeof absent, "file://%s/absent", folder);
    const struct {
        ls_init_options options;
        ls_status status;
        const char *says;
    } rows[] = {
        {{.world_size = 1, .backend = "carrier pigeon"}, LS_ERR_ARGUMENT, "carrier pigeon"},
        {{.world_size = 2, .rank = 2}, LS_ERR_ARGUMENT, "ls_init: rank is 2"},
        {{.init = "udp://10.0.0.1:7"}, LS_ERR_ARGUMENT, "init is \"udp://10.0.0.1:7\", but must be env://, tcp://"},
        {{.init = ""}, LS_ERR_ARGUMENT, "init is \"\", but must be env://"},
        {{.init = "tcp://10.0.0.1:7", .world_size = 2, .rank = 1}, LS_ERR_DENIED, "set LOCKSTEP_KEY"},
        {{.init = "tcp://127.0.0.1:0", .world_size = 2, .timeout = 60},
         LS_ERR_ARGUMENT,
         "port must be from 1 to 65535"},
        {{.init = "tcp://127.0.0.1:0", .world_size = 2, .rank = 1, .timeout = 60},
         LS_ERR_ARGUMENT,
         "port must be from 1 to 65535"},
        {{.init = "tcp://127.0.0.1:1", .world_size = 2, .rank = 1, .timeout = 0.1},
         LS_ERR_TIMEOUT,
         "did not answer within 0.1 s (cannot connect to 127.0.0.1:1"},
        {{.init = "file:///dev/null/x", .world_size = 2, .rank = 0}, LS_ERR_IO, "/dev/null/x"},
        {{.init = absent, .world_size = 2, .rank = 1, .timeout = 0.1}, LS_ERR_TIMEOUT, "/absent within"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (ls_init(&rows[i].options) != NULL || !failed_with(rows[i].status, rows[i].says)) {
            fail_msg("row %zu: %s: %s", i, ls_status_name(ls_error_status()), ls_error_message());
        }
        assert_null(ls_world());
    }
}

/* Rank 1 never waits for two receives, and rank 0 never waits for a send, which needs no warning. */
static const char *forget_work(int rank, const void *what) {
    const plan *p = what;
    ls_init_options options = p->options;
    options.rank = rank;
    float number = 0;
    char line[256] = "";
    ls_work *work[2] = {NULL};
    ls_comm *world = ls_init(&options);
    LS_MUST(world != NULL);
    if (rank == 1) {
        LS_MUST(ls_comm_recv(world, &number, 1, LS_F32, 0, 3, &work[0]) == LS_OK);
        LS_MUST(ls_comm_recv(world, &number, 1, LS_F32, 0, 5, &work[1]) == LS_OK);
    } else {
        LS_MUST(ls_comm_send(world, &number, 1, LS_F32, 1, 4, &work[0]) == LS_OK);
    }
    LS_MUST(ls_comm_barrier(world, NULL) == LS_OK);
    ls_log_set_sink(keep_line, line);
    LS_MUST(ls_finalize() == LS_OK);
    ls_log_set_sink(NULL, NULL);
    LS_MUST(rank == 1 ? strstr(line, "ls_finalize: ls_comm_recv #1 (and 1 more) has not finished") != NULL
                      : strcmp(line, "") == 0);
    (void)!ls_work_wait(work[0]);
    (void)!ls_work_wait(work[1]);
    return NULL;
}

TEST(test_forgotten_work) {
    char url[128];
    snprintf(url, sizeof url, "file://%s/meet", folder);
    plan p = {.options = {.init = url, .world_size = 2, .timeout = 30}};
    processes_run(2, forget_work, &p, 0);
}

static const char *die_after_init(int rank, const void *what) {
    const plan *p = what;
    ls_init_options options = p->options;
    options.rank = rank;
    ls_comm *world = ls_init(&options);
    LS_MUST(world != NULL);
    if (rank == 1) {
        kill(getpid(), SIGKILL);
    }
    LS_MUST(ls_finalize() == LS_ERR_PEER);
    LS_MUST(failed_with(LS_ERR_PEER, "ls_finalize: rank 1 of 3"));
    LS_MUST(ls_world() == NULL);
    return NULL;
}

TEST(test_death_before_finalize) {
    char url[128];
    snprintf(url, sizeof url, "file://%s/meet", folder);
    const plan p = {.options = {.init = url, .world_size = 3, .timeout = 30}};
    processes_run(3, die_after_init, &p, 1U << 1);
}

/* A process forked by a rank has no world to leave, and does not affect the other ranks or the store. */
static const char *fork_and_go_on(int rank, const void *what) {
    const plan *p = what;
    ls_init_options options = p->options;
    options.rank = rank;
    ls_comm *world = ls_init(&options);
    LS_MUST(world != NULL);
    const pid_t child = fork();
    if (child == 0) {
        const bool right = ls_comm_barrier(world, NULL) == LS_ERR_STATE && ls_world() == NULL && ls_finalize() == LS_OK;
        _exit(right ? 0 : 1);
    }
    int ended = -1;
    LS_MUST(waitpid(child, &ended, 0) == child && ended == 0);
    return work(world, rank, 3);
}

TEST(test_forks_leave_nothing) {
    char url[128];
    snprintf(url, sizeof url, "file://%s/meet", folder);
    plan p = {.options = {.init = url, .world_size = 3, .timeout = 30}};
    processes_run(3, fork_and_go_on, &p, 0);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    processes_run(3, fork_and_go_on, &p, 0);
}

static const char *disagree_about_backend(int rank, const void *what) {
    const plan *p = what;
    ls_init_options options = p->options;
    options.rank = rank;
    options.backend = rank == 1 ? "gloo" : rank == 2 ? "shm" : NULL; /* the choices match no common backend */
    LS_MUST(ls_init(&options) == NULL);
    LS_MUST(
        failed_with(LS_ERR_MISMATCH, "rank 0 selects backend \"shm\", but rank 1 selects \"gloo\": select the same"));
    return NULL;
}

TEST(test_backends_differ) {
    char url[128];
    snprintf(url, sizeof url, "file://%s/meet", folder);
    plan p = {.options = {.init = url, .world_size = 3, .timeout = 10}};
    processes_run(3, disagree_about_backend, &p, 0);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    processes_run(3, disagree_about_backend, &p, 0);
}

/* One rank lacks the network interface, while the others wait for it. */
static const char *fail_after_meeting(int rank, const void *what) {
    const plan *p = what;
    ls_init_options options = p->options;
    options.rank = rank;
    if (rank == p->port) {
        setenv("LOCKSTEP_INTERFACE", "none-such", 1);
    }
    LS_MUST(ls_init(&options) == NULL);
    LS_MUST(rank == p->port ? failed_with(LS_ERR_ARGUMENT, "LOCKSTEP_INTERFACE: 'none-such'")
            : p->port == 0  ? failed_with(LS_ERR_PEER, "rank 0")
                            : failed_with(LS_ERR_PEER, "rank 1 of 3 (process "));
    return NULL;
}

TEST(test_one_fails_after_meeting) {
    char url[128];
    snprintf(url, sizeof url, "file://%s/meet", folder);
    plan p = {.options = {.init = url, .world_size = 2, .timeout = 10},
              .port = 0}; /* port is the number of the rank that fails */
    processes_run(2, fail_after_meeting, &p, 0);
    p = (plan){.options = {.init = url, .world_size = 3, .timeout = 10}, .port = 1};
    processes_run(3, fail_after_meeting, &p, 0);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", free_port());
    processes_run(3, fail_after_meeting, &p, 0);
}

/* ---- ls_spawn ---------------------------------------------------------------------------------------------------- */

/* The thread sanitizer's runtime starts its own thread, so ls_spawn rightly refuses. */
#if defined(__SANITIZE_THREAD__)
#define SKIP_WITH_THREADS() skip()
#else
#define SKIP_WITH_THREADS()                                                                                            \
    do {                                                                                                               \
    } while (0)
#endif

/* Each test of ls_spawn runs in a forked process. So the test program stays single-threaded, and the forked process can
 * check that no child processes and file descriptors are left. */
typedef struct order {
    int ranks;
    const char *deed; /* rank 1's action */
} order;

static ls_status obey(ls_comm *world, void *argument) {
    const order *o = argument;
    int64_t ranks = ls_comm_rank(world);
    if (ls_comm_size(world) != o->ranks || ls_world() != world) {
        return ls_error_set(LS_ERR_INTERNAL, "not the world it should be");
    }
    const ls_status status = ls_comm_allreduce(world, &ranks, &ranks, 1, LS_I64, LS_SUM, NULL);
    if (status != LS_OK || ranks != (int64_t)o->ranks * (o->ranks - 1) / 2) {
        return status != LS_OK ? status : LS_ERR_INTERNAL;
    }
    if (ls_comm_rank(world) != 1) {
        return strcmp(o->deed, "well") == 0 ? LS_OK : ls_comm_barrier(world, NULL);
    }
    if (strcmp(o->deed, "fail") == 0) {
        return ls_error_set(LS_ERR_FORMAT, "the file of rank %d is no file", ls_comm_rank(world));
    }
    if (strcmp(o->deed, "silent") == 0) {
        return LS_ERR_STOPPED;
    }
    if (strcmp(o->deed, "kill") == 0) {
        kill(getpid(), SIGKILL);
    }
    if (strcmp(o->deed, "exit") == 0) {
        _exit(3);
    }
    return LS_OK;
}

static const char *spawn(int number, const void *what) {
    (void)number;
    order o = *(const order *)what;
    const int descriptors = test_descriptors_count();
    (void)ls_error_set(LS_ERR_STOPPED, "of before"); /* the ranks inherit this error */
    const ls_status status = ls_spawn(o.ranks, obey, &o);
    LS_MUST(waitpid(-1, NULL, WNOHANG) < 0); /* no child is left */
    LS_MUST(test_descriptors_count() == descriptors);
    if (strcmp(o.deed, "well") == 0) {
        LS_MUST(status == LS_OK);
    } else if (strcmp(o.deed, "fail") == 0) {
        LS_MUST(status == LS_ERR_FORMAT);
        LS_MUST(failed_with(LS_ERR_FORMAT, "ls_spawn: rank 1 of 3: the file of rank 1 is no file"));
    } else if (strcmp(o.deed, "silent") == 0) {
        LS_MUST(status == LS_ERR_STOPPED && failed_with(LS_ERR_STOPPED, "rank 1 of 3: its function returned"));
    } else if (strcmp(o.deed, "kill") == 0) {
        LS_MUST(status == LS_ERR_PEER && failed_with(LS_ERR_PEER, "ls_spawn: rank 1 of 3: process "));
        LS_MUST(failed_with(LS_ERR_PEER, "was killed by signal 9 (Killed)"));
    } else {
        LS_MUST(status == LS_ERR_PEER && failed_with(LS_ERR_PEER, "exited with status 3"));
    }
    return NULL;
}

static const char *spawn_without_input(int number, const void *what) {
    close(STDIN_FILENO);
    return spawn(number, what);
}

TEST(test_spawn) {
    SKIP_WITH_THREADS();
    static const order orders[] = {{1, "well"}, {2, "well"},   {4, "well"}, {3, "fail"},
                                   {3, "kill"}, {3, "silent"}, {3, "exit"}};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        processes_run(1, spawn, &orders[i], 0);
        processes_run(1, spawn_without_input, &orders[i], 0);
    }
}

static void *wait_for_end(void *argument) {
    char byte;
    return read(*(int *)argument, &byte, 1) == 0 ? argument : NULL;
}

static const char *spawn_wrongly(int number, const void *what) {
    (void)number;
    order o = {.ranks = 1, .deed = "well"};
    int ends[2];
    pthread_t thread;
    LS_MUST(what == NULL && pipe(ends) == 0);
    LS_MUST(ls_spawn(0, obey, &o) == LS_ERR_ARGUMENT && failed_with(LS_ERR_ARGUMENT, "ranks is 0"));
    LS_MUST(ls_spawn(1, NULL, &o) == LS_ERR_ARGUMENT && failed_with(LS_ERR_ARGUMENT, "NULL"));
    LS_MUST(pthread_create(&thread, NULL, wait_for_end, &ends[0]) == 0);
    LS_MUST(ls_spawn(1, obey, &o) == LS_ERR_STATE && failed_with(LS_ERR_STATE, "has 2 threads"));
    close(ends[1]);
    pthread_join(thread, NULL);
    LS_MUST(ls_init(NULL) != NULL);
    LS_MUST(ls_spawn(1, obey, &o) == LS_ERR_STATE && failed_with(LS_ERR_STATE, "already"));
    LS_MUST(ls_finalize() == LS_OK);
    return NULL;
}

TEST(test_spawn_refused) {
    SKIP_WITH_THREADS();
    processes_run(1, spawn_wrongly, NULL, 0);
}

static ls_status sleep_on(ls_comm *world, void *argument) {
    const int *ends = argument;
    const ls_status status = ls_comm_barrier(world, NULL);
    if (status == LS_OK && ls_comm_rank(world) == 0 && write(ends[1], "x", 1) != 1) {
        return LS_ERR_IO;
    }
    close(ends[0]);
    pause(); /* holding ends[1] open */
    return status;
}

static const char *be_orphaned(int number, const void *what) {
    (void)number;
    int ends[2];
    memcpy(ends, what, sizeof ends);
    LS_MUST(ls_spawn(2, sleep_on, ends) == LS_OK);
    return NULL;
}

/* When the process that spawned ranks is killed, they exit, too: the pipe that they hold is closed. */
TEST(test_no_orphans) {
    SKIP_WITH_THREADS();
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    const pid_t parent = process_start(be_orphaned, 0, ends);
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    kill(parent, SIGKILL);
    assert_int_equal(process_wait(parent), -SIGKILL);
    assert_int_equal(read(ends[0], &byte, 1), 0);
    close(ends[0]);
}

static int set_up(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int tear_down(void **state) {
    (void)state;
    return rmdir(folder); /* fails if a job left something behind */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_numbers_of_threads),
        cmocka_unit_test(test_another_thread_frees),
        cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_meeting_in_a_folder),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_forgotten_work),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_death_before_finalize),
        cmocka_unit_test(test_forks_leave_nothing),
        cmocka_unit_test(test_backends_differ),
        cmocka_unit_test(test_one_fails_after_meeting),
        cmocka_unit_test(test_spawn),
        cmocka_unit_test(test_spawn_refused),
        cmocka_unit_test(test_no_orphans),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
