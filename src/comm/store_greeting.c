#include "comm/store_greeting.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/store.h"
#include "comm/store_roster.h"

const char *ls_greeting_compare_keys(bool given, bool keyed) {
    return keyed && !given   ? "the job has a key, but this process was given none (LOCKSTEP_KEY or .key)"
           : given && !keyed ? "the job has no key, but this process was given one (LOCKSTEP_KEY or .key)"
                             : NULL;
}

const char *ls_greeting_refusal(const ls_key *key, const uint8_t nonce[LS_NONCE_SIZE], const ls_hello *hello) {
    if (ls_hello_is_proven(hello, key, "client", nonce)) {
        return NULL;
    }
    if (!key->given && !hello->keyed) {
        return "LOCKSTEP_KEY is not set, and the keys that this process and the job use by default differ, because "
               "their "
               "users or containers differ: set LOCKSTEP_KEY to the same secret for all";
    }
    const char *why = ls_greeting_compare_keys(hello->keyed, key->given);
    return why != NULL ? why : "this process has a different key than the job (LOCKSTEP_KEY or .key)";
}

/* Receives the answer to this process's hello: the server's proof, or a sentence with the reason for a refusal. Sets
 * `*retry` to true if it received neither. */
static ls_status receive_proof(int socket, ls_deadline deadline, uint8_t proof[LS_PROOF_SIZE], bool *retry) {
    uint8_t bytes[LS_REPLY_FIXED + LS_ERROR_CAPACITY];
    uint8_t header[LS_FRAME_HEADER];
    size_t size;
    ls_store_reply reply;
    const ls_status heard = ls_socket_receive(socket, header, sizeof header, deadline);
    *retry = heard == LS_ERR_PEER;
    LS_TRY(heard);
    LS_TRY(ls_frame_size(header, LS_REPLY_FIXED, sizeof bytes, &size));
    LS_TRY(ls_socket_receive(socket, bytes, size, deadline));
    LS_TRY(ls_reply_decode(bytes, size, &reply));
    if (reply.status != LS_OK) {
        return ls_fail(reply.status, "%.*s", (int)reply.value.size, (const char *)reply.value.data);
    }
    if (reply.value.size != LS_PROOF_SIZE) {
        return ls_fail(LS_ERR_FORMAT, "the process that listens there sent a proof of invalid size, %zu bytes",
                       reply.value.size);
    }
    memcpy(proof, reply.value.data, LS_PROOF_SIZE);
    return LS_OK;
}

/* Exchanges hellos, and receives the server's proof. Sets `*retry` to true if the server closed the connection: it
 * may be shutting down, or have no room for more clients. */
static ls_status greet(int socket, const ls_key *key, ls_deadline deadline, bool *retry) {
    uint8_t bytes[LS_PROVEN_HELLO_SIZE];
    uint8_t proof[LS_PROOF_SIZE];
    ls_hello server, own;
    const ls_status heard = ls_socket_receive(socket, bytes, LS_HELLO_SIZE, deadline);
    *retry = heard == LS_ERR_PEER;
    LS_TRY(heard);
    LS_TRY(ls_hello_decode(bytes, false, &server));
    LS_TRY(ls_hello_make(&own, key->given));
    ls_hello_prove(&own, key, "client", server.nonce);
    ls_hello_encode(&own, true, bytes);
    const ls_status sent = ls_socket_send(socket, bytes, sizeof bytes, deadline);
    *retry = sent == LS_ERR_PEER;
    LS_TRY(sent);
    LS_TRY(receive_proof(socket, deadline, proof, retry));
    memcpy(server.proof, proof, sizeof proof);
    return ls_hello_is_proven(&server, key, "server", own.nonce)
               ? LS_OK
               : ls_fail(LS_ERR_DENIED, "the process that listens there does not know the job's key");
}

/* At time `*when`, reports which server this process waits for, and why it has not connected yet. */
static void report(const ls_greeting_target *target, ls_deadline *when, const char *why) {
    if (!ls_deadline_passed(*when)) {
        return;
    }
    if (target->report != NULL) {
        target->report(target->context, why);
        *when = ls_deadline_after(LS_REPORT_SECONDS);
    } else {
        ls_log_write(LS_LOG_WARNING, "waiting for %s (%s)", target->server, why);
        *when = LS_DEADLINE_NEVER;
    }
}

/* Waits until the server sends something, or until the deadline. Returns early if no report is due any more. */
static void await_hello(const ls_greeting_target *target, int connection, ls_deadline deadline, ls_deadline *told) {
    char why[LS_HOST_CAPACITY + 64];
    snprintf(why, sizeof why, "connected to %s:%d, but it has sent nothing", target->address.host,
             target->address.port);
    while (*told < deadline && !ls_wait_event(connection, POLLIN, *told)) {
        report(target, told, why);
    }
}

/*
 * If packets are dropped, as by a firewall, a connection attempt would take the whole timeout without a message. A
 * connected client keeps its position in the queue of clients that wait for the hello.
 */
static ls_status connect_once(const ls_greeting_target *target, const ls_key *key, ls_deadline deadline,
                              ls_deadline *told, int *connection, bool *retry) {
    const ls_deadline attempt = ls_deadline_after(LS_REPORT_SECONDS);
    LS_TRY(ls_socket_connect(&target->address, key->given, attempt < deadline ? attempt : deadline, connection, retry));
    await_hello(target, *connection, deadline, told);
    const ls_status status = greet(*connection, key, deadline, retry);
    if (status != LS_OK) {
        close(*connection);
        *connection = -1;
        return ls_fail(status, "%s at %s:%d: %s", target->thing, target->address.host, target->address.port,
                       ls_error_message());
    }
    return LS_OK;
}

ls_status ls_greeting_connect(const ls_greeting_target *target, const ls_key *key, double timeout, int *connection) {
    ls_wait wait = {.limit_ns = 0};
    const ls_deadline deadline = ls_deadline_after(timeout);
    ls_deadline told = ls_deadline_after(LS_REPORT_SECONDS);
    for (;;) {
        bool retry;
        const ls_status status = connect_once(target, key, deadline, &told, connection, &retry);
        if (status == LS_OK || (!retry && status != LS_ERR_TIMEOUT)) {
            return status;
        }
        if (ls_deadline_passed(deadline)) {
            return ls_fail(LS_ERR_TIMEOUT, "%s did not answer within %g s (%s)", target->server,
                           target->limit > 0 ? target->limit : timeout, ls_error_message());
        }
        if (target->is_void != NULL && target->is_void(target->context)) {
            return ls_fail(LS_ERR_STATE, "%s is no longer at %s:%d", target->server, target->address.host,
                           target->address.port);
        }
        report(target, &told, ls_error_message());
        (void)ls_wait_pause(&wait);
    }
}
