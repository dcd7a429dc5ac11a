/**
 * @file parallel.h
 * Training on many ranks: where tensors and communication meet.
 */
#ifndef LOCKSTEP_PARALLEL_H
#define LOCKSTEP_PARALLEL_H

#include <lockstep/autograd.h>
#include <lockstep/comm.h>
#include <lockstep/loss.h>
#include <lockstep/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- differentiable communication ----------------------------------------------------------------------------- */

/**
 * Communication of tensors that gradients flow through. ls_backward computes on each rank the gradient of the *sum over
 * ranks of their losses*; a rank that has no loss has the loss 0: ls_backward(ls_scalar(0, LS_F32)). What was
 * communicated on the way forwards is communicated in the opposite order on the way back, so every rank that took part
 * in a call whose gradient some rank wants calls ls_backward. Whether one is wanted is agreed in the call itself: a
 * rank may bring a tensor without gradient, or be under ls_no_grad. The communicator must outlive the tape. See
 * docs/explanation/differentiable-communication.md.
 *
 * In a backward pass the ranks agree on each collective: if the losses of the pass reach its result on some rank, all
 * ranks take part. Otherwise (ls_detach, another loss) the collective stays on the tape for a later pass as long as
 * some rank refers to its result.
 *
 * The calls are collective. If a rank's tensor is NULL because an earlier operation failed, the other ranks get
 * LS_ERR_MISMATCH with that rank and its message instead of waiting. The same happens if a rank calls ls_backward with
 * a loss that is NULL, or if its backward pass fails.
 */

/**
 * The reduction over ranks of `tensor`, any dtype, the same shape on all ranks; every rank gets the same bits as from
 * ls_comm_allreduce. Gradients: LS_SUM, LS_AVG, LS_PROD, and LS_MIN and LS_MAX, whose gradient goes to the rank that
 * holds the extreme, the lowest of equals. The logical and bitwise reductions have none. LS_ERR_MISMATCH names ranks
 * whose shapes, dtypes or reductions differ.
 */
LS_API ls_tensor *ls_allreduce(ls_comm *comm, ls_tensor *tensor, ls_reduction reduction);

/** The same reduction for rank `root`; the others get zeros of that shape, which no gradient flows from. */
LS_API ls_tensor *ls_reduce(ls_comm *comm, ls_tensor *tensor, ls_reduction reduction, int root);

/**
 * The same reduction cut along `axis`, of which each rank gets its part, as equal as can be: the first ranks have one
 * position more where the size does not divide. Axes may be negative, here and below.
 */
LS_API ls_tensor *ls_reduce_scatter(ls_comm *comm, ls_tensor *tensor, int axis, ls_reduction reduction);

/** The tensor of rank `root`, a copy on every rank; the tensors of the others do not matter and may be NULL. */
LS_API ls_tensor *ls_broadcast(ls_comm *comm, ls_tensor *tensor, int root);

/**
 * The tensors of all ranks, concatenated along `axis` in the order of the ranks, on rank `root`; they may differ in
 * size along that axis. The others get a tensor that has size 0 along it.
 */
LS_API ls_tensor *ls_gather(ls_comm *comm, ls_tensor *tensor, int axis, int root);

/** The same on every rank. */
LS_API ls_tensor *ls_allgather(ls_comm *comm, ls_tensor *tensor, int axis);

/**
 * `count` positions along `axis` of rank root's tensor for this rank, behind those of the ranks before it. The counts
 * of all ranks add up to the size of the axis. The tensors of the others do not matter and may be NULL; `axis` is the
 * root's.
 */
LS_API ls_tensor *ls_scatter(ls_comm *comm, ls_tensor *tensor, int axis, int64_t count, int root);

/**
 * The tensors of all ranks, concatenated along `gather_axis` and cut along `scatter_axis`: `count` positions for this
 * rank, behind those of the ranks before it. Tensors may differ in size along gather_axis; the counts of all ranks add
 * up to what there is to cut. With equal axes the whole is divided anew.
 */
LS_API ls_tensor *ls_alltoall(ls_comm *comm, ls_tensor *tensor, int gather_axis, int scatter_axis, int64_t count);

/** A message under way. Opaque; it belongs to the innermost scope until ls_handle_wait uses it up. */
typedef struct ls_handle ls_handle;

