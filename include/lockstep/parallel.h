/**
 * @file parallel.h
 * Training on several ranks: differentiable communication of tensors, data parallelism, sharded layers, pipelines.
 *
 * ```c
 * ls_module *replicas = ls_data_parallel(model, world, NULL);
 * ls_tensor *loss = ls_cross_entropy(ls_forward(replicas, x), target, NULL);
 * if (ls_backward(loss) != LS_OK || ls_optimizer_step(optimizer) != LS_OK) {
 *     printf("%s\n", ls_error_message());
 * }
 * ```
 */
#ifndef LOCKSTEP_PARALLEL_H
#define LOCKSTEP_PARALLEL_H

#include <lockstep/autograd.h>
#include <lockstep/batch.h>
#include <lockstep/comm.h>
#include <lockstep/loss.h>
#include <lockstep/nn.h>
#include <lockstep/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- differentiable communication -------------------------------------------------------------------------------- */

/**
 * Communication of tensors through which gradients flow (docs/explanation/differentiable-communication.md).
 *
 * - ls_backward computes on each rank the gradient of the *sum of all ranks' losses*. A rank without a loss calls
 *   ls_backward(ls_scalar(0, LS_F32)).
 * - During each call, the ranks agree on whether a gradient is needed. Some ranks may pass a tensor without gradient,
 *   or make the call under ls_no_grad. If any rank needs a gradient, all ranks of the call must call ls_backward. The
 *   backward pass communicates in the opposite order.
 * - During the backward pass, the ranks agree on each collective. If its result has a gradient on at least one rank,
 *   all ranks take part. Otherwise (ls_detach, a different loss) the collective stays on the tape for a later pass as
 *   long as some rank refers to its result.
 * - The calls are collective, and borrow the communicator until the backward pass. A backward pass after ls_comm_free
 *   fails with LS_ERR_STATE.
 * - If a rank's tensor is NULL because an earlier operation failed, the other ranks of a collective call fail with
 *   LS_ERR_MISMATCH; the message names that rank and quotes its message. The same happens if the loss of a rank is
 *   NULL, or if its backward pass fails. Ranks that have only received messages from the failed rank then get no error.
 */

/**
 * Returns the reduction over ranks of `tensor`, which has the same dtype and shape on all ranks. The result on every
 * rank is bit-identical to the result of ls_comm_allreduce. Gradients exist for LS_SUM, LS_AVG, LS_PROD, LS_MIN and
 * LS_MAX. The gradient of LS_MIN and LS_MAX goes to the rank with the extreme value; on a tie, to the lowest rank.
 * Fails with LS_ERR_MISMATCH if shapes, dtypes or reductions differ; the message names the ranks. Fails with
 * LS_ERR_UNSUPPORTED if the dtype does not have the reduction, and with LS_ERR_ARGUMENT for LS_MINLOC and LS_MAXLOC.
 */
LS_API ls_tensor *ls_allreduce(ls_comm *comm, ls_tensor *tensor, ls_reduction reduction);

/** Returns the same reduction on rank `root`. Other ranks get zeros of the same shape, whose gradient is ignored. */
LS_API ls_tensor *ls_reduce(ls_comm *comm, ls_tensor *tensor, ls_reduction reduction, int root);

/**
 * Returns this rank's part of the same reduction, split along `axis`. If the size is not divisible by the number of
 * ranks, the first ranks get one more position. Axes may be negative, here and below.
 */
LS_API ls_tensor *ls_reduce_scatter(ls_comm *comm, ls_tensor *tensor, int axis, ls_reduction reduction);

/** Returns a copy of rank root's `tensor` on every rank. The other ranks' tensors are ignored and may be NULL. */
LS_API ls_tensor *ls_broadcast(ls_comm *comm, ls_tensor *tensor, int root);

/**
 * Returns the concatenation of all ranks' tensors along `axis`, ordered by rank, on rank `root`. The tensors may differ
 * in size along the axis. Other ranks get a tensor of size 0 along the axis.
 */
LS_API ls_tensor *ls_gather(ls_comm *comm, ls_tensor *tensor, int axis, int root);

/** Returns the same concatenation on every rank. */
LS_API ls_tensor *ls_allgather(ls_comm *comm, ls_tensor *tensor, int axis);

/**
 * Returns this rank's `count` positions along `axis` of rank root's tensor. The parts are ordered by rank, and the
 * counts of all ranks add up to the size of the axis. The other ranks' tensors are ignored and may be NULL. Only the
 * root's `axis` is used.
 */
LS_API ls_tensor *ls_scatter(ls_comm *comm, ls_tensor *tensor, int axis, int64_t count, int root);

/**
 * Concatenates the tensors of all ranks along `gather_axis`, and returns this rank's `count` positions of the result
 * along `scatter_axis`. The parts are ordered by rank, and the counts of all ranks add up to the size of scatter_axis.
 * The tensors may differ in size along gather_axis. With equal axes, the call redistributes the positions.
 */
LS_API ls_tensor *ls_alltoall(ls_comm *comm, ls_tensor *tensor, int gather_axis, int scatter_axis, int64_t count);

/**
 * A message or a collective call in progress. Opaque. The innermost scope owns the handle until ls_handle_wait. Every
 * handle needs one ls_handle_wait before its scope ends.
 */
typedef struct ls_handle ls_handle;

/**
 * Starts to send `tensor` to rank `dest`, which receives it with the same tag (0 to 2^30 - 1), shape and dtype.
 * Messages between two ranks with the same tag arrive in the order of the sends. If `tensor` needs a gradient, `dest`
 * sends it in the backward pass. Do not change the tensor before ls_handle_wait: the call does not notice the change,
 * and the receiver may get old or new elements. If the tensor is NULL because an earlier operation failed, the receiver
 * gets an error. ls_irecv cannot receive messages from ls_comm_send: use different tags.
 */
LS_API ls_handle *ls_isend(ls_comm *comm, ls_tensor *tensor, int dest, int tag);

/** Starts to receive a tensor of this shape and dtype from rank `source`. ls_handle_wait returns the tensor. */
LS_API ls_handle *ls_irecv(ls_comm *comm, ls_shape shape, ls_dtype dtype, int source, int tag);

