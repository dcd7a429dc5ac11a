/* One rank of a job: its descriptors, its environment, its process. */
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
    uv_poll_t watch; /* of pidfd; first: libuv gives it back */
    int pidfd;       /* readable when the process has ended; -1: not open */
    int rank;        /* in the world */
    int local_rank;
    pid_t pid; /* 0: never started */
    bool running;
    int wait_status;
    int report_fd;         /* where it tells why it fails; -1: not open */
    ls_rank_report report; /* the last that was heard of that */
    ls_relay_stream output;
    ls_relay_stream error;
} ls_rank;

/* What all ranks of one start on this machine have in common. */
typedef struct ls_launch {
    const ls_job_options *options;
    ls_start start;
    uv_loop_t *loop;
    ls_outlet *output;
    ls_outlet *error;
    ls_lines *lines;
    int restarts;
    char mark[LS_KEY_TEXT_SIZE]; /* in the environment of all that comes of this start here, and of nothing else */
    int nothing_fd;              /* /dev/null */
    int output_dir;              /* the folder of options->output_dir; -1: none */
    sigset_t mask;               /* of the launcher's caller, which ranks get back */
    struct sigaction broken_pipe;
    struct rlimit files; /* of the caller too; the launcher raises its own */
} ls_launch;

/* Agrees on the start, with a fresh key and a store's socket that is bound before any rank starts. */
ls_status ls_launch_open(ls_launch *launch);

void ls_launch_close(ls_launch *launch);

/* Starts rank rank->rank (its descriptors -1, the rest zeroed). On failure *exit_status becomes what a shell would say.
 */
ls_status ls_rank_start(ls_rank *rank, const ls_launch *launch, int *exit_status);

/* What the rank has told so far of why it fails. */
const ls_rank_report *ls_rank_hear(ls_rank *rank);

/* The file that takes the rank's output under --output-dir. */
void ls_rank_log_path(const ls_job_options *options, int rank, char *path, size_t size);

#endif
