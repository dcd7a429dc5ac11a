/*
 * What a backend does not promise, for tests that run on all of them: the table "What backend gloo does not promise" of
 * docs/COMMUNICATION.md, line by line. All other tests hold on every backend.
 */
#ifndef LS_TESTS_SUPPORT_PROMISES_H
#define LS_TESTS_SUPPORT_PROMISES_H

#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>

static inline bool is_gloo(const ls_comm *comm) {
    return strcmp(ls_comm_backend(comm), "gloo") == 0;
}

/* Sums and products of f32 and f64 over more than two ranks in the order of the balanced tree; else in one that depends
 * on the element's place and the number of ranks alone. */
static inline bool promises_order(const ls_comm *comm, ls_dtype dtype, ls_reduction reduction) {
    return !is_gloo(comm) || ls_comm_size(comm) <= 2 || (dtype != LS_F32 && dtype != LS_F64) ||
           (reduction != LS_SUM && reduction != LS_PROD);
}

/* What a rank executes inherits no descriptor of the library's. */
static inline bool promises_closed_descriptors(const ls_comm *comm) {
    return !is_gloo(comm);
}

/* For tests whose ranks are forks: whether they run on gloo. */
static inline bool forks_run_gloo(void) {
    const char *name = getenv("LOCKSTEP_TEST_BACKEND");
    return name != NULL && strcmp(name, "gloo") == 0;
}

#endif