/**
 * Starts ls_allreduce. Returns a handle, or NULL on failure. ls_handle_wait returns the result: bit-identical to the
 * result of ls_allreduce, and with the same gradient. Other ranks may call ls_allreduce instead. The following also
 * applies to the other functions whose names end with `_begin`:
 *
 * ```c
 * ls_handle *handle = ls_allreduce_begin(world, x, LS_SUM);
 * ls_tensor *output = ls_forward(model, x); // while the ranks exchange x
 * ls_tensor *sum = ls_handle_wait(handle);
 * ```
 *
 * - Arguments, shapes and errors are the same as for the call without `_begin`.
 * - All ranks must start the calls of a communicator in the same order. Each rank may wait for them in any order.
 * - The start waits until the ranks have agreed on shapes, and until earlier collective calls on it have ended. So
 *   one call of each communicator is in progress at a time. The elements move during other calls to the library on
 *   this thread, or in a progress thread (`.progress_thread` of ls_init_options).
 * - The backward pass communicates in the reverse of the start order, for any order of the waits.
 * - Do not change the tensor before ls_handle_wait, which may otherwise fail with LS_ERR_STATE. It does not notice
 *   writes through ls_data without ls_mark_changed: the result is then undefined. Changes to another view of the same
 *   tensor (ls_narrow) count as changes to the tensor, even if the views have no element in common.
 * - If the program calls ls_comm_free or ls_finalize before ls_handle_wait, ls_handle_wait fails on this rank, unless
 *   the elements have already arrived.
 */
LS_API ls_handle *ls_allreduce_begin(ls_comm *comm, ls_tensor *tensor, ls_reduction reduction);

/** Starts ls_allgather, as ls_allreduce_begin starts ls_allreduce. */
LS_API ls_handle *ls_allgather_begin(ls_comm *comm, ls_tensor *tensor, int axis);

/** Starts ls_reduce_scatter, as ls_allreduce_begin starts ls_allreduce. */
LS_API ls_handle *ls_reduce_scatter_begin(ls_comm *comm, ls_tensor *tensor, int axis, ls_reduction reduction);

/** Starts ls_broadcast, as ls_allreduce_begin starts ls_allreduce. */
LS_API ls_handle *ls_broadcast_begin(ls_comm *comm, ls_tensor *tensor, int root);

/** Starts ls_alltoall, as ls_allreduce_begin starts ls_allreduce. */
LS_API ls_handle *ls_alltoall_begin(ls_comm *comm, ls_tensor *tensor, int gather_axis, int scatter_axis, int64_t count);

/**
 * Waits for the message or the collective call. Returns the result of the call, the received tensor, or the sent tensor
 * (through which its gradient continues).
 *
 * Fails with LS_ERR_MISMATCH if rank `source` sent a different shape or dtype. The message is dropped, and the
 * communicator stays usable. Fails with LS_ERR_STATE if the program has already waited for the handle, or if its scope
 * has ended.
 *
 * If the program does not wait for a handle:
 *
 * - ls_scope_end waits for a collective call, and then returns LS_ERR_STATE, or the call's own error, with the name of
 *   the call.
 * - ls_scope_end waits for a message. If the timeout passes, a rank of the communicator dies, or the partner leaves
 *   (ls_comm_free, ls_finalize) before the message has arrived, it returns LS_ERR_TIMEOUT or LS_ERR_PEER with the rank
 *   and the tag.
 * - ls_backward ends recorded collective calls before it starts, and receives messages for ls_irecv, because the
 *   sender may need the gradient. ls_handle_wait still returns the tensor afterwards.
 */
LS_API ls_tensor *ls_handle_wait(ls_handle *handle);

/**
 * Calls ls_isend and ls_handle_wait. Two ranks that both send large tensors before they receive wait for each other.
 */
LS_API ls_tensor *ls_send(ls_comm *comm, ls_tensor *tensor, int dest, int tag);

/** Calls ls_irecv and ls_handle_wait. */
LS_API ls_tensor *ls_recv(ls_comm *comm, ls_shape shape, ls_dtype dtype, int source, int tag);

/**
 * Returns `tensor` with an additional dependency on `others`, which get no gradient from it (mpi4torch's JoinDummies).
 * Communication does not need it; it helps to port programs that use JoinDummies.
 */
LS_API ls_tensor *ls_join_dummies(ls_tensor *tensor, ls_tensor *const *others, int count);

/**
 * Checks gradients over several ranks. Compares the gradients of the sum over ranks of sum(w * function(inputs)) with
 * central differences, for every element of every input that requires a gradient. Inputs may differ between ranks, and
 * a rank may have none. All ranks must call it, and all ranks fail if any gradient is wrong. The message on the rank of
 * the input has the details.
 */
LS_API ls_status ls_gradcheck_distributed(ls_comm *comm, ls_function function, ls_tensor **inputs, int count,
                                          void *user, const ls_gradcheck_options *options) LS_WARN_UNUSED;

/* ---- training on many ranks -------------------------------------------------------------------------------------- */

/**
 * Copies the parameters and buffers of rank `root` to every rank. Fails with LS_ERR_MISMATCH on every rank if the
 * models differ in names, shapes or dtypes. Fails with LS_ERR_UNSUPPORTED on every rank if the ranks hold different
 * shards of a parameter (ls_nn_column_parallel).
 */
LS_API ls_status ls_sync_parameters(ls_module *model, ls_comm *comm, int root) LS_WARN_UNUSED;

/**
 * Replaces every gradient with its mean over ranks. A missing gradient counts as zero if another rank has a gradient
 * for the parameter; otherwise it stays missing. Every rank fails with LS_ERR_MISMATCH if shapes or dtypes
 * differ, or if the ranks hold different shards of a parameter. Fails with LS_ERR_UNSUPPORTED if a data-parallel module
 * with `.zero` = 2 or 3 has some of the parameters.
 *
 * Gradients of an ls_pipeline are scaled by the number of samples in ls_pipeline_backward, so that the result is the
 * mean over the samples of all ranks. A rank without samples contributes nothing. Fails with LS_ERR_STATE if the
 * accumulated steps distributed their samples over the ranks differently. Batch normalization and dropout use each
 * rank's samples; a warning says so.
 */
LS_API ls_status ls_sync_gradients(ls_module *model, ls_comm *comm) LS_WARN_UNUSED;

/**
 * Replaces each tensor with its reduction over the ranks, bit-identical to ls_comm_allreduce. Makes one call on the
 * communicator per dtype, without copies if the tensors of the dtype follow each other in memory. All ranks must pass
 * tensors of the same dtypes and numbers of elements in the same order. Gradients do not flow through it; see
 * ls_allreduce. Fails with LS_ERR_ARGUMENT if a tensor is not contiguous. Rejects the same reductions as ls_allreduce.
 */
LS_API ls_status ls_allreduce_many(ls_comm *comm, ls_tensor *const *tensors, int count,
                                   ls_reduction reduction) LS_WARN_UNUSED;

