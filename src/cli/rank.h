/* One rank of a job: its descriptors, environment and process. */
#ifndef LS_CLI_RANK_H
#define LS_CLI_RANK_H

#include <signal.h>
#include <sys/resource.h>
#include <uv.h>

#include "cli/cores.h"
#include "cli/environment.h"
#include "cli/job.h"
#include "cli/relay.h"
#include "comm/rank_report.h"

typedef struct ls_rank {
    uv_poll_t watch; /* watches pidfd; first member: libuv returns a pointer to it */
    int pidfd;       /* readable when the process has ended; -1 if not open */
    int rank;        /* in the world */
    int local_rank;
    pid_t pid; /* 0 if not started */
    bool running;
    int wait_status;
    int report_fd;         /* the descriptor on which the rank reports the reason of its failure; -1 if not open */
    ls_rank_report report; /* the last report */
    ls_relay_stream output;
    ls_relay_stream error;
} ls_rank;

/* The state that all ranks of one start on this machine share. */
typedef struct ls_launch {
    const ls_job_options *options;
    ls_start start;
    ls_relay *relay;
    int restarts;
    char mark[LS_KEY_TEXT_SIZE]; /* contained in the environment of all processes of this start on this machine */
    int nothing_fd;              /* /dev/null */
    int output_dir;              /* the folder options->output_dir, or -1 */
    sigset_t mask;               /* the caller's signal mask, which is passed to the ranks */
    struct sigaction broken_pipe;
    struct rlimit files; /* the caller's limit, which is passed to the ranks; the launcher raises its own limit */
} ls_launch;

/* Prepares the start: creates a new key, and a socket for the store that is bound before any rank starts. */
ls_status ls_launch_open(ls_launch *launch);

void ls_launch_close(ls_launch *launch);

/*
 * Starts rank rank->rank. Its descriptors must be -1 and the other fields zero. On failure, sets *exit_status to the
 * status that a shell would return.
 */
ls_status ls_rank_start(ls_rank *rank, const ls_launch *launch, int *exit_status);

/* Returns the last report of the rank about its failure. */
const ls_rank_report *ls_rank_read_report(ls_rank *rank);

/* Writes the path of the rank's file under --output-dir. */
void ls_rank_log_path(const ls_job_options *options, int rank, char *path, size_t size);

#endif
