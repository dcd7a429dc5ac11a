/*
 * One launch of a job: the ranks on this machine, from their first instruction until all their processes have ended.
 * With several nodes, until they have ended on every node.
 */
#ifndef LS_CLI_JOB_H
#define LS_CLI_JOB_H

#include <lockstep/base.h>

#include "cli/cores.h"
#include "cli/gpus.h"
#include "cli/nodes.h"

typedef struct ls_job_options {
    const char *path;  /* the program's file */
    char *const *argv; /* the program's arguments, beginning with its name */
    const ls_cores *cores;
    const ls_gpus *gpus;   /* NULL if ranks see all GPUs that this process sees */
    int ranks;             /* here */
    ls_nodes *nodes;       /* NULL for a job on this machine only */
    const char *interface; /* network interface for data; NULL selects it automatically */
    bool prefix;
    double grace;           /* seconds between SIGTERM and SIGKILL */
    const char *output_dir; /* NULL if the launcher forwards the output */
    int most_restarts;
} ls_job_options;

typedef struct ls_job_outcome {
    int exit_status;
    bool restart; /* a rank failed, and the job should be restarted */
} ls_job_outcome;

/*
 * Runs the job as start number `restarts`. Forwards output and signals, and prints why the job failed. Fails only if
 * the ranks could not be started; outcome->exit_status may then be more specific than 1.
 */
ls_status ls_job_run(const ls_job_options *options, int restarts, ls_job_outcome *outcome);

#endif
