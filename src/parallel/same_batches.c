/*
 * Detects ranks that train on the same samples. A loader without .comm returns global batches. This is correct if each
 * rank has its own data set, but not if all ranks load the same batch.
 */
#include "base/hash.h"
#include "parallel/data_parallel.h"

ls_status ls_batch_hash(int64_t *hash) {
    const ls_thread_state *thread = ls_thread();
    uint64_t all = LS_HASH_START;
    *hash = 0;
    if (thread->whole_batch[0] == NULL) {
        return LS_OK;
    }
    for (int i = 0; i < 2; i++) {
        LS_TRY(thread->whole_batch[i] != NULL ? ls_hash_elements("ls_data_parallel", thread->whole_batch[i], &all)
                                              : LS_OK);
    }
    *hash = (int64_t)(all >> 1 | 1);
    return LS_OK;
}

ls_status ls_batches_compare(ls_data_parallel_state *state) {
    if (state->compared) {
        return LS_OK;
    }
    state->compared = true;
    int64_t hash;
    bool equal;
    const ls_status status = ls_batch_hash(&hash);
    LS_TRY(ls_ranks_have_equal(state->comm, hash, &equal));
    if (status == LS_OK && hash != 0 && equal && ls_comm_rank(state->comm) == 0) {
        ls_log_write(LS_LOG_WARNING,
                     "ls_backward: each of the %d ranks trains on all samples: set .comm of ls_loader_options, so that "
                     "the ranks share each batch",
                     ls_comm_size(state->comm));
    }
    return status;
}
