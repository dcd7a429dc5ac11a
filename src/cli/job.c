#include "cli/job.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/guard.h"
#include "cli/job_report.h"
#include "cli/rank.h"
#include "cli/tree.h"

enum { KILL_AGAIN_MS = 10, READER_MS = 1000 };

typedef enum phase {
    RUNNING,
    ENDING, /* the ranks have been asked to end and have until the deadline */
    KILLING /* SIGKILL, again and again until nobody is left */
} phase;

typedef struct job {
    const ls_job_options *options;
    uv_loop_t loop;
    uv_poll_t signals;  /* of signal_fd: what the launcher is told by a person, a terminal, a batch system */
    uv_poll_t children; /* of child_fd: SIGCHLD */
    uv_timer_t timer;
    int signal_fd;
    int child_fd;
    sigset_t mask;
    struct sigaction broken_pipe;
    ls_launch launch;
    ls_guard guard;
    ls_tree tree;
    ls_rank *ranks;
    int running;
    phase phase;
    double deadline; /* of ls_clock_seconds: when what has been asked to end is killed */
    bool done;
    bool settled;       /* nothing runs here any more; other nodes may still be at it */
    bool restart;       /* when done: node 0 says that the job starts again */
    bool failed;        /* `failure` is known: */
    ls_failure failure; /* the first of the job */
    bool suspected;     /* a rank failed here that blames another, of which nothing is known yet: */
    ls_failure suspect;
    int others;        /* how many ran here when a rank had failed for the first time; -1: none has */
    int64_t oom_kills; /* of the machine, before any rank ran */
    int interrupt;     /* the signal that ended the job; 0: none */
    char notice[256];  /* to be said when no write is under way */
    ls_nodes_events events;
    ls_outlet output;
    ls_outlet error;
    ls_lines lines;
    bool explained;  /* the failed rank has said why, and its line says the rest */
    char remark[64]; /* that rest */
} job;

/* ---- ending ---------------------------------------------------------------------------------------------------- */

static void tell_ranks(const job *self, int signal) {
    for (int i = 0; i < self->options->ranks; i++) {
        if (self->ranks[i].running) {
            kill(self->ranks[i].pid, signal);
        }
    }
}

static void signal_job(job *self, int signal, pid_t skip_group) {
    self->tree.guard = self->guard.pid;
    if (ls_tree_signal(&self->tree, signal, skip_group) < 0) {
        tell_ranks(self, signal);
    }
}

static void on_timer(uv_timer_t *timer);
static void on_failed(void *user, const ls_failure *failure);

static void kill_job(job *self) {
    self->phase = KILLING;
    if (self->settled) { /* nobody is left here, and a person does not want to wait for the other nodes */
        self->done = true;
        return;
    }
    self->deadline = ls_clock_seconds();
    signal_job(self, SIGKILL, 0);
    uv_timer_start(&self->timer, on_timer, KILL_AGAIN_MS, 0);
}

/* Asks everybody to end. A stopped process must be woken to hear it. */
static void end_job(job *self, int signal, pid_t skip_group) {
    self->phase = ENDING;
    self->deadline = ls_clock_seconds() + self->options->grace;
    signal_job(self, signal, skip_group);
    signal_job(self, SIGCONT, 0);
    uv_timer_start(&self->timer, on_timer, (uint64_t)(self->options->grace * 1000.0), 0);
}

static void kill_late(job *self) {
    if (self->phase == ENDING && self->running > 0) {
        ls_outlet_say(&self->error, "lockstep: %d rank%s did not end within %g s and will be killed", self->running,
                      self->running == 1 ? "" : "s", self->options->grace);
    }
    kill_job(self);
}

static void on_timer(uv_timer_t *timer) {
    job *self = timer->data;
    if (self->phase == RUNNING && self->options->nodes == NULL) { /* nothing was heard of whom the suspect blames */
        on_failed(self, &self->suspect);
    } else if (self->phase == RUNNING) { /* node 0 says who was the first */
        end_job(self, SIGTERM, 0);
    } else {
        kill_late(self);
    }
}

