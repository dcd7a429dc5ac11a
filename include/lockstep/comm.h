/**
 * @file comm.h
 * Ranks and communication of typed buffers: joining a job, communicators, collectives, messages, stores. Independent of
 * tensors.
 *
 * ```c
 * ls_comm *comm = ls_init(NULL);
 * float sum = (float)ls_comm_rank(comm);
 * if (ls_comm_allreduce(comm, &sum, &sum, 1, LS_F32, LS_SUM, NULL) != LS_OK) {
 *     printf("%s\n", ls_error_message());
 * }
 * printf("rank %d of %d: sum %g\n", ls_comm_rank(comm), ls_comm_size(comm), sum);
 * return ls_finalize() == LS_OK ? 0 : 1;
 * ```
 *
 * Guarantees of every backend (docs/explanation/failures.md):
 *
 * - No call blocks forever. LS_ERR_PEER names a rank that died or left, and LS_ERR_TIMEOUT a rank that did not answer.
 *   The communicator is then revoked: later calls fail at once with the same status and message.
 * - If ranks make different calls, all of them fail with LS_ERR_MISMATCH, and the message lists the calls.
 * - Every rank receives the same bits.
 * - Buffers may have any size, including zero, and any alignment.
 * - After 10 s of waiting, and then every minute, a call logs which ranks it is waiting for.
 *
 * Only one thread at a time may use a communicator. If two threads make calls at the same time, the calls fail with
 * LS_ERR_STATE and the communicator is revoked. Give each thread its own communicator (ls_comm_split).
 *
 * Started work progresses while its rank waits on another communicator of the same thread. So ranks may wait for each
 * other on several communicators in any order that MPI allows.
 */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- joining a job ----------------------------------------------------------------------------------------------- */

/** A group of ranks that call collectives together. Opaque. */
typedef struct ls_comm ls_comm;

/** A call in progress. Opaque; see ls_work_wait. */
typedef struct ls_work ls_work;

/** How to join a job. A zero field selects the value from the environment. */
typedef struct ls_init_options {
    /**
     * URL of the meeting point of the ranks. NULL selects env:// if `world_size`, RANK or WORLD_SIZE is set, otherwise
     * mpi:// under mpirun, otherwise the tasks of the job step under Slurm's srun, otherwise a world of one rank.
     *
     * - "env://": RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT from the environment
     * - "tcp://HOST:PORT": rank 0 listens there
     * - "file://PATH": a folder that all ranks see, in which rank 0 writes its address; created if missing
     * - "mpi://": the ranks that mpirun started
     */
    const char *init;
    /**
     * "shm", "tcp", "self" or a plug-in such as "mpi". NULL selects LOCKSTEP_BACKEND or, if it is not
     * set, the best backend for the placement of the ranks.
     */
    const char *backend;
    int world_size; /**< number of ranks, at most 4096; 0 selects the environment's number, and mpi:// requires 0 */
    int rank;       /**< rank of this process; only used if world_size is not 0 */
    double timeout; /**< seconds that a call waits for a silent rank; 0 selects LOCKSTEP_TIMEOUT or, if it is not set,
                       300 */
    /**
     * The job's key, a shared secret. NULL selects LOCKSTEP_KEY. Without it, ranks on loopback use a key that the
     * processes of this user share automatically.
     */
    const char *key;
    /**
     * Starts a progress thread, which advances calls that were started with an ls_work while the program computes.
     * Without the thread, such calls advance during other calls to the library on the same thread: calls on
     * communicators, ls_work_done and ls_backward. If false, LOCKSTEP_PROGRESS_THREAD (0 or 1) decides; if the
     * variable is not set, there is no thread. The thread sleeps while no call is in progress, and is useful only if
     * a core is free for it. Has no effect on backend nccl, whose library advances calls itself, and on backend mpi
     * unless MPI was started with MPI_THREAD_MULTIPLE.
     */
    bool progress_thread;
} ls_init_options;