/**
 * Reduces tensors over ranks, as flashlight's InlineReducer and CoalescingReducer do. Opaque.
 *
 * ```c
 * ls_reducer *reducer = ls_reducer_new(world, &(ls_reducer_options){.bucket_bytes = 1 << 20, .asynchronous = true});
 * ls_status status = ls_reducer_add(reducer, x);
 * status = status == LS_OK ? ls_reducer_finish(reducer) : status;
 * ls_reducer_free(reducer);
 * ```
 */
typedef struct ls_reducer ls_reducer;

/** Options for ls_reducer_new. Zero fields select the defaults. */
typedef struct ls_reducer_options {
    /** Factor that multiplies the sums, for tensors of f32 or f64 only. For any dtype but bool, 1 selects plain sums,
     * and 0 selects means over the ranks. */
    double scale;
    /**
     * Successive tensors of one dtype are reduced together as soon as they have this number of bytes. With 0,
     * ls_reducer_add reduces each tensor by itself.
     */
    size_t bucket_bytes;
    bool asynchronous; /**< ls_reducer_add does not wait; the tensors contain the results after ls_reducer_finish */
} ls_reducer_options;

/** Creates a reducer. Returns ownership to the caller; free it with ls_reducer_free. Borrows `comm`. `options` may be
 * NULL. */
LS_API ls_reducer *ls_reducer_new(ls_comm *comm, const ls_reducer_options *options);

/**
 * Adds a contiguous tensor, which the reducer replaces with its scaled sum over the ranks, in ls_reducer_finish at the
 * latest. Do not change the tensor or add it again before that. All ranks must add tensors of the same dtypes and
 * numbers of elements in the same order. The call is collective if it completes a bucket, or if the dtype changes.
 */
LS_API ls_status ls_reducer_add(ls_reducer *reducer, ls_tensor *tensor) LS_WARN_UNUSED;

/** Reduces the remaining tensors, and waits for all reductions. Returns the first error of a reduction, even if
 * ls_reducer_add has already returned it. A collective call. */
LS_API ls_status ls_reducer_finish(ls_reducer *reducer) LS_WARN_UNUSED;

/** Frees the reducer. Without ls_reducer_finish, tensors whose reduction has not started keep their elements, and other
 * added tensors are undefined. NULL is allowed. */
LS_API void ls_reducer_free(ls_reducer *reducer);

/**
 * Reduces all gradients of a model with `reducer`, and calls ls_reducer_finish. A missing gradient counts as zero if
 * another rank has a gradient for the parameter; otherwise it stays missing. A collective call. If it fails after the
 * reduction has begun, the gradients are undefined, and the reducer is empty, as after ls_reducer_finish.
 *
 * Errors:
 * - LS_ERR_ARGUMENT if the model is data-parallel. Also if ls_data_parallel_no_sync is off for a data-parallel module
 *   that the model contains, is part of, or shares a module with: ls_backward averages the gradients of this module.
 * - LS_ERR_MISMATCH if the ranks have different models, or different shards of a parameter.
 * - LS_ERR_UNSUPPORTED if a data-parallel module with `.zero` = 2 or 3 has some of the parameters.
 */
LS_API ls_status ls_distribute_gradients(ls_module *model, ls_reducer *reducer) LS_WARN_UNUSED;

/**
 * Functions of a wire format: how the ranks of a data-parallel module send their gradients, as in the communication
 * hooks of PyTorch's DistributedDataParallel. Each rank encodes its gradients, the ranks average the encoded numbers
 * element by element (LS_AVG), and each rank decodes the averages. So the format must be linear, apart from rounding.
 *
 * - The functions are called on the thread of ls_backward. Each call covers adjacent parameters: `count` numbers of the
 *   concatenated gradients of the model, starting at index `first`. Each parameter has a multiple of 16 numbers: its
 *   gradient, then zeros. The position of a gradient never changes, so the format can keep the part of each gradient
 *   that was not sent, and add it in the next pass (error feedback).
 * - The gradients are scaled so that the average is the gradient of the global batch.
 * - From the same encoded numbers, `decode` must compute the same bits on all ranks. Otherwise the pass fails with
 *   LS_ERR_MISMATCH on all ranks, with the name of the format.
 * - All ranks need equal formats. A function that fails on one rank fails the pass on all ranks, with the name of the
 *   format and the rank. Then no rank has gradients.
 * - If there is only one rank, the functions are not called.
 */
typedef struct ls_wire_functions {
    const char *name; /**< name in messages (copied), at most 32 bytes */
    ls_dtype dtype;   /**< dtype of the encoded numbers: LS_F32 (zero, the default), LS_F64, LS_BF16 or LS_F16 */
    /** Returns the number of encoded numbers, 0 to `count`, for `count` gradients. The number must be equal on all
     * ranks. NULL selects `count`. */
    int64_t (*length)(int64_t count, void *user);
    /** Encodes `count` gradients, and writes `length` numbers of `dtype` to `encoded`. Returns LS_OK, or an error. */
    ls_status (*encode)(const float *gradients, int64_t first, int64_t count, void *encoded, void *user);
    /** Decodes the averages of the `length` encoded numbers, and writes `count` averaged gradients. Returns LS_OK, or
     * an error. */
    ls_status (*decode)(const void *encoded, int64_t first, int64_t count, float *gradients, void *user);
    void (*release)(void *user); /**< frees `user` with the format; NULL means that the format borrows `user` */
} ls_wire_functions;

/** A wire format. Opaque. */
typedef struct ls_wire_format ls_wire_format;

/**
 * Creates a wire format for `.wire` of ls_data_parallel_options. Copies `functions`, and passes `user` to each of them.
 * Takes ownership of `user` if `release` is set, even on failure; otherwise borrows it. Returns ownership to the
 * caller; free the format with ls_wire_format_free. Returns NULL with LS_ERR_ARGUMENT if the name, `encode` or `decode`
 * is missing, if the name is too long, or if the dtype is not supported.
 */
LS_API ls_wire_format *ls_wire_format_new(const ls_wire_functions *functions, void *user);

/** Drops the caller's reference. The format is freed when its last reference, which may be a module's, is dropped.
 * NULL is allowed. */
LS_API void ls_wire_format_free(ls_wire_format *format);

/** Selects when a data-parallel module averages its gradients. All choices give bit-identical results, unless a `.wire`
 * encodes several numbers together. */
typedef enum ls_overlap_mode {
    LS_OVERLAP_AUTO = 0, /**< on for backends tcp and mpi if the gradients take up 512 KiB or more; otherwise off */
    LS_OVERLAP_ON,       /**< in buckets, during the backward pass, while it computes the other gradients */
    LS_OVERLAP_OFF       /**< all at once, after the backward pass */
} ls_overlap_mode;

