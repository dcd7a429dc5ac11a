/* What the launcher says of a job's first failure, and its exit status then. */
#ifndef LS_CLI_JOB_REPORT_H
#define LS_CLI_JOB_REPORT_H

#include "cli/job.h"
#include "cli/outlet.h"
#include "cli/rank.h"

typedef struct ls_job_report {
    const ls_job_options *options;
    const ls_failure *failure;
    const ls_rank *rank; /* the one that failed; NULL: it ran elsewhere, or no rank did */
    int ended;           /* how many others ran here at that moment */
    int64_t oom_kills;   /* since before any rank ran */
    int nodes;           /* of the job */
} ls_job_report;

/* How many processes of this machine the kernel has ended for want of memory since it began; 0 where it does not say.
 */
int64_t ls_oom_kills(void);

/* Of a rank that has ended; `culprit`, unless NULL, is the rank here whose end it reports as the reason. */
ls_failure ls_failure_of(const ls_rank *rank, const ls_rank *culprit);

/* Says which rank failed, where and how, what became of the others, and its last lines if nobody has seen them. */
void ls_failure_report(const ls_job_report *report, ls_outlet *error);

/* The exit status of a job that ended by this failure. */
int ls_failure_exit_status(const ls_failure *failure);

#endif
