/*
 * Ranks that exit, or send a different message, while other ranks wait for them. Each rank prints the result of its
 * call and of ls_finalize. Runs under every launcher; ending.sh has the expected results.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "comm/waiting.h"

enum { LARGE = 4000000 };

static float numbers[LARGE];
static ls_comm *world;
static int rank, size;

static int tell(const char *what, ls_status status) {
    printf("%d: %s%s: %s\n", rank, what, ls_status_name(status), status == LS_OK ? "" : ls_error_message());
    fflush(stdout);
    return 0;
}

static void pass_time(int milliseconds) {
    usleep((useconds_t)milliseconds * 1000);
}

static ls_status meet(int times) {
    ls_status status = LS_OK;
    for (int i = 0; i < times && status == LS_OK; i++) {
        status = ls_comm_barrier(world, NULL);
    }
    return status;
}

static ls_status send(int to, int tag, size_t count) {
    return ls_comm_send(world, numbers, count, LS_F32, to, tag, NULL);
}

static ls_status receive(int from, int tag, size_t count) {
    return ls_comm_recv(world, numbers, count, LS_F32, from, tag, NULL);
}

/* ---- the calls of the waiting ranks ------------------------------------------------------------------------------ */

static ls_status wait_in_allreduce(void) {
    return ls_comm_allreduce(world, numbers, numbers, 1, LS_F32, LS_SUM, NULL);
}

static ls_status wait_in_large_allreduce(void) {
    return ls_comm_allreduce(world, numbers, numbers, LARGE, LS_F32, LS_SUM, NULL);
}

static ls_status wait_in_barrier(void) {
    return ls_comm_barrier(world, NULL);
}

static ls_status wait_in_broadcast(void) {
    return ls_comm_broadcast(world, numbers, LARGE, LS_F32, 1, NULL);
}

static ls_status wait_in_receive(void) {
    return receive(1, 5, 2);
}

static ls_status wait_in_send(void) {
    return send(1, 5, LARGE);
}

static ls_status wait_in_scope(void) {
    ls_scope *scope = ls_scope_begin();
    (void)ls_irecv(world, LS_SHAPE(2), LS_F32, 1, 9);
    return ls_scope_end(scope);
}

static ls_comm *part;

static ls_status wait_in_part(void) {
    return ls_comm_allreduce(part, numbers, numbers, 1, LS_F32, LS_SUM, NULL);
}

typedef struct scenario {
    const char *name;
    ls_status (*wait)(void);
} scenario;

static const scenario scenarios[] = {
    {"allreduce", wait_in_allreduce}, {"large", wait_in_large_allreduce},
    {"barrier", wait_in_barrier},     {"broadcast", wait_in_broadcast},
    {"recv", wait_in_receive},        {"send", wait_in_send},
    {"scope", wait_in_scope},         {"part", wait_in_part},
};

static const scenario *find(const char *name) {
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        if (strcmp(name, scenarios[i].name) == 0) {
            return &scenarios[i];
        }
    }
    return NULL;
}

/* ---- the actions of rank 1 --------------------------------------------------------------------------------------- */

/* finalize or exit CALL: rank 1 exits after seven barriers, while the others wait for it. */
static int end_early(const char *how, const char *call) {
    const scenario *s = find(call);
    ls_status status = meet(7);
    status = status == LS_OK ? ls_comm_split(world, 0, -rank, &part) : status;
    if (s == NULL || status != LS_OK) {
        return tell("prepare ", status) + 9;
    }
    if (rank == 1 && strcmp(how, "exit") == 0) {
        exit(0);
    }
    if (rank != 1) {
        tell("", s->wait());
    }
    const ls_status end = ls_finalize();
    tell("finalize ", end);
    ls_comm_free(part);
    pass_time(end == LS_OK ? 0 : 500); /* if one rank fails, mpirun kills all ranks and drops their output */
    return 0;
}

/* Rank 1 has sent messages to all ranks before it calls ls_finalize. They receive the messages late. */
static int eager(void) {
    ls_status status = LS_OK;
    for (int i = 0; i < 3 && rank == 1; i++) {
        for (int to = 0; to < size; to++) {
            status = to == 1 || status != LS_OK ? status : send(to, i, 8);
        }
    }
    if (rank != 1) {
        pass_time(200);
        for (int i = 2; i >= 0 && status == LS_OK; i--) {
            status = receive(1, i, 8);
        }
    }
    tell("", status);
    return tell("finalize ", ls_finalize());
}

/* Ranks signal each other through files in a common folder, because a call would disturb the test. */
static void say(const char *file) {
    (void)close(creat(file, 0600));
}

static void hear(const char *file) {
    while (access(file, F_OK) != 0) {
        pass_time(10);
    }
}

/*
 * Rank 1 calls ls_finalize while its large message on a split communicator is in flight, and then overwrites the
 * buffer. If `late` is set, rank 0 receives the message only after rank 1's ls_finalize has failed, and after rank 1
 * has overwritten the buffer.
 */
