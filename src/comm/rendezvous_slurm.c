/* The variables that srun sets for the tasks that it starts: their ranks, and the host of the first task. */
#include <stdio.h>
#include <string.h>

#include "comm/rendezvous.h"

enum { FIRST_PORT = 20000, PORTS = 12000 }; /* below the ports that systems assign automatically */

ls_status ls_slurm_first_host(const char *list, char host[LS_HOST_CAPACITY]) {
    size_t used = 0;
    for (const char *at = list; *at != '\0' && *at != ',';) {
        const bool choice = *at == '['; /* a range or list of numbers, of which the first is used */
        const char *part = at + choice;
        const char *end = strchr(part, ']');
        const size_t length = choice ? strcspn(part, "-,]") : 1;
        if (used + length >= LS_HOST_CAPACITY ||
            (choice ? end == NULL || length == 0 || strspn(part, "0123456789") != length : *at == ']')) {
            return ls_fail(LS_ERR_ARGUMENT, "\"%s\" is not a list of hosts in Slurm's format", list);
        }
        memcpy(host + used, part, length);
        used += length;
        at = choice ? end + 1 : part + 1;
    }
    host[used] = '\0';
    return used > 0 ? LS_OK : ls_fail(LS_ERR_ARGUMENT, "the list of hosts is empty");
}

bool ls_slurm_is_here(void) {
    return ls_environment_text("SLURM_PROCID") != NULL && ls_environment_text("SLURM_STEP_NODELIST") != NULL;
}

/* Sets where rank 0 serves the store: as the user specified, otherwise at the step's first host and a port derived
 * from job and step. */
ls_status ls_slurm_find_master(ls_job *job) {
    char host[LS_HOST_CAPACITY];
    int nodes = 0, number = 0, step = 0, port = 0;
    const char *said = ls_environment_text("MASTER_ADDR");
    if (said != NULL && strlen(said) < sizeof host) {
        snprintf(host, sizeof host, "%s", said);
    } else if (ls_environment_text("SLURM_STEP_NUM_NODES") != NULL &&
               ls_environment_number("SLURM_STEP_NUM_NODES", 1, LS_RANKS_MAX, &nodes) == LS_OK && nodes == 1) {
        snprintf(host, sizeof host, "127.0.0.1");
    } else if (ls_slurm_first_host(ls_environment_text("SLURM_STEP_NODELIST"), host) != LS_OK) {
        return ls_fail_in("SLURM_STEP_NODELIST");
    }
    if (ls_environment_text("MASTER_PORT") != NULL) {
        LS_TRY(ls_environment_number("MASTER_PORT", 1, 65535, &port));
    } else {
        const char *named = ls_environment_text("SLURM_STEP_ID") != NULL ? "SLURM_STEP_ID" : "SLURM_STEPID";
        LS_TRY(ls_environment_number("SLURM_JOB_ID", 0, 2147483647, &number));
        LS_TRY(ls_environment_number(named, 0, 2147483647, &step));
        port = FIRST_PORT + (int)(((long)number * 7 + step) % PORTS);
    }
    ls_job_set_place(job, host, port);
    return LS_OK;
}

ls_status ls_slurm_read_place(ls_job *job) {
    const char *size = ls_environment_text("SLURM_STEP_NUM_TASKS") != NULL ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    LS_TRY(ls_environment_number(size, 1, LS_RANKS_MAX, &job->size));
    LS_TRY(ls_environment_number("SLURM_PROCID", 0, job->size - 1, &job->rank));
    if (ls_environment_text("SLURM_LOCALID") != NULL) {
        LS_TRY(ls_environment_number("SLURM_LOCALID", 0, job->size - 1, &job->local_rank));
    }
    return LS_OK;
}
