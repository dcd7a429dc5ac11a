/*
 * The ranks of a trial end together. A callback or a user step may fail, or stop the run, on only one rank. The other
 * ranks would then wait for this rank in their next collective call.
 * - A rank that fails starts an agreement, one all-reduce, before it returns. The other ranks are then in another
 *   collective call in the step, which fails with LS_ERR_MISMATCH. Their step therefore fails, and they join the
 *   agreement.
 * - In the agreement, all ranks get the status and the message of a rank that failed on its own, not with
 *   LS_ERR_MISMATCH.
 * - If any rank has callbacks or a user step, all ranks also agree at the end of every batch and epoch, so that a run
 *   stops on all ranks after the same batch. At the end of a run, they always agree.
 */
#include "train/agree.h"

#include <stdio.h>
#include <string.h>

#include "base/wait.h"
#include "comm/abort.h"

#define TIMEOUT_NS UINT64_C(10000000000) /* time limit for an agreement that the other ranks do not join */
#define TRIES      1000   /* attempts, each of which may coincide with a different call of the other ranks */
#define LONGEST_NS 100000 /* between two polls */

/* The outcome of a step on a rank. The largest outcome over all ranks counts. */
enum { GOES_ON = 0, STOPS, FAILS_WITH_OTHERS, FAILS };

typedef struct report {
    int32_t status;
    char message[LS_ERROR_CAPACITY];
} report;

static bool is_alone(const ls_trial *trial) {
    return ls_comm_size(trial->state.comm) <= 1;
}

/* The contents of an agreement: the outcome of a rank, its request, and the progress of its checkpoint. */
enum { OUTCOME, ASKS, WRITING, PARTS };
typedef struct vote {
    ls_loc_i64 parts[PARTS];
} vote;

static vote vote_of(const ls_trial *trial, ls_status status) {
    const int64_t ended = status == LS_ERR_MISMATCH ? FAILS_WITH_OTHERS : FAILS;
    const int64_t goes = trial->state.stop ? STOPS : GOES_ON;
    const int64_t rank = ls_comm_rank(trial->state.comm);
    return (vote){{[OUTCOME] = {.value = status == LS_OK ? goes : ended, .location = rank},
                   [ASKS] = {.value = trial->ballot.asks, .location = rank},
                   [WRITING] = {.value = trial->ballot.writing, .location = rank}}};
}

/*
 * The all-reduce of an agreement. No other call has the same arguments. If several ranks have the same outcome, the
 * lowest rank counts.
 */
static ls_status meet(ls_comm *comm, const vote *mine, vote *worst, ls_work **work) {
    return ls_comm_allreduce(comm, mine, worst, PARTS, LS_I64, LS_MAXLOC, work);
}

/*
 * The all-reduce of a rank that failed. If the other ranks are waiting in other calls, revokes the communicator after
 * TIMEOUT_NS.
 */
static ls_status meet_in_failure(ls_comm *comm, vote *outcome, const report *own) {
    ls_status status = LS_ERR_MISMATCH;
    ls_wait wait = {.longest_ns = LONGEST_NS};
    for (int i = 0; i < TRIES && status == LS_ERR_MISMATCH; i++) {
        vote worst = *outcome;
        ls_work *work = NULL;
        status = meet(comm, outcome, &worst, &work);
        if (status == LS_ERR_MEMORY) { /* the asynchronous call allocates memory, but the blocking call does not */
            status = meet(comm, outcome, &worst, NULL);
        }
        while (status == LS_OK && !ls_work_done(work)) {
            if (wait.awake.ns > TIMEOUT_NS) {
                (void)ls_comm_abort(comm, ls_error_set((ls_status)own->status, "%s", own->message));
            }
            (void)ls_wait_pause(&wait);
        }
        status = status == LS_OK ? ls_work_wait(work) : status;
        *outcome = status == LS_OK ? worst : *outcome;
    }
    return status;
}

