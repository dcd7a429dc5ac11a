/*
 * A job on several machines. On each machine (node) runs a launcher. The other launchers connect to node 0's launcher,
 * which decides when the ranks start, which failure was the first, and whether the job is restarted. Connections are
 * made once and kept; both sides prove that they know the key. The port on which node 0 accepted the launchers is
 * passed to rank 0 for its store.
 *
 *   other nodes                         node 0
 *   join              ----------->
 *                     <-----------      start       as soon as all have joined, and at each restart
 *   failed            ----------->
 *                     <-----------      end         the verdict, the same for all; every node terminates its ranks
 *   done              ----------->                  no process is left on this node
 *                     <-----------      over        when all nodes are done
 */
#ifndef LS_CLI_NODES_H
#define LS_CLI_NODES_H

#include <uv.h>

#include "cli/node_message.h"
#include "comm/store_socket.h"
#include "comm/supervisor.h"

typedef struct ls_nodes_options {
    int nodes;
    int node;               /* this one */
    int ranks;              /* here */
    const char *rendezvous; /* "HOST:PORT": the address on which node 0 listens */
    const char *key;        /* text; NULL if there is no key */
    double timeout;         /* seconds to wait for a missing or silent node */
    double grace;           /* seconds for the ranks to end after a failure */
} ls_nodes_options;

/* One start of a job, as seen by this node. */
typedef struct ls_start {
    int first_rank; /* here */
    int world;
    int nodes;
    char key[LS_KEY_TEXT_SIZE];
    char host[LS_HOST_CAPACITY]; /* address of rank 0's store */
    int port;
    int listener; /* a socket that listens at this address, for rank 0; owned by the caller. -1 if rank 0 is on another
                     node */
    char interface[64]; /* the address by which other nodes know this node; empty if there are no other nodes */
} ls_start;

/* Events from other nodes while ranks run. The loop calls these functions; ls_nodes_failed also calls `failed`. */
typedef struct ls_nodes_events {
    void (*failed)(void *user, const ls_failure *failure);
    void (*interrupted)(void *user, int signal, int node);
    void (*over)(void *user, bool restart);
    void (*print)(void *user, const char *line); /* prints a line, without a newline, to standard error */
    bool (*wants_restart)(void *user); /* on node 0: called when no rank runs anywhere and the first failure is known */
    void *user;
} ls_nodes_events;

typedef struct ls_nodes ls_nodes;

/*
 * Connects to the other nodes. While it waits, it prints on standard error which nodes are missing. Returns ownership
 * of *nodes to the caller. Fails with LS_ERR_TIMEOUT if nodes are missing, and with LS_ERR_DENIED if the key is wrong
 * or missing.
 */
ls_status ls_nodes_open(const ls_nodes_options *options, ls_nodes **nodes);

/* Agrees on the next start. Waits for node 0. */
ls_status ls_nodes_start(ls_nodes *nodes, int restarts, ls_start *start);

/* Prepares the start of a job on this machine only, using loopback. */
ls_status ls_start_alone(int ranks, ls_start *start);

/* Handles messages from the other nodes in the loop until ls_nodes_unwatch. Borrows `events` until then. */
ls_status ls_nodes_watch(ls_nodes *nodes, uv_loop_t *loop, const ls_nodes_events *events);
void ls_nodes_unwatch(ls_nodes *nodes);

/*
 * Records that a rank failed on this node, or, with rank -1, that a node failed. events->failed follows once the first
 * failure is known. The text is the rank's host, a space, and the reason if known; for a node, the text is the sentence
 * to report.
 */
void ls_nodes_failed(ls_nodes *nodes, const ls_failure *failure);

/* Records that the user ends the job on this node. */
void ls_nodes_interrupt(ls_nodes *nodes, int signal);

/*
 * Records that no process of this start is left on this node. events->over follows once this is true on all nodes; node
 * 0 then decides how to continue.
 */
void ls_nodes_done(ls_nodes *nodes);

/* Writes the host name of this machine, for messages. */
void ls_node_name_host(char host[64]);

/* Frees the connections. NULL is allowed. */
void ls_nodes_close(ls_nodes *nodes);

#endif
