/*
 * The TCP transport: connecting. Each rank sends to another rank on a connection that it made itself, and reads that
 * rank's data on the connection that the other rank made. So the ranks need not agree on which of two connections to
 * use. The connecting rank identifies itself and proves its identity in the first bytes, the hello. Its frames follow
 * at once, so a small message is sent before the listening rank has polled. The listening rank reads no frame before it
 * has checked the proof.
 *
 * A proof is bound to both ranks' peer information, to a nonce and to the connecting rank. The secrets in the peer
 * information are new for every communicator. A second connection from the same rank is refused. So an attacker cannot
 * reuse a recorded hello. A connection without a valid proof is closed without an answer, and does not delay other
 * connections.
 *
 * The connecting rank does not request a proof from the listener, because that would cost a round trip before the first
 * message. So if another program listens at a rank's address, for example because the rank has exited, it receives the
 * data for that rank. But it cannot answer on behalf of the rank: data counts as a rank's data only on a connection
 * that began with the rank's own proof, and the received hello is valid only for this one address. The proofs exclude
 * attackers who can only connect. LOCKSTEP_WIRE (comm/channel/wire.h), with a key derived from the hello, excludes
 * attackers who can read or change the packets between two ranks.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/transport/tcp/link.h"

#define PAUSE_NS    UINT64_C(10000000)
#define FAILING_NS  UINT64_C(1000000000) /* attempts that fail because of a full queue must succeed within this time */
#define ENDING_NS   UINT64_C(100000000)  /* pauses in the data that a rank sent before its exit are shorter than this */
#define UNPROVEN_NS UINT64_C(5000000000)

/* The number of connections accepted at once. It is half of the slots, so that a connection whose hello follows
 * promptly is not the oldest. */
enum { ACCEPTS = LS_TCP_UNPROVEN / 2 };

/* ---- proofs ------------------------------------------------------------------------------------------------------ */

/* Computes the shared key of two ranks, and the text that the proof of `rank` to `other` covers. */
static void prepare_proof(const ls_key *job, const ls_tcp_peer_info *peer_infos, int rank, int other, ls_key *key,
                          char role[64]) {
    const int low = rank < other ? rank : other;
    const int high = rank < other ? other : rank;
    char purpose[64];
    snprintf(purpose, sizeof purpose, "tcp transport %d %d", low, high);
    _Static_assert((int)LS_PROOF_SIZE <= (int)LS_KEY_CAPACITY, "a proof makes a key");
    key->size = LS_PROOF_SIZE;
    ls_auth_prove(job, purpose, peer_infos[low].secret, peer_infos[high].secret, key->bytes);
    snprintf(role, 64, "rank %d connects to %d", rank, other);
}

ls_status ls_tcp_make_hello(const ls_key *job, const ls_tcp_peer_info *peer_infos, int size, int rank, int other,
                            ls_tcp_hello *made) {
    ls_hello hello;
    ls_key key;
    char role[64];
    *made = (ls_tcp_hello){.rank = rank, .size = size};
    LS_TRY(ls_hello_make(&hello, job->given));
    prepare_proof(job, peer_infos, rank, other, &key, role);
    ls_hello_prove(&hello, &key, role, peer_infos[other].secret);
    ls_key_forget(&key);
    ls_hello_encode(&hello, true, made->hello);
    return LS_OK;
}

/* Decodes a received hello. Returns true if it is valid and its rank has not connected yet. */
static bool is_known(const ls_tcp *tcp, const ls_tcp_hello *received, ls_hello *hello) {
    const int own = tcp->endpoint.rank;
    const int rank = received->rank;
    if (ls_hello_decode(received->hello, true, hello) != LS_OK || received->size != tcp->endpoint.size || rank < 0 ||
        rank >= tcp->endpoint.size || rank == own || tcp->peers[rank].stage == LS_TCP_GONE ||
        tcp->peers[rank].was_connected) {
        return false;
    }
    ls_key key;
    char role[64];
    prepare_proof(&tcp->key, tcp->peer_infos, rank, own, &key, role);
    const bool good = ls_hello_is_proven(hello, &key, role, tcp->peer_infos[own].secret);
    ls_key_forget(&key);
    return good;
}

/* ---- keys of connections ----------------------------------------------------------------------------------------- */