/**
 * Joins the job and returns the world communicator. Free it with ls_finalize or ls_comm_free. Without a job, the world
 * has one rank. Returns NULL if the process cannot join: the message names the wrong value in the environment, or the
 * ranks that have not joined within the timeout. Fails with LS_ERR_STATE if this thread already has a world. `options`
 * may be NULL.
 *
 * The call does not change the environment, the buffering of standard output, signal handlers or OpenMP's number of
 * threads. Two exceptions:
 *
 * - Under `lockstep run`, which sets LOCKSTEP_LAUNCH, standard output is written line by line if it is a pipe.
 * - Under mpirun, the call also calls MPI_Init if the program has not called it. MPI libraries change the process in
 *   MPI_Init.
 *
 * The library computes with several threads. On a machine with several ranks, each rank uses at most the cores of the
 * process divided by the number of ranks on the machine. OMP_NUM_THREADS replaces this share. If its value is not a
 * number of threads, the library logs a warning and uses the share.
 */
LS_API ls_comm *ls_init(const ls_init_options *options);

/**
 * Leaves the job: waits until every rank of the world has called this function or failed, then frees the world of this
 * thread. Frees the world even on failure. Does nothing without a world. ls_init may join the same job again
 * afterwards.
 *
 * The other ranks notice the call at once. Earlier messages from this rank still arrive, even if the program has not
 * waited for their sends. Logs a warning if a receive or a collective of this rank has not finished: its result is
 * lost. A call that waits for more from this rank, on the world or on a communicator split from it, fails with
 * LS_ERR_PEER ("ls_comm_allreduce #8: rank 1 called ls_finalize"). A process that exits without this call is reported
 * in the same way. If its exit status is 0, it also logs a warning.
 *
 * Returns LS_OK if all ranks have called this function, even after failures of other calls. Exception: ranks that
 * joined over MPI, without a store. If the world has failed on such a rank, the rank gets the same failure again, and
 * the other ranks get LS_ERR_PEER.
 *
 * - LS_ERR_PEER: a rank died, or exited without this call.
 * - LS_ERR_TIMEOUT: a rank has not made this call within the timeout.
 * - LS_ERR_STATE: the ranks joined over MPI, and the program has already called MPI_Finalize.
 */
LS_API ls_status ls_finalize(void);

/** Returns a borrowed pointer to the world of this thread, or NULL if there is no world. */
LS_API ls_comm *ls_world(void);

/** The function that each rank of ls_spawn or ls_run_threads runs. Borrows `world`. In ls_run_threads, it may free
 * `world` with ls_comm_free to leave at once; in ls_spawn, the other ranks then fail with LS_ERR_PEER. */
typedef ls_status (*ls_rank_function)(ls_comm *world, void *user);

/**
 * Starts `ranks` processes on this machine. Each process joins a new job and calls `function(world, user)`. Waits for
 * all of them. The processes are forks, so each rank has its own copy of the caller's memory and of `user`.
 *
 * If a rank fails, the other ranks are terminated. Returns the status and message of the first rank that failed. If
 * this status is LS_ERR_PEER, ls_spawn waits up to 1 s for the rank that caused the failure, and returns that rank's
 * status. Returns LS_ERR_PEER if the process of the failed rank ended before `function` returned.
 *
 * Fails with LS_ERR_STATE if this thread has a world, or if this process has other threads; the message gives the
 * number of threads. Call ls_spawn before any function that starts threads.
 */
LS_API ls_status ls_spawn(int ranks, ls_rank_function function, void *user) LS_WARN_UNUSED;

/**
 * Runs `function` in `ranks` threads of this process, and waits until all threads have returned. Each thread is a rank
 * with its own communicator over ordinary memory. This communicator is not a world: ls_world and ls_finalize ignore it.
 * Returns the status and message of the first rank that failed. LOCKSTEP_TIMEOUT sets the timeout, as for ls_spawn.
 */
LS_API ls_status ls_run_threads(int ranks, ls_rank_function function, void *user) LS_WARN_UNUSED;

