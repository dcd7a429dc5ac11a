/*
 * The algorithms of backend shm, and the sizes at which it switches between them. The defaults depend on the number of
 * ranks: see sizes.h. LOCKSTEP_ALGORITHM forces an algorithm for a call ("allreduce:chunks") or changes a size
 * ("shm:whole=4K,shm:read=never").
 */
#ifndef LS_COMM_BACKEND_SHM_ALGORITHM_H
#define LS_COMM_BACKEND_SHM_ALGORITHM_H

#include "comm/algorithm.h"

#define LS_SHM_NEVER ((size_t)-1)
/* The size depends on how much of a buffer would fit into a slot. */
#define LS_SHM_READ_BY_SHAPE ((size_t)-2)
/* The size depends on the distance between the ranks' cores. */
#define LS_SHM_PAST_BY_DISTANCE ((size_t)-2)

/* Size limits of a call, in bytes. They are the same on all ranks. */
typedef struct ls_shm_sizes {
    size_t cells;  /* calls up to this size use cells */
    size_t whole;  /* reductions up to this size pass through the slots in one step */
    size_t chunk;  /* maximum part of a buffer, or of each of its pieces, that passes through a slot in one step */
    size_t direct; /* reductions in memory from ls_comm_alloc use the buffers directly from this size on */
    size_t direct_moves; /* other calls in this memory use the buffers directly above this size */
    size_t read;         /* pieces and messages above this size are read from the sender's memory */
    size_t past;         /* pieces above this size are written into slots with stores that bypass the caches */
} ls_shm_sizes;

/* Sets the sizes of every call for this number of ranks. Fails with LS_ERR_ARGUMENT if LOCKSTEP_ALGORITHM is
 * invalid. */
ls_status ls_shm_sizes_choose(int ranks, ls_shm_sizes sizes[LS_OP_COUNT]);

#endif