void ls_tcp_free_records(ls_tcp_records **records) {
    if (*records != NULL) {
        explicit_bzero(&(*records)->wire, sizeof(*records)->wire);
        ls_free(*records);
        *records = NULL;
    }
}

/* Creates the records of the connection from `rank` to `other` if its frames are protected. */
static ls_status make_records(const ls_tcp *tcp, int rank, int other, const uint8_t nonce[LS_NONCE_SIZE],
                              ls_tcp_records **records) {
    const int peer = rank == tcp->endpoint.rank ? other : rank;
    if (tcp->wire == LS_WIRE_PLAIN || tcp->peers[peer].near) {
        return LS_OK;
    }
    *records = ls_allocate_zeroed(1, sizeof **records);
    if (*records == NULL) {
        return ls_fail_memory("a connection", sizeof **records);
    }
    ls_key key;
    char role[64], purpose[80];
    prepare_proof(&tcp->key, tcp->peer_infos, rank, other, &key, role);
    snprintf(purpose, sizeof purpose, "%s: %s", ls_wire_names[tcp->wire], role);
    _Static_assert((int)LS_PROOF_SIZE == (int)LS_WIRE_KEY_SIZE, "a proof makes a key");
    ls_auth_prove(&key, purpose, nonce, tcp->peer_infos[other].secret, (*records)->wire.key);
    (*records)->wire.mode = tcp->wire;
    ls_key_forget(&key);
    return LS_OK;
}

/* ---- the connecting rank ----------------------------------------------------------------------------------------- */

static void set_stage(ls_tcp *tcp, ls_tcp_peer *peer, ls_tcp_stage stage) {
    tcp->paused += (stage == LS_TCP_PAUSED) - (peer->stage == LS_TCP_PAUSED);
    tcp->ending += (stage == LS_TCP_ENDING) - (peer->stage == LS_TCP_ENDING);
    peer->stage = stage;
}

static void close_output(ls_tcp_peer *peer) {
    if (peer->socket >= 0) {
        close(peer->socket);
        peer->socket = -1;
    }
    peer->asks_room = false;
}

/* Handles a failed attempt. A rank that is alive still listens, so a refused connection means that the rank has
 * exited. Other failures may mean that the listener's queue is full, so these attempts are repeated for FAILING_NS. */
static ls_status fail_attempt(ls_tcp *tcp, int rank, int error) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    if (peer->failing_ns == 0) {
        peer->failing_ns = tcp->awake.ns + 1;
    }
    close_output(peer);
    if (error == ECONNREFUSED || tcp->awake.ns > peer->failing_ns + FAILING_NS) {
        return ls_tcp_end_output(tcp, rank);
    }
    peer->again_ns = tcp->awake.ns + PAUSE_NS;
    set_stage(tcp, peer, LS_TCP_PAUSED);
    return LS_OK;
}

/*
 * Sets socket options that affect only speed. epoll reports room in a socket while less than half of TCP_NOTSENT_LOWAT
 * bytes are unsent. Returns true if this limit applies; it applies neither between ranks of one machine nor if the
 * kernel lacks the option.
 */
static bool set_up(int socket, bool near) {
    const int yes = 1;
    const int lowat = 2 * LS_TCP_UNSENT;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return !near && setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof lowat) == 0;
}

/* Returns true if the peer has closed a connection that this rank made. The peer never sends data on it. */
static bool is_closed(int socket) {
    return ls_wait_event(socket, POLLRDHUP, LS_DEADLINE_NOW);
}

ls_status ls_tcp_connected(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(peer->socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
        return fail_attempt(tcp, rank, error != 0 ? error : errno);
    }
    if (is_closed(peer->socket)) { /* this rank polled so late that the listener has closed the connection */
        return fail_attempt(tcp, rank, 0);
    }
    ls_tcp_hello *hello = ls_allocate(sizeof *hello);
    if (hello == NULL) {
        return ls_fail_memory("a connection", sizeof *hello);
    }
    const int own = tcp->endpoint.rank;
    ls_status status = ls_tcp_make_hello(&tcp->key, tcp->peer_infos, tcp->endpoint.size, own, rank, hello);
    if (peer->near) {
        hello->process = getpid();
        hello->mark_at = (uint64_t)(uintptr_t)tcp->mark;
    }
    if (status == LS_OK) {
        status = make_records(tcp, own, rank, ls_hello_nonce(hello->hello), &peer->output_records);
    }
    if (status != LS_OK) {
        ls_free(hello);
        return status;
    }
    peer->frame = (ls_tcp_frame){.data = (const unsigned char *)hello, .left = sizeof *hello, .memory = hello};
    set_stage(tcp, peer, LS_TCP_READY);
    ls_tcp_flush(tcp, rank);
    return LS_OK;
}

