/* What a rank finds in its environment: the launcher's own, without what an outer job left there, and its place. */
#ifndef LS_CLI_ENVIRONMENT_H
#define LS_CLI_ENVIRONMENT_H

#include <lockstep/base.h>

#include "cli/nodes.h"

typedef struct ls_rank_place {
    int rank;
    int local_rank;
    int local_ranks;
    const ls_start *start;
    const char *interface; /* NULL: that of the start, if it has one */
    int store_fd;          /* the listening socket that this rank inherits; -1: none */
    int report_fd;         /* the socket by which it tells why it fails */
    int restarts;
    int threads;
    const char *gpu;  /* for CUDA_VISIBLE_DEVICES; NULL: left as it is */
    const char *mark; /* see ls_launch */
} ls_rank_place;

/* The environment for execve, in one block that ls_free takes back; it lends the launcher's strings. NULL on failure.
 */
char **ls_environment_make(const ls_rank_place *place);

#endif
