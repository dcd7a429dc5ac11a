/**
 * @file mpi.h
 * For programs that use MPI themselves: a communicator of Lockstep over the ranks of an MPI communicator. Not part of
 * lockstep.h, because it includes the program's own <mpi.h>: compile with mpicc, or with that library's flags. Lockstep
 * itself links no MPI; it opens its module for the library that this header was compiled with, Open MPI or MPICH.
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
 * Returns a communicator of the ranks of `comm`, in their order. All ranks of `comm` call it, between MPI_Init and
 * MPI_Finalize. It duplicates `comm`, so the program's own messages on `comm` are never mixed with Lockstep's, and the
 * program may free `comm` afterwards. The caller frees the result with ls_comm_free, before MPI_Finalize. Nothing of
 * MPI is finalized. The result is not a world: ls_world and ls_finalize do not know it.
 *
 * Backend: ranks that all share one machine use shared memory ("shm"; one rank alone: "self"), other ranks use MPI
 * ("mpi"). `.backend = "mpi"`, or LOCKSTEP_BACKEND=mpi in the environment, selects MPI on one machine too. All ranks
 * must select the same. Other values of LOCKSTEP_BACKEND concern ls_init only.
 *
 * Of `options`, which may be NULL, only `backend` ("mpi", "shm" or NULL) and `timeout` have a meaning here; all other
 * fields must be zero. On backend "mpi", MPI must allow calls from the threads that use the result: if other threads
 * than the main thread do, start MPI with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE. Calls that MPI's thread level
 * forbids are LS_ERR_STATE. While the ranks meet, a warning names the missing ranks every 5 s.
 *
 * Returns NULL on failure: LS_ERR_ARGUMENT for MPI_COMM_NULL, for another backend, or if Lockstep has no module for
 * this MPI library (the message says how to make it); LS_ERR_STATE if MPI is not running; LS_ERR_UNSUPPORTED for an
 * intercommunicator, or for "shm" on several machines; LS_ERR_MISMATCH if the ranks select different backends;
 * LS_ERR_TIMEOUT naming the ranks that did not come, after which `comm` cannot be used for collective calls any more.
 */
static inline ls_comm *ls_comm_from_mpi(MPI_Comm comm, const ls_init_options *options) {
    return ls_comm_from_mpi_handle(LS_MPI_LIBRARY, &comm, options);
}

#ifdef __cplusplus
}
#endif

#endif