/**
 * Returns a communicator with the ranks of one of the program's MPI communicators. `library` is "openmpi" or "mpich".
 * `handle` points to an MPI_Comm of this library. ls_comm_from_mpi (mpi.h) describes options, ownership and errors, and
 * is the short form for C and C++. Fails with LS_ERR_ARGUMENT if the process is linked with a different MPI library.
 */
LS_API ls_comm *ls_comm_from_mpi_handle(const char *library, const void *handle, const ls_init_options *options);

/**
 * Does the same for a Fortran communicator: an `integer`, or the component `MPI_VAL` of a `type(MPI_Comm)`. In C, use
 * the result of MPI_Comm_c2f.
 *
 * Uses the MPI library that the process has loaded, which MPI_Get_library_version names. A program that is linked with
 * MPI has loaded it. Fails with LS_ERR_ARGUMENT if no library is visible, and with LS_ERR_UNSUPPORTED if the library is
 * neither Open MPI nor MPICH. In Python, mpi4py may hide MPI from other libraries; call ls_comm_from_mpi_handle there.
 */
LS_API ls_comm *ls_comm_from_mpi_fint(int comm, const ls_init_options *options);

/* ---- communicators ----------------------------------------------------------------------------------------------- */

/** Returns the rank of this process (or thread: ls_run_threads) in the communicator, from 0. Returns -1 for NULL. */
LS_API int ls_comm_rank(const ls_comm *comm);

/** Returns the number of ranks (the world size). Returns 0 for NULL. */
LS_API int ls_comm_size(const ls_comm *comm);

/** Returns the index of this process among the ranks of its machine, from 0. Returns -1 for NULL. */
LS_API int ls_comm_local_rank(const ls_comm *comm);

/** Returns the number of ranks on this machine. Returns 0 for NULL. */
LS_API int ls_comm_local_size(const ls_comm *comm);

/**
 * Returns the name of the communicator's backend: "shm", "self", "mpi", ... Returns an empty string for NULL. The
 * string is valid until the program exits.
 */
LS_API const char *ls_comm_backend(const ls_comm *comm);

/**
 * Splits the ranks into new communicators. Ranks with the same `color` get one communicator, ordered by `key`, and by
 * the rank in `comm` if keys are equal. A rank with a negative color gets NULL. All ranks of `comm` must call it, in
 * the same order as their other calls.
 *
 * Returns ownership of `*result` to the caller. Free it with ls_comm_free. `comm` may be freed first, unless it is the
 * world. On failure, `*result` is NULL. Calls on different communicators are independent. A rank that belongs to
 * several communicators must make its calls in a compatible order.
 */
LS_API ls_status ls_comm_split(ls_comm *comm, int color, int key, ls_comm **result) LS_WARN_UNUSED;

/**
 * Sets whether reductions on this communicator may combine the values of the ranks in any order. The default is false:
 * the order of ls_comm_allreduce. With true, backends mpi and gloo may use the reductions of their libraries
 * (MPI_Iallreduce, ...), which are optimized for the network. The last bits of floating-point sums then differ from
 * other backends and libraries. All ranks still receive the same bits, but other guarantees of bit-identical results do
 * not hold. Other backends ignore the setting.
 *
 * All ranks must call it with the same value, in the same order as their other calls. The call waits for all ranks.
 * Fails with LS_ERR_MISMATCH, and changes nothing, if the values differ; the message lists them. ls_comm_split copies
 * the current setting to the new communicators.
 */
LS_API ls_status ls_comm_set_any_order(ls_comm *comm, bool any_order) LS_WARN_UNUSED;

/**
 * Frees a communicator without waiting for the other ranks. NULL is allowed. Unfinished work fails with LS_ERR_STATE on
 * this rank, and no longer uses its buffers. Calls of other ranks that still need this rank fail with LS_ERR_PEER. On
 * backend mpi, MPI may use these buffers until ls_work_wait has returned for the work. Objects that hold the
 * communicator (a data-parallel module, the tape) can be freed afterwards; their communication fails with LS_ERR_STATE.
 */
