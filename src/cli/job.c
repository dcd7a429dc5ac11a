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
#include "comm/supervisor.h"

#define READER_NS UINT64_C(1000000000) /* time for a slow reader after the deadline of the ranks */

typedef struct job {
    const ls_job_options *options;
    uv_loop_t loop;
    uv_poll_t signals;  /* watches signal_fd: signals from a user, a terminal or a batch system */
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
    ls_supervisor supervisor; /* supervises the ranks on this machine; once it has settled, other nodes may still have
                                 processes */
    pid_t skip_group;         /* a process group that has already received the signal to end; 0 means none */
    bool done;
    bool restart;      /* valid when done: node 0 has decided to start the job again */
    int64_t oom_kills; /* number of OOM kills on this machine before any rank ran */
    int interrupt;     /* the signal that ended the job, in which case the verdict has no failure; 0 means none */
    char notice[256];  /* a line to print when no write is in progress */
    ls_nodes_events events;
    ls_relay relay;
    bool explained;  /* the failed rank's own line, plus `remark`, explains the failure */
    char remark[64]; /* addition to the line in which the failed rank printed its reason */
} job;

/* ---- ending ------------------------------------------------------------------------------------------------------ */

static void signal_ranks(const job *self, int signal) {
    for (int i = 0; i < self->options->ranks; i++) {
        if (self->ranks[i].running) {
            kill(self->ranks[i].pid, signal);
        }
    }
}

static void signal_job(job *self, int signal, pid_t skip_group) {
    self->tree.guard = self->guard.pid;
    if (ls_tree_signal(&self->tree, signal, skip_group) < 0) {
        signal_ranks(self, signal);
    }
}

static void signal_all(void *user, int signal) {
    job *self = user;
    signal_job(self, signal, signal != SIGCONT ? self->skip_group : 0);
}

static void kill_job(job *self) {
    ls_supervisor_kill(&self->supervisor);
    self->done = self->done || self->supervisor.settled; /* the user does not want to wait for the other nodes */
}

static void on_timer(uv_timer_t *timer) {
    job *self = timer->data;
    const ls_supervisor *supervisor = &self->supervisor;
    if (supervisor->phase == LS_SUPERVISOR_ENDING && supervisor->running > 0) {
        ls_outlet_print(&self->relay.error, "lockstep: %d rank%s did not end within %g s and will be killed",
                        supervisor->running, supervisor->running == 1 ? "" : "s", self->options->grace);
    }
    if (supervisor->phase == LS_SUPERVISOR_RUNNING) {
        ls_supervisor_tick(&self->supervisor);
    } else {
        kill_job(self);
    }
}

static void set_timer(void *user, double seconds) {
    job *self = user;
    uv_timer_start(&self->timer, on_timer, (uint64_t)(seconds * 1e3), 0);
}

/*
 * Returns whether the reader of the output has closed it. The ranks then get a broken pipe, as without the launcher, so
 * the launcher reports nothing.
 */
static bool has_lost_output(const job *self) {
    return self->relay.output.failure != 0 && self->relay.output.failure != EPIPE;
}

/* Returns whether the job failed, and was not ended by a signal. */
static bool has_failed(const job *self) {
    return self->supervisor.verdict.decided && self->interrupt == 0;
}

/* A rank that exited with status 75 wants to resume later: others need its machine, so the job is not restarted. */
static bool wants_restart(void *user) {
    const job *self = user;
    const ls_failure *failure = &self->supervisor.verdict.failure;
    const int ended = failure->wait_status;
    const bool stopped = WIFEXITED(ended) && WEXITSTATUS(ended) == LS_EXIT_STOPPED;
    return has_failed(self) && failure->rank >= 0 && !stopped && !has_lost_output(self) &&
           self->launch.restarts < self->options->most_restarts;
}