static ls_status begin_attempt(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    const ls_tcp_peer_info *peer_info = &tcp->peer_infos[rank];
    const int fd = socket(peer_info->address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return ls_fail(LS_ERR_IO, "cannot create a socket for the connection to rank %d: %s", rank, strerror(errno));
    }
    peer->limits_unsent = set_up(fd, peer->near);
    peer->socket = fd;
    const bool now = connect(fd, &peer_info->address.any, peer_info->length) == 0;
    if (!now && errno != EINPROGRESS && errno != EINTR) {
        return fail_attempt(tcp, rank, errno);
    }
    set_stage(tcp, peer, LS_TCP_CONNECTING);
    peer->asks_room = true;
    LS_TRY(ls_tcp_watch(tcp, fd, EPOLLIN | EPOLLOUT, (uint64_t)rank, false));
    return now || ls_wait_event(fd, POLLOUT, LS_DEADLINE_NOW) ? ls_tcp_connected(tcp, rank)
                                                              : LS_OK; /* within a machine, connecting takes no time */
}

ls_status ls_tcp_connect(ls_tcp *tcp, int rank) {
    return tcp->peers[rank].stage == LS_TCP_APART ? begin_attempt(tcp, rank) : LS_OK;
}

ls_status ls_tcp_end_output(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    close_output(peer);
    peer->mute = true;
    ls_tcp_drop_output(peer);
    peer->ending_ns = 0;
    set_stage(tcp, peer, LS_TCP_ENDING);
    return LS_OK;
}

/* ---- the listening rank ------------------------------------------------------------------------------------------ */

void ls_tcp_turn_away(ls_tcp *tcp, ls_tcp_unproven *connection) {
    close(connection->socket);
    connection->socket = -1;
    tcp->unproven_count--;
}

static ls_status admit(ls_tcp *tcp, ls_tcp_unproven *connection, const ls_hello *hello) {
    const int rank = connection->hello.rank;
    ls_tcp_peer *peer = &tcp->peers[rank];
    char name[32];
    snprintf(name, sizeof name, "rank %d", rank);
    LS_TRY(ls_hello_check_build(hello, name));
    LS_TRY(make_records(tcp, rank, tcp->endpoint.rank, hello->nonce, &peer->input_records));
    const size_t bytes = peer->input_records != NULL ? LS_TCP_RECORD : LS_TCP_BUFFER;
    peer->buffer = ls_allocate(bytes);
    if (peer->buffer == NULL) {
        return ls_fail_memory("a connection", bytes);
    }
    peer->was_connected = true;
    peer->ending_ns = 0;
    peer->incoming = connection->socket;
    if (peer->near) {
        peer->memory = (ls_peer_memory){.process = connection->hello.process,
                                        .mark_at = connection->hello.mark_at,
                                        .mark = tcp->peer_infos[rank].secret,
                                        .mark_size = sizeof tcp->peer_infos[rank].secret};
    }
    connection->socket = -1;
    tcp->unproven_count--;
    LS_TRY(ls_tcp_watch(tcp, peer->incoming, EPOLLIN, LS_TCP_NAME_OF_INPUT(tcp, rank), true));
    return ls_tcp_read(tcp, rank);
}

ls_status ls_tcp_hear_unproven(ls_tcp *tcp, ls_tcp_unproven *connection) {
    const ssize_t step = recv(connection->socket, (char *)&connection->hello + connection->got,
                              sizeof connection->hello - connection->got, MSG_DONTWAIT);
    if (step < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return LS_OK;
    }
    connection->got += step > 0 ? (size_t)step : 0;
    if (step > 0 && connection->got < sizeof connection->hello) {
        return LS_OK;
    }
    ls_hello hello;
    if (step > 0 && is_known(tcp, &connection->hello, &hello)) {
        return admit(tcp, connection, &hello);
    }
    ls_tcp_turn_away(tcp, connection);
    return LS_OK;
}

