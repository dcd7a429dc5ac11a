/*
 * Known calls. What the ranks agree on they agree on together, so each can keep the same list of calls that all have
 * made, and name one of them by its number there. An MPI tag has room for the number, but not for a call. So data of a
 * known call says by its tag what it belongs to, and needs no packet before it: see agree.c.
 */
#include "comm/backend/mpi/mpi.h"

static bool same(const ls_call_header *a, const ls_call_header *b) {
    return a->operation == b->operation && a->dtype == b->dtype && a->reduction == b->reduction && a->root == b->root &&
           a->agreed == b->agreed;
}

/* Where a call stands in the list if it is known; the one that stood there before is known no more. */
static int place_of(const ls_call_header *header) {
    const uint64_t key = header->agreed ^ (uint64_t)header->operation << 56 ^ (uint64_t)header->dtype << 48 ^
                         (uint64_t)header->reduction << 40 ^ (uint64_t)header->root << 32;
    return (int)((key * UINT64_C(0x9e3779b97f4a7c15) >> 32) % LS_MPI_KNOWN);
}

int ls_mpi_number_of(const ls_mpi *mpi, const ls_call_header *header) {
    const int number = place_of(header);
    return header->layout == 0 && same(&mpi->known[number], header) ? number : -1;
}

size_t ls_mpi_room_of(const ls_mpi *mpi, int number) {
    return number < 0 || mpi->room < LS_MPI_LITTLE ? mpi->room : LS_MPI_LITTLE;
}

/* Barriers, which have no data, stand in no list, so an empty place is like no call. */
void ls_mpi_learn(ls_mpi *mpi) {
    const ls_call *call = &mpi->call;
    const bool reduces = call->operation == LS_OP_ALLREDUCE || call->operation == LS_OP_REDUCE ||
                         call->operation == LS_OP_REDUCE_SCATTER;
    const bool same_counts =
        !ls_agreement_varies(call->operation) && call->send_counts == NULL && call->receive_counts == NULL;
    if (same_counts && call->count * call->width > ls_mpi_room_of(mpi, 0) && (reduces || mpi->size == 2)) {
        mpi->known[place_of(&mpi->own)] = mpi->own;
    }
}

int ls_mpi_tag_of(const ls_mpi *mpi, int number) {
    return number < 0 ? (int)LS_MPI_PIECES : (int)LS_MPI_KNOWN_CALLS + 2 * number + (int)(mpi->turn & 1);
}
