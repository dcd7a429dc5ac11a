/* State shared by nodes.c (connecting, starting) and nodes_events.c (while ranks run). */
#ifndef LS_CLI_NODES_STATE_H
#define LS_CLI_NODES_STATE_H

#include "cli/nodes.h"
#include "comm/store_connection.h"

/* Another node. Node 0 has one for each node; every other node has one for node 0. */
typedef struct ls_remote_node {
    uv_poll_t poll; /* first member: libuv returns a pointer to it */
    bool watched;
    ls_nodes *nodes;
    int number;
    ls_connection *link; /* NULL if not connected yet, or if the connection is lost */
    bool lost;           /* the connection was lost after the node had joined */
    bool done;           /* no process of this start is left on that node */
    int queries;         /* number of queries since the last message from the node */
    int ranks;
    char host[64];
} ls_remote_node;

struct ls_nodes {
    ls_nodes_options options;
    ls_key key;
    ls_address address;
    int listener;           /* on node 0: the listening socket, until it is passed to rank 0 */
    ls_remote_node *others; /* on node 0: `options.nodes` entries, the first for node 0 itself; on other nodes: one
                               entry, for node 0 */
    int first, count;       /* range of the entries for other nodes */
    uv_loop_t *loop;
    const ls_nodes_events *events; /* NULL if no ranks run */
    bool failing;                  /* the start has failed, as far as this node knows */
    ls_verdict verdict;            /* decided by node 0, or by a signal */
    uv_timer_t blame;              /* on node 0: the time at which the suspect becomes the first failure */
    uv_timer_t silence; /* after a failure, with no process left on this node: ends the wait for the other nodes */
    uv_timer_t pulse;   /* while the job continues only on other nodes: the time of the next query to the launchers */
    bool done;          /* no process of the start is left on this node */
    bool over;
};

/* Sends a message. Ignores errors: the loss of a node is noticed when reading from the connection. */
void ls_node_tell(ls_remote_node *node, const ls_node_message *message);
void ls_nodes_tell_all(ls_nodes *nodes, const ls_node_message *message, const ls_remote_node *but);

/* Receives a message if a complete message has arrived. After any status except LS_OK, the connection is unusable. */
ls_status ls_node_hear(ls_connection *link, bool *whole, ls_node_message *message);

#endif
