/*
 * Tests that run as ranks. A program in tests/ranks defines
 *
 *     ls_status rank_test(ls_comm *world);
 *
 * It fails through LS_CHECK or by returning an error status. `lockstep run -n N PROGRAM` runs it as N processes.
 * `PROGRAM --threads 1,2,3,4,5` runs it as threads of one process, with each of these numbers in turn.
 *
 * If LOCKSTEP_TEST_ANY_ORDER is set, reductions may have any order (ls_comm_set_any_order), and the sums of the
 * references are exact.
 */
#ifndef LS_TESTS_SUPPORT_RANKS_H
#define LS_TESTS_SUPPORT_RANKS_H

#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/nn.h>

#include "base/status.h"
#include "tests/support/sanitized.h"

ls_status rank_test(ls_comm *world);

/* Fails the test on this rank, and reports the location and the expression. */
#define LS_CHECK(condition)                                                                                            \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            return ls_fail(LS_ERR_INTERNAL, "%s:%d: not true: %s (last error: %s)", __FILE__, __LINE__, #condition,    \
                           ls_error_message());                                                                        \
        }                                                                                                              \
    } while (0)

/* Fails the test unless the last error message contains `part`. */
#define LS_EXPECT_MESSAGE(part) LS_CHECK(strstr(ls_error_message(), (part)) != NULL)

/* Fails the test unless all ranks have the same bytes in `data`. */
ls_status ranks_have_same_bytes(ls_comm *comm, const void *data, size_t bytes);

/* Fails the test unless all ranks have modules with the same ls_module_hash. */
ls_status ranks_have_same_module(ls_comm *comm, const ls_module *module);

#endif