/**
 * Begins to send `tensor` to rank `dest`, which receives it with this tag (0 to 2^30 - 1), shape and dtype. Messages
 * between two ranks with the same tag arrive in the order in which they were sent. On the way back a gradient comes
 * from `dest`, if `tensor` wants one. Do not change the tensor before ls_handle_wait. A tensor that is NULL because
 * what should have made it failed is told to the receiver. Messages of ls_comm_send are no tensors: give those other
 * tags.
 */
LS_API ls_handle *ls_isend(ls_comm *comm, ls_tensor *tensor, int dest, int tag);

/** Begins to receive a tensor of this shape and dtype from rank `source`; ls_handle_wait gives it. */
LS_API ls_handle *ls_irecv(ls_comm *comm, ls_shape shape, ls_dtype dtype, int source, int tag);

/**
 * Ends a message: gives the tensor that was received, or the one that was sent (whose gradient flows on through it).
 * LS_ERR_MISMATCH when rank `source` sent something else, saying what; the message is gone then, and the communicator
 * goes on. A handle that is never waited for is waited for when its scope ends, at most the timeout, and no longer than
 * until its communicator is freed, a rank of it dies or the partner calls ls_finalize; ls_scope_end returns what became
 * of it, LS_ERR_TIMEOUT or LS_ERR_PEER with the rank and the tag, where nothing failed before; what ls_irecv has begun,
 * ls_backward takes in before it starts, since the sender may want the gradient, and ls_handle_wait gives it
 * afterwards. A handle of a scope that has ended, or one that was waited for before, is LS_ERR_STATE.
 */
LS_API ls_tensor *ls_handle_wait(ls_handle *handle);

/** ls_isend and ls_handle_wait. Two ranks that both send large tensors before they receive wait for each other. */
LS_API ls_tensor *ls_send(ls_comm *comm, ls_tensor *tensor, int dest, int tag);

/** ls_irecv and ls_handle_wait. */
LS_API ls_tensor *ls_recv(ls_comm *comm, ls_shape shape, ls_dtype dtype, int source, int tag);

/**
 * `tensor`, as one that depends on `others` too, which get no gradient from it: mpi4torch's JoinDummies. Communication
 * needs no such help here; it is for programs that are written with it.
 */
LS_API ls_tensor *ls_join_dummies(ls_tensor *tensor, ls_tensor *const *others, int count);

/**
 * ls_gradcheck over several ranks: compares the gradients of the sum over ranks of sum(w * function(inputs)) with
 * central differences, for every element of every input of every rank that requires one. Inputs may differ from rank to
 * rank; a rank may have none. Every rank calls it and fails when any gradient is wrong; the message of the rank whose
 * input it is says which.
 */
LS_API ls_status ls_gradcheck_distributed(ls_comm *comm, ls_function function, ls_tensor **inputs, int count,
                                          void *user, const ls_gradcheck_options *options) LS_WARN_UNUSED;

/* ---- training on many ranks ----------------------------------------------------------------------------------- */

/** Gives every rank the parameters and buffers of rank `root`. LS_ERR_MISMATCH, on every rank, when the models
 * differ in names, shapes or dtypes. */
LS_API ls_status ls_sync_parameters(ls_module *model, ls_comm *comm, int root) LS_WARN_UNUSED;

/**
 * Replaces every gradient by its mean over ranks. Parameters without a gradient on some rank count there as zero; those
 * without one anywhere keep none. The gradients of an ls_pipeline are weighed by the samples of its
 * ls_pipeline_backward, for the mean over the samples of all ranks (LS_ERR_STATE where several steps are gathered that
 * were divided over the ranks in different ways); a rank that had none brings nothing. Batch normalisation and dropout
 * stay those of each rank's samples; a warning says so.
 */
LS_API ls_status ls_sync_gradients(ls_module *model, ls_comm *comm) LS_WARN_UNUSED;

/** Options of ls_data_parallel. */
typedef struct ls_data_parallel_options {
    bool no_initial_sync; /**< the ranks' parameters and buffers are equal already */
    /**
     * LS_BF16 or LS_F16: gradients travel in half the bytes, as by PyTorch's bf16_compress_hook; in three quarters
     * where a large vector goes by halves among many ranks (docs/reference/communication.md), as its sums are f32 on
     * their way. Each rank's share is rounded, the shares are added up in f32, and their mean is rounded once more. So
     * where g is the mean and m that of the magnitudes, an element is wrong by at most u (m + |g|), u being 2^-8 for
     * bf16 and 2^-11 for f16. f16 ends at 65504, beyond which it is Inf, and is by steps of 2^-24 below 2^-14. What the
     * ranks tell each other besides stays f32, and so do the gradients before and afterwards; all ranks still get the
     * same bits. LS_ERR_UNSUPPORTED where a parameter is of f64. LS_F32, which is zero: they travel as they are.
     */
    ls_dtype reduce_dtype;
} ls_data_parallel_options;

