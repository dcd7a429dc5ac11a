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

/** What ls_comm_from_mpi calls: `library` is LS_MPI_LIBRARY, `handle` points to an MPI_Comm. */
LS_API ls_comm *ls_comm_from_mpi_handle(const char *library, const void *handle, const ls_init_options *options);

/**
 * A communicator of the ranks of `comm`, in their order, on backend "mpi". All ranks of `comm` call it, between
 * MPI_Init and MPI_Finalize; it duplicates `comm`, so messages of the program's own on it are never mixed with
 * Lockstep's, and `comm` may be freed afterwards. The result is the caller's: ls_comm_free gives it back, before
 * MPI_Finalize. Nothing of MPI is finalized. It is no world: ls_world and ls_finalize do not know it.
 *
 * Of `options`, which may be NULL, only `timeout` has a meaning here; all else must be zero. MPI must allow calls from
 * the threads that use the result (MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE where that is not the main thread
 * alone). While the ranks meet this warns every 5 s of those who are missing.
 *
 * NULL and an error: LS_ERR_ARGUMENT for MPI_COMM_NULL, or where Lockstep has no module for this MPI library (the
 * message says how to make it); LS_ERR_STATE when MPI is not running; LS_ERR_UNSUPPORTED for an intercommunicator;
 * LS_ERR_TIMEOUT naming the ranks that did not come, after which `comm` is of no use for collective calls any more.
 */
static inline ls_comm *ls_comm_from_mpi(MPI_Comm comm, const ls_init_options *options) {
    return ls_comm_from_mpi_handle(LS_MPI_LIBRARY, &comm, options);
}

#ifdef __cplusplus
}
#endif

#endif
