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
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <gloo/transport/buffer.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>

namespace tcp = gloo::transport::tcp;
using GlooBuffer = std::unique_ptr<gloo::transport::Buffer>;

namespace {

constexpr int send_buffer = 4 << 20; /* as far as the system allows */
constexpr long tick_ns = 50000;
/* What comes before the data of each operation: tcp::Op::preamble, whose header not every package of Gloo can compile.
 */
struct Preamble {
    size_t nbytes; /* of the operation, this included */
    size_t opcode;
    size_t slot;
    size_t offset; /* in the sender's buffer */
    size_t length;
    size_t roffset; /* in the receiver's */
};
constexpr size_t opcode_send_buffer = 0;

constexpr int attempts = 5; /* to connect inside the process, where a foreign connection may come between */

/*
 * Gloo forgets where a slot's data goes when any buffer of that slot ends, one that was only sent from too. So the two
 * directions of a connection have slots of their own: what the lower rank receives is even.
 */
struct Connection {
    gloo::transport::Pair *pair = nullptr; /* the context's */
    int socket = -1;
    bool lower = false; /* this rank is */
    GlooBuffer aims[LS_GLOO_SLOTS];
    Preamble next{};   /* of the next operation: */
    size_t peeked = 0; /* bytes that are here */

    int slot_here(int slot) const {
        return 2 * slot + (lower ? 0 : 1);
    }
    int slot_there(int slot) const {
        return 2 * slot + (lower ? 1 : 0);
    }
};

/* Whether descriptor `number` is an epoll that watches `watched`, as the kernel tells. */
bool watches(const char *number, int watched) {
    const std::string path = std::string("/proc/self/fdinfo/") + number;
    FILE *info = std::fopen(path.c_str(), "re");
    char line[128];
    bool found = false;
    while (info != nullptr && !found && std::fgets(line, sizeof line, info) != nullptr) {
        int target = -1;
        found = std::sscanf(line, "tfd: %d", &target) == 1 && target == watched;
    }
    if (info != nullptr) {
        std::fclose(info);
    }
    return found;
}

/* Gloo's epoll is its own, and open in whatever the process executes: what it watches tells which it is. */
void keep_from_children(int watched) {
    DIR *folder = opendir("/proc/self/fd");
    for (const dirent *entry = nullptr; folder != nullptr && (entry = readdir(folder)) != nullptr;) {
        if (watches(entry->d_name, watched)) {
            fcntl(std::atoi(entry->d_name), F_SETFD, FD_CLOEXEC);
        }
    }
    if (folder != nullptr) {
        closedir(folder);
    }
}

/*
 * Gloo's device, with a thread that has nothing to do here. It looks around every 10 ms, and is waited for whenever a
 * descriptor is taken from it and when it ends; a clock makes it look every 50 us where that is to come.
 */
class Engine {
  public:
    explicit Engine(const char *host) : clock_(), device_(tcp::CreateDevice(tcp::attr(host))) {
        static_cast<tcp::Device &>(*device_).registerDescriptor(clock_.descriptor, EPOLLIN, &clock_);
        keep_from_children(clock_.descriptor);
    }
    ~Engine() {
        hurry(true);
    }
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    void hurry(bool on) {
        const long interval = on ? tick_ns : 0;
        const itimerspec often = {{0, interval}, {0, interval}};
        timerfd_settime(clock_.descriptor, 0, &often, nullptr);
    }
    gloo::transport::Device &device() {
        return *device_;
    }

  private:
    struct Clock final : tcp::Handler {
        const int descriptor = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);

        ~Clock() override {
            close(descriptor);
        }
        void read() {
            uint64_t count = 0;
            (void)!::read(descriptor, &count, sizeof count);
        }
        void handleEvents(int /*events*/) { /* of Gloo before 2023 */
            read();
        }
        void handleEvents(tcp::Loop & /*loop*/, int /*events*/) { /* and since */
            read();
        }
    };
    Clock clock_; /* outlives the device's thread */
    std::shared_ptr<gloo::transport::Device> device_;
};