/** Options for ls_data_parallel. A zero field selects the default. */
typedef struct ls_data_parallel_options {
    bool no_initial_sync; /**< omits the initial copy; the ranks' parameters and buffers must already be equal */
    /**
     * LS_BF16 or LS_F16 sends gradients in half the bytes, as PyTorch's bf16_compress_hook does. Rabenseifner's
     * algorithm, for large vectors on many ranks, needs three quarters, because it sends partial sums in f32
     * (docs/internals/communicator.md). LS_F32 (zero, the default) sends them unchanged.
     *
     * Each rank's share is rounded, the shares are added in f32, and the mean is rounded once more. With the mean g and
     * the mean m of the magnitudes, the error of an element is at most u (m + |g|); u is 2^-8 for bf16 and 2^-11 for
     * f16. f16 overflows to Inf beyond 65504. Below 2^-14, it adds at most 2^-24 to the error.
     *
     * The results are still bit-identical on all ranks. Other data stays f32. Fails with LS_ERR_UNSUPPORTED if a
     * parameter is f64.
     */
    ls_dtype reduce_dtype;
    /**
     * A positive number r compresses gradients with PowerSGD (Vogels et al., arXiv 1905.13727): a gradient of n rows
     * and m columns is averaged as the product of two matrices of r columns. A tensor with more axes is treated as a
     * matrix with size[0] rows. Tensors with one axis, and gradients with (n + m) r >= n m, are sent unchanged. 0
     * switches PowerSGD off.
     *
     * The averaged gradients are approximate: see docs/explanation/data-parallel.md. Each rank keeps the part of its
     * gradients that was not sent, and adds it to its gradients of the next pass (error feedback). This part needs as
     * much memory as the gradients. The results are still bit-identical on all ranks. A checkpoint of a trial contains
     * the part of each rank.
     *
     * All ranks must pass the same value. On one rank, gradients are unchanged. Fails with LS_ERR_UNSUPPORTED if it is
     * combined with `.reduce_dtype` or `.zero` = 2 or 3, if a parameter is f64, or if the model is on a GPU.
     */
    int powersgd_rank;
    /**
     * A user-defined wire format (ls_wire_format_new), for f32 gradients. The module adds a reference. All ranks must
     * pass a format with the same name, dtype and functions. A checkpoint does not contain the state of its functions.
     * Fails with LS_ERR_UNSUPPORTED if it is combined with `.reduce_dtype`, `.powersgd_rank`, `.shards`, or `.zero` = 2
     * or 3, if a parameter is f64, or if the model is on a GPU. NULL selects no user-defined format.
     */
    ls_wire_format *wire;
    /**
     * Whether gradients are averaged during the backward pass, as in PyTorch's DistributedDataParallel. While it is on:
     *
     * - A gradient hook (ls_add_grad_hook) may read and change the gradient of its own parameter. Gradients of other
     *   parameters may already be averaged, or may be in use by the communication.
     * - The module has two private communicators, so that other calls do not wait for gradients.
     *
     * Ignored (off) if there is only one rank, with `.powersgd_rank`, if the gradients are on a GPU, and if another
     * data-parallel module shares parameters with this module. All ranks must pass the same value.
     *
     * With `.shards`, buckets are sent during the backward pass of each rank's last slice. Ignored (off) with batch
     * normalization, and if the quotient of S and the number of ranks is not a power of two.
     *
     * With `.zero` = 2 or 3, the module has one private communicator instead of two, and gradient hooks are rejected.
     * The gradients of a unit are averaged during the backward pass of the next unit. With `.zero` = 3, the parameters
     * of the next unit are gathered while a unit runs. See docs/explanation/sharded-state.md.
     */
    ls_overlap_mode overlap;
    /**
     * Bytes of gradients that one all-reduce averages during the backward pass. Whole parameters are added to a bucket
     * until it has this size. 0 selects an eighth of all gradients, at least 256 KiB and at most 4 MiB. Ignored with
     * `.zero` = 2 or 3.
     */
    size_t bucket_bytes;
    /**
     * Stage of ZeRO: selects what is divided among the ranks, instead of replicated
     * (docs/explanation/sharded-state.md).
     *
     * - 0: nothing
     * - 1: the state of optimizers
     * - 2: the gradients of units, too. Units are the modules with ls_recompute or, without any, the layers of an
     *   ls_sequential.
     * - 3: the parameters of units, too. A rank has all parameters of a unit only while the unit runs.
     *
     * With Adam in f32 on P ranks, N parameters need 16N, 8N + 8N/P, 4N + 12N/P and 16N/P bytes in stages 0 to 3, and
     * in stages 2 and 3 also the bytes of one to four units. Results are bit-identical to stage 0, except if ranks have
     * different numbers of samples, or if gradients of several passes add up.
     *
     * On one rank, every stage works like stage 0. All ranks must pass the same stage. Create optimizers after
     * ls_data_parallel, for the module that it returns. ls_optimizer_step, ls_optimizer_state and ls_optimizer_save are
     * then collective calls; in stages 2 and 3, ls_forward, ls_clip_grad_norm and ls_grad_scaler_unscale are, too.
     * ls_lamb and ls_muon keep whole parameters on a rank. In stages 2 and 3, fails with LS_ERR_UNSUPPORTED on a GPU,
     * with .powersgd_rank, or with .wire. ls_lbfgs and ls_conjugate_gradient fail in stages 1 to 3. Fails with
     * LS_ERR_UNSUPPORTED if another data-parallel module has some of the parameters, with LS_ERR_ARGUMENT if a model
     * has no units in stages 2 and 3, and with LS_ERR_MISMATCH on all ranks if they pass different stages.
     */
    int zero;
    /**
     * The number of slices S, between the number of ranks and 4,096: training is bit-identical on 1 to S ranks
     * (docs/explanation/same-bits.md). Each global batch is divided into S slices. A rank runs several slices, and all
     * sums over slices are added in the order of one tree. The results equal the results of S ranks without this
     * option. 0 switches this off. On one rank, 1 does, too.
     *
     * Set `.shards` of ls_loader_options to the same number. Train with ls_data_parallel_step or a trial: ls_forward
     * outside of them fails with LS_ERR_STATE if operations are recorded, or if batch normalization or dropout is in
     * training mode. A slice of 32 samples or more runs at nearly the speed of a large batch.
     *
     * A rank runs its slices one after the other. It needs memory for the activations of one slice, and for a few
     * copies of the gradients. With batch normalization, the slices take turns from layer to layer, so the activations
     * and the gradients of all slices are in memory at once.
     *
     * All ranks must pass the same number. Fails with LS_ERR_ARGUMENT if S is not 0 and less than the number of ranks,
     * and with LS_ERR_UNSUPPORTED if it is combined with .reduce_dtype, .powersgd_rank or .zero = 2 or 3, if the model
     * is on a GPU, or if another data-parallel module has some of the parameters. A step fails with LS_ERR_UNSUPPORTED
     * if ls_comm_set_any_order is on, or if the forward pass communicates or changes buffers other than running
     * statistics.
     */
    int shards;
} ls_data_parallel_options;

