/*
 * A rank connects only to the ranks with which it exchanges data: about 2 log2 P of P ranks, with one descriptor per
 * direction. tests/shell/sockets.sh runs it with enough ranks to detect connections between all of them.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>

#include <lockstep/parallel.h>

#include "tests/support/files.h"

/* Returns the maximum number of descriptors of a rank. Rank 0's store has one more per rank. */
static int most_descriptors(const ls_comm *world) {
    const int size = ls_comm_size(world);
    int levels = 0;
    while (1 << levels < size) {
        levels++;
    }
    return 4 * levels + 20 + (ls_comm_rank(world) == 0 ? size : 0);
}

static ls_status train(ls_module *model) {
    ls_scope *scope = ls_scope_begin();
    const ls_status status = ls_backward(ls_mean(ls_forward(model, ls_full(LS_SHAPE(2, 30), LS_F32, 1))));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

ls_status rank_test(ls_comm *world) {
    const int before = test_descriptors_count();
    ls_module *model = ls_data_parallel(ls_nn_linear(30, 20), world, NULL);
    LS_CHECK(model != NULL);
    LS_TRY(train(model));
    const int after = test_descriptors_count();
    if (ls_comm_rank(world) <= 1 && getenv("LOCKSTEP_TEST_PRINT") != NULL) {
        printf("rank %d of %d: %d descriptors before ls_data_parallel, %d after a step, at most %d allowed\n",
               ls_comm_rank(world), ls_comm_size(world), before, after, most_descriptors(world));
    }
    ls_module_free(model);
    LS_TRY(ls_comm_barrier(world, NULL)); /* a rank that leaves may connect to all other ranks */
    if (after > most_descriptors(world)) {
        return ls_fail(LS_ERR_INTERNAL, "%d descriptors are open after a step, %d before, at most %d are allowed",
                       after, before, most_descriptors(world));
    }
    return LS_OK;
}
