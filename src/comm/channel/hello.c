#include "comm/channel/hello.h"

#include <string.h>

static const char magic[8] = {'L', 'O', 'C', 'K', 'S', 'T', 'E', 'P'};

enum { FORMAT_VERSION = 2 };

ls_status ls_hello_make(ls_hello *hello, bool keyed) {
    *hello = (ls_hello){.keyed = keyed};
    ls_build_write(hello->build);
    return ls_auth_nonce(hello->nonce);
}

void ls_hello_prove(ls_hello *hello, const ls_key *key, const char *role, const uint8_t nonce[LS_NONCE_SIZE]) {
    ls_auth_prove(key, role, hello->nonce, nonce, hello->proof);
}

bool ls_hello_is_proven(const ls_hello *hello, const ls_key *key, const char *role,
                        const uint8_t nonce[LS_NONCE_SIZE]) {
    return ls_auth_check(key, role, hello->nonce, nonce, hello->proof);
}

ls_status ls_hello_check_build(const ls_hello *hello, const char *sender) {
    char own[LS_BUILD_CAPACITY];
    ls_build_write(own);
    return strcmp(hello->build, own) == 0
               ? LS_OK
               : ls_fail(LS_ERR_MISMATCH,
                         "%s runs Lockstep %s, but the process that it connects to runs Lockstep %s: run the same "
                         "build of Lockstep on all ranks",
                         sender, hello->build, own);
}

/* ---- bytes: magic, version (2 bytes), keyed (2), zeros (4), build, nonce, proof; numbers are little-endian ------- */

void ls_hello_encode(const ls_hello *hello, bool with_proof, uint8_t *bytes) {
    memset(bytes, 0, LS_HELLO_SIZE);
    memcpy(bytes, magic, sizeof magic);
    bytes[8] = FORMAT_VERSION;
    bytes[10] = hello->keyed;
    memcpy(bytes + 16, hello->build, strnlen(hello->build, sizeof hello->build - 1));
    memcpy(bytes + 16 + LS_BUILD_CAPACITY, hello->nonce, LS_NONCE_SIZE);
    if (with_proof) {
        memcpy(bytes + LS_HELLO_SIZE, hello->proof, LS_PROOF_SIZE);
    }
}

/* Returns true if the bytes are printable text that ends before the last byte and is followed by zeros only. */
static bool is_text(const uint8_t bytes[LS_BUILD_CAPACITY]) {
    bool ended = false;
    for (int i = 0; i < LS_BUILD_CAPACITY; i++) {
        if (bytes[i] != 0 && (ended || bytes[i] < ' ' || bytes[i] > '~')) {
            return false;
        }
        ended = ended || bytes[i] == 0;
    }
    return ended;
}

ls_status ls_hello_decode(const uint8_t *bytes, bool with_proof, ls_hello *hello) {
    if (memcmp(bytes, magic, sizeof magic) != 0) {
        return ls_fail(LS_ERR_FORMAT, "the other side does not speak Lockstep's protocol");
    }
    const int version = bytes[8] | bytes[9] << 8;
    if (version != FORMAT_VERSION) {
        return ls_fail(
            LS_ERR_MISMATCH,
            "the other side speaks version %d of Lockstep's protocol, and this side version %d: run the same "
            "build of Lockstep on all ranks",
            version, FORMAT_VERSION);
    }
    static const uint8_t zeros[5];
    if (bytes[10] > 1 || memcmp(bytes + 11, zeros, sizeof zeros) != 0 || !is_text(bytes + 16)) {
        return ls_fail(LS_ERR_FORMAT, "a hello of Lockstep's protocol is damaged");
    }
    *hello = (ls_hello){.keyed = bytes[10] == 1};
    memcpy(hello->build, bytes + 16, LS_BUILD_CAPACITY);
    memcpy(hello->nonce, bytes + 16 + LS_BUILD_CAPACITY, LS_NONCE_SIZE);
    if (with_proof) {
        memcpy(hello->proof, bytes + LS_HELLO_SIZE, LS_PROOF_SIZE);
    }
    return LS_OK;
}
