#include "comm/backend/gloo/connect.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "comm/store.h"

#define LOOK_MS       100 /* between two looks at whether all are alive */
#define AGAIN_NS      10000000
#define ANSWER_WITHIN 30.0 /* seconds, for who says nothing */

enum { UNPROVEN_MOST = 64, BACKLOG = 1024, TOLD = 10 };

/* ---- listening -----------------------------------------------------------------------------------------------------
 */

/* Listens at one address; an errno value, 0 on success. */
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

const char *ls_gloo_host(const ls_join *join) {
    return join->address != NULL && join->address[0] != '\0' ? join->address : "127.0.0.1";
}

ls_status ls_gloo_listen(const ls_join *join, ls_gloo_card *card, int *listener) {
    const char *host = ls_gloo_host(join);
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    socklen_t length = sizeof card->address;
    if (getaddrinfo(host, "0", &hints, &found) != 0) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_comm_open: %s is no address to listen at", host);
    }
    const int error = listen_at(found, listener);
    freeaddrinfo(found);
    if (error != 0 || getsockname(*listener, (struct sockaddr *)&card->address, &length) != 0) {
        return ls_fail(LS_ERR_IO, "ls_comm_open: cannot listen at %s: %s", host, strerror(error != 0 ? error : errno));
    }
    card->length = (uint32_t)length;
    return LS_OK;
}

/* ---- who is alive --------------------------------------------------------------------------------------------------
 */

static ls_status blame(ls_gloo_mesh *mesh, int rank, ls_status status) {
    mesh->culprit = rank;
    return status;
}

/* Whether the kernel says that the other end of this connection is closed, whatever lies in it unread. */
static bool is_closed(int socket) {
    struct pollfd end = {.fd = socket, .events = POLLRDHUP};
    return socket < 0 || (poll(&end, 1, 0) == 1 && end.revents != 0);
}

/* Fails where `rank`, which is waited for, is known to be gone, or as far as the store says, any other. */
static ls_status check_alive(ls_gloo_mesh *mesh, int rank) {
    if (mesh->watched != NULL) {
        return !is_closed(mesh->watched[rank])
                   ? LS_OK
                   : blame(mesh, rank, ls_fail(LS_ERR_PEER, "ls_comm_open: rank %d is gone", rank));
    }
    const ls_status status = ls_store_check(mesh->join->store);
    return status == LS_OK ? LS_OK : blame(mesh, rank, ls_fail(status, "ls_comm_open: %s", ls_error_message()));
}

static ls_status fail_waiting(ls_gloo_mesh *mesh, int rank) {
    return blame(
        mesh, rank,
        ls_fail(LS_ERR_TIMEOUT, "ls_comm_open: rank %d did not connect within %g s", rank, mesh->join->timeout));
}

/* ---- proofs --------------------------------------------------------------------------------------------------------
 */

/* The key of the connection from `high` to `low`. */
static void derive_key(const ls_gloo_mesh *mesh, int low, int high, ls_key *key) {
    char purpose[320];
    snprintf(purpose, sizeof purpose, "gloo %s %d %d", mesh->join->prefix, low, high);
    ls_store_derive_key(mesh->join->store, purpose, mesh->cards[low].secret, mesh->cards[high].secret, key);
}

static void set_up(int socket) {
    const int yes = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); /* only speed depends on it */
}

/* ---- to lower ranks ------------------------------------------------------------------------------------------------
 */

/* A connection to a lower rank while it is made. */
typedef struct attempt {
    int rank;
    int socket;
    ls_deadline deadline;
    bool again; /* it ended, which may be for want of room there: if the rank is alive it still listens */
} attempt;

/* Waits until something can be read or written. */
static ls_status wait_ready(ls_gloo_mesh *mesh, const attempt *c, short events) {
    for (;;) {
        struct pollfd item = {.fd = c->socket, .events = events};
        if (poll(&item, 1, LOOK_MS) > 0) {
            return LS_OK;
        }
        if (ls_deadline_passed(c->deadline)) {
            return fail_waiting(mesh, c->rank);
        }
        LS_TRY(check_alive(mesh, c->rank));
    }
}

