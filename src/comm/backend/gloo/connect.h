/*
 * How the ranks of a communicator get connected, one TCP connection for every two of them. Each
 * rank listens at one port; the higher of two ranks connects to the lower one. Then both prove by an HMAC over two
 * fresh nonces that they know a key which comes from the job's key and from secrets of both ranks, so that it takes a
 * holder of the job's key who has read their cards. Who proves nothing is turned away and keeps nobody waiting.
 *
 * A rank that dies meanwhile is seen by the others: its port closes, or the store or the communicator that is split
 * tells of it.
 */
#ifndef LS_COMM_BACKEND_GLOO_CONNECT_H
#define LS_COMM_BACKEND_GLOO_CONNECT_H

#include <sched.h>
#include <sys/socket.h>

#include "comm/auth.h"
#include "comm/backend.h"

/* What a rank says of itself to those who may join it. */
typedef struct ls_gloo_card {
    int32_t status; /* LS_OK, or why it cannot take part */
    uint32_t length;
    struct sockaddr_storage address; /* of so many bytes, where it listens */
    uint64_t machine;
    cpu_set_t cores;
    uint8_t secret[LS_NONCE_SIZE];
} ls_gloo_card;

/* The listening rank speaks first, */
typedef struct ls_gloo_challenge {
    char greeting[8]; /* LS_GLOO_GREETING */
    uint8_t nonce[LS_NONCE_SIZE];
} ls_gloo_challenge;

/* who connected answers, */
typedef struct ls_gloo_answer {
    char greeting[8];
    int32_t rank;
    int32_t size;
    uint8_t nonce[LS_NONCE_SIZE];
    uint8_t proof[LS_PROOF_SIZE];
} ls_gloo_answer;

/* and is let in by LS_PROOF_SIZE bytes that prove the same of the listening rank. */

#define LS_GLOO_GREETING "lsgloo-2"

/* The connections that are to be made, one for every two ranks. All is lent. */
typedef struct ls_gloo_mesh {
    const ls_join *join;
    const ls_gloo_card *cards; /* of each rank */
    const int *watched;        /* sockets of connections that end when a rank dies; NULL: the store knows */
    int listener;
    int *sockets; /* result: to each rank, -1 for the own one and those that were not reached; the caller's */
    int culprit;  /* result of a failure: which rank is to blame */
} ls_gloo_mesh;

/* This machine's address for data. */
const char *ls_gloo_host(const ls_join *join);

/* Listens at the address of `join`; says in the card where. The socket is the caller's. */
ls_status ls_gloo_listen(const ls_join *join, ls_gloo_card *card, int *listener);

/*
 * Connects this rank with all others, at most within the join's timeout. LS_ERR_PEER: one is gone. LS_ERR_TIMEOUT: one
 * does not come.
 */
ls_status ls_gloo_meet(ls_gloo_mesh *mesh);

#endif