/* Where nobody reads any more, the ranks hear of it as they would without the launcher; else there is more to say. */
static bool has_lost_output(const job *self) {
    return self->output.failure != 0 && self->output.failure != EPIPE;
}

/* Who stopped to go on later does not want to be started at once: its machine is wanted by others. */
static bool wants_restart(void *user) {
    const job *self = user;
    const int ended = self->failure.wait_status;
    const bool stopped = WIFEXITED(ended) && WEXITSTATUS(ended) == LS_EXIT_STOPPED;
    return self->failed && self->failure.rank >= 0 && !stopped && self->interrupt == 0 && !has_lost_output(self) &&
           self->launch.restarts < self->options->most_restarts;
}

/* When all ranks have ended: whom they started and left behind is ended too, and then the job is done. */
static void settle(job *self) {
    if (self->running > 0 || self->settled) {
        return;
    }
    if (self->options->nodes == NULL && self->suspected) {
        on_failed(self, &self->suspect);
    }
    ls_guard_stop(&self->guard);
    pid_t pid;
    do {
        pid = waitpid(-1, NULL, WNOHANG);
    } while (pid > 0);
    self->tree.guard = 0;
    if (pid < 0 || (self->tree.spared_count > 0 && ls_tree_signal(&self->tree, 0, 0) == 0)) {
        self->settled = true;
        uv_timer_stop(&self->timer);
        if (self->options->nodes != NULL) {
            ls_nodes_done(self->options->nodes);
        } else {
            self->done = true;
        }
        return;
    }
    (void)ls_guard_start(&self->guard, self->launch.mark); /* without one this still ends, but for a kill -9 of us */
    if (self->phase == RUNNING) {
        end_job(self, SIGTERM, 0);
    }
}

/* ---- signals --------------------------------------------------------------------------------------------------- */

/* The terminal's Ctrl-Z reaches our group; ranks in groups of their own must stop with it and wake with it. */
static void pause_job(job *self) {
    signal_job(self, SIGSTOP, 0);
    raise(SIGSTOP);
    signal_job(self, SIGCONT, 0);
}

/* `where` is empty or tells where it came from. */
static void pass_signal(job *self, int signal, const char *where, pid_t skip_group) {
    self->interrupt = signal;
    ls_lines_interrupted(&self->lines);
    snprintf(self->notice, sizeof self->notice,
             "lockstep: SIG%s%s was passed on to %d rank%s; what still runs after %g s is killed, another Ctrl-C kills "
             "at once",
             sigabbrev_np(signal), where, self->running, self->running == 1 ? "" : "s", self->options->grace);
    end_job(self, signal, skip_group);
}

static void interrupt_job(job *self, const struct signalfd_siginfo *info) {
    const int signal = (int)info->ssi_signo;
    if (self->phase != RUNNING) {
        kill_job(self);
        return;
    }
    if (self->options->nodes != NULL) {
        ls_nodes_interrupt(self->options->nodes, signal);
    }
    /* What the terminal sends it sends to its whole foreground group, where rank 0 may be: once is enough. */
    pass_signal(self, signal, "", info->ssi_code == SI_KERNEL ? getpgrp() : 0);
}

/* The rank of the world, if it is here. */
static ls_rank *find_rank(const job *self, int rank) {
    const int local = rank - self->launch.start.first_rank;
    return local >= 0 && local < self->options->ranks ? &self->ranks[local] : NULL;
}

static void take_signals(job *self) {
    struct signalfd_siginfo info;
    while (read(self->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGTSTP) {
            pause_job(self);
        } else if (info.ssi_signo == SIGUSR1 || info.ssi_signo == SIGUSR2) {
            tell_ranks(self, (int)info.ssi_signo); /* of a scheduler or a user; they go on */
        } else {
            interrupt_job(self, &info);
        }
    }
}

