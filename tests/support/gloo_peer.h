/* A test that is rank 1 of two of backend gloo itself: it joins as a rank does, and then sends what it likes. */
#ifndef LS_TESTS_SUPPORT_GLOO_PEER_H
#define LS_TESTS_SUPPORT_GLOO_PEER_H

#include "comm/backend/gloo/gloo.h"
#include "comm/store.h"
#include "tests/support/forks.h"

#define GLOO_PEER_TIMEOUT 60.0 /* of its calls on the store; no test waits for it */

/* What rank 0 and it say of themselves, and the key that follows from that. */
typedef struct gloo_peer {
    ls_store *store;
    ls_gloo_card card;
    ls_key key;
    int socket; /* connected with rank 0 */
    ls_gloo_challenge challenge;
} gloo_peer;

/* An operation on the wire: what Gloo puts before each (Op in its transport/tcp/pair.h), and one of our packets. */
typedef struct gloo_operation {
    struct {
        size_t bytes, code, slot, offset, length, there;
    } before;
    ls_gloo_packet packet;
} gloo_operation;

/* Of one without data. */
#define GLOO_OPERATION_HEADER (offsetof(gloo_operation, packet) + LS_GLOO_HEADER)

/* The store of these ranks, and what rank 0 says of itself there. */
ls_store *gloo_peer_store(const ls_forks *forks);
ls_gloo_card gloo_peer_card(ls_store *store);

/* Connects to rank 0; hears what it says first; answers. */
int gloo_peer_connect(const ls_gloo_card *card);
ls_gloo_challenge gloo_peer_hear(int socket);
void gloo_peer_tell(int socket, const ls_gloo_answer *answer);

/* Connects as rank 1. Then the right answer, and joining with it. */
gloo_peer gloo_peer_begin(const ls_forks *forks);
ls_gloo_answer gloo_peer_answer(const gloo_peer *peer);
void gloo_peer_get_in(const gloo_peer *peer, const ls_gloo_answer *answer);

/* All of that: a peer that has joined. And its end. */
gloo_peer gloo_peer_join(const ls_forks *forks);
void gloo_peer_end(gloo_peer *peer);

/* Sends an operation of `before.bytes` bytes. */
void gloo_peer_send(int socket, const gloo_operation *operation);

#endif
