/* State that nodes.c (meeting, starting) and nodes_events.c (while ranks run) share. */
#ifndef LS_CLI_NODES_STATE_H
#define LS_CLI_NODES_STATE_H

#include "cli/nodes.h"
#include "comm/store_connection.h"

/* Another node. Node 0 has one for each node, the other nodes have one for node 0. */
typedef struct ls_remote_node {
    uv_poll_t poll; /* first member: libuv returns a pointer to it */
    bool watched;
    ls_nodes *nodes;
    int number;
    ls_connection *link; /* NULL: not connected yet, or lost */
    bool lost;           /* lost after it had joined */
    bool done;           /* no process of this start is left there */
    int queries;         /* since the last message of the node */
    int ranks;
    char host[64];
} ls_remote_node;

struct ls_nodes {
    ls_nodes_options options;
    ls_key key;
    ls_address address;
    int listener; /* node 0: the listening socket, until rank 0 gets it */
    ls_remote_node
        *others;      /* node 0: `options.nodes` entries, the first for itself; other nodes: one entry, for node 0 */
    int first, count; /* the entries that are other nodes */
    uv_loop_t *loop;
    const ls_nodes_events *events; /* NULL: no ranks run */
    bool failing;                  /* the start has failed, as far as this node knows */
    ls_verdict verdict;            /* decided by node 0, or by a signal */
    uv_timer_t blame;              /* node 0: when the suspect becomes the first failure */
    uv_timer_t silence;            /* after a failure, with no process left here: ends the wait for the other nodes */
    uv_timer_t pulse;              /* while the job continues only elsewhere: when to ask the launchers for a message */
    bool done;                     /* no process of the start is left here */
    bool over;
};

/* Sends a message. Ignores errors: the connection reports the loss of a node. */
void ls_node_tell(ls_remote_node *node, const ls_node_message *message);
void ls_nodes_tell_all(ls_nodes *nodes, const ls_node_message *message, const ls_remote_node *but);

/* Receives a message if a whole one has arrived. After a status other than LS_OK, the connection is unusable. */
ls_status ls_node_hear(ls_connection *link, bool *whole, ls_node_message *message);

#endif
