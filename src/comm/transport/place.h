/* How the ranks of a communicator lie on machines, of which each has one link to the others. */
#ifndef LS_COMM_TRANSPORT_PLACE_H
#define LS_COMM_TRANSPORT_PLACE_H

#include <stddef.h>
#include <stdint.h>

typedef struct ls_place {
    int block_ranks;     /* a power of two: of each so many ranks, counted from 0, all are on one machine; 0: is as 1 */
    int largest_machine; /* ranks of the machine that has most, where `block_ranks` is more than 1; 0: is as 1 */
} ls_place;

/* `machine`: a number that ranks of one machine share, rank 0's; that of the next rank lies `stride` bytes behind it.
 */
ls_place ls_place_find(const uint64_t *machine, size_t stride, int size);

#endif
