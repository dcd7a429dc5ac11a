#include "comm/store_server.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/threads.h"
#include "comm/store_admission.h"
#include "comm/store_roster.h"
#include "comm/store_table.h"

enum { FIXED_POLLS = 2 }; /* the wake-up descriptor and the listener precede the connections */

static const double pause_seconds = 0.1; /* pause before accepting again after running out of file descriptors */
static const double flush_seconds = 1;

struct ls_store_server {
    pthread_t thread;
    int listener; /* -1 after all ranks have left */
    int wake;     /* an eventfd that becomes readable when the server must stop */
    ls_key key;
    ls_admission admission;
    ls_store_table *table;
    ls_roster roster;
    ls_status failure; /* why the ranks can no longer meet; LS_OK if they can */
    char failure_text[LS_ERROR_CAPACITY];
    ls_connection **connections;
    struct pollfd *polls; /* FIXED_POLLS + capacity */
    size_t count, capacity;
    ls_deadline accept_again, complain_again, report;
};

/* ---- answering --------------------------------------------------------------------------------------------------- */

static void lose(ls_store_server *server, ls_connection *connection);

static void answer(ls_store_server *server, ls_connection *connection, const ls_store_reply *reply) {
    const ls_status sent = ls_connection_reply(connection, reply);
    ls_connection_next(connection);
    if (sent != LS_OK) {
        lose(server, connection);
    }
}

static void answer_failure(ls_store_server *server, ls_connection *connection, ls_status status, const char *text) {
    answer(server, connection, &(ls_store_reply){.status = status, .value = {text, strlen(text)}});
}

/* Answers with this thread's last error. */
static void answer_error(ls_store_server *server, ls_connection *connection, ls_status status) {
    char text[LS_ERROR_CAPACITY];
    snprintf(text, sizeof text, "%s", ls_error_message());
    answer_failure(server, connection, status, text);
}

static bool waits_for(const ls_connection *connection, ls_store_operation operation) {
    return connection->waiting && connection->request.operation == operation;
}

/* Ends all waits: clients that are waiting, and later clients, get the error. */
static void fail_all(ls_store_server *server, ls_status status) {
    if (server->failure == LS_OK) {
        server->failure = status;
        snprintf(server->failure_text, sizeof server->failure_text, "%s", ls_error_message());
        ls_log_write(LS_LOG_INFO, "%s", server->failure_text);
    }
    for (size_t i = 0; i < server->count; i++) {
        ls_connection *connection = server->connections[i];
        if (connection->waiting && connection->request.operation != LS_STORE_LEAVE) {
            answer_failure(server, connection, server->failure, server->failure_text);
        }
    }
}

/* From now on, a process that connects means the next job that meets at this address, which may have the same ranks. */
static void stop_listening(ls_store_server *server) {
    if (server->listener >= 0) {
        close(server->listener);
        server->listener = -1;
    }
}

static void answer_leavers(ls_store_server *server) {
    if (!ls_roster_is_over(&server->roster)) {
        return;
    }
    stop_listening(server); /* must happen before any rank can connect again */
    const ls_status status = ls_roster_check_deaths(&server->roster);
    for (size_t i = 0; i < server->count; i++) {
        if (waits_for(server->connections[i], LS_STORE_LEAVE)) {
            if (status == LS_OK) {
                answer(server, server->connections[i], &(ls_store_reply){.status = LS_OK});
            } else {
                answer_error(server, server->connections[i], status);
            }
        }
    }
}

