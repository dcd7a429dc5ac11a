#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/wait.h"
#include "comm/rendezvous.h"

static const double blame_seconds = 1; /* how long a rank that blames another one is not taken for the first to fail */
static const double mercy_seconds = 2; /* between asking ranks to end and ending them */

#define POLL_SECONDS 0.05

/* What a rank tells its parent when its function has returned. Small enough for a pipe to take at once. */
typedef struct child_report {
    ls_status status;
    char message[LS_ERROR_CAPACITY];
} child_report;

typedef struct child {
    pid_t process; /* 0: not started, or over */
    int pipe;      /* -1: closed */
    bool reported;
    child_report report;
} child;

typedef struct spawn {
    int ranks, running;
    child *children;
    struct pollfd *polls;
    int listener;
    int port;
    char key[LS_KEY_TEXT_SIZE];
    bool failed, blames_other; /* the failure so far says that another rank failed before */
    bool asked;                /* the ranks were asked to end */
    child_report failure;
    ls_deadline end; /* when to ask, then to force, those still running */
} spawn;

static int count_threads(void) {
    int count = 0;
    DIR *list = opendir("/proc/self/task");
    for (struct dirent *item = list != NULL ? readdir(list) : NULL; item != NULL; item = readdir(list)) {
        count += item->d_name[0] != '.';
    }
    if (list != NULL) {
        closedir(list);
    }
    return count;
}

/* ---- in a rank's process ---- */

static ls_status run_rank(const spawn *self, int rank, ls_rank_function function, void *user) {
    char url[64];
    ls_job job;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", self->port);
    const ls_init_options options = {.init = url, .world_size = self->ranks, .rank = rank, .key = self->key};
    LS_TRY(ls_job_read(&job, &options));
    job.listener = rank == 0 ? self->listener : -1;
    job.launched = true;
    ls_comm *world = ls_init_job(&job);
    if (world == NULL) {
        return ls_error_status();
    }
    const ls_status status = function(world, user);
    if (status == LS_OK) {
        return ls_finalize();
    }
    if (ls_error_status() != status) {
        return ls_fail(status, "its function returned %s", ls_status_name(status));
    }
    return status;
}

/* A rank's whole life. It ends here and not by exit(), whose handlers belong to the program that was forked. */
static _Noreturn void be_rank(const spawn *self, int rank, int pipe, pid_t parent, ls_rank_function function,
                              void *user) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    for (int other = 0; other < rank; other++) {
        close(self->children[other].pipe);
    }
    if (rank != 0) {
        close(self->listener);
    }
    child_report result = {.status = run_rank(self, rank, function, user)};
    if (result.status != LS_OK) {
        snprintf(result.message, sizeof result.message, "%s", ls_error_message());
    }
    fflush(NULL);
    while (write(pipe, &result, sizeof result) < 0 && errno == EINTR) {
    }
    _exit(result.status == LS_OK ? 0 : 1);
}

/* ---- in the parent's process ---- */

static void signal_all(const spawn *self, int signal_number) {
    for (int rank = 0; rank < self->ranks; rank++) {
        if (self->children[rank].process > 0) {
            kill(self->children[rank].process, signal_number);
        }
    }
}

/* Remembers a failure, unless it only tells of one that is known already. */
static void note_failure(spawn *self, int rank, const child_report *what, bool blames_other) {
    if (self->failed && (self->asked || !self->blames_other || blames_other)) {
        return;
    }
    self->failed = true;
    self->blames_other = blames_other;
    self->failure.status = what->status;
    snprintf(self->failure.message, sizeof self->failure.message, "ls_spawn: rank %d of %d: %.960s", rank, self->ranks,
             what->message);
    self->end = blames_other ? ls_deadline_after(blame_seconds) : 0;
}

/* The rank's process is over, as `how` of waitpid says. */
static void bury(spawn *self, int rank, int how) {
    child *dead = &self->children[rank];
    child_report what = {.status = LS_ERR_PEER};
    if (dead->reported) {
        what = dead->report;
    } else if (WIFSIGNALED(how)) {
        snprintf(what.message, sizeof what.message, "process %ld was ended by signal %d (%s)", (long)dead->process,
                 WTERMSIG(how), strsignal(WTERMSIG(how)));
    } else {
        snprintf(what.message, sizeof what.message, "process %ld exited with status %d before its function returned",
                 (long)dead->process, WEXITSTATUS(how));
    }
    if (dead->pipe >= 0) {
        close(dead->pipe);
        dead->pipe = -1;
    }
    dead->process = 0;
    self->running--;
    if (what.status != LS_OK) {
        note_failure(self, rank, &what, dead->reported && what.status == LS_ERR_PEER);
    }
}

/* Reads what the rank said, or that it can say nothing any more. */
static void listen_to(child *speaker) {
    child_report heard;
    const ssize_t size = read(speaker->pipe, &heard, sizeof heard);
    if (size == (ssize_t)sizeof heard) {
        heard.message[sizeof heard.message - 1] = '\0';
        speaker->report = heard;
        speaker->reported = true;
    } else if (size >= 0 || errno != EINTR) {
        close(speaker->pipe);
        speaker->pipe = -1;
    }
}

