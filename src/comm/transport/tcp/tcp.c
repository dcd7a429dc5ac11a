/* The TCP transport: opening, waiting and closing. */
#include "comm/transport/tcp/tcp.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/transport/tcp/link.h"

#define SPIN_NS  UINT64_C(100000)   /* spin time if every rank has a core: longer than a sleep and a wake-up take */
#define SLEEP_NS UINT64_C(50000000) /* the longest sleep */
#define SOON_NS  UINT64_C(5000000)  /* longest sleep while a peer is ending or will be connected again */
#define FLUSH_NS UINT64_C(1000000)  /* interval between two polls of whether the kernel has sent its data */

enum { BACKLOG = 1024, EVENTS = 64 };

/* ---- peer information -------------------------------------------------------------------------------------------- */

/* Listens at one address. Returns 0 on success, otherwise an errno value. */
static int listen_at(const struct addrinfo *at, int *listener) {
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
        *listener = fd;
        return 0;
    }
    const int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    return error;
}

ls_status ls_tcp_listen(const ls_join_context *join, ls_tcp_peer_info *peer_info, int *listener) {
    const char *host = join->address != NULL && join->address[0] != '\0' ? join->address : "127.0.0.1";
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    socklen_t length = sizeof peer_info->address;
    memset(peer_info, 0, sizeof *peer_info);
    peer_info->machine = join->machine;
    ls_wire_mode wire;
    LS_TRY(ls_wire_find_mode(&wire));
    peer_info->wire = wire;
    if (sched_getaffinity(0, sizeof peer_info->cores, &peer_info->cores) != 0) {
        memset(&peer_info->cores, 0xff, sizeof peer_info->cores); /* too many for a cpu_set_t: treated as enough */
    }
    LS_TRY(ls_auth_nonce(peer_info->secret));
    if (getaddrinfo(host, "0", &hints, &found) != 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s is not an IP address", host);
    }
    int error = listen_at(found, listener);
    freeaddrinfo(found);
    if (error == 0 && getsockname(*listener, &peer_info->address.any, &length) != 0) {
        error = errno;
        close(*listener);
    }
    peer_info->length = (uint32_t)length;
    return error == 0 ? LS_OK : ls_fail(LS_ERR_IO, "cannot listen on %s: %s", host, strerror(error));
}

static bool is_peer_info(const ls_tcp_peer_info *peer_info) {
    const sa_family_t family = peer_info->address.any.sa_family;
    return (family == AF_INET && peer_info->length == sizeof peer_info->address.v4) ||
           (family == AF_INET6 && peer_info->length == sizeof peer_info->address.v6);
}

/* Counts the ranks of this machine. Returns true if, according to the peer information, there is a core for each of
 * them. */
static bool has_core_for_each(const ls_tcp_options *options, int *machine_ranks) {
    int ranks = 0;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int rank = 0; rank < options->size; rank++) {
        if (options->peer_infos[rank].machine == options->peer_infos[options->rank].machine) {
            CPU_OR(&cores, &cores, &options->peer_infos[rank].cores);
            ranks++;
        }
    }
    *machine_ranks = ranks;
    return CPU_COUNT(&cores) >= ranks;
}

/* ---- functions for the other files ------------------------------------------------------------------------------- */

ls_status ls_tcp_watch(ls_tcp *tcp, int socket, uint32_t watched, uint64_t name, bool known) {
    struct epoll_event event = {.events = watched, .data.u64 = name};
    if (epoll_ctl(tcp->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, socket, &event) != 0) {
        return ls_fail(LS_ERR_IO, "cannot watch a connection: %s", strerror(errno));
    }
    return LS_OK;
}