/* Returns a report of this rank's failure for the other ranks. */
static report report_of(const ls_trial *trial, ls_status status, const char *reason) {
    static const char prefix[] = "ls_trial: ";
    const size_t known = strncmp(reason, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
    report own = {.status = (int32_t)status};
    (void)ls_error_set(status, "%srank %d failed: %s%s", prefix, ls_comm_rank(trial->state.comm), trial->failed_in,
                       reason + known);
    memcpy(own.message, ls_error_message(), sizeof own.message);
    return own;
}

/*
 * Sends the failure of the rank that counts to every rank. If all ranks have failed with the same status, each rank
 * keeps its own message.
 */
static ls_status take_over(ls_comm *comm, int failed_rank, ls_status status, const char *reason, const report *own) {
    report theirs = *own;
    int64_t ends[2] = {status, -(int64_t)status};
    LS_TRY(ls_comm_broadcast(comm, &theirs, sizeof theirs, LS_U8, failed_rank, NULL));
    LS_TRY(ls_comm_allreduce(comm, ends, ends, 2, LS_I64, LS_MAX, NULL));
    if (ends[0] == -ends[1]) {
        ls_error_restore(status, reason);
        return status;
    }
    theirs.message[sizeof theirs.message - 1] = '\0';
    ls_error_restore((ls_status)theirs.status, theirs.message);
    if (failed_rank != ls_comm_rank(comm)) {
        ls_comm_set_failed_rank(comm, failed_rank);
    }
    return (ls_status)theirs.status;
}

static ls_status agree_in_failure(ls_trial *trial, vote outcome, ls_status status) {
    ls_comm *comm = trial->state.comm;
    report own = {.status = LS_OK};
    char reason[LS_ERROR_CAPACITY] = "";
    if (status != LS_OK) {
        memcpy(reason, ls_error_message(), sizeof reason);
        own = report_of(trial, status, reason);
        if (meet_in_failure(comm, &outcome, &own) != LS_OK) { /* the communicator is revoked */
            ls_error_restore(status, reason);
            return status;
        }
    }
    trial->agreed = true;
    return take_over(comm, (int)outcome.parts[OUTCOME].location, status, reason, &own);
}

ls_status ls_trial_agree(ls_trial *trial, ls_status status) {
    if (is_alone(trial) || trial->agreed || (status == LS_OK && !trial->agrees)) {
        return status;
    }
    vote all = vote_of(trial, status);
    if (status == LS_OK) {
        LS_TRY(meet(trial->state.comm, &all, &all, NULL));
        const int64_t outcome = all.parts[OUTCOME].value;
        if (outcome <= STOPS) {
            trial->state.stop = outcome == STOPS;
            trial->ballot = (ls_ballot){.asks = all.parts[ASKS].value, .writing = all.parts[WRITING].value};
            return LS_OK;
        }
    }
    return agree_in_failure(trial, all, status);
}

ls_status ls_trial_agree_at_end(ls_trial *trial, ls_status status) {
    const bool agrees = trial->agrees;
    trial->agrees = true;
    status = ls_trial_agree(trial, status);
    trial->agrees = agrees;
    return status;
}

/* Returns whether any callback was made by the program itself. */
static bool has_user_hooks(const ls_trial *trial) {
    bool has = false;
    for (int i = 0; i < trial->options.callback_count; i++) {
        has = has || !trial->own_callbacks[i]->built_in;
    }
    return has;
}

/* The values that the ranks exchange about their setups. */
enum { CALLED, USER_HOOKS, USER_STEP, SETUPS };

ls_status ls_trial_begin_agreeing(ls_trial *trial) {
    const bool has_step = trial->options.step != NULL;
    const bool called = trial->options.callback_count > 0 || has_step || trial->checkpointer != NULL;
    int64_t some[SETUPS] = {[CALLED] = called, [USER_HOOKS] = has_user_hooks(trial), [USER_STEP] = has_step};
    trial->agreed = false;
    trial->agrees = false;
    trial->failed_in[0] = '\0';
    trial->ballot = (ls_ballot){0};
    if (!is_alone(trial)) {
        LS_TRY(ls_comm_allreduce(trial->state.comm, some, some, SETUPS, LS_I64, LS_MAX, NULL));
        trial->agrees = some[CALLED] > 0;
    }
    trial->watch.user_hooks = some[USER_HOOKS] > 0;
    trial->watch.user_step = some[USER_STEP] > 0;
    return LS_OK;
}
