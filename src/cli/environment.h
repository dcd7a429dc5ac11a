/*
 * Creates the environment of a rank: the launcher's own environment, without the variables of an outer job, plus the
 * variables of the rank.
 */
#ifndef LS_CLI_ENVIRONMENT_H
#define LS_CLI_ENVIRONMENT_H

#include <lockstep/base.h>

#include "cli/nodes.h"

typedef struct ls_rank_place {
    int rank;
    int local_rank;
    int local_ranks;
    const ls_start *start;
    const char *interface; /* NULL keeps the launcher's value, if set */
    int store_fd;          /* the inherited listening socket, or -1 */
    int report_fd;         /* the socket on which the rank reports its failure */
    int restarts;
    int threads;
    const char *gpu;  /* for CUDA_VISIBLE_DEVICES; NULL leaves it unchanged */
    const char *mark; /* see ls_launch */
} ls_rank_place;

/*
 * Creates the environment for execve in one block; the caller frees it with ls_free. The block borrows the launcher's
 * strings. Returns NULL on failure.
 */
char **ls_environment_make(const ls_rank_place *place);

#endif
