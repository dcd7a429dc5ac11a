/*
 * One client as the store's server sees it: its socket, the bytes on their way in and out, and the request that waits.
 * It reads no further than the message it is at, so one request is in work per client.
 */
#ifndef LS_COMM_STORE_CONNECTION_H
#define LS_COMM_STORE_CONNECTION_H

#include "base/wait.h"
#include "comm/store_message.h"

typedef struct ls_connection {
    int fd;   /* -1: lost, to be swept */
    int rank; /* -1: has not joined */
    bool greeted;
    bool waiting;             /* `request` is not answered yet */
    ls_deadline deadline;     /* of the greeting or of the waiting request */
    ls_hello hello;           /* this side's */
    uint8_t address[8];       /* whom it comes from, see store_admission.c */
    ls_store_request request; /* its parts point into input */
    uint8_t *input, *output;
    size_t input_capacity, input_size;
    size_t output_size, output_sent; /* output_size 0: nothing to send, and output is NULL */
} ls_connection;

/* Takes ownership of a connected socket, also on failure. Returns NULL if memory is exhausted. */
ls_connection *ls_connection_new(int fd);
void ls_connection_free(ls_connection *connection);

/* Closes the socket. */
void ls_connection_close(ls_connection *connection);

/*
 * Reads towards the next message of which the first byte is expected now: the client's hello, or a request's frame.
 * `*complete` says that it lies whole in `input`. A status other than LS_OK: the connection is of no more use.
 */
ls_status ls_connection_read(ls_connection *connection, bool *complete);

/* The message in `input` is dealt with: the next one is read over it. */
void ls_connection_next(ls_connection *connection);

/* Sends bytes (copied), now as far as possible, the rest by ls_connection_flush. */
ls_status ls_connection_send(ls_connection *connection, const uint8_t *bytes, size_t size);
ls_status ls_connection_reply(ls_connection *connection, const ls_store_reply *reply);
ls_status ls_connection_flush(ls_connection *connection);

/* What to wait for in poll(). */
short ls_connection_events(const ls_connection *connection);

/* Writes "127.0.0.1 port 4242" for the log. */
const char *ls_connection_peer(const ls_connection *connection, char *text, size_t capacity);

#endif
