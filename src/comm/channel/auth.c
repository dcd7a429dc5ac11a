#include "comm/channel/auth.h"

#include <stdatomic.h>
#include <string.h>

#include <sodium.h>

#include "base/log.h"

_Static_assert(LS_PROOF_SIZE == crypto_auth_hmacsha512256_BYTES, "a proof is one HMAC-SHA-512/256");

enum { LEAST_SAFE = 16 };

/* Warns of a short key: a process that listens where a rank connects may test keys against the rank's proof for as
 * long as it likes. */
static void warn_of_short(size_t size) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told)) {
        ls_log_write(
            LS_LOG_WARNING,
            "the job's key (LOCKSTEP_KEY) has %zu byte%s and can be guessed: it needs at least %d bytes; create a "
            "key with head -c 32 /dev/urandom | base64, or use lockstep run, which creates one for each job",
            size, size == 1 ? "" : "s", LEAST_SAFE);
    }
}

ls_status ls_key_read(ls_key *key, const char *text) {
    const size_t size = text != NULL ? strlen(text) : 0;
    if (size > LS_KEY_CAPACITY) {
        return ls_fail(LS_ERR_ARGUMENT, "the job's key has %zu bytes, but at most %d are allowed", size,
                       LS_KEY_CAPACITY);
    }
    key->given = size > 0;
    key->size = size;
    if (size > 0) {
        memcpy(key->bytes, text, size);
    }
    if (size > 0 && size < LEAST_SAFE) {
        warn_of_short(size);
    }
    return LS_OK;
}

void ls_key_forget(ls_key *key) {
    sodium_memzero(key, sizeof *key);
}

static ls_status start_sodium(void) {
    return sodium_init() >= 0 ? LS_OK : ls_fail(LS_ERR_IO, "libsodium found no source of random numbers");
}

ls_status ls_key_make(char text[LS_KEY_TEXT_SIZE]) {
    unsigned char bytes[(LS_KEY_TEXT_SIZE - 1) / 2];
    LS_TRY(start_sodium());
    randombytes_buf(bytes, sizeof bytes);
    sodium_bin2hex(text, LS_KEY_TEXT_SIZE, bytes, sizeof bytes);
    sodium_memzero(bytes, sizeof bytes);
    return LS_OK;
}

ls_status ls_auth_nonce(uint8_t nonce[LS_NONCE_SIZE]) {
    LS_TRY(start_sodium());
    randombytes_buf(nonce, LS_NONCE_SIZE);
    return LS_OK;
}

void ls_auth_prove(const ls_key *key, const char *role, const uint8_t own[LS_NONCE_SIZE],
                   const uint8_t other[LS_NONCE_SIZE], uint8_t proof[LS_PROOF_SIZE]) {
    crypto_auth_hmacsha512256_state state;
    crypto_auth_hmacsha512256_init(&state, key->bytes, key->size);
    crypto_auth_hmacsha512256_update(&state, (const unsigned char *)"lockstep-1", 10);
    crypto_auth_hmacsha512256_update(&state, (const unsigned char *)role, strlen(role) + 1);
    crypto_auth_hmacsha512256_update(&state, own, LS_NONCE_SIZE);
    crypto_auth_hmacsha512256_update(&state, other, LS_NONCE_SIZE);
    crypto_auth_hmacsha512256_final(&state, proof);
    sodium_memzero(&state, sizeof state);
}

bool ls_auth_check(const ls_key *key, const char *role, const uint8_t own[LS_NONCE_SIZE],
                   const uint8_t other[LS_NONCE_SIZE], const uint8_t proof[LS_PROOF_SIZE]) {
    uint8_t expected[LS_PROOF_SIZE];
    ls_auth_prove(key, role, own, other, expected);
    const bool equal = sodium_memcmp(expected, proof, sizeof expected) == 0;
    sodium_memzero(expected, sizeof expected);
    return equal;
}
