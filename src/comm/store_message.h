/*
 * The messages between the TCP store and its clients: their encoding, and the strict decoding. Does not use sockets, so
 * that tests can decode arbitrary bytes.
 *
 * A connection begins with the server's hello, without a proof, and the client's (channel/hello.h). The server answers
 * with a reply that contains its proof. From then on, the client sends requests, and the server sends one reply to
 * each. Requests and replies are frames: four bytes of length, then the body. All numbers are little-endian.
 */
#ifndef LS_COMM_STORE_MESSAGE_H
#define LS_COMM_STORE_MESSAGE_H

#include "comm/channel/hello.h"

#define LS_STORE_KEY_MAX   255
#define LS_STORE_VALUE_MAX (1U << 20)
#define LS_RANKS_MAX       4096 /* maximum number of ranks of a job that meets through a store */

#define LS_FRAME_HEADER  4
#define LS_REQUEST_FIXED 24
#define LS_REPLY_FIXED   16
#define LS_REQUEST_MAX   (LS_REQUEST_FIXED + LS_STORE_KEY_MAX + 2 * LS_STORE_VALUE_MAX)
#define LS_REPLY_MAX     (LS_REPLY_FIXED + LS_STORE_VALUE_MAX)

/* Bytes that live elsewhere. */
typedef struct ls_bytes {
    const void *data;
    size_t size;
} ls_bytes;

typedef enum ls_store_operation {
    LS_STORE_SET = 1,
    LS_STORE_GET,
    LS_STORE_ADD,
    LS_STORE_WAIT,
    LS_STORE_COMPARE_SET,
    LS_STORE_JOIN,  /* amount: rank << 32 | world size; value: the rank's peer information; answered with all peer
                       information when all ranks have joined */
    LS_STORE_LEAVE, /* answered when every rank has left or died */
    LS_STORE_OPERATION_END
} ls_store_operation;

typedef struct ls_store_request {
    ls_store_operation operation;
    ls_bytes key, expected, value;
    int64_t amount;
    uint32_t timeout; /* maximum time in milliseconds for which the server may delay the answer */
} ls_store_request;

/* A reply. `value` is the requested value or, with a status other than LS_OK, an error message. */
typedef struct ls_store_reply {
    ls_status status;
    int64_t number; /* value of the counter; 1 if compare_set has swapped */
    ls_bytes value;
} ls_store_reply;

/* Decodes the length in a frame's first four bytes. Fails with LS_ERR_FORMAT unless smallest <= *size <= largest. */
ls_status ls_frame_size(const uint8_t header[LS_FRAME_HEADER], size_t smallest, size_t largest, size_t *size);

/* Return the size of this request's frame, and write the frame to this many bytes. */
size_t ls_request_size(const ls_store_request *request);
void ls_request_encode(const ls_store_request *request, uint8_t *bytes);

/* Decodes a frame's body. The request's parts point into the body. Fails with LS_ERR_FORMAT, and the reason, if the
 * body is invalid. */
ls_status ls_request_decode(const uint8_t *body, size_t size, ls_store_request *request);

/* The same three functions for replies. */
size_t ls_reply_size(const ls_store_reply *reply);
void ls_reply_encode(const ls_store_reply *reply, uint8_t *bytes);
ls_status ls_reply_decode(const uint8_t *body, size_t size, ls_store_reply *reply);

#endif