static ls_status fail_attempt(ls_gloo_mesh *mesh, const attempt *c, const char *why) {
    return blame(mesh, c->rank, ls_fail(LS_ERR_PEER, "ls_comm_open: rank %d is gone: %s", c->rank, why));
}

static ls_status reach(ls_gloo_mesh *mesh, attempt *c) {
    const ls_gloo_card *card = &mesh->cards[c->rank];
    int error = 0;
    socklen_t length = sizeof error;
    c->socket = socket(card->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->socket < 0) {
        return blame(mesh, mesh->join->rank, ls_fail(LS_ERR_IO, "ls_comm_open: no socket: %s", strerror(errno)));
    }
    set_up(c->socket);
    if (connect(c->socket, (const struct sockaddr *)&card->address, card->length) != 0) {
        error = errno;
    }
    if (error == EINPROGRESS || error == EINTR) {
        LS_TRY(wait_ready(mesh, c, POLLOUT));
        error = getsockopt(c->socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
    }
    if (error == ECONNREFUSED) { /* it listened before it said so, and does until all have come */
        return fail_attempt(mesh, c, "it does not listen any more");
    }
    return error == 0
               ? LS_OK
               : blame(mesh, c->rank,
                       ls_fail(LS_ERR_PEER, "ls_comm_open: rank %d cannot be reached: %s", c->rank, strerror(error)));
}

static ls_status receive(ls_gloo_mesh *mesh, attempt *c, void *bytes, size_t size) {
    for (size_t got = 0; got < size;) {
        const ssize_t step = recv(c->socket, (char *)bytes + got, size - got, 0);
        if (step > 0) {
            got += (size_t)step;
        } else if (step < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
            LS_TRY(wait_ready(mesh, c, POLLIN));
        } else {
            c->again = true;
            return fail_attempt(mesh, c, step == 0 ? "it closed the connection" : strerror(errno));
        }
    }
    return LS_OK;
}

/* Both sides' proofs, from who connects. */
static ls_status prove(ls_gloo_mesh *mesh, attempt *c, const ls_key *key) {
    ls_gloo_challenge challenge;
    ls_gloo_answer answer = {.greeting = LS_GLOO_GREETING, .rank = mesh->join->rank, .size = mesh->join->size};
    uint8_t proof[LS_PROOF_SIZE];
    LS_TRY(receive(mesh, c, &challenge, sizeof challenge));
    LS_TRY(ls_auth_nonce(answer.nonce));
    ls_auth_prove(key, "connects", answer.nonce, challenge.nonce, answer.proof);
    if (send(c->socket, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer) {
        c->again = true;
        return fail_attempt(mesh, c, strerror(errno));
    }
    LS_TRY(receive(mesh, c, proof, sizeof proof));
    if (memcmp(challenge.greeting, LS_GLOO_GREETING, sizeof challenge.greeting) != 0 ||
        !ls_auth_check(key, "listens", challenge.nonce, answer.nonce, proof)) {
        return blame(mesh, c->rank,
                     ls_fail(LS_ERR_DENIED, "ls_comm_open: somebody who is not of this job listens in place of rank %d",
                             c->rank));
    }
    return LS_OK;
}

static ls_status connect_to(ls_gloo_mesh *mesh, int rank, ls_deadline deadline) {
    ls_key key;
    attempt c = {.rank = rank, .socket = -1, .deadline = deadline};
    ls_status status = LS_OK;
    derive_key(mesh, rank, mesh->join->rank, &key);
    do {
        if (c.again) {
            nanosleep(&(struct timespec){.tv_nsec = AGAIN_NS}, NULL);
        }
        c.again = false;
        status = reach(mesh, &c);
        if (status == LS_OK) {
            status = prove(mesh, &c, &key);
        }
        if (status != LS_OK && c.socket >= 0) {
            close(c.socket);
            c.socket = -1;
        }
    } while (status != LS_OK && c.again && !ls_deadline_passed(deadline));
    ls_key_forget(&key);
    mesh->sockets[rank] = c.socket;
    return status;
}

/* ---- from higher ranks ---------------------------------------------------------------------------------------------
 */

/* Somebody who has connected and proved nothing yet. */
typedef struct unproven {
    int socket;
    ls_deadline deadline;
    uint8_t nonce[LS_NONCE_SIZE];
    size_t got; /* bytes of */
    ls_gloo_answer answer;
} unproven;

typedef struct acceptor {
    ls_gloo_mesh *mesh;
    unproven *connections; /* the one that came first is the first */
    int count;
    int room;
    int missing;  /* ranks */
    long refused; /* who said something wrong, of whom the log tells the first few */
    struct pollfd *polls;
} acceptor;

static void forget(acceptor *a, int index) {
    a->count--;
    memmove(&a->connections[index], &a->connections[index + 1], (size_t)(a->count - index) * sizeof *a->connections);
}

static void refuse(acceptor *a, int index, const char *why) {
    char host[64] = "an unknown address";
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (why != NULL && getpeername(a->connections[index].socket, (struct sockaddr *)&address, &length) == 0) {
        (void)getnameinfo((struct sockaddr *)&address, length, host, sizeof host, NULL, 0, NI_NUMERICHOST);
    }
    if (why != NULL && a->refused++ < TOLD) {
        ls_log_write(LS_LOG_WARNING, "turned away a process at %s: %s", host, why);
    }
    close(a->connections[index].socket);
    forget(a, index);
}

static void add_connection(acceptor *a, int socket) {
    ls_gloo_challenge challenge = {.greeting = LS_GLOO_GREETING};
    if (a->count == a->room) { /* a rank that loses its place so comes again */
        refuse(a, 0, NULL);
    }
    unproven *who = &a->connections[a->count];
    *who = (unproven){.socket = socket, .deadline = ls_deadline_after(ANSWER_WITHIN)};
    set_up(socket);
    if (ls_auth_nonce(who->nonce) != LS_OK) {
        close(socket);
        return;
    }
    memcpy(challenge.nonce, who->nonce, sizeof who->nonce);
    if (send(socket, &challenge, sizeof challenge, MSG_NOSIGNAL) != sizeof challenge) {
        close(socket);
        return;
    }
    a->count++;
}

/* Why the answer lets nobody in; NULL: it does. */
static const char *refusal(const acceptor *a, const unproven *who, uint8_t proof[LS_PROOF_SIZE]) {
    const ls_gloo_answer *answer = &who->answer;
    const ls_gloo_mesh *mesh = a->mesh;
    if (memcmp(answer->greeting, LS_GLOO_GREETING, sizeof answer->greeting) != 0) {
        return "it does not speak as a rank does";
    }
    if (answer->size != mesh->join->size || answer->rank <= mesh->join->rank || answer->rank >= mesh->join->size ||
        mesh->sockets[answer->rank] >= 0) {
        return "no such rank is waited for";
    }
    ls_key key;
    derive_key(mesh, mesh->join->rank, answer->rank, &key);
    const bool good = ls_auth_check(&key, "connects", answer->nonce, who->nonce, answer->proof);
    ls_auth_prove(&key, "listens", who->nonce, answer->nonce, proof);
    ls_key_forget(&key);
    return good ? NULL : "it does not know the job's key";
}

/* Reads of the answer what there is; lets in who proves to be a rank. */
static void listen_to(acceptor *a, int index) {
    unproven *who = &a->connections[index];
    uint8_t proof[LS_PROOF_SIZE];
    const ssize_t step = recv(who->socket, (char *)&who->answer + who->got, sizeof who->answer - who->got, 0);
    if (step < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return;
    }
    if (step <= 0) {
        refuse(a, index, NULL);
        return;
    }
    who->got += (size_t)step;
    if (who->got < sizeof who->answer) {
        return;
    }
    const char *why = refusal(a, who, proof);
    if (why != NULL || send(who->socket, proof, sizeof proof, MSG_NOSIGNAL) != sizeof proof) {
        refuse(a, index, why);
        return;
    }
    a->mesh->sockets[who->answer.rank] = who->socket;
    a->missing--;
    forget(a, index);
}

static void accept_all(acceptor *a) {
    for (;;) {
        const int fd = accept4(a->mesh->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            add_connection(a, fd);
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

/* One look at all who are here, or wait for some to come. Whether any did anything. */
static bool attend(acceptor *a) {
    a->polls[0] = (struct pollfd){.fd = a->mesh->listener, .events = POLLIN};
    for (int i = 0; i < a->count; i++) {
        a->polls[i + 1] = (struct pollfd){.fd = a->connections[i].socket, .events = POLLIN};
    }
    if (poll(a->polls, (nfds_t)(a->count + 1), LOOK_MS) <= 0) {
        return false;
    }
    for (int i = a->count - 1; i >= 0; i--) { /* from the end: who goes moves only those behind */
        if (a->polls[i + 1].revents != 0) {
            listen_to(a, i);
        }
    }
    if (a->polls[0].revents != 0) {
        accept_all(a);
    }
    return true;
}

static ls_status check_missing(acceptor *a, ls_deadline deadline) {
    ls_gloo_mesh *mesh = a->mesh;
    while (a->count > 0 && ls_deadline_passed(a->connections[0].deadline)) {
        refuse(a, 0, "it said nothing");
    }
    bool asked = false; /* the store, which knows of all */
    for (int rank = mesh->join->rank + 1; rank < mesh->join->size; rank++) {
        if (mesh->sockets[rank] < 0 && !asked) {
            LS_TRY(check_alive(mesh, rank));
            asked = mesh->watched == NULL;
        }
        if (mesh->sockets[rank] < 0 && ls_deadline_passed(deadline)) {
            return fail_waiting(mesh, rank);
        }
    }
    return LS_OK;
}

static ls_status accept_missing(acceptor *a, ls_deadline deadline) {
    ls_deadline look = ls_deadline_after(LOOK_MS * 1e-3);
    while (a->missing > 0) {
        const bool busy = attend(a);
        if (!busy || ls_deadline_passed(look)) { /* whoever connects does not keep this from being done */
            LS_TRY(check_missing(a, deadline));
            look = ls_deadline_after(LOOK_MS * 1e-3);
        }
    }
    return LS_OK;
}

static ls_status accept_from_higher(ls_gloo_mesh *mesh, ls_deadline deadline) {
    acceptor a = {.mesh = mesh, .missing = mesh->join->size - 1 - mesh->join->rank};
    if (a.missing == 0) {
        return LS_OK;
    }
    a.room = UNPROVEN_MOST + a.missing;
    const size_t bytes = (size_t)a.room * sizeof *a.connections;
    a.connections = ls_allocate(bytes);
    a.polls = ls_allocate((size_t)(a.room + 1) * sizeof *a.polls);
    ls_status status = a.connections != NULL && a.polls != NULL
                           ? accept_missing(&a, deadline)
                           : blame(mesh, mesh->join->rank, ls_fail_memory("ls_comm_open", bytes));
    for (int i = 0; i < a.count; i++) {
        close(a.connections[i].socket);
    }
    if (a.refused > TOLD) {
        ls_log_write(LS_LOG_WARNING, "turned away %ld more while the ranks connected", a.refused - TOLD);
    }
    ls_free(a.connections);
    ls_free(a.polls);
    return status;
}

ls_status ls_gloo_meet(ls_gloo_mesh *mesh) {
    const ls_deadline deadline = ls_deadline_after(mesh->join->timeout);
    for (int rank = 0; rank < mesh->join->size; rank++) {
        mesh->sockets[rank] = -1;
    }
    for (int rank = 0; rank < mesh->join->rank; rank++) {
        LS_TRY(connect_to(mesh, rank, deadline));
    }
    return accept_from_higher(mesh, deadline);
}