static void listen_to_all(spawn *self) {
    double wait = POLL_SECONDS;
    for (int rank = 0; rank < self->ranks; rank++) {
        const child *one = &self->children[rank];
        self->polls[rank] = (struct pollfd){.fd = one->pipe, .events = POLLIN};
        if (one->process > 0 && one->pipe < 0) {
            wait = 1e-3; /* it is just ending */
        }
    }
    if (ls_wait_events(self->polls, (size_t)self->ranks, ls_deadline_after(wait)) > 0) {
        for (int rank = 0; rank < self->ranks; rank++) {
            if (self->polls[rank].revents != 0) {
                listen_to(&self->children[rank]);
            }
        }
    }
}

static void bury_all(spawn *self) {
    for (int rank = 0; rank < self->ranks; rank++) {
        child *one = &self->children[rank];
        int how = 0;
        const pid_t over = one->process > 0 ? waitpid(one->process, &how, WNOHANG) : 0;
        if (over > 0 || (over < 0 && errno == ECHILD)) { /* ECHILD: the program ignores SIGCHLD, nothing more is told */
            if (one->pipe >= 0 && !one->reported && ls_wait_event(one->pipe, POLLIN, LS_DEADLINE_NOW)) {
                listen_to(one);
            }
            bury(self, rank, how);
        }
    }
}

static void wait_for_all(spawn *self) {
    while (self->running > 0) {
        listen_to_all(self);
        bury_all(self);
        if (self->failed && ls_deadline_passed(self->end)) {
            signal_all(self, self->asked ? SIGKILL : SIGTERM);
            self->asked = true;
            self->end = ls_deadline_after(mercy_seconds);
        }
    }
}

static ls_status start_rank(spawn *self, int rank, ls_rank_function function, void *user) {
    int ends[2];
    const pid_t parent = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return ls_fail(LS_ERR_IO, "ls_spawn: no pipe for rank %d of %d: %s", rank, self->ranks, strerror(errno));
    }
    const pid_t process = fork();
    if (process == 0) {
        close(ends[0]);
        be_rank(self, rank, ends[1], parent, function, user);
    }
    const int error = errno;
    close(ends[1]);
    if (process < 0) {
        close(ends[0]);
        return ls_fail(LS_ERR_IO, "ls_spawn: no process for rank %d of %d: %s", rank, self->ranks, strerror(error));
    }
    self->children[rank].process = process;
    self->children[rank].pipe = ends[0];
    self->running++;
    return LS_OK;
}

static void start_all(spawn *self, ls_rank_function function, void *user) {
    fflush(NULL); /* else what lies in buffers would be written once by every rank */
    for (int rank = 0; rank < self->ranks && !self->failed; rank++) {
        self->failure.status = start_rank(self, rank, function, user);
        if (self->failure.status != LS_OK) {
            self->failed = true;
            self->end = 0;
            snprintf(self->failure.message, sizeof self->failure.message, "%s", ls_error_message());
        }
    }
}

static ls_status prepare(spawn *self) {
    const ls_address anywhere = {.host = "127.0.0.1", .port = 0};
    self->listener = -1;
    self->children = ls_allocate_zeroed((size_t)self->ranks, sizeof *self->children);
    self->polls = ls_allocate_zeroed((size_t)self->ranks, sizeof *self->polls);
    if (self->children == NULL || self->polls == NULL) {
        return ls_fail_memory("ls_spawn", (size_t)self->ranks * sizeof *self->children);
    }
    for (int rank = 0; rank < self->ranks; rank++) {
        self->children[rank].pipe = -1;
    }
    if (ls_key_make(self->key) != LS_OK || ls_socket_listen(&anywhere, true, &self->listener) != LS_OK) {
        return ls_fail_in("ls_spawn");
    }
    self->port = ls_socket_port(self->listener);
    return LS_OK;
}

static ls_status check(int ranks, ls_rank_function function) {
    if (ranks < 1 || ranks > LS_RANKS_MAX || function == NULL) {
        return function == NULL
                   ? ls_fail(LS_ERR_ARGUMENT, "ls_spawn: function is NULL")
                   : ls_fail(LS_ERR_ARGUMENT, "ls_spawn: ranks is %d, must be from 1 to %d", ranks, LS_RANKS_MAX);
    }
    if (ls_world() != NULL) {
        return ls_fail(LS_ERR_STATE, "ls_spawn: this process is rank %d of a job already, ls_finalize comes first",
                       ls_comm_rank(ls_world()));
    }
    const int threads = count_threads();
    if (threads > 1) {
        return ls_fail(LS_ERR_STATE,
                       "ls_spawn: this process has %d threads, which its forks would not have: call it before "
                       "anything starts threads",
                       threads);
    }
    return LS_OK;
}

ls_status ls_spawn(int ranks, ls_rank_function function, void *user) {
    LS_TRY(check(ranks, function));
    spawn self = {.ranks = ranks};
    const ls_status status = prepare(&self);
    if (status == LS_OK) {
        start_all(&self, function, user);
        close(self.listener); /* rank 0 has it: when that dies, nobody accepts for it */
        self.listener = -1;
        wait_for_all(&self);
    }
    if (self.listener >= 0) {
        close(self.listener);
    }
    ls_free(self.children);
    ls_free(self.polls);
    if (status == LS_OK && self.failed) {
        return ls_fail(self.failure.status, "%s", self.failure.message);
    }
    return status;
}
