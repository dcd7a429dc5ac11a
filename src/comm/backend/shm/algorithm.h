/*
 * The algorithms of backend shm, and the sizes at which it changes between them: by default the sizes of sizes.h for
 * the number of ranks. LOCKSTEP_ALGORITHM forces an algorithm for a call ("allreduce:chunks"), or changes a size
 * ("shm:whole=4K,shm:read=never").
 */
#ifndef LS_COMM_BACKEND_SHM_ALGORITHM_H
#define LS_COMM_BACKEND_SHM_ALGORITHM_H

#include "comm/algorithm.h"

#define LS_SHM_NEVER ((size_t)-1)
/* The size depends on how much of a buffer fits where it would otherwise go. */
#define LS_SHM_READ_BY_SHAPE ((size_t)-2)
/* The size depends on the distance of the cores from each other. */
#define LS_SHM_PAST_BY_DISTANCE ((size_t)-2)

/* Sizes of a call, in bytes. All ranks have the same. */
typedef struct ls_shm_sizes {
    size_t cells;        /* calls up to this size use cells */
    size_t whole;        /* reductions up to this size go through the slots in one step */
    size_t chunk;        /* largest part of a buffer, or of each piece of one, that goes through a slot in one step */
    size_t direct;       /* reductions in memory of ls_comm_alloc from this size on go straight between the buffers */
    size_t direct_moves; /* other calls in this memory above this size do so */
    size_t read;         /* pieces and messages above this size are read from the sender's memory */
    size_t past;         /* pieces above this size are written into slots past the caches */
} ls_shm_sizes;

/* Sets the sizes of every call for this number of ranks. Fails with LS_ERR_ARGUMENT if the variable is wrong. */
ls_status ls_shm_sizes_choose(int ranks, ls_shm_sizes sizes[LS_OP_COUNT]);

#endif
