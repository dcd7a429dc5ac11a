/*
 * Passes the memfd as a descriptor from rank 0 to the other ranks over a Unix socket with an abstract name, which
 * leaves no file behind. This needs neither a shared /proc nor ptrace permission. The name and a secret are passed
 * through the job's store, or through the communicator that is split. Rank 0 serves only processes of the same user
 * that know the secret.
 */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/backend/shm/shm.h"
#include "comm/store.h"

#define MAGIC         UINT64_C(0x4c6f636b73746570)
#define POLL_SECONDS  0.05 /* how often rank 0 checks whether the ranks it waits for are alive */
#define MORE_PENDING  16   /* maximum number of concurrent unproven connections, in addition to one per rank */
#define VERDICT_GRACE 2.0  /* seconds that the other ranks wait longer than rank 0, which knows the missing ranks */

/* The first message from a rank on its connection to rank 0. The secret of the connect request is its key. */
typedef struct shm_hello {
    uint8_t hello[LS_PROVEN_HELLO_SIZE];
    int32_t rank;
} shm_hello;

typedef struct answer {
    uint64_t magic;
    uint64_t bytes;
} answer;

/* Sent by each rank when it has mapped the memory, and by rank 0 when all ranks have. */
typedef struct share_status {
    int32_t status;
    char message[LS_ERROR_CAPACITY];
} share_status;

typedef struct server {
    const ls_join_context *join;
    const ls_shm_connect_request *ticket;
    int listener;
    int file;
    size_t bytes;
    int *connections; /* one per rank; -1 if not connected yet */
    bool *confirmed;
    int missing;  /* number of ranks that have not confirmed */
    int *pending; /* connections whose rank is not known yet */
    int pending_count;
    struct pollfd *polls; /* the listener, the ranks, and the pending connections */
    double look_at;       /* time of the next check for dead ranks, even if connections keep arriving */
    const ls_shm *parent; /* the communicator that is split, which knows the live ranks; NULL if the store knows them */
    const int *ranks;     /* there, by rank here */
} server;

/* The data that a rank's proof covers, in addition to its own nonce. */
typedef struct proof_terms {
    ls_key key; /* derived from the secret of the connect request, like the nonce */
    uint8_t nonce[LS_NONCE_SIZE];
    char role[48];
} proof_terms;

static proof_terms find_terms(const ls_shm_connect_request *request, int rank) {
    proof_terms terms = {.key = {.size = sizeof request->secret}};
    memcpy(terms.key.bytes, request->secret, sizeof request->secret);
    memcpy(terms.nonce, request->secret, sizeof request->secret);
    snprintf(terms.role, sizeof terms.role, "rank %d joins shared memory", rank);
    return terms;
}

static socklen_t abstract_address(const char *name, struct sockaddr_un *address) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    const size_t length = strlen(name);
    memcpy(address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static ls_status store_key(const ls_join_context *join, char key[256]) {
    if (snprintf(key, 256, "%sshm", join->prefix) >= 256) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_comm_open: the prefix %s is too long", join->prefix);
    }
    return LS_OK;
}

static ls_status make_ticket(ls_shm_connect_request *made) {
    uint8_t bytes[LS_NONCE_SIZE];
    memset(made, 0, sizeof *made);
    LS_TRY(ls_auth_nonce(bytes));
    size_t length = (size_t)snprintf(made->name, sizeof made->name, "lockstep-");
    for (size_t i = 0; i < 15; i++) {
        length += (size_t)snprintf(made->name + length, sizeof made->name - length, "%02x", bytes[i]);
    }
    memcpy(made->secret, bytes + 16, sizeof made->secret);
    return LS_OK;
}

ls_status ls_shm_share_listen(int ranks, ls_shm_connect_request *ticket, int *listener) {
    struct sockaddr_un address;
    LS_TRY(make_ticket(ticket));
    const socklen_t length = abstract_address(ticket->name, &address);
    *listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*listener < 0 || bind(*listener, (struct sockaddr *)&address, length) != 0 || listen(*listener, ranks) != 0) {
        (void)ls_fail(LS_ERR_IO, "ls_comm_open: cannot listen on a local socket: %s", strerror(errno));
        if (*listener >= 0) {
            close(*listener);
        }
        *listener = -1;
        return LS_ERR_IO;
    }
    return LS_OK;
}

ls_status ls_shm_share_announce(const ls_join_context *join, const ls_shm_connect_request *ticket) {
    char key[256];
    LS_TRY(store_key(join, key));
    return ls_store_set(join->store, key, ticket, sizeof *ticket);
}