/**
 * A module that does what `model` does (which it takes over), trained by all ranks of `comm` (lent; it must outlive the
 * module) together: parameters and buffers start as rank 0's, and every backward pass ends with the gradient that one
 * process with the whole batch would have. The first axis of input and output counts the samples, of which the ranks
 * may have different numbers. A mean over samples is by what the loss divides by (elements, the weights of targets,
 * those that are not ignored); a sum is that of all ranks; what the loss has beside of parameters alone counts once.
 * Where a loss is not one mean the ranks exchange a few numbers before the pass.
 *
 * A mean made by hand divides a sum over samples, whose gradient is that of the sum over all ranks. So the divisor must
 * be that of the global batch: ls_batch.global_count, or the ls_allreduce of this rank's count (of a mask's sum). A
 * division by the count of one rank makes the gradient as many times too large as there are ranks, and ls_mean avoids
 * it. The same applies to statistics of this rank's samples that reach the loss as constants, through ls_detach or
 * ls_no_grad. Rank 0 logs one warning for such a loss in the first 100 passes of the module. It detects a divisor that
 * equals a count of this rank, that differs from rank to rank, or that was computed from the module's output.
 *
 * Other operations that combine samples fail with LS_ERR_UNSUPPORTED on several ranks, because one process would
 * combine those of the global batch: ls_softmax, ls_max or ls_cross_entropy along the axis of the samples, x minus the
 * mean over the samples, ls_sqrt of such a mean, ls_embedding with the samples as rows. The message names the operation
 * and the axis. ls_forward fails if an output of the model depends on such an operation, and ls_backward if the loss
 * does. Remedy: let the ranks exchange the samples (ls_allgather) or the result (ls_allreduce) first; the program is
 * responsible for what it makes of the exchanged values.
 *
 * The library finds such operations by the axis of the samples, which it follows from the first input of the module to
 * the loss: inside the model in its first 100 forward passes and in every 16th after them, which costs nothing in the
 * others, and from the output to the loss in every pass. It does not see, and does not refuse, an operation inside the
 * model if the samples come from further inputs, from elements that the program reads and writes itself, or through
 * ls_custom without `by_sample`; if the axis of the samples was merged with another one and split again in a different
 * way; or if the pass is not recorded (ls_no_grad). Operations that pick or move samples by their positions along the
 * first axis (ls_narrow, ls_index_select, ls_flip, ls_roll; ls_tril and ls_triu of [samples, n], which zero by
 * positions) use the positions in this rank's share, and are not refused. If a program means positions in the global
 * batch, it gathers the batch first.
 *
 * The gradients of other leaves stay on each rank; their average over the ranks is the gradient of one process. While
 * the model trains, batch normalisation is over the samples of all ranks, and dropout draws for each sample the numbers
 * of its place in the whole batch (that of rank 0 comes first), if the ranks are seeded alike: for a model with either
 * (or with a module that says whole_batch) every forward pass in training mode is a collective call. Other random
 * numbers are each rank's own. Parameters that no sample used on some or all ranks are fine. A backward pass that gives
 * the model no gradient on any rank (a loss of its detached outputs) leaves its gradients as they are, and the next
 * pass averages them. `options` may be NULL. A collective call.
 *
 * A step that fails on one rank fails on all ranks, also on those that call ls_data_parallel_skip. All ranks then drop
 * the gradients of the model, or keep those from before the step. So a program that goes on with the next step keeps
 * equal models.
 *
 * All ranks keep the same buffers. A backward pass averages the buffers that a rank has changed since the last pass:
 * each becomes the mean over samples. An empty share adds nothing to the mean. A buffer of integers becomes that of the
 * first rank that has samples. A buffer that no rank has changed keeps its bits, and so does a buffer that all ranks
 * have changed alike. Statistics of batch normalisation need no averaging, because they are those of the global batch.
 *
 * The gradient of a frozen parameter (ls_set_requires_grad(parameter, false)) does not travel, unless the parameter has
 * a gradient from an earlier pass. A parameter may be frozen or unfrozen between two passes, on all ranks alike.
 * LS_ERR_MISMATCH on every rank if it is frozen on some ranks only.
 *
 * Of several inputs (ls_forward_many) the first that is not NULL counts the samples. The others are handed on as each
 * rank gives them: those of samples with this rank's share, what is the same for all samples (a mask of positions)
 * whole, an absent mask or hidden state as NULL. The first axis of each output counts samples, or it is one number, a
 * mean over them. In a recurrent program that calls the module several times before the pass, with outputs of one call
 * as inputs of the next, each call has the same samples.
 */
