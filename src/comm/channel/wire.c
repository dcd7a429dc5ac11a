#include "comm/channel/wire.h"

#include <stdlib.h>
#include <string.h>

#include <sodium.h>

_Static_assert(LS_WIRE_KEY_SIZE == crypto_aead_chacha20poly1305_ietf_KEYBYTES, "a key of the AEAD");
_Static_assert(LS_WIRE_TAG_SIZE == crypto_aead_chacha20poly1305_ietf_ABYTES, "a tag of the AEAD");

const char *const ls_wire_names[3] = {"plain", "authenticated", "encrypted"};

ls_status ls_wire_find_mode(ls_wire_mode *mode) {
    const char *const text = getenv("LOCKSTEP_WIRE");
    *mode = LS_WIRE_PLAIN;
    if (text == NULL || *text == '\0') {
        return LS_OK;
    }
    for (int i = LS_WIRE_PLAIN; i <= LS_WIRE_ENCRYPTED; i++) {
        if (strcmp(text, ls_wire_names[i]) == 0) {
            *mode = (ls_wire_mode)i;
            return LS_OK;
        }
    }
    return ls_fail(LS_ERR_ARGUMENT, "LOCKSTEP_WIRE is '%s', but must be plain, authenticated or encrypted", text);
}

static void write_length(size_t size, unsigned char *bytes) {
    for (int i = 0; i < LS_WIRE_LENGTH_SIZE; i++) {
        bytes[i] = (unsigned char)(size >> (8 * i));
    }
}

size_t ls_wire_frame_size(const unsigned char length[LS_WIRE_LENGTH_SIZE]) {
    size_t size = 0;
    for (int i = 0; i < LS_WIRE_LENGTH_SIZE; i++) {
        size |= (size_t)length[i] << (8 * i);
    }
    return size;
}

/* Computes the nonce of the next record. A key protects fewer than 2^64 records. */
static void next_nonce(ls_wire *wire, unsigned char nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES]) {
    const uint64_t number = wire->number++;
    memset(nonce, 0, crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
    memcpy(nonce, &number, sizeof number);
}

/* Returns the size of a record's additional data: the length, and also the frame unless it is encrypted. */
static size_t additional(const ls_wire *wire, size_t frame_size) {
    return LS_WIRE_LENGTH_SIZE + (wire->mode == LS_WIRE_ENCRYPTED ? 0 : frame_size);
}

size_t ls_wire_seal(ls_wire *wire, const void *header, size_t header_size, const void *data, size_t data_size,
                    unsigned char *record) {
    const size_t size = header_size + data_size, begin = additional(wire, size);
    unsigned char nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
    write_length(size, record);
    memcpy(record + LS_WIRE_LENGTH_SIZE, header, header_size);
    if (data_size > 0) {
        memcpy(record + LS_WIRE_LENGTH_SIZE + header_size, data, data_size);
    }
    next_nonce(wire, nonce);
    crypto_aead_chacha20poly1305_ietf_encrypt_detached(record + begin, record + LS_WIRE_LENGTH_SIZE + size, NULL,
                                                       record + begin, LS_WIRE_LENGTH_SIZE + size - begin, record,
                                                       begin, NULL, nonce, wire->key);
    return size + LS_WIRE_OVERHEAD;
}

bool ls_wire_open(ls_wire *wire, const unsigned char *record, size_t frame_size, unsigned char *frame) {
    const size_t begin = additional(wire, frame_size), secret = LS_WIRE_LENGTH_SIZE + frame_size - begin;
    unsigned char nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
    next_nonce(wire, nonce);
    if (crypto_aead_chacha20poly1305_ietf_decrypt_detached(secret > 0 ? frame : NULL, NULL, record + begin, secret,
                                                           record + LS_WIRE_LENGTH_SIZE + frame_size, record, begin,
                                                           nonce, wire->key) != 0) {
        return false;
    }
    if (secret == 0) {
        memcpy(frame, record + LS_WIRE_LENGTH_SIZE, frame_size);
    }
    return true;
}