/**
 * Returns a module that the ranks of `comm` train together. Every backward pass produces on every rank the gradient
 * that one process with the global batch would get. docs/explanation/data-parallel.md explains losses, operations and
 * failures.
 *
 * Takes ownership of `model`, and borrows `comm`. `options` may be NULL. A collective call.
 *
 * - Parameters and buffers start as copies of rank 0's (ls_sync_parameters).
 * - The first axis of inputs and outputs counts samples. Ranks may have different numbers of samples; a rank without
 *   samples calls ls_data_parallel_skip.
 * - A mean divides by the denominator of the global batch: elements, weights of targets, or targets that are not
 *   ignored. A sum is the sum over all ranks. Terms that depend only on the parameters count once, and so does a sum
 *   over samples that the program itself adds up with ls_allreduce over `comm`. All-reduce sums and means separately.
 * If the loss is not a single mean, the ranks exchange a few numbers before the pass.
 * - A divisor that the program computes must be the global one: ls_batch.global_count, or ls_allreduce of this rank's
 *   count. The same applies to statistics that reach the loss as constants (ls_detach, ls_no_grad). In the first 100
 *   passes, rank 0 warns once about a divisor that equals a count of this rank, differs between ranks, or was computed
 *   from the output; constant weights that sum to one on each rank; and samples paired with constants of other samples.
 * - Other operations that combine samples fail with LS_ERR_UNSUPPORTED on several ranks, if ls_forward or ls_backward
 *   finds that the output or the loss depends on them. Examples are ls_softmax along the axis of the samples, x minus
 *   its mean over the samples, ls_embedding with the samples as rows, ls_reduce and ls_gather. The message names the
 *   operation. Exchange the samples (ls_allgather) or the result (ls_allreduce) first. If the ranks have different
 *   numbers of samples, all-reduce sums, and divide by the global count. The page lists the operations that are not
 *   detected, such as ls_alltoall between output and loss.
 * - Operations that select or move samples by position (ls_narrow, ls_slice, ls_index_select, ls_flip, ls_roll, ls_tril
 *   and ls_triu of [samples, n]) use positions in this rank's share.
 * - In training mode, batch normalization uses the global batch, and dropout draws by the index of a sample in the
 *   global batch if the ranks have the same seed. Each forward pass of such a model, or of a module with whole_batch,
 *   is then a collective call. Other random numbers are local.
 * - Parameters may be unused on some or all ranks. A pass that reaches the model on no rank leaves its gradients
 *   unchanged; the next pass averages them. The gradients of leaves outside the model stay local. If the loss also
 *   depends on the model, they may be scaled by this rank's share of the global batch. Their average over the ranks is
 *   the gradient of one process if the ranks have equal denominators.
 * - A step that fails on one rank fails on all ranks. All ranks then have the gradients from before the step, or none,
 *   so a program that continues keeps equal models. With `.zero` = 2 or 3, later steps fail with LS_ERR_STATE after
 *   a failure in the backward pass of a unit, or in an exchange of parameters or gradients. Then load a checkpoint
 *   (ls_trial_load or ls_optimizer_load), or stop.
 * - A backward pass averages, over samples, the buffers that a rank has changed since the last pass. An integer buffer
 *   is copied from the first rank with samples. Buffers that no rank has changed, or that all ranks have changed in the
 *   same way, keep their bits.
 * - The gradient of a frozen parameter is not sent, unless it has a gradient from an earlier pass. Freeze and unfreeze
 *   in the same way on all ranks: if the ranks send different gradients, every rank gets LS_ERR_MISMATCH.
 * - With several inputs (ls_forward_many), the first input that is not NULL counts samples. Pass inputs per sample as
 *   this rank's share, inputs for all samples (a mask of positions) whole, and an absent mask or hidden state as NULL.
 *   An output may also be one number, a mean over the samples. The loss must then be linear in this number: the library
 *   does not notice a sum over the samples, or a function such as ls_square.
 * - The first ls_backward after a call of the module averages gradients, even if its loss does not depend on the
 *   module. So run passes of a rank's own models before the call, or after this ls_backward.
 * - The module may be called several times before ls_backward. On each rank, all these calls must have the same number
 *   of samples. One ls_backward may use the outputs of all calls. Or each ls_backward uses the outputs of some calls;
 *   for example, the losses of real and of generated samples. Then each ls_backward whose loss depends on an unused
 *   output averages its gradients, too; other losses, such as a penalty on parameters (refused with .zero = 2 and 3),
 *   add this rank's gradients. Run the same passes on all ranks: ls_backward fails with LS_ERR_MISMATCH on every rank
 *   if the passes are of different modules, or if only some ranks have cleared their gradients. Other differences are
 *   not detected.
 *
 * Errors, in addition to the errors of the options:
 *
 * - LS_ERR_MISMATCH, on every rank: the options or the models differ between the ranks.
 * - LS_ERR_UNSUPPORTED: a parameter is bf16 or f16, the ranks hold different shards of a parameter, or another
 *   data-parallel module with `.zero` = 2 or 3 has some of the parameters.
 * - LS_ERR_ARGUMENT: no parameter is floating-point.
 */
LS_API ls_module *ls_data_parallel(ls_module *model, ls_comm *comm, const ls_data_parallel_options *options);

/**
 * Switches local accumulation on or off. While it is on, backward passes add gradients on each rank without
 * communicating them. The first backward pass after it is switched off averages the sum over the ranks. The result is
 * the sum of the gradients of all these passes' global batches, for any distribution of the samples.
 *
 * All ranks must make the same call. Each of these passes has two small all-reduces: before it for the denominators of
 * the loss, and after it to agree on whether it gave the model a gradient. While accumulation is on, ls_trial_run does
 * not compare the replicas, and ls_optimizer_step fails with LS_ERR_STATE if `.zero` is set. For local SGD, see
 * ls_outer. Fails with LS_ERR_UNSUPPORTED if it is switched on with `.shards`.
 */
LS_API ls_status ls_data_parallel_no_sync(ls_module *module, bool on) LS_WARN_UNUSED;

/**
 * Returns the loss of the samples in `batch`, which ls_backward accepts, or NULL with an error. ls_data_parallel_step
 * calls it in a separate scope.
 */
typedef ls_tensor *(*ls_loss_function)(const ls_batch *batch, void *user);