ls_status ls_shm_share_find(const ls_join_context *join, ls_shm_connect_request *ticket) {
    char key[256];
    size_t size = 0;
    LS_TRY(store_key(join, key));
    LS_TRY(ls_store_get(join->store, key, ticket, sizeof *ticket, &size));
    if (size != sizeof *ticket || memchr(ticket->name, '\0', sizeof ticket->name) == NULL) {
        return ls_fail(LS_ERR_FORMAT, "ls_comm_open: the value of %s in the store was not written by rank 0", key);
    }
    return LS_OK;
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */

static bool same_user(int connection) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

/* Sends the descriptor and the size of its contents. */
static bool send_file(int connection, int file, size_t bytes) {
    answer content = {.magic = MAGIC, .bytes = bytes};
    struct iovec data = {.iov_base = &content, .iov_len = sizeof content};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    memcpy(CMSG_DATA(&control.header), &file, sizeof file);
    const struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    return sendmsg(connection, &message, MSG_NOSIGNAL) == (ssize_t)sizeof content;
}

/* Removes a pending connection from the list. */
static void strike(server *self, int index) {
    self->pending_count--;
    memmove(&self->pending[index], &self->pending[index + 1],
            (size_t)(self->pending_count - index) * sizeof *self->pending);
}

/* Returns true if the first message of a connection is the proven hello of a rank that has not connected yet. */
static bool is_known(const server *self, const shm_hello *received, ls_hello *hello) {
    if (received->rank <= 0 || received->rank >= self->join->size || self->connections[received->rank] >= 0 ||
        ls_hello_decode(received->hello, true, hello) != LS_OK) {
        return false;
    }
    const proof_terms terms = find_terms(self->ticket, received->rank);
    return ls_hello_is_proven(hello, &terms.key, terms.role, terms.nonce);
}

/* Reads the first message of a pending connection. Sends the descriptor to a proven rank, and closes any other
 * connection. */
static ls_status read_hello(server *self, int index) {
    const int connection = self->pending[index];
    shm_hello received;
    ls_hello hello;
    char name[32];
    ls_status status = LS_OK;
    if (recv(connection, &received, sizeof received, MSG_DONTWAIT) == (ssize_t)sizeof received &&
        is_known(self, &received, &hello) && send_file(connection, self->file, self->bytes)) {
        self->connections[received.rank] = connection;
        snprintf(name, sizeof name, "ls_comm_open: rank %d", received.rank);
        status = ls_hello_check_build(&hello, name);
    } else {
        close(connection);
    }
    strike(self, index);
    return status;
}

/* Accepts a new connection of this user. If there are too many, closes the oldest silent connection. */
static void admit(server *self) {
    const int connection = accept4(self->listener, NULL, NULL, SOCK_CLOEXEC);
    if (connection < 0) {
        return;
    }
    if (!same_user(connection)) {
        close(connection);
        return;
    }
    if (self->pending_count == self->join->size + MORE_PENDING) {
        close(self->pending[0]);
        strike(self, 0);
    }
    self->pending[self->pending_count++] = connection;
}

/* Reads a rank's report after it has mapped the memory. */
static ls_status hear(server *self, int rank) {
    share_status report;
    if (recv(self->connections[rank], &report, sizeof report, MSG_DONTWAIT) != (ssize_t)sizeof report) {
        return ls_fail(LS_ERR_PEER, "ls_comm_open: rank %d died while it joined", rank);
    }
    if (report.status != LS_OK) {
        report.message[sizeof report.message - 1] = '\0';
        return ls_fail((ls_status)report.status, "ls_comm_open: rank %d failed: %s", rank, report.message);
    }
    self->confirmed[rank] = true;
    self->missing--;
    return LS_OK;
}

static ls_status fail_missing(const server *self) {
    char ranks[512] = "";
    size_t length = 0;
    for (int rank = 1; rank < self->join->size && length < sizeof ranks - 24; rank++) {
        if (!self->confirmed[rank]) {
            length += (size_t)snprintf(ranks + length, sizeof ranks - length, "%s%d", length == 0 ? "" : ", ", rank);
        }
    }
    return ls_fail(LS_ERR_TIMEOUT, "ls_comm_open: rank%s %s did not join the shared memory within %g s",
                   self->missing == 1 ? "" : "s", ranks, self->join->timeout);
}

/* Fails if the kernel or the store reports that an awaited rank has exited. */
static ls_status look_for_dead(const server *self) {
    if (self->parent == NULL) {
        const ls_status status = ls_store_check(self->join->store);
        return status == LS_OK ? LS_OK : ls_fail(status, "ls_comm_open: %s", ls_error_message());
    }
    for (int rank = 1; rank < self->join->size; rank++) {
        const int there = self->ranks[rank];
        const bool left = ls_shm_left(self->parent, there) != LS_LEAVE_NONE;
        if (!self->confirmed[rank] && (left || !ls_shm_alive(self->parent, there))) {
            return ls_fail(LS_ERR_PEER, "ls_comm_open: rank %d (process %d) %s while it joined", rank,
                           (int)self->parent->ranks[there].process, left ? "left" : "died");
        }
    }
    return LS_OK;
}

/* Waits for an event and handles it. */
static ls_status serve_once(server *self, double end) {
    const double left = end - ls_clock_seconds();
    if (left <= 0) {
        return fail_missing(self);
    }
    const int size = self->join->size;
    self->polls[0] = (struct pollfd){.fd = self->listener, .events = POLLIN};
    for (int rank = 1; rank < size; rank++) {
        self->polls[rank] =
            (struct pollfd){.fd = self->confirmed[rank] ? -1 : self->connections[rank], .events = POLLIN};
    }
    for (int i = 0; i < self->pending_count; i++) {
        self->polls[size + i] = (struct pollfd){.fd = self->pending[i], .events = POLLIN};
    }
    const ls_deadline first = ls_deadline_after(left < POLL_SECONDS ? left : POLL_SECONDS);
    const bool quiet = ls_wait_events(self->polls, (size_t)(size + self->pending_count), first) == 0;
    for (int rank = 1; rank < size && !quiet; rank++) {
        if (self->polls[rank].revents != 0) {
            LS_TRY(hear(self, rank));
        }
    }
    for (int i = self->pending_count - 1; i >= 0 && !quiet; i--) {
        if (self->polls[size + i].revents != 0) {
            LS_TRY(read_hello(self, i));
        }
    }
    if (!quiet && self->polls[0].revents != 0) {
        admit(self);
    }
    if (ls_clock_seconds() < self->look_at) {
        return LS_OK;
    }
    const ls_status status = look_for_dead(self);
    self->look_at = ls_clock_seconds() + POLL_SECONDS;
    return status;
}

/* Reports the result to all connected ranks. */
static void announce(server *self, ls_status status) {
    share_status result = {.status = (int32_t)status};
    if (status != LS_OK) {
        snprintf(result.message, sizeof result.message, "%s", ls_error_message());
    }
    for (int rank = 1; rank < self->join->size; rank++) {
        if (self->connections[rank] >= 0) {
            (void)send(self->connections[rank], &result, sizeof result, MSG_NOSIGNAL);
            close(self->connections[rank]);
        }
    }
    for (int i = 0; i < self->pending_count; i++) {
        close(self->pending[i]);
    }
}

static ls_status serve(server *self) {
    const double end = ls_clock_seconds() + self->join->timeout;
    while (self->missing != 0) {
        LS_TRY(serve_once(self, end));
    }
    return LS_OK;
}

ls_status ls_shm_share_serve(const ls_join_context *join, const ls_shm_connect_request *ticket, int listener,
                             const ls_shm *made, const ls_shm *parent, const int *ranks) {
    const size_t size = (size_t)join->size;
    server self = {.join = join,
                   .ticket = ticket,
                   .listener = listener,
                   .file = made->file,
                   .bytes = made->mapped,
                   .missing = join->size - 1,
                   .parent = parent,
                   .ranks = ranks,
                   .look_at = ls_clock_seconds() + POLL_SECONDS};
    self.connections = ls_allocate_zeroed(size, sizeof *self.connections);
    self.confirmed = ls_allocate_zeroed(size, sizeof *self.confirmed);
    self.pending = ls_allocate_zeroed(size + MORE_PENDING, sizeof *self.pending);
    self.polls = ls_allocate_zeroed(2 * size + MORE_PENDING, sizeof *self.polls);
    ls_status status = LS_OK;
    if (self.connections == NULL || self.confirmed == NULL || self.pending == NULL || self.polls == NULL) {
        status = ls_fail_memory("ls_comm_open", size * sizeof *self.polls);
    } else {
        for (size_t rank = 0; rank < size; rank++) {
            self.connections[rank] = -1;
        }
        status = serve(&self);
        announce(&self, status);
    }
    ls_free(self.connections);
    ls_free(self.confirmed);
    ls_free(self.pending);
    ls_free(self.polls);
    return status;
}

/* ---- ranks other than 0 ------------------------------------------------------------------------------------------ */

/* Waits at most `seconds` until data can be read. */
static bool readable(int connection, double seconds) {
    const ls_deadline deadline = ls_deadline_after(seconds);
    while (!ls_deadline_passed(deadline)) {
        if (ls_wait_event(connection, POLLIN, deadline)) {
            return true;
        }
    }
    return false;
}

static ls_status receive_file(const ls_join_context *join, int connection, int *file, size_t *bytes) {
    answer content = {0};
    struct iovec data = {.iov_base = &content, .iov_len = sizeof content};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (!readable(connection, join->timeout + VERDICT_GRACE)) {
        return ls_fail(LS_ERR_TIMEOUT, "ls_comm_open: rank 0 did not hand over the shared memory within %g s",
                       join->timeout);
    }
    if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof content) {
        return ls_fail(LS_ERR_PEER, "ls_comm_open: rank 0 died, or gave up, while this rank was joining");
    }
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (content.magic != MAGIC || header == NULL || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(sizeof(int))) {
        return ls_fail(LS_ERR_FORMAT, "ls_comm_open: rank 0 sent a message without shared memory");
    }
    memcpy(file, CMSG_DATA(header), sizeof *file);
    *bytes = content.bytes;
    return LS_OK;
}