LS_API void ls_comm_free(ls_comm *comm);

/* ---- collectives on buffers -------------------------------------------------------------------------------------- */

/** How the values of several ranks are combined. */
typedef enum ls_reduction {
    LS_SUM = 0,
    LS_AVG, /**< sum divided by the number of ranks; integers round towards zero */
    LS_PROD,
    LS_MIN, /**< minimum; NaN propagates, as in NumPy */
    LS_MAX, /**< maximum; NaN propagates, as in NumPy */
    LS_LAND,
    LS_LOR,
    LS_LXOR, /**< logical: any non-zero value is true; results are 0 and 1 */
    LS_BAND,
    LS_BOR,
    LS_BXOR, /**< bitwise: integers and bool only */
    LS_MINLOC,
    LS_MAXLOC, /**< pairs of value and location (see ls_loc_f32); a tie selects the lowest location */
    LS_REDUCTION_COUNT
} ls_reduction;

/** Returns "sum", "avg", ... Returns "unknown" for a value that is not a reduction. */
LS_API const char *ls_reduction_name(ls_reduction reduction);

/** One element of an LS_MINLOC or LS_MAXLOC buffer of dtype LS_F32. `count` counts such pairs. */
typedef struct ls_loc_f32 {
    float value;
    int32_t location;
} ls_loc_f32;

/** One element for dtype LS_F64. */
typedef struct ls_loc_f64 {
    double value;
    int64_t location;
} ls_loc_f64;

/** One element for dtype LS_I32. */
typedef struct ls_loc_i32 {
    int32_t value;
    int32_t location;
} ls_loc_i32;

/** One element for dtype LS_I64. */
typedef struct ls_loc_i64 {
    int64_t value;
    int64_t location;
} ls_loc_i64;

/**
 * Rules for the calls below:
 *
 * - All ranks of the communicator make the call, in the same order, with the same operation, dtype, count, reduction
 *   and root. Exceptions: ls_comm_send, ls_comm_recv, ls_comm_recv_any and ls_comm_monitored_barrier.
 * - If `work` is NULL, the call returns when its result is complete. Otherwise it may return earlier and stores an
 *   ls_work, or NULL if it fails. The library uses the buffers, and the arrays of counts and displacements, until
 *   ls_work_wait.
 * - Work on one communicator is executed in the order of the calls.
 * - `send` and `receive` must not overlap, except in the in-place calls below.
 *
 * Calls that end in v use a different number of elements for each rank. `counts` has one entry per rank.
 * `displacements` has the offset of each rank's part, in elements from the start of the buffer. If it is NULL, the
 * parts follow each other without gaps. If parts of a receive buffer overlap, the call fails with LS_ERR_ARGUMENT.
 */

/** Returns when every rank has made this call. */
LS_API ls_status ls_comm_barrier(ls_comm *comm, ls_work **work) LS_WARN_UNUSED;

/**
 * Waits until every rank has made this call, at most `timeout` seconds; 0 selects the communicator's timeout. Use it to
 * find out which ranks hang, for example before a first collective.
 *
 * - Returns LS_OK on all ranks if all ranks have entered in time.
 * - Otherwise returns LS_ERR_TIMEOUT on all ranks that have entered, as soon as the timeout of one of them has passed.
 *   The message lists all late ranks. The communicator stays usable.
 * - A rank that enters late gets LS_ERR_TIMEOUT. It gets this error at once, with a message that the other ranks have
 *   given up, if the other ranks are in a call on this communicator, or if they have exchanged messages with it before
 *   and it has missed at most four calls of ls_comm_monitored_barrier. Otherwise it may wait until another rank's next
 *   call, or until its own timeout has passed.
 * - Fails with LS_ERR_PEER if a rank dies or leaves. If a rank has entered but does not continue within the
 *   communicator's timeout, fails with LS_ERR_TIMEOUT. Both revoke the communicator.
 * - Fails with LS_ERR_ARGUMENT if `timeout` is negative or NaN. Such a call is not one of the n calls below.
 *
 * The n-th calls of all ranks belong together, independent of the order of their other calls. So a late rank must still
 * make its call. Each of the P ranks sends 2 (P - 1) small messages, so ls_comm_barrier is faster.
 */
