/**
 * @file comm.h
 * Ranks and how they talk: joining a job, communicators, collectives on typed buffers, stores. Useful alone: nothing
 * here knows about tensors.
 *
 * The contract of every backend: no call blocks forever (a dead rank is LS_ERR_PEER naming it, a silent one
 * LS_ERR_TIMEOUT, and the communicator is revoked afterwards: later calls fail at once with the same reason); ranks
 * that call different things get LS_ERR_MISMATCH saying who called what; every rank receives the same bits; buffers
 * may have any size, zero included, and any alignment. A call that has waited 10 s logs for whom, once and then every
 * minute.
 *
 * A communicator is used by one thread at a time. Threads that call at once get LS_ERR_STATE, and the communicator
 * is revoked; give each thread a communicator of its own (ls_comm_split). While a rank waits on one communicator, what
 * it has begun on the others that its thread used last moves on, so that ranks may wait for each other on several
 * communicators in any order that MPI allows.
 */
#ifndef LOCKSTEP_COMM_H
#define LOCKSTEP_COMM_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- joining a job -------------------------------------------------------------------------------------------- */

/** A group of ranks that call collectives together. Opaque. */
typedef struct ls_comm ls_comm;

/** A call in progress. Opaque; see ls_work_wait. */
typedef struct ls_work ls_work;

/** How to join a job. Everything left zero means what the environment shows. */
typedef struct ls_init_options {
    /**
     * Where the ranks meet: "env://" (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
     * "tcp://HOST:PORT" (rank 0 listens there), "file://PATH" (a folder all ranks see, where rank 0 says at which
     * address it listens; it is made if missing) or "mpi://" (the ranks that mpirun started, any number of them).
     * NULL: env:// when RANK and WORLD_SIZE are set, else mpi:// under mpirun, else the tasks of a step under Slurm's
     * srun, else a world of one.
     */
    const char *init;
    const char *backend; /**< "shm", "tcp", "self" or a module such as "mpi"; NULL: LOCKSTEP_BACKEND, else the best for
                            where the ranks are */
    int world_size;      /**< number of ranks, at most 4096; 0: WORLD_SIZE from the environment */
    int rank;            /**< this process's rank; read only when world_size is not 0 */
    double timeout;      /**< seconds a call waits for a silent rank; 0: LOCKSTEP_TIMEOUT, else 300 */
    const char *key;     /**< the job's key, a shared secret; NULL: LOCKSTEP_KEY from the environment, else on loopback
                              one that processes of this user share by themselves */
} ls_init_options;

/**
 * Joins the job and returns the world communicator. ls_finalize or ls_comm_free frees it. `options` may be NULL.
 * Without a job, the world has one rank. Returns NULL if the process cannot join: the message names the wrong value in
 * the environment, or the ranks that have not joined within the timeout.
 *
 * The call changes nothing in the process: environment, buffering of standard output, signal handlers and OpenMP's
 * number of threads stay as they are. There are two exceptions:
 *
 * - Under `lockstep run`, which sets LOCKSTEP_LAUNCH, standard output is written line by line if it is a pipe.
 * - Under mpirun, the call also calls MPI_Init if the program has not. MPI libraries change the process in MPI_Init.
 *
 * The library computes on a team of threads. If several ranks run on the machine, the team of each rank has at most the
 * rank's share of the cores: the number of cores of the process divided by the number of ranks on the machine. A number
 * of threads in OMP_NUM_THREADS replaces the share. If its value is not a number of threads, the share holds, and a
 * warning in the log says so.
 */
LS_API ls_comm *ls_init(const ls_init_options *options);

/**
 * Leaves the job: waits until every rank of the world has come here (or failed) and frees the world that ls_init made
 * on this thread, also where it fails: LS_ERR_PEER naming a rank that died or exited without this call, LS_ERR_TIMEOUT
 * one that does not come. LS_OK means that all have come, whatever had failed on them before; but where ranks met over
 * MPI alone, without a store, one whose communicator has failed gets that failure again, and the others LS_ERR_PEER.
 * The other ranks know at once that this one has called it: what it sent before still arrives, and whoever waits for
 * more of it, on the world or on a communicator split from it, fails with LS_ERR_PEER ("ls_comm_allreduce #8: rank 1
 * called ls_finalize"). A process that exits as a rank without this call is told to the others in the same way; where
 * it exits with status 0, as if all were well, it logs a warning. LS_ERR_STATE if the ranks met over MPI and the
 * program has called MPI_Finalize: call ls_finalize before it. Without a world it does nothing. ls_init may join the
 * same job again afterwards.
 */
