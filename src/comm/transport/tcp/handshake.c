/*
 * Transport tcp: how two ranks get connected. Who connects is told a nonce, answers with its own and a proof, and is
 * told a proof and whether this is to be the connection of the two. Who listens decides, and only for ranks that have
 * proved themselves; who connects sends nothing before it knows.
 *
 * Where both connect at once, the lower rank accepts what comes and gives up its own attempt. The higher one accepts
 * too as long as it has not answered on its own connection; once it has, the other may have accepted that one, so it
 * yields, and the other tries again if it must.
 *
 * A proof is bound to both cards, both nonces and who makes it, so that it can be neither repeated nor reflected. Who
 * proves nothing is turned away without a word, and keeps nobody waiting.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/transport/tcp/link.h"

#define PAUSE_NS    UINT64_C(10000000)
#define FAILING_NS  UINT64_C(1000000000) /* attempts that fail for want of room there succeed within that */
#define UNPROVEN_NS UINT64_C(5000000000)

enum { ACCEPTS = LS_TCP_STRANGERS / 2 }; /* at once, so that one who answers promptly is not the oldest */

static const char *const CONNECTS = "connects", *const ACCEPTS_IT = "accepts", *const YIELDS = "yields";

/* ---- proofs --------------------------------------------------------------------------------------------------------
 */

/* The key of the two, and what a proof of `rank` says. */
static void prepare_proof(const ls_key *job, const ls_tcp_card *cards, const char *word, int rank, int other,
                          ls_key *key, char role[64]) {
    const int low = rank < other ? rank : other;
    const int high = rank < other ? other : rank;
    char purpose[64];
    snprintf(purpose, sizeof purpose, "tcp transport %d %d", low, high);
    _Static_assert((int)LS_PROOF_SIZE <= (int)LS_KEY_CAPACITY, "a proof makes a key");
    key->size = LS_PROOF_SIZE;
    ls_auth_prove(job, purpose, cards[low].secret, cards[high].secret, key->bytes);
    snprintf(role, 64, "rank %d %s", rank, word);
}

void ls_tcp_prove(const ls_key *job, const ls_tcp_card *cards, const char *word, int rank, int other,
                  const uint8_t own[LS_NONCE_SIZE], const uint8_t others[LS_NONCE_SIZE], uint8_t proof[LS_PROOF_SIZE]) {
    ls_key key;
    char role[64];
    prepare_proof(job, cards, word, rank, other, &key, role);
    ls_auth_prove(&key, role, own, others, proof);
    ls_key_forget(&key);
}

/* Whether the proof is one of `rank` to this rank. */
static bool check_proof(const ls_tcp *tcp, const char *word, int rank, const uint8_t *theirs, const uint8_t *own,
                        const uint8_t *proof) {
    ls_key key;
    char role[64];
    prepare_proof(&tcp->key, tcp->cards, word, rank, tcp->endpoint.rank, &key, role);
    const bool good = ls_auth_check(&key, role, theirs, own, proof);
    ls_key_forget(&key);
    return good;
}

/* ---- who connects --------------------------------------------------------------------------------------------------
 */

static void set_stage(ls_tcp *tcp, ls_tcp_peer *peer, ls_tcp_stage stage) {
    tcp->paused += (stage == LS_TCP_PAUSED) - (peer->stage == LS_TCP_PAUSED);
    peer->stage = stage;
}

static void close_attempt(ls_tcp_peer *peer) {
    if (peer->socket >= 0) {
        close(peer->socket);
        peer->socket = -1;
    }
    peer->got = 0;
}

static void try_again(ls_tcp *tcp, ls_tcp_peer *peer) {
    close_attempt(peer);
    peer->again_ns = tcp->awake_ns + PAUSE_NS;
    set_stage(tcp, peer, LS_TCP_PAUSED);
}

/* An attempt ended, which may be for want of room there: if the rank is alive it still listens. */
static ls_status fail_attempt(ls_tcp *tcp, int rank, int error) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    if (peer->failing_ns == 0) {
        peer->failing_ns = tcp->awake_ns + 1;
    }
    if (error == ECONNREFUSED || tcp->awake_ns > peer->failing_ns + FAILING_NS) {
        return ls_tcp_lose(tcp, rank);
    }
    try_again(tcp, peer);
    return LS_OK;
}

static void set_up(int socket) {
    const int yes = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); /* only speed depends on it */
}

