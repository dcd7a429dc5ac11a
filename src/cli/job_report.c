#include "cli/job_report.h"

#include <limits.h>
#include <stdio.h>
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
        snprintf(text, size, "exited with status %d", WEXITSTATUS(wait_status));
    }
}

/* What became of the others. */
static void describe_others(const ls_report *report, char *text, size_t size) {
    const int ended = report->ended;
    text[0] = '\0';
    if (ended > 0 && report->nodes > 1) {
        snprintf(text, size, "; %d here %s ended", ended, ended == 1 ? "was" : "were");
    } else if (ended == 1) {
        snprintf(text, size, "; the other was ended");
    } else if (ended > 1) {
        snprintf(text, size, "; the other %d were ended", ended);
    }
}

void ls_failure_report(const ls_report *report, ls_outlet *error) {
    const ls_failure *failure = report->failure;
    const ls_rank *rank = report->rank;
    char end[64];
    char others[64];
    char log[PATH_MAX] = "";
    describe_end(failure->wait_status, end, sizeof end);
    describe_others(report, others, sizeof others);
    if (failure->rank < 0) {
        ls_outlet_say(error, "lockstep: %s%s", failure->text, others);
        return;
    }
    if (rank == NULL) {
        ls_outlet_say(error, "lockstep: rank %d (pid %d on %s) %s%s", failure->rank, failure->process, failure->text,
                      end, others);
        return;
    }
    if (report->options->output_dir != NULL) {
        ls_rank_log_path(report->options, rank->rank, log, sizeof log);
    }
    const bool out_of_sight = ls_relay_out_of_sight(&rank->error);
    ls_outlet_say(error, "lockstep: rank %d (pid %d) %s%s%s%s", rank->rank, (int)rank->pid, end, others,
                  log[0] != '\0' ? "; its output is in " : "", log);
    size_t size = 0;
    const char *tail = ls_relay_last_lines(&rank->error, TAIL_LINES, &size);
    if (size > 0 && out_of_sight) {
        ls_outlet_say(error, "lockstep: the last lines of rank %d were:\n%.*s", rank->rank, (int)size, tail);
    }
}

int ls_failure_exit_status(const ls_failure *failure) {
    return failure->rank < 0                   ? LS_EXIT_FAILED
           : WIFSIGNALED(failure->wait_status) ? LS_EXIT_SIGNAL + WTERMSIG(failure->wait_status)
                                               : WEXITSTATUS(failure->wait_status);
}
