/*
 * A client's state in the store's server: its socket, the incoming and outgoing bytes, and the pending request. Reads
 * no further than the current message, so each client has only one request in progress.
 */
#ifndef LS_COMM_STORE_CONNECTION_H
#define LS_COMM_STORE_CONNECTION_H

#include "base/wait.h"
#include "comm/store_message.h"

typedef struct ls_connection {
    int fd;   /* -1 if lost; then it will be removed */
    int rank; /* -1 if it has not joined */
    bool greeted;
    bool waiting;             /* `request` has not been answered yet */
    ls_deadline deadline;     /* for the greeting or the pending request */
    ls_hello hello;           /* this side's */
    uint8_t address[8];       /* the client's machine: see store_admission.c */
    ls_store_request request; /* the parts of the request point into `input` */
    uint8_t *input, *output;
    size_t input_capacity, input_size;
    size_t output_size, output_sent; /* if output_size is 0, there is nothing to send, and output is NULL */
} ls_connection;

/* Creates a client's state. Takes ownership of a connected socket, even on failure. Returns NULL if out of memory. */
ls_connection *ls_connection_new(int fd);
void ls_connection_free(ls_connection *connection);

/* Closes the socket. */
void ls_connection_close(ls_connection *connection);

/*
 * Reads the next message as far as possible: the client's hello, or a request's frame. Sets `*complete` to true if the
 * whole message is in `input`. If the status is not LS_OK, the connection is unusable.
 */
ls_status ls_connection_read(ls_connection *connection, bool *complete);

/* Marks the message in `input` as processed; the next message overwrites it. */
void ls_connection_next(ls_connection *connection);

/* Sends a copy of the bytes: as much as possible now, and the rest in ls_connection_flush. */
ls_status ls_connection_send(ls_connection *connection, const uint8_t *bytes, size_t size);
ls_status ls_connection_reply(ls_connection *connection, const ls_store_reply *reply);
ls_status ls_connection_flush(ls_connection *connection);

/* Returns the events to wait for in poll(). */
short ls_connection_events(const ls_connection *connection);

/* Writes the client's address for the log: "127.0.0.1 port 4242". */
const char *ls_connection_peer(const ls_connection *connection, char *text, size_t capacity);

#endif
