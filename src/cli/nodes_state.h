/* What nodes.c (meeting, starting) and nodes_events.c (while ranks run) share. */
#ifndef LS_CLI_NODES_STATE_H
#define LS_CLI_NODES_STATE_H

#include "cli/nodes.h"
#include "comm/store_connection.h"

/* Another node. On node 0 one for each; on the others only node 0. */
typedef struct ls_remote_node {
    uv_poll_t poll; /* first: libuv gives it back */
    bool watched;
    ls_nodes *nodes;
    int number;
    ls_connection *link; /* NULL: it has not come, or was lost */
    bool lost;           /* after it had come */
    bool done;           /* nothing of this start runs there any more */
    int asked;           /* so often whether its launcher is there, since anything was heard of it */
    int ranks;
    char host[64];
} ls_remote_node;

struct ls_nodes {
    ls_nodes_options options;
    ls_key key;
    ls_address address;
    int listener;           /* node 0: until rank 0 gets it */
    ls_remote_node *others; /* node 0: `options.nodes` entries of which the first is itself; else one, node 0 */
    int first, count;       /* those of them that are other nodes */
    uv_loop_t *loop;
    const ls_nodes_events *events; /* NULL: no ranks run */
    bool decided;                  /* how this start ends */
    bool failing;                  /* it does not end well, as far as is known here */
    bool suspected; /* a rank failed; on node 0 one that blames another, of which nothing is known yet: */
    ls_failure suspect;
    uv_timer_t blame;   /* until it is taken for the first to fail */
    uv_timer_t silence; /* of a job that has failed and of which nothing runs here: until the others must have ended */
    uv_timer_t pulse;   /* of one that goes on elsewhere alone: when the launchers there are asked */
    bool done;          /* nothing of it runs here any more */
    bool over;
};

/* Sends; a node that does not take it is as good as lost, which its connection will tell. */
void ls_node_tell(ls_remote_node *node, const ls_node_message *message);
void ls_nodes_tell_all(ls_nodes *nodes, const ls_node_message *message, const ls_remote_node *but);

/* What has come, if it is whole. A status other than LS_OK: the connection is of no more use. */
ls_status ls_node_hear(ls_connection *link, bool *whole, ls_node_message *message);

#endif