LS_API ls_status ls_comm_monitored_barrier(ls_comm *comm, double timeout) LS_WARN_UNUSED;

/** Copies `count` elements of `buffer` on rank `root` into `buffer` on every other rank. */
LS_API ls_status ls_comm_broadcast(ls_comm *comm, void *buffer, size_t count, ls_dtype dtype, int root,
                                   ls_work **work) LS_WARN_UNUSED;

/**
 * Sets receive[i] on every rank to the reduction over ranks of send[i], for `count` elements. Sums and products follow
 * a balanced binary tree over ranks, so they do not depend on timing. The left subtree of n ranks has the largest power
 * of two below n. bf16 and f16 are added in f32. ls_comm_set_any_order allows other orders. For an in-place call,
 * pass `send` as `receive`. Fails with LS_ERR_UNSUPPORTED if the reduction is not defined for the dtype, such as the
 * sum, mean and product of bool.
 */
LS_API ls_status ls_comm_allreduce(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                                   ls_reduction reduction, ls_work **work) LS_WARN_UNUSED;

/**
 * Computes the same reduction on rank `root` only. Without ls_comm_set_any_order, the result is bit-identical to the
 * result of ls_comm_allreduce. `receive` is used on the root only and may be NULL on the other ranks. For an in-place
 * call, pass the same pointer as `send` and `receive` on the root.
 */
LS_API ls_status ls_comm_reduce(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                                ls_reduction reduction, int root, ls_work **work) LS_WARN_UNUSED;

/**
 * Gathers `count` elements from each rank on rank `root`, ordered by rank. `receive` has size * count elements and is
 * used on the root only. For an in-place call, pass the root's part of `receive` as `send` on the root.
 */
LS_API ls_status ls_comm_gather(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype, int root,
                                ls_work **work) LS_WARN_UNUSED;

/**
 * Gathers `count` elements from each rank on the root, which receives counts[r] elements from rank r. `counts` is used
 * on the root only.
 */
LS_API ls_status ls_comm_gatherv(ls_comm *comm, const void *send, size_t count, void *receive, const size_t *counts,
                                 const size_t *displacements, ls_dtype dtype, int root, ls_work **work) LS_WARN_UNUSED;

/**
 * Gathers `count` elements from each rank on every rank, ordered by rank. `receive` has size * count elements. For an
 * in-place call, pass this rank's part of `receive` as `send`.
 */
LS_API ls_status ls_comm_allgather(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                                   ls_work **work) LS_WARN_UNUSED;

/**
 * Gathers counts[r] elements from rank r on every rank. `counts` must be equal on all ranks; displacements may differ.
 */
LS_API ls_status ls_comm_allgatherv(ls_comm *comm, const void *send, void *receive, const size_t *counts,
                                    const size_t *displacements, ls_dtype dtype, ls_work **work) LS_WARN_UNUSED;

/**
 * Sends the r-th block of `count` elements of `send` on rank `root` to rank r. `send` is used on the root only. For an
 * in-place call, pass the root's part of `send` as `receive` on the root.
 */
LS_API ls_status ls_comm_scatter(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype, int root,
                                 ls_work **work) LS_WARN_UNUSED;

/** Sends counts[r] elements of the root to rank r, which receives `count`. `counts` is used on the root only. */
LS_API ls_status ls_comm_scatterv(ls_comm *comm, const void *send, const size_t *counts, const size_t *displacements,
                                  void *receive, size_t count, ls_dtype dtype, int root, ls_work **work) LS_WARN_UNUSED;

/**
 * Reduces `send`, of size * count elements, over the ranks. Rank r receives the r-th block of `count` elements of the
 * result. Without ls_comm_set_any_order, the result is bit-identical to the result of ls_comm_allreduce. For an
 * in-place call, pass as `receive` either `send` itself, whose first `count` elements then get the result, or this
 * rank's part of `send`.
 */
