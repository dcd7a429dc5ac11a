/*
 * The key of a job, and the proof of knowing it: only processes that know the key can join. A proof is an
 * HMAC-SHA-512/256 (libsodium) over a nonce from each side and the sender's role, so a proof can be neither replayed
 * nor reflected. The key itself is never sent or printed.
 */
#ifndef LS_COMM_CHANNEL_AUTH_H
#define LS_COMM_CHANNEL_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define LS_NONCE_SIZE    32
#define LS_PROOF_SIZE    32
#define LS_KEY_CAPACITY  256
#define LS_KEY_TEXT_SIZE 65 /* size of the text written by ls_key_make, including its NUL */

/* A job's key; size 0 if the job has no key. */
typedef struct ls_key {
    bool given; /* given by the user or a launcher, not found automatically (user_key.h) */
    size_t size;
    unsigned char bytes[LS_KEY_CAPACITY];
} ls_key;

/* Reads the key from `text`; NULL and "" mean that there is no key. Fails with LS_ERR_ARGUMENT if the key is longer
 * than 256 bytes. The first short key in a process causes a warning that it can be guessed. */
ls_status ls_key_read(ls_key *key, const char *text);

/* Wipes it. */
void ls_key_forget(ls_key *key);

/* Creates a random key, written as 64 hexadecimal digits. */
ls_status ls_key_make(char text[LS_KEY_TEXT_SIZE]);

/* A fresh random nonce. */
ls_status ls_auth_nonce(uint8_t nonce[LS_NONCE_SIZE]);

/* Computes the proof that a process in the role `role` ("server", "client", ...) knows the key. The proof is bound
 * to both nonces. */
void ls_auth_prove(const ls_key *key, const char *role, const uint8_t own[LS_NONCE_SIZE],
                   const uint8_t other[LS_NONCE_SIZE], uint8_t proof[LS_PROOF_SIZE]);

/* Returns true if `proof` is the proof that ls_auth_prove computes from the same arguments. Takes constant time for
 * all wrong proofs. */
bool ls_auth_check(const ls_key *key, const char *role, const uint8_t own[LS_NONCE_SIZE],
                   const uint8_t other[LS_NONCE_SIZE], const uint8_t proof[LS_PROOF_SIZE]);

#endif