static ls_status begin_attempt(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    const ls_tcp_card *card = &tcp->cards[rank];
    const int fd = socket(card->address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return ls_fail(LS_ERR_IO, "no socket for the connection to rank %d: %s", rank, strerror(errno));
    }
    set_up(fd);
    peer->socket = fd;
    peer->got = 0;
    if (connect(fd, &card->address.any, card->length) != 0 && errno != EINPROGRESS && errno != EINTR) {
        return fail_attempt(tcp, rank, errno);
    }
    set_stage(tcp, peer, LS_TCP_ASKED); /* reading tells when it is connected, or why not */
    return ls_tcp_watch(tcp, fd, (uint64_t)rank, false);
}

ls_status ls_tcp_connect(ls_tcp *tcp, int rank) {
    return tcp->peers[rank].stage == LS_TCP_APART ? begin_attempt(tcp, rank) : LS_OK;
}

/* The connection of the two. */
static ls_status make_ready(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    peer->buffer = ls_allocate(LS_TCP_BUFFER);
    if (peer->buffer == NULL) {
        return ls_fail_memory("a connection", LS_TCP_BUFFER);
    }
    set_stage(tcp, peer, LS_TCP_READY);
    ls_tcp_flush(tcp, rank);
    return LS_OK;
}

static ls_status answer(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    ls_tcp_challenge challenge;
    ls_tcp_answer answer = {.greeting = LS_TCP_GREETING, .rank = tcp->endpoint.rank, .size = tcp->endpoint.size};
    memcpy(&challenge, peer->heard, sizeof challenge);
    if (memcmp(challenge.greeting, LS_TCP_GREETING, sizeof challenge.greeting) != 0) {
        return fail_attempt(tcp, rank, EPROTO);
    }
    LS_TRY(ls_auth_nonce(peer->nonce));
    memcpy(peer->challenge, challenge.nonce, sizeof peer->challenge);
    memcpy(answer.nonce, peer->nonce, sizeof answer.nonce);
    ls_tcp_prove(&tcp->key, tcp->cards, CONNECTS, tcp->endpoint.rank, rank, peer->nonce, peer->challenge, answer.proof);
    if (send(peer->socket, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer) {
        return fail_attempt(tcp, rank, EPIPE);
    }
    set_stage(tcp, peer, LS_TCP_ANSWERED);
    return LS_OK;
}

static ls_status conclude(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    if (check_proof(tcp, ACCEPTS_IT, rank, peer->challenge, peer->nonce, peer->heard)) {
        return make_ready(tcp, rank);
    }
    if (check_proof(tcp, YIELDS, rank, peer->challenge, peer->nonce, peer->heard)) {
        peer->failing_ns = 0;
        try_again(tcp, peer);
        return LS_OK;
    }
    return fail_attempt(tcp, rank, EPROTO); /* somebody else listens there now */
}

ls_status ls_tcp_hear(ls_tcp *tcp, int rank) {
    ls_tcp_peer *peer = &tcp->peers[rank];
    const size_t size = peer->stage == LS_TCP_ASKED ? sizeof(ls_tcp_challenge) : LS_PROOF_SIZE;
    const ssize_t step = recv(peer->socket, peer->heard + peer->got, size - peer->got, MSG_DONTWAIT);
    if (step < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return LS_OK;
    }
    if (step <= 0) {
        return fail_attempt(tcp, rank, step < 0 ? errno : 0);
    }
    peer->got += (size_t)step;
    if (peer->got < size) {
        return LS_OK;
    }
    peer->got = 0;
    return peer->stage == LS_TCP_ASKED ? answer(tcp, rank) : conclude(tcp, rank);
}

/* ---- who listens ---------------------------------------------------------------------------------------------------
 */

void ls_tcp_turn_away(ls_tcp *tcp, ls_tcp_stranger *stranger) {
    close(stranger->socket);
    stranger->socket = -1;
    tcp->stranger_count--;
}

/* Room for one more: where there is none, the one who came first loses it; a rank then comes again. */
static ls_tcp_stranger *find_room(ls_tcp *tcp) {
    ls_tcp_stranger *oldest = &tcp->strangers[0];
    for (int i = 0; i < LS_TCP_STRANGERS; i++) {
        ls_tcp_stranger *stranger = &tcp->strangers[i];
        if (stranger->socket < 0) {
            return stranger;
        }
        oldest = stranger->until_ns < oldest->until_ns ? stranger : oldest;
    }
    ls_tcp_turn_away(tcp, oldest);
    return oldest;
}

static ls_status challenge(ls_tcp *tcp, int socket) {
    ls_tcp_challenge challenge = {.greeting = LS_TCP_GREETING};
    ls_tcp_stranger *stranger = find_room(tcp);
    *stranger = (ls_tcp_stranger){.socket = socket, .until_ns = tcp->awake_ns + UNPROVEN_NS};
    tcp->stranger_count++;
    set_up(socket);
    ls_status status = ls_auth_nonce(stranger->nonce);
    if (status == LS_OK) {
        status = ls_tcp_watch(tcp, socket, (uint64_t)(tcp->endpoint.size + (stranger - tcp->strangers)), false);
    }
    memcpy(challenge.nonce, stranger->nonce, sizeof challenge.nonce);
    if (status != LS_OK || send(socket, &challenge, sizeof challenge, MSG_NOSIGNAL) != sizeof challenge) {
        ls_tcp_turn_away(tcp, stranger);
    }
    return status;
}

ls_status ls_tcp_accept(ls_tcp *tcp) {
    for (int i = 0; i < ACCEPTS; i++) {
        const int fd = accept4(tcp->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            LS_TRY(challenge(tcp, fd));
        } else if (errno == EMFILE || errno == ENFILE) {
            return ls_fail(LS_ERR_IO, "no socket for a connection from another rank: %s", strerror(errno));
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return LS_OK;
        }
    }
    return LS_OK;
}

/* Whether the answer is one of a rank that may be connected. */
static bool is_known(const ls_tcp *tcp, const ls_tcp_stranger *stranger) {
    const ls_tcp_answer *answer = &stranger->answer;
    if (memcmp(answer->greeting, LS_TCP_GREETING, sizeof answer->greeting) != 0 || answer->size != tcp->endpoint.size ||
        answer->rank < 0 || answer->rank >= tcp->endpoint.size || answer->rank == tcp->endpoint.rank) {
        return false;
    }
    const ls_tcp_stage stage = tcp->peers[answer->rank].stage;
    return stage != LS_TCP_READY && stage != LS_TCP_GONE &&
           check_proof(tcp, CONNECTS, answer->rank, answer->nonce, stranger->nonce, answer->proof);
}

static ls_status admit(ls_tcp *tcp, ls_tcp_stranger *stranger) {
    const int rank = stranger->answer.rank;
    ls_tcp_peer *peer = &tcp->peers[rank];
    uint8_t proof[LS_PROOF_SIZE];
    const bool yields = peer->stage == LS_TCP_ANSWERED && tcp->endpoint.rank > rank;
    ls_tcp_prove(&tcp->key, tcp->cards, yields ? YIELDS : ACCEPTS_IT, tcp->endpoint.rank, rank, stranger->nonce,
                 stranger->answer.nonce, proof);
    if (send(stranger->socket, proof, sizeof proof, MSG_NOSIGNAL) != sizeof proof || yields) {
        ls_tcp_turn_away(tcp, stranger);
        return LS_OK;
    }
    close_attempt(peer);
    peer->socket = stranger->socket;
    stranger->socket = -1;
    tcp->stranger_count--;
    LS_TRY(ls_tcp_watch(tcp, peer->socket, (uint64_t)rank, true));
    return make_ready(tcp, rank);
}

ls_status ls_tcp_hear_stranger(ls_tcp *tcp, ls_tcp_stranger *stranger) {
    const ssize_t step = recv(stranger->socket, (char *)&stranger->answer + stranger->got,
                              sizeof stranger->answer - stranger->got, MSG_DONTWAIT);
    if (step < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return LS_OK;
    }
    stranger->got += step > 0 ? (size_t)step : 0;
    if (step > 0 && stranger->got < sizeof stranger->answer) {
        return LS_OK;
    }
    if (step > 0 && is_known(tcp, stranger)) {
        return admit(tcp, stranger);
    }
    ls_tcp_turn_away(tcp, stranger);
    return LS_OK;
}

/* ---- what is due ---------------------------------------------------------------------------------------------------
 */

ls_status ls_tcp_tend(ls_tcp *tcp) {
    for (int i = 0; i < LS_TCP_STRANGERS && tcp->stranger_count > 0; i++) {
        ls_tcp_stranger *stranger = &tcp->strangers[i];
        if (stranger->socket >= 0 && tcp->awake_ns > stranger->until_ns) {
            ls_tcp_turn_away(tcp, stranger);
        }
    }
    for (int rank = 0; rank < tcp->endpoint.size && tcp->paused > 0; rank++) {
        if (tcp->peers[rank].stage == LS_TCP_PAUSED && tcp->awake_ns >= tcp->peers[rank].again_ns) {
            LS_TRY(begin_attempt(tcp, rank));
        }
    }
    return LS_OK;
}