static ls_status greet(const ls_join_context *join, const ls_shm_connect_request *from, int connection) {
    struct sockaddr_un address;
    const socklen_t length = abstract_address(from->name, &address);
    /* A timeout is needed: if rank 0 is stopped, other connections may have filled its queue. */
    const double seconds = join->timeout < 1e9 ? join->timeout : 1e9;
    const struct timeval timeout = {.tv_sec = (time_t)seconds + 1};
    (void)setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    if (connect(connection, (struct sockaddr *)&address, length) != 0) {
        return ls_fail(LS_ERR_PEER,
                       "ls_comm_open: rank 0 cannot be reached (%s): it died, or is on a different machine or in a "
                       "container with a separate network, which backend shm cannot reach",
                       strerror(errno));
    }
    ls_hello hello;
    shm_hello sent = {.rank = join->rank};
    const proof_terms terms = find_terms(from, join->rank);
    LS_TRY(ls_hello_make(&hello, false));
    ls_hello_prove(&hello, &terms.key, terms.role, terms.nonce);
    ls_hello_encode(&hello, true, sent.hello);
    if (send(connection, &sent, sizeof sent, MSG_NOSIGNAL) != (ssize_t)sizeof sent) {
        return ls_fail(LS_ERR_PEER, "ls_comm_open: rank 0 died while this rank was joining");
    }
    return LS_OK;
}