/* After all ranks have exited, terminates the processes that the ranks have left running. Then the job is done. */
static void settle(job *self) {
    if (self->supervisor.running > 0 || self->supervisor.settled) {
        return;
    }
    ls_supervisor_all_ended(&self->supervisor);
    ls_guard_stop(&self->guard);
    pid_t pid;
    do {
        pid = waitpid(-1, NULL, WNOHANG);
    } while (pid > 0);
    self->tree.guard = 0;
    if (pid < 0 || (self->tree.spared_count > 0 && ls_tree_signal(&self->tree, 0, 0) == 0)) {
        self->supervisor.settled = true;
        uv_timer_stop(&self->timer);
        if (self->options->nodes != NULL) {
            ls_nodes_done(self->options->nodes);
        } else {
            self->done = true;
        }
        return;
    }
    (void)ls_guard_start(&self->guard, self->launch.mark); /* without a guard, the job still ends properly unless the
                                                              launcher is killed with SIGKILL */
    if (self->supervisor.phase == LS_SUPERVISOR_RUNNING) {
        ls_supervisor_end(&self->supervisor, SIGTERM);
    }
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

/* Stops and continues the ranks together with the launcher: Ctrl-Z in the terminal reaches only the launcher's
 * process group. */
static void pause_job(job *self) {
    signal_job(self, SIGSTOP, 0);
    raise(SIGSTOP);
    signal_job(self, SIGCONT, 0);
}

/* Passes a signal to all processes. `where` is empty or names its origin. */
static void pass_signal(job *self, int signal, const char *where, pid_t skip_group) {
    self->interrupt = signal;
    self->supervisor.verdict.decided = true; /* from now on, the signal counts as the cause of failures */
    ls_lines_interrupted(&self->relay.lines);
    snprintf(self->notice, sizeof self->notice,
             "lockstep: SIG%s%s was passed on to %d rank%s; ranks that still run after %g s are killed; a second "
             "Ctrl-C kills them at once",
             sigabbrev_np(signal), where, self->supervisor.running, self->supervisor.running == 1 ? "" : "s",
             self->options->grace);
    self->skip_group = skip_group;
    ls_supervisor_end(&self->supervisor, signal);
    self->skip_group = 0;
}

static void interrupt_job(job *self, const struct signalfd_siginfo *info) {
    const int signal = (int)info->ssi_signo;
    if (self->supervisor.phase != LS_SUPERVISOR_RUNNING) {
        kill_job(self);
        return;
    }
    if (self->options->nodes != NULL) {
        ls_nodes_interrupt(self->options->nodes, signal);
    }
    /* A terminal signals its whole foreground process group, which may include rank 0: signal it only once. */
    pass_signal(self, signal, "", info->ssi_code == SI_KERNEL ? getpgrp() : 0);
}

/* Returns the rank with this number in the world, or NULL if the rank runs on another node. */
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
            signal_ranks(self,
                         (int)info.ssi_signo); /* a signal from a scheduler or user to the ranks, which continue */
        } else {
            interrupt_job(self, &info);
        }
    }
}

static void print_notice(job *self) {
    if (self->notice[0] != '\0') {
        ls_outlet_print(&self->relay.error, "%s", self->notice);
        self->notice[0] = '\0';
    }
}

static void on_signal(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    take_signals(poll->data);
    print_notice(poll->data);
}

/*
 * Waits until the output accepts bytes, and handles signals in the meantime. After the end of the job, the reader has
 * one second.
 */
static bool wait_for_reader(int fd, void *user) {
    job *self = user;
    const ls_supervisor *supervisor = &self->supervisor;
    for (;;) {
        struct pollfd fds[] = {{.fd = fd, .events = POLLOUT}, {.fd = self->signal_fd, .events = POLLIN}};
        const bool never = supervisor->phase == LS_SUPERVISOR_RUNNING || supervisor->deadline == LS_DEADLINE_NEVER;
        const ls_deadline deadline = never ? LS_DEADLINE_NEVER : supervisor->deadline + READER_NS;
        if (ls_wait_events(fds, 2, deadline) == 0 && ls_deadline_passed(deadline)) {
            return false;
        }
        if (fds[1].revents != 0) {
            take_signals(self);
        }
        if (fds[0].revents != 0) {
            return true;
        }
    }
}

/* ---- when ranks end ---------------------------------------------------------------------------------------------- */

/* Handles the first failure of the job, on any node. */
static void on_decided(void *user, const ls_failure *failure) {
    job *self = user;
    ls_rank *rank = find_rank(self, failure->rank);
    if (rank != NULL) { /* the rank's last line may explain the failure */
        ls_relay_stream_drain(&rank->output);
        ls_relay_stream_drain(&rank->error);
    }
    snprintf(self->remark, sizeof self->remark, " (rank %d, exit status %d)", failure->rank,
             WEXITSTATUS(failure->wait_status));
    const bool can_say = rank != NULL && WIFEXITED(failure->wait_status);
    self->explained = ls_lines_failed(&self->relay.lines, failure->rank, can_say ? rank->report.sentence : "",
                                      can_say ? self->remark : NULL);
}

static const ls_supervisor_owner owner = {.signal_all = signal_all, .set_timer = set_timer, .decided = on_decided};

