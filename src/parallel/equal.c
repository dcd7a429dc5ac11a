/* Compares ranks by hashes. */
#include <string.h>

#include "base/hash.h"
#include "base/status.h"
#include "parallel/parallel.h"
#include "tensor/tensor.h"

ls_status ls_hash_elements(const char *call, const ls_tensor *tensor, uint64_t *hash) {
    ls_tensor *host = ls_tensor_dense_on_host(call, tensor, (ls_dtype)tensor->dtype);
    LS_TRY(ls_made(host));
    *hash = ls_hash_long(*hash, ls_host_data(host), (size_t)host->count * ls_dtype_size((ls_dtype)host->dtype));
    ls_tensor_drop(host);
    return LS_OK;
}

ls_status ls_ranks_have_equal(ls_comm *comm, int64_t number, bool *equal) {
    int64_t most[2] = {number, -number};
    LS_TRY(ls_comm_allreduce(comm, most, most, 2, LS_I64, LS_MAX, NULL));
    *equal = most[0] == -most[1];
    return LS_OK;
}

ls_status ls_options_compare(const char *call, ls_comm *comm, const char *text) {
    bool equal = true;
    const uint64_t hash = ls_hash(LS_HASH_START, text, strlen(text));
    LS_TRY(ls_ranks_have_equal(comm, (int64_t)(hash >> 1), &equal));
    return equal
               ? LS_OK
               : ls_fail(
                     LS_ERR_MISMATCH,
                     "%s: the options differ between the ranks: this rank has %s. Pass the same options on every rank",
                     call, text);
}
