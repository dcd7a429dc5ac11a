#include "tests/support/gloo_peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/unit.h"

ls_store *gloo_peer_store(const ls_forks *forks) {
    char url[128];
    snprintf(url, sizeof url, "file://%s", forks->folder);
    ls_store *store = ls_store_open(url, &(ls_store_options){.timeout = GLOO_PEER_TIMEOUT});
    assert_non_null(store);
    return store;
}

ls_gloo_card gloo_peer_card(ls_store *store) {
    ls_gloo_card card;
    size_t size = 0;
    assert_int_equal(ls_store_get(store, "test/gloo/0", &card, sizeof card, &size), LS_OK);
    assert_int_equal(size, sizeof card);
    return card;
}

int gloo_peer_connect(const ls_gloo_card *card) {
    const int made = socket(card->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(made, (const struct sockaddr *)&card->address, card->length), 0);
    return made;
}

ls_gloo_challenge gloo_peer_hear(int socket) {
    ls_gloo_challenge challenge;
    assert_int_equal(recv(socket, &challenge, sizeof challenge, MSG_WAITALL), sizeof challenge);
    return challenge;
}

void gloo_peer_tell(int socket, const ls_gloo_answer *answer) {
    assert_int_equal(send(socket, answer, sizeof *answer, MSG_NOSIGNAL), sizeof *answer);
}

gloo_peer gloo_peer_begin(const ls_forks *forks) {
    gloo_peer peer = {.store = gloo_peer_store(forks)};
    peer.card = gloo_peer_card(peer.store);
    ls_gloo_card own = peer.card;
    assert_int_equal(ls_auth_nonce(own.secret), LS_OK);
    assert_int_equal(ls_store_set(peer.store, "test/gloo/1", &own, sizeof own), LS_OK);
    peer.socket = gloo_peer_connect(&peer.card);
    peer.challenge = gloo_peer_hear(peer.socket);
    ls_store_derive_key(peer.store, "gloo test/ 0 1", peer.card.secret, own.secret, &peer.key);
    return peer;
}

ls_gloo_answer gloo_peer_answer(const gloo_peer *peer) {
    ls_gloo_answer answer = {.greeting = LS_GLOO_GREETING, .rank = 1, .size = 2};
    ls_auth_prove(&peer->key, "connects", answer.nonce, peer->challenge.nonce, answer.proof);
    return answer;
}

void gloo_peer_get_in(const gloo_peer *peer, const ls_gloo_answer *answer) {
    uint8_t proof[LS_PROOF_SIZE];
    gloo_peer_tell(peer->socket, answer);
    assert_int_equal(recv(peer->socket, proof, sizeof proof, MSG_WAITALL), sizeof proof);
    assert_true(ls_auth_check(&peer->key, "listens", peer->challenge.nonce, answer->nonce, proof));
}

gloo_peer gloo_peer_join(const ls_forks *forks) {
    const gloo_peer peer = gloo_peer_begin(forks);
    const ls_gloo_answer answer = gloo_peer_answer(&peer);
    gloo_peer_get_in(&peer, &answer);
    return peer;
}

void gloo_peer_end(gloo_peer *peer) {
    close(peer->socket);
    ls_store_close(peer->store);
}

void gloo_peer_send(int socket, const gloo_operation *operation) {
    assert_int_equal(send(socket, operation, operation->before.bytes, MSG_NOSIGNAL), operation->before.bytes);
}
