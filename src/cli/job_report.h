/* The launcher's report about the first failure of a job, and its exit status. */
#ifndef LS_CLI_JOB_REPORT_H
#define LS_CLI_JOB_REPORT_H

#include "cli/job.h"
#include "cli/outlet.h"
#include "cli/rank.h"

typedef struct ls_job_report {
    const ls_job_options *options;
    const ls_failure *failure;
    const ls_rank *rank; /* the rank that failed; NULL if it ran on another node, or if a node failed */
    int ended;           /* number of other ranks on this machine that were running at that moment */
    int64_t oom_kills;   /* number of OOM kills since before the first rank started */
    int nodes;           /* the number of nodes of the job */
} ls_job_report;

/* Returns the number of processes that the OOM killer has killed on this machine since boot, or 0 if unknown. */
int64_t ls_oom_kills(void);

/*
 * Returns the failure of a rank that has ended. `cause`, unless NULL, is a rank on this machine that the failed rank
 * reports as the cause.
 */
ls_failure ls_failure_of(const ls_rank *rank, const ls_rank *cause);

/*
 * Prints which rank failed, on which node and why, what happened to the other ranks, and the last lines of the failed
 * rank if the user has not seen them.
 */
void ls_failure_report(const ls_job_report *report, ls_outlet *error);

/* Returns the exit status of a job that ended with this failure. */
int ls_failure_exit_status(const ls_failure *failure);

#endif