ls_status ls_tcp_lose(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    if (peer->socket >= 0) {
        close(peer->socket);
        peer->socket = -1;
    }
    if (peer->incoming >= 0) {
        close(peer->incoming);
        peer->incoming = -1;
    }
    tcp->paused -= peer->stage == LS_TCP_PAUSED;
    tcp->ending -= peer->stage == LS_TCP_ENDING;
    tcp->endpoint.gone += peer->stage != LS_TCP_GONE;
    peer->stage = LS_TCP_GONE;
    tcp->moved = true;
    ls_tcp_drop_output(peer);
    peer->announced = NULL;
    ls_tcp_free_records(&peer->output_records);
    ls_tcp_free_records(&peer->input_records);
    return ls_tcp_drop_input(tcp, rank);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Handles events of the connection that this rank made. The peer sends no data on it, so the only input event is the
 * end of the connection. */
static ls_status handle_output(ls_tcp *tcp, int rank, uint32_t events) {
    const ls_tcp_peer *peer = &tcp->peers[rank];
    char byte = 0;
    if (peer->stage == LS_TCP_CONNECTING) {
        return ls_tcp_connected(tcp, rank);
    }
    if (peer->stage == LS_TCP_READY && (events & EPOLLOUT) != 0) {
        ls_tcp_flush(tcp, rank);
    }
    if (peer->stage != LS_TCP_READY || (events & ~(uint32_t)EPOLLOUT) == 0) {
        return LS_OK;
    }
    const ssize_t step = recv(peer->socket, &byte, 1, MSG_DONTWAIT);
    const bool alive = step < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    return alive ? LS_OK : ls_tcp_end_output(tcp, rank);
}

static ls_status handle(ls_tcp *tcp, const struct epoll_event *event) {
    const uint64_t name = event->data.u64;
    const uint64_t size = (uint64_t)tcp->endpoint.size;
    if (name == LS_TCP_LISTENER) {
        return ls_tcp_accept(tcp);
    }
    if (name == LS_TCP_WAKER) {
        uint64_t woken = 0;
        (void)!read(tcp->waker, &woken, sizeof woken);
        return LS_OK;
    }
    if (name < size) {
        return handle_output(tcp, (int)name, event->events);
    }
    if (name < size + LS_TCP_UNPROVEN) {
        ls_tcp_unproven *connection = &tcp->unproven[name - size];
        return connection->socket >= 0 ? ls_tcp_hear_unproven(tcp, connection) : LS_OK;
    }
    const int rank = (int)(name - size - LS_TCP_UNPROVEN);
    return tcp->peers[rank].incoming >= 0 ? ls_tcp_read(tcp, rank) : LS_OK;
}

/* Waits at most `milliseconds` for events, and handles them and everything that is due. Sets `*busy` to true if there
 * were events or offered messages. */
static ls_status look(ls_tcp *tcp, int milliseconds, bool *busy) {
    struct epoll_event events[EVENTS];
    const int count = epoll_wait(tcp->epoll, events, EVENTS, milliseconds);
    (void)ls_awake_poll(&tcp->awake, ls_clock_ns());
    *busy = count > 0;
    for (int i = 0; i < count; i++) {
        LS_TRY(handle(tcp, &events[i]));
    }
    LS_TRY(ls_tcp_read_offered(tcp, busy));
    return ls_tcp_tend(tcp);
}

static ls_status wait_for_more(ls_tcp *tcp, uint64_t wait_ns) {
    const uint64_t begun = tcp->awake.polled_ns;
    const uint64_t spin_ns = tcp->endpoint.yields ? 0 : tcp->spin_ns < wait_ns ? tcp->spin_ns : wait_ns;
    bool busy = false;
    while (tcp->awake.polled_ns - begun < spin_ns) {
        LS_TRY(look(tcp, 0, &busy));
        if (busy) {
            return LS_OK;
        }
    }
    if (wait_ns == spin_ns) {
        return LS_OK;
    }
    const uint64_t most = tcp->paused + tcp->ending > 0 ? SOON_NS : SLEEP_NS;
    const uint64_t left = wait_ns - spin_ns < most ? wait_ns - spin_ns : most;
    return look(tcp, (int)((left + 999999) / 1000000), &busy);
}

static ls_status tcp_progress(ls_endpoint *endpoint, uint64_t wait_ns, bool *moved) {
    ls_tcp *tcp = (ls_tcp *)endpoint;
    bool busy = false;
    const bool rests = wait_ns > 0 && tcp->spin_ns == 0 && !tcp->reads && !tcp->moved; /* wait_for_more polls anyway */
    ls_status status = rests ? LS_OK : look(tcp, 0, &busy);
    if (status == LS_OK && !busy && !tcp->moved && wait_ns > 0) {
        status = wait_for_more(tcp, wait_ns);
    }
    *moved = tcp->moved;
    tcp->moved = false;
    return status;
}

static uint64_t tcp_now_ns(const ls_endpoint *endpoint) {
    return ls_awake_at(&((const ls_tcp *)endpoint)->awake, ls_clock_ns());
}

static ls_peer_state tcp_peer(const ls_endpoint *endpoint, int peer) {
    const ls_tcp_peer *other = &((const ls_tcp *)endpoint)->peers[peer];
    if (other->stage == LS_TCP_GONE) {
        return LS_PEER_GONE;
    }
    return other->stage != LS_TCP_APART || other->was_connected ? LS_PEER_REACHED : LS_PEER_UNKNOWN;
}

/* ---- transfers --------------------------------------------------------------------------------------------------- */

static ls_status check_peer(const ls_tcp *tcp, const ls_transfer *transfer, int least) {
    if (transfer->peer < least || transfer->peer >= tcp->endpoint.size || transfer->peer == tcp->endpoint.rank ||
        transfer->channel < 0 || transfer->channel >= LS_TRANSPORT_CHANNELS) {
        return ls_fail(LS_ERR_INTERNAL, "rank %d of %d cannot transfer with rank %d on channel %d", tcp->endpoint.rank,
                       tcp->endpoint.size, transfer->peer, transfer->channel);
    }
    return LS_OK;
}

static ls_status tcp_send(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_tcp *tcp = (ls_tcp *)endpoint;
    transfer->ended = false;
    transfer->receives = false;
    transfer->moved = 0;
    LS_TRY(check_peer(tcp, transfer, 0));
    LS_TRY(ls_tcp_connect(tcp, transfer->peer));
    if (tcp->peers[transfer->peer].stage >= LS_TCP_ENDING) {
        return LS_OK;
    }
    endpoint->messages++;
    endpoint->bytes += transfer->bytes;
    ls_tcp_peer *peer = &tcp->peers[transfer->peer];
    const bool small = transfer->bytes <= LS_TRANSPORT_LEAST_EAGER;
    if (transfer->bytes > LS_TCP_EAGER || (!small && peer->sent - peer->claimed_there > LS_TCP_UNCLAIMED)) {
        return ls_tcp_announce(tcp, transfer);
    }
    peer->sent += small ? 0 : transfer->bytes;
    const ls_tcp_header header = {
        .kind = LS_TCP_MESSAGE, .channel = (uint32_t)transfer->channel, .bytes = transfer->bytes};
    LS_TRY(ls_tcp_put(tcp, transfer->peer, &header, transfer->data, transfer->bytes));
    ls_tcp_note_unsent(tcp, transfer);
    return LS_OK;
}

static ls_status tcp_receive(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_tcp *tcp = (ls_tcp *)endpoint;
    transfer->ended = false;
    transfer->receives = true;
    transfer->moved = 0;
    LS_TRY(check_peer(tcp, transfer, -1));
    LS_TRY(ls_tcp_post(tcp, transfer));
    return transfer->peer < 0 ? LS_OK : ls_tcp_connect(tcp, transfer->peer);
}

static void tcp_withdraw(ls_endpoint *endpoint, ls_transfer *transfer) {
    ls_tcp *tcp = (ls_tcp *)endpoint;
    if (transfer->receives) {
        ls_tcp_withdraw_receive(tcp, transfer);
    } else {
        ls_tcp_withdraw_send(tcp, transfer);
    }
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */

/* Returns true if frames are waiting to be sent, either here or, if the receiver has no room, in the kernel. */
static bool has_unsent(const ls_tcp_peer *peer) {
    int unsent = 0;
    if (peer->stage >= LS_TCP_ENDING || peer->mute) {
        return false;
    }
    if (peer->queue != NULL || peer->frame.header_left + peer->frame.left > 0) {
        return true;
    }
    return peer->stage == LS_TCP_READY && ioctl(peer->socket, SIOCOUTQNSD, &unsent) == 0 && unsent > 0;
}

static void linger(ls_tcp *tcp, uint64_t linger_ns) {
    const uint64_t begun = ls_clock_ns();
    bool unsent = true, busy = false;
    while (unsent && ls_clock_ns() - begun < linger_ns) {
        unsent = false;
        for (int rank = 0; rank < tcp->endpoint.size; rank++) {
            unsent = unsent || has_unsent(&tcp->peers[rank]);
        }
        if (unsent) {
            (void)look(tcp, (int)(FLUSH_NS / 1000000), &busy); /* a peer whose connection fails counts as ended */
        }
    }
}

static void tcp_close(ls_endpoint *endpoint, uint64_t linger_ns, ls_endpoint_release *release, void *owner) {
    ls_tcp *tcp = (ls_tcp *)endpoint;
    ls_tcp_take_mark(tcp);
    for (int rank = 0; rank < endpoint->size; rank++) { /* announced sends end here: only eager sends are completed */
        ls_tcp_peer *peer = &tcp->peers[rank];
        while (peer->announced != NULL) {
            ls_tcp_withdraw_send(tcp, peer->announced);
        }
        while (peer->cleared != NULL) {
            ls_tcp_withdraw_send(tcp, peer->cleared);
        }
    }
    linger(tcp, linger_ns);
    for (int rank = 0; rank < endpoint->size; rank++) {
        tcp->arrivals.receives = NULL;
        (void)ls_tcp_lose(tcp, rank);
    }
    for (int i = 0; i < LS_TCP_UNPROVEN; i++) {
        if (tcp->unproven[i].socket >= 0) {
            ls_tcp_turn_away(tcp, &tcp->unproven[i]);
        }
    }
    ls_arrivals_free(&tcp->arrivals);
    if (tcp->listener >= 0) {
        close(tcp->listener);
    }
    if (tcp->waker >= 0) {
        close(tcp->waker);
    }
    if (tcp->epoll >= 0) {
        close(tcp->epoll);
    }
    ls_key_forget(&tcp->key);
    ls_free(tcp->peer_infos);
    ls_free(tcp->peers);
    ls_free(tcp);
    if (release != NULL) {
        release(owner);
    }
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static const ls_transport transport_tcp = {
    .name = "tcp",
    .send = tcp_send,
    .receive = tcp_receive,
    .withdraw = tcp_withdraw,
    .progress = tcp_progress,
    .peer = tcp_peer,
    .now_ns = tcp_now_ns,
    .close = tcp_close,
};

int ls_tcp_waker(ls_endpoint *endpoint) {
    ls_tcp *tcp = (ls_tcp *)endpoint;
    if (tcp->waker < 0) {
        tcp->waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (tcp->waker < 0) {
            (void)ls_fail(LS_ERR_IO, "cannot create a wake-up descriptor: %s", strerror(errno));
        } else if (ls_tcp_watch(tcp, tcp->waker, EPOLLIN, LS_TCP_WAKER, false) != LS_OK) {
            close(tcp->waker);
            tcp->waker = -1;
        }
    }
    return tcp->waker;
}

/* Checks the wire mode of another rank. Each rank compares the modes of all ranks with its own mode, so an attacker who
 * changes a peer's information in transit cannot weaken the protection. */
static ls_status check_wire(const ls_tcp_options *options, int rank) {
    const ls_tcp_peer_info *own = &options->peer_infos[options->rank], *other = &options->peer_infos[rank];
    if (other->wire != own->wire) {
        return ls_fail(LS_ERR_MISMATCH,
                       "LOCKSTEP_WIRE is %s for rank %d and %s for rank %d: set it to the same value for "
                       "all ranks",
                       ls_wire_names[own->wire], options->rank,
                       other->wire <= LS_WIRE_ENCRYPTED ? ls_wire_names[other->wire] : "unknown", rank);
    }
    if (own->wire != LS_WIRE_PLAIN && options->key->size == 0 && other->machine != own->machine) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "LOCKSTEP_WIRE is %s, but the job has no key: set LOCKSTEP_KEY to the same secret "
                       "for all ranks",
                       ls_wire_names[own->wire]);
    }
    return LS_OK;
}

static ls_status check_peer_infos(const ls_tcp_options *options) {
    for (int rank = 0; rank < options->size; rank++) {
        if (rank != options->rank && !is_peer_info(&options->peer_infos[rank])) {
            return ls_fail(LS_ERR_MISMATCH, "rank %d has sent an address that this version of Lockstep cannot read",
                           rank);
        }
        LS_TRY(check_wire(options, rank));
    }
    return LS_OK;
}

/* Initializes an endpoint whose memory is allocated and whose sockets are -1, except for the listener. */
static ls_status open_endpoint(ls_tcp *tcp, const ls_tcp_options *options) {
    memcpy(tcp->peer_infos, options->peer_infos, (size_t)options->size * sizeof *tcp->peer_infos);
    memcpy(tcp->mark, tcp->peer_infos[options->rank].secret, sizeof tcp->mark);
    for (int rank = 0; rank < options->size; rank++) {
        tcp->peers[rank].near =
            rank != options->rank && tcp->peer_infos[rank].machine == tcp->peer_infos[options->rank].machine;
    }
    tcp->endpoint.place = ls_place_find(&tcp->peer_infos[0].machine, sizeof *tcp->peer_infos, options->size);
    tcp->key = *options->key;
    tcp->wire = (ls_wire_mode)tcp->peer_infos[options->rank].wire;
    int machine_ranks = 0;
    tcp->spin_ns = has_core_for_each(options, &machine_ranks) ? SPIN_NS : 0;
    tcp->endpoint.oversubscribed = tcp->spin_ns == 0 && machine_ranks == options->size;
    tcp->awake.polled_ns = ls_clock_ns();
    LS_TRY(check_peer_infos(options));
    tcp->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (tcp->epoll < 0) {
        return ls_fail(LS_ERR_IO, "cannot watch connections: %s", strerror(errno));
    }
    return ls_tcp_watch(tcp, tcp->listener, EPOLLIN, LS_TCP_LISTENER, false);
}

ls_endpoint *ls_tcp_open(const ls_tcp_options *options) {
    const size_t size = (size_t)options->size;
    ls_tcp *tcp = ls_allocate_zeroed(1, sizeof *tcp);
    ls_tcp_peer_info *peer_infos = ls_allocate_zeroed(size, sizeof *peer_infos);
    ls_tcp_peer *peers = ls_allocate_zeroed(size, sizeof *peers);
    if (tcp == NULL || peer_infos == NULL || peers == NULL) {
        ls_free(tcp);
        ls_free(peer_infos);
        ls_free(peers);
        close(options->listener);
        (void)ls_fail_memory("connections", sizeof *tcp + size * (sizeof *peer_infos + sizeof *peers));
        return NULL;
    }
    tcp->endpoint =
        (ls_endpoint){.transport = &transport_tcp, .rank = options->rank, .size = options->size, .eager = LS_TCP_EAGER};
    tcp->peer_infos = peer_infos;
    tcp->peers = peers;
    tcp->listener = options->listener;
    tcp->epoll = -1;
    tcp->waker = -1;
    for (size_t i = 0; i < size; i++) {
        peers[i].socket = -1;
        peers[i].incoming = -1;
    }
    for (int i = 0; i < LS_TCP_UNPROVEN; i++) {
        tcp->unproven[i].socket = -1;
    }
    if (open_endpoint(tcp, options) != LS_OK) {
        tcp_close(&tcp->endpoint, 0, NULL, NULL); /* keeps the error, because tcp_close sets none */
        return NULL;
    }
    return &tcp->endpoint;
}
