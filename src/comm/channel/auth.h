/*
 * The key of a job, and the proof of it: only processes that know the key can join. A proof is an HMAC-SHA-512/256
 * (libsodium) over a nonce of each side and the role of the sender, so that a proof can be neither replayed nor
 * reflected. The key itself is never sent and never printed.
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
#define LS_KEY_TEXT_SIZE 65 /* what ls_key_make writes, with its NUL */

/* A job's key; size 0 is a job without one. */
typedef struct ls_key {
    bool given; /* by the user or a launcher, not found by itself (user_key.h) */
    size_t size;
    unsigned char bytes[LS_KEY_CAPACITY];
} ls_key;

/* Takes the key from `text`; NULL and "" are no key. LS_ERR_ARGUMENT when it is longer than 256 bytes. A warning, the
 * first time in a process, says that a short one can be guessed. */
ls_status ls_key_read(ls_key *key, const char *text);

/* Wipes it. */
void ls_key_forget(ls_key *key);

/* A fresh random key as 64 hexadecimal digits. */
ls_status ls_key_make(char text[LS_KEY_TEXT_SIZE]);

/* A fresh random nonce. */
ls_status ls_auth_nonce(uint8_t nonce[LS_NONCE_SIZE]);

/* The proof that whoever plays `role` ("server", "client", ...) knows the key, bound to both nonces. */
void ls_auth_prove(const ls_key *key, const char *role, const uint8_t own[LS_NONCE_SIZE],
                   const uint8_t other[LS_NONCE_SIZE], uint8_t proof[LS_PROOF_SIZE]);

/* Whether `proof` is the one ls_auth_prove makes of the same arguments; takes the same time for every wrong one. */
bool ls_auth_check(const ls_key *key, const char *role, const uint8_t own[LS_NONCE_SIZE],
                   const uint8_t other[LS_NONCE_SIZE], const uint8_t proof[LS_PROOF_SIZE]);

#endif
