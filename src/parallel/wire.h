/*
 * Wire formats: how elements are encoded for an all-reduce. A packet is one all-reduce of elements that may lie in
 * several pieces. The wire formats are defined in wire.c.
 */
#ifndef LS_PARALLEL_WIRE_H
#define LS_PARALLEL_WIRE_H

#include <stdatomic.h>

#include <lockstep/parallel.h>

#include "comm/device_buffers.h"
#include "tensor/device.h"

/* Elements in a single block of device memory. */
typedef struct ls_wire_piece {
    ls_storage *storage; /* borrowed */
    int64_t offset;      /* elements */
    int64_t count;
} ls_wire_piece;

typedef struct ls_wire_packet ls_wire_packet;

struct ls_wire_format {
    const char *name;
    bool converts;  /* elements on the wire have the dtype `dtype`, not the dtype of the pieces */
    ls_dtype dtype; /* if `converts` */
    /* `encode` writes the pieces to the buffer, and `decode` writes the buffer to the pieces. */
    ls_status (*encode)(const ls_wire_packet *packet);
    ls_status (*decode)(const ls_wire_packet *packet);
    /* Functions of a user-defined format, which may fail on a single rank; NULL for built-in formats. */
    const ls_wire_functions *functions;
    void *user;
    atomic_int references;
    bool freed; /* the program has called ls_wire_format_free; modules may still hold references */
};

struct ls_wire_packet {
    const ls_wire_format *format;
    const ls_device *device;     /* of the pieces */
    ls_dtype dtype;              /* of the pieces */
    const ls_wire_piece *pieces; /* in descending order of address if they overlap with the buffer */
    int piece_count;
    int64_t total; /* elements of the pieces */
    ls_reduction reduction;
    int64_t extra; /* elements after the pieces in the buffer; the packet's owner writes and reads them */
    bool in_place; /* the buffer is on `device`, whose memory the communicator accepts; otherwise it is on the host */
    /*
     * The encoded pieces, starting with the last piece. May overlap with the pieces if encoding moves no element to a
     * lower address.
     */
    char *buffer;
    ls_wire_piece converted; /* for formats that convert: the encoded pieces on `device` */
    int rank;                /* this rank, for messages; set by ls_packet_encode */
    ls_work *work;           /* the started all-reduce; NULL if it has finished */
};

extern const ls_wire_format ls_wire_plain;

/* Returns the format that sends f32 elements as `dtype`, or NULL if there is none. */
const ls_wire_format *ls_wire_of(ls_dtype dtype);

static inline ls_dtype ls_packet_dtype(const ls_wire_packet *packet) {
    return packet->format->converts ? packet->format->dtype : packet->dtype;
}

/* Add and drop a reference to a user-defined format. NULL is allowed. */
ls_wire_format *ls_wire_format_hold(ls_wire_format *format);
void ls_wire_format_drop(ls_wire_format *format);

/*
 * Encodes the pieces and starts their all-reduce, even if the encoding fails, because the other ranks wait for it.
 * Returns the first error. With `wait`, also waits for the all-reduce. Collective.
 */
ls_status ls_packet_start(ls_wire_packet *packet, ls_comm *comm, bool wait);

/* The two parts of ls_packet_start. ls_packet_send does not encode, and so it is allowed after a failed encoding. */
ls_status ls_packet_encode(ls_wire_packet *packet, const ls_comm *comm);
ls_status ls_packet_send(ls_wire_packet *packet, ls_comm *comm, bool wait);

#endif
