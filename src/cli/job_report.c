#include "cli/job_report.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "cli/cli.h"

enum { TAIL_LINES = 8 };

static void describe_end(int wait_status, char *text, size_t size) {
    if (WIFSIGNALED(wait_status)) {
        const char *name = sigabbrev_np(WTERMSIG(wait_status));
        const char *core = WCOREDUMP(wait_status) ? " (core dumped)" : "";
        if (name != NULL) {
            snprintf(text, size, "was killed by SIG%s%s", name, core);
        } else {
            snprintf(text, size, "was killed by signal %d%s", WTERMSIG(wait_status), core);
        }
    } else {
        snprintf(text, size, "%s %d",
                 WEXITSTATUS(wait_status) == LS_EXIT_STOPPED
                     ? "has stopped in order to resume later: it exited with status"
                     : "exited with status",
                 WEXITSTATUS(wait_status));
    }
}

int64_t ls_oom_kills(void) {
    static const char name[] = "oom_kill ";
    char line[128];
    long long count = 0;
    FILE *file = fopen("/proc/vmstat", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, sizeof name - 1) == 0) {
            count = strtoll(line + sizeof name - 1, NULL, 10);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return (int64_t)count;
}

ls_failure ls_failure_of(const ls_rank *rank, const ls_rank *cause) {
    const bool is_well = cause == rank || (cause != NULL && !cause->running && cause->wait_status == 0);
    ls_failure failure = {.rank = rank->rank,
                          .process = (int)rank->pid,
                          .wait_status = rank->wait_status,
                          .blames = rank->report.status == LS_ERR_PEER && !is_well};
    ls_node_name_host(failure.text);
    const size_t used = strlen(failure.text);
    snprintf(failure.text + used, sizeof failure.text - used, " %s", rank->report.sentence);
    return failure;
}

/* Describes the OOM kills since the job began. The kernel reports only how many processes it killed, not which. */
static void describe_cause(const ls_job_report *report, char *text, size_t size) {
    const int wait_status = report->failure->wait_status;
    text[0] = '\0';
    if (report->oom_kills > 0 && WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL) {
        snprintf(text, size,
                 " (out of memory? the OOM killer has killed %" PRId64
                 " process%s on this machine since the job started)",
                 report->oom_kills, report->oom_kills == 1 ? "" : "es");
    }
}

/* Describes how the other ranks ended. */
static void describe_others(const ls_job_report *report, char *text, size_t size) {
    const int ended = report->ended;
    text[0] = '\0';
    if (ended > 0 && report->nodes > 1) {
        snprintf(text, size, "; %d %s terminated", ended, ended == 1 ? "rank here was" : "ranks here were");
    } else if (ended == 1) {
        snprintf(text, size, "; the other rank was terminated");
    } else if (ended > 1) {
        snprintf(text, size, "; the other %d ranks were terminated", ended);
    }
}

void ls_failure_report(const ls_job_report *report, ls_outlet *error) {
    const ls_failure *failure = report->failure;
    const ls_rank *rank = report->rank;
    char end[64];
    char cause[160];
    char others[64];
    char log[PATH_MAX] = "";
    const size_t host = strcspn(failure->text, " ");
    const char *why = failure->text + host + (failure->text[host] != '\0');
    const char *last = why[0] != '\0' ? "; its last error: " : "";
    describe_end(failure->wait_status, end, sizeof end);
    describe_cause(report, cause, sizeof cause);
    describe_others(report, others, sizeof others);
    if (failure->rank < 0) {
        ls_outlet_print(error, "lockstep: %s%s", failure->text, others);
        return;
    }
    if (rank == NULL) {
        ls_outlet_print(error, "lockstep: rank %d (pid %d on %.*s) %s%s%s%s", failure->rank, failure->process,
                        (int)host, failure->text, end, others, last, why);
        return;
    }
    if (report->options->output_dir != NULL) {
        ls_rank_log_path(report->options, rank->rank, log, sizeof log);
    }
    const bool out_of_sight = ls_relay_stream_out_of_sight(&rank->error);
    ls_outlet_print(error, "lockstep: rank %d (pid %d) %s%s%s%s%s%s%s", rank->rank, (int)rank->pid, end, cause, others,
                    log[0] != '\0' ? "; its output is in " : "", log, last, why);
    size_t size = 0;
    const char *tail = ls_relay_stream_last_lines(&rank->error, TAIL_LINES, &size);
    if (size > 0 && out_of_sight) {
        ls_outlet_print(error, "lockstep: the last lines of rank %d were:", rank->rank);
        ls_outlet_put(error, tail, size); /* the output of the program, unchanged */
        ls_outlet_put(error, "\n", 1);
        ls_outlet_flush(error);
    }
}

int ls_failure_exit_status(const ls_failure *failure) {
    return failure->rank < 0                   ? LS_EXIT_FAILED
           : WIFSIGNALED(failure->wait_status) ? LS_EXIT_SIGNAL + WTERMSIG(failure->wait_status)
                                               : WEXITSTATUS(failure->wait_status);
}
