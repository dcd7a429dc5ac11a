#include "comm/store_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

bool ls_socket_is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof v4);
        return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
    }
    if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, address, sizeof v6);
        return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) ||
               (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && v6.sin6_addr.s6_addr[12] == 127);
    }
    return false;
}

static ls_status check_reach(const struct addrinfo *addresses, const char *host, bool keyed) {
    while (addresses != NULL && ls_socket_is_loopback(addresses->ai_addr)) {
        addresses = addresses->ai_next;
    }
    if (keyed || addresses == NULL) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_DENIED,
                   "%s is reachable from other machines, so the job needs a key: set LOCKSTEP_KEY to the same secret "
                   "for all ranks, or meet on 127.0.0.1",
                   host);
}

static ls_status resolve(const ls_address *address, bool passive, struct addrinfo **found, bool *retry) {
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
    char port[16];
    snprintf(port, sizeof port, "%d", address->port);
    const int error = getaddrinfo(address->host, port, &hints, found);
    if (error != 0) {
        *retry = error == EAI_AGAIN;
        return ls_fail(LS_ERR_IO, "the host name %s is not known: %s", address->host,
                       error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    }
    return LS_OK;
}

/* Listens at one resolved address. Returns 0 on success, otherwise an errno value. */
static int listen_at(const struct addrinfo *at, int *listener) {
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int yes = 1;
    /* Allows a port whose last connections still linger, but not a port at which another socket listens. */
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
        *listener = fd;
        return 0;
    }
    const int error = errno;
    if (fd >= 0) {
        close(fd);
    }
    return error;
}

ls_status ls_socket_listen(const ls_address *address, bool keyed, int *listener) {
    struct addrinfo *found;
    bool retry;
    LS_TRY(resolve(address, true, &found, &retry));
    const ls_status allowed = check_reach(found, address->host, keyed);
    int error = EADDRNOTAVAIL; /* as for ::1 on a machine without IPv6: another address of the host may work */
    for (struct addrinfo *at = found;
         at != NULL && allowed == LS_OK && (error == EADDRNOTAVAIL || error == EAFNOSUPPORT); at = at->ai_next) {
        error = listen_at(at, listener);
    }
    freeaddrinfo(found);
    if (allowed != LS_OK || error == 0) {
        return allowed;
    }
    const char *why = error == EADDRINUSE      ? "the port is in use by a different program: choose a different port"
                      : error == EADDRNOTAVAIL ? "this is not an address of this machine, where rank 0 runs"
                                               : strerror(error);
    return ls_fail(error == EACCES ? LS_ERR_DENIED : LS_ERR_IO, "cannot listen on %s:%d: %s", address->host,
                   address->port, why);
}

ls_status ls_socket_adopt(int listener, bool keyed) {
    int listening = 0;
    socklen_t size = sizeof listening;
    struct sockaddr_storage address;
    socklen_t address_size = sizeof address;
    if (getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || !listening ||
        getsockname(listener, (struct sockaddr *)&address, &address_size) != 0) {
        return ls_fail(LS_ERR_ARGUMENT, "file descriptor %d is not a listening socket", listener);
    }
    const struct addrinfo bound = {.ai_addr = (struct sockaddr *)&address};
    LS_TRY(check_reach(&bound, "the inherited socket", keyed));
    const int flags = fcntl(listener, F_GETFL);
    if (flags < 0 || fcntl(listener, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(listener, F_SETFD, FD_CLOEXEC) != 0) {
        return ls_fail(LS_ERR_IO, "cannot set up file descriptor %d: %s", listener, strerror(errno));
    }
    return LS_OK;
}

int ls_socket_port(int socket) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getsockname(socket, (struct sockaddr *)&address, &size) != 0) {
        return 0;
    }
    if (address.ss_family == AF_INET6) {
        return ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
    }
    return address.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)&address)->sin_port) : 0;
}

/* Waits until the socket can be read or written, or until the deadline. Returns 0 or ETIMEDOUT. */
static int wait_for(int fd, short events, ls_deadline deadline) {
    while (!ls_wait_event(fd, events, deadline)) {
        if (ls_deadline_passed(deadline)) {
            return ETIMEDOUT;
        }
    }
    return 0;
}

/* If a process connects to a port of this machine at which no process listens, it may be assigned this port as its own.
 * Then it is connected to itself, and the server cannot listen on the port. */