/**
 * Computes the gradients of one global batch. Calls `function` for the samples of this rank, and ls_backward for the
 * loss that it returns. This adds the gradients of the global batch to the gradients of all ranks. While
 * ls_data_parallel_no_sync is on, each rank gets only the gradients of its samples. The program's optimizer takes its
 * step afterwards. Works for every data-parallel module. A collective call: every rank must call it for every batch,
 * even if its share of the batch is empty. If `function` itself calls ls_backward for another loss, every rank must
 * have samples.
 *
 * ```c
 * static ls_tensor *loss_of(const ls_batch *batch, void *user) {
 *     ls_module *model = (ls_module *)user;
 *     return ls_cross_entropy(ls_forward(model, batch->input), batch->target, NULL);
 * }
 *
 * static ls_status train_on(const ls_batch *batch) {
 *     ls_optimizer_zero_grad(optimizer);
 *     ls_status status = ls_data_parallel_step(model, batch, loss_of, model);
 *     return status == LS_OK ? ls_optimizer_step(optimizer) : status;
 * }
 * ```
 *
 * `batch` is this rank's share of a global batch, from ls_loader_next. With `.shards`, `function` is called for each
 * non-empty slice of the share: `input` and `target` are the slice's rows, and `first` and `count` describe the slice.
 * Each call starts with the random numbers of the same stream. The function must not communicate. If slices take turns
 * (see `.shards`), calls for several slices are in progress at the same time: the function must not keep data of a call
 * in variables that all calls share.
 *
 * With `.shards`, the ranks may have to agree on scaling factors before the backward passes. So the function is called
 * for each slice:
 *
 * - at least twice in the first step
 * - up to three times in the first step, and up to twice in every later step, if the loss is not one mean over samples
 * - once in all other steps
 *
 * After this call, ls_data_parallel_loss(module, NULL) returns the loss of the global batch, if it is one mean over
 * samples. Fails with LS_ERR_ARGUMENT if `module` is not data-parallel, if `batch` or `function` is NULL, if
 * `input` is NULL and `count` is not 0, and if the share is not the samples of this rank's slices. If the function or a
 * pass fails on a rank, the call fails on all ranks.
 */
LS_API ls_status ls_data_parallel_step(ls_module *module, const ls_batch *batch, ls_loss_function function,
                                       void *user) LS_WARN_UNUSED;

/**
 * Takes part in a pass for which this rank has no samples. Call it instead of the forward and backward pass; with
 * several backward passes in a step, once for each backward pass that averages gradients. If a loss uses several
 * data-parallel modules, call it for each of them, in the order of their forward passes. This rank then gets the
 * gradients of the other ranks. A model with batch normalization or dropout runs on zero samples: inputs like another
 * rank's, with size 0 along the sample axis, and zeros if an input has no sample axis.
 *
 * Fails with LS_ERR_STATE with `.shards`, and with LS_ERR_MISMATCH in cases in which every rank needs samples:
 *
 * - a loss that uses several data-parallel modules and is not one mean over samples
 * - a model with batch normalization or dropout, or a module with `.zero` = 2 or 3, if it is called several times
 *   before one backward pass, or if several backward passes follow one call
 * - a backward pass that uses only detached outputs of the module, before the pass that computes the module's gradient
 */
LS_API ls_status ls_data_parallel_skip(ls_module *module) LS_WARN_UNUSED;

/**
 * Returns the loss of the global batch, the same number on every rank: the mean of the ranks' losses, scaled by their
 * denominators. `loss` is one mean over the samples of the last forward pass. A collective call, with one small
 * all-reduce. On one rank, returns ls_item(loss) if the loss is not NULL and the module has no `.shards`.
 *
 * Call it before or after ls_backward. If a rank has no samples, this rank passes NULL after ls_data_parallel_skip, and
 * all other ranks make the call after ls_backward. After ls_data_parallel_step, all ranks pass NULL. Returns NAN
 * without an error if no target of the global batch counts. On failure, returns NAN on every rank and sets the error:
 *
 * - LS_ERR_UNSUPPORTED: the loss contains a sum over samples, or several means. Call the function for each mean before
 *   ls_backward, and add up sums with ls_comm_allreduce.
 * - LS_ERR_STATE: the loss is not recorded (ls_no_grad), is the result of a captured step (ls_step_result), or had its
 *   ls_backward before the last forward pass.
 * - LS_ERR_ARGUMENT: the loss is NULL, without an earlier error, although this rank has run a forward pass since its
 *   last ls_data_parallel_step or ls_data_parallel_skip. Or the loss is not NULL, and the module has `.shards`.
 * - another status: the loss is not one number, or a rank failed. A rank has also failed if it passes NULL after an
 *   error, for example because its loss could not be computed.
 */
LS_API double ls_data_parallel_loss(ls_module *module, ls_tensor *loss);

/**
 * Compares the parameters of a data-parallel module over its ranks, bit by bit, through a hash. Does not compare
 * buffers. Use it after an epoch or before a checkpoint; ls_trial_run does so itself. Costs one pass over the
 * parameters and one small all-reduce. A collective call.
 *
 * Fails with LS_ERR_MISMATCH on every rank if parameters differ. The message names the first such parameter, with both
 * values and ranks. Fails with LS_ERR_ARGUMENT if `module` is not data-parallel.
 */
LS_API ls_status ls_data_parallel_check(ls_module *module) LS_WARN_UNUSED;

/**
 * Gives every rank all parameters of a data-parallel module with .zero = 3 if `on` is true, until the function is
 * called with false. ls_trial_load and `.resume` keep that state. Call it before the program itself reads or changes
 * parameters: ls_module_save, ls_module_load, ls_module_hash, ls_sync_parameters. Change parameters in the same way on
 * all ranks. Does nothing for other stages. A collective call.
 *
 * With false, it fails in the following cases, and every rank keeps all parameters:
 *
 * - LS_ERR_MISMATCH: the ranks have changed parameters differently. Call ls_sync_parameters first. A change through
 *   ls_data is only noticed after ls_mark_changed.
 * - LS_ERR_STATE: an ls_alias or ls_detach of a parameter exists, which would lose its elements. Ranks without one fail
 *   with LS_ERR_MISMATCH.
 *
 * Fails with LS_ERR_ARGUMENT if `module` is not data-parallel, and with LS_ERR_STATE if it must communicate after
 * ls_comm_free.
 */
LS_API ls_status ls_data_parallel_gather(ls_module *module, bool on) LS_WARN_UNUSED;

/** Returns a borrowed pointer to the communicator of a data-parallel module. Returns NULL for any other module. */
LS_API ls_comm *ls_data_parallel_comm(const ls_module *module);