/* One for all communicators of the process that exist at a time. A child of fork makes its own. */
std::shared_ptr<Engine> engine_of(const char *host) {
    static std::mutex mutex;
    static std::weak_ptr<Engine> shared;
    static pid_t owner;
    const std::lock_guard<std::mutex> lock(mutex);
    auto engine = owner == getpid() ? shared.lock() : nullptr;
    if (!engine) {
        engine = std::make_shared<Engine>(host);
        shared = engine;
        owner = getpid();
    }
    return engine;
}

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

bool connects(int fd, const sockaddr_storage &here, const sockaddr_storage &there) {
    sockaddr_storage own = {};
    sockaddr_storage others = {};
    socklen_t own_length = sizeof own;
    socklen_t others_length = sizeof others;
    return getsockname(fd, reinterpret_cast<sockaddr *>(&own), &own_length) == 0 && same_address(own, here) &&
           getpeername(fd, reinterpret_cast<sockaddr *>(&others), &others_length) == 0 && same_address(others, there);
}

/* The socket of a pair that is connected with another one, which Gloo keeps to itself; -1: not found. */
int find_socket(const gloo::transport::Pair &pair, const gloo::transport::Pair &other) {
    const sockaddr_storage here = tcp::Address(pair.address().bytes()).getSockaddr();
    const sockaddr_storage there = tcp::Address(other.address().bytes()).getSockaddr();
    DIR *open = opendir("/proc/self/fd");
    int found = -1;
    for (const dirent *entry = open != nullptr ? readdir(open) : nullptr; entry != nullptr && found < 0;
         entry = readdir(open)) {
        const int fd = std::atoi(entry->d_name);
        found = connects(fd, here, there) ? fd : -1;
    }
    if (open != nullptr) {
        closedir(open);
    }
    return found;
}

/* Two pairs of this process, each of which connects to the other. */
void connect_both(gloo::transport::Pair &one, gloo::transport::Pair &other) {
    const std::vector<char> to_one = one.address().bytes();
    const std::vector<char> to_other = other.address().bytes();
    std::exception_ptr failure;
    std::thread second([&] {
        try {
            other.connect(to_one);
        } catch (...) {
            failure = std::current_exception();
        }
    });
    try {
        one.connect(to_other);
    } catch (...) {
        second.join();
        throw;
    }
    second.join();
    if (failure) {
        std::rethrow_exception(failure);
    }
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
    /* The last to go: buffers refer to pairs, and pairs to the context, and that to the device. */
    std::shared_ptr<Engine> engine;
    std::shared_ptr<gloo::transport::Context> context;
    std::chrono::milliseconds timeout{};
    std::vector<Connection> connections;
};

/*
 * Makes a pair for `peer` that is connected with another one in this process, for Gloo's own way of connecting admits
 * whoever comes first, and waits for who died. The socket is then exchanged for one that was made with care. Before
 * that Gloo sends as much as it ever will at once: it makes the send buffer of the socket as small as what it has sent.
 */
static void connect_inside(ls_gloo_wire &wire, int peer, size_t largest) {
    Connection &connection = wire.connections[static_cast<size_t>(peer)];
    std::vector<char> bytes(2 * largest);
    const auto beside = wire.engine->device().createContext(0, 2);
    beside->setTimeout(wire.timeout);
    const auto &other = beside->createPair(1);
    connection.pair = wire.context->createPair(peer).get();
    connect_both(*connection.pair, *other);
    connection.socket = find_socket(*connection.pair, *other);
    if (connection.socket < 0 || find_socket(*other, *connection.pair) < 0) {
        throw std::runtime_error("a socket is not among this process's files, which /proc should list");
    }
    const GlooBuffer to = other->createRecvBuffer(0, bytes.data() + largest, largest);
    connection.pair->setSync(true, true);
    const GlooBuffer from = connection.pair->createSendBuffer(0, bytes.data(), largest);
    from->send(0, largest, 0);
    from->waitSend();
    to->waitRecv();
}

