/* For rank tests: a folder shared by all ranks. */
#ifndef LS_TESTS_SUPPORT_SCRATCH_H
#define LS_TESTS_SUPPORT_SCRATCH_H

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/comm.h>

#include "tests/support/ranks.h"

static _Thread_local char scratch[64]; /* the same on all ranks */

static inline ls_status make_scratch(ls_comm *world) {
    snprintf(scratch, sizeof scratch, "/tmp/lockstep-test-XXXXXX");
    LS_CHECK(ls_comm_rank(world) != 0 || mkdtemp(scratch) != NULL);
    return ls_comm_broadcast(world, scratch, sizeof scratch, LS_U8, 0, NULL);
}

static inline int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

static inline ls_status remove_scratch(ls_comm *world) {
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_CHECK(ls_comm_rank(world) != 0 || nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
    return ls_comm_barrier(world, NULL);
}

/* Returns a path, which is valid for the next three calls. */
static inline const char *in_scratch(const char *name) {
    enum { PATHS = 4 };
    static _Thread_local char paths[PATHS][PATH_MAX];
    static _Thread_local int next;
    char *path = paths[next++ % PATHS];
    snprintf(path, PATH_MAX, "%s/%s", scratch, name);
    return path;
}

#endif
