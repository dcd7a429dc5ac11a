/**
 * @file mpi.h
 * Communicators over the ranks of an MPI communicator, for programs that use MPI themselves.
 *
 * ```c
 * #include <lockstep/mpi.h>
 * static ls_status add_up(MPI_Comm ranks, float *value) {
 *     ls_comm *comm = ls_comm_from_mpi(ranks, NULL);
 *     ls_status status =
 *         comm != NULL ? ls_comm_allreduce(comm, value, value, 1, LS_F32, LS_SUM, NULL) : ls_error_status();
 *     ls_comm_free(comm);
 *     return status;
 * }
 * ```
 *
 * lockstep.h does not include this header, because this header includes the program's <mpi.h>. Compile with mpicc, or
 * with the flags of the MPI library. Lockstep itself is not linked with MPI: it opens its plug-in for the library of
 * this <mpi.h>, Open MPI or MPICH.
 */
#ifndef LOCKSTEP_MPI_H
#define LOCKSTEP_MPI_H

#include <lockstep/comm.h>
#include <mpi.h>

#if defined(OMPI_MAJOR_VERSION)
#define LS_MPI_LIBRARY "openmpi"
#elif defined(MPICH_VERSION)
#define LS_MPI_LIBRARY "mpich"
#else
#error "lockstep/mpi.h knows Open MPI and MPICH, and this <mpi.h> is of neither"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Returns a communicator of the ranks of `comm`, in their order. All ranks of `comm` must call it, between MPI_Init and
 * MPI_Finalize. Returns ownership to the caller; free it with ls_comm_free before MPI_Finalize.
 *
 * - Duplicates `comm`, so the program's messages on `comm` never mix with Lockstep's. The program may free `comm`
 *   afterwards.
 * - If a rank calls MPI_Finalize without ls_comm_free, its later calls on the result fail with LS_ERR_STATE, and calls
 *   of the other ranks that wait for it fail with LS_ERR_PEER.
 * - Does not finalize MPI. The result is not a world: ls_world and ls_finalize ignore it.
 * - Selects shared memory ("shm") if all ranks share one machine, "self" for a single rank, and otherwise "mpi".
 *   `.backend = "mpi"` or LOCKSTEP_BACKEND=mpi selects MPI on one machine, too. All ranks must select the same backend.
 *   Other values of LOCKSTEP_BACKEND apply to ls_init only.
 * - Uses `backend` ("mpi", "shm" or NULL), `timeout` and `progress_thread` of `options`, which may be NULL. All other
 *   fields must be zero.
 * - Lowers the number of the library's threads to the process's cores divided by the number of ranks on the machine, as
 *   ls_init does. Never raises it. OMP_NUM_THREADS replaces this share.
 * - Every 5 s, a warning names the ranks that have not made this call.
 * - On backend "mpi", calls that MPI's thread level forbids fail with LS_ERR_STATE. If threads other than the main
 *   thread use the result, start MPI with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE.
 *
 * Returns NULL on failure:
 *
 * - LS_ERR_ARGUMENT: `comm` is MPI_COMM_NULL or a handle that MPI rejects, or an option is wrong.
 *   Also if the process is linked with an MPI library that is not the library of this <mpi.h>, or if Lockstep has no
 *   plug-in for this library. The message says how to build the plug-in.
 * - LS_ERR_STATE: MPI is not running.
 * - LS_ERR_UNSUPPORTED: `comm` is an intercommunicator, or "shm" was selected on several machines. Also if the plug-in
 *   cannot be opened or belongs to a different version of Lockstep.
 * - LS_ERR_MISMATCH: the ranks select different backends.
 * - LS_ERR_TIMEOUT: ranks are missing; the message names them. `comm` then cannot be used for collective calls.
 */
static inline ls_comm *ls_comm_from_mpi(MPI_Comm comm, const ls_init_options *options) {
    return ls_comm_from_mpi_handle(LS_MPI_LIBRARY, &comm, options);
}

#ifdef __cplusplus
}
#endif

#endif
