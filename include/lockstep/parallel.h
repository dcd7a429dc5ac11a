/**
 * @file parallel.h
 * Training on many ranks: where tensors and communication meet.
 */
#ifndef LOCKSTEP_PARALLEL_H
#define LOCKSTEP_PARALLEL_H

#include <lockstep/comm.h>
#include <lockstep/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- differentiable communication ----------------------------------------------------------------------------- */

/**
 * Communication of tensors that gradients flow through. ls_backward computes on each rank the gradient of the *sum over
 * ranks of their losses*; a rank that has no loss has the loss 0: ls_backward(ls_scalar(0, LS_F32)). What was
 * communicated on the way forwards is communicated in the opposite order on the way back, whether the ranks used the
 * results or not, so every rank that took part in a call whose gradient some rank wants calls ls_backward. Whether one
 * is wanted is agreed in the call itself: a rank may bring a tensor without gradient, or be under ls_no_grad. The
 * communicator must outlive the tape. See docs/DIFFERENTIABLE.md.
 *
 * The calls are collective. Where a rank's tensor is NULL because what should have made it failed, the others are told
 * so (LS_ERR_MISMATCH) instead of waiting.
 */

/**
 * The reduction over ranks of `tensor`, any dtype, the same shape on all ranks; every rank gets the same bits as from
 * ls_comm_allreduce. Gradients: LS_SUM, LS_AVG, LS_PROD, and LS_MIN and LS_MAX, whose gradient goes to the rank that
 * holds the extreme, the lowest of equals. The logical and bitwise reductions have none. LS_ERR_MISMATCH names ranks
 * whose shapes, dtypes or reductions differ.
 */
LS_API ls_tensor *ls_allreduce(ls_comm *comm, ls_tensor *tensor, ls_reduction reduction);

/**
 * ls_gradcheck over several ranks: compares the gradients of the sum over ranks of sum(w * function(inputs)) with
 * central differences, for every element of every input of every rank that requires one. Inputs may differ from rank to
 * rank; a rank may have none. Every rank calls it and fails when any gradient is wrong; the message of the rank whose
 * input it is says which.
 */
LS_API ls_status ls_gradcheck_distributed(ls_comm *comm, ls_function function, ls_tensor **inputs, int count,
                                          void *user, const ls_gradcheck_options *options) LS_WARN_UNUSED;

/* ---- training on many ranks ----------------------------------------------------------------------------------- */

/** Gives every rank the parameters and buffers of rank `root`. LS_ERR_MISMATCH when the models differ in size. */
LS_API ls_status ls_sync_parameters(ls_module *model, ls_comm *comm, int root) LS_WARN_UNUSED;

/**
 * Replaces every gradient by its mean over ranks. Parameters without a gradient on some rank count there as zero; those
 * without one anywhere keep none.
 */
LS_API ls_status ls_sync_gradients(ls_module *model, ls_comm *comm) LS_WARN_UNUSED;

/** Options of ls_data_parallel. */
typedef struct ls_data_parallel_options {
    bool no_initial_sync; /**< the ranks' parameters are equal already */
} ls_data_parallel_options;

/**
 * A module that does what `model` does (which it takes over), trained by all ranks of `comm` (lent; it must outlive the
 * module) together: parameters and buffers start as rank 0's, and every backward pass ends with the mean gradient over
 * the *samples* of all ranks (the first axis of the input counts them), so that training is that of one process with
 * the whole batch. Where several forward passes lead to one loss, each is shared out over the ranks like the last.
 * Parameters that no sample used on some or all ranks are fine. Buffers (running statistics) become the mean over
 * samples too, so that all ranks keep the same model. `options` may be NULL. A collective call.
 */
LS_API ls_module *ls_data_parallel(ls_module *model, ls_comm *comm, const ls_data_parallel_options *options);

/**
 * While `on`, backward passes through the data-parallel module only add to the local gradients; the next pass after it
 * is off averages all that was gathered, however each pass was shared out (for which the ranks exchange a number for
 * every such pass). Every rank does the same.
 */
LS_API ls_status ls_data_parallel_no_sync(ls_module *module, bool on);

/**
 * Takes part without any samples: what a rank calls, in place of the forward and backward pass, when its share of the
 * batch is empty. Its gradients are then those of the others, and its optimizer steps like theirs.
 */
LS_API ls_status ls_data_parallel_skip(ls_module *module) LS_WARN_UNUSED;

/** The communicator of a data-parallel module, lent; NULL for any other module. */
LS_API ls_comm *ls_data_parallel_comm(const ls_module *module);

#ifdef __cplusplus
}
#endif

#endif