LS_API ls_module *ls_data_parallel(ls_module *model, ls_comm *comm, const ls_data_parallel_options *options);

/**
 * While `on`, backward passes through the data-parallel module only add to this rank's own gradients. Gradients
 * accumulate as a sum until synchronization is switched on again: the next backward pass averages the sum over ranks.
 * The result is the sum of the gradients of all these passes' global batches, however each batch was shared out. Each
 * such pass has two small all-reduces: one before it, of the losses' divisors, and one after it, through which all
 * ranks learn whether it gave the model a gradient. Every rank must call this alike. For local SGD, leave it
 * on and let each rank step its optimizer; ls_sync_parameters gives all ranks the same parameters again. ls_trial_run
 * does not compare the replicas then.
 */
LS_API ls_status ls_data_parallel_no_sync(ls_module *module, bool on) LS_WARN_UNUSED;

/**
 * Takes part without any samples: what a rank calls, in place of the forward and backward pass, when its share of the
 * batch is empty. Its gradients are then those of the others, and its optimizer steps like theirs. Where the model has
 * batch normalisation or dropout it runs on no samples: tensors like another rank's inputs, whose first axis is 0 where
 * it counts the samples, and zeros where it does not.
 *
 * Every rank needs samples in three cases, which fail with LS_ERR_MISMATCH: a loss of several data-parallel modules'
 * outputs that is not one mean; several calls of a model with batch normalisation or dropout before one backward pass;
 * and a backward pass on detached outputs of the module, which gives it no gradient, before the pass that does.
 */
LS_API ls_status ls_data_parallel_skip(ls_module *module) LS_WARN_UNUSED;

/**
 * Returns the loss of the global batch, the same number on every rank: the mean of the ranks' losses, each scaled by
 * what it divides by (samples, elements, the weights of the targets that count). `loss` is this rank's, one mean over
 * the samples of the last forward pass, before or after its ls_backward. A rank with an empty share gives NULL, after
 * ls_data_parallel_skip; then all ranks call this function after ls_backward. A collective call, with one small
 * all-reduce; on one rank it is ls_item.
 *
 * Returns NAN without an error if no target of the global batch counts. Returns NAN and sets the error on every rank
 * if a rank fails. LS_ERR_UNSUPPORTED for a sum, or for several sums or means added up: call this function for each
 * mean before ls_backward, and add up sums by ls_comm_allreduce. LS_ERR_STATE for a loss that is not recorded
 * (ls_no_grad), or of an earlier pass.
 */
LS_API double ls_data_parallel_loss(ls_module *module, ls_tensor *loss);

/**
 * Compares the parameters of a data-parallel module over the ranks of its communicator, bit by bit, through a hash.
 * Returns LS_ERR_MISMATCH on every rank if they differ; the message names the first parameter that differs, with both
 * values and ranks. For training loops without a trial, after an epoch or before a checkpoint: ls_trial_run does so by
 * itself. Does not compare buffers. Costs one pass over the parameters and one small all-reduce. Returns
 * LS_ERR_ARGUMENT for another module. A collective call.
 */
LS_API ls_status ls_data_parallel_check(ls_module *module) LS_WARN_UNUSED;

/** The communicator of a data-parallel module, lent; NULL for any other module. */
LS_API ls_comm *ls_data_parallel_comm(const ls_module *module);

/* ---- models cut over ranks ------------------------------------------------------------------------------------ */

/**
 * Layers whose parameters are divided over the ranks of `comm` (lent; it must outlive them), each rank with an equal
 * share or, where that does not come out, one more on the first ranks. All ranks feed them the same input and compute
 * the same loss, which counts once: gradients of divided parameters are parts, those of whole ones equal, of what one
 * process would get. Seeded alike, the ranks start with the parts of that process's parameters. `options` may
 * be NULL. To combine with data parallelism, divide the world with ls_comm_split and wrap the model in
 * ls_data_parallel over the ranks that hold the same parts.
 */

