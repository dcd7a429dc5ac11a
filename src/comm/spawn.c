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
#include "base/status.h"
#include "base/wait.h"
#include "comm/rendezvous.h"
#include "comm/supervisor.h"

static const double grace_seconds = 2; /* between SIGTERM and SIGKILL */

#define POLL_SECONDS 0.05

/* The report of a rank to its parent, sent after the rank's function has returned. It fits into a pipe in one write. */
typedef struct child_report {
    ls_status status;
    char message[LS_ERROR_CAPACITY];
} child_report;

typedef struct child {
    pid_t process; /* 0 if the process was not started or has exited */
    int pipe;      /* -1: closed */
    bool reported;
    child_report report;
} child;

typedef struct spawn {
    int ranks;
    child *children;
    struct pollfd *polls;
    int listener;
    int port;
    char key[LS_KEY_TEXT_SIZE];
    ls_supervisor supervisor;
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

/* ---- in a rank's process ----------------------------------------------------------------------------------------- */

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
    const uint32_t errors = ls_error_count;
    const ls_status status = function(world, user);
    if (status == LS_OK) {
        return ls_finalize();
    }
    if (ls_error_count == errors || ls_error_status() != status) { /* an earlier error may have the same status */
        return ls_fail(status, "its function returned %s", ls_status_name(status));
    }
    return status;
}

/* Runs a rank and exits its process. Does not call exit(), whose handlers belong to the program that forked. */
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

/* ---- in the parent's process ------------------------------------------------------------------------------------- */

static void signal_all(void *user, int signal_number) {
    const spawn *self = user;
    for (int rank = 0; rank < self->ranks; rank++) {
        if (self->children[rank].process > 0) {
            kill(self->children[rank].process, signal_number);
        }
    }
}

static const ls_supervisor_owner owner = {.signal_all = signal_all};

/* Writes why a rank failed. `wait_status` is used only if the rank has not reported. */
static void describe_failure(const child *failed, pid_t process, int wait_status, char *text, size_t capacity) {
    if (failed->reported) {
        snprintf(text, capacity, "%.960s", failed->report.message);
    } else if (WIFSIGNALED(wait_status)) {
        snprintf(text, capacity, "process %ld was killed by signal %d (%s)", (long)process, WTERMSIG(wait_status),
                 strsignal(WTERMSIG(wait_status)));
    } else {
        snprintf(text, capacity, "process %ld exited with status %d before its function returned", (long)process,
                 WEXITSTATUS(wait_status));
    }
}

/* Records the exit of a rank's process. */
static void note_end(spawn *self, int rank, int wait_status) {
    child *ended = &self->children[rank];
    const pid_t process = ended->process;
    if (ended->pipe >= 0) {
        close(ended->pipe);
        ended->pipe = -1;
    }
    ended->process = 0;
    ls_supervisor_ended(&self->supervisor);
    if (!ended->reported || ended->report.status != LS_OK) {
        ls_failure failure = {.rank = rank, .blames = ended->reported && ended->report.status == LS_ERR_PEER};
        describe_failure(ended, process, wait_status, failure.text, sizeof failure.text);
        (void)ls_supervisor_failed(&self->supervisor, &failure);
    }
}

/* Reads a rank's report, or the end of its pipe. */
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
            wait = 1e-3; /* the process is about to exit */
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

static void collect_ends(spawn *self) {
    for (int rank = 0; rank < self->ranks; rank++) {
        child *one = &self->children[rank];
        int wait_status = 0;
        const pid_t over = one->process > 0 ? waitpid(one->process, &wait_status, WNOHANG) : 0;
        if (over > 0 ||
            (over < 0 && errno == ECHILD)) { /* ECHILD: the program ignores SIGCHLD, so no exit status is available */
            if (one->pipe >= 0 && !one->reported && ls_wait_event(one->pipe, POLLIN, LS_DEADLINE_NOW)) {
                listen_to(one);
            }
            note_end(self, rank, wait_status);
        }
    }
}

static void wait_for_all(spawn *self) {
    while (self->supervisor.running > 0) {
        listen_to_all(self);
        collect_ends(self);
        if (ls_deadline_passed(self->supervisor.deadline)) {
            ls_supervisor_tick(&self->supervisor);
        }
    }
    ls_supervisor_all_ended(&self->supervisor);
}

static ls_status start_rank(spawn *self, int rank, ls_rank_function function, void *user) {
    int ends[2];
    const pid_t parent = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return ls_fail(LS_ERR_IO, "ls_spawn: cannot create a pipe for rank %d of %d: %s", rank, self->ranks,
                       strerror(errno));
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
        return ls_fail(LS_ERR_IO, "ls_spawn: cannot create a process for rank %d of %d: %s", rank, self->ranks,
                       strerror(error));
    }
    self->children[rank].process = process;
    self->children[rank].pipe = ends[0];
    ls_supervisor_started(&self->supervisor);
    return LS_OK;
}

static ls_status start_all(spawn *self, ls_rank_function function, void *user) {
    fflush(NULL); /* otherwise every rank would write the buffered output */
    for (int rank = 0; rank < self->ranks; rank++) {
        LS_TRY(start_rank(self, rank, function, user));
    }
    return LS_OK;
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
                   : ls_fail(LS_ERR_ARGUMENT, "ls_spawn: ranks is %d, but must be from 1 to %d", ranks, LS_RANKS_MAX);
    }
    if (ls_world() != NULL) {
        return ls_fail(LS_ERR_STATE, "ls_spawn: this process is rank %d of a job already; call ls_finalize first",
                       ls_comm_rank(ls_world()));
    }
    const int threads = count_threads();
    if (threads > 1) {
        return ls_fail(LS_ERR_STATE,
                       "ls_spawn: this process has %d threads, which forked children would not inherit: call ls_spawn "
                       "before any thread is started",
                       threads);
    }
    return LS_OK;
}

/* Starts the ranks and waits for their exit. */
static ls_status run_all(spawn *self, ls_rank_function function, void *user) {
    ls_saved_error start_error;
    const ls_status status = start_all(self, function, user);
    close(self->listener); /* rank 0 has its own copy; if rank 0 dies, no process accepts connections */
    self->listener = -1;
    if (status != LS_OK) {
        ls_error_save(&start_error);
        ls_supervisor_decide(&self->supervisor, &(ls_failure){.rank = -1});
    }
    wait_for_all(self);
    if (status != LS_OK) {
        return ls_error_put_back(&start_error);
    }
    const ls_verdict *verdict = &self->supervisor.verdict;
    if (!verdict->decided) {
        return LS_OK;
    }
    const child *failed = &self->children[verdict->failure.rank];
    return ls_fail(failed->reported ? failed->report.status : LS_ERR_PEER, "ls_spawn: rank %d of %d: %s",
                   verdict->failure.rank, self->ranks, verdict->failure.text);
}

ls_status ls_spawn(int ranks, ls_rank_function function, void *user) {
    LS_TRY(check(ranks, function));
    spawn self = {.ranks = ranks};
    self.supervisor =
        (ls_supervisor){.owner = &owner, .user = &self, .grace = grace_seconds, .deadline = LS_DEADLINE_NEVER};
    ls_status status = prepare(&self);
    if (status == LS_OK) {
        status = run_all(&self, function, user);
    }
    if (self.listener >= 0) {
        close(self.listener);
    }
    ls_free(self.children);
    ls_free(self.polls);
    return status;
}