/* ---- rare communication ------------------------------------------------------------------------------------------ */

/**
 * Local SGD (Stich, arXiv 1805.09767) and DiLoCo (Douillard et al., arXiv 2311.08105), for slow networks: each rank
 * trains a replica of the model with its own optimizer on its own samples. Every `.steps` training steps, an outer step
 * makes the replicas equal. The gradient of its outer optimizer is a difference, averaged over the ranks: the
 * parameters after the last outer step minus the current parameters. ls_outer_step communicates only in outer steps.
 *
 * ```c
 * ls_optimizer *adam = ls_adam(model, NULL);
 * ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 32});
 * // in every training step, after the backward pass:
 * ls_status status = ls_optimizer_step(adam);
 * if (status == LS_OK) {
 *     status = ls_outer_step(outer);
 * }
 * // before the model is evaluated or saved:
 * status = ls_outer_sync(outer);
 * ```
 *
 * docs/howto/slow-networks.md helps to choose the options. Opaque.
 */
typedef struct ls_outer ls_outer;

/**
 * Options for ls_outer_new. A zero field selects the default. All ranks must pass the same values.
 *
 * The default learning rate and momentum are DiLoCo's, for long runs. In short runs, they can lose accuracy:
 * examples/fashion_mnist, with 32 training steps between outer steps, needs a learning rate of 0.5 and momentum 0.8.
 * DiLoCo takes an outer step every 500 training steps.
 */
typedef struct ls_outer_options {
    int64_t steps;        /**< number of training steps from one outer step to the next; 0 selects the default, 32 */
    double learning_rate; /**< learning rate of the outer optimizer; 0 selects the default, 0.7 */
    double momentum; /**< Nesterov momentum of the outer optimizer; 0 selects the default, 0.9; LS_ZERO selects none */
} ls_outer_options;

/**
 * Creates an outer optimizer. Copies the parameters and buffers of rank 0 to every rank, as ls_sync_parameters does.
 * Keeps references to `model` and `comm`. `options` may be NULL. Returns ownership to the caller: free it with
 * ls_outer_free. Returns NULL on failure. A collective call.
 *
 * - `model` must not be data-parallel over `comm`, unless ls_data_parallel_no_sync is on. It may be data-parallel over
 *   other ranks, for example over the ranks of each machine.
 * - With `.learning_rate = 1` and `.momentum = LS_ZERO`, an outer step replaces the parameters with their mean over the
 *   ranks (local SGD).
 * - Floating-point buffers, such as the statistics of batch normalization, are averaged in outer steps. Integer buffers
 *   become equal to rank 0's. Batch normalization and dropout otherwise work on each rank's samples.
 * - Load weights and add layers before this call. Freeze and unfreeze parameters in the same way on all ranks.
 * - On each rank, the outer optimizer needs twice as much memory as the floating-point parameters of the model, also
 *   the frozen ones: for the parameters after the last outer step, and for the momentum. Without momentum, it needs
 *   half of this memory. Local SGD needs none.
 * - One rank runs the same outer steps, without communication.
 *
 * Errors:
 *
 * - LS_ERR_ARGUMENT: an option is out of range, `model` is itself data-parallel over `comm`, or no parameter is
 *   floating-point.
 * - LS_ERR_MISMATCH, on every rank: the options or the models differ between the ranks.
 * - LS_ERR_UNSUPPORTED: a parameter is sharded over ranks of `comm`, the model is data-parallel with `.zero`, a
 *   parameter is bf16 or f16 (except for local SGD), or an ls_alias refers to a parameter that must move to other
 *   memory.
 *
 * These failures leave all parameters unchanged. If a failure has its cause on only some ranks (for example an
 * ls_alias), all other ranks fail with LS_ERR_MISMATCH. Their message contains the message of the lowest rank that has
 * the cause.
 */
LS_API ls_outer *ls_outer_new(ls_module *model, ls_comm *comm, const ls_outer_options *options);

/**
 * Counts a training step. Call it on every rank after every step of the rank's optimizer, even if the rank had no
 * samples. Every `.steps` steps, it is a collective call and runs the outer step: afterwards, the parameters are
 * bit-identical on all ranks. Parameters of integer dtypes have rank 0's values. With momentum, or with a learning rate
 * that is not 1, the outer step clears all gradients.
 *
 * From the first counted step after an outer step to the next outer step, the parameters of the ranks differ, except
 * with one rank. Evaluations of a trial, checkpoints, ls_module_save, ls_module_hash and ls_data_parallel_check then
 * fail with LS_ERR_STATE, also for a module that contains the model. If a model has several ls_outer, they fail until
 * each of them has run its outer step.
 *
 * A parameter that is frozen during the outer step gets the mean of the ranks' values, without learning rate and
 * momentum. If it has not changed on any rank since the last outer step, the outer step does not change it either.
 *
 * Errors:
 *
 * - LS_ERR_MISMATCH, on every rank, in an outer step: the ranks have taken different numbers of steps, or have frozen
 *   different parameters.
 * - LS_ERR_STATE, on every rank, in an outer step: ls_module_load has changed the parameters of a rank since the last
 *   outer step (not for local SGD). Load the same weights on rank 0 or on all ranks, and create the outer optimizer
 *   again.
 * - LS_ERR_STATE: layers were added after ls_outer_new, or `outer` or its communicator was freed.
 *
 * If a rank fails in its training step, it must not continue: the other ranks get LS_ERR_PEER when it exits. In a
 * trial, they get its status and its message.
 */
LS_API ls_status ls_outer_step(ls_outer *outer) LS_WARN_UNUSED;

/**
 * Runs an outer step immediately if any training step was taken since the last outer step. The next `.steps` steps
 * count from here. A collective call. Fails as ls_outer_step does.
 */
LS_API ls_status ls_outer_sync(ls_outer *outer) LS_WARN_UNUSED;

/**
 * Returns a borrowed pointer to the outer optimizer, an ls_sgd. Use it to save its momentum (ls_optimizer_save), or to
 * change its learning rate in the same way on all ranks. Returns NULL for plain averaging, which has no state.
 */
LS_API ls_optimizer *ls_outer_optimizer(const ls_outer *outer);

/** Frees the outer optimizer. The ranks' parameters stay as they are. NULL is allowed. */
LS_API void ls_outer_free(ls_outer *outer);

/* ---- sharded models ---------------------------------------------------------------------------------------------- */