/** Options of ls_nn_column_parallel and ls_nn_row_parallel. Zero fields are the defaults. */
typedef struct ls_parallel_linear_options {
    ls_dtype dtype; /**< of the parameters; zero is LS_F32 */
    bool no_bias;   /**< no bias */
} ls_parallel_linear_options;

/** Linear cut along its outputs: this rank's part of y = x weight^T + bias, what ls_nn_row_parallel takes. */
LS_API ls_module *ls_nn_column_parallel(ls_comm *comm, int64_t in, int64_t out,
                                        const ls_parallel_linear_options *options);
/** Linear cut along its inputs, of which it takes this rank's part: y, added up over the ranks. */
LS_API ls_module *ls_nn_row_parallel(ls_comm *comm, int64_t in, int64_t out, const ls_parallel_linear_options *options);
/** The parts of all ranks put together along the last axis, where the next layer is not cut. */
LS_API ls_module *ls_nn_gather_parallel(ls_comm *comm);
/**
 * ls_nn_dropout of what is divided over the ranks along its last axis, as ls_nn_column_parallel leaves it: each rank
 * draws the numbers of its part, so that the whole is that of one process, if the ranks are seeded alike. What every
 * rank has whole takes ls_nn_dropout, which then draws the same on all of them. In training mode a collective call.
 */
LS_API ls_module *ls_nn_parallel_dropout(ls_comm *comm, double p);
/** ls_nn_embedding with the rows of its table divided over the ranks. */
LS_API ls_module *ls_nn_parallel_embedding(ls_comm *comm, int64_t count, int64_t width);

/** In which order a stage takes its micro-batches: 1F1B holds fewer at once, both give the same bits. */
typedef enum ls_pipeline_schedule { LS_PIPELINE_1F1B = 0, LS_PIPELINE_GPIPE } ls_pipeline_schedule;

/** Options of ls_pipeline; zero fields mean the defaults. */
typedef struct ls_pipeline_options {
    int micro_batches;             /**< parts of a batch that follow each other; 0: twice the number of stages */
    ls_pipeline_schedule schedule; /**< 0: LS_PIPELINE_1F1B */
    const int *cut;                /**< the layers that stages 1, 2, ... begin with; NULL: balanced */
    ls_tensor *sample; /**< an input on rank 0 to time the layers with (lent); NULL: balance their parameters */
} ls_pipeline_options;

/**
 * Cuts `model` (an ls_sequential of layers of one input and one output; taken over) into one stage per rank of `comm`
 * (lent; it must outlive the module). Hooks of the layers stay, those of the ls_sequential itself go with it.
 * Layers that share a parameter must lie in one stage. Every rank gives the same model and gets a module of its own
 * stage's layers, under their names in the model, which an optimizer of its own trains. ls_forward of it gives the
 * whole model's output on every rank, without gradient, from rank 0's input (the others give any tensor). To combine
 * with data parallelism, divide the world with ls_comm_split and call ls_sync_gradients over the ranks of the same
 * stage behind ls_pipeline_backward; the pipelines may have different numbers of samples. A collective call.
 */
LS_API ls_module *ls_pipeline(ls_module *model, ls_comm *comm, const ls_pipeline_options *options);

/**
 * One batch through the pipeline and back: adds the gradients of the mean of the criterion over all samples to those of
 * each stage's parameters. Rank 0 gives `input`, the last rank `target`, `criterion` and its `user`; what the others
 * give does not matter. The criterion must be a mean over samples that count alike (a sum, a mean by weights of targets
 * or without ignored ones is LS_ERR_UNSUPPORTED). The first axes count the samples, which the micro-batches share out.
 * `*loss` (may be NULL) becomes that mean on every rank. A stage that fails in mid-step tells the others, which fail
 * with LS_ERR_MISMATCH and its sentence; one that was done before learns of it in its next step. The pipeline takes no
 * more steps then (LS_ERR_STATE where it failed); the communicator is as it was. A collective call.
 */
LS_API ls_status ls_pipeline_backward(ls_module *pipeline, ls_tensor *input, ls_tensor *target, ls_criterion criterion,
                                      void *user, double *loss) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