LS_API ls_status ls_finalize(void);

/** The world that ls_init made on this thread, lent; NULL before. */
LS_API ls_comm *ls_world(void);

/** What one rank of ls_spawn or ls_run_threads runs. `world` is lent; ls_comm_free leaves it at once. */
typedef ls_status (*ls_rank_function)(ls_comm *world, void *user);

/**
 * Starts `ranks` processes on this machine, each of which joins a fresh job and calls `function(world, user)`, and
 * waits for all. The processes are forks: `user` is each rank's own copy of the caller's memory. Call it before
 * anything started threads (LS_ERR_STATE otherwise, saying how many there are). When a rank fails the others are
 * ended; the status and message are those of the first rank that failed (LS_ERR_PEER when a signal ended it).
 */
LS_API ls_status ls_spawn(int ranks, ls_rank_function function, void *user) LS_WARN_UNUSED;

/**
 * Runs `function` as `ranks` ranks, each a thread of this process with a communicator of its own over ordinary memory,
 * and waits for all. The status and message are those of the first rank that failed. Calls have the timeout that
 * LOCKSTEP_TIMEOUT says, as with ls_spawn.
 */
LS_API ls_status ls_run_threads(int ranks, ls_rank_function function, void *user) LS_WARN_UNUSED;

/**
 * Returns a communicator of the ranks of the program's own MPI communicator. `library` is "openmpi" or "mpich";
 * `handle` points to an MPI_Comm of this library. ls_comm_from_mpi (mpi.h) describes options, ownership and errors, and
 * is the short form for C and C++.
 */
LS_API ls_comm *ls_comm_from_mpi_handle(const char *library, const void *handle, const ls_init_options *options);

/**
 * Does the same for a Fortran communicator: an `integer`, or the component `MPI_VAL` of a `type(MPI_Comm)`; in C the
 * result of MPI_Comm_c2f.
 *
 * The MPI library is the library that the process has loaded, which MPI_Get_library_version names. A program that is
 * linked with MPI has loaded it. Fails with LS_ERR_ARGUMENT if no library is visible. In Python, mpi4py may hide
 * MPI from other libraries; call ls_comm_from_mpi_handle there.
 */
LS_API ls_comm *ls_comm_from_mpi_fint(int comm, const ls_init_options *options);

/* ---- communicators -------------------------------------------------------------------------------------------- */

/** This process's rank in the communicator, from 0; -1 for NULL. */
LS_API int ls_comm_rank(const ls_comm *comm);

/** The number of ranks, its world size; 0 for NULL. */
LS_API int ls_comm_size(const ls_comm *comm);

/** This process's place among the ranks of its machine, from 0. */
LS_API int ls_comm_local_rank(const ls_comm *comm);

/** The number of ranks on this machine. */
LS_API int ls_comm_local_size(const ls_comm *comm);

/** The name of the backend that carries it: "shm", "self", "mpi", ... Lent, lives as long as the program. */
LS_API const char *ls_comm_backend(const ls_comm *comm);

/**
 * Divides the ranks: those that give the same `color` make a new communicator, ordered by `key` and, where keys are
 * equal, by their rank in `comm`. All ranks of `comm` call it, in the same order as their other calls. `*result` is the
 * caller's; ls_comm_free gives it back, before or after `comm` (the world must outlive it). A rank whose color is
 * negative joins none and gets NULL. Every communicator carries its calls independently of the others; ranks that
 * belong to several must call on them in an order that fits together.
 */
LS_API ls_status ls_comm_split(ls_comm *comm, int color, int key, ls_comm **result) LS_WARN_UNUSED;

/**
 * Says whether reductions on this communicator may combine the values of the ranks in any order from here on. With true
 * backends mpi and gloo may have their library make them (MPI_Iallreduce and so on: what a cluster's network does
 * best), in an order of its own: sums of floating-point numbers then differ in their last bits from those of other
 * backends and libraries. Other backends go on as before. False at first: the order that ls_comm_allreduce names. All
 * ranks call it with the same value, in the same order as their other calls, and it waits for them: LS_ERR_MISMATCH,
 * saying who said what, where they differ, and then nothing has changed. What ls_comm_split makes begins as its parent
 * is at that time.
 */
