/*
 * Collective calls that a program starts and completes later. The start performs the agreement, and records the node of
 * the result. The nodes are therefore on the tape in the order of the starts, which is the same on all ranks, and the
 * program may wait in any order.
 */
#include "parallel/handle.h"
#include "parallel/move.h"

typedef struct collective {
    ls_handle_record record;
    const char *name;
    ls_flight flight;
    ls_agreement *agreement; /* holds a reference; NULL before the call has begun */
    ls_tensor *result;       /* held */
} collective;

/* Waits for the call. Returns its status, with the error set. */
static ls_status settle(collective *c) {
    if (c->flight.failed) {
        return ls_fail(LS_ERR_STATE,
                       "ls_handle_wait: %s has failed in ls_backward; see the error message from ls_backward", c->name);
    }
    return ls_flight_end(&c->flight, LS_OK);
}

static ls_tensor *end(ls_tensor *token) {
    collective *c = ls_handle_record_of(token);
    if (settle(c) != LS_OK) {
        return ls_scope_failed();
    }
    ls_tensor *result = c->result;
    c->result = NULL;
    return ls_tensor_give(result);
}

/* When the scope ends, it reports that the program has not waited. */
static void forget(ls_handle_record *record) {
    collective *c = (collective *)(void *)record;
    if (c->agreement == NULL) {
        return;
    }
    if (!record->waited) {
        const ls_status status = settle(c);
        (void)ls_fail(status == LS_OK ? LS_ERR_STATE : status,
                      "%s_begin: the program never waited for its handle; call ls_handle_wait before ls_scope_end%s%s",
                      c->name,
                      status == LS_OK ? "" : ". The call has failed: ", status == LS_OK ? "" : ls_error_message());
        (void)ls_scope_failed();
    }
    ls_tensor_drop(c->result);
    c->agreement->flight = NULL;
    ls_agreement_hold(c->agreement, false);
}

ls_handle *ls_meet_begin(const ls_collective *what, const ls_proposal *proposal) {
    const collective made = {.record = {.bytes = sizeof made, .end = end, .forget = forget}, .name = what->op.name};
    ls_tensor *token = ls_thread() != NULL ? ls_handle_new(what->op.name, &ls_cpu, &made.record) : NULL;
    if (token == NULL) {
        return NULL;
    }
    collective *c = ls_handle_record_of(token);
    ls_tensor *result = ls_meet_by(what, proposal, &c->flight, &c->agreement);
    if (result == NULL) {
        ls_release(token);
        return NULL;
    }
    c->result = ls_tensor_take(result);
    return (ls_handle *)token;
}
