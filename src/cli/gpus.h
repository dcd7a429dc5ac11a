/* Which GPU of this machine is a rank's own. CUDA is not loaded for it. */
#ifndef LS_CLI_GPUS_H
#define LS_CLI_GPUS_H

#include <lockstep/base.h>

enum { LS_GPU_TEXT = 128 };

typedef struct ls_gpus {
    int count;           /* that processes of this user may use */
    const char *visible; /* what CUDA_VISIBLE_DEVICES lists, lent; NULL where it is not set: all are numbered from 0 */
} ls_gpus;

/* Counts those of the list or, where `visible` is NULL, NVIDIA's device files in `folder` (/dev). */
void ls_gpus_find(ls_gpus *gpus, const char *visible, const char *folder);

/*
 * What CUDA_VISIBLE_DEVICES is to be for one of `ranks` on this machine: the GPU of that number, counted round and
 * round, so that "cuda:0" is the rank's own. False where it is to stay as it is: for one rank, which has them all, and
 * where there are no two.
 */
bool ls_gpus_of_rank(const ls_gpus *gpus, int local_rank, int ranks, char text[LS_GPU_TEXT]);

#endif
