/*
 * Where backend shm changes its algorithm: by default what sizes.h says for the number of ranks, where wanted
 * what LOCKSTEP_SHM_ALGORITHM says, a list like "cells=0,whole=4K,read=never".
 */
#ifndef LS_COMM_BACKEND_SHM_ALGORITHM_H
#define LS_COMM_BACKEND_SHM_ALGORITHM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#define LS_SHM_ALGORITHM_VARIABLE "LOCKSTEP_SHM_ALGORITHM"

#define LS_SHM_NEVER ((size_t)-1)
#define LS_SHM_READ_BY_SHAPE                                                                                           \
    ((size_t)-2) /* what is read depends on how much of it fits where it would go otherwise                            \
                  */
#define LS_SHM_PAST_BY_DISTANCE ((size_t)-2) /* where the cores are far from each other */

/* In bytes. All ranks have the same. */
typedef struct ls_shm_algorithm {
    size_t cells;        /* calls that bring up to this go in cells */
    size_t whole;        /* reductions up to this go whole through the slots, in one step */
    size_t chunk;        /* so much of a buffer, or of each piece of one, goes through a slot in one step, at most */
    size_t direct;       /* reductions in memory of ls_comm_alloc from this on go straight between the buffers */
    size_t direct_moves; /* other calls there beyond this do */
    size_t read;         /* pieces and messages beyond this are read from the sender's memory */
    size_t past;         /* pieces beyond this are written into slots past the caches */
} ls_shm_algorithm;

/* Fills it for so many ranks. LS_ERR_ARGUMENT when the variable cannot be understood. */
ls_status ls_shm_algorithm_choose(int ranks, ls_shm_algorithm *algorithm);

#endif
