/* Compares options, parameters and batches of the ranks by hashes. */
#include <string.h>

#include "autograd/op.h"
#include "base/hash.h"
#include "nn/module.h"
#include "parallel/data_parallel.h"
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

ls_status ls_elements_are_equal(const char *call, ls_comm *comm, const ls_tensor *tensor, bool *equal) {
    uint64_t hash = LS_HASH_START;
    LS_TRY(ls_hash_elements(call, tensor, &hash));
    return ls_ranks_have_equal(comm, (int64_t)(hash >> 1), equal);
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

/* ---- parameters -------------------------------------------------------------------------------------------------- */

/* Returns whether each rank has only its own elements of the parameter, so that nothing can be compared. */
static bool is_sharded(const ls_tensor *parameter) {
    return ls_tensor_is_gone(parameter);
}

ls_status ls_replicas_are_equal(ls_module *model, ls_comm *comm, bool *equal) {
    uint64_t hash = LS_HASH_START;
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        LS_TRY(is_sharded(parameter) ? LS_OK : ls_hash_elements("ls_data_parallel", parameter, &hash));
    }
    return ls_ranks_have_equal(comm, (int64_t)(hash >> 1), equal);
}

bool ls_model_is_divided(const ls_module *model) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_leaf *leaf = ls_module_parameter(model, i)->leaf;
        for (int k = 0; leaf != NULL && k < LS_DIVISIONS; k++) {
            if (leaf->divisions[k].add != NULL) {
                return true;
            }
        }
    }
    return false;
}

/* ---- a difference ------------------------------------------------------------------------------------------------ */

/* The first element of this rank that differs from rank 0's element; -1 if all are equal. */
typedef struct difference {
    double element;
    double here, there;
} difference;

static double read_element(const ls_tensor *tensor, int64_t i) {
    int64_t index[LS_MAX_DIMS] = {0};
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        index[d] = i % tensor->size[d];
        i /= tensor->size[d];
    }
    return ls_at(tensor, index);
}

/* Finds the first difference. `own` and `first` (rank 0's tensor) are dense and on the host. */
static void compare_elements(const ls_tensor *own, const ls_tensor *first, difference *found) {
    const size_t width = ls_dtype_size((ls_dtype)own->dtype);
    const char *here = ls_host_data(own), *there = ls_host_data(first);
    *found = (difference){.element = -1};
    for (int64_t i = 0; i < own->count; i++) {
        if (memcmp(here + (size_t)i * width, there + (size_t)i * width, width) != 0) {
            *found = (difference){.element = (double)i, .here = read_element(own, i), .there = read_element(first, i)};
            return;
        }
    }
}

/* The lowest rank whose parameter differs from rank 0's sends the difference to all ranks. */
static ls_status compare_with_first(ls_comm *comm, const ls_tensor *own, ls_tensor *first, int *rank,
                                    difference *found) {
    const size_t bytes = (size_t)own->count * ls_dtype_size((ls_dtype)own->dtype);
    if (ls_comm_rank(comm) == 0 && bytes > 0) {
        memcpy(ls_host_data(first), ls_host_data(own), bytes);
    }
    LS_TRY(ls_comm_broadcast(comm, ls_host_data(first), bytes, LS_U8, 0, NULL));
    compare_elements(own, first, found);
    ls_loc_i64 lowest = {.value = found->element >= 0, .location = ls_comm_rank(comm)};
    LS_TRY(ls_comm_allreduce(comm, &lowest, &lowest, 1, LS_I64, LS_MAXLOC, NULL));
    *rank = (int)lowest.location;
    return ls_comm_broadcast(comm, found, sizeof *found / sizeof(double), LS_F64, *rank, NULL);
}

static ls_status report_difference(const char *call, ls_module *model, ls_comm *comm, int i) {
    const ls_tensor *parameter = ls_module_parameter(model, i);
    const ls_dtype dtype = (ls_dtype)parameter->dtype;
    ls_tensor *own = ls_tensor_dense_on_host(call, parameter, dtype);
    ls_tensor *first = ls_tensor_new_owned(call, &ls_cpu, parameter->ndim, parameter->size, dtype);
    difference found = {.element = -1};
    int rank = 0;
    ls_status status =
        own != NULL && first != NULL ? compare_with_first(comm, own, first, &rank, &found) : ls_error_status();
    const int digits = dtype == LS_F64 ? 17 : 9;
    ls_tensor_drop(own);
    ls_tensor_drop(first);
    return status != LS_OK
               ? status
               : ls_fail(
                     LS_ERR_MISMATCH,
                     "%s: the parameters of the ranks differ: element %.0f of \"%s\" is %.*g on rank 0 and %.*g on "
                     "rank %d; change parameters in the same way on all ranks, or call ls_sync_parameters afterwards",
                     call, found.element, ls_module_parameter_name(model, i), digits, found.there, digits, found.here,
                     rank);
}

static ls_status find_difference(const char *call, ls_module *model, ls_comm *comm) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        bool equal = true;
        LS_TRY(is_sharded(parameter) ? LS_OK : ls_elements_are_equal("ls_data_parallel", comm, parameter, &equal));
        if (!equal) {
            return report_difference(call, model, comm, i);
        }
    }
    return ls_fail(LS_ERR_MISMATCH, "%s: the ranks have different numbers of parameters", call);
}

ls_status ls_replicas_compare(const char *call, ls_module *model, ls_comm *comm) {
    bool equal = true;
    LS_TRY(ls_module_check_synchronized(call, model));
    LS_TRY(ls_comm_size(comm) > 1 ? ls_replicas_are_equal(model, comm, &equal) : LS_OK);
    return equal ? LS_OK : find_difference(call, model, comm);
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/*
 * Detects ranks that train on the same samples. A loader without .comm returns global batches. This is correct if each
 * rank has its own data set, but not if all ranks load the same batch.
 */
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