static int sending(bool late) {
    ls_work *work = NULL;
    ls_status status = ls_comm_split(world, 0, 0, &part);
    if (rank == 1 && status == LS_OK) {
        numbers[0] = numbers[LARGE - 1] = 1;
        status = ls_comm_send(part, numbers, LARGE, LS_F32, 0, 0, &work);
    } else if (rank == 0 && status == LS_OK) {
        if (late) {
            hear("overwritten");
        } else {
            pass_time(300);
        }
        status = ls_comm_recv(part, numbers, LARGE, LS_F32, 1, 0, NULL);
    }
    tell("", status);
    (void)!ls_finalize();
    if (rank == 1) {
        status = ls_work_wait(work); /* the wait fails, and releases the buffer */
        numbers[0] = numbers[LARGE - 1] = 2;
        say("overwritten");
        pass_time(500);
    } else if (rank == 0 && status == LS_OK && (numbers[0] != 1 || numbers[LARGE - 1] != 1)) {
        return tell("wrong data ", LS_OK);
    }
    ls_comm_free(part);
    return 0;
}

/* Rank 1 is in ls_finalize while the other ranks communicate. */
static int others_go_on(void) {
    ls_status status = LS_OK;
    for (int i = 0; i < 20 && rank != 1 && size == 3 && status == LS_OK; i++) {
        pass_time(10);
        status = rank == 0 ? send(2, 0, 8) : receive(0, 0, 8);
    }
    tell("", status);
    return tell("finalize ", ls_finalize());
}

/* Rank 1 sends a message that rank 0 does not receive. No rank makes another call, or exits, before both know this. */
static int wrong_tag(size_t count) {
    ls_status status = meet(1);
    ls_work *work[2] = {NULL, NULL};
    if (rank == 1) {
        for (int i = 0; i < 2 && status == LS_OK; i++) {
            status = ls_comm_send(world, numbers, count, LS_F32, 0, 4 + 3 * i, &work[i]);
        }
        say("sent");
        for (int i = 0; i < 2; i++) {
            const ls_status end = ls_work_wait(work[i]);
            status = status == LS_OK ? end : status;
        }
    } else if (rank == 0) {
        hear("sent");
        status = receive(1, 5, count);
    }
    if (status != LS_OK) {
        tell("", status);
    }
    if (rank == 0) {
        say("given_up");
    }
    hear("given_up");
    pass_time(rank == 0 ? 0 : 300);
    return 0;
}

/* Records the log's report of a wait. */
static void note_wait(ls_log_level level, int from, const char *line, void *user) {
    (void)level, (void)user;
    fprintf(stderr, "%d logs: %s\n", from, line);
    if (strstr(line, " has waited ") != NULL) {
        say("told");
    }
}

/* Rank 1 makes the call after rank 0 has logged that it is waiting. */
static int late(const char *call) {
    const scenario *s = find(call);
    ls_status status = meet(2);
    if (rank == 0) {
        ls_comm_tell_after_ns = 50000000;
        ls_log_set_sink(note_wait, NULL);
    } else if (rank == 1) {
        hear("told");
    }
    if (status == LS_OK && strcmp(call, "recv") == 0 && rank == 1) {
        for (int to = 0; to < size; to++) {
            status = to == 1 || status != LS_OK ? status : send(to, 5, 2);
        }
    } else if (status == LS_OK) {
        status = s->wait();
    }
    tell("", status);
    return tell("finalize ", ls_finalize());
}

/* Every rank prints a line, and rank 1 is killed. Buffered output would be lost. */
static int killed(void) {
    printf("rank %d was here\n", rank);
    if (rank == 1) {
        (void)raise(SIGKILL);
    }
    return ls_finalize() == LS_OK ? 0 : 1;
}

/*
 * Rank 1 makes an invalid call and prints nothing. Before this, a child inspects its descriptors, or the descriptor for
 * its reports is replaced by a different file.
 */
static int fail_silently(const char *how) {
    const char *report = getenv("LOCKSTEP_REPORT");
    if (rank == 1 && report != NULL && strcmp(how, "closed") == 0) {
        (void)dup2(open("own", O_CREAT | O_WRONLY | O_TRUNC, 0600), atoi(report));
    }
    if (rank == 1 && strcmp(how, "child") == 0 && system("ls -l /proc/self/fd >descriptors") != 0) {
        return 9;
    }
    return (rank == 1 ? send(-7, 0, 1) : meet(1)) == LS_OK ? 0 : 4;
}

int main(int argc, char **argv) {
    ls_init_options options = {.timeout = argc > 3 ? atof(argv[3]) : 60};
    world = ls_init(&options);
    if (argc < 3 || world == NULL) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 9;
    }
    rank = ls_comm_rank(world);
    size = ls_comm_size(world);
    if (strcmp(argv[1], "late") == 0) {
        return late(argv[2]);
    }
    if (strcmp(argv[1], "tag") == 0) {
        return wrong_tag((size_t)atoi(argv[2]));
    }
    if (strcmp(argv[1], "sending") == 0) {
        return sending(strcmp(argv[2], "late") == 0);
    }
    if (strcmp(argv[1], "eager") == 0) {
        return eager();
    }
    if (strcmp(argv[1], "silent") == 0) {
        return fail_silently(argv[2]);
    }
    if (strcmp(argv[1], "killed") == 0) {
        return killed();
    }
    return strcmp(argv[1], "go_on") == 0 ? others_go_on() : end_early(argv[1], argv[2]);
}
