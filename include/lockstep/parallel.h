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