/* Closes an unproven connection that has timed out or whose slot is needed. If a hello has already arrived, accepts
 * it first, because a rank does not connect a second time. */
static ls_status dismiss(ls_tcp *tcp, ls_tcp_unproven *connection) {
    LS_TRY(ls_tcp_hear_unproven(tcp, connection));
    if (connection->socket >= 0) {
        ls_tcp_turn_away(tcp, connection);
    }
    return LS_OK;
}

/* Finds a slot for a new connection. If no slot is free, closes the oldest unproven connection. */
static ls_status find_room(ls_tcp *tcp, ls_tcp_unproven **room) {
    ls_tcp_unproven *oldest = &tcp->unproven[0];
    for (int i = 0; i < LS_TCP_UNPROVEN; i++) {
        ls_tcp_unproven *connection = &tcp->unproven[i];
        if (connection->socket < 0) {
            *room = connection;
            return LS_OK;
        }
        oldest = connection->until_ns < oldest->until_ns ? connection : oldest;
    }
    *room = oldest;
    return dismiss(tcp, oldest);
}

/* Accepts a connection. In most cases, the hello of a rank has already arrived. */
static ls_status take_in(ls_tcp *tcp, int socket) {
    ls_tcp_unproven *connection = NULL;
    const ls_status status = find_room(tcp, &connection);
    if (status != LS_OK) {
        close(socket);
        return status;
    }
    *connection = (ls_tcp_unproven){.socket = socket, .until_ns = tcp->awake.ns + UNPROVEN_NS};
    tcp->unproven_count++;
    const uint64_t name = (uint64_t)(tcp->endpoint.size + (connection - tcp->unproven));
    LS_TRY(ls_tcp_watch(tcp, socket, EPOLLIN, name, false));
    return ls_tcp_hear_unproven(tcp, connection);
}

ls_status ls_tcp_accept(ls_tcp *tcp) {
    tcp->accepted_all = false;
    for (int i = 0; i < ACCEPTS; i++) {
        const int fd = accept4(tcp->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            LS_TRY(take_in(tcp, fd));
        } else if (errno == EMFILE || errno == ENFILE) {
            return ls_fail(LS_ERR_IO, "cannot create a socket for a connection from a different rank: %s",
                           strerror(errno));
        } else if (errno != EINTR && errno != ECONNABORTED) {
            tcp->accepted_all = true;
            return LS_OK;
        }
    }
    return LS_OK;
}

/* ---- timers ------------------------------------------------------------------------------------------------------ */

/* Records the exit of a rank to which nothing can be sent, after no data has arrived from it for ENDING_NS. Reads
 * once more before that, because this rank may not have polled during that time. */
static ls_status tend_ending(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    if (peer->ending_ns == 0) {
        peer->ending_ns = tcp->awake.ns + ENDING_NS;
    }
    if (tcp->awake.ns < peer->ending_ns) {
        return LS_OK;
    }
    if (!peer->was_connected) {
        LS_TRY(ls_tcp_accept(tcp));
    } else if (peer->incoming >= 0) {
        LS_TRY(ls_tcp_read(tcp, rank));
    }
    const bool over =
        peer->stage == LS_TCP_ENDING && peer->ending_ns != 0 && (peer->was_connected || tcp->accepted_all);
    return over ? ls_tcp_lose(tcp, rank) : LS_OK;
}

ls_status ls_tcp_tend(ls_tcp *tcp) {
    for (int i = 0; i < LS_TCP_UNPROVEN && tcp->unproven_count > 0; i++) {
        ls_tcp_unproven *connection = &tcp->unproven[i];
        if (connection->socket >= 0 && tcp->awake.ns > connection->until_ns) {
            LS_TRY(dismiss(tcp, connection));
        }
    }
    for (int rank = 0; rank < tcp->endpoint.size && tcp->paused + tcp->ending > 0; rank++) {
        ls_tcp_peer *peer = &tcp->peers[rank];
        if (peer->stage == LS_TCP_PAUSED && tcp->awake.ns >= peer->again_ns) {
            LS_TRY(begin_attempt(tcp, rank));
        }
        if (peer->stage == LS_TCP_ENDING) {
            LS_TRY(tend_ending(tcp, rank));
        }
    }
    return LS_OK;
}
