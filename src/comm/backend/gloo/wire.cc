/* wire.h over libgloo. */
#include "comm/backend/gloo/wire.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <gloo/transport/buffer.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>

namespace tcp = gloo::transport::tcp;
using GlooBuffer = std::unique_ptr<gloo::transport::Buffer>;

namespace {

constexpr int send_buffer = 4 << 20; /* as far as the system allows */

/*
 * Gloo forgets where a slot's data goes when any buffer of that slot ends, one that was only sent from too. So the two
 * directions of a connection have slots of their own: what the lower rank receives is even.
 */
struct Connection {
    gloo::transport::Pair *pair = nullptr; /* the context's */
    int socket = -1;
    bool lower = false; /* this rank is */
    GlooBuffer aims[LS_GLOO_SLOTS];

    int slot_here(int slot) const {
        return 2 * slot + (lower ? 0 : 1);
    }
    int slot_there(int slot) const {
        return 2 * slot + (lower ? 1 : 0);
    }
};

/* Gloo's sentences begin with a place in its source. */
void keep(char *why, const char *text) {
    const char *end = text[0] == '[' ? std::strstr(text, "] ") : nullptr;
    std::snprintf(why, LS_GLOO_WHY, "%s", end != nullptr ? end + 2 : text);
}

void keep_current(char *why) noexcept {
    try {
        throw;
    } catch (const std::exception &error) {
        keep(why, error.what());
    } catch (...) {
        keep(why, "an unknown failure in Gloo");
    }
}

bool same_address(const sockaddr_storage &a, const sockaddr_storage &b) {
    if (a.ss_family == AF_INET && b.ss_family == AF_INET) {
        const auto &left = reinterpret_cast<const sockaddr_in &>(a);
        const auto &right = reinterpret_cast<const sockaddr_in &>(b);
        return left.sin_port == right.sin_port && left.sin_addr.s_addr == right.sin_addr.s_addr;
    }
    if (a.ss_family == AF_INET6 && b.ss_family == AF_INET6) {
        const auto &left = reinterpret_cast<const sockaddr_in6 &>(a);
        const auto &right = reinterpret_cast<const sockaddr_in6 &>(b);
        return left.sin6_port == right.sin6_port &&
               std::memcmp(&left.sin6_addr, &right.sin6_addr, sizeof left.sin6_addr) == 0;
    }
    return false;
}

sockaddr_storage socket_address(const std::vector<char> &bytes) {
    return tcp::Address(bytes).getSockaddr();
}

bool connects(int fd, const sockaddr_storage &here, const sockaddr_storage *there) {
    sockaddr_storage own = {};
    sockaddr_storage others = {};
    socklen_t length = sizeof own;
    if (getsockname(fd, reinterpret_cast<sockaddr *>(&own), &length) != 0 || !same_address(own, here)) {
        return false;
    }
    length = sizeof others;
    return getpeername(fd, reinterpret_cast<sockaddr *>(&others), &length) == 0 &&
           (there == nullptr || same_address(others, *there));
}

/*
 * The socket of a connected pair, which Gloo keeps to itself; -1: not found. A pair that was connected to still has the
 * address at which it listened, and no other connection of this process begins there. One that connected has a port
 * that the kernel may have given to another connection as well, so the other end must be the one that was asked for.
 */
int find_socket(const gloo::transport::Pair &pair, const std::vector<char> &listened, const std::vector<char> &asked) {
    const sockaddr_storage here = socket_address(pair.address().bytes());
    const sockaddr_storage there = socket_address(asked);
    const bool was_connected_to = same_address(here, socket_address(listened));
    DIR *open = opendir("/proc/self/fd");
    int found = -1;
    for (const dirent *entry = open != nullptr ? readdir(open) : nullptr; entry != nullptr && found < 0;
         entry = readdir(open)) {
        const int fd = std::atoi(entry->d_name);
        found = connects(fd, here, was_connected_to ? nullptr : &there) ? fd : -1;
    }
    if (open != nullptr) {
        closedir(open);
    }
    return found;
}

/*
 * Gloo writes to sockets in a way that ends the process when the other side is gone. While one of these lives, the
 * thread gets no such signal, and none is left behind.
 */
class NoPipeSignal {
  public:
    NoPipeSignal() {
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    }
    ~NoPipeSignal() {
        if (failed_ && sigismember(&before_, SIGPIPE) == 0) {
            const timespec now = {};
            sigtimedwait(&pipe_, nullptr, &now);
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    NoPipeSignal(const NoPipeSignal &) = delete;
    NoPipeSignal &operator=(const NoPipeSignal &) = delete;
    void note_failure() {
        failed_ = true;
    }

  private:
    sigset_t pipe_;
    sigset_t before_;
    bool failed_ = false;
};

} // namespace

struct ls_gloo_wire {
    /* The last to go: buffers refer to pairs, and pairs to the context. */
    std::shared_ptr<gloo::transport::Context> context;
    std::vector<Connection> connections;
};

ls_gloo_wire *ls_gloo_wire_make(const char *host, int rank, int size, double timeout, char *why) {
    try {
        auto wire = std::make_unique<ls_gloo_wire>();
        wire->context = tcp::CreateDevice(tcp::attr(host))->createContext(rank, size);
        /* For the rest of an operation. For a connection Gloo waits five times as long. */
        const double milliseconds = timeout < 5.0 ? 1000.0 : timeout < 1e6 ? timeout * 200.0 : 200e6;
        wire->context->setTimeout(std::chrono::milliseconds(static_cast<int64_t>(milliseconds)));
        wire->connections.resize(static_cast<size_t>(size));
        for (int peer = 0; peer < size; peer++) {
            if (peer != rank) {
                Connection &connection = wire->connections[static_cast<size_t>(peer)];
                connection.pair = wire->context->createPair(peer).get();
                connection.lower = rank < peer;
            }
        }
        return wire.release();
    } catch (...) {
        keep_current(why);
        return nullptr;
    }
}

void ls_gloo_wire_free(ls_gloo_wire *wire) {
    try {
        delete wire;
    } catch (...) { /* nothing more can be done */
    }
}

bool ls_gloo_wire_address(ls_gloo_wire *wire, int peer, ls_gloo_address *address, char *why) {
    try {
        const std::vector<char> bytes = wire->connections[static_cast<size_t>(peer)].pair->address().bytes();
        if (bytes.size() > sizeof address->bytes) {
            keep(why, "Gloo's addresses are longer than this knows");
            return false;
        }
        address->size = static_cast<unsigned>(bytes.size());
        std::memcpy(address->bytes, bytes.data(), bytes.size());
        return true;
    } catch (...) {
        keep_current(why);
        return false;
    }
}

bool ls_gloo_wire_connect(ls_gloo_wire *wire, int peer, const ls_gloo_address *address, char *why) {
    try {
        Connection &connection = wire->connections[static_cast<size_t>(peer)];
        const std::vector<char> listened = connection.pair->address().bytes();
        const std::vector<char> asked(address->bytes, address->bytes + address->size);
        connection.pair->connect(asked);
        connection.pair->setSync(true, true);
        connection.socket = find_socket(*connection.pair, listened, asked);
        if (connection.socket < 0) {
            keep(why, "its socket is not among this process's files, which /proc should list");
            return false;
        }
        fcntl(connection.socket, F_SETFD, FD_CLOEXEC); /* what this rank starts does not keep it connected */
        return true;
    } catch (...) {
        keep_current(why);
        return false;
    }
}

int ls_gloo_wire_socket(ls_gloo_wire *wire, int peer) {
    return wire->connections[static_cast<size_t>(peer)].socket;
}

size_t ls_gloo_wire_widen(ls_gloo_wire *wire, int peer) {
    const int socket = ls_gloo_wire_socket(wire, peer);
    int bytes = 0;
    socklen_t length = sizeof bytes;
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
    getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, &length);
    return bytes > 0 ? static_cast<size_t>(bytes) : 0;
}

bool ls_gloo_wire_aim(ls_gloo_wire *wire, int peer, int slot, void *memory, size_t bytes, char *why) {
    Connection &connection = wire->connections[static_cast<size_t>(peer)];
    try {
        connection.aims[slot].reset(); /* Gloo allows one at a time */
        if (memory != nullptr) {
            connection.aims[slot] = connection.pair->createRecvBuffer(connection.slot_here(slot), memory, bytes);
        }
        return true;
    } catch (...) {
        keep_current(why);
        return false;
    }
}

bool ls_gloo_wire_send(ls_gloo_wire *wire, int peer, int slot, const void *data, size_t bytes, size_t at, char *why) {
    NoPipeSignal quiet;
    try {
        const Connection &connection = wire->connections[static_cast<size_t>(peer)];
        /* Gloo's buffers are for both directions; this one only sends. */
        const GlooBuffer buffer =
            connection.pair->createSendBuffer(connection.slot_there(slot), const_cast<void *>(data), bytes);
        buffer->send(0, bytes, at);
        buffer->waitSend();
        return true;
    } catch (...) {
        quiet.note_failure();
        keep_current(why);
        return false;
    }
}

int ls_gloo_wire_peek(ls_gloo_wire *wire, int peer, char *why) {
    char byte = 0;
    ssize_t got = 0;
    do {
        got = recv(ls_gloo_wire_socket(wire, peer), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return 0;
    }
    if (got <= 0) {
        keep(why, got == 0 ? "it closed its connection" : std::strerror(errno));
    }
    return got > 0 ? 1 : -1;
}

bool ls_gloo_wire_take(ls_gloo_wire *wire, int peer, int slot, char *why) {
    try {
        wire->connections[static_cast<size_t>(peer)].aims[slot]->waitRecv();
        return true;
    } catch (...) {
        keep_current(why);
        return false;
    }
}