static void rank_ended(job *self, ls_rank *rank, int wait_status) {
    rank->running = false;
    rank->wait_status = wait_status;
    ls_supervisor_ended(&self->supervisor);
    if (rank->pidfd >= 0) {
        uv_close((uv_handle_t *)&rank->watch, NULL);
        close(rank->pidfd);
        rank->pidfd = -1;
    }
    take_signals(self); /* a Ctrl-C may have reached the rank before the launcher */
    const ls_failure failure = ls_failure_of(rank, find_rank(self, ls_rank_read_report(rank)->failed_rank));
    const bool noted = wait_status != 0 && ls_supervisor_failed(&self->supervisor, &failure);
    ls_relay_stream_drain(&rank->output);
    ls_relay_stream_drain(&rank->error);
    if (noted && failure.blames) {
        self->relay.lines.hold_seconds += LS_BLAME_SECONDS;
    }
    if (noted && self->options->nodes != NULL) {
        ls_nodes_failed(self->options->nodes, &failure);
    }
    settle(self);
}

/*
 * Returns whether the launcher's own sentence makes this line redundant: a rank that reports the end of another rank
 * adds nothing.
 */
static bool is_reported(void *user, int rank, const char *line) {
    const job *self = user;
    const ls_rank_report *report = ls_rank_read_report(find_rank(self, rank));
    return self->supervisor.verdict.decided && report->status == LS_ERR_PEER && strstr(line, report->sentence) != NULL;
}

/* The event loop reports the ends of ranks in the order in which they happened; waitpid does not. */
static void on_rank_end(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    ls_rank *rank = (ls_rank *)poll;
    int wait_status = 0;
    if (waitpid(rank->pid, &wait_status, WNOHANG) == rank->pid) {
        rank_ended(poll->data, rank, wait_status);
        print_notice(poll->data);
    }
}

/*
 * Waits for orphans that became children of the launcher, for a guard that was killed, and, if there are no pidfds, for
 * ranks.
 */
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
    print_notice(self);
}

/* ---- other nodes ------------------------------------------------------------------------------------------------- */

static void on_failed(void *user, const ls_failure *failure) {
    job *self = user;
    ls_supervisor_decide(&self->supervisor, failure);
}

static void on_interrupted(void *user, int signal, int node) {
    job *self = user;
    char where[40];
    if (self->supervisor.phase != LS_SUPERVISOR_RUNNING) {
        return;
    }
    snprintf(where, sizeof where, " from node %d", node);
    pass_signal(self, signal, where, 0);
    print_notice(self);
}

static void print_line(void *user, const char *line) {
    job *self = user;
    ls_outlet_print(&self->relay.error, "%s", line);
}

static void on_over(void *user, bool restart) {
    job *self = user;
    self->done = true;
    self->restart = restart;
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

static ls_status watch(job *self, uv_poll_t *poll, int fd, uv_poll_cb callback) {
    int failure = uv_poll_init(&self->loop, poll, fd);
    poll->data = self;
    if (failure == 0) {
        failure = uv_poll_start(poll, UV_READABLE, callback);
    }
    return failure == 0 ? LS_OK
                        : ls_fail(LS_ERR_IO, "lockstep run: cannot watch a descriptor: %s", uv_strerror(failure));
}

/* Opens the signal descriptors, and makes this process the parent of processes of the job whose parent has ended. */
static ls_status open_signals(job *self) {
    sigset_t passed;
    sigset_t child;
    sigset_t blocked;
    sigemptyset(&passed);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    static const int signals[] = {SIGINT, SIGTERM, SIGQUIT, SIGTSTP, SIGUSR1, SIGUSR2, SIGHUP, 0};
    for (const int *signal = signals; *signal != 0; signal++) {
        struct sigaction action;
        sigaction(*signal, NULL, &action);
        if (*signal != SIGHUP || action.sa_handler != SIG_IGN) { /* respects nohup */
            sigaddset(&passed, *signal);
        }
    }
    sigorset(&blocked, &passed, &child);
    sigprocmask(SIG_BLOCK, &blocked, &self->mask);
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGPIPE, &ignore, &self->broken_pipe);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    self->signal_fd = signalfd(-1, &passed, SFD_CLOEXEC | SFD_NONBLOCK);
    self->child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (self->signal_fd < 0 || self->child_fd < 0) {
        return ls_fail(LS_ERR_IO, "lockstep run: cannot create a descriptor for signals: %s", strerror(errno));
    }
    LS_TRY(watch(self, &self->signals, self->signal_fd, on_signal));
    return watch(self, &self->children, self->child_fd, on_child);
}

static ls_status open_job(job *self) {
    const ls_job_options *options = self->options;
    uv_timer_init(&self->loop, &self->timer);
    self->timer.data = self;
    const ls_relay_options relay = {
        .hold = !options->prefix, .wait = wait_for_reader, .is_reported = is_reported, .user = self};
    ls_relay_open(&self->relay, &self->loop, &relay);
    LS_TRY(ls_tree_open(&self->tree));
    LS_TRY(open_signals(self));
    self->launch.relay = &self->relay;
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
                                     .print = print_line,
                                     .wants_restart = wants_restart,
                                     .user = self};
    return options->nodes != NULL ? ls_nodes_watch(options->nodes, &self->loop, &self->events) : LS_OK;
}