ls_gloo_wire *ls_gloo_wire_make(const char *host, int rank, int size, double timeout, char *why) {
    try {
        auto wire = std::make_unique<ls_gloo_wire>();
        wire->engine = engine_of(host);
        wire->context = wire->engine->device().createContext(rank, size);
        /* For the rest of an operation. */
        const double milliseconds = timeout < 5.0 ? 1000.0 : timeout < 1e6 ? timeout * 200.0 : 200e6;
        wire->timeout = std::chrono::milliseconds(static_cast<int64_t>(milliseconds));
        wire->context->setTimeout(wire->timeout); /* Gloo leaves it to chance */
        wire->connections.resize(static_cast<size_t>(size));
        for (int peer = 0; peer < size; peer++) {
            wire->connections[static_cast<size_t>(peer)].lower = rank < peer;
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

size_t ls_gloo_wire_widen(int socket) {
    int bytes = 0;
    socklen_t length = sizeof bytes;
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
    getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, &length);
    return bytes > 0 ? static_cast<size_t>(bytes) : 0;
}

static void connect_inside_at_last(ls_gloo_wire &wire, int peer, size_t largest) {
    std::exception_ptr failure;
    wire.engine->hurry(true);
    for (int attempt = 0; attempt == 0 || (failure && attempt < attempts); attempt++) {
        try {
            failure = nullptr;
            connect_inside(wire, peer, largest);
        } catch (...) {
            failure = std::current_exception();
        }
    }
    wire.engine->hurry(false);
    if (failure) {
        std::rethrow_exception(failure);
    }
}

bool ls_gloo_wire_adopt(ls_gloo_wire *wire, int peer, int socket, size_t largest, char *why) {
    const timeval limit = {wire->timeout.count() / 1000, wire->timeout.count() % 1000 * 1000};
    try {
        Connection &connection = wire->connections[static_cast<size_t>(peer)];
        connect_inside_at_last(*wire, peer, largest);
        /* As Gloo sets up its own in this mode. */
        fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) & ~O_NONBLOCK);
        setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (dup3(socket, connection.socket, O_CLOEXEC) < 0) {
            throw std::runtime_error(std::strerror(errno));
        }
        close(socket);
        return true;
    } catch (...) {
        keep_current(why);
        close(socket);
        return false;
    }
}

int ls_gloo_wire_socket(ls_gloo_wire *wire, int peer) {
    return wire->connections[static_cast<size_t>(peer)].socket;
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

/* Looks at the preamble of the next operation without taking it: what recv says. */
static ssize_t peek_preamble(Connection &connection, int flags) {
    ssize_t got = 0;
    do {
        got = recv(connection.socket, &connection.next, sizeof connection.next, MSG_PEEK | flags);
    } while (got < 0 && errno == EINTR);
    connection.peeked = got > 0 ? static_cast<size_t>(got) : 0;
    return got;
}

int ls_gloo_wire_peek(ls_gloo_wire *wire, int peer, char *why) {
    const ssize_t got = peek_preamble(wire->connections[static_cast<size_t>(peer)], MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return 0;
    }
    if (got <= 0) {
        keep(why, got == 0 ? "it closed its connection" : std::strerror(errno));
    }
    return got > 0 ? 1 : -1;
}

/* Whether the operation that comes is the one that is expected, with all that Gloo will believe of it. */
static bool is_expected(const Preamble &next, const Connection &connection, const ls_gloo_operation &expected) {
    return next.opcode == opcode_send_buffer && next.slot == static_cast<size_t>(connection.slot_here(expected.slot)) &&
           next.roffset == expected.at && next.length >= expected.least && next.length <= expected.most &&
           next.nbytes == sizeof next + next.length;
}

bool ls_gloo_wire_take(ls_gloo_wire *wire, int peer, const ls_gloo_operation *expected, size_t *bytes, char *why) {
    Connection &connection = wire->connections[static_cast<size_t>(peer)];
    const GlooBuffer &aim = connection.aims[expected->slot];
    if (!aim) {
        keep(why, "it sent data that nobody asked for");
        return false;
    }
    if (connection.peeked < sizeof connection.next &&
        peek_preamble(connection, MSG_WAITALL) != static_cast<ssize_t>(sizeof connection.next)) {
        keep(why, "its connection broke in the middle of a message");
        return false;
    }
    if (!is_expected(connection.next, connection, *expected)) {
        keep(why, "it sent an operation that is none, or not the one that was expected");
        return false;
    }
    *bytes = connection.next.length;
    connection.peeked = 0;
    try {
        aim->waitRecv();
        return true;
    } catch (...) {
        keep_current(why);
        return false;
    }
}