static void say_notice(job *self) {
    if (self->notice[0] != '\0') {
        ls_outlet_say(&self->error, "%s", self->notice);
        self->notice[0] = '\0';
    }
}

static void on_signal(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    take_signals(poll->data);
    say_notice(poll->data);
}

/* Signals are heard while a slow reader keeps us from writing; once the job is over that reader has a second left. */
static bool wait_for_reader(int fd, void *user) {
    job *self = user;
    for (;;) {
        struct pollfd fds[] = {{.fd = fd, .events = POLLOUT}, {.fd = self->signal_fd, .events = POLLIN}};
        int timeout = -1;
        if (self->phase != RUNNING) {
            const double left = (self->deadline - ls_clock_seconds()) * 1000.0 + READER_MS;
            timeout = left > 0.0 ? (int)left : 0;
        }
        const int ready = poll(fds, 2, timeout);
        if (ready == 0) {
            return false;
        }
        if (ready > 0 && fds[1].revents != 0) {
            take_signals(self);
        }
        if (ready > 0 && fds[0].revents != 0) {
            return true;
        }
    }
}

/* ---- the end of ranks ------------------------------------------------------------------------------------------ */

/* When something fails for the first time here. */
static void count_others(job *self) {
    self->others = self->others < 0 ? self->running : self->others;
}

/* Tells of the job's first failure, wherever it was. */
static void on_failed(void *user, const ls_failure *failure) {
    job *self = user;
    if (self->failed || self->interrupt != 0) {
        return;
    }
    self->failed = true;
    self->failure = *failure;
    count_others(self);
    if (self->phase == RUNNING && !self->settled) { /* else nothing is left to end here */
        end_job(self, SIGTERM, 0);
    }
    snprintf(self->remark, sizeof self->remark, " (rank %d, exit status %d)", failure->rank,
             WEXITSTATUS(failure->wait_status));
    const ls_rank *rank = find_rank(self, failure->rank);
    const bool can_say = rank != NULL && WIFEXITED(failure->wait_status);
    self->explained = ls_lines_failed(&self->lines, failure->rank, can_say ? rank->report.sentence : "",
                                      can_say ? self->remark : NULL);
}

/* One that blames another is not taken for the first while that one's end may be on its way: ends may be heard of in
 * another order than they came. */
static void report_failure(job *self, const ls_failure *failure) {
    if (failure->blames && self->suspected) {
        return;
    }
    if (failure->blames) {
        self->suspected = true;
        self->suspect = *failure;
        self->lines.hold_seconds += LS_BLAME_MS * 1e-3;
        uv_timer_start(&self->timer, on_timer, LS_BLAME_MS, 0);
    }
    if (self->options->nodes != NULL) {
        ls_nodes_failed(self->options->nodes, failure);
    } else if (!failure->blames) {
        on_failed(self, failure);
    }
}

static void rank_ended(job *self, ls_rank *rank, int wait_status) {
    rank->running = false;
    rank->wait_status = wait_status;
    self->running--;
    if (rank->pidfd >= 0) {
        uv_close((uv_handle_t *)&rank->watch, NULL);
        close(rank->pidfd);
        rank->pidfd = -1;
    }
    take_signals(self); /* was it a Ctrl-C that reached it before us? */
    const bool failed = wait_status != 0 && self->phase == RUNNING;
    const ls_failure failure = ls_failure_of(rank, find_rank(self, ls_rank_hear(rank)->culprit));
    if (failed) {
        count_others(self);
    }
    if (failed && !failure.blames) {
        end_job(self, SIGTERM, 0);
    }
    ls_relay_drain(&rank->output);
    ls_relay_drain(&rank->error);
    if (failed) {
        report_failure(self, &failure);
    }
    settle(self);
}

