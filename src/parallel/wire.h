/*
 * Wire formats: how elements are encoded for an all-reduce. A packet is one all-reduce of elements that may lie in
 * several pieces. A wire format is one row in wire.c.
 */
#ifndef LS_PARALLEL_WIRE_H
#define LS_PARALLEL_WIRE_H

#include <stdatomic.h>

#include <lockstep/parallel.h>

#include "comm/device_buffers.h"
#include "tensor/device.h"

/* Elements in one block of device memory. */
typedef struct ls_wire_piece {
    ls_storage *storage; /* borrowed */
    int64_t offset;      /* elements */
    int64_t count;
} ls_wire_piece;

typedef struct ls_wire_packet ls_wire_packet;

struct ls_wire_format {
    const char *name;
    bool converts;  /* the elements on the wire have the dtype `dtype`, not the pieces' own */
    ls_dtype dtype; /* if `converts` */
    /* Writes the pieces to the buffer, or the buffer to the pieces. */
    ls_status (*encode)(const ls_wire_packet *packet);
    ls_status (*decode)(const ls_wire_packet *packet);
    /* Of a format of the program, which may fail on one rank; NULL for the others. */
    const ls_wire_functions *functions;
    void *user;
    atomic_int references;
};

struct ls_wire_packet {
    const ls_wire_format *format;
    const ls_device *device;     /* of the pieces */
    ls_dtype dtype;              /* of the pieces */
    const ls_wire_piece *pieces; /* from the highest address to the lowest if they overlap with the buffer */
    int piece_count;
    int64_t total; /* elements of the pieces */
    ls_reduction reduction;
    int64_t extra; /* elements after the pieces in the buffer, which the owner writes and reads */
    bool in_place; /* the buffer is on `device`, whose memory the communicator accepts; otherwise on the host */
    /*
     * The encoded pieces, the last piece first. It may overlap with the pieces, if no element moves to a lower address
     * by encoding.
     */
    char *buffer;
    ls_wire_piece converted; /* for formats that convert: the encoded pieces on `device`; the buffer, or its source */
    int rank;                /* this rank, for messages; set by ls_packet_start */
    ls_work *work;           /* of the started all-reduce; NULL if it has ended */
};

extern const ls_wire_format ls_wire_plain, ls_wire_bf16, ls_wire_f16;

/* Returns the format that sends f32 elements as `dtype`; NULL for another dtype. */
const ls_wire_format *ls_wire_of(ls_dtype dtype);

static inline ls_dtype ls_packet_dtype(const ls_wire_packet *packet) {
    return packet->format->converts ? packet->format->dtype : packet->dtype;
}

/* References to a format of the program. NULL is allowed. */
ls_wire_format *ls_wire_format_hold(ls_wire_format *format);

/*
 * Encodes the pieces and starts their all-reduce, also if encoding fails, because the other ranks wait for it. Returns
 * the first error. `wait`: also waits for the all-reduce. A collective call.
 */
ls_status ls_packet_start(ls_wire_packet *packet, ls_comm *comm, bool wait);

/* Waits for the all-reduce. */
ls_status ls_packet_wait(ls_wire_packet *packet);

#endif