LS_API ls_status ls_comm_reduce_scatter(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                                        ls_reduction reduction, ls_work **work) LS_WARN_UNUSED;

/**
 * Does the same with counts[r] elements for rank r. The parts are contiguous in `send`, in rank order. `counts` must be
 * equal on all ranks.
 */
LS_API ls_status ls_comm_reduce_scatterv(ls_comm *comm, const void *send, void *receive, const size_t *counts,
                                         ls_dtype dtype, ls_reduction reduction, ls_work **work) LS_WARN_UNUSED;

/**
 * Sends the r-th block of `count` elements of every rank's `send` to rank r, which receives them ordered by rank. For
 * an in-place call, pass `send` as `receive`.
 */
LS_API ls_status ls_comm_alltoall(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                                  ls_work **work) LS_WARN_UNUSED;

/** Sends send_counts[r] elements to rank r, and receives receive_counts[r] from it. Not in place. */
LS_API ls_status ls_comm_alltoallv(ls_comm *comm, const void *send, const size_t *send_counts,
                                   const size_t *send_displacements, void *receive, const size_t *receive_counts,
                                   const size_t *receive_displacements, ls_dtype dtype, ls_work **work) LS_WARN_UNUSED;

/**
 * Sends `count` elements to rank `dest`, which calls ls_comm_recv with the same tag (0 or more), count and dtype.
 * Messages between two ranks with the same tag arrive in the order of the sends. A rank may send to itself.
 *
 * Small messages are buffered: the call does not wait for ls_comm_recv. If the buffer is full, the call waits until
 * `dest` makes a call on this communicator. The backend decides whether a message is small, so two ranks that both send
 * before they receive must use `work`. Sends and receives are independent of the order of the other calls. They
 * progress while this rank is in any call on this communicator. If the receiver expects a different count or dtype, the
 * receiver fails. On backend shm, a send of a large message may fail with LS_ERR_MISMATCH, too.
 */
LS_API ls_status ls_comm_send(ls_comm *comm, const void *buffer, size_t count, ls_dtype dtype, int dest, int tag,
                              ls_work **work) LS_WARN_UNUSED;

/**
 * Receives the next message from rank `source` with this tag. Fails with LS_ERR_MISMATCH if the count or dtype of the
 * message differs: the message is dropped, the buffer is unchanged, and the communicator stays usable. Backend self
 * fails with LS_ERR_STATE at once if the rank has not sent the message to itself, and revokes the communicator.
 */
LS_API ls_status ls_comm_recv(ls_comm *comm, void *buffer, size_t count, ls_dtype dtype, int source, int tag,
                              ls_work **work) LS_WARN_UNUSED;

/**
 * Receives the next message with this tag from any rank of the communicator, including this rank. Checks count and
 * dtype as ls_comm_recv does.
 *
 * Sets `*source` to -1 first, and to the sender by the time the call, or ls_work_wait, returns LS_OK or
 * LS_ERR_MISMATCH. After any other error, `*source` is unspecified. `source` may be NULL. The library borrows `source`
 * until ls_work_wait.
 *
 * The order of messages from different ranks depends on timing. If messages with this tag from several ranks are
 * waiting, the ranks take turns, for each tag separately, so no rank waits forever. Messages from the same rank with
 * the same tag arrive in order, even if ls_comm_recv receives some of them.
 *
 * Fails with LS_ERR_PEER at once if all other ranks have left. On backend self, fails as ls_comm_recv does. If a rank
 * dies, fails as every other call on the communicator does.
 */
LS_API ls_status ls_comm_recv_any(ls_comm *comm, void *buffer, size_t count, ls_dtype dtype, int tag, int *source,
                                  ls_work **work) LS_WARN_UNUSED;

