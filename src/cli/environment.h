/* What a rank finds in its environment: the launcher's own, without what an outer job left there, and its place. */
#ifndef LS_CLI_ENVIRONMENT_H
#define LS_CLI_ENVIRONMENT_H

#include <lockstep/base.h>

typedef struct ls_rank_place {
    int rank;
    int ranks;
    int port;     /* of the store, on 127.0.0.1 */
    int store_fd; /* the listening socket that this rank inherits; -1: none */
    int restarts;
    int threads;
    const char *key;
} ls_rank_place;

/* The environment for execve, in one block that ls_free takes back; it lends the launcher's strings. NULL on failure.
 */
char **ls_environment_make(const ls_rank_place *place);

#endif
