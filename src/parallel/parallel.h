/*
 * parallel: combines tensors and communication. Synchronized models, data-parallel training, pipelines and tensor
 * parallelism.
 */
#ifndef LS_PARALLEL_PARALLEL_H
#define LS_PARALLEL_PARALLEL_H

#include <lockstep/parallel.h>

#include "tensor/device.h"

/* Replaces numbers with their sums over the ranks of a communicator (see ls_division). Collective. */
ls_status ls_add_over_ranks(void *comm, double *numbers, int count);

/* Views a flat buffer (ls_module_flatten) as a tensor on the stack. */
ls_tensor ls_flat_view(ls_storage *storage, ls_dtype dtype, int64_t count);

/* Replaces the elements of a dense tensor with the root's elements, or with the reduction over all ranks.
 * Collective. */
ls_status ls_broadcast_in_place(ls_comm *comm, const ls_tensor *tensor, int root);
ls_status ls_allreduce_in_place(ls_comm *comm, const ls_tensor *tensor, ls_reduction reduction);

/* Waits for a call, if there is one, and sets *work to NULL. */
static inline ls_status ls_work_finish(ls_work **work) {
    ls_work *waited = *work;
    *work = NULL;
    return ls_work_wait(waited);
}

/* Adds the elements of a tensor to a hash. */
ls_status ls_hash_elements(const char *call, const ls_tensor *tensor, uint64_t *hash);

/* Sets *hash to a positive hash of this rank's batch, or to 0 if its loader splits batches or the pass did not use a
 * loader. */
ls_status ls_batch_hash(int64_t *hash);

/* Fails with LS_ERR_ARGUMENT for reductions of pairs, which tensors do not contain. */
ls_status ls_check_tensor_reduction(const char *call, ls_reduction reduction);

/*
 * sync.c: agrees on the parameters of which any rank has a gradient, and sets missing gradients of these parameters to
 * zero. Fails on every rank if the ranks have different models. Collective.
 */
ls_status ls_complete_gradients(const char *call, ls_module *model, ls_comm *comm);

/* Fails with LS_ERR_STATE if the reducer was freed. */
ls_status ls_reducer_check_here(const char *call, const ls_reducer *reducer);

/* Returns the communicator of a reducer. */
ls_comm *ls_reducer_comm(const ls_reducer *reducer);

/* Sets *equal to whether all ranks have the same nonnegative number, for example a right-shifted hash. Collective. */
ls_status ls_ranks_have_equal(ls_comm *comm, int64_t number, bool *equal);

/* Sets *equal to whether all ranks have the same elements of a tensor. Collective. */
ls_status ls_elements_are_equal(const char *call, ls_comm *comm, const ls_tensor *tensor, bool *equal);

/*
 * Fails with LS_ERR_MISMATCH if the strings of the ranks differ. `text` describes all options of the call, such as
 * ".steps = 32", for the message. Collective.
 */
ls_status ls_options_compare(const char *call, ls_comm *comm, const char *text);

/* Sets *equal to whether all ranks have bit-identical parameters. Collective. */
ls_status ls_replicas_are_equal(ls_module *model, ls_comm *comm, bool *equal);

/*
 * Fails with LS_ERR_MISMATCH, and reports the first difference, if the ranks' parameters differ. Fails with
 * LS_ERR_STATE between two outer steps. Collective.
 */
ls_status ls_replicas_compare(const char *call, ls_module *model, ls_comm *comm);

/*
 * sync.c: fails on every rank if the ranks have different models, because the parameters of one model could otherwise
 * be mistaken for the parameters of another model: with LS_ERR_UNSUPPORTED if the ranks hold different shards of a
 * parameter, otherwise with LS_ERR_MISMATCH. Collective.
 */
ls_status ls_models_compare(const char *call, const ls_module *model, ls_comm *comm);

/* sync.c: ls_sync_parameters for another public function, `call`. */
ls_status ls_copy_parameters(const char *call, ls_module *model, ls_comm *comm, int root);

/* Returns whether the model is sharded: some parameters of this rank are shards of larger tensors. */
bool ls_model_is_divided(const ls_module *model);

#endif