/**
 * Layers whose parameters are sharded over the ranks of `comm`. If a size is not divisible, the first ranks get one
 * more row or column.
 *
 * - The layers borrow `comm`. `options` may be NULL.
 * - All ranks must use the same input and compute the same loss, which counts once. So give the loader no .comm, or the
 *   communicator of the data-parallel ranks. All ranks fail with LS_ERR_MISMATCH if the inputs differ.
 * - Each rank gets the gradient of its shard, and of parameters that all ranks have, as one process would.
 * - With the same seed on all ranks, the shards start as the parts of one process's parameters.
 * - To combine with data parallelism, split the world with ls_comm_split, and use ls_data_parallel, with .zero = 0 or
 *   1, over the ranks with the same shards.
 * - A pass that fails on one rank can succeed on other ranks. So stop all ranks after an error.
 */

/** Options for ls_nn_column_parallel and ls_nn_row_parallel. Zero fields select the defaults. */
typedef struct ls_parallel_linear_options {
    ls_dtype dtype; /**< dtype of the parameters; 0 selects LS_F32 */
    bool no_bias;   /**< no bias */
} ls_parallel_linear_options;

/** Returns a linear layer sharded along its outputs. Its output is this rank's part of y = x weight^T + bias. */
LS_API ls_module *ls_nn_column_parallel(ls_comm *comm, int64_t in, int64_t out,
                                        const ls_parallel_linear_options *options);
/**
 * Returns a linear layer that is sharded along its inputs. It takes this rank's part of the input (the output of
 * ls_nn_column_parallel), and sums y over the ranks.
 */
LS_API ls_module *ls_nn_row_parallel(ls_comm *comm, int64_t in, int64_t out, const ls_parallel_linear_options *options);
/** Returns a layer that concatenates the parts of all ranks along the last axis, for a layer that is not sharded. */
LS_API ls_module *ls_nn_gather_parallel(ls_comm *comm);
/**
 * Returns an ls_nn_dropout for values that are sharded along the last axis (after ls_nn_column_parallel). With the same
 * seed on all ranks, the result equals the result of one process. Use ls_nn_dropout for values that all ranks have. A
 * collective call in training mode.
 */
LS_API ls_module *ls_nn_parallel_dropout(ls_comm *comm, double p);
/** Returns an ls_nn_embedding with the rows of its table sharded over the ranks, at least one row per rank. */
LS_API ls_module *ls_nn_parallel_embedding(ls_comm *comm, int64_t count, int64_t width);

/** The order of a stage's micro-batches. GPipe holds all of them at the same time, 1F1B at most as many as there are
 * stages. Both orders give bit-identical results. */
typedef enum ls_pipeline_schedule { LS_PIPELINE_1F1B = 0, LS_PIPELINE_GPIPE } ls_pipeline_schedule;

/** Options for ls_pipeline. Zero fields select the defaults. All ranks must pass the same options, except `sample`:
 * otherwise, ls_pipeline fails with LS_ERR_MISMATCH on every rank. */
typedef struct ls_pipeline_options {
    int micro_batches;             /**< number of micro-batches per batch; 0 selects twice the number of stages */
    ls_pipeline_schedule schedule; /**< order of the micro-batches; 0 selects LS_PIPELINE_1F1B */
    const int *cut;    /**< indices of the first layers of stages 1, 2, ...; NULL selects a balanced split */
    ls_tensor *sample; /**< borrowed input on rank 0, used to time the layers for balancing; NULL balances the stages by
                          their parameters */
} ls_pipeline_options;

/**
 * Splits `model` into one stage per rank of `comm`, and returns this rank's stage. `model` is an ls_sequential, the
 * same on all ranks, of at least one layer per rank, each with one input and one output. Takes ownership of `model`,
 * and borrows `comm`. A collective call.
 *
 * - Layers that share a parameter must be in one stage.
 * - The stage's layers keep their names in the model and their hooks. Hooks of the ls_sequential itself are removed.
 * - Each rank has its own optimizer for its stage.
 * - ls_forward returns the output of the whole model on every rank, without gradient, from rank 0's input. The inputs
 *   of the other ranks are ignored, and may be NULL. If rank 0's input is NULL, all ranks fail.
 * - All ranks must load the same samples. So give the loader no .comm, or the communicator of the ranks of the same
 *   stage. Trials fail with LS_ERR_MISMATCH if the stages get different samples.
 * - To combine with data parallelism, split the world with ls_comm_split, and call ls_sync_gradients over the ranks of
 *   the same stage after ls_pipeline_backward. The pipelines may have different numbers of samples.
 */
LS_API ls_module *ls_pipeline(ls_module *model, ls_comm *comm, const ls_pipeline_options *options);

/**
 * Runs one batch forward and backward through the pipeline. Adds the gradients of the criterion's mean over all
 * samples to the gradients of each stage. Rank 0 passes `input`; the last rank passes `target`, `criterion` and `user`.
 * Other arguments are ignored. The input may be a leaf that requires a gradient. Neither the input nor the
 * target may have a history (LS_ERR_UNSUPPORTED): call ls_detach, or make the layers before the pipeline part of it.
 * Other tensors that the criterion uses must not have a history either, unless the criterion computes them. The first
 * axis counts samples, which are divided among the micro-batches. Sets `*loss`, which may be NULL, to the mean on every
 * rank. A collective call.
 *
 * The layers and the criterion see one micro-batch at a time:
 *
 * - Batch normalization normalizes each micro-batch by itself, and updates its running statistics for each micro-batch.
 *   Dropout draws other numbers than in one process.
 * - A statistic of the batch in the criterion, such as the mean of the targets, is a statistic of the micro-batch.
 * - The criterion must be a mean in which all samples count equally: ls_mean, or a loss with LS_LOSS_MEAN, or a sum of
 *   such terms. The last rank fails with LS_ERR_UNSUPPORTED for a sum over samples, even if the sum is divided. It also
 *   fails if the divisor of a mean (elements, weights, or targets that are not ignored) is not the same integer
 *   multiple of the number of samples in every micro-batch.
 *
 * All ranks fail with LS_ERR_SHAPE if input and target have different numbers of samples, or none, and with
 * LS_ERR_MISMATCH if they are from different shares of a loader's batch. A rank fails with LS_ERR_STATE if recording is
 * off (ls_no_grad), or if the loss does not depend on the output.
 *
 * If a stage fails, the other stages fail with LS_ERR_MISMATCH and its message. If recording was off, if an argument
 * was NULL or had a history, or if the samples were missing or did not match, no stage has begun the step, and
 * the pipeline stays usable. After any other failure, the pipeline rejects further steps (with LS_ERR_STATE on the
 * failed stages), and the gradients are incomplete. A stage that had already finished the step fails in its next
 * step. The communicator stays usable.
 */
LS_API ls_status ls_pipeline_backward(ls_module *pipeline, ls_tensor *input, ls_tensor *target, ls_criterion criterion,
                                      void *user, double *loss) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