LS_API ls_status ls_comm_set_any_order(ls_comm *comm, bool any_order) LS_WARN_UNUSED;

/**
 * Frees a communicator without waiting for the other ranks. NULL is allowed. Work that has not finished ends with
 * LS_ERR_STATE, on other ranks with LS_ERR_PEER, and its buffers are the caller's again. On backend mpi this waits, at
 * most the timeout, until MPI has finished with these buffers. What still holds the communicator (a
 * data-parallel module, the tape) can be freed afterwards; calls that would communicate over it are LS_ERR_STATE.
 */
LS_API void ls_comm_free(ls_comm *comm);

/* ---- collectives on buffers ----------------------------------------------------------------------------------- */

/** How values of several ranks become one. */
typedef enum ls_reduction {
    LS_SUM = 0,
    LS_AVG, /**< the sum divided by the number of ranks; integers are divided towards zero */
    LS_PROD,
    LS_MIN, /**< NaN wins, as in NumPy */
    LS_MAX, /**< NaN wins, as in NumPy */
    LS_LAND,
    LS_LOR,
    LS_LXOR, /**< logical: any non-zero value is true, results are 0 and 1 */
    LS_BAND,
    LS_BOR,
    LS_BXOR, /**< bitwise: integers and bool only */
    LS_MINLOC,
    LS_MAXLOC, /**< pairs of value and location: see ls_loc_f32; the lowest location wins a tie */
    LS_REDUCTION_COUNT
} ls_reduction;

/** "sum", "avg", ...; "unknown" for a value that is no reduction. */
LS_API const char *ls_reduction_name(ls_reduction reduction);

/** One element of an LS_MINLOC or LS_MAXLOC buffer of dtype LS_F32; `count` counts such pairs. */
typedef struct ls_loc_f32 {
    float value;
    int32_t location;
} ls_loc_f32;

/** The same for LS_F64. */
typedef struct ls_loc_f64 {
    double value;
    int64_t location;
} ls_loc_f64;

/** The same for LS_I32. */
typedef struct ls_loc_i32 {
    int32_t value;
    int32_t location;
} ls_loc_i32;

/** The same for LS_I64. */
typedef struct ls_loc_i64 {
    int64_t value;
    int64_t location;
} ls_loc_i64;

/**
 * Every call below, but for ls_comm_send and ls_comm_recv, is made by all ranks of the communicator, in the same order
 * with the same operation, dtype, count, reduction and root. With `work` NULL it returns when the result is there.
 * Otherwise it may return earlier and stores an ls_work: the buffers, and the arrays of counts and displacements, stay
 * Lockstep's until ls_work_wait. Work begun on one communicator is carried out in the order of the calls. `send` and
 * `receive` may not overlap but where a call says how it works in place.
 *
 * The calls that end in v take another number of elements from or to each rank: `counts` has one entry per rank, and
 * `displacements` says where each rank's part begins, in elements from the start of the buffer. Displacements may be
 * NULL: the parts follow each other without gaps. Parts of one buffer that is received into may not overlap.
 */

/** Returns when every rank has come here. */
LS_API ls_status ls_comm_barrier(ls_comm *comm, ls_work **work) LS_WARN_UNUSED;

/** Copies `count` elements of `buffer` on rank `root` into `buffer` on every other rank. */
LS_API ls_status ls_comm_broadcast(ls_comm *comm, void *buffer, size_t count, ls_dtype dtype, int root,
                                   ls_work **work) LS_WARN_UNUSED;

/**
 * receive[i] on every rank becomes the reduction over ranks of send[i], for `count` elements. Sums and products are
 * taken in the order of a balanced binary tree over ranks (the left half of n ranks is the largest power of two below
 * n), so they do not depend on timing; bf16 and f16 are added in f32. In place: receive is send.
 * ls_comm_set_any_order allows other orders.
 */
LS_API ls_status ls_comm_allreduce(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                                   ls_reduction reduction, ls_work **work) LS_WARN_UNUSED;

/**
 * The same reduction, with the same bits, for rank `root` alone: `receive` is used there and may be NULL elsewhere. In
 * place on the root: receive is send.
 */
