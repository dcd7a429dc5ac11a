/*
 * What the launchers of a job on several machines say to each other once they have greeted: a word, some numbers and a
 * text, carried as a `set` request of the store's protocol (comm/store_message.h). Writing it, and the strict reading.
 */
#ifndef LS_CLI_NODE_MESSAGE_H
#define LS_CLI_NODE_MESSAGE_H

#include "comm/store_message.h"

enum { LS_NODE_NUMBERS = 4, LS_NODE_TEXT = 1200, LS_NODE_FRAME = 2048 };

typedef enum ls_node_word {
    LS_NODE_JOIN,    /* to node 0: node, nodes, ranks; its host */
    LS_NODE_REFUSED, /* to a node that cannot join: why */
    LS_NODE_NEWS,    /* to the others: something to tell the person who waits there */
    LS_NODE_START,   /* to the others: restarts, first rank, world size; what the start's key is derived from */
    LS_NODE_FAILED,  /* to node 0: rank, process, status, whether it blames another; host and why */
    LS_NODE_END,     /* to the others: rank (-1: a node), process, status; host and why, or the reason */
    LS_NODE_SIGNAL,  /* both ways: signal, node */
    LS_NODE_DONE,    /* to node 0: nothing of the job runs here any more */
    LS_NODE_OVER,    /* to the others: whether the job starts again */
    LS_NODE_ASK,     /* both ways: whether anybody is there */
    LS_NODE_HERE,    /* the answer */
    LS_NODE_WORDS
} ls_node_word;

typedef struct ls_node_message {
    ls_node_word word;
    int numbers[LS_NODE_NUMBERS];
    char text[LS_NODE_TEXT];
} ls_node_message;

/* Writes a whole frame into LS_NODE_FRAME bytes; returns its size. */
size_t ls_node_message_write(const ls_node_message *message, uint8_t *frame);

/* Reads a frame's body. LS_ERR_FORMAT with the reason when it is no such message. The text is fit for a terminal. */
ls_status ls_node_message_read(const uint8_t *body, size_t size, ls_node_message *message);

#endif
