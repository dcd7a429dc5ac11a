#include "cli/nodes.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "cli/nodes_state.h"
#include "comm/interface.h"
#include "comm/store.h"
#include "comm/store_admission.h"
#include "comm/store_greeting.h"
#include "comm/user_key.h"

enum { MOST_PENDING = LS_UNPROVEN_MOST + 128, MOST_SECONDS = 60 };

static const double report_seconds = 5;
static const double join_seconds = 30; /* time for a launcher to join after it has proved that it has the key */
static const double grace_seconds =
    1; /* extra time in which node 0 reports its own timeout and closes the connection */
static const double flush_seconds = 1;

/* ---- talking ----------------------------------------------------------------------------------------------------- */

void ls_node_tell(ls_remote_node *node, const ls_node_message *message) {
    uint8_t frame[LS_NODE_FRAME];
    if (node->link == NULL) {
        return;
    }
    const ls_deadline deadline = ls_deadline_after(flush_seconds);
    ls_status status = ls_connection_send(node->link, frame, ls_node_message_write(message, frame));
    while (status == LS_OK && node->link->output_size > 0 && !ls_deadline_passed(deadline)) {
        (void)ls_wait_event(node->link->fd, POLLOUT, deadline);
        status = ls_connection_flush(node->link);
    }
}

void ls_nodes_tell_all(ls_nodes *nodes, const ls_node_message *message, const ls_remote_node *but) {
    for (int i = 0; i < nodes->count; i++) {
        ls_remote_node *node = &nodes->others[nodes->first + i];
        if (node != but) {
            ls_node_tell(node, message);
        }
    }
}

ls_status ls_node_hear(ls_connection *link, bool *whole, ls_node_message *message) {
    LS_TRY(ls_connection_read(link, whole));
    if (*whole) {
        LS_TRY(ls_node_message_read(link->input + LS_FRAME_HEADER, link->input_size - LS_FRAME_HEADER, message));
        ls_connection_next(link);
    }
    return LS_OK;
}

void ls_node_name_host(char host[64]) {
    if (gethostname(host, 63) != 0) {
        snprintf(host, 64, "unnamed-host");
    }
    host[63] = '\0';
}

/* Enables keepalive, so that the kernel detects that a machine has failed or is disconnected even while no messages
 * are sent. */
