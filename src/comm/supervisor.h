/*
 * Supervises the child processes of a job: determines which failure was the first, signals the other processes to exit,
 * and kills them after a grace period. Used by ls_spawn, `lockstep run` and the launchers of several nodes.
 *
 * A supervisor is a state machine. It neither starts processes nor waits for them. Its owner reports events (a process
 * started, ended or failed), and calls ls_supervisor_tick when the deadline has passed. The supervisor calls the
 * functions of its owner. The states are, in order:
 *
 * - running, until the first failure or ls_supervisor_end
 * - ending, for the grace period
 * - killing
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
    int rank; /* -1 if this is not the failure of a rank */
    int process;
    bool blames;     /* the rank reports that a different rank ended first */
    int wait_status; /* exit status of the rank, in waitpid's format */
    char text[LS_FAILURE_TEXT];
} ls_failure;

/* ---- the first failure ------------------------------------------------------------------------------------------- */

/* The verdict on the first failure. If all fields are 0, no failure is known. */
typedef struct ls_verdict {
    bool decided;       /* `failure` is the first failure. The owner may also set this to ignore later failures */
    bool suspected;     /* `failure` is valid */
    ls_failure failure; /* the first failure or, until a decision, the suspect */
} ls_verdict;

/* Records a failure that may not be the first. Replaces an earlier suspect only if that failure blames another rank
 * and this failure does not. Returns true if this failure is now the suspect. */
bool ls_verdict_suspect(ls_verdict *verdict, const ls_failure *failure);

/* Records the first failure. Returns false if the verdict had already been decided. `failure` may be the suspect. */
bool ls_verdict_decide(ls_verdict *verdict, const ls_failure *failure);

/* ---- the processes ----------------------------------------------------------------------------------------------- */

typedef enum ls_supervisor_phase {
    LS_SUPERVISOR_RUNNING,
    LS_SUPERVISOR_ENDING, /* the processes were signaled to exit, and have until the deadline */
    LS_SUPERVISOR_KILLING /* SIGKILL is repeated until no process is left */
} ls_supervisor_phase;

/* The callbacks of the owner. They must not wait. */
typedef struct ls_supervisor_owner {
    /* Sends a signal to all processes of the job. */
    void (*signal_all)(void *user, int signal);
    /* Must call ls_supervisor_tick in `seconds` seconds; replaces an earlier timer. NULL if the owner polls the
     * deadline. */
    void (*set_timer)(void *user, double seconds);
    /* Called once with the first failure, after the processes were signaled to exit. May be NULL. */
    void (*decided)(void *user, const ls_failure *failure);
} ls_supervisor_owner;

/* A supervisor. Designated initializers set the first five fields. */
typedef struct ls_supervisor {
    const ls_supervisor_owner *owner;
    void *user;
    double grace;         /* seconds between the signal to exit and SIGKILL */
    bool awaits_verdict;  /* another supervisor decides on the first failure: then call ls_supervisor_decide */
    ls_deadline deadline; /* when ls_supervisor_tick is due; initially LS_DEADLINE_NEVER */
    int running;          /* number of processes that have not ended */
    int others;           /* number of processes that were still running after the first failure */
    bool failed;          /* a process failed while the job was running; `others` is valid */
    bool settled;         /* no process is left, including processes started by the job's processes */
    ls_supervisor_phase phase;
    ls_verdict verdict;
} ls_supervisor;

void ls_supervisor_started(ls_supervisor *supervisor);
void ls_supervisor_ended(ls_supervisor *supervisor);

/*
 * Records that a process failed, after ls_supervisor_ended. Returns false if the failure is ignored because the job is
 * ending or another failure is already the suspect.
 */
bool ls_supervisor_failed(ls_supervisor *supervisor, const ls_failure *failure);

/* Records the first failure, and terminates the processes. */
void ls_supervisor_decide(ls_supervisor *supervisor, const ls_failure *failure);

/* Records that all processes have ended. The suspect, if any, was then the first failure. */
void ls_supervisor_all_ended(ls_supervisor *supervisor);

/* Sends `signal` to all processes, and starts the grace period. Also continues stopped processes. */
void ls_supervisor_end(ls_supervisor *supervisor, int signal);

void ls_supervisor_kill(ls_supervisor *supervisor);

/* Performs the action that is due at the deadline. */
void ls_supervisor_tick(ls_supervisor *supervisor);

#endif