static ls_status start_ranks(job *self, int *exit_status) {
    for (int i = 0; i < self->options->ranks; i++) {
        ls_rank *rank = &self->ranks[i];
        LS_TRY(ls_rank_start(rank, &self->launch, exit_status));
        ls_supervisor_started(&self->supervisor);
        if (rank->pidfd >= 0 && watch(self, &rank->watch, rank->pidfd, on_rank_end) != LS_OK) {
            close(rank->pidfd);
            rank->pidfd = -1;
        }
    }
    return ls_guard_start(&self->guard, self->launch.mark);
}

/* ---- the end of the job ------------------------------------------------------------------------------------------ */

static int exit_status_of(const job *self) {
    return self->interrupt != 0    ? LS_EXIT_SIGNAL + self->interrupt
           : has_lost_output(self) ? LS_EXIT_FAILED
           : !has_failed(self)     ? 0
                                   : ls_failure_exit_status(&self->supervisor.verdict.failure);
}

/*
 * Returns whether SIGPIPE ended the failed rank because the output was closed: the closed output is then the cause to
 * report.
 */
static bool ended_by_lost_output(const job *self) {
    const int status = self->supervisor.verdict.failure.wait_status;
    return has_lost_output(self) && WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE;
}

static void conclude(job *self, ls_job_outcome *outcome) {
    for (int i = 0; i < self->options->ranks; i++) {
        ls_relay_stream_close(&self->ranks[i].output);
        ls_relay_stream_close(&self->ranks[i].error);
        close(self->ranks[i].report_fd);
        self->ranks[i].report_fd = -1; /* closed; the functions of lines.h may still read it */
    }
    ls_lines_flush(&self->relay.lines);
    print_notice(self);
    outcome->exit_status = exit_status_of(self);
    if (has_lost_output(self)) {
        ls_outlet_print(&self->relay.error, "lockstep: cannot write the output of the ranks to standard output: %s",
                        strerror(self->relay.output.failure));
    }
    const ls_failure *failure = &self->supervisor.verdict.failure;
    if (has_failed(self) && !self->explained && !ended_by_lost_output(self)) {
        ls_failure_report(&(ls_job_report){.options = self->options,
                                           .failure = failure,
                                           .rank = failure->rank >= 0 ? find_rank(self, failure->rank) : NULL,
                                           .ended = self->supervisor.others,
                                           .oom_kills = ls_oom_kills() - self->oom_kills,
                                           .nodes = self->launch.start.nodes},
                          &self->relay.error);
    }
    outcome->restart = self->options->nodes != NULL ? self->restart : wants_restart(self);
    if (outcome->restart) {
        char most[24] = ""; /* on several machines, node 0 knows the number */
        if (self->options->most_restarts > self->launch.restarts) {
            snprintf(most, sizeof most, " of %d", self->options->most_restarts);
        }
        ls_outlet_print(&self->relay.error, "lockstep: restarting the job (restart %d%s)", self->launch.restarts + 1,
                        most);
    }
}

static void close_handle(uv_poll_t *poll, int fd) {
    if (poll->type == UV_POLL) { /* the handle was opened */
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
    ls_relay_close(&self->relay);
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

/* Terminates the ranks that have started, because a rank on this node or another node failed to start. */
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
    ls_launch_close(&self->launch); /* so that no connection for rank 0 is accepted after rank 0 has died */
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
    self->supervisor = (ls_supervisor){.owner = &owner,
                                       .user = self,
                                       .grace = options->grace,
                                       .awaits_verdict = options->nodes != NULL,
                                       .deadline = LS_DEADLINE_NEVER};
    self->oom_kills = ls_oom_kills();
    self->launch = (ls_launch){.options = options, .restarts = restarts};
    const int failure =
        uv_loop_init(&self->loop); /* first, because libuv aborts the process if it has no descriptors left later */
    if (failure != 0) {
        ls_free(self);
        return ls_fail(LS_ERR_IO, "lockstep run: cannot create an event loop: %s", uv_strerror(failure));
    }
    ls_status status = ls_launch_open(&self->launch); /* may wait for other nodes; Ctrl-C ends the wait */
    if (status == LS_OK) {
        status = run(self, outcome);
        close_job(self);
    }
    uv_loop_close(&self->loop);
    ls_launch_close(&self->launch);
    ls_free(self);
    return status;
}
