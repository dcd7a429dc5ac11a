/* The distribution of a communicator's ranks over machines. Each machine has one link to the other machines. */
#ifndef LS_COMM_TRANSPORT_PLACE_H
#define LS_COMM_TRANSPORT_PLACE_H

#include <stddef.h>
#include <stdint.h>

typedef struct ls_place {
    int block_ranks; /* a power of two: ranks 0 to block_ranks - 1 are on one machine, and so is each further block of
                        this size; 0 means 1 */
    int largest_machine; /* number of ranks on the machine with the most ranks, or 1 if `block_ranks` is 1; 0 means 1 */
} ls_place;

/* Returns the distribution of `size` ranks. `machine` points to the machine number of rank 0; the number of each
 * following rank is `stride` bytes further on. Ranks on the same machine have the same number. */
ls_place ls_place_find(const uint64_t *machine, size_t stride, int size);

#endif