/* Whether what we say ourselves explains this line: who ends after the first ends because of it. */
static bool told_of(void *user, int rank, const char *line) {
    const job *self = user;
    const ls_rank_report *report = ls_rank_hear(find_rank(self, rank));
    return (self->interrupt != 0 || self->failed) && report->status == LS_ERR_PEER &&
           strstr(line, report->sentence) != NULL;
}

/* The loop hands these over in the order in which the ranks ended, which waitpid would not tell. */
static void on_rank_end(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    ls_rank *rank = (ls_rank *)poll;
    int wait_status = 0;
    if (waitpid(rank->pid, &wait_status, WNOHANG) == rank->pid) {
        rank_ended(poll->data, rank, wait_status);
        say_notice(poll->data);
    }
}

/* Orphans that became our children, a guard somebody killed, and ranks where there are no pidfds. */
static void on_child(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    job *self = poll->data;
    struct signalfd_siginfo info;
    while (read(self->child_fd, &info, sizeof info) == (ssize_t)sizeof info) {
    }
    int wait_status = 0;
    for (pid_t pid = waitpid(-1, &wait_status, WNOHANG); pid > 0; pid = waitpid(-1, &wait_status, WNOHANG)) {
        if (pid == self->guard.pid) {
            ls_guard_forget(&self->guard);
            (void)ls_guard_start(&self->guard, self->launch.mark);
        }
        for (int i = 0; i < self->options->ranks; i++) {
            if (self->ranks[i].running && self->ranks[i].pid == pid) {
                rank_ended(self, &self->ranks[i], wait_status);
                break;
            }
        }
    }
    settle(self);
    say_notice(self);
}

/* ---- other nodes ----------------------------------------------------------------------------------------------- */

static void on_interrupted(void *user, int signal, int node) {
    job *self = user;
    char where[40];
    if (self->phase != RUNNING || self->interrupt != 0) {
        return;
    }
    snprintf(where, sizeof where, " from node %d", node);
    pass_signal(self, signal, where, 0);
    say_notice(self);
}

static void on_over(void *user, bool restart) {
    job *self = user;
    self->done = true;
    self->restart = restart;
}

/* ---- starting -------------------------------------------------------------------------------------------------- */

static ls_status watch(job *self, uv_poll_t *poll, int fd, uv_poll_cb callback) {
    int failure = uv_poll_init(&self->loop, poll, fd);
    poll->data = self;
    if (failure == 0) {
        failure = uv_poll_start(poll, UV_READABLE, callback);
    }
    return failure == 0 ? LS_OK
                        : ls_fail(LS_ERR_IO, "lockstep run: cannot watch a descriptor: %s", uv_strerror(failure));
}

/* Signals wait in descriptors from here on, and orphans of the job become our children. */
static ls_status open_signals(job *self) {
    sigset_t told;
    sigset_t child;
    sigset_t blocked;
    sigemptyset(&told);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    static const int signals[] = {SIGINT, SIGTERM, SIGQUIT, SIGTSTP, SIGUSR1, SIGUSR2, SIGHUP, 0};
    for (const int *signal = signals; *signal != 0; signal++) {
        struct sigaction action;
        sigaction(*signal, NULL, &action);
        if (*signal != SIGHUP || action.sa_handler != SIG_IGN) { /* nohup means it */
            sigaddset(&told, *signal);
        }
    }
    sigorset(&blocked, &told, &child);
    sigprocmask(SIG_BLOCK, &blocked, &self->mask);
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, &self->broken_pipe);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    self->signal_fd = signalfd(-1, &told, SFD_CLOEXEC | SFD_NONBLOCK);
    self->child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (self->signal_fd < 0 || self->child_fd < 0) {
        return ls_fail(LS_ERR_IO, "lockstep run: no descriptor for signals: %s", strerror(errno));
    }
    LS_TRY(watch(self, &self->signals, self->signal_fd, on_signal));
    return watch(self, &self->children, self->child_fd, on_child);
}

