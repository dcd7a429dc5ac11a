/*
 * A job on several machines. On each of them, a node, runs a launcher; node 0's is where the others connect, and it
 * decides what all do: when the ranks start, which failure was the first, and whether the job starts again. Connections
 * are made once and kept; both sides prove that they know the key. The port at which the launchers met is handed to
 * rank 0 for its store.
 *
 *   the others                          node 0
 *   join              ----------->
 *                     <-----------      start       as soon as all have joined, and at each restart
 *   failed            ----------->
 *                     <-----------      end         the verdict, the same for all; everybody ends its ranks
 *   done              ----------->                  nothing runs here any more
 *                     <-----------      over        when all are done
 */
#ifndef LS_CLI_NODES_H
#define LS_CLI_NODES_H

#include <uv.h>

#include "cli/node_message.h"
#include "comm/store_socket.h"

typedef struct ls_nodes_options {
    int nodes;
    int node;               /* this one */
    int ranks;              /* here */
    const char *rendezvous; /* "HOST:PORT": node 0 listens there, and the others find it there */
    const char *key;        /* text; NULL: none */
    double timeout;         /* seconds to wait for a node, and for one that is silent */
    double grace;           /* seconds that ranks have to end when the job has failed */
} ls_nodes_options;

enum { LS_BLAME_MS = 1000 }; /* so long a rank that blames another is not taken for the first */

/* Why the job failed first. */
typedef struct ls_failure {
    int rank; /* -1: a node was lost */
    int process;
    bool blames;             /* it reports that another rank came to its end before */
    int wait_status;         /* of the rank, as waitpid has it */
    char text[LS_NODE_TEXT]; /* the rank's host, a space, and why, unless nothing is known; of a node, the sentence */
} ls_failure;

/* One start of a job, as this node sees it. */
typedef struct ls_start {
    int first_rank; /* here */
    int world;
    int nodes;
    char key[LS_KEY_TEXT_SIZE];
    char host[LS_HOST_CAPACITY]; /* where rank 0 serves the store */
    int port;
    int listener;       /* a socket that listens there, for rank 0; the caller's. -1: rank 0 is elsewhere */
    char interface[64]; /* the own address that the other nodes know; empty: there are none */
} ls_start;

/* What other nodes bring about while ranks run. Called from the loop, and `failed` also from ls_nodes_failed. */
typedef struct ls_nodes_events {
    void (*failed)(void *user, const ls_failure *failure);
    void (*interrupted)(void *user, int signal, int node);
    void (*over)(void *user, bool restart);
    bool (*wants_restart)(void *user); /* node 0's; asked when nothing runs anywhere and the first failure is known */
    void *user;
} ls_nodes_events;

typedef struct ls_nodes ls_nodes;

/*
 * Meets the other nodes, says on standard error who is missing while it waits, and stores the caller's *nodes.
 * LS_ERR_TIMEOUT when some do not come, LS_ERR_DENIED for a wrong or missing key.
 */
ls_status ls_nodes_open(const ls_nodes_options *options, ls_nodes **nodes);

/* Agrees on the next start; waits for node 0's word. */
ls_status ls_nodes_start(ls_nodes *nodes, int restarts, ls_start *start);

/* A start of a job that has this machine to itself, on loopback. */
ls_status ls_start_alone(int ranks, ls_start *start);

/* From here on, until ls_nodes_unwatch, the loop serves the other nodes. `events` must live as long. */
ls_status ls_nodes_watch(ls_nodes *nodes, uv_loop_t *loop, const ls_nodes_events *events);
void ls_nodes_unwatch(ls_nodes *nodes);

/* A rank failed here. events->failed comes when it is known which failure was the first. */
void ls_nodes_failed(ls_nodes *nodes, const ls_failure *failure);

/* A person ends the job here. */
void ls_nodes_interrupt(ls_nodes *nodes, int signal);

/* Nothing of this start runs here any more. events->over comes when that is so everywhere; node 0 says what next. */
void ls_nodes_done(ls_nodes *nodes);

/* The host's name of this machine, for people. */
void ls_node_name_host(char host[64]);

/* NULL is allowed. */
void ls_nodes_close(ls_nodes *nodes);

#endif
