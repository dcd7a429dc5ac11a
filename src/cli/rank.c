#include "cli/rank.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/process.h"

enum { REPORT_FD = STDERR_FILENO + 1, MOST_REPORTS = 1000 /* more than the buffer of a socket can hold */ };

/* ---- shared by all ranks ----------------------------------------------------------------------------------------- */

/*
 * Examines the path itself, which may be a symbolic link. First removes trailing slashes and dots, because with them
 * lstat would follow the link.
 */
static bool stat_link(const char *path, struct stat *there) {
    char name[PATH_MAX];
    size_t length = strlen(path);
    while (length > 1 && (path[length - 1] == '/' || strncmp(path + length - 2, "/.", 2) == 0)) {
        length--;
    }
    return (size_t)snprintf(name, sizeof name, "%.*s", (int)length, path) < sizeof name && lstat(name, there) == 0;
}

/*
 * Opens the folder, so that it cannot be replaced later. A link to it must belong to this user or root, because another
 * user's link could lead anywhere.
 */
static ls_status open_output_dir(ls_launch *launch) {
    const char *path = launch->options->output_dir;
    struct stat there, opened;
    if (path == NULL) {
        return LS_OK;
    }
    launch->output_dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (launch->output_dir < 0 || fstat(launch->output_dir, &opened) != 0 || !stat_link(path, &there)) {
        return ls_fail(LS_ERR_IO, "lockstep run: cannot open --output-dir %s: %s", path, strerror(errno));
    }
    const bool good = S_ISLNK(there.st_mode) ? there.st_uid == geteuid() || there.st_uid == 0
                                             : there.st_dev == opened.st_dev && there.st_ino == opened.st_ino;
    return good ? LS_OK
                : ls_fail(LS_ERR_DENIED,
                          "lockstep run: --output-dir %s is a symbolic link that belongs to a different user", path);
}

ls_status ls_launch_open(ls_launch *launch) {
    const ls_job_options *options = launch->options;
    getrlimit(RLIMIT_NOFILE, &launch->files); /* each rank needs four descriptors, and the usual limit is 1024 */
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){launch->files.rlim_max, launch->files.rlim_max});
    launch->start.listener = -1;
    launch->output_dir = -1;
    launch->nothing_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (launch->nothing_fd < 0) {
        return ls_fail(LS_ERR_IO, "lockstep run: cannot open /dev/null: %s", strerror(errno));
    }
    LS_TRY(open_output_dir(launch));
    LS_TRY(ls_key_make(launch->mark));
    return options->nodes != NULL ? ls_nodes_start(options->nodes, launch->restarts, &launch->start)
                                  : ls_start_alone(options->ranks, &launch->start);
}

void ls_launch_close(ls_launch *launch) {
    for (int *const *fd = (int *const[]){&launch->start.listener, &launch->nothing_fd, &launch->output_dir, NULL};
         *fd != NULL; fd++) {
        if (**fd >= 0) {
            close(**fd);
            **fd = -1;
        }
    }
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

void ls_rank_log_path(const ls_job_options *options, int rank, char *path, size_t size) {
    snprintf(path, size, "%s/rank-%d.log", options->output_dir, rank);
}

/*
 * Opens a log file. If other users can write to the folder, a name could lead to a file elsewhere. So the file must be
 * new, or a regular file of this user with only one hard link.
 */
static int open_own(int folder, const char *name) {
    const int flags = O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    struct stat about;
    int fd = openat(folder, name, flags | O_CREAT | O_EXCL, 0666);
    if (fd >= 0 || errno != EEXIST) {
        return fd;
    }
    fd = openat(folder, name, flags);
    if (fd >= 0 &&
        (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || about.st_uid != geteuid() || about.st_nlink != 1)) {
        close(fd);
        errno = ELOOP; /* the error for a symbolic link */
        return -1;
    }
    return fd;
}

static ls_status open_log(const ls_launch *launch, int rank, int *fd) {
    char path[PATH_MAX];
    ls_rank_log_path(launch->options, rank, path, sizeof path);
    *fd = open_own(launch->output_dir, strrchr(path, '/') + 1);
    if (*fd >= 0 && (launch->restarts > 0 || ftruncate(*fd, 0) == 0)) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_IO, "lockstep run: cannot write %s: %s", path,
                   errno == ELOOP || errno == ENXIO
                       ? "the path exists, but is not a regular file of this user; remove it"
                       : strerror(errno));
}

static ls_status open_pipe(ls_relay_stream *stream, const ls_launch *launch, int *fd) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return ls_fail(LS_ERR_IO, "lockstep run: cannot create a pipe for the output of %d ranks: %s",
                       launch->options->ranks, strerror(errno));
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const ls_status status = ls_relay_stream_open(stream, launch->relay, ends[0]);
    if (status != LS_OK) {
        close(ends[0]);
        close(ends[1]);
        return status;
    }
    *fd = ends[1];
    return LS_OK;
}

/*
 * Opens an output stream. A rank writes directly if lines cannot mix: if it is the only rank, or for rank 0's standard
 * output on a terminal, where progress bars need it. All other output goes through a pipe and is forwarded line by
 * line.
 */
static ls_status open_stream(ls_rank *rank, const ls_launch *launch, int fd, int *standard_fd) {
    const ls_job_options *options = launch->options;
    const bool error = fd == STDERR_FILENO;
    const bool terminal = rank->rank == 0 && isatty(fd);
    if (!options->prefix && (launch->start.world == 1 || (terminal && !error))) {
        *standard_fd = fd;
        return LS_OK;
    }
    ls_relay_stream *stream = error ? &rank->error : &rank->output;
    stream->prompts = terminal && !options->prefix;
    stream->source = (ls_line_source){.rank = rank->rank, .error = error};
    if (options->prefix) {
        snprintf(stream->source.prefix, sizeof stream->source.prefix, "[rank %d] ", rank->rank);
    }
    return open_pipe(stream, launch, standard_fd);
}

