#include "comm/store_admission.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "comm/store_greeting.h"

static const double greeting_seconds = 30;
static const double least_seconds =
    1; /* minimum time in which a peer can prove its key, even if its address opens more connections */

enum { LEAST_PLACES = 16 };

void ls_admission_open(ls_admission *self, const ls_key *key, const char *who) {
    struct rlimit files;
    *self = (ls_admission){.key = key, .who = who, .most = LS_UNPROVEN_MOST};
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 2 < LS_UNPROVEN_MOST) {
        self->most = files.rlim_cur / 2 > LEAST_PLACES ? (int)(files.rlim_cur / 2) : LEAST_PLACES;
    }
}

/* ---- limit on connections ---------------------------------------------------------------------------------------- */

/* Stores the part of an address that identifies a machine: the whole IPv4 address, but only the first 64 bits of an
 * IPv6 address, because a machine may have any number of addresses in its network. */
static void note_address(ls_connection *connection, const struct sockaddr_storage *from) {
    if (from->ss_family == AF_INET) {
        memcpy(connection->address, &((const struct sockaddr_in *)from)->sin_addr, 4);
    } else if (from->ss_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)from)->sin6_addr;
        const bool mapped = IN6_IS_ADDR_V4MAPPED(six);
        memcpy(connection->address, &six->s6_addr[mapped ? 12 : 0], mapped ? 4 : 8);
    }
}

/* Orders connections by address, and connections from the same address by age, oldest first. */
static int compare(const void *left, const void *right) {
    const ls_connection *a = *(ls_connection *const *)left, *b = *(ls_connection *const *)right;
    const int order = memcmp(a->address, b->address, sizeof a->address);
    return order != 0 ? order : (a->deadline > b->deadline) - (a->deadline < b->deadline);
}

/* Returns the oldest connection from the address with the most connections, and sets `*most` to their number. Sets
 * `*own` to the number of connections from `address`. */
static ls_connection *find_oldest(ls_connection **sorted, size_t count, size_t *most, const uint8_t *address,
                                  size_t *own) {
    ls_connection *oldest = NULL;
    *most = *own = 0;
    for (size_t first = 0, end = 0; first < count; first = end) {
        while (end < count && memcmp(sorted[end]->address, sorted[first]->address, sizeof sorted[end]->address) == 0) {
            end++;
        }
        if (end - first > *most) {
            *most = end - first;
            oldest = sorted[first];
        }
        if (memcmp(sorted[first]->address, address, sizeof sorted[first]->address) == 0) {
            *own = end - first;
        }
    }
    return oldest;
}

static bool had_time(const ls_connection *connection) {
    const double left = greeting_seconds - least_seconds;
    return connection->deadline <= ls_deadline_after(left);
}

/* Closes one connection if more than `limit` connections, including `accepted`, have no valid proof. Returns true if
 * there is room for `accepted`. */
static bool make_room(int limit, ls_connection *const *all, size_t count, ls_connection *accepted) {
    ls_connection *unproven[LS_UNPROVEN_MOST + 1];
    size_t size = 0, most, own;
    for (size_t i = 0; i < count && size < LS_UNPROVEN_MOST; i++) {
        if (all[i]->fd >= 0 && !all[i]->greeted) {
            unproven[size++] = all[i];
        }
    }
    unproven[size++] = accepted;
    if (size <= (size_t)limit) {
        return true;
    }
    qsort(unproven, size, sizeof *unproven, compare);
    ls_connection *oldest = find_oldest(unproven, size, &most, accepted->address, &own);
    if (oldest == accepted || (most <= own && !had_time(oldest))) {
        return false;
    }
    ls_connection_close(oldest);
    return true;
}

/* ---- accepting --------------------------------------------------------------------------------------------------- */

/* Closes a connection without a valid proof if the process has reached its limit on file descriptors. */
static bool free_descriptor(ls_connection *const *all, size_t count) {
    ls_connection nobody = {.fd = -1, .deadline = LS_DEADLINE_NEVER};
    memset(nobody.address, 0xff, sizeof nobody.address);
    return make_room(1, all, count, &nobody);
}

