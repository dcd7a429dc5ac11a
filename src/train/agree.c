/*
 * Ranks of a trial end together. A callback may fail, or stop the run, on one rank alone, and so may a rank's own step;
 * the others would wait for it in their next collective. So a rank that fails calls for an agreement, one all-reduce,
 * before it returns. The others are in a collective of the step then, which is another call: all ranks learn that by
 * LS_ERR_MISMATCH, which fails the others' step, and so they come to the agreement too. There all take the status and
 * the sentence of the rank that failed by itself. Where any rank has callbacks or a step of its own, all also agree at
 * the end of every batch and epoch, so that a run is stopped on all ranks after the same batch; where a run ends they
 * always do.
 */
#include "train/agree.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "comm/give_up.h"

#define TIMEOUT_SECONDS 10   /* for ranks that wait where an agreement does not reach them */
#define TRIES           1000 /* calls of the others that are under way, and meet it instead */
#define NAP_NS          100000

/* What became of a rank: of all, the largest counts. */
enum { GOES_ON = 0, STOPS, FAILS_WITH_OTHERS, FAILS };

typedef struct report {
    int32_t status;
    char message[LS_ERROR_CAPACITY];
} report;

static bool is_alone(const ls_trial *trial) {
    return ls_comm_size(trial->state.comm) <= 1;
}

/* What travels in an agreement: what became of a rank, and what it asks for. */
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

/* The call that all make, and that nothing else here makes: of several ranks that end alike, the lowest counts. */
static ls_status meet(ls_comm *comm, const vote *mine, vote *worst, ls_work **work) {
    return ls_comm_allreduce(comm, mine, worst, PARTS, LS_I64, LS_MAXLOC, work);
}

/* The all-reduce of a rank that failed. Others may wait for it elsewhere, and are told by other means after a while. */
static ls_status meet_in_failure(ls_comm *comm, vote *outcome, const report *own) {
    ls_status status = LS_ERR_MISMATCH;
    const uint64_t start = ls_clock_ns();
    for (int i = 0; i < TRIES && status == LS_ERR_MISMATCH; i++) {
        vote worst = *outcome;
        ls_work *work = NULL;
        status = meet(comm, outcome, &worst, &work);
        if (status == LS_ERR_MEMORY) { /* the call that returns at once takes memory, the one that waits does not */
            status = meet(comm, outcome, &worst, NULL);
        }
        while (status == LS_OK && !ls_work_done(work)) {
            if (ls_clock_ns() - start > (uint64_t)TIMEOUT_SECONDS * 1000000000) {
                (void)ls_comm_give_up(comm, ls_error_set((ls_status)own->status, "%s", own->message));
            }
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
        }
        status = status == LS_OK ? ls_work_wait(work) : status;
        *outcome = status == LS_OK ? worst : *outcome;
    }
    return status;
}

/* What befell this rank, as the others are told. */
static report report_of(const ls_trial *trial, ls_status status, const char *reason) {
    static const char prefix[] = "ls_trial: ";
    const size_t known = strncmp(reason, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
    report own = {.status = (int32_t)status};
    (void)ls_error_set(status, "%srank %d failed: %s%s", prefix, ls_comm_rank(trial->state.comm), trial->failed_in,
                       reason + known);
    memcpy(own.message, ls_error_message(), sizeof own.message);
    return own;
}

/* Every rank takes over what befell the one that counts; but where all have failed alike, each keeps its own words. */
static ls_status take_over(ls_comm *comm, int culprit, ls_status status, const char *reason, const report *own) {
    report theirs = *own;
    int64_t ends[2] = {status, -(int64_t)status};
    LS_TRY(ls_comm_broadcast(comm, &theirs, sizeof theirs, LS_U8, culprit, NULL));
    LS_TRY(ls_comm_allreduce(comm, ends, ends, 2, LS_I64, LS_MAX, NULL));
    if (ends[0] == -ends[1]) {
        ls_error_restore(status, reason);
        return status;
    }
    theirs.message[sizeof theirs.message - 1] = '\0';
    ls_error_restore((ls_status)theirs.status, theirs.message);
    return (ls_status)theirs.status;
}

static ls_status agree_in_failure(ls_trial *trial, vote outcome, ls_status status) {
    ls_comm *comm = trial->state.comm;
    report own = {.status = LS_OK};
    char reason[LS_ERROR_CAPACITY] = "";
    if (status != LS_OK) {
        memcpy(reason, ls_error_message(), sizeof reason);
        own = report_of(trial, status, reason);
        if (meet_in_failure(comm, &outcome, &own) != LS_OK) { /* the communicator is of no use any more */
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

/* Callbacks of the program's own. */
static bool has_own_hooks(const ls_trial *trial) {
    bool has = false;
    for (int i = 0; i < trial->options.callback_count; i++) {
        has = has || !trial->own_callbacks[i]->built_in;
    }
    return has;
}

/* What the ranks tell each other of their setups. */
enum { CALLED, OWN_HOOKS, OWN_STEP, SETUPS };

ls_status ls_trial_begin_agreeing(ls_trial *trial) {
    const bool has_step = trial->options.step != NULL;
    const bool called = trial->options.callback_count > 0 || has_step || trial->checkpointer != NULL;
    int64_t some[SETUPS] = {[CALLED] = called, [OWN_HOOKS] = has_own_hooks(trial), [OWN_STEP] = has_step};
    trial->agreed = false;
    trial->agrees = false;
    trial->failed_in[0] = '\0';
    trial->ballot = (ls_ballot){0};
    if (!is_alone(trial)) {
        LS_TRY(ls_comm_allreduce(trial->state.comm, some, some, SETUPS, LS_I64, LS_MAX, NULL));
        trial->agrees = some[CALLED] > 0;
    }
    trial->watch.own_hooks = some[OWN_HOOKS] > 0;
    trial->watch.own_step = some[OWN_STEP] > 0;
    return LS_OK;
}
