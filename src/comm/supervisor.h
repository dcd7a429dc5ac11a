/*
 * Supervises the child processes of a job: decides which failure was the first, signals the other processes to end, and
 * kills them after a grace period. ls_spawn, `lockstep run` and the launchers of several nodes use it.
 *
 * A supervisor is a state machine. It neither starts processes nor waits for them. Its owner reports events (a process
 * started, ended or failed), and calls ls_supervisor_tick when the deadline has passed. The supervisor calls the
 * functions of its owner.
 *
 *     running  -- first failure, or ls_supervisor_end -->  ending  -- grace period -->  killing
 *
 * A process may fail because another process ended earlier, and report this. The notification of that end may arrive
 * later. Such a failure is only a suspect for LS_BLAME_SECONDS, or until all processes have ended.
 */
#ifndef LS_COMM_SUPERVISOR_H
#define LS_COMM_SUPERVISOR_H

#include "base/wait.h"

#define LS_BLAME_SECONDS 1.0

enum { LS_FAILURE_TEXT = 1200 };

typedef struct ls_failure {
    int rank; /* -1: not the failure of a rank */
    int process;
    bool blames;     /* the rank reports that another rank ended first */
    int wait_status; /* of the rank, in waitpid's format */
    char text[LS_FAILURE_TEXT];
} ls_failure;

/* ---- the first failure ------------------------------------------------------------------------------------------- */

/* All fields 0: no failure is known. */
typedef struct ls_verdict {
    bool decided;       /* `failure` is the first failure. The owner may also set this: later failures do not count */
    bool suspected;     /* `failure` is valid */
    ls_failure failure; /* the first failure, or the suspect while nothing is decided */
} ls_verdict;

/* Notes a failure that may not be the first. Replaces an earlier suspect only if the earlier failure blames another
 * rank and this failure does not. Returns true if this failure is now the suspect. */
bool ls_verdict_suspect(ls_verdict *verdict, const ls_failure *failure);

/* Notes the first failure. Returns false if the verdict was decided before. `failure` may be the suspect. */
bool ls_verdict_decide(ls_verdict *verdict, const ls_failure *failure);

/* ---- the processes ----------------------------------------------------------------------------------------------- */

typedef enum ls_supervisor_phase {
    LS_SUPERVISOR_RUNNING,
    LS_SUPERVISOR_ENDING, /* the processes got a signal to end, and have until the deadline */
    LS_SUPERVISOR_KILLING /* SIGKILL, repeated until no process is left */
} ls_supervisor_phase;

/* The owner's functions. They must not wait. */
typedef struct ls_supervisor_owner {
    /* Sends a signal to all processes of the job. */
    void (*signal_all)(void *user, int signal);
    /* Calls ls_supervisor_tick in `seconds`; replaces an earlier timer. NULL: the owner polls the deadline. */
    void (*set_timer)(void *user, double seconds);
    /* Reports the first failure, after the processes got the signal to end. Called once. NULL: not called. */
    void (*decided)(void *user, const ls_failure *failure);
} ls_supervisor_owner;

/* Designated initializers set the first five fields. */
typedef struct ls_supervisor {
    const ls_supervisor_owner *owner;
    void *user;
    double grace;         /* seconds between the signal to end and SIGKILL */
    bool awaits_verdict;  /* another supervisor decides which failure was the first: call ls_supervisor_decide */
    ls_deadline deadline; /* when ls_supervisor_tick is due; initially LS_DEADLINE_NEVER */
    int running;          /* processes that have not ended */
    int others;           /* processes that still ran after the first failure */
    bool failed;          /* a process failed while the job ran; `others` is valid */
    bool settled;         /* no process is left, not even processes that the job's processes started */
    ls_supervisor_phase phase;
    ls_verdict verdict;
} ls_supervisor;

void ls_supervisor_started(ls_supervisor *supervisor);
void ls_supervisor_ended(ls_supervisor *supervisor);

/*
 * Notes that a process failed, after ls_supervisor_ended. Returns false if the failure is ignored, because the job is
 * ending or another failure is the suspect already.
 */
bool ls_supervisor_failed(ls_supervisor *supervisor, const ls_failure *failure);

/* Notes the first failure, and ends the processes. */
void ls_supervisor_decide(ls_supervisor *supervisor, const ls_failure *failure);

/* Notes that all processes have ended: the suspect was the first failure. */
void ls_supervisor_all_ended(ls_supervisor *supervisor);

/* Sends `signal` to all processes, and gives them the grace period. Also continues stopped processes. */
void ls_supervisor_end(ls_supervisor *supervisor, int signal);

void ls_supervisor_kill(ls_supervisor *supervisor);

/* Does what is due at the deadline. */
void ls_supervisor_tick(ls_supervisor *supervisor);

#endif
