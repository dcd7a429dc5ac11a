/*
 * The hello with which two processes of a job begin every connection, and its proof of the job's key. Used by the store
 * and the launchers (store_greeting.h, store_admission.h), the sockets of transport/tcp, the local sockets of
 * backend/shm and libgloo's connections. Does not send or receive anything itself.
 *
 * A proof covers a role, the nonce in the sender's own hello, and a nonce of the receiver. The receiver's nonce is
 * either in the hello that the receiver has already sent, or in the peer information by which the sender knows the
 * receiver. The first case is a handshake in both directions. The second case costs no round trip, but only the
 * receiver gets a proof.
 *
 * The first ten bytes of a hello are the same in every version of Lockstep.
 */
#ifndef LS_COMM_CHANNEL_HELLO_H
#define LS_COMM_CHANNEL_HELLO_H

#include "comm/channel/auth.h"
#include "comm/channel/build.h"

enum {
    LS_HELLO_SIZE = 16 + LS_BUILD_CAPACITY + LS_NONCE_SIZE, /* size in bytes of a hello without a proof, */
    LS_PROVEN_HELLO_SIZE = LS_HELLO_SIZE + LS_PROOF_SIZE    /* and with a proof */
};

typedef struct ls_hello {
    bool keyed;                    /* this side was given a key; used only for a clear error message */
    char build[LS_BUILD_CAPACITY]; /* printable text */
    uint8_t nonce[LS_NONCE_SIZE];
    uint8_t proof[LS_PROOF_SIZE]; /* unused in a hello without a proof */
} ls_hello;

/* Makes a hello of this process, with a new nonce and without a proof. Fails with LS_ERR_IO if no random numbers are
 * available. */
ls_status ls_hello_make(ls_hello *hello, bool keyed);

/* Adds the proof that the sender, in this role, knows the key. `nonce` is the receiver's nonce. */
void ls_hello_prove(ls_hello *hello, const ls_key *key, const char *role, const uint8_t nonce[LS_NONCE_SIZE]);

/* Returns true if a received hello contains the proof that ls_hello_prove would add. */
bool ls_hello_is_proven(const ls_hello *hello, const ls_key *key, const char *role, const uint8_t nonce[LS_NONCE_SIZE]);

/* Fails with LS_ERR_MISMATCH if the sender of a hello, for example "rank 3", runs a different version of Lockstep or
 * has a different shared-memory layout. The message contains both builds. */
ls_status ls_hello_check_build(const ls_hello *hello, const char *sender);

/* Writes LS_PROVEN_HELLO_SIZE bytes, or LS_HELLO_SIZE bytes without the proof. */
void ls_hello_encode(const ls_hello *hello, bool with_proof, uint8_t *bytes);

/* Returns the nonce in an encoded hello. */
static inline const uint8_t *ls_hello_nonce(const uint8_t bytes[LS_HELLO_SIZE]) {
    return bytes + LS_HELLO_SIZE - LS_NONCE_SIZE;
}

/* Decodes a hello of one of these sizes. Fails with LS_ERR_FORMAT if the bytes are not a hello, and with
 * LS_ERR_MISMATCH if their format belongs to a different version. */
ls_status ls_hello_decode(const uint8_t *bytes, bool with_proof, ls_hello *hello);

#endif
