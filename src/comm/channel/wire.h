/*
 * Protection of frames between machines (LOCKSTEP_WIRE). Each frame becomes a record: its length, the frame, and a tag.
 * The modes are:
 *
 * - plain: no records; frames are sent as they are
 * - authenticated: the tag covers length and frame, so a changed, repeated, lost or reordered record is detected
 * - encrypted: the same, and the frame cannot be read
 *
 * Records use the AEAD ChaCha20-Poly1305 (RFC 8439, libsodium) with the record's number as the nonce. Each direction of
 * each connection has its own key, derived from the job's key, the secrets of both ranks' peer information and a fresh
 * nonce. For authenticated records, the whole record is additional data of the AEAD, and the message is empty.
 */
#ifndef LS_COMM_CHANNEL_WIRE_H
#define LS_COMM_CHANNEL_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    LS_WIRE_KEY_SIZE = 32,
    LS_WIRE_LENGTH_SIZE = 4,
    LS_WIRE_TAG_SIZE = 16,
    LS_WIRE_OVERHEAD = LS_WIRE_LENGTH_SIZE + LS_WIRE_TAG_SIZE
};

typedef enum ls_wire_mode { LS_WIRE_PLAIN, LS_WIRE_AUTHENTICATED, LS_WIRE_ENCRYPTED } ls_wire_mode;

/* The names of the modes, in the order of ls_wire_mode. */
extern const char *const ls_wire_names[3];

/* The protection state of one direction of a connection. */
typedef struct ls_wire {
    ls_wire_mode mode;
    uint64_t number; /* records so far */
    uint8_t key[LS_WIRE_KEY_SIZE];
} ls_wire;

/* Reads the mode from LOCKSTEP_WIRE; unset or empty selects LS_WIRE_PLAIN. Fails with LS_ERR_ARGUMENT if the value
 * is not a mode. */
ls_status ls_wire_find_mode(ls_wire_mode *mode);

/*
 * Makes the next record from a header and data. The record is LS_WIRE_OVERHEAD bytes longer than both together. Returns
 * its size.
 */
size_t ls_wire_seal(ls_wire *wire, const void *header, size_t header_size, const void *data, size_t data_size,
                    unsigned char *record);

/* Returns the size in bytes of the frame in a record that begins with this length. Does not check the length. */
size_t ls_wire_frame_size(const unsigned char length[LS_WIRE_LENGTH_SIZE]);

/*
 * Checks the next record, of frame_size + LS_WIRE_OVERHEAD bytes, and copies its frame. Returns false, without copying,
 * if it is not the next record that the sender made.
 */
bool ls_wire_open(ls_wire *wire, const unsigned char *record, size_t frame_size, unsigned char *frame);

#endif