/**
 * Allocates memory, cleared and aligned to 64 bytes. On backend shm, all ranks can access the memory: an all-reduce
 * needs no copies if all ranks send from one such block and receive into one such block, at any offset. Use this
 * function to allocate memory for gradients. With other backends, the memory is ordinary memory.
 *
 * Each rank gets its own `size` bytes; 0 is allowed. All ranks must call it with the same `size`, in the same order as
 * their other calls. The communicator owns the memory, which is invalid after ls_comm_free. Returns NULL on every rank
 * on failure. Fails with LS_ERR_MEMORY if the machine cannot reserve the memory; the message gives the number of bytes.
 */
LS_API void *ls_comm_alloc(ls_comm *comm, size_t size);

/**
 * Frees memory from ls_comm_alloc before the communicator is freed. Affects this rank only, and does not wait. No call
 * that uses the memory may be in progress. NULL is allowed.
 */
LS_API void ls_comm_release(ls_comm *comm, void *memory);

/**
 * Waits for the work, frees it, and returns the status of its call. Returns LS_OK for NULL. On backend mpi, for work
 * that was unfinished at ls_comm_free, this waits until MPI has finished with its buffers, at most the timeout. Fails
 * with LS_ERR_STATE, and does not free the work, if another thread is using the communicator or if MPI forbids calls
 * from this thread. Then let another thread wait, or call ls_work_wait again after ls_comm_free. If another thread was
 * using the communicator, the communicator has failed, and so unfinished work fails with LS_ERR_STATE.
 */
LS_API ls_status ls_work_wait(ls_work *work) LS_WARN_UNUSED;

/**
 * Returns whether ls_work_wait would return at once, with or without an error. Returns true for NULL. Advances the work
 * without waiting. The timeout counts the time in which calls or the progress thread advance the work, and at most 1 s
 * between two such calls.
 */
LS_API bool ls_work_done(ls_work *work);

/**
 * Does the same as ls_work_wait, but waits for at most about `seconds`. If the call has not finished by then, cancels
 * it as ls_work_cancel does (see there for buffers on backend mpi), and returns LS_ERR_TIMEOUT. For work of a freed
 * communicator, waits as ls_work_wait does. Fails with LS_ERR_ARGUMENT, and does not free the work, if `seconds` is
 * negative or NaN.
 */
LS_API ls_status ls_work_wait_for(ls_work *work, double seconds) LS_WARN_UNUSED;

/**
 * Cancels the call that returned the work, and frees the work. If the call has already finished, returns its status.
 * Otherwise revokes the communicator, because other ranks may have finished the call: this rank's calls on the
 * communicator fail with the returned error (LS_ERR_STATE), and calls of the other ranks with LS_ERR_PEER. As after
 * ls_work_wait, the library no longer uses the buffers. If the call had not finished, their contents are undefined.
 * NULL is allowed. Fails without freeing the work in the same cases as ls_work_wait.
 *
 * On backend mpi, the buffers of unfinished sends belong to MPI until the process exits: do not change or free them,
 * because another rank may still receive them. The process exits with status 1 if it cannot finalize MPI because ranks
 * have not finished the call.
 */
LS_API ls_status ls_work_cancel(ls_work *work);

/* ---- objects ------------------------------------------------------------------------------------------------------
 * Blocks of bytes whose lengths the other ranks do not know, such as strings or serialized records. These calls block,
 * and every rank of the communicator must make them. An object that a call stores in an ls_object belongs to the
 * caller, who frees it with ls_object_free; a zero byte follows its data, so that it may be used as a string. On
 * failure, the calls store empty objects, except if they reject an argument (LS_ERR_ARGUMENT). */

/** A block of bytes. */
typedef struct ls_object {
    void *data; /**< may be NULL if `bytes` is 0 */
    size_t bytes;
} ls_object;

/** Sends the object of rank `root` to all other ranks, which receive it in `object`. Does not change the root's object.
 */
