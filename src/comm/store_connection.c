#include "comm/store_connection.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"

enum { SMALL_INPUT = 512 }; /* large enough for a hello and most requests */

ls_connection *ls_connection_new(int fd) {
    ls_connection *connection = ls_allocate_zeroed(1, sizeof *connection);
    uint8_t *input = ls_allocate(SMALL_INPUT);
    if (connection == NULL || input == NULL) {
        ls_free(connection);
        ls_free(input);
        close(fd);
        return NULL;
    }
    connection->fd = fd;
    connection->rank = -1;
    connection->deadline = LS_DEADLINE_NEVER;
    connection->input = input;
    connection->input_capacity = SMALL_INPUT;
    return connection;
}

void ls_connection_free(ls_connection *connection) {
    if (connection != NULL) {
        ls_connection_close(connection);
        ls_free(connection->input);
        ls_free(connection->output);
        ls_free(connection);
    }
}

void ls_connection_close(ls_connection *connection) {
    if (connection->fd >= 0) {
        close(connection->fd);
    }
    connection->fd = -1;
    connection->waiting = false;
    connection->deadline = LS_DEADLINE_NEVER;
}

static ls_status make_room(ls_connection *connection, size_t size) {
    if (size > connection->input_capacity) {
        uint8_t *larger = ls_reallocate(connection->input, connection->input_capacity, size);
        if (larger == NULL) {
            return ls_fail(LS_ERR_MEMORY, "out of memory for a message of %zu bytes", size);
        }
        connection->input = larger;
        connection->input_capacity = size;
    }
    return LS_OK;
}

/* Determines the size of the message being read, as far as it is known so far. */
static ls_status message_size(ls_connection *connection, size_t *size) {
    if (!connection->greeted) {
        *size = LS_PROVEN_HELLO_SIZE;
        return LS_OK;
    }
    *size = LS_FRAME_HEADER;
    if (connection->input_size >= LS_FRAME_HEADER) {
        size_t body;
        LS_TRY(ls_frame_size(connection->input, LS_REQUEST_FIXED, LS_REQUEST_MAX, &body));
        *size += body;
    }
    return make_room(connection, *size);
}

ls_status ls_connection_read(ls_connection *connection, bool *complete) {
    *complete = false;
    for (;;) {
        size_t size;
        LS_TRY(message_size(connection, &size));
        if (connection->input_size == size) { /* never just a header: a body has LS_REQUEST_FIXED bytes or more */
            *complete = true;
            return LS_OK;
        }
        const ssize_t step =
            recv(connection->fd, connection->input + connection->input_size, size - connection->input_size, 0);
        if (step > 0) {
            connection->input_size += (size_t)step;
        } else if (step < 0 && errno == EINTR) {
            continue;
        } else if (step < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return LS_OK;
        } else if (step == 0) {
            return ls_fail(LS_ERR_PEER, "the connection was closed");
        } else {
            return ls_fail(LS_ERR_PEER, "the connection broke: %s", strerror(errno));
        }
    }
}

void ls_connection_next(ls_connection *connection) {
    connection->input_size = 0;
    connection->waiting = false;
    connection->deadline = LS_DEADLINE_NEVER;
    if (connection->input_capacity > SMALL_INPUT) {
        uint8_t *smaller = ls_allocate(SMALL_INPUT);
        if (smaller != NULL) { /* idle clients keep no large buffers */
            ls_free(connection->input);
            connection->input = smaller;
            connection->input_capacity = SMALL_INPUT;
        }
    }
}

/* Queues `bytes` for sending. Takes ownership of `bytes`, which was allocated with this size. */
static ls_status queue(ls_connection *connection, uint8_t *bytes, size_t size) {
    if (connection->output_size > 0) {
        uint8_t *both = ls_reallocate(connection->output, connection->output_size, connection->output_size + size);
        if (both == NULL) {
            ls_free(bytes);
            return ls_fail(LS_ERR_MEMORY, "out of memory for a message of %zu bytes", size);
        }
        memcpy(both + connection->output_size, bytes, size);
        ls_free(bytes);
        connection->output = both;
        connection->output_size += size;
        return ls_connection_flush(connection);
    }
    connection->output = bytes;
    connection->output_size = size;
    connection->output_sent = 0;
    return ls_connection_flush(connection);
}

ls_status ls_connection_send(ls_connection *connection, const uint8_t *bytes, size_t size) {
    uint8_t *copy = ls_allocate(size);
    if (copy == NULL) {
        return ls_fail(LS_ERR_MEMORY, "out of memory for a message of %zu bytes", size);
    }
    memcpy(copy, bytes, size);
    return queue(connection, copy, size);
}

ls_status ls_connection_reply(ls_connection *connection, const ls_store_reply *reply) {
    const size_t size = ls_reply_size(reply);
    uint8_t *bytes = ls_allocate(size);
    if (bytes == NULL) {
        return ls_fail(LS_ERR_MEMORY, "out of memory for a message of %zu bytes", size);
    }
    ls_reply_encode(reply, bytes);
    return queue(connection, bytes, size);
}

ls_status ls_connection_flush(ls_connection *connection) {
    while (connection->output_sent < connection->output_size) {
        const ssize_t step = send(connection->fd, connection->output + connection->output_sent,
                                  connection->output_size - connection->output_sent, MSG_NOSIGNAL);
        if (step >= 0) {
            connection->output_sent += (size_t)step;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return LS_OK;
        } else if (errno != EINTR) {
            return ls_fail(LS_ERR_PEER, "the connection broke: %s", strerror(errno));
        }
    }
    ls_free(connection->output);
    connection->output = NULL;
    connection->output_size = 0;
    return LS_OK;
}

short ls_connection_events(const ls_connection *connection) {
    if (connection->output_size > 0) {
        return POLLOUT;
    }
    return connection->waiting ? POLLRDHUP : POLLIN;
}

const char *ls_connection_peer(const ls_connection *connection, char *text, size_t capacity) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char host[64], port[16];
    if (getpeername(connection->fd, (struct sockaddr *)&address, &size) != 0 ||
        getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        snprintf(text, capacity, "an unknown address");
    } else {
        snprintf(text, capacity, "%s port %s", host, port);
    }
    return text;
}