/* Handles the end of a connection. If its rank had not left, the rank has died. */
static void lose(ls_store_server *server, ls_connection *connection) {
    const int rank = connection->rank;
    ls_connection_close(connection);
    if (rank >= 0 && server->roster.states[rank] == LS_RANK_HERE) {
        server->roster.states[rank] = LS_RANK_DEAD;
        fail_all(server, ls_roster_check_deaths(&server->roster));
        answer_leavers(server);
    }
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static void keep_waiting(ls_connection *connection) {
    connection->waiting = true;
    connection->deadline = ls_deadline_after(connection->request.timeout * 1e-3);
}

static void answer_value(ls_store_server *server, ls_connection *connection, ls_bytes value) {
    if (connection->request.operation == LS_STORE_WAIT) {
        value.size = 0;
    }
    answer(server, connection, &(ls_store_reply){.status = LS_OK, .value = value});
}

static void handle_get(ls_store_server *server, ls_connection *connection) {
    ls_bytes value;
    if (ls_store_table_get(server->table, connection->request.key, &value)) {
        answer_value(server, connection, value);
    } else if (server->failure != LS_OK) {
        answer_failure(server, connection, server->failure, server->failure_text);
    } else {
        keep_waiting(connection);
    }
}

/* Sets a key, answers the request, and then answers the clients that waited for the key. */
static void change(ls_store_server *server, ls_connection *connection, ls_bytes value, int64_t number) {
    const ls_status status = ls_store_table_set(server->table, connection->request.key, value);
    if (status != LS_OK) {
        answer_error(server, connection, status);
        return;
    }
    const ls_bytes key = connection->request.key; /* in the input buffer, which answering releases: compared first */
    for (size_t i = 0; i < server->count; i++) {
        ls_connection *other = server->connections[i];
        if ((waits_for(other, LS_STORE_GET) || waits_for(other, LS_STORE_WAIT)) &&
            other->request.key.size == key.size && memcmp(other->request.key.data, key.data, key.size) == 0) {
            answer_value(server, other, value);
        }
    }
    answer(server, connection, &(ls_store_reply){.status = LS_OK, .number = number});
}

static void handle_set(ls_store_server *server, ls_connection *connection) {
    change(server, connection, connection->request.value, 0);
}

static void handle_add(ls_store_server *server, ls_connection *connection) {
    ls_bytes current = {0};
    char text[LS_COUNTER_SIZE];
    size_t size;
    int64_t sum;
    ls_store_table_get(server->table, connection->request.key, &current);
    const ls_status status = ls_counter_add(current, connection->request.amount, text, &size, &sum);
    if (status != LS_OK) {
        answer_error(server, connection, status);
    } else {
        change(server, connection, (ls_bytes){text, size}, sum);
    }
}

static void handle_compare_set(ls_store_server *server, ls_connection *connection) {
    const ls_store_request *request = &connection->request;
    ls_bytes current = {0};
    const bool exists = ls_store_table_get(server->table, request->key, &current);
    const bool equal =
        request->expected.size == 0
            ? !exists
            : current.size == request->expected.size && memcmp(current.data, request->expected.data, current.size) == 0;
    if (equal) {
        change(server, connection, request->value, 1);
    } else {
        answer(server, connection, &(ls_store_reply){.status = LS_OK});
    }
}

static void answer_joiners(ls_store_server *server) {
    const ls_roster *roster = &server->roster;
    const ls_store_reply reply = {.value = {roster->peer_infos, (size_t)roster->size * sizeof *roster->peer_infos}};
    for (size_t i = 0; i < server->count; i++) {
        if (waits_for(server->connections[i], LS_STORE_JOIN)) {
            answer(server, server->connections[i], &reply);
        }
    }
}

/* Reads a peer's information. A different version of Lockstep may use a different size. */
static ls_status read_peer_info(int rank, ls_bytes given, ls_peer_info *peer_info) {
    if (given.size != sizeof *peer_info) {
        char own[LS_BUILD_CAPACITY];
        ls_build_write(own);
        const size_t length = given.size < sizeof own ? given.size : sizeof own;
        const bool names_build = memmem(given.data, length, " (layout ", strlen(" (layout ")) != NULL;
        return ls_fail(LS_ERR_MISMATCH,
                       "rank %d runs %s%.*s, but rank 0 runs Lockstep %s: run the same build of Lockstep on all ranks",
                       rank, names_build ? "Lockstep " : "a different version of Lockstep",
                       names_build ? (int)length : 0, (const char *)given.data, own);
    }
    memcpy(peer_info, given.data, sizeof *peer_info);
    peer_info->build[sizeof peer_info->build - 1] = peer_info->backend[sizeof peer_info->backend - 1] = '\0';
    peer_info->machine[sizeof peer_info->machine - 1] = peer_info->host[sizeof peer_info->host - 1] = '\0';
    peer_info->process[sizeof peer_info->process - 1] = '\0';
    return LS_OK;
}

static void handle_join(ls_store_server *server, ls_connection *connection) {
    const ls_store_request *request = &connection->request;
    ls_peer_info peer_info;
    if (connection->rank >= 0) {
        answer_failure(server, connection, LS_ERR_FORMAT, "a process joined twice");
        return;
    }
    if (server->failure != LS_OK) {
        answer_failure(server, connection, server->failure, server->failure_text);
        return;
    }
    const int rank = (int)(request->amount >> 32);
    const bool was_complete = server->roster.complete;
    ls_status status = read_peer_info(rank, request->value, &peer_info);
    if (status == LS_OK) {
        status = ls_roster_enter(&server->roster, rank, (int)(request->amount & 0xffffffff), &peer_info);
    }
    if (status != LS_OK) {
        answer_error(server, connection, status);
        if (!was_complete) { /* one of the two ranks is wrong, so this world can never be complete */
            fail_all(server, status);
        }
        return;
    }
    ls_log_set_rank(0);
    connection->rank = rank;
    keep_waiting(connection);
    if (server->roster.complete) {
        answer_joiners(server);
    }
}

static void handle_leave(ls_store_server *server, ls_connection *connection) {
    if (connection->rank < 0) {
        answer_failure(server, connection, LS_ERR_STATE, "a process that had not joined has left");
        return;
    }
    server->roster.states[connection->rank] = LS_RANK_LEFT;
    keep_waiting(connection);
    answer_leavers(server);
}

static void (*const handlers[LS_STORE_OPERATION_END])(ls_store_server *, ls_connection *) = {
    [LS_STORE_SET] = handle_set,     [LS_STORE_GET] = handle_get,   [LS_STORE_ADD] = handle_add,
    [LS_STORE_WAIT] = handle_get,    [LS_STORE_JOIN] = handle_join, [LS_STORE_COMPARE_SET] = handle_compare_set,
    [LS_STORE_LEAVE] = handle_leave,
};

/* ---- connections ------------------------------------------------------------------------------------------------- */

/* Logs processes that connect without the key, with a limit on the number of lines. */
static void hear_unproven(ls_store_server *server, ls_connection *connection) {
    const ls_status status = ls_admission_hear(&server->admission, connection);
    server->roster.refused = server->admission.refused;
    if (status == LS_ERR_MISMATCH && !server->roster.complete) { /* the world will never be complete */
        fail_all(server, status);
    }
    if (status != LS_OK && status != LS_ERR_PEER && ls_log_limit_pass(&server->admission.told)) {
        ls_log_write(LS_LOG_WARNING, "%s", ls_error_message());
    }
}

static void report_hidden(ls_store_server *server) {
    const int64_t hidden = ls_log_limit_hidden(&server->admission.told);
    if (hidden > 0) {
        ls_log_write(LS_LOG_WARNING, "refused %lld more connections within %g s", (long long)hidden, LS_LOG_PERIOD);
    }
}

static void receive(ls_store_server *server, ls_connection *connection) {
    bool complete;
    if (!connection->greeted) {
        hear_unproven(server, connection);
        return;
    }
    ls_status status = ls_connection_read(connection, &complete);
    if (status == LS_OK && complete) {
        status = ls_request_decode(connection->input + LS_FRAME_HEADER, connection->input_size - LS_FRAME_HEADER,
                                   &connection->request);
        if (status == LS_OK) {
            handlers[connection->request.operation](server, connection);
            return;
        }
    }
    if (status != LS_OK) {
        if (status != LS_ERR_PEER) {
            ls_log_write(LS_LOG_WARNING, "closed a connection: %s", ls_error_message());
        }
        lose(server, connection);
    }
}

static bool make_room(ls_store_server *server) {
    if (server->count < server->capacity) {
        return true;
    }
    const size_t larger = server->capacity > 0 ? 2 * server->capacity : 16;
    ls_connection **connections = ls_allocate(larger * sizeof *connections);
    struct pollfd *polls = ls_allocate((FIXED_POLLS + larger) * sizeof *polls);
    if (connections == NULL || polls == NULL) {
        ls_free(connections);
        ls_free(polls);
        return false;
    }
    if (server->count > 0) {
        memcpy(connections, server->connections, server->count * sizeof *connections);
    }
    ls_free(server->connections);
    ls_free(server->polls);
    server->connections = connections;
    server->polls = polls;
    server->capacity = larger;
    return true;
}

static void accept_all(ls_store_server *server) {
    for (int i = 0; i < LS_ACCEPT_AT_ONCE && make_room(server); i++) {
        ls_connection *connection;
        const int error =
            ls_admission_accept(&server->admission, server->listener, server->connections, server->count, &connection);
        if (connection != NULL) {
            server->connections[server->count++] = connection;
        } else if (error == EAGAIN) {
            return;
        } else if (error != 0 && error != EINTR && error != ECONNABORTED) {
            if (ls_deadline_passed(server->complain_again)) {
                ls_log_write(LS_LOG_WARNING, "the store cannot accept a connection: %s", strerror(error));
                server->complain_again = ls_deadline_after(LS_REPORT_SECONDS);
            }
            server->accept_again = ls_deadline_after(pause_seconds);
            return;
        }
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* Handles a request or greeting whose deadline has passed. */
static void expire(ls_store_server *server, ls_connection *connection) {
    const double seconds = connection->request.timeout * 1e-3;
    if (!connection->greeted) {
        ls_connection_close(connection);
    } else if (connection->request.operation == LS_STORE_JOIN) { /* the world cannot be complete without this rank */
        fail_all(server, ls_roster_fail_missing(&server->roster, seconds));
    } else if (connection->request.operation == LS_STORE_LEAVE) {
        answer_error(server, connection, ls_roster_fail_staying(&server->roster, seconds));
    } else {
        answer_error(server, connection, ls_fail(LS_ERR_TIMEOUT, "no process set it within %g s", seconds));
    }
}

static void report_staying(ls_store_server *server) {
    bool waiting = false;
    for (size_t i = 0; i < server->count; i++) {
        waiting = waiting || waits_for(server->connections[i], LS_STORE_LEAVE);
    }
    server->report = ls_roster_tell_staying(&server->roster, waiting);
}

static void report_awaited(ls_store_server *server) {
    const ls_roster *roster = &server->roster;
    if (roster->complete) {
        report_staying(server);
        return;
    }
    if (roster->size == 0 || server->failure != LS_OK) {
        server->report = LS_DEADLINE_NEVER;
        return;
    }
    if (ls_deadline_passed(server->report)) {
        ls_roster_report_missing(roster);
        server->report = LS_DEADLINE_NEVER;
    }
    if (server->report == LS_DEADLINE_NEVER) {
        server->report = ls_deadline_after(LS_REPORT_SECONDS);
    }
}

static void sweep(ls_store_server *server) {
    size_t kept = 0;
    for (size_t i = 0; i < server->count; i++) {
        if (server->connections[i]->fd >= 0) {
            server->connections[kept++] = server->connections[i];
        } else {
            ls_connection_free(server->connections[i]);
        }
    }
    server->count = kept;
}

/* Fills the poll list. Returns the deadline of the wait. */
static ls_deadline prepare(ls_store_server *server) {
    ls_deadline first = server->report;
    const bool pausing = !ls_deadline_passed(server->accept_again);
    if (pausing && server->accept_again < first) {
        first = server->accept_again;
    }
    if (server->admission.told.hidden > 0 && server->admission.told.until < first) {
        first = server->admission.told.until;
    }
    server->polls[0] = (struct pollfd){.fd = server->wake, .events = POLLIN};
    server->polls[1] = (struct pollfd){.fd = pausing ? -1 : server->listener, .events = POLLIN};
    for (size_t i = 0; i < server->count; i++) {
        const ls_connection *connection = server->connections[i];
        server->polls[FIXED_POLLS + i] =
            (struct pollfd){.fd = connection->fd, .events = ls_connection_events(connection)};
        first = connection->deadline < first ? connection->deadline : first;
    }
    return first;
}

static void serve_one(ls_store_server *server, ls_connection *connection, short events) {
    if (events == 0 || connection->fd < 0) { /* no events, or closed in this round by another client's request */
        return;
    }
    if (connection->output_size > 0) {
        if (ls_connection_flush(connection) != LS_OK) {
            lose(server, connection);
        }
    } else if (connection->waiting) { /* polled only to detect the end of the connection */
        lose(server, connection);
    } else {
        receive(server, connection);
    }
}

static void *serve(void *argument) {
    ls_store_server *server = argument;
    for (;;) {
        const ls_deadline first = prepare(server);
        const size_t count = server->count;
        (void)ls_wait_events(server->polls, FIXED_POLLS + count, first);
        if (server->polls[0].revents != 0) {
            return NULL;
        }
        for (size_t i = 0; i < count; i++) {
            serve_one(server, server->connections[i], server->polls[FIXED_POLLS + i].revents);
        }
        for (size_t i = 0; i < server->count; i++) {
            if (ls_deadline_passed(server->connections[i]->deadline)) {
                expire(server, server->connections[i]);
            }
        }
        if (server->polls[1].revents != 0 && server->listener >= 0) {
            accept_all(server);
        }
        sweep(server);
        report_awaited(server);
        report_hidden(server);
    }
}

/* ---- start and stop ---------------------------------------------------------------------------------------------- */

static void free_server(ls_store_server *server) {
    for (size_t i = 0; i < server->count; i++) {
        ls_connection_free(server->connections[i]);
    }
    ls_free(server->connections);
    ls_free(server->polls);
    ls_store_table_free(server->table);
    ls_roster_free(&server->roster);
    ls_key_forget(&server->key);
    stop_listening(server);
    if (server->wake >= 0) {
        close(server->wake);
    }
    ls_free(server);
}

/* Connects rank 0 itself, which needs neither a position in the queue of clients nor a proof. Sets `*own` to its end
   of the connection. */
static bool connect_own(ls_store_server *server, int *own) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        return false;
    }
    ls_connection *connection = ls_connection_new(ends[1]);
    if (connection == NULL) {
        close(ends[0]);
        return false;
    }
    connection->greeted = true;
    server->connections[server->count++] = connection;
    *own = ends[0];
    return true;
}

ls_store_server *ls_store_server_start(int listener, const ls_key *key, int *own) {
    ls_store_server *server = ls_allocate_zeroed(1, sizeof *server);
    if (server == NULL) {
        close(listener);
        return ls_fail_null(LS_ERR_MEMORY, "out of memory for the store's server");
    }
    server->listener = listener;
    server->key = *key;
    ls_admission_open(&server->admission, &server->key, "process");
    server->report = LS_DEADLINE_NEVER;
    server->table = ls_store_table_new();
    server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *own = -1;
    if (server->table == NULL || server->wake < 0 || !make_room(server) || !connect_own(server, own)) {
        free_server(server);
        return ls_fail_null(LS_ERR_MEMORY, "out of memory or file descriptors for the store's server");
    }
    const int error = ls_start_thread(&server->thread, "lockstep-store", serve, server);
    if (error != 0) {
        free_server(server);
        close(*own);
        *own = -1;
        return ls_fail_null(LS_ERR_IO, "cannot start the store's server: %s", strerror(error));
    }
    return server;
}

void ls_store_server_stop(ls_store_server *server) {
    if (server == NULL) {
        return;
    }
    const uint64_t one = 1;
    while (write(server->wake, &one, sizeof one) < 0 && errno == EINTR) {
    }
    pthread_join(server->thread, NULL);
    const ls_deadline deadline = ls_deadline_after(flush_seconds);
    for (size_t i = 0; i < server->count; i++) {
        ls_connection *connection = server->connections[i];
        while (connection->output_size > 0 && ls_connection_flush(connection) == LS_OK &&
               !ls_deadline_passed(deadline)) {
            (void)ls_wait_event(connection->fd, POLLOUT, deadline);
        }
    }
    free_server(server);
}