static void notice_silence(int socket, double timeout) {
    const int seconds = timeout < 2 ? 2 : timeout > MOST_SECONDS ? MOST_SECONDS : (int)timeout;
    const int yes = 1, idle = seconds > 3 ? seconds / 3 : 1, probes = 3;
    const unsigned milliseconds = (unsigned)seconds * 1000U;
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

/* ---- node 0: waiting for the other nodes ------------------------------------------------------------------------- */

typedef struct gathering {
    ls_nodes *nodes;
    ls_admission admission;
    ls_connection *pending[MOST_PENDING]; /* connections that have not joined yet */
    size_t count;
} gathering;

static int count_missing(const ls_nodes *nodes) {
    int missing = 0;
    for (int i = 1; i < nodes->options.nodes; i++) {
        missing += nodes->others[i].link == NULL;
    }
    return missing;
}

/* Writes, for example, "node 1 of 4 (here: node 2 on hostb)". */
static void describe_missing(const ls_nodes *nodes, char *text, size_t capacity) {
    const int missing = count_missing(nodes);
    size_t used = (size_t)snprintf(text, capacity, missing == 1 ? "node" : "nodes");
    for (int i = 1; i < nodes->options.nodes && used < capacity; i++) {
        if (nodes->others[i].link == NULL) {
            used += (size_t)snprintf(text + used, capacity - used, " %d", i);
        }
    }
    used += used < capacity ? (size_t)snprintf(text + used, capacity - used, " of %d", nodes->options.nodes) : 0;
    for (int i = 1, here = 0; i < nodes->options.nodes && used < capacity; i++) {
        if (nodes->others[i].link != NULL) {
            used += (size_t)snprintf(text + used, capacity - used, "%snode %d on %s", here++ == 0 ? " (here: " : ", ",
                                     i, nodes->others[i].host);
        }
    }
    if (missing < nodes->options.nodes - 1 && used < capacity) {
        snprintf(text + used, capacity - used, ")");
    }
}

static void report(ls_nodes *nodes) {
    ls_node_message news = {.word = LS_NODE_NEWS};
    char missing[LS_NODE_TEXT - 32];
    describe_missing(nodes, missing, sizeof missing);
    snprintf(news.text, sizeof news.text, "waiting for %s", missing);
    fprintf(stderr, "lockstep: %s\n", news.text);
    ls_nodes_tell_all(nodes, &news, NULL);
}

/* Prints why a node is rejected, up to a maximum number of rejections. */
static void tell_refusal(gathering *self, const char *sentence) {
    if (ls_log_limit_pass(&self->admission.told)) {
        fprintf(stderr, "lockstep: %s\n", sentence);
    }
}

static void tell_hidden(gathering *self) {
    const int64_t hidden = ls_log_limit_hidden(&self->admission.told);
    if (hidden > 0) {
        fprintf(stderr, "lockstep: refused %lld more connections within %g s\n", (long long)hidden, LS_LOG_PERIOD);
    }
}

static void refuse(gathering *self, ls_connection *connection, const char *why) {
    char peer[96], sentence[LS_NODE_TEXT + 128];
    snprintf(sentence, sizeof sentence, "refused a launcher at %s: %s",
             ls_connection_peer(connection, peer, sizeof peer), why);
    tell_refusal(self, sentence);
    ls_connection_close(connection);
}

/* Removes connections that were closed or have joined. */
static void sweep(gathering *self) {
    size_t kept = 0;
    for (size_t i = 0; i < self->count; i++) {
        if (self->pending[i] != NULL && self->pending[i]->fd >= 0) {
            self->pending[kept++] = self->pending[i];
        } else {
            ls_connection_free(self->pending[i]);
        }
    }
    self->count = kept;
}

static void accept_pending(gathering *self) {
    for (int i = 0; i < LS_ACCEPT_AT_ONCE && self->count < MOST_PENDING; i++) {
        ls_connection *connection;
        const int error =
            ls_admission_accept(&self->admission, self->nodes->listener, self->pending, self->count, &connection);
        if (connection != NULL) {
            self->pending[self->count++] = connection;
        } else if (error != 0) {
            return;
        }
        sweep(self);
    }
}

/* Returns why this node cannot join, or NULL if it can join. */
static const char *judge(const ls_nodes *nodes, const ls_node_message *message, char *why, size_t capacity) {
    const int node = message->numbers[0], total = message->numbers[1], ranks = message->numbers[2];
    if (message->word != LS_NODE_JOIN || ranks < 1 || ranks > LS_RANKS_MAX) {
        return "it did not send a launcher's first message";
    }
    if (total != nodes->options.nodes) {
        snprintf(why, capacity, "%.63s was started with --nnodes %d, node 0 with --nnodes %d", message->text, total,
                 nodes->options.nodes);
        return why;
    }
    if (node < 1 || node >= total) {
        snprintf(why, capacity, "%.63s was started with --node-rank %d, which is %s", message->text, node,
                 node == 0 ? "this node's number" : "not a node of the job");
        return why;
    }
    if (nodes->others[node].link != NULL) {
        snprintf(why, capacity, "node %d is %s already: %.63s was started with the same --node-rank", node,
                 nodes->others[node].host, message->text);
        return why;
    }
    return NULL;
}

static void admit(gathering *self, ls_connection **connection, const ls_node_message *message) {
    char text[LS_NODE_TEXT];
    const char *why = judge(self->nodes, message, text, sizeof text);
    if (why != NULL) {
        ls_node_message refused = {.word = LS_NODE_REFUSED};
        snprintf(refused.text, sizeof refused.text, "%s", why);
        ls_node_tell(&(ls_remote_node){.link = *connection}, &refused);
        refuse(self, *connection, why);
        return;
    }
    ls_remote_node *node = &self->nodes->others[message->numbers[0]];
    node->link = *connection;
    node->link->deadline = LS_DEADLINE_NEVER;
    node->ranks = message->numbers[2];
    snprintf(node->host, sizeof node->host, "%.63s", message->text);
    notice_silence(node->link->fd, self->nodes->options.timeout);
    *connection = NULL;
}

static void listen_to(gathering *self, ls_connection **connection) {
    bool whole = false;
    ls_node_message message;
    if (!(*connection)->greeted) {
        const ls_status status = ls_admission_hear(&self->admission, *connection);
        if (status != LS_OK &&
            status != LS_ERR_PEER) { /* otherwise the connection was only a check whether the port is open */
            tell_refusal(self, ls_error_message());
        } else if ((*connection)->greeted) {
            (*connection)->deadline = ls_deadline_after(join_seconds);
        }
        return;
    }
    if (ls_node_hear(*connection, &whole, &message) != LS_OK) {
        refuse(self, *connection, ls_error_message());
    } else if (whole) {
        admit(self, connection, &message);
    }
}

/* A node that has joined sends nothing before the start, so a message or an end of file means that the node has
 * ended. */
static void lose(ls_remote_node *node) {
    fprintf(stderr, "lockstep: node %d on %s disconnected before the job started\n", node->number, node->host);
    ls_connection_free(node->link);
    node->link = NULL;
}

/*
 * Fills the poll list with the listener, the nodes that have joined, and the pending connections. Returns the end of
 * the wait.
 */
static ls_deadline prepare(const gathering *self, struct pollfd *polls, ls_deadline until) {
    const ls_nodes *nodes = self->nodes;
    const int total = nodes->options.nodes;
    polls[0] = (struct pollfd){.fd = self->count < MOST_PENDING ? nodes->listener : -1, .events = POLLIN};
    for (int i = 1; i < total; i++) {
        polls[i] =
            (struct pollfd){.fd = nodes->others[i].link != NULL ? nodes->others[i].link->fd : -1, .events = POLLIN};
    }
    for (size_t i = 0; i < self->count; i++) {
        polls[(size_t)total + i] = (struct pollfd){.fd = self->pending[i]->fd, .events = POLLIN};
        until = self->pending[i]->deadline < until ? self->pending[i]->deadline : until;
    }
    if (self->admission.told.hidden > 0 && self->admission.told.until < until) {
        until = self->admission.told.until;
    }
    return until;
}

/* Waits once for events and handles them. */
static void gather_once(gathering *self, struct pollfd *polls, ls_deadline until) {
    ls_nodes *nodes = self->nodes;
    const int total = nodes->options.nodes;
    const size_t count = self->count;
    const ls_deadline first = prepare(self, polls, until);
    (void)ls_wait_events(polls, (size_t)total + count, first);
    for (int i = 1; i < total; i++) {
        if (polls[i].revents != 0) {
            lose(&nodes->others[i]);
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (polls[(size_t)total + i].revents != 0) {
            listen_to(self, &self->pending[i]);
        }
        if (self->pending[i] != NULL && self->pending[i]->fd >= 0 && ls_deadline_passed(self->pending[i]->deadline)) {
            refuse(self, self->pending[i], "it sends nothing");
        }
    }
    sweep(self);
    if (polls[0].revents != 0) {
        accept_pending(self);
    }
    tell_hidden(self);
}

static ls_status fail_gathering(const gathering *self) {
    char missing[LS_NODE_TEXT];
    char refused[80] = "";
    if (self->admission.refused > 0) {
        snprintf(refused, sizeof refused, "; refused because of a wrong or missing key: %d", self->admission.refused);
    }
    describe_missing(self->nodes, missing, sizeof missing);
    return ls_fail(LS_ERR_TIMEOUT, "lockstep run: %s did not connect to %s within %g s%s", missing,
                   self->nodes->options.rendezvous, self->nodes->options.timeout, refused);
}

static ls_status gather(ls_nodes *nodes) {
    gathering self = {.nodes = nodes};
    struct pollfd *polls = ls_allocate_zeroed((size_t)nodes->options.nodes + MOST_PENDING, sizeof *polls);
    if (polls == NULL) {
        return ls_fail_memory("lockstep run", ((size_t)nodes->options.nodes + MOST_PENDING) * sizeof *polls);
    }
    ls_admission_open(&self.admission, &nodes->key, "launcher");
    const ls_deadline deadline = ls_deadline_after(nodes->options.timeout);
    ls_deadline next_report = ls_deadline_after(report_seconds);
    ls_status status = LS_OK;
    while (count_missing(nodes) > 0 && status == LS_OK) {
        gather_once(&self, polls, next_report < deadline ? next_report : deadline);
        if (ls_deadline_passed(deadline)) {
            status = count_missing(nodes) > 0 ? fail_gathering(&self) : LS_OK;
        } else if (ls_deadline_passed(next_report)) {
            report(nodes);
            next_report = ls_deadline_after(report_seconds);
        }
    }
    for (size_t i = 0; i < self.count; i++) {
        ls_connection_free(self.pending[i]);
    }
    ls_free(polls);
    return status;
}

/* ---- other nodes: connecting to node 0 --------------------------------------------------------------------------- */

static const char advice[] = "check --rendezvous, the firewall, and that the command runs on node 0";

static void report_unreachable(const void *context, const char *why) {
    fprintf(stderr, "lockstep: waiting for node 0 of %d: %s; %s\n", *(const int *)context, why, advice);
}

static ls_status come(ls_nodes *nodes) {
    char server[32];
    const ls_greeting_target target = {.address = nodes->address,
                                       .server = server,
                                       .thing = "the launcher",
                                       .report = report_unreachable,
                                       .context = &nodes->options.nodes};
    const double timeout = nodes->options.timeout;
    ls_remote_node *zero = &nodes->others[0];
    int fd = -1;
    snprintf(server, sizeof server, "node 0 of %d", nodes->options.nodes);
    const ls_status status = ls_greeting_connect(&target, &nodes->key, timeout, &fd);
    if (status != LS_OK) {
        return status == LS_ERR_TIMEOUT ? ls_fail(status, "lockstep run: %s; %s", ls_error_message(), advice)
                                        : ls_fail_in("lockstep run");
    }
    zero->link = ls_connection_new(fd);
    if (zero->link == NULL) {
        return ls_fail_memory("lockstep run", sizeof *zero->link);
    }
    zero->link->greeted = true;
    notice_silence(fd, timeout);
    ls_node_message join = {.word = LS_NODE_JOIN,
                            .numbers = {nodes->options.node, nodes->options.nodes, nodes->options.ranks}};
    ls_node_name_host(join.text);
    ls_node_tell(zero, &join);
    return LS_OK;
}

/*
 * Waits for the start. Node 0 reports every few seconds which nodes are missing, and gives up on its own. A stopped
 * node 0 does neither, so this wait also has a timeout.
 */
static ls_status await_start(ls_nodes *nodes, ls_node_message *message) {
    ls_remote_node *zero = &nodes->others[0];
    const double timeout = nodes->options.timeout;
    ls_deadline deadline = ls_deadline_after(timeout + grace_seconds);
    for (;;) {
        bool whole = false;
        const ls_status status = ls_node_hear(zero->link, &whole, message);
        if (status != LS_OK) {
            return ls_fail(LS_ERR_PEER, "lockstep run: node 0 at %s has ended: %s", nodes->options.rendezvous,
                           ls_error_message());
        }
        if (!whole && ls_deadline_passed(deadline)) {
            return ls_fail(LS_ERR_TIMEOUT,
                           "lockstep run: node 0 at %s neither started the job nor sent a message within %g s: has its "
                           "launcher stopped, or is the network between the machines down?",
                           nodes->options.rendezvous, timeout);
        }
        if (!whole) {
            (void)ls_wait_event(zero->link->fd, POLLIN, deadline);
        } else if (message->word == LS_NODE_START) {
            return LS_OK;
        } else if (message->word == LS_NODE_REFUSED) {
            return ls_fail(LS_ERR_ARGUMENT, "lockstep run: node 0 at %s refused this node: %s",
                           nodes->options.rendezvous, message->text);
        } else if (message->word == LS_NODE_NEWS) {
            fprintf(stderr, "lockstep: %s\n", message->text);
            deadline = ls_deadline_after(timeout + grace_seconds);
        }
    }
}

/* ---- starts ------------------------------------------------------------------------------------------------------ */

/* Derives the key of one start from the job's key and a salt from node 0. The job's key itself is never sent. */
static void derive_key(const ls_nodes *nodes, const char *salt, char key[LS_KEY_TEXT_SIZE]) {
    uint8_t nonce[LS_NONCE_SIZE] = {0}, proof[LS_PROOF_SIZE];
    size_t size;
    (void)sodium_hex2bin(nonce, sizeof nonce, salt, strlen(salt), NULL, &size, NULL);
    ls_auth_prove(&nodes->key, "start", nonce, nonce, proof);
    sodium_bin2hex(key, LS_KEY_TEXT_SIZE, proof, sizeof proof);
    sodium_memzero(proof, sizeof proof);
}

/* Finds the address by which the other nodes know this node. */
static void find_interface(const ls_nodes *nodes, char *interface, size_t capacity) {
    char address[LS_ADDRESS_CAPACITY] = "";
    const ls_remote_node *other = &nodes->others[nodes->first];
    if (ls_interface_address(NULL, other->link->fd, false, address) == LS_OK) {
        snprintf(interface, capacity, "%s", address);
    }
}

/* On node 0: passes the listening socket to the caller and notifies the other nodes. */
static ls_status give_start(ls_nodes *nodes, int restarts, ls_start *start, char salt[LS_NODE_TEXT]) {
    uint8_t nonce[LS_NONCE_SIZE];
    if (nodes->listener < 0) {
        LS_TRY(ls_socket_listen(&nodes->address, nodes->key.given, &nodes->listener));
    }
    LS_TRY(ls_auth_nonce(nonce));
    sodium_bin2hex(salt, 2 * sizeof nonce + 1, nonce, sizeof nonce);
    int first = nodes->options.ranks;
    for (int i = 1; i < nodes->options.nodes; i++) {
        first += nodes->others[i].ranks;
    }
    start->world = first;
    if (start->world > LS_RANKS_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "lockstep run: all nodes together have %d ranks, but at most %d are allowed",
                       start->world, LS_RANKS_MAX);
    }
    first = nodes->options.ranks;
    for (int i = 1; i < nodes->options.nodes; i++) {
        ls_node_message message = {.word = LS_NODE_START, .numbers = {restarts, first, start->world}};
        snprintf(message.text, sizeof message.text, "%s", salt);
        ls_node_tell(&nodes->others[i], &message);
        first += nodes->others[i].ranks;
    }
    start->first_rank = 0;
    start->listener = nodes->listener;
    nodes->listener = -1;
    return LS_OK;
}

ls_status ls_nodes_start(ls_nodes *nodes, int restarts, ls_start *start) {
    char salt[LS_NODE_TEXT];
    *start = (ls_start){.nodes = nodes->options.nodes, .listener = -1, .port = nodes->address.port};
    nodes->verdict = (ls_verdict){0};
    nodes->failing = nodes->done = nodes->over = false;
    for (int i = 0; i < nodes->count; i++) {
        nodes->others[nodes->first + i].done = false;
    }
    if (nodes->options.node == 0) {
        LS_TRY(give_start(nodes, restarts, start, salt));
    } else {
        ls_node_message message;
        LS_TRY(await_start(nodes, &message));
        start->first_rank = message.numbers[1];
        start->world = message.numbers[2];
        snprintf(salt, sizeof salt, "%s", message.text);
    }
    derive_key(nodes, salt, start->key);
    snprintf(start->host, sizeof start->host, "%s", nodes->address.host);
    find_interface(nodes, start->interface, sizeof start->interface);
    return LS_OK;
}

ls_status ls_start_alone(int ranks, ls_start *start) {
    const ls_address anywhere = {.host = "127.0.0.1"};
    *start = (ls_start){.world = ranks, .nodes = 1, .listener = -1};
    LS_TRY(ls_key_make(start->key));
    if (ls_socket_listen(&anywhere, true, &start->listener) != LS_OK) {
        return ls_fail(LS_ERR_IO, "lockstep run: cannot open the port at which the ranks meet: %s", ls_error_message());
    }
    snprintf(start->host, sizeof start->host, "%s", anywhere.host);
    start->port = ls_socket_port(start->listener);
    return LS_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static ls_status open_nodes(ls_nodes *nodes) {
    const ls_nodes_options *options = &nodes->options;
    char url[LS_HOST_CAPACITY + 64];
    snprintf(url, sizeof url, "tcp://%s", options->rendezvous);
    if (ls_address_parse(url, &nodes->address) != LS_OK || nodes->address.port == 0) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "lockstep run: --rendezvous %s: must be HOST:PORT, with an IPv6 address in "
                       "brackets and a port from 1 to 65535",
                       options->rendezvous);
    }
    LS_TRY(ls_key_find(&nodes->key, options->key));
    nodes->first = options->node == 0 ? 1 : 0;
    nodes->count = options->node == 0 ? options->nodes - 1 : 1;
    nodes->others = ls_allocate_zeroed((size_t)options->nodes, sizeof *nodes->others);
    if (nodes->others == NULL) {
        return ls_fail_memory("lockstep run", (size_t)options->nodes * sizeof *nodes->others);
    }
    for (int i = 0; i < options->nodes; i++) {
        nodes->others[i].nodes = nodes;
        nodes->others[i].number = i;
    }
    snprintf(nodes->others[0].host, sizeof nodes->others[0].host, "%.63s", nodes->address.host);
    if (options->node != 0) {
        return come(nodes);
    }
    if (ls_socket_listen(&nodes->address, nodes->key.given, &nodes->listener) != LS_OK) {
        return ls_fail_in("lockstep run: --rendezvous");
    }
    return gather(nodes);
}

ls_status ls_nodes_open(const ls_nodes_options *options, ls_nodes **result) {
    ls_nodes *nodes = ls_allocate_zeroed(1, sizeof *nodes);
    *result = NULL;
    if (nodes == NULL) {
        return ls_fail_memory("lockstep run", sizeof *nodes);
    }
    nodes->options = *options;
    nodes->listener = -1;
    const ls_status status = open_nodes(nodes);
    if (status != LS_OK) {
        ls_saved_error cause;
        ls_error_save(&cause);
        ls_nodes_close(nodes);
        (void)ls_error_put_back(&cause);
        return status;
    }
    *result = nodes;
    return LS_OK;
}

void ls_nodes_close(ls_nodes *nodes) {
    if (nodes == NULL) {
        return;
    }
    for (int i = 0; nodes->others != NULL && i < nodes->options.nodes; i++) {
        ls_connection_free(nodes->others[i].link);
    }
    if (nodes->listener >= 0) {
        close(nodes->listener);
    }
    ls_key_forget(&nodes->key);
    ls_free(nodes->others);
    ls_free(nodes);
}