static ls_status open_job(job *self) {
    const ls_job_options *options = self->options;
    self->output = (ls_outlet){.fd = STDOUT_FILENO, .wait = wait_for_reader, .user = self};
    self->error = (ls_outlet){.fd = STDERR_FILENO, .wait = wait_for_reader, .user = self};
    uv_timer_init(&self->loop, &self->timer);
    self->timer.data = self;
    ls_lines_open(&self->lines, &self->loop, !options->prefix, told_of, self);
    LS_TRY(ls_tree_open(&self->tree));
    LS_TRY(open_signals(self));
    self->launch.loop = &self->loop;
    self->launch.output = &self->output;
    self->launch.error = &self->error;
    self->launch.lines = &self->lines;
    self->launch.mask = self->mask;
    self->launch.broken_pipe = self->broken_pipe;
    self->ranks = ls_allocate_zeroed((size_t)options->ranks, sizeof *self->ranks);
    if (self->ranks == NULL) {
        return ls_fail_memory("lockstep run", (size_t)options->ranks * sizeof *self->ranks);
    }
    for (int i = 0; i < options->ranks; i++) {
        ls_rank *rank = &self->ranks[i];
        rank->rank = self->launch.start.first_rank + i;
        rank->local_rank = i;
        rank->pidfd = rank->report_fd = rank->output.fd = rank->error.fd = -1;
    }
    self->events = (ls_nodes_events){.failed = on_failed,
                                     .interrupted = on_interrupted,
                                     .over = on_over,
                                     .wants_restart = wants_restart,
                                     .user = self};
    return options->nodes != NULL ? ls_nodes_watch(options->nodes, &self->loop, &self->events) : LS_OK;
}

static ls_status start_ranks(job *self, int *exit_status) {
    for (int i = 0; i < self->options->ranks; i++) {
        ls_rank *rank = &self->ranks[i];
        LS_TRY(ls_rank_start(rank, &self->launch, exit_status));
        self->running++;
        if (rank->pidfd >= 0 && watch(self, &rank->watch, rank->pidfd, on_rank_end) != LS_OK) {
            close(rank->pidfd);
            rank->pidfd = -1;
        }
    }
    return ls_guard_start(&self->guard, self->launch.mark);
}

/* ---- to the end ------------------------------------------------------------------------------------------------ */

static int exit_status_of(const job *self) {
    return self->interrupt != 0    ? LS_EXIT_SIGNAL + self->interrupt
           : has_lost_output(self) ? LS_EXIT_FAILED
           : !self->failed         ? 0
                                   : ls_failure_exit_status(&self->failure);
}

/* A rank that writes where nothing can be written any more is ended by the system: told of as what it comes from. */
static bool ended_by_lost_output(const job *self) {
    const int status = self->failure.wait_status;
    return has_lost_output(self) && WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE;
}

static void conclude(job *self, ls_job_outcome *outcome) {
    for (int i = 0; i < self->options->ranks; i++) {
        ls_relay_close(&self->ranks[i].output);
        ls_relay_close(&self->ranks[i].error);
        close(self->ranks[i].report_fd);
        self->ranks[i].report_fd = -1; /* lines may still ask */
    }
    ls_lines_flush(&self->lines);
    say_notice(self);
    outcome->exit_status = exit_status_of(self);
    if (has_lost_output(self)) {
        ls_outlet_say(&self->error, "lockstep: cannot write what the ranks print to standard output: %s",
                      strerror(self->output.failure));
    }
    if (self->failed && self->interrupt == 0 && !self->explained && !ended_by_lost_output(self)) {
        ls_failure_report(&(ls_job_report){.options = self->options,
                                           .failure = &self->failure,
                                           .rank = self->failure.rank >= 0 ? find_rank(self, self->failure.rank) : NULL,
                                           .ended = self->others,
                                           .oom_kills = ls_oom_kills() - self->oom_kills,
                                           .nodes = self->launch.start.nodes},
                          &self->error);
    }
    outcome->restart = self->options->nodes != NULL ? self->restart : wants_restart(self);
    if (outcome->restart) {
        char most[24] = ""; /* on several machines node 0's counts, and it may be the only one that was told */
        if (self->options->most_restarts > self->launch.restarts) {
            snprintf(most, sizeof most, " of %d", self->options->most_restarts);
        }
        ls_outlet_say(&self->error, "lockstep: restarting the job (restart %d%s)", self->launch.restarts + 1, most);
    }
}