ls_status ls_shm_share_receive(const ls_join_context *join, const ls_shm_connect_request *from, int *connection,
                               int *file, size_t *bytes) {
    const int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (made < 0) {
        return ls_fail(LS_ERR_IO, "ls_comm_open: cannot create a local socket: %s", strerror(errno));
    }
    ls_status status = greet(join, from, made);
    if (status == LS_OK) {
        status = receive_file(join, made, file, bytes);
    }
    if (status != LS_OK) {
        close(made);
        return status;
    }
    *connection = made;
    return LS_OK;
}

static ls_status hear_verdict(const ls_join_context *join, int connection) {
    share_status result;
    if (!readable(connection, join->timeout + VERDICT_GRACE)) {
        return ls_fail(LS_ERR_TIMEOUT, "ls_comm_open: rank 0 did not confirm within %g s that all ranks have joined",
                       join->timeout);
    }
    if (recv(connection, &result, sizeof result, 0) != (ssize_t)sizeof result) {
        return ls_fail(LS_ERR_PEER, "ls_comm_open: rank 0 died while the ranks were joining");
    }
    if (result.status != LS_OK) {
        result.message[sizeof result.message - 1] = '\0';
        return ls_fail((ls_status)result.status, "%s", result.message);
    }
    return LS_OK;
}

ls_status ls_shm_share_confirm(const ls_join_context *join, int connection, ls_status status) {
    share_status report = {.status = (int32_t)status};
    if (status != LS_OK) {
        snprintf(report.message, sizeof report.message, "%s", ls_error_message());
    }
    const bool sent = send(connection, &report, sizeof report, MSG_NOSIGNAL) == (ssize_t)sizeof report;
    if (status == LS_OK) {
        status = sent ? hear_verdict(join, connection)
                      : ls_fail(LS_ERR_PEER, "ls_comm_open: rank 0 died while the ranks were joining");
    }
    close(connection);
    return status;
}
