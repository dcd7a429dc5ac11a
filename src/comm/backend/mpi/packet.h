/*
 * What ranks of backend mpi send each other before the content of calls and messages, and whether what came is that.
 * Knows nothing of MPI, so that tests can give it anything.
 */
#ifndef LS_COMM_BACKEND_MPI_PACKET_H
#define LS_COMM_BACKEND_MPI_PACKET_H

#include "comm/agreement.h"
#include "comm/match.h"

/* How many kinds of repeats there are, see repeat.c. */
#define LS_MPI_TURNS 3

/* What an MPI tag says besides the context. */
typedef enum ls_mpi_kind {
    LS_MPI_HEADERS = 0, /* a rank's call, with what fits of its data */
    LS_MPI_VERDICTS,    /* whether counts fit */
    LS_MPI_PIECES,      /* data of calls */
    LS_MPI_RESULTS,     /* parts of a reduction */
    LS_MPI_MESSAGES,    /* sends, with what fits of their data */
    LS_MPI_CONTENTS,    /* data of sends */
    LS_MPI_ENDS,        /* a rank left: for those who look whether it has, and receive nothing */
    LS_MPI_REPEATS,     /* data of sends that are like the one before: the first of the kinds used in turn */
    LS_MPI_KNOWN_CALLS = LS_MPI_REPEATS + LS_MPI_TURNS, /* the first of data of known calls: two kinds each, in turn */
    LS_MPI_KINDS = 64
} ls_mpi_kind;

/* The operation of a call header by which a rank says that it makes no more calls. */
#define LS_MPI_LEFT ((uint32_t)LS_OP_COUNT)

/* A packet is at most as large as what the library sends without asking the receiver, its own header included: of MPICH
 * that is a little more than 8 KiB. Open MPI has 4 KiB unless its user chose otherwise, so packets have a limit there.
 */
#define LS_MPI_PACKET 8256

typedef struct ls_mpi_packet {
    /* Of a call: `tag` is its turn. Of a rank that left: `reduction` is the reason. Of a message: `root` is the rank
     * that sends it, `agreed` the number of repeats that it sent since its last envelope, `layout` the kind of those
     * that follow, or 0. */
    ls_call_header header;
    unsigned char data[LS_MPI_PACKET - sizeof(ls_call_header)];
} ls_mpi_packet;

/* Who reads a packet. */
typedef struct ls_mpi_reader {
    int rank;
    int size;    /* of the communicator */
    int from;    /* the rank whose calls are read; -1: messages of any rank are */
    size_t room; /* data of up to this size travels behind the header */
} ls_mpi_reader;

/* Whether a message has its content in its packet. One that announces repeats has not, but theirs come likewise. */
static inline bool ls_mpi_packet_is_eager(const ls_call_header *header, size_t room) {
    return header->bytes <= room && header->layout == 0;
}

/*
 * Whether a packet that came with so many bytes behind its header is one. Nothing else of it is read before. Then its
 * sizes agree with each other and with what came. Otherwise `why`, LS_HEADER_WHY bytes, says what is wrong.
 */
bool ls_mpi_packet_is_sound(const ls_mpi_packet *packet, size_t data, const ls_mpi_reader *reader, char *why);

/* What the packet of a message says of it. */
ls_match_header ls_mpi_packet_message(const ls_mpi_packet *packet);

#endif