static void close_handle(uv_poll_t *poll, int fd) {
    if (poll->type == UV_POLL) { /* it was opened */
        uv_close((uv_handle_t *)poll, NULL);
    }
    if (fd >= 0) {
        close(fd);
    }
}

static void close_job(job *self) {
    close_handle(&self->signals, self->signal_fd);
    close_handle(&self->children, self->child_fd);
    uv_close((uv_handle_t *)&self->timer, NULL);
    ls_lines_close(&self->lines);
    if (self->options->nodes != NULL) {
        ls_nodes_unwatch(self->options->nodes);
    }
    uv_run(&self->loop, UV_RUN_DEFAULT);
    ls_tree_close(&self->tree);
    ls_free(self->ranks);
    setrlimit(RLIMIT_NOFILE, &self->launch.files);
    if (self->child_fd >= 0) {
        sigaction(SIGPIPE, &self->broken_pipe, NULL);
        sigprocmask(SIG_SETMASK, &self->mask, NULL);
    }
}

/* Ranks that started before one could not, here or elsewhere, are of no use. */
static void give_up(job *self, const char *reason) {
    if (self->options->nodes != NULL) {
        ls_failure failure = {.rank = -1};
        ls_node_name_host(failure.text);
        const size_t used = strlen(failure.text);
        snprintf(failure.text + used, sizeof failure.text - used, ": %.400s", reason);
        ls_nodes_failed(self->options->nodes, &failure);
    }
    self->explained = true;
    kill_job(self);
    settle(self);
}

static ls_status run(job *self, ls_job_outcome *outcome) {
    LS_TRY(open_job(self));
    int start_failure = 0;
    const ls_status status = start_ranks(self, &start_failure);
    char reason[LS_ERROR_CAPACITY];
    snprintf(reason, sizeof reason, "%s", ls_error_message());
    ls_launch_close(&self->launch); /* when rank 0 dies nobody else is to accept connections for it */
    if (status != LS_OK) {
        give_up(self, reason);
    }
    while (!self->done) {
        uv_run(&self->loop, UV_RUN_ONCE);
    }
    conclude(self, outcome);
    if (status != LS_OK) {
        *outcome = (ls_job_outcome){.exit_status = start_failure};
        ls_error_restore(status, reason);
    }
    return status;
}

ls_status ls_job_run(const ls_job_options *options, int restarts, ls_job_outcome *outcome) {
    *outcome = (ls_job_outcome){0};
    job *self = ls_allocate_zeroed(1, sizeof *self);
    if (self == NULL) {
        return ls_fail_memory("lockstep run", sizeof *self);
    }
    self->options = options;
    self->signal_fd = self->child_fd = -1;
    self->others = -1;
    self->oom_kills = ls_oom_kills();
    self->launch = (ls_launch){.options = options, .restarts = restarts};
    const int failure = uv_loop_init(&self->loop); /* first: libuv gives up the process where descriptors are scarce */
    if (failure != 0) {
        ls_free(self);
        return ls_fail(LS_ERR_IO, "lockstep run: no event loop: %s", uv_strerror(failure));
    }
    ls_status status = ls_launch_open(&self->launch); /* may wait for other nodes; Ctrl-C ends that as usual */
    if (status == LS_OK) {
        status = run(self, outcome);
        close_job(self);
    }
    uv_loop_close(&self->loop);
    ls_launch_close(&self->launch);
    ls_free(self);
    return status;
}