static bool is_connected_to_itself(int fd) {
    struct sockaddr_storage own = {0}, other = {0};
    socklen_t own_size = sizeof own, other_size = sizeof other;
    return getsockname(fd, (struct sockaddr *)&own, &own_size) == 0 &&
           getpeername(fd, (struct sockaddr *)&other, &other_size) == 0 && own_size == other_size &&
           memcmp(&own, &other, own_size) == 0;
}

/* Connects before the deadline. Returns 0 on success, otherwise an errno value. */
static int connect_once(const struct sockaddr *address, socklen_t size, ls_deadline deadline, int *connection) {
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return errno;
    }
    int error = connect(fd, address, size) == 0 ? 0 : errno;
    if (error == EINPROGRESS || error == EINTR) {
        error = wait_for(fd, POLLOUT, deadline);
        socklen_t error_size = sizeof error;
        if (error == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size) != 0) {
            error = errno;
        }
    }
    if (error == 0 && is_connected_to_itself(fd)) {
        const struct linger at_once = {.l_onoff = 1}; /* and releases the port */
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        error = ECONNREFUSED;
    }
    if (error != 0) {
        close(fd);
        return error;
    }
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); /* failure is harmless: this only improves speed */
    *connection = fd;
    return 0;
}

/* Returns this address's share of the time until the deadline, so that an address at which packets are dropped
   leaves time for the addresses after it. */
static ls_deadline share_of(ls_deadline deadline, const struct addrinfo *at) {
    const uint64_t now = ls_clock_ns();
    uint64_t addresses = 1;
    while ((at = at->ai_next) != NULL) {
        addresses++;
    }
    return deadline > now ? now + (deadline - now) / addresses : deadline;
}

ls_status ls_socket_connect(const ls_address *address, bool keyed, ls_deadline deadline, int *connection, bool *retry) {
    struct addrinfo *found;
    *retry = false;
    LS_TRY(resolve(address, false, &found, retry));
    const ls_status allowed = check_reach(found, address->host, keyed);
    int error = ECONNREFUSED;
    for (const struct addrinfo *at = found; at != NULL && allowed == LS_OK && error != 0; at = at->ai_next) {
        error = connect_once(at->ai_addr, at->ai_addrlen, share_of(deadline, at), connection);
    }
    freeaddrinfo(found);
    if (allowed != LS_OK || error == 0) {
        return allowed;
    }
    *retry = error != EMFILE && error != ENFILE && error != EACCES && error != EPERM;
    return ls_fail(error == ETIMEDOUT ? LS_ERR_TIMEOUT : LS_ERR_IO, "cannot connect to %s:%d: %s", address->host,
                   address->port, strerror(error));
}

/* Returns the status for a failed send or recv of a non-blocking socket; LS_OK means that the call can be retried. */
static ls_status after_failure(int socket, int error, short events, ls_deadline deadline) {
    if (error == EINTR) {
        return LS_OK;
    }
    if (error == EAGAIN || error == EWOULDBLOCK) {
        error = wait_for(socket, events, deadline);
        if (error == 0) {
            return LS_OK;
        }
    }
    return error == ETIMEDOUT ? ls_fail(LS_ERR_TIMEOUT, "no answer in time")
                              : ls_fail(LS_ERR_PEER, "the connection broke: %s", strerror(error));
}

ls_status ls_socket_send(int socket, const void *bytes, size_t size, ls_deadline deadline) {
    for (size_t sent = 0; sent < size;) {
        const ssize_t step = send(socket, (const char *)bytes + sent, size - sent, MSG_NOSIGNAL);
        if (step >= 0) {
            sent += (size_t)step;
        } else {
            LS_TRY(after_failure(socket, errno, POLLOUT, deadline));
        }
    }
    return LS_OK;
}

ls_status ls_socket_receive(int socket, void *bytes, size_t size, ls_deadline deadline) {
    for (size_t received = 0; received < size;) {
        const ssize_t step = recv(socket, (char *)bytes + received, size - received, 0);
        if (step > 0) {
            received += (size_t)step;
        } else if (step == 0) {
            return ls_fail(LS_ERR_PEER, "the connection was closed");
        } else {
            LS_TRY(after_failure(socket, errno, POLLIN, deadline));
        }
    }
    return LS_OK;
}
