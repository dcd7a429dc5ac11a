#include "comm/backend/mpi/packet.h"

#include <stdio.h>

/* A call has its data in its packet or all of them behind it; a message as its size says, and without any where it
 * announces repeats. */
static bool has_its_data(const ls_call_header *header, size_t data, size_t room) {
    if (header->operation != LS_OP_SEND) {
        return data == 0 || data == header->bytes;
    }
    const bool repeats = header->layout >= LS_MPI_REPEATS && header->layout < LS_MPI_KNOWN_CALLS;
    return (header->layout == 0 || (repeats && header->bytes != 0)) &&
           data == (ls_mpi_packet_is_eager(header, room) ? header->bytes : 0);
}

/* Whether the header says truly that a rank left: each says it of itself alone. */
static bool tells_of_leaving(const ls_call_header *header, size_t data, const ls_mpi_reader *reader) {
    return (reader->from < 0 || header->root == reader->from) && data == 0 && header->reduction > LS_LEAVE_NONE &&
           header->reduction <= LS_LEAVE_FAILED;
}

bool ls_mpi_packet_is_sound(const ls_mpi_packet *packet, size_t data, const ls_mpi_reader *reader, char *why) {
    const ls_call_header *header = &packet->header;
    if (data > sizeof packet->data) {
        snprintf(why, LS_HEADER_WHY, "it has not the size of one");
        return false;
    }
    const bool rank =
        header->root >= 0 && header->root < reader->size && (reader->from >= 0 || header->root != reader->rank);
    const bool expected = (reader->from >= 0) == (header->operation != LS_OP_SEND);
    why[0] = '\0';
    if (rank && (header->operation == LS_MPI_LEFT ? tells_of_leaving(header, data, reader)
                                                  : expected && ls_call_header_is_sound(header, reader->size, why) &&
                                                        has_its_data(header, data, reader->room))) {
        return true;
    }
    if (why[0] == '\0') {
        snprintf(why, LS_HEADER_WHY, "operation %u, rank %d, %zu bytes of data", header->operation, header->root, data);
    }
    return false;
}

ls_match_header ls_mpi_packet_message(const ls_mpi_packet *packet) {
    return (ls_match_header){.from = packet->header.root,
                             .tag = packet->header.tag,
                             .dtype = (ls_dtype)packet->header.dtype,
                             .count = (size_t)packet->header.count,
                             .bytes = (size_t)packet->header.bytes};
}
