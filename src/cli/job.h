/*
 * One start of a job: the ranks on this machine, from their first instruction until none of their processes is left,
 * and with other nodes until that is so everywhere.
 */
#ifndef LS_CLI_JOB_H
#define LS_CLI_JOB_H

#include <lockstep/base.h>

#include "cli/cores.h"
#include "cli/gpus.h"
#include "cli/nodes.h"

typedef struct ls_job_options {
    const char *path;  /* the program's file */
    char *const *argv; /* its arguments, its name first */
    const ls_cores *cores;
    const ls_gpus *gpus;   /* NULL: ranks see those that this process sees */
    int ranks;             /* here */
    ls_nodes *nodes;       /* NULL: this machine alone */
    const char *interface; /* for data; NULL: not said */
    bool prefix;
    double grace;           /* seconds between a polite signal and SIGKILL */
    const char *output_dir; /* NULL: output is passed on */
    int most_restarts;
} ls_job_options;

typedef struct ls_job_outcome {
    int exit_status;
    bool restart; /* a rank failed and the job is to start again */
} ls_job_outcome;

/*
 * Runs the job as start number `restarts`, passes on output and signals, and says on standard error why it failed.
 * Fails itself only when the ranks could not be started; outcome->exit_status may then say more than 1.
 */
ls_status ls_job_run(const ls_job_options *options, int restarts, ls_job_outcome *outcome);

#endif