LS_API ls_status ls_comm_broadcast_object(ls_comm *comm, ls_object *object, int root) LS_WARN_UNUSED;
/** Gathers the object of each rank on every rank. `all` has one entry for each rank. */
LS_API ls_status ls_comm_allgather_object(ls_comm *comm, const ls_object *own, ls_object *all) LS_WARN_UNUSED;
/** Gathers an object from each rank on rank `root`. `all` has one entry for each rank, and is used on the root only. */
LS_API ls_status ls_comm_gather_object(ls_comm *comm, const ls_object *own, ls_object *all, int root) LS_WARN_UNUSED;
/** Sends all[r] of `root` to rank r, which receives it in `own`. `all` is used on the root only, and is not changed. */
LS_API ls_status ls_comm_scatter_object(ls_comm *comm, const ls_object *all, ls_object *own, int root) LS_WARN_UNUSED;
/** Frees the data that one of these calls has stored in an object, and leaves the object empty. NULL is allowed. */
LS_API void ls_object_free(ls_object *object);

/* ---- stores ------------------------------------------------------------------------------------------------------ */

/**
 * A small dictionary that all ranks of a job share while they join. Keys are strings of 1 to 255 bytes. Values are at
 * most 1 MiB long. Only one thread at a time may use a store. Opaque.
 */
typedef struct ls_store ls_store;

/** How to open a store. */
typedef struct ls_store_options {
    /**
     * Whether this process serves the store. Exactly one process (rank 0) listens, and the other processes connect.
     * With "file://", it listens at the address by which other machines reach this machine.
     */
    bool serve;
    double timeout; /**< seconds that a call waits; 0 selects the default, 300 */
    /**
     * The job's key. "tcp://" requires it beyond loopback. On loopback, processes of this user share a key
     * automatically. "file://" does not require it: the folder holds a secret that only this user's processes can read.
     */
    const char *key;
} ls_store_options;

/**
 * Opens the store at `url`: "tcp://HOST:PORT" or "file://PATH". With `serve`, port 0 selects any free port (see
 * ls_store_port). Refuses processes that cannot prove that they know the key (HMAC challenge). Returns ownership to the
 * caller; free it with ls_store_close. Returns NULL on failure. `options` may be NULL.
 */
LS_API ls_store *ls_store_open(const char *url, const ls_store_options *options);

/** Closes the store, and the server if this process serves the store. NULL is allowed. */
LS_API void ls_store_close(ls_store *store);

/** Returns the TCP port of the store. Returns 0 for NULL. */
LS_API int ls_store_port(const ls_store *store);

/** Sets `key` to `size` bytes of `value`. Copies the value. */
LS_API ls_status ls_store_set(ls_store *store, const char *key, const void *value, size_t size) LS_WARN_UNUSED;

/**
 * Waits until `key` exists and copies its value into `value`, which has room for `capacity` bytes. On success, sets
 * `*size` to the size of the value. Fails with LS_ERR_ARGUMENT if the value does not fit, and with LS_ERR_TIMEOUT if no
 * process sets the key in time.
 */
LS_API ls_status ls_store_get(ls_store *store, const char *key, void *value, size_t capacity,
                              size_t *size) LS_WARN_UNUSED;

/**
 * Adds `amount` to the counter `key` atomically. A missing key or an empty value counts as 0. Sets `*result`, which may
 * be NULL, to the new value. Fails with LS_ERR_FORMAT if the value of `key` is not a counter, and with LS_ERR_ARGUMENT
 * if the new value needs more than 64 bits.
 */
LS_API ls_status ls_store_add(ls_store *store, const char *key, int64_t amount, int64_t *result) LS_WARN_UNUSED;

/** Waits until `key` exists, at most `timeout` seconds. 0 selects the store's timeout. */
LS_API ls_status ls_store_wait(ls_store *store, const char *key, double timeout) LS_WARN_UNUSED;

/**
 * Sets `key` to `desired` if its value is `expected`, atomically. `expected_size` 0 means that the key does not exist.
 * On success, sets `*swapped` to whether it has set the value.
 */
LS_API ls_status ls_store_compare_set(ls_store *store, const char *key, const void *expected, size_t expected_size,
                                      const void *desired, size_t desired_size, bool *swapped) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