LS_API ls_status ls_comm_reduce(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                                ls_reduction reduction, int root, ls_work **work) LS_WARN_UNUSED;

/**
 * Rank `root` receives `count` elements from each rank, ordered by rank; `receive` is used there alone and holds size
 * times count. In place on the root: send is its part of receive.
 */
LS_API ls_status ls_comm_gather(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype, int root,
                                ls_work **work) LS_WARN_UNUSED;

/** Each rank gives `count` elements, the root takes counts[r] from rank r. `counts` matters on the root alone. */
LS_API ls_status ls_comm_gatherv(ls_comm *comm, const void *send, size_t count, void *receive, const size_t *counts,
                                 const size_t *displacements, ls_dtype dtype, int root, ls_work **work) LS_WARN_UNUSED;

/** Every rank receives `count` elements from each rank, ordered by rank. In place: send is this rank's part. */
LS_API ls_status ls_comm_allgather(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                                   ls_work **work) LS_WARN_UNUSED;

/** Rank r gives counts[r] elements to every rank. All ranks give the same `counts`; displacements may differ. */
LS_API ls_status ls_comm_allgatherv(ls_comm *comm, const void *send, void *receive, const size_t *counts,
                                    const size_t *displacements, ls_dtype dtype, ls_work **work) LS_WARN_UNUSED;

/**
 * Rank `root` gives `count` elements to each rank: the r-th part of its `send`, which is used there alone, to rank r.
 * In place on the root: receive is its part of send.
 */
LS_API ls_status ls_comm_scatter(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype, int root,
                                 ls_work **work) LS_WARN_UNUSED;

/** The root gives counts[r] elements to rank r, which takes `count`. `counts` matters on the root alone. */
LS_API ls_status ls_comm_scatterv(ls_comm *comm, const void *send, const size_t *counts, const size_t *displacements,
                                  void *receive, size_t count, ls_dtype dtype, int root, ls_work **work) LS_WARN_UNUSED;

/**
 * Rank r receives the reduction over ranks of the r-th part of `send`, `count` elements of size times count, with the
 * bits of ls_comm_allreduce. In place: receive is send (the result is at its start) or this rank's part of it.
 */
LS_API ls_status ls_comm_reduce_scatter(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                                        ls_reduction reduction, ls_work **work) LS_WARN_UNUSED;

/** The same with counts[r] elements for rank r; the parts follow each other. All ranks give the same `counts`. */
LS_API ls_status ls_comm_reduce_scatterv(ls_comm *comm, const void *send, void *receive, const size_t *counts,
                                         ls_dtype dtype, ls_reduction reduction, ls_work **work) LS_WARN_UNUSED;

/** Rank r receives the r-th `count` elements of every rank's `send`, ordered by rank. In place: receive is send. */
LS_API ls_status ls_comm_alltoall(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                                  ls_work **work) LS_WARN_UNUSED;

/** Gives send_counts[r] elements to rank r and takes receive_counts[r] from it. Not in place. */
LS_API ls_status ls_comm_alltoallv(ls_comm *comm, const void *send, const size_t *send_counts,
                                   const size_t *send_displacements, void *receive, const size_t *receive_counts,
                                   const size_t *receive_displacements, ls_dtype dtype, ls_work **work) LS_WARN_UNUSED;

/**
 * Sends `count` elements to rank `dest`, which receives them with ls_comm_recv of the same tag (0 or more), count and
 * dtype. Messages between two ranks with the same tag arrive in the order of the sends.
 *
 * Small messages are buffered, so this returns at once. The backend decides whether a message is small, so two ranks
 * that both send before they receive must use `work`. A rank may send to itself. Sends and receives are independent of
 * the order of the other calls, and progress while this rank is in any call on this communicator.
 */
LS_API ls_status ls_comm_send(ls_comm *comm, const void *buffer, size_t count, ls_dtype dtype, int dest, int tag,
                              ls_work **work) LS_WARN_UNUSED;

/**
 * Receives the next message from rank `source` with this tag. Fails with LS_ERR_MISMATCH if the message has another
 * count or dtype: the message is dropped, the buffer is unchanged, and the communicator stays usable.
 */
LS_API ls_status ls_comm_recv(ls_comm *comm, void *buffer, size_t count, ls_dtype dtype, int source, int tag,
                              ls_work **work) LS_WARN_UNUSED;