static int accept_one(int listener, struct sockaddr_storage *from, int *fd) {
    socklen_t size = sizeof *from;
    *fd = accept4(listener, (struct sockaddr *)from, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    return *fd >= 0 ? 0 : errno;
}

static bool send_hello(const ls_key *key, ls_connection *connection) {
    uint8_t bytes[LS_HELLO_SIZE];
    if (ls_hello_make(&connection->hello, key->given) != LS_OK) {
        return false;
    }
    ls_hello_encode(&connection->hello, false, bytes);
    return ls_connection_send(connection, bytes, sizeof bytes) == LS_OK;
}

int ls_admission_accept(ls_admission *self, int listener, ls_connection *const *all, size_t count,
                        ls_connection **connection) {
    struct sockaddr_storage from = {0};
    int fd;
    *connection = NULL;
    int error = accept_one(listener, &from, &fd);
    if ((error == EMFILE || error == ENFILE) && free_descriptor(all, count)) {
        error = accept_one(listener, &from, &fd);
    }
    if (error != 0) {
        return error == EWOULDBLOCK ? EAGAIN : error;
    }
    ls_connection *accepted = ls_connection_new(fd);
    if (accepted == NULL) {
        return 0;
    }
    note_address(accepted, &from);
    accepted->deadline = ls_deadline_after(greeting_seconds);
    if (!make_room(self->most, all, count, accepted) || !send_hello(self->key, accepted)) {
        ls_connection_free(accepted);
        return 0;
    }
    *connection = accepted;
    return 0;
}

/* ---- the greeting ------------------------------------------------------------------------------------------------ */

static ls_status refuse(const ls_admission *self, ls_connection *connection, ls_status status, const char *why) {
    char peer[96];
    (void)ls_fail(status, "refused a %s at %s: %s", self->who, ls_connection_peer(connection, peer, sizeof peer), why);
    ls_connection_close(connection);
    return status;
}

/* Rejects a client that knows the key but runs a different build. */
static ls_status check_build(const ls_admission *self, ls_connection *connection, const ls_hello *hello) {
    char client[96], peer[80], why[LS_ERROR_CAPACITY];
    snprintf(client, sizeof client, "the %s at %s", self->who, ls_connection_peer(connection, peer, sizeof peer));
    if (ls_hello_check_build(hello, client) == LS_OK) {
        return LS_OK;
    }
    snprintf(why, sizeof why, "%s", ls_error_message());
    (void)ls_connection_reply(connection, &(ls_store_reply){.status = LS_ERR_MISMATCH, .value = {why, strlen(why)}});
    ls_connection_close(connection);
    return ls_fail(LS_ERR_MISMATCH, "%s", why);
}

ls_status ls_admission_hear(ls_admission *self, ls_connection *connection) {
    bool complete;
    ls_hello hello;
    ls_status status = ls_connection_read(connection, &complete);
    if (status != LS_OK) {
        ls_connection_close(connection);
        return status;
    }
    if (!complete) {
        return LS_OK;
    }
    if (ls_hello_decode(connection->input, true, &hello) != LS_OK) {
        return refuse(self, connection, LS_ERR_FORMAT, ls_error_message());
    }
    const char *why = ls_greeting_refusal(self->key, connection->hello.nonce, &hello);
    if (why != NULL) {
        self->refused++;
        (void)ls_connection_reply(connection, &(ls_store_reply){.status = LS_ERR_DENIED, .value = {why, strlen(why)}});
        return refuse(self, connection, LS_ERR_DENIED, why);
    }
    status = check_build(self, connection, &hello);
    if (status != LS_OK) {
        return status;
    }
    ls_hello_prove(&connection->hello, self->key, "server", hello.nonce);
    connection->greeted = true;
    ls_connection_next(connection);
    status = ls_connection_reply(connection,
                                 &(ls_store_reply){.status = LS_OK, .value = {connection->hello.proof, LS_PROOF_SIZE}});
    if (status != LS_OK) {
        ls_connection_close(connection);
    }
    return status;
}
