/*
 * Messages between the launchers of a job on several machines, after the handshake. A message consists of a word, some
 * numbers and a text, and is sent as a `set` request of the store's protocol (comm/store_message.h).
 */
#ifndef LS_CLI_NODE_MESSAGE_H
#define LS_CLI_NODE_MESSAGE_H

#include "comm/store_message.h"

enum { LS_NODE_NUMBERS = 4, LS_NODE_TEXT = 1200, LS_NODE_FRAME = 2048 };

typedef enum ls_node_word {
    LS_NODE_JOIN,    /* to node 0: node, nodes, ranks; text: the sender's host */
    LS_NODE_REFUSED, /* to a node that cannot join; text: the reason */
    LS_NODE_NEWS,    /* to other nodes; text: a line for the user at that node */
    LS_NODE_START,   /* to other nodes: restarts, first rank, world size; text: the salt for the key of this start */
    LS_NODE_FAILED,  /* to node 0: rank, process, status, whether the rank reports another rank as the cause; text: host
                        and reason */
    LS_NODE_END,     /* to other nodes: rank (-1 for a node), process, status; text: host and reason */
    LS_NODE_SIGNAL,  /* both directions: signal, node */
    LS_NODE_DONE,    /* to node 0: no process of the job is left on the sender's machine */
    LS_NODE_OVER,    /* to other nodes: whether the job is restarted */
    LS_NODE_ASK,     /* in both directions: requests any message, to check that the launcher is alive */
    LS_NODE_HERE,    /* the answer */
    LS_NODE_WORDS
} ls_node_word;

typedef struct ls_node_message {
    ls_node_word word;
    int numbers[LS_NODE_NUMBERS];
    char text[LS_NODE_TEXT];
} ls_node_message;

/* Writes a frame into a buffer of LS_NODE_FRAME bytes. Returns its size. */
size_t ls_node_message_write(const ls_node_message *message, uint8_t *frame);

/*
 * Reads the body of a frame. Fails with LS_ERR_FORMAT and the reason if it is not a valid message. Makes the text
 * printable.
 */
ls_status ls_node_message_read(const uint8_t *body, size_t size, ls_node_message *message);

#endif