/* Packets keep valid reports separate from garbage, and neither side waits for the other. */
static ls_status open_report(ls_rank *rank, int *fd) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        return ls_fail(LS_ERR_IO, "lockstep run: cannot create a socket for the reports of rank %d: %s", rank->rank,
                       strerror(errno));
    }
    rank->report_fd = ends[0];
    *fd = ends[1];
    return LS_OK;
}

const ls_rank_report *ls_rank_read_report(ls_rank *rank) {
    char text[LS_REPORT_TEXT];
    for (int i = 0; i < MOST_REPORTS; i++) {
        const ssize_t size = recv(rank->report_fd, text, sizeof text - 1, 0);
        if (size < 0) { /* 0 means the end, or an empty packet */
            break;
        }
        ls_rank_report heard;
        text[size] = '\0';
        if (ls_rank_report_read(text, &heard) && heard.rank == rank->rank) {
            rank->report = heard;
        }
    }
    return &rank->report;
}

static ls_status open_descriptors(ls_rank *rank, const ls_launch *launch, int fds[4]) {
    LS_TRY(open_report(rank, &fds[REPORT_FD]));
    fds[STDIN_FILENO] = rank->rank == 0 ? STDIN_FILENO : launch->nothing_fd;
    if (launch->options->output_dir != NULL) {
        LS_TRY(open_log(launch, rank->rank, &fds[STDOUT_FILENO]));
        fds[STDERR_FILENO] = fds[STDOUT_FILENO];
        return LS_OK;
    }
    LS_TRY(open_stream(rank, launch, STDOUT_FILENO, &fds[STDOUT_FILENO]));
    return open_stream(rank, launch, STDERR_FILENO, &fds[STDERR_FILENO]);
}

static ls_status fail_start(const ls_job_options *options, int rank, int error, int *exit_status) {
    *exit_status = error == ENOENT ? LS_EXIT_NOT_FOUND : LS_EXIT_CANNOT_EXECUTE;
    const char *hint = error == ENOENT    ? " (the interpreter that the file's first line or header names is missing)"
                       : error == ENOEXEC ? " (a script needs a first line like #!/bin/sh)"
                                          : "";
    return ls_fail(LS_ERR_IO, "lockstep run: cannot start '%s' as rank %d: %s%s", options->path, rank, strerror(error),
                   hint);
}

static ls_status start_process(ls_rank *rank, const ls_launch *launch, const int fds[4], int *exit_status) {
    const ls_job_options *options = launch->options;
    const bool first = rank->rank == 0;
    char gpu[LS_GPU_TEXT];
    const bool own_gpu = options->gpus != NULL && ls_gpus_of_rank(options->gpus, rank->local_rank, options->ranks, gpu);
    const ls_rank_place place = {.rank = rank->rank,
                                 .local_rank = rank->local_rank,
                                 .local_ranks = options->ranks,
                                 .start = &launch->start,
                                 .interface = options->interface,
                                 .store_fd = first && launch->start.world > 1 ? launch->start.listener : -1,
                                 .report_fd = fds[REPORT_FD],
                                 .restarts = launch->restarts,
                                 .threads = options->cores->threads,
                                 .gpu = own_gpu ? gpu : NULL,
                                 .mark = launch->mark};
    char **environment = ls_environment_make(&place);
    if (environment == NULL) {
        return ls_error_status();
    }
    /* Rank 0 stays in the terminal's foreground process group, so it can read from the terminal and set its modes. */
    const bool terminal = isatty(STDIN_FILENO) || isatty(STDOUT_FILENO) || isatty(STDERR_FILENO);
    const ls_process_spec spec = {.path = options->path,
                                  .argv = options->argv,
                                  .environment = environment,
                                  .standard_fds = {fds[0], fds[1], fds[2]},
                                  .kept_fds = {place.store_fd, place.report_fd},
                                  .own_group = !first || !terminal,
                                  .cores = ls_cores_of_rank(options->cores, rank->local_rank),
                                  .cores_size = options->cores->set_size,
                                  .mask = &launch->mask,
                                  .broken_pipe = &launch->broken_pipe,
                                  .files = &launch->files};
    int error = 0;
    const pid_t pid = ls_process_start(&spec, &error);
    ls_free(environment);
    if (pid < 0) {
        return fail_start(options, rank->rank, error, exit_status);
    }
    rank->pid = pid;
    rank->running = true;
    rank->pidfd = (int)syscall(SYS_pidfd_open, pid, 0); /* close-on-exec; without pidfds, SIGCHLD reports the end */
    return LS_OK;
}

ls_status ls_rank_start(ls_rank *rank, const ls_launch *launch, int *exit_status) {
    int fds[4] = {-1, -1, -1, -1};
    ls_status status = open_descriptors(rank, launch, fds);
    if (status == LS_OK) {
        status = start_process(rank, launch, fds, exit_status);
    }
    for (int fd = STDOUT_FILENO; fd <= REPORT_FD; fd++) {
        if (fds[fd] > STDERR_FILENO && (fd == STDOUT_FILENO || fds[fd] != fds[STDOUT_FILENO])) {
            close(fds[fd]);
        }
    }
    return status;
}
