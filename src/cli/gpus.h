/* Assignment of this machine's GPUs to ranks, without loading CUDA. */
#ifndef LS_CLI_GPUS_H
#define LS_CLI_GPUS_H

#include <lockstep/base.h>

enum { LS_GPU_TEXT = 128 };

typedef struct ls_gpus {
    int count;           /* number of GPUs that processes of this user may use */
    const char *visible; /* borrowed: the value of CUDA_VISIBLE_DEVICES; NULL if not set, which means all GPUs, numbered
                            from 0 */
} ls_gpus;

/* Counts the GPUs in the list `visible`. If `visible` is NULL, counts NVIDIA's device files in `folder` (/dev). */
void ls_gpus_find(ls_gpus *gpus, const char *visible, const char *folder);

/*
 * Writes the value of CUDA_VISIBLE_DEVICES for one of `ranks` ranks on this machine. Rank i gets GPU i modulo the
 * number of GPUs, as its "cuda:0". Returns false if the variable should stay unchanged: for a single rank, which gets
 * all GPUs, or if there are fewer than two GPUs.
 */
bool ls_gpus_of_rank(const ls_gpus *gpus, int local_rank, int ranks, char text[LS_GPU_TEXT]);

#endif