/**
 * Memory that every rank of the machine can reach: an all-reduce needs no copies where all ranks send from one such
 * block and receive into one, the same or another, at whatever place. All ranks call it, in the same order as their
 * other calls and with the same `size` in bytes (0 is allowed); each gets its own `size` bytes, cleared and aligned
 * to 64. It is the memory to keep gradients in. It belongs to the communicator and ends with it at the latest. NULL and
 * an error on failure, on every rank: LS_ERR_MEMORY, naming the rank and the bytes, when the machine cannot reserve it.
 */
LS_API void *ls_comm_alloc(ls_comm *comm, size_t size);

/**
 * Gives back memory of ls_comm_alloc before the communicator ends. This concerns the calling rank alone: it waits for
 * nobody, and no call that uses the memory may be in progress. NULL is allowed.
 */
LS_API void ls_comm_release(ls_comm *comm, void *memory);

/**
 * Waits for the work, frees it and returns the status of its call. NULL is LS_OK. On failure ls_error_message() tells
 * why. A refused call does not free the work: LS_ERR_STATE if another thread is using the communicator, or if MPI
 * allows this thread no call (another thread may wait, or ls_work_wait is called again after ls_comm_free).
 */
LS_API ls_status ls_work_wait(ls_work *work) LS_WARN_UNUSED;

/**
 * Returns whether ls_work_wait would return at once, also with an error; advances the work without waiting. The timeout
 * counts from the first call of this, of ls_work_wait, or of a call that waits on another communicator.
 */
LS_API bool ls_work_done(ls_work *work);

/* ---- stores --------------------------------------------------------------------------------------------------- */

/**
 * A small dictionary that all ranks of a job share while they find each other: keys are text of at most 255 bytes,
 * values are bytes of at most 1 MiB. Used by one thread at a time. Opaque.
 */
typedef struct ls_store ls_store;

/** How to open a store. */
typedef struct ls_store_options {
    bool serve;     /**< this process, exactly one of all (rank 0), holds the store: it listens and the others connect,
                       with "file://" at the address by which others reach this machine */
    double timeout; /**< seconds that any call waits; 0: 300 */
    const char
        *key; /**< the job's key; "tcp://" needs it beyond loopback, where without one processes of this user share
                 one by themselves; "file://" does not, as the folder tells a secret to this user's processes */
} ls_store_options;

/**
 * Opens the store at `url`: "tcp://HOST:PORT" (port 0 with serve: any free one, see ls_store_port) or "file://PATH".
 * Those that cannot prove knowledge of the key are refused (HMAC challenge). NULL and an error on failure.
 */
LS_API ls_store *ls_store_open(const char *url, const ls_store_options *options);

/** Closes it and, where this process serves it, ends the server. NULL is allowed. */
LS_API void ls_store_close(ls_store *store);

/** The TCP port of the store. */
LS_API int ls_store_port(const ls_store *store);

/** Sets `key` to `size` bytes of `value` (copied). */
LS_API ls_status ls_store_set(ls_store *store, const char *key, const void *value, size_t size) LS_WARN_UNUSED;

/**
 * Waits until `key` exists and copies its value into `value`, which has room for `capacity` bytes; `*size` becomes the
 * value's size. LS_ERR_ARGUMENT when it does not fit, LS_ERR_TIMEOUT when nobody sets it in time.
 */
LS_API ls_status ls_store_get(ls_store *store, const char *key, void *value, size_t capacity,
                              size_t *size) LS_WARN_UNUSED;

/** Adds `amount` to the counter `key` (0 before its first use) in one step; `*result` (may be NULL) is the new value.
 */
LS_API ls_status ls_store_add(ls_store *store, const char *key, int64_t amount, int64_t *result) LS_WARN_UNUSED;

/** Waits until `key` exists, at most `timeout` seconds (0: the store's). */
LS_API ls_status ls_store_wait(ls_store *store, const char *key, double timeout) LS_WARN_UNUSED;

/**
 * In one step: if `key` holds exactly `expected` (size 0: does not exist), sets it to `desired`. `*swapped` says
 * whether it did.
 */
LS_API ls_status ls_store_compare_set(ls_store *store, const char *key, const void *expected, size_t expected_size,
                                      const void *desired, size_t desired_size, bool *swapped) LS_WARN_UNUSED;

#ifdef __cplusplus
}
#endif

#endif
